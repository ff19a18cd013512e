//! Which parts a disk is divided into: GPT, MBR with logical partitions, or none.
//!
//! Owns: reading the tables. A GPT is believed when its checksums fit, the one at the end of the disk when
//! the first is damaged. Never: more than `PARTITIONS_MAX` of them; what is behind the end of the disk.
//! Called by who fills a volume. Tests: here.

use std::fmt;
use std::ops::Range;

use crate::error::MapError;
use crate::fields::{byte, has, le32, le64};
use crate::run::Run;
use crate::walk::ReadAt;
use crate::{HEAD_BYTES, recognise};

const PARTITIONS_MAX: usize = 1024;
/// What is read of a table: 128 entries of 128 bytes are usual.
const TABLE_BYTES_MAX: u64 = 1 << 20;
/// Of what the tables in logical partitions lead to.
const LOGICAL_MAX: usize = 256;
const SECTOR_SIZES: [u64; 2] = [512, 4096];
const MBR_BYTES: usize = 512;
const MBR_TABLE: usize = 446;
const MBR_ENTRIES: usize = 4;
/// Of a partition table that only says that there is a GPT.
const PROTECTIVE: u64 = 0xee;
const EXTENDED: [u64; 3] = [0x05, 0x0f, 0x85];

/// How a disk says what its parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Gpt,
    Mbr,
    /// One file system has all of the disk, or nothing that is known does.
    Bare,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Gpt => "GPT",
            Scheme::Mbr => "MBR",
            Scheme::Bare => "no partitions",
        })
    }
}

/// A part of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Of the disk.
    pub range: Range<u64>,
    /// As tools count them: from 1 on, logical ones from 5 on.
    pub number: u32,
}

impl Partition {
    /// What is read of it to see what file system it holds.
    pub fn head(&self) -> Run {
        let bytes = self.range.end.saturating_sub(self.range.start);
        Run::new(self.range.start, bytes.min(HEAD_BYTES))
    }
}

/// The parts of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub scheme: Scheme,
    /// In the order of the tables. All of the disk, for `Bare`.
    pub partitions: Vec<Partition>,
    /// The tables themselves.
    pub runs: Vec<Run>,
}

/// What reads a disk of this size; what cannot be read is as if nothing were there.
struct Disk<'a> {
    read: &'a ReadAt<'a>,
    size: u64,
}

impl Disk<'_> {
    fn part(&self, offset: u64, bytes: u64) -> Option<Vec<u8>> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.size);
        let mut room = vec![0; usize::try_from(bytes).ok().filter(|_| inside)?];
        (self.read)(offset, &mut room).ok()?;
        Some(room)
    }

    /// Cut to the disk.
    fn range(&self, from: u64, to: u64) -> Option<Range<u64>> {
        let to = to.min(self.size);
        (from < to).then_some(from..to)
    }
}

/// The partitions of a disk.
///
/// # Errors
/// `Read`, when its beginning cannot be read.
pub fn partitions(read: &ReadAt<'_>, size: u64) -> Result<Layout, MapError> {
    let mut head = vec![0; usize::try_from(size.min(HEAD_BYTES)).unwrap_or(0)];
    if let Err(why) = read(0, &mut head) {
        return Err(MapError::Read { offset: 0, why });
    }
    let disk = Disk { read, size };
    if let Some(layout) = gpt(&disk, &head) {
        return Ok(layout);
    }
    // A boot sector ends as an MBR does, and what is at the place of the table is code.
    if recognise(&head).is_none()
        && let Some(layout) = mbr(&disk, &head)
    {
        return Ok(layout);
    }
    let whole = disk.range(0, size).map(|range| Partition { range, number: 1 });
    Ok(Layout { scheme: Scheme::Bare, partitions: whole.into_iter().collect(), runs: Vec::new() })
}

