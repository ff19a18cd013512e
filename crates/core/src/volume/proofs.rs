//! Who of a sealed volume waits for proofs, and who must not.
//!
//! Owns the rule by which nothing waits for itself. Never: the proofs, or what is made of them (the
//! driver's). A proof is read when the one above it is known, so a read of proofs needs none; but what it is
//! rebuilt from, of other slots, may have its own below. And it waits for whoever works alone on its rows. So
//! reads of proofs wait for none, and jobs on rows that hold proofs for none whose rows are barred: such
//! blocks have their donors' checksums, and what is made of them is checked. Any other job waits, for what it
//! waits for comes. Tests: `tests/volume_sealed.rs`, `lab/tests/seal.rs`.

use super::BLOCK;
use super::base::Base;
use super::job::Job;
use super::types::Unproved;

/// Whether `what` goes without the proof that lies at this offset of the volume.
pub(super) fn goes_without(base: &Base, what: Unproved, offset: u64) -> bool {
    let job = match what {
        Unproved::Part(part) => base.jobs.parts.get(part).map(|part| part.job),
        Unproved::Job(job) => Some(job),
    };
    let Some(job) = job.and_then(|job| base.jobs.get(job)) else { return false };
    reads_proofs(base, job) || (reaches_proofs(base, job) && bars_readers(base, offset))
}

/// Where the first proof lies in the volume.
fn begin(base: &Base) -> u64 {
    base.shape.map.tree().begin()
}

fn reads_proofs(base: &Base, job: &Job) -> bool {
    job.span().is_some_and(|span| base.shape.chunks.offset(span.group, span.begin) >= begin(base))
}

fn reaches_proofs(base: &Base, job: &Job) -> bool {
    let geometry = base.shape.geometry;
    let last = geometry.offset(geometry.data - 1, job.hi - 1);
    base.shape.chunks.offset(job.group, last) >= begin(base)
}

fn bars_readers(base: &Base, offset: u64) -> bool {
    let mut spans = base.shape.chunks.spans(offset, BLOCK);
    spans.any(|span| {
        let (lo, hi) = base.shape.local_range(span);
        base.jobs.locks.bar_readers(span.group, lo, hi)
    })
}
