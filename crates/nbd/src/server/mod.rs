//! The serving end: the handshake, then requests in and answers out. Never: looks an export up or touches a
//! payload; the driver does. Files: `handshake`, `option` (a question of it), `step` (what its driver does
//! next), `transmission` (requests in), `request` (one of them), `digest` (whether what came is what was
//! announced), `outbox` (answers out), `answer` (one of them), `reply` (its bytes). Tests: `tests/`, one file
//! per subject.

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
