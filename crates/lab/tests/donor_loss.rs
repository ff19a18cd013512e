//! A lost donor: exactly its ranges answer EIO, at once; everything else goes on; the status names it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cheetah_lab::fio::{Fio, Reads, Region, Target};
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::Pool;
use cheetah_lab::wire::Wire;
use cheetah_lab::{tools, wait};
use rustix::fs::SeekFrom;
use serde_json::json;

const MIB: u64 = 1 << 20;
const EXTENT: u64 = 64 * MIB;
const EIO: i32 = 5;

/// Writes a pattern that tells every 4 KiB block from every other.
fn fill(path: &Path, bytes: u64) {
    let file = File::options().write(true).open(path).expect("the volume opens");
    let mut buffer = vec![0; MIB as usize];
    for offset in (0..bytes).step_by(MIB as usize) {
        for (index, block) in buffer.chunks_mut(4096).enumerate() {
            block.copy_from_slice(&block_at(offset + index as u64 * 4096));
        }
        file.write_all_at(&buffer, offset).expect("a write");
    }
    file.sync_all().expect("a flush");
}

fn block_at(offset: u64) -> Vec<u8> {
    (offset ^ 0x5eed_c8ee).to_le_bytes().repeat(512)
}

/// What a read of one block gives: the bytes that were written, or the error's number.
fn read(path: &Path, offset: u64) -> Result<(), i32> {
    let file = File::open(path).expect("the volume opens");
    let mut block = vec![0; 4096];
    match file.read_exact_at(&mut block, offset) {
        Ok(()) => {
            assert!(block == block_at(offset), "other bytes than were written at {offset}");
            Ok(())
        }
        Err(error) => Err(error.raw_os_error().expect("an error of the system")),
    }
}

fn drop_page_cache(path: &Path) {
    tools::run(
        "dd",
        [&format!("of={}", path.display()), "oflag=nocache", "conv=notrunc,fdatasync", "count=0"],
    );
}

/// Who copies what is not a hole comes as far as there is something, and hears of the loss there.
#[test]
fn what_is_a_hole_is_told_up_to_what_is_lost() {
    let mut pool = Pool::start();
    pool.donate("one", "64M");
    pool.donate("two", "64M");
    pool.create_linear("case", "128M");
    let path = pool.attach_fuse("case", &[]).path;
    let file = File::options().read(true).write(true).open(&path).expect("the volume opens");
    for offset in [0, EXTENT + MIB] {
        file.write_all_at(&[7; MIB as usize], offset).expect("a write");
    }
    file.sync_all().expect("a flush");
    let seek = |to| rustix::fs::seek(&file, to).map_err(rustix::io::Errno::raw_os_error);
    assert_eq!(seek(SeekFrom::Data(MIB)), Ok(EXTENT + MIB));
    pool.donor("two").kill();
    wait::until("the loss", wait::SOON, || seek(SeekFrom::Data(EXTENT)) == Err(EIO));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(MIB));
    assert_eq!(seek(SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Data(MIB)), Ok(EXTENT), "what may be there is no hole");
    assert_eq!(seek(SeekFrom::Hole(EXTENT + 5)), Err(EIO));
    drop(file);
    pool.detach("case");
    // By NBD the same: the first question is answered, and the next one is of what is lost.
    let uri = pool.attach_export_unix("case", &["--read-only"]).uri;
    let ask = "import nbd, sys; h = nbd.NBD(); h.add_meta_context('base:allocation'); h.connect_uri(sys.argv[1]); \
               seen = []; h.block_status(128 << 20, 0, lambda c, o, e, err: seen.extend(e)); \
               print(sum(seen[::2]) >> 20, seen[1])";
    let said = tools::run("python3", ["-c", ask, &uri]);
    assert_eq!(said.trim(), "64 0");
    pool.detach("case");
}

