//! The part `far`: hosts with links of 1 Gbit/s and a round trip of 20 ms between the client and its donors:
//! what a cold sequential read makes of the link, and how many round trips a tool waits for that walks a file
//! system.
//!
//! Invariant: a volume is attached when its link is long, so with the connections that such a link asks for.
//! Never: a delay by the kernel (netem is rarely there); `wire` makes it. Called by: `bench`.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::bench::file::{self, Walk};
use crate::bench::lan::{self, Away, DONORS, Loaded, NO_READ_AHEAD, noise};
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Turn};
use crate::bench::row::{Bar, Demand, Figure};
use crate::bench::worker::Worker;
use crate::images::Sample;
use crate::lan::Node;
use crate::pool::Attached;
use crate::scratch::Scratch;
use crate::{rivals, tools};

pub const SECONDS: f64 = 100.0;
pub const SETS: usize = 1;

const MIB: u64 = 1 << 20;
/// Where the file system of the NTFS sample begins.
const NTFS_SECTOR: &str = "2048";
/// Connections of a client to four donors.
const STREAMS: u32 = 8;
const RTT: Duration = Duration::from_millis(20);

pub fn run(bench: &mut Bench) {
    bench.prepare("a link with a round trip of 20 ms");
    let lan = &lan::hosts("1gbit", DONORS);
    let sample = Sample::named("fs.ntfs");
    let pair = Loaded::from(lan, &sample.path(), sample.bytes);
    // The sample is read before a connection is at its speed, so what is measured has ten times its size.
    let (scratch, bytes) = (Scratch::new(), 512 * MIB);
    let large = Loaded::from(lan, &noise(&scratch, bytes), bytes);
    let worker = RefCell::new(Worker::start(&["file"]));
    let walk = |attached: &Attached| {
        Turn::of(
            file::walk(&mut worker.borrow_mut(), Walk::Forward, &attached.path, MIB, bytes).mb_per_second()
                * 8.0,
        )
    };
    let near = rivals::iperf3_between(lan, Node::Donor(1), Node::Client, 2);
    let fls_here = seconds_of_fls(&sample.path());
    let away = Away::new(lan, RTT);
    let (pair, large) = (pair.attach(), large.attach());
    bench.set("RTT 20 ms: sequential cold read, fls");
    let streams = |count| rivals::iperf3_streams(lan, Node::Donor(1), Node::Client, 3, count);
    let taken = bench.turns(&mut [
        Side::new("link", || Turn::of(near)),
        Side::new("one stream", || Turn::of(streams(1))),
        Side::new("many streams", || Turn::of(streams(STREAMS))),
        Side::new("read", || walk(&large.ahead)),
        Side::new("plain read", || walk(&large.plain)),
        Side::new("fls", || Turn::of(cold_fls(&pair.ahead.path))),
        Side::new("plain fls", || Turn::of(cold_fls(&pair.plain.path))),
    ]);
    let what = "RTT 20 ms, 1 Gbit/s: sequential cold read of 512 MiB";
    let link = ("iperf3 without the delay", "link");
    bench.beside(("far.read", what, "Mbit/s"), &taken, "read", link, Bar::RatioAtLeast(0.9).into());
    for (id, what, side) in [
        ("far.iperf3", "RTT 20 ms, 1 Gbit/s: iperf3, 3 s", "one stream"),
        (
            "far.iperf3.streams",
            "the same with eight streams, as many as a client has connections",
            "many streams",
        ),
    ] {
        bench.beside((id, what, "Mbit/s"), &taken, side, link, Demand::NONE);
    }
    bench.beside(("far.plain", what, "Mbit/s"), &taken, "read", (NO_READ_AHEAD, "plain read"), Demand::NONE);
    let what = "RTT 20 ms, 1 Gbit/s: fls -r of the NTFS sample";
    let plain = (NO_READ_AHEAD, "plain fls");
    bench.beside(("far.fls", what, "s"), &taken, "fls", plain, Bar::RatioAtMost(1.0).into());
    // Each round trip that a tool waits for takes one RTT; what it takes beside that is what it takes on a
    // local file.
    let trips = |side: &str| {
        taken
            .value(side)
            .values()
            .iter()
            .map(|seconds| (seconds - fls_here).max(0.0) / RTT.as_secs_f64())
            .collect()
    };
    let what = "the same, round trips that it waited for";
    let (value, plain) = (trips("fls"), trips("plain fls"));
    let peer = Some((NO_READ_AHEAD, &plain));
    let (probe, bar) = (Some(&taken.probe), Some(Bar::RatioAtMost(1.0 / 3.0)));
    bench.row(&Figure { peer, probe, bar, ..Figure::new("far.fls.trips", what.to_owned(), "", &value) });
    worker.into_inner().end();
    drop(away);
    large.end();
    pair.end();
}

#[track_caller]
fn seconds_of_fls(path: &Path) -> f64 {
    let start = Instant::now();
    tools::run("fls", ["-r", "-o", NTFS_SECTOR, &path.display().to_string()]);
    start.elapsed().as_secs_f64()
}

/// With an empty page cache.
#[track_caller]
fn cold_fls(path: &Path) -> f64 {
    file::forget(path);
    seconds_of_fls(path)
}
