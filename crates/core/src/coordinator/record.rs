//! What survives a restart of the coordinator: the pool, its donors, volumes and leases.
//!
//! Owns the stored shapes and the way back from them. Never: liveness; after a restart every donor counts as
//! alive and every lease as fresh, so that nothing attached is disturbed. Tests:
//! `tests/coordinator_restore.rs`.

use super::custody::{CustodyRecord, Logs};
use super::donors::Donor;
use super::keys::Keys;
use super::leases::Lease;
use super::members::{AuthorityRecord, MemberRecord, Members, TokenRecord};
use super::retire::Retired;
use super::signing::SigningRecord;
use super::volumes::Volume;
use super::{Coordinator, Timer};
use crate::api::VolumeReport;
use crate::content::{Content, ContentState, UnixSeconds};
use crate::limits::{DONOR_SILENCE_NS, LEASE_NS};
use crate::map::{
    DonorId, DonorSecret, Incarnation, LeaseToken, Medium, MemberId, PoolId, TokenId, VolumeId, VolumeMap,
};
use crate::units::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One stored record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The pool: exactly one, or nothing is served.
    Pool(PoolRecord),
    /// A donor, as long as it is listed.
    Donor(DonorRecord),
    /// A volume, as long as it exists.
    Volume(VolumeRecord),
    /// A lease, as long as it lasts. After a restart it has its full time again.
    Lease(LeaseRecord),
    /// What a volume holds, apart from its map because it changes more often.
    Content(ContentRecord),
    /// What makes it a pool of members: at most one.
    Authority(AuthorityRecord),
    /// What the pool signs with: at most one.
    Signing(SigningRecord),
    /// What was put down of a volume, also after that is gone.
    Custody(CustodyRecord),
    /// A token, as long as somebody may come in by it.
    Token(TokenRecord),
    /// A member, until it is revoked.
    Member(MemberRecord),
}

/// The pool, and how far its changes have come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// The identity, drawn at the first start.
    pub pool: PoolId,
    /// The revision of the newest change. A restart goes on one beyond it.
    pub revision: u64,
}

/// What a coordinator cannot learn again from a donor's next sync.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DonorRecord {
    /// The identity, and the record's key.
    pub donor: DonorId,
    /// Absent in the state of a version whose donors had none: nobody can be that donor any more.
    #[serde(default)]
    pub secret: Option<DonorSecret>,
    /// The name in this pool.
    pub name: String,
    /// The machine's name, for people.
    pub host: String,
    /// `Join::machine`; empty: `host` stands for it.
    #[serde(default)]
    pub machine: String,
    /// `IP:PORT` as of its last join.
    pub address: String,
    /// Extents of 64 MiB that it lends. Those that no volume names are free.
    pub extents: u32,
    /// None: a Cheetah donor.
    pub foreign_export: Option<String>,
    /// Orders the donors as they joined.
    pub join: u64,
    /// Gone for good (it said goodbye or was told to leave); listed while a volume still refers to it.
    pub departed: bool,
    /// It gets nothing new, and goes when what it holds is moved.
    #[serde(default)]
    pub leaving: bool,
    /// Who lends it, in a pool of members.
    #[serde(default)]
    pub member: Option<MemberId>,
    /// What it lends.
    #[serde(default, skip_serializing_if = "Medium::is_memory")]
    pub medium: Medium,
    /// `Join::keeps_auths`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_auths: bool,
    /// Of a disk: which run of its donor was let in last. Absent in the state of a version that knew none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// That run has synced: its disk knows that it was let in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synced: bool,
}

/// A volume and its placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The newest map; its `volume` is the record's key.
    pub map: VolumeMap,
    /// Whether the volume grows by what each new donor lends.
    pub follow: bool,
    /// Orders the volumes as they were created.
    pub order: u64,
    /// Nobody has had a write lease.
    #[serde(default)]
    pub fresh: bool,
    /// Extents that its slots have left, and that clients may still be reading.
    #[serde(default)]
    pub retired: Vec<Retired>,
    /// Of an encrypted volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Box<Keys>>,
}

