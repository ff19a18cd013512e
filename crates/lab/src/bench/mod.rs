//! The benchmark: Cheetah beside its peers and the physical limits, in one table with what is demanded of
//! each figure.
//!
//! Owns: the parts, the command line and how the run ends. Never: a figure that was not measured in this run
//! or an earlier one of this machine, a ratio that noise made.
//! Invariant: every ratio is of two sides that took turns in the same rounds, with the same congestion
//! control, in a network namespace of the benchmark's own. Called by: `bin/bench.rs`. Parts: `outside` (the
//! process that stays outside), `part` (what one measures with), `row` (judges), `rounds` (takes turns),
//! `worker` (makes loads, by a `child`), `results` (writes); the table's parts `local` (with `contenders`
//! and `latency`), `front`, `lan`, `far`, `seeds`, `scale` (with `simulated`), `ahead`, `thesis`, and those
//! that are measured by name, `codes`, `parity`, `disks`, `repair`, `owner`, `remote`, `verify`, `postmark`
//! (with `disk_model`); their loads `client`, `direct`, `file`, `libnbd`, `ping`; `machine`, `quiet` and
//! `share` (what it runs on), `progress` and `plot`. Tests: in each of them.

mod ahead;
mod child;
mod client;
mod codes;
mod contenders;
mod direct;
mod disk_model;
mod disks;
mod far;
mod file;
mod front;
mod lan;
mod latency;
mod libnbd;
mod local;
mod machine;
mod outside;
mod owner;
mod parity;
mod part;
mod ping;
mod plot;
mod postmark;
mod progress;
mod quiet;
mod remote;
mod repair;
mod results;
mod rounds;
mod row;
mod scale;
mod seeds;
mod share;
mod simulated;
mod thesis;
mod verify;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use crate::figures;
use part::{Bench, Part};
use progress::Progress;
use quiet::Quiet;
use results::Results;
use rounds::Probe;
use row::Row;
use share::Share;

/// A bar was missed.
const MISSED: u8 = 1;
/// The command line makes no sense.
const USAGE: u8 = 2;
/// No bar was missed, but the machine was too noisy to say of each that it was met.
const TOO_NOISY: u8 = 3;

/// Measured where none is named.
const PARTS: [Part; 8] = [
    Part::new("local", local::SECONDS, local::SETS, local::run),
    Part::new("front", front::SECONDS, front::SETS, front::run),
    Part::new("lan", lan::SECONDS, lan::SETS, lan::run),
    Part::new("far", far::SECONDS, far::SETS, far::run),
    Part::new("ahead", ahead::SECONDS, ahead::SETS, ahead::run),
    Part::new("thesis", thesis::SECONDS, thesis::SETS, thesis::run),
    Part::new("scale", scale::SECONDS, scale::SETS, scale::run),
    Part::new("seeds", seeds::SECONDS, seeds::SETS, seeds::run),
];

/// Measured where they are named: they take many gigabytes of memory, are about a library alone, or take long
/// and are about one command.
const BY_NAME: [Part; 8] = [
    Part::new("codes", codes::SECONDS, codes::SETS, codes::run).without_network(),
    Part::new("parity", parity::SECONDS, parity::SETS, parity::run),
    Part::new("disks", disks::SECONDS, disks::SETS, disks::run),
    Part::new("remote", remote::SECONDS, remote::SETS, remote::run),
    Part::new("repair", repair::SECONDS, repair::SETS, repair::run),
    Part::new("verify", verify::SECONDS, verify::SETS, verify::run),
    Part::new("postmark", postmark::SECONDS, postmark::SETS, postmark::run),
    Part::new("owner", owner::SECONDS, owner::SETS, owner::run),
];

struct Options {
    parts: Vec<&'static Part>,
    json: bool,
    quick: bool,
    write_back: bool,
}

/// The program.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind @ ..] = arguments.as_slice()
        && first == worker::WORKER
    {
        child::serve(kind);
        return ExitCode::SUCCESS;
    }
    let options = match options(&arguments) {
        Ok(options) => options,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(USAGE);
        }
    };
    match outside::congestion_control() {
        Some(congestion_control) => measure(&options, &congestion_control),
        None if options.parts.iter().any(|part| part.needs_network) => outside::run(),
        None => measure(&options, &machine::congestion_control()),
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let set = |name: &str| std::env::var(name).is_ok_and(|set| !set.is_empty() && set != "0");
    let (quick, write_back) = (set("QUICK"), set("WRITE_BACK"));
    let mut options = Options { parts: Vec::new(), json: false, quick, write_back };
    for argument in arguments {
        match (argument.as_str(), PARTS.iter().chain(&BY_NAME).find(|part| part.name == argument)) {
            (_, Some(part)) => options.parts.push(part),
            ("--json", _) => options.json = true,
            ("--quick", _) => options.quick = true,
            ("--write-back", _) => options.write_back = true,
            _ => return Err(usage()),
        }
    }
    if options.parts.is_empty() {
        options.parts = PARTS.iter().collect();
    }
    Ok(options)
}

