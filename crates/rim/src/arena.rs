//! The memory that a donor lends: one memfd, which of its 4 KiB blocks take memory, and which are known.
//!
//! Owns the mapping, the bitmaps of both, the checksums and authentication tags of blocks, the dirty map,
//! zeroing and wiping, and how much went through it. Never: who may touch which extent (the `Access` of
//! `core::donor` says that before any call here). Invariants: a block that is not present takes no memory and
//! reads as zeros; reading never makes a block present; a block is known from the end of the write or zeroing
//! that made it whole until it is wiped, and `donor` asks for that where a volume has a source; a block that
//! is not being written is what its checksum says, or its memory has failed. Bytes are handled by address
//! only: other connections may write them at the same time, and which of two overlapping requests wins is the
//! client's affair, as on any disk. Called by `donor`. Tests: `tests`. One of the named modules that may use
//! unsafe.
#![allow(unsafe_code)]

use crate::auth::{Auth, Auths};
use crate::code;
use crate::contexts::{Contexts, unfit};
pub(crate) use crate::layers::Room;
use crate::layers::{Layers, bits};
use crate::ledgers::Ledgers;
use crate::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::undo::{Kept, Undo};
use crate::writing::Writing;
use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::donor::DirtyMap;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, LAYERS_MAX};
use cheetah_core::runs::runs;
use cheetah_nbd::Digest;
use rustix::fs::{FallocateFlags, MemfdFlags};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub struct Arena {
    memory: OwnedFd,
    mapping: Mapping,
    bytes: u64,
    /// One bit a block.
    presence: Box<[AtomicU64]>,
    /// One bit a block: somebody said what it holds, if only zeros.
    known: Box<[AtomicU64]>,
    /// Memory behind its addresses that extents of one volume share.
    layers: Layers,
    contexts: Contexts,
    /// Nonces and authentication tags, of encrypted volumes.
    auths: Auths,
    writing: Writing,
    dirty: DirtyMap,
    ledgers: Ledgers,
    undo: Arc<Undo>,
    /// Bytes that came from and went to clients so far.
    moved: AtomicU64,
    /// Held while extents are wiped or collapsed.
    wiping: Mutex<()>,
}

/// A write, or zeros, on their way into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    offset: u64,
    len: u64,
    /// How far the block at its beginning was from its checksum, if a part of that is written; 0: it was
    /// right.
    first: u32,
    /// The same of the block at its end.
    last: u32,
}

/// What a client says of the payload of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) digest: Digest,
    /// The first of its blocks, by the address that the client knows.
    pub(crate) first: u64,
}

impl Begun {
    /// Where, and how long it is.
    pub(crate) fn place(self) -> (u64, u64) {
        (self.offset, self.len)
    }

    fn blocks(self) -> Range<u64> {
        self.offset / BLOCK_BYTES..(self.offset + self.len).div_ceil(BLOCK_BYTES)
    }
}

/// A block is looked at again so often when writes begin meanwhile.
const LOOKS_MAX: u32 = 8;

const BLOCKS_PER_WORD: u64 = 64;
const WORDS_PER_HUGE_PAGE: usize = HUGE_PAGE_BYTES / (BLOCKS_PER_WORD * BLOCK_BYTES) as usize;

impl Arena {
    /// # Errors
    /// The kernel refuses a memfd or the address space for it.
    pub fn new(extents: u32) -> io::Result<Arena> {
        Arena::with(extents, Auths::new(extents * LAYERS_MAX))
    }

    fn with(extents: u32, auths: Auths) -> io::Result<Arena> {
        let bytes = u64::from(extents) * EXTENT_BYTES;
        let memory = rustix::fs::memfd_create("cheetah-arena", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, bytes * u64::from(LAYERS_MAX))?;
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        let mapping = Mapping::of_file(&memory, 0, len)?;
        let (presence, known) = (bits(bytes), bits(bytes));
        let layers = Layers::new(extents);
        let (dirty, moved, wiping) = (DirtyMap::new(extents), AtomicU64::new(0), Mutex::new(()));
        let (contexts, ledgers) = (Contexts::new(extents * LAYERS_MAX), Ledgers::new(extents));
        let writing = Writing::default();
        let undo = Undo::new()?;
        Ok(Arena {
            memory,
            mapping,
            bytes,
            presence,
            known,
            layers,
            contexts,
            auths,
            writing,
            dirty,
            ledgers,
            undo,
            moved,
            wiping,
        })
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has each page locked when it comes, and those that are here; what is punched out is given back as
    /// ever. Whether this process may.
    pub(crate) fn lock(&self) -> bool {
        self.layers.lock();
        self.mapping.lock_as_it_comes() && self.undo.lock()
    }

    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        let blocks: u32 = self.presence.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        (u64::from(blocks) + self.layers.blocks()) * BLOCK_BYTES
    }

