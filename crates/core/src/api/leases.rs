//! What is said of a lease: how a client gets it and keeps it, and what it tells of its volume meanwhile.
//! Never: behaviour.

use super::{API_VERSION, WrappedKey};
use crate::content::{Beside, Content, Fill};
use crate::map::{BadRange, DonorId, LeaseToken, MemberId, Placement, PoolId, VolumeMap};
use serde::{Deserialize, Serialize};

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
    /// For writing, to be sealed: room for proofs is made behind the volume's end, if there is any.
    #[serde(default)]
    pub proofs: bool,
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
            proofs: false,
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
    /// The key of an encrypted volume, as the pool has it for whose lease it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Box<WrappedKey>>,
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
    /// Members that are connected to the holder's export.
    #[serde(default)]
    pub guests: Vec<MemberId>,
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
    /// Bytes of fragments that donors compared with their checksums, in the pass of the scrubber that runs or
    /// the last one.
    pub scrub_bytes_done: u64,
    /// What that pass is about: of each extent the bytes that the volume's size reaches.
    pub scrub_bytes_total: u64,
    /// Such passes that came to their end.
    pub scrub_passes: u64,
    /// Passes that compared all fragments with each other.
    #[serde(default)]
    pub compare_passes: u64,
    /// Places where fragments did not fit together and no checksum said which is wrong.
    #[serde(default)]
    pub compare_mismatches: u64,
    /// Bytes of a volume with write-back, at most, that its donors had in memory alone when they stopped, and
    /// that no other holder makes up. What their disks have of them counts, which may be older than what was
    /// written last. No flush had covered it.
    #[serde(default)]
    pub unflushed_bytes: u64,
    /// Blocks whose checksum was wrong, by the donor that sent them.
    pub corrupt_blocks: Vec<(DonorId, u64)>,
    /// Of those, blocks that the donor itself found wrong in its memory; the others may have been hit on
    /// their way.
    #[serde(default)]
    pub wrong_in_memory: Vec<(DonorId, u64)>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// For a writer: a reader has met blocks that are wrong where they lie, so all fragments are to be
    /// compared once, beside what goes on.
    #[serde(default)]
    pub scrub: bool,
    /// Of the guests that were named, those that are no members any more.
    #[serde(default)]
    pub strangers: Vec<MemberId>,
}
