//! The commands that report: `status`, `list`, `show`, `explain`. Text and JSON come from one report each, so
//! that both say the same.
//!
//! Owns those reports and how they are laid out. Never: the judgement (`core::findings`), or changes to the
//! pool. Tests: below, and `lab/tests/reports.rs`.

use crate::cli;
use crate::content;
use crate::custody;
use crate::failure::{Exit, Failure};
use crate::health;
use crate::output::{self, natural};
use crate::pool::{find, pool_status, volume};
use cheetah_core::api::{
    Attachment, Call, DonorHealth, DonorStatus, PoolStatus, Rehearsal, Stranger, VolumeDetail, VolumeStatus,
};
use cheetah_core::custody::Case;
use cheetah_core::findings::{self, Finding, State};
use cheetah_core::layout::LostRange;
use cheetah_core::map::{DonorId, PoolId, VolumeMap};
use cheetah_core::units::{show_bytes, show_count};
use serde::Serialize;

/// What each code means, as `explain` prints it.
const CODES: &str = include_str!("../../../docs/CODES.md");

/// Who has a volume attached is named in a table as long as there are few.
const HOLDERS_NAMED_MAX: usize = 3;

#[derive(Debug, Serialize)]
struct Summary {
    state: State,
    /// One line.
    summary: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct StatusReport {
    #[serde(flatten)]
    summary: Summary,
    url: String,
    pool: PoolId,
    /// By TLS. False: in the clear.
    members_only: bool,
    bytes_total: u64,
    bytes_free: u64,
    donors: Vec<DonorStatus>,
    volumes: Vec<VolumeStatus>,
    /// Donors of other pools that ask to join.
    strangers: Vec<Stranger>,
}

#[derive(Debug, Serialize)]
struct ListReport {
    volumes: Vec<VolumeStatus>,
}

#[derive(Debug, Serialize)]
struct ShowReport {
    state: State,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Finding>,
    status: VolumeStatus,
    donors: Vec<Part>,
    /// What becomes of blocks of donors that keep no checksums; absent where all keep them.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchecked: Option<String>,
    /// What nobody can read, and what each attachment cannot.
    lost: Vec<LostRange>,
    lost_to: Vec<Vec<LostRange>>,
    /// What the loss of one more host would leave without a place.
    #[serde(skip_serializing_if = "Option::is_none")]
    rehearsal: Option<Rehearsal>,
    /// What the source could not give.
    unreadable: Vec<LostRange>,
    /// As an examiner's client said last.
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<Case>,
    map: VolumeMap,
}

/// What a donor has of a volume.
#[derive(Debug, Serialize)]
struct Part {
    donor: DonorId,
    name: String,
    address: String,
    extents_held: u64,
    extents_filling: u64,
    gone: bool,
    keeps_checksums: bool,
}

pub async fn status(options: cli::Status) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let status = pool_status(&pool).await?;
    if options.unwell_only {
        let summary = Summary::of(&status);
        match options.json.json {
            true => output::json(&summary)?,
            false => output::line(&summary.summary),
        }
        return match exit_of(summary.state) {
            None => Ok(()),
            Some(exit) => Err(Failure::reported(exit)),
        };
    }
    let report = StatusReport::of(status, pool.url());
    if options.json.json {
        return output::json(&report);
    }
    report.print();
    Ok(())
}

/// What `status -x` ends with.
fn exit_of(state: State) -> Option<Exit> {
    match state {
        State::Well => None,
        State::Lost => Some(Exit::DataLost),
        State::Exposed | State::Unknown | State::Degraded => Some(Exit::Unwell),
    }
}

impl Summary {
    fn of(status: &PoolStatus) -> Summary {
        let findings = findings::of_pool(status);
        let state = findings::worst(&findings);
        let summary = match findings.split_first() {
            None => format!(
                "all is well: {} lent by {}, {}",
                show_bytes(status.bytes_total),
                show_count(status.donors.len() as u64, "donor"),
                show_count(status.volumes.len() as u64, "volume")
            ),
            Some((worst, rest)) => {
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                let (state, subject, code) = (state.word(), &worst.subject, worst.code.word());
                format!("{state}: {subject} ({code}){more}; `cheetah status` says what to do")
            }
        };
        Summary { state, summary, findings }
    }
}

