//! Bits that flip: in donors' memory, in the checksums that they keep beside it, and on their way.
//!
//! Owns: each flip, until nothing of it is left, what it excuses, and looking for what flipped where tools
//! ask. Never: putting one right, but for what was cut off on its way (see `right_what_is_cut_off`): whoever
//! takes a wrong byte for a right one has to be found. Key rule: a flip counts as one donor less in its
//! group, and no more; without redundancy it costs its block.

use crate::bytes::{BLOCK, SECTOR, sectors};
use crate::donor::DonorHost;
use crate::verdict::{Run, runs_of};
use crate::world::{World, say};
use crate::wounds::offset_of;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, VolumeId, VolumeMap};
use cheetah_core::volume::{Fragment, Key, Request};
use std::collections::BTreeSet;
use std::ops::Range;

/// So many requests of a hundred go where something flipped, in a run in which bits flip at rest.
const AIMED_PERCENT: u64 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flipped {
    Byte {
        wrong: u8,
        right: u8,
    },
    /// The checksum of a block that is right.
    Sum {
        wrong: u32,
    },
}

/// A bit that flipped in a donor's memory, or on its way there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rot {
    pub(crate) donor: usize,
    volume: VolumeId,
    group: usize,
    slot: usize,
    /// The sector of its memory.
    pub(crate) at: usize,
    what: Flipped,
    /// What brings it there, unless it came about there.
    pub(crate) part: Option<Key>,
    /// By then it has arrived.
    arrived: u64,
}

impl Rot {
    /// Whether it is there, and not taken for right.
    fn is_in(&self, donor: &DonorHost) -> bool {
        let is_so = match self.what {
            // Another may have written the same byte since.
            Flipped::Byte { wrong, .. } => donor.memory.get(self.at, 1) == [wrong],
            Flipped::Sum { wrong } => donor.memory.sums(self.at, 1) == [wrong],
        };
        is_so && (self.part.is_some() || donor.memory.verify(self.at, 1) == [false])
    }

    /// The block of its extent.
    fn block(&self) -> u64 {
        (self.at % sectors(EXTENT_BYTES) / BLOCK) as u64
    }
}

impl World {
    /// A bit of what is on its way from or to a donor changes, where this seed has such a network; `to`:
    /// where in the donor's memory it lands, and by what.
    pub(crate) fn flip_on_the_way(
        &mut self,
        c: usize,
        donor: DonorId,
        fragment: Fragment,
        to: Option<(u64, Key)>,
        data: &mut [u8],
    ) {
        let often = self.plan.flips_per_million;
        if often == 0 || data.is_empty() || self.director.healing || self.rng.below(1_000_000) >= often {
            return;
        }
        let Some(d) = self.donors.iter().position(|other| other.id == donor) else { return };
        let Some(volume) = self.clients[c].volume.filter(|_| self.may(d)) else { return };
        let at = self.rng.index(data.len());
        let Fragment { group, slot, local } = fragment;
        let (group, slot) = (group as usize, slot as usize);
        let right = data[at];
        data[at] ^= 1 << self.rng.below(8);
        self.count("fault: a bit flipped on the way");
        let (way, byte) = (if to.is_some() { "to" } else { "from" }, u64::from(local) + at as u64 * SECTOR);
        say!(self, "a bit flips on its way {way} donor {d}, byte {byte} of slot {slot} of group {group}");
        match to {
            Some((address, part)) => {
                self.verdict.rotted.insert((volume, group, slot, byte / BLOCK_BYTES));
                // Whatever holds it up on its way is over by then.
                let (arrived, at) = (self.now + 60 * SECOND_NS, sectors(address) + at);
                let what = Flipped::Byte { wrong: data[at - sectors(address)], right };
                let part = Some(part);
                self.director.rot.push(Rot { donor: d, volume, group, slot, at, what, part, arrived });
                self.look_at_rot();
            }
            None => self.verdict.link_is_slow(c, donor, self.now, self.now + SECOND_NS),
        }
    }

