//! What the client tells the coordinator, and the maps that come back.
//!
//! Owns the exclusion of donors that missed a write, the reports of slots that are filled, and how a newer
//! map is taken over while requests are on their way. Never: the coordinator's decisions. Invariant: a strip
//! that waits for an exclusion goes on only when the map says so. Tests: `tests/volume_exclusion.rs`, the
//! simulator.

use super::link::Link;
use super::strip::{Failure, Phase, Progress};
use super::types::{Effect, PartOp};
use super::upkeep::Fill;
use super::{Key, Volume};
use crate::api::{Amend, Filled, KeptSlot};
use crate::bad;
use crate::limits::AMEND_RETRY_NS;
use crate::map::{BadRange, DonorId, Placement, VolumeMap};
use crate::units::Time;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Amendments {
    exclude: BTreeMap<DonorId, String>,
    /// Those of them that were named in the amendment that is on its way.
    exclude_said: Vec<DonorId>,
    bad: Vec<BadRange>,
    rewritten: Vec<BadRange>,
    /// How many of those were said in the amendment that is on its way.
    rewritten_said: usize,
    /// One is on its way.
    busy: bool,
    pub(super) retry_at: Option<Time>,
}

impl Volume {
    /// The donor missed something: it must not be believed again.
    pub(super) fn exclude(&mut self, donor: DonorId, why: String) {
        self.amendments.exclude.entry(donor).or_insert(why);
    }

    pub(super) fn report_bad(&mut self, bad: BadRange) {
        if !self.amendments.bad.contains(&bad) {
            self.amendments.bad.push(bad);
        }
    }

    /// What is lost for good of data, whether the coordinator has recorded it yet or not.
    pub(super) fn lost_ranges(&self) -> impl Iterator<Item = &BadRange> {
        self.map.bad.iter().chain(&self.amendments.bad)
    }

    /// Whether the coordinator has yet to answer that something of these rows was written again.
    pub(super) fn is_rewritten_unheard(&self, group: u32, lo: u32, hi: u32) -> bool {
        let here = |range: &BadRange| range.group == group && range.from < hi && lo < range.to;
        self.amendments.rewritten.iter().any(here)
    }

    /// They are readable from now on, whatever the coordinator records meanwhile.
    pub(super) fn report_rewritten(&mut self, rewritten: Vec<BadRange>) {
        bad::subtract(&mut self.map.bad, rewritten.iter().copied());
        bad::subtract(&mut self.map.unreadable, rewritten.iter().copied());
        bad::subtract(&mut self.amendments.bad, rewritten.iter().copied());
        self.amendments.rewritten.extend(rewritten);
    }

    /// Donors that have ended, and those that have been away for long, each by its own time: what they held
    /// is rebuilt also when nobody writes.
    pub(super) fn exclude_who_is_gone(&mut self, now: Time) {
        if self.read_only || self.geometry.parity == 0 {
            return;
        }
        let links = self.links.iter_mut();
        let gone: Vec<(DonorId, String)> =
            links.filter_map(|(donor, link)| Some((*donor, link.exclude(now)?))).collect();
        gone.into_iter().for_each(|(donor, why)| self.exclude(donor, why));
    }

    /// Sends what there is to tell, one amendment at a time.
    pub(super) fn amend(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let waits = self.amendments.retry_at.is_some_and(|at| now < at);
        if self.amendments.busy || waits || self.lease_lost {
            return;
        }
        if self.read_only {
            return self.ask_whether_newest(effects);
        }
        let Amendments { exclude, bad, rewritten, .. } = &self.amendments;
        if exclude.is_empty() && bad.is_empty() && rewritten.is_empty() && !self.upkeep.any_filled {
            return;
        }
        self.drop_exclusions();
        let keep = self.kept_slots();
        let filled = self.filled();
        let Amendments { exclude, bad, rewritten, .. } = &self.amendments;
        let exclude: Vec<(DonorId, String)> =
            exclude.iter().map(|(donor, why)| (*donor, why.clone())).collect();
        let exclude_said = exclude.iter().map(|(donor, _)| *donor).collect();
        let keep = if exclude.is_empty() { Vec::new() } else { keep };
        let (bad, rewritten) = (bad.clone(), rewritten.clone());
        let amend = Amend { epoch: self.map.epoch, exclude, keep, filled, bad, rewritten };
        if amend.is_empty() {
            return;
        }
        (self.amendments.exclude_said, self.amendments.rewritten_said) =
            (exclude_said, amend.rewritten.len());
        (self.amendments.busy, self.amendments.retry_at) = (true, None);
        effects.push(Effect::Amend(amend));
    }

    /// Forgets who is not to be excluded any more: it is out of the map already, or it would keep all that it
    /// has.
    fn drop_exclusions(&mut self) {
        self.amendments.exclude.retain(|donor, _| self.map.routes.contains_key(donor));
        let keep = self.kept_slots();
        let mut exclude = std::mem::take(&mut self.amendments.exclude);
        // It may come back with all that it has; who waits for its exclusion says so again.
        exclude.retain(|donor, _| self.has_more_than(*donor, &keep));
        self.amendments.exclude = exclude;
    }

