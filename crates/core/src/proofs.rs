//! The proofs of a sealed volume: where the hash of each of its blocks lies, behind its end.
//!
//! Owns the shape of the tree and the arithmetic of its pages. Never: hashing (`rim::proofs`), or bytes. A
//! proof is the BLAKE3 chaining value of a subtree: of a block in the lowest level, of a page of the level
//! below in each other. The topmost level is one page, and what that page comes to is the root: BLAKE3 of the
//! whole volume, which `b3sum` prints as well (the BLAKE3 paper of 2020, section 2.1, has the tree). Of an
//! encrypted volume the proof of a block is a hash of what donors hold of it, and the rest is the same.
//! Invariant: every page but the last of its level is full, so each covers a subtree of BLAKE3's own tree.
//! Called by `rim::proofs`, `map`, `coordinator::seal`. Tests: below.

use crate::limits::BLOCK_BYTES;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of one proof.
pub const PROOF_BYTES: u64 = 32;
/// Proofs in a page, which is one block.
pub const PROOFS_PER_PAGE: u64 = BLOCK_BYTES / PROOF_BYTES;

/// BLAKE3 of all bytes of a volume, as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Root(pub [u8; 32]);

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({self})")
    }
}

impl From<Root> for String {
    fn from(root: Root) -> String {
        root.to_string()
    }
}

impl TryFrom<String> for Root {
    type Error = BadRoot;
    fn try_from(text: String) -> Result<Self, BadRoot> {
        let mut root = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadRoot);
        }
        for (at, byte) in root.iter_mut().enumerate() {
            *byte = text
                .get(2 * at..2 * at + 2)
                .and_then(|two| u8::from_str_radix(two, 16).ok())
                .ok_or(BadRoot)?;
        }
        Ok(Root(root))
    }
}

/// A text that is no hash of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRoot;

impl fmt::Display for BadRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a BLAKE3 hash is 64 hexadecimal digits")
    }
}

impl std::error::Error for BadRoot {}

/// One page of proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page {
    /// 0: its proofs are of blocks of the volume; above, of pages of the level below.
    pub level: u32,
    /// Its number in its level.
    pub index: u64,
}

/// Where one proof lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The page that has it.
    pub page: Page,
    /// Its number in the page, below [`PROOFS_PER_PAGE`].
    pub nth: u32,
}

/// What a block of a sealed volume is: its own data, or a page of proofs behind that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// So many bytes of it are data: fewer than a block where the volume ends.
    Data {
        /// 1 to [`BLOCK_BYTES`].
        bytes: u32,
    },
    /// A page.
    Proofs(Page),
}

/// The tree over a volume of this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    size: u64,
}

impl Tree {
    /// `size`: bytes of the volume, more than 0.
    #[must_use]
    pub fn new(size: u64) -> Tree {
        debug_assert!(size > 0, "no volume is empty");
        Tree { size }
    }

    /// Bytes that are proved.
    #[must_use]
    pub fn size(self) -> u64 {
        self.size
    }

    /// Blocks of the volume.
    #[must_use]
    pub fn blocks(self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }

    /// Proofs in a level.
    #[must_use]
    pub fn proofs(self, level: u32) -> u64 {
        (0..level).fold(self.blocks(), |below, _| below.div_ceil(PROOFS_PER_PAGE))
    }

    /// Pages of a level.
    #[must_use]
    pub fn pages(self, level: u32) -> u64 {
        self.proofs(level).div_ceil(PROOFS_PER_PAGE)
    }

    /// At least 1; the last of them is one page.
    #[must_use]
    pub fn levels(self) -> u32 {
        (1..).find(|levels| self.pages(levels - 1) == 1).unwrap_or(1)
    }

    /// The page that comes to the root.
    #[must_use]
    pub fn top(self) -> Page {
        Page { level: self.levels() - 1, index: 0 }
    }

