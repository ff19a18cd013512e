//! Bits that flip in a donor's memory: no wrong byte is delivered, by any front, to any attachment.
//!
//! Each case knows what every block has to be and which blocks were flipped. A block is what was written, or
//! an error where nothing else is left to read it from; never anything else. Who is accused is the donor
//! whose memory is wrong, and nobody else. Readers beside a writer: `tests/flips_beside.rs`.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cheetah_lab::flip::BLOCK_BYTES;
use cheetah_lab::loaded::{FRONTS, Front, Loaded, VOLUME, assert_same};
use cheetah_lab::pool::Pool;
use cheetah_lab::rivals::Rival;
use cheetah_lab::{hash, tools, wait};
use serde_json::Value;

const BLOCK: u64 = BLOCK_BYTES as u64;
const EXTENT: u64 = 64 << 20;
/// What one data slot has of a row.
const UNIT: u64 = 64 << 10;
const FLIPS: usize = 1000;
/// Where many are not needed.
const FEW: usize = 200;
const EIO: i32 = 5;
/// For what needs some rounds of reading on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// What is found is put right as well, though nobody has it attached for writing.
fn every_front_delivers_what_was_loaded(redundancy: &str, donors: usize) {
    let mut stage = Loaded::new(redundancy, donors);
    let victim = stage.holder(0);
    for (front, seed) in FRONTS.into_iter().zip(7..) {
        let flipped = stage.flip_where(&victim, FLIPS, seed, |_| true);
        let attached = stage.attach(front, &["--read-only"]);
        stage.is_read_right(front, &attached);
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &BTreeSet::new());
        if front == Front::Export {
            let (errors, good) = stage.odd_pieces(&attached, 2000);
            assert_eq!((errors.len(), good.len()), (0, 2000), "pieces of blocks");
        }
        stage.accuses(&[&flipped]);
        stage.pool.detach(VOLUME);
        wait::until("every flipped block to be what it was", LONG, || flipped.wrong() == 0);
    }
}

#[test]
fn a_mirror_is_read_right_through_every_front() {
    every_front_delivers_what_was_loaded("mirror:2", 2);
}

#[test]
fn parity_is_read_right_through_every_front() {
    every_front_delivers_what_was_loaded("parity:3+1", 4);
}

#[test]
fn without_redundancy_exactly_the_flipped_blocks_are_errors() {
    let mut stage = Loaded::new("linear", 2);
    let flipped = stage.flip(&stage.holder(0), FLIPS);
    for front in FRONTS {
        let attached = stage.attach(front, &["--read-only"]);
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &flipped.set());
        stage.accuses(&[&flipped]);
        // Who reads all of it at once hears of it as well.
        if front == Front::Export {
            let flips = |range: &Range<u64>| {
                let first = range.start / BLOCK * BLOCK;
                flipped.places.iter().any(|place| (first..range.end).contains(place))
            };
            let (errors, good) = stage.odd_pieces(&attached, 2000);
            assert!(errors.iter().all(flips) && !good.iter().any(flips), "pieces of blocks");
            assert!(errors.len() > 100 && good.len() > 100, "{} and {}", errors.len(), good.len());
            let copy = stage.pool.scratch().join("copy").display().to_string();
            tools::expect_failure(tools::command("nbdcopy").args([&attached.uri, &copy]));
        } else {
            let read = File::open(&attached.path).and_then(hash::of_reader);
            assert_eq!(read.expect_err("a hash of wrong bytes").raw_os_error(), Some(EIO));
        }
        stage.pool.detach(VOLUME);
    }
    assert_eq!(flipped.wrong(), FLIPS);
}

