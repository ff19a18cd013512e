//! VHDX images: Hyper-V's, of fixed size or growing.
//!
//! Owns: headers, regions, what the image says of its disk, and where each block lies. Never: replaying its
//! log, which an image has that was not closed, or an image that stands on a parent: both are refused. Its
//! headers and tables of regions have checksums; the disk's bytes have none. Written by Microsoft's
//! [MS-VHDX]. Called by `open`. Tests: `hostile`, `lab/tests/sources.rs`.

use crate::blocks::{Block, Blocks, Found, Table};
use crate::container::QEMU;
use crate::fields::{array, le16, le32, le64};
use crate::files::{Fault, TABLE_BYTES_MAX, damaged, refused};
use crate::{Claims, RawSource, Source, SourceError};

const SIGNATURE: &[u8] = b"vhdxfile";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Of which either is enough.
const HEADERS: [u64; 2] = [64 * KIB, 128 * KIB];
const REGIONS: [u64; 2] = [192 * KIB, 256 * KIB];
const HEADER_BYTES: u64 = 4 * KIB;
const REGION_BYTES: u64 = 64 * KIB;

/// As they stand in the file.
pub(crate) const BAT: [u8; 16] = guid(0x2dc2_7766, 0xf623, 0x4200, 0x9d64_115e_9bfd_4a08);
pub(crate) const METADATA: [u8; 16] = guid(0x8b7c_a206, 0x4790, 0x4b9a, 0xb8fe_575f_050f_886e);
pub(crate) const PARAMETERS: [u8; 16] = guid(0xcaa1_6737, 0xfa36, 0x4d43, 0xb3b6_33f0_aa44_e76b);
pub(crate) const DISK_SIZE: [u8; 16] = guid(0x2fa5_4224, 0xcd1b, 0x4876, 0xb211_5dbe_d83b_f4b8);
pub(crate) const LOGICAL_SECTOR: [u8; 16] = guid(0x8141_bf1d, 0xa96f, 0x4709, 0xba47_f233_a8fa_ab5f);

const fn guid(a: u32, b: u16, c: u16, d: u64) -> [u8; 16] {
    let (a, b, c, d) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes(), d.to_be_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

#[derive(Debug)]
struct Bat {
    /// Of each block of the disk.
    entries: Vec<u64>,
}

pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(SIGNATURE)
}

pub(crate) fn open(file: RawSource) -> Result<impl Source, SourceError> {
    Blocks::of_one(file, read)
}

/// A structure that is there twice, with its CRC-32C in front: those copies that fit.
fn whole(file: &RawSource, places: [u64; 2], len: u64, signature: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
    let mut found = Vec::new();
    for at in places {
        let mut bytes = match file.part(at, len) {
            Err(Fault::Damaged(_)) => continue,
            read => read?,
        };
        let sum = le32(&bytes, 4);
        bytes[4..8].fill(0);
        if bytes.starts_with(signature) && crc32c::crc32c(&bytes) == sum {
            found.push(bytes);
        }
    }
    Ok(found)
}

fn read(file: &RawSource) -> Result<Found<Bat>, Fault> {
    let headers = whole(file, HEADERS, HEADER_BYTES, b"head")?;
    let Some(header) = headers.iter().max_by_key(|header| le64(header, 8)) else {
        return damaged("neither of its headers fits its checksum");
    };
    if header[48..64].iter().any(|byte| *byte != 0) {
        return refused(
            file.path(),
            "a VHDX image that was not closed: what was written last stands in its log. `qemu-img check -r all` writes it \
             to its place, in a copy"
                .to_owned(),
        );
    }
    if le16(header, 66) != 1 {
        return refused(file.path(), format!("a VHDX image of version {}: {QEMU}", le16(header, 66)));
    }
    let tables = whole(file, REGIONS, REGION_BYTES, b"regi")?;
    let Some(regions) = tables.first() else {
        return damaged("neither of its region tables fits its checksum");
    };
    let region = |wanted: [u8; 16]| {
        let count = (le32(regions, 8) as usize).min(2047);
        let entries = regions[16..].chunks_exact(32).take(count);
        let entry = entries.into_iter().find(|entry| array::<16>(entry, 0) == wanted)?;
        Some((le64(entry, 16), u64::from(le32(entry, 24))))
    };
    let (Some(bat), Some(metadata)) = (region(BAT), region(METADATA)) else {
        return damaged("its region table names no block table or no metadata");
    };
    let Described { size, block_bytes, sector_bytes } = describe(file, metadata)?;
    Ok(Found {
        what: "VHDX image".to_owned(),
        block: "block",
        table: blocks(file, bat, size, block_bytes, sector_bytes)?,
        size,
        block_bytes,
        is_checksummed: false,
        claims: Claims::default(),
    })
}

