//! Any message survives encoding, and no bytes make either end panic or grow beyond its limits.

use cheetah_nbd::client::{self, Reply, Want};
use cheetah_nbd::limits::{HANDSHAKE_OUTPUT_BYTES_MAX, REPLY_HEAD_BYTES_MAX, REQUEST_PAYLOAD_BYTES_MAX};
use cheetah_nbd::proto::{IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, opt, rep};
use cheetah_nbd::server::{self, ExportError};
use cheetah_nbd::{
    CmdFlags, Command, Descriptor, Errno, ExportInfo, LedgerEntry, ListEntry, Negotiated, RequestHeader,
    StateFlags, TransmissionFlags,
};
use proptest::prelude::*;

fn errno() -> impl Strategy<Value = Errno> {
    prop::sample::select(vec![
        Errno::Perm,
        Errno::Io,
        Errno::NoMem,
        Errno::Inval,
        Errno::NoSpc,
        Errno::NoData,
        Errno::Overflow,
        Errno::NotSup,
        Errno::Shutdown,
    ])
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    (1u32.., any::<u32>()).prop_map(|(length, flags)| Descriptor { length, flags: StateFlags(flags) })
}

fn reply() -> impl Strategy<Value = Reply> {
    let (cookie, done, offset) = (any::<u64>(), any::<bool>(), any::<u64>());
    let message = "[ -~é\n]{0,200}";
    prop_oneof![
        (cookie, prop::option::of(errno())).prop_map(|(cookie, error)| Reply::Simple { cookie, error }),
        (cookie, done, offset, 1..=REQUEST_PAYLOAD_BYTES_MAX).prop_map(
            |(cookie, done, offset, data_bytes)| Reply::OffsetData { cookie, done, offset, data_bytes }
        ),
        (cookie, done, offset, 1u32..).prop_map(|(cookie, done, offset, hole_bytes)| Reply::OffsetHole {
            cookie,
            done,
            offset,
            hole_bytes
        }),
        cookie.prop_map(|cookie| Reply::None { cookie }),
        (cookie, done, errno(), message).prop_map(|(cookie, done, errno, message)| Reply::Error {
            cookie,
            done,
            errno,
            message
        }),
        (cookie, done, errno(), offset, message).prop_map(|(cookie, done, errno, offset, message)| {
            Reply::ErrorOffset { cookie, done, errno, offset, message }
        }),
        (cookie, done, any::<u32>(), prop::collection::vec(descriptor(), 1..40)).prop_map(
            |(cookie, done, context, descriptors)| Reply::BlockStatus { cookie, done, context, descriptors }
        ),
        (cookie, done, any::<u64>(), prop::collection::vec(ledger_entry(), 0..40))
            .prop_map(|(cookie, done, complete, entries)| Reply::Ledger { cookie, done, complete, entries }),
        (any::<u64>(), any::<bool>(), prop::collection::vec(any::<u32>(), 1..40))
            .prop_map(|(cookie, done, sums)| Reply::Contexts { cookie, done, sums }),
    ]
}

fn ledger_entry() -> impl Strategy<Value = LedgerEntry> {
    let fields = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<[bool; 3]>());
    fields.prop_map(|(from, to, number, targets, [landed, undo, stale])| LedgerEntry {
        from,
        to,
        number,
        targets,
        landed,
        undo,
        stale,
    })
}

fn request() -> impl Strategy<Value = RequestHeader> {
    let offset = prop_oneof![any::<u64>(), 0..1u64 << 21];
    let length = prop_oneof![any::<u32>(), 0..1u32 << 21];
    (any::<u16>(), 0..10u16, any::<u64>(), offset, length).prop_map(
        |(flags, command, cookie, offset, length)| {
            let flags = CmdFlags(if flags & 3 == 0 { flags } else { flags & 0x1f });
            RequestHeader { flags, command: Command::from_wire(command), cookie, offset, length }
        },
    )
}

/// Bytes that get past the magics often enough to matter.
fn option_bytes() -> impl Strategy<Value = Vec<u8>> {
    let option = (0..13u32, prop::collection::vec(any::<u8>(), 0..40), any::<bool>());
    let options = prop::collection::vec(option, 0..12);
    (0..5u32, options, any::<bool>()).prop_map(|(flags, options, export_like)| {
        let mut bytes = flags.to_be_bytes().to_vec();
        for (option, mut data, honest) in options {
            if export_like {
                data.splice(0..0, [0, 0, 0, 1, b'x']);
            }
            bytes.extend_from_slice(&IHAVEOPT.to_be_bytes());
            bytes.extend_from_slice(&option.to_be_bytes());
            let claimed = data.len() + if honest { 0 } else { 70_000 };
            bytes.extend_from_slice(&u32::try_from(claimed).unwrap().to_be_bytes());
            bytes.extend_from_slice(&data);
        }
        bytes
    })
}

