//! Combination of fragments with AVX2: a product of 32 bytes is two table look-ups in registers.
//!
//! Owns the kernel, 64 bytes (a cache line) of every input at a time, for up to `OUTPUTS_MAX` outputs at
//! once. Never: the rest of a fragment behind its last whole line, or the choice of a kernel (`code`).
//! Invariant: memory is reached through array references only; a line that an input lacks is a panic.
//! Called by `code`. Tests: there. One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use cheetah_core::code::multiply;
use cheetah_core::limits::STRIPE_DONORS_MAX;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_xor_si256,
};

pub const LINE_BYTES: usize = 64;
/// As many as have their sums in registers.
pub const OUTPUTS_MAX: usize = 4;
/// No group has more fragments.
const INPUTS_MAX: usize = STRIPE_DONORS_MAX as usize;

type Line = [u8; LINE_BYTES];
/// One factor's products with every lower half of a byte, then with every upper half.
type Products = [[u8; 16]; 2];

static PRODUCTS: [Products; 256] = products();

const fn products() -> [Products; 256] {
    let mut table = [[[0; 16]; 2]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut half = 0;
        while half < 16 {
            table[factor][0][half] = multiply(factor as u8, half as u8);
            table[factor][1][half] = multiply(factor as u8, (half << 4) as u8);
            half += 1;
        }
        factor += 1;
    }
    table
}

/// Combines the whole lines of fragments of one length; false, and nothing is done, where the processor has
/// no AVX2 or there are more inputs than a code has.
pub fn combine_lines(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) -> bool {
    if inputs.len() > INPUTS_MAX || !std::arch::is_x86_feature_detected!("avx2") {
        return false;
    }
    let xor_first = coefficients[..inputs.len()].iter().all(|factor| *factor == 1);
    let kernel = match (outputs.len(), xor_first) {
        (1, true) => kernel::<1, true>,
        (1, false) => kernel::<1, false>,
        (2, true) => kernel::<2, true>,
        (2, false) => kernel::<2, false>,
        (3, true) => kernel::<3, true>,
        (3, false) => kernel::<3, false>,
        (OUTPUTS_MAX, true) => kernel::<OUTPUTS_MAX, true>,
        (OUTPUTS_MAX, false) => kernel::<OUTPUTS_MAX, false>,
        (other, _) => unreachable!("{other} outputs at once"),
    };
    // SAFETY: the processor has AVX2, as was just asked.
    unsafe { kernel(coefficients, inputs, outputs, add) };
    true
}

/// What one input gives: its lines, and its products for each output.
#[derive(Clone, Copy)]
struct Term<'a, const OUTPUTS: usize> {
    lines: &'a [Line],
    products: [Products; OUTPUTS],
}

/// `XOR_FIRST`: the coefficients of the first output are all ones.
#[target_feature(enable = "avx2")]
#[allow(clippy::needless_range_loop, reason = "a constant range is unrolled, and the sums stay in registers")]
fn kernel<const OUTPUTS: usize, const XOR_FIRST: bool>(
    coefficients: &[u8],
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
    add: bool,
) {
    // Looked up once, since the loop below is bound by how many instructions there are.
    let mut terms = [Term { lines: &[], products: [PRODUCTS[0]; OUTPUTS] }; INPUTS_MAX];
    for (index, (term, input)) in terms.iter_mut().zip(inputs).enumerate() {
        term.lines = input.as_chunks().0;
        for (output, products) in term.products.iter_mut().enumerate() {
            *products = PRODUCTS[usize::from(coefficients[output * inputs.len() + index])];
        }
    }
    let terms = &terms[..inputs.len()];
    let lower = _mm256_set1_epi8(0x0f);
    for line in 0..outputs[0].len() / LINE_BYTES {
        let mut sums = [[_mm256_setzero_si256(); 2]; OUTPUTS];
        if add {
            for output in 0..OUTPUTS {
                sums[output] = load_line(&outputs[output].as_chunks().0[line]);
            }
        }
        for term in terms {
            let [first, second] = load_line(&term.lines[line]);
            let (low, high) = halves(first, lower);
            let (second_low, second_high) = halves(second, lower);
            for output in 0..OUTPUTS {
                let (sum, products) = (&mut sums[output], &term.products[output]);
                if XOR_FIRST && output == 0 {
                    sum[0] = _mm256_xor_si256(sum[0], first);
                    sum[1] = _mm256_xor_si256(sum[1], second);
                    continue;
                }
                let (of_low, of_high) = (load_table(&products[0]), load_table(&products[1]));
                // The product first: one XOR on the way from sum to sum, not two.
                let product =
                    _mm256_xor_si256(_mm256_shuffle_epi8(of_low, low), _mm256_shuffle_epi8(of_high, high));
                sum[0] = _mm256_xor_si256(sum[0], product);
                let product = _mm256_xor_si256(
                    _mm256_shuffle_epi8(of_low, second_low),
                    _mm256_shuffle_epi8(of_high, second_high),
                );
                sum[1] = _mm256_xor_si256(sum[1], product);
            }
        }
        for output in 0..OUTPUTS {
            store_line(&mut outputs[output].as_chunks_mut().0[line], sums[output]);
        }
    }
}

/// The lower and the upper half of each byte.
#[target_feature(enable = "avx2")]
fn halves(bytes: __m256i, lower: __m256i) -> (__m256i, __m256i) {
    (_mm256_and_si256(bytes, lower), _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), lower))
}

#[target_feature(enable = "avx2")]
fn load_line(line: &Line) -> [__m256i; 2] {
    let half = line.as_ptr().cast::<__m256i>();
    // SAFETY: a line is two times 32 bytes; the instruction needs no alignment.
    unsafe { [_mm256_loadu_si256(half), _mm256_loadu_si256(half.add(1))] }
}

#[target_feature(enable = "avx2")]
fn store_line(line: &mut Line, sums: [__m256i; 2]) {
    let half = line.as_mut_ptr().cast::<__m256i>();
    // SAFETY: as above, and the line is ours alone.
    unsafe {
        _mm256_storeu_si256(half, sums[0]);
        _mm256_storeu_si256(half.add(1), sums[1]);
    }
}

#[target_feature(enable = "avx2")]
fn load_table(table: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes that may be read; the instruction needs no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) })
}
