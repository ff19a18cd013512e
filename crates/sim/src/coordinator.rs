//! The coordinator's driver: its store, its clock, its crashes, and its attempts to reach donors.
//!
//! Owns: what is durable, and the check of every record that is stored: one writer for a volume, no lease
//! ended before its time, nothing lost by a restart. Never: decisions, or calls on their way (`calls`). Key
//! rule: a step's records are stored all or none, and before its answers are sent.

use crate::bugs::Bug;
use crate::calls::{Caller, OpenCall, Outcome};
use crate::clocks::Clock;
use crate::director::slot_of;
use crate::donor::DonorHost;
use crate::network::Node;
use crate::rng::Rng;
use crate::strangers::Stranger;
use crate::world::{Ev, World, say};
use cheetah_core::api::{Answer, Call, Renewed};
use cheetah_core::coordinator::{
    CallId, Coordinator, Effect, Event, Found, Key, LeaseRecord, NotGreeted, Record, VolumeRecord,
};
use cheetah_core::limits::{CONNECT_DEADLINE_NS, DONOR_SILENCE_NS, LEASE_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, LeaseToken, PoolId};
use cheetah_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(crate) struct CoordinatorHost {
    /// `None` while it is down.
    pub(crate) machine: Option<Coordinator>,
    pub(crate) store: BTreeMap<Key, Record>,
    pub(crate) calls: BTreeMap<u64, OpenCall>,
    pub(crate) next_call: u64,
    /// Calls that the machine has and has not answered.
    pub(crate) taken: BTreeSet<u64>,
    pub(crate) wake_at: Option<Time>,
    pub(crate) clock: Clock,
    /// The next step that stores anything is its last: nothing of it is stored or said.
    pub(crate) doomed: bool,
    /// Another pool's has its address now: the machine is that one's.
    pub(crate) stranger: Option<Stranger>,
    /// Its process is stopped: what it is told waits, and its time does not pass.
    pub(crate) stopped_until: Time,
    /// When a lease was last given or renewed; its clock's leaps that count as time are added.
    pub(crate) renewed: BTreeMap<LeaseToken, Time>,
    /// So much its clock leapt in all, without having slept by its own rule.
    pub(crate) hastened: u64,
    /// When a donor was last heard of, since the last start.
    pub(crate) heard: BTreeMap<DonorId, Time>,
    /// Leases that may end at any time: detached, or their call was given up.
    pub(crate) ending: BTreeSet<LeaseToken>,
}

impl CoordinatorHost {
    pub(crate) fn new(rng: &mut Rng) -> CoordinatorHost {
        CoordinatorHost {
            machine: Some(Coordinator::new(PoolId(rng.draw()))),
            store: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            taken: BTreeSet::new(),
            wake_at: None,
            clock: Clock::default(),
            doomed: false,
            stranger: None,
            stopped_until: 0,
            renewed: BTreeMap::new(),
            hastened: 0,
            heard: BTreeMap::new(),
            ending: BTreeSet::new(),
        }
    }
}

impl World {
    /// The coordinator's attempt to connect is there, or lost on its way.
    pub(crate) fn reaches(&mut self, donor: DonorId, address: String) {
        let slot = slot_of(&address);
        let (there, back) = ((Node::Coordinator, Node::Donor(slot)), (Node::Donor(slot), Node::Coordinator));
        let cut = [there, back].into_iter().any(|(from, to)| self.cut_until(from, to).is_some());
        let found = match self.listener(slot) {
            _ if cut => Found::Silence,
            Some(_) => Found::Listener,
            None if self.director.dark.contains(&slot) => Found::Silence,
            None => Found::Nothing,
        };
        if found == Found::Nothing {
            self.count("donors found to have ended");
        }
        let delay = if found == Found::Silence { CONNECT_DEADLINE_NS } else { self.delay() };
        self.after(delay, Ev::Reached(donor, address, found));
    }

    pub(crate) fn reached(&mut self, donor: DonorId, address: String, found: Found) {
        if self.waits_for_the_stopped(Ev::Reached(donor, address.clone(), found)).is_some() {
            self.step_coordinator(Event::Reached { donor, address, found });
        }
    }

