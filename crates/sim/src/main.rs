//! `cheetah-sim`: runs seeds of the simulator and says what happened.
//!
//! Owns: the command line and its clock. Never: anything a seed depends on. Exit code 1 when a seed failed, 2
//! when the command is wrong.
#![allow(clippy::print_stdout)]

use cheetah_sim::{Bug, Fault, Layout, Setup, Stats, Swarm, run, swarm, walk};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const USAGE: &str = "\
Runs Cheetah's volume, donor and coordinator machines in a virtual world.

  cheetah-sim --seeds COUNT [--start SEED] [--jobs N] [WORLD]   many seeds, until one fails
  cheetah-sim --seed SEED [--trace] [WORLD]                     one seed
  cheetah-sim --bugs SAMPLES [--bug NAME]                       how soon planted bugs are found, a table
  cheetah-sim --walk PATHS [--layout K+M] [--bug NAME]          every order of a small world's events
  cheetah-sim --read-ahead                                      rules of read-ahead compared, a table

WORLD: [--beyond] [--only KIND] [--layout K+M] [--bug NAME]

--beyond lets more go wrong at once than redundancy covers.
--only lets nothing else go wrong, and that often: end-together, stop-coordinator, stranger, kill-two,
  clock, end-load, rot, opened, power.
--layout K+M or K+M+SPARES gives each volume this redundancy, and that many donors.
--bug plants a mistake in the simulator's drivers, which the oracle has to find:";

/// Seeds in which a planted bug has to be found, and between the first seeds of two samples.
const BUG_SEEDS: u64 = 1_000;

enum Mode {
    One { seed: u64, trace: bool },
    Many { start: u64, count: u64, jobs: u64 },
    Bugs { samples: u64 },
    Walk { paths: u64, seed: u64 },
    ReadAhead,
}

fn parse() -> Result<(Mode, Setup), String> {
    let (mut seed, mut count, mut start, mut jobs, mut trace) = (None, 1000, 0, 1, false);
    let (mut samples, mut paths) = (None, None);
    let mut setup = Setup::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--trace" {
            trace = true;
            continue;
        }
        if argument == "--read-ahead" {
            return Ok((Mode::ReadAhead, setup));
        }
        if argument == "--beyond" {
            setup.beyond = true;
            continue;
        }
        if !["--seed", "--seeds", "--start", "--jobs", "--only", "--layout", "--bug", "--bugs", "--walk"]
            .contains(&argument.as_str())
        {
            return Err(format!("'{argument}' is not an option"));
        }
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{argument} {value}: not a number"));
        match argument.as_str() {
            "--seed" => seed = Some(number()?),
            "--seeds" => count = number()?,
            "--walk" => paths = Some(number()?),
            "--bugs" => samples = Some(number()?.max(1)),
            "--start" => start = number()?,
            "--jobs" => jobs = number()?.clamp(1, 64),
            "--only" => {
                setup.only = Some(Fault::named(&value).ok_or_else(|| format!("there is no kind '{value}'"))?);
            }
            "--layout" => {
                let layout = Layout::named(&value).ok_or_else(|| format!("'{value}' is no layout"))?;
                setup.layout = Some(layout);
            }
            _ => setup.bug = Some(Bug::named(&value).ok_or_else(|| format!("there is no bug '{value}'"))?),
        }
    }
    if let Some(samples) = samples {
        return Ok((Mode::Bugs { samples }, setup));
    }
    if let Some(paths) = paths {
        return Ok((Mode::Walk { paths, seed: start }, setup));
    }
    let mode = seed.map_or(Mode::Many { start, count, jobs }, |seed| Mode::One { seed, trace });
    Ok((mode, setup))
}

fn main() -> ExitCode {
    let (mode, setup) = match parse() {
        Ok(parsed) => parsed,
        Err(what) => {
            let bugs: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
            println!("{what}\n\n{USAGE}\n  {}", bugs.join(", "));
            return ExitCode::from(2);
        }
    };
    // A machine's assertion is reported as the seed's failure.
    std::panic::set_hook(Box::new(|_| {}));
    match mode {
        Mode::One { seed, trace } => one(seed, trace, setup),
        Mode::Many { start, count, jobs } => many(start, count, jobs, setup),
        Mode::Bugs { samples } => {
            bugs(samples, setup.bug);
            ExitCode::SUCCESS
        }
        Mode::Walk { paths, seed } => walk_all(paths, seed, setup),
        Mode::ReadAhead => {
            print!("{}", cheetah_sim::read_ahead::table());
            ExitCode::SUCCESS
        }
    }
}

