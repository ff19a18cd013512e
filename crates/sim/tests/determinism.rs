//! One seed is one world: the same digest each time, another one for another seed, with or without a trace.

use cheetah_sim::{Setup, run};
use std::collections::BTreeSet;

#[test]
fn the_same_seed_gives_the_same_digest() {
    for seed in 0..20 {
        assert_eq!(run(seed, Setup::default(), None), run(seed, Setup::default(), None), "seed {seed}");
    }
}

#[test]
fn a_trace_changes_nothing() {
    for seed in 0..5 {
        assert_eq!(
            run(seed, Setup::default(), None).digest,
            run(seed, Setup::default(), Some(|_| {})).digest,
            "seed {seed}"
        );
    }
}

#[test]
fn another_seed_is_another_world() {
    let digests: BTreeSet<u64> = (0..20).map(|seed| run(seed, Setup::default(), None).digest).collect();
    assert_eq!(digests.len(), 20);
}
