//! NBD servers that others wrote, as donors of a volume: nbdkit's memory plugin and qemu-nbd.

use std::fs;
use std::os::unix::fs::FileExt;

use cheetah_lab::dice::Dice;
use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::pool::Pool;
use cheetah_lab::rivals::Rival;
use cheetah_lab::{tools, wait};
use serde_json::Value;

#[test]
fn a_stripe_over_nbdkit_and_qemu_nbd_holds_every_byte() {
    let nbdkit = Rival::nbdkit(&["memory", "1G"]);
    let qemu = Rival::qemu_nbd(1 << 30, "lent");
    let mut pool = Pool::in_the_clear();
    pool.donate_as("kit", &[&nbdkit.uri]);
    pool.donate_as("qemu", &[&qemu.uri]);
    pool.ok(["create", "case", "1G", "--redundancy", "stripe:2", "--unit", "64K"]);
    let uri = pool.attach_export("case", &[]).uri;

    let source =
        Rival::nbdkit_unix(&["sparse-random", "size=1G", "seed=7", "percent=50", "random-content=true"]);
    tools::run("nbdcopy", [&source.uri, &uri]);
    tools::run("nbdcopy", [&uri, &source.uri]);
    pool.detach("case");

    // The bytes are really there: both servers hold some of them.
    for server in [&nbdkit, &qemu] {
        let map = tools::run("nbdinfo", ["--map", "--totals", &server.uri]);
        assert!(map.lines().any(|line| line.ends_with("data") && !line.trim().starts_with("0 ")), "{map}");
    }
}

#[test]
fn a_foreign_donor_beside_one_of_ours_and_its_death() {
    let mut nbdkit = Rival::nbdkit(&["memory", "256M"]);
    let mut pool = Pool::in_the_clear();
    pool.donate("ours", "256M");
    pool.donate_as("theirs", &[&nbdkit.uri]);
    pool.create_linear("case", "384M");
    let uri = pool.attach_export("case", &[]).uri;
    let write = ["-f", "raw", "-c", "write -P 0x66 0 384M", "-c", "flush", &uri];
    tools::run("qemu-io", write);

    nbdkit.process.kill();
    wait::until("the status to name the foreign donor as lost", wait::SOON, || {
        pool.volume_status("case")["lost_donors"] == serde_json::json!(["theirs"])
    });
    tools::run("qemu-io", ["-f", "raw", "-r", "-c", "read -P 0x66 0 192M", &uri]);
    tools::expect_failure(tools::command("qemu-io").args(["-f", "raw", "-r", "-c", "read 320M 64k", &uri]));
}

#[test]
fn a_server_that_is_not_there_is_no_donor() {
    let pool = Pool::in_the_clear();
    let said = pool.fails(["donate", "nbd://127.0.0.1:9/", "--pool", pool.url(), "--name", "ghost"]);
    assert!(said.contains("127.0.0.1:9"), "{said}");
    assert_eq!(pool.status()["donors"], serde_json::json!([]));
}

/// What `show` and `status` say of a donor that keeps no checksums, and what an attachment's log does.
#[test]
fn a_donor_without_checksums_is_named() {
    let nbdkit = Rival::nbdkit(&["memory", "128M"]);
    let mut pool = Pool::in_the_clear();
    pool.donate("ours", "128M");
    pool.donate_as("theirs", &[&nbdkit.uri]);
    pool.ok(["create", "case", "24M", "--redundancy", "mirror:2"]);
    let keeps = |donors: &Value| -> Vec<(String, bool)> {
        let of = |donor: &Value| Some((donor["name"].as_str()?.to_owned(), donor["keeps_checksums"] == true));
        donors.as_array().expect("donors").iter().filter_map(of).collect()
    };
    let expected = [("ours".to_owned(), true), ("theirs".to_owned(), false)];
    assert_eq!(keeps(&pool.status()["donors"]), expected);
    let line = |text: &str, with: [&str; 2]| {
        text.lines().filter(|line| with.iter().all(|word| line.contains(word))).count()
    };
    let status = pool.ok(["status"]);
    let count = (line(&status, ["theirs", "keeps no checksums"]), line(&status, ["", "checksums"]));
    assert_eq!(count, (1, 1), "{status}");

    let detail = pool.json(["show", "case"]);
    assert_eq!(keeps(&detail["donors"]), expected);
    let unchecked = detail["unchecked"].as_str().unwrap_or_default();
    assert!(unchecked.contains("theirs") && unchecked.contains("others read it as it comes"), "{detail}");
    let show = pool.ok(["show", "case"]);
    assert_eq!(line(&show, ["donor       theirs", ", keeps no checksums"]), 1, "{show}");
    assert_eq!(line(&show, ["unchecked   ", unchecked]), 1, "{show}");

    // Once for each attachment.
    for (turn, (mode, says)) in
        [("--writable", "what was written from here"), ("--read-only", "gives is taken as it comes")]
            .into_iter()
            .enumerate()
    {
        pool.attach_fuse("case", &[mode]);
        pool.detach("case");
        let log = fs::read_to_string(pool.scratch().join("run/cheetah/case.log")).expect("its log");
        let said = "theirs is another NBD server, which keeps no checksums";
        assert_eq!((line(&log, [said, ""]), line(&log, [said, says])), (turn + 1, turn.max(1)), "{log}");
        assert_eq!(line(&log, ["ours is another", ""]), 0, "{log}");
    }

    pool.ok(["create", "own", "24M", "--redundancy", "linear"]);
    assert_eq!(pool.json(["show", "own"])["unchecked"], Value::Null, "all of it is on ours");
}

/// The seal is over what was loaded, wherever it lies.
#[test]
fn a_sealed_volume_on_a_donor_without_checksums_is_compared_with_its_seal() {
    let nbdkit = Rival::nbdkit(&["memory", "256M"]);
    let mut pool = Pool::in_the_clear();
    pool.donate_as("theirs", &[&nbdkit.uri]);
    let mut dice = Dice::new(35);
    let image: Vec<u8> = (0..(4 << 20) / 8).flat_map(|_| dice.roll().to_le_bytes()).collect();
    let file = pool.scratch().file("image.raw", &image).display().to_string();
    let said = pool.ok(["load", &file, "case"]);
    assert!(said.contains("sealed: "), "{said}");
    let detail = pool.json(["show", "case"]);
    let unchecked = detail["unchecked"].as_str().unwrap_or_default();
    assert!(unchecked.contains("compared with the seal"), "{detail}");

    let extent = detail["map"]["groups"][0]["slots"][0]["held"]["extent"].as_u64().expect("an extent");
    let wrong = format!("write -P 0x66 {} 4k", (extent << 26) + (1 << 20));
    tools::run("qemu-io", ["-f", "raw", "-c", &wrong, &nbdkit.uri]);
    let path = pool.attach_fuse("case", &["--read-only"]).path;
    let file = direct::open(&path, false).expect("the volume opens");
    let mut room = Aligned::new(4096);
    for at in [0, (1 << 20) - 4096, (1 << 20) + 4096] {
        file.read_exact_at(room.bytes(), at as u64).expect("a block that is right");
        assert!(room.bytes() == &image[at..at + 4096], "wrong bytes at {at}");
    }
    let read = file.read_exact_at(room.bytes(), 1 << 20);
    assert_eq!(read.expect_err("a block that was overwritten").raw_os_error(), Some(5));
    drop(file);
    pool.detach("case");
}
