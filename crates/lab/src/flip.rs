//! Bits that flip in a donor's memory, as a bad module flips them: no request says so, and nothing that the
//! donor runs sees it.
//!
//! Owns the way to the memory that a donor lends (its memfd, by way of `/proc`) and what a flipped block was
//! before. Never: by chance a block that holds nothing, which is answered without a look at the memory.
//! Invariant: a flip changes one bit of one block, and no block twice in one call.
//! Called by: `tests/flips.rs`, `tests/verify.rs`. Needs the right to look into the donor, which root has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use cheetah_rim::code::crc32c;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::dice::Dice;

pub const BLOCK_BYTES: usize = 4096;
/// How the memfd of a donor is called.
const ARENA: &str = "/memfd:cheetah-arena";

/// The memory that a donor lends.
#[derive(Debug)]
pub struct Memory {
    file: File,
}

/// A block with one bit that is not what it was.
#[derive(Clone, Debug)]
pub struct Flip {
    /// Where the block is in the memory.
    pub at: u64,
    /// The byte of the block that has the bit.
    pub byte: usize,
    /// The block as it was.
    pub was: Vec<u8>,
}

impl Memory {
    /// Of the donor that is this process.
    ///
    /// # Panics
    /// The process is gone, lends no memory, or may not be looked into.
    #[track_caller]
    pub fn of(pid: u32) -> Self {
        let file = arena_of(pid).unwrap_or_else(|| panic!("process {pid} has no {ARENA} that can be seen"));
        match File::options().read(true).write(true).open(&file) {
            Ok(file) => Self { file },
            Err(error) => panic!("{}: {error}", file.display()),
        }
    }

    /// Every block that holds something, by its place.
    #[track_caller]
    pub fn blocks(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut from = 0;
        while let Some(start) = self.seek(SeekFrom::Data(from)) {
            let end = self.seek(SeekFrom::Hole(start)).expect("a hole behind what is there");
            for at in (start..end).step_by(BLOCK_BYTES) {
                let block = self.block(at);
                if block.iter().any(|byte| *byte != 0) {
                    found.insert(at, block);
                }
            }
            from = end;
        }
        found
    }

    #[track_caller]
    fn seek(&self, to: SeekFrom) -> Option<u64> {
        match rustix::fs::seek(&self.file, to) {
            Ok(at) => Some(at),
            Err(Errno::NXIO) => None,
            Err(error) => panic!("a seek in a donor's memory: {error}"),
        }
    }

    #[track_caller]
    fn block(&self, at: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        self.file.read_exact_at(&mut block, at).expect("a donor's memory can be read");
        block
    }

    /// Flips one bit in each of so many blocks, by chance, of those for which `wanted` holds.
    ///
    /// # Panics
    /// There are not that many.
    #[track_caller]
    pub fn flip(
        &self,
        dice: &mut Dice,
        count: usize,
        mut wanted: impl FnMut(u64, &[u8]) -> bool,
    ) -> Vec<Flip> {
        let mut blocks: Vec<(u64, Vec<u8>)> =
            self.blocks().into_iter().filter(|(at, block)| wanted(*at, block)).collect();
        assert!(blocks.len() >= count, "{} blocks can be flipped, not {count}", blocks.len());
        dice.shuffle(&mut blocks);
        blocks.truncate(count);
        blocks.into_iter().map(|(at, _)| self.flip_at(dice, at)).collect()
    }

    /// Flips one bit, by chance, of the block at this place, whatever it holds.
    #[track_caller]
    pub fn flip_at(&self, dice: &mut Dice, at: u64) -> Flip {
        let was = self.block(at);
        let byte = dice.below(BLOCK_BYTES as u64) as usize;
        let wrong = was[byte] ^ (1 << dice.below(8));
        self.file.write_all_at(&[wrong], at + byte as u64).expect("a donor's memory can be written");
        Flip { at, byte, was }
    }

