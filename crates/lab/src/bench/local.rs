//! The part `local`: loopback, four donors; the client library alone and the export, beside raw TCP, libnbd on nbdkit,
//! qemu-nbd, nbd-server, and qemu's quorum over four nbdkit servers, which is what one can join by oneself.
//!
//! Like is compared with like: a stripe with the quorum only for reads, of which the quorum sends each to one server; its
//! writes go to all four, so a mirror over four donors stands beside them. Every memory was written before it is read.
//! Called by: `bench`.

use std::time::Duration;

use crate::bench::Bench;
use crate::bench::libnbd::Libnbd;
use crate::bench::rounds::{Side, Taken, Turn};
use crate::bench::row::{Bar, Figure};
use crate::bench::worker::{Load, Worker};
use crate::figures::Series;
use crate::load::Pattern;
use crate::pool::{LoneDonor, Pool};
use crate::process;
use crate::rivals::{self, Rival};

pub const SECONDS: f64 = 330.0;
pub const SETS: usize = 6;

const DONORS: usize = 4;
/// Connections to each donor: what `cheetah attach` makes unless told otherwise.
const CONNECTIONS: &str = "2";
/// Connections of libnbd that are tried; the fastest stands for it.
const LIBNBD_CONNECTIONS: [usize; 3] = [1, 2, 4];
const MIB: u64 = 1 << 20;

/// Everything that takes turns.
struct World {
    library: Worker,
    export: Worker,
    mirror: Worker,
    libnbd: Vec<Worker>,
    nbdkit_alone: Worker,
    /// One donor by itself, as one NBD server.
    donor: Worker,
    quorum: Worker,
    qemu_nbd: Worker,
    nbd_server: Worker,
    /// Of each, the processes that serve it.
    servers: Servers,
    pool: Pool,
    _lone: LoneDonor,
    _rivals: Vec<Rival>,
}

#[derive(Clone, Debug)]
struct Servers {
    donors: Vec<u32>,
    export: Vec<u32>,
    mirror: Vec<u32>,
    nbdkit: Vec<u32>,
    donor: Vec<u32>,
    quorum: Vec<u32>,
    qemu_nbd: Vec<u32>,
    nbd_server: Vec<u32>,
}

impl World {
    #[track_caller]
    fn start(bench: &Bench) -> Self {
        let mib = if bench.quick { 256 } else { 512 };
        let size = format!("{mib}M");
        let mut pool = Pool::start();
        // Three volumes: of two stripes a quarter each, of the mirror all; extents are of 64 MiB.
        let lent = format!("{}M", mib / 2 + mib + 256);
        for number in 1..=DONORS {
            pool.donate(&format!("host-{number}"), &lent);
        }
        for (name, redundancy) in [("library", "stripe:4"), ("export", "stripe:4"), ("mirror", "mirror:4")] {
            pool.ok(["create", name, &size, "--redundancy", redundancy]);
        }
        let export = pool.attach_export("export", &[]);
        let mirror = pool.attach_export("mirror", &[]);
        let lone = LoneDonor::tcp(&size);
        let nbdkit = Rival::nbdkit(&["memory", &size]);
        let children: Vec<Rival> = (0..DONORS).map(|_| Rival::nbdkit(&["memory", &size])).collect();
        let quorum = Rival::quorum(&children);
        let qemu_nbd = Rival::qemu_nbd(mib * MIB, "");
        let nbd_server = Rival::nbd_server(mib * MIB);
        let donors = pool.donor_pids();
        let and = |pids: &[u32], more: u32| [pids, &[more]].concat();
        let child_pids: Vec<u32> = children.iter().map(|child| child.process.pid()).collect();
        let servers = Servers {
            export: and(&donors, export.pid),
            mirror: and(&donors, mirror.pid),
            donors,
            nbdkit: vec![nbdkit.process.pid()],
            donor: vec![lone.process.pid()],
            quorum: and(&child_pids, quorum.process.pid()),
            qemu_nbd: vec![qemu_nbd.process.pid()],
            nbd_server: vec![nbd_server.process.pid()],
        };
        let libnbd = Libnbd::compile();
        let mut world = Self {
            library: Worker::start(&["client", pool.url(), "library", CONNECTIONS]),
            export: nbd(&export.uri),
            mirror: nbd(&mirror.uri),
            libnbd: LIBNBD_CONNECTIONS.iter().map(|count| libnbd.worker(&nbdkit.uri, *count)).collect(),
            nbdkit_alone: nbd(&nbdkit.uri),
            donor: nbd(&lone.uri),
            quorum: nbd(&quorum.uri),
            qemu_nbd: nbd(&qemu_nbd.uri),
            nbd_server: nbd(&nbd_server.uri),
            servers,
            pool,
            _lone: lone,
            _rivals: [vec![nbdkit, quorum, qemu_nbd, nbd_server], children].into_iter().flatten().collect(),
        };
        let all = [
            &mut world.library,
            &mut world.export,
            &mut world.mirror,
            &mut world.nbdkit_alone,
            &mut world.donor,
            &mut world.quorum,
            &mut world.qemu_nbd,
            &mut world.nbd_server,
        ];
        all.into_iter().for_each(Worker::fill);
        world
    }

