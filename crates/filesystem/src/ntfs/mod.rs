//! NTFS: where a listing finds the records of the $MFT, directories' indices and system files.
//!
//! Owns: the boot sector, and finding all of a fragmented $MFT. The $MFT is read once, from its beginning to
//! its end, and each record's attributes are taken as they come: which record they extend does not matter to
//! the map. Records that are deleted still name their indices, for a listing looks at them too. Never: what
//! indices hold. Called by `map`. Files: `record` has records, attributes, data runs. Tests: there;
//! `hostile`.

mod record;

use crate::Kind;
use crate::error::{MapError, damaged};
use crate::fields::{byte, has, le16, le64};
use crate::run::Run;
use crate::walk::{Stream, Walk};
use record::{Attribute, Record};

/// `$Boot` has as many.
const BOOT_BYTES: u64 = 8 << 10;
/// Two pages that say whether the log is clean.
const LOG_HEAD_BYTES: u64 = 64 << 10;
/// Of an attribute list.
const LIST_BYTES_MAX: u64 = 256 << 10;
const NUMBER_BITS: u64 = (1 << 48) - 1;

/// Types of attributes.
const ATTRIBUTE_LIST: u64 = 0x20;
const DATA: u64 = 0x80;
const INDEX_ALLOCATION: u64 = 0xa0;
const BITMAP: u64 = 0xb0;

/// Numbers of records.
const MFT: u64 = 0;
const MIRROR: u64 = 1;
const LOG: u64 = 2;
const ATTRIBUTE_DEFINITIONS: u64 = 4;
const CLUSTER_BITMAP: u64 = 6;
const SECURITY: u64 = 9;
const UPPER_CASE: u64 = 10;

pub(crate) fn recognise(head: &[u8]) -> Option<Kind> {
    has(head, 3, b"NTFS    ").then_some(Kind::Ntfs)
}

/// What the boot sector says.
#[derive(Debug)]
struct Shape {
    cluster: u64,
    record: u64,
    mft: u64,
    mirror: u64,
    backup: Run,
}

impl Shape {
    fn read(boot: &[u8]) -> Option<Shape> {
        let sector = le16(boot, 11)?;
        let cluster = match byte(boot, 13)? {
            few @ 1..=128 => sector * few,
            // Negative: a power of two of sectors.
            many => sector.checked_shl(u32::try_from(256 - many).ok()?)?,
        };
        let record = match byte(boot, 64)? {
            clusters @ 1..=127 => cluster * clusters,
            power => 1_u64.checked_shl(u32::try_from(256 - power).ok()?)?,
        };
        let fits = sector.is_power_of_two()
            && (256..=4096).contains(&sector)
            && cluster.is_power_of_two()
            && cluster <= 2 << 20
            && record.is_power_of_two()
            && (512..=64 << 10).contains(&record);
        if !fits {
            return None;
        }
        let at = |field| le64(boot, field)?.checked_mul(cluster);
        let backup = Run::new(le64(boot, 40)?.checked_mul(sector)?, sector);
        Some(Shape { cluster, record, mft: at(48)?, mirror: at(56)?, backup })
    }
}

pub(crate) fn map(walk: &mut Walk<'_>, head: &[u8]) -> Result<(), MapError> {
    let Some(shape) = Shape::read(head) else { return damaged("its boot sector contradicts itself") };
    if shape.backup.offset >= walk.size() {
        walk.gap("it goes on behind the end of the disk");
    }
    walk.tell(&[Run::new(0, BOOT_BYTES), shape.backup, Run::new(shape.mft, shape.record)]);
    let mft = mft_runs(walk, &shape)?;
    walk.tell(&mft);
    let mut stream = Stream::new(&mft, shape.record as usize);
    while let Some((position, mut bytes)) = stream.next(walk)? {
        let mut runs = Vec::new();
        let records = bytes.chunks_exact_mut(shape.record as usize);
        for (number, bytes) in (position / shape.record..).zip(records) {
            if let Some(record) = Record::read(bytes) {
                note(walk, &shape, number, &record, &mut runs);
            }
        }
        runs.sort_unstable();
        walk.tell(&runs);
    }
    Ok(())
}

/// Takes what is metadata from a record, and whose the rest is.
fn note(walk: &mut Walk<'_>, shape: &Shape, number: u64, record: &Record<'_>, runs: &mut Vec<Run>) {
    let file = match record.base() {
        0 => number,
        base => base,
    };
    for attribute in record.attributes() {
        let Some(mapped) = attribute.mapped() else { continue };
        let is_system = match (file, attribute.kind) {
            (_, INDEX_ALLOCATION | ATTRIBUTE_LIST) => true,
            (MFT, BITMAP) | (SECURITY, DATA) => true,
            (_, BITMAP) => record.is_directory(),
            (MIRROR | LOG | ATTRIBUTE_DEFINITIONS | CLUSTER_BITMAP | UPPER_CASE, DATA) => true,
            _ => false,
        };
        let is_content = attribute.kind == DATA && !attribute.is_named && record.is_used();
        let limit = if file == LOG { LOG_HEAD_BYTES } else { u64::MAX };
        for (position, run) in mapped.runs(shape.cluster) {
            if is_system && position < limit {
                runs.push(Run::new(run.offset, run.bytes.min(limit - position)));
            }
            if is_content {
                walk.files.add(file, position, run);
            }
        }
    }
}

