//! Sources that a server has: what `load` makes of them, and of servers that break off, change and end.
//!
//! Servers are lighttpd, Python's `http.server`, nbdkit and qemu-nbd; one of our own misbehaves as it is
//! told. What comes is compared by its hash with what was served.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use cheetah_lab::command::Said;
use cheetah_lab::dice::noise;
use cheetah_lab::images::Sample;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::rivals::{Rival, unix_uri, wait_for_unix};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::tools::names;
use cheetah_lab::web::{Site, Web};
use cheetah_lab::{hash, tools, wait};
use cheetah_source::{Options, Source, SourceError};
use rustix::process::Signal;
use serde_json::{Value, json};

fn pool() -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", "512M");
    pool
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
        // What is asked with an address is no part of the name.
        ("parts.002?key=a.E01", "raw image in 3 parts"),
        ("case.E01?key=a.002", "E01 image, "),
    ] {
        let report = loads_as(&pool, &format!("{}/{file}", site.url), "case", &expected);
        names(report["source"].as_str().unwrap_or_default(), &[what]);
        pool.ok(["delete", "case"]);
    }
    // What is not there is named.
    fs::remove_file(directory.join("case.E02")).expect("it was made");
    // It remembers for a moment what it had.
    let second = format!("{}/case.E02", site.url);
    let asked = ["-s", "-o", "/dev/null", "-w", "%{http_code}", &second];
    wait::until("the server has it no more", wait::SOON, || tools::run("curl", asked) == "404");
    let said = load_fails(&pool, &[&format!("{}/case.E01", site.url), "case"], 1);
    names(&said.err, &["case.E02 is missing"]);
    let said = load_fails(&pool, &[&format!("{}/nothing", site.url), "case"], 1);
    names(&said.err, &["/nothing", "the server has nothing of this name"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a source that could not be opened left a volume");
}

#[test]
fn an_image_comes_by_https_from_a_server_that_somebody_vouches_for() {
    let pool = pool();
    let directory = pool.scratch().directory("site");
    let bytes = noise(9 << 20, 3);
    fs::write(directory.join("disk.raw"), &bytes).expect("written");
    let (site, authority) = Site::lighttpd_tls(&directory);
    let url = format!("{}/disk.raw", site.url);
    let said = load_fails(&pool, &[&url, "case"], 1);
    names(&said.err, &["the server's certificate is not good", "SSL_CERT_FILE"]);
    let mut command = pool.command();
    command.args(["load", &url, "case", "--json"]).env("SSL_CERT_FILE", &authority);
    let report: Value = serde_json::from_str(&tools::expect_success(&mut command)).expect("a report");
    assert_eq!(report["file_hashes"]["sha256"], sha256(&bytes), "{report}");
    let mut command = pool.command();
    let elsewhere = url.replace("127.0.0.1", "localhost");
    command.args(["load", &elsewhere, "other"]).env("SSL_CERT_FILE", &authority);
    names(&tools::expect_failure(&mut command), &["certificate is not good"]);
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
        ("ftp://127.0.0.1/disk.raw", &["addresses that begin with ftp:// are not read", "https://"][..]),
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
    web.manners.hangs_from.store(10 << 20, Ordering::Release);
    let said = load_fails(&pool, &[&web.url, "case", "--patience", "1"], 1);
    names(&said.err, &["cannot be read at byte", "nothing came in 1 s", "is incomplete, with 10 MiB loaded"]);
    web.manners.hangs_from.store(0, Ordering::Release);
    let report = pool.json(["load", &web.url, "case", "--resume"]);
    assert_eq!((&report["verified"], &report["resumed_bytes"]), (&json!(true), &json!(10 << 20)), "{report}");
    assert_eq!(report["file_hashes"]["sha256"], sha256(&bytes).as_str());
}

/// Who wants it to end need not wait for a server that is silent.
#[test]
fn a_load_that_waits_for_its_server_can_be_ended() {
    let pool = pool();
    let bytes = noise(40 << 20, 10);
    let web = Web::serve(bytes.clone());
    let map = pool.scratch().join("case.map").display().to_string();
    web.manners.hangs_from.store(30 << 20, Ordering::Release);
    let mut command = pool.command();
    command.args(["load", &web.url, "case", "--patience", "3600", "--map", &map]);
    let mut loading = Process::start("load", command, pool.scratch().path());
    let done = || pool.status()["volumes"][0]["content"]["load"]["bytes_done"].as_u64().unwrap_or(0);
    wait::until("what came before it was silent", wait::SOON, || done() > 4 << 20);
    loading.signal(Signal::INT);
    let status = loading.wait_for_end(wait::SOON);
    assert_eq!(status.code(), Some(1), "{}", loading.log());
    names(&loading.log(), &["interrupted", "volume 'case' is incomplete", "--resume"]);
    let log = tools::run("ddrescuelog", ["--show-status", &map]);
    names(&log, &["non-tried", "rescued"]);
    assert_eq!(tools::run("ddrescuelog", ["--list-blocks=-", &map]), "", "nothing is bad");
    web.manners.hangs_from.store(0, Ordering::Release);
    let report = pool.json(["load", &web.url, "case", "--resume", "--map", &map]);
    assert_eq!(report["file_hashes"]["sha256"], sha256(&bytes).as_str());
    assert_eq!(tools::run("ddrescuelog", ["--list-blocks=?-", &map]), "");
}

/// nbdkit on this socket; it can be started there again.
#[track_caller]
fn nbdkit(socket: &Path, arguments: &[&str]) -> Process {
    // One that was killed leaves it.
    let _ = fs::remove_file(socket);
    let mut command = tools::command("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).args(arguments);
    let process = Process::start("nbdkit", command, socket.parent().expect("a directory"));
    wait_for_unix(socket);
    process
}

#[test]
fn disks_come_by_nbd_as_they_are() {
    let pool = pool();
    let scratch = pool.scratch();
    let bytes = fs::read(Sample::named("fs.ext4").path()).expect("a sample");
    let mut disk = bytes[..12 << 20].to_vec();
    disk.resize(200 << 20, 0);
    disk.extend_from_slice(&noise(4096 + 512, 6));
    let raw = scratch.file("disk.raw", &disk);
    let expected = hash::of_file(&raw);

    // By TCP and export name, with holes that are not fetched.
    let kit = Rival::nbdkit(&["file", &format!("dir={}", scratch.path().display())]);
    let report = loads_as(&pool, &format!("{}disk.raw", kit.uri), "tcp", &expected);
    pool.ok(["delete", "tcp"]);
    assert_eq!((&report["source"], &report["checksummed"]), (&json!("NBD export"), &json!(false)));
    let said = load_fails(&pool, &[&format!("{}nothing", kit.uri), "case"], 1);
    names(&said.err, &["/nothing", "the server has nothing of this name"]);
    // An image in a container, with its segments as exports beside it.
    ewf(&raw, &scratch.join("case"), &["-c", "deflate:fast", "-S", "1MiB"]);
    let report = loads_as(&pool, &format!("{}case.E01", kit.uri), "ewf", &expected);
    pool.ok(["delete", "ewf"]);
    names(report["source"].as_str().unwrap_or_default(), &["E01 image, "]);
    assert_eq!(report["claims"]["same"], json!(true));

    // By a Unix socket, of a server that tells nothing of holes, and gives blocks of 4 KiB only.
    let socket = scratch.join("kit.sock");
    let log = scratch.join("kit.log");
    let (file, log_file) = (raw.display().to_string(), format!("logfile={}", log.display()));
    let policy = ["--filter=log", "--filter=blocksize-policy", "file", &file, &log_file];
    let sizes = ["blocksize-minimum=512", "blocksize-preferred=4096", "blocksize-maximum=64K"];
    let _kit = nbdkit(&socket, &[&policy[..], &sizes, &["blocksize-error-policy=error"]].concat());
    loads_as(&pool, &unix_uri(&socket, ""), "unix", &expected);
    pool.ok(["delete", "unix"]);
    let log = fs::read_to_string(log).expect("what was asked");
    let asked =
        |word: &str| log.lines().filter(|line| line.contains(word) && line.contains("offset=")).count();
    assert!(asked(" Read ") > 0 && asked(" Extents ") > 0, "{log}");
    for word in [" Write ", " Trim ", " Zero ", " Flush "] {
        assert_eq!(asked(word), 0, "a source was asked to{word}");
    }

    // qemu-nbd shows what a container holds, to one client at a time.
    let packed = scratch.join("packed.qcow2");
    let mut convert = tools::command("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2", "-c"]).arg(&raw).arg(&packed);
    tools::expect_success(&mut convert);
    let socket = scratch.join("qemu.sock");
    let mut command = tools::command("qemu-nbd");
    command.args(["--read-only", "--persistent", "--format=qcow2", "--export-name=case", "--socket"]);
    let _qemu = Process::start(
        "qemu-nbd",
        {
            command.arg(&socket).arg(&packed);
            command
        },
        scratch.path(),
    );
    wait::until("qemu-nbd", wait::SOON, || socket.exists());
    let qemu = loads_as(&pool, &unix_uri(&socket, "case"), "qemu", &expected);
    assert_eq!(qemu["bytes"], json!(disk.len()));
}

#[test]
fn an_nbd_server_that_cannot_be_read_from_is_said_to_be_so() {
    let pool = pool();
    let nobody = format!("nbd://127.0.0.1:{}/", cheetah_lab::rivals::free_port());
    let said = load_fails(&pool, &[&nobody, "case", "--patience", "1"], 1);
    names(&said.err, &[&nobody, "nothing came in 1 s", "Connection refused"]);
    // A web server is none.
    let web = Web::serve(vec![7; 4096]);
    let other = web.url.replace("http", "nbd");
    load_fails(&pool, &[&other, "case", "--patience", "1"], 1);
    assert_eq!(pool.status()["volumes"], json!([]));
}

/// It ends, hangs, comes back, and comes back as another.
#[test]
fn reads_go_on_when_an_nbd_server_is_back() {
    let scratch = Scratch::new();
    let bytes = noise(8 << 20, 7);
    let disk = scratch.file("disk.raw", &bytes).display().to_string();
    let socket = scratch.join("kit.sock");
    let start = || nbdkit(&socket, &["file", &disk]);
    let mut kit = start();
    let source = opened(&unix_uri(&socket, ""), &patient(1));
    let mut room = vec![0; 1 << 20];
    source.read_exact_at(1 << 20, &mut room).unwrap_or_else(|error| panic!("{error}"));
    assert!(room == bytes[1 << 20..2 << 20]);
    kit.kill();
    let error = source.read_exact_at(0, &mut room).expect_err("nobody is there");
    names(&error.to_string(), &["nothing came in 1 s"]);
    kit = start();
    source.read_exact_at(3 << 20, &mut room).unwrap_or_else(|error| panic!("{error}"));
    assert!(room == bytes[3 << 20..4 << 20]);
    // While it is read by several, and for longer than it is away.
    let patiently = opened(&unix_uri(&socket, ""), &patient(60));
    std::thread::scope(|threads| {
        for reader in 0..4_usize {
            let (source, bytes) = (&patiently, &bytes);
            threads.spawn(move || {
                let mut room = vec![0; 65_536];
                for at in (reader * 65_536..8 << 20).step_by(4 * 65_536) {
                    source.read_exact_at(at as u64, &mut room).unwrap_or_else(|error| panic!("{error}"));
                    assert!(room == bytes[at..at + 65_536]);
                }
            });
        }
        kit.kill();
        kit = start();
    });
    kit.signal(Signal::STOP);
    let error = source.read_exact_at(0, &mut room).expect_err("it does not answer");
    names(&error.to_string(), &["nothing came in 1 s"]);
    kit.signal(Signal::CONT);
    source.read_exact_at(5 << 20, &mut room).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(source.changed(), None);
    kit.kill();
    fs::write(&disk, &bytes[..4 << 20]).expect("written");
    let _kit = start();
    let error = source.read_exact_at(0, &mut room).expect_err("it is another");
    names(&error.to_string(), &["was changed while it was read", "8388608 bytes and has 4194304"]);
    names(&source.changed().expect("it was"), &["8388608 bytes and has 4194304"]);
}

/// What the medium behind a server cannot give is passed over, told, mapped, and EIO in the volume.
#[test]
fn bad_sectors_of_a_remote_disk_are_mapped() {
    let mut pool = pool();
    let bytes = noise((3 << 20) + 1536, 8);
    let image = pool.scratch().file("disk.raw", &bytes);
    let bad = [(1_052_672_u64, 512_u64), (2_100_224, 4096)];
    let hits = bad.map(|(at, len)| format!("{{ [ $4 -lt {} ] && [ $(($4 + $3)) -gt {at} ]; }}", at + len));
    let pread = format!(
        "pread=if {} || {}; then echo EIO bad sector >&2; exit 1; fi; \
         dd if={} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
        hits[0],
        hits[1],
        image.display()
    );
    let kit = Rival::nbdkit(&["eval", &format!("get_size=echo {}", bytes.len()), &pread]);
    let map = pool.scratch().join("disk.map").display().to_string();
    let said = load_fails(&pool, &[&kit.uri, "disk", "--map", &map], 6);
    names(&said.out, &["unreadable      512 bytes from 1052672 on", "4096 bytes from 2100224 on"]);
    names(&said.out, &["zeros stand in the hashes"]);
    let mut zeroed = bytes.clone();
    bad.iter().for_each(|(at, len)| zeroed[*at as usize..(at + len) as usize].fill(0));
    names(&said.out, &[&sha256(&zeroed)]);
    // As ddrescue reads its maps: bad blocks of 512 bytes, by their number.
    let listed = tools::run("ddrescuelog", ["--list-blocks=-", "--block-size=512", &map]);
    let blocks: Vec<u64> = listed.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let expected = bad.iter().flat_map(|(at, len)| (at / 512..(at + len) / 512).collect::<Vec<_>>());
    assert_eq!(blocks, expected.collect::<Vec<_>>(), "{listed}");
    let path = pool.attach_fuse("disk", &[]).path;
    let file = fs::File::open(&path).expect("readable");
    for (at, len) in bad {
        assert_eq!(file.read_at(&mut [0; 16], at).expect_err("EIO").raw_os_error(), Some(5));
        file.read_exact_at(&mut [0; 16], (at + len).next_multiple_of(4096)).expect("behind it");
    }
    drop(file);
    pool.detach("disk");
    // Nothing but a map is overwritten.
    let said = load_fails(&pool, &[&kit.uri, "other", "--map", &image.display().to_string()], 2);
    names(&said.err, &["is no map of ddrescue", "not overwritten"]);
    assert_eq!(fs::read(&image).expect("there"), bytes);
}

#[test]
fn a_disk_that_is_written_is_not_read_by_accident() {
    tools::need_root("loop devices");
    let pool = pool();
    let image = pool.scratch().sparse_file("disk.raw", 16 << 20);
    tools::run("mkfs.ext4", ["-q", "-F", &image.display().to_string()]);
    let expected = hash::of_file(&image);
    let device = LoopDevice::of(&image);
    let report = loads_as(&pool, &device.path, "free", &expected);
    assert_eq!(report["source"], json!("disk"));
    let mount = pool.scratch().directory("mnt");
    let on = |options: &str| {
        tools::run("mount", ["-o", options, &device.path, &mount.display().to_string()]);
        Mounted(mount.clone())
    };
    let mounted = on("rw");
    let said = load_fails(&pool, &[&device.path, "case"], 4);
    names(&said.err, &[&device.path, "is mounted at", "for writing", "--mounted"]);
    let report = pool.json(["load", &device.path, "case", "--mounted"]);
    assert_eq!(report["verified"], json!(true));
    drop(mounted);
    let _mounted = on("ro");
    pool.ok(["load", &device.path, "read-only"]);
}

/// A loop device, gone with the test.
struct LoopDevice {
    path: String,
}

impl LoopDevice {
    fn of(file: &Path) -> LoopDevice {
        let path = tools::run("losetup", ["--find", "--show", &file.display().to_string()]);
        LoopDevice { path: path.trim().to_owned() }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = tools::output(tools::command("losetup").args(["--detach", &self.path]));
    }
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = tools::output(tools::command("umount").arg(&self.0));
    }
}

