//! A donor's disk, with the donor's memory as what is kept of it at hand.
//!
//! Owns the file, device or export, its journal, and which of its blocks are in the arena. Never: who may
//! read or write (`core::donor`), or the protocol. A block's data is in the arena, or on the disk, or
//! both; its checksum and whether it holds data are in the arena always. Invariants: what was acknowledged
//! is on the disk; a block is in memory as long as somebody holds it (`hold`, `begin`), and leaves memory
//! only when the disk has it; what comes from the disk never covers what was written meanwhile.
//!
//! Parts: `file` and `export` (its bytes), `journal` (core's order of a write, on them), `joined` (neighbours
//! as one request), `teller` and `threads` (who waits for the disk), `write_back` (what is in memory first),
//! `tests`. Core's `Resident` says what is in memory. Called by the donor's server and `cheetah donate`.
//! Tests: there, `lab/disks.rs`, `sim`.

mod export;
mod file;
mod joined;
mod journal;
mod teller;
mod threads;
mod write_back;

pub use file::DiskError;

use crate::arena::Arena;
use crate::control::random;
use crate::ledgers::locked;
use cheetah_core::disk::{DISK_BYTES_MIN, Held, Place, Resident, WriteBack};
pub(crate) use cheetah_core::disk::{Hold, Landed};
use cheetah_core::limits::{BLOCK_BYTES, DIRTY_REGION_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use cheetah_core::map::{DonorId, DonorSecret};
use cheetah_nbd::uri::Uri;
use export::Export;
use file::{Blocks, File, Pages};
use journal::{Journal, OnBlocks, Write, io_error};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Instant;
pub(crate) use teller::{Teller, Told};
use threads::{Job, Look};

/// Where a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskAt {
    /// A file or a block device of this machine. `bytes`: how long a file that is not there yet is made, or
    /// how much of a device is used; None: all of what is there.
    File { path: PathBuf, bytes: Option<u64> },
    /// All of what an NBD server has under this name.
    Export(Uri),
}

impl fmt::Display for DiskAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskAt::File { path, .. } => write!(f, "{}", path.display()),
            DiskAt::Export(uri) => write!(f, "{uri}"),
        }
    }
}

/// A disk that a donor lends.
#[derive(Debug)]
pub struct Disk {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    looks: Arc<threads::Queue<Look>>,
}

/// What the threads have in common.
#[derive(Debug)]
struct Shared {
    blocks: Arc<dyn Blocks>,
    place: Place,
    arena: Arc<Arena>,
    /// Locked before `resident`, never after it.
    journal: Mutex<Journal>,
    resident: Mutex<Resident<Teller>>,
    /// Of volumes with write-back.
    write_back: Mutex<WriteBack<Teller>>,
    began: Instant,
    /// The log cannot be written: nothing is acknowledged any more.
    is_dead: AtomicBool,
    died: tokio::sync::Notify,
}

impl Disk {
    /// Takes what is there: one of ours as it is, a blank one anew. `cache_bytes`: what of it is kept in
    /// memory at most.
    ///
    /// # Errors
    /// What is there holds something else, is in use, or cannot be used; the text says what to do.
    pub fn open(medium: &DiskAt, cache_bytes: u64) -> Result<Disk, DiskError> {
        let (blocks, bytes): (Arc<dyn Blocks>, u64) = match medium {
            DiskAt::File { path, bytes } => {
                let (file, bytes) = File::open(path, *bytes)?;
                (Arc::new(file), bytes)
            }
            DiskAt::Export(uri) => {
                let (export, bytes) = Export::open(uri)?;
                (Arc::new(export), bytes)
            }
        };
        let blocks = OnBlocks(blocks);
        let journal = match Journal::open(blocks.clone(), bytes)? {
            Some(journal) => journal,
            None => {
                let place = Place::on(bytes).ok_or(DiskError::Small { bytes, least: DISK_BYTES_MIN })?;
                let (donor, secret) = drawn().map_err(DiskError::Io)?;
                Journal::format(blocks, donor, secret, place)
                    .map_err(|error| DiskError::Io(io_error(error)))?
            }
        };
        Disk::start(journal, cache_bytes).map_err(DiskError::Io)
    }

