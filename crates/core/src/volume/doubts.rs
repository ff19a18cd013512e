//! Rows in doubt: what is known of them, and what that allows.
//!
//! Owns which rows may not fit together, and which holders were never asked about them. Never: asking, or
//! mending (`resync`). Invariants: nothing is written by a tool to a row in doubt; nothing is rebuilt from
//! one. Tests: below, `tests/volume_unclean.rs`, `tests/volume_resync.rs`, the simulator.

use super::base::Base;
use super::job::{Job, Phase, Slots, Undo, Work, bit, slots_of};
use super::judge::{Doubt, Way};
use super::{Key, fill, stale};
use crate::map::{BadRange, DonorId, Group, Placement, VolumeMap};
use crate::units::Time;
use std::collections::BTreeSet;

/// Rows whose fragments may not fit together, because a write of them ended half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Torn {
    pub(super) group: u32,
    pub(super) lo: u32,
    pub(super) hi: u32,
    /// The slots that missed it, if that is known: the others fit together, and when these have no holder any
    /// more all is well. None: any may differ.
    pub(super) missed: Slots,
    /// They fit together once this is undone.
    pub(super) undo: Option<Undo>,
    /// Those that did not miss it may become too few while it is made up. Then this is undone.
    pub(super) instead: Option<Undo>,
    /// Of copies: those that had what was written last cannot give it, so that one counts which missed it.
    pub(super) older: bool,
    /// They were looked at, and do not.
    pub(super) unfit: bool,
    /// These do not tell what they have. Where nobody makes that up (`missed` is none) they adopt it as it
    /// is.
    pub(super) stale: Slots,
}

impl Torn {
    /// Rows of which nobody knows who missed what.
    pub(super) fn rows(group: u32, lo: u32, hi: u32) -> Torn {
        Torn { group, lo, hi, missed: 0, undo: None, instead: None, older: false, unfit: false, stale: 0 }
    }

    /// Whether these are the very rows of a job.
    pub(super) fn is_of(&self, job: &Job) -> bool {
        (self.group, self.lo, self.hi) == (job.group, job.lo, job.hi)
    }

    /// Whether who missed something is being written what the others make up.
    fn is_being_mended_by(&self, job: &Job) -> bool {
        let mends = matches!(job.work, Work::Mend { .. } | Work::Resync);
        mends && job.phase == Phase::Writing && self.is_of(job)
    }

    fn reaches(&self, group: u32, lo: u32, hi: u32) -> bool {
        self.group == group && self.lo < hi && lo < self.hi
    }
}

/// How a volume comes into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Until each donor was reached or set aside.
    Linking,
    /// Asking what was written lately.
    Surveying,
    /// Until those that could not be asked are no holders any more, as far as redundancy allows.
    Excluding,
    /// Until what may be half written fits together.
    Resyncing,
    Serving,
}

/// Everything that is in doubt.
#[derive(Debug)]
pub(super) struct Doubts {
    pub(super) stage: Stage,
    pub(super) torn: Vec<Torn>,
    /// Held by donors that could not be asked, and that redundancy cannot do without: group, slot, place.
    /// They are asked as soon as they are reached.
    pub(super) unsure: Vec<(u32, u32, Placement)>,
    /// Groups that are asked again.
    pub(super) resurveyed: BTreeSet<u32>,
    /// Of these, those that are still to be asked, since a donor of them that was known is there again: what
    /// it had in memory alone it may have lost.
    pub(super) returned: BTreeSet<u32>,
    /// The volume is served from then on; what is in doubt still is an error until whoever knows answers.
    pub(super) serve_at: Option<Time>,
    /// It is served: who could not be asked until then is held back.
    pub(super) holds_back: bool,
}

impl Doubts {
    pub(super) fn new(stage: Stage) -> Doubts {
        let (torn, unsure, resurveyed) = (Vec::new(), Vec::new(), BTreeSet::new());
        let returned = BTreeSet::new();
        Doubts { stage, torn, unsure, resurveyed, returned, serve_at: None, holds_back: false }
    }
}

/// Whether the slots that are held make up the data without those that missed something.
pub(super) fn enough_without(group: &Group, missed: Slots, data: u32) -> bool {
    let slots = group.slots.iter().zip(0u32..);
    slots.filter(|(slot, at)| slot.held.is_some() && missed & bit(*at) == 0).count() >= data as usize
}

/// Whether any slot may differ from the others there.
pub(super) fn is_torn(base: &Base, group: u32, lo: u32, hi: u32) -> bool {
    // A write that reached nobody but a donor that is held back is undone when that is back.
    let unsure = is_unsure(base, group) && !base.doubts.holds_back;
    unsure || base.doubts.torn.iter().any(|torn| torn.reaches(group, lo, hi) && torn.missed == 0)
}

