//! Donors that go: at once, or when what they hold has been moved to others.
//!
//! Owns the answer to `leave`, what it would cost, and what a donor that wants to go or to shrink is told.
//! Never: where fragments go (`repair`) or who copies them: that is the volume's writer. Invariant: a donor
//! that leaves gets nothing new, and is dismissed in the step in which it holds nothing any more.
//! Tests: `tests/coordinator_drain.rs`.

use super::donors::Donor;
use super::repair::Rehomed;
use super::status::{bytes_of, fragments};
use super::volumes::Volume;
use super::wants::lend;
use super::{Coordinator, Key, Outcome, Timer, refuse};
use crate::api::{Answer, AtStake, Leaving, Refusal, RefusalCode};
use crate::layout::lost_ranges;
use crate::limits::{DONOR_LISTED_NS, EXTENT_BYTES, VOLUME_FILLINGS_MAX};
use crate::map::{DonorId, VolumeId};
use crate::units::{Time, show_bytes, show_count};

impl Coordinator {
    pub(super) fn leave(&mut self, now: Time, name: &str, force: bool) -> Result<Outcome, Refusal> {
        let id = self.donor_named(name)?;
        let gone = || Ok(Outcome::Answer(Answer::Leaving(self.without(id))));
        let Some(donor) = self.donors.get(&id) else { return gone() };
        let costs_nothing = || self.lost_with(id, |_| false).iter().all(|(_, bytes)| *bytes == 0);
        // What a lost donor holds cannot be copied off it, only rebuilt from the others.
        if force || donor.held.is_empty() || (!donor.alive && costs_nothing()) {
            let answer = gone();
            self.dismiss(now, id);
            return answer;
        }
        self.check_drain(id, name, donor.alive)?;
        self.drain(now, id);
        let at_stake = self.at_stake(id).unwrap_or_default();
        Ok(Outcome::Answer(Answer::Leaving(Leaving { at_stake, ..Leaving::default() })))
    }

    /// What becomes of what the donor holds when it is taken out now.
    fn without(&self, id: DonorId) -> Leaving {
        let Some(donor) = self.donors.get(&id) else { return Leaving::default() };
        let protected = |id: &VolumeId| self.volumes.get(id).is_some_and(|v| v.map.redundancy.parity > 0);
        let held = donor.held.iter().filter(|(id, _)| protected(id)).map(|(_, held)| held.len() as u64);
        Leaving {
            at_stake: Vec::new(),
            silent: !donor.alive,
            bytes_to_rebuild: held.sum::<u64>() * EXTENT_BYTES,
            bytes_given_up: u64::from(donor.given_up) * EXTENT_BYTES,
            bytes_lost: self.lost_with(id, |_| false).iter().map(|(_, bytes)| *bytes).sum(),
        }
    }

    /// The donor gets nothing new, and what it holds goes to others; it is dismissed at once when it holds
    /// nothing.
    pub(super) fn drain(&mut self, now: Time, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        if !std::mem::replace(&mut donor.record.leaving, true) {
            self.dirty.insert(Key::Donor(id));
            self.note_donor("donor-leaving", id);
            self.unsettle_donor(id);
            // More is at stake now for those that leave already.
            let leaving = self.donors.values().filter(|donor| donor.record.leaving);
            self.woken.extend(leaving.map(|donor| donor.record.donor));
        }
        self.tidy_donor(now, id);
    }

    /// Takes the donor out at once, and tells it when it asks.
    pub(super) fn dismiss(&mut self, now: Time, id: DonorId) {
        let secret = self.donors.get(&id).and_then(|donor| donor.record.secret);
        self.depart(now, id);
        if !self.donors.contains_key(&id) {
            let until = now + DONOR_LISTED_NS;
            self.dismissed.insert(id, (until, secret));
            self.timers.insert((until, Timer::Dismissed(id)));
        }
    }

    /// Refuses to drain a donor whose fragments have nowhere to go.
    fn check_drain(&self, id: DonorId, name: &str, alive: bool) -> Result<(), Refusal> {
        let rehomed = self.rehome(id);
        let homeless = || rehomed.iter().filter(|rehomed| rehomed.homeless > 0);
        if alive && homeless().next().is_none() {
            return Ok(());
        }
        let why = if alive {
            let each = homeless().map(|rehomed| {
                let VolumeNeed { fragments, reason } = self.need(id, rehomed.volume, rehomed.homeless);
                format!("{fragments} of volume '{}' ({reason})", rehomed.volume.map.name)
            });
            format!("no other donor can take {}", each.collect::<Vec<_>>().join(", "))
        } else {
            "it does not answer, so what it holds cannot be copied off it".to_owned()
        };
        let lost: Vec<String> = (self.lost_with(id, |_| false).iter().filter(|(_, bytes)| *bytes > 0))
            .map(|(volume, bytes)| format!("{} of volume '{volume}'", show_bytes(*bytes)))
            .collect();
        let cost = match lost.is_empty() {
            true => "nothing would be lost but redundancy".to_owned(),
            false => format!("{} would be lost", lost.join(", ")),
        };
        let message = format!(
            "donor '{name}' cannot be emptied: {why}; start another donor with `{}`, delete what you no longer need, or use \
             --force, with which {cost}",
            lend(self.donors.get(&id).map(|donor| donor.record.medium).unwrap_or_default())
        );
        Err(refuse(RefusalCode::Conflict, message))
    }

