//! New homes for fragments: of slots that nobody holds, of donors that leave or must hold less, and of hosts
//! that hold more of a group than another could.
//!
//! Owns which slot gets which `filling`, and taking back what can be of no use. Never: the copying, which the
//! writer of the volume does, or the question whom to believe (`amend`).
//! Invariants: no donor is in a group twice; a filling goes to a donor that lives, and that has confirmed
//! every extent of this volume that was ever taken from it, so that what it is given is known to be wiped; a
//! group with fewer than k holders is left alone, unless a source gives anew what it had: then its slot has a
//! new holder at once, of which all is absent; a fragment leaves its host for the sake of its group only
//! when that spreads the group further, and nothing is missing; a step plans a bounded number. Each round
//! costs a volume one epoch. Called at the end of each step. Tests: `tests/coordinator_repair.rs`,
//! `tests/coordinator_drain.rs`.

use super::donors::Donor;
use super::volumes::Volume;
use super::{Coordinator, Timer};
use crate::limits::{STEP_FILLINGS_MAX, TEND_SILENCE_NS, VOLUME_FILLINGS_MAX};
use crate::map::{DonorId, Group, Placement, Slot, VolumeId};
use crate::units::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A donor that can take fragments.
#[derive(Clone, Debug)]
pub(super) struct Home<'a> {
    pub(super) donor: DonorId,
    pub(super) host: &'a str,
    pub(super) room: u32,
    /// How often a writer set it aside since it last completed something.
    set_aside: u32,
}

/// What one round has done so far.
#[derive(Debug, Default)]
struct Round {
    /// Extents beyond what the donor's owner can spare, and not on their way to others yet.
    over: BTreeMap<DonorId, u32>,
    changed: BTreeMap<VolumeId, Vec<Placement>>,
    /// Of these, what slots have left at donors that live.
    left: BTreeMap<VolumeId, Vec<Placement>>,
    planned: usize,
}

/// What one round chooses for one volume.
struct Plan<'a> {
    donors: &'a BTreeMap<DonorId, Donor>,
    homes: Vec<Home<'a>>,
    budget: usize,
    chosen: Vec<(u32, u32, DonorId)>,
}

/// What would become of a volume's fragments on a donor that goes.
pub(super) struct Rehomed<'a> {
    pub(super) volume: &'a Volume,
    /// No other donor could take them.
    pub(super) homeless: usize,
    /// They would come to a machine that has one of their group.
    pub(super) crowded: usize,
}

