//! Why a client's handshake failed, in words for the person who typed the address.
//! Never: a failure of the network; the driver has those. Tests: `tests/client_options.rs`.

use crate::proto::{opt, rep};
use crate::violation::Violation;
use std::fmt;

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The server broke the protocol or a limit during the handshake.
    Violation(Violation),
    /// The export name is longer than the protocol allows, or has a NUL.
    ExportName,
    /// The server is too old to list its exports.
    CannotList,
    /// The server wants TLS first, and this client was not to speak it.
    TlsRequired,
    /// The server offers no TLS, and this client says nothing in the clear.
    NoTls,
    /// The server's own answer (a code of [`rep`]) and words, which may be empty.
    Refused {
        /// The option that was refused, of [`opt`]: GO or LIST.
        option: u32,
        /// The code, with [`rep::ERR`] set.
        reply: u32,
        /// At most 4096 bytes, what was not UTF-8 replaced; control characters are still in it.
        message: String,
    },
    /// The server closed the connection before the handshake ended.
    Closed {
        /// It was asked with EXPORT_NAME, to which closing is the only refusal.
        asked_export_name: bool,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => violation.fmt(f),
            Self::ExportName => write!(f, "the export name is longer than 4096 bytes or contains a NUL"),
            Self::CannotList => write!(f, "the server is too old to list its exports"),
            Self::TlsRequired => write!(f, "the server requires TLS, and is asked without"),
            Self::NoTls => write!(f, "the server offers no TLS, and is told nothing in the clear"),
            Self::Refused { option, reply, message } => {
                refused(f, *option, *reply)?;
                if !message.is_empty() {
                    // Control characters of a peer do not belong on a terminal.
                    let shown: String =
                        message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                    write!(f, ": {shown}")?;
                }
                Ok(())
            }
            Self::Closed { asked_export_name: true } => {
                write!(f, "the server closed the connection: it likely has no export of this name")
            }
            Self::Closed { asked_export_name: false } => {
                write!(f, "the server closed the connection during the handshake")
            }
        }
    }
}

fn refused(f: &mut fmt::Formatter<'_>, option: u32, reply: u32) -> fmt::Result {
    let what = if option == opt::LIST { "to list its exports" } else { "the export" };
    match reply {
        rep::ERR_UNKNOWN => write!(f, "the server has no export of this name"),
        rep::ERR_SHUTDOWN => write!(f, "the server is shutting down"),
        rep::ERR_POLICY => write!(f, "the server's policy refuses {what}"),
        rep::ERR_UNSUP => write!(f, "the server does not know how {what}"),
        _ => write!(f, "the server refuses {what} with code {reply:#x}"),
    }
}

impl std::error::Error for Error {}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}
