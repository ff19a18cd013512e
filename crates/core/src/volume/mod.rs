//! The volume machine: what a client does with a request of a front end, and with donors that come and go.
//!
//! Owns: cutting requests into strips, their locks, sending parts to donors, redundancy, deadlines, repair,
//! and the state of the link to each donor. Never: payload bytes (effects say what to compute and compare,
//! the driver has them), sockets, clocks, or how many connections a link has.
//! Invariants: every submitted request is completed exactly once, by its deadline at the latest; an
//! acknowledged write is on every slot of its groups that the map calls held; an answer counts only once;
//! what a write sends changes only after its answer or `Close`; after `Close` or `Abandon` the driver touches
//! none of those payloads, so a `Complete` behind it may hand the memory back.
//! Called by `rim::volume` and by `sim`. Tests: `tests/volume_*.rs`, the simulator.
//!
//! Getters: `map`, `has_room`, `is_settled`, `lost`, `report`. Events in: `step`. `check_invariants` in
//! tests.
//!
//! Files: `types` (events, effects), `strip` (a locked piece of work and its parts), `read`, `write`, `join`
//! (rows written by several requests), `resync` (rows half written), `judge` (which of them fit together),
//! `numbers` (by which donors list writes), `merge` (what leaves as one request), `upkeep` (fill, heal,
//! scrub), `amend` (exclusion, newer maps), `link` (one donor), `cached` (reads from what was read ahead),
//! `cache` (its directory), `buddy` (its memory), `locks`, `scratch`, `pace`, `slab`.

mod amend;
mod buddy;
mod cache;
mod cached;
mod join;
mod judge;
mod link;
mod locks;
mod merge;
mod numbers;
mod pace;
mod read;
mod resync;
mod scratch;
mod slab;
mod strip;
mod types;
mod upkeep;
mod write;

use crate::ahead::Found;
use crate::code::Code;
use crate::layout::{self, Geometry, Scatter, Span};
use crate::limits::{
    PARITY_MAX, REQUEST_BYTES_MAX, REQUEST_DEADLINE_NS, REQUESTS_IN_FLIGHT_MAX, SILENCE_NS,
    STRIPE_DONORS_MAX, STRIPS_MAX, TICK_NS,
};
use crate::map::{DonorId, VolumeMap};
use crate::units::Time;
use amend::Amendments;
use cached::Cached;
use join::Joins;
pub use link::connections;
use link::{Link, LinkWaits, State};
use locks::Locks;
pub use merge::{LinkMerges, batch_merges_bytes_max};
use numbers::Numbers;
use pace::Pace;
use resync::{Resyncs, Torn};
use scratch::Scratch;
pub use slab::Key;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use strip::{Part, Phase, Progress, Strip, Work};
pub use types::{
    At, Caching, Combine, Effect, Event, Fragment, LinkFailure, Mem, Op, PartError, PartOp, Request,
    StatusRun, Tag, VolumeError,
};
use upkeep::{Fill, Tally, Upkeep};

/// One request is cut into this many strips at most: 64 groups of a 4 GiB TRIM in three each, or 32 MiB of
/// rows whose lanes or parity just fit into scratch memory.
const STRIPS_PER_REQUEST_MAX: usize = 256;
const PARTS_MAX: usize = 16 * REQUESTS_IN_FLIGHT_MAX;

const _: () = assert!(STRIPS_PER_REQUEST_MAX < STRIPS_MAX && PARITY_MAX < STRIPE_DONORS_MAX);

/// Who a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    Tool(Tag),
    /// A segment that is read ahead.
    Cache(Key),
}

#[derive(Debug)]
struct Pending {
    asker: Asker,
    op: Op,
    offset: u64,
    len: u32,
    deadline: Time,
    /// Segments of the cache that it waits for.
    coming: u32,
    /// And pieces that wait to be joined.
    strips_open: u32,
    /// The write that ends where it begins, if that was not answered when it came.
    before: Option<Key>,
    failed: Option<VolumeError>,
    /// Group and slot of what took a part of the write; who holds them at its end answers for it.
    touched: Vec<(u32, u32)>,
    /// Payload offset, length, hole: what parts of a status request answered.
    status: Vec<(u32, u32, bool)>,
    /// And the first payload offset that nothing can be said of, and why: the answer ends before it.
    status_ends: Option<(u32, VolumeError)>,
}

