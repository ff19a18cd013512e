//! Rows that requests write one after the other: put together in memory and written whole, so that nothing is
//! read and parity leaves once.
//!
//! Owns which ends of requests wait for the next one to come, and for how long. Never: an answer. Invariant:
//! what waits is part of a request that is not answered, and does not wait for long. Tests:
//! `tests/volume_join.rs`, the simulator.
//!
//! A tool that writes one request at a time sends the next when it has the answer to the last: it would wait
//! for itself. So an end waits only where the write before it was not answered yet when it came, and for that
//! answer, or for one of its own request's other parts, which may bring the tool to send more; a little
//! longer for it to arrive.

use super::base::Base;
use super::job::{Content, Job, Phase, Work};
use super::types::{At, Effect};
use super::{Key, lanes, write};
use crate::layout::Span;
use crate::limits::{JOIN_GRACE_NS, JOIN_WAIT_NS, SCRATCH_LARGE_BYTES};
use crate::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// The writes that a new one may follow.
const ENDS_MAX: usize = 32;
const ROWS_MAX: usize = 32;

/// What a request has of a row.
#[derive(Clone, Copy, Debug)]
struct Piece {
    request: Key,
    span: Span,
}

/// The beginning of a row, which waits for the rest.
#[derive(Debug)]
struct Begun {
    /// Of all of it, as if in one payload.
    row: Span,
    /// As far as there are pieces.
    end: u32,
    pieces: Vec<Piece>,
    /// The write before the first of them.
    before: Key,
    until: Time,
}

#[derive(Debug, Default)]
pub(super) struct Joins {
    begun: Vec<Begun>,
    /// What the rows that are being written were put together from.
    whole: BTreeMap<Key, Vec<Piece>>,
    /// Where the last writes ended in the volume.
    ends: VecDeque<(u64, Key)>,
}

impl Joins {
    /// Requests whose pieces wait, one entry for each piece.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Key> {
        self.begun.iter().flat_map(|begun| &begun.pieces).map(|piece| piece.request)
    }

    /// The requests of a job beside the one that it names.
    pub(super) fn beside(&self, job: Key) -> impl Iterator<Item = Key> + use<'_> {
        self.whole.get(&job).into_iter().flat_map(|pieces| &pieces[1..]).map(|piece| piece.request)
    }

    pub(super) fn ended(&mut self, job: Key) -> impl Iterator<Item = Key> + use<> {
        self.whole.remove(&job).into_iter().flat_map(|pieces| pieces.into_iter().skip(1)).map(|p| p.request)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.begun.iter().map(|begun| begun.until).min()
    }

    fn note_end(&mut self, end: u64, request: Key) {
        if self.ends.len() == ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back((end, request));
    }
}

/// The write that ends where this one begins, if it is still under way; remembers where this one ends.
pub(super) fn write_before(base: &mut Base, request: Key, offset: u64, len: u32) -> Option<Key> {
    let mut ends_here = base.joins.ends.iter().filter(|(end, _)| *end == offset).map(|(_, key)| *key);
    let before = ends_here.find(|key| base.requests.get(*key).is_some());
    base.joins.note_end(offset + u64::from(len), request);
    before
}

/// Keeps what a write has of the rows at its ends, where the rest of them is there or may be about to
/// come. Gives what is left of it.
pub(super) fn keep_ends(base: &mut Base, request: Key, span: Span) -> Span {
    let (row, slots) = (base.shape.geometry.row(), base.shape.geometry.data + base.shape.geometry.parity);
    if base.shape.geometry.unit > SCRATCH_LARGE_BYTES / slots {
        return span;
    }
    let mut left = span;
    let head = span.begin.next_multiple_of(row).min(span.end);
    if span.begin < head && continues_row(base, Piece { request, span: span.cut(span.begin, head) }) {
        left = left.cut(head, span.end);
    }
    let tail = span.end / row * row;
    let before = base.requests.get(request).and_then(|pending| pending.before);
    if let Some(before) = before
        && span.begin <= tail
        && tail < span.end
    {
        let begins = Span { group: span.group, begin: tail, end: tail + row, payload: 0 };
        if base.joins.begun.len() < ROWS_MAX && !base.joins.begun.iter().any(|other| other.row == begins) {
            let piece = Piece { request, span: span.cut(tail, span.end) };
            let (end, until) = (span.end, base.now + JOIN_WAIT_NS);
            base.joins.begun.push(Begun { row: begins, end, pieces: vec![piece], before, until });
            base.requests[request].jobs_open += 1;
            left = left.cut(left.begin, tail);
        }
    }
    left
}

fn continues_row(base: &mut Base, piece: Piece) -> bool {
    let follows = |begun: &Begun| begun.row.group == piece.span.group && begun.end == piece.span.begin;
    let Some(index) = base.joins.begun.iter().position(follows) else { return false };
    let begun = &mut base.joins.begun[index];
    begun.pieces.push(piece);
    begun.end = piece.span.end;
    base.requests[piece.request].jobs_open += 1;
    if begun.end == begun.row.end {
        let Begun { row, pieces, .. } = base.joins.begun.swap_remove(index);
        let first = pieces[0].request;
        let (lo, hi) = base.shape.local_range(row);
        let key = base.add_job(Some(first), Work::Joined(row), row.group, lo, hi);
        base.requests[first].jobs_open -= 1;
        base.joins.whole.insert(key, pieces);
    }
    true
}

/// Nothing came in time: what waits is written as it is.
pub(super) fn stop_waiting(base: &mut Base) {
    if base.joins.begun.is_empty() {
        return;
    }
    let moves = |begun: &Begun| {
        let first = begun.pieces[0].request;
        let waiting = base.joins.waiting().filter(|request| *request == first).count();
        let open = base.requests.get(first).map_or(0, |pending| pending.jobs_open as usize);
        open > waiting || base.requests.get(begun.before).is_some()
    };
    let orphans: Vec<usize> =
        (0..base.joins.begun.len()).filter(|at| !moves(&base.joins.begun[*at])).collect();
    for at in orphans {
        let begun = &mut base.joins.begun[at];
        begun.until = begun.until.min(base.now + JOIN_GRACE_NS);
    }
    let given_up = base.joins.begun.extract_if(.., |begun| begun.until <= base.now);
    for Piece { request, span } in given_up.flat_map(|begun| begun.pieces).collect::<Vec<_>>() {
        write::plan_patches(base, request, span, Content::Payload);
        base.requests[request].jobs_open -= 1;
    }
}

pub(super) fn begin(base: &mut Base, key: Key) {
    let Job { lo, hi, .. } = base.jobs[key];
    for Piece { request, span } in &base.joins.whole[&key] {
        let mem = base.payload_of(*request);
        for slot in 0..base.shape.geometry.data {
            let lane = base.lane(key, slot);
            for (local, payload, len) in base.shape.overlap(*span, slot, lo, hi) {
                let to = At { offset: lane.offset + (local - lo), ..lane };
                base.effects.push(Effect::Copy { from: At { mem, offset: payload }, to, len });
            }
        }
    }
    lanes::encode(base, key);
    for slot in base.shape.slots() {
        lanes::write_lane(base, key, slot, lo, hi);
    }
    base.set_phase(key, Phase::Writing);
}
