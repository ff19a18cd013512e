//! The numbers of writes, by which donors tell a next writer what may be half done.
//!
//! Owns which number is next, and up to which all are over. Never: whether a write succeeded.
//! Invariant: of two writes of the same block the later one has the greater number. A block is written by one
//! job at a time, and whenever one ends another number begins, so those that begin between two ends share
//! one: they leave together, and what lies side by side may be one request. Tests: below, the simulator.

use std::collections::VecDeque;

/// How far a writer begins beyond every number that it heard of, for a donor that it could not ask may know
/// greater ones.
const GAP: u64 = 1 << 32;

#[derive(Debug)]
pub(super) struct Numbers {
    next: u64,
    /// The first that was given out.
    own: Option<u64>,
    /// How many writes of each number are under way, oldest first.
    open: VecDeque<(u64, u32)>,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { next: 1, own: None, open: VecDeque::new() }
    }
}

impl Numbers {
    pub(super) fn begin(&mut self) -> u64 {
        self.own.get_or_insert(self.next);
        match self.open.back_mut() {
            Some((number, count)) if *number == self.next => *count += 1,
            _ => self.open.push_back((self.next, 1)),
        }
        self.next
    }

    pub(super) fn end(&mut self, number: u64) {
        let at = self.open.partition_point(|(open, _)| *open < number);
        let count = self.open.get_mut(at).filter(|(open, _)| *open == number).map(|(_, count)| count);
        *count.expect("it was begun") -= 1;
        while self.open.front().is_some_and(|(_, count)| *count == 0) {
            self.open.pop_front();
        }
        self.next += 1;
    }

    /// Every write with a number up to this one is over.
    pub(super) fn over(&self) -> u64 {
        self.open.front().map_or(self.next, |(number, _)| *number) - 1
    }

    /// Whether a write of that number is a former writer's.
    pub(super) fn is_former(&self, number: u64) -> bool {
        self.own.is_none_or(|own| number < own)
    }

    /// Somebody knows of a write of that number.
    pub(super) fn heard(&mut self, number: u64) {
        self.next = self.next.max(number.saturating_add(GAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_begin_together_share_a_number_and_the_next_has_a_greater_one() {
        let mut numbers = Numbers::default();
        let (first, second) = (numbers.begin(), numbers.begin());
        assert_eq!((first, second, numbers.over()), (1, 1, 0));
        numbers.end(first);
        let third = numbers.begin();
        assert!(third > second);
        assert_eq!(numbers.over(), 0, "the second is under way");
        numbers.end(third);
        assert_eq!(numbers.over(), 0);
        numbers.end(second);
        assert!(numbers.over() >= third);
        assert!(numbers.is_former(0) && !numbers.is_former(first));
        numbers.heard(1_000);
        assert!(!numbers.is_former(1_000), "it has begun to write");
        let mut successor = Numbers::default();
        successor.heard(1_000);
        assert!(successor.begin() > 2_000 && successor.is_former(2_000), "one may have been overheard");
        assert!(numbers.begin() > 1_000 && numbers.over() >= 1_000);
    }
}
