//! A volume that is saved to a file, to an E01 or to stdout: what is in it, what is beside it, and what
//! is left when it does not come to its end. Programs of others read what is written, and refuse it after
//! a byte was changed.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use cheetah_lab::command::Said;
use cheetah_lab::filled::write_at;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::{hash, tools, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Two extents: each is on a donor of its own.
const BYTES: u64 = 128 * MIB + 4096;
/// Where the image has what cannot be packed.
const NOISE_AT: u64 = 8 * MIB;

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
    file.write_all_at(&noise(), NOISE_AT).expect("written");
    pool.ok(["create", "case7", &BYTES.to_string(), "--redundancy", "linear"]);
    pool.ok(["load", &image.display().to_string(), "case7", "--writable"]);
    (pool, image)
}

/// Bytes that nothing makes smaller.
fn noise() -> Vec<u8> {
    let mut state = 2006_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..6 * MIB / 8).flat_map(next).collect()
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
    let said = pool.ok(["load", &file.display().to_string(), "case7", "--overwrite", "--writable"]);
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
    cheetah_lab::mark::signal(stopped, Signal::STOP);
    let mut command = pool.command();
    command.args(["save", "case7"]).arg(directory.join("never.dd"));
    let mut saving = Process::start("save", command, pool.scratch().path());
    wait::until("it waits, or has begun", wait::SOON, || directory.join("never.dd.part").exists());
    saving.signal(Signal::INT);
    cheetah_lab::mark::signal(stopped, Signal::CONT);
    let status = saving.wait_for_end(wait::SOON);
    assert_eq!(status.code(), Some(1), "{}", saving.log());
    tools::names(&saving.log(), &["interrupted"]);
    assert_eq!(fs::read_dir(&directory).expect("it").count(), 0, "something is left");
}

/// What a folder has, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("one").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Changes a byte, as a disk does that goes bad.
fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it has that byte");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
}

/// A tool of others, in a folder.
fn tool(name: &str, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = tools::command(name);
    command.args(arguments).current_dir(directory);
    command
}

/// `hashdeep -a` of these files, by the list beside them.
fn audit(directory: &Path, list: &str, files: &[&str]) -> Command {
    tool("hashdeep", directory, &[&["-a", "-b", "-k", list], files].concat())
}

/// What another's parser reads out of a DFXML file: digests of the volume, of each file, and places.
fn read_dfxml(path: &Path) -> Value {
    const READ: &str = "
import json, sys, xml.etree.ElementTree as tree
name = '{http://www.forensicswiki.org/wiki/Category:Digital_Forensics_XML}'
root = tree.parse(sys.argv[1]).getroot()
digests = lambda at: {one.get('type'): one.text for one in at.findall(name + 'hashdigest')}
place = lambda run: [int(run.get('img_offset')), int(run.get('len'))]
file = lambda at: [at.find(name + 'filename').text, int(at.find(name + 'filesize').text), digests(at)]
runs = root.findall(f'{name}volume/{name}byte_runs/{name}byte_run')
print(json.dumps({
    'version': root.get('version'),
    'program': root.find(f'{name}creator/{name}program').text,
    'line': root.find(f'.//{name}command_line').text,
    'source': root.find(f'{name}source/{name}image_filename').text,
    'all': [place(run) + [digests(run)] for run in runs if digests(run)],
    'unreadable': [place(run) for run in runs if run.get('type') == 'unreadable'],
    'files': [file(at) for at in root.findall(name + 'fileobject')],
}))";
    let path = path.display().to_string();
    tools::run("xmllint", ["--noout", &path]);
    serde_json::from_str(&tools::run("python3", ["-c", READ, &path])).expect("JSON")
}

fn digests(hashes: &Value) -> Value {
    json!({"MD5": hashes["md5"], "SHA1": hashes["sha1"], "SHA256": hashes["sha256"]})
}

