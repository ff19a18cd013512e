//! Partition tables: where the partitions of an image lie, and how long its sectors are.
//!
//! Owns: reading MBR (with logical partitions) and GPT as the kernel reads them, for kernels that were built
//! without, and the length of sectors that a GPT was written with. Never: trusts a table; what does not lie
//! inside the image is left out. Invariants: no bytes make it panic, and a table of a few sectors is never
//! more than so many reads.
//! Called by `loopdev::attach`. Tests: below.

use std::io;

const MBR_SECTOR_BYTES: u64 = 512;
const MBR_SIGNATURE: [u8; 2] = [0x55, 0xaa];
const MBR_ENTRIES: usize = 446;
const MBR_ENTRY_BYTES: usize = 16;
const GPT_SIGNATURE: &[u8; 8] = b"EFI PART";
const GPT_ENTRY_BYTES: usize = 128;
/// As the kernel: it makes no more devices of one disk.
const PARTITIONS_MAX: u32 = 255;
/// Logical partitions, each a sector of its own.
const LOGICAL_MAX: u32 = 100;
const SECTORS: [u32; 2] = [512, 4096];

/// In bytes of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) number: u32,
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Fills a buffer with the image's bytes from an offset on.
pub(super) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>;

/// The length of sectors that the image's GPT was written with, by whichever of its two headers is whole,
/// else by how the first one begins; none where it has no GPT.
pub(super) fn sector(read: Read<'_>, size: u64) -> Option<u32> {
    let last = |sector: u32| (size / u64::from(sector)).saturating_sub(1);
    let has_first = |sector: &u32| gpt(read, size, *sector, 1).is_some();
    let has_second = |sector: &u32| gpt(read, size, *sector, last(*sector)).is_some();
    let is_signed = |sector: &u32| {
        let mut signature = [0; 8];
        read(u64::from(*sector), &mut signature).is_ok() && signature == *GPT_SIGNATURE
    };
    let find = |has: &dyn Fn(&u32) -> bool| SECTORS.into_iter().find(has);
    find(&has_first).or_else(|| find(&has_second)).or_else(|| find(&is_signed))
}

/// The partitions of an image of `size` bytes on a device with sectors of `sector` bytes.
pub(super) fn partitions(read: Read<'_>, size: u64, sector: u32) -> Vec<Partition> {
    let mut first = [0; MBR_SECTOR_BYTES as usize];
    if read(0, &mut first).is_err() || first[510..] != MBR_SIGNATURE {
        return Vec::new();
    }
    let entries = mbr_entries(&first);
    // The boot sector of a file system ends with the same signature.
    if entries.iter().any(|entry| entry.active & 0x7f != 0) {
        return Vec::new();
    }
    if entries.iter().any(|entry| entry.kind == 0xee) {
        let last = (size / u64::from(sector)).saturating_sub(1);
        return gpt(read, size, sector, 1).or_else(|| gpt(read, size, sector, last)).unwrap_or_default();
    }
    mbr(read, &entries, size, u64::from(sector))
}

