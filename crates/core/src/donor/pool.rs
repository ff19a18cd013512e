//! The donor's side of its pool: joining, the standing sync, and how it leaves.
//!
//! Owns what was asked of the coordinator and when to ask again. Key invariants: one question at a time; a
//! coordinator that is unreachable changes nothing for who is connected; memory is wiped by the word of the
//! pool that it belongs to and of nobody else: whoever answers in that one's place is refused, for as long as
//! it takes (a person may end the donor, and its machine's owner); who leaves says goodbye with data only
//! when it was told to, or when its time to drain is over. Tests: `tests/donor_pool.rs`.

use super::{Donor, Effect, Exit};
use crate::api::{AtStake, Duties, Lineage, Refusal, RefusalCode};
use crate::disk::Before;
use crate::limits::{ASLEEP_NS, DRAIN_NS, GOODBYE_NS, HEARTBEAT_NS, SECOND_NS};
use crate::map::{DonorId, Incarnation, PoolId};
use crate::units::Time;

/// How long after a refused or unanswered question it is asked again.
const RETRY_NS: u64 = SECOND_NS;
/// A coordinator that answers a sync at once without news is not asked faster than this.
const ASK_GAP_NS: u64 = HEARTBEAT_NS / 10;

#[derive(Clone, Debug)]
pub(super) struct Pool {
    identity: DonorId,
    /// Of a disk: which run this is.
    pub(super) incarnation: Option<Incarnation>,
    pub(super) before: Before,
    /// Whose volumes the extents belong to.
    pub(super) pool: Option<PoolId>,
    standing: Standing,
    /// A question is under way.
    asked: bool,
    asked_at: Time,
    /// The revision that the last sync named.
    told: u64,
    /// When to ask next, while nothing is under way.
    ask_at: Option<Time>,
    drain: Option<Drain>,
    left_with: Option<LeftWith>,
    /// The last question was answered.
    answered: bool,
    /// The time of the last step, and when the next one was asked for.
    stepped_at: Time,
    wake_at: Option<Time>,
}

/// The wish to go as soon as nothing is lost by it.
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// When to go with whatever is held.
    until: Option<Time>,
    /// Since when nothing is held.
    empty_since: Option<Time>,
    /// The coordinator was told so while nothing was held, and did not dismiss the donor, or cannot be told.
    told: bool,
}

/// Where a donor stands that goes when what it holds has been moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draining {
    /// When it goes with whatever is held; time that the machine slept does not count. None: never.
    pub until: Option<Time>,
    /// The coordinator answers.
    pub answered: bool,
    /// The volumes that are still to be moved, by name.
    pub volumes: Vec<String>,
    /// What of them would be lost if it and all others that are leaving went now, as far as the coordinator
    /// said.
    pub at_stake: Option<Vec<AtStake>>,
}

/// What a donor held when it went of its own accord; what it was let go with is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftWith {
    /// Extents of 64 MiB that volumes had here.
    pub extents: u32,
    /// The volumes of that, by name.
    pub volumes: Vec<String>,
    /// The time that it was given to move it was over.
    pub timed_out: bool,
    /// What of them is lost if all others that are leaving go, too, as far as the coordinator said.
    pub at_stake: Option<Vec<AtStake>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// To join next.
    Outside,
    Member,
    /// What it holds is not for who answers where its coordinator did, or its coordinator does not take it
    /// back: it keeps that and goes on asking.
    Estranged(Refusal),
    Leaving {
        exit: Exit,
        goodbye_heard: bool,
        until: Time,
    },
    Ended,
}

impl Pool {
    pub(super) fn new(identity: DonorId) -> Self {
        Pool {
            identity,
            incarnation: None,
            before: Before::default(),
            pool: None,
            standing: Standing::Outside,
            asked: false,
            asked_at: 0,
            told: 0,
            ask_at: None,
            drain: None,
            left_with: None,
            answered: true,
            stepped_at: 0,
            wake_at: None,
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.standing, Standing::Leaving { .. } | Standing::Ended)
    }
}

