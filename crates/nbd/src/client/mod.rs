//! The using end: the handshake, then reply heads in. Requests are [`crate::RequestHeader`]s, the same both ways.
//! Never: matches replies to requests; the driver does, by cookie. Tests: in each file, and `tests/pair.rs`.

mod handshake;
mod reply;

pub use handshake::{Error, Handshake, Step, Want};
pub use reply::Reply;
