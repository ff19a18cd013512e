//! A log of custody as CASE/UCO JSON-LD.
//!
//! Owns: what each entry is in the words of CASE 1.5 and UCO, and the names of all that. Never: what is in
//! a log (core), a clock, or an attribution that the log does not have. Invariants: the same log gives the
//! same bytes; what was not said is left out; each action has the hash of its entry, which leads to the
//! signed log; and no validator finds even a remark. Called by `custody`. Tests: below, and
//! `lab/tests/custody.rs`, where a validator of others reads it.

use super::said;
use cheetah_core::api::LogReport;
use cheetah_core::content::Source;
use cheetah_core::custody::{Case, Entry, Event, hash_of};
use cheetah_core::units::iso_time;
use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};
use std::collections::{BTreeMap, BTreeSet};

/// Under which the names of what is described are made. Another one would give all of it other names.
const NAMES: [u8; 16] = *b"cheetah custody\0";
/// What a command says of the case holds for these of its entries: a later process may have its number.
const OF_A_FILL: [&str; 5] = ["case", "fill-begun", "filled", "sealed", "fill-ended"];

/// The log as one document.
pub fn document(log: &LogReport) -> Value {
    let mut story = Story::of(log);
    log.lines.iter().for_each(|line| story.put(line));
    let mut context = Map::new();
    for part in ["core", "action", "identity", "observable", "tool", "types"] {
        let name = format!("https://ontology.unifiedcyberontology.org/uco/{part}/");
        context.insert(format!("uco-{part}"), json!(name));
    }
    let fixed = [
        ("case-investigation", "https://ontology.caseontology.org/case/investigation/"),
        ("xsd", "http://www.w3.org/2001/XMLSchema#"),
        ("kb", "urn:cheetah:kb:"),
        ("cheetah", "urn:cheetah:custody:"),
    ];
    context.extend(fixed.map(|(prefix, name)| (prefix.to_owned(), json!(name))));
    json!({ "@context": context, "@graph": story.end() })
}

/// `kb:KIND-UUID`, the UUID being of version 5: always the same for the same seed.
fn id(kind: &str, seed: &str) -> String {
    let digest = Sha1::new().chain_update(NAMES).chain_update(kind).chain_update("/").chain_update(seed);
    let mut bytes: Vec<u8> = digest.finalize()[..16].to_vec();
    bytes[6] = bytes[6] & 0x0f | 0x50;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("kb:{kind}-{a}-{b}-{c}-{d}-{e}")
}

fn reference(id: &str) -> Value {
    json!({ "@id": id })
}

fn references<'a>(ids: impl IntoIterator<Item = &'a String>) -> Value {
    ids.into_iter().map(|id| reference(id)).collect()
}

fn time(seconds: u64) -> Value {
    json!({ "@type": "xsd:dateTime", "@value": iso_time(seconds) })
}

/// As text, since a number of JSON-LD becomes another type when it is large.
fn integer(number: u64) -> Value {
    json!({ "@type": "xsd:integer", "@value": number.to_string() })
}

fn hex(digits: &str) -> Value {
    json!({ "@type": "xsd:hexBinary", "@value": digits })
}

/// Digests by their names in UCO.
type Digests<'a> = [(&'static str, &'a str)];

