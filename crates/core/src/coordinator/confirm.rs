//! Answers that are held back: long polls, and what a client may hear only once its donors have.
//!
//! Owns the rule that a client never reaches a live donor that has not confirmed the extents and leases the
//! client was given; a donor that is lost, or slower than `DONOR_SILENCE_NS`, is not waited for.
//! Never: what the answers say (`status`, `leases`). Tests: `tests/coordinator_leases.rs`.

use super::donors::Donor;
use super::{CallId, Coordinator, Timer, refuse};
use crate::api::{Answer, Attached, Duties, Duty, Refusal, RefusalCode, Renewed};
use crate::map::{DonorId, LeaseToken, MemberId, VolumeId, VolumeMap};
use crate::units::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A join, until its donor answered at its address.
    Join { call: CallId },
    /// A donor's sync, until there is news for it.
    Poll { donor: DonorId },
    /// A created or grown volume, until its donors know it.
    Volume { volume: VolumeId },
    /// A lease, until the donors know it.
    Attach { volume: VolumeId, token: LeaseToken },
    /// A renewal, until there is a map newer than the epoch and its donors know it.
    Renew { token: LeaseToken, epoch: u64 },
}

impl Coordinator {
    pub(super) fn hold(&mut self, call: CallId, held: Held, until: Time) {
        if let Some(answer) = self.ready(held) {
            self.replies.push((call, answer));
            return;
        }
        self.held.insert(call, (held, until));
        self.timers.insert((until, Timer::Held(call)));
    }

    /// Answers what has become ready in this step.
    pub(super) fn settle(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let ready: Vec<_> =
            self.held.iter().filter_map(|(call, (held, _))| Some((*call, self.ready(*held)?))).collect();
        for (call, answer) in ready {
            self.release(call);
            self.replies.push((call, answer));
        }
    }

    pub(super) fn release(&mut self, call: CallId) -> Option<Held> {
        let (held, until) = self.held.remove(&call)?;
        self.timers.remove(&(until, Timer::Held(call)));
        if let Held::Poll { donor } = held
            && let Some(donor) = self.donors.get_mut(&donor)
            && donor.poll.is_some_and(|(poll, _)| poll == call)
        {
            donor.poll = None;
        }
        Some(held)
    }

    fn ready(&self, held: Held) -> Option<Result<Answer, Refusal>> {
        match held {
            Held::Join { .. } | Held::Poll { .. } => None,
            Held::Volume { volume } | Held::Attach { volume, .. } => {
                self.is_confirmed(volume).then(|| self.answer_held(held))
            }
            Held::Renew { token, epoch } => {
                let volume = self.leases.get(&token).and_then(|lease| self.volumes.get(&lease.record.volume));
                let Some(volume) = volume else { return Some(Err(lease_gone(token))) };
                let map = &volume.map;
                let newer = map.epoch > epoch && self.is_confirmed(map.volume);
                newer.then(|| Ok(self.renewed(token, Some(map.clone()), Vec::new())))
            }
        }
    }

    /// Its time is over: answered with what there is.
    pub(super) fn answer_late(&mut self, call: CallId) {
        if let Some(held) = self.release(call) {
            let answer = match held {
                Held::Join { call } => self.ungreeted(call),
                held => self.answer_held(held),
            };
            self.replies.push((call, answer));
        }
    }

    fn answer_held(&self, held: Held) -> Result<Answer, Refusal> {
        match held {
            Held::Join { .. } => Err(refuse(RefusalCode::Unavailable, "the donor was not greeted yet")),
            Held::Poll { donor } => Ok(Answer::Duties(self.duties(donor))),
            Held::Volume { volume } => match self.volumes.get(&volume) {
                Some(volume) => Ok(Answer::Volume(self.rehearsed(volume).into())),
                None => Err(refuse(RefusalCode::Gone, "the volume was deleted meanwhile")),
            },
            Held::Attach { token, .. } => self.attached(token).ok_or_else(|| lease_gone(token)),
            Held::Renew { token, .. } if self.leases.contains_key(&token) => {
                Ok(self.renewed(token, None, Vec::new()))
            }
            Held::Renew { token, .. } => Err(lease_gone(token)),
        }
    }

    pub(super) fn renewed(
        &self,
        token: LeaseToken,
        map: Option<VolumeMap>,
        strangers: Vec<MemberId>,
    ) -> Answer {
        let (beside, silent) = (self.beside(token), self.silent_for(token));
        Answer::Renewed(Renewed { map, beside, silent, scrub: self.is_to_scrub(token), strangers })
    }

