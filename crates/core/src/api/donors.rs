//! What donors report to their coordinator, what it tells them, and what a donor's leaving costs.
//! Never: behaviour.

use crate::map::{DonorId, DonorSecret, Incarnation, LeaseToken, Medium, MemberId, PoolId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a donor says of itself when it joins, and again after its coordinator forgot it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The donor's [`API_VERSION`].
    pub version: u32,
    /// Chosen by the donor at its start, kept while it runs: joining again after the coordinator restarted
    /// is not a new donor. Everybody is shown it.
    pub donor: DonorId,
    /// Chosen with it; who joins again or syncs under the same identity has to name the same.
    pub secret: DonorSecret,
    /// The pool whose volumes the donor still holds memory of; another pool refuses it (`OtherPool`), so that
    /// no coordinator but its own has it wiped.
    pub pool: Option<PoolId>,
    /// The highest revision of that pool that it has carried out; a coordinator that has not come that far
    /// has an older state, and knows less of what the donor holds.
    pub revision: u64,
    /// The name that it asks for, as `units::check_name` allows. Two living donors of a pool never share one.
    pub name: String,
    /// Where another donor has the name, this one is given it with a number; otherwise it is refused.
    #[serde(default)]
    pub or_numbered: bool,
    /// The machine's name, for people.
    pub host: String,
    /// What tells the machine from any other, also from one of the same name: donors of one machine go
    /// together. Empty, from older donors: the name does.
    #[serde(default)]
    pub machine: String,
    /// `IP:PORT` that clients connect to.
    pub address: String,
    /// The memory that it lends, in extents of 64 MiB, at least 1. It stays the same as long as the identity.
    pub extents: u32,
    /// Set when the memory is another's NBD server: the export to ask it for.
    pub foreign_export: Option<String>,
    /// What it lends.
    #[serde(default, skip_serializing_if = "Medium::is_memory")]
    pub medium: Medium,
    /// Of a disk: it has a place for the nonce and the authentication tag of each block.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_auths: bool,
    /// Of a disk: what tells it from an older copy of it. Memory has none, for it has no copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Box<Lineage>>,
}

/// Which run of a disk's donor this is, and what the disk knows of those before. It is put down on the disk
/// before the donor asks to join, so a disk that is set back names older ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// Drawn at the start of the process.
    pub incarnation: Incarnation,
    /// The last run that was told that it is in its pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Incarnation>,
    /// Runs since then that asked to join and were told nothing: they may be in, and hold nothing new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Incarnation>,
}

/// The answer to `Join`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The pool that took the donor in; the donor's syncs name it.
    pub pool: PoolId,
    /// Milliseconds for which a sync without news is held back. Cheetah's donors use their own
    /// `HEARTBEAT_NS`.
    pub heartbeat_ms: u64,
    /// What the donor is called in this pool.
    #[serde(default)]
    pub name: String,
}

/// A donor's report, at least each `HEARTBEAT_NS`, and its question for news.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// That of the donor's `Join`.
    pub secret: DonorSecret,
    /// The highest revision the donor has carried out; the reply is held back until there is a newer one or
    /// the heartbeat interval is over.
    pub revision: u64,
    /// Bytes of memory in use by present blocks.
    pub bytes_used: u64,
    /// Connections to its NBD listener, with those not yet admitted. The coordinator ignores the number.
    pub connections: u32,
    /// The donor wants to go: what it holds is moved to others, then it is dismissed.
    pub leaving: bool,
    /// The donor goes now: it is taken out at once, what it still holds is lost.
    pub goodbye: bool,
    /// How many extents the machine's owner can spare now; what the donor holds beyond that is moved to
    /// others.
    pub extents_offered: u32,
    /// Of a disk: that of its `Join`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
}

/// The whole of what a donor shall hold. What is not in it is wiped and free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// Grows with each change; a donor ignores one older than what it has carried out.
    pub revision: u64,
    /// One for each volume that has an extent here, in order of identity.
    pub volumes: Vec<Duty>,
    /// Set when the coordinator took the donor out of the pool: it stops.
    pub dismissed: bool,
    /// Why what the donor holds cannot be moved, while it wants to go or to hold less.
    pub stuck: Option<String>,
    /// What would be lost if the donor and all others that are leaving went now, while it wants to go.
    /// Absent: not known.
    #[serde(default)]
    pub at_stake: Option<Vec<AtStake>>,
}

/// What a donor holds of one volume, and the leases that reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duty {
    /// The identity. The same name under another identity is another volume.
    pub volume: VolumeId,
    /// The name that export names begin with.
    pub name: String,
    /// The epoch of the volume's map. Donors ignore it: `Duties::revision` orders what they are told.
    pub epoch: u64,
    /// Ascending.
    pub extents: Vec<u32>,
    /// At most one writer.
    pub writer: Option<LeaseToken>,
    /// The writer repairs and moves, and changes nothing of what the volume holds.
    #[serde(default)]
    pub repairs: bool,
    /// Nobody writes the volume any more but who repairs it. A donor that has heard that once believes no
    /// later word against it.
    #[serde(default)]
    pub sealed: bool,
    /// Leases without the right to write.
    pub readers: Vec<LeaseToken>,
    /// Nobody writes the volume and it has fragments to move or to rebuild: this donor attaches it and does
    /// so.
    #[serde(default)]
    pub tend: bool,
    /// The volume was opened from a source: a block that nobody has written is absent there, and not zeros.
    #[serde(default)]
    pub backed: bool,
    /// So many extents of the volume share one of the donor's.
    #[serde(default = "crate::map::one_layer")]
    pub layers: u32,
    /// Nonce and authentication tag are kept with each of its blocks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// Its writes are answered when they are in memory, and are on the disk after the next flush.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub write_back: bool,
    /// Whose the leases are: in a pool of members a lease is of use only with its member's certificate. None
    /// in a pool in the clear.
    #[serde(default)]
    pub members: BTreeMap<LeaseToken, MemberId>,
}

/// What a volume would lose with donors that go: bytes that redundancy does not cover, 0 when it covers all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtStake {
    /// The volume's name.
    pub volume: String,
    /// Bytes that go with the donors; those that cannot be read already are not counted.
    pub bytes: u64,
    /// Fragments that can only go where their group has one on the same machine already.
    #[serde(default)]
    pub slots_crowded: u64,
}

/// The answer to `Leave`: what it costs each volume that has a part there.
/// All but `at_stake` is of a donor that did not answer; of a living one that is forced out nothing is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// One entry for each volume that has a part on the donor, 0 bytes too. Empty when the donor is out at
    /// once.
    #[serde(default)]
    pub at_stake: Vec<AtStake>,
    /// It did not answer, and is out of the pool by now: nothing could be moved off it.
    #[serde(default)]
    pub silent: bool,
    /// What it held then that redundancy gives back, on other donors.
    #[serde(default)]
    pub bytes_to_rebuild: u64,
    /// What was taken from it before, since it fell silent: that is rebuilt, or being rebuilt.
    #[serde(default)]
    pub bytes_given_up: u64,
    /// Of volumes, what nothing gives back.
    #[serde(default)]
    pub bytes_lost: u64,
}