    /// Whether there is still somebody of whom the coordinator has to be told. That changes also by its own
    /// word, and by what comes of other donors.
    pub(super) fn still_excludes(&mut self) -> bool {
        if !self.amendments.busy {
            self.drop_exclusions();
        }
        self.amendments.busy || !self.amendments.exclude.is_empty()
    }

    /// Slots of donors that are being excluded which stay theirs.
    fn kept_slots(&self) -> Vec<KeptSlot> {
        let mut kept = Vec::new();
        if self.amendments.exclude.is_empty() {
            return kept;
        }
        for (group, of) in (0..).zip(&self.map.groups) {
            for (slot, places) in (0..).zip(&of.slots) {
                let excluded = |held: &Placement| self.amendments.exclude.contains_key(&held.donor);
                if places.held.filter(excluded).is_some_and(|held| self.is_needed(group, slot, held.donor)) {
                    kept.push(KeptSlot { group, slot });
                }
            }
        }
        kept
    }

    /// Whether the donor has a slot that it would lose.
    fn has_more_than(&self, donor: DonorId, keep: &[KeptSlot]) -> bool {
        (0..).zip(&self.map.groups).any(|(group, of)| {
            (0..).zip(&of.slots).any(|(slot, places)| {
                let held = places.held.is_some_and(|held| held.donor == donor);
                let filling = places.filling.is_some_and(|filling| filling.donor == donor);
                filling || (held && !keep.contains(&KeptSlot { group, slot }))
            })
        })
    }

    /// Slots that are complete and that the map does not call held yet. This is asked at every event, while
    /// slots become complete rarely.
    fn filled(&mut self) -> Vec<Filled> {
        if !self.upkeep.any_filled {
            return Vec::new();
        }
        let whole = self.fills.iter().filter(|((group, _), fill)| fill.cursor >= self.used(*group));
        let mut filled: Vec<Filled> = whole
            .map(|((group, slot), fill)| Filled { group: *group, slot: *slot, placement: fill.to })
            .collect();
        self.upkeep.any_filled = !filled.is_empty();
        // Who cannot be reached may be gone, and what it was to replace is still there.
        filled.retain(|filled| self.links.get(&filled.placement.donor).is_some_and(Link::is_up));
        for Filled { group, slot, .. } in &filled {
            self.fills.entry((*group, *slot)).and_modify(|fill| fill.told = Some(self.map.epoch));
        }
        filled
    }

    /// Whether it holds the slot, or may be about to: the coordinator was told that it has every byte, and
    /// what became of that is not known.
    pub(super) fn may_hold(&self, group: u32, slot: u32, placement: Placement) -> bool {
        let told = |fill: &Fill| fill.to == placement && fill.told == Some(self.map.epoch);
        self.map.groups[group as usize].slots[slot as usize].held == Some(placement)
            || self.fills.get(&(group, slot)).is_some_and(told)
    }

    /// For everything that was read until now.
    fn ask_whether_newest(&mut self, effects: &mut Vec<Effect>) {
        if self.unvouched.is_empty() {
            return;
        }
        self.vouching = std::mem::take(&mut self.unvouched);
        self.amendments.busy = true;
        effects.push(Effect::Amend(Amend { epoch: self.map.epoch, ..Amend::default() }));
    }

    pub(super) fn amended(&mut self, now: Time, map: Option<VolumeMap>, effects: &mut Vec<Effect>) {
        self.amendments.busy = false;
        if self.read_only {
            self.amendments.retry_at = map.is_none().then_some(now + AMEND_RETRY_NS);
            return self.vouched(map.is_some());
        }
        match map {
            Some(map) => {
                for donor in std::mem::take(&mut self.amendments.exclude_said) {
                    self.amendments.exclude.remove(&donor);
                }
                let news = !self.amendments.exclude.is_empty();
                self.amendments.bad.retain(|bad| !map.bad.iter().any(|known| known.covers(bad)));
                self.amendments.rewritten.drain(..self.amendments.rewritten_said);
                self.replace_map(now, map, effects);
                self.stage_amended();
                // Whatever was not granted is asked for again, but not at once; who was lost meanwhile is
                // named now.
                self.amendments.retry_at = (!news).then_some(now + AMEND_RETRY_NS / 4);
            }
            None => self.amendments.retry_at = Some(now + AMEND_RETRY_NS),
        }
        self.look_at_waiting();
    }

    pub(super) fn lose_lease(&mut self) {
        self.lease_lost = true;
        self.stop_caching();
        self.upkeep_due = true;
        self.look_at_waiting();
    }

    /// Strips that wait for an exclusion look whether it is there.
    pub(super) fn look_at_waiting(&mut self) {
        let waiting = self.strips.iter().filter(|(_, strip)| strip.phase == Phase::Excluding);
        self.ready.extend(waiting.map(|(key, _)| key));
    }