/// How a volume comes into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Until each donor was reached or set aside.
    Linking,
    /// Asking what was written lately.
    Surveying,
    /// Until those that could not be asked are no holders any more, as far as redundancy allows.
    Excluding,
    /// Until what may be half written fits together.
    Resyncing,
    Serving,
}

/// One attached volume: its requests, its links to donors, its upkeep.
#[derive(Debug)]
pub struct Volume {
    map: VolumeMap,
    geometry: Geometry,
    code: Code,
    read_only: bool,
    lease_lost: bool,
    stage: Stage,
    links: BTreeMap<DonorId, Link>,
    /// None: the state of a link has changed since it was looked for.
    link_waits: Option<LinkWaits>,
    /// The newest session of the links that are no more.
    sessions_before: u64,
    requests: Slab<Pending>,
    strips: Slab<Strip>,
    parts: Slab<Part>,
    joins: Joins,
    locks: Locks,
    numbers: Numbers,
    scratch: Scratch,
    born: u64,
    /// Strips that may go on.
    ready: VecDeque<Key>,
    /// Strips that wait for scratch memory or room for parts.
    starving: VecDeque<Key>,
    /// Strips that begin anew a little later.
    resting: Vec<(Time, Key)>,
    /// A reader's, that go on when the coordinator said that the map is still the newest: those that it is
    /// yet to be asked for, and those that it was asked for.
    unvouched: Vec<Key>,
    vouching: Vec<Key>,
    /// In order of submission, so in order of deadline. Keys of completed requests are skipped.
    deadlines: VecDeque<(Time, Key)>,
    wake_announced: Option<Time>,
    ticked_at: Time,
    amendments: Amendments,
    fills: BTreeMap<(u32, u32), Fill>,
    torn: Vec<Torn>,
    resyncing: BTreeSet<Torn>,
    surveyed_groups: usize,
    surveyed: Vec<(u32, Vec<StatusRun>)>,
    resyncs: Resyncs,
    upkeep: Upkeep,
    upkeep_due: bool,
    pace: Pace,
    report: Tally,
    cached: Option<Cached>,
    /// Segments of the cache that were answered just now, and whether well.
    fetched: Vec<(Key, bool)>,
    finished: bool,
}

impl Volume {
    /// `map` has passed its own `check`. `fresh`: nobody wrote before, so nothing can be half written.
    #[must_use]
    pub fn new(map: VolumeMap, read_only: bool, fresh: bool) -> Self {
        let links = map.routes.iter().map(|(id, route)| (*id, Link::new(route, 0))).collect();
        let geometry = Geometry::new(map.redundancy, map.unit);
        let settled = read_only || fresh || geometry.parity == 0;
        Volume {
            geometry,
            code: Code::new(map.redundancy),
            surveyed_groups: if settled { 0 } else { map.groups.len() },
            map,
            read_only,
            lease_lost: false,
            stage: if settled { Stage::Serving } else { Stage::Linking },
            links,
            link_waits: None,
            sessions_before: 0,
            requests: Slab::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            strips: Slab::with_capacity(STRIPS_MAX),
            parts: Slab::with_capacity(PARTS_MAX),
            joins: Joins::default(),
            locks: Locks::default(),
            numbers: Numbers::default(),
            scratch: Scratch::new(),
            born: 0,
            ready: VecDeque::with_capacity(STRIPS_MAX),
            starving: VecDeque::with_capacity(STRIPS_MAX),
            resting: Vec::new(),
            unvouched: Vec::new(),
            vouching: Vec::new(),
            deadlines: VecDeque::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            wake_announced: None,
            ticked_at: 0,
            amendments: Amendments::default(),
            fills: BTreeMap::new(),
            torn: Vec::new(),
            resyncing: BTreeSet::new(),
            surveyed: Vec::new(),
            resyncs: Resyncs::default(),
            upkeep: Upkeep::default(),
            upkeep_due: true,
            pace: Pace::new(),
            report: Tally::default(),
            cached: None,
            fetched: Vec::new(),
            finished: false,
        }
    }

    /// Reads ahead from now on; `Mem::Cache` is as large as `caching` says.
    #[must_use]
    pub fn with_cache(mut self, caching: Caching) -> Self {
        self.cached = Cached::new(caching);
        self
    }

