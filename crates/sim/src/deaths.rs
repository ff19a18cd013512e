//! Two donors of a group that are killed one after the other, with time and room for a repair between them.
//!
//! Owns: whom it hits and when, and the rule that a donor whose connections are refused is set aside at once,
//! also when nobody writes. Never: what may be lost (nothing is: the second one dies when the volume is whole
//! again). Called by `faults`. Tests: the planted bug.

use crate::client::Phase;
use crate::redundancy::is_degraded;
use crate::world::{Ev, World, say};
use cheetah_core::limits::{MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, VolumeId};
use cheetah_core::units::Time;
use cheetah_core::volume::Event;

/// From the death of a donor's process until the coordinator has recorded it, beside what messages take.
const SET_ASIDE_WITHIN_NS: u64 = SECOND_NS;
/// A message, its answer, and as much again for the coordinator.
const MESSAGES: u64 = 12;
/// How long a repair of what a world has is waited for.
const REPAIR_WITHIN_NS: u64 = 5 * SECOND_NS;

#[derive(Debug)]
pub(crate) struct FirstDeath {
    volume: VolumeId,
    client: usize,
    donor: DonorId,
    at: Time,
    /// The second one dies then, if it may.
    next_at: Time,
    set_aside: bool,
}

impl World {
    pub(crate) fn kill_two(&mut self) {
        let writers = |c: &usize| {
            let client = &self.clients[*c];
            let settled = client.machine.as_ref().is_some_and(|machine| machine.is_settled());
            client.phase == Phase::Attached && !client.read_only && client.paused_until <= self.now && settled
        };
        let writers: Vec<usize> = (0..self.clients.len()).filter(writers).collect();
        let picked = self.rng.pick(&writers).and_then(|c| Some((c, self.clients[c].volume?)));
        let Some((client, volume)) = picked else { return };
        let Some(map) = self.stored_map(volume).filter(|map| map.redundancy.parity > 0).cloned() else {
            return;
        };
        let group = self.rng.index(map.groups.len());
        let Some(held) = self.rng.pick(&map.groups[group].slots).and_then(|slot| slot.held) else { return };
        let Some(d) = self.donors.iter().position(|donor| donor.id == held.donor && donor.alive) else {
            return;
        };
        let calm = !is_degraded(&map, |donor| self.verdict.is_in_trouble(donor, self.now))
            && !self.verdict.coordinator_excuses(client, self.now)
            && !self.verdict.torn.contains(&volume)
            && self.coordinator.machine.is_some();
        if !calm || !self.beyond_by(Some(held.donor)).is_empty() {
            return self.count("faults spared by the budget");
        }
        self.count("fault: donor killed beside a spare one");
        self.director.deaths += 1;
        let next_at = self.now + self.rng.range(500, 5_000) * MILLISECOND_NS;
        self.director.first_deaths.push(FirstDeath {
            volume,
            client,
            donor: held.donor,
            at: self.now,
            next_at,
            set_aside: false,
        });
        self.end_donor(d, true);
        self.after(50 * MILLISECOND_NS, Ev::FirstDeath);
    }

    /// Looks whether those that died are set aside, and whether their volumes are whole again.
    pub(crate) fn look_at_deaths(&mut self) {
        let within = SET_ASIDE_WITHIN_NS + MESSAGES * (self.plan.delay_ns + self.plan.jitter_ns);
        for mut death in std::mem::take(&mut self.director.first_deaths) {
            let client = &self.clients[death.client];
            let serves = client.phase == Phase::Attached && client.paused_until <= self.now;
            let excused = self.verdict.coordinator_excuses(death.client, death.at)
                || self.verdict.is_client_in_trouble(death.client, death.at)
                || self.coordinator.machine.is_none();
            let Some(map) = self.stored_map(death.volume).filter(|_| serves && !excused) else { continue };
            let mut slots = map.groups.iter().flat_map(|group| &group.slots);
            let holds = slots.any(|slot| slot.held.is_some_and(|held| held.donor == death.donor));
            // One beyond redundancy stays, for it may come back.
            let last = self.verdict.beyond.contains(&death.volume);
            if holds && !last && self.now > death.at + within {
                let waited = (self.now - death.at) / MILLISECOND_NS;
                let what = format!(
                    "donor {} was killed {waited} ms ago, and volume {} still counts on it",
                    death.donor, map.name
                );
                self.fail(what);
                return;
            }
            death.set_aside |= !holds;
            let whole = !is_degraded(map, |donor| self.verdict.is_in_trouble(donor, self.now));
            if self.now >= death.next_at && whole {
                self.kill_next(&death);
            } else if !death.set_aside || self.now < death.at + REPAIR_WITHIN_NS {
                self.director.first_deaths.push(death);
            }
        }
        if !self.director.first_deaths.is_empty() && !self.director.healing {
            self.after(50 * MILLISECOND_NS, Ev::FirstDeath);
        }
    }

    /// The coordinator has not heard of donors for long, and whoever writes asks them.
    pub(crate) fn told_of_silence(&mut self, c: usize, silent: Vec<DonorId>) {
        if !silent.is_empty() && self.clients[c].machine.is_some() {
            self.count("writers told of donors that are silent");
            self.step_client(c, Event::Silent(silent));
        }
    }

    fn kill_next(&mut self, first: &FirstDeath) {
        let Some(map) = self.stored_map(first.volume) else { return };
        let held = map.groups.iter().flat_map(|group| &group.slots).filter_map(|slot| slot.held);
        let held: Vec<DonorId> = held.map(|held| held.donor).collect();
        let Some(id) = self.rng.pick(&held).filter(|id| self.beyond_by(Some(*id)).is_empty()) else { return };
        let Some(d) = self.donors.iter().position(|donor| donor.id == id && donor.alive) else { return };
        say!(self, "the second donor dies {} ms after the first", (self.now - first.at) / MILLISECOND_NS);
        self.count("fault: donor killed after a repair");
        self.director.deaths += 1;
        self.end_donor(d, true);
    }
}
