//! A walk over the metadata of one file system: what all maps read by.
//!
//! Owns: telling what is metadata before it is read; reading in few and large pieces; the limits of what a
//! hostile disk can make it do. Offsets here are those of the file system, those that are told are the
//! disk's. Key invariant: no read leaves the file system, and all have at most twice its size and 16 MiB.
//! Called by the maps. Tests: `hostile`.

use std::ops::Range;

use crate::error::{MapError, damaged};
use crate::files::Builder;
use crate::run::{Run, joined};

/// How the disk is read: fills the room from an offset on, or says why not.
pub type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> std::io::Result<()> + 'a;
/// Told of metadata, in offsets of the disk, before it is read.
pub type Found<'a> = dyn FnMut(&[Run]) + 'a;

/// Of one read: at 100 Mbit/s it takes four round trips of 20 ms.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Blocks that are so near are read as one: less than a round trip's worth of bytes.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Of blocks that are read together, and so of memory.
pub(crate) const TOGETHER_BYTES: u64 = 4 << 20;
/// Of metadata: 16 MiB of memory.
const RUNS_MAX: usize = 1 << 20;
/// Pieces that cannot be read, before the walk is given up. Zeros stand for them.
const UNREADABLE_MAX: u32 = 16;
/// Beside twice the size of the file system: small ones are read in pieces as well.
const READ_BYTES_SPARE: u64 = 16 << 20;

pub(crate) struct Walk<'a> {
    read: &'a ReadAt<'a>,
    found: &'a mut Found<'a>,
    volume: Range<u64>,
    read_bytes_left: u64,
    unreadable: u32,
    pub(crate) runs: Vec<Run>,
    pub(crate) files: Builder,
    /// Why something may be missing.
    pub(crate) gaps: Vec<&'static str>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(read: &'a ReadAt<'a>, volume: Range<u64>, found: &'a mut Found<'a>) -> Self {
        let size = volume.end.saturating_sub(volume.start);
        Self {
            read,
            found,
            read_bytes_left: size.saturating_mul(2).saturating_add(READ_BYTES_SPARE),
            files: Builder::new(volume.clone()),
            volume,
            unreadable: 0,
            runs: Vec::new(),
            gaps: Vec::new(),
        }
    }

    /// Of the file system.
    pub(crate) fn size(&self) -> u64 {
        self.volume.end - self.volume.start
    }

    /// Says it once.
    pub(crate) fn gap(&mut self, why: &'static str) {
        if !self.gaps.contains(&why) {
            self.gaps.push(why);
        }
    }

    /// Says that these are metadata. What lies outside the file system is left out.
    pub(crate) fn tell(&mut self, runs: &[Run]) {
        let whole = 0..self.size();
        let inside = runs.iter().filter_map(|run| run.within(&whole));
        let start = self.volume.start;
        let mut told = joined(inside.map(|run| Run::new(start + run.offset, run.bytes)).collect());
        let room = RUNS_MAX - self.runs.len();
        if told.len() > room {
            told.truncate(room);
            self.gap("its metadata lies in more than a million runs");
        }
        if !told.is_empty() {
            (self.found)(&told);
            self.runs.extend(told);
        }
    }

    /// Bytes that the map cannot be made without.
    pub(crate) fn must_read(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, MapError> {
        let mut room = Vec::new();
        match self.read_into(offset, bytes, &mut room)? {
            None => Ok(room),
            Some(why) => Err(MapError::Read { offset: self.volume.start + offset, why }),
        }
    }

    /// Appends bytes, with zeros for what cannot be read; an error when that is too often.
    fn append(&mut self, offset: u64, bytes: u64, room: &mut Vec<u8>) -> Result<(), MapError> {
        let Some(why) = self.read_into(offset, bytes, room)? else { return Ok(()) };
        self.unreadable += 1;
        self.gap("some of its metadata cannot be read");
        if self.unreadable > UNREADABLE_MAX {
            return Err(MapError::Read { offset: self.volume.start + offset, why });
        }
        Ok(())
    }

    fn read_into(
        &mut self,
        offset: u64,
        bytes: u64,
        room: &mut Vec<u8>,
    ) -> Result<Option<std::io::Error>, MapError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.size()) {
            return damaged(format!(
                "{bytes} bytes at {offset} are named, behind its end at {}",
                self.size()
            ));
        }
        if bytes > self.read_bytes_left {
            return damaged("it names the same bytes again and again");
        }
        self.read_bytes_left -= bytes;
        let Ok(len) = usize::try_from(bytes) else { return damaged("a structure is too large") };
        let from = room.len();
        room.resize(from + len, 0);
        match (self.read)(self.volume.start + offset, &mut room[from..]) {
            Ok(()) => Ok(None),
            Err(why) => {
                room[from..].fill(0);
                Ok(Some(why))
            }
        }
    }

    /// What lists of runs hold, each list's in its order. Neighbours are read with one read. The caller keeps
    /// within `TOGETHER_BYTES`, more or less: all of it is in memory.
    pub(crate) fn together(&mut self, lists: &[Vec<Run>]) -> Result<Vec<Vec<u8>>, MapError> {
        let whole = 0..self.size();
        let mut contents: Vec<Vec<u8>> = Vec::new();
        // What to read, for which list, and where in it that goes.
        let mut parts: Vec<(Run, usize, usize)> = Vec::new();
        for (list, runs) in lists.iter().enumerate() {
            let mut len = 0;
            for run in runs.iter().filter_map(|run| run.within(&whole)) {
                for part in in_pieces(run) {
                    parts.push((part, list, len));
                    len += usize::try_from(part.bytes).unwrap_or(0);
                }
            }
            contents.push(vec![0; len]);
        }
        parts.sort_unstable();
        let mut rest = &parts[..];
        let mut room = Vec::new();
        while let Some((first, _, _)) = rest.first() {
            let (from, mut end, mut count) = (first.offset, first.end(), 0);
            for (part, _, _) in rest {
                let wide = end.max(part.end());
                if part.offset > end + GAP_BYTES_MAX || (count > 0 && wide - from > PIECE_BYTES) {
                    break;
                }
                (end, count) = (wide, count + 1);
            }
            room.clear();
            self.append(from, end - from, &mut room)?;
            let (now, later) = rest.split_at(count);
            for (part, list, at) in now {
                let source = usize::try_from(part.offset - from).unwrap_or(0);
                let len = usize::try_from(part.bytes).unwrap_or(0);
                contents[*list][*at..*at + len].copy_from_slice(&room[source..source + len]);
            }
            rest = later;
        }
        Ok(contents)
    }
}

