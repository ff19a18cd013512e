//! `cheetah seal`: a volume that nobody changes any more.
//!
//! Owns what is read and proved before that. Never: the rule of who may write a sealed volume
//! (`core::coordinator::seal`), or the checks of readers (`rim::volume::proving`). Invariants: nothing is
//! sealed that could not be read to its end, but for what its source could not give; nothing that was loaded
//! is sealed as something else. Called by `main`, `load` and `filler`. Tests: `lab/tests/seal.rs`.

use crate::cli;
use crate::failure::{Exit, Failure};
use crate::fill::{self, Hashes, Hashing, Progress};
use crate::load::{blocking, tell_until_heard};
use crate::output;
use crate::pool::find;
use crate::progress::Shown;
use crate::proofs::{Proving, Roots};
use crate::signals::Signals;
use cheetah_client::{Lease, Volume};
use cheetah_core::content::{ByteRange, Content, Sealing, Tell, cover};
use cheetah_core::proofs::{Root, Tree};
use cheetah_core::units::show_bytes;
use cheetah_rim::control::Client;
use cheetah_rim::volume::{Tuning, VolumeError, VolumeHandle};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// What a disk gives or does not give.
const SECTOR_BYTES: u64 = 512;

#[derive(Debug, Serialize)]
pub struct SealReport {
    volume: String,
    bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    /// BLAKE3 of all of it.
    pub blake3: Root,
    hashes: Hashes,
    /// What its source could not give: zeros stand for it in the hashes.
    unreadable: Vec<ByteRange>,
}

impl SealReport {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "sealed {} of volume {} in {:.1} s, {}/s: nobody changes it any more, and every block that is read is \
                 checked",
                show_bytes(self.bytes),
                self.volume,
                self.seconds,
                show_bytes(self.bytes_per_second as u64)
            ),
            format!("BLAKE3  {}", self.blake3),
            format!("MD5     {}", self.hashes.md5),
            format!("SHA-1   {}", self.hashes.sha1),
            format!("SHA-256 {}", self.hashes.sha256),
        ];
        let line = |ByteRange { offset, len }: &ByteRange| {
            format!("unreadable      {len} bytes from {offset} on: zeros stand for them in the hashes")
        };
        lines.extend(self.unreadable.iter().map(line));
        lines
    }
}

pub async fn seal(options: cli::Named) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let mut signals = Signals::listen()?;
    let told = async move {
        let _ = signals.next().await;
    };
    let report = seal_by_reading(&pool, &options.name, told).await?;
    match options.json.json {
        true => output::json(&report),
        false => {
            report.lines().iter().for_each(|line| output::line(line));
            Ok(())
        }
    }
}

/// Seals a volume as what donors give back of it, unless it is told to end.
pub async fn seal_by_reading(
    pool: &Client,
    name: &str,
    told: impl Future<Output = ()>,
) -> Result<SealReport, Failure> {
    let lease = Lease::for_sealing(pool, name).await?;
    let sealed = seal_under(&lease, told).await;
    // One that is not given back runs out by itself.
    let _ = lease.give_back().await;
    sealed
}

async fn seal_under(lease: &Lease, told: impl Future<Output = ()>) -> Result<SealReport, Failure> {
    let (name, map) = (lease.volume().to_owned(), &lease.granted.map);
    if map.proofs.is_none() {
        return Err(no_room(&name, map.size));
    }
    let volume = Volume::start(lease, Tuning::default())?;
    volume.set_place("sealing");
    let read = read_and_prove(&volume, &lease.granted.content, told).await;
    let sealed = match read {
        Ok((report, sealing)) => {
            if map.write_back {
                volume.flush().await?;
            }
            let told = tell_sealed(lease, sealing).await;
            told.map(|()| report)
        }
        Err(failure) => Err(failure),
    };
    volume.close().await;
    sealed
}

/// From here on nobody writes it. Waits for a coordinator that is away.
pub async fn tell_sealed(lease: &Lease, sealing: Sealing) -> Result<(), Failure> {
    tell_until_heard(lease, &Tell { sealed: Some(Box::new(sealing)), ..Tell::default() }).await
}

pub fn no_room(name: &str, size: u64) -> Failure {
    let why = takes_room(size);
    Failure::new(
        Exit::PoolFull,
        format!("volume '{name}' is not sealed: {why}: lend more memory, then `cheetah seal {name}`"),
    )
}

