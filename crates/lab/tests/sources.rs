//! Images of other programs: what `load` makes of each, and that readers give what those programs wrote.
//!
//! Images are made by `ewfacquire` and `qemu-img` from Debian's sample disks; each is compared with the
//! raw disk, by its hash and by reads at random. Then they are damaged: what is lost is told, and no more
//! is lost.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::command::Said;
use cheetah_lab::dice::Dice;
use cheetah_lab::images::Sample;
use cheetah_lab::pool::Pool;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::tools::names;
use cheetah_lab::{hash, tools, wait};
use cheetah_source::{Options, Source, SourceError};
use serde_json::{Value, json};

/// Reads of each image, at random.
const READS: usize = 10_000;

fn pool() -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", "512M");
    pool
}

fn load(pool: &Pool, file: &Path, volume: &str, more: &[&str]) -> Said {
    let file = file.display().to_string();
    pool.run([&["load", &file, volume][..], more].concat())
}

/// An image of a disk by `ewfacquire`; answers its first segment.
fn ewf(disk: &Path, target: &Path, more: &[&str]) -> PathBuf {
    let mut command = tools::command("ewfacquire");
    command.args(["-u", "-q", "-t"]).arg(target).args(more).arg(disk);
    tools::expect_success(&mut command);
    let small = target.with_extension("s01");
    if small.exists() { small } else { target.with_extension("E01") }
}

/// The first bytes of a sample as a disk of their own: small, and with all that a disk has.
fn small_disk(scratch: &Scratch, sample: &str, mib: usize) -> PathBuf {
    let whole = fs::read(Sample::named(sample).path()).expect("a sample");
    scratch.file("disk.raw", &whole[..mib << 20])
}

