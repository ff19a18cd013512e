//! The command line of `validate`. Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use crate::validate::requirements;
use cheetah_core::units::parse_bytes;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use std::path::PathBuf;

pub const VALIDATE_EXAMPLES: &str = "\
Examples:
  cheetah validate                           some minutes; the report is in a folder that it names
  cheetah validate --out 2026-validation --examiner 'J. Doe' --notes 'after the upgrade to 1.4'
  cheetah validate --only write-blocked,source-unchanged
  cheetah validate --size 4G                 a larger image, whose hashes are not published

It uses volumes of its own on the pool, and deletes them. What needs faults is done on a small pool that it
starts on this machine.

Exit code: 0 when all that was asked for was shown, 6 when a requirement failed, 7 when nothing failed and not
all was shown.";

#[derive(Debug, Args)]
pub struct Validate {
    /// The folder of the report, which is made. Without it: cheetah-validation-DATE here.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// These requirements alone, with commas between them. The report says that the others were not asked
    /// for.
    #[arg(
        long,
        value_name = "REQUIREMENT[,REQUIREMENT...]",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(requirements::ids())
    )]
    pub only: Vec<String>,
    /// Of the image that is used, from 8390144 bytes on. Without it: 8390144 bytes, whose hashes are
    /// published. The disk for temporary files needs three times as much.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Who validates, for the report.
    #[arg(long, value_name = "TEXT")]
    pub examiner: Option<String>,
    /// Anything else that the report shall have.
    #[arg(long, value_name = "TEXT")]
    pub notes: Option<String>,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}
