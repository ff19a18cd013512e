//! Overlays of encrypted volumes: what tools write over evidence is ciphertext on donors as well, the
//! evidence stays what it was, and one key opens both.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::member::another;
use cheetah_lab::mounted::Mounted;
use cheetah_lab::peek::{SECRET, memory_has};
use cheetah_lab::pool::{Attached, Pool};
use cheetah_lab::{tools, wait};
use serde_json::json;

const MIB: u64 = 1 << 20;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(120);

fn pool_of(donors: usize) -> Pool {
    tools::need_root("loop devices, and to look into another process's memory");
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "512M");
    }
    pool
}

fn b3sum(file: &Path) -> String {
    tools::expect_success(tools::command("b3sum").arg("--no-names").arg(file)).trim().to_owned()
}

#[track_caller]
fn load(pool: &Pool, file: &Path, more: &[&str]) {
    let file = file.display().to_string();
    tools::names(&pool.ok([&["load", &file, "case", "--encrypt"], more].concat()), &["sealed: "]);
}

#[track_caller]
fn is_nowhere(pool: &Pool) {
    for pid in pool.donor_pids().into_iter().filter(|pid| Path::new(&format!("/proc/{pid}/maps")).exists()) {
        assert!(!memory_has(pid, SECRET), "donor {pid} has the planted text");
    }
}

/// What lies under it reads as it was loaded.
#[track_caller]
fn is_untouched(pool: &mut Pool, image: &Path) {
    let under = pool.attach_fuse("case", &[]);
    assert_eq!(b3sum(&under.path), b3sum(image), "the evidence changed");
    pool.detach("case");
    tools::names(&pool.ok(["verify", "case"]), &["fit the seal"]);
}

/// Made in a moment, and used by nobody.
fn lay_over(pool: &mut Pool) {
    pool.ok(["attach", "case", "--front", "export", "--overlay"]);
    pool.ok(["detach", "case-overlay"]);
    assert_eq!(pool.volume_status("case-overlay")["encrypted"], json!(true));
}

#[test]
fn ext4_is_mounted_for_writing_over_evidence_and_donors_have_no_word_of_it() {
    let mut pool = pool_of(2);
    let image = pool.scratch().join("disk.raw");
    fs::File::create(&image).and_then(|file| file.set_len(96 * MIB)).expect("a disk");
    tools::expect_success(tools::command("mkfs.ext4").arg("-q").arg(&image));
    load(&pool, &image, &[]);
    lay_over(&mut pool);
    let point = pool.scratch().directory("point");
    let text: Vec<u8> = SECRET.iter().copied().cycle().take(3_000_000).collect();
    for (file, is_first) in [("one", true), ("two", false)] {
        let device = pool.attach_loop("case-overlay", &[]).path;
        let mounted = Mounted::new(&[], &device, &point);
        assert!(is_first || fs::read(point.join("one")).expect("it was written") == text);
        fs::write(point.join(file), &text).expect("a file more");
        mounted.unmount();
        tools::run("e2fsck", ["-f", "-n", &device.display().to_string()]);
        pool.detach("case-overlay");
        is_nowhere(&pool);
    }
    let diff = pool.json(["diff", "case-overlay"]);
    assert!(diff["bytes_changed"].as_u64().is_some_and(|bytes| bytes > 6_000_000), "{diff}");
    is_untouched(&mut pool, &image);
    // The search of this test finds what is there.
    pool.create_linear("plain", &MIB.to_string());
    let plain = pool.attach_fuse("plain", &[]).path;
    let file = fs::File::options().write(true).open(&plain).expect("the volume");
    file.write_all_at(SECRET, 0).expect("a write");
    assert!(pool.donor_pids().into_iter().any(|pid| memory_has(pid, SECRET)));
}

fn image(pool: &Pool, bytes: usize) -> (PathBuf, Vec<u8>) {
    let mut dice = Dice::new(38);
    let bytes: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).take(bytes).collect();
    (pool.scratch().file("disk.raw", &bytes), bytes)
}

/// Writes of all lengths anywhere, beside a copy of what has to come of them.
fn scribble(attached: &Attached, seen: &mut [u8], seed: u64) {
    let file = fs::File::options().write(true).open(&attached.path).expect("the view");
    let mut dice = Dice::new(seed);
    for _ in 0..200 {
        let len = usize::try_from(dice.below(40_000) + 1).expect("small");
        let at = usize::try_from(dice.below((seen.len() - len) as u64)).expect("small");
        let bytes: Vec<u8> = SECRET.iter().copied().cycle().take(len).collect();
        file.write_all_at(&bytes, at as u64).expect("there is room");
        seen[at..at + len].copy_from_slice(&bytes);
    }
    let end = seen.len() - 700;
    file.write_all_at(&[0xEE; 700], end as u64).expect("its last bytes");
    seen[end..].fill(0xEE);
    file.sync_all().expect("on its donors");
}

