//! When a donor is waited for, and when it is given up.
//!
//! Owns what follows from a link's events and from the time that it says nothing: it is opened again, hedged,
//! set aside, tried again, named to the coordinator. Never: what a job does about an answer that does not
//! come (`read`, `write`, by way of `Base::failed`). Tests: `tests/volume_links.rs`, `tests/volume_gone.rs`,
//! the simulator.

use super::base::Base;
use super::doubts::Stage;
use super::job::{Failure, Part, Progress};
use super::link::{Hope, Latency, Link, State};
use super::types::{Effect, LinkFailure, PartOp};
use super::{Key, fill, read};
use crate::limits::{
    CONNECT_DEADLINE_NS, DONOR_RETRY_DOUBLINGS_MAX, DONOR_RETRY_NS, DONOR_RETRY_SOON_NS, DOUBT_AGAIN_NS,
    EXCLUDE_NS, MILLISECOND_NS, REQUEST_DEADLINE_NS, SECOND_NS, SLOW_FACTOR, TICK_NS,
};
use crate::map::DonorId;
use crate::units::Time;
use std::collections::{BTreeSet, VecDeque};

/// Donors that have ended, and those that have been away for long, each by its own time: what they held
/// is rebuilt also when nobody writes. One that may come back with what it held is not given up while there
/// is nobody to rebuild that from: those who are may be the ones that stay away.
pub(super) fn exclude_who_is_gone(base: &mut Base) {
    if base.shape.read_only || base.shape.geometry.parity == 0 {
        return;
    }
    let returns = base.shape.patience().returns;
    let links = base.links.iter_mut();
    let gone: Vec<(DonorId, String, bool)> = links
        .filter_map(|(donor, link)| {
            let why = link.exclude(base.now)?;
            Some((donor, why, returns || link.may_return()))
        })
        .collect();
    for (donor, why, may_return) in gone {
        if !may_return || is_spare(base, donor) {
            base.exclude(donor, why);
        }
    }
}

/// Whether everything can be read that the donor has part in, without it.
pub(super) fn is_spare(base: &Base, donor: DonorId) -> bool {
    base.shape.map.groups.iter().all(|group| {
        let held = || group.slots.iter().filter_map(|slot| slot.held);
        let is_up = |other: DonorId| base.links.get(other).is_some_and(Link::is_up);
        let rest = held().filter(|held| held.donor != donor && is_up(held.donor));
        held().all(|held| held.donor != donor) || rest.count() >= base.shape.geometry.data as usize
    })
}

/// The first event: links are opened, and what the map says is to be filled is filled.
pub(super) fn start(base: &mut Base) {
    base.ticked_at = base.now;
    let serves = base.doubts.stage == Stage::Serving;
    base.doubts.serve_at = (!serves).then_some(base.now + REQUEST_DEADLINE_NS);
    open_links(base);
    fill::take_on(base);
}

pub(super) fn open_links(base: &mut Base) {
    base.links.waits = None;
    for (donor, link) in base.links.iter_mut() {
        if link.state == State::New {
            link.state = State::opening(base.now, false);
            link.open(donor, &mut base.effects);
        }
    }
}

/// The link is up: what waited for it is sent. False when nothing has changed.
pub(super) fn opened(base: &mut Base, donor: DonorId, session: u64) -> bool {
    let Some(link) = base.links.get_mut(donor) else { return false };
    if link.session != session || matches!(link.state, State::Up | State::New) {
        return false; // An attempt that was given up before.
    }
    let was_down = link.is_down();
    link.state = State::Up;
    link.known = true;
    (link.late, link.gone) = (false, false);
    if was_down {
        link.calm();
    }
    base.links.waits = None;
    for part in std::mem::take(&mut base.links[donor].waiting) {
        base.send(part);
    }
    true
}

