//! It survives: donors fail under a load that checks what it reads, more fail than redundancy covers, the
//! daemon is killed while it is written to, a link flips bits. Nothing wrong is read, and nothing hangs.
//!
//! The lean core of `make faults`; no time is asserted here, silences are its business.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cheetah_core::api::API_VERSION;
use cheetah_lab::dice::Dice;
use cheetah_lab::faults::trial::Hosts;
use cheetah_lab::faults::{Case, Fault, Front, Outcome, RATE, Subject, corrupt, volume};
use cheetah_lab::lan::Lan;
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::writer::Writer;
use cheetah_lab::{tools, wait};

const MIB: u64 = 1 << 20;
const UNIT: u64 = 64 << 10;
/// Twice the deadline of a request is generous, and still says that it is not for ever.
const HANG_SECONDS: &str = "60";

/// Kills, stops and cuts one donor, each in a fresh pool.
fn one_donor_fails(redundancy: &'static str) {
    let mut hosts = Hosts::new(1, RATE);
    hosts.load_seconds = 3;
    let scratch = Scratch::new();
    for (repeat, fault) in (0..).zip([Fault::Kill, Fault::Stop, Fault::Cut]) {
        let case = Case { subject: Subject::Volume(redundancy), fault, front: Front::Export };
        let mut outcome = Outcome::new(case, repeat, 1);
        volume::run(&hosts, case, redundancy, &mut case.dice(1, repeat), &mut outcome, scratch.path());
        assert_eq!(outcome.errors, 0, "{case}: {:?}", outcome.notes);
        assert_eq!(outcome.excluded, outcome.victims, "{case}: who failed is not set aside");
    }
}

#[test]
fn a_mirror_outlives_a_donor_under_load() {
    one_donor_fails("mirror:2");
}

#[test]
fn parity_outlives_a_donor_under_load() {
    one_donor_fails("parity:3+1");
}

#[test]
fn more_losses_than_redundancy_covers_cost_exactly_what_is_listed() {
    let lan = Arc::new(Lan::new(4, "1gbit"));
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(&lan)));
    // As many donors as a group has slots: nothing can be rebuilt elsewhere between the two deaths.
    pool.donate_everywhere(4, "128M");
    pool.ok(["create", "case", "256M", "--redundancy", "parity:3+1", "--unit", "64K"]);
    let uri = pool.attach_export_unix("case", &[]).uri;
    over_units(&uri, 256 * MIB, "write");
    assert_same("healthy", &over_units(&uri, 256 * MIB, "read"), &[]);
    assert_same("healthy, listed", &pool.lost_ranges("case"), &[]);

    pool.donor("host-1").kill();
    assert_same("one loss is covered", &over_units(&uri, 256 * MIB, "read"), &[]);
    pool.donor("host-3").kill();
    let lost = over_units(&uri, 256 * MIB, "read");
    assert!(!lost.is_empty(), "two of four donors are gone and nothing is lost");
    wait::until("a list of what is lost that says what reads say", wait::SOON, || {
        pool.lost_ranges("case") == lost
    });
    let status = pool.volume_status("case");
    assert_eq!(status["health"], "lost");
    assert_eq!(status["bytes_lost"], lost.iter().map(|(_, bytes)| bytes).sum::<u64>());
    // And it stays so: a range is not lost at one time and zeros at another.
    assert_same("a second look", &over_units(&uri, 256 * MIB, "read"), &lost);
    pool.detach("case");
}

/// Compares ranges; thousands of them would hide what differs.
#[track_caller]
fn assert_same(what: &str, found: &[(u64, u64)], expected: &[(u64, u64)]) {
    let first = found.iter().zip(expected).position(|(a, b)| a != b);
    let first = first.unwrap_or(found.len().min(expected.len()));
    assert!(
        found == expected,
        "{what}: {} ranges, not {}; the first that differs: {:?}, not {:?}",
        found.len(),
        expected.len(),
        found.get(first),
        expected.get(first)
    );
}

