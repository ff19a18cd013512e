//! What a client asks and awaits once the handshake is done: requests out, neighbouring writes as one, and
//! replies to whom they belong.
//!
//! Owns: the order of what leaves and how far it has gone, which writes are one request, what is awaited, and
//! where the data of a reply belongs in its request. Never: a payload, which the driver sends and receives
//! itself where this says; the input, which the driver keeps until it is whole; or when something leaves.
//! Invariants: the parts of one request follow each other, in one run of `within` bytes; nothing is answered
//! before it is sent in full; a read is answered when as many bytes came as it has; whatever else a server
//! sends is a [`Violation`]. Called by the driver: [`queue`](Transmission::queue) at any time; to send,
//! [`make_requests`](Transmission::make_requests), then [`unsent`](Transmission::unsent) and
//! [`sent`](Transmission::sent); to receive, [`incoming`](Transmission::incoming) with
//! [`landed`](Transmission::landed), or else [`received`](Transmission::received).
//! Tests: `tests/client_transmission.rs`; `sim`.

use super::Reply;
use super::asked::{Answer, Incoming, Outgoing, Request, Take};
use super::head::{self, Head};
use crate::export::{Descriptor, Negotiated};
use crate::limits::{AUTH_BYTES, BLOCK_STATUS_DESCRIPTORS_MAX, CONTEXT_BLOCK_BYTES};
use crate::proto::{Command, Errno};
use crate::server::digest::Digest;
use crate::server::reply::LedgerEntry;
use crate::server::request::{Mark, RequestHeader};
use crate::violation::Violation;
use std::collections::VecDeque;

/// What comes before the data of a chunk.
const DATA_HEAD_BYTES: usize = 28;
/// What comes before the checksums of a chunk.
const CONTEXTS_HEAD_BYTES: usize = 20;
/// The same of nonces and authentication tags.
const AUTH_HEAD_BYTES: usize = 20;

#[derive(Clone, Debug)]
struct Part<B> {
    request: Request<B>,
    /// If a request begins with it, and once that is known.
    head: Option<Head>,
    /// An AUTH that leaves before that.
    auth: Vec<u8>,
    /// It left in one request with the part before it, and is answered with that.
    merged: bool,
    abandoned: bool,
    /// Bytes of a read that are in, or announced.
    received: u32,
    error: Option<Errno>,
    status: Vec<Descriptor>,
    ledger: Option<(u64, Vec<LedgerEntry>)>,
    sums: Vec<u32>,
    auths: Vec<[u8; AUTH_BYTES]>,
}

impl<B> Part<B> {
    fn head(&self) -> &[u8] {
        self.head.as_ref().map_or(&[], Head::bytes)
    }

    fn bytes(&self) -> usize {
        self.auth.len() + self.head().len() + self.request.payload_bytes() as usize
    }

    /// The bytes of the request that a chunk carries.
    fn claim(&mut self, offset: u64, len: u32) -> Result<(u32, u32), Violation> {
        let at = offset.checked_sub(self.request.offset).and_then(|at| u32::try_from(at).ok());
        let range = at.and_then(|at| Some((at, at.checked_add(len)?)));
        let inside = range.filter(|(_, end)| *end <= self.request.length);
        let range = inside.ok_or(Violation::DataOutside { offset, bytes: len })?;
        self.received = self.received.saturating_add(len);
        if self.request.command != Command::Read || self.received > self.request.length {
            return Err(Violation::DataUnasked);
        }
        Ok(range)
    }
}

/// Data of the part with this cookie: its bytes `at..end`.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    cookie: u64,
    at: u32,
    end: u32,
    done: bool,
}

/// One connection's.
#[derive(Debug)]
pub struct Transmission<B> {
    /// In the order in which they were asked, which is that of most servers' answers: the first one is most
    /// often the one.
    parts: VecDeque<Part<B>>,
    /// So many of the last are not sent in full.
    unsent: usize,
    /// Of these, so many belong to a request that is known.
    headed: usize,
    /// Bytes of the first that is not sent in full.
    front_sent: usize,
    /// What the server was told last. None: it does not understand.
    told: Option<Mark>,
    arriving: Option<Arriving>,
    large_expected: bool,
    dirty: Option<u32>,
    has_contexts: bool,
    has_auth: bool,
    /// What one checksum is of.
    block: u32,
    export_bytes: u64,
    within: u64,
    large_bytes: u32,
}

