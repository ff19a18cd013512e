//! Neighbours: what a read of no stream brings with it where a round trip takes long.
//!
//! Owns how much that is, learnt from the reads that neighbours spared a round trip. Never: streams, memory.
//! Invariant: who reads at random gets nothing before long but what was asked for, and a look now and then
//! whether that is still so. Called by `ahead`. Tests: below, and `tests/ahead.rs`.
//!
//! Neighbours take the path's time, an eighth of a round trip, and a read that finds its bytes among them
//! saves a whole one. So they are worth it even if one in eight is read; as the path may be slower than it
//! seems, one for each time is demanded, and less is fetched the fewer there are. It is counted when it is
//! fetched: whether all of it was in vain shows only when it is given up, which for a cache that is not full
//! is after thousands of reads.

use super::{AROUND, FREE_PART, PIECE_BYTES_MAX, Want, blocks, part};

/// It is not worth it to guess so little, or such a part of all that may be guessed.
const BYTES_MIN: u64 = 32 << 10;
const PART_MIN: u64 = 4;
/// When guessing was given up it is tried again each so many reads,
const PROBE_READS: u32 = 128;
/// with so much that it tells how fast the path is as well, which small reads alone do not.
const PROBE_BYTES: u64 = 128 << 10;
/// What counts as one guess in the sums.
const GUESS: u64 = 1 << 10;
/// Full guesses that are made on trust,
const TRUSTED: u64 = 2 * GUESS;
/// that are remembered,
const REMEMBERED: u64 = 16 * GUESS;
/// and reads that are: so many that some guesses in vain, one after the other, make the next no smaller.
const SPARED_MAX: u64 = 2 * REMEMBERED;

#[derive(Debug, Default)]
pub(super) struct Around {
    /// Bytes of the last guess that trusted in all that is near.
    full: u64,
    /// What was fetched, in full guesses, and for each read that found its bytes there one; what is long ago
    /// counts less.
    fetched: u64,
    spared: u64,
    skipped: u32,
}

impl Around {
    /// Adds what is to be fetched around a read that donors are asked for. `path`: bytes that the path holds.
    /// `most`: that there is memory for.
    pub(super) fn fetch(
        &mut self,
        offset: u64,
        len: u32,
        size: u64,
        path: u64,
        most: u64,
        wants: &mut Vec<Want>,
    ) {
        let Some(bytes) = self.guess(path / FREE_PART, len, most.min(PIECE_BYTES_MAX)) else { return };
        // The largest power of two that fits.
        let grain = 1 << bytes.ilog2();
        let end = offset + u64::from(len);
        let (from, to) = (offset / grain * grain, end.next_multiple_of(grain));
        wants.extend(blocks(end, to, size, AROUND));
        wants.extend(blocks(from, offset, size, AROUND));
    }

    /// So much of `full` bytes, of `most`, is worth fetching around a read of so many: twice as many at
    /// least, or none.
    fn guess(&mut self, full: u64, len: u32, most: u64) -> Option<u64> {
        let full = full.min(most);
        self.full = full;
        let bytes = part(full, self.spared + TRUSTED, self.fetched + TRUSTED).min(full);
        let read = 2 * u64::from(len);
        if bytes >= BYTES_MIN.max(full / PART_MIN).max(read) {
            self.skipped = 0;
            return Some(bytes);
        }
        self.skipped += 1;
        if self.skipped < PROBE_READS {
            return None;
        }
        self.skipped = 0;
        Some(PROBE_BYTES.max(read).min(most)).filter(|bytes| *bytes >= read)
    }

    pub(super) fn fetched(&mut self, bytes: u32) {
        self.fetched += part(bytes.into(), GUESS, self.full.max(PROBE_BYTES));
        if self.fetched > REMEMBERED {
            self.spared = part(self.spared, REMEMBERED, self.fetched);
            self.fetched = REMEMBERED;
        }
    }

    /// A read found its bytes, or some of them.
    pub(super) fn hit(&mut self) {
        self.spared = (self.spared + GUESS).min(SPARED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u64 = 256 << 10;
    const BLOCK: u32 = 4096;

    /// What is fetched for so many reads in a row, of each of which `hits` others find their bytes.
    fn guesses(around: &mut Around, full: u64, len: u32, reads: usize, hits: usize) -> Vec<u64> {
        let mut guess = || {
            let bytes = around.guess(full, len, PIECE_BYTES_MAX).unwrap_or_default();
            around.fetched(bytes as u32);
            (0..if bytes > 0 { hits } else { 0 }).for_each(|_| around.hit());
            bytes
        };
        (0..reads).map(|_| guess()).collect()
    }

    fn made(guesses: &[u64]) -> usize {
        guesses.iter().filter(|bytes| **bytes > 0).count()
    }

    #[test]
    fn reads_at_random_before_long_bring_nothing() {
        // Of readers of whom nothing is known, and of those who read what is near until then.
        for (before, most) in [(0, 16 * FULL), (1000, 80 * FULL)] {
            let mut around = Around::default();
            guesses(&mut around, FULL, BLOCK, before, 5);
            let begun: u64 = guesses(&mut around, FULL, BLOCK, 300, 0).iter().sum();
            assert!(begun < most, "{begun} bytes");
            let then = made(&guesses(&mut around, FULL, BLOCK, 6400, 0));
            assert!((40..=50).contains(&then), "a look now and then: {then}");
        }
    }

    #[test]
    fn as_long_as_each_spares_a_read_it_is_fetched_in_full_and_so_it_is_again() {
        let mut around = Around::default();
        assert!(guesses(&mut around, FULL, BLOCK, 1000, 1).iter().all(|bytes| *bytes == FULL));
        let random = guesses(&mut around, FULL, BLOCK, 1000, 0);
        assert!(made(&random[500..]) <= 4);
        let near = guesses(&mut around, FULL, BLOCK, 1000, 2);
        assert_eq!(near[999], FULL);
        // As when a tool begins: it looks here and there first.
        assert_eq!(guesses(&mut around, FULL, BLOCK, 8, 0), [FULL; 8]);
    }

    #[test]
    fn what_was_given_up_is_tried_with_enough_to_measure_the_path() {
        let mut around = Around::default();
        guesses(&mut around, FULL, BLOCK, 400, 0);
        // Small reads alone make the path seem as slow as they are.
        let slow = guesses(&mut around, 512, BLOCK, 1000, 2);
        assert!(made(&slow) >= 7 && slow.iter().all(|bytes| [0, PROBE_BYTES].contains(bytes)), "{slow:?}");
        assert!(made(&guesses(&mut around, FULL, BLOCK, 10, 2)) == 10, "it is as it was before");
    }

    #[test]
    fn large_reads_are_tried_as_well() {
        let mut around = Around::default();
        guesses(&mut around, FULL, BLOCK, 400, 0);
        let large = guesses(&mut around, FULL, 64 << 10, 2000, 2);
        assert_eq!(large[1999], FULL);
        assert_eq!(
            made(&guesses(&mut around, FULL, 1 << 20, 1000, 2)),
            0,
            "there is no room for twice as much"
        );
    }

    #[test]
    fn a_short_path_has_no_room_for_neighbours() {
        let mut around = Around::default();
        for full in [16 << 10, 0] {
            assert!(made(&guesses(&mut around, full, BLOCK, 1280, 0)) <= 10);
        }
    }
}
