//! Lists of bad ranges: adding to one, and taking from it what was written again.
//!
//! Never: what is bad, which the writer finds out. Invariant: a list is ascending, its ranges do not overlap
//! or touch, and there are at most `BAD_RANGES_MAX` unless every one is a whole extent.

use crate::limits::{BAD_RANGES_MAX, EXTENT_BYTES};
use crate::map::BadRange;

/// What ranges that are too many are rounded to first.
const GRAIN_BYTES: u32 = 64 << 10;

pub(crate) fn merge(bad: &mut Vec<BadRange>, more: impl IntoIterator<Item = BadRange>) {
    merge_at_most(bad, more, BAD_RANGES_MAX);
}

fn merge_at_most(bad: &mut Vec<BadRange>, more: impl IntoIterator<Item = BadRange>, most: usize) {
    bad.extend(more);
    bad.sort_unstable();
    join(bad);
    // More is then said to be bad than is; never less.
    let mut grain = GRAIN_BYTES;
    while bad.len() > most && u64::from(grain) <= EXTENT_BYTES {
        for range in bad.iter_mut() {
            range.from = range.from / grain * grain;
            range.to = range.to.next_multiple_of(grain);
        }
        join(bad);
        grain *= 2;
    }
}

/// Makes one of those that overlap or touch.
fn join(ranges: &mut Vec<BadRange>) {
    ranges.dedup_by(|next, last| {
        let joins = (next.group, next.slot) == (last.group, last.slot) && next.from <= last.to;
        if joins {
            last.to = last.to.max(next.to);
        }
        joins
    });
}

pub(crate) fn subtract(bad: &mut Vec<BadRange>, gone: impl IntoIterator<Item = BadRange>) {
    let mut cuts: Vec<BadRange> = gone.into_iter().collect();
    cuts.sort_unstable();
    join(&mut cuts);
    let mut left = Vec::with_capacity(bad.len());
    for range in bad.drain(..) {
        let at = (range.group, range.slot);
        let mut from = range.from;
        let first =
            cuts.partition_point(|cut| (cut.group, cut.slot, cut.to) <= (range.group, range.slot, from));
        let here = cuts[first..].iter().take_while(|cut| (cut.group, cut.slot) == at && cut.from < range.to);
        for cut in here {
            if from < cut.from {
                left.push(BadRange { from, to: cut.from, ..range });
            }
            from = cut.to;
        }
        if from < range.to {
            left.push(BadRange { from, ..range });
        }
    }
    *bad = left;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;
    use std::collections::BTreeSet;

    fn range(seed: &mut Seed) -> BadRange {
        let from = (seed.draw() % 30) as u32;
        let to = from + 1 + (seed.draw() % 6) as u32;
        BadRange { group: (seed.draw() % 2) as u32, slot: (seed.draw() % 2) as u32, from, to }
    }

    fn bytes(range: BadRange) -> impl Iterator<Item = (u32, u32, u32)> {
        (range.from..range.to).map(move |at| (range.group, range.slot, at))
    }

    #[test]
    fn a_list_agrees_with_a_plain_set_of_bytes() {
        let mut seed = Seed(11);
        let (mut list, mut model) = (Vec::new(), BTreeSet::new());
        for _ in 0..3_000 {
            let some: Vec<BadRange> = (0..seed.draw() % 4).map(|_| range(&mut seed)).collect();
            if seed.draw().is_multiple_of(2) {
                merge(&mut list, some.iter().copied());
                model.extend(some.into_iter().flat_map(bytes));
            } else {
                subtract(&mut list, some.iter().copied());
                model.retain(|byte| !some.iter().copied().flat_map(bytes).any(|gone| gone == *byte));
            }
            assert_eq!(list.iter().copied().flat_map(bytes).collect::<BTreeSet<_>>(), model);
            let apart = |pair: &[BadRange]| {
                (pair[0].group, pair[0].slot, pair[0].to) < (pair[1].group, pair[1].slot, pair[1].from)
            };
            assert!(list.windows(2).all(apart), "{list:?}");
        }
    }

    #[test]
    fn too_many_become_fewer_and_cover_no_less() {
        let far = |at: u32| BadRange { group: 0, slot: 0, from: at * 128 * 1024, to: at * 128 * 1024 + 4096 };
        let all: Vec<BadRange> = (0..64).map(far).collect();
        let mut list = Vec::new();
        merge_at_most(&mut list, all.iter().copied(), 40);
        assert!(list.len() <= 40 && list.iter().all(|range| u64::from(range.to) <= EXTENT_BYTES), "{list:?}");
        let covers = |one: &BadRange| list.iter().any(|range| range.from <= one.from && one.to <= range.to);
        assert!(all.iter().all(covers));
    }
}
