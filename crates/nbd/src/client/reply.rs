//! Reply heads, as a client reads them.
//!
//! Owns: everything of a reply but the data of a READ. Never: which request a cookie belongs to, nor whether
//! a chunk lies inside it; the driver knows. Key invariant: [`Reply::need`] is at most
//! [`crate::limits::REPLY_HEAD_BYTES_MAX`]. Tests: `tests/replies.rs`,
//! `tests/properties.rs`, `fuzz/`.

use crate::export::{Descriptor, StateFlags};
use crate::limits::{
    AUTH_BYTES, BLOCK_STATUS_DESCRIPTORS_MAX, CONTEXTS_MAX, ERROR_CHUNK_BYTES_MAX, LEDGER_ENTRIES_MAX,
    MESSAGE_BYTES_MAX, REQUEST_PAYLOAD_BYTES_MAX,
};
use crate::proto::{Errno, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};
use crate::seal::magic_of;
use crate::server::reply::{self as encode, LedgerEntry};
use crate::violation::Violation;
use crate::wire::{Fields, lossy};

/// One simple reply or structured chunk. `done` says that the request has no further chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Ends its request. The data follows if it was a READ and succeeded; its length is the request's.
    Simple {
        /// The request that this answers.
        cookie: u64,
        /// None: success.
        error: Option<Errno>,
    },
    /// `data_bytes` follow the head.
    OffsetData {
        /// The READ that this answers, in part or whole.
        cookie: u64,
        /// Whether this is the last chunk of its request.
        done: bool,
        /// The place of the first byte, from the start of the export and not of the request.
        offset: u64,
        /// From 1 to [`REQUEST_PAYLOAD_BYTES_MAX`].
        data_bytes: u32,
    },
    /// Zeros of a READ, without data behind the head.
    OffsetHole {
        /// The READ that this answers, in part or whole.
        cookie: u64,
        /// Whether this is the last chunk of its request.
        done: bool,
        /// The place of the first zero, from the start of the export.
        offset: u64,
        /// At least 1. The decoder has no other bound; [`super::Transmission`] holds it to its request.
        hole_bytes: u32,
    },
    /// The end of a structured reply, always done.
    None {
        /// The request that ends.
        cookie: u64,
    },
    /// The whole request failed. Error chunks of a later protocol are read as this too.
    Error {
        /// The request that failed.
        cookie: u64,
        /// False: further chunks of the request follow.
        done: bool,
        /// A code that the protocol does not know is [`Errno::Inval`].
        errno: Errno,
        /// For people: may be empty, is at most 4096 bytes, what was not UTF-8 replaced.
        message: String,
    },
    /// The request failed at one place; what other chunks carried stays valid.
    ErrorOffset {
        /// The request that failed.
        cookie: u64,
        /// False: further chunks of the request follow.
        done: bool,
        /// A code that the protocol does not know is [`Errno::Inval`].
        errno: Errno,
        /// The place of the failure, from the start of the export.
        offset: u64,
        /// For people, as in [`Reply::Error`].
        message: String,
    },
    /// Runs from the request's offset on, none empty.
    BlockStatus {
        /// The BLOCK_STATUS that this answers, in one context.
        cookie: u64,
        /// False: chunks of other contexts follow.
        done: bool,
        /// The id that the handshake gave the context ([`crate::Negotiated`]).
        context: u32,
        /// At least one. They may end before the request does, or behind it.
        descriptors: Vec<Descriptor>,
    },
    /// Before the rest of the answer to a BLOCK_STATUS, to who has sent a MARK.
    Ledger {
        /// The BLOCK_STATUS that this answers.
        cookie: u64,
        /// False from Cheetah's donors: BLOCK_STATUS chunks follow.
        done: bool,
        /// Writes up to this number are complete on all servers, as the client of those writes has said.
        complete: u64,
        /// Greater numbers only, and none outside of the range that was asked about. Empty: no such write is
        /// known.
        entries: Vec<LedgerEntry>,
    },
    /// Checksums: before the data of a READ, or as the end of a WRITE.
    Contexts {
        /// The READ or WRITE that this answers.
        cookie: u64,
        /// Whether this is the last chunk of its request.
        done: bool,
        /// CRC32Cs of the blocks that the request touches, at least one.
        sums: Vec<u32>,
    },
    /// Nonce and authentication tag of blocks: before the checksums of a READ.
    Auth {
        /// The READ that this answers.
        cookie: u64,
        /// Whether this is the last chunk of its request.
        done: bool,
        /// Of the blocks that the request touches, at least one.
        all: Vec<[u8; AUTH_BYTES]>,
    },
}

