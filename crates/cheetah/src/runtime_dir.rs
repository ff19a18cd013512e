//! What this machine remembers of its attachments while they last: one small JSON file each.
//!
//! Owns the runtime directory and the records in it. Never: anything that must outlive a reboot.
//! Invariant: a record names a process by pid and start time, so a pid that was used again is not taken for it.

use crate::cli::Front;
use crate::failure::Failure;
use cheetah_core::map::LeaseToken;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub name: String,
    pub pool: String,
    pub token: LeaseToken,
    pub front: Front,
    pub pid: u32,
    pub started: u64,
    /// Where the volume's file is mounted (fuse, loop).
    pub mountpoint: Option<PathBuf>,
    /// The mount point was made by `attach` and goes with it.
    pub mountpoint_made: bool,
    pub loop_device: Option<PathBuf>,
    /// What `attach` printed.
    pub place: String,
}

/// `$XDG_RUNTIME_DIR/cheetah`, or a directory of this user's own under /run or /tmp.
pub fn directory() -> Result<PathBuf, Failure> {
    let uid = rustix::process::getuid();
    let base = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("cheetah"),
        None if uid.is_root() => PathBuf::from("/run/cheetah"),
        None => std::env::temp_dir().join(format!("cheetah-{}", uid.as_raw())),
    };
    let fault =
        |e: io::Error| Failure::failed(format!("cannot use the runtime directory {}: {e}", base.display()));
    std::fs::create_dir_all(&base).map_err(fault)?;
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o700)).map_err(fault)?;
    Ok(base)
}

fn file(name: &str, kind: &str) -> Result<PathBuf, Failure> {
    cheetah_core::units::check_name(name).map_err(Failure::usage)?;
    Ok(directory()?.join(format!("{name}.{kind}")))
}

pub fn log_path(name: &str) -> Result<PathBuf, Failure> {
    file(name, "log")
}

/// Where the daemon listens for `detach`.
pub fn socket_path(name: &str) -> Result<PathBuf, Failure> {
    file(name, "sock")
}

pub fn load(name: &str) -> Result<Option<Record>, Failure> {
    let path = file(name, "json")?;
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| unreadable(&path, &e.to_string())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unreadable(&path, &e.to_string())),
    }
}

fn unreadable(path: &Path, why: &str) -> Failure {
    Failure::failed(format!(
        "the record {} cannot be read ({why}): remove it if nothing is attached",
        path.display()
    ))
}

pub fn store(record: &Record) -> Result<(), Failure> {
    let path = file(&record.name, "json")?;
    let bytes = serde_json::to_vec_pretty(record).map_err(|e| Failure::failed(e.to_string()))?;
    let draft = file(&record.name, "new")?;
    std::fs::write(&draft, bytes)
        .and_then(|()| std::fs::rename(&draft, &path))
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}

pub fn remove(name: &str) {
    if let Ok(path) = file(name, "json") {
        let _ = std::fs::remove_file(path);
    }
}

impl Record {
    /// Whether the daemon that this record names still runs.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

/// When a process started, in clock ticks since boot: field 22 of /proc/PID/stat. A zombie counts as gone.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind_name = &stat[stat.rfind(')')? + 2..];
    let mut fields = behind_name.split(' ');
    let state = fields.next()?;
    (state != "Z" && state != "X").then_some(())?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_is_known_by_its_start() {
        assert!(super::start_time(std::process::id()).is_some());
        assert_eq!(super::start_time(u32::MAX), None);
    }
}
