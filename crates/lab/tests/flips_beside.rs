//! Readers of every front beside a writer: nobody is accused for what is being written, and a bit that flips
//! then is found by each reader, healed by the writer, and said of the donor that has it.
//!
//! A block is one word over and over, which says which write it is of. What a reader gets is a block of one
//! write, whole; once nobody writes, the last. Readers beside nobody: `tests/flips.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cheetah_lab::dice::Dice;
use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::flip::{BLOCK_BYTES, Flip, Memory};
use cheetah_lab::loaded::{FRONTS, Front, VOLUME, accused, assert_same, is_named};
use cheetah_lab::pool::Pool;
use cheetah_lab::rivals::NbdFuse;
use cheetah_lab::{tools, wait};

const BLOCK: u64 = BLOCK_BYTES as u64;
const FLIPS: usize = 1000;
const EIO: i32 = 5;
const VOLUME_BYTES: u64 = 24 << 20;
/// The part of it that is written again and again: so few blocks that reads and writes meet.
const REGION_BLOCKS: u64 = 128;
const RUN_BLOCKS_MAX: u64 = 32;
const WRITERS: u64 = 2;
/// How long is read beside writers, and how many blocks each reader reads at least.
const BESIDE: Duration = Duration::from_secs(6);
const READ_LEAST: u64 = 500;
/// For what needs some rounds of reading on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A block is one word over and over: its number and which write it is of.
fn stamp(room: &mut [u8], first: u64, version: u64) {
    for (block, bytes) in (first..).zip(room.chunks_mut(BLOCK_BYTES)) {
        bytes.copy_from_slice(&(block << 32 | version).to_le_bytes().repeat(BLOCK_BYTES / 8));
    }
}

/// The number that a block says it has.
fn number_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("a block is longer")) >> 32
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

/// Reads runs of so many blocks of the region until the time is over and enough is read; answers how many it
/// read, and what is wrong with any.
fn read_beside(file: &File, blocks: u64) -> (u64, Vec<String>) {
    let (mut dice, mut room) = (Dice::new(blocks), Aligned::new((blocks * BLOCK) as usize));
    let (begun, mut read, mut wrong) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < BESIDE || read < READ_LEAST && begun.elapsed() < LONG {
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

/// An attachment beside the writer's, as another user of the machine has it.
struct Reader<'a> {
    pool: &'a Pool,
    front: Front,
    path: PathBuf,
    /// What makes a file of an export.
    bridge: Option<NbdFuse>,
}

impl<'a> Reader<'a> {
    #[track_caller]
    fn new(pool: &'a Pool, front: Front) -> Reader<'a> {
        let name = format!("reader-{front:?}");
        let (point, socket) = (pool.scratch().directory(&name), pool.scratch().join("reader.sock"));
        let (point, socket) = (point.display().to_string(), format!("unix:{}", socket.display()));
        let place: &[&str] = match front {
            Front::Export => &["--front", "export", "--listen", &socket],
            Front::File => &[&point, "--front", "fuse"],
            Front::Device => &[&point, "--front", "loop"],
        };
        let mut reader = Reader { pool, front, path: PathBuf::new(), bridge: None };
        let said = reader.run(&[&["attach", VOLUME], place, &["--read-only", "--json"]].concat());
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said: serde_json::Value = serde_json::from_slice(&said.stdout).expect("an attachment in JSON");
        reader.path = said["path"].as_str().unwrap_or_default().into();
        reader.bridge = said["uri"].as_str().filter(|uri| !uri.is_empty()).map(NbdFuse::start);
        if let Some(bridge) = &reader.bridge {
            reader.path.clone_from(&bridge.path);
        }
        reader
    }

    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = self.pool.command();
        let runtime = self.pool.scratch().directory(&format!("run-{:?}", self.front));
        command.args(arguments).env("XDG_RUNTIME_DIR", runtime);
        tools::output(&mut command)
    }

    fn file(&self) -> File {
        direct::open(&self.path, false).expect("the volume opens")
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        drop(self.bridge.take());
        // Where the test has failed, the pool ends what this leaves.
        let _ = self.run(&["detach", VOLUME]);
    }
}

/// What is flipped in the memory of some donors.
struct Flips {
    each: Vec<(Memory, Vec<Flip>)>,
    /// The numbers of the blocks.
    blocks: BTreeSet<u64>,
}

impl Flips {
    /// Of a mirror's copies a reader may take either: each has its own flips.
    #[track_caller]
    fn new(pool: &Pool, victims: &[String], seed: u64) -> Flips {
        let mut flips = Flips { each: Vec::new(), blocks: BTreeSet::new() };
        for victim in victims {
            let is_data = |_: u64, bytes: &[u8]| {
                let number = number_of(bytes);
                let is_stored = number < VOLUME_BYTES / BLOCK && version_of(number, bytes).is_some();
                is_stored && !flips.blocks.contains(&number)
            };
            let memory = Memory::of(pool.pid_of(victim));
            let flipped = memory.flip(&mut Dice::new(seed), FLIPS / victims.len(), is_data);
            flips.blocks.extend(flipped.iter().map(|flip| number_of(&flip.was)));
            flips.each.push((memory, flipped));
        }
        flips
    }

    fn wrong(&self) -> usize {
        self.each.iter().map(|(memory, flips)| memory.wrong(flips)).sum()
    }

    fn restore(&self) {
        self.each.iter().for_each(|(memory, flips)| flips.iter().for_each(|flip| memory.restore(flip)));
    }
}

/// Reads block by block; answers those that are errors. All others are of the last write.
#[track_caller]
fn errors(what: &str, file: &File, versions: &[AtomicU64]) -> BTreeSet<u64> {
    let (mut errors, mut room) = (BTreeSet::new(), Aligned::new(BLOCK_BYTES));
    for (block, version) in (0..).zip(versions) {
        match file.read_exact_at(room.bytes(), block * BLOCK) {
            Ok(()) => {
                let (found, last) = (version_of(block, room.bytes()), version.load(Ordering::Relaxed));
                assert_eq!(found, Some(last), "{what}: block {block}");
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "{what}: {error}");
                errors.insert(block);
            }
        }
    }
    errors
}

