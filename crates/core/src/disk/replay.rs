//! What a block is after a stop: which of the entries that name it counts.
//!
//! Owns that rule. Never: reading a block. Writes are put down when those before them are done. So a block is
//! what its newest entry says that it becomes; only of those that were put down last it may be what that says
//! that it was. Where one of these is data, its checksum tells; where one is none, it needs nothing to be
//! written, and holds if the other does not. A block that fits neither was torn by a write that nobody was
//! told was done, or has rotted: it keeps the newer checksum, so that it is found to be wrong wherever it is
//! read. Its nonce and authentication tag go with that, for its checksum covers them: where it is what it
//! was, those of the entry before, or else the table's. Tests: below, `rim::disk`.

use super::auths::Auth;
use super::{Entry, Noted};
use crate::limits::{BLOCK_BYTES, DIRTY_REGION_BYTES, INTENT_REGION_BLOCKS};
use std::collections::{BTreeMap, BTreeSet};

/// What the log says, from its oldest page on.
#[derive(Debug, Default)]
pub struct Replay {
    wiped: BTreeSet<u32>,
    blocks: BTreeMap<u64, Newest>,
    /// Regions of which others may not have what is here.
    marked: BTreeSet<u64>,
    /// Marks behind which nothing says yet that they are all.
    marks: Vec<u64>,
    /// Regions of which memory may have had what the disk has not.
    intended: BTreeSet<u64>,
}

/// What a block's newest entry says.
#[derive(Debug)]
struct Newest {
    /// What it may still be.
    old: Option<Noted>,
    /// The auth that it has then. None: that in the table.
    old_auth: Option<Auth>,
    /// What it becomes.
    new: Noted,
    auth: Auth,
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
    /// The next entry of the log. `is_done`: others were put down behind it. `extent_of`: which extent a
    /// block lies in.
    pub fn take(&mut self, entry: Entry, is_done: bool, extent_of: impl Fn(u64) -> u32) {
        match entry {
            Entry::Block { block, old, new, auth } => {
                let old_auth = self.blocks.get(&block).map(|before| before.auth);
                let old = (!is_done).then_some(old);
                self.blocks.insert(block, Newest { old, old_auth, new, auth });
                self.marked.insert(block * BLOCK_BYTES / DIRTY_REGION_BYTES);
            }
            Entry::Mark { region } => self.marks.push(region),
            Entry::Marked { marks } => {
                let all = std::mem::take(&mut self.marks);
                if let Some(from) = all.len().checked_sub(marks as usize) {
                    self.marked = all[from..].iter().copied().collect();
                }
            }
            Entry::Intent { region } => {
                self.intended.insert(region);
            }
            Entry::Clean { region } => {
                self.intended.remove(&region);
            }
            Entry::Wiped { extent } => {
                self.blocks.retain(|block, _| extent_of(*block) != extent);
                self.marked.retain(|region| extent_of(region * (DIRTY_REGION_BYTES / BLOCK_BYTES)) != extent);
                self.intended.retain(|region| extent_of(region * INTENT_REGION_BLOCKS) != extent);
                self.wiped.insert(extent);
            }
        }
    }

    /// Begins with these regions marked, and these intended.
    #[must_use]
    pub fn with_marks(marked: &[u64], intended: &BTreeSet<u64>) -> Replay {
        let marked = marked.iter().copied().collect();
        Replay { marked, intended: intended.clone(), ..Replay::default() }
    }

    /// Regions of `INTENT_REGION_BYTES` of which the disk may not have what was acknowledged.
    #[must_use]
    pub fn intended(&self) -> &BTreeSet<u64> {
        &self.intended
    }

