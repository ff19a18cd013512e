//! The part `ahead`: the rules of read-ahead beside each other on hosts with links of 1 Gbit/s, by how long a
//! round trip takes. A tool waits for each of its reads, of a file that is cold, and that the kernel does not
//! read ahead of.
//!
//! Owns: the patterns, which are those of `cheetah-sim --read-ahead` but for its walk through a file system
//! (`far` has a real one). Never: a tool that has several reads under way. Invariant: all rules read volumes
//! of the same content on the same donors, attached when the link is as long as it is, and read once from end
//! to end. What a client has learnt of how it is read stays from turn to turn, as it does from tool to tool.
//! Called by: `bench`.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use crate::bench::file::{self, Walk};
use crate::bench::lan::{self, Away, DONORS, NO_READ_AHEAD, STRIDE, noise};
use crate::bench::part::Bench;
use crate::bench::plot::Scaling;
use crate::bench::rounds::{Side, Turn};
use crate::bench::row::{Bar, Demand};
use crate::bench::worker::{Load, Worker};
use crate::lan::Lan;
use crate::load::Pattern;
use crate::scratch::Scratch;

pub const SECONDS: f64 = 470.0;
pub const SETS: usize = PATTERNS.len() * ROUND_TRIPS_MS.len();

const MIB: u64 = 1 << 20;
const BYTES: u64 = 256 * MIB;
/// More than it takes by itself.
const ROUND_TRIPS_MS: [u64; 4] = [0, 1, 10, 50];
/// Volume, and `attach --read-ahead` of it.
const RULES: [(&str, &str); 3] = [("none", "off"), ("thesis", "thesis"), ("cheetah", "auto")];
/// Where what comes next cannot be foreseen, or the wire is full without: no slower; the rest is noise.
const NO_SLOWER: Bar = Bar::RatioAtLeast(0.9);

/// In which order a tool reads, and how much at a time.
struct Reads {
    id: &'static str,
    what: &'static str,
    walk: Walk,
    block: u64,
}

const PATTERNS: [Reads; 5] = [
    Reads { id: "forward", what: "64 KiB after 64 KiB, forward", walk: Walk::Forward, block: 64 << 10 },
    Reads { id: "backward", what: "4 KiB after 4 KiB, backward", walk: Walk::Backward, block: 4096 },
    Reads { id: "strided", what: "4 KiB every 200 KiB", walk: Walk::Strided(STRIDE), block: 4096 },
    Reads { id: "eight", what: "eight places in turns, 16 KiB each", walk: Walk::Turns(8), block: 16 << 10 },
    Reads { id: "random", what: "4 KiB anywhere", walk: Walk::Random, block: 4096 },
];

/// What the links carry, by iperf3.
const WIRE: &str = "wire";

/// Beside no read-ahead.
fn demand(walk: Walk, millis: u64) -> Demand {
    match (walk, millis) {
        (Walk::Random, _) | (Walk::Forward | Walk::Turns(_), 0) => NO_SLOWER.into(),
        // The wire leaves little room, or none: without read-ahead it is half full.
        (_, 0) => Bar::RatioAtLeast(2.0).within(WIRE),
        (Walk::Forward, 1) => Bar::RatioAtLeast(2.0).into(),
        _ => Bar::RatioAtLeast(5.0).into(),
    }
}

pub fn run(bench: &mut Bench) {
    bench.prepare("three volumes with the same content");
    let lan = &lan::hosts("1gbit", DONORS);
    let scratch = Scratch::new();
    let content = noise(&scratch, BYTES).display().to_string();
    let mut pool = lan::pool_on(lan, "256M");
    for (volume, _) in RULES {
        pool.ok(["create", volume, &BYTES.to_string(), "--redundancy", "stripe:4"]);
        pool.ok(["load", &content, volume, "--no-verify"]);
    }
    let (server, mut ping) = lan::ping_pair(lan);
    let worker = RefCell::new(Worker::start(&["file"]));
    let mut lines = PATTERNS.map(|_| RULES.map(|(rule, _)| (rule.to_owned(), Vec::new())));
    let mut away: Option<Away> = None;
    for millis in ROUND_TRIPS_MS {
        let more = Duration::from_millis(millis);
        match &away {
            Some(away) => away.takes(more),
            None => away = (millis > 0).then(|| Away::new(lan, more)),
        }
        let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 1, time: bench.time };
        // As the plot says it: to a hundredth.
        let round_trip_ms = (ping.load(load, &[]).median_us().value / 10.0).round() / 100.0;
        let paths =
            RULES.map(|(volume, rule)| pool.attach_fuse(volume, &["--read-only", "--read-ahead", rule]).path);
        // What was read in bulk before costs each read of 4 KiB 17 us more of 51, with and without
        // read-ahead: its window is open as far as it goes, so the kernel acknowledges in the reading call,
        // and on one machine that call delivers it as well.
        for path in &paths {
            file::walk(&mut worker.borrow_mut(), Walk::Forward, path, MIB, BYTES);
        }
        for (reads, lines) in PATTERNS.iter().zip(&mut lines) {
            let medians = compare(bench, lan, &worker, reads, &paths, millis);
            for ((_, points), median) in lines.iter_mut().zip(medians) {
                points.push((round_trip_ms, median));
            }
        }
        RULES.iter().for_each(|(volume, _)| pool.detach(volume));
    }
    for (Reads { id, what, .. }, lines) in PATTERNS.iter().zip(lines) {
        bench.plots.push(Scaling {
            id: format!("ahead-{id}"),
            title: format!("Read-ahead over 1 Gbit/s, one read at a time: {what}"),
            x: "RTT, ms".to_owned(),
            y: "MB/s".to_owned(),
            lines: lines.into(),
        });
    }
    worker.into_inner().end();
    drop((ping, server));
}

/// Lets the rules take turns where a round trip takes so much longer, and the wire where it is the limit;
/// what each rule made, in MB/s.
fn compare(
    bench: &mut Bench,
    lan: &Lan,
    worker: &RefCell<Worker>,
    reads: &Reads,
    paths: &[PathBuf; RULES.len()],
    millis: u64,
) -> [f64; RULES.len()] {
    let Reads { id, what, walk, block } = *reads;
    bench.set(&format!("RTT {millis} ms: {what}"));
    let longest = Duration::from_millis(if bench.quick { 300 } else { 1000 });
    let turn = |path| {
        file::wait_for_each(&mut worker.borrow_mut(), walk, path, block, BYTES, longest).mb_per_second()
    };
    let mut sides: Vec<Side<'_>> =
        (RULES.iter().zip(paths)).map(|((rule, _), path)| Side::new(rule, || Turn::of(turn(path)))).collect();
    let demand = demand(walk, millis);
    if demand.limit.is_some() {
        sides.push(Side::new(WIRE, || lan::wire(lan)));
    }
    let taken = bench.turns(&mut sides);
    let (id, what) = (format!("ahead.{id}.{millis}ms"), format!("RTT {millis} ms, cold: {what}"));
    bench.beside((&id, &what, "MB/s"), &taken, "cheetah", (NO_READ_AHEAD, "none"), demand);
    let id = format!("{id}.thesis");
    let peer = ("the rule of 2006", "thesis");
    bench.beside((&id, &what, "MB/s"), &taken, "cheetah", peer, Demand::NONE);
    RULES.map(|(rule, _)| taken.value(rule).median())
}
