//! A write of an encrypted volume: its blocks land one by one, each as a whole.
//!
//! Owns what of its payload is no whole block yet. Never: where blocks lie (`arena`), or who may write.
//! Invariant: of a write that is cut off, each block is what it was or what it was to be. Half of one fits no
//! authentication tag, and could not be read again.
//! Called by `connection`. Tests: below.

use crate::auth::AUTH_BYTES;
use crate::memory::wipe;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_nbd::RequestHeader;

const BLOCK: usize = BLOCK_BYTES as usize;

#[derive(Debug)]
pub(super) struct WholeBlocks {
    /// Bytes that are in the donor's memory.
    landed: u64,
    /// The beginning of the next block.
    begun: Vec<u8>,
}

impl Drop for WholeBlocks {
    fn drop(&mut self) {
        wipe(std::mem::take(&mut self.begun));
    }
}

impl WholeBlocks {
    /// Of a write that comes with these nonces and authentication tags. `None`: it is not one of whole
    /// blocks, or they are not those of all of its blocks.
    pub(super) fn of(header: &RequestHeader, auths: &[u8]) -> Option<WholeBlocks> {
        let (offset, len) = (header.offset, u64::from(header.length));
        let is_whole = (offset | len).is_multiple_of(BLOCK_BYTES);
        let fits = is_whole && auths.len() as u64 == len / BLOCK_BYTES * AUTH_BYTES as u64;
        fits.then(|| WholeBlocks { landed: 0, begun: Vec::new() })
    }

    pub(super) fn landed(&self) -> u64 {
        self.landed
    }

    /// Hands each block that is whole to `put`, with its place in the write.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut put: impl FnMut(u64, &[u8])) {
        if !self.begun.is_empty() {
            let (rest, behind) = bytes.split_at(bytes.len().min(BLOCK - self.begun.len()));
            self.begun.extend_from_slice(rest);
            bytes = behind;
            if self.begun.len() < BLOCK {
                return;
            }
            put(self.landed, &self.begun);
            self.landed += BLOCK_BYTES;
            self.begun.clear();
        }
        let (blocks, begun) = bytes.split_at(bytes.len() / BLOCK * BLOCK);
        if !blocks.is_empty() {
            put(self.landed, blocks);
            self.landed += blocks.len() as u64;
        }
        if !begun.is_empty() {
            self.begun.reserve_exact(BLOCK);
            self.begun.extend_from_slice(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_nbd::{CmdFlags, Command};

    fn write(offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags: CmdFlags::EMPTY, command: Command::Write, cookie: 1, offset, length }
    }

    #[test]
    fn blocks_land_whole_however_they_come() {
        let payload: Vec<u8> = (0..3 * BLOCK).map(|at| (at / 7) as u8).collect();
        for piece in [1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5, 3 * BLOCK] {
            let mut whole = WholeBlocks::of(&write(8192, 12288), &[0; 3 * AUTH_BYTES]).expect("in order");
            let mut memory = vec![0; 3 * BLOCK];
            let mut came = 0;
            for bytes in payload.chunks(piece) {
                whole.take(bytes, |at, block| {
                    memory[at as usize..][..block.len()].copy_from_slice(block);
                });
                came += bytes.len();
                let landed = came / BLOCK * BLOCK;
                assert_eq!(whole.landed(), landed as u64);
                assert_eq!(memory[..landed], payload[..landed]);
                assert!(
                    memory[landed..].iter().all(|byte| *byte == 0),
                    "nothing of a block that is not whole"
                );
            }
        }
    }

    #[test]
    fn a_write_without_the_tags_of_all_its_blocks_is_none() {
        for (offset, length, blocks) in [(8192, 8192, 1), (8192, 8192, 3), (512, 4096, 1), (4096, 512, 1)] {
            assert!(WholeBlocks::of(&write(offset, length), &vec![0; blocks * AUTH_BYTES]).is_none());
        }
    }
}
