//! STARTTLS at both ends: nothing is said before TLS is spoken, and nothing said in the clear counts.

use cheetah_nbd::client::{self, Error, Want};
use cheetah_nbd::proto::{IHAVEOPT, OPTION_REPLY_MAGIC, opt, rep};
use cheetah_nbd::server::{self, CloseReason};
use cheetah_nbd::{ExportInfo, ListEntry, TransmissionFlags};

fn want() -> Want {
    Want {
        export: "disk".into(),
        structured: true,
        base_allocation: true,
        dirty: false,
        context: false,
        auth: false,
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&IHAVEOPT.to_be_bytes()[..], &option.to_be_bytes(), &length, data].concat()
}

/// The codes of the option replies in `bytes`.
fn codes(mut bytes: &[u8]) -> Vec<u32> {
    let mut codes = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(20) {
        assert_eq!(head[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        codes.push(field(12));
        bytes = &rest[field(16) as usize..];
    }
    codes
}

/// A server past the greeting.
fn server() -> server::Handshake {
    let mut server = server::Handshake::new().behind_tls();
    server.take_output(&mut Vec::new());
    assert_eq!(server.input(&3u32.to_be_bytes()), Ok(4));
    server
}

fn says(server: &mut server::Handshake, bytes: &[u8]) -> Vec<u32> {
    assert_eq!(server.input(bytes), Ok(bytes.len()));
    let mut output = Vec::new();
    server.take_output(&mut output);
    server.check_invariants();
    codes(&output)
}

#[test]
fn both_ends_speak_tls_before_an_export_is_named() {
    let (mut client, mut server) =
        (client::Handshake::new(want()).over_tls(), server::Handshake::new().behind_tls());
    let (mut started, mut sent, mut clear) = (0, Vec::new(), Vec::new());
    for _ in 0..20 {
        server.take_output(&mut sent);
        let used = client.input(&sent).unwrap();
        sent.drain(..used);
        let mut asked = Vec::new();
        client.take_output(&mut asked);
        if started == 0 {
            clear.extend_from_slice(&asked);
        }
        assert_eq!(server.input(&asked), Ok(asked.len()));
        if let server::Step::Lookup { .. } = server.poll() {
            server.answer_lookup(Ok(ExportInfo::new(512, TransmissionFlags::EMPTY)));
        }
        if client.poll() == client::Step::StartTls {
            assert_eq!(server.poll(), server::Step::StartTls);
            client.tls_started();
            server.tls_started();
            started += 1;
        }
    }
    let (client::Step::Ready(at_client), server::Step::Ready(at_server)) = (client.poll(), server.poll())
    else {
        panic!("{:?}, {:?}", client.poll(), server.poll());
    };
    assert_eq!((started, &at_client), (1, &at_server));
    assert!(at_client.structured_replies && at_client.base_allocation.is_some());
    assert!(!clear.windows(4).any(|bytes| bytes == b"disk"), "its name went in the clear");
}

#[test]
fn a_server_behind_tls_says_nothing_in_the_clear() {
    for refused in [opt::LIST, opt::STRUCTURED_REPLY, opt::GO, opt::INFO, opt::SET_META_CONTEXT, 99] {
        let mut server = server();
        assert_eq!(says(&mut server, &option(refused, b"")), [rep::ERR_TLS_REQD], "{refused}");
        assert_eq!(says(&mut server, &option(refused, &[0; 70_000])), [rep::ERR_TLS_REQD], "{refused}");
        assert_eq!(server.poll(), server::Step::NeedInput);
    }
    let mut named = server();
    assert_eq!(says(&mut named, &option(opt::EXPORT_NAME, b"disk")), []);
    assert_eq!(named.poll(), server::Step::Close(CloseReason::Refused));
    let mut leaving = server();
    assert_eq!(says(&mut leaving, &option(opt::ABORT, b"")), [rep::ACK]);
}

#[test]
fn what_comes_in_the_clear_behind_starttls_is_not_taken() {
    let mut server = server();
    let both = [option(opt::STARTTLS, b""), option(opt::LIST, b"")].concat();
    assert_eq!(server.input(&both), Ok(16), "the rest is the driver's to refuse");
    assert_eq!(server.poll(), server::Step::StartTls);
    server.tls_started();
    server.take_output(&mut Vec::new());
    assert_eq!(says(&mut server, &option(opt::STARTTLS, b"")), [rep::ERR_INVALID]);
    assert_eq!(says(&mut server, &option(opt::SET_META_CONTEXT, b"")), [rep::ERR_INVALID]);
    says(&mut server, &option(opt::LIST, b""));
    assert_eq!(server.poll(), server::Step::List);
    server.answer_list(Ok(&[ListEntry { name: "disk".into(), description: String::new() }]));
}

#[test]
fn starttls_takes_no_data_and_a_server_without_it_says_so() {
    assert_eq!(says(&mut server(), &option(opt::STARTTLS, b"x")), [rep::ERR_INVALID]);
    let mut plain = server::Handshake::new();
    plain.take_output(&mut Vec::new());
    assert_eq!(says(&mut plain, &3u32.to_be_bytes()), []);
    assert_eq!(says(&mut plain, &option(opt::STARTTLS, b"")), [rep::ERR_UNSUP]);
}

#[test]
fn a_client_that_wants_tls_goes_on_with_nothing_else() {
    let greeting = |flags: u16| [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat();
    for refusal in [rep::ERR_UNSUP, rep::ERR_POLICY] {
        let mut client = client::Handshake::new(want()).over_tls();
        client.input(&greeting(3)).unwrap();
        let header = [opt::STARTTLS, refusal, 0].map(u32::to_be_bytes);
        client.input(&[&OPTION_REPLY_MAGIC.to_be_bytes()[..], header.as_flattened()].concat()).unwrap();
        assert_eq!(client.poll(), client::Step::Failed(Error::NoTls));
        client.check_invariants();
    }
    let mut old = client::Handshake::new(want()).over_tls();
    old.input(&greeting(0)).unwrap();
    assert_eq!(old.poll(), client::Step::Failed(Error::NoTls));
}
