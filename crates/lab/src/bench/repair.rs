//! The part `repair`: the rebuild of a donor that was killed, beside what the links allow.
//!
//! `parity:3+1` over five donors on links of 1 Gbit/s, of which one that holds 2 GiB is killed while fio
//! writes 64 KiB blocks at random, 16 at a time, as fast as they go; what fio leaves of the time, it is
//! rebuilt with nobody else about. Invariant: contents are hashed before and after, and once more without
//! another donor, so that what was rebuilt is what is read. Needs 10 GiB of memory. Called by: `bench`.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::lan::hosts;
use crate::bench::part::Bench;
use crate::bench::row::{Bar, Figure};
use crate::figures::Series;
use crate::fio::{self, Fio, Reads, Region, Target};
use crate::lan::{Lan, Node};
use crate::pool::{Access, Pool, State};
use crate::{rivals, tools, wait};

pub const SECONDS: f64 = 300.0;
pub const SETS: usize = 3;

const RATE: &str = "1gbit";
const DONORS: u8 = 5;
const IPERF_SECONDS: u32 = 3;
const EXTENT_MIB: u64 = 64;
const VOLUME: &str = "case";
const REPAIR_LIMIT: Duration = Duration::from_secs(300);

/// Groups of this many data fragments, and one of parity.
const DATA: u64 = 3;
/// What fio writes to, at the start of the volume.
const HAMMERED: Region = Region { offset: 0, bytes: 1 << 30 };
const BLOCK_BYTES: u64 = 64 << 10;
const DEPTH: u32 = 16;
/// How long fio writes before the donor is killed.
const BEFORE_SECONDS: u64 = 12;
/// Of the first seconds of either, nothing is counted.
const SETTLE_SECONDS: u64 = 2;
/// Who is killed, and who is afterwards, for what was rebuilt to be read.
const VICTIMS: [&str; 2] = ["host-2", "host-4"];

pub fn run(bench: &mut Bench) {
    let (groups, during_seconds) = if bench.quick { (16, 10) } else { (40, 45) };
    bench.prepare("a volume is filled and hashed");
    let lan = hosts(RATE, DONORS);
    let links = Links::measure(&lan);
    let mut case = Case::fill(&lan, groups);
    let before = hash(&case.file, case.still);
    let held_mib = held_extents(&case.pool, VICTIMS[0]) as u64 * EXTENT_MIB;
    bench.set("a donor is killed while fio writes");
    let beside = case.rebuild_beside_fio(during_seconds);
    bench.set("the rest is rebuilt with nobody else about");
    let rate_alone = case.rebuild_alone();
    bench.set("what was rebuilt is read");
    case.compare(&before);
    let of = format!("rebuild of {held_mib} MiB, links of {RATE}");
    for (id, what, value, (peer_name, peer), bar) in [
        ("foreground", "fio's throughput meanwhile", beside.during, ("before", beside.before), 0.7),
        ("beside", "beside fio", beside.rate, ("what fio leaves of the links", links.left_by(&beside)), 0.8),
        ("alone", "with nobody else about", rate_alone, ("what the links allow", links.allow()), 0.8),
    ] {
        let (id, what) = (format!("repair.{id}"), format!("{of}: {what}"));
        let [value, peer] = [value, peer].map(|once| [once].into_iter().collect::<Series>());
        let (peer, bar) = (Some((peer_name, &peer)), Some(Bar::RatioAtLeast(bar)));
        bench.row(&Figure { peer, bar, ..Figure::new(&id, what, "MB/s", &value) });
    }
}

/// What the client's link carries: MB/s of payload each way, and how much more its counter counts.
struct Links {
    inward: f64,
    outward: f64,
    framing: f64,
}

impl Links {
    #[track_caller]
    fn measure(lan: &Lan) -> Self {
        let (sent, received) = lan.bytes_moved(Node::Client);
        let inward = rivals::iperf3_between(lan, Node::Donor(1), Node::Client, IPERF_SECONDS) / 8.0;
        let outward = rivals::iperf3_between(lan, Node::Client, Node::Donor(1), IPERF_SECONDS) / 8.0;
        let (sent_now, received_now) = lan.bytes_moved(Node::Client);
        let counted = (sent_now - sent + received_now - received) as f64;
        let framing = counted / ((inward + outward) * 1e6 * f64::from(IPERF_SECONDS));
        Self { inward, outward, framing }
    }

