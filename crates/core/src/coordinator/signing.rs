//! The pool's signing key, as it is stored.
//!
//! Owns the record and its place in the coordinator. Never: signing, which the driver does; or handing
//! the key out. Invariant: a pool signs with one key for as long as its state lasts. Called by
//! `rim::control`. Tests: `tests/coordinator_restore.rs`.

use super::{Coordinator, Key};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the pool signs with, as the driver made it: Ed25519, with the number that minisign knows keys by.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningRecord {
    /// 8 bytes in hexadecimal digits. They are drawn, and say nothing of the key.
    pub id: String,
    /// 32 bytes in hexadecimal digits: whoever has them signs as the pool.
    pub seed: String,
}

impl fmt::Debug for SigningRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningRecord").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Coordinator {
    /// What the pool signs with. None: it is new, or its state is of a version that signed nothing.
    #[must_use]
    pub fn signing(&self) -> Option<&SigningRecord> {
        self.signing.as_ref()
    }

    /// Signs with this from its next step on, which stores it.
    pub fn sign_with(&mut self, signing: SigningRecord) {
        self.signing = Some(signing);
        self.dirty.insert(Key::Signing);
    }
}