pub(super) fn failed(base: &mut Base, donor: DonorId, session: u64, failure: LinkFailure) {
    let Some(link) = base.links.get(donor) else { return };
    if link.session != session {
        return;
    }
    if matches!(failure, LinkFailure::NotAdmitted(_)) {
        base.note_shut_out(donor);
    }
    let returns = base.shape.patience().returns;
    base.links[donor].gone = matches!(failure, LinkFailure::Refused(_)) && !returns;
    let link = &base.links[donor];
    match (failure, &link.state) {
        (LinkFailure::Broken(_), State::Up) if link.fenced => reopen(base, donor, returns),
        // A donor hears before a reader does that another has what it held. Its requests wait for the
        // newer map, as long as a connection may take.
        (LinkFailure::NotAdmitted(_), State::Opening { .. }) if link.known && awaits_maps(base) => {
            base.effects.push(Effect::Close { donor, session });
        }
        // One that has started again admits nobody before the pool has spoken to it.
        (failure, State::Opening { until, again_at: Some(_) })
            if returns || !matches!(failure, LinkFailure::NotAdmitted(_) | LinkFailure::Broken(_)) =>
        {
            let state = State::Opening { until: *until, again_at: Some(base.now + DONOR_RETRY_NS) };
            base.links[donor].state = state;
            base.links.waits = None;
            base.effects.push(Effect::Close { donor, session });
        }
        (LinkFailure::NotOpened(_) | LinkFailure::Broken(_), State::Opening { again_at: None, .. })
            if is_waited_for(base, donor) =>
        {
            wait_for(base, donor, DONOR_RETRY_NS);
            base.effects.push(Effect::Close { donor, session });
        }
        (failure, _) => {
            let hope = link.hope_after(&failure);
            set_aside_with(base, donor, failure.into_why(), hope);
            exclude_who_is_gone(base);
        }
    }
}

/// Nothing goes round a donor, and nobody waits for a reader.
fn awaits_maps(base: &Base) -> bool {
    base.shape.read_only && base.shape.geometry.parity == 0
}

/// Nothing goes round a donor that was there: it is given all the time that a request has.
fn is_waited_for(base: &Base, donor: DonorId) -> bool {
    let link = &base.links[donor];
    link.known && link.fenced && !link.shut_out && !can_do_without(base, donor)
}

/// Its link is tried again after this, until a request would have ended.
fn wait_for(base: &mut Base, donor: DonorId, pause_ns: Time) {
    let (until, again_at) = (base.now + REQUEST_DEADLINE_NS, Some(base.now + pause_ns));
    base.links[donor].state = State::Opening { until, again_at };
    base.links.waits = None;
}

/// Under the next session; what was on its way is sent again.
fn reopen(base: &mut Base, donor: DonorId, patient: bool) {
    base.links.waits = None;
    let link = &mut base.links[donor];
    link.state = State::opening(base.now, patient);
    base.effects.push(Effect::Close { donor, session: link.session });
    link.open(donor, &mut base.effects);
    let mut owed = VecDeque::with_capacity(link.owed.len());
    for (_, key) in link.owed.drain(..) {
        if let Some(part) = base.jobs.parts.get_mut(key).filter(|part| part.progress == Progress::Sent) {
            part.progress = Progress::Waiting;
            owed.push_back(key);
        }
    }
    // What came and was not judged went with the connection.
    let came = |part: &Part| part.placement.donor == donor && part.progress == Progress::Came;
    let came = base.jobs.parts.iter().filter(|(_, part)| came(part)).map(|(key, _)| key);
    for key in came.collect::<Vec<Key>>() {
        if let Some(part) = base.jobs.parts.get_mut(key) {
            part.progress = Progress::Waiting;
            owed.push_back(key);
        }
    }
    link.waiting = owed;
}

/// Gives the donor up for now: everything it owes fails, and so does at once whatever comes until it is
/// reached again.
pub(super) fn set_aside(base: &mut Base, donor: DonorId, why: String) {
    set_aside_with(base, donor, why, Hope::Some);
}

/// Whom jobs wait for whose request has come to its deadline; not who was asked for data a moment ago, after
/// another had failed, nor whose data is here and waits for its proof.
pub(super) fn set_aside_who_is_late(base: &mut Base, jobs: &[Key]) {
    let silence_ns = base.shape.patience().silence_ns;
    let late: BTreeSet<DonorId> = (jobs.iter())
        .flat_map(|job| base.jobs.open_parts(*job))
        .filter(|(_, part)| part.progress != Progress::Came)
        .filter(|(_, part)| part.op.writes() || part.sent_at + silence_ns <= base.now)
        .map(|(_, part)| part.placement.donor)
        .collect();
    for donor in late {
        set_aside(base, donor, format!("no answer within {} s", REQUEST_DEADLINE_NS / SECOND_NS));
    }
}

