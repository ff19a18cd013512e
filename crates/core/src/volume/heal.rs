//! Blocks that a donor sent wrong: put right where they are.
//!
//! Owns which blocks are to be healed and in what order. Never: finding them (drivers check what is read).
//! Tests: `tests/volume_degraded.rs`, the simulator.

use super::base::Base;
use super::job::{Failure, Job, Part, Phase, Run, Work, bit};
use super::types::{PartError, PartOp, StatusRun};
use super::{BLOCK, Key, PAUSE_NS, beside, lanes, read};
use crate::map::BadRange;
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

const HEALS_MAX: usize = 4;

/// A part of one slot: group, slot, and the bytes of its extent from and to.
type Chunk = (u32, u32, u32, u32);

/// What was found in a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Wrong {
    blocks: u32,
    /// Its donor has been asked whether that is what it has in memory.
    is_asked: bool,
}

#[derive(Debug, Default)]
pub(super) struct Healing {
    open: usize,
    wrong: BTreeMap<Chunk, Wrong>,
    healing: BTreeSet<Chunk>,
    last: Chunk,
    /// Until when nothing is tried in a chunk of which a block could not be healed.
    rests: BTreeMap<(u32, u32, u32), Time>,
}

impl Healing {
    /// A donor sent blocks that are not what was written there.
    pub(super) fn found_corrupt(&mut self, base: &mut Base, part: Part, blocks: u32) {
        base.tally.found_corrupt(part.placement.donor, blocks);
        let Job { group, work, .. } = base.jobs[part.job];
        let (local, len) = (part.run.local, part.run.scatter.len);
        // Two slots that are wrong in the same row would be healed by turns for ever, and nothing else would
        // be.
        let heals = matches!(work, Work::Heal { .. });
        if !heals {
            self.take(base, BadRange { group, slot: part.slot, from: local, to: local + len }, blocks, false);
        }
    }

    /// Among these bytes so many blocks are wrong where they lie; `is_asked`: by what the donor itself says.
    pub(super) fn take(&mut self, base: &mut Base, wrong: BadRange, blocks: u32, is_asked: bool) {
        if base.shape.geometry.parity == 0 || base.shape.read_only {
            return;
        }
        let BadRange { group, slot, from, to } = wrong;
        let step = base.shape.lane_max();
        let (mut at, mut left) = (from / step * step, blocks);
        while at < to {
            // How many of the blocks lie in which chunk is not known; they are counted with the first.
            let (lo, hi) = (at.max(from), (at + step).min(to));
            let wrong = self.wrong.entry((group, slot, lo, hi)).or_default();
            wrong.blocks += std::mem::take(&mut left);
            wrong.is_asked |= is_asked;
            at += step;
        }
        base.upkeep_due = true;
    }

    /// What a donor has where it sent wrong bytes.
    pub(super) fn verified(&mut self, base: &mut Base, part: &Part, runs: &[StatusRun]) {
        let blocks = runs.iter().filter(|run| !run.hole).map(|run| run.len / BLOCK).sum();
        if blocks > 0 {
            base.tally.found_in_memory(part.placement.donor, blocks);
        }
        if matches!(base.jobs[part.job].work, Work::Heal { .. }) {
            return;
        }
        base.jobs[part.job].coming &= !bit(part.slot);
        if blocks > 0 {
            self.found_corrupt(base, *part, blocks);
            read::failed(
                base,
                part.job,
                part.slot,
                Failure::Answer(PartError::Corrupt { blocks, forged: false }),
            );
        } else {
            beside::read_again(base, part.job, part.slot);
        }
    }

    /// The donor did not say whether it has what came wrong from it. One that knows no checksums cannot: it
    /// is asked once more, for a bit may have flipped on the way, and then that is what it has.
    pub(super) fn not_told(&mut self, base: &mut Base, part: &Part, failure: Failure) {
        if failure != Failure::Answer(PartError::Unsupported) {
            return read::failed(base, part.job, part.slot, failure);
        }
        if base.jobs[part.job].verifies <= 1 {
            return read::again(base, part.job, part.slot);
        }
        self.found_corrupt(base, *part, 1);
        let wrong = PartError::Corrupt { blocks: 1, forged: false };
        read::failed(base, part.job, part.slot, Failure::Answer(wrong));
    }

