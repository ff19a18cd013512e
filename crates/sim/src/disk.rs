//! A disk that loses power: what was written and not flushed is there afterwards, or not, or in part,
//! sector by sector.
//!
//! Owns what is on the disk for good, what is only in its cache, and what of it cannot be read or written.
//! Never: what is written, or when (core's journal), or who is told (`on_disk`). Scale: a block has a byte
//! for each sector as memory has; what lies before the blocks is as long as it is. Invariant: what was
//! flushed stays. Key rule: a step of the journal takes time, and is done here at its beginning; if its
//! donor ends before its end, the disk has a part of it, from the first operation on. Tests: below; the
//! planted bugs.

use crate::bytes::{BLOCK, sum};
use crate::rng::Rng;
use cheetah_core::disk::{PAGE_BYTES, Pages, Place, Write};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: usize = PAGE_BYTES as usize;
const SECTOR: usize = 512;

/// The content of a block.
pub(crate) type Content = [u8; BLOCK];

#[derive(Clone, Default)]
struct Stored {
    /// What lies before the blocks, by page.
    pages: BTreeMap<u64, Box<[u8]>>,
    blocks: BTreeMap<u64, Content>,
}

#[derive(Clone, Debug)]
enum Op {
    Page(u64, Box<[u8]>),
    Block(u64, Content),
    ZeroPages(u64, u64),
    ZeroBlocks(u64, u64),
    Flush,
}

impl Stored {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Page(at, bytes) => drop(self.pages.insert(*at, bytes.clone())),
            Op::Block(block, content) => drop(self.blocks.insert(*block, *content)),
            Op::ZeroPages(from, to) => self.pages.retain(|at, _| !(*from..*to).contains(at)),
            Op::ZeroBlocks(from, to) => self.blocks.retain(|at, _| !(*from..*to).contains(at)),
            Op::Flush => {}
        }
    }

    /// Some sectors of it only.
    fn apply_torn(&mut self, op: &Op, rng: &mut Rng) {
        let mut is_new = || rng.percent(50);
        match op {
            Op::Page(at, bytes) => {
                let mut page = self.pages.get(at).cloned().unwrap_or_else(|| vec![0; PAGE].into());
                for (old, new) in page.chunks_mut(SECTOR).zip(bytes.chunks(SECTOR)) {
                    if is_new() {
                        old.copy_from_slice(new);
                    }
                }
                self.pages.insert(*at, page);
            }
            Op::Block(block, content) => {
                let mut torn = self.blocks.get(block).copied().unwrap_or_default();
                for (old, new) in torn.iter_mut().zip(content) {
                    *old = if is_new() { *new } else { *old };
                }
                self.blocks.insert(*block, torn);
            }
            Op::ZeroPages(from, to) => self.pages.retain(|at, _| !((*from..*to).contains(at) && is_new())),
            Op::ZeroBlocks(from, to) => self.blocks.retain(|at, _| !((*from..*to).contains(at) && is_new())),
            Op::Flush => {}
        }
    }
}

/// The disk does not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the disk does not do it")
    }
}

pub(crate) struct SimDisk {
    place: Place,
    /// As it is read now.
    now: Stored,
    /// As it is without power.
    durable: Stored,
    /// What is in the one and not in the other.
    ops: Vec<Op>,
    /// Of these, so many were done before the journal's step that is under way,
    before: usize,
    /// which covers these.
    covered: BTreeMap<u64, Content>,
    /// Blocks that cannot be read until they are written again.
    pub(crate) unreadable: BTreeSet<u64>,
    /// Blocks that were being written when its donor ended, or were not taken, and are wrong since.
    pub(crate) in_flight: BTreeSet<u64>,
    /// It takes no more blocks; what lies before them has its room.
    pub(crate) is_full: bool,
    /// It takes nothing any more.
    pub(crate) is_dead: bool,
    /// A planted bug: nobody flushes it.
    pub(crate) never_flushed: bool,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDisk({} blocks)", self.now.blocks.len())
    }
}

impl SimDisk {
    /// Blank.
    pub(crate) fn new(extents: u32) -> SimDisk {
        SimDisk {
            place: Place::of(extents),
            now: Stored::default(),
            durable: Stored::default(),
            ops: Vec::new(),
            before: 0,
            covered: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            is_full: false,
            is_dead: false,
            never_flushed: false,
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// What is read of a block; None: it cannot be.
    pub(crate) fn block(&self, block: u64) -> Option<Content> {
        (!self.unreadable.contains(&block)).then(|| self.raw(block))
    }

    /// What is there, whether it can be read or not.
    pub(crate) fn raw(&self, block: u64) -> Content {
        self.now.blocks.get(&block).copied().unwrap_or_default()
    }

    /// Likewise at this moment, where what is being written may be there or not.
    pub(crate) fn block_now(&self, block: u64, rng: &mut Rng) -> Option<Content> {
        let content = self.block(block)?;
        Some(self.covered.get(&block).copied().filter(|_| rng.percent(50)).unwrap_or(content))
    }

    /// Blocks that hold anything.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.now.blocks.iter().filter(|(_, content)| **content != [0; BLOCK]).map(|(block, _)| *block)
    }

    /// What the journal has asked for until now is done.
    pub(crate) fn step_is_done(&mut self) {
        if let Some(last) = self.ops.iter().rposition(|op| matches!(op, Op::Flush)) {
            self.ops.drain(..=last).for_each(|op| self.durable.apply(&op));
        }
        self.before = self.ops.len();
        self.covered.clear();
    }

    /// The step that is under way gets no further than somewhere. Whether that is not its end.
    fn cut_step(&mut self, rng: &mut Rng) -> bool {
        let all = self.ops.len();
        let done = self.before + rng.index(all - self.before + 1);
        self.ops.truncate(done);
        self.step_is_done();
        done < all
    }

    /// The donor's process ends: what it had handed over is in the disk's cache.
    pub(crate) fn lose_donor(&mut self, rng: &mut Rng) {
        if self.cut_step(rng) {
            self.now = self.durable.clone();
            self.ops.iter().for_each(|op| self.now.apply(op));
        }
    }

    /// Power goes.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        self.cut_step(rng);
        let all_alike = rng.percent(25).then(|| rng.below(4));
        for op in std::mem::take(&mut self.ops) {
            match all_alike.unwrap_or_else(|| rng.below(4)) {
                0 => self.durable.apply(&op),
                1 => self.durable.apply_torn(&op, rng),
                _ => {}
            }
        }
        (self.now, self.before) = (self.durable.clone(), 0);
    }

