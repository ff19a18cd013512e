//! A donor's words: what a request asks of its memory, what it offers, and how it says no.
//!
//! Never: who may touch what (`core::donor::Access`), what memory holds, or what becomes of a request. Tests:
//! below.

use crate::marks;
use cheetah_core::donor::{Access, Denied, Grant, ListedWrite, OpenError, WriteMark};
use cheetah_nbd::server::{ExportError, Outbox};
use cheetah_nbd::{
    CmdFlags, Command, Descriptor, Digest, Errno, ExportInfo, LedgerEntry, Mark, Negotiated, RequestHeader,
    StateFlags, TransmissionFlags,
};

/// What a request asks of a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Bytes of its memory.
    Read,
    /// To take bytes in.
    Write,
    /// Zeros.
    Zero {
        /// They take memory.
        keep: bool,
    },
    /// What is there, and what was written lately.
    Status,
    /// Whether what is there is what its checksums say.
    Verify,
    /// To age its marks: what is acknowledged is in memory, and memory is all there is, so a flush only says
    /// that what was written before the last one is complete on every donor.
    Age,
    /// To have on its disk what it has in memory: a flush with FUA.
    Flush,
    /// To note what is said of the writes behind it, or which write an UNDO is about. It has no answer.
    Mark(WriteMark),
    /// To hold the payload of the next write to this. It has no answer.
    Digest(Digest),
    /// To put back what the write of the last mark covered.
    Undo,
    /// Nothing that a donor would have to do.
    Nothing,
}

impl Asked {
    /// What a request that is in order asks for.
    #[must_use]
    pub const fn of(header: &RequestHeader) -> Asked {
        match header.command {
            Command::Read if header.length > 0 => Asked::Read,
            Command::Write => Asked::Write,
            Command::Trim => Asked::Zero { keep: false },
            Command::WriteZeroes => Asked::Zero { keep: header.flags.contains(CmdFlags::NO_HOLE) },
            Command::BlockStatus => Asked::Status,
            Command::Verify => Asked::Verify,
            Command::Flush if header.flags.contains(CmdFlags::FUA) => Asked::Flush,
            Command::Flush => Asked::Age,
            Command::Mark => Asked::Mark(marks::heard(Mark::of(header))),
            Command::Digest => Asked::Digest(Digest::of(header)),
            Command::Undo => Asked::Undo,
            Command::Read | Command::Cache | Command::Disc | Command::Auth | Command::Unknown(_) => {
                Asked::Nothing
            }
        }
    }
}

/// Asks `access` whether a connection may do what it asks for now.
///
/// # Errors
/// What to answer.
pub fn permit(access: &Access, grant: &Grant, header: &RequestHeader) -> Result<(), Errno> {
    let RequestHeader { command, offset, length, .. } = *header;
    let writes = command.writes();
    let touches =
        writes || matches!(command, Command::Read | Command::BlockStatus | Command::Verify | Command::Cache);
    if touches && length > 0 {
        let why = |denied| match denied {
            Denied::Beyond => header.beyond(),
            Denied::LeaseEnded | Denied::ReadOnly | Denied::NotYours => Errno::Perm,
        };
        access.check(grant, writes, offset, length).map_err(why)?;
    }
    Ok(())
}

/// What a donor can do for a connection.
#[must_use]
pub fn offered(writable: bool) -> TransmissionFlags {
    let flags = [
        TransmissionFlags::SEND_FLUSH,
        TransmissionFlags::SEND_FUA,
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        TransmissionFlags::SEND_FAST_ZERO,
        TransmissionFlags::SEND_CACHE,
        TransmissionFlags::CAN_MULTI_CONN,
        if writable { TransmissionFlags::EMPTY } else { TransmissionFlags::READ_ONLY },
    ];
    flags.into_iter().fold(TransmissionFlags::EMPTY, TransmissionFlags::with)
}

/// The export of a grant, as it is announced.
#[must_use]
pub fn export(grant: &Grant) -> ExportInfo {
    ExportInfo::new(grant.end(grant.size), offered(grant.writable))
}

