//! The donor's driver: a memory, a listener, and the core's machine between them.
//!
//! Owns: what `rim::donor` does around its connections, in virtual time: bytes of one connection in order,
//! connections that end a while after they are dropped, wiping that takes time. Never: decisions, or requests
//! (`serving`).

use crate::bugs::Bug;
use crate::bytes::{Kept, Memory, sectors};
use crate::client::Client;
use crate::clocks::Clock;
use crate::network::{Stage, ToClient, ToDonor};
use crate::on_disk::OnDisk;
use crate::wire::{DonorEnd, as_heard};
use crate::world::{DonorEv, Ev, World, say};
use cheetah_core::api::Sync;
use cheetah_core::donor::{
    Access, ConnId, DirtyMap, Donor, Effect, Event, Exit, Grant, Ledger, Ticket, export_name,
};
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, DonorSecret, LeaseToken, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_terms::donor::refusal;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct DonorHost {
    pub(crate) machine: Donor,
    pub(crate) id: DonorId,
    pub(crate) slot: usize,
    pub(crate) name: String,
    pub(crate) extents: u32,
    pub(crate) memory: Memory,
    /// What the memory is a cache of, if it is one of a disk.
    pub(crate) disk: Option<Box<OnDisk>>,
    /// It has come back with what it held, and has not heard yet who may have it.
    pub(crate) returned: bool,
    /// What was written lately.
    pub(crate) dirty: DirtyMap,
    /// Of the writes without a number.
    pub(crate) unnumbered: DirtyMap,
    pub(crate) ledgers: BTreeMap<VolumeId, Ledger<Kept>>,
    pub(crate) access: Arc<Access>,
    pub(crate) alive: bool,
    /// It was told to end, and serves nobody while it does.
    pub(crate) leaving: bool,
    pub(crate) paused_until: Time,
    /// Until then, each message takes it up to so much longer.
    pub(crate) slow: (Time, u64),
    /// The call that is under way; an answer to an earlier one is of no interest.
    pub(crate) asked: u64,
    pub(crate) wake_at: Option<Time>,
    pub(crate) clock: Clock,
    /// The newest session that was admitted, by lease.
    pub(crate) sessions: BTreeMap<LeaseToken, u64>,
    /// Writers in the order in which they were first admitted.
    pub(crate) writers: BTreeMap<VolumeId, Vec<LeaseToken>>,
}

impl DonorHost {
    pub(crate) fn new(id: DonorId, slot: usize, name: String, extents: u32) -> DonorHost {
        DonorHost {
            machine: Donor::new(id, extents),
            id,
            slot,
            name,
            extents,
            memory: Memory::default(),
            disk: None,
            returned: false,
            dirty: DirtyMap::new(extents),
            unnumbered: DirtyMap::new(extents),
            ledgers: BTreeMap::new(),
            access: Arc::new(Access::default()),
            alive: true,
            leaving: false,
            paused_until: 0,
            slow: (0, 0),
            asked: 0,
            wake_at: None,
            clock: Clock::default(),
            sessions: BTreeMap::new(),
            writers: BTreeMap::new(),
        }
    }

    /// All of a write is in memory.
    pub(crate) fn landed(&mut self, volume: VolumeId, ticket: Option<Ticket>) {
        if let Some((ledger, ticket)) = self.ledgers.get_mut(&volume).zip(ticket) {
            ledger.landed(ticket);
        }
    }
}

impl DonorHost {
    pub(crate) fn secret(&self) -> DonorSecret {
        DonorSecret(!self.id.0)
    }
}

impl Client {
    /// Whether the donor's published state has the client's lease and every extent of its map.
    pub(crate) fn is_known_to(&self, donor: &DonorHost) -> bool {
        let (Some(machine), Some(token)) = (&self.machine, self.token) else { return false };
        donor.grants(machine.map(), token)
    }
}

impl DonorHost {
    /// Whether this lease opens every extent that the map has here.
    pub(crate) fn grants(&self, map: &VolumeMap, token: LeaseToken) -> bool {
        let Ok(grant) = self.access.open(&export_name(&map.name, token, u64::MAX, self.id), None) else {
            return false;
        };
        let members = map.groups.iter().flat_map(|group| group.placements());
        let mut here = members.filter(|member| member.donor == self.id);
        here.all(|member| {
            self.access.check(&grant, false, u64::from(member.extent) * EXTENT_BYTES, 1).is_ok()
        })
    }
}

