//! Scrubbing: donors compare what they hold with its checksums, and say what is wrong. No payload travels.
//!
//! Owns when a pass begins, what of it is still to be asked, and what was found. Never: what is done about a
//! wrong block (`heal`), or fragments that do not fit together (`compare`). Invariant: each byte of a pass
//! counts once, as checked or as unchecked. Tests: `tests/volume_scrub.rs`, the simulator.

use super::base::Base;
use super::heal::Healing;
use super::job::{Job, Part, Phase, Run, Work};
use super::types::{PartOp, Scope, Scrubbed, ScrubbedDonor, StatusRun, VolumeError};
use super::{BLOCK, Key};
use crate::bad;
use crate::limits::{JOBS_MAX, REQUEST_DEADLINE_NS, SCRUB_EVERY_NS};
use crate::map::{BadRange, DonorId};
use crate::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// A donor is asked about so much at once. Its thread serves nobody else while it computes.
const STEP_BYTES: u32 = 4 << 20;
/// So that it computes one answer while the other travels.
const OPEN_PER_DONOR: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Scrubbing {
    /// What is still to be asked, by the donor that held it when the pass began: all of them work at once.
    turns: BTreeMap<DonorId, Turn>,
    found: Scrubbed,
    /// The pass is of what was wrong: that stays wrong until its donor says otherwise.
    looks_again: bool,
    /// When the next pass begins; 0: not yet known.
    next_pass: Time,
    /// How much was healed so far, and since when that has not grown.
    healed: (u64, Time),
}

#[derive(Debug, Default)]
struct Turn {
    left: VecDeque<BadRange>,
    open: usize,
}

impl Scrubbing {
    pub(super) fn found(&self) -> &Scrubbed {
        &self.found
    }

    /// Begins a pass, unless one is under way.
    pub(super) fn begin_pass(&mut self, base: &mut Base, scope: Scope) {
        if self.found.is_under_way || base.finishing.is_some() {
            return;
        }
        let before = std::mem::take(&mut self.found);
        self.found = Scrubbed { passes: before.passes, is_under_way: true, ..Scrubbed::default() };
        self.looks_again = scope == Scope::Wrong;
        match scope {
            Scope::All => {
                for group in 0..base.shape.map.groups.len() as u32 {
                    let to = base.shape.used(group);
                    base.shape.slots().for_each(|slot| self.add(base, BadRange { group, slot, from: 0, to }));
                }
            }
            Scope::Wrong => before.wrong.into_iter().for_each(|range| self.add(base, range)),
        }
        base.upkeep_due = true;
    }

    fn add(&mut self, base: &Base, range: BadRange) {
        let bytes = u64::from(range.to - range.from);
        match base.shape.slot(range.group, range.slot).held {
            Some(held) => {
                self.found.bytes_total += bytes;
                self.found.donors.entry(held.donor).or_default();
                self.turns.entry(held.donor).or_default().left.push_back(range);
            }
            None => {
                self.found.bytes_missing += bytes;
                self.not_seen([range]);
            }
        }
    }

    fn not_seen(&mut self, ranges: impl IntoIterator<Item = BadRange>) {
        if self.looks_again {
            bad::merge(&mut self.found.wrong, ranges);
        }
    }

    /// `heals`: something wrong is still to be put right, and a pass has not come to its end before. What
    /// cannot be put right, and is read again and again, is waited for no longer than a request would be.
    /// `compares`: nor has it while fragments are compared.
    pub(super) fn start(&mut self, base: &mut Base, heals: bool, compares: bool) {
        let writes = !base.shape.read_only && !base.lease_lost;
        if self.next_pass == 0 {
            self.next_pass = base.now + SCRUB_EVERY_NS;
        } else if self.next_pass <= base.now && writes {
            self.next_pass = base.now + SCRUB_EVERY_NS;
            self.begin_pass(base, Scope::All);
        }
        for (donor, turn) in &mut self.turns {
            while turn.open < OPEN_PER_DONOR && base.jobs.room() > JOBS_MAX / 2 {
                let Some(range) = turn.left.front_mut() else { break };
                let BadRange { group, slot, from, to } = *range;
                let hi = to.min(from.saturating_add(STEP_BYTES));
                range.from = hi;
                if hi == to {
                    turn.left.pop_front();
                }
                turn.open += 1;
                base.add_job(None, Work::Scrub { slot, turn: *donor }, group, from, hi);
            }
        }
        let looked_at_all = self.turns.values().all(|turn| turn.open == 0 && turn.left.is_empty());
        if !looked_at_all || self.healed.0 != base.tally.healed {
            self.healed = (base.tally.healed, base.now);
        }
        let in_vain = self.healed.1 + REQUEST_DEADLINE_NS <= base.now;
        if looked_at_all && !compares && (!heals || in_vain) {
            self.turns.clear();
            self.found.passes += u64::from(std::mem::take(&mut self.found.is_under_way));
        }
    }

