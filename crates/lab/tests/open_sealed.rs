//! Volumes that are opened from a source are sealed when all of it is here, as loaded ones are: by who fills
//! them, while tools read on, and once, whoever is killed meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::flip::Memory;
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::rivals::NbdFuse;
use cheetah_lab::verified::Verified;
use cheetah_lab::{hash, tools, wait};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const EIO: i32 = 5;
/// Slow enough for a test to act meanwhile.
const SLOW: &str = "2M";

fn first_word(program: &str, file: &Path) -> String {
    let said = tools::expect_success(tools::command(program).arg(file));
    said.split_whitespace().next().expect("a hash").to_owned()
}

fn pool_of(donors: usize) -> Pool {
    tools::need_root("to look into another process's memory");
    let mut pool = Pool::of(Access::Members, State::Directory, None);
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "192M");
    }
    pool
}

/// No block of it is like another but in a hole, and the last one is not whole.
fn disk(pool: &Pool, mib: usize) -> (PathBuf, Vec<u8>) {
    let mut dice = Dice::new(12);
    let len = mib * MIB + 512;
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).take(len).collect();
    bytes[2 * MIB..3 * MIB].fill(0);
    (pool.scratch().file("disk.raw", &bytes), bytes)
}

fn content(pool: &Pool) -> Value {
    pool.volume_status("case")["content"].clone()
}

#[track_caller]
fn open(pool: &Pool, source: &Path, more: &[&str]) -> Value {
    pool.json([&["open", &source.display().to_string(), "case"][..], more].concat())
}

/// What is sealed is here as a whole, whenever one looks.
#[track_caller]
fn wait_until_sealed(pool: &Pool) -> Value {
    let content = wait::for_some("it is sealed", LONG, || {
        let content = content(pool);
        let is_loaded = content["state"] == "loaded";
        assert!(!is_loaded || content["load"]["unsealed"].is_null(), "{content}");
        assert_eq!(is_loaded, !content["sealed"].is_null(), "both, or none: {content}");
        is_loaded.then_some(content)
    });
    content["sealed"].clone()
}

#[track_caller]
fn wait_until_loaded(pool: &Pool) -> Value {
    wait::for_some("all of it is here", LONG, || Some(content(pool)).filter(|is| is["state"] == "loaded"))
}

fn events(pool: &Pool) -> Vec<Value> {
    pool.json(["log", "case"])["entries"].as_array().expect("entries").clone()
}

fn count(pool: &Pool, event: &str) -> usize {
    events(pool).iter().filter(|entry| entry["event"] == event).count()
}

fn log(pool: &Pool) -> String {
    fs::read_to_string(pool.scratch().join("run/cheetah/fill/case.log")).unwrap_or_default()
}

/// Without what the kernel keeps of it.
fn read(file: &Path, at: usize, len: usize) -> std::io::Result<Vec<u8>> {
    let file = File::open(file).expect("the volume's file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at as u64).map(|()| bytes)
}

/// It reads as the disk, is as it was sealed, and says so.
#[track_caller]
fn is_right(pool: &mut Pool, sha256: &str) {
    let verified = Verified::run(pool, "case");
    assert_eq!((verified.code, &verified.report["right"]), (0, &json!(true)), "{}", verified.report);
    assert_eq!(verified.report["proved"]["errors"], json!([]), "{}", verified.report);
    let path = pool.attach_fuse("case", &[]).path;
    assert_eq!(hash::of_file(path), sha256);
    pool.detach("case");
    assert_eq!(count(pool, "sealed"), 1, "once");
}

fn record(pool: &Pool) -> PathBuf {
    pool.scratch().join("run/cheetah/fill/case.json")
}

/// Who filled it has ended, and its lease.
#[track_caller]
fn wait_until_gone(pool: &Pool) {
    wait::until("who filled it to be gone", LONG, || !record(pool).exists());
}

fn kill_filler(pool: &Pool) -> bool {
    let record = fs::read(record(pool)).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let pid = record.and_then(|record| record["pid"].as_u64());
    let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
    pid.is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok())
}

