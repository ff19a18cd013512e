//! What a client makes of each answer a server can give in the handshake, proper and not.

use cheetah_nbd::client::{Error, Handshake, Step, Want};
use cheetah_nbd::limits::{LIST_ENTRIES_MAX, OPTION_REPLY_BYTES_MAX};
use cheetah_nbd::proto::{IHAVEOPT, OLDSTYLE_MAGIC, OPTION_REPLY_MAGIC, opt, rep};
use cheetah_nbd::{ListEntry, Negotiated, TransmissionFlags, Violation};

fn greeting(flags: u16) -> Vec<u8> {
    [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat()
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let header = [option, kind, length].map(u32::to_be_bytes);
    [&OPTION_REPLY_MAGIC.to_be_bytes()[..], header.as_flattened(), data].concat()
}

fn export_info(size: u64, flags: u16) -> Vec<u8> {
    [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn block_info(min: u32, preferred: u32, max: u32) -> Vec<u8> {
    [&[0, 3][..], [min, preferred, max].map(u32::to_be_bytes).as_flattened()].concat()
}

fn plain() -> Handshake {
    Handshake::new(Want {
        export: "disk".into(),
        structured: false,
        base_allocation: false,
        dirty: false,
        context: false,
        auth: false,
    })
}

fn full() -> Handshake {
    Handshake::new(Want {
        export: "disk".into(),
        structured: true,
        base_allocation: true,
        dirty: true,
        context: true,
        auth: false,
    })
}

/// Lets `client` hear everything, and returns the step it ends in.
fn hear(mut client: Handshake, said: &[Vec<u8>]) -> Step {
    let bytes = said.concat();
    let _ = client.input(&bytes);
    client.check_invariants();
    client.poll()
}

fn ready(client: Handshake, said: &[Vec<u8>]) -> Negotiated {
    match hear(client, said) {
        Step::Ready(negotiated) => negotiated,
        other => panic!("{other:?}"),
    }
}

fn violation(client: Handshake, said: &[Vec<u8>]) -> Violation {
    match hear(client, said) {
        Step::Failed(Error::Violation(violation)) => violation,
        other => panic!("{other:?}"),
    }
}

fn go(infos: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut said = vec![greeting(3)];
    said.extend(infos.iter().map(|info| reply(opt::GO, rep::INFO, info)));
    said.push(reply(opt::GO, rep::ACK, b""));
    said
}

#[test]
fn foreign_greetings_are_refused_as_soon_as_they_show() {
    assert_eq!(violation(plain(), &[b"SSH-2.0-".to_vec()]), Violation::NotNbd);
    assert_eq!(violation(plain(), &[b"NBDMAGIC".to_vec(), vec![0; 8]]), Violation::NotNbd);
    let oldstyle = [b"NBDMAGIC".to_vec(), OLDSTYLE_MAGIC.to_be_bytes().to_vec()];
    assert_eq!(violation(plain(), &oldstyle), Violation::Oldstyle);
}

#[test]
fn only_known_flags_are_accepted_from_the_greeting() {
    for (offered, answered) in [(0u16, 0u32), (1, 1), (2, 2), (3, 3), (0xffff, 3)] {
        let mut client = plain();
        client.input(&greeting(offered)).unwrap();
        let mut output = Vec::new();
        client.take_output(&mut output);
        assert_eq!(output[..4], answered.to_be_bytes());
        assert_eq!(output[4..12], IHAVEOPT.to_be_bytes());
        let option = if answered & 1 == 0 { opt::EXPORT_NAME } else { opt::GO };
        assert_eq!(output[12..16], option.to_be_bytes());
    }
}

#[test]
fn a_server_may_refuse_every_extra() {
    for code in [rep::ERR_UNSUP, rep::ERR_POLICY, rep::ERR_INVALID, rep::ERR_PLATFORM, rep::ERR | 999] {
        let end = [reply(opt::GO, rep::INFO, &export_info(99, 1)), reply(opt::GO, rep::ACK, b"")];
        let mut said = vec![greeting(3), reply(opt::STRUCTURED_REPLY, code, b"no")];
        said.extend_from_slice(&end);
        let negotiated = ready(full(), &said);
        assert!(!negotiated.structured_replies && negotiated.base_allocation.is_none());
        assert_eq!((negotiated.info.size, negotiated.info.block_min), (99, 1));

        let mut said = vec![greeting(3), reply(opt::STRUCTURED_REPLY, rep::ACK, b"")];
        said.push(reply(opt::SET_META_CONTEXT, code, b"no"));
        said.extend_from_slice(&end);
        let negotiated = ready(full(), &said);
        assert!(negotiated.structured_replies && negotiated.base_allocation.is_none());
    }
}

#[test]
fn only_the_context_that_was_asked_for_counts() {
    let mut said = vec![greeting(3), reply(opt::STRUCTURED_REPLY, rep::ACK, b"")];
    said.push(reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, b"\0\0\0\x05qemu:x"));
    said.push(reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, b"\0\0\0\x06base:allocation"));
    said.push(reply(opt::SET_META_CONTEXT, rep::ACK, b""));
    said.extend_from_slice(&go(&[export_info(1, 1)])[1..]);
    let negotiated = ready(full(), &said);
    assert_eq!((negotiated.base_allocation, negotiated.dirty), (Some(6), None));
}

#[test]
fn contexts_are_told_apart_by_ids_that_differ() {
    let said = |base: &[u8], dirty: &[u8]| {
        let mut said = vec![greeting(3), reply(opt::STRUCTURED_REPLY, rep::ACK, b"")];
        said.push(reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &[base, b"base:allocation"].concat()));
        said.push(reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &[dirty, b"cheetah:dirty"].concat()));
        said.push(reply(opt::SET_META_CONTEXT, rep::ACK, b""));
        said.extend_from_slice(&go(&[export_info(1, 1)])[1..]);
        said
    };
    let negotiated = ready(full(), &said(&[0, 0, 0, 3], &[0, 0, 1, 0]));
    assert_eq!((negotiated.base_allocation, negotiated.dirty), (Some(3), Some(256)));
    let mut client = full();
    let error = said(&[0; 4], &[0; 4]).iter().find_map(|message| client.input(message).err());
    let malformed =
        Violation::OptionReplyMalformed { option: opt::SET_META_CONTEXT, reply: rep::META_CONTEXT };
    assert_eq!(error, Some(malformed));
}

