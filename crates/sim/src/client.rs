//! The driver of one attachment: what `rim::volume` and the daemon around it do.
//!
//! Owns: opening connections one after the other, the lease and its renewal, and how an attachment ends
//! (detached, crashed, or taken over and not yet aware of it). Never: decisions, what goes over a connection
//! (`parts`), or a judgement (`workload`). Key rule: after `Close` nothing that arrives on the link's old
//! connections is looked at.

use crate::bytes::Sums;
use crate::clocks::Clock;
use crate::contents::Word;
use crate::coordinator::{Caller, Outcome};
use crate::load::Load;
use crate::memory::ClientMemory;
use crate::network::{Awaited, Node, ToClient, ToDonor};
use crate::oracle::{Order, Version};
use crate::plan::Bug;
use crate::wire::ClientEnd;
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::api::{Amend, Answer, Attach, Call, RefusalCode, Renew};
use cheetah_core::donor::export_name;
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, LeaseToken, PoolId, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{self, Caching, Effect, Event, LinkFailure, Mem, Volume};
use cheetah_terms::client::{first_words, link_failure};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
/// A machine that is woken has no reason to be woken at the same time again, but once or twice.
const WAKES_AT_ONCE_MAX: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    App,
    Load,
    Renew,
    Close,
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Attaching,
    Attached,
    /// Takes no more requests, and finishes when none is on its way.
    Closing,
    /// Until its donors know that nothing is half written.
    Finishing,
    Ended,
}

#[derive(Debug, Default)]
struct LinkEnd {
    session: u64,
    conns: Vec<u64>,
    /// The connection that is being made.
    opening: Option<u64>,
    probe: Option<u64>,
    up: bool,
}

/// Reads of which each is so far behind the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadStream {
    pub(crate) next: u64,
    pub(crate) stride: i64,
    pub(crate) len: u64,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) request: volume::Request,
    pub(crate) submitted: Time,
    pub(crate) order: Order,
    /// Moved by as long as the process was stopped.
    pub(crate) deadline: Time,
    pub(crate) version: Option<Version>,
    pub(crate) reading: Option<u64>,
    /// Whether a slot of the volume had no holder when it was submitted.
    pub(crate) degraded: bool,
    /// Donors that had its groups, or were being given them, when it was submitted.
    pub(crate) asked: BTreeSet<DonorId>,
    /// Donors set aside when it was submitted, for a flush.
    pub(crate) down: BTreeSet<DonorId>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: String,
    /// What it asked for.
    pub(crate) wants: Attach,
    /// As it asked, and once it is attached as it got.
    pub(crate) read_only: bool,
    /// It fills the volume, and is no tool.
    pub(crate) load: Option<Load>,
    /// What it is telling the coordinator of its volume's content.
    pub(crate) telling: Option<Word>,
    /// A load of the volume had come to its end when it was let in.
    pub(crate) found_whole: bool,
    /// The coordinator knows that it wrote.
    pub(crate) said_written: bool,
    pub(crate) alive: bool,
    pub(crate) paused_until: Time,
    pub(crate) phase: Phase,
    pub(crate) token: Option<LeaseToken>,
    /// Whose lease that is.
    pub(crate) pool: Option<PoolId>,
    pub(crate) volume: Option<VolumeId>,
    pub(crate) machine: Option<Volume>,
    /// When its map became another one.
    pub(crate) map_since: Time,
    /// The coordinator said that the lease is gone.
    pub(crate) told_gone: bool,
    /// It has begun to serve.
    settled: bool,
    links: BTreeMap<DonorId, LinkEnd>,
    pub(crate) memory: ClientMemory,
    /// The connection that a part went over.
    pub(crate) sent: BTreeMap<u64, u64>,
    /// Connections on which something was queued.
    pub(crate) to_flush: BTreeSet<u64>,
    pub(crate) slots: BTreeMap<u64, Slot>,
    pub(crate) next_tag: u64,
    pub(crate) wake_at: Option<Time>,
    pub(crate) clock: Clock,
    /// When, and how often at that time.
    woken: (Time, u32),
    /// Where its last write in order ended.
    pub(crate) stream: u64,
    pub(crate) reading: ReadStream,
    /// Donors with acknowledged writes since the last flush.
    pub(crate) unflushed: BTreeSet<DonorId>,
    /// Writes that were answered lately: when, where and how long.
    pub(crate) wrote: VecDeque<(Time, u64, u64)>,
}

