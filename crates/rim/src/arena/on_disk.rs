//! Memory that holds a part of a disk: blocks that are there without being in memory.
//!
//! Owns how such a block comes and goes. Never: which (`disk` says so). Invariant: what is known of a block
//! stays when its memory goes. Called by `disk`. Tests: `lab/disks.rs`.
//! One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use super::{Arena, Begun, bit};
use crate::auth::{Auth, Auths};
use cheetah_core::disk::{self, Noted};
use cheetah_core::limits::BLOCK_BYTES;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Arena {
    /// Over a disk that has these.
    ///
    /// # Errors
    /// As `new`.
    pub(crate) fn over(extents: u32, auths: Arc<disk::Auths>) -> io::Result<Arena> {
        Arena::with(extents, Auths::over(auths))
    }

    /// Nonces and authentication tags of blocks as they are in memory; empty where none has any.
    pub(crate) fn auths_of(&self, blocks: Range<u64>) -> Vec<Auth> {
        if !self.auths.has_some(blocks.start) {
            return Vec::new();
        }
        self.auths.of(blocks.start, blocks.end).collect()
    }

    /// Of so many blocks memory has another than the disk.
    #[cfg(test)]
    pub(crate) fn auths_ahead(&self) -> usize {
        self.auths.count_ahead()
    }

    /// The disk has these blocks with these now.
    pub(crate) fn auths_reached_disk(&self, blocks: impl Iterator<Item = (u64, Auth)>) {
        self.auths.has_reached_disk(blocks);
    }

    /// What is known of a block.
    pub(crate) fn noted(&self, block: u64) -> Noted {
        Noted {
            sum: self.contexts.get(block),
            is_data: self.is_present(block),
            is_known: self.is_known(block),
        }
    }

    /// Nothing counts that memory has of these blocks: the disk does.
    pub(crate) fn auths_fall_back(&self, blocks: Range<u64>) {
        self.auths.fall_back(blocks);
    }

    /// From now on this is known of a block, whatever is in memory: what its disk has.
    pub(crate) fn set_noted(&self, block: u64, noted: Noted) {
        self.auths.fall_back(block..block + 1);
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
