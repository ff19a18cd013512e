//! What is said of volumes and donors that are not as they should be: one clear line for each.
//! Never: calls, printing, or what to do about it (`core::findings`). Called by `pool`, `report` and `leave`.
//! Tests: below.

use cheetah_core::api::{
    Attachment, Crowd, DonorHealth, DonorStatus, Rehearsal, VolumeHealth, VolumeReport, VolumeStatus,
};
use cheetah_core::findings::{is_silent, progress};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, Redundancy};
use cheetah_core::units::{show_bytes, show_count};

/// Places that are none.
pub const NO_FRONT_END: &str = "no front end";
pub const LOADING: &str = "load";
/// The same of a volume that tools may use meanwhile.
pub const FILLING: &str = "fill";

/// How a volume does for the one who sees the worst of it: the coordinator, which hears of a donor's end only
/// after seconds, or an attachment, which notices it at once but may itself be cut off.
struct Seen<'a> {
    health: VolumeHealth,
    slots_missing: u64,
    bytes_lost: u64,
    /// None: the coordinator.
    by: Option<&'a Attachment>,
}

impl Seen<'_> {
    fn by(&self) -> String {
        self.by.map_or_else(String::new, |attachment| format!(", as seen by {}", attachment.holder))
    }
}

fn seen(volume: &VolumeStatus) -> Seen<'_> {
    let VolumeStatus { health, slots_missing, bytes_lost, .. } = *volume;
    let mut worst = Seen { health, slots_missing, bytes_lost, by: None };
    // What was reported before a long silence is of then.
    for attachment in volume.attachments.iter().filter(|attachment| !is_silent(attachment)) {
        let Attachment { health, slots_missing, bytes_lost, .. } = *attachment;
        if (health, bytes_lost, slots_missing) > (worst.health, worst.bytes_lost, worst.slots_missing) {
            worst = Seen { health, slots_missing, bytes_lost, by: Some(attachment) };
        }
    }
    worst
}

/// How a volume does, in a word or a few, for a table.
pub fn word(volume: &VolumeStatus) -> String {
    let seen = seen(volume);
    let said = match seen.health {
        VolumeHealth::Whole if volume.slots_filling > 0 => "whole, moving".to_owned(),
        VolumeHealth::Whole => "whole".to_owned(),
        VolumeHealth::Crowded => {
            let slots = volume.crowd.as_ref().map_or(2, |crowd| crowd.slots);
            format!("whole, but one host holds {slots} of a group")
        }
        VolumeHealth::Unknown => "unknown, not all donors heard of yet".to_owned(),
        VolumeHealth::Degraded => format!("degraded, {} of {} missing", seen.slots_missing, volume.slots),
        VolumeHealth::Lost if volume.lost_donors.is_empty() || seen.by.is_some() => {
            format!("{} LOST", show_bytes(seen.bytes_lost))
        }
        VolumeHealth::Lost => {
            format!("{} LOST with {}", show_bytes(seen.bytes_lost), volume.lost_donors.join(", "))
        }
    };
    said + &seen.by()
}

/// Who has a volume attached, and where.
pub fn attached(attachment: &Attachment) -> String {
    let Attachment { holder, place, .. } = attachment;
    match place.as_str() {
        "" if !attachment.heard => format!("{holder} (not heard of since the coordinator began)"),
        "" => format!("{holder} (starting)"),
        NO_FRONT_END => holder.clone(),
        LOADING => format!("{holder} (loading)"),
        FILLING => format!("{holder} (filling)"),
        place => format!("{holder} at {place}"),
    }
}

/// `whole: 3 of 160 fragments move to other donors`: what is under way and nobody's worry.
pub fn moves(volume: &VolumeStatus) -> Option<String> {
    let moving = volume.health == VolumeHealth::Whole && volume.slots_filling > 0;
    if moving { line(volume) } else { None }
}

