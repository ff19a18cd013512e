//! What a volume holds, as far as its pool was told: the shapes, and lists of ranges that could not be read
//! at the source.
//!
//! Owns what is stored, shown and told of it. Never: who may attach it (`coordinator::content`), or bytes.
//! Invariant: a list of ranges is ascending, its ranges neither overlap nor touch, and there are at most
//! `UNREADABLE_RANGES_MAX`; what is cut to that covers more, never less. Tests: below,
//! `tests/coordinator_content.rs`.

use crate::custody::Head;
use crate::layout::Geometry;
use crate::limits::UNREADABLE_RANGES_MAX;
use crate::map::{BadRange, Filler, VolumeId, VolumeMap};
use crate::proofs::Root;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Where a volume stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentState {
    /// Nobody has written it: it reads as zeros.
    #[default]
    Fresh,
    /// Tools wrote it, or may have.
    Written,
    /// Somebody loads it now.
    Loading,
    /// A load ended before its end, or the volume was made for one that has not begun: what is behind that
    /// reads as zeros, or as what was there.
    Incomplete,
    /// It was loaded to its end.
    Loaded,
    /// It was opened from a source, and tools may use it: what is not here yet is read there by who fills it,
    /// or is an error.
    Opened,
}

/// Seconds since 1970, by the coordinator's clock; 0 when that is not known.
pub type UnixSeconds = u64;

/// What a volume holds, and how it came there. The default: nobody has written it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// What became of the newest load, if there was one. Later writes are in `written` alone.
    pub state: ContentState,
    /// The load that filled it, fills it, or did not come to its end.
    #[serde(default)]
    pub load: Option<Box<Load>>,
    /// By tools, since it was made or loaded.
    #[serde(default)]
    pub written: Option<Written>,
    /// It is proved block by block, and nobody writes it any more.
    #[serde(default)]
    pub sealed: Option<Box<Sealed>>,
    /// It is an overlay: what it holds are changes of another volume, and their table.
    #[serde(default)]
    pub overlay: Option<Box<Overlay>>,
}

/// What an overlay lies over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// The volume, which changes no more and is not deleted while this is there.
    pub of: VolumeId,
    /// Its name.
    pub base: String,
    /// Its bytes, and those of what tools see.
    pub size: u64,
}

/// How a volume was sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// When.
    pub at: UnixSeconds,
    /// The holder of the lease that it was sealed under.
    pub by: String,
    /// What proves each block. BLAKE3 of all bytes of the volume, with zeros where its source could not be
    /// read, as are the others; of an encrypted volume, what the tree over its ciphertext comes to.
    pub root: Root,
    /// Of an encrypted volume: BLAKE3 of its contents, as are the others. Absent: that is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Root>,
    /// MD5, 32 hexadecimal digits.
    pub md5: String,
    /// SHA-1, 40 hexadecimal digits.
    pub sha1: String,
    /// SHA-256, 64 hexadecimal digits.
    pub sha256: String,
    /// The hashes are of what donors gave back. Otherwise of what was sent to them, which they confirmed.
    pub by_reading: bool,
    /// Where the volume's log ended then, with that it was sealed as its last entry.
    #[serde(default)]
    pub custody: Option<Head>,
}

/// From who has a volume for writing: what it is to be from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    /// As in [`Sealed`], like those that follow.
    pub root: Root,
    /// Of an encrypted volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Root>,
    /// 32 hexadecimal digits.
    pub md5: String,
    /// 40 hexadecimal digits.
    pub sha1: String,
    /// 64 hexadecimal digits.
    pub sha256: String,
    /// As in [`Sealed`].
    pub by_reading: bool,
}

impl Sealing {
    /// As of [`Sealed`].
    #[must_use]
    pub fn blake3(&self) -> Root {
        self.contents.unwrap_or(self.root)
    }
}

impl Sealed {
    /// BLAKE3 of the contents, which `b3sum` prints of a copy.
    #[must_use]
    pub fn blake3(&self) -> Root {
        self.contents.unwrap_or(self.root)
    }
}

impl Content {
    /// Whether it holds what its source held, as far as anybody checked.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let differs = self.load.as_ref().is_some_and(|load| load.check == Check::Differs);
        !matches!(self.state, ContentState::Loading | ContentState::Incomplete) && !differs
    }
}

