//! The using end: the handshake, then reply heads in. Requests are [`crate::RequestHeader`]s, the same both ways.
//! Never: matches replies to requests; the driver does, by cookie. Tests: `tests/`, one file per subject.

mod error;
mod handshake;
mod option;
mod reply;

pub use error::Error;
pub use handshake::{Handshake, Step, Want};
pub use reply::Reply;
