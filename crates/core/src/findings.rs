//! What is not well in a pool: each finding with a stable code, the state it leaves its subject in, what
//! happened, and what to do.
//!
//! Owns the judgement, from what the coordinator reports to a list of findings, the worst first. Never:
//! calls, printing, or exit codes. Invariants: no finding, no fault; what was not heard of lately is unknown,
//! never well; a code keeps its meaning for good, and `docs/CODES.md` explains each. Called by the commands
//! that report. Tests: `tests/findings.rs`.

use crate::api::{
    Attachment, DonorHealth, DonorStatus, Leaving, PoolStatus, Stranger, VolumeHealth, VolumeReport,
    VolumeStatus, WaitsFor,
};
use crate::content::{Check, ContentState};
use crate::limits::{ATTACHMENT_SILENCE_NS, LEASE_NS, MILLISECOND_NS, SECOND_NS};
use crate::map::{DonorId, Redundancy};
use crate::units::{show_bytes, show_count};
use serde::{Deserialize, Serialize};

/// How its subject is. The worse, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is wrong.
    Well,
    /// Nothing is missing, and less may fail than one would think.
    Exposed,
    /// Nobody has heard of it lately.
    Unknown,
    /// All of it is there, with less behind it than it should have.
    Degraded,
    /// Data cannot be read.
    Lost,
}

impl State {
    /// The word that texts and JSON have for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Well => "well",
            State::Exposed => "exposed",
            State::Unknown => "unknown",
            State::Degraded => "degraded",
            State::Lost => "lost",
        }
    }
}

/// What kind of thing was found. Scripts go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// No donor is in the pool.
    PoolEmpty,
    /// A donor asks to join that holds memory of another pool.
    DonorOfOtherPool,
    /// A donor counts as lost: silent for `DONOR_SILENCE_NS`, ended, or gone with what it held.
    DonorGone,
    /// A donor was not heard of since the coordinator began.
    DonorUnheard,
    /// An attachment does not reach donors that the coordinator hears; `Lost` where it cannot read something.
    DonorUnreachable,
    /// An attachment got blocks with a wrong checksum. The subject is the volume, and the text names the
    /// donors.
    DonorWrongBlocks,
    /// What a donor is to give up has nowhere to go, or nobody moves it.
    DonorStuck,
    /// A part of a volume cannot be read, as the coordinator sees it.
    VolumeLost,
    /// Fragments are missing, and are rebuilt without anybody's doing.
    VolumeDegraded,
    /// Fragments are missing, and no donor has room for them.
    VolumeNeedsDonor,
    /// Fragments are missing, and nobody can rebuild them before the volume is attached for writing.
    VolumeNeedsWriter,
    /// A volume is whole, and one host has several fragments of a group.
    VolumeCrowded,
    /// Holders of a volume were not heard of since the coordinator began, and none is known to be missing.
    VolumeUnheard,
    /// A scrub found fragments that contradict each other, and no checksum that tells which is wrong.
    VolumeDisagrees,
    /// A load of a volume has not begun, or did not come to its end.
    VolumeIncomplete,
    /// A loaded volume was read back, and is not what its source held.
    VolumeDiffers,
    /// An attachment was not heard of for `ATTACHMENT_SILENCE_NS`. What it reported before is not used.
    AttachmentSilent,
}

impl Code {
    /// Every code once; `docs/CODES.md` has a row for each.
    pub const ALL: [Code; 17] = [
        Code::PoolEmpty,
        Code::DonorOfOtherPool,
        Code::DonorGone,
        Code::DonorUnheard,
        Code::DonorUnreachable,
        Code::DonorWrongBlocks,
        Code::DonorStuck,
        Code::VolumeLost,
        Code::VolumeDegraded,
        Code::VolumeNeedsDonor,
        Code::VolumeNeedsWriter,
        Code::VolumeCrowded,
        Code::VolumeUnheard,
        Code::VolumeDisagrees,
        Code::VolumeIncomplete,
        Code::VolumeDiffers,
        Code::AttachmentSilent,
    ];

