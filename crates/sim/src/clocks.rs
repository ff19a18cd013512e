//! The clock of one machine, and what happens to it: it leaps, or stands still while the machine is stopped.
//!
//! Owns: the time that each of core's machines is told, and when one is woken that asked for a time of its
//! own. Never: the world's time, by which oracle and verdict judge. Key rule: a clock never goes back. Called
//! by `faults` and the drivers. Tests: the planted bug.

use crate::bugs::Bug;
use crate::client::Phase;
use crate::world::{ClientEv, DonorEv, Ev, World, say};
use cheetah_core::limits::{ASLEEP_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::units::Time;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    skew: i64,
    last: Time,
}

impl Clock {
    /// What it shows, `now` by the world's.
    pub(crate) fn read(&mut self, now: Time) -> Time {
        self.last = self.last.max(now.saturating_add_signed(self.skew));
        self.last
    }

    /// When it will show this, by the world's.
    pub(crate) fn shows(&self, at: Time) -> Time {
        at.saturating_add_signed(-self.skew)
    }

    fn leap(&mut self, by: u64) {
        self.skew = self.skew.saturating_add_unsigned(by);
    }

    fn stand_still(&mut self, now: Time, length: u64) {
        self.read(now);
        self.skew = self.skew.saturating_sub_unsigned(length);
    }
}

impl World {
    /// A machine's clock leaps, or it stands still with its machine, as a virtual one's does.
    pub(crate) fn disturb_some_clock(&mut self) {
        let length = self.rng.skewed(SECOND_NS, 60 * SECOND_NS);
        let leaps = self.rng.percent(50);
        match self.rng.below(3) {
            0 if leaps => self.coordinator_leaps(length),
            0 if self.coordinator.stopped_until <= self.now && self.coordinator.stranger.is_none() => {
                self.count("fault: a stopped machine's clock stood still");
                self.coordinator.clock.stand_still(self.now, length);
                self.stop_coordinator(length);
            }
            1 => self.donor_clock(length, leaps),
            _ => self.client_clock(length, leaps),
        }
    }

    fn coordinator_leaps(&mut self, length: u64) {
        self.count("fault: a clock leapt");
        say!(self, "the coordinator's clock leaps by {} ms", length / MILLISECOND_NS);
        if self.bug == Some(Bug::SleepCounts) {
            for _ in 0..length / SECOND_NS {
                self.coordinator.clock.leap(SECOND_NS);
                self.coordinator_ticks();
            }
            return;
        }
        let shows = self.coordinator.clock.read(self.now) + length;
        if self.coordinator.wake_at.is_none_or(|at| shows <= at + ASLEEP_NS) {
            // Too short to be told from time that passed.
            self.coordinator.hastened += length;
        }
        self.coordinator.clock.leap(length);
        let due = self.coordinator.wake_at.take();
        if let Some(at) = due {
            self.coordinator.wake_at = Some(at);
            self.after(0, Ev::CoordinatorWake(at));
        }
    }

    fn donor_clock(&mut self, length: u64, leaps: bool) {
        let alive: Vec<usize> = (0..self.donors.len()).filter(|d| self.donors[*d].alive).collect();
        let Some(d) = self.rng.pick(&alive) else { return };
        if leaps {
            self.count("fault: a clock leapt");
            say!(self, "the clock of donor {d} leaps by {} ms", length / MILLISECOND_NS);
            let donor = &mut self.donors[d];
            donor.clock.leap(length);
            if let Some(at) = donor.wake_at {
                self.after(0, Ev::Donor(d, DonorEv::Wake(at)));
            }
        } else if self.donors[d].paused_until <= self.now && self.may(d) {
            self.count("fault: a stopped machine's clock stood still");
            let (now, until) = (self.now, self.now + length);
            self.donors[d].clock.stand_still(now, length);
            self.donors[d].paused_until = until;
            self.verdict.donor_in_trouble(self.donors[d].id, until);
        }
    }

    /// Of a reader what it keeps would be as old as its clock stood still; it cannot know.
    fn client_clock(&mut self, length: u64, leaps: bool) {
        let writes = |c: &usize| {
            let client = &self.clients[*c];
            client.phase == Phase::Attached && !client.read_only && client.paused_until <= self.now
        };
        let writers: Vec<usize> = (0..self.clients.len()).filter(writes).collect();
        let Some(c) = self.rng.pick(&writers).filter(|_| self.may_tear()) else { return };
        let now = self.now;
        if leaps {
            self.count("fault: a clock leapt");
            say!(self, "the clock of client {c} leaps by {} ms", length / MILLISECOND_NS);
            // What was to be answered by then is late at once.
            self.verdict.client_in_trouble(c, now);
            let client = &mut self.clients[c];
            client.clock.leap(length);
            if let Some(at) = client.wake_at {
                self.after(0, Ev::Client(c, ClientEv::Wake(at)));
            }
        } else {
            self.count("fault: a stopped machine's clock stood still");
            self.clients[c].clock.stand_still(now, length);
            self.pause_client(c, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_back() {
        let mut clock = Clock::default();
        assert_eq!((clock.read(5), clock.shows(7)), (5, 7));
        clock.stand_still(5, 10);
        assert_eq!((clock.read(6), clock.read(15), clock.read(16)), (5, 5, 6));
        assert_eq!(clock.shows(6), 16);
        clock.leap(100);
        assert_eq!(clock.read(16), 106);
    }
}
