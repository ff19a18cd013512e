//! What redundancy promises, looked up in the donors' memories themselves.
//!
//! Owns: that an acknowledged write is on every slot that the coordinator's records call held, that fragments
//! fit together when all is at rest, that nothing is marked as half written after a clean end, and how much
//! may go wrong at once before the promises end (the budget of the faults). Never: faults, or a machine's
//! state.

use crate::bytes::{BLOCK, SECTOR, sectors};
use crate::client::Slot;
use crate::donor::DonorHost;
use crate::oracle::written;
use crate::verdict::{Run, is_short_in, runs_of};
use crate::world::World;
use crate::wounds::offset_of;
use cheetah_core::code::{Code, combine};
use cheetah_core::coordinator::{Record, VolumeRecord};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, Group, Placement, VolumeId, VolumeMap};
use cheetah_core::volume::Op;
use std::collections::BTreeSet;

impl World {
    /// The volumes as the coordinator has stored them.
    pub(crate) fn stored_maps(&self) -> impl Iterator<Item = &VolumeMap> {
        self.coordinator.store.values().filter_map(|record| match record {
            Record::Volume(VolumeRecord { map, .. }) => Some(map),
            _ => None,
        })
    }

    pub(crate) fn stored_map(&self, volume: VolumeId) -> Option<&VolumeMap> {
        self.stored_maps().find(|map| map.volume == volume)
    }

    /// A donor's memory at a placement, if it lives and has heard that it holds that.
    fn held_bytes(&self, volume: VolumeId, placement: Placement, from: u64, len: u64) -> Option<Vec<u8>> {
        // One that says goodbye wipes what it had.
        let there = |donor: &&DonorHost| donor.id == placement.donor && donor.alive && !donor.leaving;
        let donor = self.donors.iter().find(there)?;
        donor.access.owner(placement.extent).filter(|owner| *owner == volume)?;
        let at = u64::from(placement.extent) * EXTENT_BYTES + from;
        // What it may have lost nobody is given.
        let is_older = !donor.stale_in(at, len).is_empty();
        (!is_older).then(|| donor.bytes(sectors(at), sectors(len)))
    }

    /// An acknowledged write is on every slot of its groups that the records call held.
    pub(crate) fn check_holders(&mut self, c: usize, slot: &Slot) -> Result<(), String> {
        let client = &self.clients[c];
        let (request, Some(version), Some(volume)) = (slot.request, slot.version, client.volume) else {
            return Ok(());
        };
        let end = request.offset + u64::from(request.len);
        let long = u64::from(request.len) > (16 << 20);
        // Bits that flip in a donor's memory are put right when somebody reads them.
        if long || self.plan.rots() || !self.oracle.is_alone(volume, version, request.offset, end) {
            return Ok(());
        }
        let Some(map) = self.stored_map(volume).filter(|map| map.redundancy.parity > 0) else {
            return Ok(());
        };
        let quiet = client.slots.values().all(|slot| slot.version.is_none());
        let quiet = quiet && !self.verdict.torn.contains(&volume);
        let bytes = match request.op {
            Op::Write => written(version, request.offset, end),
            _ => vec![0; sectors(u64::from(request.len))],
        };
        for run in runs_of(map, request.offset, request.len.into()) {
            let bytes = &bytes[sectors(run.payload)..sectors(run.payload + run.len)];
            self.check_run(c, map, run, bytes, quiet)?;
        }
        self.count("acknowledged writes found on their holders");
        Ok(())
    }

    fn check_run(
        &self,
        c: usize,
        map: &VolumeMap,
        run: Run,
        bytes: &[u8],
        quiet: bool,
    ) -> Result<(), String> {
        let Run { group, slot, from, len, .. } = run;
        let slots = &map.groups[group].slots;
        let data = map.redundancy.data as usize;
        let copies = if data == 1 { 0..slots.len() } else { slot..slot + 1 };
        // A bit may have flipped on that way: its donor's answer tells.
        let (flips, memory) = (self.plan.corrupts(), &self.clients[c].memory);
        let is_healed = |at: usize| flips && memory.is_writing(group, at, from, len);
        for at in copies {
            let Some(held) = slots[at].held else { continue };
            let found = self.held_bytes(map.volume, held, from, len).filter(|_| !is_healed(at));
            let differs = |found: Vec<u8>| found.iter().zip(bytes).position(|(found, wrote)| found != wrote);
            if let Some(differs) = found.and_then(differs) {
                let byte = from + differs as u64 * SECTOR;
                return Err(format!(
                    "it is acknowledged, and slot {at} of group {group}, held by donor {}, does not have it at {byte}",
                    held.donor
                ));
            }
        }
        if data == 1 || !quiet || (0..slots.len()).any(is_healed) {
            return Ok(());
        }
        self.fits(map, group, from, len).map_err(|what| format!("it is acknowledged, and {what}"))
    }

