//! Writes: to every copy, in whole rows with their parity, or changed in place under the row's lock.
//!
//! Owns what is written where, and that nothing is acknowledged before every slot has it or the coordinator
//! has recorded which donors missed it. Never: repair. Invariant: a write that failed half-way leaves its
//! range `torn` until it is resynced. Tests: `tests/volume_exclusion.rs`, the simulator.

use super::link::Trust;
use super::strip::{Content, Failure, Missed, Phase, Slots, Work, bit, slots_of};
use super::types::{At, Combine, Effect, Fragment, Mem, PartError, PartOp, VolumeError};
use super::{Key, Volume};
use crate::layout::{Scatter, Span};
use crate::limits::{BLOCK_BYTES, SCRATCH_LARGE_BYTES};
use crate::map::Placement;
use crate::units::Time;

const BLOCK: u32 = BLOCK_BYTES as u32;

impl Volume {
    /// Cuts the write of one span into strips.
    pub(super) fn plan_write(&mut self, now: Time, request: Key, span: Span, content: Content) {
        // Whole blocks go as they are, or whole rows where there is parity; what sticks out is read and
        // changed.
        let rows = self.geometry.data > 1 && self.geometry.parity > 0;
        let span =
            if rows && content == Content::Payload { self.keep_ends(now, request, span) } else { span };
        if span.begin == span.end {
            return;
        }
        let grain = if rows { self.geometry.row() } else { BLOCK };
        let (head, tail) = (span.begin.next_multiple_of(grain), span.end / grain * grain);
        // Without parity a patch has memory for the blocks of one slot, so it ends where its block does.
        if head > tail || (head == tail && rows) {
            return self.plan_patches(request, span, content);
        }
        if span.begin < head {
            self.plan_patches(request, span.cut(span.begin, head), content);
        }
        let middle = span.cut(head, tail);
        if rows {
            self.plan_rows(request, middle, content);
        } else if head < tail {
            let (lo, hi) = self.local_range(middle);
            self.add_strip(Some(request), Work::Direct(middle, content), span.group, lo, hi);
        }
        if tail < span.end {
            self.plan_patches(request, span.cut(tail, span.end), content);
        }
    }

    /// As many rows at once as their parity fits into a piece of scratch memory.
    fn plan_rows(&mut self, request: Key, span: Span, content: Content) {
        let (unit, row) = (self.geometry.unit, self.geometry.row());
        let (mut at, end) = (span.begin / row * unit, span.end / row * unit);
        let fits = SCRATCH_LARGE_BYTES / self.geometry.parity / BLOCK * BLOCK;
        let step = match content {
            Content::Payload if fits >= unit => fits / unit * unit,
            Content::Payload => fits,
            _ => end - at,
        };
        while at < end {
            // A part of a row is the same part of each of its units.
            let border = if step < unit { (at / unit + 1) * unit } else { end };
            let to = (at + step).min(border).min(end);
            self.add_strip(Some(request), Work::Rows(span, content), span.group, at, to);
            at = to;
        }
    }

    pub(super) fn plan_patches(&mut self, request: Key, span: Span, content: Content) {
        let (lo, hi) = self.local_range(span);
        let step = if self.geometry.parity == 0 { BLOCK } else { self.lane_max() };
        let borders = self.borders(span);
        let mut at = lo;
        while at < hi {
            let next = borders.iter().copied().filter(|border| *border > at).min().unwrap_or(hi);
            let end = (at / step * step + step).min(hi).min(next);
            if self.wanted(span, at, end) != 0 {
                let work = Work::Patch { span, content, delta: false };
                self.add_strip(Some(request), work, span.group, at, end);
            }
            at = end;
        }
    }

    /// Where, in the blocks of the extents, other slots have a part of the span: a strip is of the same slots
    /// throughout, so that donors can be told of its writes which those are.
    fn borders(&self, span: Span) -> Vec<u32> {
        if self.geometry.data == 1 || self.geometry.parity == 0 {
            return Vec::new();
        }
        let column = |slot| self.geometry.column(span.begin, span.end, slot);
        let columns = (0..self.geometry.data).map(column).filter(|(from, to)| from < to);
        columns.flat_map(|(from, to)| [from / BLOCK * BLOCK, to.next_multiple_of(BLOCK)]).collect()
    }