/// Whether a write there is still to be undone: nothing else may change those rows, or copy them, before.
pub(super) fn is_to_be_undone(base: &Base, group: u32, lo: u32, hi: u32) -> bool {
    let is_open = |torn: &Torn| torn.undo.is_some() || (torn.stale != 0 && torn.missed == 0);
    base.doubts.torn.iter().any(|torn| is_open(torn) && torn.reaches(group, lo, hi))
}

/// The slots whose holders missed a write there.
pub(super) fn missed_there(base: &Base, group: u32, lo: u32, hi: u32) -> Slots {
    let here = base.doubts.torn.iter().filter(|torn| torn.reaches(group, lo, hi));
    here.fold(0, |slots, torn| slots | torn.missed)
}

/// Whether rows there may not fit together, as far as is known now: what is written to them could be lost
/// with them.
pub(super) fn is_in_doubt(base: &Base, group: u32, lo: u32, hi: u32) -> bool {
    base.shape.geometry.data > 1
        && (is_torn(base, group, lo, hi) || is_unsure(base, group) || base.doubts.resurveyed.contains(&group))
}

/// Whether the doubt that a job meets may end while its request waits. Not where a donor is held back
/// that was waited for long enough, or where too few holders are left.
pub(super) fn may_settle(base: &Base, key: Key) -> bool {
    let job = &base.jobs[key];
    let Job { group, lo, hi, .. } = *job;
    job.request.is_some()
        && is_in_doubt(base, group, lo, hi)
        && !is_hopeless(base, group)
        && !(is_unsure(base, group) && (base.doubts.holds_back || is_late(base)))
}

/// More of the group's holders have ended than redundancy covers.
pub(super) fn is_hopeless(base: &Base, group: u32) -> bool {
    let there = |held: &Placement| !base.links.get(held.donor).is_some_and(|link| link.gone);
    let held = base.shape.holders(group);
    held.filter(there).count() < base.shape.geometry.data as usize
}

/// Whether the silent donor's memory alone tells what rows in doubt are. One that has ended does not come
/// back.
pub(super) fn is_needed(base: &Base, group: u32, slot: u32, donor: DonorId) -> bool {
    if base.links.get(donor).is_none_or(|link| link.gone) {
        return false;
    }
    let knows = base.shape.geometry.data > 1
        && slot < base.shape.geometry.data
        && base.doubts.torn.iter().any(|torn| torn.group == group && torn.missed == 0 && torn.undo.is_none());
    knows || (lacks_what_is_stale(base, group) && !stale::is_given_up(base, donor))
}

/// Those that tell what they have do not make up what others of the group may have lost.
pub(super) fn lacks_what_is_stale(base: &Base, group: u32) -> bool {
    let stale = base.doubts.torn.iter().filter(|torn| torn.group == group && torn.stale != 0);
    stale.into_iter().any(|torn| torn.missed == 0 || mendable(base, *torn).is_none())
}

/// Whether a holder of the group was never asked what was written lately: it must be, before anything
/// follows.
pub(super) fn is_unsure(base: &Base, group: u32) -> bool {
    base.doubts.unsure.iter().any(|(of, _, placement)| *of == group && base.shape.holds(*of, *placement))
}

/// Slots that have another holder now, or none, did not miss anything any more. One that had none and was
/// said to be filled missed it if it is held now; if it is still being filled, its filling begins there
/// again.
pub(super) fn forget_missed(base: &mut Base, map: &VolumeMap) {
    let mut all = std::mem::take(&mut base.doubts.torn);
    all.retain_mut(|torn| {
        let group = torn.group as usize;
        let missed = |slot: &u32| {
            let was = base.shape.map.groups[group].slots[*slot as usize].held;
            let is = map.groups[group].slots[*slot as usize].held;
            is.is_some_and(|is| {
                was.map_or_else(|| fill::may_hold(base, torn.group, *slot, is), |was| was == is)
            })
        };
        let (stay, go): (Vec<u32>, Vec<u32>) = slots_of(torn.missed).partition(missed);
        go.into_iter().for_each(|slot| fill::unfill(base, torn.group, slot, torn.lo));
        let known = torn.missed != 0;
        torn.missed = stay.into_iter().map(bit).sum();
        torn.stale &= if known { torn.missed } else { still_held(base, map, torn.group, torn.stale) };
        let mended = known && torn.missed == 0;
        if has_new_holders(base, map, group) {
            torn.instead = None;
        }
        let enough = enough_without(&map.groups[group], torn.missed, map.redundancy.data);
        // Those that were made up are there as soon as who missed it has written them.
        if !enough && !base.jobs.iter().any(|(_, job)| torn.is_being_mended_by(job)) {
            turn_back(base, torn);
        }
        !mended
    });
    base.doubts.torn = all;
}

