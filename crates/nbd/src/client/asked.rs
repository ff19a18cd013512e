//! What a client's driver asks, and is given: requests, their answers, and data on its way.
//!
//! Never: an order, or bytes of the protocol (`transmission`). Tests: `tests/client_transmission.rs`.

use crate::export::Descriptor;
use crate::limits::AUTH_BYTES;
use crate::proto::{CmdFlags, Command, Errno};
use crate::server::digest::Digest;
use crate::server::reply::LedgerEntry;
use crate::server::request::Mark;

/// A question to the server.
#[derive(Clone, Debug)]
pub struct Request<B> {
    /// No other that is awaited has the same.
    pub cookie: u64,
    /// Any command that has an answer: neither DISC nor MARK nor DIGEST.
    pub command: Command,
    /// The same for all writes that become one request.
    pub flags: CmdFlags,
    /// Bytes from the start of the export. It is not held to the export's size here: the server's answer is.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// What is to be said of what it writes, to a server that understands.
    pub mark: Option<Mark>,
    /// What its payload is, to be said where `cheetah:context` was agreed.
    pub digest: Option<Digest>,
    /// Nonce and authentication tag of each block that it writes, to be said where `cheetah:auth` was agreed;
    /// otherwise empty.
    pub auth: Vec<u8>,
    /// Of a BLOCK_STATUS, the id of the context that is meant: a server tells of all that were agreed.
    pub context: Option<u32>,
    /// What the driver keeps with it.
    pub body: B,
}

impl<B> Request<B> {
    /// One of which nothing more is said than what every server understands.
    #[must_use]
    pub fn plain(cookie: u64, command: Command, offset: u64, length: u32, body: B) -> Request<B> {
        let (flags, mark, digest, auth, context) = (CmdFlags::EMPTY, None, None, Vec::new(), None);
        Request { cookie, command, flags, offset, length, mark, digest, auth, context, body }
    }

    /// The bytes that follow its header.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        if matches!(self.command, Command::Write) { self.length } else { 0 }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.length.into())
    }

    /// The first of the blocks that it touches, and the one behind the last.
    pub(super) fn blocks(&self, block: u32) -> (u64, u64) {
        (self.offset / u64::from(block), self.end().div_ceil(block.into()))
    }

    /// Whether its answer has checksums, where they are agreed on.
    pub(super) const fn has_contexts(&self) -> bool {
        matches!(self.command, Command::Read | Command::Write) && self.length > 0
    }

    /// Whether `next` writes behind what this one writes, in the same run of `within` bytes, and what is said
    /// of both is the same.
    pub(super) fn goes_on(&self, next: &Request<B>, within: u64) -> bool {
        let said = |request: &Request<B>| {
            request.mark.map(|Mark { number, targets, keep, .. }| (number, targets, keep))
        };
        self.payload_bytes() > 0
            && next.payload_bytes() > 0
            && self.flags == next.flags
            && self.digest.is_some() == next.digest.is_some()
            && self.end() == next.offset
            && self.offset / within == next.offset / within
            && said(self) == said(next)
    }
}

/// What a request was answered with.
#[derive(Clone, Debug)]
pub struct Answer<B> {
    /// The request's own, also where its write left in one request with others.
    pub cookie: u64,
    /// Nobody wants it any more: of a read, nothing was put anywhere since.
    pub abandoned: bool,
    /// None: success. Writes that left as one request have the same outcome.
    pub error: Option<Errno>,
    /// The request left the export as it was announced.
    pub beyond: bool,
    /// Of a BLOCK_STATUS, in the context that was asked for.
    pub status: Vec<Descriptor>,
    /// Likewise, where that was `cheetah:dirty`: up to which number writes are complete, and those that may
    /// not be.
    pub ledger: Option<(u64, Vec<LedgerEntry>)>,
    /// Of a READ or WRITE that succeeded, the CRC32Cs of the blocks that it touches, as the server has them;
    /// empty where `cheetah:context` was not agreed.
    pub sums: Vec<u32>,
    /// Of a READ that succeeded, the nonces and authentication tags of the blocks that it touches; empty
    /// where `cheetah:auth` was not agreed.
    pub auth: Vec<[u8; AUTH_BYTES]>,
    /// What the request carried.
    pub body: B,
}

/// Who takes what comes.
pub trait Take<B> {
    /// Bytes of a read, from `at` on.
    fn data(&mut self, body: &B, at: u32, bytes: &[u8]);
    /// Zeros of a read.
    fn hole(&mut self, body: &B, at: u32, end: u32);
    /// The request is done, and its cookie free again. Called once for each request, unless the link ends
    /// before.
    fn answer(&mut self, answer: Answer<B>);
}

/// Data of a read on its way in.
#[derive(Debug)]
pub struct Incoming<'a, B> {
    /// What the request carried: with it the driver knows the place of the data.
    pub body: &'a B,
    /// It is for these bytes of the request.
    pub at: u32,
    /// The first byte behind them. Both count from the start of the request.
    pub end: u32,
}

/// Of what leaves, one part: a request's head if one begins here, then its payload.
#[derive(Debug)]
pub struct Outgoing<'a, B> {
    /// What leaves before the head: an AUTH, or nothing.
    pub auth: &'a [u8],
    /// A header, behind a MARK where that has changed, and a DIGEST where there is one. Empty: the part
    /// belongs to the request before it.
    pub head: &'a [u8],
    /// The part itself; the payload of a WRITE is with the driver.
    pub request: &'a mut Request<B>,
}
