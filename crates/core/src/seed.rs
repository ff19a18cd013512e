//! Numbers from a seed: the same seed, the same numbers.
//!
//! Owns the one generator of the house (splitmix64, <https://prng.di.unimi.it/splitmix64.c>). Never: where a
//! seed comes from, or secrets that nobody may guess from the ones before. Used by the coordinator, the
//! simulator, the tests and the benchmark.

/// A stream of numbers: ties of placement, identities, lease tokens; all of the simulator's chance.
#[derive(Clone, Debug)]
pub struct Seed(pub u64);

impl Seed {
    /// The next number of the stream. Equal seeds give equal streams.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next one that is not taken.
    pub fn draw_free(&mut self, is_taken: impl Fn(u64) -> bool) -> u64 {
        loop {
            let number = self.draw();
            if !is_taken(number) {
                return number;
            }
        }
    }
}
