//! What must hold between any two steps. The simulator and the tests call it after each one.

use super::{Coordinator, Timer};
use std::collections::BTreeSet;

impl Coordinator {
    /// # Panics
    /// When the coordinator contradicts itself: a bug.
    pub fn check_invariants(&self) {
        self.check_extents();
        self.check_leases();
        for (id, volume) in &self.volumes {
            let map = &volume.map;
            assert_eq!(map.check(), Ok(()), "every map is whole");
            assert_eq!((map.volume, self.names.get(&map.name)), (*id, Some(id)), "names and ids agree");
            let members = map.groups.iter().flat_map(|group| group.placements()).map(|member| member.donor);
            assert_eq!(
                members.collect::<BTreeSet<_>>(),
                map.donors().collect(),
                "routes are those of the groups"
            );
        }
        assert_eq!(self.names.len(), self.volumes.len());
        assert!(self.wanting.iter().all(|id| self.volumes.contains_key(id)), "homes are for what there is");
        assert!(self.plan_at.is_none_or(|at| self.timers.contains(&(at, Timer::Plan))), "planning goes on");
        for (call, (_, until)) in &self.held {
            assert!(self.timers.contains(&(*until, Timer::Held(*call))), "a held call ends by a timer");
        }
        for call in self.joining.keys() {
            assert!(self.held.contains_key(call), "who waits to be greeted is answered some time");
        }
        let done = self.dirty.is_empty()
            && self.woken.is_empty()
            && self.reaches.is_empty()
            && self.replies.is_empty()
            && self.greets.is_empty()
            && self.unsure.is_empty()
            && self.emptied.is_empty()
            && !self.unsettled
            && !self.replan;
        assert!(done || (self.revision == 1 && self.donors.is_empty()), "a step leaves nothing to do");
    }

    fn check_extents(&self) {
        let mut owned = BTreeSet::new();
        for (id, volume) in &self.volumes {
            let left = volume.retired.iter().map(|retired| retired.placement);
            for member in volume.map.groups.iter().flat_map(|group| group.placements()).chain(left) {
                assert!(owned.insert((member.donor, member.extent)), "{member:?} belongs to one volume");
                let donor = &self.donors[&member.donor];
                let held = donor.held.get(id).is_some_and(|held| held.binary_search(&member.extent).is_ok());
                assert!(held && !donor.free.contains(member.extent), "{member:?} is held and not free");
            }
        }
        for volume in self.volumes.values() {
            let leases = volume.leases.iter().map(|token| &self.leases[token]);
            let named = leases.filter(|lease| !lease.record.read_only).map(|lease| lease.epoch).min();
            let due = |retired: &super::Retired| named.is_none_or(|named| named >= retired.epoch);
            assert!(!volume.retired.iter().any(due), "what nobody can be reading is free");
            let tends = |id| {
                self.donors
                    .get(&id)
                    .is_some_and(|donor| donor.alive && donor.held.contains_key(&volume.map.volume))
            };
            assert!(volume.tender.is_none_or(tends), "who tends a volume lives and holds a part of it");
            for (group, slot) in volume.pending.keys() {
                let slot = &volume.map.groups[*group as usize].slots[*slot as usize];
                assert!(slot.filling.is_some(), "only a filling is waited for");
            }
            let data = volume.map.redundancy.data as usize;
            for group in &volume.map.groups {
                let held = group.slots.iter().filter(|slot| slot.held.is_some()).count();
                assert!(held >= data, "a group keeps as many holders as it can be read from");
            }
        }
        for (id, donor) in &self.donors {
            assert!(donor.offered <= donor.record.extents, "no more is offered than lent");
            let leaves = donor.alive && donor.record.leaving;
            assert!(!leaves || !donor.held.is_empty(), "who wants to go and holds nothing is gone");
            let held: usize = donor.held.values().map(Vec::len).sum();
            let of_maps = owned.range((*id, 0)..=(*id, u32::MAX)).count();
            assert_eq!(held, of_maps, "donor {id} holds what the maps say");
            assert_eq!(held + donor.free.count() as usize, donor.record.extents as usize, "none is lost");
            assert!(donor.revision <= self.revision && !(donor.alive && donor.record.departed));
            assert!(!donor.record.departed || held > 0, "who left is listed for its volumes only");
            assert!(self.timers.contains(&(donor.timer, Timer::Donor(*id))), "silence is noticed");
        }
    }

    fn check_leases(&self) {
        for (token, lease) in &self.leases {
            let volume = self.volumes.get(&lease.record.volume);
            assert!(volume.is_some_and(|volume| volume.leases.contains(token)), "a lease is of a volume");
            assert!(self.timers.contains(&(lease.expires, Timer::Lease(*token))), "a lease ends");
        }
        for volume in self.volumes.values() {
            let leases = volume.leases.iter().map(|token| &self.leases[token].record);
            assert!(leases.clone().filter(|lease| !lease.read_only).count() <= 1, "one writer at a time");
            assert!(leases.clone().all(|lease| !lease.alone || leases.len() == 1), "who fills is alone");
        }
    }
}
