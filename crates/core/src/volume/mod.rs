//! The volume machine: what a client does with a request of a front end, and with donors that come and go.
//!
//! Owns: cutting requests into parts, sending each to its donor, putting answers together, deadlines, and the
//! state of the link to each donor. Never: payload bytes (a part carries where its bytes belong, the driver has
//! them), sockets, clocks, or how many connections a link has.
//! Invariants: every submitted request is completed exactly once, by its deadline at the latest; a part is sent
//! only over a link that is up, and its answer counts only once; after `Close` the driver touches no payload of
//! that link's parts, so a `Complete` behind it may hand the memory back.
//! Called by `rim::volume` and by `sim`. Tests: `tests/volume_*.rs`, the simulator.
//!
//! Getters: `map`, `has_room`, `is_settled`, `lost`. Events in: `step`. Call `check_invariants` in tests.

mod link;
mod slab;

use crate::layout::{self, Fragment, Scatter};
use crate::limits::{EXTENT_BYTES, REQUEST_BYTES_MAX, REQUEST_DEADLINE_NS, REQUESTS_IN_FLIGHT_MAX};
use crate::map::{DonorId, VolumeMap};
use crate::units::Time;
use link::{Link, State};
pub use slab::Key;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One request may touch this many runs of donor memory: a TRIM of 4 GiB covers 64 extents in whole groups, and a
/// group cut at either end.
const PARTS_PER_REQUEST_MAX: usize = 64 + 2 * crate::limits::STRIPE_DONORS_MAX as usize;
const PARTS_MAX: usize = 8 * REQUESTS_IN_FLIGHT_MAX;

const _: () = assert!(PARTS_PER_REQUEST_MAX <= PARTS_MAX);

/// The driver's name for a request; it comes back in `Complete`.
pub type Tag = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    /// Make it read as zeros; `keep` forbids giving the memory back.
    Zero {
        keep: bool,
    },
    Trim,
    /// A barrier: fails if acknowledged writes since the last one are gone with their donor.
    Flush,
    /// A hint that needs nothing done: donors are memory.
    Cache,
    /// Which blocks are present; may answer for less than was asked.
    Status,
}

impl Op {
    /// Whether it changes the volume.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Op::Write | Op::Zero { .. } | Op::Trim)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub op: Op,
    pub offset: u64,
    pub len: u32,
}

/// A run of equal presence; `hole` reads as zeros and takes no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRun {
    pub len: u32,
    pub hole: bool,
}

/// Why a request failed. The front ends turn it into the errno of their protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeError {
    /// A range beyond the end.
    OutOfRange,
    /// A write to a volume attached read-only.
    ReadOnly,
    /// Only a donor that cannot be reached holds (part of) the range.
    DonorLost,
    /// No answer by the deadline.
    TimedOut,
    /// The donor answered with an error of its own.
    DonorFailed,
    /// The donor has no memory left.
    NoMemory,
    /// The lease is gone: another may write.
    LeaseLost,
    /// A foreign donor that cannot do this (zero without a payload).
    Unsupported,
}

/// Why a link could not be opened or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFailure {
    /// It ended while it was up. It is opened again at once; what was on its way is sent again.
    Broken(String),
    /// It could not be opened: refused, unreachable or not admitted.
    NotOpened(String),
}

/// An error answer to one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartError {
    Io,
    NoMemory,
    /// The donor does not serve that range under this lease.
    Denied,
    /// The server has no such command.
    Unsupported,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Opens the links. Once, before any other event.
    Start,
    Submit {
        tag: Tag,
        request: Request,
    },
    /// A newer map from the coordinator.
    Map(VolumeMap),
    Opened {
        donor: DonorId,
        session: u64,
    },
    Failed {
        donor: DonorId,
        session: u64,
        failure: LinkFailure,
    },
    /// `status` is empty but for `Op::Status`.
    Answered {
        part: Key,
        answer: Result<Vec<StatusRun>, PartError>,
    },
    Wake,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect to the donor under this session number; answer with `Opened` or `Failed`.
    Open {
        donor: DonorId,
        session: u64,
    },
    /// Drop every connection of the link, and touch none of its payloads again. Not answered.
    Close {
        donor: DonorId,
        session: u64,
    },
    Send {
        donor: DonorId,
        part: Key,
        tag: Tag,
        op: Op,
        address: u64,
        scatter: Scatter,
    },
    Complete {
        tag: Tag,
        result: Result<(), VolumeError>,
        status: Vec<StatusRun>,
    },
    /// Call `Wake` at this time; an earlier one than announced before replaces it.
    WakeAt(Time),
}

