//! Volumes that are opened from a source larger than the memory they may take: donors keep a part, blocks are
//! dropped and read again, and tools get what the disk holds.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::fragment::Fragment;
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::{hash, tools, wait};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
const MEMORY: &str = "128M";
const MEMORY_BYTES: u64 = 128 * MIB;

/// No block of it is like another, and some are zeros.
fn disk(pool: &Pool, mib: u64) -> PathBuf {
    let mut bytes = vec![0; usize::try_from(mib * MIB + 512).expect("it fits")];
    for (number, block) in bytes.chunks_mut(4096).enumerate() {
        if number % 97 > 0 {
            for (at, word) in block.chunks_exact_mut(8).enumerate() {
                let mixed = (number as u64 ^ (at as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word.copy_from_slice(&mixed.to_le_bytes());
            }
        }
    }
    pool.scratch().file("disk.raw", &bytes)
}

fn pool_of(donors: &[&str]) -> Pool {
    let mut pool = Pool::with(State::Memory, None);
    for name in donors {
        pool.donate(name, "128M");
    }
    pool
}

#[track_caller]
fn open(pool: &Pool, source: &Path) -> Value {
    pool.json(["open", &source.display().to_string(), "case", "--memory", MEMORY])
}

fn content(pool: &Pool) -> Value {
    pool.json(["show", "case"])["status"]["content"].clone()
}

/// Without what the kernel keeps of it.
fn forget(file: &Path) {
    let file = File::open(file).expect("the volume's file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
}

#[track_caller]
fn read(file: &Path, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    forget(file);
    let mut bytes = vec![0; len];
    File::open(file).expect("the volume's file").read_exact_at(&mut bytes, at).map(|()| bytes)
}

fn used(pool: &Pool) -> u64 {
    let status = pool.status();
    let donors = status["donors"].as_array().expect("donors");
    donors.iter().filter_map(|donor| donor["bytes_used"].as_u64()).sum()
}

#[test]
fn a_disk_of_four_times_its_memory_is_read_as_it_is_again_and_again() {
    let mut pool = pool_of(&["one", "two", "three"]);
    let disk = disk(&pool, 500);
    let opened = open(&pool, &disk);
    assert_eq!(opened["memory"], MEMORY_BYTES, "{opened}");
    wait::until("there is no more room", LONG, || content(&pool)["load"]["filling"]["full"] == true);
    let shown = pool.ok(["show", "case"]);
    assert!(
        shown.contains("donors keep 128 MiB of it at most") && shown.contains("no hash of it"),
        "{shown}"
    );
    let attached = pool.attach_fuse("case", &["--read-only"]);
    let sha256 = hash::of_file(&disk);
    for pass in 0..2 {
        forget(&attached.path);
        assert_eq!(hash::of_file(&attached.path), sha256, "pass {pass}");
        let used = used(&pool);
        assert!(used > MEMORY_BYTES / 2 && used <= MEMORY_BYTES, "{used} bytes of memory");
    }
    let bytes = fs::read(&disk).expect("the disk");
    let mut dice = Dice::new(7);
    for _ in 0..300 {
        let len = 1 + dice.below(100_000);
        let at = dice.below(bytes.len() as u64 - len);
        let (from, to) = (usize::try_from(at).expect("small"), usize::try_from(at + len).expect("small"));
        assert_eq!(read(&attached.path, at, to - from).expect("it is fetched"), bytes[from..to], "at {at}");
    }
    assert!(used(&pool) <= MEMORY_BYTES);
    assert_eq!(content(&pool)["state"], "opened", "it is never here as a whole");
    // Its donors keep what it takes to tell what is here, and no more.
    let log = fs::read_to_string(pool.scratch().join("run/cheetah/fill/case.log")).unwrap_or_default();
    assert!(!log.contains("no memory left"), "more came than there is room for: {log}");
}

#[test]
fn what_a_donor_takes_with_it_is_read_again() {
    let mut pool = pool_of(&["one", "two"]);
    let disk = disk(&pool, 300);
    open(&pool, &disk);
    wait::until("there is no more room", LONG, || content(&pool)["load"]["filling"]["full"] == true);
    let attached = pool.attach_fuse("case", &["--read-only"]);
    let bytes = fs::read(&disk).expect("the disk");
    assert_eq!(read(&attached.path, MIB, 4096).expect("it is here"), bytes[MIB as usize..][..4096]);
    let holder = pool.holders("case", 0)[0].clone();
    pool.donor(&holder).kill();
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk), "after {holder} was killed");
    assert_ne!(pool.holders("case", 0)[0], holder, "it has another home");
    // A donor that leaves moves what it holds.
    let next = pool.holders("case", 0)[0].clone();
    pool.donate("late", "128M");
    pool.ok(["leave", &next]);
    wait::until("it has moved", LONG, || pool.holders("case", 0)[0] == "late");
    forget(&attached.path);
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk), "after {next} left");
}

#[test]
fn metadata_stays_when_all_else_goes() {
    let mut pool = pool_of(&["one"]);
    let tree = pool.scratch().join("tree");
    for number in 0..300u32 {
        let directory = tree.join(format!("{}/{}", number % 7, number % 31));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(format!("file {number}")), number.to_le_bytes().repeat(256 << 10))
            .expect("a file");
    }
    let image = pool.scratch().join("fs.img");
    File::create(&image).and_then(|file| file.set_len(400 * MIB)).expect("an image");
    let mut make = tools::command("mke2fs");
    tools::expect_success(make.args(["-q", "-t", "ext4"]).arg("-d").arg(&tree).arg(&image));
    pool.json(["open", &image.display().to_string(), "case", "--memory", "64M"]);
    let log = pool.scratch().join("run/cheetah/fill/case.log");
    wait::until("its metadata is here", LONG, || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("the metadata of ext"))
    });
    let attached = pool.attach_fuse("case", &["--read-only"]);
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&image), "all of it went through 64 MiB");
    let list =
        |path: &Path| tools::expect_success(tools::command("fls").args(["-f", "ext", "-r", "-p"]).arg(path));
    let listed = list(&image);
    pool.ok(["fill", "case", "--pause"]);
    for pass in 0..2 {
        forget(&attached.path);
        assert_eq!(list(&attached.path), listed, "pass {pass}");
    }
    assert!(used(&pool) <= 64 * MIB);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let mut pool = pool_of(&["one"]);
    let disk = disk(&pool, 200);
    let source = disk.display().to_string();
    let said = pool.fails(["open", &source, "case"]);
    assert!(said.contains("too full") && said.contains("--memory SIZE"), "{said}");
    let said = pool.fails(["open", &source, "case", "--memory", "1M"]);
    assert!(
        said.contains("--memory 1 MiB is too little") && said.contains("--memory 64 MiB or more"),
        "{said}"
    );
    let said = pool.fails(["load", &source, "case", "--memory", "128M"]);
    assert!(said.contains("takes no --memory") && said.contains("cheetah open"), "{said}");
    // Another's client, which cannot tell what is gone from what is there.
    open(&pool, &disk);
    let attached = pool.attach_fuse("case", &["--read-only"]);
    assert_eq!(read(&attached.path, 0, 4096).expect("it is here").len(), 4096);
    let Fragment { uri, offset } = Fragment::of(&pool, "case");
    let script = format!(
        "import nbd, errno\n\
         h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri('{uri}')\n\
         try:\n    h.pread(4096, {offset}); raise SystemExit('it was given')\n\
         except nbd.Error as e:\n    assert e.errnum == errno.EPERM, e\n\
         print('refused')"
    );
    assert!(tools::run("python3", ["-c", &script]).contains("refused"));
}
