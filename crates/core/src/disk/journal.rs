//! The order of a write to a disk: the log, then the blocks, then the word that it is done.
//!
//! Owns what is put down and when, the table of checksums as the disk has it, and the donor's state.
//! Never: the disk itself (the driver's [`Pages`]), the content of a block, what is in memory, or who
//! waits. Invariant: what `commit` said is done is what `open` finds, whatever was lost of all that was
//! written since the last flush. Its caller serialises all calls, and passes on which regions are
//! `marked`: those that may have been written on some donors of their volume and not on others. Called by
//! `rim::disk` and the simulator. Tests: `rim::disk`, the simulator.

use super::table::{ABSENT, Table, extent_of};
use super::{
    Auth, Auths, BadState, Entry, Head, Held, LogPage, NO_AUTH, NotADisk, Noted, PAGE_BYTES, Pages, Place,
    Replay, State, Told, Write, auth_sum, open_page, pages_of, seal_page,
};
use crate::limits::{
    DIRTY_REGION_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, INTENT_REGION_BLOCKS, INTENT_REGION_BYTES,
};
use crate::map::{DonorId, DonorSecret};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

const PAGE: usize = PAGE_BYTES as usize;
/// After so many blocks the log begins anew: what it names is read again after a stop.
const REPLAYED_MAX: u64 = 64 << 10;
/// So much of them is written at once.
const RUN_BYTES_MAX: usize = 1 << 20;
/// What of a blank disk has to be zeros before anything is written there.
const BLANK_BYTES: u64 = 1 << 20;

/// Why a disk is not opened.
#[derive(Debug)]
pub enum OpenError<E> {
    /// It is not one of ours, or not one that can be used.
    NotOurs(NotADisk),
    /// What it knows of itself cannot be read.
    State(BadState),
    /// It cannot be read, or written.
    Disk(E),
}

/// Why a journal goes on no more, or does not do what it was asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum JournalError<E> {
    /// The disk does not take what has to be put down: it is of no use any more.
    Disk(E),
    /// What its donor holds does not fit the place for it.
    Full,
    /// It still holds what others gave it.
    Holds,
    /// It was made without a place for nonces and authentication tags.
    NoAuths,
}

impl<E: fmt::Display> fmt::Display for JournalError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Disk(error) => error.fmt(f),
            JournalError::Full => f.write_str("what this donor holds does not fit its disk"),
            JournalError::Holds => f.write_str("it still holds what others gave it"),
            JournalError::NoAuths => f.write_str("it has no place for the authentication tags of blocks"),
        }
    }
}

impl<E> From<E> for JournalError<E> {
    fn from(error: E) -> Self {
        JournalError::Disk(error)
    }
}

type Done<T, P> = Result<T, JournalError<<P as Pages>::Error>>;

/// One disk, as its donor has it.
#[derive(Debug)]
pub struct Journal<P> {
    disk: P,
    /// So many it has.
    bytes: u64,
    place: Place,
    donor: DonorId,
    state: State,
    table: Table,
    /// The number of the next page of the log.
    next_page: u64,
    /// Entries since the log began anew, and at most.
    entries: u64,
    entries_max: u64,
    /// The log says that all is done that it names.
    is_marked: bool,
    /// The regions that it said then others may not have yet.
    marked: Vec<u64>,
    /// Of those that have an intent, the ones that had it before the start.
    stale: BTreeSet<u64>,
}

/// Pages that lie side by side, which a disk takes as one request.
#[derive(Debug, Default)]
struct Run {
    at: u64,
    bytes: Vec<u8>,
}

impl Run {
    /// Writes what there is when this one does not follow it.
    fn take<P: Pages>(&mut self, disk: &mut P, at: u64, page: &[u8]) -> Result<(), P::Error> {
        if at != self.at + self.bytes.len() as u64 || self.bytes.len() >= RUN_BYTES_MAX {
            self.end(disk)?;
            self.at = at;
        }
        self.bytes.extend_from_slice(page);
        Ok(())
    }

