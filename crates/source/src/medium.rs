//! Where the bytes of one file of a source are: on this machine, or with a server.
//!
//! Owns: what a place must give, so that every reader of images can stand on it. Never: formats. Invariant:
//! none of these has a call that writes. Made by `local`, `http`, `nbd`; called by `raw`. Tests: theirs.

use crate::{SourceError, past_errors};
use std::fmt::Debug;
use std::io;

/// Reads may come from several threads at once.
pub(crate) trait Medium: Debug + Send + Sync {
    /// As it was when it was opened.
    fn size(&self) -> u64;

    /// In the field's words, where its bytes are the disk's: `raw image`.
    fn what(&self) -> &'static str;

    /// Reads some of these bytes; 0 at the end of what there is. An error of the medium
    /// (`past_errors::is_of_the_medium`) is of this place alone, any other of all of it.
    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize>;

    /// The same after an error, in pieces of `sector_bytes`: past a cache whose pages fail as a whole.
    fn read_sectors_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, room)
    }

    /// The least that fails alone.
    fn sector_bytes(&self) -> usize {
        past_errors::SECTOR_BYTES
    }

    /// What tells it from another of its name, on one line.
    fn identity(&self) -> String;

    /// How it is another than when it was opened; `None` when it is not.
    fn changed(&self) -> Option<String>;

    /// How many reads at once are faster than one.
    fn readers(&self) -> usize {
        1
    }

    /// Other files may lie beside it.
    fn has_neighbours(&self) -> bool {
        true
    }

    /// Files beside it can be asked for, and not listed.
    fn is_remote(&self) -> bool {
        false
    }
}

/// `None`: nothing is there.
pub(crate) type Opened = Result<Option<Box<dyn Medium>>, SourceError>;

/// What an error of opening comes to.
pub(crate) fn not_there(why: &io::Error, fault: impl Fn(String) -> SourceError) -> Opened {
    match why.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(fault(why.to_string())),
    }
}
