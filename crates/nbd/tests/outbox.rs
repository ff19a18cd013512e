//! What a server sends does not depend on how it leaves, and a client makes of it what was meant.

use cheetah_nbd::client::Reply;
use cheetah_nbd::server::outbox::Piece;
use cheetah_nbd::server::{Outbox, Run, reply};
use cheetah_nbd::{CmdFlags, Command, Descriptor, Errno, LedgerEntry, RequestHeader, StateFlags};
use proptest::prelude::*;

const HOLE_BYTES_MIN: u64 = 20;

/// A payload: its number, and its bytes, as a driver would find them.
type Payload = (usize, Vec<u8>);

#[derive(Clone, Debug)]
enum Answer {
    Done,
    DoneSimply,
    Error(String),
    Data(u32),
    Read { df: bool, runs: Vec<Run> },
    Status { one: bool, lengths: Vec<u32> },
    Ledger(usize),
}

fn answer() -> impl Strategy<Value = Answer> {
    let run = (1..60u64, any::<bool>()).prop_map(|(bytes, is_present)| Run { bytes, is_present });
    let lengths = prop::collection::vec(1u32.., 1..9);
    prop_oneof![
        Just(Answer::Done),
        Just(Answer::DoneSimply),
        "[a-z]{0,40}".prop_map(Answer::Error),
        (1..5000u32).prop_map(Answer::Data),
        (any::<bool>(), prop::collection::vec(run, 1..8)).prop_map(|(df, runs)| Answer::Read { df, runs }),
        (any::<bool>(), lengths).prop_map(|(one, lengths)| Answer::Status { one, lengths }),
        (0..40usize).prop_map(Answer::Ledger),
    ]
}

fn request(number: usize, length: u64, flags: CmdFlags) -> RequestHeader {
    let (cookie, offset) = (number as u64, 100 * number as u64);
    let length = u32::try_from(length).unwrap();
    RequestHeader { flags, command: Command::Read, cookie, offset, length }
}

/// What lies at an offset.
fn byte(at: u64) -> u8 {
    (at % 251 + 1) as u8
}

fn fill(at: u64, run: Run) -> Vec<u8> {
    (at..at + run.bytes).map(|at| if run.is_present { byte(at) } else { 0 }).collect()
}

fn descriptors(lengths: &[u32]) -> Vec<Descriptor> {
    lengths.iter().map(|length| Descriptor { length: *length, flags: StateFlags::HOLE }).collect()
}

fn entries(count: usize) -> Vec<LedgerEntry> {
    (0..count as u64)
        .map(|n| LedgerEntry {
            from: n,
            to: n + 1,
            number: n,
            targets: 3,
            landed: n == 1,
            undo: n == 2,
            stale: n == 3,
        })
        .collect()
}

/// Puts an answer into the outbox; `made` counts payloads.
fn put(outbox: &mut Outbox<Payload>, number: usize, answer: &Answer, made: &mut usize) {
    let cookie = number as u64;
    let mut next = |bytes: Vec<u8>| {
        *made += 1;
        (*made - 1, bytes)
    };
    match answer {
        Answer::Done => outbox.done(cookie),
        Answer::DoneSimply => outbox.done_simply(cookie),
        Answer::Error(message) => outbox.error(cookie, Errno::Io, message),
        Answer::Data(length) => {
            let request = request(number, u64::from(*length), CmdFlags::EMPTY);
            let run = Run { bytes: (*length).into(), is_present: true };
            outbox.data(&request, next(fill(request.offset, run)));
        }
        Answer::Read { df, runs } => {
            let flags = if *df { CmdFlags::DF } else { CmdFlags::EMPTY };
            let request = request(number, runs.iter().map(|run| run.bytes).sum(), flags);
            outbox.read(&request, runs, HOLE_BYTES_MIN, |at, run| next(fill(at, run)));
        }
        Answer::Status { one, lengths } => {
            let flags = if *one { CmdFlags::REQ_ONE } else { CmdFlags::EMPTY };
            outbox.status(&request(number, 1, flags), true, 5, &descriptors(lengths));
        }
        Answer::Ledger(count) => outbox.ledger(&request(number, 1, CmdFlags::EMPTY), 9, &entries(*count)),
    }
}

/// Takes the first `bytes` of what waits, as a socket would.
fn take(outbox: &mut Outbox<Payload>, bytes: usize, wire: &mut Vec<u8>, finished: &mut Vec<usize>) {
    let (mut left, before) = (bytes, wire.len());
    let mut last_was_head = false;
    for piece in outbox.pieces() {
        assert!(piece.bytes() > 0);
        let all = match &piece {
            Piece::Head(head) => *head,
            Piece::Payload { payload, at, bytes } => {
                let at = *at as usize;
                assert_eq!(at + *bytes as usize, payload.1.len());
                &payload.1[at..]
            }
        };
        let is_head = matches!(piece, Piece::Head(_));
        assert!(!(is_head && last_was_head), "heads that follow each other are one piece");
        last_was_head = is_head;
        wire.extend_from_slice(&all[..left.min(all.len())]);
        left -= left.min(all.len());
    }
    let (len, waited) = (outbox.len(), outbox.bytes());
    let gone = outbox.sent((wire.len() - before) as u64, |payload| finished.push(payload.0));
    outbox.check_invariants();
    assert_eq!((outbox.len(), outbox.bytes()), (len - gone, waited - (wire.len() - before) as u64));
}

