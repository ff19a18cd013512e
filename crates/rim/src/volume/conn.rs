//! One connection to a donor: requests out, gathered, large payloads as the pages that they are; replies in, their data
//! straight to where it belongs.
//!
//! Owns: the wire state of the connection. Never: which donor a part goes to, or what a failure means.
//! Invariants: a closed connection touches no payload, and nothing that is put into one later leaves by it; a read counts
//! as answered only when every byte of it arrived exactly once in order of its chunks' sizes; writes that left as one request
//! follow each other in what is awaited, and have one answer; anything unexpected ends the link.
//! Small replies go through a buffer, many for one system call; large data is received into its destination
//! with the next reply's head behind it (both measured: each is several times slower at the other's job).
//! One of the named modules that may use unsafe (readv into a buffer's pieces).
#![allow(unsafe_code)]

use super::Driver;
use super::heads::{Head, Heads};
use super::leaving::{Leaving, Marked, OutPart, Traffic, first_request, payload_bytes};
use super::memory::Memory;
use super::open::Opened;
use crate::memory::wipe;
use crate::stream::{DIRECT_BYTES, ROOM_BYTES, Stream, iovec};
use cheetah_core::donor::ListedWrite;
use cheetah_core::layout::Scatter;
use cheetah_core::limits::DOUBT_NS;
use cheetah_core::map::DonorId;
use cheetah_core::volume::{Event, Fragment, Key, LinkMerges, Mem, PartError, PartOp, StatusRun};
use cheetah_nbd::client::Reply;
use cheetah_nbd::limits::BLOCK_STATUS_DESCRIPTORS_MAX;
use cheetah_nbd::{
    CmdFlags, Command, Errno, LedgerEntry, Mark, RequestHeader, StateFlags, TransmissionFlags,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const RECEIVE_BYTES: usize = 64 << 10;
/// What is read behind large data: the head of the next data chunk and no more.
const HEAD_BYTES: usize = 28;
const PIECES_MAX: usize = 512;

/// A part whose answer is awaited.
#[derive(Debug)]
struct Awaited {
    cookie: u64,
    op: PartOp,
    address: u64,
    mem: Mem,
    scatter: Scatter,
    fragment: Fragment,
    /// Nobody wants the answer: its data is passed over.
    abandoned: bool,
    /// It left in one request with the part before it, and is answered with that.
    merged: bool,
    /// All of it is with the kernel.
    sent: bool,
    /// The kernel may have pages of its payload, and of its head, until the donor says that it has the bytes.
    lent: bool,
    head: Option<Head>,
    /// Bytes of a read that are in.
    received: u32,
    error: Option<PartError>,
    status: Vec<StatusRun>,
    /// Of a survey: up to which number writes are complete, and those that may not be.
    listed: Option<(u64, Vec<ListedWrite>)>,
}

/// Data on its way in: bytes `at..end` of the part.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    cookie: u64,
    at: u32,
    end: u32,
    done: bool,
}

#[derive(Debug)]
struct Wire {
    out: VecDeque<Leaving>,
    /// So many of `out` belong to a request whose header is known.
    headed: usize,
    /// Bytes of the front of `out` that are sent; what the stream holds is behind them.
    out_sent: usize,
    heads: Heads,
    marked: Marked,
    awaited: Awaiting,
    merges: LinkMerges,
    /// When something came last, or the first of what is awaited was asked.
    heard: Instant,
    /// Grows only for a head that does not fit (a long BLOCK_STATUS), up to the codec's limit.
    input: Vec<u8>,
    input_start: usize,
    input_end: usize,
    incoming: Option<Incoming>,
    /// The last reply carried large data, so the next one probably does, too: only its head is read ahead.
    large_expected: bool,
    /// Room for the pieces of one call; what is in it means nothing between two.
    pieces: Vec<libc::iovec>,
}

/// In the order in which they were asked, which is that of a donor's answers: the first one is most often the one. A
/// foreign server may answer in any.
#[derive(Debug)]
struct Awaiting(VecDeque<Awaited>);

