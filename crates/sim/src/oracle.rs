//! What a read may return: for every byte of every volume, the versions that can be there.
//!
//! Owns the versions (each write, zero or trim is one) and the rule. A version can be seen from the moment it
//! is submitted until another one certainly replaced it: one that was acknowledged, or that a read has seen,
//! and that began after the first had ended. An error or a crash ends a version too: sessions and leases see
//! to it that nothing of it lands after a later write was admitted. Order is by count of events, not by time.
//! Never: which requests may fail (`verdict`), or a look into the machines. Tests: the planted bugs.

use crate::bytes::{BLOCK, SECTOR, sectors};
use crate::runs::{Runs, Slide};
use cheetah_core::map::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

/// A place in the order of all events.
pub(crate) type Order = u64;
pub(crate) type Version = u32;

/// What nobody writes: memory that was never filled.
pub(crate) const POISON: u8 = 0xa5;

/// The sectors of a block as a version writes them: never zero, never poison.
fn block(version: Version, number: u64) -> [u8; BLOCK] {
    let mut mixed = (u64::from(version) << 40 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).to_le_bytes().map(|byte| if byte == 0 || byte == POISON { 0x5a } else { byte })
}

/// What a version writes to a range of its volume.
pub(crate) fn written(version: Version, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sectors(to - from));
    let (first, end) = (sectors(from), sectors(to));
    for number in first / BLOCK..end.div_ceil(BLOCK) {
        let start = number * BLOCK;
        let (low, high) = (first.max(start) - start, end.min(start + BLOCK) - start);
        bytes.extend_from_slice(&block(version, number as u64)[low..high]);
    }
    bytes
}

/// The versions that a byte may be of, oldest first, and when those were replaced that it lately was of.
#[derive(Clone, Debug)]
pub(crate) struct History {
    now: Vec<Version>,
    before: Vec<(Version, Order)>,
}

impl History {
    fn base() -> History {
        History { now: vec![BASE], before: Vec::new() }
    }
}

impl Slide for History {
    fn slide(&self, _: u64) -> History {
        self.clone()
    }
}

/// The zeros that every volume starts as.
const BASE: Version = 0;

#[derive(Clone, Debug)]
struct Written {
    volume: VolumeId,
    offset: u64,
    len: u64,
    zeros: bool,
    begun: Order,
    ended: Option<Order>,
}

/// A read on its way: what its range could hold when it began, and what was begun since.
#[derive(Debug)]
struct Reading {
    volume: VolumeId,
    offset: u64,
    end: u64,
    seen: Vec<(u64, u64, History)>,
    since: Vec<Version>,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    written: Vec<Written>,
    volumes: BTreeMap<VolumeId, Runs<History>>,
    reading: BTreeMap<u64, Reading>,
    reads: u64,
    /// See `forget_before`.
    horizon: Order,
    /// Of volumes with write-back, what the last flush has covered.
    flushed: BTreeMap<VolumeId, Order>,
}

impl Oracle {
    pub(crate) fn new() -> Oracle {
        let base = Written { volume: VolumeId(0), offset: 0, len: 0, zeros: true, begun: 0, ended: Some(0) };
        Oracle {
            written: vec![base],
            volumes: BTreeMap::new(),
            reading: BTreeMap::new(),
            reads: 0,
            horizon: 0,
            flushed: BTreeMap::new(),
        }
    }

    pub(crate) fn begin_write(
        &mut self,
        now: Order,
        volume: VolumeId,
        offset: u64,
        len: u64,
        zeros: bool,
    ) -> Version {
        let version = self.next_version();
        self.written.push(Written { volume, offset, len, zeros, begun: now, ended: None });
        let end = offset + len;
        let runs = self.volumes.entry(volume).or_default();
        runs.update(offset, end, |history| history.now.push(version), History::base);
        let concurrent = self.reading.values_mut();
        concurrent
            .filter(|read| read.volume == volume && read.offset < end && offset < read.end)
            .for_each(|read| read.since.push(version));
        version
    }

    pub(crate) fn end_write(&mut self, now: Order, version: Version, acknowledged: bool) {
        let written = &mut self.written[version as usize];
        written.ended = Some(now);
        let (offset, end) = (written.offset, written.offset + written.len);
        if acknowledged {
            self.settle(now, version, offset, end);
        }
    }

