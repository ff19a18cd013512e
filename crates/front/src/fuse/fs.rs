//! The file system: one directory, one file, `NAME.raw`, exactly as large as the volume.
//!
//! Owns: what each operation of the kernel means for a file that behaves like a block device: it cannot grow,
//! shrink, be removed or renamed; truncation is accepted and changes nothing, so tools that open with O_TRUNC
//! work. Never: waits, or speaks to the kernel or the volume; it says what is to be answered, or asked of the
//! volume. Called by `session`. Tests: below; through a mounted volume, `tests/file.rs` and end to end.

use super::held::Held;
use super::offers::LARGE_MAX;
use super::requests::Want;
use super::users::Opened;
use super::wire::{self, Attr, Body, DirEntry, Op, Request, Terms};
use crate::changes::{Changes, Seen};
use cheetah_rim::buffer::{LARGE_BYTES, LARGE_COUNT};
use cheetah_rim::volume::VolumeHandle;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub(super) const FILE: u64 = 2;
/// The name stays.
const TTL: Duration = Duration::from_secs(3600);
/// The time of the last write and what is held change with writes that do not come through the file, and who
/// takes an old number for a hole loses what was written.
const ATTRIBUTES_TTL: Duration = Duration::ZERO;
const BACKGROUND_MAX: u16 = 32;
// Or the session would wait for buffers, and whoever asks for something small behind it; one is where
// requests land.
const _: () = assert!(BACKGROUND_MAX as usize + LARGE_MAX < LARGE_COUNT);
const BLOCK_BYTES: u32 = 4096;
const NAME_MAX: u32 = 255;

pub(super) fn terms() -> Terms {
    Terms {
        write_max: LARGE_BYTES as u32,
        readahead_max: 16 << 20,
        background_max: BACKGROUND_MAX,
        page_bytes: u32::try_from(rustix::param::page_size()).unwrap_or(BLOCK_BYTES),
    }
}

#[derive(Debug)]
pub(super) struct VolumeFs {
    pub(super) handle: VolumeHandle,
    pub(super) file_name: OsString,
    pub(super) read_only: bool,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mounted_at: SystemTime,
    pub(super) changes: Changes,
    pub(super) held: Arc<Held>,
    pub(super) opened: Arc<Opened>,
    /// None: the cache is dropped at every open.
    pub(super) cache: Option<Seen>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Body(Body),
    /// Those of the file, once it is counted what is held.
    Attributes {
        asked: Instant,
    },
    Error(Errno),
    /// The kernel expects none.
    None,
    // What the volume is asked; none of these is empty.
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        len: u32,
    },
    Flush,
    Zero {
        at: u64,
        end: u64,
        keep: bool,
    },
    Seek {
        at: u64,
        end: u64,
        want: Want,
    },
}

/// What `fallocate` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Allocation {
    Zero { end: u64, keep: bool },
    Nothing,
    Refused(Errno),
}

fn allocation(mode: i32, offset: u64, length: u64, size: u64) -> Allocation {
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let keep = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => false,
        libc::FALLOC_FL_ZERO_RANGE => true,
        // As a block device answers: nothing can be promised in advance.
        _ => return Allocation::Refused(Errno::OPNOTSUPP),
    };
    let Some(end) = offset.checked_add(length) else { return Allocation::Refused(Errno::FBIG) };
    if end > size && !keeps_size {
        return Allocation::Refused(Errno::NOSPC);
    }
    let end = end.min(size);
    if offset >= end { Allocation::Nothing } else { Allocation::Zero { end, keep } }
}

