//! Each option a client can send, well-formed and not, and what the server answers.

use cheetah_nbd::limits::{
    EXPORT_NAME_BYTES_MAX, HANDSHAKE_OUTPUT_BYTES_MAX, META_QUERIES_MAX, OPTION_BYTES_MAX,
    OPTION_SKIP_BYTES_MAX, OPTIONS_MAX,
};
use cheetah_nbd::proto::{IHAVEOPT, OPTION_REPLY_MAGIC, info, opt, rep};
use cheetah_nbd::server::{CloseReason, ExportError, Handshake, Purpose, Step};
use cheetah_nbd::{ExportInfo, ListEntry, TransmissionFlags, Violation};

/// A server past the greeting, and what it answers.
struct World(Handshake);

/// One option reply: its type and its data.
type Answer = (u32, Vec<u8>);

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = header(option, u32::try_from(data.len()).unwrap());
    bytes.extend_from_slice(data);
    bytes
}

fn header(option: u32, length: u32) -> Vec<u8> {
    [&IHAVEOPT.to_be_bytes()[..], &option.to_be_bytes(), &length.to_be_bytes()].concat()
}

fn counted(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

fn info_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend_from_slice(&u16::try_from(infos.len()).unwrap().to_be_bytes());
    data.extend(infos.iter().flat_map(|info| info.to_be_bytes()));
    data
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    data.extend(queries.iter().flat_map(|query| counted(query)));
    data
}

impl World {
    fn new(flags: u32) -> Self {
        Self::of(Handshake::new(), flags)
    }

    fn of(mut server: Handshake, flags: u32) -> Self {
        server.take_output(&mut Vec::new());
        assert_eq!(server.input(&flags.to_be_bytes()), Ok(4));
        Self(server)
    }

    fn structured() -> Self {
        let mut world = Self::new(3);
        assert_eq!(world.codes(opt::STRUCTURED_REPLY, &[]), [rep::ACK]);
        world
    }

    fn of_donor() -> Self {
        let mut world = Self::of(Handshake::new().of_donor(), 3);
        assert_eq!(world.codes(opt::STRUCTURED_REPLY, &[]), [rep::ACK]);
        world
    }

    fn output(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        self.0.take_output(&mut output);
        output
    }

    fn send(&mut self, kind: u32, data: &[u8]) {
        let bytes = option(kind, data);
        assert_eq!(self.0.input(&bytes), Ok(bytes.len()));
    }

    /// Sends an option, lets the driver find every export but `absent`, and reads the answers.
    fn ask(&mut self, kind: u32, data: &[u8]) -> Vec<Answer> {
        self.send(kind, data);
        if let Step::Lookup { export, .. } = self.0.poll() {
            let info = ExportInfo { description: "words".into(), ..ExportInfo::new(1 << 20, flags()) };
            self.0.answer_lookup(if export == "absent" {
                Err(ExportError::Unknown("words".into()))
            } else {
                Ok(info)
            });
        }
        answers(kind, &self.output())
    }

    fn codes(&mut self, kind: u32, data: &[u8]) -> Vec<u32> {
        self.ask(kind, data).into_iter().map(|(code, _)| code).collect()
    }

    fn violation(&mut self, bytes: &[u8]) -> Violation {
        let violation = self.0.input(bytes).unwrap_err();
        assert_eq!(self.0.poll(), Step::Close(CloseReason::Violation(violation)));
        assert_eq!(self.0.input(b"more"), Ok(0));
        violation
    }
}

fn flags() -> TransmissionFlags {
    TransmissionFlags::SEND_FUA | TransmissionFlags::SEND_DF
}

