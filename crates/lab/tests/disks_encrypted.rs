//! Encrypted volumes on disks: nothing of what tools write is on a disk, and what was acknowledged is there
//! when everything was switched off and on again, with the nonce and the tag that belong to it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use cheetah_core::disk::Place;
use cheetah_lab::disks::Disks;
use cheetah_lab::peek::SECRET;
use cheetah_lab::verified::Verified;
use cheetah_lab::{hash, tools, wait, writer};

const MIB: u64 = 1 << 20;
const WRITERS: usize = 4;
/// Writers have what is below.
const SHARED_BYTES: u64 = 64 * MIB;
const LONG: Duration = Duration::from_secs(120);

fn of_donors(count: u32, more: &[&str]) -> Disks {
    let disks = Disks::new(count, "400M");
    disks
        .pool
        .ok(["create", "v", "96M", "--on", "disk", "--encrypt"].into_iter().chain(more.iter().copied()));
    assert_eq!(disks.pool.volume_status("v")["encrypted"], true);
    disks
}

/// Whether a disk has this anywhere.
fn has(disk: &Path, text: &[u8]) -> bool {
    let text = String::from_utf8(text.to_vec()).expect("a text");
    let mut grep = tools::command("grep");
    let status = grep.args(["-q", "-a", "-F", "-e", &text]).arg(disk).status().expect("grep runs");
    match status.code() {
        Some(0) => true,
        Some(1) => false,
        other => panic!("grep of {}: {other:?}", disk.display()),
    }
}

/// What a test writes itself, above the writers.
fn plant(path: &Path, from: u64) -> Vec<u8> {
    let text: Vec<u8> = SECRET.iter().copied().cycle().take(MIB as usize + 700).collect();
    let file = File::options().write(true).open(path).expect("a volume");
    file.write_all_at(&text, from).and_then(|()| file.sync_all()).expect("it is written");
    text
}

fn read(path: &Path, from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, from)).expect("it is read");
    bytes
}

fn survives_power_cuts(count: u32, more: &[&str], cuts: u64) {
    let mut disks = of_donors(count, more);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let text = plant(&path, SHARED_BYTES + 100);
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), WRITERS, SHARED_BYTES);
    if more.contains(&"--write-back") {
        writers.iter_mut().for_each(|writer| writer.flush_every(20));
    }
    disks.cut_power(("v", &path), &mut writers, cuts, |cut| 1500 + cut % 3 * 400);
    assert!(read(&path, SHARED_BYTES + 100, text.len()) == text, "{more:?}");
    assert_eq!(disks.pool.lost_ranges("v"), []);
    let verified = Verified::run(&disks.pool, "v");
    assert_eq!(verified.code, 0, "{verified:?}");
    disks.power_off();
    for number in 1..=count {
        assert!(!has(&disks.path(number), SECRET), "{more:?}: the planted text is on disk {number}");
    }
}

#[test]
fn parity_survives_power_cuts_and_no_word_is_on_a_disk() {
    survives_power_cuts(3, &["--redundancy", "parity:2+1"], 4);
}

#[test]
fn copies_and_none_survive_power_cuts_and_no_word_is_on_a_disk() {
    survives_power_cuts(2, &["--redundancy", "mirror:2"], 3);
    survives_power_cuts(2, &["--redundancy", "linear"], 3);
}

#[test]
fn what_a_flush_covered_survives_power_cuts_with_write_back() {
    survives_power_cuts(3, &["--redundancy", "parity:2+1", "--write-back"], 4);
    survives_power_cuts(2, &["--redundancy", "mirror:2", "--write-back"], 3);
}

