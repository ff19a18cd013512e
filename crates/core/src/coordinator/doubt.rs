//! Donors that may have ended: found out at once, by their own address, and not by a silence.
//!
//! Owns when the driver asks whether anything listens where a donor did, and what follows when nothing does.
//! Never: the connection. Invariants: a donor counts as ended only while it has no sync open and its host
//! says that nothing listens at its address; one that is heard again lives. What an ended donor held in
//! memory ends with its process, so its slots are taken out at once where others that live suffice; where
//! they do not, nothing is given up by waiting. A disk may come back, so its donor is only silent.
//! Tests: `tests/coordinator_doubt.rs`, the simulator.

use super::{Coordinator, Found, Timer};
use crate::limits::{DONOR_LISTED_NS, DONOR_RETRY_SOON_NS, REACHES_MAX};
use crate::map::DonorId;
use crate::units::Time;

/// What is known of a donor that may have ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// How often its address was asked.
    asked: u32,
    /// When it is asked again; None while an answer is awaited.
    again_at: Option<Time>,
}

impl Doubt {
    /// Nobody was asked for so long.
    pub(super) fn put_off(&mut self, ns: Time) {
        self.again_at = self.again_at.map(|at| at + ns);
    }
}

impl Coordinator {
    /// Something says that the donor may have ended.
    pub(super) fn doubt(&mut self, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        if donor.doubt.is_none() && !donor.ended && !donor.record.departed {
            donor.doubt = Some(Doubt { asked: 0, again_at: None });
            self.reach(id);
        }
    }

    fn reach(&mut self, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        if let Some(doubt) = &mut donor.doubt {
            (doubt.asked, doubt.again_at) = (doubt.asked + 1, None);
            self.reaches.push((id, donor.record.address.clone()));
        }
    }

    pub(super) fn doubt_again(&mut self, id: DonorId, at: Time) {
        let doubt = self.donors.get(&id).and_then(|donor| donor.doubt);
        if doubt.is_some_and(|doubt| doubt.again_at == Some(at)) {
            self.reach(id);
        }
    }

    pub(super) fn reached(&mut self, now: Time, id: DonorId, address: &str, found: Found) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        let Some(doubt) = &mut donor.doubt else { return };
        let syncs = donor.poll.is_some();
        match found {
            Found::Nothing if !syncs && donor.record.address == address => self.end(now, id),
            // It is there; or it was not when it was asked, and is heard.
            Found::Listener if syncs => donor.doubt = None,
            // A process that is killed closes its listener last, and one that is well is heard soon.
            _ if doubt.asked < REACHES_MAX => {
                let at = now + (DONOR_RETRY_SOON_NS << doubt.asked);
                doubt.again_at = Some(at);
                self.timers.insert((at, Timer::Doubted(id)));
            }
            _ => donor.doubt = None,
        }
    }

    /// Its process has ended, and its memory with it. A disk stays, and may come back.
    fn end(&mut self, now: Time, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        let lived = donor.alive;
        (donor.alive, donor.ended, donor.doubt) = (false, donor.record.medium.is_memory(), None);
        (self.unsettled, self.replan) = (true, true);
        if lived {
            self.note_loss("donor-lost", id);
        }
        self.set_donor_timer(id, now + DONOR_LISTED_NS);
        self.doubt_volumes_of(id);
        self.abandon(now, id);
        self.tidy_donor(now, id);
    }
}
