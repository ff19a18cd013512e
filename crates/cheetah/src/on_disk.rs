//! What stands on a disk: its partitions, and which file system or encryption each holds.
//!
//! Owns: the words of it that the pool keeps, the log has and `show` prints. Never: what a file system is
//! (`cheetah_filesystem`), or when the disk is read. Invariant: what cannot be read is said to be so, and
//! never to be nothing. Called by `filler::metadata`, `load`, `content`. Tests: below, and
//! `lab/tests/on_disk.rs`.

use cheetah_core::content::{OnDisk, Partition, Scheme};
use cheetah_core::limits::PARTITIONS_TOLD_MAX;
use cheetah_core::units::{show_bytes, show_count};
use cheetah_filesystem::{self as filesystem, Layout, ReadAt};
use cheetah_source::Source;
use std::io;

/// Encrypted partitions that are named on one line.
const NAMED_MAX: usize = 4;

/// Of a disk that can be read.
fn find(read: &ReadAt<'_>, size: u64) -> OnDisk {
    filesystem::partitions(read, size).map_or_else(|_| unreadable(), |layout| look(read, &layout))
}

/// Of a source, most of which was read before.
pub fn of_source(source: &dyn Source) -> OnDisk {
    let read = |offset: u64, room: &mut [u8]| source.read_exact_at(offset, room).map_err(io::Error::other);
    find(&read, source.size())
}

/// What each partition holds.
pub fn look(read: &ReadAt<'_>, layout: &Layout) -> OnDisk {
    let look = |partition: &filesystem::Partition| {
        let (holds, encrypted) = match filesystem::kind(read, &partition.range) {
            Ok(Some(kind)) if kind.is_encrypted() => (format!("encrypted with {kind}"), true),
            Ok(Some(kind)) => (kind.to_string(), false),
            Ok(None) => ("no known file system".to_owned(), false),
            Err(_) => ("its beginning cannot be read".to_owned(), false),
        };
        let (offset, len) = (partition.range.start, partition.range.end - partition.range.start);
        Partition { number: partition.number, offset, len, holds, encrypted }
    };
    let scheme = match layout.scheme {
        filesystem::Scheme::Gpt => Scheme::Gpt,
        filesystem::Scheme::Mbr => Scheme::Mbr,
        filesystem::Scheme::Bare => Scheme::None,
    };
    let all = &layout.partitions;
    let left_out = all.len().saturating_sub(PARTITIONS_TOLD_MAX) as u64;
    OnDisk { scheme, partitions: all.iter().take(PARTITIONS_TOLD_MAX).map(look).collect(), left_out }
}

/// Of a disk whose beginning cannot be read.
pub fn unreadable() -> OnDisk {
    OnDisk { scheme: Scheme::Unreadable, partitions: Vec::new(), left_out: 0 }
}

/// Says it to the log.
pub fn log(on_disk: &OnDisk) {
    for line in said(on_disk) {
        tracing::info!(target: "journal", event = "on-disk", "{line}");
    }
    if let Some(what) = encrypted(on_disk) {
        tracing::warn!(
            target: "journal",
            event = "encrypted",
            "{what}: what that holds cannot be read without its key"
        );
    }
}

/// As `show` prints it.
pub fn lines(on_disk: &OnDisk) -> Vec<String> {
    let heads = std::iter::once("disk        ").chain(std::iter::repeat("            "));
    heads.zip(said(on_disk)).map(|(head, line)| format!("{head}{line}")).collect()
}

fn said(on_disk: &OnDisk) -> Vec<String> {
    let OnDisk { scheme, partitions, left_out } = on_disk;
    let scheme = match scheme {
        Scheme::Unreadable => {
            return vec!["its beginning cannot be read: what is on it is not known".to_owned()];
        }
        Scheme::None => {
            let holds = partitions.first().map_or("nothing", |all| all.holds.as_str());
            return vec![format!("no partitions: {holds}")];
        }
        Scheme::Gpt => "GPT",
        Scheme::Mbr => "MBR",
    };
    let count = (partitions.len() as u64).saturating_add(*left_out);
    let mut said = vec![format!("{scheme}, {}", show_count(count, "partition"))];
    said.extend(partitions.iter().map(|partition| {
        let Partition { number, offset, len, holds, .. } = partition;
        format!("partition {number}: {holds}, {len} bytes from {offset} on ({})", show_bytes(*len))
    }));
    if *left_out > 0 {
        said.push(format!("and {left_out} more"));
    }
    said
}

