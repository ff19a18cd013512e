//! Where a volume's bytes lie and who holds them: its newest map, with what this client knows better already.
//!
//! Owns the arithmetic of units, lanes and columns over the map, and ranges that are lost for good. Never:
//! which donor is asked. Tests: `tests/layout.rs`, `tests/lost_ranges.rs`, the simulator.

use super::BLOCK;
use super::job::{Content, Slots, bit};
use super::types::PartOp;
use crate::bad;
use crate::code::Code;
use crate::layout::{Chunks, Geometry, Span};
use crate::limits::{Patience, SCRATCH_LARGE_BYTES};
use crate::map::{BadRange, Medium, Placement, Slot, VolumeMap};

#[derive(Debug)]
pub(super) struct Shape {
    pub(super) map: VolumeMap,
    /// The map's.
    pub(super) chunks: Chunks,
    pub(super) geometry: Geometry,
    pub(super) code: Code,
    pub(super) read_only: bool,
    /// What was found to be lost for good, and the coordinator has yet to record.
    pub(super) bad: Vec<BadRange>,
    /// What of lost ranges was written again, likewise.
    pub(super) rewritten: Vec<BadRange>,
}

impl Shape {
    /// How long donors are waited for.
    pub(super) fn patience(&self) -> Patience {
        match self.map.medium {
            Medium::Memory => Patience::MEMORY,
            Medium::Disk => Patience::DISK,
        }
    }

    pub(super) fn new(map: VolumeMap, read_only: bool) -> Shape {
        let geometry = Geometry::new(map.redundancy, map.unit);
        let code = Code::new(map.redundancy);
        let chunks = map.chunks();
        Shape { map, chunks, geometry, code, read_only, bad: Vec::new(), rewritten: Vec::new() }
    }

    /// A slot of a group, as the map has it.
    pub(super) fn slot(&self, group: u32, slot: u32) -> Slot {
        self.map.groups[group as usize].slots[slot as usize]
    }

