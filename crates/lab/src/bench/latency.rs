//! Of the part `local`: random reads one at a time, beside a raw ping-pong with as many hops.
//!
//! Two processes on one core hand over to each other in a few microseconds, on two cores they wake one
//! another, which in a virtual machine takes some fifty; left to itself the scheduler changes between the
//! two, and so does any figure. So everybody is placed: each process on another core than whom it asks, as on
//! a network, and all on one core, which shows what the path itself costs. Invariant: at the end all may run
//! everywhere again. Called by: `local`. Tests: below.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::bench::contenders::{BY_ITSELF, World, nbd};
use crate::bench::part::Bench;
use crate::bench::ping;
use crate::bench::rounds::Side;
use crate::bench::row::{Bar, Demand};
use crate::bench::worker::{Load, Worker};
use crate::load::Pattern;
use crate::pool::Pool;

/// Who asks, and those it goes through, nearest first.
struct Path<'a> {
    name: &'static str,
    worker: &'a mut Worker,
    hops: Vec<Vec<u32>>,
}

impl Path<'_> {
    fn side<'a>(&'a mut self, placement: Placement, load: Load, cores: &'a [usize]) -> Side<'a> {
        let Path { name, worker, hops } = self;
        Side::new(name, move || {
            let chain = [vec![worker.pid()]].into_iter().chain(hops.iter().cloned());
            for (number, pids) in chain.enumerate() {
                pids.iter().for_each(|pid| pin(*pid, &[placement.core(number, cores)]));
            }
            worker.load(load, &[]).median_us()
        })
    }
}

/// Where the processes of a path run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Apart,
    Together,
}

impl Placement {
    fn core(self, hop: usize, cores: &[usize]) -> usize {
        match self {
            Self::Apart => cores[hop % 2],
            Self::Together => cores[0],
        }
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Apart => ("", "each on another core than whom it asks"),
            Self::Together => (".one-core", "all on one core"),
        }
    }
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("the cores of this process");
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
}

/// Has all threads of a process run on these cores only.
#[track_caller]
fn pin(pid: u32, cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    let threads =
        fs::read_dir(format!("/proc/{pid}/task")).unwrap_or_else(|error| panic!("process {pid}: {error}"));
    for thread in threads.flatten() {
        let id = thread.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        // A thread may end meanwhile.
        let _ = sched_setaffinity(id, &set);
    }
}

/// The library and an export that sleep until an answer wakes them, each on a volume of its own.
struct Sleeping {
    library: Worker,
    export: Worker,
    daemon: u32,
}

const POLL_US: &str = "0";

impl Sleeping {
    fn start(pool: &mut Pool) -> Self {
        let names @ [library, export] = ["library-sleeps", "export-sleeps"];
        for name in names {
            pool.ok(["create", name, "256M", "--redundancy", "stripe:4"]);
        }
        let export = pool.attach_export(export, &["--poll-us", POLL_US]);
        let library = Worker::start(&["client", pool.url(), BY_ITSELF, POLL_US, library]);
        let mut both = Self { library, export: nbd(&export.uri), daemon: export.pid };
        both.library.fill();
        both.export.fill();
        both
    }

    fn end(self, pool: &mut Pool) {
        self.library.end();
        self.export.end();
        pool.detach("export-sleeps");
    }
}

pub fn rows(bench: &mut Bench, world: &mut World) {
    let cores = cores();
    assert!(cores.len() > 1, "to place processes apart takes two cores");
    let server = Worker::start(&["ping-server", "127.0.0.1:0"]);
    // One connection at a time is served, so the relay has a server of its own.
    let relayed = Worker::start(&["ping-server", "127.0.0.1:0"]);
    let relay = Worker::start(&["ping-relay", "127.0.0.1:0", &ping::address(&relayed)]);
    let mut one_hop = Worker::start(&["ping", &ping::address(&server)]);
    let mut two_hops = Worker::start(&["ping", &ping::address(&relay)]);
    let mut sleeping = Sleeping::start(&mut world.pool);
    let (donors, daemon) = (&world.donors, world.clients[0]);
    let mut paths = vec![
        Path { name: "one hop", worker: &mut one_hop, hops: vec![vec![server.pid()]] },
        Path { name: "two hops", worker: &mut two_hops, hops: vec![vec![relay.pid()], vec![relayed.pid()]] },
        Path { name: "libnbd", worker: &mut world.libnbd[0], hops: vec![vec![world.nbdkit]] },
        Path { name: "library sleeps", worker: &mut sleeping.library, hops: vec![donors.clone()] },
        Path {
            name: "export sleeps",
            worker: &mut sleeping.export,
            hops: vec![vec![sleeping.daemon], donors.clone()],
        },
    ];
    for contender in &mut world.contenders {
        let hops = match contender.name {
            "library" => vec![donors.clone()],
            "export" => vec![vec![daemon], donors.clone()],
            _ => continue,
        };
        paths.push(Path { name: contender.name, worker: &mut contender.worker, hops });
    }
    let load = Load { pattern: Pattern::RandomRead, block: 4096, depth: 1, time: bench.time };
    for placement in [Placement::Apart, Placement::Together] {
        set(bench, &mut paths, placement, load, &cores);
    }
    for path in &paths {
        path.hops.iter().flatten().chain([&path.worker.pid()]).for_each(|pid| pin(*pid, &cores));
    }
    sleeping.end(&mut world.pool);
}

fn set(bench: &mut Bench, paths: &mut [Path<'_>], placement: Placement, load: Load, cores: &[usize]) {
    let (suffix, words) = placement.words();
    bench.set(&format!("random 4 KiB reads, one at a time, {words}"));
    let sides = paths.iter_mut().map(|path| path.side(placement, load, cores));
    let taken = bench.turns(&mut sides.collect::<Vec<_>>());
    let apart = placement == Placement::Apart;
    for (id, what, side, peer, bar) in [
        ("library", "the client library, one hop", "library", "one hop", true),
        ("libnbd", "for comparison: libnbd on nbdkit, one hop", "libnbd", "one hop", false),
        ("export", "the export, two hops", "export", "two hops", true),
        ("library-sleeps", "the library, --poll-us 0, one hop", "library sleeps", "one hop", true),
        ("export-sleeps", "the export, --poll-us 0, two hops", "export sleeps", "two hops", true),
    ] {
        let what = format!("random 4 KiB read, one at a time, median latency, {words}: {what}");
        let (id, peer_name) = (format!("local.random.d1.{id}{suffix}"), format!("raw TCP, {peer}"));
        let demand = if apart && bar { Bar::RatioAtMost(1.5).into() } else { Demand::NONE };
        bench.beside((&id, &what, "us"), &taken, side, (&peer_name, peer), demand);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use crate::scratch::Scratch;
    use crate::tools;

    #[test]
    fn a_process_stays_where_it_is_put() {
        let scratch = Scratch::new();
        let mut command = tools::command("sleep");
        command.arg("60");
        let process = Process::start("sleep", command, scratch.path());
        let cores = cores();
        let allowed = || {
            let pid = Pid::from_raw(process.pid().cast_signed());
            let set = sched_getaffinity(pid).expect("its cores");
            cores.iter().copied().filter(|core| set.is_set(*core)).collect::<Vec<_>>()
        };
        pin(process.pid(), &cores[..1]);
        assert_eq!(allowed(), cores[..1]);
        pin(process.pid(), &cores);
        assert_eq!(allowed(), cores);
    }
}