impl Awaiting {
    fn place(&self, cookie: u64) -> Option<usize> {
        self.0.iter().position(|awaited| awaited.cookie == cookie && !awaited.merged)
    }

    fn of(&mut self, cookie: u64) -> Option<&mut Awaited> {
        let place = self.place(cookie)?;
        self.0.get_mut(place)
    }

    /// The parts of a request.
    fn request(&self, place: usize) -> impl Iterator<Item = &Awaited> {
        let merged = self.0.range(place + 1..).take_while(|awaited| awaited.merged);
        self.0.get(place).into_iter().chain(merged)
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    donor: DonorId,
    session: u64,
    stream: Stream,
    flags: TransmissionFlags,
    /// As it was announced; the donor may serve more by now.
    export_bytes: u64,
    /// The id of the context that tells holes.
    holes: Option<u32>,
    /// The id of the context that tells what was written lately.
    dirty: Option<u32>,
    closed: Cell<bool>,
    outstanding: Cell<u64>,
    traffic: Rc<Traffic>,
    blocked: Notify,
    wire: RefCell<Wire>,
}

impl Conn {
    pub(super) fn new(donor: DonorId, session: u64, opened: Opened, traffic: Rc<Traffic>) -> Self {
        let mut input = vec![0; RECEIVE_BYTES];
        input[..opened.early.len()].copy_from_slice(&opened.early);
        let round_trip_ns = opened.stream.round_trip_ns();
        Conn {
            donor,
            session,
            stream: opened.stream,
            flags: opened.session.info.flags,
            export_bytes: opened.session.info.size,
            holes: opened.session.base_allocation,
            dirty: opened.session.dirty,
            closed: Cell::new(false),
            outstanding: Cell::new(0),
            traffic,
            blocked: Notify::new(),
            wire: RefCell::new(Wire {
                out: VecDeque::with_capacity(256),
                headed: 0,
                out_sent: 0,
                heads: Heads::new(),
                marked: Marked(opened.marks.then_some(Mark { number: 0, targets: 0, complete: 0 })),
                awaited: Awaiting(VecDeque::with_capacity(256)),
                merges: LinkMerges::new(opened.session.info.block_max, round_trip_ns),
                heard: Instant::now(),
                input,
                input_start: 0,
                input_end: opened.early.len(),
                incoming: None,
                large_expected: false,
                pieces: Vec::with_capacity(PIECES_MAX),
            }),
        }
    }

    /// Bytes on their way either way, counting each request as at least its header.
    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding.get()
    }

    /// It owes something, and moved no byte for long. One that is only slow does.
    pub(super) fn hangs(&self) -> bool {
        let limit = Duration::from_nanos(DOUBT_NS);
        self.outstanding() > 0 && self.stream.silence().is_some_and(|silence| silence >= limit)
    }

    /// Queues a part; true when the queue was empty, so that a flush is due.
    pub(super) fn queue(&self, part: OutPart) -> bool {
        let mut wire = self.wire.borrow_mut();
        self.outstanding.set(self.outstanding.get() + u64::from(part.scatter.len));
        self.traffic.queue(part.payload_bytes() as u64);
        let awaited = Awaited {
            cookie: part.part.to_u64(),
            op: part.op,
            address: part.address,
            mem: part.mem,
            scatter: part.scatter,
            fragment: part.fragment,
            abandoned: false,
            merged: false,
            sent: false,
            lent: false,
            head: None,
            received: 0,
            error: None,
            status: Vec::new(),
            listed: None,
        };
        if wire.awaited.0.is_empty() {
            wire.heard = Instant::now();
        }
        wire.awaited.0.push_back(awaited);
        wire.out.push_back(Leaving { header: None, part });
        wire.out.len() == 1
    }