#[derive(Clone, Copy)]
struct MbrEntry {
    active: u8,
    kind: u8,
    start: u64,
    sectors: u64,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

fn mbr_entries(sector: &[u8; MBR_SECTOR_BYTES as usize]) -> [MbrEntry; 4] {
    std::array::from_fn(|index| {
        let entry = &sector[MBR_ENTRIES + index * MBR_ENTRY_BYTES..][..MBR_ENTRY_BYTES];
        let number = |at| u64::from(u32_at(entry, at));
        MbrEntry { active: entry[0], kind: entry[4], start: number(8), sectors: number(12) }
    })
}

fn mbr(read: Read<'_>, entries: &[MbrEntry; 4], size: u64, sector: u64) -> Vec<Partition> {
    let mut found = Vec::new();
    for (number, entry) in (1..).zip(entries).filter(|(_, entry)| entry.sectors > 0) {
        // Of an extended one only the head is shown, as the kernel does: what is in it has devices of its
        // own.
        let sectors =
            if entry.is_extended() { entry.sectors.min((1024 / sector).max(1)) } else { entry.sectors };
        found.extend(inside(number, entry.start * sector, sectors * sector, size));
    }
    for extended in entries.iter().filter(|entry| entry.sectors > 0 && entry.is_extended()) {
        logical(read, extended.start, size, sector, &mut found);
    }
    found
}

/// A chain of sectors, each with one partition, relative to itself, and the next, relative to the first.
fn logical(read: Read<'_>, first: u64, size: u64, sector: u64, found: &mut Vec<Partition>) {
    let mut at = first;
    let mut number = found.iter().map(|partition| partition.number).max().unwrap_or(0).max(4) + 1;
    for _ in 0..LOGICAL_MAX {
        let mut bytes = [0; MBR_SECTOR_BYTES as usize];
        if at * sector >= size || read(at * sector, &mut bytes).is_err() || bytes[510..] != MBR_SIGNATURE {
            return;
        }
        let entries = mbr_entries(&bytes);
        for entry in entries.iter().filter(|entry| entry.sectors > 0 && !entry.is_extended()) {
            found.extend(inside(number, (at + entry.start) * sector, entry.sectors * sector, size));
            number += 1;
        }
        let next = entries.iter().find(|entry| entry.sectors > 0 && entry.is_extended());
        match next.map(|next| first + next.start).filter(|next| *next > at) {
            Some(next) if number <= PARTITIONS_MAX => at = next,
            _ => return,
        }
    }
}

/// What of it lies in the image.
fn inside(number: u32, start: u64, len: u64, size: u64) -> Option<Partition> {
    let len = len.min(size.checked_sub(start)?);
    (len > 0 && number <= PARTITIONS_MAX).then_some(Partition { number, start, len })
}

/// By the header in sector `at`; none when it is not one.
fn gpt(read: Read<'_>, size: u64, sector: u32, at: u64) -> Option<Vec<Partition>> {
    let sector_bytes = u64::from(sector);
    let mut head = vec![0; sector as usize];
    read(at.checked_mul(sector_bytes)?, &mut head).ok()?;
    let head_bytes = usize::try_from(u32_at(&head, 12)).ok().filter(|len| (92..=head.len()).contains(len))?;
    let written = u32_at(&head, 16);
    head[16..20].fill(0);
    if head[..8] != *GPT_SIGNATURE || crc32(&head[..head_bytes]) != written || u64_at(&head, 24) != at {
        return None;
    }
    let (count, entry_bytes) = (u32_at(&head, 80), u32_at(&head, 84));
    if entry_bytes as usize != GPT_ENTRY_BYTES || count > 1024 {
        return None;
    }
    let mut entries = vec![0; count as usize * GPT_ENTRY_BYTES];
    read(u64_at(&head, 72).checked_mul(sector_bytes)?, &mut entries).ok()?;
    if crc32(&entries) != u32_at(&head, 88) {
        return None;
    }
    let partition = |(number, entry): (u32, &[u8])| {
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let is_used = entry[..16].iter().any(|byte| *byte != 0);
        let sectors = last.checked_sub(first).filter(|_| is_used)?.checked_add(1)?;
        inside(number, first.checked_mul(sector_bytes)?, sectors.checked_mul(sector_bytes)?, size)
    };
    Some((1..).zip(entries.chunks_exact(GPT_ENTRY_BYTES)).filter_map(partition).collect())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// IEEE 802.3; a table would be longer than what is summed.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(image: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<()> {
        move |offset, room: &mut [u8]| {
            let from = usize::try_from(offset).ok().and_then(|at| image.get(at..)?.get(..room.len()));
            room.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }

    fn found(image: &[u8], sector: u32) -> Vec<Partition> {
        partitions(&of(image), image.len() as u64, sector)
    }

    fn entry(sector: &mut [u8], index: usize, kind: u8, start: u32, sectors: u32) {
        let at = MBR_ENTRIES + index * MBR_ENTRY_BYTES;
        sector[at + 4] = kind;
        sector[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        sector[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        sector[510..512].copy_from_slice(&MBR_SIGNATURE);
    }

    /// A GPT with the second and the third entry used.
    fn with_gpt(sector: usize, at_end: bool) -> Vec<u8> {
        let mut image = vec![0; 8 * MIB as usize];
        entry(&mut image, 0, 0xee, 1, u32::MAX);
        let mut entries = vec![0; 128 * GPT_ENTRY_BYTES];
        for (index, first, last) in [(1, 256u64, 511u64), (2, 512, 1023)] {
            let entry = &mut entries[index * GPT_ENTRY_BYTES..][..GPT_ENTRY_BYTES];
            entry[0] = 7;
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        let at = if at_end { image.len() / sector - 1 } else { 1 };
        let table = if at_end { at as u64 - 40 } else { 2 };
        let mut head = vec![0; 92];
        head[..8].copy_from_slice(GPT_SIGNATURE);
        head[12] = 92;
        head[24..32].copy_from_slice(&(at as u64).to_le_bytes());
        head[72..80].copy_from_slice(&table.to_le_bytes());
        head[80] = 128;
        head[84] = 128;
        let sum = crc32(&entries);
        head[88..92].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32(&head);
        head[16..20].copy_from_slice(&sum.to_le_bytes());
        image[at * sector..][..92].copy_from_slice(&head);
        image[table as usize * sector..][..entries.len()].copy_from_slice(&entries);
        image
    }

    #[test]
    fn the_sum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_gpt_is_read_with_the_sectors_it_was_written_with() {
        for bytes in [512, 4096] {
            let image = with_gpt(bytes, false);
            let bytes = u32::try_from(bytes).expect("small");
            assert_eq!(sector(&of(&image), image.len() as u64), Some(bytes));
            let unit = u64::from(bytes);
            let wanted = [
                Partition { number: 2, start: 256 * unit, len: 256 * unit },
                Partition { number: 3, start: 512 * unit, len: 512 * unit },
            ];
            assert_eq!(found(&image, bytes), wanted);
            let other = if bytes == 512 { 4096 } else { 512 };
            assert!(found(&image, other).is_empty());
        }
        assert_eq!(sector(&of(&[0; 9000]), 9000), None);
    }

    #[test]
    fn a_second_gpt_stands_in_for_a_first_that_is_damaged() {
        let image = with_gpt(512, true);
        assert_eq!(found(&image, 512).len(), 2);
        let mut damaged = with_gpt(512, false);
        damaged[2 * 512 + 130] ^= 1;
        assert!(found(&damaged, 512).is_empty());
        assert_eq!(sector(&of(&damaged), damaged.len() as u64), Some(512), "it says so all the same");
    }

    /// A first header that was wiped or damaged, or one of another length that was left behind, does not make
    /// it a disk of 512.
    #[test]
    fn sectors_are_those_of_the_gpt_that_is_whole() {
        let sector_of = |image: &[u8]| sector(&of(image), image.len() as u64);
        let second = with_gpt(4096, true);
        assert_eq!((sector_of(&second), found(&second, 4096).len()), (Some(4096), 2));
        let mut left_behind = with_gpt(4096, false);
        left_behind[512..520].copy_from_slice(GPT_SIGNATURE);
        assert_eq!(sector_of(&left_behind), Some(4096));
        let old_end = with_gpt(512, true);
        let (from, to) = (old_end.len() - 41 * 512, old_end.len());
        left_behind[from..to].copy_from_slice(&old_end[from..to]);
        assert_eq!(sector_of(&left_behind), Some(4096), "the first of one goes before the second of another");
    }

    #[test]
    fn an_mbr_has_primary_and_logical_partitions() {
        let mut image = vec![0; 8 * MIB as usize];
        entry(&mut image, 0, 0x83, 2048, 2048);
        entry(&mut image, 1, 0x05, 4096, 8192);
        entry(&mut image, 3, 0x07, 12288, 1_000_000);
        entry(&mut image[4096 * 512..], 0, 0x83, 64, 100);
        entry(&mut image[4096 * 512..], 1, 0x05, 1000, 500);
        entry(&mut image[5096 * 512..], 0, 0x83, 64, 200);
        let shown: Vec<(u32, u64, u64)> =
            found(&image, 512).iter().map(|p| (p.number, p.start / 512, p.len / 512)).collect();
        assert_eq!(shown, [(1, 2048, 2048), (2, 4096, 2), (4, 12288, 4096), (5, 4160, 100), (6, 5160, 200)]);
    }

    #[test]
    fn what_is_no_table_has_no_partitions() {
        assert!(found(&[0; 4096], 512).is_empty());
        assert!(found(&[], 512).is_empty());
        // The boot sector of a file system: code where a table would be.
        let mut boot = vec![0x41; 1024];
        boot[510..512].copy_from_slice(&MBR_SIGNATURE);
        assert!(found(&boot, 512).is_empty());
        // A chain that leads to itself ends.
        let mut image = vec![0; MIB as usize];
        entry(&mut image, 0, 0x05, 8, 100);
        entry(&mut image[8 * 512..], 0, 0x83, 1, 1);
        entry(&mut image[8 * 512..], 1, 0x05, 0, 100);
        assert_eq!(found(&image, 512).len(), 2);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut seed = 7u64;
        for _ in 0..2000 {
            let mut image = with_gpt(512, seed & 1 == 0);
            image.truncate(64 << 10);
            for _ in 0..16 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % 1200;
                image[at] = (seed >> 20) as u8;
            }
            image[510..512].copy_from_slice(&MBR_SIGNATURE);
            let _ = (sector(&of(&image), image.len() as u64), found(&image, 512), found(&image, 4096));
        }
    }
}
