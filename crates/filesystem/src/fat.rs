//! FAT12, FAT16, FAT32: where a listing finds the table, the root and the other directories.
//!
//! Owns: the boot sector, which of the three it is, and what an entry looks like. Never: names. Of several
//! copies of the table the one in use is metadata, the others are read by nobody. Called by `map`. Tests:
//! `hostile`.

use crate::Kind;
use crate::clusters::{Clusters, Entry, Of, Parse, Width, descend};
use crate::error::{MapError, damaged};
use crate::fields::{byte, has, le16, le32};
use crate::run::Run;
use crate::walk::Walk;

const ENTRY_BYTES: usize = 32;
/// Bits of an entry's attributes.
const LABEL: u64 = 0x08;
const DIRECTORY: u64 = 0x10;
/// Together they say that the entry is a part of a long name.
const LONG_NAME: u64 = 0x0f;
const DELETED: u64 = 0xe5;

pub(crate) fn recognise(head: &[u8]) -> Option<Kind> {
    Some(Shape::read(head)?.kind)
}

/// What the boot sector says.
#[derive(Debug)]
struct Shape {
    kind: Kind,
    reserved: u64,
    table: Run,
    root: Run,
    /// Of FAT32.
    root_cluster: u64,
    heap: u64,
    cluster: u64,
    clusters: u64,
}

impl Shape {
    fn read(boot: &[u8]) -> Option<Shape> {
        let is_boot = has(boot, 510, &[0x55, 0xaa]) && (has(boot, 0, &[0xeb]) || has(boot, 0, &[0xe9]));
        let (sector, in_cluster) = (le16(boot, 11)?, byte(boot, 13)?);
        let (reserved, tables) = (le16(boot, 14)? * sector, byte(boot, 16)?);
        let fits = is_boot
            && sector.is_power_of_two()
            && (512..=4096).contains(&sector)
            && in_cluster.is_power_of_two()
            && reserved > 0
            && (1..=8).contains(&tables);
        if !fits {
            return None;
        }
        let or = |short: u64, long: u64| if short == 0 { long } else { short };
        let sectors = or(le16(boot, 19)?, le32(boot, 32)?);
        let short_table = le16(boot, 22)?;
        let table_bytes = or(short_table, le32(boot, 36)?) * sector;
        let root = Run::new(reserved + tables * table_bytes, le16(boot, 17)? * ENTRY_BYTES as u64);
        let heap = root.end().next_multiple_of(sector);
        let cluster = sector * in_cluster;
        let clusters = (sectors * sector).checked_sub(heap)? / cluster;
        let kind = match clusters {
            _ if table_bytes == 0 || clusters == 0 => return None,
            _ if short_table == 0 => Kind::Fat32,
            ..=4084 => Kind::Fat12,
            4085..=65524 => Kind::Fat16,
            _ => return None,
        };
        // Which copy is in use, where not all are.
        let flags = if kind == Kind::Fat32 { le16(boot, 40)? } else { 0 };
        let active = if flags & 0x80 != 0 { (flags & 0x0f).min(tables - 1) } else { 0 };
        let table = Run::new(reserved + active * table_bytes, table_bytes);
        let root_cluster = if kind == Kind::Fat32 { le32(boot, 44)? } else { 0 };
        Some(Shape { kind, reserved, table, root, root_cluster, heap, cluster, clusters })
    }
}

pub(crate) fn map(walk: &mut Walk<'_>, head: &[u8]) -> Result<(), MapError> {
    let Some(shape) = Shape::read(head) else { return damaged("its boot sector contradicts itself") };
    if shape.heap + shape.clusters * shape.cluster > walk.size() {
        walk.gap("it goes on behind the end of the disk");
    }
    walk.tell(&[Run::new(0, shape.reserved), shape.table, shape.root]);
    let (width, parse): (_, Parse) = match shape.kind {
        Kind::Fat12 => (Width::Bits12, parse_narrow),
        Kind::Fat16 => (Width::Bits16, parse_narrow),
        _ => (Width::Bits28, parse_wide),
    };
    let mut clusters = Clusters::new(shape.table, width, shape.heap, shape.cluster, shape.clusters);
    let root = if shape.kind == Kind::Fat32 {
        let first = shape.root_cluster;
        vec![Entry { of: Of::Directory, first, bytes: None, is_contiguous: false, is_deleted: false }]
    } else {
        parse(&walk.together(&[vec![shape.root]])?.remove(0), false)
    };
    descend(walk, &mut clusters, root, parse)
}

fn parse_narrow(content: &[u8], is_deleted: bool) -> Vec<Entry> {
    entries(content, is_deleted, |_| Some(0))
}

fn parse_wide(content: &[u8], is_deleted: bool) -> Vec<Entry> {
    entries(content, is_deleted, |entry| le16(entry, 20))
}

fn entries(content: &[u8], is_deleted: bool, high: fn(&[u8]) -> Option<u64>) -> Vec<Entry> {
    // What is there by now may be something else.
    if is_deleted && !has(content, 0, b".          ") {
        return Vec::new();
    }
    let used = content.chunks_exact(ENTRY_BYTES).take_while(|entry| entry[0] != 0);
    let of = |entry: &[u8]| {
        let attributes = byte(entry, 11)?;
        if attributes & LONG_NAME == LONG_NAME || attributes & LABEL != 0 || entry[0] == b'.' {
            return None;
        }
        let is_directory = attributes & DIRECTORY != 0;
        Some(Entry {
            of: if is_directory { Of::Directory } else { Of::File },
            first: (high(entry)? << 16) | le16(entry, 26)?,
            bytes: if is_directory { None } else { Some(le32(entry, 28)?) },
            is_contiguous: false,
            is_deleted: is_deleted || u64::from(entry[0]) == DELETED,
        })
    };
    used.filter_map(of).collect()
}
