//! Rows that may be half written: finding them, and making their fragments fit together again.
//!
//! Owns the way from the first link to serving: whoever wrote before may have ended in the middle, and the
//! donors remember where. Also the rows of a write that ended without reaching everyone. Never: wrong blocks,
//! or slots without a holder (`upkeep`). Invariants: a volume is served when every row fits together or its
//! loss is recorded, or when that took as long as a request may; data that is missing there is reported as
//! lost, never made up; and a donor that is silent while only its memory tells what such a row is keeps that
//! memory. Tests: `tests/volume_unclean.rs`, `tests/volume_resync.rs`, the simulator; `lab/tests/unclean.rs`.

use super::base::Base;
use super::doubts::{Stage, Torn};
use super::job::{Failure, Job, Missed, Phase, Progress, Run, Slots, Work, bit, slots_of};
use super::judge::Hearing;
use super::link::Link;
use super::types::{Effect, Fragment, PartError, PartOp, StatusRun, VolumeError};
use super::{BLOCK, Key, PAUSE_NS, doubts, fill, fit, flush, lanes, stale};
use crate::donor::ListedWrite;
use crate::layout::Scatter;
use crate::limits::{BLOCK_BYTES, EXTENT_BYTES};
use crate::map::{BadRange, DonorId, Placement};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Groups whose dirty maps are asked for at once, before a volume is served.
const SURVEYS_MAX: usize = 64;
const RESYNCS_MAX: usize = 16;

/// Where asking about rows and mending them stands.
#[derive(Debug, Default)]
pub(super) struct Resync {
    open: usize,
    under_way: BTreeSet<Torn>,
    pause_until: Time,
    surveys_open: usize,
    /// So many groups are asked about before the volume is served.
    surveyed_groups: usize,
    survey_next: u32,
    /// What donors answered.
    surveyed: Vec<(u32, Vec<StatusRun>)>,
    /// Held by donors that could not be asked what was written lately.
    unsurveyed: Vec<(u32, u32, Placement)>,
    /// What the donors of the groups that are being asked list.
    heard: BTreeMap<u32, Hearing>,
    /// Every write of a former writer with a number up to this one is complete.
    complete: u64,
    /// Groups that are asked only what a donor that is there again may have lost.
    again: BTreeSet<u32>,
    /// Slots, by group, that may have lost something behind the volume's end.
    beyond: BTreeMap<u32, Slots>,
}

impl Resync {
    /// `surveyed_groups`: so many are asked about before the volume is served.
    pub(super) fn new(surveyed_groups: usize) -> Resync {
        Resync { surveyed_groups, ..Resync::default() }
    }

    /// Asks and mends what is due and has room.
    pub(super) fn start(&mut self, base: &mut Base) {
        self.start_surveys(base);
        self.survey_again(base);
        self.start_resyncs(base);
        retry_waiting(base);
    }

    /// What a donor answered to a survey.
    pub(super) fn answered(&mut self, group: u32, runs: Vec<StatusRun>) {
        if !self.again.contains(&group) {
            self.surveyed.push((group, runs));
        }
    }

    /// Those that were not asked yet, and those that could not be, if they are holders still.
    fn keep_unsure(&mut self, base: &mut Base) {
        base.doubts.unsure.append(&mut self.unsurveyed);
        base.doubts.unsure.retain(|(group, _, placement)| base.shape.holds(*group, *placement));
    }

    /// A job without a request has ended.
    pub(super) fn ended(&mut self, base: &mut Base, job: &Job, done: bool) {
        match job.work {
            Work::Survey => {
                self.surveys_open -= 1;
                base.doubts.resurveyed.remove(&job.group);
            }
            Work::Undo(undo) => {
                self.open -= 1;
                let this = |torn: &Torn| torn.is_of(job) && torn.undo == Some(undo);
                self.under_way.retain(|torn| !this(torn));
                if done && undo.number == 0 {
                    stale::adopted(base, job, undo.slots);
                    base.jobs.look_at_waiting();
                } else if done {
                    base.doubts.torn.retain(|torn| !this(torn));
                    // Whoever is being given one of them may have been given what was undone.
                    slots_of(undo.slots).for_each(|slot| fill::unfill(base, job.group, slot, job.lo));
                    base.jobs.look_at_waiting();
                } else {
                    self.pause_until = base.now + PAUSE_NS;
                }
            }
            Work::Resync | Work::Mend { .. } => {
                self.open -= 1;
                // One that is undone instead is another's.
                let here = |torn: &Torn| torn.is_of(job) && torn.undo.is_none();
                self.under_way.retain(|torn| !here(torn));
                if done {
                    let mended = if let Work::Mend { slot } = job.work { bit(slot) } else { Slots::MAX };
                    base.doubts.torn.retain_mut(|torn| {
                        let here = here(torn);
                        torn.missed &= if here { !mended } else { Slots::MAX };
                        !here || torn.missed != 0
                    });
                    base.jobs.look_at_waiting();
                } else {
                    doubts::not_mended(base, job);
                    self.pause_until = base.now + PAUSE_NS;
                }
            }
            Work::Fit => {
                self.open -= 1;
                self.under_way.retain(|torn| !torn.is_of(job));
                match done {
                    true => fit::found_to_fit(base, job),
                    false if job.failed.is_none() => self.pause_until = base.now + PAUSE_NS,
                    false => {}
                }
            }
            _ => {}
        }
    }

