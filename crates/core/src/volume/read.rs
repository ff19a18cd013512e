//! Reads: straight from the data slots, and from redundancy where a slot cannot be had.
//!
//! Owns the choice of whom to ask, and what is done when one fails or is late. Never: writes, or repair.
//! Invariant: what a request is answered with came from the holder of its data or was rebuilt from k others.
//! Tests: `tests/volume_degraded.rs`, the simulator.

use super::base::Base;
use super::job::{Failure, Job, Phase, Run, Slots, Work, bit, slots_of};
use super::link::Trust;
use super::types::{At, Effect, PartError, PartOp, VolumeError};
use super::{BLOCK, Key, absent, beside, cached, doubts, lanes};
use crate::layout::Span;

/// A block that came wrong without redundancy may have been hit on its way: it is asked for again this often.
pub(super) const READ_AGAIN_MAX: u32 = 3;

/// Cuts the read of one span into jobs.
pub(super) fn plan(base: &mut Base, request: Key, span: Span) {
    let failed = if base.shape.is_bad(span) {
        Some(VolumeError::DonorLost)
    } else {
        // Who decrypts asks for whole blocks, and says which of their bytes nobody is given.
        let is_told = !base.shape.map.encrypted && base.shape.is_unreadable(span);
        is_told.then_some(VolumeError::Unreadable)
    };
    if failed.is_some() {
        base.requests[request].failed = failed;
        return;
    }
    // What is checked is a block, so a part of one is read as a whole and cut.
    let (head, tail) = (span.begin.next_multiple_of(BLOCK), span.end / BLOCK * BLOCK);
    if head > tail {
        return plan_gathers(base, request, span, 0, 0);
    }
    if span.begin < head {
        plan_gathers(base, request, span.cut(span.begin, head), 0, 0);
    }
    if head < tail {
        let middle = span.cut(head, tail);
        let (lo, hi) = base.shape.local_range(middle);
        base.add_job(Some(request), Work::Read(middle), span.group, lo, hi);
    }
    if tail < span.end {
        plan_gathers(base, request, span.cut(tail, span.end), 0, 0);
    }
}

/// Jobs that bring a span together in scratch memory.
fn plan_gathers(base: &mut Base, request: Key, span: Span, avoid: Slots, wrong: Slots) {
    let (lo, hi) = base.shape.local_range(span);
    let step = if base.shape.geometry.parity == 0 { BLOCK } else { base.shape.lane_max() };
    let mut at = lo;
    while at < hi {
        let end = (at / step * step + step).min(hi);
        if base.shape.wanted(span, at, end) != 0 {
            let key = base.add_job(Some(request), Work::Gather(span), span.group, at, end);
            let job = &mut base.jobs[key];
            (job.avoid, job.wrong) = (avoid, wrong);
        }
        at = end;
    }
}

pub(super) fn begin(base: &mut Base, key: Key, span: Span) {
    let wanted = base.shape.geometry.touched(span.begin, span.end);
    if base.shape.geometry.data == 1 && base.shape.geometry.parity > 0 {
        return read_copy(base, key, span);
    }
    let Job { lo, hi, .. } = base.jobs[key];
    let missed = doubts::missed_there(base, span.group, lo, hi);
    let good = |slot| {
        let source = base.source(span.group, slot).filter(|_| missed & bit(slot) == 0);
        source.is_some_and(|(_, trust)| trust >= lanes::worth_asking(base))
    };
    if base.shape.geometry.parity > 0 && !slots_of(wanted).all(good) {
        return read_otherwise(base, key, span, 0, 0);
    }
    for slot in slots_of(wanted) {
        if !read_column(base, key, slot, slot, span) {
            base.jobs[key].failed = Some(VolumeError::DonorLost);
        }
    }
    base.set_phase(key, Phase::Reading);
}

/// Asks `from` for the bytes of data slot `slot`; false when it cannot be asked.
fn read_column(base: &mut Base, key: Key, slot: u32, from: u32, span: Span) -> bool {
    let Some((held, _)) = base.source(span.group, from) else { return false };
    let (begin, end) = base.shape.geometry.column(span.begin, span.end, slot);
    let scatter = base.shape.geometry.scatter(slot, begin, end, span.begin, span.payload);
    let mem = base.payload(key);
    base.add_part(key, from, held, PartOp::Read, Run { local: begin, mem, scatter })
}