/// The search of these tests finds what is there.
#[test]
fn of_a_volume_that_is_not_encrypted_a_disk_has_every_word() {
    let mut disks = Disks::new(1, "200M");
    disks.pool.ok(["create", "v", "96M", "--on", "disk", "--redundancy", "linear"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    plant(&path, 0);
    disks.power_off();
    assert!(has(&disks.path(1), SECRET));
}

#[test]
fn zeros_are_zeros_after_a_power_cut_and_what_was_overwritten_is_the_newest() {
    let mut disks = of_donors(3, &["--redundancy", "parity:2+1"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let text = plant(&path, 0);
    plant(&path, 8 * MIB);
    for round in 0..5_u8 {
        let file = File::options().write(true).open(&path).expect("a volume");
        file.write_all_at(&[round; 10_000], 500_000).and_then(|()| file.sync_all()).expect("written");
    }
    let hole = ["-p", "-o", "8388608", "-l", "1048576"];
    tools::expect_success(tools::command("fallocate").args(hole).arg(&path));
    disks.power_off();
    disks.power_on();
    assert_eq!(disks.pool.attach_fuse("v", &[]).path, path);
    let found = read(&path, 0, text.len());
    assert!(found[..500_000] == text[..500_000] && found[510_000..] == text[510_000..]);
    assert!(found[500_000..510_000].iter().all(|byte| *byte == 4));
    let hole = read(&path, 8 * MIB, MIB as usize + 700);
    assert!(
        hole[..MIB as usize].iter().all(|byte| *byte == 0) && hole[MIB as usize..] == text[MIB as usize..]
    );
    assert_eq!(Verified::run(&disks.pool, "v").code, 0);
}

#[test]
fn a_disk_that_is_lost_is_rebuilt_by_who_has_no_key() {
    let mut disks = of_donors(3, &["--redundancy", "parity:2+1"]);
    let path = disks.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, disks.pool.scratch().path(), WRITERS, SHARED_BYTES);
    writer::write_while(&mut writers, 1, || thread::sleep(Duration::from_secs(1)));
    let text = plant(&path, SHARED_BYTES);
    disks.pool.detach("v");
    disks.pool.donor("d2").kill();
    fs::remove_file(disks.path(2)).expect("the disk is gone");
    let another = format!("{}:400M", disks.place.join("another").display());
    disks.pool.donate_as("d9", &["--disk", &another, "--cache", "64M"]);
    // Nobody has it attached, so nobody has the key. Its donor is said to be gone for good.
    disks.pool.ok(["leave", "d2", "--force"]);
    wait::until("all of it to be rebuilt", LONG, || disks.pool.volume_status("v")["health"] == "whole");
    assert_eq!(Verified::run(&disks.pool, "v").code, 0);
    // All of it can be read without one of those that had it before, after another stop of all.
    disks.pool.donor("d9").kill();
    disks.pool.donate_as("d9", &["--disk", &disks.place.join("another").display().to_string()]);
    disks.pool.donor("d1").kill();
    let path = disks.pool.attach_fuse("v", &["--read-only"]).path;
    for writer in &mut writers {
        assert_eq!(writer.check(), Vec::<String>::new());
    }
    assert!(read(&path, SHARED_BYTES, text.len()) == text);
    for disk in [disks.path(1), disks.path(3), disks.place.join("another")] {
        assert!(!has(&disk, SECRET), "the planted text is on {}", disk.display());
    }
}

/// Flips a bit of the nth block on a disk that holds data.
fn flip(disk: &Path, nth: usize) {
    let file = File::options().read(true).write(true).open(disk).expect("a disk");
    let bytes = file.metadata().expect("a size").len();
    let first = Place::on(bytes).expect("a disk of ours").block(0);
    let mut block = [0; 4096];
    let mut data = (first..bytes - 4095).step_by(4096).filter(|at| {
        file.read_exact_at(&mut block, *at).expect("it is read");
        block.iter().any(|byte| *byte != 0)
    });
    let at = data.nth(nth).expect("as many blocks that hold data") + 1234;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is read");
    file.write_all_at(&[byte[0] ^ 1], at).and_then(|()| file.sync_all()).expect("a flip");
}

#[test]
fn an_image_is_loaded_and_what_rots_of_it_is_found_and_healed() {
    let mut disks = Disks::new(3, "400M");
    let image = disks.pool.scratch().join("image");
    let text: Vec<u8> = SECRET.iter().copied().cycle().take(24 * MIB as usize).collect();
    fs::write(&image, &text).expect("an image");
    let load = ["load", &image.display().to_string(), "case", "--on", "disk", "--encrypt"];
    let said = disks.pool.ok(load);
    tools::names(&said, &["verified: the donors confirmed"]);
    thread::sleep(Duration::from_secs(1));
    disks.power_off();
    // Far apart: two of one row would be more than its parity covers.
    for (number, nth) in [(1, 10), (2, 700), (3, 1500)] {
        flip(&disks.path(number), nth);
    }
    disks.power_on();
    let verified = Verified::run(&disks.pool, "case");
    assert_ne!(verified.code, 0);
    assert_eq!(verified.report["blocks_wrong"], 3, "{verified:?}");
    let path = disks.pool.attach_fuse("case", &["--read-only"]).path;
    assert_eq!(hash::of_file(&path), hash::of_file(&image));
    disks.pool.detach("case");
    wait::until("all of it is healed", LONG, || Verified::run(&disks.pool, "case").code == 0);
    for number in 1..=3 {
        assert!(!has(&disks.path(number), SECRET), "the planted text is on disk {number}");
    }
}
