//! Lanes: what a job has of each slot in scratch memory, read, computed, and written from there.
//!
//! Owns whom to ask for a lane, and what is computed from which. Never: what the lanes are for (`read`,
//! `write`, `resync`, `fill`, `heal`, `compare`). Invariant: a lane that was rebuilt is of k lanes of one
//! moment, and agrees with its checksum where that is known. Tests: `tests/volume_degraded.rs`, the
//! simulator.

use super::base::Base;
use super::job::{Job, Missed, Phase, Run, Slots, Still, Work, bit, slots_of};
use super::link::Trust;
use super::types::{At, Combine, Effect, Fragment, PartOp, VolumeError};
use super::{BLOCK, Key, beside, doubts, fill, fit, resync};
use crate::layout::Span;
use crate::map::Placement;

/// Whom to ask before going round them. Where others may be writing, what is rebuilt may not be of one
/// moment, so it is the last resort.
pub(super) fn worth_asking(base: &Base) -> Trust {
    let last_resort =
        base.shape.geometry.parity == 0 || (base.shape.read_only && base.shape.geometry.data > 1);
    if last_resort { Trust::Poor } else { Trust::Good }
}

pub(super) fn read_lane(base: &mut Base, key: Key, slot: u32) -> bool {
    let at = base.lane(key, slot);
    let job = &mut base.jobs[key];
    job.coming |= bit(slot);
    let (group, local, len) = (job.group, job.lo, job.len());
    let Some((held, _)) = base.source(group, slot) else { return false };
    base.add_part(key, slot, held, PartOp::Read, Run::whole(local, at, len))
}

/// The slots whose content a job with lanes needs before it can go on.
fn needed(base: &Base, key: Key) -> Slots {
    let job = &base.jobs[key];
    let data: Slots = (0..base.shape.geometry.data).map(bit).sum();
    match job.work {
        Work::Gather(span) => base.shape.wanted(span, job.lo, job.hi),
        Work::Patch { span, delta, .. } => patch_needs(base, key, span, delta),
        Work::Fill { slot, .. } | Work::Heal { slot } | Work::Mend { slot } => bit(slot),
        Work::Resync if base.shape.geometry.data == 1 => 0,
        Work::Resync => {
            let held = slots_of(data).filter(|slot| base.shape.is_held(job.group, *slot)).map(bit);
            held.sum::<Slots>() & !job.wrong
        }
        Work::Compare => {
            let all = base.shape.slots();
            all.filter(|slot| base.shape.is_held(job.group, *slot)).map(bit).sum()
        }
        Work::Fit => fit::compared(base, job),
        _ => 0,
    }
}

