//! A volume that an image was loaded into, flips in the memory of its donors, and what is read of it.
//!
//! Owns: what each byte of the volume has to be, and where the blocks that were flipped are in it. Never:
//! which of them may be errors; the test says so. Invariant: whatever is read is the image's or an error,
//! else the test fails.
//! Called by: `tests/flips.rs`, `tests/flips_beside.rs`, `tests/verify.rs`, `tests/verify_troubled.rs` and
//! others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::dice::Dice;
use crate::direct::{self, Aligned};
use crate::flip::{BLOCK_BYTES, Flip, Memory};
use crate::pool::{Attached, Pool};
use crate::{hash, tools, wait};

pub const VOLUME: &str = "case";
const EXTENT: u64 = 64 << 20;
/// Less than an extent; the last block is not whole.
const IMAGE_BYTES: usize = (44 << 20) + 1536;
/// A hole of the image.
const HOLE: Range<usize> = 20 << 20..24 << 20;
const EIO: i32 = 5;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// How tools get at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Export,
    File,
    Device,
}

pub const FRONTS: [Front; 3] = [Front::Export, Front::File, Front::Device];

/// Blocks of which no two are the same, and a hole.
fn image(len: usize) -> Vec<u8> {
    let mut dice = Dice::new(2006);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).take(len).collect();
    bytes[HOLE].fill(0);
    bytes
}

/// What tells a block of the image from all others.
fn head(block: &[u8]) -> [u8; 16] {
    block[..16].try_into().expect("a block is longer")
}

/// A volume that an image was loaded into.
#[derive(Debug)]
pub struct Loaded {
    pub pool: Pool,
    /// What each byte of the volume has to be.
    pub image: Vec<u8>,
    /// The same, for scripts.
    file: PathBuf,
    /// Where in the volume each block of the image is.
    places: HashMap<[u8; 16], u64>,
}

/// What was done to one donor.
#[derive(Debug)]
pub struct Flipped {
    pub donor: String,
    memory: Memory,
    pub flips: Vec<Flip>,
    /// Where in the volume the blocks are, in the order of the flips.
    pub places: Vec<u64>,
}

impl Flipped {
    /// The places as a set.
    pub fn set(&self) -> BTreeSet<u64> {
        self.places.iter().copied().collect()
    }

    /// Makes all of them what they were.
    pub fn restore(&self) {
        self.flips.iter().for_each(|flip| self.memory.restore(flip));
    }

    /// How many of the blocks are not what they were.
    pub fn wrong(&self) -> usize {
        self.memory.wrong(&self.flips)
    }
}

impl Loaded {
    /// With donors `d1`, `d2` and so on.
    #[track_caller]
    pub fn new(redundancy: &str, donors: usize) -> Self {
        let mut pool = Pool::start();
        for number in 1..=donors {
            pool.donate(&format!("d{number}"), "128M");
        }
        Self::on(pool, redundancy)
    }

    /// In a pool of the caller's.
    #[track_caller]
    pub fn on(pool: Pool, redundancy: &str) -> Self {
        Self::of(pool, redundancy, IMAGE_BYTES)
    }

    /// In a pool of the caller's, with an image of so many bytes.
    #[track_caller]
    pub fn of(pool: Pool, redundancy: &str, bytes: usize) -> Self {
        Self::with(pool, redundancy, bytes, &["--writable"])
    }

    /// One that was sealed when it was loaded, with donors `d1`, `d2` and so on.
    #[track_caller]
    pub fn sealed(redundancy: &str, donors: usize) -> Self {
        let mut pool = Pool::start();
        for number in 1..=donors {
            pool.donate(&format!("d{number}"), "128M");
        }
        Self::with(pool, redundancy, IMAGE_BYTES, &[])
    }

    #[track_caller]
    fn with(pool: Pool, redundancy: &str, bytes: usize, more: &[&str]) -> Self {
        tools::need_root("a look into a donor's memory");
        let image = image(bytes);
        let file = pool.scratch().file("image.raw", &image);
        pool.ok(["create", VOLUME, &image.len().to_string(), "--redundancy", redundancy]);
        let file_name = file.display().to_string();
        let said = pool.ok([&["load", &file_name, VOLUME], more].concat());
        assert!(said.contains("verified"), "{said}");
        let blocks = (0..).step_by(BLOCK_BYTES).zip(image.chunks_exact(BLOCK_BYTES));
        let places = blocks.map(|(at, block)| (head(block), at)).collect();
        Self { pool, image, file, places }
    }

