//! What a log is in CASE/UCO: the same each time, and nothing that was not said.

use super::*;
use cheetah_core::content::Check;
use cheetah_core::custody::{Head, line_of, no_hash};
use cheetah_core::map::{PoolId, VolumeId};

const COMMAND: &str = "eve@lab process 7 from 10.0.0.2";

fn log_of(events: Vec<(Option<&str>, Event)>) -> LogReport {
    let (mut previous, mut lines) = (no_hash(), Vec::new());
    for (index, (by, event)) in events.into_iter().enumerate() {
        let sequence = index as u64 + 1;
        let at = 1_795_000_000 + 60 * sequence;
        let entry = Entry {
            pool: PoolId(1),
            volume: VolumeId(2),
            name: "case7".into(),
            sequence,
            previous,
            at,
            utc: iso_time(at),
            by: by.map(str::to_owned),
            member: None,
            event,
        };
        lines.push(line_of(&entry));
        previous = hash_of(&line_of(&entry));
    }
    LogReport {
        pool: PoolId(1),
        volume: VolumeId(2),
        name: "case7".into(),
        deleted: false,
        head: Head { sequence: lines.len() as u64, hash: previous },
        lines,
        older: Vec::new(),
        key: "RWkey".into(),
        signature: String::new(),
    }
}

fn filled_from(name: &str, identity: &str, case: Case) -> LogReport {
    let source = Source { name: name.into(), size: 8 << 20, identity: identity.into(), checksummed: false };
    let holder = || "eve@lab".to_owned();
    let filled = Event::Filled {
        md5: "a".repeat(32),
        sha256: "b".repeat(64),
        check: Check::Same,
        changed: None,
        unreadable_bytes: 0,
    };
    log_of(vec![
        (Some(COMMAND), Event::Created { size: 8 << 20, redundancy: "linear".into() }),
        (Some(COMMAND), Event::Case(case)),
        (Some(COMMAND), Event::FillBegun { source, holder: holder() }),
        (Some(COMMAND), filled),
        (Some("adam@lab process 7 from 10.0.0.3"), Event::Attached { holder: holder(), read_only: true }),
        (None, Event::Detached { holder: holder(), seconds: 30, given_back: false }),
    ])
}

fn of_class<'a>(document: &'a Value, class: &str) -> Vec<&'a Value> {
    let nodes = document["@graph"].as_array().expect("nodes");
    let is = |node: &&Value| node["@type"].to_string().contains(&format!(":{class}\""));
    nodes.iter().filter(is).collect()
}

fn full() -> Case {
    Case {
        case: Some("2026-7".into()),
        evidence: Some("E1".into()),
        examiner: Some("R. Roe".into()),
        notes: Some("left bay".into()),
        version: "cheetah 0.1.0".into(),
        command: "cheetah load disk.dd case7".into(),
    }
}

