//! File systems on attached volumes, and real images through every front end. Needs root, for loop devices
//! and mounts.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use cheetah_lab::images::SAMPLES;
use cheetah_lab::mounted::Mounted;
use cheetah_lab::pool::Pool;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{hash, tools, tree};

/// Makes the file system, fills it with a real tree, unmounts, checks, attaches again and compares every
/// file.
#[track_caller]
fn holds_a_tree(make: &[&str], check: &[&str]) {
    tools::need_root("a loop device with a file system");
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "1G");
    }
    pool.ok(["create", "disk", "2G", "--redundancy", "stripe:3"]);
    let device = pool.attach_loop("disk", &[]).path.display().to_string();
    assert!(device.starts_with("/dev/loop"), "{device} is no loop device");
    tools::run(make[0], make[1..].iter().chain([&device.as_str()]));

    let point = pool.scratch().directory("point");
    let mounted = Mounted::new(&[], Path::new(&device), &point);
    tree::fill(&point);
    let before = hash::of_tree(&point);
    assert!(before.len() > 1000, "a tree of {} files tests little", before.len());
    mounted.unmount();
    tools::run(check[0], check[1..].iter().chain([&device.as_str()]));
    pool.detach("disk");
    assert!(
        !Path::new(&device).join("loop").exists() && fs::read_dir(&point).is_ok_and(|list| list.count() == 0)
    );

    // A fresh daemon and a fresh page cache: what is compared now comes from the donors.
    let device = pool.attach_loop("disk", &[]).path.display().to_string();
    tools::run(check[0], check[1..].iter().chain([&device.as_str()]));
    let mounted = Mounted::new(&[], Path::new(&device), &point);
    let after = hash::of_tree(&point);
    assert_eq!(before.len(), after.len());
    for (path, hash) in &before {
        assert_eq!(after.get(path), Some(hash), "{path} is another file than was written");
    }
    mounted.unmount();
    pool.detach("disk");
}

#[test]
fn ext4_holds_a_tree() {
    holds_a_tree(&["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"]);
}

#[test]
fn xfs_holds_a_tree() {
    holds_a_tree(&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
}

#[test]
fn btrfs_holds_a_tree() {
    holds_a_tree(&["mkfs.btrfs", "-q", "-f"], &["btrfs", "check", "--readonly"]);
}

#[test]
fn real_images_hash_the_same_through_every_front_end() {
    tools::need_root("a loop device");
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "512M");
    }
    for sample in SAMPLES {
        let name = sample.name.replace('.', "-");
        let size = sample.bytes.to_string();
        pool.ok(["create", &name, &size, "--redundancy", "stripe:3"]);
        let said = pool.ok(["load", &sample.path().display().to_string(), &name]);
        assert!(said.contains(sample.sha256), "load does not print the SHA-256 of {name}: {said}");

        let attached = pool.attach_fuse(&name, &["--read-only"]);
        assert_eq!(fs::metadata(&attached.path).expect("the file").len(), sample.bytes);
        assert!(attached.path.ends_with(format!("{name}.raw")), "{}", attached.path.display());
        assert_eq!(hash::of_file(&attached.path), sample.sha256, "{name} through the file");
        let write = fs::OpenOptions::new().write(true).open(&attached.path);
        assert!(write.is_err(), "{name} can be opened for writing though attached read-only");
        pool.detach(&name);

        let uri = pool.attach_export_unix(&name, &["--read-only"]).uri;
        assert_eq!(hash_of_export(&uri), sample.sha256, "{name} through the export");
        pool.detach(&name);

        let device = pool.attach_loop(&name, &["--read-only"]).path;
        assert_eq!(hash::of_file(&device), sample.sha256, "{name} through the block device");
        pool.detach(&name);
        pool.ok(["delete", &name]);
    }
}

#[test]
fn an_image_of_an_odd_size_hashes_the_same_through_file_and_export() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.donate("two", "256M");
    let bytes: Vec<u8> = (0..70_000_001_u32).map(|index| (index ^ (index >> 11)).to_le_bytes()[0]).collect();
    let file = pool.scratch().file("odd.raw", &bytes);
    let known = hash::of_file(&file);
    pool.ok(["create", "odd", "70000001", "--redundancy", "stripe:2"]);
    assert!(pool.ok(["load", &file.display().to_string(), "odd"]).contains(&known));

    let path = pool.attach_fuse("odd", &["--read-only"]).path;
    assert_eq!(fs::metadata(&path).expect("the file").len(), 70_000_001);
    assert_eq!(hash::of_file(&path), known);
    pool.detach("odd");
    let uri = pool.attach_export_unix("odd", &["--read-only"]).uri;
    assert_eq!(tools::run("nbdinfo", ["--size", &uri]).trim(), "70000001");
    assert_eq!(hash_of_export(&uri), known);
}

/// The SHA-256 of all that `nbdcopy URI -` gives.
#[track_caller]
fn hash_of_export(uri: &str) -> String {
    let scratch = Scratch::new();
    let errors = fs::File::create(scratch.join("errors")).expect("a file");
    let mut copy = tools::command("nbdcopy")
        .args([uri, "-"])
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .expect("nbdcopy starts");
    let hash = hash::of_reader(copy.stdout.take().expect("a pipe")).expect("the pipe reads");
    let status = copy.wait().expect("nbdcopy ends");
    assert!(status.success(), "{}", fs::read_to_string(scratch.join("errors")).unwrap_or_default());
    hash
}
