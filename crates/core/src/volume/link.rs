//! The link to one donor: opened, up, broken, silent, slow, set aside, tried again.
//!
//! Owns the state of a link, and what is known of its donor's latency. Never: when a donor is waited for and
//! when it is given up (`watch`), or which requests there are, beyond the parts that wait for this link.
//!
//! ```text
//!   New -> Opening -> Up -> (broken, silent) -> Opening ...        parts wait while it opens
//!             |        \-> (late, slow, silent still) -\
//!             \-> (not opened) -> Down -> (retry; parts fail at once meanwhile) -> Up
//! ```
//!
//! Each opening has a new session number, higher than any before, also of a donor that had left the map. A
//! Cheetah donor drops the connections of older sessions before it admits a newer one, so a write that was
//! sent again can never be overtaken by its own first copy. A foreign server knows no sessions; a link to one
//! that broke stays down, because only that is certain.

use super::Key;
use super::job::{Part, Progress};
use super::slab::Slab;
use super::types::{Effect, LinkFailure, PartOp};
use crate::limits::{
    CONNECT_DEADLINE_NS, CONNECTIONS_FAR, CONNECTIONS_NEAR, DOUBT_NS, EXCLUDE_NS, FAR_NS, Patience,
    REQUEST_DEADLINE_NS,
};
use crate::map::{DonorId, Route, VolumeMap};
use crate::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// Connections to make to each of so many donors that work at once, a round trip of so long away.
#[must_use]
pub fn connections(donors: usize, round_trip_ns: u64) -> usize {
    let in_all = if round_trip_ns < FAR_NS { CONNECTIONS_NEAR } else { CONNECTIONS_FAR };
    in_all.div_ceil(donors.max(1))
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) state: State,
    pub(super) session: u64,
    /// Cheetah donors can be told which connections are stale.
    pub(super) fenced: bool,
    /// Writes were acknowledged since the last flush.
    pub(super) unflushed: bool,
    /// Something was sent since it last said that its disk has all.
    pub(super) undurable: bool,
    /// It refused this reader, by the map that there is.
    pub(super) shut_out: bool,
    /// Its process has ended: it is not waited for.
    pub(super) gone: bool,
    pub(super) waiting: VecDeque<Key>,
    /// What was sent, oldest first; keys of parts that are done are passed over.
    pub(super) owed: VecDeque<(Time, Key)>,
    /// Was up before: while it is opened again, others are asked first.
    pub(super) known: bool,
    /// Owes a read for longer than it usually takes.
    pub(super) late: bool,
    pub(super) answered: bool,
    /// It is not asked whether it is there before this.
    pub(super) doubt_from: Time,
    pub(super) silent_ticks: u64,
    pub(super) slow_ticks: u64,
    pub(super) latency: Latency,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    New,
    Opening {
        until: Time,
        /// Attempts that fail are made again until then; the next one, if nothing comes of this, at this
        /// time.
        again_at: Option<Time>,
    },
    Up,
    /// `probing`: an attempt to open it again is under way until `retry_at`.
    Down {
        why: String,
        hope: Hope,
        retry_at: Option<Time>,
        probing: bool,
        /// Attempts that failed.
        tries: u32,
        /// When it is named to the coordinator, again if that did not take it out of the map.
        exclude_at: Time,
    },
}

/// What all links together wait for: asked for at every event, while the state of a link changes rarely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkWaits {
    pub(super) wake_at: Option<Time>,
    pub(super) any_down: bool,
}

impl LinkWaits {
    pub(super) fn of(links: &BTreeMap<DonorId, Link>) -> LinkWaits {
        LinkWaits {
            wake_at: links.values().filter_map(Link::wake_at).min(),
            any_down: links.values().any(Link::is_down),
        }
    }
}

/// What is to be expected of a donor that was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hope {
    /// It may come back with what it holds.
    Some,
    /// It was there, and now makes no connection of use: it may be about to end, and then its host soon says
    /// so.
    Little,
    /// It was there, and what it held is gone or never believed again: nobody listens at its address any
    /// more, or one that does not know this volume, or it is a foreign server whose link broke.
    None,
}

impl State {
    /// With patience attempts are made for as long as a request may take.
    pub(super) fn opening(now: Time, patient: bool) -> State {
        let limit = if patient { REQUEST_DEADLINE_NS } else { CONNECT_DEADLINE_NS };
        State::Opening { until: now + limit, again_at: patient.then_some(now + CONNECT_DEADLINE_NS) }
    }
}

/// The links to all donors that the map names.
#[derive(Debug)]
pub(super) struct Links {
    of: BTreeMap<DonorId, Link>,
    /// None: the state of a link has changed since it was looked for.
    pub(super) waits: Option<LinkWaits>,
    /// The newest session of the links that are no more.
    pub(super) sessions_before: u64,
}

impl Links {
    pub(super) fn new(map: &VolumeMap) -> Links {
        let of = map.routes.iter().map(|(id, route)| (*id, Link::new(route, 0))).collect();
        Links { of, waits: None, sessions_before: 0 }
    }