#[test]
fn exactly_the_lost_ranges_of_a_linear_volume_answer_eio() {
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "128M");
    }
    pool.create_linear("case", "384M");
    let path = pool.attach_fuse("case", &[]).path;
    fill(&path, 384 * MIB);
    drop_page_cache(&path);

    pool.donor("two").kill();
    // Linear means: donors in the order they joined, so the second one held the middle third.
    let lost = 128 * MIB..256 * MIB;
    wait::until("EIO from the lost range", wait::SOON, || read(&path, lost.start) == Err(EIO));
    for offset in
        (0..384 * MIB).step_by(4 * MIB as usize).chain([128 * MIB - 4096, 256 * MIB - 4096, 256 * MIB])
    {
        let expected = if lost.contains(&offset) { Err(EIO) } else { Ok(()) };
        assert_eq!(read(&path, offset), expected, "at {offset}");
    }
    wait::until("a status that names the donor", wait::SOON, || {
        pool.volume_status("case")["lost_donors"] == json!(["two"])
    });
    assert_eq!(pool.volume_status("case")["bytes_lost"], json!(128 * MIB));
    assert_eq!(pool.lost_ranges("case"), [(128 * MIB, 128 * MIB)]);
    let text = pool.ok(["status"]);
    assert!(text.lines().any(|line| line.contains("two") && line.contains("gone (silent for")), "{text}");

    // What is left can still be written.
    let file = File::options().write(true).open(&path).expect("the volume opens");
    file.write_all_at(&block_at(0), 0).expect("a write beside the lost range");
    let refused = file.write_all_at(&block_at(0), lost.start).and_then(|()| file.sync_all());
    assert_eq!(refused.expect_err("a write to the lost range").raw_os_error(), Some(EIO));
    drop(file);
    pool.detach("case");
}

#[test]
fn a_stripe_loses_the_units_of_the_lost_donor_and_no_more() {
    const UNIT: u64 = 64 << 10;
    let mut pool = Pool::start();
    for name in ["one", "two", "three", "four"] {
        pool.donate(name, "64M");
    }
    pool.ok(["create", "case", "256M", "--redundancy", "stripe:4", "--unit", "64K"]);
    let uri = pool.attach_export_unix("case", &[]).uri;
    tools::run("qemu-io", ["-f", "raw", "-c", "write -P 0x41 0 256M", "-c", "flush", &uri]);
    pool.donor("three").kill();

    // Every unit is asked for by itself, over the same connection.
    let script = r#"
import nbd, sys
unit, size = 64 << 10, 256 << 20
h = nbd.NBD()
h.connect_uri(sys.argv[1])
bad = []
for n in range(size // unit):
    try:
        assert h.pread(unit, n * unit) == b"\x41" * unit, n
    except nbd.Error as error:
        assert error.errnum == 5, error
        bad.append(n)
print(*bad)
"#;
    let said = tools::expect_success(tools::command("python3").args(["-c", script, &uri]));
    let bad: Vec<u64> = said.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    assert_eq!(bad.len() as u64, 256 * MIB / UNIT / 4, "a quarter of the units is lost");
    let column = bad[0] % 4;
    assert!(bad.iter().all(|unit| unit % 4 == column), "units of other donors are lost: {bad:?}");
    wait::until("a status that names the donor", wait::SOON, || {
        pool.volume_status("case")["lost_donors"] == json!(["three"])
    });
    let expected: Vec<(u64, u64)> = bad.iter().map(|unit| (unit * UNIT, UNIT)).collect();
    assert_eq!(pool.lost_ranges("case"), expected, "the list of lost ranges is not what reads say");
    let text = pool.ok(["show", "case"]);
    assert!(text.contains("three"), "{text}");
    pool.detach("case");
}

#[test]
fn a_donor_that_leaves_on_request_is_refused_while_it_holds_data() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.donate("two", "128M");
    pool.create_linear("case", "192M");
    let said = pool.fails(["leave", "two"]);
    assert!(said.contains("two") && said.contains("case"), "{said}");
    pool.ok(["delete", "case"]);
    pool.ok(["leave", "two"]);
    pool.donor("two").wait_for_end(wait::SOON);
    wait::until("one donor left", wait::SOON, || pool.status()["donors"].as_array().map(Vec::len) == Some(1));
}

#[test]
fn a_donor_that_gets_sigterm_leaves_and_gives_its_memory_back() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    let status = pool.donor("one").terminate(wait::SOON);
    assert!(status.success(), "{status}");
    assert_eq!(pool.status()["bytes_total"], json!(0));
}

