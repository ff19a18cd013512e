//! What may be lost of a volume whose writer ended while a donor was missing, block by block.
//!
//! Owns: the rows that were half written then, and which of their blocks may answer an error, for how long.
//! Never: bytes (`oracle`), what happens to whom (`together`), or anything that a machine says of itself. Key
//! rules: of a donor that was only stopped nothing is lost, its half-written rows answer errors until it is
//! back; of one that is gone its blocks of rows that a write was under way to, and of no others; and a block
//! that was written again since is as good as any other. Tests: below; the planted bugs.

use crate::verdict::GRACE_NS;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::map::{DonorId, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Donors list writes by whole blocks, so a row is half written as far as those reach.
const GRAIN_BYTES: u64 = BLOCK_BYTES;
const BLOCK: usize = BLOCK_BYTES as usize;
/// Of one write that many blocks are remembered for who reads of a failure.
const BLOCKS_TOLD_MAX: u64 = 4096;

/// Bytes of every extent of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    group: usize,
    local: Range<u64>,
}

/// The rows of a range, as far as its parity reaches.
pub(crate) fn rows_touched(map: &VolumeMap, offset: u64, len: u64) -> Vec<Rows> {
    let (k, unit, group_bytes) = (u64::from(map.redundancy.data), u64::from(map.unit), map.group_bytes());
    let (mut at, end, mut rows) = (offset, offset + len, Vec::new());
    while at < end {
        let group = at / group_bytes;
        let (from, to) = (at % group_bytes, (end - group * group_bytes).min(group_bytes));
        let (first, last) = (from / unit, (to - 1) / unit);
        // In one unit its parity is as long as it is itself.
        let local = if first == last {
            let start = first / k * unit;
            start + from % unit..start + (to - 1) % unit + 1
        } else {
            first / k * unit..(last / k + 1) * unit
        };
        let local = local.start / GRAIN_BYTES * GRAIN_BYTES..local.end.next_multiple_of(GRAIN_BYTES);
        rows.push(Rows { group: usize::try_from(group).expect("a group"), local });
        at = group * group_bytes + to;
    }
    rows
}

/// Where a block of a data slot lies in the volume.
pub(crate) fn offset_of(map: &VolumeMap, group: usize, slot: usize, local: u64) -> u64 {
    let (k, unit) = (u64::from(map.redundancy.data), u64::from(map.unit));
    let row = local / unit;
    group as u64 * map.group_bytes() + (row * k + slot as u64) * unit + local % unit
}

#[derive(Debug, Default)]
struct Wound {
    half_written: Vec<Rows>,
    /// What happened, for who reads of a failure.
    story: String,
    /// Blocks that were written and acknowledged since the next writer was let in.
    anew: BTreeSet<u64>,
    /// Blocks by where they lie in the volume. None: for good.
    errors: BTreeMap<u64, Option<Time>>,
    /// The next writer has been let in.
    taken_over: bool,
    /// It serves.
    settled: bool,
    /// All is whole again.
    closed: bool,
}

/// How a donor is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Gone,
    StoppedUntil(Time),
}

#[derive(Debug, Default)]
pub(crate) struct Wounds(BTreeMap<VolumeId, Wound>);

impl Wounds {
    /// A writer ends while donors are missing, or a donor while the volume waits to be mended.
    pub(crate) fn open(&mut self, volume: VolumeId, half_written: Vec<Rows>, story: String) {
        let wound = self.0.entry(volume).or_default();
        (wound.half_written, wound.taken_over, wound.settled, wound.closed) =
            (half_written, false, false, false);
        wound.story = story;
        wound.anew.clear();
    }

