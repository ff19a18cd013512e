//! What tools will ask for of a volume that is being filled: the metadata of its file systems, and the rest
//! of a file of which they read a part.
//!
//! Owns the thread that makes maps, and what it has learned of files. Never: what metadata is
//! (`cheetah_filesystem`), or when it is read (`core::filling`). Invariant: it reads the volume and not the
//! source, so nothing is read there twice. A disk on which nothing is recognised is read as it lies. Called
//! by `work`. Tests: `lab/tests/open.rs`.

use super::work::Filling;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_filesystem::{Files, MapError, Run, extended, map, partitions};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Tools read so much at once, from where a block of metadata begins: The Sleuth Kit does.
const READ_BYTES: u64 = 64 << 10;
/// Of one file, so much follows the part of it that a tool reads.
const FILE_BYTES: u64 = 64 << 20;

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

/// Finds the metadata of all file systems, and has it read before the rest.
pub fn expect(filling: &Filling, known: &KnownFiles) {
    let size = filling.size();
    let read = |offset: u64, room: &mut [u8]| read(filling, offset, room);
    let told = |runs: &[Run]| -> Vec<Range<u64>> {
        let runs = extended(runs, READ_BYTES - BLOCK_BYTES, size);
        let ranges: Vec<_> = runs.into_iter().map(|run| run.offset..run.end()).collect();
        filling.expect(ranges.clone(), false);
        ranges
    };
    let layout = match partitions(&read, size) {
        Ok(layout) => layout,
        Err(error) => return tracing::info!("the disk is read as it lies: {error}"),
    };
    told(&layout.runs);
    // Where tools look for what an image is.
    told(&[Run { offset: size.saturating_sub(BLOCK_BYTES), bytes: BLOCK_BYTES }]);
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
            Err(error) => tracing::info!("partition {number} is read as it lies: {error}"),
        }
    }
}

/// Reads what is here, and what is not once it is.
fn read(filling: &Filling, offset: u64, room: &mut [u8]) -> io::Result<()> {
    let range = offset..offset.saturating_add(room.len() as u64);
    filling.expect(vec![range.clone()], true);
    let bytes = filling.read_when_here(range)?;
    room.copy_from_slice(&bytes);
    Ok(())
}
