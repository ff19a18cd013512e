//! Which file owns a block, and where the rest of that file lies: for read-ahead that follows files.
//!
//! Owns: the runs of files, in file order and in the order of the disk. Never: names, or what is inside a
//! file's own metadata. Bound: 2 million runs, which are 72 MiB; what comes after them is not known. Filled
//! by the maps. Tests: here.

use std::ops::Range;

use crate::run::Run;

/// Of all files together.
const FILE_RUNS_MAX: usize = 2 << 20;

/// A part of a file that lies in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// The inode, the record of the $MFT, or the first cluster.
    file: u64,
    /// Of its first byte in the file.
    position: u64,
    run: Run,
}

/// Collects the runs of files while a map is made.
pub(crate) struct Builder {
    volume: Range<u64>,
    parts: Vec<Part>,
    is_complete: bool,
}

impl Builder {
    pub(crate) fn new(volume: Range<u64>) -> Self {
        Self { volume, parts: Vec::new(), is_complete: true }
    }

    /// `run` in offsets of the file system.
    pub(crate) fn add(&mut self, file: u64, position: u64, run: Run) {
        let size = self.volume.end - self.volume.start;
        let Some(inside) = run.within(&(0..size)) else { return };
        let run = Run::new(self.volume.start + inside.offset, inside.bytes);
        let count = self.parts.len();
        match self.parts.last_mut() {
            Some(last) if follows(last, file, position, run) => last.run.bytes += run.bytes,
            _ if count < FILE_RUNS_MAX => self.parts.push(Part { file, position, run }),
            _ => self.is_complete = false,
        }
    }

    pub(crate) fn finish(self) -> Files {
        let mut parts = self.parts;
        parts.sort_unstable();
        parts.dedup_by(|next, last| {
            let joins = follows(last, next.file, next.position, next.run);
            if joins {
                last.run.bytes += next.run.bytes;
            }
            joins
        });
        let mut by_offset: Vec<u32> = (0..).take(parts.len()).collect();
        by_offset.sort_unstable_by_key(|index| parts[*index as usize].run);
        Files { parts, by_offset, is_complete: self.is_complete }
    }
}

fn follows(last: &Part, file: u64, position: u64, run: Run) -> bool {
    last.file == file
        && last.position.checked_add(last.run.bytes) == Some(position)
        && last.run.end() == run.offset
}

/// The runs of a file system's files.
#[derive(Debug, Default)]
pub struct Files {
    /// By file, in the order of the file.
    parts: Vec<Part>,
    /// Indices of `parts` in the order of the disk.
    by_offset: Vec<u32>,
    is_complete: bool,
}

impl Files {
    /// The file that owns this byte of the disk.
    pub fn of(&self, offset: u64) -> Option<FileAt<'_>> {
        let behind = self.by_offset.partition_point(|index| self.parts[*index as usize].run.offset <= offset);
        let index = *self.by_offset.get(behind.checked_sub(1)?)? as usize;
        let part = self.parts[index];
        if part.run.end() <= offset {
            return None;
        }
        let others = self.parts[index..].partition_point(|other| other.file == part.file);
        Some(FileAt { offset, parts: &self.parts[index..index + others] })
    }

    /// How many runs are known.
    pub fn runs(&self) -> usize {
        self.parts.len()
    }

    /// Whether there was room for all.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug)]
pub struct FileAt<'a> {
    offset: u64,
    /// From the part on that has the place. Never empty.
    parts: &'a [Part],
}

impl FileAt<'_> {
    /// The number by which its file system knows the file: an inode, a record of the $MFT, a first cluster.
    pub fn file(&self) -> u64 {
        self.parts[0].file
    }

    /// Where in the file the place is.
    pub fn position(&self) -> u64 {
        self.parts[0].position + (self.offset - self.parts[0].run.offset)
    }

    /// Where the file goes on from this place, in the order of the file.
    pub fn rest(&self) -> impl Iterator<Item = Run> {
        self.parts.iter().enumerate().map(|(index, part)| match index {
            0 => Run::new(self.offset, part.run.end() - self.offset),
            _ => part.run,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: Option<FileAt<'_>>) -> (u64, u64, Vec<(u64, u64)>) {
        let of = of.expect("a file");
        (of.file(), of.position(), of.rest().map(|run| (run.offset, run.bytes)).collect())
    }

    #[test]
    fn a_place_gives_its_file_and_the_rest_of_it_in_its_order() {
        let mut builder = Builder::new(1000..11_000);
        builder.add(7, 200, Run::new(500, 100));
        builder.add(7, 0, Run::new(3000, 100));
        builder.add(7, 100, Run::new(3100, 100));
        builder.add(8, 0, Run::new(700, 300));
        builder.add(9, 0, Run::new(9900, 300));
        let files = builder.finish();
        assert_eq!(files.runs(), 4);
        assert!(files.is_complete());
        assert_eq!(runs(files.of(4150)), (7, 150, vec![(4150, 50), (1500, 100)]));
        assert_eq!(runs(files.of(1500)), (7, 200, vec![(1500, 100)]));
        assert_eq!(runs(files.of(1999)), (8, 299, vec![(1999, 1)]));
        assert_eq!(runs(files.of(10_900)), (9, 0, vec![(10_900, 100)]));
        for nobodys in [0, 1499, 1600, 2000, 11_000, u64::MAX] {
            assert!(files.of(nobodys).is_none(), "{nobodys}");
        }
    }
}