    /// A greeting that is lost on its way is sent again, as TCP does; who listens answers for itself alone.
    pub(crate) fn greet_arrives(&mut self, id: u64, donor: DonorId, slot: usize) {
        if self.coordinator.machine.is_none() || !self.coordinator.taken.contains(&id) {
            return;
        }
        let ways = [(Node::Coordinator, Node::Donor(slot)), (Node::Donor(slot), Node::Coordinator)];
        let cut = ways.into_iter().filter_map(|(from, to)| self.cut_until(from, to)).max();
        let listener = self.listener(slot).map(|d| &self.donors[d]);
        let paused = listener.map(|donor| donor.paused_until).filter(|until| *until > self.now);
        if let Some(until) = cut.max(paused) {
            let again = self.rng.below(200 * MILLISECOND_NS);
            return self.at(until + again, Ev::Greets(id, donor, slot));
        }
        let answers = listener.is_some_and(|listener| listener.id == donor);
        let result =
            if answers { Ok(()) } else { Err(NotGreeted::Unanswered("nobody of that name".to_owned())) };
        self.step_coordinator(Event::Greeted { call: CallId(id), result });
    }

    /// Its process stands still for a while; its connections are taken by its kernel.
    pub(crate) fn stop_coordinator(&mut self, length: u64) {
        if self.coordinator.machine.is_none() || self.coordinator.stranger.is_some() {
            return;
        }
        self.count("fault: coordinator stood still");
        let until = self.now + length;
        say!(self, "the coordinator stands still for {} ms", length / MILLISECOND_NS);
        if self.bug == Some(Bug::SleepCounts) {
            (1..length / SECOND_NS).for_each(|second| self.after(second * SECOND_NS, Ev::SleepCounts));
        }
        self.coordinator.stopped_until = self.coordinator.stopped_until.max(until);
        self.verdict.coordinator_in_trouble(until);
    }

    /// A planted bug: it is told of its time while it is stopped, and of nothing else.
    pub(crate) fn sleep_counts(&mut self) {
        if self.coordinator.stopped_until > self.now {
            self.step_coordinator(Event::Wake);
        }
    }

    /// Its time has come, whatever it was.
    pub(crate) fn coordinator_ticks(&mut self) {
        self.step_coordinator(Event::Wake);
    }

    /// What comes while it is stopped is found when it goes on, in any order.
    pub(crate) fn waits_for_the_stopped(&mut self, event: Ev) -> Option<Ev> {
        let (until, counted) = (self.coordinator.stopped_until, self.counted());
        if until <= self.now || self.coordinator.machine.is_none() {
            return Some(event);
        }
        if let Ev::CallArrives(id) = &event
            && let Some(Call::Renew { token, .. }) =
                self.coordinator.calls.get(id).and_then(|open| open.request.as_ref())
            && let Some(renewed) = self.coordinator.renewed.get_mut(token)
        {
            // Its holder did what it could.
            *renewed = counted;
        }
        let after = self.rng.below(5 * MILLISECOND_NS);
        self.at(until + after, event);
        None
    }

    pub(crate) fn coordinator_wake(&mut self, at: Time) {
        if self.waits_for_the_stopped(Ev::CoordinatorWake(at)).is_none() {
            return;
        }
        if self.coordinator.wake_at == Some(at) && self.coordinator.clock.read(self.now) < at {
            let shows = self.coordinator.clock.shows(at);
            return self.at(shows, Ev::CoordinatorWake(at));
        }
        if self.coordinator.wake_at == Some(at) {
            self.coordinator.wake_at = None;
            self.step_coordinator(Event::Wake);
        }
    }

    pub(crate) fn step_coordinator(&mut self, event: Event) {
        let time = self.coordinator.clock.read(self.now);
        let Some(machine) = &mut self.coordinator.machine else { return };
        let mut effects = Vec::new();
        machine.step(time, event, &mut effects);
        machine.check_invariants();
        let stores = effects.iter().any(|effect| matches!(effect, Effect::Store(_) | Effect::Forget(_)));
        if stores && self.coordinator.doomed {
            self.count("fault: coordinator lost a step");
            say!(self, "the coordinator dies before it stores {effects:?}");
            if self.bug == Some(Bug::AnswerBeforeStore) {
                let replies = effects.into_iter().filter(|effect| matches!(effect, Effect::Reply { .. }));
                replies.for_each(|effect| self.coordinator_effect(effect));
            }
            return self.crash_coordinator();
        }
        effects.into_iter().for_each(|effect| self.coordinator_effect(effect));
        if stores && self.coordinator.stranger.is_none() {
            self.check_records();
        }
    }

