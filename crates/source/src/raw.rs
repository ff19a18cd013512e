//! A raw image or a disk: its bytes are the disk's.
//!
//! Owns: opening it read-only, its exact size, errors that say where in it reading failed, going on past them
//! (`past_errors`), and whether it changed while it was read. Never: writing to it; it is opened without the
//! right to. Every other format stands on it: it is how all files of an image are read. Called by `open` and
//! all readers. Tests: below.

use crate::{Source, SourceError, Unreadable, past_errors};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// O_DIRECT.
const DIRECT: i32 = i32::from_ne_bytes(rustix::fs::OFlags::DIRECT.bits().to_ne_bytes());
/// Memory for it lies on such a border.
const BORDER_BYTES: usize = 4096;

/// A raw image or a disk, opened for reading.
#[derive(Debug)]
pub struct RawSource {
    path: PathBuf,
    file: File,
    size: u64,
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

impl RawSource {
    /// # Errors
    /// `SourceError::Open`.
    pub fn open(path: &Path) -> Result<RawSource, SourceError> {
        let fault = |why: String| SourceError::Open { path: path.to_path_buf(), why };
        let look = |kind: io::Result<Metadata>| {
            let kind = kind.map_err(|e| fault(e.to_string()))?;
            let is_one = kind.is_file() || kind.file_type().is_block_device();
            is_one.then_some(kind).ok_or_else(|| fault("it is neither a file nor a block device".into()))
        };
        // Before it is opened: a FIFO would wait for who writes it, and a device may act on being opened.
        look(std::fs::metadata(path))?;
        let file = File::open(path).map_err(|e| fault(e.to_string()))?;
        let kind = look(file.metadata())?;
        let size = if kind.file_type().is_block_device() {
            io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(|e| fault(e.to_string()))?
        } else {
            kind.len()
        };
        if size == 0 {
            return Err(fault("it is empty".into()));
        }
        let stamp = Stamp::of(&kind, size);
        Ok(RawSource { path: path.to_path_buf(), file, size, stamp, direct: OnceLock::new() })
    }

    /// Past the page cache where that can be: a read of one sector that is no read of its page.
    fn read_sectors(&self, offset: u64, part: &mut [u8]) -> Result<(), SourceError> {
        let direct = self.direct.get_or_init(|| {
            let mut options = File::options();
            options.read(true).custom_flags(DIRECT);
            options.open(&self.path).ok()
        });
        // What is written past the cache must lie on a border; of the last sector of a file the rest is cut
        // off.
        if let Some(file) = direct {
            let mut room = vec![0; part.len().next_multiple_of(past_errors::SECTOR_BYTES) + BORDER_BYTES];
            let lead = room.as_ptr().align_offset(BORDER_BYTES);
            let len = part.len().next_multiple_of(past_errors::SECTOR_BYTES);
            let aligned = &mut room[lead..lead + len];
            match file.read_at(aligned, offset) {
                Ok(count) if count >= part.len() => {
                    part.copy_from_slice(&aligned[..part.len()]);
                    return Ok(());
                }
                Err(why) if past_errors::is_of_the_medium(&why) => {
                    return Err(SourceError::Read { path: self.path.clone(), offset, why });
                }
                // It cannot, or not in pieces this small.
                _ => {}
            }
        }
        self.read_exact_at(offset, part)
    }
}

impl Source for RawSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn describe(&self) -> String {
        if self.stamp.is_disk() { "disk".to_owned() } else { "raw image".to_owned() }
    }

    fn is_bare(&self) -> bool {
        true
    }

    fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
        let mut done = 0;
        while done < room.len() {
            let at = offset + done as u64;
            match self.file.read_at(&mut room[done..], at) {
                Ok(0) => {
                    return Err(SourceError::Short { path: self.path.clone(), offset: at, size: self.size });
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(SourceError::Read { path: self.path.clone(), offset: at, why }),
            }
        }
        Ok(())
    }

