//! What a donor lists of writes, shared by the threads that serve its connections.
//!
//! Owns one ledger for each volume, and the marks of writes that have no number: those of clients that give
//! none, and those that a ledger had no room for. Never: what is listed (`core::donor::Ledger`). Invariant: a
//! ledger's lock is held for one step of it. Called by `arena` and `donor::connection`. Tests:
//! below, `tests/donor_wire.rs`.

use crate::undo::Kept;
use cheetah_core::donor::{self, DirtyMap, ListedWrite, Ticket, WriteMark};
use cheetah_core::limits::{EXTENT_BYTES, UNDO_BYTES_MAX};
use cheetah_core::map::VolumeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) type Ledger = donor::Ledger<Kept>;

#[derive(Debug)]
pub(crate) struct Ledgers {
    volumes: Mutex<BTreeMap<VolumeId, Arc<Mutex<Ledger>>>>,
    unnumbered: DirtyMap,
}

impl Ledgers {
    pub(crate) fn new(extents: u32) -> Ledgers {
        Ledgers { volumes: Mutex::default(), unnumbered: DirtyMap::new(extents) }
    }

    pub(crate) fn of(&self, volume: VolumeId) -> Arc<Mutex<Ledger>> {
        Arc::clone(locked(&self.volumes).entry(volume).or_default())
    }

    /// Marks of writes without a number.
    pub(crate) fn unnumbered(&self) -> &DirtyMap {
        &self.unnumbered
    }

    /// Before a write touches memory. `keep` takes what is there, if it has room. For a write that is too
    /// large in any case, nothing of others is given up.
    pub(crate) fn begin(
        &self,
        ledger: &Mutex<Ledger>,
        mark: WriteMark,
        offset: u64,
        len: u64,
        keep: impl Fn() -> Option<Kept>,
    ) -> Ticket {
        let mut kept = if mark.keep { keep() } else { None };
        let fits = len <= UNDO_BYTES_MAX;
        while mark.keep && fits && kept.is_none() && locked(ledger).forget_oldest() {
            kept = keep();
        }
        let spill = |write: ListedWrite| self.unnumbered.mark(write.from, write.to - write.from);
        locked(ledger).begin(mark, offset, len, kept, spill)
    }

    /// Calls `each` with the addresses of every write that is not known to be complete everywhere, but for
    /// those without a number.
    pub(crate) fn each_listed(&self, mut each: impl FnMut(u64, u64)) {
        for ledger in locked(&self.volumes).values() {
            locked(ledger).within(0, u64::MAX).for_each(|write| each(write.from, write.to));
        }
    }

    /// Nobody's writes are in these extents any more.
    pub(crate) fn wiped(&self, extents: &[u32]) {
        self.unnumbered.clear(extents.iter().copied());
        let mut volumes = locked(&self.volumes);
        for ledger in volumes.values() {
            for extent in extents {
                locked(ledger).wiped(u64::from(*extent) * EXTENT_BYTES, EXTENT_BYTES);
            }
        }
        // Of volumes that are gone nothing stays.
        volumes.retain(|_, ledger| Arc::strong_count(ledger) > 1 || !locked(ledger).is_empty());
    }
}

/// No step of a ledger panics half-way.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use cheetah_core::limits::BLOCK_BYTES;

    #[test]
    fn what_is_too_large_to_be_kept_costs_no_other_write_what_it_covered() {
        let arena = Arena::new(1).unwrap();
        let bytes = vec![7; usize::try_from(UNDO_BYTES_MAX).unwrap()];
        arena.write(0, &bytes);
        arena.write(UNDO_BYTES_MAX, &bytes[..usize::try_from(BLOCK_BYTES).unwrap()]);
        let (ledgers, ledger) = (arena.ledgers(), arena.ledgers().of(VolumeId(1)));
        let begin = |number, offset, len| {
            let mark = WriteMark { number, targets: 0b11, complete: 0, keep: true };
            ledgers.begin(&ledger, mark, offset, len, || arena.keep(offset, len))
        };
        let kept =
            || -> Vec<bool> { locked(&ledger).within(0, EXTENT_BYTES).map(|write| write.undo).collect() };
        begin(1, 0, BLOCK_BYTES);
        begin(2, 0, UNDO_BYTES_MAX + BLOCK_BYTES);
        assert_eq!(kept(), [true, false]);
        begin(3, BLOCK_BYTES, UNDO_BYTES_MAX);
        assert_eq!(kept(), [false, false, true], "the oldest makes room");
    }
}
