//! Members of a pool that a command starts on this machine for its own time: each is this program, as a
//! process of its own.
//!
//! Owns their start, what they say, and their end. Never: which there are, or who they are to each other
//! (`up` and `validate` say that). Invariant: a member ends with its `Member`; one whose starter is killed
//! outright (SIGKILL) stays. Tests: those of `up` and `validate` in `lab`.

use crate::failure::Failure;
use crate::output;
use cheetah_rim::members::IDENTITY_VARIABLE;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

/// From being told to end to being killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process of a pool.
#[derive(Debug)]
pub struct Member {
    child: Child,
    pub what: String,
    says: Says,
}

/// What a member says on stderr, taken until its end is wanted: then it would tell of losses that are none.
#[derive(Debug)]
struct Says(JoinHandle<()>);

impl Says {
    /// Passed on to who started it, or read by nobody.
    fn of(stderr: ChildStderr, is_quiet: bool) -> Says {
        let to: fn(&str) = if is_quiet { |_| {} } else { output::beside };
        let mut lines = BufReader::new(stderr).lines();
        Says(tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                to(&line);
            }
        }))
    }

    /// All of it, of a member that has ended.
    async fn until_its_end(mut self) {
        let _ = (&mut self.0).await;
    }
}

impl Drop for Says {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Member {
    /// Starts this program as a member and waits for its `ready:` line; returns what follows it.
    pub async fn start(
        what: &str,
        arguments: &[&str],
        identity: &Path,
        is_quiet: bool,
    ) -> Result<(Member, String), Failure> {
        let fault = |why: String| Failure::failed(format!("{what} did not start: {why}"));
        let program = std::env::current_exe().map_err(|e| fault(e.to_string()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .env(crate::configuration::VARIABLE, "")
            .env(IDENTITY_VARIABLE, identity)
            // Its record would stand between what this command says.
            .env("CHEETAH_LOG", std::env::var("CHEETAH_LOG").unwrap_or_else(|_| "warn".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C goes to a whole process group; the members are ended one by one instead.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| fault(e.to_string()))?;
        let none = || fault("it has no output".into());
        let stdout = child.stdout.take().ok_or_else(none)?;
        let says = Says::of(child.stderr.take().ok_or_else(none)?, is_quiet);
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await.map_err(|e| fault(e.to_string()))? {
            if let Some(rest) = line.strip_prefix("ready: ") {
                let rest = rest.to_owned();
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok((Member { child, what: what.to_owned(), says }, rest));
            }
        }
        let status = child.wait().await.map_or_else(|e| e.to_string(), |status| status.to_string());
        says.until_its_end().await;
        let look = if is_quiet { "`cheetah up` shows what is in the way" } else { "its message is above" };
        Err(fault(format!("it ended with {status}; {look}")))
    }

    pub fn silence(&self) {
        self.says.0.abort();
    }

    /// None: it runs.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// None: it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// As a machine that loses its power.
    pub async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }

    pub async fn end(&mut self) {
        if let Some(pid) = self.pid().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            if tokio::time::timeout(PATIENCE, self.child.wait()).await.is_err() {
                self.kill().await;
            }
        }
    }
}