/// What a client makes of all of it: for each answer what its chunks say.
fn check(structured: bool, answers: &[Answer], mut wire: &[u8]) {
    for (number, answer) in answers.iter().enumerate() {
        let cookie = number as u64;
        let mut head = |expected: &[u8]| {
            let (got, rest) = wire.split_at(expected.len());
            assert_eq!(got, expected, "{answer:?}");
            wire = rest;
        };
        let mut bytes = Vec::new();
        match answer {
            Answer::Done if structured => head(&reply::none_done(cookie)),
            Answer::Done | Answer::DoneSimply => head(&reply::simple(cookie, None)),
            Answer::Error(message) if structured => {
                reply::error(cookie, true, Errno::Io, message, &mut bytes);
                head(&bytes);
            }
            Answer::Error(_) => head(&reply::simple(cookie, Some(Errno::Io))),
            Answer::Data(length) => {
                let run = Run { bytes: (*length).into(), is_present: true };
                wire = whole(structured, &request(number, run.bytes, CmdFlags::EMPTY), &[run], wire);
            }
            Answer::Read { df, runs } => {
                let request = request(number, runs.iter().map(|run| run.bytes).sum(), CmdFlags::EMPTY);
                let named = |run: &Run| !run.is_present && (run.bytes >= HOLE_BYTES_MIN || runs.len() == 1);
                wire = if structured && !df && runs.iter().any(named) {
                    chunks(&request, runs, wire)
                } else {
                    whole(structured, &request, runs, wire)
                };
            }
            Answer::Status { one, lengths } => {
                let lengths = if *one { &lengths[..1] } else { lengths };
                reply::block_status(cookie, true, 5, &descriptors(lengths), &mut bytes);
                head(&bytes);
            }
            Answer::Ledger(count) => {
                reply::ledger(cookie, false, 9, &entries(*count), &mut bytes);
                head(&bytes);
            }
        }
    }
    assert_eq!(wire, [0u8; 0]);
}

/// An answer to a READ in one; what follows it.
fn whole<'a>(structured: bool, request: &RequestHeader, runs: &[Run], wire: &'a [u8]) -> &'a [u8] {
    let mut expected = match structured {
        true => reply::offset_data(request.cookie, true, request.offset, request.length).to_vec(),
        false => reply::simple(request.cookie, None).to_vec(),
    };
    expected.extend(image(request.offset, runs));
    let (got, rest) = wire.split_at(expected.len());
    assert_eq!(got, expected);
    rest
}

/// An answer to a READ in chunks, of which a client needs only to know what they say; what follows it.
fn chunks<'a>(request: &RequestHeader, runs: &[Run], mut wire: &'a [u8]) -> &'a [u8] {
    let (mut got, mut is_done) = (Vec::new(), false);
    while !is_done {
        let (chunk, used) = Reply::decode(wire).unwrap().unwrap();
        wire = &wire[used..];
        let here = request.offset + got.len() as u64;
        let (cookie, done, offset) = match chunk {
            Reply::OffsetData { cookie, done, offset, data_bytes } => {
                let (data, rest) = wire.split_at(data_bytes as usize);
                got.extend_from_slice(data);
                wire = rest;
                (cookie, done, offset)
            }
            Reply::OffsetHole { cookie, done, offset, hole_bytes } => {
                assert!(u64::from(hole_bytes) >= HOLE_BYTES_MIN || hole_bytes == request.length);
                got.resize(got.len() + hole_bytes as usize, 0);
                (cookie, done, offset)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((cookie, offset), (request.cookie, here));
        assert_eq!(done, got.len() == request.length as usize, "the last chunk says so, and no other");
        is_done = done;
    }
    assert_eq!(got, image(request.offset, runs));
    wire
}

fn image(offset: u64, runs: &[Run]) -> Vec<u8> {
    let mut image = Vec::new();
    for run in runs {
        image.extend(fill(offset + image.len() as u64, *run));
    }
    image
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_same_bytes_leave_in_whatever_pieces(
        answers in prop::collection::vec(answer(), 1..120),
        cuts in prop::collection::vec(0..3000usize, 1..40),
        structured: bool,
    ) {
        let mut outbox = Outbox::new(structured);
        let (mut wire, mut finished, mut made) = (Vec::new(), Vec::new(), 0);
        let mut cuts = cuts.iter().cycle();
        for (number, answer) in answers.iter().enumerate() {
            put(&mut outbox, number, answer, &mut made);
            outbox.check_invariants();
            if number % 3 == 0 {
                take(&mut outbox, *cuts.next().unwrap(), &mut wire, &mut finished);
            }
        }
        while !outbox.is_empty() {
            take(&mut outbox, 1 + cuts.next().unwrap(), &mut wire, &mut finished);
        }
        prop_assert_eq!(finished, (0..made).collect::<Vec<_>>());
        check(structured, &answers, &wire);

        let (mut at_once, mut finished, mut made) = (Vec::new(), Vec::new(), 0);
        for (number, answer) in answers.iter().enumerate() {
            put(&mut outbox, number, answer, &mut made);
        }
        take(&mut outbox, usize::MAX, &mut at_once, &mut finished);
        prop_assert_eq!(finished, (0..made).collect::<Vec<_>>());
        prop_assert!(at_once == wire && outbox.is_empty());
    }
}