#[test]
fn what_stands_beside_a_file_is_what_its_programs_write_and_check() {
    let (pool, _) = loaded();
    let directory = pool.scratch().directory("out");
    let file = directory.join("case 7.dd");
    let more = ["--sidecars", "md5,hashdeep,dfxml", "--piecewise"];
    let report = saved(&pool, &file, &[&more[..], &["1000000"]].concat());
    let beside =
        ["case 7.dd.dfxml", "case 7.dd.hashdeep", "case 7.dd.md5", "case 7.dd.md5log", "case 7.dd.sha256log"];
    assert_eq!(names(&directory), [&["case 7.dd"][..], &beside].concat());
    assert_eq!(report["files"].as_array().map(Vec::len), Some(beside.len()), "{report}");

    // dcfldd's own logs are the same to the byte, whether the pieces fit or not.
    let logs = ["md5log", "sha256log"];
    let dcfldd = |window: &str| {
        let log = |ending: &str| format!("{ending}={}", directory.join(format!("its.{ending}")).display());
        let source = format!("if={}", file.display());
        let arguments = [&source, "of=/dev/null", "hash=md5,sha256", &format!("hashwindow={window}")];
        tools::run("dcfldd", arguments.into_iter().chain([log("md5log").as_str(), &log("sha256log")]));
        logs.map(|ending| fs::read_to_string(directory.join(format!("its.{ending}"))).expect("a log"))
    };
    let ours = || {
        logs.map(|ending| fs::read_to_string(directory.join(format!("case 7.dd.{ending}"))).expect("a log"))
    };
    assert_eq!(ours(), dcfldd("1000000"));
    assert_eq!(ours()[0].lines().count(), 137);
    saved(&pool, &file, &[&more[..], &["4096K", "--overwrite"]].concat());
    assert_eq!(ours(), dcfldd("4194304"));
    tools::expect_success(&mut audit(&directory, "case 7.dd.hashdeep", &["case 7.dd"]));

    let read = read_dfxml(&directory.join("case 7.dd.dfxml"));
    assert_eq!(
        (&read["version"], &read["program"], &read["source"]),
        (&json!("1.2.0"), &json!("cheetah"), &json!("case7"))
    );
    tools::names(read["line"].as_str().expect("a line"), &["save case7 '", "case 7.dd'", "--overwrite"]);
    let wanted = digests(&report["hashes"]);
    assert_eq!(read["all"], json!([[0, BYTES, wanted]]));
    assert_eq!(read["files"], json!([["case 7.dd", BYTES, wanted]]));
    assert_eq!(read["unreadable"], json!([]));

    flip(&file, NOISE_AT + 4711);
    tools::expect_failure(&mut audit(&directory, "case 7.dd.hashdeep", &["case 7.dd"]));
    let (is, was) = (dcfldd("4194304"), ours());
    let other = |log: usize| {
        is[log]
            .lines()
            .zip(was[log].lines())
            .enumerate()
            .filter(|(_, (a, b))| a != b)
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    // The third piece, and the total.
    assert_eq!((other(0), other(1)), (vec![2, 34], vec![2, 34]));

    // Nothing of another's is written over, and nothing stays that says something of another file.
    for kept in ["hashdeep", "dfxml", "md5log", "sha256log", "map"] {
        let kept = format!("other.dd.{kept}");
        fs::write(directory.join(&kept), "somebody's").expect("a file");
        let said = save(&pool, &directory.join("other.dd"), &["--sidecars", "none"]);
        assert_eq!(said.status.code(), Some(4), "{}", said.err);
        tools::names(&said.err, &[&kept, "is there already", "--overwrite"]);
        assert_eq!(fs::read_to_string(directory.join(&kept)).expect("it is there"), "somebody's");
        fs::remove_file(directory.join(kept)).expect("it is there");
    }
    fs::write(directory.join("case 7.dd.map"), "somebody's").expect("a file");
    let said = save(&pool, &file, &["--overwrite"]);
    assert_eq!(said.status.code(), Some(2), "{}", said.err);
    tools::names(&said.err, &["is no map of ddrescue"]);
    fs::remove_file(directory.join("case 7.dd.map")).expect("it is there");
    saved(&pool, &file, &["--sidecars", "none", "--overwrite"]);
    assert_eq!(names(&directory), ["case 7.dd", "its.md5log", "its.sha256log"]);
    let said = save(&pool, &directory.join("fine.dd"), &["--piecewise", "100"]);
    assert_eq!(said.status.code(), Some(2), "{}", said.err);
    tools::names(&said.err, &["--piecewise", "256 B"]);
}

const CASE: [&str; 10] = [
    "--case",
    "2026-117",
    "--evidence",
    "4",
    "--examiner",
    "Jörg D.",
    "--description",
    "the grey one",
    "--notes",
    "none so far",
];

#[test]
fn an_e01_is_what_libewf_takes_and_refuses_when_a_byte_was_changed() {
    let (pool, image) = loaded();
    let directory = pool.scratch().directory("out");
    let file = directory.join("case7.E01");
    fs::write(directory.join("case7.TXT"), "somebody's").expect("a file");
    let more = ["--segment", "1M", "--sidecars", "sha256,hashdeep,dfxml"];
    let report = saved(&pool, &file, &[&CASE[..], &more].concat());
    assert_eq!(
        (&report["format"], &report["verified"], &report["as_loaded"]),
        (&json!("e01"), &json!(true), &json!(true))
    );
    assert_eq!(report["hashes"]["sha256"], hash::of_file(&image).as_str());
    tools::names(report["written_by"].as_str().expect("who"), &["ewfacquirestream 20"]);
    let all = names(&directory);
    let set: Vec<&str> = all
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with("case7.E") && name.len() == 9)
        .collect();
    assert!(set.len() > 5, "{all:?}");
    assert_eq!(report["segments"].as_array().map(Vec::len), Some(set.len()));
    assert_eq!(all.len(), set.len() + 4, "{all:?}");

    let verify = || tool("ewfverify", &directory, &["-q", "-d", "sha1", "case7.E01"]);
    tools::expect_success(&mut verify());
    let info = tools::expect_success(&mut tool("ewfinfo", &directory, &["case7.E01"]));
    tools::names(&info, &["2026-117", "Jörg D.", "the grey one", "none so far", "good (fast) compression"]);
    tools::names(&info, &["md5", "sha1"].map(|kind| report["hashes"][kind].as_str().expect("digits")));
    tools::expect_success(&mut tool(
        "ewfexport",
        &directory,
        &["-u", "-q", "-f", "raw", "-t", "exported", "case7.E01"],
    ));
    assert_eq!(hash::of_file(directory.join("exported.raw")), hash::of_file(&image));
    for made in ["exported.raw", "exported.raw.info"] {
        fs::remove_file(directory.join(made)).expect("it is there");
    }
    tools::expect_success(&mut audit(&directory, "case7.E01.hashdeep", &set));
    tools::expect_success(&mut tool("sha256sum", &directory, &["-c", "case7.E01.sha256"]));
    let read = read_dfxml(&directory.join("case7.E01.dfxml"));
    assert_eq!(read["all"], json!([[0, BYTES, digests(&report["hashes"])]]));
    let third = &read["files"][2];
    assert_eq!(
        (&third[0], &third[2]["SHA256"]),
        (&json!("case7.E03"), &json!(hash::of_file(directory.join("case7.E03"))))
    );

    let refused = save(&pool, &file, &[]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.err);
    flip(&directory.join("case7.E03"), MIB / 2);
    tools::expect_failure(&mut verify());
    tools::expect_failure(&mut audit(&directory, "case7.E01.hashdeep", &set));
    // Without the first the others are a set of somebody's still.
    fs::remove_file(&file).expect("it is there");
    fs::remove_file(directory.join("case7.E01.sha256")).expect("it is there");
    let refused = save(&pool, &file, &["--sidecars", "none"]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.err);

    // Of the old set nothing is left that would be read with the new one.
    let text = pool.ok([&["save", "case7", &file.display().to_string(), "--overwrite"], &CASE[..]].concat());
    tools::names(&text, &["verified: ewfverify found no fault", "1 segment", "it is what was loaded from"]);
    assert_eq!(names(&directory), ["case7.E01", "case7.TXT"]);
    tools::expect_success(&mut verify());
    // A name without an ending gets it.
    saved(&pool, &directory.join("other"), &["--format", "e01", "--compression", "empty-block"]);
    assert_eq!(names(&directory), ["case7.E01", "case7.TXT", "other.E01"]);
    let said = pool.ok(["load", &file.display().to_string(), "case7", "--overwrite", "--writable"]);
    tools::names(&said, &["E01 image", "MD5 as the image claims", "SHA-1 as the image claims"]);
}

