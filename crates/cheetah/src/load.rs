//! `cheetah load`: copy a disk or the disk in an image into a volume, hash it on the way, and have it
//! checked.
//!
//! Owns: what is refused, the order of lease, copy and check, what the pool is told of them, the report, and
//! what is left when it ends early. Never: writing to the source, or bytes (`fill`). Invariants: "verified"
//! is said only when every block's checksum was confirmed by who took it, and by who holds it after the last
//! was sent, or else every byte was read back and hashed; a load that ends before its first
//! byte leaves neither volume nor lease; one that ends later leaves what it wrote, and the pool knows how far
//! it came; a volume that is made for it is never taken for an empty one; what is sealed is what was checked.
//! `report` has what is said in the end. Tests: `lab/tests/evidence.rs`.

mod report;

use crate::claims::{Claimed, recognised};
use crate::cli;
use crate::expected;
use crate::failure::{Exit, Failure};
use crate::fill::{self, CHUNK_BYTES, Copied, Hashes, Progress};
use crate::health::LOADING;
use crate::mapfile;
use crate::on_disk;
use crate::output;
use crate::pool::{encryption, find, unexpected, volume};
use crate::proofs::Roots;
use crate::seal;
use crate::signals::Signals;
use crate::verify;
use cheetah_client::{Lease, Volume};
use cheetah_core::api::{Answer, Call, Create, RefusalCode, Size, VolumeHealth, VolumeStatus};
use cheetah_core::content::{Check, Fill, FillFrom, Loaded, OnDisk, Source, Tell, ToLoad};
use cheetah_core::text::written;
use cheetah_core::units::show_bytes;
use cheetah_rim::control::{CallError, Client, own_name};
use cheetah_rim::descriptors;
use cheetah_rim::volume::Tuning;
use cheetah_source::{Options, Source as AnySource, SourceError, is_address};
use report::{CheckedBy, LoadReport, print, verdict};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often the pool is told how far it is.
const TELL_EACH: Duration = Duration::from_secs(1);

pub async fn load(options: cli::Load) -> Result<(), Failure> {
    // An image may have more files than a process may open unless it asks.
    let _ = descriptors::raise();
    if options.memory.is_some() {
        return Err(Failure::usage(
            "load has all of a disk in memory, so it takes no --memory: `cheetah open SOURCE VOLUME --memory SIZE` keeps a \
             part of it, and reads the rest again",
        ));
    }
    options.map.as_deref().map_or(Ok(()), mapfile::check)?;
    let source = opened(&options).await?;
    let file = written(options.file.as_os_str().as_bytes());
    if let Some(line) = recognised(&*source, &file).filter(|_| !options.json.json) {
        output::line(&line);
    }
    let progress = Arc::new(Progress::default());
    // What cannot be read at all is found out before anything is made or overwritten.
    let first = usize::try_from(source.size()).map_or(CHUNK_BYTES, |size| size.min(CHUNK_BYTES));
    let (reads, noted) = (source.clone(), progress.clone());
    blocking(move || fill::read_source(&*reads, &noted, 0, first)).await?;
    let pool = find(&options.pool).await?;
    // From here on there is something to take back.
    let signals = Signals::listen()?;
    let wanted = Fill { source: described(&*source), from: way(&options) };
    let made = ensure_volume(&pool, &options.name, &wanted.source, &options).await?;
    crate::custody::say_case(&pool, &options.name, &options.case).await?;
    let lease = match Lease::for_filling(&pool, &options.name, wanted, seals(&options)).await {
        Ok(lease) => lease,
        Err(error) => {
            take_back(&pool, &options.name, made).await;
            return Err(error.into());
        }
    };
    let known = lease.granted.content.load.as_ref().map_or(0, |load| load.bytes_done);
    let name = options.name.clone();
    let mut loading =
        Loading { lease, name, made, known, progress, signals, told: Tell::default(), on_disk: None };
    let size = source.size();
    let ended = loading.run(source, &options).await;
    // What was read before it ended early is worth knowing too.
    let mapped = loading.write_map(size, &options);
    let report = ended?;
    print(&report, &options)?;
    verdict(&report, &options)?;
    mapped
}

