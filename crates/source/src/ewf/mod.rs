//! E01, S01 and Ex01 images: the Expert Witness Compression Format of EnCase, FTK Imager, ewfacquire and
//! others, in both versions.
//!
//! Owns: opening a set of segments by any one of them, what it claims of the disk, and where each chunk lies.
//! Never: reading chunks (`blocks`). Invariant: of a set that is opened every segment is there, in its place
//! and of the same set, and its tables name every chunk of the disk. Each table is read when it is asked for,
//! and compared with its checksum. Written by libewf's description of the formats. Called by `open`. Files:
//! `names` has the names of segments, `one` and `two` the versions. Tests: below, `lab/tests/sources.rs`.

mod names;
mod one;
mod two;

use crate::blocks::{Block, Blocks, Found, Table};
use crate::cache::Cache;
use crate::files::{Fault, damaged};
use crate::{Claims, RawSource, Source, SourceError};
use std::path::Path;
use std::sync::Arc;

/// Kept of the tables of chunks.
const TABLE_BYTES_KEPT: usize = 32 << 20;
/// One entry of a table as it is kept.
const ENTRY_BYTES: usize = size_of::<Entry>();
/// The sections of one segment: more are a loop.
const SECTIONS_MAX: usize = 1 << 20;
/// EnCase writes 32,768 sectors at most.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// What a segment says of itself in its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    version: u8,
    number: u32,
    /// Of version 2: how its chunks are compressed.
    method: u16,
    /// Of version 2: what all segments of a set share.
    set: [u8; 16],
}

impl Header {
    fn parse(head: &[u8]) -> Option<Header> {
        one::header(head).or_else(|| two::header(head))
    }
}

/// How large the disk is, and its chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Geometry {
    sectors: u64,
    sector_bytes: u64,
    chunk_sectors: u64,
}

/// What all segments say together.
#[derive(Debug, Default)]
struct Seen {
    geometry: Option<Geometry>,
    /// What all segments of a set share; zeros where it is not said.
    set: [u8; 16],
    tables: Vec<TableAt>,
    claims: Claims,
    /// In sectors.
    unread_then: Vec<(u64, u64)>,
    /// A segment says that it is the last.
    is_done: bool,
}

/// A table of chunks, and where it lies.
#[derive(Clone, Debug)]
struct TableAt {
    file: usize,
    first_chunk: u64,
    chunks: u64,
    /// Where its entries begin, and a copy of them.
    entries: u64,
    copy: Option<u64>,
    form: TableForm,
}

#[derive(Clone, Copy, Debug)]
enum TableForm {
    /// Version 1: offsets from `base` on; the last chunk ends at `end`. `summed`: a checksum is behind the
    /// entries.
    One { base: u64, end: u64, summed: bool },
    /// Version 2.
    Two { method: u16 },
}

/// Where one chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    offset: u64,
    len: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// With its checksum behind it.
    Stored,
    /// Without.
    Bare,
    Compressed,
    /// The offset is what it is filled with.
    Pattern,
}

/// Where the chunks of a set are.
#[derive(Debug)]
struct Chunks {
    /// By their first chunk, ascending.
    tables: Vec<TableAt>,
    chunk_bytes: u64,
    disk_bytes: u64,
    read: Cache<Vec<Entry>>,
}

/// Whether these first bytes are those of a segment.
pub(crate) fn is_one(head: &[u8]) -> bool {
    Header::parse(head).is_some()
}

/// The image that a segment belongs to.
pub(crate) fn open(given: &RawSource) -> Result<impl Source + use<>, SourceError> {
    let path = given.path().to_path_buf();
    let header = header_of(given)?;
    let name = names::Name::of(&path, &header);
    let (mut files, mut seen) = (Vec::new(), Seen::default());
    let mut number = 1;
    while !seen.is_done {
        let file = segment(&path, given, name.as_ref(), number)?;
        let found = header_of(&file)?;
        check_belongs(&file, &found, &header, number)?;
        let index = files.len();
        let walked = match found.version {
            1 => one::walk(&file, index, &mut seen),
            _ => two::walk(&file, index, &found, &mut seen),
        };
        walked.map_err(|fault| fault.of(file.path()))?;
        files.push(file);
        number += 1;
    }
    let kind = name.map_or_else(|| "E01".to_owned(), |name| name.kind());
    let found = put_together(seen, files.len(), &kind).map_err(|fault| fault.of(&path))?;
    Blocks::new(path, files, found)
}

fn header_of(file: &RawSource) -> Result<Header, SourceError> {
    let mut head = [0; 32];
    let len = usize::try_from(file.size()).map_or(32, |size| size.min(32));
    file.read_exact_at(0, &mut head[..len])?;
    Header::parse(&head[..len]).ok_or_else(|| SourceError::Damaged {
        path: file.path().to_path_buf(),
        what: "it does not begin as a segment of an E01 image".to_owned(),
    })
}

