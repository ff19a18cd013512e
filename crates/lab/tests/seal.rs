//! Sealed volumes: nobody changes one, and no reader is given a block that is not what was sealed, whatever a
//! donor says of it.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cheetah_lab::filled::write_at;
use cheetah_lab::loaded::{FRONTS, Front, Loaded, VOLUME, assert_same};
use cheetah_lab::pool::Pool;
use cheetah_lab::{tools, wait};
use serde_json::json;

const MIB: u64 = 1 << 20;
const LIES: usize = 300;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// What the tool of BLAKE3's authors says of a file.
fn b3sum(file: &std::path::Path) -> String {
    let said = tools::expect_success(tools::command("b3sum").arg("--no-names").arg(file));
    said.trim().to_owned()
}

#[test]
fn what_is_loaded_is_sealed_and_nobody_changes_it() {
    let mut stage = Loaded::sealed("parity:3+1", 4);
    let content = stage.pool.volume_status(VOLUME)["content"].clone();
    assert_eq!(content["sealed"]["root"], json!(b3sum(stage.file())), "{content}");
    tools::names(&stage.pool.ok(["show", VOLUME]), &["sealed", "nobody changes it", &b3sum(stage.file())]);
    tools::names(&stage.pool.ok(["list"]), &["loaded, verified, sealed"]);

    let file = stage.file().display().to_string();
    let directory = stage.pool.mount_directory("no").display().to_string();
    for (line, word) in [
        (&["attach", VOLUME, &directory, "--writable"][..], "never changed"),
        (&["load", &file, VOLUME, "--overwrite"], "never changed"),
        (&["load", &file, VOLUME, "--resume"], "never changed"),
        (&["seal", VOLUME], "never changed"),
        (&["grow", VOLUME, "100M"], "does not grow"),
    ] {
        let said = stage.pool.run(line);
        assert_eq!(said.status.code(), Some(if line[0] == "grow" { 2 } else { 4 }), "{line:?}: {}", said.err);
        tools::names(&said.err, &[word]);
    }
    // Without a word it is for reading, and so are the files of it.
    let attached = stage.attach(Front::File, &[]);
    let opened = File::options().write(true).open(&attached.path);
    assert!(opened.and_then(|file| file.write_all_at(b"x", 0)).is_err(), "a tool wrote a sealed volume");
    stage.is_read_right(Front::File, &attached);
    stage.pool.detach(VOLUME);

    // A donor ends, and what it held is rebuilt: repairing is no change.
    stage.pool.donate("spare", "128M");
    let holder = stage.holder(0);
    stage.lose(&holder);
    wait::until("what was lost to be rebuilt", LONG, || {
        stage.pool.volume_status(VOLUME)["health"] == "whole"
    });
    let attached = stage.attach(Front::Export, &[]);
    stage.is_read_right(Front::Export, &attached);
    stage.pool.detach(VOLUME);
    stage.pool.ok(["delete", VOLUME]);
}

/// Who rebuilds it knows no proofs yet, and those that it needs first lie in rows that it works on alone: the
/// last group has them all, and a group before is not rebuilt.
#[test]
fn rows_of_proofs_are_rebuilt_by_who_knows_none() {
    let mut pool = Pool::start();
    for number in 1..=3 {
        pool.donate(&format!("d{number}"), "128M");
    }
    let image: Vec<u8> = (0..150 * MIB / 4096).flat_map(|block| [(block % 251) as u8; 4096]).collect();
    let image = pool.scratch().file("disk.dd", &image);
    pool.ok(["create", VOLUME, "150M", "--redundancy", "mirror:2"]);
    tools::names(&pool.ok(["load", &image.display().to_string(), VOLUME]), &["sealed: "]);
    let first = pool.holders(VOLUME, 0);
    let lost = pool.holders(VOLUME, 2).into_iter().find(|donor| !first.contains(donor));
    let lost = lost.expect("each donor has room for two of six");
    pool.donate("spare", "128M");
    pool.donor(&lost).kill();
    wait::until("the last group to be rebuilt", LONG, || pool.volume_status(VOLUME)["health"] == "whole");
    for donor in ["d1", "d2", "d3", "spare"].into_iter().filter(|donor| *donor != lost) {
        let log = pool.log_of(donor);
        assert!(!log.contains("no answer within"), "{donor} takes another for dead: {log}");
    }
    pool.ok(["verify", VOLUME]);
}

