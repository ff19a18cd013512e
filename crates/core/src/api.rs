//! What coordinator, donors, clients and commands say to each other over HTTP and JSON.
//!
//! Owns the shapes and the API version; `rim::http` carries them, `coordinator` answers them, the OpenAPI
//! description in `rim` names the same fields. Never: behaviour.

use crate::content::{Beside, Content, Fill, Tell, ToLoad};
use crate::map::{
    BadRange, DonorId, DonorSecret, LeaseToken, Placement, PoolId, Redundancy, VolumeId, VolumeMap,
};
use serde::{Deserialize, Serialize};

/// Both ends refuse another number, saying which side to upgrade.
pub const API_VERSION: u32 = 3;

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
    /// `POST /v1/volumes/{name}/grow`
    Grow {
        /// The volume's name.
        name: String,
        /// The new size in all, which is larger; or all that fits.
        size: Size,
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
    /// `POST /v1/volumes/{name}/leases/{token}/amend`: what the writer found out about its volume's donors.
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
}

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
    /// Leases without the right to write.
    pub readers: Vec<LeaseToken>,
    /// Nobody writes the volume and it has fragments to move or to rebuild: this donor attaches it and does
    /// so.
    #[serde(default)]
    pub tend: bool,
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
    /// It is made to be loaded: until that is done it counts as incomplete, whatever becomes of who wants to
    /// load it.
    #[serde(default)]
    pub load: Option<ToLoad>,
}

/// What a client wants of a volume: to read, to write or to fill it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The client's [`API_VERSION`].
    pub version: u32,
    /// Without the right to write. Readers exclude nobody but a lease that is `alone`.
    pub read_only: bool,
    /// Who, for the message that a second writer gets: `user@host process 123`.
    pub holder: String,
    /// The lease is taken away as soon as somebody else wants to write: a donor that moves what lies idle has
    /// it so.
    #[serde(default)]
    pub yields: bool,
    /// To fill it: refused while anybody reads the volume, and nobody may until it is given back, for a
    /// reader would see some of what was there and some of what comes.
    #[serde(default)]
    pub alone: bool,
    /// For writing also where it was loaded; without this such a volume is attached for reading.
    #[serde(default)]
    pub writable: bool,
    /// Also where a load did not come to its end, or what was read back was not what was loaded.
    #[serde(default)]
    pub incomplete: bool,
    /// What is loaded into it, for who is `alone`.
    #[serde(default)]
    pub fill: Option<Fill>,
}

impl Attach {
    /// For tools: it neither yields nor is alone.
    #[must_use]
    pub fn new(read_only: bool, holder: impl Into<String>) -> Self {
        Self {
            version: API_VERSION,
            read_only,
            holder: holder.into(),
            yields: false,
            alone: false,
            writable: false,
            incomplete: false,
            fill: None,
        }
    }
}

/// The answer to `Attach`: it comes when the donors know the lease, or after `DONOR_SILENCE_NS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The proof of the lease. Each export name that the donors are asked for has it.
    pub token: LeaseToken,
    /// What is said about the lease later is meant for this pool: another knows nothing of it.
    pub pool: PoolId,
    /// Milliseconds from a renewal to the lease's end. Cheetah's clients use their own `LEASE_NS`.
    pub lease_ms: u64,
    /// The newest map, which all donors but the `unconfirmed` have carried out.
    pub map: VolumeMap,
    /// Donors that have not yet confirmed the lease when it was given (silent ones).
    pub unconfirmed: Vec<DonorId>,
    /// Nobody has had a write lease before: every block is known to be zero.
    pub fresh: bool,
    /// As it was asked for, or because it was loaded.
    #[serde(default)]
    pub read_only: bool,
    /// What the volume holds when the lease begins.
    #[serde(default)]
    pub content: Content,
    /// Writers beside a reader, readers beside a writer.
    #[serde(default)]
    pub beside: Vec<Beside>,
}

/// The renewal of a lease, at least each `LEASE_RENEW_NS`. Its answer waits for a newer map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The epoch of the newest map that the holder has taken up.
    pub epoch: u64,
    /// Where tools find the volume, for `status`: `/mnt/c/case.raw`, `nbd://...`.
    pub place: String,
    /// Donors that the client cannot reach, with the reason.
    pub lost: Vec<(DonorId, String)>,
    /// The counters of now, in place of those of the renewal before.
    pub report: Box<VolumeReport>,
}

