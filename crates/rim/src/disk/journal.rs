//! The order of a write to a disk: the log, then the blocks, then the word that it is done.
//!
//! Owns the log, the table of checksums as the disk has it, and the donor's state. Never: what is in memory,
//! or who waits. Invariant: what `commit` said is done is what `open` finds, whatever was lost of all that
//! was written since the last flush. Its caller serialises all calls. Called by `disk`. Tests: below.

use super::file::{Blocks, Pages};
use super::{DiskError, blocks_of};
use crate::code::crc32c;
use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::disk::{
    Entry, Head, Held, LOG_ENTRIES_MAX, LogPage, NotADisk, Noted, PAGE_BYTES, Place, Replay, State, Told,
    open_page, seal_page,
};
use cheetah_core::limits::{BLOCK_BYTES, DIRTY_REGION_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use cheetah_core::map::{DonorId, DonorSecret};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: usize = PAGE_BYTES as usize;
/// After so many blocks the log begins anew: what it names is read again after a stop.
const REPLAYED_MAX: u64 = 64 << 10;
/// What of a blank disk has to be zeros before anything is written there.
const BLANK_BYTES: u64 = 1 << 20;

/// What is known of a block that nobody has written.
const ABSENT: Noted = Noted { sum: ZERO_BLOCK_CRC, is_data: false, is_known: false };

#[derive(Debug)]
pub(super) struct Journal {
    blocks: Arc<dyn Blocks>,
    pub(super) place: Place,
    pub(super) donor: DonorId,
    state: State,
    table: Table,
    /// The number of the next page of the log.
    next_page: u64,
    /// Entries since the log began anew.
    entries: u64,
    /// The log says that all is done that it names.
    is_marked: bool,
    /// The regions that it said then others may not have yet.
    marked: Vec<u64>,
    /// Pages of the table that differ from the disk's.
    touched: BTreeSet<(u32, u64)>,
    marks: Marks,
}

/// Tells which regions may have been written on some donors of their volume and not on others.
type Marked = dyn Fn(&Held) -> Vec<u64> + Send;

struct Marks(Box<Marked>);

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks")
    }
}

impl Default for Marks {
    fn default() -> Marks {
        Marks(Box::new(|_| Vec::new()))
    }
}

/// Blocks beside each other that are written at once.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) first: u64,
    /// What each is from now on.
    pub(super) notes: Vec<Noted>,
    /// The content of those that are data, one behind the other.
    pub(super) data: Pages,
}

impl Write {
    pub(super) fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.notes.len() as u64
    }

    /// Where on the disk its content goes, in as few pieces as that takes.
    fn pieces(&self, place: Place) -> impl Iterator<Item = (u64, &[u8])> {
        let data = self.blocks().zip(&self.notes).filter(|(_, noted)| noted.is_data);
        let data: Vec<u64> = data.map(|(block, _)| block).collect();
        let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
        for (nth, block) in data.iter().enumerate() {
            match runs.last_mut() {
                Some((first, range)) if *first + (range.len() as u64) == *block => range.end += 1,
                _ => runs.push((*block, nth..nth + 1)),
            }
        }
        let bytes = |range: Range<usize>| &self.data.bytes()[range.start * BLOCK..range.end * BLOCK];
        runs.into_iter().map(move |(first, range)| (place.block(first), bytes(range)))
    }
}

impl Journal {
    /// Makes a disk of ours out of a blank one.
    ///
    /// # Errors
    /// It does not take that.
    pub(super) fn format(
        blocks: Arc<dyn Blocks>,
        donor: DonorId,
        secret: DonorSecret,
        place: Place,
    ) -> io::Result<Journal> {
        // What was there before is nobody's; the head makes it ours, and is written last.
        blocks.zero(2 * PAGE_BYTES, place.table(place.extents) - 2 * PAGE_BYTES)?;
        let state =
            State { number: 1, log_from: 0, round: 1, secret, held: Held::default(), dirty: Vec::new() };
        let mut journal = Journal {
            blocks,
            place,
            donor,
            state,
            table: Table::default(),
            next_page: 0,
            entries: 0,
            is_marked: true,
            marked: Vec::new(),
            touched: BTreeSet::new(),
            marks: Marks::default(),
        };
        journal.write_state()?;
        journal.write_head()?;
        Ok(journal)
    }

    fn write_head(&self) -> io::Result<()> {
        let head = Pages::of(&Head { donor: self.donor, place: self.place }.encode(crc32c));
        for copy in 0..2 {
            self.blocks.write_at(copy * PAGE_BYTES, head.bytes())?;
            self.blocks.flush()?;
        }
        Ok(())
    }