/// How a donor does, in a few words.
pub fn of_donor(donor: &DonorStatus) -> String {
    let checksums = if donor.keeps_checksums { "" } else { ", keeps no checksums" };
    let does = match donor.health {
        DonorHealth::Unknown => "unknown, not heard of since the coordinator began".to_owned(),
        DonorHealth::Lost => format!("gone (silent for {} s)", donor.silent_ms / 1000),
        DonorHealth::Alive if donor.leaving => format!("leaving, {} to move", show_bytes(donor.bytes_held)),
        DonorHealth::Alive if donor.has_bad_memory => {
            format!("bad memory, {} to move", show_bytes(donor.bytes_held))
        }
        DonorHealth::Alive if donor.bytes_held > donor.bytes_offered => {
            format!("gives back {}", show_bytes(donor.bytes_held - donor.bytes_offered))
        }
        DonorHealth::Alive => match donor.wrong_blocks {
            0 => "alive".to_owned(),
            blocks => format!("alive, had {}", show_count(blocks, "wrong block")),
        },
    };
    does + checksums
}

/// What an attachment says of a donor that it cannot reach.
pub fn out_of_reach(attachment: &Attachment, donor: &str, why: &str) -> String {
    let so = match attachment.bytes_lost {
        0 => "its part is read from the others".to_owned(),
        bytes => format!("{} of the volume cannot be had and answer EIO", show_bytes(bytes)),
    };
    format!("cannot reach donor {donor} ({why}): {so}")
}

/// `, out of reach of eve@lab process 7: silent for 800 ms`, or nothing: who cannot reach the donor.
pub fn out_of_reach_of<'a>(donor: DonorId, attachments: impl IntoIterator<Item = &'a Attachment>) -> String {
    let whys = attachments.into_iter().filter_map(|attachment| {
        let (_, why) = attachment.lost.iter().find(|(lost, _)| *lost == donor)?;
        Some(format!("{}: {why}", attachment.holder))
    });
    let whys: Vec<String> = whys.collect();
    if whys.is_empty() { String::new() } else { format!(", out of reach of {}", whys.join("; ")) }
}

/// `scratch  degraded: 12 of 160 fragments missing, rebuilding 34 %, 118 MiB/s, 20 s left`; `None` when all
/// is well.
pub fn line(volume: &VolumeStatus) -> Option<String> {
    let VolumeStatus { name, slots, slots_filling, .. } = volume;
    let seen = seen(volume);
    let missing = format!("{} of {slots} fragments missing", seen.slots_missing);
    let said = match seen.health {
        VolumeHealth::Whole if *slots_filling == 0 => return None,
        VolumeHealth::Whole => format!("whole: {slots_filling} of {slots} fragments move to other donors"),
        VolumeHealth::Crowded => crowded(volume),
        VolumeHealth::Unknown => {
            "unknown: not all of its donors were heard of since the coordinator began".to_owned()
        }
        VolumeHealth::Degraded => format!("degraded: {missing}"),
        VolumeHealth::Lost => {
            // With no redundancy, what is beside the loss has nothing to do with it; of a mirror nothing is
            // beside it.
            let beside = match volume.redundancy {
                Redundancy { data, parity } if data > 1 && parity > 0 => {
                    "; what is intact in the same rows can be read, but not written"
                }
                _ => "",
            };
            format!("LOST: {} cannot be read, {missing}{beside}", show_bytes(seen.bytes_lost))
        }
    };
    let said = said + &seen.by();
    let repair = match progress(volume) {
        Some(progress) => format!(", rebuilding {progress}"),
        None if *slots_filling > 0 && writer(volume).is_some() => ", rebuilding".to_owned(),
        // What a lost volume has left is not made good by anyone.
        _ if seen.health != VolumeHealth::Lost => {
            volume.repair.as_ref().map(|repair| format!(", {repair}")).unwrap_or_default()
        }
        _ => String::new(),
    };
    Some(format!("{name}  {said}{repair}"))
}

fn writer(volume: &VolumeStatus) -> Option<&Attachment> {
    volume.attachments.iter().find(|attachment| !attachment.read_only)
}

/// What an attachment came across that needs nobody: all else is a finding.
pub fn remarks(report: &VolumeReport) -> Vec<String> {
    let mut lines = Vec::new();
    if report.reads_rebuilt > 0 {
        let were = if report.reads_rebuilt == 1 { "was" } else { "were" };
        let reads = show_count(report.reads_rebuilt, "read");
        lines.push(format!("{reads} {were} answered from redundancy"));
    }
    lines.extend(scrub(report));
    lines
}

/// What reading ahead came to, for who asks about one volume.
pub fn read_ahead(report: &VolumeReport) -> Option<String> {
    let reads = report.reads_here + report.reads_coming + report.reads_asked;
    let percent = (100 * (report.reads_here + report.reads_coming)).checked_div(reads)?;
    Some(format!(
        "{percent} % of {} found or awaited what was read ahead; {} of that used, {} given up unread",
        show_count(reads, "read"),
        show_bytes(report.ahead_bytes_used),
        show_bytes(report.ahead_bytes_unread)
    ))
}

