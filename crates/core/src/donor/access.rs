//! What a donor's connections may do: an immutable snapshot that the data path reads without a lock.
//!
//! Owns the export name grammar `NAME@TOKEN[.SESSION[.DONOR]]`, and `donor.DONOR`, by which a donor is told
//! from others, and the two checks: at open, and for each request. Never: which connections there are
//! (`Donor`). Invariant: an extent is in a snapshot for one volume at most, and only when it is clean or was
//! that volume's before. Tests: below.

use crate::layout::{LAYER_SHIFT, layer_of};
use crate::limits::EXTENT_BYTES;
use crate::map::{DonorId, LeaseToken, MemberId, VolumeId};
use std::collections::BTreeMap;
use std::fmt;

/// The rights of all connections at one moment. `Effect::Publish` replaces the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Who serves. A client that means another, whose address this one took over, must not reach the other's
    /// extents in this one's memory.
    donor: Option<DonorId>,
    /// By extent: index into `volumes` plus one; 0 is nobody's.
    owners: Vec<u32>,
    volumes: Vec<Volume>,
    leases: BTreeMap<LeaseToken, Lease>,
    /// Everything to everyone: a donor without a pool.
    alone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    id: VolumeId,
    name: String,
    /// First address after its last extent.
    end: u64,
    extents: u32,
    kind: Kind,
}

/// What a volume is to its donors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind {
    /// What is not known of it is what its source has, not zeros. None: it has no source.
    pub(super) backed: Option<Backed>,
    pub(super) encrypted: bool,
    pub(super) write_back: bool,
}

/// What a donor knows of a volume's backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backed {
    /// So many extents of the volume share one of memory.
    pub layers: u32,
}

impl Volume {
    fn layers(&self) -> u32 {
        self.kind.backed.map_or(1, |backed| backed.layers)
    }

    /// Where in its memory a byte of a later layer is accounted for.
    fn in_first_layer(&self, offset: u64) -> Result<u64, Denied> {
        let (layer, inside) = layer_of(offset);
        if layer < self.layers() { Ok(inside) } else { Err(Denied::Beyond) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    volume: u32,
    writable: bool,
    /// Whose certificate it goes with; None in a pool in the clear.
    member: Option<MemberId>,
}

/// What one connection may do, settled when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The volume. A lease that is another volume's by now gives no right.
    pub volume: VolumeId,
    /// The lease; 0 where the donor is [`alone`](Access::alone).
    pub token: LeaseToken,
    /// The session of the export name, 0 where it has none. A greater one of the same lease shuts this one
    /// out.
    pub session: u64,
    /// The right to write, as of the opening. The lease of now must give it, too.
    pub writable: bool,
    /// The size to announce: the end of the volume's last extent here. It may grow later; `Access::check`
    /// decides, not this.
    pub size: u64,
    /// Addresses have so many layers, each as large as that: more than one where extents of the volume share
    /// memory.
    pub layers: u32,
    /// Each write comes with nonce and authentication tag of its blocks, which are kept beside them.
    pub encrypted: bool,
    /// Of a volume on disk: a write is answered when it is in memory, and a flush when the disk has it.
    pub write_back: bool,
}

impl Grant {
    /// The first address behind its last layer, where each has so many bytes.
    #[must_use]
    pub fn end(&self, layer_bytes: u64) -> u64 {
        (u64::from(self.layers - 1) << LAYER_SHIFT) + layer_bytes
    }
}

/// Why a connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Not of the form `NAME@TOKEN[.SESSION[.DONOR]]`.
    Malformed,
    /// Another donor is meant, one that was at this address before.
    OtherDonor,
    /// No such volume here, or no such lease: one answer, so that names cannot be probed.
    Unknown,
    /// The same client has opened a newer session already.
    Superseded,
    /// The donor is leaving.
    Leaving,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpenError::Malformed => {
                "an export of this donor is a volume's part, asked for by its lease as NAME@TOKEN (its pool gives leases: \
                 `cheetah attach`)"
            }
            OpenError::OtherDonor => "another donor was here before, and what it held is gone",
            OpenError::Unknown => "there is no volume of this name under this lease here, or the lease has ended",
            OpenError::Superseded => "a newer session of this client is open",
            OpenError::Leaving => "this donor is leaving its pool",
        })
    }
}

impl std::error::Error for OpenError {}