    /// The newest map that it was given.
    #[must_use]
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// Bytes of each piece of scratch memory that `Mem::Scratch` numbers.
    pub fn scratch_sizes() -> impl Iterator<Item = u32> {
        Scratch::sizes()
    }

    /// Whether another request may be submitted now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.stage == Stage::Serving
            && self.requests.room() > 0
            && self.strips.room() >= STRIPS_PER_REQUEST_MAX + self.strips_promised()
            && self.parts.room() >= 2 * STRIPE_DONORS_MAX as usize
    }

    /// Whether every donor has been reached or set aside and nothing is half written: the moment at which
    /// attaching is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.stage == Stage::Serving && self.links.values().all(Link::is_settled)
    }

    /// The donors that cannot be reached, and why.
    pub fn lost(&self) -> impl Iterator<Item = (DonorId, &str)> {
        self.links.iter().filter_map(|(id, link)| match &link.state {
            State::Down { why, .. } => Some((*id, why.as_str())),
            _ => None,
        })
    }

    /// Takes one event, and adds what follows to `effects`. `now` never goes back.
    pub fn step(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Start => {
                self.ticked_at = now;
                self.resyncs.serve_at = (self.stage != Stage::Serving).then_some(now + REQUEST_DEADLINE_NS);
                self.open_links(now, effects);
                self.take_on_fills();
            }
            Event::Submit { tag, request } => self.submit(now, tag, request, effects),
            Event::Map(map) => self.replace_map(now, map, effects),
            Event::Amended(map) => self.amended(now, map, effects),
            Event::LeaseLost => self.lose_lease(),
            Event::Silent(donors) => self.ask_donors(&donors),
            Event::Opened { donor, session } => self.opened(now, donor, session, effects),
            Event::Reached { donor, session } => self.reached(now, donor, session, effects),
            Event::Failed { donor, session, failure } => self.failed(now, donor, session, failure, effects),
            Event::Listed { part, complete, writes } => self.listed(part, complete, &writes),
            Event::Answered { part, answer } => self.answered(now, part, answer, effects),
            Event::Verified { strip, right } => self.verified(strip, right),
            Event::Forget => self.forget_cached(0, u64::MAX),
            Event::Scrub => self.start_scrub(),
            Event::Finish => self.finish(now, effects),
            Event::Wake => self.wake(now, effects),
        }
        self.upkeep_due |= self.stage == Stage::Linking;
        if self.stage == Stage::Excluding && !self.still_excludes() {
            self.stage_amended();
        }
        self.run(now, effects);
        self.stop_waiting(now);
        self.run(now, effects);
        self.take_fetched(now, effects);
        // What upkeep starts may end at once and make more of it due.
        while self.upkeep_due && !self.finished {
            self.keep_up(now, effects);
            self.run(now, effects);
            self.take_fetched(now, effects);
        }
        self.amend(now, effects);
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
        if request.op.writes() && self.lease_lost {
            return done(Err(VolumeError::LeaseLost), effects);
        }
        let end = request.offset.checked_add(u64::from(request.len));
        let too_long = matches!(request.op, Op::Read | Op::Write) && request.len > REQUEST_BYTES_MAX;
        if too_long || end.is_none_or(|end| end > self.map.size) {
            return done(Err(VolumeError::OutOfRange), effects);
        }
        if request.op == Op::Cache || request.len == 0 {
            return done(Ok(()), effects);
        }
        if request.op == Op::Read && self.read_cached(now, tag, request, effects) {
            return;
        }
        let mut len = request.len;
        if request.op == Op::Status {
            // Bounds the answer; the protocol lets it be shorter than the question.
            let left = self.map.group_bytes() - request.offset % self.map.group_bytes();
            len = u32::try_from(left).map_or(len, |left| len.min(left));
        }
        if request.op.writes() {
            self.forget_cached(request.offset, request.offset + u64::from(len));
        }
        let key = self.admit(now, Asker::Tool(tag), Request { len, ..request });
        if request.op == Op::Write {
            let before = self.write_before(key, request.offset, len);
            self.requests.get_mut(key).expect("just inserted").before = before;
        }
        self.plan_all(now, key, 0, effects);
        if request.op == Op::Read {
            self.read_ahead(now, request, Found::Missed, effects);
        }
    }

    /// Makes strips of a request whose payload begins at byte `at` of its memory.
    fn plan_all(&mut self, now: Time, key: Key, at: u32, effects: &mut Vec<Effect>) {
        let Pending { op, offset, len, .. } = *self.requests.get(key).expect("just admitted");
        for span in layout::spans(self.map.group_bytes(), offset, len) {
            self.plan(now, key, op, Span { payload: span.payload + at, ..span });
        }
        self.complete_if_done(key, effects);
    }

    fn admit(&mut self, now: Time, asker: Asker, request: Request) -> Key {
        let deadline = now + REQUEST_DEADLINE_NS;
        let pending = Pending {
            asker,
            op: request.op,
            offset: request.offset,
            len: request.len,
            deadline,
            coming: 0,
            strips_open: 0,
            before: None,
            failed: None,
            touched: Vec::new(),
            status: Vec::new(),
            status_ends: None,
        };
        self.note_reading(asker, request.op, request.len, true);
        let key = self.requests.insert(pending);
        if self.deadlines.len() == self.deadlines.capacity() {
            // One that is late keeps those behind it; this path does not allocate.
            self.deadlines.retain(|(_, key)| self.requests.get(*key).is_some());
        }
        self.deadlines.push_back((deadline, key));
        key
    }

    /// An acknowledged write lives in the donors' memory already; all that can have happened since is its
    /// loss. A link that is being opened does not know yet, so it is waited for.
    fn flush(&mut self, now: Time, tag: Tag, effects: &mut Vec<Effect>) {
        let key = self.admit(now, Asker::Tool(tag), Request { op: Op::Flush, offset: 0, len: 0 });
        let opens = |link: &Link| link.unflushed && !link.is_settled();
        let waits = self.geometry.parity == 0 && self.links.values().any(opens);
        let lost = self.lost_unflushed();
        let pending = self.requests.get_mut(key).expect("just inserted");
        if lost {
            pending.failed = Some(VolumeError::DonorLost);
        } else if waits {
            self.add_strip(Some(key), Work::Barrier, 0, 0, 0);
        }
        if !waits {
            self.links.values_mut().for_each(|link| link.unflushed = false);
        }
        self.complete_if_done(key, effects);
    }

    /// Writes that were acknowledged since the last flush are on donors that cannot be reached, more of them
    /// than redundancy covers.
    fn lost_unflushed(&self) -> bool {
        let down = |donor: &DonorId| self.links.get(donor).is_none_or(Link::is_down);
        let dirty = |donor: &DonorId| self.links.get(donor).is_some_and(|link| link.unflushed);
        if !self.links.iter().any(|(_, link)| link.is_down() && link.unflushed) {
            return false;
        }
        self.map.groups.iter().any(|group| {
            let held = group.slots.iter().filter_map(|slot| slot.held);
            let reached = held.clone().filter(|held| !down(&held.donor)).count();
            reached < self.geometry.data as usize
                && held.into_iter().any(|held| down(&held.donor) && dirty(&held.donor))
        })
    }

    /// Whether the part waits for its link on behalf of a flush.
    fn is_barrier(&self, part: Key) -> bool {
        let strip = self.parts.get(part).and_then(|part| self.strips.get(part.strip));
        strip.is_some_and(|strip| strip.work == Work::Barrier)
    }

    /// What a flush waited for is with other donors now, who answer for it.
    fn barrier_moved(&mut self, key: Key) {
        if self.lost_unflushed() {
            self.strips.get_mut(key).expect("it waits").failed = Some(VolumeError::DonorLost);
        } else {
            self.begin_barrier(key);
        }
    }

    fn begin_barrier(&mut self, key: Key) {
        for (donor, link) in &mut self.links {
            if link.unflushed && !link.is_settled() {
                let placement = crate::map::Placement { donor: *donor, extent: 0 };
                let part = self.parts.insert(Part::barrier(key, placement));
                link.waiting.push_back(part);
                let strip = self.strips.get_mut(key).expect("being begun");
                strip.hold(part, &mut self.parts);
            }
            link.unflushed = false;
        }
        self.set_phase(key, Phase::Reading);
    }

    fn strip_of_request_ended(
        &mut self,
        key: Key,
        result: Result<(), VolumeError>,
        effects: &mut Vec<Effect>,
    ) {
        let pending = self.requests.get_mut(key).expect("it has strips");
        pending.strips_open -= 1;
        if let Err(error) = result {
            pending.failed = Some(pending.failed.map_or(error, |before| before.min(error)));
        }
        self.complete_if_done(key, effects);
    }

    fn complete_if_done(&mut self, key: Key, effects: &mut Vec<Effect>) {
        if self.requests.get(key).is_none_or(|pending| pending.strips_open > 0 || pending.coming > 0) {
            return;
        }
        let pending = self.requests.remove(key).expect("looked at above");
        while self.deadlines.front().is_some_and(|(_, key)| self.requests.get(*key).is_none()) {
            self.deadlines.pop_front();
        }
        let unsaid = pending.status_ends.filter(|(at, _)| *at == 0).map(|(_, error)| error);
        let mut result = pending.failed.or(unsaid).map_or(Ok(()), Err);
        if pending.op.writes() && result.is_ok() {
            let slot = |(group, slot): &(u32, u32)| self.map.groups[*group as usize].slots[*slot as usize];
            let touched = pending.touched.iter().map(slot);
            let down = |donor: DonorId| self.links.get(&donor).is_none_or(Link::is_down);
            let holders = touched.filter_map(|slot| slot.held);
            if self.geometry.parity == 0 && holders.clone().any(|held| down(held.donor)) {
                // It had answered, and what it took is gone before anybody heard of it.
                result = Err(VolumeError::DonorLost);
            } else {
                // From here on it is acknowledged, and a flush answers for it.
                for held in holders {
                    if let Some(link) = self.links.get_mut(&held.donor) {
                        link.unflushed = true;
                    }
                }
            }
        }
        if pending.op.writes() {
            // What was read while it was under way may be older.
            self.forget_cached(pending.offset, pending.offset + u64::from(pending.len));
        }
        self.note_reading(pending.asker, pending.op, pending.len, false);
        self.upkeep_due |= self.upkeep.finishing.is_some();
        let tag = match pending.asker {
            Asker::Tool(tag) => tag,
            Asker::Cache(segment) => return self.fetched.push((segment, result.is_ok())),
        };
        let status = match (result, pending.status_ends) {
            (Ok(()), ends) => merge_status(pending.status, ends.map_or(pending.len, |(at, _)| at)),
            (Err(_), _) => Vec::new(),
        };
        effects.push(Effect::Complete { tag, result, status });
    }

    fn wake(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.wake_announced = None;
        self.stop_waiting(now);
        self.expire_requests(now, effects);
        self.expire_links(now, effects);
        self.expire_amendment(now);
        if now >= self.ticked_at + TICK_NS {
            self.doubt_connections(now, effects);
            if self.geometry.parity > 0 {
                self.look_at_links(now, effects);
            } else {
                self.ticked_at = now;
            }
            self.exclude_who_is_gone(now);
            self.tick_upkeep(now);
            self.tick_resting(now);
        }
    }

    /// Every strip of a request that is late ends. A donor that still reads a payload is set aside first,
    /// since its memory must not be touched after the request is answered; one that was asked for data a
    /// moment ago, after another had failed, is not.
    fn expire_requests(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((deadline, key)) = self.deadlines.front().copied() {
            let Some(pending) = self.requests.get_mut(key) else {
                self.deadlines.pop_front();
                continue;
            };
            if deadline > now {
                break;
            }
            pending.failed = Some(VolumeError::TimedOut);
            let waited = std::mem::take(&mut pending.coming) > 0;
            let strips = self.strips.iter().filter(|(_, strip)| strip.request == Some(key));
            let strips: Vec<Key> = strips.map(|(strip, _)| strip).collect();
            let late: BTreeSet<DonorId> = (strips.iter())
                .flat_map(|strip| self.each_open_part(*strip))
                .filter(|(_, part)| part.op.writes() || part.sent_at + SILENCE_NS <= now)
                .map(|(_, part)| part.donor)
                .collect();
            for donor in late {
                let why = format!("no answer within {} s", REQUEST_DEADLINE_NS / 1_000_000_000);
                self.set_aside(now, donor, why, effects);
            }
            self.give_up(now, strips, effects);
            if waited {
                self.waits_no_more();
                self.complete_if_done(key, effects);
            }
            debug_assert!(self.requests.get(key).is_none(), "its last strip has ended");
        }
    }

    /// Ends strips, of which one may end with another.
    fn give_up(&mut self, now: Time, strips: Vec<Key>, effects: &mut Vec<Effect>) {
        for strip in strips {
            if self.strips.get(strip).is_some() {
                self.end_strip(now, strip, Err(VolumeError::TimedOut), effects);
            }
        }
    }

    fn announce_wake(&mut self, effects: &mut Vec<Effect>) {
        let deadline = self.deadlines.front().map(|(at, _)| *at);
        let links = *self.link_waits.get_or_insert_with(|| LinkWaits::of(&self.links));
        let ticks = self.strips.len() > 0 || self.upkeep_waits();
        let gone = self.geometry.parity > 0 && links.any_down;
        let ticks = ticks || !self.resting.is_empty();
        let tick = (ticks || gone).then_some(self.ticked_at + TICK_NS);
        let all =
            [deadline, links.wake_at, tick, self.amendments.retry_at, self.age_at(), self.joins.wake_at()];
        let Some(next) = all.iter().filter_map(|at| *at).min().filter(|_| !self.finished) else { return };
        if self.wake_announced.is_none_or(|announced| next < announced) {
            self.wake_announced = Some(next);
            effects.push(Effect::WakeAt(next));
        }
    }

    /// Panics when a rule that the code relies on does not hold. For tests and the simulator: it looks at
    /// everything.
    pub fn check_invariants(&self) {
        let mut open: BTreeMap<u64, u32> = BTreeMap::new();
        for (key, part) in self.parts.iter() {
            assert!(self.strips.get(part.strip).is_some(), "a part outlived its strip");
            let link = self.links.get(&part.donor);
            let waits = link.is_some_and(|link| link.waiting.contains(&key));
            let (settled, up) = (link.is_some_and(Link::is_settled), link.is_some_and(Link::is_up));
            match part.progress {
                Progress::Waiting => assert!(waits && !settled, "a part waits for nothing"),
                Progress::Sent => assert!(!waits && up, "a part is sent over no link"),
                Progress::Done => assert!(!waits, "a part that is done waits"),
            }
            if part.progress != Progress::Done {
                *open.entry(part.strip.to_u64()).or_default() += 1;
            }
        }
        let mut strips: BTreeMap<u64, u32> = BTreeMap::new();
        let mut pieces = 0;
        for (key, strip) in self.strips.iter() {
            let parts = open.get(&key.to_u64()).copied().unwrap_or(0);
            if strip.phase != Phase::Checking {
                assert_eq!(parts, strip.open, "parts are miscounted: {strip:?}");
            }
            let waits = match strip.phase {
                Phase::Locking => !self.locks.is_granted(strip.group, key),
                Phase::Starving => self.starving.contains(&key),
                Phase::Reading | Phase::Writing => strip.open > 0,
                Phase::Checking => strip.open > 0,
                Phase::Excluding => !self.read_only,
                Phase::Resting => {
                    let rests = self.resting.iter().any(|(_, resting)| *resting == key);
                    rests || self.unvouched.contains(&key) || self.vouching.contains(&key)
                }
            };
            assert!(waits, "a strip waits for nothing: {strip:?}");
            pieces += usize::from(strip.scratch.is_some());
            for request in strip.request.into_iter().chain(self.joins.beside(key)) {
                *strips.entry(request.to_u64()).or_default() += 1;
            }
        }
        for request in self.joins.waiting() {
            *strips.entry(request.to_u64()).or_default() += 1;
        }
        assert_eq!(pieces + self.scratch.free(), Scratch::sizes().count(), "scratch memory is lost");
        for (key, pending) in self.requests.iter() {
            assert_eq!(
                strips.get(&key.to_u64()).copied().unwrap_or(0),
                pending.strips_open,
                "strips are miscounted"
            );
            let open = pending.strips_open + pending.coming;
            assert!(open > 0, "a request with nothing open was not completed");
            assert!(self.deadlines.iter().any(|(_, k)| *k == key), "a request has no deadline");
        }
        assert!(self.requests.len() <= REQUESTS_IN_FLIGHT_MAX && self.ready.is_empty());
        assert!(self.fetched.is_empty(), "what was read ahead is not taken in");
        let waits = self.link_waits.expect("it was looked for at the end of the step");
        assert_eq!(waits, LinkWaits::of(&self.links), "a link has changed unseen");
        self.locks.check_invariants();
        if let Some(cached) = &self.cached {
            cached.check_invariants();
        }
    }
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
