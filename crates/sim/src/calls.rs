//! Everyone's calls to the coordinator: on their way there and back, with their deadlines, given up, or made
//! twice.
//!
//! Never: decisions, or what the coordinator does with one (`coordinator`). Key rule: a call that its caller
//! has given up may still be carried out, and its answer reaches nobody.

use crate::network::Node;
use crate::world::{Ev, World, say};
use cheetah_core::api::{API_VERSION, Answer, Call, Join, Lineage, Refusal, RefusalCode, Sync};
use cheetah_core::coordinator::{CallId, Event};
use cheetah_core::donor;
use cheetah_core::limits::{
    CONTROL_DEADLINE_NS, DONOR_SILENCE_NS, HEARTBEAT_NS, LEASE_RENEW_NS, MILLISECOND_NS,
};
use cheetah_core::map::{Medium, PoolId};
use cheetah_core::members;
use cheetah_core::units::Time;

pub(crate) type Outcome = Result<Answer, Refusal>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller {
    Donor(usize),
    Attach(usize),
    Renew(usize),
    Amend(usize),
    Tell(usize),
    Detach(usize),
    Admin,
}

#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) caller: Caller,
    node: Node,
    joins: bool,
    /// Whom the caller means.
    pool: Option<PoolId>,
    pub(crate) request: Option<Call>,
    pub(crate) outcome: Option<Outcome>,
    /// The caller does not wait any more.
    pub(crate) abandoned: bool,
    /// What is said of volumes is said of another pool's.
    pub(crate) by_stranger: bool,
}

impl World {
    pub(crate) fn call(&mut self, caller: Caller, node: Node, request: Call) -> u64 {
        let held = match &request {
            Call::Sync { .. } | Call::Join(_) => HEARTBEAT_NS,
            Call::Attach { .. } | Call::Create(_) | Call::Grow { .. } => DONOR_SILENCE_NS,
            Call::Renew { .. } => LEASE_RENEW_NS,
            _ => 0,
        };
        self.coordinator.next_call += 1;
        let id = self.coordinator.next_call;
        say!(self, "call {id} of {caller:?}: {request:?}");
        let joins = matches!(request, Call::Join(_));
        let pool = match caller {
            Caller::Donor(d) if !joins => self.donors[d].machine.pool(),
            Caller::Renew(c) | Caller::Amend(c) | Caller::Tell(c) | Caller::Detach(c) => self.clients[c].pool,
            _ => None,
        };
        let request = Some(request);
        let open = OpenCall {
            caller,
            node,
            joins,
            pool,
            request,
            outcome: None,
            abandoned: false,
            by_stranger: false,
        };
        self.coordinator.calls.insert(id, open);
        let delay = self.delay() + self.delay();
        self.after(delay, Ev::CallArrives(id));
        self.after(held + CONTROL_DEADLINE_NS, Ev::CallTimeout(id));
        id
    }

    pub(crate) fn donor_joins(
        &mut self,
        d: usize,
        pool: Option<PoolId>,
        revision: u64,
        lineage: Option<Box<Lineage>>,
    ) {
        let donor = &self.donors[d];
        let join = Join {
            version: API_VERSION,
            donor: donor.machine.identity(),
            secret: donor.secret(),
            pool,
            revision,
            name: donor.name.clone(),
            host: format!("host{}", donor.slot % self.plan.hosts),
            or_numbered: false,
            machine: String::new(),
            address: crate::director::address(donor.slot),
            extents: donor.extents,
            foreign_export: None,
            medium: if donor.disk.is_some() { Medium::Disk } else { Medium::Memory },
            keeps_auths: donor.disk.is_some(),
            lineage,
        };
        let slot = donor.slot;
        self.donors[d].asked = self.call(Caller::Donor(d), Node::Donor(slot), Call::Join(join));
    }

    pub(crate) fn donor_syncs(&mut self, d: usize, sync: Sync) {
        let (id, slot) = (self.donors[d].machine.identity(), self.donors[d].slot);
        self.donors[d].asked = self.call(Caller::Donor(d), Node::Donor(slot), Call::Sync { donor: id, sync });
    }

    pub(crate) fn call_cut(&mut self, id: u64, up: bool, event: Ev) -> Option<Ev> {
        let node = self.coordinator.calls.get(&id)?.node;
        let (from, to) = if up { (node, Node::Coordinator) } else { (Node::Coordinator, node) };
        let Some(until) = self.cut_until(from, to) else { return Some(event) };
        let again = self.rng.below(200 * MILLISECOND_NS);
        self.at(until + again, event);
        None
    }

    pub(crate) fn call_arrives(&mut self, id: u64) {
        if self.call_cut(id, true, Ev::CallArrives(id)).is_none() {
            return;
        }
        if self.coordinator.machine.is_none() {
            return self.after(MILLISECOND_NS, Ev::CallAnswered(id));
        }
        if self.waits_for_the_stopped(Ev::CallArrives(id)).is_none() {
            return;
        }
        let Some(open) = self.coordinator.calls.get_mut(&id) else { return };
        let abandoned = open.abandoned;
        let pool = open.pool;
        let Some(request) = open.request.take() else { return };
        match &request {
            _ if self.coordinator.stranger.is_some() => {}
            Call::Renew { token, .. } if !self.coordinator.renewed.is_empty() => {
                let now = self.counted();
                self.coordinator.renewed.insert(*token, now);
            }
            Call::Sync { donor, .. } | Call::Join(Join { donor, .. }) => {
                self.coordinator.heard.insert(*donor, self.now);
            }
            Call::Detach { token, .. } => {
                self.coordinator.ending.insert(*token);
            }
            _ => {}
        }
        self.coordinator.taken.insert(id);
        let entropy = self.rng.draw();
        self.step_coordinator(Event::Call {
            call: CallId(id),
            entropy,
            pool,
            caller: members::Caller::Anyone,
            request,
        });
        if abandoned {
            self.hangup_arrives(id);
        }
    }

