//! Writes: to every copy, in whole rows with their parity, or changed in place under the row's lock.
//!
//! Owns what is written where, and that nothing is acknowledged before every slot has it or the coordinator
//! has recorded which donors missed it. Never: repair. Invariant: a write that failed half-way leaves its
//! range `torn` until it is resynced. Tests: `tests/volume_exclusion.rs`, the simulator.

use super::base::Base;
use super::doubts::Torn;
use super::job::{Content, Failure, Job, Missed, Part, Phase, Run, Slots, Work, bit, slots_of};
use super::link::{State, Trust};
use super::shape::touched_of;
use super::types::{At, Combine, Effect, Fragment, Mem, PartError, VolumeError};
use super::{BLOCK, Key, doubts, fill, join, lanes};
use crate::layout::Span;
use crate::limits::SCRATCH_LARGE_BYTES;
use crate::map::BadRange;

/// Cuts the write of one span into jobs.
pub(super) fn plan(base: &mut Base, request: Key, span: Span, content: Content) {
    // Whole blocks go as they are, or whole rows where there is parity; what sticks out is read and
    // changed.
    let rows = base.shape.geometry.data > 1 && base.shape.geometry.parity > 0;
    let span = if rows && content == Content::Payload { join::keep_ends(base, request, span) } else { span };
    if span.begin == span.end {
        return;
    }
    let grain = if rows { base.shape.geometry.row() } else { BLOCK };
    let (head, tail) = (span.begin.next_multiple_of(grain), span.end / grain * grain);
    // Without parity a patch has memory for the blocks of one slot, so it ends where its block does.
    if head > tail || (head == tail && rows) {
        return plan_patches(base, request, span, content);
    }
    if span.begin < head {
        plan_patches(base, request, span.cut(span.begin, head), content);
    }
    let middle = span.cut(head, tail);
    if rows {
        plan_rows(base, request, middle, content);
    } else if head < tail {
        let (lo, hi) = base.shape.local_range(middle);
        base.add_job(Some(request), Work::Direct(middle, content), span.group, lo, hi);
    }
    if tail < span.end {
        plan_patches(base, request, span.cut(tail, span.end), content);
    }
}

/// As many rows at once as their parity fits into a piece of scratch memory.
fn plan_rows(base: &mut Base, request: Key, span: Span, content: Content) {
    let (unit, row) = (base.shape.geometry.unit, base.shape.geometry.row());
    let (mut at, end) = (span.begin / row * unit, span.end / row * unit);
    let fits = SCRATCH_LARGE_BYTES / base.shape.geometry.parity / BLOCK * BLOCK;
    let step = match content {
        Content::Payload if fits >= unit => fits / unit * unit,
        Content::Payload => fits,
        _ => end - at,
    };
    while at < end {
        // A part of a row is the same part of each of its units.
        let border = if step < unit { (at / unit + 1) * unit } else { end };
        let to = (at + step).min(border).min(end);
        base.add_job(Some(request), Work::Rows(span, content), span.group, at, to);
        at = to;
    }
}

pub(super) fn plan_patches(base: &mut Base, request: Key, span: Span, content: Content) {
    let (lo, hi) = base.shape.local_range(span);
    let step = if base.shape.geometry.parity == 0 { BLOCK } else { base.shape.lane_max() };
    let borders = base.shape.borders(span);
    let mut at = lo;
    while at < hi {
        let next = borders.iter().copied().filter(|border| *border > at).min().unwrap_or(hi);
        let end = (at / step * step + step).min(hi).min(next);
        if base.shape.wanted(span, at, end) != 0 {
            let work = Work::Patch { span, content, delta: false };
            base.add_job(Some(request), work, span.group, at, end);
        }
        at = end;
    }
}

pub(super) fn begin_direct(base: &mut Base, key: Key, span: Span, content: Content) {
    let mem = if content == Content::Payload { base.payload(key) } else { Mem::Nothing };
    let op = base.shape.part_op(content);
    // Without parity a slot, otherwise all copies of the only one.
    let slots = base.shape.geometry.parity + 1;
    for first in slots_of(base.shape.geometry.touched(span.begin, span.end)) {
        let (from, to) = base.shape.geometry.column(span.begin, span.end, first);
        let scatter = base.shape.geometry.scatter(first, from, to, span.begin, span.payload);
        lanes::learn(base, key, first, slots, op, Run { local: from, mem, scatter });
        for slot in first..first + slots {
            lanes::write_slot(base, key, slot, op, Run { local: from, mem, scatter });
        }
    }
    base.set_phase(key, Phase::Writing);
}

