//! What is lost of a volume, against a model that asks of one byte at a time whether anything can give it
//! back.

use cheetah_core::layout::{LostRange, lost_ranges};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{BadRange, DonorId, Group, Medium, Placement, Redundancy, Slot, VolumeId, VolumeMap};
use cheetah_core::seed::Seed;
use std::collections::BTreeMap;

fn map(random: &mut Seed) -> VolumeMap {
    let (data, parity) =
        [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (3, 2), (4, 1)][(random.draw() % 8) as usize];
    let redundancy = Redundancy { data, parity };
    let groups = 1 + random.draw() % 3;
    let whole = groups * u64::from(data) * EXTENT_BYTES;
    let missing = if groups == 1 && random.draw().is_multiple_of(2) { whole - 1_000_000 } else { 0 };
    let size = whole - missing - random.draw() % 1_000_000;
    let slot = |random: &mut Seed, column: u64| {
        let donor = DonorId((column + random.draw() % 2 * 8) % 12);
        let gone = random.draw().is_multiple_of(7) && parity > 0;
        if gone { Slot::default() } else { Slot::held(Placement { donor, extent: 0 }) }
    };
    let mut bad: Vec<BadRange> = (0..random.draw() % 4)
        .map(|_| {
            let from = (random.draw() % 300_000) as u32;
            let to = from + 1 + (random.draw() % 300_000) as u32;
            let group = (random.draw() % groups) as u32;
            BadRange { group, slot: (random.draw() % u64::from(data)) as u32, from, to }
        })
        .collect();
    bad.sort_unstable();
    bad.dedup_by(|next, last| (next.group, next.slot) == (last.group, last.slot) && next.from <= last.to);
    VolumeMap {
        volume: VolumeId(1),
        name: "v".into(),
        epoch: 1,
        size,
        redundancy,
        unit: 4096 << (random.draw() % 9),
        groups: (0..groups)
            .map(|_| Group { slots: (0..u64::from(data + parity)).map(|j| slot(random, j)).collect() })
            .collect(),
        routes: BTreeMap::new(),
        bad,
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    }
}

/// Whether nothing can give this byte back, said in the plainest way.
fn is_gone(map: &VolumeMap, at: u64, is_lost: &dyn Fn(DonorId) -> bool) -> bool {
    let (data, unit) = (u64::from(map.redundancy.data), u64::from(map.unit));
    let (number, inside) = (at / map.group_bytes(), at % map.group_bytes());
    let (slot, local) = if data == 1 {
        (0, inside)
    } else {
        (inside / unit % data, inside / unit / data * unit + inside % unit)
    };
    let group = &map.groups[number as usize];
    let lives = |slot: &Slot| slot.held.is_some_and(|held| !is_lost(held.donor));
    let live = group.slots.iter().filter(|slot| lives(slot)).count() as u64;
    let bad = map.bad.iter().any(|bad| {
        let here = (u64::from(bad.group), u64::from(bad.slot)) == (number, slot);
        here && (u64::from(bad.from)..u64::from(bad.to)).contains(&local)
    });
    bad || (live < data && !lives(&group.slots[slot as usize]))
}

#[test]
fn the_list_is_exactly_what_nothing_can_give_back() {
    let mut random = Seed(4);
    for _ in 0..3_000 {
        let map = map(&mut random);
        let mask = random.draw() & random.draw();
        let is_lost = |donor: DonorId| mask & (1 << donor.0) != 0;
        let ranges = lost_ranges(&map, is_lost);
        let times = |at: u64| {
            let has = |range: &&LostRange| {
                let past = at.checked_sub(range.offset);
                past.is_some_and(|past| past / range.stride < range.count && past % range.stride < range.len)
            };
            ranges.iter().filter(has).count()
        };
        let edges = ranges.iter().flat_map(|range| {
            let last = range.offset + (range.count - 1) * range.stride;
            [range.offset, range.offset + range.len, last, last + range.len, range.offset.saturating_sub(1)]
        });
        let mut points: Vec<u64> = edges.chain((0..20).map(|_| random.draw())).collect();
        points.extend([0, map.size - 1]);
        for at in points.into_iter().map(|at| at % map.size) {
            let expected = usize::from(is_gone(&map, at, &is_lost));
            assert_eq!(times(at), expected, "byte {at} of {map:?} with {mask:b}: {ranges:?}");
        }
        assert!(ranges.iter().all(|range| range.offset < map.size && range.count > 0), "{ranges:?}");
        let alone = |range: &&LostRange| range.count == 1;
        let within = |range: &LostRange| range.offset + range.len <= map.size;
        assert!(ranges.iter().filter(alone).all(within), "{} bytes: {ranges:?}", map.size);
    }
}

#[test]
fn what_reaches_a_range_is_what_has_a_byte_of_it() {
    for (len, stride, count) in [(3, 3, 1), (3, 7, 4), (7, 7, 3), (1, 5, 2)] {
        let range = LostRange { donor: None, offset: 10, len, stride, count };
        let has = |at: u64| {
            let past = at.checked_sub(10);
            past.is_some_and(|past| past / stride < count && past % stride < len)
        };
        for from in 0..50 {
            for end in from..52 {
                assert_eq!(range.reaches(from, end), (from..end).any(has), "{from}..{end} of {range}");
            }
        }
    }
}
