//! Sources that a server has: what `load` makes of them, and of servers that break off, change and end.
//!
//! Servers are lighttpd, Python's `http.server`, nbdkit and qemu-nbd; one of our own misbehaves as it is told.
//! What comes is compared by its hash with what was served.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::images::Sample;
use cheetah_lab::pool::{Pool, Said};
use cheetah_lab::web::{Site, Web};
use cheetah_lab::{hash, tools};
use cheetah_source::{Options, Source, SourceError};
use serde_json::{Value, json};

#[track_caller]
fn names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

fn pool() -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", "512M");
    pool
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut noise: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).collect();
    noise.truncate(bytes);
    noise
}

fn sha256(bytes: &[u8]) -> String {
    hash::of_reader(bytes).expect("a slice reads")
}

/// Loads from an address, and compares what the volume gives back with what was served.
#[track_caller]
fn loads_as(pool: &Pool, url: &str, volume: &str, sha256: &str) -> Value {
    let report = pool.json(["load", url, volume, "--read-back"]);
    assert_eq!((&report["verified"], &report["file_changed"]), (&json!(true), &Value::Null), "{report}");
    assert_eq!(report["volume_hashes"]["sha256"], sha256, "{url}: {report}");
    report
}

#[track_caller]
fn load_fails(pool: &Pool, arguments: &[&str], code: i32) -> Said {
    let said = pool.run([&["load"], arguments].concat());
    assert_eq!(said.status.code(), Some(code), "{}{}", said.out, said.err);
    said
}

fn patient(seconds: u64) -> Options {
    Options { patience: Duration::from_secs(seconds), ..Options::default() }
}

#[track_caller]
fn opened(url: &str, options: &Options) -> Box<dyn Source> {
    cheetah_source::open(Path::new(url), options).unwrap_or_else(|error| panic!("{error}"))
}

/// An E01 set of a disk by `ewfacquire`; its first segment.
fn ewf(disk: &Path, target: &Path, more: &[&str]) -> PathBuf {
    let mut command = tools::command("ewfacquire");
    command.args(["-u", "-q", "-t"]).arg(target).args(more).arg(disk);
    tools::expect_success(&mut command);
    target.with_extension("E01")
}

