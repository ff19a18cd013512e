//! The results of the fault runs, kept as they come: `results.json`, the table and the plot, always of all
//! runs so far.
//!
//! Never: a verdict of its own; `Outcome::missed` judges. Invariant: each file is whole at any moment
//! (written beside and renamed), so that an interrupted run leaves what it had.
//! Called by: `bin/faults.rs`. Tests: below.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::faults::corrupt::Corruption;
use crate::faults::{Case, Fault, Front, KILLED_BAR_MS, Outcome, SET_ASIDE_BAR_MS, Subject};
use crate::figures::Series;

/// All that is known so far.
#[derive(Debug)]
pub struct Report {
    directory: PathBuf,
    pub outcomes: Vec<Outcome>,
    pub corruption: Option<Corruption>,
}

impl Report {
    /// A report in this directory: empty, or with the runs that an earlier one left there.
    #[track_caller]
    pub fn open(directory: &Path, resume: bool) -> Self {
        fs::create_dir_all(directory)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", directory.display()));
        let (mut outcomes, mut corruption) = (Vec::new(), None);
        if resume {
            let text = fs::read_to_string(directory.join("results.json")).unwrap_or_default();
            let runs: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
            outcomes = runs.iter().filter_map(Outcome::from_json).collect();
            corruption = runs.iter().find_map(Corruption::from_json);
        }
        Self { directory: directory.to_owned(), outcomes, corruption }
    }

    pub fn has(&self, case: Case, repeat: u32) -> bool {
        self.outcomes.iter().any(|outcome| outcome.case == case && outcome.repeat == repeat)
    }

    /// Writes all three files.
    #[track_caller]
    pub fn write(&self) {
        let mut runs: Vec<Value> = self.outcomes.iter().map(Outcome::to_json).collect();
        runs.extend(self.corruption.as_ref().map(Corruption::to_json));
        self.file("results.json", &serde_json::to_string_pretty(&runs).expect("results are JSON"));
        self.file("table.md", &self.table());
        self.file("silences.svg", &self.plot());
    }

    #[track_caller]
    fn file(&self, name: &str, text: &str) {
        let (path, beside) = (self.directory.join(name), self.directory.join(format!(".{name}")));
        fs::write(&beside, text)
            .and_then(|()| fs::rename(&beside, &path))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }

    fn by_case(&self) -> BTreeMap<Case, Vec<&Outcome>> {
        let mut cells: BTreeMap<Case, Vec<&Outcome>> = BTreeMap::new();
        for outcome in &self.outcomes {
            cells.entry(outcome.case).or_default().push(outcome);
        }
        cells
    }

    /// Every run that missed what is demanded, and what.
    pub fn missed(&self) -> Vec<String> {
        let runs = self.outcomes.iter().filter_map(|outcome| {
            let missed = outcome.missed()?;
            Some(format!("{} repeat {} seed {}: {missed}", outcome.case, outcome.repeat, outcome.seed))
        });
        let corruption = self.corruption.as_ref().and_then(Corruption::missed);
        runs.chain(corruption.map(|missed| format!("corrupt: {missed}"))).collect()
    }

    /// The table of docs/FIGURES.md.
    pub fn table(&self) -> String {
        let cells = self.by_case();
        let mut text = format!(
            "Longest silence in writes, in ms: median (worst). At most {KILLED_BAR_MS} is allowed for a donor that \
             was killed, {SET_ASIDE_BAR_MS} for the others.\n\n\
             | redundancy | donors | fault | export | FUSE | data errors | runs |\n|---|---|---|---|---|---|---|\n"
        );
        for subject in Subject::VOLUMES.into_iter().chain([Subject::Quorum]) {
            for fault in Fault::ALL {
                let of = |front| cells.get(&Case { subject, fault, front });
                let (export, fuse) = (of(Front::Export), of(Front::Fuse));
                let runs: Vec<&&Outcome> = export.into_iter().chain(fuse).flatten().collect();
                if runs.is_empty() {
                    continue;
                }
                let errors: u32 = runs.iter().map(|run| run.errors).sum();
                let name = if subject == Subject::Quorum { "qemu quorum 2 of 3" } else { subject.name() };
                // Writing to a String does not fail.
                let _ = writeln!(
                    text,
                    "| {name} | {} | {} | {} | {} | {errors} | {} |",
                    subject.parity(),
                    fault.described(),
                    silence(export),
                    silence(fuse),
                    runs.len()
                );
            }
        }
        if let Some(found) = &self.corruption {
            let _ = writeln!(
                text,
                "\nA link that flips a bit in 0.05 % of its frames, to one donor of parity:3+1, {:.0} s: {} frames \
                 ({:.1} GB), {} flips met, {} corrupt blocks found by the client, {} data errors.",
                found.took.as_secs_f64(),
                found.count.frames,
                found.count.bytes as f64 / 1e9,
                found.count.flips,
                found.corrupt_blocks,
                found.errors
            );
        }
        text
    }