/// What a client tells of the volume it serves, for `status`. All but the rates count from its attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Bytes of missing or moving fragments that are in their new place, of `fill_bytes_total`; both fall to
    /// zero when nothing is missing.
    pub fill_bytes_done: u64,
    /// What missing and moving fragments have in all: of each extent the bytes that the volume's size
    /// reaches.
    pub fill_bytes_total: u64,
    /// The rate of the last moments; 0 while nothing is filled.
    pub fill_bytes_per_second: u64,
    /// Bytes of the pass of the scrubber that runs, or of the last one.
    pub scrub_bytes_done: u64,
    /// The volume's size. A pass may count a little more, since it takes whole units at the end.
    pub scrub_bytes_total: u64,
    /// Passes over all fragments that came to their end.
    pub scrub_passes: u64,
    /// Places where fragments did not fit together and no checksum said which is wrong.
    pub scrub_mismatches: u64,
    /// Blocks whose checksum was wrong, by the donor that sent them.
    pub corrupt_blocks: Vec<(DonorId, u64)>,
    /// Of those, put right on their donor.
    pub healed_blocks: u64,
    /// Reads that were answered from redundancy because a donor was late or lost.
    pub reads_rebuilt: u64,
    /// Reads of tools: what they asked for was here, was on its way, or donors were asked for it. Only where
    /// something is read ahead.
    #[serde(default)]
    pub reads_here: u64,
    /// Reads that waited for what was on its way already.
    #[serde(default)]
    pub reads_coming: u64,
    /// Reads that donors were asked for.
    #[serde(default)]
    pub reads_asked: u64,
    /// Bytes that were read ahead: those that tools got, and those that were given up unread.
    #[serde(default)]
    pub ahead_bytes_used: u64,
    /// Bytes that were dropped before any tool read them.
    #[serde(default)]
    pub ahead_bytes_unread: u64,
}

/// From the holder of the write lease, about its volume. Answered with `Renewed` and the new map as soon as
/// it is recorded; what does not apply to the map of now (any more) is passed over. From a reader it has to
/// be empty, and asks whether the map of that epoch is the newest: answered with that map, or with none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amend {
    /// Of the map that this is about.
    pub epoch: u64,
    /// Donors that missed a write, with the reason. Each loses every slot of this volume, except in groups
    /// that would be left with fewer than k held slots, and those of `keep`.
    pub exclude: Vec<(DonorId, String)>,
    /// Slots that stay with a donor that is excluded: rows there are in doubt, and only its memory tells what
    /// they are.
    #[serde(default)]
    pub keep: Vec<KeptSlot>,
    /// Slots whose `filling` extent has every byte now: it becomes `held`, what was held is freed. Passed
    /// over when the map has another epoch by now.
    pub filled: Vec<Filled>,
    /// Data that redundancy cannot give back.
    pub bad: Vec<BadRange>,
    /// Parts of what was bad that were written again in full.
    pub rewritten: Vec<BadRange>,
}

impl Amend {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Amend { epoch: _, exclude, keep: _, filled, bad, rewritten } = self;
        exclude.is_empty() && filled.is_empty() && bad.is_empty() && rewritten.is_empty()
    }
}

/// A slot that has all bytes in a new place, as its writer reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Filled {
    /// Index of the group in the map.
    pub group: u32,
    /// Index of the slot in its group; the data slots come first.
    pub slot: u32,
    /// The extent that was filled: the slot's `filling`, or the report is passed over.
    pub placement: Placement,
}

/// A slot that an exclusion leaves to its donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptSlot {
    /// Index of the group in the map.
    pub group: u32,
    /// Index of the slot in its group; the data slots come first.
    pub slot: u32,
}

/// The answer to `Renew` and to `Amend`; to the latter only `map` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// Present when it is newer than the epoch that was named.
    pub map: Option<VolumeMap>,
    /// Writers beside a reader, readers beside a writer.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// For a writer: donors of the volume that were not heard of for so long that of a volume at rest they
    /// would be given up. It asks them itself: what it still reaches stays.
    #[serde(default)]
    pub silent: Vec<DonorId>,
}

