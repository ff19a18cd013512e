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
    OptionMagic(u64),
    OptionTooBig {
        option: u32,
        bytes: u32,
    },
    TooManyOptions,
    /// EXPORT_NAME with a name that is no name; it has no error reply.
    ExportName,
    OptionReplyMagic(u64),
    OptionReplyTooBig {
        bytes: u32,
    },
    TooManyOptionReplies,
    /// A reply to another option than the one asked.
    OptionReplyOrder {
        asked: u32,
        answered: u32,
    },
    /// A reply whose type has no place here, or whose fields contradict its length.
    OptionReplyMalformed {
        option: u32,
        reply: u32,
    },
    /// GO was acknowledged without the size of the export.
    NoExportInfo,
    ExportSize(u64),
    BlockSizes {
        min: u32,
        preferred: u32,
        max: u32,
    },
    RequestMagic(u32),
    /// A payload larger than can be taken in.
    PayloadTooBig {
        command: Command,
        bytes: u32,
    },
    ReplyMagic(u32),
    /// A chunk of a type unknown here, which cannot be skipped by the protocol.
    ChunkType(u16),
    ChunkLength {
        chunk: u16,
        bytes: u32,
    },
    /// A chunk whose fields contradict each other or the protocol.
    ChunkMalformed(u16),
    /// An answer to what is not awaited.
    Unasked {
        cookie: u64,
    },
    /// An answer to a request that has not left in full.
    AnsweredEarly,
    DataOutside {
        offset: u64,
        bytes: u32,
    },
    /// More data than was asked for, or data for what is no READ.
    DataUnasked,
    ReadInPart,
    StatusUnasked,
    LedgerUnasked,
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
            Self::LedgerUnasked => write!(f, "the server sent a ledger that was not asked for"),
        }
    }
}

impl std::error::Error for Violation {}
