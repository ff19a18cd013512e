//! What an attachment tells of its volume that is not well, and when what it told is too old to go by.
//! Never: how the coordinator sees the volume (`volume`).

use super::{Code, Finding, State};
use crate::api::{Attachment, VolumeReport, VolumeStatus};
use crate::limits::{ATTACHMENT_SILENCE_NS, LEASE_NS, MILLISECOND_NS, SECOND_NS};
use crate::map::DonorId;
use crate::units::{show_bytes, show_count};

/// Whether what an attachment reported is too old to go by.
#[must_use]
pub fn is_silent(attachment: &Attachment) -> bool {
    !attachment.heard || attachment.silent_ms * MILLISECOND_NS >= ATTACHMENT_SILENCE_NS
}

pub(super) fn silent(volume: &VolumeStatus, attachment: &Attachment) -> Finding {
    let (name, holder) = (&volume.name, &attachment.holder);
    let since = match attachment.heard {
        true => format!("for {}", show_count(attachment.silent_ms / 1000, "second")),
        false => "since the coordinator began".to_owned(),
    };
    Finding {
        code: Code::AttachmentSilent,
        subject: format!("volume {name}"),
        state: State::Unknown,
        what: format!("Nothing was heard of {holder}, who has volume {name} attached, {since}."),
        advice: format!(
            "See that that machine runs and reaches the coordinator. If it is gone, its lease ends by itself within {} \
             seconds.",
            LEASE_NS / SECOND_NS
        ),
    }
}

pub(super) fn unreachable(
    volume: &VolumeStatus,
    attachment: &Attachment,
    name_of: &dyn Fn(DonorId) -> String,
) -> Option<Finding> {
    let (name, holder) = (&volume.name, &attachment.holder);
    let named = attachment.lost.iter().map(|(id, why)| (name_of(*id), why));
    // A donor that is gone for everybody is a finding of its own.
    let only_here = named.filter(|(donor, _)| !volume.lost_donors.contains(donor));
    let each: Vec<String> = only_here.map(|(donor, why)| format!("{donor} ({why})")).collect();
    let (donors, they_hold) = match each.len() {
        0 => return None,
        1 => ("donor", "it holds"),
        _ => ("donors", "they hold"),
    };
    let (state, so) = match attachment.bytes_lost {
        0 => (State::Degraded, format!("What {they_hold} is read from the others")),
        bytes => (State::Lost, format!("{} of volume {name} answer EIO there", show_bytes(bytes))),
    };
    Some(Finding {
        code: Code::DonorUnreachable,
        subject: format!("volume {name}"),
        state,
        what: format!("{holder} cannot reach {donors} {}. {so}.", each.join(", ")),
        advice: "See that that machine reaches the addresses of these donors (`cheetah status` shows them): cables, \
                 firewalls, routes."
            .to_owned(),
    })
}

pub(super) fn wrong_blocks(
    volume: &VolumeStatus,
    report: &VolumeReport,
    name_of: &dyn Fn(DonorId) -> String,
) -> Option<Finding> {
    let worst = report.corrupt_blocks.iter().max_by_key(|(_, count)| *count)?;
    let name = &volume.name;
    let each: Vec<String> = report
        .corrupt_blocks
        .iter()
        .map(|(donor, count)| format!("{count} from {}", name_of(*donor)))
        .collect();
    let total: u64 = report.corrupt_blocks.iter().map(|(_, count)| *count).sum();
    Some(Finding {
        code: Code::DonorWrongBlocks,
        subject: format!("volume {name}"),
        state: State::Degraded,
        what: format!(
            "{} of volume {name} came with a wrong checksum: {}. None was delivered, and {} healed.",
            show_count(total, "block"),
            each.join(", "),
            match report.healed_blocks {
                1 => "1 was".to_owned(),
                healed => format!("{healed} were"),
            }
        ),
        advice: format!(
            "Suspect the memory, the disk or the network of that machine: `cheetah leave {}` moves away what it holds.",
            name_of(worst.0)
        ),
    })
}

pub(super) fn unflushed(volume: &VolumeStatus, report: &VolumeReport) -> Option<Finding> {
    let name = &volume.name;
    (report.unflushed_bytes > 0).then(|| Finding {
        code: Code::VolumeUnflushed,
        subject: format!("volume {name}"),
        state: State::Degraded,
        what: format!(
            "Up to {} of volume {name} may be older than what was written last: its donors stopped before that was flushed. \
             All that a flush had covered is there.",
            show_bytes(report.unflushed_bytes)
        ),
        advice: "Check its file system, as after any loss of power, and what was being written then. This is said for as \
                 long as it is attached; `cheetah log` keeps it."
            .to_owned(),
    })
}

pub(super) fn disagrees(volume: &VolumeStatus, report: &VolumeReport) -> Option<Finding> {
    let name = &volume.name;
    (report.compare_mismatches > 0).then(|| Finding {
        code: Code::VolumeDisagrees,
        subject: format!("volume {name}"),
        state: State::Degraded,
        what: format!(
            "Fragments of volume {name} do not fit together in {}, and no checksum says which is wrong.",
            show_count(report.compare_mismatches, "place")
        ),
        advice: match &volume.content.load {
            Some(load) => format!(
                "Compare the volume with its source, {}, or load it again with --overwrite. Do not rely on what it holds \
                 until then.",
                load.source.name
            ),
            None => "No load filled it, so only who wrote it can compare it, or write it again. Do not rely on what it holds \
                     until then."
                .to_owned(),
        },
    })
}
