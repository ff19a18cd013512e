//! Request headers: their layout, and whether a request may be carried out.
//!
//! Owns: the 28 bytes, and every rule that needs only the header and what was negotiated. Never: the payload
//! of a WRITE. Key invariant: a request that passes [`RequestHeader::check`] lies inside the export and its
//! payload inside the limit. Clients encode the same header. Tests: `tests/requests.rs`,
//! `tests/properties.rs`, `fuzz/`.

use crate::export::Negotiated;
use crate::limits::{AUTH_BYTES, CONTEXTS_MAX, REQUEST_PAYLOAD_BYTES_MAX};
use crate::proto::{CmdFlags, Command, Errno, REQUEST_MAGIC, TransmissionFlags};
use crate::seal::seal;
use crate::violation::Violation;
use crate::wire::put;

/// A request, without the payload that follows a WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// On the wire before the command, which the protocol calls the type.
    pub flags: CmdFlags,
    /// A number that is not known here is kept, to be answered with EINVAL.
    pub command: Command,
    /// The client's own name of the request, given back with its answer; any value. Of a MARK, its number.
    pub cookie: u64,
    /// Bytes from the start of the export. A FLUSH or DISC has none. Of a MARK, what is complete.
    pub offset: u64,
    /// Bytes; of a WRITE or AUTH, those that follow. Of a MARK, its targets.
    pub length: u32,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reject {
    /// Read past [`RequestHeader::payload_bytes`], then answer with this.
    Reply(Errno),
    /// The payload cannot be taken in, so the next request cannot be found: close.
    Close(Violation),
}

/// What a MARK says of the writes behind it on its connection, until the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// 0: they have none.
    pub number: u64,
    /// A bit for each fragment that a part of them goes to.
    pub targets: u32,
    /// Writes up to this number are complete on all servers.
    pub complete: u64,
    /// What they cover is kept until they are complete.
    pub keep: bool,
}

impl Mark {
    /// It has a request's shape, and no answer.
    #[must_use]
    pub const fn header(self) -> RequestHeader {
        let Mark { number, targets, complete, keep } = self;
        let (flags, command) = (if keep { CmdFlags::KEEP } else { CmdFlags::EMPTY }, Command::Mark);
        RequestHeader { flags, command, cookie: number, offset: complete, length: targets }
    }

    /// What a header with the command says.
    #[must_use]
    pub const fn of(header: &RequestHeader) -> Mark {
        let RequestHeader { flags, cookie: number, offset: complete, length: targets, .. } = *header;
        Mark { number, targets, complete, keep: flags.contains(CmdFlags::KEEP) }
    }
}

impl RequestHeader {
    /// Magic, flags, command, cookie, offset, length, all big-endian.
    pub const BYTES: usize = 28;

