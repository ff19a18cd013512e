//! Wrong blocks, by the donor that had them. One that has them again and again has bad memory: it is given
//! nothing more, and what it holds is moved away.
//!
//! Owns the count and that judgement. Never: finding wrong blocks, which attachments do, or the moves
//! (`repair`). Invariants: only what a donor itself found wrong in its memory is held against that, for bits
//! flip on the way, too; and who is judged had more of it than all others together; where several donors have
//! them alike, what they have in common is at fault, like the machine that reads. A donor that is started
//! again is another, of which nothing is known. Tests: `tests/coordinator_blame.rs`.

use super::Coordinator;
use super::notes::Note;
use crate::api::VolumeReport;
use crate::custody;
use crate::limits::{BAD_MEMORY_OCCASIONS, OCCASION_NS};
use crate::map::{DonorId, LeaseToken};
use crate::units::{Time, show_count};

/// What is known of one donor's wrong blocks since it joined, as far as this coordinator heard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Blame {
    pub(super) blocks: u64,
    /// Those that were found within `OCCASION_NS` of the first have one cause.
    occasions: u32,
    since: Time,
    pub(super) has_bad_memory: bool,
}

impl Blame {
    fn add_occasion(&mut self, now: Time) {
        if self.occasions == 0 || now >= self.since + OCCASION_NS {
            self.occasions = self.occasions.saturating_add(1);
            self.since = now;
        }
    }
}

impl Coordinator {
    /// What a lease reports of wrong blocks, and did not `before`.
    pub(super) fn blame(&mut self, now: Time, token: LeaseToken, before: &VolumeReport) {
        let Some(lease) = self.leases.get(&token) else { return };
        // Without redundancy nothing is healed: the same block is met by whoever comes.
        let volume = self.volumes.get(&lease.record.volume);
        let are_new = volume.is_some_and(|volume| volume.map.redundancy.parity > 0);
        let report = &lease.report;
        let wrong = more(&report.corrupt_blocks, &before.corrupt_blocks);
        let in_memory = more(&report.wrong_in_memory, &before.wrong_in_memory);
        let (volume, healed) = (lease.record.volume, report.healed_blocks);
        for (id, blocks) in wrong {
            let donor = self.donors.get(&id).map(|donor| donor.record.name.clone());
            let donor = donor.unwrap_or_else(|| id.to_string());
            self.put_down(volume, custody::Event::WrongBlocks { donor, blocks, healed });
            if let Some(donor) = self.donors.get_mut(&id) {
                donor.blame.blocks = donor.blame.blocks.saturating_add(blocks);
            }
        }
        for (id, _) in in_memory.into_iter().filter(|_| are_new) {
            if let Some(donor) = self.donors.get_mut(&id) {
                donor.blame.add_occasion(now);
            }
            self.judge_memory(id);
        }
    }

    fn judge_memory(&mut self, id: DonorId) {
        let all: u32 = self.donors.values().map(|donor| donor.blame.occasions).sum();
        let Some(donor) = self.donors.get_mut(&id) else { return };
        let Blame { occasions, blocks, has_bad_memory, .. } = &mut donor.blame;
        if *has_bad_memory || *occasions < BAD_MEMORY_OCCASIONS || 2 * *occasions <= all {
            return;
        }
        *has_bad_memory = true;
        let (name, host) = (donor.record.name.clone(), &donor.record.host);
        let text = format!(
            "donor {name} on host {host} had wrong blocks in its memory {}, {} in all: it gets nothing more, and what \
             it holds is moved to others; test the memory of {host} before it lends again",
            show_count(u64::from(*occasions), "time"),
            show_count(*blocks, "block")
        );
        self.note(Note {
            event: "donor-bad-memory",
            donor: Some(name),
            text,
            is_bad: true,
            ..Note::default()
        });
        self.replan = true;
        self.unsettle_donor(id);
    }
}

/// What is reported, by donor, beyond what was.
fn more(now: &[(DonorId, u64)], before: &[(DonorId, u64)]) -> Vec<(DonorId, u64)> {
    let had = |id: DonorId| before.iter().find(|(donor, _)| *donor == id).map_or(0, |(_, blocks)| *blocks);
    let more = now.iter().map(|(id, blocks)| (*id, blocks.saturating_sub(had(*id))));
    more.filter(|(_, blocks)| *blocks > 0).collect()
}
