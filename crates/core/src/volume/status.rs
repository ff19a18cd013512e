//! Which blocks are present: asked of donors, and put together in the order of the request.
//!
//! Owns what is said of bytes that nobody can be asked about. Never: reading them. Tests:
//! `tests/volume_requests.rs`, the simulator.

use super::base::Base;
use super::job::{Failure, Job, Part, Phase, Run, bit, slots_of};
use super::request::Pending;
use super::shape::touched_of;
use super::types::{Mem, Op, PartError, PartOp, StatusRun, VolumeError};
use super::{Key, doubts};
use crate::layout::{Scatter, Span};

pub(super) fn begin(base: &mut Base, key: Key, span: Span) {
    for slot in slots_of(base.shape.geometry.touched(span.begin, span.end)) {
        let Job { lo, hi, .. } = base.jobs[key];
        let missed = doubts::missed_there(base, span.group, lo, hi) & bit(slot) != 0;
        let (from, to) = base.shape.geometry.column(span.begin, span.end, slot);
        // What is lost for good is no hole: who reads it has to hear that it is lost.
        let lost = base.shape.lost_ranges().filter(|bad| bad.reaches(span.group, slot, from, to));
        let lost = lost.map(|bad| bad.from.max(from)).min();
        // Nor is what stands for what the source could not give.
        let unreadable = touched_of(&base.shape.map.unreadable, span.group, slot, from, to).next().is_some();
        let source = base.source(span.group, slot).filter(|_| !missed);
        let source_is_there = source.is_some();
        let op = if request_of(base, key).op == Op::Presence { PartOp::Presence } else { PartOp::Status };
        let source = source.filter(|_| op == PartOp::Presence || (lost.is_none() && !unreadable));
        let scatter = base.shape.geometry.scatter(slot, from, to, span.begin, span.payload);
        let asked = source.is_some_and(|(held, _)| {
            base.add_part(key, slot, held, op, Run { local: from, mem: Mem::Nothing, scatter })
        });
        if asked {
            continue;
        }
        if op == PartOp::Presence {
            ends(base, key, scatter, 0, VolumeError::DonorLost);
            continue;
        }
        // What its holder would say is not known, or says nothing; present is never wrong.
        let request = request_of(base, key);
        collect(&mut request.status, scatter, &[], false);
        if base.shape.geometry.parity == 0 && !unreadable {
            let known = if source_is_there { lost.map_or(0, |at| at - from) } else { 0 };
            ends(base, key, scatter, known, VolumeError::DonorLost);
        }
    }
    base.set_phase(key, Phase::Reading);
}

fn request_of(base: &mut Base, job: Key) -> &mut Pending {
    let request = base.jobs.get(job).and_then(|job| job.request);
    request.and_then(|request| base.requests.get_mut(request)).expect("asked by a request")
}

/// Of what a slot has of the request, something can be said of `known` bytes: what is in front of that is
/// still answered.
fn ends(base: &mut Base, job: Key, scatter: Scatter, known: u32, error: VolumeError) {
    let (at, _) = scatter.locate(known);
    let request = request_of(base, job);
    if request.status_ends.is_none_or(|(end, _)| at < end) {
        request.status_ends = Some((at, error));
    }
}

/// A donor has answered.
pub(super) fn answered(base: &mut Base, part: &Part, runs: &[StatusRun]) {
    // What a donor left unsaid may be absent, and to fetch it twice is no harm; and is no hole.
    let rest = part.op == PartOp::Presence;
    collect(&mut request_of(base, part.job).status, part.run.scatter, runs, rest);
}

/// A donor will not answer. Without redundancy nobody else can say what is there.
pub(super) fn failed(base: &mut Base, part: &Part, failure: Failure) {
    let shut_out = base.shape.read_only && failure == Failure::Answer(PartError::Denied);
    let has_moved = failure == Failure::Moved || shut_out;
    if part.op == PartOp::Status && (base.shape.geometry.parity > 0 || has_moved) {
        // What its holder would say is not known; present is never wrong.
        return answered(base, part, &[]);
    }
    match failure.error() {
        // What is in front of it is none the worse.
        error @ (VolumeError::DonorLost | VolumeError::DonorFailed | VolumeError::TimedOut) => {
            ends(base, part.job, part.run.scatter, 0, error);
        }
        error => base.jobs[part.job].failed = Some(error),
    }
}

/// Brings one donor's runs into payload order. What the donor left unanswered is as `rest` says.
fn collect(status: &mut Vec<(u32, u32, bool)>, scatter: Scatter, runs: &[StatusRun], rest: bool) {
    let mut at = 0;
    let rest = StatusRun { len: scatter.len, hole: rest };
    for run in runs.iter().chain([&rest]) {
        let end = at + run.len.min(scatter.len - at);
        while at < end {
            let (offset, piece) = scatter.locate(at);
            let len = piece.min(end - at);
            status.push((offset, len, run.hole));
            at += len;
        }
    }
}
