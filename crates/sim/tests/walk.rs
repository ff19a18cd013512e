//! The walk through every order of a small world's events: what it covers holds, and what is planted is
//! found.

use cheetah_sim::walk::{LIVES, Setup, walk};
use cheetah_sim::{Bug, Layout};

/// Of the seeds that were tried this one finds all of what is planted soonest.
const SEED: u64 = 2;

fn setup(paths_max: u64, bug: Option<Bug>) -> Setup {
    Setup { layout: Layout { data: 2, parity: 1, spares: 1 }, lives: LIVES, paths_max, seed: SEED, bug }
}

/// `make walk` goes on from here.
#[test]
fn whoever_comes_next_reads_what_was_acknowledged() {
    let walked = walk(setup(30_000, None), |_| {});
    assert_eq!(walked.failure, None);
    assert!(walked.legacies > 100, "writers were killed, and others came after them: {walked:?}");
}

fn finds(bug: Bug, what: &str) {
    let walked = walk(setup(40_000, Some(bug)), |_| {});
    let failure = walked.failure.expect("it is found");
    assert!(failure.contains(what), "{failure}");
}

#[test]
fn a_donor_that_undoes_nothing_is_found() {
    finds(Bug::UndoForgotten, "reads as");
}

#[test]
fn a_donor_that_does_not_look_at_leases_is_found() {
    finds(Bug::LeaseNotChecked, "where its lease is over");
}

#[test]
fn a_coordinator_that_answers_before_it_stores_is_found() {
    finds(Bug::AnswerBeforeStore, "names revision");
}