const SIMPLE_BYTES: usize = 16;
const CHUNK_BYTES: usize = 20;

impl Reply {
    /// The number that the client gave the request.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        match *self {
            Self::Simple { cookie, .. }
            | Self::OffsetData { cookie, .. }
            | Self::OffsetHole { cookie, .. }
            | Self::None { cookie }
            | Self::Error { cookie, .. }
            | Self::ErrorOffset { cookie, .. }
            | Self::BlockStatus { cookie, .. }
            | Self::Ledger { cookie, .. }
            | Self::Contexts { cookie, .. }
            | Self::Auth { cookie, .. } => cookie,
        }
    }

    /// Whether this ends its request (once the data that follows is in).
    #[must_use]
    pub const fn done(&self) -> bool {
        match *self {
            Self::Simple { .. } | Self::None { .. } => true,
            Self::OffsetData { done, .. }
            | Self::OffsetHole { done, .. }
            | Self::Error { done, .. }
            | Self::ErrorOffset { done, .. }
            | Self::BlockStatus { done, .. }
            | Self::Ledger { done, .. }
            | Self::Contexts { done, .. }
            | Self::Auth { done, .. } => done,
        }
    }

    /// How many bytes [`Reply::decode`] needs at least, as far as `bytes` tells. At most
    /// [`crate::limits::REPLY_HEAD_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Reply::decode`].
    pub fn need(bytes: &[u8]) -> Result<usize, Violation> {
        Self::need_in(bytes, false)
    }

    /// As [`Reply::need`], of a reply under its seal, which is looked at when the head is whole.
    ///
    /// # Errors
    /// As [`Reply::decode_in`].
    pub fn need_in(bytes: &[u8], is_sealed: bool) -> Result<usize, Violation> {
        let mut fields = Fields(bytes);
        let Some(magic) = fields.u32() else { return Ok(SIMPLE_BYTES) };
        match magic {
            _ if is_sealed => {}
            SIMPLE_REPLY_MAGIC => return Ok(SIMPLE_BYTES),
            STRUCTURED_REPLY_MAGIC => {}
            other => return Err(Violation::ReplyMagic(other)),
        }
        let (Some(_flags), Some(kind), Some(_cookie), Some(length)) =
            (fields.u16(), fields.u16(), fields.u64(), fields.u32())
        else {
            return Ok(CHUNK_BYTES);
        };
        let head_bytes = chunk_head_bytes(kind, length)?;
        Ok(CHUNK_BYTES + usize::try_from(head_bytes).unwrap_or(usize::MAX))
    }

    /// Reads the head of a reply and says how many bytes it took; None if `bytes` ends inside it.
    ///
    /// # Errors
    /// The server broke the protocol; the connection is lost.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        Self::decode_in(bytes, false)
    }

    /// As [`Reply::decode`], of a reply under its seal, which only chunks have.
    ///
    /// # Errors
    /// The server broke the protocol, or the head is not what it sent; the connection is lost.
    pub fn decode_in(bytes: &[u8], is_sealed: bool) -> Result<Option<(Self, usize)>, Violation> {
        let need = Self::need_in(bytes, is_sealed)?;
        let Some(head) = bytes.get(..need) else { return Ok(None) };
        let found = if is_sealed { magic_of(head) } else { None };
        if let Some(magic) = found.filter(|magic| *magic != STRUCTURED_REPLY_MAGIC) {
            return Err(Violation::ReplyMagic(magic));
        }
        let mut fields = Fields(head);
        let reply = match fields.u32() {
            Some(SIMPLE_REPLY_MAGIC) if !is_sealed => simple(fields),
            _ => return chunk(fields).map(|reply| Some((reply, need))),
        };
        Ok(reply.map(|reply| (reply, need)))
    }

    /// The head as a server sends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Simple { cookie, error } => out.extend_from_slice(&encode::simple(cookie, error)),
            Self::OffsetData { cookie, done, offset, data_bytes } => {
                out.extend_from_slice(&encode::offset_data(cookie, done, offset, data_bytes));
            }
            Self::OffsetHole { cookie, done, offset, hole_bytes } => {
                out.extend_from_slice(&encode::offset_hole(cookie, done, offset, hole_bytes));
            }
            Self::None { cookie } => out.extend_from_slice(&encode::none_done(cookie)),
            Self::Error { cookie, done, errno, ref message } => {
                encode::error(cookie, done, errno, message, out);
            }
            Self::ErrorOffset { cookie, done, errno, offset, ref message } => {
                encode::error_offset(cookie, done, errno, offset, message, out);
            }
            Self::BlockStatus { cookie, done, context, ref descriptors } => {
                encode::block_status(cookie, done, context, descriptors, out);
            }
            Self::Ledger { cookie, done, complete, ref entries } => {
                encode::ledger(cookie, done, complete, entries, out);
            }
            Self::Contexts { cookie, done, ref sums } => {
                encode::contexts(cookie, done, sums.iter().copied(), out);
            }
            Self::Auth { cookie, done, ref all } => encode::auth(cookie, done, all.iter().copied(), out),
        }
    }
}

