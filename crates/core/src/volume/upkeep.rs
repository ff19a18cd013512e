//! What keeps a volume whole beside its requests.
//!
//! Owns which of it is looked after when, and the end of a volume's service. Never: the work itself (`fill`,
//! `heal`, `scrub`, `compare`, `age`), or rows that were half written (`resync`). Tests:
//! `tests/volume_finish.rs`, the simulator.

use super::age::Aging;
use super::base::Base;
use super::compare::Comparing;
use super::doubts::Stage;
use super::fill::Filling;
use super::heal::Healing;
use super::job::{Job, Part, Phase, Run, Work};
use super::resync::Resync;
use super::scrub::Scrubbing;
use super::types::{Effect, Mem, PartOp, Scope, StatusRun};
use super::{BLOCK, Key};
use crate::layout::Scatter;
use crate::limits::{JOBS_MAX, READ_TOGETHER_NS};
use crate::map::{DonorId, Placement};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Upkeep {
    pub(super) filling: Filling,
    pub(super) healing: Healing,
    pub(super) scrubbing: Scrubbing,
    pub(super) comparing: Comparing,
    pub(super) aging: Aging,
    /// Who is being asked whether it is there.
    asked: BTreeSet<DonorId>,
}

impl Upkeep {
    /// Donors cannot know what a sealed volume is to hold: who may write reads all fragments as well.
    pub(super) fn scrub(&mut self, base: &mut Base, scope: Scope) {
        self.scrubbing.begin_pass(base, scope);
        if scope == Scope::All && base.shape.map.seal().is_some() && !base.shape.read_only {
            self.comparing.begin_pass(base);
        }
    }

    pub(super) fn tick(&mut self, base: &mut Base) {
        let filling = !base.fills.of.is_empty();
        base.pace.tick(base.now, filling);
        if filling {
            base.tally.tick(base.now);
        }
        self.scrubbing.expire(base);
        base.upkeep_due = true;
    }

    /// Starts whatever is due and has room.
    pub(super) fn start(&mut self, base: &mut Base) {
        self.healing.start(base);
        self.filling.start(base);
        self.comparing.start(base);
        self.aging.start(base);
    }

    /// Tells donors twice what is settled, so that the next writer finds nothing to resync; then the volume's
    /// service is finished.
    pub(super) fn wind_up(&mut self, base: &mut Base) {
        let idle = base.requests.len() == 0 && base.jobs.len() == 0;
        let speaks = !base.shape.read_only && !base.lease_lost;
        let sure = base.doubts.torn.is_empty() && base.doubts.stage == Stage::Serving;
        let settled = self.aging.is_settled() || !sure || !speaks;
        let late = base.finishing.is_some_and(|until| until <= base.now);
        // A donor whose link is just being opened anew has yet to be told.
        let opening = speaks && base.shape.geometry.parity > 0 && !base.links.all_settled();
        if late || (idle && settled && !opening) {
            if !std::mem::replace(&mut base.finished, true) {
                base.effects.push(Effect::Finished);
            }
        } else if idle
            && !settled
            && (base.shape.geometry.data == 1 || base.now >= self.aging.aged_at() + 2 * READ_TOGETHER_NS)
        {
            // Readers that rebuild count on it that marks last for so long.
            self.aging.tell(base);
        }
    }

    /// What a donor said of what it has.
    pub(super) fn verified(&mut self, base: &mut Base, part: &Part, runs: &[StatusRun]) {
        match base.jobs[part.job].work {
            Work::Scrub { .. } => self.scrubbing.answered(base, &mut self.healing, part, runs),
            _ => self.healing.verified(base, part, runs),
        }
    }

    /// A job without a request has ended.
    pub(super) fn ended(&mut self, base: &mut Base, job: &Job, done: bool) {
        match job.work {
            Work::Fill { slot, to } => self.filling.ended(base, job, slot, to, done),
            Work::Heal { slot } => self.healing.ended(base, job, slot, done),
            Work::Scrub { turn, .. } => self.scrubbing.ended(base, job, turn, done),
            Work::Compare => self.comparing.ended(),
            Work::Age => self.aging.ended(base),
            Work::Ask { of, .. } => {
                self.asked.remove(&of.donor);
            }
            _ => {}
        }
    }

    /// Whether there is something that a clock must look after.
    pub(super) fn waits(&self, base: &Base) -> bool {
        !base.fills.of.is_empty()
            || !base.doubts.torn.is_empty()
            || !base.doubts.unsure.is_empty()
            || !self.healing.is_idle()
            || !self.scrubbing.is_idle()
            || !self.comparing.is_idle()
            || base.finishing.is_some()
            || base.doubts.stage != Stage::Serving
    }

    /// Nothing may be on its way to a donor that is gone, so that nobody would find out. It is asked for
    /// something, and so are the others: that tells whether it is silent, or this machine is cut off
    /// (`watch::look`). One that answers stays, whatever the coordinator hears of it.
    pub(super) fn ask_donors(&mut self, base: &mut Base, silent: &[DonorId]) {
        let rebuilds = base.shape.geometry.parity > 0 && !base.shape.read_only && !base.lease_lost;
        if !rebuilds || base.doubts.stage != Stage::Serving || base.finishing.is_some() {
            return;
        }
        let up = |donor: &DonorId| base.links.is_up(*donor);
        if !silent.iter().any(up) {
            return;
        }
        let mut asks = BTreeMap::new();
        for (group, of) in (0..).zip(&base.shape.map.groups) {
            for (slot, places) in (0..).zip(&of.slots) {
                for of in places.held.into_iter().chain(places.filling).filter(|of| up(&of.donor)) {
                    asks.entry(of.donor).or_insert((group, slot, of));
                }
            }
        }
        // Where there are very many, those first that it is about.
        let (first, then): (Vec<_>, Vec<_>) = asks.into_iter().partition(|(donor, _)| silent.contains(donor));
        for (donor, (group, slot, of)) in first.into_iter().chain(then) {
            if base.jobs.room() > JOBS_MAX / 2 && self.asked.insert(donor) {
                base.add_job(None, Work::Ask { slot, of }, group, 0, 0);
            }
        }
    }
}

/// Starts whatever is due and has room.
pub(super) fn keep_up(base: &mut Base, resync: &mut Resync, upkeep: &mut Upkeep) {
    base.upkeep_due = false;
    let writes = !base.shape.read_only && !base.lease_lost;
    if writes {
        resync.look_at_stage(base);
    }
    if let Some(until) = base.finishing {
        if writes && base.shape.map.write_back && base.now < until {
            // The last flush may wait for what is mended.
            resync.start(base);
        }
        return upkeep.wind_up(base);
    }
    if writes {
        resync.start(base);
    }
    if base.doubts.stage == Stage::Serving {
        let compares = base.shape.map.seal().is_some() && !upkeep.comparing.is_idle();
        let heals = writes && !upkeep.healing.is_idle();
        upkeep.scrubbing.start(base, heals, writes && compares);
        if writes {
            upkeep.start(base);
        }
    }
}

pub(super) fn begin_ask(base: &mut Base, key: Key, slot: u32, of: Placement) {
    let (mem, scatter) = (Mem::Nothing, Scatter::whole(0, BLOCK));
    if base.links.get(of.donor).is_some() {
        base.add_part(key, slot, of, PartOp::Status, Run { local: 0, mem, scatter });
    }
    base.set_phase(key, Phase::Reading);
}
