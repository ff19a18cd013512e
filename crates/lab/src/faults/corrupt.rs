//! A link that flips bits which TCP does not notice, between one donor and everybody else, under a load that
//! checks.
//!
//! Owns: the count of flips met and of blocks that the client found wrong. Never: a flip that TCP would
//! repair. The donor on the bad link holds data, not parity alone: that nobody reads while all are well.
//! Called by: `bin/faults.rs`, `tests/survive.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::faults::trial::{Hosts, REGION_BYTES};
use crate::faults::volume::node_of;
use crate::fio::{Fio, Load, Reads, Region, Target};
use crate::pool::{Access, Pool, State};
use crate::wire::Count;

/// Frames in a million that get a flipped bit: 0.05 %.
pub const FLIPS_PPM: u64 = 500;
/// How many flips a full run meets.
pub const FLIPS_WANTED: u64 = 2_000;
/// The links of its lab: faster than the processor, so that flips come quickly.
pub const RATE: &str = "10gbit";
const VOLUME: &str = "case";
const REDUNDANCY: &str = "parity:3+1";
const DONORS: u8 = 4;
/// One write of everything, and random reads of large blocks after it.
const WRITE_SECONDS: u64 = 2;
const READ_SECONDS: u64 = 8;
const READ_BYTES: u64 = 64 << 10;
const READ_DEPTH: u32 = 64;
/// A client tells its coordinator of what it found at least this often.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);

/// What came of it.
#[derive(Clone, Debug)]
pub struct Corruption {
    pub count: Count,
    pub errors: u32,
    pub notes: Vec<String>,
    /// Blocks that the client found wrong, over all donors, and of those put right on their donor.
    pub corrupt_blocks: u64,
    pub healed_blocks: u64,
    pub took: Duration,
}

impl Corruption {
    /// What it misses of what is demanded.
    pub fn missed(&self) -> Option<String> {
        match self {
            _ if self.errors > 0 => Some(format!("{} errors: {}", self.errors, self.notes.join("; "))),
            _ if self.count.flips == 0 => Some("no flip was met".to_owned()),
            _ if self.corrupt_blocks == 0 => Some("the client counts no corrupt block".to_owned()),
            _ => None,
        }
    }

    /// None for what is another's result.
    pub fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value[name].as_u64();
        let notes = value["notes"].as_array().cloned().unwrap_or_default();
        let notes = notes.iter().filter_map(|note| note.as_str().map(str::to_owned)).collect();
        let (frames, bytes, flips) = (number("frames")?, number("bytes")?, number("flips")?);
        Some(Self {
            count: Count { frames, bytes, flips, dropped: 0 },
            errors: u32::try_from(number("errors")?).ok()?,
            notes,
            corrupt_blocks: number("corrupt_blocks")?,
            healed_blocks: number("healed_blocks")?,
            took: Duration::from_millis(number("took_ms")?),
        })
    }

    pub fn to_json(&self) -> Value {
        json!({
            "redundancy": REDUNDANCY,
            "fault": "corrupt",
            "front": "export",
            "frames": self.count.frames,
            "bytes": self.count.bytes,
            "flips": self.count.flips,
            "corrupt_blocks": self.corrupt_blocks,
            "healed_blocks": self.healed_blocks,
            "errors": self.errors,
            "took_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "notes": self.notes,
        })
    }
}

/// Writes and reads over the bad link until so many flips were met, or the time is over, or something is
/// wrong. None when it was given up before.
#[track_caller]
pub fn run(
    hosts: &Hosts,
    flips_wanted: u64,
    limit: Duration,
    give_up: impl Fn() -> bool,
) -> Option<Corruption> {
    hosts.heal();
    let start = Instant::now();
    let mut pool = Pool::of(Access::Plaintext, State::Directory, Some(Arc::clone(&hosts.lan)));
    pool.donate_everywhere(DONORS, "256M");
    pool.ok(["create", VOLUME, "192M", "--redundancy", REDUNDANCY]);
    let target = Target::Export(pool.attach_export_unix(VOLUME, &[]).uri);
    let fio = Fio { lan: Some(&hosts.lan), target: &target, scratch: pool.scratch() };

    let before = hosts.wire.count();
    hosts.lan.detour(node_of(&pool.holders(VOLUME, 0)[0]));
    hosts.wire.corrupt(FLIPS_PPM);
    let mut notes = Vec::new();
    let met = || {
        let now = hosts.wire.count();
        Count {
            frames: now.frames - before.frames,
            bytes: now.bytes - before.bytes,
            flips: now.flips - before.flips,
            dropped: now.dropped - before.dropped,
        }
    };
    let region = Region { offset: 0, bytes: REGION_BYTES };
    let mut seed = 1;
    // A donor whose requests come garbled may be set aside before anything is read of it: then it is given
    // another turn.
    let enough = || met().flips >= flips_wanted && reported_now(&pool).0 > 0;
    while notes.is_empty() && !enough() && start.elapsed() < limit {
        // So that what was written in an earlier round fails its check.
        fio.prepare(REGION_BYTES, None);
        let load = Load { bytes: REGION_BYTES, seconds: WRITE_SECONDS, depth: 16, seed };
        let reads = Reads {
            region,
            block_bytes: READ_BYTES,
            depth: READ_DEPTH,
            seconds: READ_SECONDS,
            bytes_per_second: None,
            seed,
        };
        let written = fio.write(&load).wait(LIMIT, &give_up);
        let loads = [written, fio.read_at_random(&reads).wait(LIMIT, &give_up)];
        if give_up() {
            hosts.heal();
            return None;
        }
        notes.extend(loads.into_iter().filter(|ended| !ended.good()).map(|ended| ended.complaint));
        seed += 1;
    }
    let count = met();
    // What lies wrong on the donor now must be found when the link is good again, too.
    hosts.heal();
    let ended = fio.read_back(REGION_BYTES).wait(LIMIT, || false);
    if !ended.good() {
        notes.push(ended.complaint);
    }
    let (corrupt_blocks, healed_blocks) = reported(&pool);
    let errors = u32::try_from(notes.len()).unwrap_or(u32::MAX);
    Some(Corruption { count, errors, notes, corrupt_blocks, healed_blocks, took: start.elapsed() })
}

/// What the client reports of wrong blocks, once it has had the time to.
fn reported(pool: &Pool) -> (u64, u64) {
    let until = Instant::now() + REPORTED_WITHIN;
    loop {
        let counts = reported_now(pool);
        if counts.0 > 0 || Instant::now() > until {
            // Those of the last moments may still be on their way.
            std::thread::sleep(REPORTED_WITHIN / 2);
            return reported_now(pool);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn reported_now(pool: &Pool) -> (u64, u64) {
    let volume = pool.volume_status(VOLUME);
    let report = &volume["attachments"][0]["report"];
    let by_donor = report["corrupt_blocks"].as_array().cloned().unwrap_or_default();
    let corrupt = by_donor.iter().filter_map(|entry| entry[1].as_u64()).sum();
    (corrupt, report["healed_blocks"].as_u64().unwrap_or_default())
}
