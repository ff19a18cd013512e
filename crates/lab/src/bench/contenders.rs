//! Everybody who takes turns in the part `local`: volumes of one pool by the library and by exports, and the
//! servers that others wrote, each with a worker that asks it.
//!
//! Owns: who they are, how they are started, and which processes serve whom. Never: what is measured.
//! Invariant: every memory was written before anybody reads it. Called by: `local`, `latency`.

use std::time::Duration;

use crate::bench::libnbd::Libnbd;
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Turn};
use crate::bench::worker::{Load, Worker};
use crate::figures::Series;
use crate::lone::LoneDonor;
use crate::pool::Pool;
use crate::rivals::Rival;

const DONORS: usize = 4;
/// Connections to each donor, and how long to look before sleeping: as `cheetah attach` does unless told
/// otherwise.
pub const BY_ITSELF: &str = "auto";
/// Connections of libnbd that are tried; the fastest stands for it.
const LIBNBD_CONNECTIONS: [usize; 3] = [1, 2, 4];
/// One turn of each would let noise choose a slow peer: writes of 64 KiB were once compared with 2.5 GB/s,
/// where two make 3.1.
const TRIALS: usize = 5;
/// Volumes of one client, each with a data thread of its own: about what dealing one volume out to two
/// threads could bring.
const HALVES: [&str; 2] = ["half-1", "half-2"];
const MIB: u64 = 1 << 20;

/// Who takes turns, by its name among the sides.
pub struct Contender {
    pub name: &'static str,
    pub worker: Worker,
    /// The processes that serve it.
    servers: Vec<u32>,
}

/// Everything that takes turns.
pub struct World {
    pub contenders: Vec<Contender>,
    /// A worker for each number of connections, at the nbdkit that stands alone.
    pub libnbd: Vec<Worker>,
    pub nbdkit: u32,
    pub donors: Vec<u32>,
    /// What each of them lends.
    pub lent_bytes: u64,
    /// The daemons of the export and of the mirror's.
    pub clients: [u32; 2],
    pub pool: Pool,
    _lone: LoneDonor,
    _rivals: Vec<Rival>,
}

impl World {
    #[track_caller]
    pub fn start(bench: &Bench) -> Self {
        let mib = if bench.quick { 256 } else { 512 };
        let size = format!("{mib}M");
        let lent_mib = mib / 2 + mib + 384;
        let mut pool = pool_of(mib, lent_mib);
        let export = pool.attach_export("export", &[]);
        let mirror = pool.attach_export("mirror", &[]);
        let lone = LoneDonor::tcp(&size);
        let nbdkit = Rival::nbdkit(&["memory", &size]);
        let proxy = Rival::nbdkit(&["nbd", &format!("uri={}", nbdkit.uri)]);
        let children: Vec<Rival> = (0..DONORS).map(|_| Rival::nbdkit(&["memory", &size])).collect();
        let quorum = Rival::quorum(&children);
        let qemu_nbd = Rival::qemu_nbd(mib * MIB, "");
        let nbd_server = Rival::nbd_server(mib * MIB);
        let donors = pool.donor_pids();
        let and = |pids: &[u32], more: u32| [pids, &[more]].concat();
        let child_pids: Vec<u32> = children.iter().map(|child| child.process.pid()).collect();
        let libnbd = Libnbd::compile();
        let attach = |volumes: &[&str]| {
            Worker::start(&[&["client", pool.url(), BY_ITSELF, BY_ITSELF], volumes].concat())
        };
        let mut contenders: Vec<Contender> = [
            ("library", attach(&["library"]), donors.clone()),
            ("two threads", attach(&HALVES), donors.clone()),
            ("export", nbd(&export.uri), and(&donors, export.pid)),
            ("mirror", nbd(&mirror.uri), and(&donors, mirror.pid)),
            ("nbdkit", nbd(&nbdkit.uri), vec![nbdkit.process.pid()]),
            // As many hops as an export has.
            ("proxy", nbd(&proxy.uri), vec![nbdkit.process.pid(), proxy.process.pid()]),
            // One donor by itself, as one NBD server.
            ("donor", nbd(&lone.uri), vec![lone.process.pid()]),
            ("quorum", nbd(&quorum.uri), and(&child_pids, quorum.process.pid())),
            ("qemu-nbd", nbd(&qemu_nbd.uri), vec![qemu_nbd.process.pid()]),
            ("nbd-server", nbd(&nbd_server.uri), vec![nbd_server.process.pid()]),
        ]
        .into_iter()
        .map(|(name, worker, servers)| Contender { name, worker, servers })
        .collect();
        contenders.iter_mut().for_each(|contender| contender.worker.fill());
        Self {
            contenders,
            libnbd: LIBNBD_CONNECTIONS.iter().map(|count| libnbd.worker(&nbdkit.uri, *count)).collect(),
            nbdkit: nbdkit.process.pid(),
            donors,
            lent_bytes: lent_mib * MIB,
            clients: [export.pid, mirror.pid],
            pool,
            _lone: lone,
            _rivals: [vec![nbdkit, proxy, quorum, qemu_nbd, nbd_server], children]
                .into_iter()
                .flatten()
                .collect(),
        }
    }

