//! What redundancy costs, on hosts joined by links of 1 Gbit/s, beside iperf3 over the same links: `make
//! bench-repair`.
//!
//! Sequential: `parity:4+1` over five donors, written and read through the file and through the export, whole
//! and with one donor killed; there is no sixth donor, so that what it held stays missing. Rebuild:
//! `parity:3+1` over five donors, of which one that holds 2 GiB is killed while fio writes 64 KiB blocks at
//! random, 16 at a time, as fast as they go; what fio leaves of the time, it is rebuilt with nobody else
//! about. Contents are hashed before and after, and once more without another donor, so that what was rebuilt
//! is what is read. `--only sequential` or `--only rebuild` does one; `--rounds`, `--mib` (of the sequential
//! volume) and `--groups` (of the rebuilt one) make it smaller. Prints a Markdown table and writes
//! `bench/repair/results.json` in the build directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the program's output")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cheetah_lab::figures::{self, Series};
use cheetah_lab::fio::{self, Fio, Reads, Region, Target};
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::{process, rivals, tools, wait};
use serde_json::{Value, json};

const RATE: &str = "1gbit";
const DONORS: u8 = 5;
const IPERF_SECONDS: u32 = 3;
const EXTENT_MIB: u64 = 64;
const VOLUME: &str = "case";
const REPAIR_LIMIT: Duration = Duration::from_secs(300);

/// The rebuilt volume: groups of this many data fragments, and one of parity.
const DATA: u64 = 3;
/// What fio writes to, at the start of the volume.
const HAMMERED_MIB: u64 = 1024;
const BLOCK_BYTES: u64 = 64 << 10;
const DEPTH: u32 = 16;
/// How long fio writes before the donor is killed.
const BEFORE_SECONDS: u64 = 12;
/// Of the first seconds of either, nothing is counted.
const SETTLE_SECONDS: u64 = 2;

struct Options {
    rounds: usize,
    mib: u64,
    groups: u64,
    /// Seconds that fio writes during the rebuild.
    during: u64,
    only: Option<String>,
}

/// One line of the table.
struct Row {
    id: &'static str,
    what: String,
    unit: &'static str,
    value: Series,
    peer: Series,
    /// Of value to peer, at least.
    bar: Option<f64>,
}

impl Row {
    fn new(id: &'static str, what: &str, unit: &'static str, bar: Option<f64>) -> Self {
        Row { id, what: what.to_owned(), unit, value: Series::default(), peer: Series::default(), bar }
    }

    fn push(&mut self, value: f64, peer: f64) {
        self.value.push(value);
        self.peer.push(peer);
    }

    fn ratio(&self) -> f64 {
        self.value.median() / self.peer.median()
    }

    fn is_met(&self) -> bool {
        self.bar.is_none_or(|bar| self.ratio() >= bar)
    }

    fn line(&self) -> String {
        let (bar, verdict) = match self.bar {
            Some(bar) => (format!("at least {bar}"), if self.is_met() { "met" } else { "**missed**" }),
            None => (String::new(), ""),
        };
        let (value, peer) = (self.value.shown(1), self.peer.shown(1));
        format!(
            "| {}, {} | {value} | {peer} | {:.3} | {bar} | {verdict} |",
            self.what,
            self.unit,
            self.ratio()
        )
    }

    fn json(&self) -> Value {
        json!({"id": self.id, "what": self.what, "value": self.value.median(), "unit": self.unit,
               "peer": self.peer.median(), "ratio": self.ratio(), "bar": self.bar, "ok": self.is_met(),
               "spread": self.value.values(), "peer_spread": self.peer.values()})
    }
}

fn main() {
    let options = options();
    let does = |part: &str| options.only.as_deref().is_none_or(|only| only == part);
    let mut rows = Vec::new();
    if does("sequential") {
        rows.extend(sequential(&options));
    }
    if does("rebuild") {
        rows.extend(rebuild(&options));
    }
    println!(
        "{DONORS} donors, links of {RATE}; medians (least-most) of {} rounds for the sequential ones.\n",
        options.rounds
    );
    println!("| | cheetah | beside | ratio | bar | |\n|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{}", row.line()));
    let report =
        json!({"donors": DONORS, "rate": RATE, "rows": rows.iter().map(Row::json).collect::<Vec<_>>()});
    println!("\nWritten to {}", figures::write_report("repair/results.json", &report).display());
}