#[test]
fn what_cannot_be_an_e01_is_refused_before_anything_is_read() {
    let (pool, _) = loaded();
    let directory = pool.scratch().directory("out");
    let file = directory.join("case7.E01").display().to_string();
    for (more, code, words) in [
        (&["--segment", "1000K"][..], 2, &["a segment of an E01"][..]),
        (&["--case", "a\tb"], 2, &["on one line"]),
        (&["--format", "raw"], 2, &["is the name of an E01"]),
        (&["--sidecars", "none,md5"], 2, &["none and others"]),
    ] {
        let said = pool.run([&["save", "case7", &file], more].concat());
        assert_eq!(said.status.code(), Some(code), "{}", said.err);
        tools::names(&said.err, words);
    }
    // A machine without libewf.
    let mut command = pool.command();
    command.args(["save", "case7", &file]).env("PATH", &directory);
    let output = tools::output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    tools::names(&said, &["is not here", "ewf-tools"]);
    assert_eq!(names(&directory), [""; 0]);
}

#[test]
fn zeros_of_an_e01_that_could_not_be_read_are_told_and_listed() {
    let (mut pool, _) = loaded();
    pool.donor("two").kill();
    wait::until("the loss", wait::SOON, || pool.volume_status("case7")["lost_donors"] == json!(["two"]));
    let directory = pool.scratch().directory("out");
    let said = save(&pool, &directory.join("rest.E01"), &["--json", "--sidecars", "dfxml"]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    let report: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(report["unreadable"], json!([{"offset": 64 * MIB, "len": 64 * MIB}]), "{report}");
    let words = (&report["verified"], &report["as_loaded"]);
    assert_eq!(words, (&json!(true), &json!(false)), "{report}");
    tools::names(&said.err, &["64 MiB", "could not be read", "rest.E01.map"]);
    assert_eq!(names(&directory), ["rest.E01", "rest.E01.dfxml", "rest.E01.map"]);
    let read = read_dfxml(&directory.join("rest.E01.dfxml"));
    assert_eq!(read["unreadable"], json!([[64 * MIB, 64 * MIB]]));
    tools::expect_success(&mut tool("ewfverify", &directory, &["-q", "rest.E01"]));

    // And to stdout, which has none of this beside it.
    let (out, said) = to_stdout(&pool, &directory.join("piped.dd"), &["--json"]);
    assert_eq!(out.code(), Some(6), "{said}");
    let report = stdout_report(&said);
    assert_eq!((&report["verified"], &report["file"]), (&json!(false), &json!("-")));
    assert_eq!(report["unreadable"], json!([{"offset": 64 * MIB, "len": 64 * MIB}]), "{report}");
    assert_eq!(report["hashes"]["sha256"], hash::of_file(directory.join("piped.dd")).as_str());
    assert!(!directory.join("piped.dd.map").exists() && !Path::new("-.map").exists());
}

/// Saves to stdout, which is a pipe to `cat`.
fn to_stdout(pool: &Pool, file: &Path, more: &[&str]) -> (ExitStatus, String) {
    let mut command = pool.command();
    command.args(["save", "case7", "-"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut saving = command.spawn().expect("it starts");
    let mut cat = tool("cat", file.parent().expect("a folder"), &[]);
    cat.stdin(saving.stdout.take().expect("a pipe")).stdout(File::create(file).expect("made"));
    assert!(cat.status().expect("it runs").success());
    let output = saving.wait_with_output().expect("it ends");
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The object on stderr that is the report.
fn stdout_report(said: &str) -> Value {
    let objects = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.into_iter().find(|object| object.get("hashes").is_some()).expect("a report")
}

#[test]
fn stdout_gets_the_bytes_and_no_word_of_being_verified() {
    let (pool, image) = loaded();
    let directory = pool.scratch().directory("out");
    let (status, said) = to_stdout(&pool, &directory.join("piped.dd"), &[]);
    assert!(status.success(), "{said}");
    assert_eq!(hash::of_file(directory.join("piped.dd")), hash::of_file(&image));
    tools::names(&said, &["to stdout", "not verified", "it is what was loaded from", &hash::of_file(&image)]);
    assert!(!said.contains("verified: the file"), "{said}");
    for more in [&["--format", "e01"][..], &["--sidecars", "md5"], &["--piecewise", "1M"]] {
        let said = pool.run([&["save", "case7", "-"], more].concat());
        assert_eq!((said.status.code(), said.out.len()), (Some(2), 0), "{}", said.err);
    }
    // One who has seen enough.
    let mut command = pool.command();
    command.args(["save", "case7", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut saving = command.spawn().expect("it starts");
    drop(saving.stdout.take());
    let output = saving.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    tools::names(&said, &["who reads stdout ended"]);
    // And one who does not read: a signal ends it all the same.
    let mut command = pool.command();
    command.args(["save", "case7", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut saving = command.spawn().expect("it starts");
    let mut first = [0];
    saving.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("it has begun");
    cheetah_lab::mark::signal(saving.id(), Signal::INT);
    wait::until("it ends", wait::SOON, || saving.try_wait().expect("asked").is_some());
    assert_eq!(saving.wait().expect("it has ended").code(), Some(1));
}

/// A save that waits for a donor, which is stopped, in the middle: all of the first extent is behind it.
fn stalled(pool: &Pool, file: &Path) -> Process {
    cheetah_lab::mark::signal(pool.pid_of("two"), Signal::STOP);
    let mut command = pool.command();
    command.args(["save", "case7"]).arg(file);
    Process::start("save", command, pool.scratch().path())
}

fn go_on(pool: &Pool) {
    cheetah_lab::mark::signal(pool.pid_of("two"), Signal::CONT);
}

/// The process of this name that it started.
fn child_of(saving: &Process) -> u32 {
    let look = || {
        let parent = saving.pid().to_string();
        let output = tools::output(tools::command("pgrep").args(["-P", &parent, "ewfacquirestr"]));
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    };
    wait::for_some("ewfacquirestream", wait::SOON, look)
}

#[test]
fn an_e01_that_is_not_written_to_its_end_is_none() {
    let (pool, _) = loaded();
    let directory = pool.scratch().directory("out");
    let small = pool.scratch().directory("small");
    tools::run("mount", ["-t", "tmpfs", "-o", "size=2m", "none", &small.display().to_string()]);
    let full = save(&pool, &small.join("full.E01"), &[]);
    let left = names(&small);
    tools::run("umount", [&small]);
    assert_eq!((full.status.code(), left), (Some(1), Vec::new()), "{}", full.err);
    tools::names(&full.err, &["ewfacquirestream", "No space left", "nothing was saved"]);

    let file = directory.join("case7.E01");
    let part = directory.join("case7.E01.part");
    let has_begun = || fs::metadata(part.join("case7.E01")).is_ok_and(|file| file.len() > 2 * MIB);
    // Who writes it is killed; the command is told to end; the command is killed.
    for what in ["SIGKILL", "interrupted"] {
        let mut saving = stalled(&pool, &file);
        wait::until("it has begun", wait::SOON, has_begun);
        let child = child_of(&saving);
        match what {
            "SIGKILL" => cheetah_lab::mark::signal(child, Signal::KILL),
            _ => saving.signal(Signal::INT),
        }
        go_on(&pool);
        assert_eq!(saving.wait_for_end(wait::SOON).code(), Some(1), "{}", saving.log());
        tools::names(&saving.log(), &[what, "nothing was saved"]);
        assert_eq!(names(&directory), [""; 0]);
        wait::until("its end", wait::SOON, || !Path::new(&format!("/proc/{child}")).exists());
    }
    let mut saving = stalled(&pool, &file);
    wait::until("it has begun", wait::SOON, has_begun);
    let child = child_of(&saving);
    saving.kill();
    go_on(&pool);
    wait::until("its end", wait::SOON, || !Path::new(&format!("/proc/{child}")).exists());
    assert_eq!(names(&directory), ["case7.E01.part"]);
    // It is refused as somebody's, and replaced when told so.
    assert_eq!(save(&pool, &file, &[]).status.code(), Some(4));
    saved(&pool, &file, &["--overwrite"]);
    assert_eq!(names(&directory), ["case7.E01"]);
}

#[test]
fn what_does_not_read_back_keeps_the_name_of_a_part() {
    let (pool, _) = loaded();
    let directory = pool.scratch().directory("out");
    // Another program writes in it meanwhile, as a disk that goes bad would.
    for (name, inside, at) in [("bad.dd", "", NOISE_AT + MIB), ("bad.E01", "bad.E01", MIB)] {
        let part = directory.join(format!("{name}.part"));
        let written = if inside.is_empty() { part.clone() } else { part.join(inside) };
        let mut saving = stalled(&pool, &directory.join(name));
        let mut byte = [0];
        wait::until("it has that", wait::SOON, || {
            let read = File::open(&written).and_then(|file| file.read_exact_at(&mut byte, at + MIB));
            read.is_ok() && byte[0] != 0
        });
        flip(&written, at);
        go_on(&pool);
        assert_eq!(saving.wait_for_end(wait::SOON).code(), Some(6), "{}", saving.log());
        tools::names(
            &saving.log(),
            &[&format!("{name}.part"), "does not hold what was written", "keeps this name"],
        );
        assert!(!saving.log().contains("verified"), "{}", saving.log());
        assert_eq!(names(&directory), [format!("{name}.part")]);
        match inside {
            "" => fs::remove_file(&part).expect("it is there"),
            _ => fs::remove_dir_all(&part).expect("it is there"),
        }
    }
}
