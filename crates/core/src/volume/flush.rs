//! Flushes: a barrier that waits for nothing but links that are being opened; of a volume with write-back,
//! for the disks of all who hold a part of it.
//!
//! Owns what a flush answers for: writes that were acknowledged since the last one. Never: disks; donors have
//! those. Invariant: of a volume with write-back, once a flush is answered the disk of each holder has all
//! that was acknowledged before it began, so that any of them may be taken as it is later. So it waits for
//! holders that may have lost something, until they were given it again or are none any more; one flush at a
//! time. Tests: `tests/volume_moves.rs`, `tests/volume_requests.rs`, `tests/volume_write_back.rs`, the
//! simulator.

use super::base::Base;
use super::job::{Failure, Missed, Part, Phase, Run, Work};
use super::link::Link;
use super::request::Asker;
use super::types::{Op, PartError, PartOp, Request, Tag, VolumeError};
use super::{Key, PAUSE_NS, doubts, request, stale, watch};
use crate::map::{DonorId, Placement, VolumeMap};
use std::collections::BTreeSet;

/// Of a volume with write-back; without a request for what is to be kept otherwise.
pub(super) fn to_disks(base: &mut Base, request: Option<Key>) {
    base.add_job(request, Work::Flush, 0, 0, 0);
}

/// Whether a flush has to wait before anybody is asked.
pub(super) fn waits(base: &Base) -> bool {
    let doubts = &base.doubts;
    // Groups of a holder that is held back take no writes, so there is nothing to cover.
    let is_held_back = |group: u32| doubts.holds_back && doubts::is_unsure(base, group);
    base.flushing.is_some()
        || base.now < base.flush_pause_until
        || !doubts.resurveyed.is_empty()
        || !(doubts.holds_back || doubts.unsure.is_empty())
        || doubts.torn.iter().any(|torn| torn.stale != 0 && !is_held_back(torn.group))
}

/// Asks every holder that something was sent since its last one.
pub(super) fn begin_to_disks(base: &mut Base, key: Key) {
    if base.lease_lost {
        return base.end_job(key, Err(VolumeError::LeaseLost));
    }
    if waits(base) {
        return base.jobs.waiting.push(key);
    }
    base.flushing = Some(key);
    base.unflushed.cover();
    let groups = base.shape.map.groups.iter();
    let held = groups.flat_map(|group| &group.slots).filter_map(|slot| slot.held).map(|held| held.donor);
    let holders: BTreeSet<DonorId> = held.collect();
    for donor in holders {
        let Some(link) = base.links.get_mut(donor).filter(|link| link.undurable) else { continue };
        link.undurable = false;
        let nowhere = Placement { donor, extent: 0 };
        if !base.add_part(key, 0, nowhere, PartOp::Flush, Run::about(0, 0)) {
            missed(base, key, donor);
        }
    }
    base.set_phase(key, Phase::Reading);
}

fn missed(base: &mut Base, key: Key, donor: DonorId) {
    let placement = Placement { donor, extent: 0 };
    base.jobs[key].missed.push(Missed { slot: 0, placement });
    if let Some(link) = base.links.get_mut(donor) {
        link.undurable = true;
    }
}

/// A holder does not say that its disk has all. One that may have lost something is asked what; any other
/// that the rest can do without is given up.
pub(super) fn failed(base: &mut Base, key: Key, donor: DonorId, failure: Failure) {
    missed(base, key, donor);
    match failure {
        Failure::Answer(PartError::Unsupported) => stale::returned(base, donor),
        Failure::Moved | Failure::Late => {}
        Failure::Down | Failure::Answer(_) if watch::is_spare(base, donor) => {
            base.exclude(donor, "its disk did not take what it had in memory".to_owned());
        }
        Failure::Down | Failure::Answer(_) => {}
    }
}

/// Every holder was heard. Those that did not do it are asked again, unless they are none any more.
pub(super) fn done_on_disks(base: &mut Base, key: Key) {
    let missed = std::mem::take(&mut base.jobs[key].missed);
    base.flushing = None;
    base.unflushed.flushed(missed.is_empty());
    if missed.is_empty() {
        return base.end_job(key, Ok(()));
    }
    for donor in missed.iter().map(|missed| missed.placement.donor) {
        if base.links.get(donor).is_some_and(Link::is_down) && watch::is_spare(base, donor) {
            base.exclude(donor, "it could not be flushed".to_owned());
        }
    }
    base.flush_pause_until = base.now + PAUSE_NS;
    base.drop_parts(key);
    base.jobs[key].phase = Phase::Locking;
    base.jobs.waiting.push(key);
}