/// Writes, reads, and reads without one donor, in each round on fresh hosts, iperf3 first.
fn sequential(options: &Options) -> Vec<Row> {
    let mut rows = vec![
        Row::new(
            "write_export",
            "parity:4+1 sequential write, export; beside: iperf3 x 4/5",
            "Mbit/s",
            Some(0.95),
        ),
        Row::new(
            "write_file",
            "parity:4+1 sequential write, file; beside: iperf3 x 4/5",
            "Mbit/s",
            Some(0.95),
        ),
        Row::new(
            "write_small",
            "the same in requests of 64 KiB, 16 under way, export; beside: iperf3 x 4/5",
            "Mbit/s",
            Some(0.9),
        ),
        Row::new("read_export", "healthy sequential read, export; beside: iperf3", "Mbit/s", None),
        Row::new("read_file", "healthy sequential read, file; beside: iperf3", "Mbit/s", None),
        Row::new("degraded_export", "degraded sequential read, export; beside: healthy", "Mbit/s", Some(0.8)),
        Row::new("degraded_file", "degraded sequential read, file; beside: healthy", "Mbit/s", Some(0.8)),
        Row::new(
            "write_cpu",
            "processor time of the client for a write, export; beside: a read",
            "ms/GiB",
            None,
        ),
    ];
    for round in 0..options.rounds {
        let lan = Arc::new(Lan::new(DONORS, RATE));
        let in_line = rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, IPERF_SECONDS);
        let out_line = rivals::iperf3_between(&lan, Node::Client, Node::Donor(1), IPERF_SECONDS) * 4.0 / 5.0;
        let mut pool = Pool::with(State::Memory, Some(lan.clone()));
        pool.donate_everywhere(DONORS, "1G");
        pool.ok(["create", VOLUME, &format!("{}M", options.mib), "--redundancy", "parity:4+1"]);
        let noise = noise(&pool, options.mib);
        let mut copier = Copier { lan: &lan, mib: options.mib, cpu_ms_per_gib: 0.0 };

        let file = pool.attach_fuse(VOLUME, &[]).path;
        let file_write = copier.dd(&pool, &noise, &file, "oflag=direct");
        let file_read = copier.dd(&pool, &file, Path::new("/dev/null"), "iflag=direct");
        pool.detach(VOLUME);
        let uri = pool.attach_export_unix(VOLUME, &[]).uri;
        let noise = noise.display().to_string();
        let small = ["--connections=1", "--requests=16", "--request-size=65536"];
        let small_write = copier.nbdcopy(&pool, &noise, &uri, &small);
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
        let values = [
            (export_write, out_line),
            (file_write, out_line),
            (small_write, out_line),
            (export_read, in_line),
            (file_read, in_line),
            (export_degraded, export_read),
            (file_degraded, file_read),
            (write_cpu, read_cpu),
        ];
        rows.iter_mut().zip(values).for_each(|(row, (value, peer))| row.push(value, peer));
        eprintln!("sequential round {round}: {values:.0?}");
    }
    rows
}

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

/// What a moment of the rebuilding looks like.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    at_ms: u64,
    filled: u64,
    total: u64,
    sent: u64,
    received: u64,
}

impl Look {
    /// At the next moment at which the client has told how far it is, which it does every two seconds.
    fn at_next_report(pool: &Pool, lan: &Lan) -> Self {
        let before = Look::now(pool, lan);
        wait::for_some("progress of the rebuilding", wait::SOON, || {
            Some(Look::now(pool, lan)).filter(|now| now.filled > before.filled)
        })
    }

    fn now(pool: &Pool, lan: &Lan) -> Self {
        let report = pool.volume_status(VOLUME)["attachments"][0]["report"].clone();
        let number = |name: &str| report[name].as_u64().unwrap_or(0);
        let (sent, received) = lan.bytes_moved(Node::Client);
        let (filled, total) = (number("fill_bytes_done"), number("fill_bytes_total"));
        Look { at: Instant::now(), at_ms: fio::now_ms(), filled, total, sent, received }
    }

    /// MB/s since: filled, sent, received.
    fn since(&self, before: &Look) -> [f64; 3] {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        [(self.filled, before.filled), (self.sent, before.sent), (self.received, before.received)]
            .map(|(now, then)| now.saturating_sub(then) as f64 / 1e6 / seconds)
    }
}