fn gpt(disk: &Disk<'_>, head: &[u8]) -> Option<Layout> {
    let first = |sector: &u64| gpt_at(disk, *sector, *sector, head.get(usize::try_from(*sector).ok()?..)?);
    if let Some(layout) = SECTOR_SIZES.iter().find_map(first) {
        return Some(layout);
    }
    // Looked for at the end only when there is a sign of one: that is a round trip.
    let is_protective = has(head, 510, &[0x55, 0xaa]) && byte(head, MBR_TABLE + 4) == Some(PROTECTIVE);
    let was_there = SECTOR_SIZES.iter().any(|at| has(head, usize::try_from(*at).unwrap_or(0), b"EFI PART"));
    if !is_protective && !was_there {
        return None;
    }
    SECTOR_SIZES.iter().find_map(|sector| {
        let at = (disk.size / sector).checked_sub(1)? * sector;
        gpt_at(disk, at, *sector, &disk.part(at, *sector)?)
    })
}

/// The one whose header stands at this place, when its checksums fit.
fn gpt_at(disk: &Disk<'_>, at: u64, sector: u64, bytes: &[u8]) -> Option<Layout> {
    let header_bytes = usize::try_from(le32(bytes, 12)?).ok().filter(|len| (92..=512).contains(len))?;
    let mut header = bytes.get(..header_bytes)?.to_vec();
    let sum = le32(&header, 16)?;
    header[16..20].fill(0);
    if !has(&header, 0, b"EFI PART") || u64::from(crc32(&header)) != sum {
        return None;
    }
    let table = le64(&header, 72)?.checked_mul(sector)?;
    let (count, entry_bytes) = (le32(&header, 80)?, le32(&header, 84)?);
    let table_bytes = count.checked_mul(entry_bytes).filter(|bytes| *bytes <= TABLE_BYTES_MAX)?;
    let entries = disk.part(table, table_bytes).filter(|_| entry_bytes >= 128)?;
    if u64::from(crc32(&entries)) != le32(&header, 88)? {
        return None;
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries.chunks_exact(usize::try_from(entry_bytes).ok()?)) {
        let is_used = entry[..16].iter().any(|byte| *byte != 0);
        let place = le64(entry, 32).zip(le64(entry, 40)).filter(|_| is_used);
        let range = place.and_then(|(first, last)| {
            disk.range(first.checked_mul(sector)?, last.checked_add(1)?.checked_mul(sector)?)
        });
        partitions.extend(range.map(|range| Partition { range, number }));
    }
    partitions.truncate(PARTITIONS_MAX);
    let runs = vec![Run::new(0, MBR_BYTES as u64), Run::new(at, sector), Run::new(table, table_bytes)];
    Some(Layout { scheme: Scheme::Gpt, partitions, runs })
}

/// CRC-32 as of IEEE 802.3. A table is small and read once: bit by bit will do.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}

/// The entries of a table in an MBR, or in a logical partition: type, first sector, sectors.
fn mbr_entries(sector: &[u8]) -> Option<Vec<(u64, u64, u64)>> {
    if !has(sector, 510, &[0x55, 0xaa]) {
        return None;
    }
    let entry = |index: usize| {
        let at = MBR_TABLE + index * 16;
        let is_plain = matches!(byte(sector, at)?, 0 | 0x80);
        is_plain.then_some((byte(sector, at + 4)?, le32(sector, at + 8)?, le32(sector, at + 12)?))
    };
    (0..MBR_ENTRIES).map(entry).collect()
}

