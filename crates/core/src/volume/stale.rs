//! What donors of disks may have lost with their memory, of a volume with write-back.
//!
//! Owns when they are asked for it, when what they have on disk counts as it is, and which writes a flush has
//! not covered yet: those are lost then, and recorded as that. Never: what is made up from others (`resync`
//! does that as for a slot that missed a write). Invariant: what a flush covered is never given up.
//! Tests: `tests/volume_write_back.rs`, the simulator.

use super::base::Base;
use super::doubts::{Stage, Torn};
use super::job::{Job, Slots, Undo, Work, bit, slots_of};
use super::types::{Effect, Fragment};
use super::{BLOCK, doubts, watch};
use crate::limits::{EXTENT_BLOCKS, INTENT_REGION_BYTES};
use crate::map::{BadRange, DonorId};
use std::collections::BTreeMap;

const WORDS: usize = (EXTENT_BLOCKS / 64) as usize;

/// Blocks of data slots that were written since the last flush that came to its end.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// By group and slot.
    written: BTreeMap<(u32, u32), Box<[u64; WORDS]>>,
    /// Those that the flush covers which is under way.
    covered: BTreeMap<(u32, u32), Box<[u64; WORDS]>>,
    /// One came to its end: nothing that a former writer wrote is in memory alone any more.
    has_flushed: bool,
}

impl Unflushed {
    fn note(&mut self, group: u32, slot: u32, from: u32, to: u32) {
        let words = self.written.entry((group, slot)).or_insert_with(|| Box::new([0; WORDS]));
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            words[(block / 64) as usize] |= 1 << (block % 64);
        }
    }

    /// A flush begins.
    pub(super) fn cover(&mut self) {
        self.put_back();
        self.covered = std::mem::take(&mut self.written);
    }

    /// It came to its end, or did not.
    pub(super) fn flushed(&mut self, is_good: bool) {
        match is_good {
            true => {
                self.covered.clear();
                self.has_flushed = true;
            }
            false => self.put_back(),
        }
    }

    fn put_back(&mut self) {
        for (place, words) in std::mem::take(&mut self.covered) {
            let written = self.written.entry(place).or_insert_with(|| Box::new([0; WORDS]));
            written.iter_mut().zip(words.iter()).for_each(|(to, from)| *to |= from);
        }
    }

    /// The first run of such blocks in a range, in bytes.
    fn first(&self, group: u32, slot: u32, from: u32, to: u32) -> Option<(u32, u32)> {
        let has = |block: u32| {
            let of = [&self.written, &self.covered].into_iter().filter_map(|all| all.get(&(group, slot)));
            of.into_iter().any(|words| words[(block / 64) as usize] >> (block % 64) & 1 == 1)
        };
        let mut blocks = from / BLOCK..to.div_ceil(BLOCK);
        let first = blocks.find(|block| has(*block))?;
        let end = blocks.find(|block| !has(*block)).unwrap_or(to.div_ceil(BLOCK));
        Some((first * BLOCK, end * BLOCK))
    }
}

/// A write of a volume with write-back has ended: what it wrote, or may have, no flush has covered yet.
pub(super) fn note_written(base: &mut Base, job: &Job) {
    let Some(span) = job.span().filter(|_| job.is_users_write()) else { return };
    for slot in 0..base.shape.geometry.data {
        let (from, to) = base.shape.geometry.column(span.begin, span.end, slot);
        if from < to {
            base.unflushed.note(job.group, slot, from, to);
        }
    }
}

/// A link is open that was open before: its donor may have lost what it had in memory.
pub(super) fn returned(base: &mut Base, donor: DonorId) {
    let writes = base.shape.map.write_back && !base.shape.read_only && !base.lease_lost;
    if !writes || base.doubts.stage == Stage::Linking {
        return;
    }
    let groups = (0..).zip(&base.shape.map.groups);
    let of =
        groups.filter(|(_, group)| group.slots.iter().filter_map(|s| s.held).any(|held| held.donor == donor));
    let of: Vec<u32> = of.map(|(group, _)| group).collect();
    base.doubts.resurveyed.extend(&of);
    base.doubts.returned.extend(of);
    base.upkeep_due = true;
}

/// These rows, where those who may have lost some of them are to adopt what they have if nobody makes it up.
pub(super) fn to_be_adopted(base: &mut Base, at: usize) -> Torn {
    let torn = base.doubts.torn[at];
    if torn.stale == 0 || torn.missed != 0 || torn.undo.is_some() {
        return torn;
    }
    let held = slots_of(torn.stale).filter(|slot| base.shape.is_held(torn.group, *slot));
    let slots: Slots = held.map(bit).sum();
    let torn = &mut base.doubts.torn[at];
    match slots {
        0 => torn.stale = 0,
        _ => torn.undo = Some(Undo { number: 0, slots }),
    }
    *torn
}

/// Others may have lost what this donor has, but it was waited for long enough, and all that a flush covered
/// is there without it.
pub(super) fn is_given_up(base: &Base, donor: DonorId) -> bool {
    base.doubts.holds_back && watch::is_spare(base, donor)
}

/// Those are no holders any more.
pub(super) fn give_up_who_is_away(base: &mut Base) {
    let lacks = base.doubts.unsure.iter().filter(|(group, ..)| doubts::lacks_what_is_stale(base, *group));
    let away: Vec<DonorId> = lacks.map(|(_, _, held)| held.donor).collect();
    for donor in away.into_iter().filter(|donor| is_given_up(base, *donor)).collect::<Vec<_>>() {
        base.exclude(donor, "it could not be asked what it has".to_owned());
    }
}

/// Nobody has written there.
pub(super) fn adopt_behind_the_end(base: &mut Base, group: u32, slots: Slots) {
    let lo = base.shape.used(group);
    let hi = lo.next_multiple_of(INTENT_REGION_BYTES as u32);
    let undo = Some(Undo { number: 0, slots });
    let torn = Torn { undo, stale: slots, ..Torn::rows(group, lo, hi) };
    if lo < hi && !base.doubts.torn.contains(&torn) {
        base.doubts.torn.push(torn);
    }
}

/// These slots have adopted what they have. What was written there since the last flush is lost.
pub(super) fn adopted(base: &mut Base, job: &Job, slots: Slots) {
    let Job { group, lo, hi, work, .. } = *job;
    let this = |torn: &&mut Torn| torn.is_of(job) && torn.undo.map(Work::Undo) == Some(work);
    base.doubts.torn.iter_mut().filter(this).for_each(|torn| (torn.undo, torn.stale) = (None, 0));
    if lo >= base.shape.used(group) {
        return base.doubts.torn.retain(|torn| !torn.is_of(job));
    }
    let data = base.shape.geometry.data;
    let columns: Vec<u32> = if data == 1 { vec![0] } else { slots_of(slots).filter(|s| *s < data).collect() };
    if !base.unflushed.has_flushed {
        base.tally.unflushed += u64::from(hi.min(base.shape.used(group)) - lo) * columns.len() as u64;
    }
    for slot in columns {
        let mut at = lo;
        while let Some((from, to)) = base.unflushed.first(group, slot, at, hi) {
            base.shape.report_bad(BadRange { group, slot, from, to });
            at = to;
        }
    }
    // What this client knows of it may be newer.
    for slot in base.shape.slots() {
        base.effects.push(Effect::Forget { fragment: Fragment { group, slot, local: lo }, len: hi - lo });
    }
}
