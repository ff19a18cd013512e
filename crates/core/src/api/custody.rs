//! The log of custody of a volume, as its pool gives it out. Never: behaviour.

use crate::custody::Head;
use crate::map::{PoolId, VolumeId};
use serde::{Deserialize, Serialize};

/// The answer to `Log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// The pool that put it down.
    pub pool: PoolId,
    /// The volume that it is about.
    pub volume: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The volume is gone.
    pub deleted: bool,
    /// The entries, each as it is hashed. The file of the log is these with a line end behind each.
    pub lines: Vec<String>,
    /// The last entry.
    pub head: Head,
    /// Logs of other volumes that had this name, the oldest first: ask for one by its identity.
    pub older: Vec<OlderLog>,
    /// What the pool signs with, as `minisign -P` takes it. Core does not sign: its driver does.
    pub key: String,
    /// The text of the signature file of the log.
    pub signature: String,
}

impl LogReport {
    /// The file of the log.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

/// The log of another volume that had the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderLog {
    /// The volume's identity.
    pub volume: VolumeId,
    /// Its log's end.
    pub head: Head,
}
