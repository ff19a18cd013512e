//! The places of the last reads that belonged to no stream, and the streams that are found among them.
//!
//! Owns: what is remembered of them, and the vote on where a stream would have been before. Never: what is fetched.
//! A tool that reads at random asks here each time, so most questions are answered by a count of hashes.
//! Called by `ahead`. Tests: below, `tests/ahead.rs`.

use super::stream::Trend;
use std::collections::VecDeque;

/// Reads that are remembered.
const PLACES_MAX: usize = 32;
/// Each hash is an index here; with 32 places, one in 32 others has the hash of one of them.
const HASH_BITS: u32 = 10;
const HASHES: usize = 1 << HASH_BITS;

#[derive(Debug)]
pub(super) struct Places {
    /// Offset and length, oldest first.
    reads: VecDeque<(u64, u32)>,
    /// How many of the offsets have this hash.
    hashed: [u8; HASHES],
}

impl Places {
    pub(super) fn new() -> Places {
        Places { reads: VecDeque::with_capacity(PLACES_MAX), hashed: [0; HASHES] }
    }

    pub(super) fn remember(&mut self, offset: u64, len: u32) {
        if self.reads.len() == PLACES_MAX
            && let Some((oldest, _)) = self.reads.pop_front()
        {
            self.hashed[hash(oldest)] -= 1;
        }
        self.reads.push_back((offset, len));
        self.hashed[hash(offset)] += 1;
    }

    fn has(&self, offset: u64) -> bool {
        self.hashed[hash(offset)] > 0 && self.reads.iter().any(|(at, _)| *at == offset)
    }

    /// How a stream would go whose last read this is.
    pub(super) fn trend(&self, offset: u64, len: u32) -> Option<Trend> {
        let end = offset + u64::from(len);
        if self.reads.iter().any(|(at, len)| *at < offset && at + u64::from(*len) >= offset) {
            return Some(Trend::Forward);
        }
        if self.has(end)
            && let Some((_, before)) = self.reads.iter().find(|(at, len)| *at == end && *len > 0)
            && self.has(end + u64::from(*before))
        {
            return Some(Trend::Backward);
        }
        let strides = self.reads.iter().rev().filter_map(|(at, _)| {
            let stride = offset.wrapping_sub(*at).cast_signed();
            (stride != 0).then_some(stride)
        });
        // One place is there, for the stride was made from it; of the three before that, two must be.
        let goes = |stride: &i64| {
            let before = |steps: i64| {
                let at = stride.checked_mul(-steps).and_then(|back| offset.checked_add_signed(back));
                at.is_some_and(|at| self.has(at))
            };
            match (before(2), before(3)) {
                (true, true) => true,
                (false, false) => false,
                _ => before(4),
            }
        };
        strides.into_iter().find(goes).map(Trend::Stride)
    }
}

fn hash(offset: u64) -> usize {
    // Fibonacci hashing: the highest bits depend on all others.
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HASH_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_is_not_there() {
        let mut places = Places::new();
        for number in 0..2 * PLACES_MAX as u64 {
            places.remember(number << 20, 4096);
        }
        let there = (0..2 * PLACES_MAX as u64).filter(|number| places.has(number << 20));
        assert_eq!(there.collect::<Vec<_>>(), (PLACES_MAX as u64..2 * PLACES_MAX as u64).collect::<Vec<_>>());
        assert_eq!(places.hashed.iter().map(|count| usize::from(*count)).sum::<usize>(), PLACES_MAX);
    }

    #[test]
    fn three_of_four_places_make_a_stride() {
        let place = |number: u64| (number + 10) << 20;
        let trend = |numbers: &[u64]| {
            let mut places = Places::new();
            numbers.iter().for_each(|number| places.remember(place(*number), 4096));
            places.trend(place(4), 4096)
        };
        assert_eq!(trend(&[3, 2, 1]), Some(Trend::Stride(1 << 20)));
        assert_eq!(trend(&[3, 0, 1]), Some(Trend::Stride(1 << 20)));
        assert_eq!(trend(&[3, 2, 0]), Some(Trend::Stride(1 << 20)));
        assert_eq!(trend(&[3, 2]), None);
        assert_eq!(trend(&[3, 1]), None);
        assert_eq!(trend(&[2, 1, 0]), None);
    }
}
