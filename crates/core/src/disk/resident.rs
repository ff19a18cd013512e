//! Which blocks of a disk are in memory, who holds them there, and which are on their way.
//!
//! Owns the choice (core's `Cache`), the counts of holds, what is being read and who waits for it. Never:
//! the bytes. Invariants: what is held, or waited for, does not go; what was written since a read of it
//! began is not covered by what that brings (it is *spoiled*); of what is on its way nothing is read
//! twice. Called by `rim::disk`, under one lock, and the simulator. Tests: below.

use super::Cache;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// So many blocks are read at once: what waits for one of them waits for all.
const BRING_BLOCKS: u64 = 64;

/// What became of the wish to hold blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// All of them are here.
    Here,
    /// Some are on their way; looked at again when that is told, they may be here.
    Waits,
}

/// The blocks of one disk that are in memory, or on their way there. `T`: who waits for one.
#[derive(Debug)]
pub struct Resident<T> {
    cache: Cache,
    held: BTreeMap<u64, u32>,
    /// Of each block that is being read, by which reading, and whether it was written meanwhile.
    bringing: BTreeMap<u64, (u64, bool)>,
    waiting: BTreeMap<u64, Vec<T>>,
    brings: u64,
    /// What is in memory of these does not count: the disk does.
    doomed: BTreeSet<u64>,
}

impl<T: Clone> Resident<T> {
    /// Nothing is in memory, which has room for so many blocks of so many extents.
    #[must_use]
    pub fn new(extents: u32, room: u64) -> Resident<T> {
        Resident {
            cache: Cache::new(extents, room),
            held: BTreeMap::new(),
            bringing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            brings: 0,
            doomed: BTreeSet::new(),
        }
    }

    /// Whether the block is in memory.
    #[must_use]
    pub fn has(&self, block: u64) -> bool {
        self.cache.has(block)
    }

    /// Holds these from now on; then as `look`. What is on its way is held as well: it would not be here
    /// when the last of it has come, where many ask for more than there is room for.
    pub fn hold(
        &mut self,
        blocks: Range<u64>,
        is_data: impl Fn(u64) -> bool,
        who: &T,
    ) -> (Hold, Vec<(u64, Range<u64>)>) {
        blocks.clone().for_each(|block| *self.held.entry(block).or_insert(0) += 1);
        self.look(blocks, is_data, who)
    }

    /// Whether all of these that are data are here. Otherwise `who` is to be told when one of the readings
    /// under way is done; and what has to be read now, by the number of its reading.
    pub fn look(
        &mut self,
        blocks: Range<u64>,
        is_data: impl Fn(u64) -> bool,
        who: &T,
    ) -> (Hold, Vec<(u64, Range<u64>)>) {
        let missing = |block: &u64| is_data(*block) && !self.cache.has(*block);
        let missing: Vec<u64> = blocks.clone().filter(missing).collect();
        if missing.is_empty() {
            for block in blocks {
                if self.cache.has(block) {
                    self.cache.used(block);
                }
            }
            return (Hold::Here, Vec::new());
        }
        let mut brings: Vec<(u64, Range<u64>)> = Vec::new();
        let mut waits_for = BTreeSet::new();
        for block in missing {
            if let Some((bring, _)) = self.bringing.get(&block) {
                waits_for.insert(*bring);
                continue;
            }
            let bring = match brings.last_mut() {
                Some((bring, run)) if run.end == block && run.end - run.start < BRING_BLOCKS => {
                    run.end += 1;
                    *bring
                }
                _ => {
                    self.brings += 1;
                    brings.push((self.brings, block..block + 1));
                    waits_for.insert(self.brings);
                    self.brings
                }
            };
            self.bringing.insert(block, (bring, false));
        }
        for bring in waits_for {
            self.waiting.entry(bring).or_default().push(who.clone());
        }
        (Hold::Waits, brings)
    }

    /// A reading is done: gives `take` what it brought, block by block, of what counts; who waits for it.
    #[must_use]
    pub fn brought(&mut self, bring: u64, blocks: Range<u64>, mut take: impl FnMut(u64) -> bool) -> Vec<T> {
        for block in blocks {
            let Some((_, spoiled)) = self.bringing.remove(&block) else { continue };
            if !spoiled && !self.cache.has(block) && take(block) {
                self.cache.came(block);
            }
        }
        self.waiting.remove(&bring).unwrap_or_default()
    }

