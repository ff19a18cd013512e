//! Volumes at rest: fragments are moved, rebuilt and put right by who writes a volume, so when nobody does,
//! one of its donors is told to attach it for that.
//!
//! Owns which volume wants that and who is told, and which volumes have blocks that a reader found wrong.
//! Never: where fragments go (`repair`), or the lease, which the donor asks for like anyone and which yields
//! to anyone (`leases`). Invariant: a tender lives, is no other's NBD server, and holds a part of the volume;
//! a volume that somebody writes has none. Donors that want to go or to hold less are the last to be asked:
//! their memory is short, and whoever takes the fragments has them half-way already.
//! Called at the end of each step. Tests: `tests/coordinator_tend.rs`.

use super::volumes::Volume;
use super::{Coordinator, Timer};
use crate::api::VolumeReport;
use crate::limits::TEND_SILENCE_NS;
use crate::map::{DonorId, Group, LeaseToken, VolumeId};
use crate::units::Time;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How far a volume is of which a reader found blocks that are wrong where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ailing {
    /// Nobody who may write was told.
    Found,
    /// The writer with this lease was, when it had compared all fragments so often.
    Told { token: LeaseToken, passes: u64 },
}

impl Coordinator {
    /// The donor is another than before: what it holds may want tending, or another tender.
    pub(super) fn doubt_volumes_of(&mut self, id: DonorId) {
        if let Some(donor) = self.donors.get(&id) {
            self.unsure.extend(donor.held.keys().copied());
        }
    }

    /// Appoints and dismisses tenders where something changed.
    pub(super) fn appoint(&mut self, now: Time) {
        while let Some(id) = self.unsure.pop_first() {
            let Some(volume) = self.volumes.get(&id) else { continue };
            let at = self.wants_tending_at(volume);
            let tender = at.filter(|at| *at <= now).and_then(|_| self.tender_for(volume));
            self.timers.extend(at.filter(|at| *at > now).map(|at| (at, Timer::Tend(id))));
            self.set_tender(id, tender);
        }
    }