/// From the copy that is asked least. Where copies may differ until they are resynced, always from the
/// first.
fn read_copy(base: &mut Base, key: Key, span: Span) {
    let job = &base.jobs[key];
    let torn = doubts::is_torn(base, span.group, job.lo, job.hi);
    let avoid = job.avoid | doubts::missed_there(base, span.group, job.lo, job.hi);
    let slots = (0..base.shape.geometry.parity + 1).filter(|slot| avoid & bit(*slot) == 0);
    let candidates = slots.filter_map(|slot| {
        let (held, trust) = base.source(span.group, slot)?;
        let load = if torn { 0 } else { base.links[held.donor].load() };
        Some((std::cmp::Reverse(trust), load, slot))
    });
    match candidates.min() {
        Some((_, _, from)) => {
            read_column(base, key, 0, from, span);
            base.set_phase(key, Phase::Reading);
        }
        None if lanes::asks_the_late_again(base, key) => read_copy(base, key, span),
        // What is wrong in one copy may be right in another, block by block.
        None if base.jobs[key].wrong != 0 && base.jobs[key].len() > BLOCK => {
            read_otherwise(base, key, span, 0, 0);
        }
        None if base.may_have_moved(span.group) => beside::rest(base, key),
        None => base.end_job(key, Err(VolumeError::DonorLost)),
    }
}

/// The read goes on as gathers, which go round `avoid`.
fn read_otherwise(base: &mut Base, key: Key, span: Span, avoid: Slots, wrong: Slots) {
    let request = base.jobs[key].request.expect("it has one");
    base.tally.reads_rebuilt += 1;
    plan_gathers(base, request, span, avoid, wrong);
    base.end_job(key, Ok(()));
}

pub(super) fn late(base: &mut Base, key: Key, slot: u32) {
    let Some(job) = base.jobs.get(key) else { return };
    if base.shape.geometry.parity == 0 || job.phase != Phase::Reading || job.avoid & bit(slot) != 0 {
        return;
    }
    // There is no comparison without all of them, and who waits for its lock needs the same donors.
    if lanes::worth_asking(base) == Trust::Poor || job.work == Work::Compare || job.waits_for_late {
        return;
    }
    let missed = doubts::missed_there(base, job.group, job.lo, job.hi);
    let (group, avoid) = (job.group, job.avoid | missed | bit(slot));
    let others = base.shape.slots().filter(|other| avoid & bit(*other) == 0);
    let able =
        others.filter(|other| base.source(group, *other).is_some_and(|(_, t)| t == Trust::Good)).count();
    if able < base.shape.geometry.data as usize || doubts::is_torn(base, group, job.lo, job.hi) {
        return; // Waiting is all that is left.
    }
    let part = base.jobs.open_parts(key).find(|(_, part)| part.slot == slot && part.op == PartOp::Read);
    let Some((part, donor)) = part.map(|(part_key, part)| (part_key, part.placement.donor)) else { return };
    base.effects.push(Effect::Abandon { donor, part });
    base.fail_part(part, Failure::Late);
}

