//! Slots that get a new holder, and giving it what the slot holds.
//!
//! Owns how far each such slot is filled, and which chunk is next. Never: how fast (`pace`), or where slots
//! go (the coordinator). Invariant: what a slot's new holder has is up to its `cursor`, and in chunks `ahead`
//! of it; every later write to any of that reaches it, too. Tests: below, `tests/volume_fill.rs`, the
//! simulator.

use super::base::Base;
use super::doubts::Torn;
use super::job::{Job, Phase, Run, Work, bit, slots_of};
use super::read::READ_AGAIN_MAX;
use super::types::{Effect, PartOp, StatusRun, VolumeError};
use super::{BLOCK, Key, PAUSE_NS, doubts, lanes};
use crate::api::Filled;
use crate::layout::{Geometry, Scatter};
use crate::limits::{FILL_CHUNKS_MAX, HURRY_CHUNKS_MAX, RUSH_NS, SCRATCH_LARGE_COUNT};
use crate::map::{BadRange, Placement};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// So much of a volume that was opened from a source came at once.
const PIECE: u32 = crate::filling::PIECE_BYTES as u32;

/// A slot that gets a new holder.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) to: Placement,
    /// Bytes of the extent that are there.
    pub(super) cursor: u32,
    /// Bytes that are there or on their way, chunk by chunk: whoever writes to one that is on its way waits
    /// for it.
    begun: u32,
    /// Chunks that are there, beyond one that is not yet.
    ahead: BTreeSet<(u32, u32)>,
    /// Chunks on their way.
    open: usize,
    /// The coordinator was told, by the map of this epoch, that it has every byte.
    pub(super) told: Option<u64>,
    /// Jobs born later count: an earlier one knew another filling of the slot.
    since: u64,
    pause_until: Time,
    /// Up to there something is absent: it goes piece by piece.
    in_pieces_until: u32,
    /// Up to there something is wrong that nothing gives back, or a piece is there in part: it goes block by
    /// block.
    singly_until: u32,
}

impl Fill {
    pub(super) fn new(to: Placement, since: u64) -> Self {
        Fill {
            to,
            cursor: 0,
            begun: 0,
            ahead: BTreeSet::new(),
            open: 0,
            told: None,
            since,
            pause_until: 0,
            in_pieces_until: 0,
            singly_until: 0,
        }
    }

    /// Whether any of these bytes are there.
    pub(super) fn has_some(&self, from: u32, to: u32) -> bool {
        self.cursor > from || self.ahead.iter().any(|(begin, end)| *begin < to && from < *end)
    }

    /// Goes on at the cursor. What comes of the chunks that are on their way counts for nothing.
    fn restart(&mut self, since: u64) {
        (self.begun, self.open, self.since) = (self.cursor, 0, since);
        self.ahead.clear();
    }

    /// Whether the chunk failed to be taken in smaller parts.
    fn goes_in_parts(&self, job: &Job) -> bool {
        (job.lo < self.singly_until && job.len() > BLOCK)
            || (job.lo < self.in_pieces_until && job.len() > PIECE)
    }

    /// Bytes of the chunk that begins there.
    fn step(&self, lo: u32, most: u32) -> u32 {
        match lo {
            _ if lo < self.singly_until => BLOCK,
            _ if lo < self.in_pieces_until => PIECE.min(most),
            _ => most,
        }
    }

    fn have(&mut self, from: u32, to: u32) {
        self.ahead.insert((from, to));
        while let Some((_, to)) = self.ahead.first().copied().filter(|(from, _)| *from <= self.cursor) {
            self.ahead.pop_first();
            self.cursor = self.cursor.max(to);
        }
    }
}

/// All slots that are being filled, by group and slot.
#[derive(Debug, Default)]
pub(super) struct Fills {
    pub(super) of: BTreeMap<(u32, u32), Fill>,
    /// A slot may have become complete since they were looked through.
    pub(super) any_filled: bool,
    /// A group began to be rebuilt that can lose no more.
    is_exposed: bool,
}

/// The chunks that are on their way.
#[derive(Debug, Default)]
pub(super) struct Filling {
    open: usize,
    /// Until then a group that can lose no more goes before the tools.
    rush_until: Time,
}

