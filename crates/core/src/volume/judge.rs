//! Which rows fit together after a writer ended: a judgement by what donors list of its writes, without
//! reading a byte.
//!
//! Owns that judgement for one group. Never: how rows are mended (`resync`). Invariant: a range is left out
//! only where every holder that was asked has all of each write that is listed there, so that the fragments
//! are of one moment. Called by `resync` with the answers to a survey. Tests: below, the simulator.
//!
//! A write is complete when each holder that it is for has all of it in memory. A holder that does not list
//! it has it if it lists a later one of the same place, for a write begins only when the one before it has
//! ended; or it was told that it is complete, and then `complete` says so. Of a write that is not complete,
//! some hold what it made and some what was there before. Where k of either kind are left they make up the
//! others, also of a slot that nobody holds.

use super::job::{Slots, bit, slots_of};
use crate::donor::ListedWrite;
use std::collections::BTreeSet;

/// A write as a holder of a slot lists it, by offset in the slot's extent.
#[derive(Clone, Copy, Debug)]
struct Listed {
    slot: u32,
    write: ListedWrite,
}

/// Rows that do not fit together. `missed`: without these slots they do; none of them: nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) lo: u32,
    pub(super) hi: u32,
    pub(super) missed: Slots,
}

/// What the holders of a group said.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Who was asked and lists writes.
    pub(super) asked: Slots,
    listed: Vec<Listed>,
}

impl Hearing {
    pub(super) fn hear(&mut self, slot: u32, writes: impl IntoIterator<Item = ListedWrite>) {
        self.asked |= bit(slot);
        self.listed.extend(writes.into_iter().map(|write| Listed { slot, write }));
    }

    /// The doubts of a group with so many data slots; every write up to number `complete` is complete.
    pub(super) fn doubts(mut self, data: u32, complete: u64) -> Vec<Doubt> {
        let asked = self.asked;
        self.listed.retain(|listed| listed.write.number > complete && listed.write.from < listed.write.to);
        self.listed.sort_unstable_by_key(|listed| listed.write.from);
        let ends = self.listed.iter().flat_map(|listed| [listed.write.from, listed.write.to]);
        let borders: BTreeSet<u64> = ends.collect();
        let mut doubts: Vec<Doubt> = Vec::new();
        let (mut here, mut next): (Vec<Listed>, usize) = (Vec::new(), 0);
        for (lo, hi) in borders.iter().zip(borders.iter().skip(1)) {
            here.retain(|listed| listed.write.to > *lo);
            while let Some(listed) = self.listed.get(next).filter(|listed| listed.write.from <= *lo) {
                here.push(*listed);
                next += 1;
            }
            let Some(missed) = judge(&here, asked, data) else { continue };
            let offset = |at: u64| u32::try_from(at).expect("inside an extent");
            let (lo, hi) = (offset(*lo), offset(*hi));
            match doubts.last_mut().filter(|last| last.hi == lo && last.missed == missed) {
                Some(last) => last.hi = hi,
                None => doubts.push(Doubt { lo, hi, missed }),
            }
        }
        doubts
    }
}

