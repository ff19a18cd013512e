//! How fast fragments are rebuilt beside the volume's users.
//!
//! Owns one number: how many chunks may be on their way at once. It grows while the users' requests take
//! hardly longer than without rebuilding, shrinks when they do, and is at its most when nobody asks for
//! anything.
//! A user that keeps a fixed number of requests going gets throughput in inverse proportion to their latency,
//! so the bound on latency is a bound on what rebuilding costs. Never: clocks; `tick` brings the time. Tests:
//! below.

use crate::limits::{FILL_CHUNKS_MAX, PACE_WINDOW_NS};
use crate::units::Time;

/// Windows after which the users' latency without rebuilding is measured anew, and for how many it rests
/// then.
const REST_EVERY: u32 = 50;
const REST_FOR: u32 = 2;

#[derive(Debug)]
pub(super) struct Pace {
    window_began: Time,
    windows: u32,
    /// Hundredths of a chunk.
    allowed: u32,
    /// Of the users' requests in this window.
    latency_sum: u64,
    count: u64,
    /// Mean latency while nothing is rebuilt, averaged over windows.
    baseline: Option<u64>,
    busy: bool,
}

const UNIT: u32 = 100;

impl Pace {
    pub(super) fn new() -> Self {
        Pace {
            window_began: 0,
            windows: 0,
            allowed: 4 * UNIT,
            latency_sum: 0,
            count: 0,
            baseline: None,
            busy: false,
        }
    }

    /// A user's request took this long.
    pub(super) fn note(&mut self, latency: u64) {
        self.latency_sum += latency;
        self.count += 1;
    }

    /// `filling`: chunks are on their way or wait.
    pub(super) fn tick(&mut self, now: Time, filling: bool) {
        if now < self.window_began + PACE_WINDOW_NS {
            return;
        }
        self.window_began = now;
        self.windows = self.windows.wrapping_add(1);
        let mean = self.latency_sum.checked_div(self.count);
        (self.latency_sum, self.count) = (0, 0);
        self.busy = mean.is_some();
        // The last window of a rest, or one in which nothing is rebuilt, shows the users alone.
        let alone = !filling || self.windows % REST_EVERY == REST_FOR - 1;
        match (mean, self.baseline) {
            (None, _) => self.allowed = (self.allowed * 2).min(FILL_CHUNKS_MAX * UNIT),
            (Some(mean), baseline) if alone => {
                self.baseline = Some(baseline.map_or(mean, |before| (3 * before + mean) / 4));
            }
            (Some(mean), Some(baseline)) if mean > baseline + baseline / 3 => {
                self.allowed = (self.allowed - self.allowed / 4).max(UNIT);
            }
            (Some(mean), Some(baseline)) if mean < baseline + baseline / 5 => {
                self.allowed = (self.allowed + self.allowed / 8 + UNIT / 4).min(FILL_CHUNKS_MAX * UNIT);
            }
            _ => {}
        }
    }

    /// How many chunks may be on their way now.
    pub(super) fn chunks(&self) -> usize {
        if !self.busy && self.count == 0 {
            return FILL_CHUNKS_MAX as usize; // Nobody asks for anything.
        }
        let rests = self.busy && self.windows % REST_EVERY < REST_FOR;
        if rests { 0 } else { (self.allowed / UNIT) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pace: &mut Pace, windows: u64, mut latency: impl FnMut(usize) -> Option<u64>) {
        for _ in 0..windows {
            if let Some(latency) = latency(pace.chunks()) {
                (0..10).for_each(|_| pace.note(latency));
            }
            pace.tick(pace.window_began + PACE_WINDOW_NS, true);
        }
    }

    #[test]
    fn an_idle_volume_is_rebuilt_at_full_speed() {
        let mut pace = Pace::new();
        run(&mut pace, 10, |_| None);
        assert_eq!(pace.chunks(), FILL_CHUNKS_MAX as usize);
    }

    #[test]
    fn what_lay_idle_is_rebuilt_at_full_speed_from_the_first_chunk_on() {
        assert_eq!(Pace::new().chunks(), FILL_CHUNKS_MAX as usize);
        let mut pace = Pace::new();
        pace.note(1_000_000);
        assert_eq!(pace.chunks(), 4, "somebody is there");
    }

    #[test]
    fn users_keep_most_of_their_speed() {
        let mut pace = Pace::new();
        (0..10).for_each(|_| pace.note(1_000_000));
        pace.tick(PACE_WINDOW_NS, false);
        // Each chunk on its way costs the users a twentieth.
        let mut latencies = Vec::new();
        run(&mut pace, 400, |chunks| {
            let latency = 1_000_000 + 50_000 * chunks as u64;
            latencies.push(latency);
            Some(latency)
        });
        let settled = &latencies[100..];
        let mean = settled.iter().sum::<u64>() / settled.len() as u64;
        assert!((1_050_000..1_430_000).contains(&mean), "{mean}");
    }

    #[test]
    fn users_who_do_not_notice_leave_the_rest() {
        let mut pace = Pace::new();
        run(&mut pace, 120, |_| Some(1_000_000));
        assert_eq!(pace.allowed, FILL_CHUNKS_MAX * UNIT);
    }
}
