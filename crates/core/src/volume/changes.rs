//! What the client tells the coordinator, and the maps that come back.
//!
//! Owns when it is told whom to exclude, what is lost, what is filled, and how a newer map is taken over
//! while requests are on their way. Never: the coordinator's decisions. Invariant: a job that waits for an
//! exclusion goes on only when the map says so. Tests: `tests/volume_exclusion.rs`, `tests/volume_moves.rs`,
//! the simulator.

use super::base::Base;
use super::job::{Failure, Progress};
use super::types::{Effect, PartOp};
use super::{Key, beside, cached, doubts, fill, flush, watch};
use crate::api::{Amend, KeptSlot};
use crate::bad;
use crate::limits::AMEND_RETRY_NS;
use crate::map::{DonorId, Placement, VolumeMap};
use crate::units::Time;

/// Where telling the coordinator stands.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Those to be excluded that were named in the amendment that is on its way.
    exclude_said: Vec<DonorId>,
    /// How many rewritten ranges were said in it.
    rewritten_said: usize,
    /// One is on its way.
    busy: bool,
    pub(super) retry_at: Option<Time>,
}

impl Changes {
    /// Sends what there is to tell, one amendment at a time.
    pub(super) fn tell(&mut self, base: &mut Base) {
        let waits = self.retry_at.is_some_and(|at| base.now < at);
        if self.busy || waits || base.lease_lost {
            return;
        }
        if base.shape.read_only {
            return self.ask_whether_newest(base);
        }
        let Base { exclusions, shape, .. } = &*base;
        if exclusions.is_empty()
            && shape.bad.is_empty()
            && shape.rewritten.is_empty()
            && !base.fills.any_filled
        {
            return;
        }
        self.drop_exclusions(base);
        let keep = kept_slots(base);
        let filled = fill::filled(base);
        let exclude: Vec<(DonorId, String)> =
            base.exclusions.iter().map(|(donor, why)| (*donor, why.clone())).collect();
        let exclude_said = exclude.iter().map(|(donor, _)| *donor).collect();
        let (bad, rewritten) = (base.shape.bad.clone(), base.shape.rewritten.clone());
        let amend = Amend { epoch: base.shape.map.epoch, exclude, keep, filled, bad, rewritten };
        if amend.is_empty() {
            return;
        }
        (self.exclude_said, self.rewritten_said) = (exclude_said, amend.rewritten.len());
        (self.busy, self.retry_at) = (true, None);
        base.effects.push(Effect::Amend(amend));
    }

    /// Forgets who is not to be excluded any more: it is out of the map already, or it would keep all that it
    /// has.
    fn drop_exclusions(&mut self, base: &mut Base) {
        base.exclusions.retain(|donor, _| base.shape.map.routes.contains_key(donor));
        let keep = kept_slots(base);
        let mut exclude = std::mem::take(&mut base.exclusions);
        // It may come back with all that it has; who waits for its exclusion says so again.
        exclude.retain(|donor, _| has_more_than(base, *donor, &keep));
        base.exclusions = exclude;
    }

    /// Whether there is still somebody of whom the coordinator has to be told. That changes also by its own
    /// word, and by what comes of other donors.
    pub(super) fn still_excludes(&mut self, base: &mut Base) -> bool {
        if !self.busy {
            self.drop_exclusions(base);
        }
        self.busy || !base.exclusions.is_empty()
    }

    /// For everything that was read until now.
    fn ask_whether_newest(&mut self, base: &mut Base) {
        if base.jobs.unvouched.is_empty() {
            return;
        }
        base.jobs.vouching = std::mem::take(&mut base.jobs.unvouched);
        self.busy = true;
        base.effects.push(Effect::Amend(Amend { epoch: base.shape.map.epoch, ..Amend::default() }));
    }

    pub(super) fn amended(&mut self, base: &mut Base, map: Option<VolumeMap>) {
        self.busy = false;
        if base.shape.read_only {
            self.retry_at = map.is_none().then_some(base.now + AMEND_RETRY_NS);
            return beside::vouched(base, map.is_some());
        }
        match map {
            Some(map) => {
                for donor in std::mem::take(&mut self.exclude_said) {
                    base.exclusions.remove(&donor);
                }
                let news = !base.exclusions.is_empty();
                base.shape.bad.retain(|bad| !map.bad.iter().any(|known| known.covers(bad)));
                base.shape.rewritten.drain(..self.rewritten_said);
                replace_map(base, map);
                // Whatever was not granted is asked for again, but not at once; who was lost meanwhile is
                // named now.
                self.retry_at = (!news).then_some(base.now + AMEND_RETRY_NS / 4);
            }
            None => self.retry_at = Some(base.now + AMEND_RETRY_NS),
        }
        base.jobs.look_at_waiting();
    }

