//! The coordinator of a walk, the donors of its pool, and the calls between them, which are carried at once:
//! only a donor that stands still hears late.
//!
//! Owns: what is stored, and the restart of the coordinator: a step that stores anything may be its last, of
//! which nothing is stored, or nothing is said. Never: what a donor does with a request (`donor`), or a
//! writer (`life`).

use super::Choices;
use super::digest::{BEGIN, CALLS, Digest, Seen};
use super::donor::{Donor, Fate};
use crate::bugs::Bug;
use crate::plan::Layout;
use cheetah_core::api::{
    API_VERSION, Answer, Attached, Call, Create, Join, Refusal, RefusalCode, Renewed, Size, Sync,
};
use cheetah_core::coordinator::{CallId, Coordinator, Effect, Event, Found, Key, Record};
use cheetah_core::donor::{self, ConnId, OpenError};
use cheetah_core::limits::{BLOCK_BYTES, LEASE_NS, SECOND_NS};
use cheetah_core::map::{DonorId, DonorSecret, LeaseToken, PoolId, Redundancy};
use cheetah_core::members;
use cheetah_core::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// What the volume is called.
pub(super) const NAME: &str = "v";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Donor(usize),
    Admin,
    Attach,
    Renew,
    Amend,
    Detach,
}

/// What the writer hears.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// None: the coordinator did not answer.
    Attached(Option<Result<Box<Attached>, Refusal>>),
    Renewed(Option<Result<Renewed, Refusal>>),
    Amended(Option<Result<Renewed, Refusal>>),
    Detached(bool),
    Admitted(usize, ConnId),
    NotAdmitted(usize, ConnId, OpenError),
    Ended(usize, ConnId),
}

#[derive(Clone, Debug)]
enum Next {
    Call(Caller, Call),
    Answered(Caller, Option<Result<Answer, Refusal>>),
    Coordinator(Event),
}

#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) now: Time,
    coordinator: Seen<Coordinator>,
    store: Seen<BTreeMap<Key, Record>>,
    wakes: Option<Time>,
    /// Calls that were not answered.
    open: Vec<(CallId, Caller)>,
    calls: u64,
    draws: u64,
    pub(super) conns: u64,
    pub(super) donors: Vec<Donor>,
    next: VecDeque<Next>,
    /// The coordinator may yet start again, once.
    pub(super) restart_left: bool,
    /// When the lease ends that was asked for last.
    pub(super) lease_until: Time,
    pub(super) bug: Option<Bug>,
    /// Something else than time has changed.
    pub(super) has_changed: bool,
    pub(super) told: VecDeque<Told>,
}

impl Pool {
    /// Donors have joined, and the volume is made.
    pub(super) fn new(layout: Layout, bug: Option<Bug>) -> Result<Pool, String> {
        let Layout { data, parity, spares } = layout;
        let donors = (0..u64::from(data + parity + spares)).map(|at| Donor::new(DonorId(at), BEGIN));
        let mut pool = Pool {
            now: BEGIN,
            coordinator: Seen::new(Coordinator::new(PoolId(77)), BEGIN),
            store: Seen::new(BTreeMap::new(), BEGIN),
            wakes: None,
            open: Vec::new(),
            calls: 0,
            draws: 0,
            conns: 0,
            donors: donors.collect(),
            next: VecDeque::from([Next::Coordinator(Event::Wake)]),
            restart_left: false,
            lease_until: BEGIN,
            bug,
            has_changed: true,
            told: VecDeque::new(),
        };
        let mut choices = Choices::default();
        for at in 0..pool.donors.len() {
            pool.tell_donor(at, donor::Event::Started)?;
            pool.work(&mut choices)?;
        }
        let unit = Some(u32::try_from(BLOCK_BYTES).expect("4 KiB"));
        let size = Size::Bytes(u64::from(data) * BLOCK_BYTES);
        let redundancy = Some(Redundancy { data, parity });
        pool.call(Caller::Admin, Call::Create(Create { redundancy, unit, ..Create::new(NAME, size) }));
        pool.work(&mut choices)?;
        pool.restart_left = true;
        Ok(pool)
    }

    /// Left out: `calls`, `draws` and `conns`, which only give names; `lease_until`, which follows from the
    /// coordinator's state; and what is empty between steps. The bug is the same in a whole walk.
    pub(super) fn add_to(&self, digest: &mut Digest) {
        self.coordinator.add_to(digest);
        self.store.add_to(digest);
        digest.add_time(self.wakes);
        self.open.iter().for_each(|(_, caller)| digest.print(caller));
        self.donors.iter().for_each(|donor| donor.add_to(digest));
        digest.add(self.restart_left.into());
    }

    pub(super) fn call(&mut self, caller: Caller, call: Call) {
        self.next.push_back(Next::Call(caller, call));
    }