    /// On the way to serving: links, then the dirty maps, then the rows that they name.
    pub(super) fn look_at_stage(&mut self, base: &mut Base) {
        let late = doubts::is_late(base);
        match base.doubts.stage {
            Stage::Linking if base.links.all_settled() => {
                base.doubts.stage = Stage::Surveying;
            }
            Stage::Surveying if self.survey_is_done() => {
                self.take_survey(base);
                let unsurveyed = std::mem::take(&mut self.unsurveyed);
                // Whoever was excluded while the others were asked is not waited for.
                let still =
                    |(group, _, placement): &(u32, u32, Placement)| base.shape.holds(*group, *placement);
                let (needed, others) = (unsurveyed.into_iter().filter(still))
                    .partition(|(group, slot, held)| doubts::is_needed(base, *group, *slot, held.donor));
                (base.doubts.unsure, self.unsurveyed) = (needed, others);
                let unheard: BTreeSet<DonorId> =
                    self.unsurveyed.iter().map(|(_, _, placement)| placement.donor).collect();
                for donor in &unheard {
                    base.exclude(*donor, "it could not be asked what was written lately".to_owned());
                }
                base.doubts.stage = if unheard.is_empty() { Stage::Resyncing } else { Stage::Excluding };
                self.pause_until = base.now;
            }
            Stage::Resyncing if self.open == 0 && (late || !self.waits_for_doubts(base)) => {
                base.doubts.stage = Stage::Serving;
                base.doubts.holds_back = true;
                // From now on tools write there.
                base.doubts.torn.iter_mut().for_each(|torn| torn.instead = None);
                if base.shape.map.write_back {
                    // What a former writer wrote may be in memory alone, and this one does not know it.
                    flush::to_disks(base, None);
                }
            }
            _ => {}
        }
        if base.doubts.stage == Stage::Serving && base.shape.map.write_back {
            stale::give_up_who_is_away(base);
        }
    }

    /// Whether something is in doubt that may yet be settled.
    fn waits_for_doubts(&self, base: &Base) -> bool {
        let held = |torn: &&Torn| {
            torn.missed == 0 || slots_of(torn.missed).any(|slot| base.shape.is_held(torn.group, slot))
        };
        let torn = base.doubts.torn.iter().filter(held).map(|torn| torn.group);
        let unsure = base.doubts.unsure.iter().map(|(group, ..)| *group);
        let asked = base.doubts.resurveyed.iter().copied();
        torn.chain(unsure).chain(asked).any(|group| !doubts::is_hopeless(base, group))
    }

    /// The coordinator answered: who is still a holder and was not asked may hold half-written rows.
    pub(super) fn excluded(&mut self, base: &mut Base) {
        if base.doubts.stage != Stage::Excluding {
            return;
        }
        base.doubts.stage = Stage::Resyncing;
        base.upkeep_due = true;
        self.keep_unsure(base);
    }

    /// Asks those that could not be asked before, once they are there.
    fn survey_again(&mut self, base: &mut Base) {
        if !matches!(base.doubts.stage, Stage::Resyncing | Stage::Serving) || self.surveys_open > 0 {
            return;
        }
        self.take_survey(base);
        self.keep_unsure(base);
        let up = |placement: &Placement| base.links.is_up(placement.donor);
        let reached = base.doubts.unsure.iter().filter(|(_, _, placement)| up(placement));
        let mut groups: BTreeSet<u32> = reached.map(|(group, ..)| *group).take(SURVEYS_MAX).collect();
        base.doubts.unsure.retain(|(group, ..)| !groups.contains(group));
        let room = SURVEYS_MAX.saturating_sub(groups.len());
        let returned: Vec<u32> = base.doubts.returned.iter().copied().take(room).collect();
        base.doubts.returned.retain(|group| !returned.contains(group));
        self.again = returned.iter().copied().filter(|group| !groups.contains(group)).collect();
        groups.extend(returned);
        for group in groups {
            self.surveys_open += 1;
            base.doubts.resurveyed.insert(group);
            base.add_job(None, Work::Survey, group, 0, base.shape.used(group));
        }
    }

