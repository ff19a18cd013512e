//! What a client of a donor is sent: answers gathered, payloads straight from the arena to the socket.
//!
//! Owns: which bytes of memory an answer is made of, and which of them are lent. Never: what an answer says,
//! which is the outbox's. Invariant: what the stream holds is the beginning of what is not sent; the arena is
//! mapped as long as it is borrowed here, and every range of it that is sent was checked.
//! Reads of 64 KiB and more leave as the arena's own pages where that is much together.
//! Called by `connection`. Tests: `tests/donor_wire.rs`.
//! One of the named modules that may use unsafe (vectored I/O on arena addresses).
#![allow(unsafe_code)]

use super::connection::unless_in_vain;
use crate::arena::Arena;
use crate::stream::{LEND_REPLY_BYTES, ROOM_BYTES, Stream, iovec};
use cheetah_nbd::server::outbox::Piece;
use cheetah_nbd::server::{Outbox, Run};
use cheetah_nbd::{Negotiated, RequestHeader};
use std::io;

/// Reads are sent without copying where so much may leave so in one batch. The client takes longer to copy
/// what no cache near it has; of less, only that counts.
const LEND_TOGETHER_BYTES: u64 = 128 << 10;
/// Holes shorter than this are sent as data: a chunk costs more than the zeros.
const HOLE_BYTES_MIN: u64 = 32 << 10;
const PIECES_MAX: usize = 512;
/// Replies are sent when this many or so many bytes wait, at the latest.
const REPLIES_MAX: usize = 2 * PIECES_MAX;
const REPLY_BYTES_MAX: u64 = 8 << 20;
/// An idle connection has room for so many.
const IDLE_REPLIES: usize = 64;

static ZEROS: [u8; HOLE_BYTES_MIN as usize] = [0; HOLE_BYTES_MIN as usize];

/// Where a payload is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// In the arena, from this offset on; copied into the socket.
    Arena(u64),
    /// The same by reference where that can be.
    Lent(u64),
    Zeros,
}

