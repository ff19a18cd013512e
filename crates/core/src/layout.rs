//! The layout arithmetic: volume offset -> group -> row -> unit -> (slot, offset in the extent).
//!
//! Owns the one mapping that every read and write goes through, and the honest list of what a lost donor
//! takes with it. Never: state, or knowledge of who is alive. Invariant: the columns of a range cover each of
//! its bytes exactly once, and a column is one run of its slot's extent, however many rows it spans.
//! Called by `volume` for each request. Tests: the properties in `tests/layout.rs`.

use crate::limits::EXTENT_BYTES;
use crate::map::{BadRange, DonorId, Group, Redundancy, Slot, VolumeMap};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The part of a request that lies in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the group in the map.
    pub group: u32,
    /// First and last byte + 1, counted from the start of the group.
    pub begin: u32,
    /// More than `begin`.
    pub end: u32,
    /// Where byte `begin` is in the payload.
    pub payload: u32,
}

impl Span {
    /// The part of it between two bytes of the group, which must be among its own.
    #[must_use]
    pub fn cut(self, begin: u32, end: u32) -> Span {
        Span { begin, end, payload: self.payload + (begin - self.begin), ..self }
    }
}

/// How a volume is dealt out to its groups: chunk n lies in group n mod `groups`, in its layer n / `groups`.
/// Only a volume that is larger than its memory has several layers; those of a group lie one behind the other
/// in its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Bytes of a chunk: an extent of each data slot.
    pub bytes: u64,
    /// At least one.
    pub groups: u64,
}

impl Chunks {
    /// Cuts `len` bytes at `offset` of the volume at the borders of its chunks.
    pub fn spans(self, offset: u64, len: u32) -> impl Iterator<Item = Span> {
        let Chunks { bytes, groups } = self;
        let mut done = 0u64;
        std::iter::from_fn(move || {
            let left = u64::from(len).checked_sub(done).filter(|left| *left > 0)?;
            let at = offset + done;
            let (chunk, inside) = (at / bytes, at % bytes);
            let len = left.min(bytes - inside);
            let begin = chunk / groups * bytes + inside;
            let group = narrow(chunk % groups);
            let span = Span { group, begin: narrow(begin), end: narrow(begin + len), payload: narrow(done) };
            done += len;
            Some(span)
        })
    }

    /// Where in the volume a byte of a group lies.
    #[must_use]
    pub fn offset(self, group: u32, inside: u32) -> u64 {
        let (layer, inside) = (u64::from(inside) / self.bytes, u64::from(inside) % self.bytes);
        (layer * self.groups + u64::from(group)) * self.bytes + inside
    }
}

/// A layer of an extent begins at this in a donor's addresses, which end below.
pub const LAYER_SHIFT: u32 = 48;

/// The address of a byte of an extent of a donor, of which layers follow each other in `local`.
#[must_use]
#[inline]
pub fn address(extent: u32, local: u32) -> u64 {
    let (layer, inside) = (u64::from(local) / EXTENT_BYTES, u64::from(local) % EXTENT_BYTES);
    (layer << LAYER_SHIFT) + u64::from(extent) * EXTENT_BYTES + inside
}

/// The layer that an address is in, and the address in the first one.
#[must_use]
#[inline]
pub fn layer_of(address: u64) -> (u32, u64) {
    (narrow(address >> LAYER_SHIFT), address & ((1 << LAYER_SHIFT) - 1))
}

/// How the bytes of a group are dealt out to its data slots. A group has less than 64 x 64 MiB, its layers
/// included, so offsets are u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// k: the data slots of a group.
    pub data: u32,
    /// m: the parity slots of a group.
    pub parity: u32,
    /// With one data slot there are no rows: its unit is the extent.
    pub unit: u32,
}

impl Geometry {
    /// `unit` is the map's, in bytes. It has no effect where there is one data slot.
    #[must_use]
    pub fn new(redundancy: Redundancy, unit: u32) -> Self {
        let Redundancy { data, parity } = redundancy;
        Geometry { data, parity, unit: if data == 1 { narrow(EXTENT_BYTES) } else { unit } }
    }