    fn read_past_errors_at(&self, offset: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
        let why = match self.read_exact_at(offset, room) {
            Err(SourceError::Read { why, .. }) if past_errors::is_of_the_medium(&why) => why.to_string(),
            other => return other.map(|()| Vec::new()),
        };
        let mut short = None;
        let mut read = |at: usize, part: &mut [u8]| match self.read_sectors(offset + at as u64, part) {
            Err(SourceError::Read { why, .. }) => Err(why),
            Err(other) => {
                short = Some(other);
                Err(io::Error::from(io::ErrorKind::UnexpectedEof))
            }
            Ok(()) => Ok(()),
        };
        let filled = past_errors::fill(room, past_errors::SECTOR_BYTES, &mut read);
        match (filled, short) {
            (_, Some(short)) => Err(short),
            (Err(why), None) => Err(SourceError::Read { path: self.path.clone(), offset, why }),
            (Ok(ranges), None) => {
                let place = |range: Range<usize>| Unreadable {
                    range: offset + range.start as u64..offset + range.end as u64,
                    why: why.clone(),
                };
                Ok(ranges.into_iter().map(place).collect())
            }
        }
    }

    fn identity(&self) -> String {
        let Stamp { inode, modified: (seconds, nanoseconds), .. } = self.stamp;
        match self.stamp.is_disk() {
            true => format!("block device {}", self.path.display()),
            false => format!("inode {inode}, modified {seconds}.{nanoseconds:09}"),
        }
    }

    fn changed(&self) -> Option<String> {
        let looked = |kind: io::Result<Metadata>| {
            let kind = kind?;
            let size = if kind.file_type().is_block_device() {
                io::Seek::seek(&mut &self.file, io::SeekFrom::End(0))?
            } else {
                kind.len()
            };
            Ok::<Stamp, io::Error>(Stamp::of(&kind, size))
        };
        let is = match looked(self.file.metadata()) {
            Ok(is) => is,
            Err(why) => return Some(format!("it cannot be looked at any more ({why})")),
        };
        if is.size != self.size {
            return Some(format!("it had {} bytes and has {}", self.size, is.size));
        }
        if is != self.stamp {
            return Some("it was written, or its times were set".to_owned());
        }
        match looked(std::fs::metadata(&self.path)) {
            Ok(there) if there.inode == is.inode => None,
            Ok(_) => Some("another file stands in its place".to_owned()),
            Err(why) => Some(format!("nothing stands in its place ({why})")),
        }
    }

    fn is_checksummed(&self) -> bool {
        false
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_shrinks_is_noticed_where_it_ends() -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("cheetah-source-{}", std::process::id()));
        std::fs::write(&path, [7; 10_000])?;
        let source = RawSource::open(&path).map_err(io::Error::other)?;
        assert_eq!(source.size(), 10_000);
        let mut room = [0; 10_000];
        source.read_exact_at(0, &mut room).map_err(io::Error::other)?;
        assert_eq!(room, [7; 10_000]);
        File::options().write(true).open(&path)?.set_len(6_000)?;
        let short = source.read_exact_at(4_000, &mut room[..4_000]);
        assert!(matches!(short, Err(SourceError::Short { offset: 6_000, size: 10_000, .. })), "{short:?}");
        std::fs::remove_file(&path)?;
        assert!(matches!(RawSource::open(&path), Err(SourceError::Open { .. })));
        assert!(RawSource::open(Path::new("/dev/null")).is_err_and(|e| e.to_string().contains("neither")));
        Ok(())
    }

    #[test]
    fn a_source_that_is_written_meanwhile_is_another() -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("cheetah-source-changes-{}", std::process::id()));
        let other = path.with_extension("other");
        std::fs::write(&path, [7; 10_000])?;
        let source = RawSource::open(&path).map_err(io::Error::other)?;
        let identity = source.identity();
        let mut room = [0; 10_000];
        assert!(source.read_past_errors_at(0, &mut room).is_ok_and(|ranges| ranges.is_empty()));
        assert_eq!(source.changed(), None, "reading changes nothing");
        // Set, not left to a clock whose ticks may be long.
        let file = File::options().append(true).open(&path)?;
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1))?;
        assert!(source.changed().is_some_and(|how| how.contains("written")));
        assert_ne!(RawSource::open(&path).map_err(io::Error::other)?.identity(), identity);
        io::Write::write_all(&mut &file, b"more")?;
        assert!(source.changed().is_some_and(|how| how.contains("10000 bytes and has 10004")));
        let source = RawSource::open(&path).map_err(io::Error::other)?;
        std::fs::write(&other, [7; 10_004])?;
        std::fs::rename(&other, &path)?;
        assert!(source.changed().is_some());
        std::fs::remove_file(&path)?;
        assert!(source.changed().is_some());
        Ok(())
    }
}
