//! The writer of a walk: core's volume machine, its memory and its links, and what its user asks of it.
//!
//! Owns what becomes of the machine's effects, and the check of what is read: what was acknowledged, or was
//! being written, and whoever reads again finds the same. Never: when anything arrives (`life`).

use super::digest::Digest;
use super::donor::{Answer, Ask};
use super::legacy::{Truth, content};
use super::life::Life;
use super::pool::{Caller, NAME, RETRY_NS, Told};
use crate::bytes::{BLOCK, Sums};
use crate::memory::ClientMemory;
use crate::network::Awaited;
use cheetah_core::api::{Attached, Call, RefusalCode, Renew};
use cheetah_core::donor::{ConnId, OpenError, export_name};
use cheetah_core::limits::{BLOCK_BYTES, CONNECT_DEADLINE_NS};
use cheetah_core::map::{DonorId, LeaseToken};
use cheetah_core::units::Time;
use cheetah_core::volume::{Effect, Event, LinkFailure, Op, PartError, PartOp, Request, Scope, Tag, Volume};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The writer's end of its connection to a donor.
#[derive(Debug, Default)]
pub(super) struct Link {
    session: u64,
    pub(super) conn: Option<ConnId>,
    /// Asked for at that time, and not answered.
    pub(super) opening: Option<Time>,
    pub(super) is_up: bool,
    /// Parts that are not answered.
    sent: BTreeSet<u64>,
    pub(super) answers: VecDeque<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Attach,
    Read,
    Write,
    ReadAgain,
    /// When whoever stood still is back.
    ReadAtLast,
    Detach,
    Over,
}

#[derive(Debug)]
pub(super) struct Writer {
    volume: Volume,
    token: LeaseToken,
    memory: ClientMemory,
    pub(super) events: VecDeque<Event>,
    effects: Vec<Effect>,
    pub(super) links: Vec<Link>,
    pub(super) wake_at: Option<Time>,
    unwanted: BTreeSet<u64>,
    pub(super) open: BTreeMap<Tag, (bool, usize, usize, u8)>,
    tags: Tag,
    pub(super) goal: Goal,
}

impl Writer {
    pub(super) fn new(attached: &Attached, donors: usize, fresh: bool) -> Writer {
        let mut sums = Sums::default();
        sums.grow(1, fresh);
        Writer {
            volume: Volume::new(attached.map.clone(), false, attached.fresh),
            token: attached.token,
            memory: ClientMemory::new(sums, 0),
            events: VecDeque::from([Event::Start]),
            effects: Vec::new(),
            links: (0..donors).map(|_| Link::default()).collect(),
            wake_at: None,
            unwanted: BTreeSet::new(),
            open: BTreeMap::new(),
            tags: 0,
            goal: Goal::Attach,
        }
    }

    pub(super) fn add_to(&self, digest: &mut Digest) {
        digest.add(self.goal as u64);
        digest.add(self.volume.is_settled().into());
        digest.add(self.volume.is_serving().into());
        digest.add(self.volume.map().epoch);
        digest.add_time(self.wake_at);
        digest.print(&self.open);
        for link in &self.links {
            let Link { session, conn, opening, is_up, sent, answers } = link;
            digest.add_time(*opening);
            digest.print(&(session, conn, is_up, sent, answers));
        }
        self.volume.lost().for_each(|(donor, _)| digest.add(donor.0));
    }

    /// It gives its lease back, or has done so.
    fn is_over(&self) -> bool {
        matches!(self.goal, Goal::Detach | Goal::Over)
    }

    /// Nobody waits for its answers any more.
    fn drop_link(&mut self, at: usize) -> Option<ConnId> {
        let link = &mut self.links[at];
        (link.is_up, link.opening) = (false, None);
        link.answers.clear();
        let parts = std::mem::take(&mut link.sent);
        parts.into_iter().for_each(|part| self.memory.end_part(part));
        self.links[at].conn.take()
    }

    fn fails(&mut self, at: usize, failure: LinkFailure) -> Option<ConnId> {
        let conn = self.drop_link(at);
        let session = self.links[at].session;
        self.events.push_back(Event::Failed { donor: DonorId(at as u64), session, failure });
        conn
    }