/// The newest load of a volume, also one that is still to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The source that it began with. Only one of the same size and identity can go on.
    pub source: Source,
    /// Who loaded it: `user@host process 123`.
    pub by: String,
    /// The time of its lease; before there is one, the time at which the volume was made for it.
    pub begun: UnixSeconds,
    /// The time of its end, good or bad. Absent while it runs or has not begun.
    #[serde(default)]
    pub ended: Option<UnixSeconds>,
    /// So many bytes from the start are written, as far as was told; of a volume that was opened, so many
    /// wherever they are.
    pub bytes_done: u64,
    /// Of a volume that was opened: how who fills it gets on. Absent: nobody does.
    #[serde(default)]
    pub filling: Option<Filling>,
    /// The volume was made for it, and is nothing without it.
    #[serde(default)]
    pub made: bool,
    /// Of the source as it was read, with zeros where it could not be.
    #[serde(default)]
    pub md5: Option<String>,
    /// 64 hexadecimal digits, where `md5` has 32. Both are absent before the end.
    #[serde(default)]
    pub sha256: Option<String>,
    /// What came of checking what the donors hold.
    #[serde(default)]
    pub check: Check,
    /// How the source changed while it was read.
    #[serde(default)]
    pub changed: Option<String>,
    /// Why it was not sealed at its end, though it was to be.
    #[serde(default)]
    pub unsealed: Option<String>,
    /// What could not be read of the source: it answers an error, and zeros stand for it in the hashes.
    #[serde(default)]
    pub unreadable: Vec<ByteRange>,
    /// What stands on the disk; absent while nobody has looked.
    #[serde(default)]
    pub on_disk: Option<Box<OnDisk>>,
    /// Of a volume that is larger than that: bytes of it that donors hold at most. There is no hash of such a
    /// volume.
    #[serde(default)]
    pub memory: Option<u64>,
}

/// What stands on a disk, as far as its first bytes and those of its partitions say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnDisk {
    /// How the disk says what its parts are.
    pub scheme: Scheme,
    /// In the order of its table, at most `PARTITIONS_TOLD_MAX`. Without a table one, which is all of it.
    pub partitions: Vec<Partition>,
    /// So many more are on it.
    #[serde(default)]
    pub left_out: u64,
}

/// How a disk is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// By a GUID partition table.
    Gpt,
    /// By a master boot record.
    Mbr,
    /// It is not.
    None,
    /// The bytes that would say it cannot be read.
    Unreadable,
}

/// A partition, or all of a disk that has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// As tools count them: from 1 on, the logical ones of an MBR from 5 on.
    pub number: u32,
    /// Bytes from the start of the disk.
    pub offset: u64,
    /// Bytes, as far as the disk goes.
    pub len: u64,
    /// In words: `NTFS`, `encrypted with LUKS`, `no known file system`.
    pub holds: String,
    /// Nothing can be known of it without a key.
    #[serde(default)]
    pub encrypted: bool,
}

/// How who fills an opened volume gets on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filling {
    /// The rate of the last moments.
    pub bytes_per_second: u64,
    /// Only what tools ask for is read.
    #[serde(default)]
    pub paused: bool,
    /// Why nothing can be read or written now; it is tried again and again.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Donors hold as much as the volume may have: only what tools ask for is read.
    #[serde(default)]
    pub full: bool,
}

/// What came of checking what donors hold of a loaded volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// It was not checked, or not to its end.
    #[default]
    No,
    /// All that came back is what the source held, with zeros for what it could not give.
    Same,
    /// Some of what came back is not what the source held: the volume is not usable.
    Differs,
}

/// The file or disk that a volume is loaded from. Nothing is written to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The path of the file or disk.
    pub name: String,
    /// Exact, in bytes.
    pub size: u64,
    /// What tells it from another of that name: its inode and times.
    pub identity: String,
    /// A byte of it that is not what was written would be noticed.
    #[serde(default)]
    pub checksummed: bool,
}

/// What a volume is made to be loaded from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToLoad {
    /// The source; the volume may be larger.
    pub source: Source,
    /// Who will load it.
    pub by: String,
    /// It is opened: tools use it while it is filled, and what is not here yet is not taken for zeros.
    #[serde(default)]
    pub backed: bool,
    /// Of one that is opened: it keeps at most so much of itself on donors, the rest is read again. Absent:
    /// all of it has a place.
    #[serde(default)]
    pub memory: Option<u64>,
}

/// The first write of a tool to a volume, since it was made or loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// When first.
    pub at: UnixSeconds,
    /// The holder of the lease that it was written under.
    pub by: String,
    /// False: whoever had it attached for writing ended without a word.
    pub certain: bool,
}

/// Bytes of a volume or source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ByteRange {
    /// Bytes from the start of the volume or source.
    pub offset: u64,
    /// Bytes; more than 0 in every list.
    pub len: u64,
}

impl ByteRange {
    /// The first byte behind the range, at most `u64::MAX`.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

impl From<Range<u64>> for ByteRange {
    fn from(range: Range<u64>) -> ByteRange {
        ByteRange { offset: range.start, len: range.end.saturating_sub(range.start) }
    }
}

/// What a volume is attached to be filled with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The source. [`FillFrom::Resume`] asks for that of the load before.
    pub source: Source,
    /// What the load may find in the volume.
    pub from: FillFrom,
}

