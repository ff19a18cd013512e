//! A daemon and a donor that end together while tools write, the donor killed, stopped or cut off: what is
//! read afterwards, by the next attachment and by the one after it.
//!
//! Each block says which write it is of. A block that no write was under way to is what was acknowledged
//! last; none is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::wait;
use rustix::process::Signal;

const BLOCK: u64 = 4096;
const UNIT: u64 = 64 << 10;
const SIZE: u64 = 24 << 20;
const WRITERS: u64 = 8;

fn content(block: u64, version: u64) -> Vec<u8> {
    let word = (block << 32 | version).to_le_bytes();
    word.repeat(BLOCK as usize / word.len())
}

/// What tools know of each block: the version that was acknowledged last, and one that was under way when the
/// writer ended.
#[derive(Debug, Default)]
struct Ledger {
    acknowledged: BTreeMap<u64, u64>,
    under_way: BTreeSet<u64>,
}

/// Writers that go on until they fail or are told to stop; some write single blocks, some whole rows.
fn write_until(path: &Path, stop: &AtomicBool, ledger: &Mutex<Ledger>, version: u64) {
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let Ok(file) = File::options().write(true).open(path) else { return };
                let share = SIZE / WRITERS;
                let blocks = if writer % 2 == 0 { 1 } else { 3 * UNIT / BLOCK };
                let mut draw = writer;
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    draw =
                        draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let step = blocks * BLOCK;
                    let first = (writer * share).next_multiple_of(step) / BLOCK;
                    let count = ((writer + 1) * share / BLOCK - first) / blocks;
                    let first = first + (draw >> 33) % count * blocks;
                    let version = version + turn;
                    let bytes: Vec<u8> =
                        (first..first + blocks).flat_map(|at| content(at, version)).collect();
                    ledger.lock().expect("a ledger").under_way.extend(first..first + blocks);
                    if file.write_all_at(&bytes, first * BLOCK).is_err() {
                        return;
                    }
                    let mut ledger = ledger.lock().expect("a ledger");
                    for block in first..first + blocks {
                        ledger.under_way.remove(&block);
                        ledger.acknowledged.insert(block, version);
                    }
                }
            });
        }
    });
}

/// Blocks that answer errors. All others hold what was acknowledged, where no write was under way.
fn errors(path: &Path, ledger: &Ledger) -> BTreeSet<u64> {
    let file = File::open(path).expect("the volume opens");
    let (mut errors, mut block) = (BTreeSet::new(), vec![0; BLOCK as usize]);
    for (at, version) in &ledger.acknowledged {
        match file.read_exact_at(&mut block, at * BLOCK) {
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(5), "{e}");
                errors.insert(*at);
            }
            Ok(()) if ledger.under_way.contains(at) => {}
            Ok(()) => assert!(
                block == content(*at, *version),
                "block {at} is not version {version} of it, but begins as {} of {}",
                u32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                u32::from_le_bytes([block[4], block[5], block[6], block[7]]),
            ),
        }
    }
    errors
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Stopped,
    /// Its process lives, and nothing reaches it.
    CutOff,
}

/// A donor that may come back.
struct Victim {
    name: String,
    pid: u32,
    /// Its host, in a lab.
    node: Node,
    lan: Option<Arc<Lan>>,
}

impl Victim {
    fn end(&self, pool: &mut Pool, end: End) {
        match (end, &self.lan) {
            (End::Killed, _) => pool.donor(&self.name).kill(),
            (End::Stopped, _) => pool.donor(&self.name).signal(Signal::STOP),
            (End::CutOff, lan) => lan.as_ref().expect("it has a link of its own").cut(self.node),
        }
    }

    /// It goes on where it stopped.
    fn come_back(&self, end: End) {
        match (end, &self.lan) {
            (End::Killed, _) => {}
            (End::Stopped, _) => cheetah_lab::mark::signal(self.pid, Signal::CONT),
            (End::CutOff, lan) => lan.as_ref().expect("it has a link of its own").heal(self.node),
        }
    }
}

/// A pool with a volume; who can be cut off is on a host of its own.
fn pool_for(end: End, redundancy: &str, donors: u8) -> (Pool, Option<Arc<Lan>>) {
    let lan = (end == End::CutOff).then(|| Arc::new(Lan::new(donors, "10gbit")));
    let mut pool = Pool::with(State::Memory, lan.clone());
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "256M");
    }
    pool.ok(["create", "v", "24M", "--redundancy", redundancy]);
    (pool, lan)
}

