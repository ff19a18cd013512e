//! What is not well with a volume: what is missing and how it comes back, what it holds, and what those tell
//! who have it attached (`attachment`).

use super::attachment::{disagrees, is_silent, silent, unflushed, unreachable, wrong_blocks};
use super::{Code, Finding, State, sentence, sort};
use crate::api::{VolumeHealth, VolumeReport, VolumeStatus, WaitsFor};
use crate::content::{Check, ContentState, Load};
use crate::map::{DonorId, Redundancy};
use crate::units::{show_bytes, show_count};

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
        found.extend(unflushed(volume, &attachment.report));
    }
    sort(&mut found);
    found
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
                true if volume.content.sealed.is_some() => {
                    format!("`cheetah show {name}` lists what is lost: {}.", again(volume))
                }
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
        (Some(load), written) if volume.content.sealed.is_some() => format!(
            "it is sealed, so `cheetah delete {name}` and `cheetah load {} {name}` make it anew from its source{}",
            load.source.name,
            if written.is_some() { ", without what was written since" } else { "" }
        ),
        (None, _) if volume.content.sealed.is_some() => {
            "it is sealed and no load filled it, so whoever made it makes another one".to_owned()
        }
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
    if volume.content.state == ContentState::Opened {
        return unfilled(volume, load);
    }
    let differs = volume.content.state == ContentState::Loaded && load.check == Check::Differs;
    differs.then(|| Finding {
        code: Code::VolumeDiffers,
        subject,
        state: State::Lost,
        what: format!("Volume {name} does not hold what {source} held when it was loaded."),
        advice: format!("Do not use it: `cheetah load {source} {name} --overwrite` loads it again."),
    })
}

/// What is not here of an opened volume is an error while nobody reads its source.
fn unfilled(volume: &VolumeStatus, load: &Load) -> Option<Finding> {
    let (name, source) = (&volume.name, &load.source.name);
    let (done, size) = (show_bytes(load.bytes_done), show_bytes(load.source.size));
    let (why, advice) = match &load.filling {
        None => (
            "nobody reads the rest: it answers EIO".to_owned(),
            format!("`cheetah fill {name} --resume` on a machine that reaches {source} goes on from there."),
        ),
        Some(filling) => (
            format!("the rest waits: {}", filling.trouble.as_ref()?),
            "Nothing: it is tried again and again. See that its source and its donors can be reached."
                .to_owned(),
        ),
    };
    Some(Finding {
        code: Code::VolumeUnfilled,
        subject: format!("volume {name}"),
        state: State::Degraded,
        what: format!("{done} of {size} of {source} are in volume {name}, and {why}."),
        advice,
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