    /// Everybody as a side of a set, libnbd with this one of its workers.
    pub fn sides<'a>(
        &'a mut self,
        libnbd: usize,
        turn: impl Fn(&mut Worker, &[u32]) -> Turn + Copy + 'a,
    ) -> Vec<Side<'a>> {
        let (worker, nbdkit) = (&mut self.libnbd[libnbd], self.nbdkit);
        let all = self.contenders.iter_mut();
        let mut sides: Vec<Side<'a>> = all
            .map(|Contender { name, worker, servers }| Side::new(name, move || turn(worker, servers)))
            .collect();
        sides.push(Side::new("libnbd", move || turn(worker, &[nbdkit])));
        sides
    }

    /// libnbd with as many connections as serve this load best, by turns like those that count: its place in
    /// the list.
    pub fn best_libnbd(&mut self, load: Load) -> usize {
        let load = Load { time: Duration::from_millis(300), ..load };
        let mut speeds = vec![Series::default(); self.libnbd.len()];
        for _ in 0..TRIALS {
            for (worker, speeds) in self.libnbd.iter_mut().zip(&mut speeds) {
                speeds.push(worker.load(load, &[]).done.bytes_per_second());
            }
        }
        let median = |place: &usize| speeds[*place].median();
        (0..speeds.len()).max_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or_default()
    }
}

/// Donors, and the volumes of so many MiB on them. Each lends a quarter of two stripes, all of the mirror,
/// two extents of 64 MiB each for the halves and for who sleeps, and two spare.
#[track_caller]
fn pool_of(mib: u64, lent_mib: u64) -> Pool {
    let size = format!("{mib}M");
    let mut pool = Pool::in_the_clear();
    for number in 1..=DONORS {
        pool.donate(&format!("host-{number}"), &format!("{lent_mib}M"));
    }
    for (name, redundancy) in [("library", "stripe:4"), ("export", "stripe:4"), ("mirror", "mirror:4")] {
        pool.ok(["create", name, &size, "--redundancy", redundancy]);
    }
    for half in HALVES {
        pool.ok(["create", half, &format!("{}M", mib / 2), "--redundancy", "stripe:4"]);
    }
    pool
}

/// A worker at an address like `nbd://127.0.0.1:1234/name`.
#[track_caller]
pub fn nbd(uri: &str) -> Worker {
    let rest = uri.strip_prefix("nbd://").unwrap_or_else(|| panic!("{uri} is not on TCP"));
    let (address, export) = rest.split_once('/').unwrap_or((rest, ""));
    Worker::start(&["nbd", address, export])
}

/// How the table calls it.
pub fn libnbd_name(best: usize) -> String {
    format!("libnbd ({} connections) on nbdkit", LIBNBD_CONNECTIONS[best])
}