/// Asks for the lanes that are still missing: each needed one of its holder, or so many others that it
/// can be rebuilt. Called at the beginning and after each failure.
pub(super) fn read(base: &mut Base, key: Key) {
    let Job { work, group, lo, hi, .. } = base.jobs[key];
    let copies =
        matches!(work, Work::Fill { .. } | Work::Heal { .. } | Work::Mend { .. } | Work::Resync | Work::Fit);
    if copies && doubts::is_to_be_undone(base, group, lo, hi) {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    let needed = needed(base, key);
    let geometry = base.shape.geometry;
    let job = &base.jobs[key];
    let (group, here) = (job.group, job.have | job.coming);
    // Parity is made from data as it is; all else goes round who missed a write.
    let as_it_is = job.work == Work::Resync && geometry.data > 1;
    let missed = if as_it_is { 0 } else { doubts::missed_there(base, group, job.lo, job.hi) };
    let avoid = job.avoid | missed;
    let rebuilds = !matches!(job.work, Work::Resync | Work::Compare | Work::Fit)
        && !matches!(job.work, Work::Patch { delta: true, .. });
    let trust = |slot: u32| {
        let usable = avoid & bit(slot) == 0 && here & bit(slot) == 0;
        base.source(group, slot).filter(|_| usable).map(|(_, trust)| trust)
    };
    let missing = needed & !here;
    let enough = if rebuilds { worth_asking(base) } else { Trust::Poor };
    let mut ask: Slots = slots_of(missing).filter(|s| trust(*s).is_some_and(|t| t >= enough)).map(bit).sum();
    let mut possible = true;
    if missing & !ask != 0 {
        // Any k of the others rebuild what is missing: those that answer first, data before parity.
        let mut others: Vec<(std::cmp::Reverse<Trust>, u32)> = (0..geometry.data + geometry.parity)
            .filter(|slot| ask & bit(*slot) == 0)
            .filter_map(|slot| Some((std::cmp::Reverse(trust(slot)?), slot)))
            .collect();
        others.sort_unstable();
        let known = (here | ask).count_ones();
        let more = geometry.data.saturating_sub(known) as usize;
        possible = rebuilds && geometry.parity > 0 && others.len() >= more && !doubts::is_torn_for(base, key);
        if possible {
            ask |= others.iter().take(more).map(|(_, slot)| bit(*slot)).sum::<Slots>();
        } else if slots_of(missing).all(|slot| trust(slot).is_some()) {
            // Going round those that are late is no way: they are waited for.
            (ask, possible) = (missing, true);
        }
    }
    if matches!(base.jobs[key].work, Work::Resync) && geometry.data == 1 && here == 0 {
        let first = (0..=geometry.parity).find(|slot| trust(*slot).is_some());
        possible = first.is_some();
        ask = first.map_or(0, bit);
    }
    if !possible {
        return impossible(base, key);
    }
    let epoch = base.shape.map.epoch;
    let job = &mut base.jobs[key];
    if job.still == Still::Unasked || here == 0 {
        job.still = Still::Reading { since: base.now, epoch };
    }
    for slot in slots_of(ask) {
        read_lane(base, key, slot);
    }
    base.set_phase(key, Phase::Reading);
}

fn impossible(base: &mut Base, key: Key) {
    let job = &mut base.jobs[key];
    if let Work::Patch { span, content, delta: true } = job.work {
        job.work = Work::Patch { span, content, delta: false };
        return read(base, key);
    }
    if asks_the_late_again(base, key) {
        return read(base, key);
    }
    if takes_blocks_alone(base, key) {
        return base.end_job(key, Ok(()));
    }
    if let Work::Fill { slot, to } = base.jobs[key].work
        && fill::gives_up(base, key, slot, to)
    {
        return;
    }
    if base.jobs[key].work == Work::Resync && base.jobs[key].wrong != 0 {
        return resync::wrong(base, key);
    }
    if doubts::may_settle(base, key) {
        return base.wait_for_rows(key);
    }
    let group = base.jobs[key].group;
    if base.may_have_moved(group) {
        return beside::rest(base, key);
    }
    base.end_job(key, Err(VolumeError::DonorLost));
}

/// Computes lanes from k others, and has them checked.
fn rebuild(base: &mut Base, key: Key, lanes: Slots) {
    let job = &base.jobs[key];
    let (have, len) = (job.have, job.len());
    if lanes == 0 {
        return;
    }
    let sources: Vec<u32> = slots_of(have).take(base.shape.geometry.data as usize).collect();
    let outputs: Vec<At> = slots_of(lanes).map(|slot| base.lane(key, slot)).collect();
    rebuild_to(base, key, &sources, lanes, outputs.clone());
    // Parity that was computed from all of the data is right, whatever was known of it.
    let from_data = sources.iter().all(|slot| *slot < base.shape.geometry.data);
    let checked =
        slots_of(lanes).zip(outputs).filter(|(slot, _)| *slot < base.shape.geometry.data || !from_data);
    for (slot, at) in checked.collect::<Vec<_>>() {
        base.effects.push(Effect::Verify { job: key, fragment: base.fragment(key, slot), at, len });
        base.jobs[key].open += 1;
    }
    base.jobs[key].have |= lanes;
}

/// What the lanes of these slots are by k others, one after the other to these places.
pub(super) fn rebuild_to(base: &mut Base, key: Key, sources: &[u32], lanes: Slots, outputs: Vec<At>) {
    let len = base.jobs[key].len();
    let inputs = sources.iter().map(|slot| base.lane(key, *slot)).collect();
    let coefficients = slots_of(lanes).flat_map(|slot| base.shape.code.rebuild(sources, slot)).collect();
    base.effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: false }));
}

