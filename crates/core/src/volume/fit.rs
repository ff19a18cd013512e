//! Whether rows that may be half written are: more fragments of a row than its data are of one moment only
//! if each follows from the others.
//!
//! Owns that comparison, for rows of which nothing else is known and whose data is not all there. Never: what
//! becomes of rows that do not fit (`resync`). Invariant: rows are taken for whole only where at least one
//! fragment more than the data was compared. Tests: `tests/volume_unclean.rs`, the simulator.
//!
//! A write that was acknowledged is on every slot that is held, so its row fits. Fragments that fit are all
//! of before a write or all of after it, and nobody was told of a write that not all have.

use super::base::Base;
use super::doubts::{self, Torn};
use super::job::{Job, Phase, Slots, bit, slots_of};
use super::types::{At, Effect, VolumeError};
use super::{BLOCK, Key, lanes, resync};

/// Whether its rows are looked at as soon as enough of their fragments are there.
fn is_open(base: &Base, torn: Torn) -> bool {
    let is_unknown = torn.missed == 0 && torn.undo.is_none() && torn.stale == 0 && !torn.unfit;
    is_unknown && base.shape.geometry.data > 1 && !doubts::can_resync(base, torn)
}

fn is_enough(base: &Base, slots: Slots) -> bool {
    slots.count_ones() > base.shape.geometry.data
}

/// Whether enough fragments of the rows can be read to tell.
pub(super) fn can_tell(base: &Base, torn: Torn) -> bool {
    let missed = doubts::missed_there(base, torn.group, torn.lo, torn.hi);
    is_open(base, torn) && is_enough(base, there(base, torn.group) & !missed)
}

/// Whether a donor that is silent may come back with what is needed to tell.
pub(super) fn may_yet_tell(base: &Base, torn: Torn) -> bool {
    let comes = |slot: &u32| {
        let held = base.shape.slot(torn.group, *slot).held;
        held.is_some_and(|held| base.links.get(held.donor).is_some_and(|link| !link.gone))
    };
    is_open(base, torn)
        && !doubts::is_late(base)
        && is_enough(base, base.shape.slots().filter(comes).map(bit).sum())
}

fn there(base: &Base, group: u32) -> Slots {
    base.shape.slots().filter(|slot| base.source(group, *slot).is_some()).map(bit).sum()
}

/// The slots that a job compares.
pub(super) fn compared(base: &Base, job: &Job) -> Slots {
    there(base, job.group) & !job.wrong & !doubts::missed_there(base, job.group, job.lo, job.hi)
}

/// Bytes of a lane at most: beside those that are read there is what they should be.
pub(super) fn lane_max(base: &Base) -> u32 {
    (base.shape.lane_max() / 2 / BLOCK * BLOCK).max(BLOCK)
}

/// All lanes that can be had are there: those that are more than the data, computed from the others.
pub(super) fn compare(base: &mut Base, key: Key) {
    let geometry = base.shape.geometry;
    let job = &base.jobs[key];
    let (have, len) = (job.have, job.len());
    if !is_enough(base, have) {
        return unfit(base, key);
    }
    let sources: Vec<u32> = slots_of(have).take(geometry.data as usize).collect();
    let more = sources.iter().fold(have, |slots, slot| slots & !bit(*slot));
    let beside = base.lane(key, geometry.data + geometry.parity);
    let should = |number| At { offset: beside.offset + number * len, ..beside };
    let outputs: Vec<At> = (0..more.count_ones()).map(should).collect();
    lanes::rebuild_to(base, key, &sources, more, outputs.clone());
    for (slot, a) in slots_of(more).zip(outputs) {
        base.effects.push(Effect::Compare { job: key, a, b: base.lane(key, slot), len });
        base.jobs[key].open += 1;
    }
    base.set_phase(key, Phase::Checking);
}

pub(super) fn checked(base: &mut Base, key: Key) {
    match base.jobs[key].failed {
        Some(_) => unfit(base, key),
        None => base.end_job(key, Ok(())),
    }
}

/// Rows beside those that do not fit may: each block is looked at by itself.
fn unfit(base: &mut Base, key: Key) {
    let job = &mut base.jobs[key];
    job.failed = Some(VolumeError::Corrupt);
    if job.len() > BLOCK {
        resync::take_blocks_alone(base, key);
    } else {
        let of_job = base.doubts.torn.iter_mut().filter(|torn| torn.is_of(job));
        of_job.for_each(|torn| torn.unfit = true);
    }
    base.end_job(key, Err(VolumeError::Corrupt));
}

/// What was compared is whole. A holder that is silent may still have missed it.
pub(super) fn found_to_fit(base: &mut Base, job: &Job) {
    let held = base.shape.slots().filter(|slot| base.shape.is_held(job.group, *slot));
    let missed: Slots = held.map(bit).sum::<Slots>() & !job.have;
    for torn in base.doubts.torn.iter_mut().filter(|torn| torn.is_of(job) && torn.undo.is_none()) {
        torn.missed |= missed;
    }
    base.doubts.torn.retain(|torn| !torn.is_of(job) || torn.undo.is_some() || torn.missed != 0);
    base.jobs.look_at_waiting();
}