async fn opened(options: &cli::Load) -> Result<Arc<dyn AnySource>, Failure> {
    let (file, patience) = (options.file.clone(), Duration::from_secs(options.patience));
    let how = Options { raw: options.raw, mounted: options.mounted, patience };
    blocking(move || cheetah_source::open(&file, &how).map(Arc::from).map_err(|error| not_opened(&error)))
        .await
}

/// What may wait for a disk or a server does so beside the runtime.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Failure::failed(e.to_string()))?
}

fn way(options: &cli::Load) -> FillFrom {
    match (options.overwrite, options.resume) {
        (true, _) => FillFrom::Overwrite,
        (false, true) => FillFrom::Resume,
        (false, false) => FillFrom::Fresh,
    }
}

/// Whether it is to be sealed: not what nobody checked, for that may have to be loaded again.
fn seals(options: &cli::Load) -> bool {
    !options.writable && !options.no_verify
}

/// The source as the pool keeps it.
pub fn described(source: &dyn AnySource) -> Source {
    let path = source.path();
    let name = match path.to_str().filter(|_| is_address(path)) {
        // It names a socket of this machine.
        Some(address) if address.starts_with("nbd+unix:") || address.starts_with("nbds+unix:") => {
            written(address.as_bytes())
        }
        // What an address asks with may be what opens a door.
        Some(address) => written(address.split(['?', '#']).next().unwrap_or_default().as_bytes()),
        None => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
            written(path.as_os_str().as_bytes())
        }
    };
    let (size, checksummed) = (source.size(), source.is_checksummed());
    Source { name, size, identity: written(source.identity().as_bytes()), checksummed }
}

/// Undoes what was made for a load of which nothing was written.
async fn take_back(pool: &Client, name: &str, made: bool) {
    if made {
        // One that cannot be deleted is incomplete, and says so.
        let _ = pool.call(Call::Delete { name: name.to_owned() }).await;
    }
}

/// A load with its lease.
struct Loading {
    lease: Lease,
    name: String,
    /// The volume was made for it.
    made: bool,
    /// So much of it was written by a load before.
    known: u64,
    progress: Arc<Progress>,
    signals: Signals,
    /// What the pool heard last.
    told: Tell,
    /// Once all is here.
    on_disk: Option<Box<OnDisk>>,
}

/// How a part of a load ended before its end.
enum Broken {
    By(Failure),
    /// Somebody wants it to end.
    Told,
}

impl Loading {
    async fn run(&mut self, source: Arc<dyn AnySource>, options: &cli::Load) -> Result<LoadReport, Failure> {
        let volume = match Volume::start(&self.lease, Tuning::default()) {
            Ok(volume) => volume,
            Err(error) => {
                self.give_back().await;
                return Err(error.into());
            }
        };
        volume.set_place(LOADING);
        let copied = self.copy_and_check(&volume, source, options).await;
        volume.close().await;
        let copied_all = self.told.loaded.is_some();
        if !copied_all {
            self.tell_progress().await;
        }
        self.give_back().await;
        copied.map_err(|broken| self.explain(broken, copied_all, options))
    }

