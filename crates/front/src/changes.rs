//! Word of changes from one front end of a volume to another on the same handle.
//!
//! Owns: a count of the writes that came another way than through the file, the time of the last write of
//! all, and how much the writes that are answered may have filled. A front end cannot be made without them
//! (`Shared`). Never: what was written. Invariant: a write is counted before it is answered, so whoever heard
//! the answer and then opens the file finds the count changed, and the kernel's cache of the file is dropped.
//! Called by `export` (counts) and `fuse` (looks). Tests: below; `tests/export.rs`.

use cheetah_rim::volume::VolumeHandle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Opens this soon after one that dropped the cache drop it too: theirs may be answered before it took
/// effect.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Counted {
    /// Of writes that came another way than through the file.
    count: AtomicU64,
    /// When any was last written, in nanoseconds of the clock on the wall; 0: not since it is attached.
    written_ns: AtomicU64,
    /// Of all that are done, whatever came of them.
    landed: AtomicU64,
    landed_bytes: AtomicU64,
    /// Of those that failed: they may come through yet.
    failed_bytes: AtomicU64,
}

/// Writes that are done: what donors are asked after this was read, they answer with all of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) writes: u64,
    /// No fewer than they filled.
    pub(crate) bytes: u64,
    pub(crate) failed_bytes: u64,
}

/// What is held is held by blocks of this size.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The most that a write of `len` bytes fills, wherever it begins.
pub(crate) fn filled_by(len: u64) -> u64 {
    (len.div_ceil(BLOCK_BYTES) + 1) * BLOCK_BYTES
}

/// The same of one that makes holes: the blocks at its two ends.
pub(crate) const FILLED_BY_HOLES: u64 = 2 * BLOCK_BYTES;

/// A volume for its front ends, which tell each other of changes by it: all of them are given the same.
#[derive(Clone, Debug)]
pub struct Shared {
    pub(crate) handle: VolumeHandle,
    pub(crate) changes: Changes,
}

impl Shared {
    /// For all front ends of this attachment of a volume.
    #[must_use]
    pub fn new(handle: VolumeHandle) -> Shared {
        Shared { handle, changes: Changes::default() }
    }

    /// What requests are submitted to.
    #[must_use]
    pub fn handle(&self) -> &VolumeHandle {
        &self.handle
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(Arc<Counted>);

impl Changes {
    pub(crate) fn note(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.touch();
    }

    /// A write is done, and has filled so much at most; called before it is answered.
    pub(crate) fn landed(&self, filled: u64, failed: bool) {
        if failed {
            self.0.failed_bytes.fetch_add(filled, Ordering::AcqRel);
        }
        self.0.landed_bytes.fetch_add(filled, Ordering::AcqRel);
        self.0.landed.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn all_landed(&self) -> Landed {
        let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        Landed {
            writes: read(&self.0.landed),
            bytes: read(&self.0.landed_bytes),
            failed_bytes: read(&self.0.failed_bytes),
        }
    }

    /// A write came through the file, whose cache knows of it.
    pub(crate) fn touch(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.written_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// In nanoseconds since 1970; 0: nothing was written since it is attached.
    pub(crate) fn written_ns(&self) -> u64 {
        self.0.written_ns.load(Ordering::Acquire)
    }

    fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }
}

/// What one cache knows of the changes.
#[derive(Debug)]
pub(crate) struct Seen {
    changes: Changes,
    last: Mutex<(u64, Option<Instant>)>,
}

impl Seen {
    pub(crate) fn new(changes: Changes) -> Seen {
        let last = Mutex::new((changes.count(), None));
        Seen { changes, last }
    }

    /// Whether what is cached still holds; if not, the caller drops it now.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.changes.count();
        if last.0 != count {
            *last = (count, Some(now));
            return false;
        }
        last.1.is_none_or(|dropped| now.saturating_duration_since(dropped) >= SETTLED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_drops_the_cache_and_a_moment_later_it_holds_again() {
        let changes = Changes::default();
        changes.note();
        let seen = Seen::new(changes.clone());
        let start = Instant::now();
        assert!(seen.holds(start), "what was written before the cache was there is no change to it");
        changes.note();
        assert!(!seen.holds(start));
        assert!(!seen.holds(start + SETTLED_AFTER / 2));
        assert!(seen.holds(start + SETTLED_AFTER));
        changes.note();
        assert!(!seen.holds(start + 2 * SETTLED_AFTER));
    }
}
