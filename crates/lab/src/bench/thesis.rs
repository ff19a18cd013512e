//! The part `thesis`: table 5.1 of the thesis of 2006, whose system is this one's ancestor. IOzone's eight
//! patterns in records of 4 KiB, as fio jobs, through ext4 on the attached volume and on the volume's file
//! itself, four donors at 1 Gbit/s; beside a disk of 2006 (nbdkit's rate and delay filters) and the disk of
//! this machine.
//!
//! Caches are empty before each job, but for the reread. What is written is flushed, and the flush counts.
//! Called by: `bench`. Tests: below.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bench::direct;
use crate::bench::file::{self, Walk};
use crate::bench::lan::{self, hosts};
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Turn};
use crate::bench::row::Demand;
use crate::bench::worker::Worker;
use crate::pool::{Access, Pool, State};
use crate::rivals::{NbdFuse, Rival};
use crate::scratch::Scratch;
use crate::tools;

pub const SECONDS: f64 = 300.0;
pub const SETS: usize = PATTERNS.len();

const DONORS: u8 = 4;
const MIB: u64 = 1 << 20;
const FILE: u64 = 64 * MIB;
/// A job ends after this time even if it has not been through its file.
const LIMIT_SECONDS: f64 = 2.0;
/// Mbit/s of a desktop's disk of 2006 (24 MB/s), and what a seek with half a turn took.
const DISK_RATE: &str = "rate=192M";
/// Or the first two seconds would pass as fast as they come.
const DISK_BURST: &str = "burstiness=0.05";
const DISK_SEEK: &str = "delay-read=12ms";
const DISK_SEEK_WRITE: &str = "delay-write=12ms";

const BLOCK: u64 = 4096;
const STRIDE: u64 = 200 << 10;
/// One block in each stride: so much lies between the end of one and the beginning of the next.
const STRIDED: &str = "read:196k";

struct Pattern {
    name: &'static str,
    /// fio's word for it; the number is added to where the next record would begin.
    rw: &'static str,
    /// Percent of the wire in the thesis, for a class of patterns.
    thesis: &'static str,
    seeks: bool,
    warm: bool,
}

const fn pattern(name: &'static str, rw: &'static str, thesis: &'static str, seeks: bool) -> Pattern {
    Pattern { name, rw, thesis, seeks, warm: false }
}

const PATTERNS: [Pattern; 8] = [
    pattern("write", "write", "88-92 %", false),
    pattern("rewrite", "write", "88-92 %", false),
    pattern("read", "read", "88-92 %", false),
    Pattern { name: "reread", rw: "read", thesis: "88-92 %", seeks: false, warm: true },
    pattern("random read", "randread", "10 %", true),
    pattern("random write", "randwrite", "10 %", true),
    pattern("backward read", "read:-8k", "20 %", true),
    pattern("strided read", STRIDED, "8 %", true),
];

/// The disk of 2006: one that transfers, and one that also seeks for each request.
struct Disk {
    transfers: NbdFuse,
    seeks: NbdFuse,
    _servers: [Rival; 2],
}

impl Disk {
    #[track_caller]
    fn start() -> Self {
        let size = format!("{}M", FILE / MIB);
        let transfers = Rival::nbdkit_unix(&["--filter=rate", "memory", &size, DISK_RATE, DISK_BURST]);
        let seeks = Rival::nbdkit_unix(&[
            "--filter=delay",
            "--filter=rate",
            "memory",
            &size,
            DISK_RATE,
            DISK_BURST,
            DISK_SEEK,
            DISK_SEEK_WRITE,
        ]);
        Self {
            transfers: NbdFuse::start(&transfers.uri),
            seeks: NbdFuse::start(&seeks.uri),
            _servers: [transfers, seeks],
        }
    }

    fn path(&self, pattern: &Pattern) -> &Path {
        if pattern.seeks { &self.seeks.path } else { &self.transfers.path }
    }
}

/// ext4 on an attached volume, unmounted with its guard.
struct Mounted(PathBuf);

impl Mounted {
    #[track_caller]
    fn new(device: &Path, scratch: &Scratch) -> Self {
        let (device, directory) = (device.display().to_string(), scratch.directory("ext4"));
        tools::run("mkfs.ext4", ["-q", "-F", device.as_str()]);
        tools::run("mount", [device.as_str(), &directory.display().to_string()]);
        Self(directory)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // One that is gone already is fine.
        let _ = tools::output(tools::command("umount").arg(&self.0));
    }
}