fn answers(option: u32, mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<20>() {
        assert_eq!(head[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(head[8..12], option.to_be_bytes());
        let code = u32::from_be_bytes(head[12..16].try_into().unwrap());
        let length = u32::from_be_bytes(head[16..].try_into().unwrap()) as usize;
        answers.push((code, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty());
    answers
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let mut output = Vec::new();
    Handshake::new().take_output(&mut output);
    assert_eq!(output, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_client_flags_close() {
    let mut server = Handshake::new();
    assert_eq!(server.input(&4u32.to_be_bytes()), Err(Violation::ClientFlags(4)));
}

#[test]
fn export_name_is_answered_with_zeroes_unless_waived() {
    for (client_flags, length) in [(0, 134), (1, 134), (2, 10), (3, 10)] {
        let mut world = World::new(client_flags);
        world.send(opt::EXPORT_NAME, b"disk");
        assert_eq!(world.0.poll(), Step::Lookup { export: "disk".into(), purpose: Purpose::Go });
        world.0.answer_lookup(Ok(ExportInfo::new(0x1234, flags())));
        let output = world.output();
        assert_eq!(output.len(), length);
        assert_eq!(output[..10], [0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0b1001]);
        assert!(output[10..].iter().all(|byte| *byte == 0));
        let Step::Ready(negotiated) = world.0.poll() else { panic!() };
        assert_eq!((negotiated.export.as_str(), negotiated.info.size), ("disk", 0x1234));
    }
}

#[test]
fn export_name_of_an_unknown_or_impossible_export_closes() {
    let mut world = World::new(3);
    assert!(world.ask(opt::EXPORT_NAME, b"absent").is_empty());
    assert_eq!(world.0.poll(), Step::Close(CloseReason::Refused));
    let too_long = header(opt::EXPORT_NAME, u32::try_from(EXPORT_NAME_BYTES_MAX + 1).unwrap());
    assert_eq!(World::new(3).violation(&too_long), Violation::ExportName);
    assert_eq!(World::new(3).violation(&option(opt::EXPORT_NAME, b"\xff")), Violation::ExportName);
    assert_eq!(World::new(3).violation(&option(opt::EXPORT_NAME, b"a\0")), Violation::ExportName);
}

#[test]
fn a_client_without_fixed_newstyle_has_one_option() {
    assert_eq!(World::new(0).violation(&option(opt::LIST, &[])), Violation::NotFixedNewstyle);
}

#[test]
fn go_tells_what_was_asked_and_ends_the_handshake() {
    let mut world = World::new(3);
    let answers = world.ask(opt::GO, &info_data("disk", &[info::NAME, info::DESCRIPTION, 999]));
    let codes: Vec<_> = answers.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]);
    // SEND_DF is for structured replies only, whatever the driver says.
    assert_eq!(answers[0].1, [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0b1001]);
    assert_eq!(answers[1].1, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    assert_eq!(answers[2].1, b"\0\x01disk");
    assert_eq!(answers[3].1, b"\0\x02words");
    assert!(matches!(world.0.poll(), Step::Ready(_)));
    assert_eq!(world.0.input(b"request"), Ok(0));
}

#[test]
fn info_tells_the_same_and_goes_on() {
    let mut world = World::structured();
    let answers = world.ask(opt::INFO, &info_data("disk", &[]));
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0].1[10..], [0, 0b1000_1001]);
    assert_eq!(world.0.poll(), Step::NeedInput);
    assert_eq!(world.codes(opt::INFO, &info_data("absent", &[])), [rep::ERR_UNKNOWN]);
    assert_eq!(world.codes(opt::GO, &info_data("absent", &[])), [rep::ERR_UNKNOWN]);
    assert_eq!(world.codes(opt::GO, &info_data("disk", &[])).last(), Some(&rep::ACK));
}

#[test]
fn malformed_queries_are_invalid() {
    let name = counted("disk");
    let cut = &info_data("disk", &[1, 2])[..11];
    let trailing = [info_data("disk", &[]), vec![0]].concat();
    let long_name = [&[0xff; 4][..], b"disk"].concat();
    let not_text = [&[0, 0, 0, 1, 0xff][..], &[0, 0]].concat();
    let nul = info_data("a\0b", &[]);
    for data in [&[][..], &[0, 0], &name, cut, &trailing, &long_name, &not_text, &nul] {
        for option in [opt::GO, opt::INFO] {
            let mut world = World::new(3);
            assert_eq!(world.codes(option, data), [rep::ERR_INVALID], "{data:?}");
            assert_eq!(world.0.poll(), Step::NeedInput);
        }
    }
    let meta_trailing = [meta_data("disk", &[]), vec![0]].concat();
    let meta_cut = &meta_data("disk", &["base:allocation"])[..20];
    let no_namespace = meta_data("disk", &["allocation"]);
    for data in [&[][..], &name, &meta_trailing, meta_cut, &no_namespace] {
        for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
            assert_eq!(World::structured().codes(option, data), [rep::ERR_INVALID], "{data:?}");
        }
    }
}

/// What a length or a count inside an option claims beyond its end is malformed, however large the claim is.
#[test]
fn what_contradicts_its_own_length_is_invalid_before_it_is_too_big() {
    let claims = |count: u16| [&counted("disk")[..], &count.to_be_bytes()].concat();
    for count in [1, 4, 64, 65, 1000, u16::MAX] {
        for option in [opt::GO, opt::INFO] {
            assert_eq!(World::new(3).codes(option, &claims(count)), [rep::ERR_INVALID], "{count}");
            let one_short = [claims(count), vec![0; 2 * usize::from(count) - 1]].concat();
            if one_short.len() <= OPTION_BYTES_MAX as usize {
                assert_eq!(World::new(3).codes(option, &one_short), [rep::ERR_INVALID], "{count}");
            }
        }
    }
    // A name that is too long as well, with nothing where its count should be, or less than that claims.
    let long = "x".repeat(EXPORT_NAME_BYTES_MAX + 1);
    for data in [counted(&long), [counted(&long), vec![0, 9, 0, 1]].concat()] {
        assert_eq!(World::new(3).codes(opt::GO, &data), [rep::ERR_INVALID]);
        assert_eq!(World::structured().codes(opt::SET_META_CONTEXT, &data), [rep::ERR_INVALID]);
    }
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        for count in [1, META_QUERIES_MAX, META_QUERIES_MAX + 1, u32::MAX] {
            let data = [counted("disk"), count.to_be_bytes().to_vec()].concat();
            assert_eq!(World::structured().codes(option, &data), [rep::ERR_INVALID], "{count}");
        }
        // The first query is too long, the second one longer than the option.
        let query = format!("base:{long}");
        let mut data = meta_data("disk", &[&query, "base:"]);
        let _ = data.pop();
        assert_eq!(World::structured().codes(option, &data), [rep::ERR_INVALID]);
        // The first one has no namespace, and something trails.
        let trailing = [meta_data("disk", &["base:"]), vec![0]].concat();
        assert_eq!(World::structured().codes(option, &trailing), [rep::ERR_INVALID]);
    }
    // Options that take no data say so of any length of it, and ABORT ends the handshake with any.
    let huge = vec![0; OPTION_BYTES_MAX as usize + 1];
    for option in [opt::LIST, opt::STRUCTURED_REPLY] {
        assert_eq!(World::new(3).codes(option, &huge), [rep::ERR_INVALID]);
    }
    let mut world = World::new(3);
    assert_eq!(world.codes(opt::ABORT, &huge), [rep::ACK]);
    assert_eq!(world.0.poll(), Step::Close(CloseReason::Abort));
}

#[test]
fn too_much_in_one_option_is_too_big() {
    let mut world = World::structured();
    let name = "x".repeat(EXPORT_NAME_BYTES_MAX + 1);
    assert_eq!(world.codes(opt::GO, &info_data(&name, &[])), [rep::ERR_TOO_BIG]);
    assert_eq!(world.codes(opt::GO, &info_data("x", &[0; 65])), [rep::ERR_TOO_BIG]);
    let queries = vec!["base:"; META_QUERIES_MAX as usize + 1];
    assert_eq!(world.codes(opt::SET_META_CONTEXT, &meta_data("x", &queries)), [rep::ERR_TOO_BIG]);
    let query = format!("base:{name}");
    assert_eq!(world.codes(opt::SET_META_CONTEXT, &meta_data("x", &[&query])), [rep::ERR_TOO_BIG]);
    // Larger than is held: read past, answered, and the next option is found.
    let huge = vec![0; OPTION_BYTES_MAX as usize + 1];
    assert_eq!(world.codes(opt::GO, &huge), [rep::ERR_TOO_BIG]);
    assert_eq!(world.codes(77, &huge), [rep::ERR_UNSUP]);
    assert_eq!(world.codes(opt::GO, &info_data("disk", &[])).last(), Some(&rep::ACK));
    // Larger than is worth reading.
    let bytes = OPTION_SKIP_BYTES_MAX + 1;
    let violation = World::new(3).violation(&header(opt::GO, bytes));
    assert_eq!(violation, Violation::OptionTooBig { option: opt::GO, bytes });
}

#[test]
fn an_export_name_of_the_largest_size_is_taken() {
    let name = "x".repeat(EXPORT_NAME_BYTES_MAX);
    assert_eq!(World::new(3).codes(opt::GO, &info_data(&name, &[info::NAME])).last(), Some(&rep::ACK));
}

#[test]
fn contexts_need_structured_replies_first() {
    let data = meta_data("disk", &["base:allocation"]);
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(World::new(3).codes(option, &data), [rep::ERR_INVALID]);
    }
}

