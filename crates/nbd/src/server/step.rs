//! What the handshake asks of its driver, and what the driver may answer.
//! Never: state; see `handshake.rs` for the order of calls. Tests: `tests/server_options.rs`.

use crate::export::Negotiated;
use crate::proto::rep;
use crate::violation::Violation;

/// Why the driver is asked for an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To describe it.
    Info,
    /// To use it: success ends the handshake.
    Go,
    /// To list or set its metadata contexts.
    MetaContext,
}

/// What the driver does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// All that came is taken, or output waits: send that, then receive more.
    NeedInput,
    /// Find the export and call [`super::Handshake::answer_lookup`].
    Lookup {
        /// As the client spelt it: text without NUL, at most 4096 bytes. Empty asks for the default export.
        export: String,
        /// What the client means to do with it: only after `Go` is anything admitted.
        purpose: Purpose,
    },
    /// Call [`super::Handshake::answer_list`]: with all that may be opened, or with why nobody is told.
    List,
    /// Send the output, speak TLS from there on, and call [`super::Handshake::tls_started`]. Bytes that came
    /// in the clear behind the option are nobody's: close where there are any.
    StartTls,
    /// Send the output; every byte not consumed belongs to the transmission phase.
    Ready(Negotiated),
    /// Send the output and close.
    Close(CloseReason),
}

/// Why a handshake ended without a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The client ended the handshake, as it may.
    Abort,
    /// EXPORT_NAME asked for an export it does not get; the protocol has no other answer.
    Refused,
    /// The client broke the protocol or a limit.
    Violation(Violation),
}

/// Why an export is not given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExportError {
    /// With a sentence that the client is shown: what there is, or how to ask.
    Unknown(String),
    /// The server is about to end, and opens no export any more.
    Shutdown,
    /// Not for this client, with a sentence it is shown.
    Policy(String),
}

impl ExportError {
    /// The code of [`rep`] and the words that the client is sent.
    #[must_use]
    pub fn reply(&self) -> (u32, &str) {
        match self {
            ExportError::Unknown(text) => (rep::ERR_UNKNOWN, text.as_str()),
            ExportError::Shutdown => (rep::ERR_SHUTDOWN, "the server is shutting down"),
            ExportError::Policy(text) => (rep::ERR_POLICY, text.as_str()),
        }
    }
}