/// What is to become of rows that were judged so.
pub(super) fn torn_of(base: &mut Base, group: u32, doubt: Doubt, all_asked: bool) -> Torn {
    let Doubt { lo, hi, way, stale } = doubt;
    let (missed, undo, instead) = match way {
        Way::Without(missed, instead) => (missed, None, instead),
        Way::Undo(undo) => (0, Some(undo), None),
        // One that was not asked may make it up.
        Way::None if all_asked => (0, None, None),
        Way::None => (stale, None, None),
    };
    let mut torn = Torn { missed, undo, instead, stale, ..Torn::rows(group, lo, hi) };
    // One of those that were asked may have gone meanwhile.
    if instead.is_some() && !is_enough(base, &torn) {
        turn_back(base, &mut torn);
    }
    torn
}

/// Those that did not miss it are too few to make it up. It is undone, if it can be; else nobody knows what
/// the rows are.
pub(super) fn turn_back(base: &mut Base, torn: &mut Torn) {
    torn.missed = 0;
    if torn.undo.is_none() {
        torn.undo = torn.instead.take();
    }
    if torn.undo.is_some() {
        // Whoever is being given one of the slots was given what is undone.
        base.shape.slots().for_each(|slot| fill::unfill(base, torn.group, slot, torn.lo));
    }
}

/// Whether the rows of a job are still to be mended by it: not where a write is undone instead.
pub(super) fn is_to_be_mended(base: &Base, key: Key) -> bool {
    base.doubts.torn.iter().any(|torn| torn.is_of(&base.jobs[key]) && torn.undo.is_none())
}

/// A job that was to mend these rows ended before they were.
pub(super) fn not_mended(base: &mut Base, job: &Job) {
    let mut all = std::mem::take(&mut base.doubts.torn);
    for torn in all.iter_mut().filter(|torn| torn.is_of(job) && torn.undo.is_none() && torn.missed != 0) {
        if job.wrote {
            torn.instead = None;
        }
        if !is_enough(base, torn) {
            turn_back(base, torn);
        }
    }
    base.doubts.torn = all;
}

/// Whether those that did not miss it make it up.
pub(super) fn is_enough(base: &Base, torn: &Torn) -> bool {
    enough_without(&base.shape.map.groups[torn.group as usize], torn.missed, base.shape.geometry.data)
}

/// What a slot's new holder was given may be of the write that others would undo.
fn has_new_holders(base: &Base, map: &VolumeMap, group: usize) -> bool {
    let before = base.shape.map.groups[group].slots.iter().map(|slot| slot.held);
    let after = map.groups[group].slots.iter().map(|slot| slot.held);
    before.zip(after).any(|(before, after)| after.is_some() && before != after)
}

/// Of these slots, those that have the holder that they had.
fn still_held(base: &Base, map: &VolumeMap, group: u32, slots: Slots) -> Slots {
    let held = |map: &VolumeMap, slot: u32| map.groups[group as usize].slots[slot as usize].held;
    slots_of(slots).filter(|slot| held(map, *slot) == held(&base.shape.map, *slot)).map(bit).sum()
}

/// Rebuilding from rows that may not fit together would make up data. Copies are whole each for itself.
pub(super) fn is_torn_for(base: &Base, key: Key) -> bool {
    let job = &base.jobs[key];
    base.shape.geometry.data > 1 && is_torn(base, job.group, job.lo, job.hi)
}

pub(super) fn is_late(base: &Base) -> bool {
    base.doubts.serve_at.is_some_and(|at| at <= base.now)
}

/// Every write with a number up to this one is on all who shall have it; 0 while something is in doubt.
pub(super) fn complete_up_to(base: &Base) -> u64 {
    let Doubts { torn, unsure, resurveyed, stage, .. } = &base.doubts;
    let sure = torn.is_empty() && unsure.is_empty() && resurveyed.is_empty();
    if sure && *stage == Stage::Serving { base.jobs.numbers.over() } else { 0 }
}

/// Data that can be read makes parity, and any copy makes the others. Data that is missing is lost there,
/// which the coordinator records first.
pub(super) fn can_resync(base: &Base, torn: Torn) -> bool {
    let usable = |slot: u32| base.source(torn.group, slot).is_some();
    match base.shape.geometry.data {
        1 => (0..=base.shape.geometry.parity).any(usable),
        data => (0..data).all(|slot| usable(slot) || is_known_bad(base, torn, slot)),
    }
}

