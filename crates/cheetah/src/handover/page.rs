//! The page of a report: well-formed XHTML that needs nothing beside it, for a browser and for paper.
//!
//! Owns its text. Never: what there is to say, or mark-up (`html`). Called by `super`. Tests:
//! `lab/tests/handover.rs`.

use super::Known;
use crate::html::{document, escaped, note, row, section, table};
use crate::{content, custody};
use cheetah_core::api::VolumeDetail;
use cheetah_core::content::ByteRange;
use cheetah_core::custody::{Case, Entry, Event};
use cheetah_core::layout::LostRange;
use cheetah_core::units::{show_bytes, show_time};

/// What it is called.
pub(super) const NAME: &str = "report.html";

pub(super) fn page(known: &Known) -> String {
    let name = &known.log.name;
    let title = format!("Volume {name}");
    let mut body = format!("<h1>{}</h1>\n", escaped(&title));
    body += &note(&format!(
        "Report of {} by cheetah {}, from pool {}. Times are of the pool's coordinator, in UTC.",
        show_time(known.at),
        env!("CARGO_PKG_VERSION"),
        known.log.pool
    ));
    body += &section("What it is", &what(known));
    body += &section("Timeline", &timeline(known));
    body += &section("How to check this", &checks(known));
    document(&title, &body)
}

fn what(known: &Known) -> String {
    let mut rows = vec![row("Name", &known.log.name), row("Identity", &known.log.volume.to_string())];
    let Some(detail) = &known.volume else {
        rows.push(row("State", "the volume was deleted: what follows is what the pool put down of it"));
        return table(&rows);
    };
    let VolumeDetail { status, case, .. } = &**detail;
    rows.extend(case.iter().flat_map(case_rows));
    rows.push(row("Size", &format!("{} bytes ({})", status.size, show_bytes(status.size))));
    rows.push(row("Redundancy", &status.redundancy.to_string()));
    rows.push(row("Content", &content::word(&status.content)));
    if let Some(load) = &status.content.load {
        rows.push(row("Source", &load.source.name));
        rows.push(row("Source is", &load.source.identity));
        rows.push(row("Loaded by", &load.by));
        rows.push(row("Loading began", &show_time(load.begun)));
        rows.extend(load.ended.map(|ended| row("Loading ended", &show_time(ended))));
        rows.extend(load.changed.iter().map(|how| row("Source changed", how)));
    }
    match &status.content.sealed {
        Some(sealed) => {
            rows.push(row("Sealed", &format!("{} by {}", show_time(sealed.at), sealed.by)));
            rows.push(row("MD5", &sealed.md5));
            rows.push(row("SHA-1", &sealed.sha1));
            rows.push(row("SHA-256", &sealed.sha256));
            rows.push(row("BLAKE3", &sealed.blake3().to_string()));
        }
        None => {
            rows.push(row("Sealed", "no: nothing proves what it holds now"));
            let load = status.content.load.as_ref();
            rows.extend(load.and_then(|load| load.unsealed.as_ref()).map(|why| row("Not sealed, for", why)));
            rows.extend(load.and_then(|load| load.md5.as_ref()).map(|md5| row("MD5 of the source", md5)));
            let sha256 = load.and_then(|load| load.sha256.as_ref());
            rows.extend(sha256.map(|sha256| row("SHA-256 of the source", sha256)));
        }
    }
    table(&rows) + &missing(detail)
}

fn case_rows(case: &Case) -> Vec<String> {
    let Case { case, evidence, examiner, notes, .. } = case;
    let fields = [("Case", case), ("Evidence", evidence), ("Examiner", examiner), ("Notes", notes)];
    fields.into_iter().filter_map(|(name, text)| Some(row(name, text.as_ref()?))).collect()
}

/// What of it cannot be read.
fn missing(detail: &VolumeDetail) -> String {
    let unreadable = detail.status.content.load.iter().flat_map(|load| &load.unreadable);
    let mut rows: Vec<String> = unreadable
        .map(|ByteRange { offset, len }| {
            row("Unreadable at the source", &format!("{len} bytes from {offset} on"))
        })
        .collect();
    rows.extend(detail.lost.iter().map(|range: &LostRange| row("Lost", &range.to_string())));
    if rows.is_empty() {
        return note("All of it can be read.");
    }
    note("These ranges answer an error. In the hashes zeros stand for what the source could not give.")
        + &table(&rows)
}

fn timeline(known: &Known) -> String {
    let mut rows = vec!["<tr><th>#</th><th>Time</th><th>What</th><th>By</th></tr>\n".to_owned()];
    for line in &known.log.lines {
        let Ok(entry) = serde_json::from_str::<Entry>(line) else {
            rows.push(
                "<tr class=\"bad\"><td></td><td></td><td>an entry that cannot be read</td><td></td></tr>\n"
                    .to_owned(),
            );
            continue;
        };
        let is_bad = matches!(
            entry.event,
            Event::DataLost { .. }
                | Event::Unflushed { .. }
                | Event::DonorLost { .. }
                | Event::DonorSetAside { .. }
                | Event::WrongBlocks { .. }
                | Event::FillEnded { .. }
                | Event::NotSealed { .. }
                | Event::Written { .. }
        );
        let command = match &entry.event {
            Event::Case(case) => {
                format!("<br/><code>{}</code> ({})", escaped(&case.command), escaped(&case.version))
            }
            _ => String::new(),
        };
        rows.push(format!(
            "<tr{}><td>{}</td><td>{}</td><td>{}{command}</td><td>{}</td></tr>\n",
            if is_bad { " class=\"bad\"" } else { "" },
            entry.sequence,
            escaped(&entry.utc),
            escaped(&custody::said(&entry.event)),
            escaped(entry.by.as_deref().unwrap_or("the pool itself"))
        ));
    }
    table(&rows) + &note(&format!("The log ends at {}.", known.log.head))
}

fn checks(known: &Known) -> String {
    let key = &known.log.key;
    let mut lines = vec![
        "# the log is what the pool signed; each entry has the hash of the line before it".to_owned(),
        format!("minisign -Vm custody.log -P {key}"),
        "sed -n 1p custody.log | sha256sum; sed -n 2p custody.log | jq -r .previous    # the same, and so on"
            .to_owned(),
    ];
    if known.manifest.is_some() {
        lines.extend([
            "# the manifest is what the pool signed".to_owned(),
            format!("minisign -Vm manifest.json -P {key}"),
            "# the image, saved or attached, is what was sealed".to_owned(),
            "jq -r .hashes.sha256 manifest.json; sha256sum IMAGE".to_owned(),
            "jq -r .hashes.blake3 manifest.json; b3sum IMAGE".to_owned(),
        ]);
    }
    let why = "The files beside this page are signed by the pool. Compare its key with one that you were given in \
               another way: pool.pub came with the files. This page itself is not signed.";
    note(why) + &format!("<pre>{}</pre>\n", escaped(&lines.join("\n")))
}
