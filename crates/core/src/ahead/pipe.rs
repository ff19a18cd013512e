//! How much the path to the donors holds: bandwidth times delay, learnt from answers.
//!
//! Owns two filters over the last ten to twenty seconds: the best rate and the least delay, as BBR keeps them
//! (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016). Never: a decision. Called by `ahead`.
//! Tests: below.
//!
//! What a tool asks for may be far less than the path carries, so a rate is also taken from a single large
//! answer: its bytes by what it took longer than a small one. Until there was such an answer the path counts
//! as a gigabit's.

use super::part;
use crate::limits::{MILLISECOND_NS, SECOND_NS};
use crate::units::Time;

/// Half of the time that a best value is remembered for.
const EPOCH_NS: u64 = 10 * SECOND_NS;
/// A rate is counted over at least this long,
const SAMPLE_NS: u64 = 10 * MILLISECOND_NS;
/// and not over a pause.
const SAMPLE_MAX_NS: u64 = 10 * SAMPLE_NS;
/// An answer of at most so much tells the delay, one of at least so much the rate.
const SMALL_BYTES: u32 = 8 << 10;
const LARGE_BYTES: u32 = 32 << 10;
const SENDING_MIN_NS: u64 = MILLISECOND_NS / 10;
const ASSUMED_RATE: u64 = 125_000_000;
/// 100 Gbit/s.
const RATE_MAX: u64 = 12_500_000_000;

#[derive(Debug, Default)]
pub(super) struct Pipe {
    epoch_began: Time,
    /// Bytes a second: of the epoch before, and of this one.
    rates: [u64; 2],
    /// Nanoseconds, of small answers and of all.
    small: [Option<u64>; 2],
    all: [Option<u64>; 2],
    sample_began: Time,
    sample_bytes: u64,
    /// A large answer came since the delay is known.
    measured: bool,
}

fn rate(bytes: u64, time: u64) -> u64 {
    part(bytes, SECOND_NS, time.max(1))
}

fn lower(value: &mut Option<u64>, other: u64) {
    *value = Some(value.map_or(other, |least| least.min(other)));
}

impl Pipe {
    /// A donor answered a read of so many bytes after so long.
    pub(super) fn answered(&mut self, now: Time, bytes: u32, took: u64) {
        if now.saturating_sub(self.epoch_began) >= EPOCH_NS {
            self.epoch_began = now;
            self.rates = [self.rates[1], 0];
            self.small = [self.small[1], None];
            self.all = [self.all[1], None];
        }
        let counted = now.saturating_sub(self.sample_began);
        if counted >= SAMPLE_NS {
            if counted <= SAMPLE_MAX_NS {
                self.rates[1] = self.rates[1].max(rate(self.sample_bytes, counted));
            }
            (self.sample_began, self.sample_bytes) = (now, 0);
        }
        self.sample_bytes += u64::from(bytes);
        if bytes <= SMALL_BYTES {
            lower(&mut self.small[1], took);
        }
        let small = self.small.iter().flatten().min();
        if let Some(delay) = small.filter(|_| bytes >= LARGE_BYTES) {
            // A hole takes no time, and a little jitter is no speed.
            let sending = took.saturating_sub(*delay).max(SENDING_MIN_NS).max(*delay / 32);
            self.measured = true;
            self.rates[1] = self.rates[1].max(rate(bytes.into(), sending));
        }
        let sending = u64::from(bytes) * SECOND_NS / self.rate().max(1);
        lower(&mut self.all[1], took.saturating_sub(sending));
    }

    /// Bytes a second.
    pub(super) fn rate(&self) -> u64 {
        let known = self.rates[0].max(self.rates[1]);
        if self.measured { known.min(RATE_MAX) } else { known.clamp(ASSUMED_RATE, RATE_MAX) }
    }

    /// Nanoseconds from a question to the first byte of its answer; 0 when nothing is known.
    pub(super) fn delay(&self) -> u64 {
        let least = |delays: [Option<u64>; 2]| delays.into_iter().flatten().min();
        least(self.small).or(least(self.all)).unwrap_or(0)
    }

    /// What is on its way when the path is just full.
    pub(super) fn bytes(&self) -> u64 {
        part(self.rate(), self.delay(), SECOND_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gigabit_at_20_ms_holds_two_and_a_half_megabytes() {
        let mut pipe = Pipe::default();
        assert_eq!(pipe.bytes(), 0);
        // 64 KiB every 524 us are 125 MB/s.
        for number in 0..1000 {
            pipe.answered(number * 524_288, 65_536, 20 * MILLISECOND_NS + 524_288);
        }
        assert!((120_000_000..132_000_000).contains(&pipe.rate()), "{}", pipe.rate());
        assert!(pipe.delay().abs_diff(20 * MILLISECOND_NS) < MILLISECOND_NS, "{}", pipe.delay());
        assert!((2_400_000..2_700_000).contains(&pipe.bytes()), "{}", pipe.bytes());
    }

    #[test]
    fn a_tool_that_asks_for_little_does_not_make_the_path_slow() {
        let mut pipe = Pipe::default();
        for number in 0..100 {
            pipe.answered(number * 50 * MILLISECOND_NS, 4096, 20 * MILLISECOND_NS);
        }
        assert_eq!(pipe.rate(), ASSUMED_RATE);
        // 64 KiB took 52 ms longer: 10 Mbit/s.
        pipe.answered(6 * SECOND_NS, 65_536, 72 * MILLISECOND_NS + 428_800);
        assert!((1_200_000..1_300_000).contains(&pipe.rate()), "{}", pipe.rate());
        assert_eq!(pipe.delay(), 20 * MILLISECOND_NS);
    }

    #[test]
    fn a_pause_is_no_slow_path_and_what_was_is_forgotten() {
        let mut pipe = Pipe::default();
        for number in 0..100 {
            pipe.answered(number * MILLISECOND_NS, 100_000, 5 * MILLISECOND_NS);
            pipe.answered(number * MILLISECOND_NS, 4096, 4 * MILLISECOND_NS);
        }
        let rate = pipe.rate();
        pipe.answered(9 * SECOND_NS, 4096, 50 * MILLISECOND_NS);
        assert_eq!((pipe.rate(), pipe.delay()), (rate, 4 * MILLISECOND_NS));
        for second in 10..40 {
            pipe.answered(second * SECOND_NS, 65_536, 150 * MILLISECOND_NS);
            pipe.answered(second * SECOND_NS, 4096, 50 * MILLISECOND_NS);
        }
        assert!(pipe.rate() < rate / 10, "{}", pipe.rate());
        assert_eq!(pipe.delay(), 50 * MILLISECOND_NS);
    }
}
