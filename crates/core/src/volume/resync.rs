//! Rows that may be half written: finding them, and making their fragments fit together again.
//!
//! Owns the way from the first link to serving: whoever wrote before may have ended in the middle, and the
//! donors remember where. Also the rows of a write that ended without reaching everyone. Never: wrong blocks,
//! or slots without a holder (`upkeep`). Invariants: a volume is served when every row fits together or its
//! loss is recorded, or when that took as long as a request may; nothing is written by a tool to a row in
//! doubt; data that is missing there is reported as lost, never made up; and a donor that is silent while
//! only its memory tells what such a row is keeps that memory. Tests: `tests/volume_unclean.rs`,
//! `tests/volume_resync.rs`, the simulator; `lab/tests/unclean.rs`.

use super::judge::{Doubt, Hearing};
use super::strip::{Missed, Phase, Progress, Slots, Strip, Work, bit, slots_of};
use super::types::{Effect, Fragment, Mem, PartOp, StatusRun, VolumeError};
use super::upkeep::PAUSE_NS;
use super::{Key, Stage, Volume};
use crate::donor::ListedWrite;
use crate::layout::Scatter;
use crate::limits::{BLOCK_BYTES, EXTENT_BYTES};
use crate::map::{BadRange, DonorId, Group, Placement, VolumeMap};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Groups whose dirty maps are asked for at once, before a volume is served.
const SURVEYS_MAX: usize = 64;
const RESYNCS_MAX: usize = 16;
const BLOCK: u32 = BLOCK_BYTES as u32;

/// Rows whose fragments may not fit together, because a write of them ended half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Torn {
    pub(super) group: u32,
    pub(super) lo: u32,
    pub(super) hi: u32,
    /// The slots that missed it, if that is known: the others fit together, and when these have no holder any
    /// more all is well. None: any may differ.
    pub(super) missed: Slots,
}

/// Whether the slots that are held make up the data without those that missed something.
pub(super) fn enough_without(group: &Group, missed: Slots, data: u32) -> bool {
    let slots = group.slots.iter().zip(0u32..);
    slots.filter(|(slot, at)| slot.held.is_some() && missed & bit(*at) == 0).count() >= data as usize
}

#[derive(Debug, Default)]
pub(super) struct Resyncs {
    pub(super) open: usize,
    pub(super) pause_until: Time,
    pub(super) surveys_open: usize,
    survey_next: u32,
    /// Groups that are asked again.
    pub(super) resurveyed: BTreeSet<u32>,
    /// Held by donors that could not be asked what was written lately.
    unsurveyed: Vec<(u32, u32, Placement)>,
    /// Those that redundancy cannot do without: asked as soon as they are reached.
    pub(super) unsure: Vec<(u32, u32, Placement)>,
    /// Strips of requests that wait, without a lock, until the rows that they need fit together.
    waiting: Vec<Key>,
    /// What the donors of the groups that are being asked list.
    heard: BTreeMap<u32, Hearing>,
    /// Every write of a former writer with a number up to this one is complete.
    complete: u64,
    /// The volume is served from then on; what is in doubt still is an error until whoever knows answers.
    pub(super) serve_at: Option<Time>,
    /// It is served: who could not be asked until then is held back.
    holds_back: bool,
}

impl Volume {
    /// Whether any slot may differ from the others there.
    pub(super) fn is_torn(&self, group: u32, lo: u32, hi: u32) -> bool {
        let here = |torn: &Torn| torn.group == group && torn.lo < hi && lo < torn.hi;
        // A write that reached nobody but a donor that is held back is undone when that is back.
        let unsure = self.is_unsure(group) && !self.resyncs.holds_back;
        unsure || self.torn.iter().any(|torn| here(torn) && torn.missed == 0)
    }

    /// The slots whose holders missed a write there.
    pub(super) fn missed_there(&self, group: u32, lo: u32, hi: u32) -> Slots {
        let here = |torn: &&Torn| torn.group == group && torn.lo < hi && lo < torn.hi;
        self.torn.iter().filter(here).fold(0, |slots, torn| slots | torn.missed)
    }

