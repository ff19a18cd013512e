//! Bits that flip in a donor's memory: no wrong byte is delivered, by any front, to any attachment.
//!
//! Each case knows what every block has to be and which blocks were flipped. A block is what was written, or
//! an error where nothing else is left to read it from; never anything else. Who is accused is the donor
//! whose memory is wrong, and nobody else, whatever is written meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cheetah_lab::dice::Dice;
use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::flip::{BLOCK_BYTES, Memory};
use cheetah_lab::loaded::{FRONTS, Front, Loaded, VOLUME, accused, assert_same};
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

/// One donor is gone, and there is none to rebuild on. What is left of two parities covers one flip in a row.
#[test]
fn with_a_donor_gone_flips_in_two_others_are_read_around() {
    let mut stage = Loaded::new("parity:3+2", 5);
    let holders = stage.pool.holders(VOLUME, 0);
    let data = stage.flip(&holders[1], FLIPS);
    let rows: BTreeSet<u64> = data.flips.iter().map(|flip| flip.at % EXTENT).collect();
    let other = stage.flip_where(&holders[2], FLIPS, 8, |at| !rows.contains(&at));
    stage.lose(&holders[0]);
    for front in [Front::Export, Front::File] {
        let attached = stage.attach(front, &["--read-only"]);
        stage.is_read_right(front, &attached);
        assert_same(&format!("{front:?}"), &stage.errors(front, &attached), &BTreeSet::new());
        // Whoever comes later may find them put right.
        if front == Front::Export {
            stage.accuses(&[&data, &other]);
        }
        stage.pool.detach(VOLUME);
    }
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
    for front in [Front::Export, Front::File] {
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

/// What is written beside a reader, and read back by it.
const VOLUME_BYTES: u64 = 24 << 20;
/// The part of it that is written again and again: so few blocks that reads and writes meet.
const REGION_BLOCKS: u64 = 128;
const RUN_BLOCKS_MAX: u64 = 32;
const WRITERS: u64 = 2;
const BESIDE: Duration = Duration::from_secs(6);

/// A block is one word over and over: its number and which write it is of.
fn stamp(room: &mut [u8], first: u64, version: u64) {
    for (block, bytes) in (first..).zip(room.chunks_mut(BLOCK_BYTES)) {
        bytes.copy_from_slice(&(block << 32 | version).to_le_bytes().repeat(BLOCK_BYTES / 8));
    }
}

/// Which write a block is of; none if it is not one write's.
fn version_of(block: u64, bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("a block is longer"));
    let whole = bytes.chunks(8).all(|other| *other == word.to_le_bytes());
    (whole && word >> 32 == block && word as u32 > 0).then_some(word & 0xffff_ffff)
}

/// Writes runs of blocks of its share of the region, the last version of each block to `versions`.
fn write_until(file: &File, end: &AtomicBool, writer: u64, versions: &[AtomicU64]) {
    let (mut dice, mut room) = (Dice::new(writer), Aligned::new((RUN_BLOCKS_MAX * BLOCK) as usize));
    let share = REGION_BLOCKS / WRITERS;
    for version in 2.. {
        if end.load(Ordering::Relaxed) {
            return;
        }
        // As often one block as many.
        let count = if dice.below(2) == 0 { 1 } else { 1 + dice.below(RUN_BLOCKS_MAX) };
        let first = writer * share + dice.below(share - count + 1);
        let bytes = &mut room.bytes()[..(count * BLOCK) as usize];
        stamp(bytes, first, version);
        file.write_all_at(bytes, first * BLOCK).expect("a write beside a reader");
        for block in first..first + count {
            versions[block as usize].store(version, Ordering::Relaxed);
        }
    }
}

/// Reads runs of so many blocks of the region; answers how many it read, and what is wrong with any.
fn read_for(file: &File, time: Duration, blocks: u64) -> (u64, Vec<String>) {
    let (mut dice, mut room) = (Dice::new(blocks), Aligned::new((blocks * BLOCK) as usize));
    let (begun, mut read, mut wrong) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < time {
        let first = dice.below(REGION_BLOCKS / blocks) * blocks;
        match file.read_exact_at(room.bytes(), first * BLOCK) {
            Err(error) => wrong.push(format!("blocks from {first} on: {error}")),
            Ok(()) => {
                let torn = |(block, bytes): &(u64, &[u8])| version_of(*block, bytes).is_none();
                let torn = (first..).zip(room.bytes().chunks(BLOCK_BYTES)).find(torn);
                wrong.extend(torn.map(|(block, _)| format!("block {block} is of no one write")));
            }
        }
        read += blocks;
    }
    (read, wrong)
}

/// A second attachment, as another user of the machine has it.
struct Reader<'a> {
    pool: &'a Pool,
    path: PathBuf,
}