#[test]
fn whoever_has_the_key_of_the_base_goes_on_with_what_was_written_over_it() {
    let mut pool = pool_of(3);
    // Its last block is not whole; what is written is more than the overlay begins with.
    let (file, mut seen) = image(&pool, (90 << 20) + 1536);
    load(&pool, &file, &[]);
    lay_over(&mut pool);
    for seed in 1..4 {
        let attached = pool.attach_fuse("case-overlay", &[]);
        scribble(&attached, &mut seen, seed);
        let big = vec![seed as u8; 30 << 20];
        let whole = fs::File::options().write(true).open(&attached.path).expect("the view");
        let at = (seed as usize - 1) * (30 << 20);
        whole.write_all_at(&big, at as u64).expect("the overlay grows");
        seen[at..at + big.len()].copy_from_slice(&big);
        drop(whole);
        assert!(fs::read(&attached.path).expect("the view") == seen, "through the mount that wrote");
        pool.detach("case-overlay");
        let attached = pool.attach_fuse("case-overlay", &[]);
        assert!(fs::read(&attached.path).expect("the view") == seen, "by the next who attached it");
        pool.detach("case-overlay");
    }
    is_nowhere(&pool);
    is_untouched(&mut pool, &file);

    // Another member needs one grant, of the base, and is told which.
    let invitation = pool.ok(["token", "new", "--role", "client"]);
    tools::expect_success(&mut another(&pool, &["join", invitation.trim()]));
    let out = pool.scratch().join("out.dd");
    let name = out.display().to_string();
    let save = ["save", "case-overlay", &name, "--pool", pool.url()];
    let says = ["'case' is encrypted", "cheetah grant case MEMBER"];
    tools::names(&tools::expect_failure(&mut another(&pool, &save)), &says);
    let more = ["attach", "case", "--front", "export", "--overlay", "mine", "--pool", pool.url()];
    tools::names(&tools::expect_failure(&mut another(&pool, &more)), &says);
    let members = pool.json(["member", "list"]);
    let members = members["members"].as_array().expect("members").clone();
    let client = members.iter().find(|member| member["role"] == "client").expect("one");
    let client = client["member"].as_str().expect("an identity").to_owned();
    tools::names(
        &pool.fails(["grant", "case-overlay", &client]),
        &["overlay of 'case'", "cheetah grant case"],
    );
    pool.ok(["grant", "case", &client]);
    tools::expect_success(&mut another(&pool, &save));
    assert!(fs::read(&out).expect("a copy") == seen, "what tools see is saved");

    // A donor of both goes, and others rebuild what it had, without a key.
    pool.ok(["verify", "case-overlay"]);
    pool.donate("spare", "512M");
    pool.donor("d1").kill();
    wait::until("all to be rebuilt", LONG, || {
        ["case", "case-overlay"].iter().all(|name| pool.volume_status(name)["health"] == "whole")
    });
    let attached = pool.attach_fuse("case-overlay", &["--read-only"]);
    assert!(fs::read(&attached.path).expect("the view") == seen, "after a donor's end");
    pool.detach("case-overlay");
    is_untouched(&mut pool, &file);
    is_nowhere(&pool);
}

#[test]
fn with_its_key_in_a_file_a_volume_and_its_overlay_are_opened_by_that() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "256M");
    let key = |name: &str, byte: &str| {
        let path = pool.scratch().join(name);
        fs::write(&path, byte.repeat(32)).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path.display().to_string()
    };
    let (own, other) = (key("own", "07"), key("other", "08"));
    let (file, mut seen) = image(&pool, (5 << 20) + 700);
    load(&pool, &file, &["--key-file", &own]);
    let attach = ["attach", "case", "--front", "export", "--overlay", "over"];
    tools::names(&pool.fails(attach), &["'case' is encrypted", "--key-file"]);
    let with = |key: &str| [&attach[..], &["--key-file", key]].concat().join(" ");
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    tools::names(&pool.fails(words(&with(&other))), &["is not that of volume 'case'"]);
    pool.ok(words(&with(&own)));
    pool.ok(["detach", "over"]);
    let attached = pool.attach_fuse("over", &["--key-file", &own]);
    scribble(&attached, &mut seen, 5);
    pool.detach("over");
    let out = pool.scratch().join("out.dd");
    let name = out.display().to_string();
    tools::names(
        &pool.fails(["save", "over", &name, "--key-file", &other]),
        &["is not that of volume 'case'"],
    );
    pool.ok(["save", "over", &name, "--key-file", &own]);
    assert!(fs::read(&out).expect("a copy") == seen);
    // What is not encrypted has no such overlay.
    let plain = file.display().to_string();
    pool.ok(["load", &plain, "plain"]);
    pool.ok(["attach", "plain", "--front", "export", "--overlay"]);
    assert_ne!(pool.volume_status("plain-overlay")["encrypted"], json!(true));
    pool.ok(["detach", "plain-overlay"]);
}

/// What its source has yet to give is read through the overlay, and what is written is not filled over.
#[test]
fn evidence_that_is_still_filled_is_written_over() {
    let mut pool = pool_of(2);
    let (file, mut seen) = image(&pool, 40 << 20);
    pool.ok(["open", &file.display().to_string(), "case", "--encrypt", "--rate", "1M"]);
    lay_over(&mut pool);
    let attached = pool.attach_fuse("case-overlay", &[]);
    scribble(&attached, &mut seen, 3);
    assert!(fs::read(&attached.path).expect("the view") == seen);
    pool.ok(["fill", "case", "--rate", "0"]);
    wait::until("all of it to be here", LONG, || pool.volume_status("case")["content"]["state"] == "loaded");
    assert!(fs::read(&attached.path).expect("the view") == seen, "when all is here");
    pool.detach("case-overlay");
    is_nowhere(&pool);
}
