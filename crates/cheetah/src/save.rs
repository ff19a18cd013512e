//! `cheetah save`: a volume written to a file, to an E01 or to stdout, hashed on the way, and read back.
//!
//! Owns: the order of it, reading the volume, and reading a raw file back. Never: a change of the volume,
//! or a file that was there before without being told so. Invariants: what could not be read is zeros
//! there, listed, and ends the command with 6; "verified" is said only of what was read back; what does
//! not read back keeps the name of a part, and has nothing beside it. Called by `main`. Files: `target`
//! has the names, `sidecars` what goes beside, with `piecewise` and `dfxml`; `ewf` has the programs that
//! write and check an E01, each a `tool`; `report` what is said. Tests: `lab/tests/save.rs`.

mod dfxml;
mod ewf;
mod piecewise;
mod report;
mod sidecars;
mod target;
mod tool;

use crate::cli_saving::{Format, Save, Sidecar};
use crate::custody;
use crate::failure::Failure;
use crate::files::cannot;
use crate::fill::{self, Chunk, Hashes, Hashing, Progress};
use crate::load::blocking;
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
use cheetah_rim::volume::VolumeHandle;
use piecewise::{Logs, Pieces};
use report::SaveReport;
use rustix::fs::{Advice, fadvise};
use sidecars::{Facts, Hashed};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use target::Target;

/// Of a file, read back at once.
const PIECE_BYTES: usize = 1 << 20;
/// What waits for a reader of stdout, after a signal.
const PATIENCE: Duration = Duration::from_secs(2);

/// All that is known before anything is read.
struct Plan {
    options: Save,
    target: Target,
    sidecars: Vec<Sidecar>,
    /// What writes an E01, with its version.
    writer: Option<String>,
}

/// What was written.
struct Saved {
    hashes: Hashes,
    zero_bytes: u64,
    unreadable: Vec<ByteRange>,
    logs: Option<Logs>,
    /// All of the volume was taken.
    is_whole: bool,
}

/// What was written, and what came of reading it back.
struct Checked {
    saved: Saved,
    /// What is wrong with it.
    fault: Option<String>,
    /// Where it lies until it has its name, and what each of these is as a file.
    parts: Vec<PathBuf>,
    files: Vec<(u64, Hashes)>,
}

/// Takes the bytes of a volume, in order.
trait Sink {
    /// `false`: it takes no more, and its end says why.
    fn put(&mut self, chunk: &[u8], offset: u64, is_zero: bool, progress: &Progress)
    -> Result<bool, Failure>;
}

pub async fn save(options: Save) -> Result<(), Failure> {
    let plan = Plan::of(options)?;
    let Plan { options, target, .. } = &plan;
    let pool = find(&options.pool).await?;
    let mut signals = Signals::listen()?;
    let attach = Options { read_only: true, ..Options::default() };
    let attached = Volume::open(&pool, &options.name, &attach).await?;
    let (started, began) = (Instant::now(), SystemTime::now());
    let checked = plan.write_all(&attached, &mut signals).await;
    let content = volume(&pool, Call::Show { name: options.name.clone() }).await;
    let bytes = attached.size();
    // A lease that was not given back runs out by itself.
    let _ = attached.detach().await;
    let checked = checked.inspect_err(|_| target.give_up())?;
    let (names, files) = plan.finish(bytes, began, &checked).inspect_err(|_| target.give_up())?;
    let copied = Said::Exported {
        file: {
            let first = names.first().unwrap_or(&target.file);
            written(std::path::absolute(first).unwrap_or_else(|_| first.clone()).as_os_str().as_bytes())
        },
        bytes,
        sha256: checked.saved.hashes.sha256.clone(),
    };
    if let Err(why) = custody::say(&pool, &options.name, copied).await {
        output::note(&format!("the volume's log does not have that it was saved: {}", why.text()));
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-6);
    let (as_loaded, loaded_from) = match content {
        Ok(detail) => compared(&detail.status.content, bytes, &checked.saved.hashes),
        Err(_) => (None, None),
    };
    let shown = |path: &PathBuf| written(path.as_os_str().as_bytes());
    let is_set = target.format == Format::E01;
    let Checked { saved: Saved { hashes, zero_bytes, unreadable, .. }, fault, .. } = checked;
    let report = SaveReport {
        volume: options.name.clone(),
        file: names.first().map_or_else(|| shown(&target.file), shown),
        format: target.format,
        bytes,
        zero_bytes,
        seconds,
        bytes_per_second: bytes as f64 / seconds,
        hashes,
        verified: fault.is_none() && !target.is_stdout(),
        fault,
        as_loaded,
        loaded_from,
        written_by: plan.writer.clone(),
        segments: names.iter().filter(|_| is_set).map(shown).collect(),
        unreadable,
        files: files.iter().map(shown).collect(),
    };
    report.print(options.json.json)?;
    report.verdict()
}

