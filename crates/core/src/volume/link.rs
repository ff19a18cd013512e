//! The link to one donor: opened, up, broken, set aside, tried again.
//!
//! Owns when a donor is waited for and when it is given up. Never: which requests there are, beyond the parts
//! that wait for this link.
//!
//! ```text
//!   New -> Opening -> Up -> (broken) -> Opening ...        parts wait while it opens
//!             |        \-> (late)   -\
//!             \-> (not opened) -> Down -> (retry, parts fail at once meanwhile) -> Up
//! ```
//!
//! Each opening has a new session number. A Cheetah donor drops the connections of older sessions before it
//! admits a newer one, so a write that was sent again can never be overtaken by its own first copy. A foreign
//! server knows no sessions; a link to one that broke stays down, because only that is certain.

use super::{Effect, Key, LinkFailure, Progress, Volume, VolumeError, send};
use crate::limits::{CONNECT_DEADLINE_NS, DONOR_RETRY_NS, SECOND_NS};
use crate::map::{DonorId, Route};
use crate::units::Time;
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) state: State,
    session: u64,
    /// Cheetah donors can be told which connections are stale.
    fenced: bool,
    /// Writes were acknowledged since the last flush.
    pub(super) unflushed: bool,
    pub(super) waiting: VecDeque<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    New,
    Opening {
        until: Time,
    },
    Up,
    /// `probing`: an attempt to open it again is under way until that time.
    Down {
        why: String,
        retry_at: Option<Time>,
        probing: bool,
    },
}

impl Link {
    pub(super) fn new(route: &Route) -> Self {
        Link {
            state: State::New,
            session: 0,
            fenced: route.foreign_export.is_none(),
            unflushed: false,
            waiting: VecDeque::new(),
        }
    }

    /// Reached, or set aside.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(self.state, State::New | State::Opening { .. })
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Opening { until } => Some(until),
            State::Down { retry_at, .. } => retry_at,
            State::New | State::Up => None,
        }
    }

    fn open(&mut self, donor: DonorId, effects: &mut Vec<Effect>) {
        self.session += 1;
        effects.push(Effect::Open { donor, session: self.session });
    }
}

impl Volume {
    pub(super) fn open_links(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (donor, link) in &mut self.links {
            if link.state == State::New {
                link.state = State::Opening { until: now + CONNECT_DEADLINE_NS };
                link.open(*donor, effects);
            }
        }
    }

    pub(super) fn opened(&mut self, donor: DonorId, session: u64, effects: &mut Vec<Effect>) {
        let link = self.links.get_mut(&donor).expect("links are never removed");
        if link.session != session || matches!(link.state, State::Up | State::New) {
            return; // An attempt that was given up before.
        }
        link.state = State::Up;
        for part in std::mem::take(&mut link.waiting) {
            let request = self.parts.get(part).expect("a waiting part exists").request;
            let tag = self.requests.get(request).expect("a part never outlives its request").tag;
            send(&mut self.parts, part, tag, effects);
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
        let link = self.links.get_mut(&donor).expect("links are never removed");
        if link.session != session {
            return;
        }
        match (failure, &link.state) {
            (LinkFailure::Broken(_), State::Up) if link.fenced => {
                link.state = State::Opening { until: now + CONNECT_DEADLINE_NS };
                effects.push(Effect::Close { donor, session });
                link.open(donor, effects);
                let sent =
                    self.parts.iter().filter(|(_, p)| p.donor == donor && p.progress == Progress::Sent);
                let owed: VecDeque<Key> = sent.map(|(key, _)| key).collect();
                for part in &owed {
                    self.parts.get_mut(*part).expect("listed just now").progress = Progress::Waiting;
                }
                link.waiting = owed;
            }
            (LinkFailure::Broken(why) | LinkFailure::NotOpened(why), _) => {
                self.set_aside(now, donor, why, VolumeError::DonorLost, effects);
            }
        }
    }

    /// Gives the donor up for now: everything it owes fails with `error`, and so does at once whatever comes
    /// until it is reached again.
    pub(super) fn set_aside(
        &mut self,
        now: Time,
        donor: DonorId,
        why: String,
        error: VolumeError,
        effects: &mut Vec<Effect>,
    ) {
        let link = self.links.get_mut(&donor).expect("links are never removed");
        effects.push(Effect::Close { donor, session: link.session });
        let ended = matches!(link.state, State::Up | State::Down { retry_at: None, .. });
        let for_good = !link.fenced && ended;
        let retry_at = (!for_good).then_some(now + DONOR_RETRY_NS);
        link.state = State::Down { why, retry_at, probing: false };
        link.waiting.clear();
        self.fail_parts(donor, error, effects);
    }

    pub(super) fn expire_links(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut late = Vec::new();
        for (donor, link) in &mut self.links {
            match &mut link.state {
                State::Opening { until } if *until <= now => late.push(*donor),
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
            let why = format!("no connection within {} s", CONNECT_DEADLINE_NS / SECOND_NS);
            self.set_aside(now, donor, why, VolumeError::DonorLost, effects);
        }
    }
}