fn mbr(disk: &Disk<'_>, head: &[u8]) -> Option<Layout> {
    const SECTOR: u64 = 512;
    let entries = mbr_entries(head)?;
    let mut partitions = Vec::new();
    let mut runs = vec![Run::new(0, SECTOR)];
    let range = |first: u64, sectors: u64| disk.range(first * SECTOR, (first + sectors) * SECTOR);
    for (number, (kind, first, sectors)) in (1..).zip(&entries) {
        if *kind != 0 && !EXTENDED.contains(kind) && *first > 0 {
            partitions.extend(range(*first, *sectors).map(|range| Partition { range, number }));
        }
    }
    let extended = entries.iter().find(|(kind, _, _)| EXTENDED.contains(kind));
    let base = extended.map_or(0, |(_, first, _)| *first);
    let (mut table, mut number) = (base, 5);
    // Each table names one partition and the next table. They go forward, so there is no circle.
    for _ in 0..LOGICAL_MAX {
        let Some(sector) = disk.part(table * SECTOR, SECTOR).filter(|_| table > 0) else { break };
        let Some(entries) = mbr_entries(&sector) else { break };
        runs.push(Run::new(table * SECTOR, SECTOR));
        let Some((kind, first, sectors)) = entries.first() else { break };
        if *kind != 0 && *first > 0 {
            partitions.extend(range(table + first, *sectors).map(|range| Partition { range, number }));
            number += 1;
        }
        match entries.get(1) {
            Some((kind, first, _)) if EXTENDED.contains(kind) && base + first > table => table = base + first,
            _ => break,
        }
    }
    (!partitions.is_empty()).then_some(Layout { scheme: Scheme::Mbr, partitions, runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    fn layout(disk: &[u8]) -> Layout {
        let read = |offset: u64, room: &mut [u8]| {
            let from = usize::try_from(offset).expect("small");
            room.copy_from_slice(&disk[from..from + room.len()]);
            Ok(())
        };
        partitions(&read, disk.len() as u64).expect("it can be read")
    }

    fn put_entry(disk: &mut [u8], table: usize, index: usize, (kind, first, sectors): (u8, u32, u32)) {
        let at = table * 512 + MBR_TABLE + index * 16;
        disk[at + 4] = kind;
        disk[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        disk[table * 512 + 510..table * 512 + 512].copy_from_slice(&[0x55, 0xaa]);
    }

    #[test]
    fn logical_partitions_are_counted_from_five_and_a_circle_ends() {
        let mut disk = vec![0; 512 * 1000];
        put_entry(&mut disk, 0, 0, (0x83, 10, 90));
        put_entry(&mut disk, 0, 1, (0x05, 100, 800));
        put_entry(&mut disk, 100, 0, (0x83, 2, 98));
        put_entry(&mut disk, 100, 1, (0x05, 100, 800));
        put_entry(&mut disk, 200, 0, (0x07, 2, 5000));
        put_entry(&mut disk, 200, 1, (0x05, 0, 800));
        let found = layout(&disk);
        let sectors: Vec<_> =
            found.partitions.iter().map(|it| (it.number, it.range.start / 512, it.range.end / 512)).collect();
        assert_eq!(sectors, [(1, 10, 100), (5, 102, 200), (6, 202, 1000)]);
        assert_eq!(found.scheme, Scheme::Mbr);
        assert_eq!(found.runs.len(), 3);
    }

    #[test]
    fn a_gpt_whose_head_is_damaged_is_found_at_the_end() {
        let mut disk = vec![0; 512 * 100];
        put_entry(&mut disk, 0, 0, (0xee, 1, 99));
        let mut table = vec![0; 128 * 4];
        table[128..144].fill(7);
        table[160..168].copy_from_slice(&40_u64.to_le_bytes());
        table[168..176].copy_from_slice(&49_u64.to_le_bytes());
        for (header, at) in [(1, 2_u64), (99, 95)] {
            let mut bytes = vec![0; 92];
            bytes[..8].copy_from_slice(b"EFI PART");
            bytes[12] = 92;
            bytes[72..80].copy_from_slice(&at.to_le_bytes());
            bytes[80] = 4;
            bytes[84] = 128;
            bytes[88..92].copy_from_slice(&crc32(&table).to_le_bytes());
            let sum = crc32(&bytes);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
            disk[header * 512..header * 512 + 92].copy_from_slice(&bytes);
            let at = usize::try_from(at).expect("small") * 512;
            disk[at..at + 512].copy_from_slice(&table);
        }
        let first = layout(&disk);
        disk[1030 + 128] ^= 1;
        let second = layout(&disk);
        for (found, header) in [(first, 512), (second, 99 * 512)] {
            assert_eq!(found.scheme, Scheme::Gpt);
            assert_eq!(found.partitions, [Partition { range: 20_480..25_600, number: 2 }]);
            assert_eq!(found.runs[1], Run::new(header, 512));
        }
    }

    #[test]
    fn a_disk_without_tables_is_one_part() {
        let found = layout(&[0; 5000]);
        assert_eq!((found.scheme, found.partitions[0].range.clone()), (Scheme::Bare, 0..5000));
        assert!(layout(&[]).partitions.is_empty());
    }
}
