//! A world of its own for volumes that were opened from a source: a filler that dies and comes again, readers
//! beside it, moves, donors whose extents begin anew, and a source that fails.
//!
//! Owns the drivers of the machines (`core::volume` of readers and of who fills, `core::filling`), at a scale
//! of 1:512, and the oracle, which knows what the source says: what a reader gets is that or an error that is
//! excused, and never anything for what the source cannot give; nothing is read at the source that donors
//! hold; and in the end all is there. Never: a coordinator, or links that break (the other world has those).
//! Called by `run`, for `Fault::Opened`. Tests: `tests/kinds.rs`, `tests/planted_bugs.rs`.

use crate::bytes::{BLOCK, SECTOR, sectors};
use crate::plan::Bug;
use crate::rng::Rng;
use crate::stats::Stats;
use crate::{Outcome, Setup};
use cheetah_core::content::ByteRange;
use cheetah_core::filling::{Order, PIECE_BYTES, Work};
use cheetah_core::layout::Scatter;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, MILLISECOND_NS, REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::{
    Backing, DonorId, Filler, Group, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap,
};
use cheetah_core::units::Time;
use cheetah_core::volume::{
    At, Effect, Event, FetchError, Key, Mem, Op, PartError, PartOp, Request, StatusRun, Tag, Volume,
    VolumeError,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const READERS: usize = 2;
/// Who fills, among the machines.
const FILLER: usize = READERS;
const WORKERS: usize = 3;
/// Donors of a stripe of two, and one beside them.
const DONORS: u64 = 3;
const SCENE_NS: Time = 60 * SECOND_NS;
/// What is left to do in the end may take so long.
const HEALING_NS: Time = 240 * SECOND_NS;

/// A donor's memory of one extent: a byte for each sector, and which blocks somebody has written.
#[derive(Debug, Default)]
struct Extent {
    bytes: BTreeMap<usize, u8>,
    known: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct Sent {
    client: usize,
    life: u64,
    part: Key,
    op: PartOp,
    address: u64,
    mem: Mem,
    scatter: Scatter,
    donor: DonorId,
    /// What a write carries.
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Ev {
    Arrive(Sent),
    Answer { sent: Sent, answer: Result<Vec<StatusRun>, PartError>, bytes: Vec<u8> },
    Wake { client: usize, life: u64, at: Time },
    Ask { reader: usize, request: Key, range: std::ops::Range<u64> },
    Told { reader: usize, request: Key, result: Result<(), FetchError> },
    Map { client: usize, life: u64, map: Box<VolumeMap> },
    Read { life: u64, range: std::ops::Range<u64> },
    Tool(usize),
    Disturb,
    Begin,
    Pump,
}

#[derive(Debug)]
struct Client {
    machine: Volume,
    life: u64,
    payloads: BTreeMap<Tag, Vec<u8>>,
    scratch: Vec<Vec<u8>>,
    asked: BTreeMap<Tag, (Request, Time)>,
    wake_at: Option<Time>,
    abandoned: BTreeSet<u64>,
}

impl Client {
    fn new(map: VolumeMap, read_only: bool, life: u64) -> Client {
        Client {
            machine: Volume::new(map, read_only, false),
            life,
            payloads: BTreeMap::new(),
            scratch: Volume::scratch_sizes().map(|size| vec![0; sectors(size.into())]).collect(),
            asked: BTreeMap::new(),
            wake_at: None,
            abandoned: BTreeSet::new(),
        }
    }

    fn memory(&mut self, mem: Mem) -> Option<&mut Vec<u8>> {
        match mem {
            Mem::Payload(tag) => self.payloads.get_mut(&tag),
            Mem::Scratch(piece) => self.scratch.get_mut(piece as usize),
            Mem::Cache | Mem::Nothing => None,
        }
    }

    fn bytes(&mut self, mem: Mem, scatter: Scatter) -> Vec<u8> {
        let Some(memory) = self.memory(mem) else { return Vec::new() };
        let place = |(at, len): (u32, u32)| sectors(at.into())..sectors((at + len).into());
        scatter.pieces().flat_map(|piece| memory[place(piece)].to_vec()).collect()
    }

    fn land(&mut self, mem: Mem, scatter: Scatter, bytes: &[u8]) {
        let Some(memory) = self.memory(mem) else { return };
        let mut done = 0;
        for (at, len) in scatter.pieces() {
            let (at, len) = (sectors(at.into()), sectors(len.into()));
            memory[at..at + len].copy_from_slice(&bytes[done..done + len]);
            done += len;
        }
    }
}

/// One piece of work of the filler: requests that it waits for.
#[derive(Debug)]
struct Job {
    work: Work,
    bad: Vec<ByteRange>,
    open: BTreeSet<Tag>,
    good: bool,
    /// Of a check or a survey: what is absent.
    absent: Vec<std::ops::Range<u64>>,
}

struct World {
    rng: Rng,
    now: Time,
    next: u64,
    events: BTreeMap<(Time, u64), Ev>,
    map: VolumeMap,
    extents: BTreeMap<Placement, Extent>,
    /// Left by slots that moved: they are served on, for who has not heard of it.
    retired: BTreeSet<Placement>,
    /// Pieces of which a read or a write failed: some may be here.
    doubted: BTreeSet<u64>,
    clients: Vec<Client>,
    /// Of who fills now: gone, or that many lives.
    fills: bool,
    order: Order,
    surveyed: bool,
    jobs: Vec<Job>,
    asks: BTreeMap<u64, (usize, Key)>,
    tags: Tag,
    bad: Vec<ByteRange>,
    source_fails: bool,
    /// Since when something excuses that a read was not answered.
    calm_since: Time,
    healing: bool,
    bug: Option<Bug>,
    stats: Stats,
    digest: u64,
    failure: Option<String>,
    trace: Option<fn(&str)>,
}

/// Runs the world of one seed.
pub(crate) fn run(seed: u64, setup: Setup, trace: Option<fn(&str)>) -> Outcome {
    let mut world = World::new(seed, setup.bug, trace);
    world.begin();
    while world.failure.is_none() && world.now < SCENE_NS {
        world.advance();
    }
    world.heal();
    while world.failure.is_none() && world.now < SCENE_NS + HEALING_NS && !world.is_over() {
        world.advance();
    }
    world.judge_end();
    world.stats.virtual_ns = world.now;
    Outcome { digest: world.digest, stats: world.stats, failure: world.failure }
}

fn source_byte(sector: u64, seed: u64) -> u8 {
    let mixed = (sector ^ seed << 24).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Of five blocks one is zeros.
    if (sector / BLOCK as u64 ^ seed).is_multiple_of(5) { 0 } else { (mixed >> 33) as u8 | 1 }
}

impl World {
    fn new(seed: u64, bug: Option<Bug>, trace: Option<fn(&str)>) -> World {
        let mut rng = Rng::new(seed);
        let size = rng.range(1, 40) * PIECE_BYTES + rng.below(PIECE_BYTES / SECTOR) * SECTOR;
        let striped = rng.percent(60);
        let at = |donor| Slot::held(Placement { donor: DonorId(donor), extent: 0 });
        let redundancy = if striped { Redundancy { data: 2, parity: 0 } } else { Redundancy::LINEAR };
        let slots = if striped { vec![at(1), at(2)] } else { vec![at(1)] };
        let route = |donor: u64| {
            let address = "127.0.0.1:1".into();
            (DonorId(donor), Route { name: format!("d{donor}"), address, foreign_export: None })
        };
        let map = VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            epoch: 1,
            size,
            redundancy,
            unit: 64 << 10,
            groups: vec![Group { slots }],
            routes: (1..=DONORS).map(route).collect(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: Some(Backing::default()),
        };
        let bad = if rng.percent(40) {
            let block = rng.below(size.div_ceil(BLOCK_BYTES)) * BLOCK_BYTES;
            vec![ByteRange { offset: block, len: BLOCK_BYTES.min(size - block) }]
        } else {
            Vec::new()
        };
        let clients = (0..=READERS).map(|c| Client::new(map.clone(), c < READERS, 0)).collect();
        World {
            rng,
            now: 1,
            next: 0,
            events: BTreeMap::new(),
            order: Order::new(size),
            map,
            extents: BTreeMap::new(),
            retired: BTreeSet::new(),
            doubted: BTreeSet::new(),
            clients,
            fills: false,
            surveyed: false,
            jobs: Vec::new(),
            asks: BTreeMap::new(),
            tags: 0,
            bad,
            source_fails: false,
            calm_since: 0,
            healing: false,
            bug,
            stats: Stats::default(),
            digest: seed,
            failure: None,
            trace,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            trace(&format!("{:>12} {}", self.now, what()));
        }
    }

    fn fail(&mut self, what: String) {
        self.say(|| format!("FAILURE: {what}"));
        let at = self.now;
        self.failure.get_or_insert_with(|| format!("at {at} ns: {what}"));
    }

    fn after(&mut self, ns: Time, event: Ev) {
        self.next += 1;
        self.events.insert((self.now + ns, self.next), event);
    }

    fn delay(&mut self) -> Time {
        self.rng.skewed(20_000, 20 * MILLISECOND_NS)
    }

    fn begin(&mut self) {
        for reader in 0..READERS {
            self.step(reader, Event::Start);
            self.after(MILLISECOND_NS, Ev::Tool(reader));
        }
        self.after(0, Ev::Begin);
        let gap = self.rng.range(SECOND_NS, 8 * SECOND_NS);
        self.after(gap, Ev::Disturb);
    }

    fn advance(&mut self) {
        let Some(((at, _), event)) = self.events.pop_first() else {
            return self.fail("nothing happens any more".into());
        };
        self.now = self.now.max(at);
        self.stats.events += 1;
        self.digest = (self.digest ^ at).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(7);
        match event {
            Ev::Arrive(sent) => self.arrives(sent),
            Ev::Answer { sent, answer, bytes } => self.answered(&sent, answer, &bytes),
            Ev::Wake { client, life, at } => {
                if self.clients[client].life == life && self.clients[client].wake_at == Some(at) {
                    self.clients[client].wake_at = None;
                    self.step(client, Event::Wake);
                }
            }
            Ev::Ask { reader, request, range } => self.is_asked(reader, request, range),
            Ev::Told { reader, request, result } => self.step(reader, Event::Fetched { request, result }),
            Ev::Map { client, life, map } => {
                if self.clients[client].life == life {
                    self.step(client, Event::Map(*map));
                }
            }
            Ev::Read { life, range } => self.source_answers(life, range),
            Ev::Tool(reader) => self.tool(reader),
            Ev::Disturb => self.disturb(),
            Ev::Begin => self.begin_filling(),
            Ev::Pump => self.pump(),
        }
    }

    // Machines and donors.

    fn step(&mut self, c: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            let client = &mut self.clients[c];
            client.machine.step(self.now, event, &mut effects);
            client.machine.check_invariants();
            for effect in effects {
                self.carry_out(c, effect, &mut events);
            }
        }
    }

    fn carry_out(&mut self, c: usize, effect: Effect, events: &mut VecDeque<Event>) {
        let client = &mut self.clients[c];
        let life = client.life;
        match effect {
            Effect::Open { donor, session } => events.push_back(Event::Opened { donor, session }),
            Effect::Send { donor, part, op, address, mem, scatter, .. } => {
                let writes = matches!(op, PartOp::Write | PartOp::Sparse);
                let bytes = if writes { client.bytes(mem, scatter) } else { Vec::new() };
                let sent = Sent { client: c, life, part, op, address, mem, scatter, donor, bytes };
                let delay = self.delay();
                self.after(delay, Ev::Arrive(sent));
            }
            Effect::Abandon { part, .. } => {
                client.abandoned.insert(part.to_u64());
            }
            Effect::Copy { from, to, len } => {
                let bytes = client.bytes(from.mem, Scatter::whole(from.offset, len));
                client.land(to.mem, Scatter::whole(to.offset, len), &bytes);
            }
            Effect::Zero { at: At { mem, offset }, len } => {
                client.land(mem, Scatter::whole(offset, len), &vec![0; sectors(len.into())]);
            }
            Effect::Verify { job, .. } | Effect::Compare { job, .. } => {
                events.push_back(Event::Verified { job, right: true });
            }
            Effect::Fetch { request, offset, len } => {
                let range = offset..offset + u64::from(len);
                let delay = self.delay();
                self.after(delay, Ev::Ask { reader: c, request, range });
            }
            Effect::Amend(amend) => {
                for filled in &amend.filled {
                    self.moved(filled.placement);
                }
                events.push_back(Event::Amended(Some(self.map.clone())));
            }
            Effect::WakeAt(at) => {
                if client.wake_at.is_none_or(|before| at < before) {
                    client.wake_at = Some(at);
                    let wait = at.saturating_sub(self.now);
                    self.after(wait, Ev::Wake { client: c, life, at });
                }
            }
            Effect::Complete { tag, result, status } => self.completed(c, tag, result, &status),
            _ => {}
        }
    }

    /// A part reaches its donor, unless who sent it has been shut out.
    fn arrives(&mut self, sent: Sent) {
        if self.clients[sent.client].life != sent.life {
            return;
        }
        let extent = u32::try_from(sent.address / EXTENT_BYTES).expect("a few extents");
        let placement = Placement { donor: sent.donor, extent };
        let holds = self.map.groups[0].placements().any(|place| place == placement)
            || self.retired.contains(&placement);
        let (at, count) = (sectors(sent.address % EXTENT_BYTES), sectors(sent.scatter.len.into()));
        let blocks = at / BLOCK..(at + count).div_ceil(BLOCK);
        let memory = self.extents.entry(placement).or_default();
        let (mut answer, mut bytes) = (Ok(Vec::new()), Vec::new());
        let absent = blocks.clone().any(|block| !memory.known.contains(&block));
        match sent.op {
            _ if !holds => answer = Err(PartError::Denied),
            PartOp::Read if absent && self.bug != Some(Bug::AbsentAsZero) => answer = Err(PartError::Absent),
            PartOp::Read => {
                bytes =
                    (at..at + count).map(|sector| memory.bytes.get(&sector).copied().unwrap_or(0)).collect();
            }
            PartOp::Presence => {
                let run = |block| StatusRun { len: BLOCK_BYTES as u32, hole: !memory.known.contains(&block) };
                answer = Ok(blocks.map(run).collect());
            }
            op if op.writes() => {
                let zero = vec![0; count];
                let from = if sent.bytes.is_empty() { &zero } else { &sent.bytes };
                memory.bytes.extend((at..).zip(from.iter().copied()));
                memory.known.extend(blocks);
            }
            _ => {}
        }
        let delay = self.delay();
        self.after(delay, Ev::Answer { sent, answer, bytes });
    }

    fn answered(&mut self, sent: &Sent, answer: Result<Vec<StatusRun>, PartError>, bytes: &[u8]) {
        let client = &mut self.clients[sent.client];
        if client.life != sent.life || client.abandoned.remove(&sent.part.to_u64()) {
            return;
        }
        if sent.op == PartOp::Read && answer.is_ok() {
            client.land(sent.mem, sent.scatter, bytes);
        }
        self.step(sent.client, Event::Answered { part: sent.part, answer });
    }

    fn submit(&mut self, c: usize, op: Op, range: std::ops::Range<u64>) -> Option<Tag> {
        if !self.clients[c].machine.has_room() {
            return None;
        }
        self.tags += 1;
        let tag = self.tags;
        let len = u32::try_from(range.end - range.start).expect("a request");
        let request = Request { op, offset: range.start, len };
        let payload = match op {
            Op::Write => Some(self.source_bytes(&range)),
            Op::Read => Some(vec![0xee; sectors(len.into())]),
            _ => None,
        };
        let client = &mut self.clients[c];
        client.payloads.extend(payload.map(|payload| (tag, payload)));
        client.asked.insert(tag, (request, self.now));
        self.stats.requests += 1;
        self.step(c, Event::Submit { tag, request });
        Some(tag)
    }

    fn completed(&mut self, c: usize, tag: Tag, result: Result<(), VolumeError>, status: &[StatusRun]) {
        let Some((request, since)) = self.clients[c].asked.remove(&tag) else {
            return self.fail(format!("request {tag} was completed twice"));
        };
        let payload = self.clients[c].payloads.remove(&tag).unwrap_or_default();
        let range = request.offset..request.offset + u64::from(request.len);
        self.say(|| format!("client {c} {:?} {range:?}: {result:?}", request.op));
        if self.now > since + REQUEST_DEADLINE_NS {
            self.fail(format!("{request:?} was answered after its deadline"));
        }
        if c == FILLER {
            return self.filler_completed(tag, request, result, status);
        }
        match result {
            Ok(()) => {
                self.stats.count("reads of an opened volume");
                if payload != self.source_bytes(&range) {
                    self.fail(format!("{range:?} is not what the source says"));
                } else if self.meets_bad(&range) {
                    self.fail(format!("{range:?} was given, which the source cannot give"));
                }
            }
            Err(VolumeError::Unreadable) if self.meets_bad(&range) => {}
            // Nobody could bring it all the time, or some of it.
            Err(VolumeError::TimedOut) if since <= self.calm_since || !self.is_calm() => {}
            Err(error) => self.fail(format!("{range:?} failed with {error:?} since {since}")),
        }
    }

    fn source_bytes(&self, range: &std::ops::Range<u64>) -> Vec<u8> {
        let seed = self.map.size;
        (range.start / SECTOR..range.end / SECTOR).map(|sector| source_byte(sector, seed)).collect()
    }

    fn meets_bad(&self, range: &std::ops::Range<u64>) -> bool {
        self.bad.iter().any(|bad| bad.offset < range.end && range.start < bad.end())
    }

    fn is_calm(&self) -> bool {
        self.fills && self.surveyed && !self.source_fails
    }

    // Tools.

    fn tool(&mut self, reader: usize) {
        for _ in 0..self.rng.range(1, 3) {
            let size = self.map.size / SECTOR;
            let len = self.rng.skewed(1, 400).min(size);
            let at = self.rng.below(size - len + 1);
            self.submit(reader, Op::Read, at * SECTOR..(at + len) * SECTOR);
        }
        let gap = self.rng.skewed(5 * MILLISECOND_NS, 2 * SECOND_NS);
        self.after(gap, Ev::Tool(reader));
    }

    // Who fills.

    /// A new life: its lease shuts the one before out.
    fn begin_filling(&mut self) {
        let life = self.clients[FILLER].life + 1;
        self.say(|| format!("filler {life} begins"));
        self.clients[FILLER] = Client::new(self.map.clone(), false, life);
        (self.order, self.jobs, self.surveyed, self.fills) =
            (Order::new(self.map.size), Vec::new(), false, true);
        self.step(FILLER, Event::Start);
        let mut at = 0;
        while at < self.map.size {
            let end = (at + 16 * PIECE_BYTES).min(self.map.size);
            self.ask_presence(Work::Check(at..end));
            at = end;
        }
    }

    fn ask_presence(&mut self, work: Work) {
        let (Work::Check(range) | Work::Fetch(range)) = work.clone();
        let open: BTreeSet<Tag> = self.submit(FILLER, Op::Presence, range).into_iter().collect();
        let good = !open.is_empty();
        self.jobs.push(Job { work, bad: Vec::new(), open, good, absent: Vec::new() });
    }

    fn end_filling(&mut self) {
        self.say(|| "the filler is killed".into());
        self.stats.count("fault: a filler was killed");
        let life = self.clients[FILLER].life + 1;
        self.clients[FILLER] = Client::new(self.map.clone(), false, life);
        (self.fills, self.surveyed) = (false, false);
        self.jobs.clear();
        for (reader, request) in std::mem::take(&mut self.asks).into_values() {
            let delay = self.delay();
            self.after(delay, Ev::Told { reader, request, result: Err(FetchError::Away) });
        }
        self.set_filler(None);
        let gap = self.rng.skewed(100 * MILLISECOND_NS, 40 * SECOND_NS);
        self.after(gap, Ev::Begin);
    }

    fn set_filler(&mut self, filler: Option<Filler>) {
        self.map.backing = Some(Backing { filler, complete: false });
        self.tell_map();
    }

    fn tell_map(&mut self) {
        self.map.epoch += 1;
        for client in 0..self.clients.len() {
            let (life, map) = (self.clients[client].life, Box::new(self.map.clone()));
            let delay = self.rng.skewed(20_000, SECOND_NS);
            self.after(delay, Ev::Map { client, life, map });
        }
    }

    fn is_asked(&mut self, reader: usize, request: Key, range: std::ops::Range<u64>) {
        if !self.fills || !self.surveyed {
            let delay = self.delay();
            return self.after(delay, Ev::Told { reader, request, result: Err(FetchError::Away) });
        }
        self.next += 1;
        let asker = self.next;
        self.asks.insert(asker, (reader, request));
        if let Some(answer) = self.order.ask(asker, range) {
            self.tell(vec![answer]);
        }
        self.pump();
    }

    fn tell(&mut self, answers: Vec<cheetah_core::filling::Answer>) {
        self.order.check_invariants();
        for answer in answers {
            let Some((reader, request)) = self.asks.remove(&answer.to) else {
                return self.fail(format!("{answer:?} is told to nobody"));
            };
            let delay = self.delay();
            self.after(delay, Ev::Told { reader, request, result: answer.result });
        }
    }

    /// Gives its workers what there is to do.
    fn pump(&mut self) {
        while self.fills && self.surveyed && self.jobs.len() < WORKERS {
            let Some(work) = self.order.next(self.now, false) else { break };
            match work {
                Work::Check(_) => self.ask_presence(work),
                Work::Fetch(range) => {
                    self.read_source(range);
                }
            }
        }
        if let Some(at) = self.order.wake_at().filter(|at| *at > self.now) {
            let wait = at - self.now;
            self.after(wait, Ev::Pump);
        }
    }

    fn read_source(&mut self, range: std::ops::Range<u64>) {
        let held = (range.start..range.end).step_by(PIECE_BYTES as usize);
        let pieces = held.map(|piece| piece..(piece + PIECE_BYTES).min(range.end));
        if let Some(piece) =
            pieces.into_iter().find(|piece| !self.doubted.contains(&piece.start) && self.donors_hold(piece))
        {
            self.fail(format!("{piece:?} is read at the source, and donors hold it"));
        }
        self.stats.count("runs read at a source");
        let life = self.clients[FILLER].life;
        let work = Work::Fetch(range.clone());
        self.jobs.push(Job { work, bad: Vec::new(), open: BTreeSet::new(), good: true, absent: Vec::new() });
        let delay = self.rng.skewed(100_000, 500 * MILLISECOND_NS);
        self.after(delay, Ev::Read { life, range });
    }

    /// Whether all of it is where the map says.
    fn donors_hold(&self, range: &std::ops::Range<u64>) -> bool {
        (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))
            .all(|block| self.known_byte(block).is_some())
    }

    /// The first byte of a block, if somebody has written it.
    fn known_byte(&self, block: u64) -> Option<u8> {
        let at = block * BLOCK_BYTES;
        let (data, unit) = (u64::from(self.map.redundancy.data), u64::from(self.map.unit));
        let (slot, local) = match data {
            1 => (0, at),
            _ => (at / unit % data, at / unit / data * unit + at % unit),
        };
        let held = self.map.groups[0].slots[usize::try_from(slot).expect("small")].held?;
        let extent = self.extents.get(&held)?;
        let first = sectors(local);
        let is_known = extent.known.contains(&(first / BLOCK));
        is_known.then(|| extent.bytes.get(&first).copied().unwrap_or(0))
    }

    fn source_answers(&mut self, life: u64, range: std::ops::Range<u64>) {
        let is_it = |job: &Job| job.work == Work::Fetch(range.clone());
        let Some(at) = self.jobs.iter().position(is_it).filter(|_| self.clients[FILLER].life == life) else {
            return;
        };
        if self.source_fails {
            self.jobs[at].good = false;
            return self.look_at_jobs();
        }
        let mut parts = vec![range.clone()];
        for bad in self.bad.clone().iter().filter(|bad| bad.offset < range.end && range.start < bad.end()) {
            parts = vec![range.start..bad.offset, bad.end().min(range.end)..range.end];
            self.jobs[at].bad.push(*bad);
        }
        for part in parts.into_iter().filter(|part| part.start < part.end) {
            let zeros = self.source_bytes(&part).iter().all(|byte| *byte == 0);
            let op = if zeros { Op::Zero { keep: false } } else { Op::Write };
            let tag = self.submit(FILLER, op, part);
            // What is answered in the same step was noted there.
            match tag {
                Some(tag) if self.clients[FILLER].asked.contains_key(&tag) => {
                    self.jobs[at].open.insert(tag);
                }
                Some(_) => {}
                None => self.jobs[at].good = false,
            }
        }
        self.look_at_jobs();
    }

    fn filler_completed(
        &mut self,
        tag: Tag,
        request: Request,
        result: Result<(), VolumeError>,
        status: &[StatusRun],
    ) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.open.contains(&tag)) else { return };
        job.open.remove(&tag);
        job.good &= result.is_ok();
        let mut at = request.offset;
        let end = at + u64::from(request.len);
        for run in status {
            let next = (at + u64::from(run.len)).min(end);
            if run.hole {
                job.absent.push(at..next);
            }
            at = next;
        }
        if request.op == Op::Presence && at < end {
            job.absent.push(at..end);
        }
        self.look_at_jobs();
    }

    /// Ends jobs of which nothing is open. One whose source has not answered yet stays.
    fn look_at_jobs(&mut self) {
        let reading: BTreeSet<u64> = (self.events.values())
            .filter_map(|event| match event {
                Ev::Read { range, .. } => Some(range.start),
                _ => None,
            })
            .collect();
        let is_over = |job: &Job| {
            let waits = matches!(&job.work, Work::Fetch(range) if reading.contains(&range.start));
            job.open.is_empty() && !waits
        };
        let over: Vec<Job> = self.jobs.extract_if(.., |job| is_over(job)).collect();
        for Job { work, bad, good, absent, .. } in over {
            let known_bad = self.order.bad().to_vec();
            let answers = match work {
                Work::Fetch(range) => {
                    let pieces = (range.start..range.end).step_by(PIECE_BYTES as usize);
                    self.doubted.extend(pieces.filter(|_| !good));
                    self.order.fetched(self.now, range, if good { Ok(bad) } else { Err(()) })
                }
                Work::Check(range) if !self.surveyed => {
                    self.learn(&range, &absent, good);
                    Vec::new()
                }
                Work::Check(range) => {
                    let is_bad = |absent: &std::ops::Range<u64>| {
                        known_bad.iter().any(|bad| bad.offset <= absent.start && absent.end <= bad.end())
                    };
                    let here = absent.iter().all(is_bad);
                    self.order.checked(range, if good { Ok(here) } else { Err(()) })
                }
            };
            self.tell(answers);
        }
        if self.fills && !self.surveyed && self.jobs.is_empty() {
            self.surveyed = true;
            let filler = Filler { address: "127.0.0.1:2".into(), export: self.next.to_string() };
            self.set_filler(Some(filler));
            self.calm_since = self.now + SECOND_NS;
        }
        self.after(0, Ev::Pump);
    }

    fn learn(&mut self, range: &std::ops::Range<u64>, absent: &[std::ops::Range<u64>], good: bool) {
        let mut at = range.start;
        while at < range.end {
            let end = (at + PIECE_BYTES).min(range.end);
            let misses = absent.iter().any(|absent| absent.start < end && at < absent.end);
            self.order.learn(at..end, good && !misses);
            at = end;
        }
    }

    // Faults.

    fn disturb(&mut self) {
        if self.healing {
            return;
        }
        match self.rng.below(8) {
            0..=2 if self.fills => self.end_filling(),
            3 | 4 => self.move_some_slot(),
            5 => self.begin_some_slot_anew(),
            _ => {
                self.source_fails = !self.source_fails;
                let fails = self.source_fails;
                self.say(|| format!("the source fails: {fails}"));
                self.calm_since = self.now + 2 * SECOND_NS;
            }
        }
        let gap = self.rng.range(SECOND_NS / 2, 8 * SECOND_NS);
        self.after(gap, Ev::Disturb);
    }

    fn place_for(&mut self, slot: usize) -> Option<Placement> {
        let taken: BTreeSet<DonorId> = (self.map.groups[0].slots.iter().enumerate())
            .filter(|(at, _)| *at != slot)
            .flat_map(|(_, slot)| slot.placements())
            .map(|place| place.donor)
            .collect();
        let own = self.map.groups[0].slots[slot].held.map(|held| held.donor);
        let free: Vec<u64> = (1..=DONORS)
            .filter(|donor| !taken.contains(&DonorId(*donor)) && own != Some(DonorId(*donor)))
            .collect();
        self.next += 1;
        let extent = u32::try_from(self.next % 1000 + 1).expect("small");
        let donor = DonorId(self.rng.pick(&free)?);
        self.extents.remove(&Placement { donor, extent });
        self.retired.remove(&Placement { donor, extent });
        Some(Placement { donor, extent })
    }

    fn move_some_slot(&mut self) {
        let slot = self.rng.index(self.map.groups[0].slots.len());
        if self.map.groups[0].slots.iter().any(|slot| slot.filling.is_some()) {
            return;
        }
        let Some(place) = self.place_for(slot) else { return };
        self.say(|| format!("slot {slot} moves to {place:?}"));
        self.map.groups[0].slots[slot].filling = Some(place);
        self.tell_map();
    }

    /// Who fills says that it is copied.
    fn moved(&mut self, place: Placement) {
        let slot = self.map.groups[0].slots.iter_mut().find(|slot| slot.filling == Some(place));
        let Some(slot) = slot else { return };
        slot.filling = None;
        self.retired.extend(slot.held.replace(place));
        self.stats.count("slots of an opened volume moved");
        self.tell_map();
    }

    /// Its donor has ended: another has its place, of which all is absent.
    fn begin_some_slot_anew(&mut self) {
        let slot = self.rng.index(self.map.groups[0].slots.len());
        let Some(place) = self.place_for(slot) else { return };
        self.say(|| format!("slot {slot} begins anew at {place:?}"));
        self.stats.count("fault: a slot began anew");
        self.map.groups[0].slots[slot] = Slot::held(place);
        self.calm_since = self.now + 3 * SECOND_NS;
        self.tell_map();
    }

    // The end.

    fn heal(&mut self) {
        self.say(|| "nothing goes wrong any more".into());
        (self.healing, self.source_fails) = (true, false);
        self.calm_since = self.now + 3 * SECOND_NS;
    }

    fn is_over(&mut self) -> bool {
        if !self.is_calm() || !self.order.is_complete() || !self.jobs.is_empty() {
            return false;
        }
        let blocks = 0..self.map.size.div_ceil(BLOCK_BYTES);
        let missing = |block: &u64| {
            let range = block * BLOCK_BYTES..block * BLOCK_BYTES + 1;
            !self.meets_bad(&range) && self.known_byte(*block).is_none()
        };
        let Some(block) = blocks.into_iter().find(missing) else { return true };
        // As a last look at what donors hold finds it.
        let at = block * BLOCK_BYTES;
        self.order.learn(at..at + 1, false);
        self.pump();
        false
    }

    fn judge_end(&mut self) {
        if self.failure.is_none() && !self.is_over() {
            let (here, size) = (self.order.bytes_here(), self.map.size);
            self.fail(format!("{here} of {size} bytes are here, and no more come"));
        }
        let late = self.clients[..READERS].iter().flat_map(|client| client.asked.values());
        let late = late.filter(|(_, since)| self.now > since + REQUEST_DEADLINE_NS).count();
        if late > 0 {
            self.fail(format!("{late} reads were never answered"));
        }
    }
}