    /// All that follows at once.
    pub(super) fn work(&mut self, choices: &mut Choices) -> Result<(), String> {
        while let Some(next) = self.next.pop_front() {
            match next {
                Next::Coordinator(event) => self.step_coordinator(event, choices)?,
                Next::Call(caller, request) => {
                    self.calls += 1;
                    let call = CallId(CALLS + self.calls);
                    if matches!(request, Call::Attach { .. } | Call::Create(_)) {
                        self.draws += 1;
                    }
                    if matches!(request, Call::Attach { .. } | Call::Renew { .. }) {
                        self.lease_until = self.now + LEASE_NS;
                    }
                    self.open.push((call, caller));
                    let (pool, entropy, caller) = (None, self.draws, members::Caller::Anyone);
                    self.step_coordinator(Event::Call { call, entropy, pool, caller, request }, choices)?;
                }
                Next::Answered(Caller::Donor(at), outcome) => self.donor_is_answered(at, outcome)?,
                Next::Answered(caller, outcome) => self.answered(caller, outcome)?,
            }
        }
        Ok(())
    }

    fn step_coordinator(&mut self, event: Event, choices: &mut Choices) -> Result<(), String> {
        let (mut effects, now) = (Vec::new(), self.now);
        self.coordinator.at(now).step(now, event, &mut effects);
        let stores = effects.iter().any(|effect| matches!(effect, Effect::Store(_) | Effect::Forget(_)));
        // It may end before it has stored that, or before it has said anything.
        let end = choices.choose(if stores && self.restart_left { 3 } else { 1 });
        self.wakes = None;
        for effect in effects {
            match effect {
                Effect::Store(_) | Effect::Forget(_) if end == 1 => {}
                Effect::Store(record) => {
                    self.store.at(now).insert(record.key(), record);
                }
                Effect::Forget(key) => {
                    self.store.at(now).remove(&key);
                }
                Effect::Reply { call, answer } => {
                    let is_said = end == 0 || (end == 1 && self.bug == Some(Bug::AnswerBeforeStore));
                    if let Some(at) = self.open.iter().position(|(open, _)| *open == call && is_said) {
                        let (_, caller) = self.open.remove(at);
                        self.next.push_back(Next::Answered(caller, Some(answer)));
                    }
                }
                _ if end > 0 => {}
                Effect::Greet { call, .. } => {
                    self.next.push_back(Next::Coordinator(Event::Greeted { call, result: Ok(()) }));
                }
                Effect::Reach { donor, address } => self.reach(donor, address),
                Effect::WakeAt(at) => self.wakes = Some(at),
                Effect::Note(_) => {}
            }
        }
        if end > 0 {
            self.restart_left = false;
            self.has_changed = true;
            self.restart()?;
        }
        Ok(())
    }

    /// It starts again with what it stored. Nobody who waits for an answer gets one.
    fn restart(&mut self) -> Result<(), String> {
        let records: Vec<Record> = self.store.get().values().cloned().collect();
        let restored = Coordinator::restore(records, self.now).map_err(|bad| bad.to_string())?;
        self.coordinator = Seen::new(restored, self.now);
        self.lease_until = self.now + LEASE_NS;
        self.next.retain(|next| !matches!(next, Next::Coordinator(_)));
        self.next.push_front(Next::Coordinator(Event::Wake));
        let open = std::mem::take(&mut self.open);
        self.next.extend(open.into_iter().map(|(_, caller)| Next::Answered(caller, None)));
        Ok(())
    }

    fn reach(&mut self, donor: DonorId, address: String) {
        let is_gone = self.donors[donor.0 as usize].fate == Fate::Gone;
        let found = if is_gone { Found::Nothing } else { Found::Listener };
        self.next.push_back(Next::Coordinator(Event::Reached { donor, address, found }));
    }

    pub(super) fn donor_joins(&mut self, at: usize, pool: Option<PoolId>, revision: u64) {
        let id = DonorId(at as u64);
        let join = Join {
            version: API_VERSION,
            donor: id,
            secret: DonorSecret(!id.0),
            pool,
            revision,
            name: format!("d{at}"),
            host: format!("h{at}"),
            or_numbered: false,
            machine: String::new(),
            address: format!("127.0.0.1:{}", at + 1),
            extents: 1,
            foreign_export: None,
            medium: cheetah_core::map::Medium::Memory,
            keeps_auths: false,
            lineage: None,
        };
        self.call(Caller::Donor(at), Call::Join(join));
    }

    pub(super) fn donor_syncs(&mut self, at: usize, effect: &donor::Effect) {
        let donor::Effect::Sync { donor, revision, leaving, goodbye, offered, incarnation, .. } = *effect
        else {
            return;
        };
        let sync = Sync {
            secret: DonorSecret(!donor.0),
            revision,
            bytes_used: 0,
            connections: 0,
            leaving,
            goodbye,
            extents_offered: offered,
            incarnation,
        };
        self.call(Caller::Donor(at), Call::Sync { donor, sync });
    }

