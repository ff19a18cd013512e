//! The files that an image lies in, and what is wrong where one of its blocks is.
//!
//! Owns: that nothing is read beyond a file's end or into more memory than a limit, whatever an image says;
//! one identity for all of the files; where the name of a file ends in an address. Called by `blocks`,
//! `parts` and the readers. Tests: below.

use crate::{RawSource, Source, SourceError, is_address};
use std::path::{Path, PathBuf};

/// What is read of an image at once, beside its blocks: tables and headers.
pub(crate) const TABLE_BYTES_MAX: u64 = 64 << 20;

/// A path; of an address, what stands before its query, and that.
fn named(path: &Path) -> (&Path, &str) {
    let address = path.to_str().filter(|_| is_address(path));
    let at = address.and_then(|address| Some(address.split_at(address.find('?')?)));
    at.map_or((path, ""), |(name, query)| (Path::new(name), query))
}

/// What the name of a file ends with, behind its last dot.
pub(crate) fn ending(path: &Path) -> Option<&str> {
    named(path).0.extension()?.to_str()
}

/// The file beside it whose name ends otherwise.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let (name, query) = named(path);
    let mut other = name.with_extension(ending).into_os_string();
    other.push(query);
    other.into()
}

/// Why a block or a table cannot be had.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file that it lies in cannot be read.
    File(SourceError),
    /// What is there is not what has to be there.
    Damaged(String),
}

impl From<SourceError> for Fault {
    fn from(error: SourceError) -> Fault {
        Fault::File(error)
    }
}

pub(crate) fn damaged<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(what.into()))
}

/// What is not read, and why.
pub(crate) fn refused<T>(path: &Path, why: impl Into<String>) -> Result<T, Fault> {
    Err(SourceError::Refused { path: path.to_path_buf(), why: why.into() }.into())
}

impl Fault {
    /// Of all that is wrong with an image when it is opened.
    pub fn of(self, path: &Path) -> SourceError {
        match self {
            Fault::File(error) => error,
            Fault::Damaged(what) => SourceError::Damaged { path: path.to_path_buf(), what },
        }
    }
}

impl RawSource {
    /// What stands in a file at a place that the image names.
    pub(crate) fn part(&self, offset: u64, len: u64) -> Result<Vec<u8>, Fault> {
        if len > TABLE_BYTES_MAX {
            return damaged(format!("it has a table of {len} bytes at byte {offset}"));
        }
        self.check_inside(offset, len)?;
        let mut room = vec![0; usize::try_from(len).unwrap_or_default()];
        self.read_exact_at(offset, &mut room)?;
        Ok(room)
    }

    pub(crate) fn check_inside(&self, offset: u64, len: u64) -> Result<(), Fault> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size()) {
            return Ok(());
        }
        damaged(format!(
            "{} ends at byte {}, and {len} bytes from {offset} on belong to it: is it cut off?",
            self.path().display(),
            self.size()
        ))
    }
}

/// One line for all of them.
pub(crate) fn identity(files: &[RawSource]) -> String {
    let Some((first, others)) = files.split_first() else { return String::new() };
    let first = first.identity();
    if others.is_empty() {
        return first;
    }
    // FNV-1a: it tells sets apart, and says nothing of what they hold.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in others {
        for byte in format!("{} {}\n", file.size(), file.identity()).bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{first}, and {} more ({hash:016x})", others.len())
}

/// How one of them is another than when it was opened.
pub(crate) fn changed(files: &[RawSource]) -> Option<String> {
    let several = files.len() > 1;
    files.iter().find_map(|file| {
        let how = file.changed()?;
        Some(if several { format!("{}: {how}", file.path().display()) } else { how })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Options;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A directory of a test's own, gone when it ends.
    pub(crate) struct Scratch(PathBuf);

    impl Scratch {
        pub fn new() -> Scratch {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let name =
                format!("cheetah-source-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).expect("a directory for temporary files");
            Scratch(path)
        }

        pub fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.join(name);
            std::fs::write(&path, bytes).expect("room for a temporary file");
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A part of an image is one also where a query follows, and a query is none.
    #[test]
    fn a_query_is_no_part_of_a_name() {
        for (path, ends, beside) in [
            ("/a/disk.001", Some("001"), "/a/disk.E01"),
            ("/a/what?x.001", Some("001"), "/a/what?x.E01"),
            ("http://h/disk.001?key=a.002", Some("001"), "http://h/disk.E01?key=a.002"),
            ("nbd+unix:///disk?socket=/run/a.01", None, "nbd+unix:///disk.E01?socket=/run/a.01"),
            ("nbds://h/disk.aa?tls-certificates=/a.b", Some("aa"), "nbds://h/disk.E01?tls-certificates=/a.b"),
        ] {
            assert_eq!(ending(Path::new(path)), ends, "{path}");
            assert_eq!(with_ending(Path::new(path), "E01"), Path::new(beside));
        }
    }

    #[test]
    fn nothing_is_read_beyond_a_file() {
        let scratch = Scratch::new();
        let file =
            RawSource::open(&scratch.file("image", &[7; 1000]), &Options::default()).expect("it is there");
        assert_eq!(file.part(900, 100).expect("inside"), [7; 100]);
        for (offset, len) in [(901, 100), (u64::MAX, 1), (0, u64::MAX), (1 << 63, 1 << 63)] {
            assert!(matches!(file.part(offset, len), Err(Fault::Damaged(_))), "{offset}, {len}");
        }
        assert_eq!(file.path(), Path::new(&scratch.join("image")));
    }

    #[test]
    fn a_set_is_another_when_any_file_is() {
        let scratch = Scratch::new();
        let open = || {
            let one = |name| RawSource::open(&scratch.join(name), &Options::default());
            ["a", "b"].map(|name| one(name).expect("it is there"))
        };
        scratch.file("a", b"1");
        scratch.file("b", b"2");
        let (files, one) = (open(), identity(&open()));
        assert_eq!(identity(&files), one);
        assert_eq!(changed(&files), None);
        std::fs::File::options()
            .append(true)
            .open(scratch.join("b"))
            .and_then(|file| file.set_modified(std::time::UNIX_EPOCH))
            .expect("its time is set");
        assert_ne!(identity(&open()), one);
        assert!(changed(&files).is_some_and(|how| how.contains("/b: ")));
    }
}
