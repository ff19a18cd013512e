//! An overlay: which blocks of a base volume it changes, and where in its own volume it has them.
//!
//! Owns the table that says so, its form in the overlay's volume, and which blocks of that are free. Never:
//! payloads, or who writes (`rim::overlay` does both in the order that is said here). Form: block 0 names the
//! base; then the roots, the numbers of the table's pages; then pages and data as they were needed. A page
//! has a number for each of 1024 blocks of the base: 0, the base's own; all ones, zeros; else a block of the
//! overlay's volume. Invariant: a block is written before a page names it, and a page before a root does; so
//! after any stop the table names nothing but what is there, and has all that was acknowledged. Tests: below.

use crate::limits::{BLOCK_BYTES, EXTENT_BYTES};
use crate::map::VolumeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// Blocks that one page is about, and pages that one block of roots is about.
const ENTRIES: u64 = BLOCK_BYTES / 4;
const ZEROS: u32 = u32::MAX;
const MAGIC: &[u8; 16] = b"cheetah overlay1";

/// Bytes that an overlay's volume has to have for a base of this size, before anything is changed.
#[must_use]
pub fn least_bytes(base_size: u64) -> u64 {
    (Shape { size: base_size }.begin() * BLOCK_BYTES).next_multiple_of(EXTENT_BYTES)
}

/// Where bytes of the view are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the base, at the same offset.
    Base,
    /// Nowhere: they are zeros.
    Zeros,
    /// In the overlay's volume, from this byte on.
    Here(u64),
}

/// Bytes of the view that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where the first one is.
    pub place: Place,
    /// Where the first one is in the view.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Where a block of the view is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its number in the view.
    pub block: u64,
    /// Its place in the overlay's volume, in bytes.
    pub at: u64,
    /// The table has yet to name it.
    pub is_new: bool,
}

/// What is to be written to the overlay's volume for what has changed: all of `pages`, then all of `roots`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Where, and whole blocks.
    pub pages: Vec<(u64, Vec<u8>)>,
    /// The same.
    pub roots: Vec<(u64, Vec<u8>)>,
    changed: Vec<u32>,
}

/// What is in an overlay's volume is no overlay, or of something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadOverlay {
    /// It has no table.
    NoOverlay,
    /// It is one of another volume, or of one of another size.
    OfAnother,
    /// The table names a block twice, or one that is not there.
    Table,
}

impl fmt::Display for BadOverlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadOverlay::NoOverlay => "it does not begin as overlays do",
            BadOverlay::OfAnother => "it is an overlay of another volume",
            BadOverlay::Table => "its table names a block twice, or one that is not there",
        })
    }
}

impl std::error::Error for BadOverlay {}

#[derive(Clone, Copy, Debug)]
struct Shape {
    size: u64,
}

impl Shape {
    fn pages(self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES).div_ceil(ENTRIES)
    }

    fn root_blocks(self) -> u64 {
        self.pages().div_ceil(ENTRIES)
    }

    /// The first block that pages and data may have.
    fn begin(self) -> u64 {
        1 + self.root_blocks()
    }
}

#[derive(Clone, Debug)]
struct Page {
    /// Its block; 0 while it has none.
    at: u32,
    entries: Vec<u32>,
}

/// The table of an overlay.
#[derive(Clone, Debug)]
pub struct Table {
    base: VolumeId,
    shape: Shape,
    pages: BTreeMap<u32, Page>,
    /// The first block that was never used, and others that nothing names.
    next: u32,
    free: Vec<u32>,
    changed: BTreeSet<u32>,
    is_begun: bool,
}

impl Table {
    /// Of an overlay that changes nothing yet.
    #[must_use]
    pub fn new(base: VolumeId, base_size: u64) -> Table {
        let shape = Shape { size: base_size };
        let next = u32::try_from(shape.begin()).unwrap_or(ZEROS);
        let (pages, changed) = (BTreeMap::new(), BTreeSet::new());
        Table { base, shape, pages, next, free: Vec::new(), changed, is_begun: false }
    }

    /// Bytes of the beginning of the overlay's volume that `load` takes.
    #[must_use]
    pub fn head_bytes(&self) -> u64 {
        self.shape.begin() * BLOCK_BYTES
    }