/// By an attachment that has written nothing and has only just come. Of two copies chance may leave a few
/// unread, however often all is read: those stay.
fn who_may_write_heals(redundancy: &str, donors: usize, unread_max: usize) {
    let mut stage = Loaded::new(redundancy, donors);
    let flipped = stage.flip(&stage.holder(0), FLIPS);
    let attached = stage.attach(Front::Export, &["--writable"]);
    stage.is_read_right(Front::Export, &attached);
    wait::until("the flipped blocks to be what they were", LONG, || {
        assert_same("beside healing", &stage.errors(Front::Export, &attached), &BTreeSet::new());
        flipped.wrong() <= unread_max
    });
    // Whatever was found is healed. A block that is read again while it is healed is found twice.
    wait::until("all that was found to be healed", wait::SOON, || {
        let found = stage.accused();
        let healed = stage.pool.volume_status(VOLUME)["attachments"][0]["report"]["healed_blocks"].clone();
        let good = FLIPS as u64 - flipped.wrong() as u64;
        let is_found = found.get(&flipped.donor).is_some_and(|blocks| *blocks >= good);
        is_found && healed.as_u64().is_some_and(|healed| healed >= good)
    });
    stage.accuses(&[&flipped]);
    stage.pool.detach(VOLUME);
    let left = flipped.wrong();
    let attached = stage.attach(Front::File, &["--read-only"]);
    stage.is_read_right(Front::File, &attached);
    let accused = stage.accused();
    assert!(accused.keys().all(|name| left > 0 && *name == flipped.donor), "{left} are left: {accused:?}");
    stage.pool.detach(VOLUME);
    assert!(flipped.wrong() <= left);
    assert_eq!(stage.pool.volume_status(VOLUME)["content"]["written"], Value::Null);
}

#[test]
fn a_mirror_is_healed_by_an_attachment_that_wrote_nothing() {
    who_may_write_heals("mirror:2", 2, FLIPS / 20);
}

#[test]
fn parity_is_healed_by_an_attachment_that_wrote_nothing() {
    who_may_write_heals("parity:3+1", 4, 0);
}

/// One donor is gone, and there is none to rebuild on. What is left of two parities covers one flip in a row,
/// what is left of three copies one flip in two blocks.
fn flips_beside_a_lost_donor(redundancy: &str, donors: usize) {
    let mut stage = Loaded::new(redundancy, donors);
    let holders = stage.pool.holders(VOLUME, 0);
    stage.lose(&holders[0]);
    for (front, seed) in FRONTS.into_iter().zip((7..).step_by(2)) {
        let counted = stage.counted();
        let first = stage.flip_where(&holders[1], FLIPS, seed, |_| true);
        let rows: BTreeSet<u64> = first.flips.iter().map(|flip| flip.at % EXTENT).collect();
        let second = stage.flip_where(&holders[2], FLIPS, seed + 1, |at| !rows.contains(&at));
        let attached = stage.attach(front, &["--read-only"]);
        stage.is_read_right(front, &attached);
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &BTreeSet::new());
        // Whoever comes later may find them put right.
        if front == Front::Export {
            stage.accuses(&[&first, &second]);
        }
        stage.counts(&counted, &[&first, &second]);
        stage.pool.detach(VOLUME);
        wait::until("every flipped block to be what it was", LONG, || first.wrong() + second.wrong() == 0);
    }
}

#[test]
fn with_a_donor_gone_flips_in_two_others_are_read_around() {
    flips_beside_a_lost_donor("parity:3+2", 5);
}

#[test]
fn with_a_copy_gone_flips_in_the_other_two_are_read_around() {
    flips_beside_a_lost_donor("mirror:3", 3);
}

/// The second extent is gone with its donor, and the first one has flips.
#[test]
fn without_redundancy_what_is_lost_and_what_is_flipped_are_errors_and_nothing_else() {
    let mut pool = Pool::start();
    pool.donate("d1", "64M");
    pool.donate("d2", "64M");
    let mut stage = Loaded::of(pool, "linear", (66 << 20) + 1536);
    let flipped = stage.flip("d1", FLIPS);
    stage.lose("d2");
    let lost = (EXTENT..stage.image.len() as u64).step_by(BLOCK_BYTES);
    let expected: BTreeSet<u64> = flipped.set().into_iter().chain(lost).collect();
    for front in FRONTS {
        let attached = stage.attach(front, &["--read-only"]);
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &expected);
        stage.accuses(&[&flipped]);
        stage.pool.detach(VOLUME);
    }
    assert_eq!(flipped.wrong(), FLIPS);
}

