//! Who may be in a pool: members, their roles, and the tokens by which they come in.
//!
//! Owns the names of roles and members, what each role may ask of a coordinator, the text of a member's
//! certificate (a URI in SPIFFE's shape), and where a pool in the clear may be. Never: certificates
//! themselves, keys, or who is a member (`coordinator`). Invariant: what no role is given by name, it may
//! not. Tests: below.

use crate::api::Call;
use crate::map::PoolId;
use crate::text::{hex, is_hex_of_256_bits};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

pub use crate::map::MemberId;

/// What a member is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Lends memory, and moves and rebuilds what nobody else does.
    Donor,
    /// Makes, reads and writes volumes.
    Client,
    /// Looks, and changes nothing.
    Viewer,
    /// A client that also says who is in the pool.
    Admin,
    /// The pool's coordinator itself. No token has this role.
    Coordinator,
}

/// All roles that a token can have.
pub const TOKEN_ROLES: [Role; 4] = [Role::Donor, Role::Client, Role::Viewer, Role::Admin];

impl Role {
    /// As it is typed, stored and written into certificates.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Donor => "donor",
            Role::Client => "client",
            Role::Viewer => "viewer",
            Role::Admin => "admin",
            Role::Coordinator => "coordinator",
        }
    }

    /// Whether it may have volumes attached, and so asks donors for their bytes.
    #[must_use]
    pub const fn reaches_data(self) -> bool {
        !matches!(self, Role::Viewer)
    }

    /// Whether others connect to it: to its memory, its exports, or its API.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Role::Donor | Role::Client | Role::Admin | Role::Coordinator)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRole(String);

impl fmt::Display for BadRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no role: there are donor, client, viewer and admin", self.0)
    }
}

impl std::error::Error for BadRole {}

impl FromStr for Role {
    type Err = BadRole;
    fn from_str(text: &str) -> Result<Self, BadRole> {
        let role = TOKEN_ROLES.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| BadRole(text.to_owned()))
    }
}

/// Somebody who has proved by a certificate who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// The identity, given when it joined.
    pub id: MemberId,
    /// Fixed with it.
    pub role: Role,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.id)
    }
}

/// Who makes a call, as far as its connection proves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// A pool in the clear asks nobody.
    #[default]
    Anyone,
    /// The coordinator's own process.
    Own,
    /// Without a certificate, to a pool that asks for one.
    Stranger,
    /// With one that is valid. Whether it was revoked the coordinator knows.
    Member(Member),
}

impl Caller {
    /// The member, if it is one.
    #[must_use]
    pub const fn member(self) -> Option<Member> {
        match self {
            Caller::Member(member) => Some(member),
            Caller::Anyone | Caller::Own | Caller::Stranger => None,
        }
    }
}

/// Whether a pool in the clear may be spoken to there: loopback, addresses that no router of the Internet
/// passes on (RFC 1918, RFC 4193), and those of one link.
#[must_use]
pub fn may_be_clear(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

const SCHEME: &str = "spiffe://";
const DOMAIN: &str = ".cheetah";

/// What a member's certificate says of it: `spiffe://POOL.cheetah/ROLE/MEMBER`.
#[must_use]
pub fn uri(pool: PoolId, member: Member) -> String {
    format!("{SCHEME}{pool}{DOMAIN}/{}/{}", member.role, member.id)
}

/// The pool and the member that such a URI names. Only what `uri` writes is read.
#[must_use]
pub fn of_uri(text: &str) -> Option<(PoolId, Member)> {
    let (pool, path) = text.strip_prefix(SCHEME)?.split_once('/')?;
    let (role, id) = path.split_once('/')?;
    let all = [TOKEN_ROLES.as_slice(), &[Role::Coordinator]].concat();
    let role = all.into_iter().find(|known| known.as_str() == role)?;
    let (pool, member) = (pool.strip_suffix(DOMAIN)?.parse().ok()?, Member { id: id.parse().ok()?, role });
    (uri(pool, member) == text).then_some((pool, member))
}

/// What proves that somebody was invited. Known to who made it and who has it; a coordinator keeps only its
/// hash.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// Of truly random bytes.
    #[must_use]
    pub fn new(random: [u8; 16]) -> Self {
        TokenSecret(hex(&random))
    }

    /// For the text of a token, and nothing else.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

impl From<String> for TokenSecret {
    fn from(text: String) -> Self {
        TokenSecret(text)
    }
}

/// The SHA-256 of a token's secret, in hexadecimal digits. Its beginning is what the token is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenHash(String);

impl TokenHash {
    /// Of 256 bits, which the driver computes.
    #[must_use]
    pub fn new(hash: [u8; 32]) -> Self {
        TokenHash(hex(&hash))
    }

    /// Whether it can be one at all.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        is_hex_of_256_bits(&self.0)
    }

    /// The token's name, for lists; it gives nothing away of the secret.
    #[must_use]
    pub fn id(&self) -> TokenId {
        let digits = self.0.get(..16).unwrap_or_default();
        TokenId(u64::from_str_radix(digits, 16).unwrap_or_default())
    }
}

pub use crate::map::TokenId;

