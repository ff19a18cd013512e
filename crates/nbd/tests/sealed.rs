//! Heads under a seal: no bit of one flips unnoticed, either way.

use cheetah_nbd::client::Reply;
use cheetah_nbd::server::{Outbox, Transmission, transmission::Step};
use cheetah_nbd::{
    CmdFlags, Command, Descriptor, Errno, ExportInfo, LedgerEntry, Mark, Negotiated, RequestHeader,
    StateFlags, TransmissionFlags, Violation,
};

/// Puts an answer into an outbox.
type Answer<'a> = &'a dyn Fn(&mut Outbox<()>);

fn session() -> Negotiated {
    let info = ExportInfo::new(1 << 30, TransmissionFlags::EMPTY);
    let (base_allocation, dirty, context) = (Some(1), Some(2), Some(3));
    let (export, structured_replies) = (String::new(), true);
    Negotiated { export, info, structured_replies, base_allocation, dirty, context, auth: None }
}

fn header(command: Command) -> RequestHeader {
    RequestHeader { flags: CmdFlags::EMPTY, command, cookie: 3 << 32 | 9, offset: 1 << 20, length: 8192 }
}

#[test]
fn a_request_is_taken_as_it_was_sent_or_not_at_all() {
    let mark = Mark { number: 7, targets: 3, complete: 6, keep: true }.header();
    for header in [header(Command::Read), header(Command::Write), header(Command::WriteZeroes), mark] {
        let sent = header.encode_in(true);
        let mut machine = Transmission::new(session(), 16 << 10);
        let taken = machine.next(&mut &sent[..]).expect("its seal is right").expect("it is whole");
        assert!(matches!(taken, Step::Request { header: taken, .. } if taken == header));
        for bit in 0..sent.len() * 8 {
            let mut flipped = sent;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut machine = Transmission::new(session(), 16 << 10);
            let taken = machine.next(&mut &flipped[..]);
            assert!(matches!(taken, Err(Violation::RequestMagic(_))), "bit {bit}: {taken:?}");
        }
        assert!(RequestHeader::decode(&sent).is_err(), "who did not agree on that does not take it");
        assert_eq!(RequestHeader::decode_in(&header.encode(), false), Ok(header));
    }
}

#[test]
fn a_reply_is_taken_as_it_was_sent_or_not_at_all() {
    let request = header(Command::Read);
    let heads: [(&str, Answer); 7] = [
        ("done", &|outbox| outbox.done(request.cookie)),
        ("data", &|outbox| outbox.data(&request, ())),
        ("error", &|outbox| outbox.error(request.cookie, Errno::Io, "why")),
        ("contexts", &|outbox| outbox.contexts(&request, [1, 2].into_iter())),
        ("written", &|outbox| outbox.done_with(request.cookie, [1, 2].into_iter())),
        ("ledger", &|outbox| {
            let entry = LedgerEntry {
                from: 0,
                to: 4096,
                number: 8,
                targets: 3,
                landed: true,
                undo: true,
                stale: false,
            };
            outbox.ledger(&request, 7, &[entry]);
        }),
        ("status", &|outbox| {
            let run = Descriptor { length: 8192, flags: StateFlags::HOLE };
            outbox.status(&request, true, 1, &[run]);
        }),
    ];
    for (what, answer) in heads {
        let (mut sealed, mut plain) = (Outbox::of(&session()), Outbox::new(true));
        answer(&mut sealed);
        answer(&mut plain);
        let sent = bytes_of(&sealed);
        let expected = Reply::decode(&bytes_of(&plain)).expect("in order").expect("whole");
        assert_eq!(Reply::decode_in(&sent, true), Ok(Some(expected)), "{what}");
        for bit in 0..sent.len() * 8 {
            let mut flipped = sent.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Of a length that grew more is awaited, up to the limit of a head, and then it is found out.
            flipped.resize(256 << 10, 0);
            let taken = Reply::decode_in(&flipped, true);
            assert!(matches!(taken, Err(_) | Ok(None)), "{what}, bit {bit}: {taken:?}");
        }
    }
}

fn bytes_of(outbox: &Outbox<()>) -> Vec<u8> {
    outbox
        .pieces()
        .filter_map(|piece| match piece {
            cheetah_nbd::server::outbox::Piece::Head(bytes) => Some(bytes),
            _ => None,
        })
        .collect::<Vec<_>>()
        .concat()
}
