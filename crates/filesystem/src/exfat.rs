//! exFAT: where a listing finds the table, the bitmap, the names' table and the directories.
//!
//! Owns: the boot sector, and what entries look like. Never: names, checksums of entries. Called by `map`.
//! Tests: `hostile`.

use crate::Kind;
use crate::clusters::{Clusters, Entry, Of, Width, descend};
use crate::error::{MapError, damaged};
use crate::fields::{byte, has, le32, le64};
use crate::run::Run;
use crate::walk::Walk;

const ENTRY_BYTES: usize = 32;
/// The boot region and its copy.
const BOOT_SECTORS: u64 = 24;
/// Types of entries, without the bit that says that they are in use.
const BITMAP: u8 = 0x01;
const UPPER_CASE: u8 = 0x02;
const FILE: u8 = 0x05;
const STREAM: u8 = 0x40;
const IN_USE: u8 = 0x80;
const DIRECTORY: u64 = 0x10;
/// Of a stream's flags.
const NO_CHAIN: u64 = 0x02;

pub(crate) fn recognise(head: &[u8]) -> Option<Kind> {
    has(head, 3, b"EXFAT   ").then_some(Kind::ExFat)
}

pub(crate) fn map(walk: &mut Walk<'_>, head: &[u8]) -> Result<(), MapError> {
    let Some((mut clusters, root_cluster, boot)) = shape(head) else {
        return damaged("its boot sector contradicts itself");
    };
    if clusters.heap + clusters.count * clusters.cluster > walk.size() {
        walk.gap("it goes on behind the end of the disk");
    }
    walk.tell(&[boot, clusters.table]);
    let root = Entry {
        of: Of::Directory,
        first: root_cluster,
        bytes: None,
        is_contiguous: false,
        is_deleted: false,
    };
    descend(walk, &mut clusters, vec![root], parse)
}

/// What the boot sector says: the clusters, which one is the root, the boot region.
fn shape(boot: &[u8]) -> Option<(Clusters, u64, Run)> {
    let shift = |at| byte(boot, at).and_then(|shift| u32::try_from(shift).ok());
    let (sector_shift, cluster_shift) = (shift(108)?, shift(109)?);
    if !(9..=12).contains(&sector_shift) || sector_shift + cluster_shift > 25 {
        return None;
    }
    let sectors = |at| Some(le32(boot, at)? << sector_shift);
    // Bit 0 of the flags: the second table is in use.
    let second = byte(boot, 106)? & 1 == 1 && byte(boot, 110)? == 2;
    let table_bytes = sectors(84)?;
    let table = Run::new(sectors(80)? + if second { table_bytes } else { 0 }, table_bytes);
    let (heap, count) = (sectors(88)?, le32(boot, 92)?);
    if table_bytes == 0 || count == 0 || heap == 0 {
        return None;
    }
    let clusters = Clusters::new(table, Width::Bits32, heap, 1 << (sector_shift + cluster_shift), count);
    Some((clusters, le32(boot, 96)?, Run::new(0, BOOT_SECTORS << sector_shift)))
}

fn parse(content: &[u8], is_deleted: bool) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut is_directory = false;
    for entry in content.chunks_exact(ENTRY_BYTES) {
        let kind = entry[0] & !IN_USE;
        let of = match kind {
            // The end of a directory; what is behind it was never used.
            0 => break,
            FILE => {
                is_directory = byte(entry, 4).unwrap_or(0) & DIRECTORY != 0;
                continue;
            }
            BITMAP | UPPER_CASE => Of::System,
            STREAM if is_directory => Of::Directory,
            STREAM => Of::File,
            _ => continue,
        };
        let flags = byte(entry, 1).unwrap_or(0);
        found.extend(le32(entry, 20).zip(le64(entry, 24)).map(|(first, bytes)| Entry {
            of,
            first,
            bytes: Some(bytes),
            is_contiguous: kind == STREAM && flags & NO_CHAIN != 0,
            is_deleted: is_deleted || entry[0] & IN_USE == 0,
        }));
    }
    found
}