    fn coordinator_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Store(record) if self.coordinator.stranger.is_some() => {
                self.coordinator.stranger.as_mut().map(|other| other.store.insert(record.key(), record));
            }
            Effect::Forget(key) if self.coordinator.stranger.is_some() => {
                self.coordinator.stranger.as_mut().map(|other| other.store.remove(&key));
            }
            Effect::Store(Record::Content(_)) if self.bug == Some(Bug::LoadForgotten) => {}
            Effect::Store(record) => {
                say!(self, "stored: {record:?}");
                if let Record::Volume(VolumeRecord { map, .. }) = &record {
                    self.loss_is_right(map);
                }
                if self.bug == Some(Bug::DiskBelieved) {
                    self.note_lost_on_disk(&record);
                }
                if let Record::Content(record) = &record {
                    self.content_is_right(record);
                }
                if let Record::Lease(LeaseRecord { token, .. }) = &record {
                    let now = self.counted();
                    self.coordinator.renewed.entry(*token).or_insert(now);
                }
                self.coordinator.store.insert(record.key(), record);
            }
            Effect::Forget(key) => {
                say!(self, "forgot: {key}");
                self.coordinator.store.remove(&key);
                if let Key::Lease(token) = key {
                    self.lease_ends(token);
                }
            }
            Effect::Reply { call, answer } => {
                self.coordinator.taken.remove(&call.0);
                let delay = self.delay();
                self.check_confirmed(call.0, &answer);
                self.check_attached(call.0, &answer);
                if let Some(open) = self.coordinator.calls.get_mut(&call.0).filter(|open| !open.abandoned) {
                    open.outcome = Some(answer);
                    open.by_stranger = self.coordinator.stranger.is_some();
                    self.after(delay, Ev::CallAnswered(call.0));
                }
            }
            Effect::Note(note) => {
                say!(self, "noted: {}", note.text);
            }
            Effect::Reach { donor, address } => {
                let delay = self.delay();
                self.after(delay, Ev::Reaches(donor, address));
            }
            Effect::Greet { call, donor, address, .. } => {
                let delay = self.delay() + self.delay();
                self.after(delay, Ev::Greets(call.0, donor, slot_of(&address)));
            }
            Effect::WakeAt(at) => {
                if self.coordinator.wake_at != Some(at) {
                    self.coordinator.wake_at = Some(at);
                    let shows = self.coordinator.clock.shows(at);
                    self.at(shows, Ev::CoordinatorWake(at));
                }
            }
        }
    }

    /// What a client is told of, each live donor knows already.
    fn check_confirmed(&mut self, call: u64, answer: &Outcome) {
        if self.coordinator.stranger.is_some() {
            return;
        }
        let caller = self.coordinator.calls.get(&call).map(|open| open.caller);
        let (map, token, unconfirmed) = match (answer, caller) {
            (Ok(Answer::Attached(attached)), _) => {
                (&attached.map, Some(attached.token), Some(&attached.unconfirmed))
            }
            (Ok(Answer::Renewed(Renewed { map: Some(map), .. })), Some(Caller::Renew(c))) => {
                (map, self.clients[c].token, None)
            }
            _ => return,
        };
        let Some(token) = token else { return };
        let silent = |donor: &DonorId| {
            let record = self.coordinator.store.get(&Key::Donor(*donor));
            if !matches!(record, Some(Record::Donor(record)) if !record.departed) {
                return true;
            }
            let heard = self.coordinator.heard.get(donor);
            unconfirmed.map_or_else(
                || heard.is_none_or(|heard| heard + DONOR_SILENCE_NS <= self.now),
                |unconfirmed| unconfirmed.contains(donor),
            )
        };
        let there = |donor: &&DonorHost| donor.alive && !donor.leaving && !donor.returned;
        let mut live = self.donors.iter().filter(there).filter(|donor| map.routes.contains_key(&donor.id));
        if let Some(donor) = live.find(|donor| !silent(&donor.id) && !donor.grants(map, token)) {
            let what =
                format!("lease {token} is sent to live donor {}, which does not know all of it", donor.id);
            self.fail(what);
        }
    }

    fn check_attached(&mut self, call: u64, answer: &Outcome) {
        let caller = self.coordinator.calls.get(&call).map(|open| open.caller);
        if let Some(Caller::Attach(c)) = caller.filter(|_| self.coordinator.stranger.is_none()) {
            self.attach_is_right(c, answer);
        }
    }

    /// The time by which the coordinator may end leases.
    pub(crate) fn counted(&self) -> Time {
        self.now + self.coordinator.hastened
    }

    fn lease_ends(&mut self, token: LeaseToken) {
        self.verdict.lease_ended.insert(token);
        let renewed = self.coordinator.renewed.get(&token).copied().unwrap_or(0);
        if self.coordinator.ending.contains(&token) {
            return;
        }
        let cut_short = (0..self.clients.len()).find(|c| self.clients[*c].token == Some(token));
        let known = cut_short.is_some();
        if known && self.counted() < renewed + LEASE_NS {
            self.fail(format!("lease {token} was ended though it was renewed at {renewed} ns"));
        }
        if let Some(c) = cut_short.filter(|c| !self.clients[*c].read_only) {
            self.verdict.torn.extend(self.clients[c].volume);
            self.note_torn_end(c);
        }
    }

    fn check_records(&mut self) {
        let mut writers = BTreeMap::new();
        for record in self.coordinator.store.values() {
            if let Record::Lease(LeaseRecord { token, volume, read_only: false, .. }) = record
                && let Some(other) = writers.insert(*volume, *token)
            {
                let what = format!("volume {volume} has two writers, {other} and {token}");
                return self.fail(what);
            }
        }
    }

    /// Its process is gone; calls that it had taken hear of it.
    pub(crate) fn coordinator_ends(&mut self) {
        self.coordinator.machine = None;
        (self.coordinator.doomed, self.coordinator.wake_at) = (false, None);
        self.coordinator.stopped_until = 0;
        self.coordinator.heard.clear();
        for id in std::mem::take(&mut self.coordinator.taken) {
            let delay = self.delay();
            self.after(delay, Ev::CallAnswered(id));
        }
    }

    pub(crate) fn crash_coordinator(&mut self) {
        if self.coordinator.machine.is_none() || self.coordinator.stranger.is_some() {
            return;
        }
        self.count("fault: coordinator restarted");
        self.coordinator_ends();
        let down = if self.rng.percent(10) {
            self.count("fault: coordinator down for long");
            self.rng.range(12, 40) * 1000 * MILLISECOND_NS
        } else {
            self.rng.skewed(MILLISECOND_NS, 12_000 * MILLISECOND_NS)
        };
        self.verdict.coordinator_in_trouble(self.now + down);
        say!(self, "the coordinator is down for {} ms", down / MILLISECOND_NS);
        self.after(down, Ev::CoordinatorStart);
    }

    pub(crate) fn coordinator_start(&mut self) {
        if self.coordinator.machine.is_some() || self.coordinator.stranger.is_some() {
            return;
        }
        if self.bug == Some(Bug::LoseRecord) && !self.coordinator.store.is_empty() {
            let at = self.rng.index(self.coordinator.store.len());
            let key = self.coordinator.store.keys().nth(at).copied();
            key.map(|key| self.coordinator.store.remove(&key));
        }
        let records: Vec<Record> = self.coordinator.store.values().cloned().collect();
        say!(self, "the coordinator starts from {} records", records.len());
        let time = self.coordinator.clock.read(self.now);
        if records.is_empty() {
            let pool = PoolId(self.rng.draw());
            self.coordinator.machine = Some(Coordinator::new(pool));
        } else {
            match Coordinator::restore(records, time) {
                Ok(machine) => self.coordinator.machine = Some(machine),
                Err(bad) => return self.fail(format!("the coordinator cannot read its own records: {bad}")),
            }
        }
        let now = self.counted();
        self.coordinator.renewed.values_mut().for_each(|renewed| *renewed = now);
        self.step_coordinator(Event::Wake);
    }
}
