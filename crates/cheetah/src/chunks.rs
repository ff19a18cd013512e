//! The chunks of a source in order, read before they are asked for, by as many threads as the source takes.
//!
//! Owns: these threads, and their end. Never: what becomes of a chunk, or of a range that cannot be read
//! (`fill`). Invariant: chunks come in the source's order, at most `AHEAD` wait for each thread, and no
//! thread lives longer than the call. Called by `fill`. Tests: below; `lab/tests/evidence.rs`.

use crate::failure::Failure;
use cheetah_source::{Source, Unreadable};
use std::sync::mpsc::{self, Receiver};

/// Chunks of each thread that wait.
const AHEAD: usize = 2;

/// Bytes of a source, with zeros for what cannot be read.
pub struct Chunk {
    pub offset: u64,
    pub bytes: Vec<u8>,
    pub unreadable: Vec<Unreadable>,
}

pub fn read(source: &dyn Source, offset: u64, len: usize) -> Result<Chunk, Failure> {
    let mut bytes = vec![0; len];
    let unreadable =
        source.read_past_errors_at(offset, &mut bytes).map_err(|e| Failure::failed(e.to_string()))?;
    Ok(Chunk { offset, bytes, unreadable })
}

/// Hands on these chunks, until `take` fails or one cannot be read at all.
pub fn read_in_order(
    source: &dyn Source,
    places: &(impl Iterator<Item = (u64, usize)> + Clone + Send),
    take: &mut dyn FnMut(Chunk) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let count = places.clone().count();
    let threads = source.readers().clamp(1, count.max(1));
    std::thread::scope(|scope| {
        // Each reads every so manieth, so that they come in order without being sorted.
        let readers: Vec<Receiver<Result<Chunk, Failure>>> = (0..threads)
            .map(|first| {
                let (done, chunks) = mpsc::sync_channel(AHEAD);
                let places = places.clone().skip(first).step_by(threads);
                scope.spawn(move || {
                    for (offset, len) in places {
                        let chunk = read(source, offset, len);
                        let is_last = chunk.is_err();
                        // Nobody takes it when another chunk has failed.
                        if done.send(chunk).is_err() || is_last {
                            return;
                        }
                    }
                });
                chunks
            })
            .collect();
        for reader in readers.iter().cycle().take(count) {
            let chunk = reader.recv().map_err(|_| Failure::failed("a reading thread failed"))?;
            take(chunk?)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_source::SourceError;
    use std::path::Path;

    /// Bytes that say where they stand; some cannot be had, and behind an end none.
    #[derive(Debug)]
    struct Numbers {
        readers: usize,
        gone_from: u64,
    }

    impl Source for Numbers {
        fn size(&self) -> u64 {
            1 << 20
        }
        fn path(&self) -> &Path {
            Path::new("numbers")
        }
        fn describe(&self) -> String {
            "numbers".to_owned()
        }
        fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
            if offset >= self.gone_from {
                return Err(SourceError::Short { path: "numbers".into(), offset, size: self.size() });
            }
            room.fill((offset / 1000) as u8);
            Ok(())
        }
        fn read_past_errors_at(&self, at: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
            self.read_exact_at(at, room)?;
            let is_bad = at == 7000;
            Ok(is_bad.then(|| Unreadable { range: at..at + 1, why: "bad".to_owned() }).into_iter().collect())
        }
        fn identity(&self) -> String {
            String::new()
        }
        fn changed(&self) -> Option<String> {
            None
        }
        fn is_checksummed(&self) -> bool {
            false
        }
        fn readers(&self) -> usize {
            self.readers
        }
    }

    fn places(count: u64) -> impl Iterator<Item = (u64, usize)> + Clone + Send {
        (0..count).map(|at| (at * 1000, 1000))
    }

    #[test]
    fn chunks_come_in_order_whatever_reads_them() {
        for readers in [1, 2, 3, 8] {
            let source = Numbers { readers, gone_from: u64::MAX };
            for count in [0, 1, 2, 7, 100] {
                let (mut next, mut bad) = (0, 0);
                let read = read_in_order(&source, &places(count), &mut |chunk| {
                    assert_eq!((chunk.offset, chunk.bytes.len()), (next * 1000, 1000));
                    assert!(chunk.bytes.iter().all(|byte| *byte == next as u8));
                    bad += chunk.unreadable.len();
                    next += 1;
                    Ok(())
                });
                assert_eq!((read, next, bad), (Ok(()), count, usize::from(count > 7)));
            }
        }
    }

    #[test]
    fn a_failure_ends_all_threads() {
        for readers in [1, 4] {
            let mut taken = 0;
            let source = Numbers { readers, gone_from: 50_000 };
            let read = read_in_order(&source, &places(1000), &mut |_| {
                taken += 1;
                Ok(())
            });
            assert!(read.is_err_and(|failure| failure.text().contains("ended at byte 50000")));
            assert_eq!(taken, 50, "what was there before it came");
            let source = Numbers { readers, gone_from: u64::MAX };
            let read = read_in_order(&source, &places(1000), &mut |_| Err(Failure::failed("enough")));
            assert!(read.is_err());
        }
    }
}
