//! Guards of the hot paths: the instructions of one operation, counted by Callgrind, and how many they may be
//! at most.
//!
//! Owns the table of counts, and the small worlds in which they are taken. Never: time, a socket, or a figure
//! to boast of: `make bench` measures what a user gets. Run by `make instructions`, which is part of `make
//! test`.
//!
//! **Why.** Hot paths decay slowly: one more look-up here, one more copy there, each below what a timed
//! benchmark can tell from noise. Instructions are counted without noise on any machine, however busy, so
//! that a change which makes a path dearer by a tenth fails, and its author decides whether it is worth that.
//!
//! **To renew a count**, because a change is worth its cost, or has made the path cheaper (a count that is
//! too high hides the next decay): run `make instructions`; each line gives the instructions of `OPERATIONS`
//! operations, so the last two digits off that is the count. Write it into the table, and why into the
//! commit.
//!
//! **What they depend on**: the compiler and the flags of a release build, the C library's `memcpy` and
//! `malloc`, and the kernels that the processor allows. Valgrind shows the program an AVX2 processor wherever
//! the real one has AVX2, and never AVX-512; so `combine` runs the AVX2 kernel, and CRC32C the SSE 4.2 one.
//! On other processors counts are shown, not guarded.
#![forbid(unsafe_code)]
#![allow(unused_qualifications, reason = "the macros of the harness write them")]

