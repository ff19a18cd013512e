//! Where a volume is saved to, and under which names.
//!
//! Owns: what is refused, the file or the set until it has its name, and giving it that. Never: what is
//! in it, or a file that was there before without being told so. Invariants: a file of the final name is
//! there only when all of it was written and read back; of a set the first segment, by which it is
//! opened, comes last; of a folder that is removed, only segments of a set are. Called by `save`. Tests:
//! below; `lab/tests/save.rs`.

use super::sidecars::{self, ENDINGS, MAP};
use crate::cli_saving::{Format, Save};
use crate::failure::{Exit, Failure};
use crate::files::{beside, cannot};
use crate::mapfile;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a segment begins with.
const EWF_SIGNATURE: [u8; 8] = *b"EVF\x09\x0d\x0a\xff\x00";
/// What stands for stdout.
const STDOUT: &str = "-";

#[derive(Clone, Debug)]
pub struct Target {
    pub format: Format,
    /// Of a set the first segment.
    pub file: PathBuf,
    /// Its name until it is whole: a file, or of a set a folder.
    pub part: PathBuf,
    overwrite: bool,
    is_stdout: bool,
    /// The part is of this command, and so is its end.
    has_begun: Arc<AtomicBool>,
}

impl Target {
    /// Refuses what is not to be written; nothing is touched.
    pub fn of(options: &Save) -> Result<Target, Failure> {
        let (format, file) = format_of(options)?;
        let is_stdout = file == Path::new(STDOUT);
        let (overwrite, has_begun) = (options.overwrite, Arc::default());
        let part = beside(&file, "part");
        let target = Target { format, file, part, overwrite, is_stdout, has_begun };
        if is_stdout {
            target.check_stdout(options)?;
            return Ok(target);
        }
        let Some(name) = target.file.file_name() else {
            return Err(Failure::usage(format!("{} names no file", target.file.display())));
        };
        if options.sidecars.as_deref() != Some(&[crate::cli_saving::Sidecar::None]) {
            sidecars::fits(name)?;
        }
        match fs::symlink_metadata(&target.file) {
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => return Err(cannot("write", &target.file, &why)),
            Ok(kind) if !kind.is_file() => {
                let what = format!("{} is no file, and is not written to", target.file.display());
                return Err(Failure::new(Exit::Refused, what).advise("name a file that is not there yet"));
            }
            Ok(_) => {}
        }
        target.check_names()?;
        Ok(target)
    }

    pub fn is_stdout(&self) -> bool {
        self.is_stdout
    }

    fn check_stdout(&self, options: &Save) -> Result<(), Failure> {
        let no = |what: &str| Err(Failure::usage(what).advise("name a file"));
        if self.format == Format::E01 {
            return no("an E01 cannot go to stdout: it is written in several places");
        }
        if options.sidecars.as_ref().is_some_and(|all| !all.is_empty()) || options.piecewise.is_some() {
            return no("there is nothing to put files beside when a volume goes to stdout");
        }
        if std::io::stdout().is_terminal() {
            return no("stdout is a terminal, which a volume is not written to");
        }
        Ok(())
    }

    /// A hash beside it may be another's word of other bytes, and a part another's that is at work.
    fn check_names(&self) -> Result<(), Failure> {
        let map = beside(&self.file, MAP);
        if self.overwrite {
            // Found out now and not after hours of reading.
            return if map.symlink_metadata().is_ok() { mapfile::check(&map) } else { Ok(()) };
        }
        let sides = ENDINGS.map(|ending| beside(&self.file, ending));
        let all = [&self.file, &self.part].into_iter().chain(&sides);
        let there = all.into_iter().find(|name| name.symlink_metadata().is_ok()).cloned();
        let old = match self.format {
            Format::Raw => Vec::new(),
            Format::E01 => segments(&self.folder(), &self.stem())?,
        };
        match there.or(old.into_iter().next()) {
            Some(there) => Err(is_there(&there)),
            None => Ok(()),
        }
    }

