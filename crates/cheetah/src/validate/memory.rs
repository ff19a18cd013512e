//! The memory that a donor lends, changed behind its back, as a bad module changes it.
//!
//! Owns the way there (its memfd, by way of `/proc`), finding a block, and the two kinds of change. Never:
//! a donor that this command did not start. Needs the right to look into another process, which root has;
//! who has it not is told so. Called by `harming`. Tests: `lab/tests/validate.rs`.

use super::case::{Done, Stop};
use super::image::BLOCK_BYTES;
use cheetah_rim::code::crc32c;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// How the memfd of a donor is called.
const ARENA: &str = "/memfd:cheetah-arena";
const BLOCK: usize = BLOCK_BYTES as usize;

pub struct Memory {
    file: File,
}

impl Memory {
    /// Of the donor that is this process.
    pub fn of(pid: u32) -> Done<Memory> {
        let not = |why: io::Error| match why.kind() {
            io::ErrorKind::PermissionDenied => Stop::NotShown(
                "only root may change the memory of another process: run `cheetah validate` as root"
                    .to_owned(),
            ),
            _ => Stop::NotShown(format!("the memory of a donor of this command: {why}")),
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd")).map_err(not)?;
        for file in files {
            let path = file.map_err(not)?.path();
            let name = fs::read_link(&path).map_err(not)?;
            if name.to_string_lossy().starts_with(ARENA) {
                return Ok(Memory { file: File::options().read(true).write(true).open(path).map_err(not)? });
            }
        }
        Err(Stop::NotShown("a donor of this command lends no memory that can be seen".to_owned()))
    }

    /// Where a block is that holds just this.
    pub fn find(&self, wanted: &[u8]) -> io::Result<Option<u64>> {
        let (mut from, mut block) = (0, vec![0; BLOCK]);
        while let Some(start) = self.seek(SeekFrom::Data(from))? {
            let Some(end) = self.seek(SeekFrom::Hole(start))? else { return Ok(None) };
            for at in (start..end).step_by(BLOCK) {
                self.file.read_exact_at(&mut block, at)?;
                if block == wanted {
                    return Ok(Some(at));
                }
            }
            from = end;
        }
        Ok(None)
    }

    fn seek(&self, to: SeekFrom) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, to) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn block(&self, at: u64) -> io::Result<Vec<u8>> {
        let mut block = vec![0; BLOCK];
        self.file.read_exact_at(&mut block, at)?;
        Ok(block)
    }

    /// One bit in the middle of a block.
    pub fn flip(&self, at: u64) -> io::Result<()> {
        let mut block = self.block(at)?;
        block[BLOCK / 2] ^= 0x10;
        self.file.write_all_at(&block, at)
    }

    /// One bit, and four bytes more, so that the block has the checksum that it had.
    pub fn forge(&self, at: u64) -> io::Result<()> {
        let was = self.block(at)?;
        let mut block = was.clone();
        block[BLOCK / 2] ^= 0x10;
        let change = compensation(crc32c(&was) ^ crc32c(&block))
            .ok_or_else(|| io::Error::other("no four bytes make that checksum"))?;
        for (byte, change) in block[BLOCK - 4..].iter_mut().zip(change.to_le_bytes()) {
            *byte ^= change;
        }
        if crc32c(&block) != crc32c(&was) {
            return Err(io::Error::other("the forgery does not fit its checksum"));
        }
        self.file.write_all_at(&block, at)
    }
}

/// How the last four bytes of a block have to change so that its checksum changes by this. CRC32C is linear:
/// each bit of the four changes the checksum in a way of its own, and 32 equations say which have to.
fn compensation(wanted: u32) -> Option<u32> {
    let zeros = vec![0; BLOCK];
    let effect = |bit: usize| {
        let mut one = zeros.clone();
        one[BLOCK - 4 + bit / 8] |= 1 << (bit % 8);
        crc32c(&one) ^ crc32c(&zeros)
    };
    let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (effect(bit), 1 << bit)).collect();
    let (mut left, mut change) = (wanted, 0);
    for column in 0..32 {
        let has = |row: &(u32, u32)| row.0 >> column & 1 == 1;
        let at = rows.iter().position(has)?;
        let pivot = rows.swap_remove(at);
        for row in rows.iter_mut().filter(|row| has(row)) {
            *row = (row.0 ^ pivot.0, row.1 ^ pivot.1);
        }
        if left >> column & 1 == 1 {
            (left, change) = (left ^ pivot.0, change ^ pivot.1);
        }
    }
    (left == 0).then_some(change)
}
