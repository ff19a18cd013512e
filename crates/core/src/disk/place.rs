//! What lies where on a disk: the head, two places for the state, the log, the table of checksums, that of
//! nonces and authentication tags, blocks.
//!
//! Owns the arithmetic and the head's form. Never: what is in the other places. Invariant: the places do not
//! overlap, each begins at a whole page, and all of them together are no longer than the disk. A disk of the
//! first version of the form has no place for nonces and tags, and is used as it is.
//! Called by `rim::disk`. Tests: below.

use super::auths::AUTHS_PER_PAGE;
use crate::limits::{BLOCK_BYTES, DONOR_EXTENTS_MAX, EXTENT_BLOCKS, EXTENT_BYTES};
use crate::map::DonorId;
use crate::units::show_bytes;
use std::fmt;

/// All that is read or written is a whole number of these, and begins at one.
pub const PAGE_BYTES: u64 = 4096;

/// The smallest disk that has room for an extent.
pub const DISK_BYTES_MIN: u64 = EXTENT_BYTES + (16 << 20);

const MAGIC: &[u8; 16] = b"cheetah disk   \n";
/// That of disks without a place for nonces and tags, and that of others.
const WITHOUT_AUTHS: u32 = 1;
const VERSION: u32 = 2;
/// The blocks begin at a whole number of these: what a disk erases or stripes at once is no longer.
const ALIGN_BYTES: u64 = 1 << 20;
/// Of an extent: a checksum of 4 bytes for each block, and two bits.
const TABLE_PAGES: u64 = (EXTENT_BLOCKS * 4 + EXTENT_BLOCKS / 8 * 2) / PAGE_BYTES;
const SUMS_PER_PAGE: u64 = PAGE_BYTES / 4;
/// Of an extent: nonce and authentication tag of each block.
const AUTH_PAGES: u64 = EXTENT_BLOCKS.div_ceil(AUTHS_PER_PAGE);

/// What lies where on a disk of so many extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Extents of 64 MiB.
    pub extents: u32,
    /// It has a place for nonces and authentication tags.
    pub keeps_auths: bool,
}

impl Place {
    /// That of a disk which is made now.
    #[must_use]
    pub fn of(extents: u32) -> Place {
        Place { extents, keeps_auths: true }
    }

    /// For a disk of so many bytes: as many extents as it has room for, at most so many.
    #[must_use]
    pub fn on(bytes: u64) -> Option<Place> {
        let most = (bytes / EXTENT_BYTES).min(DONOR_EXTENTS_MAX.into());
        let fits = |extents: &u32| Place::of(*extents).bytes() <= bytes;
        let most = u32::try_from(most).unwrap_or(DONOR_EXTENTS_MAX);
        // What lies before the blocks is less than a hundredth of them: so many steps at most.
        (1..=most).rev().find(fits).map(Place::of)
    }

    /// All of it, in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.block(0) + u64::from(self.extents) * EXTENT_BYTES
    }

    /// Bytes of one of the two places for the state.
    #[must_use]
    pub fn state_bytes(self) -> u64 {
        // For each extent who has it and whether regions of it were written lately.
        (u64::from(self.extents) * 256).next_multiple_of(PAGE_BYTES) + (64 << 10)
    }

    /// Where the state of this number goes: in turns to the one place and the other.
    #[must_use]
    pub fn state(self, number: u64) -> u64 {
        2 * PAGE_BYTES + (number % 2) * self.state_bytes()
    }

    /// How many pages the log has.
    #[must_use]
    pub fn log_pages(self) -> u64 {
        (u64::from(self.extents) * 16).clamp(512, 4096)
    }

    /// Where the page of the log with this number goes.
    #[must_use]
    pub fn log(self, number: u64) -> u64 {
        2 * PAGE_BYTES + 2 * self.state_bytes() + number % self.log_pages() * PAGE_BYTES
    }

    /// Where an extent's part of the table begins.
    #[must_use]
    pub fn table(self, extent: u32) -> u64 {
        self.log(0) + (self.log_pages() + u64::from(extent) * TABLE_PAGES) * PAGE_BYTES
    }

    /// Bytes of an extent's part of the table: the checksums, then a bit for each block that holds data, then
    /// a bit for each that is known.
    #[must_use]
    pub fn table_bytes() -> u64 {
        TABLE_PAGES * PAGE_BYTES
    }

    /// Which pages of an extent's part of the table say something of this block of it.
    #[must_use]
    pub fn pages_of(block: u64) -> [u64; 2] {
        [block % EXTENT_BLOCKS / SUMS_PER_PAGE, TABLE_PAGES - 1]
    }

    /// Where an extent's nonces and authentication tags begin, on a disk that keeps them.
    #[must_use]
    pub fn auths(self, extent: u32) -> u64 {
        self.table(self.extents) + u64::from(extent) * Place::auth_bytes()
    }

    /// Bytes of an extent's nonces and authentication tags: as many on each page as it has room for.
    #[must_use]
    pub fn auth_bytes() -> u64 {
        AUTH_PAGES * PAGE_BYTES
    }

    /// Which page of its extent's has that of this block.
    #[must_use]
    pub fn auth_page_of(block: u64) -> u64 {
        block % EXTENT_BLOCKS / AUTHS_PER_PAGE
    }

    /// Where the block with this number lies.
    #[must_use]
    pub fn block(self, block: u64) -> u64 {
        let extents = if self.keeps_auths { self.extents } else { 0 };
        self.auths(extents).next_multiple_of(ALIGN_BYTES) + block * BLOCK_BYTES
    }
}

