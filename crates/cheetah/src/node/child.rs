//! A process that a node keeps: this program as it is typed, and each line that it says with its name.
//!
//! Owns how it is started, told to end, and heard. Never: when. Invariants: it reads no configuration, for
//! all that it is to do is in its words; a signal of the terminal does not reach it; it ends with its value.
//! Called by `keep`.

use crate::failure::Failure;
use crate::members;
use crate::output;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::process::{Child as Process, ChildStderr, ChildStdout, Command};

/// The exit code of a command line that makes no sense.
const USAGE: i32 = crate::failure::Exit::Usage as i32;

/// This program, and the pool that all its processes are told of.
#[derive(Clone, Debug)]
pub struct Program {
    /// Where it is; after an upgrade, what is there then.
    path: PathBuf,
    pool: Option<String>,
}

/// Whom a process is to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Donor,
    Client,
}

impl Program {
    pub fn own(pool: Option<String>) -> Result<Program, Failure> {
        let path = std::env::current_exe();
        let path = path.map_err(|why| Failure::failed(format!("cannot find this program: {why}")))?;
        Ok(Program { path, pool })
    }

    /// Starts it with these words.
    pub fn start(
        &self,
        label: &str,
        (command, role): (&str, As),
        words: &[String],
        names_pool: bool,
    ) -> std::io::Result<Child> {
        let mut started = Command::new(&self.path);
        started
            .arg(command)
            .args(words)
            .env(crate::configuration::VARIABLE, "")
            // Who is ready is the node, to its manager.
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if role == As::Client {
            started.envs(members::environment()).env_remove(members::INVITATION_VARIABLE);
        }
        match &self.pool {
            // A token lets a donor in, and nobody else.
            Some(pool) if !names_pool => {
                let plain = members::without_token(OsStr::new(pool)).map(|(plain, _)| plain);
                let plain = plain.filter(|_| role == As::Client);
                started.env("CHEETAH_POOL", plain.as_ref().unwrap_or(pool));
            }
            _ => {}
        }
        let mut process = started.spawn()?;
        let none = || std::io::Error::other("it has no output");
        let out = process.stdout.take().ok_or_else(none)?;
        let errors = process.stderr.take().ok_or_else(none)?;
        Ok(Child {
            label: label.to_owned(),
            process,
            out: Some(BufReader::new(out).lines()),
            errors: Some(BufReader::new(errors).lines()),
        })
    }
}

#[derive(Debug)]
pub struct Child {
    label: String,
    process: Process,
    /// None once it is closed.
    out: Option<Lines<BufReader<ChildStdout>>>,
    errors: Option<Lines<BufReader<ChildStderr>>>,
}

/// What came of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Well,
    /// It cannot be started as it was typed.
    Usage,
    Badly(Option<ExitStatus>),
}

impl Ended {
    fn of(status: Option<ExitStatus>) -> Ended {
        match status {
            Some(status) if status.success() => Ended::Well,
            Some(status) if status.code() == Some(USAGE) => Ended::Usage,
            other => Ended::Badly(other),
        }
    }
}

/// What a process did next.
#[derive(Debug)]
pub enum Next {
    Ready,
    Ended(Ended),
}

impl Child {
    /// Passes on what it says, until it says that it is ready, or has ended.
    pub async fn next(&mut self) -> Next {
        while self.out.is_some() || self.errors.is_some() {
            tokio::select! {
                // An output that closes is the end of its turn, and not of the other's.
                line = line_of(&mut self.out), if self.out.is_some() => {
                    let Some(line) = line else { continue };
                    say(&self.label, &line, output::line);
                    if line.starts_with("ready: ") {
                        return Next::Ready;
                    }
                }
                line = line_of(&mut self.errors), if self.errors.is_some() => {
                    if let Some(line) = line {
                        say(&self.label, &line, output::beside);
                    }
                }
            }
        }
        // All that it said came before.
        Next::Ended(Ended::of(self.process.wait().await.ok()))
    }

    /// Until it has ended.
    pub async fn ended(&mut self) -> Ended {
        loop {
            if let Next::Ended(ended) = self.next().await {
                return ended;
            }
        }
    }

    pub fn tell_to_end(&self) {
        if let Some(pid) = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // One that has ended just now is told nothing.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    pub async fn kill(&mut self) {
        let _ = self.process.kill().await;
    }
}

/// The next line; none once it is closed.
async fn line_of<R: AsyncRead + Unpin>(output: &mut Option<Lines<BufReader<R>>>) -> Option<String> {
    let line = output.as_mut()?.next_line().await.ok().flatten();
    if line.is_none() {
        *output = None;
    }
    line
}

fn say(label: &str, line: &str, to: fn(&str)) {
    match output::is_json() {
        true => output::json_beside(&json!({ "name": label, "says": line })),
        false => to(&format!("{label}: {line}")),
    }
}
