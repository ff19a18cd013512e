//! The places of the last reads that belonged to no stream, and the streams that are found among them.
//!
//! Owns: what is remembered of them, and the vote on where a stream would have been before. Never: what is
//! fetched. A tool that reads at random asks here each time, so most questions are answered by a count of
//! hashes. Called by `ahead`. Tests: below, `tests/ahead.rs`.

use super::stream::Trend;

/// Reads that are remembered.
const PLACES_MAX: usize = 32;
/// Each hash is an index here; with 32 places, one in 32 others has the hash of one of them.
const HASH_BITS: u32 = 10;
const HASHES: usize = 1 << HASH_BITS;
const WORD_BITS: usize = u64::BITS as usize;

#[derive(Debug)]
pub(super) struct Places {
    /// A ring, by columns: every read looks at all of one or two of them.
    starts: [u64; PLACES_MAX],
    ends: [u64; PLACES_MAX],
    /// `mix` of the start: that of a place so many strides away is found by adding, without multiplying.
    mixed: [u64; PLACES_MAX],
    /// Where the next goes, which is the oldest once there are so many.
    next: usize,
    count: usize,
    /// How many of the starts have this hash.
    hashed: [u8; HASHES],
    /// The same without the numbers: a question is answered from two lines of the processor's cache.
    is_hashed: [u64; HASHES / WORD_BITS],
}

impl Places {
    pub(super) fn new() -> Places {
        let none = [0; PLACES_MAX];
        let (hashed, is_hashed) = ([0; HASHES], [0; HASHES / WORD_BITS]);
        Places { starts: none, ends: none, mixed: none, next: 0, count: 0, hashed, is_hashed }
    }

    pub(super) fn remember(&mut self, offset: u64, len: u32) {
        let at = self.next;
        if self.count == PLACES_MAX {
            let oldest = hash(self.mixed[at]);
            self.hashed[oldest] -= 1;
            if self.hashed[oldest] == 0 {
                self.is_hashed[oldest / WORD_BITS] &= !(1 << (oldest % WORD_BITS));
            }
        }
        (self.starts[at], self.ends[at]) = (offset, offset + u64::from(len));
        self.mixed[at] = mix(offset);
        let hash = hash(self.mixed[at]);
        self.hashed[hash] += 1;
        self.is_hashed[hash / WORD_BITS] |= 1 << (hash % WORD_BITS);
        self.next = (at + 1) % PLACES_MAX;
        self.count = (self.count + 1).min(PLACES_MAX);
    }

    fn may_have(&self, mixed: u64) -> bool {
        let hash = hash(mixed);
        self.is_hashed[hash / WORD_BITS] >> (hash % WORD_BITS) & 1 == 1
    }

    fn has(&self, offset: u64) -> bool {
        self.may_have(mix(offset)) && self.starts[..self.count].contains(&offset)
    }

    /// How a stream would go whose last read this is.
    pub(super) fn trend(&self, offset: u64, len: u32) -> Option<Trend> {
        let (starts, ends) = (&self.starts[..self.count], &self.ends[..self.count]);
        // Without a branch for each, so that many are compared at once.
        let goes_on = starts
            .iter()
            .zip(ends)
            .fold(false, |found, (start, end)| found | ((*start < offset) & (*end >= offset)));
        if goes_on {
            return Some(Trend::Forward);
        }
        let end = offset + u64::from(len);
        let before = |(start, before): (&u64, &u64)| *start == end && *before > end && self.has(*before);
        if self.may_have(mix(end)) && starts.iter().zip(ends).any(before) {
            return Some(Trend::Backward);
        }
        let here = mix(offset);
        // The newest first: of several strides that fit it is the shortest.
        let newest_first = (1..=self.count).map(|back| (self.next + PLACES_MAX - back) % PLACES_MAX);
        let strides = newest_first.filter_map(|index| {
            let there = self.mixed[index];
            let two = there.wrapping_mul(2).wrapping_sub(here);
            let three = two.wrapping_add(there).wrapping_sub(here);
            if !(self.may_have(two) | self.may_have(three)) {
                return None;
            }
            let stride = offset.wrapping_sub(self.starts[index]).cast_signed();
            (stride != 0 && self.goes(offset, stride)).then_some(stride)
        });
        strides.map(Trend::Stride).next()
    }

    /// One place is there, for the stride was made from it; of the three before that, two must be.
    fn goes(&self, offset: u64, stride: i64) -> bool {
        let before = |steps: i64| {
            let at = stride.checked_mul(-steps).and_then(|back| offset.checked_add_signed(back));
            at.is_some_and(|at| self.has(at))
        };
        match (before(2), before(3)) {
            (true, true) => true,
            (false, false) => false,
            _ => before(4),
        }
    }
}

/// Linear, so that what holds for sums and differences of offsets holds for those of this.
fn mix(offset: u64) -> u64 {
    offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Fibonacci hashing: the highest bits depend on all others.
fn hash(mixed: u64) -> usize {
    (mixed >> (u64::BITS - HASH_BITS)) as usize
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
        for (hash, count) in places.hashed.iter().enumerate() {
            let is_hashed = places.is_hashed[hash / WORD_BITS] >> (hash % WORD_BITS) & 1;
            assert_eq!(is_hashed == 1, *count > 0);
        }
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
