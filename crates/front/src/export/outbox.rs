//! Replies on their way to the client, sent many at a time with one vectored write.
//!
//! Owns: what a payload is made of. Never: copies payloads; they leave from the buffers the volume filled.
//! Invariant: a buffer goes back as soon as its reply has left.
//! Called by `connection`, filled by `flight`. Tests: below.

use super::budget::Charge;
use cheetah_nbd::server;
use cheetah_nbd::server::outbox::Piece;
use cheetah_rim::buffer::Buffer;
use std::io::IoSlice;

/// Pieces in one write; a header and a payload for 64 replies.
pub(super) const PIECES_MAX: usize = 128;

/// The data of a reply, and what it counts for until it is sent.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) buffer: Buffer,
    pub(super) charge: Charge,
}

pub(super) type Outbox = server::Outbox<Payload>;

/// Fills `pieces` with what is next and returns how many it used.
pub(super) fn slices<'a>(outbox: &'a Outbox, pieces: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
    let mut count = 0;
    for (place, piece) in pieces.iter_mut().zip(outbox.pieces()) {
        *place = IoSlice::new(match piece {
            Piece::Head(head) => head,
            Piece::Payload { payload, at, .. } => &payload.buffer[usize::try_from(at).expect("inside")..],
        });
        count += 1;
    }
    count
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cheetah_nbd::{CmdFlags, Command, Errno, RequestHeader};
    use cheetah_rim::buffer::Pool;

    #[test]
    fn replies_leave_whole_however_the_socket_cuts_them() {
        let pool = Pool::new().unwrap();
        let mut expected = Vec::new();
        let fill = |outbox: &mut Outbox, expected: &mut Vec<u8>| {
            for i in 0..100u8 {
                if i % 3 != 0 {
                    outbox.done_simply(i.into());
                    expected.extend(server::reply::simple(i.into(), None));
                    continue;
                }
                let mut buffer = pool.try_take(100 + usize::from(i)).unwrap();
                buffer.fill(!i);
                let length = 100 + u32::from(i);
                let (flags, command) = (CmdFlags::EMPTY, Command::Read);
                let request = RequestHeader { flags, command, cookie: i.into(), offset: 0, length };
                expected.extend(server::reply::offset_data(i.into(), true, 0, length));
                expected.extend_from_slice(&buffer);
                outbox.data(&request, Payload { buffer, charge: Charge::Small });
            }
            outbox.error(9, Errno::Io, &"9".repeat(500));
            server::reply::error(9, true, Errno::Io, &"9".repeat(500), expected);
        };
        for cut in [1, 13, 29, 500, 100_000] {
            let mut outbox = Outbox::new(true);
            expected.clear();
            fill(&mut outbox, &mut expected);
            let (mut out, mut freed) = (Vec::new(), 0);
            while !outbox.is_empty() {
                let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
                let count = slices(&outbox, &mut pieces);
                assert!(count > 0);
                let bytes: Vec<u8> =
                    pieces[..count].iter().flat_map(|p| p.iter().copied()).take(cut).collect();
                outbox.sent(bytes.len() as u64, |payload| {
                    freed += usize::from(payload.charge == Charge::Small)
                });
                out.extend(bytes);
            }
            assert_eq!(out, expected, "cut into {cut}");
            assert_eq!(freed, 34);
        }
        assert!(pool.try_take(16).is_some());
    }
}
