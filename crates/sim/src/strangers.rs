//! Another pool's coordinator at the address of this one: other state, or none at all.
//!
//! Owns: when it comes and goes, what it stores, and the rule that no donor gives up by its word what it
//! holds for its own pool. Never: the home coordinator's records, which nobody changes meanwhile. Key rule:
//! once its own coordinator is back all is as before. Called by `faults` and `coordinator`. Tests: the
//! planted bug.

use crate::bugs::Bug;
use crate::world::{Ev, World, say};
use cheetah_core::coordinator::{Coordinator, Key, Record};
use cheetah_core::limits::{MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, PoolId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Stranger {
    pub(crate) store: BTreeMap<Key, Record>,
    /// Extents that donors hold by the home coordinator's records.
    lent: BTreeSet<(DonorId, u32)>,
}

impl World {
    pub(crate) fn stranger_comes(&mut self) {
        if self.coordinator.machine.is_none() || self.coordinator.stranger.is_some() {
            return;
        }
        self.count("fault: a stranger's coordinator at its address");
        let length = self.rng.skewed(SECOND_NS, 90 * SECOND_NS);
        self.verdict.coordinator_in_trouble(self.now + length + 5 * SECOND_NS);
        say!(self, "another pool's coordinator takes the address for {} ms", length / MILLISECOND_NS);
        self.coordinator_ends();
        let mut lent = BTreeSet::new();
        for map in self.stored_maps() {
            let places = map.groups.iter().flat_map(|group| group.placements());
            let holds = |id: DonorId, extent: u32| {
                let donor = self.donors.iter().find(|donor| donor.id == id && donor.alive);
                donor.is_some_and(|donor| donor.access.owner(extent) == Some(map.volume))
            };
            lent.extend(places.map(|place| (place.donor, place.extent)).filter(|(id, at)| holds(*id, *at)));
        }
        self.coordinator.stranger = Some(Stranger { store: BTreeMap::new(), lent });
        let gap = self.rng.range(5, 1_500) * MILLISECOND_NS;
        self.after(gap, Ev::StrangerStart);
        self.after(gap + length, Ev::StrangerEnd);
    }

    pub(crate) fn stranger_starts(&mut self) {
        if self.coordinator.stranger.is_some() && self.coordinator.machine.is_none() {
            let pool = PoolId(self.rng.draw());
            self.coordinator.machine = Some(Coordinator::new(pool));
        }
    }

    /// The home coordinator comes back a while later.
    pub(crate) fn stranger_goes(&mut self) {
        if self.coordinator.stranger.is_none() {
            return;
        }
        self.coordinator_ends();
        self.coordinator.stranger = None;
        let gap = self.rng.range(1, 2_000) * MILLISECOND_NS;
        self.after(gap, Ev::CoordinatorStart);
    }

    /// Whether a donor may wipe these: it was told to go, or they were not lent to its own pool.
    pub(crate) fn check_wipe(&mut self, d: usize, extents: &[u32]) {
        let donor = &self.donors[d];
        let Some(stranger) = self.coordinator.stranger.as_ref().filter(|_| !donor.leaving) else { return };
        let lent = |extent: &&u32| stranger.lent.contains(&(donor.id, **extent));
        if let Some(extent) = extents.iter().find(lent) {
            let what = format!("donor {d} wipes extent {extent} by the word of another pool's coordinator");
            self.fail(what);
        }
    }

    /// A planted bug: a donor that another pool refuses begins anew.
    pub(crate) fn obey_the_stranger(&mut self, d: usize) {
        if self.bug == Some(Bug::StrangerObeyed) && self.coordinator.stranger.is_some() {
            let donor = &mut self.donors[d];
            donor.memory = crate::bytes::Memory::default();
        }
    }
}