fn usage() -> String {
    let names = |parts: &[Part]| parts.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    format!(
        "usage: bench [--quick] [--json] [--write-back] [PART]...\nwhere none is named: {}; others: {}",
        names(&PARTS),
        names(&BY_NAME)
    )
}

#[allow(clippy::print_stdout, reason = "the table is the program's output")]
fn measure(options: &Options, congestion_control: &str) -> ExitCode {
    let (rounds, time, patience) = match options.quick {
        true => (3, Duration::from_millis(300), Duration::ZERO),
        false => (5, Duration::from_millis(500), Duration::from_secs(60)),
    };
    figures::need_room_for_reports();
    let share = Share::take();
    let scale = if options.quick { 0.4 } else { 1.0 };
    let mut results = Results::open(machine::describe(&share.described(), congestion_control));
    let mut bench = Bench {
        quick: options.quick,
        write_back: options.write_back,
        rounds,
        time,
        probe: Probe::new(),
        quiet: Quiet::new(Duration::ZERO),
        progress: Progress::new(options.parts.iter().map(|part| part.seconds * scale)),
        rows: Vec::new(),
        plots: Vec::new(),
    };
    let mut rows = Vec::new();
    let mut path = None;
    for part in &options.parts {
        bench.progress.part(part.name, part.seconds * scale, part.sets);
        bench.quiet = Quiet::new(patience);
        (part.run)(&mut bench);
        results.merge(part.name, bench.rows.clone());
        bench.plots.drain(..).for_each(|plot| results.plot(plot));
        // After each part, so that what was measured is kept when a later one fails.
        path = Some(results.write());
        rows.append(&mut bench.rows);
    }
    bench.progress.end();
    match options.json {
        true => println!("{:#}", results.to_json()),
        false => println!("{}", results.table()),
    }
    if let Some(path) = path {
        eprintln!("written to {} and beside it", path.display());
    }
    verdict(&rows)
}

fn verdict(rows: &[Row]) -> ExitCode {
    for row in rows.iter().filter(|row| row.ok == Some(false)) {
        eprintln!("missed: {}: {}", row.id, row.line());
    }
    let undecided: Vec<&str> =
        rows.iter().filter(|row| row.is_undecided()).map(|row| row.id.as_str()).collect();
    if !undecided.is_empty() {
        eprintln!(
            "too noisy for a verdict: {}\nMeasure again when nothing else runs on this machine (a load average near \
             zero, no other virtual machine on its cores); a part can be measured by itself.",
            undecided.join(", ")
        );
    }
    match (rows.iter().any(|row| row.ok == Some(false)), undecided.is_empty()) {
        (true, _) => ExitCode::from(MISSED),
        (false, false) => ExitCode::from(TOO_NOISY),
        (false, true) => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Series;
    use row::{Bar, Figure};

    fn row(value: [f64; 3], bar: f64) -> Row {
        let value: Series = value.into_iter().collect();
        let (what, bar) = ("a".to_owned(), Some(Bar::RatioAtLeast(bar)));
        let peer: Series = [1.0; 3].into_iter().collect();
        Figure { peer: Some(("b", &peer)), bar, ..Figure::new("a", what, "s", &value) }.row()
    }

    #[test]
    fn the_exit_code_tells_met_missed_and_unknown() {
        let (met, missed, noisy) = (row([2.0; 3], 1.0), row([2.0; 3], 3.0), row([1.0, 5.0, 9.0], 1.0));
        let code = |rows: &[&Row]| verdict(&rows.iter().map(|row| (*row).clone()).collect::<Vec<Row>>());
        assert_eq!(code(&[&met]), ExitCode::SUCCESS);
        assert_eq!(code(&[&met, &noisy]), ExitCode::from(TOO_NOISY));
        assert_eq!(code(&[&met, &noisy, &missed]), ExitCode::from(MISSED));
    }

    #[test]
    fn the_command_line_names_parts() {
        let parse =
            |words: &[&str]| options(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>());
        let all = parse(&[]).expect("all parts");
        assert_eq!(all.parts.len(), PARTS.len());
        let some = parse(&["local", "--json"]).expect("a part");
        assert_eq!((some.parts[0].name, some.parts.len(), some.json), ("local", 1, true));
        assert!(parse(&["postmark", "--write-back"]).is_ok_and(|postmark| postmark.write_back));
        let apart = parse(&["codes", "repair", "--quick"]).expect("parts that are measured by name");
        assert!(apart.quick && apart.parts.iter().map(|part| part.needs_network).eq([false, true]));
        assert!(parse(&["moon"]).is_err_and(|usage| usage.contains("local") && usage.contains("codes")));
    }
}