/// What a scrub found amiss is a finding. The pass under way is told of only while it is the first: what a
/// later one has left out because a donor is away is never counted as done.
fn scrub(report: &VolumeReport) -> Option<String> {
    let VolumeReport { scrub_bytes_done: done, scrub_bytes_total: total, .. } = *report;
    match (report.scrub_passes, done.saturating_mul(100).checked_div(total)) {
        (0, Some(percent)) if done > 0 => Some(format!("the first scrub is at {} %", percent.min(100))),
        (0, _) => None,
        (passes, _) => Some(format!("scrubbed {} since it was attached", show_count(passes, "time"))),
    }
}

/// What goes with the host that has too much of a group, and what becomes of that.
fn crowded(volume: &VolumeStatus) -> String {
    let Redundancy { parity, .. } = volume.redundancy;
    let (host, slots) = volume.crowd.as_ref().map_or(("", 2), |crowd| (&*crowd.host, crowd.slots));
    let covers = if parity >= slots {
        format!("and {} covers that", volume.redundancy)
    } else {
        format!("and {} covers {parity}", volume.redundancy)
    };
    let moving = match volume.slots_filling {
        0 => String::new(),
        moving => format!("; {} on the way to other hosts", show_count(moving, "fragment")),
    };
    format!("whole, but host {host} holds {slots} of a group, which go with it, {covers}{moving}")
}

/// `1 more host`: how many may go, whichever they are.
pub fn may_lose(volume: &VolumeStatus) -> String {
    match volume.may_lose_hosts {
        Some(0) => "no more host".to_owned(),
        Some(hosts) => show_count(hosts.into(), "more host"),
        None => "-".to_owned(),
    }
}

