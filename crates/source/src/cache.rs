//! What was decoded last, so that small reads do not decode it again: blocks of a disk, parts of tables.
//!
//! Invariant: it holds at most `entries_max` things. No lock is held while one is made, so threads decode
//! beside each other, and two may make the same. Called by `blocks` and the readers. Tests: below.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(crate) struct Cache<T: ?Sized> {
    entries_max: usize,
    /// The newest in front.
    entries: Mutex<VecDeque<(u64, Arc<T>)>>,
}

impl<T: ?Sized> Cache<T> {
    /// As many as fit into so many bytes, and some at least.
    pub fn new(bytes_max: usize, bytes_each: usize) -> Cache<T> {
        let entries_max = (bytes_max / bytes_each.max(1)).clamp(2, 128);
        Cache { entries_max, entries: Mutex::new(VecDeque::new()) }
    }

    pub fn get_or<E>(&self, key: u64, make: impl FnOnce() -> Result<Arc<T>, E>) -> Result<Arc<T>, E> {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        let made = make()?;
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|(other, _)| *other != key);
        entries.push_front((key, made.clone()));
        entries.truncate(self.entries_max);
        Ok(made)
    }

    pub fn get(&self, key: u64) -> Option<Arc<T>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|(other, _)| *other == key)?;
        let entry = entries.remove(at)?;
        let found = entry.1.clone();
        entries.push_front(entry);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let cache: Cache<u64> = Cache::new(3, 1);
        let made = |key: u64| cache.get_or(key, || Ok::<_, ()>(Arc::new(key * 10)));
        for key in [1, 2, 3, 1, 4] {
            assert_eq!(made(key).as_deref(), Ok(&(key * 10)));
        }
        assert!(cache.get(2).is_none() && cache.get(1).is_some() && cache.get(4).is_some());
        assert_eq!(cache.get_or(9, || Err("not made")), Err("not made"));
        assert!(cache.get(9).is_none());
    }
}