impl Filling {
    pub(super) fn start(&mut self, base: &mut Base) {
        if std::mem::take(&mut base.fills.is_exposed) {
            self.rush_until = base.now + RUSH_NS;
        }
        let limit = match base.shape.map.hurry {
            true => HURRY_CHUNKS_MAX as usize,
            false if base.now < self.rush_until => FILL_CHUNKS_MAX as usize,
            false => base.pace.chunks().min(FILL_CHUNKS_MAX as usize),
        };
        let reserve = (SCRATCH_LARGE_COUNT - FILL_CHUNKS_MAX) as usize / 2;
        while self.open < limit && base.jobs.scratch.large_free() > reserve {
            let Some((group, slot)) = next_to_fill(base) else { return };
            self.open += 1;
            let end = base.shape.used(group);
            let step = base.shape.lane_max();
            let fill = base.fills.of.get_mut(&(group, slot)).expect("just found");
            let (lo, to) = (fill.begun, fill.to);
            let step = fill.step(lo, step);
            let hi = (lo / step * step + step).min(end);
            (fill.begun, fill.open) = (hi, fill.open + 1);
            base.add_job(None, Work::Fill { slot, to }, group, lo, hi);
        }
    }

    pub(super) fn ended(&mut self, base: &mut Base, job: &Job, slot: u32, to: Placement, done: bool) {
        self.open -= 1;
        let same = |fill: &&mut Fill| fill.to == to;
        let Some(fill) = base.fills.of.get_mut(&(job.group, slot)).filter(same) else { return };
        let counts = fill.since < job.born;
        fill.open -= usize::from(counts);
        if done && job.missed.is_empty() {
            if !counts {
                return;
            }
            fill.have(job.lo, job.hi);
            base.fills.any_filled = true;
            base.tally.filled(job.len());
        } else {
            if counts {
                fill.restart(base.jobs.born);
            }
            if !fill.goes_in_parts(job) {
                fill.pause_until = base.now + PAUSE_NS;
            }
        }
    }
}

/// Slots that are complete and that the map does not call held yet. This is asked at every event, while
/// slots become complete rarely.
pub(super) fn filled(base: &mut Base) -> Vec<Filled> {
    if !base.fills.any_filled {
        return Vec::new();
    }
    let whole = base.fills.of.iter().filter(|((group, _), fill)| fill.cursor >= base.shape.used(*group));
    let mut filled: Vec<Filled> = whole
        .map(|((group, slot), fill)| Filled { group: *group, slot: *slot, placement: fill.to })
        .collect();
    base.fills.any_filled = !filled.is_empty();
    // Who cannot be reached may be gone, and what it was to replace is still there.
    filled.retain(|filled| base.links.is_up(filled.placement.donor));
    for Filled { group, slot, .. } in &filled {
        base.fills.of.entry((*group, *slot)).and_modify(|fill| fill.told = Some(base.shape.map.epoch));
    }
    filled
}

/// Whether it holds the slot, or may be about to: the coordinator was told that it has every byte, and
/// what became of that is not known.
pub(super) fn may_hold(base: &Base, group: u32, slot: u32, placement: Placement) -> bool {
    let told = |fill: &Fill| fill.to == placement && fill.told == Some(base.shape.map.epoch);
    base.shape.slot(group, slot).held == Some(placement)
        || base.fills.of.get(&(group, slot)).is_some_and(told)
}

pub(super) fn take_on(base: &mut Base) {
    let mut fills = BTreeMap::new();
    for (group, of_group) in (0u32..).zip(&base.shape.map.groups) {
        let held = of_group.slots.iter().filter(|slot| slot.held.is_some()).count();
        for (slot, places) in (0u32..).zip(&of_group.slots) {
            let Some(to) = places.filling else { continue };
            let known = base.fills.of.remove(&(group, slot)).filter(|fill| fill.to == to);
            base.fills.is_exposed |= known.is_none() && held <= base.shape.geometry.data as usize;
            fills.insert((group, slot), known.unwrap_or_else(|| Fill::new(to, base.jobs.born)));
        }
    }
    base.fills.of = fills;
    base.fills.any_filled = true;
    count(base);
}

pub(super) fn unfill(base: &mut Base, group: u32, slot: u32, to: u32) {
    if let Some(fill) = base.fills.of.get_mut(&(group, slot)).filter(|fill| to < fill.begun) {
        fill.cursor = fill.cursor.min(to);
        fill.restart(base.jobs.born);
    }
}

/// Those first whose group can lose the fewest more; of them the ones with the fewest chunks on their
/// way; then in order, so that some are complete early: that is when a donor gets its memory back.
fn next_to_fill(base: &Base) -> Option<(u32, u32)> {
    let able = |(key, fill): &(&(u32, u32), &Fill)| {
        let ready = fill.pause_until <= base.now && fill.begun < base.shape.used(key.0);
        ready && base.links.is_up(fill.to.donor)
    };
    let slots = |group: u32| base.shape.map.groups[group as usize].slots.iter();
    let held = |group: u32| slots(group).filter(|slot| slot.held.is_some()).count();
    let best = base.fills.of.iter().filter(able).min_by_key(|(key, fill)| (held(key.0), fill.open, **key));
    best.map(|(key, _)| *key)
}

