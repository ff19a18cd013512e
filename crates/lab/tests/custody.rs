//! The log of a volume's custody: it survives the coordinator's death and the volume, other programs
//! follow and verify it, and each kind of damage is found. In the words of CASE/UCO, a validator of others
//! takes it.

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

/// What `case_validate` says of a document: with the ontology that it comes with, and no network.
fn validated(file: &Path, document: &Value) -> (bool, String) {
    fs::write(file, document.to_string()).expect("written");
    let mut validate = tools::python_tool("case-utils", "case_validate");
    let output = tools::output(validate.arg(file));
    let said = tools::describe(&validate, &output);
    (output.status.success(), said)
}

#[track_caller]
fn is_taken(file: &Path, document: &Value) {
    let (taken, said) = validated(file, document);
    assert!(taken && said.contains("Conforms: True"), "{said}");
    assert!(!said.to_lowercase().contains("warning"), "{said}");
}

/// Changes one value at one node of a class, and demands that this is why it is refused.
#[track_caller]
fn is_refused(file: &Path, document: &Value, changed: (&str, &str, &str), word: &str) {
    let (class, place, value) = changed;
    let mut other = document.clone();
    let nodes = other["@graph"].as_array_mut().expect("nodes").iter_mut();
    let mut places = nodes.filter(|node| node["@type"] == class).filter_map(|node| node.pointer_mut(place));
    *places.next().unwrap_or_else(|| panic!("no {class} has {place}")) = Value::from(value);
    let (taken, said) = validated(file, &other);
    assert!(!taken && said.contains("Conforms: False"), "{said}");
    tools::names(&said, &[word]);
}

#[test]
fn a_validator_of_others_takes_a_log_in_the_words_of_case() {
    let mut pool = Pool::of(Access::Members, State::Directory, None);
    pool.donate("one", "64M");
    let image = pool.scratch().sparse_file("disk.dd", BYTES).display().to_string();
    pool.ok(["create", "case7", "8M", "--redundancy", "linear"]);
    let said =
        ["--case", "2026-7", "--evidence", "E1", "--examiner", "Eve O'Hara", "--notes", "left \"bay\""];
    pool.ok([&["load", &image, "case7"][..], &said].concat());
    pool.attach_fuse("case7", &["--read-only"]);
    pool.detach("case7");
    let saved = pool.scratch().join("saved.dd").display().to_string();
    pool.ok(["save", "case7", &saved]);
    let file = pool.scratch().join("case7.jsonld");
    let document =
        || -> Value { serde_json::from_str(&pool.ok(["log", "case7", "--case-uco"])).expect("JSON") };
    is_taken(&file, &document());
    pool.ok(["delete", "case7"]);
    let gone = document();
    is_taken(&file, &gone);
    assert_eq!(pool.ok(["log", "case7", "--case-uco"]), pool.ok(["log", "case7", "--case-uco"]));

    // It has each entry, by the hash that the log's own chain has.
    let log = pool.json(["log", "case7"]);
    let nodes = gone["@graph"].as_array().expect("nodes");
    let hashes: Vec<&str> =
        nodes.iter().filter_map(|node| node["cheetah:entryHash"]["@value"].as_str()).collect();
    let entries = log["entries"].as_array().expect("entries");
    assert_eq!(hashes.len(), entries.len());
    assert!(entries.iter().skip(1).zip(&hashes).all(|(entry, hash)| entry["previous"] == *hash), "{gone}");
    assert_eq!(log["head"]["hash"], *hashes.last().expect("a hash"));
    let text = gone.to_string();
    let hash = cheetah_lab::hash::of_file(Path::new(&image));
    tools::names(
        &text,
        &["2026-7", "\"E1\"", "Eve O'Hara", "left \\\"bay\\\"", "\"deleted\"", &hash, &image, &saved],
    );

    let action = "case-investigation:InvestigativeAction";
    let time = (action, "/uco-action:startTime/@value", "yesterday");
    is_refused(&file, &gone, time, "Result Path: action:startTime");
    let digits = "/uco-core:hasFacet/1/uco-observable:hash/0/uco-types:hashValue/@value";
    is_refused(&file, &gone, ("uco-observable:File", digits, "no digits"), "Result Path: types:hashValue");
    is_refused(&file, &gone, (action, "/@id", "kb:first"), "end with a UUID");
}

/// A disk that is a file. It goes with the pool whose folder the file is in.
fn disk(file: &Path) -> String {
    tools::run("losetup", ["--find", "--show", &file.display().to_string()]).trim().to_owned()
}

#[test]
fn a_validator_of_others_takes_whatever_a_volume_is_of() {
    tools::need_root("a loop device");
    let mut pool = Pool::of(Access::Members, State::Directory, None);
    pool.donate("one", "128M");
    let image = pool.scratch().sparse_file("disk.dd", BYTES);
    let file = pool.scratch().join("case7.jsonld");
    let document = |volume: &str| -> Value {
        serde_json::from_str(&pool.ok(["log", volume, "--case-uco"])).expect("JSON")
    };
    // Of whom nothing is said.
    pool.ok(["create", "bare", "8M", "--redundancy", "linear"]);
    let bare = document("bare");
    is_taken(&file, &bare);
    let text = bare.to_string();
    assert!(
        ["exhibitNumber", ":Investigation\"", "Person"].iter().all(|word| !text.contains(word)),
        "{text}"
    );
    // A disk, and what was made of it.
    let device = disk(&image);
    pool.ok(["load", &device, "bare", "--evidence", "E2", "--writable"]);
    let of_disk = document("bare");
    is_taken(&file, &of_disk);
    tools::names(&of_disk.to_string(), &["uco-observable:DiskFacet", &device, "\"E2\""]);
    let saved = pool.scratch().join("saved.E01").display().to_string();
    pool.ok(["save", "bare", &saved]);
    pool.ok(["create", "again", "8M", "--redundancy", "linear"]);
    pool.ok(["load", &saved, "again"]);
    let of_image = document("again");
    is_taken(&file, &of_image);
    tools::names(&of_image.to_string(), &["uco-observable:imageType\":\"E01 image", &saved]);

    for other in [&["--json"][..], &["--export", "x.log"]] {
        let said = pool.run([&["log", "bare", "--case-uco"], other].concat());
        assert_eq!(said.status.code(), Some(2), "{}", said.err);
        tools::names(&said.err, &["cannot be used with"]);
    }
    assert_eq!(pool.run(["log", "ghost", "--case-uco"]).status.code(), Some(4));
}
