//! What coordinator, donors, clients and commands say to each other over HTTP and JSON.
//!
//! Owns the shapes and the API version: here the calls, and how they are answered or refused. Never:
//! behaviour. `rim::control` carries them, `coordinator` answers them, the OpenAPI description in `rim`
//! names the same fields. Files: `custody` (logs of volumes), `donors` (what donors report, and are
//! told), `keys` (of encrypted volumes), `leases` (of who has a volume attached), `manifest` (what the pool
//! signs), `members` (who may be there), `status` (what people are shown).

mod custody;
mod donors;
mod keys;
mod leases;
mod manifest;
mod members;
mod status;

pub use custody::{LogReport, OlderLog};
pub use donors::{AtStake, Duties, Duty, Join, Joined, Leaving, Lineage, Sync};
pub use keys::{GrantKey, WrappedKey};
pub use leases::{Amend, Attach, Attached, Filled, KeptSlot, Renew, Renewed, VolumeReport};
pub use manifest::{
    MANIFEST_OF_CIPHERTEXT, Manifest, ManifestCiphertext, ManifestHashes, SignedText, VALIDATION_HTML,
    VALIDATION_JSON, Validated, Validation,
};
pub use members::{Enrol, Enrolled, MemberStatus, NewToken, Recertify, TokenStatus};
pub use status::{
    Attachment, Crowd, DonorHealth, DonorStatus, PoolStatus, Rehearsal, Stranger, VolumeDetail, VolumeHealth,
    VolumeStatus, WaitsFor,
};

use crate::content::{Tell, ToLoad};
use crate::custody::Said;
use crate::map::{DonorId, LeaseToken, Medium, MemberId, Redundancy, TokenId};
use crate::members::TokenHash;
use serde::{Deserialize, Serialize};

/// Both ends refuse another number, saying which side to upgrade.
pub const API_VERSION: u32 = 9;

/// What a caller asks of the coordinator. One variant, one route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// `GET /v1/pool`
    Pool,
    /// `POST /v1/donors`
    Join(Join),
    /// `POST /v1/donors/{id}/sync`: heartbeat and long poll in one.
    Sync {
        /// The donor that syncs; `sync.secret` proves it.
        donor: DonorId,
        /// Its report.
        sync: Sync,
    },
    /// `POST /v1/donors/{name}/leave`
    Leave {
        /// The donor's name, or its identity where several have the name.
        donor: String,
        /// True: out at once, whatever is lost. False: what it holds is moved first, or that is refused.
        force: bool,
    },
    /// `POST /v1/volumes`
    Create(Create),
    /// `GET /v1/volumes/{name}`
    Show {
        /// The volume's name.
        name: String,
    },
    /// `GET /v1/volumes/{name}/manifest`
    Manifest {
        /// The name of a sealed volume.
        name: String,
    },
    /// `POST /v1/validations`: the pool signs which files the report of a validation is.
    Validation(Validation),
    /// `POST /v1/volumes/{name}/grow`
    Grow {
        /// The volume's name.
        name: String,
        /// The new size in all, which is larger; or all that fits.
        size: Size,
    },
    /// `POST /v1/volumes/{name}/keys`: a member may have the key of an encrypted volume.
    GrantKey {
        /// The volume's name.
        name: String,
        /// Who may have it, and what only that one can open.
        grant: GrantKey,
    },
    /// `DELETE /v1/volumes/{name}`
    Delete {
        /// The name of a volume that nobody has attached.
        name: String,
    },
    /// `POST /v1/volumes/{name}/leases`
    Attach {
        /// The volume's name.
        name: String,
        /// The purpose and the holder of the lease.
        attach: Attach,
    },
    /// `POST /v1/volumes/{name}/leases/{token}/renew`: keeps the lease, and a long poll for a newer map.
    Renew {
        /// The name of the lease's volume; with another one the lease counts as unknown.
        name: String,
        /// The caller's lease.
        token: LeaseToken,
        /// What its holder reports.
        renew: Renew,
    },
    /// `POST /v1/volumes/{name}/leases/{token}/amend`: what the writer found out about its volume's
    /// donors.
    Amend {
        /// As in `Renew`.
        name: String,
        /// A writer's lease; a reader's only with an empty `amend`.
        token: LeaseToken,
        /// What is to change in the map.
        amend: Amend,
    },
    /// `POST /v1/volumes/{name}/leases/{token}/content`: what its holder put there.
    Tell {
        /// As in `Renew`.
        name: String,
        /// A writer's lease.
        token: LeaseToken,
        /// What the volume holds now.
        tell: Tell,
    },
    /// `DELETE /v1/volumes/{name}/leases/{token}`
    Detach {
        /// As in `Renew`.
        name: String,
        /// The lease that ends.
        token: LeaseToken,
    },
    /// `GET /v1/volumes/{name}/log`: what was put down of a volume, also of one that is gone.
    Log {
        /// The volume's name, or its identity.
        name: String,
    },
    /// `POST /v1/volumes/{name}/log`: what its client has to say for that.
    Say {
        /// The volume's name.
        name: String,
        /// About the case, or what it did.
        said: Said,
    },
    /// `POST /v1/tokens`
    NewToken(NewToken),
    /// `GET /v1/tokens`
    Tokens,
    /// `DELETE /v1/tokens/{token}`: nobody comes in by it any more.
    RevokeToken {
        /// The token's name.
        token: TokenId,
    },
    /// `POST /v1/members`: who has a token becomes a member.
    Enrol {
        /// Who asks, and by what.
        enrol: Enrol,
        /// Of the token's secret, as the coordinator's driver computed it; no caller says it.
        hash: TokenHash,
    },
    /// `POST /v1/members/self`: a member's next certificate.
    Recertify(Recertify),
    /// `GET /v1/members`
    Members,
    /// `GET /v1/members/{member}`: with its public key, which others give it keys by.
    Member {
        /// The member's identity.
        member: MemberId,
    },
    /// `DELETE /v1/members/{member}`: it is out, with its leases and donors.
    RevokeMember {
        /// The member's identity.
        member: MemberId,
    },
}

