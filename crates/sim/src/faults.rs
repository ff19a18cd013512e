//! What goes wrong: connections, donors, links, the coordinator, clients.
//!
//! Owns: each kind of fault, and telling `verdict` what it excuses. Never: more than `plan` allows. A lost or
//! stalled connection and a restart of the coordinator excuse nothing: no request may fail for them.

use crate::calls::Caller;
use crate::client::Phase;
use crate::network::{Node, Stage};
use crate::plan::Fault;
use crate::world::{Ev, World, say};
use cheetah_core::donor;
use cheetah_core::limits::{LEASE_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, VolumeId};

impl World {
    pub(crate) fn fault_tick(&mut self) {
        if self.director.healing {
            return;
        }
        self.close_wounds();
        if let Some(fault) = self.rng.pick(&self.plan.faults.clone()) {
            say!(self, "fault: {fault:?}");
            self.inject(fault);
        }
        let gap = self.rng.around(self.plan.fault_gap_ns);
        self.after(gap, Ev::Fault);
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::LoseConnection => self.lose_some_connections(),
            Fault::StallConnection => self.stall_some_connection(),
            Fault::KillDonor => self.kill_some_donor(),
            Fault::PauseDonor => {
                if let Some(d) = self.some_donor().filter(|d| self.may(*d)) {
                    self.count("fault: donor paused");
                    let until = self.now + self.fault_length();
                    self.donors[d].paused_until = self.donors[d].paused_until.max(until);
                    self.verdict.donor_in_trouble(self.donors[d].id, until);
                }
            }
            Fault::EndDonor => self.end_some_donor(),
            Fault::CutLink => {
                let (donor, client) = (self.some_donor(), self.some_client());
                if let (Some(d), Some(c)) = (donor.filter(|d| self.may(*d)), client) {
                    let until = self.now + self.fault_length();
                    let slot = self.donors[d].slot;
                    self.cut_ways(Node::Client(c), Node::Donor(slot), until, "fault: link cut");
                    let there: Vec<_> = self.donors.iter().filter(|o| o.slot == slot).map(|o| o.id).collect();
                    there.into_iter().for_each(|id| self.verdict.link_in_trouble(c, id, until + SECOND_NS));
                }
            }
            Fault::CutCoordinator if self.may_tear() => self.cut_coordinator(),
            Fault::CutCoordinator => {}
            Fault::SlowDonor => {
                if let Some(d) = self.some_donor().filter(|d| self.may(*d)) {
                    self.count("fault: donor slow");
                    let until = self.now + self.fault_length();
                    self.donors[d].slow = (until, self.rng.skewed(5 * MILLISECOND_NS, 400 * MILLISECOND_NS));
                    let id = self.donors[d].id;
                    self.verdict.donor_is_slow(id, until + SECOND_NS);
                }
            }
            Fault::DrainDonor => self.drain_some_donor(),
            Fault::SpareLess => {
                // Nobody else needs what is lent of a disk.
                if let Some(d) = self.some_donor().filter(|d| self.donors[*d].disk.is_none()) {
                    self.count("fault: donor's owner needs memory");
                    let extents = self.donors[d].extents;
                    let extents = u32::try_from(self.rng.below(u64::from(extents) + 1)).expect("a few");
                    self.step_donor(d, donor::Event::Offered { extents });
                }
            }
            Fault::EndTogether => self.end_together(),
            Fault::StopCoordinator => {
                self.count("fault: coordinator stopped");
                let length = self.rng.skewed(SECOND_NS, 60 * SECOND_NS);
                self.stop_coordinator(length);
            }
            Fault::Stranger => self.stranger_comes(),
            Fault::KillTwo => self.kill_two(),
            Fault::DisturbClock => self.disturb_some_clock(),
            Fault::EndLoad => self.disturb_some_load(),
            Fault::Opened => {}
            Fault::Power => self.power_fails(),
            Fault::BadDisk => self.spoil_some_disk(),
            Fault::Rot => self.flip_at_rest(),
            Fault::RepeatCall => self.repeat_some_call(),
            Fault::RestartCoordinator => {
                if self.rng.percent(40) {
                    self.coordinator.doomed = true;
                } else {
                    self.crash_coordinator();
                }
            }
            Fault::CrashClient => self.crash_some_client(),
            Fault::PauseClient => self.pause_some_client(),
        }
    }

    fn pause_some_client(&mut self) {
        let Some(c) = self.some_client().filter(|_| self.may_tear()) else { return };
        self.count("fault: client paused");
        let length = match self.now < self.plan.duration_ns && self.rng.percent(25) {
            // Another may have its lease by then, and sees what it still tries.
            true => {
                let length = LEASE_NS + self.rng.range(8, 20) * SECOND_NS;
                self.director.ends_at = self.director.ends_at.max(self.now + length + 5 * SECOND_NS);
                length
            }
            false => self.fault_length(),
        };
        self.pause_client(c, length);
    }

    fn crash_some_client(&mut self) {
        // What it leaves half written needs all donors until another has mended it.
        if let Some(c) = self.some_client().filter(|_| self.may_tear()) {
            let host = self.rng.percent(40);
            self.count(if host { "fault: client's host lost" } else { "fault: client crashed" });
            self.crash_client(c, host);
        }
    }

    /// Whether this donor may get into trouble now; notes who loses more than redundancy covers by it.
    pub(crate) fn may(&mut self, d: usize) -> bool {
        let id = self.donors[d].id;
        self.may_if(|other, _| other == id)
    }

    /// Likewise, in one group of a volume.
    pub(crate) fn may_in(&mut self, d: usize, volume: VolumeId, group: usize) -> bool {
        let here = (self.donors[d].id, (volume, group));
        self.may_if(|other, place| (other, place) == here)
    }

    fn may_if(&mut self, more: impl Fn(DonorId, (VolumeId, usize)) -> bool) -> bool {
        self.look_at_rot();
        self.look_at_stale();
        let short = self.beyond_by_in(more);
        if !self.plan.beyond && !short.is_empty() {
            self.count("faults spared by the budget");
            return false;
        }
        self.verdict.beyond.extend(short);
        true
    }

    /// Whether a writer may die now.
    pub(crate) fn may_tear(&mut self) -> bool {
        let short = self.beyond_if_torn();
        if !self.plan.beyond && !short.is_empty() {
            self.count("faults spared by the budget");
            return false;
        }
        self.verdict.beyond.extend(short);
        true
    }

    /// One way or both.
    pub(crate) fn cut_ways(&mut self, a: Node, b: Node, until: u64, what: &'static str) {
        let ways = self.rng.below(4);
        self.count(if ways < 2 { "fault: one way cut" } else { what });
        if ways != 0 {
            self.cut(a, b, until);
        }
        if ways != 1 {
            self.cut(b, a, until);
        }
    }

    /// Often short, sometimes longer than any patience.
    fn fault_length(&mut self) -> u64 {
        self.rng.skewed(20 * MILLISECOND_NS, 40 * SECOND_NS)
    }

    pub(crate) fn some_donor(&mut self) -> Option<usize> {
        let alive = self.donors.iter().enumerate().filter(|(_, donor)| donor.alive).map(|(d, _)| d);
        self.rng.pick(&alive.collect::<Vec<_>>())
    }

    fn some_client(&mut self) -> Option<usize> {
        let attached = self.clients.iter().enumerate().filter(|(_, client)| client.phase == Phase::Attached);
        self.rng.pick(&attached.map(|(c, _)| c).collect::<Vec<_>>())
    }

    fn some_conn(&mut self) -> Option<u64> {
        let open = self.conns_where(|conn| conn.client_open && conn.stage == Stage::Serving);
        self.rng.pick(&open)
    }

    fn lose_some_connections(&mut self) {
        let Some(conn) = self.some_conn().filter(|conn| self.may_touch(*conn)) else { return };
        self.count("fault: connection lost");
        let donor_hears = self.rng.percent(50);
        if self.rng.percent(30) {
            let by = self.rng.skewed(MILLISECOND_NS, 10 * SECOND_NS);
            self.stall_conn(conn, by);
        }
        self.lose_conn(conn, true, donor_hears);
    }

    fn stall_some_connection(&mut self) {
        if let Some(conn) = self.some_conn().filter(|conn| self.may_touch(*conn)) {
            self.count("fault: connection stalled");
            let by = self.rng.skewed(MILLISECOND_NS, 10 * SECOND_NS);
            self.stall_conn(conn, by);
        }
    }

    fn may_touch(&mut self, conn: u64) -> bool {
        let donor = self.network.conns.get(&conn).and_then(|conn| conn.donor);
        donor.is_some_and(|d| self.may(d))
    }

    fn may_end_a_donor(&mut self) -> Option<usize> {
        if self.director.deaths >= self.plan.deaths_max {
            return None;
        }
        let d = self.some_donor().filter(|d| self.may(*d))?;
        self.director.deaths += 1;
        Some(d)
    }

    pub(crate) fn kill_some_donor(&mut self) {
        let Some(d) = self.may_end_a_donor() else { return };
        let process_only = self.rng.percent(60);
        self.count(if process_only { "fault: donor killed" } else { "fault: donor's host lost" });
        self.end_donor(d, process_only);
        if self.rng.percent(60) {
            let delay = self.rng.skewed(20 * MILLISECOND_NS, 20 * SECOND_NS);
            self.after(delay, Ev::Replace(self.donors[d].slot));
        }
    }

    fn end_some_donor(&mut self) {
        let Some(d) = self.may_end_a_donor() else { return };
        if self.rng.percent(50) {
            return self.after(0, Ev::Terminate(d));
        }
        self.count("fault: donor told to leave");
        let donor = self.donors[d].name.clone();
        let id = self.donors[d].id;
        // Whether it hears of it, and when, is its coordinator's matter.
        self.verdict.donor_in_trouble(id, u64::MAX / 2);
        let call = cheetah_core::api::Call::Leave { donor, force: true };
        self.call(Caller::Admin, Node::Coordinator, call);
    }

    /// Its memory is moved to others first, which takes a writer and room; with a bound, it goes without.
    fn drain_some_donor(&mut self) {
        if self.director.deaths >= self.plan.deaths_max {
            return;
        }
        let Some(d) = self.some_donor() else { return };
        self.director.deaths += 1;
        self.count("fault: donor asked to move what it holds");
        let bounded = self.rng.percent(30) && self.may(d);
        if bounded {
            self.verdict.donor_in_trouble(self.donors[d].id, u64::MAX / 2);
        }
        if self.donors[d].disk.is_some() {
            return self.ask_to_leave(d);
        }
        self.step_donor(d, donor::Event::Leave { bounded });
    }

    pub(crate) fn terminate_donor(&mut self, d: usize) {
        self.count("fault: donor terminated");
        if self.donors[d].disk.is_some() {
            // It stops, and what it holds stays.
            return self.end_donor(d, true);
        }
        self.verdict.donor_in_trouble(self.donors[d].id, u64::MAX / 2);
        self.donors[d].leaving = true;
        self.step_donor(d, donor::Event::Terminate);
    }

    pub(crate) fn replace_donor(&mut self, slot: usize) {
        if !self.director.healing && self.listener(slot).is_none() {
            self.count("fault: donor restarted under its address");
            self.director.dark.remove(&slot);
            if !self.come_back(slot) {
                self.start_donor(slot);
            }
        }
    }

    fn cut_coordinator(&mut self) {
        let until = self.now + self.fault_length();
        let all = self.rng.percent(30);
        let donors: Vec<usize> = (0..self.donors.len()).filter(|_| all || self.rng.percent(30)).collect();
        for d in donors {
            // Whoever attaches meanwhile finds that it knows nothing of the lease.
            if !self.may(d) {
                continue;
            }
            self.verdict.donor_is_slow(self.donors[d].id, until + SECOND_NS);
            let slot = self.donors[d].slot;
            self.cut_ways(Node::Coordinator, Node::Donor(slot), until, "fault: coordinator cut off");
        }
        let clients: Vec<usize> = (0..self.clients.len()).filter(|_| all || self.rng.percent(30)).collect();
        for c in clients {
            self.cut_ways(Node::Coordinator, Node::Client(c), until, "fault: coordinator cut off");
            self.verdict.client_cut_off(c, until);
            if until > self.now + LEASE_NS / 2 && !self.clients[c].read_only {
                self.verdict.torn.extend(self.clients[c].volume);
            }
        }
    }

    /// The process dies. With `host`, its machine: nobody tells the donors.
    pub(crate) fn crash_client(&mut self, c: usize, host: bool) {
        say!(self, "client {c} crashes{}", if host { " with its machine" } else { "" });
        for conn in self.conns_where(|conn| conn.client == c && conn.client_open) {
            if host {
                self.lose_conn(conn, false, false);
                self.network.conns.entry(conn).and_modify(|conn| conn.client_open = false);
            } else {
                self.close_by_client(conn);
            }
        }
        let client = &self.clients[c];
        if let Some(load) = client.load.as_ref().filter(|_| client.phase == Phase::Attaching) {
            self.director.load_is_answered(&client.name, load.from, None, false);
        }
        let order = self.order();
        if !self.clients[c].read_only {
            self.verdict.torn.extend(self.clients[c].volume);
        }
        for (_, slot) in std::mem::take(&mut self.clients[c].slots) {
            slot.version.into_iter().for_each(|version| self.oracle.end_write(order, version, false));
            slot.reading.into_iter().for_each(|read| self.oracle.forget_read(read));
        }
        self.end_client(c);
        self.abandon_calls(|caller| {
            use Caller::{Amend, Attach, Detach, Renew, Tell};
            matches!(caller, Attach(of) | Renew(of) | Amend(of) | Tell(of) | Detach(of) if *of == c)
        });
    }

    pub(crate) fn pause_client(&mut self, c: usize, length: u64) {
        let client = &mut self.clients[c];
        let until = self.now + length;
        if until <= client.paused_until {
            return;
        }
        let more = until - client.paused_until.max(self.now);
        client.paused_until = until;
        client.slots.values_mut().for_each(|slot| slot.deadline += more);
        self.verdict.client_in_trouble(c, until);
        if length > LEASE_NS {
            // What it was writing stays half written if another takes over.
            self.verdict.torn.extend(self.clients[c].volume.filter(|_| !self.clients[c].read_only));
        }
        if length > LEASE_NS && self.rng.percent(70) {
            let delay = self.rng.around(4 * SECOND_NS);
            self.after(LEASE_NS + delay, Ev::TakeOver(c));
        }
    }

    pub(crate) fn take_over_from(&mut self, c: usize) {
        if !self.director.healing && self.clients[c].phase == Phase::Attached {
            let name = self.clients[c].name.clone();
            self.attach(&name, false);
        }
    }

    /// Somebody says that a host which was switched off does not come back: what only its memory tells is
    /// held back until then.
    fn give_up_dark_donors(&mut self) {
        let dark =
            |donor: &&crate::donor::DonorHost| !donor.alive && self.director.dark.contains(&donor.slot);
        let names: Vec<String> = self.donors.iter().filter(dark).map(|donor| donor.name.clone()).collect();
        for donor in names {
            let call = cheetah_core::api::Call::Leave { donor, force: true };
            self.call(Caller::Admin, Node::Coordinator, call);
        }
    }

    /// Everything works from now on, and nothing more is changed.
    pub(crate) fn heal(&mut self) {
        say!(self, "everything heals");
        self.director.healing = true;
        self.heal_cuts();
        let now = self.now;
        self.coordinator.doomed = false;
        self.stranger_goes();
        self.coordinator_start();
        self.disks_come_back();
        // Who is stopped goes on when that is over: cut short, what it was sent last would overtake what came
        // before.
        let pauses = self.donors.iter().map(|donor| donor.paused_until);
        let pauses = pauses.chain(self.clients.iter().map(|client| client.paused_until));
        let pauses = pauses.chain([self.coordinator.stopped_until]);
        let calm = pauses.max().unwrap_or(now).max(now);
        for d in 0..self.donors.len() {
            let extents = self.donors[d].extents;
            self.step_donor(d, donor::Event::Offered { extents });
        }
        self.give_up_dark_donors();
        // Those that nobody can attach, because their call was given up, end by themselves.
        self.run_until(calm + LEASE_NS + 25 * SECOND_NS);
    }
}