#[derive(Debug)]
struct Pending {
    tag: Tag,
    op: Op,
    /// Its parts, linked; they stay until the request is complete.
    parts: Option<Key>,
    parts_open: u32,
    failed: Option<VolumeError>,
    /// Payload offset, length, hole: what parts of a status request answered.
    status: Vec<(u32, u32, bool)>,
}

#[derive(Debug)]
struct Part {
    request: Key,
    donor: DonorId,
    op: Op,
    address: u64,
    scatter: Scatter,
    progress: Progress,
    /// The next part of the same request.
    next: Option<Key>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// For its link.
    Waiting,
    Sent,
    Done,
}

#[derive(Debug)]
pub struct Volume {
    map: VolumeMap,
    read_only: bool,
    links: BTreeMap<DonorId, Link>,
    requests: Slab<Pending>,
    parts: Slab<Part>,
    /// In order of submission, so in order of deadline. Keys of completed requests are skipped.
    deadlines: VecDeque<(Time, Key)>,
    wake_announced: Option<Time>,
}

impl Volume {
    /// `map` has passed its own `check`.
    #[must_use]
    pub fn new(map: VolumeMap, read_only: bool) -> Self {
        let links = map.routes.iter().map(|(id, route)| (*id, Link::new(route))).collect();
        Volume {
            map,
            read_only,
            links,
            requests: Slab::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            parts: Slab::with_capacity(PARTS_MAX),
            deadlines: VecDeque::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            wake_announced: None,
        }
    }

