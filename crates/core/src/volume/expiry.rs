//! Requests whose time is over, and jobs that are given up.
//!
//! Owns their end. Never: when that is (`request`). Invariant: after it nothing of theirs touches memory.
//! Tests: `tests/volume_requests.rs`, `tests/volume_absent.rs`, the simulator.

use super::types::VolumeError;
use super::{Key, Volume, absent, cached, request, watch};

/// Every job of a request that is late ends. A donor that still reads a payload is set aside first,
/// since its memory must not be touched after the request is answered.
pub(super) fn expire_requests(volume: &mut Volume) {
    while let Some((_, key)) = volume.base.requests.first_due().filter(|(at, _)| *at <= volume.base.now) {
        let base = &mut volume.base;
        let pending = &mut base.requests[key];
        pending.failed = Some(VolumeError::TimedOut);
        let waited = std::mem::take(&mut pending.coming) > 0;
        let jobs = base.jobs.iter().filter(|(_, job)| job.request == Some(key));
        let jobs: Vec<Key> = jobs.map(|(job, _)| job).collect();
        watch::set_aside_who_is_late(base, &jobs);
        volume.work_off();
        give_up(volume, jobs);
        if waited {
            cached::waits_no_more(&mut volume.base);
        }
        if absent::waits_no_more(&mut volume.base, key) || waited {
            request::complete_if_done(&mut volume.base, key);
        }
        debug_assert!(volume.base.requests.get(key).is_none(), "its last job has ended");
    }
}

/// Ends jobs, of which one may end with another.
pub(super) fn give_up(volume: &mut Volume, jobs: Vec<Key>) {
    for job in jobs {
        if volume.base.jobs.get(job).is_some() {
            volume.base.end_job(job, Err(VolumeError::TimedOut));
            volume.work_off();
        }
    }
}
