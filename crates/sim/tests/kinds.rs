//! Runs that are made of one kind of fault alone: each promise holds, and the same seed is the same world.
//! Few of each, with the assertions of a debug build: `make sim` has the same seeds and many more, without.

use cheetah_sim::{Fault, Layout, Setup, Stats, run, swarm};

fn holds(fault: Fault, layout: Option<Layout>, seeds: u64) {
    all_hold(fault, Setup { layout, ..Setup::default() }, seeds);
}

fn all_hold(fault: Fault, setup: Setup, seeds: u64) -> Stats {
    let setup = Setup { only: Some(fault), ..setup };
    let swarm = swarm(0, seeds, setup, |_| ());
    if let Some((seed, what)) = swarm.failed {
        let layout = setup.layout.map_or(String::new(), |layout| format!(" --layout {layout}"));
        let beyond = if setup.beyond { " --beyond" } else { "" };
        panic!(
            "seed {seed}: {what}\nreplay: cargo run --release -p cheetah-sim -- --seed {seed} --trace --only {}{layout}{beyond}",
            fault.name()
        );
    }
    swarm.stats
}

fn saw(seen: &Stats, what: &str) -> bool {
    seen.counts().chain(seen.alone()).any(|(seen, count)| seen == what && count > 0)
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    for fault in Fault::ALONE {
        let setup = Setup { only: Some(fault), ..Setup::default() };
        for seed in 0..3 {
            assert_eq!(run(seed, setup, None), run(seed, setup, None), "seed {seed} of {}", fault.name());
        }
    }
}

#[test]
fn the_second_of_two_donors_dies_after_the_repair_of_the_first() {
    holds(Fault::KillTwo, None, 40);
}

#[test]
fn a_writer_and_a_donor_that_end_together_lose_nothing_but_what_was_in_flight() {
    for (data, parity) in [(2, 1), (3, 1), (3, 2)] {
        for spares in [0, 1] {
            holds(Fault::EndTogether, Some(Layout { data, parity, spares }), 10);
        }
    }
}

#[test]
fn half_a_load_is_never_taken_for_a_whole_one() {
    holds(Fault::EndLoad, None, 40);
}

#[test]
fn what_is_not_here_yet_is_never_taken_for_anything_else() {
    holds(Fault::Opened, None, 40);
}

/// A slot begins anew while donors are asked what is here: the answer ends in front of what it holds.
#[test]
fn what_an_answer_does_not_reach_is_not_taken_for_absent() {
    let outcome = run(2024, Setup { only: Some(Fault::Opened), ..Setup::default() }, None);
    assert_eq!(outcome.failure, None);
    let ended_early = |(what, count)| what == "answers that ended before what was asked" && count > 0;
    assert!(outcome.stats.alone().any(ended_early), "this seed shows it no more: take one that does");
}

#[test]
fn wrong_bytes_are_delivered_to_nobody_and_put_right() {
    let seen = all_hold(Fault::Rot, Setup::default(), 100);
    for what in [
        "fault: a bit flipped at rest",
        "fault: a bit of a checksum flipped at rest",
        "fault: donor killed",
        "fault: donor asked to move what it holds",
        "fault: coordinator restarted",
        "errors of what flipped and had no other copy",
        "errors of what flipped and was recorded as lost",
        "blocks that flipped and were written again",
    ] {
        assert!(saw(&seen, what), "never seen: {what}");
    }
}

#[test]
fn what_disks_have_outlives_a_pool_without_power() {
    let seen = all_hold(Fault::Power, Setup::default(), 100);
    for what in [
        "fault: the whole pool lost power",
        "donors that came back with their disks",
        "disks of which blocks were torn",
        "fault: a disk without room",
        "fault: a disk that takes nothing any more",
        "fault: blocks of a disk that cannot be read",
        "fault: a donor lost power while it put down what it holds",
    ] {
        assert!(saw(&seen, what), "never seen: {what}");
    }
}

/// Of three copies one is away, and the one that had the last write cannot be read: the third missed that
/// write, of which nobody was told that it is complete.
#[test]
fn an_older_copy_counts_where_the_newer_cannot_be_read() {
    let outcome = run(8782, Setup { only: Some(Fault::Power), ..Setup::default() }, None);
    assert_eq!(outcome.failure, None);
}

#[test]
fn what_nothing_gives_back_is_recorded_and_the_rest_goes_on() {
    let seen = all_hold(Fault::Rot, Setup { beyond: true, ..Setup::default() }, 100);
    assert!(seen.alone().any(|(what, count)| what == "losses told" && count > 0), "nothing was lost");
}