/// Of the writes that are listed at one place: none if all is well, or who is to be left out.
fn judge(here: &[Listed], asked: Slots, data: u32) -> Option<Slots> {
    let numbers: BTreeSet<u64> = here.iter().map(|listed| listed.write.number).collect();
    let landed = |slot: u32| {
        let of_slot = here.iter().filter(|listed| listed.slot == slot && listed.write.landed);
        of_slot.map(|listed| listed.write.number).max().unwrap_or(0)
    };
    let targets = |number: u64| {
        let of_write = here.iter().filter(|listed| listed.write.number == number);
        of_write.fold(0, |slots, listed| slots | listed.write.targets) & asked
    };
    let has =
        |number: u64| slots_of(targets(number)).filter(move |slot| landed(*slot) >= number).map(bit).sum();
    let incomplete = |number: &u64| -> bool {
        let has: Slots = has(*number);
        has != targets(*number)
    };
    let mut open = numbers.iter().copied().filter(incomplete);
    let number = open.next()?;
    if open.next().is_some() || numbers.last() != Some(&number) {
        // What was written over it may have taken in what did not fit.
        return Some(0);
    }
    let (has, targets): (Slots, Slots) = (has(number), targets(number));
    let begun = here.iter().filter(|listed| listed.write.number == number).map(|listed| bit(listed.slot));
    let touched = begun.fold(0, |slots, slot| slots | slot) & targets;
    let others = asked & !targets;
    let enough = |slots: Slots| slots.count_ones() >= data;
    if enough(others | has) {
        Some(targets & !has)
    } else if enough(others | (targets & !touched)) {
        Some(touched)
    } else {
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Slots = 0b1111;

    fn write(number: u64, targets: Slots, landed: bool) -> ListedWrite {
        ListedWrite { from: 0, to: 4096, number, targets, landed }
    }

    /// What is judged of a place where each slot lists these writes; a slot that is not there was not asked.
    fn judged(data: u32, said: &[(u32, &[ListedWrite])]) -> Option<Slots> {
        let mut hearing = Hearing::default();
        said.iter().for_each(|(slot, writes)| hearing.hear(*slot, writes.iter().copied()));
        let doubts = hearing.doubts(data, 0);
        assert!(doubts.len() <= 1, "{doubts:?}");
        doubts.first().map(|doubt| doubt.missed)
    }

    #[test]
    fn a_write_that_all_have_leaves_no_doubt_whoever_is_missing() {
        let has = [write(7, ROW, true)];
        assert_eq!(judged(3, &[(0, &has), (1, &has), (2, &has), (3, &has)]), None);
        assert_eq!(judged(3, &[(1, &has), (2, &has), (3, &has)]), None, "slot 0 is missing");
        // Of slots 1 and parity; nobody else was to have it.
        let patch = [write(7, 0b1010, true)];
        assert_eq!(judged(3, &[(0, &[]), (1, &patch), (3, &patch)]), None);
    }

    #[test]
    fn a_write_that_some_lack_is_in_doubt() {
        let (has, begun) = ([write(7, ROW, true)], [write(7, ROW, false)]);
        assert_eq!(judged(3, &[(0, &has), (1, &has), (2, &[])]), Some(0), "neither kind is enough");
        assert_eq!(judged(3, &[(0, &has), (1, &has), (2, &begun)]), Some(0));
        assert_eq!(judged(3, &[(0, &has), (1, &has), (2, &has), (3, &begun)]), Some(0b1000), "forward");
        assert_eq!(judged(3, &[(0, &begun), (1, &[]), (2, &[]), (3, &[])]), Some(0b0001), "back");
    }

    #[test]
    fn with_two_parities_one_that_is_missing_is_made_up_from_either_kind() {
        // Data 0 to 2, parity 3 and 4; slot 0 is missing; the write was of slot 1 alone.
        let (has, begun) = ([write(7, 0b11010, true)], [write(7, 0b11010, false)]);
        assert_eq!(judged(3, &[(1, &has), (2, &[]), (3, &has), (4, &[])]), Some(0b10000), "forward");
        assert_eq!(judged(3, &[(1, &has), (2, &[]), (3, &[]), (4, &[])]), Some(0b00010), "back");
        assert_eq!(judged(3, &[(1, &has), (2, &[]), (3, &begun), (4, &[])]), Some(0), "one may be anything");
    }

    #[test]
    fn a_later_write_says_that_the_one_before_had_ended() {
        let (first, second) = (write(7, ROW, true), write(9, ROW, true));
        assert_eq!(judged(3, &[(0, &[first, second]), (1, &[second]), (2, &[second])]), None);
        // A slot that was rebuilt: its new holder lists that alone.
        let rebuilt = write(8, 0b0001, true);
        assert_eq!(judged(3, &[(0, &[rebuilt]), (1, &[first]), (2, &[first])]), None);
        // The first never reached slot 2, and what followed was of slot 0 alone.
        let patch = write(9, 0b1001, true);
        assert_eq!(judged(3, &[(0, &[first, patch]), (1, &[first]), (2, &[])]), Some(0));
    }

    #[test]
    fn what_is_known_to_be_complete_is_passed_over_and_places_are_told_apart() {
        let mut hearing = Hearing::default();
        let at = |number, from, to, landed| ListedWrite { from, to, number, targets: 0b11, landed };
        hearing.hear(0, [at(5, 0, 8192, false), at(6, 4096, 12288, true), at(8, 16384, 20480, false)]);
        hearing.hear(1, [at(6, 4096, 12288, true)]);
        let doubt = |lo, hi, missed| Doubt { lo, hi, missed };
        assert_eq!(hearing.doubts(1, 5), [doubt(16384, 20480, 0b01)]);
    }
}
