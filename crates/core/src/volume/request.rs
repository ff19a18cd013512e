//! Requests: admitted, cut into jobs, and completed once.
//!
//! Owns what is open of each request, and its deadline. Never: what its jobs do. Invariant: every request
//! that was admitted is completed exactly once. Tests: `tests/volume_requests.rs`, the simulator.

use super::base::Base;
use super::job::{Content, Work};
use super::slab::Slab;
use super::types::{Effect, Op, Request, StatusRun, Tag, VolumeError};
use super::{Key, absent, cached, join, read, write};
use crate::ahead::Found;
use crate::layout::Span;
use crate::limits::{REQUEST_BYTES_MAX, REQUEST_DEADLINE_NS, REQUESTS_IN_FLIGHT_MAX};
use crate::map::DonorId;
use crate::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// Who a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Tool(Tag),
    /// A segment that is read ahead.
    Cache(Key),
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) asker: Asker,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) deadline: Time,
    /// Segments of the cache that it waits for.
    pub(super) coming: u32,
    /// It waits for what is not here yet.
    pub(super) fetches: bool,
    /// Who fills the volume said that it is here now.
    pub(super) brought: bool,
    /// And pieces that wait to be joined.
    pub(super) jobs_open: u32,
    /// The write that ends where it begins, if that was not answered when it came.
    pub(super) before: Option<Key>,
    pub(super) failed: Option<VolumeError>,
    /// Group and slot of what took a part of the write; who holds them at its end answers for it.
    pub(super) touched: Vec<(u32, u32)>,
    /// Payload offset, length, hole: what parts of a status request answered.
    pub(super) status: Vec<(u32, u32, bool)>,
    /// And the first payload offset that nothing can be said of, and why: the answer ends before it.
    pub(super) status_ends: Option<(u32, VolumeError)>,
}

