//! Version 2: sections whose descriptors stand behind them, so that a segment is read from its end. Called by
//! `ewf`. Tests: `ewf`.

use super::{Entry, Header, Kind, SECTIONS_MAX, Seen, TableAt, TableForm};
use crate::fields::{array, le16, le32, le64};
use crate::files::{Fault, damaged, refused};
use crate::inflate::{Form, adler32, inflate};
use crate::{RawSource, Source};

const SIGNATURE: &[u8] = b"EVF2\x0d\x0a\x81\x00";
const HEADER_BYTES: u64 = 32;
const DESCRIPTOR_BYTES: u64 = 64;
const TABLE_HEADER_BYTES: u64 = 32;
const ENTRY_BYTES: u64 = 16;
/// Texts are short.
const TEXT_BYTES_MAX: usize = 4 << 20;
const DEFLATE: u16 = 1;

pub(super) fn header(head: &[u8]) -> Option<Header> {
    let is_one = head.starts_with(SIGNATURE) && head.len() >= HEADER_BYTES as usize;
    is_one.then(|| Header {
        version: 2,
        number: le32(head, 12),
        method: le16(head, 10),
        set: array(head, 16),
    })
}

struct Section {
    kind: u32,
    is_encrypted: bool,
    /// Where its data begins; padding is behind them.
    data: u64,
    len: u64,
    previous: u64,
}

/// The section whose descriptor is at this byte.
fn section(file: &RawSource, at: u64) -> Result<Section, Fault> {
    let descriptor = file.part(at, DESCRIPTOR_BYTES)?;
    if le32(&descriptor, 60) != adler32(&descriptor[..60]) {
        return damaged(format!("what describes its section at byte {at} does not fit its checksum"));
    }
    let (size, padding) = (le64(&descriptor, 16), u64::from(le32(&descriptor, 28)));
    let data = at.checked_sub(size).filter(|data| *data >= HEADER_BYTES && padding <= size);
    let Some(data) = data else {
        return damaged(format!("its section before byte {at} has {size} bytes"));
    };
    Ok(Section {
        kind: le32(&descriptor, 0),
        is_encrypted: le32(&descriptor, 4) & 2 != 0,
        data,
        len: size - padding,
        previous: le64(&descriptor, 8),
    })
}

/// Adds what a segment says.
pub(super) fn walk(file: &RawSource, index: usize, header: &Header, seen: &mut Seen) -> Result<(), Fault> {
    let mut sections = Vec::new();
    let mut at = file.size().saturating_sub(DESCRIPTOR_BYTES);
    while at > 0 {
        if sections.len() >= SECTIONS_MAX {
            return damaged("it has more sections than an image can have");
        }
        let section = section(file, at)?;
        if section.previous >= at {
            return damaged(format!("its section at byte {at} is behind the one that it names before it"));
        }
        at = section.previous;
        sections.push(section);
    }
    match sections.first().map(|last| last.kind) {
        Some(0x0f) => seen.is_done = true,
        Some(0x0d) => {}
        _ => return damaged("its last section is not the end of a segment: is it cut off?"),
    }
    for section in sections.iter().rev() {
        if section.is_encrypted || section.kind == 0x0b {
            return refused(
                file.path(),
                "an encrypted Ex01 image: export it as E01 with the program that made it, and load that",
            );
        }
        match section.kind {
            0x01 => device(file, section, header, seen)?,
            0x02 => case(file, section, header, seen)?,
            0x04 => table(file, index, section, header, seen)?,
            0x08 => seen.claims.md5 = hash(file, section, 16)?.or(seen.claims.md5.take()),
            0x09 => seen.claims.sha1 = hash(file, section, 20)?.or(seen.claims.sha1.take()),
            0x20..=0x2f => {
                return refused(file.path(), "a logical image (Lx01), which holds files and no disk");
            }
            _ => {}
        }
    }
    Ok(())
}

/// The fields of a text: names on its third line, values on its fourth, with tabs between them.
fn fields(file: &RawSource, section: &Section, header: &Header) -> Result<Vec<(String, String)>, Fault> {
    let packed = file.part(section.data, section.len.min(TEXT_BYTES_MAX as u64))?;
    let mut room = vec![0; TEXT_BYTES_MAX];
    let bytes = match header.method {
        _ if packed.starts_with(b"\xff\xfe") => &packed[..],
        DEFLATE => match inflate(Form::Zlib, &packed, &mut room) {
            Ok(came) => &room[..came],
            Err(why) => return damaged(format!("a text of it cannot be read: {why}")),
        },
        _ => return method_is_not_read(file),
    };
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| le16(pair, 0)).collect();
    let text = String::from_utf16_lossy(&units);
    let mut lines = text.trim_start_matches('\u{feff}').split('\n').skip(2);
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    Ok(names
        .split('\t')
        .zip(values.split('\t'))
        .map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned()))
        .collect())
}

