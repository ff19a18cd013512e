//! Whoever judges others sleeps: stopped like a laptop whose lid is closed, or a machine of which a snapshot
//! is taken. Nobody else is judged by what was not heard meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use cheetah_core::limits::LEASE_NS;
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::wait;
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
/// A lease and some more: what is stopped for less proves nothing.
const SLEEP: Duration = Duration::from_nanos(LEASE_NS + 1_500_000_000);

fn write_at(path: &Path, byte: u8) {
    let file = File::options().write(true).open(path).expect("the volume opens");
    file.write_all_at(&vec![byte; MIB as usize], 0).expect("a write");
    file.sync_all().expect("a flush");
}

#[track_caller]
fn holds(path: &Path, byte: u8) {
    let file = File::open(path).expect("the volume opens");
    let mut read = vec![0; MIB as usize];
    file.read_exact_at(&mut read, 0).expect("a read");
    assert!(read.iter().all(|found| *found == byte), "{}", path.display());
}

#[test]
fn a_coordinator_that_slept_ends_no_lease_and_loses_no_donor() {
    let mut pool = Pool::with(State::Directory, None);
    pool.donate("one", "256M");
    pool.donate("two", "256M");
    let mut paths = Vec::new();
    for (name, more) in [("read", &["--read-only"][..]), ("also-read", &["--read-only"]), ("written", &[])] {
        pool.ok(["create", name, "64M", "--redundancy", "mirror:2"]);
        let path = pool.attach_fuse(name, &[]).path;
        write_at(&path, 0x31);
        pool.detach(name);
        paths.push(pool.attach_fuse(name, more).path);
    }
    pool.coordinator().signal(Signal::STOP);
    std::thread::sleep(SLEEP);
    write_at(&paths[2], 0x32);
    pool.coordinator().signal(Signal::CONT);

    // Whatever it ended, its holders would hear of with their next renewal.
    let places = |pool: &Pool| {
        let status = pool.status();
        let volumes = status["volumes"].as_array().cloned().unwrap_or_default();
        let held = volumes.iter().filter(|volume| volume["attachments"][0]["place"].is_string()).count();
        let donors = status["donors"].as_array().cloned().unwrap_or_default();
        (held, donors.iter().filter(|donor| donor["health"] == "alive").count())
    };
    for _ in 0..4 {
        assert_eq!(places(&pool), (3, 2));
        std::thread::sleep(Duration::from_secs(1));
    }
    write_at(&paths[2], 0x33);
    holds(&paths[0], 0x31);
    holds(&paths[1], 0x31);
    holds(&paths[2], 0x33);
    assert_eq!(pool.volume_status("written")["health"], "whole");
    for name in ["read", "also-read", "written"] {
        pool.detach(name);
    }
}

/// A donor that lends and slept is itself again; who waited for it, without redundancy, goes on.
#[test]
fn a_donor_that_slept_holds_what_it_held() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x41);
    pool.donor("one").signal(Signal::STOP);
    wait::until("its silence is noticed", wait::SOON, || pool.status()["donors"][0]["health"] == "gone");
    pool.donor("one").signal(Signal::CONT);
    wait::until("it is heard again", wait::SOON, || pool.status()["donors"][0]["health"] == "alive");
    holds(&path, 0x41);
    write_at(&path, 0x42);
    pool.detach("case");
}
