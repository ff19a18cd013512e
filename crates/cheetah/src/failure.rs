//! How a command fails: what happened and what to do, for people; a code and an exit code, for scripts.
//! Owns the mapping of refusals and unreachable pools to both. Tests: below.

use crate::output;
use cheetah_core::api::{Refusal, RefusalCode};
use cheetah_rim::control::CallError;
use serde_json::json;

#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// More exact than the exit code, where there is more to say.
    pub code: &'static str,
    /// What happened, and to what. Empty where the report on stdout has said it.
    pub message: String,
    /// What to do next, where the message does not say it.
    pub advice: Option<String>,
}

/// A failure on its way from the daemon to the command.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Told {
    exit: Exit,
    // One that was built before these says its exit code and a message.
    #[serde(default)]
    code: String,
    message: String,
    #[serde(default)]
    advice: Option<String>,
}

impl From<&Failure> for Told {
    fn from(failure: &Failure) -> Told {
        let Failure { exit, code, message, advice } = failure;
        Told { exit: *exit, code: (*code).to_owned(), message: message.clone(), advice: advice.clone() }
    }
}

impl From<Told> for Failure {
    fn from(told: Told) -> Failure {
        let Told { exit, code, message, advice } = told;
        let known = CODES.into_iter().find(|known| *known == code);
        Failure { exit, code: known.unwrap_or(exit.code()), message, advice }
    }
}

/// Those beyond the exit codes' own; `docs/JSON.md` lists all.
const CODES: [&str; 11] = [
    "invalid",
    "forbidden",
    "not_found",
    "conflict",
    "pool_full",
    "version",
    "gone",
    "other_pool",
    "unreachable",
    "unavailable",
    "standby",
];

/// Documented in `cheetah --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Failed = 1,
    Usage = 2,
    NoPool = 3,
    Refused = 4,
    PoolFull = 5,
    DataLost = 6,
    Unwell = 7,
}

impl Exit {
    fn code(self) -> &'static str {
        match self {
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NoPool => "no_pool",
            Exit::Refused => "refused",
            Exit::PoolFull => "pool_full",
            Exit::DataLost => "data_lost",
            Exit::Unwell => "unwell",
        }
    }
}

impl Failure {
    #[expect(clippy::needless_pass_by_value, reason = "an error is given as it came")]
    pub fn new(exit: Exit, message: impl ToString) -> Self {
        Failure { exit, code: exit.code(), message: message.to_string(), advice: None }
    }

    pub fn failed(message: impl ToString) -> Self {
        Failure::new(Exit::Failed, message)
    }

    pub fn usage(message: impl ToString) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// Ends with this exit code; the report has said why.
    pub fn reported(exit: Exit) -> Self {
        Failure::new(exit, "")
    }

    /// With what to do next.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Tells people, or scripts; the exit code is for `main` to return.
    pub fn print(&self) {
        if self.message.is_empty() {
            return;
        }
        if output::is_json() {
            let mut error = json!({ "code": self.code, "message": self.message });
            if let Some(advice) = &self.advice {
                error["do"] = json!(advice);
            }
            return output::json_beside(&json!({ "error": error }));
        }
        output::note(&self.text());
    }

    /// As people are told.
    pub fn text(&self) -> String {
        match &self.advice {
            Some(advice) => format!("{}; {advice}", self.message),
            None => self.message.clone(),
        }
    }

    /// Ends the process where it stands.
    pub fn end_now(&self) -> ! {
        self.print();
        std::process::exit(self.exit as i32)
    }
}

