//! Chance from a seed: the same seed, the same order of runs, victims and flips, and the same contents.
//! Never: for secrets. Called by: the fault runs, the wire, and tests that need contents.

use cheetah_core::seed::Seed;

#[derive(Clone, Debug)]
pub struct Dice(Seed);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Seed(seed))
    }

    pub fn roll(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// True so many times in a million.
    pub fn one_of_a_million(&mut self, times: u64) -> bool {
        self.below(1_000_000) < times
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// Contents that nothing makes smaller, and of which no two blocks are the same.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_order_and_loses_nothing() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..100).collect();
            Dice::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn rare_means_rare() {
        let mut dice = Dice::new(1);
        let hits = (0..1_000_000).filter(|_| dice.one_of_a_million(500)).count();
        assert!((400..600).contains(&hits), "{hits}");
    }
}
