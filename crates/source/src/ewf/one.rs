//! Version 1: sections one behind the other, each with its descriptor in front. Called by `ewf`. Tests:
//! `ewf`.

use super::{Entry, Geometry, Header, Kind, SECTIONS_MAX, Seen, TableAt, TableForm};
use crate::fields::{array, le16, le32, le64, text};
use crate::files::{Fault, damaged, refused};
use crate::inflate::adler32;
use crate::{RawSource, Source};

const SIGNATURE: &[u8] = b"EVF\x09\x0d\x0a\xff\x00";
const HEADER_BYTES: u64 = 13;
const DESCRIPTOR_BYTES: u64 = 76;
const TABLE_HEADER_BYTES: u64 = 24;
/// What tells a compressed chunk in its entry.
const COMPRESSED: u32 = 1 << 31;

pub(super) fn header(head: &[u8]) -> Option<Header> {
    let is_one = head.starts_with(SIGNATURE) && head.len() >= HEADER_BYTES as usize;
    is_one.then(|| Header { version: 1, number: u32::from(le16(head, 9)), method: 1, set: [0; 16] })
}

struct Section {
    kind: String,
    /// Of what is behind the descriptor.
    data: u64,
    len: u64,
    next: u64,
}

fn section(file: &RawSource, at: u64) -> Result<Section, Fault> {
    let descriptor = file.part(at, DESCRIPTOR_BYTES)?;
    if le32(&descriptor, 72) != adler32(&descriptor[..72]) {
        return damaged(format!("what describes its section at byte {at} does not fit its checksum"));
    }
    let kind = text(&descriptor[..16]);
    let (next, size) = (le64(&descriptor, 16), le64(&descriptor, 24));
    // Some writers give the last two no size.
    let len = size.saturating_sub(DESCRIPTOR_BYTES);
    file.check_inside(at + DESCRIPTOR_BYTES, len)?;
    Ok(Section { kind, data: at + DESCRIPTOR_BYTES, len, next })
}

/// Adds what a segment says.
pub(super) fn walk(file: &RawSource, index: usize, seen: &mut Seen) -> Result<(), Fault> {
    let mut at = HEADER_BYTES;
    // Where the chunks of the next table end.
    let mut chunks_end = None;
    for _ in 0..SECTIONS_MAX {
        let section = section(file, at)?;
        match section.kind.as_str() {
            "done" => {
                seen.is_done = true;
                return Ok(());
            }
            "next" => return Ok(()),
            "volume" | "disk" | "data" => geometry(file, &section, seen)?,
            "sectors" => chunks_end = Some(section.data + section.len),
            "table" => table(file, index, &section, chunks_end, seen)?,
            "table2" => copy(file, index, &section, seen)?,
            "digest" | "hash" => hashes(file, &section, seen)?,
            "error2" => errors(file, &section, seen)?,
            "ltree" | "ltypes" => {
                return refused(
                    file.path(),
                    "a logical image, which holds files and no disk; extract those that are wanted",
                );
            }
            "x_encryption" => {
                return refused(
                    file.path(),
                    "an encrypted E01 image (X-Ways): export it without, and load that",
                );
            }
            // Texts of the case, sessions of an optical disk, and what later writers add.
            _ => {}
        }
        if section.next <= at {
            return damaged(format!("its section {} at byte {at} is followed by none", section.kind));
        }
        at = section.next;
    }
    damaged("it has more sections than an image can have")
}

/// The volume section, and its copy in later segments: long, or short as S01 has it.
fn geometry(file: &RawSource, section: &Section, seen: &mut Seen) -> Result<(), Fault> {
    const LONG: u64 = 1052;
    const SHORT: u64 = 94;
    let is_long = section.len >= LONG;
    if section.len < SHORT {
        return damaged(format!("its section {} has {} bytes", section.kind, section.len));
    }
    let data = file.part(section.data, if is_long { LONG } else { SHORT })?;
    let summed = data.len() - 4;
    if le32(&data, summed) != adler32(&data[..summed]) {
        return damaged(format!("its section {} does not fit its checksum", section.kind));
    }
    let set = if is_long { array(&data, 64) } else { [0; 16] };
    let sectors = if is_long { le64(&data, 16) } else { u64::from(le32(&data, 16)) };
    let found = Geometry {
        sectors,
        sector_bytes: u64::from(le32(&data, 12)),
        chunk_sectors: u64::from(le32(&data, 8)),
    };
    if seen.geometry.is_none() {
        (seen.geometry, seen.set) = (Some(found), set);
    } else if set != seen.set && set != [0; 16] && seen.set != [0; 16] {
        return damaged("it is a segment of another image: their identifiers are not the same");
    }
    Ok(())
}

/// How many entries a table has, and from where on its offsets count.
fn table_header(file: &RawSource, section: &Section) -> Result<(u64, u64), Fault> {
    if section.len < TABLE_HEADER_BYTES {
        return damaged(format!("its {} at byte {} is too short", section.kind, section.data));
    }
    let data = file.part(section.data, TABLE_HEADER_BYTES)?;
    if le32(&data, 20) != adler32(&data[..20]) {
        return damaged(format!("its {} at byte {} does not fit its checksum", section.kind, section.data));
    }
    let (entries, base) = (u64::from(le32(&data, 0)), le64(&data, 8));
    if entries * 4 > section.len - TABLE_HEADER_BYTES {
        return damaged(format!(
            "its {} at byte {} has not room for its entries",
            section.kind, section.data
        ));
    }
    Ok((entries, base))
}

