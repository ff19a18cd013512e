//! Nonce and authentication tag of each block of an encrypted volume, as a donor has them.
//!
//! Owns which of them count of a donor of a disk: what its disk has, but for blocks that memory has anew
//! (*ahead*). Never: the table (core's `disk::Auths`), a key, or what they mean (`crate::cipher`).
//! Invariants: what is ahead of the disk ends when the disk has just that, or when what memory has does not
//! count; so of each block there is one entry, and one more while it is on its way. Others may read an entry
//! while it is written: then the block's checksum does not fit. Called by `arena`, `undo` and `volume`.
//! Tests: below.

pub(crate) use cheetah_core::disk::{Auth, NO_AUTH as NONE};
pub(crate) use cheetah_nbd::limits::AUTH_BYTES;

use crate::code;
use cheetah_core::disk;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const _: () = assert!(AUTH_BYTES == cheetah_core::limits::AUTH_BYTES);

/// The CRC32C of a block's bytes becomes its checksum by XOR with this.
pub(crate) fn sum(auth: &Auth) -> u32 {
    disk::auth_sum(auth, code::crc32c)
}

/// Those of a donor's blocks.
#[derive(Debug)]
pub(crate) struct Auths {
    /// All of a donor's memory, or what a disk has.
    kept: Arc<disk::Auths>,
    /// Of a disk: of blocks that memory has anew.
    ahead: Option<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    blocks: RwLock<HashMap<u64, Auth>>,
    /// So many there are: mostly none.
    count: AtomicUsize,
}

impl Ahead {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// No step under the lock panics half-way.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, Auth>> {
        self.blocks.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut RwLockWriteGuard<'_, HashMap<u64, Auth>>) -> T) -> T {
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut blocks);
        self.count.store(blocks.len(), Ordering::Release);
        changed
    }
}

impl Auths {
    /// Of memory.
    pub(crate) fn new(extents: u32) -> Auths {
        Auths { kept: Arc::new(disk::Auths::new(extents)), ahead: None }
    }

    /// Of memory over a disk that has these.
    pub(crate) fn over(kept: Arc<disk::Auths>) -> Auths {
        Auths { kept, ahead: Some(Ahead::default()) }
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.ahead.as_ref().is_none_or(Ahead::is_empty)
    }

    /// Of so many blocks memory has another than the disk.
    #[cfg(test)]
    pub(crate) fn count_ahead(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.count.load(Ordering::Acquire))
    }

    /// Whether the extent of this block may have any.
    pub(crate) fn has_some(&self, block: u64) -> bool {
        self.kept.has_some(block) || self.ahead.as_ref().is_some_and(|ahead| !ahead.is_empty())
    }

    /// Of the block with this number in the whole memory.
    pub(crate) fn get(&self, block: u64) -> Auth {
        let ahead = self.ahead.as_ref().filter(|ahead| !ahead.is_empty());
        let ahead = ahead.and_then(|ahead| ahead.read().get(&block).copied());
        ahead.unwrap_or_else(|| self.kept.get(block))
    }

    /// What it adds to the block's checksum.
    pub(crate) fn sum(&self, block: u64) -> u32 {
        if self.is_empty() { 0 } else { sum(&self.get(block)) }
    }

    pub(crate) fn set(&self, block: u64, auth: &Auth) {
        match &self.ahead {
            None => self.kept.set(block, auth),
            Some(_) if *auth == NONE && self.is_empty() => {}
            Some(ahead) => ahead.change(|blocks| {
                // One that is on its way to the disk may be another than what that has now.
                if *auth != NONE || blocks.contains_key(&block) || self.kept.get(block) != NONE {
                    blocks.insert(block, *auth);
                }
            }),
        }
    }

    /// Of blocks `from..to`.
    pub(crate) fn of(&self, from: u64, to: u64) -> impl ExactSizeIterator<Item = Auth> {
        let blocks = usize::try_from(to - from).expect("blocks of one request");
        (0..blocks).map(move |nth| self.get(from + nth as u64))
    }

    /// Blocks `from..to` have none any more.
    pub(crate) fn clear(&self, from: u64, to: u64) {
        if !self.is_empty() {
            (from..to).for_each(|block| self.set(block, &NONE));
        }
    }

    /// None is asked for any more, nor is it noted that there is none: a disk keeps what it has.
    pub(crate) fn close(&mut self) {
        *self = Auths::new(0);
    }

    /// The disk has these now: what is newer than that stays ahead of it.
    pub(crate) fn has_reached_disk(&self, blocks: impl Iterator<Item = (u64, Auth)>) {
        let Some(ahead) = self.ahead.as_ref().filter(|ahead| !ahead.is_empty()) else { return };
        ahead.change(|all| {
            for (block, auth) in blocks {
                if all.get(&block) == Some(&auth) {
                    all.remove(&block);
                }
            }
        });
    }

    /// What memory has of these does not count: the disk does.
    pub(crate) fn fall_back(&self, blocks: impl Iterator<Item = u64>) {
        let Some(ahead) = self.ahead.as_ref().filter(|ahead| !ahead.is_empty()) else { return };
        ahead.change(|all| {
            for block in blocks {
                all.remove(&block);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Auth = [1; AUTH_BYTES];
    const TWO: Auth = [2; AUTH_BYTES];

    #[test]
    fn of_memory_each_block_has_what_was_set_last() {
        let auths = Auths::new(1);
        auths.clear(0, 10);
        assert!(auths.is_empty() && !auths.has_some(3));
        auths.set(3, &ONE);
        assert_eq!(auths.of(2, 5).collect::<Vec<_>>(), [NONE, ONE, NONE]);
        assert_eq!((auths.sum(3), auths.sum(4)), (code::crc32c(&ONE), 0));
        auths.clear(3, 4);
        assert_eq!((auths.get(3), auths.sum(3)), (NONE, 0));
    }

    #[test]
    fn what_is_ahead_of_a_disk_counts_until_the_disk_has_just_that() {
        let disk = Arc::new(disk::Auths::new(1));
        let auths = Auths::over(Arc::clone(&disk));
        let reached = |auth: Auth| {
            disk.set(3, &auth);
            auths.has_reached_disk([(3, auth)].into_iter());
        };
        auths.set(3, &ONE);
        assert!(auths.get(3) == ONE && disk.is_empty() && auths.has_some(3));
        auths.set(3, &TWO);
        reached(ONE);
        assert_eq!(auths.get(3), TWO, "the next one is on its way");
        reached(TWO);
        assert!(auths.get(3) == TWO && auths.ahead.as_ref().is_some_and(Ahead::is_empty));
        // Zeros behind a write that the disk has not yet, and behind one that it has.
        for written in [false, true] {
            auths.set(3, &ONE);
            if written {
                reached(ONE);
            }
            auths.clear(3, 4);
            if !written {
                reached(ONE);
            }
            assert_eq!(auths.get(3), NONE);
            reached(NONE);
            assert!(auths.get(3) == NONE && auths.ahead.as_ref().is_some_and(Ahead::is_empty));
        }
        // The disk has none yet, nor has it when they are made zeros.
        auths.set(4, &ONE);
        auths.clear(4, 5);
        disk.set(4, &ONE);
        auths.has_reached_disk([(4, ONE)].into_iter());
        assert_eq!(auths.get(4), NONE);
        disk.set(3, &ONE);
        auths.set(3, &TWO);
        auths.fall_back(2..4);
        assert_eq!(auths.get(3), ONE, "what landed does not count");
    }
}