/// All that are open.
#[derive(Debug)]
pub(super) struct Requests {
    slab: Slab<Pending>,
    /// In order of submission, so in order of deadline. Keys of completed requests are skipped.
    deadlines: VecDeque<(Time, Key)>,
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests {
            slab: Slab::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            deadlines: VecDeque::with_capacity(REQUESTS_IN_FLIGHT_MAX),
        }
    }

    pub(super) fn room(&self) -> usize {
        self.slab.room()
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Pending> {
        self.slab.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Pending> {
        self.slab.get_mut(key)
    }

    /// A slot of a group has something of what the request writes.
    pub(super) fn touched(&mut self, key: Key, slot: (u32, u32)) {
        if let Some(request) = self.slab.get_mut(key).filter(|request| !request.touched.contains(&slot)) {
            request.touched.push(slot);
        }
    }

    fn insert(&mut self, pending: Pending) -> Key {
        let deadline = pending.deadline;
        let key = self.slab.insert(pending);
        if self.deadlines.len() == self.deadlines.capacity() {
            // One that is late keeps those behind it; this path does not allocate.
            self.deadlines.retain(|(_, key)| self.slab.get(*key).is_some());
        }
        self.deadlines.push_back((deadline, key));
        key
    }

    fn remove(&mut self, key: Key) -> Option<Pending> {
        let pending = self.slab.remove(key);
        while self.deadlines.front().is_some_and(|(_, key)| self.slab.get(*key).is_none()) {
            self.deadlines.pop_front();
        }
        pending
    }

    /// The one whose deadline is next.
    pub(super) fn first_due(&self) -> Option<(Time, Key)> {
        self.deadlines.front().copied()
    }

    /// `open_jobs`: of each request, by its key.
    pub(super) fn check_invariants(&self, open_jobs: &BTreeMap<u64, u32>) {
        for (key, pending) in self.slab.iter() {
            let jobs = open_jobs.get(&key.to_u64()).copied().unwrap_or(0);
            assert_eq!(jobs, pending.jobs_open, "jobs are miscounted");
            assert!(
                jobs + pending.coming > 0 || pending.fetches,
                "a request with nothing open was not completed"
            );
            assert!(self.deadlines.iter().any(|(_, k)| *k == key), "a request has no deadline");
        }
        assert!(self.len() <= REQUESTS_IN_FLIGHT_MAX);
    }
}

impl std::ops::Index<Key> for Requests {
    type Output = Pending;

    fn index(&self, key: Key) -> &Pending {
        self.slab.get(key).expect("a request with jobs is there")
    }
}

impl std::ops::IndexMut<Key> for Requests {
    fn index_mut(&mut self, key: Key) -> &mut Pending {
        self.slab.get_mut(key).expect("a request with jobs is there")
    }
}

/// Takes on a tool's request, or answers it at once.
pub(super) fn submit(base: &mut Base, tag: Tag, request: Request) {
    let end = request.offset.checked_add(u64::from(request.len));
    let too_long = matches!(request.op, Op::Read | Op::Write) && request.len > REQUEST_BYTES_MAX;
    let at_once = match request.op {
        op if op.writes() && base.shape.read_only => Some(Err(VolumeError::ReadOnly)),
        op if op.writes() && base.lease_lost => Some(Err(VolumeError::LeaseLost)),
        _ if too_long || end.is_none_or(|end| end > base.shape.map.size && end > base.shape.map.bytes()) => {
            Some(Err(VolumeError::OutOfRange))
        }
        op if op == Op::Cache || request.len == 0 => Some(Ok(())),
        _ => None,
    };
    if let Some(result) = at_once {
        return base.effects.push(Effect::Complete { tag, result, status: Vec::new() });
    }
    if request.op == Op::Read && cached::read(base, tag, request) {
        return;
    }
    let mut len = request.len;
    if matches!(request.op, Op::Status | Op::Presence) {
        // Bounds the answer; the protocol lets it be shorter than the question.
        let group_bytes = base.shape.map.group_bytes();
        let left = group_bytes - request.offset % group_bytes;
        len = u32::try_from(left).map_or(len, |left| len.min(left));
    }
    if request.op.writes() {
        cached::forget(base, request.offset, request.offset + u64::from(len));
    }
    let key = admit(base, Asker::Tool(tag), Request { len, ..request });
    if request.op == Op::Write {
        base.requests[key].before = join::write_before(base, key, request.offset, len);
    }
    plan_all(base, key, 0);
    if request.op == Op::Read {
        cached::read_ahead(base, request, Found::Missed);
    }
}

/// Takes on a request that was checked.
pub(super) fn admit(base: &mut Base, asker: Asker, request: Request) -> Key {
    cached::note_reading(base, asker, request.op, request.len, true);
    base.requests.insert(Pending {
        asker,
        op: request.op,
        offset: request.offset,
        len: request.len,
        deadline: base.now + REQUEST_DEADLINE_NS,
        coming: 0,
        fetches: false,
        brought: false,
        jobs_open: 0,
        before: None,
        failed: None,
        touched: Vec::new(),
        status: Vec::new(),
        status_ends: None,
    })
}

/// Makes jobs of a request whose payload begins at byte `at` of its memory.
pub(super) fn plan_all(base: &mut Base, key: Key, at: u32) {
    let Pending { op, offset, len, .. } = base.requests[key];
    for span in base.shape.chunks.spans(offset, len) {
        plan(base, key, op, Span { payload: span.payload + at, ..span });
    }
    complete_if_done(base, key);
}

pub(super) fn job_ended(base: &mut Base, key: Key, result: Result<(), VolumeError>) {
    let pending = &mut base.requests[key];
    pending.jobs_open -= 1;
    if let Err(error) = result {
        pending.failed = Some(pending.failed.map_or(error, |before| before.min(error)));
    }
    complete_if_done(base, key);
}

pub(super) fn complete_if_done(base: &mut Base, key: Key) {
    let waits = |pending: &Pending| pending.jobs_open > 0 || pending.coming > 0 || pending.fetches;
    if base.requests.get(key).is_none_or(waits) || absent::waits(base, key) {
        return;
    }
    let pending = base.requests.remove(key).expect("looked at above");
    let unsaid = pending.status_ends.filter(|(at, _)| *at == 0).map(|(_, error)| error);
    let mut result = pending.failed.or(unsaid).map_or(Ok(()), Err);
    if pending.op.writes() && result.is_ok() {
        let slot = |(group, slot): &(u32, u32)| base.shape.slot(*group, *slot);
        let touched = pending.touched.iter().map(slot);
        let down = |donor: DonorId| base.links.is_down(donor);
        let holders = touched.filter_map(|slot| slot.held);
        if base.shape.geometry.parity == 0 && holders.clone().any(|held| down(held.donor)) {
            // It had answered, and what it took is gone before anybody heard of it.
            result = Err(VolumeError::DonorLost);
        } else {
            // From here on it is acknowledged, and a flush answers for it.
            for held in holders {
                if let Some(link) = base.links.get_mut(held.donor) {
                    link.unflushed = true;
                }
            }
        }
    }
    if pending.op.writes() {
        // What was read while it was under way may be older.
        cached::forget(base, pending.offset, pending.offset + u64::from(pending.len));
    }
    cached::note_reading(base, pending.asker, pending.op, pending.len, false);
    base.upkeep_due |= base.finishing.is_some();
    let tag = match pending.asker {
        Asker::Tool(tag) => tag,
        Asker::Cache(segment) => return base.fetched.push((segment, result.is_ok())),
    };
    let status = match (result, pending.status_ends) {
        (Ok(()), ends) => merge_status(pending.status, ends.map_or(pending.len, |(at, _)| at)),
        (Err(_), _) => Vec::new(),
    };
    base.effects.push(Effect::Complete { tag, result, status });
}

pub(super) fn plan(base: &mut Base, request: Key, op: Op, span: Span) {
    match op {
        Op::Read => read::plan(base, request, span),
        Op::Status | Op::Presence => {
            let (lo, hi) = base.shape.local_range(span);
            base.add_job(Some(request), Work::Status(span), span.group, lo, hi);
        }
        _ => write::plan(base, request, span, Content::of(op)),
    }
}

/// What lies before the payload offset `end`.
fn merge_status(mut pieces: Vec<(u32, u32, bool)>, end: u32) -> Vec<StatusRun> {
    pieces.sort_unstable();
    let mut runs: Vec<StatusRun> = Vec::new();
    for (offset, len, hole) in pieces.into_iter().filter(|(offset, ..)| *offset < end) {
        let len = len.min(end - offset);
        match runs.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => runs.push(StatusRun { len, hole }),
        }
    }
    runs
}
