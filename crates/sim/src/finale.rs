//! The end of a run: everything heals, and everything has to be right again.
//!
//! Owns: the last checks: all requests answered, every living donor in use, all that was written readable (or
//! in error, exactly where its donor died), donors and coordinator of one mind, and all memory wiped once the
//! volumes are gone. Never: a fault.

use crate::client::{Phase, Tick};
use crate::donor::DonorHost;
use crate::world::{ClientEv, Ev, World};
use cheetah_core::api::Call;
use cheetah_core::coordinator::{Key, LeaseRecord, Record, VolumeRecord};
use cheetah_core::donor::export_name;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::{DonorId, LeaseToken, VolumeId};
use cheetah_core::volume::{Event, Op, Request, Scope};
use std::collections::BTreeSet;

/// How often, a second apart, donors and coordinator are compared before they count as disagreeing.
const AGREE_TRIES: usize = 10;
/// How long a load takes at most, that nothing disturbs.
const LOAD_SECONDS: u64 = 120;
/// Reads of the last pass are this long.
const PIECE_BYTES: u64 = 8 << 20;

impl World {
    pub(crate) fn finish(&mut self) {
        self.heal();
        self.nothing_is_open();
        self.donors_agree();
        self.loads_come_to_an_end();
        let names: Vec<String> = self.director.volumes.keys().cloned().collect();
        for name in &names {
            let has_writer = self.attached_to(name).iter().any(|c| !self.clients[*c].read_only);
            if self.failure.is_none() && !has_writer {
                self.attach_for_all(name);
            }
        }
        // Who is silent is waited for as long as a request may take.
        self.pass(REQUEST_DEADLINE_NS + 5 * SECOND_NS);
        let attached: Vec<usize> =
            (0..self.clients.len()).filter(|c| self.clients[*c].phase == Phase::Attached).collect();
        for c in &attached {
            self.all_is_reachable(*c);
            self.director.last_pass = true;
            self.read_all(*c);
        }
        self.pass(40 * SECOND_NS);
        self.nothing_is_open();
        self.what_flipped_is_written(&attached);
        let wounded = |c: &&usize| self.clients[**c].volume.is_some_and(|volume| self.wounds.has(volume));
        let scrubs = if self.plan.corrupts() {
            attached.clone()
        } else {
            attached.iter().filter(wounded).copied().collect()
        };
        if !scrubs.is_empty() {
            scrubs.iter().for_each(|c| self.step_client(*c, Event::Scrub(Scope::All)));
            self.pass(300 * SECOND_NS);
            scrubs.iter().for_each(|c| self.nothing_wrong_is_left(*c));
            // By that alone, what is wrong was found; what comes now would find it as well.
            scrubs.iter().for_each(|c| self.step_client(*c, Event::Compare));
            self.pass(300 * SECOND_NS);
            scrubs.iter().for_each(|c| self.has_looked_at_all(*c));
        }
        self.losses_are_accounted();
        attached.iter().for_each(|c| self.nobody_is_blamed(*c));
        self.volumes_are_known(&names);
        for c in attached {
            self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Close)));
        }
        // The last flush may wait for a holder that stays away.
        self.pass(REQUEST_DEADLINE_NS + 5 * SECOND_NS);
        if self.failure.is_none() {
            self.all_fits();
        }
        for name in &names {
            self.admin(name, Call::Delete { name: name.clone() });
        }
        self.pass(20 * SECOND_NS);
        self.donors_agree();
        self.all_is_wiped();
    }

    /// What was begun of a writer and a donor that end together is played to its end.
    pub(crate) fn end_scene(&mut self) {
        while self.director.scene.is_some() && self.failure.is_none() {
            self.pass(SECOND_NS);
        }
    }

    /// Those that are under way when all is well come to theirs.
    fn loads_come_to_an_end(&mut self) {
        let load =
            |world: &World| world.clients.iter().position(|client| client.alive && client.load.is_some());
        for _ in 0..LOAD_SECONDS {
            if load(self).is_none() {
                return;
            }
            self.pass(SECOND_NS);
        }
        if let Some(c) = load(self).filter(|_| self.failure.is_none()) {
            self.fail(format!("client {c} does not come to the end of its load after all healed"));
        }
    }

    fn pass(&mut self, time: u64) {
        if self.failure.is_none() {
            self.run_until(self.now + time);
        }
    }

    fn nothing_is_open(&mut self) {
        if let Some((c, tag)) = self.outstanding().filter(|_| self.failure.is_none()) {
            self.fail(format!("request {tag} of client {c} was never answered"));
        }
    }

    /// Whether the lease of a client is over.
    fn has_ended(&self, c: usize) -> bool {
        self.clients[c].token.is_none_or(|token| self.verdict.lease_ended.contains(&token))
    }

    fn has_looked_at_all(&mut self, c: usize) {
        let client = &self.clients[c];
        let Some(machine) = client.machine.as_ref().filter(|_| !client.read_only && !self.has_ended(c))
        else {
            return;
        };
        if machine.map().redundancy.parity > 0
            && machine.report().scrub_passes.min(machine.report().compare_passes) == 0
        {
            self.fail(format!("client {c} did not look at all its fragments: {:?}", machine.report()));
        }
    }

    /// What is wrong somewhere was found by the donors themselves, and put right from the others.
    fn nothing_wrong_is_left(&mut self, c: usize) {
        let client = &self.clients[c];
        let beyond = client.volume.is_none_or(|volume| self.verdict.beyond.contains(&volume));
        if client.read_only || self.has_ended(c) || beyond || self.failure.is_some() {
            return;
        }
        self.look_at_rot();
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return };
        let slots = map.groups.iter().flat_map(|group| &group.slots).filter_map(|slot| slot.held);
        let held: BTreeSet<(DonorId, u32)> = slots.map(|held| (held.donor, held.extent)).collect();
        let left = self.rot_left_in(&held).filter(|_| map.redundancy.parity > 0);
        if let Some((donor, block)) = self.first_unreadable(&held).filter(|_| map.redundancy.parity > 0) {
            let what = format!(
                "client {c} had its donors compare all they hold, and block {block} of {donor} cannot be read"
            );
            return self.fail(what);
        }
        if let Some(rot) = left {
            self.fail(format!("client {c} had its donors compare all they hold, and {rot:?} is there still"));
        }
    }

    /// A client that holds its lease has set aside nobody but the dead, and those that have said goodbye.
    fn all_is_reachable(&mut self, c: usize) {
        let client = &self.clients[c];
        let Some(machine) = client.machine.as_ref().filter(|_| !self.has_ended(c)) else { return };
        let goes = |id: &DonorId| self.donors.iter().any(|donor| donor.id == *id && donor.leaving);
        let dead = |id: &DonorId| self.verdict.dead.contains_key(id) || self.verdict.away.contains(id);
        let gone = |id: &DonorId| dead(id) || goes(id);
        let wrong: Vec<String> =
            machine.lost().filter(|(id, _)| !gone(id)).map(|(id, why)| format!("{id}: {why}")).collect();
        let settled = machine.has_room();
        if !settled {
            self.fail(format!("client {c} does not serve after all healed"));
        } else if !wrong.is_empty() {
            self.fail(format!("client {c} cannot reach living donors after all healed: {wrong:?}"));
        }
    }

    /// Reads whatever was ever written, and the two ends.
    fn read_all(&mut self, c: usize) {
        let client = &self.clients[c];
        let (Some(machine), Some(volume)) = (&client.machine, client.volume) else { return };
        let (size, lost) = (machine.map().size, self.lost_to_rot(c));
        let mut ranges = self.oracle.touched(volume);
        ranges.extend([(0, size.min(4096)), (size.saturating_sub(4096), size)]);
        for (from, to) in ranges {
            let mut at = from;
            while at < to.min(size) && self.failure.is_none() {
                let mut len = (to.min(size) - at).min(PIECE_BYTES);
                // An error costs a request: what is beside a wrong block is asked for without it.
                let block = at / BLOCK_BYTES * BLOCK_BYTES;
                match lost.range(block..at + len).next() {
                    Some(wrong) if *wrong > at => len = wrong - at,
                    Some(_) => len = len.min(block + BLOCK_BYTES - at),
                    None => {}
                }
                let request = Request { op: Op::Read, offset: at, len: u32::try_from(len).expect("a piece") };
                self.submit(c, request);
                at += len;
                // Room for the next ones.
                self.pass(SECOND_NS / 100);
            }
        }
        self.submit(c, Request { op: Op::Flush, offset: 0, len: 0 });
    }

    /// A block that nothing gives back is right again once it was written as a whole.
    fn what_flipped_is_written(&mut self, attached: &[usize]) {
        let writers: Vec<usize> =
            attached.iter().copied().filter(|c| !self.clients[*c].read_only && !self.has_ended(*c)).collect();
        let lost: Vec<(usize, u64)> =
            writers.iter().flat_map(|c| self.lost_to_rot(*c).into_iter().map(|at| (*c, at))).collect();
        for op in [Op::Write, Op::Read] {
            for (c, offset) in &lost {
                let size = self.clients[*c].machine.as_ref().map_or(0, |machine| machine.map().size);
                let len = u32::try_from(BLOCK_BYTES.min(size - offset)).expect("a block");
                self.submit(*c, Request { op, offset: *offset, len });
                self.pass(SECOND_NS / 100);
            }
            if !lost.is_empty() {
                self.count("blocks that flipped and were written again");
                self.pass(40 * SECOND_NS);
            }
        }
        self.nothing_is_open();
    }

    fn volumes_are_known(&mut self, names: &[String]) {
        for name in names {
            self.admin(name, Call::Show { name: name.clone() });
        }
        self.pass(10 * SECOND_NS);
    }

    /// What changed last may still be on its way.
    fn donors_agree(&mut self) {
        for _ in 1..AGREE_TRIES {
            if self.first_disagreement().is_none() {
                return;
            }
            self.pass(SECOND_NS);
        }
        if let Some(what) = self.first_disagreement().filter(|_| self.failure.is_none()) {
            self.fail(what);
        }
    }

    /// What a living donor publishes is what the coordinator's records say, to the extent and lease.
    fn first_disagreement(&self) -> Option<String> {
        let mut wrong = Vec::new();
        // One that was told to go may not be gone yet.
        let member = |id: DonorId| match self.coordinator.store.get(&Key::Donor(id)) {
            Some(Record::Donor(record)) => !record.departed,
            _ => false,
        };
        let there = |donor: &DonorHost| donor.alive && member(donor.id);
        for (d, donor) in self.donors.iter().enumerate().filter(|(_, donor)| there(donor)) {
            let mut bytes = 0;
            for record in self.coordinator.store.values() {
                let Record::Volume(VolumeRecord { map, .. }) = record else { continue };
                let members = map.groups.iter().flat_map(|group| group.placements());
                let held: BTreeSet<u32> =
                    members.filter(|member| member.donor == donor.id).map(|member| member.extent).collect();
                bytes += held.len();
                for (token, read_only) in self.leases_of(map.volume) {
                    let export = export_name(&map.name, token, u64::MAX, donor.id);
                    let grant = match donor.access.open(&export, None) {
                        Err(_) if held.is_empty() => continue,
                        Ok(grant) if grant.writable != read_only => grant,
                        other => {
                            wrong.push(format!("donor {d} answers {export} with {other:?}"));
                            continue;
                        }
                    };
                    for extent in &held {
                        let at = u64::from(*extent) * EXTENT_BYTES;
                        if let Err(why) = donor.access.check(&grant, false, at, 1) {
                            wrong.push(format!("donor {d} denies extent {extent} of {}: {why:?}", map.name));
                        }
                    }
                }
            }
            let published = donor.access.volumes();
            let volumes = self.coordinator.store.values().filter(|record| match record {
                Record::Volume(VolumeRecord { map, .. }) => map.routes.contains_key(&donor.id),
                _ => false,
            });
            let expected = volumes.count();
            if published != expected {
                wrong
                    .push(format!("donor {d} publishes {published} volumes of {expected} ({bytes} extents)"));
            }
        }
        wrong.into_iter().next()
    }

    fn leases_of(&self, volume: VolumeId) -> Vec<(LeaseToken, bool)> {
        let leases = self.coordinator.store.iter().filter_map(|(key, record)| match (key, record) {
            (Key::Lease(token), Record::Lease(LeaseRecord { volume: of, read_only, .. }))
                if *of == volume =>
            {
                Some((*token, *read_only))
            }
            _ => None,
        });
        leases.collect()
    }

    fn all_is_wiped(&mut self) {
        let on_disk = |donor: &DonorHost| {
            donor.disk.as_ref().is_some_and(|disk| disk.journal.disk().blocks().next().is_some())
        };
        let holds = |donor: &DonorHost| !donor.memory.is_empty() || on_disk(donor);
        let dirty = self.donors.iter().position(|donor| donor.alive && holds(donor));
        if let Some(d) = dirty.filter(|_| self.failure.is_none()) {
            self.fail(format!("donor {d} still holds bytes of a volume that was deleted"));
        }
    }
}
