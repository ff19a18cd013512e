//! fio as the load of the fault runs: it writes what it can check, logs each completion, and reads everything
//! back.
//!
//! Owns: the command lines, and what is read from fio's logs. Never: a verdict.
//! Invariant: each 4 KiB block carries fio's own header and CRC32C; the region is filled with other bytes
//! first and each block is then written exactly once, so that a stale, lost or misplaced block fails its
//! check like a damaged one. Silences come from fio's log of completions: these are the very writes that are
//! checked, stamped (to the millisecond) by a program that others wrote; a second writer beside it would
//! compete with it and see other silences. Called by: `faults`, `tests/survive.rs`. Tests: below.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::lan::{Lan, Node};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::tools;

/// The most that is kept of what fio complained about.
const COMPLAINT_CHARS_MAX: usize = 400;

/// How fio ends when it was told to by a signal.
const INTERRUPTED: i32 = 128;

/// Where a front end gives the volume to tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The address of an NBD export.
    Export(String),
    File(PathBuf),
}

/// How much is written, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The region at the start of the volume, all of which is written once.
    pub bytes: u64,
    /// The rate is limited so that it lasts about so long.
    pub seconds: u64,
    pub depth: u32,
    pub seed: u64,
}

/// A run of the volume's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub offset: u64,
    pub bytes: u64,
}

/// What is read at random.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    pub region: Region,
    pub block_bytes: u64,
    pub depth: u32,
    pub seconds: u64,
    /// None: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    pub seed: u64,
}

/// How a run of fio ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// None when fio did not end in time and was killed.
    pub code: Option<i32>,
    /// What it said, when it failed.
    pub complaint: String,
    /// When writes were completed (in milliseconds of the system's clock), ascending, and the slowest of
    /// them.
    pub completions: Vec<u64>,
    pub slowest_ms: u64,
}

impl Ended {
    pub fn good(&self) -> bool {
        self.code == Some(0)
    }
}

/// A fio that runs.
#[derive(Debug)]
pub struct Running {
    process: Process,
    what: &'static str,
    log: Option<PathBuf>,
}

/// Milliseconds of the system's clock, as fio stamps its log.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Runs fio on the client host of a lab (here, when there is none), its files in `scratch`.
#[derive(Debug)]
pub struct Fio<'a> {
    pub lan: Option<&'a Lan>,
    pub target: &'a Target,
    pub scratch: &'a Scratch,
}

