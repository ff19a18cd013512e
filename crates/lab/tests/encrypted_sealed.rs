//! Sealed volumes of which donors have ciphertext: what is checked on their way is ciphertext, and what is
//! said of them is their contents.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::flip::Memory;
use cheetah_lab::member::another;
use cheetah_lab::peek::{SECRET, memory_has};
use cheetah_lab::pool::Pool;
use cheetah_lab::rivals::NbdFuse;
use cheetah_lab::{tools, wait};
use serde_json::{Value, json};

const BLOCK: usize = 4096;
const EIO: i32 = 5;
const LIES: usize = 60;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(120);

fn first_word(program: &str, file: &Path) -> String {
    let said = tools::expect_success(tools::command(program).arg(file));
    said.split_whitespace().next().expect("a hash").to_owned()
}

fn pool_of(donors: usize) -> Pool {
    tools::need_root("to look into another process's memory");
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "192M");
    }
    pool
}

/// An image with a hole, the planted text, and a last block that is not whole.
fn image(pool: &Pool) -> (PathBuf, Vec<u8>) {
    let mut dice = Dice::new(38);
    let mut bytes: Vec<u8> = (0..3 << 20).flat_map(|_| dice.roll().to_le_bytes()).collect();
    bytes.truncate((21 << 20) + 1536);
    bytes[6 << 20..9 << 20].fill(0);
    for at in (1000..bytes.len() - 100).step_by(1 << 20) {
        bytes[at..at + SECRET.len()].copy_from_slice(SECRET);
    }
    (pool.scratch().file("disk.dd", &bytes), bytes)
}

fn sealed(pool: &Pool, volume: &str) -> Value {
    pool.volume_status(volume)["content"]["sealed"].clone()
}

/// Loaded with these redundancy and flags.
fn load(pool: &Pool, image: &Path, redundancy: &str, bytes: usize) {
    let size = bytes.to_string();
    pool.ok(["create", "case", &size, "--redundancy", redundancy, "--encrypt"]);
    let said = pool.ok(["load", &image.display().to_string(), "case"]);
    tools::names(&said, &["verified: the donors confirmed", "sealed: "]);
}

#[test]
fn what_is_loaded_is_sealed_and_its_hashes_are_those_of_the_image() {
    let mut pool = pool_of(3);
    let (file, bytes) = image(&pool);
    load(&pool, &file, "parity:2+1", bytes.len());
    let said = sealed(&pool, "case");
    let b3sum = first_word("b3sum", &file);
    assert_eq!(said["contents"], json!(b3sum), "{said}");
    assert_ne!(said["root"], said["contents"], "what donors hold is something else");
    tools::names(&pool.ok(["show", "case"]), &[&b3sum, "over its ciphertext", "nobody changes it any more"]);
    // Nobody writes it, and who reads it gets the image.
    let attached = pool.attach_fuse("case", &[]);
    let opened = fs::File::options().write(true).open(&attached.path);
    assert!(opened.and_then(|file| file.write_all_at(b"x", 0)).is_err(), "a tool wrote a sealed volume");
    assert!(fs::read(&attached.path).expect("it reads") == bytes);
    pool.detach("case");
    let out = pool.scratch().join("out.dd");
    pool.ok(["save", "case", &out.display().to_string()]);
    let manifest = pool.scratch().join("case.json");
    let manifest = manifest.display().to_string();
    pool.ok(["manifest", "case", &manifest]);
    let given: Value = serde_json::from_slice(&fs::read(&manifest).expect("written")).expect("JSON");
    for (program, hash) in
        [("md5sum", "md5"), ("sha1sum", "sha1"), ("sha256sum", "sha256"), ("b3sum", "blake3")]
    {
        assert_eq!(given["hashes"][hash], json!(first_word(program, &out)), "{program} of what was saved");
    }
    assert_eq!((&given["version"], &given["encrypted"]["root"]), (&json!(2), &said["root"]));
    tools::names(
        &pool.ok(["verify", "case", "--manifest", &manifest]),
        &["fit the seal", "signed by this pool"],
    );

    // A donor ends, and others rebuild what it held, without the key.
    let lost = pool.holders("case", 0)[0].clone();
    pool.donate("spare", "192M");
    pool.donor(&lost).kill();
    wait::until("what was lost to be rebuilt", LONG, || pool.volume_status("case")["health"] == "whole");
    let report = pool.json(["verify", "case"]);
    assert_eq!((&report["right"], &report["proved"]["blake3"]), (&json!(true), &json!(b3sum)), "{report}");
    assert_eq!(report["proved"]["bytes_proved"], json!(bytes.len()));
    let path = pool.attach_fuse("case", &[]).path;
    assert!(fs::read(&path).expect("it reads") == bytes);
    for pid in pool.donor_pids().into_iter().filter(|pid| Path::new(&format!("/proc/{pid}/maps")).exists()) {
        assert!(!memory_has(pid, SECRET), "donor {pid} has the planted text");
    }
    pool.detach("case");
    pool.ok(["delete", "case"]);
}

