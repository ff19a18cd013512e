//! Small files that a command writes: names beside another file, texts that are on their disk when that is
//! said.
//!
//! Owns how they are named and written, and the words for what goes wrong. Never: what is in them, or whether
//! one that is there may be replaced (each command says why not). Called by `custody`, `manifest`, `handover`
//! and `save`. Tests: those of these.

use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// `FILE.ending`.
pub fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

pub fn cannot(what: &str, path: &Path, why: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what} {}: {why}", path.display()))
}

/// Writes a text that nothing of this name is replaced by, unless `overwrite`.
pub fn write(path: &Path, text: &str, overwrite: bool) -> Result<(), Failure> {
    let made = if overwrite { File::create(path) } else { File::create_new(path) };
    made.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|why| cannot("write", path, &why))
}
