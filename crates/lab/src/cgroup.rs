//! A memory cgroup of the caller's own: a machine as small as it says, for the processes in it.
//! Invariant: it is gone with its guard; what is left in it then goes to the cgroup above.
//! Called by: `pool`, `hog`, `tests/memory_pressure.rs`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::tools;

const REMOVE_TRIES: u32 = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    files: &'static Files,
}

/// What a version of the kernel's cgroups calls its files.
#[derive(Debug)]
struct Files {
    top: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Counts the processes that the kernel ended in it.
    events: &'static str,
}

const V1: Files = Files {
    top: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    events: "memory.oom_control",
};
const V2: Files =
    Files { top: "/sys/fs/cgroup", limit: "memory.max", usage: "memory.current", events: "memory.events" };

impl Cgroup {
    #[track_caller]
    pub fn new(name: &str, limit_bytes: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cheetah-test-{name}-{}-{number}", std::process::id());
        let files = if Path::new(V1.top).exists() { &V1 } else { &V2 };
        let top = Path::new(files.top);
        if files.limit == V2.limit {
            // On the unified hierarchy children get the controllers that their parent passes on.
            let _ = fs::write(top.join("cgroup.subtree_control"), "+memory");
        }
        let path = top.join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let cgroup = Self { path, files };
        cgroup.set_limit(limit_bytes);
        cgroup
    }

    #[track_caller]
    pub fn set_limit(&self, bytes: u64) {
        fs::write(self.path.join(self.files.limit), bytes.to_string()).expect("a memory limit");
    }

    /// Sets a limit below what is used; whether the kernel found so much to let go of.
    pub fn try_limit(&self, bytes: u64) -> bool {
        fs::write(self.path.join(self.files.limit), bytes.to_string()).is_ok()
    }

    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    #[track_caller]
    pub fn take(&self, pid: u32) {
        fs::write(self.processes(), pid.to_string()).expect("a process moves");
    }

    /// A program that is in it from its first instruction on.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = tools::command("sh");
        let script = format!("echo $$ >{} && exec \"$0\" \"$@\"", self.processes().display());
        command.args(["-c", &script]).arg(program);
        command
    }

    /// Where the kernel says how much memory its processes take.
    pub fn usage_file(&self) -> PathBuf {
        self.path.join(self.files.usage)
    }

    /// Memory that its processes take.
    #[track_caller]
    pub fn usage_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.usage_file()).expect("a cgroup's usage");
        text.trim().parse().expect("a number")
    }

    /// How many processes the kernel ended because it was full.
    #[track_caller]
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(self.files.events)).expect("a cgroup's events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).expect("a count of processes that were killed")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What is left in it moves to the top, or it cannot go.
        for pid in fs::read_to_string(self.processes()).unwrap_or_default().lines() {
            let _ = fs::write(self.path.with_file_name("cgroup.procs"), pid);
        }
        // A process that was killed stays in it until the kernel has taken its memory back.
        for _ in 0..REMOVE_TRIES {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVE_PAUSE)
                }
                _ => return,
            }
        }
    }
}