    /// Who is answered with the newest map of a volume goes by that from now on.
    pub(super) fn note_given(&mut self) {
        for (_, answer) in &self.replies {
            let (Ok(Answer::Attached(Attached { map, .. }))
            | Ok(Answer::Renewed(Renewed { map: Some(map), .. }))) = answer
            else {
                continue;
            };
            if let Some(volume) =
                self.volumes.get_mut(&map.volume).filter(|volume| volume.map.epoch == map.epoch)
            {
                volume.between = None;
            }
        }
    }

    /// Answers the donor's open sync, if it has one, with its duties of now.
    pub(super) fn answer_poll(&mut self, id: DonorId) {
        let Some((call, _)) = self.donors.get(&id).and_then(|donor| donor.poll) else { return };
        self.release(call);
        self.replies.push((call, Ok(Answer::Duties(self.duties(id)))));
    }

    pub(super) fn hang_up(&mut self, call: CallId) {
        match self.release(call) {
            // Nobody heard the token, so nobody will detach it.
            Some(Held::Attach { token, .. }) => {
                self.note_lease(token, Some(super::notes::Over::GivenBack));
                self.never_touched(token);
                self.remove_lease(token);
            }
            // A donor that asks something else has done so by now, or does so at once; one that was killed
            // never will.
            Some(Held::Poll { donor }) => self.doubt(donor),
            Some(Held::Join { call }) => drop(self.joining.remove(&call)),
            _ => {}
        }
    }

    /// Every live donor of the volume knows its extents and leases of now. True of a deleted volume.
    fn is_confirmed(&self, id: VolumeId) -> bool {
        let Some(volume) = self.volumes.get(&id) else { return true };
        let waits = |donor: &Donor| donor.alive && donor.confirmed < volume.revision;
        !volume.map.donors().filter_map(|id| self.donors.get(&id)).any(waits)
    }

    /// Donors of the volume that do not know its extents and leases of now, the lost ones among them.
    pub(super) fn unconfirmed(&self, id: VolumeId) -> Vec<DonorId> {
        let Some(volume) = self.volumes.get(&id) else { return Vec::new() };
        let knows = |donor: &Donor| donor.alive && donor.confirmed >= volume.revision;
        volume.map.donors().filter(|id| !self.donors.get(id).is_some_and(knows)).collect()
    }

    /// The whole of what the donor shall hold.
    pub(super) fn duties(&self, id: DonorId) -> Duties {
        let Some(donor) = self.donors.get(&id).filter(|donor| !donor.record.departed) else {
            return Duties { revision: self.revision, dismissed: true, ..Duties::default() };
        };
        let duty = |(id, extents): (&VolumeId, &Vec<u32>)| {
            let volume = self.volumes.get(id)?;
            let sealed = volume.map.seal().is_some();
            let lease = |token: &LeaseToken| self.leases.get(token).map(|lease| &lease.record);
            // Of what is sealed nobody is a writer but who repairs it.
            let read_only = |token: &LeaseToken| {
                lease(token).is_some_and(|lease| lease.read_only || (sealed && !lease.yields))
            };
            let whose = |token: &LeaseToken| Some((*token, lease(token)?.member?));
            let members = volume.leases.iter().filter_map(whose).collect();
            let (readers, writers): (Vec<_>, Vec<_>) = volume.leases.iter().copied().partition(read_only);
            Some(Duty {
                volume: *id,
                name: volume.map.name.clone(),
                epoch: volume.map.epoch,
                extents: extents.clone(),
                writer: writers.first().copied(),
                repairs: writers.first().and_then(lease).is_some_and(|lease| lease.yields),
                sealed,
                readers,
                tend: volume.tender == Some(donor.record.donor),
                backed: volume.map.backing.is_some(),
                layers: volume.map.layers(),
                encrypted: volume.map.encrypted,
                write_back: volume.map.write_back,
                members,
            })
        };
        let volumes = donor.held.iter().filter_map(duty).collect();
        Duties {
            revision: donor.revision,
            volumes,
            dismissed: false,
            stuck: self.stuck(id),
            at_stake: self.at_stake(id),
        }
    }
}

pub(super) fn lease_gone(token: LeaseToken) -> Refusal {
    let message = format!(
        "lease {token} is not known any more: it was detached, or not renewed in time and ended; attach the volume again"
    );
    refuse(RefusalCode::Gone, message)
}
