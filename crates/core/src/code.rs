//! The erasure code of a group: any k of its k+m fragments give back the others.
//!
//! Owns GF(2^8) (polynomial 0x11d), the coefficients, and the scalar combination that the rim's fast one is
//! held to. Never: which fragments are read or written (`volume`), or speed (`code` of the rim).
//! The code is systematic, over a Cauchy matrix whose rows and columns are scaled until the first parity row
//! and the first column are all ones: the first parity is XOR, and with one data fragment every parity is a
//! copy. Invariant: every square part of the parity matrix has an inverse, so every k fragments determine the
//! rest; a coefficient depends on its row and column only, never on k or m. It works byte by byte: a range of
//! a fragment follows from the same ranges of the others.
//! Called by `volume`, `sim` and the rim. Tests: below, and the properties in `tests/code.rs`.

use crate::limits::STRIPE_DONORS_MAX;
use crate::map::Redundancy;

/// x^8 + x^4 + x^3 + x^2 + 1, of which x is a generator.
const POLYNOMIAL: u16 = 0x11d;
/// `EXP[i]` is x^i; twice the period, so that a sum of two logarithms needs no modulo.
const EXP: [u8; 510] = powers();
/// `LOG[EXP[i]]` is i, for i below 255; `LOG[0]` means nothing.
const LOG: [u8; 256] = logarithms();

// A row and a column never name the same element of the field: columns count up from 0, rows down from 255.
const _: () = assert!(2 * STRIPE_DONORS_MAX <= 256);

