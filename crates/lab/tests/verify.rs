//! `cheetah verify` of volumes whose donors are all well: what is right is called so, and one flipped bit
//! anywhere is found, named, and put right where redundancy covers it.
//!
//! What is expected comes from where the bits were flipped, never from what the program says elsewhere.
//! Donors and coordinators that go, stop or change beside it: `tests/verify_troubled.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cheetah_lab::dice::Dice;
use cheetah_lab::flip::{BLOCK_BYTES, Memory};
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::loaded::{Flipped, Front, Loaded, VOLUME, assert_same};
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::rivals::Rival;
use cheetah_lab::verified::Verified;
use cheetah_lab::wait;

const BLOCK: u64 = BLOCK_BYTES as u64;
const EXTENT: u64 = 64 << 20;
/// What one data slot of a parity volume has of a row.
const UNIT: u64 = 64 << 10;
/// Volumes of each kind, and how many donors they take.
const KINDS: [(&str, usize); 3] = [("linear", 2), ("mirror:2", 2), ("parity:3+1", 4)];

fn pool_of(donors: usize, size: &str) -> Pool {
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), size);
    }
    pool
}

/// What the fragments of a volume of so many bytes have in all.
fn fragment_bytes(redundancy: &str, bytes: u64) -> u64 {
    match redundancy {
        "linear" => bytes.next_multiple_of(BLOCK),
        "mirror:2" => 2 * bytes.next_multiple_of(BLOCK),
        "parity:3+1" => {
            let row = 3 * UNIT;
            4 * (bytes / row * UNIT + (bytes % row).min(UNIT).next_multiple_of(BLOCK))
        }
        other => panic!("not known here: {other}"),
    }
}

fn names(all: &[&Flipped]) -> BTreeMap<String, u64> {
    let mut names = BTreeMap::new();
    for flipped in all {
        *names.entry(flipped.donor.clone()).or_default() += flipped.flips.len() as u64;
    }
    names
}

/// Attaches it in each way that a volume can be when it is verified, or not at all.
const ATTACHED: [Option<&str>; 3] = [None, Some("--writable"), Some("--read-only")];

fn attach(stage: &mut Loaded, how: Option<&str>) {
    if let Some(how) = how {
        stage.attach(Front::File, &[how]);
    }
}

fn detach(stage: &mut Loaded, how: Option<&str>) {
    if how.is_some() {
        stage.pool.detach(VOLUME);
    }
}

#[test]
fn a_volume_that_is_what_was_written_is_right() {
    for (redundancy, donors) in KINDS {
        let stage = Loaded::new(redundancy, donors);
        let verified = Verified::run(&stage.pool, VOLUME);
        verified.is_right();
        let expected = fragment_bytes(redundancy, stage.image.len() as u64);
        assert_eq!(verified.number("bytes_checked"), expected, "{redundancy}");
        let said = stage.pool.run(["verify", VOLUME]);
        assert_eq!((said.status.code(), said.err.as_str()), (Some(0), ""), "{said:?}");
        let lines: Vec<&str> = said.out.lines().collect();
        assert!(lines[0].starts_with(&format!("volume '{VOLUME}': ")), "{said:?}");
        let (checked, holders) = (lines[0].contains(" checked by "), stage.pool.holders(VOLUME, 0));
        assert!(checked && lines[0].contains(" in ") && lines[0].ends_with("/s)"), "{said:?}");
        assert!(lines[1].starts_with("DONOR "), "{said:?}");
        assert!(holders.iter().all(|name| lines.iter().any(|line| line.starts_with(name))), "{said:?}");
        assert_eq!(lines.last(), Some(&"every block is what was written"), "{said:?}");
    }
}

