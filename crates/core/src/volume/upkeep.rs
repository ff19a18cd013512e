//! What keeps a volume whole beside its requests: filling slots, healing blocks, scrubbing, and telling
//! donors what is settled.
//!
//! Owns when each is done and how far it has come. Never: how fast (`pace`), rows that were half written
//! (`resync`), or where slots go (the coordinator).
//! Invariant: what a slot's new holder has is up to its `cursor`, and in chunks `ahead` of it; every later
//! write to any of that reaches it, too.
//! Tests: `tests/volume_finish.rs`, the simulator.

use super::cached::Cached;
use super::link::Link;
use super::read::touched_of;
use super::resync::Torn;
use super::strip::{Content, Missed, Phase, Strip, Work, bit, slots_of};
use super::types::{At, Combine, Effect, Mem, PartOp, VolumeError};
use super::{Key, Op, Stage, Volume};
use crate::api::VolumeReport;
use crate::layout::{Scatter, Span};
use crate::limits::{
    BLOCK_BYTES, DIRTY_AGE_NS, EXTENT_BYTES, FILL_CHUNKS_MAX, FINISH_NS, HURRY_CHUNKS_MAX, READ_TOGETHER_NS,
    RUSH_NS, SCRATCH_LARGE_COUNT, SCRUB_EVERY_NS, SECOND_NS, STRIPS_MAX, TICK_NS,
};
use crate::map::{BadRange, DonorId, Placement};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

const BLOCK: u32 = BLOCK_BYTES as u32;
const HEALS_MAX: usize = 4;
const SCRUBS_MAX: usize = 2;
pub(super) const PAUSE_NS: Time = SECOND_NS / 2;

/// A slot that gets a new holder.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) to: Placement,
    /// Bytes of the extent that are there.
    pub(super) cursor: u32,
    /// Bytes that are there or on their way, chunk by chunk: whoever writes to one that is on its way waits
    /// for it.
    begun: u32,
    /// Chunks that are there, beyond one that is not yet.
    ahead: BTreeSet<(u32, u32)>,
    /// Chunks on their way.
    open: usize,
    /// The coordinator was told, by the map of this epoch, that it has every byte.
    pub(super) told: Option<u64>,
    /// Strips born later count: an earlier one knew another filling of the slot.
    since: u64,
    pause_until: Time,
}

impl Fill {
    pub(super) fn new(to: Placement, since: u64) -> Self {
        let ahead = BTreeSet::new();
        Fill { to, cursor: 0, begun: 0, ahead, open: 0, told: None, since, pause_until: 0 }
    }

    /// Whether any of these bytes are there.
    pub(super) fn has_some(&self, from: u32, to: u32) -> bool {
        self.cursor > from || self.ahead.iter().any(|(begin, end)| *begin < to && from < *end)
    }

    /// Goes on at the cursor. What comes of the chunks that are on their way counts for nothing.
    fn restart(&mut self, since: u64) {
        (self.begun, self.open, self.since) = (self.cursor, 0, since);
        self.ahead.clear();
    }

    fn have(&mut self, from: u32, to: u32) {
        self.ahead.insert((from, to));
        while let Some((_, to)) = self.ahead.first().copied().filter(|(from, _)| *from <= self.cursor) {
            self.ahead.pop_first();
            self.cursor = self.cursor.max(to);
        }
    }
}

/// Counters behind `VolumeReport`.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads_rebuilt: u64,
    corrupt: BTreeMap<DonorId, u64>,
    healed: u64,
    fill_total: u64,
    fill_done: u64,
    fill_rate: u64,
    rate_since: Time,
    rate_bytes: u64,
    scrub_done: u64,
    scrub_passes: u64,
    scrub_mismatches: u64,
}

