//! Write-back: a write is in two memories before it is on a disk, and what a flush covers is there whatever
//! ends.

use std::fs::File;
use std::thread;
use std::time::Duration;

use cheetah_lab::disks::Disks;
use cheetah_lab::verified::Verified;
use cheetah_lab::{tools, wait, writer};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const WRITERS: usize = 4;
/// For what a renewal tells, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Disks, and a volume `v` with write-back over them.
fn write_back(count: u32, redundancy: &str) -> Disks {
    let disks = Disks::new(count, "400M");
    let more = ["--on", "disk", "--write-back", "--redundancy", redundancy];
    disks.pool.ok(["create", "v", "96M"].into_iter().chain(more));
    disks
}

/// One donor after the other is killed under writers that never flush.
fn loses_nothing_with_one_donor(redundancy: &str, donors: u32) {
    let mut disks = write_back(donors, redundancy);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), WRITERS, 96 * MIB);
    for (round, number) in (0..).zip([1, 2, 1]) {
        let written = writer::write_while(&mut writers, round, || {
            thread::sleep(Duration::from_millis(900));
            disks.pool.donor(&format!("d{number}")).kill();
            disks.start(number);
            disks.wait_until_whole("v");
            thread::sleep(Duration::from_millis(300));
        });
        assert!(written > 0, "nobody wrote");
        for writer in &mut writers {
            assert_eq!(writer.check(), Vec::<String>::new(), "{redundancy}, after d{number} was killed");
        }
        // What the one had in memory alone is given to it again before a flush is answered.
        File::open(&path).and_then(|file| file.sync_all()).expect("it is flushed");
    }
    assert_eq!(disks.pool.lost_ranges("v"), []);
    let verified = Verified::run(&disks.pool, "v");
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn a_donor_that_is_killed_alone_loses_nothing_of_copies() {
    loses_nothing_with_one_donor("mirror:2", 2);
}

#[test]
fn a_donor_that_is_killed_alone_loses_nothing_of_parity() {
    loses_nothing_with_one_donor("parity:2+1", 3);
}

/// Everything is killed under writers that flush now and then.
fn keeps_what_was_flushed(disks: Disks, redundancy: &str) {
    let disks = disks.survive(&["--write-back", "--redundancy", redundancy], Some(20), 4);
    let is_said = |finding: &Value| {
        let what = finding["what"].as_str().unwrap_or_default();
        finding["code"] == "volume-unflushed" && what.contains("may be older than what was written last")
    };
    let found = || disks.pool.status()["findings"].as_array().is_some_and(|found| found.iter().any(is_said));
    wait::until("it is said that writes may be lost", LONG, found);
    tools::names(&disks.pool.ok(["log", "v"]), &["may be older than what was written last"]);
}

#[test]
fn what_was_flushed_to_copies_is_there_after_power_cuts() {
    keeps_what_was_flushed(Disks::new(2, "400M"), "mirror:2");
}

#[test]
fn what_was_flushed_with_parity_is_there_after_power_cuts() {
    keeps_what_was_flushed(Disks::with_write_caches(3, 400 * MIB), "parity:2+1");
}

#[test]
fn a_file_system_has_what_it_synchronised_and_is_whole() {
    write_back(2, "mirror:2").keeps_a_file_system("v", 2, 10);
}

#[test]
fn what_cannot_have_it_is_refused_and_it_is_shown() {
    let disks = write_back(2, "mirror:2");
    let create = |more: &[&str]| disks.pool.fails(["create", "w", "32M", "--write-back"].iter().chain(more));
    tools::names(&create(&[]), &["a volume in memory has nothing to write back to"]);
    for redundancy in ["linear", "stripe:2"] {
        let said = create(&["--on", "disk", "--redundancy", redundancy]);
        tools::names(&said, &["cannot have --write-back", "mirror:R or parity:K+M"]);
    }
    tools::names(&disks.pool.ok(["show", "v"]), &["write-back  what a flush covers is on disks"]);
    assert_eq!(disks.pool.volume_status("v")["write_back"], true);
}
