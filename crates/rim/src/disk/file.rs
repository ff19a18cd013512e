//! The bytes of a file or a block device, past the kernel's cache.
//!
//! Owns opening it for nobody else, reading, writing, flushing, and zeroing without writing where that can
//! be. Never: what the bytes are. Invariant: what is read and written is whole pages at whole pages, from
//! memory that is aligned so (O_DIRECT asks for both). Called by `disk` and its parts. Tests: `lab/disks.rs`.

use crate::own_fault::own_fault;
use cheetah_core::disk::{BadState, NotADisk, PAGE_BYTES};
use cheetah_core::units::show_bytes;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const PAGE: usize = PAGE_BYTES as usize;
/// Writes of more than so much are shared by a few threads.
const SHARED_BYTES: usize = 1 << 20;
const WRITERS: usize = 4;

/// What is read and written in whole pages.
pub(super) trait Blocks: fmt::Debug + Send + Sync {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// All that was written stays, whatever becomes of the machine.
    fn flush(&self) -> io::Result<()>;
    /// Makes a range read as zeros.
    fn zero(&self, at: u64, len: u64) -> io::Result<()>;

    /// It answers nothing any more, and never will.
    fn is_gone(&self) -> bool {
        false
    }

    /// Several writes that do not overlap; what became of each.
    fn write_all(&self, writes: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        writes.iter().map(|(at, bytes)| self.write_at(*at, bytes)).collect()
    }
}

/// Memory that is aligned to a page.
pub(super) struct Pages {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Pages {
    /// Zeros.
    pub(super) fn new(len: usize) -> Pages {
        let bytes = vec![0; if len == 0 { 0 } else { len + PAGE }];
        let skip = if len == 0 { 0 } else { bytes.as_ptr().align_offset(PAGE) };
        Pages { bytes, skip, len }
    }

    pub(super) fn of(bytes: &[u8]) -> Pages {
        let mut pages = Pages::new(bytes.len().next_multiple_of(PAGE));
        pages.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        pages
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.len]
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes)", self.len)
    }
}

/// A file or a block device.
#[derive(Debug)]
pub(super) struct File {
    fd: OwnedFd,
}

/// Why a disk is not taken; the text says what to do.
#[derive(Debug)]
pub enum DiskError {
    /// It is not one of ours, or not one that can be used.
    NotOurs(NotADisk),
    /// What it knows of itself cannot be read.
    State(BadState),
    /// There is nothing, and it was not said how much to make.
    Missing(PathBuf),
    /// It is neither a file nor a block device.
    Neither(PathBuf),
    /// A file system that gives memory, or another machine's disk.
    FileSystem {
        path: PathBuf,
        kind: &'static str,
    },
    /// Another process has it.
    InUse(PathBuf),
    /// It has no room for an extent.
    Small {
        bytes: u64,
        least: u64,
    },
    /// The device is shorter than what was asked for.
    Short {
        asked: u64,
        has: u64,
    },
    /// The file was made with another size.
    Sized {
        asked: u64,
        has: u64,
    },
    /// The file system has no room for all of it.
    Full {
        path: PathBuf,
        bytes: u64,
    },
    /// What a server has cannot be used; in words.
    Export(String),
    Io(io::Error),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::NotOurs(why @ (NotADisk::Other | NotADisk::Damaged)) => write!(
                f,
                "{why}; nothing was changed. If it may be lost, wipe it first (`wipefs -a`, or delete the file)"
            ),
            DiskError::NotOurs(why) => write!(f, "{why}; nothing was changed"),
            DiskError::State(why) => {
                write!(f, "{why}; nothing was changed. Its donor is lost: wipe it to lend it anew")
            }
            DiskError::Missing(path) => {
                write!(f, "there is no {0}: say how large it shall be, --disk {0}:SIZE", path.display())
            }
            DiskError::Neither(path) => {
                write!(f, "{} is neither a file nor a block device", path.display())
            }
            DiskError::FileSystem { path, kind } => write!(
                f,
                "{} is on {kind}: what is lent as disk has to be on a disk of this machine",
                path.display()
            ),
            DiskError::InUse(path) => {
                write!(f, "{} is in use, by another donor or mounted", path.display())
            }
            DiskError::Small { bytes, least } => {
                write!(f, "it has {}, and the smallest disk has {}", show_bytes(*bytes), show_bytes(*least))
            }
            DiskError::Short { asked, has } => {
                write!(f, "it has {}, which is less than {}", show_bytes(*has), show_bytes(*asked))
            }
            DiskError::Sized { asked, has } => write!(
                f,
                "it is there with {}, not {}: leave the size out to lend it as it is",
                show_bytes(*has),
                show_bytes(*asked)
            ),
            DiskError::Full { path, bytes } => write!(
                f,
                "the file system of {} has no room for {}; nothing was left behind",
                path.display(),
                show_bytes(*bytes)
            ),
            DiskError::Export(why) => f.write_str(why),
            DiskError::Io(error) => f.write_str(&own_fault(error)),
        }
    }
}

impl std::error::Error for DiskError {}

