//! NBD clients that others wrote, against a donor without a pool and against the export of an attached
//! volume, each over TCP and over a Unix socket. One test per client; every test goes through all four
//! targets.

use std::process::Command;

use cheetah_lab::lone::LoneDonor;
use cheetah_lab::pool::Pool;
use cheetah_lab::rivals::Rival;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{hash, images::Sample, tools};
use serde_json::Value;

/// Runs `check` against an export of `gib` GiB of each kind. The lone donors go first, one at a time, so that
/// no more memory is in use than one target needs.
#[track_caller]
fn on_every_target(gib: u32, check: impl Fn(&str)) {
    let size = format!("{gib}G");
    for start in [LoneDonor::tcp, LoneDonor::unix] {
        let donor = start(&size);
        check(&donor.uri);
    }
    for attach in [Pool::attach_export, Pool::attach_export_unix] {
        let mut pool = Pool::in_the_clear();
        pool.donate("one", &size);
        pool.donate("two", &size);
        pool.ok(["create", "case", &size, "--redundancy", "stripe:2", "--unit", "64K"]);
        let attached = attach(&mut pool, "case", &[]);
        check(&attached.uri);
        pool.detach("case");
    }
}

/// The address without its export name, for clients that list.
fn root_of(uri: &str) -> String {
    match uri.split_once('?') {
        Some((_, socket)) => format!("nbd+unix:///?{socket}"),
        None => uri.rsplit_once('/').map_or(uri, |(root, _)| root).to_owned(),
    }
}

#[track_caller]
fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let mut command = tools::command("qemu-io");
    command.args(["-f", "raw"]);
    for one in commands {
        command.args(["-c", one]);
    }
    let said = tools::expect_success(command.arg(uri));
    assert!(!said.contains("failed"), "{commands:?} on {uri}: {said}");
    said
}