impl World {
    /// Donors of the client's map that have not heard of it, or of all of it, yet.
    pub(crate) fn note_unaware(&mut self, c: usize) {
        let client = &self.clients[c];
        let Some(machine) = &client.machine else { return };
        let unaware = self.donors.iter().filter(|donor| {
            machine.map().routes.contains_key(&donor.id) && donor.alive && !client.is_known_to(donor)
        });
        let unaware: Vec<DonorId> = unaware.map(|donor| donor.id).collect();
        unaware.into_iter().for_each(|donor| self.verdict.link_unaware(c, donor));
    }

    /// The donor that listens at an address.
    pub(crate) fn listener(&self, slot: usize) -> Option<usize> {
        self.donors.iter().rposition(|donor| donor.slot == slot && donor.alive)
    }

    pub(crate) fn donor_event(&mut self, d: usize, event: DonorEv) {
        let donor = &mut self.donors[d];
        if !donor.alive {
            return;
        }
        if donor.paused_until > self.now {
            let until = donor.paused_until;
            return self.at(until, Ev::Donor(d, event));
        }
        match event {
            DonorEv::Wake(at) => {
                if donor.wake_at == Some(at) && donor.clock.read(self.now) < at {
                    let shows = donor.clock.shows(at);
                    return self.at(shows, Ev::Donor(d, DonorEv::Wake(at)));
                }
                if donor.wake_at == Some(at) {
                    donor.wake_at = None;
                    self.step_donor(d, Event::Wake);
                }
            }
            DonorEv::Wipe(extents) => {
                self.check_wipe(d, &extents);
                if self.donors[d].disk.is_some() {
                    return self.wipe_on_disk(d, extents);
                }
                self.wipe_memory(d, &extents);
                self.step_donor(d, Event::Wiped { extents });
            }
            DonorEv::Disk(event) => self.disk_event(d, event),
        }
    }

    pub(crate) fn wipe_memory(&mut self, d: usize, extents: &[u32]) {
        let donor = &mut self.donors[d];
        for extent in extents {
            let start = sectors(u64::from(*extent) * EXTENT_BYTES);
            if self.bug != Some(Bug::SkipWipe) {
                donor.memory.zero(start, sectors(EXTENT_BYTES), false);
                donor.memory.sign(start, sectors(EXTENT_BYTES));
            }
        }
        donor.dirty.clear(extents.iter().copied());
        donor.unnumbered.clear(extents.iter().copied());
        for start in extents.iter().map(|extent| u64::from(*extent) * EXTENT_BYTES) {
            donor.ledgers.values_mut().for_each(|ledger| ledger.wiped(start, EXTENT_BYTES));
        }
        self.count("extents wiped");
    }

    pub(crate) fn step_donor(&mut self, d: usize, event: Event) {
        if !self.donors[d].alive {
            return;
        }
        say!(self, "donor {d} <- {event:?}");
        let mut effects = Vec::new();
        let time = self.donors[d].clock.read(self.now);
        self.donors[d].machine.step(time, event, &mut effects);
        self.donors[d].machine.check_invariants();
        if self.donors[d].is_cut_off() {
            self.count("fault: a donor lost power while it put down what it holds");
            self.donors[d].keep_in_part();
            self.end_donor(d, false);
            let delay = self.rng.skewed(20 * MILLISECOND_NS, 20 * SECOND_NS);
            return self.after(delay, Ev::Replace(self.donors[d].slot));
        }
        // Before any of it is done.
        if !self.donors[d].keep() {
            return self.disk_dies(d);
        }
        for effect in effects {
            self.donor_effect(d, effect);
        }
    }

