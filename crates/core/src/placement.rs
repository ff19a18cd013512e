//! Where the groups of a volume go: which donors, never which extent of them.
//!
//! Owns the choice for `linear` (fill donors in the order they joined) and for wider groups (the hosts, and
//! on them the donors, with the most free extents, ties broken by a seed), the largest volume that fits, and
//! what is chosen when nobody says: by default the loss of any one host can be rebuilt where there are four.
//! Never: state, or who is alive; the coordinator hands in the rooms of live donors only. Invariants: the
//! slots of a group lie on different donors, on different hosts when there are as many as slots and otherwise
//! on as many as can be; and a request that `groups_max` admits is placed.
//! Called by `coordinator` on create and grow. Tests: properties below.

use crate::map::{DonorId, Redundancy};
use crate::seed::Seed;
use std::collections::{BTreeMap, BinaryHeap};

/// The most data fragments that the default picks.
const DEFAULT_DATA_MAX: u32 = 8;
/// From so many hosts on the default leaves one of them out of each group.
const SPARE_HOSTS_MIN: u32 = 4;

/// What one live donor has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The donor; it has one room at most.
    pub donor: DonorId,
    /// The machine: the same number for donors that would go with one power cord.
    pub host: u32,
    /// Extents that it can still be given.
    pub extents_free: u32,
    /// What it holds that would have to be rebuilt elsewhere.
    pub extents_held: u32,
}

/// The free extents of the donors, by host. A host that is full counts: that others have to do without it
/// does not make it safe to put two slots of a group on one of them.
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
    // With g groups a donor gives at most g extents and a host at most `most` * g, so g groups fit when those
    // sum to width * g.
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

/// All slots in one line, host by host and donor by donor, the n-th in group n modulo `groups`: exact,
/// because no donor has more than `groups` of them and no host more than `most * groups`. Less scattered than
/// `scatter`.
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

/// How a volume is made when nobody says, and how many groups of it there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The redundancy that suits the hosts that there are.
    pub redundancy: Redundancy,
    /// The most groups that fit; each covers k extents of the volume.
    pub groups: u64,
}

impl Choice {
    fn of(width: u32, groups: u64) -> Choice {
        Choice { redundancy: Redundancy { data: width - 1, parity: 1 }, groups }
    }

    /// In extents of the volume.
    #[must_use]
    pub fn data(&self) -> u64 {
        self.groups * u64::from(self.redundancy.data)
    }
}

/// What a volume gets when nobody says, for `extents` of it or for all there may be (`None`). From four hosts
/// on `parity:k+1` (k at most 8) on one host less than there are, or narrower, so that what any one host
/// holds can be rebuilt on the others, with the room for it left free; where that does not hold what is
/// wanted, without the room, and then without the host. `parity:2+1` with three hosts, `mirror:2` with two,
/// `linear` with one donor. `None`: nothing of that holds it.
#[must_use]
pub fn default_choice(extents: Option<u64>, rooms: &[Room]) -> Option<Choice> {
    if rooms.len() <= 1 {
        let groups = rooms.iter().map(|room| u64::from(room.extents_free)).sum();
        return Some(Choice { redundancy: Redundancy::LINEAR, groups });
    }
    let rooms = domains(rooms);
    let widest = widest(&rooms);
    let narrow = widths_with_a_spare(&rooms);
    let spared = narrow.clone().map(|width| Choice::of(width, spared_max(width, &rooms)));
    let full = |width: u32| Choice::of(width, groups_max(width, &rooms));
    match extents {
        Some(wanted) => {
            let holds = |choice: &Choice| choice.data() >= wanted;
            let tight = narrow.rev().chain((2..=widest).rev()).map(full);
            spared.rev().find(holds).or_else(|| tight.into_iter().find(holds))
        }
        None => most(spared).or_else(|| most((2..=widest).map(full))),
    }
}

/// What the default's widths hold at most, spare or not.
#[must_use]
pub fn most_protected(rooms: &[Room]) -> Option<Choice> {
    let rooms = domains(rooms);
    most((2..=widest(&rooms)).map(|width| Choice::of(width, groups_max(width, &rooms))))
}