pub(super) fn begin_rows(base: &mut Base, key: Key, span: Span, content: Content) {
    let geometry = base.shape.geometry;
    let Job { lo, hi, .. } = base.jobs[key];
    let op = base.shape.part_op(content);
    let (payload, parity) = match content {
        Content::Payload => {
            encode_rows(base, key, span);
            (base.payload(key), Mem::Scratch(base.jobs[key].scratch.expect("taken before it began")))
        }
        _ => (Mem::Nothing, Mem::Nothing),
    };
    for slot in 0..geometry.data {
        let scatter = geometry.scatter(slot, lo, hi, span.begin, span.payload);
        lanes::write_one(base, key, slot, op, Run { local: lo, mem: payload, scatter });
    }
    for (number, slot) in (0..).zip(base.shape.parity_slots()) {
        let offset = if content == Content::Payload { number * (hi - lo) } else { 0 };
        let at = At { mem: parity, offset };
        lanes::write_one(base, key, slot, op, Run::whole(lo, at, hi - lo));
    }
    base.set_phase(key, Phase::Writing);
}

/// The parity of rows whose data is in the payload, unit by unit.
fn encode_rows(base: &mut Base, key: Key, span: Span) {
    let geometry = base.shape.geometry;
    let mem = base.payload(key);
    let job = &base.jobs[key];
    let (lo, hi, piece) = (job.lo, job.hi, job.scratch.expect("taken before it began"));
    let mut at = lo;
    while at < hi {
        let len = (geometry.unit - at % geometry.unit).min(hi - at);
        let position = |slot| geometry.offset(slot, at) - span.begin + span.payload;
        let inputs = (0..geometry.data).map(|slot| At { mem, offset: position(slot) }).collect();
        let output = |number: u32| At { mem: Mem::Scratch(piece), offset: number * (hi - lo) + (at - lo) };
        let outputs = (0..geometry.parity).map(output).collect();
        let coefficients = base.shape.encoding();
        base.effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: false }));
        at += len;
    }
}

/// Chooses between the old data with the old parity, and the rest of the row: whatever asks for less.
pub(super) fn begin_patch(base: &mut Base, key: Key) {
    let job = &mut base.jobs[key];
    let Work::Patch { span, content, .. } = job.work else { unreachable!("begun as a patch") };
    let group = job.group;
    let good = |slot: u32| base.source(group, slot).is_some_and(|(_, trust)| trust == Trust::Good);
    let by_delta = lanes::patch_needs(base, key, span, true);
    let by_row = lanes::patch_needs(base, key, span, false);
    let all_row = slots_of(by_row).all(good);
    let row_reads = if all_row { by_row.count_ones() } else { base.shape.geometry.data };
    let delta = base.shape.geometry.data > 1
        && base.shape.geometry.parity > 0
        && slots_of(by_delta).all(good)
        && by_delta.count_ones() < row_reads;
    base.jobs[key].work = Work::Patch { span, content, delta };
    lanes::read(base, key);
}

/// The lanes are there: changes them, computes parity and writes what changed.
pub(super) fn patch_lanes(base: &mut Base, key: Key, span: Span, content: Content, delta: bool) {
    let geometry = base.shape.geometry;
    base.drop_parts(key);
    let Job { lo, hi, .. } = base.jobs[key];
    let touched = base.shape.wanted(span, lo, hi);
    for slot in slots_of(touched) {
        overlay(base, key, span, content, slot, delta);
    }
    if geometry.parity > 0 && !delta {
        lanes::encode(base, key);
    }
    let (mut first, mut last) = (hi, lo);
    for slot in slots_of(touched) {
        let (from, to) = geometry.column(span.begin, span.end, slot);
        let (from, to) = (from.max(lo) / BLOCK * BLOCK, to.min(hi).next_multiple_of(BLOCK));
        (first, last) = (first.min(from), last.max(to));
        lanes::write_lane(base, key, slot, from, to);
    }
    let group = base.jobs[key].group;
    let reached = lanes::parity_targets(base, group, lo, hi);
    for slot in base.shape.parity_slots() {
        // Where nobody holds parity, what it takes to compute it was not read.
        if reached & bit(slot) != 0 || (!delta && reached != 0) {
            lanes::write_lane(base, key, slot, first, last);
        } else {
            let fragment = Fragment { group, slot, local: first };
            base.effects.push(Effect::Forget { fragment, len: last - first });
        }
    }
    base.set_phase(key, Phase::Writing);
}

