//! Where the groups of a volume go: which donors, never which extent of them.
//!
//! Owns the choice for `linear` (fill donors in the order they joined) and for wider groups (the hosts, and on
//! them the donors, with the most free extents, ties broken by a seed), the largest volume that fits, and the
//! default redundancy. Never: state, or who is alive; the coordinator hands in the rooms of live donors only.
//! Invariants: the slots of a group lie on different donors, on different hosts when there are as many as slots
//! and otherwise on as many as can be; and a request that `groups_max` admits is placed.
//! Called by `coordinator` on create and grow. Tests: properties below.

use crate::map::{DonorId, Redundancy};
use std::collections::{BTreeMap, BinaryHeap};

/// The most data fragments that the default picks.
pub const DEFAULT_DATA_MAX: u32 = 8;

/// A stream of numbers from one seed (splitmix64): placement ties, identities, lease tokens.
#[derive(Clone, Debug)]
pub struct Seed(pub u64);

impl Seed {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// What one live donor has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub donor: DonorId,
    /// The machine: the same number for donors that would go with one power cord.
    pub host: u32,
    pub extents_free: u32,
}

/// The free extents of the donors, by host. A host that is full counts: that others have to do without it does not
/// make it safe to put two slots of a group on one of them.
fn by_host(rooms: &[Room]) -> BTreeMap<u32, Vec<(u32, DonorId)>> {
    let mut hosts: BTreeMap<u32, Vec<(u32, DonorId)>> = BTreeMap::new();
    for room in rooms {
        hosts.entry(room.host).or_default().push((room.extents_free, room.donor));
    }
    hosts
}

/// How many slots of a group one host may get: 1 when there are hosts enough, otherwise as few as must be.
fn host_slots_max(width: u32, hosts: &BTreeMap<u32, Vec<(u32, DonorId)>>) -> u64 {
    let reach = |most: usize| hosts.values().map(|donors| donors.len().min(most)).sum::<usize>();
    (1..width).find(|most| reach(*most as usize) >= width as usize).unwrap_or(width).into()
}