/// What a call is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to `Pool`.
    Pool(PoolStatus),
    /// The answer to `Join`.
    Joined(Joined),
    /// The answer to `Sync`.
    Duties(Duties),
    /// The answer to `Show`, and to `Create` and `Grow`, which wait for the donors.
    Volume(Box<VolumeDetail>),
    /// The answer to `Manifest`, which the coordinator's driver signs: callers get `Signed`.
    Manifest(Box<Manifest>),
    /// The answer to `Validation`, which the driver signs as well.
    Validated(Box<Validated>),
    /// A text with the pool's signature.
    Signed(Box<SignedText>),
    /// The answer to `Attach`.
    Attached(Attached),
    /// The answer to `Renew` and `Amend`.
    Renewed(Renewed),
    /// The answer to `Leave`.
    Leaving(Leaving),
    /// The answer to `Log`.
    Log(LogReport),
    /// The answer to `NewToken`.
    Token(TokenStatus),
    /// The answer to `Tokens`.
    Tokens(Vec<TokenStatus>),
    /// The answer to `Enrol` and `Recertify`.
    Enrolled(Enrolled),
    /// The answer to `Members`.
    Members(Vec<MemberStatus>),
    /// The answer to `Member`.
    Member(Box<MemberStatus>),
    /// The answer to `Delete`, `Say`, `Tell`, `Detach` and what revokes.
    Done,
}

/// Why a call was refused: `code` for scripts, `message` for people (what happened, to what, what to do
/// next).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For scripts: a code keeps its meaning.
    pub code: RefusalCode,
    /// For people; the words may change.
    pub message: String,
}

/// The reason for a refusal, with the HTTP status that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// 400
    Invalid,
    /// 400: what came is not what was sent. The call was not carried out.
    Damaged,
    /// 403: not a member, not one any more, or not for one of its role.
    Forbidden,
    /// 404
    NotFound,
    /// 409: a name taken, a second writer, a volume in use.
    Conflict,
    /// 507: not enough free memory in the pool.
    PoolFull,
    /// 424: a donor that does not answer at the address that it gave.
    Unreachable,
    /// 426: the other side speaks another API version.
    Version,
    /// 410: a lease or donor that the coordinator no longer knows.
    Gone,
    /// 421: the call, or the memory of who calls, is another pool's. It was not carried out.
    OtherPool,
    /// 503: not now.
    Unavailable,
    /// 503: this coordinator does not lead the pool. The call was not carried out: ask another one.
    Standby,
}

/// The size of a volume that is made or grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Exact, from 1 to `VOLUME_BYTES_MAX`; no multiple of anything.
    Bytes(u64),
    /// All that the pool has free.
    All,
}

/// A new volume as its maker wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// A name as `units::check_name` allows, which no volume of the pool has.
    pub name: String,
    /// `All` is every whole group that fits now.
    pub size: Size,
    /// `None`: the pool's default for as many donors as it has.
    pub redundancy: Option<Redundancy>,
    /// `None`: what suits the redundancy.
    pub unit: Option<u32>,
    /// Grow by what each new donor lends.
    pub follow: bool,
    /// It is made to be loaded: until that is done it counts as incomplete, whatever becomes of who wants
    /// to load it.
    #[serde(default)]
    pub load: Option<Box<ToLoad>>,
    /// It holds changes of this volume, which is sealed or was opened from a source. Its size is then what
    /// that takes to begin with, whatever `size` says, and grows while it is used.
    #[serde(default)]
    pub overlay_of: Option<String>,
    /// What it shall lie on.
    #[serde(default, skip_serializing_if = "Medium::is_memory")]
    pub on: Medium,
    /// Donors get ciphertext of it; the key is with who makes it, and here wrapped for that member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<Box<WrappedKey>>,
    /// Its writes are answered when they are in the memory of all who hold a part of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub write_back: bool,
}

impl Create {
    /// A volume in memory that nobody says more of.
    #[must_use]
    pub fn new(name: impl Into<String>, size: Size) -> Self {
        Create {
            name: name.into(),
            size,
            redundancy: None,
            unit: None,
            follow: false,
            load: None,
            overlay_of: None,
            on: Medium::Memory,
            encrypted: None,
            write_back: false,
        }
    }
}
