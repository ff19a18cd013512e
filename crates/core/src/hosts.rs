//! What goes when machines go: how many of them a volume can do without, and where one has too much of a
//! group.
//!
//! Owns the arithmetic over a map and the machine of each donor. Never: who is alive (for a donor that is
//! not, the caller names no machine), or where fragments go (`placement`, `coordinator::repair`).
//! Invariant: `may_lose` is exact: no set of so many machines takes data with it, and some set of one more
//! does. Called by `coordinator` for what it shows and for what it mends. Tests: below, against every set of
//! machines.

use crate::map::{DonorId, Group, VolumeMap};

/// How many machines may go at once, whichever they are, before data goes with them. `None`: some is lost as
/// it is.
pub fn may_lose<H: Copy + PartialEq>(map: &VolumeMap, host_of: impl Fn(DonorId) -> Option<H>) -> Option<u32> {
    let data = map.redundancy.data;
    let each = map.groups.iter().map(|group| group_may_lose(group, data, &host_of));
    each.min().flatten().filter(|_| map.bad.is_empty())
}

/// The most slots of one group on one machine, where that is more than one, and which it is; of a volume with
/// redundancy, for without it the machine does not matter.
pub fn crowd<H: Copy + PartialEq>(
    map: &VolumeMap,
    host_of: impl Fn(DonorId) -> Option<H>,
) -> Option<(u32, H)> {
    let groups = map.groups.iter().filter(|_| map.redundancy.parity > 0);
    let most = groups.flat_map(|group| by_host(group, &host_of).into_iter().max_by_key(|(slots, _)| *slots));
    most.max_by_key(|(slots, _)| *slots).filter(|(slots, _)| *slots > 1)
}

/// Those that have most of the group go first: whatever others there were, they would take less.
fn group_may_lose<H: Copy + PartialEq>(
    group: &Group,
    data: u32,
    host_of: impl Fn(DonorId) -> Option<H>,
) -> Option<u32> {
    let mut counts: Vec<u32> = by_host(group, host_of).into_iter().map(|(slots, _)| slots).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut spare = counts.iter().sum::<u32>().checked_sub(data)?;
    let mut hosts = 0;
    for slots in counts {
        let Some(left) = spare.checked_sub(slots) else { break };
        (spare, hosts) = (left, hosts + 1);
    }
    Some(hosts)
}

/// How many slots each machine holds; a group is too small for a map.
fn by_host<H: Copy + PartialEq>(group: &Group, host_of: impl Fn(DonorId) -> Option<H>) -> Vec<(u32, H)> {
    let mut counts: Vec<(u32, H)> = Vec::with_capacity(group.slots.len());
    for host in group.slots.iter().filter_map(|slot| host_of(slot.held?.donor)) {
        match counts.iter_mut().find(|(_, other)| *other == host) {
            Some((slots, _)) => *slots += 1,
            None => counts.push((1, host)),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::lost_ranges;
    use crate::limits::EXTENT_BYTES;
    use crate::map::{BadRange, Placement, Redundancy, Slot, VolumeId};
    use crate::seed::Seed;
    use std::collections::BTreeMap;

    fn map(redundancy: Redundancy, groups: Vec<Vec<Option<u64>>>) -> VolumeMap {
        let held = |donor: u64| Placement { donor: DonorId(donor), extent: 0 };
        let slot = |donor: Option<u64>| Slot { held: donor.map(held), filling: None };
        let group = |donors: Vec<Option<u64>>| Group { slots: donors.into_iter().map(slot).collect() };
        let groups: Vec<Group> = groups.into_iter().map(group).collect();
        VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            epoch: 1,
            size: groups.len() as u64 * u64::from(redundancy.data) * EXTENT_BYTES,
            redundancy,
            unit: 65536,
            groups,
            routes: BTreeMap::new(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: None,
            proofs: None,
            encrypted: false,
            write_back: false,
            medium: crate::map::Medium::Memory,
        }
    }

    /// The smallest number of machines, of all sets there are, with which bytes are lost.
    fn fewest(map: &VolumeMap, hosts: u32, host_of: impl Fn(DonorId) -> Option<u32>) -> u32 {
        let loses = |gone: u32| {
            let is_lost = |donor| host_of(donor).is_none_or(|host| gone & (1 << host) != 0);
            !lost_ranges(map, is_lost).is_empty()
        };
        (0..1 << hosts).filter(|gone| loses(*gone)).map(u32::count_ones).min().expect("without any")
    }

    #[test]
    fn no_set_of_so_many_machines_loses_anything_and_one_of_one_more_does() {
        let mut seed = Seed(33);
        for _ in 0..3_000 {
            let mut below = |most: u64| seed.draw() % most;
            let redundancy = Redundancy { data: 1 + below(4) as u32, parity: below(4) as u32 };
            let hosts = 1 + below(6) as u32;
            let host: Vec<Option<u32>> =
                (0..12).map(|_| (below(12) > 0).then(|| below(hosts.into()) as u32)).collect();
            let groups = (0..1 + below(3)).map(|_| {
                let mut donors: Vec<u64> = (0..12).collect();
                let slot = |_| {
                    let donor = donors.swap_remove(below(donors.len() as u64) as usize);
                    (below(12) > 0).then_some(donor)
                };
                (0..redundancy.width()).map(slot).collect()
            });
            let map = map(redundancy, groups.collect());
            let host_of = |donor: DonorId| host[donor.0 as usize];
            let fewest = fewest(&map, hosts, host_of);
            assert_eq!(may_lose(&map, host_of), fewest.checked_sub(1), "{map:?} on {host:?}");
        }
    }

    #[test]
    fn two_of_a_group_on_one_machine_are_seen() {
        let two = Redundancy { data: 2, parity: 1 };
        let map = map(two, vec![vec![Some(1), Some(2), Some(3)], vec![Some(1), Some(4), None]]);
        let apart = |donor: DonorId| Some(donor.0);
        assert_eq!((crowd(&map, apart), may_lose(&map, apart)), (None, Some(0)), "a slot is missing");
        let pairs = |donor: DonorId| Some(donor.0 / 2);
        assert_eq!((crowd(&map, pairs), may_lose(&map, pairs)), (Some((2, 1)), Some(0)));
        let dead = |donor: DonorId| pairs(donor).filter(|_| donor.0 != 3);
        assert_eq!(crowd(&map, dead), None, "what is gone crowds nobody");
        let stripe = VolumeMap { redundancy: Redundancy { data: 3, parity: 0 }, ..map.clone() };
        assert_eq!((crowd(&stripe, pairs), may_lose(&stripe, |_| Some(1))), (None, None));
        let bad = BadRange { group: 0, slot: 0, from: 0, to: 4096 };
        assert_eq!(may_lose(&VolumeMap { bad: vec![bad], ..map }, apart), None);
    }
}
