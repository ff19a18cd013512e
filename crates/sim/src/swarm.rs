//! Many seeds, one after the other.
//!
//! Owns: totals, and stopping at the first failure. Never: a clock; whoever asks for progress has one.

use crate::{Bug, Outcome, Stats, run};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swarm {
    pub seeds: u64,
    pub stats: Stats,
    /// Over the digests of all seeds.
    pub digest: u64,
    /// The first seed that failed, and what was violated.
    pub failed: Option<(u64, String)>,
}

/// Runs `count` seeds from `start` on, until one fails. `progress` is called after each.
pub fn swarm(start: u64, count: u64, bug: Option<Bug>, mut progress: impl FnMut(&Swarm)) -> Swarm {
    let mut swarm = Swarm::default();
    for seed in start..start.saturating_add(count) {
        let Outcome { digest, stats, failure } = run(seed, bug, None);
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