#[test]
fn nbdinfo_tells_size_flags_and_names() {
    on_every_target(1, |uri| {
        assert_eq!(tools::run("nbdinfo", ["--size", uri]).trim(), (1_u64 << 30).to_string());
        let told: Value = serde_json::from_str(&tools::run("nbdinfo", ["--json", uri])).expect("JSON");
        assert_eq!(told["protocol"], "newstyle-fixed", "{told}");
        assert_eq!(told["structured"], true, "{told}");
        let export = &told["exports"][0];
        for flag in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_cache", "can_df"]
        {
            assert_eq!(export[flag], true, "{flag} of {uri}: {told}");
        }
        assert_eq!(export["is_read_only"], false, "{told}");
        let contexts = export["contexts"].as_array().expect("contexts");
        assert!(contexts.iter().any(|context| context == "base:allocation"), "{told}");

        let listed = tools::run("nbdinfo", ["--list", "--json", &root_of(uri)]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let exports = listed["exports"].as_array().expect("a list of exports");
        assert!(exports.iter().any(|listed| listed["export-size"] == 1_u64 << 30), "{uri}: {listed:?}");
    });
}

#[test]
fn nbdinfo_maps_what_was_written_and_nothing_else() {
    on_every_target(1, |uri| {
        qemu_io(uri, &["write -P 0x5a 64M 128k", "flush"]);
        let map = tools::run("nbdinfo", ["--map", "--json", uri]);
        let map: Value = serde_json::from_str(&map).expect("JSON");
        let rows = map.as_array().expect("a list of runs");
        let mut next = 0;
        let mut data = Vec::new();
        for row in rows {
            let (offset, length) =
                (row["offset"].as_u64().expect("u64"), row["length"].as_u64().expect("u64"));
            assert_eq!(offset, next, "a gap in the map of {uri}: {map}");
            next = offset + length;
            match row["type"].as_u64() {
                Some(0) => data.push((offset, length)),
                Some(3) => {}
                _ => panic!("neither data nor hole that reads as zeros: {row} of {uri}"),
            }
        }
        assert_eq!(next, 1 << 30, "the map of {uri} ends early");
        assert_eq!(merged(&data), [(64 << 20, 128 << 10)], "{uri}: {map}");
    });
}

fn merged(runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (offset, length) in runs {
        match merged.last_mut() {
            Some(last) if last.0 + last.1 == *offset => last.1 += length,
            _ => merged.push((*offset, *length)),
        }
    }
    merged
}

/// nbdkit's sparse-random plugin makes up data from its seed, and fails a write that differs from it: so a
/// copy out of it and back into it checks every byte.
#[test]
fn nbdcopy_out_of_and_back_into_a_self_checking_source() {
    let source =
        Rival::nbdkit_unix(&["sparse-random", "size=2G", "seed=20", "percent=50", "random-content=true"]);
    on_every_target(2, |uri| {
        tools::run("nbdcopy", [&source.uri, uri]);
        tools::run("nbdcopy", [uri, &source.uri]);
    });
    // And the check does check: other content is refused.
    let other =
        Rival::nbdkit_unix(&["sparse-random", "size=2G", "seed=21", "percent=50", "random-content=true"]);
    tools::expect_failure(tools::command("nbdcopy").args([&other.uri, &source.uri]));
}

#[test]
fn qemu_io_writes_reads_zeroes_discards_and_flushes() {
    on_every_target(1, |uri| {
        qemu_io(
            uri,
            &[
                "write -P 0x11 0 4M",
                "write -P 0x22 1M 64k",
                "write -P 0x33 1000k 513",
                "read -P 0x33 1000k 513",
                "read -P 0x22 1M 64k",
                "read -P 0x11 2M 2M",
                "write -z 2M 1M",
                "read -P 0 2M 1M",
                "read -P 0x11 3M 1M",
                "write -z -u 3M 512k",
                "read -P 0 3M 512k",
                "discard 0 1M",
                "read 0 1M",
                "write -f -P 0x44 67100000 40000",
                "read -P 0x44 67100000 40000",
                "aio_write -P 0x55 128M 8M",
                "aio_flush",
                "flush",
            ],
        );
        // A second process sees what the first one left.
        qemu_io(uri, &["read -P 0x55 128M 8M", "read -P 0x44 67100000 40000", "read -P 0x22 1M 64k"]);
        let mut wrong = tools::command("qemu-io");
        wrong.args(["-f", "raw", "-c", "read -P 0x56 128M 8M", uri]);
        let said = tools::output(&mut wrong);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("Pattern verification failed"), "qemu-io does not check: {said}");
    });
}

#[test]
fn qemu_img_converts_both_ways() {
    let sample = Sample::named("fs.multiple");
    let image = sample.path().display().to_string();
    on_every_target(1, |uri| {
        tools::run("qemu-img", ["convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", &image, uri]);
        tools::run("qemu-img", ["compare", "-f", "raw", "-F", "raw", &image, uri]);
        let scratch = Scratch::new();
        let copy = scratch.join("copy.qcow2").display().to_string();
        tools::run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", uri, &copy]);
        tools::run("qemu-img", ["compare", "-f", "qcow2", "-F", "raw", &copy, &image]);
    });
}

#[test]
fn fio_verifies_in_a_second_process() {
    on_every_target(1, |uri| {
        let fio = |verify: &str| -> Command {
            let mut command = tools::command("fio");
            command.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bsrange=4k-128k"]);
            command.args(["--size=512M", "--iodepth=32", "--verify=crc32c", "--verify_fatal=1"]);
            command.args(["--randseed=2006", "--verify_state_save=0"]);
            command.arg(format!("--uri={uri}")).arg(verify);
            command
        };
        tools::expect_success(&mut fio("--do_verify=0"));
        tools::expect_success(&mut fio("--verify_only"));
        // And the check does check: one byte changed behind its back is found.
        qemu_io(uri, &["write -P 0xee 100M 4k"]);
        tools::expect_failure(&mut fio("--verify_only"));
    });
}