    /// Whether its end is accounted for here, block by block.
    pub(crate) fn is_accounted(&self, volume: VolumeId) -> bool {
        self.0.get(&volume).is_some_and(|wound| !wound.closed)
    }

    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.0.contains_key(&volume)
    }

    pub(crate) fn open_ones(&self) -> Vec<VolumeId> {
        self.0.iter().filter(|(_, wound)| !wound.closed && wound.settled).map(|(volume, _)| *volume).collect()
    }

    pub(crate) fn close(&mut self, volume: VolumeId) {
        self.0.entry(volume).and_modify(|wound| wound.closed = true);
    }

    /// Looks who is missing: when the next writer is let in (`first`: what has no holder then its predecessor
    /// gave up), when a donor ends before that one serves, and when it does. Later losses are no excuse.
    /// `undoes`: what half-written rows covered is kept, so nothing is lost with who is gone.
    pub(crate) fn look(
        &mut self,
        map: &VolumeMap,
        undoes: bool,
        missing: impl Fn(DonorId) -> Option<Missing>,
    ) {
        let Some(wound) = self.0.get_mut(&map.volume).filter(|wound| !wound.settled) else { return };
        let first = !std::mem::replace(&mut wound.taken_over, true);
        let k = map.redundancy.data as usize;
        if k == 1 {
            return; // Any copy makes the others.
        }
        for rows in &wound.half_written {
            let Some(group) = map.groups.get(rows.group) else { continue };
            let states: Vec<Option<Missing>> = (group.slots.iter())
                .map(|slot| slot.held.map_or(first.then_some(Missing::Gone), |held| missing(held.donor)))
                .collect();
            for (slot, state) in states[..k].iter().enumerate() {
                let until = match state {
                    Some(_) if undoes => continue,
                    Some(Missing::Gone) => None,
                    Some(Missing::StoppedUntil(until)) => Some(*until + GRACE_NS),
                    _ => continue,
                };
                for local in rows.local.clone().step_by(BLOCK) {
                    let at = offset_of(map, rows.group, slot, local);
                    let known = wound.errors.entry(at).or_insert(until);
                    // For good is longer than any time.
                    *known = known.and_then(|known| until.map(|until| until.max(known)));
                }
            }
        }
    }

    pub(crate) fn settled(&mut self, volume: VolumeId) {
        self.0.entry(volume).and_modify(|wound| wound.settled = true);
    }

    /// Whether an error of a request is accounted for, that touches these bytes and was submitted then;
    /// `waits`: that it waited in vain, which is only for who comes back.
    pub(crate) fn excuse(&self, volume: VolumeId, bytes: Range<u64>, since: Time, waits: bool) -> bool {
        let Some(wound) = self.0.get(&volume) else { return false };
        let from = bytes.start / BLOCK_BYTES * BLOCK_BYTES;
        let mut here = wound.errors.range(from..bytes.end.max(from));
        here.any(|(_, until)| until.map_or(!waits, |until| since <= until))
    }

    /// Whether a block may be recorded as lost.
    pub(crate) fn may_be_lost(&self, volume: VolumeId, block: u64) -> bool {
        self.0.get(&volume).is_some_and(|wound| wound.errors.get(&block) == Some(&None))
    }

    /// Acknowledged after the next writer came: readable from now on.
    pub(crate) fn rewritten(&mut self, volume: VolumeId, bytes: Range<u64>) {
        let Some(wound) = self.0.get_mut(&volume).filter(|wound| wound.taken_over) else { return };
        let from = bytes.start / BLOCK_BYTES * BLOCK_BYTES;
        let blocks: Vec<u64> = wound.errors.range(from..bytes.end.max(from)).map(|(at, _)| *at).collect();
        let whole = bytes.start.next_multiple_of(BLOCK_BYTES)..bytes.end / BLOCK_BYTES * BLOCK_BYTES;
        let most = BLOCKS_TOLD_MAX * BLOCK_BYTES;
        wound.anew.extend((whole.start..whole.end.min(whole.start + most)).step_by(BLOCK));
        blocks.into_iter().for_each(|at| {
            wound.errors.remove(&at);
        });
    }
}

impl Wounds {
    /// What a failure of a request to these bytes may come from.
    pub(crate) fn tell(&self, volume: VolumeId, bytes: Range<u64>) -> String {
        let Some(wound) = self.0.get(&volume) else { return String::new() };
        let anew = wound.anew.range(bytes.start / BLOCK_BYTES * BLOCK_BYTES..bytes.end).count();
        format!(" [{}; {anew} of its blocks were acknowledged after the next writer attached]", wound.story)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::map::{Group, Medium, Placement, Redundancy, Slot};

    const K64: u64 = 64 << 10;

    fn map(parity: u32) -> VolumeMap {
        let held = |donor| Slot { held: Some(Placement { donor: DonorId(donor), extent: 0 }), filling: None };
        let slots = (0..u64::from(2 + parity)).map(held).collect();
        VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            epoch: 1,
            size: 16 * K64,
            redundancy: Redundancy { data: 2, parity },
            unit: 64 << 10,
            groups: vec![Group { slots }],
            routes: BTreeMap::new(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: None,
            proofs: None,
            encrypted: false,
            write_back: false,
            medium: Medium::Memory,
        }
    }

    fn lost(parity: u32, missing: Missing) -> Wounds {
        let (map, mut wounds) = (map(parity), Wounds::default());
        wounds.open(map.volume, rows_touched(&map, 5 * K64, 3 * 4096), String::new());
        wounds.look(&map, false, |donor| (donor == DonorId(0)).then_some(missing));
        wounds.settled(map.volume);
        wounds
    }

    #[test]
    fn rows_are_as_long_as_their_parity() {
        let row = |offset, len| rows_touched(&map(1), offset, len)[0].local.clone();
        assert_eq!(row(5 * K64 + 4096, 4096), 2 * K64 + 4096..2 * K64 + 8192);
        assert_eq!(row(K64 - 512, 1024), 0..K64);
        assert_eq!(row(K64, 2 * K64), 0..2 * K64);
    }

    #[test]
    fn of_one_that_is_gone_half_written_rows_are_lost_until_they_are_written_again() {
        let mut wounds = lost(1, Missing::Gone);
        let volume = VolumeId(1);
        assert!(
            wounds.excuse(volume, 4 * K64 + 8192..4 * K64 + 8704, 0, false)
                && wounds.may_be_lost(volume, 4 * K64)
        );
        assert!(!wounds.excuse(volume, 5 * K64..6 * K64, 0, false), "its holder is there");
        assert!(!wounds.excuse(volume, 0..4 * K64, 0, false), "another row");
        wounds.rewritten(volume, 4 * K64..4 * K64 + 4096);
        assert!(!wounds.may_be_lost(volume, 4 * K64) && wounds.may_be_lost(volume, 4 * K64 + 4096));
    }

    #[test]
    fn of_one_that_is_stopped_nothing_is_once_it_is_back() {
        let wounds = lost(1, Missing::StoppedUntil(10));
        assert!(
            wounds.excuse(VolumeId(1), 4 * K64..5 * K64, 11, false)
                && !wounds.may_be_lost(VolumeId(1), 4 * K64)
        );
        assert!(!wounds.excuse(VolumeId(1), 4 * K64..5 * K64, 11 + GRACE_NS, false));
    }
}
