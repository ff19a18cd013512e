//! The world of the coordinator's tests: a coordinator, donors that carry out their duties at once unless
//! told not to, and a clock that jumps. Invariants are checked after every step, and the store is replayed.

use cheetah_core::api::{
    API_VERSION, Amend, Answer, Attach, Attached, Call, Create, Duties, Filled, Join, PoolStatus, Refusal,
    RefusalCode, Renew, Renewed, Size, Sync, VolumeDetail,
};
use cheetah_core::coordinator::{CallId, Coordinator, Effect, Event, Found, Key, NotGreeted, Note, Record};
use cheetah_core::limits::{DONOR_SILENCE_NS, EXTENT_BYTES, HEARTBEAT_NS, SECOND_NS};
use cheetah_core::map::{
    DonorId, DonorSecret, Incarnation, LeaseToken, Medium, Placement, PoolId, VolumeId, VolumeMap,
};
use cheetah_core::members::Caller;
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
    /// What a donor's owner can spare, if not all; and which donors want to go.
    pub(crate) offers: BTreeMap<DonorId, u32>,
    pub(crate) leaving: BTreeSet<DonorId>,
    /// What each donor has memory of, as its duties said; not blank once it was given.
    pub(crate) memory: BTreeMap<DonorId, BTreeSet<(VolumeId, u32)>>,
    /// Which run of a disk's donor syncs.
    pub(crate) incarnations: BTreeMap<DonorId, Incarnation>,
    /// Donors that the coordinator asked whether anything listens at their address.
    pub(crate) reaches: Vec<(DonorId, String)>,
    /// What comes of greeting a donor, where it is not a welcome.
    pub(crate) greetings: BTreeMap<DonorId, Option<Result<(), NotGreeted>>>,
    /// Calls wait for donors that are silent and not lost yet.
    pub(crate) patient: bool,
    pub(crate) notes: Vec<Note>,
    /// Who makes the calls from now on, and who the donors are.
    pub(crate) caller: Caller,
    pub(crate) lender: Caller,
    /// What writers said was filled.
    reported: BTreeSet<(VolumeId, Placement)>,
    heard: BTreeMap<DonorId, Time>,
    maps: BTreeMap<VolumeId, VolumeMap>,
    calls: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let coordinator = Coordinator::new(PoolId(77));
        let mut world = World {
            now: SECOND_NS,
            coordinator,
            store: BTreeMap::new(),
            answers: BTreeMap::new(),
            donors: BTreeMap::new(),
            offers: BTreeMap::new(),
            leaving: BTreeSet::new(),
            memory: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            reaches: Vec::new(),
            greetings: BTreeMap::new(),
            patient: false,
            notes: Vec::new(),
            caller: Caller::Anyone,
            lender: Caller::Anyone,
            reported: BTreeSet::new(),
            heard: BTreeMap::new(),
            maps: BTreeMap::new(),
            calls: 0,
        };
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
        let (mut effects, mut greets) = (Vec::new(), Vec::new());
        self.coordinator.step(self.now, event, &mut effects);
        self.coordinator.check_invariants();
        let mut replied = false;
        for effect in effects {
            match effect {
                Effect::Store(record) => {
                    assert!(!replied, "what is stored comes before what is said");
                    if let Record::Volume(volume) = &record {
                        self.check_stored(&volume.map);
                    }
                    self.store.insert(record.key().to_string(), record);
                }
                Effect::Forget(key) => {
                    assert!(!replied);
                    self.maps.retain(|id, _| key != Key::Volume(*id));
                    self.store.remove(&key.to_string());
                }
                Effect::Reply { call, answer } => {
                    replied = true;
                    assert!(self.answers.insert(call, answer).is_none(), "one answer per call");
                }
                Effect::Greet { call, donor, .. } => greets.push((call, donor)),
                Effect::WakeAt(at) => assert!(at >= self.now),
                Effect::Reach { donor, address } => self.reaches.push((donor, address)),
                Effect::Note(note) => {
                    assert!(!replied, "what happened comes before what is said");
                    self.notes.push(note);
                }
            }
        }
        for (call, donor) in greets {
            if let Some(result) = self.answers_greetings(donor) {
                self.step(Event::Greeted { call, result });
            }
        }
    }

    /// What comes of it when a donor's address is tried; nothing for now, for who is waited for.
    fn answers_greetings(&self, donor: DonorId) -> Option<Result<(), NotGreeted>> {
        self.greetings.get(&donor).cloned().unwrap_or(Some(Ok(())))
    }

    /// Epochs only grow and name one map each; and what is newly being filled is blank.
    fn check_stored(&mut self, map: &VolumeMap) {
        let before = self.maps.insert(map.volume, map.clone());
        let Some(before) = before else { return };
        assert!(before.epoch <= map.epoch, "epochs only grow");
        assert!(before.epoch < map.epoch || before == *map, "an epoch is one map");
        for (group, was) in map.groups.iter().zip(&before.groups) {
            for (slot, was) in group.slots.iter().zip(&was.slots) {
                if let Some(held) = slot.held.filter(|_| slot.held != was.held) {
                    let said = self.reported.contains(&(map.volume, held));
                    // Where a source gives anew what its holder took with it, that begins with nothing.
                    let anew = map.is_filled_later() && is_blank(&self.memory, map, held);
                    assert!(
                        anew || (said && was.filling == slot.held),
                        "{held:?} is believed though nobody filled it"
                    );
                }
                let Some(filling) = slot.filling.filter(|_| slot.filling != was.filling) else { continue };
                let lives =
                    self.heard.get(&filling.donor).is_some_and(|at| self.now - at <= DONOR_SILENCE_NS);
                assert!(lives, "{filling:?} is given to one that lives");
                let memory = self.memory.get(&filling.donor);
                let dirty = memory.is_some_and(|memory| memory.contains(&(map.volume, filling.extent)));
                assert!(!dirty, "{filling:?} still has what it had of this volume");
                assert!(!self.leaving.contains(&filling.donor), "{filling:?} is given to one that leaves");
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
        self.send_to(None, request)
    }

    /// A call that is meant for this pool.
    pub(crate) fn send_to(&mut self, pool: Option<PoolId>, request: Call) -> CallId {
        self.calls += 1;
        let call = CallId(self.calls);
        let entropy = self.calls.wrapping_mul(0x1234_5678_9abc_def1);
        self.step(Event::Call { call, entropy, pool, caller: self.caller, request });
        call
    }

    pub(crate) fn answer(&mut self, call: CallId) -> Option<Result<Answer, Refusal>> {
        self.answers.remove(&call)
    }

    /// A call, with the donors carrying out what it needs.
    pub(crate) fn ask(&mut self, request: Call) -> Result<Answer, Refusal> {
        let call = self.send(request);
        self.settle();
        if self.patient && !self.answers.contains_key(&call) {
            self.pass(DONOR_SILENCE_NS);
        }
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
            secret: secret_of(donor),
            revision,
            bytes_used: 4096,
            connections: 0,
            goodbye: false,
            leaving: self.leaving.contains(&donor),
            extents_offered: self.offers.get(&donor).copied().unwrap_or(u32::MAX),
            incarnation: self.incarnations.get(&donor).copied(),
        };
        self.heard.insert(donor, self.now);
        let caller = std::mem::replace(&mut self.caller, self.lender);
        let call = self.send(Call::Sync { donor, sync });
        self.caller = caller;
        let answer = self.answer(call);
        if let Some(Ok(Answer::Duties(duties))) = &answer {
            let extents = |duty: &cheetah_core::api::Duty| {
                let volume = duty.volume;
                duty.extents.clone().into_iter().map(move |extent| (volume, extent))
            };
            self.memory.insert(donor, duties.volumes.iter().flat_map(extents).collect());
            self.donors.insert(donor, duties.clone());
        }
        answer
    }

    /// What the donor would hear at its next heartbeat.
    pub(crate) fn hear(&mut self, donor: u64) -> Duties {
        self.donors.get_mut(&DonorId(donor)).expect("joined").revision = 0;
        match self.sync(DonorId(donor)) {
            Some(Ok(Answer::Duties(duties))) => duties,
            other => panic!("at once: {other:?}"),
        }
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
        self.join_as(joining(id, extents))
    }

    pub(crate) fn join_as(&mut self, join: Join) -> Result<Answer, Refusal> {
        let id = join.donor;
        self.join_unheard(join).inspect(|_| self.hears(id.0))
    }

    /// The donor does not hear the answer, so it does not sync.
    pub(crate) fn join_unheard(&mut self, join: Join) -> Result<Answer, Refusal> {
        self.heard.insert(join.donor, self.now);
        self.ask(Call::Join(join))
    }

    /// The donor hears that it is in, and syncs from now on.
    pub(crate) fn hears(&mut self, id: u64) {
        self.donors.insert(DonorId(id), Duties::default());
        self.settle();
    }

    /// The donor's process is killed: its open sync ends, and nothing listens at its address.
    pub(crate) fn kill(&mut self, id: u64) {
        let call = self.poll(id);
        self.donors.remove(&DonorId(id));
        self.step(Event::Hangup { call });
        self.find(Found::Nothing);
    }

    /// The donor's sync, held back.
    pub(crate) fn poll(&mut self, id: u64) -> CallId {
        self.settle();
        assert_eq!(self.sync(DonorId(id)), None, "there is no news for it");
        CallId(self.calls)
    }

    /// The answer to all that the coordinator asked of addresses.
    pub(crate) fn find(&mut self, found: Found) {
        for (donor, address) in std::mem::take(&mut self.reaches) {
            self.step(Event::Reached { donor, address, found });
        }
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

    /// As `show`, before any donor has heard of anything.
    pub(crate) fn peek(&mut self, name: &str) -> VolumeDetail {
        let call = self.send(Call::Show { name: name.into() });
        volume(self.answer(call).expect("at once").expect("it is there"))
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
        let renew = Renew {
            epoch,
            place: "/mnt/x".into(),
            lost: Vec::new(),
            report: Box::default(),
            guests: Vec::new(),
        };
        self.send(Call::Renew { name: name.into(), token, renew })
    }

    /// The holder of the lease says that it cannot reach these donors.
    pub(crate) fn renew_without(&mut self, name: &str, lease: &Attached, lost: &[u64]) {
        let lost = lost.iter().map(|id| (DonorId(*id), "refused".to_owned())).collect();
        let (epoch, place, report) = (lease.map.epoch, String::new(), Box::default());
        let renew = Renew { epoch, place, lost, report, guests: Vec::new() };
        self.send(Call::Renew { name: name.into(), token: lease.token, renew });
    }

    /// What the writer is answered; at once, whatever its donors know.
    pub(crate) fn amend(
        &mut self,
        name: &str,
        token: LeaseToken,
        amend: Amend,
    ) -> Result<VolumeMap, Refusal> {
        let volume = self.maps.values().find(|map| map.name == name).map(|map| map.volume);
        let filled = amend.filled.iter().filter_map(|filled| Some((volume?, filled.placement)));
        self.reported = filled.collect();
        let call = self.send(Call::Amend { name: name.into(), token, amend });
        self.answer(call).expect("at once").map(|answer| match answer {
            Answer::Renewed(Renewed { map: Some(map), .. }) => {
                assert_eq!(map.check(), Ok(()));
                map
            }
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn exclude(&mut self, name: &str, token: LeaseToken, donors: &[u64]) -> VolumeMap {
        let exclude = donors.iter().map(|id| (DonorId(*id), "missed a write".to_owned())).collect();
        self.amend(name, token, Amend { exclude, ..Amend::default() }).expect("amended")
    }

    /// The writer has filled every slot that waits for it, and says so.
    pub(crate) fn fill(&mut self, name: &str, token: LeaseToken) -> VolumeMap {
        let map = self.show(name).map;
        let filled = filling(&map);
        let amend = Amend { epoch: map.epoch, filled, ..Amend::default() };
        let map = self.amend(name, token, amend).expect("amended");
        // From here on nobody reads where slots were.
        self.renew(name, token, map.epoch);
        map
    }

    pub(crate) fn leave(&mut self, donor: &str, force: bool) -> Result<Answer, Refusal> {
        self.ask(Call::Leave { donor: donor.into(), force })
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

/// Whether a donor has nothing of the volume there.
fn is_blank(
    memory: &BTreeMap<DonorId, BTreeSet<(VolumeId, u32)>>,
    map: &VolumeMap,
    place: Placement,
) -> bool {
    !memory.get(&place.donor).is_some_and(|memory| memory.contains(&(map.volume, place.extent)))
}

pub(crate) fn secret_of(donor: DonorId) -> DonorSecret {
    DonorSecret(donor.0 ^ 0x5ec2_e700)
}

pub(crate) fn joining(id: u64, extents: u32) -> Join {
    Join {
        version: API_VERSION,
        donor: DonorId(id),
        secret: secret_of(DonorId(id)),
        pool: None,
        revision: 0,
        name: format!("d{id}"),
        or_numbered: false,
        host: format!("h{id}"),
        machine: String::new(),
        address: format!("10.0.0.{id}:1000"),
        extents,
        foreign_export: None,
        medium: Medium::Memory,
        keeps_auths: false,
        lineage: None,
    }
}

/// Slots of the map that are being filled, as the writer reports them.
pub(crate) fn filling(map: &VolumeMap) -> Vec<Filled> {
    let slots =
        (0..).zip(&map.groups).flat_map(|(group, of)| (0..).zip(&of.slots).map(move |at| (group, at)));
    let filled = |(group, (slot, at)): (u32, (u32, &cheetah_core::map::Slot))| {
        Some(Filled { group, slot, placement: at.filling? })
    };
    slots.filter_map(filled).collect()
}

/// Slots that the donor holds.
pub(crate) fn held_by(map: &VolumeMap, donor: u64) -> usize {
    let held = map.groups.iter().flat_map(|group| &group.slots).filter_map(|slot| slot.held);
    held.filter(|held: &Placement| held.donor == DonorId(donor)).count()
}

pub(crate) fn creating(name: &str, size: Size, redundancy: Option<&str>) -> Create {
    let redundancy = redundancy.map(|text| text.parse().expect("a redundancy"));
    Create { redundancy, ..Create::new(name, size) }
}

pub(crate) fn attaching(name: &str, read_only: bool) -> Call {
    let attach = Attach::new(read_only, "eve@lab pid 7");
    Call::Attach { name: name.into(), attach }
}

pub(crate) fn volume(answer: Answer) -> VolumeDetail {
    match answer {
        Answer::Volume(detail) => *detail,
        other => panic!("{other:?}"),
    }
}

/// The call was refused with this code, and the message says all of these.
#[track_caller]
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

/// The call was refused because of how things stand, and the message says all of these.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Refusal>, says: &[&str]) {
    assert_refused(answer, RefusalCode::Conflict, says);
}