    /// Whether rows there may not fit together, as far as is known now: what is written to them could be lost
    /// with them.
    pub(super) fn is_in_doubt(&self, group: u32, lo: u32, hi: u32) -> bool {
        self.geometry.data > 1
            && (self.is_torn(group, lo, hi)
                || self.is_unsure(group)
                || self.resyncs.resurveyed.contains(&group))
    }

    /// Whether the doubt that a strip meets may end while its request waits. Not where a donor is held back
    /// that was waited for long enough, or where too few holders are left.
    pub(super) fn may_settle(&self, now: Time, key: Key) -> bool {
        let strip = self.strips.get(key).expect("it met a doubt");
        let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
        strip.request.is_some()
            && self.is_in_doubt(group, lo, hi)
            && !self.is_hopeless(group)
            && !(self.is_unsure(group) && (self.resyncs.holds_back || self.is_late(now)))
    }

    /// More of the group's holders have ended than redundancy covers.
    fn is_hopeless(&self, group: u32) -> bool {
        let there = |held: &Placement| !self.links.get(&held.donor).is_some_and(|link| link.gone);
        let held = self.map.groups[group as usize].slots.iter().filter_map(|slot| slot.held);
        held.filter(there).count() < self.geometry.data as usize
    }

    /// Whether the silent donor's memory alone tells what rows in doubt are. One that has ended does not come
    /// back.
    pub(super) fn is_needed(&self, group: u32, slot: u32, donor: DonorId) -> bool {
        self.geometry.data > 1
            && slot < self.geometry.data
            && self.torn.iter().any(|torn| torn.group == group && torn.missed == 0)
            && self.links.get(&donor).is_some_and(|link| !link.gone)
    }

    /// Lets the strip wait without its lock, which whatever makes the rows fit together needs.
    pub(super) fn wait_for_rows(&mut self, key: Key, effects: &mut Vec<Effect>) {
        self.drop_parts(key, effects);
        self.free_scratch(key);
        let strip = self.strips.get_mut(key).expect("it waits");
        (strip.phase, strip.have, strip.avoid) = (Phase::Locking, 0, strip.wrong);
        let group = strip.group;
        let ready = &mut self.ready;
        self.locks.release(group, key, |granted| ready.push_back(granted));
        self.resyncs.waiting.push(key);
        self.upkeep_due = true;
    }

    /// Those whose rows fit together now, or never will, ask for their locks again.
    pub(super) fn retry_waiting(&mut self, now: Time) {
        for key in std::mem::take(&mut self.resyncs.waiting) {
            let Some(strip) = self.strips.get(key) else { continue };
            let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
            if self.failed_elsewhere(strip).is_some() {
                self.ready.push_back(key);
            } else if self.may_settle(now, key) {
                self.resyncs.waiting.push(key);
            } else {
                let alone = strip.work.is_alone();
                if self.locks.ask(group, key, lo, hi, alone) {
                    self.ready.push_back(key);
                }
            }
        }
    }

    /// Whether a holder of the group was never asked what was written lately: it must be, before anything
    /// follows.
    fn is_unsure(&self, group: u32) -> bool {
        self.resyncs.unsure.iter().any(|(of, _, placement)| *of == group && self.holds(*of, *placement))
    }

    fn holds(&self, group: u32, placement: Placement) -> bool {
        self.map.groups[group as usize].slots.iter().any(|slot| slot.held == Some(placement))
    }

    /// Slots that have another holder now, or none, did not miss anything any more. One that had none and was
    /// said to be filled missed it if it is held now; if it is still being filled, its filling begins there
    /// again.
    pub(super) fn forget_missed(&mut self, map: &VolumeMap) {
        let mut all = std::mem::take(&mut self.torn);
        all.retain_mut(|torn| {
            let group = torn.group as usize;
            let missed = |slot: &u32| {
                let was = self.map.groups[group].slots[*slot as usize].held;
                let is = map.groups[group].slots[*slot as usize].held;
                is.is_some_and(|is| was.map_or_else(|| self.may_hold(torn.group, *slot, is), |was| was == is))
            };
            let (stay, go): (Vec<u32>, Vec<u32>) = slots_of(torn.missed).partition(missed);
            go.into_iter().for_each(|slot| self.unfill(torn.group, slot, torn.lo));
            let known = torn.missed != 0;
            torn.missed = stay.into_iter().map(bit).sum();
            let mended = known && torn.missed == 0;
            if !enough_without(&map.groups[group], torn.missed, map.redundancy.data) {
                torn.missed = 0;
            }
            !mended
        });
        self.torn = all;
    }

