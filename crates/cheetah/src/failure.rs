//! How a command fails: a message for people, an exit code for scripts.
//! Owns the mapping of refusals and unreachable pools to exit codes. Tests: below.

use cheetah_core::api::{Refusal, RefusalCode};
use cheetah_rim::control::CallError;

#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// What happened, to what, and what to do next.
    pub message: String,
}

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
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into() }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Failure::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// Tells people; the exit code is for `main` to return.
    pub fn print(&self) {
        eprintln!("cheetah: {}", self.message);
    }

    /// Ends the process where it stands.
    pub fn end_now(&self) -> ! {
        self.print();
        std::process::exit(self.exit as i32)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let exit = match refusal.code {
            RefusalCode::Invalid => Exit::Usage,
            RefusalCode::NotFound | RefusalCode::Conflict | RefusalCode::Gone => Exit::Refused,
            RefusalCode::PoolFull => Exit::PoolFull,
            RefusalCode::Version | RefusalCode::Unavailable | RefusalCode::Standby => Exit::NoPool,
        };
        Failure::new(exit, refusal.message)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            other => Failure::new(Exit::NoPool, other.to_string()),
        }
    }
}