impl StatusReport {
    fn of(mut status: PoolStatus, url: &str) -> StatusReport {
        let summary = Summary::of(&status);
        status.donors.sort_by_cached_key(|donor| natural(&donor.name));
        sort(&mut status.volumes);
        let PoolStatus { pool, members_only, bytes_total, bytes_free, donors, volumes, strangers, .. } =
            status;
        let url = url.to_owned();
        StatusReport { summary, url, pool, members_only, bytes_total, bytes_free, donors, volumes, strangers }
    }

    fn print(&self) {
        self.lines().iter().for_each(|line| output::line(line));
    }

    fn lines(&self) -> Vec<String> {
        let StatusReport {
            summary, url, pool, members_only, bytes_total, bytes_free, donors, volumes, ..
        } = self;
        let of = |health| donors.iter().filter(move |donor| donor.health == health);
        let gone: Vec<&str> = of(DonorHealth::Lost).map(|donor| donor.name.as_str()).collect();
        let gone = if gone.is_empty() { String::new() } else { format!("; gone: {}", gone.join(", ")) };
        let alive = show_count(of(DonorHealth::Alive).count() as u64, "donor");
        let (total, free) = (show_bytes(*bytes_total), show_bytes(*bytes_free));
        let open = if *members_only { "" } else { ", in the clear and open to who can reach it" };
        let mut lines =
            vec![format!("pool {pool} at {url}{open}: {total} lent by {alive}, {free} free{gone}")];
        lines.push(String::new());
        let attachments = || volumes.iter().flat_map(|volume| &volume.attachments);
        let row = |donor: &DonorStatus| {
            vec![
                donor.name.clone(),
                donor.host.clone(),
                donor.address.clone(),
                lends(donor),
                show_bytes(donor.bytes_free),
                show_bytes(donor.bytes_used),
                health::of_donor(donor) + &health::out_of_reach_of(donor.donor, attachments()),
            ]
        };
        let rows: Vec<_> = donors.iter().map(row).collect();
        let head = ["DONOR", "HOST", "ADDRESS", "LENDS", "FREE", "IN USE", "HEALTH"];
        lines.extend(output::lay_out(&head, &rows));
        lines.push(String::new());
        lines.extend(table(volumes));
        let moves: Vec<String> = volumes.iter().filter_map(health::moves).collect();
        if !moves.is_empty() {
            lines.push(String::new());
            lines.extend(moves);
        }
        lines.extend(blocks(&summary.findings));
        lines
    }
}

/// How much it lends; and of what, where that is not memory.
fn lends(donor: &DonorStatus) -> String {
    let bytes = show_bytes(donor.bytes_total);
    if donor.medium.is_memory() { bytes } else { format!("{bytes} {}", donor.medium) }
}

/// As people look for them.
fn sort(volumes: &mut [VolumeStatus]) {
    volumes.sort_by_cached_key(|volume| natural(&volume.name));
}

/// A paragraph for each finding, as `zpool status` has it.
fn blocks(findings: &[Finding]) -> Vec<String> {
    let block = |finding: &Finding| {
        let Finding { code, subject, state, what, advice } = finding;
        let (state, code) = (state.word(), code.word());
        [
            String::new(),
            subject.clone(),
            format!("  state  {state}"),
            format!("  what   {what}"),
            format!("  do     {advice}"),
            format!("  see    cheetah explain {code}"),
        ]
    };
    findings.iter().flat_map(block).collect()
}

fn table(volumes: &[VolumeStatus]) -> Vec<String> {
    let row = |volume: &VolumeStatus| {
        vec![
            volume.name.clone(),
            show_bytes(volume.size),
            volume.redundancy.to_string(),
            content::word(&volume.content) + if volume.encrypted { ", encrypted" } else { "" },
            health::word(volume),
            health::may_lose(volume),
            holders(&volume.attachments),
        ]
    };
    let rows: Vec<_> = volumes.iter().map(row).collect();
    output::lay_out(&["VOLUME", "SIZE", "REDUNDANCY", "CONTENT", "HEALTH", "MAY LOSE", "ATTACHED"], &rows)
}