impl<'a> Reader<'a> {
    #[track_caller]
    fn new(pool: &'a Pool) -> Reader<'a> {
        let point = pool.scratch().directory("reader");
        let reader = Reader { pool, path: point.join(format!("{VOLUME}.raw")) };
        let said = reader.run(&["attach", VOLUME, &point.display().to_string(), "--read-only"]);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        reader
    }

    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = self.pool.command();
        command.args(arguments).env("XDG_RUNTIME_DIR", self.pool.scratch().directory("run-2"));
        tools::output(&mut command)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // Where the test has failed, the pool ends what this leaves.
        let _ = self.run(&["detach", VOLUME]);
    }
}

/// What is written and read at the same time is whole and nobody's fault; what flips then is found.
fn beside_a_writer(redundancy: &str, donors: usize) {
    tools::need_root("a look into a donor's memory");
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "128M");
    }
    pool.ok(["create", VOLUME, &VOLUME_BYTES.to_string(), "--redundancy", redundancy]);
    let written = pool.attach_fuse(VOLUME, &[]).path;
    let blocks = VOLUME_BYTES / BLOCK;
    let mut all = vec![0; VOLUME_BYTES as usize];
    stamp(&mut all, 0, 1);
    let file = File::options().write(true).open(&written).expect("the volume opens");
    file.write_all_at(&all, 0).expect("a write");
    file.sync_all().expect("a flush");
    drop(file);
    let versions: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(1)).collect();

    let reader = Reader::new(&pool);
    let end = AtomicBool::new(false);
    let written = direct::open(&written, true).expect("the volume opens");
    let file = direct::open(&reader.path, false).expect("the volume opens");
    let (single, runs) = thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (written, end, versions) = (&written, &end, &versions);
            scope.spawn(move || write_until(written, end, writer, versions));
        }
        let runs = scope.spawn(|| read_for(&file, BESIDE, 16));
        let single = read_for(&file, BESIDE, 1);
        let runs = runs.join().expect("a reader");
        end.store(true, Ordering::Relaxed);
        (single, runs)
    });
    drop(written);
    for (read, wrong) in [&single, &runs] {
        let first = &wrong[..wrong.len().min(3)];
        assert!(wrong.is_empty(), "{redundancy}: of {read} blocks {} are wrong: {first:?}", wrong.len());
        assert!(*read > 500, "{redundancy}: only {read} blocks were read");
    }
    assert_eq!(accused(&pool, |_| true), BTreeMap::new(), "{redundancy}: accused for what was being written");

    // Of a mirror's copies the reader may take either: each has its own flips.
    let mut victims = pool.holders(VOLUME, 0);
    victims.truncate(if redundancy == "mirror:2" { 2 } else { 1 });
    let mut flipped: BTreeSet<u64> = BTreeSet::new();
    for victim in &victims {
        let number =
            |block: &[u8]| u64::from_le_bytes(block[..8].try_into().expect("a block is longer")) >> 32;
        let is_data = |_: u64, block: &[u8]| {
            let number = number(block);
            number < blocks && version_of(number, block).is_some() && !flipped.contains(&number)
        };
        let flips = Memory::of(pool.pid_of(victim)).flip(&mut Dice::new(9), FLIPS / victims.len(), is_data);
        flipped.extend(flips.iter().map(|flip| number(&flip.was)));
    }
    let mut room = Aligned::new(BLOCK_BYTES);
    for (block, version) in (0..blocks).zip(&versions) {
        match file.read_exact_at(room.bytes(), block * BLOCK) {
            Ok(()) => {
                let found = version_of(block, room.bytes());
                assert_eq!(found, Some(version.load(Ordering::Relaxed)), "{redundancy}: block {block}");
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
                assert!(
                    redundancy == "linear" && flipped.contains(&block),
                    "{redundancy}: block {block}: EIO"
                );
            }
        }
    }
    let accused = accused(&pool, |attachment| attachment["read_only"] == true);
    let strangers: Vec<_> = accused.keys().filter(|donor| !victims.contains(donor)).collect();
    assert!(!accused.is_empty() && strangers.is_empty(), "{redundancy}: {accused:?}, not of {victims:?}");
    drop(file);
    drop(reader);
    pool.detach(VOLUME);
}

#[test]
fn nobody_is_accused_for_what_is_written_beside_a_reader_of_a_single_copy() {
    beside_a_writer("linear", 2);
}

#[test]
fn nobody_is_accused_for_what_is_written_beside_a_reader_of_a_mirror() {
    beside_a_writer("mirror:2", 2);
}

#[test]
fn nobody_is_accused_for_what_is_written_beside_a_reader_of_parity() {
    beside_a_writer("parity:3+1", 4);
}
