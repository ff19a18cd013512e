//! Evidence: what `load` takes for a disk, what it says of what it read, and what a volume is said to hold.
//!
//! The cases that an examiner meets first: a container loaded as it stands, a load that ends half-way, an
//! image loaded over another, a source that changes while it is read, evidence that a mount changes, a disk
//! with bad sectors.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use cheetah_lab::command::Said;
use cheetah_lab::pool::{Access, Attached, Pool, State};
use cheetah_lab::process::Process;
use cheetah_lab::rivals::NbdFuse;
use cheetah_lab::tools::names;
use cheetah_lab::{hash, tools, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Two donors of this size, each on its own.
fn pool_of_two(size: &str) -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", size);
    pool.donate("two", size);
    pool
}

/// Bytes that no two blocks share, and that no run of zeros is in.
fn noise(bytes: usize, salt: u64) -> Vec<u8> {
    let mut state = salt | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut all: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| word()).collect();
    all.truncate(bytes);
    all
}

#[track_caller]
fn refused_as(pool: &Pool, file: &Path, words: &[&str]) {
    let said = pool.run(["load", &file.display().to_string(), "case"]);
    assert_eq!(said.status.code(), Some(4), "{}: {}{}", file.display(), said.out, said.err);
    names(&said.err, words);
    names(&said.err, &[&file.display().to_string(), "--raw"]);
}