impl<B> Transmission<B> {
    /// Writes become one request inside of a run of `within` bytes only. Of data from `large_bytes` on the
    /// driver receives nothing behind but the next head. `marks`: the server understands MARK.
    #[must_use]
    pub fn new(session: &Negotiated, marks: bool, within: u64, large_bytes: u32) -> Transmission<B> {
        Transmission {
            parts: VecDeque::with_capacity(256),
            unsent: 0,
            headed: 0,
            front_sent: 0,
            told: marks.then_some(Mark { number: 0, targets: 0, complete: 0, keep: false }),
            arriving: None,
            large_expected: false,
            dirty: session.dirty,
            has_contexts: session.context.is_some(),
            has_auth: session.auth.is_some(),
            block: CONTEXT_BLOCK_BYTES,
            export_bytes: session.info.size,
            within,
            large_bytes,
        }
    }

    /// For a world whose wire does not count bytes: a checksum is of so many of what it counts.
    #[must_use]
    pub fn with_block(self, block: u32) -> Transmission<B> {
        Transmission { block, ..self }
    }

    /// Nothing is awaited.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }

    /// All that was queued is sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.unsent == 0
    }

    /// Takes a request to be sent behind all others. It leaves after the next `make_requests`.
    pub fn queue(&mut self, request: Request<B>) {
        self.unsent += 1;
        self.parts.push_back(Part {
            request,
            head: None,
            auth: Vec::new(),
            merged: false,
            abandoned: false,
            received: 0,
            error: None,
            status: Vec::new(),
            ledger: None,
            sums: Vec::new(),
            auths: Vec::new(),
        });
    }

    // Out.

    /// Makes requests of what was queued since the last call: writes that go on where the last one ends are
    /// one request, of at most `bytes_max`; so many bytes of writes are in requests now that were not.
    pub fn make_requests(&mut self, bytes_max: u32) -> u64 {
        let mut asked = 0;
        while self.headed < self.unsent {
            let first = self.first_unsent() + self.headed;
            let (count, length) = self.first_request(first, bytes_max);
            let part = &mut self.parts[first];
            let Request { cookie, command, flags, offset, mark, .. } = part.request;
            let said = self.told.as_mut().zip(mark);
            let mark = said.and_then(|(told, mark)| (std::mem::replace(told, mark) != mark).then_some(mark));
            let header = RequestHeader { flags, command, cookie, offset, length };
            let is_payload = part.request.payload_bytes() > 0;
            asked += if is_payload { u64::from(length) } else { 0 };
            let mut digests = self.parts.range(first..first + count).filter_map(|part| part.request.digest);
            let digest = digests.next().filter(|_| self.has_contexts && is_payload);
            let digest = digest.map(|first| digests.fold(first, Digest::with));
            if self.has_auth && is_payload {
                let parts = self.parts.range(first..first + count).map(|part| &part.request.auth[..]);
                self.parts[first].auth = head::auth(cookie, self.has_contexts, parts);
            }
            self.parts[first].head = Some(Head::new(mark, digest, header, self.has_contexts));
            self.parts.range_mut(first + 1..first + count).for_each(|part| part.merged = true);
            self.headed += count;
        }
        asked
    }

    /// How many parts make a request from `first` on, and its bytes: one, and the writes behind it that go on
    /// where it ends.
    fn first_request(&self, first: usize, bytes_max: u32) -> (usize, u32) {
        let mut last = &self.parts[first].request;
        let (mut count, mut bytes) = (1, last.length);
        for Part { request, .. } in self.parts.range(first + 1..) {
            let merged = bytes.saturating_add(request.length);
            if merged > bytes_max || !last.goes_on(request, self.within) {
                break;
            }
            (last, count, bytes) = (request, count + 1, merged);
        }
        (count, bytes)
    }

    /// What is made requests of and not sent in full, in order.
    pub fn unsent(&mut self) -> impl Iterator<Item = Outgoing<'_, B>> {
        let first = self.first_unsent();
        self.parts.range_mut(first..first + self.headed).map(|part| Outgoing {
            auth: &part.auth,
            head: part.head.as_ref().map_or(&[], Head::bytes),
            request: &mut part.request,
        })
    }

    /// How much of the first that is not sent in full is.
    #[must_use]
    pub fn front_sent(&self) -> usize {
        self.front_sent
    }

    /// So many bytes more are with the kernel.
    pub fn sent(&mut self, bytes: usize) {
        self.front_sent += bytes;
        while self.headed > 0 {
            let whole = self.parts[self.first_unsent()].bytes();
            if self.front_sent < whole {
                return;
            }
            self.front_sent -= whole;
            self.unsent -= 1;
            self.headed -= 1;
        }
        debug_assert_eq!(self.front_sent, 0, "no more is sent than there was");
    }

    fn first_unsent(&self) -> usize {
        self.parts.len() - self.unsent
    }

    /// The answer to this is not wanted any more; what the driver keeps with it, if it is awaited.
    pub fn abandon(&mut self, cookie: u64) -> Option<&mut B> {
        let place = self.place(cookie)?;
        let part = self.parts.get_mut(place)?;
        part.abandoned = true;
        Some(&mut part.request.body)
    }

    // In.

    /// Data that is on its way and may be received straight to where it belongs: with `received` it would
    /// come to that in pieces.
    #[must_use]
    pub fn incoming(&self) -> Option<Incoming<'_, B>> {
        let Arriving { cookie, at, end, .. } = self.arriving?;
        let part = &self.parts[self.place(cookie)?];
        (!part.abandoned).then_some(Incoming { body: &part.request.body, at, end })
    }

    /// So many bytes of what is incoming are where they belong. Their end is noted by `received`, with
    /// whatever came behind them.
    pub fn landed(&mut self, bytes: u32) {
        if let Some(arriving) = &mut self.arriving {
            arriving.at += bytes;
            debug_assert!(arriving.at <= arriving.end, "no more lands than is on its way");
        }
    }

    /// The last reply carried large data, so the next one probably does, too: only its head should be
    /// received with no place known.
    #[must_use]
    pub fn expects_large(&self) -> bool {
        self.large_expected
    }

    /// How many bytes come before the next data, most likely: answers come in the order of requests.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        let next = self.parts.get(usize::from(self.arriving.is_some())).map(|part| &part.request);
        let contexts = match next {
            Some(request) if self.has_contexts && request.command == Command::Read => {
                let (from, to) = request.blocks(self.block);
                let blocks = usize::try_from(to - from).unwrap_or(0);
                let auth = if self.has_auth { AUTH_HEAD_BYTES + AUTH_BYTES * blocks } else { 0 };
                auth + CONTEXTS_HEAD_BYTES + 4 * blocks
            }
            _ => 0,
        };
        contexts + DATA_HEAD_BYTES
    }

    /// How many bytes `received` needs at least to take anything of an input that has no data.
    ///
    /// # Errors
    /// As `received`.
    pub fn need(&self, input: &[u8]) -> Result<usize, Violation> {
        Reply::need_in(input, self.has_contexts)
    }

    /// Takes apart what came, as far as it is whole; how many bytes are used up. The rest is to be given
    /// again, with more behind it.
    ///
    /// # Errors
    /// The server broke the protocol; the connection is lost.
    pub fn received(&mut self, input: &[u8], take: &mut impl Take<B>) -> Result<usize, Violation> {
        let mut used = 0;
        loop {
            if let Some(Arriving { cookie, at, end, done }) = self.arriving {
                let bytes = &input[used..];
                let bytes = &bytes[..bytes.len().min((end - at) as usize)];
                if !bytes.is_empty() {
                    let part = self.place(cookie).map(|place| &self.parts[place]);
                    let part = part.ok_or(Violation::Unasked { cookie })?;
                    if !part.abandoned {
                        take.data(&part.request.body, at, bytes);
                    }
                    used += bytes.len();
                }
                let at = at + bytes.len() as u32;
                if at < end {
                    self.arriving = Some(Arriving { cookie, at, end, done });
                    return Ok(used);
                }
                self.arriving = None;
                if done {
                    self.finish(cookie, take)?;
                }
            }
            let reply = Reply::decode_in(&input[used..], self.has_contexts)?;
            let Some((reply, bytes)) = reply else { return Ok(used) };
            used += bytes;
            self.reply(reply, take)?;
        }
    }

    fn reply(&mut self, reply: Reply, take: &mut impl Take<B>) -> Result<(), Violation> {
        let (cookie, mut done) = (reply.cookie(), reply.done());
        let place = self.place(cookie).ok_or(Violation::Unasked { cookie })?;
        self.large_expected = false;
        if place + self.width(place) > self.first_unsent() {
            return Err(Violation::AnsweredEarly);
        }
        let (large_bytes, dirty) = (self.large_bytes, self.dirty);
        let part = &mut self.parts[place];
        let mut arrives = |at, end, done| {
            self.large_expected = end - at >= large_bytes;
            self.arriving = Some(Arriving { cookie, at, end, done });
        };
        match reply {
            Reply::Simple { error: None, .. } if part.request.command == Command::Read => {
                done = false;
                let (at, end) = part.claim(part.request.offset, part.request.length)?;
                arrives(at, end, true);
            }
            Reply::Simple { error, .. } => part.error = error,
            Reply::OffsetData { offset, data_bytes, done: last, .. } => {
                done = false;
                let (at, end) = part.claim(offset, data_bytes)?;
                arrives(at, end, last);
            }
            Reply::OffsetHole { offset, hole_bytes, .. } => {
                let (at, end) = part.claim(offset, hole_bytes)?;
                if !part.abandoned {
                    take.hole(&part.request.body, at, end);
                }
            }
            Reply::None { .. } => {}
            Reply::Error { errno, .. } | Reply::ErrorOffset { errno, .. } => {
                part.error.get_or_insert(errno);
            }
            Reply::Ledger { complete, entries, .. } => part.ledger(dirty, complete, entries)?,
            Reply::BlockStatus { context, descriptors, .. } => part.status(context, descriptors)?,
            Reply::Contexts { sums, .. } => {
                let request = &part.request;
                self.large_expected = request.command == Command::Read && request.length >= large_bytes;
                self.contexts(place, sums)?;
            }
            Reply::Auth { all, .. } => {
                let (from, to) = part.request.blocks(self.block);
                let is_asked =
                    self.has_auth && part.request.command == Command::Read && part.auths.is_empty();
                if !is_asked || all.len() as u64 != to - from {
                    return Err(Violation::AuthUnasked);
                }
                self.large_expected = part.request.length >= large_bytes;
                part.auths = all;
            }
        }
        if done { self.finish(cookie, take) } else { Ok(()) }
    }

    /// Each part of the request gets what is of its blocks.
    fn contexts(&mut self, place: usize, sums: Vec<u32>) -> Result<(), Violation> {
        let (width, block) = (self.width(place), self.block);
        let parts = self.parts.range(place..place + width);
        let (first, mut last) = self.parts[place].request.blocks(block);
        let mut is_asked = self.has_contexts && self.parts[place].sums.is_empty();
        for Part { request, .. } in parts {
            is_asked &= request.has_contexts();
            last = request.blocks(block).1;
        }
        if !is_asked || sums.len() as u64 != last - first {
            return Err(Violation::ContextsUnasked);
        }
        if width == 1 {
            self.parts[place].sums = sums;
            return Ok(());
        }
        for part in self.parts.range_mut(place..place + width) {
            let (from, to) = part.request.blocks(block);
            let of = (from - first) as usize..(to - first) as usize;
            part.sums = sums.get(of).unwrap_or_default().to_vec();
        }
        Ok(())
    }

    fn finish(&mut self, cookie: u64, take: &mut impl Take<B>) -> Result<(), Violation> {
        let place = self.place(cookie).ok_or(Violation::Unasked { cookie })?;
        let (error, width) = (self.parts[place].error, self.width(place));
        let beyond =
            self.parts.range(place..place + width).any(|part| part.request.end() > self.export_bytes);
        for _ in 0..width {
            let Some(part) = self.parts.remove(place) else { break };
            let Part { request, abandoned, received, status, ledger, sums, auths: auth, .. } = part;
            if self.has_contexts && error.is_none() && request.has_contexts() && sums.is_empty() {
                return Err(Violation::ContextsMissing);
            }
            let is_read = request.command == Command::Read && request.length > 0;
            if self.has_auth && error.is_none() && is_read && auth.is_empty() {
                return Err(Violation::AuthMissing);
            }
            let Request { cookie, command, length, body, .. } = request;
            if command == Command::Read && error.is_none() && received != length {
                return Err(Violation::ReadInPart);
            }
            take.answer(Answer { cookie, abandoned, error, beyond, status, ledger, sums, auth, body });
        }
        Ok(())
    }

    fn place(&self, cookie: u64) -> Option<usize> {
        self.parts.iter().position(|part| part.request.cookie == cookie && !part.merged)
    }

    /// How many parts the request has that begins there.
    fn width(&self, place: usize) -> usize {
        1 + self.parts.range(place + 1..).take_while(|part| part.merged).count()
    }

    // The end.

    /// Gives back what is awaited, and whether it had been made a request of. What it was may still be
    /// carried out.
    pub fn end(&mut self) -> impl Iterator<Item = (Request<B>, bool)> {
        let asked = self.first_unsent() + self.headed;
        (self.unsent, self.headed, self.front_sent, self.arriving) = (0, 0, 0, None);
        self.parts.drain(..).enumerate().map(move |(nth, part)| (part.request, nth < asked))
    }
}

impl<B> Part<B> {
    /// The protocol has one question for both contexts.
    fn ledger(
        &mut self,
        dirty: Option<u32>,
        complete: u64,
        entries: Vec<LedgerEntry>,
    ) -> Result<(), Violation> {
        let asked = self.request.command == Command::BlockStatus;
        if !asked || self.ledger.is_some() {
            return Err(Violation::LedgerUnasked);
        }
        if self.request.context == dirty {
            self.ledger = Some((complete, entries));
        }
        Ok(())
    }

    fn status(&mut self, context: u32, descriptors: Vec<Descriptor>) -> Result<(), Violation> {
        let asked = matches!(self.request.command, Command::BlockStatus | Command::Verify);
        if !asked || self.status.len() + descriptors.len() > BLOCK_STATUS_DESCRIPTORS_MAX {
            return Err(Violation::StatusUnasked);
        }
        if self.request.context == Some(context) {
            self.status.extend(descriptors);
        }
        Ok(())
    }
}
