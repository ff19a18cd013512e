//! What goes wrong with a disk itself: blocks that cannot be read, no more room, and its end.
//!
//! Owns: when, on which disks, and what that excuses. Never: a donor's end for another cause (`power`), or
//! the disk (`disk`). Key rules: a block that cannot be read is healed where redundancy is, and an error
//! where none is, until it is written again; who has no room is passed over, and nothing else is lost by
//! that.

use crate::auths::fits;
use crate::bytes::BLOCK;
use crate::calls::Caller;
use crate::donor::DonorHost;
use crate::network::Node;
use crate::world::{Ev, World, say};
use cheetah_core::api::Call;
use cheetah_core::limits::{EXTENT_BLOCKS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, Placement, VolumeId};
use std::collections::BTreeSet;

/// Blocks beside each other that cannot be read.
const UNREADABLE_MAX: u64 = 16;

impl DonorHost {
    /// Whether a block is what its checksum says.
    pub(crate) fn has_right(&self, block: u64) -> bool {
        let Some(disk) = &self.disk else { return false };
        if disk.write_back.is_stale(block) {
            return false;
        }
        let found = disk.journal.disk().block(block);
        fits(disk.journal.noted(block), &disk.journal.auth(block), found.as_ref())
    }

    /// Blocks that cannot be read, and are not the zeros that they are taken for.
    fn unreadable(&self) -> impl Iterator<Item = u64> + '_ {
        self.disk.iter().flat_map(|disk| {
            let is_lost = |block: &u64| {
                disk.journal.noted(*block).is_data && disk.journal.disk().raw(*block) != [0; BLOCK]
            };
            disk.journal.disk().unreadable.iter().copied().filter(is_lost)
        })
    }
}

impl World {
    pub(crate) fn spoil_some_disk(&mut self) {
        let disks =
            (0..self.donors.len()).filter(|d| self.donors[*d].alive && self.donors[*d].disk.is_some());
        let disks: Vec<usize> = disks.collect();
        let Some(d) = self.rng.pick(&disks).filter(|d| self.may(*d)) else { return };
        match self.rng.below(10) {
            0..=4 if self.plan.reads_fail => self.spoil_blocks(d),
            5 if self.director.deaths < self.plan.deaths_max => {
                self.director.deaths += 1;
                self.count("fault: a disk that takes nothing any more");
                self.verdict.donor_in_trouble(self.donors[d].id, u64::MAX / 2);
                self.donors[d].disk.iter_mut().for_each(|disk| disk.journal.disk_mut().is_dead = true);
            }
            6..=8 if self.director.deaths < self.plan.deaths_max => {
                self.director.deaths += 1;
                let until = self.now + 20 * SECOND_NS;
                self.verdict.donor_in_trouble(self.donors[d].id, until);
                self.donors[d].disk.iter_mut().for_each(|disk| disk.doomed = true);
                self.at(until, Ev::DiskRecovers(self.donors[d].slot));
            }
            _ => {
                self.count("fault: a disk without room");
                self.verdict.full_disks.insert(self.donors[d].id);
                let until = self.now + self.rng.skewed(20 * MILLISECOND_NS, 10 * SECOND_NS);
                say!(self, "the disk of donor {d} takes no blocks");
                self.verdict.donor_in_trouble(self.donors[d].id, until);
                self.donors[d].disk.iter_mut().for_each(|disk| disk.journal.disk_mut().is_full = true);
                self.at(until, Ev::DiskRecovers(self.donors[d].slot));
            }
        }
    }

    /// What was for a while is over.
    pub(crate) fn disk_recovers(&mut self, slot: usize) {
        for donor in self.donors.iter_mut().filter(|donor| donor.slot == slot) {
            if let Some(disk) = &mut donor.disk {
                disk.doomed = false;
                disk.journal.disk_mut().is_full = false;
            }
        }
    }

    /// Some blocks beside each other cannot be read any more.
    fn spoil_blocks(&mut self, d: usize) {
        let id = self.donors[d].id;
        let held: Vec<(VolumeId, usize, usize, Placement)> = self.places_of(id);
        let Some((volume, group, slot, place)) = self.rng.pick(&held) else { return };
        let first = u64::from(place.extent) * EXTENT_BLOCKS;
        let Some(on_disk) = &mut self.donors[d].disk else { return };
        let disk = on_disk.journal.disk();
        let there: Vec<u64> =
            disk.blocks().filter(|block| (first..first + EXTENT_BLOCKS).contains(block)).collect();
        let Some(block) = self.rng.pick(&there) else { return };
        let end = (block + self.rng.range(1, UNREADABLE_MAX)).min(first + EXTENT_BLOCKS);
        on_disk.journal.disk_mut().unreadable.extend(block..end);
        self.count("fault: blocks of a disk that cannot be read");
        say!(self, "blocks {block}..{end} of donor {d} cannot be read: slot {slot} of group {group}");
        self.verdict.rotted.extend((block..end).map(|block| (volume, group, slot, block - first)));
    }

    /// What the donor holds, by the records.
    pub(crate) fn places_of(&self, id: DonorId) -> Vec<(VolumeId, usize, usize, Placement)> {
        let mut found = Vec::new();
        for map in self.stored_maps() {
            for (group, of) in map.groups.iter().enumerate() {
                let held =
                    of.slots.iter().enumerate().filter_map(|(slot, places)| Some((slot, places.held?)));
                let here = held.filter(|(_, held)| held.donor == id);
                found.extend(here.map(|(slot, held)| (map.volume, group, slot, held)));
            }
        }
        found
    }

    /// Donors of which blocks cannot be read that hold something.
    pub(crate) fn unreadable(&self) -> BTreeSet<DonorId> {
        let has = |donor: &&DonorHost| donor.unreadable().next().is_some();
        self.donors.iter().filter(has).map(|donor| donor.id).collect()
    }

    /// A block of one of these extents that cannot be read and holds something.
    pub(crate) fn first_unreadable(&self, held: &BTreeSet<(DonorId, u32)>) -> Option<(DonorId, u64)> {
        let of = |donor: &DonorHost| {
            let extent = |block: u64| u32::try_from(block / EXTENT_BLOCKS).unwrap_or(u32::MAX);
            let mut here = donor.unreadable().filter(|block| held.contains(&(donor.id, extent(*block))));
            Some((donor.id, here.next()?))
        };
        self.donors.iter().filter(|donor| donor.alive).find_map(of)
    }

    /// Writes that the disk had no room for are not what their blocks' checksums say.
    pub(crate) fn note_untaken(&mut self, d: usize, blocks: std::ops::Range<u64>) {
        self.count("writes that a disk had no room for");
        self.note_torn(self.donors[d].id, &blocks.collect::<Vec<u64>>());
    }

    /// Where a donor is told to go by its pool.
    pub(crate) fn ask_to_leave(&mut self, d: usize) {
        let call = Call::Leave { donor: self.donors[d].name.clone(), force: false };
        self.call(Caller::Admin, Node::Coordinator, call);
    }
}
