//! A record of the $MFT: its fixups, its attributes, and the data runs of those that lie elsewhere.
//!
//! Owns: reading them from bytes that may say anything. Key invariant: each step goes on by at least a byte,
//! so all ends with the record. Called by the map of NTFS. Tests: here.

use crate::fields::{byte, has, le16, le32, le64};
use crate::run::Run;

const SECTOR: usize = 512;
const IN_USE: u64 = 1;
const DIRECTORY: u64 = 2;
const END: u64 = 0xffff_ffff;
const NUMBER_BITS: u64 = (1 << 48) - 1;

#[derive(Debug)]
pub(crate) struct Record<'a> {
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Puts back what the fixups took; `None` when it is none, or torn.
    pub(crate) fn read(bytes: &'a mut [u8]) -> Option<Self> {
        if !has(bytes, 0, b"FILE") {
            return None;
        }
        let at = usize::try_from(le16(bytes, 4)?).ok()?;
        let count = usize::try_from(le16(bytes, 6)?).ok()?;
        if count == 0 || (count - 1) * SECTOR != bytes.len() {
            return None;
        }
        let array = bytes.get(at..at + count * 2)?.to_vec();
        for (sector, kept) in bytes.chunks_exact_mut(SECTOR).zip(array[2..].chunks_exact(2)) {
            let end = &mut sector[SECTOR - 2..];
            if *end != array[..2] {
                return None;
            }
            end.copy_from_slice(kept);
        }
        Some(Self { bytes })
    }

    fn flags(&self) -> u64 {
        le16(self.bytes, 22).unwrap_or(0)
    }

    pub(crate) fn is_used(&self) -> bool {
        self.flags() & IN_USE != 0
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.flags() & DIRECTORY != 0
    }

    /// The record that it extends; 0 when it stands for itself.
    pub(crate) fn base(&self) -> u64 {
        le64(self.bytes, 32).unwrap_or(0) & NUMBER_BITS
    }

    pub(crate) fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let first = le16(self.bytes, 20).and_then(|at| usize::try_from(at).ok());
        let mut rest = first.and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        std::iter::from_fn(move || {
            let kind = le32(rest, 0).filter(|kind| *kind != END)?;
            let len = usize::try_from(le32(rest, 4)?).ok().filter(|len| *len >= 16)?;
            let bytes = rest.get(..len)?;
            rest = &rest[len..];
            Some(Attribute { kind, is_named: byte(bytes, 9)? > 0, bytes })
        })
    }
}

#[derive(Debug)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u64,
    pub(crate) is_named: bool,
    bytes: &'a [u8],
}

impl<'a> Attribute<'a> {
    fn is_elsewhere(&self) -> bool {
        byte(self.bytes, 8) != Some(0)
    }

    /// What it holds, when that is in the record.
    pub(crate) fn value(&self) -> Option<&'a [u8]> {
        if self.is_elsewhere() {
            return None;
        }
        let len = usize::try_from(le32(self.bytes, 16)?).ok()?;
        let at = usize::try_from(le16(self.bytes, 20)?).ok()?;
        self.bytes.get(at..)?.get(..len)
    }

    /// Where it lies, when that is elsewhere.
    pub(crate) fn mapped(&self) -> Option<Mapped<'a>> {
        if !self.is_elsewhere() {
            return None;
        }
        let at = usize::try_from(le16(self.bytes, 32)?).ok()?;
        let runs = self.bytes.get(at..)?;
        Some(Mapped { first_cluster: le64(self.bytes, 16)?, size: le64(self.bytes, 48).unwrap_or(0), runs })
    }
}

/// The data runs of an attribute, or of a part of it.
#[derive(Debug)]
pub(crate) struct Mapped<'a> {
    /// Of the attribute, that is in it.
    pub(crate) first_cluster: u64,
    /// Of the attribute, in its first part.
    pub(crate) size: u64,
    runs: &'a [u8],
}

impl<'a> Mapped<'a> {
    /// Where in the attribute, and where on the disk. What is sparse is left out.
    pub(crate) fn runs(&self, cluster: u64) -> impl Iterator<Item = (u64, Run)> + use<'a> {
        let (mut rest, mut next, mut place) = (self.runs, self.first_cluster, 0_i64);
        std::iter::from_fn(move || {
            loop {
                let (head, behind) = rest.split_first()?;
                let (len_bytes, place_bytes) = (usize::from(head & 15), usize::from(head >> 4));
                let clusters =
                    u64::try_from(signed(behind.get(..len_bytes)?)?).ok().filter(|len| *len > 0)?;
                let step = signed(behind.get(len_bytes..len_bytes + place_bytes)?)?;
                rest = &behind[len_bytes + place_bytes..];
                let from = next;
                next = next.checked_add(clusters)?;
                place = place.checked_add(step)?;
                if place_bytes > 0 {
                    let offset = u64::try_from(place).ok()?.checked_mul(cluster)?;
                    let bytes = clusters.checked_mul(cluster)?;
                    offset.checked_add(bytes)?;
                    return Some((from.checked_mul(cluster)?, Run::new(offset, bytes)));
                }
            }
        })
    }
}

/// A number of at most eight bytes.
fn signed(bytes: &[u8]) -> Option<i64> {
    let mut wide = if bytes.last().is_some_and(|last| last & 0x80 != 0) { [0xff; 8] } else { [0; 8] };
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(bytes: &[u8]) -> Vec<(u64, u64, u64)> {
        let mapped = Mapped { first_cluster: 10, size: 0, runs: bytes };
        mapped.runs(4096).map(|(at, run)| (at / 4096, run.offset / 4096, run.bytes / 4096)).collect()
    }

    #[test]
    fn data_runs_go_forward_backward_and_over_holes() {
        // 24 clusters at 0x5634; 4 of a hole; 8 at 32 before.
        let bytes = [0x21, 0x18, 0x34, 0x56, 0x01, 0x04, 0x11, 0x08, 0xe0, 0x00, 0x11, 0x01, 0x01];
        assert_eq!(runs(&bytes), [(10, 0x5634, 0x18), (38, 0x5614, 8)]);
    }

    #[test]
    fn data_runs_that_lie_end() {
        assert_eq!(runs(&[0x11, 0x05, 0xe0]), [], "before the disk");
        assert_eq!(runs(&[0x11, 0x00, 0x10, 0x11, 0x01, 0x10]), [], "nothing");
        assert_eq!(runs(&[0x21, 0x18, 0x34]), [], "torn");
        assert_eq!(runs(&[0x99; 40]), [], "of too many bytes");
        let far = [0x88, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x7f];
        assert_eq!(runs(&far), [], "behind what there can be");
    }

    #[test]
    fn a_torn_record_is_none() {
        let mut bytes = vec![0; 1024];
        bytes[..4].copy_from_slice(b"FILE");
        bytes[4..8].copy_from_slice(&[48, 0, 3, 0]);
        bytes[48..54].copy_from_slice(&[7, 7, 1, 2, 3, 4]);
        bytes[510..512].copy_from_slice(&[7, 7]);
        assert!(Record::read(&mut bytes.clone()).is_none());
        bytes[1022..1024].copy_from_slice(&[7, 7]);
        let record = Record::read(&mut bytes).expect("whole");
        assert_eq!(record.attributes().count(), 0);
        assert_eq!(bytes[510..512], [1, 2]);
        assert_eq!(bytes[1022..1024], [3, 4]);
    }
}