    /// From the beginning of the overlay's volume: where its pages are, each to be given to `load_page`.
    ///
    /// # Errors
    /// It is something else.
    pub fn load(&mut self, head: &[u8]) -> Result<Vec<(u32, u64)>, BadOverlay> {
        if head.iter().take(BLOCK_BYTES as usize).all(|byte| *byte == 0) {
            return Ok(Vec::new());
        }
        if !head.starts_with(MAGIC) {
            return Err(BadOverlay::NoOverlay);
        }
        if !head.starts_with(&self.first_block()[..32]) {
            return Err(BadOverlay::OfAnother);
        }
        self.is_begun = true;
        let roots = numbers(head.get(BLOCK_BYTES as usize..).unwrap_or_default());
        let named = (0u32..).zip(roots).take(usize::try_from(self.shape.pages()).unwrap_or(usize::MAX));
        for (index, at) in named.filter(|(_, at)| *at != 0) {
            self.pages.insert(index, Page { at, entries: Vec::new() });
        }
        Ok(self.pages.iter().map(|(index, page)| (*index, byte_of(page.at))).collect())
    }

    /// One of the pages that `load` named.
    pub fn load_page(&mut self, index: u32, bytes: &[u8]) {
        if let Some(page) = self.pages.get_mut(&index) {
            page.entries = numbers(bytes);
            page.entries.resize(ENTRIES as usize, 0);
        }
    }

    /// After all pages: finds out what is free. `bytes`: of the overlay's volume.
    ///
    /// # Errors
    /// A block is named twice, or none of the volume.
    pub fn loaded(&mut self, bytes: u64) -> Result<(), BadOverlay> {
        let mut used = BTreeSet::new();
        for page in self.pages.values() {
            let entries = page.entries.iter().filter(|entry| !matches!(**entry, 0 | ZEROS));
            for at in entries.chain([&page.at]) {
                let is_there = u64::from(*at) >= self.shape.begin() && byte_of(*at) < bytes;
                if !is_there || !used.insert(*at) {
                    return Err(BadOverlay::Table);
                }
            }
        }
        let begin = self.next;
        self.next = used.last().map_or(begin, |last| last + 1);
        self.free = (begin..self.next).rev().filter(|at| !used.contains(at)).collect();
        Ok(())
    }