    /// MB/s that could be rebuilt, of which each byte is DATA bytes on their way in and one on its way out.
    fn allow(&self) -> f64 {
        (self.inward / DATA as f64).min(self.outward)
    }

    /// The same of what fio leaves: all that is moved, and is not the rebuild's, is fio's.
    fn left_by(&self, beside: &Beside) -> f64 {
        let fio_in = beside.received / self.framing - beside.rate * DATA as f64;
        let fio_out = beside.sent / self.framing - beside.rate;
        ((self.inward - fio_in) / DATA as f64).min(self.outward - fio_out)
    }
}

/// A volume of random bytes, attached as a file.
struct Case<'a> {
    lan: &'a Lan,
    pool: Pool,
    file: PathBuf,
    /// What fio does not write to.
    still: Region,
}

/// MB/s while fio wrote.
struct Beside {
    /// fio's own before the donor was killed, and during the rebuild.
    before: f64,
    during: f64,
    /// Rebuilt, and sent and received by the client.
    rate: f64,
    sent: f64,
    received: f64,
}

impl<'a> Case<'a> {
    #[track_caller]
    fn fill(lan: &'a Arc<Lan>, groups: u64) -> Self {
        let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(lan.clone()));
        pool.donate_everywhere(DONORS, &format!("{}M", (groups + 8) * EXTENT_MIB));
        let mib = groups * DATA * EXTENT_MIB;
        pool.ok(["create", VOLUME, &format!("{mib}M"), "--redundancy", &format!("parity:{DATA}+1")]);
        let file = pool.attach_fuse(VOLUME, &[]).path;
        fill(&file, mib);
        let still = Region { offset: HAMMERED.bytes, bytes: (mib << 20) - HAMMERED.bytes };
        Self { lan, pool, file, still }
    }

    /// Kills the donor while fio writes, which ends so many seconds into the rebuild.
    #[track_caller]
    fn rebuild_beside_fio(&mut self, during_seconds: u64) -> Beside {
        let Self { lan, pool, file, .. } = self;
        let target = Target::File(file.clone());
        let fio = Fio { lan: Some(lan), target: &target, scratch: pool.scratch() };
        // It ends by itself only when the rebuilding never begins.
        let seconds = BEFORE_SECONDS + during_seconds + 60;
        let (region, block_bytes, depth) = (HAMMERED, BLOCK_BYTES, DEPTH);
        let running =
            fio.hammer(&Reads { region, block_bytes, depth, seconds, bytes_per_second: None, seed: 7 });
        std::thread::sleep(Duration::from_secs(BEFORE_SECONDS));
        let killed_ms = fio::now_ms();
        pool.donor(VICTIMS[0]).kill();
        wait::until("the beginning of the rebuilding", wait::SOON, || Look::now(pool, lan).filled > 0);
        std::thread::sleep(Duration::from_secs(SETTLE_SECONDS));
        let first = Look::at_next_report(pool, lan);
        std::thread::sleep(Duration::from_secs(during_seconds));
        let last = Look::at_next_report(pool, lan);
        let ended = running.finish();
        assert!(ended.good(), "fio failed while a donor was rebuilt: {}", ended.complaint);
        let throughput = |from: u64, to: u64| {
            let count = ended.completions.iter().filter(|time| (from..to).contains(*time)).count();
            count as f64 * BLOCK_BYTES as f64 / 1e6 / ((to - from) as f64 / 1e3)
        };
        let [rate, sent, received] = last.since(&first);
        Beside {
            before: throughput(killed_ms - (BEFORE_SECONDS - SETTLE_SECONDS) * 1000, killed_ms),
            during: throughput(first.at_ms, last.at_ms),
            rate,
            sent,
            received,
        }
    }

    /// MB/s at which the rest is rebuilt.
    #[track_caller]
    fn rebuild_alone(&self) -> f64 {
        let first = Look::at_next_report(&self.pool, self.lan);
        let mut last = first;
        wait::until("the end of the rebuilding", REPAIR_LIMIT, || {
            let now = Look::now(&self.pool, self.lan);
            if now.filled > last.filled {
                last = now;
            }
            self.pool.volume_status(VOLUME)["health"] == "whole"
        });
        let [rate, ..] = last.since(&first);
        rate
    }

    /// Fails where the volume reads otherwise than before, also from what was rebuilt.
    #[track_caller]
    fn compare(&mut self, before: &[String]) {
        let still = || hash(&self.file, self.still);
        assert!(still() == before, "the volume reads otherwise than before the donor was killed");
        let hammered = hash(&self.file, HAMMERED);
        self.pool.donor(VICTIMS[1]).kill();
        assert!(still() == before, "what was rebuilt is not what was lost");
        assert!(
            hash(&self.file, HAMMERED) == hammered,
            "what fio wrote during the rebuild lies differently on what was rebuilt"
        );
    }
}

