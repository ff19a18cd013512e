//! `cheetah verify` beside trouble: donors that die, stop, leave or are rebuilt, a coordinator that dies, a
//! writer at full speed, Ctrl-C. It ends by itself, blames nobody for what is merely in motion, and never
//! calls right what it did not check.
//!
//! What holds a verify long enough to meet the trouble is a donor that is stopped: no test hopes to be fast
//! enough. All donors well: `tests/verify.rs`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cheetah_lab::command::Said;
use cheetah_lab::dice::Dice;
use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::loaded::{Front, Loaded, VOLUME};
use cheetah_lab::pool::Pool;
use cheetah_lab::verified::Verified;
use cheetah_lab::wait;
use rustix::process::Signal;

const BLOCK: usize = 4096;
/// More than the 30 s in which a request ends, and what is done behind it.
const LONG: Duration = Duration::from_secs(90);

/// A verify that runs.
struct Running {
    child: std::process::Child,
}

impl Running {
    #[track_caller]
    fn start(pool: &Pool) -> Self {
        let mut command: Command = pool.command();
        command.args(["verify", VOLUME, "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("the program starts") }
    }

    /// Returns when the coordinator knows of its lease.
    #[track_caller]
    fn wait_until_attached(&mut self, pool: &Pool, beside: usize) {
        wait::until("verify to have its lease", wait::SOON, || {
            assert!(matches!(self.child.try_wait(), Ok(None)), "it ended before that");
            attachments(pool) > beside
        });
    }

    fn signal(&self, signal: Signal) {
        cheetah_lab::mark::signal(self.child.id(), signal);
    }

    #[track_caller]
    fn end(mut self) -> Said {
        wait::until("the end of verify", LONG, || !matches!(self.child.try_wait(), Ok(None)));
        let output = self.child.wait_with_output().expect("its output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { status: output.status, out: text(&output.stdout), err: text(&output.stderr) }
    }
}

fn attachments(pool: &Pool) -> usize {
    pool.volume_status(VOLUME)["attachments"].as_array().map_or(0, Vec::len)
}

#[test]
fn what_a_dead_donor_held_is_not_called_right() {
    let mut stage = Loaded::new("mirror:2", 2);
    let [first, second] = [stage.holder(0), stage.holder(1)];
    let all = Verified::run(&stage.pool, VOLUME).number("bytes_checked");
    stage.pool.donor(&first).kill();
    // At once, and when everybody knows.
    for known in [false, true] {
        if known {
            wait::until("the loss", wait::SOON, || stage.pool.volume_status(VOLUME)["slots_missing"] == 1);
        }
        let verified = Verified::run(&stage.pool, VOLUME);
        assert_eq!((verified.code, verified.number("blocks_wrong")), (7, 0), "{}", verified.report);
        assert_eq!(verified.by_donor("bytes_checked"), [(second.clone(), all / 2)].into());
        let rest = verified.number("bytes_unchecked") + verified.number("bytes_missing");
        assert_eq!(rest, all / 2, "{}", verified.report);
    }
    stage.pool.donor(&second).kill();
    wait::until("the second loss", wait::SOON, || stage.pool.volume_status(VOLUME)["health"] == "lost");
    let verified = Verified::run(&stage.pool, VOLUME);
    assert_eq!((verified.code, verified.number("bytes_checked")), (6, 0), "{}", verified.report);
    assert_eq!(verified.ranges("lost").iter().map(|(_, len)| len).sum::<u64>(), stage.image.len() as u64);
}

#[test]
fn what_was_rebuilt_is_right_and_until_then_it_is_not_said() {
    let mut stage = Loaded::new("parity:3+1", 5);
    let all = Verified::run(&stage.pool, VOLUME).number("bytes_checked");
    let victim = stage.holder(1);
    stage.pool.donor(&victim).kill();
    wait::until("a rebuilt volume that is right", LONG, || {
        let verified = Verified::run(&stage.pool, VOLUME);
        assert_eq!(verified.number("blocks_wrong"), 0, "{}", verified.report);
        assert!(verified.code != 0 || verified.number("bytes_checked") == all, "{}", verified.report);
        verified.code == 0
    });
    assert!(!stage.pool.holders(VOLUME, 0).contains(&victim));
}

/// With redundancy a silent donor is set aside in a second; without, it is waited for as long as any request.
fn a_stopped_donor(redundancy: &str) {
    let mut stage = Loaded::new(redundancy, 2);
    let all = Verified::run(&stage.pool, VOLUME).number("bytes_checked");
    let victim = stage.holder(0);
    stage.attach(Front::Export, &["--read-only"]);
    stage.pool.donor(&victim).signal(Signal::STOP);
    let said = Running::start(&stage.pool).end();
    let verified = Verified::of(&said).unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!(verified.number("blocks_wrong"), 0, "{}", verified.report);
    let rest = verified.number("bytes_unchecked") + verified.number("bytes_missing");
    assert_eq!(verified.number("bytes_checked") + rest, all, "{}", verified.report);
    assert!(rest > 0 && verified.code != 0, "{}", verified.report);
    if verified.number("bytes_unchecked") > 0 {
        assert!(verified.by_donor("bytes_unchecked").contains_key(&victim), "{}", verified.report);
    }
    stage.pool.donor(&victim).signal(Signal::CONT);
    wait::until("all to be right again", LONG, || Verified::run(&stage.pool, VOLUME).code == 0);
    stage.pool.detach(VOLUME);
}

#[test]
fn a_stopped_donor_of_a_mirror_is_not_waited_for() {
    a_stopped_donor("mirror:2");
}

#[test]
fn a_stopped_donor_without_redundancy_is_waited_for_until_its_deadline() {
    a_stopped_donor("linear");
}

#[test]
fn an_interrupt_ends_it_and_gives_the_lease_back() {
    let mut stage = Loaded::new("linear", 2);
    let victim = stage.holder(0);
    for signal in [Signal::INT, Signal::TERM] {
        stage.pool.donor(&victim).signal(Signal::STOP);
        let mut running = Running::start(&stage.pool);
        running.wait_until_attached(&stage.pool, 0);
        running.signal(signal);
        let said = running.end();
        assert_eq!((said.status.code(), said.out.as_str()), (Some(1), ""), "{said:?}");
        assert!(said.err.contains("interrupted") && said.err.contains(VOLUME), "{said:?}");
        assert_eq!(attachments(&stage.pool), 0, "the lease was given back");
        stage.pool.donor(&victim).signal(Signal::CONT);
    }
    wait::until("all to be right again", LONG, || Verified::run(&stage.pool, VOLUME).code == 0);
}

/// What is in the middle of it when its coordinator ends still ends, and is not called more than it is.
#[test]
fn a_coordinator_that_dies_leaves_no_verify_hanging() {
    let mut stage = Loaded::new("linear", 2);
    let victim = stage.holder(0);
    stage.pool.donor(&victim).signal(Signal::STOP);
    let mut running = Running::start(&stage.pool);
    running.wait_until_attached(&stage.pool, 0);
    stage.pool.kill_coordinator();
    stage.pool.donor(&victim).signal(Signal::CONT);
    let said = running.end();
    assert_eq!((said.status.code(), said.out.as_str()), (Some(3), ""), "{said:?}");
    assert!(!said.err.is_empty(), "{said:?}");
}

/// Reads, checks and writes again what it wrote itself, in pieces of any length: runs of whole blocks, and
/// parts of one.
fn write_until(file: &File, end: &AtomicBool, count: &AtomicU64, bytes: u64) {
    let (mut dice, mut room) = (Dice::new(5), vec![0; 1 << 20]);
    while !end.load(Ordering::Relaxed) {
        let len = match dice.below(3) {
            0 => 1 + dice.below(5000),
            1 => BLOCK as u64 * (1 + dice.below(16)),
            _ => 1 << 20,
        };
        let at = dice.below(bytes - len);
        let piece = &mut room[..usize::try_from(len).expect("small")];
        piece.fill(dice.below(256) as u8);
        file.write_all_at(piece, at).expect("a write beside a verify");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// One block after the other, past the page cache, over and over.
fn rewrite_until(file: &File, end: &AtomicBool, count: &AtomicU64) {
    let (mut dice, mut room) = (Dice::new(6), Aligned::new(BLOCK));
    while !end.load(Ordering::Relaxed) {
        room.bytes().fill(dice.below(256) as u8);
        file.write_all_at(room.bytes(), dice.below(8) * BLOCK as u64).expect("a write beside a verify");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_is_being_written_is_never_called_wrong() {
    for (redundancy, donors) in [("linear", 2), ("mirror:2", 2), ("parity:3+1", 4)] {
        let mut stage = Loaded::new(redundancy, donors);
        let bytes = stage.image.len() as u64;
        let path = stage.attach(Front::File, &["--writable"]).path;
        let file = File::options().write(true).open(&path).expect("the volume opens");
        let past = direct::open(&path, true).expect("the volume opens");
        let (end, count, alone) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| write_until(&file, &end, &count, bytes));
            scope.spawn(|| rewrite_until(&past, &end, &alone));
            // Also when a verify fails, so that the writers end.
            let found = std::panic::catch_unwind(|| {
                for _ in 0..20 {
                    let before = (count.load(Ordering::Relaxed), alone.load(Ordering::Relaxed));
                    Verified::run(&stage.pool, VOLUME).is_right();
                    wait::until("writes beside it", wait::SOON, || {
                        count.load(Ordering::Relaxed) > before.0 && alone.load(Ordering::Relaxed) > before.1
                    });
                }
            });
            end.store(true, Ordering::Relaxed);
            if let Err(why) = found {
                std::panic::resume_unwind(why);
            }
        });
        drop((file, past));
        stage.pool.detach(VOLUME);
        Verified::run(&stage.pool, VOLUME).is_right();
    }
}

/// What moves is checked where it was or where it comes to, or is said not to be checked.
#[test]
fn what_is_being_moved_is_never_called_wrong() {
    for (redundancy, slots) in [("linear", 1), ("mirror:2", 2), ("parity:3+1", 4)] {
        let mut stage = Loaded::new(redundancy, slots + 1);
        for _ in 0..2 {
            let leaving = stage.holder(0);
            stage.pool.ok(["leave", &leaving, "--no-wait"]);
            wait::until("the move, beside verifies", LONG, || {
                let said = stage.pool.run(["verify", VOLUME, "--json"]);
                let Some(verified) = Verified::of(&said) else {
                    // It ends while verify looks for it.
                    assert!(said.err.contains("does not reach a donor"), "{said:?}");
                    return false;
                };
                assert_eq!(verified.number("blocks_wrong"), 0, "{redundancy}: {}", verified.report);
                assert!(verified.ranges("lost").is_empty(), "{redundancy}: {}", verified.report);
                !stage.pool.holders(VOLUME, 0).contains(&leaving)
            });
            stage.pool.donor(&leaving).wait_for_end(LONG);
            Verified::run(&stage.pool, VOLUME).is_right();
            stage.pool.donate(&format!("{leaving}-again"), "128M");
        }
    }
}

/// A donor stops before it was looked whether it is healed: its blocks are not called so.
#[test]
fn what_could_not_be_looked_at_again_is_not_called_healed() {
    let mut stage = Loaded::new("mirror:2", 2);
    let [first, second] = [stage.holder(0), stage.holder(1)];
    stage.flip_where(&first, 50, 1, |at| at % 8192 == 0);
    stage.flip_where(&second, 50, 2, |at| at % 8192 != 0);
    let mut running = Running::start(&stage.pool);
    running.wait_until_attached(&stage.pool, 0);
    stage.pool.donor(&second).signal(Signal::STOP);
    let said = running.end();
    // Whatever of it came first: nothing that contradicts itself is said.
    let verified = Verified::of(&said).unwrap_or_else(|| panic!("{said:?}"));
    stage.pool.donor(&second).signal(Signal::CONT);
    assert_ne!(verified.code, 0, "{}", verified.report);
}

/// A load that was cut short, which nobody attaches without asking for it.
#[test]
fn a_part_of_a_load_can_be_verified() {
    let mut pool = Pool::start();
    pool.donate("d1", "64M");
    let image = pool.scratch().sparse_file("image.raw", 24 << 20).display().to_string();
    // What keeps it from its end is that its donor is stopped.
    pool.donor("d1").signal(Signal::STOP);
    let mut load = pool.command();
    load.args(["load", &image, VOLUME]);
    let mut load = cheetah_lab::process::Process::start("load", load, pool.scratch().path());
    load.wait_for_line("made volume", wait::SOON);
    load.kill();
    pool.donor("d1").signal(Signal::CONT);
    wait::until("the end of its lease", wait::SOON * 2, || {
        pool.volume_status(VOLUME)["content"]["state"] == "incomplete"
    });
    Verified::run(&pool, VOLUME).is_right();
    assert_eq!(pool.volume_status(VOLUME)["content"]["state"], "incomplete", "it is that still");
}