/// One more than redundancy covers: the flipped blocks, and those of the lost donor that would be rebuilt
/// from them.
#[test]
fn beyond_redundancy_exactly_what_hangs_on_a_flip_is_an_error() {
    let mut stage = Loaded::new("parity:3+1", 4);
    let holders = stage.pool.holders(VOLUME, 0);
    let flipped = stage.flip(&holders[1], FLIPS);
    stage.lose(&holders[0]);
    let mut expected = flipped.set();
    for place in &flipped.places {
        assert_eq!(place / UNIT % 3, 1, "the second slot holds every third unit from the second on");
        expected.insert(place - UNIT);
    }
    for front in FRONTS {
        let attached = stage.attach(front, &["--read-only"]);
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &expected);
        stage.accuses(&[&flipped]);
        stage.pool.detach(VOLUME);
    }
}

/// Where every copy is wrong, none is copied over the other, whoever heals; all around is healed.
#[test]
fn what_is_wrong_twice_stays_an_error_beside_healing() {
    // After each of them, healing pauses.
    const TWICE: usize = 3;
    // Of a mirror's, chance may leave a few unread.
    for (redundancy, donors, unread_max) in [("mirror:2", 2, FEW / 20), ("parity:3+1", 4, 0)] {
        let mut stage = Loaded::new(redundancy, donors);
        let holders = stage.pool.holders(VOLUME, 0);
        let first = stage.flip(&holders[0], FEW);
        let rows: BTreeSet<u64> = first.flips.iter().map(|flip| flip.at % EXTENT).collect();
        let second = stage.flip_where(&holders[1], TWICE, 8, |at| rows.contains(&at));
        let mut lost = second.set();
        if redundancy == "parity:3+1" {
            lost.extend(second.places.iter().map(|place| place - UNIT));
        }
        stage.is_read_with(redundancy, &lost);
        let attached = stage.attach(Front::Export, &["--writable"]);
        wait::until("all to be healed that can be", LONG, || {
            assert_same(redundancy, &stage.errors(Front::Export, &attached), &lost);
            first.wrong() <= TWICE + unread_max
        });
        stage.accuses(&[&first, &second]);
        stage.pool.detach(VOLUME);
        stage.is_read_with(redundancy, &lost);
        assert_eq!(second.wrong(), TWICE, "{redundancy}");
        assert!(first.wrong() >= TWICE, "{redundancy}");
    }
}

/// A write of a part of a flipped block is no reason to take the rest of it for right.
#[test]
fn what_is_written_beside_a_flip_does_not_cover_it() {
    for (redundancy, donors) in [("linear", 1), ("mirror:2", 2), ("parity:3+1", 4)] {
        let mut stage = Loaded::new(redundancy, donors);
        let flipped = stage.flip(&stage.holder(0), FEW);
        let lost = if redundancy == "linear" { flipped.set() } else { BTreeSet::new() };
        let attached = stage.attach(Front::Export, &["--writable"]);
        stage.write_beside(&attached, &flipped);
        assert_same(redundancy, &stage.errors(Front::Export, &attached), &lost);
        stage.pool.detach(VOLUME);
        let attached = stage.attach(Front::File, &["--read-only"]);
        assert_same(redundancy, &stage.errors(Front::File, &attached), &lost);
        stage.pool.detach(VOLUME);
        // A whole block that is written is right from then on.
        let path = stage.attach(Front::File, &["--writable"]).path;
        let file = File::options().write(true).open(&path).expect("asked for");
        for place in &flipped.places {
            let at = usize::try_from(*place).expect("small");
            file.write_all_at(&stage.image[at..at + BLOCK_BYTES], *place).expect("a whole block is written");
        }
        file.sync_all().expect("synced");
        drop(file);
        stage.pool.detach(VOLUME);
        let attached = stage.attach(Front::File, &["--read-only"]);
        assert_same(redundancy, &stage.errors(Front::File, &attached), &BTreeSet::new());
        stage.pool.detach(VOLUME);
    }
}

/// A bit that is set where nothing was ever written, as a bad module sets it in memory that was just zeroed:
/// zeros all the same, and no part of what is written there later.
#[test]
fn what_was_never_written_is_zeros_whatever_the_memory_says() {
    let mut stage = Loaded::new("linear", 1);
    let flipped = stage.flip_hole("d1", FEW);
    stage.is_read_with("a hole", &BTreeSet::new());
    let attached = stage.attach(Front::Export, &["--writable"]);
    stage.write_beside(&attached, &flipped);
    let errors = stage.errors(Front::Export, &attached);
    assert!(errors.is_subset(&flipped.set()), "{} blocks are errors", errors.len());
    stage.pool.detach(VOLUME);
}