use cheetah_core::ahead::Rule;
use cheetah_core::code::Code;
use cheetah_core::limits::{EXTENT_BYTES, UNIT_PARITY_BYTES};
use cheetah_core::map::{DonorId, Group, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{Caching, Effect, Event, Key, Mem, Op, Request, Tag, Volume};
use cheetah_lab::load::next_random;
use cheetah_nbd::client::Reply;
use cheetah_nbd::server::reply;
use cheetah_nbd::{CmdFlags, Command, ExportInfo, Negotiated, RequestHeader, TransmissionFlags};
use cheetah_rim::code::{combine, crc32c};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use std::collections::VecDeque;
use std::hint::black_box;

/// Instructions of one operation, as counted with Rust 1.95 on x86-64 with AVX2.
mod counts {
    /// Core: from `Submit` to `Complete`, with the answers of all donors. A stripe of four.
    pub const READ_4K: u64 = 3680;
    /// The same, with `DEPTH` of them on their way.
    pub const READ_4K_DEEP: u64 = 3867;
    pub const READ_1M: u64 = 8201;
    /// parity:4+1, whole rows.
    pub const WRITE_1M: u64 = 17_504;
    /// parity:4+1, inside a row: the old data and parity are read first.
    pub const WRITE_4K: u64 = 16_125;
    /// What was read ahead: 4 KiB that are there, in order and in none, where a stream is looked for each
    /// time; and 64 KiB of a stream with their share of the fetching.
    pub const CACHED_4K: u64 = 3177;
    pub const CACHED_SCATTERED_4K: u64 = 4712;
    pub const STREAM_64K: u64 = 11_186;
    /// NBD: a READ as a donor takes and answers it, and the head of that answer as the client takes it.
    pub const REQUEST: u64 = 151;
    pub const REPLY: u64 = 178;
    /// Rim: what is done to bytes.
    pub const CRC32C_4K: u64 = 2040;
    pub const ENCODE_64K: u64 = 143_344;
}

/// A path may be dearer by so much. Counts repeat to the instruction; two releases of the compiler further,
/// or with another `memcpy`, they were 2 percent off at most.
const MARGIN_PERCENT: u64 = 10;
/// Counted together, so that what is done once does not matter. A hundred, so that counts are easily read.
const OPERATIONS: usize = 100;
/// Before that, so that every list has the length that it keeps.
const WARM_UP: usize = 400;

/// Requests on their way at once, where what is kept of all of them matters.
const DEPTH: usize = 25;

const BLOCK: u32 = 4 << 10;
const LARGE: u32 = 1 << 20;
const STREAMED: u32 = 64 << 10;

fn at_most(count: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    callgrind.format([EventKind::Ir]);
    if is_guarded() {
        callgrind.hard_limits([(EventKind::Ir, OPERATIONS as u64 * count * (100 + MARGIN_PERCENT) / 100)]);
    }
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// Whether this processor is of the kind that the counts are for.
fn is_guarded() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

fn for_all() -> LibraryBenchmarkConfig {
    if !is_guarded() {
        eprintln!("not guarded: the counts are for x86-64 with AVX2, and this is another processor");
    }
    LibraryBenchmarkConfig::default()
}

/// A volume and its donors, which do at once what they are asked.
struct Client {
    volume: Volume,
    now: Time,
    wake_at: Option<Time>,
    tag: Tag,
    completed: Tag,
    effects: Vec<Effect>,
    parts: VecDeque<Key>,
    /// Parts that tools waited for, since the beginning.
    asked: usize,
}

/// Between one event and the next.
const STEP_NS: u64 = 10_000;

impl Client {
    fn new(redundancy: Redundancy, caching: Caching) -> Client {
        let volume = Volume::new(map(redundancy), false, true).with_cache(caching);
        let (effects, parts) = (Vec::with_capacity(1024), VecDeque::with_capacity(1024));
        let mut client =
            Client { volume, now: 1, wake_at: None, tag: 0, completed: 0, effects, parts, asked: 0 };
        client.step(Event::Start);
        let opened = |effect: &Effect| match effect {
            Effect::Open { donor, session } => Some(Event::Opened { donor: *donor, session: *session }),
            _ => None,
        };
        let opened: Vec<Event> = client.effects.iter().filter_map(opened).collect();
        client.effects.clear();
        for event in opened {
            client.step(event);
        }
        assert!(client.volume.is_settled(), "a whole volume serves at once");
        client
    }

    fn step(&mut self, event: Event) {
        self.now += STEP_NS;
        self.volume.step(self.now, event, &mut self.effects);
    }

    /// Requests of which all are on their way at once, until they and all that they brought about are done.
    fn run(&mut self, requests: &[Request]) {
        for request in requests {
            self.tag += 1;
            self.step(Event::Submit { tag: self.tag, request: *request });
            self.carry_out();
        }
        loop {
            self.carry_out();
            if let Some(part) = self.parts.pop_front() {
                self.step(Event::Answered { part, answer: Ok(Vec::new()) });
            } else if self.wake_at.is_some_and(|at| at <= self.now) {
                self.wake_at = None;
                self.step(Event::Wake);
            } else {
                break;
            }
        }
        assert_eq!(self.completed, self.tag, "a request of which nothing is under way is not complete");
    }

    fn carry_out(&mut self) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Send { part, mem, .. } => {
                    self.asked += usize::from(mem != Mem::Cache);
                    self.parts.push_back(part);
                }
                Effect::Complete { result, .. } => {
                    assert_eq!(result, Ok(()));
                    self.completed += 1;
                }
                Effect::WakeAt(at) => self.wake_at = Some(at),
                Effect::Verify { .. } | Effect::Compare { .. } | Effect::Amend(_) | Effect::Close { .. } => {
                    unreachable!("nothing is wrong with the donors: {effect:?}");
                }
                other => drop(black_box(other)),
            }
        }
    }
}

/// One group, each slot on a donor of its own.
fn map(redundancy: Redundancy) -> VolumeMap {
    let donors = || (1..=u64::from(redundancy.data + redundancy.parity)).map(DonorId);
    let slots = donors().map(|donor| Slot::held(Placement { donor, extent: 0 })).collect();
    let route = |donor: DonorId| {
        let address = "127.0.0.1:1".to_owned();
        (donor, Route { name: format!("d{}", donor.0), address, foreign_export: None })
    };
    let map = VolumeMap {
        volume: VolumeId(7),
        name: "v".to_owned(),
        epoch: 1,
        size: u64::from(redundancy.data) * EXTENT_BYTES,
        redundancy,
        unit: UNIT_PARITY_BYTES,
        groups: vec![Group { slots }],
        routes: donors().map(route).collect(),
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    };
    map.check().expect("a sound map");
    map
}

/// A client that is warm, and what is yet to be asked of it.
struct Load {
    client: Client,
    requests: Vec<Request>,
    /// So many are on their way at once.
    depth: usize,
}