    /// libnbd with as many connections as serve this load best: its place in the list.
    fn best_libnbd(&mut self, load: Load) -> usize {
        let load = Load { time: Duration::from_millis(300), ..load };
        let speeds: Vec<f64> =
            self.libnbd.iter_mut().map(|worker| worker.load(load, &[]).done.bytes_per_second()).collect();
        (0..speeds.len()).max_by(|a, b| speeds[*a].total_cmp(&speeds[*b])).unwrap_or_default()
    }
}

/// A worker at an address like `nbd://127.0.0.1:1234/name`.
#[track_caller]
fn nbd(uri: &str) -> Worker {
    let rest = uri.strip_prefix("nbd://").unwrap_or_else(|| panic!("{uri} is not on TCP"));
    let (address, export) = rest.split_once('/').unwrap_or((rest, ""));
    Worker::start(&["nbd", address, export])
}

pub fn run(bench: &mut Bench) {
    bench.prepare("servers start and are filled");
    let mut world = World::start(bench);
    let mut client_bytes = 0;
    let mut beyond = Beyond::default();
    one_at_a_time(bench, &mut world);
    beyond.look(&world.servers.donors);
    many_at_a_time(bench, &mut world);
    beyond.look(&world.servers.donors);
    for (pattern, word) in [(Pattern::SequentialRead, "read"), (Pattern::SequentialWrite, "write")] {
        for (block, name) in [(1 << 20, "1m"), (64 << 10, "64k")] {
            sequential(bench, &mut world, pattern, block, word, name);
            beyond.look(&world.servers.donors);
        }
    }
    for pid in [world.servers.export.last(), world.servers.mirror.last()].into_iter().flatten() {
        client_bytes = client_bytes.max(process::peak_resident_bytes(*pid));
    }
    memory_rows(bench, &beyond, client_bytes);
    world.library.end();
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

fn memory_rows(bench: &mut Bench, beyond: &Beyond, client_bytes: u64) {
    let mib = |bytes: u64| [bytes as f64 / MIB as f64].into_iter().collect::<Series>();
    for (id, what, value, bar) in [
        ("local.memory.donor", "memory of a donor beyond its arena, the most of four", mib(beyond.0), 64.0),
        (
            "local.memory.client",
            "memory of a client that serves an export, its peak",
            mib(client_bytes),
            128.0,
        ),
    ] {
        let bar = Some(Bar::ValueAtMost(bar));
        bench.row(&Figure {
            id,
            what: what.to_owned(),
            unit: "MiB",
            value: &value,
            peer: None,
            probe: None,
            bar,
        });
    }
}

/// Random 4 KiB reads, one at a time: what a request takes, beside a raw ping-pong with as many hops.
fn one_at_a_time(bench: &mut Bench, world: &mut World) {
    let server = Worker::start(&["ping-server", "127.0.0.1:0"]);
    let address = |worker: &Worker| worker.ready["address"].as_str().expect("an address").to_owned();
    // One connection at a time is served, so the relay has a server of its own.
    let relayed = Worker::start(&["ping-server", "127.0.0.1:0"]);
    let relay = Worker::start(&["ping-relay", "127.0.0.1:0", &address(&relayed)]);
    let mut one_hop = Worker::start(&["ping", &address(&server)]);
    let mut two_hops = Worker::start(&["ping", &address(&relay)]);
    bench.set("random 4 KiB reads, one at a time");
    let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 1, time: bench.time };
    let median = |worker: &mut Worker, servers: &[u32]| worker.load(load, servers).median_us();
    let World { library, export, libnbd, servers, .. } = world;
    let taken = bench.turns(&mut [
        Side::new("one hop", || median(&mut one_hop, &[])),
        Side::new("library", || median(library, &servers.donors)),
        Side::new("libnbd", || median(&mut libnbd[0], &servers.nbdkit)),
        Side::new("two hops", || median(&mut two_hops, &[])),
        Side::new("export", || median(export, &servers.export)),
    ]);
    let within = Some(Bar::RatioAtMost(1.5));
    for (id, what, side, peer, bar) in [
        ("local.random.d1.library", "the client library, one hop", "library", "one hop", within),
        ("local.random.d1.libnbd", "for comparison: libnbd on nbdkit, one hop", "libnbd", "one hop", None),
        ("local.random.d1.export", "the export, two hops", "export", "two hops", within),
    ] {
        let what = format!("random 4 KiB read, one at a time, median latency: {what}");
        let peer_name = format!("raw TCP, {peer}");
        let peer = Some((peer_name.as_str(), taken.value(peer)));
        let (value, probe) = (taken.value(side), Some(&taken.probe));
        bench.row(&Figure { id, what, unit: "us", value, peer, probe, bar });
    }
}