pub(super) struct Sending<'a> {
    stream: &'a Stream,
    arena: &'a Arena,
    pub(super) outbox: Outbox<Source>,
    /// Of what was put there since all was sent, what may be lent.
    lent_bytes: u64,
    /// The client is told the nonces and authentication tags of what it reads.
    pub(super) has_auth: bool,
    /// Room for the runs of a read; empty between them.
    runs: Vec<Run>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(stream: &'a Stream, arena: &'a Arena, session: &Negotiated) -> Self {
        let (outbox, has_auth) = (Outbox::of(session), session.auth.is_some());
        Sending { stream, arena, outbox, lent_bytes: 0, has_auth, runs: Vec::new() }
    }

    /// Whether it is time to send.
    pub(super) fn is_full(&self) -> bool {
        self.outbox.len() >= REPLIES_MAX || self.outbox.bytes() >= REPLY_BYTES_MAX
    }

    /// An idle connection holds no memory to speak of.
    pub(super) fn shrink(&mut self) {
        self.outbox.shrink(IDLE_REPLIES);
        self.runs.shrink_to(IDLE_REPLIES);
    }

    /// What is in the arena at `place`. `has_contexts`: the client is told the checksums first.
    pub(super) fn read(&mut self, header: &RequestHeader, place: u64, has_contexts: bool) {
        let sums = has_contexts.then(|| self.arena.sums(place, header.length.into()));
        if self.has_auth {
            self.outbox.auth(header, self.arena.auths(place, header.length.into()));
        }
        let runs = self.runs(place, header.length.into());
        self.read_runs(header, place, sums, runs);
    }

    /// What takes memory of a range, in the room that there is for that.
    pub(super) fn runs(&mut self, place: u64, len: u64) -> Vec<Run> {
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        self.arena.runs(place, len, |bytes, is_present| runs.push(Run { bytes, is_present }));
        runs
    }

    /// Answers with these.
    pub(super) fn read_runs(
        &mut self,
        header: &RequestHeader,
        place: u64,
        sums: Option<impl ExactSizeIterator<Item = u32>>,
        runs: Vec<Run>,
    ) {
        let Sending { outbox, lent_bytes, .. } = self;
        if let Some(sums) = sums {
            outbox.contexts(header, sums);
        }
        outbox.read(header, &runs, HOLE_BYTES_MIN, |at, run| {
            let at = place + (at - header.offset);
            match run.is_present {
                true if run.bytes >= LEND_REPLY_BYTES.into() => {
                    *lent_bytes += run.bytes;
                    Source::Lent(at)
                }
                true => Source::Arena(at),
                false => Source::Zeros,
            }
        });
        self.runs = runs;
    }

    /// Sends all that waits.
    pub(super) async fn send(&mut self) -> io::Result<()> {
        let bytes = self.outbox.bytes();
        while !self.outbox.is_empty() {
            self.stream.writable().await?;
            match self.send_once() {
                Ok(sent) => drop(self.outbox.sent(sent as u64, drop)),
                Err(e) => unless_in_vain(e)?,
            }
        }
        self.arena.count_moved(bytes);
        self.lent_bytes = 0;
        Ok(())
    }

    fn lends(&self) -> bool {
        self.lent_bytes >= LEND_TOGETHER_BYTES && self.stream.lends()
    }

    /// Whether a piece is lent, or the head of one that is and with which it fits into the pipe.
    fn leaves_lent(&self, piece: &Piece<'_, Source>, next: Option<&Piece<'_, Source>>) -> bool {
        let is_lent = match (piece, next) {
            (Piece::Payload { payload: Source::Lent(_), .. }, _) => true,
            (Piece::Head(_), Some(Piece::Payload { payload: Source::Lent(_), bytes, .. })) => {
                *bytes < ROOM_BYTES as u64
            }
            _ => false,
        };
        is_lent && self.lends()
    }

    /// Sends replies that are lent, one behind the other, as many as there are.
    fn lend(&self) -> io::Result<usize> {
        let mut held = self.stream.held();
        let mut more = false;
        let mut pieces = self.outbox.pieces().peekable();
        while let Some(piece) = pieces.next() {
            if !self.leaves_lent(&piece, pieces.peek()) {
                more = true;
                break;
            }
            let len = size(piece.bytes());
            if held < len {
                let taken = match piece {
                    Piece::Head(head) => self.stream.hold_copy(&head[held..]),
                    Piece::Payload { payload: Source::Lent(offset), at, .. } => {
                        let lent = iovec(self.arena.address(offset + at + held as u64), len - held);
                        // SAFETY: a checked range of the arena, which is mapped as long as `self.arena` is
                        // borrowed.
                        unsafe { self.stream.hold(&[lent]) }
                    }
                    Piece::Payload { .. } => unreachable!("they are not lent"),
                };
                if taken < len - held {
                    more = true;
                    break;
                }
            }
            held = held.saturating_sub(len);
        }
        self.stream.pass_on(more)
    }

    fn send_once(&self) -> io::Result<usize> {
        let mut ahead = self.outbox.pieces();
        if let Some(first) = ahead.next()
            && self.leaves_lent(&first, ahead.next().as_ref())
        {
            return self.lend();
        }
        let mut pieces: Vec<libc::iovec> = Vec::with_capacity(64.min(2 * self.outbox.len()));
        let mut more = false;
        for piece in self.outbox.pieces() {
            match piece {
                Piece::Head(head) => pieces.push(iovec(head.as_ptr(), head.len())),
                Piece::Payload { payload: Source::Lent(_), .. } if self.lends() => {
                    more = true;
                    break;
                }
                Piece::Payload { payload: Source::Arena(offset) | Source::Lent(offset), at, bytes } => {
                    pieces.push(iovec(self.arena.address(offset + at), size(bytes)));
                }
                Piece::Payload { payload: Source::Zeros, bytes, .. } => zeros(bytes, &mut pieces),
            }
            if pieces.len() >= PIECES_MAX {
                break;
            }
        }
        // SAFETY: the pieces are heads, which do not change while the outbox is borrowed, static zeros, and
        // checked ranges of the arena, which is mapped as long as `self.arena` is borrowed.
        unsafe { self.stream.try_send(&pieces, more) }
    }
}

/// The length of a piece, which is in memory.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("mapped")
}

fn zeros(mut len: u64, pieces: &mut Vec<libc::iovec>) {
    while len > 0 && pieces.len() < PIECES_MAX {
        let piece = len.min(ZEROS.len() as u64);
        pieces.push(iovec(ZEROS.as_ptr(), size(piece)));
        len -= piece;
    }
}