/// Every lane that was asked for is there: rebuilds what could not be asked for.
pub(super) fn complete(base: &mut Base, key: Key) {
    let rebuilt = needed(base, key) & !base.jobs[key].have;
    if rebuilt != 0 && base.shape.read_only {
        if is_lost_now(base, key, rebuilt) {
            return base.end_job(key, Err(VolumeError::DonorLost));
        }
        if beside::ask_who_wrote(base, key) {
            return;
        }
    }
    rebuild(base, key, rebuilt);
    base.set_phase(key, Phase::Checking);
}

/// Who shall have what a job of this range writes to a slot: its holder, and who is being given it, if
/// that has some of the range. The job's lock keeps it so.
fn targets(base: &Base, group: u32, slot: u32, lo: u32, hi: u32) -> impl Iterator<Item = Placement> + use<> {
    let places = base.shape.slot(group, slot);
    let filled = base.fills.of.get(&(group, slot)).is_some_and(|fill| fill.has_some(lo, hi));
    places.held.into_iter().chain(places.filling.filter(|_| filled))
}

/// The parity slots that a write of this range reaches.
pub(super) fn parity_targets(base: &Base, group: u32, lo: u32, hi: u32) -> Slots {
    let all = base.shape.parity_slots();
    all.filter(|slot| targets(base, group, *slot, lo, hi).next().is_some()).map(bit).sum()
}

pub(super) fn write_slot(base: &mut Base, key: Key, slot: u32, op: PartOp, run: Run) {
    let Job { group, lo, hi, .. } = base.jobs[key];
    for placement in targets(base, group, slot, lo, hi) {
        if !base.add_part(key, slot, placement, op, run) {
            base.jobs[key].missed.push(Missed { slot, placement });
        }
    }
}

/// This is what the slot holds, and goes to it.
pub(super) fn write_one(base: &mut Base, key: Key, slot: u32, op: PartOp, run: Run) {
    learn(base, key, slot, 1, op, run);
    write_slot(base, key, slot, op, run);
}

/// From now on this is what the slot, and so many behind it, hold, whoever may have missed it.
pub(super) fn learn(base: &mut Base, key: Key, slot: u32, copies: u32, op: PartOp, run: Run) {
    let group = base.jobs[key].group;
    let fragment = Fragment { group, slot, local: run.local };
    base.effects.push(match op {
        PartOp::Trim => Effect::Forget { fragment, len: run.scatter.len },
        _ => Effect::Learn { fragment, copies, mem: run.mem, scatter: run.scatter },
    });
}

/// The parity lanes from the data lanes.
pub(super) fn encode(base: &mut Base, key: Key) {
    let outputs = base.shape.parity_slots().map(|slot| base.lane(key, slot)).collect();
    encode_to(base, key, outputs);
}

/// The parity of the data lanes, one after the other to these places.
pub(super) fn encode_to(base: &mut Base, key: Key, outputs: Vec<At>) {
    let len = base.jobs[key].len();
    let inputs = (0..base.shape.geometry.data).map(|slot| base.lane(key, slot)).collect();
    let coefficients = base.shape.encoding();
    base.effects.push(Effect::Combine(Combine { len, coefficients, inputs, outputs, add: false }));
}

/// One lane's content to another slot.
pub(super) fn write_from(base: &mut Base, key: Key, slot: u32, local: u32, from: At, len: u32) {
    write_one(base, key, slot, PartOp::Write, Run::whole(local, from, len));
}

/// What a lane has from `from` to `to` in its extent, to its slot.
pub(super) fn write_lane(base: &mut Base, key: Key, slot: u32, from: u32, to: u32) {
    let lane = base.lane(key, slot);
    let lo = base.jobs[key].lo;
    write_from(base, key, slot, from, At { offset: lane.offset + (from - lo), ..lane }, to - from);
}