/// A donor with flips is what another's part is rebuilt from, or is moved away itself: what others know is
/// right there as well.
#[test]
fn what_is_rebuilt_or_moved_is_right_where_redundancy_allows() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Then {
        OtherDies,
        ItLeaves,
    }
    for (redundancy, slots, then) in [
        ("parity:3+2", 5, Then::OtherDies),
        ("parity:3+1", 4, Then::ItLeaves),
        ("mirror:2", 2, Then::ItLeaves),
    ] {
        let what = format!("{redundancy}, {then:?}");
        let mut stage = Loaded::new(redundancy, slots + 1);
        let (first, second) = (stage.holder(0), stage.holder(1));
        stage.flip(&first, FEW);
        let gone = if then == Then::OtherDies { &second } else { &first };
        match then {
            Then::OtherDies => stage.pool.donor(gone).kill(),
            Then::ItLeaves => drop(stage.pool.ok(["leave", gone])),
        }
        stage.wait_until_without(gone, slots);
        stage.is_read_with(&what, &BTreeSet::new());
        if then == Then::OtherDies {
            // What was rebuilt is what was written.
            let last = stage.holder(2);
            stage.lose(&last);
            stage.is_read_with(&what, &BTreeSet::new());
        }
    }
}

/// Two copies, of which one is gone and the other one is wrong in places: those are lost, and all else is
/// read, and gets its second copy again as soon as there is a donor for it.
#[test]
fn what_the_only_copy_has_wrong_is_lost_and_the_rest_is_copied() {
    let mut stage = Loaded::new("mirror:2", 2);
    let (first, second) = (stage.holder(0), stage.holder(1));
    let flipped = stage.flip(&first, FEW);
    stage.lose(&second);
    stage.is_read_with("one copy", &flipped.set());
    stage.pool.donate("d3", "128M");
    stage.wait_until_without(&second, 2);
    stage.is_read_with("two copies again", &flipped.set());
    stage.lose(&first);
    stage.is_read_with("the second copy alone", &flipped.set());
}

/// The same of a row: the flipped blocks are lost, and those that would be rebuilt from them.
#[test]
fn what_hangs_on_a_flip_is_lost_and_the_rest_is_rebuilt() {
    let mut stage = Loaded::new("parity:3+1", 4);
    let (first, second) = (stage.holder(0), stage.holder(1));
    let flipped = stage.flip(&second, FEW);
    let mut lost = flipped.set();
    lost.extend(flipped.places.iter().map(|place| place - UNIT));
    stage.lose(&first);
    stage.pool.donate("d5", "128M");
    stage.wait_until_without(&first, 4);
    stage.is_read_with("rebuilt", &lost);
}

/// What is moved and is nowhere else: the same.
#[test]
fn what_a_leaving_donor_has_wrong_is_lost_and_the_rest_is_moved() {
    let mut stage = Loaded::new("linear", 2);
    let holder = stage.holder(0);
    let flipped = stage.flip(&holder, FEW);
    stage.pool.ok(["leave", &holder, "--no-wait"]);
    let status = stage.pool.donor(&holder).wait_for_end(LONG);
    assert!(status.success(), "{status}");
    stage.is_read_with("moved", &flipped.set());
}

/// Others' servers keep no checksums; those of ours beside them do.
#[test]
fn beside_a_foreign_donor_ours_is_checked() {
    let kit = Rival::nbdkit(&["memory", "128M"]);
    let mut pool = Pool::in_the_clear();
    pool.donate("d1", "128M");
    pool.donate_as("kit", &[&kit.uri]);
    let mut stage = Loaded::on(pool, "mirror:2");
    let flipped = stage.flip("d1", FLIPS);
    let attached = stage.attach(Front::Export, &["--read-only"]);
    stage.is_read_right(Front::Export, &attached);
    assert_same("a mirror", &stage.errors(Front::Export, &attached), &BTreeSet::new());
    let accused = stage.accused();
    assert!(accused.keys().all(|name| *name == flipped.donor), "{accused:?}");
    stage.pool.detach(VOLUME);
}