    pub(super) fn replace_map(&mut self, now: Time, mut map: VolumeMap, effects: &mut Vec<Effect>) {
        let same = map.volume == self.map.volume
            && map.redundancy == self.map.redundancy
            && map.unit == self.map.unit
            && map.size >= self.map.size
            && map.groups.len() >= self.map.groups.len();
        if !same || map.epoch <= self.map.epoch {
            return; // An older answer that arrived late.
        }
        for (id, route) in &map.routes {
            self.link_waits = None;
            self.links.entry(*id).or_insert_with(|| Link::new(route, self.sessions_before));
        }
        bad::subtract(&mut map.bad, self.amendments.rewritten.iter().copied());
        bad::subtract(&mut map.unreadable, self.amendments.rewritten.iter().copied());
        self.unvouch();
        self.forget_missed(&map);
        self.carry_unflushed(&map);
        self.map = map;
        self.forget_cached(0, u64::MAX);
        self.links.values_mut().for_each(|link| link.shut_out = false);
        self.follow_moved_slots(now, effects);
        let gone: Vec<DonorId> =
            self.links.keys().filter(|donor| !self.map.routes.contains_key(donor)).copied().collect();
        for donor in gone {
            self.set_aside(now, donor, "it holds nothing of the volume any more".to_owned(), effects);
            // It may come back, and sessions never go back.
            let link = self.links.remove(&donor);
            self.sessions_before = self.sessions_before.max(link.map_or(0, |link| link.session));
        }
        self.take_on_fills();
        self.look_at_waiting();
        self.open_links(now, effects);
        self.upkeep_due = true;
    }

    /// Who holds a slot from now on answers for what was written to who held it before; when nobody did, for
    /// what was written to those from whom it was rebuilt.
    fn carry_unflushed(&mut self, map: &VolumeMap) {
        for (was, is) in self.map.groups.iter().zip(&map.groups) {
            let unflushed = |held: Placement| {
                let link = self.links.get(&held.donor);
                link.is_some_and(|link| {
                    link.unflushed || link.waiting.iter().any(|part| self.is_barrier(*part))
                })
            };
            let any = was.slots.iter().filter_map(|slot| slot.held).any(unflushed);
            let slots = was.slots.iter().zip(&is.slots).filter(|(was, is)| was.held != is.held);
            let heirs =
                slots.filter(|(was, _)| was.held.map_or(any, unflushed)).filter_map(|(_, is)| is.held);
            for heir in heirs.collect::<Vec<_>>() {
                if let Some(link) = self.links.get_mut(&heir.donor) {
                    link.unflushed = true;
                }
            }
        }
    }

    /// Reads that are on their way to who held a slot before are asked of who holds it now. So are flushes
    /// that wait for a donor which holds nothing any more.
    fn follow_moved_slots(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let moved = |strip: Key, slot: u32, placement| {
            let group = self.strips.get(strip).map(|strip| strip.group as usize)?;
            let held = self.map.groups[group].slots.get(slot as usize)?.held;
            (held.is_some() && held != Some(placement)).then_some(())
        };
        let reads: Vec<(Key, DonorId, Progress)> = (self.parts.iter())
            .filter(|(_, part)| part.progress != Progress::Done)
            .filter(|(key, part)| match part.op {
                PartOp::Read | PartOp::Status => moved(part.strip, part.slot, part.placement).is_some(),
                _ => self.is_barrier(*key) && !self.map.routes.contains_key(&part.donor),
            })
            .map(|(key, part)| (key, part.donor, part.progress))
            .collect();
        for (part, donor, progress) in reads {
            if progress == Progress::Sent {
                effects.push(Effect::Abandon { donor, part });
            } else if let Some(link) = self.links.get_mut(&donor) {
                link.waiting.retain(|waiting| *waiting != part);
            }
            self.part_failed(now, part, Failure::Moved, effects);
        }
    }

    pub(super) fn take_on_fills(&mut self) {
        let mut fills = BTreeMap::new();
        for (group, of_group) in (0u32..).zip(&self.map.groups) {
            let held = of_group.slots.iter().filter(|slot| slot.held.is_some()).count();
            for (slot, places) in (0u32..).zip(&of_group.slots) {
                let Some(to) = places.filling else { continue };
                let known = self.fills.remove(&(group, slot)).filter(|fill| fill.to == to);
                self.upkeep.is_exposed |= known.is_none() && held <= self.geometry.data as usize;
                fills.insert((group, slot), known.unwrap_or_else(|| Fill::new(to, self.born)));
            }
        }
        self.fills = fills;
        self.upkeep.any_filled = true;
        self.count_fills();
    }

    pub(super) fn expire_amendment(&mut self, now: Time) {
        if self.amendments.retry_at.is_some_and(|at| at <= now) {
            self.amendments.retry_at = None;
            self.look_at_waiting();
        }
    }
}
