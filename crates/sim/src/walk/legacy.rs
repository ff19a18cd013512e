//! What one life leaves to the next: donors with what they hold, the map, and what is known of each block.
//!
//! Owns that, and what the coordinator does with an amendment. Never: what is on its way, which ends with a
//! life.
//! Tests: those of the walk.

use crate::bytes::{BLOCK, Kept, Memory};
use crate::plan::Layout;
use cheetah_core::api::Amend;
use cheetah_core::donor::Ledger;
use cheetah_core::limits::{BLOCK_BYTES, SECOND_NS};
use cheetah_core::map::{
    BadRange, DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap,
};
use cheetah_core::units::Time;
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    There,
    StillUntil(Time),
    Gone,
}

/// A donor's process, but for its connections.
#[derive(Clone, Debug)]
pub(super) struct Donor {
    pub(super) fate: Fate,
    pub(super) memory: Memory,
    pub(super) ledger: Ledger<Kept>,
}

/// What is known of a block: the version that was acknowledged, and those that may be there as well.
#[derive(Clone, Debug, Hash)]
pub(super) struct Truth {
    pub(super) known: u8,
    pub(super) maybe: BTreeSet<u8>,
}

/// What one life leaves to the next.
#[derive(Clone, Debug)]
pub(super) struct Legacy {
    pub(super) donors: Vec<Donor>,
    pub(super) map: VolumeMap,
    pub(super) blocks: Vec<Truth>,
    pub(super) version: u8,
    pub(super) fault_left: bool,
    /// The coordinator may yet start again, once.
    pub(super) restart_left: bool,
    pub(super) now: Time,
}

impl Legacy {
    pub(super) fn new(layout: Layout) -> Legacy {
        let width = u64::from(layout.data + layout.parity);
        let slot = |donor| Slot { held: Some(Placement { donor: DonorId(donor), extent: 0 }), filling: None };
        let route = |donor| {
            let name = format!("d{donor}");
            (DonorId(donor), Route { name, address: "127.0.0.1:1".into(), foreign_export: None })
        };
        let unit = u32::try_from(BLOCK_BYTES).expect("4 KiB");
        let map = VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            epoch: 1,
            size: u64::from(layout.data) * BLOCK_BYTES,
            redundancy: Redundancy { data: layout.data, parity: layout.parity },
            unit,
            groups: vec![Group { slots: (0..width).map(slot).collect() }],
            routes: (0..width).map(route).collect(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: None,
            proofs: None,
            encrypted: false,
            write_back: false,
            medium: Medium::Memory,
        };
        let donor = Donor { fate: Fate::There, memory: Memory::default(), ledger: Ledger::default() };
        let blocks = vec![Truth { known: 0, maybe: BTreeSet::new() }; layout.data as usize];
        let donors = vec![donor; layout.data as usize + layout.parity as usize];
        Legacy { donors, map, blocks, version: 0, fault_left: true, restart_left: true, now: SECOND_NS }
    }

    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for donor in &self.donors {
            let Donor { fate, memory, ledger } = donor;
            let still = if let Fate::StillUntil(until) = fate { until.saturating_sub(self.now) } else { 0 };
            (*fate == Fate::Gone, still, memory.get(0, BLOCK), memory.sums(0, BLOCK)).hash(&mut hasher);
            format!("{ledger:?}").hash(&mut hasher);
        }
        (&self.blocks, self.version, self.fault_left, self.restart_left).hash(&mut hasher);
        format!("{:?} {:?}", self.map.groups, self.map.bad).hash(&mut hasher);
        hasher.finish()
    }

    /// What the coordinator does with an amendment.
    pub(super) fn amend(&mut self, amend: &Amend) {
        let data = self.map.redundancy.data as usize;
        let before = (self.map.groups.clone(), self.map.bad.clone());
        for (at, group) in (0..).zip(&mut self.map.groups) {
            let goes = |slot: u32, held: &Placement| {
                let kept = amend.keep.iter().any(|kept| (kept.group, kept.slot) == (at, slot));
                !kept && amend.exclude.iter().any(|(donor, _)| *donor == held.donor)
            };
            let stays = |(slot, of): (u32, &Slot)| of.held.filter(|held| !goes(slot, held)).is_some();
            if (0..).zip(&group.slots).filter(|both| stays(*both)).count() >= data {
                for (slot, of) in (0..).zip(&mut group.slots) {
                    of.held = of.held.filter(|held| !goes(slot, held));
                }
            }
        }
        self.map.bad.extend(amend.bad.iter().copied());
        self.map.bad.retain(|bad| !amend.rewritten.iter().any(|anew: &BadRange| anew.covers(bad)));
        if before != (self.map.groups.clone(), self.map.bad.clone()) {
            self.map.epoch += 1;
        }
    }
}

pub(super) fn content(version: u8, block: usize) -> Vec<u8> {
    let byte = |sector: u8| version.wrapping_mul(37) ^ (block as u8 + 1).wrapping_mul(91) ^ sector;
    if version == 0 { vec![0; BLOCK] } else { (0..BLOCK as u8).map(byte).collect() }
}