    /// Rebuilding from rows that may not fit together would make up data. Copies are whole each for itself.
    pub(super) fn is_torn_for(&self, key: Key) -> bool {
        let strip = self.strips.get(key).expect("a strip with lanes");
        self.geometry.data > 1 && self.is_torn(strip.group, strip.lo, strip.hi)
    }

    /// On the way to serving: links, then the dirty maps, then the rows that they name.
    pub(super) fn look_at_stage(&mut self, now: Time) {
        let late = self.is_late(now);
        match self.stage {
            Stage::Linking if self.links.values().all(super::link::Link::is_settled) => {
                self.stage = Stage::Surveying;
            }
            Stage::Surveying if self.survey_is_done() => {
                self.take_survey();
                let unsurveyed = std::mem::take(&mut self.resyncs.unsurveyed);
                // Whoever was excluded while the others were asked is not waited for.
                let still = |(group, _, placement): &(u32, u32, Placement)| self.holds(*group, *placement);
                let (needed, others) = (unsurveyed.into_iter().filter(still))
                    .partition(|(group, slot, held)| self.is_needed(*group, *slot, held.donor));
                (self.resyncs.unsure, self.resyncs.unsurveyed) = (needed, others);
                let unheard: BTreeSet<DonorId> =
                    self.resyncs.unsurveyed.iter().map(|(_, _, placement)| placement.donor).collect();
                for donor in &unheard {
                    self.exclude(*donor, "it could not be asked what was written lately".to_owned());
                }
                self.stage = if unheard.is_empty() { Stage::Resyncing } else { Stage::Excluding };
                self.resyncs.pause_until = now;
            }
            Stage::Resyncing if self.resyncs.open == 0 && (late || !self.waits_for_doubts()) => {
                self.stage = Stage::Serving;
                self.resyncs.holds_back = true;
            }
            _ => {}
        }
    }

    fn is_late(&self, now: Time) -> bool {
        self.resyncs.serve_at.is_some_and(|at| at <= now)
    }

    /// Whether something is in doubt that may yet be settled.
    fn waits_for_doubts(&self) -> bool {
        let held = |torn: &&Torn| {
            torn.missed == 0 || slots_of(torn.missed).any(|slot| self.is_held(torn.group, slot))
        };
        let torn = self.torn.iter().filter(held).map(|torn| torn.group);
        let unsure = self.resyncs.unsure.iter().map(|(group, ..)| *group);
        let asked = self.resyncs.resurveyed.iter().copied();
        torn.chain(unsure).chain(asked).any(|group| !self.is_hopeless(group))
    }

    /// The coordinator answered: who is still a holder and was not asked may hold half-written rows.
    pub(super) fn stage_amended(&mut self) {
        if self.stage != Stage::Excluding {
            return;
        }
        self.stage = Stage::Resyncing;
        self.upkeep_due = true;
        self.keep_unsure();
    }

    fn keep_unsure(&mut self) {
        let unsurveyed = std::mem::take(&mut self.resyncs.unsurveyed);
        self.resyncs.unsure.extend(unsurveyed);
        let unsure = std::mem::take(&mut self.resyncs.unsure);
        self.resyncs.unsure =
            unsure.into_iter().filter(|(group, _, placement)| self.holds(*group, *placement)).collect();
    }

    /// Asks those that could not be asked before, once they are there.
    pub(super) fn survey_again(&mut self) {
        if !matches!(self.stage, Stage::Resyncing | Stage::Serving) || self.resyncs.surveys_open > 0 {
            return;
        }
        self.take_survey();
        self.keep_unsure();
        let up =
            |placement: &Placement| self.links.get(&placement.donor).is_some_and(super::link::Link::is_up);
        let reached = self.resyncs.unsure.iter().filter(|(_, _, placement)| up(placement));
        let groups: BTreeSet<u32> = reached.map(|(group, ..)| *group).take(SURVEYS_MAX).collect();
        self.resyncs.unsure.retain(|(group, ..)| !groups.contains(group));
        for group in groups {
            self.resyncs.surveys_open += 1;
            self.resyncs.resurveyed.insert(group);
            self.add_strip(None, Work::Survey, group, 0, self.used(group));
        }
    }

