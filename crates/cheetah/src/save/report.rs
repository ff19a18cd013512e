//! What came of saving, for people and scripts, and the exit code.
//!
//! Owns: the words. Never: what happened. Invariant: "verified" is said only of a file that was read
//! back, of stdout never. Called by `save`. Tests: `lab/tests/save.rs`.

use crate::cli_saving::Format;
use crate::failure::{Exit, Failure};
use crate::fill::Hashes;
use crate::output;
use cheetah_core::content::ByteRange;
use cheetah_core::units::{show_bytes, show_count};
use serde::Serialize;

/// Of the segments of a set, so many are named.
const SEGMENTS_SHOWN_MAX: usize = 4;
/// Of the places that could not be read, where no file lists them.
const PLACES_SHOWN_MAX: usize = 16;

#[derive(Debug, Serialize)]
pub struct SaveReport {
    pub volume: String,
    /// `-`: it went to stdout.
    pub file: String,
    pub format: Format,
    pub bytes: u64,
    /// Of those, bytes that are zeros. In a raw file they take no room on the disk.
    pub zero_bytes: u64,
    pub seconds: f64,
    pub bytes_per_second: f64,
    /// Of the volume, with zeros where it could not be read.
    pub hashes: Hashes,
    /// It was read back from its disk, and is what was read of the volume.
    pub verified: bool,
    /// What is wrong with it, where it was read back and is not that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Whether it is what was loaded; absent where the volume was written since, or nothing was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_loaded: Option<bool>,
    /// What was loaded: of whom these hashes are to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_from: Option<String>,
    /// What wrote it, beside this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_by: Option<String>,
    /// Of a set, all its files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    pub unreadable: Vec<ByteRange>,
    /// Beside the file.
    pub files: Vec<String>,
}

impl SaveReport {
    /// On stdout, or beside it where that has the volume.
    pub fn print(&self, as_json: bool) -> Result<(), Failure> {
        match (as_json, self.is_stdout()) {
            (true, false) => output::json(self)?,
            (true, true) => output::json_beside(self),
            (false, false) => self.lines().iter().for_each(|line| output::line(line)),
            (false, true) => self.lines().iter().for_each(|line| output::beside(line)),
        }
        Ok(())
    }

    fn is_stdout(&self) -> bool {
        self.file == "-"
    }

    fn lines(&self) -> Vec<String> {
        let SaveReport { volume, file, bytes, zero_bytes, seconds, bytes_per_second, hashes, .. } = self;
        let (shown, rate) = (show_bytes(*bytes), show_bytes(*bytes_per_second as u64));
        let zeros = show_bytes(*zero_bytes);
        let place = if self.is_stdout() { "stdout" } else { file };
        let mut lines = vec![
            format!(
                "saved volume '{volume}' to {place}: {shown}, of which {zeros} zeros, in {seconds:.1} s ({rate}/s)"
            ),
            format!("MD5 {}", hashes.md5),
            format!("SHA-1 {}", hashes.sha1),
            format!("SHA-256 {}", hashes.sha256),
        ];
        if let Some(writer) = &self.written_by {
            let count = show_count(self.segments.len() as u64, "segment");
            let shown: Vec<&str> =
                self.segments.iter().take(SEGMENTS_SHOWN_MAX).map(String::as_str).collect();
            let more = if shown.len() < self.segments.len() { ", ..." } else { "" };
            lines.push(format!("an E01 by {writer}, {count}: {}{more}", shown.join(", ")));
        }
        lines.extend(self.check());
        match (self.as_loaded, &self.loaded_from) {
            (Some(true), Some(source)) => lines.push(format!("it is what was loaded from {source}")),
            (None, _) => lines.push(
                "no hash of a load is there to compare with: nothing was loaded, or tools wrote since"
                    .to_owned(),
            ),
            _ => {}
        }
        if !self.files.is_empty() {
            lines.push(format!("beside it: {}", self.files.join(", ")));
        }
        lines
    }

    fn check(&self) -> Option<String> {
        if self.is_stdout() {
            return Some(
                "not verified: what went to stdout is not read back; compare these hashes where it arrived"
                    .to_owned(),
            );
        }
        let said = match (self.verified, self.format) {
            (false, _) => return None,
            (true, Format::Raw) => "verified: the file was read back, and is what was read of the volume",
            (true, Format::E01) => {
                "verified: ewfverify found no fault, and the set was read back and is what was read of the volume"
            }
        };
        Some(said.to_owned())
    }

    pub fn verdict(&self) -> Result<(), Failure> {
        let SaveReport { volume, file, unreadable, .. } = self;
        let failure = |text: String| Err(Failure::new(Exit::DataLost, text));
        if let Some(fault) = &self.fault {
            let text = format!("{file} does not hold what was written to it: {fault}. It keeps this name");
            return Err(Failure::new(Exit::DataLost, text)
                .advise("do not use it; its disk, or what else writes there, is to blame"));
        }
        if !unreadable.is_empty() {
            let lost: u64 = unreadable.iter().map(|range| range.len).sum();
            let (lost, ranges) = (show_bytes(lost), show_count(unreadable.len() as u64, "range"));
            let could_not = format!("{lost} of volume '{volume}' could not be read, in {ranges}");
            if self.is_stdout() {
                let place = |range: &ByteRange| format!("{} bytes from {} on", range.len, range.offset);
                let places: Vec<String> = unreadable.iter().take(PLACES_SHOWN_MAX).map(place).collect();
                let more =
                    if places.len() < unreadable.len() { ", and more, which --json lists" } else { "" };
                return failure(format!("{could_not}: zeros stand there, {}{more}", places.join(", ")));
            }
            return failure(format!("{could_not}: {file} has zeros there, and {file}.map lists them"));
        }
        match (self.as_loaded, &self.loaded_from) {
            (Some(false), Some(source)) => failure(format!(
                "what was saved is not what was loaded from {source}: its SHA-256 is another; `cheetah verify {volume}` says \
                 which donors hold something wrong"
            )),
            _ => Ok(()),
        }
    }
}