/// Something that bytes are read from or written to, with its facets. `owner` makes their names.
fn content(owner: &str, bytes: Option<u64>, digests: &Digests<'_>) -> Value {
    let all: String = digests.iter().map(|(_, digits)| *digits).collect();
    let facet = id("content-data-facet", &format!("{owner}/{all}"));
    // What a client said is no hash because it said so.
    let is_hash = |digits: &str| {
        matches!(digits.len(), 32 | 40 | 64) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let hashes: Vec<Value> = digests
        .iter()
        .filter(|(_, digits)| is_hash(digits))
        .map(|(method, digits)| {
            json!({
                "@id": id("hash", &format!("{facet}/{method}")),
                "@type": "uco-types:Hash",
                "uco-types:hashMethod": method,
                "uco-types:hashValue": hex(digits),
            })
        })
        .collect();
    let mut node = json!({ "@id": facet, "@type": "uco-observable:ContentDataFacet" });
    if let Some(bytes) = bytes {
        node["uco-observable:sizeInBytes"] = integer(bytes);
    }
    if !hashes.is_empty() {
        node["uco-observable:hash"] = Value::Array(hashes);
    }
    node
}

/// `bytes` only of a file that is what it holds: an E01 is not, nor is the first of several parts.
fn file_facet(owner: &str, path: &str, bytes: Option<u64>) -> Value {
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut facet = json!({
        "@id": id("file-facet", owner),
        "@type": "uco-observable:FileFacet",
        "uco-observable:fileName": name,
        "uco-observable:filePath": path,
    });
    if let Some(bytes) = bytes {
        facet["uco-observable:sizeInBytes"] = integer(bytes);
    }
    facet
}

fn image_facet(owner: &str, kind: &str) -> Value {
    json!({
        "@id": id("image-facet", owner),
        "@type": "uco-observable:ImageFacet",
        "uco-observable:imageType": kind,
    })
}

/// What a disk says of itself. Make and model are one text in the log, and stay one.
fn disk_facets(owner: &str, source: &Source, told: &str) -> Vec<Value> {
    let (model, serial) = match told.rsplit_once("serial ") {
        Some((model, serial)) => (model.trim_end_matches(", "), serial),
        None => (told, ""),
    };
    let mut facets = vec![json!({
        "@id": id("disk-facet", owner),
        "@type": "uco-observable:DiskFacet",
        "uco-observable:diskSize": integer(source.size),
    })];
    let mut device = json!({ "@id": id("device-facet", owner), "@type": "uco-observable:DeviceFacet" });
    let known = [("model", model), ("serialNumber", serial)];
    for (name, text) in known.into_iter().filter(|(_, text)| !text.is_empty()) {
        device[format!("uco-observable:{name}")] = json!(text);
    }
    if !told.is_empty() {
        facets.push(device);
    }
    facets
}

/// What a volume was filled from, once for each time.
struct Fill {
    id: String,
    at: u64,
    source: Source,
    /// MD5 and SHA-256, as often as they were others.
    digests: BTreeSet<(String, String)>,
}

impl Fill {
    fn node(&self) -> Value {
        let Fill { id: owner, source, digests, .. } = self;
        let Source { name, size, identity, .. } = source;
        let (kind, mut facets) = match identity.strip_prefix("block device ") {
            Some(rest) => {
                let told = rest.strip_prefix(name.as_str()).unwrap_or(rest);
                let told = told.split_once(", ").map_or("", |(_, told)| told);
                let kind = json!(["uco-observable:Disk", "uco-observable:StorageMedium"]);
                (kind, disk_facets(owner, source, told))
            }
            None if name.contains("://") => (json!("uco-observable:ObservableObject"), Vec::new()),
            None => {
                let is_all = identity.starts_with("inode ") && !identity.contains(" more (");
                let mut facets = vec![file_facet(owner, name, is_all.then_some(*size))];
                // `E01 image, 2 segments: inode ...`
                facets.extend(identity.split_once(": inode ").map(|(image, _)| image_facet(owner, image)));
                (json!("uco-observable:File"), facets)
            }
        };
        if digests.is_empty() {
            facets.push(content(owner, Some(*size), &[]));
        }
        for (md5, sha256) in digests {
            facets.push(content(owner, Some(*size), &[("MD5", md5), ("SHA256", sha256)]));
        }
        json!({
            "@id": owner,
            "@type": kind,
            "uco-core:name": name,
            "uco-core:description": identity,
            "uco-core:hasFacet": facets,
        })
    }
}

/// What is known of a volume as its log is read from the beginning to the end.
struct Story<'a> {
    log: &'a LogReport,
    /// The name of the volume.
    volume: String,
    bytes: Option<u64>,
    /// Those of the seals.
    contents: Vec<Value>,
    fills: Vec<Fill>,
    files: Vec<Value>,
    /// Who acts, and with what.
    actors: Vec<Value>,
    named: BTreeSet<String>,
    /// What a process said of the case.
    said: BTreeMap<String, Case>,
    cases: Vec<String>,
    evidence: Vec<String>,
    actions: Vec<Value>,
}

impl<'a> Story<'a> {
    fn of(log: &'a LogReport) -> Self {
        Story {
            log,
            volume: id("volume", &format!("{}/{}", log.pool, log.volume)),
            bytes: None,
            contents: Vec::new(),
            fills: Vec::new(),
            files: Vec::new(),
            actors: Vec::new(),
            named: BTreeSet::new(),
            said: BTreeMap::new(),
            cases: Vec::new(),
            evidence: Vec::new(),
            actions: Vec::new(),
        }
    }

