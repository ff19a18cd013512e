//! The command line about this machine and this program: what is in the way here, and the manual's pages.
//! Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use clap::{Args, ValueHint};
use std::path::PathBuf;

pub const DOCTOR_EXAMPLES: &str = "\
Example:
  cheetah doctor --pool cheetah://10.0.0.5:10808

Exit code: 0 when nothing is in the way, else 7.";

#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Manual {
    /// Where to; it is made.
    #[arg(value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
}