#[derive(Debug, Default)]
pub(super) struct Upkeep {
    fills_open: usize,
    /// A slot may have become complete since the fills were looked through.
    pub(super) any_filled: bool,
    heals_open: usize,
    scrubs_open: usize,
    age_open: bool,
    /// Slots and ranges whose blocks were wrong, and how many.
    heals: BTreeMap<(u32, u32, u32, u32), u32>,
    healing: BTreeSet<(u32, u32, u32, u32)>,
    /// When the last write ended whose marks the next aging may drop.
    settled_at: Time,
    healed_last: (u32, u32, u32, u32),
    heal_pause_until: Time,
    scrub: Option<(u32, u32)>,
    scrub_at: Time,
    /// Rounds of `Age` until the donors know that nothing is half written.
    pub(super) age_due: u32,
    aged_at: Time,
    /// Strips born up to here had to be complete before the next `Age`.
    age_mark: u64,
    /// A group began to be rebuilt that can lose no more.
    pub(super) is_exposed: bool,
    /// Until then such a one goes before the tools.
    rush_until: Time,
    pub(super) finishing: Option<Time>,
    /// Who is being asked whether it is there.
    asked: BTreeSet<DonorId>,
}

impl Volume {
    /// Bytes of each extent of the group that the volume's size reaches.
    pub(super) fn used(&self, group: u32) -> u32 {
        let begin = u64::from(group) * self.map.group_bytes();
        let end = (self.map.size - begin).min(self.map.group_bytes());
        let end = u32::try_from(end).expect("a group is at most 2 GiB");
        self.local_range(Span { group, begin: 0, end, payload: 0 }).1
    }

    pub(super) fn unfill(&mut self, group: u32, slot: u32, to: u32) {
        if let Some(fill) = self.fills.get_mut(&(group, slot)).filter(|fill| to < fill.begun) {
            fill.cursor = fill.cursor.min(to);
            fill.restart(self.born);
        }
    }

    pub(super) fn count_fills(&mut self) {
        if self.fills.is_empty() {
            (self.report.fill_total, self.report.fill_done, self.report.fill_rate) = (0, 0, 0);
            return;
        }
        let left: u64 = (self.fills.iter())
            .map(|((group, _), fill)| u64::from(self.used(*group).saturating_sub(fill.cursor)))
            .sum();
        self.report.fill_total = self.report.fill_total.max(self.report.fill_done + left);
    }

    /// A donor sent blocks that are not what was written there.
    pub(super) fn found_corrupt(&mut self, key: Key, from: Missed, local: u32, len: u32, blocks: u32) {
        *self.report.corrupt.entry(from.placement.donor).or_default() += u64::from(blocks);
        let strip = self.strips.get(key).expect("looked at by the caller");
        let group = strip.group;
        // Two slots that are wrong in the same row would be healed by turns for ever, and nothing else would
        // be.
        let heals = matches!(strip.work, Work::Heal { .. });
        if self.geometry.parity == 0 || self.read_only || heals {
            return;
        }
        let step = self.lane_max();
        let (mut at, end) = (local / step * step, local + len);
        let mut left = blocks;
        while at < end {
            // How many of the blocks lie in which chunk is not known; they are counted with the first.
            let (lo, hi) = (at.max(local), (at + step).min(end));
            *self.upkeep.heals.entry((group, from.slot, lo, hi)).or_default() += std::mem::take(&mut left);
            at += step;
        }
        self.upkeep_due = true;
    }