impl Client {
    /// The connections of a link that is up.
    pub(crate) fn conns_of(&self, donor: DonorId) -> Option<Vec<u64>> {
        self.links.get(&donor).filter(|link| link.up).map(|link| link.conns.clone())
    }

    /// Whether the link to the donor is up, as far as the driver knows.
    pub(crate) fn is_up(&self, donor: DonorId) -> bool {
        self.links.get(&donor).is_some_and(|link| link.up)
    }
}

impl World {
    /// As a tool does.
    pub(crate) fn attach(&mut self, name: &str, read_only: bool) {
        let attach = self.some_attach(read_only);
        self.attach_as(name, attach, None);
    }

    pub(crate) fn attach_as(&mut self, name: &str, attach: Attach, load: Option<Load>) {
        let c = self.clients.len();
        self.note_attached(name);
        let attach = Attach { holder: format!("client {c}"), ..attach };
        self.clients.push(Client {
            name: name.to_owned(),
            wants: attach.clone(),
            read_only: attach.read_only,
            load,
            telling: None,
            found_whole: false,
            said_written: false,
            alive: true,
            paused_until: 0,
            phase: Phase::Attaching,
            token: None,
            pool: None,
            volume: None,
            machine: None,
            told_gone: false,
            settled: false,
            links: BTreeMap::new(),
            memory: ClientMemory::new(Sums::default(), self.plan.caching.bytes),
            sent: BTreeMap::new(),
            to_flush: BTreeSet::new(),
            slots: BTreeMap::new(),
            next_tag: 0,
            map_since: 0,
            wake_at: None,
            clock: Clock::default(),
            woken: (0, 0),
            stream: 0,
            reading: ReadStream::default(),
            unflushed: BTreeSet::new(),
            wrote: VecDeque::new(),
        });
        self.call(Caller::Attach(c), Node::Client(c), Call::Attach { name: name.to_owned(), attach });
    }

