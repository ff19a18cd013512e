//! What a volume is filled from. This version reads raw images and disks.
//!
//! Owns: opening a source read-only, its exact size, errors that say where in it reading failed, and telling what is no raw
//! image (`container`). Never: writing to a source; it is opened without the right to. Called by `cheetah load`. Tests: below.
#![forbid(unsafe_code)]

mod container;

pub use container::{Container, part_beside};

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// A raw image or a disk, opened for reading.
#[derive(Debug)]
pub struct RawSource {
    path: PathBuf,
    file: File,
    size: u64,
}

#[derive(Debug)]
pub enum SourceError {
    /// It cannot be opened, or is neither a file nor a disk.
    Open { path: PathBuf, why: String },
    /// The medium answered with an error.
    Read { path: PathBuf, offset: u64, why: io::Error },
    /// It ended before the size it had when it was opened.
    Short { path: PathBuf, offset: u64, size: u64 },
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Open { path, why } => write!(f, "cannot read {}: {why}", path.display()),
            SourceError::Read { path, offset, why } => {
                write!(f, "{} cannot be read at byte {offset}: {why}", path.display())
            }
            SourceError::Short { path, offset, size } => write!(
                f,
                "{} ended at byte {offset}, though it had {size} bytes when it was opened: is it still being written?",
                path.display()
            ),
        }
    }
}

impl std::error::Error for SourceError {}

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
        Ok(RawSource { path: path.to_path_buf(), file, size })
    }

    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What it is, if it is no raw image. What cannot be read of it says nothing.
    #[must_use]
    pub fn container(&self) -> Option<Container> {
        let read = |from: u64, bytes: usize| {
            let mut room = vec![0; usize::try_from(self.size - from).map_or(bytes, |left| left.min(bytes))];
            self.read_exact_at(from, &mut room).ok().map(|()| room)
        };
        let head = read(0, container::HEAD_BYTES);
        let tail = read(self.size.saturating_sub(container::TAIL_BYTES as u64), container::TAIL_BYTES);
        container::recognise(&head.unwrap_or_default(), &tail.unwrap_or_default())
    }

    /// Fills `room` from `offset` on; the caller stays inside the size.
    ///
    /// # Errors
    /// `SourceError::Read` and `Short`, with the offset at which it happened.
    pub fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
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
}
