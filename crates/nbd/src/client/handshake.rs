//! The client's half of the fixed newstyle handshake.
//!
//! Owns: what to ask, in which order, and what a server may leave out: structured replies, `base:allocation`
//! and GO are all optional. Never: speaks oldstyle or TLS. Key invariant: one option is outstanding at a
//! time, no byte behind the handshake is consumed, and no buffer outgrows `limits`.
//!
//! Driver's order: receive, `input`, `take_output` and send, `poll`; at the end of the stream `eof`.
//! Tests: below and `tests/pair.rs`, `tests/properties.rs`.

use crate::export::{ListEntry, Negotiated};
use crate::violation::Violation;
use std::fmt;

/// What to ask of a server. What it does not have is left out, never an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    pub export: String,
    pub structured: bool,
    /// Asks for structured replies too, since it needs them.
    pub base_allocation: bool,
}

/// What the driver does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    NeedInput,
    /// Every byte not consumed belongs to the transmission phase.
    Ready(Negotiated),
    /// The answer to [`Handshake::list`]; send the output, then close.
    Listed(Vec<ListEntry>),
    Failed(Error),
}

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    Violation(Violation),
    /// The export name is longer than the protocol allows, or has a NUL.
    ExportName,
    /// The server is too old to list its exports.
    CannotList,
    /// The server wants TLS first, which is not in yet.
    TlsRequired,
    /// The server's own answer and words.
    Refused {
        option: u32,
        reply: u32,
        message: String,
    },
    /// The server closed the connection before the handshake ended.
    Closed {
        asked_export_name: bool,
    },
}

#[derive(Debug)]
pub struct Handshake {}

impl Handshake {
    #[must_use]
    pub fn new(_want: Want) -> Self {
        Self {}
    }

    /// Asks for the server's exports instead of using one.
    #[must_use]
    pub fn list() -> Self {
        Self {}
    }

    /// Takes bytes from the server and returns how many; it stops where the transmission phase starts.
    ///
    /// # Errors
    /// What the server did; from then on `poll` says Failed.
    pub fn input(&mut self, _bytes: &[u8]) -> Result<usize, Violation> {
        Ok(0)
    }

    /// The server closed the connection.
    pub fn eof(&mut self) {}

    /// Moves what is to be sent to the end of `out`.
    pub fn take_output(&mut self, _out: &mut Vec<u8>) {}

    #[must_use]
    pub fn poll(&self) -> Step {
        Step::NeedInput
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Error {}