/// A read part of any job has no good answer.
pub(super) fn failed(base: &mut Base, key: Key, slot: u32, failure: Failure) {
    let geometry = base.shape.geometry;
    let job = &mut base.jobs[key];
    if job.request.and_then(|request| base.requests.get(request)).is_some_and(|r| r.failed.is_some()) {
        return; // It ends when its other parts have.
    }
    if failure == Failure::Moved {
        return again(base, key, slot);
    }
    let corrupt = matches!(failure, Failure::Answer(PartError::Corrupt { .. }));
    let forged = matches!(failure, Failure::Answer(PartError::Corrupt { forged: true, .. }));
    let shut_out = base.shape.read_only && failure == Failure::Answer(PartError::Denied);
    if shut_out && let Some(held) = base.shape.slot(job.group, slot).held {
        base.note_shut_out(held.donor);
    }
    if failure == Failure::Answer(PartError::Denied) {
        // The lease may be another's, who writes.
        cached::forget(base, 0, u64::MAX);
    }
    let job = &mut base.jobs[key];
    if geometry.parity == 0 {
        if shut_out {
            // It may have given the slot to another, which the newest map tells.
            return beside::rest(base, key);
        }
        if corrupt && !forged && !base.shape.read_only && job.tries < READ_AGAIN_MAX {
            job.tries += 1;
            return again(base, key, slot);
        }
        if absent::is_no_fault(base, key, slot, failure) {
            return;
        }
        let job = &mut base.jobs[key];
        if corrupt && let Work::Fill { .. } = job.work {
            (job.avoid, job.wrong) = (bit(slot), bit(slot));
            return lanes::read(base, key);
        }
        // What is worse than absent is told.
        let error = failure.error();
        job.failed = Some(job.failed.map_or(error, |before| before.min(error)));
        return;
    }
    job.avoid |= bit(slot);
    // What a resync cannot have of a donor that refuses it is not lost.
    if corrupt || (matches!(failure, Failure::Answer(_)) && job.work != Work::Resync) {
        job.wrong |= bit(slot);
    }
    match job.work {
        Work::Read(span) if geometry.data == 1 => {
            base.drop_parts(key);
            base.tally.reads_rebuilt += 1;
            read_copy(base, key, span);
        }
        Work::Read(span) => {
            let (avoid, wrong) = (job.avoid, job.wrong);
            read_otherwise(base, key, span, avoid, wrong);
        }
        // It does not tell what it has, and will not until it is asked to adopt that.
        Work::Resync if geometry.data > 1 && failure == Failure::Answer(PartError::Io) => {
            base.drop_parts(key);
            base.end_job(key, Err(VolumeError::DonorFailed));
        }
        Work::Resync if corrupt && job.tries < READ_AGAIN_MAX => {
            // A bit may have flipped on the way.
            (job.tries, job.avoid, job.wrong) = (job.tries + 1, 0, 0);
            again(base, key, slot);
        }
        // What becomes of it is seen once all that is right is there.
        Work::Resync if corrupt && geometry.data > 1 => {}
        // The others may be wrong as well; without all of them nothing is compared, but each is checked.
        Work::Compare => {}
        _ => lanes::read(base, key),
    }
}

/// Asks the holder of the slot once more: another by now, perhaps, which may be out of this client's reach.
pub(super) fn again(base: &mut Base, key: Key, slot: u32) {
    let asked = match base.jobs[key].work {
        Work::Read(span) => {
            let column = if base.shape.geometry.data == 1 { 0 } else { slot };
            read_column(base, key, column, slot, span)
        }
        _ => lanes::read_lane(base, key, slot),
    };
    if asked {
        return;
    }
    base.jobs[key].coming &= !bit(slot);
    match base.shape.geometry.parity {
        0 => base.jobs[key].failed = Some(VolumeError::DonorLost),
        _ => failed(base, key, slot, Failure::Down),
    }
}

pub(super) fn copy_out(base: &mut Base, key: Key, span: Span) {
    let mem = base.payload(key);
    let job = &base.jobs[key];
    for slot in slots_of(base.shape.wanted(span, job.lo, job.hi)) {
        let lane = base.lane(key, slot);
        for (local, payload, len) in base.shape.overlap(span, slot, job.lo, job.hi) {
            let from = At { offset: lane.offset + (local - job.lo), ..lane };
            base.effects.push(Effect::Copy { from, to: At { mem, offset: payload }, len });
        }
    }
}

/// Whether something of what the job is to read, or of a block that it is to change in part, was found
/// to be lost after it was planned.
pub(super) fn needs_what_is_lost(base: &Base, job: &Job) -> bool {
    let Some(span) = job.span().filter(|_| base.shape.lost_ranges().next().is_some()) else { return false };
    (0..base.shape.geometry.data).any(|slot| {
        let (from, to) = base.shape.geometry.column(span.begin, span.end, slot);
        let (from, to) = (from.max(job.lo), to.min(job.hi));
        let lost = |from, to| base.shape.lost_ranges().any(|bad| bad.reaches(job.group, slot, from, to));
        match job.work {
            Work::Read(_) | Work::Gather(_) => lost(from, to),
            Work::Patch { .. } if from < to => {
                let (first, last) = (from / BLOCK * BLOCK, (to - 1) / BLOCK * BLOCK);
                (first < from && lost(first, first + BLOCK))
                    || (to < last + BLOCK && lost(last, last + BLOCK))
            }
            _ => false,
        }
    })
}