/// What the default takes first, where there is room.
#[must_use]
pub fn default_first(rooms: &[Room]) -> Redundancy {
    let rooms = domains(rooms);
    let width = widths_with_a_spare(&rooms).next_back().unwrap_or_else(|| widest(&rooms));
    Choice::of(width.max(2), 0).redundancy
}

fn most(choices: impl Iterator<Item = Choice>) -> Option<Choice> {
    let best = choices.max_by_key(|choice| (choice.data(), choice.redundancy.data));
    best.filter(|choice| choice.groups > 0)
}

/// The donors of one machine are all there is of it: each of them may at least end by itself.
fn domains(rooms: &[Room]) -> Vec<Room> {
    let mut rooms = rooms.to_vec();
    if rooms.iter().all(|room| room.host == rooms[0].host) {
        (0..).zip(&mut rooms).for_each(|(at, room)| room.host = at);
    }
    rooms
}

/// A slot on each host.
fn widest(rooms: &[Room]) -> u32 {
    u32::try_from(by_host(rooms).len()).unwrap_or(u32::MAX).min(DEFAULT_DATA_MAX + 1)
}

/// Those that leave a host out of each group; with three hosts that would be mirrors, which cost more than
/// they are worth.
fn widths_with_a_spare(rooms: &[Room]) -> std::ops::RangeInclusive<u32> {
    let hosts = u32::try_from(by_host(rooms).len()).unwrap_or(u32::MAX);
    let most = if hosts < SPARE_HOSTS_MIN { 0 } else { (hosts - 1).min(DEFAULT_DATA_MAX + 1) };
    2..=most
}

/// How many groups fit such that, whichever host goes, its share of them and all else that it holds can be
/// put on others. A sixteenth less than would be there if each could choose with all others in mind.
fn spared_max(width: u32, rooms: &[Room]) -> u64 {
    let (mut free, mut burden): (BTreeMap<u32, u64>, BTreeMap<u32, u64>) = Default::default();
    for room in rooms {
        *free.entry(room.host).or_default() += u64::from(room.extents_free);
        *burden.entry(room.host).or_default() += u64::from(room.extents_free) + u64::from(room.extents_held);
    }
    // With the largest fewest fit, with the one that holds most least is left: no other host is worse to
    // lose.
    let largest = free.iter().max_by_key(|(_, free)| **free).map(|(host, _)| *host);
    let others: Vec<Room> = rooms.iter().filter(|room| Some(room.host) != largest).copied().collect();
    let heaviest = burden.values().max().copied().unwrap_or_default();
    let left = free.values().sum::<u64>().saturating_sub(heaviest) / u64::from(width);
    let fit = groups_max(width, &others).min(left);
    fit - fit.div_ceil(16)
}

