//! An extent with grains: its header, its directory and tables, where each grain lies. Called by `vmdk`.
//! Tests: `hostile`, `lab/tests/sources.rs`.

use super::{SECTOR, TABLE_BYTES_MAX, descriptor};
use crate::blocks::Block;
use crate::cache::Cache;
use crate::fields::{le16, le32, le64};
use crate::files::{Fault, damaged};
use crate::inflate::Form;
use crate::{RawSource, Source};
use std::sync::Arc;

const SIGNATURE: &[u8] = b"KDMV";
/// The directory is at the end, in a copy of the header: who wrote it could not go back.
const AT_END: u64 = u64::MAX;
/// Before each compressed grain: its sector of the disk, and its bytes.
const MARKER_BYTES: u64 = 12;
const TABLES_KEPT: usize = 16 << 20;
const ZEROED_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
/// Neither VMware nor QEMU write others.
const GRAIN_SECTORS_MAX: u64 = 4096;
const ENTRIES_MAX: u64 = 1 << 16;

#[derive(Debug)]
pub(super) struct Sparse {
    /// Of its run of the disk.
    pub size: u64,
    pub grain_bytes: u64,
    is_compressed: bool,
    /// An entry of 1 is a grain of zeros.
    has_zeroed: bool,
    /// Where each table lies, in sectors.
    directory: Vec<u32>,
    entries_each: u64,
    tables: Cache<Vec<u32>>,
}

pub(super) fn is_one(head: &[u8]) -> bool {
    head.starts_with(SIGNATURE)
}

impl Sparse {
    /// With the descriptor in it, if one is.
    pub fn read(file: &RawSource) -> Result<(Sparse, Option<Vec<u8>>), Fault> {
        let mut header = file.part(0, SECTOR)?;
        let described = match (le64(&header, 28), le64(&header, 36)) {
            (0, _) | (_, 0) => None,
            (at, len) => {
                let len = len.saturating_mul(SECTOR).min(descriptor::BYTES_MAX);
                // An extent of several has room for one, with zeros in it.
                Some(file.part(at.saturating_mul(SECTOR), len)?)
                    .filter(|text| text.iter().any(|byte| *byte != 0))
            }
        };
        if le64(&header, 56) == AT_END {
            // In front of the last sector, which marks the end.
            let footer = file.size().checked_sub(2 * SECTOR);
            header = file.part(footer.unwrap_or_default(), SECTOR)?;
            if !is_one(&header) || le64(&header, 56) == AT_END {
                return damaged(format!(
                    "{} lacks what has to stand at its end: is it cut off?",
                    file.path().display()
                ));
            }
        }
        Ok((Sparse::by_header(file, &header)?, described))
    }

    fn by_header(file: &RawSource, header: &[u8]) -> Result<Sparse, Fault> {
        let (version, flags, capacity) = (le32(header, 4), le32(header, 8), le64(header, 12));
        let (grain, entries_each) = (le64(header, 20), u64::from(le32(header, 44)));
        if !(1..=3).contains(&version) || capacity == 0 || capacity > 1 << 50 {
            return damaged(format!("it says that it is of version {version} and has {capacity} sectors"));
        }
        if !grain.is_power_of_two() || grain > GRAIN_SECTORS_MAX || !(1..=ENTRIES_MAX).contains(&entries_each)
        {
            return damaged(format!(
                "it says that it has {entries_each} grains of {grain} sectors in a table"
            ));
        }
        let is_compressed = flags & COMPRESSED != 0;
        if is_compressed && le16(header, 77) != 1 {
            return damaged(format!(
                "its grains are compressed by a method ({}) that is not read",
                le16(header, 77)
            ));
        }
        let tables = capacity.div_ceil(grain * entries_each);
        if tables * 4 > TABLE_BYTES_MAX {
            return damaged(format!("its directory has {tables} entries"));
        }
        let at = le64(header, 56).saturating_mul(SECTOR);
        let directory = file.part(at, tables * 4)?.chunks_exact(4).map(|entry| le32(entry, 0)).collect();
        Ok(Sparse {
            size: capacity * SECTOR,
            grain_bytes: grain * SECTOR,
            is_compressed,
            has_zeroed: flags & ZEROED_GRAINS != 0,
            directory,
            entries_each,
            tables: Cache::new(TABLES_KEPT, entries_each as usize * 4),
        })
    }

    /// Where its grain of this number is, in this file.
    pub fn locate(&self, file: &RawSource, number: usize, grain: u64) -> Result<Block, Fault> {
        let (at, inside) = (grain / self.entries_each, grain % self.entries_each);
        let Some(table) = usize::try_from(at).ok().and_then(|at| self.directory.get(at)).copied() else {
            return damaged("no table names it");
        };
        if table == 0 {
            return Ok(Block::Zero);
        }
        let entries = self.tables.get_or(at, || {
            let entries = file.part(u64::from(table) * SECTOR, self.entries_each * 4)?;
            Ok::<_, Fault>(Arc::new(
                entries.chunks_exact(4).map(|entry| le32(entry, 0)).collect::<Vec<u32>>(),
            ))
        })?;
        let entry = usize::try_from(inside).ok().and_then(|at| entries.get(at)).copied().unwrap_or_default();
        if entry == 0 || (self.has_zeroed && entry == 1) {
            return Ok(Block::Zero);
        }
        let offset = u64::from(entry) * SECTOR;
        if !self.is_compressed {
            return Ok(Block::Plain { file: number, offset });
        }
        let marker = file.part(offset, MARKER_BYTES)?;
        if le64(&marker, 0) != grain * (self.grain_bytes / SECTOR) {
            return damaged(format!("what lies at byte {offset} is another grain"));
        }
        let len = u64::from(le32(&marker, 8));
        Ok(Block::Deflated { file: number, offset: offset + MARKER_BYTES, len, form: Form::Zlib })
    }
}