/// A block that its donor changed, with its checksum: whoever reads it finds that.
#[track_caller]
fn a_lie_is_found(pool: &Pool, path: &Path, bytes: &[u8], seed: u64) {
    let memory = Memory::of(pool.pid_of(&pool.holders("case", 0)[0]));
    // What lies behind is proofs, and what was encrypted cannot be told apart.
    let is_meant = |at: u64| (8 * MIB as u64..16 * MIB as u64).contains(&(at % (64 << 20)));
    let flips = memory.flip(&mut Dice::new(seed), 1, |at, _| is_meant(at));
    flips.iter().for_each(|flip| memory.forge(flip));
    let errors = || {
        let blocks = (0..bytes.len()).step_by(BLOCK).skip(8 * MIB / BLOCK).take(8 * MIB / BLOCK);
        let is_error = |at: &usize| match read(path, *at, BLOCK) {
            Ok(found) => {
                assert!(found == bytes[*at..at + BLOCK], "other bytes than the disk's at {at}");
                false
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "at {at}");
                true
            }
        };
        blocks.filter(is_error).count()
    };
    // What was read ahead before counts for a second.
    wait::until("the lie to be found", LONG, || errors() == 1);
    let said = pool.run(["verify", "case"]);
    assert_eq!(said.status.code(), Some(6), "{}{}", said.out, said.err);
    tools::names(&said.out, &["FORGED"]);
    flips.iter().for_each(|flip| memory.restore(flip));
    wait::until("what it was to be read", LONG, || errors() == 0);
}

fn opens_and_seals(more: &[&str], as_e01: bool) {
    let mut pool = pool_of(2);
    let (raw, bytes) = disk(&pool, 24);
    let sha256 = hash::of_file(&raw);
    let source = match as_e01 {
        true => {
            let target = raw.with_extension("");
            let mut acquire = tools::command("ewfacquire");
            tools::expect_success(acquire.args(["-u", "-q", "-t"]).arg(&target).arg(&raw));
            target.with_extension("E01")
        }
        false => {
            pool.scratch().file("disk.raw.sha256", format!("{sha256}  disk.raw\n").as_bytes());
            raw.clone()
        }
    };
    let opened = open(&pool, &source, &[&["--rate", SLOW], more].concat());
    assert_eq!((&opened["seals"], &opened["notes"]), (&json!(true), &json!([])), "{opened}");
    let path = pool.attach_fuse("case", &["--read-only"]).path;
    assert_eq!(read(&path, 20 * MIB, BLOCK).expect("it is fetched"), bytes[20 * MIB..][..BLOCK]);
    assert_eq!(content(&pool)["sealed"], Value::Null, "most is not here");
    pool.ok(["fill", "case", "--rate", "0"]);
    let sealed = wait_until_sealed(&pool);
    let b3sum = first_word("b3sum", &raw);
    let blake3 = if more.is_empty() { &sealed["root"] } else { &sealed["contents"] };
    assert_eq!((blake3, &sealed["sha256"]), (&json!(b3sum), &json!(sha256)), "{sealed}");
    assert_eq!(sealed["by_reading"], false, "nothing was read for it again");
    // Who reads it since before reads on, and checks from now on.
    assert_eq!(hash::of_file(&path), sha256, "while and after it is sealed");
    a_lie_is_found(&pool, &path, &bytes, 3);
    pool.detach("case");
    let path = pool.attach_fuse("case", &[]).path;
    assert_eq!(hash::of_file(&path), sha256);
    a_lie_is_found(&pool, &path, &bytes, 4);
    pool.detach("case");
    let entries = events(&pool);
    let entry = entries.iter().find(|entry| entry["event"] == "sealed").expect("it is put down");
    assert_eq!((&entry["blake3"], &entry["holder"]), (&json!(b3sum), &sealed["by"]), "{entry}");
    tools::names(&pool.ok(["list"]), &["loaded, verified, sealed"]);
    wait_until_gone(&pool);
    tools::names(&pool.fails(["seal", "case"]), &["never changed"]);
    tools::names(&pool.fails(["fill", "case", "--resume"]), &["nothing left to fill"]);
    tools::names(&pool.fails(["open", &source.display().to_string(), "case"]), &["holds all of its source"]);
    is_right(&mut pool, &sha256);
    pool.ok(["delete", "case"]);
}