fn walk_all(paths_max: u64, seed: u64, setup: Setup) -> ExitCode {
    let started = Instant::now();
    let layout = setup.layout.unwrap_or(Layout { data: 2, parity: 1, spares: 1 });
    let mut shown = Instant::now();
    let setup = walk::Setup { layout, lives: walk::LIVES, paths_max, seed, bug: setup.bug };
    let walked = walk::walk(setup, |walked| {
        if shown.elapsed() >= Duration::from_secs(5) {
            shown = Instant::now();
            let rate = walked.paths as f64 / started.elapsed().as_secs_f64();
            println!("{} paths from {} beginnings, {rate:.0} paths/s", walked.paths, walked.legacies);
        }
    });
    let walk::Walked { paths, events, legacies, is_complete, failure } = walked;
    println!("{paths} paths from {legacies} beginnings, {events} events, in {:.0?}", started.elapsed());
    match failure {
        Some(what) => {
            println!("FAILED {what}");
            ExitCode::FAILURE
        }
        None => {
            println!(
                "all that was walked holds; {}",
                if is_complete { "there is no more" } else { "there is more" }
            );
            ExitCode::SUCCESS
        }
    }
}

fn one(seed: u64, trace: bool, setup: Setup) -> ExitCode {
    let started = Instant::now();
    let trace: Option<fn(&str)> = if trace { Some(|line| println!("{line}")) } else { None };
    let outcome = run(seed, setup, trace);
    totals(&outcome.stats, started.elapsed());
    println!("seed {seed}: digest {:016x}", outcome.digest);
    report(outcome.failure.map(|what| (seed, what)), setup)
}

fn many(start: u64, count: u64, jobs: u64, setup: Setup) -> ExitCode {
    let (started, done) = (Instant::now(), AtomicU64::new(0));
    let share = count.div_ceil(jobs);
    let swarms: Vec<Swarm> = std::thread::scope(|scope| {
        let part = |job: u64| {
            let (first, end) = ((job * share).min(count), ((job + 1) * share).min(count));
            let done = &done;
            scope.spawn(move || {
                let mut shown = Instant::now();
                swarm(start + first, end - first, setup, |_| {
                    let seeds = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if job == 0 && shown.elapsed() >= Duration::from_secs(5) {
                        shown = Instant::now();
                        let rate = seeds as f64 / started.elapsed().as_secs_f64();
                        println!("{seeds} of {count} seeds, {rate:.0} seeds/s");
                    }
                })
            })
        };
        let threads: Vec<_> = (0..jobs).map(part).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut total = Swarm::default();
    swarms.into_iter().for_each(|swarm| total.add(swarm));
    totals(&total.stats, started.elapsed());
    println!("{} seeds from {start} on: digest {:016x}", total.seeds, total.digest);
    report(total.failed, setup)
}

/// Each sample begins at seeds of its own.
fn bugs(samples: u64, only: Option<Bug>) {
    println!("| planted bug | runs | found in | seeds until then: median | 95th percentile |");
    println!("|---|---|---|---|---|");
    for bug in Bug::ALL.into_iter().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let setup = bug.runs();
        let sample = |nth: u64| swarm(nth * BUG_SEEDS, BUG_SEEDS, setup, |_| ());
        let taken = (0..samples).map(sample).filter(|swarm| swarm.failed.is_some());
        let mut seeds: Vec<u64> = taken.map(|swarm| swarm.seeds).collect();
        seeds.sort_unstable();
        // Of so few the 95th percentile is the next larger one that was seen.
        let at = |percent: usize| match seeds.len() {
            0 => "-".to_owned(),
            count => seeds[(count * percent).div_ceil(100).max(1) - 1].to_string(),
        };
        let kind = setup.only.map_or("ordinary", Fault::name);
        println!("| {} | {kind} | {} of {samples} | {} | {} |", bug.name(), seeds.len(), at(50), at(95));
    }
}

fn totals(stats: &Stats, took: Duration) {
    for (what, count) in stats.counts().chain(stats.alone()) {
        println!("{count:>12}  {what}");
    }
    println!("{:>12}  requests", stats.requests);
    println!("{:>12}  events", stats.events);
    println!(
        "{:>12}  seconds of virtual time in {:.1} s",
        stats.virtual_ns / 1_000_000_000,
        took.as_secs_f64()
    );
}

fn report(failed: Option<(u64, String)>, setup: Setup) -> ExitCode {
    let Some((seed, what)) = failed else {
        println!("all promises held");
        return ExitCode::SUCCESS;
    };
    let mut planted = setup.bug.map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
    planted.push_str(&setup.only.map_or(String::new(), |fault| format!(" --only {}", fault.name())));
    planted.push_str(&setup.layout.map_or(String::new(), |layout| format!(" --layout {layout}")));
    planted.push_str(if setup.beyond { " --beyond" } else { "" });
    println!("\nFAILED seed {seed}: {what}");
    println!("replay: cargo run --release -p cheetah-sim -- --seed {seed} --trace{planted}");
    ExitCode::FAILURE
}