#[test]
fn flags_mean_nothing_unless_the_server_says_so() {
    assert_eq!(ready(plain(), &go(&[export_info(1, 2)])).info.flags, TransmissionFlags::EMPTY);
    assert_eq!(ready(plain(), &go(&[export_info(1, 3)])).info.flags, TransmissionFlags(3));
}

#[test]
fn block_sizes_are_bounded_and_checked() {
    let export = export_info(1, 1);
    let sizes = |blocks: Vec<u8>| {
        let info = ready(plain(), &go(&[export.clone(), blocks])).info;
        (info.block_min, info.block_preferred, info.block_max)
    };
    assert_eq!(sizes(block_info(512, 4096, u32::MAX)), (512, 4096, 32 << 20));
    assert_eq!(sizes(block_info(1, 64 << 20, u32::MAX)), (1, 32 << 20, 32 << 20));
    for (min, preferred, max) in
        [(0, 1, 1), (3, 4096, 4096), (1 << 17, 1 << 17, 1 << 20), (512, 1, 512), (2, 2, 1)]
    {
        let said = go(&[export.clone(), block_info(min, preferred, max)]);
        assert_eq!(violation(plain(), &said), Violation::BlockSizes { min, preferred, max });
    }
}

#[test]
fn an_export_needs_a_possible_size() {
    assert_eq!(violation(plain(), &go(&[])), Violation::NoExportInfo);
    assert_eq!(violation(plain(), &go(&[export_info(1 << 63, 1)])), Violation::ExportSize(1 << 63));
    let mut by_name = greeting(2);
    by_name.extend_from_slice(&[0xff; 10]);
    assert_eq!(violation(plain(), &[by_name]), Violation::ExportSize(u64::MAX));
}

