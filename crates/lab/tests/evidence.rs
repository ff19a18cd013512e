//! Evidence: what `load` takes for a disk, what it says of what it read, and what a volume is said to hold.
//!
//! The cases that an examiner meets first: a container loaded as it stands, a load that ends half-way, an image loaded over
//! another, a source that changes while it is read, evidence that a mount changes, a disk with bad sectors.

use std::path::{Path, PathBuf};

use cheetah_lab::pool::Pool;
use cheetah_lab::tools;
use serde_json::json;

/// Asserts that a message names each of these.
#[track_caller]
fn names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

/// Two donors of this size, each on its own.
fn pool_of_two(size: &str) -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", size);
    pool.donate("two", size);
    pool
}

/// Bytes that no two blocks share, and that no run of zeros is in.
fn noise(bytes: usize, salt: u64) -> Vec<u8> {
    let mut state = salt | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut all: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| word()).collect();
    all.truncate(bytes);
    all
}

#[track_caller]
fn refused_as(pool: &Pool, file: &Path, words: &[&str]) {
    let said = pool.run(["load", &file.display().to_string(), "case"]);
    assert_eq!(said.status.code(), Some(4), "{}: {}{}", file.display(), said.out, said.err);
    names(&said.err, words);
    names(&said.err, &[&file.display().to_string(), "--raw"]);
}

#[test]
fn a_container_is_not_a_disk() {
    let pool = pool_of_two("256M");
    let disk = pool.scratch().file("disk.raw", &noise(3 << 20, 7));
    let made = |name: &str| pool.scratch().join(name);
    let convert = |format: &str, more: &[&str], name: &str| {
        let to = made(name);
        let mut command = tools::command("qemu-img");
        command.args(["convert", "-f", "raw", "-O", format]).args(more).args([&disk, &to]);
        tools::expect_success(&mut command);
        to
    };
    let packed = |tool: &str, ending: &str| {
        tools::expect_success(tools::command(tool).args(["-k", "-f"]).arg(&disk));
        PathBuf::from(format!("{}.{ending}", disk.display()))
    };
    refused_as(&pool, &convert("qcow2", &[], "d.qcow2"), &["QCOW", "qemu-nbd"]);
    refused_as(&pool, &convert("vmdk", &[], "d.vmdk"), &["VMDK"]);
    let flat = convert("vmdk", &["-o", "subformat=monolithicFlat"], "flat.vmdk");
    refused_as(&pool, &flat, &["descriptor", "VMDK"]);
    refused_as(&pool, &convert("vpc", &["-o", "subformat=fixed,force_size"], "fixed.vhd"), &["VHD"]);
    refused_as(&pool, &convert("vpc", &["-o", "subformat=dynamic"], "dynamic.vhd"), &["VHD"]);
    refused_as(&pool, &convert("vhdx", &[], "d.vhdx"), &["VHDX"]);
    refused_as(&pool, &convert("vdi", &[], "d.vdi"), &["VDI"]);
    refused_as(&pool, &packed("gzip", "gz"), &["gzip", "gunzip"]);
    refused_as(&pool, &packed("xz", "xz"), &["xz"]);
    let ewf = pool.scratch().file("case.E01", b"EVF\x09\x0d\x0a\xff\x00\x01\x01\x00\x00\x00header");
    refused_as(&pool, &ewf, &["E01", "ewfmount"]);
    let zip = pool.scratch().file("case.aff4", b"PK\x03\x04\x14\x00\x00\x00\x00\x00container.description");
    refused_as(&pool, &zip, &["AFF4"]);
    let part = pool.scratch().file("disk.001", &noise(1 << 20, 9));
    let next = pool.scratch().file("disk.002", &noise(1 << 20, 11));
    refused_as(&pool, &part, &[&next.display().to_string(), "only that part"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a refused source left a volume");

    let said = pool.ok(["load", &ewf.display().to_string(), "case", "--raw"]);
    names(&said, &["verified"]);
    names(&pool.ok(["load", &part.display().to_string(), "part", "--raw"]), &["verified"]);
    std::fs::remove_file(next).expect("it was made");
    names(&pool.ok(["load", &part.display().to_string(), "alone"]), &["verified"]);
}