/// Random 4 KiB reads, 64 at a time.
fn many_at_a_time(bench: &mut Bench, world: &mut World) {
    bench.set("random 4 KiB reads, 64 at a time");
    let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 64, time: bench.time };
    let best = world.best_libnbd(load);
    let kiops = |worker: &mut Worker, servers: &[u32]| worker.load(load, servers).kiops();
    let World {
        library,
        export,
        mirror,
        libnbd,
        nbdkit_alone,
        donor,
        quorum,
        qemu_nbd,
        nbd_server,
        servers,
        ..
    } = world;
    let taken = bench.turns(&mut [
        Side::new("library", || kiops(library, &servers.donors)),
        Side::new("libnbd", || kiops(&mut libnbd[best], &servers.nbdkit)),
        Side::new("export", || kiops(export, &servers.export)),
        Side::new("quorum", || kiops(quorum, &servers.quorum)),
        Side::new("mirror", || kiops(mirror, &servers.mirror)),
        Side::new("nbdkit", || kiops(nbdkit_alone, &servers.nbdkit)),
        Side::new("donor", || kiops(donor, &servers.donor)),
        Side::new("qemu-nbd", || kiops(qemu_nbd, &servers.qemu_nbd)),
        Side::new("nbd-server", || kiops(nbd_server, &servers.nbd_server)),
    ]);
    let libnbd = libnbd_name(best);
    let four_times = Some(Bar::RatioAtLeast(4.0));
    let rows = [
        ("export", "the export of a stripe", "export", QUORUM, "quorum", four_times),
        ("mirror", "the export of a mirror", "mirror", QUORUM, "quorum", None),
        ("library", "the client library", "library", libnbd.as_str(), "libnbd", None),
        ("nbdkit", "the export of a stripe", "export", "nbdkit alone", "nbdkit", None),
        ("qemu-nbd", "the export of a stripe", "export", "qemu-nbd alone", "qemu-nbd", None),
        ("nbd-server", "the export of a stripe", "export", "nbd-server alone", "nbd-server", None),
        ("donor", "one donor by itself", "donor", "nbdkit alone", "nbdkit", four_times),
    ];
    for (id, what, side, peer_name, peer, bar) in rows {
        let what = format!("random 4 KiB read, 64 at a time, thousand a second: {what}");
        let id = format!("local.random.d64.{id}");
        bench.row(&against(&id, what, "k/s", &taken, side, (peer_name, peer), bar));
    }
    cpu_row(bench, "local.random.d64", "random 4 KiB read, 64 at a time", &taken, (&libnbd, None));
}

const QUORUM: &str = "quorum of four nbdkit";

fn libnbd_name(best: usize) -> String {
    format!("libnbd ({} connections) on nbdkit", LIBNBD_CONNECTIONS[best])
}

fn against<'a>(
    id: &'a str,
    what: String,
    unit: &'a str,
    taken: &'a Taken,
    side: &str,
    (peer_name, peer): (&'a str, &str),
    bar: Option<Bar>,
) -> Figure<'a> {
    let peer = Some((peer_name, taken.value(peer)));
    Figure { id, what, unit, value: taken.value(side), peer, probe: Some(&taken.probe), bar }
}