    pub(super) fn get(&self, donor: DonorId) -> Option<&Link> {
        self.of.get(&donor)
    }

    pub(super) fn get_mut(&mut self, donor: DonorId) -> Option<&mut Link> {
        self.of.get_mut(&donor)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DonorId, &Link)> {
        self.of.iter().map(|(donor, link)| (*donor, link))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (DonorId, &mut Link)> {
        self.of.iter_mut().map(|(donor, link)| (*donor, link))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Link> {
        self.of.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.of.values_mut()
    }

    pub(super) fn is_up(&self, donor: DonorId) -> bool {
        self.of.get(&donor).is_some_and(Link::is_up)
    }

    pub(super) fn is_down(&self, donor: DonorId) -> bool {
        self.of.get(&donor).is_none_or(Link::is_down)
    }

    /// Those that cannot be reached, and why.
    pub(super) fn lost(&self) -> impl Iterator<Item = (DonorId, &str)> {
        self.iter().filter_map(|(donor, link)| match &link.state {
            State::Down { why, .. } => Some((donor, why.as_str())),
            _ => None,
        })
    }

    pub(super) fn all_settled(&self) -> bool {
        self.of.values().all(Link::is_settled)
    }

    /// Links to the donors that a newer map names as well.
    pub(super) fn add(&mut self, map: &VolumeMap) {
        self.waits = None;
        for (donor, route) in &map.routes {
            self.of.entry(*donor).or_insert_with(|| Link::new(route, self.sessions_before));
        }
    }

    /// A donor that is not in the map any more may come back, and sessions never go back.
    pub(super) fn remove(&mut self, donor: DonorId) {
        let link = self.of.remove(&donor);
        self.sessions_before = self.sessions_before.max(link.map_or(0, |link| link.session));
    }

    /// What they wait for.
    pub(super) fn waits(&mut self) -> LinkWaits {
        *self.waits.get_or_insert_with(|| LinkWaits::of(&self.of))
    }

    pub(super) fn check_invariants(&self) {
        let waits = self.waits.expect("it was looked for at the end of the step");
        assert_eq!(waits, LinkWaits::of(&self.of), "a link has changed unseen");
    }
}

impl std::ops::Index<DonorId> for Links {
    type Output = Link;

    fn index(&self, donor: DonorId) -> &Link {
        self.of.get(&donor).expect("a checked map routes every member")
    }
}

impl std::ops::IndexMut<DonorId> for Links {
    fn index_mut(&mut self, donor: DonorId) -> &mut Link {
        self.of.get_mut(&donor).expect("a checked map routes every member")
    }
}

/// How willingly a donor is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// It was up and is being opened again, or it is late.
    Poor,
    Good,
}

/// Smoothed latency and its mean deviation, as TCP keeps its round-trip time (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latency {
    pub(super) mean: u64,
    deviation: u64,
}

impl Latency {
    fn note(&mut self, sample: u64) {
        if self.mean == 0 {
            (self.mean, self.deviation) = (sample, sample / 2);
            return;
        }
        self.deviation = (3 * self.deviation + self.mean.abs_diff(sample)) / 4;
        self.mean = (7 * self.mean + sample) / 8;
    }

    fn late_after(self) -> u64 {
        self.mean + 4 * self.deviation
    }

    pub(super) fn hedge_after(self, patience: Patience) -> u64 {
        self.late_after().clamp(patience.hedge_min_ns, patience.hedge_max_ns)
    }
}

impl Link {
    /// `session`: the newest that any link before it may have had with the same donor.
    pub(super) fn new(route: &Route, session: u64) -> Self {
        Link {
            state: State::New,
            session,
            fenced: route.foreign_export.is_none(),
            unflushed: false,
            undurable: true,
            shut_out: false,
            gone: false,
            waiting: VecDeque::new(),
            owed: VecDeque::new(),
            known: false,
            late: false,
            answered: false,
            doubt_from: 0,
            silent_ticks: 0,
            slow_ticks: 0,
            latency: Latency::default(),
        }
    }

    /// Reached, or set aside.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(self.state, State::New | State::Opening { .. })
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// It is away, and its process may live.
    pub(super) fn may_return(&self) -> bool {
        !matches!(self.state, State::Down { hope: Hope::None, .. })
    }

    /// Why it is to be named to the coordinator now, if it is; then again after a while.
    pub(super) fn exclude(&mut self, now: Time) -> Option<String> {
        let State::Down { why, hope, exclude_at, .. } = &mut self.state else { return None };
        if *exclude_at > now {
            return None;
        }
        *exclude_at = now + EXCLUDE_NS;
        Some(if *hope == Hope::None { why.clone() } else { "it could not be reached".to_owned() })
    }

    /// What a failure says of a donor whose link is not opened again at once.
    pub(super) fn hope_after(&self, failure: &LinkFailure) -> Hope {
        match failure {
            LinkFailure::Refused(_) | LinkFailure::NotAdmitted(_) if self.known => Hope::None,
            LinkFailure::Broken(_) if !self.fenced => Hope::None,
            LinkFailure::NotOpened(_) if self.known => Hope::Little,
            _ => Hope::Some,
        }
    }