    /// Bytes of the volume in one row.
    #[must_use]
    pub fn row(self) -> u32 {
        self.data * self.unit
    }

    /// The group offset of byte `local` of a data slot's extent.
    #[must_use]
    pub fn offset(self, slot: u32, local: u32) -> u32 {
        local / self.unit * self.row() + slot * self.unit + local % self.unit
    }

    /// Which run of a data slot's extent the bytes `begin..end` of the group touch; empty when from == to.
    #[must_use]
    pub fn column(self, begin: u32, end: u32, slot: u32) -> (u32, u32) {
        let before = |at: u32| {
            let inside = (at % self.row()).saturating_sub(slot * self.unit).min(self.unit);
            at / self.row() * self.unit + inside
        };
        (before(begin), before(end))
    }

    /// The run of an extent that holds all that the bytes `begin..end` of the group touch of any data slot's.
    #[must_use]
    pub fn reach(self, begin: u32, end: u32) -> (u32, u32) {
        let last = end - 1;
        let (row, unit) = (|at: u32| at / self.row() * self.unit, |at: u32| at / self.unit);
        let in_one = unit(begin) == unit(last);
        // Behind a unit that begins in the middle lies one of the same row that does not, unless it is the
        // last of the row or of all.
        let from_middle = in_one || unit(begin) % self.data == self.data - 1;
        let to_middle = in_one || unit(last).is_multiple_of(self.data);
        let lo = row(begin) + if from_middle { begin % self.unit } else { 0 };
        let hi = row(last) + if to_middle { last % self.unit + 1 } else { self.unit };
        (lo, hi)
    }

    /// A bit for each data slot of which the bytes `begin..end` of the group touch something.
    #[must_use]
    pub fn touched(self, begin: u32, end: u32) -> u32 {
        let first = begin / self.unit;
        let units = end.div_ceil(self.unit) - first;
        let ones = |count: u32| u32::MAX >> (u32::BITS - count);
        if units >= self.data {
            return ones(self.data);
        }
        // What goes beyond the last slot goes on at the first.
        let (run, slot) = (ones(units), first % self.data);
        (run << slot | run.checked_shr(self.data - slot).unwrap_or(0)) & ones(self.data)
    }

    /// Where bytes `from..to` of a data slot's extent belong in a payload that has byte `begin` of the group
    /// at `payload`. They must be among its bytes.
    #[must_use]
    pub fn scatter(self, slot: u32, from: u32, to: u32, begin: u32, payload: u32) -> Scatter {
        let position = |local: u32| self.offset(slot, local) - begin + payload;
        let len = to - from;
        let first = (self.unit - from % self.unit).min(len);
        if first == len {
            return Scatter::whole(position(from), len);
        }
        let second = position(from + first);
        Scatter { start: position(from), first, second, unit: self.unit, stride: self.row(), len }
    }
}

/// Where the bytes of a fragment belong in the payload of its request: a first piece that may begin inside a
/// unit, then whole units at a fixed stride, the last one possibly cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// Payload offset of the first piece.
    pub start: u32,
    /// Bytes in the first piece.
    pub first: u32,
    /// Payload offset of the second piece.
    pub second: u32,
    /// Bytes in a full piece.
    pub unit: u32,
    /// Payload distance between pieces from the second on.
    pub stride: u32,
    /// Bytes in all.
    pub len: u32,
}

impl Scatter {
    /// All of a payload of `len` bytes, in one piece.
    #[must_use]
    pub fn whole(start: u32, len: u32) -> Self {
        Scatter { start, first: len, second: 0, unit: len, stride: 0, len }
    }

    /// The pieces, in the order of the donor's memory: (payload offset, length).
    pub fn pieces(self) -> impl Iterator<Item = (u32, u32)> {
        let mut done = 0;
        let mut index = 0;
        std::iter::from_fn(move || {
            if done == self.len {
                return None;
            }
            let (offset, full) = match index {
                0 => (self.start, self.first),
                n => (self.second + (n - 1) * self.stride, self.unit),
            };
            let len = full.min(self.len - done);
            index += 1;
            done += len;
            Some((offset, len))
        })
    }