fn rebuild(options: &Options) -> Vec<Row> {
    let lan = Arc::new(Lan::new(DONORS, RATE));
    // What a link carries, in payload and in what its counter counts.
    let (sent, received) = lan.bytes_moved(Node::Client);
    let in_mbit = rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, IPERF_SECONDS);
    let out_mbit = rivals::iperf3_between(&lan, Node::Client, Node::Donor(1), IPERF_SECONDS);
    let (in_line, out_line) = (in_mbit / 8.0, out_mbit / 8.0);
    let (sent, received) = {
        let now = lan.bytes_moved(Node::Client);
        (now.0 - sent, now.1 - received)
    };
    let framing = (sent + received) as f64 / ((in_line + out_line) * 1e6 * f64::from(IPERF_SECONDS));

    let mut pool = Pool::with(State::Memory, Some(lan.clone()));
    pool.donate_everywhere(DONORS, &format!("{}M", (options.groups + 8) * EXTENT_MIB));
    let mib = options.groups * DATA * EXTENT_MIB;
    pool.ok(["create", VOLUME, &format!("{mib}M"), "--redundancy", &format!("parity:{DATA}+1")]);
    let file = pool.attach_fuse(VOLUME, &[]).path;
    let begun = Instant::now();
    fill(&file, mib);
    let lap = |what: &str| eprintln!("{:6.1} s: {what}", begun.elapsed().as_secs_f64());
    lap("written");
    let still = Region { offset: HAMMERED_MIB << 20, bytes: (mib - HAMMERED_MIB) << 20 };
    let hash_before = hash(&file, still);
    lap("hashed");

    let target = Target::File(file.clone());
    let fio = Fio { lan: Some(&lan), target: &target, scratch: pool.scratch() };
    let region = Region { offset: 0, bytes: HAMMERED_MIB << 20 };
    // It ends by itself only when the rebuilding never begins.
    let seconds = BEFORE_SECONDS + options.during + 60;
    let writes =
        Reads { region, block_bytes: BLOCK_BYTES, depth: DEPTH, seconds, bytes_per_second: None, seed: 7 };
    let running = fio.hammer(&writes);
    std::thread::sleep(Duration::from_secs(BEFORE_SECONDS));
    let victim = "host-2";
    let held = held_extents(&pool, victim);
    let killed_ms = fio::now_ms();
    pool.donor(victim).kill();
    wait::until("the beginning of the rebuilding", wait::SOON, || Look::now(&pool, &lan).filled > 0);
    std::thread::sleep(Duration::from_secs(SETTLE_SECONDS));
    let first = Look::at_next_report(&pool, &lan);
    std::thread::sleep(Duration::from_secs(options.during));
    let last = Look::at_next_report(&pool, &lan);
    lap(&format!("rebuilt {} of {} MiB beside fio", last.filled >> 20, last.total >> 20));
    let ended = running.finish();
    assert!(ended.good(), "fio failed while a donor was rebuilt: {}", ended.complaint);

    let alone = Look::at_next_report(&pool, &lan);
    let mut end = alone;
    wait::until("the end of the rebuilding", REPAIR_LIMIT, || {
        let now = Look::now(&pool, &lan);
        if now.filled > end.filled {
            end = now;
        }
        pool.volume_status(VOLUME)["health"] == "whole"
    });
    lap("whole");
    let hash_rebuilt = hash(&file, still);
    assert!(hash_rebuilt == hash_before, "the volume reads otherwise than before the donor was killed");
    let hammered = hash(&file, region);
    lap("hashed again: the same");
    pool.donor("host-4").kill();
    let hash_degraded = hash(&file, still);
    assert!(hash_degraded == hash_before, "what was rebuilt is not what was lost");
    assert!(
        hash(&file, region) == hammered,
        "what fio wrote during the rebuild lies differently on what was rebuilt"
    );
    lap("hashed without another donor: the same");

    let throughput = |from: u64, to: u64| {
        let count = ended.completions.iter().filter(|time| (from..to).contains(*time)).count();
        count as f64 * BLOCK_BYTES as f64 / 1e6 / ((to - from) as f64 / 1e3)
    };
    let before = throughput(killed_ms - (BEFORE_SECONDS - SETTLE_SECONDS) * 1000, killed_ms);
    let during = throughput(first.at_ms, last.at_ms);
    let [rate, sent, received] = last.since(&first);
    // Each byte that is rebuilt was DATA bytes on their way in, and is one on its way out; the rest is fio's.
    let left_in = (in_line - (received / framing - rate * DATA as f64)) / DATA as f64;
    let left_out = out_line - (sent / framing - rate);
    let [rate_alone, _, _] = end.since(&alone);
    eprintln!(
        "held {held} extents; before {before:.1}, during {during:.1} MB/s; in {received:.1} out {sent:.1} MB/s \
        on the link of {:.1}, {:.1}; rate {rate:.1}, left in {left_in:.1} out {left_out:.1}; framing {framing:.3}",
        in_line * framing,
        out_line * framing
    );
    let mut rows = vec![
        Row::new("foreground", "fio's throughput during the rebuild; beside: before", "MB/s", Some(0.7)),
        Row::new("rebuild", "rebuild beside fio; beside: what it leaves of the links", "MB/s", Some(0.8)),
        Row::new(
            "rebuild_idle",
            "rebuild with nobody else about; beside: what the links allow",
            "MB/s",
            Some(0.8),
        ),
    ];
    rows[0].push(during, before);
    rows[1].push(rate, left_in.min(left_out));
    rows[2].push(rate_alone, (in_line / DATA as f64).min(out_line));
    rows
}