impl Fio<'_> {
    /// Fills the first `bytes` with what no check accepts, and writes in order what [`Fio::read_at_random`]
    /// checks.
    #[track_caller]
    pub fn prepare(&self, bytes: u64, checked: Option<Region>) {
        let mut command = self.command("fill", Region { offset: 0, bytes }, 4);
        command.args(["--rw=write", "--bs=1M", "--refill_buffers=1"]);
        if let Some(region) = checked {
            self.job(&mut command, "lay", region, 4);
            verify(&mut command);
            command.args(["--rw=write", "--bs=1M", "--do_verify=0"]);
        }
        let ended = Running { process: self.start("fill", command), what: "fill", log: None }
            .wait(Duration::from_secs(60), || false);
        assert!(ended.good(), "fio cannot fill {:?}: {}", self.target, ended.complaint);
    }

    /// Begins to write at random what [`Fio::read_back`] checks.
    #[track_caller]
    pub fn write(&self, load: &Load) -> Running {
        let prefix = self.scratch.join("writes");
        let log = self.scratch.join("writes_lat.1.log");
        // One of an earlier run must not be taken for this one's.
        let _ = std::fs::remove_file(&log);
        let mut command = self.command("load", Region { offset: 0, bytes: load.bytes }, load.depth);
        verify(&mut command);
        command.args(["--rw=randwrite", "--bssplit=4k/40:16k/40:64k/20", "--do_verify=0"]);
        command
            .arg(format!("--rate=,{}", load.bytes / load.seconds))
            .arg(format!("--randseed={}", load.seed));
        command.arg(format!("--write_lat_log={}", prefix.display()));
        command.args(["--log_avg_msec=0", "--log_unix_epoch=1"]);
        Running { process: self.start("load", command), what: "load", log: Some(log) }
    }

    /// Begins to read all that [`Fio::write`] wrote and to check it, in a process of its own, so that nothing
    /// but the volume remembers it.
    #[track_caller]
    pub fn read_back(&self, bytes: u64) -> Running {
        let mut command = self.command("check", Region { offset: 0, bytes }, 32);
        verify(&mut command);
        command.args(["--rw=read", "--bs=64k"]);
        Running { process: self.start("check", command), what: "check", log: None }
    }

    /// Begins to read at random, and to check what it reads.
    #[track_caller]
    pub fn read_at_random(&self, reads: &Reads) -> Running {
        let mut command = self.command("reads", reads.region, reads.depth);
        verify(&mut command);
        command.args(["--rw=randread", "--time_based"]).arg(format!("--bs={}", reads.block_bytes));
        command.args(reads.bytes_per_second.map(|rate| format!("--rate={rate}")));
        command.arg(format!("--runtime={}", reads.seconds)).arg(format!("--randseed={}", reads.seed));
        Running { process: self.start("reads", command), what: "reads", log: None }
    }

    /// Begins to write at random as fast as it goes, with so many writes under way all the time, and checks
    /// nothing.
    #[track_caller]
    pub fn hammer(&self, writes: &Reads) -> Running {
        let prefix = self.scratch.join("hammer");
        let log = self.scratch.join("hammer_lat.1.log");
        let _ = std::fs::remove_file(&log);
        let mut command = self.command("hammer", writes.region, writes.depth);
        command.args(["--rw=randwrite", "--norandommap", "--time_based", "--refill_buffers=1"]);
        command.arg(format!("--bs={}", writes.block_bytes)).arg(format!("--runtime={}", writes.seconds));
        command.arg(format!("--randseed={}", writes.seed));
        command.arg(format!("--write_lat_log={}", prefix.display()));
        command.args(["--log_avg_msec=0", "--log_unix_epoch=1"]);
        Running { process: self.start("hammer", command), what: "hammer", log: Some(log) }
    }

    /// fio with a first job.
    fn command(&self, name: &str, region: Region, depth: u32) -> Command {
        let mut command = match self.lan {
            Some(lan) => lan.exec(Node::Client, tools::need("fio")),
            None => tools::command("fio"),
        };
        command
            .arg("--eta=never")
            .arg(format!("--output={}", self.scratch.join(format!("{name}.out")).display()));
        self.job(&mut command, name, region, depth);
        command
    }

    /// Options that follow are this job's.
    fn job(&self, command: &mut Command, name: &str, region: Region, depth: u32) {
        command.arg(format!("--name={name}")).arg(format!("--iodepth={depth}")).arg("--thread");
        command.arg(format!("--offset={}", region.offset)).arg(format!("--size={}", region.bytes));
        match self.target {
            Target::Export(uri) => command.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
            Target::File(path) => command
                .args(["--ioengine=libaio", "--direct=1", "--allow_file_create=0"])
                .arg(format!("--filename={}", path.display())),
        };
    }

    fn start(&self, name: &str, mut command: Command) -> Process {
        // fio leaves files where it runs.
        command.current_dir(self.scratch.path());
        Process::start(&format!("fio-{name}"), command, self.scratch.path())
    }
}

fn verify(command: &mut Command) {
    command.args(["--verify=crc32c", "--verify_interval=4096", "--verify_fatal=1", "--verify_state_save=0"]);
}

impl Running {
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Has it end when what is under way is done, as its user does with ^C.
    pub fn finish(self) -> Ended {
        self.process.signal(Signal::INT);
        let mut ended = self.wait(Duration::from_secs(30), || false);
        // What it answers to a signal; an error of a write would have ended it before.
        if ended.code == Some(INTERRUPTED) {
            ended.code = Some(0);
        }
        ended
    }

    /// Waits for its end; after the limit, or when `give_up` says so, it is killed.
    pub fn wait(mut self, limit: Duration, give_up: impl Fn() -> bool) -> Ended {
        let start = Instant::now();
        while self.process.is_running() && start.elapsed() < limit && !give_up() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let code = match self.process.is_running() {
            true => None,
            false => self.process.wait_for_end(limit).code().or(Some(-1)),
        };
        let mut complaint = String::new();
        match code {
            Some(0) => {}
            Some(code) => {
                complaint = format!("{} ended with {code}: {}", self.what, self.process.log().trim())
            }
            None => complaint = format!("{} did not end in {limit:?}", self.what),
        }
        complaint = complaint.chars().take(COMPLAINT_CHARS_MAX).collect();
        self.process.kill();
        let text = self.log.as_ref().and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default();
        let (completions, slowest_ms) = completed_writes(&text);
        Ended { code, complaint, completions, slowest_ms }
    }
}