/// One that nobody signed, with other hashes of the contents; one of a version to come.
#[test]
fn a_manifest_that_says_other_contents_is_refused() {
    let pool = pool_of(1);
    let (file, bytes) = image(&pool);
    load(&pool, &file, "linear", bytes.len());
    let text = pool.ok(["manifest", "case"]);
    let verify = |name: &str, text: &str| {
        let file = pool.scratch().file(name, text.as_bytes()).display().to_string();
        pool.run(["verify", "case", "--manifest", &file])
    };
    tools::names(&verify("same.json", &text).out, &["not signed"]);
    let b3sum = first_word("b3sum", &file);
    let said = verify("other.json", &text.replace(&b3sum, &"0".repeat(64)));
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    tools::names(&said.err, &["contents have BLAKE3 000", "is something else"]);
    let said = verify("newer.json", &text.replacen("\"version\": 2", "\"version\": 3", 1));
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["version 3", "a newer one"]);
}

/// Reads block by block: the places of those that are errors. Any other byte than the image's fails.
fn errors(path: &Path, bytes: &[u8]) -> Vec<usize> {
    let file = fs::File::open(path).expect("the volume");
    let is_error = |(at, want): &(usize, &[u8])| {
        let mut found = vec![0; want.len()];
        match file.read_exact_at(&mut found, *at as u64) {
            Ok(()) => assert!(found == *want, "wrong bytes at {at}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "at {at}: {error}");
                return true;
            }
        }
        false
    };
    (0..).step_by(BLOCK).zip(bytes.chunks(BLOCK)).filter(is_error).map(|(at, _)| at).collect()
}

/// Their memory holds other ciphertext, and their checksums fit: neither a donor's own check nor another's
/// finds that. Of two copies the one that is asked less often might have it, so both lie, about other blocks.
fn a_donor_that_lies_is_found(redundancy: &str, donors: usize, liars: usize) {
    let mut pool = pool_of(donors);
    let (file, bytes) = image(&pool);
    load(&pool, &file, redundancy, bytes.len());
    let holders = pool.holders("case", 0)[..liars].to_vec();
    let lie = |(nth, donor): (u64, &String)| {
        let memory = Memory::of(pool.pid_of(donor));
        // Data comes first in an extent, and proofs behind it.
        let is_meant = |at: u64| at % (64 << 20) < 6 << 20 && at / BLOCK as u64 % 2 == nth;
        let flips = memory.flip(&mut Dice::new(7), LIES, |at, _| is_meant(at));
        flips.iter().for_each(|flip| memory.forge(flip));
        (memory, flips)
    };
    let lies: Vec<_> = (0..).zip(&holders).map(lie).collect();
    // Who verifies has no need of a key, and sees it.
    let said = pool.run(["verify", "case"]);
    assert_eq!(said.status.code(), Some(6), "{redundancy}: {}{}", said.out, said.err);
    tools::names(&said.out, &["FORGED"]);
    assert!(holders.iter().any(|liar| said.err.contains(liar)), "{redundancy}: {}", said.err);
    let is_alone = redundancy == "linear";
    if is_alone {
        let path = pool.attach_fuse("case", &[]).path;
        assert_eq!(errors(&path, &bytes).len(), LIES, "each is an error, and nothing else is");
        pool.detach("case");
        lies.iter().for_each(|(memory, flips)| flips.iter().for_each(|flip| memory.restore(flip)));
    }
    let path = pool.attach_fuse("case", &[]).path;
    assert_eq!(errors(&path, &bytes), [0; 0], "{redundancy}");
    pool.detach("case");
    wait::until("what was lied about to be right again", LONG, || {
        lies.iter().all(|(memory, flips)| memory.wrong(flips) == 0)
    });
}

