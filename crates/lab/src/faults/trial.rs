//! One load under one fault: writes begin, and reads beside them, the fault comes among them, everything is
//! read back.
//!
//! Owns: when the fault comes (chosen by chance among the first writes), what is measured of the load.
//! Never: knows what serves the volume. Called by: [`super::volume`] and [`super::quorum`].

use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::faults::{Fault, Outcome};
use crate::fio::{self, Fio, Load, Reads, Region, Silences};
use crate::lan::{Lan, Node};
use crate::wire::Wire;

/// What is written, at random, once.
pub const REGION_BYTES: u64 = 40 << 20;
/// How long a load lasts unless said otherwise. The fault comes in its first third; what follows is longer
/// than the longest silence that is allowed.
pub const LOAD_SECONDS: u64 = 4;
const DEPTH: u32 = 32;
/// What is read at random during the load, and checked, slowly enough to leave the writes alone.
const READ_REGION: Region = Region { offset: REGION_BYTES, bytes: 8 << 20 };
const READ_BYTES_PER_SECOND: u64 = 2 << 20;
/// The share of the load, in percent, after which the fault comes: from, and at most so much later.
const FAULT_AFTER_PERCENT: u64 = 10;
const FAULT_WITHIN_PERCENT: u64 = 15;
/// A load that takes longer hangs: two deadlines of a request.
const LOAD_LIMIT: Duration = Duration::from_secs(60);
/// Fewer completions than this after the fault say that the load had all but ended.
const COMPLETIONS_AFTER_MIN: usize = 100;

/// The hosts, and their wire.
#[derive(Debug)]
pub struct Hosts {
    pub lan: std::sync::Arc<Lan>,
    pub wire: Wire,
    /// How long a load lasts when nothing is silent.
    pub load_seconds: u64,
}

impl Hosts {
    #[track_caller]
    pub fn new(seed: u64, rate: &str) -> Self {
        let lan = std::sync::Arc::new(Lan::new(super::DONORS, rate));
        let wire = Wire::new(&lan, seed);
        Self { lan, wire, load_seconds: LOAD_SECONDS }
    }

    /// Undoes every fault on every host.
    pub fn heal(&self) {
        for number in 1..=super::DONORS {
            let node = Node::Donor(number);
            self.lan.cont(node);
            self.lan.plug(node);
            self.lan.heal(node);
        }
        self.wire.delay(Duration::ZERO);
        self.wire.corrupt(0);
    }
}

/// A fault, whom it hits, and how long it lasts while the load runs.
#[derive(Debug)]
pub struct Strike<'a> {
    pub fault: Fault,
    pub victims: &'a [Node],
    /// Lifted after so long though the load still runs; None: it stays.
    pub lifted_after: Option<Duration>,
    /// How many bytes go over the wire for each that is written.
    pub copies: u64,
}

/// Prepares what the load needs.
#[track_caller]
pub fn prepare(hosts: &Hosts, fio: &Fio<'_>, strike: &Strike<'_>) {
    for victim in strike.victims {
        strike.fault.prepare(&hosts.lan, *victim);
    }
    fio.prepare(REGION_BYTES, Some(READ_REGION));
}

/// Runs the load with the fault in it. The fault still lasts when this returns, unless it was to be lifted.
pub fn strike(hosts: &Hosts, fio: &Fio<'_>, strike: &Strike<'_>, dice: &mut Dice, outcome: &mut Outcome) {
    let load = Load {
        bytes: REGION_BYTES,
        seconds: hosts.load_seconds,
        depth: DEPTH,
        seed: 1 + dice.below(1 << 30),
    };
    let percent = FAULT_AFTER_PERCENT + dice.below(FAULT_WITHIN_PERCENT);
    let sent_before = hosts.lan.bytes_sent(Node::Client);
    let due = sent_before + REGION_BYTES * strike.copies * percent / 100;
    let reads = fio.read_at_random(&Reads {
        region: READ_REGION,
        block_bytes: 4096,
        depth: 4,
        seconds: hosts.load_seconds,
        bytes_per_second: Some(READ_BYTES_PER_SECOND),
        seed: load.seed,
    });
    let mut running = fio.write(&load);
    let start = Instant::now();
    while hosts.lan.bytes_sent(Node::Client) < due && start.elapsed() < LOAD_LIMIT && running.is_running() {
        std::thread::sleep(Duration::from_millis(10));
    }
    if !running.is_running() {
        outcome.fail(format!("before the fault: {}", running.wait(LOAD_LIMIT, || false).complaint));
        return;
    }
    let fault_ms = fio::now_ms();
    for victim in strike.victims {
        strike.fault.inject(&hosts.lan, &hosts.wire, *victim);
    }
    let ended = match strike.lifted_after {
        None => running.wait(LOAD_LIMIT, || false),
        Some(limit) => {
            let struck = Instant::now();
            while running.is_running() && struck.elapsed() < limit {
                std::thread::sleep(Duration::from_millis(10));
            }
            if running.is_running() {
                if strike.fault != Fault::Kill {
                    outcome.notes.push(format!("the fault was lifted after {limit:?}"));
                }
                lift(hosts, strike);
            }
            running.wait(LOAD_LIMIT, || false)
        }
    };
    let read = reads.wait(LOAD_LIMIT, || false);
    if !read.good() {
        outcome.fail(format!("beside the writes: {}", read.complaint));
    }
    let silences = Silences::around(fault_ms, &ended.completions);
    outcome.silence_before_ms = silences.before_ms;
    outcome.slowest_write_ms = ended.slowest_ms;
    if !ended.good() {
        outcome.fail(ended.complaint);
    } else if silences.completions_after < COMPLETIONS_AFTER_MIN {
        outcome.fail(format!("only {} writes met the fault", silences.completions_after));
    } else {
        outcome.longest_silence_ms = Some(silences.after_ms);
    }
    outcome.lap("load");
}

pub fn lift(hosts: &Hosts, strike: &Strike<'_>) {
    for victim in strike.victims {
        strike.fault.lift(&hosts.lan, &hosts.wire, *victim);
    }
}

/// Reads all back in a process of its own.
pub fn read_back(fio: &Fio<'_>, when: &'static str, outcome: &mut Outcome) {
    let ended = fio.read_back(REGION_BYTES).wait(LOAD_LIMIT, || false);
    if !ended.good() {
        outcome.fail(format!("{when}: {}", ended.complaint));
    }
    outcome.lap(when);
}
