//! The serving end: the handshake, then request headers in and reply headers out.
//! Never: looks an export up or touches a payload; the driver does. Tests: `tests/`, one file per subject.

mod handshake;
mod option;
pub mod reply;
pub mod request;
mod step;

pub use handshake::Handshake;
pub use step::{CloseReason, ExportError, Purpose, Step};