    /// These are about to be written in full.
    pub fn begin(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.spoil(block);
            self.cache.came(block);
            *self.held.entry(block).or_insert(0) += 1;
        }
    }

    fn spoil(&mut self, block: u64) {
        self.bringing.entry(block).and_modify(|(_, spoiled)| *spoiled = true);
    }

    /// These are zeros, and take no memory.
    pub fn all_went(&mut self, blocks: &[u64]) {
        blocks.iter().for_each(|block| self.cache.went(*block));
    }

    /// Nothing of these is in memory, and nobody holds them.
    pub fn forget(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.spoil(block);
            self.cache.went(block);
            self.doomed.remove(&block);
        }
    }

    /// What is in memory of these goes as soon as nobody holds it.
    pub fn doom(&mut self, blocks: Range<u64>) {
        self.doomed.extend(blocks);
    }

    /// One hold less; whether some of these are doomed, and held by nobody.
    pub fn let_go(&mut self, blocks: Range<u64>) -> bool {
        let mut has_doomed = false;
        for block in blocks {
            if let Some(count) = self.held.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    self.held.remove(&block);
                    has_doomed |= self.doomed.contains(&block);
                }
            }
        }
        has_doomed
    }

    /// What is doomed of these and held by nobody: it is not here any more.
    pub fn take_doomed(&mut self, blocks: Range<u64>) -> Vec<u64> {
        let (doomed, held) = (&mut self.doomed, &self.held);
        let gone: Vec<u64> =
            blocks.filter(|block| !held.contains_key(block) && doomed.remove(block)).collect();
        self.all_went(&gone);
        gone
    }

    /// What goes because there is too much, ascending.
    pub fn evict(&mut self) -> Vec<u64> {
        let mut gone = Vec::new();
        while self.cache.excess() > 0 {
            let held = &self.held;
            let Some(block) = self.cache.evict(|block| held.contains_key(&block)) else { break };
            gone.push(block);
        }
        gone.sort_unstable();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that hold data.
    fn data(blocks: Range<u64>) -> impl Fn(u64) -> bool {
        move |block| blocks.contains(&block)
    }

    #[test]
    fn what_is_on_its_way_is_not_read_twice_and_all_who_wait_are_told() {
        let mut resident = Resident::new(1, 100);
        let (hold, brings) = resident.hold(0..6, data(0..4), &'a');
        assert_eq!((hold, brings), (Hold::Waits, vec![(1, 0..4)]), "zeros are not read");
        assert_eq!(resident.hold(2..3, data(0..4), &'b'), (Hold::Waits, vec![]));
        assert_eq!(resident.brought(1, 0..4, |_| true), ['a', 'b']);
        assert_eq!(resident.hold(0..6, data(0..4), &'a'), (Hold::Here, vec![]));
    }

    #[test]
    fn what_was_written_meanwhile_is_not_covered() {
        let mut resident = Resident::new(1, 100);
        resident.hold(0..2, data(0..2), &());
        resident.begin(0..1);
        let mut taken = Vec::new();
        let _ = resident.brought(1, 0..2, |block| {
            taken.push(block);
            true
        });
        assert_eq!(taken, [1]);
        // Also when what was written has gone to the disk and out of memory again.
        resident.begin(1..2);
        resident.all_went(&[0, 1]);
        resident.hold(0..2, data(0..2), &());
        resident.begin(0..2);
        resident.all_went(&[0, 1]);
        let _ = resident.brought(2, 0..2, |_| panic!("it is older than what was written"));
    }

    #[test]
    fn who_asks_for_more_than_there_is_room_for_gets_it() {
        let mut resident = Resident::new(1, 4);
        let (_, first) = resident.hold(0..8, data(0..200), &'a');
        let (_, second) = resident.hold(100..180, data(0..200), &'b');
        for (bring, blocks) in [&first[..], &second[..]].concat() {
            let _ = resident.brought(bring, blocks, |_| true);
            assert_eq!(resident.evict(), Vec::<u64>::new(), "somebody waits for each of them");
        }
        assert_eq!(resident.look(0..8, data(0..200), &'a'), (Hold::Here, vec![]));
        assert_eq!(resident.look(100..180, data(0..200), &'b'), (Hold::Here, vec![]));
        resident.let_go(0..8);
        resident.let_go(100..180);
        assert_eq!(resident.evict().len(), 84);
    }

    #[test]
    fn what_is_held_stays_and_what_is_doomed_goes_when_it_is_not() {
        let mut resident = Resident::<()>::new(1, 2);
        resident.begin(0..4);
        assert_eq!(resident.evict(), Vec::<u64>::new());
        assert!(!resident.let_go(0..2));
        assert_eq!(resident.evict(), [0, 1]);
        resident.doom(2..3);
        assert!(resident.take_doomed(2..3).is_empty(), "somebody holds it");
        assert!(resident.let_go(2..4));
        assert_eq!(resident.take_doomed(2..4), [2]);
        assert!(!resident.has(2) && resident.has(3));
    }
}