/// What a moment of the rebuilding looks like.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    at_ms: u64,
    filled: u64,
    sent: u64,
    received: u64,
}

impl Look {
    /// At the next moment at which the client has told how far it is, which it does every two seconds.
    fn at_next_report(pool: &Pool, lan: &Lan) -> Self {
        let before = Look::now(pool, lan);
        wait::for_some("progress of the rebuilding", wait::SOON, || {
            Some(Look::now(pool, lan)).filter(|now| now.filled > before.filled)
        })
    }

    fn now(pool: &Pool, lan: &Lan) -> Self {
        let report = pool.volume_status(VOLUME)["attachments"][0]["report"].clone();
        let (sent, received) = lan.bytes_moved(Node::Client);
        let filled = report["fill_bytes_done"].as_u64().unwrap_or(0);
        Look { at: Instant::now(), at_ms: fio::now_ms(), filled, sent, received }
    }

    /// MB/s since: filled, sent, received.
    fn since(&self, before: &Look) -> [f64; 3] {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        [(self.filled, before.filled), (self.sent, before.sent), (self.received, before.received)]
            .map(|(now, then)| now.saturating_sub(then) as f64 / 1e6 / seconds)
    }
}

/// How many extents of the volume a donor holds.
fn held_extents(pool: &Pool, donor: &str) -> usize {
    let detail = pool.json(["show", VOLUME]);
    let groups = detail["map"]["groups"].as_array().map_or(0, Vec::len);
    let name = |slot: &Value| {
        let holder = slot["held"]["donor"].as_str()?;
        detail["map"]["routes"][holder]["name"].as_str()
    };
    (0..groups)
        .filter_map(|group| detail["map"]["groups"][group]["slots"].as_array())
        .map(|slots| slots.iter().filter(|slot| name(slot) == Some(donor)).count())
        .sum()
}

/// Random bytes all over the volume, several runs of it at once.
fn fill(file: &Path, mib: u64) {
    const RUNS: u64 = 4;
    let each = mib / RUNS;
    let runs: Vec<Child> = (0..RUNS)
        .map(|run| {
            let mut command = tools::command("dd");
            command.arg("if=/dev/urandom").arg(format!("of={}", file.display()));
            command.args(["bs=1M", "status=none", "conv=notrunc", "oflag=direct", "iflag=fullblock"]);
            command.arg(format!("seek={}", run * each)).arg(format!("count={each}"));
            command.spawn().expect("dd starts")
        })
        .collect();
    for mut run in runs {
        assert!(run.wait().is_ok_and(|status| status.success()), "cannot fill {}", file.display());
    }
}

/// SHA-256 of quarters of the region, read at once.
fn hash(file: &Path, region: Region) -> Vec<String> {
    const QUARTERS: u64 = 4;
    let mib = (region.bytes / QUARTERS) >> 20;
    let runs: Vec<Child> = (0..QUARTERS)
        .map(|quarter| {
            let mut command = tools::command("sh");
            let skip = (region.offset >> 20) + quarter * mib;
            let script =
                format!("dd if=\"$0\" bs=1M iflag=direct status=none skip={skip} count={mib} | sha256sum");
            command.args(["-c", &script]).arg(file).stdout(Stdio::piped()).spawn().expect("sh starts")
        })
        .collect();
    let read = |run: Child| {
        let output = run.wait_with_output().expect("its output");
        let hash = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && hash.len() > 64, "cannot read {}", file.display());
        hash
    };
    runs.into_iter().map(read).collect()
}
