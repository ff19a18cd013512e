//! A case while it is done, and what came of it: what was done, what was expected, what was observed.
//!
//! Owns the verdict. Never: what is done. Invariants: a case that could not be done is not shown, and is
//! never counted as passed; one that checked nothing is not shown either; one check that fails is enough.
//! Called by the modules of cases, and by `super`. Tests: below.

use super::requirements::{On, Planned, Requirement};
use crate::failure::Failure;
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Passed,
    Failed,
    /// Nothing is known: what was to be done could not be done here.
    NotShown,
    /// `--only` named others.
    NotAskedFor,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::NotShown => "not shown",
            Verdict::NotAskedFor => "not asked for",
        }
    }
}

/// Why a case ends before its end.
#[derive(Debug)]
pub enum Stop {
    /// What was to be done could not be done.
    NotShown(String),
    /// A check failed, and there is no going on from there.
    Failed,
}

pub type Done<T = ()> = Result<T, Stop>;

/// What this machine does not give is no fault of what is validated.
pub fn here(what: &str, error: impl std::fmt::Display) -> Stop {
    Stop::NotShown(format!("{what}: {error}"))
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        here("this machine", error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::NotShown(failure.text())
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Said {
    /// None: it was killed, or did not end in time.
    pub code: Option<i32>,
    /// Its report, or null.
    pub json: Value,
    /// Its error message, if it had one.
    pub why: String,
    /// In the codes of `docs/JSON.md`.
    pub error: String,
}

impl Said {
    /// For people.
    pub fn told(&self) -> String {
        let code = self.code.map_or_else(|| "it did not end".to_owned(), |code| format!("exit code {code}"));
        if self.why.is_empty() { code } else { format!("{code}: {}", self.why) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub expected: String,
    pub observed: String,
    pub passed: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub case: &'static str,
    pub title: &'static str,
    pub on: On,
    pub verdict: Verdict,
    /// Why it was not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub did: Vec<String>,
    pub checks: Vec<Check>,
    pub seconds: f64,
}

pub struct Case {
    planned: &'static Planned,
    did: Vec<String>,
    checks: Vec<Check>,
    started: Instant,
}

impl Case {
    pub fn begin(planned: &'static Planned) -> Case {
        Case { planned, did: Vec::new(), checks: Vec::new(), started: Instant::now() }
    }

    /// Puts down what was done.
    pub fn did(&mut self, what: impl Into<String>) {
        self.did.push(what.into());
    }

    /// Puts down a check, and says whether it passed.
    pub fn check(&mut self, expected: impl Into<String>, observed: impl Into<String>, passed: bool) -> bool {
        self.checks.push(Check { expected: expected.into(), observed: observed.into(), passed });
        passed
    }

    /// Whether two texts are the same.
    pub fn same(&mut self, what: &str, expected: &str, observed: &str) -> bool {
        self.check(format!("{what}: {expected}"), observed, expected == observed)
    }

    /// Of a command that has to succeed: its report.
    pub fn succeeded(&mut self, said: Said) -> Done<Value> {
        match said.code {
            Some(0) => Ok(said.json),
            // Of the pool as it is, and who one is there: nothing that it does wrong.
            Some(3 | 5) => Err(Stop::NotShown(said.why)),
            _ if said.error == "forbidden" => Err(Stop::NotShown(said.why)),
            _ => {
                self.check("the command succeeds", said.told(), false);
                Err(Stop::Failed)
            }
        }
    }

    /// Of a command that has to end with this exit code: its report.
    pub fn ends_with(&mut self, what: &str, code: i32, said: &Said) -> bool {
        let expected = format!("{what}: exit code {code}");
        self.check(expected, said.told(), said.code == Some(code))
    }

    pub fn end(self, done: Done) -> Outcome {
        let Case { planned, did, checks, started } = self;
        let failed = checks.iter().any(|check| !check.passed);
        let (verdict, why) = match done {
            _ if failed => (Verdict::Failed, None),
            Err(Stop::NotShown(why)) => (Verdict::NotShown, Some(why)),
            // One that stopped for a check has it among its checks.
            Err(Stop::Failed) => (Verdict::NotShown, Some("it stopped without saying why".to_owned())),
            Ok(()) if checks.is_empty() => (Verdict::NotShown, Some("nothing was checked".to_owned())),
            Ok(()) => (Verdict::Passed, None),
        };
        let Planned { id, title, on } = *planned;
        let seconds = (started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        Outcome { case: id, title, on, verdict, why, did, checks, seconds }
    }

    /// Of one that is not to be done.
    pub fn passed_over(planned: &'static Planned) -> Outcome {
        let outcome = Case::begin(planned).end(Ok(()));
        Outcome { verdict: Verdict::NotAskedFor, why: None, ..outcome }
    }
}

/// A requirement with the cases that were done for it.
#[derive(Debug)]
pub struct Judged {
    pub requirement: &'static Requirement,
    pub outcomes: Vec<Outcome>,
}

impl Judged {
    /// One case that failed fails it; it is shown when all of its cases were.
    pub fn verdict(&self) -> Verdict {
        let has = |verdict| self.outcomes.iter().any(|outcome| outcome.verdict == verdict);
        [Verdict::Failed, Verdict::NotShown, Verdict::NotAskedFor]
            .into_iter()
            .find(|verdict| has(*verdict))
            .unwrap_or(Verdict::Passed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::requirements::ALL;
    use super::*;

    fn ended(done: Done, checks: &[bool]) -> Outcome {
        let mut case = Case::begin(&ALL[0].cases[0]);
        for passed in checks {
            case.check("so", "so", *passed);
        }
        case.end(done)
    }

    #[test]
    fn what_was_not_shown_is_never_counted_as_passed() {
        let not = || Err(Stop::NotShown("no FUSE".to_owned()));
        assert_eq!(ended(Ok(()), &[true, true]).verdict, Verdict::Passed);
        assert_eq!(ended(Ok(()), &[true, false]).verdict, Verdict::Failed);
        assert_eq!(ended(Ok(()), &[]).verdict, Verdict::NotShown);
        assert_eq!(ended(not(), &[true]).verdict, Verdict::NotShown);
        assert_eq!(ended(not(), &[false]).verdict, Verdict::Failed, "what was seen before that counts");
        assert_eq!(ended(Err(Stop::Failed), &[true]).verdict, Verdict::NotShown);
        let judged = |outcomes| Judged { requirement: &ALL[0], outcomes }.verdict();
        let (good, bad, none) = (ended(Ok(()), &[true]), ended(Ok(()), &[false]), ended(not(), &[]));
        assert_eq!(judged(vec![good.clone(), good.clone()]), Verdict::Passed);
        assert_eq!(judged(vec![good.clone(), none.clone()]), Verdict::NotShown);
        assert_eq!(judged(vec![none, bad, good]), Verdict::Failed);
    }
}
