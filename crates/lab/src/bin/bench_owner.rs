//! How long an owner waits for 4 GiB that a donor's data takes: `make bench-owner`.
//!
//! Donor and owner share a memory cgroup of 6 GiB; the donor has a copy of all of a `mirror:2` volume, full
//! of random bytes, which fio reads and checks meanwhile. The owner's process fills memory, at a steady rate
//! or as fast as it can. Beside it, just before: how long the same process takes for 4 GiB with nobody in its
//! way, because on a virtual machine whose host takes free memory back that alone may be more than what is
//! asked of the donor. So most runs have memory kept at hand (`hog::AtHand`), and one has what the machine
//! gives. Prints a Markdown table and writes `bench/owner.json` in the build directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use cheetah_lab::figures;
use cheetah_lab::hog::{self, AtHand, Pace, Scene};
use serde_json::json;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// How many MiB a second the owner takes (`None`: as fast as it can), and whether memory is kept at hand,
/// unless arguments name rates. What the machine gives comes first: later on it has memory at hand from the
/// run before.
const RUNS: [(Option<u64>, bool); 4] =
    [(Some(450), false), (Some(450), true), (Some(500), true), (None, true)];
/// What owner and new donors take in a run, and what the owner takes alone, with some to spare.
const AT_HAND: [u64; 2] = [8 * GIB, 5 * GIB];

fn main() {
    let seconds = |time: Option<f64>| time.map_or("never".to_owned(), |time| format!("{time:.1} s"));
    println!(
        "| owner takes | memory | nobody in its way: 4 GiB | 4 GiB given back, since they were needed | owner has all, since its start | peak of 6 GiB | killed | swapped | slots missing | donor | errors |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    let asked: Vec<_> = std::env::args()
        .skip(1)
        .filter_map(|rate| rate.parse().ok())
        .map(|rate| (Some(rate), true))
        .collect();
    for (rate, kept) in if asked.is_empty() { RUNS.to_vec() } else { asked } {
        let keep = |bytes| AtHand::keep(if kept { bytes } else { 0 });
        let rate_bytes = rate.map_or(u64::MAX, |rate| rate * MIB);
        let alone_s = hog::alone(4 * GIB, rate_bytes, &mut keep(AT_HAND[1]));
        let scene = Scene {
            machine_bytes: 6 * GIB,
            reserve_bytes: 768 * MIB,
            volume_bytes: 4 * GIB + 256 * MIB,
            checked_bytes: 256 * MIB,
            wanted_bytes: 4 * GIB,
            rate: rate_bytes,
            room_elsewhere: true,
            pace: Pace::Own,
        };
        let seen = scene.play_with(&mut keep(AT_HAND[0]));
        println!(
            "| {} | {} | {alone_s:.1} s | {} | {} | {:.2} GiB | {} | {} | {} | {} | {} |",
            rate.map_or("all it can".to_owned(), |rate| format!("{rate} MiB/s")),
            if kept { "at hand" } else { "as the machine gives it" },
            seconds(seen.given_back_s),
            seconds(seen.hog_s),
            seen.peak_bytes as f64 / GIB as f64,
            seen.killed,
            seen.swapped_bytes,
            seen.slots_missing_max,
            if seen.donor_ended.is_some() { "ended" } else { "stayed" },
            seen.complaints.len(),
        );
        seen.complaints.iter().for_each(|complaint| println!("{complaint}"));
        rows.push(json!({
            "rate_mib": rate,
            "memory_at_hand": kept,
            "alone_s": alone_s,
            "given_back_s": seen.given_back_s,
            "hog_s": seen.hog_s,
            "held_before": seen.held_before,
            "held_after": seen.held_after,
            "peak_bytes": seen.peak_bytes,
            "killed": seen.killed,
            "swapped_bytes": seen.swapped_bytes,
            "slots_missing_max": seen.slots_missing_max,
            "always_whole": seen.always_whole,
            "donor_ended": seen.donor_ended,
            "complaints": seen.complaints,
        }));
    }
    println!("\nwritten to {}", figures::write_report("owner.json", &json!({ "runs": rows })).display());
}