    /// Flips a bit in each of so many whole blocks of the image that this donor holds, where `wanted` holds
    /// for what the extent's offset is.
    #[track_caller]
    pub fn flip_where(&self, donor: &str, count: usize, seed: u64, wanted: impl Fn(u64) -> bool) -> Flipped {
        let memory = Memory::of(self.pool.pid_of(donor));
        let flips = memory.flip(&mut Dice::new(seed), count, |at, block| {
            self.places.contains_key(&head(block)) && wanted(at % EXTENT)
        });
        let places: Vec<u64> = flips.iter().map(|flip| self.places[&head(&flip.was)]).collect();
        for (flip, place) in flips.iter().zip(&places) {
            let place = usize::try_from(*place).expect("small");
            assert!(self.image[place..place + BLOCK_BYTES] == flip.was[..], "{donor} holds other bytes");
        }
        Flipped { donor: donor.to_owned(), memory, flips, places }
    }

    /// Has a donor lie about so many blocks: its memory holds other bytes, which fit their checksums.
    #[track_caller]
    pub fn lie(&self, donor: &str, count: usize, seed: u64) -> Flipped {
        self.lie_where(donor, count, seed, |_| true)
    }

    /// The same, where `wanted` holds for what the extent's offset is.
    #[track_caller]
    pub fn lie_where(&self, donor: &str, count: usize, seed: u64, wanted: impl Fn(u64) -> bool) -> Flipped {
        let flipped = self.flip_where(donor, count, seed, wanted);
        for flip in &flipped.flips {
            flipped.memory.forge(flip);
        }
        flipped
    }

    /// The same of blocks that hold parity.
    #[track_caller]
    pub fn lie_parity(&self, donor: &str, count: usize, seed: u64) -> Flipped {
        let flipped = self.flip_parity(donor, count, seed);
        for flip in &flipped.flips {
            flipped.memory.forge(flip);
        }
        flipped
    }

    /// The image, for tools.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Flips a bit of the block of the volume that begins here, on the first of these donors that holds it.
    #[track_caller]
    pub fn flip_block(&self, donors: &[String], place: u64, seed: u64) -> Flipped {
        let from = usize::try_from(place).expect("small");
        let mut block = self.image[from..self.image.len().min(from + BLOCK_BYTES)].to_vec();
        // What is stored of the last one is a whole block.
        block.resize(BLOCK_BYTES, 0);
        for donor in donors {
            let memory = Memory::of(self.pool.pid_of(donor));
            let at = memory.blocks().into_iter().find_map(|(at, found)| (found == block).then_some(at));
            if let Some(at) = at {
                let flips = vec![memory.flip_at(&mut Dice::new(seed), at)];
                return Flipped { donor: donor.clone(), memory, flips, places: vec![place] };
            }
        }
        panic!("no donor of {donors:?} has the block at {place}");
    }

    /// Flips a bit in each of so many blocks that hold parity.
    #[track_caller]
    pub fn flip_parity(&self, donor: &str, count: usize, seed: u64) -> Flipped {
        let memory = Memory::of(self.pool.pid_of(donor));
        let is_data = |block: &[u8]| self.places.contains_key(&head(block));
        let flips = memory.flip(&mut Dice::new(seed), count, |_, block| !is_data(block));
        Flipped { donor: donor.to_owned(), memory, flips, places: Vec::new() }
    }

    /// Flips a bit in each of so many.
    #[track_caller]
    pub fn flip(&self, donor: &str, count: usize) -> Flipped {
        self.flip_where(donor, count, 7, |_| true)
    }

