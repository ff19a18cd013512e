//! The client's words: parts as requests, answers as events, and what a refused handshake means for a link.
//!
//! Never: which donor a part goes to, what follows from a failure, or where payloads lie. Tests: below.

use crate::donor::ABSENT;
use crate::marks;
use cheetah_core::donor::WriteMark;
use cheetah_core::volume::{Event, Key, LinkFailure, PartError, PartOp, StatusRun};
use cheetah_nbd::client::{Answer, Error, Request};
use cheetah_nbd::proto::rep;
use cheetah_nbd::{
    CmdFlags, Command, Descriptor, Errno, Mark, Negotiated, RequestHeader, StateFlags, TransmissionFlags,
};
use std::fmt::Display;

/// What a server can do for parts, as the handshake told.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    flags: TransmissionFlags,
    /// The id of the context that tells holes.
    holes: Option<u32>,
    /// The id of the context that tells what was written lately.
    dirty: Option<u32>,
    /// The id of the context by which blocks are checked.
    context: Option<u32>,
    /// The id of the context by which blocks are authenticated.
    auth: Option<u32>,
}

impl Abilities {
    /// What was agreed on.
    #[must_use]
    pub const fn of(session: &Negotiated) -> Abilities {
        let Negotiated { base_allocation: holes, dirty, context, auth, .. } = *session;
        Abilities { flags: session.info.flags, holes, dirty, context, auth }
    }

    /// Whether writes are numbered for the server's ledger: only a Cheetah donor tells what was written
    /// lately, and who may write numbers what it writes.
    #[must_use]
    pub const fn numbers_writes(self) -> bool {
        self.dirty.is_some() && !self.flags.contains(TransmissionFlags::READ_ONLY)
    }

    /// Whether all was agreed on that every donor has.
    #[must_use]
    pub const fn is_a_donors(self) -> bool {
        self.holes.is_some() && self.dirty.is_some() && self.context.is_some()
    }

    /// Whether heads are under a seal.
    #[must_use]
    pub const fn is_sealed(self) -> bool {
        self.context.is_some()
    }

    /// Whether nonce and authentication tag go with each block.
    #[must_use]
    pub const fn has_auth(self) -> bool {
        self.auth.is_some()
    }

    /// The answer to what this server cannot do: a hint is no loss, unknown presence counts as present.
    #[must_use]
    pub fn answer_without(self, op: PartOp) -> Option<Result<Vec<StatusRun>, PartError>> {
        let lacks = |flag| !self.flags.contains(flag);
        match op {
            PartOp::Zero { .. } if lacks(TransmissionFlags::SEND_WRITE_ZEROES) => {
                Some(Err(PartError::Unsupported))
            }
            PartOp::Age | PartOp::Flush if lacks(TransmissionFlags::SEND_FLUSH) => Some(Ok(Vec::new())),
            PartOp::Trim if lacks(TransmissionFlags::SEND_TRIM) => Some(Ok(Vec::new())),
            PartOp::Status | PartOp::Presence if self.holes.is_none() => Some(Ok(Vec::new())),
            PartOp::Survey if self.dirty.is_none() => Some(Err(PartError::Unsupported)),
            PartOp::Verify if self.context.is_none() => Some(Err(PartError::Unsupported)),
            PartOp::Undo if self.dirty.is_none() => Some(Err(PartError::Unsupported)),
            _ => None,
        }
    }

    /// The operation as it is sent: zeros that need not travel stay here, where the server can make them.
    #[must_use]
    pub fn sparing(self, op: PartOp, is_zero: impl FnOnce() -> bool) -> PartOp {
        let can_zero = self.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES);
        if op == PartOp::Sparse && can_zero && is_zero() { PartOp::Zero { keep: false } } else { op }
    }

    /// The request that a part becomes. Its offset and length are what the wire counts.
    pub fn request<B>(
        self,
        part: Key,
        op: PartOp,
        offset: u64,
        length: u32,
        mark: Option<WriteMark>,
        body: B,
    ) -> Request<B> {
        // What a donor is given that did not have it has to be as lasting there as it was elsewhere.
        let lasting = if self.is_a_donors() { CmdFlags::FUA } else { CmdFlags::EMPTY };
        let (command, flags) = match op {
            PartOp::Read => (Command::Read, CmdFlags::EMPTY),
            PartOp::Write => (Command::Write, CmdFlags::EMPTY),
            PartOp::Sparse => (Command::Write, lasting),
            PartOp::Zero { keep: true } => (Command::WriteZeroes, CmdFlags::NO_HOLE | lasting),
            PartOp::Zero { keep: false } => (Command::WriteZeroes, lasting),
            PartOp::Trim => (Command::Trim, CmdFlags::EMPTY),
            PartOp::Status | PartOp::Presence | PartOp::Survey => (Command::BlockStatus, CmdFlags::EMPTY),
            PartOp::Verify => (Command::Verify, CmdFlags::EMPTY),
            PartOp::Undo => (Command::Undo, CmdFlags::EMPTY),
            PartOp::Age => (Command::Flush, CmdFlags::EMPTY),
            PartOp::Flush => (Command::Flush, lasting),
        };
        let context = match op {
            PartOp::Survey => self.dirty,
            PartOp::Verify => self.context,
            _ => self.holes,
        };
        let (cookie, mark) = (part.to_u64(), mark.map(marks::spoken));
        Request {
            cookie,
            command,
            flags,
            offset,
            length,
            mark,
            digest: None,
            auth: Vec::new(),
            context,
            body,
        }
    }
}

