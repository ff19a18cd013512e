//! Dealing out the cache's memory in powers of two, from a block to 1 MiB.
//!
//! Owns which pieces are free. Never: what is in them. Invariant: pieces never overlap, and two free halves
//! of a piece are one free piece (Knowlton, "A fast storage allocator", 1965). Called by `cache`. Tests:
//! below.

use crate::limits::BLOCK_BYTES;
use std::collections::BTreeSet;

const ORDERS: usize = 9;
/// The largest piece.
pub(super) const PIECE_BYTES_MAX: u32 = (BLOCK_BYTES as u32) << (ORDERS - 1);

#[derive(Debug)]
pub(super) struct Buddy {
    /// Offsets of free pieces of each order.
    free: [BTreeSet<u32>; ORDERS],
    bytes: u32,
}

fn size(order: usize) -> u32 {
    (BLOCK_BYTES as u32) << order
}

/// The order of the smallest piece for so many bytes.
fn order(bytes: u32) -> usize {
    (0..ORDERS).find(|order| size(*order) >= bytes).expect("pieces are asked for that there can be")
}

impl Buddy {
    /// `bytes` is rounded down to whole pieces of the largest size.
    pub(super) fn new(bytes: u32) -> Buddy {
        let bytes = bytes / PIECE_BYTES_MAX * PIECE_BYTES_MAX;
        let mut free: [BTreeSet<u32>; ORDERS] = Default::default();
        free[ORDERS - 1] = (0..bytes).step_by(PIECE_BYTES_MAX as usize).collect();
        Buddy { free, bytes }
    }

    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Room for so many bytes, if there is.
    pub(super) fn take(&mut self, bytes: u32) -> Option<u32> {
        let wanted = order(bytes);
        let found = (wanted..ORDERS).find(|order| !self.free[*order].is_empty())?;
        let at = self.free[found].pop_first()?;
        for order in (wanted..found).rev() {
            self.free[order].insert(at + size(order));
        }
        Some(at)
    }

    /// Gives back what was taken for so many bytes.
    pub(super) fn give(&mut self, at: u32, bytes: u32) {
        let (mut at, mut order) = (at, order(bytes));
        while order + 1 < ORDERS && self.free[order].remove(&(at ^ size(order))) {
            at &= !size(order);
            order += 1;
        }
        let fresh = self.free[order].insert(at);
        debug_assert!(fresh, "a piece is given back once");
    }

    /// Bytes that are free.
    pub(super) fn room(&self) -> u64 {
        self.free.iter().enumerate().map(|(order, free)| u64::from(size(order)) * free.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_never_overlap_and_all_of_it_comes_back() {
        let mut buddy = Buddy::new(4 * PIECE_BYTES_MAX + 5);
        assert_eq!(buddy.room(), 4 << 20);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = u32::try_from((seed >> 33) % u64::from(PIECE_BYTES_MAX)).expect("small") + 1;
            let bytes = bytes >> ((seed >> 20) % 9);
            if seed & 1 == 0 || taken.is_empty() {
                let bytes = bytes.max(1);
                if let Some(at) = buddy.take(bytes) {
                    let apart = |other: &(u32, u32)| other.0 >= at + bytes || other.0 + other.1 <= at;
                    assert!(at + bytes <= buddy.bytes() && taken.iter().all(apart));
                    taken.push((at, bytes));
                }
            } else {
                let index = usize::try_from(seed >> 40).expect("small") % taken.len();
                let (at, bytes) = taken.swap_remove(index);
                buddy.give(at, bytes);
            }
        }
        for (at, bytes) in taken {
            buddy.give(at, bytes);
        }
        assert_eq!(buddy.free[ORDERS - 1].len(), 4);
        assert_eq!(buddy.room(), 4 << 20);
    }
}
