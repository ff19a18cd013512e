//! An attachment's log: which donors it lost and found, what came wrong and was healed, what is rebuilt; also
//! when it only reads.
//!
//! Owns what is worth a line, and its words. Never: what becomes of a donor (`core::volume`). Invariant: a
//! line for each change and none without one; each has the time, a name of the event, and the volume and
//! donor as `key=value`. Called by `keep`. Tests: below.

use cheetah_core::api::VolumeReport;
use cheetah_core::map::{DonorId, VolumeMap};
use cheetah_core::units::{show_bytes, show_count};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Names of donors, also of those that left the map.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Mutex<BTreeMap<DonorId, String>>>);

impl Names {
    pub fn of(map: &VolumeMap) -> Names {
        let names = Names::default();
        names.learn(map);
        names
    }

    pub fn learn(&self, map: &VolumeMap) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(map.routes.iter().map(|(id, route)| (*id, route.name.clone())));
    }

    pub fn get(&self, id: DonorId) -> String {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub event: &'static str,
    pub donor: Option<String>,
    pub text: String,
    /// Nobody's worry.
    pub good: bool,
}

#[derive(Debug)]
pub struct Journal {
    volume: String,
    names: Names,
    lost: BTreeMap<DonorId, String>,
    corrupt: BTreeMap<DonorId, u64>,
    healed: u64,
    mismatches: u64,
    unflushed: u64,
    /// Bytes that are being rebuilt or moved.
    filling: u64,
}

impl Journal {
    pub fn new(volume: &str, names: Names) -> Journal {
        Journal {
            volume: volume.to_owned(),
            names,
            lost: BTreeMap::new(),
            corrupt: BTreeMap::new(),
            healed: 0,
            mismatches: 0,
            unflushed: 0,
            filling: 0,
        }
    }

    /// Logs what changed since the last look.
    pub fn look(&mut self, lost: &[(DonorId, String)], report: &VolumeReport) {
        let volume = self.volume.clone();
        for Entry { event, donor, text, good } in self.changes(lost, report) {
            let donor = donor.as_deref();
            match good {
                true => tracing::info!(target: "journal", event, volume, donor, "{text}"),
                false => tracing::warn!(target: "journal", event, volume, donor, "{text}"),
            }
        }
    }

    fn changes(&mut self, lost: &[(DonorId, String)], report: &VolumeReport) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut add = |event, donor: Option<&str>, good, text| {
            entries.push(Entry { event, donor: donor.map(str::to_owned), text, good });
        };
        for (id, why) in lost {
            if !self.lost.contains_key(id) {
                let name = self.names.get(*id);
                add("donor-lost", Some(&name), false, format!("donor {name} cannot be reached ({why})"));
            }
        }
        for id in self.lost.keys().filter(|id| !lost.iter().any(|(lost, _)| lost == *id)) {
            let name = self.names.get(*id);
            // It answers again, or nothing of the volume lies there any more.
            add("donor-found", Some(&name), true, format!("donor {name} is out of reach no more"));
        }
        for (id, count) in &report.corrupt_blocks {
            let more = count.saturating_sub(self.corrupt.get(id).copied().unwrap_or(0));
            if more > 0 {
                let name = self.names.get(*id);
                let blocks = show_count(more, "block");
                let text = format!("{blocks} from donor {name} had a wrong checksum, and none was delivered");
                add("blocks-wrong", Some(&name), false, text);
            }
        }
        let healed = report.healed_blocks.saturating_sub(self.healed);
        if healed > 0 {
            let were = if healed == 1 { "was" } else { "were" };
            add("blocks-healed", None, true, format!("{} {were} healed", show_count(healed, "block")));
        }
        let mismatches = report.compare_mismatches.saturating_sub(self.mismatches);
        if mismatches > 0 {
            let places = show_count(mismatches, "place");
            let text =
                format!("fragments do not fit together in {places}, and no checksum says which is wrong");
            add("fragments-disagree", None, false, text);
        }
        let unflushed = report.unflushed_bytes.saturating_sub(self.unflushed);
        if unflushed > 0 {
            let text = format!(
                "up to {} may be older than what was written last: donors stopped before it was flushed",
                show_bytes(unflushed)
            );
            add("writes-unflushed", None, false, text);
        }
        match (self.filling, report.fill_bytes_total) {
            (0, total) if total > 0 => {
                add("rebuild-begun", None, true, format!("{} are rebuilt or moved", show_bytes(total)));
            }
            (before, 0) if before > 0 => {
                add("rebuild-ended", None, true, "nothing is left to rebuild or to move".to_owned());
            }
            _ => {}
        }
        self.lost = lost.iter().cloned().collect();
        self.corrupt = report.corrupt_blocks.iter().copied().collect();
        (self.healed, self.mismatches) = (report.healed_blocks, report.compare_mismatches);
        (self.filling, self.unflushed) = (report.fill_bytes_total, report.unflushed_bytes);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: &[(DonorId, String)] = &[];

