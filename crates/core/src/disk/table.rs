//! The checksums of a disk's blocks, and what is known of them, as its table has them; and their nonces and
//! authentication tags, as theirs has.
//!
//! Owns the bytes of the tables in memory, and which of their pages differ from the disk's. Never: reading or
//! writing them (`journal`). Invariant: an extent of which nothing is known is all zeros, so a checksum is
//! kept as it differs from that of zeros. Called by `journal`. Tests: below.

use super::auths::{AUTHS_PER_PAGE, Auth, Auths, NO_AUTH};
use super::{Noted, PAGE_BYTES, Place};
use crate::checksum::ZERO_BLOCK_CRC;
use crate::limits::EXTENT_BLOCKS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PAGE: usize = PAGE_BYTES as usize;

/// What is known of a block that nobody has written.
pub(super) const ABSENT: Noted = Noted { sum: ZERO_BLOCK_CRC, is_data: false, is_known: false };

/// For each extent of which something is known, what `Place::table_bytes` says.
#[derive(Debug)]
pub(super) struct Table {
    parts: BTreeMap<u32, Vec<u8>>,
    touched: BTreeSet<(u32, u64)>,
    auths: Arc<Auths>,
    /// Extents that have any of these: of others the disk has anything in their place.
    with_auths: BTreeSet<u32>,
    touched_auths: BTreeSet<(u32, u64)>,
}

impl Table {
    /// Of a disk of so many extents.
    pub(super) fn new(extents: u32) -> Table {
        Table {
            parts: BTreeMap::new(),
            touched: BTreeSet::new(),
            auths: Arc::new(Auths::new(extents)),
            with_auths: BTreeSet::new(),
            touched_auths: BTreeSet::new(),
        }
    }

    /// The bytes of an extent's part, to be read from the disk.
    pub(super) fn part(&mut self, extent: u32) -> &mut [u8] {
        self.parts
            .entry(extent)
            .or_insert_with(|| vec![0; usize::try_from(Place::table_bytes()).expect("in memory")])
    }

    /// Extents of which there may be something to know.
    pub(super) fn extents(&self) -> impl Iterator<Item = u32> + '_ {
        self.parts.keys().copied()
    }

    pub(super) fn get(&self, block: u64) -> Noted {
        let Some(part) = self.parts.get(&extent_of(block)) else { return ABSENT };
        let at = inside(block);
        let word = part[at * 4..at * 4 + 4].try_into().expect("four bytes");
        let (data, known) = bits(at);
        Noted {
            sum: u32::from_le_bytes(word) ^ ZERO_BLOCK_CRC,
            is_data: part[data] & 1 << (at % 8) != 0,
            is_known: part[known] & 1 << (at % 8) != 0,
        }
    }

    pub(super) fn auths(&self) -> &Arc<Auths> {
        &self.auths
    }

    pub(super) fn with_auths(&self) -> &BTreeSet<u32> {
        &self.with_auths
    }

    /// The pages of an extent's nonces and authentication tags, as they are on the disk.
    pub(super) fn take_auths(&mut self, extent: u32, pages: &[u8]) {
        self.with_auths.insert(extent);
        self.auths.take_pages(u64::from(extent) * EXTENT_BLOCKS, pages);
    }

    pub(super) fn set_auth(&mut self, block: u64, auth: &Auth) {
        let extent = extent_of(block);
        if *auth != NO_AUTH && self.with_auths.insert(extent) {
            let all = 0..Place::auth_bytes() / PAGE_BYTES;
            self.touched_auths.extend(all.map(|page| (extent, page)));
        }
        if self.with_auths.contains(&extent) {
            self.auths.set(block, auth);
            self.touched_auths.insert((extent, Place::auth_page_of(block)));
        }
    }

    /// Pages of nonces and authentication tags that differ from the disk's, by extent; from now on none do.
    pub(super) fn take_touched_auths(&mut self) -> BTreeSet<(u32, u64)> {
        std::mem::take(&mut self.touched_auths)
    }

    pub(super) fn auth_page(&self, extent: u32, page: u64) -> Vec<u8> {
        self.auths.page(u64::from(extent) * EXTENT_BLOCKS + page * AUTHS_PER_PAGE)
    }

    pub(super) fn set(&mut self, block: u64, noted: Noted) {
        let at = inside(block);
        let part = self.part(extent_of(block));
        part[at * 4..at * 4 + 4].copy_from_slice(&(noted.sum ^ ZERO_BLOCK_CRC).to_le_bytes());
        let (data, known) = bits(at);
        for (byte, is_set) in [(data, noted.is_data), (known, noted.is_known)] {
            let bit = 1 << (at % 8);
            part[byte] = if is_set { part[byte] | bit } else { part[byte] & !bit };
        }
        self.touched.extend(Place::pages_of(block).map(|page| (extent_of(block), page)));
    }

    pub(super) fn wipe(&mut self, extent: u32) {
        self.part(extent).fill(0);
        self.touched.extend((0..Place::table_bytes() / PAGE_BYTES).map(|page| (extent, page)));
        // What the disk has of its auths does not count from now on.
        if self.with_auths.remove(&extent) {
            self.touched_auths.retain(|(of, _)| *of != extent);
            let first = u64::from(extent) * EXTENT_BLOCKS;
            self.auths.clear(first, first + EXTENT_BLOCKS);
        }
    }

    /// The pages that differ from the disk's, by extent and number; from now on none do.
    pub(super) fn take_touched(&mut self) -> BTreeSet<(u32, u64)> {
        std::mem::take(&mut self.touched)
    }

    pub(super) fn page(&mut self, extent: u32, page: u64) -> &[u8] {
        let at = usize::try_from(page * PAGE_BYTES).expect("a page of a part");
        &self.part(extent)[at..at + PAGE]
    }
}