    /// `None` while it is set aside.
    pub(super) fn trust(&self) -> Option<Trust> {
        match self.state {
            State::Down { .. } => None,
            State::Up if !self.late => Some(Trust::Good),
            State::New | State::Opening { .. } if !self.known => Some(Trust::Good),
            _ => Some(Trust::Poor),
        }
    }

    pub(super) fn load(&self) -> usize {
        self.owed.len() + self.waiting.len()
    }

    fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Opening { until, again_at } => Some(again_at.map_or(until, |at| at.min(until))),
            State::Down { retry_at, .. } => retry_at,
            State::New | State::Up => None,
        }
    }

    pub(super) fn note_answer(&mut self, now: Time, sent_at: Time, op: PartOp) {
        self.answered = true;
        self.late = false;
        if matches!(op, PartOp::Read | PartOp::Write | PartOp::Sparse) {
            self.latency.note(now.saturating_sub(sent_at));
        }
    }

    pub(super) fn open(&mut self, donor: DonorId, effects: &mut Vec<Effect>) {
        self.session += 1;
        effects.push(Effect::Open { donor, session: self.session });
    }

    /// It has owed something at `now` for longer than it should.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        let due = DOUBT_NS.max(2 * self.latency.late_after());
        self.is_up() && self.owed.front().is_some_and(|(sent_at, _)| sent_at + due <= now)
    }

    pub(super) fn forget_answered(&mut self, parts: &Slab<Part>) {
        let owed = |key: Key| parts.get(key).is_some_and(|part| part.progress == Progress::Sent);
        while self.owed.front().is_some_and(|(_, key)| !owed(*key)) {
            self.owed.pop_front();
        }
    }

    pub(super) fn calm(&mut self) {
        (self.silent_ticks, self.slow_ticks, self.late) = (0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MILLISECOND_NS;
    use crate::volume::base::sample;

    fn link() -> Link {
        Link::new(&Route { name: "d".into(), address: "127.0.0.1:1".into(), foreign_export: None }, 4)
    }

    #[test]
    fn who_was_never_reached_is_asked_as_willingly_as_who_is_up() {
        let mut link = link();
        assert_eq!(link.trust(), Some(Trust::Good));
        link.state = State::opening(0, false);
        assert_eq!(link.trust(), Some(Trust::Good), "it is waited for");
        link.known = true;
        assert_eq!(link.trust(), Some(Trust::Poor), "others are asked first while it is opened again");
        (link.state, link.late) = (State::Up, true);
        assert_eq!(link.trust(), Some(Trust::Poor));
        link.note_answer(MILLISECOND_NS, 0, PartOp::Read);
        assert_eq!(link.trust(), Some(Trust::Good));
    }

    #[test]
    fn what_a_failure_says_depends_on_what_is_known_of_the_donor() {
        let mut link = link();
        let (refused, unopened) =
            (LinkFailure::Refused(String::new()), LinkFailure::NotOpened(String::new()));
        assert_eq!((link.hope_after(&refused), link.hope_after(&unopened)), (Hope::Some, Hope::Some));
        link.known = true;
        assert_eq!((link.hope_after(&refused), link.hope_after(&unopened)), (Hope::None, Hope::Little));
        let broken = LinkFailure::Broken(String::new());
        assert_eq!(link.hope_after(&broken), Hope::Some);
        link.fenced = false;
        assert_eq!(link.hope_after(&broken), Hope::None, "a foreign server knows no sessions");
    }

    #[test]
    fn hedging_follows_the_latency_within_its_limits() {
        let mut latency = Latency::default();
        let patience = Patience::MEMORY;
        assert_eq!(latency.hedge_after(patience), patience.hedge_min_ns);
        (0..100).for_each(|_| latency.note(20 * MILLISECOND_NS));
        let steady = latency.hedge_after(patience);
        assert!((20 * MILLISECOND_NS..22 * MILLISECOND_NS).contains(&steady), "{steady}");
        (0..10).for_each(|at| latency.note(at % 2 * 60 * MILLISECOND_NS));
        assert!(latency.hedge_after(patience) > 2 * steady, "one that varies is waited for longer");
        latency.note(u64::from(u32::MAX) * MILLISECOND_NS);
        assert_eq!(latency.hedge_after(patience), patience.hedge_max_ns);
    }

    #[test]
    fn sessions_never_go_back_not_even_for_a_donor_that_had_left() {
        let mut base = sample("parity:2+1");
        base.links[DonorId(2)].session = 8;
        base.links.remove(DonorId(2));
        base.links.remove(DonorId(1));
        base.links.add(&base.shape.map);
        assert_eq!(base.links[DonorId(1)].session, 8, "whoever it is");
        assert_eq!(base.links[DonorId(3)].session, 1, "one that stayed has its own");
    }
}