impl Plan<'_> {
    /// Homes for slots that nobody holds, or whose holder shall not go on holding them. True when some find
    /// none.
    fn home_the_due(&mut self, volume: &Volume, round: &mut Round) -> bool {
        let data = volume.map.redundancy.data as usize;
        let mut wants = false;
        for (g, group) in (0..).zip(&volume.map.groups) {
            let mut group = std::borrow::Cow::Borrowed(group);
            for s in 0..group.slots.len() {
                let slot = group.slots[s];
                let moves = |held: Placement| {
                    self.donors.get(&held.donor).is_some_and(|donor| donor.alive && donor.record.leaving)
                        || round.over.get(&held.donor).is_some_and(|over| *over > 0)
                };
                let due = slot.filling.is_none() && slot.held.is_none_or(moves);
                let is_read_anew = slot.held.is_none() && volume.map.is_filled_later();
                if !due || (sound(&group, self.donors) < data && !is_read_anew) {
                    continue;
                }
                let Some(home) = self.home(&group, s, round, |_| true) else {
                    wants = true;
                    continue;
                };
                if let Some(over) = slot.held.and_then(|held| round.over.get_mut(&held.donor)) {
                    take_one(over);
                }
                self.choose(g, s, home, round, group.to_mut());
            }
        }
        wants
    }

    /// Homes on other hosts for slots of groups of which one host has more than it need have. True when one
    /// host has two.
    fn spread(&mut self, volume: &Volume, round: &mut Round) -> bool {
        let mut wants = false;
        for (g, group) in (0..).zip(&volume.map.groups).filter(|_| volume.map.redundancy.parity > 0) {
            let lives = |slot: &Slot| {
                slot.filling.is_none()
                    && slot.held.is_some_and(|held| self.donors.get(&held.donor).is_some_and(|d| d.alive))
            };
            // What is being given a home in this round is spread in the next one.
            let is_chosen = self.chosen.iter().any(|(chosen, ..)| *chosen == g);
            if is_chosen || !group.slots.iter().all(lives) {
                continue;
            }
            let mut group = std::borrow::Cow::Borrowed(group);
            for s in 0..group.slots.len() {
                let host =
                    group.slots[s].held.and_then(|held| self.donors.get(&held.donor)).map(Donor::machine);
                let here = host.map_or(0, |host| shared(&beside(&group, s, self.donors), host));
                if here == 0 {
                    continue;
                }
                match self.home(&group, s, round, |there| there < here) {
                    Some(home) => self.choose(g, s, home, round, group.to_mut()),
                    None => wants = true,
                }
            }
        }
        wants
    }

    /// Where slot `s` of the group can go, as far as this round may choose and `fits` how many of the group
    /// are there.
    fn home(
        &mut self,
        group: &Group,
        s: usize,
        round: &Round,
        fits: impl Fn(usize) -> bool,
    ) -> Option<DonorId> {
        if self.budget == 0 || round.planned >= STEP_FILLINGS_MAX {
            return None;
        }
        let seen: Vec<DonorId> = group.placements().map(|place| place.donor).collect();
        let beside = beside(group, s, self.donors);
        let (home, there) = choose(&mut self.homes, &seen, &beside)?;
        if fits(there) {
            return Some(home);
        }
        self.homes.iter_mut().filter(|other| other.donor == home).for_each(|other| other.room += 1);
        None
    }

    fn choose(&mut self, g: u32, s: usize, home: DonorId, round: &mut Round, group: &mut Group) {
        // Which extent is not known yet; what else the group gets is chosen beside it.
        group.slots[s].filling = Some(Placement { donor: home, extent: 0 });
        self.chosen.push((g, s as u32, home));
        (self.budget, round.planned) = (self.budget - 1, round.planned + 1);
    }
}

impl Coordinator {
    /// Plans what the step made necessary or possible.
    pub(super) fn plan(&mut self, now: Time) {
        if !std::mem::take(&mut self.replan) || self.wanting.is_empty() {
            return;
        }
        // After a restart: the first donor to be heard is not the best home for everything. Comes back here
        // when they are heard, or lost.
        if self.donors.values().any(|donor| donor.alive && !donor.heard) {
            return;
        }
        let mut order: Vec<(bool, u64, VolumeId)> = self
            .wanting
            .iter()
            .filter_map(|id| Some((self.writer(*id).is_none(), self.volumes.get(id)?.order, *id)))
            .collect();
        self.wanting.retain(|id| self.volumes.contains_key(id));
        // Those first that somebody is there to move.
        order.sort_unstable();
        let mut round = Round { over: self.overfull(), ..Round::default() };
        for (_, _, id) in &order {
            self.take_back(*id, &mut round);
        }
        self.discount_moves(&mut round);
        for (_, _, id) in &order {
            if round.planned < STEP_FILLINGS_MAX
                && !self.plan_volume(now, *id, &mut round)
                && self.gives_up_silent_at(*id).is_none()
            {
                self.wanting.remove(id);
            }
        }
        self.tell_slots(now, &mut round);
        for donor in std::mem::take(&mut self.emptied) {
            self.tidy_donor(now, donor);
        }
        self.plan_again(now, round.planned);
        // Set by donors that had been waiting to go and are empty now: they leave no slot behind.
        self.replan = false;
    }

    /// Everybody hears what became of slots; what those left stays with its donors for as long as it may be
    /// read.
    fn tell_slots(&mut self, now: Time, round: &mut Round) {
        for (id, freed) in std::mem::take(&mut round.changed) {
            self.slots_changed(now, id, &freed);
            self.retire(id, round.left.remove(&id).unwrap_or_default());
            self.free_retired(id);
        }
    }

