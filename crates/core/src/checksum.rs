//! What a client knows of a volume's bytes: the CRC32C of each 4 KiB block of each fragment.
//!
//! Owns the table. Never: computing a checksum (the rim does), or what follows from one that differs
//! (`volume`). Invariant: an entry is unknown or the checksum of what every holder of the slot was last told
//! to hold. Memory is taken when extents are added (64 KiB for 64 MiB), never on the data path.
//! Called by `volume`. Tests: below.

use crate::limits::EXTENT_BLOCKS;
use std::fmt;

/// CRC32C of 4096 zero bytes.
pub const ZERO_BLOCK_CRC: u32 = 0x98f9_4189;

const BLOCKS: usize = EXTENT_BLOCKS as usize;
/// No CRC is kept as this; one that is, is kept as the next number.
const UNKNOWN: u32 = 0;

/// The checksums of one volume; a group and slot that it has no room for is the caller's bug.
#[derive(Clone, Default)]
pub struct Checksums {
    /// Slots of one group; 0 before there is one.
    width: usize,
    /// Group after group, slot after slot.
    extents: Vec<Box<[u32]>>,
}

impl Checksums {
    /// A table without room; `grow` makes some.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for groups `0..groups` of `width` slots. Those that are added start as known zeros
    /// (`fresh`), or unknown; those that are there stay as they are.
    pub fn grow(&mut self, groups: u32, width: u32, fresh: bool) {
        let width = width as usize;
        assert!(
            self.extents.is_empty() || self.width == width,
            "groups of {} slots, not {width}",
            self.width
        );
        self.width = width;
        let extents = (groups as usize * width).max(self.extents.len());
        let first = if fresh { ZERO_BLOCK_CRC } else { UNKNOWN };
        self.extents.resize_with(extents, || vec![first; BLOCKS].into_boxed_slice());
    }

    /// The block's CRC32C from now on. `block` counts 4 KiB from the start of the slot's extent.
    pub fn set(&mut self, group: u32, slot: u32, block: u32, crc: u32) {
        self.extent_mut(group, slot)[block as usize] = kept(crc);
    }

    /// Blocks `from_block..to_block` are unknown from now on.
    pub fn forget(&mut self, group: u32, slot: u32, from_block: u32, to_block: u32) {
        self.extent_mut(group, slot)[from_block as usize..to_block as usize].fill(UNKNOWN);
    }

    /// Whether `crc` is the block's; `None` when that is unknown.
    #[must_use]
    pub fn check(&self, group: u32, slot: u32, block: u32, crc: u32) -> Option<bool> {
        let known = self.extents[self.index(group, slot)][block as usize];
        (known != UNKNOWN).then(|| known == kept(crc))
    }

    /// The block's CRC32C, or 1 in place of 0; `None` when it is unknown.
    #[must_use]
    pub fn get(&self, group: u32, slot: u32, block: u32) -> Option<u32> {
        let known = self.extents[self.index(group, slot)][block as usize];
        (known != UNKNOWN).then_some(known)
    }

    /// Groups that there is room for.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.extents.len().checked_div(self.width).unwrap_or(0)
    }

    /// The memory that the table takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.extents.len() * (BLOCKS * size_of::<u32>() + size_of::<Box<[u32]>>())
    }

    fn index(&self, group: u32, slot: u32) -> usize {
        assert!((slot as usize) < self.width, "slot {slot} of groups of {} slots", self.width);
        group as usize * self.width + slot as usize
    }

    fn extent_mut(&mut self, group: u32, slot: u32) -> &mut [u32] {
        let index = self.index(group, slot);
        &mut self.extents[index]
    }
}

fn kept(crc: u32) -> u32 {
    crc.max(UNKNOWN + 1)
}

impl fmt::Debug for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checksums").field("width", &self.width).field("extents", &self.extents.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u32 = BLOCKS as u32 - 1;

    #[test]
    fn a_fresh_extent_is_zeros_and_another_is_unknown() {
        let mut checksums = Checksums::new();
        assert_eq!(checksums.bytes(), 0);
        checksums.grow(1, 2, true);
        checksums.grow(2, 2, false);
        assert_eq!(checksums.check(0, 1, LAST, ZERO_BLOCK_CRC), Some(true));
        assert_eq!(checksums.check(0, 0, 0, 5), Some(false));
        assert_eq!(checksums.check(1, 0, 0, ZERO_BLOCK_CRC), None);
        assert_eq!(
            checksums.bytes() >> 10,
            4 * 64,
            "KiB of four extents; their bookkeeping is less than one more"
        );
    }

    #[test]
    fn what_was_set_is_checked_until_it_is_forgotten() {
        let mut checksums = Checksums::new();
        checksums.grow(3, 3, false);
        checksums.set(2, 1, 7, 0xdead_beef);
        checksums.set(2, 1, 8, 1);
        assert_eq!((checksums.get(2, 1, 7), checksums.get(2, 1, 9)), (Some(0xdead_beef), None));
        checksums.set(2, 2, 7, 0xfeed);
        assert_eq!(checksums.check(2, 1, 7, 0xdead_beef), Some(true));
        assert_eq!(checksums.check(2, 1, 7, 0xdead_beee), Some(false));
        checksums.forget(2, 1, 7, 8);
        assert_eq!(checksums.check(2, 1, 7, 0xdead_beef), None);
        assert_eq!(checksums.check(2, 1, 8, 1), Some(true), "the end is not part of the range");
        assert_eq!(checksums.check(2, 2, 7, 0xfeed), Some(true), "another slot");
        checksums.forget(2, 1, 0, LAST + 1);
        assert_eq!(checksums.check(2, 1, 8, 1), None);
    }

    #[test]
    fn a_checksum_of_zero_is_known() {
        let mut checksums = Checksums::new();
        checksums.grow(1, 1, false);
        checksums.set(0, 0, 0, 0);
        assert_eq!(checksums.check(0, 0, 0, 0), Some(true));
        assert_eq!(checksums.check(0, 0, 0, 2), Some(false));
    }

    #[test]
    fn growing_keeps_what_is_known() {
        let mut checksums = Checksums::new();
        checksums.grow(1, 2, false);
        checksums.set(0, 1, 3, 9);
        checksums.grow(4, 2, true);
        checksums.grow(2, 2, false);
        assert_eq!(checksums.check(0, 1, 3, 9), Some(true));
        assert_eq!(checksums.check(3, 1, 0, ZERO_BLOCK_CRC), Some(true), "it never shrinks");
    }
}
