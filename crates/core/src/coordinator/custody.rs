//! The custody of volumes: what is put down of each, for as long as the pool lasts.
//!
//! Owns the logs, when something is put down, and how much is kept. Never: the form of an entry
//! (`crate::custody`) or signatures (the driver). Invariants: an entry is stored in the step of what it
//! tells of, so before that is answered; none is changed or taken away, but with all of its log; a
//! volume's log takes `CUSTODY_ENTRIES_MAX` entries and some more of what matters most, and those of
//! deleted volumes `CUSTODY_DELETED_BYTES_MAX` together: then the log of the volume that was deleted
//! first is dropped, which is noted. Tests: `tests/coordinator_custody.rs`.

use super::content::check_hash;
use super::notes::Note;
use super::{Coordinator, Key, Outcome, refuse};
use crate::api::{Answer, LogReport, OlderLog, Refusal, RefusalCode};
use crate::custody::{Case, Entry, Event, Head, Said, hash_of, line_of, no_hash};
use crate::limits::{
    CUSTODY_DELETED_BYTES_MAX, CUSTODY_ENTRIES_MAX, CUSTODY_ENTRIES_SPARE, PLACE_BYTES_MAX, REASON_BYTES_MAX,
};
use crate::map::VolumeId;
use crate::text::harmless;
use crate::units::show_time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustodyRecord {
    /// Whose log it is of; the record's key, with its number.
    pub volume: VolumeId,
    /// From 1 on.
    pub sequence: u64,
    /// Orders all entries of the pool.
    pub order: u64,
    /// The entry, as it is hashed.
    pub line: String,
}

/// All that is put down of one volume.
#[derive(Clone, Debug, Default)]
struct Log {
    name: String,
    /// Their number is the next one's sequence.
    lines: Vec<(u64, Box<str>)>,
    bytes: usize,
    head: String,
    case: Option<Case>,
    /// By the client that spoke last, with or without a case.
    said: Option<Case>,
    is_over: bool,
}

/// The logs of the pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Logs {
    logs: BTreeMap<VolumeId, Log>,
    order: u64,
    deleted_bytes: usize,
}

impl Log {
    fn add(&mut self, order: u64, line: &str, entry: &Entry) {
        self.head = hash_of(line);
        self.bytes += line.len();
        self.lines.push((order, line.into()));
        self.name.clone_from(&entry.name);
        match &entry.event {
            Event::Case(case) => {
                self.said = Some(case.clone());
                self.case = case.is_named().then(|| case.clone()).or(self.case.take());
            }
            Event::Deleted => self.is_over = true,
            _ => {}
        }
    }

    fn last(&self) -> u64 {
        self.lines.last().map_or(0, |(order, _)| *order)
    }

    fn head(&self) -> Head {
        let hash = if self.lines.is_empty() { no_hash() } else { self.head.clone() };
        Head { sequence: self.lines.len() as u64, hash }
    }

    /// Whether there is room for that. `Some`: for another in its place.
    fn admits(&self, event: Event) -> Option<Event> {
        let has = self.lines.len();
        match event {
            _ if self.is_over => None,
            Event::Deleted => Some(event),
            _ if has < CUSTODY_ENTRIES_MAX => Some(event),
            _ if has == CUSTODY_ENTRIES_MAX => Some(Event::Full),
            Event::FillBegun { .. }
            | Event::Filled { .. }
            | Event::FillEnded { .. }
            | Event::Sealed { .. }
            | Event::NotSealed { .. }
            | Event::OverlayMade { .. }
            | Event::Written { .. }
            | Event::DataLost { .. }
            | Event::Unflushed { .. }
            | Event::Exported { .. }
                if has < CUSTODY_ENTRIES_MAX + CUSTODY_ENTRIES_SPARE =>
            {
                Some(event)
            }
            _ => None,
        }
    }
}

impl Logs {
    /// As they were stored, in any order.
    pub(super) fn restore(mut records: Vec<CustodyRecord>) -> Logs {
        let mut logs = Logs::default();
        records.sort_by_key(|record| (record.volume, record.sequence));
        for CustodyRecord { volume, order, line, .. } in records {
            logs.order = logs.order.max(order + 1);
            let log = logs.logs.entry(volume).or_default();
            match serde_json::from_str::<Entry>(&line) {
                Ok(entry) => log.add(order, &line, &entry),
                // Whoever reads the log is told; nothing is decided by it.
                Err(_) => log.lines.push((order, line.into())),
            }
        }
        let over = logs.logs.values().filter(|log| log.is_over);
        logs.deleted_bytes = over.map(|log| log.bytes).sum();
        logs
    }

    pub(super) fn record(&self, volume: VolumeId, sequence: u64) -> Option<CustodyRecord> {
        let index = usize::try_from(sequence).ok()?.checked_sub(1)?;
        let (order, line) = self.logs.get(&volume)?.lines.get(index)?;
        Some(CustodyRecord { volume, sequence, order: *order, line: line.to_string() })
    }

    fn case(&self, volume: VolumeId) -> Option<Case> {
        self.logs.get(&volume)?.case.clone()
    }
}

impl Coordinator {
    /// Who makes the call of the next step: by its own word, and from where. For what is put down.
    pub fn called_by(&mut self, by: Option<String>) {
        self.by = by;
    }

    /// Where its log ends now.
    pub(super) fn head_of(&self, volume: VolumeId) -> Option<Head> {
        self.custody.logs.get(&volume).map(Log::head)
    }

