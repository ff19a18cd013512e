//! Each node's volume, where core's placement puts it, and where what was lost goes.
//!
//! Owns the maps. A volume has a few groups, so that a node has links to some tens of others and not to all.
//! Never: which nodes fail. Called by `world`; `default_redundancy` by the command. Tests: below.

use super::Unfit;
use crate::chance::Chance;
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap};
use cheetah_core::placement::{self, Room};

/// Of each volume.
const GROUPS: usize = 4;
/// Extents of a node beyond its share of the volumes: there a lost one is rebuilt.
const SPARE_EXTENTS: u32 = 4;

/// What core chooses for a volume of a pool of so many nodes, each a host of its own.
#[must_use]
pub fn default_redundancy(nodes: u32) -> Redundancy {
    const ROOMY: u32 = 1_024;
    let choice = placement::default_choice(Some(1), &rooms(nodes, ROOMY));
    choice.map_or(Redundancy::LINEAR, |choice| choice.redundancy)
}

/// The nodes, each a donor on a host of its own.
pub(crate) fn rooms(nodes: u32, extents_free: u32) -> Vec<Room> {
    let room = |at: u32| Room { donor: DonorId(at.into()), host: at, extents_free, extents_held: 0 };
    (0..nodes).map(room).collect()
}

/// A volume for each node, by the node's number.
pub(super) fn volumes(
    nodes: u32,
    redundancy: Redundancy,
    chance: &mut Chance,
) -> Result<Vec<VolumeMap>, Unfit> {
    let narrow = Unfit::Narrow { redundancy, nodes };
    let groups = GROUPS as u64 * u64::from(nodes);
    let share = GROUPS as u32 * redundancy.width() + SPARE_EXTENTS;
    let placed = placement::place(redundancy, groups, &rooms(nodes, share), chance.seed()).ok_or(narrow)?;
    let mut taken = vec![0; nodes as usize];
    let mut slot = |donor: &DonorId| {
        let extent = &mut taken[index(*donor)];
        *extent += 1;
        Slot::held(Placement { donor: *donor, extent: *extent - 1 })
    };
    let mut group = |donors: &Vec<DonorId>| Group { slots: donors.iter().map(&mut slot).collect() };
    // In the order of placement each would be on the nodes that are the next to be the emptiest.
    let of = |node: usize| placed.iter().skip(node).step_by(nodes as usize);
    let maps = (0..nodes as usize).map(|node| {
        let groups = of(node).map(&mut group).collect();
        map_of(node as u64, redundancy, groups)
    });
    Ok(maps.collect())
}

/// A volume of these groups.
pub(crate) fn map_of(volume: u64, redundancy: Redundancy, groups: Vec<Group>) -> VolumeMap {
    let donors = groups.iter().flat_map(Group::placements).map(|placement| placement.donor);
    VolumeMap {
        volume: VolumeId(volume),
        name: format!("v{volume}"),
        epoch: 1,
        size: groups.len() as u64 * u64::from(redundancy.data) * EXTENT_BYTES,
        redundancy,
        unit: redundancy.default_unit(),
        routes: donors.map(route).collect(),
        groups,
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Disk,
    }
}

fn route(donor: DonorId) -> (DonorId, Route) {
    let (name, address) = (format!("n{}", donor.0), String::new());
    (donor, Route { name, address, foreign_export: None })
}

pub(super) fn index(donor: DonorId) -> usize {
    usize::try_from(donor.0).unwrap_or(usize::MAX)
}

/// What the coordinator would do for this volume: each slot of a node that failed is given to the emptiest
/// one outside of its group. `held` counts each node's extents. How many slots there were.
pub(super) fn rehome(
    map: &mut VolumeMap,
    is_failed: impl Fn(DonorId) -> bool,
    held: &mut [u32],
) -> Result<u32, Unfit> {
    let mut moved = 0;
    for group in &mut map.groups {
        for at in 0..group.slots.len() {
            let Some(lost) = group.slots[at].held.filter(|held| is_failed(held.donor)) else { continue };
            let seen: Vec<DonorId> = group.placements().map(|placement| placement.donor).collect();
            let free = |node: &usize| {
                let donor = DonorId(*node as u64);
                !is_failed(donor) && !seen.contains(&donor)
            };
            let home = (0..held.len()).filter(free).min_by_key(|node| held[*node]).ok_or(Unfit::NoHome)?;
            let filling = Placement { donor: DonorId(home as u64), extent: held[home] };
            held[home] += 1;
            group.slots[at] = Slot { held: None, filling: Some(filling) };
            map.routes.extend([route(filling.donor)]);
            map.routes.remove(&lost.donor);
            moved += 1;
        }
    }
    // A node that failed may have had slots of several groups, and each took its route away.
    let donors: Vec<DonorId> = map.groups.iter().flat_map(Group::placements).map(|at| at.donor).collect();
    map.routes.extend(donors.into_iter().map(route));
    map.epoch += u64::from(moved > 0);
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_a_sound_volume_and_no_extent_is_given_twice() {
        for (nodes, redundancy) in [(1, "linear"), (2, "mirror:2"), (9, "parity:8+1"), (40, "parity:4+2")] {
            let redundancy = redundancy.parse().expect("a redundancy");
            let maps = volumes(nodes, redundancy, &mut Chance::new(1, 1)).expect("room");
            assert_eq!(maps.len(), nodes as usize);
            let mut all: Vec<Placement> = Vec::new();
            for map in &maps {
                map.check().expect("a sound map");
                all.extend(map.groups.iter().flat_map(Group::placements));
            }
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
        let wide = "parity:4+2".parse().expect("a redundancy");
        assert!(volumes(5, wide, &mut Chance::new(1, 1)).is_err());
    }

    #[test]
    fn what_was_lost_goes_outside_of_its_group() {
        let redundancy = "parity:4+1".parse().expect("a redundancy");
        let mut maps = volumes(8, redundancy, &mut Chance::new(1, 1)).expect("room");
        let mut held = vec![20; 8];
        let lost = DonorId(3);
        let moved: u32 =
            maps.iter_mut().map(|map| rehome(map, |donor| donor == lost, &mut held).expect("a home")).sum();
        assert_eq!(moved, 20, "what each node has");
        for map in &maps {
            map.check().expect("a sound map");
            assert!(map.donors().all(|donor| donor != lost));
        }
    }

    #[test]
    fn the_default_is_what_core_chooses() {
        let names = [1, 2, 3, 4, 10, 1_000].map(|nodes| default_redundancy(nodes).to_string());
        assert_eq!(names, ["linear", "mirror:2", "parity:2+1", "parity:2+1", "parity:8+1", "parity:8+1"]);
    }
}
