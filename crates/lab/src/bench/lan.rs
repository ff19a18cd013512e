//! The part `lan`: a client and four donors on hosts of their own, joined by shaped links; sequential reads
//! and writes beside iperf3 on the same hosts, and backward and strided reads, also where a round trip takes
//! 1 ms.
//!
//! Reads begin with an empty page cache. iperf3 moves one stream between the client and one donor: the
//! client's link is what it measures. An export is measured as iperf3 is, while its streams run, over libnbd;
//! nbdcopy's copies, with their start and end, stand beside that and have no bar. Called by: `bench`.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::direct::{self, Job};
use crate::bench::file::{self, Walk};
use crate::bench::libnbd::Libnbd;
use crate::bench::machine::CONGESTION;
use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Taken, Turn};
use crate::bench::row::{Bar, Demand, Figure};
use crate::bench::worker::{Load, Worker};
use crate::lan::{Lan, Node};
use crate::load::Pattern;
use crate::pool::{Access, Attached, Pool, State};
use crate::scratch::Scratch;
use crate::wire::Wire;
use crate::{process, rivals, tools};

pub const SECONDS: f64 = 700.0;
pub const SETS: usize = 4;

pub(super) const DONORS: u8 = 4;
const MIB: u64 = 1 << 20;
/// What a backward or forward walk in small steps reads.
const WALK_BYTES: u64 = 32 * MIB;
const BLOCK: u64 = 4096;
/// What an export is asked for at a time: as much as nbdcopy asks for.
const COPIED_BYTES: usize = 256 << 10;
/// The thesis's stride.
pub(super) const STRIDE: u64 = 200 << 10;

pub fn run(bench: &mut Bench) {
    let libnbd = Libnbd::compile();
    for (rate, name) in [("1gbit", "1g"), ("10gbit", "10g")] {
        at_the_wire(bench, &libnbd, rate, name);
    }
    let lan = hosts("1gbit", DONORS);
    for more in [Duration::ZERO, Duration::from_millis(1)] {
        walks(bench, &lan, more);
    }
}

#[track_caller]
pub fn hosts(rate: &str, donors: u8) -> Arc<Lan> {
    let lan = Lan::new(donors, rate);
    lan.congestion_control(CONGESTION);
    Arc::new(lan)
}

#[track_caller]
pub(super) fn pool_on(lan: &Arc<Lan>, lent: &str) -> Pool {
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(lan.clone()));
    pool.donate_everywhere(DONORS, lent);
    pool
}

/// Random bytes to copy from.
#[track_caller]
pub(super) fn noise(scratch: &Scratch, bytes: u64) -> PathBuf {
    let noise = scratch.join("noise");
    let mut command = tools::command("dd");
    command.arg("if=/dev/urandom").arg(format!("of={}", noise.display()));
    tools::expect_success(command.args(["bs=1M", "status=none", &format!("count={}", bytes / MIB)]));
    noise
}

/// Mbit/s at which a command moved so many bytes.
#[track_caller]
fn mbit(bytes: u64, mut command: Command) -> Turn {
    let start = Instant::now();
    tools::expect_success(&mut command);
    Turn::of(bytes as f64 * 8.0 / 1e6 / start.elapsed().as_secs_f64())
}

/// Mbit/s at which a worker carried out a load.
#[track_caller]
fn streamed(worker: &mut Worker, load: Load) -> Turn {
    Turn::of(worker.load(load, &[]).done.bytes_per_second() * 8.0 / 1e6)
}

/// What a link carries: MB/s of one stream to the client in a second.
#[track_caller]
pub(super) fn wire(lan: &Lan) -> Turn {
    Turn::of(rivals::iperf3_between(lan, Node::Donor(1), Node::Client, 1) / 8.0)
}

/// A raw TCP ping-pong: a worker on a donor's host that answers, and one on the client's that asks it.
#[track_caller]
pub(super) fn ping_pair(lan: &Lan) -> (Worker, Worker) {
    let server = Worker::start_on(lan, Node::Donor(1), &["ping-server", "0.0.0.0:5202"]);
    let address = format!("{}:5202", Node::Donor(1).address());
    (server, Worker::start_on(lan, Node::Client, &["ping", &address]))
}