#[test]
fn a_lie_that_fits_its_checksum_is_an_error_where_nothing_else_has_the_block() {
    a_donor_that_lies_is_found("linear", 1, 1);
}

#[test]
fn a_lie_that_fits_its_checksum_is_gone_round_and_healed() {
    a_donor_that_lies_is_found("mirror:2", 2, 2);
    a_donor_that_lies_is_found("parity:2+1", 3, 1);
}

#[test]
fn what_tools_wrote_is_sealed_as_it_is_by_who_has_the_key() {
    let mut pool = pool_of(2);
    let bytes = (9 << 20) + 700;
    pool.ok(["create", "scratch", &bytes.to_string(), "--redundancy", "mirror:2", "--encrypt"]);
    let path = pool.attach_fuse("scratch", &[]).path;
    let file = fs::File::options().write(true).open(&path).expect("the volume");
    for at in (0..9).map(|nth| nth * 1_000_003) {
        file.write_all_at(SECRET, at).expect("a write");
    }
    drop(file);
    pool.detach("scratch");
    let invitation = pool.ok(["token", "new", "--role", "client"]);
    tools::expect_success(&mut another(&pool, &["join", invitation.trim()]));
    let refused = tools::expect_failure(&mut another(&pool, &["seal", "scratch", "--pool", pool.url()]));
    tools::names(&refused, &["'scratch' is encrypted", "cheetah grant scratch MEMBER", "--key-file"]);
    assert_eq!(sealed(&pool, "scratch"), Value::Null);
    // A reader that has it attached checks from now on, too.
    let reader = pool.attach_fuse("scratch", &["--read-only"]).path;
    let report = pool.json(["seal", "scratch"]);
    let b3sum = first_word("b3sum", &reader);
    assert_eq!((&report["blake3"], &sealed(&pool, "scratch")["contents"]), (&json!(b3sum), &json!(b3sum)));
    pool.detach("scratch");
    // Who may not read it verifies it.
    tools::expect_success(&mut another(&pool, &["verify", "scratch", "--pool", pool.url()]));
    tools::names(
        &tools::expect_success(&mut another(&pool, &["manifest", "scratch", "--pool", pool.url()])),
        &[&b3sum],
    );

    // A volume of one block, and one of less, which nobody has written.
    for (name, bytes) in [("block", "4096"), ("byte", "1")] {
        pool.ok(["create", name, bytes, "--redundancy", "linear", "--encrypt"]);
        pool.ok(["seal", name]);
        let path = pool.attach_fuse(name, &[]).path;
        assert_eq!(sealed(&pool, name)["contents"], json!(first_word("b3sum", &path)));
        pool.detach(name);
    }
}

