//! A volume machine over donors that do what the test says: the one helper that builds the world.

use cheetah_core::api::Amend;
use cheetah_core::donor::WriteMark;
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{
    Effect, Event, Key, LinkFailure, Op, PartError, PartOp, Request, StatusRun, Tag, Volume, VolumeError,
};

pub const A: DonorId = DonorId(1);
pub const B: DonorId = DonorId(2);
pub const UNIT: u32 = 65536;

/// A stripe over A and B (one group), or linear: A's extent, then B's.
pub fn map(stripe: bool, foreign: bool) -> VolumeMap {
    let redundancy = if stripe { Redundancy { data: 2, parity: 0 } } else { Redundancy::LINEAR };
    let at = |donor| Slot::held(Placement { donor, extent: 0 });
    let groups = if stripe {
        vec![Group { slots: vec![at(A), at(B)] }]
    } else {
        vec![Group { slots: vec![at(A)] }, Group { slots: vec![at(B)] }]
    };
    let route = |donor: DonorId| {
        let foreign_export = foreign.then(String::new);
        (donor, Route { name: format!("d{}", donor.0), address: "127.0.0.1:1".into(), foreign_export })
    };
    let map = VolumeMap {
        volume: VolumeId(7),
        name: "v".into(),
        epoch: 1,
        size: 2 * EXTENT_BYTES,
        redundancy,
        unit: UNIT,
        groups,
        routes: [route(A), route(B)].into(),
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    };
    map.check().expect("a sound map");
    map
}

/// One group of donors 1, 2 and so on, one for each slot of the redundancy.
pub fn wide(redundancy: Redundancy) -> VolumeMap {
    let donors = 1..=u64::from(redundancy.data + redundancy.parity);
    let slot = |donor| Slot::held(Placement { donor: DonorId(donor), extent: 0 });
    let route = |donor: u64| {
        let address = "127.0.0.1:1".into();
        (DonorId(donor), Route { name: format!("d{donor}"), address, foreign_export: None })
    };
    let map = VolumeMap {
        volume: VolumeId(7),
        name: "v".into(),
        epoch: 1,
        size: u64::from(redundancy.data) * EXTENT_BYTES,
        redundancy,
        unit: UNIT,
        groups: vec![Group { slots: donors.clone().map(slot).collect() }],
        routes: donors.map(route).collect(),
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    };
    map.check().expect("a sound map");
    map
}

pub struct World {
    pub volume: Volume,
    pub now: Time,
    pub effects: Vec<Effect>,
    tags: Tag,
    announced: Option<Time>,
}

/// A part as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub donor: DonorId,
    pub part: Key,
    pub op: PartOp,
    pub address: u64,
    pub len: u32,
    pub mark: Option<WriteMark>,
}

impl World {
    pub fn new(map: VolumeMap, read_only: bool) -> World {
        World::start(Volume::new(map, read_only, true))
    }

    pub fn start(volume: Volume) -> World {
        let mut world = World { volume, now: 1_000, effects: Vec::new(), tags: 0, announced: None };
        world.step(Event::Start);
        world
    }

    /// With both links up.
    pub fn up(map: VolumeMap) -> World {
        let mut world = World::new(map, false);
        world.open(A);
        world.open(B);
        world.effects.clear();
        world
    }

    pub fn step(&mut self, event: Event) {
        let before = self.effects.len();
        self.volume.step(self.now, event, &mut self.effects);
        for effect in &self.effects[before..] {
            if let Effect::WakeAt(at) = effect {
                self.announced = Some(self.announced.map_or(*at, |earlier| earlier.min(*at)));
            }
        }
        self.volume.check_invariants();
    }

    /// The session of the last `Open` for this donor.
    pub fn session(&self, donor: DonorId) -> u64 {
        let mut opens = self.effects.iter().rev().filter_map(|effect| match effect {
            Effect::Open { donor: d, session } if *d == donor => Some(*session),
            _ => None,
        });
        opens.next().expect("the machine has opened this link")
    }

    pub fn open(&mut self, donor: DonorId) {
        let session = self.session(donor);
        self.step(Event::Opened { donor, session });
    }

    pub fn refuse(&mut self, donor: DonorId) {
        let session = self.session(donor);
        self.fail(donor, session, LinkFailure::Refused("refused".into()));
    }

    pub fn fail(&mut self, donor: DonorId, session: u64, failure: LinkFailure) {
        self.step(Event::Failed { donor, session, failure });
    }

    /// Its link breaks, and nobody is there any more.
    pub fn lose(&mut self, donor: DonorId) {
        self.fail(donor, self.session(donor), LinkFailure::Broken("gone".into()));
        self.refuse(donor);
    }

    /// It is there again, when it is tried the next time.
    pub fn comes_back(&mut self, donor: DonorId) {
        let before = self.session(donor);
        let tried = (0..10_000).any(|_| {
            self.wake();
            self.session(donor) > before
        });
        assert!(tried, "{donor:?} is not tried again");
        self.open(donor);
    }

    pub fn submit(&mut self, op: Op, offset: u64, len: u32) -> Tag {
        self.tags += 1;
        let request = Request { op, offset, len };
        self.step(Event::Submit { tag: self.tags, request });
        self.tags
    }

    /// What was sent since the last call, in order.
    pub fn sent(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Send { donor, part, op, address, scatter, mark, .. } => {
                let (donor, part, op, address, mark) = (*donor, *part, *op, *address, *mark);
                sent.push(Sent { donor, part, op, address, len: scatter.len, mark });
                false
            }
            _ => true,
        });
        sent
    }

    /// What was asked of the coordinator since the last call, in order.
    pub fn amendments(&mut self) -> Vec<Amend> {
        let mut asked = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Amend(amend) => {
                asked.push(amend.clone());
                false
            }
            _ => true,
        });
        asked
    }

    pub fn answer(&mut self, part: Key, answer: Result<Vec<StatusRun>, PartError>) {
        self.step(Event::Answered { part, answer });
    }

    /// Answers what is asked of donors, and finds all that is read right, until nothing more is asked.
    pub fn serve(&mut self) {
        loop {
            let (sent, checks) = (self.sent(), self.checks());
            if sent.is_empty() && checks.is_empty() {
                return;
            }
            sent.iter().for_each(|sent| self.answer(sent.part, Ok(vec![])));
            checks.into_iter().for_each(|job| self.step(Event::Verified { job, right: true }));
        }
    }

    /// The jobs that wait for a check since the last call.
    pub fn checks(&mut self) -> Vec<Key> {
        let mut checks = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Verify { job, .. } | Effect::Compare { job, .. } => {
                checks.push(*job);
                false
            }
            _ => true,
        });
        checks
    }

    /// Finds right what is to be checked.
    pub fn serve_checks(&mut self) {
        self.checks().into_iter().for_each(|job| self.step(Event::Verified { job, right: true }));
    }

    pub fn serve_for(&mut self, ns: Time) {
        let end = self.now + ns;
        while self.now < end {
            self.serve();
            self.wake();
        }
    }

    /// What was completed since the last call.
    pub fn completed(&mut self) -> Vec<(Tag, Result<(), VolumeError>)> {
        let mut done = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Complete { tag, result, .. } => {
                done.push((*tag, *result));
                false
            }
            _ => true,
        });
        done
    }

    /// Never, when none is announced.
    pub fn next_wake(&self) -> Time {
        self.announced.unwrap_or(Time::MAX)
    }

    /// Lets time pass to the announced wake-up.
    pub fn wake(&mut self) {
        self.now = self.announced.take().expect("a wake-up was announced").max(self.now);
        self.step(Event::Wake);
    }
}