/// Nothing is lost when the daemon is killed so long after its donor has ended.
fn ends_together(redundancy: &str, donors: u8, end: End, after: Duration) {
    let (mut pool, lan) = pool_for(end, redundancy, donors);
    let path = pool.attach_fuse("v", &[]).path;
    let (stop, ledger) = (AtomicBool::new(false), Mutex::new(Ledger::default()));
    let name = pool.holders("v", 0).into_iter().next().expect("the holder of the first data slot");
    let number = name.strip_prefix('d').and_then(|number| number.parse().ok()).expect("a donor's number");
    let victim = Victim { pid: pool.pid_of(&name), name, node: Node::Donor(number), lan };
    thread::scope(|scope| {
        scope.spawn(|| write_until(&path, &stop, &ledger, 1));
        wait::until("blocks of every writer", wait::SOON, || {
            ledger.lock().expect("a ledger").acknowledged.len() > 2_000
        });
        victim.end(&mut pool, end);
        thread::sleep(after);
        pool.kill_daemons();
        stop.store(true, Ordering::Relaxed);
    });
    let mut ledger = ledger.into_inner().expect("a ledger");
    let path = thread::scope(|scope| {
        if end != End::Killed {
            // It goes on while the next writer waits for it, or when that has gone on without it.
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(4));
                victim.come_back(end);
            });
        }
        pool.attach_fuse("v", &[]).path
    });
    let nothing = BTreeSet::new();
    assert_eq!(errors(&path, &ledger), nothing, "{redundancy}, {end:?}, {after:?} apart");

    // Whole rows and single blocks again: what the next writer is told is written is readable, now and later.
    // What was being written is one or the other, and which is not known to this test.
    let Ledger { acknowledged, under_way } = &mut ledger;
    acknowledged.retain(|block, _| !under_way.contains(block));
    let anew = Mutex::new(Ledger::default());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| write_until(&path, &stop, &anew, 1 << 24));
        wait::until("blocks of every writer", wait::SOON, || {
            anew.lock().expect("a ledger").acknowledged.len() > 2_000
        });
        stop.store(true, Ordering::Relaxed);
    });
    let anew = anew.into_inner().expect("a ledger");
    assert_eq!(anew.under_way, BTreeSet::new(), "no write fails");
    ledger.under_way.clear();
    ledger.acknowledged.extend(&anew.acknowledged);
    assert_eq!(errors(&path, &ledger), nothing, "acknowledged by this attachment, or before");
    pool.detach("v");
    let path = pool.attach_fuse("v", &[]).path;
    assert_eq!(errors(&path, &ledger), nothing, "acknowledged by the attachment before, or earlier");
    let corrupt = pool.json(["show", "v"])["status"]["attachments"][0]["report"]["corrupt_blocks"].clone();
    assert_eq!(corrupt, serde_json::json!([]), "nobody's memory was wrong");
    pool.detach("v");
}

#[test]
fn with_one_parity_a_killed_donor_costs_nothing() {
    ends_together("parity:3+1", 4, End::Killed, Duration::ZERO);
}

#[test]
fn with_a_spare_a_killed_donor_costs_nothing() {
    ends_together("parity:2+1", 4, End::Killed, Duration::ZERO);
}

#[test]
fn with_two_parities_a_killed_donor_costs_nothing() {
    ends_together("parity:3+2", 5, End::Killed, Duration::from_millis(700));
}

#[test]
fn with_two_parities_a_stopped_donor_costs_nothing() {
    ends_together("parity:3+2", 5, End::Stopped, Duration::ZERO);
}

#[test]
fn with_three_copies_a_killed_donor_costs_nothing() {
    ends_together("mirror:3", 3, End::Killed, Duration::from_millis(300));
}

#[test]
fn with_two_parities_a_donor_that_is_cut_off_costs_nothing() {
    ends_together("parity:3+2", 5, End::CutOff, Duration::ZERO);
}

#[test]
fn a_stopped_donor_costs_nothing() {
    ends_together("parity:3+1", 5, End::Stopped, Duration::ZERO);
}

/// `make unclean`.
#[test]
#[ignore = "fifty runs take a quarter of an hour"]
fn fifty_donors_and_daemons_end_up_to_a_second_apart() {
    let kinds = [("parity:3+2", 5), ("mirror:3", 3), ("parity:3+1", 4), ("parity:2+1", 4), ("mirror:2", 2)];
    let ends = [End::Killed, End::Stopped, End::CutOff];
    for run in 0..10 {
        for (number, (redundancy, donors)) in (0..).zip(kinds) {
            // Of each kind each end, at times of its own.
            let end = ends[(run + number) as usize % ends.len()];
            let after = Duration::from_millis(run * 1000 / 9);
            ends_together(redundancy, donors, end, after);
            eprintln!("{redundancy}, {end:?}, {after:?} apart: nothing is lost");
        }
    }
}
