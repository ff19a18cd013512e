//! What would become of a volume if one more host went: how much of it the others could take.
//!
//! Owns that question, which `create`, `grow` and `show` answer. Never: changes; or what is missing already
//! (`status`). Invariant: homes are chosen as `repair` would, for all that the host holds of any volume, so
//! that two volumes do not count on the same room. Tests: `tests/coordinator_spare.rs`.

use super::Coordinator;
use super::donors::Donor;
use super::repair::{Home, beside, choose};
use super::volumes::Volume;
use crate::api::{Rehearsal, VolumeDetail, VolumeHealth};
use crate::limits::REHEARSAL_LOOKS_MAX;
use crate::map::{DonorId, Group, VolumeId};
use std::collections::BTreeMap;

/// A slot on the host that goes.
struct Orphan<'a> {
    volume: VolumeId,
    group: &'a Group,
    slot: usize,
}

impl Coordinator {
    /// All about a volume.
    pub(super) fn rehearsed(&self, volume: &Volume) -> VolumeDetail {
        let detail = self.detail(volume);
        let is_there = matches!(detail.status.health, VolumeHealth::Whole | VolumeHealth::Crowded);
        let protected = detail.status.redundancy.parity > 0;
        let rehearsal = if is_there && protected { self.rehearse(volume.map.volume) } else { None };
        VolumeDetail { rehearsal, ..detail }
    }

    /// Of all hosts the one whose loss would leave most of the volume's fragments without a place.
    fn rehearse(&self, id: VolumeId) -> Option<Rehearsal> {
        let homes = self.homes(id, |_| true);
        let orphans = self.orphans_by_machine();
        let looks = orphans.values().map(|of_host| of_host.len() * homes.len()).sum::<usize>();
        if looks as u64 > REHEARSAL_LOOKS_MAX {
            return None;
        }
        let without = |(machine, orphans): (&&str, &Vec<Orphan<'_>>)| {
            let slots = orphans.iter().filter(|orphan| orphan.volume == id).count() as u64;
            if slots == 0 {
                return None;
            }
            let mut homes: Vec<Home<'_>> =
                homes.iter().filter(|home| home.host != *machine).cloned().collect();
            let homeless = orphans.iter().filter(|orphan| !self.finds_home(orphan, &mut homes));
            let slots_homeless = homeless.filter(|orphan| orphan.volume == id).count() as u64;
            Some(Rehearsal { host: self.host_named(machine), slots, slots_homeless })
        };
        orphans.iter().filter_map(without).max_by_key(|rehearsal| (rehearsal.slots_homeless, rehearsal.slots))
    }

    /// What each machine holds of volumes that could be rebuilt, the oldest first.
    fn orphans_by_machine(&self) -> BTreeMap<&str, Vec<Orphan<'_>>> {
        let mut volumes: Vec<&Volume> =
            self.volumes.values().filter(|volume| volume.map.redundancy.parity > 0).collect();
        volumes.sort_by_key(|volume| volume.order);
        let mut orphans: BTreeMap<&str, Vec<Orphan<'_>>> = BTreeMap::new();
        for volume in volumes {
            for group in &volume.map.groups {
                for (slot, of) in group.slots.iter().enumerate() {
                    let machine = of.held.and_then(|held| self.donors.get(&held.donor)).map(Donor::machine);
                    let orphan = Orphan { volume: volume.map.volume, group, slot };
                    orphans.entry(machine.unwrap_or_default()).or_default().push(orphan);
                }
            }
        }
        orphans.remove("");
        orphans
    }

    /// Takes room for it on a host that has none of its group.
    fn finds_home(&self, orphan: &Orphan<'_>, homes: &mut [Home<'_>]) -> bool {
        let seen: Vec<DonorId> = orphan.group.placements().map(|place| place.donor).collect();
        let beside = beside(orphan.group, orphan.slot, &self.donors);
        choose(homes, &seen, &beside).is_some_and(|(_, shared)| shared == 0)
    }
}
