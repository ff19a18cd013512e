//! The fast combination is the scalar one, and CRC32C is everybody's.

use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::code::{self, Code};
use cheetah_core::map::Redundancy;
use cheetah_rim::code::{combine, crc32c};
use proptest::prelude::*;

/// Bytes that repeat nowhere near, so that a wrong offset shows.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// Fragment `index` starts `offset(index)` bytes into its buffer.
struct Shape {
    coefficients: Vec<u8>,
    inputs: usize,
    outputs: usize,
    len: usize,
    offsets: Vec<usize>,
}

/// What both combinations make of the same inputs and outputs, each with the bytes around an output.
fn both(shape: &Shape, add: bool) -> [Vec<Vec<u8>>; 2] {
    let offset = |index: usize| shape.offsets[index % shape.offsets.len()];
    let range = |index: usize| offset(index)..offset(index) + shape.len;
    let buffer = |index: usize| noise(index as u64 + 1, range(index).end + 64);
    let inputs: Vec<Vec<u8>> = (0..shape.inputs).map(buffer).collect();
    let inputs: Vec<&[u8]> = inputs.iter().enumerate().map(|(index, bytes)| &bytes[range(index)]).collect();
    [combine, code::combine].map(|combine| {
        let first = shape.inputs;
        let mut buffers: Vec<Vec<u8>> = (first..first + shape.outputs).map(buffer).collect();
        let outputs = buffers.iter_mut().enumerate();
        let mut outputs: Vec<&mut [u8]> =
            outputs.map(|(index, bytes)| &mut bytes[range(first + index)]).collect();
        combine(&shape.coefficients, &inputs, &mut outputs, add);
        buffers
    })
}

fn shapes() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![0_usize..300, Just(4096), Just(64), 4000_usize..9000];
    let factor = prop_oneof![2 => any::<u8>(), 1 => 0_u8..2];
    // One more input than a code can have, and one more output than the widest kernel takes.
    (0_usize..=33, 0_usize..=5, len, proptest::collection::vec(0_usize..40, 1..8), any::<bool>())
        .prop_flat_map(move |(inputs, outputs, len, offsets, ones_first)| {
            let coefficients = proptest::collection::vec(factor.clone(), inputs * outputs);
            coefficients.prop_map(move |mut coefficients| {
                let ones = if ones_first { inputs.min(coefficients.len()) } else { 0 };
                coefficients[..ones].fill(1);
                Shape { coefficients, inputs, outputs, len, offsets: offsets.clone() }
            })
        })
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { coefficients, inputs, outputs, len, offsets } = self;
        write!(f, "{inputs} to {outputs} of {len} bytes, offsets {offsets:?}, {coefficients:?}")
    }
}

proptest! {
    #[test]
    fn the_fast_combination_is_the_scalar_one(shape in shapes(), add in any::<bool>()) {
        let [fast, scalar] = both(&shape, add);
        // The bytes around the outputs too: nothing is written beside them.
        prop_assert!(fast == scalar);
    }
}

#[test]
fn every_factor_is_multiplied_alike() {
    for factor in 0..=255 {
        for add in [false, true] {
            let shape = Shape {
                coefficients: vec![1, factor, factor, 3],
                inputs: 2,
                outputs: 2,
                len: 333,
                offsets: vec![5, 0],
            };
            let [fast, scalar] = both(&shape, add);
            assert!(fast == scalar, "factor {factor}, add {add}");
        }
    }
}

#[test]
fn mirrors_xor_and_two_parities_are_alike() {
    for (data, parity) in [(1, 1), (1, 7), (1, 31), (4, 1), (4, 2), (8, 2), (8, 4), (28, 4)] {
        let code = Code::new(Redundancy { data, parity });
        let row = |parity| (0..data).map(move |data| code.coefficient(parity, data));
        let coefficients: Vec<u8> = (0..parity).flat_map(row).collect();
        for len in [4096, 65_536, 4095] {
            let (inputs, outputs) = (data as usize, parity as usize);
            let shape =
                Shape { coefficients: coefficients.clone(), inputs, outputs, len, offsets: vec![0, 1] };
            let [fast, scalar] = both(&shape, false);
            assert!(fast == scalar, "{data}+{parity}, {len} bytes");
        }
    }
}

#[test]
#[should_panic(expected = "of one length")]
fn a_short_input_is_a_bug() {
    combine(&[1, 1], &[&[0; 128], &[0; 64]], &mut [&mut [0; 128]], false);
}

/// RFC 3720, appendix B.4, and the check value of the catalogues.
#[test]
fn crc32c_has_its_known_values() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(crc32c(&ascending), 0x46dd_794e);
    assert_eq!(crc32c(&descending), 0x113f_db5c);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(b""), 0);
}

#[test]
fn crc32c_is_its_definition() {
    let bytes = noise(7, 4096 + 17);
    for from in 0..17 {
        let block = &bytes[from..from + 4096];
        let plain = block.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
            })
        });
        assert_eq!(crc32c(block), !plain, "a block that starts at {from}");
    }
}

#[test]
fn the_checksum_of_a_block_of_zeros() {
    assert_eq!(crc32c(&[0; 4096]), ZERO_BLOCK_CRC);
}
