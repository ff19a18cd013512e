//! The memory that payloads live in on a client: a fixed set of page-aligned buffers, taken up front and
//! locked where that is allowed, so that the write path allocates nothing while the kernel is short of
//! memory.
//!
//! Owns the pool and the pointers. Never: growth, beyond the few requests over 1 MiB that an NBD client may
//! send. Invariant: a buffer belongs to one holder at a time; its bytes are reached only through that holder,
//! and by a socket that was lent its pages until they are renewed.
//! Called by the front ends (take, fill, read) and `volume` (send, receive). Tests: below.
//! One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use crate::auth::{Auth, NONE};
use crate::mapping::{self, Mapping};
use crate::stream::iovec;
use cheetah_core::layout::Scatter;
use cheetah_core::limits::{BLOCK_BYTES, REQUEST_BYTES_MAX};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex};
use tokio::sync::Notify;

/// Most requests of a file system are small; these keep them from holding a megabyte each.
pub const SMALL_BYTES: usize = 16 << 10;
pub const SMALL_COUNT: usize = 512;
/// What FUSE and the kernel's NBD client send at most.
pub const LARGE_BYTES: usize = 1 << 20;
pub const LARGE_COUNT: usize = 41;
/// Requests over 1 MiB, as NBD tools may send them: mapped when they come, this many at once.
pub const HUGE_COUNT: usize = 2;

/// Whole pages; so much is copied at once while a buffer gets others.
const RENEW_BYTES: usize = 64 << 10;

/// A handle to the pool; clones share it.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    small: Mapping,
    large: Mapping,
    free: Mutex<Free>,
    freed: Condvar,
    freed_async: Notify,
}

#[derive(Debug)]
struct Free {
    small: Vec<usize>,
    large: Vec<usize>,
    huge: usize,
    /// Threads in `take_blocking`: waking nobody is a system call, too.
    waiting: usize,
}

#[derive(Debug)]
enum Home {
    Small(usize),
    Large(usize),
    Huge {
        _mapping: Mapping,
    },
    /// Of no pool: memory of the driver's own.
    Standing {
        _mapping: Mapping,
    },
}

/// `len` bytes of the pool, given back when dropped.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    home: Home,
    pool: Option<Arc<Shared>>,
    /// Of ciphertext.
    cipher: Option<Box<Cipher>>,
}

/// What belongs to the ciphertext in a buffer.
#[derive(Debug, Default)]
struct Cipher {
    /// Nonce and authentication tag of each of its blocks.
    auths: Vec<Auth>,
    /// What comes from donors is compared with them as it comes.
    is_checked: bool,
}

// SAFETY: a buffer is the only way to its bytes, so moving it to another thread moves them.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` allows reads only.
unsafe impl Sync for Buffer {}

impl Pool {
    /// # Errors
    /// The machine has no memory for it (49 MiB).
    pub fn new() -> io::Result<Pool> {
        let (small, large) =
            (Mapping::anonymous(SMALL_BYTES * SMALL_COUNT)?, Mapping::anonymous(LARGE_BYTES * LARGE_COUNT)?);
        let free = Free {
            small: (0..SMALL_COUNT).rev().collect(),
            large: (0..LARGE_COUNT).rev().collect(),
            huge: HUGE_COUNT,
            waiting: 0,
        };
        Ok(Pool(Arc::new(Shared {
            small,
            large,
            free: Mutex::new(free),
            freed: Condvar::new(),
            freed_async: Notify::new(),
        })))
    }

    /// Touches every page, so that the write path meets no page fault.
    pub fn prefault(&self) {
        self.0.small.prefault();
        self.0.large.prefault();
    }

    /// A buffer of `len` bytes, if there is one now. Its content is whatever was in it before.
    #[must_use]
    pub fn try_take(&self, len: usize) -> Option<Buffer> {
        self.take_locked(&mut lock(&self.0.free), len)
    }