/// Two volumes on hosts with links of one rate: one is a file, one an export.
struct Wired {
    lan: Arc<Lan>,
    pool: Pool,
    file: PathBuf,
    uri: String,
    /// As many bytes as a volume has, to copy from.
    noise: String,
    bytes: u64,
    /// How long a load takes that has no end of its own.
    seconds: u32,
}

impl Wired {
    #[track_caller]
    fn start(quick: bool, rate: &str) -> Self {
        // So much that what a link lets through at once is little of it.
        let mib: u64 = match (quick, rate) {
            (true, _) => 256,
            (false, "1gbit") => 512,
            _ => 1024,
        };
        let bytes = mib * MIB;
        let lan = hosts(rate, DONORS);
        let mut pool = pool_on(&lan, &format!("{}M", 2 * (mib / 4).max(64)));
        for volume in ["file", "nbd"] {
            pool.ok(["create", volume, &format!("{mib}M"), "--redundancy", "stripe:4"]);
        }
        let noise = noise(pool.scratch(), bytes).display().to_string();
        let file = pool.attach_fuse("file", &[]).path;
        let uri = pool.attach_export_unix("nbd", &[]).uri;
        Self { lan, pool, file, uri, noise, bytes, seconds: if quick { 1 } else { 2 } }
    }

    #[track_caller]
    fn iperf3(&self, from: Node, to: Node) -> Turn {
        Turn::of(rivals::iperf3_between(&self.lan, from, to, self.seconds))
    }

    /// The same through a relay on the client's host: one hop more, as an export has.
    #[track_caller]
    fn relayed(&self, from: Node, to: Node) -> Turn {
        let relay = Worker::start_on(&self.lan, Node::Client, &["relay", &format!("{}:5201", to.address())]);
        let port = relay.ready["port"].as_u64().and_then(|port| port.try_into().ok()).expect("a port");
        let address = Node::Client.address();
        Turn::of(rivals::iperf3_via(&self.lan, from, to, (&address, port), self.seconds))
    }

    /// Over the whole file, twice, of which the second counts.
    #[track_caller]
    fn walk(&self, worker: &mut Worker, walk: Walk) -> Turn {
        file::walk(worker, walk, &self.file, MIB, self.bytes);
        Turn::of(file::walk_again(worker, walk, &self.file, MIB, self.bytes).mb_per_second() * 8.0)
    }

    #[track_caller]
    fn write_four_at_a_time(&self) -> Turn {
        let (pattern, block, seconds) = ("write", MIB, f64::from(self.seconds));
        let job = Job { path: &self.file, pattern, block, depth: 4, bytes: self.bytes, seconds };
        Turn::of(direct::kiops(&job) * 1e3 * block as f64 * 8.0 / 1e6)
    }

    #[track_caller]
    fn nbdcopy(&self, from: &str, to: &str) -> Turn {
        let mut command = self.lan.exec(Node::Client, tools::need("nbdcopy"));
        command.args(["--flush", from, to]);
        mbit(self.bytes, command)
    }

    #[track_caller]
    fn end(mut self) {
        self.pool.detach("file");
        self.pool.detach("nbd");
    }
}

