//! What is said of volumes and donors that are not as they should be: one clear line for each.
//! Never: calls, or printing. Called by `pool` and `leave`. Tests: below.

use cheetah_core::api::{Attachment, DonorStatus, VolumeDetail, VolumeHealth, VolumeReport, VolumeStatus};
use cheetah_core::map::{DonorId, Redundancy};
use cheetah_core::units::show_bytes;
use std::collections::BTreeMap;

/// How a volume does, in a word or a few, for a table.
pub fn word(volume: &VolumeStatus) -> String {
    match volume.health {
        VolumeHealth::Whole if volume.slots_filling > 0 => "whole, moving".to_owned(),
        VolumeHealth::Whole => "whole".to_owned(),
        VolumeHealth::Degraded => format!("degraded, {} of {} missing", volume.slots_missing, volume.slots),
        VolumeHealth::Lost if volume.lost_donors.is_empty() => {
            format!("{} LOST", show_bytes(volume.bytes_lost))
        }
        VolumeHealth::Lost => {
            format!("{} LOST with {}", show_bytes(volume.bytes_lost), volume.lost_donors.join(", "))
        }
    }
}

/// `scratch  degraded: 12 of 160 fragments missing, rebuilding 34 %, 118 MiB/s, 20 s left`; `None` when all is well.
pub fn line(volume: &VolumeStatus) -> Option<String> {
    let VolumeStatus { name, slots_missing, slots, slots_filling, .. } = volume;
    let missing = format!("{slots_missing} of {slots} fragments missing");
    let said = match volume.health {
        VolumeHealth::Whole if *slots_filling == 0 => return None,
        VolumeHealth::Whole => format!("whole: {slots_filling} of {slots} fragments move to other donors"),
        VolumeHealth::Degraded => format!("degraded: {missing}"),
        VolumeHealth::Lost => format!("LOST: {} cannot be read, {missing}", show_bytes(volume.bytes_lost)),
    };
    let repair = match writer(volume) {
        Some(attachment) if *slots_filling > 0 => progress(&attachment.report),
        // What a lost volume has left is not made good by anyone.
        _ if volume.health != VolumeHealth::Lost => {
            volume.repair.as_ref().map(|repair| format!(", {repair}")).unwrap_or_default()
        }
        _ => String::new(),
    };
    Some(format!("{name}  {said}{repair}"))
}

fn writer(volume: &VolumeStatus) -> Option<&Attachment> {
    volume.attachments.iter().find(|attachment| !attachment.read_only)
}

fn progress(report: &VolumeReport) -> String {
    let VolumeReport { fill_bytes_done: done, fill_bytes_total: total, fill_bytes_per_second: rate, .. } =
        report;
    let Some(percent) = done.saturating_mul(100).checked_div(*total) else {
        return ", rebuilding".to_owned();
    };
    let mut text = format!(", rebuilding {} %", percent.min(100));
    if let Some(seconds) = total.saturating_sub(*done).checked_div(*rate) {
        text.push_str(&format!(", {}/s, {seconds} s left", show_bytes(*rate)));
    }
    text
}

/// What the checksums and the scrubber of an attachment found, by donor.
pub fn findings(report: &VolumeReport, name_of: impl Fn(DonorId) -> String) -> Vec<String> {
    let mut lines = Vec::new();
    if !report.corrupt_blocks.is_empty() {
        let each: Vec<String> = report
            .corrupt_blocks
            .iter()
            .map(|(donor, count)| format!("{count} from {}", name_of(*donor)))
            .collect();
        lines.push(format!(
            "blocks with a wrong checksum: {}; none was delivered, {} healed",
            each.join(", "),
            report.healed_blocks
        ));
    }
    if report.reads_rebuilt > 0 {
        lines.push(format!("{} reads were answered from redundancy", report.reads_rebuilt));
    }
    let scrubbed = report.scrub_bytes_done.saturating_mul(100).checked_div(report.scrub_bytes_total);
    if let Some(percent) = scrubbed {
        lines.push(format!("scrub {} % of this pass, {} passes done", percent.min(100), report.scrub_passes));
    }
    lines
}

