//! Where a validation was done, and with what: the program, the machine, the tools, the pool.
//!
//! Owns looking. Never: what of it matters. What this machine does not say is told as "not known". Called by
//! `super`. Tests: `lab/tests/validate.rs`.

use super::image;
use crate::cli_validate::Validate;
use crate::custody::command_line;
use cheetah_core::api::PoolStatus;
use cheetah_rim::control::Client;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// A tool says its version at once.
const SAYS_IN: Duration = Duration::from_secs(5);
/// Those that cases use, each with what it takes to say its version.
const TOOLS: [(&str, &str); 2] = [("ewfacquirestream", "-V"), ("fusermount3", "-V")];

#[derive(Debug, Serialize)]
pub struct Facts {
    pub examiner: Option<String>,
    pub notes: Option<String>,
    pub command: String,
    pub program: Program,
    pub machine: Machine,
    pub tools: Vec<Tool>,
    pub pool: Pool,
}

#[derive(Debug, Serialize)]
pub struct Program {
    pub version: String,
    pub sha256: String,
}

#[derive(Debug, Serialize)]
pub struct Machine {
    pub host: String,
    pub system: String,
    pub kernel: String,
    pub processors: usize,
    /// Of the user who validates; root is 0.
    pub uid: u32,
}

#[derive(Debug, Serialize)]
pub struct Tool {
    pub tool: &'static str,
    /// None: it is not here.
    pub version: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Pool {
    pub pool: String,
    pub url: String,
    /// By TLS. False: in the clear.
    pub members_only: bool,
    pub donors: Vec<Donor>,
}

#[derive(Debug, Serialize)]
pub struct Donor {
    pub name: String,
    pub host: String,
    pub bytes: u64,
}

fn unknown() -> String {
    "not known".to_owned()
}

impl Facts {
    pub async fn look(options: &Validate, pool: &Client, status: PoolStatus) -> Facts {
        let name = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let program = std::env::current_exe().and_then(|path| image::of_file(&path));
        let machine = Machine {
            host: text(name.nodename()),
            system: system(),
            kernel: format!("{} {} {}", text(name.sysname()), text(name.release()), text(name.machine())),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            uid: rustix::process::geteuid().as_raw(),
        };
        let mut tools = Vec::new();
        for (tool, flag) in TOOLS {
            tools.push(Tool { tool, version: version_of(tool, flag).await });
        }
        let donors = status.donors.into_iter();
        let donor = |donor: cheetah_core::api::DonorStatus| Donor {
            name: donor.name,
            host: donor.host,
            bytes: donor.bytes_total,
        };
        Facts {
            examiner: options.examiner.clone(),
            notes: options.notes.clone(),
            command: command_line(std::env::args_os()),
            program: Program {
                version: format!("cheetah {}", env!("CARGO_PKG_VERSION")),
                sha256: program.map_or_else(|_| unknown(), |answers| answers.sha256),
            },
            machine,
            tools,
            pool: Pool {
                pool: status.pool.to_string(),
                url: pool.url().to_owned(),
                members_only: status.members_only,
                donors: donors.map(donor).collect(),
            },
        }
    }
}

fn system() -> String {
    let text = fs::read_to_string(Path::new("/etc/os-release")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(unknown, |name| name.trim_matches('"').to_owned())
}

/// The first line that it says.
async fn version_of(tool: &str, flag: &str) -> Option<String> {
    let mut command = Command::new(tool);
    command.arg(flag).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(SAYS_IN, command.output()).await.ok()?.ok()?;
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said).into_owned();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    Some(line.map_or_else(unknown, str::to_owned))
}
