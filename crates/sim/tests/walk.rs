//! The walk through every order of a small world's events: what it covers holds, and what is planted is
//! found.

use cheetah_sim::walk::{LIVES, Setup, walk};
use cheetah_sim::{Bug, Layout};

fn setup(paths_max: u64, bug: Option<Bug>) -> Setup {
    Setup { layout: Layout { data: 2, parity: 1, spares: 0 }, lives: LIVES, paths_max, bug }
}

/// `make walk` goes on from here.
#[test]
fn whoever_comes_next_reads_what_was_acknowledged() {
    let walked = walk(setup(165_000, None), |_| {});
    assert_eq!(walked.failure, None);
    assert!(walked.legacies > 5, "writers were killed, and others came after them: {walked:?}");
}

#[test]
fn a_donor_that_undoes_nothing_is_found() {
    let walked = walk(setup(200_000, Some(Bug::UndoForgotten)), |_| {});
    let failure = walked.failure.expect("it is found");
    assert!(failure.contains("reads as"), "{failure}");
}