/// The bytes of a chunk's payload that belong to its head: all, except the data of OFFSET_DATA.
fn chunk_head_bytes(kind: u16, length: u32) -> Result<u32, Violation> {
    let (fits, head_bytes) = match kind {
        chunk::NONE => (length == 0, 0),
        chunk::OFFSET_DATA => (length > 8 && length - 8 <= REQUEST_PAYLOAD_BYTES_MAX, 8),
        chunk::OFFSET_HOLE => (length == 12, 12),
        chunk::BLOCK_STATUS => {
            let descriptors = length.saturating_sub(4) / 8;
            let fits = length % 8 == 4 && descriptors >= 1;
            (fits && descriptors as usize <= BLOCK_STATUS_DESCRIPTORS_MAX, length)
        }
        chunk::LEDGER => {
            let entries = length.saturating_sub(8) as usize / LedgerEntry::BYTES;
            let fits = length >= 8 && (length as usize - 8).is_multiple_of(LedgerEntry::BYTES);
            (fits && entries <= LEDGER_ENTRIES_MAX, length)
        }
        chunk::CONTEXTS => {
            let fits = length.is_multiple_of(4) && (1..=CONTEXTS_MAX).contains(&(length as usize / 4));
            (fits, length)
        }
        chunk::AUTH => {
            let blocks = length as usize / AUTH_BYTES;
            let fits = (length as usize).is_multiple_of(AUTH_BYTES) && (1..=CONTEXTS_MAX).contains(&blocks);
            (fits, length)
        }
        chunk::ERROR_OFFSET => ((14..=ERROR_CHUNK_BYTES_MAX).contains(&length), length),
        _ if kind & chunk::ERR != 0 => ((6..=ERROR_CHUNK_BYTES_MAX).contains(&length), length),
        _ => return Err(Violation::ChunkType(kind)),
    };
    if fits { Ok(head_bytes) } else { Err(Violation::ChunkLength { chunk: kind, bytes: length }) }
}