/// A lease, without what its holder reports: the next renewal tells that again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The proof, and the record's key.
    pub token: LeaseToken,
    /// The volume that it is of.
    pub volume: VolumeId,
    /// As the lease was given: of a loaded volume for reading, unless writing was asked for.
    pub read_only: bool,
    /// The holder by its own word: `user@host process 123`.
    pub holder: String,
    /// Ends when somebody else wants to write.
    #[serde(default)]
    pub yields: bool,
    /// Nobody else has a lease meanwhile.
    #[serde(default)]
    pub alone: bool,
    /// It was given to load the volume.
    #[serde(default)]
    pub fills: bool,
    /// It was given to seal the volume: what it writes lies behind the volume's end.
    #[serde(default)]
    pub seals: bool,
    /// Its volume had no writer before.
    #[serde(default)]
    pub fresh: bool,
    /// The time at which it was given.
    #[serde(default)]
    pub since: UnixSeconds,
    /// Whose it is, in a pool of members.
    #[serde(default)]
    pub member: Option<MemberId>,
}

/// What a volume holds. None is stored of one that is fresh; one without, of before there were any, was
/// written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContentRecord {
    /// The volume, and the record's key.
    pub volume: VolumeId,
    /// Its state, its load, and the first write since.
    pub content: Content,
}

/// Names a record in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The key of the one [`PoolRecord`].
    Pool,
    /// The key of a [`DonorRecord`].
    Donor(DonorId),
    /// The key of a [`VolumeRecord`].
    Volume(VolumeId),
    /// The key of a [`LeaseRecord`].
    Lease(LeaseToken),
    /// The key of a [`ContentRecord`].
    Content(VolumeId),
    /// The key of the one [`AuthorityRecord`].
    Authority,
    /// The key of the one [`SigningRecord`].
    Signing,
    /// The key of a [`CustodyRecord`]: the volume, and the number of the entry.
    Custody(VolumeId, u64),
    /// The key of a [`TokenRecord`].
    Token(TokenId),
    /// The key of a [`MemberRecord`].
    Member(MemberId),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Pool => write!(f, "pool"),
            Key::Donor(id) => write!(f, "donor/{id}"),
            Key::Volume(id) => write!(f, "volume/{id}"),
            Key::Lease(token) => write!(f, "lease/{token}"),
            Key::Content(id) => write!(f, "content/{id}"),
            Key::Authority => write!(f, "authority"),
            Key::Signing => write!(f, "signing"),
            Key::Custody(id, sequence) => write!(f, "custody/{id}/{sequence:06}"),
            Key::Token(id) => write!(f, "token/{id}"),
            Key::Member(id) => write!(f, "member/{id}"),
        }
    }
}

impl Record {
    /// The key under which the store keeps it.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Record::Pool(_) => Key::Pool,
            Record::Donor(record) => Key::Donor(record.donor),
            Record::Volume(record) => Key::Volume(record.map.volume),
            Record::Lease(record) => Key::Lease(record.token),
            Record::Content(record) => Key::Content(record.volume),
            Record::Authority(_) => Key::Authority,
            Record::Signing(_) => Key::Signing,
            Record::Custody(record) => Key::Custody(record.volume, record.sequence),
            Record::Token(record) => Key::Token(record.hash.id()),
            Record::Member(record) => Key::Member(record.member),
        }
    }
}

/// Stored records that contradict each other: nothing is served from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadState(pub String);

impl fmt::Display for BadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadState {}

impl Coordinator {
    /// The coordinator as it was stored. Step it with `Wake` next.
    ///
    /// # Errors
    /// When the records are incomplete or contradict each other.
    pub fn restore(records: Vec<Record>, now: Time) -> Result<Self, BadState> {
        let bad = |what: String| Err(BadState(what));
        let (mut pool, mut volumes, mut leases) = (None, Vec::new(), Vec::new());
        let mut contents = BTreeMap::new();
        let mut donors = BTreeMap::new();
        let (mut members, mut signing, mut custody) = (Members::default(), None, Vec::new());
        for record in records {
            match record {
                Record::Pool(record) => pool = Some(record),
                Record::Donor(record) => {
                    donors.insert(record.donor, record);
                }
                Record::Volume(record) => volumes.push(record),
                Record::Lease(record) => leases.push(record),
                Record::Content(record) => {
                    contents.insert(record.volume, record.content);
                }
                Record::Authority(record) => members.authority = Some(record),
                Record::Signing(record) => signing = Some(record),
                Record::Custody(record) => custody.push(record),
                Record::Token(record) => {
                    members.tokens.insert(record.hash.id(), record);
                }
                Record::Member(record) => {
                    members.members.insert(record.member, record);
                }
            }
        }
        let Some(pool) = pool else { return bad("the state has no pool record".into()) };
        let mut restored = Coordinator::new(pool.pool);
        restored.dirty.clear();
        (restored.members, restored.signing) = (members, signing);
        restored.custody = Logs::restore(custody);
        restored.now = now;
        // One past what was stored: every donor is told its duties anew, and confirms them.
        restored.revision = pool.revision + 1;
        for (id, record) in donors {
            restored.joins = restored.joins.max(record.join + 1);
            restored.donors.insert(id, Donor::restore(record, restored.revision, now));
            restored.timers.insert((now + DONOR_SILENCE_NS, Timer::Donor(id)));
        }
        volumes.sort_by_key(|record| record.order);
        for record in volumes {
            let content = contents.remove(&record.map.volume);
            restored.restore_volume(record, content)?;
        }
        for record in leases {
            let token = record.token;
            let Some(volume) = restored.volumes.get_mut(&record.volume) else {
                return bad(format!("lease {token} is of a volume that is not there"));
            };
            volume.leases.insert(token);
            restored.leases.insert(token, Lease::restore(record, now + LEASE_NS));
            restored.timers.insert((now + LEASE_NS, Timer::Lease(token)));
        }
        Ok(restored)
    }