    fn survey_is_done(&self) -> bool {
        self.surveys_open == 0 && self.survey_next as usize >= self.surveyed_groups
    }

    fn start_surveys(&mut self, base: &mut Base) {
        if base.doubts.stage != Stage::Surveying {
            return;
        }
        while self.surveys_open < SURVEYS_MAX && (self.survey_next as usize) < self.surveyed_groups {
            let group = self.survey_next;
            self.survey_next += 1;
            self.surveys_open += 1;
            base.add_job(None, Work::Survey, group, 0, base.shape.used(group));
        }
        base.upkeep_due |= self.survey_is_done();
    }

    pub(super) fn begin_survey(&mut self, base: &mut Base, key: Key) {
        let Job { group, hi, .. } = base.jobs[key];
        for slot in base.shape.slots() {
            let Some(held) = base.shape.slot(group, slot).held else { continue };
            let is_asked = base.add_part(key, slot, held, PartOp::Survey, Run::about(0, hi));
            if !is_asked && !self.again.contains(&group) {
                self.unsurveyed.push((group, slot, held));
            }
        }
        base.set_phase(key, Phase::Reading);
    }

    /// A holder did not answer a survey. One that knows no dirty map may have been written to everywhere.
    pub(super) fn survey_failed(&mut self, group: u32, missed: Missed, failure: Failure) {
        if self.again.contains(&group) {
            // When it is there again, it is asked again.
            return;
        }
        if failure == Failure::Answer(PartError::Unsupported) {
            let all = u32::try_from(EXTENT_BYTES).expect("an extent is 64 MiB");
            self.surveyed.push((group, vec![StatusRun { len: all, hole: false }]));
        } else {
            self.unsurveyed.push((group, missed.slot, missed.placement));
        }
    }

    /// What the holder of a slot lists, before it answers the survey.
    pub(super) fn listed(&mut self, base: &mut Base, key: Key, complete: u64, writes: &[ListedWrite]) {
        let part = base.jobs.parts.get(key).filter(|part| part.progress == Progress::Sent);
        let Some(part) = part.copied().filter(|part| part.op == PartOp::Survey) else { return };
        let survey = |job: &&Job| job.work == Work::Survey;
        let Some(Job { group, .. }) = base.jobs.get(part.job).filter(survey) else { return };
        let group = *group;
        let begin = u64::from(part.placement.extent) * EXTENT_BYTES;
        let end = u64::from(base.shape.used(group));
        let local = |at: u64| at.saturating_sub(begin).min(end) / BLOCK_BYTES * BLOCK_BYTES;
        let placed = writes.iter().map(|write| ListedWrite {
            from: local(write.from),
            to: local(write.to.saturating_add(BLOCK_BYTES - 1)),
            ..*write
        });
        if writes.iter().any(|write| write.stale && write.to > begin + end) {
            *self.beyond.entry(group).or_default() |= bit(part.slot);
        }
        self.complete = self.complete.max(complete);
        let greatest = writes.iter().map(|write| write.number).max().unwrap_or(0);
        base.jobs.numbers.heard(greatest.max(complete));
        self.heard.entry(group).or_default().hear(part.slot, placed);
    }

    fn take_survey(&mut self, base: &mut Base) {
        let dirty = self.take_marks(base);
        for (group, mut hearing) in std::mem::take(&mut self.heard) {
            if self.again.contains(&group) {
                hearing.forget_writes();
            }
            let numbers = &base.jobs.numbers;
            let held = base.shape.slots().filter(|slot| base.shape.is_held(group, *slot)).map(bit);
            let all_asked = held.sum::<Slots>() & !hearing.asked == 0;
            let mut marks = dirty.get(&group).cloned().unwrap_or_default();
            let unknown = base.doubts.torn.iter().filter(|torn| {
                torn.group == group && torn.missed == 0 && torn.undo.is_none() && torn.stale == 0
            });
            marks.extend(unknown.map(|torn| (torn.lo, torn.hi)));
            let is_former = |number| numbers.is_former(number);
            let doubts = hearing.doubts(base.shape.geometry.data, self.complete, is_former, &marks);
            // What is known of that now is all of it.
            base.doubts.torn.retain(|torn| torn.group != group || torn.stale == 0 || torn.undo.is_some());
            for doubt in doubts {
                let torn = doubts::torn_of(base, group, doubt, all_asked);
                base.doubts.torn.push(torn);
            }
        }
        for (group, slots) in std::mem::take(&mut self.beyond) {
            stale::adopt_behind_the_end(base, group, slots);
        }
        self.tear_what_is_marked(base, dirty);
    }

