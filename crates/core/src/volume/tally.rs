//! Counters of what happened to a volume.
//!
//! Owns what `status` shows of it. Never: decisions. Tests: those of the policies that count.

use super::cached::Counts;
use super::types::Scrubbed;
use crate::api::VolumeReport;
use crate::limits::SECOND_NS;
use crate::map::DonorId;
use crate::units::Time;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads_rebuilt: u64,
    /// Wrong blocks by the donor that sent them.
    corrupt: BTreeMap<DonorId, u64>,
    /// Of those, the ones that the donor itself found wrong.
    in_memory: BTreeMap<DonorId, u64>,
    pub(super) healed: u64,
    fill_total: u64,
    fill_done: u64,
    fill_rate: u64,
    rate_since: Time,
    rate_bytes: u64,
    /// Passes that compared all fragments, and places where they did not fit together.
    pub(super) compares: u64,
    pub(super) mismatches: u64,
    /// Bytes that count as they are on disks, though a former writer may have written others since.
    pub(super) unflushed: u64,
}

impl Tally {
    /// This donor sent, or took, so many blocks wrong.
    pub(super) fn found_corrupt(&mut self, donor: DonorId, blocks: u32) {
        *self.corrupt.entry(donor).or_default() += u64::from(blocks);
    }

    /// This donor's memory has so many of them wrong, by its own checksums: they were not hit on their way.
    pub(super) fn found_in_memory(&mut self, donor: DonorId, blocks: u32) {
        *self.in_memory.entry(donor).or_default() += u64::from(blocks);
    }

    pub(super) fn filled(&mut self, bytes: u32) {
        self.fill_done += u64::from(bytes);
        self.rate_bytes += u64::from(bytes);
    }

    /// So many bytes are left to fill; none: nothing is being filled.
    pub(super) fn fills_left(&mut self, bytes: Option<u64>) {
        match bytes {
            Some(left) => self.fill_total = self.fill_total.max(self.fill_done + left),
            None => (self.fill_total, self.fill_done, self.fill_rate) = (0, 0, 0),
        }
    }

    /// While something is filled: the rate, once a second.
    pub(super) fn tick(&mut self, now: Time) {
        if now < self.rate_since + SECOND_NS {
            return;
        }
        let elapsed = u128::from(now - self.rate_since);
        let rate = u128::from(self.rate_bytes) * u128::from(SECOND_NS) / elapsed;
        self.fill_rate = u64::try_from(rate).unwrap_or(0);
        (self.rate_since, self.rate_bytes) = (now, 0);
    }

    pub(super) fn report(&self, scrubbed: &Scrubbed, reads: Counts) -> VolumeReport {
        VolumeReport {
            fill_bytes_done: self.fill_done,
            fill_bytes_total: self.fill_total,
            fill_bytes_per_second: self.fill_rate,
            scrub_bytes_done: scrubbed.bytes_done(),
            scrub_bytes_total: scrubbed.bytes_total,
            scrub_passes: scrubbed.passes,
            compare_passes: self.compares,
            compare_mismatches: self.mismatches,
            unflushed_bytes: self.unflushed,
            corrupt_blocks: by_donor(&self.corrupt),
            wrong_in_memory: by_donor(&self.in_memory),
            healed_blocks: self.healed,
            reads_rebuilt: self.reads_rebuilt,
            reads_here: reads.here,
            reads_coming: reads.coming,
            reads_asked: reads.asked,
            ahead_bytes_used: reads.bytes_used,
            ahead_bytes_unread: reads.bytes_unread,
        }
    }
}

fn by_donor(blocks: &BTreeMap<DonorId, u64>) -> Vec<(DonorId, u64)> {
    blocks.iter().map(|(donor, blocks)| (*donor, *blocks)).collect()
}
