//! The part `codes`: the erasure code and the checksum of a client, beside their plain reference.
//!
//! Each is given 64 KiB fragments (4 KiB blocks for the checksum), on one thread, in GB/s of the bytes that
//! are read. Fragments fit the processor's caches: this is what the code costs, not the memory. Never: needs
//! root, a network or the program. Called by: `bench`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cheetah_core::code::{self, Code};
use cheetah_core::map::Redundancy;
use cheetah_rim::code::{combine, crc32c};

use crate::bench::part::Bench;
use crate::bench::rounds::{Side, Turn};
use crate::bench::row::Demand;

pub const SECONDS: f64 = 20.0;
pub const SETS: usize = 8;

const FRAGMENT_BYTES: usize = 64 << 10;
const BLOCK_BYTES: usize = 4 << 10;
/// Nothing waits for anything here, so many short turns agree sooner than few long ones.
const TURN: Duration = Duration::from_millis(50);
const ROUNDS: usize = 9;

/// A thing that is measured, and its plain reference.
struct Case {
    /// In ids, and in the table.
    names: (String, String),
    bytes: usize,
    fast: Box<dyn FnMut()>,
    plain: Box<dyn FnMut()>,
}

pub fn run(bench: &mut Bench) {
    let cases: [Case; SETS] = [
        encode(4, 2),
        encode(8, 2),
        decode(4, 2),
        decode(8, 2),
        encode(4, 1),
        update(2),
        encode(1, 1),
        checksum(),
    ];
    let rounds = if bench.quick { bench.rounds } else { ROUNDS };
    let rounds_before = std::mem::replace(&mut bench.rounds, rounds);
    for Case { names: (id, name), bytes, mut fast, mut plain } in cases {
        bench.set(&name);
        let taken = bench.turns(&mut [
            Side::new("cheetah", || Turn::of(gb_per_second(&mut fast, bytes))),
            Side::new("plain", || Turn::of(gb_per_second(&mut plain, bytes))),
        ]);
        let id = format!("codes.{id}");
        let peer = ("its plain reference", "plain");
        bench.beside((&id, &name, "GB/s"), &taken, "cheetah", peer, Demand::NONE);
    }
    bench.rounds = rounds_before;
}

fn gb_per_second(mut work: impl FnMut(), bytes: usize) -> f64 {
    // The clock is asked once for about a megabyte.
    let batch = (1 << 20) / bytes + 1;
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < TURN {
        (0..batch).for_each(|_| work());
        done += batch * bytes;
    }
    done as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// All parity of k fragments.
fn encode(data: u32, parity: u32) -> Case {
    let code = Code::new(Redundancy { data, parity });
    let row = |parity| (0..data).map(move |data| code.coefficient(parity, data));
    let name = match (data, parity) {
        (1, 1) => "copy, mirror:2".to_owned(),
        (_, 1) => format!("encode {data}+1 (XOR)"),
        _ => format!("encode {data}+{parity}"),
    };
    let coefficients: Vec<u8> = (0..parity).flat_map(row).collect();
    let id = format!("encode.{data}+{parity}");
    case((id, name), &coefficients, data as usize, parity as usize, false)
}

/// The first `lost` data fragments from all that is left.
fn decode(data: u32, lost: u32) -> Case {
    let code = Code::new(Redundancy { data, parity: lost });
    let sources: Vec<u32> = (lost..data + lost).collect();
    let coefficients: Vec<u8> = (0..lost).flat_map(|wanted| code.rebuild(&sources, wanted)).collect();
    let names = (format!("decode.{data}+{lost}"), format!("decode {data}+{lost}, {lost} data lost"));
    case(names, &coefficients, data as usize, lost as usize, false)
}

/// A small write: the difference of one fragment into all parity.
fn update(parity: u32) -> Case {
    let code = Code::new(Redundancy { data: 4, parity });
    let coefficients: Vec<u8> = (0..parity).map(|parity| code.coefficient(parity, 3)).collect();
    let names = (format!("update.{parity}"), format!("update {parity} parities by one fragment"));
    case(names, &coefficients, 1, parity as usize, true)
}

/// Products of fragments and coefficients, summed up for each output.
fn case(names: (String, String), coefficients: &[u8], inputs: usize, outputs: usize, add: bool) -> Case {
    type Combine = fn(&[u8], &[&[u8]], &mut [&mut [u8]], bool);
    let run = |combine: Combine| -> Box<dyn FnMut()> {
        let coefficients = coefficients.to_vec();
        let data: Vec<Vec<u8>> = (0..inputs).map(|seed| bytes(seed, FRAGMENT_BYTES)).collect();
        let mut results = vec![vec![0; FRAGMENT_BYTES]; outputs];
        Box::new(move || {
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut results: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
            combine(black_box(&coefficients), &data, &mut results, add);
            black_box(&results);
        })
    };
    Case { names, bytes: inputs * FRAGMENT_BYTES, fast: run(combine), plain: run(code::combine) }
}

fn checksum() -> Case {
    let block = bytes(1, BLOCK_BYTES);
    let again = block.clone();
    Case {
        names: ("crc32c".to_owned(), "CRC32C of 4 KiB".to_owned()),
        bytes: BLOCK_BYTES,
        fast: Box::new(move || _ = black_box(crc32c(black_box(&block)))),
        plain: Box::new(move || _ = black_box(plain_crc32c(black_box(&again)))),
    }
}

/// Bit by bit, as it is defined.
fn plain_crc32c(block: &[u8]) -> u32 {
    !block.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed * 151 + at * 83 + (at >> 8) * 7 + 1) as u8).collect()
}
