//! 1,000 seeds in which every promise held, and in which everything that there is to exercise happened.

use cheetah_sim::{COVERAGE, Setup, Swarm, swarm};

const SEEDS: u64 = 1_000;

#[test]
fn a_thousand_seeds_keep_the_promises_and_leave_nothing_untried() {
    // Seeds are independent of each other: halves of them run side by side.
    let half = SEEDS / 2;
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(move || swarm(half, SEEDS - half, Setup::default(), |_| ()));
        (swarm(0, half, Setup::default(), |_| ()), other.join().expect("the swarm does not panic"))
    });
    let mut stats = first.stats.clone();
    stats.add(&second.stats);
    for Swarm { failed, .. } in [first, second] {
        if let Some((seed, what)) = failed {
            panic!(
                "seed {seed}: {what}\nreplay: cargo run --release -p cheetah-sim -- --seed {seed} --trace"
            );
        }
    }
    let never: Vec<&str> = stats.counts().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect();
    assert!(never.is_empty(), "of {} things, {SEEDS} seeds never saw {never:?}", COVERAGE.len());
}