    /// Sets the timer for what this round could not do, though time alone will let it.
    fn plan_again(&mut self, now: Time, planned: usize) {
        if self.wanting.is_empty() {
            return;
        }
        let rested = self.donors.values().filter(|donor| donor.alive && donor.rest_until > now);
        let rested = rested.map(|donor| donor.rest_until).min();
        let silent = self.wanting.iter().filter_map(|id| self.gives_up_silent_at(*id)).min();
        let later = rested.into_iter().chain(silent).min();
        let at = if planned >= STEP_FILLINGS_MAX { Some(now + 1) } else { later };
        if let Some(old) = self.plan_at.take() {
            self.timers.remove(&(old, Timer::Plan));
        }
        self.plan_at = at;
        self.timers.extend(at.map(|at| (at, Timer::Plan)));
    }

    /// How many extents each live donor holds beyond its offer.
    fn overfull(&self) -> BTreeMap<DonorId, u32> {
        let live = self.donors.iter().filter(|(_, donor)| donor.alive && !donor.record.leaving);
        let over = live.filter(|(_, donor)| donor.excess() > 0);
        over.map(|(id, donor)| (*id, donor.excess().saturating_sub(self.retired_of(*id)))).collect()
    }

    /// When what donors that are silent hold of a volume is read anew from its source.
    fn gives_up_silent_at(&self, id: VolumeId) -> Option<Time> {
        let volume = self.volumes.get(&id).filter(|volume| volume.map.is_filled_later())?;
        let silent = |donor: &DonorId| self.donors.get(donor).is_some_and(|it| !it.alive && !it.ended);
        let at = volume.map.donors().filter(silent).map(|donor| self.given_up_at(donor));
        at.filter(|at| *at > self.now).min()
    }