    /// Flips a bit in each of so many blocks of the image's hole, where a donor's memory was never asked for:
    /// of a volume that lies in order on one donor.
    #[track_caller]
    pub fn flip_hole(&self, donor: &str, count: usize) -> Flipped {
        let memory = Memory::of(self.pool.pid_of(donor));
        let begins = memory.blocks().iter().find_map(|(at, block)| {
            let place = self.places.get(&head(block))?;
            at.checked_sub(*place)
        });
        let begins = begins.expect("the donor holds blocks of the image");
        let mut places: Vec<u64> = (HOLE.start as u64..HOLE.end as u64).step_by(BLOCK_BYTES).collect();
        let mut dice = Dice::new(13);
        dice.shuffle(&mut places);
        places.truncate(count);
        let flips: Vec<Flip> = places.iter().map(|place| memory.flip_at(&mut dice, begins + place)).collect();
        assert!(flips.iter().all(|flip| flip.was.iter().all(|byte| *byte == 0)), "it is no hole on {donor}");
        Flipped { donor: donor.to_owned(), memory, flips, places }
    }

    /// The donor that holds a slot.
    pub fn holder(&self, slot: usize) -> String {
        self.pool.holders(VOLUME, 0).swap_remove(slot)
    }

    #[track_caller]
    pub fn attach(&mut self, front: Front, more: &[&str]) -> Attached {
        match front {
            Front::Export => self.pool.attach_export(VOLUME, more),
            Front::File => self.pool.attach_fuse(VOLUME, more),
            Front::Device => self.pool.attach_loop(VOLUME, more),
        }
    }

    /// Reads all of it as tools do: large reads, read ahead, many at a time.
    #[track_caller]
    pub fn is_read_right(&self, front: Front, attached: &Attached) {
        let path = match front {
            Front::Export => {
                let copy = self.pool.scratch().join("copy");
                tools::run("nbdcopy", [&attached.uri, &copy.display().to_string()]);
                copy
            }
            Front::File | Front::Device => attached.path.clone(),
        };
        let expected = hash::of_reader(&self.image[..]).expect("a slice reads");
        assert_eq!(hash::of_file(path), expected, "{front:?} delivers other bytes");
    }

    /// Reads block by block, each by a request of its own; answers the places of those that are errors. Any
    /// other byte than those of the image fails.
    #[track_caller]
    pub fn errors(&self, front: Front, attached: &Attached) -> BTreeSet<u64> {
        match front {
            Front::Export => self.errors_of_export(&attached.uri),
            Front::File | Front::Device => self.errors_of_file(&attached.path),
        }
    }

    #[track_caller]
    fn errors_of_file(&self, path: &Path) -> BTreeSet<u64> {
        let file = direct::open(path, false).expect("the volume opens");
        let (mut errors, mut room) = (BTreeSet::new(), Aligned::new(BLOCK_BYTES));
        for (at, want) in (0..).step_by(BLOCK_BYTES).zip(self.image.chunks(BLOCK_BYTES)) {
            let found = &mut room.bytes()[..want.len()];
            match file.read_exact_at(found, at) {
                Ok(()) => assert!(found == want, "wrong bytes at {at} of {}", path.display()),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(EIO), "at {at}: {error}");
                    errors.insert(at);
                }
            }
        }
        errors
    }

    #[track_caller]
    fn errors_of_export(&self, uri: &str) -> BTreeSet<u64> {
        let script = r#"
import nbd, sys
image, block = open(sys.argv[2], "rb").read(), int(sys.argv[3])
h = nbd.NBD()
h.set_uri_allow_local_file(True)
h.connect_uri(sys.argv[1])
for at in range(0, len(image), block):
    want = image[at:at + block]
    try:
        if h.pread(len(want), at) != want:
            sys.exit("wrong bytes at %d" % at)
    except nbd.Error as error:
        assert error.errnum == 5, error
        print(at)
h.shutdown()
"#;
        let mut python = tools::command("python3");
        python.args(["-c", script, uri]).arg(&self.file).arg(BLOCK_BYTES.to_string());
        let said = tools::expect_success(&mut python);
        said.split_whitespace().map(|place| place.parse().expect("a place")).collect()
    }

    /// Attaches it for reading, as an export and as a file, and reads block by block: these are errors.
    ///
    /// # Panics
    /// Others are, or a byte is wrong.
    #[track_caller]
    pub fn is_read_with(&mut self, what: &str, errors: &BTreeSet<u64>) {
        for front in [Front::Export, Front::File] {
            let attached = self.attach(front, &["--read-only"]);
            assert_same(&format!("{what}, {front:?}"), &self.errors(front, &attached), errors);
            self.pool.detach(VOLUME);
        }
    }

    /// Reads pieces that begin and end anywhere; answers the ranges of those that are errors, and of those
    /// that are not. Any other byte than those of the image fails.
    #[track_caller]
    pub fn odd_pieces(&self, attached: &Attached, count: usize) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let script = r#"
