//! Who is at the other end: certificates of a pool's members, by TLS 1.3.
//!
//! Owns the pool's authority, what one member shows and asks of others, where it keeps that, who is
//! connected to it, and the text that invites. Never: what a member may do, which core says; or bytes of a
//! connection (`stream`). Invariants: a certificate of another
//! authority, or one whose time is over, ends the handshake; nothing here falls back to the clear. Called
//! by `control`, and by programs for the `Transport` of their data. Files: `authority`, `credentials` (what
//! a member shows and asks), `identity` (where it is kept), `guests` (who is connected), `invitation` (the
//! text). Tests: in each; `tests/members.rs`; `lab/tests/members.rs`.

mod authority;
mod credentials;
mod guests;
mod identity;
mod invitation;

pub use authority::{Authority, BadAuthority, Key};
pub use credentials::{BadCredentials, Credentials, Holder};
pub use guests::{Guest, Guests};
pub use identity::{IDENTITY_VARIABLE, Identity, IdentityError};
pub use invitation::{BadInvitation, Fingerprint, Invitation};

pub(crate) use credentials::first_contact;
pub(crate) use invitation::hash_of;
