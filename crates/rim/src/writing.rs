//! Which bytes of a donor's memory are being written at this moment, so that their checksums are of another.
//!
//! Owns the list: a write is on it from before its first byte lands until its blocks are signed. Never: the
//! bytes, or their checksums (`arena`). Invariant: the lock is held for one look or one change.
//! Called by `arena`. Tests: below.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Writing(Mutex<Writes>);

#[derive(Debug, Default)]
struct Writes {
    /// From and to; no more than there are connections.
    ranges: Vec<(u64, u64)>,
    /// So many were begun so far.
    begun: u64,
}

impl Writing {
    pub(crate) fn begin(&self, from: u64, to: u64) {
        let mut writes = self.locked();
        writes.begun += 1;
        writes.ranges.push((from, to));
    }

    pub(crate) fn end(&self, from: u64, to: u64) {
        let mut writes = self.locked();
        if let Some(place) = writes.ranges.iter().position(|range| *range == (from, to)) {
            writes.ranges.swap_remove(place);
        }
    }

    /// None while some of the range is being written; else a number that is the same as long as no other
    /// write was begun.
    pub(crate) fn still(&self, from: u64, to: u64) -> Option<u64> {
        let writes = self.locked();
        let is_free = writes.ranges.iter().all(|(begin, end)| *end <= from || to <= *begin);
        is_free.then_some(writes.begun)
    }

    fn locked(&self) -> MutexGuard<'_, Writes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_is_known_until_it_has_ended() {
        let writing = Writing::default();
        writing.begin(10, 20);
        writing.begin(30, 40);
        writing.begin(10, 20);
        assert_eq!((writing.still(0, 10), writing.still(20, 30)), (Some(3), Some(3)));
        assert_eq!((writing.still(19, 21), writing.still(0, 50)), (None, None));
        writing.end(10, 20);
        assert_eq!(writing.still(0, 11), None, "another writes there as well");
        writing.end(10, 20);
        assert_eq!((writing.still(0, 30), writing.still(39, 40)), (Some(3), None));
        writing.begin(90, 91);
        assert_eq!(writing.still(0, 30), Some(4), "it may have been there in between");
    }
}