    /// All slots of a group by number, data first.
    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        0..self.geometry.data + self.geometry.parity
    }

    /// Those of them that have parity.
    pub(super) fn parity_slots(&self) -> std::ops::Range<u32> {
        self.geometry.data..self.geometry.data + self.geometry.parity
    }

    /// Who holds a slot of the group.
    pub(super) fn holders(&self, group: u32) -> impl Iterator<Item = Placement> + Clone {
        self.map.groups[group as usize].slots.iter().filter_map(|slot| slot.held)
    }

    pub(super) fn report_bad(&mut self, bad: BadRange) {
        if !self.bad.contains(&bad) {
            self.bad.push(bad);
        }
    }

    /// What is lost for good of data, whether the coordinator has recorded it yet or not.
    pub(super) fn lost_ranges(&self) -> impl Iterator<Item = &BadRange> {
        self.map.bad.iter().chain(&self.bad)
    }

    /// Whether the coordinator has yet to answer that something of these rows was written again.
    pub(super) fn is_rewritten_unheard(&self, group: u32, lo: u32, hi: u32) -> bool {
        let here = |range: &BadRange| range.group == group && range.from < hi && lo < range.to;
        self.rewritten.iter().any(here)
    }

    /// They are readable from now on, whatever the coordinator records meanwhile.
    pub(super) fn report_rewritten(&mut self, rewritten: Vec<BadRange>) {
        bad::subtract(&mut self.map.bad, rewritten.iter().copied());
        bad::subtract(&mut self.map.unreadable, rewritten.iter().copied());
        bad::subtract(&mut self.bad, rewritten.iter().copied());
        self.rewritten.extend(rewritten);
    }

    /// The blocks of each extent of its group that a span touches.
    pub(super) fn local_range(&self, span: Span) -> (u32, u32) {
        let (lo, hi) = self.geometry.reach(span.begin, span.end);
        (lo / BLOCK * BLOCK, hi.next_multiple_of(BLOCK))
    }

    /// Bytes of one lane at most, so that all lanes of a job fit into a piece of scratch memory.
    pub(super) fn lane_max(&self) -> u32 {
        let lanes = self.geometry.data + self.geometry.parity;
        let bytes = SCRATCH_LARGE_BYTES / lanes / BLOCK * BLOCK;
        if bytes > self.geometry.unit { bytes / self.geometry.unit * self.geometry.unit } else { bytes }
    }

    /// The data slots of which a span needs something between `lo` and `hi`.
    pub(super) fn wanted(&self, span: Span, lo: u32, hi: u32) -> Slots {
        let touches = |slot: &u32| {
            let (from, to) = self.geometry.column(span.begin, span.end, *slot);
            from.max(lo) < to.min(hi)
        };
        (0..self.geometry.data).filter(touches).map(bit).sum()
    }

    pub(super) fn is_held(&self, group: u32, slot: u32) -> bool {
        self.map.groups[group as usize].slots[slot as usize].held.is_some()
    }

    /// The pieces of a span in data slot `slot` between `lo` and `hi`: offset in the extent, in the payload,
    /// length.
    pub(super) fn overlap(&self, span: Span, slot: u32, lo: u32, hi: u32) -> Vec<(u32, u32, u32)> {
        let (from, to) = self.geometry.column(span.begin, span.end, slot);
        let (from, to) = (from.max(lo), to.min(hi));
        if from >= to {
            return Vec::new();
        }
        let mut local = from;
        let pieces = self.geometry.scatter(slot, from, to, span.begin, span.payload).pieces();
        let placed = pieces.map(|(payload, len)| {
            local += len;
            (local - len, payload, len)
        });
        placed.collect()
    }

    /// Whether a part of the span could not be read when the volume was loaded.
    pub(super) fn is_unreadable(&self, span: Span) -> bool {
        let list = &self.map.unreadable;
        !list.is_empty()
            && (0..self.geometry.data).any(|slot| {
                let (from, to) = self.geometry.column(span.begin, span.end, slot);
                touched_of(list, span.group, slot, from, to).next().is_some()
            })
    }

    /// Whether a part of the span is known to be lost for good.
    pub(super) fn is_bad(&self, span: Span) -> bool {
        self.lost_ranges().any(|bad| {
            let (from, to) = self.geometry.column(span.begin, span.end, bad.slot);
            bad.reaches(span.group, bad.slot, from, to)
        })
    }

    pub(super) fn holds(&self, group: u32, placement: Placement) -> bool {
        self.map.groups[group as usize].slots.iter().any(|slot| slot.held == Some(placement))
    }

    /// Bytes of each extent of the group that the volume's size reaches.
    pub(super) fn used(&self, group: u32) -> u32 {
        let bytes = self.map.group_bytes();
        let chunks = self.map.bytes().div_ceil(bytes);
        let layer = (chunks - 1 - u64::from(group)) / self.chunks.groups;
        let begin = (layer * self.chunks.groups + u64::from(group)) * bytes;
        let end = layer * bytes + (self.map.bytes() - begin).min(bytes);
        let end = u32::try_from(end).expect("a group covers less than 4 GiB");
        self.local_range(Span { group, begin: 0, end, payload: 0 }).1
    }

    /// Where, in the blocks of the extents, other slots have a part of the span: a job is of the same slots
    /// throughout, so that donors can be told of its writes which those are.
    pub(super) fn borders(&self, span: Span) -> Vec<u32> {
        if self.geometry.data == 1 || self.geometry.parity == 0 {
            return Vec::new();
        }
        let column = |slot| self.geometry.column(span.begin, span.end, slot);
        let columns = (0..self.geometry.data).map(column).filter(|(from, to)| from < to);
        columns.flat_map(|(from, to)| [from / BLOCK * BLOCK, to.next_multiple_of(BLOCK)]).collect()
    }

    /// With redundancy all slots must agree, so a hint that a server may ignore becomes an order.
    pub(super) fn part_op(&self, content: Content) -> PartOp {
        match content {
            Content::Trim if self.geometry.parity > 0 => PartOp::Zero { keep: false },
            other => other.part_op(),
        }
    }

    /// Coefficients of all parity for all data slots.
    pub(super) fn encoding(&self) -> Vec<u8> {
        (0..self.geometry.parity)
            .flat_map(|parity| (0..self.geometry.data).map(move |slot| (parity, slot)))
            .map(|(parity, slot)| self.code.coefficient(parity, slot))
            .collect()
    }
}

