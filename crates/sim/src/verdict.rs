//! Which requests may fail, and how.
//!
//! Owns: the simulator's own (naive) layout, which says whose memory a range is; the memory of which donors
//! and links were in trouble until when; which leases were taken over. Never: bytes (`oracle`). Key rule: a
//! request fails only when a donor that holds a part of its range is dead, or was in trouble while the
//! request was on its way or shortly before; and it does not succeed when such a donor died before it began.

use crate::oracle::Order;
use cheetah_core::limits::{EXTENT_BYTES, REQUEST_DEADLINE_NS, SECOND_NS, WRITE_MARGIN_NS};
use cheetah_core::map::{DonorId, LeaseToken, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How long after a trouble is over a client may still be without the donor: a retry each second, each with
/// its deadline for connecting.
pub(crate) const GRACE_NS: u64 = 8 * SECOND_NS;
/// Connections that stall for so long, in turns, keep a write for too long to begin it.
const STALLS_NS: u64 = REQUEST_DEADLINE_NS - WRITE_MARGIN_NS;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// When, in order and time.
    pub(crate) dead: BTreeMap<DonorId, (Order, Time)>,
    /// Donors of disks that have ended: what they hold is there, and comes back with them, or does not.
    pub(crate) away: BTreeSet<DonorId>,
    /// Those of which some blocks were torn, by a write that was under way when they ended.
    pub(crate) torn_disks: BTreeSet<DonorId>,
    /// Where such blocks lie in their volumes, and on which of them.
    pub(crate) torn_blocks: BTreeMap<(VolumeId, u64), BTreeSet<DonorId>>,
    donor_trouble: BTreeMap<DonorId, Time>,
    client_trouble: BTreeMap<usize, Time>,
    /// By client host.
    link_trouble: BTreeMap<(usize, DonorId), Time>,
    /// The same where redundancy lets a client go round the donor, though it would have been answered in the
    /// end: since when and until when connections stall, one stall beginning before the other is over.
    slow_links: BTreeMap<(usize, DonorId), (Time, Time)>,
    slow_donors: BTreeMap<DonorId, Time>,
    /// Neither can be told anything, nor tell anything, until then.
    coordinator_trouble: Time,
    /// Clients that cannot reach the coordinator.
    cut_off: BTreeMap<usize, Time>,
    unaware: BTreeSet<(usize, DonorId)>,
    /// Volumes of which a write ended half-way since a client last began to serve them.
    pub(crate) torn: BTreeSet<VolumeId>,
    /// Donors whose memory has bits that nobody wrote, or that cannot read something.
    rotten: BTreeSet<DonorId>,
    /// The latter of them,
    unreadable: BTreeSet<DonorId>,
    /// and where the others have such bits: group of a volume.
    flipped: BTreeSet<(DonorId, VolumeId, usize)>,
    /// Donors of which a part may be older than what was acknowledged, since they came back.
    pub(crate) stale: BTreeSet<DonorId>,
    rotten_until: BTreeMap<DonorId, Time>,
    /// Rows of a volume that a failed write left so that they do not fit together.
    pub(crate) half_written: Vec<(VolumeId, std::ops::Range<u64>)>,
    /// Volume, group, slot and block of its extent where a bit flipped, until it is written again. Without
    /// redundancy it goes wherever the slot is moved.
    pub(crate) rotted: BTreeSet<(VolumeId, usize, usize, u64)>,
    /// Whose disk did not take writes for a while: without redundancy their blocks are wrong until they are
    /// written again.
    pub(crate) full_disks: BTreeSet<DonorId>,
    /// Volumes to which more happened than redundancy covers.
    pub(crate) beyond: BTreeSet<VolumeId>,
    /// Leases that ended, as the coordinator's records say.
    pub(crate) lease_ended: BTreeSet<LeaseToken>,
    /// A newer writer was given the volume; the donors that had not confirmed.
    pub(crate) superseded: BTreeMap<LeaseToken, (Order, BTreeSet<DonorId>)>,
}

fn extend<K: Ord>(map: &mut BTreeMap<K, Time>, key: K, until: Time) {
    let end = map.entry(key).or_default();
    *end = (*end).max(until);
}

impl Verdict {
    pub(crate) fn donor_in_trouble(&mut self, donor: DonorId, until: Time) {
        extend(&mut self.donor_trouble, donor, until);
    }

    pub(crate) fn client_in_trouble(&mut self, client: usize, until: Time) {
        extend(&mut self.client_trouble, client, until);
    }

