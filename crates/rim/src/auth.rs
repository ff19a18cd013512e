//! Nonce and authentication tag of each block of an encrypted volume: 28 bytes that whoever has no key
//! carries, keeps and computes parity of as they are.
//!
//! Owns what they add to a block's checksum, and a donor's table of them. Never: a key, or what they mean
//! (`crate::cipher`). Invariants: a block that was never written, or made zeros, has none, which is 28 zeros,
//! so that parity over them is computed as over blocks; and the table takes memory only for extents that have
//! some. Others may read an entry while it is written: then the block's checksum does not fit.
//! Called by `arena`, `undo` and `volume`. Tests: below.

pub(crate) use cheetah_nbd::limits::AUTH_BYTES;

use crate::code;
use crate::contexts::place;
use cheetah_core::limits::EXTENT_BLOCKS;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Of one block.
pub(crate) type Auth = [u8; AUTH_BYTES];

/// That of a block which has none.
pub(crate) const NONE: Auth = [0; AUTH_BYTES];

/// The CRC32C of a block's bytes becomes its checksum by XOR with this.
pub(crate) fn sum(auth: &Auth) -> u32 {
    if *auth == NONE { 0 } else { code::crc32c(auth) }
}

const WORDS: usize = AUTH_BYTES / 4;

type Kept = [AtomicU32; WORDS];

/// Of one extent.
type OfExtent = OnceLock<Box<[Kept]>>;

/// Those of a donor's memory.
#[derive(Debug)]
pub(crate) struct Auths {
    extents: u32,
    /// Made when there is one to keep.
    all: OnceLock<Box<[OfExtent]>>,
}

impl Auths {
    pub(crate) fn new(extents: u32) -> Auths {
        Auths { extents, all: OnceLock::new() }
    }

    /// Whether the extent of this block has any.
    pub(crate) fn has_some(&self, block: u64) -> bool {
        self.kept(block).is_some()
    }

    fn kept(&self, block: u64) -> Option<&Kept> {
        let (extent, at) = place(block);
        self.all.get()?.get(extent)?.get()?.get(at)
    }

    /// Of the block with this number in the whole memory.
    pub(crate) fn get(&self, block: u64) -> Auth {
        let Some(kept) = self.kept(block) else { return NONE };
        let mut auth = NONE;
        for (bytes, word) in auth.as_chunks_mut::<4>().0.iter_mut().zip(kept) {
            *bytes = word.load(Ordering::Acquire).to_ne_bytes();
        }
        auth
    }

    /// What it adds to the block's checksum.
    pub(crate) fn sum(&self, block: u64) -> u32 {
        if self.all.get().is_none() { 0 } else { sum(&self.get(block)) }
    }

    pub(crate) fn set(&self, block: u64, auth: &Auth) {
        let (extent, at) = place(block);
        if *auth == NONE && !self.has_some(block) {
            return;
        }
        let all = self.all.get_or_init(|| (0..self.extents).map(|_| OnceLock::new()).collect());
        let none = || (0..EXTENT_BLOCKS).map(|_| Kept::default()).collect();
        let kept = &all[extent].get_or_init(none)[at];
        for (word, bytes) in kept.iter().zip(auth.as_chunks::<4>().0) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Release);
        }
    }

    /// Of blocks `from..to`.
    pub(crate) fn of(&self, from: u64, to: u64) -> impl ExactSizeIterator<Item = Auth> {
        let blocks = usize::try_from(to - from).expect("blocks of one request");
        (0..blocks).map(move |nth| self.get(from + nth as u64))
    }

    /// Blocks `from..to` have none any more.
    pub(crate) fn clear(&self, from: u64, to: u64) {
        if self.all.get().is_some() {
            (from..to).for_each(|block| self.set(block, &NONE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_set_takes_no_memory() {
        let auths = Auths::new(3);
        auths.set(1, &NONE);
        auths.clear(0, 3 * EXTENT_BLOCKS);
        assert!(auths.all.get().is_none());
        let one = std::array::from_fn(|at| at as u8 + 1);
        auths.set(EXTENT_BLOCKS, &one);
        assert_eq!(auths.of(EXTENT_BLOCKS - 1, EXTENT_BLOCKS + 2).collect::<Vec<_>>(), [NONE, one, NONE]);
        assert!(!auths.has_some(0) && auths.has_some(EXTENT_BLOCKS + 1));
        assert_eq!((auths.sum(EXTENT_BLOCKS), auths.sum(0)), (code::crc32c(&one), 0));
        auths.clear(EXTENT_BLOCKS, EXTENT_BLOCKS + 1);
        assert_eq!((auths.get(EXTENT_BLOCKS), auths.sum(EXTENT_BLOCKS)), (NONE, 0));
    }
}
