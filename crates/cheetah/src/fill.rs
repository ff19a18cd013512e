//! A volume filled from a source: what lies there already is compared, the rest is copied, hashed on the way,
//! read back and hashed again.
//!
//! Owns the pipeline (readers, a thread for each hash, requests in flight to the volume) and how far it
//! is. Never: the coordinator (`load`), or writing to the source. Invariants: what counts as done is written,
//! all of it from the start; what is there already is believed only where it was read and is what the source
//! holds; hashes have zeros where the source could not be read, and that is listed. Called by `load` and
//! `save`. Tests: `lab/tests/evidence.rs`.

use crate::chunks;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::progress::Shown;
use crate::proofs::{Proving, Roots};
use cheetah_core::content::{ByteRange, cover};
use cheetah_rim::buffer::LARGE_BYTES;
use cheetah_rim::volume::{Completion, Op, Sink, Submission, VolumeError, VolumeHandle};
use cheetah_source::{Source, Unreadable};
use md5::{Digest, Md5};
use serde::Serialize;
use sha1::Sha1;
use sha2::Sha256;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// One read of the source, and one request to the volume.
pub const CHUNK_BYTES: usize = LARGE_BYTES;
/// Requests on their way to the donors at once.
const IN_FLIGHT: usize = 16;
/// Places that cannot be read, of which each is told; the report has all.
const TOLD_MAX: usize = 16;
/// Chunks that wait for a hash.
const HASH_BACKLOG: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hashes {
    pub md5: String,
    pub sha1: String,
    pub sha256: String,
}

/// How far it is; shared with who reports that.
#[derive(Debug, Default)]
pub struct Progress {
    /// So many bytes from the start are written.
    done: AtomicU64,
    /// Something was sent to the volume.
    begun: AtomicBool,
    /// It shall end.
    stop: AtomicBool,
    unreadable: Mutex<Vec<ByteRange>>,
}

impl Progress {
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// What of the source could not be read so far.
    pub fn unreadable(&self) -> Vec<ByteRange> {
        self.ranges().clone()
    }

    /// More that cannot be read: told where it is not yet.
    fn note(&self, unreadable: Vec<Unreadable>) {
        for Unreadable { range, why } in unreadable {
            let range = ByteRange::from(range);
            let mut ranges = self.ranges();
            let is_known =
                ranges.iter().any(|known| known.offset <= range.offset && range.end() <= known.end());
            if !is_known && ranges.len() < TOLD_MAX {
                let ByteRange { offset, len } = range;
                output::note(&format!("{len} bytes from {offset} on cannot be read: {why}"));
            }
            cover(&mut ranges, [range]);
        }
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<ByteRange>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unless it shall end.
    pub fn go_on(&self) -> Result<(), Failure> {
        match self.stop.load(Ordering::Acquire) {
            true => Err(Failure::failed("interrupted")),
            false => Ok(()),
        }
    }
}

/// What came of copying.
pub struct Copied {
    pub file_hashes: Hashes,
    /// What the volume comes to, where that is proved.
    pub roots: Option<Roots>,
    /// Of the source, bytes that were zeros and take no memory.
    pub zero_bytes: u64,
    /// So much of the volume was read and is what the source holds.
    pub confirmed: u64,
    /// Where hashing the volume goes on.
    pub hashing: Hashing,
}

pub type Chunk = Arc<Vec<u8>>;

enum Feed<D> {
    Bytes(Chunk),
    /// Another one goes on from here.
    Fork(mpsc::Sender<D>),
}

/// One hash, in a thread of its own: one core that computes both would cap the load.
struct Lane<D> {
    feed: SyncSender<Feed<D>>,
    thread: JoinHandle<String>,
}

impl<D: Digest + Clone + Send + 'static> Lane<D> {
    fn start(mut digest: D) -> Lane<D> {
        let (feed, fed): (_, Receiver<Feed<D>>) = mpsc::sync_channel(HASH_BACKLOG);
        let thread = std::thread::spawn(move || {
            while let Ok(fed) = fed.recv() {
                match fed {
                    Feed::Bytes(chunk) => digest.update(&chunk[..]),
                    // Who asked for it waits.
                    Feed::Fork(to) => drop(to.send(digest.clone())),
                }
            }
            digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
        });
        Lane { feed, thread }
    }