    fn survey_is_done(&self) -> bool {
        self.resyncs.surveys_open == 0 && self.resyncs.survey_next as usize >= self.surveyed_groups
    }

    pub(super) fn start_surveys(&mut self) {
        if self.stage != Stage::Surveying {
            return;
        }
        while self.resyncs.surveys_open < SURVEYS_MAX
            && (self.resyncs.survey_next as usize) < self.surveyed_groups
        {
            let group = self.resyncs.survey_next;
            self.resyncs.survey_next += 1;
            self.resyncs.surveys_open += 1;
            self.add_strip(None, Work::Survey, group, 0, self.used(group));
        }
        self.upkeep_due |= self.survey_is_done();
    }

    pub(super) fn begin_survey(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let (group, hi) = self.strips.get(key).map(|strip| (strip.group, strip.hi)).expect("being begun");
        for slot in 0..self.geometry.data + self.geometry.parity {
            let Some(held) = self.map.groups[group as usize].slots[slot as usize].held else { continue };
            let scatter = Scatter::whole(0, hi);
            if !self.add_part(now, key, slot, held, PartOp::Survey, 0, Mem::Nothing, scatter, effects) {
                self.resyncs.unsurveyed.push((group, slot, held));
            }
        }
        self.set_phase(key, Phase::Reading);
    }

    pub(super) fn survey_missed(&mut self, group: u32, missed: Missed) {
        self.resyncs.unsurveyed.push((group, missed.slot, missed.placement));
    }

    /// What the holder of a slot lists, before it answers the survey.
    pub(super) fn listed(&mut self, key: Key, complete: u64, writes: &[ListedWrite]) {
        let part = self.parts.get(key).filter(|part| part.progress == Progress::Sent);
        let Some(part) = part.copied().filter(|part| part.op == PartOp::Survey) else { return };
        let Some(strip) = self.strips.get(part.strip).filter(|strip| strip.work == Work::Survey) else {
            return;
        };
        let base = u64::from(part.placement.extent) * EXTENT_BYTES;
        let end = u64::from(self.used(strip.group));
        let local = |at: u64| at.saturating_sub(base).min(end) / BLOCK_BYTES * BLOCK_BYTES;
        let placed = writes.iter().map(|write| ListedWrite {
            from: local(write.from),
            to: local(write.to.saturating_add(BLOCK_BYTES - 1)),
            ..*write
        });
        self.resyncs.complete = self.resyncs.complete.max(complete);
        let greatest = writes.iter().map(|write| write.number).max().unwrap_or(0);
        self.numbers.heard(greatest.max(complete));
        self.resyncs.heard.entry(strip.group).or_default().hear(part.slot, placed);
    }

    /// Every write with a number up to this one is on all who shall have it; 0 while something is in doubt.
    pub(super) fn complete(&self) -> u64 {
        let Resyncs { unsure, resurveyed, .. } = &self.resyncs;
        let sure = self.torn.is_empty() && unsure.is_empty() && resurveyed.is_empty();
        if sure && self.stage == Stage::Serving { self.numbers.over() } else { 0 }
    }

    fn take_survey(&mut self) {
        for (group, hearing) in std::mem::take(&mut self.resyncs.heard) {
            for Doubt { lo, hi, missed } in hearing.doubts(self.geometry.data, self.resyncs.complete) {
                self.torn.push(Torn { group, lo, hi, missed });
            }
        }
        let mut dirty: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (group, runs) in std::mem::take(&mut self.surveyed) {
            let mut at = 0;
            for StatusRun { len, hole } in runs {
                if !hole {
                    dirty.entry(group).or_default().push((at, at + len));
                }
                at += len;
            }
            // What was not answered counts as written.
            if at < self.used(group) {
                dirty.entry(group).or_default().push((at, self.used(group)));
            }
        }
        let step = self.lane_max();
        for (group, mut ranges) in dirty {
            ranges.sort_unstable();
            let (used, mut done) = (self.used(group), 0);
            for (from, to) in ranges {
                let (mut at, end) = (from.max(done), to.min(used));
                while at < end {
                    let hi = (at / step * step + step).min(end);
                    self.torn.push(Torn { group, lo: at, hi, missed: 0 });
                    at = hi;
                }
                done = done.max(end);
            }
        }
    }