impl Load {
    /// `parts`: what each request asks of donors, so that the path is the one that is meant.
    fn new(client: Client, depth: usize, parts: usize, requests: impl Iterator<Item = Request>) -> Load {
        let mut warm_up: Vec<Request> = requests.take(WARM_UP + OPERATIONS).collect();
        let requests = warm_up.split_off(WARM_UP);
        let mut load = Load { client, requests: warm_up, depth };
        let before = load.client.asked;
        load.run();
        assert_eq!(load.client.asked - before, WARM_UP * parts, "another path than the one that is meant");
        Load { requests, ..load }
    }

    fn run(&mut self) {
        for requests in self.requests.chunks(self.depth) {
            self.client.run(requests);
        }
    }
}

const STRIPE: Redundancy = Redundancy { data: 4, parity: 0 };
const PARITY: Redundancy = Redundancy { data: 4, parity: 1 };
const CACHE: Caching = Caching { bytes: 64 << 20, keeps: true, takes: false, rule: Rule::Streams };

/// Blocks all over the first so many bytes, in no order that anybody could follow.
fn scattered(op: Op, bytes: u64) -> impl Iterator<Item = Request> {
    let dice = std::iter::successors(Some(1), |dice| Some(next_random(*dice)));
    let blocks = bytes / u64::from(BLOCK);
    dice.map(move |dice| Request { op, offset: (dice >> 33) % blocks * u64::from(BLOCK), len: BLOCK })
}

/// One after the other, and again from the beginning.
fn in_order(op: Op, len: u32) -> impl Iterator<Item = Request> {
    let count = 4 * EXTENT_BYTES / u64::from(len);
    (0..count).cycle().map(move |number| Request { op, offset: number * u64::from(len), len })
}

fn read_4k() -> Load {
    Load::new(Client::new(STRIPE, Caching::OFF), 1, 1, scattered(Op::Read, 4 * EXTENT_BYTES))
}

fn read_4k_deep() -> Load {
    Load::new(Client::new(STRIPE, Caching::OFF), DEPTH, 1, scattered(Op::Read, 4 * EXTENT_BYTES))
}

fn read_1m() -> Load {
    Load::new(Client::new(STRIPE, Caching::OFF), 1, 4, in_order(Op::Read, LARGE))
}

fn write_1m() -> Load {
    Load::new(Client::new(PARITY, Caching::OFF), 1, 5, in_order(Op::Write, LARGE))
}

fn write_4k() -> Load {
    Load::new(Client::new(PARITY, Caching::OFF), 1, 4, scattered(Op::Write, 4 * EXTENT_BYTES))
}

/// A stream is read first, and kept; but for its beginning, which donors were asked for.
fn cached(hits: impl Iterator<Item = Request>) -> Load {
    let mut client = Client::new(STRIPE, CACHE);
    in_order(Op::Read, STREAMED).take(512).for_each(|request| client.run(&[request]));
    Load::new(client, 1, 0, hits.map(|hit| Request { offset: hit.offset + u64::from(LARGE), ..hit }))
}

fn cached_4k() -> Load {
    cached(in_order(Op::Read, BLOCK))
}

fn cached_scattered_4k() -> Load {
    cached(scattered(Op::Read, 16 << 20))
}

fn stream_64k() -> Load {
    let mut client = Client::new(STRIPE, Caching { keeps: false, ..CACHE });
    let mut stream = in_order(Op::Read, STREAMED);
    // Until the window is as wide as it gets.
    stream.by_ref().take(512).for_each(|request| client.run(&[request]));
    Load::new(client, 1, 0, stream)
}

#[library_benchmark]
#[bench::read_4k(args = (), setup = read_4k, config = at_most(counts::READ_4K))]
#[bench::read_4k_deep(args = (), setup = read_4k_deep, config = at_most(counts::READ_4K_DEEP))]
#[bench::read_1m(args = (), setup = read_1m, config = at_most(counts::READ_1M))]
#[bench::write_1m(args = (), setup = write_1m, config = at_most(counts::WRITE_1M))]
#[bench::write_4k(args = (), setup = write_4k, config = at_most(counts::WRITE_4K))]
#[bench::cached_4k(args = (), setup = cached_4k, config = at_most(counts::CACHED_4K))]
#[bench::cached_scattered_4k(
    args = (), setup = cached_scattered_4k, config = at_most(counts::CACHED_SCATTERED_4K)
)]
#[bench::stream_64k(args = (), setup = stream_64k, config = at_most(counts::STREAM_64K))]
fn volume(mut load: Load) -> Load {
    load.run();
    load
}

