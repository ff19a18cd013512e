//! What keeps a map from being made: what happened, to what, and what to do next.
//!
//! Owns the words of it. Never: exit codes. Called by all maps. Tests: theirs.

use std::fmt;
use std::io;

use crate::Kind;

#[derive(Debug)]
pub enum MapError {
    /// The disk answered with an error.
    Read { offset: u64, why: io::Error },
    /// What stands there contradicts itself.
    Damaged { what: String },
    /// It was recognised, and there is no map of it.
    NotMapped { kind: Kind },
    /// Nothing that is known stands there.
    Unknown,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = "it is read in the order of the disk";
        match self {
            MapError::Read { offset, why } => {
                write!(f, "metadata cannot be read at byte {offset}: {why}; {order}")
            }
            MapError::Damaged { what } => write!(f, "its file system is damaged: {what}; {order}"),
            MapError::NotMapped { kind } if kind.is_encrypted() => {
                write!(f, "it is encrypted with {kind}; {order}")
            }
            MapError::NotMapped { kind } => write!(f, "where {kind} has its metadata is not known; {order}"),
            MapError::Unknown => write!(f, "no known file system is there; {order}"),
        }
    }
}

impl std::error::Error for MapError {}

pub(crate) fn damaged<T>(what: impl Into<String>) -> Result<T, MapError> {
    Err(MapError::Damaged { what: what.into() })
}