/// The export by which a donor is told from others.
#[must_use]
pub const fn greeting() -> ExportInfo {
    ExportInfo::new(0, TransmissionFlags::READ_ONLY)
}

/// How an open that is refused is answered.
#[must_use]
pub fn refusal(error: OpenError) -> ExportError {
    match error {
        // An older session's answer is wanted by nobody any more.
        OpenError::Malformed | OpenError::Unknown | OpenError::Superseded => {
            ExportError::Unknown(error.to_string())
        }
        OpenError::Leaving => ExportError::Shutdown,
        // This alone tells a client that what it means is gone (`client::link_failure`).
        OpenError::OtherDonor => ExportError::Policy(error.to_string()),
    }
}

/// The state of a run in `base:allocation`: what has no memory is a hole, and reads as zeros.
#[must_use]
pub const fn presence(is_present: bool) -> StateFlags {
    if is_present { StateFlags::EMPTY } else { StateFlags::HOLE.with(StateFlags::ZERO) }
}

/// The same of blocks that are not here yet: a hole of which nobody knows what it reads as.
pub const ABSENT: StateFlags = StateFlags::HOLE;

/// Answers a READ that meets a block which is not here yet, at `offset`. Who agreed on `cheetah:context`
/// hears that it is only absent.
pub fn tell_absent<P>(outbox: &mut Outbox<P>, session: &Negotiated, cookie: u64, offset: u64) {
    match session.context {
        Some(_) => outbox.error_at(cookie, Errno::NoData, offset, ""),
        None => {
            outbox.error_at(cookie, Errno::Io, offset, "what the volume's source has there is not here yet")
        }
    }
}

/// The state of a run in `cheetah:dirty`: whether it was written lately.
#[must_use]
pub const fn lately(is_dirty: bool) -> StateFlags {
    if is_dirty { StateFlags::DIRTY } else { StateFlags::EMPTY }
}

/// The state of a run in `cheetah:context`: whether its blocks are what their checksums say.
#[must_use]
pub const fn rightness(is_right: bool) -> StateFlags {
    if is_right { StateFlags::EMPTY } else { StateFlags::WRONG }
}

/// A listed write, as the LEDGER chunk has it.
#[must_use]
pub const fn entry(write: ListedWrite) -> LedgerEntry {
    marks::entry(write)
}