    /// Bytes from the start of the volume to its first page.
    #[must_use]
    pub fn begin(self) -> u64 {
        self.blocks() * BLOCK_BYTES
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn bytes(self) -> u64 {
        (0..self.levels()).map(|level| self.pages(level) * BLOCK_BYTES).sum()
    }

    /// Bytes from the start of the volume to the end of its last page.
    #[must_use]
    pub fn end(self) -> u64 {
        self.begin() + self.bytes()
    }

    /// Bytes from the start of the volume to a page: the topmost level comes first.
    #[must_use]
    pub fn offset(self, page: Page) -> u64 {
        let above: u64 = (page.level + 1..self.levels()).map(|level| self.pages(level)).sum();
        self.begin() + (above + page.index) * BLOCK_BYTES
    }

    /// How many proofs a page has.
    #[must_use]
    pub fn proofs_of(self, page: Page) -> u32 {
        let left = self.proofs(page.level).saturating_sub(page.index * PROOFS_PER_PAGE);
        u32::try_from(left.min(PROOFS_PER_PAGE)).unwrap_or(0)
    }

    /// Where the proof of a block of data lies.
    #[must_use]
    pub fn proof_of_block(self, block: u64) -> Place {
        place(0, block)
    }

    /// Where the proof of a page lies; none of the topmost, which the root proves.
    #[must_use]
    pub fn proof_of_page(self, page: Page) -> Option<Place> {
        (page != self.top()).then(|| place(page.level + 1, page.index))
    }

    /// What lies in a block, counted from the start of the volume; none behind the last page.
    #[must_use]
    pub fn block(self, block: u64) -> Option<Block> {
        let Some(mut page) = block.checked_sub(self.blocks()) else {
            let bytes = (self.size - block * BLOCK_BYTES).min(BLOCK_BYTES);
            return Some(Block::Data { bytes: u32::try_from(bytes).unwrap_or(0) });
        };
        for level in (0..self.levels()).rev() {
            let pages = self.pages(level);
            if page < pages {
                return Some(Block::Proofs(Page { level, index: page }));
            }
            page -= pages;
        }
        None
    }
}

fn place(level: u32, proof: u64) -> Place {
    let nth = u32::try_from(proof % PROOFS_PER_PAGE).unwrap_or(0);
    Place { page: Page { level, index: proof / PROOFS_PER_PAGE }, nth }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each block of data has a proof of its own, and each page but the topmost one in the level above.
    #[test]
    fn every_block_and_page_is_proved_once() {
        for size in [1, 4095, 4096, 4097, 128 * 4096, 128 * 4096 + 1, 200 << 20, (1 << 40) + 1] {
            let tree = Tree::new(size);
            assert_eq!(tree.pages(tree.levels() - 1), 1, "{size}");
            assert_eq!(tree.offset(tree.top()), tree.begin(), "{size}");
            let last = tree.proof_of_block(tree.blocks() - 1);
            assert_eq!(last.page.index + 1, tree.pages(0), "{size}");
            assert_eq!(last.nth + 1, tree.proofs_of(last.page), "{size}");
            for level in 0..tree.levels() {
                let page = Page { level, index: tree.pages(level) - 1 };
                let block = tree.offset(page) / BLOCK_BYTES;
                assert_eq!(tree.block(block), Some(Block::Proofs(page)), "{size}");
                let Some(place) = tree.proof_of_page(page) else {
                    assert_eq!(page, tree.top(), "{size}");
                    continue;
                };
                assert_eq!(u64::from(place.nth) + 1, (tree.proofs(level + 1) - 1) % PROOFS_PER_PAGE + 1);
            }
            assert_eq!(tree.block(tree.begin() / BLOCK_BYTES + tree.bytes() / BLOCK_BYTES), None, "{size}");
            let end = u32::try_from((size - 1) % BLOCK_BYTES + 1).expect("a block is small");
            assert_eq!(tree.block(tree.blocks() - 1), Some(Block::Data { bytes: end }), "{size}");
        }
    }

    #[test]
    fn proofs_take_less_than_a_hundredth() {
        let tree = Tree::new(1 << 40);
        assert_eq!(tree.levels(), 4);
        assert!(tree.bytes() * 100 < tree.size(), "{}", tree.bytes());
    }

    #[test]
    fn a_root_reads_what_it_writes() {
        let root = Root(std::array::from_fn(|at| u8::try_from(at * 7).expect("below 256")));
        assert_eq!(Root::try_from(root.to_string()), Ok(root));
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Root::try_from(bad.to_owned()), Err(BadRoot), "{bad}");
        }
    }
}