#[test]
fn a_raw_disk_is_sealed_when_all_of_it_is_here() {
    opens_and_seals(&[], false);
}

#[test]
fn the_disk_in_an_image_is_sealed_when_all_of_it_is_here() {
    opens_and_seals(&[], true);
}

#[test]
fn an_encrypted_volume_is_sealed_when_all_of_it_is_here() {
    opens_and_seals(&["--encrypt"], false);
}

#[test]
fn what_is_to_be_written_later_is_not_sealed() {
    let mut pool = pool_of(1);
    let (raw, _) = disk(&pool, 4);
    let name = raw.display().to_string();
    tools::names(
        &pool.ok(["open", &name, "case", "--writable", "--rate", "64K"]),
        &["it is not sealed when"],
    );
    pool.ok(["fill", "case", "--stop"]);
    // Who goes on does so as it was said.
    pool.ok(["fill", "case", "--resume", "--rate", "0"]);
    let content = wait_until_loaded(&pool);
    assert_eq!((&content["sealed"], &content["load"]["unsealed"]), (&Value::Null, &Value::Null), "{content}");
    wait_until_gone(&pool);
    let path = pool.attach_fuse("case", &["--writable"]).path;
    File::options().write(true).open(&path).and_then(|file| file.write_all_at(b"x", 0)).expect("a write");
    pool.detach("case");
    tools::names(&pool.ok(["seal", "case"]), &["sealed 4"]);
    assert_eq!(pool.json(["open", &name, "other"])["seals"], true);
}

/// It is another disk than it was said to be: that is told, and it is sealed by hand alone.
#[test]
fn what_is_not_what_it_was_said_to_be_is_not_sealed_and_says_why() {
    let mut pool = pool_of(1);
    let (raw, _) = disk(&pool, 4);
    let wrong = format!("{}  disk.raw\n", "0".repeat(64));
    pool.scratch().file("disk.raw.sha256", wrong.as_bytes());
    open(&pool, &raw, &[]);
    let content = wait_until_loaded(&pool);
    assert_eq!(content["sealed"], Value::Null);
    let why = "does not have the SHA-256 that ";
    tools::names(content["load"]["unsealed"].as_str().expect("why"), &[why, "disk.raw.sha256 expects"]);
    tools::names(&pool.ok(["show", "case"]), &["it was to be sealed, and is NOT", why]);
    tools::names(&pool.ok(["list"]), &["loaded, verified, NOT SEALED"]);
    tools::names(&pool.ok(["log", "case"]), &["NOT sealed, as it was to be: ", why]);
    wait_until_gone(&pool);
    pool.ok(["seal", "case"]);
    let content = self::content(&pool);
    assert_eq!(
        (content["sealed"].is_null(), &content["load"]["unsealed"]),
        (false, &Value::Null),
        "{content}"
    );
    is_right(&mut pool, &hash::of_file(&raw));
}