/// Answers a BLOCK_STATUS: a chunk for each context that was agreed on, and before the last what is listed of
/// numbered writes: up to which number they are complete, and the others. Asked for in this order: a write
/// that leaves the list meanwhile is among the `dirty` runs.
pub fn tell_status<P>(
    outbox: &mut Outbox<P>,
    session: &Negotiated,
    header: &RequestHeader,
    holes: impl FnOnce() -> Vec<Descriptor>,
    listed: impl FnOnce() -> Option<(u64, Vec<LedgerEntry>)>,
    dirty: impl FnOnce() -> Vec<Descriptor>,
) {
    if let Some(context) = session.base_allocation {
        outbox.status(header, session.dirty.is_none(), context, &holes());
    }
    if let Some((complete, writes)) = listed() {
        outbox.ledger(header, complete, &writes);
    }
    if let Some(context) = session.dirty {
        outbox.status(header, true, context, &dirty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_nbd::client::Reply;
    use cheetah_nbd::server::outbox::Piece;

    const EXTENTS: u32 = 2;

    fn header(command: Command, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags: CmdFlags::EMPTY, command, cookie: 1, offset, length }
    }

    #[test]
    fn only_what_touches_memory_needs_a_permit() {
        let access = Access::alone(EXTENTS);
        let grant = access.open("", None).expect("all of it");
        let ended = Access::default();
        let free = [Command::Flush, Command::Mark];
        let bound = [
            Command::Read,
            Command::Write,
            Command::Trim,
            Command::WriteZeroes,
            Command::BlockStatus,
            Command::Cache,
            Command::Undo,
        ];
        for command in bound {
            assert_eq!(permit(&access, &grant, &header(command, 0, 512)), Ok(()), "{command:?}");
            assert_eq!(permit(&ended, &grant, &header(command, 0, 512)), Err(Errno::Perm), "{command:?}");
            assert_eq!(permit(&ended, &grant, &header(command, 0, 0)), Ok(()), "{command:?} of nothing");
        }
        for command in free {
            assert_eq!(permit(&ended, &grant, &header(command, 0, 512)), Ok(()), "{command:?}");
        }
    }

    #[test]
    fn what_is_denied_says_how() {
        let access = Access::alone(EXTENTS);
        let grant = access.open("", None).expect("all of it");
        let end = grant.size;
        assert_eq!(permit(&access, &grant, &header(Command::Read, end, 1)), Err(Errno::Inval));
        assert_eq!(permit(&access, &grant, &header(Command::Write, end, 1)), Err(Errno::NoSpc));
        let reader = Grant { writable: false, ..grant };
        assert_eq!(permit(&access, &reader, &header(Command::Trim, 0, 1)), Err(Errno::Perm));
        assert_eq!(permit(&access, &reader, &header(Command::Read, 0, 1)), Ok(()));
    }

    #[test]
    fn a_reader_is_offered_what_a_writer_is_but_to_write() {
        let grant = Access::alone(EXTENTS).open("", None).expect("all of it");
        let (writer, reader) = (export(&grant), export(&Grant { writable: false, ..grant }));
        assert_eq!((writer.size, reader.size), (grant.size, grant.size));
        assert_eq!(writer.flags.with(TransmissionFlags::READ_ONLY), reader.flags);
        assert!(!writer.flags.contains(TransmissionFlags::READ_ONLY));
        assert_eq!((greeting().size, greeting().flags), (0, TransmissionFlags::READ_ONLY));
    }

    #[test]
    fn a_request_without_a_duty_asks_for_nothing() {
        assert_eq!(Asked::of(&header(Command::Cache, 0, 512)), Asked::Nothing);
        assert_eq!(Asked::of(&header(Command::Read, 0, 0)), Asked::Nothing);
        assert_eq!(Asked::of(&header(Command::Read, 0, 1)), Asked::Read);
        assert_eq!(Asked::of(&header(Command::Write, 0, 0)), Asked::Write);
    }

    #[test]
    fn a_status_ends_with_the_last_context_that_was_agreed() {
        let told = |base_allocation, dirty| {
            let info = ExportInfo::new(1 << 20, offered(true));
            let session = Negotiated {
                export: String::new(),
                info,
                structured_replies: true,
                base_allocation,
                dirty,
                context: None,
                auth: None,
            };
            let mut outbox: Outbox<()> = Outbox::new(true);
            let run = |flags| vec![Descriptor { length: 512, flags }];
            let (holes, dirty_runs) = (|| run(presence(false)), || run(lately(true)));
            let listed = || dirty.map(|_| (4, Vec::new()));
            tell_status(
                &mut outbox,
                &session,
                &header(Command::BlockStatus, 0, 512),
                holes,
                listed,
                dirty_runs,
            );
            let mut bytes = Vec::new();
            for piece in outbox.pieces() {
                match piece {
                    Piece::Head(head) => bytes.extend_from_slice(head),
                    other => panic!("{other:?}"),
                }
            }
            let mut chunks = Vec::new();
            while let Some((reply, used)) = Reply::decode(&bytes).expect("in order") {
                let context = match reply {
                    Reply::BlockStatus { context, .. } => Some(context),
                    _ => None,
                };
                chunks.push((context, reply.done()));
                bytes.drain(..used);
            }
            chunks
        };
        assert_eq!(told(Some(1), None), [(Some(1), true)]);
        assert_eq!(told(Some(1), Some(2)), [(Some(1), false), (None, false), (Some(2), true)]);
        assert_eq!(told(None, Some(2)), [(None, false), (Some(2), true)]);
    }
}
