//! One client of a donor, after its handshake: requests in batches, replies gathered, payloads straight between
//! socket and arena.
//!
//! Owns: the wire state between two system calls. Never: who may touch what (`Access` decides for each request),
//! or a thread's time (nothing here waits for anything but the socket).
//! Invariants: requests take effect in the order in which they came; a client that does not read its replies
//! stops being read itself, so memory is bounded; an idle connection holds none to speak of; and one that ends leaves nothing of
//! what it received outside of the arena, so that what is wiped there is nowhere else.
//! One receive takes all the requests that are there, one send answers them all: at 4 KiB and depth 64 that is
//! a factor of 6. Reads of 64 KiB and more leave as the arena's own pages where that is much together. Write payloads land in
//! the arena directly.
//! One of the named modules that may use unsafe (vectored I/O on arena addresses).
#![allow(unsafe_code)]

use crate::arena::Arena;
use crate::ledgers::locked;
use crate::memory::wipe;
use crate::stream::{DIRECT_BYTES, LEND_REPLY_BYTES, ROOM_BYTES, Stream, iovec};
use cheetah_core::donor::{Access, Denied, Grant, Ledger, ListedWrite, Ticket, WriteMark};
use cheetah_nbd::server::reply;
use cheetah_nbd::{
    CmdFlags, Command, Descriptor, Errno, LedgerEntry, Mark, Negotiated, Reject, RequestHeader, StateFlags,
};
use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};

/// What one receive takes at most; shared by the connections of a thread.
const SCRATCH_BYTES: usize = 256 << 10;
/// Reads are sent without copying where so much may leave so in one batch. The client takes longer to copy what no cache near it
/// has; of less, only that counts.
const LEND_TOGETHER_BYTES: u64 = 128 << 10;
/// Holes shorter than this are sent as data: a chunk costs more than the zeros.
const HOLE_BYTES_MIN: u64 = 32 << 10;
const PIECES_MAX: usize = 512;
/// Replies are sent when this many pieces or bytes wait, at the latest.
const OUT_PIECES_MAX: usize = 4 * PIECES_MAX;
const OUT_BYTES_MAX: u64 = 8 << 20;
const STATUS_RUNS_MAX: usize = 4096;
/// Bytes that zeroing and status may walk before other connections of the thread get their turn.
const WORK_BYTES_MAX: u64 = 256 << 20;
/// What ageing the marks of an extent counts for as such work.
const AGE_WORK_BYTES: u64 = 128 << 10;

static ZEROS: [u8; HOLE_BYTES_MIN as usize] = [0; HOLE_BYTES_MIN as usize];

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Where a thread receives what is small, and how much of it may still have something in it.
struct Scratch {
    bytes: Box<[u8]>,
    used: usize,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { bytes: vec![0; SCRATCH_BYTES].into_boxed_slice(), used: 0 }
    }

    fn wipe(&mut self) {
        self.bytes[..self.used].fill(0);
        self.used = 0;
    }
}

/// A piece of what goes out.
#[derive(Clone, Copy, Debug)]
enum Out {
    /// Bytes of `heads`.
    Head {
        start: usize,
        len: usize,
    },
    /// Bytes of the arena, copied into the socket.
    Arena {
        offset: u64,
        len: u64,
    },
    /// Bytes of the arena, by reference where that can be.
    Lent {
        offset: u64,
        len: u64,
    },
    Zeros {
        len: u64,
    },
}

/// A write of which payload is still to come.
#[derive(Debug)]
struct Pending {
    cookie: u64,
    offset: u64,
    len: u64,
    received: u64,
    /// What it will be answered with; a refused payload is received and dropped.
    refused: Option<Errno>,
    /// Of its place in the ledger.
    ticket: Option<Ticket>,
}

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client said DISC, or went.
    Bye,
    /// The peer broke the protocol, or the socket broke.
    Fault(String),
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                End::Bye
            }
            _ => End::Fault(e.to_string()),
        }
    }
}

/// What was tried in vain is tried again when the stream is ready.
fn unless_in_vain(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    }
}

