//! A volume as an E01, which libewf's own programs write and check.
//!
//! Owns: what `ewfacquirestream` is told and fed, and whether the set that it made holds that, as
//! `ewfverify` says and as our own reader does. Never: its names (`target`). Invariant: nobody calls a
//! set right by the exit code of who wrote it, which is 0 also when its input ends early. Called by
//! `save`. Tests: `lab/tests/save.rs`.

use super::Sink;
use super::tool::Tool;
use crate::chunks;
use crate::cli_saving::{Compression, E01};
use crate::failure::Failure;
use crate::files::cannot;
use crate::fill::{CHUNK_BYTES, Chunk, Hashes, Hashing, Progress};
use crate::progress::Shown;
use cheetah_core::units::show_bytes;
use cheetah_rim::descriptors;
use cheetah_source::{Options, Source};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Writes it, and checks it.
const WRITER: &str = "ewfacquirestream";
const CHECKER: &str = "ewfverify";
const PACKAGE: &str = "ewf-tools";
/// A sector, as the set counts them; it cuts off what is left over.
const SECTOR_BYTES: u64 = 512;
/// What the pipe is to hold; not every user gets as much.
const PIPE_BYTES: usize = 1 << 20;
/// The smallest segment, and the largest, by its own help.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 1 << 62;
/// `.E01` to `.E99`, and `.EAA` to `.ZZZ`.
const SEGMENTS_MAX: u64 = 99 + 22 * 26 * 26;

/// Before anything is read: both programs are here. Answers what the writer is, with its version.
pub fn look(e01: &E01) -> Result<String, Failure> {
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&e01.segment) {
        let (least, most) = (show_bytes(SEGMENT_BYTES_MIN), show_bytes(SEGMENT_BYTES_MAX));
        return Err(Failure::usage(format!("a segment of an E01 has from {least} to {most}")));
    }
    let version = |name: &str| {
        let mut command = Command::new(name);
        command.arg("-V");
        Tool::start(command, PACKAGE, false)?.end(&Progress::default())
    };
    version(CHECKER)?;
    let said = version(WRITER)?.said;
    Ok(said.lines().next().unwrap_or(WRITER).trim().to_owned())
}

/// Whether a disk of this size can stand in a set.
pub fn fits(bytes: u64, e01: &E01) -> Result<(), Failure> {
    let raw = "save it raw";
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        let what = format!("an E01 has sectors of {SECTOR_BYTES} bytes, and the volume has {bytes} bytes");
        return Err(Failure::usage(what).advise(raw));
    }
    // What cannot be packed takes some more, for its checksums.
    if (bytes + bytes / 1024) / e01.segment >= SEGMENTS_MAX {
        let what = format!("an E01 has at most {SEGMENTS_MAX} segments, and the volume may need more");
        return Err(Failure::usage(what).advise("give larger ones by --segment"));
    }
    Ok(())
}

/// A set that is being written.
pub struct Writing {
    tool: Tool,
}

impl Writing {
    /// `stem` is the name without `.E01`.
    pub fn start(directory: &Path, stem: &Path, e01: &E01) -> Result<Writing, Failure> {
        let mut command = Command::new(WRITER);
        // Not `-B`, the size: with it, what comes in pieces of the pipe's choice, or ends within a chunk,
        // is stored wrong, with an exit code of 0 (libewf 20140813).
        command.args(["-q", "-d", "sha1", "-f", "encase6", "-m", "fixed", "-M", "physical"]);
        command.args(["-S", &e01.segment.to_string(), "-c", packed(e01.compression)]);
        // Without these it writes words of its own, like `case_number`.
        for (flag, text) in [
            ("-C", &e01.case),
            ("-E", &e01.evidence),
            ("-e", &e01.examiner),
            ("-D", &e01.description),
            ("-N", &e01.notes),
        ] {
            command.arg(flag).arg(text);
        }
        command.arg("-t").arg(stem).current_dir(directory);
        let tool = Tool::start(command, PACKAGE, true)?;
        if let Some(pipe) = tool.stdin() {
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        Ok(Writing { tool })
    }

    /// The input has ended: whether it has made all of the set.
    pub fn finish(self, got_all: bool, progress: &Progress) -> Result<(), Failure> {
        let early = (!got_all).then(|| format!("{WRITER} ended before it had all of the volume"));
        match self.tool.end(progress)?.fault().or(early) {
            Some(fault) => Err(Failure::failed(format!("{fault}: nothing was saved"))),
            None => Ok(()),
        }
    }
}

impl Sink for Writing {
    fn put(&mut self, chunk: &[u8], _: u64, _: bool, progress: &Progress) -> Result<bool, Failure> {
        self.tool.feed(chunk, progress)
    }
}

fn packed(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::EmptyBlock => "empty-block",
        Compression::Fast => "fast",
        Compression::Best => "best",
    }
}

