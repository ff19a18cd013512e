//! Disks: what was acknowledged is there when everything was switched off and on again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use cheetah_lab::disks::Disks;
use cheetah_lab::pool::Pool;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::verified::Verified;
use cheetah_lab::writer::BLOCK_BYTES;
use cheetah_lab::{hash, tools, wait, writer};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
const WRITERS: usize = 4;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Everything is killed under writers, again and again.
fn survives_power_cuts(disks: Disks, redundancy: &str, cuts: u64) {
    disks.survive(&["--redundancy", redundancy], None, cuts);
}

#[test]
fn parity_on_disks_survives_power_cuts() {
    survives_power_cuts(Disks::new(3, "400M"), "parity:2+1", 6);
}

#[test]
fn mirrored_and_linear_disks_survive_power_cuts() {
    survives_power_cuts(Disks::new(2, "400M"), "mirror:2", 3);
    survives_power_cuts(Disks::new(2, "400M"), "linear", 3);
}

#[test]
fn disks_that_forget_what_was_not_flushed_survive_power_cuts() {
    survives_power_cuts(Disks::with_write_caches(3, 400 * MIB), "parity:2+1", 3);
}

#[test]
fn a_file_system_on_disks_is_whole_after_power_cuts() {
    let mut disks = Disks::new(3, "400M");
    disks.pool.ok(["create", "v", "200M", "--on", "disk", "--redundancy", "parity:2+1"]);
    disks.keeps_a_file_system("v", 3, 20);
}

#[test]
fn a_donor_that_was_away_is_the_same_donor_and_what_it_missed_is_made_up() {
    let mut disks = Disks::new(3, "400M");
    disks.pool.ok(["create", "v", "96M", "--on", "disk", "--redundancy", "parity:2+1"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), 1, 16 * MIB);
    let identity = |pool: &Pool| {
        let status = pool.status();
        let donors = status["donors"].as_array().expect("donors").clone();
        let d2 = donors.into_iter().find(|donor| donor["name"] == "d2").expect("a donor d2");
        assert_eq!(d2["medium"], "disk");
        d2["donor"].as_str().expect("an identity").to_owned()
    };
    let before = identity(&disks.pool);
    // Away for a moment, and for so long that it is taken out.
    for away in [0, 7] {
        let written = writer::write_while(&mut writers, away, || {
            thread::sleep(Duration::from_millis(500));
            disks.pool.donor("d2").kill();
            thread::sleep(Duration::from_secs(away));
            disks.start(2);
            disks.wait_until_whole("v");
        });
        assert!(written > 20);
        assert_eq!(identity(&disks.pool), before);
        assert_eq!(writers[0].check(), Vec::<String>::new());
    }
    // All of it can be read without any of the others.
    disks.pool.donor("d1").kill();
    assert_eq!(writers[0].check(), Vec::<String>::new());
}

