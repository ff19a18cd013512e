//! Figures of benchmarks: values a round, their median and spread, and where a report goes.
//! Never: a verdict on noise; the spread is shown and the reader judges.

use std::path::PathBuf;

/// One figure, a value per round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// NaN when there is no value.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// The median, and the spread from least to most.
    pub fn shown(&self, decimals: usize) -> String {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(0.0, f64::max);
        format!("{:.decimals$} ({least:.decimals$}-{most:.decimals$})", self.median())
    }
}

/// Writes a report beside what was built; answers where.
#[track_caller]
pub fn write_report(name: &str, report: &serde_json::Value) -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let target = program.parent().and_then(|profile| profile.parent()).expect("a build directory");
    let path = target.join("bench").join(name);
    let directory = path.parent().expect("a file in a directory");
    std::fs::create_dir_all(directory)
        .unwrap_or_else(|error| panic!("cannot make {}: {error}", directory.display()));
    let text = serde_json::to_string_pretty(report).expect("a report is JSON");
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        let mut series = Series::default();
        assert!(series.median().is_nan());
        for value in [9.0, 1.0, 4.0] {
            series.push(value);
        }
        assert_eq!(series.shown(1), "4.0 (1.0-9.0)");
        series.push(5.0);
        assert_eq!(series.values().len(), 4);
        assert!((series.median() - 4.5).abs() < 1e-9);
    }
}
