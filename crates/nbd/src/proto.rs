//! The numbers of the protocol, under the names its document gives them.
//!
//! Owns: magics, option and reply codes, commands, flags, error codes. Never: how they are laid out in a
//! message. Key invariant: unknown numbers stay representable, because answering them is the peer's right.
//! Tests: below.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// The second magic of servers from before 2011.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// The port IANA gave to NBD.
pub const PORT: u16 = 10_809;

pub const BASE_ALLOCATION: &str = "base:allocation";
/// Cheetah's own metadata context: which regions of a donor were written lately.
pub const CHEETAH_DIRTY: &str = "cheetah:dirty";
/// The number of Cheetah's own command, far from those that the protocol may still give out.
const CHEETAH_MARK: u16 = 0x4348;
/// Zeroes behind the answer to EXPORT_NAME, unless NO_ZEROES was agreed.
pub const EXPORT_NAME_ZEROES_BYTES: usize = 124;

/// `NBD_FLAG_*` and `NBD_FLAG_C_*` of the greeting; both ends use the same bits.
pub mod handshake_flags {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// `NBD_OPT_*`.
pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// `NBD_REP_*`.
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERR | 1;
    pub const ERR_POLICY: u32 = ERR | 2;
    pub const ERR_INVALID: u32 = ERR | 3;
    pub const ERR_PLATFORM: u32 = ERR | 4;
    pub const ERR_TLS_REQD: u32 = ERR | 5;
    pub const ERR_UNKNOWN: u32 = ERR | 6;
    pub const ERR_SHUTDOWN: u32 = ERR | 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERR | 8;
    pub const ERR_TOO_BIG: u32 = ERR | 9;
}

/// `NBD_INFO_*`.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// `NBD_REPLY_TYPE_*` of structured chunks.
pub mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    /// Cheetah's own, to a client that has sent a MARK: which writes are not known to be complete.
    pub const LEDGER: u16 = 0x4348;
    /// Set in every error chunk.
    pub const ERR: u16 = 1 << 15;
    pub const ERROR: u16 = ERR | 1;
    pub const ERROR_OFFSET: u16 = ERR | 2;
    /// `NBD_REPLY_FLAG_DONE`.
    pub const FLAG_DONE: u16 = 1 << 0;
}

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($flag:ident = $bit:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            pub const EMPTY: Self = Self(0);
            $(pub const $flag: Self = Self(1 << $bit);)*

            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

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
        HAS_FLAGS = 0,
        READ_ONLY = 1,
        SEND_FLUSH = 2,
        SEND_FUA = 3,
        ROTATIONAL = 4,
        SEND_TRIM = 5,
        SEND_WRITE_ZEROES = 6,
        SEND_DF = 7,
        CAN_MULTI_CONN = 8,
        SEND_CACHE = 10,
        SEND_FAST_ZERO = 11,
    }
}

flags! {
    /// `NBD_CMD_FLAG_*` of a request. Unknown bits are kept so that they can be refused.
    CmdFlags: u16 {
        FUA = 0,
        NO_HOLE = 1,
        DF = 2,
        REQ_ONE = 3,
        FAST_ZERO = 4,
    }
}

/// `NBD_CMD_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    Read,
    Write,
    Disc,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    /// Cheetah's own, where `cheetah:dirty` was agreed: what the writes behind it on this connection are. Not
    /// answered.
    Mark,
    /// Answered with EINVAL; it carries no payload.
    Unknown(u16),
}

impl Command {
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
            other => Self::Unknown(other),
        }
    }

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
            Self::Unknown(other) => other,
        }
    }
}

/// The error codes the protocol allows in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Errno {
    Perm = 1,
    Io = 5,
    NoMem = 12,
    Inval = 22,
    NoSpc = 28,
    Overflow = 75,
    NotSup = 95,
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
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Inval,
        })
    }

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