    /// As it is written everywhere, in JSON too.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Code::PoolEmpty => "pool-empty",
            Code::DonorOfOtherPool => "donor-of-other-pool",
            Code::DonorGone => "donor-gone",
            Code::DonorUnheard => "donor-unheard",
            Code::DonorUnreachable => "donor-unreachable",
            Code::DonorWrongBlocks => "donor-wrong-blocks",
            Code::DonorStuck => "donor-stuck",
            Code::VolumeLost => "volume-lost",
            Code::VolumeDegraded => "volume-degraded",
            Code::VolumeNeedsDonor => "volume-needs-donor",
            Code::VolumeNeedsWriter => "volume-needs-writer",
            Code::VolumeCrowded => "volume-crowded",
            Code::VolumeUnheard => "volume-unheard",
            Code::VolumeDisagrees => "volume-disagrees",
            Code::VolumeIncomplete => "volume-incomplete",
            Code::VolumeDiffers => "volume-differs",
            Code::AttachmentSilent => "attachment-silent",
        }
    }
}

/// One thing that is not well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind. Findings of one kind may advise different things.
    pub code: Code,
    /// `volume case7`, `donor lab7`, `pool`.
    pub subject: String,
    /// The state that this alone leaves its subject in.
    pub state: State,
    /// What happened, in sentences.
    pub what: String,
    /// What to do next.
    #[serde(rename = "do")]
    pub advice: String,
}

/// The worst of what was found.
#[must_use]
pub fn worst(findings: &[Finding]) -> State {
    findings.iter().map(|finding| finding.state).max().unwrap_or(State::Well)
}

/// All that is not well, the worst first.
#[must_use]
pub fn of_pool(status: &PoolStatus) -> Vec<Finding> {
    let name_of = |id: DonorId| {
        let donor = status.donors.iter().find(|donor| donor.donor == id);
        donor.map_or_else(|| id.to_string(), |donor| donor.name.clone())
    };
    let mut found = Vec::new();
    if status.donors.is_empty() {
        found.push(Finding {
            code: Code::PoolEmpty,
            subject: "pool".to_owned(),
            state: State::Degraded,
            what: "No donor is in this pool, so it has no memory.".to_owned(),
            advice: "On each idle machine: `cheetah donate SIZE --pool URL`.".to_owned(),
        });
    }
    found.extend(status.strangers.iter().map(of_stranger));
    let is_whole = |volume: &VolumeStatus| volume.slots_missing == 0 && volume.bytes_lost == 0;
    let all_whole = status.volumes.iter().all(is_whole);
    found.extend(status.donors.iter().filter_map(|donor| of_donor(donor, all_whole)));
    for volume in &status.volumes {
        found.extend(of_volume(volume, &name_of));
    }
    sort(&mut found);
    found
}

/// All that is not well with one volume, the worst first.
#[must_use]
pub fn of_volume(volume: &VolumeStatus, name_of: &dyn Fn(DonorId) -> String) -> Vec<Finding> {
    let mut found: Vec<Finding> = health(volume).into_iter().chain(content(volume)).collect();
    for attachment in &volume.attachments {
        if is_silent(attachment) {
            found.push(silent(volume, attachment));
            // What it said before it fell silent is of then.
            continue;
        }
        found.extend(unreachable(volume, attachment, name_of));
        found.extend(wrong_blocks(volume, &attachment.report, name_of));
        found.extend(disagrees(volume, &attachment.report));
    }
    sort(&mut found);
    found
}