impl Donor {
    /// The identity that `new` was given.
    #[must_use]
    pub fn identity(&self) -> DonorId {
        self.pool.identity
    }

    /// Extents that hold a volume's data.
    #[must_use]
    pub fn extents_held(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(u32::MAX)
    }

    /// Why what it holds cannot be moved, while it has to be.
    #[must_use]
    pub fn stuck(&self) -> Option<&str> {
        self.duties.stuck.as_deref()
    }

    /// Volumes that it shall attach, by name, to move or to rebuild what nobody else will.
    #[must_use]
    pub fn tends(&self) -> Vec<&str> {
        let tends = self.duties.volumes.iter().filter(|duty| duty.tend);
        tends.map(|duty| duty.name.as_str()).collect()
    }

    /// The pool that it is in, or was in last.
    #[must_use]
    pub fn pool(&self) -> Option<PoolId> {
        self.pool.pool
    }

    /// Why it is in no pool, while it keeps what it holds of one.
    #[must_use]
    pub fn estranged(&self) -> Option<&Refusal> {
        match &self.pool.standing {
            Standing::Estranged(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// `None` unless it was told to leave and is still here.
    #[must_use]
    pub fn draining(&self) -> Option<Draining> {
        let drain = self.pool.drain.filter(|_| !self.pool.is_leaving())?;
        let (volumes, at_stake) = (self.volumes_held(), self.duties.at_stake.clone());
        Some(Draining { until: drain.until, answered: self.pool.answered, volumes, at_stake })
    }

    /// Set once it went of its own accord while it held data.
    #[must_use]
    pub fn left_with(&self) -> Option<&LeftWith> {
        self.pool.left_with.as_ref()
    }

    /// The time of this step. What this machine slept through was not time to move anything in.
    pub(super) fn awake(&mut self, now: Time) -> Time {
        let now = now.max(self.pool.stepped_at);
        let last = std::mem::replace(&mut self.pool.stepped_at, now);
        if self.pool.wake_at.is_some_and(|due| now > due + ASLEEP_NS)
            && let Some(drain) = &mut self.pool.drain
        {
            drain.until = drain.until.map(|until| until + (now - last));
        }
        now
    }

    fn volumes_held(&self) -> Vec<String> {
        let holding = self.duties.volumes.iter().filter(|duty| !duty.extents.is_empty());
        holding.map(|duty| duty.name.clone()).collect()
    }

    fn holds_memory(&self) -> bool {
        !(self.owners.is_empty() && self.is_clean())
    }

    pub(super) fn ask(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let donor = self.pool.identity;
        match self.pool.standing {
            Standing::Outside | Standing::Estranged(_) => {
                let pool = self.pool.pool.filter(|_| self.holds_memory());
                let revision = pool.map_or(0, |_| self.confirmed);
                let lineage = self.lineage();
                effects.push(Effect::Join { donor, pool, revision, lineage });
            }
            Standing::Member => {
                self.pool.told = self.confirmed;
                effects.push(self.sync(false));
            }
            Standing::Leaving { .. } | Standing::Ended => return,
        }
        (self.pool.asked, self.pool.asked_at, self.pool.ask_at) = (true, now, None);
    }

    /// Which run of a disk's donor asks. That it did is put down before anybody hears it.
    fn lineage(&mut self) -> Option<Box<Lineage>> {
        let Pool { incarnation, before, .. } = &mut self.pool;
        let incarnation = (*incarnation)?;
        let Before { last, tried } = before.clone();
        before.tries(incarnation);
        Some(Box::new(Lineage { incarnation, last, tried }))
    }

    fn sync(&self, goodbye: bool) -> Effect {
        let connections = u32::try_from(self.conns.len()).unwrap_or(u32::MAX);
        let Donor { confirmed: revision, offered, .. } = *self;
        let (donor, leaving) = (self.pool.identity, self.pool.drain.is_some());
        let Pool { pool, incarnation, .. } = self.pool;
        Effect::Sync { donor, pool, revision, connections, leaving, goodbye, offered, incarnation }
    }

    /// The coordinator hears it now: a long poll under way is given up for it.
    fn tell(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.pool.standing == Standing::Member {
            self.ask(now, effects);
        }
    }

    pub(super) fn offer(&mut self, now: Time, extents: u32, effects: &mut Vec<Effect>) {
        let extents = extents.min(self.extents);
        if self.offered != extents {
            self.offered = extents;
            self.tell(now, effects);
        }
    }

    pub(super) fn drain(&mut self, now: Time, bounded: bool, effects: &mut Vec<Effect>) {
        let until = bounded.then(|| now + DRAIN_NS);
        if let Some(drain) = &mut self.pool.drain {
            drain.until = drain.until.or(until);
            return;
        }
        let told = self.pool.standing != Standing::Member;
        self.pool.drain = Some(Drain { until, empty_since: None, told });
        self.tell(now, effects);
    }

    /// Goes when nothing is lost by it, or when its time is over.
    pub(super) fn drain_advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let empty = !self.holds_memory();
        let Some(drain) = &mut self.pool.drain else { return };
        drain.empty_since = if empty { drain.empty_since.or(Some(now)) } else { None };
        let patience_is_over = drain.empty_since.is_some_and(|since| now >= since + GOODBYE_NS);
        let done = empty && (drain.told || patience_is_over);
        if done || drain.until.is_some_and(|until| now >= until) {
            self.leave(now, Exit::Terminated, effects);
        }
    }

    /// The last sync, which said that it leaves, was answered without a dismissal; or nobody is there to
    /// answer.
    fn drain_is_told(&mut self) {
        let empty = !self.holds_memory();
        if let Some(drain) = &mut self.pool.drain {
            drain.told = empty;
        }
    }

    pub(super) fn joined(&mut self, now: Time, pool: PoolId, effects: &mut Vec<Effect>) {
        if self.pool.is_leaving() {
            return;
        }
        (self.pool.asked, self.pool.answered) = (false, true);
        if let Some(own) = self.pool.pool.filter(|own| *own != pool && self.holds_memory()) {
            let message =
                format!("pool {pool} takes this donor, which holds memory of pool {own} and keeps it");
            return self.join_refused(now, Refusal { code: RefusalCode::OtherPool, message }, effects);
        }
        if let Some(drain) = &mut self.pool.drain {
            drain.told = false;
        }
        if self.pool.pool != Some(pool) {
            // It holds nothing: start counting anew.
            self.pool.pool = Some(pool);
            self.take_on(Duties::default(), effects);
            self.confirmed = 0;
        }
        self.pool.standing = Standing::Member;
        if let Some(incarnation) = self.pool.incarnation {
            self.pool.before = Before { last: Some(incarnation), tried: Vec::new() };
        }
        self.ask(now, effects);
    }

    pub(super) fn join_refused(&mut self, now: Time, refusal: Refusal, effects: &mut Vec<Effect>) {
        if self.pool.is_leaving() {
            return;
        }
        self.pool.asked = false;
        self.drain_is_told();
        self.pool.ask_at = Some(now + RETRY_NS);
        match refusal.code {
            // That passes.
            RefusalCode::Unavailable | RefusalCode::Standby | RefusalCode::Damaged => {}
            // A person took it out: this is the word of its own pool, for another says that it is another.
            RefusalCode::Gone | RefusalCode::Forbidden => self.leave(now, Exit::Refused(refusal), effects),
            // It was reached before, and may be again.
            RefusalCode::Unreachable if self.pool.pool.is_some() => {}
            _ if self.holds_memory() => self.pool.standing = Standing::Estranged(refusal),
            _ if self.conns.is_empty() => self.leave(now, Exit::Refused(refusal), effects),
            _ => {}
        }
    }

    pub(super) fn heard(&mut self, now: Time, duties: Duties, effects: &mut Vec<Effect>) {
        match &mut self.pool.standing {
            Standing::Member => (self.pool.asked, self.pool.answered) = (false, true),
            Standing::Leaving { goodbye_heard, .. } => {
                *goodbye_heard = true;
                return;
            }
            Standing::Outside | Standing::Estranged(_) | Standing::Ended => return,
        }
        if duties.dismissed {
            return self.leave(now, Exit::Dismissed, effects);
        }
        let news = duties.revision > self.duties.revision || std::mem::take(&mut self.returned);
        if news {
            self.take_on(duties, effects);
        } else {
            (self.duties.stuck, self.duties.at_stake) = (duties.stuck, duties.at_stake);
            self.drain_is_told();
        }
        // What is under way is confirmed when it is done (`pool_advance`); until then this is the heartbeat.
        let busy = news || self.confirmed != self.duties.revision;
        self.pool.ask_at =
            Some(if busy { now + HEARTBEAT_NS } else { now.max(self.pool.asked_at + ASK_GAP_NS) });
    }

    pub(super) fn forgotten(&mut self, now: Time) {
        match &mut self.pool.standing {
            Standing::Member => {
                self.pool.asked = false;
                self.pool.standing = Standing::Outside;
                self.pool.ask_at = Some(now.max(self.pool.asked_at + ASK_GAP_NS));
                self.drain_is_told();
            }
            Standing::Leaving { goodbye_heard, .. } => *goodbye_heard = true,
            Standing::Outside | Standing::Estranged(_) | Standing::Ended => {}
        }
    }

    pub(super) fn unreachable(&mut self, now: Time) {
        (self.pool.asked, self.pool.answered) = (false, false);
        self.drain_is_told();
        match &mut self.pool.standing {
            Standing::Leaving { goodbye_heard, .. } => *goodbye_heard = true,
            _ => self.pool.ask_at = Some(now + RETRY_NS),
        }
    }

    /// Drops everyone, wipes everything, then ends.
    pub(super) fn leave(&mut self, now: Time, exit: Exit, effects: &mut Vec<Effect>) {
        if self.pool.is_leaving() {
            return;
        }
        if exit != Exit::Dismissed && self.extents_held() > 0 {
            let drain = self.pool.drain.and_then(|drain| drain.until);
            self.pool.left_with = Some(LeftWith {
                extents: self.extents_held(),
                volumes: self.volumes_held(),
                timed_out: drain.is_some_and(|until| now >= until),
                at_stake: self.duties.at_stake.clone(),
            });
        }
        let says_goodbye = exit == Exit::Terminated && self.pool.standing == Standing::Member;
        if says_goodbye {
            effects.push(self.sync(true));
            self.pool.asked = true;
        }
        self.pool.standing =
            Standing::Leaving { exit, goodbye_heard: !says_goodbye, until: now + GOODBYE_NS };
        self.take_on(Duties { revision: self.duties.revision, ..Duties::default() }, effects);
    }

    /// The pool's part of `advance`: tell what is done, start over, or end.
    pub(super) fn pool_advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match &self.pool.standing {
            Standing::Member if !self.pool.asked && self.pool.told != self.confirmed => {
                self.ask(now, effects)
            }
            Standing::Leaving { exit, goodbye_heard, until } => {
                let said = *goodbye_heard || now >= *until;
                if said && self.conns.is_empty() && self.is_clean() {
                    effects.push(Effect::Exit(exit.clone()));
                    self.pool.standing = Standing::Ended;
                }
            }
            _ => {}
        }
    }

    pub(super) fn run_timers(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.pool.ask_at.is_some_and(|at| at <= now && !self.pool.asked) {
            self.ask(now, effects);
        }
        let goodbye = match self.pool.standing {
            Standing::Leaving { until, .. } => Some(until).filter(|until| *until > now),
            Standing::Ended => None,
            _ => self.pool.ask_at.filter(|_| !self.pool.asked),
        };
        let drain = self.pool.drain.filter(|_| !self.pool.is_leaving());
        let empty = drain.and_then(|drain| drain.empty_since).map(|since| since + GOODBYE_NS);
        let wake = goodbye.into_iter().chain(empty).chain(drain.and_then(|drain| drain.until)).min();
        self.pool.wake_at = wake;
        effects.extend(wake.map(Effect::WakeAt));
    }
}
