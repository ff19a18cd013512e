//! Blocks that are not here yet: who fills the volume is asked to bring them, and then they are read again.
//!
//! Owns which reads wait for that, and when they ask anew; and what absence means to a move and to the end of
//! the volume. Never: where the source is, or its bytes: whatever a tool gets comes from donors and is
//! checked, as ever. Invariants: a read waits no longer than its deadline; only who fills the volume says
//! that its source has no such bytes; and a block that is absent stays so where it moves. Tests:
//! `tests/volume_absent.rs`.

use super::base::Base;
use super::cached::WAIT_JOBS_MAX;
use super::job::{Failure, Work, bit};
use super::request::Asker;
use super::types::{Effect, FetchError, Op, PartError, VolumeError};
use super::{BLOCK, Key, PAUSE_NS, fill, request};
use crate::units::Time;

/// Reads that wait for what is not here.
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// Who fills the volume was asked.
    asked: Vec<Key>,
    /// Nobody could be, until then.
    resting: Vec<(Time, Key)>,
}

impl Absent {
    /// Jobs that these reads may need when they are read again.
    pub(super) fn jobs_promised(&self) -> usize {
        WAIT_JOBS_MAX * (self.asked.len() + self.resting.len())
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.resting.iter().map(|(at, _)| *at).min()
    }

    /// It waits no more.
    pub(super) fn forget(&mut self, request: Key) {
        self.asked.retain(|key| *key != request);
        self.resting.retain(|(_, key)| *key != request);
    }

    /// Where and whom to ask may have changed.
    pub(super) fn look_again(&mut self) {
        self.resting.iter_mut().for_each(|(at, _)| *at = 0);
    }
}

/// Has a read wait that failed because something of it is not here yet; false: that is its answer.
pub(super) fn waits(base: &mut Base, key: Key) -> bool {
    let pending = &base.requests[key];
    let asks = base.shape.map.filler().is_some();
    let missing = match pending.failed {
        // Where a donor is gone, the source still has what it held.
        Some(VolumeError::Absent | VolumeError::DonorLost) => true,
        // And what a donor has wrong; who fills the volume reads it to find that out.
        Some(VolumeError::Corrupt) => asks && base.shape.read_only,
        _ => false,
    };
    let of_a_tool = matches!(pending.asker, Asker::Tool(_)) && pending.op == Op::Read;
    if !missing || !of_a_tool || !base.shape.map.is_filled_later() || base.finishing.is_some() {
        return false;
    }
    // Where nobody fills it now, somebody may again before the request's time is over.
    let (offset, len) = (pending.offset, pending.len);
    let pending = &mut base.requests[key];
    (pending.failed, pending.fetches) = (None, true);
    // What was brought and is not there may be on its way to another donor.
    if asks && !std::mem::take(&mut pending.brought) {
        base.absent.asked.push(key);
        base.effects.push(Effect::Fetch { request: key, offset, len });
    } else {
        base.absent.resting.push((base.now + PAUSE_NS, key));
    }
    true
}

/// The request is over; whether it waited.
pub(super) fn waits_no_more(base: &mut Base, key: Key) -> bool {
    let waited = base.requests.get_mut(key).is_some_and(|pending| std::mem::take(&mut pending.fetches));
    base.absent.forget(key);
    waited
}

/// Who fills the volume has answered, or could not be asked.
pub(super) fn fetched(base: &mut Base, key: Key, result: Result<(), FetchError>) {
    if !base.absent.asked.contains(&key) {
        return;
    }
    base.absent.forget(key);
    match result {
        Ok(()) => {
            base.requests[key].brought = true;
            read_again(base, key);
        }
        Err(FetchError::Away) => base.absent.resting.push((base.now + PAUSE_NS, key)),
        Err(FetchError::Unreadable) => {
            let pending = &mut base.requests[key];
            (pending.failed, pending.fetches) = (Some(VolumeError::Unreadable), false);
            request::complete_if_done(base, key);
        }
    }
}

/// Reads again what has rested long enough: it may be here by now.
pub(super) fn look(base: &mut Base) {
    let now = base.now;
    while let Some(at) = base.absent.resting.iter().position(|(until, _)| *until <= now) {
        let (_, key) = base.absent.resting.swap_remove(at);
        read_again(base, key);
    }
}

fn read_again(base: &mut Base, key: Key) {
    base.requests[key].fetches = false;
    request::plan_all(base, key, 0);
}

/// A lane is absent of a job for which that is no failure; false: it is one.
pub(super) fn is_no_fault(base: &mut Base, key: Key, slot: u32, failure: Failure) -> bool {
    if failure != Failure::Answer(PartError::Absent) {
        return false;
    }
    match base.jobs[key].work {
        Work::Fill { slot, to } => fill::meets_absent(base, key, slot, to),
        Work::Patch { .. } if is_all_there_is(base, key, slot) => {
            let (at, len) = (base.lane(key, slot), base.jobs[key].len());
            base.effects.push(Effect::Zero { at, len });
            base.jobs[key].have |= bit(slot);
        }
        _ => return false,
    }
    true
}

/// Whether a patch has all bytes that the volume has in its block: what lies behind its end is zeros.
fn is_all_there_is(base: &Base, key: Key, slot: u32) -> bool {
    let job = &base.jobs[key];
    let Some(span) = job.span() else { return false };
    let end = base.shape.chunks.offset(span.group, span.end - 1) + 1;
    let (from, to) = base.shape.geometry.column(span.begin, span.end, slot);
    job.len() == BLOCK && end == base.shape.map.size && from <= job.lo && job.lo < to
}
