//! `cheetah save`: a volume written to a file, hashed on the way, and read back.
//!
//! Owns: what is refused, the file until it has its name, the files beside it, and the report. Never: a
//! change of the volume, or a file that was there before without being told so. Invariants: a file of that
//! name is there only when all of it was written and is on its disk; what could not be read is zeros there,
//! listed, and ends the command with 6; "verified" is said only of a file that was read back. Called by
//! `main`. Tests: `lab/tests/save.rs`.

use crate::cli;
use crate::custody;
use crate::failure::{Exit, Failure};
use crate::fill::{self, Hashes, Hashing, Progress};
use crate::load::blocking;
use crate::mapfile;
use crate::output;
use crate::pool::{find, volume};
use crate::progress::Shown;
use crate::signals::Signals;
use cheetah_client::{Options, Volume};
use cheetah_core::api::Call;
use cheetah_core::content::{ByteRange, Content, ContentState, cover};
use cheetah_core::custody::Said;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::text::written;
use cheetah_core::units::{show_bytes, show_count};
use cheetah_rim::volume::VolumeHandle;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Of the file, read back at once.
const PIECE_BYTES: usize = 1 << 20;
/// Of the names of the hashes beside it.
const SUMS: [&str; 3] = ["md5", "sha1", "sha256"];

#[derive(Debug, Serialize)]
struct SaveReport {
    volume: String,
    file: String,
    bytes: u64,
    /// Of those, bytes that are zeros and take no room on the disk.
    zero_bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    /// With zeros where the volume could not be read.
    hashes: Hashes,
    /// The file was read back from its disk, and is what was read of the volume.
    verified: bool,
    /// Whether it is what was loaded; absent where the volume was written since, or nothing was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_loaded: Option<bool>,
    /// What was loaded: of whom these hashes are to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded_from: Option<String>,
    unreadable: Vec<ByteRange>,
    /// Beside the file.
    files: Vec<String>,
}

/// What was written.
struct Saved {
    hashes: Hashes,
    zero_bytes: u64,
    unreadable: Vec<ByteRange>,
}

pub async fn save(options: cli::Save) -> Result<(), Failure> {
    let target = Target::of(&options)?;
    let pool = find(&options.pool).await?;
    let mut signals = Signals::listen()?;
    let attach = Options { read_only: true, ..Options::default() };
    let attached = Volume::open(&pool, &options.name, &attach).await?;
    let started = Instant::now();
    let saved = write_all(&attached, &target, &mut signals).await;
    let content = volume(&pool, Call::Show { name: options.name.clone() }).await;
    let bytes = attached.size();
    // A lease that was not given back runs out by itself.
    let _ = attached.detach().await;
    let (saved, verified) = match saved {
        Ok(saved) => saved,
        Err(failure) => {
            target.give_up();
            return Err(failure);
        }
    };
    let Saved { hashes, zero_bytes, unreadable } = saved;
    let files = target.finish(bytes, &hashes, &unreadable).inspect_err(|_| target.give_up())?;
    let exported = Said::Exported {
        file: written(
            std::path::absolute(&target.file).unwrap_or(target.file.clone()).as_os_str().as_bytes(),
        ),
        bytes,
        sha256: hashes.sha256.clone(),
    };
    if let Err(why) = custody::say(&pool, &options.name, exported).await {
        output::note(&format!("the volume's log does not have that it was saved: {}", why.text()));
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-6);
    let (as_loaded, loaded_from) = match content {
        Ok(detail) => compared(&detail.status.content, bytes, &hashes),
        Err(_) => (None, None),
    };
    let report = SaveReport {
        volume: options.name.clone(),
        file: written(options.file.as_os_str().as_bytes()),
        bytes,
        zero_bytes,
        seconds,
        bytes_per_second: bytes as f64 / seconds,
        hashes,
        verified,
        as_loaded,
        loaded_from,
        unreadable,
        files,
    };
    match options.json.json {
        true => output::json(&report)?,
        false => report.lines().iter().for_each(|line| output::line(line)),
    }
    report.verdict()
}