    /// Data that can be read makes parity, and any copy makes the others. Data that is missing is lost there,
    /// which the coordinator records first.
    fn can_resync(&self, torn: Torn) -> bool {
        let usable = |slot: u32| self.source(torn.group, slot).is_some();
        match self.geometry.data {
            1 => (0..=self.geometry.parity).any(usable),
            data => (0..data).all(|slot| usable(slot) || self.is_known_bad(torn, slot)),
        }
    }

    /// A slot that missed a write of the row, and can be put right from those that did not.
    fn mendable(&self, torn: Torn) -> Option<u32> {
        let usable = |slot: &u32| self.source(torn.group, *slot).is_some();
        let fits = |slot: &u32| torn.missed & bit(*slot) == 0 && usable(slot);
        let all = 0..self.geometry.data + self.geometry.parity;
        let enough = torn.missed != 0 && all.filter(fits).count() >= self.geometry.data as usize;
        slots_of(torn.missed).find(usable).filter(|_| enough)
    }

    pub(super) fn mend_ended(&mut self, now: Time, strip: &Strip, slot: u32, done: bool) {
        let same = |torn: &Torn| (torn.group, torn.lo, torn.hi) == (strip.group, strip.lo, strip.hi);
        self.resyncs.open -= 1;
        self.resyncing.retain(|torn| !same(torn));
        if !done {
            self.resyncs.pause_until = now + PAUSE_NS;
            return;
        }
        for torn in self.torn.iter_mut().filter(|torn| same(torn)) {
            torn.missed &= !bit(slot);
        }
        self.torn.retain(|torn| !same(torn) || torn.missed != 0);
        self.look_at_waiting();
    }

    fn is_known_bad(&self, torn: Torn, slot: u32) -> bool {
        self.is_recorded_as_lost(torn.group, slot, torn.lo, torn.hi)
    }

    fn is_recorded_as_lost(&self, group: u32, slot: u32, from: u32, to: u32) -> bool {
        let range = BadRange { group, slot, from, to };
        !self.is_held(group, slot) && self.map.bad.iter().any(|bad| bad.covers(&range))
    }

    pub(super) fn start_resyncs(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let stage = matches!(self.stage, Stage::Resyncing | Stage::Serving);
        if !stage || self.torn.is_empty() || now < self.resyncs.pause_until {
            return;
        }
        self.split_torn();
        for at in 0..self.torn.len() {
            if self.resyncs.open >= RESYNCS_MAX {
                return;
            }
            let torn = self.torn[at];
            if self.is_unsure(torn.group) || self.resyncs.resurveyed.contains(&torn.group) {
                continue;
            }
            // What only slots missed that nobody holds, as far as is known, the next map settles.
            if torn.missed != 0 && slots_of(torn.missed).all(|slot| !self.is_held(torn.group, slot)) {
                continue;
            }
            let work = match self.can_resync(torn) {
                true => Some(Work::Resync),
                false => self.mendable(torn).map(|slot| Work::Mend { slot }),
            };
            if let Some(work) = work {
                if self.resyncing.insert(torn) {
                    self.resyncs.open += 1;
                    self.add_strip(None, work, torn.group, torn.lo, torn.hi);
                }
            } else if self.geometry.data > 1 && torn.missed == 0 {
                let lost = (0..self.geometry.data).filter(|slot| !self.is_held(torn.group, *slot));
                let lost: Vec<u32> = lost.filter(|slot| !self.is_known_bad(torn, *slot)).collect();
                let Torn { group, lo: from, hi: to, .. } = torn;
                for slot in lost {
                    self.report_bad(BadRange { group, slot, from, to });
                    effects.push(Effect::Forget {
                        fragment: Fragment { group, slot, local: from },
                        len: to - from,
                    });
                }
            }
        }
    }