    fn start(journal: Journal, cache_bytes: u64) -> io::Result<Disk> {
        let (place, blocks) = (journal.place(), Arc::clone(&journal.disk().0));
        let arena = Arc::new(Arena::over(place.extents, Arc::clone(journal.auths()))?);
        journal.each_known(|block, noted| arena.set_noted(block, noted));
        for region in journal.dirty_at_start() {
            arena.dirty().mark(region.start, region.end - region.start);
            arena.ledgers().unnumbered().mark(region.start, region.end - region.start);
        }
        let room = (cache_bytes / BLOCK_BYTES).max(1);
        let write_back = WriteBack::new(room, journal.stale_at_start());
        let shared = Arc::new(Shared {
            blocks,
            place,
            arena,
            journal: Mutex::new(journal),
            resident: Mutex::new(Resident::new(place.extents, room)),
            write_back: Mutex::new(write_back),
            began: Instant::now(),
            is_dead: AtomicBool::new(false),
            died: tokio::sync::Notify::new(),
        });
        shared.hide_what_is_stale();
        let (jobs, looks) = threads::start(&shared)?;
        Ok(Disk { shared, jobs, looks })
    }

    /// The memory that it is read and written through.
    #[must_use]
    pub fn arena(&self) -> &Arc<Arena> {
        &self.shared.arena
    }

    #[must_use]
    pub fn extents(&self) -> u32 {
        self.shared.place.extents
    }

    /// Whether it has a place for what belongs to each block of an encrypted volume.
    #[must_use]
    pub fn keeps_auths(&self) -> bool {
        self.shared.place.keeps_auths
    }

    /// Who its donor is, what proves that, and what it holds.
    #[must_use]
    pub fn donor(&self) -> (DonorId, DonorSecret, Held) {
        let journal = self.shared.journal();
        (journal.donor(), journal.secret(), journal.held().clone())
    }

    /// Puts down what the donor holds, before anything is done by it.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn keep(&self, held: Held) -> io::Result<()> {
        self.shared.unless_dead(|| self.shared.journal().keep(held).map_err(io_error))
    }

    /// Makes another donor of it, which holds nothing: nobody has anything there any more.
    ///
    /// # Errors
    /// It still holds something, or the disk does not take it.
    pub fn renew(&self) -> io::Result<()> {
        let (donor, secret) = drawn()?;
        self.shared.journal().renew(donor, secret).map_err(io_error)
    }

    /// Makes these extents absent, on the disk and in memory, behind all writes that were begun before.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn wipe(&self, extents: &[u32]) -> io::Result<()> {
        let (done, wiped) = mpsc::channel();
        let job = Job::Wipe { extents: extents.to_vec(), done };
        self.jobs.send(job).map_err(|_| gone())?;
        wiped.recv().map_err(|_| gone())??;
        let mut resident = self.shared.resident();
        for extent in extents {
            resident.forget(blocks_of(*extent));
            self.shared.arena.auths_fall_back(blocks_of(*extent));
        }
        self.shared.arena.wipe(extents);
        Ok(())
    }

    /// Ends when the disk has died: it does not take what has to be put down before anything else.
    pub async fn died(&self) {
        loop {
            let died = self.shared.died.notified();
            if self.shared.is_dead.load(Ordering::Acquire) {
                return;
            }
            died.await;
        }
    }

    /// Holds the blocks of a range in memory until `let_go`; whether they are here, or `teller` is told.
    pub(crate) fn hold(&self, offset: u64, len: u64, teller: &Teller) -> Hold {
        let is_data = |block| self.shared.arena.is_present(block);
        self.bring(self.shared.resident().hold(range(offset, len), is_data, teller))
    }

    /// Likewise of blocks that are held.
    pub(crate) fn look(&self, offset: u64, len: u64, teller: &Teller) -> Hold {
        let is_data = |block| self.shared.arena.is_present(block);
        self.bring(self.shared.resident().look(range(offset, len), is_data, teller))
    }

    fn bring(&self, (hold, missing): (Hold, Vec<(u64, Range<u64>)>)) -> Hold {
        for (bring, blocks) in missing {
            self.looks.push(Look::Bring { bring, blocks });
        }
        hold
    }

    /// What was held is not any more.
    pub(crate) fn let_go(&self, offset: u64, len: u64) {
        self.shared.let_go(range(offset, len));
    }

    /// Before a write of whole blocks reaches memory: holds them. Then `commit` or `cut`.
    pub(crate) fn begin(&self, offset: u64, len: u64) {
        self.shared.resident().begin(range(offset, len));
    }

    /// What landed of a write in memory goes to the disk as it is now; `teller` is told when it is there.
    pub(crate) fn commit(&self, offset: u64, len: u64, teller: Teller) {
        let blocks = range(offset, len);
        let arena = &self.shared.arena;
        let notes = blocks.clone().map(|block| arena.noted(block)).collect::<Vec<_>>();
        let data = notes.iter().filter(|noted| noted.is_data).count();
        let mut pages = Pages::new(data * BLOCK_BYTES as usize);
        let mut rest = pages.bytes_mut();
        let mut zeros = Vec::new();
        for (block, noted) in blocks.clone().zip(&notes) {
            if noted.is_data {
                let (page, behind) = rest.split_at_mut(BLOCK_BYTES as usize);
                arena.copy_out(block, page);
                rest = behind;
            } else {
                zeros.push(block);
            }
        }
        self.shared.resident().all_went(&zeros);
        let write = Write { first: blocks.start, notes, auths: arena.auths_of(blocks), data: pages };
        if let Err(mpsc::SendError(Job::Commit { write, teller })) =
            self.jobs.send(Job::Commit { write, teller })
        {
            self.shared.let_go(write.blocks());
            teller.tell(Err(gone()));
        }
    }

    /// What landed of a write is not what its client meant: the disk has what counts.
    pub(crate) fn cut(&self, offset: u64, len: u64) {
        let blocks = range(offset, len);
        self.shared.resident().doom(blocks.clone());
        self.shared.let_go(blocks);
    }

    /// Whether a block is right in memory, as far as it is there.
    pub(crate) fn is_right_in_memory(&self, block: u64) -> bool {
        let resident = self.shared.resident();
        !resident.has(block) || self.shared.arena.is_right(block)
    }

    /// Whether each block of a range is right on the disk; `teller` is told.
    pub(crate) fn check(&self, offset: u64, len: u64, teller: Teller) {
        self.looks.push(Look::Check { blocks: range(offset, len), teller });
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.looks.close();
    }
}