/// The segment of this number, by its name.
fn segment(
    path: &Path,
    given: &RawSource,
    name: Option<&names::Name>,
    number: u32,
) -> Result<RawSource, SourceError> {
    let Some(name) = name else {
        // Whatever it is called, it may be all that there is.
        if number == 1 && header_of(given)?.number == 1 {
            return given.part_beside(path);
        }
        let what = format!(
            "segment {} of an image by its content, and not by its name, so that the others cannot be found: call them \
             as they were called, NAME.E01, NAME.E02 and so on",
            header_of(given)?.number
        );
        return Err(SourceError::Refused { path: path.to_path_buf(), why: what });
    };
    given.part_beside(&name.segment(path, number))
}

fn check_belongs(file: &RawSource, found: &Header, given: &Header, number: u32) -> Result<(), SourceError> {
    let refused = |why: String| Err(SourceError::Refused { path: file.path().to_path_buf(), why });
    if found.number != number {
        return refused(format!(
            "segment {} of an image by its content, where its name says {number}: the segments are named in another order",
            found.number
        ));
    }
    if (found.version, found.set) != (given.version, given.set) {
        return refused("a segment of another image".to_owned());
    }
    Ok(())
}

/// What a set is, if its parts make one disk.
fn put_together(seen: Seen, segments: usize, kind: &str) -> Result<Found<Chunks>, Fault> {
    let Seen { geometry, tables, mut claims, unread_then, .. } = seen;
    let Some(Geometry { sectors, sector_bytes, chunk_sectors }) = geometry else {
        return damaged("it does not say how large its disk is");
    };
    let chunk_bytes = chunk_sectors.saturating_mul(sector_bytes);
    if chunk_bytes == 0 || chunk_bytes > CHUNK_BYTES_MAX {
        return damaged(format!("it says that a chunk has {chunk_sectors} sectors of {sector_bytes} bytes"));
    }
    let named: u64 = tables.iter().map(|table| table.chunks).fold(0, u64::saturating_add);
    // Who writes into a pipe may not know the size before the end.
    let size = match sectors.saturating_mul(sector_bytes) {
        0 => named.saturating_mul(chunk_bytes),
        size => size,
    };
    let gap = tables.windows(2).find(|two| two[0].first_chunk + two[0].chunks != two[1].first_chunk);
    if named < size.div_ceil(chunk_bytes)
        || gap.is_some()
        || tables.first().is_some_and(|t| t.first_chunk > 0)
    {
        return damaged(format!(
            "its disk has {} chunks, and its tables name {named} of them",
            size.div_ceil(chunk_bytes)
        ));
    }
    let in_bytes = |(first, count): (u64, u64)| {
        let place = |sector: u64| sector.saturating_mul(sector_bytes).min(size);
        place(first)..place(first.saturating_add(count))
    };
    claims.unread_then = unread_then.into_iter().map(in_bytes).filter(|range| !range.is_empty()).collect();
    let largest = tables.iter().map(|table| table.chunks).max().unwrap_or(1);
    let largest = usize::try_from(largest).unwrap_or(usize::MAX).saturating_mul(ENTRY_BYTES);
    let parts = if segments == 1 { "1 segment".to_owned() } else { format!("{segments} segments") };
    Ok(Found {
        what: format!("{kind} image, {parts}"),
        block: "chunk",
        table: Chunks { tables, chunk_bytes, disk_bytes: size, read: Cache::new(TABLE_BYTES_KEPT, largest) },
        size,
        block_bytes: chunk_bytes,
        is_checksummed: true,
        claims,
    })
}

impl Table for Chunks {
    fn locate(&self, files: &[RawSource], index: u64) -> Result<Block, Fault> {
        let at = self.tables.partition_point(|table| table.first_chunk <= index);
        let Some(table) = at.checked_sub(1).map(|at| &self.tables[at]) else {
            return damaged("no table names it");
        };
        let entries =
            self.read.get_or(table.first_chunk, || read(&files[table.file], table).map(Arc::new))?;
        let entry = usize::try_from(index - table.first_chunk).ok().and_then(|at| entries.get(at));
        let Some(Entry { offset, len, kind }) = entry.copied() else { return damaged("no table names it") };
        let wanted = (self.disk_bytes - index * self.chunk_bytes).min(self.chunk_bytes);
        let file = table.file;
        match kind {
            Kind::Stored if len >= wanted + 4 => Ok(Block::Summed { file, offset }),
            Kind::Bare if len >= wanted => Ok(Block::Plain { file, offset }),
            Kind::Stored | Kind::Bare => damaged(format!("it is stored in {len} bytes")),
            Kind::Compressed => Ok(Block::Deflated { file, offset, len, form: crate::inflate::Form::Zlib }),
            Kind::Pattern => Ok(Block::Pattern(offset.to_le_bytes())),
        }
    }
}

/// The entries of a table, or those of its copy.
fn read(file: &RawSource, table: &TableAt) -> Result<Vec<Entry>, Fault> {
    let entries = |at: u64| match table.form {
        TableForm::One { base, end, summed } => one::entries(file, at, table.chunks, (base, end), summed),
        TableForm::Two { method } => two::entries(file, at, table.chunks, method),
    };
    match (entries(table.entries), table.copy) {
        (Err(Fault::Damaged(_)), Some(copy)) => entries(copy),
        (read, _) => read,
    }
}