/// What a part of this length sends behind its header.
#[must_use]
pub const fn payload_bytes(op: PartOp, length: u32) -> u32 {
    if matches!(op, PartOp::Write | PartOp::Sparse) { length } else { 0 }
}

/// What is said first on a connection whose writes are numbered: from then on the donor tells of those.
#[must_use]
pub fn first_words(is_sealed: bool) -> [u8; RequestHeader::BYTES] {
    Mark { number: 0, targets: 0, complete: 0, keep: false }.header().encode_in(is_sealed)
}

/// The events that the answer to a part is. `wrong_blocks`: of what a read brought, or a donor has of a
/// write, so many are not what was written.
pub fn answered<B>(op: PartOp, answer: Answer<B>, wrong: Option<PartError>, events: &mut Vec<Event>) {
    let Answer { cookie, error, beyond, status, ledger, .. } = answer;
    let part = Key::from_u64(cookie);
    let answer = match (error, wrong) {
        (Some(errno), _) => Err(part_error(errno, beyond)),
        (None, Some(wrong)) => Err(wrong),
        (None, None) => Ok(status.iter().map(|run| status_run(op, *run)).collect()),
    };
    if let Some((complete, entries)) = ledger.filter(|_| answer.is_ok()) {
        let writes = entries.into_iter().map(marks::listed).collect();
        events.push(Event::Listed { part, complete, writes });
    }
    events.push(Event::Answered { part, answer });
}

fn status_run(op: PartOp, run: Descriptor) -> StatusRun {
    let hole = match op {
        PartOp::Survey => !run.flags.contains(StateFlags::DIRTY),
        PartOp::Verify => !run.flags.contains(StateFlags::WRONG),
        PartOp::Presence => run.flags == ABSENT,
        _ => run.flags.contains(StateFlags::HOLE.with(StateFlags::ZERO)),
    };
    StatusRun { len: run.length, hole }
}

/// `beyond`: the range leaves the export as it was announced, so what was there is not the volume's any more:
/// its map is older.
const fn part_error(errno: Errno, beyond: bool) -> PartError {
    match errno {
        Errno::Perm => PartError::Denied,
        Errno::Inval | Errno::NoSpc if beyond => PartError::Denied,
        Errno::NoMem | Errno::NoSpc => PartError::NoMemory,
        Errno::NotSup => PartError::Unsupported,
        Errno::NoData => PartError::Absent,
        _ => PartError::Io,
    }
}