    /// Where byte `at` of the fragment belongs in the payload, and how many follow it in the same piece.
    #[must_use]
    pub fn locate(self, at: u32) -> (u32, u32) {
        if at < self.first {
            return (self.start + at, (self.first - at).min(self.len - at));
        }
        let past = at - self.first;
        let (piece, inside) = (past / self.unit, past % self.unit);
        (self.second + piece * self.stride + inside, (self.unit - inside).min(self.len - at))
    }
}

/// Ranges of the volume that nothing can give back: every `stride` bytes from `offset` on, `len` of them,
/// `count` times; the last of several may be cut short by the volume's end. Bounded by the number of groups
/// and bad ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// Whose loss it is; `None` when what is wrong is not for the want of a donor.
    pub donor: Option<DonorId>,
    /// Bytes from the start of the volume to the first piece.
    pub offset: u64,
    /// Bytes of each piece, more than 0.
    pub len: u64,
    /// Bytes from the start of one piece to the start of the next, at least `len`.
    pub stride: u64,
    /// Pieces, at least 1. The `len` of a single piece is exact, also at the volume's end.
    pub count: u64,
}

impl LostRange {
    /// Whether any of these bytes is in it.
    #[must_use]
    pub fn reaches(&self, from: u64, end: u64) -> bool {
        let Some(ahead) = end.checked_sub(1).and_then(|last| last.checked_sub(self.offset)) else {
            return false;
        };
        // Of the pieces that begin before the end the last one reaches furthest.
        let piece = (ahead / self.stride).min(self.count - 1);
        from < end && self.offset + piece * self.stride + self.len > from
    }
}

impl fmt::Display for LostRange {
    /// As people read it, without whose loss it is: `4096 bytes from 8192 on, every 196608, 3 times`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostRange { offset, len, stride, count, .. } = self;
        write!(f, "{len} bytes from {offset} on")?;
        if *count == 1 { Ok(()) } else { write!(f, ", every {stride}, {count} times") }
    }
}

/// The groups that have lost more than redundancy covers while `is_lost` donors are, each with its number:
/// fewer than k of their slots have a holder that lives.
pub fn beyond(map: &VolumeMap, is_lost: impl Fn(DonorId) -> bool) -> impl Iterator<Item = (usize, &Group)> {
    map.groups.iter().enumerate().filter(move |(_, group)| is_beyond(map, group, &is_lost))
}

fn is_beyond(map: &VolumeMap, group: &Group, is_lost: impl Fn(DonorId) -> bool) -> bool {
    let lives = |slot: &&Slot| slot.held.is_some_and(|held| !is_lost(held.donor));
    group.slots.iter().filter(lives).count() < index(u64::from(map.redundancy.data))
}

/// What is lost while `is_lost` donors are, merged where neighbours join up: data slots without a holder that
/// lives, in groups with fewer than k of those; and what the map says is bad beside it.
pub fn lost_ranges(map: &VolumeMap, is_lost: impl Fn(DonorId) -> bool) -> Vec<LostRange> {
    let (k, unit, group_bytes) = (u64::from(map.redundancy.data), u64::from(map.unit), map.group_bytes());
    let lives = |slot: &Slot| slot.held.is_some_and(|held| !is_lost(held.donor));
    let mut ranges: Vec<LostRange> = Vec::new();
    let lost: Vec<_> = beyond(map, &is_lost).collect();
    let of_layer =
        |layer: u64| lost.iter().map(move |(g, group)| (layer * map.groups.len() as u64, *g, *group));
    let chunks = (0..u64::from(map.layers())).flat_map(of_layer);
    for (before, g, group) in chunks {
        let begin = (before + g as u64) * group_bytes;
        let end = (begin + group_bytes).min(map.size);
        if begin >= end {
            continue;
        }
        for (j, slot) in group.slots.iter().take(index(k)).enumerate().filter(|(_, slot)| !lives(slot)) {
            let offset = begin + j as u64 * unit;
            if k > 1 {
                let donor = slot.held.map(|held| held.donor);
                push_lost(&mut ranges, donor, offset, unit, k * unit, end);
                continue;
            }
            // All slots of a mirror hold the same.
            let donor = group.slots.iter().find_map(|slot| slot.held).map(|held| held.donor);
            let len = end - begin;
            match ranges.last_mut() {
                Some(last) if last.donor == donor && last.offset + last.len == begin => {
                    last.len += len;
                    last.stride += len;
                }
                _ => ranges.push(LostRange { donor, offset: begin, len, stride: len, count: 1 }),
            }
        }
    }
    let beside = |bad: &&BadRange| {
        let group = &map.groups[bad.group as usize];
        !is_beyond(map, group, &is_lost) || lives(&group.slots[bad.slot as usize])
    };
    for bad in map.bad.iter().filter(beside) {
        push_bad(&mut ranges, map, bad);
    }
    ranges
}

