//! Figures of benchmarks: values a round, their median and spread, and where a report goes.
//! Never: a verdict on noise; who shows a figure judges (`bench::row` does).

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

    /// What lies between the quartiles, as a part of the median: one round of five that was disturbed does
    /// not count. Infinite when there is no median to divide by.
    pub fn spread(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let spread = (quantile(&sorted, 0.75) - quantile(&sorted, 0.25)) / self.median().abs();
        if spread.is_finite() { spread } else { f64::INFINITY }
    }

    /// How far the median may be off, about, as a part of it: the more rounds, the less.
    pub fn uncertainty(&self) -> f64 {
        self.spread() / (self.0.len() as f64).sqrt()
    }

    /// The median, and the spread from least to most.
    pub fn shown(&self, decimals: usize) -> String {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(0.0, f64::max);
        format!("{:.decimals$} ({least:.decimals$}-{most:.decimals$})", self.median())
    }
}

impl FromIterator<f64> for Series {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Between the two values next to it, in proportion; NaN of nothing.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Where a report of this name goes: beside what was built.
#[track_caller]
pub fn report_path(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let target = program.parent().and_then(|profile| profile.parent()).expect("a build directory");
    target.join("bench").join(name)
}

/// Panics where no report can be written: before half an hour of measuring, and not after it.
#[track_caller]
pub fn need_room_for_reports() {
    let path = write_text("try", "");
    std::fs::remove_file(&path).unwrap_or_else(|error| panic!("cannot remove {}: {error}", path.display()));
}

/// Writes a report beside what was built; answers where.
#[track_caller]
pub fn write_report(name: &str, report: &serde_json::Value) -> PathBuf {
    write_text(name, &serde_json::to_string_pretty(report).expect("a report is JSON"))
}

/// Writes a text beside what was built, whole at any moment; answers where.
#[track_caller]
pub fn write_text(name: &str, text: &str) -> PathBuf {
    let path = report_path(name);
    let directory = path.parent().expect("a file in a directory");
    let part = path.with_extension("part");
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&part, text))
        .and_then(|()| std::fs::rename(&part, &path))
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
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

    #[test]
    fn the_spread_is_that_of_the_middle_half() {
        let spread = |values: &[f64]| values.iter().copied().collect::<Series>().spread();
        assert!((spread(&[90.0, 100.0, 110.0, 95.0, 105.0]) - 0.1).abs() < 1e-9);
        assert!((spread(&[100.0, 100.0, 100.0, 100.0, 900.0])).abs() < 1e-9, "one disturbed round of five");
        assert!((spread(&[10.0, 20.0]) - 5.0 / 15.0).abs() < 1e-9);
        assert!(spread(&[]).is_infinite() && spread(&[0.0, 0.0]).is_infinite());
        let few: Series = [90.0, 100.0, 110.0, 95.0].into_iter().collect();
        assert!((few.uncertainty() - few.spread() / 2.0).abs() < 1e-9);
    }
}