    /// Makes another donor of a disk that holds nothing.
    ///
    /// # Errors
    /// It holds something, or does not take it.
    pub(super) fn renew(&mut self, donor: DonorId, secret: DonorSecret) -> io::Result<()> {
        let Held { owners, unwiped, .. } = &self.state.held;
        if !(owners.is_empty() && unwiped.is_empty()) {
            return Err(io::Error::other("it still holds what others gave it"));
        }
        (self.donor, self.state.secret, self.state.held) = (donor, secret, Held::default());
        self.write_state()?;
        self.write_head()
    }

    /// What the disk has. None: it is blank.
    ///
    /// # Errors
    /// It is not ours, or cannot be read.
    pub(super) fn open(blocks: Arc<dyn Blocks>, bytes: u64) -> Result<Option<Journal>, DiskError> {
        let mut first =
            Pages::new(usize::try_from(BLANK_BYTES.min(bytes)).expect("at most a MiB") / PAGE * PAGE);
        blocks.read_at(0, first.bytes_mut()).map_err(DiskError::Io)?;
        let heads = &first.bytes()[..first.bytes().len().min(2 * PAGE)];
        let Head { donor, place } = match Head::decode(heads, bytes, crc32c) {
            Err(NotADisk::Blank) if first.bytes().iter().all(|byte| *byte == 0) => return Ok(None),
            Err(NotADisk::Blank) => return Err(DiskError::NotOurs(NotADisk::Other)),
            other => other.map_err(DiskError::NotOurs)?,
        };
        let room = usize::try_from(place.state_bytes()).expect("in memory");
        let mut states = [Pages::new(room), Pages::new(room)];
        for (number, state) in (0..).zip(&mut states) {
            blocks.read_at(place.state(number), state.bytes_mut()).map_err(DiskError::Io)?;
        }
        let state =
            State::newest([states[0].bytes(), states[1].bytes()], crc32c).map_err(DiskError::State)?;
        let mut journal = Journal {
            blocks,
            place,
            donor,
            table: Table::default(),
            next_page: state.log_from,
            entries: 0,
            is_marked: true,
            marked: Vec::new(),
            touched: BTreeSet::new(),
            marks: Marks::default(),
            state,
        };
        journal.read_table().and_then(|()| journal.replay()).map_err(DiskError::Io)?;
        Ok(Some(journal))
    }

    /// Of extents that somebody has, or had; all others are absent.
    fn read_table(&mut self) -> io::Result<()> {
        let Held { owners, unwiped, .. } = &self.state.held;
        let extents: BTreeSet<u32> = owners.keys().chain(unwiped.keys()).copied().collect();
        for extent in extents.into_iter().filter(|extent| *extent < self.place.extents) {
            let part = self.table.part(extent);
            self.blocks.read_at(self.place.table(extent), part.bytes_mut())?;
        }
        Ok(())
    }

    /// Finds what became of the blocks that the log names, and begins it anew.
    fn replay(&mut self) -> io::Result<()> {
        let mut found = Vec::new();
        let mut page = Pages::new(PAGE);
        for number in self.state.log_from..self.state.log_from + self.place.log_pages() {
            self.blocks.read_at(self.place.log(number), page.bytes_mut())?;
            let here = LogPage { number, round: self.state.round };
            let Some(page) = open_page(page.bytes(), here, crc32c) else { break };
            self.next_page = number + 1;
            found.push(page);
        }
        // Those that were put down together, last of all.
        let last = found.last().map_or(0, |page| found.len().saturating_sub(page.nth as usize + 1));
        let mut replay = Replay::with_marks(self.state.dirty.iter().copied());
        for (nth, page) in found.into_iter().enumerate() {
            page.entries.into_iter().for_each(|entry| replay.take(entry, nth < last, extent_of));
        }
        for extent in replay.wiped() {
            self.wipe_table(extent);
        }
        let mut content = Pages::new(BLOCK);
        let changes: Vec<_> = replay.changes().collect();
        for change in changes {
            let at = self.place.block(change.block);
            let is_read = change.is_read && self.blocks.read_at(at, content.bytes_mut()).is_ok();
            let found = is_read.then(|| crc32c(content.bytes()));
            match replay.tell(change.block, found) {
                Some(Told::Is(noted) | Told::Torn(noted)) => self.note(change.block, noted),
                None => {}
            }
        }
        self.begin_anew(replay.marked().collect())
    }

    pub(super) fn blocks(&self) -> Arc<dyn Blocks> {
        Arc::clone(&self.blocks)
    }