    /// # Errors
    /// The magic is wrong: the stream is out of step.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, Violation> {
        let [m0, m1, m2, m3, f0, f1, t0, t1, rest @ ..] = *bytes;
        let [c0, c1, c2, c3, c4, c5, c6, c7, o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = rest;
        let magic = u32::from_be_bytes([m0, m1, m2, m3]);
        if magic != REQUEST_MAGIC {
            return Err(Violation::RequestMagic(magic));
        }
        Ok(Self {
            flags: CmdFlags(u16::from_be_bytes([f0, f1])),
            command: Command::from_wire(u16::from_be_bytes([t0, t1])),
            cookie: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// The header on the wire, the inverse of [`RequestHeader::decode`].
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let at = put(&mut out, 0, REQUEST_MAGIC.to_be_bytes());
        let at = put(&mut out, at, self.flags.0.to_be_bytes());
        let at = put(&mut out, at, self.command.to_wire().to_be_bytes());
        let at = put(&mut out, at, self.cookie.to_be_bytes());
        let at = put(&mut out, at, self.offset.to_be_bytes());
        put(&mut out, at, self.length.to_be_bytes());
        out
    }

    /// The same under its seal, where both ends agreed on that ([`Negotiated::is_sealed`]).
    #[must_use]
    pub fn encode_in(&self, is_sealed: bool) -> [u8; Self::BYTES] {
        let mut out = self.encode();
        if is_sealed {
            seal(&mut out);
        }
        out
    }

    /// The inverse of [`RequestHeader::encode_in`].
    ///
    /// # Errors
    /// As [`RequestHeader::decode`], and the header is not what was sent.
    pub fn decode_in(bytes: &[u8; Self::BYTES], is_sealed: bool) -> Result<Self, Violation> {
        let mut bytes = *bytes;
        if is_sealed {
            seal(&mut bytes);
        }
        Self::decode(&bytes)
    }

    /// The bytes that follow the header on the wire.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        if matches!(self.command, Command::Write | Command::Auth) { self.length } else { 0 }
    }

    /// Whether the request may be carried out under `session`. A length of zero is harmless and passes,
    /// except for BLOCK_STATUS.
    ///
    /// # Errors
    /// What to answer, or that the connection has to be closed.
    pub fn check(&self, session: &Negotiated) -> Result<Command, Reject> {
        if self.payload_bytes() > REQUEST_PAYLOAD_BYTES_MAX {
            let violation = Violation::PayloadTooBig { command: self.command, bytes: self.length };
            return Err(Reject::Close(violation));
        }
        let is_word = match self.command {
            Command::Disc => true,
            Command::Mark => session.dirty.is_some(),
            Command::Digest => session.context.is_some(),
            Command::Auth => session.auth.is_some() && self.length as usize <= AUTH_BYTES * CONTEXTS_MAX,
            _ => false,
        };
        if is_word {
            return Ok(self.command);
        }
        self.check_command(session)
            .and_then(|()| self.check_flags(session))
            .and_then(|()| self.check_range(session))
            .map_err(Reject::Reply)?;
        Ok(self.command)
    }

    fn check_command(&self, session: &Negotiated) -> Result<(), Errno> {
        let needs = match self.command {
            Command::Unknown(_) | Command::Mark | Command::Digest | Command::Auth => {
                return Err(Errno::Inval);
            }
            Command::BlockStatus if session.base_allocation.is_none() && session.dirty.is_none() => {
                return Err(Errno::Inval);
            }
            Command::Verify if session.context.is_none() => return Err(Errno::Inval),
            Command::Undo if session.dirty.is_none() => return Err(Errno::Inval),
            Command::Read | Command::Write | Command::Disc => TransmissionFlags::EMPTY,
            Command::BlockStatus | Command::Verify | Command::Undo => TransmissionFlags::EMPTY,
            Command::Flush => TransmissionFlags::SEND_FLUSH,
            Command::Trim => TransmissionFlags::SEND_TRIM,
            Command::Cache => TransmissionFlags::SEND_CACHE,
            Command::WriteZeroes => TransmissionFlags::SEND_WRITE_ZEROES,
        };
        if self.command.writes() && session.info.flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(Errno::Perm);
        }
        if session.info.flags.contains(needs) { Ok(()) } else { Err(Errno::Inval) }
    }

    fn check_flags(&self, session: &Negotiated) -> Result<(), Errno> {
        let has = |flag| session.info.flags.contains(flag);
        let mut allowed = match self.command {
            Command::Read if session.structured_replies => CmdFlags::DF,
            Command::WriteZeroes if has(TransmissionFlags::SEND_FAST_ZERO) => {
                CmdFlags::NO_HOLE | CmdFlags::FAST_ZERO
            }
            Command::WriteZeroes => CmdFlags::NO_HOLE,
            Command::BlockStatus => CmdFlags::REQ_ONE,
            _ => CmdFlags::EMPTY,
        };
        if has(TransmissionFlags::SEND_FUA) {
            allowed |= CmdFlags::FUA;
        }
        if allowed.contains(self.flags) { Ok(()) } else { Err(Errno::Inval) }
    }

    /// The answer to a request that leaves the export: what would need room there gets none.
    #[must_use]
    pub const fn beyond(&self) -> Errno {
        match self.command {
            Command::Write | Command::WriteZeroes => Errno::NoSpc,
            _ => Errno::Inval,
        }
    }

    fn check_range(&self, session: &Negotiated) -> Result<(), Errno> {
        let size = session.info.size;
        // The offset and length of a FLUSH mean nothing, and Linux fills them with what lies about.
        if self.command == Command::Flush {
            return Ok(());
        }
        if self.command == Command::Read && self.length > REQUEST_PAYLOAD_BYTES_MAX {
            return Err(Errno::Overflow);
        }
        let beyond = self.beyond();
        let end = self.offset.checked_add(u64::from(self.length)).filter(|end| *end <= size).ok_or(beyond)?;
        if self.length == 0 && matches!(self.command, Command::BlockStatus | Command::Verify) {
            return Err(Errno::Inval);
        }
        let block = u64::from(session.info.block_min.max(1));
        let aligned = self.offset.is_multiple_of(block) && (end.is_multiple_of(block) || end == size);
        if aligned { Ok(()) } else { Err(Errno::Inval) }
    }
}
