//! Reply headers, as a server sends them.
//!
//! Owns: the layout of simple replies and structured chunks. Never: the data of a READ, which the driver
//! sends right behind [`simple`] or [`offset_data`]. Key invariant: what allocates nothing returns an array.
//! Tests: `tests/replies.rs`; `tests/properties.rs` decodes what this encodes.

use crate::export::Descriptor;
use crate::limits::{
    AUTH_BYTES, BLOCK_STATUS_DESCRIPTORS_MAX, CONTEXTS_MAX, LEDGER_ENTRIES_MAX, MESSAGE_BYTES_MAX,
};
use crate::proto::{Errno, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};
use crate::wire::{len32, prefix, put};

/// A simple reply; after a successful READ without structured replies the data follows.
#[must_use]
pub const fn simple(cookie: u64, error: Option<Errno>) -> [u8; 16] {
    let code = match error {
        Some(errno) => errno.to_wire(),
        None => 0,
    };
    let mut out = [0; 16];
    let at = put(&mut out, 0, SIMPLE_REPLY_MAGIC.to_be_bytes());
    let at = put(&mut out, at, code.to_be_bytes());
    put(&mut out, at, cookie.to_be_bytes());
    out
}

/// A chunk of data of a READ; `data_bytes` (at least one) follow.
#[must_use]
pub const fn offset_data(cookie: u64, done: bool, offset: u64, data_bytes: u32) -> [u8; 28] {
    let mut out = [0; 28];
    let at = put(&mut out, 0, chunk_header(cookie, done, chunk::OFFSET_DATA, data_bytes.saturating_add(8)));
    put(&mut out, at, offset.to_be_bytes());
    out
}

/// A chunk of a READ that is zeroes; `hole_bytes` is at least one.
#[must_use]
pub const fn offset_hole(cookie: u64, done: bool, offset: u64, hole_bytes: u32) -> [u8; 32] {
    let mut out = [0; 32];
    let at = put(&mut out, 0, chunk_header(cookie, done, chunk::OFFSET_HOLE, 12));
    let at = put(&mut out, at, offset.to_be_bytes());
    put(&mut out, at, hole_bytes.to_be_bytes());
    out
}

/// The end of a structured reply: success, unless an error chunk came before.
#[must_use]
pub const fn none_done(cookie: u64) -> [u8; 20] {
    chunk_header(cookie, true, chunk::NONE, 0)
}

/// An error about the whole request. A message beyond the protocol's limit is cut.
pub fn error(cookie: u64, done: bool, errno: Errno, message: &str, out: &mut Vec<u8>) {
    let message = prefix(message, MESSAGE_BYTES_MAX).as_bytes();
    out.extend_from_slice(&chunk_header(cookie, done, chunk::ERROR, 6 + len32(message)));
    error_fields(errno, message, out);
}

/// An error at one offset; what came in other chunks stays valid.
pub fn error_offset(cookie: u64, done: bool, errno: Errno, offset: u64, message: &str, out: &mut Vec<u8>) {
    let message = prefix(message, MESSAGE_BYTES_MAX).as_bytes();
    out.extend_from_slice(&chunk_header(cookie, done, chunk::ERROR_OFFSET, 14 + len32(message)));
    error_fields(errno, message, out);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// The state of consecutive runs from the request's offset. Give at least one descriptor, none of length
/// zero; beyond [`BLOCK_STATUS_DESCRIPTORS_MAX`] they are left out, which the protocol allows.
pub fn block_status(cookie: u64, done: bool, context: u32, descriptors: &[Descriptor], out: &mut Vec<u8>) {
    let descriptors = &descriptors[..descriptors.len().min(BLOCK_STATUS_DESCRIPTORS_MAX)];
    debug_assert!(!descriptors.is_empty() && descriptors.iter().all(|d| d.length > 0));
    let payload_bytes = 4 + 8 * descriptors.len();
    out.reserve(20 + payload_bytes);
    let payload_bytes = u32::try_from(payload_bytes).unwrap_or(u32::MAX);
    out.extend_from_slice(&chunk_header(cookie, done, chunk::BLOCK_STATUS, payload_bytes));
    out.extend_from_slice(&context.to_be_bytes());
    for descriptor in descriptors {
        out.extend_from_slice(&descriptor.length.to_be_bytes());
        out.extend_from_slice(&descriptor.flags.0.to_be_bytes());
    }
}

/// A write that a server took and does not know to be complete everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerEntry {
    /// The write's bytes are `from..to` of the export, not only those that were asked about.
    pub from: u64,
    /// The first byte behind it.
    pub to: u64,
    /// The number of its MARK. Of two writes of the same block the later one has the greater.
    pub number: u64,
    /// The targets of its MARK: a bit for each fragment that a part of the write goes to.
    pub targets: u32,
    /// All of it is there.
    pub landed: bool,
    /// What was there before is kept, for an UNDO.
    pub undo: bool,
    /// Of a donor of a disk: no write, but what it may have lost of those before its stop. It does not tell
    /// what is there before that is written again, or adopted by an UNDO of number 0.
    pub stale: bool,
}