#[track_caller]
fn open(path: &Path) -> Box<dyn Source> {
    cheetah_source::open(path, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn not_opened(path: &Path) -> SourceError {
    match cheetah_source::open(path, &Options::default()) {
        Ok(source) => panic!("{} was opened as {}", path.display(), source.describe()),
        Err(error) => error,
    }
}

/// Two threads read at random, each read as the raw disk has it.
#[track_caller]
fn compare_at_random(image: &Path, disk: &Path) {
    let (source, raw) = (open(image), File::open(disk).expect("a disk"));
    let size = raw.metadata().expect("its size").len();
    assert_eq!(source.size(), size, "{}", image.display());
    std::thread::scope(|threads| {
        for seed in [1, 2] {
            let (source, raw) = (&source, &raw);
            threads.spawn(move || {
                let mut dice = Dice::new(seed);
                let (mut got, mut is) = (Vec::new(), Vec::new());
                for _ in 0..READS / 2 {
                    let at = dice.below(size);
                    let most = if dice.below(4) == 0 { 300_000 } else { 4096 };
                    let len = (1 + dice.below(most)).min(size - at) as usize;
                    got.resize(len, 1);
                    is.resize(len, 2);
                    source.read_exact_at(at, &mut got).unwrap_or_else(|error| panic!("{error}"));
                    raw.read_exact_at(&mut is, at).expect("a raw disk reads");
                    assert!(got == is, "{}: {len} bytes from {at} on", image.display());
                }
            });
        }
    });
}

/// Loads an image, and compares what the volume gives back with what the disk is.
#[track_caller]
fn loads_as(pool: &Pool, image: &Path, volume: &str, sha256: &str) -> Value {
    let report = pool.json(["load", &image.display().to_string(), volume, "--read-back"]);
    assert_eq!(report["verified"], true, "{report}");
    assert_eq!(report["volume_hashes"]["sha256"], sha256, "{}: {report}", image.display());
    pool.ok(["delete", volume]);
    report
}

#[test]
fn every_kind_of_e01_is_the_disk_in_it() {
    let pool = pool();
    let scratch = pool.scratch();
    let disk = small_disk(scratch, "fs.ntfs", 16);
    let sha256 = hash::of_file(&disk);
    for (name, options) in [
        ("fast", &["-f", "encase6", "-c", "deflate:fast", "-S", "1MiB"][..]),
        ("none", &["-f", "encase7", "-c", "deflate:none", "-S", "10MiB", "-d", "sha1"]),
        ("best", &["-f", "ftk", "-c", "deflate:best", "-b", "16"]),
        ("large", &["-f", "linen7", "-c", "deflate:empty-block", "-b", "4096"]),
        ("smart", &["-f", "smart", "-c", "deflate:fast"]),
    ] {
        let first = ewf(&disk, &scratch.join(name), options);
        compare_at_random(&first, &disk);
        let report = loads_as(&pool, &first, name, &sha256);
        assert_eq!(
            (&report["checksummed"], &report["claims"]["same"]),
            (&json!(true), &json!(true)),
            "{report}"
        );
        assert_eq!(report["claims"]["md5"], report["file_hashes"]["md5"]);
        assert_eq!(report["claims"]["sha1"].is_string(), name == "none", "{report}");
        let last = ["E02", "E03", "E09"].map(|ending| first.with_extension(ending));
        if let Some(other) = last.iter().find(|other| other.exists()) {
            assert_eq!(open(other).identity(), open(&first).identity(), "any segment opens the set");
        }
    }
    let said = pool.ok(["load", &scratch.join("none.E02").display().to_string(), "case"]);
    names(&said, &["none.E02: E01 image, 2 segments, 16 MiB, checksummed", "MD5 as the image claims"]);
    names(&said, &["SHA-1 as the image claims", "of the disk in", "SHA-256 disk "]);
    names(&pool.ok(["show", "case"]), &["E01 image, 2 segments"]);
    // As it stands it is another thing.
    let fast = scratch.join("best.E01");
    let report = pool.json(["load", &fast.display().to_string(), "stands", "--raw", "--read-back"]);
    assert_eq!(report["volume_hashes"]["sha256"], hash::of_file(&fast).as_str());
    assert_eq!((&report["source"], &report["claims"]), (&json!("raw image"), &Value::Null));
}

/// All of a sample, in many segments.
#[test]
fn a_whole_sample_is_what_it_was() {
    let (pool, sample) = (pool(), Sample::named("fs.ntfs"));
    let first = ewf(&sample.path(), &pool.scratch().join("whole"), &["-c", "deflate:fast", "-S", "1MiB"]);
    let report = loads_as(&pool, &first.with_extension("E30"), "case", sample.sha256);
    assert_eq!(
        (&report["source"], &report["claims"]["same"]),
        (&json!("E01 image, 31 segments"), &json!(true))
    );
}

/// Flips a bit of a file, or flips it back.
fn flip(file: &Path, at: u64) {
    let open = File::options().read(true).write(true).open(file).expect("an image");
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).expect("inside");
    open.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
}

#[test]
fn a_flipped_byte_of_an_e01_costs_its_chunk_and_no_more() {
    let mut pool = pool();
    let disk = small_disk(pool.scratch(), "fs.ntfs", 8);
    let bytes = fs::read(&disk).expect("a disk");
    for (name, compression) in [("stored", "deflate:none"), ("packed", "deflate:fast")] {
        let image = ewf(&disk, &pool.scratch().join(name), &["-c", compression]);
        let len = fs::metadata(&image).expect("an image").len();
        // Somewhere in the chunks, in one that holds more than zeros.
        let (source, whole, from, to) = (1..50)
            .find_map(|part| {
                flip(&image, len * part / 50);
                let source = open(&image);
                let mut whole = vec![7; bytes.len()];
                let lost =
                    source.read_past_errors_at(0, &mut whole).unwrap_or_else(|error| panic!("{error}"));
                let [lost] = &lost[..] else { panic!("one chunk is lost: {lost:?}") };
                let (from, to) = (lost.range.start as usize, lost.range.end as usize);
                let found = bytes[from..to].iter().any(|byte| *byte != 0);
                if !found {
                    flip(&image, len * part / 50);
                }
                found.then_some((source, whole, from, to))
            })
            .expect("a chunk with data");
        assert_eq!((from % 32768, to - from), (0, 32768), "its chunk");
        assert!(whole[..from] == bytes[..from] && whole[to..] == bytes[to..], "no other byte is another");
        assert!(whole[from..to].iter().all(|byte| *byte == 0));
        let error = source.read_exact_at(from as u64 + 100, &mut [0; 16]).expect_err("a part of it");
        names(
            &error.to_string(),
            &["is damaged", &format!("the chunk of 32768 bytes at byte {from} of the disk")],
        );
        source.read_exact_at(to as u64, &mut [0; 16]).expect("behind it");

        let said = load(&pool, &image, name, &[]);
        assert_eq!(said.status.code(), Some(6), "{}{}", said.out, said.err);
        names(&said.out, &[&format!("unreadable      32768 bytes from {from} on"), "MD5 DIFFERS"]);
        names(
            &said.err,
            &["32 KiB of", "answer EIO", "not the one that the image claims", "zeros stand in it"],
        );
        let path = pool.attach_fuse(name, &[]).path;
        let file = File::open(&path).expect("readable");
        let mut room = vec![0; 32768];
        assert_eq!(file.read_at(&mut room, from as u64).expect_err("EIO").raw_os_error(), Some(5));
        file.read_exact_at(&mut room, to as u64).expect("behind it");
        assert!(room[..] == bytes[to..to + 32768]);
        drop(file);
        pool.detach(name);
    }
}

#[test]
fn an_e01_that_is_not_whole_is_refused_by_name() {
    let pool = pool();
    let scratch = pool.scratch();
    let disk = small_disk(scratch, "fs.ntfs", 8);
    let first = ewf(&disk, &scratch.join("case"), &["-c", "deflate:none", "-S", "1MiB"]);
    let segment = |number: u32| scratch.join(format!("case.E{number:02}"));
    // A missing one, also where the last is given.
    let aside = scratch.join("aside");
    fs::rename(segment(3), &aside).expect("renamed");
    for given in [1, 5] {
        let said = load(&pool, &segment(given), "case", &[]);
        assert_eq!(said.status.code(), Some(1), "{}", said.err);
        names(&said.err, &["case.E03 is missing", "into one directory"]);
    }
    // Another in its place.
    fs::copy(segment(4), segment(3)).expect("copied");
    let said = load(&pool, &first, "case", &[]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    names(&said.err, &["case.E03 is segment 4", "its name says 3"]);
    fs::rename(&aside, segment(3)).expect("renamed");
    // The last cut off, at many lengths.
    let last = segment(9);
    let whole = fs::read(&last).expect("the last segment");
    for keep in [0, 5, 13, 80, 2000, whole.len() / 2, whole.len() - 77, whole.len() - 1] {
        fs::write(&last, &whole[..keep]).expect("written");
        let error = not_opened(&first).to_string();
        names(&error, &["case.E09"]);
    }
    fs::write(&last, &whole).expect("written");
    // A name that says nothing: one that is whole is read, one of several is not.
    let alone = ewf(&disk, &scratch.join("alone"), &["-c", "deflate:fast"]);
    let other = scratch.join("alone.img");
    fs::copy(alone, &other).expect("copied");
    compare_at_random(&other, &disk);
    fs::copy(segment(2), &other).expect("copied");
    names(&not_opened(&other).to_string(), &["segment 2", "NAME.E01"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a refused source left a volume");
    // What the image claims is another.
    let mut bytes = fs::read(&last).expect("the last segment");
    let at = bytes.windows(5).rposition(|window| window == b"hash\0").expect("a hash section") + 76;
    bytes[at] ^= 1;
    let sum = adler32(&bytes[at..at + 32]);
    bytes[at + 32..at + 36].copy_from_slice(&sum.to_le_bytes());
    fs::write(&last, &bytes).expect("written");
    let said = load(&pool, &first, "case", &[]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    names(&said.out, &["MD5 DIFFERS: the image claims", "verified: "]);
    names(&said.err, &["not the one that the image claims", "Volume 'case' holds what was read"]);
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (a + b) % 65521)
    });
    b << 16 | a
}

#[test]
fn parts_of_a_raw_image_are_one_disk() {
    let (pool, sample) = (pool(), Sample::named("fs.ext2"));
    let scratch = pool.scratch();
    for (options, first, other) in [
        (&["-b", "8M", "-d", "-a", "3", "--numeric-suffixes=1"][..], "001", "004"),
        (&["-b", "10M"], "aa", "ae"),
        (&["-b", "75K"], "aa", "zaab"),
    ] {
        let directory = scratch.directory(&format!("parts-{other}"));
        let mut command = tools::command("split");
        command.args(options).arg(sample.path()).arg(directory.join("disk."));
        tools::expect_success(&mut command);
        let first = directory.join(format!("disk.{first}"));
        compare_at_random(&directory.join(format!("disk.{other}")), &sample.path());
        let report = loads_as(&pool, &first, "case", sample.sha256);
        names(report["source"].as_str().unwrap_or_default(), &["raw image in", "parts"]);
        assert_eq!(report["checksummed"], false);
    }
    // In more parts than a process may open files, unless it asks for more.
    let mut command = tools::command("prlimit");
    let program = pool.command();
    command.arg("--nofile=64:4096").arg(program.get_program());
    command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let many = scratch.join("parts-zaab/disk.aa");
    command.args(["load", &many.display().to_string(), "many", "--pool", pool.url()]);
    names(&tools::expect_success(&mut command), &["raw image in 683 parts", sample.sha256, "verified"]);
    pool.ok(["delete", "many"]);
    let part = scratch.join("parts-004/disk.003");
    fs::remove_file(&part).expect("it was made");
    for given in ["disk.001", "disk.004"] {
        let said = load(&pool, &scratch.join("parts-004").join(given), "case", &[]);
        assert_eq!(said.status.code(), Some(1), "{}", said.err);
        names(&said.err, &["disk.003 is missing"]);
    }
    fs::write(&part, [7; 1000]).expect("written");
    let said = load(&pool, &scratch.join("parts-004/disk.002"), "case", &[]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    names(&said.err, &["disk.003 is one of 7 parts and has 1000 bytes", "--raw"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a refused source left a volume");
}

/// An image of a disk by `qemu-img`.
fn qemu(disk: &Path, format: &str, options: &[&str], to: &Path) {
    let mut command = tools::command("qemu-img");
    command.args(["convert", "-f", "raw", "-O", format]).args(options).args([disk, to]);
    tools::expect_success(&mut command);
}

const QEMU: [(&str, &str, &[&str], &str); 16] = [
    ("plain.qcow2", "qcow2", &[], "QCOW2 image (version 3)"),
    ("packed.qcow2", "qcow2", &["-c"], "QCOW2 image (version 3)"),
    ("old.qcow2", "qcow2", &["-o", "compat=0.10,cluster_size=4k"], "QCOW2 image (version 2)"),
    ("large.qcow2", "qcow2", &["-c", "-o", "cluster_size=2M"], "QCOW2 image (version 3)"),
    ("sparse.vmdk", "vmdk", &["-o", "subformat=monolithicSparse"], "VMDK image (monolithicSparse)"),
    ("stream.vmdk", "vmdk", &["-o", "subformat=streamOptimized"], "VMDK image (streamOptimized)"),
    ("parts.vmdk", "vmdk", &["-o", "subformat=twoGbMaxExtentSparse"], "VMDK image (twoGbMaxExtentSparse)"),
    ("flat.vmdk", "vmdk", &["-o", "subformat=monolithicFlat"], "VMDK image (monolithicFlat)"),
    ("fixed.vhd", "vpc", &["-o", "subformat=fixed,force_size"], "VHD image (fixed)"),
    ("dynamic.vhd", "vpc", &["-o", "subformat=dynamic,force_size"], "VHD image (dynamic)"),
    ("small.vhdx", "vhdx", &["-o", "block_size=1M"], "VHDX image"),
    ("large.vhdx", "vhdx", &[], "VHDX image"),
    ("fixed.vhdx", "vhdx", &["-o", "subformat=fixed"], "VHDX image"),
    ("disk.vdi", "vdi", &[], "VDI image (VirtualBox), read by qemu-nbd"),
    ("a,b.vdi", "vdi", &["-o", "static=on"], "VDI image (VirtualBox), read by qemu-nbd"),
    ("disk.hdd", "parallels", &[], "HDD image (Parallels), read by qemu-nbd"),
];

#[test]
fn images_of_machines_are_the_disks_in_them() {
    let pool = pool();
    let disk = small_disk(pool.scratch(), "fs.ext4", 12);
    let sha256 = hash::of_file(&disk);
    for (name, format, options, what) in QEMU {
        let image = pool.scratch().join(name);
        qemu(&disk, format, options, &image);
        compare_at_random(&image, &disk);
        let report = loads_as(&pool, &image, "case", &sha256);
        assert_eq!((&report["source"], &report["checksummed"]), (&json!(what), &json!(false)), "{report}");
        assert_eq!(report["claims"], Value::Null, "none of them has a hash");
    }
    let image = pool.scratch().join("packed.qcow2").display().to_string();
    let said = pool.ok(["load", &image, "case"]);
    names(&said, &["packed.qcow2: QCOW2 image (version 3), 12 MiB, without checksums of its own"]);
}

/// Beyond what the small tables of a small image reach: extents of 2 GiB, several tables, odd sizes.
#[test]
fn large_and_odd_images_are_read_to_their_ends() {
    let scratch = Scratch::new();
    let disk = scratch.sparse_file("disk.raw", (5 << 30) + 1536);
    let file = File::options().write(true).open(&disk).expect("just made");
    let mut dice = Dice::new(7);
    for at in [0, (2 << 30) - 4096, 3 << 30, (4 << 30) + 777, (5 << 30) - 100_000] {
        let bytes: Vec<u8> = (0..98_304).map(|_| dice.roll() as u8).collect();
        file.write_all_at(&bytes, at).expect("written");
    }
    file.write_all_at(b"the end", (5 << 30) + 1529).expect("written");
    for (name, format, options, _) in QEMU.into_iter().filter(|(name, ..)| !name.starts_with("f")) {
        let image = scratch.join(name);
        qemu(&disk, format, options, &image);
        let (source, raw) = (open(&image), File::open(&disk).expect("a disk"));
        assert_eq!(source.size(), (5 << 30) + 1536, "{name}");
        let (mut got, mut is) = (vec![1; 1 << 20], vec![2; 1 << 20]);
        for at in [0, (2 << 30) - 500_000, (3 << 30) - 9, 4 << 30, (5 << 30) - (1 << 20) + 1536] {
            source.read_exact_at(at, &mut got).unwrap_or_else(|error| panic!("{error}"));
            raw.read_exact_at(&mut is, at).expect("a raw disk reads");
            assert!(got == is, "{name} from {at} on");
        }
        fs::remove_file(&image).expect("it was made");
    }
}

/// What an image names is not opened, whoever made the image.
#[test]
fn names_inside_images_are_not_followed() {
    let pool = pool();
    let scratch = pool.scratch();
    let create = |name: &str, more: &[&str]| {
        let image = scratch.join(name);
        let mut command = tools::command("qemu-img");
        command.args(["create", "-q", "-f"]).args(more).arg(&image).arg("1M");
        // For a key it measures the processor, and gives up where that is busy.
        wait::until("qemu-img to make it", Duration::from_secs(60), || {
            let output = tools::output(&mut command);
            let is_busy = String::from_utf8_lossy(&output.stderr).contains("accurate CPU usage");
            assert!(output.status.success() || is_busy, "{}", tools::describe(&command, &output));
            output.status.success()
        });
        image
    };
    let parent = create("parent.vmdk", &["vmdk"]).display().to_string();
    let outside = scratch.file("outside.vmdk", b"# Disk DescriptorFile\nRW 8 FLAT \"/etc/passwd\" 0\n");
    let above = scratch.file("above.vmdk", b"# Disk DescriptorFile\nRW 8 FLAT \"../etc/passwd\" 0\n");
    let data = format!("data_file={}", scratch.join("elsewhere.raw").display());
    let secret =
        ["qcow2", "--object", "secret,id=key,data=abc", "-o", "encrypt.format=luks,encrypt.key-secret=key"];
    let refused = [
        (create("backed.qcow2", &["qcow2", "-b", "/etc/passwd", "-F", "raw"]), "/etc/passwd"),
        (create("data.qcow2", &["qcow2", "-o", &data]), "elsewhere.raw"),
        (create("luks.qcow2", &secret), "encrypted (LUKS)"),
        (create("child.vmdk", &["vmdk", "-b", &parent, "-F", "vmdk"]), "parent.vmdk"),
        (outside, "/etc/passwd"),
        (above, "../etc/passwd"),
    ];
    for (image, word) in refused {
        let said = load(&pool, &image, "case", &[]);
        assert_eq!(said.status.code(), Some(4), "{}: {}{}", image.display(), said.out, said.err);
        names(&said.err, &[&image.display().to_string(), word, "--raw", "qemu-img convert"]);
    }
    let extents = scratch.join("parts.vmdk");
    qemu(
        &scratch.sparse_file("disk.raw", 3 << 30),
        "vmdk",
        &["-o", "subformat=twoGbMaxExtentSparse"],
        &extents,
    );
    names(&not_opened(&scratch.join("parts-s001.vmdk")).to_string(), &["one extent", "load the descriptor"]);
    fs::remove_file(scratch.join("parts-s002.vmdk")).expect("it was made");
    let said = load(&pool, &extents, "case", &[]);
    assert_eq!(said.status.code(), Some(1), "{}", said.err);
    names(&said.err, &["parts-s002.vmdk is missing"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a refused source left a volume");
}

/// A load of an image that was interrupted goes on, whichever of its files is named.
#[test]
fn a_load_of_an_image_goes_on() {
    let pool = pool();
    let disk = small_disk(pool.scratch(), "fs.ntfs", 8);
    let first = ewf(&disk, &pool.scratch().join("case"), &["-c", "deflate:none", "-S", "1MiB"]);
    let said = load(&pool, &first, "case", &["--no-verify"]);
    assert!(said.status.success(), "{}", said.err);
    names(&said.out, &["not verified"]);
    let second = first.with_extension("E02").display().to_string();
    let report = pool.json(["load", &second, "case", "--resume"]);
    assert_eq!((&report["verified"], &report["resumed_bytes"]), (&json!(true), &json!(8 << 20)), "{report}");
    names(&pool.fails(["load", &first.display().to_string(), "case", "--resume", "--raw"]), &["another"]);
}