    /// Regions of `DIRTY_REGION_BYTES` of which others may not have what is here, ascending.
    pub fn marked(&self) -> impl Iterator<Item = u64> + '_ {
        self.marked.iter().copied()
    }

    /// Extents of which all that the table has is void.
    pub fn wiped(&self) -> impl Iterator<Item = u32> + '_ {
        self.wiped.iter().copied()
    }

    /// The blocks that the log names, ascending.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.blocks.iter().map(|(block, newest)| Change { block: *block, is_read: newest.new.is_data })
    }

    /// What the block is, if the bytes that are there have this checksum, and its auth. None: they cannot be
    /// read. `in_table`: the auth that the table has of it. `sum`: what an auth adds to a checksum.
    #[must_use]
    pub fn tell(
        &self,
        block: u64,
        found: Option<u32>,
        in_table: Auth,
        sum: impl Fn(&Auth) -> u32,
    ) -> Option<(Told, Auth)> {
        let Newest { old, old_auth, new, auth } = self.blocks.get(&block)?;
        let fits = |(noted, auth): &(Noted, Auth)| {
            !noted.is_data || found.is_some_and(|found| found ^ sum(auth) == noted.sum)
        };
        let old = old.map(|old| (old, old_auth.unwrap_or(in_table)));
        let is = std::iter::once((*new, *auth)).chain(old).find(fits);
        Some(is.map_or((Told::Torn(*new), *auth), |(noted, auth)| (Told::Is(noted), auth)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::NO_AUTH;
    use super::*;

    const fn data(sum: u32) -> Noted {
        Noted { sum, is_data: true, is_known: true }
    }

    const ZEROS: Noted = Noted { sum: 9, is_data: false, is_known: true };

    fn replay(entries: &[Entry]) -> Replay {
        replayed(entries, false)
    }

    fn replayed(entries: &[Entry], is_done: bool) -> Replay {
        let mut replay = Replay::default();
        entries.iter().for_each(|entry| replay.take(*entry, is_done, |block| (block / 10) as u32));
        replay
    }

    /// Of what has no auths.
    fn tell(replay: &Replay, block: u64, found: Option<u32>) -> Option<Told> {
        replay.tell(block, found, NO_AUTH, |_| 0).map(|(told, _)| told)
    }

    #[test]
    fn an_auth_goes_with_the_content_that_it_belongs_to() {
        let auth = |byte: u8| [byte; 28];
        let sum = |auth: &Auth| u32::from(auth[0]) << 8;
        let noted = |content: u32, byte: u8| data(content ^ sum(&auth(byte)));
        let write = |old: (u32, u8), new: (u32, u8)| Entry::Block {
            block: 1,
            old: noted(old.0, old.1),
            new: noted(new.0, new.1),
            auth: auth(new.1),
        };
        let told = |replay: &Replay, found| replay.tell(1, Some(found), auth(1), sum);
        // Of one entry what was before is in the table.
        let one = replay(&[write((1, 1), (2, 2))]);
        assert_eq!(told(&one, 1), Some((Told::Is(noted(1, 1)), auth(1))));
        assert_eq!(told(&one, 2), Some((Told::Is(noted(2, 2)), auth(2))));
        // Of several it is in the last but one.
        let two = replay(&[write((1, 1), (2, 2)), write((2, 2), (3, 3))]);
        assert_eq!(told(&two, 2), Some((Told::Is(noted(2, 2)), auth(2))));
        assert_eq!(told(&two, 3), Some((Told::Is(noted(3, 3)), auth(3))));
        assert_eq!(told(&two, 1), Some((Told::Torn(noted(3, 3)), auth(3))), "that was before");
        // What a table that was written meanwhile has does not make old content look right.
        let other = one.tell(1, Some(1), auth(9), sum);
        assert_eq!(other, Some((Told::Torn(noted(2, 2)), auth(2))));
        // Zeros have none.
        let zeroed = replay(&[Entry::Block { block: 1, old: noted(1, 1), new: ZEROS, auth: NO_AUTH }]);
        assert_eq!(told(&zeroed, 1), Some((Told::Is(ZEROS), NO_AUTH)));
    }

    #[test]
    fn what_was_done_and_has_rotted_is_wrong_and_not_what_it_was_before() {
        let entries = [Entry::Block { block: 1, old: ZEROS, new: data(5), auth: NO_AUTH }];
        assert_eq!(tell(&replayed(&entries, false), 1, Some(6)), Some(Told::Is(ZEROS)));
        assert_eq!(tell(&replayed(&entries, true), 1, Some(6)), Some(Told::Torn(data(5))));
        assert_eq!(tell(&replayed(&entries, true), 1, Some(5)), Some(Told::Is(data(5))));
    }

    #[test]
    fn a_block_is_what_its_newest_entry_says_that_it_was_or_becomes() {
        let replay = replay(&[
            Entry::Block { block: 1, old: data(1), new: data(2), auth: NO_AUTH },
            Entry::Block { block: 1, old: data(2), new: data(3), auth: NO_AUTH },
        ]);
        for sum in 2..=3 {
            assert_eq!(tell(&replay, 1, Some(sum)), Some(Told::Is(data(sum))));
        }
        assert_eq!(tell(&replay, 1, Some(1)), Some(Told::Torn(data(3))), "that was before the last but one");
        assert_eq!(tell(&replay, 1, None), Some(Told::Torn(data(3))), "what cannot be read is wrong");
        assert_eq!(tell(&replay, 2, Some(1)), None, "the log says nothing of it");
    }

    #[test]
    fn marks_count_once_all_of_them_are_put_down() {
        let block = |block| Entry::Block { block, old: ZEROS, new: data(1), auth: NO_AUTH };
        let mark = |region| Entry::Mark { region };
        let marked = |entries: &[Entry]| replay(entries).marked().collect::<Vec<_>>();
        let blocks = DIRTY_REGION_BYTES / BLOCK_BYTES;
        assert_eq!(marked(&[block(0), block(5 * blocks)]), [0, 5]);
        let all = [block(0), block(5 * blocks), mark(5), Entry::Marked { marks: 1 }, block(7 * blocks)];
        assert_eq!(marked(&all), [5, 7]);
        assert_eq!(marked(&[block(0), mark(5)]), [0], "they were cut off");
        assert_eq!(marked(&[block(0), mark(5), Entry::Marked { marks: 2 }]), [0], "some are missing");
        assert!(marked(&[block(0), Entry::Marked { marks: 0 }]).is_empty());
        let extent = (5 * blocks / 10) as u32;
        assert_eq!(marked(&[block(0), block(5 * blocks), Entry::Wiped { extent }]), [0], "nothing is there");
    }

    #[test]
    fn a_region_with_an_intent_is_older_until_it_is_clean_or_wiped() {
        let intended = |entries: &[Entry]| replay(entries).intended().iter().copied().collect::<Vec<_>>();
        let (intent, clean) = (|region| Entry::Intent { region }, |region| Entry::Clean { region });
        assert_eq!(intended(&[intent(1), intent(2), clean(1)]), [2]);
        assert_eq!(intended(&[intent(1), clean(1), intent(1)]), [1]);
        let first = INTENT_REGION_BLOCKS / 10;
        assert_eq!(intended(&[intent(1), intent(2), Entry::Wiped { extent: first as u32 }]), [2]);
    }

    #[test]
    fn zeros_need_nothing_on_the_disk() {
        let zeroed = replay(&[Entry::Block { block: 1, old: data(1), new: ZEROS, auth: NO_AUTH }]);
        assert_eq!(tell(&zeroed, 1, Some(1)), Some(Told::Is(ZEROS)));
        assert!(zeroed.changes().all(|change| !change.is_read));
        // Over zeros, a write that was torn leaves zeros: nobody was told that it was done.
        let written = replay(&[Entry::Block { block: 1, old: ZEROS, new: data(5), auth: NO_AUTH }]);
        assert_eq!(tell(&written, 1, Some(6)), Some(Told::Is(ZEROS)));
        assert_eq!(tell(&written, 1, Some(5)), Some(Told::Is(data(5))));
        assert!(written.changes().all(|change| change.is_read));
        // But not once something else was there in between.
        let again = replay(&[
            Entry::Block { block: 1, old: ZEROS, new: data(5), auth: NO_AUTH },
            Entry::Block { block: 1, old: data(5), new: data(6), auth: NO_AUTH },
        ]);
        assert_eq!(tell(&again, 1, Some(7)), Some(Told::Torn(data(6))));
    }

    #[test]
    fn what_was_before_a_wipe_does_not_come_back() {
        let replay = replay(&[
            Entry::Block { block: 11, old: ZEROS, new: data(1), auth: NO_AUTH },
            Entry::Block { block: 21, old: ZEROS, new: data(1), auth: NO_AUTH },
            Entry::Wiped { extent: 1 },
            Entry::Block { block: 12, old: ZEROS, new: data(2), auth: NO_AUTH },
        ]);
        assert_eq!(replay.wiped().collect::<Vec<_>>(), [1]);
        assert_eq!(replay.changes().map(|change| change.block).collect::<Vec<_>>(), [12, 21]);
        assert_eq!(tell(&replay, 11, Some(1)), None);
    }
}
