//! Where the groups of a volume go: which donors, never which extent of them.
//!
//! Owns the choice for `linear` (fill donors in the order they joined) and for wider groups (the donors with
//! the most free extents, ties broken by a seed), the largest volume that fits, and the default redundancy.
//! Never: state, or who is alive; the coordinator hands in the rooms of live donors only.
//! Invariant: the members of a group are different donors, and a request that `groups_max` admits is placed.
//! Called by `coordinator` on create and grow. Tests: properties below.

use crate::map::{DonorId, Redundancy};
use std::collections::BinaryHeap;

/// The widest stripe that the default picks.
pub const DEFAULT_STRIPE_DONORS_MAX: u32 = 8;

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
    pub extents_free: u32,
}

/// How many groups of `width` different donors fit.
#[must_use]
pub fn groups_max(width: u32, rooms: &[Room]) -> u64 {
    let width = u64::from(width.max(1));
    let free = |room: &Room| u64::from(room.extents_free);
    // With g groups a donor gives at most g extents, so g groups fit when those sum to width * g.
    let fits = |groups: u64| rooms.iter().map(|room| free(room).min(groups)).sum::<u64>() >= width * groups;
    let (mut low, mut high) = (0, rooms.iter().map(free).sum::<u64>() / width);
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
    // Taking the fullest rooms first reaches `groups_max` and keeps the donors level.
    let mut heap: BinaryHeap<(u32, u64, DonorId)> =
        rooms.iter().map(|room| (room.extents_free, seed.draw(), room.donor)).collect();
    let mut placed = Vec::with_capacity(count);
    for _ in 0..count {
        let mut chosen = Vec::new();
        for _ in 0..redundancy.width() {
            chosen.push(heap.pop().filter(|(free, _, _)| *free > 0)?);
        }
        placed.push(chosen.iter().map(|(_, _, donor)| *donor).collect());
        heap.extend(chosen.into_iter().map(|(free, _, donor)| (free - 1, seed.draw(), donor)));
    }
    Some(placed)
}

/// What a volume gets when nobody says: the widest stripe (at most 8) that holds it, `linear` otherwise.
/// `extents`: what is wanted; `None` is all, and then a stripe must reach 15/16 of what is free.
#[must_use]
pub fn default_redundancy(extents: Option<u64>, rooms: &[Room]) -> Redundancy {
    let free: u64 = rooms.iter().map(|room| u64::from(room.extents_free)).sum();
    let open = rooms.iter().filter(|room| room.extents_free > 0).count();
    let widest = u32::try_from(open).unwrap_or(u32::MAX).min(DEFAULT_STRIPE_DONORS_MAX);
    let wanted = extents.unwrap_or(free - free / 16);
    let holds = |width: u32| groups_max(width, rooms) * u64::from(width) >= wanted;
    let width = (2..=widest).rev().find(|width| holds(*width)).unwrap_or(1);
    Redundancy { data: width, parity: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(free: &[u32]) -> Vec<Room> {
        let room = |(at, extents_free): (usize, &u32)| Room {
            donor: DonorId(at as u64),
            extents_free: *extents_free,
        };
        free.iter().enumerate().map(room).collect()
    }

    fn stripe(data: u32) -> Redundancy {
        Redundancy { data, parity: 0 }
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
        for _ in 0..2_000 {
            let free: Vec<u32> = (0..seed.draw() % 9).map(|_| (seed.draw() % 20) as u32).collect();
            let rooms = rooms(&free);
            let width = 2 + (seed.draw() % 5) as u32;
            let most = groups_max(width, &rooms);
            let placed = place(stripe(width), most, &rooms, &mut seed).expect("groups_max fits");
            assert_eq!(placed.len() as u64, most);
            let mut used = vec![0u32; free.len()];
            for group in &placed {
                let mut members = group.clone();
                members.sort_unstable();
                members.dedup();
                assert_eq!(members.len(), width as usize, "different donors: {group:?}");
                members.iter().for_each(|donor| used[usize::try_from(donor.0).expect("small")] += 1);
            }
            assert!(used.iter().zip(&free).all(|(used, free)| used <= free), "{used:?} of {free:?}");
            assert_eq!(place(stripe(width), most + 1, &rooms, &mut seed), None);
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
    fn the_default_is_as_wide_as_it_fits() {
        assert_eq!(default_redundancy(Some(1), &rooms(&[4])), Redundancy::LINEAR);
        assert_eq!(default_redundancy(Some(1), &rooms(&[4, 4, 0])), stripe(2));
        assert_eq!(default_redundancy(Some(1), &rooms(&[4; 12])), stripe(8));
        assert_eq!(default_redundancy(Some(15), &rooms(&[10, 10, 1])), stripe(2));
        assert_eq!(default_redundancy(None, &rooms(&[10, 10, 10])), stripe(3));
        assert_eq!(default_redundancy(None, &rooms(&[100, 10])), Redundancy::LINEAR, "all means all");
        assert_eq!(default_redundancy(None, &[]), Redundancy::LINEAR);
    }
}