    fn need(&self, id: DonorId, volume: &Volume, count: usize) -> VolumeNeed {
        let fragments = fragments(count);
        let width = volume.map.redundancy.width() as usize;
        let fits = |donor: &&Donor| donor.record.medium == volume.map.medium;
        let stays =
            |donor: &&Donor| fits(donor) && donor.alive && donor.record.donor != id && !donor.record.leaving;
        let others = self.donors.values().filter(stays).count();
        let redundancy = volume.map.redundancy;
        let reason = if others < width {
            let needed = show_count(width as u64, "donor");
            format!("{redundancy} needs {needed}, and {others} would stay: {} missing", width - others)
        } else {
            "they have no room".to_owned()
        };
        VolumeNeed { fragments, reason }
    }

    /// What each volume would lose with the donor and those that go with it, in bytes.
    fn lost_with(&self, id: DonorId, goes_too: impl Fn(&Donor) -> bool) -> Vec<(&str, u64)> {
        let Some(donor) = self.donors.get(&id) else { return Vec::new() };
        let gone = |other: DonorId| !self.donors.get(&other).is_some_and(|donor| donor.alive);
        let goes = |other: DonorId| other == id || self.donors.get(&other).is_some_and(&goes_too);
        let lost = |volume: &Volume| {
            let bytes =
                |is_lost: &dyn Fn(DonorId) -> bool| bytes_of(&volume.map, &lost_ranges(&volume.map, is_lost));
            // What a lost donor holds is not lost for good before it is taken out.
            let before = bytes(&|other| other != id && gone(other));
            bytes(&|other| goes(other) || gone(other)) - before
        };
        let volumes = donor.held.keys().filter_map(|volume| self.volumes.get(volume));
        volumes.map(|volume| (volume.map.name.as_str(), lost(volume))).collect()
    }

    /// What a donor that wants to go would take with it, if all go that want to: where several are told to at
    /// once, as when a room is shut down, none of them would lose anything by itself.
    pub(super) fn at_stake(&self, id: DonorId) -> Option<Vec<AtStake>> {
        self.donors.get(&id).filter(|donor| donor.record.leaving)?;
        let lost = self.lost_with(id, |donor| donor.record.leaving);
        // Both go by the volumes of which it holds something.
        let each = lost.into_iter().zip(self.rehome(id)).map(|((volume, bytes), rehomed)| AtStake {
            volume: volume.to_owned(),
            bytes,
            slots_crowded: rehomed.crowded as u64,
        });
        Some(each.collect())
    }

    /// Why a donor that wants to go, or to hold less, cannot be helped now.
    pub(super) fn stuck(&self, id: DonorId) -> Option<String> {
        let donor = self.donors.get(&id)?;
        if !donor.record.leaving && donor.excess() == 0 {
            return None;
        }
        let (mut reasons, mut moving) = (Vec::new(), 0);
        for volume in donor.held.keys().filter_map(|volume| self.volumes.get(volume)) {
            let slots = volume.map.groups.iter().flat_map(|group| &group.slots);
            let held = slots.clone().filter(|slot| slot.held.is_some_and(|held| held.donor == id));
            let here = held.filter(|slot| slot.filling.is_some()).count();
            moving += here;
            let nobody = self.writer(volume.map.volume).is_none() && volume.tender.is_none();
            if here > 0 && nobody {
                reasons.push(format!(
                    "volume '{}' is not attached for writing, and none of our donors that hold a part of it can move its {}: attach it",
                    volume.map.name,
                    fragments(here)
                ));
            }
        }
        moving += self.retired_of(id) as usize;
        let rehomed = self.rehome(id);
        let left: usize = rehomed.iter().map(|rehomed| rehomed.homeless).sum();
        let over = moving + (donor.used() as usize).saturating_sub(moving + left) < donor.excess() as usize;
        if donor.record.leaving || over {
            for Rehomed { volume, homeless: count, .. } in rehomed.into_iter().filter(|of| of.homeless > 0) {
                let slots = volume.map.groups.iter().flat_map(|group| &group.slots);
                if slots.filter(|slot| slot.filling.is_some()).count() >= VOLUME_FILLINGS_MAX {
                    continue;
                }
                let VolumeNeed { fragments, reason } = self.need(id, volume, count);
                reasons.push(format!(
                    "no other donor can take {fragments} of volume '{}' ({reason}): start another donor with \
                     `cheetah donate SIZE`, or delete a volume",
                    volume.map.name
                ));
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

struct VolumeNeed {
    fragments: String,
    reason: String,
}
