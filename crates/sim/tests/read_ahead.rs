//! Read-ahead, in virtual time: against none, against the thesis's rule, near and far.

use cheetah_core::ahead::Rule;
use cheetah_sim::read_ahead::{Figures, Pattern, measure};

const RATE: u64 = 125_000_000;
const MS: u64 = 1_000_000;
const DELAYS: [u64; 4] = [MS / 10, MS, 10 * MS, 50 * MS];

fn run(rule: Rule, pattern: Pattern, rtt: u64) -> Figures {
    measure(rule, pattern, rtt, RATE, 4_000)
}

#[test]
fn in_order_it_is_at_the_wire_at_every_delay() {
    for rtt in DELAYS {
        let figures = run(Rule::Streams, Pattern::Forward, rtt);
        assert!(figures.rate > 0.85 * RATE as f64, "{rtt} ns: {figures:?}");
        assert!(figures.fetched < 1.06, "{rtt} ns: {figures:?}");
    }
}

#[test]
fn backwards_is_as_fast_as_forward() {
    // Four thousand reads are 131 ms of the wire; at 50 ms the beginning is a good part of it.
    for (rtt, part) in DELAYS.into_iter().zip([0.9, 0.9, 0.6, 0.25]) {
        let figures = run(Rule::Streams, Pattern::Backward, rtt);
        assert!(figures.rate > part * RATE as f64, "{rtt} ns: {figures:?}");
    }
}

#[test]
fn a_stride_is_five_times_as_fast_as_without_and_fetches_no_more() {
    for rtt in DELAYS {
        let (without, with) =
            (run(Rule::Off, Pattern::Stride, rtt), run(Rule::Streams, Pattern::Stride, rtt));
        let (wire, five) = (0.95 * RATE as f64, 5.0 * without.rate);
        assert!(with.rate > five.min(wire), "{rtt} ns: {with:?}, without {without:?}");
        assert!(with.fetched < 1.1, "{rtt} ns: {with:?}");
    }
}

#[test]
fn it_never_makes_things_slower_and_beats_the_thesis_where_there_is_an_order() {
    for pattern in Pattern::ALL {
        for rtt in DELAYS {
            let [none, thesis, ours] =
                [Rule::Off, Rule::Thesis, Rule::Streams].map(|rule| run(rule, pattern, rtt).rate);
            assert!(ours > 0.98 * none, "{pattern:?} at {rtt} ns: {ours} with, {none} without");
            let in_order = !matches!(pattern, Pattern::Random | Pattern::Walk);
            assert!(
                !in_order || ours > 0.98 * thesis,
                "{pattern:?} at {rtt} ns: {ours}, the thesis's rule {thesis}"
            );
        }
    }
}

#[test]
fn little_is_fetched_in_vain() {
    for rtt in DELAYS {
        // What is near may be read next: a few guesses, and a look now and then.
        let random = run(Rule::Streams, Pattern::Random, rtt);
        assert!(random.fetched < 1.8, "at random at {rtt} ns: {random:?}");
        // Near donors need little ahead of each place.
        let eight = run(Rule::Streams, Pattern::Eight, rtt);
        let most = if rtt > MS { 1.5 } else { 1.1 };
        assert!(eight.fetched < most, "eight places at {rtt} ns: {eight:?}");
    }
}

#[test]
fn a_walk_through_a_far_file_system_takes_a_third_of_the_round_trips() {
    for rtt in [10 * MS, 50 * MS] {
        let figures = run(Rule::Streams, Pattern::Walk, rtt);
        assert!(figures.round_trips < 100.0 / 3.0, "{rtt} ns: {figures:?}");
    }
}