/// Whether a member of this role may make such a call at all; what is its own, the call itself looks after.
///
/// # Errors
/// What the role may, in a sentence.
pub fn check_role(role: Role, call: &Call) -> Result<(), NotForRole> {
    let may = match call {
        Call::Pool | Call::Recertify(_) => true,
        Call::Show { .. } | Call::Manifest { .. } | Call::Log { .. } => role != Role::Coordinator,
        Call::Join(_) | Call::Sync { .. } => role == Role::Donor,
        // A donor moves what nobody attaches, and is in nobody's way.
        Call::Attach { attach, .. } => match role {
            Role::Donor => attach.yields && !attach.alone && attach.fill.is_none(),
            // Who repairs may write what is sealed, and that is for donors.
            Role::Client | Role::Admin => !attach.yields,
            Role::Viewer | Role::Coordinator => false,
        },
        Call::Renew { .. } | Call::Amend { .. } | Call::Tell { .. } | Call::Detach { .. } => {
            matches!(role, Role::Donor | Role::Client | Role::Admin)
        }
        Call::Leave { .. } => matches!(role, Role::Donor | Role::Admin),
        Call::Create(_)
        | Call::Grow { .. }
        | Call::GrantKey { .. }
        | Call::Member { .. }
        | Call::Delete { .. }
        | Call::Say { .. }
        | Call::Validation(_) => {
            matches!(role, Role::Client | Role::Admin)
        }
        Call::NewToken(_)
        | Call::Tokens
        | Call::RevokeToken { .. }
        | Call::Members
        | Call::RevokeMember { .. } => role == Role::Admin,
        // Who is a member needs no second identity from the same call.
        Call::Enrol { .. } => false,
    };
    if may { Ok(()) } else { Err(NotForRole(role)) }
}

/// A call that is not for who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotForRole(Role);

impl fmt::Display for NotForRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let may = match self.0 {
            Role::Donor => "a donor lends memory, and attaches no volume",
            Role::Client => {
                "a client makes, reads and writes volumes, and says nothing about donors and members"
            }
            Role::Viewer => "a viewer looks, and changes nothing",
            Role::Admin => "an admin does not lend memory",
            Role::Coordinator => "a coordinator asks nothing of another",
        };
        write!(
            f,
            "this machine's certificate has the role {}, which may not do that ({may}): use an identity of another role \
             with --identity DIR; an admin makes a token for one with `cheetah token new --role ROLE`",
            self.0
        )
    }
}

impl std::error::Error for NotForRole {}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::api::{Attach, Recertify};

    #[test]
    fn a_pool_in_the_clear_is_at_private_addresses_alone() {
        let may = |text: &str| may_be_clear(text.parse().expect("an address"));
        let private = ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.5", "169.254.9.9", "::1", "fd00::5"];
        assert!(private.into_iter().chain(["fe80::1", "::ffff:10.0.0.5"]).all(may));
        let public =
            ["8.8.8.8", "172.32.0.1", "100.64.0.1", "0.0.0.0", "2001:db8::1", "::ffff:8.8.8.8", "::"];
        assert!(!public.into_iter().any(may));
    }

    #[test]
    fn a_uri_is_read_as_it_was_written_and_nothing_else_is() {
        let member = Member { id: MemberId(7), role: Role::Client };
        let text = uri(PoolId(0xab), member);
        assert_eq!(text, "spiffe://00000000000000ab.cheetah/client/0000000000000007");
        assert_eq!(of_uri(&text), Some((PoolId(0xab), member)));
        for bad in [
            "",
            "spiffe://00000000000000ab.cheetah/client",
            "spiffe://00000000000000ab.cheetah/king/0000000000000007",
            "spiffe://00000000000000ab.cheetah/client/0000000000000007/x",
            "spiffe://00000000000000AB.cheetah/client/0000000000000007",
            "spiffe://00000000000000ab/client/0000000000000007",
            "https://00000000000000ab.cheetah/client/0000000000000007",
            "spiffe://00000000000000ab.cheetah/client/+000000000000007",
        ] {
            assert_eq!(of_uri(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_secret_is_in_no_message_and_not_in_what_is_stored() {
        let secret = TokenSecret::new([9; 16]);
        assert_eq!(format!("{secret:?}"), "TokenSecret(..)");
        assert_eq!(secret.reveal(), "09".repeat(16));
        let hash = TokenHash::new([0xab; 32]);
        assert!(hash.is_whole() && format!("{hash:?}").contains(&hash.id().to_string()));
    }

    #[test]
    fn a_role_may_what_it_is_there_for() {
        let name = || "v".to_owned();
        let may = |role: Role, call: &Call| check_role(role, call).is_ok();
        let who = |call: &Call| TOKEN_ROLES.into_iter().filter(|role| may(*role, call)).collect::<Vec<_>>();
        let attach = |attach| Call::Attach { name: name(), attach };
        assert_eq!(who(&Call::Pool), TOKEN_ROLES);
        assert_eq!(who(&Call::Recertify(Recertify { key: String::new() })), TOKEN_ROLES);
        assert_eq!(who(&Call::Delete { name: name() }), [Role::Client, Role::Admin]);
        assert_eq!(who(&attach(Attach::new(true, "x"))), [Role::Client, Role::Admin]);
        let tending = Attach { yields: true, ..Attach::new(false, "x") };
        assert_eq!(who(&attach(tending.clone())), [Role::Donor], "it may write what is sealed");
        assert_eq!(who(&attach(Attach { alone: true, ..tending.clone() })), []);
        assert_eq!(who(&attach(Attach { yields: false, ..tending })), [Role::Client, Role::Admin]);
        assert_eq!(who(&Call::Leave { donor: name(), force: true }), [Role::Donor, Role::Admin]);
        assert_eq!(who(&Call::Members), [Role::Admin]);
        assert!(!may(Role::Coordinator, &Call::Delete { name: name() }));
        let said = check_role(Role::Viewer, &Call::Delete { name: name() }).unwrap_err().to_string();
        assert!(said.contains("viewer") && said.contains("--identity"), "{said}");
    }
}
