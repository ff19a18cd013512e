//! Choices from a seed.
//!
//! Owns: the one stream that every choice of a run comes from. Never: a clock or the machine's randomness.

use cheetah_core::seed::Seed;

#[derive(Clone, Debug)]
pub(crate) struct Rng(Seed);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(Seed(seed ^ 0x5ca1_ab1e_0dd5_eed5))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// From 0 up to, and without, `end`; 0 when `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.draw() % end }
    }

    /// From `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length")
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.index(from.len())]) }
    }

    /// Mostly small, seldom up to `high`: each power of two is as likely as the next.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let (least, most) = (u64::from(low.max(1).ilog2()), u64::from(high.max(1).ilog2()));
        let power = self.range(least, most);
        self.range(1 << power, (2 << power) - 1).clamp(low, high)
    }

    /// Around `mean`, between none of it and twice as much.
    pub(crate) fn around(&mut self, mean: u64) -> u64 {
        self.range(mean / 8, mean * 15 / 8)
    }
}