fn table(
    file: &RawSource,
    index: usize,
    section: &Section,
    chunks_end: Option<u64>,
    seen: &mut Seen,
) -> Result<(), Fault> {
    // A copy of the same entries stands in for it.
    let (chunks, base) = match (table_header(file, section), spare_header(file, section)) {
        (Ok(found), _) | (Err(Fault::Damaged(_)), Some(found)) => found,
        (Err(fault), None) => return Err(fault),
        (Err(fault), _) => return Err(fault),
    };
    if chunks == 0 {
        return Ok(());
    }
    let first_chunk = seen.tables.last().map_or(0, |last| last.first_chunk + last.chunks);
    let entries = section.data + TABLE_HEADER_BYTES;
    // S01 and the first EnCase have the chunks behind the entries, in the same section.
    let (end, summed) = match chunks_end {
        Some(end) => (end, section.len >= TABLE_HEADER_BYTES + chunks * 4 + 4),
        None => (section.data + section.len, false),
    };
    let form = TableForm::One { base, end, summed };
    seen.tables.push(TableAt { file: index, first_chunk, chunks, entries, copy: None, form });
    Ok(())
}

/// Of a table whose header is damaged, that of the copy behind it.
fn spare_header(file: &RawSource, section_of_table: &Section) -> Option<(u64, u64)> {
    let next = section(file, section_of_table.next).ok().filter(|next| next.kind == "table2")?;
    table_header(file, &next).ok()
}

fn copy(file: &RawSource, index: usize, section: &Section, seen: &mut Seen) -> Result<(), Fault> {
    let Some(table) = seen.tables.last_mut().filter(|table| table.file == index) else { return Ok(()) };
    match table_header(file, section) {
        Ok((chunks, _)) if chunks == table.chunks => table.copy = Some(section.data + TABLE_HEADER_BYTES),
        Err(Fault::File(error)) => return Err(error.into()),
        // It is of use only where the table is not.
        _ => {}
    }
    Ok(())
}

fn hashes(file: &RawSource, section: &Section, seen: &mut Seen) -> Result<(), Fault> {
    let (len, summed) = if section.kind == "digest" { (80, 76) } else { (36, 32) };
    if section.len < len {
        return damaged(format!("its section {} has {} bytes", section.kind, section.len));
    }
    let data = file.part(section.data, len)?;
    if le32(&data, summed) != adler32(&data[..summed]) {
        return damaged(format!("its section {} does not fit its checksum", section.kind));
    }
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // Zeros stand for a hash that was not computed.
    let said = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0).then(|| digits(bytes));
    seen.claims.md5 = said(&data[..16]).or(seen.claims.md5.take());
    if section.kind == "digest" {
        seen.claims.sha1 = said(&data[16..36]);
    }
    Ok(())
}

fn errors(file: &RawSource, section: &Section, seen: &mut Seen) -> Result<(), Fault> {
    const HEADER: u64 = 520;
    const ENTRY: u64 = 8;
    if section.len < HEADER {
        return Ok(());
    }
    let header = file.part(section.data, HEADER)?;
    let count = u64::from(le32(&header, 0)).min((section.len - HEADER) / ENTRY);
    let entries = file.part(section.data + HEADER, count * ENTRY)?;
    let pairs = entries.chunks_exact(ENTRY as usize);
    seen.unread_then = pairs.map(|pair| (u64::from(le32(pair, 0)), u64::from(le32(pair, 4)))).collect();
    Ok(())
}

/// The entries of a table at a place.
pub(super) fn entries(
    file: &RawSource,
    at: u64,
    chunks: u64,
    (base, end): (u64, u64),
    summed: bool,
) -> Result<Vec<Entry>, Fault> {
    let bytes = usize::try_from(chunks * 4).unwrap_or(usize::MAX);
    let data = file.part(at, chunks * 4 + if summed { 4 } else { 0 })?;
    if summed && le32(&data, bytes) != adler32(&data[..bytes]) {
        return damaged(format!(
            "the table of chunks at byte {at} of {} does not fit its checksum",
            file.path().display()
        ));
    }
    let words: Vec<u32> = data[..bytes].chunks_exact(4).map(|word| le32(word, 0)).collect();
    let mut found = Vec::with_capacity(words.len());
    // Beyond 2 GiB without a base of their own, offsets take the bit that tells a compressed chunk: EnCase
    // 6.7 stores all that is there.
    let mut is_over = false;
    for (place, word) in words.iter().enumerate() {
        let (mut offset, mut compressed) = (u64::from(word & !COMPRESSED), word & COMPRESSED != 0);
        if is_over {
            (offset, compressed) = (u64::from(*word), false);
        }
        let following = words.get(place + 1).map(|next| match is_over {
            true => u64::from(*next),
            false => u64::from(next & !COMPRESSED),
        });
        let mut len = following.map_or_else(
            || end.saturating_sub(base.saturating_add(offset)),
            |next| next.saturating_sub(offset),
        );
        if let Some(next) = words.get(place + 1)
            && following < Some(offset)
            && u64::from(*next) > offset
        {
            len = u64::from(*next) - offset;
        }
        if !is_over && offset.saturating_add(len) > u64::from(!COMPRESSED) {
            (is_over, compressed) = (true, false);
        }
        let kind = if compressed { Kind::Compressed } else { Kind::Stored };
        found.push(Entry { offset: base.saturating_add(offset), len, kind });
    }
    Ok(found)
}
