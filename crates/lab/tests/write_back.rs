//! A file with write-back: fast for small writes, and honest. What was flushed is with donors, what was not is nobody's
//! promise, an error is told by the flush, and whoever reads sees what was written last.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cheetah_lab::pool::Pool;
use rustix::fs::SeekFrom;

const BYTES: usize = 24 << 20;

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BYTES / 8).flat_map(|_| next()).collect()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("the volume's file")
}

/// In records that are no whole blocks.
fn write_in_records(file: &mut File, bytes: &[u8]) {
    for record in bytes.chunks(3000) {
        file.write_all(record).expect("a record");
    }
}

fn pool() -> Pool {
    let mut pool = Pool::start();
    for donor in ["one", "two", "three"] {
        pool.donate(donor, "192M");
    }
    pool.ok(["create", "case", "64M", "--redundancy", "parity:2+1"]);
    pool
}

#[test]
fn what_was_flushed_outlives_the_daemon() {
    let mut pool = pool();
    let path = pool.attach_fuse("case", &["--write-back"]).path;
    let bytes = noise(1);
    let mut file = open(&path);
    write_in_records(&mut file, &bytes);
    file.sync_all().expect("a flush");
    pool.kill_daemons();
    drop(file);
    let path = pool.attach_fuse("case", &["--write-back"]).path;
    assert!(fs::read(&path).expect("the file")[..BYTES] == bytes);
    // And what is closed, and detached.
    let other = noise(2);
    write_in_records(&mut open(&path), &other);
    pool.detach("case");
    let path = pool.attach_fuse("case", &["--read-only"]).path;
    assert!(fs::read(&path).expect("the file")[..BYTES] == other);
}

#[test]
fn what_is_not_flushed_yet_is_no_hole() {
    let mut pool = pool();
    let path = pool.attach_fuse("case", &["--write-back"]).path;
    let bytes = noise(3);
    let file = open(&path);
    file.write_all_at(&bytes, 4096).expect("a write");
    let data = rustix::fs::seek(&file, SeekFrom::Data(0)).expect("there is data");
    assert!(data <= 4096, "{data}");
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(4096)).expect("the end is a hole");
    assert!(hole >= 4096 + BYTES as u64, "{hole}");
    let size = file.metadata().expect("its size").len();
    File::create(&path).expect("O_TRUNC changes nothing");
    assert_eq!((size, file.metadata().expect("its size").len()), (64 << 20, 64 << 20));
}

#[test]
fn the_flush_tells_what_was_lost() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let path = pool.attach_fuse("case", &["--write-back"]).path;
    let mut file = open(&path);
    write_in_records(&mut file, &noise(4)[..1 << 20]);
    file.sync_all().expect("a flush");
    pool.donor("one").kill();
    // The kernel takes it; that nobody else has it is told when it is to be kept.
    let _ = file.write_at(b"lost", 0);
    let error = file.sync_all().expect_err("its donor is gone");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
}

#[test]
fn it_is_for_files_that_are_written() {
    let pool = pool();
    for (more, word) in
        [("--read-only", "--read-only"), ("--front=export", "cache"), ("--front=loop", "cache")]
    {
        let said = pool.fails(["attach", "case", "--write-back", more]);
        assert!(said.contains(word), "{said}");
    }
}