    /// `version` is there: what ended before it began is not any more.
    fn settle(&mut self, now: Order, version: Version, from: u64, to: u64) {
        let written = &self.written;
        let Written { volume, begun, .. } = written[version as usize];
        let horizon = self.flushed.get(&volume).map_or(self.horizon, |flushed| self.horizon.min(*flushed));
        let replaced = |other: &Version| written[*other as usize].ended.is_some_and(|ended| ended < begun);
        let Some(runs) = self.volumes.get_mut(&volume).filter(|_| version != BASE) else { return };
        let prune = |history: &mut History| {
            if history.now.contains(&version) {
                let gone = history.now.extract_if(.., |other| *other != version && replaced(other));
                history.before.extend(gone.map(|other| (other, now)));
                history.before.retain(|(_, replaced)| *replaced >= horizon);
            }
        };
        runs.update(from, to, prune, History::base);
    }

    /// Nobody asks any more for what was replaced before this.
    pub(crate) fn forget_before(&mut self, horizon: Order) {
        self.horizon = horizon;
    }

    /// What a volume with write-back is, a flush that was asked for then has put on disks.
    pub(crate) fn flushed(&mut self, volume: VolumeId, asked: Order) {
        let flushed = self.flushed.entry(volume).or_insert(asked);
        *flushed = asked.max(*flushed);
    }

    /// What was replaced since the last flush may be there again.
    pub(crate) fn roll_back(&mut self, volume: VolumeId) {
        let flushed = self.flushed.get(&volume).copied().unwrap_or(0);
        let touched = self.touched(volume);
        let Some(runs) = self.volumes.get_mut(&volume) else { return };
        let back = |history: &mut History| {
            let again = history.before.extract_if(.., |(_, replaced)| *replaced >= flushed);
            history.now.extend(again.map(|(version, _)| version));
            history.now.sort_unstable();
            history.now.dedup();
        };
        touched.into_iter().for_each(|(from, to)| runs.update(from, to, back, History::base));
    }

    /// `since`: also what was replaced after that may be seen.
    pub(crate) fn begin_read(
        &mut self,
        volume: VolumeId,
        offset: u64,
        len: u64,
        since: Option<Order>,
    ) -> u64 {
        let end = offset + len;
        let runs = self.volumes.entry(volume).or_default();
        let seen = runs.read(offset, end).into_iter();
        let mut seen: Vec<(u64, u64, History)> =
            seen.map(|(from, to, history)| (from, to, history.unwrap_or_else(History::base))).collect();
        if let Some(since) = since {
            for (_, _, history) in &mut seen {
                let late = history.before.iter().filter(|(_, replaced)| *replaced >= since);
                history.now.extend(late.map(|(version, _)| *version));
            }
        }
        self.reads += 1;
        self.reading.insert(self.reads, Reading { volume, offset, end, seen, since: Vec::new() });
        self.reads
    }

    pub(crate) fn forget_read(&mut self, read: u64) {
        self.reading.remove(&read);
    }

    /// `brought`: volume offsets and the sectors that were found from there on; parts of the range may be
    /// missing. `settles`: what is seen stays, also when it was never acknowledged. With redundancy that is
    /// only so once fragments fit together, for a write that failed half-way may be on one copy and not on
    /// the other. `old`: what was replaced may still be seen, though nothing that was never there.
    pub(crate) fn end_read(
        &mut self,
        now: Order,
        read: u64,
        brought: &[(u64, &[u8])],
        settles: bool,
        old: bool,
    ) -> Result<(), String> {
        let Some(reading) = self.reading.remove(&read) else { return Err("a read ended twice".into()) };
        for (from, bytes) in brought.iter().copied() {
            let to = from + bytes.len() as u64 * SECTOR;
            for (low, high, history) in &reading.seen {
                let (low, high) = ((*low).max(from), (*high).min(to));
                if low < high {
                    let bytes = &bytes[sectors(low - from)..sectors(high - from)];
                    let winner = self.check(&reading, history, low, high, bytes, old)?;
                    if let Some(winner) = winner.filter(|_| settles) {
                        self.settle(now, winner, low, high);
                    }
                }
            }
        }
        Ok(())
    }

    /// The sectors of a version in a range, and zero outside of what it wrote.
    fn expected(&self, version: Version, from: u64, to: u64) -> Vec<u8> {
        let Written { offset, len, zeros, .. } = self.written[version as usize];
        let mut bytes = vec![0; sectors(to - from)];
        let (low, high) = (offset.max(from), (offset + len).min(to));
        if !zeros && low < high {
            bytes[sectors(low - from)..sectors(high - from)].copy_from_slice(&written(version, low, high));
        }
        bytes
    }