/// A slot that missed a write of the row, and can be put right from those that did not.
pub(super) fn mendable(base: &Base, torn: Torn) -> Option<u32> {
    let usable = |slot: &u32| base.source(torn.group, *slot).is_some();
    let fits = |slot: &u32| torn.missed & bit(*slot) == 0 && usable(slot);
    let all = base.shape.slots();
    let enough = torn.missed != 0 && all.filter(fits).count() >= base.shape.geometry.data as usize;
    slots_of(torn.missed).find(usable).filter(|_| enough)
}

pub(super) fn is_known_bad(base: &Base, torn: Torn, slot: u32) -> bool {
    let Torn { group, lo, hi, .. } = torn;
    !base.shape.is_held(group, slot) && is_recorded_as_lost(base, group, slot, lo, hi)
}

pub(super) fn is_recorded_as_lost(base: &Base, group: u32, slot: u32, from: u32, to: u32) -> bool {
    let range = BadRange { group, slot, from, to };
    base.shape.map.bad.iter().any(|bad| bad.covers(&range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::base::sample;
    use crate::volume::watch::set_aside;

    fn torn(base: &mut Base, lo: u32, hi: u32, missed: Slots) {
        base.doubts.torn.push(Torn { missed, ..Torn::rows(0, lo, hi) });
    }

    #[test]
    fn rows_that_one_slot_missed_are_read_around_it_and_not_in_doubt() {
        let mut base = sample("parity:2+1");
        torn(&mut base, 4096, 8192, bit(2));
        assert_eq!(missed_there(&base, 0, 0, 4096), 0, "it ends where that begins");
        assert_eq!(missed_there(&base, 0, 0, 4097), bit(2));
        assert!(!is_torn(&base, 0, 0, 8192) && !is_in_doubt(&base, 0, 0, 8192));
        assert_eq!(complete_up_to(&base), 0, "donors go on remembering");
    }

    #[test]
    fn rows_that_anybody_may_have_missed_take_no_writes() {
        let mut base = sample("parity:2+1");
        torn(&mut base, 4096, 8192, 0);
        assert!(is_torn(&base, 0, 4096, 8192) && is_in_doubt(&base, 0, 0, 4097));
        assert!(!is_in_doubt(&base, 0, 8192, 12288));
        let mut copies = sample("mirror:2");
        torn(&mut copies, 4096, 8192, 0);
        assert!(!is_in_doubt(&copies, 0, 4096, 8192), "each copy is whole for itself");
    }

    #[test]
    fn a_holder_that_was_not_asked_puts_its_group_in_doubt_until_it_holds_nothing() {
        let mut base = sample("parity:2+1");
        let held = base.shape.slot(0, 1).held.expect("whole");
        base.doubts.unsure.push((0, 1, held));
        assert!(is_in_doubt(&base, 0, 0, 4096) && is_torn(&base, 0, 0, 4096));
        base.doubts.holds_back = true;
        assert!(is_in_doubt(&base, 0, 0, 4096), "it takes no writes yet");
        assert!(!is_torn(&base, 0, 0, 4096), "the others are read");
        base.shape.map.groups[0].slots[1].held = None;
        assert!(!is_in_doubt(&base, 0, 0, 4096));
    }

    #[test]
    fn data_makes_parity_and_what_missed_a_write_is_mended_from_those_that_did_not() {
        let mut base = sample("parity:2+1");
        let (all, parity) = (Torn::rows(0, 0, 4096), bit(2));
        assert!(can_resync(&base, all));
        assert_eq!(mendable(&base, Torn { missed: parity, ..all }), Some(2));
        assert_eq!(mendable(&base, all), None, "nobody knows who fits");
        set_aside(&mut base, DonorId(1), "a test".to_owned());
        assert!(!can_resync(&base, all), "its data may be missing");
        assert_eq!(mendable(&base, Torn { missed: parity, ..all }), None, "two are needed");
        base.shape.map.groups[0].slots[0].held = None;
        base.shape.map.bad.push(BadRange { group: 0, slot: 0, from: 0, to: 4096 });
        assert!(can_resync(&base, all), "its loss is recorded");
    }

    #[test]
    fn a_donor_that_has_ended_is_not_needed_any_more() {
        let mut base = sample("parity:2+1");
        torn(&mut base, 0, 4096, 0);
        assert!(is_needed(&base, 0, 0, DonorId(1)));
        assert!(!is_needed(&base, 0, 2, DonorId(3)), "parity is made from data");
        base.links[DonorId(1)].gone = true;
        assert!(!is_needed(&base, 0, 0, DonorId(1)) && !is_hopeless(&base, 0));
        base.links[DonorId(2)].gone = true;
        assert!(is_hopeless(&base, 0));
    }
}
