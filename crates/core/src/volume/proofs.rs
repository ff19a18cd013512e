//! Who of a sealed volume waits for proofs, and who must not.
//!
//! Owns the rule that keeps jobs from waiting for each other's proofs for ever. Never: the proofs, or what is
//! made of them (the driver's). A read of a proof waits for whoever works alone on its rows, and that job may
//! wait for a proof itself. So a job on rows that hold proofs waits for none whose rows are barred: its blocks
//! have their donors' checksums, and are checked against their proofs by whoever reads them later. Any other
//! job waits, for what it waits for comes. Tests: `tests/volume_proofs.rs`, `lab/tests/seal.rs`.

use super::base::Base;
use super::types::Unproved;
use super::{BLOCK, Key};
use crate::proofs::Tree;

/// Whether `what` goes without the proof that lies at this offset of the volume.
pub(super) fn is_barred(base: &Base, what: Unproved, offset: u64) -> bool {
    let job = match what {
        Unproved::Part(part) => base.jobs.parts.get(part).map(|part| part.job),
        Unproved::Job(job) => Some(job),
    };
    job.is_some_and(|job| reaches_proofs(base, job)) && bars_readers(base, offset)
}

fn reaches_proofs(base: &Base, job: Key) -> bool {
    let Some(job) = base.jobs.get(job) else { return false };
    let (shape, last_slot) = (&base.shape, base.shape.geometry.data - 1);
    let last = shape.geometry.offset(last_slot, job.hi - 1);
    shape.chunks.offset(job.group, last) >= Tree::new(shape.map.size).begin()
}

fn bars_readers(base: &Base, offset: u64) -> bool {
    let mut spans = base.shape.chunks.spans(offset, BLOCK);
    spans.any(|span| {
        let (lo, hi) = base.shape.local_range(span);
        base.jobs.locks.bar_readers(span.group, lo, hi)
    })
}