const fn powers() -> [u8; 510] {
    let mut table = [0; 510];
    let (mut power, mut i) = (1_u16, 0);
    while i < table.len() {
        table[i] = power as u8;
        power <<= 1;
        if power > 0xff {
            power ^= POLYNOMIAL;
        }
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

/// The product in GF(2^8).
#[must_use]
pub const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// The inverse of an element that is not 0.
fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// Coefficients of the (k, m) code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    redundancy: Redundancy,
}

impl Code {
    /// The code of a redundancy that passed `VolumeMap::check`.
    ///
    /// # Panics
    /// There is no data fragment, or there are more than `STRIPE_DONORS_MAX` fragments.
    #[must_use]
    pub fn new(redundancy: Redundancy) -> Code {
        assert!(
            redundancy.data >= 1 && redundancy.width() <= STRIPE_DONORS_MAX,
            "no code for {redundancy:?}"
        );
        Code { redundancy }
    }

    /// Parity fragment `parity` (0..m) is the sum over data fragments j of `coefficient(parity, j)` times j.
    #[must_use]
    pub fn coefficient(&self, parity: u32, data: u32) -> u8 {
        let Redundancy { data: k, parity: m } = self.redundancy;
        assert!(parity < m && data < k, "no coefficient ({parity}, {data}) in {:?}", self.redundancy);
        // Cauchy's 1/(x+y), divided by its column's value in the first row and its row's in the first column.
        let (x, y) = (255 - parity as u8, data as u8);
        let (first_x, first_y) = (255, 0);
        let above = multiply(first_x ^ y, x ^ first_y);
        let below = multiply(x ^ y, first_x ^ first_y);
        multiply(above, inverse(below))
    }

    /// Fragment `wanted` (0..k+m) is the sum over i of `result[i]` times fragment `sources[i]`. The sources
    /// are k different slots, and none is `wanted`.
    #[must_use]
    pub fn rebuild(&self, sources: &[u32], wanted: u32) -> Vec<u8> {
        let k = self.redundancy.data as usize;
        assert!(sources.len() == k, "{} sources for {:?}", sources.len(), self.redundancy);
        assert!(!sources.contains(&wanted), "slot {wanted} is rebuilt from others");
        // One equation a data fragment, one unknown a source; the last column is what `wanted` is made of.
        let mut rows: Vec<Vec<u8>> = (0..self.redundancy.data)
            .map(|data| sources.iter().chain([&wanted]).map(|slot| self.part(*slot, data)).collect())
            .collect();
        for column in 0..k {
            let pivot =
                (column..k).find(|row| rows[*row][column] != 0).expect("k different slots determine all");
            rows.swap(column, pivot);
            let scale = inverse(rows[column][column]);
            rows[column].iter_mut().for_each(|value| *value = multiply(*value, scale));
            let subtrahend = std::mem::take(&mut rows[column]);
            for row in &mut rows {
                // The row that was taken out is empty and stays so.
                let factor = row.get(column).copied().unwrap_or(0);
                if factor != 0 {
                    row.iter_mut().zip(&subtrahend).for_each(|(value, by)| *value ^= multiply(*by, factor));
                }
            }
            rows[column] = subtrahend;
        }
        rows.iter().map(|row| row[k]).collect()
    }

    /// How much of data fragment `data` is in fragment `slot`.
    fn part(&self, slot: u32, data: u32) -> u8 {
        match slot.checked_sub(self.redundancy.data) {
            None => u8::from(slot == data),
            Some(parity) => self.coefficient(parity, data),
        }
    }
}

/// `out_o = (add ? out_o : 0) + sum_i coefficients[o * inputs + i] * input_i`, for fragments of one length.
pub fn combine(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
    assert_eq!(
        coefficients.len(),
        inputs.len() * outputs.len(),
        "one coefficient for each input of each output"
    );
    for (index, output) in outputs.iter_mut().enumerate() {
        if !add {
            output.fill(0);
        }
        for (input, factor) in inputs.iter().zip(&coefficients[index * inputs.len()..]) {
            assert_eq!(input.len(), output.len(), "inputs and outputs of one length");
            match *factor {
                0 => {}
                1 => output.iter_mut().zip(*input).for_each(|(out, byte)| *out ^= byte),
                factor => {
                    let products: [u8; 256] = std::array::from_fn(|byte| multiply(byte as u8, factor));
                    output
                        .iter_mut()
                        .zip(*input)
                        .for_each(|(out, byte)| *out ^= products[usize::from(*byte)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(data: u32, parity: u32) -> Code {
        Code::new(Redundancy { data, parity })
    }

    #[test]
    fn the_field_is_a_field() {
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1);
            assert_eq!((multiply(a, 0), multiply(0, a), multiply(a, 1)), (0, 0, a));
        }
        assert_eq!(multiply(0x80, 2), 0x1d, "the polynomial");
        assert_eq!(multiply(3, 7), 9);
    }

    #[test]
    fn the_first_parity_is_xor_and_mirrors_are_copies() {
        for data in 1..32 {
            let wide = code(data, 4.min(32 - data));
            assert!((0..data).all(|column| wide.coefficient(0, column) == 1));
            assert!((0..4.min(32 - data)).all(|row| wide.coefficient(row, 0) == 1));
        }
        for parity in 1..=31 {
            let mirror = code(1, parity);
            assert!((0..parity).all(|row| mirror.coefficient(row, 0) == 1));
            assert_eq!(mirror.rebuild(&[parity], 0), [1]);
        }
    }

    /// Pools outlive programs: what an old client wrote, a later one rebuilds.
    #[test]
    fn the_coefficients_are_these() {
        let code = code(4, 3);
        let row = |parity| (0..4).map(|data| code.coefficient(parity, data)).collect::<Vec<_>>();
        assert_eq!([row(0), row(1), row(2)], COEFFICIENTS_4_3);
    }

    const COEFFICIENTS_4_3: [[u8; 4]; 3] = [[1, 1, 1, 1], [1, 231, 253, 2], [1, 253, 190, 44]];

    #[test]
    fn a_combination_replaces_or_adds() {
        let (a, b) = ([1_u8, 2, 0x80], [0x10_u8, 0, 0xff]);
        let (mut first, mut second) = ([7_u8; 3], [7_u8; 3]);
        combine(&[1, 1, 2, 0], &[&a, &b], &mut [&mut first, &mut second], false);
        assert_eq!((first, second), ([0x11, 2, 0x7f], [2, 4, 0x1d]));
        combine(&[1], &[&a], &mut [&mut first], true);
        assert_eq!(first, [0x10, 0, 0xff]);
        combine(&[], &[], &mut [&mut first], false);
        assert_eq!(first, [0; 3], "a sum of nothing");
    }
}
