//! QCOW2 images: QEMU's, versions 2 and 3, with clusters as they are or deflated.
//!
//! Owns: the header, and where each cluster lies. Never: what stands in another file. A backing file or a
//! data file is named by whoever made the image, so such an image is refused, and says which file it wants.
//! Nothing in it has a checksum. Of its snapshots the active state is read. Written by QEMU's
//! docs/interop/qcow2.rst. Called by `open`. Tests: below, `hostile`, `lab/tests/sources.rs`.

use crate::blocks::{Block, Blocks, Found, Table};
use crate::cache::Cache;
use crate::container::QEMU;
use crate::fields::{be32, be64, text};
use crate::files::{Fault, damaged, refused};
use crate::inflate::Form;
use crate::{Claims, RawSource, Source, SourceError};
use std::sync::Arc;

const SIGNATURE: &[u8] = b"QFI\xfb";
const HEADER_BYTES: u64 = 104;
/// QEMU's own limit of the first table.
const L1_BYTES_MAX: u64 = 32 << 20;
/// Kept of the second tables.
const L2_BYTES_KEPT: usize = 16 << 20;
/// Where a cluster or table lies, in an entry.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const READS_AS_ZEROS: u64 = 1;

/// Features that a reader has to know, by their bit.
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const SUBCLUSTERS: u64 = 1 << 4;

#[derive(Debug)]
struct Clusters {
    bits: u32,
    l1: Vec<u64>,
    l2: Cache<Vec<u64>>,
}

pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(SIGNATURE)
}

pub(crate) fn open(file: RawSource) -> Result<impl Source, SourceError> {
    Blocks::of_one(file, read)
}

fn read(file: &RawSource) -> Result<Found<Clusters>, Fault> {
    // A version 2 header is shorter; what stands behind it is not looked at then.
    let mut header = file.part(0, HEADER_BYTES.min(file.size()))?;
    header.resize(HEADER_BYTES as usize, 0);
    let version = be32(&header, 4);
    if !(2..=3).contains(&version) {
        return refused(file.path(), format!("a QCOW image of version {version}: {QEMU}"));
    }
    let features = if version == 3 { be64(&header, 72) } else { 0 };
    let (bits, size) = (be32(&header, 20), be64(&header, 24));
    if !(9..=21).contains(&bits) {
        return damaged(format!("it says that its clusters have 2^{bits} bytes"));
    }
    check_is_read(file, &header, features)?;
    let cluster_bytes = 1_u64 << bits;
    // Each second table fills a cluster.
    let covered = cluster_bytes * (cluster_bytes / 8);
    let (entries, offset) = (u64::from(be32(&header, 36)), be64(&header, 40));
    if entries * 8 > L1_BYTES_MAX || entries < size.div_ceil(covered) {
        return damaged(format!("its first table has {entries} entries for a disk of {size} bytes"));
    }
    let l1 = file.part(offset, entries * 8)?.chunks_exact(8).map(|entry| be64(entry, 0)).collect();
    let l2 = Cache::new(L2_BYTES_KEPT, cluster_bytes as usize);
    Ok(Found {
        what: format!("QCOW2 image (version {version})"),
        block: "cluster",
        table: Clusters { bits, l1, l2 },
        size,
        block_bytes: cluster_bytes,
        is_checksummed: false,
        claims: Claims::default(),
    })
}