/// What became of a donor that was taken out without being emptied: it does not answer, or by force.
#[must_use]
pub fn taken_out(name: &str, leaving: &Leaving) -> String {
    let Leaving { silent, bytes_to_rebuild, bytes_given_up, bytes_lost, .. } = *leaving;
    let mut said = match silent {
        true => format!("{name} does not answer: nothing could be moved off it, and it is out of the pool"),
        false => format!("{name} was taken out of the pool, and nothing was moved off it"),
    };
    if bytes_given_up > 0 {
        said.push_str(&format!(
            "; {} were taken from it before and rebuilt on others",
            show_bytes(bytes_given_up)
        ));
    }
    match (bytes_to_rebuild, bytes_lost) {
        (0, 0) if bytes_given_up == 0 => said.push_str("; no volume counted on it"),
        (0, 0) => {}
        (0, lost) => said.push_str(&format!("; {} of volumes are lost with it", show_bytes(lost))),
        (held, 0) => said.push_str(&format!("; {} that it held are rebuilt on others", show_bytes(held))),
        (held, lost) => said.push_str(&format!(
            "; {} of volumes are lost with it, and what redundancy covers of the {} that it held is rebuilt on others",
            show_bytes(lost),
            show_bytes(held)
        )),
    }
    said
}

/// Whether what an attachment reported is too old to go by.
#[must_use]
pub fn is_silent(attachment: &Attachment) -> bool {
    !attachment.heard || attachment.silent_ms * MILLISECOND_NS >= ATTACHMENT_SILENCE_NS
}

fn sort(found: &mut [Finding]) {
    found.sort_by_key(|finding| std::cmp::Reverse(finding.state));
}

fn of_stranger(stranger: &Stranger) -> Finding {
    let Stranger { name, host, address, pool } = stranger;
    Finding {
        code: Code::DonorOfOtherPool,
        subject: format!("donor {name}"),
        state: State::Degraded,
        what: format!(
            "Donor {name} on host {host} ({address}) asks to join, and holds memory of another pool, {pool}, which it keeps."
        ),
        advice: "If that pool was here before, start its coordinator again with its own --state, and not this one. To have the \
                 donor lend here, end it and start it again, which wipes what it holds."
            .to_owned(),
    }
}

fn of_donor(donor: &DonorStatus, all_whole: bool) -> Option<Finding> {
    let DonorStatus { name, host, address, .. } = donor;
    let held = match (donor.bytes_held, donor.bytes_given_up) {
        (0, 0) => "No volume counts on it.".to_owned(),
        (0, bytes) if all_whole => {
            format!(
                "No volume counts on it any more: the {} that lay there are rebuilt on others.",
                show_bytes(bytes)
            )
        }
        (0, bytes) => format!(
            "Others rebuild the {} of volumes that lay there, and none counts on it any more.",
            show_bytes(bytes)
        ),
        (bytes, _) => format!("{} of volumes lay there.", show_bytes(bytes)),
    };
    let subject = format!("donor {name}");
    let finding = match donor.health {
        DonorHealth::Lost => Finding {
            code: Code::DonorGone,
            subject,
            state: State::Degraded,
            what: format!(
                "Nothing was heard of donor {name} on host {host} for {}. {held}",
                show_count(donor.silent_ms / 1000, "second")
            ),
            advice: format!(
                "If it should be there, see that host {host} runs and that {address} is reached; a donor that ended is \
                 started again with `cheetah donate`. If it shall stay away: nothing."
            ),
        },
        DonorHealth::Unknown => Finding {
            code: Code::DonorUnheard,
            subject,
            state: State::Unknown,
            what: format!(
                "The coordinator has not heard of donor {name} on host {host} since it began. {held}"
            ),
            advice:
                "Wait some seconds. A donor that is there says so, and one that is not is then named as gone."
                    .to_owned(),
        },
        DonorHealth::Alive => return stuck(donor),
    };
    Some(finding)
}

/// Nothing is missing yet, and its owner waits.
fn stuck(donor: &DonorStatus) -> Option<Finding> {
    let why = donor.stuck.as_ref()?;
    let DonorStatus { name, host, .. } = donor;
    let wants = match donor.leaving {
        true => format!("is to leave, and {} that it holds cannot go", show_bytes(donor.bytes_held)),
        false => {
            let over = donor.bytes_held.saturating_sub(donor.bytes_offered);
            format!("is to give {} back to its owner, which cannot go", show_bytes(over))
        }
    };
    Some(Finding {
        code: Code::DonorStuck,
        subject: format!("donor {name}"),
        state: State::Exposed,
        what: format!("Donor {name} on host {host} {wants}."),
        advice: sentence(why),
    })
}

