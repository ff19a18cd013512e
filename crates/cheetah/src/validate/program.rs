//! This program as an examiner runs it: each command that a case needs is a process of its own.
//!
//! Owns how it is started, its limit of time, and reading what it says. Never: what its answer means.
//! Invariant: what it does depends on its arguments and the pool, and on no configuration. Called by
//! `stage`. Tests: `lab/tests/validate.rs`.

use super::case::{Done, Said, here};
use cheetah_rim::members::IDENTITY_VARIABLE;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

/// A pool, and who one is there.
#[derive(Clone, Debug)]
pub struct Place {
    pub url: String,
    pub identity: Option<PathBuf>,
}

impl Place {
    fn command(&self, arguments: &[&str]) -> Done<Command> {
        let program = std::env::current_exe().map_err(|why| here("this program is not found", why))?;
        let mut command = Command::new(program);
        command.args(arguments).arg("--json");
        command.env(crate::configuration::VARIABLE, "").env("CHEETAH_POOL", &self.url);
        command.env("CHEETAH_LOG", "error");
        if let Some(identity) = &self.identity {
            command.env(IDENTITY_VARIABLE, identity);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C ends this command, which ends what it has started.
        command.process_group(0).kill_on_drop(true);
        Ok(command)
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str], limit: Duration) -> Done<Said> {
        let output = self.command(arguments)?.output();
        match tokio::time::timeout(limit, output).await {
            Ok(output) => Ok(said(&output.map_err(|why| here("a command did not start", why))?)),
            Err(_) => {
                let why = format!("it was killed after {} s", limit.as_secs());
                Ok(Said { code: None, json: Value::Null, why, error: String::new() })
            }
        }
    }

    /// Starts one that is to be killed.
    pub fn start(&self, arguments: &[&str]) -> Done<Child> {
        let mut command = self.command(arguments)?;
        // Nobody reads them.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map_err(|why| here("a command did not start", why))
    }
}

fn said(output: &Output) -> Said {
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let text = String::from_utf8_lossy(&output.stderr);
    let objects = || text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let error = objects().map(|line| line["error"].clone()).find(|error| !error.is_null());
    let field =
        |name: &str| error.as_ref().and_then(|error| error[name].as_str()).unwrap_or_default().to_owned();
    Said { code: output.status.code(), json, why: field("message"), error: field("code") }
}
