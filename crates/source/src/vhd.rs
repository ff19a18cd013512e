//! VHD images: Microsoft's of Virtual PC, of fixed size or growing ("dynamic").
//!
//! Owns: the footer, and where each block lies. Never: a differencing image, which is refused: it holds
//! what is another than in a file that it names. Nothing but its headers has a checksum. Written by
//! Microsoft's "Virtual Hard Disk Image Format Specification". Called by `open`. Tests: `hostile`,
//! `lab/tests/sources.rs`.

use crate::blocks::{Block, Blocks, Found, Table};
use crate::container::QEMU;
use crate::fields::{be32, be64};
use crate::files::{Fault, TABLE_BYTES_MAX, damaged};
use crate::{Claims, RawSource, Source, SourceError};

const FOOTER_BYTES: usize = 512;
const SIGNATURE: &[u8] = b"conectix";
const HEADER_BYTES: u64 = 1024;
const SECTOR: u64 = 512;
const UNUSED: u32 = u32::MAX;

#[derive(Debug)]
enum Where {
    /// All of it, from the first byte on.
    Fixed { block_bytes: u64 },
    /// The sector of each block's bitmap, behind which its data are.
    Dynamic { sectors: Vec<u32>, bitmap_bytes: u64 },
}

/// Whether these are the ends of one. Versions before 2003 made the footer a byte shorter.
pub(crate) fn is_one(head: &[u8], tail: &[u8]) -> bool {
    let ends = |before: usize| {
        tail.len().checked_sub(before).is_some_and(|from| tail[from..].starts_with(SIGNATURE))
    };
    head.starts_with(SIGNATURE) || ends(FOOTER_BYTES) || ends(FOOTER_BYTES - 1)
}

pub(crate) fn open(file: RawSource) -> Result<impl Source, SourceError> {
    Blocks::of_one(file, read)
}

/// The sum of all bytes, but its own four, turned round.
fn fits(bytes: &[u8], own: usize) -> bool {
    let others = bytes.iter().enumerate().filter(|(at, _)| !(own..own + 4).contains(at));
    let sum = others.fold(0_u32, |sum, (_, byte)| sum.wrapping_add(u32::from(*byte)));
    !sum == be32(bytes, own)
}

/// The footer, or the copy of it that all but fixed ones have in front; and where it begins.
fn footer(file: &RawSource) -> Result<(Vec<u8>, u64), Fault> {
    for at in [file.size().checked_sub(512), file.size().checked_sub(511), Some(0)].into_iter().flatten() {
        let mut bytes = file.part(at, (file.size() - at).min(FOOTER_BYTES as u64))?;
        bytes.resize(FOOTER_BYTES, 0);
        if bytes.starts_with(SIGNATURE) && fits(&bytes, 64) {
            return Ok((bytes, at));
        }
    }
    damaged("what is to describe its disk does not fit its checksum")
}

fn read(file: &RawSource) -> Result<Found<Where>, Fault> {
    let (footer, at) = footer(file)?;
    let size = be64(&footer, 48);
    let (kind, table, block_bytes) = match be32(&footer, 60) {
        2 => {
            file.check_inside(0, size)?;
            if at < size {
                return damaged(format!(
                    "its disk of {size} bytes ends behind byte {at}, where it ends itself"
                ));
            }
            // As it is: any size of a block would do.
            ("fixed", Where::Fixed { block_bytes: 1 << 20 }, 1 << 20)
        }
        3 => {
            let (table, block_bytes) = dynamic(file, be64(&footer, 16), size)?;
            ("dynamic", table, block_bytes)
        }
        4 => {
            return Err(SourceError::Refused {
                path: file.path().to_path_buf(),
                why: format!("a VHD image that holds what differs from another file: {QEMU}"),
            }
            .into());
        }
        other => return damaged(format!("it says that it is of kind {other}")),
    };
    Ok(Found {
        what: format!("VHD image ({kind})"),
        block: "block",
        table,
        size,
        block_bytes,
        is_checksummed: false,
        claims: Claims::default(),
    })
}

fn dynamic(file: &RawSource, at: u64, size: u64) -> Result<(Where, u64), Fault> {
    let header = file.part(at, HEADER_BYTES)?;
    if !header.starts_with(b"cxsparse") || !fits(&header, 36) {
        return damaged(format!("its header at byte {at} does not fit its checksum"));
    }
    let (table, entries, block_bytes) =
        (be64(&header, 16), u64::from(be32(&header, 28)), u64::from(be32(&header, 32)));
    if !block_bytes.is_power_of_two() || !(SECTOR..=256 << 20).contains(&block_bytes) {
        return damaged(format!("it says that its blocks have {block_bytes} bytes"));
    }
    let wanted = size.div_ceil(block_bytes);
    if entries < wanted || wanted * 4 > TABLE_BYTES_MAX {
        return damaged(format!("its table has {entries} entries for a disk of {size} bytes"));
    }
    let sectors = file.part(table, wanted * 4)?.chunks_exact(4).map(|entry| be32(entry, 0)).collect();
    // A bit for each sector of a block, in whole sectors.
    let bitmap_bytes = (block_bytes / SECTOR).div_ceil(8).next_multiple_of(SECTOR);
    Ok((Where::Dynamic { sectors, bitmap_bytes }, block_bytes))
}

impl Table for Where {
    fn locate(&self, _: &[RawSource], index: u64) -> Result<Block, Fault> {
        match self {
            Where::Fixed { block_bytes } => Ok(Block::Plain { file: 0, offset: index * block_bytes }),
            Where::Dynamic { sectors, bitmap_bytes } => {
                match usize::try_from(index).ok().and_then(|at| sectors.get(at)) {
                    // The bitmap says which sectors were written: the others hold zeros, as writers leave
                    // them.
                    Some(&UNUSED) => Ok(Block::Zero),
                    Some(sector) => {
                        Ok(Block::Plain { file: 0, offset: u64::from(*sector) * SECTOR + bitmap_bytes })
                    }
                    None => damaged("no table names it"),
                }
            }
        }
    }
}
