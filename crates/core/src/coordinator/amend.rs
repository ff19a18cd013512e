//! What a writer found out about its volume: donors that missed a write, fragments that are rebuilt, bad
//! data.
//!
//! Owns the change of the map and its answer, which waits for no donor: the writer acknowledges what a donor
//! missed only once that donor is out of the map, so until then its front end waits. Never: new homes
//! (`repair`). Invariants: a group is never left with fewer than k held slots, so of donors that are excluded
//! together either all go from a group or none; and the answer has no `filling` that its donor has not yet
//! confirmed.
//! Tests: `tests/coordinator_exclude.rs`.

use super::leases::read_only;
use super::{Coordinator, Outcome, door};
use crate::api::{Amend, Answer, Filled, KeptSlot, Refusal, Renewed};
use crate::bad;
use crate::limits::{EXTENT_BYTES, SET_ASIDE_DOUBLINGS_MAX, SET_ASIDE_NS};
use crate::map::{BadRange, DonorId, LeaseToken, Placement, VolumeId, VolumeMap};
use crate::units::Time;
use std::collections::BTreeSet;

impl Coordinator {
    pub(super) fn amend(
        &mut self,
        now: Time,
        name: &str,
        token: LeaseToken,
        amend: Amend,
    ) -> Result<Outcome, Refusal> {
        let id = self.check_lease(name, token)?;
        if self.leases.get(&token).is_none_or(|lease| lease.record.read_only) {
            return if amend.is_empty() { self.vouch(id, amend.epoch) } else { Err(read_only(token)) };
        }
        let amend = door::amend(amend);
        let excluded: BTreeSet<DonorId> = amend.exclude.iter().map(|(donor, _)| *donor).collect();
        let keep: BTreeSet<KeptSlot> = amend.keep.into_iter().collect();
        let mut freed = self.exclude(now, id, &excluded, &keep);
        for (donor, why) in &amend.exclude {
            if freed.iter().any(|placement| placement.donor == *donor) {
                self.note_set_aside(id, token, *donor, why);
            }
        }
        freed.extend(self.unretire(id, |place| excluded.contains(&place.donor)));
        let left = self.fill(id, amend.epoch, &amend.filled);
        let filled = left.is_some();
        let marked = self.mark_bad(id, amend.bad, amend.rewritten);
        if marked {
            self.note_lost_data(id);
        }
        if filled || marked || !freed.is_empty() {
            self.give_back(id, &freed);
            self.slots_changed(now, id, &freed);
            self.retire(id, left.unwrap_or_default());
            self.wanting.insert(id);
            self.replan = true;
        }
        self.names_epoch(token, amend.epoch);
        let map = self.usable_map(id);
        Ok(Outcome::Answer(Answer::Renewed(Renewed { map, ..Renewed::default() })))
    }

    /// A reader asks whether the map that it read by is the newest: that map, or none, and the newer one
    /// comes by `Renew`.
    fn vouch(&self, id: VolumeId, epoch: u64) -> Result<Outcome, Refusal> {
        let map = self.volumes.get(&id).map(|volume| &volume.map);
        let map = map.filter(|map| map.epoch == epoch).cloned();
        Ok(Outcome::Answer(Answer::Renewed(Renewed { map, ..Renewed::default() })))
    }

    /// Takes the donors out of the volume's slots, as far as redundancy allows; what that frees.
    fn exclude(
        &mut self,
        now: Time,
        id: VolumeId,
        excluded: &BTreeSet<DonorId>,
        keep: &BTreeSet<KeptSlot>,
    ) -> Vec<Placement> {
        let mut freed = Vec::new();
        let Some(volume) = self.volumes.get_mut(&id).filter(|_| !excluded.is_empty()) else { return freed };
        let data = volume.map.redundancy.data as usize;
        let goes = |placement: &Placement| excluded.contains(&placement.donor);
        for (g, group) in (0..).zip(&mut volume.map.groups) {
            let stay = group.slots.iter().filter(|slot| slot.held.is_some_and(|held| !goes(&held))).count();
            for (s, slot) in (0..).zip(&mut group.slots) {
                if let Some(filling) = slot.filling.take_if(|filling| goes(filling)) {
                    volume.pending.remove(&(g, s));
                    freed.push(filling);
                }
                let kept = keep.contains(&KeptSlot { group: g, slot: s });
                freed.extend(slot.held.take_if(|held| stay >= data && !kept && goes(held)));
            }
        }
        self.note_given_up(&freed);
        for donor in freed.iter().map(|placement| placement.donor).collect::<BTreeSet<DonorId>>() {
            let Some(donor) = self.donors.get_mut(&donor) else { continue };
            donor.rest_until = now + (SET_ASIDE_NS << donor.set_aside.min(SET_ASIDE_DOUBLINGS_MAX));
            donor.set_aside = donor.set_aside.saturating_add(1);
        }
        freed
    }

