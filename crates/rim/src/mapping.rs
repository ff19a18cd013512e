//! Mapped memory that is placed so that the kernel can put huge pages behind it.
//!
//! Owns mapping, unmapping, the advice, and other pages in the place of some. Never: what the bytes are, or
//! who may touch them (`Arena`, `Buffer`). Why: with its buffers on huge pages a client was 7 % faster at 1
//! MiB, and they are what `collapse` needs. Whoever has none loses speed and nothing else.
//! Called by `arena` and `buffer`. Tests: below. One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use rustix::mm::{Advice, MapFlags, MlockFlags, MprotectFlags, ProtFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whether memory that is taken up front was refused to be locked, once.
static IS_EXPOSED: AtomicBool = AtomicBool::new(false);

/// Whether all memory that was taken up front is locked.
pub(crate) fn all_are_locked() -> bool {
    !IS_EXPOSED.load(Ordering::Relaxed)
}

/// A mapping, ended with its owner.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may touch which part of it is ruled by its owner.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` nothing but the address can be read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of this process, which reads as zeros; not part of a core dump.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let mapping = Mapping::reserve(bytes)?;
        mapping.advise(Advice::LinuxDontDump);
        mapping.advise(Advice::LinuxHugepage);
        if bytes > 0 {
            // Only now can pages come, which they do at once in a process that locks its memory: as huge
            // ones. SAFETY: our own reservation.
            unsafe {
                let access = MprotectFlags::READ | MprotectFlags::WRITE;
                rustix::mm::mprotect(mapping.start.as_ptr().cast(), mapping.bytes, access)?;
            }
        }
        Ok(mapping)
    }

    /// Bytes of a file, which is memory itself; not part of a core dump.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn of_file(memory: &OwnedFd, from: u64, bytes: usize) -> io::Result<Mapping> {
        let mapping = Mapping::reserve(bytes)?;
        if bytes > 0 {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: takes the place of our own reservation.
            unsafe {
                let start = mapping.start.as_ptr().cast();
                rustix::mm::mmap(start, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, memory, from)?;
            }
        }
        mapping.advise(Advice::LinuxDontDump);
        mapping.advise(Advice::LinuxHugepage);
        Ok(mapping)
    }

    /// Addresses that nobody may use yet, whole pages; those of a huge page or more begin where one can.
    fn reserve(bytes: usize) -> io::Result<Mapping> {
        if bytes == 0 {
            return Ok(Mapping { start: NonNull::dangling(), bytes });
        }
        let spare = if bytes < HUGE_PAGE_BYTES { 0 } else { HUGE_PAGE_BYTES };
        let bytes = bytes.checked_next_multiple_of(rustix::param::page_size());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let room = bytes.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let before = if spare == 0 { 0 } else { reserved.align_offset(HUGE_PAGE_BYTES) };
        // SAFETY: both ends are inside of what was reserved a moment ago, and nobody knows of them. What the
        // kernel does not take back is address space and no more.
        let start = unsafe {
            let start = reserved.byte_add(before);
            for (from, len) in [(reserved, before), (start.byte_add(bytes), spare - before)] {
                if len > 0 {
                    let _ = rustix::mm::munmap(from, len);
                }
            }
            start
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Mapping { start, bytes })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Touches every page, so that later use of it meets no page fault, and locks them where this process
    /// may.
    pub(crate) fn prefault(&self) {
        self.advise(Advice::LinuxPopulateWrite);
        if self.bytes > 0 {
            // SAFETY: the whole of our own mapping; locking changes no content.
            let locked = unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.bytes) };
            if locked.is_err() {
                IS_EXPOSED.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Locks pages when they come, and those that are here; whether this process may.
    pub(crate) fn lock_as_it_comes(&self) -> bool {
        // SAFETY: the whole of our own mapping; locking changes no content.
        let lock =
            || unsafe { rustix::mm::mlock_with(self.start.as_ptr().cast(), self.bytes, MlockFlags::ONFAULT) };
        self.bytes == 0 || lock().is_ok()
    }

    /// Advice changes no content, and what the kernel cannot do is no fault.
    fn advise(&self, advice: Advice) {
        if self.bytes > 0 {
            // SAFETY: the whole of our own mapping, with advice that discards nothing.
            let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
        }
    }
}

/// Gives up the pages behind these bytes, to the end of the last one: they read as zeros, on other pages.
/// Whoever else has the old ones, a socket that was lent them, keeps them.
///
/// # Safety
/// The bytes begin with a page of private memory, and nobody uses what is behind them in the last page.
pub(crate) unsafe fn discard(bytes: &mut [u8]) -> io::Result<()> {
    let len = bytes.len().next_multiple_of(rustix::param::page_size());
    let start = bytes.as_mut_ptr().cast();
    // SAFETY: the caller's, and whole pages of it.
    unsafe {
        // Locked memory is refused; before Linux 5.18 there is no other way than to unlock it.
        if rustix::mm::madvise(start, len, Advice::LinuxDontNeed).is_ok()
            || rustix::mm::madvise(start, len, Advice::LinuxDontneedLocked).is_ok()
        {
            return Ok(());
        }
        rustix::mm::munlock(start, len)?;
        rustix::mm::madvise(start, len, Advice::LinuxDontNeed)?;
        let _ = rustix::mm::mlock(start, len);
    }
    Ok(())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped with this length; whoever may touch it holds the mapping.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn any_length_can_be_mapped_and_written_to_its_end() {
        for bytes in [0, 1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 512, 3_000_001] {
            let mapping = Mapping::anonymous(bytes).unwrap();
            mapping.prefault();
            if bytes > 0 {
                // SAFETY: inside the mapping, which this test alone knows.
                unsafe { mapping.start().as_ptr().add(bytes - 1).write(7) };
            }
            if bytes >= HUGE_PAGE_BYTES {
                assert_eq!(mapping.start().as_ptr().align_offset(HUGE_PAGE_BYTES), 0, "{bytes}");
            }
        }
    }
}
