//! The requests of one client after the handshake: bytes in, steps out.
//!
//! Owns: what was negotiated, the write whose payload is still to come, and whether the client said DISC.
//! Never: memory. The driver keeps the input and says where a payload goes; it may receive one there without
//! showing it. Invariant: the same bytes give the same requests and the same payloads, however they were cut;
//! and after a violation nothing more is taken.
//! The driver calls [`Transmission::next`] until it is `None`, then receives: what `payload` misses to its
//! place, or what comes next behind the input that was left. Answers are an [`super::Outbox`]'s.
//! Called by `rim::donor::connection` and `front::export::connection`. Tests: below, `tests/transmission.rs`.

use super::request::{Reject, RequestHeader};
use crate::export::Negotiated;
use crate::proto::{Command, Errno};
use crate::violation::Violation;

/// What the client sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// To be carried out, or answered with the error. A payload follows in either case: of a write that was
    /// refused, by this verdict or by the driver, it is dropped.
    Request {
        /// As it came; a MARK's fields are read with [`super::request::Mark::of`].
        header: RequestHeader,
        /// What [`RequestHeader::check`] says of it: the header's own command, or what to answer.
        verdict: Result<Command, Errno>,
    },
    /// A piece of the payload of the last request, and its place in it.
    Payload {
        /// Counted from the start of the payload.
        at: usize,
        /// A part of the input, at least a byte. Empty payloads have no such step.
        bytes: &'a [u8],
    },
    /// That payload is whole.
    Whole(RequestHeader),
    /// It said DISC. What was begun is answered, and no input is taken any more.
    End,
}

/// The payload that comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Of its request.
    pub header: RequestHeader,
    /// So much of it was here.
    pub at: usize,
}

impl Payload {
    /// So much of it is still to come.
    #[must_use]
    pub const fn missing(&self) -> usize {
        self.header.payload_bytes() as usize - self.at
    }
}

/// The input side of one client's session.
#[derive(Debug)]
pub struct Transmission {
    session: Negotiated,
    large_bytes: u32,
    payload: Option<Payload>,
    large_expected: bool,
    has_ended: bool,
}

impl Transmission {
    /// Payloads from `large_bytes` on are those that the driver prefers to receive where they belong.
    #[must_use]
    pub const fn new(session: Negotiated, large_bytes: u32) -> Self {
        Self { session, large_bytes, payload: None, large_expected: false, has_ended: false }
    }

    // Input.