    /// Whoever knows which regions are marked.
    pub(super) fn set_marks(&mut self, marks: Box<Marked>) {
        self.marks = Marks(marks);
    }

    pub(super) fn secret(&self) -> DonorSecret {
        self.state.secret
    }

    pub(super) fn held(&self) -> &Held {
        &self.state.held
    }

    /// What the disk has of a block.
    pub(super) fn noted(&self, block: u64) -> Noted {
        self.table.get(block)
    }

    /// Calls `each` with every block that is not absent.
    pub(super) fn each_known(&self, mut each: impl FnMut(u64, Noted)) {
        for block in self.table.0.keys().flat_map(|extent| blocks_of(*extent)) {
            let noted = self.noted(block);
            if noted != ABSENT {
                each(block, noted);
            }
        }
    }

    /// Bytes, by address, that were written shortly before the stop.
    pub(super) fn dirty_at_start(&self) -> Vec<Range<u64>> {
        let bytes = |region: &u64| region * DIRTY_REGION_BYTES..(region + 1) * DIRTY_REGION_BYTES;
        self.state.dirty.iter().map(bytes).collect()
    }

    /// From now on the donor holds this.
    ///
    /// # Errors
    /// The disk does not take it: it is of no use any more.
    pub(super) fn keep(&mut self, held: Held) -> io::Result<()> {
        self.state.held = held;
        self.write_state()
    }

    /// Writes these, in this order; what became of each, once it is on the disk.
    ///
    /// # Errors
    /// The disk does not take what has to be put down before: it is of no use any more.
    pub(super) fn commit(&mut self, writes: &[Write]) -> io::Result<Vec<io::Result<()>>> {
        let entries = writes.iter().flat_map(|write| write.blocks().zip(&write.notes));
        let entries = entries.map(|(block, new)| Entry::Block { block, old: self.noted(block), new: *new });
        let entries: Vec<Entry> = entries.collect();
        self.log(&entries)?;
        let pieces: Vec<Vec<(u64, &[u8])>> =
            writes.iter().map(|write| write.pieces(self.place).collect()).collect();
        let all: Vec<(u64, &[u8])> = pieces.iter().flatten().copied().collect();
        let mut results = self.blocks.write_all(&all).into_iter();
        let mut done = Vec::with_capacity(writes.len());
        for pieces in &pieces {
            done.push(results.by_ref().take(pieces.len()).collect::<io::Result<()>>());
        }
        if !all.is_empty() {
            self.blocks.flush()?;
        }
        for (block, noted) in writes.iter().flat_map(|write| write.blocks().zip(&write.notes)) {
            // One that was not written fits this no more than what it was: it is wrong, and found so.
            self.note(block, *noted);
        }
        Ok(done)
    }

    /// Makes extents absent.
    ///
    /// # Errors
    /// The disk does not take it.
    pub(super) fn wipe(&mut self, extents: &[u32]) -> io::Result<()> {
        let entries: Vec<Entry> = extents.iter().map(|extent| Entry::Wiped { extent: *extent }).collect();
        self.log(&entries)?;
        for extent in extents {
            self.wipe_table(*extent);
            self.blocks.zero(self.place.block(u64::from(*extent) * EXTENT_BLOCKS), EXTENT_BYTES)?;
        }
        self.blocks.flush()
    }

    fn wipe_table(&mut self, extent: u32) {
        self.table.part(extent).bytes_mut().fill(0);
        self.touched.extend((0..Place::table_bytes() / PAGE_BYTES).map(|page| (extent, page)));
    }

    fn note(&mut self, block: u64, noted: Noted) {
        self.table.set(block, noted);
        self.touched.extend(Place::pages_of(block).map(|page| (extent_of(block), page)));
    }

    /// Puts entries down, for good.
    fn log(&mut self, entries: &[Entry]) -> io::Result<()> {
        let pages = entries.len().div_ceil(LOG_ENTRIES_MAX) as u64;
        let used = self.next_page - self.state.log_from;
        if used + pages > self.place.log_pages() || self.entries > REPLAYED_MAX {
            self.begin_anew((self.marks.0)(&self.state.held))?;
        }
        for (nth, entries) in (0..).zip(entries.chunks(LOG_ENTRIES_MAX)) {
            self.write_page(nth, entries)?;
        }
        self.entries += entries.len() as u64;
        self.is_marked = false;
        self.blocks.flush()
    }

    fn write_page(&mut self, nth: u32, entries: &[Entry]) -> io::Result<()> {
        let here = LogPage { number: self.next_page, round: self.state.round };
        let page = Pages::of(&seal_page(here, nth, entries, crc32c));
        self.blocks.write_at(self.place.log(self.next_page), page.bytes())?;
        self.next_page += 1;
        Ok(())
    }

