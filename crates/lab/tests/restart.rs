//! Restarts and deaths of what is not a donor: the coordinator, and the daemon that serves an attached
//! volume; and how whoever said that it is ready ends at once.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use cheetah_lab::filled::{holds_at, write_at};
use cheetah_lab::pool::{Pool, State, binary};
use cheetah_lab::process::Process;
use cheetah_lab::{mark, tools, wait};
use rustix::process::Signal;
use serde_json::json;

const MIB: u64 = 1 << 20;

/// Donors and volumes without what changes by itself, for comparison.
fn lasting(pool: &Pool) -> serde_json::Value {
    let status = pool.status();
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let donors: Vec<_> = list("donors")
        .iter()
        .map(|donor| {
            json!([donor["donor"], donor["name"], donor["health"], donor["bytes_total"], donor["bytes_free"]])
        })
        .collect();
    let volumes: Vec<_> = list("volumes")
        .iter()
        .map(|volume| {
            let attachments = volume["attachments"].as_array().map(Vec::len);
            json!([volume["volume"], volume["name"], volume["size"], volume["bytes_lost"], attachments])
        })
        .collect();
    json!({"pool": status["pool"], "donors": donors, "volumes": volumes})
}

#[test]
fn a_killed_coordinator_loses_nothing_and_disturbs_nobody() {
    let mut pool = Pool::with(State::Directory, None);
    pool.donate("one", "256M");
    pool.donate("two", "256M");
    pool.ok(["create", "case", "256M", "--redundancy", "stripe:2"]);
    pool.create_linear("idle", "64M");
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x11, 0);
    let before = lasting(&pool);

    pool.kill_coordinator();
    // The volume works while there is no coordinator: it is not in the data path.
    write_at(&path, 0x22, 100 * MIB);
    assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, 100 * MIB));
    let said = pool.fails(["status"]);
    assert!(said.contains(pool.url().trim_start_matches("http://")), "{said}");

    pool.restart_coordinator();
    wait::until("the same donors, volumes and attachment again", wait::SOON, || lasting(&pool) == before);
    write_at(&path, 0x33, 200 * MIB);
    pool.detach("case");

    // Nothing was wiped: a fresh daemon reads all three writes from the donors.
    let path = pool.attach_fuse("case", &[]).path;
    assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, 100 * MIB) && holds_at(&path, 0x33, 200 * MIB));
    pool.detach("case");
    pool.ok(["delete", "case"]);
    pool.ok(["create", "case", "64M", "--redundancy", "linear"]);
}

#[test]
fn a_donor_that_was_killed_while_the_coordinator_was_away_is_reported_lost() {
    let mut pool = Pool::with(State::Directory, None);
    pool.donate("one", "128M");
    pool.donate("two", "128M");
    pool.create_linear("case", "192M");
    pool.kill_coordinator();
    pool.donor("two").kill();
    pool.restart_coordinator();
    wait::until("a status that names the donor", wait::SOON, || {
        pool.volume_status("case")["lost_donors"] == json!(["two"])
    });
}

#[test]
fn a_donor_that_starts_again_holds_nothing_of_what_it_held() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x44, 0);
    pool.detach("case");
    pool.donor("one").kill();
    wait::until("the loss", wait::SOON, || pool.volume_status("case")["lost_donors"] == json!(["one"]));
    pool.donate("one", "128M");
    // The same name, another identity: what was lost stays lost, and never reads as zeros.
    let path = pool.attach_fuse("case", &[]).path;
    let mut block = [0; 4096];
    let error =
        File::open(&path).and_then(|file| file.read_exact_at(&mut block, 0)).expect_err("a lost block");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    pool.detach("case");
}

#[test]
fn attach_works_again_after_the_daemon_was_killed() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x55, 0);
    pool.kill_daemons();
    assert!(fs::metadata(&path).is_err(), "a file without its daemon");

    // The same command again, at the same mount point: no manual unmount, no wait for the lease.
    let path = pool.attach_fuse("case", &[]).path;
    assert!(holds_at(&path, 0x55, 0), "what was flushed is lost");
    write_at(&path, 0x66, 2 * MIB);
    pool.detach("case");
    assert_nothing_left(&pool);
}

