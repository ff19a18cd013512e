//! One file that an image lies in, or a disk: its bytes are the disk's.
//!
//! Owns: where a path or an address leads to, errors that say where in it reading failed, and going on past
//! them (`past_errors`). Never: writing to it. Every other format stands on it: it is how all files of an
//! image are read, wherever they are (`Medium`). Called by `open` and all readers. Tests: below.

use crate::http::Remote;
use crate::local::Local;
use crate::medium::{Medium, Opened};
use crate::nbd::Export;
use crate::{Options, Source, SourceError, Unreadable, past_errors};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// ENOENT.
const NOT_THERE: i32 = 2;
/// The schemes of addresses that are read.
const KNOWN: &str = "http://, https://, nbd://, nbd+unix://, iscsi:// and ssh://";

/// A raw image or a disk, opened for reading.
#[derive(Debug)]
pub struct RawSource {
    path: PathBuf,
    medium: Box<dyn Medium>,
    /// Files beside it are opened as it was.
    options: Options,
}

impl RawSource {
    /// # Errors
    /// `SourceError::Open`.
    pub fn open(path: &Path, options: &Options) -> Result<RawSource, SourceError> {
        let fault = |why: &str| SourceError::Open { path: path.to_path_buf(), why: why.to_owned() };
        match RawSource::open_if_there(path, options)? {
            Some(opened) => Ok(opened),
            None if scheme(path).is_some() => Err(fault("the server has nothing of this name")),
            None => Err(fault(&io::Error::from_raw_os_error(NOT_THERE).to_string())),
        }
    }

    fn open_if_there(path: &Path, options: &Options) -> Result<Option<RawSource>, SourceError> {
        let (options, path) = (*options, path.to_path_buf());
        match lead(&path, &options)? {
            None => Ok(None),
            Some(medium) if medium.size() == 0 => {
                Err(SourceError::Open { path, why: "it is empty".to_owned() })
            }
            Some(medium) => Ok(Some(RawSource { path, medium, options })),
        }
    }

    pub(crate) fn on(path: PathBuf, medium: Box<dyn Medium>, options: Options) -> RawSource {
        RawSource { path, medium, options }
    }

    /// Another file of the same image; `None` where none of this name is there.
    pub(crate) fn beside(&self, path: &Path) -> Result<Option<RawSource>, SourceError> {
        RawSource::open_if_there(path, &self.options)
    }

    /// The same, where the image cannot do without.
    pub(crate) fn part_beside(&self, part: &Path) -> Result<RawSource, SourceError> {
        let missing = || SourceError::Missing { path: self.path.clone(), part: part.to_path_buf() };
        self.beside(part)?.ok_or_else(missing)
    }

    /// It is not in a directory that can be listed.
    pub(crate) fn is_remote(&self) -> bool {
        self.medium.is_remote()
    }

    fn read(
        &self,
        offset: u64,
        room: &mut [u8],
        read_at: impl Fn(&dyn Medium, u64, &mut [u8]) -> io::Result<usize>,
    ) -> Result<(), SourceError> {
        let mut done = 0;
        while done < room.len() {
            let at = offset + done as u64;
            let (path, size) = (|| self.path.clone(), self.size());
            match read_at(&*self.medium, at, &mut room[done..]) {
                Ok(0) => return Err(SourceError::Short { path: path(), offset: at, size }),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(SourceError::Read { path: path(), offset: at, why }),
            }
        }
        Ok(())
    }
}

/// Whether a path is the address of a server's file or disk.
#[must_use]
pub fn is_address(path: &Path) -> bool {
    scheme(path).is_some()
}

/// What an address begins with; a file of such a name is at ./NAME.
fn scheme(path: &Path) -> Option<String> {
    let (scheme, _) = path.to_str()?.split_once("://")?;
    let is_one = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+');
    (is_one && !scheme.is_empty()).then(|| scheme.to_ascii_lowercase())
}