/// A run as runs of at most a piece.
fn in_pieces(run: Run) -> impl Iterator<Item = Run> {
    (0..run.bytes.div_ceil(PIECE_BYTES)).map(move |index| {
        let at = index * PIECE_BYTES;
        Run::new(run.offset + at, (run.bytes - at).min(PIECE_BYTES))
    })
}

/// A large structure that lies in several runs, read from its beginning to its end.
pub(crate) struct Stream {
    runs: Vec<Run>,
    next: usize,
    /// Of the structure, read so far.
    position: u64,
    /// The beginning of a unit whose end lies in the next run.
    rest: Vec<u8>,
    unit: usize,
}

impl Stream {
    /// `unit`: what the structure consists of; never torn. At most a piece, and not zero.
    pub(crate) fn new(runs: &[Run], unit: usize) -> Self {
        let runs = runs.iter().flat_map(|run| in_pieces(*run)).collect();
        Self { runs, next: 0, position: 0, rest: Vec::new(), unit: unit.max(1) }
    }

    /// Whole units, and where the first of them is in the structure. Small runs are read each by itself.
    pub(crate) fn next(&mut self, walk: &mut Walk<'_>) -> Result<Option<(u64, Vec<u8>)>, MapError> {
        let mut room = std::mem::take(&mut self.rest);
        while let Some(run) = self.runs.get(self.next) {
            if room.len() >= self.unit && room.len() as u64 + run.bytes > PIECE_BYTES {
                break;
            }
            walk.append(run.offset, run.bytes, &mut room)?;
            self.next += 1;
        }
        self.rest = room.split_off(room.len() / self.unit * self.unit);
        let from = self.position;
        self.position += room.len() as u64;
        Ok((!room.is_empty()).then_some((from, room)))
    }
}