    /// The answer to what this server cannot do: a hint is no loss, unknown presence counts as present.
    pub(super) fn unsupported(&self, op: PartOp) -> Option<Result<Vec<StatusRun>, PartError>> {
        let lacks = |flag| !self.flags.contains(flag);
        match op {
            PartOp::Zero { .. } if lacks(TransmissionFlags::SEND_WRITE_ZEROES) => {
                Some(Err(PartError::Unsupported))
            }
            PartOp::Age if lacks(TransmissionFlags::SEND_FLUSH) => Some(Ok(Vec::new())),
            PartOp::Trim if lacks(TransmissionFlags::SEND_TRIM) => Some(Ok(Vec::new())),
            PartOp::Status if self.holes.is_none() => Some(Ok(Vec::new())),
            PartOp::Survey if self.dirty.is_none() => Some(Err(PartError::Unsupported)),
            _ => None,
        }
    }

    /// Sends what is queued, with writes merged up to so many bytes, until it is gone or the socket is full; the sender task goes on
    /// when there is room.
    pub(super) fn flush(&self, memory: &Memory, merges_bytes_max: u32) {
        while !self.closed.get() && !self.wire.borrow().out.is_empty() {
            match self.send_once(memory, merges_bytes_max) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A broken socket is found by the receiver, which reports it.
                Err(_) => return self.blocked.notify_one(),
            }
        }
    }

    fn send_once(&self, memory: &Memory, merges_bytes_max: u32) -> io::Result<()> {
        let wire = &mut *self.wire.borrow_mut();
        wire.make_requests(merges_bytes_max.min(wire.merges.bytes_max()), &self.traffic);
        let sent = if wire.lends(&self.stream) { self.lend(wire, memory)? } else { self.copy(wire, memory)? };
        wire.advance(sent);
        Ok(())
    }

    /// Copies what is queued to the kernel, up to what is lent.
    fn copy(&self, wire: &mut Wire, memory: &Memory) -> io::Result<usize> {
        wire.pieces.clear();
        let mut skip = wire.out_sent;
        let mut more = false;
        for leaving in &wire.out {
            let (header, part) = (leaving.header(), &leaving.part);
            if wire.pieces.len() >= PIECES_MAX - 1 {
                break;
            }
            // What was begun as a copy ends as one.
            more = skip == 0 && wire.may_lend(part, &self.stream);
            if more {
                break;
            }
            if let Some(header) = header.get(skip..).filter(|rest| !rest.is_empty()) {
                wire.pieces.push(iovec(header.as_ptr(), header.len()));
            }
            let from = skip.saturating_sub(header.len());
            skip = 0;
            if part.payload_bytes() > 0 {
                let from = u32::try_from(from).expect("inside the payload");
                let (buffer, scatter) = (memory.buffer(part.mem), part.scatter);
                buffer.pieces(scatter, from, scatter.len, PIECES_MAX, &mut wire.pieces);
            }
        }
        // SAFETY: the pieces are headers in `wire.out` and buffers in `memory`, both borrowed through the call.
        unsafe { self.stream.try_send(&wire.pieces, more) }
    }

    /// Hands the kernel pages of the first payloads and their heads instead of copies, as far as it takes them at once. They must not
    /// change before the donor has answered, or `close` has put others in their place.
    fn lend(&self, wire: &mut Wire, memory: &Memory) -> io::Result<usize> {
        wire.pieces.clear();
        let first = wire.first_awaited();
        let (mut skip, mut left, mut taken) = (wire.out_sent + self.stream.held(), 0, 0);
        for (leaving, awaited) in wire.out.iter().zip(wire.awaited.0.range_mut(first..)) {
            let part = &leaving.part;
            if !part.is_large() || left >= ROOM_BYTES || wire.pieces.len() >= PIECES_MAX - 1 {
                break;
            }
            if let (Some(header), false) = (&leaving.header, awaited.lent) {
                awaited.head = wire.heads.take(header.bytes());
                if awaited.head.is_none() {
                    break;
                }
            }
            awaited.lent = true;
            taken += 1;
            let (scatter, header, whole) = (part.scatter, leaving.header(), leaving.bytes());
            if skip >= whole {
                skip -= whole;
                continue;
            }
            left += whole - skip;
            if let Some(head) = &awaited.head {
                wire.heads.piece(head, skip, &mut wire.pieces);
            }
            let from = u32::try_from(skip.saturating_sub(header.len())).expect("inside the payload");
            skip = 0;
            memory.buffer(part.mem).pieces(scatter, from, scatter.len, PIECES_MAX, &mut wire.pieces);
        }
        let behind = taken < wire.out.len();
        // SAFETY: the pieces are in `wire.heads` and buffers of `memory`, both borrowed through the call.
        unsafe { self.stream.lend(&wire.pieces, left, behind) }
    }

    /// The answer to this read is not wanted any more; false when it is not on this connection.
    pub(super) fn abandon(&self, part: Key) -> bool {
        let wire = &mut *self.wire.borrow_mut();
        let Some(awaited) = wire.awaited.of(part.to_u64()) else { return false };
        assert!(!awaited.lent, "a write is waited for until its link is closed");
        awaited.abandoned = true;
        true
    }

    pub(super) fn can_zero(&self) -> bool {
        self.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES)
    }

    /// The kernel may go on sending what it has: payloads that it has pages of get others.
    pub(super) fn close(&self, memory: &mut Memory) {
        self.closed.set(true);
        self.stream.close();
        let wire = &mut *self.wire.borrow_mut();
        wire.out_sent = 0;
        let queued = wire.out.drain(..).skip(std::mem::take(&mut wire.headed));
        let queued = queued.map(|leaving| leaving.part.payload_bytes() as u64).sum();
        let all: u64 =
            wire.awaited.0.iter().map(|part| u64::from(payload_bytes(part.op, part.scatter))).sum();
        self.traffic.forget(queued, all - queued);
        let lent = wire.awaited.0.drain(..).filter(|part| part.lent).map(|part| part.mem);
        let mut lent: Vec<Mem> = lent.collect();
        lent.sort_unstable();
        lent.dedup();
        for mem in lent {
            memory.buffer_mut(mem).renew();
        }
        self.blocked.notify_one();
    }

    pub(super) fn disconnect(&self) {
        let header =
            RequestHeader { flags: CmdFlags::EMPTY, command: Command::Disc, cookie: 0, offset: 0, length: 0 };
        let _ = self.stream.try_send_from(&[IoSlice::new(&header.encode())], false);
    }
}

