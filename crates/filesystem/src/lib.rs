//! Where the metadata of a disk's file systems lies, so that it can be read before the rest.
//!
//! Owns: finding partitions; telling what file system is in them; its *map*, the runs of bytes that a
//! listing of all its files reads; which file owns a block, and where the rest of it lies. Never: writing;
//! believing what a disk says: whatever is on it, a map ends, reads at most twice the file system's size
//! and 16 MiB, takes a bounded memory and does not panic. A map is told step by step, before it reads
//! itself, so that who fetches the disk over a slow link can fetch exactly that first. Called by who fills
//! a volume. Files: `partitions`; `ext`, `fat`, `exfat` (the two share `clusters`) and `ntfs` make maps, by
//! `walk`; `others` are recognised only; `files` has the runs of files, `run` lists of runs; they share
//! `error`, `fields`. `hostile` makes disks that lie. Tests: in each.
#![forbid(unsafe_code)]

mod clusters;
mod error;
mod exfat;
mod ext;
mod fat;
mod fields;
mod files;
#[cfg(test)]
mod hostile;
mod ntfs;
mod others;
mod partitions;
mod run;
mod walk;

pub use error::MapError;
pub use files::{FileAt, Files};
pub use partitions::{Layout, Partition, Scheme, partitions};
pub use run::{Run, extended};
pub use walk::{Found, ReadAt};

use std::fmt;
use std::ops::Range;

use walk::Walk;

/// So far is read to see what a file system is: Btrfs has its superblock there.
const HEAD_BYTES: u64 = 68 << 10;

/// What stands in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ntfs,
    Ext2,
    Ext3,
    Ext4,
    Fat12,
    Fat16,
    Fat32,
    ExFat,
    BitLocker,
    Luks,
    Apfs,
    HfsPlus,
    ReFs,
    Btrfs,
    Xfs,
}

impl Kind {
    /// Whether nothing can be known of it without a key.
    pub fn is_encrypted(self) -> bool {
        matches!(self, Kind::BitLocker | Kind::Luks)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Ntfs => "NTFS",
            Kind::Ext2 => "ext2",
            Kind::Ext3 => "ext3",
            Kind::Ext4 => "ext4",
            Kind::Fat12 => "FAT12",
            Kind::Fat16 => "FAT16",
            Kind::Fat32 => "FAT32",
            Kind::ExFat => "exFAT",
            Kind::BitLocker => "BitLocker",
            Kind::Luks => "LUKS",
            Kind::Apfs => "APFS",
            Kind::HfsPlus => "HFS+",
            Kind::ReFs => "ReFS",
            Kind::Btrfs => "Btrfs",
            Kind::Xfs => "XFS",
        })
    }
}

/// What a listing of a file system reads.
#[derive(Debug)]
pub struct Map {
    pub kind: Kind,
    /// Of the disk, in the order in which they were found; some may be over each other.
    pub runs: Vec<Run>,
    pub files: Files,
    /// Why some of its metadata may not be in the map; empty when all of it is.
    pub gaps: Vec<&'static str>,
}

/// The kind of what the first bytes of a file system are, at least 68 KiB where there are so many.
fn recognise(head: &[u8]) -> Option<Kind> {
    // Those that have no signature of their own come last.
    let all = [others::recognise, ntfs::recognise, exfat::recognise, ext::recognise, fat::recognise];
    all.into_iter().find_map(|recognise| recognise(head))
}

fn head(read: &ReadAt<'_>, volume: &Range<u64>) -> Result<Vec<u8>, MapError> {
    let bytes = volume.end.saturating_sub(volume.start).min(HEAD_BYTES);
    let mut head = vec![0; usize::try_from(bytes).unwrap_or(0)];
    match read(volume.start, &mut head) {
        Ok(()) => Ok(head),
        Err(why) => Err(MapError::Read { offset: volume.start, why }),
    }
}

/// What file system a range of a disk holds; `None` when it is none that is known.
///
/// # Errors
/// `Read`.
pub fn kind(read: &ReadAt<'_>, volume: &Range<u64>) -> Result<Option<Kind>, MapError> {
    Ok(recognise(&head(read, volume)?))
}

/// The map of the file system in a range of a disk. `found` is told of runs of the disk before they are read:
/// what it was told stays true when an error ends the map.
///
/// # Errors
/// `Unknown`, `NotMapped`, `Damaged`, `Read`.
pub fn map(read: &ReadAt<'_>, volume: Range<u64>, found: &mut Found<'_>) -> Result<Map, MapError> {
    let volume = volume.start..volume.end.max(volume.start);
    let mut walk = Walk::new(read, volume.clone(), found);
    walk.tell(&[Run::new(0, HEAD_BYTES)]);
    let head = head(read, &volume)?;
    let Some(kind) = recognise(&head) else { return Err(MapError::Unknown) };
    match kind {
        Kind::Ntfs => ntfs::map(&mut walk, &head)?,
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => ext::map(&mut walk, &head)?,
        Kind::Fat12 | Kind::Fat16 | Kind::Fat32 => fat::map(&mut walk, &head)?,
        Kind::ExFat => exfat::map(&mut walk, &head)?,
        Kind::BitLocker | Kind::Luks | Kind::Apfs | Kind::HfsPlus | Kind::ReFs | Kind::Btrfs | Kind::Xfs => {
            return Err(MapError::NotMapped { kind });
        }
    }
    let Walk { runs, files, gaps, .. } = walk;
    Ok(Map { kind, runs, files: files.finish(), gaps })
}