    fn fork(&self) -> Result<Lane<D>, Failure> {
        let (to, digest) = mpsc::channel();
        let failed = || Failure::failed("a hashing thread failed");
        self.feed.send(Feed::Fork(to)).map_err(|_| failed())?;
        Ok(Lane::start(digest.recv().map_err(|_| failed())?))
    }

    fn feed(&self, chunk: &Chunk) {
        // A hashing thread ends only when its feed does.
        let _ = self.feed.send(Feed::Bytes(chunk.clone()));
    }

    fn finish(self) -> Result<String, Failure> {
        drop(self.feed);
        self.thread.join().map_err(|_| Failure::failed("a hashing thread failed"))
    }
}

/// The hashes of what is fed.
pub struct Hashing {
    md5: Lane<Md5>,
    sha1: Lane<Sha1>,
    sha256: Lane<Sha256>,
}

impl Hashing {
    pub fn start() -> Hashing {
        let (md5, sha1, sha256) = (Md5::new(), Sha1::new(), Sha256::new());
        Hashing { md5: Lane::start(md5), sha1: Lane::start(sha1), sha256: Lane::start(sha256) }
    }

    /// Another one, of the same bytes until now.
    fn fork(&self) -> Result<Hashing, Failure> {
        Ok(Hashing { md5: self.md5.fork()?, sha1: self.sha1.fork()?, sha256: self.sha256.fork()? })
    }

    pub fn feed(&self, chunk: &Chunk) {
        self.md5.feed(chunk);
        self.sha1.feed(chunk);
        self.sha256.feed(chunk);
    }

    pub fn finish(self) -> Result<Hashes, Failure> {
        Ok(Hashes { md5: self.md5.finish()?, sha1: self.sha1.finish()?, sha256: self.sha256.finish()? })
    }
}

/// Completions, for a thread that waits for them.
#[derive(Debug)]
pub struct ToChannel(pub mpsc::Sender<Completion>);

impl Sink for ToChannel {
    fn complete(&self, completion: Completion) {
        let _ = self.0.send(completion);
    }
}

fn places(from: u64, bytes: u64) -> impl Iterator<Item = (u64, usize)> + Clone + Send {
    let chunk = CHUNK_BYTES as u64;
    (from.div_ceil(chunk)..bytes.div_ceil(chunk)).map(move |at| {
        let offset = at * chunk;
        (offset, usize::try_from(chunk.min(bytes - offset)).expect("a chunk fits in memory"))
    })
}