    pub(super) fn expire(&mut self, base: &mut Base) {
        if self.retry_at.is_some_and(|at| at <= base.now) {
            self.retry_at = None;
            base.jobs.look_at_waiting();
        }
    }
}

/// Slots of donors that are being excluded which stay theirs.
fn kept_slots(base: &Base) -> Vec<KeptSlot> {
    let mut kept = Vec::new();
    if base.exclusions.is_empty() {
        return kept;
    }
    for (group, of) in (0..).zip(&base.shape.map.groups) {
        for (slot, places) in (0..).zip(&of.slots) {
            let excluded = |held: &Placement| base.exclusions.contains_key(&held.donor);
            if places
                .held
                .filter(excluded)
                .is_some_and(|held| doubts::is_needed(base, group, slot, held.donor))
            {
                kept.push(KeptSlot { group, slot });
            }
        }
    }
    kept
}

/// Whether the donor has a slot that it would lose.
fn has_more_than(base: &Base, donor: DonorId, keep: &[KeptSlot]) -> bool {
    (0..).zip(&base.shape.map.groups).any(|(group, of)| {
        (0..).zip(&of.slots).any(|(slot, places)| {
            let held = places.held.is_some_and(|held| held.donor == donor);
            let filling = places.filling.is_some_and(|filling| filling.donor == donor);
            filling || (held && !keep.contains(&KeptSlot { group, slot }))
        })
    })
}

pub(super) fn replace_map(base: &mut Base, mut map: VolumeMap) {
    let same = map.volume == base.shape.map.volume
        && map.redundancy == base.shape.map.redundancy
        && map.unit == base.shape.map.unit
        && map.size >= base.shape.map.size
        && map.groups.len() >= base.shape.map.groups.len();
    if !same || map.epoch <= base.shape.map.epoch {
        return; // An older answer that arrived late.
    }
    base.links.add(&map);
    bad::subtract(&mut map.bad, base.shape.rewritten.iter().copied());
    bad::subtract(&mut map.unreadable, base.shape.rewritten.iter().copied());
    beside::unvouch(base);
    doubts::forget_missed(base, &map);
    flush::carry_unflushed(base, &map);
    base.shape.chunks = map.chunks();
    base.shape.map = map;
    base.absent.look_again();
    cached::forget(base, 0, u64::MAX);
    base.links.values_mut().for_each(|link| link.shut_out = false);
    follow_moved_slots(base);
    let routed = |donor: &DonorId| base.shape.map.routes.contains_key(donor);
    let gone: Vec<DonorId> =
        base.links.iter().map(|(donor, _)| donor).filter(|donor| !routed(donor)).collect();
    for donor in gone {
        watch::set_aside(base, donor, "it holds nothing of the volume any more".to_owned());
        base.links.remove(donor);
    }
    fill::take_on(base);
    base.jobs.look_at_waiting();
    watch::open_links(base);
    base.upkeep_due = true;
}

/// Reads that are on their way to who held a slot before are asked of who holds it now. So are flushes
/// that wait for a donor which holds nothing any more. Writes that wait for the link to a place which is not
/// the slot's any more are not sent there: by then it may be another's. Those that were sent the donor cuts
/// off before it gives the place to anybody.
fn follow_moved_slots(base: &mut Base) {
    let moved = |job: Key, slot: u32, placement| {
        let group = base.jobs.get(job).map(|job| job.group as usize)?;
        let held = base.shape.map.groups[group].slots.get(slot as usize)?.held;
        (held.is_some() && held != Some(placement)).then_some(())
    };
    let is_out = |job: Key, slot: u32, placement: Placement| {
        let job = base.jobs.get(job);
        job.is_some_and(|job| base.shape.slot(job.group, slot).placements().all(|place| place != placement))
    };
    let moved: Vec<(Key, DonorId, Progress)> = (base.jobs.parts.iter())
        .filter(|(_, part)| part.progress != Progress::Done)
        .filter(|(key, part)| match part.op {
            op if op.writes() => {
                part.progress == Progress::Waiting && is_out(part.job, part.slot, part.placement)
            }
            PartOp::Read | PartOp::Status | PartOp::Presence => {
                moved(part.job, part.slot, part.placement).is_some()
            }
            _ => flush::is_barrier(base, *key) && !base.shape.map.routes.contains_key(&part.placement.donor),
        })
        .map(|(key, part)| (key, part.placement.donor, part.progress))
        .collect();
    for (part, donor, progress) in moved {
        if matches!(progress, Progress::Sent | Progress::Came) {
            base.effects.push(Effect::Abandon { donor, part });
        } else if let Some(link) = base.links.get_mut(donor) {
            link.waiting.retain(|waiting| *waiting != part);
        }
        base.fail_part(part, Failure::Moved);
    }
}
