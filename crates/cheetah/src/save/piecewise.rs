//! A hash of each so many bytes, as dcfldd logs them by `hashwindow`.
//!
//! Owns: the windows and the form of their lines. Never: where these go (`sidecars`). Invariant: the text
//! is byte for byte what `dcfldd hashwindow=... md5log=... sha256log=...` writes of the same bytes.
//! Called by `save`. Tests: below; `lab/tests/save.rs` compares it with dcfldd's.

use crate::failure::Failure;
use crate::fill::Chunk;
use cheetah_core::text::hex;
use cheetah_core::units::show_bytes;
use md5::{Digest, Md5};
use sha2::Sha256;
use std::fmt::Write as _;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

/// A line of each is kept until the file has its name.
const PIECES_MAX: u64 = 1 << 20;
/// Chunks that wait for a hash.
const BACKLOG: usize = 16;

/// What goes into the files.
#[derive(Debug)]
pub struct Logs {
    pub md5: String,
    pub sha256: String,
}

/// The hashing of windows, each kind in a thread of its own.
pub struct Pieces {
    md5: Lane,
    sha256: Lane,
}

struct Lane {
    feed: SyncSender<Chunk>,
    thread: JoinHandle<String>,
}

/// Before anything is read.
pub fn fits(bytes: u64, window: u64) -> Result<(), Failure> {
    if window == 0 {
        return Err(Failure::usage("--piecewise is how many bytes have a hash: at least one"));
    }
    let least = bytes.div_ceil(PIECES_MAX);
    if window < least {
        let least = show_bytes(least.next_power_of_two());
        return Err(Failure::usage(format!(
            "--piecewise makes at most {PIECES_MAX} hashes of a volume: of this one from {least} on"
        )));
    }
    Ok(())
}

impl Pieces {
    pub fn start(window: u64) -> Pieces {
        Pieces { md5: Lane::start::<Md5>("md5", window), sha256: Lane::start::<Sha256>("sha256", window) }
    }

    pub fn feed(&self, chunk: &Chunk) {
        // A hashing thread ends only when its feed does.
        let _ = self.md5.feed.send(chunk.clone());
        let _ = self.sha256.feed.send(chunk.clone());
    }

    pub fn finish(self) -> Result<Logs, Failure> {
        let Pieces { md5, sha256 } = self;
        Ok(Logs { md5: md5.finish()?, sha256: sha256.finish()? })
    }
}

impl Lane {
    fn start<D: Digest + Send + 'static>(name: &'static str, window: u64) -> Lane {
        let (feed, fed) = mpsc::sync_channel::<Chunk>(BACKLOG);
        let thread = std::thread::spawn(move || {
            let mut log = Log::<D>::new(window);
            fed.iter().for_each(|chunk| log.update(&chunk));
            log.finish(name)
        });
        Lane { feed, thread }
    }

    fn finish(self) -> Result<String, Failure> {
        drop(self.feed);
        self.thread.join().map_err(|_| Failure::failed("a hashing thread failed"))
    }
}

struct Log<D> {
    window: u64,
    /// Where the window begins, and how much of it came.
    from: u64,
    came: u64,
    piece: D,
    total: D,
    text: String,
}

impl<D: Digest> Log<D> {
    fn new(window: u64) -> Log<D> {
        Log { window, from: 0, came: 0, piece: D::new(), total: D::new(), text: String::new() }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        self.total.update(bytes);
        while !bytes.is_empty() {
            let room = usize::try_from(self.window - self.came).unwrap_or(usize::MAX);
            let (here, rest) = bytes.split_at(room.min(bytes.len()));
            self.piece.update(here);
            self.came += here.len() as u64;
            if self.came == self.window {
                self.end_piece();
            }
            bytes = rest;
        }
    }

    fn end_piece(&mut self) {
        let digest = std::mem::replace(&mut self.piece, D::new()).finalize();
        let to = self.from + self.came;
        let _ = writeln!(self.text, "{} - {to}: {}", self.from, hex(&digest));
        (self.from, self.came) = (to, 0);
    }

    fn finish(mut self, name: &str) -> String {
        if self.came > 0 {
            self.end_piece();
        }
        let _ = writeln!(self.text, "\nTotal ({name}): {}", hex(&self.total.finalize()));
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_where_they_end_whatever_comes_at_once() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
        for window in [1, 999, 1000, 4096, 10_000, 20_000] {
            let logs = [1, 7, 4096, 10_000].map(|at_once| {
                let mut log = Log::<Md5>::new(window);
                bytes.chunks(at_once).for_each(|piece| log.update(piece));
                log.finish("md5")
            });
            assert!(logs.iter().all(|log| *log == logs[0]), "{window}");
            let (pieces, total) = logs[0].split_once("\n\n").expect("a line is empty");
            assert_eq!(pieces.lines().count() as u64, 10_000_u64.div_ceil(window));
            assert_eq!(total, format!("Total (md5): {}\n", hex(&Md5::digest(&bytes))));
            let last = pieces.lines().last().expect("a line");
            let from = 9_999 / window * window;
            let digest = hex(&Md5::digest(&bytes[from as usize..]));
            assert_eq!(last, format!("{from} - 10000: {digest}"));
        }
    }

    #[test]
    fn what_would_fill_the_memory_is_refused() {
        assert!(fits(1 << 40, 1 << 20).is_ok() && fits(100, 1).is_ok());
        assert!(fits(100, 0).is_err());
        let failure = fits(1 << 40, 1 << 19).expect_err("two million lines").text();
        assert!(failure.contains("1 MiB"), "{failure}");
    }
}