#[test]
fn of_a_disk_and_its_copies_only_the_newest_is_believed() {
    let mut disks = Disks::new(1, "200M");
    disks.pool.ok(["create", "v", "32M", "--on", "disk", "--redundancy", "linear"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let write = |byte: u8| {
        let file = File::options().write(true).open(&path).expect("a volume");
        file.write_all_at(&[byte; 4096], 0).and_then(|()| file.sync_all()).expect("it is written");
    };
    let (disk, copy, kept) = (disks.path(1), disks.place.join("copy"), disks.place.join("kept"));
    write(1);
    disks.pool.donor("d1").kill();
    fs::copy(&disk, &copy).expect("a copy");
    disks.start(1);
    wait::until("it can be read", LONG, || fs::read(&path).is_ok_and(|bytes| bytes[0] == 1));
    write(2);
    // Beside the one that it is a copy of, and after that one has written.
    let in_vain = |disks: &Disks, at: &Path, says: &str| {
        let disk = at.display().to_string();
        disks.pool.donate_in_vain("d1", &["--disk", &disk], says)
    };
    let older = "was set back, or is an older copy of donor 'd1'";
    in_vain(&disks, &copy, older).kill();
    disks.pool.donor("d1").kill();
    fs::rename(&disk, &kept).and_then(|()| fs::rename(&copy, &disk)).expect("set back");
    let mut set_back = in_vain(&disks, &disk, older);
    wait::until("the pool misses it", LONG, || disks.pool.volume_status("v")["health"] == "lost");
    let read = || {
        let file = File::open(&path).expect("a volume");
        // Past what the kernel has of it.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it is let go");
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes[0])
    };
    assert!(read().is_err(), "what it has is not delivered");
    set_back.kill();
    fs::rename(&kept, &disk).expect("the newest");
    disks.start(1);
    wait::until("it is whole again", LONG, || disks.pool.volume_status("v")["health"] == "whole");
    wait::until("it can be read", LONG, || read().is_ok_and(|byte| byte == 2));
    // A copy of now, beside it: as new as it is, and one too many.
    fs::copy(&disk, &copy).expect("a copy");
    in_vain(&disks, &copy, "Of a disk and its copy only one can be lent").kill();
    write(3);
    assert_eq!(read().expect("it is served"), 3);
}

#[test]
fn all_donors_may_be_killed_beside_a_daemon_that_goes_on() {
    let mut disks = Disks::new(4, "400M");
    disks.pool.ok(["create", "v", "96M", "--on", "disk", "--redundancy", "parity:2+1"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), WRITERS, 96 * MIB);
    for round in 0..3 {
        writer::write_while(&mut writers, round * 100, || {
            thread::sleep(Duration::from_millis(700));
            for number in 1..=4 {
                disks.pool.donor(&format!("d{number}")).kill();
            }
            thread::sleep(Duration::from_secs(round));
            for number in 1..=4 {
                disks.start(number);
            }
            disks.wait_until_whole("v");
        });
        for writer in &mut writers {
            assert_eq!(writer.check(), Vec::<String>::new(), "round {round}");
        }
        assert_eq!(disks.pool.lost_ranges("v"), []);
    }
}

/// Flips a byte of data on a disk, below everything.
fn flip(disk: &Path, nth: u64, needle: &[u8]) -> bool {
    let file = File::options().read(true).write(true).open(disk).expect("a disk");
    let bytes = fs::read(disk).expect("a disk");
    let found = bytes.windows(needle.len()).enumerate().filter(|(_, window)| *window == needle);
    let Some((at, _)) = found.map(|(at, w)| (at as u64, w)).nth(nth as usize) else { return false };
    file.write_all_at(&[needle[0] ^ 1], at).and_then(|()| file.sync_all()).expect("a flip");
    true
}

#[test]
fn what_rots_on_a_disk_is_found_and_healed_and_never_delivered() {
    let mut disks = Disks::new(3, "400M");
    let image = disks.pool.scratch().join("image");
    let mut bytes = vec![0; 24 * MIB as usize];
    for (nth, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
        block.fill((nth % 251) as u8);
        block[..16].copy_from_slice(format!("block {nth:010}").as_bytes());
    }
    fs::write(&image, &bytes).expect("an image");
    let said = disks.pool.ok(["load", &image.display().to_string(), "case", "--on", "disk"]);
    tools::names(&said, &["sealed: "]);
    // What is in the donors' memory is not on its way any more; then nothing of it is there.
    thread::sleep(Duration::from_secs(1));
    disks.power_off();
    // Far apart: two of one row would be more than its parity covers.
    let places = ["block 0000000001", "block 0000000999", "block 0000004242"];
    for place in places {
        let flipped = (1..=3).filter(|number| flip(&disks.path(*number), 0, place.as_bytes())).count();
        assert!(flipped >= 1, "the disks hold the image");
    }
    disks.power_on();
    let verified = Verified::run(&disks.pool, "case");
    assert_ne!(verified.code, 0);
    assert!(verified.report["blocks_wrong"].as_u64().is_some_and(|wrong| wrong >= 3), "{verified:?}");
    let path = disks.pool.attach_fuse("case", &["--read-only"]).path;
    assert_eq!(hash::of_file(&path), hash::of_file(&image));
    disks.pool.detach("case");
    wait::until("all of it is healed", LONG, || Verified::run(&disks.pool, "case").code == 0);
}

#[test]
fn only_a_disk_that_is_blank_or_was_lent_is_taken() {
    let mut disks = Disks::new(1, "200M");
    let pool = &mut disks.pool;
    let scratch = disks.place.path().to_owned();
    let refused = |pool: &Pool, disk: &str, why: &[&str]| {
        let said = pool.fails(["donate", "--disk", disk, "--name", "other"]);
        tools::names(&said, why);
    };
    let at = |name: &str| scratch.join(name).display().to_string();
    refused(pool, &at("disk-1"), &["disk-1 cannot be lent", "in use"]);
    refused(pool, &at("none"), &["there is no", "say how large"]);
    refused(pool, &at(""), &["neither a file nor a block device"]);
    refused(pool, &format!("{}:20M", at("small")), &["smallest disk"]);
    refused(pool, "/dev/shm/cheetah-disk:200M", &["tmpfs", "disk of this machine"]);
    assert!(!Path::new("/dev/shm/cheetah-disk").exists(), "nothing is left behind");
    fs::write(scratch.join("picture"), vec![7; 100 * MIB as usize]).expect("a file");
    refused(pool, &at("picture"), &["holds something that is not Cheetah's", "nothing was changed"]);
    assert!(fs::read(scratch.join("picture")).expect("a file").iter().all(|byte| *byte == 7));

    // One that shrank, and one that cannot be read in its head.
    disks.pool.donor("d1").kill();
    let disk = disks.path(1);
    let file = File::options().write(true).open(&disk).expect("a disk");
    file.set_len(150 * MIB).expect("a shorter disk");
    refused(&disks.pool, &disk.display().to_string(), &["it had ", "and has 150 MiB now"]);
    file.set_len(200 * MIB).expect("as it was");
    file.write_all_at(&[0xff; 100], 20).and_then(|()| file.write_all_at(&[0xff; 100], 4116)).expect("damage");
    refused(&disks.pool, &disk.display().to_string(), &["both copies of its head are damaged"]);
}

#[test]
fn a_disk_that_is_let_go_is_blank_and_a_new_donor() {
    let mut disks = Disks::new(4, "300M");
    disks.pool.ok(["create", "v", "32M", "--on", "disk", "--redundancy", "parity:2+1"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let file = File::options().write(true).open(&path).expect("a volume");
    let secret = b"a word that nobody else may read";
    file.write_all_at(&secret.repeat(4096), 0).and_then(|()| file.sync_all()).expect("it is written");
    let holder = disks.pool.holders("v", 0).remove(0);
    let number: u32 = holder[1..].parse().expect("d1 to d4");
    disks.pool.ok(["leave", &holder]);
    let status = disks.pool.donor(&holder).wait_for_end(LONG);
    assert!(status.success(), "{}", disks.pool.log_of(&holder));
    tools::names(&disks.pool.log_of(&holder), &["its disk is wiped"]);
    let left = fs::read(disks.path(number)).expect("a disk");
    assert!(!left.windows(secret.len()).any(|window| window == secret), "all of it is wiped");
    disks.start(number);
    wait::until("it lends again", wait::SOON, || disks.pool.volume_status("v")["health"] == "whole");
    // A signal moves nothing.
    let other = if number == 1 { 2 } else { 1 };
    disks.pool.donor(&format!("d{other}")).signal(Signal::TERM);
    assert!(disks.pool.donor(&format!("d{other}")).wait_for_end(wait::SOON).success());
    tools::names(&disks.pool.log_of(&format!("d{other}")), &["what it holds stays on"]);
    disks.start(other);
    wait::until("it is whole again", LONG, || disks.pool.volume_status("v")["health"] == "whole");
}

#[test]
fn memory_and_disk_are_lent_by_one_process_and_are_not_mixed_up() {
    let mut pool = Pool::start();
    let place = Scratch::on_disk();
    let disk = format!("{}:200M", place.join("disk").display());
    let said = pool.fails(["create", "v", "32M", "--on", "disk"]);
    tools::names(&said, &["no donors that lend disk", "cheetah donate --disk PATH:SIZE"]);
    let donor = pool.donate("one", "128M").pid();
    assert!(donor > 0);
    tools::names(&pool.fails(["create", "v", "32M", "--on", "disk"]), &["no donors that lend disk"]);
    pool.donate_as("two", &["--disk", &disk, "--cache", "64M"]);
    pool.ok(["create", "on-disk", "64M", "--on", "disk", "--redundancy", "linear"]);
    pool.ok(["create", "in-memory", "64M", "--redundancy", "linear"]);
    assert_eq!(pool.holders("on-disk", 0), ["two"]);
    assert_eq!(pool.holders("in-memory", 0), ["one"]);
}
