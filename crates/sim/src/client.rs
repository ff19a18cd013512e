//! The driver of one attachment: what `rim::volume` and the daemon around it do.
//!
//! Owns: opening connections one after the other, handing parts to them, putting what a read brings where it
//! belongs, the lease and its renewal, and how an attachment ends (detached, crashed, or taken over and not yet
//! aware of it). Never: decisions, or a judgement (`workload`). Key rule: after `Close` nothing that arrives on
//! the link's old connections is looked at.

use crate::coordinator::{Caller, Outcome};
use crate::network::{Answer as PartAnswer, Node, Request, ToClient, ToDonor};
use crate::oracle::{Content, Order, Version};
use crate::plan::Bug;
use crate::runs::Runs;
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::api::{API_VERSION, Answer, Attach, Call, RefusalCode, Renew};
use cheetah_core::donor::export_name;
use cheetah_core::layout::Scatter;
use cheetah_core::limits::{MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, LeaseToken, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{self, Effect, Event, Key, LinkFailure, Op, Volume};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    App,
    Renew,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Attaching,
    Attached,
    /// Takes no more requests, and detaches when none is on its way.
    Closing,
    Ended,
}

#[derive(Debug, Default)]
struct LinkEnd {
    session: u64,
    conns: Vec<u64>,
    /// The connection that is being made.
    opening: Option<u64>,
    up: bool,
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
    pub(crate) data: Runs<Content>,
    /// Donors set aside when it was submitted, for a flush.
    pub(crate) down: BTreeSet<DonorId>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) alive: bool,
    pub(crate) paused_until: Time,
    pub(crate) phase: Phase,
    pub(crate) token: Option<LeaseToken>,
    pub(crate) volume: Option<VolumeId>,
    pub(crate) machine: Option<Volume>,
    /// The coordinator said that the lease is gone.
    pub(crate) told_gone: bool,
    links: BTreeMap<DonorId, LinkEnd>,
    pub(crate) slots: BTreeMap<u64, Slot>,
    pub(crate) next_tag: u64,
    wake_at: Option<Time>,
    /// Donors with acknowledged writes since the last flush.
    pub(crate) unflushed: BTreeSet<DonorId>,
}

impl Client {
    /// Whether the link to the donor is up, as far as the driver knows.
    pub(crate) fn is_up(&self, donor: DonorId) -> bool {
        self.links.get(&donor).is_some_and(|link| link.up)
    }
}

impl World {
    pub(crate) fn attach(&mut self, name: &str, read_only: bool) {
        let c = self.clients.len();
        self.clients.push(Client {
            name: name.to_owned(),
            read_only,
            alive: true,
            paused_until: 0,
            phase: Phase::Attaching,
            token: None,
            volume: None,
            machine: None,
            told_gone: false,
            links: BTreeMap::new(),
            slots: BTreeMap::new(),
            next_tag: 0,
            wake_at: None,
            unflushed: BTreeSet::new(),
        });
        let attach = Attach { version: API_VERSION, read_only, holder: format!("client {c}"), yields: false };
        self.call(Caller::Attach(c), Node::Client(c), Call::Attach { name: name.to_owned(), attach });
    }

