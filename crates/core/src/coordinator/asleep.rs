//! Time in which this machine slept: stopped, suspended with its host, set back and forth, or starved of its
//! processor.
//!
//! Owns how that is told from time in which nobody spoke, and what becomes of deadlines. Never: a judgement;
//! who could not be heard was not silent. Invariant: what was waited for while nobody listened has as long as
//! it had before, and holders of leases and donors, who went on in vain, have all of their time from the
//! moment on at which they can be heard again, as after a restart. Called at the beginning of each step.
//! Tests: `tests/coordinator_asleep.rs`.

use super::{Coordinator, Timer};
use crate::limits::{ASLEEP_NS, DONOR_SILENCE_NS, LEASE_NS};
use crate::map::{DonorId, LeaseToken};
use crate::units::Time;

impl Coordinator {
    /// The time of this step, which is never before that of the last one. Its timers say when it had to come
    /// at the latest.
    pub(super) fn wake(&mut self, now: Time) -> Time {
        let now = now.max(self.now);
        let last = std::mem::replace(&mut self.now, now);
        let due = self.timers.first().map(|(at, _)| *at);
        if due.is_some_and(|due| now > due + ASLEEP_NS) {
            self.make_good(now, now - last);
        }
        now
    }

    fn make_good(&mut self, now: Time, slept: Time) {
        let timers = std::mem::take(&mut self.timers);
        self.timers = timers.into_iter().map(|(at, timer)| (at + slept, timer)).collect();
        self.held.values_mut().for_each(|(_, until)| *until += slept);
        self.dismissed.values_mut().for_each(|(until, _)| *until += slept);
        self.plan_at = self.plan_at.map(|at| at + slept);
        for donor in self.donors.values_mut() {
            donor.timer += slept;
            donor.last_seen += slept;
            donor.rest_until += slept;
            if let Some(doubt) = &mut donor.doubt {
                doubt.put_off(slept);
            }
        }
        for lease in self.leases.values_mut() {
            lease.expires += slept;
            lease.heard = lease.heard.map(|heard| heard + slept);
        }
        let alive = self.donors.values().filter(|donor| donor.alive);
        let alive: Vec<DonorId> = alive.map(|donor| donor.record.donor).collect();
        alive.into_iter().for_each(|id| self.set_donor_timer(id, now + DONOR_SILENCE_NS));
        let leases: Vec<LeaseToken> = self.leases.keys().copied().collect();
        leases.into_iter().for_each(|token| self.extend_lease(token, now + LEASE_NS));
    }

    pub(super) fn extend_lease(&mut self, token: LeaseToken, until: Time) {
        let Some(lease) = self.leases.get_mut(&token) else { return };
        self.timers.remove(&(lease.expires, Timer::Lease(token)));
        lease.expires = until;
        self.timers.insert((until, Timer::Lease(token)));
    }
}