    /// Whole extents come as one range; a strip takes as much as fits into scratch memory.
    fn split_torn(&mut self) {
        let step = self.lane_max();
        if self.torn.iter().all(|torn| torn.hi - torn.lo <= step) {
            return;
        }
        for torn in std::mem::take(&mut self.torn) {
            let mut at = torn.lo;
            while at < torn.hi {
                let hi = (at / step * step + step).min(torn.hi);
                self.torn.push(Torn { lo: at, hi, ..torn });
                at = hi;
            }
        }
        self.torn.sort_unstable();
        self.torn.dedup();
    }

    /// Data that is not what was written, where parity may be of another moment: nothing can give it back.
    /// Block by block, so that no more is lost than what is wrong; and once that is recorded, what lies there
    /// is what parity is made from.
    pub(super) fn resync_wrong(&mut self, now: Time, key: Key, slot: u32, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it has read");
        let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
        let bad = BadRange { group, slot, from: lo, to: hi };
        if hi - lo > BLOCK {
            let here = |torn: &mut Torn| (torn.group, torn.lo, torn.hi) == (group, lo, hi);
            for torn in self.torn.extract_if(.., here).collect::<Vec<_>>() {
                let block = |at: u32| Torn { lo: at, hi: at + BLOCK, ..torn };
                self.torn.extend((lo..hi).step_by(BLOCK as usize).map(block));
            }
        } else if self.map.bad.iter().any(|known| known.covers(&bad)) {
            effects.push(Effect::Forget { fragment: self.fragment(key, slot), len: hi - lo });
        } else {
            self.report_bad(bad);
        }
        self.end_strip(now, key, Err(VolumeError::Corrupt), effects);
    }

    /// What was decided when the strip was made is decided again, now that nobody else works there.
    pub(super) fn begin_resync(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("being begun");
        let here = |torn: &&Torn| (torn.group, torn.lo, torn.hi) == (strip.group, strip.lo, strip.hi);
        match self.torn.iter().find(here).copied() {
            None => self.end_strip(now, key, Ok(()), effects),
            Some(torn) if self.can_resync(torn) && strip.work == Work::Resync => {
                self.read_lanes(now, key, effects);
            }
            Some(torn) if self.mendable(torn).is_some_and(|slot| strip.work == Work::Mend { slot }) => {
                let strip = self.strips.get_mut(key).expect("being begun");
                (strip.avoid, strip.wrong) = (torn.missed, torn.missed);
                self.read_lanes(now, key, effects);
            }
            Some(_) => self.end_strip(now, key, Err(VolumeError::DonorLost), effects),
        }
    }

    pub(super) fn resync_lanes(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let geometry = self.geometry;
        self.drop_parts(key, effects);
        let strip = self.strips.get(key).expect("it has read");
        let (group, lo, hi, have, len) = (strip.group, strip.lo, strip.hi, strip.have, strip.len());
        for slot in slots_of(have) {
            let (fragment, at) = (self.fragment(key, slot), self.lane(key, slot));
            let scatter = Scatter::whole(at.offset, len);
            effects.push(Effect::Learn { fragment, copies: 1, mem: at.mem, scatter });
        }
        if geometry.data == 1 {
            let source = slots_of(have).next().expect("it has read one");
            let at = self.lane(key, source);
            for slot in (0..=geometry.parity).filter(|slot| *slot != source) {
                self.write_from(now, key, slot, lo, at, len, effects);
            }
            return self.set_phase(key, Phase::Writing);
        }
        let absent = (0..geometry.data).filter(|slot| have & bit(*slot) == 0);
        let is_lost = |slot: &u32| self.is_recorded_as_lost(group, *slot, lo, hi);
        if !absent.clone().all(|slot| is_lost(&slot)) {
            // Its holder was taken out while the others were read: what it had may be in parity alone.
            return self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
        }
        for slot in absent {
            effects.push(Effect::Zero { at: self.lane(key, slot), len });
        }
        self.encode_lanes(key, effects);
        for number in 0..geometry.parity {
            self.write_lane(now, key, geometry.data + number, lo, hi, effects);
        }
        self.set_phase(key, Phase::Writing);
    }
}