    /// The donor did not say what it has where blocks are healed. One that knows no checksums cannot: what it
    /// sent is taken for what it has.
    pub(super) fn not_verified(&self, base: &mut Base, part: &Part, failure: Failure) {
        let Job { group, lo, hi, .. } = base.jobs[part.job];
        let blocks = self.wrong.get(&(group, part.slot, lo, hi)).map_or(0, |wrong| wrong.blocks);
        if failure == Failure::Answer(PartError::Unsupported) {
            base.tally.found_in_memory(part.placement.donor, blocks);
        }
    }

    pub(super) fn start(&mut self, base: &mut Base) {
        self.rests.retain(|_, until| base.now < *until);
        let step = base.shape.lane_max();
        while self.open < HEALS_MAX {
            // In turn, so that one which cannot be healed yet does not keep the others waiting.
            let (heals, last) = (&self.wrong, self.last);
            let in_turn = heals.range((Bound::Excluded(last), Bound::Unbounded)).chain(heals.range(..=last));
            let mut chunks = in_turn.map(|(chunk, _)| *chunk);
            let may = |chunk: &Chunk| {
                !self.healing.contains(chunk) && !self.rests.contains_key(&place(*chunk, step))
            };
            let Some(chunk) = chunks.find(may) else { return };
            self.last = chunk;
            let (group, slot, from, to) = chunk;
            if !base.shape.is_held(group, slot) || to > base.shape.used(group) {
                self.wrong.remove(&chunk);
                continue;
            }
            let is_asked = heals.get(&chunk).is_some_and(|wrong| wrong.is_asked);
            self.healing.insert(chunk);
            self.open += 1;
            let key = base.add_job(None, Work::Heal { slot }, group, from, to);
            let job = &mut base.jobs[key];
            (job.avoid, job.wrong, job.verifies) = (bit(slot), bit(slot), u32::from(is_asked));
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.wrong.is_empty()
    }

    pub(super) fn ended(&mut self, base: &mut Base, job: &Job, slot: u32, done: bool) {
        let chunk = (job.group, slot, job.lo, job.hi);
        self.open -= 1;
        self.healing.remove(&chunk);
        let blocks = self.wrong.remove(&chunk).map_or(0, |wrong| wrong.blocks);
        if done {
            base.tally.healed += u64::from(blocks);
        } else if job.len() > BLOCK {
            // Other slots may be wrong in other rows of it.
            let block = |at: u32| (job.group, slot, at, at + BLOCK);
            let mut each = (job.lo..job.hi).step_by(BLOCK as usize).map(block);
            let first = each.next().map(|chunk| (chunk, blocks)).into_iter();
            let all = first.chain(each.map(|chunk| (chunk, 0)));
            self.wrong.extend(all.map(|(chunk, blocks)| (chunk, Wrong { blocks, is_asked: true })));
        } else {
            // Whoever reads it finds it again; until then there is no use in trying.
            self.rests.insert(place(chunk, base.shape.lane_max()), base.now + PAUSE_NS);
        }
    }
}

/// Group, slot, and number of the chunk that a run lies in.
fn place((group, slot, from, _): Chunk, step: u32) -> (u32, u32, u32) {
    (group, slot, from / step)
}

/// Asks the others for what is right, and the donor whether it has what it sent: whether its memory is at
/// fault, or the way to it.
pub(super) fn begin(base: &mut Base, key: Key, slot: u32) {
    let job = &mut base.jobs[key];
    let (group, about) = (job.group, Run::about(job.lo, job.len()));
    if std::mem::replace(&mut job.verifies, 1) == 0
        && let Some(held) = base.shape.slot(group, slot).held
    {
        base.add_part(key, slot, held, PartOp::Verify, about);
    }
    lanes::read(base, key);
}

pub(super) fn write(base: &mut Base, key: Key, slot: u32) {
    base.drop_parts(key);
    let Job { lo, hi, .. } = base.jobs[key];
    lanes::write_lane(base, key, slot, lo, hi);
    base.set_phase(key, Phase::Writing);
}
