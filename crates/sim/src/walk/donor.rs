//! A donor's process in a walk: core's machine, its memory and its ledger, and what comes over connections.
//!
//! Owns what a request does once it is there, and the check that nothing lands of a writer whose lease others
//! have by now. Never: calls to the coordinator (`pool`), or when a request arrives (`life`).

use super::digest::{CONNS, Digest, Seen};
use super::pool::{Pool, Told};
use crate::bugs::Bug;
use crate::bytes::{BLOCK, Kept, Memory, SECTOR, sectors};
use crate::network::Awaited;
use cheetah_core::donor::{self, Access, ConnId, Effect, Event, Grant, Ledger, Ticket};
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES};
use cheetah_core::map::DonorId;
use cheetah_core::units::Time;
use cheetah_core::volume::{Event as VolumeEvent, Key, PartError, PartOp, StatusRun};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    There,
    StillUntil(Time),
    Gone,
}

/// What a donor is asked.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) part: Key,
    pub(super) awaited: Awaited,
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) part: Key,
    pub(super) awaited: Awaited,
    pub(super) bytes: Vec<u8>,
    pub(super) sums: Vec<u32>,
    pub(super) listed: Option<VolumeEvent>,
    pub(super) result: Result<Vec<StatusRun>, PartError>,
}

/// A connection as its donor has it, with what is on its way there.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    /// Whose it is: the number of a life.
    pub(super) life: usize,
    pub(super) grant: Option<Grant>,
    pub(super) asks: VecDeque<Ask>,
    /// The first of them is half there; none when it is refused.
    half: Option<Result<Ticket, PartError>>,
    /// Its client has closed it, or is dead: nothing follows.
    pub(super) closing: bool,
}