/// Writes, or reads and checks, every unit by itself; answers the ranges that gave EIO, neighbours joined.
/// Another error, another content or no end fails.
#[track_caller]
fn over_units(uri: &str, bytes: u64, what: &str) -> Vec<(u64, u64)> {
    let script = r#"
import nbd, sys
uri, size, unit, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
h = nbd.NBD()
h.connect_uri(uri)
for n in range(size // unit):
    content = (n ^ 0x5eedc8ee).to_bytes(8, "little") * (unit // 8)
    try:
        if what == "write":
            h.pwrite(content, n * unit)
        else:
            assert h.pread(unit, n * unit) == content, "other bytes than were written in unit %d" % n
    except nbd.Error as error:
        assert error.errnum == 5, error
        print(n)
h.shutdown()
"#;
    let arguments = [HANG_SECONDS, "/usr/bin/python3", "-c", script, uri];
    let mut command = tools::command("timeout");
    command.args(arguments).args([&bytes.to_string(), &UNIT.to_string(), what]);
    let said = tools::expect_success(&mut command);
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for unit in said.split_whitespace() {
        let offset = unit.parse::<u64>().expect("the number of a unit") * UNIT;
        match joined.last_mut() {
            Some(last) if last.0 + last.1 == offset => last.1 += UNIT,
            _ => joined.push((offset, UNIT)),
        }
    }
    joined
}

const WRITERS: usize = 4;
const BLOCKS_EACH: usize = 512;

/// Writes with all writers until the daemon is killed among their writes.
fn write_until_killed(pool: &Pool, writers: &mut [Writer], seed: u64) {
    let end = AtomicBool::new(false);
    let begun = pool.scratch().join("acknowledged-0");
    let lines = || std::fs::read_to_string(&begun).unwrap_or_default().lines().count();
    let lines_before = lines();
    std::thread::scope(|threads| {
        let mut running = Vec::new();
        for (index, writer) in (0..).zip(writers.iter_mut()) {
            let (mut dice, end) = (Dice::new(seed + index), &end);
            running.push(threads.spawn(move || writer.write_until(end, &mut dice)));
        }
        wait::until("many acknowledged writes", wait::SOON, || {
            lines() > lines_before + 200 || running.iter().any(std::thread::ScopedJoinHandle::is_finished)
        });
        pool.kill_daemons();
        for writing in running {
            assert!(writing.join().expect("a writer") > 0, "the volume refused the first write");
        }
    });
}

fn every_acknowledged_write_is_found_again(redundancy: &str) {
    let lan = Arc::new(Lan::new(4, "1gbit"));
    let mut pool = Pool::of(Access::Plaintext, State::Directory, Some(lan));
    pool.donate_everywhere(4, "256M");
    pool.ok(["create", "case", "64M", "--redundancy", redundancy]);
    let path = pool.attach_fuse("case", &[]).path;
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|index| {
            let log = pool.scratch().join(format!("acknowledged-{index}"));
            Writer::new(&path, &log, (index * BLOCKS_EACH) as u64, BLOCKS_EACH)
        })
        .collect();
    for round in 0..2 {
        write_until_killed(&pool, &mut writers, 10 * round);
        assert_eq!(pool.attach_fuse("case", &[]).path, path);
        for writer in &mut writers {
            assert_eq!(writer.check(), Vec::<String>::new(), "round {round}");
        }
    }
    // The rows that were being written agree with their parity again: what a lost donor held reads the same.
    let victim = pool.holders("case", 0).swap_remove(0);
    pool.donor(&victim).kill();
    for writer in &mut writers {
        assert_eq!(writer.check(), Vec::<String>::new(), "without {victim}");
    }
    pool.detach("case");
}

#[test]
fn a_mirror_has_every_acknowledged_write_after_its_daemon_was_killed() {
    every_acknowledged_write_is_found_again("mirror:2");
}

#[test]
fn parity_has_every_acknowledged_write_after_its_daemon_was_killed() {
    every_acknowledged_write_is_found_again("parity:3+1");
}

#[test]
fn flipped_bits_are_met_and_never_delivered() {
    let hosts = Hosts::new(1, corrupt::RATE);
    let found = corrupt::run(&hosts, 20, Duration::from_secs(40), || false).expect("a run to its end");
    assert_eq!(found.missed(), None, "{found:?}");
}

#[test]
fn a_volume_without_redundancy_has_every_acknowledged_write_after_its_daemon_was_killed() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let path = pool.attach_fuse("case", &[]).path;
    let log = pool.scratch().join("acknowledged-0");
    let mut writers = [Writer::new(&path, &log, 0, BLOCKS_EACH)];
    write_until_killed(&pool, &mut writers, 5);
    assert_eq!(pool.attach_fuse("case", &[]).path, path);
    assert_eq!(writers[0].check(), Vec::<String>::new());
    pool.detach("case");
}

/// Somebody ends the writer's lease by hand, with the token from the writer's own record. The donors hear of
/// it before another may write: the first writer can write nowhere any more, and the second reads what it
/// wrote itself.
#[test]
fn a_stolen_lease_writes_nowhere() {
    let mut pool = Pool::in_the_clear();
    for name in ["a", "b", "c"] {
        pool.donate(name, "128M");
    }
    pool.ok(["create", "case", "64M", "--redundancy", "parity:2+1"]);
    let robbed = pool.attach_export_unix("case", &[]).uri;
    let io = |uri: &str, what: &str| {
        let output = tools::output(tools::command("qemu-io").args(["-f", "raw", "-c", what, uri]));
        output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("error")
    };
    assert!(io(&robbed, "write -P 0x11 1M 64k"), "the holder of the lease writes");

    let record = pool.scratch().directory("run").join("cheetah").join("case.json");
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(record).expect("the record of the attachment")).expect("JSON");
    let token = record["token"].as_str().expect("the token of the lease");
    delete(pool.url(), &format!("/v1/volumes/case/leases/{token}"));

    let elsewhere = pool.scratch().directory("elsewhere");
    let second = format!("unix:{}", elsewhere.join("second.sock").display());
    let on_another_machine = |arguments: &[&str]| {
        let mut command = pool.command();
        command.env("XDG_RUNTIME_DIR", &elsewhere).args(arguments);
        tools::expect_success(&mut command)
    };
    let said = on_another_machine(&["attach", "case", "--front", "export", "--listen", &second]);
    let holder =
        said.split_whitespace().find(|word| word.starts_with("nbd")).expect("the second export").to_owned();
    assert!(io(&holder, "read -P 0x11 1M 64k"), "what was acknowledged is there");
    assert!(io(&holder, "write -P 0x22 1M 64k"), "the new holder writes");
    assert!(!io(&robbed, "write -P 0x33 1M 64k"), "a stolen lease still writes");
    assert!(io(&holder, "read -P 0x22 1M 64k"), "a stolen lease has changed the volume");
    on_another_machine(&["detach", "case"]);
}

/// One DELETE, as anybody on the network can send it today.
fn delete(url: &str, path: &str) {
    use std::io::{Read, Write};
    let host = url.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(host).expect("the coordinator");
    let head = format!("Host: {host}\r\nCheetah-Api: {API_VERSION}\r\nConnection: close");
    write!(stream, "DELETE {path} HTTP/1.1\r\n{head}\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
}
