//! Which writes of a volume a donor was sent, as long as it has not heard that they are complete everywhere:
//! what the next writer asks for when the last one died, to tell rows that fit together from rows that do
//! not; and what those writes covered, to be put back where too few have what they brought.
//!
//! Owns the list: for each write its number, the slots that it is for, its place, whether all of it is in
//! memory, and what was there before. Never: data itself ([`Before`] is the driver's), locks, or what follows
//! for a row (`volume::judge`).
//! Invariants: a write stays listed until its client says that it is complete, it is undone or its extent is
//! wiped; where there are more than `LEDGER_WRITES_MAX`, the oldest become ranges that count as written by
//! nobody knows which write, so nothing is forgotten; and a write that was undone is known to be until then,
//! so that it may be asked for again. Called by `rim`'s donor and by `sim`. Tests: below, the simulator.

use crate::limits::LEDGER_WRITES_MAX;
use std::collections::VecDeque;

/// What a client says of a write with the request for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMark {
    /// Grows; of two writes of the same block the later one has the greater number.
    pub number: u64,
    /// A bit for each slot of the group that is sent a part of the write.
    pub targets: u32,
    /// Every write with a number up to this one is complete on all who shall have it. 0 says nothing.
    pub complete: u64,
    /// What the write covers may have to be put back: its row has parity, so that it fits together only as a
    /// whole.
    pub keep: bool,
}

/// A write, or the part of one that a request brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedWrite {
    /// Addresses in the donor's memory.
    pub from: u64,
    /// The first address behind it.
    pub to: u64,
    /// As its [`WriteMark`] has it.
    pub number: u64,
    /// As its [`WriteMark`] has it.
    pub targets: u32,
    /// All of it is in memory. Until then any part of it may be.
    pub landed: bool,
    /// What was there before is kept, and can be put back.
    pub undo: bool,
    /// No write, but what a donor of a disk may have lost of those before its stop: it does not tell what is
    /// there before it is written again, or adopted as it is.
    pub stale: bool,
}

impl ListedWrite {
    /// What may be lost there.
    #[must_use]
    pub const fn stale(from: u64, to: u64) -> ListedWrite {
        ListedWrite { from, to, number: 0, targets: 0, landed: false, undo: false, stale: true }
    }

    fn reaches(&self, from: u64, to: u64) -> bool {
        self.from < to && from < self.to
    }
}

/// What was in memory where a write went, in the driver's keeping: dropped, it is gone for good.
pub trait Before: Sized {
    /// Keeps so many bytes and gives the rest.
    #[must_use]
    fn split_off(&mut self, bytes: u64) -> Self;
}

/// A write that is on its way into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Clone, Debug)]
struct Entry<B> {
    /// Its `undo` says nothing: `before` does.
    write: ListedWrite,
    before: Option<B>,
    undone: bool,
    /// Its ticket. What was cut off from it has the same.
    born: u64,
}

/// The list of one volume's writes on one donor.
#[derive(Clone, Debug)]
pub struct Ledger<B> {
    complete: u64,
    /// In the order in which they came, which is nearly that of their numbers.
    entries: VecDeque<Entry<B>>,
    /// Of the first of them.
    first: u64,
}

impl<B> Default for Ledger<B> {
    fn default() -> Self {
        Ledger { complete: 0, entries: VecDeque::new(), first: 0 }
    }
}

impl<B: Before> Ledger<B> {
    /// Before a write touches memory. `before`: what is there, if it is kept. `spill` takes what the list has
    /// no room for.
    pub fn begin(
        &mut self,
        mark: WriteMark,
        offset: u64,
        len: u64,
        before: Option<B>,
        mut spill: impl FnMut(ListedWrite),
    ) -> Ticket {
        self.settle(mark.complete);
        if self.entries.len() >= LEDGER_WRITES_MAX {
            let oldest = self.entries.pop_front().expect("it is full");
            self.first += 1;
            if oldest.write.number > self.complete && !oldest.undone {
                spill(oldest.write);
            }
        }
        let WriteMark { number, targets, .. } = mark;
        let write = ListedWrite {
            from: offset,
            to: offset + len,
            number,
            targets,
            landed: false,
            undo: false,
            stale: false,
        };
        let born = self.first + self.entries.len() as u64;
        self.entries.push_back(Entry { write, before, undone: false, born });
        Ticket(born)
    }

