//! The image that is loaded, and its answers: what MD5, SHA-1 and SHA-256 of it are.
//!
//! Owns how it is made, and the published answers of 8,390,144 bytes of it. Never: the hashes that commands
//! compute. Invariant: the answers are constants, which other programs computed from an image that another
//! program made; of another size they are computed here, and the report says so. Each sector but those of
//! zeros and runs begins with its number. Tests: below; `lab/tests/validate.rs`.

use crate::failure::Failure;
use crate::files;
use cheetah_core::seed::Seed;
use cheetah_core::text::hex;
use md5::Md5;
use serde::Serialize;
use sha1::{Digest, Sha1};
use sha2::Sha256;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Of the published image: no multiple of a block, nor of a mebibyte.
pub const PUBLISHED_BYTES: u64 = (8 << 20) + 1536;
pub const BLOCK_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// The sector that a bad medium does not give. It is one with its number.
pub const BAD_AT: u64 = (4 << 20) + 11 * SECTOR_BYTES;
pub const BAD_BYTES: u64 = SECTOR_BYTES;
/// Of the parts of an image that is split.
const PART_BYTES: u64 = 3 << 20;
/// Made or read at once, whole blocks.
const PIECE_BYTES: u64 = 1 << 20;

/// What the hashes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answers {
    pub md5: String,
    pub sha1: String,
    pub sha256: String,
}

fn published() -> Answers {
    Answers {
        md5: "6adea3cd0bd888f280b3a02e43146538".to_owned(),
        sha1: "9cc1abd429f9a5ecbc587db5d36ccda600cbd6be".to_owned(),
        sha256: "fa3fe089e5e46c3e86fb922f7083e0b0e404a6abe57b21183603f2877a41e92f".to_owned(),
    }
}

/// With zeros for the bad sector.
fn published_with_zeros() -> Answers {
    Answers {
        md5: "ffb677fb6f82b05da823afd9c5b026c0".to_owned(),
        sha1: "e4f8d503b444e0b6ef00c3bd55379f070bc43843".to_owned(),
        sha256: "8a282a6e8c027579404c6ca76a90ce7acad8b3090a86d4ea6f4659200927550b".to_owned(),
    }
}

/// All three at once.
pub struct Hasher(Md5, Sha1, Sha256);

impl Hasher {
    pub fn new() -> Hasher {
        Hasher(Md5::new(), Sha1::new(), Sha256::new())
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
        self.1.update(bytes);
        self.2.update(bytes);
    }

    pub fn finish(self) -> Answers {
        let Hasher(md5, sha1, sha256) = self;
        Answers { md5: hex(&md5.finalize()), sha1: hex(&sha1.finalize()), sha256: hex(&sha256.finalize()) }
    }
}

/// Of a file as it is on this disk.
pub fn of_file(path: &Path) -> io::Result<Answers> {
    let (mut file, mut hasher) = (File::open(path)?, Hasher::new());
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            count => hasher.feed(&piece[..count]),
        }
    }
}

/// An image of some size, with its answers.
#[derive(Clone, Debug)]
pub struct Image {
    pub bytes: u64,
    pub whole: Answers,
    /// With zeros for the bad sector.
    pub with_zeros: Answers,
}

impl Image {
    pub fn new(bytes: u64) -> Image {
        if bytes == PUBLISHED_BYTES {
            return Image { bytes, whole: published(), with_zeros: published_with_zeros() };
        }
        let (whole, with_zeros) = computed(bytes);
        Image { bytes, whole, with_zeros }
    }

    pub fn is_published(&self) -> bool {
        self.bytes == PUBLISHED_BYTES
    }

    /// A part of it.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        part(offset, len.min(self.bytes.saturating_sub(offset)))
    }

    /// In one file.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        self.write_range(path, 0, self.bytes)
    }

    /// In parts beside each other; the first of them.
    pub fn write_parts(&self, directory: &Path) -> Result<PathBuf, Failure> {
        let name = |number: u64| directory.join(format!("parts.{number:03}"));
        let parts = self.bytes.div_ceil(PART_BYTES.max(self.bytes / 3));
        let each = self.bytes.div_ceil(parts).next_multiple_of(SECTOR_BYTES);
        for number in 0..parts {
            self.write_range(&name(number + 1), number * each, each)?;
        }
        Ok(name(1))
    }

    fn write_range(&self, path: &Path, offset: u64, len: u64) -> Result<(), Failure> {
        let written = File::create_new(path).and_then(|mut file| {
            let end = self.bytes.min(offset + len);
            for at in (offset..end).step_by(PIECE_BYTES as usize) {
                file.write_all(&part(at, PIECE_BYTES.min(end - at)))?;
            }
            file.sync_all()
        });
        written.map_err(|why| files::cannot("write", path, &why))
    }
}

/// Of an image whose answers nobody published.
pub fn computed(bytes: u64) -> (Answers, Answers) {
    let (mut whole, mut with_zeros) = (Hasher::new(), Hasher::new());
    for at in (0..bytes).step_by(PIECE_BYTES as usize) {
        let mut piece = part(at, PIECE_BYTES.min(bytes - at));
        whole.feed(&piece);
        if (at..at + PIECE_BYTES).contains(&BAD_AT) {
            let bad = usize::try_from(BAD_AT - at).expect("inside of a piece");
            piece[bad..bad + BAD_BYTES as usize].fill(0);
        }
        with_zeros.feed(&piece);
    }
    (whole.finish(), with_zeros.finish())
}

fn part(offset: u64, len: u64) -> Vec<u8> {
    let (first, end) = (offset / BLOCK_BYTES, (offset + len).div_ceil(BLOCK_BYTES));
    let mut bytes: Vec<u8> = (first..end).flat_map(block).collect();
    bytes.drain(..usize::try_from(offset % BLOCK_BYTES).expect("inside of a block"));
    bytes.truncate(usize::try_from(len).expect("a part is in memory"));
    bytes
}

/// Zeros, a run of one byte, or noise in numbered sectors.
fn block(number: u64) -> Vec<u8> {
    match number % 8 {
        3 => return vec![0; BLOCK_BYTES as usize],
        5 => return vec![(number / 8 % 255 + 1) as u8; BLOCK_BYTES as usize],
        _ => {}
    }
    let words = BLOCK_BYTES / 8;
    let mut block: Vec<u8> =
        (0..words).flat_map(|word| Seed(number.wrapping_mul(words) + word).draw().to_le_bytes()).collect();
    for (sector, room) in (number * 8..).zip(block.chunks_mut(SECTOR_BYTES as usize)) {
        let label = format!("cheetah validation image, sector {sector:012}\n");
        room[..label.len()].copy_from_slice(label.as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_the_one_whose_answers_are_published() {
        assert_eq!(computed(PUBLISHED_BYTES), (published(), published_with_zeros()));
    }

    #[test]
    fn a_part_is_what_stands_there() {
        let image = Image::new(PUBLISHED_BYTES);
        let whole = image.read(0, image.bytes);
        for (offset, len) in [(0, 1), (4095, 2), (512, 8192), (image.bytes - 700, 4096)] {
            let end = (offset + len).min(image.bytes);
            assert_eq!(image.read(offset, len), whole[offset as usize..end as usize], "{offset}");
        }
    }
}