/// How many extents of the volume a donor holds.
fn held_extents(pool: &Pool, donor: &str) -> usize {
    let detail = pool.json(["show", VOLUME]);
    let groups = detail["map"]["groups"].as_array().map_or(0, Vec::len);
    let name = |slot: &Value| {
        let holder = slot["held"]["donor"].as_str()?;
        detail["map"]["routes"][holder]["name"].as_str()
    };
    (0..groups)
        .filter_map(|group| detail["map"]["groups"][group]["slots"].as_array())
        .map(|slots| slots.iter().filter(|slot| name(slot) == Some(donor)).count())
        .sum()
}

fn noise(pool: &Pool, mib: u64) -> PathBuf {
    let noise = pool.scratch().join("noise");
    let mut command = tools::command("dd");
    command.arg("if=/dev/urandom").arg(format!("of={}", noise.display())).arg(format!("count={mib}"));
    tools::expect_success(command.args(["bs=1M", "status=none"]));
    noise
}

/// Random bytes all over the volume, several runs of it at once.
fn fill(file: &Path, mib: u64) {
    const RUNS: u64 = 4;
    let each = mib / RUNS;
    let runs: Vec<Child> = (0..RUNS)
        .map(|run| {
            let mut command = tools::command("dd");
            command.arg("if=/dev/urandom").arg(format!("of={}", file.display()));
            command.args(["bs=1M", "status=none", "conv=notrunc", "oflag=direct", "iflag=fullblock"]);
            command.arg(format!("seek={}", run * each)).arg(format!("count={each}"));
            command.spawn().expect("dd starts")
        })
        .collect();
    for mut run in runs {
        assert!(run.wait().is_ok_and(|status| status.success()), "cannot fill {}", file.display());
    }
}

/// SHA-256 of quarters of the region, read at once.
fn hash(file: &Path, region: Region) -> Vec<String> {
    const QUARTERS: u64 = 4;
    let mib = (region.bytes / QUARTERS) >> 20;
    let runs: Vec<Child> = (0..QUARTERS)
        .map(|quarter| {
            let mut command = tools::command("sh");
            let skip = (region.offset >> 20) + quarter * mib;
            let script =
                format!("dd if=\"$0\" bs=1M iflag=direct status=none skip={skip} count={mib} | sha256sum");
            command.args(["-c", &script]).arg(file).stdout(Stdio::piped()).spawn().expect("sh starts")
        })
        .collect();
    let read = |run: Child| {
        let output = run.wait_with_output().expect("its output");
        let hash = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && hash.len() > 64, "cannot read {}", file.display());
        hash
    };
    runs.into_iter().map(read).collect()
}

fn options() -> Options {
    let mut options = Options { rounds: 3, mib: 512, groups: 40, during: 45, only: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => options.rounds = value().parse().expect("a number of rounds"),
            "--mib" => options.mib = value().parse().expect("a number of MiB"),
            "--groups" => options.groups = value().parse().expect("a number of groups"),
            "--during" => options.during = value().parse().expect("seconds"),
            "--only" => options.only = Some(value()),
            _ => panic!(
                "usage: bench_repair [--only sequential|rebuild] [--rounds N] [--mib N] [--groups N] [--during SECONDS]"
            ),
        }
    }
    options
}