    /// Which version the range is of, when it is one and no other could look the same.
    fn check(
        &self,
        reading: &Reading,
        history: &History,
        from: u64,
        to: u64,
        bytes: &[u8],
        old: bool,
    ) -> Result<Option<Version>, String> {
        let mut candidates: Vec<Version> = history.now.clone();
        if old {
            let here = |version: &Version| self.written[*version as usize].volume == reading.volume;
            candidates = (1..self.next_version()).filter(here).collect();
            candidates.retain(|version| self.overlaps(*version, from, to));
            candidates.push(BASE);
        }
        candidates.extend(reading.since.iter().filter(|version| self.overlaps(**version, from, to)));
        if let [only] = candidates[..] {
            let found = self.expected(only, from, to);
            if found == bytes {
                return Ok(Some(only));
            }
        }
        let expected: Vec<Vec<u8>> =
            candidates.iter().map(|version| self.expected(*version, from, to)).collect();
        let covers = |version: Version, at: u64| {
            let Written { offset, len, .. } = self.written[version as usize];
            version == BASE || (offset..offset + len).contains(&at)
        };
        for (at, byte) in bytes.iter().enumerate() {
            let here = from + at as u64 * SECTOR;
            let fits = |(version, bytes): (&Version, &Vec<u8>)| covers(*version, here) && bytes[at] == *byte;
            if !candidates.iter().zip(&expected).any(fits) {
                return Err(self.wrong(reading.volume, here, *byte, &candidates));
            }
        }
        let mut whole = candidates.iter().zip(&expected).filter(|(_, found)| *found == bytes);
        let winner = whole.next().map(|(version, _)| *version).filter(|_| whole.next().is_none());
        Ok(winner.filter(|version| history.now.contains(version)))
    }

    fn wrong(&self, volume: VolumeId, at: u64, byte: u8, candidates: &[Version]) -> String {
        let allowed = self.list(candidates.iter().copied());
        let found = match byte {
            0 => "zeros".to_owned(),
            POISON => "what nobody ever put there".to_owned(),
            _ => {
                let looks = |version: &Version| self.expected(*version, at, at + SECTOR) == [byte];
                let alike = (1..self.next_version()).filter(|v| !self.written[*v as usize].zeros);
                let alike: Vec<String> = (alike.filter(|v| self.overlaps(*v, at, at + SECTOR)).filter(looks))
                    .map(|v| format!("write {v}{}", self.of_another(v, volume)))
                    .collect();
                let kind =
                    if alike.is_empty() { "nothing ever written there".into() } else { alike.join(" or ") };
                format!("{kind} ({byte:#04x})")
            }
        };
        format!("the sector at {at} reads as {found}; it can be of {allowed}")
    }

    fn of_another(&self, version: Version, volume: VolumeId) -> &'static str {
        if self.written[version as usize].volume == volume { "" } else { " of another volume" }
    }

    fn next_version(&self) -> Version {
        Version::try_from(self.written.len()).expect("fewer writes than 2^32")
    }

    fn overlaps(&self, version: Version, from: u64, to: u64) -> bool {
        let Written { offset, len, .. } = self.written[version as usize];
        offset < to && from < offset + len
    }

    fn list(&self, versions: impl Iterator<Item = Version>) -> String {
        let show = |v: Version| {
            let Written { begun, ended, zeros, .. } = self.written[v as usize];
            let kind = if zeros { "zeros" } else { "write" };
            format!("{kind} {v} (begun {begun}, ended {})", ended.map_or("never".into(), |at| at.to_string()))
        };
        versions.map(show).collect::<Vec<_>>().join(" or ")
    }

    /// Whether every byte of the range can only be of this version.
    pub(crate) fn is_alone(&self, volume: VolumeId, version: Version, from: u64, to: u64) -> bool {
        let Some(runs) = self.volumes.get(&volume) else { return false };
        let alone = |history: Option<History>| history.is_some_and(|history| history.now == [version]);
        runs.read(from, to).into_iter().all(|(_, _, history)| alone(history))
    }

    /// Whether every byte of the range can only be of these; with `open`, or of a write that has not ended.
    pub(crate) fn is_only_of(
        &self,
        volume: VolumeId,
        versions: &BTreeSet<Version>,
        from: u64,
        to: u64,
        open: bool,
    ) -> bool {
        let Some(runs) = self.volumes.get(&volume) else { return false };
        let fits = |version: &Version| {
            versions.contains(version) || (open && self.written[*version as usize].ended.is_none())
        };
        let only = |history: Option<History>| {
            history.is_some_and(|history| {
                history.now.iter().all(fits) && history.now.iter().any(|version| versions.contains(version))
            })
        };
        runs.read(from, to).into_iter().all(|(_, _, history)| only(history))
    }

    /// Ranges of a volume that were ever written.
    pub(crate) fn touched(&self, volume: VolumeId) -> Vec<(u64, u64)> {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to, _) in self.volumes.get(&volume).into_iter().flat_map(Runs::iter) {
            match merged.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => merged.push((from, to)),
            }
        }
        merged
    }
}