struct Described {
    size: u64,
    block_bytes: u64,
    sector_bytes: u64,
}

fn describe(file: &RawSource, (at, len): (u64, u64)) -> Result<Described, Fault> {
    let table = file.part(at, REGION_BYTES.min(len))?;
    if table.len() < 32 || !table.starts_with(b"metadata") {
        return damaged("its metadata do not begin as such");
    }
    let item = |wanted: [u8; 16], bytes: u64, name: &str| {
        let count = usize::from(le16(&table, 10)).min(2047);
        let entry = table[32..].chunks_exact(32).take(count).find(|entry| array::<16>(entry, 0) == wanted);
        match entry {
            Some(entry) if u64::from(le32(entry, 20)) >= bytes => {
                file.part(at.saturating_add(u64::from(le32(entry, 16))), bytes)
            }
            _ => damaged(format!("its metadata have no {name}")),
        }
    };
    let parameters = item(PARAMETERS, 8, "file parameters")?;
    let size = le64(&item(DISK_SIZE, 8, "size of the disk")?, 0);
    let sector_bytes = u64::from(le32(&item(LOGICAL_SECTOR, 4, "size of a sector")?, 0));
    let block_bytes = u64::from(le32(&parameters, 0));
    if le32(&parameters, 4) & 2 != 0 {
        return refused(
            file.path(),
            format!("a VHDX image that holds what differs from another file: {QEMU}"),
        );
    }
    if !block_bytes.is_power_of_two() || !(MIB..=256 * MIB).contains(&block_bytes) {
        return damaged(format!("it says that its blocks have {block_bytes} bytes"));
    }
    if ![512, 4096].contains(&sector_bytes) || size > 64 << 40 {
        return damaged(format!("it says that its disk has {size} bytes, in sectors of {sector_bytes}"));
    }
    Ok(Described { size, block_bytes, sector_bytes })
}

/// The table of blocks, without what stands between for images with a parent.
fn blocks(
    file: &RawSource,
    (at, len): (u64, u64),
    size: u64,
    block_bytes: u64,
    sector_bytes: u64,
) -> Result<Bat, Fault> {
    let wanted = size.div_ceil(block_bytes);
    // Behind so many blocks an entry says where their bitmap is.
    let ratio = ((sector_bytes << 23) / block_bytes).max(1);
    let entries = wanted + wanted.saturating_sub(1) / ratio;
    if entries * 8 > len || entries * 8 > TABLE_BYTES_MAX {
        return damaged(format!("its table of {len} bytes has not room for a disk of {size} bytes"));
    }
    let table = file.part(at, entries * 8)?;
    let all = table.chunks_exact(8).map(|entry| le64(entry, 0)).enumerate();
    let entries = all.filter(|(at, _)| *at as u64 % (ratio + 1) != ratio).map(|(_, entry)| entry).collect();
    Ok(Bat { entries })
}

impl Table for Bat {
    fn locate(&self, _: &[RawSource], index: u64) -> Result<Block, Fault> {
        let Some(entry) = usize::try_from(index).ok().and_then(|at| self.entries.get(at)) else {
            return damaged("no table names it");
        };
        match entry & 7 {
            // Not present, undefined, zero, unmapped: what a disk gives there are zeros.
            0..=3 => Ok(Block::Zero),
            6 => Ok(Block::Plain { file: 0, offset: entry >> 20 << 20 }),
            other => damaged(format!("its entry is of state {other}")),
        }
    }
}