/// What of it is encrypted, and with what; none: nothing that is known of.
pub fn encrypted(on_disk: &OnDisk) -> Option<String> {
    let all = on_disk.partitions.iter().filter(|partition| partition.encrypted);
    let name = |partition: &Partition| match on_disk.scheme {
        Scheme::None => format!("the whole disk is {}", partition.holds),
        _ => format!("partition {} is {}", partition.number, partition.holds),
    };
    let mut names: Vec<String> = all.clone().take(NAMED_MAX).map(name).collect();
    let more = all.count() - names.len();
    if more > 0 {
        names.push(format!("{more} more are encrypted"));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(disk: &[u8]) -> OnDisk {
        let read = |offset: u64, room: &mut [u8]| {
            let from = usize::try_from(offset).map_err(io::Error::other)?;
            room.copy_from_slice(&disk[from..from + room.len()]);
            Ok(())
        };
        find(&read, disk.len() as u64)
    }

    /// An MBR of two partitions, the second encrypted.
    fn divided() -> Vec<u8> {
        let mut disk = vec![0; 100 * 512];
        for (index, (first, sectors)) in [(8_u32, 8_u32), (16, 84)].into_iter().enumerate() {
            let entry = &mut disk[446 + 16 * index..][..16];
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&first.to_le_bytes());
            entry[12..].copy_from_slice(&sectors.to_le_bytes());
        }
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[16 * 512..][..6].copy_from_slice(b"LUKS\xba\xbe");
        disk
    }

    #[test]
    fn partitions_are_named_with_what_they_hold() {
        let on_disk = found(&divided());
        assert_eq!((on_disk.scheme, on_disk.left_out), (Scheme::Mbr, 0));
        assert_eq!(
            lines(&on_disk),
            [
                "disk        MBR, 2 partitions",
                "            partition 1: no known file system, 4096 bytes from 4096 on (4 KiB)",
                "            partition 2: encrypted with LUKS, 43008 bytes from 8192 on (42 KiB)",
            ]
        );
        assert_eq!(encrypted(&on_disk).as_deref(), Some("partition 2 is encrypted with LUKS"));
    }

    #[test]
    fn a_disk_without_partitions_is_named_as_a_whole() {
        let mut disk = vec![0; 4096];
        assert_eq!(lines(&found(&disk)), ["disk        no partitions: no known file system"]);
        assert_eq!(encrypted(&found(&disk)), None);
        disk[3..11].copy_from_slice(b"-FVE-FS-");
        assert_eq!(lines(&found(&disk)), ["disk        no partitions: encrypted with BitLocker"]);
        assert_eq!(encrypted(&found(&disk)).as_deref(), Some("the whole disk is encrypted with BitLocker"));
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let disk = divided();
        let read = |from: u64| {
            let disk = &disk;
            move |offset: u64, room: &mut [u8]| {
                if offset >= from {
                    return Err(io::Error::other("a bad sector"));
                }
                let at = usize::try_from(offset).map_err(io::Error::other)?;
                room.copy_from_slice(&disk[at..at + room.len()]);
                Ok(())
            }
        };
        let some = find(&read(8192), disk.len() as u64);
        assert!(lines(&some)[2].contains("partition 2: its beginning cannot be read"), "{some:?}");
        assert_eq!(find(&read(0), disk.len() as u64).scheme, Scheme::Unreadable);
    }

    #[test]
    fn of_many_that_are_encrypted_a_few_are_named() {
        let partition = |number| Partition {
            number,
            offset: 0,
            len: 1,
            holds: "encrypted with LUKS".into(),
            encrypted: true,
        };
        let on_disk =
            OnDisk { scheme: Scheme::Gpt, partitions: (1..=9).map(partition).collect(), left_out: 3 };
        let said = encrypted(&on_disk).expect("some are");
        assert!(said.ends_with("partition 4 is encrypted with LUKS, 5 more are encrypted"), "{said}");
        let lines = lines(&on_disk);
        assert_eq!(
            (lines[0].as_str(), lines.last().map(String::as_str)),
            ("disk        GPT, 12 partitions", Some("            and 3 more"))
        );
    }
}
