//! Huge pages behind what a donor holds: pages that came one by one are collapsed, a little at a time.
//!
//! Owns which parts of the arena were collapsed, and the pace. Never: more memory for the arena than its
//! blocks take (only what is present throughout is collapsed), or time that the owner of the machine, or who
//! uses the donor, would miss. Why: `shmem_enabled` says `never` on nearly every machine, so what is written
//! takes pages of 4 KiB. Sent from huge ones, 1 MiB at a time, it cost a donor a quarter less and the client
//! got a tenth more.
//! Called by `owner` and `cheetah donate`. Tests: below.

use crate::arena::Arena;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// One look at the machine is followed by so much work at most: a tenth of one processor, and less where
/// looks are rarer. It ends with the page at which somebody comes to use the donor: a page takes half a
/// millisecond, or 5 where the host of a virtual machine has to find the memory for it first, and requests
/// wait for that.
const SLICE: Duration = Duration::from_millis(12);
/// Between two slices, where no looks at the machine set the pace.
const PAUSE: Duration = Duration::from_millis(125);
/// How long nothing is looked at after all was.
const REST: Duration = Duration::from_secs(5);
/// A donor that moves so many bytes a second has better things to do. Few, for they may be the first of very
/// many since it looked:
const BUSY_BYTES: u64 = 10_000_000;
/// it moves a page in one of so many slices, for it may be so for days.
const BUSY_PART: u32 = 16;

/// What was collapsed, for one slice of work after the other.
#[derive(Debug)]
pub struct Collapsing(Arc<Mutex<Round>>);

#[derive(Debug)]
struct Round {
    arena: Arc<Arena>,
    collapsed: Vec<bool>,
    next: usize,
    not_before: Option<Instant>,
    traffic: Traffic,
}

/// How busy a donor was between two looks.
#[derive(Debug)]
struct Traffic {
    looked: Instant,
    bytes_moved: u64,
    passed: u32,
}

impl Collapsing {
    #[must_use]
    pub fn new(arena: Arc<Arena>) -> Self {
        let collapsed = vec![false; arena.huge_pages()];
        let traffic = Traffic { looked: Instant::now(), bytes_moved: 0, passed: 0 };
        let round = Round { arena, collapsed, next: 0, not_before: None, traffic };
        Collapsing(Arc::new(Mutex::new(round)))
    }

    /// Goes on a little, on a thread that may wait for the kernel; nothing when that is under way.
    pub fn go_on(&self) {
        let round = self.0.clone();
        tokio::task::spawn_blocking(move || match round.try_lock() {
            Ok(mut round) => round.go_on_in_time(),
            Err(TryLockError::Poisoned(round)) => round.into_inner().go_on_in_time(),
            Err(TryLockError::WouldBlock) => {}
        });
    }

    /// Goes on until it is dropped: for a donor whose owner is not looked after.
    pub async fn go_on_always(self) -> Infallible {
        loop {
            tokio::time::sleep(PAUSE).await;
            self.go_on();
        }
    }
}

impl Traffic {
    /// Whether a slice of work is in nobody's way, at this moment and with so many bytes moved so far.
    fn leaves_time(&mut self, now: Instant, bytes_moved: u64) -> bool {
        let (took, moved) = (now - self.looked, bytes_moved - self.bytes_moved);
        (self.looked, self.bytes_moved) = (now, bytes_moved);
        let is_busy = u128::from(moved) * 1_000_000_000 > u128::from(BUSY_BYTES) * took.as_nanos();
        self.passed = if is_busy { (self.passed + 1) % BUSY_PART } else { 0 };
        self.passed == 0
    }
}

impl Round {
    fn go_on_in_time(&mut self) {
        let now = Instant::now();
        if self.traffic.leaves_time(now, self.arena.bytes_moved()) {
            self.go_on(now + SLICE);
        }
    }