    /// A bit of what some donor holds changes by itself: of a block, or of the checksum that is kept of it.
    pub(crate) fn flip_at_rest(&mut self) {
        let Some(d) = self.some_donor() else { return };
        let held = self.places_of(self.donors[d].id);
        let Some((volume, group, slot, held)) = self.rng.pick(&held) else { return };
        let has_parity = self.stored_map(volume).is_some_and(|map| map.redundancy.parity > 0);
        if has_parity && !self.may_in(d, volume, group) {
            return;
        }
        let (begin, len) = (sectors(u64::from(held.extent) * EXTENT_BYTES), sectors(EXTENT_BYTES));
        let memory = &mut self.donors[d].memory;
        let blocks: Vec<usize> = memory.blocks().filter(|at| (begin..begin + len).contains(at)).collect();
        let Some(block) = self.rng.pick(&blocks) else { return };
        let (at, what) = if self.rng.percent(50) {
            let at = block + self.rng.index(BLOCK);
            let right = memory.get(at, 1)[0];
            let wrong = right ^ 1 << self.rng.below(8);
            memory.write(at, &[wrong]);
            self.count("fault: a bit flipped at rest");
            (at, Flipped::Byte { wrong, right })
        } else {
            let wrong = memory.flip_sum(block, 1 << self.rng.below(32));
            self.count("fault: a bit of a checksum flipped at rest");
            (block, Flipped::Sum { wrong })
        };
        say!(self, "a bit flips in donor {d}, sector {at}: slot {slot} of group {group}, {what:?}");
        let rot = Rot { donor: d, volume, group, slot, at, what, part: None, arrived: self.now };
        self.verdict.rotted.insert((volume, group, slot, rot.block()));
        self.director.rot.push(rot);
        self.look_at_rot();
    }

    /// Whose memory still has bits that nobody wrote.
    pub(crate) fn look_at_rot(&mut self) {
        let (donors, now) = (&self.donors, self.now);
        let may = |rot: &Rot| {
            let donor = &donors[rot.donor];
            donor.alive && (now < rot.arrived || rot.is_in(donor))
        };
        self.director.rot.retain(may);
        let flipped = self.director.rot.iter().map(|rot| (donors[rot.donor].id, rot.volume, rot.group));
        self.verdict.now_rotten(flipped.collect(), self.unreadable(), now);
    }

    /// What flipped on its way to this place is not there any more.
    pub(crate) fn arrived_well(&mut self, d: usize, range: Range<usize>) {
        let is_over = |rot: &Rot| rot.part.is_some() && range.contains(&rot.at);
        self.director.rot.retain(|rot| rot.donor != d || !is_over(rot));
    }

    /// What came is not what was sent: its blocks are wrong, until their client sends them again. One that
    /// does not has told its tool of an error, or has ended.
    pub(crate) fn note_disowned(&mut self, d: usize, volume: VolumeId, range: Range<usize>) {
        self.count("payloads that were not what was sent");
        let held = self.places_of(self.donors[d].id);
        for at in range.step_by(BLOCK) {
            let (extent, block) = (at / sectors(EXTENT_BYTES), at % sectors(EXTENT_BYTES) / BLOCK);
            let here = held.iter().filter(|(of, .., place)| *of == volume && place.extent as usize == extent);
            let places = here.map(|(_, group, slot, _)| (volume, *group, *slot, block as u64));
            self.verdict.rotted.extend(places);
        }
    }

    /// What landed of a write that is cut off, where nothing is kept of what it covered, is taken as it came:
    /// its client said what all of it is, and not what each block is. What was there, which may have been
    /// acknowledged, is gone, so an error in its place would be no better.
    pub(crate) fn right_what_is_cut_off(&mut self, d: usize, range: Range<usize>) {
        let memory = &mut self.donors[d].memory;
        let flipped = |rot: &&Rot| rot.donor == d && rot.part.is_some() && range.contains(&rot.at);
        for rot in self.director.rot.iter().filter(flipped) {
            if let Flipped::Byte { wrong, right } = rot.what
                && memory.get(rot.at, 1) == [wrong]
            {
                memory.write(rot.at, &[right]);
            }
        }
    }