    /// All of it is in memory.
    pub fn landed(&mut self, Ticket(ticket): Ticket) {
        let at = ticket.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            entry.write.landed = true;
        }
    }

    /// No more comes of it, and not all of it did: what it covered, with its place, to be put back. Then it
    /// is undone. `None`, and nothing is changed: that is not kept.
    pub fn cut_off(&mut self, Ticket(ticket): Ticket) -> Option<(u64, B)> {
        let at = usize::try_from(ticket.checked_sub(self.first)?).ok()?;
        let entry = self.entries.get_mut(at).filter(|entry| !entry.write.landed)?;
        let before = entry.before.take()?;
        entry.undone = true;
        Some((entry.write.from, before))
    }

    /// The client says that all writes up to this number are complete everywhere.
    pub fn settle(&mut self, complete: u64) {
        self.complete = self.complete.max(complete);
        while self.entries.front().is_some_and(|entry| entry.write.number <= self.complete) {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Whether nothing is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.write.number <= self.complete)
    }

    /// The greatest [`WriteMark::complete`] so far; 0 before the first.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Those that touch the range, are not known to be complete and were not undone.
    pub fn within(&self, offset: u64, len: u64) -> impl Iterator<Item = ListedWrite> {
        let open = move |entry: &&Entry<B>| entry.write.number > self.complete && !entry.undone;
        let there = move |entry: &&Entry<B>| entry.write.reaches(offset, offset + len);
        let listed = |entry: &Entry<B>| ListedWrite { undo: entry.before.is_some(), ..entry.write };
        self.entries.iter().filter(open).filter(there).map(listed)
    }

    /// Nobody's writes are in this range any more.
    pub fn wiped(&mut self, offset: u64, len: u64) {
        for entry in &mut self.entries {
            if entry.write.reaches(offset, offset + len) {
                // Stays in its place, for tickets count places.
                (entry.write.number, entry.write.to, entry.before) = (0, entry.write.from, None);
            }
        }
    }

    /// Gives up what the oldest write covered for which it is kept; false when there is none.
    pub fn forget_oldest(&mut self) -> bool {
        let mut kept = self.entries.iter_mut().filter(|entry| entry.before.is_some());
        kept.next().is_some_and(|entry| entry.before.take().is_some())
    }

    /// What was in the range before the writes of this number: pieces with their places, to be put back in
    /// this order. From now on the writes are undone there. `None`, and nothing is changed: they did not
    /// cover all of it, or what was there is not kept. What is undone already counts as covered.
    pub fn undo(&mut self, number: u64, from: u64, to: u64) -> Option<Vec<(u64, B)>> {
        if number <= self.complete {
            return None;
        }
        let here = |entry: &Entry<B>| entry.write.number == number && entry.write.reaches(from, to);
        let mut covered: Vec<(u64, u64)> = Vec::new();
        for entry in self.entries.iter().filter(|entry| here(entry)) {
            if !entry.undone && entry.before.is_none() {
                return None;
            }
            covered.push((entry.write.from, entry.write.to));
        }
        covered.sort_unstable();
        let end =
            covered.iter().fold(from, |end, (begin, to)| if *begin <= end { end.max(*to) } else { end });
        if end < to {
            return None;
        }
        let mut open: Vec<usize> = (0..self.entries.len())
            .filter(|at| here(&self.entries[*at]) && !self.entries[*at].undone)
            .collect();
        // Of two writes to one place the later covered what the earlier brought.
        open.sort_by_key(|at| std::cmp::Reverse(self.entries[*at].born));
        let mut pieces = Vec::new();
        for at in open {
            self.cut_out(at, from, to);
            let entry = &mut self.entries[at];
            entry.undone = true;
            pieces.extend(entry.before.take().map(|before| (entry.write.from, before)));
        }
        Some(pieces)
    }

    /// Leaves of a write what lies in the range; the rest is listed beside it.
    fn cut_out(&mut self, at: usize, from: u64, to: u64) {
        let Entry { write, before, born, .. } = &mut self.entries[at];
        let (whole, born, mut rests) = (*write, *born, Vec::new());
        let mut rest = |from, to, before| {
            rests.push(Entry { write: ListedWrite { from, to, ..whole }, before, undone: false, born })
        };
        if whole.from < from {
            let inside = before.as_mut().map(|before| before.split_off(from - whole.from));
            rest(whole.from, from, std::mem::replace(before, inside));
            write.from = from;
        }
        if to < whole.to {
            rest(to, whole.to, before.as_mut().map(|before| before.split_off(to - write.from)));
            write.to = to;
        }
        self.entries.extend(rests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64, complete: u64) -> WriteMark {
        WriteMark { number, targets: 0b11, complete, keep: true }
    }

    fn nothing(write: ListedWrite) {
        panic!("{write:?} was given up");
    }

    /// What was in memory, a letter for each block.
    #[derive(Debug, PartialEq, Eq)]
    struct Was(String);

    impl Before for Was {
        fn split_off(&mut self, bytes: u64) -> Was {
            Was(self.0.split_off(usize::try_from(bytes / 4096).expect("small")))
        }
    }

    fn was(blocks: &str) -> Option<Was> {
        Some(Was(blocks.to_owned()))
    }

    fn numbers(ledger: &Ledger<Was>) -> Vec<(u64, bool)> {
        ledger.within(0, u64::MAX / 2).map(|write| (write.number, write.landed)).collect()
    }

    #[test]
    fn a_write_is_listed_until_it_is_complete_everywhere() {
        let mut ledger = Ledger::<Was>::default();
        let first = ledger.begin(mark(7, 0), 0, 4096, None, nothing);
        let second = ledger.begin(mark(8, 0), 4096, 4096, None, nothing);
        assert_eq!(numbers(&ledger), [(7, false), (8, false)]);
        ledger.landed(second);
        assert_eq!(numbers(&ledger), [(7, false), (8, true)]);
        ledger.begin(mark(9, 7), 8192, 4096, None, nothing);
        ledger.landed(first);
        assert_eq!((ledger.complete(), numbers(&ledger)), (7, vec![(8, true), (9, false)]));
        ledger.settle(3);
        assert_eq!(ledger.complete(), 7, "it never goes back");
        assert_eq!(ledger.within(4096, 1).count(), 1);
        assert_eq!(ledger.within(0, 4096).count(), 0);
    }

    #[test]
    fn of_what_is_wiped_nothing_is_listed() {
        let mut ledger = Ledger::<Was>::default();
        let first = ledger.begin(mark(1, 0), 0, 4096, None, nothing);
        let second = ledger.begin(mark(2, 0), 8192, 4096, None, nothing);
        ledger.wiped(0, 4096);
        ledger.landed(first);
        ledger.landed(second);
        assert_eq!(numbers(&ledger), [(2, true)]);
    }

    #[test]
    fn what_there_is_no_room_for_is_given_up_oldest_first() {
        let (mut ledger, mut spilt) = (Ledger::<Was>::default(), Vec::new());
        for number in 1..=LEDGER_WRITES_MAX as u64 + 3 {
            ledger.begin(mark(number, 0), number * 4096, 4096, None, |write| spilt.push(write.number));
        }
        assert_eq!(spilt, [1, 2, 3]);
        assert_eq!(ledger.within(0, u64::MAX / 2).count(), LEDGER_WRITES_MAX);
    }

    #[test]
    fn what_a_write_covered_is_given_back_once_and_known_to_be() {
        let mut ledger = Ledger::default();
        ledger.begin(mark(7, 0), 0, 4 * 4096, was("abcd"), nothing);
        ledger.begin(mark(8, 0), 4096, 4096, was("B"), nothing);
        assert_eq!(ledger.undo(7, 4096, 3 * 4096), Some(vec![(4096, Was("bc".into()))]));
        assert_eq!(ledger.undo(7, 4096, 2 * 4096), Some(vec![]), "asked again");
        let left: Vec<_> =
            ledger.within(0, 1 << 20).map(|write| (write.number, write.from, write.to)).collect();
        assert_eq!(left, [(8, 4096, 8192), (7, 0, 4096), (7, 12288, 16384)]);
        assert_eq!(
            ledger.undo(7, 0, 4 * 4096),
            Some(vec![(0, Was("a".into())), (12288, Was("d".into()))]),
            "the rest of it"
        );
        ledger.settle(7);
        assert_eq!(ledger.undo(7, 0, 4096), None, "it is complete, and nothing is known of it any more");
        assert_eq!(ledger.undo(8, 4096, 8192), Some(vec![(4096, Was("B".into()))]));
        assert!(ledger.within(0, 1 << 20).next().is_none());
    }

    #[test]
    fn what_is_not_kept_in_full_is_not_given_back_at_all() {
        let mut ledger = Ledger::default();
        ledger.begin(mark(7, 0), 0, 8192, was("ab"), nothing);
        ledger.begin(mark(7, 0), 8192, 4096, None, nothing);
        assert!(
            ledger.within(0, 4096).all(|write| write.undo) && ledger.within(8192, 1).all(|write| !write.undo)
        );
        assert_eq!(ledger.undo(7, 0, 12288), None, "of a part nothing is kept");
        assert_eq!(ledger.undo(7, 12288, 16384), None, "it did not reach that");
        assert_eq!(ledger.undo(6, 0, 8192), None, "another write");
        assert_eq!(ledger.within(0, 12288).count(), 2, "nothing was changed");
        assert!(ledger.forget_oldest() && !ledger.forget_oldest());
        assert_eq!(ledger.undo(7, 0, 4096), None);
    }

    #[test]
    fn a_write_that_is_cut_off_is_undone() {
        let mut ledger = Ledger::default();
        let first = ledger.begin(mark(7, 0), 0, 4096, was("a"), nothing);
        let second = ledger.begin(mark(8, 0), 4096, 8192, was("bc"), nothing);
        let third = ledger.begin(mark(9, 0), 16384, 4096, None, nothing);
        ledger.landed(first);
        assert_eq!(ledger.cut_off(first), None, "all of it is there");
        assert_eq!(ledger.cut_off(second), Some((4096, Was("bc".into()))));
        assert_eq!((ledger.cut_off(second), ledger.cut_off(third)), (None, None), "nothing is kept");
        assert_eq!(numbers(&ledger), [(7, true), (9, false)]);
        assert_eq!(ledger.undo(8, 4096, 12288), Some(vec![]), "asked again");
        // It is sent again.
        ledger.begin(mark(8, 0), 4096, 8192, was("bc"), nothing);
        assert_eq!(ledger.undo(8, 4096, 12288), Some(vec![(4096, Was("bc".into()))]));
        ledger.settle(9);
        assert_eq!(ledger.cut_off(third), None, "it is complete");
    }

    #[test]
    fn of_a_write_that_was_sent_twice_the_first_covered_what_counts() {
        let mut ledger = Ledger::default();
        ledger.begin(mark(7, 0), 0, 4096, was("a"), nothing);
        ledger.begin(mark(7, 0), 0, 4096, was("A"), nothing);
        assert_eq!(ledger.undo(7, 0, 4096), Some(vec![(0, Was("A".into())), (0, Was("a".into()))]));
        let mut ledger = Ledger::default();
        ledger.begin(mark(7, 0), 0, 8192, was("ab"), nothing);
        ledger.begin(mark(7, 0), 0, 8192, was("AB"), nothing);
        ledger.undo(7, 0, 4096);
        assert_eq!(ledger.undo(7, 4096, 8192), Some(vec![(4096, Was("B".into())), (4096, Was("b".into()))]));
    }
}