import nbd, sys
image = open(sys.argv[2], "rb").read()
h = nbd.NBD()
h.set_uri_allow_local_file(True)
h.connect_uri(sys.argv[1])
for line in sys.stdin:
    at, end = map(int, line.split())
    try:
        if h.pread(end - at, at) != image[at:end]:
            sys.exit("wrong bytes from %d to %d" % (at, end))
        print(at, end, "read")
    except nbd.Error as error:
        assert error.errnum == 5, error
        print(at, end, "error")
h.shutdown()
"#;
        let mut dice = Dice::new(11);
        let mut piece = || {
            let at = dice.below(self.image.len() as u64 - 16384);
            format!("{at} {}\n", at + 1 + dice.below(16384))
        };
        let list: String = (0..count).map(|_| piece()).collect();
        let list = self.pool.scratch().file("list", list.as_bytes());
        let mut python = tools::command("python3");
        python.args(["-c", script, &attached.uri]).arg(&self.file);
        python.stdin(File::open(list).expect("just made"));
        let (mut errors, mut good) = (Vec::new(), Vec::new());
        for line in tools::expect_success(&mut python).lines() {
            let mut words = line.split(' ');
            let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a place");
            let range = number()..number();
            if line.ends_with("error") { errors.push(range) } else { good.push(range) }
        }
        (errors, good)
    }

    /// The donors whose blocks were found wrong, and how many.
    #[track_caller]
    pub fn accused(&self) -> BTreeMap<String, u64> {
        accused(&self.pool, |_| true)
    }

    /// These and no others are accused, by `status` as well.
    #[track_caller]
    pub fn accuses(&self, flipped: &[&Flipped]) {
        let names: BTreeSet<&String> = flipped.iter().map(|flipped| &flipped.donor).collect();
        // The pool hears of what was found with the next renewal of the lease.
        let heard =
            || Some(self.accused()).filter(|accused| names.iter().all(|name| accused.contains_key(*name)));
        let accused = wait::for_some("who was found wrong to be accused", wait::SOON, heard);
        assert_eq!(accused.keys().collect::<BTreeSet<_>>(), names, "{accused:?}");
        is_named(&self.pool, &accused);
    }

    /// How many wrong blocks of each donor the pool has counted, whoever found them.
    #[track_caller]
    pub fn counted(&self) -> BTreeMap<String, u64> {
        let status = self.pool.status();
        let donors = status["donors"].as_array().expect("donors");
        let of = |donor: &Value| {
            let name = donor["name"].as_str().expect("a name").to_owned();
            (name, donor["wrong_blocks"].as_u64().expect("a count"))
        };
        donors.iter().map(of).collect()
    }

    /// Returns when the pool has counted more wrong blocks of each of these, and of no other, than `before`.
    /// What a reader finds has a tender look at all of the volume, which may heal blocks that the reader then
    /// does not meet: who accuses a donor is open, and that it is accused is not.
    #[track_caller]
    pub fn counts(&self, before: &BTreeMap<String, u64>, flipped: &[&Flipped]) {
        let names: BTreeSet<String> = flipped.iter().map(|flipped| flipped.donor.clone()).collect();
        let more = || -> BTreeMap<String, u64> {
            self.counted().into_iter().filter(|(name, count)| before.get(name) < Some(count)).collect()
        };
        let heard = || Some(more()).filter(|more| names.iter().all(|name| more.contains_key(name)));
        let more = wait::for_some("each donor's wrong blocks to be counted", wait::SOON, heard);
        assert!(more.keys().all(|name| names.contains(name)), "{more:?}, not of {names:?}");
    }

    /// Kills a donor; returns when everybody knows.
    #[track_caller]
    pub fn lose(&mut self, donor: &str) {
        self.pool.donor(donor).kill();
        wait::until("the loss", wait::SOON, || self.pool.volume_status(VOLUME)["slots_missing"] == 1);
    }

    /// Returns when every slot has a holder, and none of them is this donor.
    #[track_caller]
    pub fn wait_until_without(&self, donor: &str, slots: usize) {
        wait::until("others to have what it held", LONG, || {
            let holders = self.pool.holders(VOLUME, 0);
            holders.len() == slots && !holders.iter().any(|holder| holder == donor)
        });
    }

    /// Writes 512 bytes into each flipped block, not where its bit is; what is refused stays as it is.
    #[track_caller]
    pub fn write_beside(&mut self, attached: &Attached, flipped: &Flipped) {
        let script = r#"
import nbd, sys
h = nbd.NBD()
h.set_uri_allow_local_file(True)
h.connect_uri(sys.argv[1])
for at in map(int, sys.stdin.read().split()):
    try:
        h.pwrite(b"\xa5" * 512, at)
        print(at)
    except nbd.Error as error:
        assert error.errnum == 5, error
h.flush()
h.shutdown()
"#;
        let beside = |(flip, place): (&Flip, &u64)| place + ((flip.byte / 512 + 4) % 8 * 512) as u64;
        let list: Vec<String> =
            flipped.flips.iter().zip(&flipped.places).map(|pair| beside(pair).to_string()).collect();
        let list = self.pool.scratch().file("list", list.join("\n").as_bytes());
        let mut python = tools::command("python3");
        python.args(["-c", script, &attached.uri]).stdin(File::open(list).expect("just made"));
        for at in tools::expect_success(&mut python).split_whitespace() {
            let at: usize = at.parse().expect("a place");
            self.image[at..at + 512].fill(0xa5);
        }
        std::fs::write(&self.file, &self.image).expect("what is expected now");
    }
}