    /// Memory that the kernel has given to it, which with huge pages may be more than `bytes_used`.
    #[must_use]
    pub fn bytes_resident(&self) -> u64 {
        const STAT_BLOCK_BYTES: u64 = 512;
        let blocks = rustix::fs::fstat(&self.memory).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0) * STAT_BLOCK_BYTES
    }

    /// How many huge pages it could lie on.
    pub(crate) fn huge_pages(&self) -> usize {
        self.presence.len() / WORDS_PER_HUGE_PAGE
    }

    /// Moves the blocks of this huge page into one, in place, if all of them are present: who reads or writes
    /// them meanwhile notices nothing. Whether they are. (One that is trimmed at this very moment may get its
    /// memory back until its extent is wiped.)
    ///
    /// # Errors
    /// `InvalidInput`: not on this kernel; `OutOfMemory`, `ResourceBusy`: it has no huge page; others: not
    /// now.
    pub(crate) fn collapse(&self, page: usize) -> io::Result<bool> {
        // The kernel would fill with zeros what is wiped under its hands.
        let _wiping = self.wiping.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_whole(page) {
            return Ok(false);
        }
        let start = self.address((page * HUGE_PAGE_BYTES) as u64).cast();
        // SAFETY: inside the mapping; the content stays as it is.
        match unsafe { libc::madvise(start, HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) } {
            0 => Ok(true),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether all blocks of this huge page are present.
    pub(crate) fn is_whole(&self, page: usize) -> bool {
        let words = &self.presence[page * WORDS_PER_HUGE_PAGE..][..WORDS_PER_HUGE_PAGE];
        words.iter().all(|word| word.load(Ordering::Acquire) == u64::MAX)
    }

    /// Whoever changes a range marks it here before.
    #[must_use]
    pub(crate) fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    #[must_use]
    pub fn dirty(&self) -> &DirtyMap {
        &self.dirty
    }

    /// So much came from a client, or goes to one.
    pub(crate) fn count_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that came from and went to clients so far, with the heads around them.
    #[must_use]
    pub fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// A whole write at once.
    #[cfg(test)]
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let begun = self.begin_write(offset, bytes.len() as u64);
        self.copy_in(offset, bytes);
        self.wrote(begun, bytes.len() as u64, None, None);
    }

    /// What its memory holds there.
    #[cfg(test)]
    pub(crate) fn bytes_at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, offset).expect("memory"), len);
        bytes
    }

    /// The address of a byte. The caller has checked the range against `bytes`.
    pub(crate) fn address(&self, offset: u64) -> *mut u8 {
        if offset >= self.bytes && self.layers.has(offset.checked_sub(self.bytes)) {
            return self.layers.address(offset - self.bytes);
        }
        assert!(offset <= self.bytes, "ranges are checked before they reach the arena");
        // SAFETY: inside the mapping, or one past its end.
        unsafe { self.mapping.start().as_ptr().add(usize::try_from(offset).expect("mapped, so it fits")) }
    }

    pub(crate) fn is_present(&self, block: u64) -> bool {
        self.word(block).load(Ordering::Acquire) & bit(block) != 0
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        match self.presence.get(word_of(block)) {
            Some(word) => word,
            None => self.layers.presence(word_of(block) - self.presence.len()),
        }
    }

    fn known(&self, block: u64) -> &AtomicU64 {
        match self.known.get(word_of(block)) {
            Some(word) => word,
            None => self.layers.known(word_of(block) - self.known.len()),
        }
    }

    fn is_known(&self, block: u64) -> bool {
        self.known(block).load(Ordering::Acquire) & bit(block) != 0
    }

    /// Behind everything else of a write: whoever finds its blocks known finds all of it.
    fn know(&self, from: u64, to: u64) {
        for block in from..to {
            self.known(block).fetch_or(bit(block), Ordering::Release);
        }
    }

    /// The first byte of the range whose block nobody has said anything of since it was wiped.
    pub(crate) fn first_unknown(&self, offset: u64, len: u64) -> Option<u64> {
        let mut blocks = offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES);
        blocks.find(|block| !self.is_known(*block)).map(|block| offset.max(block * BLOCK_BYTES))
    }

    /// As `runs`, of what is known.
    pub(crate) fn known_runs(&self, offset: u64, len: u64, each: impl FnMut(u64, bool)) {
        runs(offset, len, BLOCK_BYTES, |block| self.is_known(block), each);
    }

    /// Calls `each` with runs of equal presence that together make up the range: (length, present).
    pub(crate) fn runs(&self, offset: u64, len: u64, each: impl FnMut(u64, bool)) {
        runs(offset, len, BLOCK_BYTES, |block| self.is_present(block), each);
    }

    // Checksums.

    /// The checksums of all blocks that the range touches.
    pub(crate) fn sums(&self, offset: u64, len: u64) -> impl ExactSizeIterator<Item = u32> {
        self.contexts.of(offset / BLOCK_BYTES, (offset + len).div_ceil(BLOCK_BYTES))
    }

    /// Whether the block is what its checksum says, or is being written.
    pub(crate) fn is_right(&self, block: u64) -> bool {
        let still = || self.writing.still(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        for _ in 0..LOOKS_MAX {
            let before = still();
            if before.is_none() || self.differs(block) == 0 {
                return true;
            }
            // One that began meanwhile may have ended as well.
            if still() == before {
                return false;
            }
        }
        true
    }

    /// How far a block is from its checksum; zero: it is right.
    fn differs(&self, block: u64) -> u32 {
        self.found(block) ^ self.contexts.get(block)
    }

    /// The checksum of what a block holds.
    fn found(&self, block: u64) -> u32 {
        let crc = if self.is_present(block) { code::crc32c(self.block(block)) } else { ZERO_BLOCK_CRC };
        crc ^ self.auths.sum(block)
    }

    fn block(&self, block: u64) -> &[u8] {
        let start = self.address(block * BLOCK_BYTES);
        // SAFETY: a whole block inside the mapping, aligned. Others may write it meanwhile, as into a buffer
        // that the kernel writes: then what is made of it is of no use, and whoever wrote makes it again.
        unsafe { std::slice::from_raw_parts(start, BLOCK_BYTES as usize) }
    }

    /// Behind what has landed of a write: its blocks have the checksums of what they hold now, but for what
    /// was wrong before and may be there still.
    fn sign(&self, begun: Begun) {
        begun.blocks().for_each(|block| self.contexts.set(block, self.meant(begun, block)));
    }

    /// Likewise, if that is what its client says. Otherwise its blocks have checksums that do not fit, and
    /// whoever reads them finds them wrong. Whether it is.
    fn sign_as(&self, begun: Begun, said: Said) -> bool {
        // First all of them: nobody is to take one for right before it is known to be.
        let sums: Vec<u32> = begun.blocks().map(|block| self.meant(begun, block)).collect();
        let is_right = Digest::of_blocks(said.first, sums.iter().copied()) == said.digest.sums;
        let told = |sum| if is_right { sum } else { unfit(sum) };
        begun.blocks().zip(sums).for_each(|(block, sum)| self.contexts.set(block, told(sum)));
        is_right
    }

    /// The checksum that a block has behind a write.
    fn meant(&self, Begun { offset, len, first, last }: Begun, block: u64) -> u32 {
        let first = if block == offset / BLOCK_BYTES { first } else { 0 };
        let last = if block + 1 == (offset + len).div_ceil(BLOCK_BYTES) { last } else { 0 };
        self.found(block) ^ first ^ last
    }

    /// Nonces and authentication tags of all blocks that the range touches.
    pub(crate) fn auths(&self, offset: u64, len: u64) -> impl ExactSizeIterator<Item = Auth> {
        self.auths.of(offset / BLOCK_BYTES, (offset + len).div_ceil(BLOCK_BYTES))
    }

    // Writing.

    /// Blocks from `offset` on have these, between `begin_write` and `wrote`.
    pub(crate) fn set_auths(&self, offset: u64, auths: &[Auth]) {
        (offset / BLOCK_BYTES..).zip(auths).for_each(|(block, auth)| self.auths.set(block, auth));
    }

    /// Before a write of this range, of which `wrote` tells the end. What is wrong in a block shall not look
    /// right because a part of it is written.
    pub(crate) fn begin_write(&self, offset: u64, len: u64) -> Begun {
        self.writing.begin(offset, offset + len);
        let (first, last) = (offset / BLOCK_BYTES, (offset + len) / BLOCK_BYTES);
        let begins = len > 0 && !offset.is_multiple_of(BLOCK_BYTES);
        let ends = len > 0 && !(offset + len).is_multiple_of(BLOCK_BYTES);
        Begun {
            offset,
            len,
            first: if begins { self.differs(first) } else { 0 },
            // Both may lie in one block.
            last: if ends && !(begins && first == last) { self.differs(last) } else { 0 },
        }
    }

    /// Copies bytes in. The caller then says `wrote`.
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        self.assert_is_one(offset, offset + bytes.len() as u64);
        // SAFETY: inside the mapping (asserted); `bytes` is ordinary memory outside of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(offset), bytes.len()) };
    }

    /// So many bytes of a write have landed, and no more will. Their blocks are present, but for those that
    /// were absent and were only filled with zeros; their memory goes back. Whether it is what was sent,
    /// as far as its client said what that is.
    pub(crate) fn wrote(&self, begun: Begun, len: u64, room: Option<Room>, said: Option<Said>) -> bool {
        let Begun { offset, last, .. } = begun;
        match room {
            // What comes is counted once: as on its way, or as present.
            Some(room) => self.layers.settled(room, || self.settle(offset, len)),
            None => self.settle(offset, len),
        }
        let landed = Begun { len, last: if len == begun.len { last } else { 0 }, ..begun };
        let is_right = match said {
            Some(said) => self.sign_as(landed, said),
            None => {
                self.sign(landed);
                true
            }
        };
        // The rest of a block that was cut off in the middle is not what its writer meant.
        let end = offset + len;
        let whole = if len == begun.len { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
        self.know(offset / BLOCK_BYTES, whole);
        self.writing.end(offset, offset + begun.len);
        is_right
    }

    fn settle(&self, offset: u64, len: u64) {
        let end = offset + len;
        let mut at = offset;
        let mut zeros = 0..0;
        while at < end {
            let block = at / BLOCK_BYTES;
            let next = ((block + 1) * BLOCK_BYTES).min(end);
            if !self.is_present(block) {
                let whole = next - at == BLOCK_BYTES;
                if whole && self.is_zero(at) {
                    if zeros.end != at {
                        self.punch(&zeros);
                        zeros.start = at;
                    }
                    zeros.end = next;
                } else {
                    self.word(block).fetch_or(bit(block), Ordering::AcqRel);
                }
            }
            at = next;
        }
        self.punch(&zeros);
    }

    fn is_zero(&self, block_start: u64) -> bool {
        let start = self.address(block_start).cast::<u64>();
        (0..BLOCK_BYTES / 8).all(|i| {
            // SAFETY: a whole block inside the mapping, aligned; volatile because others may write it
            // meanwhile.
            let word = unsafe { start.add(i as usize).read_volatile() };
            word == 0
        })
    }

    fn punch(&self, range: &Range<u64>) {
        if range.start < range.end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.memory, flags, range.start, range.end - range.start);
        }
    }

    fn assert_is_one(&self, offset: u64, end: u64) {
        let is_one = end <= self.bytes || offset / EXTENT_BYTES == (end - 1) / EXTENT_BYTES;
        assert!(is_one, "ranges are checked before they reach the arena");
    }

    fn fill_zero(&self, offset: u64, end: u64) {
        let len = usize::try_from(end - offset).expect("mapped, so it fits");
        self.assert_is_one(offset, end);
        // SAFETY: inside the mapping (asserted).
        unsafe { std::ptr::write_bytes(self.address(offset), 0, len) };
    }

    /// Makes the range read as zeros. Whole blocks become absent, unless `keep` asks for their memory to
    /// stay.
    pub(crate) fn zero(&self, offset: u64, len: u64, keep: bool) {
        let begun = self.begin_write(offset, len);
        self.fill(offset, len, keep);
        self.sign_zeros(begun);
        self.know(offset / BLOCK_BYTES, (offset + len).div_ceil(BLOCK_BYTES));
        self.writing.end(offset, offset + len);
    }

    /// As `sign`, where all that is covered in full is zeros.
    fn sign_zeros(&self, begun: Begun) {
        let Begun { offset, len, .. } = begun;
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(BLOCK_BYTES), end / BLOCK_BYTES * BLOCK_BYTES);
        if first > last {
            return self.sign(begun);
        }
        self.sign(Begun { len: first - offset, last: 0, ..begun });
        self.auths.clear(first / BLOCK_BYTES, last / BLOCK_BYTES);
        for block in first / BLOCK_BYTES..last / BLOCK_BYTES {
            self.contexts.set(block, ZERO_BLOCK_CRC);
        }
        self.sign(Begun { offset: last, len: end - last, first: 0, ..begun });
    }

    fn fill(&self, offset: u64, len: u64, keep: bool) {
        let end = offset + len;
        if keep {
            self.fill_zero(offset, end);
            for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
                self.word(block).fetch_or(bit(block), Ordering::AcqRel);
            }
            return;
        }
        let (first, last) = (offset.next_multiple_of(BLOCK_BYTES), end / BLOCK_BYTES * BLOCK_BYTES);
        let edge = |from: u64, to: u64| {
            if from < to && self.is_present(from / BLOCK_BYTES) {
                self.fill_zero(from, to);
            }
        };
        if first > last {
            return edge(offset, end);
        }
        edge(offset, first);
        edge(last, end);
        for block in first / BLOCK_BYTES..last / BLOCK_BYTES {
            self.word(block).fetch_and(!bit(block), Ordering::AcqRel);
        }
        self.punch(&(first..last));
    }

    // Undoing.

    /// What is there now, to be put back. `None`: there is no room for it, or these are not whole blocks.
    pub(crate) fn keep(&self, offset: u64, len: u64) -> Option<Kept> {
        if len > EXTENT_BYTES || !(offset | len).is_multiple_of(BLOCK_BYTES) {
            return None;
        }
        let blocks = offset / BLOCK_BYTES..(offset + len) / BLOCK_BYTES;
        let present = blocks.clone().filter(|block| self.is_present(*block));
        // Nobody else writes there while its client's request for it is under way.
        let content = |block: u64| self.is_present(block).then(|| self.block(block));
        let present = present.count();
        let auths = match self.auths.has_some(blocks.start) {
            true => self.auths.of(blocks.start, blocks.end).collect(),
            false => Vec::new(),
        };
        let kept = self.undo.keep(present, blocks.map(|block| (self.contexts.get(block), content(block))));
        kept.map(|kept| kept.with_auths(auths))
    }

    /// Makes what is there from `offset` on what it was, right or wrong.
    pub(crate) fn put_back(&self, offset: u64, kept: &Kept) {
        let mut absent = Vec::new();
        let mut at = offset;
        for (nth, (sum, content)) in kept.blocks().enumerate() {
            let block = at / BLOCK_BYTES;
            self.writing.begin(at, at + BLOCK_BYTES);
            match content {
                Some(content) => {
                    self.copy_in(at, content);
                    self.word(block).fetch_or(bit(block), Ordering::AcqRel);
                }
                None => {
                    self.word(block).fetch_and(!bit(block), Ordering::AcqRel);
                    absent.push(block);
                }
            }
            self.auths.set(block, &kept.auth(nth));
            self.contexts.set(block, sum);
            self.writing.end(at, at + BLOCK_BYTES);
            at += BLOCK_BYTES;
        }
        for run in absent.chunk_by(|one, next| one + 1 == *next) {
            self.punch(&(run[0] * BLOCK_BYTES..(run[run.len() - 1] + 1) * BLOCK_BYTES));
        }
    }

    /// Frees whole extents, before anyone else may use them. Their pages leave the arena; the kernel clears
    /// each before it gives it to any process, this one included. They are not overwritten in place: a socket
    /// may have been lent them, and a reply on its way must not turn into zeros.
    pub fn wipe(&self, extents: &[u32]) {
        let _collapsing = self.wiping.lock().unwrap_or_else(PoisonError::into_inner);
        for extent in extents {
            let first = u64::from(*extent) * EXTENT_BYTES;
            let others = self.layers.of_extent(*extent).map(|start| self.bytes + start);
            for start in others.chain([first]) {
                self.zero(start, EXTENT_BYTES, false);
                let words = (start / BLOCK_BYTES..(start + EXTENT_BYTES) / BLOCK_BYTES).step_by(64);
                words.for_each(|block| self.known(block).store(0, Ordering::Release));
            }
        }
        self.dirty.clear(extents.iter().copied());
        self.ledgers.wiped(extents);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.auths.close();
        let extents = u32::try_from(self.bytes / EXTENT_BYTES).expect("made from a u32");
        self.wipe(&(0..extents).collect::<Vec<_>>());
    }
}

fn word_of(block: u64) -> usize {
    usize::try_from(block / BLOCKS_PER_WORD).expect("mapped, so it fits")
}

const fn bit(block: u64) -> u64 {
    1 << (block % BLOCKS_PER_WORD)
}

mod on_disk;
mod shared;
#[cfg(test)]
mod tests;