/// What happens when hosts go, one and more: said aloud when a volume is made.
pub fn survives(volume: &VolumeStatus, rehearsal: Option<&Rehearsal>) -> String {
    let VolumeStatus { redundancy, may_lose_hosts, crowd, medium, .. } = volume;
    let hosts = match (redundancy.parity, *may_lose_hosts, crowd) {
        (0, ..) => return "no redundancy: what a lost donor held is lost".to_owned(),
        (_, None, _) => return "some of it is lost".to_owned(),
        (_, Some(0), Some(Crowd { host, slots })) => {
            return format!("when host {host} goes, data is lost: it holds {slots} of a group");
        }
        (_, Some(0), None) => return "when one more host goes, data is lost".to_owned(),
        (_, Some(hosts), _) => hosts,
    };
    let may = if hosts == 1 { "one host may go".to_owned() } else { format!("{hosts} hosts may go at once") };
    let more = if hosts == 1 { "two".to_owned() } else { (hosts + 1).to_string() };
    match rehearsal {
        Some(Rehearsal { slots_homeless: 0, .. }) => format!(
            "{may}: what one held is rebuilt on the others, then the next may go; {more} at once lose data"
        ),
        Some(Rehearsal { host, slots_homeless, .. }) => format!(
            "{may}, but {} of what {host} holds could not be rebuilt before another host lends {medium}; {more} lose data",
            show_bytes(slots_homeless * EXTENT_BYTES),
        ),
        None => format!("{may}; {more} lose data"),
    }
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
            health: VolumeHealth::Whole,
            slots_missing: 0,
            bytes_lost: 0,
            heard: true,
            silent_ms: 0,
        };
        VolumeStatus {
            volume: VolumeId(1),
            name: "scratch".into(),
            size: 1,
            redundancy: Redundancy { data: 2, parity: 1 },
            unit: 65536,
            medium: cheetah_core::map::Medium::Memory,
            encrypted: false,
            write_back: false,
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
            may_lose_hosts: Some(1),
            crowd: None,
            waits_for: None,
            content: Box::default(),
        }
    }

    #[test]
    fn it_is_said_what_happens_when_hosts_go() {
        let mut volume = volume(VolumeHealth::Whole, 0, 0, None);
        let mut rehearsal = Rehearsal { host: "lab7".into(), slots: 9, slots_homeless: 0 };
        assert_eq!(may_lose(&volume), "1 more host");
        assert_eq!(
            survives(&volume, Some(&rehearsal)),
            "one host may go: what one held is rebuilt on the others, then the next may go; two at once lose data"
        );
        (rehearsal.slots_homeless, volume.may_lose_hosts) = (3, Some(2));
        assert_eq!(
            survives(&volume, Some(&rehearsal)),
            "2 hosts may go at once, but 192 MiB of what lab7 holds could not be rebuilt before another host lends \
             memory; 3 lose data"
        );
        (volume.health, volume.may_lose_hosts) = (VolumeHealth::Crowded, Some(0));
        volume.crowd = Some(Crowd { host: "kali".into(), slots: 2 });
        assert_eq!(
            survives(&volume, Some(&rehearsal)),
            "when host kali goes, data is lost: it holds 2 of a group"
        );
        assert_eq!(word(&volume), "whole, but one host holds 2 of a group");
        assert_eq!(
            line(&volume).as_deref(),
            Some(
                "scratch  whole, but host kali holds 2 of a group, which go with it, and parity:2+1 covers 1"
            )
        );
        volume.redundancy.parity = 0;
        assert!(survives(&volume, None).starts_with("no redundancy"));
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
        let said = line(&waits).expect("a line");
        assert!(!said.contains("in a moment"), "{said}");
        let report = Some(VolumeReport::default());
        assert_eq!(line(&volume(VolumeHealth::Whole, 0, 0, report.clone())), None);
        let moving = line(&volume(VolumeHealth::Whole, 0, 3, report)).expect("a line");
        assert_eq!(moving, "scratch  whole: 3 of 160 fragments move to other donors, rebuilding");
    }

    #[test]
    fn what_only_an_attachment_sees_is_told_as_such() {
        let mut volume = volume(VolumeHealth::Whole, 0, 0, Some(VolumeReport::default()));
        let attachment = &mut volume.attachments[0];
        attachment.lost = vec![(DonorId(1), "silent for 800 ms".into())];
        (attachment.health, attachment.slots_missing) = (VolumeHealth::Degraded, 2);
        assert_eq!(word(&volume), "degraded, 2 of 160 missing, as seen by eve");
        let said = line(&volume).expect("a line");
        assert_eq!(said, "scratch  degraded: 2 of 160 fragments missing, as seen by eve");
        let attachment = &mut volume.attachments[0];
        let said = out_of_reach(attachment, "d1", "silent for 800 ms");
        assert_eq!(said, "cannot reach donor d1 (silent for 800 ms): its part is read from the others");
        let said = out_of_reach_of(DonorId(1), [&*attachment]);
        assert_eq!(said, ", out of reach of eve: silent for 800 ms");
        assert_eq!(out_of_reach_of(DonorId(2), [&*attachment]), "");
        (attachment.health, attachment.bytes_lost) = (VolumeHealth::Lost, 1 << 20);
        let said = out_of_reach(attachment, "d1", "silent for 800 ms");
        assert!(said.ends_with("1 MiB of the volume cannot be had and answer EIO"), "{said}");
        assert_eq!(word(&volume), "1 MiB LOST, as seen by eve");
        let same =
            VolumeStatus { health: VolumeHealth::Lost, bytes_lost: 1 << 20, slots_missing: 2, ..volume };
        assert_eq!(word(&same), "1 MiB LOST", "the coordinator has noticed, too");
    }

    #[test]
    fn a_scrub_is_told_of_once_there_is_something_to_tell() {
        let said = |done, passes| {
            let report = VolumeReport {
                scrub_bytes_done: done,
                scrub_bytes_total: 100 << 20,
                scrub_passes: passes,
                ..VolumeReport::default()
            };
            remarks(&report)
        };
        assert!(said(0, 0).is_empty());
        assert_eq!(said(34 << 20, 0), ["the first scrub is at 34 %"]);
        assert_eq!(said(0, 1), ["scrubbed 1 time since it was attached"]);
    }

    #[test]
    fn an_attachment_that_was_not_heard_of_since_a_restart_is_not_called_starting() {
        let volume = volume(VolumeHealth::Whole, 0, 0, Some(VolumeReport::default()));
        let starting = &volume.attachments[0];
        assert_eq!(attached(starting), "eve (starting)");
        let unheard = Attachment { heard: false, ..starting.clone() };
        assert_eq!(attached(&unheard), "eve (not heard of since the coordinator began)");
    }
}