fn holders(attachments: &[Attachment]) -> String {
    let one = |attachment: &Attachment| {
        health::attached(attachment) + if attachment.read_only { " (read-only)" } else { "" }
    };
    let mut named: Vec<String> = attachments.iter().take(HOLDERS_NAMED_MAX).map(one).collect();
    match attachments.len() {
        0 => return "-".to_owned(),
        count if count > HOLDERS_NAMED_MAX => named.push(format!("{} more", count - HOLDERS_NAMED_MAX)),
        _ => {}
    }
    named.join("; ")
}

pub async fn list(options: cli::Report) -> Result<(), Failure> {
    let mut volumes = pool_status(&find(&options.pool).await?).await?.volumes;
    sort(&mut volumes);
    if options.json.json {
        return output::json(&ListReport { volumes });
    }
    table(&volumes).iter().for_each(|line| output::line(line));
    let unwell: Vec<String> = volumes.iter().filter_map(health::line).collect();
    if !unwell.is_empty() {
        output::line("");
        unwell.iter().for_each(|line| output::line(line));
    }
    Ok(())
}

pub async fn show(options: cli::Named) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let detail = volume(&pool, Call::Show { name: options.name }).await?;
    let report = ShowReport::of(detail);
    if options.json.json {
        return output::json(&report);
    }
    report.lines().iter().for_each(|line| output::line(line));
    Ok(())
}

impl ShowReport {
    fn of(detail: VolumeDetail) -> ShowReport {
        let VolumeDetail { status, map, lost, lost_to, rehearsal, unreadable, case } = detail;
        let slots = || map.groups.iter().flat_map(|group| &group.slots);
        let part = |(id, route): (&DonorId, &cheetah_core::map::Route)| Part {
            donor: *id,
            name: route.name.clone(),
            address: route.address.clone(),
            extents_held: slots().filter(|slot| slot.held.is_some_and(|held| held.donor == *id)).count()
                as u64,
            extents_filling: slots().filter(|slot| slot.filling.is_some_and(|to| to.donor == *id)).count()
                as u64,
            gone: status.lost_donors.contains(&route.name),
            keeps_checksums: route.foreign_export.is_none(),
        };
        let mut donors: Vec<Part> = map.routes.iter().map(part).collect();
        donors.sort_by_cached_key(|part| natural(&part.name));
        let findings = findings::of_volume(&status, &|id| name_in(&donors, id));
        ShowReport {
            state: findings::worst(&findings),
            findings,
            unchecked: unchecked(&donors, status.content.sealed.is_some()),
            status,
            donors,
            lost,
            lost_to,
            rehearsal,
            unreadable,
            case,
            map,
        }
    }

