//! `cheetah verify` as a script runs it: its report, held against its exit code and against itself.
//!
//! Owns what has to be true of each report, whatever the volume is like. Never: what this one should say; the
//! test does. Invariant: "right" is never said beside something that was not checked, is missing, lost or
//! wrong.
//! Called by: `tests/verify.rs`, `tests/verify_troubled.rs`, `tests/corrupting.rs`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::command::Said;
use crate::pool::Pool;

/// A run of `verify --json` that came to its report.
#[derive(Clone, Debug)]
pub struct Verified {
    pub code: i32,
    pub report: Value,
}

impl Verified {
    /// Of a volume.
    ///
    /// # Panics
    /// There is no report, or it contradicts its exit code or itself.
    #[track_caller]
    pub fn run(pool: &Pool, volume: &str) -> Self {
        let said = pool.run(["verify", volume, "--json"]);
        Self::of(&said).unwrap_or_else(|| panic!("verify came to no report: {said:?}"))
    }

    /// What a run said that has ended; none where it came to no report.
    ///
    /// # Panics
    /// As [`Verified::run`].
    #[track_caller]
    pub fn of(said: &Said) -> Option<Self> {
        if said.out.is_empty() {
            return None;
        }
        let report = serde_json::from_str(&said.out);
        let report = report.unwrap_or_else(|error| panic!("not one JSON object: {error} in {said:?}"));
        // Lines of the log stand between them.
        for line in said.err.lines().filter(|line| line.starts_with('{')) {
            let parsed: Result<Value, _> = serde_json::from_str(line);
            assert!(parsed.is_ok_and(|line| line.is_object()), "not JSON on each line of stderr: {said:?}");
        }
        let verified = Self { code: said.status.code().expect("no signal"), report };
        verified.is_true_to_itself();
        Some(verified)
    }

    #[track_caller]
    fn is_true_to_itself(&self) {
        let Self { code, report } = self;
        let is_right = report["right"].as_bool().expect("whether it is right");
        let (wrong, healed) = (self.number("blocks_wrong"), self.number("blocks_healed"));
        let (unchecked, missing) = (self.number("bytes_unchecked"), self.number("bytes_missing"));
        let (listed, lost) = (self.ranges("wrong"), self.ranges("lost"));
        let is_all = unchecked + missing + self.number("bytes_absent") == 0 && lost.is_empty();
        assert!(!is_right || is_all && healed == wrong && listed.is_empty(), "called right: {report}");
        assert!(healed <= wrong && (healed < wrong || listed.is_empty()), "{report}");
        let expected = match (wrong > 0 || !lost.is_empty(), is_right) {
            (true, _) => 6,
            (false, true) => 0,
            (false, false) => 7,
        };
        assert_eq!(*code, expected, "{report}");
        for field in ["bytes_checked", "bytes_unchecked", "blocks_wrong"] {
            let sum: u64 = self.by_donor(field).values().sum();
            assert_eq!(sum, self.number(field), "{field} by donor, and in all: {report}");
        }
        for donor in report["donors"].as_array().expect("donors") {
            let says_why = donor["why_unchecked"].as_str().is_some_and(|why| !why.is_empty());
            assert_eq!(says_why, donor["bytes_unchecked"] != 0, "why it was not checked: {donor}");
        }
    }

    #[track_caller]
    pub fn number(&self, field: &str) -> u64 {
        self.report[field].as_u64().unwrap_or_else(|| panic!("no {field} in {}", self.report))
    }

    /// What is said of each donor of which there is something to say, by its name.
    #[track_caller]
    pub fn by_donor(&self, field: &str) -> BTreeMap<String, u64> {
        let donors = self.report["donors"].as_array().expect("donors");
        let of = |donor: &Value| {
            let name = donor["name"].as_str().expect("a name").to_owned();
            (name, donor[field].as_u64().unwrap_or_else(|| panic!("no {field} in {donor}")))
        };
        donors.iter().map(of).filter(|(_, count)| *count > 0).collect()
    }

    /// Each range of a list by itself: where it begins in the volume, and how long it is.
    #[track_caller]
    pub fn ranges(&self, list: &str) -> Vec<(u64, u64)> {
        let number = |range: &Value, name: &str| range[name].as_u64().expect("a number");
        let each = |range: &Value| {
            let (offset, len) = (number(range, "offset"), number(range, "len"));
            let stride = number(range, "stride");
            (0..number(range, "count")).map(move |turn| (offset + turn * stride, len)).collect::<Vec<_>>()
        };
        self.report[list].as_array().expect("a list of ranges").iter().flat_map(each).collect()
    }

    /// Nothing is wrong, and all was checked.
    #[track_caller]
    pub fn is_right(&self) {
        assert_eq!((self.code, self.number("blocks_wrong")), (0, 0), "{}", self.report);
    }

    /// So many blocks of these donors were wrong, and are not any more.
    #[track_caller]
    pub fn is_healed(&self, wrong: &BTreeMap<String, u64>) {
        assert_eq!(&self.by_donor("blocks_wrong"), wrong, "{}", self.report);
        assert_eq!(self.number("blocks_healed"), wrong.values().sum::<u64>(), "{}", self.report);
        assert_eq!((self.code, &self.report["right"]), (6, &Value::Bool(true)), "{}", self.report);
    }
}