    /// The next step, and `input` behind what it took. `None`: what is left is the beginning of something,
    /// which the driver keeps and offers again with more behind it.
    ///
    /// # Errors
    /// The client broke the protocol. The connection is to be closed.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Step<'a>>, Violation> {
        if let Some(payload) = &mut self.payload {
            let missing = payload.missing();
            if missing == 0 {
                let header = payload.header;
                self.payload = None;
                return Ok(Some(Step::Whole(header)));
            }
            let (bytes, rest) = input.split_at(input.len().min(missing));
            if bytes.is_empty() {
                return Ok(None);
            }
            *input = rest;
            let at = payload.at;
            payload.at += bytes.len();
            return Ok(Some(Step::Payload { at, bytes }));
        }
        if self.has_ended {
            return Ok(Some(Step::End));
        }
        let Some((header, rest)) = input.split_first_chunk() else { return Ok(None) };
        let header = RequestHeader::decode_in(header, self.session.is_sealed())?;
        let verdict = match header.check(&self.session) {
            Err(Reject::Close(violation)) => return Err(violation),
            Err(Reject::Reply(errno)) => Err(errno),
            Ok(command) => Ok(command),
        };
        *input = rest;
        if header.command == Command::Disc {
            self.has_ended = true;
            return Ok(Some(Step::End));
        }
        if !matches!(header.command, Command::Mark | Command::Digest | Command::Auth) {
            self.large_expected = header.payload_bytes() >= self.large_bytes;
        }
        self.payload = (header.payload_bytes() > 0).then_some(Payload { header, at: 0 });
        Ok(Some(Step::Request { header, verdict }))
    }

    /// The driver received the next bytes of the payload where they belong; `next` will not show them.
    pub fn landed(&mut self, bytes: usize) {
        if bytes > 0 {
            let payload = self.payload.as_mut().expect("there is a payload that they belong to");
            assert!(bytes <= payload.missing(), "what lies behind a payload is input");
            payload.at += bytes;
        }
    }

    // What there is.

    /// The payload that comes in, until `next` has said that it is whole.
    #[must_use]
    pub const fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// Whether no more than a head should be received, a header and what is said before it: behind a large
    /// write there is likely another one, and what is received behind its head would have to be copied.
    #[must_use]
    pub const fn head_only(&self) -> bool {
        self.large_expected && self.payload.is_none()
    }

    /// The client said DISC: it awaits what it asked before, and sends nothing more.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// What the handshake came to, against which each request is checked.
    #[must_use]
    pub const fn session(&self) -> &Negotiated {
        &self.session
    }

    /// # Panics
    /// The machine contradicts itself.
    pub fn check_invariants(&self) {
        if let Some(Payload { header, at }) = self.payload {
            assert!(header.payload_bytes() > 0, "there is a payload to wait for");
            assert!(at <= header.payload_bytes() as usize, "no more came than belongs to it");
            assert!(!self.has_ended, "nothing comes behind DISC");
            let is_large = header.payload_bytes() >= self.large_bytes;
            assert!(header.command == Command::Auth || self.large_expected == is_large);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::export::ExportInfo;
    use crate::limits::REQUEST_PAYLOAD_BYTES_MAX;
    use crate::proto::{CmdFlags, TransmissionFlags};

    const LARGE: u32 = 100;

    fn machine() -> Transmission {
        let info = ExportInfo::new(4096, TransmissionFlags::EMPTY);
        let session = Negotiated {
            export: String::new(),
            info,
            structured_replies: true,
            base_allocation: None,
            dirty: None,
            context: None,
            auth: None,
        };
        Transmission::new(session, LARGE)
    }

    fn request(command: Command, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags: CmdFlags::EMPTY, command, cookie: 7, offset, length }
    }

    fn step<'a>(machine: &mut Transmission, input: &mut &'a [u8]) -> Option<Step<'a>> {
        let step = machine.next(input).unwrap();
        machine.check_invariants();
        step
    }

    #[test]
    fn a_payload_comes_in_pieces_and_directly_and_then_it_is_whole() {
        let mut machine = machine();
        let (write, read) = (request(Command::Write, 0, 10), request(Command::Read, 0, 10));
        let bytes = [&write.encode()[..], b"abc"].concat();
        let mut input = &bytes[..];
        let verdict = Ok(Command::Write);
        assert_eq!(step(&mut machine, &mut input), Some(Step::Request { header: write, verdict }));
        assert_eq!(step(&mut machine, &mut input), Some(Step::Payload { at: 0, bytes: b"abc" }));
        assert_eq!(step(&mut machine, &mut input), None);
        machine.landed(5);
        assert_eq!(machine.payload(), Some(&Payload { header: write, at: 8 }));
        let bytes = [&b"xy"[..], &read.encode()[..], b"z"].concat();
        let mut input = &bytes[..];
        assert_eq!(step(&mut machine, &mut input), Some(Step::Payload { at: 8, bytes: b"xy" }));
        assert_eq!(machine.payload().map(Payload::missing), Some(0), "until it was said");
        assert_eq!(step(&mut machine, &mut input), Some(Step::Whole(write)));
        let verdict = Ok(Command::Read);
        assert_eq!(step(&mut machine, &mut input), Some(Step::Request { header: read, verdict }));
        assert_eq!((step(&mut machine, &mut input), input), (None, &b"z"[..]));
    }

    #[test]
    fn the_payload_of_a_refused_write_comes_as_well() {
        let mut machine = machine();
        let write = request(Command::Write, 4000, 100);
        let bytes = [&write.encode()[..], &[5; 100]].concat();
        let mut input = &bytes[..];
        let verdict = Err(Errno::NoSpc);
        assert_eq!(step(&mut machine, &mut input), Some(Step::Request { header: write, verdict }));
        assert_eq!(step(&mut machine, &mut input), Some(Step::Payload { at: 0, bytes: &[5; 100] }));
        assert_eq!(step(&mut machine, &mut input), Some(Step::Whole(write)));
        assert_eq!(step(&mut machine, &mut input), None);
    }

    #[test]
    fn behind_a_large_write_only_a_head_is_asked_for() {
        let mut machine = machine();
        assert!(!machine.head_only());
        for (header, expected) in [
            (request(Command::Write, 0, LARGE), true),
            (request(Command::Write, 0, LARGE - 1), false),
            (request(Command::Write, 0, LARGE), true),
            (request(Command::Mark, 0, 0), true),
            (request(Command::Digest, 0, 0), true),
            (request(Command::Read, 0, LARGE), false),
        ] {
            let bytes = header.encode();
            step(&mut machine, &mut &bytes[..]).unwrap();
            if let Some(missing) = machine.payload().map(Payload::missing) {
                assert!(!machine.head_only(), "its payload is asked for");
                machine.landed(missing);
                assert_eq!(step(&mut machine, &mut &[][..]), Some(Step::Whole(header)));
            }
            assert_eq!(machine.head_only(), expected, "{header:?}");
        }
    }

    #[test]
    fn nothing_is_taken_behind_the_end() {
        let mut machine = machine();
        let bytes = [request(Command::Disc, 0, 0), request(Command::Read, 0, 1)].map(|r| r.encode()).concat();
        let mut input = &bytes[..];
        assert!(!machine.has_ended());
        for _ in 0..2 {
            assert_eq!(step(&mut machine, &mut input), Some(Step::End));
            assert_eq!((machine.has_ended(), input.len()), (true, RequestHeader::BYTES));
        }
    }

    #[test]
    fn nothing_is_taken_behind_a_violation() {
        let mut machine = machine();
        let too_big = request(Command::Write, 0, REQUEST_PAYLOAD_BYTES_MAX + 1);
        let violation =
            Violation::PayloadTooBig { command: Command::Write, bytes: REQUEST_PAYLOAD_BYTES_MAX + 1 };
        for (bytes, violation) in
            [([0; RequestHeader::BYTES], Violation::RequestMagic(0)), (too_big.encode(), violation)]
        {
            let mut input = &bytes[..];
            for _ in 0..2 {
                assert_eq!(machine.next(&mut input), Err(violation));
                assert_eq!((machine.payload(), input), (None, &bytes[..]));
            }
        }
    }

    #[test]
    #[should_panic(expected = "what lies behind a payload is input")]
    fn no_more_lands_than_belongs_to_a_payload() {
        let mut machine = machine();
        let bytes = request(Command::Write, 0, 10).encode();
        step(&mut machine, &mut &bytes[..]);
        machine.landed(11);
    }
}