    /// Who shall have what a strip of this range writes to a slot: its holder, and who is being given it, if
    /// that has some of the range. The strip's lock keeps it so.
    fn targets(&self, group: u32, slot: u32, lo: u32, hi: u32) -> impl Iterator<Item = Placement> + use<> {
        let places = self.map.groups[group as usize].slots[slot as usize];
        let filled = self.fills.get(&(group, slot)).is_some_and(|fill| fill.has_some(lo, hi));
        places.held.into_iter().chain(places.filling.filter(|_| filled))
    }

    /// The parity slots that a write of this range reaches.
    fn parity_targets(&self, group: u32, lo: u32, hi: u32) -> Slots {
        let all = self.geometry.data..self.geometry.data + self.geometry.parity;
        all.filter(|slot| self.targets(group, *slot, lo, hi).next().is_some()).map(bit).sum()
    }

    #[expect(clippy::too_many_arguments, reason = "what is written where")]
    fn write_slot(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        op: PartOp,
        local: u32,
        mem: Mem,
        scatter: Scatter,
        effects: &mut Vec<Effect>,
    ) {
        let strip = self.strips.get(key).expect("it writes");
        let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
        for placement in self.targets(group, slot, lo, hi) {
            if !self.add_part(now, key, slot, placement, op, local, mem, scatter, effects) {
                self.strips.get_mut(key).expect("it writes").missed.push(Missed { slot, placement });
            }
        }
    }

    /// From now on this is what the slot, and so many behind it, hold, whoever may have missed it.
    #[expect(clippy::too_many_arguments, reason = "what is written where")]
    fn learn(
        &self,
        key: Key,
        slot: u32,
        copies: u32,
        op: PartOp,
        local: u32,
        mem: Mem,
        scatter: Scatter,
        effects: &mut Vec<Effect>,
    ) {
        let group = self.strips.get(key).expect("it writes").group;
        let fragment = Fragment { group, slot, local };
        effects.push(match op {
            PartOp::Trim => Effect::Forget { fragment, len: scatter.len },
            _ => Effect::Learn { fragment, copies, mem, scatter },
        });
    }

    pub(super) fn begin_direct(
        &mut self,
        now: Time,
        key: Key,
        span: Span,
        content: Content,
        effects: &mut Vec<Effect>,
    ) {
        let mem = if content == Content::Payload { self.payload(key) } else { Mem::Nothing };
        let op = self.part_op(content);
        // Without parity a slot, otherwise all copies of the only one.
        let slots = self.geometry.parity + 1;
        for first in slots_of(self.geometry.touched(span.begin, span.end)) {
            let (from, to) = self.geometry.column(span.begin, span.end, first);
            let scatter = self.geometry.scatter(first, from, to, span.begin, span.payload);
            self.learn(key, first, slots, op, from, mem, scatter, effects);
            for slot in first..first + slots {
                self.write_slot(now, key, slot, op, from, mem, scatter, effects);
            }
        }
        self.set_phase(key, Phase::Writing);
    }

    /// With redundancy all slots must agree, so a hint that a server may ignore becomes an order.
    fn part_op(&self, content: Content) -> PartOp {
        match content {
            Content::Trim if self.geometry.parity > 0 => PartOp::Zero { keep: false },
            other => other.part_op(),
        }
    }

    pub(super) fn begin_rows(
        &mut self,
        now: Time,
        key: Key,
        span: Span,
        content: Content,
        effects: &mut Vec<Effect>,
    ) {
        let geometry = self.geometry;
        let (lo, hi) = self.strips.get(key).map(|strip| (strip.lo, strip.hi)).expect("being begun");
        let op = self.part_op(content);
        let (payload, parity) = match content {
            Content::Payload => {
                self.encode_rows(key, span, effects);
                (
                    self.payload(key),
                    Mem::Scratch(self.strips.get(key).and_then(|s| s.scratch).expect("taken before")),
                )
            }
            _ => (Mem::Nothing, Mem::Nothing),
        };
        for slot in 0..geometry.data {
            let scatter = geometry.scatter(slot, lo, hi, span.begin, span.payload);
            self.learn(key, slot, 1, op, lo, payload, scatter, effects);
            self.write_slot(now, key, slot, op, lo, payload, scatter, effects);
        }
        for number in 0..geometry.parity {
            let offset = if content == Content::Payload { number * (hi - lo) } else { 0 };
            let scatter = Scatter::whole(offset, hi - lo);
            self.learn(key, geometry.data + number, 1, op, lo, parity, scatter, effects);
            self.write_slot(now, key, geometry.data + number, op, lo, parity, scatter, effects);
        }
        self.set_phase(key, Phase::Writing);
    }