/// Writes the file and reads it back: whether that gave the same.
async fn write_all(
    attached: &Volume,
    target: &Target,
    signals: &mut Signals,
) -> Result<(Saved, bool), Failure> {
    attached.ready().await?.iter().for_each(|note| output::note(note));
    let progress = Arc::new(Progress::default());
    let (handle, bytes, part) = (attached.handle().clone(), attached.size(), target.part.clone());
    let noted = progress.clone();
    let work = blocking(move || {
        let file = File::create_new(&part).map_err(|why| cannot("make", &part, &why))?;
        let saved = copy(&handle, bytes, &file, &part, &noted)?;
        let back = read_back(&file, bytes, &part, &noted)?;
        let verified = back == saved.hashes;
        Ok((saved, verified))
    });
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => done,
        _ = signals.next() => {
            progress.stop();
            // It has the file until it ends.
            let _ = work.await;
            Err(Failure::failed("interrupted: nothing was saved"))
        }
    }
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what} {}: {why}", path.display()))
}

/// Every byte of the volume, with zeros for what it does not give.
fn copy(
    volume: &VolumeHandle,
    bytes: u64,
    file: &File,
    path: &Path,
    progress: &Progress,
) -> Result<Saved, Failure> {
    let hashing = Hashing::start();
    let shown = Shown::start("saving", volume.name(), bytes);
    let (mut zero_bytes, mut unreadable) = (0, Vec::new());
    fill::read_in_order(volume, 0, bytes, &mut |offset, there| {
        progress.go_on()?;
        let chunk = match there {
            Ok(chunk) => chunk,
            Err(_) => Arc::new(read_past_errors(volume, offset, bytes, &mut unreadable)?),
        };
        if chunk.iter().all(|byte| *byte == 0) {
            zero_bytes += chunk.len() as u64;
        } else {
            file.write_all_at(&chunk, offset).map_err(|why| cannot("write", path, &why))?;
        }
        hashing.feed(&chunk);
        shown.inc(chunk.len() as u64);
        Ok(true)
    })?;
    shown.finish_and_clear();
    file.set_len(bytes).and_then(|()| file.sync_all()).map_err(|why| cannot("write", path, &why))?;
    Ok(Saved { hashes: hashing.finish()?, zero_bytes, unreadable })
}

/// A chunk block by block, with zeros for those that cannot be read.
fn read_past_errors(
    volume: &VolumeHandle,
    offset: u64,
    bytes: u64,
    unreadable: &mut Vec<ByteRange>,
) -> Result<Vec<u8>, Failure> {
    let end = bytes.min(offset + fill::CHUNK_BYTES as u64);
    let mut chunk = Vec::new();
    for at in (offset..end).step_by(BLOCK_BYTES as usize) {
        let len = BLOCK_BYTES.min(end - at) as usize;
        match fill::read_once(volume, at, len)? {
            Ok(block) => chunk.extend_from_slice(&block),
            Err(why) => {
                if unreadable.last().is_none_or(|last: &ByteRange| last.end() != at) {
                    output::note(&format!("volume '{}' cannot be read at byte {at}: {why}", volume.name()));
                }
                cover(unreadable, [ByteRange { offset: at, len: len as u64 }]);
                chunk.resize(chunk.len() + len, 0);
            }
        }
    }
    Ok(chunk)
}

/// From the disk, not from what the kernel remembers of writing it.
fn read_back(file: &File, bytes: u64, path: &Path, progress: &Progress) -> Result<Hashes, Failure> {
    // Only asked for: a file system may keep it.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    let mut file = File::open(path).map_err(|why| cannot("read", path, &why))?;
    let hashing = Hashing::start();
    let shown = Shown::start("checking", &path.to_string_lossy(), bytes);
    loop {
        progress.go_on()?;
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece);
        if read.map_err(|why| cannot("read", path, &why))? == 0 {
            break;
        }
        shown.inc(piece.len() as u64);
        hashing.feed(&Arc::new(piece));
    }
    shown.finish_and_clear();
    hashing.finish()
}

/// Whether a volume that nobody wrote since it was loaded is what was loaded, and of what.
fn compared(content: &Content, bytes: u64, hashes: &Hashes) -> (Option<bool>, Option<String>) {
    let Some(load) = content.load.as_ref().filter(|load| load.source.size == bytes) else {
        return (None, None);
    };
    let is_untouched =
        matches!(content.state, ContentState::Loaded | ContentState::Opened) && content.written.is_none();
    let (Some(sha256), true) = (&load.sha256, is_untouched) else { return (None, None) };
    (Some(*sha256 == hashes.sha256), Some(load.source.name.clone()))
}

/// Where it goes.
struct Target {
    file: PathBuf,
    /// Its name until it is whole.
    part: PathBuf,
}