    pub(crate) fn attach_answered(&mut self, c: usize, outcome: Option<Outcome>) {
        if !self.clients[c].alive {
            return;
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
        if !self.clients[c].read_only {
            self.take_over(c, volume, &attached.unconfirmed);
        }
        let client = &mut self.clients[c];
        (client.token, client.volume, client.phase) = (Some(token), Some(volume), Phase::Attached);
        client.machine = Some(Volume::new(attached.map, client.read_only));
        self.note_unaware(c);
        self.step_client(c, Event::Start);
        self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Renew)));
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
        let client = &self.clients[c];
        let (Some(token), Some(machine)) = (client.token, &client.machine) else { return };
        let lost = machine.lost().map(|(donor, why)| (donor, why.to_owned())).collect();
        let renew = Renew {
            epoch: machine.map().epoch,
            place: format!("/mnt/{c}"),
            lost,
            report: cheetah_core::api::VolumeReport::default(),
        };
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
                self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Renew)));
            }
            Some(Err(refusal)) if refusal.code == RefusalCode::Gone => {
                client.told_gone = true;
                let token = client.token;
                if !token.is_some_and(|token| self.verdict.lease_ended.contains(&token)) {
                    return self.fail(format!("client {c} was told that its lease is gone; it never ended"));
                }
                // It goes on for a while, as one would that had not heard.
                let delay = self.rng.around(10 * SECOND_NS);
                self.after(delay, Ev::Client(c, ClientEv::Tick(Tick::Close)));
            }
            _ => self.after(SECOND_NS, Ev::Client(c, ClientEv::Tick(Tick::Renew))),
        }
    }

    fn new_map(&mut self, c: usize, map: VolumeMap) {
        let Some(machine) = &self.clients[c].machine else { return };
        let (before, after) = (machine.map().size, map.size);
        if let Err(what) = map.check() {
            return self.fail(format!("client {c} got a bad map: {what}"));
        }
        if after < before {
            return self.fail(format!("the volume of client {c} shrank from {before} to {after}"));
        }
        if after > before {
            self.count("volumes grown while attached");
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
                if client.wake_at == Some(at) {
                    client.wake_at = None;
                    self.step_client(c, Event::Wake);
                }
            }
            ClientEv::Tick(Tick::App) => self.app_tick(c),
            ClientEv::Tick(Tick::Renew) => self.renew(c),
            ClientEv::Tick(Tick::Close) => {
                client.phase = Phase::Closing;
                self.close_when_idle(c);
            }
            ClientEv::Refused(conn) => self.conn_failed(c, conn, "refused"),
            ClientEv::AckEarly(part) => self.step_client(c, Event::Answered { part, answer: Ok(Vec::new()) }),
        }
    }

    pub(crate) fn step_client(&mut self, c: usize, event: Event) {
        let Some(machine) = &mut self.clients[c].machine else { return };
        let mut effects = Vec::new();
        machine.step(self.now, event, &mut effects);
        if self.stats.events.is_multiple_of(self.plan.steps_unchecked) {
            machine.check_invariants();
        }
        for effect in effects {
            self.client_effect(c, effect);
        }
    }

    fn client_effect(&mut self, c: usize, effect: Effect) {
        match effect {
            Effect::Open { donor, session } => {
                say!(self, "client {c} opens {donor} session {session}");
                let link = self.clients[c].links.entry(donor).or_default();
                link.session = session;
                self.open_one(c, donor);
            }
            Effect::Close { donor, session } => {
                say!(self, "client {c} closes {donor} session {session}");
                self.close_link(c, donor);
            }
            Effect::Send { donor, part, tag, op, address, scatter } => {
                self.send_part(c, donor, part, tag, op, address, scatter);
            }
            Effect::Complete { tag, result, status } => self.completed(c, tag, result, &status),
            Effect::WakeAt(at) => {
                let client = &mut self.clients[c];
                if client.wake_at.is_none_or(|before| at < before) {
                    client.wake_at = Some(at);
                    self.at(at, Ev::Client(c, ClientEv::Wake(at)));
                }
            }
        }
    }

    fn open_one(&mut self, c: usize, donor: DonorId) {
        let client = &self.clients[c];
        let (Some(machine), Some(token)) = (&client.machine, client.token) else { return };
        let session = client.links[&donor].session;
        let slot = crate::director::slot_of(&machine.map().routes[&donor].address);
        let export = export_name(&client.name, token, session, donor);
        let conn = self.connect(c, donor, session, slot, export);
        self.clients[c].links.entry(donor).or_default().opening = Some(conn);
    }

    fn close_link(&mut self, c: usize, donor: DonorId) {
        let Some(link) = self.clients[c].links.get_mut(&donor) else { return };
        link.up = false;
        let conns: Vec<u64> = link.conns.drain(..).chain(link.opening.take()).collect();
        conns.into_iter().for_each(|conn| self.close_by_client(conn));
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one effect")]
    fn send_part(
        &mut self,
        c: usize,
        donor: DonorId,
        part: Key,
        tag: u64,
        op: Op,
        address: u64,
        scatter: Scatter,
    ) {
        let Some(link) = self.clients[c].links.get(&donor).filter(|link| link.up) else {
            return self.fail(format!("client {c} was to send a part over a link that is not up"));
        };
        let Some(conn) = self.rng.pick(&link.conns) else { return };
        let version = self.clients[c].slots.get(&tag).and_then(|slot| slot.version).unwrap_or(0);
        let len = u64::from(scatter.len);
        let torn = op == Op::Write && self.rng.percent(25);
        let first = if torn { self.rng.below(len) } else { len };
        if let Some(conn) = self.network.conns.get_mut(&conn) {
            conn.awaited.insert(part.to_u64(), (tag, op, scatter));
        }
        let request = Request { part, op, address, len, scatter, version, first };
        self.send_to_donor(conn, ToDonor::Request(request));
        if torn {
            if self.rng.percent(20) {
                let by = self.rng.skewed(MILLISECOND_NS, 200 * MILLISECOND_NS);
                self.slow_down(conn, by);
            }
            self.send_to_donor(conn, ToDonor::Rest);
        }
        if self.bug == Some(Bug::AckEarly) && op.writes() {
            self.after(0, Ev::Client(c, ClientEv::AckEarly(part)));
        }
    }

    pub(crate) fn client_receives(&mut self, c: usize, id: u64, message: ToClient) {
        match message {
            ToClient::Welcome(true) => self.conn_opened(c, id),
            ToClient::Welcome(false) => self.conn_failed(c, id, "not admitted"),
            ToClient::End => self.conn_failed(c, id, "it closed the connection"),
            ToClient::Answer(part, answer) => self.part_answered(c, id, part, answer),
        }
    }

    fn conn_opened(&mut self, c: usize, id: u64) {
        let Some(conn) = self.network.conns.get(&id) else { return };
        let (donor, session) = (conn.link, conn.session);
        let wanted = self.plan.connections;
        let Some(link) = self.clients[c].links.get_mut(&donor).filter(|link| link.opening == Some(id)) else {
            return;
        };
        link.opening = None;
        link.conns.push(id);
        if link.conns.len() < wanted {
            return self.open_one(c, donor);
        }
        link.up = true;
        let conns = link.conns.clone();
        self.step_client(c, Event::Opened { donor, session });
        if conns.iter().any(|conn| self.network.conns.get(conn).is_some_and(|conn| conn.client_ended)) {
            let failure = LinkFailure::Broken("it closed the connection".into());
            self.step_client(c, Event::Failed { donor, session, failure });
        }
    }

    /// A connection ended, or was never made.
    fn conn_failed(&mut self, c: usize, id: u64, why: &str) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.client_open) else { return };
        conn.client_ended = true;
        let (donor, session) = (conn.link, conn.session);
        let Some(link) = self.clients[c].links.get_mut(&donor) else { return };
        let failure = if link.opening == Some(id) {
            let made: Vec<u64> = link.conns.drain(..).chain(link.opening.take()).collect();
            made.into_iter().for_each(|conn| self.close_by_client(conn));
            LinkFailure::NotOpened(why.to_owned())
        } else if link.up {
            LinkFailure::Broken(why.to_owned())
        } else {
            return; // Found when the link is up.
        };
        say!(self, "client {c}: link to {donor} session {session}: {failure:?}");
        self.step_client(c, Event::Failed { donor, session, failure });
    }

    fn part_answered(&mut self, c: usize, id: u64, part: Key, answer: PartAnswer) {
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let Some((tag, _, scatter)) = conn.awaited.remove(&part.to_u64()) else { return };
        let answer = match answer {
            PartAnswer::Done => Ok(Vec::new()),
            PartAnswer::Status(runs) => Ok(runs),
            PartAnswer::Error(error) => Err(error),
            PartAnswer::Data(data) => {
                if let Some(slot) = self.clients[c].slots.get_mut(&tag) {
                    data.iter().for_each(|run| place(&mut slot.data, scatter, *run));
                }
                Ok(Vec::new())
            }
        };
        self.step_client(c, Event::Answered { part, answer });
    }

    pub(crate) fn close_when_idle(&mut self, c: usize) {
        let client = &self.clients[c];
        if client.phase != Phase::Closing || !client.slots.is_empty() {
            return;
        }
        let donors: Vec<DonorId> = client.links.keys().copied().collect();
        donors.into_iter().for_each(|donor| self.close_link(c, donor));
        let client = &mut self.clients[c];
        client.phase = Phase::Ended;
        if let Some(token) = client.token {
            let name = client.name.clone();
            self.call(Caller::Detach(c), Node::Client(c), Call::Detach { name, token });
        }
    }

    pub(crate) fn detach_answered(&mut self, c: usize, _outcome: Option<Outcome>) {
        // Not heard, or gone already: the lease ends by itself.
        self.end_client(c);
    }

    fn end_client(&mut self, c: usize) {
        let client = &mut self.clients[c];
        (client.alive, client.phase, client.machine) = (false, Phase::Ended, None);
    }

    /// The process dies. With `host`, its machine: nobody tells the donors.
    pub(crate) fn crash_client(&mut self, c: usize, host: bool) {
        say!(self, "client {c} crashes{}", if host { " with its machine" } else { "" });
        for conn in self.conns_where(|conn| conn.client == c && conn.client_open) {
            if host {
                self.lose_conn(conn, false, false);
                self.network.conns.entry(conn).and_modify(|conn| conn.client_open = false);
            } else {
                self.close_by_client(conn);
            }
        }
        let order = self.order();
        for (_, slot) in std::mem::take(&mut self.clients[c].slots) {
            slot.version.into_iter().for_each(|version| self.oracle.end_write(order, version, false));
            slot.reading.into_iter().for_each(|read| self.oracle.forget_read(read));
        }
        self.end_client(c);
        self.abandon_calls(
            |caller| matches!(caller, Caller::Attach(o) | Caller::Renew(o) | Caller::Detach(o) if *o == c),
        );
    }
}

/// Brings a run of a part's answer to where it belongs in the payload.
fn place(data: &mut Runs<Content>, scatter: Scatter, (from, to, content): (u64, u64, Content)) {
    let mut at = from;
    while at < to {
        let (offset, piece) = scatter.locate(u32::try_from(at).expect("inside the part"));
        let len = u64::from(piece).min(to - at);
        let start = u64::from(offset);
        data.put(start, start + len, crate::runs::Slide::slide(&content, at - from));
        at += len;
    }
}