    /// Takes back fillings that a donor shall not have any more, which costs nothing that was acknowledged,
    /// and what donors held that are gone for good, where the others suffice.
    fn take_back(&mut self, id: VolumeId, round: &mut Round) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let data = volume.map.redundancy.data as usize;
        // What a source still gives is no loss. So nobody is waited for where another has room.
        let is_read_anew = volume.map.is_filled_later();
        let (now, donors) = (self.now, &self.donors);
        let on = volume.map.medium;
        let has_room = || {
            let open = |donor: &Donor| donor.alive && donor.heard && donor.room() > 0;
            donors.values().any(|donor| donor.record.medium == on && open(donor))
        };
        let waits_for_none = is_read_anew && has_room();
        let is_silent = |id: DonorId| {
            let donor = donors.get(&id);
            donor.is_some_and(|donor| !donor.alive && donor.last_seen + TEND_SILENCE_NS <= now)
        };
        let (mut freed, mut left) = (Vec::new(), Vec::new());
        for (g, group) in (0..).zip(&mut volume.map.groups) {
            let (sound, living) = (sound(group, &self.donors), living(group, &self.donors));
            for (s, slot) in (0..).zip(&mut group.slots) {
                let unwanted = slot.filling.take_if(|filling| {
                    let donor = self.donors.get(&filling.donor);
                    let goes = donor
                        .is_none_or(|donor| donor.record.departed || donor.record.leaving || donor.ended);
                    goes || round.over.get_mut(&filling.donor).is_some_and(take_one)
                });
                if unwanted.is_some() {
                    volume.pending.remove(&(g, s));
                }
                // A writer that knows no map between would take one that it is given again for the same.
                let lives = |filling: &Placement| self.donors.get(&filling.donor).is_some_and(|it| it.alive);
                match unwanted {
                    Some(filling) if lives(&filling) => left.push(filling),
                    gone => freed.extend(gone),
                }
                freed.extend(slot.held.take_if(|held| {
                    let gone = (sound >= data || is_read_anew) && departed(&self.donors, held.donor);
                    let gone = gone || ((living >= data || is_read_anew) && ended(&self.donors, held.donor));
                    gone || (waits_for_none && is_silent(held.donor))
                }));
            }
        }
        if freed.is_empty() && left.is_empty() {
            return;
        }
        self.give_back(id, &freed);
        round.changed.entry(id).or_default().extend(freed);
        round.left.entry(id).or_default().extend(left);
    }

    /// What is on its way off an overfull donor already need not be chosen again.
    fn discount_moves(&self, round: &mut Round) {
        let of: BTreeSet<VolumeId> = (round.over.keys())
            .filter_map(|id| self.donors.get(id))
            .flat_map(|donor| donor.held.keys().copied())
            .collect();
        for volume in of.iter().filter_map(|id| self.volumes.get(id)) {
            for slot in volume.map.groups.iter().flat_map(|group| &group.slots) {
                let moving = slot.held.filter(|_| slot.filling.is_some());
                if let Some(left) = moving.and_then(|held| round.over.get_mut(&held.donor)) {
                    *left = left.saturating_sub(1);
                }
            }
        }
    }

    /// True when some slot still wants a home.
    fn plan_volume(&mut self, now: Time, id: VolumeId, round: &mut Round) -> bool {
        let Some(volume) = self.volumes.get(&id) else { return false };
        let filling = (volume.map.groups.iter().flat_map(|group| &group.slots))
            .filter(|slot| slot.filling.is_some())
            .count();
        // Another's server would give zeros for what is absent, and keeps nothing but bytes.
        let ours_only = volume.map.backing.is_some() || volume.map.encrypted;
        let encrypted = volume.map.encrypted;
        let may = |donor: &Donor| {
            (!ours_only || donor.record.foreign_export.is_none()) && !(encrypted && donor.lacks_auths())
        };
        let mut plan = Plan {
            donors: &self.donors,
            homes: self.homes(id, |donor| donor.rest_until <= now && donor.has_wiped(id) && may(donor)),
            budget: VOLUME_FILLINGS_MAX.saturating_sub(filling),
            chosen: Vec::new(),
        };
        let mut wants = plan.home_the_due(volume, round);
        if !wants {
            wants = plan.spread(volume, round);
        }
        let chosen = plan.chosen;
        if !chosen.is_empty() {
            self.give(id, &chosen);
            round.changed.entry(id).or_default();
        }
        wants
    }

    /// Gives the slots the lowest free extents of their new donors.
    fn give(&mut self, id: VolumeId, chosen: &[(u32, u32, DonorId)]) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        for (g, s, donor) in chosen {
            let extent = self.donors.get_mut(donor).and_then(|donor| donor.take_lowest(id));
            let place = extent.map(|extent| Placement { donor: *donor, extent });
            let is_read_anew = volume.map.is_filled_later();
            let slot = &mut volume.map.groups[*g as usize].slots[*s as usize];
            if slot.held.is_none() && is_read_anew {
                // All of it is absent there, which is what its holder shall say.
                slot.held = place;
                continue;
            }
            slot.filling = place;
            // The revision that `slots_changed` gives; its donor has heard of it when it confirms that.
            volume.pending.insert((*g, *s), self.revision + 1);
        }
    }

    /// Live donors with room, as far as `may` lets them and the volume's writer can reach them.
    pub(super) fn homes(&self, id: VolumeId, may: impl Fn(&Donor) -> bool) -> Vec<Home<'_>> {
        let unreachable = self.writer(id).map(|writer| &writer.lost);
        let is_reached =
            |donor: DonorId| !unreachable.is_some_and(|lost| lost.iter().any(|(id, _)| *id == donor));
        let on = self.volumes.get(&id).map(|volume| volume.map.medium);
        let live = self.donors.iter().filter(|(id, donor)| {
            let fits = on.is_none_or(|on| donor.record.medium == on);
            fits && donor.alive && donor.heard && donor.room() > 0 && may(donor) && is_reached(**id)
        });
        live.map(|(id, donor)| {
            let (host, set_aside) = (donor.machine(), donor.set_aside);
            Home { donor: *id, host, room: donor.room(), set_aside }
        })
        .collect()
    }

    /// Gives extents back to their donors. `slots_changed` afterwards.
    pub(super) fn give_back(&mut self, id: VolumeId, freed: &[Placement]) {
        for Placement { donor, extent } in freed {
            let Some(donor) = self.donors.get_mut(donor) else { continue };
            donor.give_back(id, *extent);
            // At least the revision by which it will have wiped it.
            donor.wipes.insert(id, self.revision + 1);
        }
    }

    /// After slots of the volume changed: its routes and epoch, the store, and word to the donors that it
    /// has, and to those that it had and that shall wipe.
    pub(super) fn slots_changed(&mut self, now: Time, id: VolumeId, freed: &[Placement]) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        volume.map.epoch += 1;
        let needed = |held: Placement| self.donors.get(&held.donor).is_some_and(|donor| donor.excess() > 0);
        let slots = volume.map.groups.iter().flat_map(|group| &group.slots);
        let hurry = slots.into_iter().any(|slot| slot.filling.is_some() && slot.held.is_some_and(needed));
        volume.map.hurry = hurry;
        let before: Vec<DonorId> = volume.map.donors().collect();
        super::amend::prune_routes(&mut volume.map);
        self.map_changed(id);
        let had = freed.iter().map(|placement| placement.donor).chain(before);
        for donor_id in had.collect::<BTreeSet<DonorId>>() {
            if let Some(donor) = self.donors.get_mut(&donor_id) {
                donor.revision = self.revision;
                self.woken.insert(donor_id);
            }
            self.tidy_donor(now, donor_id);
        }
    }

    /// Takes a donor that is gone for good out of every slot that the others can do without.
    pub(super) fn abandon(&mut self, now: Time, id: DonorId) {
        let Some(donor) = self.donors.get(&id) else { return };
        for volume in donor.held.keys().copied().collect::<Vec<_>>() {
            let mut round = Round::default();
            self.take_back(volume, &mut round);
            self.wanting.insert(volume);
            round.changed.values().for_each(|freed| self.note_given_up(freed));
            self.tell_slots(now, &mut round);
            let freed = self.unretire(volume, |place| place.donor == id);
            self.give_back_retired(volume, &freed);
        }
        self.replan = true;
    }

    /// These were taken from their donors, which do not answer.
    pub(super) fn note_given_up(&mut self, freed: &[Placement]) {
        for placement in freed {
            if let Some(donor) = self.donors.get_mut(&placement.donor) {
                donor.given_up = donor.given_up.saturating_add(1);
            }
        }
    }

    /// What the donor holds may have to go elsewhere now.
    pub(super) fn unsettle_donor(&mut self, id: DonorId) {
        if let Some(donor) = self.donors.get(&id) {
            self.wanting.extend(donor.held.keys().copied());
            self.replan = true;
        }
    }

    /// For each volume of the donor, what would become of its fragments, were all to move now.
    pub(super) fn rehome(&self, id: DonorId) -> Vec<Rehomed<'_>> {
        let Some(donor) = self.donors.get(&id) else { return Vec::new() };
        let mut homes: Vec<Home<'_>> = self.homes_beside(id);
        let mut each = Vec::new();
        for volume in donor.held.keys().filter_map(|volume| self.volumes.get(volume)) {
            let redundancy = volume.map.redundancy;
            let (mut homeless, mut crowded) = (0, 0);
            for group in &volume.map.groups {
                let is_here = |slot: &Slot| slot.held.is_some_and(|held| held.donor == id);
                let Some(at) = group.slots.iter().position(is_here) else { continue };
                let beside = beside(group, at, &self.donors);
                if let Some(filling) = group.slots[at].filling {
                    let machine = self.donors.get(&filling.donor).map(Donor::machine);
                    let is_crowded = machine.is_some_and(|machine| shared(&beside, machine) > 0);
                    crowded += usize::from(is_crowded && redundancy.parity > 0);
                    continue;
                }
                let seen: Vec<DonorId> = group.placements().map(|place| place.donor).collect();
                let is_whole = sound(group, &self.donors) >= redundancy.data as usize;
                let home = if is_whole { choose(&mut homes, &seen, &beside) } else { None };
                match home {
                    Some((_, shared)) => crowded += usize::from(shared > 0 && redundancy.parity > 0),
                    None => homeless += 1,
                }
            }
            each.push(Rehomed { volume, homeless, crowded });
        }
        each
    }

    /// How many fragments of the volume have no holder that lives, and no other donor that could take them.
    pub(super) fn homeless_of(&self, volume: &Volume) -> usize {
        let mut homes = self.homes(volume.map.volume, |_| true);
        let lives = |place: &Placement| self.donors.get(&place.donor).is_some_and(|donor| donor.alive);
        let mut homeless = 0;
        for group in &volume.map.groups {
            let mut seen: Vec<DonorId> = group.placements().filter(lives).map(|place| place.donor).collect();
            for (at, slot) in group.slots.iter().enumerate() {
                if slot.held.iter().chain(&slot.filling).any(lives) {
                    continue;
                }
                match choose(&mut homes, &seen, &beside(group, at, &self.donors)) {
                    Some((home, _)) => seen.push(home),
                    None => homeless += 1,
                }
            }
        }
        homeless
    }

    fn homes_beside(&self, id: DonorId) -> Vec<Home<'_>> {
        let on = self.donors.get(&id).map(|donor| donor.record.medium).unwrap_or_default();
        let others = self.donors.iter().filter(|(other, donor)| {
            **other != id && donor.record.medium == on && donor.alive && donor.heard
        });
        others
            .map(|(other, donor)| Home {
                donor: *other,
                host: donor.machine(),
                room: donor.room(),
                set_aside: 0,
            })
            .collect()
    }
}