    /// Starts whatever is due and has room.
    pub(super) fn keep_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.upkeep_due) {
            return;
        }
        let writes = !self.read_only && !self.lease_lost;
        if writes {
            self.look_at_stage(now);
        }
        if self.upkeep.finishing.is_some() {
            return self.wind_up(now, effects);
        }
        if !writes {
            return;
        }
        self.start_surveys();
        self.survey_again();
        self.start_resyncs(now, effects);
        self.retry_waiting(now);
        if self.stage == Stage::Serving {
            self.start_heals(now);
            self.start_fills(now);
            self.start_scrubs(now);
            self.start_age(now);
        }
    }

    fn start_heals(&mut self, now: Time) {
        while now >= self.upkeep.heal_pause_until && self.upkeep.heals_open < HEALS_MAX {
            // In turn, so that one which cannot be healed yet does not keep the others waiting.
            let (heals, last) = (&self.upkeep.heals, self.upkeep.healed_last);
            let in_turn = heals.range((Bound::Excluded(last), Bound::Unbounded)).chain(heals.range(..=last));
            let mut chunks = in_turn.map(|(chunk, _)| *chunk);
            let Some(chunk) = chunks.find(|chunk| !self.upkeep.healing.contains(chunk)) else { return };
            self.upkeep.healed_last = chunk;
            let (group, slot, from, to) = chunk;
            if !self.is_held(group, slot) || to > self.used(group) {
                self.upkeep.heals.remove(&chunk);
                continue;
            }
            self.upkeep.healing.insert(chunk);
            self.upkeep.heals_open += 1;
            let key = self.add_strip(None, Work::Heal { slot }, group, from, to);
            let strip = self.strips.get_mut(key).expect("just added");
            (strip.avoid, strip.wrong) = (bit(slot), bit(slot));
        }
    }

    pub(super) fn write_healed(&mut self, now: Time, key: Key, slot: u32, effects: &mut Vec<Effect>) {
        self.drop_parts(key, effects);
        let (lo, hi) = self.strips.get(key).map(|strip| (strip.lo, strip.hi)).expect("it was checked");
        self.write_lane(now, key, slot, lo, hi, effects);
        self.set_phase(key, Phase::Writing);
    }

    fn start_fills(&mut self, now: Time) {
        if std::mem::take(&mut self.upkeep.is_exposed) {
            self.upkeep.rush_until = now + RUSH_NS;
        }
        let limit = match self.map.hurry {
            true => HURRY_CHUNKS_MAX as usize,
            false if now < self.upkeep.rush_until => FILL_CHUNKS_MAX as usize,
            false => self.pace.chunks().min(FILL_CHUNKS_MAX as usize),
        };
        let reserve = (SCRATCH_LARGE_COUNT - FILL_CHUNKS_MAX) as usize / 2;
        while self.upkeep.fills_open < limit && self.scratch.large_free() > reserve {
            let Some((group, slot)) = self.next_to_fill(now) else { return };
            self.upkeep.fills_open += 1;
            let end = self.used(group);
            let step = self.lane_max();
            let fill = self.fills.get_mut(&(group, slot)).expect("just found");
            let (lo, to) = (fill.begun, fill.to);
            let hi = (lo / step * step + step).min(end);
            (fill.begun, fill.open) = (hi, fill.open + 1);
            self.add_strip(None, Work::Fill { slot, to }, group, lo, hi);
        }
    }

    /// Those first whose group can lose the fewest more; of them the ones with the fewest chunks on their
    /// way; then in order, so that some are complete early: that is when a donor gets its memory back.
    fn next_to_fill(&self, now: Time) -> Option<(u32, u32)> {
        let able = |(key, fill): &(&(u32, u32), &Fill)| {
            let ready = fill.pause_until <= now && fill.begun < self.used(key.0);
            ready && self.links.get(&fill.to.donor).is_some_and(Link::is_up)
        };
        let slots = |group: u32| self.map.groups[group as usize].slots.iter();
        let held = |group: u32| slots(group).filter(|slot| slot.held.is_some()).count();
        let best = self.fills.iter().filter(able).min_by_key(|(key, fill)| (held(key.0), fill.open, **key));
        best.map(|(key, _)| *key)
    }

    pub(super) fn write_filled(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        to: Placement,
        effects: &mut Vec<Effect>,
    ) {
        self.drop_parts(key, effects);
        let (fragment, at) = (self.fragment(key, slot), self.lane(key, slot));
        let strip = self.strips.get(key).expect("it was checked");
        let scatter = Scatter::whole(at.offset, strip.len());
        if strip.tries == 0 {
            effects.push(Effect::Learn { fragment, copies: 1, mem: at.mem, scatter });
        }
        let (lo, scatter) = (strip.lo, Scatter::whole(at.offset, strip.len()));
        let known = self.links.contains_key(&to.donor);
        if !known || !self.add_part(now, key, slot, to, PartOp::Sparse, lo, at.mem, scatter, effects) {
            return self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
        }
        self.set_phase(key, Phase::Writing);
    }

    fn fill_ended(&mut self, now: Time, strip: &Strip, slot: u32, to: Placement, done: bool) {
        self.upkeep.fills_open -= 1;
        let same = |fill: &&mut Fill| fill.to == to;
        let Some(fill) = self.fills.get_mut(&(strip.group, slot)).filter(same) else { return };
        let counts = fill.since < strip.born;
        fill.open -= usize::from(counts);
        if done && strip.missed.is_empty() {
            if !counts {
                return;
            }
            fill.have(strip.lo, strip.hi);
            self.upkeep.any_filled = true;
            self.report.fill_done += u64::from(strip.len());
            self.report.rate_bytes += u64::from(strip.len());
        } else {
            if counts {
                fill.restart(self.born);
            }
            fill.pause_until = now + PAUSE_NS;
        }
    }

    /// Begins a pass over all fragments, unless one is under way.
    pub(super) fn start_scrub(&mut self) {
        if self.upkeep.scrub.is_none() && self.geometry.parity > 0 {
            self.upkeep.scrub = Some((0, 0));
            self.report.scrub_done = 0;
            self.upkeep_due = true;
        }
    }

    fn start_scrubs(&mut self, now: Time) {
        if self.upkeep.scrub_at == 0 {
            self.upkeep.scrub_at = now + SCRUB_EVERY_NS;
        } else if self.upkeep.scrub_at <= now {
            self.upkeep.scrub_at = now + SCRUB_EVERY_NS;
            self.start_scrub();
        }
        while self.upkeep.scrubs_open < SCRUBS_MAX {
            let Some((group, lo)) = self.upkeep.scrub else { return };
            if group as usize >= self.map.groups.len() {
                if self.upkeep.scrubs_open == 0 {
                    self.upkeep.scrub = None;
                    self.report.scrub_passes += 1;
                }
                return;
            }
            let used = self.used(group);
            // Beside what is read there is the parity that it should have.
            let hi = (lo + (self.lane_max() / 2 / BLOCK * BLOCK).max(BLOCK)).min(used);
            self.upkeep.scrub = Some(if hi < used { (group, hi) } else { (group + 1, 0) });
            self.upkeep.scrubs_open += 1;
            self.add_strip(None, Work::Scrub, group, lo, hi);
        }
    }

    /// Every lane agreed with what is known of it, or the read had failed. Do they agree with each other?
    pub(super) fn compare_lanes(&mut self, key: Key, effects: &mut Vec<Effect>) {
        let geometry = self.geometry;
        let strip = self.strips.get(key).expect("it has read");
        let (have, len, group) = (strip.have, strip.len(), strip.group);
        let all = geometry.data + geometry.parity;
        let torn =
            self.is_torn(group, strip.lo, strip.hi) || self.missed_there(group, strip.lo, strip.hi) != 0;
        if have.count_ones() < all || torn {
            return self.set_phase(key, Phase::Checking);
        }
        let should = |number: u32| {
            let first = self.lane(key, all);
            At { offset: first.offset + number * len, ..first }
        };
        let inputs = (0..geometry.data).map(|slot| self.lane(key, slot)).collect();
        let outputs: Vec<At> = (0..geometry.parity).map(should).collect();
        let coefficients = self.encoding(0..geometry.data);
        effects.push(Effect::Combine(Combine {
            len,
            coefficients,
            inputs,
            outputs: outputs.clone(),
            add: false,
        }));
        for (number, a) in (0u32..).zip(outputs) {
            let b = self.lane(key, geometry.data + number);
            effects.push(Effect::Compare { strip: key, a, b, len });
        }
        self.strips.get_mut(key).expect("it has read").open += geometry.parity;
        self.set_phase(key, Phase::Checking);
    }

    pub(super) fn scrubbed(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it was checked");
        let (failed, len) = (strip.failed.is_some(), strip.len());
        let whole = strip.have.count_ones() == self.geometry.data + self.geometry.parity;
        if failed {
            self.report.scrub_mismatches += 1;
        } else if whole {
            for slot in slots_of(strip.have) {
                let (fragment, at) = (self.fragment(key, slot), self.lane(key, slot));
                let scatter = Scatter::whole(at.offset, len);
                effects.push(Effect::Learn { fragment, copies: 1, mem: at.mem, scatter });
            }
        }
        self.report.scrub_done += u64::from(len) * u64::from(self.geometry.data);
        self.end_strip(now, key, Ok(()), effects);
    }

    /// Tells the donors what is settled: all writes that were sent before the last time.
    fn start_age(&mut self, now: Time) {
        let due = self.upkeep.age_due > 0 && now >= self.upkeep.aged_at + DIRTY_AGE_NS;
        if due || (self.upkeep.age_due > 0 && self.upkeep.finishing.is_some()) {
            self.age_now(now);
        }
    }

    /// A donor that was away may have marks that were settled meanwhile.
    pub(super) fn age_again(&mut self) {
        if self.geometry.parity > 0 && !self.read_only {
            self.upkeep.age_due = 2;
        }
    }

    /// Nothing may be on its way to a donor that is gone, so that nobody would find out. It is asked for
    /// something, and so are the others: that tells whether it is silent, or this machine is cut off
    /// (`look_at_links`). One that answers stays, whatever the coordinator hears of it.
    pub(super) fn ask_donors(&mut self, silent: &[DonorId]) {
        let rebuilds = self.geometry.parity > 0 && !self.read_only && !self.lease_lost;
        if !rebuilds || self.stage != Stage::Serving || self.upkeep.finishing.is_some() {
            return;
        }
        let up = |donor: &DonorId| self.links.get(donor).is_some_and(Link::is_up);
        if !silent.iter().any(up) {
            return;
        }
        let mut asks = BTreeMap::new();
        for (group, of) in (0..).zip(&self.map.groups) {
            for (slot, places) in (0..).zip(&of.slots) {
                for of in places.held.into_iter().chain(places.filling).filter(|of| up(&of.donor)) {
                    asks.entry(of.donor).or_insert((group, slot, of));
                }
            }
        }
        // Where there are very many, those first that it is about.
        let (first, then): (Vec<_>, Vec<_>) = asks.into_iter().partition(|(donor, _)| silent.contains(donor));
        for (donor, (group, slot, of)) in first.into_iter().chain(then) {
            if self.strips.room() > STRIPS_MAX / 2 && self.upkeep.asked.insert(donor) {
                self.add_strip(None, Work::Ask { slot, of }, group, 0, 0);
            }
        }
    }

    pub(super) fn begin_ask(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        of: Placement,
        effects: &mut Vec<Effect>,
    ) {
        let (mem, scatter) = (Mem::Nothing, Scatter::whole(0, BLOCK));
        if self.links.contains_key(&of.donor) {
            self.add_part(now, key, slot, of, PartOp::Status, 0, mem, scatter, effects);
        }
        self.set_phase(key, Phase::Reading);
    }

    fn age_now(&mut self, now: Time) {
        let mark = self.upkeep.age_mark;
        let unsettled = |strip: &Strip| strip.born <= mark && strip.is_write();
        let open = self.strips.iter().any(|(_, strip)| unsettled(strip));
        let noticed = self.geometry.data == 1 || now >= self.upkeep.settled_at + READ_TOGETHER_NS;
        if self.upkeep.age_open || open || !noticed || !self.torn.is_empty() || self.stage != Stage::Serving {
            return;
        }
        (self.upkeep.aged_at, self.upkeep.age_open) = (now, true);
        self.upkeep.age_due -= 1;
        self.add_strip(None, Work::Age, 0, 0, 0);
    }

    pub(super) fn begin_age(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let up = self.links.iter().filter(|(_, link)| link.is_up() && link.fenced);
        for donor in up.map(|(donor, _)| *donor).collect::<Vec<DonorId>>() {
            let nowhere = Placement { donor, extent: 0 };
            self.add_part(now, key, 0, nowhere, PartOp::Age, 0, Mem::Nothing, Scatter::whole(0, 0), effects);
        }
        self.set_phase(key, Phase::Reading);
    }

    /// The volume's user is done with it.
    pub(super) fn finish(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.end_fetches(now, effects);
        self.upkeep.finishing = Some(now + FINISH_NS);
        self.upkeep_due = true;
    }

    /// Ages twice, so that the next writer finds nothing to resync; then it is finished.
    fn wind_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let idle = self.requests.len() == 0 && self.strips.len() == 0;
        let speaks = !self.read_only && !self.lease_lost;
        let settled =
            self.upkeep.age_due == 0 || !self.torn.is_empty() || self.stage != Stage::Serving || !speaks;
        let late = self.upkeep.finishing.is_some_and(|until| until <= now);
        // A donor whose link is just being opened anew has yet to be told.
        let opening = speaks && self.geometry.parity > 0 && !self.links.values().all(Link::is_settled);
        if late || (idle && settled && !opening) {
            if !std::mem::replace(&mut self.finished, true) {
                effects.push(Effect::Finished);
            }
        } else if idle
            && !settled
            && (self.geometry.data == 1 || now >= self.upkeep.aged_at + 2 * READ_TOGETHER_NS)
        {
            // Readers that rebuild count on it that marks last for so long.
            self.age_now(now);
        }
    }

    pub(super) fn upkeep_ended(&mut self, now: Time, strip: &Strip, result: Result<(), VolumeError>) {
        let done = result.is_ok() && strip.failed.is_none();
        if strip.is_write() && self.geometry.parity > 0 {
            self.upkeep.age_due = 2;
            // A reader may have read one slot before it and another after it.
            if strip.born <= self.upkeep.age_mark || matches!(strip.work, Work::Resync | Work::Mend { .. }) {
                self.upkeep.settled_at = now;
            }
        }
        match strip.work {
            Work::Fill { slot, to } => self.fill_ended(now, strip, slot, to, done),
            Work::Heal { slot } => {
                let chunk = (strip.group, slot, strip.lo, strip.hi);
                self.upkeep.heals_open -= 1;
                self.upkeep.healing.remove(&chunk);
                let blocks = self.upkeep.heals.remove(&chunk).unwrap_or(0);
                if done {
                    self.report.healed += u64::from(blocks);
                } else if strip.len() > BLOCK {
                    // Other slots may be wrong in other rows of it.
                    let block = |at: u32| (strip.group, slot, at, at + BLOCK);
                    let mut each = (strip.lo..strip.hi).step_by(BLOCK as usize).map(block);
                    let first = each.next().map(|chunk| (chunk, blocks));
                    self.upkeep.heals.extend(first.into_iter().chain(each.map(|chunk| (chunk, 0))));
                } else {
                    // Whoever reads it finds it again; until then there is no use in trying.
                    self.upkeep.heal_pause_until = now + PAUSE_NS;
                }
            }
            Work::Mend { slot } => self.mend_ended(now, strip, slot, done),
            Work::Resync => {
                let same = |torn: &Torn| (torn.group, torn.lo, torn.hi) == (strip.group, strip.lo, strip.hi);
                self.resyncs.open -= 1;
                self.resyncing.retain(|torn| !same(torn));
                if done {
                    self.torn.retain(|torn| !same(torn));
                    self.look_at_waiting();
                } else {
                    self.resyncs.pause_until = now + PAUSE_NS;
                }
            }
            Work::Survey => {
                self.resyncs.surveys_open -= 1;
                self.resyncs.resurveyed.remove(&strip.group);
            }
            Work::Scrub => self.upkeep.scrubs_open -= 1,
            Work::Age => {
                // A write on another connection may have overtaken it until it was answered.
                (self.upkeep.age_open, self.upkeep.age_mark, self.upkeep.aged_at) = (false, self.born, now);
            }
            Work::Ask { of, .. } => {
                self.upkeep.asked.remove(&of.donor);
            }
            _ => return,
        }
        self.upkeep_due = true;
    }

    /// A write that covers what was lost for good makes it readable again.
    pub(super) fn note_rewritten(&mut self, key: Key) {
        let strip = self.strips.get(key).expect("it has written");
        let Some(span) = strip.span() else { return };
        let known = self.lost_ranges();
        let mut rewritten = Vec::new();
        for bad in known.filter(|bad| bad.group == span.group) {
            let (from, to) = self.geometry.column(span.begin, span.end, bad.slot);
            let from = from.max(bad.from).max(strip.lo).next_multiple_of(BLOCK);
            let to = to.min(bad.to).min(strip.hi) / BLOCK * BLOCK;
            if from < to {
                rewritten.push(BadRange { from, to, ..*bad });
            }
        }
        // What a write covers of what the source could not give is known from then on, to the byte.
        for slot in (0..self.geometry.data).filter(|_| !self.map.unreadable.is_empty()) {
            let (from, to) = self.geometry.column(span.begin, span.end, slot);
            let (from, to) = (from.max(strip.lo), to.min(strip.hi));
            let touched = touched_of(&self.map.unreadable, span.group, slot, from, to);
            rewritten.extend(touched.map(|run| BadRange {
                from: from.max(run.from),
                to: to.min(run.to),
                ..*run
            }));
        }
        if !rewritten.is_empty() {
            self.report_rewritten(rewritten);
        }
    }

    pub(super) fn tick_upkeep(&mut self, now: Time) {
        let filling = !self.fills.is_empty();
        self.pace.tick(now, filling);
        let report = &mut self.report;
        if filling && now >= report.rate_since + SECOND_NS {
            let elapsed = now - report.rate_since;
            let rate =
                u64::try_from(u128::from(report.rate_bytes) * u128::from(SECOND_NS) / u128::from(elapsed));
            report.fill_rate = rate.unwrap_or(0);
            (report.rate_since, report.rate_bytes) = (now, 0);
        }
        self.upkeep_due = true;
    }

    /// What `status` shows of this volume.
    #[must_use]
    pub fn report(&self) -> VolumeReport {
        let tally = &self.report;
        let counts = self.cached.as_ref().map(Cached::counts).unwrap_or_default();
        VolumeReport {
            fill_bytes_done: tally.fill_done,
            fill_bytes_total: tally.fill_total,
            fill_bytes_per_second: tally.fill_rate,
            // It counts whole units.
            scrub_bytes_done: tally.scrub_done.min(self.map.size),
            scrub_bytes_total: self.map.size,
            scrub_passes: tally.scrub_passes,
            scrub_mismatches: tally.scrub_mismatches,
            corrupt_blocks: tally.corrupt.iter().map(|(donor, blocks)| (*donor, *blocks)).collect(),
            healed_blocks: tally.healed,
            reads_rebuilt: tally.reads_rebuilt,
            reads_here: counts.here,
            reads_coming: counts.coming,
            reads_asked: counts.asked,
            ahead_bytes_used: counts.bytes_used,
            ahead_bytes_unread: counts.bytes_unread,
        }
    }

    /// Whether there is something that a clock must look after.
    pub(super) fn upkeep_waits(&self) -> bool {
        !self.fills.is_empty()
            || !self.torn.is_empty()
            || !self.resyncs.unsure.is_empty()
            || !self.upkeep.heals.is_empty()
            || self.upkeep.scrub.is_some()
            || self.upkeep.finishing.is_some()
            || self.stage != Stage::Serving
    }

    /// Looked at by ticks, so not before the next one.
    pub(super) fn age_at(&self) -> Option<Time> {
        let at = (self.upkeep.aged_at + DIRTY_AGE_NS).max(self.ticked_at + TICK_NS);
        (self.upkeep.age_due > 0).then_some(at)
    }

    pub(super) fn plan(&mut self, now: Time, request: Key, op: Op, span: Span) {
        match op {
            Op::Read => self.plan_read(request, span),
            Op::Status => {
                let (lo, hi) = self.local_range(span);
                self.add_strip(Some(request), Work::Status(span), span.group, lo, hi);
            }
            _ => self.plan_write(now, request, span, Content::of(op)),
        }
    }
}

const _: () = assert!(EXTENT_BYTES.is_multiple_of(BLOCK_BYTES));