/// When writes were completed, ascending, and what the slowest took, from fio's log of latencies: lines of
/// `time in ms, latency in ns, 1 for a write, bytes, priority`.
fn completed_writes(log: &str) -> (Vec<u64>, u64) {
    let mut times = Vec::new();
    let mut slowest_ns = 0;
    for line in log.lines() {
        let mut fields = line.split(',').map(str::trim);
        let (Some(time), Some(latency), Some("1")) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        times.extend(time.parse::<u64>().ok());
        slowest_ns = slowest_ns.max(latency.parse().unwrap_or(0));
    }
    times.sort_unstable();
    (times, slowest_ns / 1_000_000)
}

/// The silences in writes around a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silences {
    /// The longest between two completions before the fault: what the measurement itself adds.
    pub before_ms: u64,
    /// The longest that ended after the fault.
    pub after_ms: u64,
    /// Completions after the fault; few of them say that the fault came too late to be met.
    pub completions_after: usize,
}

impl Silences {
    pub fn around(fault_ms: u64, completions: &[u64]) -> Self {
        let mut found = Self::default();
        for pair in completions.windows(2) {
            let (gap, longest) = match pair[1] > fault_ms {
                true => (pair[1] - pair[0], &mut found.after_ms),
                false => (pair[1] - pair[0], &mut found.before_ms),
            };
            *longest = gap.max(*longest);
        }
        found.completions_after = completions.iter().filter(|time| **time > fault_ms).count();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::Rival;

    const BYTES: u64 = 8 << 20;

    #[test]
    fn silences_are_told_apart_by_the_fault() {
        let log = "100, 5000000, 1, 4096, 0\n103, 1, 1, 4096, 0\n\
                   900, 700000000, 1, 4096, 0\n905, 1, 1, 4096, 0\n950, 1, 0, 4096, 0\n";
        let (times, slowest) = completed_writes(log);
        assert_eq!((times.as_slice(), slowest), ([100, 103, 900, 905].as_slice(), 700));
        let silences = Silences::around(150, &times);
        assert_eq!(silences, Silences { before_ms: 3, after_ms: 797, completions_after: 2 });
    }

    #[test]
    fn what_was_written_reads_back_and_damage_does_not() {
        let server = Rival::nbdkit_unix(&["memory", "8M"]);
        let target = Target::Export(server.uri.clone());
        let scratch = Scratch::new();
        let fio = Fio { lan: None, target: &target, scratch: &scratch };
        fio.prepare(BYTES, None);
        let limit = Duration::from_secs(60);
        let unwritten = fio.read_back(BYTES).wait(limit, || false);
        assert!(!unwritten.good() && unwritten.complaint.contains("verify"), "{unwritten:?}");

        let ended = fio.write(&Load { bytes: BYTES, seconds: 1, depth: 4, seed: 3 }).wait(limit, || false);
        assert!(ended.good(), "{}", ended.complaint);
        assert!(ended.completions.len() > 100 && ended.completions.is_sorted());
        let read = fio.read_back(BYTES).wait(limit, || false);
        assert!(read.good(), "{}", read.complaint);

        tools::run("qemu-io", ["-f", "raw", "-c", "write -P 7 1234567 1", &server.uri]);
        let all = Region { offset: 0, bytes: BYTES };
        let reads =
            Reads { region: all, block_bytes: 4096, depth: 16, seconds: 1, bytes_per_second: None, seed: 1 };
        assert!(!fio.read_at_random(&reads).wait(limit, || false).good());
        let second_half = Region { offset: BYTES / 2, bytes: BYTES / 2 };
        fio.prepare(BYTES / 2, Some(second_half));
        let reads = Reads { region: second_half, ..reads };
        let read = fio.read_at_random(&reads).wait(limit, || false);
        assert!(read.good(), "{}", read.complaint);
        let ended = fio.write(&Load { bytes: BYTES, seconds: 1, depth: 4, seed: 4 }).wait(limit, || false);
        assert!(ended.good(), "{}", ended.complaint);
        tools::run("qemu-io", ["-f", "raw", "-c", "write -P 7 1234567 1", &server.uri]);
        let read = fio.read_back(BYTES).wait(limit, || false);
        assert!(!read.good() && read.complaint.contains("crc32c"), "{read:?}");
    }
}