/// Those of an ascending list that the run of a slot touches.
pub(super) fn touched_of(
    list: &[BadRange],
    group: u32,
    slot: u32,
    from: u32,
    to: u32,
) -> impl Iterator<Item = &BadRange> {
    let first = list.partition_point(|range| (range.group, range.slot, range.to) <= (group, slot, from));
    list[first..].iter().take_while(move |range| range.reaches(group, slot, from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::base::sample;

    fn span(begin: u32, end: u32) -> Span {
        Span { group: 0, begin, end, payload: 100 }
    }

    #[test]
    fn what_a_span_has_of_a_slot_is_found_in_its_extent_and_in_the_payload() {
        let shape = sample("parity:2+1").shape;
        let unit = shape.geometry.unit;
        let two_rows = span(unit / 2, 3 * unit);
        assert_eq!(shape.wanted(two_rows, 0, unit), 0b11);
        assert_eq!(shape.wanted(two_rows, unit, 2 * unit), 0b01, "the second row ends in the first slot");
        let first = [(unit / 2, 100, unit / 2), (unit, 100 + 3 * unit / 2, unit)];
        assert_eq!(shape.overlap(two_rows, 0, 0, 2 * unit), first);
        assert_eq!(shape.overlap(two_rows, 1, 0, 2 * unit), [(0, 100 + unit / 2, unit)]);
        assert_eq!(shape.overlap(two_rows, 1, unit, 2 * unit), []);
    }

    #[test]
    fn lanes_of_all_slots_fit_into_one_piece_of_scratch_memory() {
        for redundancy in ["parity:2+1", "parity:3+2", "parity:8+2", "mirror:3"] {
            let shape = sample(redundancy).shape;
            let lanes = shape.geometry.data + shape.geometry.parity;
            assert!(shape.lane_max() * lanes <= SCRATCH_LARGE_BYTES, "{redundancy}");
            assert!(shape.lane_max().is_multiple_of(BLOCK) && shape.lane_max() > 0, "{redundancy}");
        }
    }

    #[test]
    fn what_is_lost_is_known_before_the_coordinator_has_recorded_it_and_forgotten_when_it_is_written() {
        let mut shape = sample("parity:2+1").shape;
        let lost = BadRange { group: 0, slot: 1, from: 0, to: 8192 };
        shape.report_bad(lost);
        shape.report_bad(lost);
        assert_eq!(shape.bad, [lost], "once");
        let unit = shape.geometry.unit;
        assert!(shape.is_bad(span(unit, unit + 1)) && !shape.is_bad(span(0, unit)));
        let written = BadRange { to: 4096, ..lost };
        shape.map.bad.push(lost);
        shape.report_rewritten(vec![written]);
        assert!(!shape.is_bad(span(unit, unit + 4096)) && shape.is_bad(span(unit, unit + 4097)));
        assert!(shape.is_rewritten_unheard(0, 0, 4096) && !shape.is_rewritten_unheard(0, 4096, 8192));
    }

    #[test]
    fn the_last_extents_are_used_as_far_as_the_volume_goes() {
        let mut shape = sample("parity:2+1").shape;
        let unit = shape.geometry.unit;
        shape.map.size = u64::from(unit) * 2 + 1;
        assert_eq!(shape.used(0), unit + BLOCK, "a row, and a block of the next");
    }
}