    #[must_use]
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// Whether another request may be submitted now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.requests.room() > 0 && self.parts.room() >= PARTS_PER_REQUEST_MAX
    }

    /// Whether every donor has been reached or set aside: the moment at which attaching is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.links.values().all(Link::is_settled)
    }

    /// The donors that cannot be reached, and why.
    pub fn lost(&self) -> impl Iterator<Item = (DonorId, &str)> {
        self.links.iter().filter_map(|(id, link)| match &link.state {
            State::Down { why, .. } => Some((*id, why.as_str())),
            _ => None,
        })
    }

    pub fn step(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Start => self.open_links(now, effects),
            Event::Submit { tag, request } => self.submit(now, tag, request, effects),
            Event::Map(map) => self.replace_map(now, map, effects),
            Event::Opened { donor, session } => self.opened(donor, session, effects),
            Event::Failed { donor, session, failure } => self.failed(now, donor, session, failure, effects),
            Event::Answered { part, answer } => self.answered(part, answer, effects),
            Event::Wake => self.wake(now, effects),
        }
        self.announce_wake(effects);
    }

    fn submit(&mut self, now: Time, tag: Tag, request: Request, effects: &mut Vec<Effect>) {
        assert!(self.has_room(), "the driver checks has_room before it submits");
        let done = |result, effects: &mut Vec<Effect>| {
            effects.push(Effect::Complete { tag, result, status: Vec::new() });
        };
        if request.op == Op::Flush {
            return self.flush(now, tag, effects);
        }
        if request.op.writes() && self.read_only {
            return done(Err(VolumeError::ReadOnly), effects);
        }
        let end = request.offset.checked_add(u64::from(request.len));
        let too_long = matches!(request.op, Op::Read | Op::Write) && request.len > REQUEST_BYTES_MAX;
        if too_long || end.is_none_or(|end| end > self.map.size) {
            return done(Err(VolumeError::OutOfRange), effects);
        }
        if request.op == Op::Cache || request.len == 0 {
            return done(Ok(()), effects);
        }
        let mut len = request.len;
        if request.op == Op::Status {
            // Bounds the answer; the protocol lets it be shorter than the question.
            let left = self.map.group_bytes() - request.offset % self.map.group_bytes();
            len = u32::try_from(left).map_or(len, |left| len.min(left));
        }
        let key = self.admit(now, tag, request.op);
        let (parts, links) = (&mut self.parts, &mut self.links);
        let pending = self.requests.get_mut(key).expect("just inserted");
        layout::fragments(&self.map, request.offset, len, |fragment| {
            let link = links.get_mut(&fragment.donor).expect("a checked map routes every member");
            if matches!(link.state, State::Down { .. }) {
                pending.failed = Some(VolumeError::DonorLost);
                return;
            }
            let part = add_part(key, pending, parts, fragment);
            match link.state {
                State::Up => send(parts, part, tag, effects),
                _ => link.waiting.push_back(part),
            }
        });
        if pending.parts_open == 0 {
            self.complete(key, effects);
        }
    }

    fn admit(&mut self, now: Time, tag: Tag, op: Op) -> Key {
        let pending = Pending { tag, op, parts: None, parts_open: 0, failed: None, status: Vec::new() };
        let key = self.requests.insert(pending);
        if self.deadlines.len() == self.deadlines.capacity() {
            // One that is late keeps those behind it; this path does not allocate.
            self.deadlines.retain(|(_, key)| self.requests.get(*key).is_some());
        }
        self.deadlines.push_back((now + REQUEST_DEADLINE_NS, key));
        key
    }

    /// An acknowledged write lives in the donor's memory already; all that can have happened since is its loss.
    /// A link that is being opened does not know yet, so it is waited for.
    fn flush(&mut self, now: Time, tag: Tag, effects: &mut Vec<Effect>) {
        let key = self.admit(now, tag, Op::Flush);
        let pending = self.requests.get_mut(key).expect("just inserted");
        for (donor, link) in &mut self.links {
            match link.state {
                State::Down { .. } if link.unflushed => pending.failed = Some(VolumeError::DonorLost),
                State::New | State::Opening { .. } if link.unflushed && self.parts.room() == 0 => {
                    pending.failed = Some(VolumeError::DonorLost);
                }
                State::New | State::Opening { .. } if link.unflushed => {
                    let fragment = Fragment { donor: *donor, address: 0, scatter: Scatter::whole(0, 0) };
                    link.waiting.push_back(add_part(key, pending, &mut self.parts, fragment));
                }
                _ => {}
            }
            link.unflushed = false;
        }
        if pending.parts_open == 0 {
            self.complete(key, effects);
        }
    }

    fn answered(&mut self, part: Key, answer: Result<Vec<StatusRun>, PartError>, effects: &mut Vec<Effect>) {
        let Some(part) = self.parts.get_mut(part).filter(|part| part.progress == Progress::Sent) else {
            return;
        };
        part.progress = Progress::Done;
        let Part { request, op, scatter, .. } = *part;
        let pending = self.requests.get_mut(request).expect("a part never outlives its request");
        match answer {
            Ok(runs) if op == Op::Status => collect_status(&mut pending.status, scatter, &runs),
            Ok(_) => {}
            Err(error) => {
                let error = match error {
                    PartError::Io => VolumeError::DonorFailed,
                    PartError::NoMemory => VolumeError::NoMemory,
                    PartError::Denied => VolumeError::LeaseLost,
                    PartError::Unsupported => VolumeError::Unsupported,
                };
                pending.failed = Some(pending.failed.map_or(error, |before| before.min(error)));
            }
        }
        self.part_done(request, effects);
    }

    fn part_done(&mut self, request: Key, effects: &mut Vec<Effect>) {
        let pending = self.requests.get_mut(request).expect("a part never outlives its request");
        pending.parts_open -= 1;
        if pending.parts_open == 0 {
            self.complete(request, effects);
        }
    }

    fn complete(&mut self, key: Key, effects: &mut Vec<Effect>) {
        let pending = self.requests.remove(key).expect("completed once");
        while self.deadlines.front().is_some_and(|(_, key)| self.requests.get(*key).is_none()) {
            self.deadlines.pop_front();
        }
        let result = pending.failed.map_or(Ok(()), Err);
        let mut next = pending.parts;
        while let Some(part) = next.and_then(|key| self.parts.remove(key)) {
            if pending.op.writes() && result.is_ok() {
                // From here on it is acknowledged, and a flush answers for it.
                self.links.get_mut(&part.donor).expect("links are never removed").unflushed = true;
            }
            next = part.next;
        }
        let status = if result.is_ok() { merge_status(pending.status) } else { Vec::new() };
        effects.push(Effect::Complete { tag: pending.tag, result, status });
    }

    /// Ends every part that `donor` still owes, with `error`, and fails the writes that it has answered in part:
    /// what it took of them is gone.
    fn fail_parts(&mut self, donor: DonorId, error: VolumeError, effects: &mut Vec<Effect>) {
        let of_donor = self.parts.iter().filter(|(_, part)| part.donor == donor);
        let touched: Vec<(Key, Key, Progress)> =
            of_donor.map(|(key, part)| (key, part.request, part.progress)).collect();
        for (key, request, progress) in touched {
            // A request with several parts here may be complete by now.
            let Some(pending) = self.requests.get_mut(request) else { continue };
            match progress {
                Progress::Done if pending.op.writes() => {
                    pending.failed.get_or_insert(VolumeError::DonorLost);
                }
                Progress::Done => {}
                Progress::Waiting | Progress::Sent => {
                    pending.failed.get_or_insert(error);
                    self.parts.get_mut(key).expect("its request is there").progress = Progress::Done;
                    self.part_done(request, effects);
                }
            }
        }
    }

    fn replace_map(&mut self, now: Time, map: VolumeMap, effects: &mut Vec<Effect>) {
        let grows = map.groups.get(..self.map.groups.len()) == Some(&self.map.groups[..]);
        if map.volume != self.map.volume || map.epoch <= self.map.epoch || !grows || map.size < self.map.size
        {
            return; // An older answer that arrived late, or a change this version does not know.
        }
        for (id, route) in &map.routes {
            self.links.entry(*id).or_insert_with(|| Link::new(route));
        }
        self.map = map;
        self.open_links(now, effects);
    }

    fn wake(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.wake_announced = None;
        self.expire_requests(now, effects);
        self.expire_links(now, effects);
    }

    /// A donor that let a request pass its deadline is set aside, with all that it owes: the payloads of its
    /// parts must not be touched after their requests are answered.
    fn expire_requests(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((deadline, key)) = self.deadlines.front().copied() {
            if self.requests.get(key).is_none() {
                self.deadlines.pop_front();
            } else if deadline <= now {
                let owed =
                    self.parts.iter().filter(|(_, p)| p.request == key && p.progress != Progress::Done);
                let late: BTreeSet<DonorId> = owed.map(|(_, part)| part.donor).collect();
                for donor in late {
                    let why = format!("no answer within {} s", REQUEST_DEADLINE_NS / 1_000_000_000);
                    self.set_aside(now, donor, why, VolumeError::TimedOut, effects);
                }
                debug_assert!(self.requests.get(key).is_none(), "its last part was failed");
            } else {
                break;
            }
        }
    }

    fn announce_wake(&mut self, effects: &mut Vec<Effect>) {
        let deadline = self.deadlines.front().map(|(at, _)| *at);
        let links = self.links.values().filter_map(Link::wake_at).min();
        let Some(next) = deadline.into_iter().chain(links).min() else { return };
        if self.wake_announced.is_none_or(|announced| next < announced) {
            self.wake_announced = Some(next);
            effects.push(Effect::WakeAt(next));
        }
    }

    /// Panics when a rule that the code relies on does not hold. For tests and the simulator: it looks at everything.
    pub fn check_invariants(&self) {
        let mut open: BTreeMap<u64, u32> = BTreeMap::new();
        for (key, part) in self.parts.iter() {
            assert!(self.requests.get(part.request).is_some(), "a part outlived its request");
            assert!(part.address / EXTENT_BYTES <= u64::from(u32::MAX), "an address outside any arena");
            let link = &self.links[&part.donor];
            let waits = link.waiting.contains(&key);
            match part.progress {
                Progress::Waiting => assert!(waits && !link.is_settled(), "a part waits for nothing"),
                Progress::Sent => assert!(!waits && link.state == State::Up, "a part is sent over no link"),
                Progress::Done => assert!(!waits, "a part that is done waits"),
            }
            if part.progress != Progress::Done {
                *open.entry(part.request.to_u64()).or_default() += 1;
            }
        }
        for (key, pending) in self.requests.iter() {
            assert_eq!(
                open.get(&key.to_u64()).copied().unwrap_or(0),
                pending.parts_open,
                "parts are miscounted"
            );
            assert!(pending.parts_open > 0, "a request with nothing open was not completed");
            assert!(self.deadlines.iter().any(|(_, k)| *k == key), "a request has no deadline");
        }
        assert!(self.requests.len() <= REQUESTS_IN_FLIGHT_MAX);
    }
}

