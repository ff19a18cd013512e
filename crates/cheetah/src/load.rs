//! `cheetah load`: copy a raw image into a volume, hash it on the way, read it back and compare.
//!
//! Owns: the pipeline (one reader, a thread for each hash, requests in flight to the volume), progress, the report.
//! Never: writing to the source. Invariant: "verified" is said only when every byte was read back from the
//! donors and hashed.

use crate::cli;
use crate::failure::{Exit, Failure};
use crate::health::LOADING;
use crate::output;
use crate::pool::{find, unexpected, volume};
use crate::progress::Shown;
use crate::signals::Signals;
use crate::tend::{Tended, lease_to_fill, lost_notes};
use cheetah_core::api::{Answer, Call, Create, RefusalCode, Size, VolumeHealth, VolumeStatus};
use cheetah_core::units::show_bytes;
use cheetah_rim::buffer::LARGE_BYTES;
use cheetah_rim::control::{CallError, Client};
use cheetah_rim::volume::{Completion, Op, Sink, Submission, Tuning, VolumeError, VolumeHandle};
use cheetah_source::{RawSource, part_beside};
use md5::{Digest, Md5};
use serde::Serialize;
use sha2::Sha256;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::Instant;

/// One read of the source, and one request to the volume.
const CHUNK_BYTES: usize = LARGE_BYTES;
/// Requests on their way to the donors at once.
const IN_FLIGHT: usize = 16;
/// Chunks that wait for a hash.
const HASH_BACKLOG: usize = 16;

#[derive(Debug, Serialize)]
struct LoadReport {
    file: String,
    volume: String,
    bytes: u64,
    /// Of those, bytes that were zeros and take no memory.
    zero_bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    file_hashes: Hashes,
    /// Of the same range of the volume, read back from the donors; none with --no-verify.
    volume_hashes: Option<Hashes>,
    verified: bool,
    volume_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Hashes {
    md5: String,
    sha256: String,
}

pub async fn load(options: cli::Load) -> Result<(), Failure> {
    let source = RawSource::open(&options.file).map_err(|e| Failure::failed(e.to_string()))?;
    if !options.raw {
        check_is_raw(&source, &options.file)?;
    }
    let pool = find(&options.pool).await?;
    // From here on there is something to take back.
    let mut signals = Signals::listen()?;
    let made = ensure_volume(&pool, &options.name, source.size(), &options).await?;
    let lease = lease_to_fill(&pool, &options.name).await?;
    let give_back = Call::Detach { name: options.name.clone(), token: lease.token };
    if !lease.fresh && !options.overwrite {
        let _ = pool.call(give_back).await;
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "volume '{}' was loaded or written before and may hold data, which would be overwritten: load into \
                 another volume, or say --overwrite",
                options.name
            ),
        ));
    }
    let tended = Tended::start(&pool, &lease, false, Tuning::default())?;
    tended.set_place(LOADING);
    let handle = tended.volume.clone();
    let lost = handle.settled().await;
    for note in lost_notes(&lease, &lost) {
        output::note(&note);
    }
    let (worker, wanted) = (handle.clone(), !options.no_verify);
    let file = options.file.display().to_string();
    let copying = tokio::task::spawn_blocking(move || copy_and_verify(&source, &worker, &file, wanted));
    let copied = tokio::select! {
        biased;
        copied = copying => copied.map_err(|e| Failure::failed(e.to_string())).flatten(),
        _ = signals.next() => Err(Failure::failed(format!("interrupted; volume '{}' is incomplete", options.name))),
    };
    tended.close().await;
    let _ = pool.call(give_back).await;
    let report = match copied {
        Ok(report) => report,
        Err(mut failure) => {
            // Half an image must not be taken for a whole one.
            if made && pool.call(Call::Delete { name: options.name.clone() }).await.is_ok() {
                failure.message.push_str("; it was made by this load and is deleted again");
            } else if failure.exit != Exit::DataLost {
                failure.message.push_str("; to load it again say --overwrite");
            }
            return Err(failure);
        }
    };
    print(&report, &options)?;
    match &report.volume_hashes {
        Some(read) if *read != report.file_hashes => Err(Failure::new(
            Exit::DataLost,
            format!(
                "volume '{}' does not hold what the file holds: do not use it; load it again with --overwrite",
                options.name
            ),
        )),
        _ => Ok(()),
    }
}

/// A container that is loaded as it stands has the right hashes, and no tool finds a file system on it.
fn check_is_raw(source: &RawSource, file: &Path) -> Result<(), Failure> {
    let refused = |what: String| {
        let text = format!("{} is {what}; or load it as it stands with --raw", file.display());
        Err(Failure::new(Exit::Refused, text))
    };
    if let Some(container) = source.container() {
        return refused(container.to_string());
    }
    if let Some(other) = part_beside(file, Path::exists) {
        let other = other.display();
        return refused(format!(
            "one part of several ({other} is another), and only that part would be loaded: put them together with \
             `cat`, in order, and load what comes of it"
        ));
    }
    Ok(())
}