/// What a redundancy is good for, said aloud at create.
pub fn survives(redundancy: Redundancy) -> String {
    match redundancy.parity {
        0 => "no redundancy: what a lost donor held is lost".to_owned(),
        1 => "survives the loss of one donor".to_owned(),
        m => format!("survives the loss of {m} donors at once"),
    }
}

/// Fragments of one group that would go together with their machine.
pub fn shared_host(detail: &VolumeDetail, donors: &[DonorStatus]) -> Option<String> {
    let redundancy = detail.map.redundancy;
    let host_of: BTreeMap<DonorId, &str> =
        donors.iter().map(|donor| (donor.donor, donor.host.as_str())).collect();
    let mut worst: Option<(u32, &str)> = None;
    for group in &detail.map.groups {
        let mut on: BTreeMap<&str, u32> = BTreeMap::new();
        for held in group.slots.iter().filter_map(|slot| slot.held) {
            if let Some(host) = host_of.get(&held.donor) {
                *on.entry(host).or_default() += 1;
            }
        }
        worst = worst.max(on.into_iter().map(|(host, count)| (count, host)).max());
    }
    let (count, host) = worst.filter(|(count, _)| *count > 1 && redundancy.parity > 0)?;
    let covers = match redundancy.parity {
        m if m >= count => format!("which {redundancy} covers"),
        m => format!("and {redundancy} covers {m}"),
    };
    Some(format!(
        "remark: {count} of its {} fragments share host {host}: losing that host loses {count} fragments, {covers}",
        redundancy.width()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::map::VolumeId;

    fn volume(
        health: VolumeHealth,
        missing: u64,
        filling: u64,
        report: Option<VolumeReport>,
    ) -> VolumeStatus {
        let attachment = |report| Attachment {
            holder: "eve".into(),
            read_only: false,
            place: String::new(),
            lost: Vec::new(),
            report,
        };
        VolumeStatus {
            volume: VolumeId(1),
            name: "scratch".into(),
            size: 1,
            redundancy: Redundancy { data: 2, parity: 1 },
            unit: 65536,
            epoch: 1,
            follow: false,
            attachments: report.into_iter().map(attachment).collect(),
            health,
            lost_donors: Vec::new(),
            slots_missing: missing,
            slots: 160,
            slots_filling: filling,
            bytes_lost: 0,
            repair: None,
        }
    }

    #[test]
    fn a_degraded_volume_says_how_far_its_repair_is() {
        let report = VolumeReport {
            fill_bytes_done: 34 << 20,
            fill_bytes_total: 100 << 20,
            fill_bytes_per_second: 3 << 20,
            ..VolumeReport::default()
        };
        assert_eq!(
            line(&volume(VolumeHealth::Degraded, 12, 12, Some(report))).as_deref(),
            Some("scratch  degraded: 12 of 160 fragments missing, rebuilding 34 %, 3 MiB/s, 22 s left")
        );
        let mut waits = volume(VolumeHealth::Degraded, 12, 12, None);
        waits.repair = Some("a donor rebuilds it in a moment".into());
        assert_eq!(
            line(&waits).as_deref(),
            Some("scratch  degraded: 12 of 160 fragments missing, a donor rebuilds it in a moment")
        );
        waits.health = VolumeHealth::Lost;
        assert!(line(&waits).expect("a line").ends_with("12 of 160 fragments missing"));
        let report = Some(VolumeReport::default());
        assert_eq!(line(&volume(VolumeHealth::Whole, 0, 0, report.clone())), None);
        let moving = line(&volume(VolumeHealth::Whole, 0, 3, report)).expect("a line");
        assert_eq!(moving, "scratch  whole: 3 of 160 fragments move to other donors, rebuilding");
    }

    #[test]
    fn wrong_blocks_are_told_with_their_donor() {
        let corrupt_blocks = vec![(DonorId(1), 7)];
        let report = VolumeReport { corrupt_blocks, healed_blocks: 6, ..VolumeReport::default() };
        let said = findings(&report, |_| "d1".into());
        assert_eq!(said, ["blocks with a wrong checksum: 7 from d1; none was delivered, 6 healed"]);
    }
}
