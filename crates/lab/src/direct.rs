//! Files read and written past the page cache, and the memory that this takes: what is read is what the
//! volume answers now, and each read is one request.
//!
//! Owns how such a file is opened and where such memory begins. Never: what is in either.
//! Called by: [`crate::writer`], tests of what is answered block by block.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

const PAGE_BYTES: usize = 4096;

/// A file or block device, past the page cache.
///
/// # Errors
/// It is not there, or may not be opened so.
pub fn open(path: &Path, write: bool) -> io::Result<File> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
    OpenOptions::new().read(true).write(write).custom_flags(direct).open(path)
}

/// Memory that begins on a page.
#[derive(Debug)]
pub struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + PAGE_BYTES];
        let from = bytes.as_ptr().align_offset(PAGE_BYTES);
        Self { bytes, from, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}
