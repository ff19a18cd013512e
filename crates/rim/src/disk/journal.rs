//! The journal's disk: core's order of a write over a file or a device.
//!
//! Owns the bytes between core's journal and `file`. Never: what is put down, or when (`core::disk`).
//! Invariant: what reaches the disk comes from memory that is aligned. Called by `disk`. Tests: below.

use super::DiskError;
use super::file::{Blocks, Pages};
use super::joined;
use crate::code::crc32c;
use cheetah_core::disk::{self, JournalError, OpenError, Place};
use cheetah_core::limits::BLOCK_BYTES;
use std::io;
use std::sync::Arc;

const BLOCK: usize = BLOCK_BYTES as usize;

pub(super) type Journal = disk::Journal<OnBlocks>;
/// Blocks beside each other that are written at once, with their content.
pub(super) type Write = disk::Write<Pages>;

#[derive(Clone, Debug)]
pub(super) struct OnBlocks(pub(super) Arc<dyn Blocks>);

impl disk::Pages for OnBlocks {
    type Error = io::Error;
    type Data = Pages;

    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut pages = Pages::new(into.len());
        self.0.read_at(at, pages.bytes_mut())?;
        into.copy_from_slice(pages.bytes());
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(at, Pages::of(bytes).bytes())
    }

    fn write_blocks(&mut self, place: Place, writes: &[Write]) -> Vec<io::Result<()>> {
        let pieces = |write: &Write| write.runs(place).collect::<Vec<_>>();
        let pieces: Vec<_> = writes.iter().map(pieces).collect();
        let each = writes.iter().zip(&pieces).flat_map(|(write, pieces)| {
            pieces
                .iter()
                .map(|(at, blocks)| (*at, &write.data.bytes()[blocks.start * BLOCK..blocks.end * BLOCK]))
        });
        let all: Vec<(u64, &[u8])> = each.collect();
        let mut results = joined::write_all(&*self.0, &all).into_iter();
        pieces.iter().map(|pieces| results.by_ref().take(pieces.len()).collect()).collect()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn zero(&mut self, at: u64, len: u64) -> io::Result<()> {
        self.0.zero(at, len)
    }

    fn sum_at(&mut self, at: u64) -> Option<u32> {
        let mut content = Pages::new(BLOCK);
        self.0.read_at(at, content.bytes_mut()).ok()?;
        Some(crc32c(content.bytes()))
    }

    fn crc(bytes: &[u8]) -> u32 {
        crc32c(bytes)
    }
}

/// As the rest of the donor has it.
pub(super) fn io_error(error: JournalError<io::Error>) -> io::Error {
    match error {
        JournalError::Disk(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl From<OpenError<io::Error>> for DiskError {
    fn from(error: OpenError<io::Error>) -> DiskError {
        match error {
            OpenError::NotOurs(why) => DiskError::NotOurs(why),
            OpenError::State(why) => DiskError::State(why),
            OpenError::Disk(error) => DiskError::Io(error),
        }
    }
}

#[cfg(test)]
mod tests;