    fn lines(&self) -> Vec<String> {
        let ShowReport { findings, status, donors, unchecked, lost, lost_to, rehearsal, .. } = self;
        let VolumeStatus { name, volume, size, redundancy, unit, epoch, follow, .. } = status;
        let mut lines = vec![
            format!("volume      {name} ({volume}), epoch {epoch}"),
            format!("size        {size} bytes ({})", show_bytes(*size)),
        ];
        let follow = if *follow { ", follows the pool" } else { "" };
        if status.encrypted {
            lines.push("encrypted   donors have ciphertext, AES-256-GCM for each block".to_owned());
        }
        if status.write_back {
            lines.push("write-back  what a flush covers is on disks, the rest within seconds".to_owned());
        }
        lines.push(format!("redundancy  {redundancy}, unit {}{follow}", show_bytes(u64::from(*unit))));
        lines.push(format!("health      {}", health::word(status)));
        lines.push(format!("may lose    {}", health::may_lose(status)));
        lines.push(format!("            {}", health::survives(status, rehearsal.as_ref())));
        lines.extend(health::moves(status).map(|line| format!("            {line}")));
        lines.extend(content::lines(&status.content, &self.unreadable));
        lines.extend(self.case.iter().flat_map(custody::case_lines));
        for attachment in &status.attachments {
            let mode = if attachment.read_only { "read-only" } else { "read-write" };
            lines.push(format!("attached    {mode} by {}", health::attached(attachment)));
            for (id, why) in &attachment.lost {
                let said = health::out_of_reach(attachment, &name_in(donors, *id), why);
                lines.push(format!("            {said}"));
            }
            let remarks = health::remarks(&attachment.report).into_iter();
            let remarks = remarks.chain(health::read_ahead(&attachment.report));
            lines.extend(remarks.map(|remark| format!("            {remark}")));
        }
        for part in donors {
            let Part { donor, name, address, extents_held, extents_filling, gone, keeps_checksums } = part;
            let held = show_count(*extents_held, "extent");
            let filling = match extents_filling {
                0 => String::new(),
                more => format!(", is being given {more} more"),
            };
            let gone = if *gone { ", gone" } else { "" };
            let sums = if *keeps_checksums { "" } else { ", keeps no checksums" };
            let far = health::out_of_reach_of(*donor, &status.attachments);
            lines.push(format!("donor       {name} at {address} holds {held}{filling}{sums}{gone}{far}"));
        }
        lines.extend(unchecked.iter().map(|said| format!("unchecked   {said}")));
        lines.extend(lost_lines(donors, lost, ""));
        for (attachment, lost_here) in status.attachments.iter().zip(lost_to) {
            // What all see is said once.
            if lost_here != lost {
                lines.extend(lost_lines(donors, lost_here, &format!(", as seen by {}", attachment.holder)));
            }
        }
        lines.extend(blocks(findings));
        lines
    }
}

fn name_in(donors: &[Part], id: DonorId) -> String {
    donors.iter().find(|part| part.donor == id).map_or_else(|| id.to_string(), |part| part.name.clone())
}

/// What is said of donors that keep no checksums: who finds a wrong block of theirs.
fn unchecked(donors: &[Part], sealed: bool) -> Option<String> {
    let theirs: Vec<&str> =
        donors.iter().filter(|part| !part.keeps_checksums).map(|part| part.name.as_str()).collect();
    let so = match sealed {
        true => "each block that is read is compared with the seal all the same",
        false => "who writes compares what it wrote itself, while it is attached; others read it as it comes",
    };
    let of = theirs.join(", ");
    (!theirs.is_empty()).then(|| format!("what another NBD server gives, {of}: {so}"))
}

fn lost_lines(donors: &[Part], lost: &[LostRange], seen: &str) -> Vec<String> {
    let line = |range: &LostRange| {
        let with =
            range.donor.map_or_else(String::new, |donor| format!(" with donor {}", name_in(donors, donor)));
        format!("LOST        {range}{with}{seen}")
    };
    lost.iter().map(line).collect()
}

pub fn explain(options: &cli::Explain) -> Result<(), Failure> {
    let known = || findings::Code::ALL.iter().map(|code| code.word()).collect::<Vec<_>>().join(", ");
    let Some([code, state, what, advice]) = row(&options.code) else {
        let message = format!("there is no code '{}'", options.code);
        return Err(Failure::usage(message).advise(format!("name one of {}", known())));
    };
    if options.json.json {
        return output::json(
            &serde_json::json!({ "code": code, "state": state, "what": what, "do": advice }),
        );
    }
    output::line(code);
    output::line(&format!("  state  {state}"));
    output::line(&format!("  what   {what}"));
    output::line(&format!("  do     {advice}"));
    Ok(())
}