#[test]
fn malformed_and_misplaced_replies_are_refused() {
    let structured = |kind, data: &[u8]| vec![greeting(3), reply(opt::STRUCTURED_REPLY, kind, data)];
    let malformed = |option, reply| Violation::OptionReplyMalformed { option, reply };
    for (said, option, kind) in [
        (go(&[vec![0]]), opt::GO, rep::INFO),
        (go(&[vec![0, 0, 1]]), opt::GO, rep::INFO),
        (go(&[[export_info(1, 1), vec![0]].concat()]), opt::GO, rep::INFO),
        (go(&[block_info(1, 1, 1)[..12].to_vec()]), opt::GO, rep::INFO),
        (vec![greeting(3), reply(opt::GO, rep::SERVER, b"")], opt::GO, rep::SERVER),
        (vec![greeting(3), reply(opt::GO, rep::ACK, b"x")], opt::GO, rep::ACK),
    ] {
        assert_eq!(violation(plain(), &said), malformed(option, kind));
    }
    assert_eq!(violation(full(), &structured(rep::INFO, b"")), malformed(opt::STRUCTURED_REPLY, rep::INFO));
    assert_eq!(violation(full(), &structured(rep::ACK, b"x")), malformed(opt::STRUCTURED_REPLY, rep::ACK));
    for data in [&b""[..], b"\0\0\0\x01", b"\xff\xff\xff\xff", b"\0\0\0\x01\xff"] {
        let said = [greeting(3), reply(opt::LIST, rep::SERVER, data)];
        assert_eq!(violation(Handshake::list(), &said), malformed(opt::LIST, rep::SERVER));
    }
    let other = [greeting(3), reply(opt::LIST, rep::ACK, b"")];
    let order = Violation::OptionReplyOrder { asked: opt::GO, answered: opt::LIST };
    assert_eq!(violation(plain(), &other), order);
    assert_eq!(violation(plain(), &[greeting(3), vec![0; 20]]), Violation::OptionReplyMagic(0));
}

#[test]
fn a_server_cannot_fill_memory() {
    let bytes = OPTION_REPLY_BYTES_MAX + 1;
    let said = [greeting(3), reply(opt::GO, rep::INFO, &vec![0; bytes as usize])];
    assert_eq!(violation(plain(), &said), Violation::OptionReplyTooBig { bytes });
    let mut endless = vec![greeting(3)];
    endless.extend(vec![reply(opt::GO, rep::INFO, &[0, 9]); LIST_ENTRIES_MAX + 2]);
    assert_eq!(violation(plain(), &endless), Violation::TooManyOptionReplies);
    let mut list = vec![greeting(3)];
    list.extend(vec![reply(opt::LIST, rep::SERVER, b"\0\0\0\x01x"); LIST_ENTRIES_MAX + 1]);
    assert_eq!(violation(Handshake::list(), &list), Violation::TooManyOptionReplies);
    let long = [&b"\0\0\x10\0"[..], &[b'x'; 8192]].concat();
    let mut list = vec![greeting(3)];
    list.extend(vec![reply(opt::LIST, rep::SERVER, &long); 600]);
    assert_eq!(violation(Handshake::list(), &list), Violation::TooManyOptionReplies);
}

#[test]
fn refusals_are_told_in_words() {
    let failed = |client, said: &[Vec<u8>]| match hear(client, said) {
        Step::Failed(error) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let refuse = |code, words: &[u8]| failed(plain(), &[greeting(3), reply(opt::GO, code, words)]);
    assert_eq!(refuse(rep::ERR_UNKNOWN, b"try disk2"), "the server has no export of this name: try disk2");
    assert_eq!(refuse(rep::ERR_POLICY, b"\x1b[2J"), "the server's policy refuses the export:  [2J");
    assert_eq!(refuse(rep::ERR_TLS_REQD, b""), Error::TlsRequired.to_string());
    assert_eq!(failed(Handshake::list(), &[greeting(2)]), Error::CannotList.to_string());
    let early = failed(full(), &[greeting(3), reply(opt::STRUCTURED_REPLY, rep::ERR_TLS_REQD, b"")]);
    assert_eq!(early, Error::TlsRequired.to_string());
    for export in ["x".repeat(4097), "a\0b".to_owned()] {
        let client = Handshake::new(Want {
            export,
            structured: true,
            base_allocation: true,
            dirty: true,
            context: true,
            auth: false,
        });
        assert_eq!(client.poll(), Step::Failed(Error::ExportName));
    }
}

#[test]
fn a_list_may_be_empty_or_described() {
    let ack = reply(opt::LIST, rep::ACK, b"");
    assert_eq!(hear(Handshake::list(), &[greeting(3), ack.clone()]), Step::Listed(vec![]));
    let one = reply(opt::LIST, rep::SERVER, b"\0\0\0\x04diskwords");
    let entry = ListEntry { name: "disk".into(), description: "words".into() };
    assert_eq!(hear(Handshake::list(), &[greeting(3), one, ack]), Step::Listed(vec![entry]));
}
