//! Draining: a donor goes and takes nothing with it. Of a volume that is written and checked meanwhile, of
//! one that nobody has attached, by command and by signal; and what cannot be drained is refused with what it
//! would cost.

use std::time::Duration;

use cheetah_lab::fio::{Fio, Load, Target};
use cheetah_lab::pool::Pool;
use cheetah_lab::wait;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);
/// What fio fills, writes at random and reads back; the volume is a bit larger, so that its last extent is
/// not full.
const BYTES: u64 = 160 * MIB;
const VOLUME: &str = "170M";
const LOAD: Load = Load { bytes: BYTES, seconds: 3, depth: 8, seed: 7 };

/// How the donor is told to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Command,
    Signal,
}

fn pool_of(donors: usize, redundancy: &str) -> Pool {
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "512M");
    }
    pool.ok(["create", "case", VOLUME, "--redundancy", redundancy]);
    pool
}

fn attach(pool: &mut Pool) -> Target {
    Target::Export(pool.attach_export_unix("case", &[]).uri)
}

/// Everything that the volume should have is where it should be.
#[track_caller]
fn assert_whole(volume: &Value) {
    let found = (&volume["health"], &volume["slots_missing"], &volume["bytes_lost"]);
    assert_eq!(found, (&"whole".into(), &0.into(), &0.into()), "{volume}");
}

/// A donor leaves while the volume is written to, and all that was written is found again.
#[track_caller]
fn leaves_under_load(redundancy: &str, told: Told) {
    let mut pool = pool_of(4, redundancy);
    let target = attach(&mut pool);
    let leaver = pool.holders("case", 0).swap_remove(0);
    let fio = |pool: &Pool| -> (bool, String) {
        let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
        let ended = fio.read_back(BYTES).wait(LIMIT, || false);
        (ended.good(), ended.complaint)
    };
    let writing = {
        let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
        fio.prepare(BYTES, None);
        fio.write(&LOAD)
    };
    match told {
        Told::Command => drop(pool.ok(["leave", &leaver, "--no-wait"])),
        Told::Signal => pool.donor(&leaver).signal(rustix::process::Signal::TERM),
    }
    while pool.donor(&leaver).is_running() {
        assert_whole(&pool.volume_status("case"));
    }
    let status = pool.donor(&leaver).wait_for_end(wait::SOON);
    assert!(status.success(), "{leaver} ended with {status}: {}", pool.donor(&leaver).log());
    let log = pool.donor(&leaver).log();
    assert!(!log.contains("nobody took over"), "all was moved: {log}");
    let ended = writing.wait(LIMIT, || false);
    assert!(ended.good(), "{redundancy}, {told:?}: {}", ended.complaint);
    assert_eq!(fio(&pool), (true, String::new()), "{redundancy}, {told:?}");
    assert_whole(&pool.volume_status("case"));
    let status = pool.status();
    let stays = status["donors"].as_array().expect("donors").iter().all(|donor| donor["name"] != *leaver);
    assert!(stays, "{leaver} is out of the pool: {status}");
    pool.detach("case");
}

#[test]
fn a_donor_of_a_volume_with_parity_leaves_under_load() {
    leaves_under_load("parity:2+1", Told::Command);
}

#[test]
fn a_donor_of_a_volume_without_redundancy_leaves_under_load() {
    leaves_under_load("linear", Told::Command);
}

#[test]
fn a_donor_of_a_stripe_leaves_under_load_at_a_signal() {
    leaves_under_load("stripe:2", Told::Signal);
}

#[test]
fn a_donor_of_a_mirror_leaves_under_load_at_a_signal() {
    leaves_under_load("mirror:2", Told::Signal);
}