impl Plan {
    /// Refuses what cannot be, before anything is read or touched.
    fn of(options: Save) -> Result<Plan, Failure> {
        let target = Target::of(&options)?;
        let writer = match target.format {
            Format::E01 => Some(ewf::look(&options.e01)?),
            Format::Raw => {
                options.e01.note_unused();
                None
            }
        };
        let sidecars = match target.is_stdout() {
            true => Vec::new(),
            false => sidecars::wanted(options.sidecars.as_deref(), target.format)?,
        };
        Ok(Plan { options, target, sidecars, writer })
    }

    /// Writes all of the volume and reads it back.
    async fn write_all(&self, attached: &Volume, signals: &mut Signals) -> Result<Checked, Failure> {
        let bytes = attached.size();
        self.options.piecewise.map_or(Ok(()), |window| piecewise::fits(bytes, window))?;
        if self.target.format == Format::E01 {
            ewf::fits(bytes, &self.options.e01)?;
        }
        attached.ready().await?.iter().for_each(|note| output::note(note));
        let progress = Arc::new(Progress::default());
        let work = Work {
            volume: attached.handle().clone(),
            bytes,
            target: self.target.clone(),
            piecewise: self.options.piecewise,
            e01: self.options.e01.clone(),
            wants_hashes_of_files: !self.sidecars.is_empty(),
            progress: progress.clone(),
        };
        let is_stdout = self.target.is_stdout();
        let mut work = std::pin::pin!(blocking(move || work.run()));
        tokio::select! {
            done = &mut work => done,
            _ = signals.next() => {
                progress.stop();
                // It has the file until it ends. A reader of stdout may never read on.
                match is_stdout {
                    true => drop(tokio::time::timeout(PATIENCE, work).await),
                    false => drop(work.await),
                }
                Err(Failure::failed("interrupted: nothing was saved"))
            }
        }
    }

    /// Gives what reads back its names, and writes what goes beside it: both. What does not stays a part.
    fn finish(
        &self,
        bytes: u64,
        began: SystemTime,
        checked: &Checked,
    ) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Failure> {
        let Checked { saved, fault, parts, files } = checked;
        if fault.is_some() || self.target.is_stdout() {
            return Ok((parts.clone(), Vec::new()));
        }
        let named = |(part, (bytes, hashes)): (&PathBuf, &(u64, Hashes))| {
            // Of a raw image the part has a name of its own.
            let path = if self.target.format == Format::Raw { &self.target.file } else { part };
            let name = path.file_name().unwrap_or_default().to_owned();
            Hashed { name, bytes: *bytes, hashes: hashes.clone() }
        };
        let facts = Facts {
            volume: &self.options.name,
            format: self.target.format,
            bytes,
            hashes: &saved.hashes,
            unreadable: &saved.unreadable,
            logs: saved.logs.as_ref(),
            files: parts.iter().zip(files).map(named).collect(),
            writer: self.writer.as_deref(),
            began: began.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        let beside = sidecars::write(&self.target.file, &self.sidecars, &facts)?;
        let names = self.target.name(parts).inspect_err(|_| sidecars::take_back(&beside))?;
        Ok((names, beside))
    }
}

/// What a thread does that may wait.
struct Work {
    volume: VolumeHandle,
    bytes: u64,
    target: Target,
    piecewise: Option<u64>,
    e01: crate::cli_saving::E01,
    wants_hashes_of_files: bool,
    progress: Arc<Progress>,
}

impl Work {
    fn run(&self) -> Result<Checked, Failure> {
        if self.target.is_stdout() {
            let mut out = Stdout::open()?;
            let saved = self.copy(&mut out)?;
            return Ok(Checked { saved, fault: None, parts: Vec::new(), files: Vec::new() });
        }
        self.target.begin()?;
        match self.target.format {
            Format::Raw => self.raw(),
            Format::E01 => self.set(),
        }
    }

    fn raw(&self) -> Result<Checked, Failure> {
        let Work { target: Target { part, .. }, bytes, progress, .. } = self;
        let file = File::options().write(true).open(part).map_err(|why| cannot("write", part, &why))?;
        let mut sink = Sparse { file: &file, path: part };
        let saved = self.copy(&mut sink)?;
        file.set_len(*bytes).and_then(|()| file.sync_all()).map_err(|why| cannot("write", part, &why))?;
        let back = read_back(&file, *bytes, part, progress)?;
        let fault = (back != saved.hashes).then(|| "its disk gives back other bytes".to_owned());
        let files = vec![(*bytes, saved.hashes.clone())];
        Ok(Checked { saved, fault, parts: vec![part.clone()], files })
    }

