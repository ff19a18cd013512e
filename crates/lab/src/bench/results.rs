//! The results of the benchmark, kept from one run of a part to the next: `results.json`, `table.md` and the
//! plots.
//!
//! Owns: how a run's rows replace those of an earlier one by their ids, and what is written. Never: a verdict
//! of its own. Invariant: a row is in the results once, and in the tables again where it has a bar; rows keep
//! their order, new ones come last. Called by: `bench`. Tests: below.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::bench::machine;
use crate::bench::plot::{self, Scaling};
use crate::bench::row::Row;
use crate::figures;

const RESULTS: &str = "results.json";

/// Everything that is known: rows of this run and of earlier ones.
#[derive(Debug)]
pub struct Results {
    machine: Value,
    rows: Vec<Row>,
    plots: Vec<Scaling>,
}

impl Results {
    /// What earlier runs left, on this machine.
    pub fn open(machine: Value) -> Self {
        let text = std::fs::read_to_string(figures::report_path(RESULTS)).unwrap_or_default();
        let before: Value = serde_json::from_str(&text).unwrap_or_default();
        Self::from_json(&before, machine)
    }

    fn from_json(before: &Value, machine: Value) -> Self {
        let rows = before["rows"].as_array().into_iter().flatten().filter_map(Row::from_json).collect();
        Self { machine, rows, plots: Vec::new() }
    }

    /// A part's rows take the place of what it had before, also of what it has no more.
    pub fn merge(&mut self, part: &str, rows: Vec<Row>) {
        let prefix = format!("{part}.");
        self.rows.retain(|old| !old.id.starts_with(&prefix) || rows.iter().any(|row| row.id == old.id));
        for row in rows {
            match self.rows.iter_mut().find(|old| old.id == row.id) {
                Some(old) => *old = row,
                None => self.rows.push(row),
            }
        }
    }

    pub fn plot(&mut self, plot: Scaling) {
        self.plots.push(plot);
    }

    pub fn to_json(&self) -> Value {
        json!({"machine": self.machine, "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>()})
    }

    /// The Markdown tables: what has a bar, then each part.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", machine::line(&self.machine));
        for (name, rows) in self.sections() {
            text += &format!("\n### {name}\n\n| | cheetah | spread | beside | ratio | limit | bar | |\n");
            text += "|---|---|---|---|---|---|---|---|\n";
            for row in rows {
                text += &row.line();
                text.push('\n');
            }
        }
        text
    }

    /// The rows of which something is demanded, if there are any, then each part.
    fn sections(&self) -> Vec<(String, Vec<&Row>)> {
        let barred: Vec<&Row> = self.rows.iter().filter(|row| row.bar.is_some()).collect();
        let bars = (!barred.is_empty()).then(|| ("bars".to_owned(), barred));
        bars.into_iter().chain(self.parts()).collect()
    }

    /// The rows by part, which is how their ids begin.
    fn parts(&self) -> Vec<(String, Vec<&Row>)> {
        let mut parts: Vec<(String, Vec<&Row>)> = Vec::new();
        for row in &self.rows {
            let part = row.id.split('.').next().unwrap_or_default();
            match parts.iter_mut().find(|(name, _)| name == part) {
                Some((_, rows)) => rows.push(row),
                None => parts.push((part.to_owned(), vec![row])),
            }
        }
        parts
    }

    /// Writes all files; answers where the results are.
    #[track_caller]
    pub fn write(&self) -> PathBuf {
        figures::write_text("table.md", &self.table());
        for (part, rows) in self.sections() {
            let against_peers: Vec<&Row> = rows.into_iter().filter(|row| row.ratio.is_some()).collect();
            if !against_peers.is_empty() {
                figures::write_text(&format!("{part}.svg"), &plot::bars(&part, &against_peers));
            }
        }
        for scaling in &self.plots {
            figures::write_text(&format!("{}.svg", scaling.id), &scaling.svg());
        }
        figures::write_report(RESULTS, &self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row::Figure;
    use crate::figures::Series;

    fn row(id: &str, value: f64) -> Row {
        let value: Series = [value].into_iter().collect();
        let peer: Series = [2.0].into_iter().collect();
        let peer = Some(("nbdkit", &peer));
        Figure { peer, ..Figure::new(id, id.to_owned(), "GB/s", &value) }.row()
    }

    #[test]
    fn parts_merge_into_what_is_there_by_id() {
        let mut results = Results::from_json(&Value::Null, json!({"cores": 2}));
        results.merge("local", vec![row("local.a", 1.0), row("local.gone", 5.0)]);
        results.merge("lan", vec![row("lan.a", 2.0)]);
        let mut later = Results::from_json(&results.to_json(), json!({"cores": 2}));
        later.merge("local", vec![row("local.a", 3.0), row("local.b", 4.0)]);
        let ids: Vec<(&str, f64)> = later.rows.iter().map(|row| (row.id.as_str(), row.value)).collect();
        assert_eq!(ids, [("local.a", 3.0), ("lan.a", 2.0), ("local.b", 4.0)]);
        let table = later.table();
        assert_eq!(table.matches("### ").count(), 2, "{table}");
        assert!(table.contains("| local.b | 4.00 GB/s | - | 2.00 nbdkit | 2.00 |"), "{table}");
    }
}