#[test]
fn a_name_is_a_uuid_of_version_5_and_always_the_same() {
    assert_eq!(id("action", "seed"), id("action", "seed"));
    assert_ne!(id("action", "seed"), id("hash", "seed"));
    let name = id("action", "seed");
    let uuid: Vec<&str> = name.strip_prefix("kb:action-").expect("the kind").split('-').collect();
    assert_eq!(uuid.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    assert!(uuid[2].starts_with('5') && uuid[3].starts_with(['8', '9', 'a', 'b']), "{name}");
}

#[test]
fn the_same_log_gives_the_same_document_with_all_that_was_said() {
    let log = filled_from("/e/disk.dd", "inode 7, modified 1.0", full());
    let said = document(&log);
    assert_eq!(said.to_string(), document(&log).to_string());
    let [case] = of_class(&said, "Investigation")[..] else { panic!("one case: {said}") };
    assert_eq!(case["uco-core:name"], "2026-7");
    let [record] = of_class(&said, "ProvenanceRecord")[..] else { panic!("one record: {said}") };
    assert_eq!(record["case-investigation:exhibitNumber"], "E1");
    assert_eq!(record["cheetah:head"], log.head.to_string());
    let [person] = of_class(&said, "Person")[..] else { panic!("one person: {said}") };
    assert_eq!(person["uco-core:name"], "R. Roe");

    let actions = of_class(&said, "InvestigativeAction");
    assert_eq!(actions.len(), log.lines.len());
    for (index, (action, line)) in actions.iter().zip(&log.lines).enumerate() {
        assert_eq!(action["cheetah:entryHash"]["@value"], hash_of(line));
        let before = index.checked_sub(1).map(|before| actions[before]["@id"].clone());
        let follows = action.get("case-investigation:wasInformedBy").map(|it| it["@id"].clone());
        assert_eq!(follows, before);
    }
    let times = |action: &Value| {
        ["startTime", "endTime"].map(|name| action[format!("uco-action:{name}")]["@value"].clone())
    };
    // A fill took from its beginning on, an attachment as long as it says.
    assert_eq!(times(actions[3]), ["2026-11-18T11:09:40Z", "2026-11-18T11:10:40Z"]);
    assert_eq!(times(actions[5]), ["2026-11-18T11:12:10Z", "2026-11-18T11:12:40Z"]);
    let text = said.to_string();
    for word in ["\"MD5\"", "\"SHA256\"", "notes: left bay", "\"uco-tool:version\":\"0.1.0\"", "/e/disk.dd"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

#[test]
fn only_what_the_log_has_is_attributed() {
    let said = document(&filled_from("/e/disk.dd", "inode 7, modified 1.0", full()));
    let person = of_class(&said, "Person")[0]["@id"].clone();
    let actions = of_class(&said, "InvestigativeAction");
    let performers: Vec<&Value> =
        actions.iter().map(|action| &action["uco-action:performer"]["@id"]).collect();
    // The command that named the examiner; not who else comes, nor what time brought about.
    assert_eq!([performers[1], performers[2], performers[3]], [&person; 3]);
    assert!(*performers[0] != person && *performers[4] != person && performers[5].is_null());
    let names: Vec<&Value> =
        of_class(&said, "Identity").into_iter().map(|node| &node["uco-core:name"]).collect();
    assert_eq!(names, ["eve@lab from 10.0.0.2", "adam@lab from 10.0.0.3"]);

    let nothing = document(&filled_from("/e/disk.dd", "inode 7, modified 1.0", Case::default()));
    assert!(of_class(&nothing, "Investigation").is_empty() && of_class(&nothing, "Person").is_empty());
    assert!(of_class(&nothing, "ProvenanceRecord")[0].get("case-investigation:exhibitNumber").is_none());
    assert!(!nothing.to_string().contains("null") && !nothing.to_string().contains("notes"));
}

#[test]
fn a_source_is_a_file_a_disk_or_neither() {
    let of = |name: &str, identity: &str| document(&filled_from(name, identity, Case::default())).to_string();
    let disk = of("/dev/sdb", "block device /dev/sdb, ATA Disk 9, serial S7");
    for word in
        ["\"uco-observable:model\":\"ATA Disk 9\"", "\"uco-observable:serialNumber\":\"S7\"", "diskSize"]
    {
        assert!(disk.contains(word), "{word} is not in {disk}");
    }
    let silent = of("/dev/sdb", "block device /dev/sdb");
    assert!(!silent.contains("observable:model") && !silent.contains("DeviceFacet"), "{silent}");
    let image = of("/e/disk.E01", "E01 image, 2 segments: inode 7, modified 1.0, and 1 more (00)");
    assert!(image.contains("\"uco-observable:imageType\":\"E01 image, 2 segments\""), "{image}");
    let far = of("https://host/disk.dd", "ETag 1");
    assert!(!far.contains("FileFacet") && far.contains("ContentDataFacet"), "{far}");
}

#[test]
fn what_is_no_hash_or_no_entry_of_now_is_not_taken_for_one() {
    let exported = Event::Exported { file: "out.dd".into(), bytes: 5, sha256: "trust me".into() };
    let mut log = log_of(vec![(Some(COMMAND), exported)]);
    log.lines.push("{\"event\":\"later\"}".into());
    let said = document(&log);
    assert!(!said.to_string().contains("uco-types:Hash\""), "{said}");
    let actions = of_class(&said, "InvestigativeAction");
    assert_eq!(actions[1]["cheetah:entryHash"]["@value"], hash_of(&log.lines[1]));
    assert!(actions[1]["uco-core:description"].to_string().contains("cannot be read"), "{said}");
}