impl Conn {
    /// So many times something can arrive: of each write a first half, and the rest.
    pub(super) fn halves(&self) -> usize {
        let all: usize = self.asks.iter().map(|ask| 1 + usize::from(!ask.bytes.is_empty())).sum();
        all - usize::from(self.half.is_some())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Donor {
    pub(super) fate: Fate,
    pub(super) machine: Seen<donor::Donor>,
    access: Arc<Access>,
    pub(super) memory: Memory,
    ledger: Ledger<Kept>,
    pub(super) conns: Vec<Conn>,
    pub(super) wakes: Option<Time>,
    /// What came while it stood still, and it has not looked at.
    pub(super) unheard: VecDeque<Event>,
    /// The newest life that it let in, and the oldest one that may be at work here.
    newest: usize,
    pub(super) oldest: usize,
}

impl Donor {
    pub(super) fn new(id: DonorId, now: Time) -> Donor {
        Donor {
            fate: Fate::There,
            machine: Seen::new(donor::Donor::new(id, 1), now),
            access: Arc::new(Access::default()),
            memory: Memory::default(),
            ledger: Ledger::default(),
            conns: Vec::new(),
            wakes: None,
            unheard: VecDeque::new(),
            newest: 0,
            oldest: 0,
        }
    }

    /// `access` is left out: the machine has it, and publishes each change of it.
    pub(super) fn add_to(&self, digest: &mut Digest) {
        let Donor { fate, machine, access: _, memory, ledger, conns, wakes, unheard, newest, oldest } = self;
        match fate {
            Fate::There => digest.add(1),
            Fate::StillUntil(until) => digest.add_time(Some(*until)),
            Fate::Gone => return digest.add(2),
        }
        machine.add_to(digest);
        digest.add_bytes(&memory.get(0, BLOCK));
        digest.add(memory.sums(0, BLOCK)[0].into());
        digest.print(ledger);
        digest.print(conns);
        digest.add_time(*wakes);
        digest.print(unheard);
        digest.add((*newest * 16 + *oldest) as u64);
    }

    pub(super) fn is_there(&self) -> bool {
        self.fate == Fate::There
    }

    pub(super) fn is_gone(&self) -> bool {
        self.fate == Fate::Gone
    }

    pub(super) fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.iter().find(|conn| conn.id == id)
    }

    /// Whether a write of this life may land here.
    fn check_lands(&self, life: usize) -> Result<(), String> {
        if life < self.newest || life < self.oldest {
            let donor = self.machine.get().identity();
            let what = format!("a write of life {life} lands at {donor}, where its lease is over");
            return Err(what);
        }
        Ok(())
    }

    /// The first of what is on its way on a connection arrives: of a write first one half, then the other.
    /// The answer, if there is one already.
    fn arrives(&mut self, at: usize, bug: Option<Bug>) -> Result<Option<Answer>, String> {
        let Conn { life, grant, asks, half, .. } = &self.conns[at];
        let (life, Some(Ask { awaited, address, bytes, .. })) = (*life, asks.front()) else {
            return Ok(None);
        };
        let (from, len) = (sectors(*address), sectors(awaited.scatter.len.into()));
        if !bytes.is_empty() && half.is_none() {
            let allowed = self.allows(grant.as_ref(), awaited, *address, bug);
            let begun = if allowed {
                self.check_lands(life)?;
                let kept = self.memory.keep(from, len).filter(|_| awaited.mark.is_some_and(|mark| mark.keep));
                let mark = awaited.mark.ok_or("a write of a row with parity has no number")?;
                let spilt = |write| panic!("{write:?} is one of few");
                self.memory.write(from, &bytes[..len / 2]);
                Ok(self.ledger.begin(mark, *address, len as u64 * SECTOR, kept, spilt))
            } else {
                Err(PartError::Denied)
            };
            self.conns[at].half = Some(begun);
            return Ok(None);
        }
        let conn = &mut self.conns[at];
        let half = conn.half.take();
        let Some(ask) = conn.asks.pop_front() else { return Ok(None) };
        let denied = match half {
            Some(Err(denied)) => Some(denied),
            Some(Ok(_)) => None,
            None => {
                let grant = self.conns[at].grant;
                let allowed = self.allows(grant.as_ref(), &ask.awaited, ask.address, bug);
                (!allowed).then_some(PartError::Denied)
            }
        };
        if let Some(denied) = denied {
            let Ask { part, awaited, .. } = ask;
            let (bytes, sums, listed, result) = (Vec::new(), Vec::new(), None, Err(denied));
            return Ok(Some(Answer { part, awaited, bytes, sums, listed, result }));
        }
        self.answer(life, ask, half.and_then(Result::ok), bug).map(Some)
    }

    /// As `cheetah_terms::donor::permit`: what touches memory is looked at, and nothing else.
    fn allows(&self, grant: Option<&Grant>, awaited: &Awaited, address: u64, bug: Option<Bug>) -> bool {
        if bug == Some(Bug::LeaseNotChecked) || matches!(awaited.op, PartOp::Age | PartOp::Flush) {
            return true;
        }
        let writes = awaited.op.writes() || awaited.op == PartOp::Undo;
        grant.is_some_and(|grant| self.access.check(grant, writes, address, awaited.scatter.len).is_ok())
    }

    fn answer(
        &mut self,
        life: usize,
        ask: Ask,
        ticket: Option<Ticket>,
        bug: Option<Bug>,
    ) -> Result<Answer, String> {
        let Ask { part, awaited, address, bytes } = ask;
        let (from, len) = (sectors(address), sectors(awaited.scatter.len.into()));
        let whole = |hole| Ok(vec![StatusRun { len: awaited.scatter.len, hole }]);
        let mut answer = Answer {
            part,
            awaited,
            bytes: Vec::new(),
            sums: Vec::new(),
            listed: None,
            result: Ok(Vec::new()),
        };
        match awaited.op {
            PartOp::Write | PartOp::Sparse => {
                self.check_lands(life)?;
                self.memory.write(from + len / 2, &bytes[len / 2..]);
                self.memory.sign(from, len);
                self.ledger.landed(ticket.ok_or("the rest of a write has no first half")?);
                answer.sums = self.memory.sums(from, len);
            }
            PartOp::Read => {
                (answer.bytes, answer.sums) = (self.memory.get(from, len), self.memory.sums(from, len));
            }
            PartOp::Survey => {
                let deaf = bug == Some(Bug::TornForWhole);
                let writes =
                    if deaf { Vec::new() } else { self.ledger.within(address, BLOCK_BYTES).collect() };
                let complete = self.ledger.complete();
                answer.listed = Some(VolumeEvent::Listed { part, complete, writes });
                answer.result = whole(true);
            }
            PartOp::Undo => {
                self.check_lands(life)?;
                let number = awaited.mark.map_or(0, |mark| mark.number);
                match self.ledger.undo(number, address, address + len as u64 * SECTOR) {
                    None => answer.result = Err(PartError::Unsupported),
                    Some(_) if bug == Some(Bug::UndoForgotten) => {}
                    Some(pieces) => {
                        pieces.iter().for_each(|(at, kept)| self.memory.put_back(sectors(*at), kept));
                    }
                }
            }
            PartOp::Age => {
                if let Some(mark) = awaited.mark {
                    self.ledger.settle(mark.complete);
                }
            }
            PartOp::Zero { keep } => {
                self.check_lands(life)?;
                let kept = self.memory.keep(from, len).filter(|_| awaited.mark.is_some_and(|mark| mark.keep));
                let mark = awaited.mark.ok_or("zeros of a row with parity have no number")?;
                let spilt = |write| panic!("{write:?} is one of few");
                let ticket = self.ledger.begin(mark, address, len as u64 * SECTOR, kept, spilt);
                self.memory.zero(from, len, keep);
                self.memory.sign(from, len);
                self.ledger.landed(ticket);
            }
            PartOp::Verify => {
                let run = |hole| StatusRun { len: BLOCK_BYTES as u32, hole };
                answer.result = Ok(self.memory.verify(from, len).into_iter().map(run).collect());
            }
            PartOp::Status | PartOp::Presence => answer.result = whole(false),
            PartOp::Trim | PartOp::Flush => return Err(format!("a donor is asked for {:?}", awaited.op)),
        }
        Ok(answer)
    }

    /// Nothing more of this connection lands. What is half there is undone, or signed as it lies.
    fn cut_off(&mut self, id: ConnId) {
        let Some(at) = self.conns.iter().position(|conn| conn.id == id) else { return };
        if let Some(Ok(ticket)) = self.conns.remove(at).half {
            match self.ledger.cut_off(ticket) {
                Some((from, kept)) => self.memory.put_back(sectors(from), &kept),
                None => self.memory.sign(0, BLOCK),
            }
        }
    }

    fn wipe(&mut self, extents: &[u32]) {
        for start in extents.iter().map(|extent| u64::from(*extent) * EXTENT_BYTES) {
            self.memory.zero(sectors(start), sectors(EXTENT_BYTES), false);
            self.memory.sign(sectors(start), sectors(EXTENT_BYTES));
            self.ledger.wiped(start, EXTENT_BYTES);
        }
    }
}

impl Pool {
    /// The donor hears it, or will when it goes on.
    pub(super) fn tell_donor(&mut self, at: usize, event: Event) -> Result<(), String> {
        let donor = &mut self.donors[at];
        match donor.fate {
            Fate::Gone => Ok(()),
            Fate::There if donor.unheard.is_empty() => self.step_donor(at, event),
            Fate::There | Fate::StillUntil(_) => {
                donor.unheard.push_back(event);
                Ok(())
            }
        }
    }

