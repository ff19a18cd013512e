//! A volume that is saved to a file: what is in the file, what is beside it, and what is left when it does
//! not come to its end.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use cheetah_lab::command::Said;
use cheetah_lab::filled::write_at;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::{hash, tools, wait};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Two extents: each is on a donor of its own.
const BYTES: u64 = 128 * MIB + 4096;

/// A volume over three donors, one after the other, loaded from an image that is mostly zeros.
fn loaded() -> (Pool, std::path::PathBuf) {
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "64M");
    }
    let image = pool.scratch().sparse_file("disk.dd", BYTES);
    let file = File::options().write(true).open(&image).expect("just made");
    for at in [0, 30 * MIB, 64 * MIB, 100 * MIB + 512, BYTES - 4096] {
        file.write_all_at(&vec![(at % 251) as u8 + 1; 4096], at).expect("written");
    }
    pool.ok(["create", "case7", &BYTES.to_string(), "--redundancy", "linear"]);
    pool.ok(["load", &image.display().to_string(), "case7"]);
    (pool, image)
}

fn save(pool: &Pool, file: &Path, more: &[&str]) -> Said {
    pool.run([&["save", "case7", &file.display().to_string()], more].concat())
}

fn saved(pool: &Pool, file: &Path, more: &[&str]) -> Value {
    pool.json([&["save", "case7", &file.display().to_string()], more].concat())
}

#[test]
fn what_is_saved_is_what_was_loaded_and_programs_of_others_say_so() {
    let (mut pool, image) = loaded();
    let directory = pool.scratch().directory("out");
    let file = directory.join("case7.dd");
    let report = saved(&pool, &file, &[]);
    assert_eq!((&report["verified"], &report["as_loaded"]), (&json!(true), &json!(true)), "{report}");
    assert_eq!((&report["bytes"], &report["unreadable"]), (&json!(BYTES), &json!([])));
    assert!(report["zero_bytes"].as_u64() > Some(100 * MIB), "{report}");
    assert_eq!(report["hashes"]["sha256"], hash::of_file(&image).as_str());
    assert_eq!(hash::of_file(&file), hash::of_file(&image));
    let blocks = fs::metadata(&file).expect("it is there").blocks();
    assert!(blocks * 512 < 16 * MIB, "zeros take room: {blocks} blocks");
    for (tool, ending) in [("md5sum", "md5"), ("sha1sum", "sha1"), ("sha256sum", "sha256")] {
        let mut check = tools::command(tool);
        check.args(["-c", &format!("case7.dd.{ending}")]).current_dir(&directory);
        assert!(tools::expect_success(&mut check).contains("OK"));
    }
    let left: Vec<_> =
        fs::read_dir(&directory).expect("it").map(|one| one.expect("one").file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
    // What is there is evidence of somebody's.
    let said = save(&pool, &file, &[]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["is there already", "--overwrite"]);
    for kept in ["other.dd.sha256", "other.dd.part"] {
        fs::write(directory.join(kept), "somebody's").expect("a file");
        let said = save(&pool, &directory.join("other.dd"), &[]);
        assert_eq!(said.status.code(), Some(4), "{}", said.err);
        tools::names(&said.err, &[kept, "is there already", "--overwrite"]);
        assert_eq!(fs::read_to_string(directory.join(kept)).expect("it is there"), "somebody's");
        fs::remove_file(directory.join(kept)).expect("it is there");
    }
    let text = pool.ok(["save", "case7", &file.display().to_string(), "--overwrite"]);
    tools::names(&text, &["verified", "it is what was loaded from", "case7.dd.sha256"]);
    // It goes back in, and the files beside it are compared.
    let said = pool.ok(["load", &file.display().to_string(), "case7", "--overwrite"]);
    tools::names(&said, &["case7.dd.sha256"]);
    pool.ok(["delete", "case7"]);

    // A volume that tools wrote is what it is, and no load's.
    pool.ok(["create", "scratch", "32M", "--redundancy", "linear"]);
    let path = pool.attach_fuse("scratch", &[]).path;
    write_at(&path, 0x77, MIB);
    pool.detach("scratch");
    let scratch = directory.join("scratch.dd");
    let report = pool.json(["save", "scratch", &scratch.display().to_string()]);
    assert!(report.get("as_loaded").is_none() && report["verified"] == true, "{report}");
}

#[test]
fn what_cannot_be_read_is_zeros_and_listed() {
    let (mut pool, image) = loaded();
    pool.donor("two").kill();
    wait::until("the loss", wait::SOON, || pool.volume_status("case7")["lost_donors"] == json!(["two"]));
    let file = pool.scratch().join("rest.dd");
    let said = save(&pool, &file, &["--json"]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    let report: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(report["unreadable"], json!([{"offset": 64 * MIB, "len": 64 * MIB}]), "{report}");
    assert_eq!((&report["verified"], &report["as_loaded"]), (&json!(true), &json!(false)));
    tools::names(&said.err, &["64 MiB", "could not be read", "rest.dd.map"]);
    let map = fs::read_to_string(pool.scratch().join("rest.dd.map")).expect("a map");
    assert!(map.lines().any(|line| line == "0x04000000  0x04000000  -"), "{map}");
    let (wanted, is) = (fs::read(&image).expect("the image"), fs::read(&file).expect("the file"));
    let (start, end) = (64 * MIB as usize, 128 * MIB as usize);
    assert!(is[..start] == wanted[..start] && is[end..] == wanted[end..], "what can be read is right");
    assert!(is[start..end].iter().all(|byte| *byte == 0));
}

#[test]
fn who_is_interrupted_or_refused_leaves_nothing_that_looks_like_evidence() {
    let (pool, _) = loaded();
    let directory = pool.scratch().directory("out");
    let refused = pool.run(["save", "case7", &directory.display().to_string()]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.err);
    tools::names(&refused.err, &["is no file"]);
    let said = pool.run(["save", "ghost", &directory.join("ghost.dd").display().to_string()]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    // A disk that is full.
    let small = pool.scratch().directory("small");
    tools::run("mount", ["-t", "tmpfs", "-o", "size=16k", "none", &small.display().to_string()]);
    let full = save(&pool, &small.join("full.dd"), &[]);
    let left = fs::read_dir(&small).expect("it").count();
    tools::run("umount", [&small]);
    assert_eq!((full.status.code(), left), (Some(1), 0), "{}", full.err);
    tools::names(&full.err, &["full.dd.part", "No space left"]);
    // And one who waits for a donor that is stopped.
    let stopped = pool.pid_of("one");
    cheetah_lab::mark::signal(stopped, rustix::process::Signal::STOP);
    let mut command = pool.command();
    command.args(["save", "case7"]).arg(directory.join("never.dd"));
    let mut saving = Process::start("save", command, pool.scratch().path());
    wait::until("it waits, or has begun", wait::SOON, || directory.join("never.dd.part").exists());
    saving.signal(rustix::process::Signal::INT);
    cheetah_lab::mark::signal(stopped, rustix::process::Signal::CONT);
    let status = saving.wait_for_end(wait::SOON);
    assert_eq!(status.code(), Some(1), "{}", saving.log());
    tools::names(&saving.log(), &["interrupted"]);
    assert_eq!(fs::read_dir(&directory).expect("it").count(), 0, "something is left");
}