#[test]
fn contexts_are_listed_and_set() {
    let found = vec![rep::META_CONTEXT, rep::ACK];
    let nothing = vec![rep::ACK];
    for (option, queries, expected) in [
        (opt::LIST_META_CONTEXT, &[][..], &found),
        (opt::LIST_META_CONTEXT, &["base:"], &found),
        (opt::LIST_META_CONTEXT, &["base:allocation", "base:"], &found),
        (opt::LIST_META_CONTEXT, &["qemu:dirty-bitmap:x"], &nothing),
        (opt::SET_META_CONTEXT, &["base:allocation"], &found),
        (opt::SET_META_CONTEXT, &["x-y:z", "base:allocation"], &found),
        (opt::SET_META_CONTEXT, &[], &nothing),
        (opt::SET_META_CONTEXT, &["base:"], &nothing),
        (opt::SET_META_CONTEXT, &["base:other"], &nothing),
        (opt::SET_META_CONTEXT, &["cheetah:dirty"], &nothing),
        (opt::LIST_META_CONTEXT, &["cheetah:"], &nothing),
    ] {
        let mut world = World::structured();
        let answers = world.ask(option, &meta_data("disk", queries));
        let codes: Vec<_> = answers.iter().map(|(code, _)| *code).collect();
        assert_eq!(&codes, expected, "{queries:?}");
        if codes.len() > 1 {
            let id = u8::from(option == opt::SET_META_CONTEXT);
            assert_eq!(answers[0].1, [&[0, 0, 0, id][..], b"base:allocation"].concat());
        }
    }
    let data = meta_data("absent", &["base:allocation"]);
    assert_eq!(World::structured().codes(opt::SET_META_CONTEXT, &data), [rep::ERR_UNKNOWN]);
}

