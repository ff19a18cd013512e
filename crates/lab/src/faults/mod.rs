//! The fault table: what a load notices when donors fail, for every redundancy, fault and front end.
//!
//! Owns: which runs there are, how one is judged. Never: looks inside the program.
//! Invariant: a run is made of its case and a seed alone; runs share hosts, never a pool. Files: `trial` (one
//! load under one fault), `volume` (a run on a volume of the program), `quorum` (the same on qemu's quorum),
//! `corrupt` (the link that flips bits), `report` (the results, the table and the plot). Tests: below, and in
//! each. Called by `bin/faults.rs`.

pub mod corrupt;
pub mod quorum;
pub mod report;
pub mod trial;
pub mod volume;

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dice::Dice;
use crate::lan::{Lan, Node};
use crate::wire::Wire;

/// Donor hosts of the lab.
pub const DONORS: u8 = 5;
/// Every link of the lab.
pub const RATE: &str = "1gbit";
/// The longest silence in writes when a donor was killed, and when it was set aside for another reason.
pub const KILLED_BAR_MS: u64 = 500;
pub const SET_ASIDE_BAR_MS: u64 = 2_000;

const SLOW: &str = "10mbit";
const LATE: Duration = Duration::from_millis(20);

/// What happens to a donor's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: connections stay, nothing answers.
    Stop,
    /// Nothing passes either way, no reset.
    Cut,
    /// What it sends is dropped.
    Mute,
    /// What it should receive is dropped.
    Deafen,
    /// The link goes down.
    Unplug,
    /// 10 Mbit/s both ways.
    Slow,
    /// 20 ms later, each way.
    Late,
}

impl Fault {
    pub const ALL: [Fault; 8] = [
        Fault::Kill,
        Fault::Stop,
        Fault::Cut,
        Fault::Mute,
        Fault::Deafen,
        Fault::Unplug,
        Fault::Slow,
        Fault::Late,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Cut => "cut",
            Fault::Mute => "mute",
            Fault::Deafen => "deafen",
            Fault::Unplug => "unplug",
            Fault::Slow => "slow",
            Fault::Late => "late",
        }
    }

    /// For the table's reader.
    pub fn described(self) -> &'static str {
        match self {
            Fault::Kill => "killed (SIGKILL)",
            Fault::Stop => "stopped (SIGSTOP)",
            Fault::Cut => "cut off both ways",
            Fault::Mute => "mute: what it sends is lost",
            Fault::Deafen => "deaf: what it should get is lost",
            Fault::Unplug => "unplugged",
            Fault::Slow => "10 Mbit/s",
            Fault::Late => "20 ms later each way",
        }
    }

    /// The longest silence that is allowed.
    pub fn bar_ms(self) -> u64 {
        if self == Fault::Kill { KILLED_BAR_MS } else { SET_ASIDE_BAR_MS }
    }

    /// What has to be there before the fault comes: leading a link over the wire loses frames, which lateness
    /// does not.
    pub fn prepare(self, lan: &Lan, node: Node) {
        if self == Fault::Late {
            lan.detour(node);
        }
    }

    pub fn inject(self, lan: &Lan, wire: &Wire, node: Node) {
        match self {
            Fault::Kill => lan.kill(node),
            Fault::Stop => lan.stop(node),
            Fault::Cut => lan.cut(node),
            Fault::Mute => lan.mute(node),
            Fault::Deafen => lan.deafen(node),
            Fault::Unplug => lan.unplug(node),
            Fault::Slow => lan.rate(node, SLOW),
            Fault::Late => wire.delay(LATE),
        }
    }

    /// Undoes it; what was killed stays dead, and what was late stays on the wire.
    pub fn lift(self, lan: &Lan, wire: &Wire, node: Node) {
        match self {
            Fault::Kill => {}
            Fault::Stop => lan.cont(node),
            Fault::Unplug => lan.plug(node),
            Fault::Late => wire.delay(Duration::ZERO),
            Fault::Cut | Fault::Mute | Fault::Deafen | Fault::Slow => lan.heal(node),
        }
    }
}