#[test]
fn libnbd_from_python() {
    const SCRIPT: &str = r#"
import nbd, os, sys
uri = sys.argv[1]
handles = []
for _ in range(4):
    h = nbd.NBD()
    h.add_meta_context("base:allocation")
    h.connect_uri(uri)
    handles.append(h)
a, b = handles[0], handles[1]
size = a.get_size()
assert size == 1 << 30, size
assert a.can_multi_conn() and a.can_fua() and a.get_structured_replies_negotiated()

# What one connection wrote and flushed, the others read.
data = os.urandom(3 << 20)
a.pwrite(data, 12345)
a.flush()
for h in handles:
    assert h.pread(len(data), 12345) == data

# Many requests in flight on one connection, answered in any order, each with its own bytes.
pattern = [bytes([i]) * 4096 for i in range(64)]
cookies = [a.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(p)), (256 << 20) + i * 4096)
           for i, p in enumerate(pattern)]
while not all(a.aio_command_completed(c) for c in [cookies[-1]]):
    a.poll(-1)
for c in cookies[:-1]:
    while not a.aio_command_completed(c):
        a.poll(-1)
for i, p in enumerate(pattern):
    assert b.pread(4096, (256 << 20) + i * 4096) == p, i

# The last byte is there; one behind it is refused by the server, and the connection goes on.
a.pwrite(b"z", size - 1)
assert b.pread(1, size - 1) == b"z"
a.set_strict_mode(0)
for wrong in (lambda: a.pread(2, size - 1), lambda: a.pwrite(b"xx", size - 1), lambda: a.trim(4096, size)):
    try:
        wrong()
        sys.exit("a request behind the end succeeded")
    except nbd.Error as error:
        assert error.errnum, error
assert a.pread(1, size - 1) == b"z"

# Zeroes read as zeroes, and the map says so.
a.zero(1 << 20, 12345 + (1 << 20))
assert b.pread(1 << 20, 12345 + (1 << 20)) == bytes(1 << 20)
runs = []
b.block_status(64 << 20, 512 << 20, lambda context, offset, entries, error: runs.extend(entries) or 0)
assert runs and runs[1] == 3, runs
a.cache(1 << 20, 0)
a.pwrite(b"done", 0, nbd.CMD_FLAG_FUA)
for h in handles:
    h.shutdown()
print("fine")
"#;
    on_every_target(1, |uri| {
        let mut python = tools::command("python3");
        assert_eq!(tools::expect_success(python.args(["-c", SCRIPT, uri])).trim(), "fine");
    });
}

#[test]
fn an_export_that_does_not_exist_is_refused_by_name() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    let uri = pool.attach_export("case", &[]).uri;
    let wrong = format!("{}/nothing-here", root_of(&uri));
    let said = tools::expect_failure(tools::command("nbdinfo").arg(&wrong));
    assert!(!said.is_empty());
    assert_eq!(tools::run("nbdinfo", ["--size", &uri]).trim(), (128_u64 << 20).to_string());
}

#[test]
fn a_read_only_export_refuses_writes() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    let uri = pool.attach_export("case", &[]).uri;
    qemu_io(&uri, &["write -P 0x77 0 1M", "flush"]);
    pool.detach("case");
    let uri = pool.attach_export("case", &["--read-only"]).uri;
    let before = {
        let scratch = Scratch::new();
        let copy = scratch.join("copy").display().to_string();
        tools::run("nbdcopy", [&uri, &copy]);
        hash::of_file(&copy)
    };
    // libnbd is told not to mind, so that the server itself has to refuse.
    let script = r#"
import nbd, sys
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(sys.argv[1])
assert h.is_read_only()
for wrong in (lambda: h.pwrite(b"x" * 512, 0), lambda: h.zero(4096, 0), lambda: h.trim(4096, 0)):
    try:
        wrong()
        sys.exit("a write to a read-only export succeeded")
    except nbd.Error as error:
        assert error.errnum == 1, error
assert h.pread(512, 0) == b"\x77" * 512
"#;
    tools::expect_success(tools::command("python3").args(["-c", script, &uri]));
    let scratch = Scratch::new();
    let copy = scratch.join("copy").display().to_string();
    tools::run("nbdcopy", [&uri, &copy]);
    assert_eq!(hash::of_file(&copy), before);
}
