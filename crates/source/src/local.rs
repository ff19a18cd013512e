//! A file or a disk of this machine.
//!
//! Owns: opening it read-only, a disk alone where the kernel gives that, its exact size, reads of single
//! sectors past the page cache, and what tells that it is another one or was written. Never: writing to it;
//! it is opened without the right to. Called by `raw`. Tests: `raw`, `lab/tests/evidence.rs`,
//! `lab/tests/remote.rs`.

use crate::medium::{Medium, Opened, not_there};
use crate::{Options, SourceError, device, mounts, past_errors};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// O_DIRECT.
const DIRECT: i32 = i32::from_ne_bytes(rustix::fs::OFlags::DIRECT.bits().to_ne_bytes());
/// O_EXCL: of a block device, that nobody else claims it.
const ALONE: i32 = i32::from_ne_bytes(rustix::fs::OFlags::EXCL.bits().to_ne_bytes());
/// Memory for it lies on such a border.
const BORDER_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Local {
    path: PathBuf,
    file: File,
    /// As it was when it was opened.
    stamp: Stamp,
    /// The same file past the page cache, for what that cannot read; of a page there a sector may be good.
    direct: OnceLock<Option<File>>,
}

/// What of a file tells that it is another one, or was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds. Those of a disk's node say nothing of the disk.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Local {
    pub fn open(path: &Path, options: &Options) -> Opened {
        let fault = |why: String| SourceError::Open { path: path.to_path_buf(), why };
        let is_one = |kind: &Metadata| kind.is_file() || kind.file_type().is_block_device();
        // Before it is opened: a FIFO would wait for who writes it, and a device may act on being opened.
        let kind = match std::fs::metadata(path) {
            Err(why) => return not_there(&why, fault),
            Ok(kind) if !is_one(&kind) => {
                return Err(fault("it is neither a file nor a block device".into()));
            }
            Ok(kind) => {
                if kind.file_type().is_block_device()
                    && !options.mounted
                    && let Some(why) = mounts::written_through(kind.rdev())
                {
                    return Err(SourceError::InUse { path: path.to_path_buf(), why });
                }
                open(path, &kind).and_then(|file| Ok((file.metadata()?, file)))
            }
        };
        let (kind, file) = kind.map_err(|e| fault(e.to_string()))?;
        if !is_one(&kind) {
            return Err(fault("it is neither a file nor a block device".into()));
        }
        let size = size_of(&file, &kind).map_err(|e| fault(e.to_string()))?;
        let stamp = Stamp::of(&kind, size);
        Ok(Some(Box::new(Local { path: path.to_path_buf(), file, stamp, direct: OnceLock::new() })))
    }
}

/// For reading. A disk alone, where nobody else has it: nobody mounts it meanwhile.
fn open(path: &Path, kind: &Metadata) -> io::Result<File> {
    if kind.file_type().is_block_device() {
        match File::options().read(true).custom_flags(ALONE).open(path) {
            Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {}
            other => return other,
        }
    }
    File::open(path)
}

fn size_of(mut file: &File, kind: &Metadata) -> io::Result<u64> {
    match kind.file_type().is_block_device() {
        true => io::Seek::seek(&mut file, io::SeekFrom::End(0)),
        false => Ok(kind.len()),
    }
}

impl Medium for Local {
    fn size(&self) -> u64 {
        self.stamp.size
    }

    fn what(&self) -> &'static str {
        if self.stamp.is_disk() { "disk" } else { "raw image" }
    }

    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(room, offset)
    }

    /// Past the page cache where that can be: a read of one sector that is no read of its page.
    fn read_sectors_at(&self, offset: u64, part: &mut [u8]) -> io::Result<usize> {
        let direct = self.direct.get_or_init(|| {
            let mut options = File::options();
            options.read(true).custom_flags(DIRECT);
            options.open(&self.path).ok()
        });
        // What is written past the cache must lie on a border; of the last sector of a file the rest is cut
        // off.
        if let Some(file) = direct {
            let len = part.len().next_multiple_of(past_errors::SECTOR_BYTES);
            let mut room = vec![0; len + BORDER_BYTES];
            let lead = room.as_ptr().align_offset(BORDER_BYTES);
            let aligned = &mut room[lead..lead + len];
            match file.read_at(aligned, offset) {
                Ok(count) if count >= part.len() => {
                    part.copy_from_slice(&aligned[..part.len()]);
                    return Ok(part.len());
                }
                Err(why) if past_errors::is_of_the_medium(&why) => return Err(why),
                // It cannot, or not in pieces this small.
                _ => {}
            }
        }
        self.read_at(offset, part)
    }

    fn identity(&self) -> String {
        let Stamp { inode, modified: (seconds, nanoseconds), .. } = self.stamp;
        match self.stamp.is_disk() {
            true => {
                let told =
                    self.file.metadata().map_or_else(|_| String::new(), |kind| device::told(kind.rdev()));
                let comma = if told.is_empty() { "" } else { ", " };
                format!("block device {}{comma}{told}", self.path.display())
            }
            false => format!("inode {inode}, modified {seconds}.{nanoseconds:09}"),
        }
    }

    fn changed(&self) -> Option<String> {
        let is = self.file.metadata().and_then(|kind| Ok(Stamp::of(&kind, size_of(&self.file, &kind)?)));
        let is = match is {
            Ok(is) => is,
            Err(why) => return Some(format!("it cannot be looked at any more ({why})")),
        };
        if is.size != self.stamp.size {
            return Some(format!("it had {} bytes and has {}", self.stamp.size, is.size));
        }
        if is != self.stamp {
            return Some("it was written, or its times were set".to_owned());
        }
        match std::fs::metadata(&self.path) {
            Ok(there) if there.ino() == is.inode => None,
            Ok(_) => Some("another file stands in its place".to_owned()),
            Err(why) => Some(format!("nothing stands in its place ({why})")),
        }
    }
}

impl Stamp {
    fn of(kind: &Metadata, size: u64) -> Stamp {
        let times = !kind.file_type().is_block_device();
        let time = |at: (i64, i64)| if times { at } else { (0, 0) };
        let modified = time((kind.mtime(), kind.mtime_nsec()));
        let changed = time((kind.ctime(), kind.ctime_nsec()));
        Stamp { inode: kind.ino(), size, modified, changed }
    }

    fn is_disk(&self) -> bool {
        self.changed == (0, 0)
    }
}
