//! The part `local`: loopback, four donors; the client library alone and the export, beside raw TCP, libnbd
//! on nbdkit, nbdkit behind its own proxy, qemu-nbd, nbd-server, and qemu's quorum over four nbdkit servers,
//! which is what one can join by oneself.
//!
//! Like is compared with like: a stripe with the quorum only for reads, of which the quorum sends each to one
//! server; its writes go to all four, so a mirror over four donors stands beside them. Every memory was
//! written before it is read. Called by: `bench`.

use cheetah_core::limits::CACHE_DEFAULT_BYTES;

use crate::bench::contenders::{World, libnbd_name};
use crate::bench::latency;
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Taken, Turn};
use crate::bench::row::{Bar, Demand, Figure};
use crate::bench::verify;
use crate::bench::worker::{Load, Worker};
use crate::figures::Series;
use crate::load::Pattern;
use crate::process;
use crate::rivals;

pub const SECONDS: f64 = 400.0;
pub const SETS: usize = 7;

const MIB: u64 = 1 << 20;

pub fn run(bench: &mut Bench) {
    bench.prepare("servers start and are filled");
    let mut world = World::start(bench);
    let mut beyond = Beyond::default();
    latency::rows(bench, &mut world);
    beyond.look(&world.donors);
    many_at_a_time(bench, &mut world);
    beyond.look(&world.donors);
    for (pattern, word) in [(Pattern::SequentialRead, "read"), (Pattern::SequentialWrite, "write")] {
        for (block, size) in [(1 << 20, "1m"), (64 << 10, "64k")] {
            sequential(bench, &mut world, Shape { pattern, block, word, size });
            beyond.look(&world.donors);
        }
    }
    let client_bytes = world.clients.map(process::peak_resident_bytes).into_iter().max().unwrap_or_default();
    memory_rows(bench, &beyond, world.lent_bytes, client_bytes);
    for contender in world.contenders {
        contender.worker.end();
    }
    world.pool.detach("export");
    world.pool.detach("mirror");
}

/// The most memory that a donor had beside its arena, of all looks.
#[derive(Debug, Default)]
struct Beyond(u64);

impl Beyond {
    fn look(&mut self, donors: &[u32]) {
        let beyond = |pid: &u32| process::resident_bytes(*pid).saturating_sub(process::shared_bytes(*pid));
        self.0 = donors.iter().map(beyond).chain([self.0]).max().unwrap_or_default();
    }
}

fn memory_rows(bench: &mut Bench, beyond: &Beyond, lent_bytes: u64, client_bytes: u64) {
    let mib = |bytes: u64| [bytes as f64 / MIB as f64].into_iter().collect::<Series>();
    for (id, what, value, bar) in [
        (
            "local.memory.donor",
            "memory of a donor beyond its arena, the most of four",
            mib(beyond.0),
            verify::beyond_max(lent_bytes),
        ),
        (
            "local.memory.client",
            "memory of a client that serves an export beyond its cache, its peak",
            mib(client_bytes.saturating_sub(CACHE_DEFAULT_BYTES)),
            Bar::ValueAtMost(128.0),
        ),
    ] {
        bench.row(&Figure { bar: Some(bar), ..Figure::new(id, what.to_owned(), "MiB", &value) });
    }
}

/// Random 4 KiB reads, 64 at a time.
fn many_at_a_time(bench: &mut Bench, world: &mut World) {
    bench.set("random 4 KiB reads, 64 at a time");
    let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 64, time: bench.time };
    let best = world.best_libnbd(load);
    let kiops = |worker: &mut Worker, servers: &[u32]| worker.load(load, servers).kiops();
    let taken = bench.turns(&mut world.sides(best, kiops));
    let libnbd = libnbd_name(best);
    let four_times: Demand = Bar::RatioAtLeast(4.0).into();
    let rows = [
        ("export", "the export of a stripe", "export", QUORUM, "quorum", four_times),
        ("mirror", "the export of a mirror", "mirror", QUORUM, "quorum", Demand::NONE),
        ("library", "the client library", "library", libnbd.as_str(), "libnbd", Demand::NONE),
        ("nbdkit", "the export of a stripe", "export", "nbdkit alone", "nbdkit", Demand::NONE),
        ("proxy", "the export of a stripe", "export", PROXY, "proxy", Demand::NONE),
        ("qemu-nbd", "the export of a stripe", "export", "qemu-nbd alone", "qemu-nbd", Demand::NONE),
        ("nbd-server", "the export of a stripe", "export", "nbd-server alone", "nbd-server", Demand::NONE),
        ("donor", "one donor by itself", "donor", "nbdkit alone", "nbdkit", four_times),
        ("threads", TWO_THREADS, "two threads", ONE_THREAD, "library", Demand::NONE),
    ];
    for (id, what, side, peer_name, peer, demand) in rows {
        let what = format!("random 4 KiB read, 64 at a time, thousand a second: {what}");
        let id = format!("local.random.d64.{id}");
        bench.beside((&id, &what, "k/s"), &taken, side, (peer_name, peer), demand);
    }
    cpu_row(bench, "local.random.d64", "random 4 KiB read, 64 at a time", &taken, (&libnbd, Demand::NONE));
}

const QUORUM: &str = "quorum of four nbdkit";
const PROXY: &str = "nbdkit's own proxy in front of it";
const TWO_THREADS: &str = "for comparison: two data threads with half a volume and half the requests each";
const ONE_THREAD: &str = "the client library, one data thread";