    fn journal() -> Journal {
        let names = Names::default();
        names.0.lock().expect("nobody else").insert(DonorId(1), "d1".into());
        Journal::new("case7", names)
    }

    fn events(entries: &[Entry]) -> Vec<(&str, Option<&str>)> {
        entries.iter().map(|entry| (entry.event, entry.donor.as_deref())).collect()
    }

    #[test]
    fn a_donor_is_told_of_when_it_is_lost_and_when_it_is_found() {
        let mut journal = journal();
        let report = VolumeReport::default();
        assert_eq!(journal.changes(QUIET, &report), []);
        let lost = [(DonorId(1), "silent for 800 ms".to_owned())];
        let said = journal.changes(&lost, &report);
        assert_eq!(events(&said), [("donor-lost", Some("d1"))]);
        assert_eq!(said[0].text, "donor d1 cannot be reached (silent for 800 ms)");
        let later = [(DonorId(1), "connection refused".to_owned())];
        assert_eq!(journal.changes(&later, &report), [], "it is still away");
        assert_eq!(events(&journal.changes(QUIET, &report)), [("donor-found", Some("d1"))]);
        assert_eq!(journal.changes(QUIET, &report), []);
    }

    #[test]
    fn what_came_wrong_and_what_was_healed_is_told_once() {
        let mut journal = journal();
        let mut report = VolumeReport { corrupt_blocks: vec![(DonorId(1), 3)], ..VolumeReport::default() };
        let said = journal.changes(QUIET, &report);
        assert_eq!(said[0].text, "3 blocks from donor d1 had a wrong checksum, and none was delivered");
        assert!(!said[0].good);
        assert_eq!(journal.changes(QUIET, &report), []);
        (report.healed_blocks, report.corrupt_blocks[0].1) = (3, 4);
        let said = journal.changes(QUIET, &report);
        assert_eq!(events(&said), [("blocks-wrong", Some("d1")), ("blocks-healed", None)]);
        assert_eq!(
            (said[0].text.as_str(), said[1].text.as_str()),
            ("1 block from donor d1 had a wrong checksum, and none was delivered", "3 blocks were healed")
        );
        report.compare_mismatches = 1;
        assert_eq!(events(&journal.changes(QUIET, &report)), [("fragments-disagree", None)]);
        report.unflushed_bytes = 1 << 20;
        let said = journal.changes(QUIET, &report);
        assert_eq!(events(&said), [("writes-unflushed", None)]);
        assert!(said[0].text.starts_with("up to 1 MiB may be older") && !said[0].good, "{}", said[0].text);
        assert_eq!(journal.changes(QUIET, &report), []);
    }

    #[test]
    fn a_rebuild_has_a_beginning_and_an_end() {
        let mut journal = journal();
        let mut report = VolumeReport { fill_bytes_total: 64 << 20, ..VolumeReport::default() };
        assert_eq!(events(&journal.changes(QUIET, &report)), [("rebuild-begun", None)]);
        report.fill_bytes_total = 128 << 20;
        assert_eq!(journal.changes(QUIET, &report), []);
        report.fill_bytes_total = 0;
        assert_eq!(events(&journal.changes(QUIET, &report)), [("rebuild-ended", None)]);
    }
}
