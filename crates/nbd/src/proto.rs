//! The numbers of the protocol, under the names its document gives them.
//!
//! Owns: magics, option and reply codes, commands, flags, error codes. Never: how they are laid out in a
//! message. Key invariant: unknown numbers stay representable, because answering them is the peer's right.
//! Tests: below.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The first 8 bytes of every server: the letters `NBDMAGIC`.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Follows [`NBDMAGIC`] in a newstyle greeting, and opens each option of a client: the letters `IHAVEOPT`.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// The second magic of servers from before 2011.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Opens each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Opens each request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Opens a reply without chunks.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Opens each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// The port IANA gave to NBD.
pub const PORT: u16 = 10_809;

/// The protocol's own metadata context: holes and zeros, as [`crate::StateFlags`].
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Cheetah's own metadata context: which regions of a donor were written lately.
pub const CHEETAH_DIRTY: &str = "cheetah:dirty";
/// Cheetah's own metadata context: the checksum of each block, beside what is read and written.
pub const CHEETAH_CONTEXT: &str = "cheetah:context";
/// Cheetah's own metadata context: the nonce and authentication tag of each block, beside what is read and
/// written. Only of encrypted volumes.
pub const CHEETAH_AUTH: &str = "cheetah:auth";
/// The number of Cheetah's own command, far from those that the protocol may still give out.
const CHEETAH_MARK: u16 = 0x4348;
/// The one behind it.
const CHEETAH_VERIFY: u16 = 0x4349;
/// And the next.
const CHEETAH_UNDO: u16 = 0x434a;
/// The number of [`Command::Digest`].
const CHEETAH_DIGEST: u16 = 0x434b;
/// The number of [`Command::Auth`].
const CHEETAH_AUTH_COMMAND: u16 = 0x434c;
/// Zeroes behind the answer to EXPORT_NAME, unless NO_ZEROES was agreed.
pub const EXPORT_NAME_ZEROES_BYTES: usize = 124;

/// `NBD_FLAG_*` and `NBD_FLAG_C_*` of the greeting; both ends use the same bits.
pub mod handshake_flags {
    /// The server answers options with replies; without it a client can only send EXPORT_NAME.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The answer to EXPORT_NAME ends without its 124 zeroes, if the client agrees.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// `NBD_OPT_*`.
pub mod opt {
    /// Chooses an export and ends the handshake. It has no error reply: the server closes.
    pub const EXPORT_NAME: u32 = 1;
    /// The client gives up; the server acknowledges and both close.
    pub const ABORT: u32 = 2;
    /// Asks for the names of the exports, a [`rep::SERVER`](super::rep::SERVER) for each.
    pub const LIST: u32 = 3;
    /// Behind its ACK both ends speak TLS, and begin the options anew.
    pub const STARTTLS: u32 = 5;
    /// What there is to know of an export, without choosing it.
    pub const INFO: u32 = 6;
    /// As INFO, and an ACK ends the handshake.
    pub const GO: u32 = 7;
    /// From its ACK on the server may answer in chunks, and answers every READ so.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which contexts an export has; no query means all of them.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Which contexts BLOCK_STATUS shall tell of; each SET replaces the one before. It needs structured
    /// replies.
    pub const SET_META_CONTEXT: u32 = 10;
    /// 64-bit lengths. Not spoken here.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// `NBD_REP_*`.
pub mod rep {
    /// The option is done. Behind the ACK to GO the transmission phase begins.
    pub const ACK: u32 = 1;
    /// One export of a LIST: the length of its name (32 bits), the name, a description.
    pub const SERVER: u32 = 2;
    /// One fact about an export: its number in [`info`](super::info) (16 bits), then what it says.
    pub const INFO: u32 = 3;
    /// One context: its id (32 bits), then its name. In the answer to LIST_META_CONTEXT the id means nothing.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERR: u32 = 1 << 31;
    /// The server does not know the option, or cannot carry it out.
    pub const ERR_UNSUP: u32 = ERR | 1;
    /// The server does not want to, by its own rules.
    pub const ERR_POLICY: u32 = ERR | 2;
    /// The option contradicts itself, or comes out of turn.
    pub const ERR_INVALID: u32 = ERR | 3;
    /// The server's platform cannot.
    pub const ERR_PLATFORM: u32 = ERR | 4;
    /// The server talks only behind STARTTLS.
    pub const ERR_TLS_REQD: u32 = ERR | 5;
    /// There is no export of this name.
    pub const ERR_UNKNOWN: u32 = ERR | 6;
    /// The server is about to end.
    pub const ERR_SHUTDOWN: u32 = ERR | 7;
    /// The server wants a client that asks for BLOCK_SIZE.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERR | 8;
    /// The option is longer than the server reads.
    pub const ERR_TOO_BIG: u32 = ERR | 9;
}

/// `NBD_INFO_*`.
pub mod info {
    /// Size (64 bits) and transmission flags (16 bits). The one that must come before GO's ACK.
    pub const EXPORT: u16 = 0;
    /// The name that the server itself uses for the export.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// The least, the preferred and the largest block, in bytes, 32 bits each.
    pub const BLOCK_SIZE: u16 = 3;
}

/// `NBD_REPLY_TYPE_*` of structured chunks.
pub mod chunk {
    /// No payload. It only ends a reply, so the flag DONE is always set.
    pub const NONE: u16 = 0;
    /// Offset (64 bits), then data of a READ, at least a byte.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset (64 bits) and length (32 bits) of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Id of a context (32 bits), then pairs of length and flags (32 bits each), at least one.
    pub const BLOCK_STATUS: u16 = 5;
    /// Cheetah's own, to a client that has sent a MARK: which writes are not known to be complete.
    pub const LEDGER: u16 = 0x4348;
    /// Cheetah's own, where `cheetah:context` was agreed: CRC32Cs (32 bits each) of all blocks that a READ
    /// touches, before its data, or of those that a WRITE has touched, as they are now.
    pub const CONTEXTS: u16 = 0x4349;
    /// Cheetah's own, where `cheetah:auth` was agreed: nonce and authentication tag
    /// ([`AUTH_BYTES`](crate::limits::AUTH_BYTES) each) of all blocks that a READ touches, before its
    /// [`CONTEXTS`].
    pub const AUTH: u16 = 0x434a;
    /// Set in every error chunk.
    pub const ERR: u16 = 1 << 15;
    /// Code (32 bits), length of the message (16 bits), the message.
    pub const ERROR: u16 = ERR | 1;
    /// As [`ERROR`], and an offset (64 bits) behind the message.
    pub const ERROR_OFFSET: u16 = ERR | 2;
    /// `NBD_REPLY_FLAG_DONE`.
    pub const FLAG_DONE: u16 = 1 << 0;
}

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$flag_doc:meta])* $flag:ident = $bit:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// No bit.
            pub const EMPTY: Self = Self(0);
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// Whether all bits of `other` are set, as they are when it has none.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The bits of both.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits of this one that `other` has not.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.with(other);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut rest = *self;
                let mut separator = "";
                f.write_str(concat!(stringify!($name), "("))?;
                $(if self.contains(Self::$flag) {
                    write!(f, "{separator}{}", stringify!($flag))?;
                    separator = "|";
                    rest = rest.without(Self::$flag);
                })*
                if rest.0 != 0 {
                    write!(f, "{separator}{:#x}", rest.0)?;
                }
                f.write_str(")")
            }
        }
    };
}
pub(crate) use flags;

