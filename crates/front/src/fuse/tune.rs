//! How far the kernel reads ahead of a tool that reads the file, which only root may set.
//!
//! Owns: `/sys/class/bdi`. Never: fails an attach; it says what could not be set. `max_ratio` is left alone:
//! a higher share of dirty pages would only serve mmap, and would make write-back under memory pressure
//! worse.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What was set, or why it was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tuning {
    ReadAhead { kb: u32 },
    NotSet { why: String },
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tuning::ReadAhead { kb } => write!(f, "read-ahead {kb} KiB"),
            Tuning::NotSet { why } => write!(f, "read-ahead left as it was: {why}"),
        }
    }
}

/// Sets the read-ahead of the file system mounted at `point`.
#[must_use]
pub fn tune(point: &Path, read_ahead_kb: u32) -> Tuning {
    let not_set = |why: String| Tuning::NotSet { why };
    if !rustix::process::geteuid().is_root() {
        return not_set("only root may raise it, and cold sequential reads are faster with 1024 KiB".into());
    }
    // The kernel's own setting comes with its first exchange with the file system, which any look at it waits
    // for.
    let device = match std::fs::metadata(point) {
        Ok(root) => root.dev(),
        Err(error) => return not_set(format!("{}: {error}", point.display())),
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let write = || -> std::io::Result<u32> {
        std::fs::write(&setting, read_ahead_kb.to_string())?;
        let text = std::fs::read_to_string(&setting)?;
        text.trim().parse().map_err(std::io::Error::other)
    };
    match write() {
        Ok(kb) => Tuning::ReadAhead { kb },
        Err(error) => not_set(format!("{setting}: {error}")),
    }
}