/// What a volume may hold when a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillFrom {
    /// Nothing may have been written before.
    Fresh,
    /// Whatever it holds: the volume is made anew, as large as the source.
    Overwrite,
    /// A load of the same source did not come to its end, or was not checked.
    Resume,
    /// Tools read it meanwhile: the volume was made to be opened from this source, and has what it has.
    Open,
}

/// From the holder of a write lease, about what the volume holds. What is left out is as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tell {
    /// Of a load: so many bytes from the start are written.
    #[serde(default)]
    pub bytes_done: Option<u64>,
    /// More of the source that could not be read.
    #[serde(default)]
    pub unreadable: Vec<ByteRange>,
    /// The load has come to its end.
    #[serde(default)]
    pub loaded: Option<Box<Loaded>>,
    /// Of an opened volume: how filling it gets on.
    #[serde(default)]
    pub filling: Option<Box<Filling>>,
    /// Where who fills an opened volume is asked for what is not here yet.
    #[serde(default)]
    pub filler: Option<Box<Filler>>,
    /// What stands on the disk that fills the volume.
    #[serde(default)]
    pub on_disk: Option<Box<OnDisk>>,
    /// The load ends before its first byte: the volume is as it was made.
    #[serde(default)]
    pub untouched: bool,
    /// A tool has written.
    #[serde(default)]
    pub written: bool,
    /// Who had it for writing is gone: whether it wrote is not known.
    #[serde(default)]
    pub unsure: bool,
    /// The volume is sealed. Nothing else is told beside that but the end of its load: nobody finds the one
    /// without the other.
    #[serde(default)]
    pub sealed: Option<Box<Sealing>>,
}

/// The result of a load that came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// The MD5 of the whole source, what was loaded before a resumption included: 32 hexadecimal digits.
    pub md5: String,
    /// The SHA-256 of the same: 64 hexadecimal digits.
    pub sha256: String,
    /// `No` also while that is still to come.
    pub check: Check,
    /// A sentence about how the source changed meanwhile. Absent: it did not.
    #[serde(default)]
    pub changed: Option<String>,
    /// A sentence about why it is not sealed. Absent: it is not to be, or is.
    #[serde(default)]
    pub unsealed: Option<String>,
    /// All of it.
    #[serde(default)]
    pub unreadable: Vec<ByteRange>,
}

/// Somebody else who has the volume attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// The holder by its own word: `user@host process 123`.
    pub holder: String,
    /// False: it may write.
    pub read_only: bool,
}

/// Adds to a list of ranges.
pub fn cover(list: &mut Vec<ByteRange>, more: impl IntoIterator<Item = ByteRange>) {
    list.extend(more.into_iter().filter(|range| range.len > 0));
    list.sort_unstable();
    join(list, 0);
    let mut gap = 4096;
    while list.len() > UNREADABLE_RANGES_MAX {
        join(list, gap);
        gap = gap.saturating_mul(2);
    }
}

/// Makes one of those that overlap, touch, or have at most `gap` bytes between them.
fn join(list: &mut Vec<ByteRange>, gap: u64) {
    list.dedup_by(|next, last| {
        let joins = next.offset <= last.end().saturating_add(gap);
        if joins {
            last.len = last.end().max(next.end()) - last.offset;
        }
        joins
    });
}

/// The same ranges as runs of the volume's data fragments.
#[must_use]
pub fn in_fragments(map: &VolumeMap, list: &[ByteRange]) -> Vec<BadRange> {
    let geometry = Geometry::new(map.redundancy, map.unit);
    let mut runs = Vec::new();
    for range in list {
        let (mut offset, end) = (range.offset, range.end().min(map.size));
        while offset < end {
            let len = u32::try_from(end - offset).unwrap_or(1 << 30).min(1 << 30);
            for span in map.chunks().spans(offset, len) {
                runs.extend((0..map.redundancy.data).filter_map(|slot| {
                    let (from, to) = geometry.column(span.begin, span.end, slot);
                    (from < to).then_some(BadRange { group: span.group, slot, from, to })
                }));
            }
            offset += u64::from(len);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut list = Vec::new();
        cover(&mut list, [range(4096, 512), range(0, 512), range(4608, 512), range(9, 0), range(300, 100)]);
        assert_eq!(list, [range(0, 512), range(4096, 1024)]);
    }

    #[test]
    fn too_many_become_fewer_and_cover_no_less() {
        let all: Vec<ByteRange> = (0..5_000).map(|at| range(at * 20_000, 512)).collect();
        let mut list = Vec::new();
        cover(&mut list, all.iter().copied());
        assert!(list.len() <= UNREADABLE_RANGES_MAX, "{}", list.len());
        let covered =
            |one: &ByteRange| list.iter().any(|by| by.offset <= one.offset && one.end() <= by.end());
        assert!(all.iter().all(covered));
    }
}