#[test]
fn detach_cleans_up_after_a_killed_daemon() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    for attach in [Pool::attach_fuse, Pool::attach_export, Pool::attach_loop] {
        attach(&mut pool, "case", &[]);
        pool.kill_daemons();
        pool.detach("case");
        assert_nothing_left(&pool);
    }
    // And the right to write is free again.
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x77, 0);
    pool.detach("case");
}

/// An attachment whose numbers of processes and times since boot are not ours, and that goes on for as long
/// as this lives.
fn attach_in(pool: &Pool, namespaces: &[&str]) -> Process {
    let program = pool.command();
    let mut command = tools::command("unshare");
    let script = format!("'{}' attach case --front export && exec sleep 1000", binary().display());
    command.args(namespaces).args(["--fork", "--kill-child", "bash", "-c", &script]);
    command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut process = Process::start("attach", command, pool.scratch().path());
    process.wait_for_line("ready: ", wait::SOON);
    process
}

#[test]
fn an_attachment_of_another_namespace_lives() {
    tools::need_root("namespaces");
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "64M");
    let time = ["--time", "--boottime", "500000", "--monotonic", "500000"];
    for namespaces in [&time[..], &["--pid", "--mount-proc"]] {
        let attached = attach_in(&pool, namespaces);
        // It is said with the first renewal.
        let place = wait::for_some("the place of the export", wait::SOON, || {
            let status = pool.volume_status("case");
            status["attachments"][0]["place"].as_str().filter(|place| !place.is_empty()).map(str::to_owned)
        });
        let said = pool.run(["attach", "case", "--front", "export"]);
        assert_eq!(said.status.code(), Some(4), "{}", said.err);
        assert!(said.err.contains("attached on this machine already"), "{}", said.err);
        assert_eq!(tools::run("nbdinfo", ["--size", &place]).trim(), (64 << 20).to_string());
        pool.detach("case");
        assert_eq!(pool.volume_status("case")["attachments"], json!([]));
        // What it left when it was killed is put away as ever.
        drop(attached);
        let attached = attach_in(&pool, namespaces);
        pool.kill_daemons();
        drop(attached);
        pool.ok(["attach", "case", "--front", "export"]);
        pool.detach("case");
    }
}

#[test]
fn detach_leaves_no_mount_loop_device_or_process() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    for attach in [Pool::attach_fuse, Pool::attach_export, Pool::attach_export_unix, Pool::attach_loop] {
        attach(&mut pool, "case", &[]);
        assert_eq!(pool.volume_status("case")["attachments"].as_array().map(Vec::len), Some(1));
        pool.detach("case");
        assert_nothing_left(&pool);
        assert_eq!(pool.volume_status("case")["attachments"], json!([]));
    }
}

#[test]
fn detach_of_a_busy_file_says_so_and_keeps_it() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    let path = pool.attach_fuse("case", &[]).path;
    let held = File::open(&path).expect("the volume opens");
    let said = pool.fails(["detach", "case"]);
    assert!(said.contains("busy") || said.contains("in use"), "{said}");
    write_at(&path, 0x12, 0);
    drop(held);
    pool.detach("case");
}

#[test]
fn detach_of_a_daemon_that_is_stopped_says_so_and_changes_nothing() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "128M");
    let attached = pool.attach_fuse("case", &[]);
    mark::signal(attached.pid, Signal::STOP);
    let said = pool.fails(["detach", "case"]);
    mark::signal(attached.pid, Signal::CONT);
    for word in
        [&format!("process {}", attached.pid), &format!("kill -CONT {}", attached.pid), "has not answered"]
    {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
    assert!(!said.contains("os error"), "{said}");
    // What it was asked then it does not do now. Its lease has run out meanwhile.
    wait::until("the loss of its lease", wait::SOON, || {
        let log = fs::read_to_string(pool.scratch().join("run/cheetah/case.log"));
        log.is_ok_and(|log| log.contains("lease is lost"))
    });
    assert!(fs::metadata(&attached.path).is_ok(), "it has ended");
    pool.detach("case");
    assert_nothing_left(&pool);
}

