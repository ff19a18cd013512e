//! The NBD protocol, both ends, as a codec and state machines: the two handshakes, and what a server does
//! behind its own.
//!
//! Owns: every byte of the fixed newstyle handshake and of the transmission headers, and the limits a peer is
//! held to. Never does: sockets, async, clocks, or touching a payload: the driver sends and receives that
//! itself, right behind the header that announces it. Key invariant: whatever a peer sends, nothing panics
//! and nothing grows beyond a limit of [`limits`].
//!
//! Called by the drivers in `rim` and `front`: `server` to export, `client` to use a donor or a source.
//! Tests: `tests/`, one file per subject; `tests/pair.rs` runs client against server; the top-level `fuzz/`.
#![forbid(unsafe_code)]

pub mod client;
mod export;
pub mod limits;
pub mod proto;
pub mod server;
pub mod uri;
mod violation;
mod wire;

pub use export::{Descriptor, ExportInfo, ListEntry, Negotiated, StateFlags};
pub use proto::{CmdFlags, Command, Errno, TransmissionFlags};
pub use server::reply::LedgerEntry;
pub use server::request::{Mark, Reject, RequestHeader};
pub use violation::Violation;
