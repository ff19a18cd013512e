//! The part `scale`: how cost grows with donors, connections and volumes, and with the donors of a simulated
//! pool.
//!
//! Donors: each has a link of 200 Mbit/s, the client one of 1 Gbit/s, so that throughput rises until the
//! client's link is full. Connections: clients of one export, each with one random read at a time. Volumes:
//! how long it takes to make and to attach one more. Simulated pools run the coordinator's machine in this
//! process, without a network. Called by: `bench`.

use std::sync::Arc;
use std::time::Instant;

use crate::bench::file::{self, Walk};
use crate::bench::lan::hosts;
use crate::bench::part::Bench;
use crate::bench::plot::Scaling;
use crate::bench::rounds::{Side, Turn};
use crate::bench::row::{Demand, Figure};
use crate::bench::simulated::Simulated;
use crate::bench::worker::{Load, Worker};
use crate::figures::Series;
use crate::lan::Node;
use crate::load::Pattern;
use crate::pool::{Access, Pool, State};
use crate::rivals;

pub const SECONDS: f64 = 240.0;
pub const SETS: usize = 4;

const MIB: u64 = 1 << 20;
const DONORS: [u8; 4] = [1, 2, 4, 8];
const DONOR_RATE: &str = "200mbit";
const CONNECTIONS: [usize; 5] = [1, 4, 16, 64, 256];
const VOLUMES: [usize; 4] = [1, 4, 16, 64];
const SIMULATED: [u64; 4] = [10, 100, 1_000, 10_000];

pub fn run(bench: &mut Bench) {
    donors(bench);
    connections(bench);
    volumes(bench);
    simulated(bench);
}

fn scaling(id: &str, title: &str, x: &str, y: &str, lines: Vec<(&str, Vec<(f64, f64)>)>) -> Scaling {
    let own = |text: &str| text.to_owned();
    let lines = lines.into_iter().map(|(name, points)| (own(name), points)).collect();
    Scaling { id: own(id), title: own(title), x: own(x), y: own(y), lines }
}

fn donors(bench: &mut Bench) {
    bench.set("throughput by donors");
    let most = DONORS[DONORS.len() - 1];
    let lan = hosts("1gbit", most);
    (1..=most).for_each(|number| lan.rate(Node::Donor(number), DONOR_RATE));
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(&lan)));
    pool.donate_everywhere(most, "384M");
    // A link lets its first megabyte pass at once; a few seconds make it nothing.
    let size = |count: u8| (64 * u64::from(count)).min(256) * MIB;
    let mut paths = Vec::new();
    for count in DONORS {
        let (name, redundancy) = (format!("over-{count}"), format!("stripe:{count}"));
        let redundancy = if count == 1 { "linear".to_owned() } else { redundancy };
        pool.ok(["create", &name, &size(count).to_string(), "--redundancy", &redundancy]);
        paths.push(pool.attach_fuse(&name, &[]).path);
    }
    let client = rivals::iperf3_between(&lan, Node::Coordinator, Node::Client, 2);
    let donor = rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, 2);
    let mut worker = Worker::start(&["file"]);
    let (mut reads, mut writes, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    for (count, path) in DONORS.into_iter().zip(&paths) {
        let x = f64::from(count);
        let limit = (donor * x).min(client);
        for (walk, word, points) in [(Walk::Write, "write", &mut writes), (Walk::Forward, "read", &mut reads)]
        {
            let taken = bench.turns(&mut [
                Side::new("limit", || Turn::of(limit)),
                Side::new("cheetah", || {
                    Turn::of(file::walk(&mut worker, walk, path, MIB, size(count)).mb_per_second() * 8.0)
                }),
            ]);
            points.push((x, taken.value("cheetah").median()));
            let id = format!("scale.donors.{count}.{word}");
            let what = format!("sequential {word} of a file, stripe over {count} donors of 200 Mbit/s");
            let peer = ("iperf3: the donors' links or the client's", "limit");
            bench.beside((&id, &what, "Mbit/s"), &taken, "cheetah", peer, Demand::NONE);
        }
        limits.push((x, limit));
    }
    let lines = vec![("read", reads), ("write", writes), ("links", limits)];
    bench.plots.push(scaling(
        "scale-donors",
        "Throughput by donors of 200 Mbit/s, client 1 Gbit/s",
        "donors",
        "Mbit/s",
        lines,
    ));
    worker.end();
    for count in DONORS {
        pool.detach(&format!("over-{count}"));
    }
}

