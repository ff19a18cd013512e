//! The part `verify`: what checking costs, on loopback, four donors with a stripe. How fast `cheetah verify`
//! is beside a bare loop that computes the same checksums on the same cores; how long `cheetah load` takes
//! beside hashing the same file; what a read-only attachment costs beside one that writes; and the memory
//! that checksums and tags take on a donor.
//!
//! Donors and client share the cores of this machine, as the loop and the hashes have all of them: a pool of
//! several machines has more. Never: a block that is zeros, which nobody has to look at. Called by: `bench`.

use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cheetah_rim::code::crc32c;

use crate::bench::file::{self, Walk};
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Turn};
use crate::bench::row::{Bar, Figure};
use crate::bench::worker::Worker;
use crate::figures::Series;
use crate::pool::{Attached, Pool};
use crate::rivals::Rival;
use crate::scratch::Scratch;
use crate::verified::Verified;
use crate::{process, tools, wait};

pub const SECONDS: f64 = 600.0;
pub const SETS: usize = 4;

const DONORS: u64 = 4;
const MIB: u64 = 1 << 20;
const BLOCK_BYTES: usize = 4 << 10;
/// What the loop goes over again and again: far more than any cache has.
const LOOP_BYTES: usize = 256 << 20;
const VOLUME: &str = "case";
/// The hashes of a file that `load` computes, as programs.
const HASHES: [&str; 3] = ["md5sum", "sha1sum", "sha256sum"];

pub fn run(bench: &mut Bench) {
    verify(bench);
    loads(bench);
    readers(bench);
    encrypted(bench);
}

/// Donors that lend so much together, and some more for proofs.
#[track_caller]
fn pool_of(mib: u64) -> Pool {
    let mut pool = Pool::in_the_clear();
    for number in 1..=DONORS {
        pool.donate(&format!("host-{number}"), &format!("{}M", mib / DONORS + 256));
    }
    pool
}

/// A stripe of which no block is zeros, by a copy of nbdkit's pattern.
#[track_caller]
fn filled(pool: &mut Pool, name: &str, mib: u64) -> Attached {
    let size = format!("{mib}M");
    pool.ok(["create", name, &size, "--redundancy", "stripe:4"]);
    let attached = pool.attach_export_unix(name, &["--writable"]);
    let pattern = Rival::nbdkit_unix(&["pattern", &size]);
    tools::run("nbdcopy", ["--flush", &pattern.uri, &attached.uri]);
    attached
}

/// Not sealed: nothing but what donors compare by themselves.
fn verify(bench: &mut Bench) {
    let mib = if bench.quick { 2048 } else { 8192 };
    bench.prepare("a volume is filled to be verified");
    let mut pool = pool_of(mib);
    filled(&mut pool, VOLUME, mib);
    pool.detach(VOLUME);
    process::wait_for_rest(&pool.donor_pids());
    bench.set("cheetah verify, beside a bare loop");
    let bytes = mib * MIB;
    let speed = |seconds: f64| Turn::of(bytes as f64 / 1e9 / seconds);
    let mut memory = Loop::new();
    let wall = std::cell::RefCell::new(Vec::new());
    let taken = bench.turns(&mut [
        Side::new("cheetah", || {
            let begun = Instant::now();
            let verified = Verified::run(&pool, VOLUME);
            wall.borrow_mut().push(begun.elapsed().as_secs_f64());
            verified.is_right();
            assert_eq!(verified.number("bytes_checked"), bytes, "{}", verified.report);
            speed(verified.report["seconds"].as_f64().expect("seconds"))
        }),
        Side::new("loop", || speed(memory.over(bytes).as_secs_f64())),
    ]);
    let what = format!("verify of {mib} MiB over four donors, not sealed");
    let peer = ("a bare CRC32C loop on all cores", "loop");
    let id = ("verify.speed", what.as_str(), "GB/s");
    bench.beside(id, &taken, "cheetah", peer, Bar::RatioAtLeast(0.7).into());
    // The first round does not count.
    let wall: Series = wall.into_inner().into_iter().skip(1).collect();
    let what = format!("{what}: the whole command, its start and its report");
    bench.row(&Figure::new("verify.command", what, "s", &wall));
}

/// Memory for each core, of which the checksum of each block is computed.
struct Loop(Vec<Vec<u8>>);

impl Loop {
    fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self((0..cores).map(|core| vec![core as u8 + 1; LOOP_BYTES / cores]).collect())
    }

    /// How long all cores together take for so much.
    fn over(&mut self, bytes: u64) -> Duration {
        let (begun, each) = (Instant::now(), bytes as usize / self.0.len() / BLOCK_BYTES);
        std::thread::scope(|scope| {
            for memory in &self.0 {
                scope.spawn(move || {
                    let sum = |sum, block| sum ^ crc32c(black_box(block));
                    black_box(memory.chunks_exact(BLOCK_BYTES).cycle().take(each).fold(0, sum));
                });
            }
        });
        begun.elapsed()
    }
}

