//! The using end: the handshake, then the transmission. Never: touches a payload; the driver does.
//! Files: `handshake`, `option` (a question of it), `transmission`, `asked` (requests and their answers, for
//! drivers), `head` (a request's bytes), `reply` (a reply's), `error`. Tests: `tests/`, one file per subject.

mod asked;
mod error;
mod handshake;
mod head;
mod option;
mod reply;
mod transmission;

pub use asked::{Answer, Incoming, Outgoing, Request, Take};
pub use error::Error;
pub use handshake::{Handshake, Step, Want};
pub use head::HEAD_BYTES;
pub use reply::Reply;
pub use transmission::Transmission;