pub(super) fn write(base: &mut Base, key: Key, slot: u32, to: Placement) {
    base.drop_parts(key);
    if base.shape.slot(base.jobs[key].group, slot).filling != Some(to) {
        // While it was read the place was taken back, and may be another slot's by now.
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    let (fragment, at) = (base.fragment(key, slot), base.lane(key, slot));
    let job = &base.jobs[key];
    let scatter = Scatter::whole(at.offset, job.len());
    if job.tries == 0 {
        base.effects.push(Effect::Learn { fragment, copies: 1, mem: at.mem, scatter });
    }
    let (lo, scatter) = (job.lo, Scatter::whole(at.offset, job.len()));
    let known = base.links.get(to.donor).is_some();
    if !known || !base.add_part(key, slot, to, PartOp::Sparse, Run { local: lo, mem: at.mem, scatter }) {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    base.set_phase(key, Phase::Writing);
}

fn count(base: &mut Base) {
    let left = |((group, _), fill): (&(u32, u32), &Fill)| {
        u64::from(base.shape.used(*group).saturating_sub(fill.cursor))
    };
    let fills = &base.fills.of;
    base.tally.fills_left((!fills.is_empty()).then(|| fills.iter().map(left).sum()));
}

/// Where nothing but wrong blocks keeps a slot from being filled, these are lost, and the rest goes on: block
/// by block, so that no more is given up than what is wrong. False where somebody may still have what is
/// missing.
pub(super) fn gives_up(base: &mut Base, key: Key, slot: u32, to: Placement) -> bool {
    let Job { group, lo, hi, wrong, tries, .. } = base.jobs[key];
    let is_out = |other: u32| {
        let held = base.shape.is_held(group, other);
        held && wrong & bit(other) == 0 && base.source(group, other).is_none()
    };
    // It holds the slot once the coordinator has heard.
    let comes = |other: u32| {
        let fill = base.fills.of.get(&(group, other)).filter(|_| other != slot);
        fill.is_some_and(|fill| fill.has_some(lo, hi))
    };
    let waits = base.shape.slots().any(|other| is_out(other) || comes(other));
    if wrong == 0 || waits || doubts::is_torn_for(base, key) {
        return false;
    }
    if hi - lo > BLOCK {
        if let Some(fill) = base.fills.of.get_mut(&(group, slot)).filter(|fill| fill.to == to) {
            fill.singly_until = fill.singly_until.max(hi);
        }
        base.end_job(key, Err(VolumeError::Corrupt));
        return true;
    }
    if tries < READ_AGAIN_MAX {
        // Bits may have flipped on their way.
        let job = &mut base.jobs[key];
        (job.tries, job.avoid, job.wrong) = (tries + 1, 0, 0);
        lanes::read(base, key);
        return true;
    }
    let Geometry { data, parity, .. } = base.shape.geometry;
    let column = |slot: u32| if data == 1 { 0 } else { slot };
    for lost in slots_of(wrong | bit(slot)).map(column).filter(|lost| *lost < data) {
        base.shape.report_bad(BadRange { group, slot: lost, from: lo, to: hi });
        base.effects.push(Effect::Forget { fragment: base.fragment(key, lost), len: hi - lo });
    }
    if data > 1 && parity > 0 {
        // Nothing is to be rebuilt from these zeros: what parity is then, and which data is lost with them
        // that nobody holds, are asked of the row as of one half written.
        base.doubts.torn.push(Torn::rows(group, lo, hi));
    }
    base.effects.push(Effect::Zero { at: base.lane(key, slot), len: hi - lo });
    write(base, key, slot, to);
    true
}

/// What is not here yet is not there either: what can be read of a chunk is copied in smaller parts, and
/// nothing is put where there is nothing.
pub(super) fn meets_absent(base: &mut Base, key: Key, slot: u32, to: Placement) {
    let Job { group, lo, hi, .. } = base.jobs[key];
    let is_asked = hi - lo > BLOCK
        && base.source(group, slot).is_some_and(|(held, _)| {
            base.add_part(key, slot, held, PartOp::Presence, Run::about(lo, hi - lo))
        });
    match hi - lo {
        _ if is_asked => {}
        BLOCK => nothing_there(base, key, slot, to),
        _ => base.end_job(key, Err(VolumeError::Absent)),
    }
}

/// All of a chunk is absent. Where blocks are dropped, an earlier attempt may have copied what is gone now.
fn nothing_there(base: &mut Base, key: Key, slot: u32, to: Placement) {
    let Job { group, lo, hi, .. } = base.jobs[key];
    if base.shape.map.layers() == 1 {
        return base.end_job(key, Ok(()));
    }
    base.drop_parts(key);
    let is_place = base.shape.slot(group, slot).filling == Some(to) && base.links.get(to.donor).is_some();
    if !is_place || !base.add_part(key, slot, to, PartOp::Trim, Run::about(lo, hi - lo)) {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    base.set_phase(key, Phase::Writing);
}

/// Whether anything of a chunk is there of which something is absent.
pub(super) fn presence_told(base: &mut Base, key: Key, slot: u32, to: Placement, runs: &[StatusRun]) {
    let Job { group, lo, hi, .. } = base.jobs[key];
    let absent: u32 = runs.iter().filter(|run| run.hole).map(|run| run.len).sum();
    if absent == hi - lo {
        return nothing_there(base, key, slot, to);
    }
    if let Some(fill) = base.fills.of.get_mut(&(group, slot)).filter(|fill| fill.to == to) {
        match hi - lo > PIECE {
            true => fill.in_pieces_until = fill.in_pieces_until.max(hi),
            false => fill.singly_until = fill.singly_until.max(hi),
        }
    }
    base.end_job(key, Err(VolumeError::Absent));
}

/// What was rebuilt is not what was written. Each of the others was what it should be, so nothing else can
/// give this back.
pub(super) fn wrongly_rebuilt(base: &mut Base, key: Key, slot: u32, to: Placement) {
    if lanes::leaves_out_a_parity(base, key) {
        return;
    }
    let job = &mut base.jobs[key];
    (job.failed, job.tries) = (None, 1);
    if slot < base.shape.geometry.data {
        let Job { group, lo, hi, .. } = *job;
        base.shape.report_bad(BadRange { group, slot, from: lo, to: hi });
        // What its new holder is given is not what was written there, and not its fault.
        base.effects.push(Effect::Forget { fragment: base.fragment(key, slot), len: hi - lo });
    }
    write(base, key, slot, to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::DonorId;
    use crate::volume::base::sample;

    const TO: Placement = Placement { donor: DonorId(3), extent: 9 };

    #[test]
    fn what_is_there_grows_over_chunks_that_came_out_of_order() {
        let mut fill = Fill::new(TO, 0);
        fill.have(4096, 8192);
        assert_eq!(fill.cursor, 0);
        assert!(fill.has_some(8000, 9000) && !fill.has_some(0, 4096), "only what came");
        fill.have(0, 4096);
        assert_eq!(fill.cursor, 8192);
        fill.have(12288, 16384);
        fill.restart(5);
        assert!(!fill.has_some(8192, 16384), "what lies ahead is not believed after a failure");
        assert_eq!((fill.cursor, fill.begun, fill.since), (8192, 8192, 5));
    }

    #[test]
    fn a_new_holder_that_missed_a_write_begins_there_again() {
        let mut base = sample("parity:2+1");
        base.shape.map.groups[0].slots[2].filling = Some(TO);
        take_on(&mut base);
        let fill = base.fills.of.get_mut(&(0, 2)).expect("taken on");
        (fill.begun, fill.told) = (16384, Some(1));
        fill.have(0, 16384);
        assert!(may_hold(&base, 0, 2, TO), "the coordinator was told");
        unfill(&mut base, 0, 2, 4096);
        assert_eq!(base.fills.of[&(0, 2)].cursor, 4096);
        unfill(&mut base, 0, 2, 8192);
        assert_eq!(base.fills.of[&(0, 2)].cursor, 4096, "it has nothing there to lose");
        base.shape.map.epoch = 2;
        assert!(!may_hold(&base, 0, 2, TO), "that was another map");
    }

    #[test]
    fn a_filling_that_is_known_goes_on_where_it_was() {
        let mut base = sample("parity:2+1");
        base.shape.map.groups[0].slots[2].filling = Some(TO);
        take_on(&mut base);
        base.fills.of.get_mut(&(0, 2)).expect("taken on").have(0, 4096);
        take_on(&mut base);
        assert_eq!(base.fills.of[&(0, 2)].cursor, 4096);
        base.shape.map.groups[0].slots[2].filling = Some(Placement { extent: 10, ..TO });
        take_on(&mut base);
        assert_eq!(base.fills.of[&(0, 2)].cursor, 0, "another place has nothing");
    }
}
