//! Time and events of one run.
//!
//! Owns: the queue of what happens next, requests from their coming to their answer, and what of them is
//! measured. Never: what a volume machine asks for, or why. Invariant: events are taken in the order of time,
//! and at one time in the order they were put in; so stations are come to in the order of time.
//! Tests: below.

use super::attachment::{Asked, Attachment, node_of};
use super::placed::{rehome, volumes};
use super::stations::{Node, ns, transfer};
use super::{Layout, Load, Outcome, Setup, Unfit};
use crate::chance::Chance;
use crate::formula::remote_bandwidth;
use crate::latencies::Latencies;
use cheetah_core::layout::{Geometry, address};
use cheetah_core::map::{DonorId, Group, Slot, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{Key, PartOp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Links are up by then, and requests begin.
const BEGIN_NS: Time = 100_000_000;
/// A run ends though not all is rebuilt: after an hour, or so many requests.
const REBUILD_NS_MAX: Time = 3_600_000_000_000;
const REBUILD_REQUESTS_MAX: u64 = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ev {
    /// A request comes: of this node, or of any.
    Arrive(Option<u32>),
    /// A part has left its asker; what it brings is still to travel.
    Leaves(u32),
    /// It is where it is served.
    Comes(u32),
    /// It was served.
    Served(u32),
    /// Its answer is there.
    Back(u32),
    Opened {
        node: u32,
        donor: u32,
        session: u64,
        probe: bool,
    },
    Wake(u32),
}

/// Whose a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// A request's, served by memory.
    Memory(u32),
    /// A request's, one of several disks.
    Disk(u32),
    Machine {
        session: u64,
        key: Key,
        op: PartOp,
    },
}

/// What one node asks of another.
#[derive(Clone, Copy, Debug)]
struct Part {
    asker: u32,
    server: u32,
    bytes: u32,
    address: Option<u64>,
    whose: Whose,
}

impl Part {
    fn writes(&self) -> bool {
        matches!(self.whose, Whose::Machine { op, .. } if op.writes())
    }

    fn moves_disk(&self) -> bool {
        !matches!(self.whose, Whose::Memory(_)) && self.has_data()
    }

    /// Whether bytes travel.
    fn has_data(&self) -> bool {
        match self.whose {
            Whose::Memory(_) | Whose::Disk(_) => true,
            Whose::Machine { op, .. } => matches!(op, PartOp::Read | PartOp::Write | PartOp::Sparse),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Local,
    Remote,
    Disk,
}

#[derive(Clone, Copy, Debug)]
struct Asking {
    node: u32,
    begun: Time,
    left: u32,
    path: Path,
    counts: bool,
}

#[derive(Debug)]
pub(super) struct World {
    setup: Setup,
    now: Time,
    order: u64,
    queue: BinaryHeap<Reverse<(Time, u64, Ev)>>,
    nodes: Vec<Node>,
    has_failed: Vec<bool>,
    askers: Vec<u32>,
    /// Each node's volume, where there are groups.
    maps: Vec<VolumeMap>,
    /// One for each node, where machines read.
    attachments: Vec<Attachment>,
    parts: Slab<Part>,
    requests: Vec<Asking>,
    chance: Chance,
    open: u64,
    disk_parts: u64,
    disk_reads: u64,
    measured: Measured,
    filling: usize,
    rebuilt_bytes: u64,
    rebuilt_at: Time,
    asked: Vec<Asked>,
}

#[derive(Debug, Default)]
struct Measured {
    local: Latencies,
    remote: Latencies,
    disk: Latencies,
    failed: u64,
    /// When the first request that counts came, and the last one came.
    from: Option<Time>,
    until: Option<Time>,
    /// Answers between these.
    answers: u64,
}

/// Numbers that are given again when they are free.
#[derive(Debug)]
struct Slab<T> {
    all: Vec<T>,
    free: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    fn add(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.all[at as usize] = value;
            return at;
        }
        self.all.push(value);
        u32::try_from(self.all.len() - 1).expect("parts under way are below 2^32")
    }

    fn take(&mut self, at: u32) -> T {
        self.free.push(at);
        self.all[at as usize]
    }
}

impl World {
    pub(super) fn new(setup: Setup) -> Result<World, Unfit> {
        let nodes = setup.nodes;
        let mut has_failed = vec![false; nodes as usize];
        let mut failing = Chance::new(setup.seed, 1);
        while has_failed.iter().filter(|failed| **failed).count() < setup.failed as usize {
            has_failed[failing.below(nodes.into()) as usize] = true;
        }
        let askers: Vec<u32> = (0..nodes).filter(|node| !has_failed[*node as usize]).collect();
        let mut world = World {
            setup,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            nodes: vec![Node::default(); nodes as usize],
            has_failed,
            askers,
            maps: Vec::new(),
            attachments: Vec::new(),
            parts: Slab { all: Vec::new(), free: Vec::new() },
            requests: Vec::new(),
            chance: Chance::new(setup.seed, 2),
            open: 0,
            disk_parts: 0,
            disk_reads: 0,
            measured: Measured::default(),
            filling: 0,
            rebuilt_bytes: 0,
            rebuilt_at: 0,
            asked: Vec::new(),
        };
        if let Some(redundancy) = setup.layout.redundancy() {
            world.maps = volumes(nodes, redundancy, &mut Chance::new(setup.seed, 3))?;
            if setup.rebuild {
                world.rehome()?;
            }
        }
        if let Layout::Machines(_) = setup.layout {
            let attach = |map: &VolumeMap| Attachment::new(map.clone(), setup.block());
            world.attachments = world.maps.iter().map(attach).collect();
        }
        Ok(world)
    }

    /// What the nodes that failed held is given to others.
    fn rehome(&mut self) -> Result<(), Unfit> {
        let mut held = vec![0; self.nodes.len()];
        let placed = self.maps.iter().flat_map(|map| &map.groups).flat_map(Group::placements);
        placed.for_each(|at| held[node_of(at.donor) as usize] += 1);
        for node in &self.askers {
            let is_failed = |donor: DonorId| self.has_failed[node_of(donor) as usize];
            self.filling += rehome(&mut self.maps[*node as usize], is_failed, &mut held)? as usize;
        }
        Ok(())
    }

    pub(super) fn run(mut self) -> Outcome {
        for node in self.askers.clone() {
            self.with_machine(node, Attachment::start);
            if let Load::Closed(depth) = self.setup.load {
                for _ in 0..depth {
                    // Else all would ask at once for ever.
                    let after = self.chance.share() * self.setup.model_s();
                    self.put(BEGIN_NS + ns(after), Ev::Arrive(Some(node)));
                }
            }
        }
        if let Load::Open(_) = self.setup.load {
            self.put(BEGIN_NS, Ev::Arrive(None));
        }
        while let Some(Reverse((at, _, ev))) = self.queue.pop() {
            self.now = at;
            self.take(ev);
            if self.open == 0 && self.is_over() {
                break;
            }
        }
        self.outcome()
    }

    fn put(&mut self, at: Time, ev: Ev) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, ev)));
    }

    /// Whether no further request comes.
    fn is_over(&self) -> bool {
        let came = self.requests.len() as u64;
        let goes_on = self.filling > 0 && self.now < REBUILD_NS_MAX;
        let most = if goes_on { REBUILD_REQUESTS_MAX } else { self.setup.requests };
        came >= most
    }

    fn take(&mut self, ev: Ev) {
        match ev {
            Ev::Arrive(of) => self.arrive(of),
            Ev::Leaves(at) => {
                let Part { asker, server, bytes, .. } = self.parts.all[at as usize];
                let there = self.travel(asker, server, bytes);
                self.put(there, Ev::Comes(at));
            }
            Ev::Comes(at) => {
                let part = self.parts.all[at as usize];
                if part.moves_disk() {
                    self.nodes[part.server as usize].waiting.push_back(at);
                    self.next_on_disk(part.server);
                } else {
                    let served = self.memory_serves(&part);
                    self.put(served, Ev::Served(at));
                }
            }
            Ev::Served(at) => {
                let part = self.parts.all[at as usize];
                let returns = part.has_data() && !part.writes();
                let back = if returns { self.travel(part.server, part.asker, part.bytes) } else { self.now };
                self.put(back, Ev::Back(at));
                if part.moves_disk() {
                    self.nodes[part.server as usize].is_at_one = false;
                    self.next_on_disk(part.server);
                }
            }
            Ev::Back(at) => self.back(at),
            Ev::Opened { node, donor, session, probe } => {
                let is_there = !self.has_failed[donor as usize];
                let donor = DonorId(donor.into());
                self.with_machine(node, |machine, now, asked| match probe {
                    true if is_there => machine.reached(now, donor, session, asked),
                    true => {}
                    false => machine.opened(now, donor, session, is_there, asked),
                });
            }
            Ev::Wake(node) => {
                if self.attachments[node as usize].wake.is_some_and(|at| at <= self.now) {
                    self.with_machine(node, Attachment::woken);
                }
            }
        }
    }

    /// When bytes that leave now are there; a node's own do not travel.
    fn travel(&mut self, from: u32, to: u32, bytes: u32) -> Time {
        if from == to {
            return self.now;
        }
        let takes = ns(f64::from(bytes) / self.setup.hardware.network_bandwidth);
        transfer(&mut self.nodes, from, to, self.now, takes)
    }

    fn memory_serves(&mut self, part: &Part) -> Time {
        let Whose::Memory(_) = part.whose else { return self.now };
        let hardware = self.setup.hardware;
        let bandwidth = match part.asker == part.server {
            true => hardware.memory_bandwidth,
            false => remote_bandwidth(&hardware, self.setup.remote),
        };
        self.nodes[part.server as usize].memory.serve(self.now, ns(f64::from(part.bytes) / bandwidth))
    }

    /// An idle disk begins with the next part. What came over a connection that has been closed is not begun.
    fn next_on_disk(&mut self, server: u32) {
        let hardware = self.setup.hardware;
        while !self.nodes[server as usize].is_at_one {
            let Some(at) = self.nodes[server as usize].waiting.pop_front() else { return };
            let part = self.parts.all[at as usize];
            if self.is_closed(&part) {
                self.parts.take(at);
                continue;
            }
            let spread = self.setup.disk_spread * (2.0 * self.chance.share() - 1.0);
            let overhead_s = hardware.disk_overhead_s * (1.0 + spread);
            let node = &mut self.nodes[server as usize];
            node.is_at_one = true;
            let served = node.on_disk(self.now, &hardware, overhead_s, part.bytes, part.address);
            self.put(served, Ev::Served(at));
        }
    }

    fn is_closed(&self, part: &Part) -> bool {
        let Whose::Machine { session, .. } = part.whose else { return false };
        !self.attachments[part.asker as usize].has_session(DonorId(part.server.into()), session)
    }

    /// A part leaves when its node has sent the messages before it.
    fn ask(&mut self, part: Part) {
        let overhead = ns(self.setup.hardware.network_overhead_s);
        let at = self.nodes[part.asker as usize].protocol.serve(self.now, overhead);
        let brings = part.writes() && part.has_data();
        let number = self.parts.add(part);
        self.put(at, if brings { Ev::Leaves(number) } else { Ev::Comes(number) });
    }

    fn arrive(&mut self, of: Option<u32>) {
        if self.is_over() {
            return;
        }
        let among = self.askers.len() as u64;
        let node = of.unwrap_or_else(|| self.askers[self.chance.below(among) as usize]);
        if let (None, Load::Open(load)) = (of, self.setup.load) {
            let gap = self.setup.gap_s(load, self.askers.len() as u32);
            let next = self.now + ns(self.chance.waits(gap));
            self.put(next, Ev::Arrive(None));
        }
        let came = self.requests.len() as u64;
        let counts = came >= self.setup.unmeasured() && (!self.setup.rebuild || self.filling > 0);
        if counts {
            self.measured.from.get_or_insert(self.now);
            self.measured.until = Some(self.now);
        }
        let path = match (self.chance.share(), self.chance.share()) {
            (local, _) if local < self.setup.local_hits => Path::Local,
            (_, remote) if remote < self.setup.remote_hits => Path::Remote,
            _ => Path::Disk,
        };
        self.open += 1;
        let number = u32::try_from(came).expect("requests are below 2^32");
        self.requests.push(Asking { node, begun: self.now, left: 1, path, counts });
        self.begin(number, node, path);
    }

    fn begin(&mut self, number: u32, node: u32, path: Path) {
        let (nodes, block) = (self.setup.nodes, self.setup.block());
        let whose = Whose::Memory(number);
        match (path, self.setup.layout) {
            (Path::Local, _) => {
                let part = Part { asker: node, server: node, bytes: block, address: None, whose };
                let part = self.parts.add(part);
                self.put(self.now, Ev::Comes(part));
            }
            (Path::Remote, _) => {
                let among = self.askers.len() as u64;
                let mut server = node;
                while server == node && among > 1 {
                    server = self.askers[self.chance.below(among) as usize];
                }
                self.ask(Part { asker: node, server, bytes: block, address: None, whose });
            }
            (Path::Disk, Layout::Striped) => {
                self.requests[number as usize].left = nodes;
                self.disk_parts += u64::from(nodes);
                self.disk_reads += 1;
                // Those that are asked last are others each time.
                let first = self.chance.below(nodes.into()) as u32;
                for at in 0..nodes {
                    let bytes = block / nodes + u32::from(at < block % nodes);
                    let (server, whose) = ((first + at) % nodes, Whose::Disk(number));
                    self.ask(Part { asker: node, server, bytes, address: None, whose });
                }
            }
            (Path::Disk, Layout::Groups(_)) => {
                self.disk_reads += 1;
                self.read_by_layout(number, node);
            }
            (Path::Disk, Layout::Machines(_)) => {
                self.disk_reads += 1;
                let chosen = self.chance.share();
                self.with_machine(node, |machine, now, asked| {
                    let block = (chosen * machine.blocks() as f64) as u64;
                    machine.read(now, number.into(), block, asked);
                });
            }
        }
    }

    /// One part for each slot that has something of the block; for one whose node failed, k others of its
    /// group, if there are as many.
    fn read_by_layout(&mut self, number: u32, node: u32) {
        let map = &self.maps[node as usize];
        let block = self.setup.block();
        let blocks = map.size / u64::from(block);
        let offset = self.chance.below(blocks) * u64::from(block);
        let geometry = Geometry::new(map.redundancy, map.unit);
        let mut servers: Vec<(u32, u32, u64)> = Vec::new();
        let mut is_lost = false;
        for span in map.chunks().spans(offset, block) {
            let slots = &map.groups[span.group as usize].slots;
            let lives = |slot: &Slot| {
                let held = slot.held.map(|held| (node_of(held.donor), held.extent));
                held.filter(|(node, _)| !self.has_failed[*node as usize])
            };
            for slot in 0..map.redundancy.data {
                let (from, to) = geometry.column(span.begin, span.end, slot);
                if from == to {
                    continue;
                }
                let part = |(node, extent): (u32, u32)| (node, to - from, address(extent, from));
                if let Some(held) = lives(&slots[slot as usize]) {
                    servers.push(part(held));
                    continue;
                }
                let others: Vec<_> = slots.iter().filter_map(lives).collect();
                is_lost |= others.len() < map.redundancy.data as usize;
                servers.extend(others.into_iter().take(map.redundancy.data as usize).map(part));
            }
        }
        if is_lost {
            return self.answer(number, false);
        }
        self.requests[number as usize].left = servers.len() as u32;
        self.disk_parts += servers.len() as u64;
        for (server, bytes, address) in servers {
            let whose = Whose::Disk(number);
            self.ask(Part { asker: node, server, bytes, address: Some(address), whose });
        }
    }

    /// Lets a node's machine work, and carries out what it asks for.
    fn with_machine(&mut self, node: u32, work: impl FnOnce(&mut Attachment, Time, &mut Vec<Asked>)) {
        let Some(machine) = self.attachments.get_mut(node as usize) else { return };
        let (filling, bytes) = (machine.filling(), machine.rebuilt_bytes);
        let mut asked = std::mem::take(&mut self.asked);
        work(machine, self.now, &mut asked);
        if machine.rebuilt_bytes > bytes {
            self.rebuilt_bytes += machine.rebuilt_bytes - bytes;
            self.rebuilt_at = self.now;
            self.filling -= filling - machine.filling();
        }
        for wanted in asked.drain(..) {
            self.carry_out(node, wanted);
        }
        self.asked = asked;
    }

    fn carry_out(&mut self, node: u32, wanted: Asked) {
        match wanted {
            Asked::Open { donor, session, probe } => {
                let at = self.now + ns(self.setup.hardware.network_overhead_s);
                self.put(at, Ev::Opened { node, donor: node_of(donor), session, probe });
            }
            Asked::Part { donor, session, key, op, address, bytes } => {
                self.disk_parts += u64::from(op == PartOp::Read);
                let (server, whose) = (node_of(donor), Whose::Machine { session, key, op });
                self.ask(Part { asker: node, server, bytes, address: Some(address), whose });
            }
            Asked::Done { tag, succeeded } => self.answer(tag as u32, succeeded),
            Asked::WakeAt(at) => {
                let Some(machine) = self.attachments.get_mut(node as usize) else { return };
                if machine.wake.is_none_or(|before| at < before) {
                    machine.wake = Some(at);
                    self.put(at.max(self.now), Ev::Wake(node));
                }
            }
        }
    }

    fn back(&mut self, at: u32) {
        let part = self.parts.take(at);
        match part.whose {
            Whose::Memory(request) => self.answer(request, true),
            Whose::Disk(request) => {
                let asking = &mut self.requests[request as usize];
                asking.left -= 1;
                if asking.left == 0 {
                    self.answer(request, true);
                }
            }
            Whose::Machine { session, key, op } => {
                let (donor, bytes) = (DonorId(part.server.into()), part.bytes);
                self.with_machine(part.asker, |machine, now, asked| {
                    machine.answered(now, (donor, session), (key, op, bytes), asked);
                });
            }
        }
    }

    fn answer(&mut self, request: u32, succeeded: bool) {
        let Asking { node, begun, path, counts, .. } = self.requests[request as usize];
        self.open -= 1;
        let measured = &mut self.measured;
        if counts && succeeded {
            let times = match path {
                Path::Local => &mut measured.local,
                Path::Remote => &mut measured.remote,
                Path::Disk => &mut measured.disk,
            };
            times.add(self.now - begun);
        }
        measured.failed += u64::from(counts && !succeeded);
        let comes_more = !self.is_over();
        if self.measured.from.is_some() && comes_more && succeeded {
            self.measured.answers += 1;
        }
        if let Load::Closed(_) = self.setup.load
            && comes_more
        {
            self.put(self.now, Ev::Arrive(Some(node)));
        }
    }

    fn outcome(self) -> Outcome {
        let Measured { local, remote, disk, failed, from, until, answers } = self.measured;
        let mut all = local.clone();
        all.extend(&remote);
        all.extend(&disk);
        let seconds = |from: Time, to: Time| to.saturating_sub(from) as f64 * 1e-9;
        let window = from.zip(until).map_or(0.0, |(from, until)| seconds(from, until));
        let span = seconds(BEGIN_NS, self.now).max(1e-9) * self.nodes.len() as f64;
        let busy = |of: fn(&Node) -> Time| self.nodes.iter().map(of).sum::<Time>() as f64 * 1e-9 / span;
        Outcome {
            all: all.summary(),
            local: local.summary(),
            remote: remote.summary(),
            disk: disk.summary(),
            failed,
            per_second: if window > 0.0 { answers as f64 / window } else { 0.0 },
            disks_busy: busy(|node| node.disk.busy),
            links_busy: busy(|node| node.into.busy.max(node.out.busy)),
            parts_per_read: self.disk_parts as f64 / self.disk_reads.max(1) as f64,
            rebuilt_bytes: self.rebuilt_bytes,
            rebuild_s: seconds(BEGIN_NS, self.rebuilt_at),
        }
    }
}