/// Sequential reads and writes through the file and through the export.
fn at_the_wire(bench: &mut Bench, libnbd: &Libnbd, rate: &str, name: &str) {
    bench.prepare(&format!("hosts with links of {rate}"));
    let wired = Wired::start(bench.quick, rate);
    let (server, mut ping) = ping_pair(&wired.lan);
    let worker = RefCell::new(Worker::start(&["file"]));
    let client = RefCell::new(libnbd.worker(&wired.uri, 4));
    let walk = |walk: Walk| wired.walk(&mut worker.borrow_mut(), walk);
    // Each block once: from the second time on some would come from the client's cache.
    let through_export = |pattern: Pattern| {
        let load = Load { pattern, block: COPIED_BYTES, depth: 32, time: Duration::ZERO };
        streamed(&mut client.borrow_mut(), load)
    };
    // What can be had with one request at a time.
    let one_mib = Load {
        pattern: Pattern::SequentialWrite,
        block: MIB as usize,
        depth: 1,
        time: Duration::from_secs(wired.seconds.into()),
    };
    // What is written for the first time takes memory of its machine, and donors put it on huge pages in the
    // seconds after.
    walk(Walk::Write);
    wired.nbdcopy(&wired.noise, &wired.uri);
    process::wait_for_rest(&wired.pool.donor_pids());
    bench.set(&format!("sequential, links of {rate}"));
    let (donor, here) = (Node::Donor(1), Node::Client);
    let taken = bench.turns(&mut [
        Side::new("in", || wired.iperf3(donor, here)),
        Side::new("out", || wired.iperf3(here, donor)),
        Side::new("file write", || walk(Walk::Write)),
        Side::new(FOUR_AT_A_TIME, || wired.write_four_at_a_time()),
        Side::new("file read", || walk(Walk::Forward)),
        Side::new("export write", || through_export(Pattern::SequentialWrite)),
        Side::new("export read", || through_export(Pattern::SequentialRead)),
        Side::new("nbdcopy write", || wired.nbdcopy(&wired.noise, &wired.uri)),
        Side::new("nbdcopy read", || wired.nbdcopy(&wired.uri, "null:")),
        Side::new("relayed in", || wired.relayed(donor, here)),
        Side::new("relayed out", || wired.relayed(here, donor)),
        Side::new("raw", || streamed(&mut ping, one_mib)),
    ]);
    wire_rows(bench, &taken, rate, name);
    drop((ping, server));
    client.into_inner().end();
    worker.into_inner().end();
    wired.end();
}

/// A plain write is answered by donors before the next one begins; where several are under way the link need
/// not wait.
const FOUR_AT_A_TIME: &str = "file write, four at a time";

/// Everything beside iperf3 the same way.
fn wire_rows(bench: &mut Bench, taken: &Taken, rate: &str, name: &str) {
    for (side, peer) in
        [("file read", "in"), ("file write", "out"), ("export read", "in"), ("export write", "out")]
    {
        let id = format!("lan.{name}.{}", side.replace(' ', "."));
        let what = format!("links of {rate}, sequential, four donors: {side}");
        let demand = Bar::RatioAtLeast(0.98).into();
        bench.beside((&id, &what, "Mbit/s"), taken, side, ("iperf3", peer), demand);
        // Where there is no more of it, the processors are the limit and not the link.
        let (id, what) = (format!("{id}.busy"), format!("{what}: processors of all hosts busy meanwhile"));
        let peer = Some(("iperf3", taken.busy(peer)));
        bench.row(&Figure { peer, ..Figure::new(&id, what, "%", taken.busy(side)) });
    }
    let id = format!("lan.{name}.file.write.four");
    let what = format!("links of {rate}, sequential: {FOUR_AT_A_TIME}");
    bench.beside((&id, &what, "Mbit/s"), taken, FOUR_AT_A_TIME, ("iperf3", "out"), Demand::NONE);
    for (word, what, side, peer) in [
        ("export.read.copy", "nbdcopy from the export, with its start and end", "nbdcopy read", "in"),
        ("export.write.copy", "nbdcopy of a file to it, with its start and end", "nbdcopy write", "out"),
        ("limit-export-read", "iperf3 to a relay on the client's host", "relayed in", "in"),
        ("limit-export-write", "iperf3 from a relay on the client's host", "relayed out", "out"),
        ("limit-raw-write", "raw TCP, 1 MiB written and answered, one at a time", "raw", "out"),
    ] {
        let id = format!("lan.{name}.{word}");
        let what = format!("links of {rate}, for comparison: {what}");
        bench.beside((&id, &what, "Mbit/s"), taken, side, ("iperf3", peer), Demand::NONE);
    }
}

/// While it lives, a round trip between the client and a donor takes so much longer.
pub(super) struct Away {
    lan: Arc<Lan>,
    wire: Wire,
}

impl Away {
    #[track_caller]
    pub(super) fn new(lan: &Arc<Lan>, round_trip: Duration) -> Self {
        let wire = Wire::long(lan, round_trip);
        (1..=DONORS).for_each(|number| lan.detour(Node::Donor(number)));
        Self { lan: lan.clone(), wire }
    }

    /// From now on.
    pub(super) fn takes(&self, round_trip: Duration) {
        self.wire.delay(round_trip / 2);
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        (1..=DONORS).for_each(|number| self.lan.heal(Node::Donor(number)));
    }
}