/// Why a request is refused. All are EPERM to the client, except `Beyond` (EINVAL; ENOSPC for what writes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The lease has ended, or is another volume's by now.
    LeaseEnded,
    /// A WRITE, WRITE_ZEROES or TRIM under a lease without the right to write.
    ReadOnly,
    /// An extent in the range is not the volume's.
    NotYours,
    /// The range leaves the export: it ends behind the volume's last extent here, as it is now and as it was
    /// announced.
    Beyond,
}

/// What an export name says.
struct Asked<'a> {
    volume: &'a str,
    token: LeaseToken,
    session: u64,
    donor: Option<DonorId>,
}

/// The name may hold anything; it ends at the last `@`.
fn parse_export(export: &str) -> Option<Asked<'_>> {
    let hexadecimal = |text: &&str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let decimal = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (volume, proof) = export.rsplit_once('@')?;
    let mut fields = proof.split('.');
    let token = fields.next().filter(hexadecimal)?.parse().ok()?;
    let session = fields.next().map_or(Some(0), |text| Some(text).filter(decimal)?.parse().ok())?;
    let donor = match fields.next() {
        Some(text) => Some(Some(text).filter(hexadecimal)?.parse().ok()?),
        None => None,
    };
    fields.next().is_none().then_some(Asked { volume, token, session, donor })
}

/// The export name of a volume on one Cheetah donor.
#[must_use]
pub fn export_name(volume: &str, token: LeaseToken, session: u64, donor: DonorId) -> String {
    format!("{volume}@{token}.{session}.{donor}")
}

const GREETING: &str = "donor.";

/// The export that only this donor has: nothing is in it, and that it is there says who listens.
#[must_use]
pub fn greeting_name(donor: DonorId) -> String {
    format!("{GREETING}{donor}")
}

impl Access {
    /// Whether a greeting means this donor; `None` when it is no greeting.
    #[must_use]
    pub fn greeted(&self, export: &str) -> Option<Result<(), OpenError>> {
        let meant: DonorId = export.strip_prefix(GREETING)?.parse().ok()?;
        self.donor.map(|own| if own == meant { Ok(()) } else { Err(OpenError::OtherDonor) })
    }

    /// `donate --no-pool`: one export that covers all, named "" or `arena`, writable by anyone.
    #[must_use]
    pub fn alone(extents: u32) -> Self {
        let end = u64::from(extents) * EXTENT_BYTES;
        let (name, kind) = ("arena".to_owned(), Kind::default());
        let volume = Volume { id: VolumeId(0), name, end, extents, kind };
        Access {
            donor: None,
            owners: vec![1; extents as usize],
            volumes: vec![volume],
            leases: BTreeMap::from([(LeaseToken(0), Lease { volume: 0, writable: true, member: None })]),
            alone: true,
        }
    }

    /// Nothing to anyone, of a donor with this many extents.
    pub(super) fn closed(donor: DonorId, extents: u32) -> Self {
        Access { donor: Some(donor), owners: vec![0; extents as usize], ..Access::default() }
    }

    pub(super) fn add_volume(
        &mut self,
        id: VolumeId,
        (name, kind): (&str, Kind),
        extents: impl Iterator<Item = u32>,
        leases: impl Iterator<Item = (LeaseToken, bool, Option<MemberId>)>,
    ) {
        let at = u32::try_from(self.volumes.len()).expect("fewer volumes than POOL_VOLUMES_MAX");
        let mut volume = Volume { id, name: name.to_owned(), end: 0, extents: 0, kind };
        for extent in extents {
            let owner = &mut self.owners[extent as usize];
            assert_eq!(*owner, 0, "extent {extent} has one owner");
            *owner = at + 1;
            volume.end = volume.end.max((u64::from(extent) + 1) * EXTENT_BYTES);
            volume.extents += 1;
        }
        self.volumes.push(volume);
        self.leases
            .extend(leases.map(|(token, writable, member)| (token, Lease { volume: at, writable, member })));
    }

    /// Looks up what a connection asked for by export name. `member`: who asks, as its certificate says; a
    /// lease that is another's is none, in one answer with those that there are not.
    ///
    /// # Errors
    /// When there is no such export for this lease.
    pub fn open(&self, export: &str, member: Option<MemberId>) -> Result<Grant, OpenError> {
        let Asked { volume: name, token, session, donor } = match export {
            "" | "arena" if self.alone => {
                Asked { volume: "arena", token: LeaseToken(0), session: 0, donor: None }
            }
            _ => parse_export(export).ok_or(OpenError::Malformed)?,
        };
        if donor.is_some() && donor != self.donor {
            return Err(OpenError::OtherDonor);
        }
        let lease = self.leases.get(&token).ok_or(OpenError::Unknown)?;
        let volume = &self.volumes[lease.volume as usize];
        if volume.name != name || (lease.member != member && !self.alone) {
            return Err(OpenError::Unknown);
        }
        Ok(Grant {
            volume: volume.id,
            token,
            session,
            writable: lease.writable,
            size: volume.end,
            layers: volume.layers(),
            encrypted: volume.kind.encrypted,
            write_back: volume.kind.write_back,
        })
    }