/// Puts the new bytes over the old ones of a lane; with `delta` parity lanes take on the difference.
fn overlay(base: &mut Base, key: Key, span: Span, content: Content, slot: u32, delta: bool) {
    let geometry = base.shape.geometry;
    let mem = if content == Content::Payload { base.payload(key) } else { Mem::Nothing };
    let Job { lo, hi, .. } = base.jobs[key];
    let lane = base.lane(key, slot);
    for (local, payload, len) in base.shape.overlap(span, slot, lo, hi) {
        let old = At { offset: lane.offset + (local - lo), ..lane };
        let new = At { mem, offset: payload };
        if delta {
            let mut inputs = vec![old];
            inputs.extend((content == Content::Payload).then_some(new));
            let coefficients = (0..geometry.parity)
                .flat_map(|parity| {
                    std::iter::repeat_n(base.shape.code.coefficient(parity, slot), inputs.len())
                })
                .collect();
            let outputs = (0..geometry.parity).map(|number| {
                let parity = base.lane(key, geometry.data + number);
                At { offset: parity.offset + (local - lo), ..parity }
            });
            let outputs = outputs.collect();
            base.effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: true }));
        }
        match content {
            Content::Payload => base.effects.push(Effect::Copy { from: new, to: old, len }),
            _ => base.effects.push(Effect::Zero { at: old, len }),
        }
    }
}

/// What a donor took is not what was sent: it is sent again, so often.
const WRITE_AGAIN_MAX: u32 = 3;

/// Whether that is done for this part, of which so many blocks are wrong there.
pub(super) fn again(base: &mut Base, part: &Part, blocks: u32) -> bool {
    let Part { job, slot, placement, op, run, .. } = *part;
    if !op.writes()
        || base.jobs[job].tries == WRITE_AGAIN_MAX
        || !base.add_part(job, slot, placement, op, run)
    {
        return false;
    }
    base.jobs[job].tries += 1;
    base.tally.found_corrupt(placement.donor, blocks);
    true
}

/// A write part of any job has no good answer; `missed` was noted by the caller.
pub(super) fn failed(base: &mut Base, key: Key, missed: Missed, failure: Failure) {
    let job = &mut base.jobs[key];
    if base.shape.geometry.parity == 0 {
        let slot = base.shape.slot(job.group, missed.slot);
        if slot.held == Some(missed.placement) {
            job.failed.get_or_insert(failure.error());
        }
        return;
    }
    let why = match failure {
        Failure::Answer(PartError::NoMemory) => "it has no memory left",
        Failure::Answer(PartError::Denied) => "it refused the lease",
        Failure::Answer(PartError::Corrupt { .. }) => "what it took is not what was sent, again and again",
        Failure::Answer(_) => "it answered a write with an error",
        Failure::Down | Failure::Late | Failure::Moved => return,
    };
    base.exclude(missed.placement.donor, why.to_owned());
}

