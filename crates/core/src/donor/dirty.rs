//! Which regions of a donor's memory were written lately: what a writer that died may have left half done.
//!
//! Owns two generations of marks, a bit for each region of `DIRTY_REGION_BYTES`: a write marks the younger, a
//! flush drops the older and makes the younger the older. Never: data, or who may write (`Access`).
//! Key invariant: a mark outlives the first flush after it. So the regions of every write that may have
//! reached some donors of a volume and not others are marked on each donor it reached, given that its client
//! sends a flush only when all writes are complete that it sent before its previous flush *was answered*:
//! with several connections a write can overtake a flush that was sent before it, and then ages with it.
//! Shared by reference between the data server's threads; a step is one atomic operation on one word. No
//! order between words is needed: who reads is a new writer, and it is let in when the last one's connections
//! are closed. Called by `rim`'s arena and donor, and by `sim`. Tests: `rim/tests/donor_wire.rs`.

use crate::limits::{DIRTY_REGION_BYTES, EXTENT_BYTES};
use crate::runs::runs;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word holds both generations of this many regions: the younger in its low half, the older in its high
/// half, so that ageing is a shift.
const REGIONS_PER_WORD: u64 = 32;
const WORDS_PER_EXTENT: usize = (EXTENT_BYTES / DIRTY_REGION_BYTES / REGIONS_PER_WORD) as usize;
const YOUNGER: u64 = (1 << REGIONS_PER_WORD) - 1;

/// The marks of all of a donor's memory: two bits for each region.
#[derive(Debug)]
pub struct DirtyMap {
    words: Box<[AtomicU64]>,
}

impl DirtyMap {
    /// Clean, for a donor of this many extents.
    #[must_use]
    pub fn new(extents: u32) -> Self {
        let words = (0..extents as usize * WORDS_PER_EXTENT).map(|_| AtomicU64::new(0));
        DirtyMap { words: words.collect() }
    }

    /// Before a write, a zeroing or a trim touches these addresses of the donor's memory.
    pub fn mark(&self, offset: u64, len: u64) {
        let (first, end) = (offset / DIRTY_REGION_BYTES, (offset + len).div_ceil(DIRTY_REGION_BYTES));
        let mut at = first;
        while len > 0 && at < end {
            let next = ((at / REGIONS_PER_WORD + 1) * REGIONS_PER_WORD).min(end);
            let bits = ((1 << (next - at)) - 1) << (at % REGIONS_PER_WORD);
            let word = self.word(at);
            // Mostly marked already, and then no other thread's cache is disturbed.
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::Relaxed);
            }
            at = next;
        }
    }

    /// A flush of the volume that these extents belong to.
    pub fn age(&self, extents: impl Iterator<Item = u32>) {
        for word in extents.flat_map(|extent| self.of_extent(extent)) {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != 0 {
                let aged = seen << REGIONS_PER_WORD;
                match word.compare_exchange_weak(seen, aged, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => seen = now,
                }
            }
        }
    }

    /// These extents were wiped: nobody's writes are in them.
    pub fn clear(&self, extents: impl Iterator<Item = u32>) {
        for word in extents.flat_map(|extent| self.of_extent(extent)) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Calls `each` with runs that together make up the range: (length, marked in either generation). They
    /// end at borders of regions, and neighbours differ.
    pub fn runs(&self, offset: u64, len: u64, each: impl FnMut(u64, bool)) {
        runs(offset, len, DIRTY_REGION_BYTES, |region| self.is_dirty(region), each);
    }

    fn is_dirty(&self, region: u64) -> bool {
        let word = self.word(region).load(Ordering::Relaxed);
        let either = (word | word >> REGIONS_PER_WORD) & YOUNGER;
        either >> (region % REGIONS_PER_WORD) & 1 == 1
    }

    fn word(&self, region: u64) -> &AtomicU64 {
        &self.words[usize::try_from(region / REGIONS_PER_WORD).expect("inside the donor's memory")]
    }

    fn of_extent(&self, extent: u32) -> &[AtomicU64] {
        let start = extent as usize * WORDS_PER_EXTENT;
        &self.words[start..start + WORDS_PER_EXTENT]
    }
}
