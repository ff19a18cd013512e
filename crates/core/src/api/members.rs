//! What is said of who may be in a pool: tokens that invite, members that came in by them.
//! Never: behaviour; keys other than public ones.

use crate::content::UnixSeconds;
use crate::map::{MemberId, PoolId, TokenId};
use crate::members::{Role, TokenHash, TokenSecret};
use serde::{Deserialize, Serialize};

/// A token as its maker wants it. Its secret stays with who makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// Of the secret.
    pub hash: TokenHash,
    /// What those become who come in by it.
    pub role: Role,
    /// How many may; without a number, all who have it.
    #[serde(default)]
    pub uses: Option<u32>,
    /// How long it is good for.
    pub seconds: u64,
}

/// A token that is good for somebody still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStatus {
    /// The beginning of its hash.
    pub token: TokenId,
    /// What those become who come in by it.
    pub role: Role,
    /// How many may still; absent: all who have it.
    pub uses_left: Option<u32>,
    /// How many have.
    pub used: u32,
    /// Not good any more from then on, in seconds since 1970.
    pub expires: UnixSeconds,
}

/// A stranger that has a token, and wants to be a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrol {
    /// Of a token of this pool.
    pub secret: TokenSecret,
    /// Its public key: a point of P-256, uncompressed, in hexadecimal digits.
    pub key: String,
    /// Who it is, for people: `user@host`.
    pub name: String,
}

/// A member that wants its next certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recertify {
    /// As `Enrol::key`.
    pub key: String,
}

/// The answer to `Enrol` and `Recertify`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// The pool that it is a member of.
    pub pool: PoolId,
    /// The identity, for as long as it is a member.
    pub member: MemberId,
    /// By the token.
    pub role: Role,
    /// In PEM. The machine leaves it empty; who signs puts it in.
    #[serde(default)]
    pub certificate: String,
    /// Of the pool's authority, in PEM, likewise.
    #[serde(default)]
    pub authority: String,
    /// From now on, in seconds.
    #[serde(default)]
    pub lasts: u64,
}

/// A member, as others are shown it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The identity.
    pub member: MemberId,
    /// Fixed with it.
    pub role: Role,
    /// By its own word when it came in.
    pub name: String,
    /// The token by which it did.
    pub token: Option<TokenId>,
    /// When it did, in seconds since 1970.
    pub joined: UnixSeconds,
    /// When it got its last certificate.
    pub certified: UnixSeconds,
    /// Its public key, as `Enrol::key`; empty of one that no certificate was made for since the pool keeps
    /// them.
    #[serde(default)]
    pub key: String,
}