/// How the coordinator sees the volume.
fn health(volume: &VolumeStatus) -> Option<Finding> {
    let VolumeStatus { name, slots, slots_missing, .. } = volume;
    let subject = format!("volume {name}");
    let missing = format!("{slots_missing} of {} missing", show_count(*slots, "fragment"));
    match volume.health {
        VolumeHealth::Whole => None,
        VolumeHealth::Crowded => Some(crowded(volume)),
        VolumeHealth::Unknown => Some(Finding {
            code: Code::VolumeUnheard,
            subject,
            state: State::Unknown,
            what: format!(
                "Donors that hold a part of volume {name} were not heard of since the coordinator began."
            ),
            advice: "Wait some seconds. Then it is known which of them are there.".to_owned(),
        }),
        VolumeHealth::Degraded => {
            let because = because(&volume.lost_donors);
            let what = format!("All of volume {name} can be read, with {missing}{because}.");
            let rebuilt = match volume.redundancy {
                Redundancy { data: 1, .. } => "copied",
                _ => "rebuilt",
            };
            let repair = volume.repair.clone();
            let (code, advice) = match volume.waits_for {
                Some(WaitsFor::Donor) => (Code::VolumeNeedsDonor, repair),
                Some(WaitsFor::Writer) => (Code::VolumeNeedsWriter, repair),
                None => {
                    let progress = progress(volume).map(|progress| format!(", {progress}"));
                    let by_itself = format!("Nothing: it is {rebuilt}{}", progress.unwrap_or_default());
                    let advice = match repair {
                        Some(repair) => format!("Nothing: {repair}"),
                        None => by_itself,
                    };
                    (Code::VolumeDegraded, Some(advice))
                }
            };
            let advice = sentence(&advice.unwrap_or_else(|| "See `cheetah show`".to_owned()));
            Some(Finding { code, subject, state: State::Degraded, what, advice })
        }
        VolumeHealth::Lost => Some(Finding {
            code: Code::VolumeLost,
            subject,
            state: State::Lost,
            what: format!(
                "{} of volume {name} cannot be read, with {missing}{}. Those ranges answer EIO.{}",
                show_bytes(volume.bytes_lost),
                because(&volume.lost_donors),
                beside(volume.redundancy)
            ),
            advice: match volume.lost_donors.is_empty() {
                false => format!(
                    "Bring back the donors that are gone if they still run: what they hold comes back with them. \
                     `cheetah show {name}` lists what is lost. If they have ended, {}.",
                    again(volume)
                ),
                true => format!(
                    "`cheetah show {name}` lists what is lost. What is written there anew can be read again: {}.",
                    again(volume)
                ),
            },
        }),
    }
}

/// How what is lost comes back.
fn again(volume: &VolumeStatus) -> String {
    let name = &volume.name;
    match (&volume.content.load, &volume.content.written) {
        (Some(load), None) => {
            format!("`cheetah load {} {name} --overwrite` loads it again from its source", load.source.name)
        }
        (Some(load), Some(_)) => format!(
            "`cheetah load {} {name} --overwrite` loads it again from its source, without what was written since",
            load.source.name
        ),
        (None, _) => "no load filled it, so whoever wrote what is lost writes it again".to_owned(),
    }
}

/// More goes with one host than with another.
fn crowded(volume: &VolumeStatus) -> Finding {
    let VolumeStatus { name, redundancy, may_lose_hosts, .. } = volume;
    let (host, slots) = volume.crowd.as_ref().map_or(("", 2), |crowd| (&*crowd.host, crowd.slots));
    let so = match may_lose_hosts {
        Some(0) => "Data is lost when it goes".to_owned(),
        _ => format!("{redundancy} covers that, and less beside it"),
    };
    let advice = match volume.slots_filling {
        0 => "Lend memory on another host: `cheetah donate` there, and one of them moves to it.".to_owned(),
        moving => format!("Nothing: {} on the way to other hosts.", show_count(moving, "fragment")),
    };
    Finding {
        code: Code::VolumeCrowded,
        subject: format!("volume {name}"),
        state: State::Exposed,
        what: format!("Volume {name} is whole, but host {host} holds {slots} fragments of a group. {so}."),
        advice,
    }
}