    fn take_locked(&self, free: &mut Free, len: usize) -> Option<Buffer> {
        assert!(len <= REQUEST_BYTES_MAX as usize, "front ends refuse larger requests");
        let (home, region, offset) = if len <= SMALL_BYTES && !free.small.is_empty() {
            let index = free.small.pop()?;
            (Home::Small(index), &self.0.small, index * SMALL_BYTES)
        } else if len <= LARGE_BYTES {
            let index = free.large.pop()?;
            (Home::Large(index), &self.0.large, index * LARGE_BYTES)
        } else {
            free.huge = free.huge.checked_sub(1)?;
            let Ok(mapping) = Mapping::anonymous(len) else {
                free.huge += 1;
                return None;
            };
            let start = mapping.start();
            return Some(Buffer {
                start,
                len,
                home: Home::Huge { _mapping: mapping },
                pool: Some(self.0.clone()),
                cipher: None,
            });
        };
        // SAFETY: `offset` is inside the region: the index came from the free list of that class.
        let start = unsafe { region.start().add(offset) };
        Some(Buffer { start, len, home, pool: Some(self.0.clone()), cipher: None })
    }

    /// Waits for a buffer: for threads of a front end that may block (FUSE).
    #[must_use]
    pub fn take_blocking(&self, len: usize) -> Buffer {
        let mut free = lock(&self.0.free);
        loop {
            if let Some(buffer) = self.take_locked(&mut free, len) {
                return buffer;
            }
            free.waiting += 1;
            free = self.0.freed.wait(free).unwrap_or_else(std::sync::PoisonError::into_inner);
            free.waiting -= 1;
        }
    }

