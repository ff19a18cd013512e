//! Memory that holds a part of a disk: blocks that are there without being in memory.
//!
//! Owns how such a block comes and goes. Never: which (`disk` says so). Invariant: what is known of a block
//! stays when its memory goes. Called by `disk`. Tests: `lab/disks.rs`.
//! One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use super::{Arena, Begun, bit};
use cheetah_core::disk::Noted;
use cheetah_core::limits::BLOCK_BYTES;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Arena {
    /// What is known of a block.
    pub(crate) fn noted(&self, block: u64) -> Noted {
        Noted {
            sum: self.contexts.get(block),
            is_data: self.is_present(block),
            is_known: self.is_known(block),
        }
    }

    /// From now on this is known of a block, whatever is in memory.
    pub(crate) fn set_noted(&self, block: u64, noted: Noted) {
        self.contexts.set(block, noted.sum);
        for (word, is_set) in [(self.word(block), noted.is_data), (self.known(block), noted.is_known)] {
            if is_set {
                word.fetch_or(bit(block), Ordering::AcqRel);
            } else {
                word.fetch_and(!bit(block), Ordering::AcqRel);
            }
        }
    }

    /// Copies a block out of memory.
    pub(crate) fn copy_out(&self, block: u64, into: &mut [u8]) {
        assert_eq!(into.len() as u64, BLOCK_BYTES, "a whole block");
        // SAFETY: a whole block inside the mapping; `into` is ordinary memory outside of it. Others may write
        // it meanwhile, and then write it to the disk once more.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address(block * BLOCK_BYTES), into.as_mut_ptr(), into.len())
        };
    }

    /// The memory of these blocks goes; what is known of them stays.
    pub(crate) fn drop_memory(&self, blocks: Range<u64>) {
        self.punch(&(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES));
    }

    /// A write ends, and what landed of it does not count.
    pub(crate) fn wrote_in_vain(&self, begun: Begun) {
        self.writing.end(begun.offset, begun.offset + begun.len);
    }
}
