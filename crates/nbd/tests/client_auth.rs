//! Nonces and authentication tags of blocks, as a client sends and takes them.

use cheetah_nbd::client::{Answer, Reply, Request, Take, Transmission};
use cheetah_nbd::limits::AUTH_BYTES;
use cheetah_nbd::{
    CmdFlags, Command, ExportInfo, Negotiated, RequestHeader, TransmissionFlags, Violation, seal,
};

/// What one tag is of here.
const BLOCK: u32 = 16;

fn client(auth: Option<u32>) -> Transmission<usize> {
    let session = Negotiated {
        export: String::new(),
        info: ExportInfo::new(1 << 20, TransmissionFlags::EMPTY),
        structured_replies: true,
        base_allocation: Some(1),
        dirty: Some(2),
        context: Some(3),
        auth,
    };
    Transmission::new(&session, true, 1 << 20, 100).with_block(BLOCK)
}

fn authenticating() -> Transmission<usize> {
    client(Some(4))
}

fn request(cookie: u64, command: Command, offset: u64, length: u32) -> Request<usize> {
    let (flags, body) = (CmdFlags::EMPTY, cookie as usize);
    let (digest, auth, context) = (None, Vec::new(), None);
    Request { cookie, command, flags, offset, length, mark: None, digest, auth, context, body }
}

/// All that leaves; a payload is the number of its request.
fn send(client: &mut Transmission<usize>) -> Vec<u8> {
    client.make_requests(1024);
    let mut bytes = Vec::new();
    for part in client.unsent() {
        bytes.extend_from_slice(part.auth);
        bytes.extend_from_slice(part.head);
        let number = part.request.body as u8;
        bytes.extend(std::iter::repeat_n(number, part.request.payload_bytes() as usize));
    }
    client.sent(bytes.len());
    bytes
}

fn headers(mut bytes: &[u8]) -> Vec<RequestHeader> {
    let mut headers = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<{ RequestHeader::BYTES }>() {
        let header = RequestHeader::decode_in(header, true).unwrap();
        bytes = &rest[header.payload_bytes() as usize..];
        headers.push(header);
    }
    assert!(bytes.is_empty());
    headers
}

#[derive(Default)]
struct Taken(Vec<Answer<usize>>);

impl Take<usize> for Taken {
    fn data(&mut self, _: &usize, _: u32, _: &[u8]) {}
    fn hole(&mut self, _: &usize, _: u32, _: u32) {}
    fn answer(&mut self, answer: Answer<usize>) {
        self.0.push(answer);
    }
}

fn bytes_of(replies: &[Reply]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for reply in replies {
        let mut head = Vec::new();
        reply.encode(&mut head);
        seal(&mut head);
        bytes.extend(head);
    }
    bytes
}

#[test]
fn what_leaves_as_one_request_has_the_tags_of_all_its_blocks_before_it() {
    let mut client = authenticating();
    let write = |number: u64, offset| Request {
        auth: vec![number as u8; AUTH_BYTES],
        ..request(number, Command::Write, offset, BLOCK)
    };
    client.queue(write(7, 16));
    client.queue(write(8, 32));
    let sent = send(&mut client);
    assert!(client.is_sent());
    let headers = headers(&sent);
    let said: Vec<_> = headers.iter().map(|header| (header.command, header.length)).collect();
    assert_eq!(said, [(Command::Auth, 2 * AUTH_BYTES as u32), (Command::Write, 2 * BLOCK)]);
    let tags = [[7; AUTH_BYTES], [8; AUTH_BYTES]].concat();
    assert_eq!(sent[RequestHeader::BYTES..][..tags.len()], tags);
}

#[test]
fn a_read_is_answered_with_the_tags_of_its_blocks_or_the_connection_ends() {
    let auth = |blocks: u8| Reply::Auth {
        cookie: 0,
        done: false,
        all: (0..blocks).map(|nth| [nth; AUTH_BYTES]).collect(),
    };
    let sums = Reply::Contexts { cookie: 0, done: false, sums: vec![1, 2] };
    let hole = Reply::OffsetHole { cookie: 0, done: true, offset: 16, hole_bytes: 32 };
    let (missing, unasked) = (Err(Violation::AuthMissing), Err(Violation::AuthUnasked));
    for (mut client, replies, outcome) in [
        (authenticating(), vec![auth(2), sums.clone(), hole.clone()], Ok(())),
        (authenticating(), vec![sums, hole], missing),
        (authenticating(), vec![auth(1)], unasked),
        (authenticating(), vec![auth(2), auth(2)], unasked),
        (client(None), vec![auth(2)], unasked),
    ] {
        client.queue(request(0, Command::Read, 16, 32));
        send(&mut client);
        let mut taken = Taken::default();
        assert_eq!(client.received(&bytes_of(&replies), &mut taken).map(drop), outcome);
        if outcome.is_ok() {
            assert_eq!(taken.0[0].auth, [[0; AUTH_BYTES], [1; AUTH_BYTES]]);
        }
    }
}
