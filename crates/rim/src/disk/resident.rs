//! Which blocks of a disk are in memory, who holds them there, and which are on their way.
//!
//! Owns the choice (core's `Cache`), the counts of holds, what is being read and who waits for it. Never: the
//! bytes. Invariants: what is held does not go; what was written since a read of it began is not covered by
//! what that brings (it is *spoiled*); of what is on its way nothing is read twice. Called by `disk` and
//! `threads`, under one lock. Tests: below.

use crate::arena::Arena;
use cheetah_core::disk::Cache;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use tokio::sync::mpsc;

/// So many blocks are read at once: what waits for one of them waits for all.
const BRING_BLOCKS: u64 = 64;

/// Tells a connection that what it waited for is done.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    pub(crate) tell: mpsc::UnboundedSender<Told>,
    /// Which of the things that it waits for.
    pub(crate) waits_for: u64,
}

/// What a connection waited for has come.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) waits_for: u64,
    pub(crate) result: io::Result<()>,
    /// Of a check: whether each block is right.
    pub(crate) right: Vec<bool>,
}

impl Teller {
    pub(crate) fn tell(&self, result: io::Result<()>) {
        self.say(result, Vec::new());
    }

    pub(super) fn say(&self, result: io::Result<()>, right: Vec<bool>) {
        // A connection that has ended waits for nothing.
        let _ = self.tell.send(Told { waits_for: self.waits_for, result, right });
    }
}

/// What became of the wish to hold blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// All of them are here, and stay.
    Held,
    /// Some are on their way; asked again when it is told, they may be here.
    Waits,
}

#[derive(Debug)]
pub(super) struct Resident {
    cache: Cache,
    held: HashMap<u64, u32>,
    /// Of each block that is being read, by which reading, and whether it was written meanwhile.
    bringing: HashMap<u64, (u64, bool)>,
    waiting: HashMap<u64, Vec<Teller>>,
    brings: u64,
    /// What is in memory of these does not count: the disk does.
    doomed: HashSet<u64>,
}

impl Resident {
    pub(super) fn new(extents: u32, room: u64) -> Resident {
        Resident {
            cache: Cache::new(extents, room),
            held: HashMap::new(),
            bringing: HashMap::new(),
            waiting: HashMap::new(),
            brings: 0,
            doomed: HashSet::new(),
        }
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.cache.has(block)
    }

    /// Holds these, if all of them that are data are here. Otherwise `teller` is told when one of the
    /// readings under way is done; and what has to be read now, by the number of its reading.
    pub(super) fn hold(
        &mut self,
        blocks: Range<u64>,
        arena: &Arena,
        teller: &Teller,
    ) -> (Hold, Vec<(u64, Range<u64>)>) {
        let missing = |block: &u64| arena.is_present(*block) && !self.cache.has(*block);
        let missing: Vec<u64> = blocks.clone().filter(missing).collect();
        if missing.is_empty() {
            for block in blocks {
                if self.cache.has(block) {
                    self.cache.used(block);
                }
                *self.held.entry(block).or_insert(0) += 1;
            }
            return (Hold::Held, Vec::new());
        }
        let mut brings: Vec<(u64, Range<u64>)> = Vec::new();
        let mut waits_for = HashSet::new();
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
            self.waiting.entry(bring).or_default().push(teller.clone());
        }
        (Hold::Waits, brings)
    }

    /// A reading is done: gives `take` what it brought, block by block, of what counts; and tells who waits.
    pub(super) fn brought(&mut self, bring: u64, blocks: Range<u64>, mut take: impl FnMut(u64) -> bool) {
        for block in blocks {
            let Some((_, spoiled)) = self.bringing.remove(&block) else { continue };
            if !spoiled && !self.cache.has(block) && take(block) {
                self.cache.came(block);
            }
        }
        self.waiting.remove(&bring).unwrap_or_default().iter().for_each(|teller| teller.tell(Ok(())));
    }

    /// These are about to be written in full.
    pub(super) fn begin(&mut self, blocks: Range<u64>) {
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
    pub(super) fn all_went(&mut self, blocks: &[u64]) {
        blocks.iter().for_each(|block| self.cache.went(*block));
    }

    /// Nothing of these is in memory, and nobody holds them.
    pub(super) fn forget(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.spoil(block);
            self.cache.went(block);
            self.doomed.remove(&block);
        }
    }

    /// What is in memory of these goes as soon as nobody holds it.
    pub(super) fn doom(&mut self, blocks: Range<u64>) {
        self.doomed.extend(blocks);
    }

    /// One hold less; whether some of these are doomed, and held by nobody.
    pub(super) fn let_go(&mut self, blocks: Range<u64>) -> bool {
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
    pub(super) fn take_doomed(&mut self, blocks: Range<u64>) -> Vec<u64> {
        let (doomed, held) = (&mut self.doomed, &self.held);
        let gone: Vec<u64> =
            blocks.filter(|block| !held.contains_key(block) && doomed.remove(block)).collect();
        self.all_went(&gone);
        gone
    }

    /// What goes because there is too much, ascending.
    pub(super) fn evict(&mut self) -> Vec<u64> {
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cheetah_core::limits::BLOCK_BYTES;

    fn teller() -> (Teller, mpsc::UnboundedReceiver<Told>) {
        let (tell, told) = mpsc::unbounded_channel();
        (Teller { tell, waits_for: 1 }, told)
    }

    /// An arena of which these blocks hold data.
    fn arena(blocks: Range<u64>) -> Arena {
        let arena = Arena::new(1).unwrap();
        let len = usize::try_from((blocks.end - blocks.start) * BLOCK_BYTES).unwrap();
        arena.write(blocks.start * BLOCK_BYTES, &vec![1; len]);
        arena
    }

    #[test]
    fn what_is_on_its_way_is_not_read_twice_and_all_who_wait_are_told() {
        let (arena, mut resident) = (arena(0..4), Resident::new(1, 100));
        let (one, mut told_one) = teller();
        let (other, mut told_other) = teller();
        let (hold, brings) = resident.hold(0..6, &arena, &one);
        assert_eq!((hold, brings), (Hold::Waits, vec![(1, 0..4)]), "zeros are not read");
        assert_eq!(resident.hold(2..3, &arena, &other), (Hold::Waits, vec![]));
        resident.brought(1, 0..4, |_| true);
        assert!(told_one.try_recv().unwrap().result.is_ok() && told_other.try_recv().is_ok());
        assert_eq!(resident.hold(0..6, &arena, &one), (Hold::Held, vec![]));
    }

    #[test]
    fn what_was_written_meanwhile_is_not_covered() {
        let (arena, mut resident) = (arena(0..2), Resident::new(1, 100));
        let (one, _told) = teller();
        resident.hold(0..2, &arena, &one);
        resident.begin(0..1);
        let mut taken = Vec::new();
        resident.brought(1, 0..2, |block| {
            taken.push(block);
            true
        });
        assert_eq!(taken, [1]);
        // Also when what was written has gone to the disk and out of memory again.
        resident.begin(1..2);
        resident.all_went(&[0, 1]);
        resident.hold(0..2, &arena, &one);
        resident.begin(0..2);
        resident.all_went(&[0, 1]);
        resident.brought(2, 0..2, |_| panic!("it is older than what was written"));
    }

    #[test]
    fn what_is_held_stays_and_what_is_doomed_goes_when_it_is_not() {
        let mut resident = Resident::new(1, 2);
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
