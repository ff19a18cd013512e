//! What a block is after a stop: which of the entries that name it counts.
//!
//! Owns that rule. Never: reading a block. A write is put down when the one before it is done. So a block is
//! what its newest entry says that it becomes, or what that says that it was. Where one of these is data, its
//! checksum tells; where one is none, it needs nothing to be written, and holds if the other does not. A block
//! that fits neither was torn by a write that nobody was told was done: it keeps the newer checksum, so that
//! it is found to be wrong wherever it is read. Tests: below, `rim::disk`.

use super::{Entry, Noted};
use std::collections::{BTreeMap, BTreeSet};

/// What the log says, from its oldest page on.
#[derive(Debug, Default)]
pub struct Replay {
    wiped: BTreeSet<u32>,
    /// For each block what it was and what it becomes, by its newest entry.
    blocks: BTreeMap<u64, (Noted, Noted)>,
}

/// What became of a block that the log names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is this.
    Is(Noted),
    /// What is there fits nothing that it can be: it counts as this, and is wrong.
    Torn(Noted),
}

/// One of the things that the log asks to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The block's number on this disk.
    pub block: u64,
    /// To tell what it is, its content has to be read.
    pub is_read: bool,
}

impl Replay {
    /// The next entry of the log. `extent_of`: which extent a block lies in.
    pub fn take(&mut self, entry: Entry, extent_of: impl Fn(u64) -> u32) {
        match entry {
            Entry::Block { block, old, new } => {
                self.blocks.insert(block, (old, new));
            }
            Entry::Wiped { extent } => {
                self.blocks.retain(|block, _| extent_of(*block) != extent);
                self.wiped.insert(extent);
            }
        }
    }

    /// Extents of which all that the table has is void.
    pub fn wiped(&self) -> impl Iterator<Item = u32> + '_ {
        self.wiped.iter().copied()
    }

    /// The blocks that the log names, ascending.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.blocks.iter().map(|(block, (_, new))| Change { block: *block, is_read: new.is_data })
    }

    /// What the block is, if what is there has this checksum; None: it cannot be read.
    #[must_use]
    pub fn tell(&self, block: u64, found: Option<u32>) -> Option<Told> {
        let (old, new) = self.blocks.get(&block)?;
        let fits = |noted: &&Noted| !noted.is_data || Some(noted.sum) == found;
        Some([new, old].into_iter().find(fits).map_or(Told::Torn(*new), |noted| Told::Is(*noted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn data(sum: u32) -> Noted {
        Noted { sum, is_data: true, is_known: true }
    }

    const ZEROS: Noted = Noted { sum: 9, is_data: false, is_known: true };

    fn replay(entries: &[Entry]) -> Replay {
        let mut replay = Replay::default();
        entries.iter().for_each(|entry| replay.take(*entry, |block| (block / 10) as u32));
        replay
    }

    #[test]
    fn a_block_is_what_its_newest_entry_says_that_it_was_or_becomes() {
        let replay = replay(&[
            Entry::Block { block: 1, old: data(1), new: data(2) },
            Entry::Block { block: 1, old: data(2), new: data(3) },
        ]);
        for sum in 2..=3 {
            assert_eq!(replay.tell(1, Some(sum)), Some(Told::Is(data(sum))));
        }
        assert_eq!(replay.tell(1, Some(1)), Some(Told::Torn(data(3))), "that was before the last but one");
        assert_eq!(replay.tell(1, None), Some(Told::Torn(data(3))), "what cannot be read is wrong");
        assert_eq!(replay.tell(2, Some(1)), None, "the log says nothing of it");
    }

    #[test]
    fn zeros_need_nothing_on_the_disk() {
        let zeroed = replay(&[Entry::Block { block: 1, old: data(1), new: ZEROS }]);
        assert_eq!(zeroed.tell(1, Some(1)), Some(Told::Is(ZEROS)));
        assert!(zeroed.changes().all(|change| !change.is_read));
        // Over zeros, a write that was torn leaves zeros: nobody was told that it was done.
        let written = replay(&[Entry::Block { block: 1, old: ZEROS, new: data(5) }]);
        assert_eq!(written.tell(1, Some(6)), Some(Told::Is(ZEROS)));
        assert_eq!(written.tell(1, Some(5)), Some(Told::Is(data(5))));
        assert!(written.changes().all(|change| change.is_read));
        // But not once something else was there in between.
        let again = replay(&[
            Entry::Block { block: 1, old: ZEROS, new: data(5) },
            Entry::Block { block: 1, old: data(5), new: data(6) },
        ]);
        assert_eq!(again.tell(1, Some(7)), Some(Told::Torn(data(6))));
    }

    #[test]
    fn what_was_before_a_wipe_does_not_come_back() {
        let replay = replay(&[
            Entry::Block { block: 11, old: ZEROS, new: data(1) },
            Entry::Block { block: 21, old: ZEROS, new: data(1) },
            Entry::Wiped { extent: 1 },
            Entry::Block { block: 12, old: ZEROS, new: data(2) },
        ]);
        assert_eq!(replay.wiped().collect::<Vec<_>>(), [1]);
        assert_eq!(replay.changes().map(|change| change.block).collect::<Vec<_>>(), [12, 21]);
        assert_eq!(replay.tell(11, Some(1)), None);
    }
}