    /// The parity of rows whose data is in the payload, unit by unit.
    fn encode_rows(&mut self, key: Key, span: Span, effects: &mut Vec<Effect>) {
        let geometry = self.geometry;
        let mem = self.payload(key);
        let strip = self.strips.get(key).expect("being begun");
        let (lo, hi, piece) = (strip.lo, strip.hi, strip.scratch.expect("taken before it began"));
        let mut at = lo;
        while at < hi {
            let len = (geometry.unit - at % geometry.unit).min(hi - at);
            let position = |slot| geometry.offset(slot, at) - span.begin + span.payload;
            let inputs = (0..geometry.data).map(|slot| At { mem, offset: position(slot) }).collect();
            let output =
                |number: u32| At { mem: Mem::Scratch(piece), offset: number * (hi - lo) + (at - lo) };
            let outputs = (0..geometry.parity).map(output).collect();
            let coefficients = self.encoding(0..geometry.data);
            effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: false }));
            at += len;
        }
    }

    /// The parity lanes from the data lanes.
    pub(super) fn encode_lanes(&mut self, key: Key, effects: &mut Vec<Effect>) {
        let (data, slots) = (self.geometry.data, self.geometry.data + self.geometry.parity);
        let len = self.strips.get(key).expect("a strip with lanes").len();
        let inputs = (0..data).map(|slot| self.lane(key, slot)).collect();
        let outputs = (data..slots).map(|slot| self.lane(key, slot)).collect();
        let coefficients = self.encoding(0..data);
        effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: false }));
    }

    /// Coefficients of all parity for these data slots.
    pub(super) fn encoding(&self, data: std::ops::Range<u32>) -> Vec<u8> {
        (0..self.geometry.parity)
            .flat_map(|parity| data.clone().map(move |slot| (parity, slot)))
            .map(|(parity, slot)| self.code.coefficient(parity, slot))
            .collect()
    }

    /// Chooses between the old data with the old parity, and the rest of the row: whatever asks for less.
    pub(super) fn begin_patch(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get_mut(key).expect("being begun");
        let Work::Patch { span, content, .. } = strip.work else { unreachable!("begun as a patch") };
        let group = strip.group;
        let good = |slot: u32| self.source(group, slot).is_some_and(|(_, trust)| trust == Trust::Good);
        let by_delta = self.patch_needs(key, span, true);
        let by_row = self.patch_needs(key, span, false);
        let all_row = slots_of(by_row).all(good);
        let row_reads = if all_row { by_row.count_ones() } else { self.geometry.data };
        let delta = self.geometry.data > 1
            && self.geometry.parity > 0
            && slots_of(by_delta).all(good)
            && by_delta.count_ones() < row_reads;
        self.strips.get_mut(key).expect("being begun").work = Work::Patch { span, content, delta };
        self.read_lanes(now, key, effects);
    }

    /// The slots whose old content a patch needs.
    pub(super) fn patch_needs(&self, key: Key, span: Span, delta: bool) -> Slots {
        let geometry = self.geometry;
        let strip = self.strips.get(key).expect("a patch");
        let touched = self.wanted(span, strip.lo, strip.hi);
        let parity = self.parity_targets(strip.group, strip.lo, strip.hi);
        if delta {
            return touched | parity;
        }
        let covered = |slot: &u32| {
            let (from, to) = geometry.column(span.begin, span.end, *slot);
            from <= strip.lo && strip.hi <= to
        };
        // Without parity to compute, only blocks that are written in part need what they held.
        let any_parity = geometry.data > 1 && parity != 0;
        (0..geometry.data)
            .filter(|slot| !covered(slot) && (any_parity || touched & bit(*slot) != 0))
            .map(bit)
            .sum()
    }

    /// The lanes are there: changes them, computes parity and writes what changed.
    pub(super) fn patch_lanes(
        &mut self,
        now: Time,
        key: Key,
        span: Span,
        content: Content,
        delta: bool,
        effects: &mut Vec<Effect>,
    ) {
        let geometry = self.geometry;
        self.drop_parts(key, effects);
        let (lo, hi) = self.strips.get(key).map(|strip| (strip.lo, strip.hi)).expect("it has read");
        let touched = self.wanted(span, lo, hi);
        for slot in slots_of(touched) {
            self.overlay(key, span, content, slot, delta, effects);
        }
        if geometry.parity > 0 && !delta {
            self.encode_lanes(key, effects);
        }
        let (mut first, mut last) = (hi, lo);
        for slot in slots_of(touched) {
            let (from, to) = geometry.column(span.begin, span.end, slot);
            let (from, to) = (from.max(lo) / BLOCK * BLOCK, to.min(hi).next_multiple_of(BLOCK));
            (first, last) = (first.min(from), last.max(to));
            self.write_lane(now, key, slot, from, to, effects);
        }
        let group = self.strips.get(key).expect("it has read").group;
        let reached = self.parity_targets(group, lo, hi);
        for slot in geometry.data..geometry.data + geometry.parity {
            // Where nobody holds parity, what it takes to compute it was not read.
            if reached & bit(slot) != 0 || (!delta && reached != 0) {
                self.write_lane(now, key, slot, first, last, effects);
            } else {
                let fragment = Fragment { group, slot, local: first };
                effects.push(Effect::Forget { fragment, len: last - first });
            }
        }
        self.set_phase(key, Phase::Writing);
    }

    /// Puts the new bytes over the old ones of a lane; with `delta` parity lanes take on the difference.
    fn overlay(
        &mut self,
        key: Key,
        span: Span,
        content: Content,
        slot: u32,
        delta: bool,
        effects: &mut Vec<Effect>,
    ) {
        let geometry = self.geometry;
        let mem = if content == Content::Payload { self.payload(key) } else { Mem::Nothing };
        let (lo, hi) = self.strips.get(key).map(|strip| (strip.lo, strip.hi)).expect("it has read");
        let lane = self.lane(key, slot);
        for (local, payload, len) in self.overlap(span, slot, lo, hi) {
            let old = At { offset: lane.offset + (local - lo), ..lane };
            let new = At { mem, offset: payload };
            if delta {
                let mut inputs = vec![old];
                inputs.extend((content == Content::Payload).then_some(new));
                let coefficients = (0..geometry.parity)
                    .flat_map(|parity| std::iter::repeat_n(self.code.coefficient(parity, slot), inputs.len()))
                    .collect();
                let outputs = (0..geometry.parity).map(|number| {
                    let parity = self.lane(key, geometry.data + number);
                    At { offset: parity.offset + (local - lo), ..parity }
                });
                let outputs = outputs.collect();
                effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: true }));
            }
            match content {
                Content::Payload => effects.push(Effect::Copy { from: new, to: old, len }),
                _ => effects.push(Effect::Zero { at: old, len }),
            }
        }
    }

    /// One lane's content to another slot.
    #[expect(clippy::too_many_arguments, reason = "what is written where")]
    pub(super) fn write_from(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        local: u32,
        from: At,
        len: u32,
        effects: &mut Vec<Effect>,
    ) {
        let scatter = Scatter::whole(from.offset, len);
        self.learn(key, slot, 1, PartOp::Write, local, from.mem, scatter, effects);
        self.write_slot(now, key, slot, PartOp::Write, local, from.mem, scatter, effects);
    }

    pub(super) fn write_lane(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        from: u32,
        to: u32,
        effects: &mut Vec<Effect>,
    ) {
        let lane = self.lane(key, slot);
        let lo = self.strips.get(key).expect("it writes").lo;
        let scatter = Scatter::whole(lane.offset + (from - lo), to - from);
        self.learn(key, slot, 1, PartOp::Write, from, lane.mem, scatter, effects);
        self.write_slot(now, key, slot, PartOp::Write, from, lane.mem, scatter, effects);
    }

    /// A write part of any strip has no good answer; `missed` was noted by the caller.
    pub(super) fn write_failed(&mut self, key: Key, missed: Missed, failure: Failure) {
        let strip = self.strips.get_mut(key).expect("looked at by the caller");
        if self.geometry.parity == 0 {
            let slot = self.map.groups[strip.group as usize].slots[missed.slot as usize];
            if slot.held == Some(missed.placement) {
                strip.failed.get_or_insert(failure.error());
            }
            return;
        }
        let why = match failure {
            Failure::Answer(PartError::NoMemory) => "it has no memory left",
            Failure::Answer(PartError::Denied) => "it refused the lease",
            Failure::Answer(_) => "it answered a write with an error",
            Failure::Down | Failure::Late | Failure::Moved => return,
        };
        self.exclude(missed.placement.donor, why.to_owned());
    }

    /// Every part is answered or failed: is the write where it must be?
    pub(super) fn writing_done(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it has written");
        let (group, missed, failed) = (strip.group, strip.missed.clone(), strip.failed);
        let is_resync = matches!(strip.work, Work::Resync | Work::Mend { .. });
        if let Some(error) = failed {
            return self.end_strip(now, key, Err(error), effects);
        }
        if self.lease_lost && !missed.is_empty() {
            return self.end_strip(now, key, Err(VolumeError::LeaseLost), effects);
        }
        let (mut lost, mut waits) = (0, Vec::new());
        for missed in missed {
            let slot = self.map.groups[group as usize].slots[missed.slot as usize];
            if slot.held == Some(missed.placement) {
                lost |= bit(missed.slot);
            }
            if self.may_hold(group, missed.slot, missed.placement) {
                waits.push(missed);
            } else if slot.filling == Some(missed.placement) {
                self.unfill(group, missed.slot, strip_lo(self, key));
            }
        }
        let held = (0..self.geometry.data + self.geometry.parity)
            .filter(|slot| lost & bit(*slot) == 0 && self.is_held(group, *slot))
            .count();
        if waits.is_empty() && held >= self.geometry.data as usize {
            return match self.is_recorded_as_rewritten(key) {
                true => self.end_strip(now, key, Ok(()), effects),
                false if self.lease_lost => self.end_strip(now, key, Err(VolumeError::LeaseLost), effects),
                false => self.wait_for_the_coordinator(key),
            };
        }
        if held < self.geometry.data as usize {
            return self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
        }
        for missed in &waits {
            let why = self.links.get(&missed.placement.donor).and_then(|link| match &link.state {
                super::link::State::Down { why, .. } => Some(why.clone()),
                _ => None,
            });
            self.exclude(missed.placement.donor, why.unwrap_or_else(|| "it missed a write".to_owned()));
        }
        if is_resync {
            // It is done again when that is settled; who reads there meanwhile waits for no coordinator.
            return self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
        }
        self.drop_parts(key, effects);
        self.free_scratch(key);
        self.strips.get_mut(key).expect("it has written").missed = waits;
        self.wait_for_the_coordinator(key);
    }

    /// What was lost for good and is written again answers errors to the next attachment until the
    /// coordinator has heard of it, so the write is acknowledged only then. This one may read it at once.
    fn is_recorded_as_rewritten(&mut self, key: Key) -> bool {
        let strip = self.strips.get(key).expect("it has written");
        if !strip.is_users_write() {
            return true;
        }
        let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
        self.note_rewritten(key);
        !self.is_rewritten_unheard(group, lo, hi)
    }

    fn wait_for_the_coordinator(&mut self, key: Key) {
        self.strips.get_mut(key).expect("it has written").phase = Phase::Excluding;
    }

    /// A write ended without reaching everyone. Who has it fits together, since all of it was sent: it is
    /// well again when those that missed it are no holders any more, or else when the rows were resynced.
    pub(super) fn tear(&mut self, strip: &super::strip::Strip, effects: &mut Vec<Effect>) {
        let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
        let alone = self.geometry.parity == 0;
        for slot in 0..self.geometry.data + self.geometry.parity {
            // Without redundancy, who has it has what was sent.
            if !alone || strip.missed.iter().any(|missed| missed.slot == slot) {
                effects.push(Effect::Forget { fragment: Fragment { group, slot, local: lo }, len: hi - lo });
            }
        }
        // Where nobody was there to be sent it, all is as it was.
        if alone || !strip.wrote {
            return;
        }
        // Who missed something before misses it still.
        if matches!(strip.work, Work::Mend { .. }) {
            return;
        }
        // Whatever did not fit together there does now, but for who missed this.
        if matches!(strip.work, Work::Resync) {
            self.torn.retain(|torn| (torn.group, torn.lo, torn.hi) != (group, lo, hi));
        }
        let mut slots: Slots = 0;
        for missed in &strip.missed {
            let places = self.map.groups[group as usize].slots[missed.slot as usize];
            if self.may_hold(group, missed.slot, missed.placement) {
                slots |= bit(missed.slot);
                self.exclude(missed.placement.donor, "it missed a write".to_owned());
            } else if places.filling == Some(missed.placement) {
                self.unfill(group, missed.slot, lo);
            }
        }
        if slots != 0 {
            let enough =
                super::resync::enough_without(&self.map.groups[group as usize], slots, self.geometry.data);
            self.torn.push(super::resync::Torn { group, lo, hi, missed: if enough { slots } else { 0 } });
        }
    }
}

fn strip_lo(volume: &Volume, key: Key) -> u32 {
    volume.strips.get(key).expect("it has written").lo
}