impl VolumeFs {
    /// A write has `behind` bytes behind its head.
    pub(super) fn answer(&self, request: &Request<'_>, behind: usize) -> Answer {
        let inode = request.inode;
        match request.op {
            Op::Lookup { name } => self.lookup(inode, name),
            Op::GetAttr => self.get_attributes(inode),
            Op::SetAttr { size, access } => self.set_attributes(inode, size, access),
            Op::Open { flags } => self.open(inode, flags),
            Op::OpenDir => {
                self.opened.open();
                Answer::Body(Body::opened(0))
            }
            Op::Release => {
                self.opened.close();
                Answer::Body(Body::default())
            }
            Op::ReadDir { from, room } => self.read_directory(inode, from, room),
            Op::Read { offset, len } => self.read(inode, offset, len),
            Op::Write { len, .. } if behind != len as usize => Answer::Error(Errno::IO),
            Op::Write { offset, len } => self.write(inode, offset, len),
            Op::Sync => Answer::Flush,
            Op::Allocate { offset, len, mode } => self.allocate(inode, offset, len, mode),
            Op::Seek { offset, whence } => self.seek(inode, offset, whence),
            Op::StatFs => {
                let blocks = self.size().div_ceil(u64::from(BLOCK_BYTES));
                Answer::Body(Body::file_system(blocks, 2, BLOCK_BYTES, NAME_MAX))
            }
            Op::Nothing | Op::Destroy => Answer::Body(Body::default()),
            Op::Forget => Answer::None,
            Op::Rename => Answer::Error(Errno::PERM),
            // Of some the kernel then asks no more: access (it checks itself), extended attributes,
            // interrupts.
            Op::Init(_) | Op::Unknown => Answer::Error(Errno::NOSYS),
            Op::Malformed => Answer::Error(Errno::IO),
        }
    }

    fn size(&self) -> u64 {
        self.handle.size()
    }

    fn get_attributes(&self, inode: u64) -> Answer {
        let asked = Instant::now();
        self.held.refresh(asked);
        match self.attributes(inode, asked) {
            Some(_) if inode == FILE && self.held.is_to_come(asked) => Answer::Attributes { asked },
            Some(attr) => Answer::Body(Body::attributes(&attr, ATTRIBUTES_TTL)),
            None => Answer::Error(Errno::NOENT),
        }
    }

    /// Of the file, for who asked at that time.
    pub(super) fn attributes_now(&self, asked: Instant) -> Body {
        let attr = self.attributes(FILE, asked).expect("the file is always there");
        Body::attributes(&attr, ATTRIBUTES_TTL)
    }

    fn attributes(&self, inode: u64, asked: Instant) -> Option<Attr> {
        let (mode, size, links) = match inode {
            wire::ROOT => (libc::S_IFDIR | 0o500, 0, 2),
            FILE if self.read_only => (libc::S_IFREG | 0o400, self.size(), 1),
            FILE => (libc::S_IFREG | 0o600, self.size(), 1),
            _ => return None,
        };
        let held = if inode == FILE { self.held.bytes(size, asked) } else { 0 };
        let (uid, gid, changed) = (self.uid, self.gid, self.changed());
        Some(Attr { inode, size, held, mode, links, uid, gid, block_bytes: BLOCK_BYTES, changed })
    }

