//! The part `disks`: a volume on a donor's disk as a file, beside the disk itself, beside nbdfuse in front of
//! nbdkit on that disk, and beside a volume in memory.
//!
//! All files lie on one disk of this machine. One donor keeps much less in memory than is read, so that its
//! reads are the disk's; another keeps all of it. Sequential reads begin with an empty page cache, random
//! ones go past it. Called by: `bench`.

use std::path::PathBuf;

use crate::bench::direct::{self, Job};
use crate::bench::file::{self, Walk};
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Taken, Turn};
use crate::bench::row::{Bar, Demand, Figure};
use crate::bench::worker::Worker;
use crate::figures::Series;
use crate::pool::Pool;
use crate::rivals::{NbdFuse, Rival};
use crate::scratch::Scratch;

pub const SECONDS: f64 = 240.0;
pub const SETS: usize = 6;

const MIB: u64 = 1 << 20;
/// What the donor whose reads are the disk's keeps in memory.
const COLD: &str = "64M";
/// What a donor keeps of itself on its disk.
const BESIDE_MIB: u64 = 256;
/// What a cold read may take longer than the disk, in microseconds.
const ADDED_US: f64 = 60.0;

/// Files that are read and written in turn, by name.
type Places = [(&'static str, PathBuf); 5];

pub fn run(bench: &mut Bench) {
    bench.prepare("disks are made and filled");
    let mib: u64 = if bench.quick { 256 } else { 1024 };
    let (bytes, size) = (mib * MIB, format!("{mib}M"));
    let place = Scratch::on_disk();
    let on_disk = |name: &str, cache: &str| {
        let mut pool = Pool::in_the_clear();
        let disk = format!("{}:{}M", place.join(name).display(), mib + BESIDE_MIB);
        pool.donate_as("host-1", &["--disk", &disk, "--cache", cache]);
        pool.ok(["create", "case", &size, "--on", "disk", "--redundancy", "linear"]);
        let path = pool.attach_fuse("case", &[]).path;
        (pool, path)
    };
    let (mut cold_pool, cold) = on_disk("cold", COLD);
    let (mut warm_pool, warm) = on_disk("warm", &format!("{}M", mib * 2));
    let mut memory_pool = Pool::in_the_clear();
    memory_pool.donate("host-1", &format!("{}M", mib + 64));
    memory_pool.ok(["create", "case", &size, "--redundancy", "linear"]);
    let memory = memory_pool.attach_fuse("case", &[]).path;
    let theirs = place.sparse_file("theirs", bytes);
    let nbdkit = Rival::nbdkit_unix(&["file", &theirs.display().to_string(), "cache=none"]);
    let nbdfuse = NbdFuse::start(&nbdkit.uri);
    let plain = place.sparse_file("plain", bytes);
    let places: Places = [
        ("cheetah", cold),
        ("warm", warm),
        ("memory", memory),
        ("nbdfuse", nbdfuse.path.clone()),
        ("disk", plain),
    ];
    let mut worker = Worker::start(&["file"]);
    for (_, path) in &places {
        file::walk(&mut worker, Walk::Write, path, MIB, bytes);
    }
    sequential(bench, &mut worker, &places, bytes);
    worker.end();
    random(bench, &places, bytes);
    drop(nbdfuse);
    for pool in [&mut cold_pool, &mut warm_pool, &mut memory_pool] {
        pool.detach("case");
    }
}

/// From the first byte to the last, through the page cache.
fn sequential(bench: &mut Bench, worker: &mut Worker, places: &Places, bytes: u64) {
    for (walk, word, what) in [
        (Walk::Forward, "read", "sequential cold read of a volume on disk"),
        (Walk::Write, "write", "sequential write of a volume on disk, and its flush"),
    ] {
        bench.set(what);
        let worker = std::cell::RefCell::new(&mut *worker);
        let mut sides: Vec<Side<'_>> = chosen(places, &["cheetah", "nbdfuse", "disk"])
            .map(|(name, path)| {
                let worker = &worker;
                Side::new(name, move || {
                    let walked = file::walk(&mut worker.borrow_mut(), walk, path, MIB, bytes);
                    Turn::of(walked.mb_per_second() / 1e3)
                })
            })
            .collect();
        let taken = bench.turns(&mut sides);
        let id = |peer: &str| format!("disks.{word}.{peer}");
        let of_disk = Bar::RatioAtLeast(0.9).into();
        bench.beside((&id("disk"), what, "GB/s"), &taken, "cheetah", ("the disk itself", "disk"), of_disk);
        let peer = ("nbdfuse on nbdkit", "nbdfuse");
        bench.beside((&id("nbdfuse"), what, "GB/s"), &taken, "cheetah", peer, Demand::NONE);
    }
}

/// Anywhere, past the page cache.
fn random(bench: &mut Bench, places: &Places, bytes: u64) {
    for (depth, what) in [
        (1, "random 4 KiB read of a volume on disk, one at a time"),
        (32, "random 4 KiB read of a volume on disk, 32 at a time"),
    ] {
        bench.set(what);
        let seconds = bench.time.as_secs_f64();
        let mut sides: Vec<Side<'_>> = chosen(places, &["cheetah", "warm", "memory", "nbdfuse", "disk"])
            .map(|(name, path)| {
                let job = Job { path, pattern: "randread", block: 4096, depth, bytes, seconds };
                Side::new(name, move || Turn::of(direct::kiops(&job)))
            })
            .collect();
        let taken = bench.turns(&mut sides);
        let id = |word: &str| format!("disks.random.d{depth}.{word}");
        let peer = ("nbdfuse on nbdkit", "nbdfuse");
        bench.beside((&id("nbdfuse"), what, "k/s"), &taken, "cheetah", peer, Demand::NONE);
        let (of_cache, bar) =
            (format!("{what}, all of it in its donor's memory"), Bar::RatioAtLeast(1.0 / 1.2));
        let peer = ("a volume in memory", "memory");
        bench.beside((&id("warm"), &of_cache, "k/s"), &taken, "warm", peer, bar.into());
        if depth == 1 {
            added(bench, &id("added"), &taken);
        }
    }
}

/// What a read takes longer than one of the disk.
fn added(bench: &mut Bench, id: &str, taken: &Taken) {
    let micros = |side: &str| taken.value(side).values().iter().map(|k| 1e3 / k).collect::<Vec<f64>>();
    let value: Series =
        micros("cheetah").into_iter().zip(micros("disk")).map(|(ours, disk)| ours - disk).collect();
    let (what, bar) =
        ("what a cold read of 4 KiB takes longer than the disk".to_owned(), Some(Bar::ValueAtMost(ADDED_US)));
    bench.row(&Figure { bar, probe: Some(&taken.probe), ..Figure::new(id, what, "us", &value) });
}

fn chosen<'a>(places: &'a Places, names: &'a [&str]) -> impl Iterator<Item = (&'static str, &'a PathBuf)> {
    places.iter().filter(|(name, _)| names.contains(name)).map(|(name, path)| (*name, path))
}
