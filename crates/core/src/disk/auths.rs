//! Nonce and authentication tag of each block of encrypted volumes: 28 bytes that whoever has no key carries
//! and keeps as they are.
//!
//! Owns a donor's table of them, and what they add to a block's checksum. Never: a key, or what they mean.
//! Invariants: a block that was never written, or made zeros, has none, which is 28 zeros, so that parity
//! over them is computed as over blocks; and the table takes memory only for extents that have some. Shared
//! by reference between threads; others may read an entry while it is written: then the block's checksum does
//! not fit. Called by `table`, and by `rim` for memory and disks. Tests: below.

use super::PAGE_BYTES;
use crate::limits::{AUTH_BYTES, EXTENT_BLOCKS};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Of one block.
pub type Auth = [u8; AUTH_BYTES];

/// That of a block which has none.
pub const NO_AUTH: Auth = [0; AUTH_BYTES];

/// The CRC32C of a block's bytes becomes its checksum by XOR with this.
#[must_use]
pub fn auth_sum(auth: &Auth, crc: impl FnOnce(&[u8]) -> u32) -> u32 {
    if *auth == NO_AUTH { 0 } else { crc(auth) }
}

/// So many are on a page of the disk; none is on two.
pub(super) const AUTHS_PER_PAGE: u64 = PAGE_BYTES / AUTH_BYTES as u64;

const WORDS: usize = AUTH_BYTES / 4;

type Kept = [AtomicU32; WORDS];

/// Of one extent.
type OfExtent = OnceLock<Box<[Kept]>>;

/// Those of a donor's blocks.
#[derive(Debug)]
pub struct Auths {
    extents: u32,
    /// Made when there is one to keep.
    all: OnceLock<Box<[OfExtent]>>,
}

impl Auths {
    /// None, with room for those of so many extents.
    #[must_use]
    pub fn new(extents: u32) -> Auths {
        Auths { extents, all: OnceLock::new() }
    }

    /// Whether no extent has any, and none ever had.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.get().is_none()
    }

    /// Whether the extent of this block has any, or had some.
    #[must_use]
    pub fn has_some(&self, block: u64) -> bool {
        self.kept(block).is_some()
    }

    fn kept(&self, block: u64) -> Option<&Kept> {
        let (extent, at) = place(block);
        self.all.get()?.get(extent)?.get()?.get(at)
    }

    /// Of the block with this number.
    #[must_use]
    pub fn get(&self, block: u64) -> Auth {
        self.kept(block).map_or(NO_AUTH, load)
    }

    /// From now on a block has this one.
    pub fn set(&self, block: u64, auth: &Auth) {
        let (extent, at) = place(block);
        if *auth == NO_AUTH && !self.has_some(block) {
            return;
        }
        let all = self.all.get_or_init(|| (0..self.extents).map(|_| OnceLock::new()).collect());
        let none = || (0..EXTENT_BLOCKS).map(|_| Kept::default()).collect();
        let kept = &all[extent].get_or_init(none)[at];
        for (word, bytes) in kept.iter().zip(auth.as_chunks::<4>().0) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Release);
        }
    }

    /// Blocks `from..to` have none any more.
    pub fn clear(&self, from: u64, to: u64) {
        if !self.is_empty() {
            (from..to).for_each(|block| self.set(block, &NO_AUTH));
        }
    }

    /// Takes those of blocks from `first` on, of which none is in another extent, from pages of a disk.
    pub(super) fn take_pages(&self, first: u64, pages: &[u8]) {
        let each = pages.chunks(PAGE_BYTES as usize).flat_map(|page| page.as_chunks::<AUTH_BYTES>().0);
        (first..).zip(each.take(EXTENT_BLOCKS as usize)).for_each(|(block, auth)| self.set(block, auth));
    }

    /// The page of a disk with those of blocks from `first` on, up to the end of their extent.
    pub(super) fn page(&self, first: u64) -> Vec<u8> {
        let end = (first / EXTENT_BLOCKS + 1) * EXTENT_BLOCKS;
        let mut page = vec![0; PAGE_BYTES as usize];
        for (auth, block) in page.as_chunks_mut::<AUTH_BYTES>().0.iter_mut().zip(first..end) {
            *auth = self.get(block);
        }
        page
    }
}

fn load(kept: &Kept) -> Auth {
    let mut auth = NO_AUTH;
    for (bytes, word) in auth.as_chunks_mut::<4>().0.iter_mut().zip(kept) {
        *bytes = word.load(Ordering::Acquire).to_ne_bytes();
    }
    auth
}

/// A block's extent, and which block of that it is.
fn place(block: u64) -> (usize, usize) {
    let index = |number: u64| usize::try_from(number).expect("of a donor that is here");
    (index(block / EXTENT_BLOCKS), index(block % EXTENT_BLOCKS))
}

#[cfg(test)]
mod tests {
    use super::super::sum;
    use super::*;

    #[test]
    fn what_was_never_set_takes_no_memory() {
        let auths = Auths::new(3);
        auths.set(1, &NO_AUTH);
        auths.clear(0, 3 * EXTENT_BLOCKS);
        assert!(auths.is_empty());
        let one = std::array::from_fn(|at| at as u8 + 1);
        auths.set(EXTENT_BLOCKS, &one);
        let found = [EXTENT_BLOCKS - 1, EXTENT_BLOCKS, EXTENT_BLOCKS + 1].map(|block| auths.get(block));
        assert_eq!(found, [NO_AUTH, one, NO_AUTH]);
        assert!(!auths.has_some(0) && auths.has_some(EXTENT_BLOCKS + 1));
        assert_eq!((auth_sum(&one, sum), auth_sum(&NO_AUTH, sum)), (sum(&one), 0));
        auths.clear(EXTENT_BLOCKS, EXTENT_BLOCKS + 1);
        assert_eq!(auths.get(EXTENT_BLOCKS), NO_AUTH);
    }

    #[test]
    fn pages_of_a_disk_are_read_back() {
        let auths = Auths::new(2);
        let of = |block: u64| -> Auth { std::array::from_fn(|at| (block * 7 + at as u64 + 1) as u8) };
        let all = EXTENT_BLOCKS..2 * EXTENT_BLOCKS;
        all.clone().for_each(|block| auths.set(block, &of(block)));
        let pages = all.clone().step_by(AUTHS_PER_PAGE as usize).flat_map(|first| auths.page(first));
        let pages: Vec<u8> = pages.collect();
        let again = Auths::new(2);
        again.take_pages(EXTENT_BLOCKS, &pages);
        assert!(all.into_iter().all(|block| again.get(block) == of(block)));
        assert!(!again.has_some(0));
    }
}
