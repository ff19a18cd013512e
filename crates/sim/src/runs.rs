//! Values over runs of bytes: what lies in a donor's memory, what a read has brought, what a range may hold.
//!
//! Owns: splitting and laying one run over others. Never: what a value means. Invariant: runs do not overlap
//! and are not empty; a gap has no value. Tests: below.

use std::collections::BTreeMap;

/// A value of a run tells the value of its rest.
pub(crate) trait Slide: Clone {
    fn slide(&self, by: u64) -> Self;
}

#[derive(Clone, Debug)]
pub(crate) struct Runs<V>(BTreeMap<u64, (u64, V)>);

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Runs(BTreeMap::new())
    }
}

impl<V: Slide> Runs<V> {
    fn split(&mut self, at: u64) {
        let Some((start, (end, value))) = self.0.range_mut(..at).next_back() else { return };
        if *end > at {
            let rest = (*end, value.slide(at - start));
            *end = at;
            self.0.insert(at, rest);
        }
    }

    #[cfg(test)]
    pub(crate) fn clear(&mut self, from: u64, to: u64) {
        self.split(from);
        self.split(to);
        while let Some((start, _)) = self.0.range(from..to).next() {
            let start = *start;
            self.0.remove(&start);
        }
    }

    #[cfg(test)]
    pub(crate) fn put(&mut self, from: u64, to: u64, value: V) {
        if from < to {
            self.clear(from, to);
            self.0.insert(from, (to, value));
        }
    }

    /// Every run and gap between `from` and `to`, cut to that, in order.
    pub(crate) fn read(&self, from: u64, to: u64) -> Vec<(u64, u64, Option<V>)> {
        let mut found = Vec::new();
        let mut at = from;
        let first = self.0.range(..=from).next_back().filter(|(_, (end, _))| *end > from).map(|(s, _)| *s);
        for (start, (end, value)) in self.0.range(first.unwrap_or(from)..to) {
            let (low, high) = ((*start).max(from), (*end).min(to));
            if at < low {
                found.push((at, low, None));
            }
            found.push((low, high, Some(value.slide(low - start))));
            at = high;
        }
        if at < to {
            found.push((at, to, None));
        }
        found
    }

    /// Changes the value of every run and gap between `from` and `to`.
    pub(crate) fn update(
        &mut self,
        from: u64,
        to: u64,
        mut change: impl FnMut(&mut V),
        fill: impl Fn() -> V,
    ) {
        if from >= to {
            return;
        }
        self.split(from);
        self.split(to);
        let gaps = self.read(from, to).into_iter().filter(|run| run.2.is_none());
        for (low, high, _) in gaps.collect::<Vec<_>>() {
            self.0.insert(low, (high, fill()));
        }
        self.0.range_mut(from..to).for_each(|(_, (_, value))| change(value));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &V)> {
        self.0.iter().map(|(start, (end, value))| (*start, *end, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    impl Slide for u64 {
        fn slide(&self, by: u64) -> u64 {
            self + by
        }
    }

    #[test]
    fn runs_agree_with_an_array() {
        let mut rng = Rng::new(1);
        for _ in 0..200 {
            let (mut runs, mut array) = (Runs::default(), [None; 64]);
            for _ in 0..40 {
                let from = rng.range(0, 63);
                let to = rng.range(from, 64);
                let span = usize::try_from(from).expect("small")..usize::try_from(to).expect("small");
                match rng.below(3) {
                    0 => {
                        runs.clear(from, to);
                        array[span].fill(None);
                    }
                    1 => {
                        let base = rng.below(1000) * 1000;
                        runs.put(from, to, base);
                        array[span].iter_mut().zip(base..).for_each(|(cell, value)| *cell = Some(value));
                    }
                    _ => {
                        let read = runs.read(from, to);
                        let bytes = read.iter().flat_map(|(low, high, value)| {
                            (0..high - low).map(move |at| value.map(|value| value + at))
                        });
                        assert_eq!(bytes.collect::<Vec<_>>(), array[span]);
                    }
                }
            }
        }
    }
}
