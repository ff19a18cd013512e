//! A world of its own for volumes that were opened from a source: a filler that dies and comes again, readers
//! beside it, moves, donors whose extents begin anew, and a source that fails.
//!
//! Owns the drivers of the machines (`core::volume` of readers and of who fills, `core::filling`), at a scale
//! of 1:512, and the oracle, which knows what the source says: what a reader gets is that or an error that is
//! excused, and never anything for what the source cannot give; nothing is read at the source that donors
//! hold; and in the end all is there. Never: a coordinator, or links that break (the other world has those).
//! Files: `machines`, `filling` (who fills), `faults`. Called by this crate for `Fault::Opened`. Tests:
//! `tests/kinds.rs`, `tests/planted_bugs.rs`.

mod faults;
mod filling;
mod machines;

use crate::bugs::Bug;
use crate::bytes::{BLOCK, SECTOR, sectors};
use crate::rng::Rng;
use crate::stats::Stats;
use crate::{Outcome, Setup, contradiction};
use cheetah_core::content::ByteRange;
use cheetah_core::filling::{Order, PIECE_BYTES, Sharing, Work};
use cheetah_core::layout::Scatter;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, MILLISECOND_NS, REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::{
    Backing, DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap,
};
use cheetah_core::units::Time;
use cheetah_core::volume::{
    Event, FetchError, Key, Mem, Op, PartError, PartOp, Request, StatusRun, Tag, Volume,
};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// Those of them that take memory.
    data: BTreeSet<usize>,
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
    /// It was held up on its way, and comes after who sent it has ended.
    is_late: bool,
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
    Survey { life: u64 },
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
    /// What an answer did not reach: donors are asked of that next.
    unsaid: Option<std::ops::Range<u64>>,
    /// Of a fetch: parts that are zeros.
    zeros: Vec<std::ops::Range<u64>>,
}

impl Default for Job {
    fn default() -> Job {
        let work = Work::Drop(Vec::new());
        let (open, absent, zeros) = (BTreeSet::new(), Vec::new(), Vec::new());
        Job { work, bad: Vec::new(), open, good: false, absent, unsaid: None, zeros }
    }
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
    /// Pieces of which a read or a write of this filler failed last: some may be here.
    doubted: BTreeSet<u64>,
    /// Not all donors have said what is here: they are asked again.
    surveys_again: bool,
    clients: Vec<Client>,
    /// Of who fills now: gone, or that many lives.
    fills: bool,
    order: Order,
    /// The volume is larger than its memory.
    sharing: Option<Sharing>,
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
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.begin();
        while world.failure.is_none() && world.now < SCENE_NS {
            world.advance();
        }
        world.heal();
        while world.failure.is_none() && world.now < SCENE_NS + HEALING_NS && !world.is_over() {
            world.advance();
        }
        world.judge_end();
    }));
    if let Err(panic) = ran {
        world.fail(contradiction(&*panic));
    }
    world.stats.virtual_ns = world.now;
    Outcome { digest: world.digest, stats: world.stats, failure: world.failure }
}

fn source_byte(sector: u64, seed: u64) -> u8 {
    let mixed = (sector ^ (seed << 24)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Of five blocks one is zeros.
    if ((sector / BLOCK as u64) ^ seed).is_multiple_of(5) { 0 } else { ((mixed >> 33) as u8) | 1 }
}

impl World {
    fn new(seed: u64, bug: Option<Bug>, trace: Option<fn(&str)>) -> World {
        let mut rng = Rng::new(seed);
        let mut size = rng.range(1, 40) * PIECE_BYTES + rng.below(PIECE_BYTES / SECTOR) * SECTOR;
        let striped = rng.percent(60);
        let (mut layers, data) = (1, if striped { 2 } else { 1 });
        if rng.percent(40) {
            layers = rng.range(2, 3);
            size += (layers - 1) * data * EXTENT_BYTES;
        }
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
            backing: Some(Backing { layers: u32::try_from(layers).expect("a few"), ..Backing::default() }),
            proofs: None,
            encrypted: false,
            write_back: false,
            medium: Medium::Memory,
        };
        let room = u32::try_from(rng.range(8, 40)).expect("a few");
        let sharing = Sharing::of(&map).map(|sharing| Sharing { room, ..sharing });
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
            order: Order::new(size, sharing),
            sharing,
            map,
            extents: BTreeMap::new(),
            retired: BTreeSet::new(),
            doubted: BTreeSet::new(),
            surveys_again: false,
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

    fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
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
            return self.fail("nothing happens any more");
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
            Ev::Survey { life } if self.clients[FILLER].life == life => self.survey(),
            Ev::Survey { .. } => {}
            Ev::Pump => self.pump(),
        }
    }

    // Tools.

    fn tool(&mut self, reader: usize) {
        for _ in 0..self.rng.range(1, 3) {
            let size = self.map.size / SECTOR;
            let len = self.rng.skewed(1, 400).min(size);
            let mut at = self.rng.below(size - len + 1);
            if self.sharing.is_some() && self.rng.percent(70) {
                // Some places again and again, those where the next layer begins among them.
                let near = self.rng.below(6) * size / 6 / 1000 * 1000;
                let border = self.map.group_bytes() / SECTOR;
                let near = if self.rng.percent(30) { border - 200 } else { near };
                at = (near + self.rng.below(400)).min(size - len);
            }
            self.submit(reader, Op::Read, at * SECTOR..(at + len) * SECTOR);
        }
        let gap = self.rng.skewed(5 * MILLISECOND_NS, 2 * SECOND_NS);
        self.after(gap, Ev::Tool(reader));
    }

    // The end.

    fn heal(&mut self) {
        self.say(|| "nothing goes wrong any more".into());
        (self.healing, self.source_fails) = (true, false);
        self.calm_since = self.now + 3 * SECOND_NS;
    }

    fn is_over(&mut self) -> bool {
        let is_done = self.order.is_complete() || self.order.is_full();
        if !self.is_calm() || !is_done || !self.jobs.is_empty() {
            return false;
        }
        if self.sharing.is_some() {
            return true;
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
