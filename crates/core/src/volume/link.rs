//! The link to one donor: opened, up, broken, silent, slow, set aside, tried again.
//!
//! Owns when a donor is waited for and when it is given up, and what is known of its latency. Never: which
//! requests there are, beyond the parts that wait for this link.
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

use super::slab::Slab;
use super::strip::{Failure, Part, Progress};
use super::types::{Effect, LinkFailure, PartOp};
use super::{Key, Volume};
use crate::limits::{
    CONNECT_DEADLINE_NS, CONNECTIONS_FAR, CONNECTIONS_NEAR, DONOR_RETRY_DOUBLINGS_MAX, DONOR_RETRY_NS,
    DONOR_RETRY_SOON_NS, DOUBT_AGAIN_NS, DOUBT_NS, EXCLUDE_NS, FAR_NS, HEDGE_MAX_NS, HEDGE_MIN_NS,
    MILLISECOND_NS, REOPEN_NS, REQUEST_DEADLINE_NS, SECOND_NS, SILENCE_NS, SLOW_FACTOR, SLOW_MIN_NS, SLOW_NS,
    TICK_NS,
};
use crate::map::{DonorId, Route};
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
    /// It refused this reader, by the map that there is.
    pub(super) shut_out: bool,
    /// Its process has ended: it is not waited for.
    pub(super) gone: bool,
    pub(super) waiting: VecDeque<Key>,
    /// What was sent, oldest first; keys of parts that are done are passed over.
    pub(super) owed: VecDeque<(Time, Key)>,
    /// Was up before: while it is opened again, others are asked first.
    known: bool,
    /// Owes a read for longer than it usually takes.
    late: bool,
    answered: bool,
    /// It is not asked whether it is there before this.
    doubt_from: Time,
    silent_ticks: u64,
    slow_ticks: u64,
    latency: Latency,
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
    fn opening(now: Time, patient: bool) -> State {
        let limit = if patient { REQUEST_DEADLINE_NS } else { CONNECT_DEADLINE_NS };
        State::Opening { until: now + limit, again_at: patient.then_some(now + CONNECT_DEADLINE_NS) }
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
struct Latency {
    mean: u64,
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

    fn hedge_after(self) -> u64 {
        self.late_after().clamp(HEDGE_MIN_NS, HEDGE_MAX_NS)
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
    fn hope_after(&self, failure: &LinkFailure) -> Hope {
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

    fn open(&mut self, donor: DonorId, effects: &mut Vec<Effect>) {
        self.session += 1;
        effects.push(Effect::Open { donor, session: self.session });
    }

    /// It has owed something at `now` for longer than it should.
    fn is_overdue(&self, now: Time) -> bool {
        let due = DOUBT_NS.max(2 * self.latency.late_after());
        self.is_up() && self.owed.front().is_some_and(|(sent_at, _)| sent_at + due <= now)
    }

    fn forget_answered(&mut self, parts: &Slab<Part>) {
        let owed = |key: Key| parts.get(key).is_some_and(|part| part.progress == Progress::Sent);
        while self.owed.front().is_some_and(|(_, key)| !owed(*key)) {
            self.owed.pop_front();
        }
    }

    fn calm(&mut self) {
        (self.silent_ticks, self.slow_ticks, self.late) = (0, 0, false);
    }
}

impl Volume {
    pub(super) fn open_links(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.link_waits = None;
        for (donor, link) in &mut self.links {
            if link.state == State::New {
                link.state = State::opening(now, false);
                link.open(*donor, effects);
            }
        }
    }

    pub(super) fn opened(&mut self, now: Time, donor: DonorId, session: u64, effects: &mut Vec<Effect>) {
        let Some(link) = self.links.get_mut(&donor) else { return };
        if link.session != session || matches!(link.state, State::Up | State::New) {
            return; // An attempt that was given up before.
        }
        self.link_waits = None;
        let was_down = link.is_down();
        link.state = State::Up;
        link.known = true;
        (link.late, link.gone) = (false, false);
        if was_down {
            link.calm();
        }
        self.age_again();
        let link = self.links.get_mut(&donor).expect("looked at above");
        for part in std::mem::take(&mut link.waiting) {
            self.send(now, part, effects);
        }
    }

    pub(super) fn failed(
        &mut self,
        now: Time,
        donor: DonorId,
        session: u64,
        failure: LinkFailure,
        effects: &mut Vec<Effect>,
    ) {
        let Some(link) = self.links.get(&donor) else { return };
        if link.session != session {
            return;
        }
        if matches!(failure, LinkFailure::NotAdmitted(_)) {
            self.note_shut_out(donor);
        }
        let link = self.links.get_mut(&donor).expect("looked at above");
        link.gone = matches!(failure, LinkFailure::Refused(_));
        let link = &self.links[&donor];
        match (failure, &link.state) {
            (LinkFailure::Broken(_), State::Up) if link.fenced => self.reopen(now, donor, false, effects),
            // A donor hears before a reader does that another has what it held. Its requests wait for the
            // newer map, as long as a connection may take.
            (LinkFailure::NotAdmitted(_), State::Opening { .. }) if link.known && self.awaits_maps() => {
                effects.push(Effect::Close { donor, session });
            }
            (
                LinkFailure::NotOpened(_) | LinkFailure::Refused(_),
                State::Opening { until, again_at: Some(_) },
            ) => {
                let state = State::Opening { until: *until, again_at: Some(now + DONOR_RETRY_NS) };
                self.links.get_mut(&donor).expect("looked at above").state = state;
                self.link_waits = None;
                effects.push(Effect::Close { donor, session });
            }
            (failure, _) => {
                let hope = link.hope_after(&failure);
                self.set_aside_with(now, donor, failure.into_why(), hope, effects);
                self.exclude_who_is_gone(now);
            }
        }
    }

    /// The donor refused this reader: it may have nothing of the volume any more.
    pub(super) fn note_shut_out(&mut self, donor: DonorId) {
        if let Some(link) = self.links.get_mut(&donor) {
            link.shut_out = self.read_only;
        }
    }

    /// Whether a newer map may say where the group is.
    pub(super) fn may_have_moved(&self, group: u32) -> bool {
        let mut held = self.map.groups[group as usize].slots.iter().filter_map(|slot| slot.held);
        held.any(|held| self.links.get(&held.donor).is_some_and(|link| link.shut_out))
    }

    /// Nothing goes round a donor, and nobody waits for a reader.
    fn awaits_maps(&self) -> bool {
        self.read_only && self.geometry.parity == 0
    }

    /// Under the next session; what was on its way is sent again.
    fn reopen(&mut self, now: Time, donor: DonorId, patient: bool, effects: &mut Vec<Effect>) {
        self.link_waits = None;
        let link = self.links.get_mut(&donor).expect("it was up");
        link.state = State::opening(now, patient);
        effects.push(Effect::Close { donor, session: link.session });
        link.open(donor, effects);
        let mut owed = VecDeque::with_capacity(link.owed.len());
        for (_, key) in link.owed.drain(..) {
            if let Some(part) = self.parts.get_mut(key).filter(|part| part.progress == Progress::Sent) {
                part.progress = Progress::Waiting;
                owed.push_back(key);
            }
        }
        link.waiting = owed;
    }

    /// Gives the donor up for now: everything it owes fails, and so does at once whatever comes until it is
    /// reached again.
    pub(super) fn set_aside(&mut self, now: Time, donor: DonorId, why: String, effects: &mut Vec<Effect>) {
        self.set_aside_with(now, donor, why, Hope::Some, effects);
    }

    fn set_aside_with(
        &mut self,
        now: Time,
        donor: DonorId,
        why: String,
        hope: Hope,
        effects: &mut Vec<Effect>,
    ) {
        self.link_waits = None;
        let link = self.links.get_mut(&donor).expect("it has a link");
        effects.push(Effect::Close { donor, session: link.session });
        let ended = matches!(link.state, State::Up | State::Down { retry_at: None, .. });
        let for_good = !link.fenced && ended;
        let (hope_before, tries, exclude_at) = match &link.state {
            State::Down { hope, tries, exclude_at, .. } => (*hope, tries.saturating_add(1), *exclude_at),
            _ => (Hope::Some, 0, now + EXCLUDE_NS),
        };
        let soon = DONOR_RETRY_SOON_NS << tries.min(DONOR_RETRY_DOUBLINGS_MAX);
        let retry_ns = if hope == Hope::Little { soon.min(DONOR_RETRY_NS) } else { DONOR_RETRY_NS };
        let retry_at = (!for_good).then_some(now + retry_ns);
        // Who has ended is not waited for.
        let exclude_at = if hope == Hope::None && hope_before != Hope::None { now } else { exclude_at };
        let hope = hope.max(hope_before);
        link.state = State::Down { why, hope, retry_at, probing: false, tries, exclude_at };
        link.calm();
        link.waiting.clear();
        link.owed.clear();
        let of_donor = self.parts.iter().filter(|(_, p)| p.donor == donor && p.progress != Progress::Done);
        for key in of_donor.map(|(key, _)| key).collect::<Vec<Key>>() {
            self.part_failed(now, key, Failure::Down, effects);
        }
    }

    pub(super) fn expire_links(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.link_waits = None;
        let mut late = Vec::new();
        for (donor, link) in &mut self.links {
            match &mut link.state {
                State::Opening { until, .. } if *until <= now => late.push(*donor),
                State::Opening { again_at: Some(at), .. } if *at <= now => {
                    *at = now + CONNECT_DEADLINE_NS;
                    effects.push(Effect::Close { donor: *donor, session: link.session });
                    link.open(*donor, effects);
                }
                State::Down { retry_at, probing, .. } if retry_at.is_some_and(|at| at <= now) => {
                    let (limit, session) =
                        if *probing { (DONOR_RETRY_NS, link.session) } else { (CONNECT_DEADLINE_NS, 0) };
                    *retry_at = Some(now + limit);
                    *probing = !*probing;
                    if *probing {
                        link.open(*donor, effects);
                    } else {
                        effects.push(Effect::Close { donor: *donor, session });
                    }
                }
                _ => {}
            }
        }
        for donor in late {
            let waited = match self.links[&donor].state {
                State::Opening { again_at: Some(_), .. } => REQUEST_DEADLINE_NS,
                _ => CONNECT_DEADLINE_NS,
            };
            let why = format!("no connection within {} s", waited / SECOND_NS);
            self.set_aside(now, donor, why, effects);
        }
    }

    /// Asks donors that have owed something for long whether they are there. They may be on one connection,
    /// while another hangs: those of one way through the network, or one that a firewall on the way has
    /// forgotten.
    pub(super) fn doubt_connections(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (donor, link) in &mut self.links {
            link.forget_answered(&self.parts);
            if link.fenced && now >= link.doubt_from && link.is_overdue(now) {
                // One that gets lost on the way is made again, over another port.
                link.doubt_from = now + CONNECT_DEADLINE_NS;
                effects.push(Effect::Probe { donor: *donor, session: link.session });
            }
        }
    }

    /// It is there, so it is a connection that hangs, if what was overdue still is. Without redundancy
    /// nothing goes round the donor, so it is given all the time that there is.
    pub(super) fn reached(&mut self, now: Time, donor: DonorId, session: u64, effects: &mut Vec<Effect>) {
        let Some(link) = self.links.get_mut(&donor).filter(|link| link.session == session) else { return };
        link.forget_answered(&self.parts);
        if link.is_overdue(now) {
            link.doubt_from = now + DOUBT_AGAIN_NS;
            let patient = !self.can_do_without(donor);
            self.reopen(now, donor, patient, effects);
        }
    }

    /// Looks for donors that are late, silent or slow; redundancy covers them, so nobody has to wait for
    /// them. What was answered is no longer among what they owe (`doubt_connections`).
    /// A tick that came late says nothing of the donors: then this machine was busy with something else.
    pub(super) fn look_at_links(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let on_time = now < self.ticked_at + 2 * TICK_NS;
        self.ticked_at = now;
        self.hedge(now, effects);
        if !on_time {
            self.links.values_mut().for_each(|link| link.answered = false);
            return;
        }
        let mut means: Vec<u64> = self.links.values().filter(|l| l.is_up()).map(|l| l.latency.mean).collect();
        means.sort_unstable();
        // Of those that are up, all but the slowest parity.
        let usual =
            means.get((means.len() / 2).saturating_sub(usize::from(means.len().is_multiple_of(2)))).copied();
        let slow_from = SLOW_MIN_NS.max(usual.unwrap_or(0).saturating_mul(SLOW_FACTOR));
        let (mut reopen, mut silent, mut slow) = (Vec::new(), Vec::new(), Vec::new());
        for (donor, link) in &mut self.links {
            let owes = !link.owed.is_empty() || !link.waiting.is_empty();
            let answered = std::mem::take(&mut link.answered);
            let waits = owes && !answered && link.known && !link.is_down();
            link.silent_ticks = if waits { link.silent_ticks + 1 } else { 0 };
            let crawls = link.is_up() && owes && link.latency.mean > slow_from;
            link.slow_ticks = if crawls { link.slow_ticks + 1 } else { 0 };
            if link.silent_ticks * TICK_NS >= SILENCE_NS {
                silent.push(*donor);
            } else if link.slow_ticks * TICK_NS >= SLOW_NS {
                slow.push(*donor);
            } else if link.silent_ticks == REOPEN_NS / TICK_NS && link.is_up() && link.fenced {
                reopen.push(*donor);
            }
        }
        // Beyond any request's deadline nobody is waited for, also where nothing goes round it: what upkeep
        // asked has no deadline of its own.
        let hopeless = |donor: &DonorId| self.links[donor].silent_ticks * TICK_NS >= REQUEST_DEADLINE_NS;
        for donor in silent.iter().copied().filter(hopeless).collect::<Vec<_>>() {
            let why = format!("silent for {} s", REQUEST_DEADLINE_NS / SECOND_NS);
            self.set_aside(now, donor, why, effects);
        }
        let others_answer = self.links.values().any(|link| link.is_up() && link.silent_ticks == 0);
        if !others_answer {
            return; // Then it is this machine that is cut off, and nobody is better than another.
        }
        // Without redundancy to go round it, a donor is waited for.
        for donor in reopen.into_iter().filter(|donor| self.can_do_without(*donor)).collect::<Vec<_>>() {
            self.reopen(now, donor, false, effects);
        }
        for donor in silent {
            if self.links[&donor].is_down() || !self.can_do_without(donor) {
                continue;
            }
            self.set_aside(now, donor, format!("silent for {} ms", SILENCE_NS / MILLISECOND_NS), effects);
        }
        for donor in slow {
            if !self.can_do_without(donor) {
                continue;
            }
            let mean = self.links[&donor].latency.mean / MILLISECOND_NS;
            self.links.get_mut(&donor).expect("listed just now").latency = Latency::default();
            self.set_aside(now, donor, format!("slow: {mean} ms an answer, many times the others'"), effects);
        }
    }

    /// Whether every group of the donor has as many slots as it needs beside it.
    fn can_do_without(&self, donor: DonorId) -> bool {
        self.map.groups.iter().zip(0u32..).all(|(group, number)| {
            let holds = group.slots.iter().any(|slot| slot.held.is_some_and(|held| held.donor == donor));
            let others = group.slots.iter().zip(0u32..).filter(|(slot, at)| {
                slot.held.is_some_and(|held| held.donor != donor) && self.source(number, *at).is_some()
            });
            !holds || others.count() >= self.geometry.data as usize
        })
    }

    /// Reads that are late by their donor's own measure are asked of redundancy.
    fn hedge(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut late = Vec::new();
        for link in self.links.values_mut() {
            let before = late.len();
            let after = link.latency.hedge_after();
            let owes = |key: &Key| self.parts.get(*key).is_some_and(|part| part.progress == Progress::Sent);
            let old = link.owed.iter().take_while(|(sent_at, _)| sent_at + after <= now);
            late.extend(old.map(|(_, key)| *key).filter(owes));
            link.late |= late.len() > before;
        }
        for key in late {
            let reads = |part: &&Part| part.op == PartOp::Read && part.progress == Progress::Sent;
            if let Some(part) = self.parts.get(key).filter(reads) {
                let (strip, slot) = (part.strip, part.slot);
                self.read_late(now, strip, slot, effects);
            }
        }
    }
}
