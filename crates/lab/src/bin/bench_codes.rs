//! The erasure code and the checksum of a client, beside their plain reference: `make bench-codes`.
//!
//! Each is given 64 KiB fragments (4 KiB blocks for the checksum), in turns (A B A B), and reported as a
//! median with its spread, in GB/s of the bytes that are read. Fragments fit the processor's caches: this is
//! what the code costs, not the memory. Prints a Markdown table and writes `bench/codes.json` in the build
//! directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use cheetah_core::code::{self, Code};
use cheetah_core::map::Redundancy;
use cheetah_lab::figures::{self, Series};
use cheetah_rim::code::{combine, crc32c};
use serde_json::json;

const FRAGMENT_BYTES: usize = 64 << 10;
const BLOCK_BYTES: usize = 4 << 10;

struct Options {
    rounds: usize,
    time: Duration,
}

/// A thing that is measured, and its plain reference.
struct Case {
    name: String,
    bytes: usize,
    fast: Box<dyn FnMut()>,
    plain: Box<dyn FnMut()>,
}

fn main() {
    let options = options();
    let mut cases = vec![
        encode(4, 2),
        encode(8, 2),
        decode(4, 2),
        decode(8, 2),
        encode(4, 1),
        update(2),
        encode(1, 1),
        checksum(),
    ];
    println!("64 KiB fragments, one thread, {} rounds of {:?}.\n", options.rounds, options.time);
    println!("| GB/s of input | cheetah | plain | ratio |\n|---|---|---|---|");
    let mut report = Vec::new();
    for case in &mut cases {
        let (mut fast, mut plain) = (Series::default(), Series::default());
        // One turn of each first, which is not counted.
        for round in 0..=options.rounds {
            for (work, series) in [(&mut case.fast, &mut fast), (&mut case.plain, &mut plain)] {
                let figure = gb_per_second(work, case.bytes, options.time);
                if round > 0 {
                    series.push(figure);
                }
            }
        }
        let ratio = fast.median() / plain.median();
        println!("| {} | {} | {} | {ratio:.1} |", case.name, fast.shown(2), plain.shown(2));
        report.push(json!({"case": case.name, "cheetah": fast.values(), "plain": plain.values()}));
    }
    let seconds = options.time.as_secs_f64();
    let report = json!({"rounds": options.rounds, "seconds": seconds, "gb_per_second": report});
    println!("\nWritten to {}", figures::write_report("codes.json", &report).display());
}

fn gb_per_second(work: &mut dyn FnMut(), bytes: usize, time: Duration) -> f64 {
    // The clock is asked once for about a megabyte.
    let batch = (1 << 20) / bytes + 1;
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < time {
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
    case(name, &coefficients, data as usize, parity as usize, false)
}

/// The first `lost` data fragments from all that is left.
fn decode(data: u32, lost: u32) -> Case {
    let code = Code::new(Redundancy { data, parity: lost });
    let sources: Vec<u32> = (lost..data + lost).collect();
    let coefficients: Vec<u8> = (0..lost).flat_map(|wanted| code.rebuild(&sources, wanted)).collect();
    case(
        format!("decode {data}+{lost}, {lost} data lost"),
        &coefficients,
        data as usize,
        lost as usize,
        false,
    )
}

/// A small write: the difference of one fragment into all parity.
fn update(parity: u32) -> Case {
    let code = Code::new(Redundancy { data: 4, parity });
    let coefficients: Vec<u8> = (0..parity).map(|parity| code.coefficient(parity, 3)).collect();
    case(format!("update {parity} parities by one fragment"), &coefficients, 1, parity as usize, true)
}

fn case(name: String, coefficients: &[u8], inputs: usize, outputs: usize, add: bool) -> Case {
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
    Case { name, bytes: inputs * FRAGMENT_BYTES, fast: run(combine), plain: run(code::combine) }
}

fn checksum() -> Case {
    let block = bytes(1, BLOCK_BYTES);
    let again = block.clone();
    Case {
        name: "CRC32C of 4 KiB".to_owned(),
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

fn options() -> Options {
    let mut options = Options { rounds: 9, time: Duration::from_millis(50) };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => options.rounds = value().parse().expect("a number of rounds"),
            "--seconds" => options.time = Duration::from_secs_f64(value().parse().expect("seconds")),
            _ => panic!("usage: bench_codes [--rounds N] [--seconds S]"),
        }
    }
    options
}
