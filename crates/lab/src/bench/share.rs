//! A processor cgroup of the benchmark's own, for it and all that it starts.
//!
//! Why: kernels that group processes by session would give a daemon, which has a session of its own, as much
//! as the benchmark with all servers of others together; in one cgroup every process is equal. And it weighs
//! more than what else runs on the machine, which then waits rather than makes noise.
//! Never: limits anything. Invariant: it is gone with its guard; one that a killed run left goes at the next
//! start. Called by: `bench`. Tests: below.

use std::fs;
use std::path::{Path, PathBuf};

use crate::mark;

/// Sixteen times a session's.
const V1: (&str, &str, &str) = ("/sys/fs/cgroup/cpu", "cpu.shares", "16384");
const V2: (&str, &str, &str) = ("/sys/fs/cgroup", "cpu.weight", "1600");

/// The cgroup, or why there is none.
#[derive(Debug)]
pub struct Share(Result<PathBuf, String>);

impl Share {
    /// Moves this process in; its children are born there.
    pub fn take() -> Self {
        let is_v1 = Path::new(V1.0).join(V1.1).exists();
        Self(enter(if is_v1 { V1 } else { V2 }))
    }

    /// For the record of the machine.
    pub fn described(&self) -> String {
        match &self.0 {
            Ok(_) => "a processor cgroup of its own, 16 times a session's weight".to_owned(),
            Err(why) => format!("no processor cgroup of its own ({why})"),
        }
    }
}

fn enter((top, file, weight): (&str, &str, &str)) -> Result<PathBuf, String> {
    let top = Path::new(top);
    sweep();
    if file == V2.1 {
        // Children get the controllers that their parent passes on.
        let _ = fs::write(top.join("cgroup.subtree_control"), "+cpu");
    }
    let path = top.join(mark::own());
    let tell = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir(&path).map_err(tell)?;
    fs::write(path.join(file), weight)
        .and_then(|()| fs::write(path.join("cgroup.procs"), std::process::id().to_string()))
        .map_err(tell)?;
    Ok(path)
}

/// Removes what runs that are over have left, and then their cgroups, in which it may still have been.
pub fn sweep() {
    mark::sweep_stale();
    for entry in [V1.0, V2.0].into_iter().filter_map(|top| fs::read_dir(top).ok()).flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("cheetah-lab-") {
            // One that is in use cannot be removed.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Ok(path) = &self.0 else { return };
        for pid in fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines() {
            // It may have ended.
            let _ = fs::write(path.with_file_name("cgroup.procs"), pid);
        }
        // The next run removes what has not let go of it yet.
        let _ = fs::remove_dir(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools;

    #[test]
    fn children_are_born_in_it_and_it_goes() {
        let share = Share::take();
        let path = share.0.clone().expect("a cgroup: needs root");
        assert!(tools::run("cat", ["/proc/self/cgroup"]).contains(&mark::own()));
        drop(share);
        assert!(!path.exists() && !tools::run("cat", ["/proc/self/cgroup"]).contains(&mark::own()));
    }
}