    /// Where a tool goes that looks for what flipped.
    pub(crate) fn aim_at_rot(&mut self, c: usize) -> Option<u64> {
        if !self.plan.rots() || !self.rng.percent(AIMED_PERCENT) {
            return None;
        }
        let map = self.clients[c].machine.as_ref()?.map();
        let data = map.redundancy.data as usize;
        let column = |slot: usize| if data == 1 { 0 } else { slot };
        let here = self.director.rot.iter().filter(|rot| rot.volume == map.volume && column(rot.slot) < data);
        let places = here.map(|rot| offset_of(map, rot.group, column(rot.slot), rot.block() * BLOCK_BYTES));
        let places: Vec<u64> = places.filter(|at| *at < map.size).collect();
        let (block, size) = (self.rng.pick(&places)?, map.size);
        Some((block + self.rng.below(BLOCK_BYTES)).min(size - 1))
    }

    /// Blocks of a client's volume, by where they lie, that a bit flipped in and nobody has written since:
    /// of one without redundancy nothing gives them back.
    pub(crate) fn lost_to_rot(&self, c: usize) -> BTreeSet<u64> {
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else {
            return BTreeSet::new();
        };
        let (from, to) = ((map.volume, 0, 0, 0), (map.volume, usize::MAX, usize::MAX, u64::MAX));
        let rotted = self.verdict.rotted.range(from..=to).filter(|_| map.redundancy.parity == 0);
        let places = rotted.map(|(_, group, slot, block)| offset_of(map, *group, *slot, block * BLOCK_BYTES));
        places.filter(|at| *at < map.size).collect()
    }

    /// What is wrong somewhere at rest, of these extents.
    pub(crate) fn rot_left_in(&self, held: &BTreeSet<(DonorId, u32)>) -> Option<Rot> {
        let extent = |rot: &Rot| (rot.at as u64 * SECTOR / EXTENT_BYTES) as u32;
        let is_held = |rot: &Rot| held.contains(&(self.donors[rot.donor].id, extent(rot)));
        // Of what flipped on its way and was sent again, the same byte may have been written since.
        self.director.rot.iter().find(|rot| rot.part.is_none() && is_held(rot)).copied()
    }

    fn map_of(&self, c: usize) -> Option<&VolumeMap> {
        self.clients[c].machine.as_ref().map(|machine| machine.map())
    }

    pub(crate) fn has_rotted(&self, c: usize, request: Request) -> bool {
        let Some(map) = self.map_of(c) else { return false };
        let mut runs = runs_of(map, request.offset, request.len.into()).into_iter();
        let blocks = |run: &Run| run.from / BLOCK_BYTES..(run.from + run.len).div_ceil(BLOCK_BYTES);
        let rotted = |run: &Run, block| (map.volume, run.group, run.slot, block);
        runs.any(|run| blocks(&run).any(|block| self.verdict.rotted.contains(&rotted(&run, block))))
    }

    /// Whole blocks that were written again are right again.
    pub(crate) fn forget_rotted(&mut self, c: usize, request: Request) {
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return };
        for run in runs_of(map, request.offset, request.len.into()) {
            for block in run.from.div_ceil(BLOCK_BYTES)..(run.from + run.len) / BLOCK_BYTES {
                self.verdict.rotted.remove(&(map.volume, run.group, run.slot, block));
            }
        }
    }

    /// Whether a part of it is recorded as lost.
    pub(crate) fn is_recorded_bad(&self, c: usize, request: Request) -> bool {
        let Some(map) = self.map_of(c) else { return false };
        let narrow = |at: u64| u32::try_from(at).expect("inside an extent");
        runs_of(map, request.offset, request.len.into()).into_iter().any(|run| {
            let (from, to) = (narrow(run.from), narrow(run.from + run.len));
            let here = |bad: &BadRange| bad.reaches(run.group as u32, run.slot as u32, from, to);
            map.bad.iter().any(here)
        })
    }
}
