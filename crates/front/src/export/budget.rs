//! How much of the buffer pool the clients of an export may hold, together and each.
//!
//! Owns: the counts by class of buffer. Never: buffers. Invariant: a part of each class stays with the other
//! front ends, so clients that stop in the middle of something cannot stop a file on the same volume; and no
//! client holds so much that others of its kind come to a stand.
//! Called by `flight` (counts) and `connection` (waits). Used on the data thread only, though it need not be.
//! Tests: below.

use cheetah_rim::buffer::{LARGE_BYTES, LARGE_COUNT, SMALL_BYTES, SMALL_COUNT};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

const SMALL_TOTAL_MAX: usize = SMALL_COUNT * 3 / 4;
const LARGE_TOTAL_MAX: usize = LARGE_COUNT * 3 / 4;
const LARGE_EACH_MAX: usize = LARGE_COUNT / 2;

/// The class of buffer that a payload takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    Nothing,
    Small,
    Large,
    /// The pool itself has so few of these that it needs no count here.
    Huge,
}

impl Charge {
    pub(super) fn of(len: usize) -> Charge {
        match len {
            0 => Charge::Nothing,
            1..=SMALL_BYTES => Charge::Small,
            len if len <= LARGE_BYTES => Charge::Large,
            _ => Charge::Huge,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    small: AtomicUsize,
    large: AtomicUsize,
    waiting: AtomicUsize,
    freed: Notify,
}

impl Budget {
    /// Whether a client that holds `large` large buffers may take this one now.
    pub(super) fn admits(&self, charge: Charge, large: usize) -> bool {
        match charge {
            Charge::Nothing | Charge::Huge => true,
            Charge::Small => self.small.load(Ordering::Relaxed) < SMALL_TOTAL_MAX,
            Charge::Large => large < LARGE_EACH_MAX && self.large.load(Ordering::Relaxed) < LARGE_TOTAL_MAX,
        }
    }

    pub(super) fn take(&self, charge: Charge) {
        if let Some(count) = self.count(charge) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn give_back(&self, charge: Charge) {
        if let Some(count) = self.count(charge) {
            count.fetch_sub(1, Ordering::Relaxed);
            self.freed.notify_waiters();
        }
    }

    /// Returns when something was given back; to be asked again then.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Counts the caller among those that wait, until the guard is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    pub(super) fn others_wait(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn count(&self, charge: Charge) -> Option<&AtomicUsize> {
        match charge {
            Charge::Small => Some(&self.small),
            Charge::Large => Some(&self.large),
            Charge::Nothing | Charge::Huge => None,
        }
    }
}

pub(super) struct Waiting<'a>(&'a Budget);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

const _: () = assert!(LARGE_EACH_MAX > 0 && LARGE_TOTAL_MAX < LARGE_COUNT && SMALL_TOTAL_MAX < SMALL_COUNT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_pool() {
        assert_eq!(Charge::of(0), Charge::Nothing);
        assert_eq!(Charge::of(SMALL_BYTES), Charge::Small);
        assert_eq!(Charge::of(SMALL_BYTES + 1), Charge::Large);
        assert_eq!(Charge::of(LARGE_BYTES + 1), Charge::Huge);
    }

    #[test]
    fn neither_one_client_nor_all_may_take_everything() {
        let budget = Budget::default();
        assert!(!budget.admits(Charge::Large, LARGE_EACH_MAX));
        for _ in 0..LARGE_TOTAL_MAX {
            assert!(budget.admits(Charge::Large, 0));
            budget.take(Charge::Large);
        }
        assert!(!budget.admits(Charge::Large, 0) && budget.admits(Charge::Small, 0));
        budget.give_back(Charge::Large);
        assert!(budget.admits(Charge::Large, 0));
    }

    #[test]
    fn who_waits_is_counted() {
        let budget = Budget::default();
        let waiting = budget.wait();
        assert!(budget.others_wait());
        drop(waiting);
        assert!(!budget.others_wait());
    }
}
