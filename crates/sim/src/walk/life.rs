//! One life of a walk: a writer that waits for its lease; then attaches, reads, writes and reads again, or is
//! killed on the way.
//!
//! Owns what may happen next, and that time passes where nothing does. Never: which of that happens
//! (`Choices`), or what the writer's machine says (`writer`). Tests: those of the walk.

use super::Choices;
use super::digest::Digest;
use super::donor::{Conn, Fate};
use super::legacy::Legacy;
use super::pool::{Caller, NAME, RETRY_NS, Told};
use super::writer::{Goal, Writer};
use cheetah_core::api::{Attach, Call, RefusalCode};
use cheetah_core::donor::ConnId;
use cheetah_core::limits::{CONNECT_DEADLINE_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::units::Time;
use cheetah_core::volume::Event;
use std::collections::HashSet;

/// How long a donor stands still: shorter than it takes to be noticed, to be excluded, to be given up.
const STOPS_NS: [Time; 3] = [200 * MILLISECOND_NS, 7 * SECOND_NS, 45 * SECOND_NS];
/// A life that is not over then hangs.
const LIFE_NS: Time = 300 * SECOND_NS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Deliver(usize, ConnId),
    /// Who stood still looks at what came meanwhile.
    Hear(usize),
    Answer(usize),
    Killed,
    DonorEnds(usize),
    DonorStops(usize, Time),
}

pub(super) enum End {
    Over,
    /// From here on all was walked already.
    Known,
    /// The number of the life that is next.
    Left(Box<Legacy>, usize),
}

/// How the world looked where lives were before.
pub(super) type Known = HashSet<u64>;

pub(super) struct Life<'a> {
    pub(super) legacy: Legacy,
    pub(super) choices: &'a mut Choices,
    known: &'a mut Known,
    pub(super) number: usize,
    pub(super) is_last: bool,
    /// None while it waits for its lease.
    pub(super) writer: Option<Writer>,
    /// When it asks for its lease, or says that it still wants it.
    pub(super) asks_at: Option<Time>,
    /// It has its lease.
    is_let_in: bool,
    /// Deliveries go to donors from here on.
    from: usize,
    began: Time,
    pub(super) steps: u64,
}

/// A life to its end, or the time before it, to the moment at which it has its lease.
pub(super) fn live(
    legacy: Legacy,
    (number, lives): (usize, usize),
    choices: &mut Choices,
    known: &mut Known,
) -> Result<(End, u64), String> {
    let settles = number == 0;
    let (began, waits_until) = (legacy.pool.now, legacy.pool.lease_until);
    let is_last = number + 1 == lives;
    let (writer, asks_at) = match &legacy.attached {
        None => (None, Some(waits_until.max(began))),
        Some(attached) => {
            let writer = Writer::new(attached, legacy.pool.donors.len(), settles);
            (Some(writer), None)
        }
    };
    choices.is_off = settles;
    let (is_let_in, from, steps) = (false, 0, 0);
    let mut life =
        Life { legacy, choices, known, number, is_last, writer, asks_at, is_let_in, from, began, steps };
    if life.writer.is_some() {
        life.renew();
    }
    let settles = settles && life.writer.is_some();
    let end = life.live(settles);
    choices.is_off = false;
    end
}