    async fn copy_and_check(
        &mut self,
        volume: &Volume,
        source: Arc<dyn AnySource>,
        options: &cli::Load,
    ) -> Result<LoadReport, Broken> {
        let notes = volume.ready().await.map_err(|error| Broken::By(error.into()))?;
        notes.iter().for_each(|note| output::note(note));
        let handle = volume.handle();
        let (started, bytes) = (Instant::now(), source.size());
        let (worker, progress, known) = (handle.clone(), self.progress.clone(), self.known);
        let proves = self.is_to_be_sealed(bytes, volume.size(), options);
        let (claims, what) = (source.claims(), source.describe());
        let (checksummed, is_file) = (source.is_checksummed(), source.is_bare());
        let given = options.expect.clone();
        let copying = tokio::task::spawn_blocking(move || {
            let expected = expected::expected(&*source, &given);
            let copied = fill::copy(&*source, &worker, known, proves, &progress)?;
            Ok((copied, source.changed(), expected, on_disk::of_source(&*source)))
        });
        let (copied, file_changed, expected, on_disk) = self.watch(copying).await?;
        self.on_disk = Some(Box::new(on_disk.clone()));
        if self.lease.granted.map.write_back {
            volume.flush().await.map_err(|error| Broken::By(error.into()))?;
        }
        let Copied { file_hashes, roots, zero_bytes, confirmed, hashing } = copied;
        let seconds = started.elapsed().as_secs_f64().max(1e-6);
        self.tell_loaded(&file_hashes, Check::No, file_changed.as_ref()).await?;
        let by_donors = match options.no_verify || options.read_back {
            true => None,
            false => self.checked_by_donors(volume).await?,
        };
        let (mut verified, mut volume_hashes) = (by_donors == Some(true), None);
        let checked_by = match by_donors {
            Some(_) => CheckedBy::Donors,
            None if options.no_verify => CheckedBy::Nobody,
            None => {
                let (worker, progress) = (handle.clone(), self.progress.clone());
                let reading = tokio::task::spawn_blocking(move || {
                    fill::read_back(&worker, bytes, confirmed, hashing, &progress)
                });
                let read = self.watch(reading).await?;
                verified = read == file_hashes;
                volume_hashes = Some(read);
                CheckedBy::ReadingBack
            }
        };
        if checked_by != CheckedBy::Nobody {
            let check = if verified { Check::Same } else { Check::Differs };
            self.tell_loaded(&file_hashes, check, file_changed.as_ref()).await?;
        }
        let mut report = LoadReport {
            file: written(options.file.as_os_str().as_bytes()),
            source: what,
            checksummed,
            volume: self.name.clone(),
            bytes,
            zero_bytes,
            resumed_bytes: confirmed,
            seconds,
            bytes_per_second: bytes as f64 / seconds,
            verified,
            checked_by,
            claims: Claimed::new(claims, &file_hashes),
            expected: expected::compared(expected, &file_hashes),
            is_file,
            file_hashes,
            volume_hashes,
            volume_bytes: volume.size(),
            unreadable: self.progress.unreadable(),
            file_changed,
            on_disk,
            sealed: None,
        };
        if let Some(roots) = roots {
            self.seal(roots, &mut report).await?;
        }
        Ok(report)
    }

    /// Whether the volume will be the disk, and nothing else: only then nobody is to change it.
    fn is_to_be_sealed(&self, bytes: u64, volume_bytes: u64, options: &cli::Load) -> bool {
        if !seals(options) {
            return false;
        }
        let name = &self.name;
        if volume_bytes != bytes {
            output::note(&format!(
                "volume '{name}' is larger than its source, and so not sealed: `cheetah seal {name}` seals it as it is"
            ));
            return false;
        }
        let has_room = self.lease.granted.map.proofs.is_some();
        if !has_room {
            output::note(&seal::no_room(name, bytes).message);
        }
        has_room
    }

    /// What is not what it was to be may have to be loaded again, and is not sealed.
    async fn seal(&mut self, roots: Roots, report: &mut LoadReport) -> Result<(), Broken> {
        if !report.is_right(&self.name) {
            return Ok(());
        }
        let by_reading = report.checked_by == CheckedBy::ReadingBack;
        let sealing = roots.sealing(&report.file_hashes, by_reading);
        let blake3 = sealing.blake3();
        seal::tell_sealed(&self.lease, sealing).await.map_err(Broken::By)?;
        report.sealed = Some(blake3);
        Ok(())
    }

