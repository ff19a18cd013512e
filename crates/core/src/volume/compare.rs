//! Comparing: all fragments of a row are read and compared, with what is known of them and with each other.
//!
//! Owns when a pass begins and how far it is. Never: what is done about a wrong block (`heal`), or what
//! donors can tell by themselves (`scrub`). Tests: `tests/volume_degraded.rs`, the simulator.

use super::base::Base;
use super::heal::Healing;
use super::job::{Job, Phase, Work, slots_of};
use super::types::{At, Effect};
use super::{Key, doubts, fit, lanes};
use crate::layout::Scatter;
use crate::limits::{COMPARE_EVERY_NS, COMPARE_FOREIGN_EVERY_NS};
use crate::map::BadRange;
use crate::units::Time;

const COMPARES_MAX: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Comparing {
    open: usize,
    /// Group and byte of its extents that are next in this pass.
    at: Option<(u32, u32)>,
    /// When the next pass begins; 0: not yet known.
    next_pass: Time,
}

impl Comparing {
    /// Begins a pass over all fragments, unless one is under way.
    pub(super) fn begin_pass(&mut self, base: &mut Base) {
        if self.at.is_none() && base.shape.geometry.parity > 0 {
            self.at = Some((0, 0));
            base.upkeep_due = true;
        }
    }

    pub(super) fn start(&mut self, base: &mut Base) {
        if self.next_pass == 0 {
            self.next_pass = base.now + every(base);
        } else if self.next_pass <= base.now {
            self.next_pass = base.now + every(base);
            self.begin_pass(base);
        }
        while self.open < COMPARES_MAX {
            let Some((group, lo)) = self.at else { return };
            if group as usize >= base.shape.map.groups.len() {
                if self.open == 0 {
                    self.at = None;
                    base.tally.compares += 1;
                }
                return;
            }
            let used = base.shape.used(group);
            let hi = (lo + fit::lane_max(base)).min(used);
            self.at = Some(if hi < used { (group, hi) } else { (group + 1, 0) });
            self.open += 1;
            base.add_job(None, Work::Compare, group, lo, hi);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.at.is_none()
    }

    pub(super) fn ended(&mut self) {
        self.open -= 1;
    }
}

/// Servers that others wrote cannot check what they hold.
fn every(base: &Base) -> Time {
    let mut routes = base.shape.map.routes.values();
    match routes.any(|route| route.foreign_export.is_some()) {
        true => COMPARE_FOREIGN_EVERY_NS,
        false => COMPARE_EVERY_NS,
    }
}

/// Every lane agreed with what is known of it, or the read had failed. Do they agree with each other?
pub(super) fn compare(base: &mut Base, key: Key) {
    let geometry = base.shape.geometry;
    let job = &base.jobs[key];
    let (have, len, group) = (job.have, job.len(), job.group);
    let all = geometry.data + geometry.parity;
    let torn = doubts::is_torn(base, group, job.lo, job.hi)
        || doubts::missed_there(base, group, job.lo, job.hi) != 0;
    if have.count_ones() < all || torn {
        return base.set_phase(key, Phase::Checking);
    }
    let should = |number: u32| {
        let first = base.lane(key, all);
        At { offset: first.offset + number * len, ..first }
    };
    let outputs: Vec<At> = (0..geometry.parity).map(should).collect();
    lanes::encode_to(base, key, outputs.clone());
    for (number, a) in (0u32..).zip(outputs) {
        let b = base.lane(key, geometry.data + number);
        base.effects.push(Effect::Compare { job: key, a, b, len });
    }
    base.jobs[key].open += geometry.parity;
    base.set_phase(key, Phase::Checking);
}

pub(super) fn checked(base: &mut Base, healing: &mut Healing, key: Key) {
    let job = &base.jobs[key];
    let (failed, len) = (job.failed.is_some(), job.len());
    let whole = job.have.count_ones() == base.shape.geometry.data + base.shape.geometry.parity;
    if failed && whole && base.shape.map.seal().is_some() {
        // Its data was proved, so parity is wrong, whatever its donors say of it.
        let Job { group, lo, hi, .. } = *job;
        for slot in base.shape.parity_slots() {
            healing.take(base, BadRange { group, slot, from: lo, to: hi }, 1, true);
        }
        base.jobs[key].failed = None;
    } else if failed {
        base.tally.mismatches += 1;
    } else if whole {
        for slot in slots_of(job.have) {
            let (fragment, at) = (base.fragment(key, slot), base.lane(key, slot));
            let scatter = Scatter::whole(at.offset, len);
            base.effects.push(Effect::Learn { fragment, copies: 1, mem: at.mem, scatter });
        }
    }
    base.end_job(key, Ok(()));
}
