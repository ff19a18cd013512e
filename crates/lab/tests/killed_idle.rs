//! Donors are killed while nobody writes: their hosts say so at once, what they held is rebuilt, and nothing
//! is lost. Of a volume that lies idle, one that is only read, and one that nobody has attached. One that
//! only falls silent is found, too.

use rustix::process::Signal;
use std::time::Duration;

use cheetah_lab::pool::Pool;
use cheetah_lab::{tools, wait};

const LIMIT: Duration = Duration::from_secs(60);
const VOLUMES: [&str; 3] = ["idle", "read", "rest"];

#[track_caller]
fn qemu_io(uri: &str, command: &str) {
    let said = tools::run("qemu-io", ["-f", "raw", "-c", command, "-c", "flush", uri]);
    assert!(!said.contains("failed"), "{command}: {said}");
}

/// Everything that the volumes should have is where it should be, and none of it with this donor.
fn are_whole_without(pool: &Pool, donor: &str) -> bool {
    VOLUMES.iter().all(|name| {
        let volume = pool.volume_status(name);
        volume["health"] == "whole"
            && volume["bytes_lost"] == 0
            && !pool.holders(name, 0).iter().any(|holder| holder == donor)
    })
}

#[test]
fn killed_donors_of_volumes_that_nobody_writes_are_rebuilt_and_nothing_is_lost() {
    let mut pool = Pool::start();
    for number in 1..=6 {
        pool.donate(&format!("d{number}"), "256M");
    }
    for name in VOLUMES {
        pool.ok(["create", name, "60M", "--redundancy", "parity:3+1"]);
        let uri = pool.attach_export_unix(name, &[]).uri;
        qemu_io(&uri, "write -P 0x5a 0 60M");
        pool.detach(name);
    }
    let idle = pool.attach_export_unix("idle", &[]).uri;
    let read = pool.attach_export_unix("read", &["--read-only"]).uri;
    for name in ["idle", "read"] {
        let victim = pool.holders(name, 0).swap_remove(0);
        pool.donor(&victim).kill();
        wait::until("all volumes to be whole without the donor", LIMIT, || are_whole_without(&pool, &victim));
    }
    let log = pool.scratch().join("coordinator.log");
    let log = std::fs::read_to_string(log).expect("the coordinator's log");
    assert!(log.matches("nothing listens").count() >= 2, "it was found by their silence: {log}");
    let rest = pool.attach_export_unix("rest", &["--read-only"]).uri;
    for uri in [idle, read, rest] {
        let said = tools::run("qemu-io", ["-r", "-f", "raw", "-c", "read -P 0x5a 0 60M", &uri]);
        assert!(!said.contains("failed"), "{said}");
    }
}

#[test]
fn a_donor_that_falls_silent_beside_an_idle_writer_is_rebuilt() {
    let mut pool = Pool::start();
    for number in 1..=5 {
        pool.donate(&format!("d{number}"), "256M");
    }
    pool.ok(["create", "idle", "60M", "--redundancy", "parity:3+1"]);
    let uri = pool.attach_export_unix("idle", &[]).uri;
    qemu_io(&uri, "write -P 0x5a 0 60M");
    let victim = pool.holders("idle", 0).swap_remove(0);
    // Its connections stay open, as those of a machine that lost its power do.
    pool.donor(&victim).signal(Signal::STOP);
    wait::until("the idle volume to be whole without the donor", LIMIT, || {
        let volume = pool.volume_status("idle");
        volume["health"] == "whole" && volume["bytes_lost"] == 0 && !pool.holders("idle", 0).contains(&victim)
    });
    let said = tools::run("qemu-io", ["-r", "-f", "raw", "-c", "read -P 0x5a 0 60M", &uri]);
    assert!(!said.contains("failed"), "{said}");
    pool.donor(&victim).signal(Signal::CONT);
}
