//! Write-back: a write is in two memories before it is on a disk, and what a flush covers is there whatever
//! ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use cheetah_lab::mounted::Mounted;
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::verified::Verified;
use cheetah_lab::{tools, wait, writer};

const MIB: u64 = 1 << 20;
const WRITERS: usize = 4;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A pool whose donors `d1`, `d2`, ... lend a disk each, and a volume `v` with write-back over them.
struct Disks {
    pool: Pool,
    count: u32,
    place: Scratch,
}

impl Disks {
    fn new(count: u32, redundancy: &str) -> Self {
        let place = Scratch::on_disk();
        let mut disks = Disks { pool: Pool::with(State::Directory, None), count, place };
        for number in 1..=count {
            let disk = format!("{}:400M", disks.path(number).display());
            disks.lend(number, &disk);
        }
        let more = ["--on", "disk", "--write-back", "--redundancy", redundancy];
        disks.pool.ok(["create", "v", "96M"].into_iter().chain(more));
        disks
    }

    fn path(&self, number: u32) -> PathBuf {
        self.place.join(format!("disk-{number}"))
    }

    fn lend(&mut self, number: u32, disk: &str) {
        self.pool.donate_as(&format!("d{number}"), &["--disk", disk, "--cache", "64M"]);
    }

    fn start(&mut self, number: u32) {
        let disk = self.path(number).display().to_string();
        self.lend(number, &disk);
    }

    /// Kills everything there is, within a moment.
    fn power_off(&mut self) {
        if !self.pool.daemons().is_empty() {
            self.pool.kill_daemons();
        }
        for number in 1..=self.count {
            self.pool.donor(&format!("d{number}")).kill();
        }
        self.pool.kill_coordinator();
    }

    fn power_on(&mut self) {
        self.pool.restart_coordinator();
        for number in 1..=self.count {
            self.start(number);
        }
    }

    fn is_whole(&self) -> bool {
        self.pool.volume_status("v")["health"] == "whole"
    }
}

/// One donor after the other is killed under writers that never flush.
fn loses_nothing_with_one_donor(redundancy: &str, donors: u32) {
    let mut disks = Disks::new(donors, redundancy);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), WRITERS, 96 * MIB);
    for (round, number) in (0..).zip([1, 2, 1]) {
        let written = writer::write_while(&mut writers, round, || {
            thread::sleep(Duration::from_millis(900));
            disks.pool.donor(&format!("d{number}")).kill();
            disks.start(number);
            wait::until("it is whole again", LONG, || disks.is_whole());
            thread::sleep(Duration::from_millis(300));
        });
        assert!(written > 100, "{written} blocks were acknowledged");
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
fn keeps_what_was_flushed(redundancy: &str, donors: u32) {
    let mut disks = Disks::new(donors, redundancy);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), WRITERS, 96 * MIB);
    writers.iter_mut().for_each(|writer| writer.flush_every(20));
    for cut in 0..4 {
        let written = writer::write_while(&mut writers, cut * 100, || {
            thread::sleep(Duration::from_millis(900 + cut % 3 * 400));
            disks.power_off();
        });
        assert!(written > 20, "cut {cut}: {written} blocks were written");
        disks.power_on();
        assert_eq!(disks.pool.attach_fuse("v", &[]).path, path);
        for writer in &mut writers {
            assert_eq!(writer.check(), Vec::<String>::new(), "{redundancy}, after cut {cut}");
        }
    }
    assert_eq!(disks.pool.lost_ranges("v"), []);
    let verified = Verified::run(&disks.pool, "v");
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn what_was_flushed_to_copies_is_there_after_power_cuts() {
    keeps_what_was_flushed("mirror:2", 2);
}

#[test]
fn what_was_flushed_with_parity_is_there_after_power_cuts() {
    keeps_what_was_flushed("parity:2+1", 3);
}

#[test]
fn a_file_system_has_what_it_synchronised_and_is_whole() {
    tools::need_root("loop devices and mounts");
    let mut disks = Disks::new(2, "mirror:2");
    let point = disks.pool.scratch().directory("point");
    let device = disks.pool.attach_loop("v", &[]).path;
    tools::expect_success(tools::command("mkfs.ext4").arg("-q").arg(&device));
    let mut sums = BTreeMap::new();
    for round in 0..2u8 {
        let device = if round == 0 { device.clone() } else { disks.pool.attach_loop("v", &[]).path };
        let mounted = Mounted::new(&[], &device, &point);
        for number in 0..10u8 {
            let name = format!("file {round} {number}");
            let bytes = vec![round * 20 + number + 1; 200_000];
            let file = point.join(&name);
            fs::write(&file, &bytes).and_then(|()| File::open(&file)?.sync_all()).expect("on its disk");
            sums.insert(name, bytes);
        }
        // Not told to: it is cut off in the middle of the next one.
        let _ = fs::write(point.join("last"), vec![9; 5_000_000]);
        disks.power_off();
        tools::run("umount", ["-l", &point.display().to_string()]);
        drop(mounted);
        disks.power_on();
        let device = disks.pool.attach_loop("v", &[]).path;
        // Its log is replayed; then nothing may be left to mend.
        Mounted::new(&[], &device, &point).unmount();
        tools::expect_success(tools::command("e2fsck").args(["-f", "-n"]).arg(&device));
        let mounted = Mounted::new(&["-o", "ro"], &device, &point);
        for (name, bytes) in &sums {
            assert_eq!(fs::read(point.join(name)).expect("it was synchronised"), *bytes, "{name}");
        }
        mounted.unmount();
        disks.pool.detach("v");
    }
}

#[test]
fn what_cannot_have_it_is_refused_and_it_is_shown() {
    let disks = Disks::new(2, "mirror:2");
    let create = |more: &[&str]| disks.pool.fails(["create", "w", "32M", "--write-back"].iter().chain(more));
    tools::names(&create(&[]), &["a volume in memory has nothing to write back to"]);
    for redundancy in ["linear", "stripe:2"] {
        let said = create(&["--on", "disk", "--redundancy", redundancy]);
        tools::names(&said, &["cannot have --write-back", "mirror:R or parity:K+M"]);
    }
    tools::names(&disks.pool.ok(["show", "v"]), &["write-back  what a flush covers is on disks"]);
    assert_eq!(disks.pool.volume_status("v")["write_back"], true);
}