/// What is put to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A volume of the program with this redundancy.
    Volume(&'static str),
    /// qemu's quorum of three nbdkit servers, two of which have to agree.
    Quorum,
}

impl Subject {
    pub const VOLUMES: [Subject; 4] = [
        Subject::Volume("mirror:2"),
        Subject::Volume("mirror:3"),
        Subject::Volume("parity:3+1"),
        Subject::Volume("parity:3+2"),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Subject::Volume(redundancy) => redundancy,
            Subject::Quorum => "quorum",
        }
    }

    /// How many donors it can lose: so many fail at once.
    pub fn parity(self) -> u8 {
        match self {
            Subject::Volume("mirror:3" | "parity:3+2") => 2,
            Subject::Volume(_) | Subject::Quorum => 1,
        }
    }
}

/// What the tool sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Front {
    Export,
    Fuse,
}

impl Front {
    pub fn name(self) -> &'static str {
        match self {
            Front::Export => "export",
            Front::Fuse => "fuse",
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub subject: Subject,
    pub fault: Fault,
    pub front: Front,
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.subject.name(), self.fault.name(), self.front.name())
    }
}

impl Case {
    /// Every cell: the volumes with every fault through both front ends, then the quorum with three faults.
    pub fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for subject in Subject::VOLUMES {
            for fault in Fault::ALL {
                for front in [Front::Export, Front::Fuse] {
                    cases.push(Case { subject, fault, front });
                }
            }
        }
        for fault in [Fault::Kill, Fault::Stop, Fault::Cut] {
            cases.push(Case { subject: Subject::Quorum, fault, front: Front::Export });
        }
        cases
    }

    /// Whether a filter lets it pass: `mirror:2/kill/export`, any part left out or `*`, several with commas.
    pub fn is_wanted(&self, only: &str) -> bool {
        let name = self.to_string();
        only.split(',').any(|filter| {
            let parts = filter.trim().split('/');
            parts.zip(name.split('/')).all(|(wanted, part)| ["", "*", part].contains(&wanted))
        })
    }

    /// A seed of this case's own for each repeat, so that `ONLY` repeats the very run.
    pub fn dice(&self, seed: u64, repeat: u32) -> Dice {
        let name = self.to_string();
        let mixed = name.bytes().fold(seed, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(byte.into()));
        Dice::new(mixed.wrapping_mul(1_000_003).wrapping_add(repeat.into()))
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub case: Case,
    pub repeat: u32,
    pub seed: u64,
    /// Loads and read-backs that failed: a wrong byte, a refused request, no end.
    pub errors: u32,
    /// The longest silence in writes; None when it could not be measured.
    pub longest_silence_ms: Option<u64>,
    /// The longest before the fault: what the measurement adds.
    pub silence_before_ms: u64,
    pub slowest_write_ms: u64,
    /// Who got the fault, and who of them was set aside.
    pub victims: Vec<String>,
    pub excluded: Vec<String>,
    /// From the end of the fault until the volume was whole again.
    pub whole_after_ms: Option<u64>,
    pub took_ms: u64,
    pub notes: Vec<String>,
    /// What the parts of the run took, in milliseconds.
    pub laps: Vec<(&'static str, u64)>,
    begun: Instant,
}

impl Outcome {
    pub fn new(case: Case, repeat: u32, seed: u64) -> Self {
        Self {
            case,
            repeat,
            seed,
            errors: 0,
            longest_silence_ms: None,
            silence_before_ms: 0,
            slowest_write_ms: 0,
            victims: Vec::new(),
            excluded: Vec::new(),
            whole_after_ms: None,
            took_ms: 0,
            notes: Vec::new(),
            laps: Vec::new(),
            begun: Instant::now(),
        }
    }

    /// Notes that a part of the run has ended.
    pub fn lap(&mut self, part: &'static str) {
        let before: u64 = self.laps.iter().map(|(_, took_ms)| took_ms).sum();
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.laps.push((part, now.saturating_sub(before)));
    }

    /// Notes a failure that counts.
    pub fn fail(&mut self, note: impl Into<String>) {
        self.errors += 1;
        self.notes.push(note.into());
    }

    /// What it misses of what is demanded; nothing is demanded of a rival.
    pub fn missed(&self) -> Option<String> {
        if self.case.subject == Subject::Quorum {
            return None;
        }
        let bar = self.case.fault.bar_ms();
        match self.longest_silence_ms {
            _ if self.errors > 0 => Some(format!("{} errors: {}", self.errors, self.notes.join("; "))),
            None => Some("no silence was measured".to_owned()),
            Some(silence) if silence > bar => Some(format!("{silence} ms of silence, at most {bar}")),
            Some(_) => None,
        }
    }

    pub fn to_json(&self) -> Value {
        json!({
            "redundancy": self.case.subject.name(),
            "fault": self.case.fault.name(),
            "front": self.case.front.name(),
            "repeat": self.repeat,
            "seed": self.seed,
            "errors": self.errors,
            "longest_silence_ms": self.longest_silence_ms,
            "silence_before_ms": self.silence_before_ms,
            "slowest_write_ms": self.slowest_write_ms,
            "victims": self.victims,
            "excluded": self.excluded,
            "whole_after_ms": self.whole_after_ms,
            "took_ms": self.took_ms,
            "laps_ms": self.laps,
            "notes": self.notes,
        })
    }

    /// None for what is not a result of a case that there is.
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().unwrap_or_default();
        let number = |name: &str| value[name].as_u64();
        let texts = |name: &str| -> Vec<String> {
            let list = value[name].as_array().cloned().unwrap_or_default();
            list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
        };
        let name = format!("{}/{}/{}", text("redundancy"), text("fault"), text("front"));
        let case = Case::all().into_iter().find(|case| case.to_string() == name)?;
        Some(Self {
            case,
            repeat: u32::try_from(number("repeat")?).ok()?,
            seed: number("seed")?,
            errors: u32::try_from(number("errors")?).ok()?,
            longest_silence_ms: number("longest_silence_ms"),
            silence_before_ms: number("silence_before_ms")?,
            slowest_write_ms: number("slowest_write_ms")?,
            victims: texts("victims"),
            excluded: texts("excluded"),
            whole_after_ms: number("whole_after_ms"),
            took_ms: number("took_ms")?,
            notes: texts("notes"),
            // Of interest for the runs just made.
            laps: Vec::new(),
            begun: Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_name_parts_of_cases() {
        let all = Case::all();
        assert_eq!(all.len(), 4 * 8 * 2 + 3);
        let count = |only: &str| all.iter().filter(|case| case.is_wanted(only)).count();
        assert_eq!(count("mirror:2/kill/export"), 1);
        assert_eq!(count("mirror:2/kill"), 2);
        assert_eq!(count("*/kill"), 4 * 2 + 1);
        assert_eq!(count("quorum,parity:3+1/*/fuse"), 3 + 8);
        assert_eq!(count(""), all.len());
        assert_eq!(count("mirror"), 0);
    }

    #[test]
    fn an_outcome_reads_what_it_writes_and_is_judged() {
        let case = Case { subject: Subject::Volume("parity:3+2"), fault: Fault::Kill, front: Front::Fuse };
        let mut outcome = Outcome::new(case, 3, 9);
        assert!(outcome.missed().is_some(), "nothing was measured");
        outcome.longest_silence_ms = Some(KILLED_BAR_MS);
        outcome.victims = vec!["host-1".to_owned(), "host-2".to_owned()];
        assert_eq!(outcome.missed(), None);
        let again = Outcome::from_json(&outcome.to_json()).expect("an outcome");
        assert_eq!(again.to_json(), outcome.to_json());
        outcome.longest_silence_ms = Some(KILLED_BAR_MS + 1);
        assert!(outcome.missed().is_some());
        outcome.case.fault = Fault::Cut;
        assert_eq!(outcome.missed(), None);
        outcome.fail("a wrong byte");
        assert!(outcome.missed().is_some());
    }
}
