//! How much may leave for a donor as one request, made of several writes that lie one behind the other.
//!
//! Owns that number. Never: which writes, or how they are sent. Why: a request costs a donor and its client as much
//! as copying 16 to 32 KiB. But what is merged is answered together, and who waits for all answers before asking for more
//! waits while nothing is on its way. So what is merged is little beside what is on its way.
//! Called by the driver, before a batch leaves. Tests: below; what it is worth: ARCHITECTURE.

use crate::limits::FAR_NS;

/// A link of 14 Mbit/s carries so much in the time after which a silent donor is doubted.
const MERGED_BYTES_MAX: u32 = 512 << 10;
/// Where less is sent at once, what counts is how soon the first answer comes.
const BATCH_BYTES_MIN: u64 = 64 << 10;

/// The most for a server that takes requests of `block_max` bytes and is a round trip of so long away. Far away a request's
/// cost is nothing beside what waiting for its last byte costs.
#[must_use]
pub fn link_merges_bytes_max(block_max: u32, round_trip_ns: u64) -> u32 {
    if round_trip_ns < FAR_NS { block_max.min(MERGED_BYTES_MAX) } else { 0 }
}

/// The most for a batch of writes of `queued` bytes behind `sent` bytes that are on their way, to any donors.
///
/// A half of both, if what is on its way keeps donors busy while what leaves is answered. Otherwise so little that what leaves
/// is many requests itself.
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

    #[test]
    fn a_link_may_not_merge_as_much() {
        assert_eq!(link_merges_bytes_max(u32::MAX, FAR_NS - 1), MERGED_BYTES_MAX);
        assert_eq!(link_merges_bytes_max(65_536, 0), 65_536);
        assert_eq!(link_merges_bytes_max(u32::MAX, FAR_NS), 0);
    }
}