/// A chunk of the source, with zeros for what cannot be read; that is noted.
pub fn read_source(
    source: &dyn Source,
    progress: &Progress,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, Failure> {
    let chunk = chunks::read(source, offset, len)?;
    progress.note(chunk.unreadable);
    Ok(chunk.bytes)
}

/// Fills the volume from the source; of the first `known` bytes it may hold some already. `proves`: what is
/// behind its end is written as well.
pub fn copy(
    source: &dyn Source,
    volume: &VolumeHandle,
    known: u64,
    proves: bool,
    progress: &Progress,
) -> Result<Copied, Failure> {
    let hashing = Hashing::start();
    let proving = proves.then(|| Proving::start(volume, source.size()));
    let take = |chunk: &Chunk| {
        hashing.feed(chunk);
        proving.iter().for_each(|proving| proving.feed(chunk));
    };
    let reached = |end: u64| proving.as_ref().map_or(Ok(()), |proving| proving.reached(end, &[]));
    let shown = Shown::start("loading", volume.name(), source.size());
    let confirmed = confirm(source, volume, known, progress, &take, &shown)?;
    reached(confirmed)?;
    let volume_hashing = hashing.fork()?;
    let (sink, done) = mpsc::channel();
    let sink: Arc<dyn Sink> = Arc::new(ToChannel(sink));
    let (mut under_way, mut zero_bytes) = (BTreeSet::new(), 0);
    let finish_one = |under_way: &mut BTreeSet<u64>| -> Result<(), Failure> {
        let completion = done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
        completion.result.map_err(|e| write_error(e, completion.token))?;
        under_way.remove(&completion.token);
        if let Some(first) = under_way.first() {
            progress.done.fetch_max(*first, Ordering::AcqRel);
            reached(*first)?;
        }
        Ok(())
    };
    let places = places(confirmed, source.size());
    let mut sent = confirmed;
    let read = chunks::read_in_order(source, &places, &mut |chunks::Chunk { offset, bytes, unreadable }| {
        progress.go_on()?;
        progress.note(unreadable);
        let (len, chunk) = (bytes.len(), Arc::new(bytes));
        take(&chunk);
        while under_way.len() >= IN_FLIGHT {
            finish_one(&mut under_way)?;
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
        progress.begun.store(true, Ordering::Release);
        under_way.insert(offset);
        sent = offset + u64::from(len);
        volume.submit(Submission { op, offset, len, buffer, token: offset, sink: sink.clone() });
        shown.inc(u64::from(len));
        Ok(())
    });
    // What came before the source ended is in the volume, too.
    while !under_way.is_empty() {
        if let Err(failure) = finish_one(&mut under_way) {
            // The first that went wrong.
            return Err(read.err().unwrap_or(failure));
        }
    }
    progress.done.fetch_max(sent, Ordering::AcqRel);
    read?;
    progress.done.store(source.size(), Ordering::Release);
    shown.finish_and_clear();
    reached(source.size())?;
    let roots = proving.map(Proving::finish).transpose()?;
    Ok(Copied { file_hashes: hashing.finish()?, roots, zero_bytes, confirmed, hashing: volume_hashing })
}

/// How much of the volume, from its start, is what the source holds: read from both, at most `known` bytes.
fn confirm(
    source: &dyn Source,
    volume: &VolumeHandle,
    known: u64,
    progress: &Progress,
    take: &dyn Fn(&Chunk),
    shown: &Shown,
) -> Result<u64, Failure> {
    // A chunk that is not known as a whole is written again.
    let known = match known {
        all if all >= source.size() => source.size(),
        part => part / CHUNK_BYTES as u64 * CHUNK_BYTES as u64,
    };
    let mut confirmed = 0;
    read_in_order(volume, 0, known, &mut |offset, there| {
        progress.go_on()?;
        let Ok(there) = there else { return Ok(false) };
        let chunk = read_source(source, progress, offset, there.len())?;
        if chunk != *there {
            return Ok(false);
        }
        take(&there);
        confirmed = offset + chunk.len() as u64;
        progress.done.store(confirmed, Ordering::Release);
        shown.inc(chunk.len() as u64);
        Ok(true)
    })?;
    Ok(confirmed)
}

/// Hashes the first `bytes` of the volume, as the donors give them back; the part that was confirmed is in
/// `hashing`, and is not asked for again.
pub fn read_back(
    volume: &VolumeHandle,
    bytes: u64,
    confirmed: u64,
    hashing: Hashing,
    progress: &Progress,
) -> Result<Hashes, Failure> {
    let shown = Shown::start("checking", volume.name(), bytes);
    shown.inc(confirmed);
    read_in_order(volume, confirmed, bytes, &mut |offset, there| {
        progress.go_on()?;
        let chunk = there.map_err(|e| {
            Failure::new(Exit::DataLost, format!("the volume cannot be read back at byte {offset}: {e}"))
        })?;
        hashing.feed(&chunk);
        shown.inc(chunk.len() as u64);
        Ok(true)
    })?;
    shown.finish_and_clear();
    hashing.finish()
}

/// Hands on the chunks of the volume between two borders of chunks, in order, until `take` has enough or
/// fails.
pub fn read_in_order(
    volume: &VolumeHandle,
    from: u64,
    bytes: u64,
    take: &mut dyn FnMut(u64, Result<Chunk, VolumeError>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let (sink, done) = mpsc::channel();
    let sink: Arc<dyn Sink> = Arc::new(ToChannel(sink));
    let mut arrived: BTreeMap<u64, Result<Chunk, VolumeError>> = BTreeMap::new();
    let (mut asked, mut in_flight, mut next) = (places(from, bytes), 0, from);
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
        let Completion { token, result, buffer, .. } =
            done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
        in_flight -= 1;
        let chunk = match (result, buffer) {
            (Ok(()), Some(buffer)) => Ok(Arc::new(buffer.to_vec())),
            (Ok(()), None) => return Err(Failure::failed("a read came back without its bytes")),
            (Err(error), _) => Err(error),
        };
        arrived.insert(token, chunk);
        while let Some(chunk) = arrived.remove(&next) {
            let (at, len) = (next, CHUNK_BYTES as u64);
            next = (at + len).min(bytes);
            if !take(at, chunk)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A chunk in pieces of so many bytes, with zeros for those that cannot be read, as far as `bad` lets them.
pub fn read_past_errors(
    volume: &VolumeHandle,
    offset: u64,
    bytes: u64,
    piece: u64,
    bad: &mut dyn FnMut(ByteRange, VolumeError) -> Result<(), Failure>,
) -> Result<Vec<u8>, Failure> {
    let end = bytes.min(offset + CHUNK_BYTES as u64);
    let mut chunk = Vec::new();
    let mut at = offset;
    while at < end {
        let len = piece.min(end - at);
        let size = usize::try_from(len).expect("inside a chunk");
        match read_once(volume, at, size)? {
            Ok(read) => chunk.extend_from_slice(&read),
            Err(why) => {
                bad(ByteRange { offset: at, len }, why)?;
                chunk.resize(chunk.len() + size, 0);
            }
        }
        at += len;
    }
    Ok(chunk)
}

/// A single read, waited for.
pub fn read_once(
    volume: &VolumeHandle,
    offset: u64,
    len: usize,
) -> Result<Result<Vec<u8>, VolumeError>, Failure> {
    let (sink, done) = mpsc::channel();
    let (sink, buffer): (Arc<dyn Sink>, _) = (Arc::new(ToChannel(sink)), volume.pool().take_blocking(len));
    let len = u32::try_from(len).expect("a chunk at most");
    volume.submit(Submission { op: Op::Read, offset, len, buffer: Some(buffer), token: offset, sink });
    let Completion { result, buffer, .. } =
        done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
    match (result, buffer) {
        (Ok(()), Some(buffer)) => Ok(Ok(buffer.to_vec())),
        (Ok(()), None) => Err(Failure::failed("a read came back without its bytes")),
        (Err(error), _) => Ok(Err(error)),
    }
}

pub fn write_error(error: VolumeError, offset: u64) -> Failure {
    match error {
        VolumeError::DonorLost => Failure::new(
            Exit::DataLost,
            format!(
                "more donors that hold the MiB at byte {offset} cannot be reached than redundancy covers (`cheetah show` names \
                 them): load again with --resume when they can"
            ),
        ),
        VolumeError::TimedOut => Failure::failed(format!(
            "donors did not take byte {offset} in time: load again with --resume when they answer"
        )),
        VolumeError::NoMemory => Failure::failed(format!(
            "a donor's machine has no memory for byte {offset}: see `cheetah status`"
        )),
        VolumeError::LeaseLost => Failure::failed("the lease is lost: another has taken the volume over"),
        other => Failure::failed(format!("writing at byte {offset} failed: {other}")),
    }
}