/// The nearest to what was asked for that so many donors can do; it survives as many losses, where they
/// suffice.
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
            extents_held: 0,
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
                extents_held: 0,
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
    fn the_default_survives_one_host_or_is_none() {
        let mirror = Redundancy { data: 1, parity: 1 };
        let default =
            |extents, free: &[u32]| default_choice(extents, &rooms(free)).map(|choice| choice.redundancy);
        assert_eq!(default(Some(1), &[4]), Some(Redundancy::LINEAR));
        assert_eq!(default(Some(1), &[4, 4, 0]), Some(mirror));
        assert_eq!(default(Some(1), &[4, 4, 4]), Some(parity(2)));
        assert_eq!(default(Some(8), &[10, 10, 1]), Some(mirror), "narrower where that holds more");
        assert_eq!(default(Some(15), &[10, 10, 1]), None, "never without, unless asked");
        assert_eq!(default(Some(1), &[4, 0, 0]), None);
        assert_eq!(default(None, &[10, 10, 10]), Some(parity(2)));
        assert_eq!(default(None, &[100, 10, 9]), Some(mirror), "the most that is protected");
        assert_eq!(default(None, &[4, 0]), None);
        assert_eq!(default(None, &[0, 0]), None);
        assert_eq!(default(None, &[]), Some(Redundancy::LINEAR));
        assert_eq!(most_protected(&rooms(&[10, 10, 1])), Some(Choice { redundancy: mirror, groups: 10 }));
    }

    #[test]
    fn from_four_hosts_on_the_default_leaves_one_out_of_each_group_and_room_for_what_it_may_have_to_take() {
        let default = |extents, free: &[u32]| {
            default_choice(extents, &rooms(free)).map(|choice| (choice.redundancy.to_string(), choice.groups))
        };
        let choice = |redundancy: &str, groups| Some((redundancy.to_owned(), groups));
        assert_eq!(default(Some(8), &[16; 4]), choice("parity:2+1", 15));
        assert_eq!(default(Some(8), &[16; 5]), choice("parity:3+1", 15));
        assert_eq!(default(Some(8), &[16; 9]), choice("parity:7+1", 15));
        assert_eq!(default(Some(8), &[16; 10]), choice("parity:8+1", 15));
        assert_eq!(default(None, &[16; 4]), choice("parity:2+1", 15), "48 of 64 and some in reserve");
        assert_eq!(
            default(None, &[40, 40, 40, 4]),
            choice("mirror:2", 39),
            "the small one could not take its share"
        );
        // More than that holds: as much protection, with less room or none for what is rebuilt.
        assert_eq!(default(Some(40), &[16; 4]), choice("parity:2+1", 21));
        assert_eq!(default(Some(48), &[16; 4]), choice("parity:3+1", 16));
        assert_eq!(default(Some(49), &[16; 4]), None);
        // What hosts hold already has to be rebuilt, too.
        let mut full = rooms(&[16; 4]);
        full.iter_mut().for_each(|room| room.extents_held = 30);
        assert_eq!(default_choice(None, &full).map(|choice| choice.groups), Some(5));
    }

    #[test]
    fn hosts_are_counted_and_not_donors_unless_there_is_but_one() {
        let mut six = rooms(&[16; 6]);
        for (room, host) in six.iter_mut().zip([0, 0, 0, 1, 1, 2]) {
            room.host = host;
        }
        let default = |rooms: &[Room]| default_choice(Some(2), rooms).map(|choice| choice.redundancy);
        assert_eq!(default(&six), Some(parity(2)));
        assert_eq!(default(&six[..5]), Some(parity(1)), "two hosts");
        assert_eq!(default(&six[..3]), Some(parity(2)), "one host");
        assert_eq!(default_first(&six), parity(2));
    }

    #[test]
    fn what_does_not_fit_is_measured_by_what_would_be_chosen() {
        for hosts in 2..12 {
            let choice = default_choice(Some(1), &rooms(&vec![64; hosts])).expect("it fits");
            assert_eq!(default_first(&rooms(&vec![64; hosts])), choice.redundancy, "{hosts} hosts");
            assert_eq!(default_first(&rooms(&vec![0; hosts])), choice.redundancy, "{hosts} full hosts");
        }
    }

    #[test]
    fn what_a_host_held_of_a_default_volume_finds_a_place_on_others() {
        let mut seed = Seed(9);
        for turn in 0..600 {
            let hosts = 4 + (seed.draw() % 9) as usize;
            let same = 4 + (seed.draw() % 60) as u32;
            let free: Vec<u32> = (0..hosts)
                .map(|_| if turn % 2 == 0 { same } else { 1 + (seed.draw() % 60) as u32 })
                .collect();
            let rooms = rooms(&free);
            let Some(Choice { redundancy, groups }) = default_choice(None, &rooms) else { continue };
            if redundancy.width() as usize >= hosts || groups > spared_max(redundancy.width(), &rooms) {
                continue;
            }
            let placed = place(redundancy, groups, &rooms, &mut seed).expect("fits");
            for lost in 0..hosts as u64 {
                let mut left = free.clone();
                placed.iter().flatten().for_each(|donor| left[donor.0 as usize] -= 1);
                for group in placed.iter().filter(|group| group.contains(&DonorId(lost))) {
                    let outside = (0..hosts).filter(|at| !group.contains(&DonorId(*at as u64)));
                    // The emptiest, as `repair` chooses.
                    let home = outside.filter(|at| left[*at] > 0).max_by_key(|at| left[*at]);
                    let home = home.unwrap_or_else(|| panic!("{free:?}, {redundancy}, {groups}: {group:?}"));
                    left[home] -= 1;
                }
            }
        }
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