    /// `case7` of `case7.E01`.
    pub fn stem(&self) -> PathBuf {
        PathBuf::from(self.file.file_stem().unwrap_or_default())
    }

    fn folder(&self) -> PathBuf {
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }

    /// Makes the part, in place of one that was left there.
    pub fn begin(&self) -> Result<(), Failure> {
        match fs::symlink_metadata(&self.part) {
            Ok(kind) if kind.is_dir() => remove_set(&self.part, &self.stem())?,
            Ok(_) => fs::remove_file(&self.part).map_err(|why| cannot("remove", &self.part, &why))?,
            Err(_) => {}
        }
        let made = match self.format {
            Format::Raw => File::create_new(&self.part).map(drop),
            Format::E01 => fs::create_dir(&self.part),
        };
        made.map_err(|why| cannot("make", &self.part, &why))?;
        self.has_begun.store(true, Ordering::Release);
        Ok(())
    }

    /// An end before its end leaves nothing that looks like evidence. A part of another stays.
    pub fn give_up(&self) {
        if !self.has_begun.load(Ordering::Acquire) {
            return;
        }
        match self.format {
            Format::Raw => drop(fs::remove_file(&self.part)),
            Format::E01 => drop(remove_set(&self.part, &self.stem())),
        }
    }

    /// What was written, while it is the part.
    pub fn written(&self) -> Result<Vec<PathBuf>, Failure> {
        match self.format {
            Format::Raw => Ok(vec![self.part.clone()]),
            Format::E01 => segments(&self.part, &self.stem()),
        }
    }

    /// Gives what was written its names, and answers them.
    pub fn name(&self, parts: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
        let folder = self.folder();
        let names: Vec<PathBuf> = match self.format {
            Format::Raw => vec![self.file.clone()],
            Format::E01 => {
                parts.iter().map(|part| folder.join(part.file_name().unwrap_or_default())).collect()
            }
        };
        if self.format == Format::E01 {
            self.make_way(&folder, &names)?;
        }
        for (part, name) in parts.iter().zip(&names).rev() {
            fs::rename(part, name).map_err(|why| cannot("write", name, &why))?;
        }
        if self.format == Format::E01 {
            fs::remove_dir(&self.part).map_err(|why| cannot("remove", &self.part, &why))?;
        }
        File::open(&folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|why| cannot("write", &folder, &why))?;
        // As they were asked for, without the `./` of this folder.
        let shown = |name: PathBuf| self.file.with_file_name(name.file_name().unwrap_or_default());
        Ok(names.into_iter().map(shown).collect())
    }

    /// A set of fewer segments must not go on with those of an old one.
    fn make_way(&self, folder: &Path, names: &[PathBuf]) -> Result<(), Failure> {
        let old = segments(folder, &self.stem())?;
        // One of these may be a `.TXT`.
        let others = names.iter().find(|name| name.symlink_metadata().is_ok() && !old.contains(name));
        if let Some(other) = others.or(old.first().filter(|_| !self.overwrite)) {
            return Err(is_there(other));
        }
        for path in old {
            fs::remove_file(&path).map_err(|why| cannot("remove", &path, &why))?;
        }
        Ok(())
    }
}

fn is_there(path: &Path) -> Failure {
    let what = format!("{} is there already", path.display());
    Failure::new(Exit::Refused, what).advise("name another file, or say --overwrite")
}

/// What is written, and the name of its first file.
fn format_of(options: &Save) -> Result<(Format, PathBuf), Failure> {
    let file = &options.file;
    let is_e01 = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("E01"));
    match (options.format, is_e01) {
        (Some(Format::Raw), true) => Err(Failure::usage(format!(
            "{} is the name of an E01, and is to be raw: tools would take it for what it is not",
            file.display()
        ))),
        (Some(Format::Raw) | None, false) => Ok((Format::Raw, file.clone())),
        // So does ewfacquire it.
        (Some(Format::E01), false) if file.file_name() != Some(OsStr::new(STDOUT)) => {
            Ok((Format::E01, beside(file, "E01")))
        }
        (Some(Format::E01), false) => Ok((Format::E01, file.clone())),
        (_, true) => Ok((Format::E01, file.with_extension("E01"))),
    }
}

