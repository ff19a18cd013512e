//! The world of the coordinator's tests: a coordinator, donors that carry out their duties at once unless told
//! not to, and a clock that jumps. Invariants are checked after every step, and the store is replayed.
#![allow(dead_code, reason = "each test file uses its own part")]

use cheetah_core::api::{API_VERSION, Renew, Sync, VolumeDetail, VolumeReport};
use cheetah_core::api::{
    Answer, Attach, Attached, Call, Create, Duties, Join, PoolStatus, Refusal, RefusalCode, Size,
};
use cheetah_core::coordinator::{CallId, Coordinator, Effect, Event, Record};
use cheetah_core::limits::{EXTENT_BYTES, HEARTBEAT_NS, SECOND_NS, UNIT_DEFAULT_BYTES};
use cheetah_core::map::{DonorId, LeaseToken, PoolId};
use cheetah_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const E: u64 = EXTENT_BYTES;

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) coordinator: Coordinator,
    pub(crate) store: BTreeMap<String, Record>,
    pub(crate) answers: BTreeMap<CallId, Result<Answer, Refusal>>,
    /// What each donor carried out last; a donor in here syncs by itself.
    pub(crate) donors: BTreeMap<DonorId, Duties>,
    epochs: BTreeMap<String, u64>,
    calls: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let coordinator = Coordinator::new(PoolId(77));
        let (store, answers, donors) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut world =
            World { now: SECOND_NS, coordinator, store, answers, donors, epochs: BTreeMap::new(), calls: 0 };
        world.step(Event::Wake);
        world
    }

    /// With donors `d1`, `d2`, ... of so many extents each.
    pub(crate) fn with_donors(extents: &[u32]) -> Self {
        let mut world = World::new();
        for (at, extents) in extents.iter().enumerate() {
            world.join(at as u64 + 1, *extents).expect("joins");
        }
        world
    }

    pub(crate) fn step(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.coordinator.step(self.now, event, &mut effects);
        self.coordinator.check_invariants();
        let mut replied = false;
        for effect in effects {
            match effect {
                Effect::Store(record) => {
                    assert!(!replied, "what is stored comes before what is said");
                    if let Record::Volume(volume) = &record {
                        let last = self.epochs.insert(volume.map.volume.to_string(), volume.map.epoch);
                        assert!(last.is_none_or(|last| last <= volume.map.epoch), "epochs only grow");
                    }
                    self.store.insert(record.key().to_string(), record);
                }
                Effect::Forget(key) => {
                    assert!(!replied);
                    self.store.remove(&key.to_string());
                }
                Effect::Reply { call, answer } => {
                    replied = true;
                    assert!(self.answers.insert(call, answer).is_none(), "one answer per call");
                }
                Effect::WakeAt(at) => assert!(at >= self.now),
            }
        }
    }

    /// The same pool after the coordinator was killed and started again.
    pub(crate) fn restart(&mut self) {
        let records = self.store.values().cloned().collect();
        self.coordinator = Coordinator::restore(records, self.now).expect("the stored state is good");
        self.step(Event::Wake);
    }

    pub(crate) fn send(&mut self, request: Call) -> CallId {
        self.calls += 1;
        let call = CallId(self.calls);
        self.step(Event::Call { call, entropy: self.calls.wrapping_mul(0x1234_5678_9abc_def1), request });
        call
    }

    pub(crate) fn answer(&mut self, call: CallId) -> Option<Result<Answer, Refusal>> {
        self.answers.remove(&call)
    }

    /// A call, with the donors carrying out what it needs.
    pub(crate) fn ask(&mut self, request: Call) -> Result<Answer, Refusal> {
        let call = self.send(request);
        self.settle();
        self.answer(call).expect("answered once the donors have confirmed")
    }

    /// Every donor syncs until there is nothing new for it.
    pub(crate) fn settle(&mut self) {
        loop {
            let before: Vec<u64> = self.donors.values().map(|duties| duties.revision).collect();
            for donor in self.donors.keys().copied().collect::<Vec<_>>() {
                self.sync(donor);
            }
            if before == self.donors.values().map(|duties| duties.revision).collect::<Vec<_>>() {
                return;
            }
        }
    }

    /// One sync of a donor, which takes on what it hears.
    pub(crate) fn sync(&mut self, donor: DonorId) -> Option<Result<Answer, Refusal>> {
        let revision = self.donors.get(&donor).map_or(0, |duties| duties.revision);
        let sync = Sync {
            revision,
            bytes_used: 4096,
            connections: 0,
            goodbye: false,
            leaving: false,
            extents_offered: u32::MAX,
        };
        let call = self.send(Call::Sync { donor, sync });
        let answer = self.answer(call);
        if let Some(Ok(Answer::Duties(duties))) = &answer {
            self.donors.insert(donor, duties.clone());
        }
        answer
    }

    /// Lets time pass, with heartbeats of the donors that sync by themselves.
    pub(crate) fn pass(&mut self, ns: Time) {
        let until = self.now + ns;
        while self.now < until {
            self.now = until.min(self.now + HEARTBEAT_NS / 2);
            self.step(Event::Wake);
            self.settle();
        }
    }

    pub(crate) fn join(&mut self, id: u64, extents: u32) -> Result<Answer, Refusal> {
        let answer = self.ask(Call::Join(joining(id, extents)));
        if answer.is_ok() {
            self.donors.insert(DonorId(id), Duties::default());
            self.settle();
        }
        answer
    }

    /// The donor falls silent.
    pub(crate) fn silence(&mut self, id: u64) {
        self.donors.remove(&DonorId(id));
        self.pass(6 * SECOND_NS);
    }

    pub(crate) fn status(&mut self) -> PoolStatus {
        match self.ask(Call::Pool) {
            Ok(Answer::Pool(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn create(
        &mut self,
        name: &str,
        size: Size,
        redundancy: Option<&str>,
    ) -> Result<VolumeDetail, Refusal> {
        self.ask(Call::Create(creating(name, size, redundancy))).map(volume)
    }

    pub(crate) fn show(&mut self, name: &str) -> VolumeDetail {
        volume(self.ask(Call::Show { name: name.into() }).expect("it is there"))
    }

    pub(crate) fn grow(&mut self, name: &str, size: Size) -> Result<VolumeDetail, Refusal> {
        self.ask(Call::Grow { name: name.into(), size }).map(volume)
    }

    pub(crate) fn delete(&mut self, name: &str) -> Result<Answer, Refusal> {
        self.ask(Call::Delete { name: name.into() })
    }

    pub(crate) fn attach(&mut self, name: &str, read_only: bool) -> Result<Attached, Refusal> {
        self.ask(attaching(name, read_only)).map(|answer| match answer {
            Answer::Attached(attached) => attached,
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn renew(&mut self, name: &str, token: LeaseToken, epoch: u64) -> CallId {
        let renew =
            Renew { epoch, place: "/mnt/x".into(), lost: Vec::new(), report: VolumeReport::default() };
        self.send(Call::Renew { name: name.into(), token, renew })
    }

    pub(crate) fn detach(&mut self, name: &str, token: LeaseToken) -> Result<Answer, Refusal> {
        self.ask(Call::Detach { name: name.into(), token })
    }

    /// Extents that the donors' duties give to a volume, over all donors.
    pub(crate) fn extents_of(&self, name: &str) -> usize {
        let duties = self.donors.values().flat_map(|duties| &duties.volumes);
        duties.filter(|duty| duty.name == name).map(|duty| duty.extents.len()).sum()
    }

    pub(crate) fn tokens_of(&self, id: u64) -> BTreeSet<LeaseToken> {
        let duties = &self.donors[&DonorId(id)].volumes;
        duties.iter().flat_map(|duty| duty.readers.iter().copied().chain(duty.writer)).collect()
    }
}

pub(crate) fn joining(id: u64, extents: u32) -> Join {
    Join {
        version: API_VERSION,
        donor: DonorId(id),
        pool: None,
        name: format!("d{id}"),
        host: format!("h{id}"),
        address: format!("10.0.0.{id}:1000"),
        extents,
        foreign_export: None,
    }
}

pub(crate) fn creating(name: &str, size: Size, redundancy: Option<&str>) -> Create {
    let redundancy = redundancy.map(|text| text.parse().expect("a redundancy"));
    Create { name: name.into(), size, redundancy, unit: UNIT_DEFAULT_BYTES, follow: false }
}

pub(crate) fn attaching(name: &str, read_only: bool) -> Call {
    let attach = Attach { version: API_VERSION, read_only, holder: "eve@lab pid 7".into() };
    Call::Attach { name: name.into(), attach }
}

pub(crate) fn volume(answer: Answer) -> VolumeDetail {
    match answer {
        Answer::Volume(detail) => detail,
        other => panic!("{other:?}"),
    }
}

/// The call was refused with this code, and the message says all of these.
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    answer: Result<T, Refusal>,
    code: RefusalCode,
    says: &[&str],
) {
    let refusal = answer.expect_err("refused");
    assert_eq!(refusal.code, code, "{refusal:?}");
    for part in says {
        assert!(refusal.message.contains(part), "'{}' says '{part}'", refusal.message);
    }
}