fn connections(bench: &mut Bench) {
    bench.set("random reads by connections to an export");
    let mut pool = Pool::in_the_clear();
    for number in 1..=4 {
        pool.donate(&format!("host-{number}"), "128M");
    }
    pool.ok(["create", "case", "256M", "--redundancy", "stripe:4"]);
    let export = pool.attach_export("case", &[]);
    let address = export.uri.trim_start_matches("nbd://").split('/').next().unwrap_or_default().to_owned();
    let name = export.uri.rsplit('/').next().unwrap_or_default().to_owned();
    Worker::start(&["nbd", &address, &name]).fill();
    let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 1, time: bench.time };
    let (mut points, mut memory) = (Vec::new(), Vec::new());
    for count in CONNECTIONS {
        let mut worker = Worker::start(&["nbd-many", &address, &name, &count.to_string()]);
        let taken = bench.turns(&mut [Side::new("cheetah", || worker.load(load, &[]).kiops())]);
        let value = taken.value("cheetah");
        points.push((count as f64, value.median()));
        memory.push((count as f64, crate::process::resident_bytes(export.pid) as f64 / MIB as f64));
        let id = format!("scale.connections.{count}");
        let what = format!("random 4 KiB reads, {count} connections to an export, one at a time each");
        let probe = Some(&taken.probe);
        bench.row(&Figure { probe, ..Figure::new(&id, what, "k/s", value) });
        worker.end();
    }
    let lines = vec![("thousand reads a second", points), ("memory of the daemon, MiB", memory)];
    bench.plots.push(scaling(
        "scale-connections",
        "Random 4 KiB reads by connections",
        "connections",
        "",
        lines,
    ));
    pool.detach("case");
}

fn volumes(bench: &mut Bench) {
    bench.set("volumes");
    let most = VOLUMES[VOLUMES.len() - 1];
    let mut pool = Pool::in_the_clear();
    for number in 1..=4 {
        pool.donate(&format!("host-{number}"), &format!("{}M", 64 * most));
    }
    let (mut made, mut attached) = (Vec::new(), Vec::new());
    let mut there = 0;
    for count in VOLUMES {
        let (mut create, mut attach) = (Series::default(), Series::default());
        while there < count {
            let name = format!("case-{there}");
            let start = Instant::now();
            pool.ok(["create", &name, "256M", "--redundancy", "stripe:4"]);
            create.push(start.elapsed().as_secs_f64() * 1e3);
            there += 1;
        }
        for _ in 0..bench.rounds {
            let start = Instant::now();
            pool.attach_export_unix("case-0", &[]);
            attach.push(start.elapsed().as_secs_f64() * 1e3);
            pool.detach("case-0");
        }
        for (id, what, series, points) in [
            ("create", "making one more volume", &create, &mut made),
            ("attach", "attaching one", &attach, &mut attached),
        ] {
            points.push((count as f64, series.median()));
            let (id, what) = (format!("scale.volumes.{count}.{id}"), format!("{what}, of up to {count}"));
            bench.row(&Figure::new(&id, what, "ms", series));
        }
    }
    let lines = vec![("create", made), ("attach", attached)];
    bench.plots.push(scaling(
        "scale-volumes",
        "A volume more, by volumes in the pool",
        "volumes",
        "ms",
        lines,
    ));
}

fn simulated(bench: &mut Bench) {
    bench.set("simulated pools");
    let mut lines: [Vec<(f64, f64)>; 3] = Default::default();
    for donors in SIMULATED {
        let mut series: [Series; 3] = Default::default();
        for _ in 0..if bench.quick { 1 } else { 3 } {
            let mut pool = Simulated::with_donors(donors);
            series[0].push(pool.join_us);
            series[1].push(pool.heartbeat_us());
            series[2].push(pool.create_all_ms());
        }
        for (index, (id, what, unit)) in [
            ("join", "the coordinator's work for one donor that joins", "us"),
            ("heartbeat", "its work for one heartbeat", "us"),
            ("create", "its work for a volume over all that is free, until every donor has confirmed", "ms"),
        ]
        .into_iter()
        .enumerate()
        {
            let value = &series[index];
            lines[index].push((donors as f64, value.median()));
            let id = format!("scale.simulated.{donors}.{id}");
            let what = format!("simulated pool of {donors} donors: {what}");
            bench.row(&Figure::new(&id, what, unit, value));
        }
    }
    let [join, heartbeat, create] = lines;
    let per_donor = create.iter().map(|(donors, ms)| (*donors, ms * 1e3 / donors)).collect();
    let lines = vec![("join", join), ("heartbeat", heartbeat), ("create, for each donor", per_donor)];
    bench.plots.push(scaling(
        "scale-simulated",
        "The coordinator's work by donors of a simulated pool",
        "donors",
        "us",
        lines,
    ));
}
