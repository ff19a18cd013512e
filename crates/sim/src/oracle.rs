//! What a read may return: for every byte of every volume, the versions that can be there.
//!
//! Owns the versions (each write, zero or trim is one) and the rule. A version can be seen from the moment it is
//! submitted until another one certainly replaced it: one that was acknowledged, or that a read has seen, and
//! that began after the first had ended. An error or a crash ends a version too: sessions and leases see to it
//! that nothing of it lands after a later write was admitted. Order is by count of events, not by time.
//! Never: which requests may fail (`verdict`), or a look into the machines. Tests: the planted bugs.

use crate::runs::{Runs, Slide};
use cheetah_core::map::VolumeId;
use std::collections::BTreeMap;

/// A place in the order of all events.
pub(crate) type Order = u64;
pub(crate) type Version = u32;

/// What a byte is: nothing but zero, or byte `at` of what a version wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zero,
    Data { version: Version, at: u64 },
}

impl Slide for Content {
    fn slide(&self, by: u64) -> Content {
        match *self {
            Content::Zero => Content::Zero,
            Content::Data { version, at } => Content::Data { version, at: at + by },
        }
    }
}

/// The versions that a byte may be of, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct History(Vec<Version>);

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
}

impl Oracle {
    pub(crate) fn new() -> Oracle {
        let base = Written { volume: VolumeId(0), offset: 0, len: 0, zeros: true, begun: 0, ended: Some(0) };
        Oracle { written: vec![base], volumes: BTreeMap::new(), reading: BTreeMap::new(), reads: 0 }
    }

    pub(crate) fn begin_write(
        &mut self,
        now: Order,
        volume: VolumeId,
        offset: u64,
        len: u64,
        zeros: bool,
    ) -> Version {
        let version = Version::try_from(self.written.len()).expect("fewer writes than 2^32");
        self.written.push(Written { volume, offset, len, zeros, begun: now, ended: None });
        let end = offset + len;
        let runs = self.volumes.entry(volume).or_default();
        runs.update(offset, end, |history| history.0.push(version), || History(vec![BASE]));
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
            self.settle(version, offset, end);
        }
    }

    /// `version` is there: what ended before it began is not any more.
    fn settle(&mut self, version: Version, from: u64, to: u64) {
        let written = &self.written;
        let Written { volume, begun, .. } = written[version as usize];
        let replaced = |other: &Version| written[*other as usize].ended.is_some_and(|ended| ended < begun);
        let Some(runs) = self.volumes.get_mut(&volume).filter(|_| version != BASE) else { return };
        let prune = |history: &mut History| {
            if history.0.contains(&version) {
                history.0.retain(|other| *other == version || !replaced(other));
            }
        };
        runs.update(from, to, prune, || History(vec![BASE]));
    }

    pub(crate) fn begin_read(&mut self, volume: VolumeId, offset: u64, len: u64) -> u64 {
        let end = offset + len;
        let runs = self.volumes.entry(volume).or_default();
        let base = || History(vec![BASE]);
        let seen = runs.read(offset, end).into_iter();
        let seen = seen.map(|(from, to, history)| (from, to, history.unwrap_or_else(base))).collect();
        self.reads += 1;
        self.reading.insert(self.reads, Reading { volume, offset, end, seen, since: Vec::new() });
        self.reads
    }

    pub(crate) fn forget_read(&mut self, read: u64) {
        self.reading.remove(&read);
    }

    /// `brought`: volume offsets and what was found there; parts of the range may be missing.
    pub(crate) fn end_read(&mut self, read: u64, brought: &[(u64, u64, Content)]) -> Result<(), String> {
        let Some(reading) = self.reading.remove(&read) else { return Err("a read ended twice".into()) };
        for (from, to, content) in brought.iter().copied() {
            for (low, high, history) in &reading.seen {
                let (low, high) = ((*low).max(from), (*high).min(to));
                if low < high {
                    self.check(&reading, history, low, high, content.slide(low - from))?;
                }
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        reading: &Reading,
        history: &History,
        from: u64,
        to: u64,
        content: Content,
    ) -> Result<(), String> {
        let candidates = || history.0.iter().chain(&reading.since).copied();
        match content {
            Content::Zero => {
                let zeros: Vec<Version> = candidates().filter(|v| self.written[*v as usize].zeros).collect();
                let reaches = |v: &Version| *v == BASE || self.overlaps(*v, from, to);
                if !zeros.iter().any(reaches) {
                    let allowed = self.list(candidates());
                    return Err(format!("bytes {from}..{to} read as zeros; they can be of {allowed}"));
                }
                if let [only] = zeros[..]
                    && history.0.contains(&only)
                {
                    self.settle(only, from, to);
                }
            }
            Content::Data { version, at } => {
                let Written { volume, offset, .. } = self.written[version as usize];
                if volume != reading.volume {
                    return Err(format!(
                        "bytes {from}..{to} of {} read as write {version} of another volume, {volume}",
                        reading.volume
                    ));
                }
                if offset + at != from {
                    return Err(format!(
                        "bytes {from}..{to} read as byte {at} of write {version}, which began at {offset}"
                    ));
                }
                if !candidates().any(|candidate| candidate == version) {
                    let allowed = self.list(candidates());
                    return Err(format!(
                        "bytes {from}..{to} read as write {version}, which was replaced; they can be of {allowed}"
                    ));
                }
                self.settle(version, from, to);
            }
        }
        Ok(())
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
