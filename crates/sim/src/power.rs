//! Donors of disks that end, and come back as the same donors with what their disks have; and power that
//! goes.
//!
//! Owns: who comes back, what becomes of a disk whose donor is let go, and the loss of power of a whole
//! pool: donors, clients and the coordinator at one moment. Never: what is on a disk (`disk`), or which
//! requests may fail meanwhile (`verdict`). Key rule: nothing is excused by it but that donors are away;
//! once they are back, all that was acknowledged is there.

use crate::bugs::Bug;
use crate::client::Phase;
use crate::donor::DonorHost;
use crate::on_disk::OnDisk;
use crate::workload::rows_of;
use crate::world::{Ev, World, say};
use crate::wounds::offset_of;
use cheetah_core::api::RefusalCode;
use cheetah_core::coordinator::{Key, Record, VolumeRecord};
use cheetah_core::disk::JournalError;
use cheetah_core::donor::{Event, Exit};
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BLOCKS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, Incarnation, Placement, Route, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::Request;
use std::ops::Range;

/// Of one run: each takes as long as a fault or two.
const OUTAGES_MAX: usize = 3;

/// What a donor that was away lost by the coordinator's records, for a planted bug.
#[derive(Debug)]
pub(crate) struct LostOnDisk {
    volume: VolumeId,
    group: usize,
    slot: usize,
    place: Placement,
    route: Route,
}

impl World {
    /// Whether what the donor had is on a disk, which may come back: its process has ended, or its machine.
    pub(crate) fn leaves_a_disk(&mut self, d: usize, process_only: bool) -> bool {
        let Some(on_disk) = &mut self.donors[d].disk else { return false };
        on_disk.ends(process_only, &mut self.rng);
        let stays = !on_disk.journal.disk().is_dead;
        if !stays {
            self.donors[d].disk = None;
        }
        stays
    }

    /// A disk that the pool let go is blank to it: lent again, it is a new donor.
    pub(crate) fn farewell(&mut self, d: usize, exit: &Exit) {
        let is_let_go = match exit {
            Exit::Dismissed => true,
            Exit::Refused(refusal) => refusal.code == RefusalCode::Gone,
            Exit::Terminated => false,
        };
        let id = self.donors[d].id;
        let secret = self.donors[d].secret();
        let Some(mut on_disk) = self.donors[d].disk.take_if(|_| is_let_go) else { return };
        // One that takes nothing any more is of no use to anybody.
        if let Err(error @ (JournalError::Holds | JournalError::Full)) = on_disk.journal.renew(id, secret) {
            self.fail(format!("the disk of donor {d}, which is let go, cannot be made anew: {error}"));
        }
    }

    /// Starts the donor of a disk again, if one is there at this address. Whether it is.
    pub(crate) fn come_back(&mut self, slot: usize) -> bool {
        let Some(last) = self.donors.iter().rposition(|donor| donor.slot == slot) else { return false };
        if self.donors[last].alive {
            return false;
        }
        let Some(on_disk) = self.donors[last].disk.take() else { return false };
        let DonorHost { id, extents, ref name, .. } = self.donors[last];
        let name = name.clone();
        let mut on_disk = match OnDisk::open(on_disk.journal.into_disk(), self.plan.disk_room) {
            Ok(on_disk) => on_disk,
            Err(what) => {
                self.fail(format!("donor {last}: {what}"));
                return true;
            }
        };
        self.count("donors that came back with their disks");
        match on_disk.torn() {
            Ok(torn) => self.note_torn(id, &torn),
            Err(block) => {
                self.fail(format!("block {block} of the disk of {id} is torn, and nobody wrote it"))
            }
        }
        if self.bug == Some(Bug::DiskBelieved) {
            self.believe_the_disk(id);
        }
        let d = self.donors.len();
        say!(self, "donor {d} ({id}) comes back with {:?}", on_disk.journal.held());
        let mut donor = DonorHost::new(id, slot, name, extents);
        donor.returned = true;
        donor.take_disk(on_disk, self.plan.log_max, Incarnation(d as u64));
        donor.hide_what_is_stale(self.bug == Some(Bug::StaleRegionBelieved));
        if donor.is_stale() {
            self.count("donors that came back with stale regions");
            self.verdict.stale.insert(id);
        }
        self.donors.push(donor);
        self.director.dark.remove(&slot);
        self.verdict.away.remove(&id);
        self.verdict.donor_in_trouble(id, self.now + SECOND_NS);
        (0..self.clients.len()).for_each(|c| self.note_unaware(c));
        self.step_donor(d, Event::Started);
        true
    }