    /// A donor that says nothing, and that redundancy does not set aside, is not waited for for ever.
    pub(super) fn expire(&mut self, base: &mut Base) {
        if self.turns.is_empty() {
            return;
        }
        let is_late = |part: &Part| part.sent_at + REQUEST_DEADLINE_NS <= base.now;
        let scrubs = base.jobs.iter().filter(|(_, job)| matches!(job.work, Work::Scrub { .. }));
        let late = scrubs.filter(|(key, _)| base.jobs.open_parts(*key).any(|(_, part)| is_late(part)));
        for key in late.map(|(key, _)| key).collect::<Vec<_>>() {
            base.jobs[key].failed = Some(VolumeError::TimedOut);
            base.end_job(key, Err(VolumeError::TimedOut));
        }
    }

    /// What a donor said.
    pub(super) fn answered(
        &mut self,
        base: &mut Base,
        healing: &mut Healing,
        part: &Part,
        runs: &[StatusRun],
    ) {
        let Job { group, lo, hi, .. } = base.jobs[part.job];
        let (mut from, mut found) = (lo, Vec::new());
        for run in runs {
            let to = from.saturating_add(run.len).min(hi);
            if !run.hole && from < to {
                let wrong = BadRange { group, slot: part.slot, from, to };
                let blocks = (to - from).div_ceil(BLOCK);
                self.donor(part.placement.donor).blocks_wrong += u64::from(blocks);
                found.push(wrong);
                base.tally.found_corrupt(part.placement.donor, blocks);
                base.tally.found_in_memory(part.placement.donor, blocks);
                healing.take(base, wrong, blocks, true);
            }
            from = to;
        }
        if !found.is_empty() {
            bad::merge(&mut self.found.wrong, found);
        }
        if from < hi {
            base.jobs[part.job].failed = Some(VolumeError::DonorFailed);
        }
    }

    pub(super) fn ended(&mut self, base: &Base, job: &Job, turn: DonorId, done: bool) {
        let Work::Scrub { slot, .. } = job.work else { return };
        let mut ranges = vec![BadRange { group: job.group, slot, from: job.lo, to: job.hi }];
        if let Some(turn) = self.turns.get_mut(&turn) {
            turn.open -= 1;
            // It is not waited for as long for each of the rest.
            if job.failed == Some(VolumeError::TimedOut) {
                ranges.extend(turn.left.drain(..));
            }
        }
        let bytes = ranges.iter().map(|range| u64::from(range.to - range.from)).sum::<u64>();
        if !done {
            self.not_seen(ranges);
        }
        // By the donor that has it now: it may have moved since.
        let held = base.shape.slot(job.group, slot).held.map_or(turn, |held| held.donor);
        let donor = self.donor(held);
        if done {
            donor.bytes_checked += bytes;
        } else {
            donor.bytes_unchecked += bytes;
            donor.why_unchecked = Some(job.failed.unwrap_or(VolumeError::DonorLost));
        }
    }

    fn donor(&mut self, donor: DonorId) -> &mut ScrubbedDonor {
        self.found.donors.entry(donor).or_default()
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.found.is_under_way
    }

    /// Nothing follows.
    pub(super) fn stop(&mut self) {
        self.turns.values_mut().for_each(|turn| turn.left.clear());
    }
}

pub(super) fn begin(base: &mut Base, key: Key, slot: u32) {
    let Job { group, lo, .. } = base.jobs[key];
    let about = Run::about(lo, base.jobs[key].len());
    let held = base.shape.slot(group, slot).held;
    match held.is_some_and(|held| base.add_part(key, slot, held, PartOp::Verify, about)) {
        true => base.set_phase(key, Phase::Reading),
        false => base.end_job(key, Err(VolumeError::DonorLost)),
    }
}
