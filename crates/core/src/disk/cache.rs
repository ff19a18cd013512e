//! Which blocks of a disk stay in its donor's memory: S3-FIFO.
//!
//! Owns the three queues and what is known of each block. Never: the memory itself, or which block may not go
//! (the caller says so). The policy is that of Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023: a block that came is in the small queue, a tenth of all; one that was used again
//! there moves to the main one, one that was not goes and is remembered for a while (a ghost); a ghost that
//! comes again goes to the main queue at once, where what was used goes round. So a scan passes through the
//! small queue and washes nothing out. Invariant: a block is in one queue at most. Tests: below.

use crate::limits::EXTENT_BLOCKS;
use std::collections::VecDeque;

const USED: u8 = 0b11;
const SMALL: u8 = 0b100;
const MAIN: u8 = 0b1000;
const GHOST: u8 = 0b1_0000;
/// Its entry in a queue is void: it went otherwise.
const GONE: u8 = 0b10_0000;

/// The blocks of one disk that are in memory.
#[derive(Debug)]
pub struct Cache {
    /// A byte for each block of an extent of which one was ever here.
    extents: Vec<Option<Box<[u8]>>>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<u64>,
    here: u64,
    room: u64,
}

impl Cache {
    /// Empty, with room for so many blocks of so many extents.
    #[must_use]
    pub fn new(extents: u32, room: u64) -> Cache {
        Cache {
            extents: (0..extents).map(|_| None).collect(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            here: 0,
            room: room.max(1),
        }
    }

    /// Whether the block is in memory.
    #[must_use]
    pub fn has(&self, block: u64) -> bool {
        self.get(block) & (SMALL | MAIN) != 0 && self.get(block) & GONE == 0
    }

    /// How many are in memory.
    #[must_use]
    pub fn here(&self) -> u64 {
        self.here
    }

    /// How many are in memory beyond the room for them.
    #[must_use]
    pub fn excess(&self) -> u64 {
        self.here.saturating_sub(self.room)
    }

    /// Somebody used a block that is here.
    pub fn used(&mut self, block: u64) {
        let state = self.get(block);
        if state & USED != USED {
            self.set(block, state + 1);
        }
    }

    /// A block came.
    pub fn came(&mut self, block: u64) {
        let state = self.get(block);
        if state & GONE != 0 {
            // Its entry is there still, and counts again.
            self.set(block, state & (SMALL | MAIN));
        } else if state & (SMALL | MAIN) != 0 {
            return self.used(block);
        } else if state & GHOST != 0 {
            self.main.push_back(block);
            self.set(block, MAIN);
        } else {
            self.small.push_back(block);
            self.set(block, SMALL);
        }
        self.here += 1;
    }

    /// A block that was here is not any more, by its caller's will.
    pub fn went(&mut self, block: u64) {
        let state = self.get(block);
        if self.has(block) {
            self.set(block, state | GONE);
            self.here -= 1;
        }
    }

    /// Chooses a block to go, which is not here from now on. `stays`: it must not. None: none can.
    pub fn evict(&mut self, stays: impl Fn(u64) -> bool) -> Option<u64> {
        // Each turn shortens a queue, or takes one use from a block that has four at most.
        let turns = 5 * (self.small.len() + self.main.len());
        for _ in 0..turns {
            let from_small = self.small.len() as u64 * 10 > self.room || self.main.is_empty();
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let block = queue.pop_front()?;
            let state = self.get(block);
            if state & GONE != 0 {
                self.set(block, 0);
                continue;
            }
            let stays = stays(block);
            if stays || state & USED != 0 {
                let used = match (stays, from_small) {
                    (true, _) => state & USED,
                    (false, true) => 0,
                    (false, false) => (state & USED) - 1,
                };
                self.main.push_back(block);
                self.set(block, MAIN | used);
                continue;
            }
            self.here -= 1;
            if from_small {
                self.remember(block);
            } else {
                self.set(block, 0);
            }
            return Some(block);
        }
        None
    }

    fn remember(&mut self, block: u64) {
        self.set(block, GHOST);
        self.ghosts.push_back(block);
        while self.ghosts.len() as u64 > self.room {
            let Some(oldest) = self.ghosts.pop_front() else { return };
            let state = self.get(oldest);
            self.set(oldest, state & !GHOST);
        }
    }

    fn get(&self, block: u64) -> u8 {
        let extent = self.extents.get(index(block / EXTENT_BLOCKS)).and_then(Option::as_ref);
        extent.map_or(0, |states| states[index(block % EXTENT_BLOCKS)])
    }

    fn set(&mut self, block: u64, state: u8) {
        let extent = &mut self.extents[index(block / EXTENT_BLOCKS)];
        let states = extent.get_or_insert_with(|| vec![0; index(EXTENT_BLOCKS)].into_boxed_slice());
        states[index(block % EXTENT_BLOCKS)] = state;
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("of a disk that is here")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;
    use std::collections::BTreeSet;

    /// Reads a block through the cache; whether it was there.
    fn read(cache: &mut Cache, block: u64) -> bool {
        if cache.has(block) {
            cache.used(block);
            return true;
        }
        cache.came(block);
        while cache.excess() > 0 {
            cache.evict(|_| false).expect("nothing is held");
        }
        false
    }

    #[test]
    fn a_scan_does_not_wash_out_what_is_used() {
        let mut cache = Cache::new(4, 100);
        for _ in 0..5 {
            for block in 0..50 {
                read(&mut cache, block);
            }
        }
        for block in 1000..21000 {
            read(&mut cache, block);
        }
        let stayed = (0..50).filter(|block| cache.has(*block)).count();
        assert!(stayed >= 45, "{stayed} of 50 are here after a scan of 20,000");
    }

    #[test]
    fn what_is_held_stays_and_the_count_is_right() {
        let mut cache = Cache::new(2, 64);
        let mut seed = Seed(7);
        let mut here = BTreeSet::new();
        for _ in 0..20_000 {
            let block = seed.draw() % 300;
            match seed.draw() % 4 {
                0 => {
                    cache.went(block);
                    here.remove(&block);
                }
                _ if cache.has(block) => cache.used(block),
                _ => {
                    cache.came(block);
                    here.insert(block);
                }
            }
            while cache.excess() > 0 {
                let gone = cache.evict(|block| block.is_multiple_of(10)).expect("few are held");
                assert!(!gone.is_multiple_of(10) && here.remove(&gone));
            }
            assert_eq!(cache.here(), here.len() as u64);
            assert!(here.iter().all(|block| cache.has(*block)));
        }
        let mut held = Cache::new(1, 2);
        (0..5).for_each(|block| held.came(block));
        assert_eq!(held.evict(|_| true), None, "none can go");
        assert_eq!(held.here(), 5);
    }

    #[test]
    fn a_zipf_load_hits_as_often_as_the_policy_promises() {
        // 1,000 of 10,000 blocks, chosen by weight 1 / rank: the best that a policy can keep is the first
        // thousand, which get 0.765 of all reads.
        let harmonic: Vec<f64> = (1..=10_000)
            .scan(0.0, |sum, rank| {
                *sum += 1.0 / f64::from(rank);
                Some(*sum)
            })
            .collect();
        let (mut cache, mut seed, mut hits) = (Cache::new(1, 1000), Seed(3), 0);
        for nth in 0..200_000 {
            let at = (seed.draw() >> 11) as f64 / (1_u64 << 53) as f64 * harmonic[9_999];
            let block = harmonic.partition_point(|sum| *sum < at) as u64;
            let hit = read(&mut cache, block);
            hits += u32::from(hit && nth >= 100_000);
        }
        let ratio = f64::from(hits) / 100_000.0;
        assert!(ratio > 0.70, "hit ratio {ratio}");
    }
}