fn method_is_not_read<T>(file: &RawSource) -> Result<T, Fault> {
    refused(
        file.path(),
        "an Ex01 image whose chunks are compressed with bzip2: export it as E01, and load that",
    )
}

fn number(fields: &[(String, String)], name: &str) -> Option<u64> {
    fields.iter().find(|(field, _)| field == name)?.1.parse().ok()
}

fn device(file: &RawSource, section: &Section, header: &Header, seen: &mut Seen) -> Result<(), Fault> {
    let fields = fields(file, section, header)?;
    let geometry = seen.geometry.get_or_insert_default();
    geometry.sectors = number(&fields, "ts").unwrap_or(geometry.sectors);
    geometry.sector_bytes = number(&fields, "bp").unwrap_or(geometry.sector_bytes);
    Ok(())
}

fn case(file: &RawSource, section: &Section, header: &Header, seen: &mut Seen) -> Result<(), Fault> {
    let fields = fields(file, section, header)?;
    let geometry = seen.geometry.get_or_insert_default();
    geometry.chunk_sectors = number(&fields, "sb").unwrap_or(geometry.chunk_sectors);
    Ok(())
}

fn hash(file: &RawSource, section: &Section, len: usize) -> Result<Option<String>, Fault> {
    if section.len < len as u64 + 4 {
        return Ok(None);
    }
    let data = file.part(section.data, len as u64 + 4)?;
    if le32(&data, len) != adler32(&data[..len]) {
        return damaged("a hash that it claims does not fit its checksum");
    }
    let is_said = data[..len].iter().any(|byte| *byte != 0);
    Ok(is_said.then(|| data[..len].iter().map(|byte| format!("{byte:02x}")).collect()))
}

fn table(
    file: &RawSource,
    index: usize,
    section: &Section,
    header: &Header,
    seen: &mut Seen,
) -> Result<(), Fault> {
    if section.len < TABLE_HEADER_BYTES {
        return damaged(format!("its table at byte {} is too short", section.data));
    }
    let data = file.part(section.data, TABLE_HEADER_BYTES)?;
    if le32(&data, 16) != adler32(&data[..16]) {
        return damaged(format!("its table at byte {} does not fit its checksum", section.data));
    }
    let (first_chunk, chunks) = (le64(&data, 0), u64::from(le32(&data, 8)));
    if chunks * ENTRY_BYTES > section.len - TABLE_HEADER_BYTES || first_chunk > 1 << 48 {
        return damaged(format!("its table at byte {} has not room for its entries", section.data));
    }
    if chunks == 0 {
        return Ok(());
    }
    seen.tables.push(TableAt {
        file: index,
        first_chunk,
        chunks,
        entries: section.data + TABLE_HEADER_BYTES,
        copy: None,
        form: TableForm::Two { method: header.method },
    });
    Ok(())
}

/// The entries of a table at a place.
pub(super) fn entries(file: &RawSource, at: u64, chunks: u64, method: u16) -> Result<Vec<Entry>, Fault> {
    let bytes = usize::try_from(chunks * ENTRY_BYTES).unwrap_or(usize::MAX);
    let data = file.part(at, chunks * ENTRY_BYTES + 4)?;
    if le32(&data, bytes) != adler32(&data[..bytes]) {
        return damaged(format!(
            "the table of chunks at byte {at} of {} does not fit its checksum",
            file.path().display()
        ));
    }
    let mut found = Vec::with_capacity(bytes / ENTRY_BYTES as usize);
    for entry in data[..bytes].chunks_exact(ENTRY_BYTES as usize) {
        let flags = le32(entry, 12);
        let kind = match (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0) {
            (true, _, true) => Kind::Pattern,
            (true, _, false) if method != DEFLATE => return method_is_not_read(file),
            (true, _, false) => Kind::Compressed,
            (false, true, _) => Kind::Stored,
            (false, false, _) => Kind::Bare,
        };
        found.push(Entry { offset: le64(entry, 0), len: u64::from(le32(entry, 8)), kind });
    }
    Ok(found)
}
