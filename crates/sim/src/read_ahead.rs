//! Read-ahead rules compared in virtual time: one tool that waits for each read, a path of a given rate and
//! delay.
//!
//! Owns the model of the path and the patterns. Never: faults or contents (the swarm has those). The machine
//! is the one that runs in production. Every figure depends on nothing but the arguments. Called by
//! `cheetah-sim --read-ahead`. Tests: `tests/read_ahead.rs`.

use cheetah_core::ahead::Rule;
use cheetah_core::limits::{EXTENT_BYTES, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{Caching, Effect, Event, Key, Op, PartOp, Request, Volume};
use std::collections::{BTreeMap, VecDeque};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DONORS: u32 = 4;
const EXTENTS: u32 = 8;
/// What a donor's answer takes beside its data.
const HEAD_BYTES: u64 = 90;
/// What a tool does between two reads.
const THINK_NS: u64 = 20_000;

/// How a tool reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// 64 KiB after 64 KiB.
    Forward,
    /// 4 KiB after 4 KiB, towards the beginning.
    Backward,
    /// 4 KiB every 200 KiB.
    Stride,
    /// Eight tools forward in turns, 16 KiB each.
    Eight,
    /// 4 KiB anywhere.
    Random,
    /// As a tool walks a file system: some near reads in one place, then another.
    Walk,
}

impl Pattern {
    pub const ALL: [Pattern; 6] = [
        Pattern::Forward,
        Pattern::Backward,
        Pattern::Stride,
        Pattern::Eight,
        Pattern::Random,
        Pattern::Walk,
    ];

    fn read(self, number: u64, size: u64) -> (u64, u64) {
        // Weyl's sequence, mixed: any place is as likely as another.
        let random = |seed: u64| {
            let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ (seed << 7);
            (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
        };
        match self {
            Pattern::Forward => (number * 64 * KIB, 64 * KIB),
            Pattern::Backward => (size - (number + 1) * 4 * KIB, 4 * KIB),
            Pattern::Stride => (number * 200 * KIB % (size - MIB), 4 * KIB),
            Pattern::Eight => (number % 8 * (size / 8) + number / 8 * 16 * KIB, 16 * KIB),
            Pattern::Random => (random(number) % (size / (4 * KIB)) * 4 * KIB, 4 * KIB),
            Pattern::Walk => {
                let place = random(number / 12) % (size / MIB) * MIB;
                (place + random(number) % 64 * 4 * KIB, 4 * KIB)
            }
        }
    }
}

/// What one run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Bytes a second that the tool got.
    pub rate: f64,
    /// Bytes that donors sent for each of those.
    pub fetched: f64,
    /// Reads that waited for a donor's answer from its beginning, of each hundred.
    pub round_trips: f64,
}

struct Model {
    volume: Volume,
    now: Time,
    rtt: u64,
    rate: u64,
    path_free: Time,
    answers: BTreeMap<(Time, u64), Key>,
    sent: u64,
    fetched: u64,
    /// Parts that were sent for tools.
    asked: u64,
    done: VecDeque<u64>,
    wake_at: Option<Time>,
}

fn map() -> VolumeMap {
    let placement = |donor, extent| Placement { donor: DonorId(donor), extent };
    let slots = |extent| (1..=DONORS.into()).map(|donor| Slot::held(placement(donor, extent))).collect();
    let route = |donor: u64| {
        let address = "127.0.0.1:1".into();
        (DonorId(donor), Route { name: format!("d{donor}"), address, foreign_export: None })
    };
    VolumeMap {
        volume: VolumeId(1),
        name: "v".into(),
        epoch: 1,
        size: u64::from(DONORS * EXTENTS) * EXTENT_BYTES,
        redundancy: Redundancy { data: DONORS, parity: 0 },
        unit: 64 << 10,
        groups: (0..EXTENTS).map(|extent| Group { slots: slots(extent) }).collect(),
        routes: (1..=DONORS.into()).map(route).collect(),
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    }
}