fn simple(mut fields: Fields<'_>) -> Option<Reply> {
    let error = Errno::from_wire(fields.u32()?);
    Some(Reply::Simple { cookie: fields.u64()?, error })
}

/// Reads a chunk from behind its magic; `fields` ends with its head.
fn chunk(mut fields: Fields<'_>) -> Result<Reply, Violation> {
    let (Some(flags), Some(kind), Some(cookie), Some(length)) =
        (fields.u16(), fields.u16(), fields.u64(), fields.u32())
    else {
        return Err(Violation::ChunkMalformed(0));
    };
    let done = flags & chunk::FLAG_DONE != 0;
    let reply = match kind {
        chunk::NONE => done.then_some(Reply::None { cookie }),
        chunk::OFFSET_DATA => {
            fields.u64().map(|offset| Reply::OffsetData { cookie, done, offset, data_bytes: length - 8 })
        }
        chunk::OFFSET_HOLE => hole(cookie, done, fields),
        chunk::BLOCK_STATUS => block_status(cookie, done, fields),
        chunk::LEDGER => ledger(cookie, done, fields),
        chunk::CONTEXTS => Some(Reply::Contexts { cookie, done, sums: sums(fields) }),
        chunk::AUTH => Some(Reply::Auth { cookie, done, all: fields.rest().as_chunks().0.to_vec() }),
        _ => error(cookie, done, kind, fields),
    };
    reply.ok_or(Violation::ChunkMalformed(kind))
}

fn hole(cookie: u64, done: bool, mut fields: Fields<'_>) -> Option<Reply> {
    let (offset, hole_bytes) = (fields.u64()?, fields.u32()?);
    (hole_bytes > 0).then_some(Reply::OffsetHole { cookie, done, offset, hole_bytes })
}

fn error(cookie: u64, done: bool, kind: u16, mut fields: Fields<'_>) -> Option<Reply> {
    let errno = Errno::from_wire(fields.u32()?)?;
    let message_bytes = usize::from(fields.u16()?);
    let message = lossy(fields.bytes(message_bytes)?, MESSAGE_BYTES_MAX);
    if kind == chunk::ERROR_OFFSET {
        return Some(Reply::ErrorOffset { cookie, done, errno, offset: fields.u64()?, message });
    }
    Some(Reply::Error { cookie, done, errno, message })
}

fn block_status(cookie: u64, done: bool, mut fields: Fields<'_>) -> Option<Reply> {
    let context = fields.u32()?;
    let (pairs, rest) = fields.rest().as_chunks::<8>();
    let descriptor = |pair: &[u8; 8]| {
        let [l0, l1, l2, l3, f0, f1, f2, f3] = *pair;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let flags = StateFlags(u32::from_be_bytes([f0, f1, f2, f3]));
        (length > 0).then_some(Descriptor { length, flags })
    };
    let descriptors = pairs.iter().map(descriptor).collect::<Option<Vec<_>>>()?;
    rest.is_empty().then_some(Reply::BlockStatus { cookie, done, context, descriptors })
}

fn sums(mut fields: Fields<'_>) -> Vec<u32> {
    fields.rest().as_chunks().0.iter().map(|sum| u32::from_be_bytes(*sum)).collect()
}

fn ledger(cookie: u64, done: bool, mut fields: Fields<'_>) -> Option<Reply> {
    let complete = fields.u64()?;
    let mut entries = Vec::new();
    while let Some(from) = fields.u64() {
        let (to, number) = (fields.u64()?, fields.u64()?);
        let (targets, state) = (fields.u32()?, fields.u32()?);
        let (landed, undo) = (state & LedgerEntry::LANDED != 0, state & LedgerEntry::UNDO != 0);
        let stale = state & LedgerEntry::STALE != 0;
        entries.push(LedgerEntry { from, to, number, targets, landed, undo, stale });
    }
    fields.is_empty().then_some(Reply::Ledger { cookie, done, complete, entries })
}
