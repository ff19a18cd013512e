//! The answers to requests, as the client agreed to get them: with structured replies, or without.
//!
//! Owns: which messages an answer is made of, and how a read with holes is cut. Never: how they are laid out,
//! which is `reply`'s, or what a request found. Invariant: an answer is whole when its call returns, but for
//! BLOCK_STATUS, of which the driver says what is the last, and for `auth` and `contexts`, behind which
//! `read` follows. Called by the drivers of [`super::Transmission`]. Tests: below, `tests/outbox.rs`.

use super::outbox::Outbox;
use super::reply::{self, LedgerEntry};
use super::request::RequestHeader;
use crate::export::Descriptor;
use crate::limits::AUTH_BYTES;
use crate::proto::{CmdFlags, Errno};

/// Bytes behind each other that are all there, or none of which are: those are zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// More than 0.
    pub bytes: u64,
    /// False: absent blocks, which read as zeros and need not be sent.
    pub is_present: bool,
}

impl<P> Outbox<P> {
    /// Success without data.
    pub fn done(&mut self, cookie: u64) {
        if self.structured {
            self.head(|heads| heads.extend_from_slice(&reply::none_done(cookie)));
        } else {
            self.done_simply(cookie);
        }
    }

    /// The same without a chunk whatever was agreed, which is allowed as the answer to anything but a READ.
    pub fn done_simply(&mut self, cookie: u64) {
        self.head(|heads| heads.extend_from_slice(&reply::simple(cookie, None)));
    }

    /// Success of a WRITE, with the CRC32Cs of the blocks that it touched. They have to be agreed on.
    pub fn done_with(&mut self, cookie: u64, sums: impl ExactSizeIterator<Item = u32>) {
        self.head(|heads| reply::contexts(cookie, true, sums, heads));
    }

    /// Before the data of a READ: the CRC32Cs of the blocks that it touches. They have to be agreed on.
    pub fn contexts(&mut self, request: &RequestHeader, sums: impl ExactSizeIterator<Item = u32>) {
        self.head(|heads| reply::contexts(request.cookie, false, sums, heads));
    }

    /// Before the checksums of a READ: nonce and authentication tag of the blocks that it touches. They have
    /// to be agreed on.
    pub fn auth(&mut self, request: &RequestHeader, all: impl ExactSizeIterator<Item = [u8; AUTH_BYTES]>) {
        self.head(|heads| reply::auth(request.cookie, false, all, heads));
    }

    /// Failure, with a sentence for clients that can show one.
    pub fn error(&mut self, cookie: u64, errno: Errno, message: &str) {
        if self.structured {
            self.head(|heads| reply::error(cookie, true, errno, message, heads));
        } else {
            self.head(|heads| heads.extend_from_slice(&reply::simple(cookie, Some(errno))));
        }
    }

    /// Failure of a READ from one place on. `errno` is told at that place where the client can be told
    /// places.
    pub fn error_at(&mut self, cookie: u64, errno: Errno, offset: u64, message: &str) {
        if self.structured {
            self.head(|heads| reply::error_offset(cookie, true, errno, offset, message, heads));
        } else {
            self.error(cookie, errno, message);
        }
    }

    /// All that a READ asked for, in one payload.
    pub fn data(&mut self, request: &RequestHeader, payload: P) {
        self.whole_head(request);
        self.payload(payload, request.length.into());
    }

    /// What a READ asked for, which is not nothing: `runs` one behind the other. Holes of `hole_bytes_min`
    /// and more are named and not sent where the client can be told so, and a READ that finds nothing but a
    /// hole is told so, too. `payload` says what to send for a run at an offset: data, or zeros.
    pub fn read(
        &mut self,
        request: &RequestHeader,
        runs: &[Run],
        hole_bytes_min: u64,
        mut payload: impl FnMut(u64, Run) -> P,
    ) {
        let end = request.offset + u64::from(request.length);
        debug_assert_eq!(end - request.offset, runs.iter().map(|run| run.bytes).sum());
        let is_named = |run: &Run| !run.is_present && (run.bytes >= hole_bytes_min || runs.len() == 1);
        let mut at = request.offset;
        if !self.structured || request.flags.contains(CmdFlags::DF) || !runs.iter().any(is_named) {
            self.whole_head(request);
            for run in runs {
                self.payload(payload(at, *run), run.bytes);
                at += run.bytes;
            }
            return;
        }
        let mut rest = runs;
        while let Some(first) = rest.first() {
            if is_named(first) {
                let next = at + first.bytes;
                let hole = reply::offset_hole(request.cookie, next == end, at, part(first.bytes));
                self.head(|heads| heads.extend_from_slice(&hole));
                (at, rest) = (next, &rest[1..]);
                continue;
            }
            let (together, behind) = rest.split_at(rest.iter().take_while(|run| !is_named(run)).count());
            let bytes = together.iter().map(|run| run.bytes).sum();
            let data = reply::offset_data(request.cookie, at + bytes == end, at, part(bytes));
            self.head(|heads| heads.extend_from_slice(&data));
            for run in together {
                self.payload(payload(at, *run), run.bytes);
                at += run.bytes;
            }
            rest = behind;
        }
    }

    /// The head of an answer to a READ with all its data behind it.
    fn whole_head(&mut self, request: &RequestHeader) {
        let RequestHeader { cookie, offset, length, .. } = *request;
        if self.structured {
            let head = reply::offset_data(cookie, true, offset, length);
            self.head(|heads| heads.extend_from_slice(&head));
        } else {
            self.head(|heads| heads.extend_from_slice(&reply::simple(cookie, None)));
        }
    }

