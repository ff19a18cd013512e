//! Replies that are owed to the kernel, by token, in memory taken up front.
//!
//! Owns: the slots. Never: growth, so that a write under memory pressure allocates nothing. Invariant: a token
//! names one reply from `reserve` to `free`. Called by `fs`; waiting for a slot is its backpressure, together with
//! waiting for a buffer. Tests: below.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Slab<T> {
    inner: Mutex<Inner<T>>,
    freed: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
    /// Waking nobody would still be a system call.
    waiting: usize,
}

impl<T> Slab<T> {
    pub(super) fn with_capacity(capacity: usize) -> Slab<T> {
        let slots = (0..capacity).map(|_| None).collect();
        let inner = Inner { slots, free: (0..capacity).rev().collect(), waiting: 0 };
        Slab { inner: Mutex::new(inner), freed: Condvar::new() }
    }

    /// Waits for a slot: for the threads that take requests from the kernel.
    pub(super) fn insert_blocking(&self, value: T) -> u64 {
        let mut inner = self.lock();
        loop {
            if let Some(index) = inner.free.pop() {
                inner.slots[index] = Some(value);
                return index as u64;
            }
            inner.waiting += 1;
            inner = self.freed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
    }

    /// The value; its slot stays reserved until `free` or `put_back`.
    pub(super) fn take(&self, token: u64) -> Option<T> {
        self.lock().slots.get_mut(usize::try_from(token).ok()?)?.take()
    }

    pub(super) fn put_back(&self, token: u64, value: T) {
        let slot = usize::try_from(token).expect("a token of this slab");
        self.lock().slots[slot] = Some(value);
    }

    pub(super) fn free(&self, token: u64) {
        let slot = usize::try_from(token).expect("a token of this slab");
        let mut inner = self.lock();
        debug_assert!(inner.slots[slot].is_none() && !inner.free.contains(&slot), "freed once, when taken");
        inner.free.push(slot);
        let someone_waits = inner.waiting > 0;
        drop(inner);
        if someone_waits {
            self.freed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_token_is_good_once() {
        let slab = Slab::with_capacity(2);
        let (a, b) = (slab.insert_blocking('a'), slab.insert_blocking('b'));
        assert_ne!(a, b);
        assert_eq!(slab.take(a), Some('a'));
        assert_eq!(slab.take(a), None);
        slab.put_back(a, 'c');
        assert_eq!(slab.take(a), Some('c'));
        slab.free(a);
        assert_eq!(slab.insert_blocking('d'), a);
        assert_eq!(slab.take(b), Some('b'));
        assert_eq!(slab.take(u64::MAX), None);
    }

    #[test]
    fn the_one_too_many_waits_for_a_slot_and_memory_stays_as_it_was() {
        let slab = Arc::new(Slab::with_capacity(1));
        let first = slab.insert_blocking(1);
        let (capacity, free) = {
            let inner = slab.lock();
            (inner.slots.capacity(), inner.free.capacity())
        };
        let waiter = std::thread::spawn({
            let slab = slab.clone();
            move || slab.insert_blocking(2)
        });
        assert_eq!(slab.take(first), Some(1));
        slab.free(first);
        assert_eq!(waiter.join().ok(), Some(first));
        let inner = slab.lock();
        assert_eq!((inner.slots.capacity(), inner.free.capacity()), (capacity, free));
    }
}