/// Two volumes with the same content.
pub(super) struct Loaded(Pool);

/// The same as files: one as it is, one without read-ahead.
pub(super) struct Pair {
    pool: Pool,
    pub(super) ahead: Attached,
    pub(super) plain: Attached,
}

impl Loaded {
    #[track_caller]
    pub(super) fn from(lan: &Arc<Lan>, from: &Path, bytes: u64) -> Self {
        let pool = pool_on(lan, &format!("{}M", 2 * (bytes / MIB / 4).max(64) + 128));
        let size = bytes.to_string();
        for volume in ["ahead", "plain"] {
            pool.ok(["create", volume, &size, "--redundancy", "stripe:4"]);
            pool.ok(["load", &from.display().to_string(), volume, "--no-verify"]);
        }
        Self(pool)
    }

    /// The connections are made now, as many as the links ask for now.
    #[track_caller]
    pub(super) fn attach(self) -> Pair {
        let mut pool = self.0;
        let ahead = pool.attach_fuse("ahead", &["--read-only"]);
        let plain = pool.attach_fuse("plain", &["--read-only", "--read-ahead", "off"]);
        Pair { pool, ahead, plain }
    }
}

impl Pair {
    pub(super) fn end(mut self) {
        self.pool.detach("ahead");
        self.pool.detach("plain");
    }
}

pub(super) const NO_READ_AHEAD: &str = "the same without read-ahead";

/// Backward and strided walks in blocks of 4 KiB, where a round trip takes as long as it does on this machine
/// and `more`.
fn walks(bench: &mut Bench, lan: &Arc<Lan>, more: Duration) {
    bench.prepare("volumes for backward and strided reads");
    let bytes = if bench.quick { 128 * MIB } else { 256 * MIB };
    let scratch = Scratch::new();
    let loaded = Loaded::from(lan, &noise(&scratch, bytes), bytes);
    let away = (!more.is_zero()).then(|| Away::new(lan, more));
    let pair = loaded.attach();
    let (server, mut ping) = ping_pair(lan);
    let worker = RefCell::new(Worker::start(&["file"]));
    let walk = |walk: Walk, attached: &Attached, bytes: u64| {
        Turn::of(file::walk(&mut worker.borrow_mut(), walk, &attached.path, BLOCK, bytes).mb_per_second())
    };
    let (id, far) = match more.as_millis() {
        0 => (String::new(), String::new()),
        millis => (format!(".{millis}ms"), format!(", RTT {millis} ms")),
    };
    bench.set(&format!("backward and strided reads, links of 1gbit{far}"));
    let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 1, time: bench.time };
    let strided = Walk::Strided(STRIDE);
    let taken = bench.turns(&mut [
        Side::new("wire", || wire(lan)),
        Side::new("forward", || walk(Walk::Forward, &pair.ahead, WALK_BYTES)),
        Side::new("backward", || walk(Walk::Backward, &pair.ahead, WALK_BYTES)),
        Side::new("strided", || walk(strided, &pair.ahead, bytes)),
        Side::new("plain", || walk(strided, &pair.plain, bytes)),
        Side::new("ping", || Turn::of(BLOCK as f64 / ping.load(load, &[]).median_us().value)),
    ]);
    let (id_of, what) =
        (|name: &str| format!("lan.{name}{id}"), format!("backward, 4 KiB at a time, cold{far}"));
    let peer = ("the same forward", "forward");
    bench.beside(
        (&id_of("backward"), &what, "MB/s"),
        &taken,
        "backward",
        peer,
        Bar::RatioAtLeast(0.9).into(),
    );
    let what = format!("strided, 4 KiB every 200 KiB, cold, useful bytes{far}");
    for (name, peer, demand) in [
        ("strided", (NO_READ_AHEAD, "plain"), Bar::RatioAtLeast(5.0).within("wire")),
        ("strided.round-trips", ("4 KiB each raw TCP round trip", "ping"), Demand::NONE),
        ("strided.wire", ("iperf3", "wire"), Demand::NONE),
    ] {
        bench.beside((&id_of(name), &what, "MB/s"), &taken, "strided", peer, demand);
    }
    worker.into_inner().end();
    drop((ping, server));
    drop(away);
    pair.end();
}
