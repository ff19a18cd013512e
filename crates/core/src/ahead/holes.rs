//! What a stream's reads left out, and may come back for.
//!
//! Owns the last ranges that were passed over. Never: what that means. Invariant: ranges are not empty and do
//! not overlap. Reads that are under way together come in any order, and then each place once; a tool that
//! comes back to what it has read is doing something else. Called by `stream`. Tests: below.

/// Ranges that are remembered: of reads that are under way together, half may each leave one.
const HOLES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Holes {
    /// From and to, oldest first; the first `count` of them.
    ranges: [(u64, u64); HOLES_MAX],
    count: usize,
}

impl Holes {
    /// A range was passed over; the bytes of what is forgotten for it.
    pub(super) fn leave(&mut self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let mut forgotten = 0;
        if self.count == HOLES_MAX {
            forgotten = self.ranges[0].1 - self.ranges[0].0;
            self.remove(0);
        }
        self.ranges[self.count] = (from, to);
        self.count += 1;
        forgotten
    }

    pub(super) fn touches(&self, from: u64, to: u64) -> bool {
        self.ranges[..self.count].iter().any(|hole| from < hole.1 && to > hole.0)
    }

    /// All are forgotten; their bytes.
    pub(super) fn clear(&mut self) -> u64 {
        let bytes = self.ranges[..self.count].iter().map(|hole| hole.1 - hole.0).sum();
        self.count = 0;
        bytes
    }

    /// A range was read after all; the bytes of what is forgotten for it.
    pub(super) fn fill(&mut self, from: u64, to: u64) -> u64 {
        let mut forgotten = 0;
        for index in (0..self.count).rev() {
            let hole = self.ranges[index];
            if from >= hole.1 || to <= hole.0 {
                continue;
            }
            // Where both ends of it are left and there is no room, the greater is.
            let mut rests = [(hole.0, from.max(hole.0)), (to.min(hole.1), hole.1)];
            rests.sort_by_key(|rest| rest.1 - rest.0);
            self.ranges[index] = rests[1];
            if rests[1].0 == rests[1].1 {
                self.remove(index);
            } else if self.count < HOLES_MAX {
                self.leave(rests[0].0, rests[0].1);
            } else {
                forgotten += rests[0].1 - rests[0].0;
            }
        }
        forgotten
    }

    fn remove(&mut self, index: usize) {
        self.ranges.copy_within(index + 1..self.count, index);
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(holes: &Holes) -> Vec<(u64, u64)> {
        let mut left = holes.ranges[..holes.count].to_vec();
        left.sort_unstable();
        left
    }

    #[test]
    fn what_is_filled_is_gone_and_its_ends_stay() {
        let mut holes = Holes::default();
        assert_eq!(holes.leave(7, 7), 0);
        assert_eq!(holes.leave(10, 20), 0);
        assert_eq!(holes.leave(30, 40), 0);
        assert!(holes.touches(0, 11) && holes.touches(39, 50) && holes.touches(12, 13));
        assert!(!holes.touches(0, 10) && !holes.touches(20, 30) && !holes.touches(40, 50));
        assert_eq!(holes.fill(12, 15), 0);
        assert_eq!(left(&holes), [(10, 12), (15, 20), (30, 40)]);
        holes.fill(0, 18);
        assert_eq!(left(&holes), [(18, 20), (30, 40)]);
        holes.fill(18, 35);
        assert_eq!(left(&holes), [(35, 40)]);
        holes.fill(35, 40);
        assert_eq!(left(&holes), []);
    }

    #[test]
    fn the_oldest_is_forgotten_and_counted() {
        let mut holes = Holes::default();
        let forgotten = (0..HOLES_MAX as u64 + 2).map(|number| holes.leave(100 * number, 100 * number + 10));
        assert_eq!(forgotten.sum::<u64>(), 20);
        assert!(!holes.touches(0, 199) && holes.touches(200, 201));
        // There is no room for one more: the greater end of it is kept.
        assert_eq!(holes.fill(203, 204), 3);
        assert!(!holes.touches(200, 204) && holes.touches(204, 210));
        assert_eq!(holes.clear(), 6 + 10 * (HOLES_MAX as u64 - 1));
        assert!(!holes.touches(0, u64::MAX));
    }
}