    /// Waits for a buffer: for tasks.
    pub async fn take(&self, len: usize) -> Buffer {
        loop {
            let freed = self.0.freed_async.notified();
            if let Some(buffer) = self.try_take(len) {
                return buffer;
            }
            freed.await;
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        let mut free = lock(&pool.free);
        match self.home {
            Home::Small(index) => free.small.push(index),
            Home::Large(index) => free.large.push(index),
            Home::Huge { .. } => free.huge += 1,
            Home::Standing { .. } => {}
        }
        let waiting = free.waiting > 0;
        drop(free);
        if waiting {
            // All of them: they wait for buffers of different sizes.
            pool.freed.notify_all();
        }
        pool.freed_async.notify_waiters();
    }
}

fn lock(free: &Mutex<Free>) -> std::sync::MutexGuard<'_, Free> {
    free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start+len` lies inside a live mapping that this buffer alone may touch.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Buffer {
    /// Its first `len` bytes, if it has more; its room stays taken until it is dropped.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Memory of the caller's own, present from the beginning.
    ///
    /// # Errors
    /// The machine has none.
    pub fn standing(len: usize) -> io::Result<Buffer> {
        let mapping = Mapping::anonymous(len)?;
        mapping.prefault();
        let start = mapping.start();
        Ok(Buffer { start, len, home: Home::Standing { _mapping: mapping }, pool: None, cipher: None })
    }

    /// Nonces and authentication tags of its blocks; none where it has no ciphertext.
    pub(crate) fn auths(&self) -> &[Auth] {
        self.cipher.as_ref().map_or(&[], |cipher| &cipher.auths)
    }

    pub(crate) fn auths_mut(&mut self) -> &mut [Auth] {
        self.cipher.as_mut().map_or(&mut [], |cipher| &mut cipher.auths)
    }

    /// It is ciphertext, with these.
    pub(crate) fn set_auths(&mut self, auths: Vec<Auth>) {
        debug_assert_eq!(auths.len(), self.blocks(), "one for each block");
        self.cipher.get_or_insert_default().auths = auths;
    }

    /// It is for ciphertext, of which nothing is here yet.
    pub(crate) fn expect_auths(&mut self) {
        self.set_auths(vec![NONE; self.blocks()]);
    }

    fn blocks(&self) -> usize {
        self.len / BLOCK_BYTES as usize
    }

    /// What comes into it is compared with its authentication tags, block by block and donor by donor.
    pub(crate) fn check(&mut self) {
        self.cipher.get_or_insert_default().is_checked = true;
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.is_checked)
    }

    /// It is no ciphertext any more.
    pub(crate) fn forget_auths(&mut self) {
        self.cipher = None;
    }

    /// Puts other pages behind its bytes, which stay what they are. Who was lent the old ones, a socket,
    /// keeps those, and nothing that is written here from now on shows there.
    ///
    /// # Panics
    /// Where pages of a process's own memory cannot be given up, which no kernel refuses.
    pub(crate) fn renew(&mut self) {
        let mut kept = vec![0; self.len.min(RENEW_BYTES)];
        for bytes in self.chunks_mut(RENEW_BYTES) {
            let kept = &mut kept[..bytes.len()];
            kept.copy_from_slice(bytes);
            // SAFETY: a buffer begins with a page, and no other has part of its last one.
            unsafe { mapping::discard(bytes) }.expect("memory of our own");
            bytes.copy_from_slice(kept);
        }
    }

    /// Where bytes `at..end` of one fragment are, for the kernel to read or to fill, until there are `limit`
    /// pieces. They are good as long as nobody else touches the buffer.
    pub(crate) fn pieces(
        &self,
        scatter: Scatter,
        at: u32,
        end: u32,
        limit: usize,
        pieces: &mut Vec<libc::iovec>,
    ) {
        let mut at = at;
        while at < end && pieces.len() < limit {
            let (offset, len) = scatter.locate(at);
            let len = len.min(end - at);
            assert!((offset + len) as usize <= self.len, "a scatter lies inside its payload");
            // SAFETY: inside the buffer, as asserted.
            pieces.push(iovec(unsafe { self.start.as_ptr().add(offset as usize) }, len as usize));
            at += len;
        }
    }

    /// Fills bytes `at..end` of a fragment from a slice, or with zeros.
    pub fn put(&mut self, scatter: Scatter, at: u32, end: u32, from: Option<&[u8]>) {
        let (mut at, mut taken) = (at, 0usize);
        while at < end {
            let (offset, len) = scatter.locate(at);
            let len = len.min(end - at);
            let room = &mut self[offset as usize..(offset + len) as usize];
            match from {
                Some(bytes) => room.copy_from_slice(&bytes[taken..taken + len as usize]),
                None => room.fill(0),
            }
            taken += len as usize;
            at += len;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_takes_back() {
        let pool = Pool::new().unwrap();
        let held: Vec<Buffer> = std::iter::from_fn(|| pool.try_take(LARGE_BYTES)).collect();
        assert_eq!(held.len(), LARGE_COUNT);
        let small = pool.try_take(1).unwrap();
        assert_eq!(small.len(), 1);
        drop(held);
        assert!(pool.try_take(LARGE_BYTES).is_some());
        let huge: Vec<Buffer> = std::iter::from_fn(|| pool.try_take((4 << 20) + 512)).collect();
        assert_eq!(huge.len(), HUGE_COUNT);
    }

    #[test]
    fn pieces_land_where_the_scatter_says() {
        let pool = Pool::new().unwrap();
        let mut buffer = pool.try_take(40).unwrap();
        buffer.fill(0);
        let scatter = Scatter { start: 2, first: 3, second: 10, unit: 4, stride: 10, len: 9 };
        buffer.put(scatter, 0, 9, Some(b"abcdefghi"));
        assert_eq!(&buffer[2..5], b"abc");
        assert_eq!(&buffer[10..14], b"defg");
        assert_eq!(&buffer[20..22], b"hi");
        let mut pieces = Vec::new();
        buffer.pieces(scatter, 1, 9, 16, &mut pieces);
        // SAFETY: they are in the buffer, which nobody else touches.
        let of = |piece: &libc::iovec| unsafe {
            std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
        };
        assert_eq!(pieces.iter().map(of).collect::<Vec<_>>(), [&b"bc"[..], b"defg", b"hi"]);
        pieces.clear();
        buffer.pieces(scatter, 4, 8, 1, &mut pieces);
        assert_eq!(pieces.iter().map(of).collect::<Vec<_>>(), [b"efg"]);
    }
}