/// Nobody has the volume attached when the donor leaves; a person comes meanwhile, or later.
#[track_caller]
fn leaves_at_rest(redundancy: &str, told: Told) {
    let mut pool = pool_of(4, redundancy);
    let target = attach(&mut pool);
    let writing = {
        let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
        fio.prepare(BYTES, None);
        fio.write(&LOAD)
    };
    assert!(writing.wait(LIMIT, || false).good());
    pool.detach("case");
    let leaver = pool.holders("case", 0).swap_remove(0);
    match told {
        Told::Command => drop(pool.ok(["leave", &leaver])),
        Told::Signal => pool.donor(&leaver).signal(rustix::process::Signal::TERM),
    }
    let status = pool.donor(&leaver).wait_for_end(LIMIT);
    assert!(status.success(), "{leaver} ended with {status}: {}", pool.donor(&leaver).log());
    let log = pool.donor(&leaver).log();
    assert!(!log.contains("nobody took over"), "all was moved: {log}");
    assert_whole(&pool.volume_status("case"));
    wait::until("the volume to be let go", wait::SOON, || {
        pool.volume_status("case")["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    // The next one leaves, too, and is not waited for.
    let next = pool.holders("case", 0).swap_remove(0);
    pool.ok(["leave", &next, "--no-wait"]);
    let target = attach(&mut pool);
    let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
    let read = fio.read_back(BYTES).wait(LIMIT, || false);
    assert!(read.good(), "{redundancy}: {}", read.complaint);
    pool.donor(&next).wait_for_end(LIMIT);
    let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
    let read = fio.read_back(BYTES).wait(LIMIT, || false);
    assert!(read.good(), "{redundancy}, after both: {}", read.complaint);
    assert_whole(&pool.volume_status("case"));
    pool.detach("case");
}

#[test]
fn a_donor_of_a_volume_at_rest_leaves_and_moves_what_it_holds() {
    leaves_at_rest("linear", Told::Command);
}

#[test]
fn a_donor_of_a_mirror_at_rest_leaves_at_a_signal() {
    leaves_at_rest("mirror:2", Told::Signal);
}

#[test]
fn what_a_killed_donor_held_of_a_volume_at_rest_is_rebuilt_once_it_is_taken_out() {
    let mut pool = pool_of(4, "parity:2+1");
    let target = attach(&mut pool);
    let writing = {
        let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
        fio.prepare(BYTES, None);
        fio.write(&LOAD)
    };
    assert!(writing.wait(LIMIT, || false).good());
    pool.detach("case");
    let victim = pool.holders("case", 0).swap_remove(0);
    pool.donor(&victim).kill();
    pool.ok(["leave", &victim, "--force"]);
    wait::until("the volume to be whole again", LIMIT, || {
        let volume = pool.volume_status("case");
        let empty = |field: &str| volume[field] == 0;
        volume["health"] == "whole" && empty("slots_missing") && empty("slots_filling")
    });
    let target = attach(&mut pool);
    let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
    let read = fio.read_back(BYTES).wait(LIMIT, || false);
    assert!(read.good(), "{}", read.complaint);
    pool.detach("case");
}

#[test]
fn a_drain_that_would_break_redundancy_is_refused_unless_forced() {
    let mut pool = pool_of(3, "parity:2+1");
    pool.create_linear("scratch", "64M");
    let target = attach(&mut pool);
    Fio { lan: None, target: &target, scratch: pool.scratch() }.prepare(BYTES, None);
    let holder = pool.holders("scratch", 0).swap_remove(0);
    let said = pool.fails(["leave", &holder]);
    for part in ["'case'", "1 missing", "--force", "64 MiB of volume 'scratch' would be lost"] {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    assert_whole(&pool.volume_status("case"));
    assert!(pool.donor(&holder).is_running());
    let said = pool.ok(["leave", &holder, "--force"]);
    assert!(said.contains("64 MiB of volumes are lost with it"), "{said}");
    let status = pool.donor(&holder).wait_for_end(wait::SOON);
    assert!(status.success(), "{status}");
    assert_eq!(pool.volume_status("case")["health"], "degraded");
    let lost = pool.volume_status("scratch");
    assert_eq!((&lost["health"], &lost["bytes_lost"]), (&"lost".into(), &(64 * MIB).into()));
    pool.detach("case");
}

/// Whoever attaches the volume meanwhile takes it over, which is as it should be.
#[test]
fn a_donor_that_is_relieved_of_rebuilding_reports_no_fault() {
    let mut pool = pool_of(4, "mirror:2");
    let target = attach(&mut pool);
    Fio { lan: None, target: &target, scratch: pool.scratch() }.prepare(BYTES, None);
    pool.detach("case");
    let lost = pool.holders("case", 0).swap_remove(0);
    pool.donor(&lost).kill();
    wait::until("a donor that rebuilds it", LIMIT, || {
        let volume = pool.volume_status("case");
        volume["attachments"][0]["holder"].as_str().is_some_and(|holder| holder.starts_with("donor"))
            || (volume["health"] == "whole" && !pool.holders("case", 0).contains(&lost))
    });
    attach(&mut pool);
    wait::until("the end of the rebuild", LIMIT, || pool.volume_status("case")["health"] == "whole");
    pool.detach("case");
    for donor in ["d1", "d2", "d3", "d4"].into_iter().filter(|donor| *donor != lost) {
        let said = pool.log_of(donor);
        assert!(!said.contains("ERROR") && !said.contains("lease is lost"), "{donor}: {said}");
    }
}