    fn end<P: Pages>(&mut self, disk: &mut P) -> Result<(), P::Error> {
        match std::mem::take(&mut self.bytes) {
            none if none.is_empty() => Ok(()),
            bytes => disk.write(self.at, &bytes),
        }
    }
}

impl<P: Pages> Journal<P> {
    /// Makes a disk of ours out of a blank one.
    ///
    /// # Errors
    /// It does not take that.
    pub fn format(disk: P, donor: DonorId, secret: DonorSecret, place: Place) -> Done<Journal<P>, P> {
        let mut journal = Journal::of(disk, place.bytes(), place, donor, State::first(secret));
        journal.write_all_anew()?;
        Ok(journal)
    }

    /// What was there before is nobody's; the head makes it ours, and is written last.
    fn write_all_anew(&mut self) -> Done<(), P> {
        let place = self.place;
        self.disk.zero(2 * PAGE_BYTES, place.table(place.extents) - 2 * PAGE_BYTES)?;
        self.write_state()?;
        self.write_head()
    }

    fn of(disk: P, bytes: u64, place: Place, donor: DonorId, state: State) -> Journal<P> {
        Journal {
            disk,
            bytes,
            place,
            donor,
            table: Table::new(place.extents),
            next_page: state.log_from,
            entries: 0,
            entries_max: REPLAYED_MAX,
            is_marked: true,
            marked: Vec::new(),
            stale: BTreeSet::new(),
            state,
        }
    }

    fn write_head(&mut self) -> Done<(), P> {
        let head = Head { donor: self.donor, place: self.place }.encode(P::crc);
        for copy in 0..2 {
            self.disk.write(copy * PAGE_BYTES, &head)?;
            self.disk.flush()?;
        }
        Ok(())
    }

    /// Makes another donor of a disk that holds nothing. One of an earlier version becomes one of this.
    ///
    /// # Errors
    /// It holds something, or does not take it.
    pub fn renew(&mut self, donor: DonorId, secret: DonorSecret) -> Done<(), P> {
        let Held { owners, unwiped, .. } = &self.state.held;
        if !(owners.is_empty() && unwiped.is_empty()) {
            return Err(JournalError::Holds);
        }
        (self.donor, self.state.secret, self.state.held) = (donor, secret, Held::default());
        if let Some(place) = Place::on(self.bytes).filter(|_| !self.place.keeps_auths) {
            (self.place, self.table, self.state) = (place, Table::new(place.extents), State::first(secret));
            (self.next_page, self.entries, self.is_marked, self.marked) = (0, 0, true, Vec::new());
            self.stale.clear();
            return self.write_all_anew();
        }
        self.write_state()?;
        self.write_head()
    }

    /// What a disk of so many bytes has. None: it is blank.
    ///
    /// # Errors
    /// It is not ours, or cannot be read.
    pub fn open(mut disk: P, bytes: u64) -> Result<Option<Journal<P>>, OpenError<P::Error>> {
        let blank = usize::try_from(BLANK_BYTES.min(bytes)).expect("at most a MiB") / PAGE * PAGE;
        let mut first = vec![0; blank];
        disk.read(0, &mut first).map_err(OpenError::Disk)?;
        let Head { donor, place } = match Head::decode(&first[..blank.min(2 * PAGE)], bytes, P::crc) {
            Err(NotADisk::Blank) if first.iter().all(|byte| *byte == 0) => return Ok(None),
            Err(NotADisk::Blank) => return Err(OpenError::NotOurs(NotADisk::Other)),
            other => other.map_err(OpenError::NotOurs)?,
        };
        let room = usize::try_from(place.state_bytes()).expect("in memory");
        let mut states = [vec![0; room], vec![0; room]];
        for (number, state) in (0..).zip(&mut states) {
            disk.read(place.state(number), state).map_err(OpenError::Disk)?;
        }
        let state = State::newest([&states[0], &states[1]], P::crc).map_err(OpenError::State)?;
        let mut journal = Journal::of(disk, bytes, place, donor, state);
        journal.read_table().map_err(OpenError::Disk)?;
        match journal.replay() {
            Ok(()) => Ok(Some(journal)),
            Err(JournalError::Disk(error)) => Err(OpenError::Disk(error)),
            // What was there has to fit.
            Err(JournalError::Full | JournalError::Holds | JournalError::NoAuths) => {
                Err(OpenError::State(BadState))
            }
        }
    }

