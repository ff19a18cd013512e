//! Encrypted volumes: donors hold nothing of what tools write, give back what another had without the key,
//! and who was not given the key is refused.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::member::another;
use cheetah_lab::peek::{SECRET, memory_has};
use cheetah_lab::pool::Pool;
use cheetah_lab::{tools, wait};
use serde_json::{Value, json};

const SIZE: u64 = (40 << 20) + 1000;
/// What a rebuild may take on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Writes pieces of any length anywhere, and the planted text many times; what the volume holds then.
fn fill(path: &Path, seed: u64, model: &mut [u8]) {
    let file = File::options().write(true).open(path).expect("the volume opens");
    let mut dice = Dice::new(seed);
    let put = |offset: usize, bytes: &[u8], model: &mut [u8]| {
        file.write_all_at(bytes, offset as u64).expect("a write");
        model[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    for nth in 0..200 {
        let len = 1 + dice.below(if nth % 10 == 0 { 1 << 20 } else { 20_000 }) as usize;
        let offset = dice.below(SIZE - len as u64) as usize;
        let bytes: Vec<u8> = (0..len).map(|at| (at as u64 * 31 + seed + nth) as u8).collect();
        put(offset, &bytes, model);
        put(dice.below(SIZE - 100) as usize, SECRET, model);
    }
    put(SIZE as usize - 10, b"the end is", model);
    file.sync_all().expect("a flush");
}

#[track_caller]
fn assert_holds(path: &Path, model: &[u8]) {
    let read = std::fs::read(path).expect("the volume is read");
    assert_eq!(read.len(), model.len());
    let differs = read.iter().zip(model).position(|(read, meant)| read != meant);
    assert_eq!(differs, None, "the first byte that is another one");
}

fn rebuilt_without_the_key(redundancy: &str) {
    tools::need_root("to look into another process's memory");
    let mut pool = Pool::start();
    for name in ["one", "two", "three", "four"] {
        pool.donate(name, "128M");
    }
    let size = SIZE.to_string();
    let made = pool.json(["create", "case", &size, "--redundancy", redundancy, "--encrypt"]);
    let status = &made["status"];
    assert_eq!((&status["encrypted"], &status["size"]), (&json!(true), &json!(SIZE)));
    assert!(pool.ok(["list"]).contains(", encrypted"), "it is told in the list");
    let mut model = vec![0; SIZE as usize];
    let attached = pool.attach_fuse("case", &[]);
    fill(&attached.path, 3, &mut model);
    assert_holds(&attached.path, &model);
    for pid in pool.donor_pids() {
        assert!(!memory_has(pid, SECRET), "{redundancy}: donor {pid} has the planted text");
    }
    // One is lost under way, and what it held is read from the others.
    let victim = pool.holders("case", 0)[0].clone();
    pool.donor(&victim).kill();
    assert_holds(&attached.path, &model);
    fill(&attached.path, 4, &mut model);
    pool.detach("case");
    // Nobody has the key any more, and a donor rebuilds all the same.
    wait::until("all of it to be rebuilt", LONG, || pool.volume_status("case")["health"] == "whole");
    let path = pool.attach_fuse("case", &["--read-only"]).path;
    assert_holds(&path, &model);
    pool.detach("case");
    let verified = pool.json(["verify", "case"]);
    assert_eq!(verified["blocks_wrong"], json!(0), "it takes no key: {verified}");
    let next = pool.holders("case", 0)[0].clone();
    pool.donor(&next).kill();
    let path = pool.attach_fuse("case", &["--read-only"]).path;
    assert_holds(&path, &model);
    pool.detach("case");
    for pid in pool.donor_pids().into_iter().filter(|pid| Path::new(&format!("/proc/{pid}/maps")).exists()) {
        assert!(!memory_has(pid, SECRET), "{redundancy}: donor {pid} has the planted text");
    }
}

#[test]
fn a_mirror_is_rebuilt_by_donors_that_never_see_a_word_of_it() {
    rebuilt_without_the_key("mirror:2");
}

#[test]
fn parity_is_rebuilt_by_donors_that_never_see_a_word_of_it() {
    rebuilt_without_the_key("parity:2+1");
}

/// The search of these tests finds what is there.
#[test]
fn of_a_volume_that_is_not_encrypted_donors_have_every_word() {
    tools::need_root("to look into another process's memory");
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", &SIZE.to_string());
    let path = pool.attach_fuse("case", &[]).path;
    fill(&path, 3, &mut vec![0; SIZE as usize]);
    assert!(memory_has(pool.pid_of("one"), SECRET));
}

#[test]
fn a_member_attaches_what_it_was_granted_and_nothing_else() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    let invitation = pool.ok(["token", "new", "--role", "client"]);
    tools::expect_success(&mut another(&pool, &["join", invitation.trim()]));
    pool.ok(["create", "case", "8M", "--redundancy", "linear", "--encrypt"]);
    let path = pool.attach_fuse("case", &[]).path;
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the volume")
        .write_all_at(SECRET, 5000)
        .expect("a write");
    pool.detach("case");
    let out = pool.scratch().join("out").display().to_string();
    let save = ["save", "case", &out, "--pool", pool.url()].map(str::to_owned);
    let save: Vec<&str> = save.iter().map(String::as_str).collect();
    let refused = tools::expect_failure(&mut another(&pool, &save));
    tools::names(&refused, &["'case' is encrypted", "cheetah grant case MEMBER", "--key-file"]);
    // Who was not given it gives it to nobody.
    let members = pool.json(["member", "list"]);
    let members = members["members"].as_array().expect("members").clone();
    let of = |role: &str| {
        let member = members.iter().find(|member| member["role"] == role).expect("a member of that role");
        member["member"].as_str().expect("an identity").to_owned()
    };
    let client = of("client");
    let refused =
        tools::expect_failure(&mut another(&pool, &["grant", "case", &client, "--pool", pool.url()]));
    tools::names(&refused, &["'case' is encrypted"]);
    tools::names(&pool.fails(["grant", "case", "0123456789abcdef"]), &["no member 0123456789abcdef"]);
    pool.ok(["grant", "case", &client]);
    tools::expect_success(&mut another(&pool, &save));
    let saved = std::fs::read(&out).expect("the file");
    assert_eq!(&saved[5000..][..SECRET.len()], SECRET);
    // Out of the pool, it is given nothing any more.
    pool.ok(["member", "revoke", &client]);
    let shown = pool.json(["show", "case"]).to_string();
    assert!(!shown.contains("wrapped"), "{shown}");
    pool.create_linear("plain", "1M");
    tools::names(&pool.fails(["grant", "plain", &of("admin")]), &["not encrypted"]);
}

fn key_file(pool: &Pool, name: &str, byte: u8, mode: u32) -> PathBuf {
    let path = pool.scratch().join(name);
    std::fs::write(&path, format!("{byte:02x}").repeat(32)).expect("a file");
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
    path
}

#[test]
fn in_the_clear_a_key_is_a_file_of_its_owners() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "256M");
    let create = |more: &[&str]| {
        let all = [&["create", "case", "8M", "--redundancy", "linear", "--encrypt"], more].concat();
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    tools::names(&pool.fails(create(&[])), &["--key-file FILE", "openssl rand"]);
    let open = key_file(&pool, "open", 7, 0o644).display().to_string();
    tools::names(&pool.fails(create(&["--key-file", &open])), &["can be read by others", "chmod 600"]);
    let (key, other) = (key_file(&pool, "key", 7, 0o600), key_file(&pool, "other", 8, 0o600));
    let (key, other) = (key.display().to_string(), other.display().to_string());
    pool.ok(create(&["--key-file", &key]));
    let source = pool.scratch().join("disk.raw");
    let bytes: Vec<u8> = SECRET.iter().copied().cycle().take((3 << 20) + 512).collect();
    std::fs::write(&source, &bytes).expect("a file");
    let source = source.display().to_string();
    // Loaded, opened and read back as it is.
    let loaded = pool.ok(["load", &source, "loaded", "--encrypt", "--key-file", &key]);
    tools::names(&loaded, &["verified: the donors confirmed", "sealed: "]);
    pool.ok(["open", &source, "opened", "--encrypt", "--key-file", &key]);
    for name in ["loaded", "opened"] {
        assert_eq!(pool.volume_status(name)["encrypted"], json!(true), "{name}");
        let out = pool.scratch().join(format!("{name}.out")).display().to_string();
        tools::names(&pool.fails(["save", name, &out]), &["is encrypted", "--key-file"]);
        tools::names(&pool.fails(["save", name, &out, "--key-file", &other]), &["is not that of volume"]);
        pool.ok(["save", name, &out, "--key-file", &key]);
        assert!(std::fs::read(&out).expect("the file") == bytes, "{name}");
    }
    assert!(!memory_has(pool.pid_of("one"), SECRET), "it came from a source, and is ciphertext as well");
    tools::names(&pool.fails(["load", &source, "plain", "--encrypt"]), &["--key-file FILE"]);
    pool.create_linear("plain", "8M");
    tools::names(
        &pool.fails(["load", &source, "plain", "--encrypt", "--key-file", &key]),
        &["not encrypted"],
    );
    let verified: Value = pool.json(["verify", "loaded"]);
    assert_eq!(verified["blocks_wrong"], json!(0), "it takes no key: {verified}");
    // The environment names it as well, also for the daemon.
    let mut attach = pool.command();
    attach.args(["attach", "case", "--front", "export", "--listen"]).env("CHEETAH_KEY_FILE", &key);
    let socket = format!("unix:{}", pool.scratch().join("s").display());
    tools::expect_success(attach.arg(&socket));
    pool.ok(["detach", "case"]);
}
