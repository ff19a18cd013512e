//! How long an owner waits for 4 GiB that a donor's data takes: `make bench-owner`.
//!
//! Donor and owner share a memory cgroup of 6 GiB; the donor has a copy of all of a `mirror:2` volume, full of random
//! bytes, which fio reads and checks meanwhile. The owner's process fills memory at a steady rate. Beside it, before each
//! run: how long this machine takes to give two processes 4 GiB each, which depends on its host. Prints a Markdown
//! table and writes `bench/owner.json` in the build directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use cheetah_lab::figures;
use cheetah_lab::hog::{self, Scene};
use serde_json::json;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// How fast the owner takes memory, unless arguments say otherwise.
const RATES_MIB: [u64; 2] = [450, 500];

fn main() {
    let seconds = |time: Option<f64>| time.map_or("never".to_owned(), |time| format!("{time:.1} s"));
    println!(
        "| owner takes | 4 GiB given back, since they were needed | 2 x 4 GiB merely touched | owner has all, since its start | peak of 6 GiB | killed | swapped | slots missing | errors |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    let asked: Vec<u64> = std::env::args().skip(1).filter_map(|rate| rate.parse().ok()).collect();
    for rate in if asked.is_empty() { RATES_MIB.to_vec() } else { asked } {
        let touched_s = hog::touch_twice(4 * GIB);
        let scene = Scene {
            machine_bytes: 6 * GIB,
            reserve_bytes: 768 * MIB,
            volume_bytes: 4 * GIB + 256 * MIB,
            checked_bytes: 256 * MIB,
            wanted_bytes: 4 * GIB,
            rate: rate * MIB,
        };
        let seen = scene.play();
        println!(
            "| {rate} MiB/s | {} | {touched_s:.1} s | {} | {:.2} GiB | {} | {} | {} | {} |",
            seconds(seen.given_back_s),
            seconds(seen.hog_s),
            seen.peak_bytes as f64 / GIB as f64,
            seen.killed,
            seen.swapped_bytes,
            seen.slots_missing_max,
            seen.complaints.len(),
        );
        seen.complaints.iter().for_each(|complaint| println!("{complaint}"));
        rows.push(json!({
            "rate_mib": rate,
            "given_back_s": seen.given_back_s,
            "touched_s": touched_s,
            "hog_s": seen.hog_s,
            "held_before": seen.held_before,
            "held_after": seen.held_after,
            "peak_bytes": seen.peak_bytes,
            "killed": seen.killed,
            "swapped_bytes": seen.swapped_bytes,
            "slots_missing_max": seen.slots_missing_max,
            "always_whole": seen.always_whole,
            "complaints": seen.complaints,
        }));
    }
    println!("\nwritten to {}", figures::write_report("owner.json", &json!({ "runs": rows })).display());
}