/// `E01` to `E99`, `EAA` to `ZZZ`.
fn is_segment(ending: &OsStr) -> bool {
    let [first, second, third] = ending.as_encoded_bytes() else { return false };
    let is_counted = *first == b'E' && second.is_ascii_digit() && third.is_ascii_digit();
    let is_lettered =
        (b'E'..=b'Z').contains(first) && second.is_ascii_uppercase() && third.is_ascii_uppercase();
    is_counted || is_lettered
}

/// The segments of a set in a folder, in order; by what they begin with, since `.TXT` may be one, too.
fn segments(folder: &Path, stem: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listed = fs::read_dir(folder).map_err(|why| cannot("read", folder, &why))?;
    let mut names: Vec<OsString> = Vec::new();
    for entry in listed {
        let name = entry.map_err(|why| cannot("read", folder, &why))?.file_name();
        let path = Path::new(&name);
        let is_named_so =
            path.file_stem() == Some(stem.as_os_str()) && path.extension().is_some_and(is_segment);
        if is_named_so && begins_as_one(&folder.join(&name)) {
            names.push(name);
        }
    }
    // Digits come before letters.
    names.sort();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn begins_as_one(path: &Path) -> bool {
    let mut head = Vec::new();
    let is_file = path.symlink_metadata().is_ok_and(|kind| kind.is_file());
    let mut read = || File::open(path).and_then(|file| file.take(8).read_to_end(&mut head));
    is_file && read().is_ok() && head == EWF_SIGNATURE
}

/// A part. The last segment of one that was cut off may have nothing in it yet.
fn remove_set(folder: &Path, stem: &Path) -> Result<(), Failure> {
    let listed = fs::read_dir(folder).map_err(|why| cannot("read", folder, &why))?;
    let set = segments(folder, stem)?;
    for path in listed.filter_map(Result::ok).map(|entry| entry.path()) {
        let is_empty = path.symlink_metadata().is_ok_and(|kind| kind.is_file() && kind.len() == 0);
        let is_cut_off = is_empty && path.extension().is_some_and(is_segment);
        if is_cut_off || set.contains(&path) {
            fs::remove_file(&path).map_err(|why| cannot("remove", &path, &why))?;
        }
    }
    fs::remove_dir(folder).map_err(|why| cannot("remove", folder, &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_told_by_their_names_and_come_in_order() {
        for ending in ["E01", "E99", "EAA", "EZZ", "FAA", "ZZZ"] {
            assert!(is_segment(OsStr::new(ending)), "{ending}");
        }
        for ending in ["E1", "e01", "F01", "E0A", "DD", "L01", "Ex01", "AAA"] {
            assert!(!is_segment(OsStr::new(ending)), "{ending}");
        }
        let folder = std::env::temp_dir().join(format!("cheetah-segments-{}", std::process::id()));
        fs::create_dir(&folder).expect("made");
        for name in ["a.EAA", "a.E02", "a.E01", "a.FAB", "b.E01", "a.E99"] {
            fs::write(folder.join(name), [&EWF_SIGNATURE[..], b"more"].concat()).expect("written");
        }
        fs::write(folder.join("a.TXT"), "somebody's").expect("written");
        let found = segments(&folder, Path::new("a")).expect("read");
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.E01", "a.E02", "a.E99", "a.EAA", "a.FAB"]);
        // What is no segment stays, and so does the folder.
        assert!(remove_set(&folder, Path::new("a")).is_err());
        assert!(
            folder.join("a.TXT").exists() && folder.join("b.E01").exists() && !folder.join("a.E01").exists()
        );
        fs::remove_dir_all(&folder).expect("it was made");
    }
}
