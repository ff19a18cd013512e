//! Neighbours: what a read of no stream brings with it where a round trip takes long.
//!
//! Owns how much that is, learnt from the reads that neighbours spared a round trip. Never: streams, memory.
//! Invariant: who reads at random soon gets nothing but what was asked for, and a look now and then whether that is still so.
//! Called by `ahead`. Tests: below, and `tests/ahead.rs`.
//!
//! Neighbours take the path's time, an eighth of a round trip, and a read that finds its bytes among them saves a whole one. So
//! they are worth it even if one in eight is read; as the path may be slower than it seems, one for each time is demanded, and less
//! is fetched the fewer there are. It is counted when it is fetched: whether all of it was in vain shows only when it is given
//! up, which for a cache that is not full is after thousands of reads.

use super::{PIECE_BYTES_MAX, Want, blocks};

/// This part of what the path holds takes so little longer than the round trip that it is worth a guess,
const PATH_PART: u64 = 8;
/// but not so little, or such a part of a guess.
const BYTES_MIN: u64 = 32 << 10;
const PART_MIN: u64 = 8;
/// Full guesses that are made on trust,
const TRUSTED: u64 = 2;
/// and that are remembered.
const REMEMBERED: u64 = 16;
/// When guessing was given up, it is tried again each so many reads.
const PROBE: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Around {
    /// Bytes of a guess that trusts in all that is near.
    full: u64,
    /// Bytes that were fetched, and so many full guesses as reads found their bytes there; what is long ago counts less.
    fetched: u64,
    spared: u64,
    skipped: u32,
}

impl Around {
    /// Adds what is to be fetched around a read that donors are asked for. `path`: bytes that the path holds. `most`: that there
    /// is memory for.
    pub(super) fn fetch(
        &mut self,
        offset: u64,
        len: u32,
        size: u64,
        path: u64,
        most: u64,
        wants: &mut Vec<Want>,
    ) {
        let bytes = self.guess((path / PATH_PART).min(PIECE_BYTES_MAX).min(most));
        if bytes < 2 * u64::from(len) {
            return;
        }
        // The largest power of two that fits.
        let grain = bytes.next_power_of_two() / if bytes.is_power_of_two() { 1 } else { 2 };
        let end = offset + u64::from(len);
        let (from, to) = (offset / grain * grain, end.next_multiple_of(grain));
        wants.extend(blocks(end, to, size, super::AROUND));
        wants.extend(blocks(from, offset, size, super::AROUND));
    }

    /// So much of `full` bytes is worth fetching now.
    fn guess(&mut self, full: u64) -> u64 {
        self.full = full;
        self.forget();
        let trusted = TRUSTED * full;
        let bytes = part(full, self.spared + trusted, self.fetched + trusted).min(full);
        let least = BYTES_MIN.max(full / PART_MIN);
        self.skipped = if bytes < least { self.skipped + 1 } else { 0 };
        match self.skipped {
            0 => bytes,
            PROBE => {
                self.skipped = 0;
                least.min(full)
            }
            _ => 0,
        }
    }

    fn forget(&mut self) {
        let remembered = REMEMBERED * self.full;
        if self.fetched > remembered {
            self.spared = part(self.spared, remembered, self.fetched);
            self.fetched = remembered;
        }
        // Or reads at random after very near ones would be taken for those for long.
        self.spared = self.spared.min(2 * remembered);
    }

    pub(super) fn fetched(&mut self, bytes: u32) {
        self.fetched += u64::from(bytes);
    }

    /// A read found its bytes, or some of them.
    pub(super) fn hit(&mut self) {
        self.spared += self.full;
    }
}

/// `bytes` times `some` of `all`.
fn part(bytes: u64, some: u64, all: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(some) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u64 = 256 << 10;

    /// What is fetched for so many reads in a row, of each of which `hits` others find their bytes.
    fn guesses(around: &mut Around, reads: usize, hits: usize) -> Vec<u64> {
        let mut guess = || {
            let bytes = around.guess(FULL);
            around.fetched(bytes as u32);
            (0..if bytes > 0 { hits } else { 0 }).for_each(|_| around.hit());
            bytes
        };
        (0..reads).map(|_| guess()).collect()
    }

    #[test]
    fn reads_at_random_soon_bring_nothing() {
        let mut around = Around::default();
        let begun: u64 = guesses(&mut around, 100, 0).iter().sum();
        assert!(begun < 16 * FULL, "{begun} bytes");
        let then = guesses(&mut around, 6400, 0);
        assert!(then.iter().filter(|bytes| **bytes > 0).count() <= 100, "but a look now and then");
    }

    #[test]
    fn as_long_as_each_spares_a_read_it_is_fetched_in_full_and_so_it_is_again() {
        let mut around = Around::default();
        assert!(guesses(&mut around, 1000, 1).iter().all(|bytes| *bytes == FULL));
        let random = guesses(&mut around, 400, 0);
        assert_eq!(random[399], 0, "after reads that were near each other it is found as well");
        let near = guesses(&mut around, 200, 2);
        assert_eq!(near[199], FULL);
    }

    #[test]
    fn a_short_path_has_no_room_for_neighbours() {
        let mut around = Around::default();
        assert!((0..1000).all(|_| around.guess(16 << 10) <= 16 << 10));
        assert!((0..1000).all(|_| around.guess(0) == 0));
    }
}
