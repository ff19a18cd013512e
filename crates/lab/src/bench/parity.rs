//! The part `parity`: what redundancy costs writes and reads, on hosts joined by links of 1 Gbit/s, beside
//! iperf3 over the same links.
//!
//! `parity:4+1` over five donors is written and read through the file and through the export, whole and with
//! one donor killed; there is no sixth donor, so that what it held stays missing. Invariant: each round has
//! hosts of its own, and begins with iperf3. Called by: `bench`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::lan::{hosts, noise};
use crate::bench::part::Bench;
use crate::bench::row::{Bar, Figure};
use crate::figures::Series;
use crate::lan::{Lan, Node};
use crate::pool::{Access, Pool, State};
use crate::{process, rivals, tools, wait};

pub const SECONDS: f64 = 300.0;
pub const SETS: usize = ROUNDS;

const ROUNDS: usize = 3;
const RATE: &str = "1gbit";
const DONORS: u8 = 5;
const IPERF_SECONDS: u32 = 3;
const VOLUME: &str = "case";
/// Requests that are smaller than a row.
const SMALL: [&str; 3] = ["--connections=1", "--requests=16", "--request-size=65536"];

/// Id, what is measured, what stands beside it, the unit, and what the ratio is to be at least.
const ROWS: [(&str, &str, &str, &str, Option<f64>); 8] = [
    ("write.export", "sequential write, export", LINE, "Mbit/s", Some(0.95)),
    ("write.file", "sequential write, file", LINE, "Mbit/s", Some(0.95)),
    ("write.small", "sequential write, export, 64 KiB, 16 under way", LINE, "Mbit/s", Some(0.9)),
    ("read.export", "sequential read, export", "iperf3", "Mbit/s", None),
    ("read.file", "sequential read, file", "iperf3", "Mbit/s", None),
    ("degraded.export", "sequential read without one donor, export", "healthy", "Mbit/s", Some(0.8)),
    ("degraded.file", "sequential read without one donor, file", "healthy", "Mbit/s", Some(0.8)),
    ("write.cpu", "processor time of the client for a write, export", "a read", "ms/GiB", None),
];
/// One fifth of what is sent is parity.
const LINE: &str = "iperf3 x 4/5";

pub fn run(bench: &mut Bench) {
    let (rounds, mib) = if bench.quick { (1, 128) } else { (ROUNDS, 512) };
    let mut taken: [(Series, Series); ROWS.len()] = Default::default();
    for number in 1..=rounds {
        bench.set(&format!("writes, reads and degraded reads, round {number} of {rounds}"));
        for ((values, peers), (value, peer)) in taken.iter_mut().zip(round(mib)) {
            values.push(value);
            peers.push(peer);
        }
    }
    for ((id, what, peer_name, unit, bar), (value, peer)) in ROWS.iter().zip(&taken) {
        let (id, what) = (format!("parity.{id}"), format!("parity:4+1, links of {RATE}: {what}"));
        let (peer, bar) = (Some((*peer_name, peer)), bar.map(Bar::RatioAtLeast));
        bench.row(&Figure { peer, bar, ..Figure::new(&id, what, unit, value) });
    }
}

/// What each row is, and what stands beside it, of a volume of so many MiB.
#[track_caller]
fn round(mib: u64) -> [(f64, f64); ROWS.len()] {
    let lan = hosts(RATE, DONORS);
    let in_line = rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, IPERF_SECONDS);
    let out_line = rivals::iperf3_between(&lan, Node::Client, Node::Donor(1), IPERF_SECONDS) * 4.0 / 5.0;
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(lan.clone()));
    pool.donate_everywhere(DONORS, "1G");
    pool.ok(["create", VOLUME, &format!("{mib}M"), "--redundancy", "parity:4+1"]);
    let noise = noise(pool.scratch(), mib << 20);
    let mut copier = Copier { lan: &lan, mib, cpu_ms_per_gib: 0.0 };

    let file = pool.attach_fuse(VOLUME, &[]).path;
    let file_write = copier.dd(&pool, &noise, &file, "oflag=direct");
    let file_read = copier.dd(&pool, &file, Path::new("/dev/null"), "iflag=direct");
    pool.detach(VOLUME);
    let uri = pool.attach_export_unix(VOLUME, &[]).uri;
    let noise = noise.display().to_string();
    let small_write = copier.nbdcopy(&pool, &noise, &uri, &SMALL);
    let export_write = copier.nbdcopy(&pool, &noise, &uri, &[]);
    let write_cpu = copier.cpu_ms_per_gib;
    let export_read = copier.nbdcopy(&pool, &uri, "null:", &[]);
    let read_cpu = copier.cpu_ms_per_gib;

    pool.donor("host-2").kill();
    wait::until("the killed donor's exclusion", wait::SOON, || pool.holders(VOLUME, 0).len() == 4);
    let export_degraded = copier.nbdcopy(&pool, &uri, "null:", &[]);
    pool.detach(VOLUME);
    let file = pool.attach_fuse(VOLUME, &["--read-only"]).path;
    let file_degraded = copier.dd(&pool, &file, Path::new("/dev/null"), "iflag=direct");
    pool.detach(VOLUME);
    [
        (export_write, out_line),
        (file_write, out_line),
        (small_write, out_line),
        (export_read, in_line),
        (file_read, in_line),
        (export_degraded, export_read),
        (file_degraded, file_read),
        (write_cpu, read_cpu),
    ]
}

/// Copies a whole volume, or to all of it.
struct Copier<'a> {
    lan: &'a Arc<Lan>,
    mib: u64,
    /// Of the last copy, in the client's daemon.
    cpu_ms_per_gib: f64,
}

impl Copier<'_> {
    fn dd(&mut self, pool: &Pool, from: &Path, to: &Path, direct: &str) -> f64 {
        let mut command = tools::command("dd");
        command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
        command.args(["bs=4M", "status=none", "conv=notrunc", direct]);
        self.timed(pool, command)
    }

    fn nbdcopy(&mut self, pool: &Pool, from: &str, to: &str, options: &[&str]) -> f64 {
        let mut command = self.lan.exec(Node::Client, tools::need("nbdcopy"));
        command.arg("--flush").args(options).args([from, to]);
        self.timed(pool, command)
    }

    /// Mbit/s at which the command moved the volume's payload.
    fn timed(&mut self, pool: &Pool, mut command: Command) -> f64 {
        let cpu = || pool.daemons().iter().map(|daemon| process::cpu_time(daemon.pid)).sum::<Duration>();
        let (before, start) = (cpu(), Instant::now());
        tools::expect_success(&mut command);
        let seconds = start.elapsed().as_secs_f64();
        self.cpu_ms_per_gib = (cpu() - before).as_secs_f64() * 1e3 / (self.mib as f64 / 1024.0);
        (self.mib << 20) as f64 * 8.0 / 1e6 / seconds
    }
}