    /// Changes four more bytes of a block with a flip, so that it has the checksum that it had: a donor that
    /// lies, and not one that is broken. CRC32C is linear, so each bit of the four changes the checksum in a
    /// way of its own, whatever the others are; 32 equations say which have to change.
    #[track_caller]
    pub fn forge(&self, flip: &Flip) {
        let mut block = self.block(flip.at);
        let from = if flip.byte < BLOCK_BYTES / 2 { BLOCK_BYTES - 4 } else { 0 };
        let (zeros, wanted) = (vec![0; BLOCK_BYTES], crc32c(&flip.was) ^ crc32c(&block));
        let effect = |bit: usize| {
            let mut one = zeros.clone();
            one[from + bit / 8] |= 1 << (bit % 8);
            crc32c(&one) ^ crc32c(&zeros)
        };
        let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (effect(bit), 1 << bit)).collect();
        let (mut left, mut change) = (wanted, 0u32);
        for column in 0..32 {
            let has = |row: &(u32, u32)| row.0 >> column & 1 == 1;
            let at = rows.iter().position(has).expect("four bytes make any checksum");
            let pivot = rows.swap_remove(at);
            for row in rows.iter_mut().filter(|row| has(row)) {
                *row = (row.0 ^ pivot.0, row.1 ^ pivot.1);
            }
            if left >> column & 1 == 1 {
                (left, change) = (left ^ pivot.0, change ^ pivot.1);
            }
        }
        for (byte, change) in block[from..from + 4].iter_mut().zip(change.to_le_bytes()) {
            *byte ^= change;
        }
        assert!(crc32c(&block) == crc32c(&flip.was) && block != flip.was, "it is no forgery");
        self.file.write_all_at(&block, flip.at).expect("a donor's memory can be written");
    }

    /// Makes a block what it was.
    #[track_caller]
    pub fn restore(&self, flip: &Flip) {
        self.file.write_all_at(&flip.was, flip.at).expect("a donor's memory can be written");
    }

    /// How many of these blocks are not what they were.
    #[track_caller]
    pub fn wrong(&self, flips: &[Flip]) -> usize {
        flips.iter().filter(|flip| self.block(flip.at) != flip.was).count()
    }
}

fn arena_of(pid: u32) -> Option<PathBuf> {
    let mut files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path());
    files.find(|file| fs::read_link(file).is_ok_and(|name| name.to_string_lossy().starts_with(ARENA)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn one_bit_of_each_chosen_block_flips_and_nothing_else() {
        let arena =
            File::from(rustix::fs::memfd_create("cheetah-arena", MemfdFlags::CLOEXEC).expect("a memfd"));
        arena.set_len(64 << 20).expect("a length");
        for (at, byte) in [(0, 1), (8192, 2), (1 << 20, 3), (40 << 20, 4)] {
            arena.write_all_at(&[byte; BLOCK_BYTES], at).expect("a write");
        }
        arena.write_all_at(&[0; BLOCK_BYTES], 4096).expect("a write");
        let memory = Memory::of(std::process::id());
        let before = memory.blocks();
        assert_eq!(before.keys().copied().collect::<Vec<u64>>(), [0, 8192, 1 << 20, 40 << 20]);
        let flips = memory.flip(&mut Dice::new(1), 3, |at, _| at != 8192);
        assert_eq!(memory.wrong(&flips), 3);
        let bits = |at: &u64, now: &[u8]| {
            let pairs = before[at].iter().zip(now);
            pairs.map(|(was, is)| (was ^ is).count_ones()).sum::<u32>()
        };
        let now = memory.blocks();
        assert_eq!(now.iter().map(|(at, block)| bits(at, block)).collect::<Vec<u32>>(), [1, 0, 1, 1]);
        for flip in &flips {
            assert_ne!(now[&flip.at][flip.byte], flip.was[flip.byte]);
            arena.write_all_at(&flip.was, flip.at).expect("a write");
        }
        assert_eq!(memory.wrong(&flips), 0);
        assert_eq!(memory.blocks(), before);
    }
}