/// A session in which all is allowed, and READs.
fn reads() -> (Negotiated, Vec<[u8; RequestHeader::BYTES]>) {
    let session = Negotiated {
        export: "v".to_owned(),
        info: ExportInfo::new(EXTENT_BYTES, TransmissionFlags::EMPTY),
        structured_replies: true,
        base_allocation: Some(1),
        dirty: Some(2),
        context: Some(3),
        auth: None,
    };
    let read = |number| RequestHeader {
        flags: CmdFlags::EMPTY,
        command: Command::Read,
        cookie: number,
        offset: number * u64::from(BLOCK),
        length: BLOCK,
    };
    (session, (0..OPERATIONS as u64).map(|number| read(number).encode()).collect())
}

#[library_benchmark]
#[bench::request(args = (), setup = reads, config = at_most(counts::REQUEST))]
fn donor(
    input: (Negotiated, Vec<[u8; RequestHeader::BYTES]>),
) -> (Negotiated, Vec<[u8; RequestHeader::BYTES]>) {
    for header in &input.1 {
        let request = RequestHeader::decode(black_box(header)).expect("it was encoded");
        assert_eq!(request.check(&input.0), Ok(Command::Read));
        black_box(reply::offset_data(request.cookie, true, request.offset, request.length));
    }
    input
}

fn replies() -> Vec<[u8; 28]> {
    (0..OPERATIONS as u64)
        .map(|number| reply::offset_data(number, true, number * u64::from(BLOCK), BLOCK))
        .collect()
}

#[library_benchmark]
#[bench::reply(args = (), setup = replies, config = at_most(counts::REPLY))]
fn client(replies: Vec<[u8; 28]>) -> Vec<[u8; 28]> {
    for reply in &replies {
        let decoded = Reply::decode(black_box(reply)).expect("it was encoded");
        assert!(matches!(black_box(decoded), Some((Reply::OffsetData { .. }, 28))));
    }
    replies
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed * 151 + at * 83 + (at >> 8) * 7 + 1) as u8).collect()
}

/// The kernel is looked for once.
fn block() -> Vec<u8> {
    let block = bytes(1, BLOCK as usize);
    black_box(crc32c(&block));
    block
}

#[library_benchmark]
#[bench::crc32c_4k(args = (), setup = block, config = at_most(counts::CRC32C_4K))]
fn checksum(block: Vec<u8>) -> Vec<u8> {
    for _ in 0..OPERATIONS {
        black_box(crc32c(black_box(&block)));
    }
    block
}

/// The coefficients of 4+2, its data, and room for its parity.
type Row = (Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>);

fn row() -> Row {
    let code = Code::new(Redundancy { data: 4, parity: 2 });
    let coefficients =
        (0..2).flat_map(|parity| (0..4).map(move |data| (parity, data))).map(|(p, d)| code.coefficient(p, d));
    let mut row = (
        coefficients.collect(),
        (0..4).map(|seed| bytes(seed, UNIT_PARITY_BYTES as usize)).collect(),
        vec![vec![0; UNIT_PARITY_BYTES as usize]; 2],
    );
    encode_once(&mut row);
    row
}

fn encode_once((coefficients, data, parity): &mut Row) {
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    combine(black_box(coefficients), &data, &mut parity, false);
    black_box(&parity);
}

#[library_benchmark]
#[bench::encode_64k(args = (), setup = row, config = at_most(counts::ENCODE_64K))]
fn code(mut row: Row) -> Row {
    for _ in 0..OPERATIONS {
        encode_once(&mut row);
    }
    row
}

library_benchmark_group!(name = hot, benchmarks = [volume, donor, client, checksum, code]);
main!(config = for_all(), library_benchmark_groups = hot);