    /// The next answer of a donor is heard.
    pub(super) fn answer(&mut self, at: usize) -> Result<(), String> {
        let Some(answer) = self.links[at].answers.pop_front() else { return Ok(()) };
        let Answer { part, awaited, bytes, sums, listed, mut result } = answer;
        self.links[at].sent.remove(&part.to_u64());
        if self.unwanted.remove(&part.to_u64()) {
            return Ok(());
        }
        let is_good = result.is_ok();
        if awaited.op == PartOp::Read && is_good {
            self.memory.land(part.to_u64(), &awaited, 0, &bytes)?;
        }
        self.memory.end_part(part.to_u64());
        let blocks = match awaited.op {
            PartOp::Read if is_good => self.memory.wrong_blocks(&awaited, &sums)?,
            PartOp::Write | PartOp::Sparse if is_good => self.memory.wrongly_taken(&awaited, &sums)?,
            _ => 0,
        };
        if blocks > 0 {
            result = Err(PartError::Corrupt { blocks, forged: false });
        }
        self.events.extend(listed);
        self.events.push_back(Event::Answered { part, answer: result });
        Ok(())
    }

    fn submit(&mut self, op: Op, block: usize, count: usize, version: u8) {
        self.tags += 1;
        let bytes = match op {
            Op::Write => (block..block + count).flat_map(|block| content(version, block)).collect(),
            _ => vec![0; count * BLOCK],
        };
        self.memory.payloads.insert(self.tags, bytes);
        self.open.insert(self.tags, (op == Op::Write, block, count, version));
        let len = u32::try_from(count as u64 * BLOCK_BYTES).expect("a row");
        let request = Request { op, offset: block as u64 * BLOCK_BYTES, len };
        self.events.push_back(Event::Submit { tag: self.tags, request });
    }
}