/// The answer to `GET /v1/pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The coordinator's [`API_VERSION`].
    pub version: u32,
    /// The pool's identity, which outlives every address of its coordinator.
    pub pool: PoolId,
    /// Memory that donors lend, of those that are `Alive`.
    pub bytes_total: u64,
    /// The part of it that volumes may still be given: not held, and offered by its owner now.
    pub bytes_free: u64,
    /// In the order in which they joined, with lost ones.
    pub donors: Vec<DonorStatus>,
    /// In the order in which they were made.
    pub volumes: Vec<VolumeStatus>,
    /// `IP:PORT` at which its coordinator is reached, those that other machines reach first.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Donors that ask to join, and hold memory of another pool.
    #[serde(default)]
    pub strangers: Vec<Stranger>,
}

/// A donor that is not taken in: it keeps what it holds for the pool that this belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stranger {
    /// The name that it asked for.
    pub name: String,
    /// The machine's name, for people.
    pub host: String,
    /// `IP:PORT` of its NBD listener, by its own word.
    pub address: String,
    /// Whose memory it holds.
    pub pool: PoolId,
}

/// Whether a donor is there, as far as its coordinator knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DonorHealth {
    /// Heard of since the coordinator began, and not longer ago than `DONOR_SILENCE_NS`.
    Alive,
    /// Not heard of since the coordinator began, which goes on as if it were there and gives it nothing new.
    Unknown,
    /// Not heard of for `DONOR_SILENCE_NS`, or it said goodbye while it held data.
    #[serde(rename = "gone", alias = "lost")]
    Lost,
}

/// One donor as its coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorStatus {
    /// The donor's identity; `Leave` takes it in place of a name.
    pub donor: DonorId,
    /// The donor's name in this pool. A lost donor may have the name of a living one.
    pub name: String,
    /// The machine's name, for people; not unique.
    pub host: String,
    /// The same for donors that go together, whatever their hosts are called.
    #[serde(default)]
    pub machine: String,
    /// `IP:PORT` of its NBD listener.
    pub address: String,
    /// Judged by its syncs, and by whether anything listens at its address.
    pub health: DonorHealth,
    /// The memory that it lends: a multiple of 64 MiB.
    pub bytes_total: u64,
    /// Not yet given to a volume.
    pub bytes_free: u64,
    /// Memory that present blocks take.
    pub bytes_used: u64,
    /// Given to volumes.
    pub bytes_held: u64,
    /// What its owner can spare now; less than `bytes_held` means that the rest is being moved away.
    pub bytes_offered: u64,
    /// It leaves when what it holds is moved.
    pub leaving: bool,
    /// Since the coordinator began. Until then it is believed to be as it was before.
    pub heard: bool,
    /// Time since its last sync, or since the coordinator began where there was none.
    pub silent_ms: u64,
    /// Why what it holds cannot be moved, while it wants to go or to hold less.
    #[serde(default)]
    pub stuck: Option<String>,
    /// Taken from it because it was away, since it was last heard of: others rebuild it. As far as this
    /// coordinator knows.
    #[serde(default)]
    pub bytes_given_up: u64,
}

/// The worse, the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeHealth {
    /// Every slot is held by a donor that lives.
    #[default]
    Whole,
    /// Whole, but one host holds two or more slots of a group: more goes with it than with another.
    Crowded,
    /// Nothing is known to be missing, and not every holder was heard of since the coordinator began.
    Unknown,
    /// All of it can be read, with less redundancy than it should have.
    Degraded,
    /// Parts of it cannot be read.
    Lost,
}

