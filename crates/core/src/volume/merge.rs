//! How much may leave for a donor as one request, made of several writes that lie one behind the other.
//!
//! Owns that number. Never: which writes, or how they are sent. Why: a request costs a donor and its client
//! as much as copying 16 to 32 KiB. But what is merged is answered together, and who waits for all answers
//! before asking for more waits while nothing is on its way. So what is merged is little beside what is on
//! its way; and the link carries it in a part of the time after which a donor that says nothing is doubted.
//! Called by the driver, before a batch leaves. Tests: below; what it is worth: docs/MEASURED.md.

use crate::limits::{FAR_NS, Patience};

/// More than this gains nothing.
const MERGED_BYTES_MAX: u32 = 1 << 20;
/// Of a link that answered nothing yet: one of 20 Mbit/s is silent no longer than it may for it.
const MERGED_BYTES_FIRST: u32 = 64 << 10;
const MERGED_BYTES_MIN: u32 = 4 << 10;
/// How long a link may say nothing because its next answer is that of a merged request.
const SILENT_MAX_NS: u64 = Patience::MEMORY.reopen_ns / 10;
/// Where less is sent at once, what counts is how soon the first answer comes.
const BATCH_BYTES_MIN: u64 = 64 << 10;

/// The most that a link may merge, learnt from how soon it answers.
#[derive(Clone, Copy, Debug)]
pub struct LinkMerges {
    bytes_max: u32,
    ceiling: u32,
}

impl LinkMerges {
    /// To a server that takes requests of `block_max` bytes and is a round trip of so long away. Far away a
    /// request's cost is nothing beside what waiting for its last byte costs, and nothing is merged.
    #[must_use]
    pub fn new(block_max: u32, round_trip_ns: u64) -> Self {
        let ceiling = if round_trip_ns < FAR_NS { block_max.min(MERGED_BYTES_MAX) } else { 0 };
        LinkMerges { bytes_max: ceiling.min(MERGED_BYTES_FIRST), ceiling }
    }

    /// The most bytes that one request may be merged to now; 0: nothing is merged.
    #[must_use]
    pub fn bytes_max(self) -> u32 {
        self.bytes_max
    }

    /// Writes of so many bytes were answered at once; before that the link owed something, and said nothing
    /// for so long.
    pub fn note(&mut self, bytes: u64, silent_ns: u64) {
        if silent_ns > SILENT_MAX_NS {
            self.bytes_max = (self.bytes_max / 2).max(MERGED_BYTES_MIN).min(self.ceiling);
        } else if bytes > u64::from(self.bytes_max / 2) && silent_ns <= SILENT_MAX_NS / 4 {
            self.bytes_max = self.bytes_max.saturating_mul(2).min(self.ceiling);
        }
    }
}

/// The most for a batch of writes of `queued` bytes behind `sent` bytes that are on their way, to any donors.
///
/// A half of both, if what is on its way keeps donors busy while what leaves is answered. Otherwise so little
/// that what leaves is many requests itself.
#[must_use]
pub fn batch_merges_bytes_max(sent: u64, queued: u64) -> u32 {
    let is_behind = queued >= BATCH_BYTES_MIN && sent >= queued;
    let most = if is_behind { (sent + queued) / 2 } else { queued / 8 };
    u32::try_from(most).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn who_has_few_requests_under_way_keeps_them_apart() {
        for requests in 1..=15 {
            for sent in 0..=requests {
                let queued = requests - sent;
                let most = u64::from(batch_merges_bytes_max(sent * 4 * KIB, queued * 4 * KIB));
                assert!(most < 8 * KIB, "{sent} + {queued} requests of 4 KiB: {most}");
            }
            let most = u64::from(batch_merges_bytes_max(0, requests * 64 * KIB));
            assert!(most < 128 * KIB, "{requests} requests of 64 KiB at once: {most}");
        }
        assert!(batch_merges_bytes_max(1 << 20, 32 << 10) < 8 << 10, "however much is on its way");
    }

    #[test]
    fn what_leaves_behind_as_much_leaves_together() {
        assert_eq!(u64::from(batch_merges_bytes_max(768 * KIB, 256 * KIB)), 512 * KIB);
        assert_eq!(batch_merges_bytes_max(u64::MAX / 2, u64::MAX / 2), u32::MAX);
    }

    /// Answers to requests of as much as may be merged, over a link of so many bytes a second.
    fn answered(merges: &mut LinkMerges, bytes_per_s: u64, count: usize) {
        for _ in 0..count {
            let bytes = u64::from(merges.bytes_max());
            merges.note(bytes, bytes * 1_000_000_000 / bytes_per_s);
        }
    }

    #[test]
    fn a_link_merges_what_it_carries_before_anybody_doubts_its_donor() {
        for mbit in [5, 10, 25, 100, 250, 1_000, 10_000, 100_000] {
            let (bytes_per_s, mut merges) = (mbit * 125_000, LinkMerges::new(u32::MAX, 0));
            answered(&mut merges, bytes_per_s, 10);
            let takes_ns = u64::from(merges.bytes_max()) * 1_000_000_000 / bytes_per_s;
            assert!(takes_ns <= SILENT_MAX_NS, "{mbit} Mbit/s: {takes_ns} ns");
            let most = merges.bytes_max() == MERGED_BYTES_MAX;
            assert!(most || takes_ns > SILENT_MAX_NS / 4, "{mbit} Mbit/s: {takes_ns} ns is little");
        }
    }

    #[test]
    fn a_link_that_becomes_slow_merges_less_and_one_that_becomes_fast_more() {
        let mut merges = LinkMerges::new(u32::MAX, FAR_NS - 1);
        assert_eq!(merges.bytes_max(), MERGED_BYTES_FIRST);
        answered(&mut merges, 1 << 30, 4);
        assert_eq!(merges.bytes_max(), MERGED_BYTES_MAX);
        answered(&mut merges, 1 << 20, 8);
        assert_eq!(merges.bytes_max(), 16 << 10);
        merges.note(4 << 10, 0);
        assert_eq!(merges.bytes_max(), 16 << 10, "few bytes tell little");
        answered(&mut merges, 1 << 30, 8);
        assert_eq!(merges.bytes_max(), MERGED_BYTES_MAX);
    }

    #[test]
    fn a_link_never_merges_what_its_server_does_not_take() {
        for (block_max, round_trip_ns, most) in
            [(16_384, 0, 16_384), (u32::MAX, FAR_NS, 0), (1_024, 0, 1_024)]
        {
            let mut merges = LinkMerges::new(block_max, round_trip_ns);
            for silent_ns in [0, 0, u64::MAX, u64::MAX, 0, 0, 0] {
                assert!(merges.bytes_max() <= most);
                merges.note(1 << 20, silent_ns);
            }
            assert_eq!(merges.bytes_max(), most);
        }
    }
}