    /// What was written lately by nobody knows which write, by group.
    fn take_marks(&mut self, base: &Base) -> BTreeMap<u32, Vec<(u32, u32)>> {
        let mut dirty: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (group, runs) in std::mem::take(&mut self.surveyed) {
            let mut at = 0;
            for StatusRun { len, hole } in runs {
                if !hole {
                    dirty.entry(group).or_default().push((at, at + len));
                }
                at += len;
            }
            // What was not answered counts as written.
            if at < base.shape.used(group) {
                dirty.entry(group).or_default().push((at, base.shape.used(group)));
            }
        }
        dirty
    }

    fn tear_what_is_marked(&self, base: &mut Base, dirty: BTreeMap<u32, Vec<(u32, u32)>>) {
        let step = base.shape.lane_max();
        for (group, mut ranges) in dirty {
            ranges.sort_unstable();
            let (used, mut done) = (base.shape.used(group), 0);
            for (from, to) in ranges {
                let (mut at, end) = (from.max(done), to.min(used));
                while at < end {
                    let hi = (at / step * step + step).min(end);
                    base.doubts.torn.push(Torn::rows(group, at, hi));
                    at = hi;
                }
                done = done.max(end);
            }
        }
    }

    fn start_resyncs(&mut self, base: &mut Base) {
        let stage = matches!(base.doubts.stage, Stage::Resyncing | Stage::Serving);
        if !stage || base.doubts.torn.is_empty() || base.now < self.pause_until {
            return;
        }
        split(base);
        for at in 0..base.doubts.torn.len() {
            if self.open >= RESYNCS_MAX {
                return;
            }
            let mut torn = base.doubts.torn[at];
            let counts = |slot: u32| torn.missed & bit(slot) == 0 && base.source(torn.group, slot).is_some();
            if torn.older && !base.shape.slots().any(counts) {
                // That one has gone as well.
                torn.missed = 0;
                base.doubts.torn[at] = torn;
            }
            if doubts::is_unsure(base, torn.group) || base.doubts.resurveyed.contains(&torn.group) {
                continue;
            }
            torn = stale::to_be_adopted(base, at);
            // What only slots missed that nobody holds, as far as is known, the next map settles.
            if torn.missed != 0 && slots_of(torn.missed).all(|slot| !base.shape.is_held(torn.group, slot)) {
                continue;
            }
            let mend = || doubts::mendable(base, torn).map(|slot| Work::Mend { slot });
            // Who does not tell what it has is no source of parity.
            let resync = || (torn.stale == 0 && doubts::can_resync(base, torn)).then_some(Work::Resync);
            let is_serving = base.doubts.stage == Stage::Serving;
            let work = match torn.undo {
                Some(undo) => Some(Work::Undo(undo)),
                None if doubts::is_to_be_undone(base, torn.group, torn.lo, torn.hi) => continue,
                // Of a former writer's: whoever comes next can then still tell by what donors list.
                None if !is_serving && base.shape.geometry.data > 1 => mend().or_else(resync),
                None => resync().or_else(mend),
            };
            let work = work.or_else(|| fit::can_tell(base, torn).then_some(Work::Fit));
            if let Some(work) = work {
                if self.under_way.insert(torn) {
                    self.open += 1;
                    base.add_job(None, work, torn.group, torn.lo, torn.hi);
                }
            } else if base.shape.geometry.data > 1 && torn.missed == 0 && !fit::may_yet_tell(base, torn) {
                let lost =
                    (0..base.shape.geometry.data).filter(|slot| !base.shape.is_held(torn.group, *slot));
                let lost: Vec<u32> = lost.filter(|slot| !doubts::is_known_bad(base, torn, *slot)).collect();
                let Torn { group, lo: from, hi: to, .. } = torn;
                for slot in lost {
                    base.shape.report_bad(BadRange { group, slot, from, to });
                    base.effects.push(Effect::Forget {
                        fragment: Fragment { group, slot, local: from },
                        len: to - from,
                    });
                }
            }
        }
    }
}