    fn donor_effect(&mut self, d: usize, effect: Effect) {
        if !matches!(effect, Effect::Publish(_) | Effect::WakeAt(_)) {
            say!(self, "donor {d} -> {effect:?}");
        }
        match effect {
            Effect::Join { pool, revision, lineage, .. } => self.donor_joins(d, pool, revision, lineage),
            Effect::Sync { revision, connections, leaving, goodbye, offered, incarnation, .. } => {
                self.donors[d].leaving |= goodbye;
                let bytes_used = self.donors[d].memory.blocks().count() as u64 * BLOCK_BYTES;
                let (extents_offered, secret) = (offered, self.donors[d].secret());
                let sync = Sync {
                    secret,
                    revision,
                    bytes_used,
                    connections,
                    leaving,
                    goodbye,
                    extents_offered,
                    incarnation,
                };
                self.donor_syncs(d, sync);
            }
            Effect::Publish(access) => {
                self.donors[d].access = access;
                let donor = &self.donors[d];
                let is_aware = |c: usize| self.clients[c].is_known_to(donor);
                self.verdict.links_aware(donor.id, self.now, is_aware);
            }
            Effect::Admit { conn, grant } => self.admit(d, conn.0, grant),
            Effect::Refuse { conn, reason } => {
                self.send_to_client(conn.0, ToClient::Refused(as_heard(&refusal(reason))));
                self.drop_conn(conn.0);
            }
            Effect::Drop { conn } => {
                if self.serves_on() {
                    return self.after(0, Ev::Closed(conn.0));
                }
                let delay = self.rng.below(20 * MILLISECOND_NS);
                self.after(delay, Ev::Closed(conn.0));
            }
            Effect::Wipe { extents } => {
                let delay = self.rng.below(200 * MILLISECOND_NS);
                self.after(delay, Ev::Donor(d, DonorEv::Wipe(extents)));
            }
            Effect::WakeAt(at) => {
                if self.donors[d].wake_at != Some(at) {
                    self.donors[d].wake_at = Some(at);
                    let shows = self.donors[d].clock.shows(at);
                    self.at(shows, Ev::Donor(d, DonorEv::Wake(at)));
                }
            }
            Effect::Exit(exit) => {
                if let Exit::Refused(refusal) = &exit {
                    // A name that is still taken by the predecessor: started again later.
                    say!(self, "donor {d} was refused: {}", refusal.message);
                }
                self.farewell(d, &exit);
                self.end_donor(d, true);
            }
        }
    }

    fn admit(&mut self, d: usize, id: u64, grant: Grant) {
        let donor = &mut self.donors[d];
        let extents = donor.extents;
        let newest = donor.sessions.entry(grant.token).or_default();
        let refenced = *newest > 0 && grant.session > *newest;
        *newest = (*newest).max(grant.session);
        if grant.writable {
            let writers = donor.writers.entry(grant.volume).or_default();
            if !writers.contains(&grant.token) {
                writers.push(grant.token);
            }
        }
        if refenced {
            self.count("links refenced with a newer session");
        }
        if let Some(conn) = self.network.conns.get_mut(&id) {
            (conn.grant, conn.stage) = (Some(grant), Stage::Serving);
            conn.donor_end = Some(DonorEnd::new(extents, &grant));
        }
        self.send_to_client(id, ToClient::Welcome);
        self.serve_soon(id);
    }

    /// A planted bug: connections that were dropped are served on.
    fn serves_on(&self) -> bool {
        matches!(self.bug, Some(Bug::IgnoreSessions | Bug::LeaseNotChecked))
    }

    /// The donor machine hears that a connection it dropped has ended.
    pub(crate) fn conn_closed(&mut self, id: u64) {
        let Some(conn) = self.network.conns.get(&id) else { return };
        let Some(d) = conn.donor.filter(|d| self.donors[*d].alive) else { return };
        if self.donors[d].paused_until > self.now {
            let until = self.donors[d].paused_until;
            return self.at(until, Ev::Closed(id));
        }
        if conn.stage == Stage::Ended {
            return; // It ended by itself in the meantime, and was reported then.
        }
        if self.serves_on() {
            return self.step_donor(d, Event::Closed { conn: ConnId(id) });
        }
        self.end_conn(d, id);
    }