fn add_part(request: Key, pending: &mut Pending, parts: &mut Slab<Part>, fragment: Fragment) -> Key {
    let Fragment { donor, address, scatter } = fragment;
    let (op, next) = (pending.op, pending.parts);
    let part = parts.insert(Part { request, donor, op, address, scatter, progress: Progress::Waiting, next });
    pending.parts = Some(part);
    pending.parts_open += 1;
    part
}

fn send(parts: &mut Slab<Part>, key: Key, tag: Tag, effects: &mut Vec<Effect>) {
    let part = parts.get_mut(key).expect("sent only while it exists");
    part.progress = Progress::Sent;
    effects.push(Effect::Send {
        donor: part.donor,
        part: key,
        tag,
        op: part.op,
        address: part.address,
        scatter: part.scatter,
    });
}

/// Brings one donor's runs into payload order. What the donor left unanswered counts as present.
fn collect_status(status: &mut Vec<(u32, u32, bool)>, scatter: Scatter, runs: &[StatusRun]) {
    let mut at = 0;
    let rest = StatusRun { len: scatter.len, hole: false };
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

fn merge_status(mut pieces: Vec<(u32, u32, bool)>) -> Vec<StatusRun> {
    pieces.sort_unstable();
    let mut runs: Vec<StatusRun> = Vec::new();
    for (_, len, hole) in pieces {
        match runs.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => runs.push(StatusRun { len, hole }),
        }
    }
    runs
}