/// Refuses what would be read wrongly, or from another file.
fn check_is_read(file: &RawSource, header: &[u8], features: u64) -> Result<(), Fault> {
    match be32(header, 32) {
        0 => {}
        1 => return refused(file.path(), format!("a QCOW2 image that is encrypted (AES): {QEMU}")),
        2 => return refused(file.path(), format!("a QCOW2 image that is encrypted (LUKS): {QEMU}")),
        other => {
            return refused(file.path(), format!("a QCOW2 image that is encrypted (method {other}): {QEMU}"));
        }
    }
    if features & DATA_FILE != 0 {
        let named =
            extension(file, header, 0x4441_5441)?.unwrap_or_else(|| "which it does not name".to_owned());
        return refused(
            file.path(),
            format!(
                "a QCOW2 image whose data are in another file ({named}), and no file is opened because an image names it: {QEMU}"
            ),
        );
    }
    let (backing, len) = (be64(header, 8), u64::from(be32(header, 16)));
    if backing != 0 {
        if len > 1023 {
            return damaged(format!("the name of its backing file has {len} bytes"));
        }
        let named = text(&file.part(backing, len)?);
        return refused(
            file.path(),
            format!(
                "a QCOW2 image that holds what differs from another ({named}), and no file is opened because an image names \
                 it: `qemu-img convert -O raw FILE disk.raw` puts both together, where that file is the right one"
            ),
        );
    }
    if features & CORRUPT != 0 {
        return refused(
            file.path(),
            "a QCOW2 image that QEMU marked as corrupt: `qemu-img check -r all` repairs a copy of it"
                .to_owned(),
        );
    }
    if features & COMPRESSION != 0 && header[104 - 1..].first() != Some(&0) {
        return refused(
            file.path(),
            format!("a QCOW2 image whose clusters are compressed with zstd: {QEMU}"),
        );
    }
    if features & SUBCLUSTERS != 0 {
        return refused(file.path(), format!("a QCOW2 image with subclusters (extended L2 entries): {QEMU}"));
    }
    if features & !(SUBCLUSTERS | COMPRESSION | DATA_FILE | CORRUPT | 1) != 0 {
        return refused(
            file.path(),
            format!("a QCOW2 image with features that this version does not know ({features:#x}): {QEMU}"),
        );
    }
    Ok(())
}

/// A text of the header, by its type.
fn extension(file: &RawSource, header: &[u8], wanted: u32) -> Result<Option<String>, Fault> {
    let mut at = u64::from(be32(header, 100));
    // They stand in the first cluster, and each has eight bytes at least.
    for _ in 0..64 {
        let head = file.part(at, 8)?;
        let (kind, len) = (be32(&head, 0), u64::from(be32(&head, 4)));
        if kind == 0 || len > 4096 {
            return Ok(None);
        }
        if kind == wanted {
            return Ok(Some(text(&file.part(at + 8, len)?)));
        }
        at += 8 + len.next_multiple_of(8);
    }
    Ok(None)
}

impl Table for Clusters {
    fn locate(&self, files: &[RawSource], index: u64) -> Result<Block, Fault> {
        let Some(file) = files.first() else { return damaged("it lies in no file") };
        let per_table = 1_u64 << (self.bits - 3);
        let (at, inside) = (index / per_table, index % per_table);
        let l1 = usize::try_from(at).ok().and_then(|at| self.l1.get(at)).copied();
        let Some(l1) = l1 else { return damaged("no table names it") };
        if l1 & OFFSET == 0 {
            return Ok(Block::Zero);
        }
        let table = self.l2.get_or(l1 & OFFSET, || {
            let table = file.part(l1 & OFFSET, 1 << self.bits)?;
            Ok::<_, Fault>(Arc::new(table.chunks_exact(8).map(|entry| be64(entry, 0)).collect::<Vec<u64>>()))
        })?;
        let entry = usize::try_from(inside).ok().and_then(|at| table.get(at)).copied().unwrap_or_default();
        if entry & COMPRESSED != 0 {
            let offset_bits = 62 - (self.bits - 8);
            let offset = entry & ((1 << offset_bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
            // It ends somewhere in the last of these sectors.
            let len = (sectors + 1) * 512 - offset % 512;
            return Ok(Block::Deflated { file: 0, offset, len, form: Form::Deflate });
        }
        if entry & READS_AS_ZEROS != 0 || entry & OFFSET == 0 {
            return Ok(Block::Zero);
        }
        Ok(Block::Plain { file: 0, offset: entry & OFFSET })
    }
}