/// The donors that the attachments for which `wanted` holds accuse, once each has told of itself again.
#[track_caller]
pub fn accused(pool: &Pool, wanted: impl Fn(&Value) -> bool) -> BTreeMap<String, u64> {
    // What is told was put together a moment before it arrives.
    const ON_ITS_WAY: Duration = Duration::from_millis(300);
    let since = Instant::now();
    let detail = wait::for_some("news of every attachment", wait::SOON, || {
        let told_within = since.elapsed().saturating_sub(ON_ITS_WAY).as_millis();
        let detail = pool.json(["show", VOLUME]);
        let all = detail["status"]["attachments"].as_array().filter(|all| !all.is_empty())?;
        let silent = |attachment: &Value| attachment["silent_ms"].as_u64().map(u128::from);
        let heard =
            |attachment: &Value| attachment["heard"] == true && silent(attachment) < Some(told_within);
        all.iter().all(heard).then(|| detail.clone())
    });
    let mut counts = BTreeMap::new();
    let all = detail["status"]["attachments"].as_array().expect("it was looked at");
    for attachment in all.iter().filter(|attachment| wanted(attachment)) {
        for entry in attachment["report"]["corrupt_blocks"].as_array().expect("a report") {
            let id = entry[0].as_str().expect("a donor");
            let name = detail["map"]["routes"][id]["name"].as_str().unwrap_or(id);
            *counts.entry(name.to_owned()).or_default() += entry[1].as_u64().expect("a count");
        }
    }
    counts
}

/// `status` has a finding that names these donors.
#[track_caller]
pub fn is_named(pool: &Pool, accused: &BTreeMap<String, u64>) {
    let status = pool.status();
    let findings = status["findings"].as_array().cloned().unwrap_or_default();
    let found = findings.iter().find(|finding| finding["code"] == "donor-wrong-blocks");
    let what = found.and_then(|found| found["what"].as_str()).unwrap_or_default();
    for (name, count) in accused {
        assert!(*count > 0 && what.contains(&format!("from {name}")), "{name}: {status}");
    }
}

/// Compares the places of errors; a list of them would hide what differs.
#[track_caller]
pub fn assert_same(what: &str, found: &BTreeSet<u64>, expected: &BTreeSet<u64>) {
    let (more, fewer) = (found.difference(expected).count(), expected.difference(found).count());
    assert!(
        (more, fewer) == (0, 0),
        "{what}: {} blocks are errors, not {}: {more} that should not be, the first at {:?}, {fewer} that should, \
         the first at {:?}",
        found.len(),
        expected.len(),
        found.difference(expected).next(),
        expected.difference(found).next()
    );
}