fn departed(donors: &BTreeMap<DonorId, Donor>, id: DonorId) -> bool {
    donors.get(&id).is_none_or(|donor| donor.record.departed)
}

fn ended(donors: &BTreeMap<DonorId, Donor>, id: DonorId) -> bool {
    donors.get(&id).is_some_and(|donor| donor.ended)
}

/// How many slots have a holder that lives.
fn living(group: &Group, donors: &BTreeMap<DonorId, Donor>) -> usize {
    let alive = |held: &Placement| donors.get(&held.donor).is_some_and(|donor| donor.alive);
    group.slots.iter().filter_map(|slot| slot.held).filter(alive).count()
}

/// How many slots have a holder that is not gone for good.
fn sound(group: &Group, donors: &BTreeMap<DonorId, Donor>) -> usize {
    group.slots.iter().filter_map(|slot| slot.held).filter(|held| !departed(donors, held.donor)).count()
}

fn take_one(left: &mut u32) -> bool {
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}

/// The machines of the other slots of the group, by where each will be.
pub(super) fn beside<'a>(group: &Group, at: usize, donors: &'a BTreeMap<DonorId, Donor>) -> Vec<&'a str> {
    let others = group.slots.iter().enumerate().filter(|(other, _)| *other != at);
    let will_be = others.filter_map(|(_, slot)| slot.filling.or(slot.held));
    will_be.filter_map(|place| Some(donors.get(&place.donor)?.machine())).collect()
}

fn shared(hosts: &[&str], host: &str) -> usize {
    hosts.iter().filter(|other| **other == host).count()
}

/// The best home for a slot of a group that `seen` are in, on the machines `beside`: on one of its own if
/// there is one, seldom set aside, and the emptiest. Also how many slots of the group its machine has.
pub(super) fn choose(homes: &mut [Home<'_>], seen: &[DonorId], beside: &[&str]) -> Option<(DonorId, usize)> {
    let open = homes.iter_mut().filter(|home| home.room > 0 && !seen.contains(&home.donor));
    let best =
        open.min_by_key(|home| (shared(beside, home.host), home.set_aside, Reverse(home.room), home.donor))?;
    best.room -= 1;
    Some((best.donor, shared(beside, best.host)))
}
