//! When to look for work again and again instead of sleeping until it comes: being woken takes some 25 us on
//! an ordinary machine, looking takes one.
//!
//! Owns: the rule. Never: looks, or sleeps. Invariants: nobody looks for longer than `most_ns` after
//! something came, so an idle volume burns nothing; who looked in vain sleeps for some events, so that little
//! is burnt by one whose donors or tools take longer than that anyway; and who offers the processor between
//! two looks, and has it back late, sleeps for much longer than that, for somebody computes there, who makes
//! way for one that wakes, but not for one that looks. Called by: the data threads. Tests: below.

use crate::units::Time;

/// So many events that came soon enough, one after the other, and looking begins.
const SOON_ENOUGH: u32 = 4;
/// Being woken is part of the time between two events: who sleeps sees them come this many times later, at
/// most.
const WOKEN_FACTOR: u64 = 4;
/// Who was kept from the processor does not risk that again for so many times as long.
const KEPT_FACTOR: u64 = 32;

/// The state of the rule, one for each data thread.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    most_ns: u64,
    last: Time,
    soon: u32,
    sleeps_until: Time,
}

impl Poll {
    /// Looks for up to `most_ns` nanoseconds; 0 is never.
    #[must_use]
    pub fn new(most_ns: u64) -> Self {
        Poll { most_ns, last: 0, soon: 0, sleeps_until: 0 }
    }

    /// Something came.
    pub fn came(&mut self, now: Time) {
        let reach =
            if self.soon < SOON_ENOUGH { self.most_ns.saturating_mul(WOKEN_FACTOR) } else { self.most_ns };
        let is_soon = now.saturating_sub(self.last) <= reach;
        self.soon = if is_soon { (self.soon + 1).min(SOON_ENOUGH) } else { 0 };
        self.last = now;
    }

    /// Whether to look again rather than sleep.
    #[must_use]
    pub fn again(&self, now: Time) -> bool {
        self.soon >= SOON_ENOUGH && now.saturating_sub(self.last) < self.most_ns && now >= self.sleeps_until
    }

    /// The processor was offered to others between two looks.
    pub fn offered(&mut self, since: Time, now: Time) {
        let kept = now.saturating_sub(since);
        if kept > self.most_ns {
            self.sleeps_until = now.saturating_add(kept.saturating_mul(KEPT_FACTOR));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 50_000;

    fn after(poll: &mut Poll, gaps: impl Iterator<Item = u64>) -> Time {
        let mut now = poll.last;
        for gap in gaps {
            now += gap;
            poll.came(now);
        }
        now
    }

    #[test]
    fn what_follows_quickly_is_looked_for_and_no_longer_than_it_may() {
        let mut poll = Poll::new(MOST);
        let now = after(&mut poll, [3 * MOST; 4].into_iter());
        assert!(poll.again(now) && poll.again(now + MOST - 1));
        assert!(!poll.again(now + MOST));
        let now = after(&mut poll, [MOST; 20].into_iter());
        assert!(poll.again(now));
    }

    #[test]
    fn who_looks_in_vain_sleeps_for_some_events() {
        let mut poll = Poll::new(MOST);
        let mut looks = |count: usize| {
            let each = |_| {
                let now = after(&mut poll, [2 * MOST].into_iter());
                poll.again(now)
            };
            (0..count).map(each).filter(|looks| *looks).count()
        };
        assert_eq!(looks(100), 20);
    }

    #[test]
    fn who_is_kept_from_the_processor_sleeps_for_much_longer_than_that() {
        let (mut poll, soon) = (Poll::new(MOST), [MOST / 2; 8]);
        let now = after(&mut poll, soon.into_iter());
        poll.offered(now, now + MOST / 4);
        assert!(poll.again(now + MOST / 4), "a donor on the same processor answered");
        let kept = 60 * MOST;
        let (back, sleeps) = (now + kept, KEPT_FACTOR * kept);
        poll.offered(now, back);
        let mut events = (back..back + 2 * sleeps).step_by(MOST as usize / 2);
        let looked = events.find(|now| {
            poll.came(*now);
            poll.again(*now)
        });
        assert_eq!(looked, Some(back + sleeps), "and then looks again");
    }

    #[test]
    fn without_a_time_nobody_looks() {
        let mut poll = Poll::new(0);
        let now = after(&mut poll, [0; 20].into_iter());
        assert!(!poll.again(now));
    }
}
