//! `cheetah-sim`: runs seeds of the simulator and says what happened.
//!
//! Owns: the command line and its clock. Never: anything a seed depends on. Exit code 1 when a seed failed, 2
//! when the command is wrong.
#![allow(clippy::print_stdout)]

use cheetah_sim::{Bug, Stats, Swarm, run, swarm};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
Runs Cheetah's volume, donor and coordinator machines in a virtual world.

  cheetah-sim --seeds COUNT [--start SEED] [--bug NAME]   many seeds, until one fails
  cheetah-sim --seed SEED [--trace] [--bug NAME]          one seed

--bug plants a mistake in the simulator's drivers, which the oracle has to find:
  ignore-sessions, skip-wipe, ack-early, zeros-for-lost, lose-record, answer-before-store";

enum Mode {
    One { seed: u64, trace: bool },
    Many { start: u64, count: u64 },
}

fn parse() -> Result<(Mode, Option<Bug>), String> {
    let (mut seed, mut count, mut start, mut trace, mut bug) = (None, 1000, 0, false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--trace" {
            trace = true;
            continue;
        }
        if !["--seed", "--seeds", "--start", "--bug"].contains(&argument.as_str()) {
            return Err(format!("'{argument}' is not an option"));
        }
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{argument} {value}: not a number"));
        match argument.as_str() {
            "--seed" => seed = Some(number()?),
            "--seeds" => count = number()?,
            "--start" => start = number()?,
            _ => bug = Some(Bug::named(&value).ok_or_else(|| format!("there is no bug '{value}'"))?),
        }
    }
    let mode = seed.map_or(Mode::Many { start, count }, |seed| Mode::One { seed, trace });
    Ok((mode, bug))
}

fn main() -> ExitCode {
    let (mode, bug) = match parse() {
        Ok(parsed) => parsed,
        Err(what) => {
            println!("{what}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A machine's assertion is reported as the seed's failure.
    std::panic::set_hook(Box::new(|_| {}));
    match mode {
        Mode::One { seed, trace } => one(seed, trace, bug),
        Mode::Many { start, count } => many(start, count, bug),
    }
}

fn one(seed: u64, trace: bool, bug: Option<Bug>) -> ExitCode {
    let started = Instant::now();
    let trace: Option<fn(&str)> = if trace { Some(|line| println!("{line}")) } else { None };
    let outcome = run(seed, bug, trace);
    totals(&outcome.stats, started.elapsed());
    println!("seed {seed}: digest {:016x}", outcome.digest);
    report(outcome.failure.map(|what| (seed, what)), bug)
}

fn many(start: u64, count: u64, bug: Option<Bug>) -> ExitCode {
    let (started, mut shown) = (Instant::now(), Instant::now());
    let progress = |so_far: &Swarm| {
        if shown.elapsed() >= Duration::from_secs(5) {
            shown = Instant::now();
            let rate = so_far.seeds as f64 / started.elapsed().as_secs_f64();
            println!(
                "{} of {count} seeds, {} %, {rate:.0} seeds/s",
                so_far.seeds,
                so_far.seeds * 100 / count
            );
        }
    };
    let swarm = swarm(start, count, bug, progress);
    totals(&swarm.stats, started.elapsed());
    println!("{} seeds from {start} on: digest {:016x}", swarm.seeds, swarm.digest);
    report(swarm.failed, bug)
}

fn totals(stats: &Stats, took: Duration) {
    for (what, count) in stats.counts() {
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

fn report(failed: Option<(u64, String)>, bug: Option<Bug>) -> ExitCode {
    let Some((seed, what)) = failed else {
        println!("all promises held");
        return ExitCode::SUCCESS;
    };
    let planted = bug.map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
    println!("\nFAILED seed {seed}: {what}");
    println!("replay: cargo run --release -p cheetah-sim -- --seed {seed} --trace{planted}");
    ExitCode::FAILURE
}
