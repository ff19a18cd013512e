//! Donors that are in no pool: plain NBD servers of this machine's memory.
//! Invariant: each listens when its constructor returns.

use std::path::Path;
use std::process::Command;

use crate::pool::binary;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{rivals, wait};

/// A donor without a coordinator: its whole memory as one NBD export.
#[derive(Debug)]
pub struct LoneDonor {
    pub process: Process,
    pub uri: String,
    _scratch: Scratch,
}

impl LoneDonor {
    /// On TCP.
    #[track_caller]
    pub fn tcp(size: &str) -> Self {
        Self::start(size, |_| "127.0.0.1:0".to_owned())
    }

    /// On a Unix socket.
    #[track_caller]
    pub fn unix(size: &str) -> Self {
        Self::start(size, |scratch| format!("unix:{}", scratch.join("donor.sock").display()))
    }

    #[track_caller]
    fn start(size: &str, listen: impl Fn(&Scratch) -> String) -> Self {
        let scratch = Scratch::new();
        let mut command = Command::new(binary());
        command.args(["donate", size, "--no-pool", "--listen", &listen(&scratch)]);
        let mut process = Process::start("donor", command, scratch.path());
        let line = process.wait_for_line("ready: donor", wait::SOON);
        let address = line.split_once(" at ").map(|(_, rest)| rest.split(' ').next().unwrap_or(rest));
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        let uri = match address.strip_prefix("unix:") {
            Some(socket) => rivals::unix_uri(Path::new(socket), ""),
            None => {
                format!("nbd://{}/", address.strip_prefix("nbd://").unwrap_or(address).trim_end_matches('/'))
            }
        };
        Self { process, uri, _scratch: scratch }
    }
}
