//! The program's allocator: the system's, with one exception for the threads that read from /dev/fuse.
//!
//! Owns: where those threads' buffers are, and how much of each is present. Never: any other allocation.
//! Why: the library gives each such thread 16 MiB, of which the requests that this program agrees to (1 MiB at most)
//! reach the first sixteenth. All memory of a daemon is locked and present; the rest of these would be, too.
//! Tests: below; `memory_pressure` of the end-to-end tests holds the whole program to its bound.
//! One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use rustix::mm::{Advice, MapFlags, MlockFlags, MprotectFlags, ProtFlags};
use std::alloc::{GlobalAlloc, Layout, System};

/// What `fuser` takes for each thread: its largest write and a page for the head.
const REQUEST_ROOM_BYTES: usize = (16 << 20) + PAGE_BYTES;
/// What a request of ours fills of it at most.
const PRESENT_BYTES: usize = (1 << 20) + PAGE_BYTES;
const PAGE_BYTES: usize = 4096;

/// To be the `#[global_allocator]` of a program that mounts volumes.
#[derive(Debug)]
pub struct Heap;

// SAFETY: each allocation is the system's, or a mapping of its own; its size says which, here as in `dealloc`.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_room(layout) {
            return map();
        }
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_room(layout) {
            return map();
        }
        // SAFETY: as the caller vouches.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if is_room(layout) {
            // SAFETY: mapped by `map`, with this length.
            let _ = unsafe { rustix::mm::munmap(start.cast(), REQUEST_ROOM_BYTES) };
            return;
        }
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the alignment was that of a layout, and the caller vouches for the size.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_room(layout) && !is_room(wanted) {
            // SAFETY: as the caller vouches.
            return unsafe { System.realloc(start, layout, size) };
        }
        // SAFETY: old and new are apart, and each is at least as long as what is copied.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                start.copy_to_nonoverlapping(new, layout.size().min(size));
                self.dealloc(start, layout);
            }
            new
        }
    }
}

fn is_room(layout: Layout) -> bool {
    layout.size() == REQUEST_ROOM_BYTES && layout.align() <= PAGE_BYTES
}

/// Zeros, of which the beginning is present, and the rest comes when it is touched, also in a process whose future
/// memory is locked: the kernel fills a locked mapping when it is made, unless it cannot be touched yet.
fn map() -> *mut u8 {
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing, and until it is handed out
    // nobody else knows it.
    unsafe {
        let start = std::ptr::null_mut();
        let Ok(start) =
            rustix::mm::mmap_anonymous(start, REQUEST_ROOM_BYTES, ProtFlags::empty(), MapFlags::PRIVATE)
        else {
            return std::ptr::null_mut();
        };
        // Refused to a user who may lock nothing: then nothing is locked, which is as well.
        let _ = rustix::mm::mlock_with(start, REQUEST_ROOM_BYTES, MlockFlags::ONFAULT);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        if rustix::mm::mprotect(start, REQUEST_ROOM_BYTES, access).is_err() {
            let _ = rustix::mm::munmap(start, REQUEST_ROOM_BYTES);
            return std::ptr::null_mut();
        }
        let _ = rustix::mm::madvise(start, REQUEST_ROOM_BYTES, Advice::LinuxNoHugepage);
        let start = start.cast::<u8>();
        // By hand, for kernels before 5.14 populate nothing when they are asked.
        for page in (0..PRESENT_BYTES).step_by(PAGE_BYTES) {
            start.add(page).write_volatile(0);
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the pages of this mapping, how many are present.
    fn present(start: *mut u8) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("our mappings");
        let head = format!("{:x}-", start as usize);
        let mapping = maps.split("VmFlags").find_map(|entry| entry.split_once(&head)).expect("the mapping").1;
        let rss = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).expect("what is present of it");
        rss.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 4
    }

    #[test]
    fn only_the_beginning_of_a_request_room_is_present_also_where_all_memory_is_locked() {
        // Of this process: no other test of this program is hurt by it. An ordinary user may lock nothing.
        let locks = rustix::mm::mlockall(rustix::mm::MlockAllFlags::FUTURE).is_ok();
        let layout = Layout::from_size_align(REQUEST_ROOM_BYTES, 1).expect("a layout");
        // SAFETY: used within its length, and given back once.
        unsafe {
            let start = Heap.alloc_zeroed(layout);
            assert!(!start.is_null());
            // Where nothing is locked the mapping may be one with its neighbour's.
            assert!(!locks || present(start) == PRESENT_BYTES / PAGE_BYTES, "{} pages", present(start));
            start.add(REQUEST_ROOM_BYTES - 1).write(7);
            assert!(!locks || present(start) == PRESENT_BYTES / PAGE_BYTES + 1, "{} pages", present(start));
            let grown = Heap.realloc(start, layout, 100);
            assert_eq!(grown.read(), 0);
            Heap.dealloc(grown, Layout::from_size_align(100, 1).expect("a layout"));
        }
        let _ = rustix::mm::munlockall();
    }
}
