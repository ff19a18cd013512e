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
//! some hold what it made and some what was there before. Where k have what it made, they make up the others,
//! also of a slot that nobody holds. Where fewer have, it is undone by who has some of it: nobody was told
//! that it is complete. Where what it covered is not kept, k that it did not reach make up the others.

use super::job::{Slots, Undo, bit, slots_of};
use crate::donor::ListedWrite;
use std::collections::BTreeSet;

/// A write as a holder of a slot lists it, by offset in the slot's extent.
#[derive(Clone, Copy, Debug)]
struct Listed {
    slot: u32,
    write: ListedWrite,
}

/// What makes rows fit together that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Without these slots they do. Or, where that is known, once a write is undone.
    Without(Slots, Option<Undo>),
    /// Without this write they do.
    Undo(Undo),
    /// Nobody knows one.
    None,
}

/// Rows that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) lo: u32,
    pub(super) hi: u32,
    pub(super) way: Way,
    /// These do not tell what they have there: they may have lost some of it.
    pub(super) stale: Slots,
}

/// What the holders of a group said.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Who was asked and lists writes.
    pub(super) asked: Slots,
    listed: Vec<Listed>,
    /// A slot, and where it may have lost what was written.
    stale: Vec<(u32, u64, u64)>,
}

impl Hearing {
    pub(super) fn hear(&mut self, slot: u32, writes: impl IntoIterator<Item = ListedWrite>) {
        self.asked |= bit(slot);
        for write in writes.into_iter().filter(|write| write.from < write.to) {
            match write.stale {
                true => self.stale.push((slot, write.from, write.to)),
                false => self.listed.push(Listed { slot, write }),
            }
        }
    }

    /// What a writer that knows of its own writes has no use for.
    pub(super) fn forget_writes(&mut self) {
        self.listed.clear();
    }

    /// The doubts of a group with so many data slots; every write up to number `complete` is complete, and
    /// only one whose number is a former writer's may be undone. `marked`: rows that may be half written by
    /// nobody knows which write.
    pub(super) fn doubts(
        mut self,
        data: u32,
        complete: u64,
        is_former: impl Fn(u64) -> bool,
        marked: &[(u32, u32)],
    ) -> Vec<Doubt> {
        let asked = self.asked;
        self.listed.retain(|listed| listed.write.number > complete);
        self.listed.sort_unstable_by_key(|listed| listed.write.from);
        let ends = self.listed.iter().flat_map(|listed| [listed.write.from, listed.write.to]);
        let mut borders: BTreeSet<u64> = ends.collect();
        if !self.stale.is_empty() {
            borders.extend(self.stale.iter().flat_map(|(_, from, to)| [*from, *to]));
            borders.extend(marked.iter().flat_map(|(from, to)| [u64::from(*from), u64::from(*to)]));
        }
        let mut doubts: Vec<Doubt> = Vec::new();
        let (mut here, mut next): (Vec<Listed>, usize) = (Vec::new(), 0);
        for (lo, hi) in borders.iter().zip(borders.iter().skip(1)) {
            here.retain(|listed| listed.write.to > *lo);
            while let Some(listed) = self.listed.get(next).filter(|listed| listed.write.from <= *lo) {
                here.push(*listed);
                next += 1;
            }
            let there = self.stale.iter().filter(|(_, from, to)| from <= lo && hi <= to);
            let stale = there.fold(0, |slots, (slot, ..)| slots | bit(*slot));
            let offset = |at: u64| u32::try_from(at).expect("inside an extent");
            let (lo, hi) = (offset(*lo), offset(*hi));
            let way = if stale == 0 {
                judge(&here, asked, data, &is_former)
            } else {
                // Of copies each is whole for itself.
                let is_marked = data > 1 && marked.iter().any(|(from, to)| *from < hi && lo < *to);
                let others: Vec<Listed> =
                    here.iter().filter(|listed| stale & bit(listed.slot) == 0).copied().collect();
                let rest = asked & !stale;
                Some(without(stale, rest, data, judge(&others, rest, data, &is_former), is_marked))
            };
            let Some(way) = way else { continue };
            match doubts.last_mut().filter(|last| (last.hi, last.way, last.stale) == (lo, way, stale)) {
                Some(last) => last.hi = hi,
                None => doubts.push(Doubt { lo, hi, way, stale }),
            }
        }
        doubts
    }
}

