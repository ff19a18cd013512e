//! Flushes: a barrier that waits for nothing but links that are being opened.
//!
//! Owns what a flush answers for: writes that were acknowledged since the last one. Never: durability; donors
//! are memory. Tests: `tests/volume_moves.rs`, `tests/volume_requests.rs`, the simulator.

use super::base::Base;
use super::job::{Part, Phase, Run, Work};
use super::link::Link;
use super::request::Asker;
use super::types::{Op, PartOp, Request, Tag, VolumeError};
use super::{Key, request};
use crate::map::{Placement, VolumeMap};

/// An acknowledged write lives in the donors' memory already; all that can have happened since is its
/// loss. A link that is being opened does not know yet, so it is waited for.
pub(super) fn submit(base: &mut Base, tag: Tag) {
    let key = request::admit(base, Asker::Tool(tag), Request { op: Op::Flush, offset: 0, len: 0 });
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
