//! What `cheetah load` says in the end, and what is wrong with what was loaded.
//!
//! Owns the report, its lines and the verdict. Never: calls, or bytes. Called by `super`. Tests:
//! `lab/tests/evidence.rs`.

use crate::claims::Claimed;
use crate::cli;
use crate::expected::{self, Expected};
use crate::failure::{Exit, Failure};
use crate::fill::Hashes;
use crate::on_disk;
use crate::output;
use cheetah_core::content::{ByteRange, OnDisk};
use cheetah_core::proofs::Root;
use cheetah_core::units::{show_bytes, show_count};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct LoadReport {
    pub(super) file: String,
    /// What the file is: the size and the hashes are those of the disk in it.
    pub(super) source: String,
    /// A byte of it that is not what was written would have been noticed.
    pub(super) checksummed: bool,
    pub(super) volume: String,
    pub(super) bytes: u64,
    /// Of those, bytes that were zeros and take no memory.
    pub(super) zero_bytes: u64,
    /// Of those, bytes that were there already and were found to be right.
    pub(super) resumed_bytes: u64,
    pub(super) seconds: f64,
    pub(super) bytes_per_second: f64,
    /// With zeros where the file could not be read.
    pub(super) file_hashes: Hashes,
    /// Of the same range of the volume, where it was read back from the donors.
    pub(super) volume_hashes: Option<Hashes>,
    pub(super) verified: bool,
    /// How.
    pub(super) checked_by: CheckedBy,
    pub(super) volume_bytes: u64,
    /// What of the file could not be read, and answers an error in the volume.
    pub(super) unreadable: Vec<ByteRange>,
    /// How the file changed while it was read.
    pub(super) file_changed: Option<String>,
    /// What stands on the disk.
    pub(super) on_disk: OnDisk,
    /// What the image says of the disk in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) claims: Option<Claimed>,
    /// Hashes that the disk was to have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) expected: Vec<Expected>,
    /// BLAKE3 of the volume, if it was sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sealed: Option<Root>,
    /// The hashes are those of the file itself.
    #[serde(skip)]
    pub(super) is_file: bool,
}

impl LoadReport {
    /// Whether the volume holds what the source held, as far as that could be read, and that is what it was
    /// said to be.
    pub(super) fn is_right(&self, name: &str) -> bool {
        self.verified && self.file_changed.is_none() && self.faults(name).is_empty()
    }

    /// Hashes that it was to have, and has not.
    fn faults(&self, name: &str) -> Vec<String> {
        let LoadReport { file_hashes, file, unreadable, claims, .. } = self;
        let claims = claims.as_ref().and_then(|claims| claims.fault(file_hashes, file, name, unreadable));
        expected::fault(&self.expected, file, name, unreadable).into_iter().chain(claims).collect()
    }
}

/// How it is known what the donors hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckedBy {
    /// They confirmed the checksums of what they were sent, and of what they held in the end.
    Donors,
    /// It was read back and hashed.
    ReadingBack,
    Nobody,
}

/// What is wrong with what was loaded to its end.
pub(super) fn verdict(report: &LoadReport, options: &cli::Load) -> Result<(), Failure> {
    let failure = |text: String| Err(Failure::new(Exit::DataLost, text));
    let name = &options.name;
    if !report.verified && report.checked_by != CheckedBy::Nobody {
        return failure(format!(
            "volume '{name}' does not hold what the file holds: do not use it; load it again with --overwrite"
        ));
    }
    if let Some(how) = &report.file_changed {
        return failure(format!(
            "{} changed while it was read: {how}. Volume '{name}' holds what was read, some of it from before and some from \
             after: load it again with --overwrite when nobody writes it",
            report.file
        ));
    }
    let faults = report.faults(name);
    let faults = (!faults.is_empty()).then(|| faults.join("; and "));
    let lost: u64 = report.unreadable.iter().map(|range| range.len).sum();
    if lost > 0 {
        return failure(format!(
            "{} of {} could not be read, in {}: those ranges of volume '{name}' answer EIO, and `cheetah show {name}` lists \
             them{}",
            show_bytes(lost),
            report.file,
            show_count(report.unreadable.len() as u64, "range"),
            faults.map_or_else(String::new, |fault| format!("; and {fault}"))
        ));
    }
    faults.map_or(Ok(()), failure)
}

pub(super) fn print(report: &LoadReport, options: &cli::Load) -> Result<(), Failure> {
    if options.json.json {
        return output::json(report);
    }
    output::line(&format!(
        "loaded {} of {}{} into {} in {:.1} s, {}/s; {} of zeros take no room",
        show_bytes(report.bytes),
        if report.is_file { "" } else { "the disk in " },
        report.file,
        report.volume,
        report.seconds,
        show_bytes(report.bytes_per_second as u64),
        show_bytes(report.zero_bytes)
    ));
    if report.resumed_bytes > 0 {
        output::line(&format!("{} of that were there already, and right", show_bytes(report.resumed_bytes)));
    }
    // What was hashed: the file, or the disk in it.
    let of = if report.is_file { "file" } else { "disk" };
    output::line(&format!("MD5     {of}    {}", report.file_hashes.md5));
    if let Some(read) = &report.volume_hashes {
        output::line(&format!("        volume  {}", read.md5));
    }
    output::line(&format!("SHA-1   {of}    {}", report.file_hashes.sha1));
    output::line(&format!("SHA-256 {of}    {}", report.file_hashes.sha256));
    if let Some(read) = &report.volume_hashes {
        output::line(&format!("        volume  {}", read.sha256));
    }
    if report.volume_bytes > report.bytes {
        output::line(&format!(
            "the volume has {} bytes more than the file; the hashes cover the first {}",
            report.volume_bytes - report.bytes,
            report.bytes
        ));
    }
    for line in report.claims.iter().flat_map(|claims| claims.lines(&report.file_hashes)) {
        output::line(&line);
    }
    report.expected.iter().for_each(|expected| output::line(&expected.line()));
    on_disk::lines(&report.on_disk).iter().for_each(|line| output::line(line));
    for ByteRange { offset, len } in &report.unreadable {
        output::line(&format!("unreadable      {len} bytes from {offset} on"));
    }
    let how = match report.checked_by {
        CheckedBy::Donors => {
            "the donors confirmed the checksum of every block that was sent, and hold it now"
        }
        CheckedBy::ReadingBack => "every byte was read back and is the same",
        CheckedBy::Nobody => "",
    };
    let zeros = match report.unreadable.is_empty() {
        true => "",
        false => "; zeros stand in the hashes for what could not be read",
    };
    output::line(&match report.verified {
        true => format!("verified: {how}{zeros}"),
        false => "not verified".to_owned(),
    });
    if let Some(root) = report.sealed {
        output::line(&format!("sealed: nobody changes it any more; BLAKE3 {root}"));
    }
    Ok(())
}
