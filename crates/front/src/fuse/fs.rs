//! The file system: one directory, one file, `NAME.raw`, exactly as large as the volume.
//!
//! Owns: what each operation of the kernel means for a file that behaves like a block device: it cannot grow,
//! shrink, be removed or renamed; truncation is accepted and changes nothing, so tools that open with O_TRUNC work.
//! Never: waits for the network; a handler hands its reply to `Requests` and returns. The waits it has are for a
//! buffer or a slot, which bound what is on its way.
//! Called by fuser's threads. Tests: below; through a mounted volume, end to end.

use super::offers::LARGE_MAX;
use super::requests::{Requests, Want};
use crate::changes::Seen;
use cheetah_rim::buffer::LARGE_COUNT;
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

pub(super) const FILE: INodeNo = INodeNo(2);
const NO_HANDLE: FileHandle = FileHandle(0);
/// Attributes change only when the volume grows, and then the kernel is told.
const TTL: Duration = Duration::from_secs(3600);
const MAX_WRITE_BYTES: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 32;
// Or the threads that read requests would wait for buffers, and whoever asks for something small behind them.
const _: () = assert!(MAX_BACKGROUND as usize + LARGE_MAX <= LARGE_COUNT);
const READAHEAD_BYTES_MAX: u32 = 16 << 20;
const BLOCK_BYTES: u32 = 4096;

#[derive(Debug)]
pub(super) struct VolumeFs {
    pub(super) requests: Arc<Requests>,
    pub(super) file_name: OsString,
    pub(super) read_only: bool,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mounted_at: SystemTime,
    /// None: the cache is dropped at every open.
    pub(super) cache: Option<Seen>,
    pub(super) ended: watch::Sender<bool>,
}

impl VolumeFs {
    fn size(&self) -> u64 {
        self.requests.handle.size()
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size, nlink) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0, 2),
            FILE if self.read_only => (FileType::RegularFile, 0o400, self.size(), 1),
            FILE => (FileType::RegularFile, 0o600, self.size(), 1),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind,
            perm,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }
}

/// What `fallocate` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Allocation {
    Zero { end: u64, keep: bool },
    Nothing,
    Refused(i32),
}

fn allocation(mode: i32, offset: u64, length: u64, size: u64) -> Allocation {
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let keep = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => false,
        libc::FALLOC_FL_ZERO_RANGE => true,
        // As a block device answers: nothing can be promised in advance.
        _ => return Allocation::Refused(libc::EOPNOTSUPP),
    };
    let Some(end) = offset.checked_add(length) else { return Allocation::Refused(libc::EFBIG) };
    if end > size && !keeps_size {
        return Allocation::Refused(libc::ENOSPC);
    }
    let end = end.min(size);
    if offset >= end { Allocation::Nothing } else { Allocation::Zero { end, keep } }
}

impl Filesystem for VolumeFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each of these answers with the nearest value that works.
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        if let Err(most) = config.set_max_readahead(READAHEAD_BYTES_MAX) {
            let _ = config.set_max_readahead(most);
        }
        // Without ASYNC_DIO the kernel waits for each O_DIRECT request of a loop device or of fio in turn. With
        // EXPLICIT_INVAL_DATA growth does not throw away what is cached of the file.
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_EXPLICIT_INVAL_DATA] {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "this kernel's FUSE lacks a capability");
            }
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.ended.send_replace(true);
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(attr) if parent == INodeNo::ROOT && name == self.file_name => {
                reply.entry(&TTL, &attr, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attr) = self.attributes(inode) else { return reply.error(Errno::ENOENT) };
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match size {
            Some(_) if inode != FILE => reply.error(Errno::EISDIR),
            Some(size) if size > attr.size => reply.error(Errno::EFBIG),
            // Times are accepted and not kept: nobody should believe them of a device.
            _ => reply.attr(&TTL, &attr),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        if self.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let mut flags = FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        if self.cache.as_ref().is_some_and(|cache| cache.holds(Instant::now())) {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        if self.cache.is_none() {
            self.requests.handle.forget();
        }
        reply.opened(NO_HANDLE, flags);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        let left = self.size().saturating_sub(offset);
        let len = u32::try_from(left).map_or(size, |left| size.min(left));
        if len == 0 {
            return reply.data(&[]);
        }
        self.requests.read(offset, len, reply);
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        if data.is_empty() {
            return reply.written(0);
        }
        // As on a block device: up to the end, then ENOSPC.
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).map_or(data.len(), |left| data.len().min(left));
        if len == 0 {
            return reply.error(Errno::ENOSPC);
        }
        self.requests.write(offset, &data[..len], reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.requests.flush(reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.requests.flush(reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        match allocation(mode, offset, length, self.size()) {
            Allocation::Zero { end, keep } => self.requests.zero(offset, end, keep, reply),
            Allocation::Nothing => reply.ok(),
            Allocation::Refused(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn lseek(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let size = self.size();
        let want = match whence {
            libc::SEEK_DATA => Want::Data,
            libc::SEEK_HOLE => Want::Hole,
            // The kernel answers the others itself.
            _ => return reply.error(Errno::EINVAL),
        };
        match u64::try_from(offset) {
            Ok(at) if inode == FILE && at < size => self.requests.seek(at, size, want, reply),
            _ => reply.error(Errno::ENXIO),
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, self.file_name.as_os_str()),
        ];
        for (next, (inode, kind, name)) in (1u64..).zip(entries) {
            if next > offset && reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = self.size().div_ceil(u64::from(BLOCK_BYTES));
        reply.statfs(blocks, 0, 0, 2, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks (default_permissions), and asks no more after this answer.
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
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
        assert_eq!(allocation(zero, 95, 10, 100), Allocation::Refused(libc::ENOSPC));
    }

    #[test]
    fn what_a_device_cannot_do_is_refused() {
        assert_eq!(allocation(0, 0, 10, 100), Allocation::Refused(libc::EOPNOTSUPP));
        assert_eq!(
            allocation(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 10, 100),
            Allocation::Refused(libc::EOPNOTSUPP)
        );
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        assert_eq!(allocation(zero, u64::MAX, 10, 100), Allocation::Refused(libc::EFBIG));
    }
}
