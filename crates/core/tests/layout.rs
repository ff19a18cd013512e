//! Properties of the layout arithmetic, against a model that places one byte at a time.

use cheetah_core::layout::{Geometry, Scatter, address, layer_of, lost_ranges};
use cheetah_core::limits::{EXTENT_BYTES, REQUEST_BYTES_MAX};
use cheetah_core::map::{
    Backing, DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn map(k: u32, unit: u32, groups: u32, cut: u64) -> VolumeMap {
    let route = |donor: u32| {
        let route = Route { name: format!("d{donor}"), address: String::new(), foreign_export: None };
        (DonorId(u64::from(donor)), route)
    };
    let donors = k.max(3);
    // Column j of group g lies on another donor than in the group before, at an extent that nothing else has.
    let member = |group: u32, column: u32| Placement {
        donor: DonorId(u64::from((group + column) % donors)),
        extent: group,
    };
    VolumeMap {
        volume: VolumeId(1),
        name: "v".into(),
        epoch: 1,
        size: u64::from(groups * k) * EXTENT_BYTES - cut,
        redundancy: Redundancy { data: k, parity: 0 },
        unit,
        groups: (0..groups)
            .map(|group| Group { slots: (0..k).map(|column| Slot::held(member(group, column))).collect() })
            .collect(),
        routes: (0..donors).map(route).collect(),
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    }
}

/// Where one byte lies, said in the plainest way.
fn place(map: &VolumeMap, offset: u64) -> (DonorId, u64) {
    let (k, unit) = (u64::from(map.redundancy.data), u64::from(map.unit));
    let group = &map.groups[usize::try_from(offset / map.group_bytes()).unwrap_or(usize::MAX)];
    let inside = offset % map.group_bytes();
    let (number, byte) = (inside / unit, inside % unit);
    let (column, row) = if k == 1 { (0, number) } else { (number % k, number / k) };
    let member = group.slots[usize::try_from(column).unwrap_or(usize::MAX)].held.expect("whole");
    (member.donor, u64::from(member.extent) * EXTENT_BYTES + row * unit + byte)
}

/// One donor's share of a request.
struct Fragment {
    donor: DonorId,
    address: u64,
    scatter: Scatter,
}

fn cut(map: &VolumeMap, offset: u64, len: u32) -> Vec<Fragment> {
    let geometry = Geometry::new(map.redundancy, map.unit);
    let mut all = Vec::new();
    for span in map.chunks().spans(offset, len) {
        for slot in 0..geometry.data {
            let (from, to) = geometry.column(span.begin, span.end, slot);
            if from < to {
                let held = map.groups[span.group as usize].slots[slot as usize].held.expect("whole");
                let scatter = geometry.scatter(slot, from, to, span.begin, span.payload);
                let address = u64::from(held.extent) * EXTENT_BYTES + u64::from(from);
                all.push(Fragment { donor: held.donor, address, scatter });
            }
        }
    }
    all
}

fn case() -> impl Strategy<Value = (VolumeMap, u64, u32)> {
    let unit = (12u32..=20).prop_map(|power| 1 << power);
    (1u32..=5, unit, 1u32..=3, 0u64..1_000_000).prop_flat_map(|(k, unit, groups, short)| {
        let map = map(k, unit, groups, short);
        let size = map.size;
        // Near a boundary as often as anywhere.
        let edge = map.group_bytes().min(size - 1);
        let offset = prop_oneof![0..size, edge.saturating_sub(300_000)..edge + 1, Just(0), Just(size - 1)];
        (Just(map), offset, 1u32..3_000_000).prop_map(move |(map, offset, len)| {
            let left = u32::try_from(size - offset).unwrap_or(u32::MAX);
            (map, offset, len.min(left))
        })
    })
}

proptest! {
    #[test]
    fn every_byte_is_covered_once_and_lies_where_the_model_says((map, offset, len) in case()) {
        let mut covered: Vec<(u32, u32)> = Vec::new();
        for fragment in cut(&map, offset, len) {
            let mut at = 0;
            for (payload, piece) in fragment.scatter.pieces() {
                prop_assert_eq!(fragment.scatter.locate(at), (payload, piece));
                // First, last and a middle byte stand for the piece: inside it, both sides count up by one.
                for byte in [0, piece / 2, piece - 1] {
                    let volume = offset + u64::from(payload + byte);
                    let expected = (fragment.donor, fragment.address + u64::from(at + byte));
                    prop_assert_eq!(place(&map, volume), expected);
                }
                covered.push((payload, piece));
                at += piece;
            }
            prop_assert_eq!(at, fragment.scatter.len);
        }
        covered.sort_unstable();
        let mut next = 0;
        for (payload, piece) in covered {
            prop_assert_eq!(payload, next);
            next += piece;
        }
        prop_assert_eq!(next, len);
    }

    /// For as many data slots as a bit mask has bits, which is more than a volume may have.
    #[test]
    fn what_a_span_touches_is_what_its_columns_say(
        data in 1u32..=32,
        unit_bits in 12u32..=20,
        begin in 0u64..32 * EXTENT_BYTES,
        len in 1u64..=u64::from(REQUEST_BYTES_MAX),
    ) {
        let geometry = Geometry::new(Redundancy { data, parity: 0 }, 1 << unit_bits);
        let group_bytes = u64::from(data) * EXTENT_BYTES;
        let begin = begin % group_bytes;
        let (begin, end) = (begin as u32, (begin + len).min(group_bytes) as u32);
        let columns = (0..data).map(|slot| (slot, geometry.column(begin, end, slot)));
        let touched: Vec<(u32, (u32, u32))> = columns.filter(|(_, (from, to))| from < to).collect();
        let lo = touched.iter().map(|(_, (from, _))| *from).min().expect("a span is not empty");
        let hi = touched.iter().map(|(_, (_, to))| *to).max().expect("a span is not empty");
        prop_assert_eq!(geometry.reach(begin, end), (lo, hi));
        let slots: u32 = touched.iter().map(|(slot, _)| 1 << slot).sum();
        prop_assert_eq!(geometry.touched(begin, end), slots);
    }

    #[test]
    fn a_request_is_one_fragment_for_each_donor_and_group((map, offset, len) in case()) {
        let groups = 1 + (offset + u64::from(len) - 1) / map.group_bytes() - offset / map.group_bytes();
        let most = groups * u64::from(map.redundancy.data);
        prop_assert!(cut(&map, offset, len).len() as u64 <= most);
    }

    #[test]
    fn lost_ranges_are_exactly_the_bytes_of_lost_donors((map, offset, _) in case(), mask in 0u8..32) {
        let is_lost = |donor: DonorId| mask & (1 << donor.0) != 0;
        let ranges = lost_ranges(&map, is_lost);
        let said = |at: u64| {
            ranges.iter().any(|range| {
                let past = at.checked_sub(range.offset);
                past.is_some_and(|past| past / range.stride < range.count && past % range.stride < range.len)
            })
        };
        for at in [0, offset, offset.saturating_sub(1), map.size - 1] {
            prop_assert_eq!(said(at), is_lost(place(&map, at).0), "byte {}", at);
        }
    }

    #[test]
    fn fragments_of_different_offsets_never_share_memory((map, offset, len) in case()) {
        let mut ends: BTreeMap<DonorId, Vec<(u64, u64)>> = BTreeMap::new();
        let before = u32::try_from(offset.min(500_000)).unwrap_or(0);
        let mut all = cut(&map, offset, len);
        if before > 0 {
            all.extend(cut(&map, offset - u64::from(before), before));
        }
        for fragment in all {
            let run = (fragment.address, fragment.address + u64::from(fragment.scatter.len));
            ends.entry(fragment.donor).or_default().push(run);
        }
        for runs in ends.values_mut() {
            runs.sort_unstable();
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", runs);
        }
    }
}

#[test]
fn extents_of_a_larger_volume_share_memory_layer_by_layer() {
    // Nine chunks of two extents over four groups: three layers, the last of one chunk.
    let mut map = map(2, 65_536, 4, 0);
    map.size = 9 * map.group_bytes() - 4096;
    map.backing = Some(Backing { layers: 3, ..Backing::default() });
    map.check().expect("a map that can be");
    let (chunks, bytes) = (map.chunks(), map.group_bytes());
    let spans: Vec<_> = chunks.spans(4 * bytes - 10, 20).collect();
    assert_eq!(spans.iter().map(|span| (span.group, span.payload)).collect::<Vec<_>>(), [(3, 0), (0, 10)]);
    assert_eq!((u64::from(spans[0].begin), u64::from(spans[1].begin)), (bytes - 10, bytes));
    for chunk in 0..9 {
        let at = chunk * bytes + 70_000;
        let span = chunks.spans(at, 1).next().expect("a byte");
        assert_eq!(chunks.offset(span.group, span.begin), at);
        let (from, _) = Geometry::new(map.redundancy, map.unit).column(span.begin, span.end, 1);
        let (layer, inside) = layer_of(address(5, from));
        assert_eq!((u64::from(layer), inside), (chunk / 4, 5 * EXTENT_BYTES + 70_000 - 65_536));
    }
    let lost = lost_ranges(&map, |donor| donor == DonorId(0));
    assert!(lost.iter().all(|range| range.offset < map.size));
    assert!(lost.iter().any(|range| range.offset / bytes == 8), "{lost:?}");
    for (layers, groups) in [(1, 4), (2, 4), (4, 4)] {
        let backing = Some(Backing { layers, ..Backing::default() });
        let wrong = VolumeMap { backing, groups: map.groups[..groups].to_vec(), ..map.clone() };
        assert!(wrong.check().is_err(), "{layers}");
    }
    map.backing = Some(Backing { layers: 3, complete: true, ..Backing::default() });
    assert!(map.check().is_err(), "what is not kept is read again, so its source is needed");
}