/// Goes on sending when a full socket has room again.
pub(super) async fn send_all(driver: Rc<RefCell<Driver>>, conn: Rc<Conn>) {
    loop {
        conn.blocked.notified().await;
        if conn.closed.get() {
            return;
        }
        if conn.stream.writable().await.is_err() || conn.closed.get() {
            return;
        }
        let driver = driver.borrow();
        let merges_bytes_max = conn.traffic.batch_merges_bytes_max();
        while !conn.wire.borrow().out.is_empty() {
            match conn.send_once(&driver.memory, merges_bytes_max) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    conn.blocked.notify_one();
                    break;
                }
                Err(_) => return,
            }
        }
    }
}

/// Receives until the connection ends, and reports how.
pub(super) async fn receive_all(driver: Rc<RefCell<Driver>>, conn: Rc<Conn>) {
    let mut events = Vec::with_capacity(256);
    let ended = loop {
        let received = match conn.stream.readable().await {
            Ok(()) if conn.closed.get() => return,
            Ok(()) => conn.receive(&mut driver.borrow_mut().memory, &mut events),
            Err(e) => Err(e),
        };
        driver.borrow_mut().answered(&mut events);
        match received {
            _ if conn.closed.get() => return,
            Ok(()) => tokio::task::coop::consume_budget().await,
            Err(e) => match e.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                io::ErrorKind::UnexpectedEof => break "it closed the connection".to_owned(),
                _ => break e.to_string(),
            },
        }
    };
    driver.borrow_mut().broken(conn.donor, conn.session, ended);
}

