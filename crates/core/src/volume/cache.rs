//! What a client has of a volume's content: which ranges, where in its memory, and which of it goes first.
//!
//! Owns the directory of segments and the memory they lie in. Never: bytes, requests to donors, what is
//! fetched. Invariants: segments that can be found never overlap; one that is on its way keeps its memory
//! until it is answered, also when a write has made it stale. Called by `cached`. Tests:
//! `tests/volume_cache.rs`, the simulator.

use super::Key;
use super::buddy::{Buddy, PIECE_BYTES_MAX};
use super::slab::Slab;
use super::types::{At, Effect, Mem, Tag};
use crate::ahead::Want;
use crate::units::Time;
use std::collections::BTreeMap;

/// Segments at once: all memory in pieces of 16 KiB is 16,384 of 256 MiB.
const SEGMENTS_MAX: usize = 16_384;
/// Segments that make room for one.
const GIVEN_UP_MAX: u32 = 64;

/// A run of the volume, and where it is in the cache's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) len: u32,
    pub(super) at: u32,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) place: Place,
    pub(super) stream: u32,
    /// When donors were asked for it.
    pub(super) asked: Time,
    /// Whether it has come; else it is on its way.
    pub(super) here: bool,
    /// Overtaken by a write: nobody finds it.
    stale: bool,
    /// The reader may have it already; it stays in case it has not yet.
    pub(super) offered: bool,
    /// Bytes that no tool has read yet.
    pub(super) unread: u32,
    /// When it was last used, counted in uses.
    touched: u64,
    pub(super) waiting: Vec<Key>,
}

impl Place {
    fn end(self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// What a tool's read of this range has of it, copied there; and how many bytes that is.
    pub(super) fn copy_to(self, tag: Tag, offset: u64, len: u32) -> (Effect, u32) {
        let from = self.start.max(offset);
        let to = self.end().min(offset + u64::from(len));
        let narrow = |bytes: u64| u32::try_from(bytes).expect("inside the segment and the read");
        let len = narrow(to - from);
        let source = At { mem: Mem::Cache, offset: self.at + narrow(from - self.start) };
        let target = At { mem: Mem::Payload(tag), offset: narrow(from - offset) };
        (Effect::Copy { from: source, to: target, len }, len)
    }
}

/// Unread bytes that were given up: stream, bytes.
pub(super) type Wasted = (u32, u32);

#[derive(Debug)]
pub(super) struct Cache {
    memory: Buddy,
    segments: Slab<Segment>,
    by_start: BTreeMap<u64, Key>,
    /// Those that came, the least lately used first.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    /// What is read stays, for it may be read again; else it goes at once.
    keeps: bool,
    coming: usize,
}

impl Cache {
    pub(super) fn new(bytes: u32, keeps: bool) -> Cache {
        Cache {
            memory: Buddy::new(bytes),
            segments: Slab::with_capacity(SEGMENTS_MAX),
            by_start: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            keeps,
            coming: 0,
        }
    }

    pub(super) fn bytes(&self) -> u32 {
        self.memory.bytes()
    }

    /// Segments on their way.
    pub(super) fn coming(&self) -> usize {
        self.coming
    }

