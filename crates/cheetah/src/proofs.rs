//! The proofs of a volume that is being sealed: made beside what goes on, written behind the volume's end.
//!
//! Owns a thread that hashes, and its writes. Of an encrypted volume the view of it says what proves each
//! block (`rim::volume::encrypted`), and what is hashed here beside that are its contents. Never: where
//! proofs lie (`core::proofs`), or the seal itself (`seal`). Invariant: the root is said only when every page
//! is written, and nothing is on its way to donors any more when it has ended. Called by `load`, `seal` and
//! `filler`. Tests: `lab/tests/seal.rs`, `lab/tests/open_sealed.rs`.

use crate::failure::Failure;
use crate::fill::{Chunk, Hashes, ToChannel, write_error};
use cheetah_core::content::{ByteRange, Sealing};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::proofs::{Root, Tree};
use cheetah_rim::proofs::{Builder, Proof};
use cheetah_rim::volume::{Completion, Op, Sink, Submission, VolumeError, VolumeHandle};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

/// Chunks that wait for their hash.
const BACKLOG: usize = 16;
/// Writes on their way at once.
const IN_FLIGHT: usize = 4;

/// What a volume comes to.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    /// What proves each block.
    pub root: Root,
    /// BLAKE3 of the contents, of an encrypted volume.
    pub contents: Option<Root>,
}

impl Roots {
    /// What a volume that has these hashes as well is sealed as.
    pub fn sealing(self, hashes: &Hashes, by_reading: bool) -> Sealing {
        let Roots { root, contents } = self;
        let Hashes { md5, sha1, sha256 } = hashes.clone();
        Sealing { root, contents, md5, sha1, sha256, by_reading }
    }
}

/// Whether a write of proofs that failed is tried again. It may wait before it says so.
pub type Again = dyn Fn(VolumeError) -> bool + Send + Sync;

enum Fed {
    Bytes(Chunk),
    Proofs(Vec<Proof>),
}

/// Proofs of what is fed, in order.
pub struct Proving {
    volume: VolumeHandle,
    feed: SyncSender<Fed>,
    thread: JoinHandle<Result<Roots, Failure>>,
    /// The first block of which the volume's view was not asked.
    reached: Cell<u64>,
}

impl Proving {
    /// Of a volume of so many bytes that has room for them.
    pub fn start(volume: &VolumeHandle, bytes: u64) -> Proving {
        Proving::start_with(volume, bytes, Arc::new(|_| false))
    }

    /// The same for who goes on when donors come and go.
    pub fn start_with(volume: &VolumeHandle, bytes: u64, again: Arc<Again>) -> Proving {
        let (feed, fed) = mpsc::sync_channel(BACKLOG);
        volume.note_proofs();
        let to = volume.clone();
        let thread = std::thread::spawn(move || prove(to, bytes, &fed, again));
        Proving { volume: volume.clone(), feed, thread, reached: Cell::new(0) }
    }

    pub fn feed(&self, chunk: &Chunk) {
        // A thread that failed says why at the end.
        let _ = self.feed.send(Fed::Bytes(chunk.clone()));
    }

    /// All before this byte was read from the volume, or is written: what lies on donors changes no more.
    /// `absent`: of an opened volume, blocks that its source could not give, which donors do not have.
    pub fn reached(&self, end: u64, absent: &[ByteRange]) -> Result<(), Failure> {
        let blocks = self.reached.get()..end.div_ceil(BLOCK_BYTES);
        if !self.volume.is_encrypted() || blocks.is_empty() {
            return Ok(());
        }
        self.reached.set(blocks.end);
        let at = blocks.start * BLOCK_BYTES;
        let is_in = |range: &ByteRange, at: u64| range.offset <= at && at < range.end();
        let is_absent = |block: u64| absent.iter().any(|range| is_in(range, block * BLOCK_BYTES));
        let proofs = self.volume.noted_proofs(blocks, is_absent).ok_or_else(|| {
            Failure::failed(format!(
                "what lies on donors behind byte {at} is not known, and cannot be sealed"
            ))
        })?;
        let _ = self.feed.send(Fed::Proofs(proofs));
        Ok(())
    }

    pub fn finish(self) -> Result<Roots, Failure> {
        drop(self.feed);
        self.thread.join().map_err(|_| Failure::failed("the thread that proves the volume failed"))?
    }
}

/// What proves a volume of so many bytes.
pub fn tree_of(volume: &VolumeHandle, bytes: u64) -> Tree {
    Tree::new(if volume.is_encrypted() { bytes.next_multiple_of(BLOCK_BYTES) } else { bytes })
}

fn prove(
    volume: VolumeHandle,
    bytes: u64,
    fed: &mpsc::Receiver<Fed>,
    again: Arc<Again>,
) -> Result<Roots, Failure> {
    let encrypted = volume.is_encrypted();
    let tree = tree_of(&volume, bytes);
    let (mut writing, mut builder) = (Writing::new(volume, again), Builder::new(tree));
    // The same tree over the contents comes to their BLAKE3; its pages are nobody's.
    let mut contents = encrypted.then(|| Builder::new(Tree::new(bytes)));
    while let Ok(fed) = fed.recv() {
        match (fed, &mut contents) {
            (Fed::Bytes(chunk), Some(contents)) => {
                contents.feed(&chunk);
                drop(contents.take_pages());
            }
            (Fed::Bytes(chunk), None) => builder.feed(&chunk),
            (Fed::Proofs(proofs), _) => builder.feed_proofs(&proofs),
        }
        writing.write_all(builder.take_pages())?;
    }
    writing.write_all(builder.take_pages())?;
    writing.wait(0)?;
    let whole = |builder: &Builder| {
        builder.root().ok_or_else(|| Failure::failed("not all of the volume was there to be proved"))
    };
    Ok(Roots { root: whole(&builder)?, contents: contents.as_ref().map(whole).transpose()? })
}

struct Writing {
    volume: VolumeHandle,
    sink: Arc<dyn Sink>,
    done: mpsc::Receiver<Completion>,
    /// By where they begin.
    under_way: BTreeMap<u64, Vec<u8>>,
    again: Arc<Again>,
}

impl Writing {
    fn new(volume: VolumeHandle, again: Arc<Again>) -> Writing {
        let (sink, done) = mpsc::channel();
        Writing { volume, sink: Arc::new(ToChannel(sink)), done, under_way: BTreeMap::new(), again }
    }

    fn write_all(&mut self, pages: Vec<(u64, Vec<u8>)>) -> Result<(), Failure> {
        for (offset, bytes) in pages {
            self.wait(IN_FLIGHT - 1)?;
            self.write(offset, bytes);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        let mut buffer = self.volume.pool().take_blocking(bytes.len());
        buffer.copy_from_slice(&bytes);
        let len = u32::try_from(bytes.len()).expect("a run of pages");
        let (op, token, sink) = (Op::Write, offset, self.sink.clone());
        self.volume.submit(Submission { op, offset, len, buffer: Some(buffer), token, sink });
        self.under_way.insert(offset, bytes);
    }

    /// Until so many are under way at most. After a failure none is.
    fn wait(&mut self, most: usize) -> Result<(), Failure> {
        let mut failed = None;
        while self.under_way.len() > if failed.is_some() { 0 } else { most } {
            let ended = self.done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
            let bytes = self.under_way.remove(&ended.token).unwrap_or_default();
            match ended.result {
                Ok(()) => {}
                Err(error) if failed.is_none() && (self.again)(error) => self.write(ended.token, bytes),
                Err(error) => failed = failed.or(Some(write_error(error, ended.token))),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
