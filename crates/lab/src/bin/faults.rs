//! Regenerates the fault table of docs/FIGURES.md: `make faults` (root). Five donor hosts, a coordinator's
//! and a client's host in network namespaces, links of 1 Gbit/s; fio writes and checks through the export and
//! through FUSE while donors fail.
//!
//! What can be said, as variables of the environment or of make: `REPEATS=10` how often each cell is run;
//! `ONLY=mirror:2/kill/export` which cells (any part left out or `*`, several with commas; `quorum` is the
//! rival, `corrupt` the link that flips bits); `SEED=` the order, victims and moments of an earlier run;
//! `RESUME=1` keeps the runs that are in `results.json` and does only what is missing; `MINUTES=` ends in
//! order after so long (then go on with `RESUME=1`).
//!
//! Results go to `faults/` in the build directory, after every run: `results.json`, `table.md`,
//! `silences.svg`, and the logs of what missed the bar below `failed/`. Exit 1 when a run has a data error or
//! too long a silence, 3 when not all runs were made. The runs are made by a second process that outlives an
//! interrupt of the first, to clean up and to print the table.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cheetah_lab::dice::Dice;
use cheetah_lab::faults::report::Report;
use cheetah_lab::faults::trial::Hosts;
use cheetah_lab::faults::{Case, Outcome, RATE, Subject, corrupt, quorum, volume};

const WORKER: &str = "CHEETAH_FAULTS_WORKER";
/// What a run takes, as long as none was made.
const RUN_GUESS: Duration = Duration::from_secs(9);
const CORRUPT_LIMIT: Duration = Duration::from_secs(600);
const MISSED: u8 = 1;
const CUT_SHORT: u8 = 3;

fn main() -> ExitCode {
    if std::env::var_os(WORKER).is_some() { work() } else { guard() }
}

/// Starts the worker in a process group of its own, which an interrupt from the terminal does not reach; its
/// standard input ends with this process, however that ends.
fn guard() -> ExitCode {
    let program = std::env::current_exe().expect("the path of this program");
    let mut worker = Command::new(program);
    worker.env(WORKER, "1").process_group(0).stdin(Stdio::piped());
    let mut worker = worker.spawn().expect("a worker");
    let input = worker.stdin.take();
    let status = worker.wait().expect("the end of the worker");
    drop(input);
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

/// Set once nobody waits for more runs.
fn interrupt() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    std::thread::spawn(move || {
        // Nothing is ever sent: it returns when the other end is closed.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Ordering::Relaxed);
    });
    flag
}

fn work() -> ExitCode {
    let asked = Asked::from_environment();
    let interrupted = interrupt();
    let directory = output_directory();
    let mut report = Report::open(&directory, asked.resume);
    let mut runs = asked.runs(&report);
    println!("seed {}: {} runs, results in {}", asked.seed, runs.len(), directory.display());
    Dice::new(asked.seed).shuffle(&mut runs);
    let start = Instant::now();
    let over =
        || interrupted.load(Ordering::Relaxed) || asked.limit.is_some_and(|limit| start.elapsed() > limit);

    let mut hosts = None;
    let total = runs.len();
    let mut cut_short = false;
    for (index, (case, repeat)) in runs.into_iter().enumerate() {
        cut_short = over();
        if cut_short {
            break;
        }
        let outcome = run(&mut hosts, case, repeat, asked.seed, &directory);
        report.outcomes.push(outcome);
        report.write();
        if let Some(outcome) = report.outcomes.last() {
            say(outcome, index + 1, total, start.elapsed());
        }
    }
    if asked.corrupt && report.corruption.is_none() && !over() {
        println!("a link that flips bits, until {} flips are met ...", corrupt::FLIPS_WANTED);
        hosts = None;
        let found = catch_unwind(|| {
            let hosts = Hosts::new(asked.seed, corrupt::RATE);
            corrupt::run(&hosts, corrupt::FLIPS_WANTED, CORRUPT_LIMIT, || interrupted.load(Ordering::Relaxed))
        });
        // A panic said on stderr what went wrong.
        report.corruption = found.unwrap_or_default();
        cut_short |= report.corruption.is_none();
        report.write();
    }
    drop(hosts);
    conclude(&report, &directory, cut_short)
}

