//! The command line about custody: the case, the log, and verifying one. Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use cheetah_core::custody::Head;
use cheetah_rim::control::signing::PublicKey;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// What an examiner says of the case. It is kept in the volume's log, and stays when the volume goes.
#[derive(Clone, Debug, Args)]
pub struct CaseArgs {
    /// The number or name of the case, for the volume's log.
    #[arg(long, value_name = "TEXT", help_heading = "For the volume's log")]
    pub case: Option<String>,
    /// The number of the evidence.
    #[arg(long, value_name = "TEXT", help_heading = "For the volume's log")]
    pub evidence: Option<String>,
    /// Who examines it.
    #[arg(long, value_name = "TEXT", help_heading = "For the volume's log")]
    pub examiner: Option<String>,
    /// Anything else that the log shall have.
    #[arg(long, value_name = "TEXT", help_heading = "For the volume's log")]
    pub notes: Option<String>,
}

pub const LOG_EXAMPLES: &str = "Examples:\n  cheetah log case7\n  cheetah log case7 --export case7.log    and case7.log.minisig, case7.log.pub beside it\n  cheetah log case7 --case-uco > case7.jsonld\n  cheetah log 0123456789abcdef            of an older volume of that name, by its identity";

pub const VERIFY_LOG_EXAMPLES: &str = "Examples:\n  cheetah verify-log case7.log --key RW...\n  cheetah verify-log case7.log --key RW... --head 41:9f86d081...    nothing after entry 41 was cut off\n\nExit code: 6 when the log is not what the pool signed.";

#[derive(Debug, Args)]
pub struct Log {
    /// The volume, also one that was deleted; or the identity of one.
    pub name: String,
    /// Write the log to FILE as JSON lines, its signature to FILE.minisig and the pool's public key to
    /// FILE.pub. Files that are there already are not replaced.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub export: Option<PathBuf>,
    /// Print the log as CASE/UCO JSON-LD, for the tools and archives of others. It is not signed: keep an
    /// export beside it.
    #[arg(long, conflicts_with_all = ["json", "export"])]
    pub case_uco: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

pub const REPORT_EXAMPLES: &str = "Examples:\n  cheetah report case7 case7-report     report.html, report.json, and the signed log and manifest\n  cheetah report 0123456789abcdef gone  of a volume that was deleted, by its identity";

#[derive(Debug, Args)]
pub struct Handover {
    /// The volume, also one that was deleted; or the identity of one.
    pub name: String,
    /// The folder, which is made.
    #[arg(value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct VerifyLog {
    /// The log, as `cheetah log NAME --export FILE` wrote it. Its signature is FILE.minisig.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The pool's public key, as `cheetah log NAME` shows it. Without it: FILE.pub, which whoever changed
    /// the log may have changed as well.
    #[arg(long, value_name = "KEY")]
    pub key: Option<PublicKey>,
    /// The end of the log, or of an earlier one, as it is known from elsewhere: what `cheetah log NAME`
    /// showed.
    #[arg(long, value_name = "SEQUENCE:HASH")]
    pub head: Option<Head>,
    #[command(flatten)]
    pub json: JsonArg,
}
