//! Which requests may fail, and how.
//!
//! Owns: the simulator's own (naive) layout, which says whose memory a range is; the memory of which donors and
//! links were in trouble until when; which leases were taken over. Never: bytes (`oracle`).
//! Key rule: a request fails only when a donor that holds a part of its range is dead, or was in trouble while
//! the request was on its way or shortly before; and it does not succeed when such a donor died before it began.

use crate::oracle::Order;
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, LeaseToken, VolumeMap};
use cheetah_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How long after a trouble is over a client may still be without the donor: a retry each second, each with its
/// deadline for connecting.
const GRACE_NS: u64 = 8 * SECOND_NS;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// When, in order and time.
    pub(crate) dead: BTreeMap<DonorId, (Order, Time)>,
    donor_trouble: BTreeMap<DonorId, Time>,
    client_trouble: BTreeMap<usize, Time>,
    /// By client host.
    link_trouble: BTreeMap<(usize, DonorId), Time>,
    unaware: BTreeSet<(usize, DonorId)>,
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

    pub(crate) fn link_in_trouble(&mut self, client: usize, donor: DonorId, until: Time) {
        extend(&mut self.link_trouble, (client, donor), until);
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

/// The donors that hold a range, by division and remainder, one unit after the other.
pub(crate) fn holders(map: &VolumeMap, offset: u64, len: u64) -> BTreeSet<DonorId> {
    let (k, unit) = (u64::from(map.redundancy.data), u64::from(map.unit));
    let (group_bytes, end) = (map.group_bytes(), offset + len);
    let mut found = BTreeSet::new();
    let mut at = offset;
    while at < end {
        let group_end = (at / group_bytes + 1) * group_bytes;
        let group = &map.groups[usize::try_from(at / group_bytes).expect("a group")];
        for _ in 0..k {
            if at < end.min(group_end) {
                let column = (at % group_bytes) / unit % k;
                let slot = group.slots[usize::try_from(column).expect("a column")];
                found.extend(slot.held.map(|held| held.donor));
                at = (at / unit + 1) * unit;
            }
        }
        at = at.max(group_end.min(end));
    }
    found
}
