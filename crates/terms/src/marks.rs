//! What both ends say of numbered writes: MARK, and the entries of a LEDGER chunk.
//!
//! Never: which writes have a number, or when they are complete. Tests: below.

use cheetah_core::donor::{ListedWrite, WriteMark};
use cheetah_core::limits::{INTENT_REGIONS_MAX, LEDGER_WRITES_MAX};
use cheetah_nbd::limits::LEDGER_ENTRIES_MAX;
use cheetah_nbd::{LedgerEntry, Mark};

// What is listed is sent whole: a write that is left out would count as complete.
const _: () = assert!(LEDGER_WRITES_MAX + INTENT_REGIONS_MAX * 2 <= LEDGER_ENTRIES_MAX);

pub(crate) const fn spoken(mark: WriteMark) -> Mark {
    let WriteMark { number, targets, complete, keep } = mark;
    Mark { number, targets, complete, keep }
}

pub(crate) const fn heard(mark: Mark) -> WriteMark {
    let Mark { number, targets, complete, keep } = mark;
    WriteMark { number, targets, complete, keep }
}

pub(crate) const fn entry(write: ListedWrite) -> LedgerEntry {
    let ListedWrite { from, to, number, targets, landed, undo, stale } = write;
    LedgerEntry { from, to, number, targets, landed, undo, stale }
}

pub(crate) const fn listed(entry: LedgerEntry) -> ListedWrite {
    let LedgerEntry { from, to, number, targets, landed, undo, stale } = entry;
    ListedWrite { from, to, number, targets, landed, undo, stale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let mark = WriteMark { number: 7, targets: 0b101, complete: 5, keep: true };
        assert_eq!(heard(spoken(mark)), mark);
        assert_eq!(heard(Mark::of(&spoken(mark).header())), mark, "and by way of its header");
        let write = ListedWrite {
            from: 4096,
            to: 8192,
            number: 7,
            targets: 0b101,
            landed: true,
            undo: true,
            stale: true,
        };
        assert_eq!(listed(entry(write)), write);
    }
}
