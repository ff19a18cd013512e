//! Which writes of a volume a donor was sent, as long as it has not heard that they are complete everywhere:
//! what the next writer asks for when the last one died, to tell rows that fit together from rows that do
//! not.
//!
//! Owns the list: for each write its number, the slots that it is for, its place, and whether all of it is in
//! memory. Never: data, locks, or what follows for a row (`volume::judge`).
//! Invariants: a write stays listed until its client says that it is complete or its extent is wiped; where
//! there are more than `LEDGER_WRITES_MAX`, the oldest become ranges that count as written by nobody knows
//! which write, so nothing is forgotten. Called by `rim`'s donor and by `sim`. Tests: below, the simulator.

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
}

/// A write that is on its way into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The list of one volume's writes on one donor.
#[derive(Debug, Default)]
pub struct Ledger {
    complete: u64,
    /// In the order in which they came, which is nearly that of their numbers.
    writes: VecDeque<ListedWrite>,
    /// Of the first of them.
    first: u64,
}

impl Ledger {
    /// Before a write touches memory. `spill` takes what the list has no room for.
    pub fn begin(
        &mut self,
        mark: WriteMark,
        offset: u64,
        len: u64,
        mut spill: impl FnMut(ListedWrite),
    ) -> Ticket {
        self.settle(mark.complete);
        if self.writes.len() >= LEDGER_WRITES_MAX {
            let oldest = self.writes.pop_front().expect("it is full");
            self.first += 1;
            if oldest.number > self.complete {
                spill(oldest);
            }
        }
        let WriteMark { number, targets, .. } = mark;
        self.writes.push_back(ListedWrite { from: offset, to: offset + len, number, targets, landed: false });
        Ticket(self.first + self.writes.len() as u64 - 1)
    }

    /// All of it is in memory.
    pub fn landed(&mut self, Ticket(ticket): Ticket) {
        let at = ticket.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(write) = at.and_then(|at| self.writes.get_mut(at)) {
            write.landed = true;
        }
    }

    /// The client says that all writes up to this number are complete everywhere.
    pub fn settle(&mut self, complete: u64) {
        self.complete = self.complete.max(complete);
        while self.writes.front().is_some_and(|write| write.number <= self.complete) {
            self.writes.pop_front();
            self.first += 1;
        }
    }

    /// Whether nothing is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.iter().all(|write| write.number <= self.complete)
    }

    /// The greatest [`WriteMark::complete`] so far; 0 before the first.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Those that touch the range and are not known to be complete.
    pub fn within(&self, offset: u64, len: u64) -> impl Iterator<Item = ListedWrite> {
        let open = move |write: &&ListedWrite| write.number > self.complete;
        let there = move |write: &&ListedWrite| write.from < offset + len && offset < write.to;
        self.writes.iter().filter(open).filter(there).copied()
    }

    /// Nobody's writes are in this range any more.
    pub fn wiped(&mut self, offset: u64, len: u64) {
        for write in &mut self.writes {
            if write.from < offset + len && offset < write.to {
                // Stays in its place, for tickets count places.
                (write.number, write.to) = (0, write.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64, complete: u64) -> WriteMark {
        WriteMark { number, targets: 0b11, complete }
    }

    fn nothing(write: ListedWrite) {
        panic!("{write:?} was given up");
    }

    fn numbers(ledger: &Ledger) -> Vec<(u64, bool)> {
        ledger.within(0, u64::MAX / 2).map(|write| (write.number, write.landed)).collect()
    }

    #[test]
    fn a_write_is_listed_until_it_is_complete_everywhere() {
        let mut ledger = Ledger::default();
        let first = ledger.begin(mark(7, 0), 0, 4096, nothing);
        let second = ledger.begin(mark(8, 0), 4096, 4096, nothing);
        assert_eq!(numbers(&ledger), [(7, false), (8, false)]);
        ledger.landed(second);
        assert_eq!(numbers(&ledger), [(7, false), (8, true)]);
        ledger.begin(mark(9, 7), 8192, 4096, nothing);
        ledger.landed(first);
        assert_eq!((ledger.complete(), numbers(&ledger)), (7, vec![(8, true), (9, false)]));
        ledger.settle(3);
        assert_eq!(ledger.complete(), 7, "it never goes back");
        assert_eq!(ledger.within(4096, 1).count(), 1);
        assert_eq!(ledger.within(0, 4096).count(), 0);
    }

    #[test]
    fn of_what_is_wiped_nothing_is_listed() {
        let mut ledger = Ledger::default();
        let first = ledger.begin(mark(1, 0), 0, 4096, nothing);
        let second = ledger.begin(mark(2, 0), 8192, 4096, nothing);
        ledger.wiped(0, 4096);
        ledger.landed(first);
        ledger.landed(second);
        assert_eq!(numbers(&ledger), [(2, true)]);
    }

    #[test]
    fn what_there_is_no_room_for_is_given_up_oldest_first() {
        let (mut ledger, mut spilt) = (Ledger::default(), Vec::new());
        for number in 1..=LEDGER_WRITES_MAX as u64 + 3 {
            ledger.begin(mark(number, 0), number * 4096, 4096, |write| spilt.push(write.number));
        }
        assert_eq!(spilt, [1, 2, 3]);
        assert_eq!(ledger.within(0, u64::MAX / 2).count(), LEDGER_WRITES_MAX);
    }
}