/// Processor time of both ends: the library and the donors, libnbd and nbdkit.
fn cpu_row(bench: &mut Bench, id: &str, what: &str, taken: &Taken, (libnbd, bar): (&str, Option<Bar>)) {
    let id = format!("{id}.library-cpu");
    let what = format!("{what}, processor time of both ends: the client library");
    let (value, probe) = (taken.cpu("library"), Some(&taken.probe));
    let peer = Some((libnbd, taken.cpu("libnbd")));
    bench.row(&Figure { id: &id, what, unit: "s/GB", value, peer, probe, bar });
    let id = id.replace("library-cpu", "export-cpu");
    let what = "the same: the export, its client and the donors".to_owned();
    let peer = Some(("nbdkit alone and the same client", taken.cpu("nbdkit")));
    bench.row(&Figure { id: &id, what, unit: "s/GB", value: taken.cpu("export"), peer, probe, bar: None });
}

/// Sequential reads or writes, 16 at a time.
fn sequential(bench: &mut Bench, world: &mut World, pattern: Pattern, block: usize, word: &str, name: &str) {
    let shape = format!("sequential {word}, {} KiB, 16 at a time", block >> 10);
    bench.set(&shape);
    let load = Load { pattern, block, depth: 16, time: bench.time };
    let best = world.best_libnbd(load);
    let speed = |worker: &mut Worker, servers: &[u32]| worker.load(load, servers).gb_per_second();
    let World {
        library,
        export,
        mirror,
        libnbd,
        nbdkit_alone,
        donor,
        quorum,
        qemu_nbd,
        nbd_server,
        servers,
        ..
    } = world;
    let taken = bench.turns(&mut [
        Side::new("iperf3", || Turn::of(rivals::iperf3_loopback(1) / 8e3)),
        Side::new("library", || speed(library, &servers.donors)),
        Side::new("libnbd", || speed(&mut libnbd[best], &servers.nbdkit)),
        Side::new("export", || speed(export, &servers.export)),
        Side::new("nbdkit", || speed(nbdkit_alone, &servers.nbdkit)),
        Side::new("donor", || speed(donor, &servers.donor)),
        Side::new("quorum", || speed(quorum, &servers.quorum)),
        Side::new("mirror", || speed(mirror, &servers.mirror)),
        Side::new("qemu-nbd", || speed(qemu_nbd, &servers.qemu_nbd)),
        Side::new("nbd-server", || speed(nbd_server, &servers.nbd_server)),
    ]);
    let libnbd = libnbd_name(best);
    let at_least = |bar| Some(Bar::RatioAtLeast(bar));
    // What the quorum reads comes from one server each, as from a stripe; what it writes goes to all.
    let (like_quorum, like_what) = match pattern {
        Pattern::SequentialWrite => ("mirror", "the export of a mirror over four"),
        _ => ("export", "the export"),
    };
    let donor_bar = (pattern == Pattern::SequentialRead).then_some(Bar::RatioAtLeast(1.5));
    let rows = [
        ("library", "the client library", "library", libnbd.as_str(), "libnbd", at_least(1.5)),
        ("quorum", like_what, like_quorum, QUORUM, "quorum", at_least(2.0)),
        ("nbdkit", "the export, one hop more", "export", "nbdkit alone", "nbdkit", at_least(0.9)),
        ("qemu-nbd", "the export, one hop more", "export", "qemu-nbd alone", "qemu-nbd", None),
        ("nbd-server", "the export, one hop more", "export", "nbd-server alone", "nbd-server", None),
        ("donor", "one donor by itself", "donor", "nbdkit alone", "nbdkit", donor_bar),
        ("limit", "the client library", "library", "iperf3", "iperf3", None),
    ];
    let prefix = format!("local.{word}.{name}");
    for (id, what, side, peer_name, peer, bar) in rows {
        let (id, what) = (format!("{prefix}.{id}"), format!("{shape}: {what}"));
        bench.row(&against(&id, what, "GB/s", &taken, side, (peer_name, peer), bar));
    }
    cpu_row(bench, &prefix, &shape, &taken, (&libnbd, Some(Bar::RatioAtMost(0.6))));
}
