//! The proofs of a volume that is being sealed: made beside what goes on, written behind the volume's end.
//!
//! Owns a thread that hashes, and its writes. Never: where proofs lie (`core::proofs`), or the seal itself
//! (`seal`). Invariant: the root is said only when every page is written. Called by `load` and `seal`. Tests:
//! `lab/tests/seal.rs`.

use crate::failure::Failure;
use crate::fill::{Chunk, ToChannel, write_error};
use cheetah_core::proofs::Root;
use cheetah_rim::proofs::Builder;
use cheetah_rim::volume::{Op, Sink, Submission, VolumeHandle};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

/// Chunks that wait for their hash.
const BACKLOG: usize = 16;
/// Writes on their way at once.
const IN_FLIGHT: usize = 4;

/// Proofs of what is fed, in order.
pub struct Proving {
    feed: SyncSender<Chunk>,
    thread: JoinHandle<Result<Root, Failure>>,
}

impl Proving {
    /// Of a volume of so many bytes that has room for them.
    pub fn start(volume: &VolumeHandle, bytes: u64) -> Proving {
        let (feed, fed) = mpsc::sync_channel::<Chunk>(BACKLOG);
        let volume = volume.clone();
        let thread = std::thread::spawn(move || {
            let mut writing = Writing::new(volume);
            let mut builder = Builder::new(bytes);
            while let Ok(chunk) = fed.recv() {
                builder.feed(&chunk);
                writing.write_all(builder.take_pages())?;
            }
            writing.write_all(builder.take_pages())?;
            writing.wait(0)?;
            builder.root().ok_or_else(|| Failure::failed("not all of the volume was there to be proved"))
        });
        Proving { feed, thread }
    }

    pub fn feed(&self, chunk: &Chunk) {
        // A thread that failed says why at the end.
        let _ = self.feed.send(chunk.clone());
    }

    pub fn finish(self) -> Result<Root, Failure> {
        drop(self.feed);
        self.thread.join().map_err(|_| Failure::failed("the thread that proves the volume failed"))?
    }
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