/// What could not be read at the source, in the volume's order.
pub fn unreadable_ranges(map: &VolumeMap) -> Vec<LostRange> {
    data_ranges(map, &map.unreadable)
}

/// Runs of fragments as ranges of the volume, in its order; what there is of parity is left out.
pub fn data_ranges(map: &VolumeMap, runs: &[BadRange]) -> Vec<LostRange> {
    let mut ranges = Vec::new();
    for run in runs.iter().filter(|run| run.slot < map.redundancy.data) {
        push_bad(&mut ranges, map, run);
    }
    ranges.sort_by_key(|range| range.offset);
    ranges.dedup_by(|next, last| {
        let joins = (last.count, next.count) == (1, 1) && last.offset + last.len == next.offset;
        if joins {
            last.len += next.len;
            last.stride = last.len;
        }
        joins
    });
    ranges
}

/// A run of one data fragment as ranges of the volume: what it has of its first unit, whole units, and of its
/// last.
fn push_bad(ranges: &mut Vec<LostRange>, map: &VolumeMap, bad: &BadRange) {
    let (mut from, to) = (u64::from(bad.from), u64::from(bad.to));
    while from < to {
        let layer = from / EXTENT_BYTES;
        let end = to.min((layer + 1) * EXTENT_BYTES);
        push_bad_of_layer(ranges, map, bad, layer, from % EXTENT_BYTES..end - layer * EXTENT_BYTES);
        from = end;
    }
}

fn push_bad_of_layer(
    ranges: &mut Vec<LostRange>,
    map: &VolumeMap,
    bad: &BadRange,
    layer: u64,
    run: std::ops::Range<u64>,
) {
    let (k, unit, group_bytes) = (u64::from(map.redundancy.data), u64::from(map.unit), map.group_bytes());
    let begin = (layer * map.groups.len() as u64 + u64::from(bad.group)) * group_bytes;
    let (from, to) = (run.start, run.end);
    if k == 1 {
        return push_lost(ranges, None, begin + from, to - from, to - from, map.size.min(begin + to));
    }
    let offset = |local: u64| begin + local / unit * k * unit + u64::from(bad.slot) * unit + local % unit;
    let end = |local: u64| offset(local - 1) + 1;
    let (first_whole, last_whole) = (from.next_multiple_of(unit), to / unit * unit);
    if first_whole > last_whole {
        return push_lost(ranges, None, offset(from), to - from, to - from, map.size.min(end(to)));
    }
    if from < first_whole {
        let len = first_whole - from;
        push_lost(ranges, None, offset(from), len, len, map.size.min(end(first_whole)));
    }
    if first_whole < last_whole {
        push_lost(ranges, None, offset(first_whole), unit, k * unit, map.size.min(end(last_whole)));
    }
    if last_whole < to {
        let len = to - last_whole;
        push_lost(ranges, None, offset(last_whole), len, len, map.size.min(end(to)));
    }
}

/// `len` bytes every `stride` from `offset` to `end`, if there are any.
fn push_lost(
    ranges: &mut Vec<LostRange>,
    donor: Option<DonorId>,
    offset: u64,
    len: u64,
    stride: u64,
    end: u64,
) {
    if offset < end {
        let count = (end - offset).div_ceil(stride);
        // One alone says itself where it ends.
        let len = if count == 1 { len.min(end - offset) } else { len };
        ranges.push(LostRange { donor, offset, len, stride, count });
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("an index fits in memory")
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("a payload is at most REQUEST_BYTES_MAX")
}