    /// Whether parity is what the data says, as far as donors live.
    fn fits(&self, map: &VolumeMap, group: usize, from: u64, len: u64) -> Result<(), String> {
        let slots = &map.groups[group].slots;
        let data = map.redundancy.data as usize;
        let held = |slot: &cheetah_core::map::Slot| self.held_bytes(map.volume, slot.held?, from, len);
        let Some(lanes) = slots[..data].iter().map(held).collect::<Option<Vec<_>>>() else { return Ok(()) };
        let lanes: Vec<&[u8]> = lanes.iter().map(Vec::as_slice).collect();
        let code = Code::new(map.redundancy);
        for (number, slot) in (0u32..).zip(&slots[data..]) {
            let Some(found) = held(slot) else { continue };
            let coefficients: Vec<u8> =
                (0..map.redundancy.data).map(|d| code.coefficient(number, d)).collect();
            let mut should = vec![0; found.len()];
            combine(&coefficients, &lanes, &mut [&mut should], false);
            if let Some(at) = should.iter().zip(&found).position(|(a, b)| a != b) {
                return Err(format!(
                    "parity {number} of group {group} does not fit its data at {} of the extent",
                    from + at as u64 * SECTOR
                ));
            }
        }
        Ok(())
    }

    /// Everything is at rest: every fragment follows from the others.
    pub(crate) fn all_fits(&mut self) {
        let mut checked = 0;
        let mut wrong = None;
        // What a writer left half written is mended before the volume is served again.
        let excused = |id: &VolumeId| self.verdict.beyond.contains(id) || self.verdict.torn.contains(id);
        let covered = |map: &&VolumeMap| map.redundancy.parity > 0 && !excused(&map.volume);
        for map in self.stored_maps().filter(covered) {
            for (number, group) in map.groups.iter().enumerate() {
                let used = group_used(map, number);
                for at in self.present(group.placements()) {
                    if at * SECTOR < used {
                        checked += 1;
                        let result = self.fits(map, number, at * SECTOR, BLOCK as u64 * SECTOR);
                        wrong = wrong.or(result.err().map(|what| format!("volume {}: {what}", map.name)));
                    }
                }
            }
        }
        if checked > 0 {
            self.count("volumes whose fragments were compared at the end");
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// Blocks of the extents that any of their donors has, in sectors from their start.
    fn present(&self, placements: impl Iterator<Item = Placement>) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for placement in placements {
            let Some(donor) = self.donors.iter().find(|donor| donor.id == placement.donor && donor.alive)
            else {
                continue;
            };
            let start = sectors(u64::from(placement.extent) * EXTENT_BYTES);
            let end = start + sectors(EXTENT_BYTES);
            let inside = donor.memory.blocks().filter(|at| (start..end).contains(at));
            found.extend(inside.map(|at| (at - start) as u64));
        }
        found
    }

    /// A client ended in order: no donor that it reached remembers anything as half written.
    pub(crate) fn note_clean_end(&mut self, c: usize) {
        let client = &self.clients[c];
        let (Some(machine), Some(volume)) = (&client.machine, client.volume) else { return };
        let map = machine.map();
        let ended = client.token.is_none_or(|token| self.verdict.lease_ended.contains(&token));
        let excused = self.verdict.torn.contains(&volume) || self.verdict.beyond.contains(&volume);
        // Rows that wait for a donor that is stopped stay half written.
        let waits = self.wounds.is_accounted(volume) && self.waits_for_some_donor(map);
        if waits && !client.read_only && !ended && !excused {
            self.verdict.torn.insert(volume);
            return;
        }
        if client.read_only || map.redundancy.parity == 0 || ended || excused {
            return;
        }
        let held: Vec<Placement> =
            map.groups.iter().flat_map(|group| &group.slots).filter_map(|slot| slot.held).collect();
        let since = self.now;
        // One that ends before it serves leaves what it had to resync to the next.
        let serves = machine.has_room();
        let reached = |donor: DonorId| {
            serves && !self.verdict.may_be_passed_over(c, donor, since) && self.has_met(c, donor)
        };
        // Of disks one that has ended is still a holder. What it cannot be told the others keep marked,
        // and it comes back with marks of its own, which say of no write that it is complete: to the next
        // writer rows are in doubt that fit.
        let away = |donor: &DonorHost| donor.disk.is_some() && self.verdict.is_in_trouble(donor.id, since);
        // Likewise rows with blocks that are torn on every disk: they stay in doubt until they are written.
        let is_torn = self.verdict.torn_blocks.range((volume, 0)..=(volume, u64::MAX)).next().is_some();
        let waits = !map.medium.is_memory()
            && (is_torn || held.iter().any(|held| !reached(held.donor)) || self.donors.iter().any(away));
        let (mut dirty, mut unsettled) = (None, waits);
        for placement in &held {
            let Some(donor) = self.donors.iter().find(|donor| donor.id == placement.donor && donor.alive)
            else {
                continue;
            };
            let start = u64::from(placement.extent) * EXTENT_BYTES;
            donor.dirty.runs(start, EXTENT_BYTES, |len, marked| match reached(placement.donor) {
                _ if !marked => {}
                true if !waits => dirty = Some((placement.donor, len)),
                _ => unsettled = true,
            });
        }
        let (groups, redundancy) = (map.groups.clone(), map.redundancy);
        self.count("volumes detached in order");
        if unsettled {
            // One that could not be told may have half of it, as far as the next writer knows: who compares
            // one fragment more than the data finds that it is whole.
            self.verdict.torn.insert(volume);
            let out = |donor: DonorId| self.verdict.is_in_trouble(donor, since);
            let can_compare = |group: &Group| {
                let held = group.slots.iter().filter_map(|slot| slot.held);
                held.filter(|held| !out(held.donor)).count() > redundancy.data as usize
            };
            if !groups.iter().all(can_compare) {
                self.note_torn_end(c);
            }
        }
        if let Some((donor, len)) = dirty {
            self.fail(format!(
                "client {c} finished, and donor {donor} still marks {len} bytes as written lately"
            ));
        }
    }

    /// Whether it ever was let in by the process that its donor has now. Who owes nothing on a connection
    /// whose other end lost its power does not find out.
    fn has_met(&self, c: usize, donor: DonorId) -> bool {
        let now = self.donors.iter().rposition(|other| other.id == donor);
        let is_disk = now.is_some_and(|d| self.donors[d].disk.is_some());
        let mut conns = self.network.conns.values();
        !is_disk || conns.any(|conn| conn.client == c && conn.donor == now && conn.grant.is_some())
    }

    fn waits_for_some_donor(&self, map: &VolumeMap) -> bool {
        let mut held = map.groups.iter().flat_map(|group| &group.slots).filter_map(|slot| slot.held);
        // One that was lost with its host is silent: nobody knows that it does not come back.
        let silent =
            |id: DonorId| self.verdict.dead.contains_key(&id) || self.verdict.is_in_trouble(id, self.now);
        held.any(|held| silent(held.donor))
    }

    /// What the records call lost was half written when a writer and a donor ended, and nothing else is.
    pub(crate) fn losses_are_accounted(&mut self) {
        let mut wrong = None;
        for map in self.stored_maps().filter(|map| map.redundancy.parity > 0) {
            let volume = map.volume;
            let half = self.verdict.half_written.iter().any(|(other, _)| *other == volume);
            if !self.wounds.has(volume) || self.verdict.beyond.contains(&volume) || half {
                continue;
            }
            for bad in map.bad.iter().filter(|bad| bad.slot < map.redundancy.data) {
                let (group, slot) = (bad.group as usize, bad.slot as usize);
                let blocks = (u64::from(bad.from)..u64::from(bad.to)).step_by(BLOCK * SECTOR as usize);
                let mut places = blocks.map(|local| offset_of(map, group, slot, local));
                if let Some(at) = places.find(|at| !self.wounds.may_be_lost(volume, *at)) {
                    wrong = wrong.or(Some(format!(
                        "the block at {at} of volume {} is recorded as lost ({bad:?}): it was not half written, or its donor came back",
                        map.name
                    )));
                }
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// Where no bit flips, nobody counts wrong blocks of anybody.
    pub(crate) fn nobody_is_blamed(&mut self, c: usize) {
        let Some(machine) = self.clients[c].machine.as_ref().filter(|_| !self.plan.corrupts()) else {
            return;
        };
        let report = machine.report();
        let torn = &self.verdict.torn_disks;
        if let Some((donor, blocks)) = report.corrupt_blocks.iter().find(|(donor, _)| !torn.contains(donor)) {
            self.fail(format!(
                "client {c} counts {blocks} wrong blocks of donor {donor}, whose memory is right"
            ));
        } else if report.compare_mismatches > 0 {
            self.fail(format!("client {c} found {} rows that do not fit", report.compare_mismatches));
        }
    }

    /// The volumes that have less than they need when this donor gets into trouble now. One with rows that
    /// may not fit together, because its writer died, cannot do without any donor until that is mended.
    pub(crate) fn beyond_by(&self, donor: Option<DonorId>) -> Vec<VolumeId> {
        self.beyond_by_in(|other, _| Some(other) == donor)
    }

    /// `more`: who gets into trouble, and in which group of a volume.
    pub(crate) fn beyond_by_in(&self, more: impl Fn(DonorId, (VolumeId, usize)) -> bool) -> Vec<VolumeId> {
        let short = |map: &&VolumeMap| {
            let mends = self.verdict.torn.contains(&map.volume) || self.wounds.is_accounted(map.volume);
            let frail = map.redundancy.data > 1 && mends;
            (0..map.groups.len()).any(|group| {
                let place = (map.volume, group);
                let out = |other: DonorId| more(other, place) || self.is_out_in(other, place);
                is_short_in(map, group, out) || (frail && lacks_some(&map.groups[group], out))
            })
        };
        self.stored_maps()
            .filter(|map| map.redundancy.parity > 0)
            .filter(short)
            .map(|map| map.volume)
            .collect()
    }

    fn is_out_in(&self, donor: DonorId, place: (VolumeId, usize)) -> bool {
        self.verdict.is_in_trouble_in(donor, place, self.now)
    }

    /// A writer that ends in the middle of things while a donor is missing: parity cannot make up for both.
    pub(crate) fn note_torn_end(&mut self, c: usize) {
        let Some(volume) = self.clients[c].volume else { return };
        if self.verdict.torn.contains(&volume) && self.beyond_if_torn().contains(&volume) {
            self.count("volumes taken beyond their redundancy by a writer's end");
            self.verdict.beyond.insert(volume);
        }
    }

    /// The volumes that would lose data if their writer died now: parity does not cover both at once.
    pub(crate) fn beyond_if_torn(&self) -> Vec<VolumeId> {
        let lacks = |map: &&VolumeMap| {
            let mut groups = map.groups.iter().enumerate();
            groups.any(|(group, of)| lacks_some(of, |donor| self.is_out_in(donor, (map.volume, group))))
        };
        let with_parity =
            self.stored_maps().filter(|map| map.redundancy.parity > 0 && map.redundancy.data > 1);
        with_parity.filter(lacks).map(|map| map.volume).collect()
    }
}

/// Whether a slot has no holder, or one that is out.
pub(crate) fn is_degraded(map: &VolumeMap, out: impl Fn(DonorId) -> bool) -> bool {
    map.groups.iter().any(|group| lacks_some(group, &out))
}

fn lacks_some(group: &Group, out: impl Fn(DonorId) -> bool) -> bool {
    group.slots.iter().any(|slot| slot.held.is_none_or(|held| out(held.donor)))
}

/// Bytes of each extent of a group that the volume reaches.
fn group_used(map: &VolumeMap, group: usize) -> u64 {
    let begin = group as u64 * map.group_bytes();
    let left = (map.size - begin).min(map.group_bytes());
    let (k, unit) = (u64::from(map.redundancy.data), u64::from(map.unit));
    if k == 1 {
        return left.next_multiple_of(4096);
    }
    let (rows, rest) = (left / (k * unit), left % (k * unit));
    rows * unit + rest.min(unit).next_multiple_of(4096)
}