    /// Makes what is filled the holder of its slot; what those slots left, if there was any. Only by the
    /// newest map that its writer can have been given: by a newer one it may have taken that back.
    fn fill(&mut self, id: VolumeId, epoch: u64, filled: &[Filled]) -> Option<Vec<Placement>> {
        let volume = self.volumes.get_mut(&id).filter(|volume| volume.newest_given() == epoch)?;
        let mut left = None;
        for Filled { group, slot: at, placement } in filled {
            let group_of = volume.map.groups.get_mut(*group as usize);
            let Some(slot) = group_of.and_then(|of| of.slots.get_mut(*at as usize)) else { continue };
            if slot.filling != Some(*placement) {
                continue;
            }
            left.get_or_insert_with(Vec::new).extend(slot.held.replace(*placement));
            slot.filling = None;
            volume.pending.remove(&(*group, *at));
            if let Some(donor) = self.donors.get_mut(&placement.donor) {
                donor.set_aside = 0;
            }
        }
        left
    }

    /// True when the list of bad ranges is another one now.
    fn mark_bad(&mut self, id: VolumeId, more: Vec<BadRange>, rewritten: Vec<BadRange>) -> bool {
        let Some(volume) = self.volumes.get_mut(&id) else { return false };
        let (groups, data) = (volume.map.groups.len(), volume.map.redundancy.data);
        let inside = |range: &BadRange| {
            (range.group as usize) < groups
                && range.slot < data
                && range.from < range.to
                && u64::from(range.to) <= EXTENT_BYTES
        };
        if more.is_empty() && rewritten.is_empty() {
            return false;
        }
        let before = (volume.map.bad.clone(), volume.map.unreadable.clone());
        let rewritten: Vec<BadRange> = rewritten.into_iter().filter(inside).collect();
        bad::subtract(&mut volume.map.unreadable, rewritten.iter().copied());
        bad::subtract(&mut volume.map.bad, rewritten);
        bad::merge(&mut volume.map.bad, more.into_iter().filter(inside));
        (&volume.map.bad, &volume.map.unreadable) != (&before.0, &before.1)
    }

    /// The map as the writer may use it at once: without fillings on donors that have not heard of them.
    /// Those come with a later epoch, by `Renew`.
    fn usable_map(&mut self, id: VolumeId) -> Option<VolumeMap> {
        let volume = self.volumes.get_mut(&id)?;
        let donors = &self.donors;
        volume.pending.retain(|(group, slot), revision| {
            let slot = &volume.map.groups[*group as usize].slots[*slot as usize];
            let donor = slot.filling.and_then(|filling| donors.get(&filling.donor));
            donor.is_some_and(|donor| donor.alive && donor.confirmed < *revision)
        });
        let mut map = volume.map.clone();
        if volume.pending.is_empty() {
            return Some(map);
        }
        for (group, slot) in volume.pending.keys() {
            map.groups[*group as usize].slots[*slot as usize].filling = None;
        }
        prune_routes(&mut map);
        // One epoch is one map: this one is between what the writer had and the one with the fillings.
        map.epoch += 1;
        volume.map.epoch += 2;
        volume.between = Some(map.epoch);
        self.dirty.insert(super::Key::Volume(id));
        self.touch_volume(id);
        Some(map)
    }
}

/// Leaves the routes of donors that the slots name.
pub(super) fn prune_routes(map: &mut VolumeMap) {
    let named: BTreeSet<DonorId> =
        map.groups.iter().flat_map(|group| group.placements()).map(|placement| placement.donor).collect();
    map.routes.retain(|donor, _| named.contains(donor));
}
