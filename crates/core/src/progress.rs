//! How far something long is, how fast it goes, and when it will be done.
//!
//! Owns that arithmetic. Never: a clock, or printing. Invariant: a stretch in which nothing moved lowers the
//! rate, so that what hangs never seems to go on. Called by the commands that take long. Tests: below.

use crate::limits::SECOND_NS;
use crate::units::{Time, show_bytes};
use serde::Serialize;

/// The part of the newest stretch in the rate that is shown.
const NEWEST_PERCENT: u64 = 40;

/// How far something is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Bytes that were done by then.
    pub bytes_done: u64,
    /// Bytes in all, as known at the beginning. `bytes_done` may exceed them.
    pub bytes_total: u64,
    /// Rounded down, at most 100. Of nothing at all it is 100.
    pub percent: u64,
    /// The recent rate: older stretches count less and less.
    pub bytes_per_second: u64,
    /// Absent while nothing moves.
    pub seconds_left: Option<u64>,
}

/// Fed with what is done by now, at any pace.
#[derive(Clone, Debug)]
pub struct Meter {
    total: u64,
    at: Time,
    done: u64,
    rate: Option<u64>,
}

impl Meter {
    /// Nothing is done at `now`. `total` is in bytes.
    #[must_use]
    pub fn new(total: u64, now: Time) -> Meter {
        Meter { total, at: now, done: 0, rate: None }
    }

    /// `done` is in bytes, and counts from the beginning, not from the last call.
    pub fn measure(&mut self, now: Time, done: u64) -> Progress {
        let (stretch, moved) = (now.saturating_sub(self.at).max(1), done.saturating_sub(self.done));
        let newest = u128::from(moved) * u128::from(SECOND_NS) / u128::from(stretch);
        let newest = u64::try_from(newest).unwrap_or(u64::MAX);
        let mixed = |before: u64| {
            let sum = u128::from(newest) * u128::from(NEWEST_PERCENT)
                + u128::from(before) * u128::from(100 - NEWEST_PERCENT);
            u64::try_from(sum / 100).unwrap_or(u64::MAX)
        };
        let rate = self.rate.map_or(newest, mixed);
        (self.at, self.done, self.rate) = (now, done, Some(rate));
        let total = self.total;
        Progress {
            bytes_done: done,
            bytes_total: total,
            percent: percent(done, total),
            bytes_per_second: rate,
            seconds_left: total.saturating_sub(done).checked_div(rate),
        }
    }
}

fn percent(done: u64, total: u64) -> u64 {
    let percent = (u128::from(done) * 100).checked_div(u128::from(total)).unwrap_or(100);
    u64::try_from(percent.min(100)).unwrap_or(100)
}

impl Progress {
    /// `37 %, 86.30 GiB of 232.90 GiB, 112.40 MiB/s, 22 min left`
    #[must_use]
    pub fn text(&self) -> String {
        let Progress { bytes_done, bytes_total, percent, bytes_per_second, seconds_left } = *self;
        let left = match seconds_left {
            Some(seconds) => format!("{} left", show_seconds(seconds)),
            None => "nothing moves".to_owned(),
        };
        let (done, total, rate) =
            (show_bytes(bytes_done), show_bytes(bytes_total), show_bytes(bytes_per_second));
        format!("{percent} %, {done} of {total}, {rate}/s, {left}")
    }
}

/// `47 s`, `22 min`, `3 h 5 min`: as exact as anybody needs it.
#[must_use]
pub fn show_seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_far_how_fast_and_how_long() {
        let mut meter = Meter::new(1 << 30, 0);
        let progress = meter.measure(2 * SECOND_NS, 256 << 20);
        assert_eq!((progress.percent, progress.bytes_per_second), (25, 128 << 20));
        assert_eq!(progress.text(), "25 %, 256 MiB of 1 GiB, 128 MiB/s, 6 s left");
    }

    #[test]
    fn what_hangs_does_not_seem_to_go_on() {
        let mut meter = Meter::new(1 << 30, 0);
        let mut before = meter.measure(SECOND_NS, 1 << 20);
        for second in 2..60 {
            let now = meter.measure(second * SECOND_NS, 1 << 20);
            assert!(now.bytes_per_second < before.bytes_per_second || now.bytes_per_second == 0);
            before = now;
        }
        assert_eq!((before.bytes_per_second, before.seconds_left), (0, None));
        assert!(before.text().ends_with("nothing moves"));
    }

    #[test]
    fn the_ends_of_the_range_are_shown() {
        assert_eq!(Meter::new(0, 0).measure(0, 0).percent, 100);
        let huge = Meter::new(u64::MAX, 0).measure(1, u64::MAX);
        assert_eq!((huge.percent, huge.seconds_left), (100, Some(0)));
        assert_eq!(show_seconds(119), "119 s");
        assert_eq!(show_seconds(22 * 60 + 10), "22 min");
        assert_eq!(show_seconds(11_100), "3 h 5 min");
    }
}