/// What lies there already is proved as it is read, and what is written over as it is written.
#[test]
fn a_load_that_goes_on_and_a_volume_that_was_opened_are_sealed() {
    let mut pool = pool_of(2);
    let (file, bytes) = image(&pool);
    let name = file.display().to_string();
    let size = bytes.len().to_string();
    pool.ok(["create", "case", &size, "--redundancy", "linear", "--encrypt"]);
    pool.ok(["load", &name, "case", "--no-verify"]);
    assert_eq!(sealed(&pool, "case"), Value::Null);
    // What is before the lie is there already, and what is behind it is written again.
    let memory = Memory::of(pool.pid_of(&pool.holders("case", 0)[0]));
    let flips = memory.flip(&mut Dice::new(3), 1, |at, _| (12 << 20..13 << 20).contains(&(at % (64 << 20))));
    flips.iter().for_each(|flip| memory.forge(flip));
    let report = pool.json(["load", &name, "case", "--resume"]);
    assert_eq!(report["resumed_bytes"], json!(12 << 20), "{report}");
    let b3sum = first_word("b3sum", &file);
    assert_eq!((&report["sealed"], &sealed(&pool, "case")["contents"]), (&json!(b3sum), &json!(b3sum)));
    tools::names(&pool.ok(["verify", "case"]), &["fit the seal"]);
    let path = pool.attach_fuse("case", &[]).path;
    assert!(fs::read(&path).expect("it reads") == bytes);
    pool.detach("case");

    pool.ok(["open", &name, "opened", "--encrypt", "--writable"]);
    wait::until("all of it to be here", LONG, || {
        pool.volume_status("opened")["content"]["state"] == "loaded"
    });
    wait::until("who fills it to be gone", LONG, || pool.run(["seal", "opened"]).status.success());
    assert_eq!(sealed(&pool, "opened")["contents"], json!(b3sum));
    tools::names(&pool.ok(["verify", "opened"]), &["fit the seal"]);
    assert!(!memory_has(pool.pid_of("d1"), SECRET) && !memory_has(pool.pid_of("d2"), SECRET));
}

/// An error that the medium answers with one sector: what stands beside it in its block is read, and sealed.
#[test]
fn beside_a_bad_sector_all_is_read_and_sealed() {
    let mut pool = pool_of(2);
    let (file, mut bytes) = image(&pool);
    let (bad, sector) = (1_052_672_usize, 512_usize);
    // And a whole block.
    let worse = 5 << 20;
    let reaches = |from: usize, end: usize| format!("{{ [ $4 -lt {end} ] && [ $(($4 + $3)) -gt {from} ]; }}");
    let pread = format!(
        "pread=if {} || {}; then echo EIO bad sector >&2; exit 1; fi; \
         dd if={} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
        reaches(bad, bad + sector),
        reaches(worse, worse + BLOCK),
        file.display()
    );
    let size = format!("get_size=echo {}", bytes.len());
    let medium = NbdFuse::of_nbdkit(&["eval", &size, &pread]);
    bytes[bad..bad + sector].fill(0);
    bytes[worse..worse + BLOCK].fill(0);
    let zeroed = pool.scratch().file("zeroed.dd", &bytes);
    for (name, how) in [("now", &[][..]), ("later", &["--writable"])] {
        let source = medium.path.display().to_string();
        let load = [&["load", &source, name, "--encrypt"], how].concat();
        assert_eq!(pool.run(load).status.code(), Some(6), "what is lost is told");
        if name == "later" {
            tools::names(&pool.ok(["seal", name]), &["512 bytes from 1052672 on"]);
        }
        assert_eq!(sealed(&pool, name)["contents"], json!(first_word("b3sum", &zeroed)), "{name}");
        let path = pool.attach_fuse(name, &[]).path;
        let volume = cheetah_lab::direct::open(&path, false).expect("the volume");
        let mut room = cheetah_lab::direct::Aligned::new(sector);
        for at in (bad - 4096..bad + 8192).step_by(sector) {
            let read = volume.read_exact_at(room.bytes(), at as u64);
            match at == bad {
                true => assert_eq!(read.map_err(|error| error.raw_os_error()), Err(Some(EIO)), "{name}"),
                false => assert!(read.is_ok() && *room.bytes() == bytes[at..at + sector], "{name}: {at}"),
            }
        }
        drop(volume);
        pool.detach(name);
        let report = pool.json(["verify", name]);
        assert_eq!((&report["right"], &report["proved"]["errors"]), (&json!(true), &json!([])), "{report}");
    }
}
