//! What tools will ask for of a volume that is being filled: the metadata of its file systems, and the rest
//! of a file of which they read a part.
//!
//! Owns the thread that looks at the disk and makes maps, and what it has learned of files. Never: what
//! metadata is (`cheetah_filesystem`), or when it is read (`core::filling`). Invariant: it reads the volume
//! and not the source, so nothing is read there twice. A disk on which nothing is recognised is read as it
//! lies. Called by `work`. Tests: `lab/tests/open.rs`, `lab/tests/on_disk.rs`.

use super::work::Filling;
use crate::on_disk;
use cheetah_core::limits::{BLOCK_BYTES, PARTITIONS_TOLD_MAX};
use cheetah_filesystem::{Files, MapError, Partition, Run, extended, map, partitions};
use cheetah_rim::filler::Brings;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError, mpsc};

/// Tools read so much at once, from where a block of metadata begins: The Sleuth Kit does.
const READ_BYTES: u64 = 64 << 10;
/// Of one file, so much follows the part of it that a tool reads.
const FILE_BYTES: u64 = 64 << 20;
/// A read that donors do not answer is tried so often: the one that held it may have gone.
const ATTEMPTS: u32 = 3;

/// What is known of files, by file system.
#[derive(Debug, Default)]
pub struct KnownFiles(Mutex<Vec<Files>>);

impl KnownFiles {
    /// Where the file goes on of which a tool asks for this byte; nothing where none is known.
    pub fn rest(&self, offset: u64) -> Vec<Range<u64>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = all.iter().find_map(|files| files.of(offset)) else { return Vec::new() };
        let (mut room, mut rest) = (FILE_BYTES, Vec::new());
        for run in file.rest() {
            let bytes = run.bytes.min(room);
            rest.push(run.offset..run.offset + bytes);
            room -= bytes;
            if room == 0 {
                break;
            }
        }
        rest
    }
}

/// Finds what is on the disk and the metadata of all file systems, and has that read before the rest.
pub fn expect(filling: &Filling, known: &KnownFiles) {
    let size = filling.size();
    let read = |offset: u64, room: &mut [u8]| read(filling, offset, room);
    let told = |runs: &[Run]| -> Vec<Range<u64>> {
        let runs = extended(runs, READ_BYTES - BLOCK_BYTES, size);
        let ranges: Vec<_> = runs.into_iter().map(|run| run.offset..run.end()).collect();
        filling.value(&ranges);
        filling.expect(ranges.clone(), false);
        ranges
    };
    let layout = match partitions(&read, size) {
        Ok(layout) => layout,
        Err(error) => {
            filling.found(on_disk::unreadable());
            return tracing::info!("the disk is read as it lies: {error}");
        }
    };
    told(&layout.runs);
    // Where tools look for what an image is.
    told(&[Run { offset: size.saturating_sub(BLOCK_BYTES), bytes: BLOCK_BYTES }]);
    // What is on each is known before the first is mapped, which may take long.
    let heads: Vec<Run> = layout.partitions.iter().take(PARTITIONS_TOLD_MAX).map(Partition::head).collect();
    told(&heads);
    let on_disk = on_disk::look(&read, &layout);
    on_disk::log(&on_disk);
    filling.found(on_disk);
    for partition in layout.partitions {
        let (number, mut expected) = (partition.number, Vec::new());
        match map(&read, partition.range, &mut |runs| expected.extend(told(runs))) {
            Ok(made) => {
                let kind = made.kind;
                known.0.lock().unwrap_or_else(PoisonError::into_inner).push(made.files);
                if expected.into_iter().all(|range| filling.comes(&range)) {
                    tracing::info!(target: "journal", event = "metadata-here", "the metadata of {kind} in partition {number} is here");
                }
            }
            Err(MapError::Unknown) => {}
            // That was said.
            Err(MapError::NotMapped { kind }) if kind.is_encrypted() => {}
            Err(error) => tracing::info!("partition {number} is read as it lies: {error}"),
        }
    }
}

/// Reads what is here, and what is not once it is.
fn read(filling: &Filling, offset: u64, room: &mut [u8]) -> io::Result<()> {
    let range = offset..offset.saturating_add(room.len() as u64);
    match filling.shares() {
        // What is expected may find no room; what is asked for does.
        true if !comes_again(filling, &range) => return Err(io::Error::other("it cannot be read now")),
        true => filling.value(std::slice::from_ref(&range)),
        false => filling.expect(vec![range.clone()], true),
    }
    let mut attempt = 1;
    loop {
        match filling.read_when_here(range.clone()) {
            Ok(bytes) => {
                room.copy_from_slice(&bytes);
                return Ok(());
            }
            // What went with a donor comes again, as for any tool; what the source cannot give does not.
            Err(error) if attempt == ATTEMPTS || !comes_again(filling, &range) => return Err(error),
            Err(_) => attempt += 1,
        }
    }
}

fn comes_again(filling: &Filling, range: &Range<u64>) -> bool {
    let (told, done) = mpsc::channel();
    let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
    filling.bring(
        range.start,
        len,
        Box::new(move |result| {
            let _ = told.send(result.is_ok());
        }),
    );
    done.recv().unwrap_or(false)
}
