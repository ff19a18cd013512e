//! How much of what nobody waits for is read at once, so that who waits has the way to the source.
//!
//! Owns what of that is under way, and how fast it came. Never: which pieces. Why: all that is under way lies
//! before what is asked for next, in the buffers of the link or the source's queue: 16 MiB of it are 1.4 s of
//! 100 Mbit/s. So as much is under way as the source gives in a part of a second; while somebody asks, in a
//! small part of that, and what no tool is expected to ask for has it to itself a third of the time. What it
//! is worth: docs/MEASURED.md. Called by `Order`. Tests: below.

use crate::limits::{MILLISECOND_NS, SECOND_NS};
use crate::units::Time;
use std::collections::BTreeMap;
use std::ops::Range;

/// What is under way comes in so long, as far as can be told.
const AHEAD_NS: Time = 400 * MILLISECOND_NS;
/// While somebody asks.
const GENTLE_NS: Time = 50 * MILLISECOND_NS;
/// Who asked a moment ago asks again.
const ASKS_NS: Time = SECOND_NS / 2;
/// While somebody asks, the rest rests so many times as long as a read of it took.
const RESTS: Time = 2;
/// In so many reads, so that some are on their way while one is written.
const RUNS: u64 = 4;
/// Before anything came.
const FIRST_BYTES: u64 = 4 << 20;
const BYTES_MIN: u64 = 64 << 10;
const BYTES_MAX: u64 = 16 << 20;

#[derive(Debug)]
struct Read {
    bytes: u64,
    since: Time,
    /// Under way when it began, itself included.
    under_way: u64,
}

#[derive(Debug)]
pub(super) struct Pressure {
    /// By where they begin.
    reads: BTreeMap<u64, Read>,
    /// What comes in `AHEAD_NS`.
    bytes_max: u64,
    /// Somebody asked lately: until then.
    gentle_until: Time,
    rests_until: Time,
}

impl Default for Pressure {
    fn default() -> Self {
        Pressure { reads: BTreeMap::new(), bytes_max: FIRST_BYTES, gentle_until: 0, rests_until: 0 }
    }
}

impl Pressure {
    /// Somebody asks for something.
    pub(super) fn asked(&mut self, now: Time) {
        self.gentle_until = self.gentle_until.max(now + ASKS_NS);
    }

    /// How much may be read beside what is under way: of what tools are expected to ask for, or of the rest.
    pub(super) fn room(&self, now: Time, somebody_waits: bool, is_expected: bool) -> Option<u64> {
        let gentle = somebody_waits || now < self.gentle_until;
        let most = match gentle {
            true => (self.bytes_max * GENTLE_NS / AHEAD_NS).max(BYTES_MIN),
            false => self.bytes_max,
        };
        let under_way = self.under_way();
        if gentle && !is_expected && (now < self.rests_until || under_way > 0) {
            return None;
        }
        let run = (most / RUNS).max(BYTES_MIN);
        (under_way == 0 || under_way + run <= most).then_some(run)
    }

    pub(super) fn begun(&mut self, now: Time, range: &Range<u64>) {
        let bytes = range.end - range.start;
        let under_way = self.under_way() + bytes;
        self.reads.insert(range.start, Read { bytes, since: now, under_way });
    }

    /// Bytes; of a few reads.
    fn under_way(&self) -> u64 {
        self.reads.values().map(|read| read.bytes).sum()
    }

    /// What began there, if that was such a read.
    pub(super) fn ended(&mut self, now: Time, begin: u64, good: bool) {
        let Some(read) = self.reads.remove(&begin) else { return };
        let took = now.saturating_sub(read.since).max(1);
        self.rests_until = now + RESTS * took;
        if good {
            let came = u128::from(read.under_way) * u128::from(AHEAD_NS) / u128::from(took);
            self.bytes_max = u64::try_from(came).unwrap_or(BYTES_MAX).clamp(BYTES_MIN, BYTES_MAX);
        }
    }

    /// When there may be more room than now, if nothing ends.
    pub(super) fn eases_at(&self, now: Time) -> Time {
        [self.rests_until, self.gentle_until].into_iter().filter(|at| *at > now).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A source that gives so many bytes a second, a round trip away. How much of the time it is busy, and
    /// what is under way in the end.
    fn reads(
        pressure: &mut Pressure,
        rate: u64,
        round_trip: Time,
        gentle: bool,
        expected: bool,
    ) -> (f64, u64) {
        let (mut now, mut free_at, mut busy, mut at) = (0, 0, 0, 0);
        let mut ends: BTreeMap<Time, u64> = BTreeMap::new();
        while now < 20 * SECOND_NS {
            while let Some(bytes) = pressure.room(now, gentle, expected).map(|room| room.min(MIB)) {
                let takes = bytes * SECOND_NS / rate;
                free_at = takes + free_at.max(now);
                busy += takes;
                pressure.begun(now, &(at..at + bytes));
                ends.insert(free_at + round_trip, at);
                at += bytes;
            }
            let wakes = Some(pressure.eases_at(now)).filter(|at| *at > 0);
            let next = ends.first_key_value().map(|(at, _)| *at);
            now = wakes.into_iter().chain(next).min().expect("something goes on");
            if let Some(begin) = ends.remove(&now) {
                pressure.ended(now, begin, true);
            }
        }
        (busy as f64 / now as f64, pressure.under_way())
    }

    #[test]
    fn a_source_is_busy_and_its_queue_is_short() {
        for mbit in [10, 100, 1000] {
            for round_trip in [0, 20, 100] {
                let rate = mbit * 125_000;
                let mut pressure = Pressure::default();
                let (busy, under_way) = reads(&mut pressure, rate, round_trip * MILLISECOND_NS, false, true);
                assert!(busy > 0.95, "{mbit} Mbit/s, {round_trip} ms: busy {busy}");
                let waits = under_way * 1000 / rate;
                assert!(waits <= 600, "{mbit} Mbit/s, {round_trip} ms: a queue of {waits} ms");
            }
        }
    }

    #[test]
    fn while_somebody_asks_there_is_little_before_him_and_the_rest_goes_on_slowly() {
        let (rate, round_trip) = (100 * 125_000, 20 * MILLISECOND_NS);
        let mut pressure = Pressure::default();
        reads(&mut pressure, rate, round_trip, false, true);
        pressure = Pressure { bytes_max: pressure.bytes_max, ..Pressure::default() };
        let (busy, under_way) = reads(&mut pressure, rate, round_trip, true, true);
        assert!(busy > 0.7 && under_way * 1000 / rate <= 100, "expected: {busy}, {under_way}");
        pressure = Pressure { bytes_max: pressure.bytes_max, ..Pressure::default() };
        let (busy, under_way) = reads(&mut pressure, rate, round_trip, true, false);
        assert!(
            (0.02..0.34).contains(&busy) && under_way * 1000 / rate <= 50,
            "the rest: {busy}, {under_way}"
        );
    }

    #[test]
    fn who_asked_a_moment_ago_asks_again() {
        let mut pressure = Pressure::default();
        let calm = pressure.room(0, false, true);
        pressure.asked(SECOND_NS);
        assert!(pressure.room(SECOND_NS, false, true) < calm);
        assert_eq!(pressure.eases_at(SECOND_NS), SECOND_NS + ASKS_NS);
        assert_eq!(pressure.room(SECOND_NS + ASKS_NS, false, true), calm);
    }
}