    /// Of extents that somebody has, or had; all others are absent.
    fn read_table(&mut self) -> Result<(), P::Error> {
        let Held { owners, unwiped, .. } = &self.state.held;
        let extents: BTreeSet<u32> = owners.keys().chain(unwiped.keys()).copied().collect();
        for extent in extents.into_iter().filter(|extent| *extent < self.place.extents) {
            self.disk.read(self.place.table(extent), self.table.part(extent))?;
            if self.state.with_auths.contains(&extent) {
                let mut pages = vec![0; usize::try_from(Place::auth_bytes()).expect("in memory")];
                self.disk.read(self.place.auths(extent), &mut pages)?;
                self.table.take_auths(extent, &pages);
            }
        }
        Ok(())
    }

    /// Finds what became of the blocks that the log names, and begins it anew.
    fn replay(&mut self) -> Done<(), P> {
        let mut found = Vec::new();
        let mut page = vec![0; PAGE];
        for number in self.state.log_from..self.state.log_from + self.place.log_pages() {
            self.disk.read(self.place.log(number), &mut page)?;
            let here = LogPage { number, round: self.state.round };
            let Some(page) = open_page(&page, here, P::crc) else { break };
            self.next_page = number + 1;
            found.push(page);
        }
        // Those that were put down together, last of all.
        let last = found.last().map_or(0, |page| found.len().saturating_sub(page.nth as usize + 1));
        let mut replay = Replay::with_marks(&self.state.dirty, &self.state.intents);
        for (nth, page) in found.into_iter().enumerate() {
            page.entries.into_iter().for_each(|entry| replay.take(entry, nth < last, extent_of));
        }
        for extent in replay.wiped() {
            self.table.wipe(extent);
        }
        let changes: Vec<_> = replay.changes().collect();
        for change in changes {
            let at = self.place.block(change.block);
            let found = if change.is_read { self.disk.sum_at(at) } else { None };
            let sum = |auth: &Auth| auth_sum(auth, P::crc);
            if let Some((told, auth)) = replay.tell(change.block, found, self.auth(change.block), sum) {
                let (Told::Is(noted) | Told::Torn(noted)) = told;
                self.table.set(change.block, noted);
                self.table.set_auth(change.block, &auth);
            }
        }
        self.state.intents.clone_from(replay.intended());
        self.stale.clone_from(replay.intended());
        // What is here of those does not count, or is marked when it does.
        let is_stale =
            |region: &u64| self.stale.contains(&(region * DIRTY_REGION_BYTES / INTENT_REGION_BYTES));
        let marked = replay.marked().filter(|region| !is_stale(region)).collect();
        self.begin_anew(marked)
    }

    /// The disk itself.
    pub fn disk(&self) -> &P {
        &self.disk
    }

    /// Likewise, for what is no business of the journal.
    pub fn disk_mut(&mut self) -> &mut P {
        &mut self.disk
    }

    /// The disk without its donor.
    pub fn into_disk(self) -> P {
        self.disk
    }

    /// What lies where on it.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Whose it is.
    #[must_use]
    pub fn donor(&self) -> DonorId {
        self.donor
    }

    /// What proves that.
    #[must_use]
    pub fn secret(&self) -> DonorSecret {
        self.state.secret
    }