/// Where the $MFT lies, all of it.
fn mft_runs(walk: &mut Walk<'_>, shape: &Shape) -> Result<Vec<Run>, MapError> {
    let mut bytes = walk.must_read(shape.mft, shape.record)?;
    // Putting the fixups back changes the bytes, so that is tried on a copy.
    if Record::read(&mut bytes.clone()).is_none() {
        walk.gap("the first record of the $MFT is damaged: its mirror's is taken");
        walk.tell(&[Run::new(shape.mirror, shape.record)]);
        bytes = walk.must_read(shape.mirror, shape.record)?;
    }
    let Some(record) = Record::read(&mut bytes) else {
        return damaged("neither the first record of the $MFT nor its mirror's is whole");
    };
    let data = |attribute: &Attribute<'_>| attribute.kind == DATA && !attribute.is_named;
    let Some(mapped) = record.attributes().filter(data).find_map(|data| data.mapped()) else {
        return damaged("the first record of the $MFT does not say where the others are");
    };
    let size = mapped.size;
    let mut runs: Vec<Run> = mapped.runs(shape.cluster).map(|(_, run)| run).collect();
    if let Some(list) = record.attributes().find(|attribute| attribute.kind == ATTRIBUTE_LIST) {
        let list = list_of(walk, shape, &list)?;
        for (number, first_cluster) in extensions(&list) {
            match extension(walk, shape, &runs, number, first_cluster)? {
                Some(more) => runs.extend(more),
                None => walk.gap("a part of the $MFT cannot be found"),
            }
        }
    }
    Ok(cut(walk, runs, size.next_multiple_of(shape.record)))
}

/// The first bytes of runs, those in the file system.
fn cut(walk: &Walk<'_>, runs: Vec<Run>, mut bytes: u64) -> Vec<Run> {
    let whole = 0..walk.size();
    let mut kept = Vec::new();
    for run in runs {
        let Some(mut run) = run.within(&whole) else { continue };
        run.bytes = run.bytes.min(bytes);
        bytes -= run.bytes;
        if run.bytes > 0 {
            kept.push(run);
        }
    }
    kept
}

/// What an attribute list holds, wherever it does.
fn list_of(walk: &mut Walk<'_>, shape: &Shape, list: &Attribute<'_>) -> Result<Vec<u8>, MapError> {
    if let Some(value) = list.value() {
        return Ok(value.to_vec());
    }
    let Some(mapped) = list.mapped() else { return Ok(Vec::new()) };
    let runs = mapped.runs(shape.cluster).map(|(_, run)| run).collect();
    let runs = cut(walk, runs, mapped.size.min(LIST_BYTES_MAX));
    walk.tell(&runs);
    Ok(walk.together(&[runs])?.remove(0))
}

/// The records that hold more of the $MFT's runs, and the first cluster of which.
fn extensions(list: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut rest = list;
    // An entry: type, its length, the name's length, the first cluster, the record.
    while let (Some(kind), Some(len), Some(first), Some(record)) =
        (le16(rest, 0), le16(rest, 4), le64(rest, 8), le64(rest, 16))
    {
        if kind == DATA && byte(rest, 6) == Some(0) && record & NUMBER_BITS != MFT {
            found.push((record & NUMBER_BITS, first));
        }
        match usize::try_from(len).ok().and_then(|len| rest.get(len..)) {
            Some(behind) if len >= 24 => rest = behind,
            _ => break,
        }
    }
    found.sort_unstable_by_key(|(_, first)| *first);
    found
}

/// The runs in one of those records, which lies in a part of the $MFT that is known by then.
fn extension(
    walk: &mut Walk<'_>,
    shape: &Shape,
    known: &[Run],
    number: u64,
    first_cluster: u64,
) -> Result<Option<Vec<Run>>, MapError> {
    let Some(mut position) = number.checked_mul(shape.record) else { return Ok(None) };
    for run in known {
        if position.saturating_add(shape.record) <= run.bytes {
            let place = Run::new(run.offset.saturating_add(position), shape.record);
            let mut bytes = walk.together(&[vec![place]])?.remove(0);
            let Some(record) = Record::read(&mut bytes) else { return Ok(None) };
            let data = record.attributes().filter(|attribute| attribute.kind == DATA && !attribute.is_named);
            let mapped = data.filter_map(|data| data.mapped());
            let mut fitting = mapped.filter(|mapped| mapped.first_cluster == first_cluster);
            let runs = fitting.next().map(|it| it.runs(shape.cluster).map(|(_, run)| run).collect());
            return Ok(runs);
        }
        match position.checked_sub(run.bytes) {
            Some(behind) => position = behind,
            // It is torn between two runs.
            None => return Ok(None),
        }
    }
    Ok(None)
}