pub fn run(bench: &mut Bench) {
    bench.prepare("hosts, volumes and disks are made");
    let lan = hosts("1gbit", DONORS);
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(&lan)));
    pool.donate_everywhere(DONORS, "512M");
    for volume in ["fs", "raw"] {
        pool.ok(["create", volume, "256M", "--redundancy", "stripe:4"]);
    }
    let raw = pool.attach_fuse("raw", &[]).path;
    let device = pool.attach_loop("fs", &[]).path;
    let mounted = Mounted::new(&device, pool.scratch());
    let in_fs = mounted.0.join("file");
    let disk = Disk::start();
    let here = Scratch::new();
    let local = here.sparse_file("file", FILE);
    std::fs::File::create(&in_fs).and_then(|file| file.set_len(FILE)).expect("a file on the volume");
    let mut worker = Worker::start(&["file"]);
    // The models of a disk are filled as slowly as they write.
    for path in [&in_fs, &raw, &local, &disk.transfers.path] {
        file::walk(&mut worker, Walk::Write, path, MIB, FILE);
    }
    let rounds = std::mem::replace(&mut bench.rounds, 3);
    for pattern in &PATTERNS {
        bench.set(pattern.name);
        let job = |path: &Path| Turn::of(mb_per_second(path, pattern));
        let taken = bench.turns(&mut [
            Side::new("wire", || lan::wire(&lan)),
            Side::new("through ext4", || job(&in_fs)),
            Side::new("on the volume itself", || job(&raw)),
            Side::new("disk of 2006", || job(disk.path(pattern))),
            Side::new("this machine's disk", || job(&local)),
        ]);
        let name = pattern.name.replace(' ', "-");
        for (side, short) in [("through ext4", "ext4"), ("on the volume itself", "raw")] {
            let peers = [("wire", "wire"), ("disk of 2006", "disk"), ("this machine's disk", "here")];
            // The disks have no file system either.
            for (peer, peer_id) in peers.into_iter().take(if short == "ext4" { 1 } else { 3 }) {
                let id = format!("thesis.{name}.{short}.{peer_id}");
                let what = match peer {
                    "wire" => format!("{} {side} (2006: {} of the wire)", pattern.name, pattern.thesis),
                    _ => format!("{} {side}", pattern.name),
                };
                let peer_name = if peer == "wire" { "iperf3" } else { peer };
                bench.beside((&id, &what, "MB/s"), &taken, side, (peer_name, peer), Demand::NONE);
            }
        }
    }
    bench.rounds = rounds;
    worker.end();
    drop(mounted);
    pool.detach("fs");
    pool.detach("raw");
}

/// One record at a time, as IOzone does.
#[track_caller]
fn mb_per_second(path: &Path, pattern: &Pattern) -> f64 {
    let mut command = tools::command("fio");
    command.args(["--name=thesis", "--output-format=json", "--ioengine=psync", "--bs=4k", "--thread"]);
    command.args(["--allow_file_create=0", "--end_fsync=1", "--norandommap", "--overwrite=1"]);
    command.arg(format!("--rw={}", pattern.rw)).arg(format!("--filename={}", path.display()));
    command.arg(format!("--size={FILE}")).arg(format!("--runtime={}ms", (LIMIT_SECONDS * 1e3) as u64));
    // A walk with holes would begin again from the front, and meet what it has in memory by then.
    let whole = if pattern.rw == STRIDED { FILE / STRIDE * BLOCK } else { FILE };
    command.arg(format!("--io_size={whole}"));
    command.arg(if pattern.warm { "--pre_read=1" } else { "--invalidate=1" });
    let told = tools::expect_success(&mut command);
    let rate = direct::told_of(&told, "bw_bytes").unwrap_or_else(|| panic!("fio told no rate: {told}"));
    rate / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_runs_where_there_is_a_file() {
        let scratch = Scratch::in_memory();
        let path = scratch.sparse_file("file", FILE);
        for pattern in &PATTERNS {
            assert!(mb_per_second(&path, pattern) > 0.0, "{}", pattern.name);
        }
        assert!(direct::told_of("no report", "bw_bytes").is_none());
    }
}
