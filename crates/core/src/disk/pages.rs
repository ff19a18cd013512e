//! What a journal asks of its disk, and what it writes there.
//!
//! Owns the contract between them. Never: the order of things (`journal`). Its drivers are `rim::disk` and
//! the simulator's. Tests: theirs.

use super::{Auth, NO_AUTH, Noted, Place};
use std::ops::Range;

/// What a journal asks of its disk: whole pages at whole pages.
pub trait Pages {
    /// Why it did not do it.
    type Error;
    /// The content of blocks.
    type Data;

    /// What is there now, flushed or not.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// It may be there from now on, and is after a flush.
    ///
    /// # Errors
    /// It is not taken.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Likewise the content of blocks, of writes that do not overlap; what became of each.
    fn write_blocks(&mut self, place: Place, writes: &[Write<Self::Data>]) -> Vec<Result<(), Self::Error>>;

    /// All that was written stays, whatever becomes of the machine.
    ///
    /// # Errors
    /// It may not.
    fn flush(&mut self) -> Result<(), Self::Error>;

    /// Makes a range read as zeros.
    ///
    /// # Errors
    /// It does not.
    fn zero(&mut self, at: u64, len: u64) -> Result<(), Self::Error>;

    /// The checksum of the bytes of the block that lies there; None: it cannot be read.
    fn sum_at(&mut self, at: u64) -> Option<u32>;

    /// The checksum of what is no block.
    fn crc(bytes: &[u8]) -> u32;
}

/// Blocks beside each other that are written at once.
#[derive(Debug)]
pub struct Write<D> {
    /// The first of them.
    pub first: u64,
    /// What each is from now on.
    pub notes: Vec<Noted>,
    /// The nonce and authentication tag of each; empty where none has any.
    pub auths: Vec<Auth>,
    /// The content of those that are data, one behind the other.
    pub data: D,
}

impl<D> Write<D> {
    /// Which blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.notes.len() as u64
    }

    /// What each of them is from now on.
    pub fn each(&self) -> impl Iterator<Item = (u64, Noted, Auth)> + '_ {
        let auths = self.auths.iter().copied().chain(std::iter::repeat(NO_AUTH));
        self.blocks().zip(&self.notes).zip(auths).map(|((block, noted), auth)| (block, *noted, auth))
    }

    /// Where on the disk its content goes, in as few runs as that takes; and which of the blocks that are
    /// data those are.
    pub fn runs(&self, place: Place) -> impl Iterator<Item = (u64, Range<usize>)> + use<D> {
        let data = self.blocks().zip(&self.notes).filter(|(_, noted)| noted.is_data);
        let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
        for (nth, (block, _)) in data.enumerate() {
            match runs.last_mut() {
                Some((first, range)) if *first + (range.len() as u64) == block => range.end += 1,
                _ => runs.push((block, nth..nth + 1)),
            }
        }
        runs.into_iter().map(move |(first, range)| (place.block(first), range))
    }
}