    pub(super) fn case_of(&self, volume: VolumeId) -> Option<Case> {
        self.custody.case(volume)
    }

    /// A volume takes another's place, of which somebody spoke just now.
    pub(super) fn put_said_down(&mut self, of: VolumeId, anew: VolumeId) {
        let said = self.custody.logs.get(&of).and_then(|log| log.said.clone());
        if let Some(said) = said {
            self.put_down(anew, Event::Case(said));
        }
    }

    /// Puts down what this step does to a volume.
    pub(super) fn put_down(&mut self, id: VolumeId, event: Event) {
        let Some(volume) = self.volumes.get(&id) else { return };
        self.put_down_of(id, volume.map.name.clone(), event);
    }

    /// The same of a volume that this step has taken out.
    pub(super) fn put_down_of(&mut self, id: VolumeId, name: String, event: Event) {
        let log = self.custody.logs.entry(id).or_default();
        let Some(event) = log.admits(event) else { return };
        let Head { sequence, hash: previous } = log.head();
        let sequence = sequence + 1;
        let entry = Entry {
            pool: self.pool,
            volume: id,
            name,
            sequence,
            previous,
            at: self.time_of_day,
            utc: show_time(self.time_of_day),
            by: self.by.clone(),
            member: self.caller.member().map(|member| member.id),
            event,
        };
        log.add(self.custody.order, &line_of(&entry), &entry);
        self.custody.order += 1;
        self.dirty.insert(Key::Custody(id, sequence));
        if log.is_over {
            self.custody.deleted_bytes += log.bytes;
            self.bound_custody();
        }
    }

    /// Drops whole logs of deleted volumes, the oldest first, while all of them are too large.
    fn bound_custody(&mut self) {
        while self.custody.deleted_bytes > CUSTODY_DELETED_BYTES_MAX {
            let over = self.custody.logs.iter().filter(|(_, log)| log.is_over);
            let Some(oldest) = over.min_by_key(|(_, log)| log.last()).map(|(id, _)| *id) else { return };
            let Some(log) = self.custody.logs.remove(&oldest) else { return };
            self.custody.deleted_bytes -= log.bytes.min(self.custody.deleted_bytes);
            self.dirty.extend((1..=log.lines.len() as u64).map(|sequence| Key::Custody(oldest, sequence)));
            let (name, head) = (log.name.clone(), log.head());
            let text = format!(
                "the log of deleted volume {name} ({oldest}) is dropped for want of room; its head was {head}"
            );
            let event = "custody-dropped";
            self.note(Note { event, volume: Some(name), text, is_bad: true, ..Note::default() });
        }
    }

    /// What a client has to say of a volume.
    pub(super) fn say(&mut self, name: &str, said: Said) -> Result<Outcome, Refusal> {
        let id = self.volume_named(name)?;
        let event = match said {
            Said::Case(case) => Event::Case(bounded(case)),
            Said::Exported { file, bytes, sha256 } => {
                check_hash(&sha256, 64)?;
                Event::Exported { file: harmless(&file, PLACE_BYTES_MAX), bytes, sha256 }
            }
        };
        self.put_down(id, event);
        Ok(Outcome::Answer(Answer::Done))
    }

    /// The log of the volume of this name, or of the one that had it last, or of this identity.
    pub(super) fn log(&self, name: &str) -> Result<Outcome, Refusal> {
        let logs = &self.custody.logs;
        let named = || logs.iter().filter(|(_, log)| log.name == name);
        let newest = || named().max_by_key(|(_, log)| log.last()).map(|(id, _)| *id);
        let exact = || name.parse::<VolumeId>().ok().filter(|id| logs.contains_key(id));
        let known = self.names.get(name).copied().or_else(newest).or_else(exact);
        let Some(id) = known else {
            let message = format!(
                "there is no volume '{name}', and no log of one of that name or identity; `cheetah list` shows the volumes \
                 there are"
            );
            return Err(refuse(RefusalCode::NotFound, message));
        };
        // A volume of before there were logs has none yet.
        let empty = Log { name: name.to_owned(), ..Log::default() };
        let log = logs.get(&id).unwrap_or(&empty);
        let others = logs.iter().filter(|(other, other_log)| **other != id && other_log.name == log.name);
        let mut others: Vec<(u64, OlderLog)> =
            others.map(|(other, log)| (log.last(), OlderLog { volume: *other, head: log.head() })).collect();
        others.sort_by_key(|(last, _)| *last);
        Ok(Outcome::Answer(Answer::Log(LogReport {
            pool: self.pool,
            volume: id,
            name: log.name.clone(),
            deleted: !self.volumes.contains_key(&id),
            lines: log.lines.iter().map(|(_, line)| line.to_string()).collect(),
            head: log.head(),
            older: others.into_iter().map(|(_, older)| older).collect(),
            key: String::new(),
            signature: String::new(),
        })))
    }
}

fn bounded(case: Case) -> Case {
    let text = |text: Option<String>, most: usize| text.map(|text| harmless(&text, most));
    let Case { case, evidence, examiner, notes, version, command } = case;
    Case {
        case: text(case, REASON_BYTES_MAX),
        evidence: text(evidence, REASON_BYTES_MAX),
        examiner: text(examiner, REASON_BYTES_MAX),
        notes: text(notes, PLACE_BYTES_MAX),
        version: harmless(&version, REASON_BYTES_MAX),
        command: harmless(&command, PLACE_BYTES_MAX),
    }
}