    fn takes(&self) -> Result<(), Refused> {
        if self.is_dead { Err(Refused) } else { Ok(()) }
    }

    fn put(&mut self, op: Op) {
        if let Op::Block(block, _) = op {
            let was = self.now.blocks.get(&block).copied().unwrap_or_default();
            self.covered.entry(block).or_insert(was);
        }
        self.now.apply(&op);
        self.ops.push(op);
    }

    /// The number of the block that lies there, or None: it is before them.
    fn block_at(&self, at: u64) -> Option<u64> {
        Some(at.checked_sub(self.place.block(0))? / PAGE_BYTES)
    }
}

impl Pages for SimDisk {
    type Error = Refused;
    type Data = Vec<u8>;

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Refused> {
        for (number, page) in (at / PAGE_BYTES..).zip(into.chunks_mut(PAGE)) {
            match self.now.pages.get(&number) {
                Some(found) => page.copy_from_slice(found),
                None => page.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        self.takes()?;
        assert!(at.is_multiple_of(PAGE_BYTES) && bytes.len().is_multiple_of(PAGE), "whole pages");
        assert!(at + bytes.len() as u64 <= self.place.block(0), "in front of the blocks");
        for (number, page) in (at / PAGE_BYTES..).zip(bytes.chunks(PAGE)) {
            self.put(Op::Page(number, page.into()));
        }
        Ok(())
    }

    fn write_blocks(&mut self, place: Place, writes: &[Write<Vec<u8>>]) -> Vec<Result<(), Refused>> {
        let mut done = Vec::with_capacity(writes.len());
        for write in writes {
            let has_data = write.notes.iter().any(|noted| noted.is_data);
            if self.takes().is_err() || (self.is_full && has_data) {
                done.push(Err(Refused));
                continue;
            }
            for (at, range) in write.runs(place) {
                let first = self.block_at(at).expect("a block");
                let bytes = &write.data[range.start * BLOCK..range.end * BLOCK];
                for (block, content) in (first..).zip(bytes.chunks_exact(BLOCK)) {
                    self.unreadable.remove(&block);
                    self.put(Op::Block(block, content.try_into().expect("a block")));
                }
            }
            done.push(Ok(()));
        }
        done
    }

    fn flush(&mut self) -> Result<(), Refused> {
        self.takes()?;
        if !self.never_flushed {
            self.ops.push(Op::Flush);
        }
        Ok(())
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), Refused> {
        self.takes()?;
        match (self.block_at(at), self.block_at(at + len)) {
            (Some(from), Some(to)) => {
                self.unreadable.retain(|block| !(from..to).contains(block));
                self.put(Op::ZeroBlocks(from, to));
            }
            _ => self.put(Op::ZeroPages(at / PAGE_BYTES, (at + len) / PAGE_BYTES)),
        }
        Ok(())
    }

    fn sum_at(&mut self, at: u64) -> Option<u32> {
        self.block(self.block_at(at)?).map(|content| sum(&content))
    }

    /// Eight bytes at a time; no two that differ in one sector are likely to be alike.
    fn crc(bytes: &[u8]) -> u32 {
        let words = bytes.chunks(8).map(|word| word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        let hash = words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
            (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        (hash ^ hash >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_stays_and_the_rest_may_not() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let (mut rng, mut disk) = (Rng::new(seed), SimDisk::new(1));
            let page = |byte: u8| vec![byte; PAGE];
            disk.write(0, &page(1)).and_then(|()| disk.flush()).expect("it has power");
            disk.write(0, &page(2)).expect("it has power");
            disk.step_is_done();
            disk.lose_power(&mut rng);
            let mut found = page(0);
            disk.read(0, &mut found).expect("it has power");
            assert!(found.iter().all(|byte| [1, 2].contains(byte)));
            assert!(found.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            seen.insert((found.contains(&1), found.contains(&2)));
        }
        assert_eq!(seen.len(), 3, "old, new and torn");
    }

    #[test]
    fn a_process_that_ends_takes_nothing_out_of_the_cache() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let (mut rng, mut disk) = (Rng::new(seed), SimDisk::new(1));
            disk.put(Op::Block(0, [1; BLOCK]));
            disk.step_is_done();
            disk.put(Op::Block(1, [1; BLOCK]));
            disk.put(Op::Block(2, [1; BLOCK]));
            disk.lose_donor(&mut rng);
            let there: Vec<u64> = disk.blocks().collect();
            assert_eq!(there, (0..there.len() as u64).collect::<Vec<_>>(), "from the first on");
            seen.insert(there.len());
        }
        assert_eq!(seen, BTreeSet::from([1, 2, 3]));
    }
}