flags! {
    /// What an export can do, `NBD_FLAG_*` of the transmission phase. Unknown bits are kept.
    TransmissionFlags: u16 {
        /// Always set by a server of today; without it the other bits mean nothing.
        HAS_FLAGS = 0,
        /// Requests that write are answered with EPERM.
        READ_ONLY = 1,
        /// FLUSH may be sent.
        SEND_FLUSH = 2,
        /// [`CmdFlags::FUA`] may be set.
        SEND_FUA = 3,
        /// Seeking costs, as on a spinning disk.
        ROTATIONAL = 4,
        /// TRIM may be sent.
        SEND_TRIM = 5,
        /// WRITE_ZEROES may be sent.
        SEND_WRITE_ZEROES = 6,
        /// [`CmdFlags::DF`] may be set; only with structured replies.
        SEND_DF = 7,
        /// A FLUSH on one connection covers what was answered on all connections to the export.
        CAN_MULTI_CONN = 8,
        /// CACHE may be sent.
        SEND_CACHE = 10,
        /// [`CmdFlags::FAST_ZERO`] may be set.
        SEND_FAST_ZERO = 11,
    }
}

flags! {
    /// `NBD_CMD_FLAG_*` of a request. Unknown bits are kept so that they can be refused.
    CmdFlags: u16 {
        /// The answer waits until what was written is permanent.
        FUA = 0,
        /// Of WRITE_ZEROES: the zeros shall take up room, and not be a hole.
        NO_HOLE = 1,
        /// Of READ: all data in one chunk, or EOVERFLOW.
        DF = 2,
        /// Of BLOCK_STATUS: one run for each context is enough.
        REQ_ONE = 3,
        /// Of WRITE_ZEROES: ENOTSUP at once, rather than zeros as slow as a WRITE.
        FAST_ZERO = 4,
        /// Cheetah's own, of MARK: what the writes behind it cover is kept until they are complete.
        KEEP = 15,
    }
}