impl LedgerEntry {
    pub(crate) const BYTES: usize = 32;

    pub(crate) const LANDED: u32 = 1 << 0;
    pub(crate) const UNDO: u32 = 1 << 1;
    pub(crate) const STALE: u32 = 1 << 2;
}

/// The writes that touch the range which was asked about; beyond [`LEDGER_ENTRIES_MAX`] they are left out.
pub fn ledger(cookie: u64, done: bool, complete: u64, entries: &[LedgerEntry], out: &mut Vec<u8>) {
    let entries = &entries[..entries.len().min(LEDGER_ENTRIES_MAX)];
    let payload_bytes = u32::try_from(8 + LedgerEntry::BYTES * entries.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&chunk_header(cookie, done, chunk::LEDGER, payload_bytes));
    out.extend_from_slice(&complete.to_be_bytes());
    for LedgerEntry { from, to, number, targets, landed, undo, stale } in entries {
        out.extend_from_slice(&from.to_be_bytes());
        out.extend_from_slice(&to.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&targets.to_be_bytes());
        let state = (u32::from(*landed) * LedgerEntry::LANDED)
            | (u32::from(*undo) * LedgerEntry::UNDO)
            | (u32::from(*stale) * LedgerEntry::STALE);
        out.extend_from_slice(&state.to_be_bytes());
    }
}

/// The CRC32Cs of all blocks that a READ or WRITE touches, at least one and at most [`CONTEXTS_MAX`].
pub fn contexts(cookie: u64, done: bool, sums: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u8>) {
    debug_assert!((1..=CONTEXTS_MAX).contains(&sums.len()), "{} checksums", sums.len());
    let payload_bytes = u32::try_from(4 * sums.len()).unwrap_or(u32::MAX);
    out.reserve(20 + 4 * sums.len());
    out.extend_from_slice(&chunk_header(cookie, done, chunk::CONTEXTS, payload_bytes));
    sums.for_each(|sum| out.extend_from_slice(&sum.to_be_bytes()));
}

/// Nonce and authentication tag of all blocks that a READ touches, at least one and at most [`CONTEXTS_MAX`].
pub fn auth(
    cookie: u64,
    done: bool,
    all: impl ExactSizeIterator<Item = [u8; AUTH_BYTES]>,
    out: &mut Vec<u8>,
) {
    debug_assert!((1..=CONTEXTS_MAX).contains(&all.len()), "{} blocks", all.len());
    let payload_bytes = u32::try_from(AUTH_BYTES * all.len()).unwrap_or(u32::MAX);
    out.reserve(20 + AUTH_BYTES * all.len());
    out.extend_from_slice(&chunk_header(cookie, done, chunk::AUTH, payload_bytes));
    all.for_each(|one| out.extend_from_slice(&one));
}

const fn chunk_header(cookie: u64, done: bool, kind: u16, payload_bytes: u32) -> [u8; 20] {
    let flags = if done { chunk::FLAG_DONE } else { 0 };
    let mut out = [0; 20];
    let at = put(&mut out, 0, STRUCTURED_REPLY_MAGIC.to_be_bytes());
    let at = put(&mut out, at, flags.to_be_bytes());
    let at = put(&mut out, at, kind.to_be_bytes());
    let at = put(&mut out, at, cookie.to_be_bytes());
    put(&mut out, at, payload_bytes.to_be_bytes());
    out
}

fn error_fields(errno: Errno, message: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&errno.to_wire().to_be_bytes());
    let message_bytes = u16::try_from(message.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&message_bytes.to_be_bytes());
    out.extend_from_slice(message);
}