/// What a disk of ours begins with, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose disk it is: one for its life.
    pub donor: DonorId,
    /// How it is divided.
    pub place: Place,
}

/// Why a disk is not taken for one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotADisk {
    /// It begins with zeros only.
    Blank,
    /// It holds something else.
    Other,
    /// It is ours, of a version that is not known here.
    Version(u32),
    /// It is ours, and has become shorter than it was.
    Shrunk {
        /// What it had.
        had: u64,
        /// What it has.
        has: u64,
    },
    /// It is ours, and neither copy of its head can be read.
    Damaged,
}

impl fmt::Display for NotADisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotADisk::Blank => f.write_str("it is blank"),
            NotADisk::Other => f.write_str("it holds something that is not Cheetah's"),
            NotADisk::Version(version) => {
                write!(
                    f,
                    "it was made by another version of Cheetah (format {version}, this one knows up to {VERSION})"
                )
            }
            NotADisk::Shrunk { had, has } => {
                write!(f, "it had {} and has {} now", show_bytes(*had), show_bytes(*has))
            }
            NotADisk::Damaged => f.write_str("it is Cheetah's, and both copies of its head are damaged"),
        }
    }
}

impl std::error::Error for NotADisk {}

const HEAD_BYTES: usize = 48;

impl Head {
    /// The page that a disk begins with.
    #[must_use]
    pub fn encode(&self, crc: impl Fn(&[u8]) -> u32) -> Vec<u8> {
        let mut page = Vec::with_capacity(size(PAGE_BYTES));
        page.extend_from_slice(MAGIC);
        let version = if self.place.keeps_auths { VERSION } else { WITHOUT_AUTHS };
        page.extend_from_slice(&version.to_le_bytes());
        page.extend_from_slice(&self.place.extents.to_le_bytes());
        page.extend_from_slice(&self.donor.0.to_le_bytes());
        page.resize(HEAD_BYTES, 0);
        let sum = crc(&page);
        page.extend_from_slice(&sum.to_le_bytes());
        page.resize(size(PAGE_BYTES), 0);
        page
    }

    /// What the first two pages of a disk of so many bytes say.
    ///
    /// # Errors
    /// It is not a disk of ours that can be used.
    pub fn decode(pages: &[u8], bytes: u64, crc: impl Fn(&[u8]) -> u32) -> Result<Head, NotADisk> {
        if pages.iter().all(|byte| *byte == 0) {
            return Err(NotADisk::Blank);
        }
        let ours = pages.chunks(size(PAGE_BYTES)).filter(|page| page.starts_with(MAGIC));
        let mut found = Err(NotADisk::Other);
        for page in ours {
            match Head::of_page(page, bytes, &crc) {
                Ok(head) => return Ok(head),
                Err(why) => found = Err(why),
            }
        }
        found
    }