/// Going round those that are late is no way any more: waits for them after all. False when there are
/// none.
pub(super) fn asks_the_late_again(base: &mut Base, key: Key) -> bool {
    let job = &base.jobs[key];
    let (group, wrong) = (job.group, job.wrong);
    let again = |slot: &u32| wrong & bit(*slot) == 0 && base.source(group, *slot).is_some();
    let again: Slots = slots_of(job.avoid).filter(again).map(bit).sum();
    let job = &mut base.jobs[key];
    job.avoid &= !again;
    job.waits_for_late |= again != 0;
    again != 0
}

/// Blocks that are wrong on one slot may be right on the others, and the other way round in other rows;
/// and rows that do not fit together may lie beside rows that do: what was to be read at once is read
/// block by block. False when that was done, or nothing was wrong.
fn takes_blocks_alone(base: &mut Base, key: Key) -> bool {
    let job = &base.jobs[key];
    let (work, group, lo, hi) = (job.work, job.group, job.lo, job.hi);
    let (Some(request), Some(span)) = (job.request, job.span()) else { return false };
    let blocks = ((hi - lo) / BLOCK) as usize;
    let wrong = job.wrong != 0 && job.phase == Phase::Reading;
    let splits =
        matches!(work, Work::Gather(_) | Work::Patch { .. }) && (wrong || doubts::is_torn_for(base, key));
    if !splits || blocks < 2 || base.jobs.room() <= blocks {
        return false;
    }
    for at in (lo..hi).step_by(BLOCK as usize) {
        if base.shape.wanted(span, at, at + BLOCK) != 0 {
            base.add_job(Some(request), work, group, at, at + BLOCK);
        }
    }
    true
}

/// Whether a writer found, after the read began, that these lanes cannot be rebuilt.
fn is_lost_now(base: &Base, key: Key, lanes: Slots) -> bool {
    let job = &base.jobs[key];
    let Job { group, lo, hi, .. } = *job;
    slots_of(lanes).any(|slot| base.shape.lost_ranges().any(|bad| bad.reaches(group, slot, lo, hi)))
}

/// The slots whose old content a patch needs.
pub(super) fn patch_needs(base: &Base, key: Key, span: Span, delta: bool) -> Slots {
    let geometry = base.shape.geometry;
    let job = &base.jobs[key];
    let touched = base.shape.wanted(span, job.lo, job.hi);
    let parity = parity_targets(base, job.group, job.lo, job.hi);
    if delta {
        return touched | parity;
    }
    let covered = |slot: &u32| {
        let (from, to) = geometry.column(span.begin, span.end, *slot);
        from <= job.lo && job.hi <= to
    };
    // Without parity to compute, only blocks that are written in part need what they held.
    let any_parity = geometry.data > 1 && parity != 0;
    (0..geometry.data)
        .filter(|slot| !covered(slot) && (any_parity || touched & bit(*slot) != 0))
        .map(bit)
        .sum()
}

/// Of a sealed volume data is proved, and parity is not: what was rebuilt by it may be wrong because it is.
/// Another k is tried, without one that was used. False when there is none.
pub(super) fn leaves_out_a_parity(base: &mut Base, key: Key) -> bool {
    let data = base.shape.geometry.data;
    let job = &mut base.jobs[key];
    let suspect = slots_of(job.have & !job.avoid).find(|slot| *slot >= data && data > 1);
    let Some(suspect) = suspect.filter(|_| base.shape.map.seal().is_some() && base.shape.geometry.parity > 1)
    else {
        return false;
    };
    (job.avoid, job.wrong) = (job.avoid | bit(suspect), job.wrong | bit(suspect));
    (job.have, job.failed) = (0, None);
    base.drop_parts(key);
    read(base, key);
    true
}

/// What was rebuilt is not what was written. A holder that was only late still knows.
pub(super) fn wrongly_rebuilt(base: &mut Base, key: Key, error: VolumeError) {
    if matches!(base.jobs[key].work, Work::Gather(_) | Work::Heal { .. }) && leaves_out_a_parity(base, key) {
        return;
    }
    let job = &mut base.jobs[key];
    if job.tries > 0 || job.avoid == 0 || !matches!(job.work, Work::Gather(_)) {
        return base.end_job(key, Err(error));
    }
    job.tries = 1;
    (job.avoid, job.wrong, job.have, job.failed) = (0, 0, 0, None);
    base.drop_parts(key);
    read(base, key)
}