    /// It looks at what came while it stood still.
    pub(super) fn hears(&mut self, at: usize) -> Result<(), String> {
        for event in std::mem::take(&mut self.donors[at].unheard) {
            self.step_donor(at, event)?;
        }
        let over = |conn: &Conn| conn.closing && conn.asks.is_empty();
        let over: Vec<ConnId> =
            self.donors[at].conns.iter().filter(|conn| over(conn)).map(|conn| conn.id).collect();
        over.into_iter().try_for_each(|id| self.ends_at_donor(at, id))
    }

    fn step_donor(&mut self, at: usize, event: Event) -> Result<(), String> {
        let mut next = VecDeque::from([event]);
        while let Some(event) = next.pop_front() {
            let (mut effects, now) = (Vec::new(), self.now);
            self.donors[at].machine.at(now).step(now, event, &mut effects);
            for effect in effects {
                self.has_changed |= !matches!(effect, Effect::Sync { .. } | Effect::WakeAt(_));
                let donor = &mut self.donors[at];
                match effect {
                    Effect::Join { pool, revision, .. } => self.donor_joins(at, pool, revision),
                    Effect::Sync { .. } => self.donor_syncs(at, &effect),
                    Effect::Publish(access) => donor.access = access,
                    Effect::Admit { conn, grant } => {
                        if let Some(of) = donor.conns.iter_mut().find(|of| of.id == conn) {
                            of.grant = Some(grant);
                            donor.newest = donor.newest.max(of.life);
                        }
                        self.told.push_back(Told::Admitted(at, conn));
                    }
                    Effect::Refuse { conn, reason } => {
                        donor.cut_off(conn);
                        self.told.push_back(Told::NotAdmitted(at, conn, reason));
                    }
                    Effect::Drop { conn } => {
                        if self.bug != Some(Bug::LeaseNotChecked) {
                            donor.cut_off(conn);
                            self.told.push_back(Told::Ended(at, conn));
                        }
                        next.push_back(Event::Closed { conn });
                    }
                    Effect::Wipe { extents } => {
                        donor.wipe(&extents);
                        next.push_back(Event::Wiped { extents });
                    }
                    Effect::WakeAt(to) => donor.wakes = Some(donor.wakes.map_or(to, |other| other.min(to))),
                    Effect::Exit(exit) => return Err(format!("donor {at} ends by itself: {exit:?}")),
                }
            }
        }
        Ok(())
    }