/// Why there are no proofs.
pub fn takes_room(size: u64) -> String {
    let room = show_bytes(Tree::new(size).bytes());
    format!("the proofs of its blocks take {room} behind its end, and the pool has no room for as much")
}

async fn read_and_prove(
    volume: &Volume,
    content: &Content,
    told: impl Future<Output = ()>,
) -> Result<(SealReport, Sealing), Failure> {
    volume.ready().await?.iter().for_each(|note| output::note(note));
    let progress = Arc::new(Progress::default());
    let (handle, bytes, noted) = (volume.handle().clone(), volume.size(), progress.clone());
    let known: Vec<ByteRange> = content.load.as_ref().map(|load| load.unreadable.clone()).unwrap_or_default();
    let is_opened = volume.lease().granted.map.backing.is_some();
    let started = Instant::now();
    let work = blocking(move || read_all(&handle, bytes, (&known, is_opened), &noted));
    let mut work = std::pin::pin!(work);
    let (hashes, roots, unreadable) = tokio::select! {
        done = &mut work => done?,
        () = told => {
            progress.stop();
            let _ = work.await;
            return Err(Failure::failed("interrupted: nothing was sealed"));
        }
    };
    let seconds = started.elapsed().as_secs_f64().max(1e-6);
    let name = volume.lease().volume().to_owned();
    check_as_loaded(content, &name, bytes, &hashes)?;
    let sealing = roots.sealing(&hashes, true);
    let report = SealReport {
        volume: name,
        bytes,
        seconds,
        bytes_per_second: bytes as f64 / seconds,
        blake3: sealing.blake3(),
        hashes,
        unreadable,
    };
    Ok((report, sealing))
}

fn check_as_loaded(content: &Content, name: &str, bytes: u64, hashes: &Hashes) -> Result<(), Failure> {
    let load = content.load.as_ref().filter(|load| load.source.size == bytes && content.written.is_none());
    let Some(sha256) = load.and_then(|load| load.sha256.as_ref()) else { return Ok(()) };
    if *sha256 == hashes.sha256 {
        return Ok(());
    }
    Err(Failure::new(
        Exit::DataLost,
        format!(
            "volume '{name}' is not sealed: it has the SHA-256 {}, and {sha256} was loaded; `cheetah verify {name}` says which \
             donors hold something else",
            hashes.sha256
        ),
    ))
}

/// All of the volume, with zeros for what its source could not give. Of that donors have nothing where it was
/// opened.
fn read_all(
    volume: &VolumeHandle,
    bytes: u64,
    (known, is_opened): (&[ByteRange], bool),
    progress: &Progress,
) -> Result<(Hashes, Roots, Vec<ByteRange>), Failure> {
    let absent = if is_opened { known } else { &[] };
    let (hashing, proving) = (Hashing::start(), Proving::start(volume, bytes));
    let shown = Shown::start("sealing", volume.name(), bytes);
    let mut unreadable = Vec::new();
    fill::read_in_order(volume, 0, bytes, &mut |offset, there| {
        progress.go_on()?;
        let chunk = match there {
            Ok(chunk) => chunk,
            // As a source is read: what stands in a block beside a bad sector is evidence.
            Err(_) => {
                Arc::new(fill::read_past_errors(volume, offset, bytes, SECTOR_BYTES, &mut |range, why| {
                    check_known(volume.name(), known, range, why)?;
                    cover(&mut unreadable, [range]);
                    Ok(())
                })?)
            }
        };
        hashing.feed(&chunk);
        proving.feed(&chunk);
        proving.reached(offset + chunk.len() as u64, absent)?;
        shown.inc(chunk.len() as u64);
        Ok(true)
    })?;
    shown.finish_and_clear();
    Ok((hashing.finish()?, proving.finish()?, unreadable))
}

/// Whether the source could not give a part of it: whatever else cannot be read is lost.
fn check_known(volume: &str, known: &[ByteRange], range: ByteRange, why: VolumeError) -> Result<(), Failure> {
    if known.iter().any(|known| known.offset < range.end() && range.offset < known.end()) {
        return Ok(());
    }
    let at = range.offset;
    Err(Failure::new(
        Exit::DataLost,
        format!(
            "volume '{volume}' is not sealed: byte {at} cannot be read ({why}): `cheetah show {volume}` says what is lost"
        ),
    ))
}