    /// The states of the range that was asked about, in one context, or of its first run if that is what was
    /// asked for. With `done` it is the last chunk of the answer.
    pub fn status(&mut self, request: &RequestHeader, done: bool, context: u32, descriptors: &[Descriptor]) {
        let asked = if request.flags.contains(CmdFlags::REQ_ONE) { 1 } else { descriptors.len() };
        let descriptors = &descriptors[..asked.min(descriptors.len())];
        self.head(|heads| reply::block_status(request.cookie, done, context, descriptors, heads));
    }

    /// The writes that touch the range; a chunk of the answer to BLOCK_STATUS, before its last.
    pub fn ledger(&mut self, request: &RequestHeader, complete: u64, entries: &[LedgerEntry]) {
        self.head(|heads| reply::ledger(request.cookie, false, complete, entries, heads));
    }
}

/// The length of a part of a request.
fn part(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::StateFlags;
    use crate::proto::Command;
    use crate::server::outbox::Piece;

    const HOLE_BYTES_MIN: u64 = 100;

    fn request(command: Command, flags: CmdFlags, length: u32) -> RequestHeader {
        RequestHeader { flags, command, cookie: 7, offset: 1000, length }
    }

    fn run(bytes: u64, is_present: bool) -> Run {
        Run { bytes, is_present }
    }

    /// What was sent: heads as they are, payloads as the offset and the run they were made for.
    fn sent(outbox: &Outbox<(u64, Run)>) -> (Vec<u8>, Vec<(u64, Run)>) {
        outbox.check_invariants();
        let (mut heads, mut payloads) = (Vec::new(), Vec::new());
        for piece in outbox.pieces() {
            match piece {
                Piece::Head(head) => heads.extend_from_slice(head),
                Piece::Payload { payload, bytes, .. } => {
                    assert_eq!(payload.1.bytes, bytes);
                    payloads.push(*payload);
                }
            }
        }
        (heads, payloads)
    }

    fn read(structured: bool, flags: CmdFlags, runs: &[Run]) -> (Vec<u8>, Vec<(u64, Run)>) {
        let mut outbox = Outbox::new(structured);
        let length = part(runs.iter().map(|run| run.bytes).sum());
        outbox.read(&request(Command::Read, flags, length), runs, HOLE_BYTES_MIN, |at, run| (at, run));
        sent(&outbox)
    }

    #[test]
    fn holes_worth_naming_are_chunks_and_others_are_sent() {
        let runs = [run(50, true), run(99, false), run(1, true), run(100, false), run(10, true)];
        let (heads, payloads) = read(true, CmdFlags::EMPTY, &runs);
        let expected = [
            &reply::offset_data(7, false, 1000, 150)[..],
            &reply::offset_hole(7, false, 1150, 100),
            &reply::offset_data(7, true, 1250, 10),
        ];
        assert_eq!(heads, expected.concat());
        assert_eq!(payloads, [(1000, runs[0]), (1050, runs[1]), (1149, runs[2]), (1250, runs[4])]);
    }

    #[test]
    fn nothing_but_a_hole_is_named_however_short() {
        let (heads, payloads) = read(true, CmdFlags::EMPTY, &[run(1, false)]);
        assert_eq!((&heads[..], payloads), (&reply::offset_hole(7, true, 1000, 1)[..], vec![]));
        let runs = [run(10, true), run(200, false)];
        let (heads, payloads) = read(true, CmdFlags::EMPTY, &runs);
        let expected = [&reply::offset_data(7, false, 1000, 10)[..], &reply::offset_hole(7, true, 1010, 200)];
        assert_eq!((heads, payloads), (expected.concat(), vec![(1000, runs[0])]));
    }

    #[test]
    fn who_wants_one_piece_or_knows_no_chunks_gets_the_zeros() {
        let runs = [run(500, false), run(10, true)];
        let all = vec![(1000, runs[0]), (1500, runs[1])];
        let one = reply::offset_data(7, true, 1000, 510).to_vec();
        assert_eq!(read(true, CmdFlags::DF, &runs), (one, all.clone()));
        assert_eq!(read(false, CmdFlags::EMPTY, &runs), (reply::simple(7, None).to_vec(), all));
    }

    #[test]
    fn success_and_failure_have_the_form_that_was_agreed() {
        for structured in [false, true] {
            let mut outbox = Outbox::new(structured);
            outbox.done(1);
            outbox.done_simply(2);
            outbox.error(3, Errno::Io, "lost");
            let mut expected = Vec::new();
            if structured {
                expected.extend(reply::none_done(1));
                expected.extend(reply::simple(2, None));
                reply::error(3, true, Errno::Io, "lost", &mut expected);
            } else {
                let answers = [(1, None), (2, None), (3, Some(Errno::Io))];
                expected = answers.map(|(cookie, error)| reply::simple(cookie, error)).concat();
            }
            assert_eq!(sent(&outbox), (expected, vec![]));
        }
    }

    #[test]
    fn one_run_is_told_to_who_asks_for_one() {
        let runs = [3, 4].map(|length| Descriptor { length, flags: StateFlags::EMPTY });
        for (flags, count) in [(CmdFlags::EMPTY, 2), (CmdFlags::REQ_ONE, 1)] {
            let mut outbox = Outbox::new(true);
            outbox.status(&request(Command::BlockStatus, flags, 7), true, 9, &runs);
            let mut expected = Vec::new();
            reply::block_status(7, true, 9, &runs[..count], &mut expected);
            assert_eq!(sent(&outbox), (expected, vec![]));
        }
    }
}