    /// What was torn of writes that nobody was told of may be errors until it is written again.
    pub(crate) fn note_torn(&mut self, id: DonorId, torn: &[u64]) {
        let mut lost = Vec::new();
        for map in self.stored_maps() {
            for (group, of) in map.groups.iter().enumerate() {
                for (slot, places) in of.slots.iter().enumerate() {
                    let Some(held) = places.held.filter(|held| held.donor == id) else { continue };
                    let first = u64::from(held.extent) * EXTENT_BLOCKS;
                    let here = torn.iter().filter(|block| (first..first + EXTENT_BLOCKS).contains(block));
                    let slot = if map.redundancy.data == 1 { 0 } else { slot };
                    let at = |block: &u64| offset_of(map, group, slot, (block - first) * BLOCK_BYTES);
                    let is_data = slot < map.redundancy.data as usize;
                    lost.extend(here.filter(|_| is_data).map(|block| (map.volume, at(block))));
                }
            }
        }
        if !torn.is_empty() {
            self.count("disks of which blocks were torn");
            self.verdict.torn_disks.insert(id);
        }
        for at in lost {
            self.verdict.torn_blocks.entry(at).or_default().insert(id);
        }
    }

    /// Whether an error of a request of this client, submitted then, may come from blocks that were torn.
    fn meets_torn(&self, c: usize, map: &VolumeMap, bytes: Range<u64>, since: Time) -> bool {
        let first = bytes.start / BLOCK_BYTES * BLOCK_BYTES;
        let mut here =
            self.verdict.torn_blocks.range((map.volume, first)..(map.volume, bytes.end.max(first)));
        if map.redundancy.data > 1 || map.redundancy.parity == 0 {
            // Its row was under way as well: the others do not tell what it was.
            return here.next().is_some();
        }
        // Of copies one is enough, if it was there when the loss was recorded (`loss_is_right`).
        here.any(|((_, at), torn)| {
            let group = usize::try_from(at / map.group_bytes()).expect("a group");
            let local = u32::try_from(at % map.group_bytes()).expect("inside of an extent");
            if map.bad.iter().any(|bad| bad.reaches(group as u32, 0, local, local + BLOCK_BYTES as u32)) {
                return true;
            }
            let held = map.groups[group].slots.iter().filter_map(|slot| slot.held);
            let is_out = |donor: DonorId| self.verdict.may_be_passed_over(c, donor, since);
            held.map(|held| held.donor).all(|donor| torn.contains(&donor) || is_out(donor))
        })
    }

    /// What is recorded as lost of a volume on disks, no donor in reach has.
    pub(crate) fn loss_is_right(&mut self, map: &VolumeMap) {
        let Some(before) = self.stored_map(map.volume).filter(|_| !map.medium.is_memory()) else { return };
        let covers = |was: &BadRange, bad: &BadRange| {
            (was.group, was.slot) == (bad.group, bad.slot) && was.from <= bad.from && bad.to <= was.to
        };
        let is_new = |bad: &&BadRange| !before.bad.iter().any(|was| covers(was, bad));
        let copies = map.redundancy.data == 1;
        let has = |held: Placement, from: u32, to: u32| {
            let is_there = |donor: &&DonorHost| {
                let calm = !self.verdict.is_in_trouble(donor.id, self.now);
                donor.id == held.donor && donor.alive && calm && !donor.returned
            };
            let donor = self.donors.iter().find(is_there)?;
            let first = u64::from(held.extent) * EXTENT_BLOCKS;
            let blocks = first + u64::from(from) / BLOCK_BYTES..first + u64::from(to).div_ceil(BLOCK_BYTES);
            blocks.into_iter().all(|block| donor.has_right(block)).then_some(donor.id)
        };
        let wrong = map.bad.iter().filter(is_new).find_map(|bad| {
            let slots = &map.groups[bad.group as usize].slots;
            let slots = if copies { &slots[..] } else { &slots[bad.slot as usize..=bad.slot as usize] };
            let donor =
                slots.iter().filter_map(|slot| slot.held).find_map(|held| has(held, bad.from, bad.to))?;
            Some(format!("{bad:?} of volume {} is recorded as lost, and donor {donor} has it", map.name))
        });
        wrong.filter(|_| !self.plan.beyond).into_iter().for_each(|what| self.fail(what));
    }

    /// Whole blocks that were written again are right again.
    pub(crate) fn forget_torn(&mut self, volume: VolumeId, bytes: Range<u64>) {
        let first = bytes.start.next_multiple_of(BLOCK_BYTES);
        let end = bytes.end / BLOCK_BYTES * BLOCK_BYTES;
        self.verdict.torn_blocks.retain(|(of, at), _| *of != volume || !(first..end).contains(at));
    }