/// Every part is answered or failed: is the write where it must be?
pub(super) fn done(base: &mut Base, key: Key) {
    let job = &base.jobs[key];
    let (group, lo, missed, failed) = (job.group, job.lo, job.missed.clone(), job.failed);
    let is_resync = matches!(job.work, Work::Resync | Work::Mend { .. });
    if let Some(error) = failed {
        return base.end_job(key, Err(error));
    }
    if base.lease_lost && !missed.is_empty() {
        return base.end_job(key, Err(VolumeError::LeaseLost));
    }
    let (mut lost, mut waits) = (0, Vec::new());
    for missed in missed {
        let slot = base.shape.slot(group, missed.slot);
        if slot.held == Some(missed.placement) {
            lost |= bit(missed.slot);
        }
        if fill::may_hold(base, group, missed.slot, missed.placement) {
            waits.push(missed);
        } else if slot.filling == Some(missed.placement) {
            fill::unfill(base, group, missed.slot, lo);
        }
    }
    let held =
        base.shape.slots().filter(|slot| lost & bit(*slot) == 0 && base.shape.is_held(group, *slot)).count();
    if waits.is_empty() && held >= base.shape.geometry.data as usize {
        return match is_recorded_as_rewritten(base, key) {
            true => base.end_job(key, Ok(())),
            false if base.lease_lost => base.end_job(key, Err(VolumeError::LeaseLost)),
            false => wait_for_the_coordinator(base, key),
        };
    }
    if held < base.shape.geometry.data as usize {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    for missed in &waits {
        let why = base.links.get(missed.placement.donor).and_then(|link| match &link.state {
            State::Down { why, .. } => Some(why.clone()),
            _ => None,
        });
        base.exclude(missed.placement.donor, why.unwrap_or_else(|| "it missed a write".to_owned()));
    }
    if is_resync {
        // It is done again when that is settled; who reads there meanwhile waits for no coordinator.
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    base.drop_parts(key);
    base.jobs.free_scratch(key);
    base.jobs[key].missed = waits;
    wait_for_the_coordinator(base, key);
}

/// A write that covers what was lost for good makes it readable again.
fn note_rewritten(base: &mut Base, key: Key) {
    let job = &base.jobs[key];
    let Some(span) = job.span() else { return };
    let known = base.shape.lost_ranges();
    let mut rewritten = Vec::new();
    for bad in known.filter(|bad| bad.group == span.group) {
        let (from, to) = base.shape.geometry.column(span.begin, span.end, bad.slot);
        let from = from.max(bad.from).max(job.lo).next_multiple_of(BLOCK);
        let to = to.min(bad.to).min(job.hi) / BLOCK * BLOCK;
        if from < to {
            rewritten.push(BadRange { from, to, ..*bad });
        }
    }
    // What a write covers of what the source could not give is known from then on, to the byte.
    for slot in (0..base.shape.geometry.data).filter(|_| !base.shape.map.unreadable.is_empty()) {
        let (from, to) = base.shape.geometry.column(span.begin, span.end, slot);
        let (from, to) = (from.max(job.lo), to.min(job.hi));
        let touched = touched_of(&base.shape.map.unreadable, span.group, slot, from, to);
        rewritten.extend(touched.map(|run| BadRange {
            from: from.max(run.from),
            to: to.min(run.to),
            ..*run
        }));
    }
    if !rewritten.is_empty() {
        base.shape.report_rewritten(rewritten);
    }
}

/// What was lost for good and is written again answers errors to the next attachment until the
/// coordinator has heard of it, so the write is acknowledged only then. This one may read it at once.
fn is_recorded_as_rewritten(base: &mut Base, key: Key) -> bool {
    let job = &base.jobs[key];
    if !job.is_users_write() {
        return true;
    }
    let Job { group, lo, hi, .. } = *job;
    note_rewritten(base, key);
    !base.shape.is_rewritten_unheard(group, lo, hi)
}

fn wait_for_the_coordinator(base: &mut Base, key: Key) {
    base.jobs[key].phase = Phase::Excluding;
}

/// A write ended without reaching everyone. Who has it fits together, since all of it was sent: it is
/// well again when those that missed it are no holders any more, or else when the rows were resynced.
pub(super) fn tear(base: &mut Base, job: &Job) {
    let Job { group, lo, hi, .. } = *job;
    let alone = base.shape.geometry.parity == 0;
    for slot in base.shape.slots() {
        // Without redundancy, who has it has what was sent.
        if !alone || job.missed.iter().any(|missed| missed.slot == slot) {
            base.effects.push(Effect::Forget { fragment: Fragment { group, slot, local: lo }, len: hi - lo });
        }
    }
    // Where nobody was there to be sent it, all is as it was.
    if alone || !job.wrote {
        return;
    }
    // Who missed something before misses it still.
    if matches!(job.work, Work::Mend { .. }) {
        return;
    }
    // Whatever did not fit together there does now, but for who missed this.
    if matches!(job.work, Work::Resync) {
        base.doubts.torn.retain(|torn| !torn.is_of(job));
    }
    let mut slots: Slots = 0;
    for missed in &job.missed {
        let places = base.shape.slot(group, missed.slot);
        if fill::may_hold(base, group, missed.slot, missed.placement) {
            slots |= bit(missed.slot);
            base.exclude(missed.placement.donor, "it missed a write".to_owned());
        } else if places.filling == Some(missed.placement) {
            fill::unfill(base, group, missed.slot, lo);
        }
    }
    if slots != 0 {
        let enough =
            doubts::enough_without(&base.shape.map.groups[group as usize], slots, base.shape.geometry.data);
        let missed = if enough { slots } else { 0 };
        base.doubts.torn.push(Torn { missed, ..Torn::of_all(group, lo, hi) });
    }
}