/// It has ended, however.
pub(super) fn ended(base: &mut Base, key: Key) {
    // Another may wait for it.
    base.upkeep_due |= !base.jobs.waiting.is_empty();
    if base.flushing == Some(key) {
        base.flushing = None;
        base.unflushed.flushed(false);
        base.links.values_mut().for_each(|link| link.undurable = true);
    }
}

/// An acknowledged write lives in the donors' memory already; all that can have happened since is its
/// loss. A link that is being opened does not know yet, so it is waited for.
pub(super) fn submit(base: &mut Base, tag: Tag) {
    let key = request::admit(base, Asker::Tool(tag), Request { op: Op::Flush, offset: 0, len: 0 });
    if base.shape.map.write_back && !base.shape.read_only {
        return to_disks(base, Some(key));
    }
    let opens = |link: &Link| link.unflushed && !link.is_settled();
    let waits = base.shape.geometry.parity == 0 && base.links.values().any(opens);
    let lost = lost_unflushed(base);
    let pending = &mut base.requests[key];
    if lost {
        pending.failed = Some(VolumeError::DonorLost);
    } else if waits {
        base.add_job(Some(key), Work::Barrier, 0, 0, 0);
    }
    if !waits {
        base.links.values_mut().for_each(|link| link.unflushed = false);
    }
    request::complete_if_done(base, key);
}

/// Writes that were acknowledged since the last flush are on donors that cannot be reached, more of them
/// than redundancy covers.
fn lost_unflushed(base: &Base) -> bool {
    let down = |held: &Placement| base.links.is_down(held.donor);
    let dirty = |held: &Placement| base.links.get(held.donor).is_some_and(|link| link.unflushed);
    if !base.links.iter().any(|(_, link)| link.is_down() && link.unflushed) {
        return false;
    }
    base.shape.map.groups.iter().any(|group| {
        let held = group.slots.iter().filter_map(|slot| slot.held);
        let reached = held.clone().filter(|held| !down(held)).count();
        reached < base.shape.geometry.data as usize && held.clone().any(|held| down(&held) && dirty(&held))
    })
}

/// Whether the part waits for its link on behalf of a flush.
pub(super) fn is_barrier(base: &Base, part: Key) -> bool {
    let job = base.jobs.parts.get(part).and_then(|part| base.jobs.get(part.job));
    job.is_some_and(|job| job.work == Work::Barrier)
}

/// What a flush waited for is with other donors now, who answer for it.
pub(super) fn moved(base: &mut Base, key: Key) {
    if lost_unflushed(base) {
        base.jobs[key].failed = Some(VolumeError::DonorLost);
    } else {
        begin(base, key);
    }
}

pub(super) fn begin(base: &mut Base, key: Key) {
    for (donor, link) in base.links.iter_mut() {
        if link.unflushed && !link.is_settled() {
            // Asks nothing of the donor but to be reached.
            let nowhere = Placement { donor, extent: 0 };
            let part = Part::new(key, 0, nowhere, PartOp::Age, Run::about(0, 0), base.now);
            link.waiting.push_back(base.jobs.add_part(key, part, false));
        }
        link.unflushed = false;
    }
    base.set_phase(key, Phase::Reading);
}

/// Who holds a slot from now on answers for what was written to who held it before; when nobody did, for
/// what was written to those from whom it was rebuilt.
pub(super) fn carry_unflushed(base: &mut Base, map: &VolumeMap) {
    for (was, is) in base.shape.map.groups.iter().zip(&map.groups) {
        let unflushed = |held: Placement| {
            let link = base.links.get(held.donor);
            link.is_some_and(|link| link.unflushed || link.waiting.iter().any(|part| is_barrier(base, *part)))
        };
        let any = was.slots.iter().filter_map(|slot| slot.held).any(unflushed);
        let slots = was.slots.iter().zip(&is.slots).filter(|(was, is)| was.held != is.held);
        let heirs = slots.filter(|(was, _)| was.held.map_or(any, unflushed)).filter_map(|(_, is)| is.held);
        for heir in heirs.collect::<Vec<_>>() {
            if let Some(link) = base.links.get_mut(heir.donor) {
                link.unflushed = true;
            }
        }
    }
}