impl Shared {
    fn journal(&self) -> MutexGuard<'_, Journal> {
        locked(&self.journal)
    }

    /// Regions that may be written on some donors of their volume and not on others.
    fn marked(&self, held: &Held) -> Vec<u64> {
        marked_of(&self.arena, held)
    }

    fn resident(&self) -> MutexGuard<'_, Resident<Teller>> {
        locked(&self.resident)
    }

    fn die(&self) {
        self.is_dead.store(true, Ordering::Release);
        self.died.notify_waiters();
    }

    /// One hold less. What is doomed and held by nobody then goes out of memory, and is what the disk has.
    fn let_go(&self, blocks: Range<u64>) {
        if !self.resident().let_go(blocks.clone()) {
            return;
        }
        let journal = self.journal();
        let mut resident = self.resident();
        for block in resident.take_doomed(blocks) {
            self.arena.set_noted(block, journal.noted(block));
            self.arena.drop_memory(block..block + 1);
        }
    }

    /// Makes room in memory where there is too much.
    fn make_room(&self, resident: &mut Resident<Teller>) {
        let gone = resident.evict();
        for run in gone.chunk_by(|one, next| one + 1 == *next) {
            self.arena.drop_memory(run[0]..run[run.len() - 1] + 1);
        }
    }
}

/// Who a new donor is.
fn drawn() -> io::Result<(DonorId, DonorSecret)> {
    Ok((DonorId(random()?), DonorSecret(random()?)))
}

fn range(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
}

/// Regions that may be written on some donors of their volume and not on others.
fn marked_of(arena: &Arena, held: &Held) -> Vec<u64> {
    let mut marked = BTreeSet::new();
    let mut mark =
        |from: u64, to: u64| marked.extend(from / DIRTY_REGION_BYTES..to.div_ceil(DIRTY_REGION_BYTES));
    for extent in held.owners.keys() {
        let mut at = u64::from(*extent) * EXTENT_BYTES;
        arena.ledgers().unnumbered().runs(at, EXTENT_BYTES, |len, is_marked| {
            if is_marked {
                mark(at, at + len);
            }
            at += len;
        });
    }
    arena.ledgers().each_listed(mark);
    marked.into_iter().collect()
}

fn blocks_of(extent: u32) -> Range<u64> {
    u64::from(extent) * EXTENT_BLOCKS..(u64::from(extent) + 1) * EXTENT_BLOCKS
}

fn gone() -> io::Error {
    io::Error::other("this disk takes nothing any more")
}

#[cfg(test)]
mod tests;
