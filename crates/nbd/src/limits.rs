//! Every size and count a peer is held to, unit last in the name.
//! Never: a limit that only one file knows. Relations are asserted at compile time below.

/// The largest payload of one READ or WRITE; what clients assume when a server says nothing.
pub const REQUEST_PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// The largest export: off_t is signed.
pub const EXPORT_BYTES_MAX: u64 = (1 << 63) - 1;
/// The protocol's limit for every string: names, descriptions, queries, messages.
pub const STRING_BYTES_MAX: usize = 4096;
/// In bytes of UTF-8, as it is on the wire.
pub const EXPORT_NAME_BYTES_MAX: usize = STRING_BYTES_MAX;
/// One query of LIST_META_CONTEXT or SET_META_CONTEXT, with its namespace.
pub const META_QUERY_BYTES_MAX: usize = STRING_BYTES_MAX;
/// The text of an option's refusal or of an error chunk; a longer one is cut before it is sent.
pub const MESSAGE_BYTES_MAX: usize = STRING_BYTES_MAX;
/// The largest minimum block size a server may demand.
pub const BLOCK_MIN_BYTES_MAX: u32 = 64 << 10;

/// The largest option a server holds in memory.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// The largest option a server reads past to answer TOO_BIG; beyond it, it closes.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options in one handshake; scanners ask a few per export.
pub const OPTIONS_MAX: u32 = 1024;
/// Metadata context queries in one option.
pub const META_QUERIES_MAX: u32 = 64;
/// Info requests in one INFO or GO; the protocol knows four.
pub const INFO_REQUESTS_MAX: u16 = 64;
/// A handshake with this much unsent takes no further input until its output was taken.
pub const HANDSHAKE_OUTPUT_BYTES_MAX: usize = 64 << 10;
/// A LIST answer larger than this is refused as a whole, never cut.
pub const LIST_OUTPUT_BYTES_MAX: usize = 2 << 20;

/// The largest option reply a client holds in memory.
pub const OPTION_REPLY_BYTES_MAX: u32 = 16 << 10;
/// Replies of any kind to one option, as a client counts them.
pub const OPTION_REPLIES_MAX: u32 = LIST_ENTRIES_MAX as u32 + 1;
/// Exports a client takes from one LIST.
pub const LIST_ENTRIES_MAX: usize = 16_384;
/// Names and descriptions a client takes from one LIST, together.
pub const LIST_BYTES_MAX: usize = 4 << 20;

/// What one checksum of a CONTEXTS chunk is of.
pub const CONTEXT_BLOCK_BYTES: u32 = 4096;
/// Checksums in one CONTEXTS chunk, either way: a READ of the largest payload, wherever it begins.
pub const CONTEXTS_MAX: usize = (REQUEST_PAYLOAD_BYTES_MAX / CONTEXT_BLOCK_BYTES) as usize + 1;
/// Nonce and authentication tag of one block of an encrypted volume: 12 and 16 bytes of AES-256-GCM.
pub const AUTH_BYTES: usize = 28;
/// Writes in one LEDGER chunk, either way.
pub const LEDGER_ENTRIES_MAX: usize = 20 << 10;
/// Descriptors in one BLOCK_STATUS chunk, either way.
pub const BLOCK_STATUS_DESCRIPTORS_MAX: usize = 128 << 10;
/// The payload of an error chunk: its fixed fields, a message, and what a later protocol may append.
pub const ERROR_CHUNK_BYTES_MAX: u32 = 8 << 10;
/// The largest head of a reply, so the receive buffer a client needs ([`crate::client::Reply::need`]).
pub const REPLY_HEAD_BYTES_MAX: usize = 20 + 4 + 8 * BLOCK_STATUS_DESCRIPTORS_MAX;

const _: () = {
    assert!(OPTION_BYTES_MAX as usize > 2 * STRING_BYTES_MAX && OPTION_BYTES_MAX < OPTION_SKIP_BYTES_MAX);
    assert!(OPTION_REPLY_BYTES_MAX as usize > 2 * STRING_BYTES_MAX + 8);
    assert!(ERROR_CHUNK_BYTES_MAX as usize > 14 + MESSAGE_BYTES_MAX);
    assert!(ERROR_CHUNK_BYTES_MAX as usize + 20 < REPLY_HEAD_BYTES_MAX);
    assert!(LIST_OUTPUT_BYTES_MAX > HANDSHAKE_OUTPUT_BYTES_MAX);
    assert!(20 + AUTH_BYTES * CONTEXTS_MAX <= REPLY_HEAD_BYTES_MAX);
    assert!(BLOCK_MIN_BYTES_MAX.is_power_of_two() && BLOCK_MIN_BYTES_MAX <= REQUEST_PAYLOAD_BYTES_MAX);
};