impl Life<'_> {
    pub(super) fn renew(&mut self) {
        let Some(Writer { volume, token, .. }) = self.writer.as_ref().filter(|writer| !writer.is_over())
        else {
            return;
        };
        let lost = volume.lost().map(|(donor, why)| (donor, why.to_owned())).collect();
        let (epoch, report) = (volume.map().epoch, Box::new(volume.report()));
        let renew = Renew { epoch, place: String::new(), lost, report, guests: Vec::new() };
        let (name, token) = (NAME.into(), *token);
        self.legacy.pool.call(Caller::Renew, Call::Renew { name, token, renew });
    }

    pub(super) fn writer_hears(&mut self, told: Told) -> Result<(), String> {
        let now = self.legacy.pool.now;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let gone = |code| code == RefusalCode::Gone;
        match told {
            // Who gives its lease back has closed its links, and waits for nothing else.
            told if writer.is_over() && !matches!(told, Told::Detached(_)) => {}
            Told::Renewed(Some(Err(refusal))) | Told::Amended(Some(Err(refusal))) if gone(refusal.code) => {
                return Err(format!("it was renewed in time, and is told: {}", refusal.message));
            }
            Told::Renewed(Some(Ok(renewed))) => {
                self.legacy.pool.has_changed |= renewed.map.is_some();
                writer.events.extend(renewed.map.map(Event::Map));
                if !renewed.silent.is_empty() {
                    writer.events.push_back(Event::Silent(renewed.silent));
                }
                writer.events.extend(renewed.scrub.then_some(Event::Scrub(Scope::All)));
                self.asks_at = Some(now);
            }
            Told::Renewed(_) => self.asks_at = Some(now + RETRY_NS),
            Told::Amended(Some(Ok(renewed))) => writer.events.push_back(Event::Amended(renewed.map)),
            Told::Amended(_) => writer.events.push_back(Event::Amended(None)),
            Told::Detached(is_heard) if is_heard || !self.legacy.pool.has_lease(writer.token) => {
                writer.goal = Goal::Over;
            }
            // The coordinator began anew, and has the lease as it was.
            Told::Detached(_) => self.detach(),
            Told::Admitted(at, conn) if writer.links[at].conn == Some(conn) => {
                let link = &mut writer.links[at];
                (link.is_up, link.opening) = (true, None);
                let (donor, session) = (DonorId(at as u64), link.session);
                writer.events.push_back(Event::Opened { donor, session });
            }
            Told::NotAdmitted(at, conn, why) if writer.links[at].conn == Some(conn) => {
                let failure = match why {
                    OpenError::OtherDonor => LinkFailure::Refused(why.to_string()),
                    _ => LinkFailure::NotAdmitted(why.to_string()),
                };
                writer.fails(at, failure);
            }
            Told::Ended(at, conn) if writer.links[at].conn == Some(conn) => {
                let why = "the donor ended it".to_owned();
                let failure = if writer.links[at].is_up {
                    LinkFailure::Broken(why)
                } else {
                    LinkFailure::NotOpened(why)
                };
                writer.fails(at, failure);
            }
            Told::Admitted(..) | Told::NotAdmitted(..) | Told::Ended(..) => {}
            Told::Attached(_) => return Err("a second lease is given".into()),
        }
        Ok(())
    }

    fn detach(&mut self) {
        let Some(Writer { token, .. }) = &self.writer else { return };
        let (name, token) = (NAME.into(), *token);
        self.legacy.pool.call(Caller::Detach, Call::Detach { name, token });
    }

    /// Whoever does not answer in time is given up.
    pub(super) fn gives_up_opening(&mut self) -> Result<(), String> {
        let now = self.legacy.pool.now;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        for at in 0..writer.links.len() {
            if writer.links[at].opening.is_some_and(|since| since + CONNECT_DEADLINE_NS <= now) {
                let failure = LinkFailure::NotOpened("no connection within 2 s".into());
                if let Some(conn) = writer.fails(at, failure) {
                    self.legacy.pool.hang_up(at, conn, false)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn step_volume(&mut self, event: Event) -> Result<(), String> {
        self.steps += 1;
        let Some(writer) = self.writer.as_mut().filter(|writer| !writer.is_over()) else {
            return Ok(());
        };
        let mut effects = std::mem::take(&mut writer.effects);
        writer.volume.step(self.legacy.pool.now, event, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect)?;
        }
        if let Some(writer) = &mut self.writer {
            writer.effects = effects;
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), String> {
        let (pool, Some(writer)) = (&mut self.legacy.pool, &mut self.writer) else { return Ok(()) };
        pool.has_changed |= !matches!(effect, Effect::WakeAt(_));
        match effect {
            Effect::Open { donor, session } => {
                let at = donor.0 as usize;
                let export = export_name(NAME, writer.token, session, donor);
                let conn = pool.connect(at, self.number, export)?;
                let link = &mut writer.links[at];
                (link.session, link.opening, link.is_up) = (session, Some(pool.now), false);
                link.conn = Some(conn);
                if pool.donors[at].is_gone() {
                    writer.fails(at, LinkFailure::Refused("nothing listens there".into()));
                }
            }
            Effect::Probe { donor, session } => {
                if pool.donors[donor.0 as usize].is_there() {
                    writer.events.push_back(Event::Reached { donor, session });
                }
            }
            // What is on its way may still arrive.
            Effect::Close { donor, .. } => {
                if let Some(conn) = writer.drop_link(donor.0 as usize) {
                    pool.hang_up(donor.0 as usize, conn, false)?;
                }
            }
            Effect::Send { donor, part, op, address, mem, scatter, fragment, mark } => {
                let awaited = Awaited { op, mem, scatter, fragment, mark };
                let bytes = writer.memory.begin_part(part.to_u64(), awaited)?;
                let link = &mut writer.links[donor.0 as usize];
                link.sent.insert(part.to_u64());
                let id = link.conn;
                let mut conns = pool.donors[donor.0 as usize].conns.iter_mut();
                if let Some(conn) = conns.find(|conn| Some(conn.id) == id) {
                    conn.asks.push_back(Ask { part, awaited, address, bytes });
                }
            }
            Effect::Abandon { part, .. } => {
                writer.memory.abandon_part(part.to_u64())?;
                writer.unwanted.insert(part.to_u64());
            }
            Effect::Combine(combine) => writer.memory.combine(&combine)?,
            Effect::Copy { from, to, len } => writer.memory.copy(from, to, len)?,
            Effect::Zero { at, len } => writer.memory.zero(at, len)?,
            Effect::Verify { job, fragment, at, len } => {
                let right = writer.memory.verify(fragment, at, len)?;
                writer.events.push_back(Event::Verified { job, right });
            }
            Effect::Compare { job, a, b, len } => {
                let right = writer.memory.compare(a, b, len)?;
                writer.events.push_back(Event::Verified { job, right });
            }
            Effect::Learn { fragment, copies, mem, scatter } => {
                writer.memory.learn(fragment, copies, mem, scatter)?;
            }
            Effect::Forget { fragment, len } => writer.memory.forget(fragment, len),
            Effect::Amend(amend) => {
                if !amend.bad.is_empty() {
                    return Err(format!("{:?} are given up", amend.bad));
                }
                let (name, token) = (NAME.into(), writer.token);
                pool.call(Caller::Amend, Call::Amend { name, token, amend });
            }
            Effect::Complete { tag, result, .. } => self.completed(tag, result)?,
            Effect::WakeAt(at) => writer.wake_at = Some(writer.wake_at.map_or(at, |other| other.min(at))),
            Effect::Offer { .. } | Effect::Finished => {}
            Effect::Fetch { .. } => return Err("nothing has a source here".into()),
        }
        Ok(())
    }

    /// Does what its user does next; false: that waits.
    pub(super) fn goes_on(&mut self) -> Result<bool, String> {
        let blocks = self.legacy.blocks.len();
        let waits = self.legacy.pool.donors.iter().any(|donor| !donor.is_there() && !donor.is_gone());
        let Some(writer) = &mut self.writer else { return Ok(false) };
        if !writer.open.is_empty() || !writer.volume.has_room() {
            return Ok(false);
        }
        match writer.goal {
            Goal::Attach => {
                writer.goal = Goal::Read;
                writer.submit(Op::Read, 0, blocks, 0);
            }
            Goal::Read => {
                writer.goal = Goal::Write;
                self.legacy.version += 1;
                // All of the row, or a block of it, or two at once.
                let writes: &[(usize, usize)] = match self.choices.choose(if blocks > 1 { 4 } else { 1 }) {
                    0 => &[(0, blocks)],
                    1 => &[(0, 1)],
                    2 => &[(blocks - 1, 1)],
                    _ => &[(0, 1), (blocks - 1, 1)],
                };
                let version = self.legacy.version;
                for (first, count) in writes {
                    writer.submit(Op::Write, *first, *count, version);
                    for truth in &mut self.legacy.blocks[*first..first + count] {
                        truth.maybe.insert(version);
                    }
                }
            }
            Goal::Write => {
                writer.goal = Goal::ReadAgain;
                writer.submit(Op::Read, 0, blocks, 0);
            }
            Goal::ReadAgain | Goal::ReadAtLast if waits => return Ok(false),
            Goal::ReadAgain => {
                writer.goal = Goal::ReadAtLast;
                writer.submit(Op::Read, 0, blocks, 0);
            }
            Goal::ReadAtLast if self.is_last => {
                writer.goal = Goal::Detach;
                self.detach();
            }
            Goal::ReadAtLast => writer.goal = Goal::Over,
            Goal::Detach | Goal::Over => return Ok(false),
        }
        Ok(self.writer.as_ref().is_some_and(|writer| writer.goal != Goal::Over))
    }

    fn completed(&mut self, tag: Tag, result: Result<(), impl std::fmt::Debug>) -> Result<(), String> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let bytes = writer.memory.end_request(tag)?.unwrap_or_default();
        let Some((is_write, first, count, version)) = writer.open.remove(&tag) else { return Ok(()) };
        if let Err(error) = result {
            let what = if is_write { "a write" } else { "a read" };
            return Err(format!("{what} of {count} blocks from {first} on failed: {error:?}"));
        }
        for (nth, truth) in self.legacy.blocks[first..first + count].iter_mut().enumerate() {
            let block = first + nth;
            let found =
                if is_write { content(version, block) } else { bytes[nth * BLOCK..][..BLOCK].to_vec() };
            if !is_write && !truth.allows(block, &found) {
                return Err(format!("block {block} reads as {found:?}, and can be of {truth:?}"));
            }
            // Whoever reads it again finds the same.
            *truth = Truth { known: found, maybe: BTreeSet::new() };
        }
        Ok(())
    }
}