    /// What its donor holds.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.state.held
    }

    /// What the disk has of a block.
    #[must_use]
    pub fn noted(&self, block: u64) -> Noted {
        self.table.get(block)
    }

    /// The nonce and authentication tag that go with that.
    #[must_use]
    pub fn auth(&self, block: u64) -> Auth {
        self.table.auths().get(block)
    }

    /// Those of all blocks.
    #[must_use]
    pub fn auths(&self) -> &Arc<Auths> {
        self.table.auths()
    }

    /// Calls `each` with every block that is not absent.
    pub fn each_known(&self, mut each: impl FnMut(u64, Noted)) {
        let blocks = |extent: u32| u64::from(extent) * EXTENT_BLOCKS..(u64::from(extent) + 1) * EXTENT_BLOCKS;
        for block in self.table.extents().flat_map(blocks) {
            let noted = self.noted(block);
            if noted != ABSENT {
                each(block, noted);
            }
        }
    }

    /// Bytes, by address, that were written shortly before the stop.
    #[must_use]
    pub fn dirty_at_start(&self) -> Vec<Range<u64>> {
        let bytes = |region: &u64| region * DIRTY_REGION_BYTES..(region + 1) * DIRTY_REGION_BYTES;
        self.state.dirty.iter().map(bytes).collect()
    }

    /// Regions of `INTENT_REGION_BYTES` that may be older than what was acknowledged before the stop.
    #[must_use]
    pub fn stale_at_start(&self) -> &BTreeSet<u64> {
        &self.stale
    }

    /// Says in the log that memory may have what the disk has not, of these regions, and for good.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn intend(&mut self, regions: &[u64], marked: impl FnOnce(&Held) -> Vec<u64>) -> Done<(), P> {
        let news = regions.iter().filter(|region| !self.state.intents.contains(region));
        let entries: Vec<Entry> = news.map(|region| Entry::Intent { region: *region }).collect();
        if entries.is_empty() {
            return Ok(());
        }
        self.log(&entries, marked)?;
        // What is logged counts from the next beginning on.
        self.state.intents.extend(regions);
        Ok(())
    }

    /// Says that the disk has all of these regions again, which it has since the last `commit`.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn clean(&mut self, regions: &[u64], marked: impl FnOnce(&Held) -> Vec<u64>) -> Done<(), P> {
        let entries: Vec<Entry> = regions.iter().map(|region| Entry::Clean { region: *region }).collect();
        self.log(&entries, marked)?;
        for region in regions {
            self.state.intents.remove(region);
        }
        Ok(())
    }

    /// The log begins anew after so many entries, for a test of that.
    pub fn limit_log(&mut self, entries_max: u64) {
        self.entries_max = entries_max;
    }

    /// From now on the donor holds this.
    ///
    /// # Errors
    /// The disk does not take it: it is of no use any more.
    pub fn keep(&mut self, held: Held) -> Done<(), P> {
        self.state.held = held;
        self.write_state()
    }

    /// Writes these, in this order; what became of each, once it is on the disk.
    ///
    /// # Errors
    /// The disk does not take what has to be put down before: it is of no use any more.
    pub fn commit(
        &mut self,
        writes: &[Write<P::Data>],
        marked: impl FnOnce(&Held) -> Vec<u64>,
    ) -> Done<Vec<Result<(), P::Error>>, P> {
        let news = || writes.iter().flat_map(Write::each);
        if !self.place.keeps_auths && news().any(|(.., auth)| auth != NO_AUTH) {
            return Err(JournalError::NoAuths);
        }
        let entry = |(block, new, auth)| Entry::Block { block, old: self.noted(block), new, auth };
        let entries: Vec<Entry> = news().map(entry).collect();
        self.log(&entries, marked)?;
        let done = self.disk.write_blocks(self.place, writes);
        if news().any(|(_, noted, _)| noted.is_data) {
            self.disk.flush()?;
        }
        for (block, noted, auth) in news() {
            // One that was not written fits this no more than what it was: it is wrong, and found so.
            self.table.set(block, noted);
            self.table.set_auth(block, &auth);
        }
        Ok(done)
    }

    /// Makes extents absent.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn wipe(&mut self, extents: &[u32], marked: impl FnOnce(&Held) -> Vec<u64>) -> Done<(), P> {
        let entries: Vec<Entry> = extents.iter().map(|extent| Entry::Wiped { extent: *extent }).collect();
        self.log(&entries, marked)?;
        for extent in extents {
            self.table.wipe(*extent);
            if self.state.with_auths.remove(extent) {
                self.disk.zero(self.place.auths(*extent), Place::auth_bytes())?;
            }
            self.state.intents.retain(|region| extent_of(region * INTENT_REGION_BLOCKS) != *extent);
            self.disk.zero(self.place.block(u64::from(*extent) * EXTENT_BLOCKS), EXTENT_BYTES)?;
        }
        Ok(self.disk.flush()?)
    }

    /// Puts entries down, for good.
    fn log(&mut self, entries: &[Entry], marked: impl FnOnce(&Held) -> Vec<u64>) -> Done<(), P> {
        let pages = pages_of(entries).count() as u64;
        let used = self.next_page - self.state.log_from;
        if used + pages > self.place.log_pages() || self.entries > self.entries_max {
            self.begin_anew(marked(&self.state.held))?;
        }
        let mut run = Run::default();
        for (nth, entries) in (0..).zip(pages_of(entries)) {
            let here = LogPage { number: self.next_page, round: self.state.round };
            let page = seal_page(here, nth, entries, P::crc);
            run.take(&mut self.disk, self.place.log(self.next_page), &page)?;
            self.next_page += 1;
        }
        run.end(&mut self.disk)?;
        self.entries += entries.len() as u64;
        self.is_marked = false;
        Ok(self.disk.flush()?)
    }

    /// Whether `mark` may have something to say.
    #[must_use]
    pub fn is_to_be_marked(&self) -> bool {
        !self.is_marked || !self.marked.is_empty()
    }

    /// Says in the log that all is done that it names: what rots from now on is not taken for what it was
    /// before. And which of it others may not have yet.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn mark(&mut self, marked: impl FnOnce(&Held) -> Vec<u64>) -> Done<(), P> {
        let marked = marked(&self.state.held);
        if self.is_marked && marked == self.marked {
            return Ok(());
        }
        let mut entries: Vec<Entry> = marked.iter().map(|region| Entry::Mark { region: *region }).collect();
        entries.push(Entry::Marked { marks: u32::try_from(marked.len()).unwrap_or(u32::MAX) });
        let pages = pages_of(&entries).count() as u64;
        self.marked = marked;
        if self.next_page - self.state.log_from + pages > self.place.log_pages() {
            self.is_marked = true;
            return self.begin_anew(self.marked.clone());
        }
        let marked = self.marked.clone();
        self.log(&entries, |_| marked)?;
        self.is_marked = true;
        Ok(())
    }

    /// The table gets what it does not have; then the log counts from its next page on, and these regions are
    /// those that others may not have.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn begin_anew(&mut self, marked: Vec<u64>) -> Done<(), P> {
        let mut run = Run::default();
        for (extent, page) in self.table.take_touched() {
            let at = self.place.table(extent) + page * PAGE_BYTES;
            run.take(&mut self.disk, at, self.table.page(extent, page))?;
        }
        for (extent, page) in self.table.take_touched_auths() {
            let at = self.place.auths(extent) + page * PAGE_BYTES;
            run.take(&mut self.disk, at, &self.table.auth_page(extent, page))?;
        }
        run.end(&mut self.disk)?;
        self.disk.flush()?;
        // Only now that the disk has those of all their blocks.
        self.state.with_auths.clone_from(self.table.with_auths());
        (self.state.log_from, self.state.round) = (self.next_page, self.state.round + 1);
        self.state.dirty = marked;
        self.entries = 0;
        self.write_state()
    }

    fn write_state(&mut self) -> Done<(), P> {
        self.state.number += 1;
        let encoded = self.state.encode(self.place.state_bytes(), P::crc).ok_or(JournalError::Full)?;
        self.disk.write(self.place.state(self.state.number), &encoded)?;
        Ok(self.disk.flush()?)
    }
}