/// A load that did not come to its end, or did not bring what its source held.
fn content(volume: &VolumeStatus) -> Option<Finding> {
    let (name, load) = (&volume.name, volume.content.load.as_ref()?);
    let source = &load.source.name;
    let subject = format!("volume {name}");
    if volume.content.state == ContentState::Incomplete {
        let (done, size) = (show_bytes(load.bytes_done), show_bytes(load.source.size));
        return Some(Finding {
            code: Code::VolumeIncomplete,
            subject,
            state: State::Degraded,
            what: format!("{done} of {size} of {source} were loaded into volume {name} when that ended."),
            advice: match &volume.content.written {
                None => format!(
                    "`cheetah load {source} {name} --resume` goes on from there; --overwrite instead of that begins anew."
                ),
                Some(written) => format!(
                    "`cheetah load {source} {name} --overwrite` begins anew. That takes with it what {} wrote since.",
                    written.by
                ),
            },
        });
    }
    let differs = volume.content.state == ContentState::Loaded && load.check == Check::Differs;
    differs.then(|| Finding {
        code: Code::VolumeDiffers,
        subject,
        state: State::Lost,
        what: format!("What was read back of volume {name} is not what {source} held when it was loaded."),
        advice: format!("Do not use it: `cheetah load {source} {name} --overwrite` loads it again."),
    })
}

fn because(lost_donors: &[String]) -> String {
    match lost_donors {
        [] => String::new(),
        [one] => format!(": donor {one} is gone"),
        several => format!(": donors {} are gone", several.join(", ")),
    }
}

/// With no redundancy, what is beside a loss has nothing to do with it; of a mirror nothing is beside it.
fn beside(redundancy: Redundancy) -> &'static str {
    match redundancy {
        Redundancy { data, parity } if data > 1 && parity > 0 => {
            " What is intact in the same rows can be read, but not written."
        }
        _ => "",
    }
}

/// How far the writer's rebuilding is: `34 %, 3 MiB/s, 22 s left`.
#[must_use]
pub fn progress(volume: &VolumeStatus) -> Option<String> {
    let writer = volume.attachments.iter().find(|attachment| !attachment.read_only)?;
    if volume.slots_filling == 0 || is_silent(writer) {
        return None;
    }
    let VolumeReport { fill_bytes_done: done, fill_bytes_total: total, fill_bytes_per_second: rate, .. } =
        writer.report;
    let percent = done.saturating_mul(100).checked_div(total)?.min(100);
    let mut text = format!("{percent} %");
    if let Some(seconds) = total.saturating_sub(done).checked_div(rate) {
        text.push_str(&format!(", {}/s, {seconds} s left", show_bytes(rate)));
    }
    Some(text)
}

fn silent(volume: &VolumeStatus, attachment: &Attachment) -> Finding {
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

fn unreachable(
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

fn wrong_blocks(
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
            "Suspect the memory or the network of that machine: `cheetah leave {}` moves away what it holds.",
            name_of(worst.0)
        ),
    })
}

fn disagrees(volume: &VolumeStatus, report: &VolumeReport) -> Option<Finding> {
    let name = &volume.name;
    (report.scrub_mismatches > 0).then(|| Finding {
        code: Code::VolumeDisagrees,
        subject: format!("volume {name}"),
        state: State::Degraded,
        what: format!(
            "Fragments of volume {name} do not fit together in {}, and no checksum says which is wrong.",
            show_count(report.scrub_mismatches, "place")
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

/// With a capital letter and a full stop; `parity:3+1` stays as it is written.
fn sentence(text: &str) -> String {
    if text.split(' ').next().is_some_and(|word| word.contains(':')) {
        return format!("{text}.");
    }
    let mut letters = text.chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}