/// Whether the set holds these bytes: why not, where it does not.
pub fn check(
    segments: &[PathBuf],
    bytes: u64,
    written: &Hashes,
    progress: &Progress,
) -> Result<Result<(), String>, Failure> {
    let Some(first) = segments.first() else { return Ok(Err(format!("{WRITER} has made no file"))) };
    for segment in segments {
        let file = File::open(segment).map_err(|why| cannot("read", segment, &why))?;
        file.sync_all().map_err(|why| cannot("write", segment, &why))?;
        // From the disk, not from what the kernel remembers of writing it. Only asked for.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    let mut command = Command::new(CHECKER);
    command.args(["-q", "-d", "sha1"]).arg(first).stdin(Stdio::null());
    let checker = Tool::start(command, PACKAGE, false)?;
    let read = read_back(first, bytes, written, progress);
    // What ends reading early is no word on the set.
    progress.go_on()?;
    if let Err(why) = read.unwrap_or_else(|failure| Err(failure.text())) {
        return Ok(Err(why));
    }
    Ok(checker.end(progress)?.fault().map_or(Ok(()), Err))
}

/// By the reader that `load` and `open` have.
fn read_back(
    first: &Path,
    bytes: u64,
    written: &Hashes,
    progress: &Progress,
) -> Result<Result<(), String>, Failure> {
    // Each segment is a file that is open.
    let _ = descriptors::raise();
    let source = match cheetah_source::open(first, &Options::default()) {
        Ok(source) => source,
        Err(why) => return Ok(Err(why.to_string())),
    };
    if source.size() != bytes {
        return Ok(Err(format!("it holds {} bytes, and the volume has {bytes}", source.size())));
    }
    let (read, unreadable) = read_all(&*source, progress)?;
    if let Some(why) = unreadable {
        return Ok(Err(why));
    }
    if read != *written {
        return Ok(Err("what is read of it has other hashes than what was read of the volume".to_owned()));
    }
    let claims = source.claims();
    for (name, claimed, is) in [("MD5", claims.md5, &written.md5), ("SHA-1", claims.sha1, &written.sha1)] {
        if claimed.as_ref() != Some(is) {
            let claimed = claimed.as_deref().unwrap_or("none");
            return Ok(Err(format!("the {name} that is written in it is {claimed}, and has to be {is}")));
        }
    }
    Ok(Ok(()))
}

/// The hashes, and what could not be read first, if anything could not.
fn read_all(source: &dyn Source, progress: &Progress) -> Result<(Hashes, Option<String>), Failure> {
    let (bytes, step) = (source.size(), CHUNK_BYTES as u64);
    let places = (0..bytes.div_ceil(step)).map(move |at| {
        let offset = at * step;
        (offset, usize::try_from(step.min(bytes - offset)).unwrap_or(CHUNK_BYTES))
    });
    let hashing = Hashing::start();
    let shown = Shown::start("checking", &source.path().to_string_lossy(), bytes);
    let mut unreadable = None;
    chunks::read_in_order(source, &places, &mut |chunk| {
        progress.go_on()?;
        if let (None, Some(bad)) = (&unreadable, chunk.unreadable.first()) {
            unreadable =
                Some(format!("byte {} of the disk in it cannot be read: {}", bad.range.start, bad.why));
        }
        shown.inc(chunk.bytes.len() as u64);
        hashing.feed(&Chunk::new(chunk.bytes));
        Ok(())
    })?;
    shown.finish_and_clear();
    Ok((hashing.finish()?, unreadable))
}

/// Hashes of the segments themselves, as files.
pub fn hash_files(files: &[PathBuf], progress: &Progress) -> Result<Vec<(u64, Hashes)>, Failure> {
    let mut all = Vec::new();
    for path in files {
        let mut bytes = 0;
        let file = File::open(path).map_err(|why| cannot("read", path, &why))?;
        let size = file.metadata().map_or(0, |file| file.len());
        let shown = Shown::start("hashing", &path.to_string_lossy(), size);
        let hashing = Hashing::start();
        super::pieces(file, path, &mut |piece: &Arc<Vec<u8>>| {
            progress.go_on()?;
            bytes += piece.len() as u64;
            shown.inc(piece.len() as u64);
            hashing.feed(piece);
            Ok(())
        })?;
        shown.finish_and_clear();
        all.push((bytes, hashing.finish()?));
    }
    Ok(all)
}