    fn put(&mut self, line: &str) {
        let hash = hash_of(line);
        let mut action = json!({
            "@id": id("action", &hash),
            "@type": "case-investigation:InvestigativeAction",
            "cheetah:entryHash": hex(&hash),
        });
        // The order of the entries, beside their times, which may be the same.
        if let Some(before) = self.actions.last().and_then(|action| action["@id"].as_str()) {
            action["case-investigation:wasInformedBy"] = reference(before);
        }
        match serde_json::from_str::<Entry>(line) {
            Ok(entry) => self.tell(&entry, &hash, &mut action),
            // A later version's.
            Err(why) => {
                let what = format!("an entry that cannot be read: {why}");
                action["uco-core:description"] = json!(what);
            }
        }
        self.actions.push(action);
    }

    fn tell(&mut self, entry: &Entry, hash: &str, action: &mut Value) {
        let Entry { sequence, previous, at, by, event, .. } = entry;
        let kind = serde_json::to_value(event).unwrap_or_default()["event"].clone();
        let mut text = vec![said(event)];
        text.extend(by.iter().map(|by| format!("by {by}")));
        if let Event::Case(case) = event {
            text.extend(case.notes.iter().map(|notes| format!("notes: {notes}")));
            text.push(format!("command: {} ({})", case.command, case.version));
            self.hear(case, by.as_deref());
        }
        let began = self.objects(entry, hash, action);
        action["uco-core:name"] = kind.clone();
        action["uco-core:description"] = json!(text.join("\n"));
        action["uco-action:startTime"] = time(began);
        action["uco-action:endTime"] = time(*at);
        action["cheetah:sequence"] = integer(*sequence);
        action["cheetah:previousHash"] = hex(previous);
        let is_of_fill = kind.as_str().is_some_and(|kind| OF_A_FILL.contains(&kind));
        let case = by.as_ref().filter(|_| is_of_fill).and_then(|by| self.said.get(by)).cloned();
        let case = case.unwrap_or_default();
        action["uco-action:instrument"] = reference(&self.tool(&case.version));
        if let Some(performer) = self.performer(by.as_deref(), case.examiner.as_deref()) {
            action["uco-action:performer"] = reference(&performer);
        }
    }

    fn hear(&mut self, case: &Case, by: Option<&str>) {
        let keep = |kept: &mut Vec<String>, said: &Option<String>| {
            kept.extend(said.iter().filter(|said| !kept.contains(said)).cloned().collect::<Vec<_>>());
        };
        keep(&mut self.cases, &case.case);
        keep(&mut self.evidence, &case.evidence);
        if let Some(by) = by {
            self.said.insert(by.to_owned(), case.clone());
        }
    }

    /// What is used and what comes of it. Answers when that began.
    fn objects(&mut self, entry: &Entry, hash: &str, action: &mut Value) -> u64 {
        let Entry { at, event, .. } = entry;
        let volume = reference(&self.volume);
        let (object, result, mut began) = match event {
            Event::Created { size, .. } => {
                self.bytes = Some(*size);
                (None, Some(volume), *at)
            }
            Event::Grown { size } => {
                self.bytes = Some(*size);
                (Some(volume), None, *at)
            }
            Event::FillBegun { source, .. } => {
                let (id, source) = (id("source", hash), source.clone());
                let object = reference(&id);
                self.fills.push(Fill { id, at: *at, source, digests: BTreeSet::new() });
                (Some(object), Some(volume), *at)
            }
            Event::Filled { md5, sha256, .. } => match self.fills.last_mut() {
                Some(fill) => {
                    fill.digests.insert((md5.clone(), sha256.clone()));
                    (Some(reference(&fill.id)), Some(volume), fill.at)
                }
                None => (Some(volume), None, *at),
            },
            Event::Sealed { blake3, sha256, .. } => {
                let owner = format!("{}/{hash}", self.volume);
                let mut facet = content(&owner, self.bytes, &[("SHA256", sha256)]);
                // The vocabulary of UCO has no word for it.
                facet["cheetah:blake3"] = hex(&blake3.to_string());
                self.contents.push(facet);
                (Some(volume), None, *at)
            }
            Event::Exported { file, bytes, sha256 } => {
                let id = id("file", hash);
                let result = reference(&id);
                let facets = [file_facet(&id, file, None), content(&id, Some(*bytes), &[("SHA256", sha256)])];
                self.files.push(json!({
                    "@id": id,
                    "@type": "uco-observable:File",
                    "uco-core:name": file,
                    "uco-core:description": "size and hash of the content are those of what the volume gave",
                    "uco-core:hasFacet": facets,
                }));
                (Some(volume), Some(result), *at)
            }
            Event::Detached { seconds, .. } => (Some(volume), None, at.saturating_sub(*seconds)),
            _ => (Some(volume), None, *at),
        };
        // A clock that was set back.
        began = began.min(*at);
        for (name, thing) in [("uco-action:object", object), ("uco-action:result", result)] {
            if let Some(thing) = thing {
                action[name] = thing;
            }
        }
        began
    }

