//! What writes covered in a donor's memory, kept until they are complete everywhere: they can be undone.
//!
//! Owns the memory that it is kept in, block by block, and how much of that there is. Never: which writes are
//! kept or undone (`core::donor::Ledger`), or the donor's memory itself (`arena`). Invariants: what is not
//! kept any more is overwritten with zeros; memory comes as it is needed and never exceeds
//! `UNDO_BYTES_MAX`.
//! Called by `arena` and `ledgers`. Tests: below, `arena`. One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use crate::auth::{Auth, NONE};
use crate::mapping::Mapping;
use cheetah_core::donor::Before;
use cheetah_core::limits::{BLOCK_BYTES, UNDO_BYTES_MAX};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BLOCK: usize = BLOCK_BYTES as usize;
const PLACES: u32 = (UNDO_BYTES_MAX / BLOCK_BYTES) as u32;

#[derive(Debug)]
pub(crate) struct Undo {
    memory: Mapping,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Those that were used, the last one at the end: its memory is in the processor's cache.
    places: Vec<u32>,
    /// From here on none was used yet.
    unused: u32,
}

/// What a block was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Was {
    pub(crate) sum: u32,
    /// None: it was absent.
    place: Option<u32>,
}

/// Blocks beside each other as they were.
#[derive(Debug)]
pub(crate) struct Kept {
    undo: Arc<Undo>,
    blocks: Vec<Was>,
    /// Their nonces and authentication tags; empty where none had any.
    auths: Vec<Auth>,
}

impl Undo {
    /// # Errors
    /// The kernel refuses the address space.
    pub(crate) fn new() -> io::Result<Arc<Undo>> {
        let memory = Mapping::anonymous(PLACES as usize * BLOCK)?;
        Ok(Arc::new(Undo { memory, free: Mutex::default() }))
    }

    /// Has each page locked when it comes; whether this process may.
    pub(crate) fn lock(&self) -> bool {
        self.memory.lock_as_it_comes()
    }

    /// Keeps these blocks, given with their checksums; of one that is absent there is no content. `None`:
    /// there is no room.
    pub(crate) fn keep<'a>(
        self: &Arc<Undo>,
        present: usize,
        blocks: impl Iterator<Item = (u32, Option<&'a [u8]>)>,
    ) -> Option<Kept> {
        let mut places = self.take(present)?;
        let keep = |(sum, content): (u32, Option<&[u8]>)| {
            let place = content.and_then(|_| places.pop());
            if let Some((place, content)) = place.zip(content) {
                // SAFETY: the place is nobody else's; both are a block long.
                unsafe {
                    self.page(place).copy_from_nonoverlapping(content.as_ptr(), content.len().min(BLOCK))
                };
            }
            Was { sum, place }
        };
        let blocks = blocks.map(keep).collect();
        let kept = Kept { undo: Arc::clone(self), blocks, auths: Vec::new() };
        self.free().places.append(&mut places);
        Some(kept)
    }

    fn take(&self, count: usize) -> Option<Vec<u32>> {
        let mut free = self.free();
        let Free { places, unused } = &mut *free;
        let more = count.saturating_sub(places.len());
        if more > (PLACES - *unused) as usize {
            return None;
        }
        let mut taken = places.split_off(places.len() - (count - more));
        let end = *unused + u32::try_from(more).expect("fewer than there are places");
        taken.extend(*unused..end);
        *unused = end;
        Some(taken)
    }

    /// No step of it panics half-way.
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self, place: u32) -> *mut u8 {
        assert!(place < PLACES, "places are counted");
        // SAFETY: inside the mapping.
        unsafe { self.memory.start().as_ptr().add(place as usize * BLOCK) }
    }
}

impl Kept {
    pub(crate) fn with_auths(self, auths: Vec<Auth>) -> Kept {
        debug_assert!(auths.is_empty() || auths.len() == self.blocks.len());
        let mut kept = self;
        kept.auths = auths;
        kept
    }

    /// Of one of its blocks.
    pub(crate) fn auth(&self, nth: usize) -> Auth {
        self.auths.get(nth).copied().unwrap_or(NONE)
    }

    /// Block by block what was there; of one that was absent there is no content.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, Option<&[u8]>)> {
        self.blocks.iter().map(|was| {
            // SAFETY: a block inside the mapping, which is this one's as long as it lives.
            let content =
                was.place.map(|place| unsafe { std::slice::from_raw_parts(self.undo.page(place), BLOCK) });
            (was.sum, content)
        })
    }
}

impl Before for Kept {
    fn split_off(&mut self, bytes: u64) -> Kept {
        let at = usize::try_from(bytes / BLOCK_BYTES).expect("inside of it");
        let auths = self.auths.split_off(at.min(self.auths.len()));
        Kept { undo: Arc::clone(&self.undo), blocks: self.blocks.split_off(at), auths }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let places = || self.blocks.iter().filter_map(|was| was.place);
        for place in places() {
            // SAFETY: a block inside the mapping, which is this one's until it is given back below.
            unsafe { self.undo.page(place).write_bytes(0, BLOCK) };
        }
        self.undo.free().places.extend(places());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn keep(undo: &Arc<Undo>, blocks: &[Option<[u8; BLOCK]>]) -> Option<Kept> {
        let present = blocks.iter().flatten().count();
        undo.keep(
            present,
            (0..).zip(blocks).map(|(sum, block)| (sum, block.as_ref().map(|block| &block[..]))),
        )
    }

    fn told(kept: &Kept) -> Vec<(u32, Option<u8>)> {
        kept.blocks().map(|(sum, content)| (sum, content.map(|content| content[BLOCK - 1]))).collect()
    }

    #[test]
    fn what_is_kept_comes_back_and_nothing_of_it_stays() {
        let undo = Undo::new().unwrap();
        let mut first = keep(&undo, &[Some([7; BLOCK]), None, Some([9; BLOCK])]).unwrap();
        let rest = first.split_off(BLOCK_BYTES);
        assert_eq!((told(&first), told(&rest)), (vec![(0, Some(7))], vec![(1, None), (2, Some(9))]));
        drop(first);
        assert_eq!(told(&rest), [(1, None), (2, Some(9))]);
        drop(rest);
        // SAFETY: inside the mapping, which nobody else knows.
        let all = unsafe { std::slice::from_raw_parts(undo.page(0), 2 * BLOCK) };
        assert!(all.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn there_is_room_for_so_much_and_then_again() {
        let undo = Undo::new().unwrap();
        let some = vec![Some([1; BLOCK]); 64];
        let mut all: Vec<Kept> = (0..PLACES / 64).map(|_| keep(&undo, &some).unwrap()).collect();
        assert!(keep(&undo, &[Some([2; BLOCK])]).is_none());
        assert!(keep(&undo, &[None, None]).is_some(), "what is absent takes no room");
        drop(all.swap_remove(5));
        assert_eq!(told(&keep(&undo, &[Some([2; BLOCK])]).unwrap()), [(0, Some(2))]);
    }
}