    /// Every silence as a dot: a row for each redundancy and fault, time to the right on a logarithmic scale.
    fn plot(&self) -> String {
        let cells = self.by_case();
        let mut rows: Vec<(Subject, Fault)> = cells.keys().map(|case| (case.subject, case.fault)).collect();
        rows.dedup();
        let height = TOP + rows.len() as f64 * ROW + 30.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"16\" font-size=\"13\">Longest silence in writes, one dot a run \
             (<tspan fill=\"{EXPORT}\">export</tspan>, <tspan fill=\"{FUSE}\">FUSE</tspan>); \
             the red line is what is allowed</text>\n"
        );
        for (label, ms) in
            [("1 ms", 1.0), ("10 ms", 10.0), ("100 ms", 100.0), ("1 s", 1e3), ("10 s", 1e4), ("60 s", 6e4)]
        {
            let x = x_of(ms);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                height - 26.0,
                height - 12.0
            );
        }
        for (index, (subject, fault)) in rows.into_iter().enumerate() {
            let y = TOP + (index as f64 + 0.5) * ROW;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} {}</text>",
                LEFT - 8.0,
                y + 4.0,
                subject.name(),
                fault.name()
            );
            if subject != Subject::Quorum {
                let x = x_of(fault.bar_ms() as f64);
                let (from, to) = (y - ROW / 2.0, y + ROW / 2.0);
                let _ = writeln!(
                    svg,
                    "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\" stroke=\"#c00\"/>"
                );
            }
            for (front, shift, colour) in [(Front::Export, -3.0, EXPORT), (Front::Fuse, 3.0, FUSE)] {
                let runs = cells.get(&Case { subject, fault, front }).into_iter().flatten();
                for silence in runs.filter_map(|run| run.longest_silence_ms) {
                    let x = x_of(silence as f64);
                    let _ = writeln!(
                        svg,
                        "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{colour}\" fill-opacity=\"0.6\"/>",
                        y + shift
                    );
                }
            }
        }
        svg + "</svg>\n"
    }
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 140.0;
const TOP: f64 = 28.0;
const ROW: f64 = 17.0;
const EXPORT: &str = "#1b6ca8";
const FUSE: &str = "#d9822b";

/// Where a silence stands: five decades, from 1 ms on.
fn x_of(ms: f64) -> f64 {
    LEFT + ms.max(1.0).log10() / 5.0 * (WIDTH - LEFT - 20.0)
}

fn silence(runs: Option<&Vec<&Outcome>>) -> String {
    let mut series = Series::default();
    let mut worst = 0;
    for silence in runs.into_iter().flatten().filter_map(|run| run.longest_silence_ms) {
        series.push(silence as f64);
        worst = worst.max(silence);
    }
    match series.values().is_empty() {
        true => "-".to_owned(),
        false => format!("{:.0} ({worst})", series.median()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_was_written_is_taken_up_again_and_shown() {
        let scratch = Scratch::new();
        let mut report = Report::open(scratch.path(), false);
        let case = Case { subject: Subject::Volume("mirror:2"), fault: Fault::Cut, front: Front::Export };
        for (repeat, silence) in [(0, 900), (1, 1100), (2, 2500)] {
            let mut outcome = Outcome::new(case, repeat, 5);
            outcome.longest_silence_ms = Some(silence);
            report.outcomes.push(outcome);
        }
        report.write();
        let report = Report::open(scratch.path(), true);
        assert!(report.has(case, 2) && !report.has(case, 3));
        let table = report.table();
        assert!(table.contains("| mirror:2 | 1 | cut off both ways | 1100 (2500) | - | 0 | 3 |"), "{table}");
        assert_eq!(report.missed().len(), 1);
        let plot = fs::read_to_string(scratch.join("silences.svg")).expect("a plot");
        assert_eq!(plot.matches("<circle").count(), 3);
    }
}
