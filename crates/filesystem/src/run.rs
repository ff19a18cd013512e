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

/// The runs in the order of the disk, each with so many bytes behind it, and joined with those that it then
/// touches. Tools read in pieces of their own, which begin where a directory does and end behind it.
pub fn extended(runs: &[Run], by: u64, disk_bytes: u64) -> Vec<Run> {
    let extend = |run: &Run| {
        let to = run.end().saturating_add(by).min(disk_bytes);
        (run.offset < to).then(|| Run::new(run.offset, to - run.offset))
    };
    let mut extended: Vec<Run> = runs.iter().filter_map(extend).collect();
    extended.sort_unstable();
    joined(extended)
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
    fn runs_are_extended_to_the_end_of_the_disk_and_joined() {
        let runs = [Run::new(5000, 10), Run::new(100, 50), Run::new(1000, 100), Run::new(9990, 100)];
        let far = extended(&runs, 1000, 10_000);
        assert_eq!(far, [Run::new(100, 2000), Run::new(5000, 1010), Run::new(9990, 10)]);
        assert_eq!(extended(&runs[..1], 0, 10_000), runs[..1]);
        assert_eq!(extended(&[Run::new(u64::MAX - 1, 9)], 64, 100), []);
    }

    #[test]
    fn runs_are_joined_in_the_order_that_they_have() {
        let runs = vec![Run::new(40, 10), Run::new(50, 10), Run::new(20, 10), Run::new(30, 10)];
        assert_eq!(joined(runs), [Run::new(40, 20), Run::new(20, 20)]);
    }
}