/// What is written and read at the same time is whole.
#[track_caller]
fn is_whole_beside(what: &str, written: &File, readers: &[Reader<'_>], versions: &[AtomicU64]) {
    let end = AtomicBool::new(false);
    let files: Vec<File> = readers.iter().map(Reader::file).collect();
    let read = thread::scope(|scope| {
        for writer in 0..WRITERS {
            let end = &end;
            scope.spawn(move || write_until(written, end, writer, versions));
        }
        let pieces = files.iter().flat_map(|file| [(file, 1), (file, 16)]);
        let all: Vec<_> =
            pieces.map(|(file, blocks)| scope.spawn(move || read_beside(file, blocks))).collect();
        let read: Vec<_> = all.into_iter().map(thread::ScopedJoinHandle::join).collect();
        end.store(true, Ordering::Relaxed);
        read
    });
    for (read, front) in read.into_iter().zip(FRONTS.iter().flat_map(|front| [front; 2])) {
        let (read, wrong) = read.expect("a reader");
        let first = &wrong[..wrong.len().min(3)];
        assert!(wrong.is_empty(), "{what}, {front:?}: of {read} {} are wrong: {first:?}", wrong.len());
        assert!(read >= READ_LEAST, "{what}, {front:?}: only {read} blocks were read");
    }
}

/// Nobody is accused for what is being written; what flips then is found through every front, and healed.
fn beside_a_writer(redundancy: &str, donors: usize) {
    tools::need_root("a look into a donor's memory");
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "128M");
    }
    pool.ok(["create", VOLUME, &VOLUME_BYTES.to_string(), "--redundancy", redundancy]);
    let path = pool.attach_fuse(VOLUME, &[]).path;
    let mut all = vec![0; VOLUME_BYTES as usize];
    stamp(&mut all, 0, 1);
    let file = File::options().write(true).open(&path).expect("the volume opens");
    file.write_all_at(&all, 0).expect("a write");
    file.sync_all().expect("a flush");
    drop(file);
    let versions: Vec<AtomicU64> = (0..VOLUME_BYTES / BLOCK).map(|_| AtomicU64::new(1)).collect();

    let readers: Vec<Reader<'_>> = FRONTS.into_iter().map(|front| Reader::new(&pool, front)).collect();
    let written = direct::open(&path, true).expect("the volume opens");
    is_whole_beside(redundancy, &written, &readers, &versions);
    drop(written);
    assert_eq!(accused(&pool, |_| true), BTreeMap::new(), "{redundancy}: accused for what was being written");

    let mut victims = pool.holders(VOLUME, 0);
    victims.truncate(if redundancy == "mirror:2" { 2 } else { 1 });
    for (reader, seed) in readers.iter().zip(9..) {
        let what = format!("{redundancy}, {:?}", reader.front);
        let flips = Flips::new(&pool, &victims, seed);
        let expected = if redundancy == "linear" { flips.blocks.clone() } else { BTreeSet::new() };
        assert_same(&what, &errors(&what, &reader.file(), &versions), &expected);
        let by_readers = accused(&pool, |attachment| attachment["read_only"] == true);
        let strangers = by_readers.keys().filter(|donor| !victims.contains(donor)).count();
        assert!(!by_readers.is_empty() && strangers == 0, "{what}: {by_readers:?}, not of {victims:?}");
        is_named(&pool, &accused(&pool, |_| true));
        if redundancy == "linear" {
            assert_eq!(flips.wrong(), FLIPS, "{what}: nobody covers it up");
            flips.restore();
        } else {
            wait::until("all flipped blocks to be what they were", LONG, || flips.wrong() == 0);
        }
    }
    drop(readers);
    pool.detach(VOLUME);
}

#[test]
fn nobody_is_accused_for_what_is_written_beside_readers_of_a_single_copy() {
    beside_a_writer("linear", 2);
}

#[test]
fn nobody_is_accused_for_what_is_written_beside_readers_of_a_mirror() {
    beside_a_writer("mirror:2", 2);
}

#[test]
fn nobody_is_accused_for_what_is_written_beside_readers_of_parity() {
    beside_a_writer("parity:3+1", 4);
}
