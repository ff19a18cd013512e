//! What a volume wants of the donors that it is placed on, and which of them have it.
//!
//! Owns that choice of donors. Never: which of these get what (`placement`). Invariant: memory and disk are
//! not mixed in one volume, and nothing new is given to a donor that may be gone. Called by `volumes`.
//! Tests: `tests/coordinator_placement.rs`, `tests/coordinator_volumes.rs`.

use super::Coordinator;
use super::donors::Donor;
use crate::api::Refusal;
use crate::map::{Medium, VolumeId, VolumeMap};
use crate::placement::Room;
use crate::units::show_count;
use std::collections::BTreeMap;

/// What the donors of a volume have to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    /// It has a source behind it: they tell what is absent from zeros.
    pub(super) is_backed: bool,
    /// They keep nonce and authentication tag beside each block.
    pub(super) encrypted: bool,
    /// They lend this.
    pub(super) on: Medium,
}

impl Wants {
    /// For more of a volume that is there, which has no source.
    pub(super) fn of(map: &VolumeMap) -> Wants {
        Wants { is_backed: false, encrypted: map.encrypted, on: map.medium }
    }
}

/// How a machine lends more.
pub(super) fn lend(on: Medium) -> &'static str {
    match on {
        Medium::Memory => "cheetah donate SIZE",
        Medium::Disk => "cheetah donate --disk PATH:SIZE",
    }
}

impl Donor {
    /// Its disk was made by a version that left no place for authentication tags.
    pub(super) fn lacks_auths(&self) -> bool {
        !(self.record.medium.is_memory() || self.record.keeps_auths)
    }
}

impl Coordinator {
    /// Why a volume that wants this finds no room, if disks of an earlier version are a reason.
    pub(super) fn or_lend_anew(&self, wants: Wants, refusal: Refusal) -> Refusal {
        let is_one = |donor: &&Donor| donor.alive && donor.record.medium == wants.on && donor.lacks_auths();
        let old = self.donors.values().filter(is_one).map(|donor| donor.record.name.as_str());
        let old: Vec<&str> = if wants.encrypted { old.collect() } else { Vec::new() };
        let Some(first) = old.first() else { return refusal };
        let message = format!(
            "{}. The disks of {} were lent first with an earlier version of Cheetah, and have no place for the \
             authentication tags of an encrypted volume: `cheetah leave {first}` empties such a disk, and lent again it \
             has one",
            refusal.message,
            show_count(old.len() as u64, "donor")
        );
        Refusal { message, ..refusal }
    }

    /// Donors that live for certain and stay, in the order they joined: what each may be given of a volume
    /// that wants this.
    pub(super) fn rooms(&self, volume: Option<VolumeId>, wants: Wants) -> Vec<Room> {
        let Wants { is_backed, encrypted, on } = wants;
        let is_open = |donor: &&Donor| {
            let tells = !(is_backed || encrypted) || donor.record.foreign_export.is_none();
            let tells = tells && !(encrypted && donor.lacks_auths());
            let blank = volume.is_none_or(|volume| donor.has_wiped(volume));
            donor.record.medium == on && donor.alive && donor.heard && !donor.record.leaving && blank && tells
        };
        let mut open: Vec<&Donor> = self.donors.values().filter(is_open).collect();
        open.sort_by_key(|donor| donor.record.join);
        let mut hosts: BTreeMap<&str, u32> = BTreeMap::new();
        let mut rooms = Vec::with_capacity(open.len());
        for donor in open {
            let next = hosts.len() as u32;
            let host = *hosts.entry(donor.machine()).or_insert(next);
            let protected = |id: &VolumeId| self.volumes.get(id).is_some_and(|v| v.map.redundancy.parity > 0);
            let held = donor.held.iter().filter(|(id, _)| protected(id)).map(|(_, held)| held.len());
            rooms.push(Room {
                donor: donor.record.donor,
                host,
                extents_free: donor.room(),
                extents_held: u32::try_from(held.sum::<usize>()).unwrap_or(u32::MAX),
            });
        }
        rooms
    }
}
