//! Extents that slots have left: their donors keep them until the volume's writer reads elsewhere.
//!
//! Owns that wait. A writer that has not heard of the newer map reads from where a slot was, and without
//! redundancy a refusal there is an error for its user. A reader beside it is refused: what is there gets no
//! more writes. Never: extents of donors that were set aside; those go at once. Invariant: an extent stays
//! with its donor until the writer of the volume has named an epoch in which no slot has it, or is gone.
//! Tests: `tests/coordinator_drain.rs`.

use super::{Coordinator, Key};
use crate::map::{DonorId, LeaseToken, Placement, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// An extent that a slot has left and its donor still keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    /// The extent, and its donor.
    pub placement: Placement,
    /// The first in which no slot has it.
    pub epoch: u64,
}

impl Coordinator {
    /// The slots of the volume's map of now have left these.
    pub(super) fn retire(&mut self, id: VolumeId, left: Vec<Placement>) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let epoch = volume.map.epoch;
        volume.retired.extend(left.into_iter().map(|placement| Retired { placement, epoch }));
    }

    /// The holder of a lease goes by a map of this epoch.
    pub(super) fn names_epoch(&mut self, token: LeaseToken, epoch: u64) {
        let Some(lease) = self.leases.get_mut(&token) else { return };
        let id = lease.record.volume;
        let newest = self.volumes.get(&id).map_or(0, |volume| volume.map.epoch);
        lease.epoch = lease.epoch.max(epoch.min(newest));
        self.free_retired(id);
    }

    /// Gives back what no lease can be reading.
    pub(super) fn free_retired(&mut self, id: VolumeId) {
        let Some(volume) = self.volumes.get(&id).filter(|volume| !volume.retired.is_empty()) else { return };
        // A reader is not waited for: its map is old, and what it would go on reading there is no longer
        // written.
        let leases = volume.leases.iter().filter_map(|token| self.leases.get(token));
        let named = leases.filter(|lease| !lease.record.read_only);
        let named = named.map(|lease| lease.epoch).min().unwrap_or(u64::MAX);
        let due: BTreeSet<Placement> = (volume.retired.iter())
            .filter(|retired| retired.epoch <= named)
            .map(|retired| retired.placement)
            .collect();
        let freed = self.unretire(id, |placement| due.contains(placement));
        self.give_back_retired(id, &freed);
    }

    /// Takes those out of the list.
    pub(super) fn unretire(&mut self, id: VolumeId, goes: impl Fn(&Placement) -> bool) -> Vec<Placement> {
        let Some(volume) = self.volumes.get_mut(&id) else { return Vec::new() };
        let freed = volume.retired.extract_if(.., |retired| goes(&retired.placement));
        freed.map(|retired| retired.placement).collect()
    }

    /// They are free, and their donors shall hear that; the map is as before.
    pub(super) fn give_back_retired(&mut self, id: VolumeId, freed: &[Placement]) {
        if freed.is_empty() {
            return;
        }
        self.give_back(id, freed);
        let revision = self.next_revision();
        self.dirty.insert(Key::Volume(id));
        for donor_id in freed.iter().map(|placement| placement.donor).collect::<BTreeSet<DonorId>>() {
            if let Some(donor) = self.donors.get_mut(&donor_id) {
                donor.revision = revision;
                self.woken.insert(donor_id);
            }
            self.emptied.insert(donor_id);
        }
    }

    /// How many such extents the donor keeps.
    pub(super) fn retired_of(&self, id: DonorId) -> u32 {
        let volumes = self.donors.get(&id).into_iter().flat_map(|donor| donor.held.keys());
        let retired = volumes.filter_map(|volume| self.volumes.get(volume)).flat_map(|v| &v.retired);
        u32::try_from(retired.filter(|retired| retired.placement.donor == id).count()).unwrap_or(u32::MAX)
    }
}