    fn go_on(&mut self, until: Instant) {
        if self.not_before.is_some_and(|rest| Instant::now() < rest) {
            return;
        }
        let moved_before = self.arena.bytes_moved();
        while self.next < self.collapsed.len() {
            let page = self.next;
            self.next += 1;
            if self.collapsed[page] && self.arena.is_whole(page) {
                continue;
            }
            match self.arena.collapse(page).map_err(|error| error.kind()) {
                Ok(whole) => self.collapsed[page] = whole,
                // This kernel does not do it.
                Err(io::ErrorKind::InvalidInput) => self.collapsed[page] = true,
                // There is no huge page left, and making one costs the machine more than it gains.
                Err(io::ErrorKind::OutOfMemory | io::ErrorKind::ResourceBusy) => break,
                // Some of it is on its way into a socket.
                Err(_) => {}
            }
            if Instant::now() >= until || self.arena.bytes_moved() != moved_before {
                return;
            }
        }
        self.next = 0;
        self.not_before = Some(Instant::now() + REST);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mapping::HUGE_PAGE_BYTES;
    use cheetah_core::limits::EXTENT_BYTES;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Bytes of the arena that this process has mapped as huge pages.
    fn on_huge_pages(arena: &Arena) -> u64 {
        let begin = arena.address(0) as usize;
        let arena = begin..begin + arena.huge_pages() * HUGE_PAGE_BYTES;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut in_arena = false;
        let kib = maps.lines().filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            if name.contains('-') {
                let (from, _) = name.split_once('-')?;
                in_arena = arena.contains(&usize::from_str_radix(from, 16).ok()?);
            }
            let value = rest.trim().strip_suffix(" kB").filter(|_| in_arena && name == "ShmemPmdMapped")?;
            value.parse::<u64>().ok()
        });
        kib.sum::<u64>() << 10
    }

    #[test]
    fn a_donor_that_is_busy_collapses_seldom() {
        let start = Instant::now();
        let mut traffic = Traffic { looked: start, bytes_moved: 0, passed: 0 };
        let mut look =
            |tenth: u64, bytes| traffic.leaves_time(start + Duration::from_millis(100 * tenth), bytes);
        assert!(look(1, BUSY_BYTES / 10));
        let busy = (2..34).filter(|tenth| look(*tenth, BUSY_BYTES * *tenth)).count();
        assert_eq!(busy, 2, "of 32");
        assert!(look(34, BUSY_BYTES * 33) && look(35, BUSY_BYTES * 33), "it is quiet again");
    }

    /// A slice of work on an arena that is full, which `use_it` uses meanwhile; whether it left something for
    /// later.
    fn ends_early(use_it: impl Fn(&Arena) + Send + 'static) -> bool {
        let arena = Arc::new(Arena::new(1).unwrap());
        arena.write(0, &vec![1; EXTENT_BYTES as usize]);
        let (used, done) = (arena.clone(), Arc::new(AtomicBool::new(false)));
        let is_done = done.clone();
        let user = std::thread::spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                use_it(&used);
                std::thread::yield_now();
            }
        });
        let round = Collapsing::new(arena);
        let mut round = round.0.lock().unwrap();
        round.go_on(Instant::now() + Duration::from_secs(60));
        done.store(true, Ordering::Relaxed);
        user.join().unwrap();
        round.next > 0
    }

    #[test]
    fn a_slice_ends_when_somebody_uses_the_donor() {
        assert!(!ends_early(|_| ()), "nobody does");
        // The user may be kept from the processor for a whole slice, but not each time.
        assert!((0..100).any(|_| ends_early(|arena| arena.count_moved(1))));
    }

    #[test]
    fn what_is_whole_is_collapsed_and_takes_no_more_memory() {
        let arena = Arc::new(Arena::new(1).unwrap());
        let page = EXTENT_BYTES / arena.huge_pages() as u64;
        let noise: Vec<u8> = (0..2 * page + 4096).map(|at| (at % 251) as u8 + 1).collect();
        arena.write(0, &noise);
        let before = (arena.bytes_used(), arena.bytes_resident());
        let round = Collapsing::new(arena.clone());
        let mut round = round.0.lock().unwrap();
        round.go_on(Instant::now() + Duration::from_secs(60));
        assert_eq!(on_huge_pages(&arena), 2 * page, "kernels from 6.1 on can");
        assert_eq!(
            round.collapsed.iter().filter(|collapsed| **collapsed).count(),
            2,
            "two of them are whole"
        );
        assert_eq!((arena.bytes_used(), arena.bytes_resident()), before);
        assert!(arena.bytes_at(0, noise.len()) == noise);
        arena.zero(page, 4096, false);
        arena.wipe(&[0]);
        assert_eq!((arena.bytes_used(), arena.bytes_resident()), (0, 0), "all of it is given back");
        (round.not_before, round.next) = (None, 0);
        round.go_on(Instant::now() + Duration::from_secs(60));
        assert!(
            round.collapsed.iter().all(|collapsed| !collapsed),
            "what is gone is not taken for collapsed"
        );
    }
}