/// What every donor sends while it is verified, counted at its link: hardly anything, until it is sealed.
/// Then each block is read, to be compared with the seal.
#[test]
fn data_stays_where_it_is_until_the_volume_is_sealed() {
    const DONORS: u8 = 4;
    let lan = Arc::new(Lan::new(DONORS, "10gbit"));
    let mut pool = Pool::of(Access::Members, State::Memory, Some(Arc::clone(&lan)));
    pool.donate_everywhere(DONORS, "128M");
    let stage = Loaded::on(pool, "parity:3+1");
    let bytes = stage.image.len() as u64;
    let sent_by_all = || (1..=DONORS).map(|number| lan.bytes_sent(Node::Donor(number))).sum::<u64>();
    let sent_while_verified = || {
        let before = sent_by_all();
        Verified::run(&stage.pool, VOLUME).is_right();
        sent_by_all() - before
    };
    let sent = sent_while_verified();
    assert!(sent < bytes / 20, "{sent} bytes were sent of a volume of {bytes}");
    stage.pool.ok(["seal", VOLUME]);
    let sent = sent_while_verified();
    // But for what is a hole, all of it.
    assert!(sent > bytes / 4 * 3, "only {sent} bytes were sent of a sealed volume of {bytes}");
}

#[test]
fn what_was_never_written_is_right_whatever_the_memory_says() {
    // Several groups, the last of them short.
    let pool = pool_of(3, "256M");
    let bytes = (200 << 20) + 512;
    for (redundancy, _) in KINDS {
        let redundancy = if redundancy == "parity:3+1" { "parity:2+1" } else { redundancy };
        pool.ok(["create", "empty", &u64::to_string(&bytes), "--redundancy", redundancy]);
        let verified = Verified::run(&pool, "empty");
        verified.is_right();
        assert!(verified.number("bytes_checked") > bytes, "{redundancy}: {}", verified.report);
        pool.ok(["delete", "empty"]);
    }
    let stage = Loaded::new("linear", 1);
    stage.flip_hole("d1", 200);
    Verified::run(&stage.pool, VOLUME).is_right();
}

/// The first block, one amid, the last whole one, and the last, of which the volume has a part.
fn places(stage: &Loaded) -> [u64; 4] {
    let last = stage.image.len() as u64 / BLOCK * BLOCK;
    [0, 5003 * BLOCK, last - BLOCK, last]
}

#[track_caller]
fn is_found_and_healed(stage: &Loaded, what: &str, flipped: &[&Flipped]) {
    let verified = Verified::run(&stage.pool, VOLUME);
    assert_eq!(verified.by_donor("blocks_wrong"), names(flipped), "{what}");
    verified.is_healed(&names(flipped));
    assert!(flipped.iter().all(|flipped| flipped.wrong() == 0), "{what}: healed in its words only");
    Verified::run(&stage.pool, VOLUME).is_right();
}

fn one_flip_anywhere_is_found_and_healed(redundancy: &str, donors: usize) {
    let mut stage = Loaded::new(redundancy, donors);
    let holders = stage.pool.holders(VOLUME, 0);
    let backwards: Vec<String> = holders.iter().rev().cloned().collect();
    for (how, seed) in ATTACHED.into_iter().zip(1..) {
        attach(&mut stage, how);
        let what = format!("{redundancy}, attached {how:?}");
        for place in places(&stage) {
            // Of a mirror, one copy and then the other.
            let order = if seed % 2 == 0 { &backwards } else { &holders };
            let flipped = stage.flip_block(order, place, seed);
            is_found_and_healed(&stage, &format!("{what}, at {place}"), &[&flipped]);
        }
        if redundancy.starts_with("parity") {
            let flipped = stage.flip_parity(&holders[3], 1, seed);
            is_found_and_healed(&stage, &format!("{what}, parity"), &[&flipped]);
        }
        detach(&mut stage, how);
    }
    let attached = stage.attach(Front::Export, &["--read-only"]);
    stage.is_read_right(Front::Export, &attached);
    stage.pool.detach(VOLUME);
}

#[test]
fn one_flip_anywhere_in_a_mirror_is_found_and_healed() {
    one_flip_anywhere_is_found_and_healed("mirror:2", 2);
}

#[test]
fn one_flip_anywhere_in_parity_is_found_and_healed() {
    one_flip_anywhere_is_found_and_healed("parity:3+1", 4);
}

