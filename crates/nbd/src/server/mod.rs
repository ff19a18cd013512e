//! The serving end: the handshake, then requests in (`transmission`) and answers out (`outbox`, `answer`).
//! Never: looks an export up or touches a payload; the driver does. Tests: `tests/`, one file per subject.

mod answer;
pub mod digest;
mod handshake;
mod option;
pub mod outbox;
pub mod reply;
pub mod request;
mod step;
pub mod transmission;

pub use answer::Run;
pub use handshake::Handshake;
pub use outbox::Outbox;
pub use step::{CloseReason, ExportError, Purpose, Step};
pub use transmission::Transmission;