    fn donor_is_answered(
        &mut self,
        at: usize,
        outcome: Option<Result<Answer, Refusal>>,
    ) -> Result<(), String> {
        let event = match outcome {
            Some(Ok(Answer::Joined(joined))) => donor::Event::Joined { pool: joined.pool },
            Some(Ok(Answer::Duties(duties))) => donor::Event::Duties(duties),
            Some(Err(refusal)) if refusal.code == RefusalCode::Gone => donor::Event::Forgotten,
            Some(other) => return Err(format!("donor {at} is told {other:?}")),
            None => donor::Event::Unreachable,
        };
        self.tell_donor(at, event)
    }

    fn answered(&mut self, caller: Caller, outcome: Option<Result<Answer, Refusal>>) -> Result<(), String> {
        let renewed = |outcome: Option<Result<Answer, Refusal>>| match outcome {
            Some(Ok(Answer::Renewed(renewed))) => Ok(Some(Ok(renewed))),
            Some(Ok(other)) => Err(format!("{caller:?} is answered with {other:?}")),
            Some(Err(refusal)) => Ok(Some(Err(refusal))),
            None => Ok(None),
        };
        let told = match (caller, outcome) {
            (Caller::Admin, Some(Ok(_))) => return Ok(()),
            (Caller::Attach, Some(Ok(Answer::Attached(attached)))) => {
                Told::Attached(Some(Ok(Box::new(attached))))
            }
            (Caller::Attach, Some(Err(refusal))) => Told::Attached(Some(Err(refusal))),
            (Caller::Attach, None) => Told::Attached(None),
            (Caller::Renew, outcome) => Told::Renewed(renewed(outcome)?),
            (Caller::Amend, outcome) => Told::Amended(renewed(outcome)?),
            (Caller::Detach, outcome) => Told::Detached(matches!(outcome, Some(Ok(_)))),
            (_, outcome) => return Err(format!("{caller:?} is answered with {outcome:?}")),
        };
        self.told.push_back(told);
        Ok(())
    }

    /// A donor's process is killed. Its host says so to whoever was connected.
    pub(super) fn ends(&mut self, at: usize) {
        let donor = &mut self.donors[at];
        donor.fate = Fate::Gone;
        donor.unheard.clear();
        for conn in std::mem::take(&mut donor.conns) {
            self.told.push_back(Told::Ended(at, conn.id));
        }
        if let Some(place) = self.open.iter().position(|(_, caller)| *caller == Caller::Donor(at)) {
            let (call, _) = self.open.remove(place);
            self.next.push_back(Next::Coordinator(Event::Hangup { call }));
        }
    }

    /// A writer is killed: nobody waits for the answers to its calls.
    pub(super) fn writer_ends(&mut self) {
        for (call, _) in self.open.extract_if(.., |(_, caller)| !matches!(caller, Caller::Donor(_))) {
            self.next.push_back(Next::Coordinator(Event::Hangup { call }));
        }
    }

    /// When somebody here does something by itself, if nothing else happens.
    pub(super) fn due(&self) -> impl Iterator<Item = Time> {
        let of_donor = |donor: &Donor| match donor.fate {
            Fate::StillUntil(until) => Some(until),
            Fate::There => donor.wakes,
            Fate::Gone => None,
        };
        self.donors.iter().filter_map(of_donor).chain(self.wakes)
    }

    /// It is this time now.
    pub(super) fn time_is(&mut self, now: Time) -> Result<(), String> {
        self.now = now;
        if self.wakes.is_some_and(|at| at <= now) {
            self.wakes = None;
            self.next.push_back(Next::Coordinator(Event::Wake));
        }
        for at in 0..self.donors.len() {
            let donor = &mut self.donors[at];
            match donor.fate {
                Fate::StillUntil(until) if until <= now => {
                    donor.fate = Fate::There;
                    donor.wakes = None;
                    donor.unheard.push_back(donor::Event::Wake);
                    self.has_changed = true;
                }
                Fate::There if donor.wakes.is_some_and(|at| at <= now) => {
                    donor.wakes = None;
                    self.tell_donor(at, donor::Event::Wake)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn check(&self) {
        self.coordinator.get().check_invariants();
        self.donors.iter().for_each(|donor| donor.machine.get().check_invariants());
    }

    /// Writers before this one are shut out by every donor but those that have not confirmed.
    pub(super) fn shut_out(&mut self, life: usize, unconfirmed: &[DonorId]) {
        for (at, donor) in (0..).zip(&mut self.donors) {
            if !unconfirmed.contains(&DonorId(at)) {
                donor.oldest = life;
            }
        }
    }

    /// Whether the lease is one of those that there are.
    pub(super) fn has_lease(&self, token: LeaseToken) -> bool {
        self.store.get().contains_key(&Key::Lease(token))
    }
}

/// The writer asks again after this.
pub(super) const RETRY_NS: Time = SECOND_NS;
