//! A child process under guard: its output in a log, its end certain.
//! Invariant: dropping the guard kills and reaps exactly the process it started, by id.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::{mark, wait};

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command; both of its outputs go to `NAME.log` in `directory`, started afresh.
    #[track_caller]
    pub fn start(name: &str, mut command: Command, directory: &Path) -> Self {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).expect("a log file");
        let errors = file.try_clone().expect("a second handle of the log file");
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        if !command.get_envs().any(|(key, _)| key == mark::VARIABLE) {
            command.env(mark::VARIABLE, mark::own());
        }
        match command.spawn() {
            Ok(child) => Self { name: name.to_owned(), child, log },
            Err(error) => panic!("cannot start {command:?}: {error}"),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that was printed so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The first whole line that contains `pattern`. Panics, with the log, when the process ends without it
    /// or the limit passes.
    #[track_caller]
    pub fn wait_for_line(&mut self, pattern: &str, limit: Duration) -> String {
        self.wait_for(pattern, limit, |log| whole_lines(log).collect())
    }

    /// The same, of a line that may still go on.
    #[track_caller]
    pub fn wait_for_line_begun(&mut self, pattern: &str, limit: Duration) -> String {
        self.wait_for(pattern, limit, |log| log.lines().collect())
    }

    #[track_caller]
    fn wait_for(&mut self, pattern: &str, limit: Duration, lines: fn(&str) -> Vec<&str>) -> String {
        let start = std::time::Instant::now();
        loop {
            // Asked before the log is read: what it printed before it ended must still be found.
            let ended = self.child.try_wait().expect("the state of a child");
            let log = self.log();
            if let Some(line) = lines(&log).into_iter().find(|line| line.contains(pattern)) {
                return line.to_owned();
            }
            if let Some(status) = ended {
                panic!("{} ended ({status}) without a line with {pattern:?}; it said:\n{log}", self.name);
            }
            assert!(
                start.elapsed() < limit,
                "{}: no line with {pattern:?} in {limit:?}; it said:\n{log}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn signal(&self, signal: Signal) {
        mark::signal(self.pid(), signal);
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    #[track_caller]
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_end(limit)
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::CONT);
        // Fails only for a child that was reaped already.
        let _: io::Result<()> = self.child.kill();
        let _: io::Result<ExitStatus> = self.child.wait();
    }

    #[track_caller]
    pub fn wait_for_end(&mut self, limit: Duration) -> ExitStatus {
        let name = self.name.clone();
        wait::for_some(&format!("the end of {name}"), limit, || self.child.try_wait().ok().flatten())
    }

    /// Resident memory now.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid())
    }

    /// Processor time used so far, user and system.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.pid())
    }

    /// Open file descriptors now.
    pub fn open_files(&self) -> usize {
        open_files(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {} (pid {})\n{}", self.name, self.pid(), tail(&self.log(), 40));
        }
        self.kill();
    }
}

/// Resident memory of any process; 0 when it is gone.
pub fn resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// The part of it that is a memfd's or another shared mapping's, such as a donor's arena.
pub fn shared_bytes(pid: u32) -> u64 {
    status_bytes(pid, "RssShmem:")
}

/// The part of it that is a file's, such as the program itself.
pub fn program_bytes(pid: u32) -> u64 {
    status_bytes(pid, "RssFile:")
}

/// The most that was ever resident of any process; 0 when it is gone.
pub fn peak_resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Processor time of any process, its ended threads included; zero when it is gone.
pub fn cpu_time(pid: u32) -> Duration {
    let Some(fields) = mark::stat_fields(pid) else { return Duration::ZERO };
    let ticks: u64 = [11, 12].iter().filter_map(|field| fields.get(*field)?.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns when these have used next to no processor time for some seconds, or after a minute: a donor that
/// was filled puts what it holds on huge pages, and rests five seconds before it looks for more of that.
pub fn wait_for_rest(pids: &[u32]) {
    const SECOND: Duration = Duration::from_secs(1);
    let used = || pids.iter().map(|pid| cpu_time(*pid)).sum::<Duration>();
    let mut rested = 0;
    for _ in 0..60 {
        let before = used();
        std::thread::sleep(SECOND);
        rested = if used() - before < SECOND / 20 { rested + 1 } else { 0 };
        if rested == 7 {
            return;
        }
    }
}

/// Open file descriptors of any process; 0 when it is gone.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0)
}

fn whole_lines(log: &str) -> impl Iterator<Item = &str> {
    log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'))
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{scratch::Scratch, tools};

    fn shell(script: &str) -> Command {
        let mut command = tools::command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_line_is_found_though_the_process_has_ended() {
        let scratch = Scratch::new();
        let mut process = Process::start("echo", shell("echo one; echo ready: two"), scratch.path());
        assert_eq!(process.wait_for_line("ready:", wait::SOON), "ready: two");
    }

    #[test]
    #[should_panic(expected = "without a line with \"ready\"")]
    fn an_end_without_the_line_is_told_at_once() {
        let scratch = Scratch::new();
        Process::start("echo", shell("echo no; exit 3"), scratch.path()).wait_for_line("ready", wait::SOON);
    }

    #[test]
    fn dropping_kills_also_a_stopped_process() {
        let scratch = Scratch::new();
        let mut process = Process::start("sleep", shell("echo up; exec sleep 1000"), scratch.path());
        process.wait_for_line("up", wait::SOON);
        assert!(process.resident_bytes() > 0 && process.open_files() >= 3);
        let pid = process.pid();
        process.signal(Signal::STOP);
        drop(process);
        assert_eq!(mark::start_time(pid), None);
    }
}