/// In a volume of three extents, on two donors.
#[test]
fn without_redundancy_exactly_the_flipped_blocks_are_listed_and_are_errors() {
    let mut stage = Loaded::of(pool_of(2, "128M"), "linear", (130 << 20) + 1536);
    let donors = ["d1".to_owned(), "d2".to_owned()];
    let last = stage.image.len() as u64 / BLOCK * BLOCK;
    let chosen = [0, EXTENT - BLOCK, EXTENT, 2 * EXTENT + BLOCK, last];
    let flipped: Vec<Flipped> = chosen.iter().map(|at| stage.flip_block(&donors, *at, 3)).collect();
    let all: Vec<&Flipped> = flipped.iter().collect();
    // Neighbours are listed as one.
    let expected = [(0, BLOCK), (EXTENT - BLOCK, 2 * BLOCK), (2 * EXTENT + BLOCK, BLOCK), (last, 1536)];
    for how in ATTACHED {
        attach(&mut stage, how);
        for turn in 1..=2 {
            let verified = Verified::run(&stage.pool, VOLUME);
            let what = format!("{how:?}, turn {turn}: {}", verified.report);
            assert_eq!((verified.code, verified.number("blocks_healed")), (6, 0), "{what}");
            assert_eq!(verified.by_donor("blocks_wrong"), names(&all), "{what}");
            assert_eq!(verified.ranges("wrong"), expected, "{what}");
        }
        detach(&mut stage, how);
    }
    let said = stage.pool.run(["verify", VOLUME]);
    assert!(said.out.contains(&format!("WRONG  4096 bytes from {} on", expected[2].0)), "{said:?}");
    assert!(said.err.contains("5 blocks of volume 'case' are wrong"), "{said:?}");
    let attached = stage.attach(Front::Export, &["--read-only"]);
    let errors = stage.errors(Front::Export, &attached);
    assert_same("a reader", &errors, &chosen.into_iter().collect());
    stage.pool.detach(VOLUME);
    assert_eq!(flipped.iter().map(Flipped::wrong).sum::<usize>(), chosen.len(), "nobody covers it up");
}

/// What is written anew is right.
#[test]
fn a_wrong_block_that_is_written_again_is_right() {
    let mut stage = Loaded::new("linear", 1);
    let flipped = stage.flip("d1", 3);
    assert_eq!(Verified::run(&stage.pool, VOLUME).number("blocks_wrong"), 3);
    let path = stage.attach(Front::File, &["--writable"]).path;
    let file = File::options().write(true).open(&path).expect("the volume opens");
    for place in &flipped.places {
        let at = usize::try_from(*place).expect("small");
        file.write_all_at(&stage.image[at..at + BLOCK_BYTES], *place).expect("a write");
    }
    file.sync_all().expect("a flush");
    drop(file);
    Verified::run(&stage.pool, VOLUME).is_right();
    stage.pool.detach(VOLUME);
    Verified::run(&stage.pool, VOLUME).is_right();
}

#[test]
fn hundreds_of_flips_in_every_donor_are_found_and_healed() {
    const EACH: usize = 300;
    for (redundancy, donors) in [("parity:3+1", 4), ("parity:2+2", 4)] {
        let mut stage = Loaded::new(redundancy, donors);
        let holders = stage.pool.holders(VOLUME, 0);
        let (mut rows, mut all) = (BTreeSet::new(), Vec::new());
        let data = donors - if redundancy == "parity:2+2" { 2 } else { 1 };
        for holder in &holders[..data] {
            // No two of one row: that is all that one parity covers.
            let flipped = stage.flip_where(holder, EACH, 5, |at| !rows.contains(&at));
            rows.extend(flipped.flips.iter().map(|flip| flip.at % EXTENT));
            all.push(flipped);
        }
        if redundancy == "parity:2+2" {
            // Of two parities, one may be wrong in any of these rows.
            all.push(stage.flip_parity(&holders[3], EACH, 6));
        }
        is_found_and_healed(&stage, redundancy, &all.iter().collect::<Vec<_>>());
        let attached = stage.attach(Front::Export, &["--read-only"]);
        stage.is_read_right(Front::Export, &attached);
        stage.pool.detach(VOLUME);
    }
}

/// Where both copies are wrong, nothing is healed from the other, and all before it is. It is the last of
/// them, for healing pauses behind it.
#[test]
fn what_is_wrong_twice_is_listed_and_the_rest_is_healed() {
    const FLIPS: u64 = 20;
    let mut stage = Loaded::new("mirror:2", 2);
    let holders = stage.pool.holders(VOLUME, 0);
    let first = stage.flip(&holders[0], FLIPS as usize);
    let last = *first.places.iter().max().expect("many");
    let twice = stage.flip_block(&holders[1..], last, 8);
    let verified = Verified::run(&stage.pool, VOLUME);
    let report = &verified.report;
    assert_eq!((verified.code, verified.number("blocks_healed")), (6, FLIPS - 1), "{report}");
    assert_eq!(verified.by_donor("blocks_wrong"), names(&[&first, &twice]), "{report}");
    assert_eq!(verified.ranges("wrong"), [(last, BLOCK)], "{report}");
    assert_eq!((first.wrong(), twice.wrong()), (1, 1));
    stage.is_read_with("wrong twice", &twice.set());
}

