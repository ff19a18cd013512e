//! Mebibytes of one byte: the plainest thing to write to a volume and to look for afterwards.
//!
//! Owns nothing. Never: says whether what was found is right; the test does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// Writes a mebibyte of the byte, and flushes.
///
/// # Panics
/// The volume cannot be opened, written to or flushed.
#[track_caller]
pub fn write_at(path: &Path, byte: u8, offset: u64) {
    let file = File::options().write(true).open(path).expect("the volume opens");
    file.write_all_at(&vec![byte; MIB], offset).expect("a write");
    file.sync_all().expect("a flush");
}

/// Whether a mebibyte is all of the byte.
///
/// # Panics
/// The volume cannot be opened or read.
#[track_caller]
pub fn holds_at(path: &Path, byte: u8, offset: u64) -> bool {
    let file = File::open(path).expect("the volume opens");
    let mut read = vec![0; MIB];
    file.read_exact_at(&mut read, offset).expect("a read");
    read.iter().all(|found| *found == byte)
}