/// What is to be done where some slots do not tell what they have, and the rest is judged so: they are made
/// up from that, or nobody knows.
fn without(stale: Slots, rest: Slots, data: u32, judged: Option<Way>, is_marked: bool) -> Way {
    let missed = match judged {
        None => Some(0),
        Some(Way::Without(missed, _)) => Some(missed),
        Some(Way::Undo(_) | Way::None) => None,
    };
    let enough = |missed: &Slots| (rest & !missed).count_ones() >= data && !is_marked;
    missed.filter(enough).map_or(Way::None, |missed| Way::Without(missed | stale, None))
}

/// Of the writes that are listed at one place: none if all is well, or what is to be done.
fn judge(here: &[Listed], asked: Slots, data: u32, is_former: impl Fn(u64) -> bool) -> Option<Way> {
    let numbers: BTreeSet<u64> = here.iter().map(|listed| listed.write.number).collect();
    let landed = |slot: u32| {
        let of_slot = here.iter().filter(|listed| listed.slot == slot && listed.write.landed);
        of_slot.map(|listed| listed.write.number).max().unwrap_or(0)
    };
    let targets = |number: u64| {
        let of_write = here.iter().filter(|listed| listed.write.number == number);
        of_write.fold(0, |slots, listed| slots | listed.write.targets) & asked
    };
    let has = |number: u64| slots_of(targets(number)).filter(move |slot| landed(*slot) >= number).map(bit);
    let incomplete = |number: &u64| has(*number).sum::<Slots>() != targets(*number);
    let number = numbers.iter().copied().find(incomplete)?;
    let lacks = targets(number) & !has(number).sum::<Slots>();
    // What was to make one of them up takes in nothing but what the others have.
    let makes_up = |later: &u64| targets(*later).is_power_of_two() && targets(*later) & !lacks == 0;
    let mut later = numbers.iter().filter(|later| **later > number);
    let is_last = later.clone().next().is_none();
    if !later.all(makes_up) {
        // What was written over it may have taken in what did not fit.
        return Some(Way::None);
    }
    let (has, targets): (Slots, Slots) = (has(number).sum(), targets(number));
    let of_write = || here.iter().filter(|listed| listed.write.number == number);
    let touched = of_write().fold(0, |slots, listed| slots | bit(listed.slot)) & targets;
    let others = asked & !targets;
    let enough = |slots: Slots| slots.count_ones() >= data;
    let can_be_undone = is_last && is_former(number) && of_write().all(|listed| listed.write.undo);
    let undo = can_be_undone.then_some(Undo { number, slots: touched });
    Some(match undo {
        _ if enough(others | has) => Way::Without(targets & !has, undo),
        Some(undo) => Way::Undo(undo),
        None if enough(others | (targets & !touched)) => Way::Without(touched, None),
        None => Way::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Slots = 0b1111;

    fn write(number: u64, targets: Slots, landed: bool) -> ListedWrite {
        ListedWrite { from: 0, to: 4096, number, targets, landed, undo: false, stale: false }
    }

    fn way(data: u32, said: &[(u32, &[ListedWrite])]) -> Option<Way> {
        let mut hearing = Hearing::default();
        said.iter().for_each(|(slot, writes)| hearing.hear(*slot, writes.iter().copied()));
        let doubts = hearing.doubts(data, 0, |number| number < 100, &[]);
        assert!(doubts.len() <= 1, "{doubts:?}");
        doubts.first().map(|doubt| doubt.way)
    }

    /// What is judged of a place where each slot lists these writes, and keeps nothing; a slot that is not
    /// there was not asked.
    fn judged(data: u32, said: &[(u32, &[ListedWrite])]) -> Option<Slots> {
        way(data, said).map(|way| match way {
            Way::Without(missed, None) => missed,
            Way::Without(_, Some(undo)) => panic!("{undo:?}, and nothing is kept"),
            Way::None => 0,
            Way::Undo(undo) => panic!("{undo:?}"),
        })
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
        let at = |number, from, to, landed| ListedWrite {
            from,
            to,
            number,
            targets: 0b11,
            landed,
            undo: false,
            stale: false,
        };
        hearing.hear(0, [at(5, 0, 8192, false), at(6, 4096, 12288, true), at(8, 16384, 20480, false)]);
        hearing.hear(1, [at(6, 4096, 12288, true)]);
        let doubt = |lo, hi, missed| Doubt { lo, hi, way: Way::Without(missed, None), stale: 0 };
        assert_eq!(hearing.doubts(1, 5, |_| true, &[]), [doubt(16384, 20480, 0b01)]);
    }

    #[test]
    fn what_does_not_tell_what_it_has_is_made_up_from_those_that_do() {
        let (has, stale) = ([write(7, ROW, true)], [ListedWrite::stale(0, 4096)]);
        assert_eq!(judged(3, &[(0, &has), (1, &stale), (2, &has), (3, &has)]), Some(0b0010));
        assert_eq!(judged(3, &[(0, &[]), (1, &stale), (2, &[]), (3, &[])]), Some(0b0010), "nobody lists any");
        assert_eq!(judged(3, &[(0, &has), (1, &stale), (2, &stale), (3, &has)]), Some(0), "two are too few");
        assert_eq!(judged(3, &[(0, &has), (1, &stale), (2, &has)]), Some(0), "one was not asked");
        assert_eq!(judged(1, &[(0, &stale), (1, &[])]), Some(0b01));
        assert_eq!(judged(1, &[(0, &stale), (1, &stale)]), Some(0));
        // A write that half of the others lack leaves nothing to make it up from.
        let begun = [write(7, ROW, false)];
        assert_eq!(judged(3, &[(0, &has), (1, &stale), (2, &begun), (3, &has)]), Some(0));
    }

    #[test]
    fn rows_that_may_be_half_written_make_nothing_up() {
        let doubts = |data, marked: &[(u32, u32)]| {
            let mut hearing = Hearing::default();
            hearing.hear(0, [ListedWrite::stale(0, 12288)]);
            (1..4).for_each(|slot| hearing.hear(slot, []));
            hearing.doubts(data, 0, |_| true, marked)
        };
        let doubt = |lo, hi, way| Doubt { lo, hi, way, stale: 1 };
        let without = Way::Without(1, None);
        assert_eq!(
            doubts(3, &[(4096, 8192)]),
            [doubt(0, 4096, without), doubt(4096, 8192, Way::None), doubt(8192, 12288, without)]
        );
        assert_eq!(doubts(1, &[(4096, 8192)]), [doubt(0, 12288, without)], "a copy is whole for itself");
    }

    #[test]
    fn a_write_that_too_few_have_is_undone_by_who_has_some_of_it() {
        let kept = |number, landed| ListedWrite { undo: true, ..write(number, 0b11111, landed) };
        let (has, begun) = ([kept(7, true)], [kept(7, false)]);
        let undo = |number, slots| Some(Way::Undo(Undo { number, slots }));
        // Slot 0 is missing: two have it, two do not.
        let all: [(u32, &[ListedWrite]); 4] = [(1, &has), (2, &[]), (3, &begun), (4, &[])];
        assert_eq!(way(3, &all), undo(7, 0b01010));
        assert_eq!(
            way(3, &[(1, &has), (2, &has), (3, &has), (4, &[])]),
            Some(Way::Without(0b10000, Some(Undo { number: 7, slots: 0b01110 }))),
            "forward, and back if one of them goes"
        );
        let lacks = [write(7, 0b11111, true)];
        assert_eq!(
            way(3, &[(1, &has), (2, &[]), (3, &lacks), (4, &[])]),
            Some(Way::None),
            "one kept nothing"
        );
        assert_eq!(
            way(3, &[(1, &lacks), (2, &[]), (3, &[]), (4, &[])]),
            Some(Way::Without(0b00010, None)),
            "back"
        );
        // Who was to be given it was given half of that.
        let again = [kept(7, false), ListedWrite { targets: 0b10000, ..kept(8, false) }];
        let all: [(u32, &[ListedWrite]); 5] = [(0, &has), (1, &has), (2, &has), (3, &has), (4, &again)];
        assert_eq!(way(3, &all), Some(Way::Without(0b10000, None)));
        assert_eq!(way(3, &all[2..]), Some(Way::None), "two are too few");
        let own = [kept(100, true)];
        assert_eq!(
            way(3, &[(1, &own), (2, &[]), (3, &own), (4, &[])]),
            Some(Way::None),
            "it is being written"
        );
        // What a later write covered cannot be put back below it.
        let later = [kept(7, true), ListedWrite { targets: 0b01010, ..kept(9, true) }];
        assert_eq!(way(3, &[(1, &later), (2, &[]), (3, &later), (4, &[])]), Some(Way::None));
    }
}