    pub(super) fn get(&self, key: Key) -> Option<&Segment> {
        self.segments.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Segment> {
        self.segments.get_mut(key)
    }

    /// The segments that touch a range, in order.
    fn touching(&self, offset: u64, end: u64) -> impl Iterator<Item = Key> {
        let first = self.by_start.range(..offset).next_back();
        let before =
            first.filter(|(_, key)| self.segments.get(**key).is_some_and(|s| s.place.end() > offset));
        before.into_iter().chain(self.by_start.range(offset..end)).map(|(_, key)| *key)
    }

    /// The segments that make up all of a range, in order; none if a byte of it is missing.
    pub(super) fn cover(&self, offset: u64, len: u32, keys: &mut Vec<Key>) -> bool {
        let end = offset + u64::from(len);
        let mut at = offset;
        keys.clear();
        for key in self.touching(offset, end) {
            let place = self.segments.get(key).expect("listed").place;
            if place.start > at {
                break;
            }
            at = place.end();
            keys.push(key);
        }
        at >= end
    }

    /// The parts of a range that no segment has, each of a size that one can have.
    pub(super) fn gaps(&self, want: Want, gaps: &mut Vec<Want>) {
        let end = want.offset + u64::from(want.len);
        let mut at = want.offset;
        let held = self.touching(want.offset, end).map(|key| self.segments.get(key).expect("listed").place);
        for (start, next) in held.map(|place| (place.start, place.end())).chain([(end, end)]) {
            while at < start {
                let len = (start - at).min(u64::from(PIECE_BYTES_MAX));
                gaps.push(Want { offset: at, len: u32::try_from(len).expect("a piece"), ..want });
                at += len;
            }
            at = at.max(next);
        }
    }

    /// Makes room for a gap, throwing away what was not used for longest. Nothing where all of it is on its
    /// way.
    pub(super) fn begin(&mut self, now: Time, gap: Want, wasted: &mut Vec<Wasted>) -> Option<Key> {
        let mut given_up = 0;
        let at = loop {
            if self.segments.room() > 0
                && let Some(at) = self.memory.take(gap.len)
            {
                break at;
            }
            // Where what is on its way lies scattered, all the rest would not make one piece.
            if given_up == GIVEN_UP_MAX {
                return None;
            }
            let (_, oldest) = self.by_use.pop_first()?;
            self.drop_found(oldest, wasted);
            given_up += 1;
        };
        let segment = Segment {
            place: Place { start: gap.offset, len: gap.len, at },
            stream: gap.stream,
            asked: now,
            here: false,
            stale: false,
            offered: false,
            unread: gap.len,
            touched: 0,
            waiting: Vec::new(),
        };
        let key = self.segments.insert(segment);
        self.by_start.insert(gap.offset, key);
        self.coming += 1;
        Some(key)
    }

    /// A segment was answered; whether it can be used. Its memory is free again if not.
    pub(super) fn came(&mut self, key: Key, good: bool, wasted: &mut Vec<Wasted>) -> bool {
        self.coming -= 1;
        self.uses += 1;
        let uses = self.uses;
        let segment = self.segments.get_mut(key).expect("on its way");
        if good && !segment.stale {
            (segment.here, segment.touched) = (true, uses);
            self.by_use.insert(uses, key);
            return true;
        }
        if !segment.stale {
            self.by_start.remove(&segment.place.start);
        }
        self.free(key, wasted);
        false
    }

    /// All of it is as good as read.
    pub(super) fn offered(&mut self, key: Key) {
        let segment = self.segments.get_mut(key).expect("in use");
        (segment.offered, segment.unread) = (true, 0);
    }

    /// A tool has so much of it.
    pub(super) fn used(&mut self, key: Key, bytes: u32) {
        self.uses += 1;
        let segment = self.segments.get_mut(key).expect("in use");
        segment.unread = segment.unread.saturating_sub(bytes);
        self.by_use.remove(&segment.touched);
        if segment.unread == 0 && !self.keeps && !segment.offered {
            self.by_start.remove(&segment.place.start);
            return self.free(key, &mut Vec::new());
        }
        segment.touched = self.uses;
        self.by_use.insert(self.uses, key);
    }

    /// What a range held is not so any more.
    pub(super) fn forget(&mut self, offset: u64, end: u64, wasted: &mut Vec<Wasted>) {
        let touched: Vec<Key> = self.touching(offset, end).collect();
        for key in touched {
            let segment = self.segments.get(key).expect("listed");
            if segment.here {
                self.by_use.remove(&segment.touched);
            }
            self.drop_found(key, wasted);
        }
    }

    /// One that can be found, and is not in `by_use` any more.
    fn drop_found(&mut self, key: Key, wasted: &mut Vec<Wasted>) {
        let segment = self.segments.get_mut(key).expect("listed");
        self.by_start.remove(&segment.place.start);
        if segment.here {
            self.free(key, wasted);
        } else {
            segment.stale = true;
        }
    }

    fn free(&mut self, key: Key, wasted: &mut Vec<Wasted>) {
        let segment = self.segments.remove(key).expect("freed once");
        self.memory.give(segment.place.at, segment.place.len);
        if segment.unread > 0 {
            wasted.push((segment.stream, segment.unread));
        }
    }

    /// Panics when a rule that the code relies on does not hold.
    pub(super) fn check_invariants(&self) {
        let mut end = 0;
        for (start, key) in &self.by_start {
            let segment = self.segments.get(*key).expect("what can be found is there");
            assert!(segment.place.start == *start && *start >= end && !segment.stale, "segments overlap");
            end = segment.place.end();
        }
        let (mut taken, mut coming, mut found) = (0, 0, 0);
        for (key, segment) in self.segments.iter() {
            taken += u64::from(segment.place.len.next_power_of_two().max(crate::limits::BLOCK_BYTES as u32));
            coming += usize::from(!segment.here);
            found += usize::from(!segment.stale);
            assert_eq!(self.by_use.get(&segment.touched) == Some(&key), segment.here);
            assert!(!segment.here || segment.waiting.is_empty(), "one waits for what came");
        }
        assert_eq!(taken + self.memory.room(), u64::from(self.memory.bytes()), "memory of the cache is lost");
        assert_eq!((coming, found), (self.coming, self.by_start.len()), "segments are miscounted");
    }
}
