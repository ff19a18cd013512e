//! The checksums of a donor's memory: the CRC32C of each 4 KiB block, as its writer meant it.
//!
//! Owns the table. Never: the bytes, or computing a checksum (`arena` does). Invariant: the memory of an
//! extent's checksums is taken when one of its blocks first holds something else than zeros, 64 KiB for
//! 64 MiB; before that, and when it is wiped, all of its blocks are zeros.
//! Others may read an entry while its block is being written, and find that they do not fit: whoever reads
//! beside a writer asks again. Called by `arena`. Tests: below.

use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::limits::EXTENT_BLOCKS;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Of one extent, each as it differs from that of zeros.
type Sums = Box<[AtomicU32]>;

#[derive(Debug)]
pub(crate) struct Contexts(Box<[OnceLock<Sums>]>);

impl Contexts {
    pub(crate) fn new(extents: u32) -> Contexts {
        Contexts((0..extents).map(|_| OnceLock::new()).collect())
    }

    /// Of the block with this number in the whole memory.
    pub(crate) fn get(&self, block: u64) -> u32 {
        let (extent, at) = place(block);
        let differs = self.0[extent].get().map_or(0, |sums| sums[at].load(Ordering::Acquire));
        differs ^ ZERO_BLOCK_CRC
    }

    pub(crate) fn set(&self, block: u64, sum: u32) {
        let (extent, at) = place(block);
        let differs = sum ^ ZERO_BLOCK_CRC;
        if let Some(sums) = self.0[extent].get() {
            sums[at].store(differs, Ordering::Release);
        } else if differs != 0 {
            let sums = self.0[extent].get_or_init(|| (0..EXTENT_BLOCKS).map(|_| AtomicU32::new(0)).collect());
            sums[at].store(differs, Ordering::Release);
        }
    }

    /// Of blocks `from..to`.
    pub(crate) fn of(&self, from: u64, to: u64) -> impl ExactSizeIterator<Item = u32> {
        let blocks = usize::try_from(to - from).expect("blocks of one request");
        (0..blocks).map(move |nth| self.get(from + nth as u64))
    }
}

/// A checksum that does not fit what has this one; its own inverse.
pub(crate) const fn unfit(sum: u32) -> u32 {
    !sum
}

/// Its extent, and which block of that it is.
pub(crate) fn place(block: u64) -> (usize, usize) {
    let index = |number: u64| usize::try_from(number).expect("mapped, so it fits");
    (index(block / EXTENT_BLOCKS), index(block % EXTENT_BLOCKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_written_is_zeros_and_takes_no_memory() {
        let contexts = Contexts::new(2);
        contexts.set(EXTENT_BLOCKS, ZERO_BLOCK_CRC);
        assert_eq!(contexts.get(2 * EXTENT_BLOCKS - 1), ZERO_BLOCK_CRC);
        assert!(contexts.0.iter().all(|sums| sums.get().is_none()));
        contexts.set(EXTENT_BLOCKS + 1, 7);
        contexts.set(EXTENT_BLOCKS + 2, 0);
        let of: Vec<u32> = contexts.of(EXTENT_BLOCKS - 1, EXTENT_BLOCKS + 3).collect();
        assert_eq!(of, [ZERO_BLOCK_CRC, ZERO_BLOCK_CRC, 7, 0]);
        assert!(contexts.0[0].get().is_none(), "of the other extent there is nothing to keep");
    }
}