    pub(crate) fn hangup_arrives(&mut self, id: u64) {
        let Some(event) = self.call_cut(id, true, Ev::Hangup(id)) else { return };
        if self.waits_for_the_stopped(event).is_none() {
            return;
        }
        if self.coordinator.machine.is_some() && self.coordinator.taken.remove(&id) {
            self.step_coordinator(Event::Hangup { call: CallId(id) });
        }
    }

    /// When the caller, stopped as a whole now, goes on.
    fn caller_paused(&self, id: u64) -> Option<Time> {
        let until = match self.coordinator.calls.get(&id)?.caller {
            Caller::Donor(d) => self.donors[d].paused_until,
            Caller::Attach(c) | Caller::Renew(c) | Caller::Amend(c) | Caller::Tell(c) | Caller::Detach(c) => {
                self.clients[c].paused_until
            }
            Caller::Admin => 0,
        };
        Some(until).filter(|until| *until > self.now)
    }

    pub(crate) fn call_answered(&mut self, id: u64) {
        if self.call_cut(id, false, Ev::CallAnswered(id)).is_none() {
            return;
        }
        if let Some(until) = self.caller_paused(id) {
            return self.at(until, Ev::CallAnswered(id));
        }
        let Some(open) = self.coordinator.calls.get_mut(&id) else { return };
        if !open.abandoned {
            open.abandoned = true;
            let (caller, outcome) = (open.caller, open.outcome.take());
            self.answer_caller(id, caller, outcome);
        }
    }

    pub(crate) fn call_timed_out(&mut self, id: u64) {
        if let Some(until) = self.caller_paused(id) {
            return self.at(until, Ev::CallTimeout(id));
        }
        let Some(open) = self.coordinator.calls.get_mut(&id).filter(|open| !open.abandoned) else { return };
        open.abandoned = true;
        let caller = open.caller;
        let delay = self.delay();
        self.after(delay, Ev::Hangup(id));
        self.answer_caller(id, caller, None);
    }

    pub(crate) fn abandon_calls(&mut self, whose: impl Fn(&Caller) -> bool) {
        let calls =
            self.coordinator.calls.iter_mut().filter(|(_, open)| !open.abandoned && whose(&open.caller));
        let given_up: Vec<u64> = calls
            .map(|(id, open)| {
                open.abandoned = true;
                *id
            })
            .collect();
        for id in given_up {
            let delay = self.delay();
            self.after(delay, Ev::Hangup(id));
        }
    }

    fn answer_caller(&mut self, id: u64, caller: Caller, outcome: Option<Outcome>) {
        say!(self, "call {id} of {caller:?} ends: {outcome:?}");
        match caller {
            Caller::Donor(d) => self.answer_donor(d, id, outcome),
            Caller::Attach(c) => self.attach_answered(c, outcome),
            Caller::Renew(c) => self.renew_answered(c, outcome),
            Caller::Amend(c) => self.amend_answered(c, outcome),
            Caller::Tell(c) => self.tell_answered(c, outcome.as_ref()),
            Caller::Detach(c) => self.detach_answered(c, outcome),
            Caller::Admin => {
                let other = self.coordinator.calls.get(&id).is_some_and(|open| open.by_stranger);
                self.admin_answered(id, outcome.filter(|_| !other));
            }
        }
    }

    fn answer_donor(&mut self, d: usize, id: u64, outcome: Option<Outcome>) {
        if self.donors[d].asked != id {
            return;
        }
        let joins = self.coordinator.calls.get(&id).is_some_and(|open| open.joins);
        let unknown = |refusal: &Refusal| matches!(refusal.code, RefusalCode::Gone | RefusalCode::OtherPool);
        let event = match outcome {
            Some(Ok(Answer::Joined(joined))) => donor::Event::Joined { pool: joined.pool },
            Some(Ok(Answer::Duties(duties))) => {
                self.donors[d].returned = false;
                donor::Event::Duties(duties)
            }
            Some(Err(refusal)) if unknown(&refusal) && !joins => donor::Event::Forgotten,
            Some(Err(refusal)) => {
                self.obey_the_stranger(d);
                donor::Event::JoinRefused { refusal }
            }
            Some(Ok(_)) | None => donor::Event::Unreachable,
        };
        self.step_donor(d, event);
    }

    /// A caller that was not sure says it again: the coordinator gets the same call twice.
    pub(crate) fn repeat_some_call(&mut self) {
        let said = |open: &OpenCall| {
            let again = matches!(
                open.request,
                Some(Call::Amend { .. } | Call::Renew { .. } | Call::Tell { .. } | Call::Detach { .. })
            );
            again && !open.abandoned
        };
        let open: Vec<u64> =
            self.coordinator.calls.iter().filter(|(_, open)| said(open)).map(|(id, _)| *id).collect();
        let Some(id) = self.rng.pick(&open) else { return };
        let Some(request) = self.coordinator.calls.get(&id).and_then(|open| open.request.clone()) else {
            return;
        };
        self.count("fault: a call came twice");
        self.call(Caller::Admin, Node::Coordinator, request);
    }
}
