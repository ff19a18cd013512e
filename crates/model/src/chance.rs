//! Chance from a seed: shares, picks and waiting times. Never: a clock, or the machine's randomness.

use cheetah_core::seed::Seed;

#[derive(Clone, Debug)]
pub(crate) struct Chance(Seed);

impl Chance {
    /// One stream for each purpose: what one of them draws changes nothing of another.
    pub(crate) fn new(seed: u64, purpose: u64) -> Chance {
        let mut mixed = Seed(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Chance(Seed(mixed.draw()))
    }

    pub(crate) fn seed(&mut self) -> &mut Seed {
        &mut self.0
    }

    /// From 0 up to, and without, 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.0.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 up to, and without, `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The high half of a product is uniform to within end / 2^64.
        let product = u128::from(self.0.draw()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// How long something takes that comes by chance, on average every `mean`.
    pub(crate) fn waits(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_asked_for_and_streams_differ() {
        let mut chance = Chance::new(1, 1);
        let count = 100_000;
        let mean = |values: f64| values / f64::from(count);
        let waits = mean((0..count).map(|_| chance.waits(3.0)).sum());
        let picks = mean((0..count).map(|_| chance.below(11) as f64).sum());
        assert!((waits - 3.0).abs() < 0.05 && (picks - 5.0).abs() < 0.05, "{waits} {picks}");
        assert!((0..1_000).all(|_| chance.below(3) < 3));
        let first = |seed, purpose| Chance::new(seed, purpose).below(u64::MAX);
        assert!(first(1, 1) != first(1, 2) && first(1, 1) != first(2, 1) && first(1, 1) == first(1, 1));
    }
}
