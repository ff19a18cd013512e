//! The text by which somebody comes into a pool: `cheetah://HOST:PORT/TOKEN`.
//!
//! Owns the form of a token: its secret, and the hash of the authority's certificate, so that the first
//! contact is not blind. Never: what it is good for, which the coordinator knows. Invariant: it is shown
//! where it is asked for, and in no message about it. Tests: below.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cheetah_core::members::{TokenHash, TokenSecret};
use sha2::{Digest, Sha256};
use std::fmt;

const SECRET_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// The SHA-256 of an authority's certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; HASH_BYTES]);

impl Fingerprint {
    pub(crate) fn of(certificate: &[u8]) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What is stored in its place.
pub(crate) fn hash_of(secret: &TokenSecret) -> TokenHash {
    TokenHash::new(Sha256::digest(secret.reveal()).into())
}

/// What somebody is given who is to come in.
#[derive(Clone)]
pub struct Invitation {
    /// `HOST:PORT`; several with commas between them.
    pub at: String,
    pub secret: TokenSecret,
    bytes: [u8; SECRET_BYTES],
    pub authority: Fingerprint,
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation").field("at", &self.at).finish_non_exhaustive()
    }
}

/// A text that is no invitation. What is wrong with its token is not shown: it may be nearly right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadInvitation;

impl fmt::Display for BadInvitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "that is no invitation to a pool: it looks like cheetah://HOST:PORT/TOKEN, with a token of 64 letters, as \
             `cheetah token new` prints it",
        )
    }
}

impl std::error::Error for BadInvitation {}

impl Invitation {
    /// `random`: what nobody guesses.
    #[must_use]
    pub fn new(at: &str, random: [u8; SECRET_BYTES], authority: Fingerprint) -> Invitation {
        Invitation { at: at.to_owned(), secret: TokenSecret::new(random), bytes: random, authority }
    }

    /// With a secret from the kernel.
    ///
    /// # Errors
    /// It gives none.
    pub fn draw(at: &str, authority: Fingerprint) -> std::io::Result<Invitation> {
        let mut random = [0; SECRET_BYTES];
        random[..8].copy_from_slice(&crate::control::random()?.to_le_bytes());
        random[8..].copy_from_slice(&crate::control::random()?.to_le_bytes());
        Ok(Invitation::new(at, random, authority))
    }

    /// What a coordinator keeps of its secret.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        hash_of(&self.secret)
    }

    /// Whether an address has a token behind it.
    #[must_use]
    pub fn is_in(url: &str) -> bool {
        without_schemes(url).is_some_and(|rest| rest.trim_end_matches('/').contains('/'))
    }

    /// # Errors
    /// It is none.
    pub fn read(url: &str) -> Result<Invitation, BadInvitation> {
        let rest = without_schemes(url).ok_or(BadInvitation)?;
        let (at, token) = rest.split_once('/').ok_or(BadInvitation)?;
        let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('/')).map_err(|_| BadInvitation)?;
        let (secret, authority) = bytes.split_at_checked(SECRET_BYTES).ok_or(BadInvitation)?;
        let authority = Fingerprint(authority.try_into().map_err(|_| BadInvitation)?);
        let secret = secret.try_into().map_err(|_| BadInvitation)?;
        if at.is_empty() { Err(BadInvitation) } else { Ok(Invitation::new(at, secret, authority)) }
    }

    /// For who is to come in.
    #[must_use]
    pub fn url(&self) -> String {
        let token = URL_SAFE_NO_PAD.encode([&self.bytes[..], &self.authority.0].concat());
        format!("cheetah://{}/{token}", self.at)
    }
}

/// Of several addresses each may have one.
fn without_schemes(url: &str) -> Option<String> {
    Some(url.strip_prefix("cheetah://")?.replace(",cheetah://", ","))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written() {
        let invitation = Invitation::new("10.0.0.5:10808", [7; 16], Fingerprint::of(b"certificate"));
        let url = invitation.url();
        assert_eq!(url.len(), "cheetah://10.0.0.5:10808/".len() + 64);
        let read = Invitation::read(&url).unwrap();
        assert_eq!((&read.at, &read.secret), (&invitation.at, &invitation.secret));
        assert_eq!(read.authority, invitation.authority);
        assert!(Invitation::is_in(&url) && !Invitation::is_in("cheetah://10.0.0.5:10808/"));
        assert!(!Invitation::is_in("cheetah://a:1,cheetah://b:2"), "two addresses, and no token");
        let several = url.replace("10808/", "10808,cheetah://lab6/");
        assert_eq!(Invitation::read(&several).unwrap().at, "10.0.0.5:10808,lab6");
        for bad in ["http://a/b", "cheetah://a", "cheetah://a/b", &url[..url.len() - 1], "cheetah:///x"] {
            assert_eq!(Invitation::read(bad).unwrap_err(), BadInvitation, "{bad}");
        }
        assert!(!format!("{:?}", read.secret).contains("07"));
    }
}