/// Whoever attaches it then knows no proofs, and has to rebuild the first ones from what lies beside them.
#[test]
fn proofs_of_a_lost_donor_are_had_from_redundancy() {
    for slot in 0..3 {
        let mut stage = Loaded::sealed("parity:2+1", 3);
        let holder = stage.holder(slot);
        stage.lose(&holder);
        let attached = stage.attach(Front::Export, &[]);
        stage.is_read_right(Front::Export, &attached);
        stage.pool.detach(VOLUME);
    }
}

/// Its memory holds other bytes, and their checksums fit: no checksum finds that.
fn a_donor_that_lies_is_found(redundancy: &str, donors: usize) {
    for (front, seed) in FRONTS.into_iter().zip(7..) {
        // Who repairs what the last one found would put right what this one is to find.
        let mut stage = Loaded::sealed(redundancy, donors);
        let liar = stage.holder(0);
        let lies = stage.lie(&liar, LIES, seed);
        let attached = stage.attach(front, &[]);
        let expected = if redundancy == "linear" { lies.set() } else { BTreeSet::new() };
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &expected);
        stage.accuses(&[&lies]);
        stage.pool.detach(VOLUME);
        match redundancy {
            "linear" => lies.restore(),
            _ => wait::until("what was lied about to be right again", LONG, || lies.wrong() == 0),
        }
    }
}

#[test]
fn a_lie_in_a_copy_is_gone_round() {
    a_donor_that_lies_is_found("mirror:2", 2);
}

#[test]
fn a_lie_in_a_row_with_parity_is_gone_round() {
    a_donor_that_lies_is_found("parity:3+1", 4);
}

/// A data donor is gone, and what stands in for it was changed on one of two.
#[test]
fn parity_that_lies_is_gone_round_by_other_parity() {
    let mut stage = Loaded::sealed("parity:3+2", 5);
    stage.lie_parity(&stage.holder(3), LIES, 9);
    let gone = stage.holder(0);
    stage.lose(&gone);
    let attached = stage.attach(Front::Export, &[]);
    stage.is_read_right(Front::Export, &attached);
    assert_same("with a donor gone", &stage.errors(Front::Export, &attached), &BTreeSet::new());
    stage.pool.detach(VOLUME);
}

#[test]
fn without_redundancy_a_lie_is_an_error() {
    a_donor_that_lies_is_found("linear", 2);
}