#[test]
fn images_come_by_http_as_they_are() {
    let pool = pool();
    let sample = Sample::named("fs.ntfs");
    let site = Site::lighttpd(sample.path().parent().expect("a directory"));
    let name = sample.path().file_name().expect("a name").to_string_lossy().into_owned();
    let report = loads_as(&pool, &format!("{}/{name}", site.url), "whole", sample.sha256);
    assert_eq!((&report["source"], &report["checksummed"]), (&json!("raw image by HTTP"), &json!(false)));
    let content = pool.json(["show", "whole"])["status"]["content"].clone();
    assert_eq!(content["load"]["source"]["name"], format!("{}/{name}", site.url), "{content}");
    pool.ok(["delete", "whole"]);

    // Images in containers, with all their parts.
    let directory = pool.scratch().directory("site");
    let bytes = fs::read(sample.path()).expect("a sample");
    let disk = pool.scratch().file("disk.raw", &bytes[..12 << 20]);
    let expected = hash::of_file(&disk);
    ewf(&disk, &directory.join("case"), &["-c", "deflate:fast", "-S", "1MiB"]);
    let convert = |format: &str, options: &[&str], to: &str| {
        let mut command = tools::command("qemu-img");
        command.args(["convert", "-f", "raw", "-O", format]).args(options);
        tools::expect_success(command.arg(&disk).arg(directory.join(to)));
    };
    convert("qcow2", &["-c"], "packed.qcow2");
    convert("vmdk", &["-o", "subformat=monolithicFlat"], "a flat one.vmdk");
    convert("vhdx", &[], "disk.vhdx");
    let mut split = tools::command("split");
    split.args(["-b", "5M", "-d", "-a", "3", "--numeric-suffixes=1"]).arg(&disk);
    tools::expect_success(split.arg(directory.join("parts.")));
    let site = Site::lighttpd(&directory);
    for (file, what) in [
        ("case.E01", "E01 image, "),
        ("packed.qcow2", "QCOW2 image (version 3)"),
        ("a flat one.vmdk", "VMDK image (monolithicFlat)"),
        ("disk.vhdx", "VHDX image"),
        ("parts.002", "raw image in 3 parts"),
    ] {
        let report = loads_as(&pool, &format!("{}/{file}", site.url), "case", &expected);
        names(report["source"].as_str().unwrap_or_default(), &[what]);
        pool.ok(["delete", "case"]);
    }
    // What is not there is named.
    fs::remove_file(directory.join("case.E02")).expect("it was made");
    let said = load_fails(&pool, &[&format!("{}/case.E01", site.url), "case"], 1);
    names(&said.err, &["case.E02 is missing"]);
    let said = load_fails(&pool, &[&format!("{}/nothing", site.url), "case"], 1);
    names(&said.err, &["/nothing", "the server has nothing of this name"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a source that could not be opened left a volume");
}

#[test]
fn a_server_that_cannot_be_read_from_is_said_to_be_so() {
    let pool = pool();
    let directory = pool.scratch().directory("site");
    fs::write(directory.join("disk.raw"), noise(100_000, 1)).expect("written");
    fs::write(directory.join("empty.raw"), b"").expect("written");
    let site = Site::python(&directory);
    let at = |name: &str| format!("{}/{name}", site.url);
    let said = load_fails(&pool, &[&at("disk.raw"), "case"], 1);
    names(&said.err, &["disk.raw", "gives files as a whole only", "curl -O"]);
    names(&load_fails(&pool, &[&at("empty.raw"), "case"], 1).err, &["it is empty"]);
    // Nobody there, and what is not spoken.
    let nobody = format!("http://127.0.0.1:{}/disk.raw", cheetah_lab::rivals::free_port());
    let said = load_fails(&pool, &[&nobody, "case", "--patience", "1"], 1);
    names(&said.err, &[&nobody, "nothing came in 1 s", "Connection refused"]);
    for (address, words) in [
        ("https://127.0.0.1/disk.raw", &["HTTPS is not spoken yet", "curl -O"][..]),
        ("http://me:secret@127.0.0.1/disk.raw", &["passwords in an address are not sent"]),
        ("gopher://127.0.0.1/disk.raw", &["addresses that begin with gopher://", "http://"]),
    ] {
        names(&load_fails(&pool, &[address, "case"], 1).err, words);
    }
    assert_eq!(pool.status()["volumes"], json!([]));
}

/// Connections that break at every byte, and a server that is busy: all is read, and nothing twice.
#[test]
fn a_read_goes_on_where_a_connection_broke() {
    let pool = pool();
    let bytes = noise((5 << 20) + 777, 2);
    let web = Web::serve(bytes.clone());
    web.manners.breaks_off_after.store(300_000, Ordering::Release);
    web.manners.busy_for.store(3, Ordering::Release);
    loads_as(&pool, &web.url, "case", &sha256(&bytes));
    let asked = web.asked.lock().expect("no server panicked").clone();
    // One read finds out whether it can be read, before anything is made.
    let first = asked.iter().filter(|(from, _)| (1 << 20..2 << 20).contains(from)).count();
    assert_eq!(first, 4, "a MiB in pieces of 300,000 bytes: {asked:?}");
    assert!(asked.iter().any(|(from, to)| (*from, *to) == ((1 << 20) + 300_000, 2 << 20)), "{asked:?}");
}

#[test]
fn a_file_that_changes_meanwhile_is_noticed() {
    let (bytes, other) = (noise(1 << 20, 3), noise(1 << 20, 4));
    let web = Web::serve(bytes.clone());
    let source = opened(&web.url, &patient(5));
    let mut room = vec![0; 1 << 20];
    source.read_exact_at(0, &mut room).unwrap_or_else(|error| panic!("{error}"));
    assert!(room == bytes);
    assert_eq!(source.changed(), None);
    // As large, with another ETag; then smaller.
    web.replace(other);
    let error = source.read_exact_at(4096, &mut room[..4096]).expect_err("it is another");
    names(&error.to_string(), &["was changed while it was read", "ETag \"v1\"", "ETag \"v2\""]);
    names(&source.changed().expect("it was"), &["\"v1\"", "\"v2\""]);
    web.replace(bytes[..1000].to_vec());
    assert!(source.read_exact_at(4096, &mut room[..4096]).is_err());
    names(&source.changed().expect("it was"), &["it had 1048576 bytes and has 1000"]);
}

/// A server that ends for good ends the load in bounded time; when it is back the load goes on.
#[test]
fn a_load_goes_on_when_its_server_is_back() {
    let pool = pool();
    let bytes = noise(40 << 20, 5);
    let web = Web::serve(bytes.clone());
    for hangs in [true, false] {
        let source = opened(&web.url, &patient(1));
        if hangs { &web.manners.hangs } else { &web.manners.away }.store(true, Ordering::Release);
        let error = source.read_exact_at(0, &mut [0; 4096]).expect_err("nothing comes");
        assert!(matches!(error, SourceError::Read { offset: 0, .. }), "{error}");
        names(&error.to_string(), &["nothing came in 1 s"]);
        web.manners.hangs.store(false, Ordering::Release);
        web.manners.away.store(false, Ordering::Release);
        source.read_exact_at(0, &mut [0; 4096]).unwrap_or_else(|error| panic!("{error}"));
    }
    pool.ok(["load", &web.url, "case", "--no-verify"]);
    let report = pool.json(["load", &web.url, "case", "--resume"]);
    assert_eq!((&report["verified"], &report["resumed_bytes"]), (&json!(true), &json!(40 << 20)), "{report}");
    assert_eq!(report["file_hashes"]["sha256"], sha256(&bytes).as_str());
}
