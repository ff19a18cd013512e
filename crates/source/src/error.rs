//! What keeps a source from being opened or read: what happened, to what, and what to do next.
//!
//! Owns the words of it. Never: exit codes (`cheetah load` has them). Called by all readers. Tests: theirs.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Debug)]
pub enum SourceError {
    /// It cannot be opened, or is neither a file nor a disk.
    Open { path: PathBuf, why: String },
    /// It was recognised, and is not read: an encrypted image, one that stands on another, a container.
    Refused { path: PathBuf, why: String },
    /// A disk that may be written while it is read.
    InUse { path: PathBuf, why: String },
    /// A file that belongs to it is not there.
    Missing { path: PathBuf, part: PathBuf },
    /// What it holds contradicts itself, or does not fit its checksum.
    Damaged { path: PathBuf, what: String },
    /// The medium answered with an error.
    Read { path: PathBuf, offset: u64, why: io::Error },
    /// It ended before the size it had when it was opened.
    Short { path: PathBuf, offset: u64, size: u64 },
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Open { path, why } => write!(f, "cannot read {}: {why}", path.display()),
            SourceError::Refused { path, why } => write!(f, "{} is {why}", path.display()),
            SourceError::InUse { path, why } => write!(
                f,
                "{} is in use: {why}, and may change while it is read. Unmount it, or mount it read-only; --mounted reads it as it is",
                path.display()
            ),
            SourceError::Missing { path, part } => write!(
                f,
                "{} is missing, which {} needs: put all parts of it into one directory",
                part.display(),
                path.display()
            ),
            SourceError::Damaged { path, what } => write!(f, "{} is damaged: {what}", path.display()),
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