    /// Whether donors hold what they confirmed when it was sent; none where they cannot say that of all of
    /// it.
    async fn checked_by_donors(&mut self, volume: &Volume) -> Result<Option<bool>, Broken> {
        tokio::select! {
            checked = verify::check(volume) => {
                let checked = checked.map_err(Broken::By)?;
                Ok(checked.is_of_all().then_some(checked.blocks_left == 0))
            }
            _ = self.signals.next() => Err(Broken::Told),
        }
    }

    /// Waits for a part of the work, tells the pool how far it is, and hears who wants it to end.
    async fn watch<T>(&mut self, mut work: JoinHandle<Result<T, Failure>>) -> Result<T, Broken> {
        let mut tick = tokio::time::interval(TELL_EACH);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    let done = done.map_err(|e| Broken::By(Failure::failed(e.to_string())))?;
                    return done.map_err(Broken::By);
                }
                _ = self.signals.next() => {
                    self.progress.stop();
                    return Err(Broken::Told);
                }
                _ = tick.tick() => self.tell_progress().await,
            }
        }
    }

    /// How far it is, if the pool does not know that yet. What cannot be told now is told next time.
    async fn tell_progress(&mut self) {
        if self.told.loaded.is_some() {
            return;
        }
        // What an earlier load wrote is there until this one writes.
        let done = match self.progress.has_begun() {
            true => self.progress.done(),
            false => self.progress.done().max(self.known),
        };
        let news = Tell { bytes_done: Some(done), unreadable: self.progress.unreadable(), ..Tell::default() };
        if news != self.told && self.lease.tell(news.clone()).await.is_ok() {
            self.told = news;
        }
    }

    async fn tell_loaded(
        &mut self,
        hashes: &Hashes,
        check: Check,
        changed: Option<&String>,
    ) -> Result<(), Broken> {
        let Hashes { md5, sha256, .. } = hashes.clone();
        let (unreadable, changed) = (self.progress.unreadable(), changed.cloned());
        let unsealed = None;
        let loaded = Some(Box::new(Loaded { md5, sha256, check, changed, unsealed, unreadable }));
        let news = Tell { loaded, on_disk: self.on_disk.clone(), ..Tell::default() };
        let Loading { lease, signals, .. } = self;
        tokio::select! {
            told = tell_until_heard(lease, &news) => told.map_err(Broken::By)?,
            _ = signals.next() => return Err(Broken::Told),
        }
        self.told = news;
        Ok(())
    }

    fn write_map(&self, size: u64, options: &cli::Load) -> Result<(), Failure> {
        let Some(path) = &options.map else { return Ok(()) };
        mapfile::write(path, size, self.progress.done(), &self.progress.unreadable())
    }

    /// Of a load that wrote nothing, the volume goes as well if it was made for it.
    async fn give_back(&mut self) {
        let untouched = !self.progress.has_begun() && self.known == 0 && self.told.loaded.is_none();
        if untouched {
            let _ = self.lease.tell(Tell { untouched: true, ..Tell::default() }).await;
        }
        let _ = self.lease.give_back().await;
        if untouched {
            take_back(self.lease.pool(), &self.name, self.made).await;
        }
    }

    /// What is left, and how to go on.
    fn explain(&self, broken: Broken, copied_all: bool, options: &cli::Load) -> Failure {
        let (name, file) = (&self.name, options.file.display());
        let resume = format!("`cheetah load {file} {name} --resume`");
        let mut failure = match broken {
            Broken::Told => Failure::failed("interrupted"),
            Broken::By(failure) => failure,
        };
        let left = if copied_all {
            format!("volume '{name}' holds all of the file, but is not verified: {resume} checks it")
        } else if self.progress.has_begun() || self.known > 0 {
            let done =
                show_bytes(self.progress.done().max(if self.progress.has_begun() { 0 } else { self.known }));
            format!(
                "volume '{name}' is incomplete, with {done} loaded: {resume} goes on, --overwrite begins anew"
            )
        } else if self.made {
            "nothing was loaded, and the volume that was made for it is deleted again".to_owned()
        } else {
            format!("nothing was loaded into volume '{name}'")
        };
        failure.message = format!("{}; {left}", failure.message);
        failure
    }
}

