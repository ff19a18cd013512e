//! What a peer did that ends the connection.
//! Never: a condition the protocol has an answer for; those are replies, not violations.

use crate::proto::Command;
use std::fmt;

/// The peer broke the protocol or a limit; the only answer is to close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The greeting does not start with NBDMAGIC.
    NotNbd,
    /// The server speaks the oldstyle handshake.
    Oldstyle,
    /// A client set flags the greeting did not offer.
    ClientFlags(u32),
    /// A client without FIXED_NEWSTYLE sent something else than EXPORT_NAME.
    NotFixedNewstyle,
    /// What stood where [`IHAVEOPT`](crate::proto::IHAVEOPT) opens an option.
    OptionMagic(u64),
    /// A client's option beyond [`OPTION_SKIP_BYTES_MAX`](crate::limits::OPTION_SKIP_BYTES_MAX).
    OptionTooBig {
        /// Its number, of [`opt`](crate::proto::opt) or unknown.
        option: u32,
        /// The length that its header announces.
        bytes: u32,
    },
    /// A client sent more than [`OPTIONS_MAX`](crate::limits::OPTIONS_MAX) options.
    TooManyOptions,
    /// EXPORT_NAME with a name that is no name; it has no error reply.
    ExportName,
    /// What stood where [`OPTION_REPLY_MAGIC`](crate::proto::OPTION_REPLY_MAGIC) opens a reply.
    OptionReplyMagic(u64),
    /// A server's reply to an option beyond
    /// [`OPTION_REPLY_BYTES_MAX`](crate::limits::OPTION_REPLY_BYTES_MAX).
    OptionReplyTooBig {
        /// The length that its header announces.
        bytes: u32,
    },
    /// More replies to one option than `OPTION_REPLIES_MAX`, or a LIST beyond its limits.
    TooManyOptionReplies,
    /// A reply to another option than the one asked.
    OptionReplyOrder {
        /// The option that is outstanding.
        asked: u32,
        /// The option that the reply names.
        answered: u32,
    },
    /// A reply whose type has no place here, or whose fields contradict its length.
    OptionReplyMalformed {
        /// The option that was asked.
        option: u32,
        /// The reply's type, of [`rep`](crate::proto::rep) or unknown.
        reply: u32,
    },
    /// GO was acknowledged without the size of the export.
    NoExportInfo,
    /// The server announces more than [`EXPORT_BYTES_MAX`](crate::limits::EXPORT_BYTES_MAX), so many bytes.
    ExportSize(u64),
    /// The server's least block is no power of two or above 64 KiB, or another size is below it.
    BlockSizes {
        /// Bytes; a power of two up to 64 KiB is possible.
        min: u32,
        /// Bytes; `min` or more is possible.
        preferred: u32,
        /// Bytes; `min` or more is possible.
        max: u32,
    },
    /// What stood where [`REQUEST_MAGIC`](crate::proto::REQUEST_MAGIC) opens a request.
    RequestMagic(u32),
    /// A payload larger than can be taken in.
    PayloadTooBig {
        /// Always WRITE: no other has a payload.
        command: Command,
        /// The length that its header announces; above `REQUEST_PAYLOAD_BYTES_MAX`.
        bytes: u32,
    },
    /// What stood where a simple reply or a chunk begins with its magic.
    ReplyMagic(u32),
    /// A chunk of a type unknown here, which cannot be skipped by the protocol.
    ChunkType(u16),
    /// A chunk's length does not fit its type, or is above what is read of it.
    ChunkLength {
        /// Its type, of [`chunk`](crate::proto::chunk).
        chunk: u16,
        /// The length of its payload that its header announces.
        bytes: u32,
    },
    /// A chunk whose fields contradict each other or the protocol.
    ChunkMalformed(u16),
    /// An answer to what is not awaited.
    Unasked {
        /// The client has no such request, or has had its answer already.
        cookie: u64,
    },
    /// An answer to a request that has not left in full.
    AnsweredEarly,
    /// Data or a hole that is not inside of the request that it answers.
    DataOutside {
        /// Bytes from the start of the export.
        offset: u64,
        /// The length that the chunk gives.
        bytes: u32,
    },
    /// More data than was asked for, or data for what is no READ.
    DataUnasked,
    /// A READ ended in success, and not all of its bytes came.
    ReadInPart,
    /// A BLOCK_STATUS chunk for another command, or with more runs for one request than are kept.
    StatusUnasked,
    /// A second LEDGER chunk for one request, or one for what is no BLOCK_STATUS.
    LedgerUnasked,
    /// A server's CONTEXTS chunk answers neither a READ nor a WRITE, was not agreed on, came twice, or is not
    /// of as many blocks as the request touches.
    ContextsUnasked,
    /// The answer to a READ or WRITE has no CONTEXTS chunk, which was agreed on.
    ContextsMissing,
    /// A server's AUTH chunk answers no READ, was not agreed on, came twice, or is not of as many blocks as
    /// the request touches.
    AuthUnasked,
    /// The answer to a READ has no AUTH chunk, which was agreed on.
    AuthMissing,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotNbd => write!(f, "the peer does not speak NBD"),
            Self::Oldstyle => write!(f, "the server speaks the oldstyle handshake, which is not supported"),
            Self::ClientFlags(flags) => write!(f, "the client set unknown handshake flags {flags:#x}"),
            Self::NotFixedNewstyle => {
                write!(f, "the client sent an option that needs fixed newstyle without having agreed to it")
            }
            Self::OptionMagic(magic) => write!(f, "the client sent {magic:#x} where an option starts"),
            Self::OptionTooBig { option, bytes } => {
                write!(f, "the client sent option {option} of {bytes} bytes, more than is read")
            }
            Self::TooManyOptions => write!(f, "the client sent more options than one handshake may have"),
            Self::ExportName => write!(f, "the client sent an export name that is too long or not text"),
            Self::OptionReplyMagic(magic) => {
                write!(f, "the server sent {magic:#x} where an option reply starts")
            }
            Self::OptionReplyTooBig { bytes } => {
                write!(f, "the server sent an option reply of {bytes} bytes, more than is read")
            }
            Self::TooManyOptionReplies => {
                write!(f, "the server sent more replies to one option than are read")
            }
            Self::OptionReplyOrder { asked, answered } => {
                write!(f, "the server answered option {answered} when asked option {asked}")
            }
            Self::OptionReplyMalformed { option, reply } => {
                write!(f, "the server sent a malformed or misplaced reply {reply:#x} to option {option}")
            }
            Self::NoExportInfo => write!(f, "the server acknowledged the export without telling its size"),
            Self::ExportSize(bytes) => {
                write!(f, "the server offers an export of {bytes} bytes, above 2^63-1")
            }
            Self::BlockSizes { min, preferred, max } => {
                write!(f, "the server offers impossible block sizes: {min}, {preferred}, {max}")
            }
            Self::RequestMagic(magic) => write!(f, "the client sent {magic:#x} where a request starts"),
            Self::PayloadTooBig { command, bytes } => {
                write!(f, "the client sent {command:?} with {bytes} bytes of payload, more than is read")
            }
            Self::ReplyMagic(magic) => write!(f, "the server sent {magic:#x} where a reply starts"),
            Self::ChunkType(chunk) => write!(f, "the server sent a chunk of the unknown type {chunk:#x}"),
            Self::ChunkLength { chunk, bytes } => {
                write!(f, "the server sent a chunk of type {chunk:#x} with an impossible length, {bytes}")
            }
            Self::ChunkMalformed(chunk) => write!(f, "the server sent a malformed chunk of type {chunk:#x}"),
            Self::Unasked { cookie } => write!(f, "the server answered {cookie:#x}, which was not asked"),
            Self::AnsweredEarly => {
                write!(f, "the server answered a request that it had not been sent in full")
            }
            Self::DataOutside { offset, bytes } => {
                write!(f, "the server sent {bytes} bytes at {offset}, outside of the request")
            }
            Self::DataUnasked => write!(f, "the server sent more data than was asked for"),
            Self::ReadInPart => write!(f, "the server answered a read in part"),
            Self::StatusUnasked => write!(f, "the server sent more status than was asked for"),
            Self::ContextsUnasked => write!(f, "the server sent checksums that were not asked for"),
            Self::ContextsMissing => {
                write!(f, "the server answered without the checksums that it agreed to send")
            }
            Self::AuthUnasked => write!(f, "the server sent authentication tags that were not asked for"),
            Self::AuthMissing => {
                write!(f, "the server answered without the authentication tags that it agreed to send")
            }
            Self::LedgerUnasked => write!(f, "the server sent a ledger that was not asked for"),
        }
    }
}

impl std::error::Error for Violation {}