/// An error that the medium answers with one sector makes its whole block one, and zeros stand in the hashes
/// for all of it: nobody is given any of that.
#[test]
fn bad_sectors_are_sealed_as_unreadable() {
    for more in [&[][..], &["--encrypt"]] {
        let mut pool = pool_of(2);
        let (raw, mut bytes) = disk(&pool, 12);
        let (bad, worse) = (1_052_672 + 512, 5 * MIB);
        let reaches =
            |from: usize, end: usize| format!("{{ [ $4 -lt {end} ] && [ $(($4 + $3)) -gt {from} ]; }}");
        let pread = format!(
            "pread=if {} || {}; then echo EIO bad sector >&2; exit 1; fi; \
             dd if={} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
            reaches(bad, bad + 512),
            reaches(worse, worse + BLOCK),
            raw.display()
        );
        let size = format!("get_size=echo {}", bytes.len());
        let medium = NbdFuse::of_nbdkit(&["eval", &size, &pread]);
        let block = bad / BLOCK * BLOCK;
        for at in [block, worse] {
            bytes[at..at + BLOCK].fill(0);
        }
        let zeroed = pool.scratch().file("zeroed.dd", &bytes);
        open(&pool, &medium.path, more);
        let sealed = wait_until_sealed(&pool);
        let blake3 = if more.is_empty() { &sealed["root"] } else { &sealed["contents"] };
        assert_eq!(
            (blake3, sealed["by_reading"].as_bool()),
            (&json!(first_word("b3sum", &zeroed)), Some(false))
        );
        assert_eq!(content(&pool)["load"]["unreadable"].as_array().map(Vec::len), Some(2));
        let verified = Verified::run(&pool, "case").report["proved"].clone();
        assert_eq!((&verified["errors"], &verified["bytes_unreadable"]), (&json!([]), &json!(2 * BLOCK)));
        let path = pool.attach_fuse("case", &[]).path;
        for (nth, want) in bytes.chunks(BLOCK).enumerate().take(6 * MIB / BLOCK) {
            match read(&path, nth * BLOCK, BLOCK) {
                Ok(found) => assert!(found == want && ![block, worse].contains(&(nth * BLOCK)), "{nth}"),
                Err(_) => assert!([block, worse].contains(&(nth * BLOCK)), "block {nth} cannot be read"),
            }
        }
        pool.detach("case");
        // What is written out has the hash that was loaded.
        let out = pool.scratch().join("out.dd");
        let said = pool.run(["save", "case", &out.display().to_string()]);
        assert_eq!(said.status.code(), Some(6), "what is lost is told: {}{}", said.out, said.err);
        assert!(fs::read(&out).expect("it is saved") == bytes);

        // By hand it comes to the same.
        wait_until_gone(&pool);
        pool.ok(["delete", "case"]);
        open(&pool, &medium.path, &[&["--writable"], more].concat());
        wait_until_loaded(&pool);
        wait_until_gone(&pool);
        pool.ok(["seal", "case"]);
        let by_hand = content(&pool)["sealed"].clone();
        let other = if more.is_empty() { &by_hand["root"] } else { &by_hand["contents"] };
        assert_eq!((other, &by_hand["by_reading"]), (blake3, &json!(true)));
    }
}

/// Each is killed at some moment of filling, proving and sealing.
#[test]
fn whoever_is_killed_meanwhile_it_is_sealed_in_the_end_and_once() {
    let mut dice = Dice::new(5);
    for round in 0..6 {
        let mut pool = pool_of(2);
        let (raw, _) = disk(&pool, 24);
        let more: &[&str] = if round % 4 < 2 { &[] } else { &["--encrypt"] };
        open(&pool, &raw, more);
        std::thread::sleep(Duration::from_millis(dice.below(2500)));
        if round % 2 == 0 {
            kill_filler(&pool);
            wait::until("another to go on", LONG, || {
                !content(&pool)["sealed"].is_null() || pool.run(["fill", "case", "--resume"]).status.success()
            });
        } else {
            pool.kill_coordinator();
            std::thread::sleep(Duration::from_millis(dice.below(1500)));
            pool.restart_coordinator();
        }
        wait_until_sealed(&pool);
        is_right(&mut pool, &hash::of_file(&raw));
    }
}

