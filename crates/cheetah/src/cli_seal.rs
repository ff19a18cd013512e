//! The command lines of `seal`, `manifest` and `verify`. Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use clap::{Args, ValueHint};
use std::path::PathBuf;

pub const SEAL_EXAMPLES: &str = "\
Examples:
  cheetah seal case7
  cheetah manifest case7      what it holds, signed by the pool

`load` and `open` seal what is loaded and checked, unless --writable (or --no-verify) is said.";

pub const MANIFEST_EXAMPLES: &str = "\
Examples:
  cheetah manifest case7
  cheetah manifest case7 case7.json      and case7.json.minisig beside it
  cheetah verify case7 --manifest case7.json";

#[derive(Debug, Args)]
pub struct Verify {
    pub name: String,
    /// What the volume is to be, as `cheetah manifest` wrote it. A signature beside it (FILE.minisig) has to
    /// be the pool's.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub manifest: Option<PathBuf>,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Manifest {
    pub name: String,
    /// Where to write it, with its signature as FILE.minisig beside it. Without it: it is printed.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Replace a file that is there already.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}