fn set_aside_with(base: &mut Base, donor: DonorId, why: String, hope: Hope) {
    base.links.waits = None;
    let link = &mut base.links[donor];
    base.effects.push(Effect::Close { donor, session: link.session });
    let ended = matches!(link.state, State::Up | State::Down { retry_at: None, .. });
    let for_good = !link.fenced && ended;
    let (hope_before, tries, exclude_at) = match &link.state {
        State::Down { hope, tries, exclude_at, .. } => (*hope, tries.saturating_add(1), *exclude_at),
        _ => (Hope::Some, 0, base.now + EXCLUDE_NS),
    };
    let soon = DONOR_RETRY_SOON_NS << tries.min(DONOR_RETRY_DOUBLINGS_MAX);
    let retry_ns = if hope == Hope::Little { soon.min(DONOR_RETRY_NS) } else { DONOR_RETRY_NS };
    let retry_at = (!for_good).then_some(base.now + retry_ns);
    // Who has ended is not waited for.
    let exclude_at = if hope == Hope::None && hope_before != Hope::None { base.now } else { exclude_at };
    let hope = hope.max(hope_before);
    link.state = State::Down { why, hope, retry_at, probing: false, tries, exclude_at };
    link.calm();
    link.waiting.clear();
    link.owed.clear();
    let of_donor =
        base.jobs.parts.iter().filter(|(_, p)| p.placement.donor == donor && p.progress != Progress::Done);
    for key in of_donor.map(|(key, _)| key).collect::<Vec<Key>>() {
        base.fail_part(key, Failure::Down);
    }
}

pub(super) fn expire(base: &mut Base) {
    base.links.waits = None;
    let mut late = Vec::new();
    for (donor, link) in base.links.iter_mut() {
        match &mut link.state {
            State::Opening { until, .. } if *until <= base.now => late.push(donor),
            State::Opening { again_at: Some(at), .. } if *at <= base.now => {
                *at = base.now + CONNECT_DEADLINE_NS;
                base.effects.push(Effect::Close { donor, session: link.session });
                link.open(donor, &mut base.effects);
            }
            State::Down { retry_at, probing, .. } if retry_at.is_some_and(|at| at <= base.now) => {
                let (limit, session) =
                    if *probing { (DONOR_RETRY_NS, link.session) } else { (CONNECT_DEADLINE_NS, 0) };
                *retry_at = Some(base.now + limit);
                *probing = !*probing;
                if *probing {
                    link.open(donor, &mut base.effects);
                } else {
                    base.effects.push(Effect::Close { donor, session });
                }
            }
            _ => {}
        }
    }
    for donor in late {
        let is_first = matches!(base.links[donor].state, State::Opening { again_at: None, .. });
        if is_first && is_waited_for(base, donor) {
            // What is under way may still come, when this machine or that one is only busy.
            wait_for(base, donor, CONNECT_DEADLINE_NS);
            continue;
        }
        let waited = match base.links[donor].state {
            State::Opening { again_at: Some(_), .. } => REQUEST_DEADLINE_NS,
            _ => CONNECT_DEADLINE_NS,
        };
        let why = format!("no connection within {} s", waited / SECOND_NS);
        set_aside(base, donor, why);
    }
}

/// Asks donors that have owed something for long whether they are there. They may be on one connection,
/// while another hangs: those of one way through the network, or one that a firewall on the way has
/// forgotten.
pub(super) fn doubt_connections(base: &mut Base) {
    for (donor, link) in base.links.iter_mut() {
        link.forget_answered(&base.jobs.parts);
        if link.fenced && base.now >= link.doubt_from && link.is_overdue(base.now) {
            // One that gets lost on the way is made again, over another port.
            link.doubt_from = base.now + CONNECT_DEADLINE_NS;
            base.effects.push(Effect::Probe { donor, session: link.session });
        }
    }
}

/// It is there, so it is a connection that hangs, if what was overdue still is. Without redundancy
/// nothing goes round the donor, so it is given all the time that there is.
pub(super) fn reached(base: &mut Base, donor: DonorId, session: u64) {
    let Some(link) = base.links.get_mut(donor).filter(|link| link.session == session) else { return };
    link.forget_answered(&base.jobs.parts);
    if link.is_overdue(base.now) {
        link.doubt_from = base.now + DOUBT_AGAIN_NS;
        let patient = !can_do_without(base, donor);
        reopen(base, donor, patient);
    }
}

