//! The dirty map of a donor: what is marked, for how long, and how it is read back.

use cheetah_core::donor::DirtyMap;
use cheetah_core::limits::{DIRTY_REGION_BYTES as REGION, EXTENT_BYTES};
use proptest::prelude::*;

fn runs(map: &DirtyMap, offset: u64, len: u64) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    map.runs(offset, len, |len, dirty| all.push((len, dirty)));
    all
}

fn is_clean(map: &DirtyMap, extents: u64) -> bool {
    runs(map, 0, extents * EXTENT_BYTES) == [(extents * EXTENT_BYTES, false)]
}

#[test]
fn a_mark_outlives_one_flush_and_not_two() {
    let map = DirtyMap::new(2);
    assert!(is_clean(&map, 2));
    map.mark(REGION + 5, 1);
    let marked = [(REGION, false), (REGION, true), (EXTENT_BYTES - 2 * REGION, false)];
    assert_eq!(runs(&map, 0, EXTENT_BYTES), marked);
    map.age(0..2);
    assert_eq!(runs(&map, 0, EXTENT_BYTES), marked, "the older generation counts, too");
    map.age(0..2);
    assert!(is_clean(&map, 2));
}

#[test]
fn what_is_written_again_is_young_again() {
    let map = DirtyMap::new(1);
    map.mark(0, 1);
    for _ in 0..10 {
        map.age(0..1);
        assert_eq!(runs(&map, 0, 1), [(1, true)]);
        map.mark(10, 1);
    }
    map.age(0..1);
    map.age(0..1);
    assert!(is_clean(&map, 1));
}

#[test]
fn a_flush_ages_its_volume_and_a_wipe_cleans_its_extent() {
    let map = DirtyMap::new(3);
    (0..3).for_each(|extent| map.mark(extent * EXTENT_BYTES, EXTENT_BYTES));
    map.age([0, 2].into_iter());
    map.age([0, 2].into_iter());
    let only_the_middle = [(EXTENT_BYTES, false), (EXTENT_BYTES, true), (EXTENT_BYTES, false)];
    assert_eq!(runs(&map, 0, 3 * EXTENT_BYTES), only_the_middle);
    map.age([1].into_iter());
    map.clear([1].into_iter());
    assert!(is_clean(&map, 3), "both generations");
}

#[test]
fn ranges_that_start_and_end_inside_of_regions() {
    let map = DirtyMap::new(2);
    map.mark(5, 0);
    assert!(is_clean(&map, 2), "nothing was written");
    // Across the border of two words, and of two extents.
    map.mark(EXTENT_BYTES - 1, 2);
    assert_eq!(runs(&map, EXTENT_BYTES - REGION - 7, 10), [(7, false), (3, true)]);
    let behind = runs(&map, EXTENT_BYTES, EXTENT_BYTES);
    assert_eq!(behind, [(REGION, true), (EXTENT_BYTES - REGION, false)]);
    assert_eq!(runs(&map, 2 * EXTENT_BYTES - 1, 1), [(1, false)]);
    assert_eq!(runs(&map, 0, 0), []);
}

#[derive(Clone, Debug)]
enum Step {
    Mark(u64, u64),
    Age(u32),
    Clear(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..2 * EXTENT_BYTES, 0..4_u32, 0..3 * REGION).prop_map(|(offset, times, len)| {
        let len = if times == 0 { EXTENT_BYTES } else { len };
        Step::Mark(offset, len.min(2 * EXTENT_BYTES - offset))
    });
    prop_oneof![4 => range, 2 => (0..2_u32).prop_map(Step::Age), 1 => (0..2_u32).prop_map(Step::Clear)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against one byte a region that counts the flushes since its last mark.
    #[test]
    fn it_agrees_with_a_map_that_counts(steps in prop::collection::vec(step(), 0..60)) {
        let (map, regions) = (DirtyMap::new(2), EXTENT_BYTES / REGION);
        let mut ages = vec![2_u8; 2 * regions as usize];
        for step in steps {
            match step {
                Step::Mark(offset, len) => {
                    map.mark(offset, len);
                    let touched = offset / REGION..(offset + len).div_ceil(REGION);
                    touched.filter(|_| len > 0).for_each(|region| ages[region as usize] = 0);
                }
                Step::Age(extent) => {
                    map.age(std::iter::once(extent));
                    let of_extent = ages.chunks_mut(regions as usize).nth(extent as usize).expect("two");
                    of_extent.iter_mut().for_each(|age| *age += u8::from(*age < 2));
                }
                Step::Clear(extent) => {
                    map.clear(std::iter::once(extent));
                    ages.chunks_mut(regions as usize).nth(extent as usize).expect("two").fill(2);
                }
            }
            let mut seen = Vec::new();
            map.runs(0, 2 * EXTENT_BYTES, |len, dirty| {
                seen.extend(std::iter::repeat_n(dirty, (len / REGION) as usize));
            });
            prop_assert_eq!(&seen, &ages.iter().map(|age| *age < 2).collect::<Vec<_>>());
        }
    }
}
