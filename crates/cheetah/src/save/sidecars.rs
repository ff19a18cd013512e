//! The files beside a saved one: hashes in the forms of md5sum and its kin, of hashdeep and of dcfldd,
//! DFXML, and a map of what could not be read.
//!
//! Owns: which there are, what they are called, and their text (of DFXML: `dfxml`). Never: hashing.
//! Invariants: none is written over one that was there unasked; none stays beside a file that it says
//! nothing of. Called by `save` and `target`. Tests: below; `lab/tests/save.rs` has the programs that
//! read them.

use super::dfxml;
use super::piecewise::Logs;
use crate::cli_saving::{Format, Sidecar};
use crate::failure::Failure;
use crate::files::{beside, cannot};
use crate::fill::Hashes;
use crate::mapfile;
use cheetah_core::content::ByteRange;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Of all that may ever stand beside a file.
pub const ENDINGS: [&str; 8] = ["md5", "sha1", "sha256", "hashdeep", "dfxml", "md5log", "sha256log", MAP];
pub const MAP: &str = "map";

/// A file, by its name without a path, as it is on the disk.
pub struct Hashed {
    pub name: OsString,
    pub bytes: u64,
    pub hashes: Hashes,
}

/// All that they say.
pub struct Facts<'a> {
    pub volume: &'a str,
    pub format: Format,
    /// Of the volume.
    pub bytes: u64,
    pub hashes: &'a Hashes,
    pub unreadable: &'a [ByteRange],
    pub logs: Option<&'a Logs>,
    /// Of the saved files: the image, or the segments of a set.
    pub files: Vec<Hashed>,
    /// What wrote them, beside this program.
    pub writer: Option<&'a str>,
    /// Seconds since 1970.
    pub began: u64,
}

/// Which are wanted: those of the command, or those that a format has of itself.
pub fn wanted(given: Option<&[Sidecar]>, format: Format) -> Result<Vec<Sidecar>, Failure> {
    let Some(given) = given else {
        return Ok(match format {
            Format::Raw => vec![Sidecar::Md5, Sidecar::Sha1, Sidecar::Sha256],
            Format::E01 => Vec::new(),
        });
    };
    let is_none = given.contains(&Sidecar::None);
    if is_none && given.len() > 1 {
        return Err(Failure::usage("--sidecars has none and others: say one or the other"));
    }
    let mut all = Vec::new();
    for sidecar in given.iter().filter(|_| !is_none) {
        if !all.contains(sidecar) {
            all.push(*sidecar);
        }
    }
    Ok(all)
}

/// A name in a line of theirs ends where the line does.
pub fn fits(name: &OsStr) -> Result<(), Failure> {
    match name.as_bytes().iter().any(|byte| byte.is_ascii_control()) {
        true => {
            Err(Failure::usage("the file's name has a control character, which no list of hashes can have")
                .advise("name another file, or say --sidecars none"))
        }
        false => Ok(()),
    }
}

/// Writes those that are wanted; when one cannot be written, none is left.
pub fn write(file: &Path, wanted: &[Sidecar], facts: &Facts<'_>) -> Result<Vec<PathBuf>, Failure> {
    let mut texts: Vec<(&str, Vec<u8>)> = wanted.iter().filter_map(|sidecar| text(*sidecar, facts)).collect();
    if let Some(logs) = facts.logs {
        texts.push(("md5log", logs.md5.clone().into_bytes()));
        texts.push(("sha256log", logs.sha256.clone().into_bytes()));
    }
    let mut made: Vec<PathBuf> = Vec::new();
    let mut write_all = || {
        for (ending, text) in &texts {
            let path = beside(file, ending);
            made.push(path.clone());
            fs::write(&path, text).map_err(|why| cannot("write", &path, &why))?;
        }
        if !facts.unreadable.is_empty() {
            let path = beside(file, MAP);
            mapfile::write(&path, facts.bytes, facts.bytes, facts.unreadable)?;
            made.push(path);
        }
        // Of a file that was there before.
        for stale in ENDINGS.map(|ending| beside(file, ending)).iter().filter(|path| !made.contains(path)) {
            if stale.is_file() {
                fs::remove_file(stale).map_err(|why| cannot("remove", stale, &why))?;
            }
        }
        Ok(())
    };
    match write_all() {
        Ok(()) => Ok(made),
        Err(failure) => {
            take_back(&made);
            Err(failure)
        }
    }
}

/// What stands beside a file that never got its name.
pub fn take_back(made: &[PathBuf]) {
    for path in made {
        let _ = fs::remove_file(path);
    }
}

fn text(sidecar: Sidecar, facts: &Facts<'_>) -> Option<(&'static str, Vec<u8>)> {
    Some(match sidecar {
        Sidecar::Md5 => ("md5", sums(facts, |hashes| &hashes.md5)),
        Sidecar::Sha1 => ("sha1", sums(facts, |hashes| &hashes.sha1)),
        Sidecar::Sha256 => ("sha256", sums(facts, |hashes| &hashes.sha256)),
        Sidecar::Hashdeep => ("hashdeep", hashdeep(facts)),
        Sidecar::Dfxml => ("dfxml", dfxml::text(facts).into_bytes()),
        Sidecar::None => return None,
    })
}

/// As md5sum and its kin write and check it.
fn sums(facts: &Facts<'_>, of: fn(&Hashes) -> &String) -> Vec<u8> {
    let mut text = Vec::new();
    for Hashed { name, hashes, .. } in &facts.files {
        text.extend_from_slice(&[of(hashes).as_bytes(), b"  ", name.as_bytes(), b"\n"].concat());
    }
    text
}

/// As hashdeep writes it with `-b`, by names without a path: what it lists may be carried elsewhere.
fn hashdeep(facts: &Facts<'_>) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let head = "%%%% HASHDEEP-1.0\n%%%% size,md5,sha1,sha256,filename\n";
    let mut text = format!("{head}## Made by cheetah {version}\n##\n").into_bytes();
    for Hashed { name, bytes, hashes } in &facts.files {
        let Hashes { md5, sha1, sha256 } = hashes;
        text.extend_from_slice(format!("{bytes},{md5},{sha1},{sha256},").as_bytes());
        text.extend_from_slice(name.as_bytes());
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_its_own_until_others_are_wanted() {
        let raw = wanted(None, Format::Raw).expect("some");
        assert_eq!(raw, [Sidecar::Md5, Sidecar::Sha1, Sidecar::Sha256]);
        assert_eq!(wanted(None, Format::E01).expect("none"), []);
        let twice = [Sidecar::Dfxml, Sidecar::Md5, Sidecar::Dfxml];
        assert_eq!(wanted(Some(&twice), Format::E01).expect("two"), [Sidecar::Dfxml, Sidecar::Md5]);
        assert_eq!(wanted(Some(&[Sidecar::None]), Format::Raw).expect("none"), []);
        assert!(wanted(Some(&[Sidecar::None, Sidecar::Md5]), Format::Raw).is_err());
    }

    #[test]
    fn a_name_stands_on_one_line() {
        assert!(fits(OsStr::new("case 7 'ü'.dd")).is_ok());
        assert!(fits(OsStr::new("a\nb.dd")).is_err());
    }
}
