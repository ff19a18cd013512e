//! A link that flips bits which TCP does not notice, on reads and on writes, of attachments that only read
//! and of such that write: thousands are met, none is delivered, and none is stored.
//!
//! What was read is compared with what was written, byte by byte, while bits flip; what was stored is
//! verified by the donors themselves and read again once the link is good.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cheetah_lab::dice::Dice;
use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::loaded::{Front, Loaded, VOLUME};
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::verified::Verified;
use cheetah_lab::wait;
use cheetah_lab::wire::Wire;

/// Frames in a million that get a flipped bit: a piece of 64 KiB meets one in ten times. What is met again
/// and again when it is read again is an error in the end.
const FLIPS_PPM: u64 = 2_000;
/// How many flips the attachments of each kind of volume meet together: of the three of them thousands.
const FLIPS: u64 = 1000;
/// How many of these one that writes meets. A donor that is set aside again and again is given nothing for
/// longer each time, so one that has met fewer ends there; who only reads meets what is left.
const FLIPS_WRITING: u64 = 340;
const FLIPS_WRITING_LEAST: u64 = 100;
/// The same of requests alone, each of which may break a connection.
const REQUEST_FLIPS_PPM: u64 = 20_000;
const REQUEST_FLIPS: u64 = 60;
/// A case that meets no more flips hangs.
const LONG: Duration = Duration::from_secs(60);
/// A donor that was set aside is back after this at the latest, and has been given its part.
const BACK: Duration = Duration::from_secs(400);
const PIECE: usize = 64 << 10;
const READERS: usize = 8;
const BLOCK: usize = 4096;

/// A volume on hosts, of which one that holds data is behind the bad link.
struct Stage {
    loaded: Loaded,
    lan: Arc<Lan>,
    wire: Wire,
    victim: Node,
}

impl Stage {
    #[track_caller]
    fn new(redundancy: &str, donors: u8, seed: u64) -> Self {
        let lan = Arc::new(Lan::new(donors, "10gbit"));
        let wire = Wire::new(&lan, seed);
        let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(&lan)));
        pool.donate_everywhere(donors, "128M");
        let loaded = Loaded::on(pool, redundancy);
        let holder = loaded.holder(0);
        let number = holder.strip_prefix("host-").and_then(|number| number.parse().ok());
        let victim = Node::Donor(number.expect("the number of a host"));
        lan.detour(victim);
        Self { loaded, lan, wire, victim }
    }

    /// Turns until so many flips were met, or so many at least and the donor was set aside; how many it were.
    #[track_caller]
    fn until_met(&self, what: &str, wanted: u64, least: u64, mut turn: impl FnMut(u64)) -> u64 {
        let (before, begun) = (self.wire.count().flips, Instant::now());
        self.wire.corrupt(FLIPS_PPM);
        for number in 1.. {
            let met = self.wire.count().flips;
            turn(number);
            if self.wire.count().flips - before >= wanted {
                break;
            }
            if self.wire.count().flips == met {
                // A donor whose answers come garbled is set aside: over a good link it comes back, and has
                // another turn.
                self.wire.corrupt(0);
                if met - before >= least {
                    break;
                }
                wait::until("the donor to be back", BACK, || {
                    self.loaded.pool.volume_status(VOLUME)["health"] == "whole"
                });
                self.wire.corrupt(FLIPS_PPM);
            }
            assert!(
                begun.elapsed() < LONG + BACK,
                "{what}: only {:?} after {number} turns",
                self.wire.count()
            );
        }
        self.wire.corrupt(0);
        let met = self.wire.count().flips - before;
        eprintln!("{what}: {met} flips met in {:.1} s", begun.elapsed().as_secs_f64());
        met
    }

    /// The link is good again, and the donors find nothing wrong in what they hold.
    #[track_caller]
    fn is_called_right(&self, what: &str) {
        self.lan.heal(self.victim);
        // The donor is found again first.
        wait::until("a volume that is right", BACK, || {
            let said = self.loaded.pool.run(["verify", VOLUME, "--json"]);
            let Some(verified) = Verified::of(&said) else { return false };
            assert_eq!(verified.number("blocks_wrong"), 0, "{what}: {}", verified.report);
            verified.code == 0
        });
    }

    /// The link is good again: what the donors hold is right, and is what was written.
    #[track_caller]
    fn nothing_wrong_is_stored(&mut self, what: &str) {
        self.is_called_right(what);
        let attached = self.loaded.attach(Front::File, &["--read-only"]);
        self.loaded.is_read_right(Front::File, &attached);
        self.loaded.pool.detach(VOLUME);
    }
}