fn conclude(report: &Report, directory: &Path, cut_short: bool) -> ExitCode {
    report.write();
    println!("\n{}", report.table());
    println!("Written to {}", directory.display());
    let missed = report.missed();
    for line in &missed {
        println!("MISSED {line}");
    }
    if cut_short {
        println!("Not all runs were made: RESUME=1 makes the others.");
    }
    match (missed.is_empty(), cut_short) {
        (false, _) => ExitCode::from(MISSED),
        (true, true) => ExitCode::from(CUT_SHORT),
        (true, false) => ExitCode::SUCCESS,
    }
}

fn run(hosts: &mut Option<Hosts>, case: Case, repeat: u32, seed: u64, directory: &Path) -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome::new(case, repeat, seed);
    let mut dice = case.dice(seed, repeat);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let hosts = hosts.get_or_insert_with(|| Hosts::new(seed, RATE));
        let keep = directory.join("failed");
        match case.subject {
            Subject::Volume(redundancy) => {
                volume::run(hosts, case, redundancy, &mut dice, &mut outcome, &keep);
            }
            Subject::Quorum => quorum::run(hosts, case, &mut dice, &mut outcome),
        }
    }));
    if let Err(panic) = ended {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        outcome.fail(said.trim().chars().take(400).collect::<String>());
        // Whatever state the hosts are in: the next run gets others.
        *hosts = None;
    }
    outcome.took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    outcome
}

fn say(outcome: &Outcome, done: usize, total: usize, elapsed: Duration) {
    let each = if done == 0 { RUN_GUESS } else { elapsed / u32::try_from(done).unwrap_or(u32::MAX) };
    let left = each * u32::try_from(total - done).unwrap_or(u32::MAX);
    let silence = outcome.longest_silence_ms.map_or("-".to_owned(), |silence| format!("{silence} ms"));
    let verdict = outcome.missed().map_or_else(String::new, |missed| format!("  MISSED {missed}"));
    let notes = match verdict.is_empty() && !outcome.notes.is_empty() {
        true => format!("  ({})", outcome.notes.join("; ")),
        false => String::new(),
    };
    println!(
        "{:3}% {}:{:02} left  {:26} {:>9}{verdict}{notes}",
        done * 100 / total.max(1),
        left.as_secs() / 60,
        left.as_secs() % 60,
        outcome.case.to_string(),
        silence,
    );
}

/// What the caller asked for.
struct Asked {
    repeats: u32,
    only: String,
    seed: u64,
    resume: bool,
    limit: Option<Duration>,
    corrupt: bool,
}

impl Asked {
    fn from_environment() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let number = |name: &str| {
            let said = text(name)?;
            Some(said.parse::<u64>().unwrap_or_else(|_| panic!("{name}={said} is not a number")))
        };
        let only = text("ONLY").unwrap_or_default();
        let corrupt = only.is_empty() || only.split(',').any(|filter| filter.trim() == "corrupt");
        Self {
            repeats: number("REPEATS").and_then(|repeats| u32::try_from(repeats).ok()).unwrap_or(10),
            only,
            seed: number("SEED").unwrap_or_else(|| cheetah_lab::fio::now_ms() % 1_000_000),
            resume: text("RESUME").is_some(),
            limit: number("MINUTES").map(|minutes| Duration::from_secs(60 * minutes)),
            corrupt,
        }
    }

    fn runs(&self, report: &Report) -> Vec<(Case, u32)> {
        let cases = Case::all().into_iter().filter(|case| case.is_wanted(&self.only));
        let all = cases.flat_map(|case| (0..self.repeats).map(move |repeat| (case, repeat)));
        all.filter(|(case, repeat)| !report.has(*case, *repeat)).collect()
    }
}

fn output_directory() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let target = program.parent().and_then(Path::parent).expect("a build directory");
    target.join("faults")
}
