//! Numbered pieces of the client's own memory, for parity and for what a request must put together.
//!
//! Owns which are free. Never: the bytes; the driver takes all of the memory at its start, by
//! `Scratch::sizes`. Invariant: a piece has one holder. Tests: the machine's invariants.

use crate::limits::{SCRATCH_LARGE_BYTES, SCRATCH_LARGE_COUNT, SCRATCH_SMALL_BYTES, SCRATCH_SMALL_COUNT};

#[derive(Debug)]
pub(super) struct Scratch {
    small: Vec<u32>,
    large: Vec<u32>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Scratch {
            small: (0..SCRATCH_SMALL_COUNT).rev().collect(),
            large: (SCRATCH_SMALL_COUNT..SCRATCH_SMALL_COUNT + SCRATCH_LARGE_COUNT).rev().collect(),
        }
    }

    /// Bytes of each piece, in order of their numbers.
    pub(super) fn sizes() -> impl Iterator<Item = u32> {
        let small = std::iter::repeat_n(SCRATCH_SMALL_BYTES, SCRATCH_SMALL_COUNT as usize);
        small.chain(std::iter::repeat_n(SCRATCH_LARGE_BYTES, SCRATCH_LARGE_COUNT as usize))
    }

    pub(super) fn take(&mut self, bytes: u32) -> Option<u32> {
        assert!(bytes <= SCRATCH_LARGE_BYTES, "jobs are cut to fit");
        if bytes <= SCRATCH_SMALL_BYTES { self.small.pop() } else { self.large.pop() }
    }

    pub(super) fn give_back(&mut self, piece: u32) {
        if piece < SCRATCH_SMALL_COUNT { self.small.push(piece) } else { self.large.push(piece) }
    }

    pub(super) fn large_free(&self) -> usize {
        self.large.len()
    }

    pub(super) fn has(&self, bytes: u32) -> bool {
        !(if bytes <= SCRATCH_SMALL_BYTES { &self.small } else { &self.large }).is_empty()
    }

    pub(super) fn free(&self) -> usize {
        self.small.len() + self.large.len()
    }
}
