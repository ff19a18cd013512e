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
//!
//! A request as bytes, what a server makes of it, and its answer:
//!
//! ```
//! use cheetah_nbd::server::{Outbox, Transmission, transmission::Step};
//! use cheetah_nbd::{CmdFlags, Command, ExportInfo, Negotiated, RequestHeader, TransmissionFlags};
//!
//! let (flags, command) = (CmdFlags::EMPTY, Command::Read);
//! let header = RequestHeader { flags, command, cookie: 7, offset: 4096, length: 512 };
//! let bytes = header.encode();
//!
//! let (export, info) = (String::new(), ExportInfo::new(8192, TransmissionFlags::EMPTY));
//! let (base_allocation, dirty, context, auth) = (None, None, None, None);
//! let structured_replies = true;
//! let session = Negotiated { export, info, structured_replies, base_allocation, dirty, context, auth };
//! let mut requests = Transmission::new(session, 32 << 10);
//! let step = requests.next(&mut &bytes[..]);
//! assert_eq!(step, Ok(Some(Step::Request { header, verdict: Ok(command) })));
//!
//! let mut answers = Outbox::new(true);
//! answers.data(&header, "where the data is");
//! assert_eq!(answers.bytes(), 28 + 512);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
mod export;
pub mod limits;
pub mod proto;
mod seal;
pub mod server;
pub mod uri;
mod violation;
mod wire;

pub use export::{Descriptor, ExportInfo, ListEntry, Negotiated, StateFlags};
pub use proto::{CmdFlags, Command, Errno, TransmissionFlags};
pub use seal::seal;
pub use server::digest::Digest;
pub use server::reply::LedgerEntry;
pub use server::request::{Mark, Reject, RequestHeader};
pub use violation::Violation;
