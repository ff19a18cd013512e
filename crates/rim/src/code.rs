//! Combining fragments and checksumming blocks, fast.
//!
//! Owns the choice of the kernel for what is asked on this processor. Never: coefficients (`core::code`), or
//! what a checksum that differs means (`core::volume`).
//! Invariant: bit for bit what `cheetah_core::code::combine` does, on every processor, for every length and
//! alignment. Called by `volume`. Tests: `tests/code.rs`; speed: `make bench-codes`.

#[cfg(target_arch = "x86_64")]
mod avx2;

use cheetah_core::code as scalar;

/// `out_o = (add ? out_o : 0) + sum_i coefficients[o * inputs + i] * input_i`, for fragments of one length.
pub fn combine(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
    assert_eq!(
        coefficients.len(),
        inputs.len() * outputs.len(),
        "one coefficient for each input of each output"
    );
    let Some(len) = outputs.first().map(|output| output.len()) else { return };
    let mut all_lengths =
        inputs.iter().map(|input| input.len()).chain(outputs.iter().map(|output| output.len()));
    assert!(all_lengths.all(|each| each == len), "inputs and outputs of one length");
    match inputs {
        [_] if !add && coefficients.iter().all(|factor| *factor == 1) => {
            // Not `copy_from_slice`: for this much it was measured at a tenth of the kernel's speed.
            for output in outputs {
                combine_by_lines(&[1], inputs, &mut [&mut **output], false);
            }
        }
        [] => scalar::combine(coefficients, inputs, outputs, add),
        _ => combine_by_lines(coefficients, inputs, outputs, add),
    }
}

#[cfg(target_arch = "x86_64")]
fn combine_by_lines(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
    let rows = coefficients.chunks(avx2::OUTPUTS_MAX * inputs.len());
    for (rows, outputs) in rows.zip(outputs.chunks_mut(avx2::OUTPUTS_MAX)) {
        if avx2::combine_lines(rows, inputs, outputs, add) {
            let rest = outputs[0].len() / avx2::LINE_BYTES * avx2::LINE_BYTES;
            combine_bytes(rows, inputs, outputs, add, rest);
        } else {
            scalar::combine(rows, inputs, outputs, add);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn combine_by_lines(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
    scalar::combine(coefficients, inputs, outputs, add);
}

/// The bytes from `from` on, fewer than a line: tables for them would cost more than they save.
#[cfg(target_arch = "x86_64")]
fn combine_bytes(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], add: bool, from: usize) {
    for (output, row) in outputs.iter_mut().zip(coefficients.chunks(inputs.len())) {
        for at in from..output.len() {
            let sum = if add { output[at] } else { 0 };
            output[at] = row
                .iter()
                .zip(inputs)
                .fold(sum, |sum, (factor, input)| sum ^ scalar::multiply(*factor, input[at]));
        }
    }
}

/// CRC32C (Castagnoli) of a block: of two libraries the one that is faster here, 67 and 19 GB/s for 4 KiB
/// with AVX-512, 14 and 20 without.
#[must_use]
pub fn crc32c(block: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512vl") {
        return crc_fast::crc32_iscsi(block);
    }
    crc32c::crc32c(block)
}
