//! One life of a walk: a writer that attaches, reads, writes and reads again, or is killed on the way.
//!
//! Owns its machine, what is on its way to donors and back, and what may happen next. Never: which of that
//! does (`Choices`). Tests: those of the walk.

use super::Choices;
use super::legacy::{Fate, Legacy, Truth, content};
use crate::bugs::Bug;
use crate::bytes::{BLOCK, SECTOR, Sums, sectors};
use crate::memory::ClientMemory;
use crate::network::Awaited;
use cheetah_core::donor::Ticket;
use cheetah_core::limits::{BLOCK_BYTES, CONNECT_DEADLINE_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::DonorId;
use cheetah_core::units::Time;
use cheetah_core::volume::{
    Effect, Event, Key, LinkFailure, Op, PartError, PartOp, Request, StatusRun, Tag, Volume,
};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// How long a donor stands still: shorter than it takes to be noticed, to be excluded, to be given up.
const STOPS_NS: [Time; 3] = [200 * MILLISECOND_NS, 7 * SECOND_NS, 45 * SECOND_NS];
/// A life that is not over then hangs.
const LIFE_NS: Time = 300 * SECOND_NS;

/// What a donor is asked.
#[derive(Debug)]
struct Ask {
    part: Key,
    awaited: Awaited,
    address: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    part: Key,
    awaited: Awaited,
    bytes: Vec<u8>,
    sums: Vec<u32>,
    listed: Option<Event>,
    result: Result<Vec<StatusRun>, PartError>,
}

/// One connection to a donor.
#[derive(Debug, Default)]
struct Link {
    session: u64,
    /// Asked for at that time, and not answered.
    opening: Option<Time>,
    is_up: bool,
    /// Parts that are not answered.
    sent: BTreeSet<u64>,
    asks: VecDeque<Ask>,
    /// The first of them is half there.
    half: Option<Ticket>,
    answers: VecDeque<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Deliver(usize),
    Answer(usize),
    Killed,
    DonorEnds(usize),
    DonorStops(usize, Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Attach,
    Read,
    Write,
    ReadAgain,
    /// When whoever stood still is back.
    ReadAtLast,
    Over,
}

pub(super) enum End {
    Over,
    /// From here on all was walked already.
    Known,
    Left(Box<Legacy>),
}

struct Life<'a> {
    legacy: Legacy,
    choices: &'a mut Choices,
    /// How the world looked where lives were before.
    known: &'a mut HashSet<u64>,
    bug: Option<Bug>,
    number: usize,
    may_end: bool,
    volume: Volume,
    memory: ClientMemory,
    effects: Vec<Effect>,
    events: VecDeque<Event>,
    links: Vec<Link>,
    wake_at: Option<Time>,
    unwanted: BTreeSet<u64>,
    open: BTreeMap<Tag, (bool, usize, usize, u8)>,
    tags: Tag,
    goal: Goal,
    /// Deliveries go to donors from here on.
    from: usize,
    /// Something has happened since the last choice, and not only time has passed.
    has_changed: bool,
    began: Time,
    steps: u64,
}

/// A life to its end.
pub(super) fn live(
    legacy: Legacy,
    life: (usize, usize),
    bug: Option<Bug>,
    choices: &mut Choices,
    known: &mut HashSet<u64>,
) -> Result<(End, u64), String> {
    let (number, lives) = life;
    let is_first = number == 0;
    let mut sums = Sums::default();
    sums.grow(1, is_first);
    let links = legacy.donors.iter().map(|_| Link::default()).collect();
    let life = Life {
        volume: Volume::new(legacy.map.clone(), false, is_first),
        began: legacy.now,
        legacy,
        choices,
        known,
        bug,
        number,
        may_end: !is_first && number + 1 < lives,
        memory: ClientMemory::new(sums, 0),
        effects: Vec::new(),
        events: VecDeque::from([Event::Start]),
        links,
        wake_at: None,
        unwanted: BTreeSet::new(),
        open: BTreeMap::new(),
        tags: 0,
        goal: Goal::Attach,
        from: 0,
        has_changed: true,
        steps: 0,
    };
    life.live(is_first)
}

impl Life<'_> {
    /// To its end. `settles`: nothing happens but what has to, until its first write is acknowledged.
    fn live(mut self, settles: bool) -> Result<(End, u64), String> {
        loop {
            self.settle()?;
            if !settles && self.choices.are_new() && self.was_here() {
                return Ok((End::Known, self.steps));
            }
            if self.goal == Goal::Over {
                let steps = self.steps;
                return Ok((if settles { End::Left(Box::new(self.left())) } else { End::Over }, steps));
            }
            if self.legacy.now > self.began + LIFE_NS {
                return Err(format!("it hangs at {:?}: {:?}", self.goal, self.open));
            }
            let steps = self.possible(settles);
            let pending = steps.iter().any(|step| matches!(step, Step::Deliver(_) | Step::Answer(_)));
            // Time passes where nothing else does, and it may always be the end.
            let count = steps.len() + usize::from(!pending);
            self.has_changed = false;
            match steps.get(self.choices.choose(count)).copied() {
                None => self.time_passes()?,
                Some(Step::Killed) => {
                    let steps = self.steps;
                    return Ok((End::Left(Box::new(self.left())), steps));
                }
                Some(step) => self.take(step)?,
            }
        }
    }

    /// Whether a life with this number came so far before, and donors, what is on its way, and the volume
    /// looked the same from outside.
    fn was_here(&mut self) -> bool {
        let mut hasher = DefaultHasher::new();
        let wakes_in = self.wake_at.map(|at| at.saturating_sub(self.legacy.now));
        let Life { number, goal, from, has_changed, open, .. } = self;
        (*number, *goal as u8, *from, *has_changed, &*open, self.volume.is_settled(), wakes_in)
            .hash(&mut hasher);
        self.legacy.digest().hash(&mut hasher);
        for link in &self.links {
            (link.is_up, link.opening.map(|at| self.legacy.now - at), link.half.is_some()).hash(&mut hasher);
            (&link.sent, format!("{:?} {:?}", link.asks, link.answers)).hash(&mut hasher);
        }
        format!("{:?}", self.volume.lost().collect::<Vec<_>>()).hash(&mut hasher);
        !self.known.insert(hasher.finish())
    }

    fn possible(&self, settles: bool) -> Vec<Step> {
        let there = |at: &usize| self.legacy.donors[*at].fate == Fate::There;
        let all = 0..self.links.len();
        let asked = |at: &usize| !self.links[*at].asks.is_empty();
        let answered = |at: &usize| self.links[*at].is_up && !self.links[*at].answers.is_empty();
        let mut steps: Vec<Step> =
            all.clone().skip(self.from).filter(there).filter(asked).map(Step::Deliver).collect();
        steps.extend(all.clone().filter(answered).map(Step::Answer));
        if settles {
            steps.truncate(1);
            return steps;
        }
        if !self.has_changed {
            return steps;
        }
        if self.legacy.fault_left {
            steps.extend(all.clone().filter(there).map(Step::DonorEnds));
            let stops = |at| STOPS_NS.map(|long| Step::DonorStops(at, long));
            steps.extend(all.filter(there).flat_map(stops));
        }
        steps.extend(self.may_end.then_some(Step::Killed));
        steps
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        self.from = if let Step::Deliver(at) = step { at } else { 0 };
        self.has_changed = true;
        match step {
            Step::Deliver(at) => self.deliver(at),
            Step::Answer(at) => self.answer(at)?,
            Step::DonorEnds(at) => {
                self.legacy.fault_left = false;
                self.legacy.donors[at].fate = Fate::Gone;
                let link = &mut self.links[at];
                (link.asks, link.half) = (VecDeque::new(), None);
                if link.is_up {
                    self.fails(at, LinkFailure::Broken("its process ended".into()));
                }
            }
            Step::DonorStops(at, long) => {
                self.legacy.fault_left = false;
                self.legacy.donors[at].fate = Fate::StillUntil(self.legacy.now + long);
            }
            Step::Killed => unreachable!("it is over then"),
        }
        Ok(())
    }

    /// Until nothing follows by itself.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.steps += 1;
                self.volume.step(self.legacy.now, event, &mut self.effects);
                for effect in std::mem::take(&mut self.effects) {
                    self.carry_out(effect)?;
                }
            } else if !self.opens() && !self.goes_on()? {
                return Ok(());
            }
        }
    }

    /// Who is asked for a connection answers, if it does.
    fn opens(&mut self) -> bool {
        for at in 0..self.links.len() {
            let Some(since) = self.links[at].opening else { continue };
            match self.legacy.donors[at].fate {
                Fate::There => {
                    self.fence(at);
                    let link = &mut self.links[at];
                    (link.is_up, link.opening) = (true, None);
                    let donor = DonorId(at as u64);
                    self.events.push_back(Event::Opened { donor, session: link.session });
                }
                Fate::Gone => self.fails(at, LinkFailure::Refused("nothing listens there".into())),
                Fate::StillUntil(_) if self.legacy.now >= since + CONNECT_DEADLINE_NS => {
                    self.fails(at, LinkFailure::NotOpened("no connection within 2 s".into()));
                }
                Fate::StillUntil(_) => continue,
            }
            return true;
        }
        false
    }

    /// Nobody waits for its answers any more.
    fn drop_link(&mut self, at: usize) {
        let link = &mut self.links[at];
        (link.is_up, link.opening) = (false, None);
        link.answers.clear();
        let parts = std::mem::take(&mut link.sent);
        parts.into_iter().for_each(|part| self.memory.end_part(part));
    }

    fn fails(&mut self, at: usize, failure: LinkFailure) {
        self.drop_link(at);
        let link = &self.links[at];
        self.events.push_back(Event::Failed { donor: DonorId(at as u64), session: link.session, failure });
    }

    /// Of what an older connection brought nothing more lands.
    fn fence(&mut self, at: usize) {
        let link = &mut self.links[at];
        link.asks.clear();
        link.answers.clear();
        if link.half.take().is_some() {
            self.legacy.donors[at].memory.sign(0, BLOCK);
        }
    }

    fn time_passes(&mut self) -> Result<(), String> {
        let now = self.legacy.now;
        let back = self.legacy.donors.iter().filter_map(|donor| match donor.fate {
            Fate::StillUntil(until) => Some(until),
            _ => None,
        });
        let refused = self.links.iter().filter_map(|link| link.opening).map(|at| at + CONNECT_DEADLINE_NS);
        let next = back.chain(refused).chain(self.wake_at).filter(|at| *at > now).min();
        let Some(next) = next.or(self.wake_at) else {
            return Err(format!("nothing is to happen any more at {:?}", self.goal));
        };
        self.legacy.now = next.max(now + 1);
        for donor in &mut self.legacy.donors {
            if matches!(donor.fate, Fate::StillUntil(until) if until <= self.legacy.now) {
                donor.fate = Fate::There;
            }
        }
        if self.wake_at.is_some_and(|at| at <= self.legacy.now) {
            self.wake_at = None;
            self.events.push_back(Event::Wake);
        }
        self.from = 0;
        Ok(())
    }

    /// Does what its user does next; false: that waits.
    fn goes_on(&mut self) -> Result<bool, String> {
        if !self.open.is_empty() || !self.volume.has_room() {
            return Ok(false);
        }
        let blocks = self.legacy.blocks.len();
        match self.goal {
            Goal::Attach => {
                self.goal = Goal::Read;
                self.submit(Op::Read, 0, blocks);
            }
            Goal::Read => {
                self.goal = Goal::Write;
                self.legacy.version += 1;
                // All of the row, or a block of it, or two at once.
                match self.choices.choose(4) {
                    0 => self.submit(Op::Write, 0, blocks),
                    1 => self.submit(Op::Write, 0, 1),
                    2 => self.submit(Op::Write, blocks - 1, 1),
                    _ => [0, blocks - 1].into_iter().for_each(|block| self.submit(Op::Write, block, 1)),
                }
            }
            Goal::Write => {
                self.goal = Goal::ReadAgain;
                self.submit(Op::Read, 0, blocks);
            }
            Goal::ReadAgain | Goal::ReadAtLast if self.is_waiting() => return Ok(false),
            Goal::ReadAgain => {
                self.goal = Goal::ReadAtLast;
                self.submit(Op::Read, 0, blocks);
            }
            Goal::ReadAtLast | Goal::Over => {
                self.goal = Goal::Over;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_waiting(&self) -> bool {
        self.legacy.donors.iter().any(|donor| matches!(donor.fate, Fate::StillUntil(_)))
    }

    fn submit(&mut self, op: Op, block: usize, count: usize) {
        self.tags += 1;
        let version = self.legacy.version;
        let bytes = match op {
            Op::Write => (block..block + count).flat_map(|block| content(version, block)).collect(),
            _ => vec![0; count * BLOCK],
        };
        if op == Op::Write {
            for truth in &mut self.legacy.blocks[block..block + count] {
                truth.maybe.insert(version);
            }
        }
        self.memory.payloads.insert(self.tags, bytes);
        self.open.insert(self.tags, (op == Op::Write, block, count, version));
        let len = u32::try_from(count as u64 * BLOCK_BYTES).expect("a row");
        let request = Request { op, offset: block as u64 * BLOCK_BYTES, len };
        self.events.push_back(Event::Submit { tag: self.tags, request });
    }

    fn completed(&mut self, tag: Tag, result: Result<(), impl std::fmt::Debug>) -> Result<(), String> {
        let bytes = self.memory.end_request(tag)?.unwrap_or_default();
        let Some((is_write, first, count, version)) = self.open.remove(&tag) else { return Ok(()) };
        if let Err(error) = result {
            let what = if is_write { "a write" } else { "a read" };
            return Err(format!("{what} of {count} blocks from {first} on failed: {error:?}"));
        }
        for (nth, truth) in self.legacy.blocks[first..first + count].iter_mut().enumerate() {
            if is_write {
                *truth = Truth { known: version, maybe: BTreeSet::new() };
                continue;
            }
            let (block, found) = (first + nth, &bytes[nth * BLOCK..(nth + 1) * BLOCK]);
            let can_be = std::iter::once(truth.known).chain(truth.maybe.iter().copied());
            let Some(is) = can_be.into_iter().find(|version| content(*version, block) == found) else {
                return Err(format!("block {block} reads as {found:?}, and can be of {truth:?}"));
            };
            // Whoever reads it again finds the same.
            *truth = Truth { known: is, maybe: BTreeSet::new() };
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), String> {
        self.has_changed |= !matches!(effect, Effect::WakeAt(_));
        match effect {
            Effect::Open { donor, session } => {
                let link = &mut self.links[donor.0 as usize];
                (link.session, link.opening, link.is_up) = (session, Some(self.legacy.now), false);
            }
            Effect::Probe { donor, session } => {
                if self.legacy.donors[donor.0 as usize].fate == Fate::There {
                    self.events.push_back(Event::Reached { donor, session });
                }
            }
            // What is on its way may still arrive.
            Effect::Close { donor, .. } => {
                self.drop_link(donor.0 as usize);
            }
            Effect::Send { donor, part, op, address, mem, scatter, fragment, mark } => {
                let awaited = Awaited { op, mem, scatter, fragment, mark };
                let bytes = self.memory.begin_part(part.to_u64(), awaited)?;
                let ask = Ask { part, awaited, address, bytes };
                let link = &mut self.links[donor.0 as usize];
                link.sent.insert(part.to_u64());
                link.asks.push_back(ask);
            }
            Effect::Abandon { part, .. } => {
                self.memory.abandon_part(part.to_u64())?;
                self.unwanted.insert(part.to_u64());
            }
            Effect::Combine(combine) => self.memory.combine(&combine)?,
            Effect::Copy { from, to, len } => self.memory.copy(from, to, len)?,
            Effect::Zero { at, len } => self.memory.zero(at, len)?,
            Effect::Verify { job, fragment, at, len } => {
                let right = self.memory.verify(fragment, at, len)?;
                self.events.push_back(Event::Verified { job, right });
            }
            Effect::Compare { job, a, b, len } => {
                let right = self.memory.compare(a, b, len)?;
                self.events.push_back(Event::Verified { job, right });
            }
            Effect::Learn { fragment, copies, mem, scatter } => {
                self.memory.learn(fragment, copies, mem, scatter)?;
            }
            Effect::Forget { fragment, len } => self.memory.forget(fragment, len),
            Effect::Amend(amend) => {
                if !amend.bad.is_empty() {
                    return Err(format!("{:?} are given up", amend.bad));
                }
                // It may start again before it has stored that, or before it has answered.
                let restart = self.choices.choose(if self.legacy.restart_left { 3 } else { 1 });
                self.legacy.restart_left &= restart == 0;
                if restart != 1 {
                    self.legacy.amend(&amend);
                }
                let answer = (restart == 0).then(|| self.legacy.map.clone());
                self.events.push_back(Event::Amended(answer));
            }
            Effect::Complete { tag, result, .. } => self.completed(tag, result)?,
            Effect::WakeAt(at) => self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at))),
            Effect::Offer { .. } | Effect::Finished => {}
            Effect::Fetch { .. } => return Err("nothing has a source here".into()),
        }
        Ok(())
    }

    /// The next of what is on its way to a donor arrives: of a write first one half, then the other.
    fn deliver(&mut self, at: usize) {
        let (link, donor) = (&mut self.links[at], &mut self.legacy.donors[at]);
        let Some(Ask { awaited, address, bytes, .. }) = link.asks.front() else { return };
        let (from, len) = (sectors(*address), sectors(awaited.scatter.len.into()));
        if !bytes.is_empty() && link.half.is_none() {
            let kept = donor.memory.keep(from, len).filter(|_| awaited.mark.is_some_and(|mark| mark.keep));
            let mark = awaited.mark.expect("writes of rows with parity have numbers");
            let spilt = |write| panic!("{write:?} is one of few");
            link.half = Some(donor.ledger.begin(mark, *address, len as u64 * SECTOR, kept, spilt));
            donor.memory.write(from, &bytes[..len / 2]);
            return;
        }
        let Some(Ask { part, awaited, bytes, .. }) = link.asks.pop_front() else { return };
        let mut answer = Answer {
            part,
            awaited,
            bytes: Vec::new(),
            sums: Vec::new(),
            listed: None,
            result: Ok(Vec::new()),
        };
        let whole = |hole| Ok(vec![StatusRun { len: awaited.scatter.len, hole }]);
        match awaited.op {
            PartOp::Write | PartOp::Sparse => {
                donor.memory.write(from + len / 2, &bytes[len / 2..]);
                donor.memory.sign(from, len);
                donor.ledger.landed(link.half.take().expect("its first half is there"));
                answer.sums = donor.memory.sums(from, len);
            }
            PartOp::Read => {
                (answer.bytes, answer.sums) = (donor.memory.get(from, len), donor.memory.sums(from, len));
            }
            PartOp::Survey => {
                let writes = if self.bug == Some(Bug::TornForWhole) {
                    Vec::new()
                } else {
                    donor.ledger.within(0, BLOCK_BYTES).collect()
                };
                answer.listed = Some(Event::Listed { part, complete: donor.ledger.complete(), writes });
                answer.result = whole(true);
            }
            PartOp::Undo => {
                let end = (from + len) as u64 * SECTOR;
                let number = awaited.mark.map_or(0, |mark| mark.number);
                match donor.ledger.undo(number, from as u64 * SECTOR, end) {
                    None => answer.result = Err(PartError::Unsupported),
                    Some(_) if self.bug == Some(Bug::UndoForgotten) => {}
                    Some(pieces) => {
                        pieces.iter().for_each(|(at, kept)| donor.memory.put_back(sectors(*at), kept));
                    }
                }
            }
            PartOp::Age => {
                if let Some(mark) = awaited.mark {
                    donor.ledger.settle(mark.complete);
                }
            }
            PartOp::Flush => {}
            PartOp::Status | PartOp::Presence => answer.result = whole(false),
            PartOp::Verify | PartOp::Zero { .. } | PartOp::Trim => answer.result = whole(true),
        }
        link.answers.push_back(answer);
    }

    /// The next answer of a donor is heard.
    fn answer(&mut self, at: usize) -> Result<(), String> {
        let Some(answer) = self.links[at].answers.pop_front() else { return Ok(()) };
        let Answer { part, awaited, bytes, sums, listed, mut result } = answer;
        self.links[at].sent.remove(&part.to_u64());
        if self.unwanted.remove(&part.to_u64()) {
            return Ok(());
        }
        if awaited.op == PartOp::Read {
            self.memory.land(part.to_u64(), &awaited, 0, &bytes)?;
        }
        self.memory.end_part(part.to_u64());
        let blocks = match awaited.op {
            PartOp::Read => self.memory.wrong_blocks(&awaited, &sums)?,
            PartOp::Write | PartOp::Sparse => self.memory.wrongly_taken(&awaited, &sums)?,
            _ => 0,
        };
        if blocks > 0 {
            result = Err(PartError::Corrupt { blocks, forged: false });
        }
        self.events.extend(listed);
        self.events.push_back(Event::Answered { part, answer: result });
        Ok(())
    }

    /// It is killed. Some of what is on its way to donors still arrives, of each from the front on.
    fn left(mut self) -> Legacy {
        for at in 0..self.links.len() {
            if self.legacy.donors[at].fate == Fate::There {
                let writes = |ask: &Ask| !ask.bytes.is_empty();
                let halves = |ask: &Ask| 1 + usize::from(writes(ask));
                let link = &self.links[at];
                let all: usize = link.asks.iter().map(halves).sum();
                let all = all - usize::from(link.half.is_some());
                let arrive = self.choices.choose(all + 1);
                (0..arrive).for_each(|_| self.deliver(at));
            }
            self.fence(at);
        }
        self.legacy
    }
}