fn option_reply_bytes() -> impl Strategy<Value = Vec<u8>> {
    let option = prop::sample::select(vec![opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, opt::GO, opt::LIST]);
    let kind = prop_oneof![1..5u32, (1..10u32).prop_map(|code| code | rep::ERR)];
    let replies = prop::collection::vec((option, kind, prop::collection::vec(any::<u8>(), 0..30)), 0..12);
    (any::<u16>(), replies).prop_map(|(flags, replies)| {
        let mut bytes = NBDMAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&IHAVEOPT.to_be_bytes());
        bytes.extend_from_slice(&flags.to_be_bytes());
        for (option, kind, data) in replies {
            bytes.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
            bytes.extend_from_slice(&option.to_be_bytes());
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(&data);
        }
        bytes
    })
}

fn serve(bytes: &[u8], piece: usize) -> server::Step {
    let mut server = server::Handshake::new().of_donor();
    let mut rest = bytes;
    while let Ok(taken) = server.input(&rest[..rest.len().min(piece)]) {
        rest = &rest[taken..];
        server.check_invariants();
        match server.poll() {
            server::Step::Lookup { export, .. } if export.len() == 1 => {
                server.answer_lookup(Ok(ExportInfo::new(1 << 20, TransmissionFlags::EMPTY)));
            }
            server::Step::Lookup { .. } => server.answer_lookup(Err(ExportError::Unknown("words".into()))),
            server::Step::List => {
                server.answer_list(Ok(&[ListEntry { name: "x".into(), description: String::new() }]));
            }
            _ if taken == 0 => break,
            _ => {}
        }
        server.check_invariants();
        server.take_output(&mut Vec::new());
    }
    server.poll()
}

fn connect(mut client: client::Handshake, bytes: &[u8], piece: usize) -> client::Step {
    let mut rest = bytes;
    while let Ok(taken @ 1..) = client.input(&rest[..rest.len().min(piece)]) {
        rest = &rest[taken..];
        client.check_invariants();
    }
    let mut output = Vec::new();
    client.take_output(&mut output);
    assert!(output.len() < HANDSHAKE_OUTPUT_BYTES_MAX);
    client.poll()
}

fn negotiated() -> impl Strategy<Value = Negotiated> {
    let block_min = prop::sample::select(vec![0, 1, 512, 4096]);
    let contexts = [(); 4].map(|()| prop::option::of(any::<u32>()));
    (0..1u64 << 21, any::<u16>(), block_min, any::<bool>(), contexts).prop_map(
        |(size, flags, block_min, structured_replies, [base_allocation, dirty, context, auth])| Negotiated {
            export: String::new(),
            info: ExportInfo { block_min, ..ExportInfo::new(size, TransmissionFlags(flags)) },
            structured_replies,
            base_allocation,
            dirty,
            context,
            auth,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn requests_survive_the_wire(header in request()) {
        prop_assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_request_that_passes_lies_inside_the_export(header in request(), session in negotiated()) {
        if header.check(&session).is_ok() {
            prop_assert!(header.payload_bytes() <= REQUEST_PAYLOAD_BYTES_MAX);
            let ranged = !matches!(header.command, Command::Flush | Command::Disc);
            prop_assert!(!ranged || header.offset + u64::from(header.length) <= session.info.size);
        }
    }

    #[test]
    fn replies_survive_the_wire_and_wait_for_their_last_byte(reply in reply(), behind in any::<[u8; 3]>()) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let head_bytes = bytes.len();
        for cut in 0..head_bytes {
            let need = Reply::need(&bytes[..cut]).unwrap();
            prop_assert!(cut < need && need <= head_bytes);
            prop_assert_eq!(Reply::decode(&bytes[..cut]), Ok(None));
        }
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(Reply::decode(&bytes), Ok(Some((reply, head_bytes))));
    }

    #[test]
    fn any_bytes_decode_or_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), chunk: bool) {
        if chunk && bytes.len() >= 20 {
            bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
            bytes[16..19].fill(0);
        }
        if let Ok(need) = Reply::need(&bytes) {
            prop_assert!(need <= REPLY_HEAD_BYTES_MAX);
        }
        if let Ok(Some((reply, taken))) = Reply::decode(&bytes) {
            prop_assert!(taken <= bytes.len());
            let mut again = Vec::new();
            reply.encode(&mut again);
            prop_assert_eq!(Reply::decode(&again).unwrap().unwrap().0, reply);
        }
    }

    #[test]
    fn a_server_takes_any_bytes_in_any_pieces(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..300), option_bytes()], piece in 1..50usize,
    ) {
        prop_assert_eq!(serve(&bytes, piece), serve(&bytes, usize::MAX));
    }

    #[test]
    fn a_client_takes_any_bytes_in_any_pieces(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..300), option_reply_bytes()],
        piece in 1..50usize, structured: bool, base_allocation: bool, dirty: bool, list: bool,
    ) {
        let client = || if list {
            client::Handshake::list()
        } else {
            client::Handshake::new(Want { export: "x".into(), structured, base_allocation, dirty, context: dirty, auth: false })
        };
        prop_assert_eq!(connect(client(), &bytes, piece), connect(client(), &bytes, usize::MAX));
    }
}
