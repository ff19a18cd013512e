//! A donor whose memory goes bad again and again: it is named, with the reason, given nothing more, and
//! emptied; the data is whole all along.
//!
//! How often is often enough, and who is not judged: `core/tests/coordinator_blame.rs`. That each wrong block
//! is found and healed: `tests/flips.rs`.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::flip::BLOCK_BYTES;
use cheetah_lab::loaded::{Flipped, Front, Loaded, VOLUME, assert_same};
use cheetah_lab::pool::Pool;
use cheetah_lab::verified::Verified;
use cheetah_lab::wait;
use serde_json::Value;

const FLIPS: usize = 50;
/// What is found within ten seconds counts once, so it takes some rounds.
const LONG: Duration = Duration::from_secs(180);

/// What `status` says of a donor.
#[track_caller]
fn said_of(pool: &Pool, name: &str) -> Value {
    let status = pool.status();
    let donors = status["donors"].as_array().expect("donors");
    donors.iter().find(|donor| donor["name"] == name).unwrap_or_else(|| panic!("no {name}: {status}")).clone()
}

/// The sentence of its finding.
#[track_caller]
fn finding(pool: &Pool, name: &str) -> String {
    let status = pool.status();
    let findings = status["findings"].as_array().cloned().unwrap_or_default();
    let is_it = |finding: &&Value| {
        finding["code"] == "donor-bad-memory" && finding["subject"] == format!("donor {name}")
    };
    let found = findings.iter().find(is_it).unwrap_or_else(|| panic!("no finding of {name}: {status}"));
    found["what"].as_str().expect("a sentence").to_owned()
}

/// What flipped is read as it was.
#[track_caller]
fn are_right(stage: &Loaded, path: &Path, flipped: &Flipped) {
    let (file, mut room) = (direct::open(path, false).expect("the volume opens"), Aligned::new(BLOCK_BYTES));
    for place in &flipped.places {
        let at = usize::try_from(*place).expect("small");
        file.read_exact_at(room.bytes(), *place).expect("a block that others have");
        assert!(*room.bytes() == stage.image[at..at + BLOCK_BYTES], "wrong bytes at {at}");
    }
}

/// Attached so, or by nobody but who looks: then one of the donors heals.
fn is_named_and_emptied(redundancy: &str, donors: usize, mode: &str) {
    // One more than it takes, so that there is room for what is moved.
    let mut stage = Loaded::new(redundancy, donors + 1);
    let victim = stage.holder(0);
    // What it keeps of earlier rounds would hide the next.
    let attached = stage.attach(Front::File, &[mode, "--read-ahead", "off"]);
    let mut rounds = 0;
    wait::until("a donor that is said to have bad memory", LONG, || {
        rounds += 1;
        let flipped = stage.flip_where(&victim, FLIPS, rounds, |_| true);
        let is_bad = || said_of(&stage.pool, &victim)["has_bad_memory"] == true;
        wait::until("what flipped to be put right, or to be moved", LONG, || {
            // One that was answered from the others, because its donor was late, is met again.
            are_right(&stage, &attached.path, &flipped);
            flipped.wrong() == 0 || is_bad()
        });
        is_bad()
    });
    let what = finding(&stage.pool, &victim);
    assert!(what.contains(&format!("Donor {victim} on host ")), "{what}");
    assert!(what.contains("wrong blocks in its memory again and again"), "{what}");
    let log = stage.pool.coordinator_log();
    assert!(
        log.contains(&format!("donor {victim} on host")) && log.contains("in its memory 3 times"),
        "{log}"
    );

    wait::until("all that it held to be moved", LONG, || said_of(&stage.pool, &victim)["bytes_held"] == 0);
    stage.wait_until_without(&victim, donors);
    assert!(finding(&stage.pool, &victim).contains("It holds nothing any more."));
    wait::until("a whole volume", LONG, || stage.pool.volume_status(VOLUME)["health"] == "whole");
    assert_same("when it is empty", &stage.errors(Front::File, &attached), &BTreeSet::new());
    stage.is_read_right(Front::File, &attached);
    stage.pool.detach(VOLUME);
    Verified::run(&stage.pool, VOLUME).is_right();
    // It is given nothing more, though it has more room than any other.
    stage.pool.ok(["create", "next", "24M", "--redundancy", redundancy]);
    let holders = stage.pool.holders("next", 0);
    assert!(holders.len() == donors && !holders.contains(&victim), "{holders:?}");
}

#[test]
fn a_donor_with_bad_memory_is_named_and_emptied_by_who_writes() {
    is_named_and_emptied("parity:3+1", 4, "--writable");
}

#[test]
fn a_donor_with_bad_memory_is_named_and_emptied_where_nobody_writes() {
    is_named_and_emptied("mirror:2", 2, "--read-only");
}
