//! Many seeds, one after the other.
//!
//! Owns: totals, and stopping at the first failure. Never: a clock; whoever asks for progress has one.

use crate::{Outcome, Setup, Stats, run};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swarm {
    pub seeds: u64,
    pub stats: Stats,
    /// Over the digests of all seeds.
    pub digest: u64,
    /// The first seed that failed, and what was violated.
    pub failed: Option<(u64, String)>,
}

impl Swarm {
    /// Takes in the seeds that another ran; the lowest seed that failed counts.
    pub fn add(&mut self, other: Swarm) {
        self.seeds += other.seeds;
        self.stats.add(&other.stats);
        self.digest = (self.digest ^ other.digest).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        let first = |failed: &Option<(u64, String)>| failed.as_ref().map_or(u64::MAX, |(seed, _)| *seed);
        if first(&other.failed) < first(&self.failed) {
            self.failed = other.failed;
        }
    }
}

/// Runs `count` seeds from `start` on, until one fails. `progress` is called after each.
pub fn swarm(start: u64, count: u64, setup: Setup, mut progress: impl FnMut(&Swarm)) -> Swarm {
    let mut swarm = Swarm::default();
    for seed in start..start.saturating_add(count) {
        let Outcome { digest, stats, failure } = run(seed, setup, None);
        swarm.seeds += 1;
        swarm.stats.add(&stats);
        swarm.digest = (swarm.digest ^ digest).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        swarm.failed = failure.map(|what| (seed, what));
        progress(&swarm);
        if swarm.failed.is_some() {
            break;
        }
    }
    swarm
}