    pub(crate) fn is_client_in_trouble(&self, client: usize, since: Time) -> bool {
        self.client_trouble.get(&client).is_some_and(|until| until + GRACE_NS >= since)
    }

    pub(crate) fn link_in_trouble(&mut self, client: usize, donor: DonorId, until: Time) {
        extend(&mut self.link_trouble, (client, donor), until);
    }

    pub(crate) fn link_is_slow(&mut self, client: usize, donor: DonorId, now: Time, until: Time) {
        let (since, end) = self.slow_links.entry((client, donor)).or_insert((now, until));
        if *end < now {
            *since = now;
        }
        *end = (*end).max(until);
        // Each stall is short, but a request may have waited for all of them.
        if *end - *since >= STALLS_NS {
            let end = *end;
            self.link_in_trouble(client, donor, end);
        }
    }

    pub(crate) fn donor_is_slow(&mut self, donor: DonorId, until: Time) {
        extend(&mut self.slow_donors, donor, until);
    }

    pub(crate) fn coordinator_in_trouble(&mut self, until: Time) {
        self.coordinator_trouble = self.coordinator_trouble.max(until);
    }

    /// These have wrong bits now, and those that had some do not any more.
    pub(crate) fn now_rotten(
        &mut self,
        flipped: BTreeSet<(DonorId, VolumeId, usize)>,
        unreadable: BTreeSet<DonorId>,
        now: Time,
    ) {
        let rotten: BTreeSet<DonorId> =
            flipped.iter().map(|(donor, ..)| *donor).chain(unreadable.iter().copied()).collect();
        let mended = self.rotten.difference(&rotten).map(|donor| (*donor, now));
        self.rotten_until.extend(mended);
        (self.rotten, self.flipped, self.unreadable) = (rotten, flipped, unreadable);
    }

    pub(crate) fn client_cut_off(&mut self, client: usize, until: Time) {
        extend(&mut self.cut_off, client, until);
    }

    /// Whether the client may have been unable to tell the coordinator something from `since` on.
    pub(crate) fn coordinator_excuses(&self, client: usize, since: Time) -> bool {
        let cut_off = self.cut_off.get(&client).copied().unwrap_or(0);
        self.coordinator_trouble.max(cut_off) + GRACE_NS >= since
    }

    pub(crate) fn is_slow(&self, donor: DonorId, since: Time) -> bool {
        self.slow_donors.get(&donor).is_some_and(|until| until + GRACE_NS >= since)
    }

    pub(crate) fn is_link_slow(&self, client: usize, donor: DonorId, since: Time) -> bool {
        let slow_link = self.slow_links.get(&(client, donor));
        slow_link.is_some_and(|(_, until)| until + GRACE_NS >= since)
    }

    /// Whether a client of a volume with redundancy may have gone round the donor at some time from `since`
    /// on.
    pub(crate) fn may_be_passed_over(&self, client: usize, donor: DonorId, since: Time) -> bool {
        self.is_link_slow(client, donor, since)
            || self.is_slow(donor, since)
            || self.rotten.contains(&donor)
            || self.rotten_until.get(&donor).is_some_and(|until| until + GRACE_NS >= since)
            || self.excuses(client, donor, since)
    }

    /// Whether anyone may have trouble with the donor at some time from `since` on.
    pub(crate) fn is_in_trouble(&self, donor: DonorId, since: Time) -> bool {
        self.rotten.contains(&donor) || self.is_missing(donor, since)
    }

    /// Likewise, in this group of this volume: wrong bits are trouble only where they are.
    pub(crate) fn is_in_trouble_in(
        &self,
        donor: DonorId,
        (volume, group): (VolumeId, usize),
        since: Time,
    ) -> bool {
        self.flipped.contains(&(donor, volume, group))
            || self.unreadable.contains(&donor)
            || self.is_missing(donor, since)
    }

    /// Beside what is wrong in its memory.
    fn is_missing(&self, donor: DonorId, since: Time) -> bool {
        let late = |until: &Time| until + GRACE_NS >= since;
        let slow = self.slow_links.iter().map(|(link, (_, until))| (link, until));
        let links = slow.chain(&self.link_trouble);
        self.dead.contains_key(&donor)
            || self.away.contains(&donor)
            || self.stale.contains(&donor)
            || self.donor_trouble.get(&donor).is_some_and(late)
            || self.is_slow(donor, since)
            || self.unaware.iter().any(|(_, other)| *other == donor)
            || links.into_iter().any(|((_, other), until)| *other == donor && late(until))
    }

    /// The donor has not heard of the client's lease or of all its extents: out of reach until it has.
    pub(crate) fn link_unaware(&mut self, client: usize, donor: DonorId) {
        self.unaware.insert((client, donor));
    }