/// What stands at the end of a path or of an address.
fn lead(path: &Path, options: &Options) -> Opened {
    let refused = |why: &str| Err(SourceError::Open { path: path.to_path_buf(), why: why.to_owned() });
    match scheme(path).as_deref() {
        None => Local::open(path, options),
        Some("http" | "https") => Remote::open(path, options),
        Some("nbd" | "nbd+unix" | "nbds" | "nbds+unix") => Export::open(path, options),
        Some("iscsi") => Export::by_protocol(path, "iSCSI disk", options),
        Some("ssh") => Export::by_protocol(path, "file by SSH", options),
        Some(other) => refused(&format!(
            "addresses that begin with {other}:// are not read, only {KNOWN}; a file of this name is ./{}",
            path.display()
        )),
    }
}

impl Source for RawSource {
    fn size(&self) -> u64 {
        self.medium.size()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn describe(&self) -> String {
        self.medium.what().to_owned()
    }

    fn has_neighbours(&self) -> bool {
        self.medium.has_neighbours()
    }

    fn is_bare(&self) -> bool {
        true
    }

    fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
        self.read(offset, room, |medium, at, room| medium.read_at(at, room))
    }

    fn read_past_errors_at(&self, offset: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
        let why = match self.read_exact_at(offset, room) {
            Err(SourceError::Read { why, .. }) if past_errors::is_of_the_medium(&why) => why.to_string(),
            other => return other.map(|()| Vec::new()),
        };
        let mut short = None;
        let mut read =
            |at: usize, part: &mut [u8]| match self
                .read(offset + at as u64, part, |medium, at, room| medium.read_sectors_at(at, room))
            {
                Err(SourceError::Read { why, .. }) => Err(why),
                Err(other) => {
                    short = Some(other);
                    Err(io::Error::from(io::ErrorKind::UnexpectedEof))
                }
                Ok(()) => Ok(()),
            };
        let filled = past_errors::fill(room, self.medium.sector_bytes(), &mut read);
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
        self.medium.identity()
    }

    fn changed(&self) -> Option<String> {
        self.medium.changed()
    }

    fn is_checksummed(&self) -> bool {
        false
    }

    fn readers(&self) -> usize {
        self.medium.readers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_source_that_shrinks_is_noticed_where_it_ends() -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("cheetah-source-{}", std::process::id()));
        std::fs::write(&path, [7; 10_000])?;
        let source = RawSource::open(&path, &Options::default()).map_err(io::Error::other)?;
        assert_eq!(source.size(), 10_000);
        let mut room = [0; 10_000];
        source.read_exact_at(0, &mut room).map_err(io::Error::other)?;
        assert_eq!(room, [7; 10_000]);
        File::options().write(true).open(&path)?.set_len(6_000)?;
        let short = source.read_exact_at(4_000, &mut room[..4_000]);
        assert!(matches!(short, Err(SourceError::Short { offset: 6_000, size: 10_000, .. })), "{short:?}");
        std::fs::remove_file(&path)?;
        assert!(matches!(RawSource::open(&path, &Options::default()), Err(SourceError::Open { .. })));
        assert!(
            RawSource::open(Path::new("/dev/null"), &Options::default())
                .is_err_and(|e| e.to_string().contains("neither"))
        );
        Ok(())
    }

    #[test]
    fn a_source_that_is_written_meanwhile_is_another() -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("cheetah-source-changes-{}", std::process::id()));
        let other = path.with_extension("other");
        std::fs::write(&path, [7; 10_000])?;
        let source = RawSource::open(&path, &Options::default()).map_err(io::Error::other)?;
        let identity = source.identity();
        let mut room = [0; 10_000];
        assert!(source.read_past_errors_at(0, &mut room).is_ok_and(|ranges| ranges.is_empty()));
        assert_eq!(source.changed(), None, "reading changes nothing");
        // Set, not left to a clock whose ticks may be long.
        let file = File::options().append(true).open(&path)?;
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1))?;
        assert!(source.changed().is_some_and(|how| how.contains("written")));
        assert_ne!(
            RawSource::open(&path, &Options::default()).map_err(io::Error::other)?.identity(),
            identity
        );
        io::Write::write_all(&mut &file, b"more")?;
        assert!(source.changed().is_some_and(|how| how.contains("10000 bytes and has 10004")));
        let source = RawSource::open(&path, &Options::default()).map_err(io::Error::other)?;
        std::fs::write(&other, [7; 10_004])?;
        std::fs::rename(&other, &path)?;
        assert!(source.changed().is_some());
        std::fs::remove_file(&path)?;
        assert!(source.changed().is_some());
        Ok(())
    }
}
