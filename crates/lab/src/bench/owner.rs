//! The part `owner`: how long an owner waits for 4 GiB that a donor's data takes.
//!
//! Donor and owner share a memory cgroup of 6 GiB; the donor has a copy of all of a `mirror:2` volume, full
//! of random bytes, which fio reads and checks meanwhile. The owner's process fills memory, at a steady rate
//! or as fast as it can. Beside it, just before: how long the same process takes for 4 GiB with nobody in its
//! way, because on a virtual machine whose host takes free memory back that alone may be more than what is
//! asked of the donor. So most runs have memory kept at hand (`hog::AtHand`), and one has what the machine
//! gives. Never: a second run of the same; minutes do not jitter. Called by: `bench`.

use crate::bench::part::Bench;
use crate::bench::row::{Bar, Figure};
use crate::figures::Series;
use crate::hog::{self, AtHand, Pace, Scene, Seen};

pub const SECONDS: f64 = 300.0;
pub const SETS: usize = RUNS.len();

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// How much the donor is to give back.
const WANTED_BYTES: u64 = 4 * GIB;
/// What owner and new donors take in a run, and what the owner takes alone, with some to spare.
const AT_HAND: [u64; 2] = [8 * GIB, 5 * GIB];

/// How an owner takes memory.
struct Run {
    id: &'static str,
    /// MiB a second; None is as fast as it can.
    rate: Option<u64>,
    /// Whether memory is kept at hand.
    kept: bool,
}

/// What the machine gives comes first: later on it has memory at hand from the run before.
const RUNS: [Run; 4] = [
    Run { id: "450.as-given", rate: Some(450), kept: false },
    Run { id: "450", rate: Some(450), kept: true },
    Run { id: "500", rate: Some(500), kept: true },
    Run { id: "all", rate: None, kept: true },
];

pub fn run(bench: &mut Bench) {
    let runs = if bench.quick { &RUNS[1..2] } else { &RUNS[..] };
    for run in runs {
        let rate = run.rate.map_or("all that it can".to_owned(), |rate| format!("{rate} MiB/s"));
        let memory = if run.kept { "memory at hand" } else { "memory as the machine gives it" };
        let what = format!("an owner takes {rate}, {memory}");
        bench.set(&what);
        let (alone_s, seen) = run.play();
        seen.complaints.iter().for_each(|complaint| bench.prepare(complaint));
        rows(bench, run.id, &what, alone_s, &seen);
    }
}

impl Run {
    /// How long the owner takes with nobody in its way, and what is seen where a donor is.
    #[track_caller]
    fn play(&self) -> (f64, Seen) {
        let keep = |bytes| AtHand::keep(if self.kept { bytes } else { 0 });
        let rate = self.rate.map_or(u64::MAX, |rate| rate * MIB);
        let alone_s = hog::alone(WANTED_BYTES, rate, &mut keep(AT_HAND[1]));
        let scene = Scene {
            machine_bytes: 6 * GIB,
            reserve_bytes: 768 * MIB,
            volume_bytes: 4 * GIB + 256 * MIB,
            checked_bytes: 256 * MIB,
            wanted_bytes: WANTED_BYTES,
            rate,
            room_elsewhere: true,
            pace: Pace::Own,
        };
        (alone_s, scene.play_with(&mut keep(AT_HAND[0])))
    }
}

fn rows(bench: &mut Bench, run: &str, what: &str, alone_s: f64, seen: &Seen) {
    let once = |value: f64| [value].into_iter().collect::<Series>();
    let alone = once(alone_s);
    for (id, took, seconds) in [
        ("given-back", "4 GiB given back, since they were needed", seen.given_back_s),
        ("has-all", "the owner has all, since its start", seen.hog_s),
    ] {
        // What never came has no time; it is counted below.
        let Some(seconds) = seconds else { continue };
        let (id, what) = (format!("owner.{run}.{id}"), format!("{what}: {took}"));
        let (value, peer) = (once(seconds), Some(("nobody in its way", &alone)));
        bench.row(&Figure { peer, ..Figure::new(&id, what, "s", &value) });
    }
    let never = [seen.given_back_s, seen.hog_s].iter().filter(|seconds| seconds.is_none()).count();
    let nothing = Some(Bar::ValueAtMost(0.0));
    for (id, of, unit, value, bar) in [
        ("never", "waits that did not end", "", never as f64, nothing),
        ("killed", "processes that the kernel killed", "", seen.killed as f64, nothing),
        ("swapped", "swapped out", "MiB", seen.swapped_bytes as f64 / MIB as f64, nothing),
        ("errors", "complaints of fio", "", seen.complaints.len() as f64, nothing),
        ("missing", "slots without a holder, at most", "", seen.slots_missing_max as f64, None),
        ("ended", "donors that ended", "", f64::from(u8::from(seen.donor_ended.is_some())), None),
        ("peak", "both together, of 6 GiB at most", "GiB", seen.peak_bytes as f64 / GIB as f64, None),
    ] {
        let (id, what) = (format!("owner.{run}.{id}"), format!("{what}: {of}"));
        bench.row(&Figure { bar, ..Figure::new(&id, what, unit, &once(value)) });
    }
}
