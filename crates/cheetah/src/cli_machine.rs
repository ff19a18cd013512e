//! The command line about this machine: what is in the way here. Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use clap::Args;

pub const DOCTOR_EXAMPLES: &str = "\
Example:
  cheetah doctor --pool http://10.0.0.5:10808

Exit code: 0 when nothing is in the way, else 7.";

#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}