#[track_caller]
fn assert_nothing_left(pool: &Pool) {
    let below = format!("{}/", pool.scratch().path().display());
    let mounts: Vec<String> =
        mark::mount_points().into_iter().filter(|point| point.starts_with(&below)).collect();
    assert_eq!(mounts, Vec::<String>::new(), "mounts are left");
    assert_eq!(mark::loop_devices_below(&below), Vec::<String>::new(), "loop devices are left");
    wait::until("the end of the daemon", wait::SOON, || pool.daemons().is_empty());
}

#[test]
fn up_serves_a_volume_in_one_command_and_ends_cleanly() {
    let pool = Pool::without_coordinator(None);
    let directory = pool.mount_directory("up");
    let mut command = pool.command();
    command
        .args(["up", "--donors", "3", "--size", "256M", "--export", "127.0.0.1:0", "--mount"])
        .arg(&directory);
    let mut up = Process::start("up", command, pool.scratch().path());
    let line = up.wait_for_line("ready: ", wait::SOON);
    let mut words = line.trim_start_matches("ready: ").split_whitespace();
    let path = words.next().expect("a path");
    let uri = words.find(|word| word.starts_with("nbds://")).expect("an address");
    assert!(uri.ends_with("/scratch"), "{line}");
    write_at(Path::new(path), 0x21, 0);
    // Another shell of this user's, and another program with a certificate of this pool.
    let said = up.wait_for_line("export CHEETAH_IDENTITY=", wait::SOON);
    let identity = said.split("export CHEETAH_IDENTITY=").nth(1).and_then(|rest| rest.split('`').next());
    let identity = identity.expect("a directory");
    let mut status = pool.command();
    status.arg("status").env_remove("CHEETAH_POOL").env("CHEETAH_IDENTITY", identity);
    let status = tools::expect_success(&mut status);
    assert!(status.contains("scratch") && status.contains("donor-3"), "{status}");
    let copy = pool.scratch().join("copy");
    let certified = format!("{uri}?tls-certificates={identity}");
    tools::run("nbdcopy", [certified.as_ref(), copy.as_os_str()]);
    assert!(holds_at(&copy, 0x21, 0), "the export has something else");

    // Ctrl-C.
    let said_before = up.log().lines().count();
    up.signal(Signal::INT);
    let status = up.wait_for_end(wait::SOON);
    assert!(status.success(), "{status}: {}", up.log());
    let log = up.log();
    let said: Vec<&str> = log.lines().skip(said_before).collect();
    assert!(
        matches!(said[..], [line] if line.contains("the pool ends")),
        "an end on purpose alarms: {said:?}"
    );
    assert!(!Path::new(identity).exists(), "an identity is left of a pool that is gone");
    assert_nothing_left(&pool);
}

/// Whoever reads that it is ready may tell it to end in the same moment: it must not be killed by that, nor
/// go on.
#[test]
fn who_says_that_it_is_ready_can_be_told_to_end() {
    let pool = Pool::start();
    let donor = ["donate", "64M", "--pool", pool.url(), "--name", "brief"];
    let alone = ["donate", "64M", "--no-pool"];
    let coordinator = ["coordinate", "--plaintext", "--listen", "127.0.0.1:0", "--state", "memory"];
    for arguments in [&donor[..], &alone, &coordinator].into_iter().cycle().take(30) {
        let mut command = pool.command();
        command.args(arguments).env_remove("CHEETAH_POOL");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let said = BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line);
        assert!(said.is_ok() && line.starts_with("ready: "), "{arguments:?} said {line:?}");
        mark::signal(child.id(), Signal::TERM);
        let status =
            wait::for_some("its end", wait::SOON, || child.try_wait().expect("the state of a child"));
        assert!(status.success(), "{arguments:?}: {status}");
    }
}