    fn of_page(page: &[u8], bytes: u64, crc: impl Fn(&[u8]) -> u32) -> Result<Head, NotADisk> {
        let word =
            |at: usize| page.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
        let donor = page.get(24..32).and_then(|id| id.try_into().ok()).map(u64::from_le_bytes);
        let (Some(version), Some(extents), Some(donor), Some(sum)) =
            (word(16), word(20), donor, word(HEAD_BYTES))
        else {
            return Err(NotADisk::Damaged);
        };
        if crc(&page[..HEAD_BYTES]) != sum || extents == 0 || extents > DONOR_EXTENTS_MAX {
            return Err(NotADisk::Damaged);
        }
        if ![WITHOUT_AUTHS, VERSION].contains(&version) {
            return Err(NotADisk::Version(version));
        }
        let place = Place { extents, keeps_auths: version != WITHOUT_AUTHS };
        if place.bytes() > bytes {
            return Err(NotADisk::Shrunk { had: place.bytes(), has: bytes });
        }
        Ok(Head { donor: DonorId(donor), place })
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a few pages")
}

#[cfg(test)]
mod tests {
    use super::super::sum;
    use super::*;

    #[test]
    fn no_two_places_overlap_and_all_of_them_fit() {
        for bytes in [DISK_BYTES_MIN, 1 << 30, (1 << 40) + 12345] {
            let place = Place::on(bytes).expect("there is room");
            assert!(place.bytes() <= bytes && Place::of(place.extents + 1).bytes() > bytes);
            let begins = [0, place.state(0), place.state(1), place.log(0), place.table(0), place.auths(0)];
            let begins = [&begins[..], &[place.block(0)]].concat();
            assert!(begins.is_sorted() && begins.iter().all(|at| at.is_multiple_of(PAGE_BYTES)));
            assert_eq!(place.state(1) - place.state(0), place.state_bytes());
            assert_eq!(place.log(0) - place.state(1), place.state_bytes());
            assert_eq!(place.log(place.log_pages()), place.log(0), "the log goes round");
            assert_eq!(place.table(1) - place.table(0), Place::table_bytes());
            assert_eq!(place.auths(1) - place.auths(0), Place::auth_bytes());
            assert!(place.table(place.extents) <= place.auths(0));
            assert!(place.auths(place.extents) <= place.block(0));
            let beside = place.block(0) as f64 / (f64::from(place.extents) * EXTENT_BYTES as f64);
            assert!(place.extents < 1000 || beside < 0.0083, "less than a hundredth, not {beside}");
        }
        assert_eq!(Place::on(EXTENT_BYTES), None);
        assert_eq!(Place::pages_of(EXTENT_BLOCKS + 1024), [1, TABLE_PAGES - 1]);
        assert_eq!(Place::auth_page_of(EXTENT_BLOCKS + AUTHS_PER_PAGE), 1);
        assert_eq!(Place::auth_page_of(EXTENT_BLOCKS - 1), AUTH_PAGES - 1);
    }

    #[test]
    fn a_head_is_read_back_and_nothing_else_is_taken_for_one() {
        let head = Head { donor: DonorId(0x1234_5678_9abc), place: Place::of(5) };
        let (page, bytes) = (head.encode(sum), head.place.bytes());
        let twice = [page.clone(), page.clone()].concat();
        assert_eq!(Head::decode(&twice, bytes, sum), Ok(head));
        let second = [vec![0; page.len()], page.clone()].concat();
        assert_eq!(Head::decode(&second, bytes, sum), Ok(head), "one copy is enough");
        let shrunk = NotADisk::Shrunk { had: bytes, has: bytes - 1 };
        assert_eq!(Head::decode(&twice, bytes - 1, sum), Err(shrunk));
        assert_eq!(Head::decode(&vec![0; 8192], bytes, sum), Err(NotADisk::Blank));
        assert_eq!(Head::decode(&[b'x'; 8192], bytes, sum), Err(NotADisk::Other));
        let mut bent = twice;
        (bent[20], bent[20 + page.len()]) = (6, 6);
        assert_eq!(Head::decode(&bent, u64::MAX, sum), Err(NotADisk::Damaged));
    }

    #[test]
    fn a_disk_of_the_first_version_is_what_it_was() {
        let place = Place { extents: 5, keeps_auths: false };
        let head = Head { donor: DonorId(7), place };
        let page = head.encode(sum);
        assert_eq!(page[16..20], [1, 0, 0, 0]);
        assert_eq!(Head::decode(&page, place.bytes(), sum), Ok(head));
        assert_eq!(place.block(0), place.table(5).next_multiple_of(ALIGN_BYTES));
        assert!(place.bytes() < Place::of(5).bytes());
        let mut next = Head { place: Place::of(5), ..head }.encode(sum);
        next[16] = 3;
        let crc = sum(&next[..HEAD_BYTES]);
        next[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Head::decode(&next, u64::MAX, sum), Err(NotADisk::Version(3)));
    }
}
