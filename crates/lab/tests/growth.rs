//! Growth while attached, through every front end: by command, and by itself as donors join.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cheetah_lab::pool::Pool;
use cheetah_lab::{hash, tools, tree, wait};
use serde_json::json;

const MIB: u64 = 1 << 20;

fn write_at(path: &Path, byte: u8, offset: u64) {
    let file = File::options().write(true).open(path).expect("the volume opens");
    file.write_all_at(&vec![byte; 4096], offset)
        .unwrap_or_else(|error| panic!("a write at {offset}: {error}"));
    file.sync_all().expect("a flush");
}

fn byte_at(path: &Path, offset: u64) -> u8 {
    let mut byte = [0];
    File::open(path).and_then(|file| file.read_exact_at(&mut byte, offset)).expect("a read");
    byte[0]
}

fn file_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

#[test]
fn a_file_grows_while_it_is_open() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.donate("two", "256M");
    pool.create_linear("case", "100M");
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 1, 0);
    let held = File::options().read(true).write(true).open(&path).expect("the volume opens");

    pool.ok(["grow", "case", "300M"]);
    wait::until("a file of 300 MiB", wait::SOON, || file_bytes(&path) == 300 * MIB);
    // Through the handle that was open before, too.
    held.write_all_at(&[2; 4096], 299 * MIB).expect("a write to what is new");
    assert_eq!((byte_at(&path, 0), byte_at(&path, 299 * MIB), byte_at(&path, 200 * MIB)), (1, 2, 0));

    pool.ok(["grow", "case", "all"]);
    wait::until("all that the pool had free", wait::SOON, || file_bytes(&path) == 512 * MIB);
    assert_eq!(pool.status()["bytes_free"], json!(0));
    drop(held);
    pool.detach("case");
}

#[test]
fn an_export_grows_for_those_who_connect_next() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("case", "64M");
    let uri = pool.attach_export_unix("case", &[]).uri;
    tools::run("qemu-io", ["-f", "raw", "-c", "write -P 9 0 64M", "-c", "flush", &uri]);
    pool.ok(["grow", "case", "192M"]);
    wait::until("an export of 192 MiB", wait::SOON, || {
        tools::run("nbdinfo", ["--size", &uri]).trim() == (192 * MIB).to_string()
    });
    tools::run(
        "qemu-io",
        ["-f", "raw", "-c", "read -P 9 0 64M", "-c", "write -P 8 191M 1M", "-c", "flush", &uri],
    );
    pool.detach("case");
}

#[test]
fn a_mounted_file_system_grows_with_its_device() {
    tools::need_root("a loop device with a file system");
    let mut pool = Pool::start();
    for name in ["one", "two"] {
        pool.donate(name, "1G");
    }
    pool.ok(["create", "disk", "512M", "--redundancy", "stripe:2"]);
    let device = pool.attach_loop("disk", &[]).path;
    let device_name = device.display().to_string();
    let point = pool.scratch().directory("point");
    tools::run("mkfs.xfs", ["-q", "-f", &device_name]);
    tools::run("mount", [&device_name, &point.display().to_string()]);
    tree::fill(&point);
    let before = hash::of_tree(&point);
    pool.ok(["grow", "disk", "all"]);
    wait::until("a device of 2 GiB", wait::SOON, || {
        tools::run("blockdev", ["--getsize64", &device_name]).trim() == (2048 * MIB).to_string()
    });
    // XFS, since ext4 wants a capability for this that containers often lack.
    tools::run("xfs_growfs", [&point]);
    fs::write(point.join("new"), vec![7; 700 << 20]).expect("more than would have fitted before");
    tools::run("umount", [&point]);
    tools::run("xfs_repair", ["-n", &device_name]);
    tools::run("mount", ["-o", "ro,norecovery", &device_name, &point.display().to_string()]);
    let mut after = hash::of_tree(&point);
    after.remove("new");
    assert!(before == after, "files differ after the growth");
    tools::run("umount", [&point]);
    pool.detach("disk");
}

/// The thesis' own example: the device grows as cache servers join.
#[test]
fn a_volume_that_follows_grows_when_a_donor_joins() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.ok(["create", "case", "all", "--follow", "--redundancy", "linear"]);
    let path = pool.attach_fuse("case", &[]).path;
    assert_eq!(file_bytes(&path), 128 * MIB);
    write_at(&path, 3, 128 * MIB - 4096);
    for (joined, name) in [(2_u64, "two"), (3, "three")] {
        pool.donate(name, "128M");
        wait::until("a file with the new donor's memory", wait::SOON, || {
            file_bytes(&path) == joined * 128 * MIB
        });
        write_at(&path, 4, joined * 128 * MIB - 4096);
    }
    assert_eq!(byte_at(&path, 128 * MIB - 4096), 3);
    assert_eq!(byte_at(&path, 384 * MIB - 1), 4);
    pool.detach("case");

    // Also when nobody is attached.
    pool.donate("four", "128M");
    wait::until("a volume of four donors", wait::SOON, || {
        pool.volume_status("case")["size"] == json!(512 * MIB)
    });
}

#[test]
fn a_volume_that_does_not_follow_stays_as_it_is() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.ok(["create", "case", "all", "--redundancy", "linear"]);
    pool.donate("two", "128M");
    wait::until("the second donor", wait::SOON, || {
        pool.status()["donors"].as_array().map(Vec::len) == Some(2)
    });
    assert_eq!(pool.volume_status("case")["size"], json!(128 * MIB));
    assert_eq!(pool.status()["bytes_free"], json!(128 * MIB));
}
