//! A client's transmission against a server that answers in any order, with chunks of any size, over a wire
//! that cuts anywhere.

use cheetah_nbd::client::{Answer, Reply, Request, Take, Transmission};
use cheetah_nbd::{
    CmdFlags, Command, Descriptor, Digest, Errno, ExportInfo, LedgerEntry, Mark, Negotiated, RequestHeader,
    StateFlags, TransmissionFlags, Violation, seal,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const EXPORT_BYTES: usize = 4096;
/// What becomes one request stays inside of such a run.
const WITHIN: u64 = 1024;
const LARGE_BYTES: u32 = 64;
const CONTEXT: u32 = 3;
const HOLES: u32 = 1;
const DIRTY: u32 = 2;

fn session() -> Negotiated {
    Negotiated {
        export: String::new(),
        info: ExportInfo::new(EXPORT_BYTES as u64, TransmissionFlags::EMPTY),
        structured_replies: true,
        base_allocation: Some(HOLES),
        dirty: Some(DIRTY),
        context: None,
        auth: None,
    }
}

fn request(cookie: u64, command: Command, offset: u64, length: u32) -> Request<usize> {
    let context = (command == Command::BlockStatus).then_some(HOLES);
    Request { context, ..Request::plain(cookie, command, offset, length, cookie as usize) }
}

/// What came, by the number of its request.
#[derive(Debug, Default)]
struct Taken {
    reads: Vec<Vec<u8>>,
    answers: Vec<Answer<usize>>,
}

impl Taken {
    fn room(&mut self, nth: usize, end: usize) -> &mut Vec<u8> {
        if self.reads.len() <= nth {
            self.reads.resize(nth + 1, Vec::new());
        }
        let room = &mut self.reads[nth];
        room.resize(room.len().max(end), 0xee);
        room
    }

    fn numbers(&self) -> Vec<usize> {
        self.answers.iter().map(|answer| answer.body).collect()
    }
}

impl Take<usize> for Taken {
    fn data(&mut self, body: &usize, at: u32, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        self.room(*body, end)[at..end].copy_from_slice(bytes);
    }

    fn hole(&mut self, body: &usize, at: u32, end: u32) {
        self.room(*body, end as usize)[at as usize..end as usize].fill(0);
    }

    fn answer(&mut self, answer: Answer<usize>) {
        self.answers.push(answer);
    }
}

/// All that leaves; a payload is the number of its request.
fn send(client: &mut Transmission<usize>, merges_bytes_max: u32) -> Vec<u8> {
    client.make_requests(merges_bytes_max);
    let (mut bytes, skip) = (Vec::new(), client.front_sent());
    for part in client.unsent() {
        bytes.extend_from_slice(part.auth);
        bytes.extend_from_slice(part.head);
        let number = part.request.body as u8;
        bytes.extend(std::iter::repeat_n(number, part.request.payload_bytes() as usize));
    }
    bytes.split_off(skip)
}

fn headers(bytes: &[u8]) -> Vec<RequestHeader> {
    headers_in(bytes, false)
}

fn headers_in(mut bytes: &[u8], is_sealed: bool) -> Vec<RequestHeader> {
    let mut headers = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<{ RequestHeader::BYTES }>() {
        let header = RequestHeader::decode_in(header, is_sealed).unwrap();
        bytes = &rest[header.payload_bytes() as usize..];
        headers.push(header);
    }
    assert!(bytes.is_empty());
    headers
}

fn bytes_of(replies: &[Reply]) -> Vec<u8> {
    bytes_in(replies, false)
}

fn bytes_in(replies: &[Reply], is_sealed: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for reply in replies {
        let from = bytes.len();
        reply.encode(&mut bytes);
        if is_sealed {
            seal(&mut bytes[from..]);
        }
    }
    bytes
}

fn done(cookie: u64) -> Reply {
    Reply::None { cookie }
}

fn client() -> Transmission<usize> {
    Transmission::new(&session(), true, WITHIN, LARGE_BYTES)
}

/// So many writes of 8 bytes one behind the other.
fn with_writes(count: u64) -> Transmission<usize> {
    let mut client = client();
    (0..count).for_each(|nth| client.queue(request(nth, Command::Write, nth * 8, 8)));
    client
}

#[test]
fn writes_that_go_on_where_the_last_one_ends_are_one_request_and_have_one_answer() {
    let mut client = with_writes(4);
    client.queue(request(4, Command::Write, 40, 8));
    client.queue(request(5, Command::Read, 48, 8));
    let bytes = send(&mut client, 24);
    let lengths: Vec<(u64, u64, u32)> =
        headers(&bytes).iter().map(|header| (header.cookie, header.offset, header.length)).collect();
    assert_eq!(lengths, [(0, 0, 24), (3, 24, 8), (4, 40, 8), (5, 48, 8)], "24 bytes at most, and no gaps");
    assert_eq!(bytes[28..52], [[0; 8], [1; 8], [2; 8]].concat());
    client.sent(bytes.len());
    assert!(client.is_sent() && !client.is_idle());
    let mut taken = Taken::default();
    let answers = bytes_of(&[done(3), done(0)]);
    assert_eq!(client.received(&answers, &mut taken), Ok(answers.len()));
    assert_eq!(taken.numbers(), [3, 0, 1, 2]);
    let mut client = with_writes(2);
    let bytes = send(&mut client, 24);
    client.sent(bytes.len());
    let second = client.received(&bytes_of(&[done(1)]), &mut taken);
    assert_eq!(second, Err(Violation::Unasked { cookie: 1 }), "it is no request of its own");
}

#[test]
fn what_lies_in_another_run_or_is_marked_otherwise_is_a_request_of_its_own() {
    let mark = |number| Some(Mark { number, targets: 3, complete: number - 1, keep: true });
    let mut client = client();
    client.queue(Request { mark: mark(1), ..request(0, Command::Write, WITHIN - 16, 8) });
    client.queue(Request { mark: mark(1), ..request(1, Command::Write, WITHIN - 8, 8) });
    client.queue(Request { mark: mark(1), ..request(2, Command::Write, WITHIN, 8) });
    client.queue(Request { mark: mark(2), ..request(3, Command::Write, WITHIN + 8, 8) });
    client.queue(Request {
        flags: CmdFlags::FUA,
        mark: mark(2),
        ..request(4, Command::Write, WITHIN + 16, 8)
    });
    let bytes = send(&mut client, u32::MAX);
    let sent: Vec<(Command, u64)> =
        headers(&bytes).iter().map(|header| (header.command, header.cookie)).collect();
    let (mark, write) = (Command::Mark, Command::Write);
    assert_eq!(sent, [(mark, 1), (write, 0), (write, 2), (mark, 2), (write, 3), (write, 4)]);
}

#[test]
fn one_that_fails_fails_for_all_of_its_parts_and_leaves_the_export_with_any() {
    let mut client = client();
    let end = EXPORT_BYTES as u64;
    client.queue(request(0, Command::Write, end - 8, 8));
    client.queue(request(1, Command::Write, end, 8));
    client.queue(request(2, Command::Write, 0, 8));
    let mut whole = Transmission::new(&session(), false, u64::MAX, LARGE_BYTES);
    for nth in 0..2 {
        whole.queue(request(nth, Command::Write, end - 8 + nth * 8, 8));
    }
    for (client, beyond) in [(&mut client, [false, true]), (&mut whole, [true, true])] {
        let bytes = send(client, u32::MAX);
        client.sent(bytes.len());
        let refuse =
            |cookie| Reply::Error { cookie, done: true, errno: Errno::NoSpc, message: String::new() };
        let mut taken = Taken::default();
        let headers = headers(&bytes).into_iter().filter(|header| header.offset > 0);
        let refusals: Vec<Reply> = headers.map(|header| refuse(header.cookie)).collect();
        client.received(&bytes_of(&refusals), &mut taken).unwrap();
        let said: Vec<_> = taken.answers.iter().map(|answer| (answer.error, answer.beyond)).collect();
        assert_eq!(said, beyond.map(|beyond| (Some(Errno::NoSpc), beyond)));
    }
}

#[test]
fn nothing_is_answered_before_it_is_sent_in_full() {
    let mut client = with_writes(2);
    let bytes = send(&mut client, 16);
    client.sent(bytes.len() - 1);
    let early = client.received(&bytes_of(&[done(0)]), &mut Taken::default());
    assert_eq!(early, Err(Violation::AnsweredEarly), "its second part is not out");
    let mut client = with_writes(2);
    let bytes = send(&mut client, 16);
    client.sent(bytes.len() - 1);
    assert_eq!(send(&mut client, 16), [1], "what is left is sent");
    client.sent(1);
    assert!(client.received(&bytes_of(&[done(0)]), &mut Taken::default()).is_ok() && client.is_idle());
}

#[test]
fn what_a_server_may_not_say_ends_the_connection() {
    let read = |replies: &[Reply], data: usize| {
        let mut client = client();
        client.queue(request(7, Command::Read, 100, 50));
        let bytes = send(&mut client, 0);
        client.sent(bytes.len());
        let mut input = bytes_of(replies);
        input.extend(vec![1; data]);
        client.received(&input, &mut Taken::default())
    };
    let data = |offset, data_bytes, done| Reply::OffsetData { cookie: 7, done, offset, data_bytes };
    let hole = |offset, hole_bytes, done| Reply::OffsetHole { cookie: 7, done, offset, hole_bytes };
    assert_eq!(read(&[data(100, 50, true)], 50), Ok(78));
    assert_eq!(read(&[hole(100, 50, false), done(7)], 0), Ok(52));
    assert_eq!(read(&[data(99, 50, true)], 50), Err(Violation::DataOutside { offset: 99, bytes: 50 }));
    assert_eq!(read(&[hole(140, 11, true)], 0), Err(Violation::DataOutside { offset: 140, bytes: 11 }));
    assert_eq!(read(&[hole(100, 50, false), hole(100, 1, true)], 0), Err(Violation::DataUnasked));
    assert_eq!(read(&[hole(100, 49, true)], 0), Err(Violation::ReadInPart));
    assert_eq!(read(&[done(7)], 0), Err(Violation::ReadInPart));
    let failed = Reply::Error { cookie: 7, done: true, errno: Errno::Io, message: String::new() };
    assert_eq!(read(&[hole(100, 49, false), failed], 0), Ok(32 + 26), "one that failed has no more to come");
    assert_eq!(read(&[done(8)], 0), Err(Violation::Unasked { cookie: 8 }));
    assert_eq!(read(&[hole(100, 50, true), done(7)], 0), Err(Violation::Unasked { cookie: 7 }));
    let run = Descriptor { length: 50, flags: StateFlags::HOLE };
    let status = Reply::BlockStatus { cookie: 7, done: true, context: HOLES, descriptors: vec![run] };
    assert_eq!(read(&[status], 0), Err(Violation::StatusUnasked));
    let ledger = Reply::Ledger { cookie: 7, done: false, complete: 1, entries: vec![] };
    assert_eq!(read(&[ledger], 0), Err(Violation::LedgerUnasked));
    let mut writer = with_writes(1);
    let bytes = send(&mut writer, 0);
    writer.sent(bytes.len());
    let data = bytes_of(&[Reply::OffsetData { cookie: 0, done: true, offset: 0, data_bytes: 8 }]);
    assert_eq!(writer.received(&data, &mut Taken::default()), Err(Violation::DataUnasked), "to a write");
}

#[test]
fn of_two_contexts_the_one_that_was_asked_for_is_told() {
    let entry =
        LedgerEntry { from: 0, to: 8, number: 3, targets: 1, landed: true, undo: false, stale: false };
    let run = |length, flags| Descriptor { length, flags };
    let told = |context| {
        let mut client = client();
        client.queue(Request { context: Some(context), ..request(1, Command::BlockStatus, 0, 100) });
        let bytes = send(&mut client, 0);
        client.sent(bytes.len());
        let status = |context, done, runs: &[Descriptor]| Reply::BlockStatus {
            cookie: 1,
            done,
            context,
            descriptors: runs.to_vec(),
        };
        let mut taken = Taken::default();
        let replies = [
            status(HOLES, false, &[run(100, StateFlags::HOLE)]),
            Reply::Ledger { cookie: 1, done: false, complete: 2, entries: vec![entry] },
            status(DIRTY, true, &[run(8, StateFlags::DIRTY), run(92, StateFlags::EMPTY)]),
        ];
        client.received(&bytes_of(&replies), &mut taken).unwrap();
        let answer = taken.answers.pop().unwrap();
        (answer.status, answer.ledger)
    };
    assert_eq!(told(HOLES), (vec![run(100, StateFlags::HOLE)], None));
    let dirty = vec![run(8, StateFlags::DIRTY), run(92, StateFlags::EMPTY)];
    assert_eq!(told(DIRTY), (dirty, Some((2, vec![entry]))));
}

#[test]
fn what_is_abandoned_is_passed_over() {
    let mut client = client();
    client.queue(request(0, Command::Read, 0, 100));
    client.queue(request(1, Command::Read, 100, 4));
    let bytes = send(&mut client, 0);
    client.sent(bytes.len());
    assert_eq!(client.abandon(0), Some(&mut 0));
    assert_eq!(client.abandon(9), None);
    let mut taken = Taken::default();
    let mut input = bytes_of(&[Reply::OffsetData { cookie: 0, done: true, offset: 0, data_bytes: 100 }]);
    client.received(&input, &mut taken).unwrap();
    assert!(client.expects_large() && client.incoming().is_none(), "there is no place for it any more");
    input = vec![5; 100];
    input.extend(bytes_of(&[Reply::OffsetHole { cookie: 1, done: true, offset: 100, hole_bytes: 4 }]));
    client.received(&input, &mut taken).unwrap();
    assert_eq!((taken.answers[0].abandoned, taken.answers[1].abandoned), (true, false));
    assert!(taken.reads[0].is_empty() && taken.reads[1] == [0; 4]);
}

#[test]
fn at_the_end_it_tells_what_was_asked_and_what_only_queued() {
    let mut client = with_writes(3);
    let bytes = send(&mut client, 16);
    client.sent(bytes.len() - 3);
    client.queue(request(3, Command::Write, 100, 8));
    let left: Vec<(usize, bool)> = client.end().map(|(request, asked)| (request.body, asked)).collect();
    assert_eq!(left, [(0, true), (1, true), (2, true), (3, false)]);
    assert!(client.is_idle() && client.is_sent() && client.incoming().is_none());
}

#[derive(Clone, Debug)]
struct Op {
    writes: bool,
    /// Behind the last one, else here.
    goes_on: bool,
    offset: usize,
    length: usize,
    /// Sent behind it: all that is queued, merged up to so many bytes.
    flushed: Option<u32>,
    /// How the server answers.
    chunk: usize,
    late: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let place = (0..EXPORT_BYTES - 200, 1..200usize);
    let flushed = proptest::option::of(prop_oneof![Just(0), 1..400u32, Just(u32::MAX)]);
    (any::<bool>(), any::<bool>(), place, flushed, 1..250usize, any::<bool>()).prop_map(
        |(writes, goes_on, (offset, length), flushed, chunk, late)| Op {
            writes,
            goes_on,
            offset,
            length,
            flushed,
            chunk,
            late,
        },
    )
}

/// The server: carries out what is whole of its input, and answers.
struct Server {
    memory: Vec<u8>,
    input: Vec<u8>,
    out: Vec<u8>,
    late: VecDeque<Vec<u8>>,
    ops: Vec<Op>,
}

impl Server {
    fn work(&mut self) {
        loop {
            let Some(header) = self.input.first_chunk::<{ RequestHeader::BYTES }>() else { return };
            let header = RequestHeader::decode(header).unwrap();
            let whole = RequestHeader::BYTES + header.payload_bytes() as usize;
            if self.input.len() < whole {
                return;
            }
            let request: Vec<u8> = self.input.drain(..whole).collect();
            let (at, end) = (header.offset as usize, header.offset as usize + header.length as usize);
            let op = self.ops[header.cookie as usize].clone();
            let mut answer = Vec::new();
            if header.command == Command::Write {
                self.memory[at..end].copy_from_slice(&request[RequestHeader::BYTES..]);
                done(header.cookie).encode(&mut answer);
            } else {
                self.read(header.cookie, at, end, op.chunk, &mut answer);
            }
            match op.late {
                true => self.late.push_back(answer),
                false => self.out.extend(answer),
            }
        }
    }

    /// The last chunk first, and what is zero as a hole.
    fn read(&self, cookie: u64, at: usize, end: usize, chunk: usize, out: &mut Vec<u8>) {
        let starts: Vec<usize> = (at..end).step_by(chunk).collect();
        for start in starts.iter().rev() {
            let bytes = &self.memory[*start..end.min(start + chunk)];
            let (offset, len, done) = (*start as u64, bytes.len() as u32, *start == at);
            if bytes.iter().all(|byte| *byte == 0) {
                Reply::OffsetHole { cookie, done, offset, hole_bytes: len }.encode(out);
            } else {
                Reply::OffsetData { cookie, done, offset, data_bytes: len }.encode(out);
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// What the driver does with what came: some straight to its place, the rest through its buffer.
fn receive(client: &mut Transmission<usize>, taken: &mut Taken, kept: &mut Vec<u8>, mut bytes: &[u8]) {
    if kept.is_empty()
        && let Some(incoming) = client.incoming()
    {
        let direct = bytes.len().min((incoming.end - incoming.at) as usize);
        let (body, at) = (*incoming.body, incoming.at);
        taken.data(&body, at, &bytes[..direct]);
        client.landed(direct as u32);
        bytes = &bytes[direct..];
    }
    kept.extend_from_slice(bytes);
    let used = client.received(kept, taken).unwrap();
    kept.drain(..used);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_request_has_its_answer_however_the_wire_cuts(
        ops in proptest::collection::vec(op(), 1..60),
        cuts in proptest::collection::vec(1..300usize, 1..20),
    ) {
        let mut client = client();
        let (memory, late) = (vec![0; EXPORT_BYTES], VecDeque::new());
        let mut server =
            Server { memory, input: Vec::new(), out: Vec::new(), late, ops: ops.clone() };
        let mut model = vec![0u8; EXPORT_BYTES];
        let (mut wanted, mut taken, mut kept) = (Vec::new(), Taken::default(), Vec::new());
        let (mut cuts, mut end) = (cuts.into_iter().cycle(), 0);
        for (nth, op) in ops.iter().enumerate() {
            let at = if op.goes_on && end + op.length <= EXPORT_BYTES { end } else { op.offset };
            end = at + op.length;
            let command = if op.writes { Command::Write } else { Command::Read };
            client.queue(request(nth as u64, command, at as u64, op.length as u32));
            match op.writes {
                true => model[at..end].fill(nth as u8),
                false => wanted.push((nth, model[at..end].to_vec())),
            }
            let is_last = nth + 1 == ops.len();
            let Some(merges_bytes_max) = op.flushed.or(is_last.then_some(100)) else { continue };
            loop {
                let bytes = send(&mut client, merges_bytes_max);
                if bytes.is_empty() {
                    break;
                }
                let taken = bytes.len().min(cuts.next().unwrap());
                server.input.extend_from_slice(&bytes[..taken]);
                client.sent(taken);
                server.work();
            }
            if nth + 1 == ops.len() || op.late {
                let late: Vec<u8> = server.late.drain(..).rev().flatten().collect();
                server.out.extend(late);
            }
            let out = std::mem::take(&mut server.out);
            let mut rest = &out[..];
            while !rest.is_empty() {
                let (bytes, behind) = rest.split_at(rest.len().min(cuts.next().unwrap()));
                receive(&mut client, &mut taken, &mut kept, bytes);
                rest = behind;
            }
        }
        prop_assert!(client.is_idle() && client.is_sent() && kept.is_empty());
        prop_assert_eq!(server.memory, model);
        let mut answered = taken.numbers();
        answered.sort_unstable();
        prop_assert_eq!(answered, (0..ops.len()).collect::<Vec<_>>());
        for (nth, bytes) in wanted {
            prop_assert_eq!(&taken.reads[nth], &bytes, "read {}", nth);
        }
    }
}

/// Where checksums are agreed on, of blocks of this size.
const BLOCK: u32 = 16;

fn checking() -> Transmission<usize> {
    let session = Negotiated { context: Some(3), ..session() };
    Transmission::new(&session, true, WITHIN, LARGE_BYTES).with_block(BLOCK)
}

#[test]
fn an_answer_has_the_checksums_of_all_blocks_that_its_request_touches() {
    let mut client = checking();
    client.queue(request(0, Command::Read, 20, 30));
    client.queue(request(1, Command::Write, 16, 16));
    client.queue(request(2, Command::Write, 32, 32));
    client.queue(request(3, Command::Read, 0, 0));
    let sent = send(&mut client, 1024);
    assert_eq!(headers_in(&sent, true).len(), 3, "the writes are one");
    client.sent(sent.len());
    let replies = [
        Reply::Contexts { cookie: 0, done: false, sums: vec![1, 2, 3] },
        Reply::OffsetHole { cookie: 0, done: true, offset: 20, hole_bytes: 30 },
        Reply::Contexts { cookie: 1, done: true, sums: vec![4, 5, 6] },
        done(3),
    ];
    let input = bytes_in(&replies, true);
    let mut taken = Taken::default();
    assert_eq!(client.received(&input, &mut taken), Ok(input.len()));
    let sums: Vec<&[u32]> = taken.answers.iter().map(|answer| &answer.sums[..]).collect();
    assert_eq!(sums, [&[1, 2, 3][..], &[4], &[5, 6], &[]]);
}

#[test]
fn checksums_that_are_missing_too_many_or_unasked_are_a_violation() {
    let contexts = |sums: &[u32]| Reply::Contexts { cookie: 0, done: false, sums: sums.to_vec() };
    let hole = Reply::OffsetHole { cookie: 0, done: true, offset: 16, hole_bytes: 32 };
    let (missing, unasked) = (Err(Violation::ContextsMissing), Err(Violation::ContextsUnasked));
    let refused = Reply::Error { cookie: 0, done: true, errno: Errno::Io, message: String::new() };
    for (nth, (mut client, command, replies, outcome)) in [
        (checking(), Command::Read, vec![contexts(&[1, 2]), hole.clone()], Ok(())),
        (checking(), Command::Read, vec![refused.clone()], Ok(())),
        (checking(), Command::Read, vec![hole], missing),
        (checking(), Command::Write, vec![done(0)], missing),
        (checking(), Command::Write, vec![refused], Ok(())),
        (checking(), Command::Read, vec![contexts(&[1])], unasked),
        (checking(), Command::Read, vec![contexts(&[1, 2, 3])], unasked),
        (checking(), Command::Read, vec![contexts(&[1, 2]), contexts(&[1, 2])], unasked),
        (checking(), Command::Trim, vec![contexts(&[1, 2])], unasked),
        (client(), Command::Read, vec![contexts(&[1, 2])], unasked),
    ]
    .into_iter()
    .enumerate()
    {
        client.queue(request(0, command, 16, 32));
        let sent = send(&mut client, 1024);
        client.sent(sent.len());
        let input = bytes_in(&replies, nth < 9);
        let received = client.received(&input, &mut Taken::default()).map(drop);
        assert_eq!(received, outcome, "{command:?} answered with {replies:?}");
    }
}

#[test]
fn what_comes_before_large_data_is_known() {
    let mut client = checking();
    client.queue(request(0, Command::Read, 0, 256));
    client.queue(request(1, Command::Read, 256, 128));
    let sent = send(&mut client, 1024);
    client.sent(sent.len());
    assert_eq!(client.head_bytes(), 20 + 4 * 16 + 28);
    let sums = Reply::Contexts { cookie: 0, done: false, sums: vec![7; 16] };
    let head = Reply::OffsetData { cookie: 0, done: true, offset: 0, data_bytes: 256 };
    let mut taken = Taken::default();
    let input = bytes_in(&[sums, head], true);
    assert_eq!(client.received(&input[..84], &mut taken), Ok(84));
    assert!(client.expects_large(), "its data is still to come");
    assert_eq!(client.received(&input[84..], &mut taken), Ok(28));
    assert_eq!(client.head_bytes(), 20 + 4 * 8 + 28, "of the next one");
}

#[test]
fn what_leaves_as_one_request_has_one_digest_and_none_goes_to_who_does_not_understand() {
    let digest = |sums| Some(Digest { sums });
    for (context, want) in [
        (Some(CONTEXT), vec![(Command::Digest, 5 ^ 6), (Command::Write, 0)]),
        (None, vec![(Command::Write, 0)]),
    ] {
        let session = Negotiated { context, ..session() };
        let mut client = Transmission::new(&session, true, WITHIN, LARGE_BYTES);
        client.queue(Request { digest: digest(5), ..request(0, Command::Write, 0, 8) });
        client.queue(Request { digest: digest(6), ..request(1, Command::Write, 8, 8) });
        let bytes = send(&mut client, u32::MAX);
        let mut sent = Vec::new();
        for head in bytes.chunks_exact(RequestHeader::BYTES).take(want.len()) {
            let head = RequestHeader::decode_in(head.try_into().unwrap(), context.is_some()).unwrap();
            sent.push((head.command, head.cookie));
        }
        assert_eq!(sent, want);
    }
}
