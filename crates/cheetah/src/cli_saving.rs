//! The command line of `save`: what is written, what goes beside it, and what an E01 says of its case.
//! Never: behaviour, but saying what is of no use.

use crate::cli::{JsonArg, PoolArg};
use crate::output;
use cheetah_core::units::parse_bytes;
use clap::{Args, ValueEnum, ValueHint};
use serde::Serialize;
use std::path::PathBuf;

pub const SAVE_EXAMPLES: &str = "\
Examples:
  cheetah save case7 case7.dd          and case7.dd.md5, .sha1, .sha256 beside it
  cheetah save case7 case7.dd --sidecars sha256,hashdeep,dfxml --piecewise 1G
  cheetah save case7 case7.E01 --case 2026-117 --evidence 4 --examiner 'J. Doe'
  cheetah save case7 - | gzip > case7.dd.gz
  cheetah save case7 case7.dd --overwrite

Exit code: 6 when a part could not be read, which is zeros in the file and listed in case7.dd.map, when the
file does not read back, which then keeps the name case7.dd.part, or when the volume is not what was loaded.";

#[derive(Debug, Args)]
pub struct Save {
    pub name: String,
    /// The file. It has its name once all of it is written and was read back; until then it is FILE.part.
    /// With .E01 at its end: the first segment of an E01. `-`: stdout, raw.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Without it: e01 where FILE ends in .E01, else raw.
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// What goes beside the file, with commas between them. Without it: md5,sha1,sha256 of a raw image,
    /// none of an E01, which has hashes in it.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND[,KIND...]")]
    pub sidecars: Option<Vec<Sidecar>>,
    /// Also a hash of each SIZE bytes, as dcfldd writes them: FILE.md5log and FILE.sha256log.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub piecewise: Option<u64>,
    /// Replace files that are there already, and remove those beside the old one that would say something
    /// else of the new one.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
    #[command(flatten)]
    pub e01: E01,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The bytes as they are.
    Raw,
    /// An Expert Witness image, as EnCase 6 has it, written by ewfacquirestream (Debian: ewf-tools).
    E01,
}

/// A file beside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sidecar {
    /// As md5sum writes and checks it.
    Md5,
    /// As sha1sum writes and checks it.
    Sha1,
    /// As sha256sum writes and checks it.
    Sha256,
    /// HASHDEEP-1.0: `hashdeep -a -b -k FILE.hashdeep FILE` audits it.
    Hashdeep,
    /// Digital Forensics XML 1.2: who made it, hashes, and what could not be read.
    Dfxml,
    /// Nothing.
    None,
}

/// What stands in an E01 about its case, and how it is cut and packed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Of an E01")]
pub struct E01 {
    /// The case's number.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = field)]
    pub case: String,
    /// The number of the piece of evidence.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = field)]
    pub evidence: String,
    /// The examiner's name.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = field)]
    pub examiner: String,
    /// What it is, in a line.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = field)]
    pub description: String,
    /// Whatever else is to be said of it.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = field)]
    pub notes: String,
    /// How hard it is packed.
    #[arg(long, value_enum, default_value_t = Compression::Fast)]
    pub compression: Compression,
    /// How large a segment becomes: FILE.E01, FILE.E02, ... From 1M on.
    #[arg(long, value_name = "SIZE", default_value = "1500M", value_parser = parse_bytes)]
    pub segment: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    None,
    /// Only blocks that are all the same byte.
    EmptyBlock,
    Fast,
    Best,
}

impl E01 {
    /// Of a raw image. No error: a configuration may have the examiner's name for all.
    pub fn note_unused(&self) {
        let E01 { case, evidence, examiner, description, notes, .. } = self;
        if [case, evidence, examiner, description, notes].iter().any(|text| !text.is_empty()) {
            output::note("a raw image has no place for the case, and what was given of it is not written");
        }
    }
}

/// The header of an E01 has a field on each line, with tabs between them.
fn field(text: &str) -> Result<String, String> {
    match text.chars().any(char::is_control) {
        true => Err("it has to stand on one line, without tabs".to_owned()),
        false => Ok(text.to_owned()),
    }
}
