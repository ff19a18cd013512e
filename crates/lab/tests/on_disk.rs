//! What stands on a disk is told to the pool and shown: partitions, file systems, encryption.
//!
//! Disks are made by sfdisk, mke2fs, mkfs.fat and cryptsetup, and what is shown is compared with what sfdisk
//! says of them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cheetah_lab::pool::{Pool, State};
use cheetah_lab::rivals::Rival;
use cheetah_lab::tools::names;
use cheetah_lab::{tools, wait};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

fn pool() -> Pool {
    let mut pool = Pool::with(State::Directory, None);
    pool.donate("one", "256M");
    pool.donate("two", "256M");
    pool
}

/// A file that begins as LUKS does, by cryptsetup; nothing in it can be had without its key.
fn luks(pool: &Pool, kind: &str, mib: u64) -> PathBuf {
    let key = pool.scratch().file("key", b"secret");
    let file = pool.scratch().sparse_file(kind, mib * MIB);
    let mut command = tools::command("cryptsetup");
    command.args(["luksFormat", "--batch-mode", "--type", kind]);
    command.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file"]).arg(key).arg(&file);
    tools::expect_success(&mut command);
    file
}

/// Divided as sfdisk is told.
fn divided(pool: &Pool, name: &str, mib: u64, table: &str) -> PathBuf {
    let disk = pool.scratch().sparse_file(name, mib * MIB);
    let mut command = tools::command("sfdisk");
    command.arg("--quiet").arg(&disk).stdin(Stdio::piped());
    let mut sfdisk = command.spawn().expect("sfdisk starts");
    sfdisk.stdin.take().expect("a pipe").write_all(table.as_bytes()).expect("it reads");
    assert!(sfdisk.wait().expect("it ends").success(), "sfdisk takes {table}");
    disk
}

/// Number, first byte and bytes of each partition, as sfdisk has them.
fn places(disk: &Path) -> Vec<(u64, u64, u64)> {
    let listed = tools::expect_success(tools::command("sfdisk").arg("--json").arg(disk));
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let field = |partition: &Value, name: &str| partition[name].as_u64().expect("a number") * 512;
    let number = |partition: &Value| {
        let node = partition["node"].as_str().expect("a name");
        node.strip_prefix(&disk.display().to_string())
            .and_then(|number| number.parse().ok())
            .expect("a number")
    };
    let all = listed["partitiontable"]["partitions"].as_array().expect("partitions");
    all.iter().map(|one| (number(one), field(one, "start"), field(one, "size"))).collect()
}

fn put(disk: &Path, at: u64, part: &Path) {
    let bytes = fs::read(part).expect("a part");
    let disk = File::options().write(true).open(disk).expect("the disk");
    disk.write_all_at(&bytes, at).expect("written");
}

/// GPT: ext4, LUKS, nothing.
fn gpt(pool: &Pool) -> PathBuf {
    let table = "label: gpt\nstart=2048, size=32M\nsize=20M\nsize=4M\n";
    let disk = divided(pool, "gpt.raw", 64, table);
    let places = places(&disk);
    let mut ext4 = tools::command("mke2fs");
    ext4.args(["-q", "-t", "ext4", "-E"]).arg(format!("offset={}", places[0].1)).arg(&disk).arg("32m");
    tools::expect_success(&mut ext4);
    put(&disk, places[1].1, &luks(pool, "luks2", 20));
    disk
}

/// MBR: FAT32, and two logical partitions, LUKS and ext2.
fn mbr(pool: &Pool) -> PathBuf {
    let table =
        "label: dos\n1: start=2048, size=40M, type=c\n2: type=5\n5: size=4M, type=83\n6: size=8M, type=83\n";
    let disk = divided(pool, "mbr.raw", 64, table);
    let places = places(&disk);
    let fat = pool.scratch().sparse_file("fat", 40 * MIB);
    tools::expect_success(tools::command("mkfs.fat").args(["-F", "32"]).arg(&fat));
    put(&disk, places[0].1, &fat);
    put(&disk, places[2].1, &luks(pool, "luks1", 4));
    let mut ext2 = tools::command("mke2fs");
    ext2.args(["-q", "-t", "ext2", "-E"]).arg(format!("offset={}", places[3].1)).arg(&disk).arg("8m");
    tools::expect_success(&mut ext2);
    disk
}

fn on_disk(pool: &Pool, volume: &str) -> Value {
    pool.json(["show", volume])["status"]["content"]["load"]["on_disk"].clone()
}

fn entry((number, offset, len): (u64, u64, u64), holds: &str) -> Value {
    let encrypted = holds.starts_with("encrypted");
    json!({ "number": number, "offset": offset, "len": len, "holds": holds, "encrypted": encrypted })
}

fn log(pool: &Pool) -> String {
    fs::read_to_string(pool.scratch().join("run/cheetah/fill/case.log")).expect("its log")
}

