//! The part `front`: a volume as a file, beside what a user has today: nbdfuse in front of nbdkit on a Unix
//! socket, and four such files joined by the kernel (a RAID0 of loop devices). A file in memory (tmpfs) is
//! the limit.
//!
//! Every file was written before; sequential reads begin with an empty page cache, random ones go past it.
//! Called by: `bench`.

use std::path::PathBuf;

use cheetah_core::limits::CACHE_DEFAULT_BYTES;

use crate::bench::direct::{self, Job};
use crate::bench::file::{self, Walk};
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Taken, Turn};
use crate::bench::row::{Bar, Demand, Figure};
use crate::bench::worker::Worker;
use crate::figures::Series;
use crate::pool::Pool;
use crate::process;
use crate::rivals::{NbdFuse, Rival, Striped};
use crate::scratch::Scratch;

pub const SECONDS: f64 = 240.0;
pub const SETS: usize = 4;

const DONORS: usize = 4;
const MIB: u64 = 1 << 20;

/// A file and the processes behind it.
struct Place {
    name: &'static str,
    path: PathBuf,
    servers: Vec<u32>,
}

pub fn run(bench: &mut Bench) {
    bench.prepare("files are made and filled");
    let mib: u64 = if bench.quick { 256 } else { 1024 };
    let (bytes, size) = (mib * MIB, format!("{mib}M"));
    let mut pool = Pool::in_the_clear();
    let lent = format!("{}M", mib / 4 + 64);
    for number in 1..=DONORS {
        pool.donate(&format!("host-{number}"), &lent);
    }
    pool.ok(["create", "case", &size, "--redundancy", "stripe:4"]);
    let ours = pool.attach_fuse("case", &[]);
    let nbdkit = Rival::nbdkit_unix(&["memory", &size]);
    let nbdfuse = NbdFuse::start(&nbdkit.uri);
    let striped = Striped::new(DONORS, bytes);
    let memory = Scratch::in_memory();
    let limit = memory.sparse_file("file", bytes);
    let ours_servers = [pool.donor_pids(), vec![ours.pid]].concat();
    let places = [
        Place { name: "cheetah", path: ours.path, servers: ours_servers },
        Place {
            name: "nbdfuse",
            path: nbdfuse.path.clone(),
            servers: vec![nbdkit.process.pid(), nbdfuse.process.pid()],
        },
        Place { name: "striped", path: striped.path.clone(), servers: striped.pids() },
        Place { name: "tmpfs", path: limit, servers: Vec::new() },
    ];
    let mut worker = Worker::start(&["file"]);
    for place in &places {
        file::walk(&mut worker, Walk::Write, &place.path, MIB, bytes);
    }
    process::wait_for_rest(&pool.donor_pids());
    sequential(bench, &mut worker, &places, bytes);
    random(bench, &places, bytes);
    let beyond = process::peak_resident_bytes(ours.pid).saturating_sub(CACHE_DEFAULT_BYTES);
    let value: Series = [beyond as f64 / MIB as f64].into_iter().collect();
    let (id, bar) = ("front.memory.client", Some(Bar::ValueAtMost(128.0)));
    let what = "memory of a client that serves a file beyond its cache, its peak".to_owned();
    bench.row(&Figure { bar, ..Figure::new(id, what, "MiB", &value) });
    worker.end();
    pool.detach("case");
}

/// From the first byte to the last.
fn sequential(bench: &mut Bench, worker: &mut Worker, places: &[Place], bytes: u64) {
    for (walk, word, demand) in
        [(Walk::Forward, "read", Bar::RatioAtLeast(1.4).into()), (Walk::Write, "write", Demand::NONE)]
    {
        let what = match walk {
            Walk::Write => "sequential write through the page cache, and its flush",
            _ => "sequential cold read",
        };
        bench.set(what);
        let taken = walks(bench, worker, places, walk, bytes);
        rows(bench, &format!("front.{word}"), what, "GB/s", &taken, demand);
        let (id, what) =
            (format!("front.{word}.cpu"), format!("{what}, processor time of servers and reader"));
        let peer = Some(("nbdfuse on nbdkit", taken.cpu("nbdfuse")));
        let (value, probe) = (taken.cpu("cheetah"), Some(&taken.probe));
        bench.row(&Figure { peer, probe, ..Figure::new(&id, what, "s/GB", value) });
    }
}

/// Anywhere, past the page cache.
fn random(bench: &mut Bench, places: &[Place], bytes: u64) {
    for (depth, demand) in [(32, Bar::RatioAtLeast(4.0).into()), (1, Demand::NONE)] {
        let what = format!("random 4 KiB read past the page cache, depth {depth}");
        bench.set(&what);
        let seconds = bench.time.as_secs_f64();
        let mut sides: Vec<Side<'_>> = places
            .iter()
            .map(|place| {
                let job = Job { path: &place.path, pattern: "randread", block: 4096, depth, bytes, seconds };
                Side::new(place.name, move || Turn::of(direct::kiops(&job)))
            })
            .collect();
        let taken = bench.turns(&mut sides);
        rows(bench, &format!("front.random.d{depth}"), &what, "k/s", &taken, demand);
    }
}

fn walks(bench: &mut Bench, worker: &mut Worker, places: &[Place], walk: Walk, bytes: u64) -> Taken {
    let worker = std::cell::RefCell::new(worker);
    let mut sides: Vec<Side<'_>> = places
        .iter()
        .map(|place| {
            let worker = &worker;
            Side::new(place.name, move || {
                let cpu =
                    || place.servers.iter().map(|pid| process::cpu_time(*pid).as_secs_f64()).sum::<f64>();
                let before = cpu();
                let walked = file::walk(&mut worker.borrow_mut(), walk, &place.path, MIB, bytes);
                let used = walked.cpu + cpu() - before;
                let value = walked.mb_per_second() / 1e3;
                Turn { value, cpu_per_gb: used / (walked.bytes as f64 / 1e9) }
            })
        })
        .collect();
    bench.turns(&mut sides)
}

/// The file beside each of the others; the bar is against what a user has today.
fn rows(bench: &mut Bench, id: &str, what: &str, unit: &str, taken: &Taken, demand: Demand) {
    for (side, peer_name, demand) in [
        ("nbdfuse", "nbdfuse on nbdkit", demand),
        ("striped", Striped::NAME, Demand::NONE),
        ("tmpfs", "tmpfs", Demand::NONE),
    ] {
        let id = format!("{id}.{side}");
        bench.beside((&id, what, unit), taken, "cheetah", (peer_name, side), demand);
    }
}
