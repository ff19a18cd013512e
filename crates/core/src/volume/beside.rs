//! Reading beside a writer: no block is made of lanes of two moments, and none counts as wrong that was only
//! being written.
//!
//! Owns how a client without the write lease finds out that nobody wrote what it rebuilt from, that what came
//! wrong is wrong where it lies, and jobs that begin anew a little later. Never: what is read (`read`,
//! `lanes`). Tests: `tests/volume_moves.rs`, the simulator.

use super::base::Base;
use super::job::{Failure, Job, Part, Phase, Run, Still, slots_of};
use super::types::{Mem, PartError, PartOp, VolumeError};
use super::{Key, read};
use crate::layout::Scatter;
use crate::limits::{LEASE_NS, READ_TOGETHER_NS, READ_TOGETHER_TRIES};
use crate::units::Time;

/// A job has a donor look at what it sent so often, most of them `READ_TOGETHER_NS` apart: for longer than
/// the lease of a writer that ended in the middle of a write, which donors cut off then.
const VERIFIES_MAX: u32 = (LEASE_NS / READ_TOGETHER_NS) as u32 + 8;

/// Without the write lease, another may be writing: lanes that were read before and after a write of
/// their row make up a block that never was. So the donors that were read from are asked who wrote there
/// lately, sooner after the first lane was asked for than a writer makes them forget: of a write that
/// came in between, or was half done before, the one that had it knows, and for that long after the write
/// is complete. A donor that was excluded or replaced does not hear of writes any more; that there is
/// none of them the coordinator knows, whose map is then the newest still. Otherwise it begins anew a
/// little later. False when all that is settled.
pub(super) fn ask_who_wrote(base: &mut Base, key: Key) -> bool {
    let newest = base.shape.map.epoch;
    let job = &mut base.jobs[key];
    match job.still {
        _ if base.shape.geometry.data == 1 || base.shape.map.seal().is_some() => return false,
        Still::Vouched => return false,
        Still::Reading { since, epoch } => job.still = Still::Asked { since, epoch },
        Still::Asked { since, epoch } if base.now < since + READ_TOGETHER_NS && epoch == newest => {
            job.phase = Phase::Resting;
            base.jobs.unvouched.push(key);
            return true;
        }
        _ => {
            rest(base, key);
            return true;
        }
    }
    let (group, have, local, len) = (job.group, job.have, job.lo, job.len());
    for slot in slots_of(have) {
        let scatter = Scatter::whole(0, len);
        let asked = base.source(group, slot).is_some_and(|(held, _)| {
            base.add_part(key, slot, held, PartOp::Survey, Run { local, mem: Mem::Nothing, scatter })
        });
        if !asked {
            base.jobs[key].still = Still::Disturbed;
        }
    }
    base.set_phase(key, Phase::Reading);
    true
}

/// A donor did not say who wrote there.
pub(super) fn survey_failed(job: &mut Job, failure: Failure) {
    match failure {
        Failure::Answer(PartError::Unsupported) => job.failed = Some(VolumeError::DonorLost),
        _ => job.still = Still::Disturbed,
    }
}

/// A reader got bytes that do not fit their checksum: another may have been writing them, so that these are
/// of two moments, or they were hit on their way. The donor can tell, which has both. False for who need not
/// ask, and where there is no more to find out.
pub(super) fn has_it_verified(base: &mut Base, part: &Part) -> bool {
    let job = &mut base.jobs[part.job];
    if part.op != PartOp::Read || !base.shape.read_only || job.verifies == VERIFIES_MAX {
        return false;
    }
    job.verifies += 1;
    let about = Run::about(part.run.local, part.run.scatter.len);
    base.add_part(part.job, part.slot, part.placement, PartOp::Verify, about)
}

/// The donor has what was written: it is read again, at once and then a little later.
pub(super) fn read_again(base: &mut Base, key: Key, slot: u32) {
    match base.jobs[key].verifies {
        0 | 1 => read::again(base, key, slot),
        VERIFIES_MAX => {
            read::failed(base, key, slot, Failure::Answer(PartError::Corrupt { blocks: 1, forged: false }))
        }
        _ => rest_for(base, key, READ_TOGETHER_NS),
    }
}

/// Lets a job begin anew a little later. Rows that a writer left half written stay so until the next
/// one comes.
pub(super) fn rest(base: &mut Base, key: Key) {
    let job = &mut base.jobs[key];
    job.rests += 1;
    let rests = job.rests;
    if rests > READ_TOGETHER_TRIES {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    rest_for(base, key, READ_TOGETHER_NS << (rests - 1));
}

fn rest_for(base: &mut Base, key: Key, ns: Time) {
    base.drop_parts(key);
    base.jobs.free_scratch(key);
    let group = base.jobs[key].group;
    let moved = base.may_have_moved(group);
    let job = &mut base.jobs[key];
    if moved {
        job.wrong = 0;
    }
    (job.have, job.avoid, job.still) = (0, job.wrong, Still::Unasked);
    job.phase = Phase::Resting;
    base.jobs.resting.push((base.now + ns, key));
}

/// What was read before the coordinator was asked fits together if the map is the newest still.
pub(super) fn vouched(base: &mut Base, newest: bool) {
    let asked = std::mem::take(&mut base.jobs.vouching);
    settle(base, asked, newest);
}

/// There is a newer map: what was read by the one before is read again.
pub(super) fn unvouch(base: &mut Base) {
    let unvouched = std::mem::take(&mut base.jobs.unvouched);
    settle(base, unvouched, false);
}

fn settle(base: &mut Base, jobs: Vec<Key>, newest: bool) {
    for key in jobs {
        let Some(job) = base.jobs.get_mut(key) else { continue };
        job.still = if newest { Still::Vouched } else { Still::Disturbed };
        job.phase = Phase::Reading;
        base.jobs.ready.push_back(key);
    }
}

/// Whoever has rested for long enough begins anew.
pub(super) fn tick_resting(base: &mut Base) {
    let rested = base.jobs.resting.extract_if(.., |(until, _)| *until <= base.now);
    for (_, key) in rested.collect::<Vec<_>>() {
        if let Some(job) = base.jobs.get_mut(key) {
            job.phase = Phase::Locking;
            base.jobs.ready.push_back(key);
        }
    }
}