/// `NBD_CMD_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// `NBD_CMD_READ`: the data comes with the answer.
    Read,
    /// `NBD_CMD_WRITE`: alone of the protocol's own has a payload behind its header.
    Write,
    /// `NBD_CMD_DISC`: the client sends nothing more. It has no answer.
    Disc,
    /// `NBD_CMD_FLUSH`: its answer says that all writes answered before are permanent. It has no range.
    Flush,
    /// `NBD_CMD_TRIM`: the client needs the range no more; it may read as anything afterwards.
    Trim,
    /// `NBD_CMD_CACHE`: the client is about to read the range. Nothing depends on it.
    Cache,
    /// `NBD_CMD_WRITE_ZEROES`: zeros without a payload, so its length is not held to that of a WRITE.
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`: asks for the states of a range, in each context that was agreed.
    BlockStatus,
    /// Cheetah's own, where `cheetah:dirty` was agreed: what the writes behind it on this connection are. Not
    /// answered.
    Mark,
    /// Cheetah's own, where `cheetah:context` was agreed: compares the blocks of a range with their
    /// checksums. Answered as a BLOCK_STATUS in that context alone.
    Verify,
    /// Cheetah's own, where `cheetah:dirty` was agreed: puts back what was in a range before the write that
    /// the MARK before it names. ENOTSUP, and nothing is changed: not all of that is kept.
    Undo,
    /// Cheetah's own, where `cheetah:context` was agreed: what the payload of the WRITE behind it is. Not
    /// answered.
    Digest,
    /// Cheetah's own, where `cheetah:auth` was agreed: its payload is nonce and authentication tag of each
    /// block of the WRITE behind it. Not answered.
    Auth,
    /// Answered with EINVAL; it carries no payload.
    Unknown(u16),
}

impl Command {
    /// Total: a number that is not known here is [`Command::Unknown`].
    #[must_use]
    pub const fn from_wire(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disc,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            CHEETAH_MARK => Self::Mark,
            CHEETAH_VERIFY => Self::Verify,
            CHEETAH_UNDO => Self::Undo,
            CHEETAH_DIGEST => Self::Digest,
            CHEETAH_AUTH_COMMAND => Self::Auth,
            other => Self::Unknown(other),
        }
    }

    /// Whether what the export holds changes by it.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes | Self::Undo)
    }

    /// The inverse of [`Command::from_wire`].
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disc => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Mark => CHEETAH_MARK,
            Self::Verify => CHEETAH_VERIFY,
            Self::Undo => CHEETAH_UNDO,
            Self::Digest => CHEETAH_DIGEST,
            Self::Auth => CHEETAH_AUTH_COMMAND,
            Self::Unknown(other) => other,
        }
    }
}

/// The error codes the protocol allows in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Errno {
    /// EPERM: the export is read-only, or the client may not touch the range.
    Perm = 1,
    /// EIO: the data cannot be had or kept.
    Io = 5,
    /// ENOMEM: the server lacks memory for this request.
    NoMem = 12,
    /// EINVAL: the request is not possible, or asks for what was not agreed.
    Inval = 22,
    /// ENOSPC: a write beyond the end of the export, or without room behind it.
    NoSpc = 28,
    /// ENODATA: the block is not here yet. Only between those that agreed on `cheetah:context`; to all others
    /// that is EIO.
    NoData = 61,
    /// EOVERFLOW: too long for one answer.
    Overflow = 75,
    /// ENOTSUP: a FAST_ZERO that would not be fast, or what the server cannot do.
    NotSup = 95,
    /// ESHUTDOWN: the server is about to end.
    Shutdown = 108,
}

impl Errno {
    /// None is success; a code the protocol does not know counts as EINVAL, as it asks of clients.
    #[must_use]
    pub const fn from_wire(code: u32) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMem,
            28 => Self::NoSpc,
            61 => Self::NoData,
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Inval,
        })
    }

    /// The number that the protocol's document gives it, which is Linux's own.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Perm => "EPERM",
            Self::Io => "EIO",
            Self::NoMem => "ENOMEM",
            Self::Inval => "EINVAL",
            Self::NoSpc => "ENOSPC",
            Self::NoData => "ENODATA",
            Self::Overflow => "EOVERFLOW",
            Self::NotSup => "ENOTSUP",
            Self::Shutdown => "ESHUTDOWN",
        })
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_errors_survive_the_wire() {
        for number in 0..=u16::MAX {
            assert_eq!(Command::from_wire(number).to_wire(), number);
        }
        for code in [1, 5, 12, 22, 28, 75, 95, 108] {
            assert_eq!(Errno::from_wire(code).map(Errno::to_wire), Some(code));
        }
        assert_eq!(Errno::from_wire(0), None);
        assert_eq!(Errno::from_wire(4095), Some(Errno::Inval));
    }

    #[test]
    fn flags_name_what_they_know_and_show_the_rest() {
        let flags = CmdFlags::FUA | CmdFlags::DF | CmdFlags(0x100);
        assert_eq!(format!("{flags:?}"), "CmdFlags(FUA|DF|0x100)");
        assert_eq!(format!("{:?}", CmdFlags::EMPTY), "CmdFlags()");
    }
}