/// One volume as its coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// The volume's identity. The name may be another volume's later.
    pub volume: VolumeId,
    /// The volume's name, unique in the pool.
    pub name: String,
    /// Exact, in bytes.
    pub size: u64,
    /// As the volume was made; nothing changes it.
    pub redundancy: Redundancy,
    /// Bytes of one slot's share of a row. With one data slot there are no rows, and it means nothing.
    pub unit: u32,
    /// The epoch of the newest map.
    pub epoch: u64,
    /// Whether the volume grows by what each new donor lends.
    pub follow: bool,
    /// One for each lease, that of a donor that tends the volume among them.
    pub attachments: Vec<Attachment>,
    /// As the coordinator sees the donors; `attachments` have views of their own.
    pub health: VolumeHealth,
    /// Names of lost donors that hold a part of it.
    pub lost_donors: Vec<String>,
    /// Slots without a holder that lives, of how many.
    pub slots_missing: u64,
    /// Slots in all: k+m for each group.
    pub slots: u64,
    /// Slots that are being rebuilt or moved.
    pub slots_filling: u64,
    /// Bytes of the volume that nothing gives back as things are, exact; 0 unless `health` is `Lost`.
    pub bytes_lost: u64,
    /// What becomes of what is missing, or what it waits for, while no writer is at it. Absent when all is
    /// well, and of a volume that has lost something.
    #[serde(default)]
    pub repair: Option<String>,
    /// What the repair cannot begin without. Absent when it goes by itself.
    #[serde(default)]
    pub waits_for: Option<WaitsFor>,
    /// How many more hosts may go at once, whichever they are, before data goes with them. Absent when some
    /// is lost.
    #[serde(default)]
    pub may_lose_hosts: Option<u32>,
    /// The host that holds most of one group, where that is more than one slot.
    #[serde(default)]
    pub crowd: Option<Crowd>,
    /// What it holds, as far as the pool was told.
    #[serde(default)]
    pub content: Box<Content>,
}

/// What a person has to do before what is missing can be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// Too few donors, or none with room.
    Donor,
    /// None of its donors can attach it by itself.
    Writer,
}

/// Slots of one group on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crowd {
    /// The host's name.
    pub host: String,
    /// Slots of that group there, at least 2.
    pub slots: u32,
}

/// What becomes of a volume when one host goes: the one of which most could not be rebuilt on others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rehearsal {
    /// The host's name.
    pub host: String,
    /// Slots that it holds.
    pub slots: u64,
    /// Of those, the ones that no other host has room for.
    pub slots_homeless: u64,
}

/// One lease on a volume, and what its holder reported last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The holder by its own word: `user@host process 123`.
    pub holder: String,
    /// As the lease was given: of a loaded volume for reading, unless writing was asked for.
    pub read_only: bool,
    /// Where tools find the volume, like `/mnt/c/case.raw`; empty before the first renewal.
    pub place: String,
    /// Donors that it cannot reach, though the coordinator may.
    pub lost: Vec<(DonorId, String)>,
    /// The newest report; `findings::is_silent` tells when it is too old.
    pub report: VolumeReport,
    /// How the volume does without the donors that it cannot reach.
    #[serde(default)]
    pub health: VolumeHealth,
    /// Slots that have no holder, or one that is in `lost`.
    #[serde(default)]
    pub slots_missing: u64,
    /// Bytes of the volume that the holder cannot read for the want of those.
    #[serde(default)]
    pub bytes_lost: u64,
    /// Since the coordinator began.
    #[serde(default)]
    pub heard: bool,
    /// Time since its last renewal; 0 while `heard` is false.
    #[serde(default)]
    pub silent_ms: u64,
}

/// `GET /v1/volumes/{name}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeDetail {
    /// The same as in `PoolStatus`.
    pub status: VolumeStatus,
    /// The newest map.
    pub map: VolumeMap,
    /// The ranges that `status.bytes_lost` counts.
    pub lost: Vec<crate::layout::LostRange>,
    /// What each attachment cannot read, for the want of donors that it cannot reach; in the order of those
    /// in `status`.
    #[serde(default)]
    pub lost_to: Vec<Vec<crate::layout::LostRange>>,
    /// Absent of a volume without redundancy, of one that is not whole, and of a large pool.
    #[serde(default)]
    pub rehearsal: Option<Rehearsal>,
    /// What could not be read at the source and answers an error for that; no donor lost it.
    #[serde(default)]
    pub unreadable: Vec<crate::layout::LostRange>,
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
    /// The answer to `Attach`.
    Attached(Attached),
    /// The answer to `Renew` and `Amend`.
    Renewed(Renewed),
    /// The answer to `Leave`.
    Leaving(Leaving),
    /// The answer to `Delete`, `Tell` and `Detach`.
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