impl Life<'_> {
    /// To its end. `settles`: nothing happens but what has to, until its first write is acknowledged.
    fn live(mut self, settles: bool) -> Result<(End, u64), String> {
        let may_end = self.writer.is_some() && self.number > 0 && !self.is_last;
        loop {
            self.settle()?;
            if self.is_let_in {
                let steps = self.steps;
                return Ok((End::Left(Box::new(self.legacy), self.number), steps));
            }
            if self.writer.as_ref().is_some_and(|writer| writer.goal == Goal::Over) {
                self.legacy.pool.check();
                let steps = self.steps;
                return Ok((if settles { self.left()? } else { End::Over }, steps));
            }
            if self.legacy.pool.now > self.began + LIFE_NS {
                return Err(format!("it hangs: {:?}", self.writer.map(|writer| (writer.goal, writer.open))));
            }
            let (steps, pending) = self.possible(may_end);
            // Time passes where nothing else does, and it may always be the end.
            let count = steps.len() + usize::from(!pending);
            let has_changed = self.legacy.pool.has_changed || count > 1;
            if has_changed && self.choices.are_new() && self.was_here() {
                return Ok((End::Known, self.steps));
            }
            self.legacy.pool.has_changed = false;
            match steps.get(self.choices.choose(count)).copied() {
                None => self.time_passes()?,
                Some(Step::Killed) => {
                    let steps = self.steps;
                    return Ok((self.left()?, steps));
                }
                Some(step) => self.take(step)?,
            }
        }
    }

    /// Whether a life with this number came so far before, and all that is outside of its machine was the
    /// same. Of the machine is left out what cannot be seen from outside: what its jobs wait for are the
    /// parts that are on their way, which are here; so two that are taken for one may differ in how far a
    /// timer of theirs has come, and in whom they ask first.
    fn was_here(&mut self) -> bool {
        let mut digest = Digest::new(self.legacy.pool.now);
        digest.add(self.number as u64);
        digest.add(self.from as u64);
        digest.add(self.legacy.pool.has_changed.into());
        digest.add_time(self.asks_at);
        self.legacy.add_to(&mut digest);
        if let Some(writer) = &self.writer {
            writer.add_to(&mut digest);
        }
        !self.known.insert(digest.value())
    }

    /// What can happen now, and whether some of it has to before time passes.
    fn possible(&mut self, may_end: bool) -> (Vec<Step>, bool) {
        let donors = &self.legacy.pool.donors;
        let there = |at: &usize| donors[*at].is_there();
        let all = 0..donors.len();
        let mut steps = Vec::new();
        for at in all.clone().filter(there) {
            let unheard = !donors[at].unheard.is_empty();
            // What the dead sent is late: it arrives where something else is late, too, or after all.
            let comes = |conn: &&Conn| conn.life == self.number || unheard || self.writer.is_some();
            let conns = donors[at].conns.iter().filter(|conn| !conn.asks.is_empty()).filter(comes);
            steps.extend(conns.map(|conn| Step::Deliver(at, conn.id)));
            steps.extend(unheard.then_some(Step::Hear(at)));
        }
        if let Some(writer) = &self.writer {
            let answered = |at: &usize| writer.links[*at].is_up && !writer.links[*at].answers.is_empty();
            steps.extend(all.clone().filter(answered).map(Step::Answer));
        }
        let pending = !steps.is_empty();
        let from = self.from;
        let first = |step: &Step| matches!(step, Step::Deliver(at, _) if *at < from);
        if steps.iter().any(|step| !first(step)) {
            steps.retain(|step| !first(step));
        }
        if self.choices.is_off {
            steps.truncate(1);
            return (steps, pending);
        }
        // Of who was let go in order nothing is on its way.
        let is_late = self.writer.is_none() && (self.number < 2 || !self.is_eve());
        if !self.legacy.pool.has_changed || is_late {
            return (steps, pending);
        }
        if self.legacy.fault_left {
            steps.extend(all.clone().filter(there).map(Step::DonorEnds));
            let stops = |at| STOPS_NS.map(|long| Step::DonorStops(at, long));
            steps.extend(all.filter(there).flat_map(stops));
        }
        steps.extend(may_end.then_some(Step::Killed));
        (steps, pending)
    }

    /// The lease before is as good as over.
    fn is_eve(&self) -> bool {
        self.legacy.pool.now + MILLISECOND_NS >= self.legacy.pool.lease_until
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        self.from = if let Step::Deliver(at, _) = step { at } else { 0 };
        let pool = &mut self.legacy.pool;
        pool.has_changed = true;
        match step {
            Step::Deliver(at, conn) => {
                let answer = pool.deliver(at, conn)?;
                if let Some(writer) =
                    self.writer.as_mut().filter(|writer| writer.links[at].conn == Some(conn))
                {
                    writer.links[at].answers.extend(answer);
                }
            }
            Step::Hear(at) => pool.hears(at)?,
            Step::Answer(at) => {
                if let Some(writer) = &mut self.writer {
                    writer.answer(at)?;
                }
            }
            Step::DonorEnds(at) => {
                self.legacy.fault_left = false;
                pool.ends(at);
            }
            Step::DonorStops(at, long) => {
                self.legacy.fault_left = false;
                pool.donors[at].fate = Fate::StillUntil(pool.now + long);
            }
            Step::Killed => unreachable!("it is over then"),
        }
        Ok(())
    }

    /// Until nothing follows by itself.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            self.legacy.pool.work(self.choices)?;
            if let Some(told) = self.legacy.pool.told.pop_front() {
                self.hears(told)?;
            } else if let Some(event) = self.writer.as_mut().and_then(|writer| writer.events.pop_front()) {
                self.step_volume(event)?;
            } else if self.asks_at.is_some_and(|at| at <= self.legacy.pool.now) {
                self.asks_at = None;
                self.asks();
            } else if !self.goes_on()? {
                return Ok(());
            }
        }
    }

    fn asks(&mut self) {
        if self.writer.is_some() {
            return self.renew();
        }
        let attach = Attach::new(false, format!("writer {}", self.number));
        self.legacy.pool.call(Caller::Attach, Call::Attach { name: NAME.into(), attach });
    }

    fn hears(&mut self, told: Told) -> Result<(), String> {
        let again = Some(self.legacy.pool.now + RETRY_NS);
        match (told, &mut self.writer) {
            (Told::Attached(Some(Ok(attached))), None) => {
                let (token, unconfirmed) = (attached.token, &attached.unconfirmed);
                if !self.legacy.pool.has_lease(token) {
                    return Err(format!("lease {token} is told of, and not stored"));
                }
                self.legacy.pool.shut_out(self.number, unconfirmed);
                self.legacy.attached = Some(attached);
                self.is_let_in = true;
            }
            (Told::Attached(Some(Err(refusal))), None) if refusal.code != RefusalCode::Conflict => {
                return Err(format!("it is not let in: {refusal:?}"));
            }
            (Told::Attached(_), None) => self.asks_at = again,
            (told, Some(_)) => return self.writer_hears(told),
            // Of connections of who is dead.
            (Told::Admitted(..) | Told::NotAdmitted(..) | Told::Ended(..), None) => {}
            (told, None) => return Err(format!("nobody waits for {told:?}")),
        }
        Ok(())
    }

    fn time_passes(&mut self) -> Result<(), String> {
        let now = self.legacy.pool.now;
        let eve = self.legacy.pool.lease_until.saturating_sub(MILLISECOND_NS);
        let eve = (self.writer.is_none() && self.number > 0).then_some(eve);
        let own = self.writer.iter().flat_map(|writer| {
            let refused =
                writer.links.iter().filter_map(|link| link.opening).map(|at| at + CONNECT_DEADLINE_NS);
            refused.chain(writer.wake_at)
        });
        let all = self.legacy.pool.due().chain(own).chain(self.asks_at).chain(eve);
        // What is due and was not done then waits for somebody.
        let Some(next) = all.filter(|at| *at > now).min() else {
            return Err("nothing is to happen any more".into());
        };
        let due = self.writer.as_ref().and_then(|writer| writer.wake_at).is_some_and(|at| at <= now);
        let now = if due { now + 1 } else { next };
        self.legacy.pool.time_is(now)?;
        self.legacy.pool.has_changed |= eve.is_some_and(|eve| eve == now);
        self.from = 0;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if writer.wake_at.is_some_and(|at| at <= now) {
            writer.wake_at = None;
            writer.events.push_back(Event::Wake);
        }
        self.gives_up_opening()
    }

    /// It is killed. Some of what is on its way to donors still arrives, of each from the front on; the rest
    /// is lost, or comes late.
    fn left(mut self) -> Result<End, String> {
        let mut rest = Vec::new();
        for at in 0..self.legacy.pool.donors.len() {
            let donor = &self.legacy.pool.donors[at];
            let hears = donor.is_there() && donor.unheard.is_empty();
            let own = donor.conns.iter().filter(|conn| conn.life == self.number);
            let own: Vec<(ConnId, usize)> = own.map(|conn| (conn.id, conn.halves())).collect();
            for (id, halves) in own {
                let arrive = self.choices.choose(if hears { halves + 1 } else { 1 });
                for _ in 0..arrive {
                    self.legacy.pool.deliver(at, id)?;
                }
                rest.push((at, id));
            }
        }
        let there = |at: &usize| self.legacy.pool.donors[*at].is_there();
        let asks = |(at, id): &(usize, ConnId)| {
            self.legacy.pool.donors[*at].conn(*id).is_some_and(|conn| !conn.asks.is_empty())
        };
        let is_late = rest.iter().any(|of| there(&of.0) && asks(of)) && self.choices.choose(2) == 1;
        for (at, id) in rest {
            let lost = self.legacy.pool.donors[at].is_there() && !is_late;
            self.legacy.pool.hang_up(at, id, lost)?;
        }
        self.legacy.pool.told.clear();
        self.legacy.pool.writer_ends();
        self.legacy.pool.work(self.choices)?;
        self.legacy.pool.told.clear();
        self.legacy.attached = None;
        self.legacy.pool.has_changed = true;
        Ok(End::Left(Box::new(self.legacy), self.number + 1))
    }
}
