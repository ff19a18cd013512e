//! What both ends agree on: an export, its state, and the outcome of a handshake.
//!
//! Owns: plain data. Never: where it came from. Key invariant: after GO both ends of a connection hold equal
//! [`Negotiated`] values; after EXPORT_NAME, which has no words for the rest, equal size, flags and contexts.
//! Tests: `tests/pair.rs`.

use crate::limits::REQUEST_PAYLOAD_BYTES_MAX;
use crate::proto::{TransmissionFlags, flags};
use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// An export as its server describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Bytes, at most [`crate::limits::EXPORT_BYTES_MAX`]; not a multiple of anything.
    pub size: u64,
    /// A server's HAS_FLAGS and SEND_DF are set by the handshake, whatever is given here.
    pub flags: TransmissionFlags,
    /// Requests are multiples of this (a power of two); only the end of the export may be odd.
    pub block_min: u32,
    /// Bytes; not below `block_min`. Requests of this size and alignment are the server's cheapest.
    pub block_preferred: u32,
    /// Advice to clients; a server takes any READ and WRITE up to the protocol's customary 32 MiB.
    pub block_max: u32,
    /// For people, of at most 4096 bytes. Empty: none is sent, or none came.
    pub description: String,
}

impl ExportInfo {
    /// What holds for a server that says nothing of block sizes.
    #[must_use]
    pub const fn new(size: u64, flags: TransmissionFlags) -> Self {
        Self {
            size,
            flags,
            block_min: 1,
            block_preferred: 4096,
            block_max: REQUEST_PAYLOAD_BYTES_MAX,
            description: String::new(),
        }
    }
}

/// The outcome of a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The name that the client asked for; empty is the server's default export.
    pub export: String,
    /// The export as it was announced; nothing changes it after the handshake.
    pub info: ExportInfo,
    /// Whether the server answers in chunks, and may say what is a hole.
    pub structured_replies: bool,
    /// The id of `base:allocation` in BLOCK_STATUS chunks, if it was agreed for this export.
    pub base_allocation: Option<u32>,
    /// The id of `cheetah:dirty`, likewise. A BLOCK_STATUS is answered with a chunk for each context agreed.
    pub dirty: Option<u32>,
    /// The id of `cheetah:context`, likewise: reads and writes are answered with checksums as well, heads are
    /// under a seal, and VERIFY may be sent. A BLOCK_STATUS does not tell of it.
    pub context: Option<u32>,
    /// The id of `cheetah:auth`, likewise: what is read comes with the nonce and authentication tag of each
    /// block, and AUTH may be sent before a WRITE.
    pub auth: Option<u32>,
}

impl Negotiated {
    /// Whether heads are under a seal, both ways and from the first one on: between those that agreed on
    /// `cheetah:context`.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.context.is_some()
    }
}

/// One export of a LIST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The name to ask for.
    pub name: String,
    /// For people; empty where there is none.
    pub description: String,
}

flags! {
    /// `NBD_STATE_*` of `base:allocation`. No bit: data.
    StateFlags: u32 {
        /// Takes up no room.
        HOLE = 0,
        /// Reads as zeros, be it a hole or not.
        ZERO = 1,
    }
}

impl StateFlags {
    /// The bit of `cheetah:dirty`: written lately. Contexts count their bits each for itself.
    pub const DIRTY: Self = Self(1);
    /// The bit of `cheetah:context`: the blocks are not what their checksums say.
    pub const WRONG: Self = Self(1);
}

/// A run of bytes of one state; the context of its chunk says what the flags mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Bytes, never 0. The first run begins at the request's offset, each other where the one before ends.
    pub length: u32,
    /// The bits of one context: [`StateFlags::HOLE`] and [`StateFlags::DIRTY`] are the same bit.
    pub flags: StateFlags,
}