/// The file is in memory, so that no disk is measured.
fn loads(bench: &mut Bench) {
    let mib = if bench.quick { 512 } else { 2048 };
    bench.prepare("a file is made to be loaded");
    let memory = Scratch::in_memory();
    let image = memory.join("image.raw");
    let pattern = Rival::nbdkit_unix(&["pattern", &format!("{mib}M")]);
    tools::run("nbdcopy", [pattern.uri.as_str(), &image.display().to_string()]);
    drop(pattern);
    let pool = pool_of(mib);
    process::wait_for_rest(&pool.donor_pids());
    bench.set("cheetah load, beside hashing the file");
    let taken = bench.turns(&mut [
        Side::new("sealed", || Turn::of(load(&pool, &image, &[]))),
        Side::new("writable", || Turn::of(load(&pool, &image, &["--writable"]))),
        Side::new("hashing", || Turn::of(hash(&image))),
    ]);
    for (id, side, how) in [
        ("verify.load.sealed", "sealed", "load of a file, hashed, verified and sealed"),
        ("verify.load.writable", "writable", "load of a file, hashed and verified, not sealed"),
    ] {
        let what = format!("{how}, {mib} MiB");
        let peer = ("md5sum, sha1sum and sha256sum of it, all at once", "hashing");
        bench.beside((id, &what, "s"), &taken, side, peer, Bar::RatioAtMost(1.1).into());
    }
}

/// The seconds that it takes.
#[track_caller]
fn load(pool: &Pool, image: &Path, more: &[&str]) -> f64 {
    let bytes = std::fs::metadata(image).expect("the file").len().to_string();
    pool.ok(["create", VOLUME, &bytes, "--redundancy", "stripe:4"]);
    let image = image.display().to_string();
    let begun = Instant::now();
    let said = pool.ok([&["load", &image, VOLUME], more].concat());
    let seconds = begun.elapsed().as_secs_f64();
    assert!(said.contains("verified: ") && said.contains("sealed: ") == more.is_empty(), "{said}");
    // The next one finds the memory given back.
    pool.ok(["delete", VOLUME]);
    wait::until("memory that is free again", wait::SOON, || {
        let status = pool.status();
        status["bytes_free"] == status["bytes_total"]
    });
    seconds
}

/// Until the slowest has ended.
#[track_caller]
fn hash(image: &Path) -> f64 {
    let begun = Instant::now();
    let start = |name: &&str| -> Child {
        let mut command = tools::command(name);
        command.arg(image).stdout(Stdio::null()).spawn().expect("a hash begins")
    };
    let all: Vec<Child> = HASHES.iter().map(start).collect();
    for mut child in all {
        assert!(child.wait().expect("a hash ends").success());
    }
    begun.elapsed().as_secs_f64()
}

/// The writer compares what comes with what it wrote; who only reads, with what donors say that it is.
fn readers(bench: &mut Bench) {
    let mib = if bench.quick { 512 } else { 1024 };
    bench.prepare("volumes are filled to be read");
    let mut pool = pool_of(2 * mib);
    let writing = filled(&mut pool, "writing", mib);
    filled(&mut pool, "reading", mib);
    pool.detach("reading");
    let reading = pool.attach_export_unix("reading", &["--read-only"]);
    process::wait_for_rest(&pool.donor_pids());
    bench.set("reads of an attachment that only reads, and of one that writes");
    let donors = pool.donor_pids();
    let read = |attached: &Attached| {
        let processes = [&donors[..], &[attached.pid]].concat();
        let cpu = || processes.iter().map(|pid| process::cpu_time(*pid)).sum::<Duration>();
        let (before, begun) = (cpu(), Instant::now());
        tools::run("nbdcopy", [attached.uri.as_str(), "null:"]);
        let (seconds, gb) = (begun.elapsed().as_secs_f64(), (mib * MIB) as f64 / 1e9);
        Turn { value: gb / seconds, cpu_per_gb: (cpu() - before).as_secs_f64() / gb }
    };
    let taken =
        bench.turns(&mut [Side::new("reading", || read(&reading)), Side::new("writing", || read(&writing))]);
    let what = "processor time of a read-only attachment and its donors, sequential reads of an export";
    let (value, probe) = (taken.cpu("reading"), Some(&taken.probe));
    let peer = Some(("the attachment that wrote", taken.cpu("writing")));
    let bar = Some(Bar::RatioAtMost(1.1));
    let figure = Figure::new("verify.read-only.cpu", what.to_owned(), "s/GB", value);
    bench.row(&Figure { peer, probe, bar, ..figure });
    pool.detach("writing");
    pool.detach("reading");
}

/// Of each block a donor keeps a nonce and a tag beside its checksum.
fn encrypted(bench: &mut Bench) {
    let mib = if bench.quick { 512 } else { 2048 };
    bench.set("an encrypted volume is written");
    let mut pool = Pool::start();
    let lent = mib + 64;
    pool.donate("host-1", &format!("{lent}M"));
    pool.ok(["create", VOLUME, &format!("{mib}M"), "--redundancy", "linear", "--encrypt"]);
    let path = pool.attach_fuse(VOLUME, &[]).path;
    let mut worker = Worker::start(&["file"]);
    file::walk(&mut worker, Walk::Write, &path, MIB, mib * MIB);
    worker.end();
    let pid = pool.pid_of("host-1");
    let beyond = process::resident_bytes(pid).saturating_sub(process::shared_bytes(pid));
    let value: Series = [beyond as f64 / MIB as f64].into_iter().collect();
    let bar = Some(beyond_max(lent * MIB));
    let what = format!("memory of a donor beyond its arena, with {mib} MiB of an encrypted volume");
    bench.row(&Figure { bar, ..Figure::new("verify.memory.donor.encrypted", what, "MiB", &value) });
    pool.detach(VOLUME);
}

/// What a donor may take beyond its arena, in MiB: 64, and 1 % of what it lends.
pub fn beyond_max(lent_bytes: u64) -> Bar {
    Bar::ValueAtMost(64.0 + lent_bytes as f64 / 100.0 / MIB as f64)
}
