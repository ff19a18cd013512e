//! A writer that remembers outside of the volume what was acknowledged: each block says which block and
//! version it is.
//!
//! Owns: the record of versions asked for and acknowledged. Never: reads from a page cache what it wrote (it
//! opens the file for direct I/O, from aligned memory).
//! Invariant: of a block, a reader may find the last acknowledged version or one that was asked for after it,
//! whole. Called by: `tests/survive.rs`, for daemons that are killed while they are written to.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dice::Dice;
use crate::direct::{self, Aligned};

/// What is written at once.
pub const BLOCK_BYTES: usize = 4096;

/// What one writer knows of its blocks, in memory and in a file that gets a line for each acknowledgement.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    log: File,
    /// The first block of its own, and for each: the last version asked for, and the last acknowledged.
    first: u64,
    asked: Vec<u32>,
    acknowledged: Vec<u32>,
    /// It flushes after so many writes, and only what a flush covered counts as acknowledged. 0: each write.
    flush_every: usize,
    unflushed: Vec<(usize, u32)>,
    buffer: Aligned,
}

impl Writer {
    /// A writer of `blocks` blocks from `first` on, that logs to a file.
    #[track_caller]
    pub fn new(path: &Path, log: &Path, first: u64, blocks: usize) -> Self {
        let log = File::create(log).unwrap_or_else(|error| panic!("cannot make {}: {error}", log.display()));
        let (asked, acknowledged) = (vec![0; blocks], vec![0; blocks]);
        let (flush_every, unflushed) = (0, Vec::new());
        let buffer = Aligned::new(BLOCK_BYTES);
        Self { path: path.to_owned(), log, first, asked, acknowledged, flush_every, unflushed, buffer }
    }

    /// From now on it counts on nothing but what a flush covered, and flushes after so many writes.
    pub fn flush_every(&mut self, writes: usize) {
        self.flush_every = writes;
    }

    /// Writes blocks at random until it is told to end or the volume refuses; answers how many were
    /// acknowledged.
    #[track_caller]
    pub fn write_until(&mut self, end: &AtomicBool, dice: &mut Dice) -> u64 {
        let file =
            direct::open(&self.path, true).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        let mut written = 0;
        while !end.load(Ordering::Relaxed) {
            let block = dice.below(self.asked.len() as u64) as usize;
            self.asked[block] += 1;
            let version = self.asked[block];
            let number = self.first + block as u64;
            fill(self.buffer.bytes(), number, version);
            // A refusal leaves it open which version the block has.
            if file.write_all_at(self.buffer.bytes(), number * BLOCK_BYTES as u64).is_err() {
                break;
            }
            written += 1;
            self.unflushed.push((block, version));
            if self.unflushed.len() < self.flush_every {
                continue;
            }
            if self.flush_every > 0 && file.sync_data().is_err() {
                break;
            }
            for (block, version) in self.unflushed.drain(..) {
                self.acknowledged[block] = version;
                writeln!(self.log, "{} {version}", self.first + block as u64).expect("a line in the log");
            }
        }
        self.unflushed.clear();
        written
    }

    /// Reads all blocks; answers what is wrong with each that is neither the last acknowledged version nor
    /// one asked for after it. What was found becomes what is known.
    #[track_caller]
    pub fn check(&mut self) -> Vec<String> {
        let file = direct::open(&self.path, false)
            .unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        let mut wrong = Vec::new();
        let mut expected = vec![0; BLOCK_BYTES];
        for block in 0..self.asked.len() {
            let number = self.first + block as u64;
            let found = self.buffer.bytes();
            if let Err(error) = file.read_exact_at(found, number * BLOCK_BYTES as u64) {
                wrong.push(format!("block {number}: {error}"));
                continue;
            }
            let version = u32::from_le_bytes([found[8], found[9], found[10], found[11]]);
            fill(&mut expected, number, version);
            let allowed = self.acknowledged[block]..=self.asked[block];
            if *found != expected[..] {
                wrong.push(format!("block {number} is damaged"));
            } else if !allowed.contains(&version) {
                wrong.push(format!("block {number} has version {version}, not one of {allowed:?}"));
            } else {
                self.acknowledged[block] = version;
                self.asked[block] = version;
            }
        }
        wrong
    }
}

/// So many writers that share the first bytes of a volume, each with a log in that directory.
#[track_caller]
pub fn sharing(path: &Path, logs: &Path, count: usize, bytes: u64) -> Vec<Writer> {
    let blocks = bytes as usize / count / BLOCK_BYTES;
    let writer = |nth| Writer::new(path, &logs.join(format!("log-{nth}")), (nth * blocks) as u64, blocks);
    (0..count).map(writer).collect()
}

/// Lets all of them write at random until this is done, or the volume refuses; how many blocks were
/// acknowledged.
#[track_caller]
pub fn write_while(writers: &mut [Writer], seed: u64, meanwhile: impl FnOnce()) -> u64 {
    /// Also where that fails: nobody waits for writers that nobody ends.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let end = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let writing: Vec<_> = (seed..)
            .zip(writers)
            .map(|(seed, writer)| {
                let end = &end;
                threads.spawn(move || writer.write_until(end, &mut Dice::new(seed)))
            })
            .collect();
        {
            let _ends = Ends(&end);
            meanwhile();
        }
        writing.into_iter().map(|writing| writing.join().expect("a writer ends")).sum()
    })
}

/// A block's content: its number and version over and over; version 0 is a block of zeros.
fn fill(block: &mut [u8], number: u64, version: u32) {
    let mut piece = [0; 16];
    if version > 0 {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        piece[8..12].copy_from_slice(&version.to_le_bytes());
        piece[12..].copy_from_slice(&0x5afe_b10cu32.to_le_bytes());
    }
    for part in block.chunks_mut(piece.len()) {
        part.copy_from_slice(&piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn lost_stale_and_damaged_blocks_are_told() {
        let scratch = Scratch::new();
        let volume = scratch.sparse_file("volume", 1 << 20);
        let mut writer = Writer::new(&volume, &scratch.join("log"), 8, 16);
        let end = AtomicBool::new(false);
        assert!(writer.check().is_empty(), "nothing was written, all is zero");
        let mut dice = Dice::new(1);
        std::thread::scope(|threads| {
            let writing = threads.spawn(|| writer.write_until(&end, &mut dice));
            crate::wait::until("a hundred blocks", crate::wait::SOON, || {
                let log = std::fs::read_to_string(scratch.join("log")).unwrap_or_default();
                log.lines().count() > 100 || writing.is_finished()
            });
            end.store(true, Ordering::Relaxed);
        });
        assert!(writer.check().is_empty());
        let file = File::options().write(true).open(&volume).expect("the volume opens");
        let mut stale = vec![0; BLOCK_BYTES];
        fill(&mut stale, 9, 1);
        writer.asked[1] += 1;
        writer.acknowledged[1] += 1;
        file.write_all_at(&stale, 9 * BLOCK_BYTES as u64).expect("a write");
        file.write_all_at(&[1], 10 * BLOCK_BYTES as u64 + 77).expect("a write");
        let wrong = writer.check();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("version 1") && wrong[1].contains("damaged"), "{wrong:?}");
    }
}