    fn set_tender(&mut self, id: VolumeId, tender: Option<DonorId>) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let before = std::mem::replace(&mut volume.tender, tender);
        if before == tender {
            return;
        }
        // Nobody gives back what a donor that is gone had.
        let lives = |id: DonorId| self.donors.get(&id).is_some_and(|donor| donor.alive);
        if before.is_some_and(|before| !lives(before)) {
            self.send_away(id);
        }
        let revision = self.next_revision();
        for donor_id in before.into_iter().chain(tender) {
            if let Some(donor) = self.donors.get_mut(&donor_id) {
                donor.revision = revision;
                self.woken.insert(donor_id);
            }
        }
    }

    /// When somebody has to move or rebuild what nobody else will; in the past or the future.
    fn wants_tending_at(&self, volume: &Volume) -> Option<Time> {
        if self.writer(volume.map.volume).is_some_and(|writer| !writer.record.yields) {
            return None;
        }
        let ails = volume.ailing.map(|_| 0);
        let groups = volume.map.groups.iter().filter_map(|group| self.group_wants_tending_at(volume, group));
        groups.chain(ails).min()
    }

    /// What a lease reports of wrong blocks, and `before` did not: a reader only finds them. Who may write
    /// has put right what there was once it has compared all fragments since it was told.
    pub(super) fn note_wrong_blocks(&mut self, token: LeaseToken, before: &VolumeReport) {
        let Some(lease) = self.leases.get(&token) else { return };
        let Some(volume) = self.volumes.get_mut(&lease.record.volume) else { return };
        let blocks =
            |report: &VolumeReport| report.corrupt_blocks.iter().map(|(_, count)| *count).sum::<u64>();
        let finds = blocks(&lease.report) > blocks(before);
        let passes = lease.report.scrub_passes;
        let was = volume.ailing;
        volume.ailing = match was {
            None if !lease.record.read_only || volume.map.redundancy.parity == 0 => None,
            None => finds.then_some(Ailing::Found),
            // The pass that is under way may have been past it: the next one has to end as well.
            Some(Ailing::Told { token: told, .. }) if lease.record.read_only && finds => {
                let passes = self.leases.get(&told).map(|told| told.report.scrub_passes + 1);
                Some(passes.map_or(Ailing::Found, |passes| Ailing::Told { token: told, passes }))
            }
            Some(ailing) if lease.record.read_only => Some(ailing),
            Some(Ailing::Told { token: told, passes: then }) if told == token => {
                (passes <= then).then_some(Ailing::Told { token, passes: then })
            }
            Some(_) => Some(Ailing::Told { token, passes }),
        };
        if was.is_some() != volume.ailing.is_some() {
            self.unsure.insert(volume.map.volume);
        }
    }

    /// Whether who has this lease is to compare all fragments.
    pub(super) fn is_to_scrub(&self, token: LeaseToken) -> bool {
        let lease = self.leases.get(&token).filter(|lease| !lease.record.read_only);
        let volume = lease.and_then(|lease| self.volumes.get(&lease.record.volume));
        volume.is_some_and(|volume| volume.ailing.is_some())
    }

    fn group_wants_tending_at(&self, volume: &Volume, group: &Group) -> Option<Time> {
        let alive = |donor: DonorId| self.donors.get(&donor).is_some_and(|donor| donor.alive);
        let readable = group.slots.iter().filter_map(|slot| slot.held).filter(|held| alive(held.donor));
        if readable.count() < volume.map.redundancy.data as usize {
            return None;
        }
        let fills = group.slots.iter().filter_map(|slot| slot.filling);
        if fills.into_iter().any(|filling| alive(filling.donor)) {
            return Some(0);
        }
        let silent = group.slots.iter().filter_map(|slot| slot.held).filter(|held| !alive(held.donor));
        silent.map(|held| self.given_up_at(held.donor)).min()
    }

    /// When what a donor that is lost held is rebuilt also where nobody writes.
    pub(super) fn given_up_at(&self, id: DonorId) -> Time {
        match self.donors.get(&id) {
            Some(donor) if !donor.ended => donor.last_seen + TEND_SILENCE_NS,
            _ => 0,
        }
    }

    /// The donors that whoever writes the volume is to ask itself: nobody else finds out that one is gone
    /// that neither says so nor is asked for anything. None whose groups are not read without it: it is all
    /// that is left, and may come back.
    pub(super) fn silent_for(&self, token: LeaseToken) -> Vec<DonorId> {
        let lease = self.leases.get(&token).filter(|lease| !lease.record.read_only);
        let Some(volume) = lease.and_then(|lease| self.volumes.get(&lease.record.volume)) else {
            return Vec::new();
        };
        let lives = |id: DonorId| self.donors.get(&id).is_some_and(|donor| donor.alive);
        let mut silent: BTreeSet<DonorId> =
            volume.map.donors().filter(|id| !lives(*id) && self.given_up_at(*id) <= self.now).collect();
        if silent.is_empty() {
            return Vec::new();
        }
        for group in &volume.map.groups {
            let held = || group.slots.iter().filter_map(|slot| slot.held);
            let readable = held().filter(|held| lives(held.donor)).count();
            if readable < volume.map.redundancy.data as usize {
                let needed: BTreeSet<DonorId> = held().map(|held| held.donor).collect();
                silent.retain(|id| !needed.contains(id));
            }
        }
        silent.into_iter().collect()
    }

    /// Who tends the volume already, else the best of its donors.
    pub(super) fn tender_for(&self, volume: &Volume) -> Option<DonorId> {
        let able = |id: &DonorId| {
            self.donors
                .get(id)
                .is_some_and(|donor| donor.alive && donor.heard && donor.record.foreign_export.is_none())
        };
        let members: BTreeSet<DonorId> = volume.map.donors().filter(able).collect();
        if let Some(tender) = volume.tender.filter(|tender| members.contains(tender)) {
            return Some(tender);
        }
        let tends = |id: DonorId| self.volumes.values().filter(|volume| volume.tender == Some(id)).count();
        let gets = |id: DonorId| {
            let slots = volume.map.groups.iter().flat_map(|group| &group.slots);
            slots.filter(|slot| slot.filling.is_some_and(|filling| filling.donor == id)).count()
        };
        members.into_iter().min_by_key(|id| {
            let shrinks = self.donors.get(id).is_some_and(|donor| donor.record.leaving || donor.excess() > 0);
            (shrinks, tends(*id), Reverse(gets(*id)))
        })
    }
}