impl Conn {
    /// One system call's worth of input, and what it answered.
    fn receive(&self, memory: &mut Memory, events: &mut Vec<Event>) -> io::Result<()> {
        let wire = &mut *self.wire.borrow_mut();
        if wire.input_start > 0 {
            wire.input.copy_within(wire.input_start..wire.input_end, 0);
            wire.input_end -= wire.input_start;
            wire.input_start = 0;
        }
        if wire.input_end == wire.input.len() {
            let need = Reply::need(&wire.input).map_err(io::Error::other)?;
            wire.input.resize(need, 0);
        }
        wire.pieces.clear();
        let mut direct = 0;
        let mut look_ahead = wire.input.len() - wire.input_end;
        if let Some(incoming) = wire.incoming {
            // The input buffer is empty while data is on its way: what was in it has been used up.
            let awaited = wire.awaited.of(incoming.cookie).expect("data comes for what is awaited");
            if incoming.end - incoming.at >= DIRECT_BYTES && !awaited.abandoned {
                let buffer = memory.buffer_mut(awaited.mem);
                buffer.pieces(awaited.scatter, incoming.at, incoming.end, PIECES_MAX - 1, &mut wire.pieces);
                direct = wire.pieces.iter().map(|piece| piece.iov_len).sum();
                let whole = direct == (incoming.end - incoming.at) as usize;
                look_ahead = if whole { HEAD_BYTES } else { 0 };
            }
        } else if wire.large_expected {
            look_ahead = look_ahead.min(HEAD_BYTES.saturating_sub(wire.input_end).max(1));
        }
        if look_ahead > 0 {
            wire.pieces.push(iovec(wire.input[wire.input_end..].as_mut_ptr(), look_ahead));
        }
        // SAFETY: the pieces are rooms in a buffer of `memory` and in `wire.input`, both borrowed mutably, that do not
        // overlap: a fragment's payload offsets grow by at least its pieces' lengths (a property test in
        // `core::layout` holds it to that). Nothing else looks at them until the call returns.
        let got = unsafe { self.stream.try_receive(&wire.pieces)? };
        let now = Instant::now();
        let silent = now.duration_since(std::mem::replace(&mut wire.heard, now));
        let landed = got.min(direct);
        wire.input_end += got - landed;
        if let Some(incoming) = &mut wire.incoming {
            incoming.at += u32::try_from(landed).expect("inside the part");
        }
        let asked = self.traffic.asked();
        self.digest(wire, memory, events).map_err(io::Error::other)?;
        let written = asked - self.traffic.asked();
        if written > 0 {
            wire.merges.note(written, u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// Takes apart what is in the input buffer.
    fn digest(&self, wire: &mut Wire, memory: &mut Memory, events: &mut Vec<Event>) -> Result<(), String> {
        loop {
            if let Some(incoming) = &mut wire.incoming {
                let buffered = &wire.input[wire.input_start..wire.input_end];
                let awaited = wire.awaited.of(incoming.cookie).ok_or("data for nothing")?;
                let take = buffered.len().min((incoming.end - incoming.at) as usize);
                if take > 0 {
                    let end = incoming.at + u32::try_from(take).expect("inside the part");
                    if !awaited.abandoned {
                        let bytes = Some(&buffered[..take]);
                        memory.buffer_mut(awaited.mem).put(awaited.scatter, incoming.at, end, bytes);
                    }
                    incoming.at = end;
                    wire.input_start += take;
                }
                if incoming.at < incoming.end {
                    return Ok(());
                }
                let Incoming { cookie, done, .. } = *incoming;
                wire.incoming = None;
                if done {
                    self.finish(wire, memory, cookie, events)?;
                }
            }
            let input = &wire.input[wire.input_start..wire.input_end];
            let Some((reply, used)) = Reply::decode(input).map_err(|violation| violation.to_string())? else {
                return Ok(());
            };
            wire.input_start += used;
            self.reply(wire, memory, reply, events)?;
        }
    }

    fn reply(
        &self,
        wire: &mut Wire,
        memory: &mut Memory,
        reply: Reply,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let (cookie, mut done) = (reply.cookie(), reply.done());
        let place = wire.awaited.place(cookie).ok_or("it answered what was not asked")?;
        wire.large_expected = false;
        let is_sent = wire.awaited.request(place).all(|part| part.sent);
        let beyond = wire.awaited.request(place).any(|part| part.end() > self.export_bytes);
        let awaited = &mut wire.awaited.0[place];
        if !is_sent {
            return Err("it answered a request that it had not been sent in full".into());
        }
        match reply {
            Reply::Simple { error: None, .. } if awaited.op == PartOp::Read => {
                done = false;
                wire.large_expected = awaited.scatter.len >= DIRECT_BYTES;
                awaited.received = awaited.scatter.len;
                wire.incoming = Some(Incoming { cookie, at: 0, end: awaited.scatter.len, done: true });
            }
            Reply::Simple { error, .. } => awaited.error = error.map(|errno| part_error(errno, beyond)),
            Reply::OffsetData { offset, data_bytes, done: last, .. } => {
                done = false;
                wire.large_expected = data_bytes >= DIRECT_BYTES;
                let (at, end) = awaited.claim(offset, data_bytes)?;
                wire.incoming = Some(Incoming { cookie, at, end, done: last });
            }
            Reply::OffsetHole { offset, hole_bytes, .. } => {
                let (at, end) = awaited.claim(offset, hole_bytes)?;
                if !awaited.abandoned {
                    memory.buffer_mut(awaited.mem).put(awaited.scatter, at, end, None);
                }
            }
            Reply::None { .. } => {}
            Reply::Error { errno, .. } | Reply::ErrorOffset { errno, .. } => {
                awaited.error.get_or_insert(part_error(errno, beyond));
            }
            // The protocol has one question for both.
            Reply::Ledger { .. } if awaited.op == PartOp::Status => {}
            Reply::Ledger { .. } if awaited.op != PartOp::Survey || awaited.listed.is_some() => {
                return Err("it sent a ledger that was not asked for".into());
            }
            Reply::Ledger { complete, entries, .. } => {
                let listed = |entry: LedgerEntry| {
                    let LedgerEntry { from, to, number, targets, landed } = entry;
                    ListedWrite { from, to, number, targets, landed }
                };
                awaited.listed = Some((complete, entries.into_iter().map(listed).collect()));
            }
            Reply::BlockStatus { context, descriptors, .. } => {
                let survey = awaited.op == PartOp::Survey;
                let wanted = if survey { self.dirty } else { self.holes };
                let sum = awaited.status.len() + descriptors.len();
                let asked = survey || awaited.op == PartOp::Status;
                if !asked || sum > BLOCK_STATUS_DESCRIPTORS_MAX {
                    return Err("it sent more status than was asked for".into());
                }
                let hole = |flags: StateFlags| match survey {
                    true => !flags.contains(StateFlags::DIRTY),
                    false => flags.contains(StateFlags::HOLE) && flags.contains(StateFlags::ZERO),
                };
                let descriptors = descriptors.iter().filter(|_| Some(context) == wanted);
                let runs = descriptors.map(|d| StatusRun { len: d.length, hole: hole(d.flags) });
                awaited.status.extend(runs);
            }
        }
        if done { self.finish(wire, memory, cookie, events) } else { Ok(()) }
    }

    fn finish(
        &self,
        wire: &mut Wire,
        memory: &mut Memory,
        cookie: u64,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let place = wire.awaited.place(cookie).ok_or("it answered twice")?;
        let error = wire.awaited.0[place].error;
        for _ in 0..wire.awaited.request(place).count() {
            let part = wire.awaited.0.remove(place).expect("counted");
            self.finish_part(&mut wire.heads, memory, Awaited { error, ..part }, events)?;
        }
        Ok(())
    }

    fn finish_part(
        &self,
        heads: &mut Heads,
        memory: &mut Memory,
        awaited: Awaited,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        self.traffic.forget(0, payload_bytes(awaited.op, awaited.scatter).into());
        self.outstanding.set(self.outstanding.get() - u64::from(awaited.scatter.len));
        if awaited.abandoned {
            return Ok(());
        }
        if let Some(head) = awaited.head {
            heads.give_back(head);
        }
        // A foreign server may say that it failed before it has taken the payload.
        if awaited.lent && awaited.error.is_some() {
            memory.buffer_mut(awaited.mem).renew();
        }
        let answer = match awaited.error {
            Some(error) => Err(error),
            None if awaited.op == PartOp::Read && awaited.received != awaited.scatter.len => {
                return Err("it answered a read in part".into());
            }
            None if awaited.op == PartOp::Read => {
                match memory.wrong_blocks(awaited.fragment, awaited.mem, awaited.scatter) {
                    0 => Ok(awaited.status),
                    blocks => Err(PartError::Corrupt { blocks }),
                }
            }
            None => Ok(awaited.status),
        };
        let part = Key::from_u64(awaited.cookie);
        if let Some((complete, writes)) = awaited.listed.filter(|_| answer.is_ok()) {
            events.push(Event::Listed { part, complete, writes });
        }
        events.push(Event::Answered { part, answer });
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        wipe(std::mem::take(&mut self.input));
    }
}

impl Wire {
    /// Whether what comes next is lent.
    fn lends(&self, stream: &Stream) -> bool {
        let Some(Leaving { part, .. }) = self.out.front() else { return false };
        match self.awaited.0[self.first_awaited()].lent {
            true => stream.lends(),
            false => self.out_sent == 0 && self.may_lend(part, stream),
        }
    }

    /// Gives what was queued since the last call its headers.
    fn make_requests(&mut self, merges_bytes_max: u32, traffic: &Traffic) {
        while let Some((parts, bytes)) = first_request(self.out.range(self.headed..), merges_bytes_max) {
            let head = &mut self.out[self.headed];
            head.header = Some(head.part.header(bytes, &mut self.marked));
            if head.part.payload_bytes() > 0 {
                traffic.ask(bytes.into());
            }
            let place = self.first_awaited() + self.headed;
            self.awaited.0.range_mut(place + 1..place + parts).for_each(|part| part.merged = true);
            self.headed += parts;
        }
    }

    /// Whether a part of which nothing is sent can be lent.
    fn may_lend(&self, part: &OutPart, stream: &Stream) -> bool {
        part.is_large() && stream.lends() && self.heads.has_room()
    }

    /// So many bytes more are with the kernel.
    fn advance(&mut self, sent: usize) {
        let mut sent = self.out_sent + sent;
        while let Some(leaving) = self.out.front() {
            let whole = leaving.bytes();
            if sent < whole {
                break;
            }
            sent -= whole;
            let (cookie, first) = (leaving.part.part.to_u64(), self.first_awaited());
            let awaited = &mut self.awaited.0[first];
            debug_assert_eq!(awaited.cookie, cookie);
            awaited.sent = true;
            self.out.pop_front();
            self.headed -= 1;
        }
        self.out_sent = sent;
    }

    /// The place of what is awaited for the front of `out`: both lists grew together, and nothing is answered before it is sent.
    fn first_awaited(&self) -> usize {
        self.awaited.0.len() - self.out.len()
    }
}

impl Awaited {
    /// Where it ends on its donor.
    fn end(&self) -> u64 {
        self.address.saturating_add(self.scatter.len.into())
    }

    /// The bytes of the part that a chunk carries.
    fn claim(&mut self, offset: u64, len: u32) -> Result<(u32, u32), String> {
        let at = offset.checked_sub(self.address).and_then(|at| u32::try_from(at).ok());
        let range = at.and_then(|at| Some((at, at.checked_add(len)?)));
        let (at, end) =
            range.filter(|(_, end)| *end <= self.scatter.len).ok_or("it sent data outside the request")?;
        self.received += len;
        if self.op != PartOp::Read || self.received > self.scatter.len {
            return Err("it sent more data than was asked for".into());
        }
        Ok((at, end))
    }
}

/// `beyond`: the range leaves the export as it was announced, so what was there is not the volume's any more: its map is older.
fn part_error(errno: Errno, beyond: bool) -> PartError {
    match errno {
        Errno::Perm => PartError::Denied,
        Errno::Inval | Errno::NoSpc if beyond => PartError::Denied,
        Errno::NoMem | Errno::NoSpc => PartError::NoMemory,
        Errno::NotSup => PartError::Unsupported,
        _ => PartError::Io,
    }
}