/// The row of the table of codes.
fn row(code: &str) -> Option<[&'static str; 4]> {
    let cells = |line: &'static str| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        <[&str; 4]>::try_from(cells).ok()
    };
    CODES.lines().filter_map(cells).find(|cells| cells[0] == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::api::{API_VERSION, VolumeHealth, VolumeReport};
    use cheetah_core::map::{Group, Placement, Redundancy, Route, Slot, VolumeId};
    use serde_json::Value;

    fn attachment() -> Attachment {
        Attachment {
            holder: "eve@lab process 7".into(),
            read_only: true,
            place: "/mnt/c/case7.raw".into(),
            lost: vec![(DonorId(2), "silent for 800 ms".into())],
            report: VolumeReport { reads_rebuilt: 12, ..VolumeReport::default() },
            health: VolumeHealth::Degraded,
            slots_missing: 1,
            bytes_lost: 0,
            heard: true,
            silent_ms: 100,
        }
    }

    fn volume() -> VolumeStatus {
        VolumeStatus {
            volume: VolumeId(1),
            name: "case7".into(),
            size: 1_000_003,
            redundancy: Redundancy { data: 1, parity: 1 },
            unit: 65_536,
            medium: cheetah_core::map::Medium::Memory,
            encrypted: false,
            write_back: false,
            epoch: 9,
            follow: false,
            attachments: vec![attachment()],
            health: VolumeHealth::Lost,
            lost_donors: vec!["d2".into()],
            slots_missing: 2,
            slots: 2,
            slots_filling: 0,
            bytes_lost: 4096,
            repair: None,
            waits_for: None,
            may_lose_hosts: Some(1),
            crowd: None,
            content: Box::default(),
        }
    }

    fn pool() -> PoolStatus {
        let donor = DonorStatus {
            donor: DonorId(2),
            name: "d2".into(),
            host: "h2".into(),
            machine: "boot2".into(),
            address: "10.0.0.2:1000".into(),
            health: DonorHealth::Lost,
            medium: cheetah_core::map::Medium::Memory,
            bytes_total: 8 << 30,
            bytes_free: 0,
            bytes_used: 0,
            bytes_held: 1 << 30,
            bytes_offered: 8 << 30,
            leaving: false,
            heard: true,
            silent_ms: 37_500,
            stuck: None,
            bytes_given_up: 0,
            wrong_blocks: 0,
            has_bad_memory: false,
            keeps_checksums: true,
        };
        PoolStatus {
            version: API_VERSION,
            pool: PoolId(7),
            bytes_total: 32 << 30,
            bytes_free: 16 << 30,
            donors: vec![donor],
            volumes: vec![volume()],
            addresses: Vec::new(),
            strangers: Vec::new(),
            members_only: false,
        }
    }

    fn detail() -> VolumeDetail {
        let at = |donor| Slot { held: Some(Placement { donor: DonorId(donor), extent: 0 }), filling: None };
        let route =
            |id: u64| Route { name: format!("d{id}"), address: format!("a{id}"), foreign_export: None };
        let lost = LostRange { donor: Some(DonorId(2)), offset: 8192, len: 4096, stride: 0, count: 1 };
        let map = VolumeMap {
            volume: VolumeId(1),
            name: "case7".into(),
            epoch: 9,
            size: 1_000_003,
            redundancy: Redundancy { data: 1, parity: 1 },
            unit: 65_536,
            groups: vec![Group { slots: vec![at(1), at(2)] }],
            routes: [1, 2].map(|id| (DonorId(id), route(id))).into(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: None,
            proofs: None,
            encrypted: false,
            write_back: false,
            medium: cheetah_core::map::Medium::Memory,
        };
        let unreadable = vec![LostRange { donor: None, offset: 512, len: 512, stride: 512, count: 1 }];
        VolumeDetail {
            status: volume(),
            map,
            lost: vec![lost.clone()],
            lost_to: vec![vec![lost]],
            rehearsal: Some(Rehearsal { host: "h1".into(), slots: 1, slots_homeless: 1 }),
            unreadable,
            case: None,
        }
    }

    /// As it is printed.
    fn as_json(report: &impl Serialize) -> Value {
        serde_json::to_value(report).expect("JSON")
    }

    /// Every finding of the JSON stands in the text, word for word.
    fn assert_findings_agree(lines: &[String], json: &Value) {
        let text = lines.join("\n");
        let findings = json["findings"].as_array().expect("findings");
        assert!(!findings.is_empty());
        for finding in findings {
            let of = |name: &str| finding[name].as_str().expect("text").to_owned();
            let block = format!(
                "\n{}\n  state  {}\n  what   {}\n  do     {}\n  see    cheetah explain {}",
                of("subject"),
                of("state"),
                of("what"),
                of("do"),
                of("code")
            );
            assert!(text.contains(&block), "{text}\nhas\n{block}");
        }
    }

    #[test]
    fn status_says_the_same_as_text_and_as_json() {
        let report = StatusReport::of(pool(), "http://c");
        let (lines, json) = (report.lines(), as_json(&report));
        assert_findings_agree(&lines, &json);
        assert_eq!((json["state"].as_str(), json["url"].as_str()), (Some("lost"), Some("http://c")));
        let donor = &json["donors"][0];
        assert_eq!(donor["health"], "gone");
        assert!(lines.iter().any(|line| line.starts_with("d2") && line.contains("gone (silent for 37 s)")));
        assert!(lines[0].contains("; gone: d2") && lines[0].contains("in the clear"), "{lines:?}");
        assert_eq!(json["members_only"], false);
        let word = lines.iter().find(|line| line.starts_with("case7")).expect("the volume");
        assert!(word.contains("4 KiB LOST with d2"), "{word}");
        assert_eq!(json["volumes"][0]["bytes_lost"], 4096);
        assert_eq!(json["volumes"][0]["health"], "lost");
    }

    #[test]
    fn show_says_the_same_as_text_and_as_json() {
        let report = ShowReport::of(detail());
        let (lines, json) = (report.lines(), as_json(&report));
        assert_findings_agree(&lines, &json);
        let status = &json["status"];
        let has = |text: String| assert!(lines.iter().any(|line| line.contains(&text)), "{lines:?}: {text}");
        has(format!("{} bytes", status["size"]));
        has(format!("epoch {}", status["epoch"]));
        has(format!("may lose    {} more host", status["may_lose_hosts"]));
        has(format!("of what {} holds could not", json["rehearsal"]["host"].as_str().expect("text")));
        has(format!("redundancy  {}", status["redundancy"].as_str().expect("text")));
        let attached = &status["attachments"][0];
        has(format!("{} reads were answered from redundancy", attached["report"]["reads_rebuilt"]));
        has(format!("cannot reach donor d2 ({})", attached["lost"][0][1].as_str().expect("text")));
        for part in json["donors"].as_array().expect("donors") {
            let (name, address) =
                (part["name"].as_str().expect("text"), part["address"].as_str().expect("text"));
            has(format!("donor       {name} at {address} holds {} extent", part["extents_held"]));
            let gone =
                lines.iter().any(|line| line.contains(&format!(" {name} at ")) && line.contains(", gone"));
            assert_eq!(part["gone"], gone, "{name}");
        }
        let lost = &json["lost"][0];
        has(format!("LOST        {} bytes from {} on with donor d2", lost["len"], lost["offset"]));
    }

    #[test]
    fn one_line_says_whether_all_is_well() {
        let mut status = pool();
        let summary = Summary::of(&status);
        assert_eq!(
            summary.summary,
            "lost: volume case7 (volume-lost), and 1 more; `cheetah status` says what to do"
        );
        assert_eq!(exit_of(summary.state), Some(Exit::DataLost));
        status.volumes.clear();
        assert_eq!(exit_of(Summary::of(&status).state), Some(Exit::Unwell));
        status.donors[0].health = DonorHealth::Alive;
        let summary = Summary::of(&status);
        assert_eq!(summary.summary, "all is well: 32 GiB lent by 1 donor, 0 volumes");
        assert_eq!(exit_of(summary.state), None);
        assert!(as_json(&summary).get("findings").is_none(), "nothing is said of what is well");
    }

    #[test]
    fn seventeen_readers_with_long_names_are_shown() {
        let mut status = pool();
        let reader = Attachment { holder: "x".repeat(4_000), ..attachment() };
        status.volumes[0].attachments = vec![reader; 17];
        let lines = StatusReport::of(status, "http://c").lines();
        assert!(lines.iter().any(|line| line.starts_with("case7")), "{lines:?}");
        assert!(holders(&vec![attachment(); 17]).ends_with("; 14 more"));
    }

    #[test]
    fn every_code_is_explained() {
        for code in findings::Code::ALL {
            let [found, state, what, advice] = row(code.word()).expect("a row");
            assert_eq!(found, code.word());
            assert!(!state.is_empty() && what.ends_with('.') && advice.ends_with('.'));
        }
        assert_eq!(row("no-such-code"), None);
    }
}
