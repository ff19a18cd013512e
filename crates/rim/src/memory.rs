//! What keeps a process that serves the kernel's own write-back from waiting for itself: locked memory, a
//! heap that keeps what it has, and the kernel's promise not to start write-back on its behalf.
//!
//! Owns: those switches, each tried and each reported. Never: a failure that stops the program; an ordinary
//! user may have none of them. Why: a server in the memory cgroup of its writer hung in 6 of 8 runs without
//! them. One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use crate::swap;
use rustix::mm::MlockAllFlags;
use std::fmt;
use std::path::PathBuf;

/// What was granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Granted {
    pub locked: bool,
    pub io_flusher: bool,
}

/// The heap is grown by this much at once, and has it free at first; in steady state nothing on the data path
/// grows it.
const HEAP_BYTES: i32 = 4 << 20;

/// Locks all memory, present and future, so that no page of it is ever waited for: also those of buffers that
/// a library takes and fills only later. (Locking pages as they are first touched was not enough: the threads
/// that read from /dev/fuse hung in their first page fault.) One heap, grown beforehand and never given back.
#[must_use]
pub fn prepare() -> Granted {
    // SAFETY: mallopt only sets tunables of the allocator, here before the data path starts.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, HEAP_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
    }
    swap::raise_limit();
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    let locked = swap::may_lock_any() && rustix::mm::mlockall(all).is_ok();
    Granted { locked, io_flusher: declare_io_flusher() }
}

/// To be called when all else that is needed at the beginning was taken: so much is free then, and stays.
pub fn grow_heap() {
    let bytes = usize::try_from(HEAP_BYTES).expect("a size");
    drop(std::hint::black_box(vec![1u8; bytes]));
}

/// Memory that this thread needs is never waited for from write-back that this thread would have to serve.
/// Needs CAP_SYS_RESOURCE; holds for the calling thread and those it starts.
pub fn declare_io_flusher() -> bool {
    const PR_SET_IO_FLUSHER: i32 = 57; // <linux/prctl.h>
    // SAFETY: a prctl that takes a number and sets a flag of the calling thread.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}

/// Keeps the memory of this process out of core dumps and from being read by its owner's other processes.
pub fn forbid_dumps() {
    // SAFETY: a prctl that takes a number and sets a flag of the process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Bytes that were received and may be payload: zeroed before their memory is given back.
pub fn wipe(mut received: Vec<u8>) {
    received.clear();
    // Behind its length, too: what was there before it became shorter.
    received.resize(received.capacity(), 0);
    std::hint::black_box(&received);
}

/// A write beyond the limit of a file's size (`ulimit -f`) is an error for who made it, and no signal that
/// ends the process.
pub fn survive_file_limit() {
    // SAFETY: it takes two numbers; to ignore a signal runs nothing of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Why a process has no cgroup of its own.
#[derive(Debug)]
pub enum NoCgroup {
    /// The kernel does not tell which one it is in.
    Untold(std::io::Error),
    /// It cannot be made, or moved to.
    Kept { own: PathBuf, error: std::io::Error },
}

impl fmt::Display for NoCgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCgroup::Untold(error) => error.fmt(f),
            NoCgroup::Kept { own, error } => write!(f, "{}: {error}", own.display()),
        }
    }
}

impl std::error::Error for NoCgroup {}

/// Moves this process to a memory cgroup of its own, at the top: the limit of the tools that it serves is not
/// its limit. Only root may.
///
/// # Errors
/// Why it stays where it is.
pub fn own_cgroup(name: &str) -> Result<(), NoCgroup> {
    let memberships = std::fs::read_to_string("/proc/self/cgroup").map_err(NoCgroup::Untold)?;
    let v1 = memberships
        .lines()
        .any(|line| line.split(':').nth(1).is_some_and(|c| c.split(',').any(|c| c == "memory")));
    let top = if v1 { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
    let own = std::path::Path::new(top).join(name);
    let fault = |error| NoCgroup::Kept { own: own.clone(), error };
    match std::fs::create_dir(&own) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(fault(e)),
        _ => {}
    }
    std::fs::write(own.join("cgroup.procs"), std::process::id().to_string()).map_err(fault)
}