    /// A client asks a donor for a connection; what comes of it is told.
    pub(super) fn connect(&mut self, at: usize, life: usize, export: String) -> Result<ConnId, String> {
        self.conns += 1;
        let id = ConnId(CONNS + self.conns);
        let (grant, asks, half, closing) = (None, VecDeque::new(), None, false);
        if self.donors[at].fate != Fate::Gone {
            self.donors[at].conns.push(Conn { id, life, grant, asks, half, closing });
            self.tell_donor(at, Event::Opened { conn: id, export, member: None })?;
        }
        Ok(id)
    }

    /// The client's end is closed; what is on its way may still arrive, if it is not `lost`.
    pub(super) fn hang_up(&mut self, at: usize, id: ConnId, lost: bool) -> Result<(), String> {
        let Some(conn) = self.donors[at].conns.iter_mut().find(|conn| conn.id == id) else { return Ok(()) };
        conn.closing = true;
        if lost {
            conn.asks.clear();
        }
        let is_over = conn.asks.is_empty();
        let donor = &self.donors[at];
        if is_over && donor.is_there() && donor.unheard.is_empty() {
            return self.ends_at_donor(at, id);
        }
        Ok(())
    }

    fn ends_at_donor(&mut self, at: usize, id: ConnId) -> Result<(), String> {
        self.donors[at].cut_off(id);
        self.tell_donor(at, Event::Closed { conn: id })
    }

    /// The next of what is on its way on a connection arrives; its answer, if that is due.
    pub(super) fn deliver(&mut self, at: usize, id: ConnId) -> Result<Option<Answer>, String> {
        let (donor, bug) = (&mut self.donors[at], self.bug);
        let Some(place) = donor.conns.iter().position(|conn| conn.id == id) else { return Ok(None) };
        let answer = donor.arrives(place, bug)?;
        let conn = &donor.conns[place];
        if conn.closing && conn.asks.is_empty() && donor.unheard.is_empty() {
            self.ends_at_donor(at, id)?;
        }
        Ok(answer)
    }
}
