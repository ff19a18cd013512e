//! The driver of one attachment: what `rim::volume` and the daemon around it do.
//!
//! Owns: what the machine of an attachment is told and what becomes of its effects, and how an attachment
//! ends (detached, crashed, or taken over and not yet aware of it). Never: decisions, its lease (`leases`),
//! its connections (`links`) and what goes over them (`parts`), or a judgement (`workload`).

use crate::bugs::Bug;
use crate::clocks::Clock;
use crate::contents::Word;
use crate::links::LinkEnd;
use crate::load::Load;
use crate::memory::ClientMemory;
use crate::network::Awaited;
use crate::oracle::{Order, Version};
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::api::Attach;
use cheetah_core::map::{DonorId, LeaseToken, PoolId, VolumeId};
use cheetah_core::units::Time;
use cheetah_core::volume::{self, Effect, Event, LinkFailure, Mem, Volume};
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
    pub(crate) settled: bool,
    pub(crate) links: BTreeMap<DonorId, LinkEnd>,
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
    pub(crate) woken: (Time, u32),
    /// Where its last write in order ended.
    pub(crate) stream: u64,
    pub(crate) reading: ReadStream,
    /// Donors with acknowledged writes since the last flush.
    pub(crate) unflushed: BTreeSet<DonorId>,
    /// Writes that were answered lately: when, where and how long.
    pub(crate) wrote: VecDeque<(Time, u64, u64)>,
}

impl World {
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
            Effect::Forget { fragment, len } => memory.forget(fragment, len),
            Effect::Verify { job, fragment, at, len } => {
                let right = memory.verify(fragment, at, len)? || self.bug == Some(Bug::ChecksumIgnored);
                if !right {
                    say!(self, "client {c}: {fragment:?} and {len} is not what was written");
                }
                return Ok(Some(Event::Verified { job, right }));
            }
            Effect::Compare { job, a, b, len } => {
                let right = memory.compare(a, b, len)?;
                return Ok(Some(Event::Verified { job, right }));
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
}