/// What the checksums of donors cannot know: the same lies in a volume that is not sealed are delivered.
#[test]
fn a_lie_is_found_by_the_seal_and_by_nothing_else() {
    let mut stage = Loaded::new("linear", 2);
    let lies = stage.lie(&stage.holder(0), 1, 3);
    let attached = stage.attach(Front::File, &[]);
    let mut block = vec![0; 4096];
    let file = File::open(&attached.path).expect("it is there");
    file.read_exact_at(&mut block, lies.places[0]).expect("nothing is found wrong");
    assert_ne!(block, lies.flips[0].was);
    drop(file);
    stage.pool.detach(VOLUME);

    // It is not sealed as what it was loaded from.
    let said = stage.pool.run(["seal", VOLUME]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    tools::names(&said.err, &["is not sealed", "SHA-256"]);
    lies.restore();
    let report = stage.pool.json(["seal", VOLUME]);
    assert_eq!(report["blake3"], json!(b3sum(stage.file())), "{report}");
    assert!(stage.pool.volume_status(VOLUME)["content"]["written"].is_null());
    let attached = stage.attach(Front::Export, &[]);
    stage.is_read_right(Front::Export, &attached);
    stage.pool.detach(VOLUME);
}

#[test]
fn what_tools_wrote_is_sealed_as_it_is() {
    let mut pool = Pool::start();
    for name in ["one", "two"] {
        pool.donate(name, "128M");
    }
    let bytes = 9 * MIB + 700;
    pool.ok(["create", "scratch", &bytes.to_string(), "--redundancy", "mirror:2"]);
    let path = pool.attach_fuse("scratch", &[]).path;
    write_at(&path, 0x5a, 3 * MIB + 5);
    // While somebody may write it, it is not.
    let said = pool.run(["seal", "scratch"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["is attached for writing"]);
    pool.detach("scratch");
    // A reader that has it attached checks from now on, too.
    let reader = pool.attach_fuse("scratch", &["--read-only"]).path;
    tools::names(&pool.ok(["seal", "scratch"]), &["sealed 9", "BLAKE3", "SHA-256"]);
    let report = pool.volume_status("scratch");
    assert_eq!(report["content"]["sealed"]["root"], json!(b3sum(&reader)), "{report}");
    pool.detach("scratch");

    // A volume of one block, and one of less.
    for (name, bytes) in [("block", "4096"), ("byte", "1")] {
        pool.ok(["create", name, bytes, "--redundancy", "linear"]);
        pool.ok(["seal", name]);
        let path = pool.attach_fuse(name, &[]).path;
        assert_eq!(pool.volume_status(name)["content"]["sealed"]["root"], json!(b3sum(&path)));
        pool.detach(name);
    }
}

#[test]
fn what_was_opened_to_be_written_is_sealed_by_hand() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    let bytes: Vec<u8> = (0..5 * MIB + 512).map(|at| (at / 4096 % 251) as u8).collect();
    let image = pool.scratch().file("disk.dd", &bytes);
    pool.ok(["open", &image.display().to_string(), "case", "--writable"]);
    wait::until("all of it to be here", LONG, || pool.volume_status("case")["content"]["state"] == "loaded");
    wait::until("who fills it to be gone", LONG, || pool.run(["seal", "case"]).status.success());
    let path = pool.attach_fuse("case", &[]).path;
    assert_eq!(b3sum(&path), b3sum(&image));
    assert_eq!(pool.volume_status("case")["content"]["sealed"]["root"], json!(b3sum(&image)));
    pool.detach("case");
}

#[test]
fn no_room_for_proofs_is_said_and_the_load_is_good() {
    let mut pool = Pool::start();
    pool.donate("one", "64M");
    let image = pool.scratch().file("disk.dd", &vec![7; 64 << 20]);
    let said = pool.run(["load", &image.display().to_string(), "case7"]);
    assert!(said.status.success(), "{}", said.err);
    tools::names(&said.err, &["is not sealed", "no room", "`cheetah seal case7`"]);
    tools::names(&said.out, &["verified"]);
    let said = pool.run(["seal", "case7"]);
    assert_eq!(said.status.code(), Some(5), "{}", said.err);
    pool.donate("two", "64M");
    tools::names(&pool.ok(["seal", "case7"]), &["sealed 64"]);
}

/// Of minisign, the tool of others.
fn minisign(file: &std::path::Path, key: &str) -> std::process::Command {
    let mut command = tools::command("minisign");
    command.arg("-Vm").arg(file).args(["-P", key]);
    command
}

#[test]
fn a_manifest_is_signed_and_a_changed_one_is_refused_by_all() {
    let stage = Loaded::sealed("mirror:2", 2);
    let pool = &stage.pool;
    let file = pool.scratch().join("case.json");
    let name = file.display().to_string();
    let said = pool.ok(["manifest", VOLUME, &name]);
    let report = pool.json(["manifest", VOLUME]);
    let key = report["key"].as_str().expect("a key").to_owned();
    tools::names(&said, &["case.json.minisig", &key]);
    let text = std::fs::read_to_string(&file).expect("it was written");
    assert_eq!(text, pool.ok(["manifest", VOLUME]), "what is printed is what is written");
    assert_eq!(report["manifest"]["hashes"]["blake3"], json!(b3sum(stage.file())));
    assert_eq!(report["manifest"]["source"]["name"], json!(stage.file().display().to_string()));
    tools::names(
        &tools::expect_success(&mut minisign(&file, &key)),
        &["Signature and comment signature verified"],
    );
    // What others need to check the volume with is in it.
    let jq = tools::expect_success(tools::command("jq").args(["-r", ".hashes.sha256"]).arg(&file));
    let sha256 = tools::expect_success(tools::command("sha256sum").arg(stage.file()));
    assert!(sha256.starts_with(jq.trim()), "{jq} {sha256}");
    tools::names(&pool.ok(["verify", VOLUME, "--manifest", &name]), &["fit the seal", "signed by this pool"]);

    let said = pool.run(["manifest", VOLUME, &name]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    std::fs::write(&file, text.replacen("\"bytes\": 4", "\"bytes\": 5", 1)).expect("written");
    tools::expect_failure(&mut minisign(&file, &key));
    let said = pool.run(["verify", VOLUME, "--manifest", &name]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    tools::names(&said.err, &["case.json.minisig", "not what was signed"]);

    // One of another volume, and one of another pool.
    pool.ok(["create", "other", "64K", "--redundancy", "linear"]);
    let said = pool.run(["manifest", "other"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["is not sealed", "`cheetah seal other`"]);
    pool.ok(["seal", "other"]);
    pool.ok(["manifest", "other", &name, "--overwrite"]);
    let said = pool.run(["verify", VOLUME, "--manifest", &name]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    tools::names(&said.err, &["is of volume other", "is something else"]);
    let stranger = Loaded::sealed("linear", 1);
    stranger.pool.ok(["manifest", VOLUME, &name, "--overwrite"]);
    let said = pool.run(["verify", VOLUME, "--manifest", &name]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    tools::names(&said.err, &["another pool's"]);
}

#[test]
fn verify_finds_what_no_donor_admits() {
    let stage = Loaded::sealed("mirror:2", 2);
    let report = stage.pool.json(["verify", VOLUME]);
    assert_eq!((&report["right"], &report["proved"]["errors"]), (&json!(true), &json!([])), "{report}");
    assert_eq!(report["proved"]["bytes_proved"], json!(stage.image.len()));
    // Of two copies the one that is asked less often has it: both lie, about other blocks.
    let (one, other) = (stage.holder(0), stage.holder(1));
    let is_odd = |at: u64| at / 4096 % 2 == 1;
    let lies = [stage.lie_where(&one, LIES, 11, is_odd), stage.lie_where(&other, LIES, 12, |at| !is_odd(at))];
    let said = stage.pool.run(["verify", VOLUME]);
    assert_eq!(said.status.code(), Some(6), "{}{}", said.out, said.err);
    tools::names(&said.out, &["FORGED", "fit its checksums, and not the seal"]);
    tools::names(&said.err, &["say that it is right"]);
    wait::until("all that was lied about to be right again", LONG, || {
        lies.iter().all(|lies| lies.wrong() == 0)
    });

    let stage = Loaded::sealed("linear", 1);
    let lies = stage.lie(&stage.holder(0), 3, 5);
    let said = stage.pool.run(["verify", VOLUME, "--json"]);
    assert_eq!(said.status.code(), Some(6), "{}", said.err);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    let errors = report["proved"]["errors"].as_array().expect("a list");
    let bytes: u64 = errors.iter().map(|range| range["len"].as_u64().expect("bytes")).sum();
    assert_eq!(bytes, lies.set().len() as u64 * 4096, "{report}");
}