    /// Where these bytes of the view are.
    #[must_use]
    pub fn runs(&self, offset: u64, len: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (block, inside) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let len = (BLOCK_BYTES - inside).min(end - at);
            let place = match self.entry(block) {
                0 => Place::Base,
                ZEROS => Place::Zeros,
                here => Place::Here(byte_of(here) + inside),
            };
            match runs.last_mut() {
                Some(last) if follows(*last, place) => last.len += len,
                _ => runs.push(Run { place, offset: at, len }),
            }
            at += len;
        }
        runs
    }

    fn entry(&self, block: u64) -> u32 {
        let (index, nth) = place_of(block);
        self.pages.get(&index).and_then(|page| page.entries.get(nth)).copied().unwrap_or(0)
    }

    /// How large the overlay's volume has to be before these blocks of the view can be written or made zeros.
    #[must_use]
    pub fn bytes_needed(&self, blocks: &Range<u64>, writes: bool) -> u64 {
        let data = match writes {
            true => blocks.clone().filter(|block| matches!(self.entry(*block), 0 | ZEROS)).count() as u64,
            false => 0,
        };
        let (first, last) = (blocks.start / ENTRIES, blocks.end.div_ceil(ENTRIES));
        let is_new = |index: &u64| u32::try_from(*index).is_ok_and(|index| !self.pages.contains_key(&index));
        let pages = (first..last).filter(is_new).count() as u64;
        let more = (data + pages).saturating_sub(self.free.len() as u64);
        (u64::from(self.next) + more) * BLOCK_BYTES
    }

    /// Where each of these blocks of the view is to be written in the overlay's volume, which is as large as
    /// `bytes_needed` said. A new place is not named before `name` is called for it; one that never is stays
    /// unused until the table is loaded again, for a write may still be on its way there.
    pub fn take(&mut self, blocks: Range<u64>) -> Vec<Taken> {
        let mut take = |block| match self.entry(block) {
            0 | ZEROS => Taken { block, at: byte_of(self.take_one()), is_new: true },
            here => Taken { block, at: byte_of(here), is_new: false },
        };
        blocks.map(&mut take).collect()
    }

    fn take_one(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The data of these blocks of the view is where `take` said.
    pub fn name(&mut self, taken: &[Taken]) {
        for Taken { block, at, .. } in taken.iter().filter(|taken| taken.is_new) {
            self.set(*block, u32::try_from(at / BLOCK_BYTES).unwrap_or(0));
        }
    }

    /// These blocks of the view are zeros. Where they were in the overlay's volume stays unused until it is
    /// loaded again, for somebody may be reading there.
    pub fn zero(&mut self, blocks: Range<u64>) {
        blocks.for_each(|block| self.set(block, ZEROS));
    }

    fn set(&mut self, block: u64, entry: u32) {
        let (index, nth) = place_of(block);
        if !self.pages.contains_key(&index) {
            let at = self.take_one();
            self.pages.insert(index, Page { at, entries: vec![0; ENTRIES as usize] });
        }
        if let Some(slot) = self.pages.get_mut(&index).and_then(|page| page.entries.get_mut(nth)) {
            *slot = entry;
            self.changed.insert(index);
        }
    }

    /// What has changed since the last one, to be written before any of it is acknowledged.
    pub fn commit(&mut self) -> Commit {
        let changed: Vec<u32> = std::mem::take(&mut self.changed).into_iter().collect();
        let mut commit = Commit::default();
        for index in &changed {
            let Some(page) = self.pages.get(index) else { continue };
            commit.pages.push((byte_of(page.at), bytes_of(page.entries.iter().copied())));
        }
        let mut roots: Vec<u64> = changed.iter().map(|index| u64::from(*index) / ENTRIES).collect();
        roots.dedup();
        commit.roots = roots.into_iter().map(|root| ((1 + root) * BLOCK_BYTES, self.root(root))).collect();
        if !self.is_begun {
            commit.pages.push((0, self.first_block()));
            self.is_begun = true;
        }
        commit.changed = changed;
        commit
    }

    /// A commit was not written, or not all of it: it is part of the next one.
    pub fn failed(&mut self, commit: &Commit) {
        self.changed.extend(&commit.changed);
        if commit.pages.iter().any(|(at, _)| *at == 0) {
            self.is_begun = false;
        }
    }

    /// What of the view differs from the base, or may: runs of whole blocks, in order. The last may end
    /// behind the view's end.
    pub fn changes(&self) -> impl Iterator<Item = Run> {
        let blocks = self.pages.iter().flat_map(|(index, page)| {
            let first = u64::from(*index) * ENTRIES;
            (first..).zip(&page.entries).filter(|(_, entry)| **entry != 0)
        });
        let mut blocks = blocks.peekable();
        std::iter::from_fn(move || {
            let (first, entry) = blocks.next()?;
            let is_zeros = *entry == ZEROS;
            let mut end = first + 1;
            while let Some((next, _)) =
                blocks.next_if(|(next, entry)| *next == end && (**entry == ZEROS) == is_zeros)
            {
                end = next + 1;
            }
            let place = if is_zeros { Place::Zeros } else { Place::Here(byte_of(*entry)) };
            Some(Run { place, offset: first * BLOCK_BYTES, len: (end - first) * BLOCK_BYTES })
        })
    }

    fn first_block(&self) -> Vec<u8> {
        let mut block = MAGIC.to_vec();
        block.extend(self.base.0.to_le_bytes());
        block.extend(self.shape.size.to_le_bytes());
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    fn root(&self, root: u64) -> Vec<u8> {
        let pages = (root * ENTRIES)..((root + 1) * ENTRIES);
        bytes_of(pages.map(|index| {
            u32::try_from(index).ok().and_then(|index| self.pages.get(&index)).map_or(0, |page| page.at)
        }))
    }
}

fn follows(last: Run, place: Place) -> bool {
    match (last.place, place) {
        (Place::Here(at), Place::Here(next)) => at + last.len == next,
        (last, next) => last == next,
    }
}

fn byte_of(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES
}

/// The page of a block of the view, and its number there.
fn place_of(block: u64) -> (u32, usize) {
    (u32::try_from(block / ENTRIES).unwrap_or(u32::MAX), (block % ENTRIES) as usize)
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
}

fn bytes_of(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    const BLOCK: usize = BLOCK_BYTES as usize;
    /// Two roots, of which the second has a page.
    const BLOCKS: u64 = ENTRIES * ENTRIES + 100;

    /// An overlay's volume, whose writes end at any point.
    #[derive(Clone, Default)]
    struct Disk(BTreeMap<u64, Vec<u8>>);

    impl Disk {
        fn write(&mut self, (at, bytes): &(u64, Vec<u8>)) {
            for (nth, block) in bytes.chunks(BLOCK).enumerate() {
                self.0.insert(at + (nth * BLOCK) as u64, block.to_vec());
            }
        }

        fn read(&self, at: u64, len: u64) -> Vec<u8> {
            let blocks = (at..at + len).step_by(BLOCK);
            blocks.flat_map(|at| self.0.get(&at).cloned().unwrap_or(vec![0; BLOCK])).collect()
        }

        fn table(&self) -> Result<Table, BadOverlay> {
            let mut table = Table::new(VolumeId(5), BLOCKS * BLOCK_BYTES);
            for (index, at) in table.load(&self.read(0, table.head_bytes()))? {
                table.load_page(index, &self.read(at, BLOCK_BYTES));
            }
            table.loaded(u64::from(u32::MAX) * BLOCK_BYTES)?;
            Ok(table)
        }

        /// The block of the view: `None` is the base's.
        fn seen(&self, table: &Table, block: u64) -> Option<u8> {
            match table.runs(block * BLOCK_BYTES, BLOCK_BYTES)[..] {
                [Run { place: Place::Base, .. }] => None,
                [Run { place: Place::Zeros, .. }] => Some(0),
                [Run { place: Place::Here(at), .. }] => Some(self.read(at, 1)[0]),
                ref other => panic!("one block lies in pieces: {other:?}"),
            }
        }
    }

    /// What is acknowledged is there after a stop at any point, and nothing else but what was under way.
    #[test]
    fn after_any_stop_the_table_has_what_was_acknowledged() {
        for seed in 0..300 {
            let mut dice = Seed(seed);
            let (mut disk, mut held) = (Disk::default(), BTreeMap::<u64, u8>::new());
            let mut table = disk.table().expect("nothing is no table");
            'rounds: for round in 1u8..30 {
                let first =
                    [dice.draw() % 40, ENTRIES - 5, ENTRIES * ENTRIES - 3][(dice.draw() % 3) as usize];
                let blocks = first..first + 1 + dice.draw() % 9;
                let zeros = dice.draw().is_multiple_of(4);
                let stop = dice.draw() % 40;
                let mut writes = Vec::new();
                if zeros {
                    table.zero(blocks.clone());
                } else {
                    let needed = table.bytes_needed(&blocks, true);
                    let taken = table.take(blocks.clone());
                    // What is held already is written where it is.
                    for Taken { block, at, is_new } in taken.iter().copied() {
                        let is_here = table.runs(block * BLOCK_BYTES, 1)[0].place == Place::Here(at);
                        assert_ne!(is_here, is_new, "seed {seed}: block {block}");
                        writes.push((at, vec![round; BLOCK]));
                    }
                    assert!(taken.iter().map(|taken| taken.block).eq(blocks.clone()));
                    table.name(&taken);
                    assert!(byte_of(table.next) <= needed, "more was taken than was needed");
                }
                let commit = table.commit();
                writes.extend(commit.pages.into_iter().chain(commit.roots));
                let value = if zeros { 0 } else { round };
                for (nth, write) in writes.iter().enumerate() {
                    if nth as u64 == stop {
                        table = disk.table().expect("a stop leaves a table");
                        for (block, was) in &held {
                            let seen = disk.seen(&table, *block);
                            let new = blocks.contains(block) && seen == Some(value);
                            assert!(new || seen == Some(*was), "seed {seed}: block {block} is {seen:?}");
                        }
                        for block in blocks {
                            match disk.seen(&table, block) {
                                Some(now) => held.insert(block, now),
                                None => held.remove(&block),
                            };
                        }
                        continue 'rounds;
                    }
                    disk.write(write);
                }
                held.extend(blocks.map(|block| (block, value)));
                let table =
                    if dice.draw().is_multiple_of(3) { disk.table().expect("it") } else { table.clone() };
                for (block, value) in &held {
                    assert_eq!(disk.seen(&table, *block), Some(*value), "seed {seed}: block {block}");
                }
                let changed: u64 = table.changes().map(|run| run.len / BLOCK_BYTES).sum();
                assert_eq!(changed, held.len() as u64, "seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_no_overlay_of_this_volume_is_refused() {
        let mut disk = Disk::default();
        let mut table = disk.table().expect("nothing");
        let taken = table.take(3..5);
        taken.iter().for_each(|taken| disk.write(&(taken.at, vec![9; BLOCK])));
        table.name(&taken);
        let commit = table.commit();
        commit.pages.iter().chain(&commit.roots).for_each(|write| disk.write(write));
        assert_eq!(disk.seen(&disk.table().expect("a table"), 4), Some(9));
        assert!(disk.table().is_ok_and(|mut table| table.loaded(BLOCK_BYTES * 3) == Err(BadOverlay::Table)));

        let load = |id: u64, blocks: u64| {
            let mut table = Table::new(VolumeId(id), blocks * BLOCK_BYTES);
            table.load(&disk.read(0, table.head_bytes())).map(|_| ())
        };
        assert_eq!(load(5, BLOCKS), Ok(()));
        assert_eq!(load(6, BLOCKS), Err(BadOverlay::OfAnother));
        assert_eq!(load(5, BLOCKS + 1), Err(BadOverlay::OfAnother));
        disk.write(&(0, vec![1; BLOCK]));
        assert_eq!(disk.table().map(|_| ()), Err(BadOverlay::NoOverlay));
    }

    #[test]
    fn an_overlay_begins_small() {
        assert_eq!(least_bytes(1 << 30), EXTENT_BYTES);
        assert_eq!(least_bytes(1 << 40), EXTENT_BYTES);
        assert!(least_bytes(1 << 45) < 1 << 28);
    }
}