impl Model {
    fn new(rule: Rule, rtt: u64, rate: u64) -> Model {
        let caching = Caching { bytes: 64 << 20, keeps: false, takes: false, rule };
        let mut model = Model {
            volume: Volume::new(map(), true, false).with_cache(caching),
            now: 1,
            rtt,
            rate,
            path_free: 0,
            answers: BTreeMap::new(),
            sent: 0,
            fetched: 0,
            asked: 0,
            done: VecDeque::new(),
            wake_at: None,
        };
        model.step(Event::Start);
        model
    }

    fn step(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.volume.step(self.now, event, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Open { donor, session } => events.push_back(Event::Opened { donor, session }),
                    Effect::Send { part, op, scatter, mem, .. } => {
                        let len = if op == PartOp::Read { u64::from(scatter.len) } else { 0 };
                        let start = (self.now + self.rtt).max(self.path_free);
                        self.path_free = start + (len + HEAD_BYTES) * SECOND_NS / self.rate;
                        self.sent += 1;
                        self.fetched += len;
                        self.asked += u64::from(matches!(mem, cheetah_core::volume::Mem::Payload(_)));
                        self.answers.insert((self.path_free, self.sent), part);
                    }
                    Effect::Complete { tag, result, .. } => {
                        assert_eq!(result, Ok(()), "nothing fails here");
                        self.done.push_back(tag);
                    }
                    Effect::WakeAt(at) => {
                        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
                    }
                    _ => {}
                }
            }
        }
    }

    fn advance(&mut self) {
        let answer = self.answers.first_key_value().map(|((at, _), _)| *at);
        match (answer, self.wake_at) {
            (Some(at), wake) if wake.is_none_or(|wake| at <= wake) => {
                self.now = self.now.max(at);
                let (_, part) = self.answers.pop_first().expect("looked at above");
                self.step(Event::Answered { part, answer: Ok(Vec::new()) });
            }
            (_, Some(wake)) => {
                self.wake_at = None;
                self.now = self.now.max(wake);
                self.step(Event::Wake);
            }
            _ => unreachable!("a read is always on its way"),
        }
    }

    /// Lets what comes by a time come.
    fn advance_to(&mut self, time: Time) {
        while self.answers.first_key_value().is_some_and(|((at, _), _)| *at <= time) {
            self.advance();
        }
        self.now = self.now.max(time);
    }
}

/// A tool reads so many times, and waits for each.
#[must_use]
pub fn measure(rule: Rule, pattern: Pattern, rtt_ns: u64, bytes_per_second: u64, reads: u64) -> Figures {
    let mut model = Model::new(rule, rtt_ns, bytes_per_second);
    let size = model.volume.map().size;
    let (start, mut useful) = (model.now, 0);
    for number in 0..reads {
        let (offset, len) = pattern.read(number, size);
        let request = Request { op: Op::Read, offset, len: u32::try_from(len).expect("small") };
        model.step(Event::Submit { tag: number, request });
        while model.done.pop_front().is_none() {
            model.advance();
        }
        useful += len;
        let next = model.now + THINK_NS;
        model.advance_to(next);
    }
    let seconds = (model.now - start) as f64 / SECOND_NS as f64;
    Figures {
        rate: useful as f64 / seconds,
        fetched: model.fetched as f64 / useful as f64,
        round_trips: 100.0 * model.asked as f64 / reads as f64,
    }
}

/// The table: each pattern at each delay, by each rule, over 1 Gbit/s.
#[must_use]
pub fn table() -> String {
    let mut text = String::from(
        "MB/s that a tool gets which waits for each read, of 125 MB/s; in brackets bytes sent for each byte read\n\n\
         | pattern | round trip | none | thesis | cheetah |\n|---|---|---|---|---|\n",
    );
    for pattern in Pattern::ALL {
        for rtt_us in [100, 1_000, 10_000, 50_000] {
            let cells = [Rule::Off, Rule::Thesis, Rule::Streams].map(|rule| {
                let rtt = rtt_us * MILLISECOND_NS / 1_000;
                let figures = measure(rule, pattern, rtt, 125_000_000, 4_000);
                format!("{:.2} ({:.2})", figures.rate / 1e6, figures.fetched)
            });
            let rtt = rtt_us as f64 / 1e3;
            text.push_str(&format!("| {pattern:?} | {rtt} ms | {} |\n", cells.join(" | ")));
        }
    }
    text
}