    fn restore_volume(&mut self, record: VolumeRecord, content: Option<Content>) -> Result<(), BadState> {
        record.map.check().map_err(|bad| BadState(bad.to_string()))?;
        let (id, name) = (record.map.volume, record.map.name.clone());
        let left = record.retired.iter().map(|retired| retired.placement);
        for member in record.map.groups.iter().flat_map(|group| group.placements()).chain(left) {
            let taken = self.donors.get_mut(&member.donor).is_some_and(|donor| donor.take(id, member.extent));
            if !taken {
                let (donor, extent) = (member.donor, member.extent);
                let what = format!("extent {extent} of donor {donor} is not free for volume '{name}'");
                return Err(BadState(what));
            }
        }
        let left = record.retired.iter().map(|retired| retired.placement.donor);
        for donor in record.map.donors().chain(left) {
            if let Some(donor) = self.donors.get_mut(&donor) {
                donor.sort_held(id);
            }
        }
        if self.names.insert(name.clone(), id).is_some() {
            return Err(BadState(format!("two volumes are named '{name}'")));
        }
        let VolumeRecord { map, follow, order, fresh, retired, keys } = record;
        let unknown = || match fresh {
            true => Content::default(),
            false => Content { state: ContentState::Written, ..Content::default() },
        };
        let content = content.unwrap_or_else(unknown);
        let volume = Volume {
            revision: self.revision,
            fresh,
            retired,
            content,
            keys,
            ..Volume::new(map, follow, order)
        };
        self.volumes.insert(id, volume);
        self.wanting.insert(id);
        self.unsure.insert(id);
        Ok(())
    }

    /// The current record of a key; `None` when it shall be forgotten.
    pub(super) fn record(&self, key: Key) -> Option<Record> {
        match key {
            Key::Pool => Some(Record::Pool(PoolRecord { pool: self.pool, revision: self.revision })),
            Key::Donor(id) => self.donors.get(&id).map(|donor| Record::Donor(donor.record.clone())),
            Key::Volume(id) => self.volumes.get(&id).map(|volume| {
                let Volume { map, follow, order, fresh, retired, keys, .. } = volume;
                let (follow, order, fresh) = (*follow, *order, *fresh);
                let (map, retired, keys) = (map.clone(), retired.clone(), keys.clone());
                Record::Volume(VolumeRecord { map, follow, order, fresh, retired, keys })
            }),
            Key::Lease(token) => self.leases.get(&token).map(|lease| Record::Lease(lease.record.clone())),
            Key::Authority => self.authority().cloned().map(Record::Authority),
            Key::Signing => self.signing.clone().map(Record::Signing),
            Key::Custody(id, sequence) => self.custody.record(id, sequence).map(Record::Custody),
            Key::Token(id) => self.members.tokens.get(&id).cloned().map(Record::Token),
            Key::Member(id) => self.members.members.get(&id).cloned().map(Record::Member),
            Key::Content(id) => self
                .volumes
                .get(&id)
                .map(|volume| Record::Content(ContentRecord { volume: id, content: volume.content.clone() })),
        }
    }
}

impl Donor {
    fn restore(record: DonorRecord, revision: u64, now: Time) -> Donor {
        let mut donor = Donor::join(record, revision, now);
        donor.heard = false;
        donor.wipes_all = revision;
        donor.alive = !donor.record.departed;
        donor
    }
}

impl Lease {
    fn restore(record: LeaseRecord, expires: Time) -> Lease {
        let (place, lost, report) = (String::new(), Vec::new(), VolumeReport::default());
        // What it knows of the map it says when it renews.
        Lease { record, place, lost, report, expires, heard: None, epoch: 0 }
    }
}
