//! The proofs of a volume that is being sealed: made beside what goes on, written behind the volume's end.
//!
//! Owns a thread that hashes, and its writes. Of an encrypted volume the view of it says what proves each
//! block (`rim::volume::encrypted`), and what is hashed here beside that are its contents. Never: where
//! proofs lie (`core::proofs`), or the seal itself (`seal`). Invariant: the root is said only when every page
//! is written. Called by `load` and `seal`. Tests: `lab/tests/seal.rs`.

use crate::failure::Failure;
use crate::fill::{Chunk, ToChannel, write_error};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::proofs::{Root, Tree};
use cheetah_rim::proofs::{Builder, Proof};
use cheetah_rim::volume::{Op, Sink, Submission, VolumeHandle};
use std::cell::Cell;
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
    /// Of the contents, of any volume.
    pub fn blake3(&self) -> Root {
        self.contents.unwrap_or(self.root)
    }
}

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
        let (feed, fed) = mpsc::sync_channel(BACKLOG);
        volume.note_proofs();
        let to = volume.clone();
        let thread = std::thread::spawn(move || prove(to, bytes, &fed));
        Proving { volume: volume.clone(), feed, thread, reached: Cell::new(0) }
    }

    pub fn feed(&self, chunk: &Chunk) {
        // A thread that failed says why at the end.
        let _ = self.feed.send(Fed::Bytes(chunk.clone()));
    }

    /// All before this byte was read from the volume, or is written: what lies on donors changes no more.
    pub fn reached(&self, end: u64) -> Result<(), Failure> {
        let blocks = self.reached.get()..end.div_ceil(BLOCK_BYTES);
        if !self.volume.is_encrypted() || blocks.is_empty() {
            return Ok(());
        }
        self.reached.set(blocks.end);
        let at = blocks.start * BLOCK_BYTES;
        let proofs = self.volume.noted_proofs(blocks).ok_or_else(|| {
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

fn prove(volume: VolumeHandle, bytes: u64, fed: &mpsc::Receiver<Fed>) -> Result<Roots, Failure> {
    let encrypted = volume.is_encrypted();
    let tree = Tree::new(if encrypted { bytes.next_multiple_of(BLOCK_BYTES) } else { bytes });
    let (mut writing, mut builder) = (Writing::new(volume), Builder::new(tree));
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
    done: mpsc::Receiver<cheetah_rim::volume::Completion>,
    under_way: usize,
}

impl Writing {
    fn new(volume: VolumeHandle) -> Writing {
        let (sink, done) = mpsc::channel();
        Writing { volume, sink: Arc::new(ToChannel(sink)), done, under_way: 0 }
    }

    fn write_all(&mut self, pages: Vec<(u64, Vec<u8>)>) -> Result<(), Failure> {
        for (offset, bytes) in pages {
            self.wait(IN_FLIGHT - 1)?;
            let mut buffer = self.volume.pool().take_blocking(bytes.len());
            buffer.copy_from_slice(&bytes);
            let len = u32::try_from(bytes.len()).expect("a run of pages");
            let (op, token, sink) = (Op::Write, offset, self.sink.clone());
            self.volume.submit(Submission { op, offset, len, buffer: Some(buffer), token, sink });
            self.under_way += 1;
        }
        Ok(())
    }

    /// Until so many are under way at most.
    fn wait(&mut self, most: usize) -> Result<(), Failure> {
        while self.under_way > most {
            let ended = self.done.recv().map_err(|_| Failure::failed("the volume was closed"))?;
            self.under_way -= 1;
            ended.result.map_err(|error| write_error(error, ended.token))?;
        }
        Ok(())
    }
}