#[test]
fn a_donor_lists_and_sets_its_own_contexts_as_well() {
    let (base, dirty) = ("base:allocation", "cheetah:dirty");
    let (context, auth) = ("cheetah:context", "cheetah:auth");
    for (option, queries, expected) in [
        (opt::LIST_META_CONTEXT, &[][..], &[(0, base), (0, dirty), (0, context), (0, auth)][..]),
        (opt::LIST_META_CONTEXT, &["cheetah:"], &[(0, dirty), (0, context), (0, auth)]),
        (opt::LIST_META_CONTEXT, &["base:"], &[(0, base)]),
        (opt::SET_META_CONTEXT, &[dirty, base, dirty], &[(1, base), (2, dirty)]),
        (opt::SET_META_CONTEXT, &[context, base], &[(1, base), (3, context)]),
        (opt::SET_META_CONTEXT, &[auth, context], &[(3, context), (4, auth)]),
        (opt::SET_META_CONTEXT, &[dirty], &[(2, dirty)]),
        (opt::SET_META_CONTEXT, &[base], &[(1, base)]),
        (opt::SET_META_CONTEXT, &["cheetah:"], &[]),
        (opt::SET_META_CONTEXT, &["cheetah:dirty:x"], &[]),
    ] {
        let mut answers = World::of_donor().ask(option, &meta_data("disk", queries));
        assert_eq!(answers.pop(), Some((rep::ACK, vec![])));
        let context =
            |(id, name): &(u8, &str)| (rep::META_CONTEXT, [&[0, 0, 0, *id][..], name.as_bytes()].concat());
        assert_eq!(answers, expected.iter().map(context).collect::<Vec<_>>(), "{option} {queries:?}");
    }
}

#[test]
fn a_context_holds_for_its_export_and_until_the_next_set() {
    let set = |name| (opt::SET_META_CONTEXT, meta_data(name, &["base:allocation"]));
    let unset = || (opt::SET_META_CONTEXT, meta_data("disk", &[]));
    let list = || (opt::LIST_META_CONTEXT, meta_data("disk", &[]));
    let too_big = || (opt::SET_META_CONTEXT, vec![0; OPTION_BYTES_MAX as usize + 1]);
    let malformed = || (opt::SET_META_CONTEXT, vec![0]);
    for (options, holds) in [
        (vec![set("disk")], true),
        (vec![set("disk"), list()], true),
        (vec![set("other"), set("disk")], true),
        (vec![set("other")], false),
        (vec![set("disk"), set("other")], false),
        (vec![set("disk"), unset()], false),
        (vec![set("disk"), set("absent")], false),
        (vec![set("disk"), malformed()], false),
        (vec![set("disk"), too_big()], false),
    ] {
        for last in [(opt::GO, info_data("disk", &[])), (opt::EXPORT_NAME, b"disk".to_vec())] {
            let mut world = World::structured();
            for (option, data) in &options {
                world.ask(*option, data);
            }
            world.send(last.0, &last.1);
            world.0.answer_lookup(Ok(ExportInfo::new(1, flags())));
            let Step::Ready(negotiated) = world.0.poll() else { panic!() };
            assert_eq!(negotiated.base_allocation.is_some(), holds);
            assert!(negotiated.structured_replies);
        }
    }
}

