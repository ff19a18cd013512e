//! The log of a volume's custody: it survives the coordinator's death and the volume, other programs
//! follow and verify it, and each kind of damage is found.

use std::fs;
use std::path::{Path, PathBuf};

use cheetah_lab::command::Said;
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::tools;
use serde_json::Value;

const BYTES: u64 = 8 << 20;

/// A volume that was loaded, saved and deleted, with a coordinator that was killed between all of that;
/// and its log in a file.
fn exported() -> (Pool, PathBuf) {
    let mut pool = Pool::of(Access::Members, State::Directory, None);
    pool.donate("one", "64M");
    let image = pool.scratch().sparse_file("disk.dd", BYTES).display().to_string();
    let killed = |pool: &mut Pool| {
        let before = pool.json(["log", "case7"]);
        pool.kill_coordinator();
        pool.restart_coordinator();
        assert_eq!(pool.json(["log", "case7"]), before, "what was put down stays, and nothing else");
    };
    let said = ["--case", "2026-7", "--evidence", "E1", "--examiner", "Eve O'Hara", "--notes", "left bay"];
    pool.ok([&["create", "case7", "8M", "--redundancy", "linear"][..], &said].concat());
    killed(&mut pool);
    pool.ok(["load", &image, "case7"]);
    killed(&mut pool);
    let saved = pool.scratch().join("saved.dd").display().to_string();
    pool.ok(["save", "case7", &saved]);
    killed(&mut pool);
    tools::names(&pool.ok(["show", "case7"]), &["2026-7", "Eve O'Hara", "left bay"]);
    pool.ok(["delete", "case7"]);
    killed(&mut pool);
    let file = pool.scratch().join("case7.log");
    let said = pool.ok(["log", "case7", "--export", &file.display().to_string()]);
    tools::names(&said, &["case7.log.minisig", "case7.log.pub", "head ", "key "]);
    assert_eq!(pool.run(["log", "case7", "--export", &file.display().to_string()]).status.code(), Some(4));
    (pool, file)
}

fn verify(pool: &Pool, file: &Path, more: &[&str]) -> Said {
    pool.run([&["verify-log", &file.display().to_string()], more].concat())
}

#[track_caller]
fn refused(pool: &Pool, file: &Path, more: &[&str], words: &[&str]) {
    let said = verify(pool, file, more);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    tools::names(&said.err, words);
}

/// Damages the log, and puts it right again.
#[track_caller]
fn damaged(pool: &Pool, file: &Path, change: impl FnOnce(Vec<String>) -> Vec<String>, words: &[&str]) {
    let text = fs::read_to_string(file).expect("the log");
    let lines = change(text.lines().map(str::to_owned).collect());
    fs::write(file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("written");
    refused(pool, file, &[], words);
    fs::write(file, text).expect("written");
}

#[test]
fn a_log_survives_and_others_follow_it_and_no_damage_is_missed() {
    let (pool, file) = exported();
    let text = fs::read_to_string(&file).expect("the log");
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let events: Vec<&str> = entries.iter().filter_map(|entry| entry["event"].as_str()).collect();
    let all = "created case case fill-begun attached filled filled sealed detached attached detached exported deleted";
    assert_eq!(events.join(" "), all);
    assert!(text.contains(" from 127.0.0.1 as ") && text.contains("\"examiner\":\"Eve O'Hara\""), "{text}");

    // What a reader has: sha256sum and jq, and minisign.
    let name = file.display().to_string();
    let chain = "n=0; want=$(printf '0%.0s' $(seq 64)); while IFS= read -r line; do \
                 [ \"$(printf '%s\\n' \"$line\" | jq -r .previous)\" = \"$want\" ] || exit 1; \
                 want=$(printf '%s\\n' \"$line\" | sha256sum | cut -d' ' -f1); n=$((n+1)); done <\"$1\"; echo \"$n:$want\"";
    let head = tools::run("bash", ["-c", chain, "chain", &name]).trim().to_owned();
    let log = pool.json(["log", "case7"]);
    let known = format!("{}:{}", log["head"]["sequence"], log["head"]["hash"].as_str().expect("a hash"));
    assert_eq!(head, known);
    let public = format!("{name}.pub");
    tools::names(&tools::run("minisign", ["-Vm", &name, "-p", &public]), &["verified", &head]);

    // Good, as the program says: with the head of now, and with one of before.
    let key = log["key"].as_str().expect("a key");
    assert_eq!(verify(&pool, &file, &["--key", key, "--head", &head]).status.code(), Some(0));
    let earlier = format!("12:{}", entries[12]["previous"].as_str().expect("a hash"));
    let said = verify(&pool, &file, &["--head", &earlier]);
    assert_eq!(said.status.code(), Some(0), "{}", said.err);
    tools::names(&said.out, &["is good: 13 entries"]);

    damaged(
        &pool,
        &file,
        |l| l.iter().map(|l| l.replace("left bay", "left boy")).collect(),
        &["entry 2 was changed"],
    );
    damaged(
        &pool,
        &file,
        |mut l| {
            l.swap(3, 5);
            l
        },
        &["line 4", "reordered"],
    );
    damaged(
        &pool,
        &file,
        |mut l| {
            l.drain(4..6);
            l
        },
        &["line 5", "entries 5 to 6 are missing"],
    );
    damaged(
        &pool,
        &file,
        |mut l| {
            l.truncate(9);
            l
        },
        &["ends with entry 9", "cut off"],
    );
    let last = |mut l: Vec<String>| {
        let changed = l[12].replace("127.0.0.1", "127.0.0.2");
        l[12] = changed;
        l
    };
    damaged(&pool, &file, last, &["entry 13 is not the one"]);
    // One byte, for minisign too.
    fs::write(&file, text.replace("left bay", "left boy")).expect("written");
    tools::expect_failure(tools::command("minisign").args(["-Vm", &name, "-p", &public]));
    fs::write(&file, &text).expect("written");
    // An older export with its own good signature: only who knows the head sees that it ends too soon.
    let more = format!("14:{}", "0".repeat(64));
    refused(&pool, &file, &["--head", &more], &["ends with entry 13", "entry 14", "cut off"]);
    let foreign = "RWQzTS+Z0tdqN+8fZYRrsc/6nNHlljkYbWqCcP1Hd00OWjpJaVNAx6kD";
    refused(&pool, &file, &["--key", foreign], &["376AD7D2992F4D33", "another pool's"]);
}