/// How many groups of `width` different donors fit.
#[must_use]
pub fn groups_max(width: u32, rooms: &[Room]) -> u64 {
    let width = width.max(1);
    let hosts = by_host(rooms);
    let most = host_slots_max(width, &hosts);
    let width = u64::from(width);
    // With g groups a donor gives at most g extents and a host at most `most` * g, so g groups fit when those sum
    // to width * g.
    let of_host = |donors: &Vec<(u32, DonorId)>, groups: u64| {
        donors.iter().map(|(free, _)| u64::from(*free).min(groups)).sum::<u64>().min(most * groups)
    };
    let fits =
        |groups: u64| hosts.values().map(|donors| of_host(donors, groups)).sum::<u64>() >= width * groups;
    let free: u64 = rooms.iter().map(|room| u64::from(room.extents_free)).sum();
    let (mut low, mut high) = (0, free / width);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// The donors of each of `groups` groups, or `None` when they do not fit. `rooms` in the order of joining.
#[must_use]
pub fn place(
    redundancy: Redundancy,
    groups: u64,
    rooms: &[Room],
    seed: &mut Seed,
) -> Option<Vec<Vec<DonorId>>> {
    if groups > groups_max(redundancy.width(), rooms) {
        return None;
    }
    let count = usize::try_from(groups).ok()?;
    if redundancy == Redundancy::LINEAR {
        let each = rooms.iter().flat_map(|room| (0..room.extents_free).map(|_| vec![room.donor]));
        return Some(each.take(count).collect());
    }
    let hosts = by_host(rooms);
    let most = host_slots_max(redundancy.width(), &hosts);
    let scattered = scatter(redundancy.width(), count, most, &hosts, seed);
    scattered.or_else(|| wrap(redundancy.width(), count, most, &hosts))
}

/// A host while groups are placed: its extents left, and its donors, the emptiest on top.
struct Host {
    left: u64,
    donors: BinaryHeap<(u32, u64, DonorId)>,
    /// Already in the group of now.
    used: Vec<(u32, DonorId)>,
}

/// Group after group on the hosts with the most left: level, and each donor with many others. With a slot per
/// host this reaches `groups_max`; with more it may not, and then says so.
fn scatter(
    width: u32,
    groups: usize,
    most: u64,
    hosts: &BTreeMap<u32, Vec<(u32, DonorId)>>,
    seed: &mut Seed,
) -> Option<Vec<Vec<DonorId>>> {
    let mut hosts: Vec<Host> = hosts
        .values()
        .map(|donors| {
            let open = donors.iter().filter(|(free, _)| *free > 0);
            let left = open.clone().map(|(free, _)| u64::from(*free)).sum();
            let donors = open.map(|(free, donor)| (*free, seed.draw(), *donor)).collect();
            Host { left, donors, used: Vec::new() }
        })
        .collect();
    let open = hosts.iter().enumerate().filter(|(_, host)| host.left > 0);
    let mut heap: BinaryHeap<(u64, u64, usize)> =
        open.map(|(at, host)| (host.left, seed.draw(), at)).collect();
    let mut placed = Vec::with_capacity(groups);
    for _ in 0..groups {
        let mut group = Vec::with_capacity(width as usize);
        let mut touched = Vec::new();
        // A host's second slot only when every host has its first.
        for round in 0..most {
            let mut gave = Vec::new();
            while group.len() < width as usize {
                let Some((_, _, at)) = heap.pop() else { break };
                let host = &mut hosts[at];
                touched.extend(host.used.is_empty().then_some(at));
                let Some((free, _, donor)) = host.donors.pop() else { continue };
                host.left -= 1;
                host.used.push((free - 1, donor));
                group.push(donor);
                gave.push(at);
            }
            if group.len() == width as usize {
                // Only then are hosts few, and those that another round put back still there.
                if round > 0 {
                    heap = heap.drain().filter(|(_, _, at)| hosts[*at].used.is_empty()).collect();
                }
                break;
            }
            heap.extend(gave.into_iter().map(|at| (hosts[at].left, seed.draw(), at)));
        }
        if group.len() < width as usize {
            return None;
        }
        for at in touched {
            let host = &mut hosts[at];
            for (free, donor) in std::mem::take(&mut host.used) {
                host.donors.extend((free > 0).then(|| (free, seed.draw(), donor)));
            }
            heap.extend((!host.donors.is_empty()).then(|| (host.left, seed.draw(), at)));
        }
        placed.push(group);
    }
    Some(placed)
}

/// All slots in one line, host by host and donor by donor, the n-th in group n modulo `groups`: exact, because no
/// donor has more than `groups` of them and no host more than `most * groups`. Less scattered than `scatter`.
fn wrap(
    width: u32,
    groups: usize,
    most: u64,
    hosts: &BTreeMap<u32, Vec<(u32, DonorId)>>,
) -> Option<Vec<Vec<DonorId>>> {
    let mut placed = vec![Vec::with_capacity(width as usize); groups];
    let mut left = groups * width as usize;
    let mut at = 0;
    for donors in hosts.values() {
        let mut of_host = usize::try_from(most).ok()?.saturating_mul(groups).min(left);
        for (free, donor) in donors {
            let give = (*free as usize).min(groups).min(of_host);
            (at..at + give).for_each(|slot| placed[slot % groups].push(*donor));
            (at, of_host, left) = (at + give, of_host - give, left - give);
        }
    }
    (left == 0).then_some(placed)
}

/// What a volume gets when nobody says: `parity:k+1` over as many donors as hold it (k at most 8), `mirror:2` with
/// two; `linear` in a pool of one donor only. `None` when no such width holds it. `extents`: what is wanted; `None` is
/// all: then the widest that reaches 15/16 of what is free, or else the one that holds most.
#[must_use]
pub fn default_redundancy(extents: Option<u64>, rooms: &[Room]) -> Option<Redundancy> {
    if rooms.len() <= 1 {
        return Some(Redundancy::LINEAR);
    }
    let Some(wanted) = extents else {
        let free: u64 = rooms.iter().map(|room| u64::from(room.extents_free)).sum();
        let reaches = |width: &u32| groups_max(*width, rooms) * u64::from(*width) >= free - free / 16;
        let most = || most_protected(rooms).map(|(redundancy, _)| redundancy);
        return default_widths(rooms).rev().find(reaches).filter(|_| free > 0).map(one_parity).or_else(most);
    };
    default_widths(rooms).rev().find(|width| data_max(*width, rooms) >= wanted).map(one_parity)
}

/// What of the default's widths holds the most, and how many extents of data that is.
#[must_use]
pub fn most_protected(rooms: &[Room]) -> Option<(Redundancy, u64)> {
    let best = default_widths(rooms).max_by_key(|width| (data_max(*width, rooms), *width));
    best.map(|width| (one_parity(width), data_max(width, rooms))).filter(|(_, data)| *data > 0)
}

fn default_widths(rooms: &[Room]) -> std::ops::RangeInclusive<u32> {
    2..=u32::try_from(rooms.len()).unwrap_or(u32::MAX).min(DEFAULT_DATA_MAX + 1)
}

fn data_max(width: u32, rooms: &[Room]) -> u64 {
    groups_max(width, rooms) * u64::from(width - 1)
}

fn one_parity(width: u32) -> Redundancy {
    Redundancy { data: width - 1, parity: 1 }
}

/// The nearest to what was asked for that so many donors can do; it survives as many losses, where they suffice.
#[must_use]
pub fn narrower(redundancy: Redundancy, donors: u32) -> Redundancy {
    let Redundancy { data, parity } = redundancy;
    match donors {
        0 | 1 => Redundancy::LINEAR,
        _ if data == 1 || donors <= parity => Redundancy { data: 1, parity: donors - 1 },
        _ => Redundancy { data: donors - parity, parity },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(free: &[u32]) -> Vec<Room> {
        let room = |(at, extents_free): (u32, &u32)| Room {
            donor: DonorId(at.into()),
            host: at,
            extents_free: *extents_free,
        };
        (0..).zip(free).map(room).collect()
    }

    fn stripe(data: u32) -> Redundancy {
        Redundancy { data, parity: 0 }
    }

    fn parity(data: u32) -> Redundancy {
        Redundancy { data, parity: 1 }
    }

    #[test]
    fn linear_fills_donors_in_the_order_they_joined() {
        let placed = place(Redundancy::LINEAR, 3, &rooms(&[2, 5]), &mut Seed(1)).expect("fits");
        assert_eq!(placed, vec![vec![DonorId(0)], vec![DonorId(0)], vec![DonorId(1)]]);
        assert_eq!(place(Redundancy::LINEAR, 8, &rooms(&[2, 5]), &mut Seed(1)), None);
    }

    #[test]
    fn what_groups_max_admits_is_placed_and_one_more_is_not() {
        let mut seed = Seed(7);
        for _ in 0..4_000 {
            let hosts = 1 + seed.draw() % 9;
            let room = |seed: &mut Seed, donor: u64| Room {
                donor: DonorId(donor),
                host: (seed.draw() % hosts) as u32,
                extents_free: (seed.draw() % 20) as u32,
            };
            let rooms: Vec<Room> = (0..seed.draw() % 9).map(|donor| room(&mut seed, donor)).collect();
            let width = 2 + (seed.draw() % 5) as u32;
            let most = groups_max(width, &rooms);
            let placed = place(stripe(width), most, &rooms, &mut seed).expect("groups_max fits");
            assert_eq!(placed.len() as u64, most);
            let mut used = vec![0u32; rooms.len()];
            let of_host = host_slots_max(width, &by_host(&rooms));
            for group in &placed {
                let mut members = group.clone();
                members.sort_unstable();
                members.dedup();
                assert_eq!(members.len(), width as usize, "different donors: {group:?}");
                let at = |donor: &DonorId| usize::try_from(donor.0).expect("small");
                members.iter().for_each(|donor| used[at(donor)] += 1);
                for host in 0..9 {
                    let here = members.iter().filter(|donor| rooms[at(donor)].host == host).count() as u64;
                    assert!(here <= of_host, "{here} of {group:?} on host {host}, not {of_host}");
                }
            }
            assert!(used.iter().zip(&rooms).all(|(used, room)| *used <= room.extents_free), "{used:?}");
            assert_eq!(place(stripe(width), most + 1, &rooms, &mut seed), None);
        }
    }

    #[test]
    fn both_ways_to_place_keep_to_the_rules() {
        let rooms = rooms(&[6, 3, 4, 5]);
        let hosts = by_host(&rooms);
        for placed in [scatter(2, 9, 1, &hosts, &mut Seed(1)), wrap(2, 9, 1, &hosts)] {
            let placed = placed.expect("all eighteen");
            assert!(placed.iter().all(|group| group.len() == 2 && group[0] != group[1]), "{placed:?}");
        }
    }

    #[test]
    fn a_group_shares_hosts_only_when_there_are_too_few() {
        let mut rooms = rooms(&[10; 6]);
        for (room, host) in rooms.iter_mut().zip([0, 0, 0, 0, 1, 2]) {
            room.host = host;
        }
        assert_eq!(groups_max(3, &rooms), 10, "a second slot on the first host would make 20");
        let placed = place(parity(3), 10, &rooms, &mut Seed(2)).expect("fits");
        for group in placed {
            let on = |host: u32| group.iter().filter(|donor| rooms[donor.0 as usize].host == host).count();
            assert_eq!((on(0), on(1), on(2)), (2, 1, 1), "{group:?}");
        }
    }

    #[test]
    fn a_stripe_keeps_the_donors_level() {
        let placed = place(stripe(2), 40, &rooms(&[100; 4]), &mut Seed(3)).expect("fits");
        for donor in 0..4 {
            let used = placed.iter().filter(|group| group.contains(&DonorId(donor))).count();
            assert!((19..=21).contains(&used), "donor {donor} has {used} of 80 extents");
        }
    }

    #[test]
    fn the_default_survives_one_donor_or_is_none() {
        let mirror = Redundancy { data: 1, parity: 1 };
        let default = |extents, free: &[u32]| default_redundancy(extents, &rooms(free));
        assert_eq!(default(Some(1), &[4]), Some(Redundancy::LINEAR));
        assert_eq!(default(Some(1), &[4, 4, 0]), Some(mirror));
        assert_eq!(default(Some(1), &[4, 4, 4]), Some(parity(2)));
        assert_eq!(default(Some(1), &[4; 12]), Some(parity(8)));
        assert_eq!(default(Some(8), &[10, 10, 1]), Some(mirror), "narrower where that holds more");
        assert_eq!(default(Some(15), &[10, 10, 1]), None, "never without, unless asked");
        assert_eq!(default(Some(1), &[4, 0, 0]), None);
        assert_eq!(default(None, &[10, 10, 10]), Some(parity(2)));
        assert_eq!(default(None, &[100, 10, 9]), Some(mirror), "the most that is protected");
        assert_eq!(default(None, &[4, 0]), None);
        assert_eq!(default(None, &[0, 0]), None);
        assert_eq!(default(None, &[]), Some(Redundancy::LINEAR));
        assert_eq!(most_protected(&rooms(&[10, 10, 1])), Some((mirror, 10)));
    }

    #[test]
    fn fewer_donors_keep_the_parity_that_was_asked_for() {
        for (asked, donors, hint) in [
            ("parity:5+2", 5, "parity:3+2"),
            ("mirror:6", 5, "mirror:5"),
            ("parity:4+2", 3, "mirror:3"),
            ("parity:4+2", 2, "mirror:2"),
            ("stripe:6", 4, "stripe:4"),
            ("stripe:6", 1, "linear"),
        ] {
            let asked = asked.parse().expect("a redundancy");
            assert_eq!(narrower(asked, donors).to_string(), hint, "{asked} on {donors}");
        }
    }
}