fn code_of(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::Invalid => "invalid",
        RefusalCode::Damaged => "damaged",
        RefusalCode::Forbidden => "forbidden",
        RefusalCode::NotFound => "not_found",
        RefusalCode::Conflict => "conflict",
        RefusalCode::PoolFull => "pool_full",
        RefusalCode::Version => "version",
        RefusalCode::Gone => "gone",
        RefusalCode::OtherPool => "other_pool",
        RefusalCode::Unreachable => "unreachable",
        RefusalCode::Unavailable => "unavailable",
        RefusalCode::Standby => "standby",
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let exit = match refusal.code {
            RefusalCode::Invalid => Exit::Usage,
            RefusalCode::Forbidden
            | RefusalCode::NotFound
            | RefusalCode::Conflict
            | RefusalCode::Gone
            | RefusalCode::OtherPool
            | RefusalCode::Unreachable => Exit::Refused,
            RefusalCode::PoolFull => Exit::PoolFull,
            RefusalCode::Version | RefusalCode::Unavailable | RefusalCode::Standby | RefusalCode::Damaged => {
                Exit::NoPool
            }
        };
        // These are written so: what is the case; what to do.
        let split = match refusal.code {
            RefusalCode::NotFound | RefusalCode::Conflict | RefusalCode::PoolFull => {
                refusal.message.split_once("; ")
            }
            _ => None,
        };
        let failure = match split {
            Some((message, advice)) => Failure::new(exit, message).advise(advice),
            None => Failure::new(exit, refusal.message),
        };
        Failure { code: code_of(refusal.code), ..failure }
    }
}

impl From<cheetah_client::Error> for Failure {
    fn from(error: cheetah_client::Error) -> Self {
        match error {
            cheetah_client::Error::Call(error) => error.into(),
            error @ (cheetah_client::Error::NoKey { .. } | cheetah_client::Error::OtherKey { .. }) => {
                Failure { code: "no_key", ..Failure::new(Exit::Refused, error.to_string()) }
            }
            error @ cheetah_client::Error::NoMember { .. } => Failure::usage(error.to_string()),
            cheetah_client::Error::Url(error) => Failure::usage(error.to_string()),
            other => Failure::failed(other.to_string()),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let code = match &error {
            CallError::Refused(_) => "",
            CallError::Unreachable { .. } => "unreachable",
            CallError::NotBelieved { .. } => "not_believed",
            CallError::NoLeader { .. } => "standby",
            CallError::NotCheetah { .. } => "not_cheetah",
            CallError::OtherBuild { .. } => "version",
        };
        match error {
            CallError::Refused(refusal) => refusal.into(),
            error @ CallError::NotBelieved { .. } => {
                Failure { code, ..Failure::new(Exit::Refused, error.to_string()) }
            }
            other => Failure { code, ..Failure::new(Exit::NoPool, other.to_string()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_follows_what_happened() {
        let plain = Failure::failed("the disk is full");
        assert_eq!(plain.text(), "the disk is full");
        assert_eq!(plain.advise("make room").text(), "the disk is full; make room");
    }

    #[test]
    fn what_the_daemon_met_is_told_as_if_the_command_had_met_it() {
        for code in
            [RefusalCode::NotFound, RefusalCode::Conflict, RefusalCode::Standby, RefusalCode::OtherPool]
        {
            let failure = Failure::from(Refusal { code, message: "there is none; look".into() });
            let text = serde_json::to_string(&Told::from(&failure)).expect("JSON");
            let told: Told = serde_json::from_str(&text).expect("a failure");
            assert_eq!(Failure::from(told), failure);
        }
        let old: Told = serde_json::from_str(r#"{"exit":"refused","message":"in use"}"#).expect("a failure");
        assert_eq!(Failure::from(old), Failure::new(Exit::Refused, "in use"));
        let plain = Failure::failed("no");
        assert_eq!(Failure::from(Told::from(&plain)), plain);
    }

    #[test]
    fn a_refusal_has_an_exit_code_and_a_code_of_its_own() {
        let refused = |code| Failure::from(Refusal { code, message: "no".into() });
        let full = refused(RefusalCode::PoolFull);
        assert_eq!((full.exit as i32, full.code), (5, "pool_full"));
        let unknown = refused(RefusalCode::NotFound);
        assert_eq!((unknown.exit as i32, unknown.code), (4, "not_found"));
        let message = "there is no volume 'x'; `cheetah list` shows those there are".to_owned();
        let unknown = Failure::from(Refusal { code: RefusalCode::NotFound, message: message.clone() });
        assert_eq!(unknown.advice.as_deref(), Some("`cheetah list` shows those there are"));
        assert_eq!(unknown.text(), message, "nothing is left out");
        let none = Failure::from(CallError::NoLeader { url: "u".into(), why: "w".into() });
        assert_eq!((none.exit as i32, none.code), (3, "standby"));
    }
}