    pub(crate) fn attach_answered(&mut self, c: usize, outcome: Option<Outcome>) {
        if !self.clients[c].alive {
            return;
        }
        if let Some(load) = &self.clients[c].load {
            let size = match &outcome {
                Some(Ok(Answer::Attached(attached))) => Some(attached.map.size),
                _ => None,
            };
            self.director.load_is_answered(&self.clients[c].name, load.from, size, outcome.is_some());
        }
        let attached = match outcome {
            Some(Ok(Answer::Attached(attached))) => attached,
            Some(Err(refusal)) => {
                if refusal.code == RefusalCode::Conflict {
                    self.count("second writers refused");
                }
                return self.end_client(c);
            }
            _ => return self.end_client(c),
        };
        let (token, volume) = (attached.token, attached.map.volume);
        self.clients[c].read_only = attached.read_only;
        self.clients[c].found_whole = self.clients[c].load.is_none() && self.contents.is_whole(volume);
        if !self.clients[c].read_only {
            self.take_over(c, volume, &attached.unconfirmed);
        }
        let client = &mut self.clients[c];
        (client.token, client.volume, client.phase) = (Some(token), Some(volume), Phase::Attached);
        client.pool = Some(attached.pool);
        // What a reader knows today another may write tomorrow.
        let fresh = attached.fresh && !client.read_only;
        client.memory.sums.grow(attached.map.groups.len(), fresh);
        let machine = Volume::new(attached.map, client.read_only, attached.fresh);
        let takes = self.plan.caching.takes && client.read_only;
        client.machine = Some(machine.with_cache(Caching { takes, ..self.plan.caching }));
        if !self.clients[c].read_only {
            self.look_at_wound(volume);
        }
        self.note_unaware(c);
        self.step_client(c, Event::Start);
        self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Renew)));
        if self.clients[c].load.is_some() {
            return self.load_attached(c, attached.content.load.map_or(0, |load| load.bytes_done));
        }
        let gap = self.rng.around(self.plan.request_gap_ns);
        self.after(gap, Ev::Client(c, ClientEv::Tick(Tick::App)));
    }

    /// Whoever wrote before is refused from now on by all donors that confirmed.
    fn take_over(&mut self, c: usize, volume: VolumeId, unconfirmed: &[DonorId]) {
        let order = self.order();
        let former = self.clients.iter().enumerate().filter(|(other, client)| {
            *other != c && client.volume == Some(volume) && !client.read_only && client.token.is_some()
        });
        let former: Vec<(LeaseToken, bool)> = former
            .filter_map(|(_, client)| Some((client.token?, client.phase != Phase::Ended && client.alive)))
            .collect();
        for (token, alive) in former {
            if alive && !self.verdict.superseded.contains_key(&token) {
                self.count("takeovers of a lease");
            }
            self.verdict
                .superseded
                .entry(token)
                .or_insert_with(|| (order, unconfirmed.iter().copied().collect()));
        }
    }

    fn renew(&mut self, c: usize) {
        self.nobody_is_blamed(c);
        let client = &self.clients[c];
        let (Some(token), Some(machine)) = (client.token, &client.machine) else { return };
        let lost = machine.lost().map(|(donor, why)| (donor, why.to_owned())).collect();
        let (epoch, report) = (machine.map().epoch, Box::new(machine.report()));
        let renew = Renew { epoch, place: format!("/mnt/{c}"), lost, report };
        let name = client.name.clone();
        self.call(Caller::Renew(c), Node::Client(c), Call::Renew { name, token, renew });
    }

    pub(crate) fn renew_answered(&mut self, c: usize, outcome: Option<Outcome>) {
        let client = &mut self.clients[c];
        if !client.alive || client.phase == Phase::Ended || client.told_gone {
            return;
        }
        match outcome {
            Some(Ok(Answer::Renewed(renewed))) => {
                if let Some(map) = renewed.map {
                    self.new_map(c, map);
                }
                self.told_of_silence(c, renewed.silent);
                self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Renew)));
            }
            Some(Err(refusal)) if refusal.code == RefusalCode::Gone => self.lease_is_gone(c),
            _ => self.after(SECOND_NS, Ev::Client(c, ClientEv::Tick(Tick::Renew))),
        }
    }

    fn lease_is_gone(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if std::mem::replace(&mut client.told_gone, true) {
            return;
        }
        let token = client.token;
        if !token.is_some_and(|token| self.verdict.lease_ended.contains(&token)) {
            return self.fail(format!("client {c} was told that its lease is gone; it never ended"));
        }
        self.step_client(c, Event::LeaseLost);
        // It goes on for a while, as one would that had not heard.
        let delay = self.rng.around(10 * SECOND_NS);
        self.after(delay, Ev::Client(c, ClientEv::Tick(Tick::Close)));
    }

    fn send_amend(&mut self, c: usize, mut amend: Amend) {
        self.count("amendments");
        if self.bug == Some(Bug::LossNotRecorded) && !amend.bad.is_empty() {
            self.after(0, Ev::Client(c, ClientEv::TakeForGranted(amend.clone())));
            amend.bad.clear();
            if amend.exclude.is_empty() && amend.filled.is_empty() && amend.rewritten.is_empty() {
                return;
            }
        }
        if self.bug == Some(Bug::AckBeforeQuorum) {
            self.after(0, Ev::Client(c, ClientEv::TakeForGranted(amend.clone())));
        }
        let client = &self.clients[c];
        let Some(token) = client.token else { return };
        let name = client.name.clone();
        self.call(Caller::Amend(c), Node::Client(c), Call::Amend { name, token, amend });
    }

    pub(crate) fn amend_answered(&mut self, c: usize, outcome: Option<Outcome>) {
        let client = &self.clients[c];
        if !client.alive || client.machine.is_none() {
            return;
        }
        match outcome {
            Some(Ok(Answer::Renewed(renewed))) => {
                let Some(mut map) = renewed.map else { return self.step_client(c, Event::Amended(None)) };
                if self.bug == Some(Bug::StaleBelieved) {
                    self.believe_the_stale(c, &mut map);
                }
                self.check_map(c, &map);
                self.step_client(c, Event::Amended(Some(map)));
                self.note_unaware(c);
            }
            Some(Err(refusal)) if refusal.code == RefusalCode::Gone => {
                self.lease_is_gone(c);
                self.step_client(c, Event::Amended(None));
            }
            _ => self.step_client(c, Event::Amended(None)),
        }
    }

    /// A planted bug: the map as it will be, before anybody has recorded it.
    fn take_for_granted(&mut self, c: usize, amend: &Amend) {
        let Some(machine) = &self.clients[c].machine else { return };
        let mut map = machine.map().clone();
        map.epoch += 1;
        let excluded = |donor: DonorId| amend.exclude.iter().any(|(other, _)| *other == donor);
        for slot in map.groups.iter_mut().flat_map(|group| &mut group.slots) {
            slot.held = slot.held.filter(|held| !excluded(held.donor));
            slot.filling = slot.filling.filter(|to| !excluded(to.donor));
        }
        map.bad.extend(amend.bad.iter().filter(|bad| !machine.map().bad.contains(bad)));
        map.bad.sort_unstable();
        self.step_client(c, Event::Amended(Some(map)));
    }

    /// A planted bug: who was excluded holds again what it held.
    fn believe_the_stale(&self, c: usize, map: &mut VolumeMap) {
        let Some(before) = self.clients[c].machine.as_ref().map(Volume::map) else { return };
        for (old, new) in before.groups.iter().zip(&mut map.groups) {
            for (old, new) in old.slots.iter().zip(&mut new.slots) {
                let Some(held) = old.held.filter(|_| new.held.is_none()) else { continue };
                new.held = Some(held);
                map.routes.extend(before.routes.get(&held.donor).map(|route| (held.donor, route.clone())));
            }
        }
    }

    /// Growth brings groups that nobody can have written before this writer.
    fn check_map(&mut self, c: usize, map: &VolumeMap) {
        if let Err(what) = map.check() {
            return self.fail(format!("client {c} got a bad map: {what}"));
        }
        let client = &mut self.clients[c];
        let fresh = !client.read_only;
        client.memory.sums.grow(map.groups.len(), fresh);
    }

    fn new_map(&mut self, c: usize, map: VolumeMap) {
        self.check_map(c, &map);
        let Some(machine) = &self.clients[c].machine else { return };
        let (before, epoch) = (machine.map().size, machine.map().epoch);
        // An answer that another overtook.
        let late = map.epoch < epoch;
        let after = if late { before } else { map.size };
        if after < before {
            return self.fail(format!("the volume of client {c} shrank from {before} to {after}"));
        }
        if after > before {
            self.count("volumes grown while attached");
        }
        if !late {
            self.clients[c].map_since = self.now;
        }
        self.step_client(c, Event::Map(map));
        self.note_unaware(c);
        let size = self.clients[c].machine.as_ref().map_or(0, |machine| machine.map().size);
        if size != after {
            self.fail(format!("client {c} was told of {after} bytes and stays at {size}"));
        }
    }

    pub(crate) fn client_event(&mut self, c: usize, event: ClientEv) {
        let client = &mut self.clients[c];
        if !client.alive || client.machine.is_none() {
            return;
        }
        if client.paused_until > self.now {
            let until = client.paused_until;
            return self.at(until, Ev::Client(c, event));
        }
        match event {
            ClientEv::Wake(at) => {
                let due = client.clock.read(self.now) >= at;
                if client.wake_at == Some(at) && !due {
                    let at_world = client.clock.shows(at);
                    return self.at(at_world, Ev::Client(c, ClientEv::Wake(at)));
                }
                if client.wake_at == Some(at) {
                    client.wake_at = None;
                    let (when, again) = client.woken;
                    client.woken = (self.now, if when == self.now { again + 1 } else { 0 });
                    if again > WAKES_AT_ONCE_MAX {
                        return self.fail(format!("client {c} asks to be woken at once, again and again"));
                    }
                    self.step_client(c, Event::Wake);
                }
            }
            ClientEv::Tick(Tick::App) => self.app_tick(c),
            ClientEv::Tick(Tick::Load) => self.load_tick(c),
            ClientEv::Tick(Tick::Renew) => self.renew(c),
            ClientEv::Tick(Tick::Close) => {
                if client.phase == Phase::Attached {
                    client.phase = Phase::Closing;
                }
                self.close_when_idle(c);
            }
            ClientEv::Tick(Tick::Finish) => self.step_client(c, Event::Finish),
            ClientEv::Refused(_) if self.bug == Some(Bug::RefusalUnheard) => {}
            ClientEv::Refused(conn) => {
                self.conn_failed(c, conn, LinkFailure::Refused("refused".into()));
            }
            ClientEv::TakeForGranted(amend) => self.take_for_granted(c, &amend),
            ClientEv::AckEarly(part) => {
                client.memory.end_part(part.to_u64());
                self.step_client(c, Event::Answered { part, answer: Ok(Vec::new()) });
            }
        }
    }

    pub(crate) fn step_client(&mut self, c: usize, event: Event) {
        let mut next = VecDeque::from([event]);
        while let Some(event) = next.pop_front() {
            let client = &mut self.clients[c];
            let time = client.clock.read(self.now);
            let Some(machine) = &mut client.machine else { return };
            let mut effects = Vec::new();
            machine.step(time, event, &mut effects);
            if self.stats.events.is_multiple_of(self.plan.steps_unchecked) {
                machine.check_invariants();
            }
            let settled = machine.is_settled();
            if settled && !std::mem::replace(&mut self.clients[c].settled, true) {
                self.note_settled(c);
            }
            for effect in effects {
                match self.compute(c, effect) {
                    Ok(None) => {}
                    Ok(Some(event)) => next.push_back(event),
                    Err(what) => return self.fail(format!("client {c}: {what}")),
                }
            }
        }
        self.flush_parts(c);
    }

    /// It serves: whatever its predecessors left half written is mended.
    fn note_settled(&mut self, c: usize) {
        let client = &self.clients[c];
        let Some(volume) = client.volume.filter(|_| !client.read_only) else { return };
        self.look_at_wound(volume);
        self.wounds.settled(volume);
        if self.verdict.torn.remove(&volume) {
            self.count("volumes mended after a writer died");
        }
    }

    /// What concerns the client's memory alone; the rest goes out. `Verified` follows in the same batch.
    fn compute(&mut self, c: usize, effect: Effect) -> Result<Option<Event>, String> {
        if matches!(effect, Effect::Copy { from, .. } if from.mem == Mem::Cache) {
            self.count("copies out of a client's cache");
        }
        let memory = &mut self.clients[c].memory;
        match effect {
            Effect::Combine(combine) => memory.combine(&combine)?,
            Effect::Copy { from, to, len } => memory.copy(from, to, len)?,
            Effect::Zero { at, len } => memory.zero(at, len)?,
            Effect::Learn { fragment, copies, mem, scatter } => {
                memory.learn(fragment, copies, mem, scatter)?
            }
            Effect::Forget { fragment, len } => {
                memory.forget(fragment, len);
                self.undo_rot(c, fragment, len);
            }
            Effect::Verify { strip, fragment, at, len } => {
                let right = memory.verify(fragment, at, len)? || self.bug == Some(Bug::ChecksumIgnored);
                if !right {
                    say!(self, "client {c}: {fragment:?} and {len} is not what was written");
                }
                return Ok(Some(Event::Verified { strip, right }));
            }
            Effect::Compare { strip, a, b, len } => {
                let right = memory.compare(a, b, len)?;
                return Ok(Some(Event::Verified { strip, right }));
            }
            other => self.client_effect(c, other)?,
        }
        Ok(None)
    }

    fn client_effect(&mut self, c: usize, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Open { donor, session } => {
                say!(self, "client {c} opens {donor} session {session}");
                let link = self.clients[c].links.entry(donor).or_default();
                link.session = session;
                self.open_one(c, donor);
            }
            Effect::Probe { donor, session } => {
                say!(self, "client {c} asks {donor} whether it is there");
                self.probe(c, donor, session);
            }
            Effect::Close { donor, session } => {
                say!(self, "client {c} closes {donor} session {session}");
                self.close_link(c, donor);
            }
            Effect::Send { donor, part, op, address, mem, scatter, fragment, mark } => {
                let awaited = Awaited { op, mem, scatter, fragment, mark };
                return self.send_part(c, donor, part, address, awaited);
            }
            Effect::Abandon { part, .. } => {
                let client = &mut self.clients[c];
                client.memory.abandon_part(part.to_u64())?;
                let conn = client.sent.remove(&part.to_u64());
                let conn = conn.and_then(|conn| self.network.conns.get_mut(&conn));
                if let Some(end) = conn.and_then(|conn| conn.client_end.as_mut()) {
                    end.transmission.abandon(part.to_u64());
                }
                self.count("reads given up");
            }
            Effect::Amend(amend) => {
                say!(self, "client {c} amends: {amend:?}");
                self.send_amend(c, amend);
            }
            Effect::Finished => self.finished(c),
            // A page cache that takes nothing.
            Effect::Offer { .. } => self.count("segments offered to a reader"),
            Effect::Complete { tag, result, status } => self.completed(c, tag, result, &status),
            Effect::WakeAt(at) => {
                let client = &mut self.clients[c];
                if client.wake_at.is_none_or(|before| at < before) {
                    client.wake_at = Some(at);
                    let shows = client.clock.shows(at);
                    self.at(shows, Ev::Client(c, ClientEv::Wake(at)));
                }
            }
            other => return Err(format!("{other:?} was not computed")),
        }
        Ok(())
    }

    fn open_one(&mut self, c: usize, donor: DonorId) {
        let session = self.clients[c].links[&donor].session;
        if let Some(conn) = self.connect_to(c, donor, session) {
            self.clients[c].links.entry(donor).or_default().opening = Some(conn);
        }
    }

    fn connect_to(&mut self, c: usize, donor: DonorId, session: u64) -> Option<u64> {
        let client = &self.clients[c];
        let (machine, token) = (client.machine.as_ref()?, client.token?);
        let slot = crate::director::slot_of(&machine.map().routes.get(&donor)?.address);
        let export = export_name(&client.name, token, session, donor);
        Some(self.connect(c, donor, session, slot, export))
    }

    /// A connection for nothing but to hear whether the donor is there.
    fn probe(&mut self, c: usize, donor: DonorId, session: u64) {
        self.count("donors asked whether they are there");
        let probe = self.connect_to(c, donor, session);
        let link = self.clients[c].links.entry(donor).or_default();
        if let Some(earlier) = std::mem::replace(&mut link.probe, probe) {
            self.close_by_client(earlier);
        }
    }

    fn close_link(&mut self, c: usize, donor: DonorId) {
        let Some(link) = self.clients[c].links.get_mut(&donor) else { return };
        link.up = false;
        let conns: Vec<u64> =
            link.conns.drain(..).chain(link.opening.take()).chain(link.probe.take()).collect();
        for id in conns {
            let client = &mut self.clients[c];
            let sent = std::mem::take(&mut client.sent);
            let (over_it, others) = sent.into_iter().partition(|(_, conn)| *conn == id);
            client.sent = others;
            let over_it: BTreeMap<u64, u64> = over_it;
            over_it.keys().for_each(|part| client.memory.end_part(*part));
            self.close_by_client(id);
        }
    }

    pub(crate) fn client_receives(&mut self, c: usize, id: u64, message: ToClient) {
        match message {
            ToClient::Welcome => self.conn_opened(c, id),
            ToClient::Refused(error) => {
                let Some(link) = self.network.conns.get(&id).map(|conn| conn.link) else { return };
                self.conn_failed(c, id, link_failure(&error, link));
            }
            ToClient::End => {
                self.conn_failed(c, id, LinkFailure::NotOpened("it closed the connection".into()));
            }
            ToClient::Bytes(bytes) => self.answers_arrive(c, id, &bytes),
        }
    }

    fn conn_opened(&mut self, c: usize, id: u64) {
        let Some(conn) = self.network.conns.get(&id) else { return };
        let (donor, session) = (conn.link, conn.session);
        // Its welcome said what it may do.
        let Some(grant) = conn.grant else { return };
        let wanted = self.plan.connections;
        if self.ends_probe(c, id) {
            self.close_by_client(id);
            self.step_client(c, Event::Reached { donor, session });
            if self.clients[c].links[&donor].session > session {
                self.count("links opened anew beside a connection that hung");
            }
            return;
        }
        let Some(link) = self.clients[c].links.get_mut(&donor).filter(|link| link.opening == Some(id)) else {
            return;
        };
        link.opening = None;
        link.conns.push(id);
        let made = link.conns.clone();
        let end = ClientEnd::new(&grant);
        let numbers_writes = end.numbers_writes();
        if let Some(conn) = self.network.conns.get_mut(&id) {
            conn.client_end = Some(end);
        }
        if numbers_writes {
            self.send_to_donor(id, ToDonor::Bytes(first_words().to_vec()));
        }
        if made.len() < wanted {
            return self.open_one(c, donor);
        }
        if let Some(link) = self.clients[c].links.get_mut(&donor) {
            link.up = true;
        }
        self.step_client(c, Event::Opened { donor, session });
        if made.iter().any(|conn| self.network.conns.get(conn).is_some_and(|conn| conn.client_ended)) {
            let failure = LinkFailure::Broken("it closed the connection".into());
            self.step_client(c, Event::Failed { donor, session, failure });
        }
    }

    /// Whether it was made for nothing but to hear whether the donor is there; now that is known.
    fn ends_probe(&mut self, c: usize, id: u64) -> bool {
        let Some(conn) = self.network.conns.get(&id) else { return false };
        let link = self.clients[c].links.get_mut(&conn.link);
        link.is_some_and(|link| link.probe.take_if(|probe| *probe == id).is_some())
    }

    /// A connection ended, or was never made; `failure` is what that means while its link is being opened.
    fn conn_failed(&mut self, c: usize, id: u64, failure: LinkFailure) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.client_open) else { return };
        conn.client_ended = true;
        let (donor, session) = (conn.link, conn.session);
        if self.ends_probe(c, id) {
            return self.close_by_client(id);
        }
        let Some(link) = self.clients[c].links.get_mut(&donor) else { return };
        let failure = if link.opening == Some(id) {
            let made: Vec<u64> = link.conns.drain(..).chain(link.opening.take()).collect();
            made.into_iter().for_each(|conn| self.close_by_client(conn));
            failure
        } else if link.up {
            LinkFailure::Broken(failure.into_why())
        } else {
            return; // Found when the link is up.
        };
        say!(self, "client {c}: link to {donor} session {session}: {failure:?}");
        self.step_client(c, Event::Failed { donor, session, failure });
    }

    pub(crate) fn close_when_idle(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.phase == Phase::Closing && client.slots.is_empty() {
            client.phase = Phase::Finishing;
            // Not from inside of a step.
            self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Finish)));
        }
    }

    /// Every donor knows what there is to know, or does not answer.
    fn finished(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.phase != Phase::Finishing {
            return self.fail(format!("client {c} finished before it was to"));
        }
        let donors: Vec<DonorId> = client.links.keys().copied().collect();
        donors.into_iter().for_each(|donor| self.close_link(c, donor));
        self.clients[c].phase = Phase::Ended;
        self.note_clean_end(c);
        self.last_word(c);
    }

    pub(crate) fn detach_answered(&mut self, c: usize, _outcome: Option<Outcome>) {
        // Not heard, or gone already: the lease ends by itself.
        self.end_client(c);
    }

    pub(crate) fn end_client(&mut self, c: usize) {
        let client = &self.clients[c];
        let in_order = client.phase == Phase::Ended || client.read_only;
        if !in_order || !client.volume.is_some_and(|volume| self.wounds.is_accounted(volume)) {
            self.note_torn_end(c);
        }
        let client = &mut self.clients[c];
        (client.alive, client.phase, client.machine) = (false, Phase::Ended, None);
    }
}
