//! Which extents of one donor are free, as runs: a donor may lend a million.
//!
//! Never: who owns the others (`volumes`). Invariant: runs are disjoint, non-empty and do not touch.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extents {
    /// First extent of a run -> the first one after it.
    runs: BTreeMap<u32, u32>,
    count: u32,
}

impl Extents {
    /// The extents `0..count`.
    pub(super) fn all(count: u32) -> Self {
        let runs = if count == 0 { BTreeMap::new() } else { BTreeMap::from([(0, count)]) };
        Extents { runs, count }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn contains(&self, extent: u32) -> bool {
        self.runs.range(..=extent).next_back().is_some_and(|(_, end)| extent < *end)
    }

    pub(super) fn take_lowest(&mut self) -> Option<u32> {
        let (begin, end) = self.runs.pop_first()?;
        if begin + 1 < end {
            self.runs.insert(begin + 1, end);
        }
        self.count -= 1;
        Some(begin)
    }

    /// Takes this one; false when it is not free.
    pub(super) fn take(&mut self, extent: u32) -> bool {
        let Some((&begin, &end)) = self.runs.range(..=extent).next_back() else { return false };
        if extent >= end {
            return false;
        }
        self.runs.remove(&begin);
        if begin < extent {
            self.runs.insert(begin, extent);
        }
        if extent + 1 < end {
            self.runs.insert(extent + 1, end);
        }
        self.count -= 1;
        true
    }

    pub(super) fn give_back(&mut self, extent: u32) {
        assert!(!self.contains(extent), "extent {extent} is given back once");
        let end = self.runs.remove(&(extent + 1)).unwrap_or(extent + 1);
        let joins = self.runs.range(..extent).next_back().filter(|(_, end)| **end == extent);
        let begin = joins.map_or(extent, |(begin, _)| *begin);
        self.runs.insert(begin, end);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;
    use std::collections::BTreeSet;

    #[test]
    fn runs_agree_with_a_plain_set() {
        let (mut extents, mut model) = (Extents::all(64), (0..64).collect::<BTreeSet<u32>>());
        let mut seed = Seed(5);
        for _ in 0..20_000 {
            let extent = (seed.draw() % 64) as u32;
            match seed.draw() % 4 {
                0 => assert_eq!(extents.take_lowest(), model.pop_first()),
                1 => assert_eq!(extents.take(extent), model.remove(&extent)),
                _ if model.insert(extent) => extents.give_back(extent),
                _ => {}
            }
            assert_eq!(extents.count() as usize, model.len());
            assert_eq!(extents.contains(extent), model.contains(&extent));
            let touching = extents.runs.iter().zip(extents.runs.iter().skip(1)).any(|(a, b)| a.1 >= b.0);
            assert!(!touching, "{:?}", extents.runs);
        }
    }
}