pub(super) struct Connection<'a> {
    /// What it holds is the beginning of what is not sent of `out`.
    stream: &'a Stream,
    arena: &'a Arena,
    session: Negotiated,
    grant: Grant,
    /// The start of a header whose rest has not come.
    partial: Vec<u8>,
    /// Of a client that numbers what it writes, and what it said last.
    ledger: Option<Arc<Mutex<Ledger>>>,
    mark: Option<WriteMark>,
    pending: Option<Pending>,
    heads: Vec<u8>,
    out: Vec<Out>,
    out_bytes: u64,
    /// Of those, what may be lent.
    lent_bytes: u64,
    /// Bytes walked by zeroing and status since the last send.
    work_bytes: u64,
    /// The last request was a large write, so the next one probably is, too: only its header is read ahead.
    large_expected: bool,
    /// `partial` holds whole requests that wait until their predecessors' replies are sent.
    deferred: bool,
    bye: bool,
}

impl Drop for Connection<'_> {
    /// A write that was cut off has landed in part. Its bytes count as written: hidden in an absent block, they
    /// would come to light behind a later zero that found nothing to do.
    fn drop(&mut self) {
        if let Some(Pending { offset, received, refused: None, .. }) = self.pending {
            self.arena.wrote(offset, received);
        }
        wipe(std::mem::take(&mut self.partial));
        // None is left of a thread that ends.
        let _ = SCRATCH.try_with(|scratch| scratch.borrow_mut().wipe());
    }
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        arena: &'a Arena,
        mut session: Negotiated,
        grant: Grant,
        early: Vec<u8>,
    ) -> Self {
        // The size in the handshake was that of the moment; what the volume has gained since is served too, and
        // `Access` knows which extents are its own.
        session.info.size = arena.bytes();
        Connection {
            stream,
            arena,
            session,
            grant,
            partial: early,
            ledger: None,
            mark: None,
            pending: None,
            heads: Vec::new(),
            out: Vec::new(),
            out_bytes: 0,
            lent_bytes: 0,
            work_bytes: 0,
            large_expected: false,
            deferred: false,
            bye: false,
        }
    }

    /// Serves until the client goes. Dropped at any wait, it leaves nothing half done.
    pub(super) async fn serve(mut self, access: impl Fn() -> Arc<Access>) -> End {
        match self.serve_all(access).await {
            Ok(()) => End::Bye,
            Err(end) => end,
        }
    }

    async fn serve_all(&mut self, access: impl Fn() -> Arc<Access>) -> Result<(), End> {
        let early = std::mem::take(&mut self.partial);
        let digested = self.digest(&early, &access());
        wipe(early);
        digested.map_err(End::Fault)?;
        loop {
            self.send().await?;
            if self.bye {
                return Ok(());
            }
            if std::mem::take(&mut self.deferred) {
                let input = std::mem::take(&mut self.partial);
                let digested = self.digest(&input, &access());
                wipe(input);
                digested.map_err(End::Fault)?;
                tokio::task::yield_now().await;
                continue;
            }
            self.shrink();
            self.stream.readable().await?;
            match self.receive(&access) {
                Ok(digested) => digested.map_err(End::Fault)?,
                Err(e) => unless_in_vain(e)?,
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// An idle connection holds no memory to speak of.
    fn shrink(&mut self) {
        if self.heads.capacity() > 4096 {
            self.heads = Vec::new();
        }
        if self.out.capacity() > 64 {
            self.out = Vec::new();
        }
    }

    /// One system call's worth of input, carried out.
    fn receive(&mut self, access: &impl Fn() -> Arc<Access>) -> io::Result<Result<(), String>> {
        SCRATCH.with_borrow_mut(|Scratch { bytes: scratch, used }| {
            let kept = self.partial.len();
            scratch[..kept].copy_from_slice(&self.partial);
            self.partial.clear();
            let missing = self.pending.as_ref().map_or(0, |write| write.len - write.received);
            let direct = match &self.pending {
                Some(write) if write.refused.is_none() && missing >= DIRECT_BYTES.into() => missing,
                _ => 0,
            };
            let small = direct > 0 || (self.large_expected && missing == 0);
            let look_ahead = if small { RequestHeader::BYTES - kept } else { scratch.len() - kept };
            let mut pieces = Vec::with_capacity(2);
            if let (Some(write), true) = (&self.pending, direct > 0) {
                let len = usize::try_from(direct).expect("a payload fits in memory");
                pieces.push(iovec(self.arena.address(write.offset + write.received), len));
            }
            pieces.push(iovec(scratch[kept..].as_ptr(), look_ahead));
            // SAFETY: the range of the write was checked against the arena; the rest is the thread's scratch,
            // borrowed mutably.
            let got = match unsafe { self.stream.try_receive(&pieces) } {
                Ok(got) => got as u64,
                Err(e) => {
                    self.partial.extend_from_slice(&scratch[..kept]);
                    return Err(e);
                }
            };
            self.arena.count_moved(got);
            let landed = got.min(direct);
            if let Some(write) = &mut self.pending {
                write.received += landed;
            }
            let end = kept + usize::try_from(got - landed).expect("inside the scratch");
            *used = end.max(*used);
            Ok(self.digest(&scratch[..end], &access()))
        })
    }

    /// Carries out what `input` holds; an incomplete header at its end is kept for the next time.
    fn digest(&mut self, mut input: &[u8], access: &Access) -> Result<(), String> {
        loop {
            if let Some(write) = &mut self.pending {
                let missing = usize::try_from(write.len - write.received).expect("a payload fits in memory");
                let (payload, rest) = input.split_at(input.len().min(missing));
                if write.refused.is_none() {
                    self.arena.copy_in(write.offset + write.received, payload);
                }
                write.received += payload.len() as u64;
                input = rest;
                if write.received < write.len {
                    return Ok(());
                }
                let Pending { cookie, offset, len, refused, ticket, .. } = *write;
                self.pending = None;
                if refused.is_none() {
                    self.arena.wrote(offset, len);
                }
                self.landed(ticket);
                self.done(cookie, refused);
            }
            if self.is_full() {
                self.partial.extend_from_slice(input);
                self.deferred = true;
                return Ok(());
            }
            let Some((header, rest)) = input.split_first_chunk::<{ RequestHeader::BYTES }>() else {
                self.partial.extend_from_slice(input);
                return Ok(());
            };
            input = rest;
            let header = RequestHeader::decode(header).map_err(|violation| violation.to_string())?;
            self.request(header, access)?;
            if self.bye {
                return Ok(());
            }
        }
    }

    /// Whether it is time to send before more is carried out.
    fn is_full(&self) -> bool {
        let out = self.out.len() >= OUT_PIECES_MAX || self.out_bytes >= OUT_BYTES_MAX;
        out || self.work_bytes >= WORK_BYTES_MAX
    }

    fn request(&mut self, header: RequestHeader, access: &Access) -> Result<(), String> {
        let RequestHeader { cookie, offset, length, flags, .. } = header;
        let checked = match header.check(&self.session) {
            Ok(command) => self.allowed(&header, access).map(|()| command),
            Err(Reject::Reply(errno)) => Err(errno),
            Err(Reject::Close(violation)) => return Err(violation.to_string()),
        };
        let len = u64::from(length);
        self.large_expected = header.payload_bytes() >= DIRECT_BYTES;
        match checked {
            _ if header.payload_bytes() > 0 => {
                let refused = checked.err();
                let ticket = if refused.is_none() { self.begin_write(offset, len) } else { None };
                self.pending = Some(Pending { cookie, offset, len, received: 0, refused, ticket });
            }
            Err(errno) => self.done(cookie, Some(errno)),
            Ok(Command::Disc) => self.bye = true,
            Ok(Command::Read) if length > 0 => self.read(cookie, offset, len, flags),
            Ok(Command::Trim) => {
                self.work_bytes += len;
                let ticket = self.begin_write(offset, len);
                self.arena.zero(offset, len, false);
                self.landed(ticket);
                self.done(cookie, None);
            }
            Ok(Command::WriteZeroes) => {
                self.work_bytes += len;
                let ticket = self.begin_write(offset, len);
                self.arena.zero(offset, len, flags.contains(CmdFlags::NO_HOLE));
                self.landed(ticket);
                self.done(cookie, None);
            }
            Ok(Command::BlockStatus) => {
                self.work_bytes += len;
                self.status(cookie, offset, len, flags);
            }
            // What is acknowledged is in memory, and memory is all there is: a flush only says that what was written
            // before the last one is complete on every donor.
            Ok(Command::Flush) => {
                let each = |_: &u32| self.work_bytes += AGE_WORK_BYTES;
                self.arena.dirty().age(access.written_by(&self.grant).inspect(each));
                self.arena.ledgers().unnumbered().age(access.written_by(&self.grant));
                self.done(cookie, None);
            }
            Ok(Command::Mark) => {
                let Mark { number, targets, complete } = Mark::of(&header);
                let ledger = self.ledger.get_or_insert_with(|| self.arena.ledgers().of(self.grant.volume));
                locked(ledger).settle(complete);
                self.mark = Some(WriteMark { number, targets, complete });
            }
            Ok(_) => self.done(cookie, None),
        }
        Ok(())
    }

    /// Notes a write before it touches memory.
    fn begin_write(&mut self, offset: u64, len: u64) -> Option<Ticket> {
        self.arena.dirty().mark(offset, len);
        let ledgers = self.arena.ledgers();
        match self.ledger.as_ref().zip(self.mark.filter(|mark| mark.number > 0)) {
            Some((ledger, mark)) => Some(ledgers.begin(ledger, mark, offset, len)),
            None => {
                ledgers.unnumbered().mark(offset, len);
                None
            }
        }
    }

    fn landed(&self, ticket: Option<Ticket>) {
        if let Some((ledger, ticket)) = self.ledger.as_ref().zip(ticket) {
            locked(ledger).landed(ticket);
        }
    }

    fn allowed(&self, header: &RequestHeader, access: &Access) -> Result<(), Errno> {
        let RequestHeader { command, offset, length, .. } = *header;
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        let touches = writes || matches!(command, Command::Read | Command::BlockStatus | Command::Cache);
        if touches && length > 0 {
            let why = |denied| match denied {
                Denied::Beyond => header.beyond(),
                Denied::LeaseEnded | Denied::ReadOnly | Denied::NotYours => Errno::Perm,
            };
            access.check(&self.grant, writes, offset, length).map_err(why)?;
        }
        Ok(())
    }

    fn head(&mut self, bytes: &[u8]) {
        let start = self.heads.len();
        self.heads.extend_from_slice(bytes);
        match self.out.last_mut() {
            Some(Out::Head { start: before, len }) if *before + *len == start => *len += bytes.len(),
            _ => self.out.push(Out::Head { start, len: bytes.len() }),
        }
        self.out_bytes += bytes.len() as u64;
    }

    fn body(&mut self, out: Out, len: u64) {
        self.out.push(out);
        self.out_bytes += len;
    }

    /// The answer to anything that returns no data.
    fn done(&mut self, cookie: u64, error: Option<Errno>) {
        match error {
            Some(errno) if self.session.structured_replies => {
                let mut bytes = Vec::new();
                reply::error(cookie, true, errno, "", &mut bytes);
                self.head(&bytes);
            }
            _ if self.session.structured_replies => self.head(&reply::none_done(cookie)),
            _ => self.head(&reply::simple(cookie, error)),
        }
    }

    fn data(&mut self, offset: u64, len: u64, present: bool) {
        match present {
            true if len >= LEND_REPLY_BYTES.into() => {
                self.lent_bytes += len;
                self.body(Out::Lent { offset, len }, len);
            }
            true => self.body(Out::Arena { offset, len }, len),
            false => self.body(Out::Zeros { len }, len),
        }
    }

    fn read(&mut self, cookie: u64, offset: u64, len: u64, flags: CmdFlags) {
        let mut runs: Vec<(u64, bool)> = Vec::with_capacity(1);
        self.arena.runs(offset, len, |len, present| runs.push((len, present)));
        let chunked = self.session.structured_replies && !flags.contains(CmdFlags::DF);
        let holes_worth = |len: u64| len >= HOLE_BYTES_MIN || runs.len() == 1;
        if !chunked || !runs.iter().any(|(len, present)| !present && holes_worth(*len)) {
            let length = u32::try_from(len).expect("a request's length");
            if self.session.structured_replies {
                self.head(&reply::offset_data(cookie, true, offset, length));
            } else {
                self.head(&reply::simple(cookie, None));
            }
            let mut at = offset;
            for (len, present) in runs {
                self.data(at, len, present);
                at += len;
            }
            return;
        }
        self.read_chunks(cookie, offset, offset + len, &runs);
    }

    /// A read with holes worth naming: a chunk for each, and one for what lies between.
    fn read_chunks(&mut self, cookie: u64, offset: u64, end: u64, runs: &[(u64, bool)]) {
        let length = |len: u64| u32::try_from(len).expect("part of a request's length");
        let mut at = offset;
        let mut rest = runs;
        while let Some((len, present)) = rest.first().copied() {
            if !present && (len >= HOLE_BYTES_MIN || len == end - offset) {
                self.head(&reply::offset_hole(cookie, at + len == end, at, length(len)));
                at += len;
                rest = &rest[1..];
                continue;
            }
            let count = rest.iter().take_while(|run| run.1 || run.0 < HOLE_BYTES_MIN).count();
            let (together, behind) = rest.split_at(count);
            let bytes: u64 = together.iter().map(|run| run.0).sum();
            self.head(&reply::offset_data(cookie, at + bytes == end, at, length(bytes)));
            for (len, present) in together {
                self.data(at, *len, *present);
                at += len;
            }
            rest = behind;
        }
    }

    fn status(&mut self, cookie: u64, offset: u64, len: u64, flags: CmdFlags) {
        let limit = if flags.contains(CmdFlags::REQ_ONE) { 1 } else { STATUS_RUNS_MAX };
        let (mut descriptors, mut bytes) = (Vec::new(), Vec::new());
        let Negotiated { base_allocation, dirty, .. } = self.session;
        let run = |descriptors: &mut Vec<Descriptor>, len: u64, flags| {
            if descriptors.len() < limit {
                let length = u32::try_from(len).expect("part of a request's length");
                descriptors.push(Descriptor { length, flags });
            }
        };
        if let Some(context) = base_allocation {
            let hole = StateFlags::HOLE.with(StateFlags::ZERO);
            self.arena.runs(offset, len, |len, present| {
                run(&mut descriptors, len, if present { StateFlags::EMPTY } else { hole });
            });
            reply::block_status(cookie, dirty.is_none(), context, &descriptors, &mut bytes);
            descriptors.clear();
        }
        if let Some(ledger) = &self.ledger {
            let ledger = locked(ledger);
            let entry = |write: ListedWrite| {
                let ListedWrite { from, to, number, targets, landed } = write;
                LedgerEntry { from, to, number, targets, landed }
            };
            let entries: Vec<LedgerEntry> = ledger.within(offset, len).map(entry).collect();
            reply::ledger(cookie, false, ledger.complete(), &entries, &mut bytes);
        }
        if let Some(context) = dirty {
            // Who numbers writes is told of those that are not.
            let marks = match self.ledger {
                Some(_) => self.arena.ledgers().unnumbered(),
                None => self.arena.dirty(),
            };
            marks.runs(offset, len, |len, dirty| {
                run(&mut descriptors, len, if dirty { StateFlags::DIRTY } else { StateFlags::EMPTY });
            });
            reply::block_status(cookie, true, context, &descriptors, &mut bytes);
        }
        self.head(&bytes);
    }

    /// Sends all that waits.
    async fn send(&mut self) -> io::Result<()> {
        let (mut first, mut skip) = (0, 0);
        while first < self.out.len() {
            self.stream.writable().await?;
            match self.send_once(first, skip) {
                Ok(sent) => (first, skip) = self.advance(first, skip + sent),
                Err(e) => unless_in_vain(e)?,
            }
        }
        self.arena.count_moved(self.out_bytes);
        self.out.clear();
        self.heads.clear();
        self.out_bytes = 0;
        self.lent_bytes = 0;
        self.work_bytes = 0;
        Ok(())
    }

    fn advance(&self, mut first: usize, mut sent: u64) -> (usize, u64) {
        while let Some(out) = self.out.get(first) {
            let len = out.len();
            if sent < len {
                break;
            }
            sent -= len;
            first += 1;
        }
        (first, sent)
    }

    fn lends(&self) -> bool {
        self.lent_bytes >= LEND_TOGETHER_BYTES && self.stream.lends()
    }

    /// Whether a piece is lent, or the head of one that is and with which it fits into the pipe.
    fn leaves_lent(&self, index: usize) -> bool {
        let is_lent = match (self.out[index], self.out.get(index + 1)) {
            (Out::Lent { .. }, _) => true,
            (Out::Head { .. }, Some(Out::Lent { len, .. })) => *len < ROOM_BYTES as u64,
            _ => false,
        };
        is_lent && self.lends()
    }

    /// Sends replies that are lent, one behind the other, as many as there are.
    fn lend(&self, first: usize, skip: u64) -> io::Result<u64> {
        let (mut at, mut index) = (skip + self.stream.held() as u64, first);
        let mut is_full = false;
        while index < self.out.len() && !is_full && self.leaves_lent(index) {
            let len = self.out[index].len();
            if at < len {
                let left = usize::try_from(len - at).expect("mapped");
                let held = match self.out[index] {
                    Out::Head { start, len } => {
                        self.stream.hold_copy(&self.heads[start + len - left..start + len])
                    }
                    Out::Lent { offset, .. } => {
                        let piece = iovec(self.arena.address(offset + at), left);
                        // SAFETY: a checked range of the arena, which is mapped as long as `self.arena` is borrowed.
                        unsafe { self.stream.hold(&[piece]) }
                    }
                    Out::Arena { .. } | Out::Zeros { .. } => unreachable!("they are not lent"),
                };
                is_full = held < left;
            }
            at = at.saturating_sub(len);
            index += 1;
        }
        let sent = self.stream.pass_on(is_full || index < self.out.len())?;
        Ok(sent as u64)
    }

    fn send_once(&self, first: usize, skip: u64) -> io::Result<u64> {
        if self.leaves_lent(first) {
            return self.lend(first, skip);
        }
        let mut pieces: Vec<libc::iovec> = Vec::with_capacity(64.min(self.out.len() - first));
        let mut skip = skip;
        let mut more = false;
        for out in &self.out[first..] {
            let piece = |start: *const u8, len: u64| {
                let skipped = usize::try_from(skip).expect("inside the piece");
                // SAFETY: `skip` is less than the piece's length, so this stays inside of it.
                iovec(unsafe { start.add(skipped) }, usize::try_from(len).expect("mapped") - skipped)
            };
            match *out {
                Out::Head { start, len } => pieces.push(piece(self.heads[start..].as_ptr(), len as u64)),
                Out::Lent { .. } if self.lends() => {
                    more = true;
                    break;
                }
                Out::Arena { offset, len } | Out::Lent { offset, len } => {
                    pieces.push(piece(self.arena.address(offset), len));
                }
                Out::Zeros { len } => zeros(len - skip, &mut pieces),
            }
            skip = 0;
            if pieces.len() >= PIECES_MAX {
                pieces.truncate(PIECES_MAX);
                break;
            }
        }
        // SAFETY: the pieces are `heads`, which is not changed meanwhile, static zeros, and checked ranges of the
        // arena, which is mapped as long as `self.arena` is borrowed.
        unsafe { self.stream.try_send(&pieces, more) }.map(|sent| sent as u64)
    }
}

impl Out {
    fn len(self) -> u64 {
        match self {
            Out::Head { len, .. } => len as u64,
            Out::Arena { len, .. } | Out::Lent { len, .. } | Out::Zeros { len } => len,
        }
    }
}

fn zeros(mut len: u64, pieces: &mut Vec<libc::iovec>) {
    while len > 0 && pieces.len() < PIECES_MAX {
        let piece = len.min(ZEROS.len() as u64);
        pieces.push(iovec(ZEROS.as_ptr(), usize::try_from(piece).expect("a piece")));
        len -= piece;
    }
}