    /// When it was last written; before that, when it was attached.
    fn changed(&self) -> SystemTime {
        match self.changes.written_ns() {
            0 => self.mounted_at,
            nanos => SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Answer {
        match self.attributes(FILE, Instant::now()) {
            Some(attr) if parent == wire::ROOT && name == self.file_name.as_bytes() => {
                Answer::Body(Body::entry(&attr, TTL, ATTRIBUTES_TTL))
            }
            _ => Answer::Error(Errno::NOENT),
        }
    }

    fn set_attributes(&self, inode: u64, size: Option<u64>, access: bool) -> Answer {
        let Some(attr) = self.attributes(inode, Instant::now()) else { return Answer::Error(Errno::NOENT) };
        if self.read_only {
            return Answer::Error(Errno::ROFS);
        }
        if access {
            return Answer::Error(Errno::PERM);
        }
        match size {
            Some(_) if inode != FILE => Answer::Error(Errno::ISDIR),
            Some(size) if size > attr.size => Answer::Error(Errno::FBIG),
            // Times are accepted and not kept: nobody should believe them of a device.
            _ => Answer::Body(Body::attributes(&attr, ATTRIBUTES_TTL)),
        }
    }

    fn open(&self, inode: u64, flags: u32) -> Answer {
        if inode != FILE {
            return Answer::Error(Errno::ISDIR);
        }
        if self.read_only && flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY {
            return Answer::Error(Errno::ROFS);
        }
        let mut flags = wire::OPEN_NOFLUSH | wire::OPEN_PARALLEL_DIRECT_WRITES;
        if self.cache.as_ref().is_some_and(|cache| cache.holds(Instant::now())) {
            flags |= wire::OPEN_KEEP_CACHE;
        }
        if self.cache.is_none() {
            self.handle.forget();
        }
        self.opened.open();
        Answer::Body(Body::opened(flags))
    }

    fn read_directory(&self, inode: u64, from: u64, room: u32) -> Answer {
        if inode != wire::ROOT {
            return Answer::Error(Errno::NOTDIR);
        }
        let entry = |inode, mode, name| DirEntry { inode, mode, name };
        let entries = [
            entry(wire::ROOT, libc::S_IFDIR, b".".as_slice()),
            entry(wire::ROOT, libc::S_IFDIR, b".."),
            entry(FILE, libc::S_IFREG, self.file_name.as_bytes()),
        ];
        Answer::Body(Body::directory(&entries, from, room))
    }

    /// As much of it as there is.
    fn within(&self, offset: u64, len: u32) -> u32 {
        let left = self.size().saturating_sub(offset);
        u32::try_from(left).map_or(len, |left| len.min(left))
    }

    fn read(&self, inode: u64, offset: u64, len: u32) -> Answer {
        if inode != FILE {
            return Answer::Error(Errno::ISDIR);
        }
        match self.within(offset, len) {
            0 => Answer::Body(Body::default()),
            len => Answer::Read { offset, len },
        }
    }

    fn write(&self, inode: u64, offset: u64, len: u32) -> Answer {
        if inode != FILE {
            return Answer::Error(Errno::ISDIR);
        }
        if self.read_only {
            return Answer::Error(Errno::ROFS);
        }
        if len == 0 {
            return Answer::Body(Body::nothing_written());
        }
        // As on a block device: up to the end, then ENOSPC.
        match self.within(offset, len) {
            0 => Answer::Error(Errno::NOSPC),
            len => {
                self.changes.touch();
                Answer::Write { offset, len }
            }
        }
    }

    fn allocate(&self, inode: u64, offset: u64, len: u64, mode: u32) -> Answer {
        if inode != FILE {
            return Answer::Error(Errno::ISDIR);
        }
        if self.read_only {
            return Answer::Error(Errno::ROFS);
        }
        match allocation(mode.cast_signed(), offset, len, self.size()) {
            Allocation::Zero { end, keep } => {
                self.changes.touch();
                Answer::Zero { at: offset, end, keep }
            }
            Allocation::Nothing => Answer::Body(Body::default()),
            Allocation::Refused(errno) => Answer::Error(errno),
        }
    }

    fn seek(&self, inode: u64, at: u64, whence: u32) -> Answer {
        let end = self.size();
        let want = match whence.cast_signed() {
            libc::SEEK_DATA => Want::Data,
            libc::SEEK_HOLE => Want::Hole,
            // The kernel answers the others itself.
            _ => return Answer::Error(Errno::INVAL),
        };
        if inode != FILE || at >= end {
            return Answer::Error(Errno::NXIO);
        }
        Answer::Seek { at, end, want }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;

    #[test]
    fn holes_and_zeroes_end_with_the_file() {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        assert_eq!(allocation(punch, 0, 10, 100), Allocation::Zero { end: 10, keep: false });
        assert_eq!(allocation(punch, 90, 50, 100), Allocation::Zero { end: 100, keep: false });
        assert_eq!(allocation(punch, 100, 50, 100), Allocation::Nothing);
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        assert_eq!(allocation(zero, 5, 10, 100), Allocation::Zero { end: 15, keep: true });
        assert_eq!(allocation(zero | KEEP, 95, 10, 100), Allocation::Zero { end: 100, keep: true });
        assert_eq!(allocation(zero, 95, 10, 100), Allocation::Refused(Errno::NOSPC));
    }

    #[test]
    fn what_a_device_cannot_do_is_refused() {
        assert_eq!(allocation(0, 0, 10, 100), Allocation::Refused(Errno::OPNOTSUPP));
        assert_eq!(
            allocation(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 10, 100),
            Allocation::Refused(Errno::OPNOTSUPP)
        );
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        assert_eq!(allocation(zero, u64::MAX, 10, 100), Allocation::Refused(Errno::FBIG));
    }
}
