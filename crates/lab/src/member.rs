//! The program as another member of a pool uses it, with an identity and a runtime directory of its own.
//!
//! Never: how it becomes a member (its test has it join). Called by the tests of encrypted volumes.

use std::process::Command;

use crate::pool::Pool;

/// The program with these arguments.
pub fn another(pool: &Pool, arguments: &[&str]) -> Command {
    let mut command = pool.command();
    command.args(arguments).env_remove("CHEETAH_POOL");
    command.env("CHEETAH_IDENTITY", pool.scratch().join("another"));
    command.env("XDG_RUNTIME_DIR", pool.scratch().directory("run-another"));
    command
}