    /// May a connection with this grant touch the range now? Called for each request.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, grant: &Grant, write: bool, offset: u64, len: u32) -> Result<(), Denied> {
        let lease = self.leases.get(&grant.token).ok_or(Denied::LeaseEnded)?;
        let volume = &self.volumes[lease.volume as usize];
        if volume.id != grant.volume {
            return Err(Denied::LeaseEnded);
        }
        if write && !(lease.writable && grant.writable) {
            return Err(Denied::ReadOnly);
        }
        // Where it has moved away since, the range is inside of what was announced, and not the volume's any
        // more.
        let export_end = grant.size.max(volume.end).min(self.owners.len() as u64 * EXTENT_BYTES);
        let offset = if offset < export_end { offset } else { volume.in_first_layer(offset)? };
        let last = offset.checked_add(u64::from(len.max(1)) - 1).ok_or(Denied::Beyond)?;
        if last >= export_end {
            return Err(Denied::Beyond);
        }
        let (first, last) = (offset / EXTENT_BYTES, last / EXTENT_BYTES);
        let extent = |at: u64| usize::try_from(at).expect("an extent index is below 2^32");
        let touched = &self.owners[extent(first)..=extent(last)];
        touched.iter().all(|owner| *owner == lease.volume + 1).then_some(()).ok_or(Denied::NotYours)
    }

    /// Whether blocks of the volume that nobody has said anything of are absent, and not zeros.
    #[must_use]
    pub fn is_backed(&self, grant: &Grant) -> bool {
        let volume = self.leases.get(&grant.token).map(|lease| &self.volumes[lease.volume as usize]);
        volume.is_some_and(|volume| volume.id == grant.volume && volume.kind.backed.is_some())
    }

    /// The extents of the volume that a connection with this grant may write, of which a flush speaks; none
    /// when it may not.
    pub fn written_by(&self, grant: &Grant) -> impl Iterator<Item = u32> {
        let may = |lease: &&Lease| {
            lease.writable && grant.writable && self.volumes[lease.volume as usize].id == grant.volume
        };
        // 0 is nobody's, and so of no extent that is looked for.
        let owner = self.leases.get(&grant.token).filter(may).map(|lease| lease.volume + 1);
        let owned = move |(_, of): &(u32, &u32)| Some(**of) == owner;
        (0..).zip(&self.owners).filter(owned).map(|(extent, _)| extent)
    }

    /// For NBD LIST: names and descriptions of what anybody can open. In a pool that is nothing: who has no
    /// lease is not told what volumes are called, for they are called like cases.
    #[must_use]
    pub fn exports(&self) -> Option<Vec<(String, String)>> {
        let describe = |volume: &Volume| {
            let bytes = crate::units::show_bytes(u64::from(volume.extents) * EXTENT_BYTES);
            (volume.name.clone(), format!("{bytes}: all of a donor's memory"))
        };
        self.alone.then(|| self.volumes.iter().map(describe).collect())
    }

    /// How many volumes have a part here.
    #[must_use]
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// Whose the extent is, as far as the donor knows.
    #[must_use]
    pub fn owner(&self, extent: u32) -> Option<VolumeId> {
        let owner = *self.owners.get(extent as usize)?;
        owner.checked_sub(1).map(|at| self.volumes[at as usize].id)
    }

    pub(super) fn has_token(&self, token: LeaseToken) -> bool {
        self.leases.contains_key(&token)
    }

    pub(super) fn has_lease(&self, token: LeaseToken, volume: VolumeId) -> bool {
        self.leases.get(&token).is_some_and(|lease| self.volumes[lease.volume as usize].id == volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: LeaseToken = LeaseToken(0xab);
    const DONOR: DonorId = DonorId(0xd);
    const READER: LeaseToken = LeaseToken(0xcd);

    fn access() -> Access {
        let mut access = Access::closed(DONOR, 8);
        let leases = [(TOKEN, true, None), (READER, false, None)];
        access.add_volume(
            VolumeId(1),
            ("case.7@x", Kind::default()),
            [1, 2, 4].into_iter(),
            leases.into_iter(),
        );
        access.add_volume(VolumeId(2), ("other", Kind::default()), [5].into_iter(), std::iter::empty());
        access
    }

    #[test]
    fn a_lease_is_of_use_to_its_member_alone() {
        let (own, other) = (Some(MemberId(1)), Some(MemberId(2)));
        let mut access = Access::closed(DONOR, 8);
        access.add_volume(
            VolumeId(1),
            ("v", Kind::default()),
            [1].into_iter(),
            [(TOKEN, true, own)].into_iter(),
        );
        let export = export_name("v", TOKEN, 1, DONOR);
        assert!(access.open(&export, own).is_ok());
        assert_eq!(access.open(&export, other), Err(OpenError::Unknown));
        assert_eq!(access.open(&export, None), Err(OpenError::Unknown), "nor to who has no certificate");
        let clear = export_name("case.7@x", TOKEN, 1, DONOR);
        assert_eq!(self::access().open(&clear, own), Err(OpenError::Unknown), "nor one that is nobody's");
    }

    #[test]
    fn export_names_carry_volume_lease_and_session() {
        let grant = access().open("case.7@x@00000000000000ab.12", None).expect("a good name");
        assert_eq!(
            (grant.volume, grant.token, grant.session, grant.writable),
            (VolumeId(1), TOKEN, 12, true)
        );
        assert_eq!(grant.size, 5 * EXTENT_BYTES);
        assert_eq!(access().open(&export_name("case.7@x", TOKEN, 12, DONOR), None), Ok(grant));
        let reader = access().open("case.7@x@00000000000000cd", None).expect("a reader");
        assert_eq!((reader.session, reader.writable), (0, false));
        for (bad, why) in [
            ("", OpenError::Malformed),
            ("arena", OpenError::Malformed),
            ("case.7@x@ab", OpenError::Malformed),
            ("case.7@x@+0000000000000ab", OpenError::Malformed),
            ("case.7@x@00000000000000ab.", OpenError::Malformed),
            ("case.7@x@00000000000000ab.+1", OpenError::Malformed),
            ("case.7@x@00000000000000ab.18446744073709551616", OpenError::Malformed),
            ("case.7@x@00000000000000ab.1.", OpenError::Malformed),
            ("case.7@x@00000000000000ab.1.000000000000000d.2", OpenError::Malformed),
            ("case.7@x@00000000000000ab.1.000000000000000e", OpenError::OtherDonor),
            ("other@00000000000000ab", OpenError::Unknown),
            ("case.7@x@00000000000000ff", OpenError::Unknown),
        ] {
            assert_eq!(access().open(bad, None), Err(why), "{bad}");
        }
    }

    #[test]
    fn a_greeting_is_answered_by_whom_it_means() {
        let access = access();
        assert_eq!(access.greeted(&greeting_name(DONOR)), Some(Ok(())));
        assert_eq!(access.greeted(&greeting_name(DonorId(7))), Some(Err(OpenError::OtherDonor)));
        assert_eq!((access.greeted("donor.x"), access.greeted("case.7@x@00000000000000ab")), (None, None));
        assert_eq!(
            access.open(&greeting_name(DONOR), None),
            Err(OpenError::Malformed),
            "there is nothing in it"
        );
        assert_eq!(Access::alone(1).greeted(&greeting_name(DONOR)), None);
    }

    #[test]
    fn a_flush_speaks_of_what_its_connection_may_write() {
        let access = access();
        let written = |access: &Access, export| {
            let grant = access.open(export, None).expect("a good name");
            (access.written_by(&grant).collect::<Vec<_>>(), grant)
        };
        let (extents, writer) = written(&access, "case.7@x@00000000000000ab");
        assert_eq!(extents, [1, 2, 4]);
        let (extents, _) = written(&access, "case.7@x@00000000000000cd");
        assert!(extents.is_empty(), "a reader's flush ages nothing");
        assert_eq!(Access::closed(DONOR, 8).written_by(&writer).count(), 0, "nor that of a lease that ended");
        assert_eq!(written(&Access::alone(2), "arena").0, [0, 1]);
    }

    #[test]
    fn every_touched_extent_must_be_the_volumes() {
        let (access, e) = (access(), EXTENT_BYTES);
        let grant = access.open("case.7@x@00000000000000ab", None).expect("a good name");
        assert_eq!(access.check(&grant, true, e, 4096), Ok(()));
        assert_eq!(access.check(&grant, true, 2 * e - 1, 2), Ok(()), "across two of its extents");
        assert_eq!(access.check(&grant, false, 3 * e - 1, 2), Err(Denied::NotYours), "into a free one");
        for write in [false, true] {
            assert_eq!(access.check(&grant, write, 3 * e, 1), Err(Denied::NotYours), "nobody's");
            assert_eq!(
                access.check(&grant, write, 5 * e, 1),
                Err(Denied::Beyond),
                "another volume's, and behind its end"
            );
            assert_eq!(access.check(&grant, write, 5 * e - 1, 2), Err(Denied::Beyond), "across its end");
        }
        assert_eq!(access.check(&grant, false, 8 * e, 1), Err(Denied::Beyond));
        assert_eq!(access.check(&grant, false, u64::MAX, 2), Err(Denied::Beyond));
        let reader = access.open("case.7@x@00000000000000cd", None).expect("a reader");
        assert_eq!(access.check(&reader, false, e, 1), Ok(()));
        assert_eq!(access.check(&reader, true, e, 1), Err(Denied::ReadOnly));
        assert_eq!(Access::closed(DONOR, 8).check(&grant, false, e, 1), Err(Denied::LeaseEnded));
        assert_eq!(access.owner(4), Some(VolumeId(1)));
    }

    #[test]
    fn what_was_announced_and_is_gone_is_refused_and_not_beyond_the_end() {
        let (before, e) = (access(), EXTENT_BYTES);
        let grant = before.open("case.7@x@00000000000000ab", None).expect("a good name");
        let mut moved = Access::closed(DONOR, 8);
        moved.add_volume(
            VolumeId(1),
            ("case.7@x", Kind::default()),
            [1, 2].into_iter(),
            [(TOKEN, true, None)].into_iter(),
        );
        assert_eq!(moved.check(&grant, false, 4 * e, 1), Err(Denied::NotYours), "its map is older");
        let later = moved.open("case.7@x@00000000000000ab", None).expect("a good name");
        assert_eq!(moved.check(&later, false, 4 * e, 1), Err(Denied::Beyond));
        let mut grown = Access::closed(DONOR, 8);
        grown.add_volume(
            VolumeId(1),
            ("case.7@x", Kind::default()),
            [1, 2, 4, 6].into_iter(),
            [(TOKEN, true, None)].into_iter(),
        );
        assert_eq!(grown.check(&grant, true, 6 * e, 1), Ok(()), "it has grown since");
    }

    #[test]
    fn a_layer_is_checked_as_the_extent_that_it_shares() {
        let (mut access, e) = (Access::closed(DONOR, 8), EXTENT_BYTES);
        let kind = Kind { backed: Some(Backed { layers: 3 }), ..Kind::default() };
        let leases = [(TOKEN, true, None)];
        access.add_volume(VolumeId(1), ("v", kind), [1].into_iter(), leases.into_iter());
        access.add_volume(VolumeId(2), ("w", Kind::default()), [2].into_iter(), std::iter::empty());
        let grant = access.open("v@00000000000000ab", None).expect("a good name");
        assert_eq!((grant.layers, grant.end(8 * e)), (3, (2 << LAYER_SHIFT) + 8 * e));
        for layer in 0..3u64 {
            let at = |offset: u64| (layer << LAYER_SHIFT) + offset;
            assert_eq!(access.check(&grant, true, at(e), 4096), Ok(()), "{layer}");
            assert_eq!(access.check(&grant, true, at(2 * e - 1), 2), Err(Denied::Beyond), "{layer}");
            assert_eq!(access.check(&grant, false, at(0), 1), Err(Denied::NotYours), "{layer}");
            assert_eq!(access.check(&grant, false, at(8 * e), 1), Err(Denied::Beyond), "{layer}");
        }
        assert_eq!(access.check(&grant, false, (3 << LAYER_SHIFT) + e, 1), Err(Denied::Beyond));
        assert_eq!(access.check(&grant, false, u64::MAX, 1), Err(Denied::Beyond));
    }

    #[test]
    fn alone_it_serves_everyone_everything() {
        let access = Access::alone(2);
        let grant = access.open("", None).expect("the default export");
        assert_eq!(access.open("arena", None), Ok(grant));
        assert_eq!((grant.size, grant.writable), (2 * EXTENT_BYTES, true));
        assert_eq!(access.check(&grant, true, EXTENT_BYTES - 1, 2), Ok(()));
        assert_eq!(access.check(&grant, true, 2 * EXTENT_BYTES, 1), Err(Denied::Beyond));
        assert_eq!(access.exports().map(|exports| exports.len()), Some(1));
        assert_eq!(self::access().exports(), None, "names are for who has a lease");
    }
}