impl File {
    /// Opens it for nobody else, or makes a file of so many bytes; and how many of it are used.
    pub(super) fn open(path: &Path, bytes: Option<u64>) -> Result<(File, u64), DiskError> {
        let kind = match std::fs::metadata(path) {
            Ok(there) => Some(FileType::from_raw_mode(std::os::unix::fs::MetadataExt::mode(&there))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(DiskError::Io(error)),
        };
        match (kind, bytes) {
            (None, None) => Err(DiskError::Missing(path.to_owned())),
            (None, Some(bytes)) => File::make(path, bytes),
            (Some(FileType::RegularFile), asked) => {
                let file = File::at(path, OFlags::empty())?;
                let has = rustix::fs::fstat(&file.fd).map_err(io_error)?.st_size;
                let has = u64::try_from(has).unwrap_or(0);
                match asked.filter(|asked| *asked != has) {
                    Some(asked) => Err(DiskError::Sized { asked, has }),
                    None => Ok((file, has)),
                }
            }
            (Some(FileType::BlockDevice), asked) => {
                // Nobody has it mounted, or opened so.
                let file = File::at(path, OFlags::EXCL)?;
                let has = rustix::fs::seek(&file.fd, rustix::fs::SeekFrom::End(0)).map_err(io_error)?;
                match asked.filter(|asked| *asked > has) {
                    Some(asked) => Err(DiskError::Short { asked, has }),
                    None => Ok((file, asked.unwrap_or(has))),
                }
            }
            _ => Err(DiskError::Neither(path.to_owned())),
        }
    }

    fn at(path: &Path, more: OFlags) -> Result<File, DiskError> {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | more;
        let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let fd = opened.map_err(|error| match error {
            rustix::io::Errno::BUSY => DiskError::InUse(path.to_owned()),
            error => DiskError::Io(error.into()),
        })?;
        if let Some(kind) = elsewhere(&fd) {
            return Err(DiskError::FileSystem { path: path.to_owned(), kind });
        }
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(File { fd }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DiskError::InUse(path.to_owned())),
            Err(error) => Err(DiskError::Io(error.into())),
        }
    }

    /// At full size from the beginning: it does not run out of room later.
    fn make(path: &Path, bytes: u64) -> Result<(File, u64), DiskError> {
        let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let file = match File::at(path, OFlags::CREATE | OFlags::EXCL) {
            Err(error @ DiskError::FileSystem { .. }) => {
                let _ = std::fs::remove_file(path);
                return Err(error);
            }
            other => other?,
        };
        let made = rustix::fs::fallocate(&file.fd, FallocateFlags::empty(), 0, bytes);
        match made {
            Ok(()) => Ok((file, bytes)),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(match error {
                    rustix::io::Errno::NOSPC => DiskError::Full { path: path.to_owned(), bytes },
                    error => DiskError::Io(error.into()),
                })
            }
        }
    }
}

/// What a path is on that is no disk of this machine.
fn elsewhere(fd: &OwnedFd) -> Option<&'static str> {
    match rustix::fs::fstatfs(fd).ok()?.f_type {
        0x0102_1994 | 0x8584_58f6 => Some("tmpfs, which is memory"),
        0x6969 => Some("NFS, another machine's disk"),
        0xfe53_4d42 | 0xff53_4d42 | 0x517b => Some("SMB, another machine's disk"),
        _ => None,
    }
}

fn io_error(error: rustix::io::Errno) -> DiskError {
    DiskError::Io(error.into())
}

impl Blocks for File {
    fn read_at(&self, at: u64, mut into: &mut [u8]) -> io::Result<()> {
        let mut at = at;
        while !into.is_empty() {
            match rustix::io::pread(&self.fd, &mut *into, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => (at, into) = (at + got as u64, &mut into[got..]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.fd, bytes, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(put) => (at, bytes) = (at + put as u64, &bytes[put..]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        // A file keeps its place on the disk, and a device is told that nothing of it is needed.
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.fd, flags, at, len).is_ok() {
            return Ok(());
        }
        let zeros = Pages::new(SHARED_BYTES);
        let mut done = 0;
        while done < len {
            let next = (len - done).min(SHARED_BYTES as u64);
            self.write_at(at + done, &zeros.bytes()[..usize::try_from(next).expect("at most a piece")])?;
            done += next;
        }
        Ok(())
    }

    fn write_all(&self, writes: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let bytes: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
        let each = |writes: &[(u64, &[u8])]| -> Vec<io::Result<()>> {
            writes.iter().map(|(at, bytes)| self.write_at(*at, bytes)).collect()
        };
        if bytes <= SHARED_BYTES || writes.len() == 1 {
            return each(writes);
        }
        std::thread::scope(|scope| {
            let shares = writes.chunks(writes.len().div_ceil(WRITERS));
            let writers: Vec<_> = shares.map(|share| scope.spawn(move || each(share))).collect();
            let ended = writers.into_iter().map(|writer| writer.join().expect("a write does not panic"));
            ended.flatten().collect()
        })
    }
}