/// A donor behind a black hole sends no reset: the deadline, not the kernel, has to end every request.
#[test]
fn a_donor_that_is_cut_off_or_stopped_hangs_nobody() {
    let lan = Arc::new(Lan::new(2, "1gbit"));
    let mut pool = Pool::with(cheetah_lab::pool::State::Memory, Some(Arc::clone(&lan)));
    pool.donate("one", "128M");
    pool.donate("two", "128M");
    pool.create_linear("case", "256M");
    let path = pool.attach_fuse("case", &[]).path;
    fill(&path, 256 * MIB);
    drop_page_cache(&path);

    lan.cut(Node::Donor(2));
    // Twice the deadline of a request is generous, and still says that it is not for ever.
    let reader = tools::output(tools::command("timeout").args([
        "60",
        "dd",
        &format!("if={}", path.display()),
        "of=/dev/null",
        "bs=4096",
        "count=1",
        &format!("skip={}", (2 * EXTENT + EXTENT) / 4096),
        "iflag=direct",
    ]));
    assert_eq!(reader.status.code(), Some(1), "{}", String::from_utf8_lossy(&reader.stderr));
    assert!(String::from_utf8_lossy(&reader.stderr).contains("Input/output error"));
    assert_eq!(read(&path, 4 * MIB), Ok(()));
    wait::until("a status that names the donor", wait::SOON, || {
        pool.volume_status("case")["lost_donors"] == json!(["two"])
    });
    pool.detach("case");
}

/// The ports from which the client's host is connected to the donor's processes; the one on which most was
/// sent comes first.
fn ports_to(lan: &Lan, donor: Node) -> Vec<u16> {
    let mut command = lan.exec(Node::Client, tools::need("ss"));
    command.args(["-HOtni", "state", "established", "dst", &donor.address()]);
    let said = tools::expect_success(&mut command);
    let one = |line: &str| {
        let port: u16 = line.split_whitespace().nth(2)?.rsplit(':').next()?.parse().ok()?;
        let sent = line.split_whitespace().find_map(|word| word.strip_prefix("bytes_sent:"));
        Some((sent.map_or(0, |sent| sent.parse::<u64>().expect("a number")), port))
    };
    let mut ports: Vec<_> = said.lines().filter_map(one).collect();
    ports.sort_unstable_by(|one, other| other.cmp(one));
    ports.into_iter().map(|(_, port)| port).collect()
}

#[test]
fn a_connection_that_hangs_beside_another_is_replaced_and_no_write_fails() {
    let lan = Arc::new(Lan::new(1, "1gbit"));
    let wire = Wire::new(&lan, 1);
    lan.detour(Node::Donor(1));
    let mut pool = Pool::with(cheetah_lab::pool::State::Memory, Some(Arc::clone(&lan)));
    pool.donate_everywhere(1, "128M");
    pool.create_linear("case", "64M");
    let target = Target::Export(pool.attach_export_unix("case", &[]).uri);
    let fio = Fio { lan: Some(&lan), target: &target, scratch: pool.scratch() };
    let region = Region { offset: 0, bytes: 64 * MIB };
    let (block_bytes, depth, seconds) = (64 << 10, 32, 6);
    let writes = Reads { region, block_bytes, depth, seconds, bytes_per_second: None, seed: 1 };
    let running = fio.hammer(&writes);
    wait::until("writes on their way", wait::SOON, || wire.count().bytes > 16 * MIB);
    let before = ports_to(&lan, Node::Donor(1));
    assert!(before.len() > 1, "one donor has several connections: {before:?}");
    let hung = before[0];
    wire.hang(hung);
    let ended = running.wait(Duration::from_secs(60), || false);
    assert!(ended.good(), "{}", ended.complaint);
    assert!(wire.count().dropped > 0, "nothing was sent on the connection that hangs");
    let after = ports_to(&lan, Node::Donor(1));
    assert!(after.len() > 1 && !after.contains(&hung), "{hung} of {before:?} was not replaced: {after:?}");
    pool.detach("case");
}