#[test]
fn what_is_not_supported_is_said_so_and_goes_on() {
    let mut world = World::new(3);
    for option in [0, 4, opt::STARTTLS, opt::EXTENDED_HEADERS, 12, u32::MAX] {
        assert_eq!(world.codes(option, b"data"), [rep::ERR_UNSUP]);
        assert_eq!(world.codes(option, b""), [rep::ERR_UNSUP]);
    }
    assert_eq!(world.0.poll(), Step::NeedInput);
}

#[test]
fn list_and_structured_reply_take_no_data() {
    let mut world = World::new(3);
    assert_eq!(world.codes(opt::LIST, b"x"), [rep::ERR_INVALID]);
    assert_eq!(world.codes(opt::STRUCTURED_REPLY, b"x"), [rep::ERR_INVALID]);
    world.send(opt::LIST, b"");
    assert_eq!(world.0.poll(), Step::List);
    world.0.answer_list(Ok(&[]));
    assert_eq!(answers(opt::LIST, &world.output()), [(rep::ACK, vec![])]);
}

#[test]
fn a_list_is_sent_whole_or_refused() {
    let entry = |name: String| ListEntry { name, description: String::new() };
    let ask = |entries: &[ListEntry]| {
        let mut world = World::new(3);
        world.send(opt::LIST, b"");
        world.0.answer_list(Ok(entries));
        world.0.check_invariants();
        answers(opt::LIST, &world.output())
    };
    let many: Vec<_> = (0..4096).map(|i| entry(format!("{i:0>64}"))).collect();
    assert_eq!(ask(&many).len(), 4097);
    let long = vec![entry("x".repeat(4096)); 1000];
    let refused: Vec<_> = ask(&long).into_iter().map(|(code, _)| code).collect();
    assert_eq!(refused, [rep::ERR_POLICY]);
}

#[test]
fn who_is_not_told_what_there_is_hears_how_to_ask() {
    let mut world = World::new(3);
    world.send(opt::LIST, b"");
    world.0.answer_list(Err(&ExportError::Policy("ask for NAME@TOKEN".into())));
    assert_eq!(answers(opt::LIST, &world.output()), [(rep::ERR_POLICY, b"ask for NAME@TOKEN".to_vec())]);
    assert_eq!(world.0.poll(), Step::NeedInput);
    for option in [opt::INFO, opt::GO] {
        world.send(option, &info_data("disk", &[]));
        world.0.answer_lookup(Err(ExportError::Unknown("ask for NAME@TOKEN".into())));
        assert_eq!(answers(option, &world.output()), [(rep::ERR_UNKNOWN, b"ask for NAME@TOKEN".to_vec())]);
    }
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let mut world = World::new(3);
    assert_eq!(world.codes(opt::ABORT, b""), [rep::ACK]);
    assert_eq!(world.0.poll(), Step::Close(CloseReason::Abort));
}

#[test]
fn a_wrong_magic_and_endless_options_close() {
    let mut world = World::new(3);
    assert_eq!(world.violation(&[0; 16]), Violation::OptionMagic(0));
    let mut world = World::new(3);
    for _ in 0..OPTIONS_MAX {
        world.codes(99, b"");
    }
    assert_eq!(world.violation(&option(99, b"")), Violation::TooManyOptions);
}

#[test]
fn a_server_nobody_reads_from_stops_listening() {
    let mut world = World::new(3);
    let bytes = option(99, b"").repeat(OPTIONS_MAX as usize);
    let mut taken = 0;
    while let Ok(more @ 1..) = world.0.input(&bytes[taken..]) {
        taken += more;
        world.0.check_invariants();
    }
    let unread = world.output().len();
    assert!(taken <= bytes.len() && unread < HANDSHAKE_OUTPUT_BYTES_MAX + 100, "{taken} {unread}");
}

#[test]
fn a_policy_text_is_cut_where_the_protocol_ends_it() {
    let mut world = World::new(3);
    world.send(opt::GO, &info_data("disk", &[]));
    world.0.answer_lookup(Err(ExportError::Policy("é".repeat(4000))));
    let answers = answers(opt::GO, &world.output());
    assert_eq!(answers[0].0, rep::ERR_POLICY);
    assert_eq!(std::str::from_utf8(&answers[0].1).unwrap().len(), 4096);
}
