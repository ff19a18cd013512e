//! Properties of the erasure code: every k of k+m fragments give back every other one, of every shape.

use cheetah_core::code::{Code, combine};
use cheetah_core::map::Redundancy;
use proptest::prelude::*;
use proptest::sample::subsequence;

/// All fragments of one group: what the data is, and the parity that follows.
fn fragments(code: &Code, shape: Redundancy, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let coefficients: Vec<u8> = (0..shape.parity)
        .flat_map(|parity| (0..shape.data).map(move |data| code.coefficient(parity, data)))
        .collect();
    let mut parity = vec![vec![0; data[0].len()]; shape.parity as usize];
    let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    combine(&coefficients, &inputs, &mut outputs, false);
    [data, &parity].concat()
}

fn rebuilt(code: &Code, fragments: &[Vec<u8>], sources: &[u32], wanted: u32) -> Vec<u8> {
    let inputs: Vec<&[u8]> = sources.iter().map(|slot| fragments[*slot as usize].as_slice()).collect();
    let mut output = vec![0xa5; fragments[0].len()];
    combine(&code.rebuild(sources, wanted), &inputs, &mut [&mut output], false);
    output
}

/// Data that differs in every byte of every fragment.
fn data(shape: Redundancy, len: usize) -> Vec<Vec<u8>> {
    let byte = |slot: u32, at: usize| (slot as usize * 151 + at * 83 + 1) as u8;
    (0..shape.data).map(|slot| (0..len).map(|at| byte(slot, at)).collect()).collect()
}

#[test]
fn every_loss_that_small_groups_must_survive_is_survived() {
    let small = (1..=8).flat_map(|data| (1..=4).map(move |parity| Redundancy { data, parity }));
    for shape in small.chain((5..=15).map(|parity| Redundancy { data: 1, parity })) {
        let code = Code::new(shape);
        let fragments = fragments(&code, shape, &data(shape, 3));
        for left in (0_u32..1 << shape.width()).filter(|left| left.count_ones() == shape.data) {
            let (sources, lost): (Vec<u32>, Vec<u32>) =
                (0..shape.width()).partition(|slot| left & (1 << slot) != 0);
            for wanted in lost {
                let rebuilt = rebuilt(&code, &fragments, &sources, wanted);
                assert_eq!(rebuilt, fragments[wanted as usize], "{shape}: slot {wanted} from {sources:?}");
            }
        }
    }
}

fn shapes() -> impl Strategy<Value = Redundancy> {
    let wide = (1_u32..=4)
        .prop_flat_map(|parity| (1..=32 - parity).prop_map(move |data| Redundancy { data, parity }));
    let mirrors = (1_u32..=31).prop_map(|parity| Redundancy { data: 1, parity });
    prop_oneof![4 => wide, 1 => mirrors]
}

/// A shape, k of its slots in any order, and one of the others.
fn losses() -> impl Strategy<Value = (Redundancy, Vec<u32>, u32)> {
    shapes().prop_flat_map(|shape| {
        let slots: Vec<u32> = (0..shape.width()).collect();
        let kept = shape.data as usize + 1;
        subsequence(slots, kept).prop_shuffle().prop_map(move |mut slots| {
            let wanted = slots.pop().expect("k + 1 slots");
            (shape, slots, wanted)
        })
    })
}

proptest! {
    #[test]
    fn any_fragment_follows_from_any_k_others((shape, sources, wanted) in losses()) {
        let code = Code::new(shape);
        let fragments = fragments(&code, shape, &data(shape, 2));
        prop_assert_eq!(rebuilt(&code, &fragments, &sources, wanted), &fragments[wanted as usize][..]);
    }

    #[test]
    fn a_range_of_a_combination_is_the_combination_of_the_ranges(
        shape in shapes(), len in 0_usize..100, from in 0_usize..100, to in 0_usize..100,
    ) {
        let range = from.min(to).min(len)..from.max(to).min(len);
        let code = Code::new(shape);
        let whole = data(shape, len);
        let part: Vec<Vec<u8>> = whole.iter().map(|fragment| fragment[range.clone()].to_vec()).collect();
        let of_whole = fragments(&code, shape, &whole);
        let of_part = fragments(&code, shape, &part);
        for (whole, part) in of_whole.iter().zip(&of_part) {
            prop_assert_eq!(&whole[range.clone()], &part[..]);
        }
    }

    /// A small write: the parity follows from the difference of one data fragment.
    #[test]
    fn parity_is_updated_by_the_difference(shape in shapes(), slot in 0_u32..32, new in any::<u8>()) {
        let (code, slot) = (Code::new(shape), slot % shape.data);
        let mut data = data(shape, 1);
        let mut updated = fragments(&code, shape, &data);
        let difference = [data[slot as usize][0] ^ new];
        data[slot as usize][0] = new;
        updated[slot as usize][0] = new;
        for parity in 0..shape.parity {
            let output = &mut updated[(shape.data + parity) as usize];
            combine(&[code.coefficient(parity, slot)], &[&difference], &mut [output], true);
        }
        prop_assert_eq!(updated, fragments(&code, shape, &data));
    }
}
