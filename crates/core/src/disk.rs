//! A donor's disk: what lies where on it, what is put down before a write, and what counts after a stop.
//!
//! Owns the form of everything on the disk but the blocks themselves, and the rules that make an
//! acknowledged write survive a loss of power at any moment. Never: reading or writing it (`rim::disk`), or
//! computing a checksum (the caller hands in the function). The order of a write is:
//!
//! 1. its blocks' old and new checksums go to the log, and the disk is flushed;
//! 2. its blocks go to their places, and the disk is flushed;
//! 3. it is acknowledged.
//!
//! So after a stop each block that the log names is what one of its entries says, or was torn by a write that
//! was never acknowledged; then it fits no entry, and whoever reads it finds it wrong (`replay`). From time
//! to time the checksums that changed go to their table, and the log begins anew (`State`).
//!
//! Nonces and authentication tags of encrypted volumes go the same way as checksums, which cover them: to the
//! log with a write, and to a table of their own from time to time.
//!
//! Files: `place` (what lies where), `log` (its pages), `state` (what a donor knows of itself), `table` (what
//! is known of blocks), `auths` (nonces and tags), `replay` (which checksum a block has), `journal` (the
//! order), `pages` (what that asks of a disk), `resident` (which blocks are in memory), `cache` (which of
//! them stay), `write_back` (what memory has that the disk has not).

mod auths;
mod cache;
mod journal;
mod log;
mod pages;
mod place;
mod replay;
mod resident;
mod state;
mod table;
mod write_back;

pub use auths::{Auth, Auths, NO_AUTH, auth_sum};
pub use cache::Cache;
pub use journal::{Journal, JournalError, OpenError};
pub use log::{Entry, LOG_SLOTS_MAX, LogPage, Noted, Page, open_page, pages_of, seal_page};
pub use pages::{Pages, Write};
pub use place::{DISK_BYTES_MIN, Head, NotADisk, PAGE_BYTES, Place};
pub use replay::{Change, Replay, Told};
pub use resident::{Hold, Resident};
pub use state::{BadState, Before, Held, State};
pub use write_back::{Landed, Next, WriteBack};

/// What stands for a checksum in the tests of forms.
#[cfg(test)]
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum: u32, byte| sum.rotate_left(5) ^ u32::from(*byte))
}