    /// The examiner where the very command named one; else who called, by its own word, without the number
    /// of its process.
    fn performer(&mut self, by: Option<&str>, examiner: Option<&str>) -> Option<String> {
        if let Some(examiner) = examiner {
            let seed = format!("{}/{examiner}", self.volume);
            return Some(self.actor("person", &seed, "uco-identity:Person", examiner));
        }
        let by = by?;
        let (said, from) = by.rsplit_once(" from ").unwrap_or((by, ""));
        let said = said.split(" process ").next().unwrap_or(said);
        let name = if from.is_empty() { said.to_owned() } else { format!("{said} from {from}") };
        let seed = format!("{}/{name}", self.log.pool);
        Some(self.actor("identity", &seed, "uco-identity:Identity", &name))
    }

    fn actor(&mut self, kind: &str, seed: &str, class: &str, name: &str) -> String {
        let id = id(kind, seed);
        if self.named.insert(id.clone()) {
            self.actors.push(json!({ "@id": id, "@type": class, "uco-core:name": name }));
        }
        id
    }

    /// `cheetah 0.1.0`, or without a version where the log has none.
    fn tool(&mut self, version: &str) -> String {
        let id = id("tool", version);
        if self.named.insert(id.clone()) {
            let (name, number) = version.split_once(' ').unwrap_or(("cheetah", version));
            let mut tool = json!({ "@id": id, "@type": "uco-tool:Tool", "uco-core:name": name });
            if !number.is_empty() {
                tool["uco-tool:version"] = json!(number);
            }
            self.actors.push(tool);
        }
        id
    }

    fn end(self) -> Vec<Value> {
        let volume = self.volume_node();
        let Story { log, fills, files, actors, cases, evidence, actions, .. } = self;
        let things = [vec![volume], fills.iter().map(Fill::node).collect(), files].concat();
        let ids = |nodes: &[Value]| -> Vec<String> {
            nodes.iter().filter_map(|node| node["@id"].as_str()).map(str::to_owned).collect()
        };
        let of_volume = format!("{}/{}", log.pool, log.volume);
        let record = |exhibit: Option<&String>| {
            let seed = exhibit.map_or_else(|| of_volume.clone(), |exhibit| format!("{of_volume}/{exhibit}"));
            let mut record = json!({
                "@id": id("provenance-record", &seed),
                "@type": "case-investigation:ProvenanceRecord",
                "uco-core:description": format!("log of custody of volume {} in pool {}", log.name, log.pool),
                "uco-core:object": references(&ids(&things)),
                "cheetah:head": log.head.to_string(),
                "cheetah:key": log.key,
            });
            if let Some(exhibit) = exhibit {
                record["case-investigation:exhibitNumber"] = json!(exhibit);
            }
            record
        };
        let records: Vec<Value> = match evidence.is_empty() {
            true => vec![record(None)],
            false => evidence.iter().map(|exhibit| record(Some(exhibit))).collect(),
        };
        let nodes = [records, things, actors, actions].concat();
        let of_case = references(&ids(&nodes));
        // The same in each document of this pool, so that they come together when they are merged.
        let investigation = |case: &String| {
            json!({
                "@id": id("investigation", &format!("{}/{case}", log.pool)),
                "@type": "case-investigation:Investigation",
                "uco-core:name": case,
                "uco-core:object": of_case,
            })
        };
        [cases.iter().map(investigation).collect(), nodes].concat()
    }

    /// UCO's own `Volume` is one with a file system, which a disk is not.
    fn volume_node(&self) -> Value {
        let Story { log, volume, bytes, contents, .. } = self;
        let identity = json!({
            "@id": id("volume-facet", volume),
            "@type": "uco-observable:VolumeFacet",
            "uco-observable:volumeID": log.volume.to_string(),
        });
        let mut facets = vec![identity];
        match contents.is_empty() {
            true => facets.push(content(volume, *bytes, &[])),
            false => facets.extend(contents.iter().cloned()),
        }
        json!({
            "@id": volume,
            "@type": "uco-observable:ObservableObject",
            "uco-core:name": log.name,
            "uco-core:hasFacet": facets,
        })
    }
}

#[cfg(test)]
mod tests;
