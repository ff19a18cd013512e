//! The blocks of an attached file, for tools that take a file without blocks for one hole: none loses what a
//! volume holds.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use cheetah_lab::pool::Pool;
use cheetah_lab::{hash, tools, wait};

const SIZE: u64 = 50 << 20;

fn pool() -> Pool {
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "256M");
    }
    pool
}

fn sectors(path: &Path) -> u64 {
    std::fs::metadata(path).expect("its attributes").blocks()
}

/// Packs the file as a sparse one, unpacks that, and compares.
#[track_caller]
fn comes_through_tar(pool: &Pool, path: &Path, wanted: &str) {
    let (archive, out) = (pool.scratch().join("t.tar"), pool.scratch().directory("out"));
    let (directory, name) = (path.parent().expect("a directory"), path.file_name().expect("a name"));
    let mut pack = tools::command("tar");
    tools::expect_success(pack.arg("-C").arg(directory).arg("-cSf").arg(&archive).arg(name));
    let mut unpack = tools::command("tar");
    tools::expect_success(unpack.arg("-C").arg(&out).arg("-xf").arg(&archive));
    assert_eq!(hash::of_file(out.join(name)), wanted, "tar -S lost something");
    let copy = pool.scratch().join("copy");
    let mut copying = tools::command("cp");
    tools::expect_success(copying.arg("--sparse=auto").arg(path).arg(&copy));
    assert_eq!(hash::of_file(&copy), wanted, "cp --sparse=auto lost something");
}

/// A second attachment of the same volume, as another user of the machine would have it.
struct Reader<'a> {
    pool: &'a Pool,
    name: &'static str,
    path: PathBuf,
}

impl<'a> Reader<'a> {
    fn new(pool: &'a Pool, name: &'static str) -> Reader<'a> {
        let point = pool.scratch().directory("reader");
        let reader = Reader { pool, name, path: point.join(format!("{name}.raw")) };
        reader.run(&["attach", name, &point.display().to_string(), "--read-only"]);
        reader
    }

    fn run(&self, arguments: &[&str]) {
        let mut command = self.pool.command();
        command.args(arguments).env("XDG_RUNTIME_DIR", self.pool.scratch().directory("run-2"));
        tools::expect_success(&mut command);
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.run(&["detach", self.name]);
    }
}

#[test]
fn what_was_just_written_is_no_hole_for_tar_and_cp() {
    let mut pool = pool();
    let data = pool.scratch().join("data");
    tools::run(
        "dd",
        ["if=/dev/urandom", &format!("of={}", data.display()), "bs=1M", "count=3", "status=none"],
    );
    for turn in 0..6 {
        let name = format!("z{turn}");
        pool.ok(["create", &name, &SIZE.to_string()]);
        let path = pool.attach_fuse(&name, &[]).path;
        // Whoever asked before must not be who is believed later.
        wait::until("it is known to hold nothing", wait::SOON, || sectors(&path) == 0);
        let (from, to) = (format!("if={}", data.display()), format!("of={}", path.display()));
        tools::run("dd", [&from, &to, "bs=1M", "conv=notrunc,fsync", "status=none"]);
        assert!(sectors(&path) >= 3 << 11, "{} sectors of 3 MiB", sectors(&path));
        let du = tools::run("du", ["-k", &path.display().to_string()]);
        let du: u64 = du.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
        assert!(du >= 3 << 10, "du says {du} KiB of 3 MiB");
        comes_through_tar(&pool, &path, &hash::of_file(&path));
        wait::until("the exact number", wait::SOON, || sectors(&path) == 3 << 11);
        pool.detach(&name);
        let path = pool.attach_fuse(&name, &[]).path;
        assert!(sectors(&path) >= 3 << 11, "after it was attached anew");
        comes_through_tar(&pool, &path, &hash::of_file(&path));
        pool.detach(&name);
        pool.ok(["delete", &name]);
    }
}

#[test]
fn a_reader_is_never_told_less_than_what_another_has_written() {
    let mut pool = pool();
    pool.ok(["create", "shared", &SIZE.to_string()]);
    let writing = pool.attach_fuse("shared", &[]).path;
    let file = File::options().write(true).open(&writing).expect("writable");
    let reader = Reader::new(&pool, "shared");
    assert!(sectors(&reader.path) > 0, "a writer is beside it");
    for step in 0..20u64 {
        file.write_all_at(&[step as u8 + 1; 1 << 20], step << 20).expect("written");
        let (said, there) = (sectors(&reader.path), (step + 1) << 11);
        assert!(said >= there, "step {step}: {said} sectors, and {there} are written");
    }
    comes_through_tar(&pool, &reader.path, &hash::of_file(&writing));
}

/// A volume that follows the pool says the same of its holes before and after it grew.
#[test]
fn an_empty_volume_that_grows_stays_empty() {
    let mut pool = pool();
    pool.ok(["create", "all", "all", "--redundancy", "linear", "--follow"]);
    let path = pool.attach_fuse("all", &[]).path;
    let size = || std::fs::metadata(&path).expect("its attributes").len();
    let before = size();
    assert_eq!(before, 768 << 20);
    assert_eq!(sectors(&path), 0, "it was made just now");
    pool.donate("four", "256M");
    wait::until("it grows", wait::SOON, || size() > before);
    wait::until("what it grew by is counted", wait::SOON, || sectors(&path) == 0);
    let file = File::options().write(true).open(&path).expect("writable");
    file.write_all_at(&[7; 4096], size() - 4096).expect("written");
    assert!(sectors(&path) >= 8);
    wait::until("one block", wait::SOON, || sectors(&path) == 8);
}