    /// What a write that is cut off covered is put back where it is kept; else what landed is signed as it
    /// lies there.
    fn settle_what_is_cut_off(&mut self, d: usize, id: u64) {
        let Some(conn) = self.network.conns.get(&id) else { return };
        let Some((grant, end)) = conn.grant.as_ref().zip(conn.donor_end.as_ref()) else { return };
        let Some(write) = end.write.filter(|write| write.refused.is_none() && end.late.is_none()) else {
            return;
        };
        let Some(payload) = end.transmission.payload() else { return };
        let at = usize::try_from(payload.header.offset).expect("inside of the memory");
        let (landed, donor) = (at..at + payload.at, &mut self.donors[d]);
        if donor.disk.is_some() {
            return donor.cut_on_disk(at, payload.header.length as usize);
        }
        let listed = donor.ledgers.get_mut(&grant.volume).zip(write.ticket);
        if let Some((from, kept)) = listed.and_then(|(ledger, ticket)| ledger.cut_off(ticket)) {
            donor.memory.put_back(sectors(from), &kept);
            return self.count("writes that were cut off and undone");
        }
        // A part cannot be held to the digest of the whole: flips in what is cut off are not played.
        self.right_what_is_cut_off(d, landed.clone());
        self.donors[d].memory.sign(at, landed.len());
    }

    fn end_conn(&mut self, d: usize, id: u64) {
        self.settle_what_is_cut_off(d, id);
        if self
            .network
            .conns
            .get(&id)
            .is_some_and(|conn| conn.donor_end.as_ref().is_some_and(|end| end.write.is_some()))
        {
            self.count("writes torn by a lost connection");
        }
        self.drop_conn(id);
        self.send_to_client(id, ToClient::End);
        self.step_donor(d, Event::Closed { conn: ConnId(id) });
    }

    pub(crate) fn serve_soon(&mut self, id: u64) {
        let mut delay = self.rng.below(MILLISECOND_NS / 4);
        let donor = self.network.conns.get(&id).and_then(|conn| conn.donor);
        if let Some((until, by)) = donor.map(|d| self.donors[d].slow)
            && until > self.now
        {
            delay += self.rng.below(by);
        }
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let ready = match conn.inbox.front() {
            None => false,
            Some(ToDonor::Hello) => true,
            Some(_) => conn.stage == Stage::Serving,
        };
        if ready && !conn.serving {
            conn.serving = true;
            self.after(delay, Ev::Serve(id));
        }
    }

    pub(crate) fn serve(&mut self, id: u64) {
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let Some(d) = conn.donor.filter(|d| self.donors[*d].alive) else { return };
        let until = self.donors[d].paused_until;
        if until > self.now {
            // After a pause the threads of a process go on in any order.
            let delay = self.rng.below(5 * MILLISECOND_NS);
            return self.at(until + delay, Ev::Serve(id));
        }
        conn.serving = false;
        let Some(message) = conn.inbox.pop_front() else { return };
        match message {
            ToDonor::Hello => {
                let export = conn.export.clone();
                self.step_donor(d, Event::Opened { conn: ConnId(id), export, member: None });
            }
            ToDonor::Bytes(bytes) => self.requests_arrive(d, id, &bytes),
            ToDonor::End => return self.end_conn(d, id),
        }
        self.serve_soon(id);
    }

    /// The process is gone, and its memory with it. What is on a disk stays, as far as it was put down.
    pub(crate) fn end_donor(&mut self, d: usize, said: bool) {
        let donor = &mut self.donors[d];
        if !donor.alive {
            return;
        }
        donor.alive = false;
        donor.memory = Memory::default();
        let (id, slot) = (donor.id, donor.slot);
        say!(self, "donor {d} ({id}) is gone");
        if self.leaves_a_disk(d, said) {
            self.verdict.away.insert(id);
        } else {
            let order = self.order();
            self.verdict.dead.insert(id, (order, self.now));
        }
        if !said {
            self.director.dark.insert(slot);
        }
        for conn in self.conns_where(|conn| conn.donor == Some(d) && conn.stage != Stage::Ended) {
            self.drop_conn(conn);
            if said {
                self.send_to_client(conn, ToClient::End);
            }
        }
        self.abandon_calls(|caller| matches!(caller, crate::calls::Caller::Donor(other) if *other == d));
    }
}