    /// A planted bug: what the records say that it lost while it was away it holds again.
    fn believe_the_disk(&mut self, id: DonorId) {
        let lost = std::mem::take(&mut self.director.lost_on_disk);
        let (of_it, others) = lost.into_iter().partition(|lost| lost.place.donor == id);
        self.director.lost_on_disk = others;
        let was_up = self.coordinator.machine.is_some();
        let of_it: Vec<LostOnDisk> = of_it;
        for LostOnDisk { volume, group, slot, place, route } in of_it {
            let known = self.coordinator.store.contains_key(&Key::Donor(id));
            let Some(Record::Volume(record)) = self.coordinator.store.get_mut(&Key::Volume(volume)) else {
                continue;
            };
            let map = &mut record.map;
            let slot = map.groups.get_mut(group).and_then(|of| of.slots.get_mut(slot));
            let Some(slot) = slot.filter(|slot| known && slot.held.is_none() && slot.filling.is_none())
            else {
                continue;
            };
            slot.held = Some(place);
            map.routes.insert(id, route);
            map.epoch += 10;
            self.count("disks believed that missed writes");
        }
        if was_up {
            self.coordinator_ends();
            self.coordinator_start();
        }
    }

    /// For that bug.
    pub(crate) fn note_lost_on_disk(&mut self, record: &Record) {
        let (Record::Volume(VolumeRecord { map, .. }), Some(Record::Volume(before))) =
            (record, self.coordinator.store.get(&record.key()))
        else {
            return;
        };
        for (group, (new, old)) in map.groups.iter().zip(&before.map.groups).enumerate() {
            for (slot, (new, old)) in new.slots.iter().zip(&old.slots).enumerate() {
                let away = |place: &Placement| self.verdict.away.contains(&place.donor);
                let Some(place) = old.held.filter(away).filter(|_| new.held.is_none()) else { continue };
                let Some(route) = before.map.routes.get(&place.donor).cloned() else { continue };
                let lost = LostOnDisk { volume: map.volume, group, slot, place, route };
                self.director.lost_on_disk.push(lost);
            }
        }
    }

    /// Whether a request needs blocks that were torn when a donor ended: those that it asks for, and where it
    /// writes a part of a row the rest of that.
    pub(crate) fn needs_torn(&self, c: usize, request: Request, since: Time) -> bool {
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return false };
        let bytes = if request.op.writes() {
            rows_of(map, request)
        } else {
            request.offset..request.offset + u64::from(request.len)
        };
        self.meets_torn(c, map, bytes, since)
    }

    /// Writes, as many at once as it may.
    fn write_much(&mut self, c: usize) {
        for _ in self.clients[c].slots.len()..self.plan.depth_max.min(16) {
            let request = self.pick_request(c);
            if request.op.writes() {
                self.note_tool_writes(c);
                self.submit(c, request);
            }
        }
    }

    /// Power goes in a while, if the pool can do without.
    pub(crate) fn power_fails(&mut self) {
        let has_memory = self.donors.iter().any(|donor| donor.alive && donor.disk.is_none());
        let busy = self.director.scene.is_some() || self.coordinator.stranger.is_some();
        if has_memory || busy || self.director.outages >= OUTAGES_MAX {
            return self.count("faults spared by the budget");
        }
        self.director.outages += 1;
        self.director.ends_at = self.director.ends_at.max(self.now + 40 * SECOND_NS);
        // Most likely in the middle of something.
        let writers = |c: &usize| {
            let client = &self.clients[*c];
            client.phase == Phase::Attached && !client.read_only && client.paused_until <= self.now
        };
        let writers: Vec<usize> = (0..self.clients.len()).filter(writers).collect();
        for c in writers {
            self.write_much(c);
        }
        let delay = self.rng.below(4 * self.plan.delay_ns + 8 * self.plan.disk_ns);
        self.after(delay, Ev::PowerLost);
    }

    pub(crate) fn lose_all_power(&mut self) {
        if self.director.healing || self.director.scene.is_some() {
            return;
        }
        say!(self, "the whole pool loses power");
        self.count("fault: the whole pool lost power");
        self.unflushed_may_be_lost();
        let alive: Vec<usize> = (0..self.clients.len()).filter(|c| self.clients[*c].alive).collect();
        alive.into_iter().for_each(|c| self.crash_client(c, true));
        for d in 0..self.donors.len() {
            if self.donors[d].alive {
                self.end_donor(d, false);
            } else if let Some(on_disk) = &mut self.donors[d].disk {
                on_disk.journal.disk_mut().lose_power(&mut self.rng);
            }
        }
        if self.coordinator.machine.is_some() {
            self.coordinator_ends();
            let down = self.rng.skewed(MILLISECOND_NS, 10 * SECOND_NS);
            self.verdict.coordinator_in_trouble(self.now + down);
            self.after(down, Ev::CoordinatorStart);
        }
        let mut slots: Vec<usize> = self.donors.iter().map(|donor| donor.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            let delay = self.rng.skewed(20 * MILLISECOND_NS, 15 * SECOND_NS);
            self.after(delay, Ev::Replace(slot));
        }
    }

    /// The disks that are still away come back, or some of them.
    pub(crate) fn disks_come_back(&mut self) {
        let all = self.rng.percent(70);
        let mut slots: Vec<usize> = self.donors.iter().map(|donor| donor.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            if all || self.rng.percent(50) {
                self.come_back(slot);
            }
        }
    }
}