    fn set(&self) -> Result<Checked, Failure> {
        let Work { target, bytes, e01, progress, .. } = self;
        let mut sink = ewf::Writing::start(&target.part, &target.stem(), e01)?;
        let saved = self.copy(&mut sink)?;
        // Where it took no more, its end says why.
        sink.finish(saved.is_whole, progress)?;
        let parts = target.written()?;
        let fault = ewf::check(&parts, *bytes, &saved.hashes, progress)?.err();
        let files = match self.wants_hashes_of_files && fault.is_none() {
            true => ewf::hash_files(&parts, progress)?,
            false => Vec::new(),
        };
        Ok(Checked { saved, fault, parts, files })
    }

    /// Every byte of the volume, with zeros for what it does not give.
    fn copy(&self, sink: &mut dyn Sink) -> Result<Saved, Failure> {
        let Work { volume, bytes, progress, .. } = self;
        let (hashing, pieces) = (Hashing::start(), self.piecewise.map(Pieces::start));
        let shown = Shown::start("saving", volume.name(), *bytes);
        let (mut zero_bytes, mut unreadable, mut is_whole) = (0, Vec::new(), true);
        fill::read_in_order(volume, 0, *bytes, &mut |offset, there| {
            progress.go_on()?;
            let chunk = match there {
                Ok(chunk) => chunk,
                Err(_) => Arc::new(fill::read_past_errors(
                    volume,
                    offset,
                    *bytes,
                    BLOCK_BYTES,
                    &mut |range, why| {
                        let ByteRange { offset: at, .. } = range;
                        if unreadable.last().is_none_or(|last: &ByteRange| last.end() != at) {
                            output::note(&format!(
                                "volume '{}' cannot be read at byte {at}: {why}",
                                volume.name()
                            ));
                        }
                        cover(&mut unreadable, [range]);
                        Ok(())
                    },
                )?),
            };
            let is_zero = chunk.iter().all(|byte| *byte == 0);
            if is_zero {
                zero_bytes += chunk.len() as u64;
            }
            is_whole = sink.put(&chunk, offset, is_zero, progress)?;
            hashing.feed(&chunk);
            if let Some(pieces) = &pieces {
                pieces.feed(&chunk);
            }
            shown.inc(chunk.len() as u64);
            Ok(is_whole)
        })?;
        shown.finish_and_clear();
        let logs = pieces.map(Pieces::finish).transpose()?;
        Ok(Saved { hashes: hashing.finish()?, zero_bytes, unreadable, logs, is_whole })
    }
}

/// A raw file, in which zeros take no room.
struct Sparse<'a> {
    file: &'a File,
    path: &'a Path,
}

impl Sink for Sparse<'_> {
    fn put(&mut self, chunk: &[u8], offset: u64, is_zero: bool, _: &Progress) -> Result<bool, Failure> {
        if !is_zero {
            self.file.write_all_at(chunk, offset).map_err(|why| cannot("write", self.path, &why))?;
        }
        Ok(true)
    }
}

/// Whoever reads it.
struct Stdout(File);

impl Stdout {
    /// Not by Rust's own, which looks for the ends of lines in it.
    fn open() -> Result<Stdout, Failure> {
        let out = io::stdout().as_fd().try_clone_to_owned();
        out.map(|out| Stdout(File::from(out))).map_err(|why| cannot("write", Path::new("stdout"), &why))
    }
}

impl Sink for Stdout {
    fn put(&mut self, chunk: &[u8], offset: u64, _: bool, _: &Progress) -> Result<bool, Failure> {
        self.0.write_all(chunk).map(|()| true).map_err(|why| match why.kind() {
            ErrorKind::BrokenPipe => Failure::failed(format!(
                "who reads stdout ended before it had all: it got about {offset} bytes of the volume"
            )),
            _ => cannot("write", Path::new("stdout"), &why),
        })
    }
}

/// From the disk, not from what the kernel remembers of writing it.
fn read_back(file: &File, bytes: u64, path: &Path, progress: &Progress) -> Result<Hashes, Failure> {
    // Only asked for: a file system may keep it.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    let file = File::open(path).map_err(|why| cannot("read", path, &why))?;
    let hashing = Hashing::start();
    let shown = Shown::start("checking", &path.to_string_lossy(), bytes);
    pieces(file, path, &mut |piece| {
        progress.go_on()?;
        shown.inc(piece.len() as u64);
        hashing.feed(piece);
        Ok(())
    })?;
    shown.finish_and_clear();
    hashing.finish()
}

/// All of a file, piece by piece.
fn pieces(
    mut file: File,
    path: &Path,
    take: &mut dyn FnMut(&Chunk) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece);
        if read.map_err(|why| cannot("read", path, &why))? == 0 {
            return Ok(());
        }
        take(&Arc::new(piece))?;
    }
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