#[test]
fn a_container_is_not_a_disk() {
    let pool = pool_of_two("256M");
    let disk = pool.scratch().file("disk.raw", &noise(3 << 20, 7));
    let made = |name: &str| pool.scratch().join(name);
    let convert = |format: &str, name: &str| {
        let to = made(name);
        let mut command = tools::command("qemu-img");
        command.args(["convert", "-f", "raw", "-O", format]).args([&disk, &to]);
        tools::expect_success(&mut command);
        to
    };
    let packed = |tool: &str, ending: &str| {
        tools::expect_success(tools::command(tool).args(["-k", "-f"]).arg(&disk));
        PathBuf::from(format!("{}.{ending}", disk.display()))
    };
    refused_as(&pool, &convert("qed", "d.qed"), &["QED"]);
    refused_as(&pool, &packed("gzip", "gz"), &["gzip", "gunzip"]);
    refused_as(&pool, &packed("xz", "xz"), &["xz"]);
    let logical = pool.scratch().file("case.L01", b"LVF\x09\x0d\x0a\xff\x00\x01\x01\x00\x00\x00header");
    refused_as(&pool, &logical, &["L01", "holds files and no disk"]);
    let zip = pool.scratch().file("case.aff4", b"PK\x03\x04\x14\x00\x00\x00\x00\x00container.description");
    refused_as(&pool, &zip, &["AFF4"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a refused source left a volume");

    let said = pool.ok(["load", &logical.display().to_string(), "case", "--raw"]);
    names(&said, &["verified"]);
}

/// Large enough that loading it takes some seconds, and small in memory.
/// For what moves so many bytes on a busy machine.
const LONG: std::time::Duration = std::time::Duration::from_secs(150);
const LONG_BYTES: u64 = 2560 << 20;

/// A pool with room for an image that takes long, and the image.
fn long_load() -> (Pool, PathBuf) {
    long_load_with(Access::Members, State::Memory)
}

fn long_load_with(access: Access, state: State) -> (Pool, PathBuf) {
    let mut pool = Pool::of(access, state, None);
    pool.donate("one", "2816M");
    pool.create_linear("half", &LONG_BYTES.to_string());
    let image = pool.scratch().sparse_file("long.raw", LONG_BYTES);
    let file = File::options().write(true).open(&image).expect("just made");
    for at in [0, 700 << 20, 1400 << 20, LONG_BYTES - (1 << 20)] {
        file.write_all_at(&noise(1 << 20, at + 3), at).expect("written");
    }
    (pool, image)
}

#[track_caller]
fn start_load(pool: &Pool, image: &Path, more: &[&str]) -> Process {
    let mut command = pool.command();
    command.args(["load", &image.display().to_string(), "half"]).args(more);
    Process::start("load", command, pool.scratch().path())
}

fn content(pool: &Pool, volume: &str) -> Value {
    pool.volume_status(volume)["content"].clone()
}

#[track_caller]
fn wait_until_loaded(pool: &Pool, load: &mut Process, bytes: u64) {
    wait::until("the load to be under way", wait::SOON, || {
        assert!(load.is_running(), "the load ended before that: {}", load.log());
        content(pool, "half")["load"]["bytes_done"].as_u64() > Some(bytes)
    });
}

fn attach_text(pool: &Pool, volume: &str, more: &[&str]) -> Said {
    let directory = pool.mount_directory(volume).display().to_string();
    pool.run([&["attach", volume, &directory], more].concat())
}

#[test]
fn a_load_that_is_killed_is_incomplete_and_goes_on_from_there() {
    let (mut pool, image) = long_load();
    let mut load = start_load(&pool, &image, &[]);
    wait_until_loaded(&pool, &mut load, 0);
    assert_eq!(content(&pool, "half")["state"], "loading");
    load.kill();
    wait::until("the lease to end", wait::SOON, || content(&pool, "half")["state"] == "incomplete");
    let refused = attach_text(&pool, "half", &["--read-only"]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.err);
    names(&refused.err, &["incomplete", "long.raw", "--resume", "--incomplete"]);
    names(&pool.ok(["list"]), &["INCOMPLETE"]);
    names(&pool.ok(["show", "half"]), &["incomplete", "long.raw"]);
    names(&pool.ok(["status"]), &["volume-incomplete", "--resume"]);
    assert_eq!(pool.run(["status", "-x"]).status.code(), Some(7));
    assert_eq!(pool.run(["load", &image.display().to_string(), "half"]).status.code(), Some(4));
    pool.attach_fuse("half", &["--incomplete", "--read-only"]);
    pool.detach("half");
    let other = pool.scratch().sparse_file("other.raw", LONG_BYTES).display().to_string();
    names(&pool.fails(["load", &other, "half", "--resume"]), &["another", "--overwrite"]);
    let report =
        pool.json(["load", &image.display().to_string(), "half", "--resume", "--read-back", "--writable"]);
    assert_eq!(
        (&report["verified"], &report["checked_by"]),
        (&json!(true), &json!("reading_back")),
        "{report}"
    );
    let sha256 = hash::of_file(&image);
    assert_eq!(report["volume_hashes"]["sha256"], sha256.as_str());
    let now = content(&pool, "half");
    assert_eq!((&now["state"], &now["load"]["check"]), (&json!("loaded"), &json!("same")), "{now}");
    assert_eq!(now["load"]["sha256"], sha256.as_str());
    assert_eq!(now["written"], Value::Null);
    // What a tool wrote since is not gone over.
    let path = pool.attach_fuse("half", &["--writable"]).path;
    let file = File::options().write(true).open(&path).expect("writable");
    file.write_all_at(b"not what the image has", 100).expect("written");
    drop(file);
    pool.detach("half");
    let refused = pool.run(["load", &image.display().to_string(), "half", "--resume"]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.err);
    names(&refused.err, &["was written by", "--overwrite"]);
    assert_ne!(content(&pool, "half")["written"], Value::Null);
}

/// Before it had the right to write: what it made holds nothing of the image, and is not to be taken for it.
#[test]
fn a_load_that_is_killed_before_it_begins_leaves_no_empty_volume() {
    let mut pool = pool_of_two("256M");
    let image = pool.scratch().file("disk.raw", &noise(3 << 20, 11));
    // What keeps it from beginning is that its donors are stopped: the coordinator waits for them.
    let signal =
        |pool: &mut Pool, signal| ["one", "two"].iter().for_each(|name| pool.donor(name).signal(signal));
    signal(&mut pool, Signal::STOP);
    let mut load = start_load(&pool, &image, &[]);
    load.wait_for_line("made volume half", wait::SOON);
    load.kill();
    signal(&mut pool, Signal::CONT);
    wait::until("the end of its lease", wait::SOON * 2, || content(&pool, "half")["state"] == "incomplete");
    let refused = attach_text(&pool, "half", &["--writable"]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.err);
    names(&refused.err, &["incomplete", "disk.raw", "--resume"]);
    names(&pool.ok(["list"]), &["INCOMPLETE"]);
    let report = pool.json(["load", &image.display().to_string(), "half", "--resume"]);
    let by_donors = (&report["verified"], &report["checked_by"], &report["volume_hashes"]);
    assert_eq!(by_donors, (&json!(true), &json!("donors"), &Value::Null), "{report}");
    assert_eq!(content(&pool, "half")["state"], "loaded");
}

#[test]
fn an_interrupted_load_says_what_it_leaves() {
    let (pool, image) = long_load();
    let mut load = start_load(&pool, &image, &[]);
    wait_until_loaded(&pool, &mut load, 0);
    load.signal(Signal::INT);
    assert_eq!(load.wait_for_end(wait::SOON).code(), Some(1));
    names(&load.log(), &["interrupted", "incomplete", "--resume"]);
    assert_eq!(content(&pool, "half")["state"], "incomplete", "at once: the lease was given back");
    let report =
        pool.json(["load", &image.display().to_string(), "half", "--resume", "--no-verify", "--writable"]);
    assert!(report["resumed_bytes"].as_u64() > Some(0), "{report}");
    assert_eq!((&report["verified"], &report["volume_hashes"]), (&json!(false), &Value::Null));
    // In the checking phase, which takes long enough to be met when all of it is read back.
    let mut load = start_load(&pool, &image, &["--overwrite", "--read-back"]);
    for (what, state) in [("the load anew", "loading"), ("the check", "loaded")] {
        wait::until(what, LONG, || {
            assert!(load.is_running(), "the load ended before that: {}", load.log());
            content(&pool, "half")["state"] == state
        });
    }
    load.signal(Signal::INT);
    assert_eq!(load.wait_for_end(wait::SOON).code(), Some(1));
    names(&load.log(), &["interrupted", "holds all of the file, but is not verified", "--resume"]);
    let now = content(&pool, "half");
    assert_eq!((&now["state"], &now["load"]["check"]), (&json!("loaded"), &json!("no")), "{now}");
}

/// Away for longer than a call may take: killed, and with another pool's in its place, of which donors are
/// told that it is another.
#[test]
fn a_load_whose_coordinator_is_away_at_its_end_waits_for_it() {
    away_at_its_end(Access::Plaintext, |pool| {
        pool.status()["strangers"].as_array().is_some_and(|all| !all.is_empty())
    });
}

/// The same where that other shows a certificate that nobody of this pool believes.
#[test]
fn a_load_waits_while_somebody_else_poses_as_its_coordinator() {
    away_at_its_end(Access::Members, |pool| pool.fails(["status"]).contains("do not believe each other"));
}

#[track_caller]
fn away_at_its_end(access: Access, is_turned_away: impl Fn(&Pool) -> bool) {
    let (mut pool, image) = long_load_with(access, State::Directory);
    let mut load = start_load(&pool, &image, &["--no-verify"]);
    wait_until_loaded(&pool, &mut load, 0);
    pool.kill_coordinator();
    load.wait_for_line("cannot be told so yet", LONG);
    let mut stranger = pool.start_stranger("memory");
    wait::until("the other pool's word", wait::SOON, || is_turned_away(&pool));
    // As long as it takes that everybody has asked again.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(load.is_running(), "another pool's word ended it: {}", load.log());
    assert!(stranger.terminate(wait::SOON).success());
    pool.restart_coordinator();
    assert_eq!(load.wait_for_end(wait::SOON).code(), Some(0), "{}", load.log());
    let now = content(&pool, "half");
    assert_eq!((&now["state"], &now["load"]["bytes_done"]), (&json!("loaded"), &json!(LONG_BYTES)), "{now}");
    assert_eq!(now["load"]["sha256"], hash::of_file(&image).as_str());
}

#[test]
fn a_source_that_changes_while_it_is_read_is_told() {
    let (pool, image) = long_load();
    let mut load = start_load(&pool, &image, &["--no-verify"]);
    wait_until_loaded(&pool, &mut load, 0);
    let mut file = File::options().append(true).open(&image).expect("it is there");
    file.write_all(b"more").expect("written");
    let status = load.wait_for_end(LONG);
    assert_eq!(status.code(), Some(6), "{}", load.log());
    names(&load.log(), &["changed while it was read", "2684354560 bytes and has 2684354564"]);
    let now = content(&pool, "half");
    assert!(now["load"]["changed"].as_str().is_some_and(|how| how.contains("2684354564")), "{now}");
    names(&pool.ok(["show", "half"]), &["the source changed while it was read"]);
}

#[test]
fn overwriting_leaves_nothing_of_the_old_image() {
    let mut pool = pool_of_two("512M");
    let old = pool.scratch().file("old.raw", &noise(50 << 20, 21)).display().to_string();
    let short = pool.scratch().file("short.raw", &noise(1_000_003, 23));
    pool.ok(["load", &old, "mix", "--writable"]);
    let said = pool.ok(["load", &short.display().to_string(), "mix", "--overwrite", "--writable"]);
    names(&said, &["verified"]);
    assert_eq!(pool.volume_status("mix")["size"], json!(1_000_003));
    let path = pool.attach_fuse("mix", &[]).path;
    assert_eq!(hash::of_file(&path), hash::of_file(&short));
    pool.detach("mix");
    pool.ok(["grow", "mix", "64M"]);
    let path = pool.attach_fuse("mix", &[]).path;
    let all = std::fs::read(&path).expect("readable");
    assert!(all[1_000_003..].iter().all(|byte| *byte == 0), "something of the old image is left");
    pool.detach("mix");
    // A larger one fits as well.
    names(&pool.ok(["load", &old, "mix", "--overwrite"]), &["verified"]);
    assert_eq!(pool.volume_status("mix")["size"], json!(50 << 20));
}

#[test]
fn evidence_is_read_only_unless_asked_and_says_who_wrote() {
    let mut pool = pool_of_two("256M");
    let image = pool.scratch().file("case.raw", &noise(3 << 20, 31));
    pool.ok(["load", &image.display().to_string(), "case", "--writable"]);
    let said = attach_text(&pool, "case", &[]);
    assert!(said.status.success(), "{}", said.err);
    names(&said.err, &["attached read-only", "--writable"]);
    let path = pool.mount_directory("case").join("case.raw");
    assert!(File::options().write(true).open(&path).is_err(), "evidence can be opened for writing");
    assert_eq!(hash::of_file(&path), hash::of_file(&image));
    // A writer beside the reader is told to both.
    let elsewhere = pool.scratch().directory("run-2");
    let run = |arguments: &[&str]| {
        let mut command = pool.command();
        command.args(arguments).env("XDG_RUNTIME_DIR", &elsewhere);
        let output = tools::output(&mut command);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let directory = pool.scratch().directory("mnt-2").display().to_string();
    names(&run(&["attach", "case", &directory, "--writable"]), &["read by"]);
    let log = pool.scratch().join("run/cheetah/case.log");
    wait::until("the reader to be told", wait::SOON, || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("attached for writing by"))
    });
    assert_eq!(content(&pool, "case")["written"], Value::Null, "nothing was written yet");
    let second = Path::new(&directory).join("case.raw");
    let file = File::options().write(true).open(second).expect("asked for");
    file.write_all_at(b"x", 7).expect("written");
    drop(file);
    run(&["detach", "case"]);
    pool.detach("case");
    let written = content(&pool, "case")["written"].clone();
    assert_eq!(written["certain"], true, "{written}");
    names(&pool.ok(["show", "case"]), &["was written since it was loaded", "UTC by"]);
    names(&pool.ok(["list"]), &["written since"]);
    assert_eq!(pool.json(["show", "case"])["status"]["content"], content(&pool, "case"));
    // Who is killed may have written.
    pool.ok(["load", &image.display().to_string(), "case", "--overwrite", "--writable"]);
    assert_eq!(content(&pool, "case")["written"], Value::Null);
    pool.attach_export("case", &["--writable"]);
    pool.kill_daemons();
    pool.detach("case");
    assert_eq!(content(&pool, "case")["written"]["certain"], false);
    // A volume that was made by `create` is as it was.
    pool.ok(["create", "scratch", "1M"]);
    let Attached { path, .. } = pool.attach_fuse("scratch", &[]);
    File::options().write(true).open(&path).and_then(|file| file.write_all_at(b"x", 0)).expect("writable");
    pool.detach("scratch");
    assert_eq!(content(&pool, "scratch")["state"], "written");
}

/// What attachments met is a record as well: none of it goes with the next one.
#[test]
fn the_log_of_attachments_goes_on() {
    let mut pool = pool_of_two("256M");
    pool.fails(["attach", "case", "--front", "export"]);
    let log = pool.scratch().join("run/cheetah/case.log");
    assert!(!log.exists(), "of an attachment that never was");
    pool.ok(["create", "case", "64M"]);
    let times = |event: &str| {
        let text = std::fs::read_to_string(&log).expect("a log");
        text.lines().filter(|line| line.contains(event)).count()
    };
    for turn in 1..=3 {
        pool.attach_export("case", &[]);
        pool.fails(["attach", "case", "--front", "export"]);
        pool.detach("case");
        assert_eq!((times("is attached at"), times("is detached")), (turn, turn));
    }
    pool.ok(["delete", "case"]);
    pool.fails(["attach", "case", "--front", "export"]);
    assert_eq!(times("is attached at"), 3, "it is kept");
}

/// The name of what was loaded can be told from any other, whatever is in it.
#[test]
fn names_of_files_are_recorded_so_that_they_can_be_read_back() {
    use std::os::unix::ffi::OsStrExt;
    let pool = pool_of_two("256M");
    let names_of = [
        (&b"a\nb.dd"[..], "a\\nb.dd"),
        (b"a\\nb.dd", "a\\\\nb.dd"),
        (b"disk\xff.dd", "disk\\xff.dd"),
        ("fdp.\u{202e}dd".as_bytes(), "fdp.\\u{202e}dd"),
    ];
    for (turn, (name, form)) in names_of.into_iter().enumerate() {
        let file = pool.scratch().join(OsStr::from_bytes(name));
        std::fs::write(&file, noise(8192, 71)).expect("written");
        let volume = format!("case{turn}");
        let report =
            pool.ok([OsStr::new("load"), file.as_os_str(), OsStr::new(&volume), OsStr::new("--json")]);
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let source = content(&pool, &volume)["load"]["source"]["name"].clone();
        for said in [&report["file"], &source] {
            assert!(said.as_str().is_some_and(|said| said.ends_with(&format!("/{form}"))), "{said}: {form}");
        }
        names(&pool.ok(["show", &volume]), &[form]);
    }
}

/// A file system that was not unmounted: mounting it, read-only or not, writes its journal back where the
/// device lets it.
#[test]
fn a_mount_of_a_dirty_file_system_changes_nothing_unless_asked() {
    tools::need_root("loop devices and mounts");
    let mut pool = pool_of_two("256M");
    let image = pool.scratch().sparse_file("clean.dd", 32 << 20);
    tools::run("mkfs.ext4", [OsStr::new("-q"), image.as_os_str()]);
    let point = pool.scratch().directory("point");
    let mount = |options: &str, what: &Path| {
        let mut command = tools::command("mount");
        command.args(["-o", options]).args([what, &point]);
        tools::output(&mut command).status.success()
    };
    let unmount = || tools::run("umount", [&point]);
    assert!(mount("loop", &image), "cannot be mounted");
    std::fs::write(point.join("evidence"), noise(1 << 16, 51)).expect("written");
    rustix::fs::sync();
    let dirty = pool.scratch().join("dirty.dd");
    std::fs::copy(&image, &dirty).expect("a copy of what is mounted");
    unmount();
    pool.ok(["load", &dirty.display().to_string(), "case", "--writable"]);
    let before = hash::of_file(&dirty);

    let device = pool.attach_loop("case", &[]).path;
    assert!(!mount("ro", &device), "its journal cannot be replayed on a device that is read-only");
    assert!(mount("ro,noload", &device), "without its journal it can be looked at");
    unmount();
    pool.detach("case");
    let path = pool.attach_fuse("case", &[]).path;
    assert_eq!(hash::of_file(&path), before);
    pool.detach("case");
    assert_eq!(content(&pool, "case")["written"], Value::Null);

    let device = pool.attach_loop("case", &["--writable"]).path;
    assert!(mount("ro", &device), "the journal is replayed");
    unmount();
    pool.detach("case");
    assert_eq!(content(&pool, "case")["written"]["certain"], true);
    names(&pool.ok(["list"]), &["written since"]);
    assert_ne!(hash::of_file(&pool.attach_fuse("case", &[]).path), before, "nothing was to replay");
    pool.detach("case");
}

/// An image with holes: they take nothing in the pool, and the file shows that, also one that was attached
/// anew.
#[test]
fn a_sparse_image_takes_what_it_holds_and_writes_move_its_time() {
    let mut pool = pool_of_two("256M");
    let image = pool.scratch().sparse_file("sparse.dd", 200 << 20);
    let file = File::options().write(true).open(&image).expect("just made");
    file.write_all_at(&noise(8192, 61), 96 << 20).expect("written");
    pool.ok(["load", &image.display().to_string(), "case", "--writable"]);
    let used = |status: Value| {
        let donors = status["donors"].as_array().cloned().unwrap_or_default();
        donors.iter().filter_map(|donor| donor["bytes_used"].as_u64()).sum::<u64>()
    };
    wait::until("two copies of 8 KiB", wait::SOON, || used(pool.status()) == 2 * 8192);
    for more in [&[][..], &["--writable"]] {
        let path = pool.attach_fuse("case", more).path;
        let stat = || std::fs::metadata(&path).expect("its attributes");
        wait::until("16 sectors", wait::SOON, || stat().blocks() == 16);
        assert_eq!(stat().len(), 200 << 20);
        let attached = stat().modified().expect("a time");
        if let Ok(file) = File::options().write(true).open(&path) {
            file.write_all_at(&[7; 4096], 0).expect("written");
            file.sync_all().expect("synced");
            assert!(stat().modified().expect("a time") > attached, "its time stands still");
            wait::until("24 sectors", wait::SOON, || stat().blocks() == 24);
        } else {
            assert_eq!(more.len(), 0, "it was asked for");
        }
        pool.detach("case");
    }
}

/// An error that the medium answers with one sector, and all around it can be read.
#[test]
fn bad_sectors_are_passed_over_and_told() {
    let mut pool = pool_of_two("256M");
    let bytes = noise((4 << 20) + 1536, 41);
    let image = pool.scratch().file("disk.raw", &bytes);
    let (bad, sector) = (1_052_672_u64, 512_u64);
    let pread = format!(
        "pread=if [ $4 -lt {} ] && [ $(($4 + $3)) -gt {bad} ]; then echo EIO bad sector >&2; exit 1; fi; \
         dd if={} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
        bad + sector,
        image.display()
    );
    let size = format!("get_size=echo {}", bytes.len());
    let medium = NbdFuse::of_nbdkit(&["eval", &size, &pread]);
    let said = pool.run(["load", &medium.path.display().to_string(), "disk", "--writable"]);
    assert_eq!(said.status.code(), Some(6), "{}{}", said.out, said.err);
    names(&said.out, &["unreadable      512 bytes from 1052672 on", "zeros stand in the hashes"]);
    names(&said.err, &["512 B of", "could not be read", "EIO"]);
    drop(medium);
    let mut zeroed = bytes.clone();
    zeroed[1_052_672..1_053_184].fill(0);
    let expected = hash::of_reader(&zeroed[..]).expect("a slice reads");
    let detail = pool.json(["show", "disk"]);
    assert_eq!(detail["status"]["content"]["load"]["sha256"], expected.as_str());
    assert_eq!(
        (&detail["lost"], &detail["status"]["bytes_lost"]),
        (&json!([]), &json!(0)),
        "no donor lost it"
    );
    assert_eq!(detail["unreadable"][0]["offset"], bad);
    names(
        &pool.ok(["show", "disk"]),
        &["unreadable  512 bytes from 1052672 on: the source could not be read there"],
    );
    let uri = pool.attach_export_unix("disk", &[]).uri;
    let read = |offset: u64, len: u64| {
        let script = format!("import sys; sys.stdout.buffer.write(h.pread({len}, {offset}))");
        // Debian's interpreter, which has libnbd's module.
        let mut command = tools::command("env");
        command.args(["/usr/bin/python3", "-m", "nbd", "-u", &uri, "-c", &script]);
        let output = tools::output(&mut command);
        (output.status.success(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (good, _, why) = read(bad + 100, 4);
    assert!(!good && why.contains("Input/output error"), "{why}");
    assert!(!read(bad - 4096, 1 << 16).0, "a read across it");
    let (at, end) = (1_052_672, 1_053_184);
    assert_eq!(read(bad - 4096, 4096).1, bytes[at - 4096..at], "what is before it");
    assert_eq!(read(bad + sector, 8192).1, bytes[end..end + 8192], "what is behind it");
    pool.detach("disk");
    let path = pool.attach_fuse("disk", &[]).path;
    let file = File::open(&path).expect("readable");
    let mut room = [0; 16];
    assert_eq!(file.read_at(&mut room, bad).expect_err("EIO").raw_os_error(), Some(5));
    assert!(file.read_exact_at(&mut room, bad + 8192).is_ok());
    drop(file);
    pool.detach("disk");
    // What is written there is known from then on.
    let path = pool.attach_fuse("disk", &["--writable"]).path;
    let file = File::options().read(true).write(true).open(&path).expect("asked for");
    file.write_all_at(&[5; 8192], bad - 4096).expect("written");
    file.sync_all().expect("synced");
    file.read_exact_at(&mut room, bad).expect("readable now");
    drop(file);
    pool.detach("disk");
    assert_eq!(pool.json(["show", "disk"])["unreadable"], json!([]));
}

#[test]
fn a_load_that_fails_early_leaves_nothing() {
    let pool = pool_of_two("128M");
    let fifo = pool.scratch().join("fifo").display().to_string();
    tools::run("mkfifo", [&fifo]);
    names(&pool.fails(["load", &fifo, "case"]), &["neither a file nor a block device"]);
    let link = pool.scratch().join("link");
    symlink(&fifo, &link).expect("a link");
    let directory = pool.scratch().path().display().to_string();
    for source in [&fifo, &link.display().to_string(), &directory, "/dev/zero", "/dev/tty"] {
        for more in ["--overwrite", "--resume", "--raw"] {
            let said = pool.fails(["load", source, "case", more]);
            names(&said, &[source, "neither a file nor a block device"]);
        }
    }
    let large = pool.scratch().sparse_file("large.raw", 1 << 30).display().to_string();
    assert_eq!(pool.run(["load", &large, "case"]).status.code(), Some(5));
    let absent = pool.run(["load", &large, "case", "--resume"]);
    assert_eq!(absent.status.code(), Some(4), "there is nothing to go on with: {}", absent.err);
    assert_eq!(pool.status()["volumes"], json!([]), "a load that failed left a volume");
    // One that was there is as it was, and free.
    pool.create_linear("made", "1M");
    let image = pool.scratch().file("image", &noise(4096, 71)).display().to_string();
    for (source, more) in
        [(&fifo, "--overwrite"), (&large, "--overwrite"), (&large, "--no-verify"), (&image, "--resume")]
    {
        pool.fails(["load", source, "made", more]);
        let made = pool.volume_status("made");
        assert_eq!(
            (&made["attachments"], &made["content"]["state"]),
            (&json!([]), &json!("fresh")),
            "{more}: {made}"
        );
        assert_eq!(made["size"], json!(1 << 20));
    }
    names(&pool.ok(["load", &image, "made"]), &["verified"]);
}
