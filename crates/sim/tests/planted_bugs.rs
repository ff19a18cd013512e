//! Each planted bug is found within 1,000 seeds, and the seed that found it finds it again.

use cheetah_sim::{Bug, Setup, run, swarm};

fn is_found(bug: Bug) {
    let setup = bug.runs();
    let without = Setup { bug: None, ..setup };
    let swarm = swarm(0, 1_000, setup, |_| ());
    let Some((seed, what)) = swarm.failed else { panic!("{} was not found in 1,000 seeds", bug.name()) };
    eprintln!("{} was found after {} seeds: {what}", bug.name(), swarm.seeds);
    assert_eq!(run(seed, setup, None).failure, Some(what), "it replays");
    assert_eq!(run(seed, without, None).failure, None, "it is the bug that was found");
}

#[test]
fn a_donor_that_ignores_sessions() {
    is_found(Bug::IgnoreSessions);
}

#[test]
fn a_donor_that_does_not_wipe() {
    is_found(Bug::SkipWipe);
}

#[test]
fn a_client_that_acknowledges_early() {
    is_found(Bug::AckEarly);
}

#[test]
fn zeros_in_place_of_an_error() {
    is_found(Bug::ZerosForLost);
}

#[test]
fn a_coordinator_that_loses_a_record() {
    is_found(Bug::LoseRecord);
}

#[test]
fn a_coordinator_that_answers_before_it_stores() {
    is_found(Bug::AnswerBeforeStore);
}

#[test]
fn a_client_that_acknowledges_before_an_exclusion_is_recorded() {
    is_found(Bug::AckBeforeQuorum);
}

#[test]
fn a_client_that_believes_a_donor_that_was_excluded() {
    is_found(Bug::StaleBelieved);
}

#[test]
fn a_donor_that_signs_whatever_came() {
    is_found(Bug::DigestIgnored);
}

#[test]
fn a_client_that_takes_a_loss_for_recorded() {
    is_found(Bug::LossNotRecorded);
}

#[test]
fn a_client_that_writes_no_parity() {
    is_found(Bug::ParityNotUpdated);
}

#[test]
fn a_client_that_takes_every_block_for_right() {
    is_found(Bug::ChecksumIgnored);
}

#[test]
fn a_donor_that_asks_for_no_lease() {
    is_found(Bug::LeaseNotChecked);
}

#[test]
fn a_client_that_does_not_hear_of_refused_connections() {
    is_found(Bug::RefusalUnheard);
}

#[test]
fn a_client_that_sends_merged_writes_out_of_order() {
    is_found(Bug::MergedOutOfOrder);
}

#[test]
fn a_client_that_does_not_check_what_others_wrote() {
    is_found(Bug::ContextIgnored);
}

#[test]
fn a_client_that_does_not_check_what_was_taken_of_its_writes() {
    is_found(Bug::WriteReplyIgnored);
}

#[test]
fn a_load_that_tells_what_is_not_written() {
    is_found(Bug::LoadToldAhead);
}

#[test]
fn a_coordinator_that_does_not_store_what_volumes_hold() {
    is_found(Bug::LoadForgotten);
}

#[test]
fn a_load_that_goes_on_too_far() {
    is_found(Bug::ResumeSkips);
}

#[test]
fn a_writer_that_takes_torn_rows_for_whole() {
    is_found(Bug::TornForWhole);
}

#[test]
fn a_donor_that_undoes_nothing() {
    is_found(Bug::UndoForgotten);
}

#[test]
fn a_writer_that_gives_up_rows_that_fit() {
    is_found(Bug::WholeRowGivenUp);
}

#[test]
fn a_write_of_a_part_that_signs_a_wrong_block() {
    is_found(Bug::PartialSigned);
}

#[test]
fn a_move_that_loses_checksums() {
    is_found(Bug::MoveLosesContext);
}

#[test]
fn a_client_that_does_not_hear_what_donors_find_wrong() {
    is_found(Bug::VerifyIgnored);
}

#[test]
fn a_donor_that_gives_zeros_for_what_is_absent() {
    is_found(Bug::AbsentAsZero);
}

#[test]
fn a_donor_that_gives_zeros_for_what_it_dropped() {
    is_found(Bug::DroppedAsZero);
}

#[test]
fn a_filler_that_drops_what_it_writes() {
    is_found(Bug::DroppedWhileWritten);
}

#[test]
fn a_donor_that_takes_what_a_filler_sent_before_the_next() {
    is_found(Bug::LateFill);
}

#[test]
fn a_disk_that_comes_back_and_is_believed() {
    is_found(Bug::DiskBelieved);
}

#[test]
fn a_disk_that_is_not_flushed() {
    is_found(Bug::FlushIgnored);
}

#[test]
fn a_write_that_is_answered_before_the_disk_has_it() {
    is_found(Bug::LogUnflushed);
}

#[test]
fn a_block_that_goes_on_its_way_to_the_disk() {
    is_found(Bug::DirtyEvicted);
}

#[test]
fn a_block_whose_tag_is_that_of_another_write() {
    is_found(Bug::AuthOfAnother);
}

#[test]
fn a_write_back_that_is_acknowledged_with_one_copy() {
    is_found(Bug::OneCopy);
}

#[test]
fn a_stale_region_that_is_believed_after_a_restart() {
    is_found(Bug::StaleRegionBelieved);
}

#[test]
fn a_flush_that_is_answered_before_dirty_blocks_are_down() {
    is_found(Bug::FlushAhead);
}

#[test]
fn a_dirty_block_that_goes_out_of_memory() {
    is_found(Bug::DirtyDropped);
}

#[test]
fn a_coordinator_whose_sleep_counts() {
    is_found(Bug::SleepCounts);
}

#[test]
fn a_donor_that_obeys_a_stranger() {
    is_found(Bug::StrangerObeyed);
}