/// What was copied is no less for a coordinator that is away: the load waits for it, as attachments do.
pub async fn tell_until_heard(lease: &Lease, news: &Tell) -> Result<(), Failure> {
    let mut said = false;
    loop {
        let failure = match lease.tell(news.clone()).await.map_err(Failure::from) {
            Err(failure) if is_away(&failure) => failure,
            told => return told,
        };
        if !std::mem::replace(&mut said, true) {
            output::note(&format!(
                "volume '{}' holds all of the file, and the pool cannot be told so yet, trying again each second: {}",
                lease.volume(),
                failure.text()
            ));
        }
        tokio::time::sleep(TELL_EACH).await;
    }
}

/// Whether a later call may be answered: by this coordinator, or by the pool's own in the place of another's.
fn is_away(failure: &Failure) -> bool {
    ["unreachable", "standby", "unavailable", "other_pool", "not_believed"].contains(&failure.code)
}

/// A container that is loaded as it stands has the right hashes, and no tool finds a file system on it.
pub fn not_opened(error: &SourceError) -> Failure {
    match error {
        SourceError::Refused { .. } => {
            Failure::new(Exit::Refused, format!("{error}; or load it as it stands with --raw"))
        }
        SourceError::InUse { .. } => Failure::new(Exit::Refused, error),
        _ => Failure::failed(error.to_string()),
    }
}

/// A volume that does not exist yet is made as large as the file.
/// Answers whether it was.
async fn ensure_volume(
    pool: &Client,
    name: &str,
    source: &Source,
    options: &cli::Load,
) -> Result<bool, Failure> {
    let size = source.size;
    match pool.call(Call::Show { name: name.to_owned() }).await {
        Ok(Answer::Volume(detail)) => {
            check_room(&detail.status, size, options)?;
            if options.encrypt.encrypt && !detail.status.encrypted {
                return Err(Failure::new(Exit::Refused, not_encrypted(name)));
            }
            Ok(false)
        }
        Ok(other) => Err(unexpected(&other)),
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound && !options.resume => {
            let load = ToLoad { source: source.clone(), by: own_name(), backed: false, memory: None };
            let create = Create {
                load: Some(Box::new(load)),
                on: options.on.on,
                encrypted: encryption(pool, name, options.encrypt)?,
                write_back: options.write_back.write_back,
                ..Create::new(name, Size::Bytes(size))
            };
            let made = volume(pool, Call::Create(create)).await?;
            if !options.json.json {
                output::line(&format!("made volume {name}: {size} bytes, {}", made.status.redundancy));
            }
            Ok(true)
        }
        Err(error) => Err(error.into()),
    }
}

pub fn not_encrypted(name: &str) -> String {
    format!(
        "volume '{name}' is there already and is not encrypted, which it cannot become: choose another name, or `cheetah \
         delete {name}`"
    )
}

/// Before the lease is taken: what ends here has not touched the volume.
fn check_room(volume: &VolumeStatus, bytes: u64, options: &cli::Load) -> Result<(), Failure> {
    let VolumeStatus { name, size, health, bytes_lost, content, .. } = volume;
    if options.overwrite || content.sealed.is_some() {
        // It is made anew, as large as the file; or the pool says why not.
        return Ok(());
    }
    if *health == VolumeHealth::Lost {
        return Err(Failure::new(
            Exit::DataLost,
            format!(
                "volume '{name}' has lost {}, and nothing whole can be loaded into it: --overwrite makes it anew on the \
                 donors that are there",
                show_bytes(*bytes_lost)
            ),
        ));
    }
    if bytes > *size {
        return Err(Failure::failed(format!(
            "{} has {bytes} bytes, volume '{name}' has {size}: `cheetah grow {name} {bytes}` makes room",
            options.file.display()
        )));
    }
    Ok(())
}