#[test]
fn hashes_are_what_was_expected_or_it_is_said() {
    let pool = pool();
    let bytes = noise(2 << 20, 9);
    let image = pool.scratch().file("disk.raw", &bytes).display().to_string();
    for (tool, ending) in [("md5sum", "md5"), ("sha1sum", "sha1"), ("sha256sum", "sha256")] {
        fs::write(format!("{image}.{ending}"), tools::run(tool, [&image])).expect("written");
    }
    let report = pool.json(["load", &image, "case", "--expect", &format!("sha256:{}", sha256(&bytes))]);
    let expected = report["expected"].as_array().expect("four").clone();
    assert_eq!((expected.len(), expected.iter().all(|one| one["same"] == true)), (4, true), "{report}");
    assert_eq!(report["file_hashes"]["sha1"].as_str().map(str::len), Some(40), "{report}");
    names(&pool.ok(["load", &image, "again"]), &["SHA-1   file", "SHA-1 as ", "disk.raw.sha1 expects"]);
    // Beside what a server has, too.
    let site = Site::lighttpd(pool.scratch().path());
    names(&pool.ok(["load", &format!("{}/disk.raw", site.url), "web"]), &["disk.raw.sha256 expects"]);
    // One that is of another disk.
    fs::write(format!("{image}.sha1"), format!("{}  disk.raw\n", "0".repeat(40))).expect("written");
    let said = load_fails(&pool, &[&image, "other"], 6);
    names(&said.out, &["SHA-1 DIFFERS", "MD5 as", "verified: "]);
    names(&said.err, &["does not have the SHA-1 that", "disk.raw.sha1 expects"]);
    let said = load_fails(&pool, &[&image, "third", "--expect", "md5:00000000000000000000000000000000"], 6);
    names(&said.err, &["the MD5 that --expect expects"]);
    load_fails(&pool, &[&image, "fourth", "--expect", "md5:0"], 2);
}