/// A volume that does not exist yet is made as large as the file.
/// Answers whether it was.
async fn ensure_volume(pool: &Client, name: &str, size: u64, options: &cli::Load) -> Result<bool, Failure> {
    match pool.call(Call::Show { name: name.to_owned() }).await {
        Ok(Answer::Volume(detail)) => {
            check_room(&detail.status, size, options)?;
            Ok(false)
        }
        Ok(other) => Err(unexpected(&other)),
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => {
            let create = Create {
                name: name.to_owned(),
                size: Size::Bytes(size),
                redundancy: None,
                unit: None,
                follow: false,
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

/// Before the lease is taken: what ends here has not touched the volume.
fn check_room(volume: &VolumeStatus, bytes: u64, options: &cli::Load) -> Result<(), Failure> {
    let VolumeStatus { name, size, health, bytes_lost, .. } = volume;
    if *health == VolumeHealth::Lost {
        return Err(Failure::new(
            Exit::DataLost,
            format!(
                "volume '{name}' lacks {} for the want of donors that are gone, and nothing whole can be loaded into it: it is as \
                 before when they come back with what they hold; if they do not, `cheetah delete {name}`, then load again, which \
                 makes it anew",
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

fn print(report: &LoadReport, options: &cli::Load) -> Result<(), Failure> {
    if options.json.json {
        return output::json(report);
    }
    output::line(&format!(
        "loaded {} of {} into {} in {:.1} s, {}/s; {} of zeros take no memory",
        show_bytes(report.bytes),
        report.file,
        report.volume,
        report.seconds,
        show_bytes(report.bytes_per_second as u64),
        show_bytes(report.zero_bytes)
    ));
    output::line(&format!("MD5     file    {}", report.file_hashes.md5));
    if let Some(read) = &report.volume_hashes {
        output::line(&format!("        volume  {}", read.md5));
    }
    output::line(&format!("SHA-256 file    {}", report.file_hashes.sha256));
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
    output::line(if report.verified {
        "verified: every byte was read back and is the same"
    } else {
        "not verified"
    });
    Ok(())
}

type Chunk = Arc<Vec<u8>>;

/// A thread for each hash: one core hashing both would cap the load.
struct Hashing {
    feeds: [SyncSender<Chunk>; 2],
    threads: [JoinHandle<String>; 2],
}

impl Hashing {
    fn start() -> Hashing {
        fn hash<D: Digest>(chunks: &Receiver<Chunk>) -> String {
            let mut digest = D::new();
            while let Ok(chunk) = chunks.recv() {
                digest.update(&chunk[..]);
            }
            digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
        }
        let (md5, md5_chunks) = mpsc::sync_channel(HASH_BACKLOG);
        let (sha, sha_chunks) = mpsc::sync_channel(HASH_BACKLOG);
        let threads = [
            std::thread::spawn(move || hash::<Md5>(&md5_chunks)),
            std::thread::spawn(move || hash::<Sha256>(&sha_chunks)),
        ];
        Hashing { feeds: [md5, sha], threads }
    }

    fn feed(&self, chunk: &Chunk) {
        for feed in &self.feeds {
            // A hashing thread ends only when its feed does.
            let _ = feed.send(chunk.clone());
        }
    }

    fn finish(self) -> Result<Hashes, Failure> {
        drop(self.feeds);
        let failed = |_| Failure::failed("a hashing thread failed");
        let [md5, sha256] = self.threads.map(JoinHandle::join);
        Ok(Hashes { md5: md5.map_err(failed)?, sha256: sha256.map_err(failed)? })
    }
}

#[derive(Debug)]
struct ToChannel(mpsc::Sender<Completion>);

impl Sink for ToChannel {
    fn complete(&self, completion: Completion) {
        let _ = self.0.send(completion);
    }
}

fn copy_and_verify(
    source: &RawSource,
    volume: &VolumeHandle,
    file: &str,
    verify: bool,
) -> Result<LoadReport, Failure> {
    let started = Instant::now();
    let (file_hashes, zero_bytes) = copy(source, volume)?;
    let seconds = started.elapsed().as_secs_f64().max(1e-6);
    let volume_hashes = if verify { Some(read_back(volume, source.size())?) } else { None };
    Ok(LoadReport {
        file: file.to_owned(),
        volume: volume.name().to_owned(),
        bytes: source.size(),
        zero_bytes,
        seconds,
        bytes_per_second: source.size() as f64 / seconds,
        verified: volume_hashes.as_ref() == Some(&file_hashes),
        file_hashes,
        volume_hashes,
        volume_bytes: volume.size(),
    })
}

fn chunks(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let chunk = CHUNK_BYTES as u64;
    (0..bytes.div_ceil(chunk)).map(move |at| {
        let offset = at * chunk;
        (offset, usize::try_from(chunk.min(bytes - offset)).expect("a chunk fits in memory"))
    })
}

fn copy(source: &RawSource, volume: &VolumeHandle) -> Result<(Hashes, u64), Failure> {
    let hashing = Hashing::start();
    let progress = Shown::start("loading", volume.name(), source.size());
    let (sink, done) = mpsc::channel();
    let sink: Arc<dyn Sink> = Arc::new(ToChannel(sink));
    let (mut in_flight, mut zero_bytes) = (0, 0);
    let stopped = |offset: u64, why: String| {
        Failure::failed(format!(
            "{why}; volume '{}' holds no more than the first {offset} bytes",
            volume.name()
        ))
    };
    let finish_one = |in_flight: &mut usize| -> Result<(), Failure> {
        let completion = done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
        *in_flight -= 1;
        completion.result.map_err(|e| {
            let exit = if e == VolumeError::DonorLost { Exit::DataLost } else { Exit::Failed };
            Failure { exit, ..stopped(completion.token, write_error(e, completion.token)) }
        })
    };
    for (offset, len) in chunks(source.size()) {
        let mut chunk = vec![0; len];
        source.read_exact_at(offset, &mut chunk).map_err(|e| stopped(offset, e.to_string()))?;
        let chunk = Arc::new(chunk);
        hashing.feed(&chunk);
        while in_flight >= IN_FLIGHT {
            finish_one(&mut in_flight)?;
        }
        let zero = chunk.iter().all(|byte| *byte == 0);
        let (op, buffer) = if zero {
            zero_bytes += len as u64;
            (Op::Zero { keep: false }, None)
        } else {
            let mut buffer = volume.pool().take_blocking(len);
            buffer.copy_from_slice(&chunk);
            (Op::Write, Some(buffer))
        };
        let len = u32::try_from(len).expect("a chunk");
        volume.submit(Submission { op, offset, len, buffer, token: offset, sink: sink.clone() });
        in_flight += 1;
        progress.inc(u64::from(len));
    }
    while in_flight > 0 {
        finish_one(&mut in_flight)?;
    }
    progress.finish_and_clear();
    Ok((hashing.finish()?, zero_bytes))
}

fn write_error(error: VolumeError, offset: u64) -> String {
    match error {
        VolumeError::DonorLost => format!(
            "more donors that hold the MiB at byte {offset} cannot be reached than redundancy covers (`cheetah show` names them): \
             load again when they can"
        ),
        VolumeError::TimedOut => {
            format!("donors did not take byte {offset} in time: load again when they answer")
        }
        VolumeError::NoMemory => {
            format!("a donor's machine has no memory for byte {offset}: see `cheetah status`")
        }
        VolumeError::LeaseLost => "the lease is lost: another has taken the volume over".into(),
        other => format!("writing at byte {offset} failed: {other}"),
    }
}

/// Hashes the first `bytes` of the volume, as the donors give them back.
fn read_back(volume: &VolumeHandle, bytes: u64) -> Result<Hashes, Failure> {
    let hashing = Hashing::start();
    let progress = Shown::start("checking", volume.name(), bytes);
    let (sink, done) = mpsc::channel();
    let sink: Arc<dyn Sink> = Arc::new(ToChannel(sink));
    let mut arrived: BTreeMap<u64, Chunk> = BTreeMap::new();
    let (mut asked, mut in_flight) = (chunks(bytes), 0);
    let mut next = 0;
    while next < bytes {
        while in_flight + arrived.len() < IN_FLIGHT {
            let Some((offset, len)) = asked.next() else { break };
            let buffer = Some(volume.pool().take_blocking(len));
            let len = u32::try_from(len).expect("a chunk");
            volume.submit(Submission {
                op: Op::Read,
                offset,
                len,
                buffer,
                token: offset,
                sink: sink.clone(),
            });
            in_flight += 1;
        }
        let completion = done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
        in_flight -= 1;
        let offset = completion.token;
        completion.result.map_err(|e| {
            Failure::new(Exit::DataLost, format!("the volume cannot be read back at byte {offset}: {e}"))
        })?;
        let buffer =
            completion.buffer.ok_or_else(|| Failure::failed("a read came back without its bytes"))?;
        arrived.insert(offset, Arc::new(buffer.to_vec()));
        while let Some(chunk) = arrived.remove(&next) {
            hashing.feed(&chunk);
            next += chunk.len() as u64;
            progress.inc(chunk.len() as u64);
        }
    }
    progress.finish_and_clear();
    hashing.finish()
}