/// Looks for donors that are late, silent or slow; redundancy covers them, so nobody has to wait for
/// them. What was answered is no longer among what they owe (`doubt_connections`).
/// A tick that came late says nothing of the donors: then this machine was busy with something else.
pub(super) fn look(base: &mut Base) {
    let on_time = base.now < base.ticked_at + 2 * TICK_NS;
    base.ticked_at = base.now;
    hedge(base);
    if !on_time {
        base.links.values_mut().for_each(|link| link.answered = false);
        return;
    }
    let mut means: Vec<u64> = base.links.values().filter(|l| l.is_up()).map(|l| l.latency.mean).collect();
    means.sort_unstable();
    // Of those that are up, all but the slowest parity.
    let usual =
        means.get((means.len() / 2).saturating_sub(usize::from(means.len().is_multiple_of(2)))).copied();
    let patience = base.shape.patience();
    let slow_from = patience.slow_min_ns.max(usual.unwrap_or(0).saturating_mul(SLOW_FACTOR));
    let (mut hanging, mut silent, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    for (donor, link) in base.links.iter_mut() {
        let owes = !link.owed.is_empty() || !link.waiting.is_empty();
        let answered = std::mem::take(&mut link.answered);
        let waits = owes && !answered && link.known && !link.is_down();
        link.silent_ticks = if waits { link.silent_ticks + 1 } else { 0 };
        let crawls = link.is_up() && owes && link.latency.mean > slow_from;
        link.slow_ticks = if crawls { link.slow_ticks + 1 } else { 0 };
        if link.silent_ticks * TICK_NS >= patience.silence_ns {
            silent.push(donor);
        } else if link.slow_ticks * TICK_NS >= patience.slow_ns {
            slow.push(donor);
        } else if link.silent_ticks == patience.reopen_ns / TICK_NS && link.is_up() && link.fenced {
            hanging.push(donor);
        }
    }
    // Beyond any request's deadline nobody is waited for, also where nothing goes round it: what upkeep
    // asked has no deadline of its own.
    let hopeless = |donor: &DonorId| base.links[*donor].silent_ticks * TICK_NS >= REQUEST_DEADLINE_NS;
    for donor in silent.iter().copied().filter(hopeless).collect::<Vec<_>>() {
        let why = format!("silent for {} s", REQUEST_DEADLINE_NS / SECOND_NS);
        set_aside(base, donor, why);
    }
    let others_answer = base.links.values().any(|link| link.is_up() && link.silent_ticks == 0);
    if !others_answer {
        return; // Then it is this machine that is cut off, and nobody is better than another.
    }
    // Without redundancy to go round it, a donor is waited for.
    for donor in hanging.into_iter().filter(|donor| can_do_without(base, *donor)).collect::<Vec<_>>() {
        reopen(base, donor, false);
    }
    for donor in silent {
        if base.links[donor].is_down() || !can_do_without(base, donor) {
            continue;
        }
        set_aside(base, donor, format!("silent for {} ms", patience.silence_ns / MILLISECOND_NS));
    }
    for donor in slow {
        if !can_do_without(base, donor) {
            continue;
        }
        let mean = base.links[donor].latency.mean / MILLISECOND_NS;
        base.links[donor].latency = Latency::default();
        set_aside(base, donor, format!("slow: {mean} ms an answer, many times the others'"));
    }
}

/// Whether every group of the donor has as many slots as it needs beside it.
fn can_do_without(base: &Base, donor: DonorId) -> bool {
    base.shape.map.groups.iter().zip(0u32..).all(|(group, number)| {
        let holds = group.slots.iter().any(|slot| slot.held.is_some_and(|held| held.donor == donor));
        let others = group.slots.iter().zip(0u32..).filter(|(slot, at)| {
            slot.held.is_some_and(|held| held.donor != donor) && base.source(number, *at).is_some()
        });
        !holds || others.count() >= base.shape.geometry.data as usize
    })
}

/// Reads that are late by their donor's own measure are asked of redundancy.
fn hedge(base: &mut Base) {
    let mut late = Vec::new();
    let patience = base.shape.patience();
    for link in base.links.values_mut() {
        let before = late.len();
        let after = link.latency.hedge_after(patience);
        let owes = |key: &Key| base.jobs.parts.get(*key).is_some_and(|part| part.progress == Progress::Sent);
        let old = link.owed.iter().take_while(|(sent_at, _)| sent_at + after <= base.now);
        late.extend(old.map(|(_, key)| *key).filter(owes));
        link.late |= late.len() > before;
    }
    for key in late {
        let reads = |part: &&Part| part.op == PartOp::Read && part.progress == Progress::Sent;
        if let Some(part) = base.jobs.parts.get(key).filter(reads) {
            let (job, slot) = (part.job, part.slot);
            read::late(base, job, slot);
        }
    }
}