/// At once where there is redundancy. Without, a flip may break the connection to the only copy: then it is
/// an error, which is honest, and is asked for again.
#[track_caller]
fn ends_well(what: &str, mut each: impl FnMut() -> std::io::Result<()>) {
    if what.starts_with("linear") {
        return wait::until(what, LONG, || each().is_ok());
    }
    each().unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Reads all of it past the page cache, in several pieces at a time.
#[track_caller]
fn is_read_as(what: &str, path: &Path, image: &[u8]) {
    let file = direct::open(path, false).expect("the volume opens");
    let share = (image.len() / READERS).next_multiple_of(PIECE);
    std::thread::scope(|scope| {
        for (first, part) in (0..).step_by(share).zip(image.chunks(share)) {
            let file = &file;
            scope.spawn(move || {
                let mut room = Aligned::new(PIECE);
                for (at, want) in (first..).step_by(PIECE).zip(part.chunks(PIECE)) {
                    let found = &mut room.bytes()[..want.len()];
                    ends_well(&format!("{what}, a read at {at}"), || file.read_exact_at(found, at));
                    assert!(found == want, "{what}: wrong bytes are delivered at {at}");
                }
            });
        }
    });
}

/// Other bytes in all of it, in pieces of all lengths.
#[track_caller]
fn write_anew(what: &str, file: &File, image: &mut [u8], dice: &mut Dice) {
    let key = dice.roll().to_le_bytes();
    let mut at = 0;
    while at < image.len() {
        let len = match dice.below(3) {
            0 => 1 + dice.below(9000),
            1 => 4096 * (1 + dice.below(16)),
            _ => 4 * PIECE as u64,
        };
        let end = image.len().min(at + usize::try_from(len).expect("small"));
        let bytes = &mut image[at..end];
        bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        ends_well(&format!("{what}, a write at {at}"), || file.write_all_at(bytes, at as u64));
        at = end;
    }
    ends_well(&format!("{what}, a flush"), || file.sync_all());
}

fn neither_delivered_nor_stored(redundancy: &str, donors: u8) {
    let mut stage = Stage::new(redundancy, donors, 11);
    let what = format!("{redundancy}, writing");
    let path = stage.loaded.attach(Front::File, &["--writable"]).path;
    let file = File::options().write(true).open(&path).expect("the volume opens");
    let (mut image, mut dice) = (std::mem::take(&mut stage.loaded.image), Dice::new(12));
    let by_writer = stage.until_met(&what, FLIPS_WRITING, FLIPS_WRITING_LEAST, |_| {
        write_anew(&what, &file, &mut image, &mut dice);
        is_read_as(&what, &path, &image);
    });
    stage.loaded.image = image;
    drop(file);
    stage.loaded.pool.detach(VOLUME);
    stage.nothing_wrong_is_stored(&what);

    stage.lan.detour(stage.victim);
    let what = format!("{redundancy}, read only");
    let attached = stage.loaded.attach(Front::File, &["--read-only"]);
    let left = FLIPS.saturating_sub(by_writer).max(FLIPS_WRITING);
    let by_reader =
        stage.until_met(&what, left, left, |_| is_read_as(&what, &attached.path, &stage.loaded.image));
    stage.loaded.pool.detach(VOLUME);
    stage.nothing_wrong_is_stored(&what);
    eprintln!("{redundancy}: {by_writer} flips met by a writer and {by_reader} by a reader, none delivered");
    assert!(by_writer >= FLIPS_WRITING_LEAST && by_writer + by_reader >= FLIPS, "{redundancy}: too few");
}

#[test]
fn without_redundancy_no_flip_is_delivered_or_stored() {
    neither_delivered_nor_stored("linear", 1);
}

#[test]
fn of_a_mirror_no_flip_is_delivered_or_stored() {
    neither_delivered_nor_stored("mirror:2", 2);
}

#[test]
fn of_parity_no_flip_is_delivered_or_stored() {
    neither_delivered_nor_stored("parity:3+1", 4);
}

/// One bit of what is asked for: where, how much, which, what.
#[test]
fn a_request_that_is_flipped_writes_nowhere_else() {
    let mut stage = Stage::new("linear", 1, 21);
    let path = stage.loaded.attach(Front::File, &["--writable"]).path;
    let file = direct::open(&path, true).expect("the volume opens");
    let mut image = std::mem::take(&mut stage.loaded.image);
    let (mut dice, mut room, mut written) = (Dice::new(22), Aligned::new(BLOCK), Vec::new());
    stage.wire.corrupt_requests(REQUEST_FLIPS_PPM);
    let begun = Instant::now();
    while stage.wire.count().flips < REQUEST_FLIPS && begun.elapsed() < LONG {
        let at = usize::try_from(dice.below((image.len() / BLOCK) as u64)).expect("small") * BLOCK;
        // Each says which write it is of.
        room.bytes().copy_from_slice(&written.len().to_le_bytes().repeat(BLOCK / 8));
        ends_well("linear, a write", || file.write_all_at(room.bytes(), at as u64));
        image[at..at + BLOCK].copy_from_slice(room.bytes());
        written.push(at);
    }
    stage.wire.corrupt_requests(0);
    let (flips, of) = (stage.wire.count().flips, written.len());
    drop(file);
    // Who wrote knows what it wrote, as long as it lives; whoever comes next has only the donor's word.
    stage.loaded.pool.detach(VOLUME);
    stage.is_called_right("requests");
    let path = stage.loaded.attach(Front::File, &["--read-only"]).path;
    let file = direct::open(&path, false).expect("the volume opens");
    let mut wrong = Vec::new();
    for (at, want) in (0..).step_by(BLOCK).zip(image.chunks_exact(BLOCK)) {
        ends_well("linear, a read", || file.read_exact_at(room.bytes(), at));
        if room.bytes() != want {
            let write = u64::from_le_bytes(room.bytes()[..8].try_into().expect("a block is longer"));
            let was_for = usize::try_from(write).ok().and_then(|write| written.get(write));
            wrong.push(format!("the block at {at} holds what was written to {was_for:?}"));
        }
    }
    drop(file);
    stage.loaded.pool.detach(VOLUME);
    assert!(wrong.is_empty(), "{flips} of {of} requests flipped, {} blocks wrong: {wrong:?}", wrong.len());
}
