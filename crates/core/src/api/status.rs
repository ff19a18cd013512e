//! What a pool shows of itself: its donors, its volumes, and who has them attached.
//! Never: a judgement of that (`findings`).

use super::VolumeReport;
use crate::content::Content;
use crate::custody::Case;
use crate::layout::LostRange;
use crate::map::{DonorId, Medium, PoolId, Redundancy, VolumeId, VolumeMap};
use serde::{Deserialize, Serialize};

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
    /// Only members are let in, by TLS. False: all is in the clear, and open to who can reach it.
    #[serde(default)]
    pub members_only: bool,
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
    /// What it lends.
    #[serde(default)]
    pub medium: Medium,
    /// How much it lends: a multiple of 64 MiB.
    pub bytes_total: u64,
    /// Not yet given to a volume.
    pub bytes_free: u64,
    /// What present blocks take of that.
    pub bytes_used: u64,
    /// Given to volumes.
    pub bytes_held: u64,
    /// What its owner can spare now, and nothing of bad memory; less than `bytes_held` means that the rest is
    /// being moved away.
    pub bytes_offered: u64,
    /// Blocks that were not what was written there, since it joined, as far as this coordinator heard.
    #[serde(default)]
    pub wrong_blocks: u64,
    /// They came again and again, and from it more than from all others: it is given nothing more.
    #[serde(default)]
    pub has_bad_memory: bool,
    /// It knows the checksum of each block that it holds. False of another NBD server: what it gives is as
    /// good as its word.
    #[serde(default = "most_do")]
    pub keeps_checksums: bool,
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

/// What older coordinators do not say of their donors.
fn most_do() -> bool {
    true
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
    /// What it lies on.
    #[serde(default)]
    pub medium: Medium,
    /// Donors have ciphertext of it.
    #[serde(default)]
    pub encrypted: bool,
    /// Its writes are on disks after the next flush; until then they are in the memory of donors.
    #[serde(default)]
    pub write_back: bool,
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
    pub lost: Vec<LostRange>,
    /// What each attachment cannot read, for the want of donors that it cannot reach; in the order of those
    /// in `status`.
    #[serde(default)]
    pub lost_to: Vec<Vec<LostRange>>,
    /// Absent of a volume without redundancy, of one that is not whole, and of a large pool.
    #[serde(default)]
    pub rehearsal: Option<Rehearsal>,
    /// What could not be read at the source and answers an error for that; no donor lost it.
    #[serde(default)]
    pub unreadable: Vec<LostRange>,
    /// The newest that an examiner's client said of the case.
    #[serde(default)]
    pub case: Option<Case>,
}