/// Those whose rows fit together now, or never will, ask for their locks again.
fn retry_waiting(base: &mut Base) {
    for key in std::mem::take(&mut base.jobs.waiting) {
        let Some(job) = base.jobs.get(key) else { continue };
        if job.work == Work::Flush {
            match base.failed_elsewhere(job).is_none() && flush::waits(base) {
                true => base.jobs.waiting.push(key),
                false => base.jobs.ready.push_back(key),
            }
            continue;
        }
        let Job { group, lo, hi, .. } = *job;
        if base.failed_elsewhere(job).is_some() {
            base.jobs.ready.push_back(key);
        } else if doubts::may_settle(base, key) {
            base.jobs.waiting.push(key);
        } else {
            let alone = job.work.is_alone();
            if base.jobs.locks.ask(group, key, lo, hi, alone) {
                base.jobs.ready.push_back(key);
            }
        }
    }
}

pub(super) fn write_lanes(base: &mut Base, key: Key) {
    if !doubts::is_to_be_mended(base, key) {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    let geometry = base.shape.geometry;
    base.drop_parts(key);
    let job = &base.jobs[key];
    let (group, lo, hi, have, len) = (job.group, job.lo, job.hi, job.have, job.len());
    for slot in slots_of(have) {
        let (fragment, at) = (base.fragment(key, slot), base.lane(key, slot));
        let scatter = Scatter::whole(at.offset, len);
        base.effects.push(Effect::Learn { fragment, copies: 1, mem: at.mem, scatter });
    }
    if geometry.data == 1 {
        let source = slots_of(have).next().expect("it has read one");
        let at = base.lane(key, source);
        for slot in (0..=geometry.parity).filter(|slot| *slot != source) {
            lanes::write_from(base, key, slot, lo, at, len);
        }
        return base.set_phase(key, Phase::Writing);
    }
    let absent = (0..geometry.data).filter(|slot| have & bit(*slot) == 0);
    if !absent.clone().all(|slot| doubts::is_recorded_as_lost(base, group, slot, lo, hi)) {
        // Or its holder was taken out while the others were read: what it had may be in parity alone.
        return wrong(base, key);
    }
    for slot in absent.clone() {
        base.effects.push(Effect::Zero { at: base.lane(key, slot), len });
    }
    lanes::encode(base, key);
    // Also to who holds what is lost: the rows fit together again.
    for slot in absent.chain(base.shape.parity_slots()) {
        lanes::write_lane(base, key, slot, lo, hi);
    }
    base.set_phase(key, Phase::Writing);
}

/// What was decided when the job was made is decided again, now that nobody else works there.
pub(super) fn begin(base: &mut Base, key: Key) {
    let job = &base.jobs[key];
    let undo = if let Work::Undo(undo) = job.work { Some(undo) } else { None };
    match base.doubts.torn.iter().find(|torn| torn.is_of(job) && torn.undo == undo).copied() {
        None => base.end_job(key, Ok(())),
        Some(torn) if torn.undo.is_some() => begin_undo(base, key),
        Some(torn) if doubts::can_resync(base, torn) && job.work == Work::Resync => {
            lanes::read(base, key);
        }
        Some(torn) if doubts::mendable(base, torn).is_some_and(|slot| job.work == Work::Mend { slot }) => {
            let job = &mut base.jobs[key];
            (job.avoid, job.wrong) = (torn.missed, torn.missed);
            lanes::read(base, key);
        }
        Some(torn) if fit::can_tell(base, torn) && job.work == Work::Fit => lanes::read(base, key),
        Some(_) => base.end_job(key, Err(VolumeError::DonorLost)),
    }
}

/// Each that has some of the write puts back what that covered. Of a slot that nobody holds any more there is
/// nothing to put back. Nobody is asked before all can be, for who was asked must be heard before anything
/// else is written there.
fn begin_undo(base: &mut Base, key: Key) {
    let Job { group, lo, hi, work: Work::Undo(undo), .. } = base.jobs[key] else { return };
    let held = |slot: u32| Some(slot).zip(base.shape.slot(group, slot).held);
    let holders: Vec<(u32, Placement)> = slots_of(undo.slots).filter_map(held).collect();
    if holders.iter().any(|(_, held)| base.links.get(held.donor).is_none_or(Link::is_down)) {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    for (slot, held) in holders {
        base.add_part(key, slot, held, PartOp::Undo, Run::about(lo, hi - lo));
    }
    base.set_phase(key, Phase::Reading);
}

/// Who is away is asked again. Who does not have what was there before will not have it later: what the rows
/// are is not known then.
pub(super) fn undo_failed(base: &mut Base, key: Key, failure: Failure) {
    let job = &mut base.jobs[key];
    job.failed = Some(failure.error());
    if let Failure::Answer(_) = failure {
        let (undo, torn) = (job.work, &mut base.doubts.torn);
        let here = |torn: &&mut Torn| torn.is_of(job) && torn.undo.map(Work::Undo) == Some(undo);
        torn.iter_mut().filter(here).for_each(|torn| (torn.undo, torn.stale) = (None, 0));
    }
}

/// Data of the row is not what was written. Where the others do not give it back it is lost: block by block,
/// so that no more is than what is wrong, and once that is recorded, the row is made anew with zeros in its
/// place. Where they do, healing puts it right.
pub(super) fn wrong(base: &mut Base, key: Key) {
    let Job { group, lo, hi, wrong, .. } = base.jobs[key];
    let left = base.shape.slots().filter(|slot| {
        let comes = base.fills.of.get(&(group, *slot)).is_some_and(|fill| fill.has_some(lo, hi));
        (base.shape.is_held(group, *slot) || comes) && wrong & bit(*slot) == 0
    });
    let missed = doubts::missed_there(base, group, lo, hi);
    let fit = left.filter(|slot| missed & bit(*slot) == 0).count();
    let data = base.shape.geometry.data;
    if fit >= data as usize && !doubts::is_torn_for(base, key) {
        return base.end_job(key, Err(VolumeError::DonorLost));
    }
    if wrong != 0 && hi - lo > BLOCK {
        take_blocks_alone(base, key);
    } else if !takes_an_older_copy(base, key) {
        let column = |slot: u32| if data == 1 { 0 } else { slot };
        for slot in slots_of(wrong).map(column).filter(|slot| *slot < data) {
            base.shape.report_bad(BadRange { group, slot, from: lo, to: hi });
        }
    }
    base.end_job(key, Err(VolumeError::Corrupt));
}

/// The rows of a job are looked at block by block from now on.
pub(super) fn take_blocks_alone(base: &mut Base, key: Key) {
    let job = &base.jobs[key];
    let (lo, hi) = (job.lo, job.hi);
    for torn in base.doubts.torn.extract_if(.., |torn| torn.is_of(job)).collect::<Vec<_>>() {
        let block = |at: u32| Torn { lo: at, hi: at + BLOCK, ..torn };
        base.doubts.torn.extend((lo..hi).step_by(BLOCK as usize).map(block));
    }
}

/// Copies that have the last write cannot give it, and one is there that missed it. Nobody was told that
/// this write is complete, so what was before it counts again.
fn takes_an_older_copy(base: &mut Base, key: Key) -> bool {
    let Job { group, wrong, .. } = base.jobs[key];
    if base.shape.geometry.data > 1 {
        return false;
    }
    let all: Slots = base.shape.slots().map(bit).sum();
    let there: Slots = base.shape.slots().filter(|slot| base.source(group, *slot).is_some()).map(bit).sum();
    let here = |torn: &&mut Torn| torn.is_of(&base.jobs[key]) && !torn.older;
    let mut takes = false;
    for torn in base.doubts.torn.iter_mut().filter(here) {
        let older = torn.missed & there & !wrong;
        if older != 0 {
            (torn.missed, torn.older, takes) = (all & !older, true, true);
        }
    }
    takes
}

/// Whole extents come as one range; a job takes as much as fits into scratch memory.
fn split(base: &mut Base) {
    let most = |torn: &Torn| match fit::can_tell(base, *torn) {
        true => fit::lane_max(base),
        false => base.shape.lane_max(),
    };
    let steps: Vec<u32> = base.doubts.torn.iter().map(most).collect();
    if base.doubts.torn.iter().zip(&steps).all(|(torn, step)| torn.hi - torn.lo <= *step) {
        return;
    }
    for (torn, step) in std::mem::take(&mut base.doubts.torn).into_iter().zip(steps) {
        let mut at = torn.lo;
        while at < torn.hi {
            let hi = (at / step * step + step).min(torn.hi);
            base.doubts.torn.push(Torn { lo: at, hi, ..torn });
            at = hi;
        }
    }
    base.doubts.torn.sort_unstable();
    base.doubts.torn.dedup();
}
