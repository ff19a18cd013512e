//! Waiting, within bounds, until nobody else uses the machine: what a compiler beside it measures is no
//! figure. Never: waits for longer than its patience, which is for a whole part; noise that stays is told as
//! noise. Called by: `bench`, before each round. Tests: below.

use std::fs;
use std::time::{Duration, Instant};

/// Of all cores' time, this much may be somebody's.
const BUSY_MAX: f64 = 0.1;
const LOOK: Duration = Duration::from_millis(150);

/// How long a part may still wait.
#[derive(Debug)]
pub struct Quiet {
    left: Duration,
}

impl Quiet {
    pub fn new(patience: Duration) -> Self {
        Self { left: patience }
    }

    /// Returns when the machine is quiet, or patience is at its end.
    pub fn wait(&mut self) {
        self.wait_for(|| {
            let before = Times::now();
            std::thread::sleep(LOOK);
            Times::now().busy_since(before)
        });
    }

    fn wait_for(&mut self, mut busy: impl FnMut() -> f64) {
        while !self.left.is_zero() {
            let start = Instant::now();
            let is_quiet = busy() <= BUSY_MAX;
            self.left = self.left.saturating_sub(start.elapsed());
            if is_quiet {
                return;
            }
        }
    }
}

/// The time of all cores since boot, in ticks: what was idle, and all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    idle: u64,
    all: u64,
}

impl Times {
    pub(super) fn now() -> Self {
        Self::of(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// From the line of all cores: user, nice, system, idle, waiting for a disk, interrupts, stolen by other
    /// machines.
    fn of(stat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
        Self { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
    }

    /// The part of all cores' time in which they were not idle.
    pub(super) fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        if all == 0 { 0.0 } else { 1.0 - idle as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_are_told_apart() {
        let before = Times::of("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n");
        let after = Times::of("cpu  110 0 110 860 10 0 0 10 0 0\n");
        assert!((after.busy_since(before) - 0.3).abs() < 1e-9);
        assert!(Times::now().all > 0);
    }

    #[test]
    fn patience_ends() {
        let mut quiet = Quiet::new(Duration::from_millis(20));
        let pause = |busy| {
            std::thread::sleep(Duration::from_millis(5));
            busy
        };
        quiet.wait_for(|| pause(0.05));
        assert!(!quiet.left.is_zero(), "a quiet machine is not waited for");
        quiet.wait_for(|| pause(0.9));
        assert!(quiet.left.is_zero());
    }
}