    /// Asked again for each link that was unaware, whenever the donor publishes.
    pub(crate) fn links_aware(&mut self, donor: DonorId, now: Time, is_aware: impl Fn(usize) -> bool) {
        let aware: Vec<usize> =
            self.unaware.iter().filter(|(c, d)| *d == donor && is_aware(*c)).map(|(c, _)| *c).collect();
        for client in aware {
            self.unaware.remove(&(client, donor));
            self.link_in_trouble(client, donor, now);
        }
    }

    /// Whether the client may have failed to reach the donor at some time from `since` on.
    pub(crate) fn excuses(&self, client: usize, donor: DonorId, since: Time) -> bool {
        let late = |until: Option<&Time>| until.is_some_and(|until| until + GRACE_NS >= since);
        self.dead.contains_key(&donor)
            || self.away.contains(&donor)
            || self.stale.contains(&donor)
            || self.unaware.contains(&(client, donor))
            || late(self.donor_trouble.get(&donor))
            || late(self.client_trouble.get(&client))
            || late(self.link_trouble.get(&(client, donor)))
    }

    /// Whether the donor died before this.
    pub(crate) fn died_before(&self, donor: DonorId, order: Order) -> bool {
        self.dead.get(&donor).is_some_and(|(died, _)| *died < order)
    }
}

/// The donors that hold a range or its parity, by division and remainder, one unit after the other.
pub(crate) fn holders(map: &VolumeMap, offset: u64, len: u64) -> BTreeSet<DonorId> {
    let k = usize::try_from(map.redundancy.data).expect("a few");
    let (unit, group_bytes, end) = (u64::from(map.unit), map.group_bytes(), offset + len);
    let mut found = BTreeSet::new();
    let mut at = offset;
    while at < end {
        let group_end = (at / group_bytes + 1) * group_bytes;
        let group = &map.groups[usize::try_from(at / group_bytes).expect("a group")];
        found.extend(group.slots[k..].iter().filter_map(|slot| slot.held).map(|held| held.donor));
        for _ in 0..k {
            if at < end.min(group_end) {
                let column = (at % group_bytes) / unit % k as u64;
                let slot = group.slots[usize::try_from(column).expect("a column")];
                found.extend(slot.held.map(|held| held.donor));
                at = (at / unit + 1) * unit;
            }
        }
        at = at.max(group_end.min(end));
    }
    found
}

/// Where a run of a request lies: the bytes `from..from + len` of the extent of data slot `slot`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) group: usize,
    pub(crate) slot: usize,
    pub(crate) from: u64,
    pub(crate) len: u64,
    /// From the start of the request.
    pub(crate) payload: u64,
}

/// Every run of a range, one unit after the other.
pub(crate) fn runs_of(map: &VolumeMap, offset: u64, len: u64) -> Vec<Run> {
    let k = u64::from(map.redundancy.data);
    let unit = if k == 1 { EXTENT_BYTES } else { u64::from(map.unit) };
    let index = |value: u64| usize::try_from(value).expect("an index");
    let (mut at, mut runs) = (offset, Vec::new());
    while at < offset + len {
        let here = ((at / unit + 1) * unit).min(offset + len) - at;
        let (group, inside) = (at / map.group_bytes(), at % map.group_bytes());
        let (row, slot) = (inside / (unit * k), inside / unit % k);
        let from = row * unit + at % unit;
        runs.push(Run { group: index(group), slot: index(slot), from, len: here, payload: at - offset });
        at += here;
    }
    runs
}

/// The groups that a range touches.
pub(crate) fn groups_of(map: &VolumeMap, offset: u64, len: u64) -> std::ops::Range<usize> {
    let index = |value: u64| usize::try_from(value).expect("a group").min(map.groups.len());
    index(offset / map.group_bytes())..index((offset + len).div_ceil(map.group_bytes()))
}

/// Whether more slots of one of the groups are out of reach than its parity covers.
pub(crate) fn is_short(
    map: &VolumeMap,
    mut groups: std::ops::Range<usize>,
    out: impl Fn(DonorId) -> bool,
) -> bool {
    groups.any(|group| is_short_in(map, group, &out))
}

/// Whether so many of this group are.
pub(crate) fn is_short_in(map: &VolumeMap, group: usize, out: impl Fn(DonorId) -> bool) -> bool {
    let slots = map.groups[group].slots.iter();
    let lost = slots.filter(|slot| slot.held.is_none_or(|held| out(held.donor))).count();
    lost > map.redundancy.parity as usize
}
