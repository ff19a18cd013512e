//! The mark of a test process, carried in the environment and the names of whatever it starts.
//!
//! Owns: the telling apart of several runs on one machine, the finding of processes that detached themselves,
//! and the sweep that removes what a killed run left behind. Never: ends a process that does not carry a
//! mark. Invariant: a mark holds its owner's pid and start time, so a pid that was used again is no living
//! owner.

use std::fs;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::tools;

/// The environment variable that carries the mark.
pub const VARIABLE: &str = "CHEETAH_LAB_MARK";

/// How long a sweep waits for the end of what it kills.
const PATIENCE: Duration = Duration::from_secs(5);

/// This process' mark, as in `cheetah-lab-4711-193842`.
pub fn own() -> String {
    format!("cheetah-lab-{}-{}", std::process::id(), own_start())
}

/// When this process started; nothing that it started is older.
pub fn own_start() -> u64 {
    start_time(std::process::id()).expect("this process has a start time")
}

/// Whether the process that made this mark (or a name that begins with it) is gone; None when it is no mark.
fn is_stale(name: &str) -> Option<bool> {
    let mut parts = name.strip_prefix("cheetah-lab-")?.split(['-', '.']);
    let pid: u32 = parts.next()?.parse().ok()?;
    let start: u64 = parts.next()?.parse().ok()?;
    Some(start_time(pid) != Some(start))
}

/// A live process: its id and its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub pid: u32,
    pub command: String,
}

/// The processes whose environment carries a mark for which `wanted` holds, of those that started at `since`
/// (in ticks since boot) or later. Zombies are left out, and processes that hang in the kernel: asking such a
/// one for its environment may hang the asker.
pub fn processes(since: u64, wanted: impl Fn(&str) -> bool) -> Vec<Running> {
    let prefix = format!("{VARIABLE}=");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found = Vec::new();
    for pid in pids.filter(|pid| *pid != std::process::id()) {
        let hangs = stat_fields(pid).is_none_or(|fields| fields.first().is_some_and(|state| state == "D"));
        if hangs || start_time(pid).is_none_or(|start| start < since) {
            continue;
        }
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        let marked = environment
            .split(|byte| *byte == 0)
            .filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix(&prefix))
            .any(&wanted);
        if marked {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
            found.push(Running { pid, command });
        }
    }
    found
}

/// Sends a signal to a process, which may be gone already.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that has ended meanwhile is what the caller wants.
        let _ = kill_process(pid, signal);
    }
}

/// Removes, once per process, what runs left behind whose own process was killed.
pub fn sweep_stale() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| {
        let left = processes(0, |mark| is_stale(mark) == Some(true));
        for process in &left {
            signal(process.pid, Signal::KILL);
            signal(process.pid, Signal::CONT);
        }
        // A process with much memory takes a while to end. One that hangs in the kernel is left to the next
        // sweep.
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && left.iter().any(|process| start_time(process.pid).is_some()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for directory in [std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()] {
            for path in entries(&directory) {
                if path.file_name().and_then(|name| is_stale(name.to_str()?)) == Some(true) {
                    remove_directory(&path);
                }
            }
        }
        for path in entries(Path::new("/run/netns")) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if is_stale(name) == Some(true) {
                // Two runs may sweep at once; the other one may have been faster.
                let _ = tools::output(tools::command("ip").args(["netns", "del", name]));
            }
        }
    });
}

/// Removes a directory with whatever is still mounted, or attached to a loop device, below it.
pub fn remove_directory(path: &Path) {
    let below = format!("{}/", path.display());
    for device in loop_devices_below(&below) {
        let _ = tools::output(tools::command("umount").args(["--lazy", "--quiet", &device]));
        let _ = tools::output(tools::command("losetup").args(["--detach", &device]));
    }
    let mut mounts: Vec<String> =
        mount_points().into_iter().filter(|point| point.starts_with(&below)).collect();
    mounts.reverse();
    for mount in mounts {
        let _ = tools::output(tools::command("umount").args(["--lazy", &mount]));
    }
    let _ = fs::remove_dir_all(path);
}

/// The mount points of this process' namespace, in the order they were made.
pub fn mount_points() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().filter_map(|line| Some(line.split(' ').nth(1)?.replace("\\040", " "))).collect()
}

/// The loop devices whose backing file is below a directory (whose path ends in a slash).
pub fn loop_devices_below(directory: &str) -> Vec<String> {
    entries(Path::new("/sys/block"))
        .into_iter()
        .filter(|block| {
            let backing = fs::read_to_string(block.join("loop/backing_file")).unwrap_or_default();
            backing.starts_with(directory)
        })
        .filter_map(|block| Some(format!("/dev/{}", block.file_name()?.to_str()?)))
        .collect()
}

fn entries(directory: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(directory).map(|list| list.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

/// Field 22 of `/proc/PID/stat`, in clock ticks since boot; None for a process that is gone or a zombie.
pub fn start_time(pid: u32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    if fields.first().is_some_and(|state| state == "Z" || state == "X") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// The fields of `/proc/PID/stat` from the third on (the second may hold blanks and parentheses).
pub(crate) fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_mark_is_not_stale() {
        assert_eq!(is_stale(&own()), Some(false));
        assert_eq!(is_stale(&format!("{}-3-c", own())), Some(false));
        assert_eq!(is_stale(&format!("{}.scratch.1", own())), Some(false));
    }

    #[test]
    fn a_used_again_pid_is_stale_and_other_names_are_nothing() {
        assert_eq!(is_stale(&format!("cheetah-lab-{}-1", std::process::id())), Some(true));
        assert_eq!(is_stale("cheetah-4711"), None);
        assert_eq!(is_stale("cheetah-lab-x-1"), None);
    }
}
