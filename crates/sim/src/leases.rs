//! What a client and the coordinator say to each other: the lease and its renewal, newer maps, amendments.
//!
//! Never: decisions, or what is served under the lease (`client`). A lease that ended is not known to have
//! until the client hears of it: it goes on for a while, as one would.

use crate::bugs::Bug;
use crate::bytes::Sums;
use crate::calls::{Caller, Outcome};
use crate::client::{Client, Phase, ReadStream, Tick};
use crate::clocks::Clock;
use crate::load::Load;
use crate::memory::ClientMemory;
use crate::network::Node;
use crate::world::{ClientEv, Ev, World};
use cheetah_core::api::{Amend, Answer, Attach, Call, RefusalCode, Renew};
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, LeaseToken, VolumeId, VolumeMap};
use cheetah_core::volume::{Caching, Event, Scope, Volume};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

    pub(crate) fn renew(&mut self, c: usize) {
        self.nobody_is_blamed(c);
        let client = &self.clients[c];
        let (Some(token), Some(machine)) = (client.token, &client.machine) else { return };
        let lost = machine.lost().map(|(donor, why)| (donor, why.to_owned())).collect();
        let (epoch, report) = (machine.map().epoch, Box::new(machine.report()));
        let renew = Renew { epoch, place: format!("/mnt/{c}"), lost, report, guests: Vec::new() };
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
                if renewed.scrub {
                    self.count("writers told to compare all fragments");
                    self.step_client(c, Event::Scrub(Scope::All));
                }
                self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Renew)));
            }
            Some(Err(refusal)) if refusal.code == RefusalCode::Gone => self.lease_is_gone(c),
            _ => self.after(SECOND_NS, Ev::Client(c, ClientEv::Tick(Tick::Renew))),
        }
    }

    pub(crate) fn lease_is_gone(&mut self, c: usize) {
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

    pub(crate) fn send_amend(&mut self, c: usize, mut amend: Amend) {
        self.count("amendments");
        if !amend.bad.is_empty() {
            self.count("losses told");
        }
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
    pub(crate) fn take_for_granted(&mut self, c: usize, amend: &Amend) {
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