/// What was proved as it lay on a donor comes from the source again, and is encrypted anew.
#[test]
fn what_a_donor_takes_with_it_is_proved_again() {
    for more in [&[][..], &["--encrypt"]] {
        let mut pool = pool_of(3);
        let (raw, bytes) = disk(&pool, 24);
        open(&pool, &raw, &[&["--rate", "8M"], more].concat());
        wait::until("some is here", LONG, || content(&pool)["load"]["bytes_done"].as_u64() > Some(8 << 20));
        pool.ok(["fill", "case", "--pause"]);
        let holder = pool.holders("case", 0)[0].clone();
        pool.donor(&holder).kill();
        let path = pool.attach_fuse("case", &["--read-only"]).path;
        assert_eq!(read(&path, MIB, MIB).expect("it is fetched again"), bytes[MIB..][..MIB]);
        pool.ok(["fill", "case", "--resume", "--rate", "0"]);
        wait_until_sealed(&pool);
        pool.detach("case");
        is_right(&mut pool, &hash::of_file(&raw));
    }
}

/// A disk of which the first and the last bytes of each MiB are data.
fn sparse(pool: &Pool, mib: u64) -> PathBuf {
    let path = pool.scratch().sparse_file("disk.raw", mib << 20);
    let file = File::options().write(true).open(&path).expect("it was made");
    for at in 0..mib {
        file.write_all_at(&(at + 1).to_le_bytes(), at << 20).expect("a write");
    }
    path
}

#[test]
fn proofs_that_went_with_a_donor_are_made_again() {
    tools::need_root("to look into another process's memory");
    let mut pool = Pool::start();
    pool.donate("data", "320M");
    let raw = sparse(&pool, 320);
    open(&pool, &raw, &["--writable", "--rate", SLOW]);
    pool.ok(["fill", "case", "--stop"]);
    pool.donate("proofs", "64M");
    let opened = open(&pool, &raw, &["--rate", "16M"]);
    assert_eq!((&opened["made"], &opened["seals"]), (&json!(false), &json!(true)), "{opened}");
    let memory = Memory::of(pool.pid_of("proofs"));
    wait::until("the first proofs to be written", LONG, || !memory.blocks().is_empty());
    pool.ok(["fill", "case", "--pause"]);
    pool.donate("spare", "64M");
    pool.donor("proofs").kill();
    pool.ok(["fill", "case", "--resume", "--rate", "0"]);
    wait_until_sealed(&pool);
    tools::names(&log(&pool), &["proofs went with a donor, and are made anew"]);
    is_right(&mut pool, &hash::of_file(&raw));
}

#[test]
fn without_room_for_proofs_it_is_said_and_sealed_when_there_is_some() {
    let mut pool = Pool::start();
    pool.donate("one", "64M");
    let raw = sparse(&pool, 64);
    let opened = open(&pool, &raw, &[]);
    assert_eq!(opened["seals"], false);
    tools::names(&opened["notes"].to_string(), &["no room", "lend more memory", "`cheetah seal case`"]);
    let content = wait_until_loaded(&pool);
    assert_eq!(content["sealed"], Value::Null);
    tools::names(content["load"]["unsealed"].as_str().expect("why"), &["proofs", "no room"]);
    wait_until_gone(&pool);
    tools::names(&log(&pool), &["is not to be sealed: ", "volume 'case' is not sealed: "]);
    pool.ok(["delete", "case"]);
    // It has come when all is here, and what is here is read for it.
    open(&pool, &raw, &["--rate", SLOW]);
    pool.donate("two", "64M");
    pool.ok(["fill", "case", "--rate", "0"]);
    let sealed = wait::for_some("it is sealed", LONG, || {
        Some(self::content(&pool)["sealed"].clone()).filter(|it| !it.is_null())
    });
    assert_eq!((&sealed["root"], &sealed["by_reading"]), (&json!(first_word("b3sum", &raw)), &json!(true)));
    assert_eq!(self::content(&pool)["load"]["unsealed"], Value::Null);
}
