//! Runs of bytes of a disk, and what is done with lists of them.
//!
//! Owns: joining runs that touch, widening them, cutting them to a range. Never: a run that is empty or ends
//! behind what a `u64` holds. Called by all maps and by who fetches their runs. Tests: here.

use std::ops::Range;

/// Bytes of a disk that lie one behind the other. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    pub offset: u64,
    pub bytes: u64,
}

impl Run {
    pub(crate) fn new(offset: u64, bytes: u64) -> Self {
        Self { offset, bytes }
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// What of it lies in a range.
    pub(crate) fn within(&self, range: &Range<u64>) -> Option<Run> {
        let (from, to) = (self.offset.max(range.start), self.end().min(range.end));
        (from < to).then(|| Run::new(from, to - from))
    }
}

/// The runs in the order of the disk, each widened by so many bytes at both ends, and joined with those that
/// it then touches. Tools read in pieces of their own, so what is next to metadata is read with it.
pub fn widened(runs: &[Run], by: u64, disk_bytes: u64) -> Vec<Run> {
    let mut wide: Vec<Run> = runs
        .iter()
        .filter_map(|run| {
            let from = run.offset.saturating_sub(by);
            let to = run.end().saturating_add(by).min(disk_bytes);
            (from < to).then(|| Run::new(from, to - from))
        })
        .collect();
    wide.sort_unstable();
    joined(wide)
}

/// The same bytes in the same order; runs that lie one behind the other, or over each other, become one.
pub(crate) fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if (last.offset..=last.end()).contains(&run.offset) => {
                last.bytes = last.end().max(run.end()) - last.offset;
            }
            _ => all.push(run),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_widened_to_the_ends_of_the_disk_and_joined() {
        let runs = [Run::new(5000, 10), Run::new(100, 50), Run::new(1900, 100), Run::new(9990, 100)];
        let wide = widened(&runs, 1000, 10_000);
        assert_eq!(wide, [Run::new(0, 3000), Run::new(4000, 2010), Run::new(8990, 1010)]);
        assert_eq!(widened(&runs[..1], 0, 10_000), runs[..1]);
        assert_eq!(widened(&[Run::new(u64::MAX - 1, 9)], 64, 100), []);
    }

    #[test]
    fn runs_are_joined_in_the_order_that_they_have() {
        let runs = vec![Run::new(40, 10), Run::new(50, 10), Run::new(20, 10), Run::new(30, 10)];
        assert_eq!(joined(runs), [Run::new(40, 20), Run::new(20, 20)]);
    }
}