    /// Whether `mark` may have something to say.
    pub(super) fn is_to_be_marked(&self) -> bool {
        !self.is_marked || !self.marked.is_empty()
    }

    /// Says in the log that all is done that it names: what rots from now on is not taken for what it was
    /// before. And which of it others may not have yet.
    ///
    /// # Errors
    /// The disk does not take it.
    pub(super) fn mark(&mut self) -> io::Result<()> {
        let marked = (self.marks.0)(&self.state.held);
        if self.is_marked && marked == self.marked {
            return Ok(());
        }
        let mut entries: Vec<Entry> = marked.iter().map(|region| Entry::Mark { region: *region }).collect();
        entries.push(Entry::Marked { marks: u32::try_from(marked.len()).unwrap_or(u32::MAX) });
        let pages = entries.len().div_ceil(LOG_ENTRIES_MAX) as u64;
        self.marked = marked;
        if self.next_page - self.state.log_from + pages > self.place.log_pages() {
            self.is_marked = true;
            return self.begin_anew(self.marked.clone());
        }
        self.log(&entries)?;
        self.is_marked = true;
        Ok(())
    }

    /// The table gets what it does not have; then the log counts from its next page on.
    fn begin_anew(&mut self, dirty: Vec<u64>) -> io::Result<()> {
        for (extent, page) in std::mem::take(&mut self.touched) {
            let at = usize::try_from(page * PAGE_BYTES).expect("a page of a part");
            let part = self.table.part(extent);
            self.blocks.write_at(self.place.table(extent) + at as u64, &part.bytes()[at..at + PAGE])?;
        }
        self.blocks.flush()?;
        (self.state.log_from, self.state.round) = (self.next_page, self.state.round + 1);
        self.state.dirty = dirty;
        self.entries = 0;
        self.write_state()
    }

    fn write_state(&mut self) -> io::Result<()> {
        self.state.number += 1;
        let encoded = self.state.encode(self.place.state_bytes(), crc32c);
        let encoded =
            encoded.ok_or_else(|| io::Error::other("what this donor holds does not fit its disk"))?;
        self.blocks.write_at(self.place.state(self.state.number), Pages::of(&encoded).bytes())?;
        self.blocks.flush()
    }
}

fn extent_of(block: u64) -> u32 {
    u32::try_from(block / EXTENT_BLOCKS).unwrap_or(u32::MAX)
}

/// For each extent of which something is known, what `Place::table_bytes` says. A checksum is kept as it
/// differs from that of zeros, so that an absent extent is all zeros.
#[derive(Debug, Default)]
struct Table(BTreeMap<u32, Pages>);

impl Table {
    fn part(&mut self, extent: u32) -> &mut Pages {
        let bytes = || Pages::new(usize::try_from(Place::table_bytes()).expect("in memory"));
        self.0.entry(extent).or_insert_with(bytes)
    }

    fn get(&self, block: u64) -> Noted {
        let Some(part) = self.0.get(&extent_of(block)) else { return ABSENT };
        let (part, at) = (part.bytes(), inside(block));
        let word = part[at * 4..at * 4 + 4].try_into().expect("four bytes");
        let (data, known) = bits(at);
        Noted {
            sum: u32::from_le_bytes(word) ^ ZERO_BLOCK_CRC,
            is_data: part[data] & 1 << (at % 8) != 0,
            is_known: part[known] & 1 << (at % 8) != 0,
        }
    }

    fn set(&mut self, block: u64, noted: Noted) {
        let at = inside(block);
        let part = self.part(extent_of(block)).bytes_mut();
        part[at * 4..at * 4 + 4].copy_from_slice(&(noted.sum ^ ZERO_BLOCK_CRC).to_le_bytes());
        let (data, known) = bits(at);
        for (byte, is_set) in [(data, noted.is_data), (known, noted.is_known)] {
            let bit = 1 << (at % 8);
            part[byte] = if is_set { part[byte] | bit } else { part[byte] & !bit };
        }
    }
}

fn inside(block: u64) -> usize {
    usize::try_from(block % EXTENT_BLOCKS).expect("of one extent")
}

/// The bytes of an extent's part that have the two bits of its block.
fn bits(at: usize) -> (usize, usize) {
    let sums = EXTENT_BLOCKS as usize * 4;
    (sums + at / 8, sums + EXTENT_BLOCKS as usize / 8 + at / 8)
}

#[cfg(test)]
mod tests;