/// Processor time of both ends: the library and the donors, libnbd and nbdkit.
fn cpu_row(
    bench: &mut Bench,
    id: &str,
    what: &str,
    taken: &Taken,
    (libnbd, Demand { bar, limit }): (&str, Demand),
) {
    let id = format!("{id}.library-cpu");
    let what = format!("{what}, processor time of both ends: the client library");
    let (value, probe) = (taken.cpu("library"), Some(&taken.probe));
    let (peer, limit) = (Some((libnbd, taken.cpu("libnbd"))), limit.map(|side| (side, taken.cpu(side))));
    bench.row(&Figure { peer, probe, limit, bar, ..Figure::new(&id, what, "s/GB", value) });
    let id = id.replace("library-cpu", "export-cpu");
    let what = "the same: the export, its client and the donors".to_owned();
    let peer = Some(("nbdkit alone and the same client", taken.cpu("nbdkit")));
    bench.row(&Figure { peer, probe, ..Figure::new(&id, what, "s/GB", taken.cpu("export")) });
}

/// Sequential reads or writes, 16 at a time.
#[derive(Clone, Copy)]
struct Shape {
    pattern: Pattern,
    block: usize,
    /// In ids and in what is said.
    word: &'static str,
    size: &'static str,
}

impl Shape {
    fn is_write(self) -> bool {
        self.pattern == Pattern::SequentialWrite
    }

    fn id(self) -> String {
        format!("local.{}.{}", self.word, self.size)
    }

    fn what(self) -> String {
        format!("sequential {}, {} KiB, 16 at a time", self.word, self.block >> 10)
    }
}

fn sequential(bench: &mut Bench, world: &mut World, shape: Shape) {
    bench.set(&shape.what());
    let load = Load { pattern: shape.pattern, block: shape.block, depth: 16, time: bench.time };
    let best = world.best_libnbd(load);
    let speed = |worker: &mut Worker, servers: &[u32]| worker.load(load, servers).gb_per_second();
    let mut sides = world.sides(best, speed);
    sides.push(Side::new("iperf3", || {
        let moved = rivals::iperf3_loopback(1);
        Turn { value: moved.mbit_per_second / 8e3, cpu_per_gb: moved.cpu_per_gb }
    }));
    sides.push(Side::new("relay", || Turn::of(rivals::iperf3_relayed(1, 1) / 8e3)));
    if shape.is_write() {
        sides.push(Side::new("fan", || Turn::of(rivals::iperf3_relayed(1, 4) / 8e3)));
    }
    let taken = bench.turns(&mut sides);
    let libnbd = libnbd_name(best);
    speed_rows(bench, shape, &taken, &libnbd);
    cpu_row(bench, &shape.id(), &shape.what(), &taken, (&libnbd, Bar::RatioAtMost(0.6).into()));
    let id = format!("{}.limit-cpu", shape.id());
    let what = "the same, for comparison: iperf3, which moves bytes and does no more".to_owned();
    let (peer, probe) = (Some((libnbd.as_str(), taken.cpu("libnbd"))), Some(&taken.probe));
    bench.row(&Figure { peer, probe, ..Figure::new(&id, what, "s/GB", taken.cpu("iperf3")) });
}

/// How fast everybody was, each beside those that are like it.
fn speed_rows(bench: &mut Bench, shape: Shape, taken: &Taken, libnbd: &str) {
    let at_least = Bar::RatioAtLeast;
    // What the quorum reads comes from one server each, as from a stripe; what it writes goes to all.
    let mirror = "the export of a mirror over four";
    let (like_quorum, like_what, twice) = match shape.is_write() {
        true => ("mirror", mirror, at_least(2.0).within("fan")),
        false => ("export", "the export", at_least(2.0).into()),
    };
    let donor = if shape.is_write() { Demand::NONE } else { at_least(1.5).into() };
    let (relay, fan) = ("iperf3 through a relay", "iperf3 through a relay to four");
    let [proxy_what, relay_what, fan_what] =
        [PROXY, relay, fan].map(|peer| format!("for comparison: {peer}"));
    let one_hop_more = "the export, one hop more";
    let rows = [
        ("library", "the client library", "library", libnbd, "libnbd", at_least(1.5).into()),
        ("quorum", like_what, like_quorum, QUORUM, "quorum", twice),
        ("nbdkit", one_hop_more, "export", "nbdkit alone", "nbdkit", at_least(0.9).into()),
        ("proxy", "the export", "export", PROXY, "proxy", Demand::NONE),
        ("proxy-nbdkit", proxy_what.as_str(), "proxy", "nbdkit alone", "nbdkit", Demand::NONE),
        ("qemu-nbd", one_hop_more, "export", "qemu-nbd alone", "qemu-nbd", Demand::NONE),
        ("nbd-server", one_hop_more, "export", "nbd-server alone", "nbd-server", Demand::NONE),
        ("donor", "one donor by itself", "donor", "nbdkit alone", "nbdkit", donor),
        ("limit", "the client library", "library", "iperf3", "iperf3", Demand::NONE),
        ("threads", TWO_THREADS, "two threads", ONE_THREAD, "library", Demand::NONE),
        ("limit-nbdkit", "for comparison: libnbd on nbdkit", "libnbd", "iperf3", "iperf3", Demand::NONE),
        ("limit-export", "the export", "export", relay, "relay", Demand::NONE),
        ("limit-relay", relay_what.as_str(), "relay", "nbdkit alone", "nbdkit", Demand::NONE),
    ];
    let of_writes = [
        ("limit-mirror", mirror, "mirror", fan, "fan", Demand::NONE),
        ("limit-fan", fan_what.as_str(), "fan", QUORUM, "quorum", Demand::NONE),
    ];
    for (id, what, side, peer_name, peer, demand) in
        rows.into_iter().chain(of_writes.into_iter().filter(|_| shape.is_write()))
    {
        let (id, what) = (format!("{}.{id}", shape.id()), format!("{}: {what}", shape.what()));
        bench.beside((&id, &what, "GB/s"), taken, side, (peer_name, peer), demand);
    }
}