pub(super) fn extent_of(block: u64) -> u32 {
    u32::try_from(block / EXTENT_BLOCKS).unwrap_or(u32::MAX)
}

fn inside(block: u64) -> usize {
    usize::try_from(block % EXTENT_BLOCKS).expect("of one extent")
}

/// The bytes of an extent's part that have the two bits of its block.
fn bits(at: usize) -> (usize, usize) {
    let sums = EXTENT_BLOCKS as usize * 4;
    (sums + at / 8, sums + EXTENT_BLOCKS as usize / 8 + at / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_had_and_its_pages_are_to_be_written() {
        let mut table = Table::new(2);
        let noted = Noted { sum: 7, is_data: true, is_known: false };
        table.set(EXTENT_BLOCKS + 9, noted);
        assert_eq!((table.get(EXTENT_BLOCKS + 9), table.get(EXTENT_BLOCKS + 8)), (noted, ABSENT));
        assert_eq!(table.get(9), ABSENT, "another extent's");
        let pages: Vec<u64> = table.take_touched().into_iter().map(|(_, page)| page).collect();
        assert_eq!(pages, Place::pages_of(EXTENT_BLOCKS + 9));
        assert!(table.take_touched().is_empty());
        table.wipe(1);
        assert_eq!(table.get(EXTENT_BLOCKS + 9), ABSENT);
        assert_eq!(table.take_touched().len() as u64, Place::table_bytes() / PAGE_BYTES);
    }

    #[test]
    fn of_auths_all_pages_are_written_first_and_then_those_that_changed() {
        let mut table = Table::new(2);
        table.set_auth(3, &NO_AUTH);
        assert!(table.take_touched_auths().is_empty() && table.auths().is_empty());
        let (block, auth) = (EXTENT_BLOCKS + 3 * AUTHS_PER_PAGE, [9; 28]);
        table.set_auth(block, &auth);
        let all = || (0..Place::auth_bytes() / PAGE_BYTES).map(|page| (1, page));
        assert!(table.take_touched_auths().into_iter().eq(all()), "what is there is anybody's");
        assert_eq!(table.auth_page(1, 3)[..28], auth);
        table.set_auth(block + 1, &auth);
        table.set_auth(block, &NO_AUTH);
        table.set_auth(block + 3 * AUTHS_PER_PAGE, &auth);
        assert_eq!(table.take_touched_auths(), BTreeSet::from([(1, 3), (1, 6)]));
        table.set_auth(block + 1, &auth);
        table.wipe(1);
        assert_eq!((table.auths().get(block + 1), table.with_auths().len()), (NO_AUTH, 0));
        assert!(table.take_touched_auths().is_empty());
        table.set_auth(block, &auth);
        assert!(table.take_touched_auths().into_iter().eq(all()), "another volume's");
    }
}