impl Target {
    fn of(options: &cli::Save) -> Result<Target, Failure> {
        let file = options.file.clone();
        let shown = file.display();
        if file.file_name().is_none() {
            return Err(Failure::usage(format!("{shown} names no file")));
        }
        match fs::symlink_metadata(&file) {
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => return Err(cannot("write", &file, &why)),
            Ok(kind) if !kind.is_file() => {
                return Err(Failure::new(
                    Exit::Refused,
                    format!("{shown} is no file, and is not written to"),
                )
                .advise("name a file that is not there yet"));
            }
            Ok(_) => {}
        }
        // A hash beside it may be another's word of other bytes, and a part another's that is at work.
        let target = Target { part: beside(&file, "part"), file };
        let sums = SUMS.map(|ending| beside(&target.file, ending));
        let all = [&target.file, &target.part].into_iter().chain(&sums);
        let there = all.into_iter().find(|name| name.symlink_metadata().is_ok()).cloned();
        if let (Some(there), false) = (there, options.overwrite) {
            let what = format!("{} is there already", there.display());
            return Err(Failure::new(Exit::Refused, what).advise("name another file, or say --overwrite"));
        }
        match fs::remove_file(&target.part) {
            Err(why) if why.kind() != ErrorKind::NotFound => Err(cannot("remove", &target.part, &why)),
            _ => Ok(target),
        }
    }

    /// An end before its end leaves nothing that looks like evidence.
    fn give_up(&self) {
        let _ = fs::remove_file(&self.part);
    }

    /// Gives the file its name, and writes what goes beside it: those names.
    fn finish(&self, bytes: u64, hashes: &Hashes, unreadable: &[ByteRange]) -> Result<Vec<String>, Failure> {
        let name = self.file.file_name().unwrap_or_default();
        let mut files = Vec::new();
        let sums = [&hashes.md5, &hashes.sha1, &hashes.sha256];
        for (ending, digits) in SUMS.into_iter().zip(sums) {
            let path = beside(&self.file, ending);
            // As md5sum and its kin write and check it.
            let line = [digits.as_bytes(), b"  ", name.as_bytes(), b"\n"].concat();
            fs::write(&path, line).map_err(|why| cannot("write", &path, &why))?;
            files.push(path);
        }
        if !unreadable.is_empty() {
            let path = beside(&self.file, "map");
            mapfile::write(&path, bytes, bytes, unreadable)?;
            files.push(path);
        }
        fs::rename(&self.part, &self.file).map_err(|why| cannot("write", &self.file, &why))?;
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|why| cannot("write", folder, &why))?;
        Ok(files.iter().map(|path| written(path.as_os_str().as_bytes())).collect())
    }
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

impl SaveReport {
    fn lines(&self) -> Vec<String> {
        let SaveReport { volume, file, bytes, zero_bytes, seconds, bytes_per_second, hashes, .. } = self;
        let (shown, rate) = (show_bytes(*bytes), show_bytes(*bytes_per_second as u64));
        let zeros = show_bytes(*zero_bytes);
        let mut lines = vec![
            format!(
                "saved volume '{volume}' to {file}: {shown}, of which {zeros} zeros, in {seconds:.1} s ({rate}/s)"
            ),
            format!("MD5 {}", hashes.md5),
            format!("SHA-1 {}", hashes.sha1),
            format!("SHA-256 {}", hashes.sha256),
        ];
        if self.verified {
            lines.push("verified: the file was read back, and is what was read of the volume".to_owned());
        }
        match (self.as_loaded, &self.loaded_from) {
            (Some(true), Some(source)) => lines.push(format!("it is what was loaded from {source}")),
            (None, _) => lines.push(
                "no hash of a load is there to compare with: nothing was loaded, or tools wrote since"
                    .to_owned(),
            ),
            _ => {}
        }
        lines.push(format!("beside it: {}", self.files.join(", ")));
        lines
    }

    fn verdict(&self) -> Result<(), Failure> {
        let SaveReport { volume, file, unreadable, .. } = self;
        let failure = |text: String| Err(Failure::new(Exit::DataLost, text));
        if !self.verified {
            return failure(format!(
                "{file} does not hold what was written to it: do not use it; its disk is bad"
            ));
        }
        if !unreadable.is_empty() {
            let lost: u64 = unreadable.iter().map(|range| range.len).sum();
            return failure(format!(
                "{} of volume '{volume}' could not be read, in {}: {file} has zeros there, and {file}.map lists them",
                show_bytes(lost),
                show_count(unreadable.len() as u64, "range")
            ));
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
