//! The serving end: the handshake, then request headers in and reply headers out.
//! Never: looks an export up or touches a payload; the driver does. Tests: in each file, and `tests/pair.rs`.

mod handshake;
mod option;
pub mod reply;
pub mod request;

pub use handshake::{CloseReason, ExportError, Handshake, Purpose, Step};