/// What a handshake that failed means for the link to this address.
#[must_use]
pub fn link_failure(error: &Error, address: impl Display) -> LinkFailure {
    let why = format!("{address}: {error}");
    match error {
        // Only a Cheetah donor that has taken over another's address says that (`donor::refusal`).
        Error::Refused { reply: rep::ERR_POLICY, .. } => LinkFailure::Refused(why),
        Error::Refused { .. } => LinkFailure::NotAdmitted(why),
        _ => LinkFailure::NotOpened(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::donor::{self, Asked};
    use cheetah_core::donor::{ListedWrite, OpenError};
    use cheetah_nbd::proto::opt;
    use cheetah_nbd::{ExportInfo, LedgerEntry};

    const HOLES: u32 = 1;
    const DIRTY: u32 = 2;
    const CONTEXT: u32 = 3;
    const KEY: u64 = 3 << 32 | 9;

    fn abilities(flags: TransmissionFlags, contexts: bool) -> Abilities {
        Abilities::of(&Negotiated {
            export: String::new(),
            info: ExportInfo::new(1 << 20, flags),
            structured_replies: true,
            base_allocation: contexts.then_some(HOLES),
            dirty: contexts.then_some(DIRTY),
            context: contexts.then_some(CONTEXT),
            auth: None,
        })
    }

    fn events(op: PartOp, answer: Answer<()>, wrong_blocks: u32) -> Vec<Event> {
        let mut events = Vec::new();
        let wrong = (wrong_blocks > 0).then_some(PartError::Corrupt { blocks: wrong_blocks, forged: false });
        answered(op, answer, wrong, &mut events);
        events
    }

    fn answer(error: Option<Errno>, beyond: bool) -> Answer<()> {
        let (status, ledger) = (Vec::new(), None);
        Answer {
            cookie: KEY,
            abandoned: false,
            error,
            beyond,
            status,
            ledger,
            sums: Vec::new(),
            auth: Vec::new(),
            body: (),
        }
    }

    fn error_of(errno: Errno, beyond: bool) -> PartError {
        match &events(PartOp::Write, answer(Some(errno), beyond), 0)[..] {
            [Event::Answered { answer: Err(error), .. }] => *error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_donor_takes_each_part_for_what_was_meant() {
        let mark = WriteMark { number: 7, targets: 3, complete: 6, keep: true };
        let can = abilities(donor::offered(true), true);
        for (op, meant, context) in [
            (PartOp::Read, Asked::Read, Some(HOLES)),
            (PartOp::Write, Asked::Write, Some(HOLES)),
            (PartOp::Sparse, Asked::Write, Some(HOLES)),
            (PartOp::Zero { keep: true }, Asked::Zero { keep: true }, Some(HOLES)),
            (PartOp::Zero { keep: false }, Asked::Zero { keep: false }, Some(HOLES)),
            (PartOp::Trim, Asked::Zero { keep: false }, Some(HOLES)),
            (PartOp::Status, Asked::Status, Some(HOLES)),
            (PartOp::Presence, Asked::Status, Some(HOLES)),
            (PartOp::Survey, Asked::Status, Some(DIRTY)),
            (PartOp::Verify, Asked::Verify, Some(CONTEXT)),
            (PartOp::Undo, Asked::Undo, Some(HOLES)),
            (PartOp::Age, Asked::Age, Some(HOLES)),
            (PartOp::Flush, Asked::Flush, Some(HOLES)),
        ] {
            assert_eq!(can.answer_without(op), None, "a donor can do all there is: {op:?}");
            let request = can.request(Key::from_u64(KEY), op, 4096, 512, Some(mark), ());
            let Request { cookie, command, flags, offset, length, .. } = request;
            let header = RequestHeader { flags, command, cookie, offset, length };
            assert_eq!(Asked::of(&header), meant, "{op:?}");
            assert_eq!((cookie, offset, length, request.context), (KEY, 4096, 512, context));
            assert_eq!(request.payload_bytes(), payload_bytes(op, 512), "{op:?}");
            assert_eq!(Asked::of(&request.mark.expect("as given").header()), Asked::Mark(mark));
        }
    }

    #[test]
    fn what_a_server_cannot_do_is_answered_here() {
        let none = abilities(TransmissionFlags::EMPTY, false);
        let unsupported = Some(Err(PartError::Unsupported));
        assert_eq!(none.answer_without(PartOp::Zero { keep: true }), unsupported);
        assert_eq!(none.answer_without(PartOp::Survey), unsupported);
        assert_eq!(none.answer_without(PartOp::Undo), unsupported);
        for hint in [PartOp::Age, PartOp::Trim, PartOp::Status] {
            assert_eq!(none.answer_without(hint), Some(Ok(Vec::new())), "{hint:?}");
        }
        for op in [PartOp::Read, PartOp::Write, PartOp::Sparse] {
            assert_eq!(none.answer_without(op), None, "{op:?}");
        }
    }

    #[test]
    fn zeros_stay_here_where_the_server_can_make_them() {
        let (can, cannot) = (abilities(donor::offered(true), true), abilities(donor::offered(false), true));
        let zeros = PartOp::Zero { keep: false };
        assert_eq!(can.sparing(PartOp::Sparse, || true), zeros);
        assert_eq!(can.sparing(PartOp::Sparse, || false), PartOp::Sparse);
        assert_eq!(can.sparing(PartOp::Write, || unreachable!("all of it travels")), PartOp::Write);
        let foreign = abilities(TransmissionFlags::EMPTY, false);
        assert_eq!(foreign.sparing(PartOp::Sparse, || unreachable!("nothing to gain")), PartOp::Sparse);
        assert!(can.numbers_writes() && !cannot.numbers_writes() && !foreign.numbers_writes());
        let silent = RequestHeader::decode(&first_words(false)).expect("a header");
        let mark = WriteMark { number: 0, targets: 0, complete: 0, keep: false };
        assert_eq!(Asked::of(&silent), Asked::Mark(mark), "which numbers nothing yet");
    }

    #[test]
    fn an_errno_is_one_part_error() {
        assert_eq!(error_of(Errno::Perm, false), PartError::Denied);
        assert_eq!(error_of(Errno::Inval, true), PartError::Denied, "its map is older");
        assert_eq!(error_of(Errno::NoSpc, true), PartError::Denied, "likewise");
        assert_eq!(error_of(Errno::Inval, false), PartError::Io);
        assert_eq!(error_of(Errno::NoSpc, false), PartError::NoMemory);
        assert_eq!(error_of(Errno::NoMem, false), PartError::NoMemory);
        assert_eq!(error_of(Errno::NotSup, false), PartError::Unsupported);
        assert_eq!(error_of(Errno::NoData, false), PartError::Absent);
        assert_eq!(error_of(Errno::Io, true), PartError::Io);
    }

    #[test]
    fn runs_mean_what_their_context_says() {
        let runs = |op| {
            let states = [StateFlags::EMPTY, StateFlags::HOLE, donor::presence(false), donor::presence(true)];
            let status = states.map(|flags| Descriptor { length: 512, flags }).to_vec();
            match &events(op, Answer { status, ..answer(None, false) }, 0)[..] {
                [Event::Answered { answer: Ok(runs), .. }] => runs.iter().map(|run| run.hole).collect(),
                other => panic!("{other:?}"),
            }
        };
        let holes: Vec<bool> = runs(PartOp::Status);
        assert_eq!(holes, [false, false, true, false], "a hole is one that reads as zeros");
        assert_eq!(StateFlags::HOLE, donor::lately(true), "each context counts its bits for itself");
        let absent: Vec<bool> = runs(PartOp::Presence);
        assert_eq!(absent, [false, true, false, false], "zeros are no less here than data");
        let unwritten: Vec<bool> = runs(PartOp::Survey);
        assert_eq!(unwritten, [true, false, false, true]);
    }

    #[test]
    fn what_is_listed_comes_before_the_answer_and_only_with_success() {
        let part = Key::from_u64(KEY);
        let entry =
            LedgerEntry { from: 0, to: 512, number: 9, targets: 1, landed: false, undo: true, stale: false };
        let write =
            ListedWrite { from: 0, to: 512, number: 9, targets: 1, landed: false, undo: true, stale: false };
        let told = |error| Answer { ledger: Some((8, vec![entry])), ..answer(error, false) };
        let listed = Event::Listed { part, complete: 8, writes: vec![write] };
        let good = Event::Answered { part, answer: Ok(Vec::new()) };
        assert_eq!(events(PartOp::Survey, told(None), 0), [listed, good]);
        let bad = Event::Answered { part, answer: Err(PartError::Io) };
        assert_eq!(events(PartOp::Survey, told(Some(Errno::Io)), 0), [bad]);
        let corrupt = Event::Answered { part, answer: Err(PartError::Corrupt { blocks: 2, forged: false }) };
        assert_eq!(events(PartOp::Read, answer(None, false), 2), [corrupt]);
    }

    #[test]
    fn a_refusal_says_whether_the_donor_is_gone() {
        let heard = |reason: OpenError| {
            let refusal = donor::refusal(reason);
            let (reply, message) = refusal.reply();
            link_failure(&Error::Refused { option: opt::GO, reply, message: message.to_owned() }, "host:1")
        };
        assert!(
            matches!(heard(OpenError::OtherDonor), LinkFailure::Refused(why) if why.starts_with("host:1: "))
        );
        for reason in [OpenError::Malformed, OpenError::Unknown, OpenError::Superseded, OpenError::Leaving] {
            assert!(matches!(heard(reason), LinkFailure::NotAdmitted(_)), "{reason:?}");
        }
        let closed = Error::Closed { asked_export_name: false };
        assert!(matches!(link_failure(&closed, "host:1"), LinkFailure::NotOpened(_)));
    }
}