/// Others' servers keep no checksums, so it is not said that what they hold is right; ours beside them is
/// checked.
#[test]
fn what_a_foreign_server_holds_is_not_called_right() {
    let kit = Rival::nbdkit(&["memory", "128M"]);
    let mut pool = Pool::in_the_clear();
    pool.donate_as("kit", &[&kit.uri]);
    pool.create_linear("theirs", "24M");
    let verified = Verified::run(&pool, "theirs");
    assert_eq!((verified.code, verified.number("bytes_checked")), (7, 0), "{}", verified.report);
    assert_eq!(verified.by_donor("bytes_unchecked"), [("kit".to_owned(), 24 << 20)].into());
    let why = verified.report["donors"][0]["why_unchecked"].as_str();
    assert!(why.is_some_and(|why| why.contains("keeps no checksums")), "{}", verified.report);
    let said = pool.run(["verify", "theirs"]);
    assert!(said.out.contains("keeps no checksums") && !said.out.contains("what was written"), "{said:?}");
    assert!(said.err.contains("not all of volume 'theirs' was checked"), "{said:?}");
    pool.ok(["delete", "theirs"]);

    pool.donate("d1", "128M");
    let mut stage = Loaded::on(pool, "mirror:2");
    let flipped = stage.flip("d1", 20);
    let verified = Verified::run(&stage.pool, VOLUME);
    assert_eq!((verified.code, verified.number("blocks_healed")), (6, 20), "{}", verified.report);
    assert_eq!(verified.by_donor("blocks_wrong"), names(&[&flipped]));
    assert!(verified.by_donor("bytes_unchecked").contains_key("kit"), "{}", verified.report);
    assert_eq!(Verified::run(&stage.pool, VOLUME).code, 7, "ours is right, theirs is not known");
    let attached = stage.attach(Front::Export, &["--read-only"]);
    stage.is_read_right(Front::Export, &attached);
    stage.pool.detach(VOLUME);
}

#[test]
fn what_is_not_there_to_be_verified_is_said_so() {
    let mut pool = pool_of(1, "128M");
    let said = pool.run(["verify", "ghost", "--json"]);
    assert_eq!((said.status.code(), said.out.as_str()), (Some(4), ""), "{said:?}");
    assert!(said.err.contains("not_found") && said.err.contains("ghost"), "{said:?}");
    pool.kill_coordinator();
    let said = pool.run(["verify", "ghost"]);
    assert_eq!((said.status.code(), said.out.as_str()), (Some(3), ""), "{said:?}");
}

/// A bit of a block that is longer than the volume, behind its end: it would be a byte of the volume after it
/// has grown.
#[test]
fn a_flip_behind_the_end_is_found_and_is_no_part_of_the_volume() {
    let mut stage = Loaded::new("linear", 1);
    let last = stage.image.len() as u64 / BLOCK * BLOCK;
    let tail = stage.image[usize::try_from(last).expect("small")..].to_vec();
    let memory = Memory::of(stage.pool.pid_of("d1"));
    let at = memory.blocks().into_iter().find_map(|(at, block)| block.starts_with(&tail).then_some(at));
    let mut dice = Dice::new(1);
    let flip = wait::for_some("a flip behind the end", wait::SOON, || {
        let flip = memory.flip_at(&mut dice, at.expect("the donor holds the last block"));
        if flip.byte >= tail.len() {
            return Some(flip);
        }
        memory.restore(&flip);
        None
    });
    let verified = Verified::run(&stage.pool, VOLUME);
    assert_eq!((verified.code, verified.number("blocks_wrong")), (6, 1), "{flip:?}: {}", verified.report);
    assert_eq!(verified.ranges("wrong"), [(last, tail.len() as u64)], "{}", verified.report);
    stage.is_read_with("behind the end", &[last].into());
}