#[test]
fn what_is_on_an_opened_disk_is_shown_before_it_is_here_and_after() {
    let mut pool = pool();
    let disk = gpt(&pool);
    let places = places(&disk);
    let partitions = vec![
        entry(places[0], "ext4"),
        entry(places[1], "encrypted with LUKS"),
        entry(places[2], "no known file system"),
    ];
    let expected = json!({ "scheme": "gpt", "partitions": partitions, "left_out": 0 });
    pool.json(["open", &disk.display().to_string(), "case", "--rate", "256K"]);
    wait::until("what is on it is known", LONG, || on_disk(&pool, "case") != Value::Null);
    assert_eq!(on_disk(&pool, "case"), expected);
    assert_eq!(pool.json(["show", "case"])["status"]["content"]["state"], "opened", "most is not here");
    let said = pool.ok(["show", "case"]);
    let (_, offset, len) = places[1];
    names(&said, &["disk        GPT, 3 partitions", "partition 1: ext4, "]);
    names(&said, &[&format!("partition 2: encrypted with LUKS, {len} bytes from {offset} on (20 MiB)")]);
    let said = log(&pool);
    names(
        &said,
        &["partition 1: ext4, ", "partition 2 is encrypted with LUKS: what that holds cannot be read"],
    );

    // Who attaches it is told, and a coordinator that starts again knows it still.
    pool.kill_coordinator();
    pool.restart_coordinator();
    assert_eq!(on_disk(&pool, "case"), expected);
    let point = pool.scratch().directory("point").display().to_string();
    let attached = pool.json(["attach", "case", &point, "--read-only"]);
    names(&attached["notes"].to_string(), &["partition 2 is encrypted with LUKS"]);
    pool.detach("case");

    // The next one that fills it says the same, and so it stays.
    pool.ok(["fill", "case", "--stop"]);
    assert_eq!(on_disk(&pool, "case"), expected);
    pool.ok(["fill", "case", "--resume", "--rate", "0"]);
    wait::until("all of it is here", LONG, || {
        pool.json(["show", "case"])["status"]["content"]["state"] == "loaded"
    });
    assert_eq!(on_disk(&pool, "case"), expected);
}

#[test]
fn what_is_on_a_loaded_disk_is_shown_as_well() {
    let pool = pool();
    let disk = mbr(&pool);
    let places = places(&disk);
    let report = pool.json(["load", &disk.display().to_string(), "mbr"]);
    let partitions =
        vec![entry(places[0], "FAT32"), entry(places[2], "encrypted with LUKS"), entry(places[3], "ext2")];
    let expected = json!({ "scheme": "mbr", "partitions": partitions, "left_out": 0 });
    assert_eq!((&on_disk(&pool, "mbr"), &report["on_disk"]), (&expected, &expected));

    let whole = luks(&pool, "luks1", 4);
    let said = pool.ok(["load", &whole.display().to_string(), "whole"]);
    names(&said, &["disk        no partitions: encrypted with LUKS"]);
    let partitions = vec![entry((1, 0, 4 * MIB), "encrypted with LUKS")];
    assert_eq!(on_disk(&pool, "whole"), json!({ "scheme": "none", "partitions": partitions, "left_out": 0 }));
}

/// By nbdkit, with a sector that cannot be read.
fn with_a_bad_sector(disk: &Path, at: u64) -> Rival {
    let pread = format!(
        "pread=if [ $4 -lt {} ] && [ $(($4 + $3)) -gt {at} ]; then echo EIO bad sector >&2; exit 1; fi; \
         dd if={} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
        at + 512,
        disk.display()
    );
    Rival::nbdkit(&["eval", &format!("get_size=stat -c %s {}", disk.display()), &pread])
}

#[test]
fn what_cannot_be_read_is_not_taken_for_nothing() {
    let pool = pool();
    let disk = gpt(&pool);
    let places = places(&disk);
    let opened = |at: u64, volume: &str| {
        let kit = with_a_bad_sector(&disk, at);
        pool.json(["open", &kit.uri, volume]);
        wait::until("it is loaded", LONG, || {
            pool.json(["show", volume])["status"]["content"]["state"] == "loaded"
        });
        on_disk(&pool, volume)
    };
    let first = opened(0, "first");
    assert_eq!(first, json!({ "scheme": "unreadable", "partitions": [], "left_out": 0 }));
    names(
        &pool.ok(["show", "first"]),
        &["disk        its beginning cannot be read: what is on it is not known"],
    );
    let second = opened(places[1].1 + 1024, "second");
    let holds: Vec<_> =
        second["partitions"].as_array().expect("partitions").iter().map(|one| one["holds"].clone()).collect();
    assert_eq!(holds, ["ext4", "its beginning cannot be read", "no known file system"], "{second}");
}

/// One that is here at once is loaded only when the pool knows what is on it.
#[test]
fn what_is_on_a_small_disk_is_known_when_that_is_loaded() {
    let pool = pool();
    for (size, volume) in [(1, "tiny"), (4096, "small"), (MIB, "larger")] {
        let disk = pool.scratch().sparse_file(volume, size).display().to_string();
        pool.json(["open", &disk, volume]);
        wait::until("it is loaded", LONG, || {
            let content = pool.json(["show", volume])["status"]["content"].clone();
            let is_loaded = content["state"] == "loaded";
            assert!(!is_loaded || content["load"]["on_disk"]["scheme"] == "none", "{content}");
            is_loaded
        });
    }
}
