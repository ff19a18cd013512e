//! One connection to a donor: drives the protocol's client (`nbd`) over a stream. Requests leave gathered,
//! large payloads as the pages that they are; replies come in, their data straight to where it belongs.
//!
//! Owns: where payloads lie, and which pages the kernel has. Never: which donor a part goes to, what a
//! failure means, or what may be sent and answered when (`nbd::client::Transmission`).
//! Invariants: a closed connection touches no payload, and nothing that is put into one later leaves by it;
//! anything unexpected ends the link.
//! Small replies go through a buffer, many for one system call; large data is received into its destination
//! with the next reply's head behind it (both measured: each is several times slower at the other's job).
//! One of the named modules that may use unsafe (readv into a buffer's pieces).
#![allow(unsafe_code)]

use super::Driver;
use super::heads::{Head, Heads};
use super::memory::Memory;
use super::open::Opened;
use super::traffic::Traffic;
use crate::memory::wipe;
use crate::proofs::Checked;
use crate::stream::{DIRECT_BYTES, LEND_WRITE_BYTES, ROOM_BYTES, Stream, iovec};
use cheetah_core::donor::WriteMark;
use cheetah_core::layout::Scatter;
use cheetah_core::limits::{DOUBT_NS, EXTENT_BYTES};
use cheetah_core::map::DonorId;
use cheetah_core::volume::{Event, Fragment, Key, LinkMerges, Mem, PartError, PartOp};
use cheetah_nbd::client::{Answer, Incoming, Request, Take, Transmission};
use cheetah_nbd::{CmdFlags, Command, Digest, RequestHeader};
use cheetah_terms::client::{Abilities, answered, payload_bytes};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const RECEIVE_BYTES: usize = 64 << 10;
const PIECES_MAX: usize = 512;

/// A part of a volume's request, to one donor.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) part: Key,
    pub(super) op: PartOp,
    pub(super) address: u64,
    pub(super) mem: Mem,
    pub(super) scatter: Scatter,
    pub(super) fragment: Fragment,
    pub(super) mark: Option<WriteMark>,
}

/// What is kept of a part until it is answered.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) op: PartOp,
    pub(super) mem: Mem,
    pub(super) scatter: Scatter,
    pub(super) fragment: Fragment,
    /// The kernel may have pages of its payload, and of its head, until the donor says that it has the bytes.
    lent: bool,
    head: Option<Head>,
}

impl Body {
    pub(super) fn new(part: &Part) -> Body {
        let Part { op, mem, scatter, fragment, .. } = *part;
        Body { op, mem, scatter, fragment, lent: false, head: None }
    }

    fn payload_bytes(&self) -> u32 {
        payload_bytes(self.op, self.scatter.len)
    }

    fn is_large(&self) -> bool {
        self.payload_bytes() >= LEND_WRITE_BYTES
    }
}

#[derive(Debug)]
struct Wire {
    transmission: Transmission<Body>,
    heads: Heads,
    merges: LinkMerges,
    /// When something came last, or the first of what is awaited was asked.
    heard: Instant,
    /// Grows only for a head that does not fit (a long BLOCK_STATUS), up to the codec's limit.
    input: Vec<u8>,
    input_start: usize,
    input_end: usize,
    /// Room for the pieces of one call; what is in it means nothing between two.
    pieces: Vec<libc::iovec>,
}

#[derive(Debug)]
pub(super) struct Conn {
    donor: DonorId,
    session: u64,
    stream: Stream,
    can: Abilities,
    closed: Cell<bool>,
    outstanding: Cell<u64>,
    traffic: Rc<Traffic>,
    blocked: Notify,
    wire: RefCell<Wire>,
}

impl Conn {
    pub(super) fn new(donor: DonorId, session: u64, opened: Opened, traffic: Rc<Traffic>) -> Self {
        let Opened { stream, session: negotiated, early } = opened;
        let can = Abilities::of(&negotiated);
        let mut input = vec![0; RECEIVE_BYTES];
        input[..early.len()].copy_from_slice(&early);
        let round_trip_ns = stream.round_trip_ns();
        Conn {
            donor,
            session,
            stream,
            can,
            closed: Cell::new(false),
            outstanding: Cell::new(0),
            traffic,
            blocked: Notify::new(),
            wire: RefCell::new(Wire {
                transmission: Transmission::new(
                    &negotiated,
                    can.numbers_writes(),
                    EXTENT_BYTES,
                    DIRECT_BYTES,
                ),
                heads: Heads::new(),
                merges: LinkMerges::new(negotiated.info.block_max, round_trip_ns),
                heard: Instant::now(),
                input,
                input_start: 0,
                input_end: early.len(),
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

    /// Queues a part; true when all before it is sent, so that a flush is due.
    pub(super) fn queue(&self, part: &Part, digest: Option<Digest>, auth: Vec<u8>) -> bool {
        let Wire { transmission, heard, .. } = &mut *self.wire.borrow_mut();
        self.outstanding.set(self.outstanding.get() + u64::from(part.scatter.len));
        self.traffic.queue(payload_bytes(part.op, part.scatter.len).into());
        if transmission.is_idle() {
            *heard = Instant::now();
        }
        let is_due = transmission.is_sent();
        let Part { part: key, op, address, scatter, mark, .. } = *part;
        let request = self.can.request(key, op, address, scatter.len, mark, Body::new(part));
        transmission.queue(Request { digest, auth, ..request });
        is_due
    }

    /// Sends what is queued, with writes merged up to so many bytes, until it is gone or the socket is full;
    /// the sender task goes on when there is room.
    pub(super) fn flush(&self, memory: &Memory, merges_bytes_max: u32) {
        while !self.closed.get() && !self.wire.borrow().transmission.is_sent() {
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
        let merges_bytes_max = merges_bytes_max.min(wire.merges.bytes_max());
        self.traffic.ask(wire.transmission.make_requests(merges_bytes_max));
        let lends = !self.can.has_auth() && wire.lends(&self.stream);
        let sent = if lends { self.lend(wire, memory)? } else { self.copy(wire, memory)? };
        wire.transmission.sent(sent);
        Ok(())
    }

    /// Copies what is queued to the kernel, up to what is lent.
    fn copy(&self, wire: &mut Wire, memory: &Memory) -> io::Result<usize> {
        let Wire { transmission, pieces, heads, .. } = wire;
        pieces.clear();
        let mut skip = transmission.front_sent();
        let mut more = false;
        for leaving in transmission.unsent() {
            let (auth, header, body) = (leaving.auth, leaving.head, &leaving.request.body);
            if pieces.len() >= PIECES_MAX - 2 {
                break;
            }
            // What was begun as a copy ends as one.
            more = skip == 0 && !self.can.has_auth() && may_lend(heads, body, &self.stream);
            if more {
                break;
            }
            if let Some(auth) = auth.get(skip..).filter(|rest| !rest.is_empty()) {
                pieces.push(iovec(auth.as_ptr(), auth.len()));
            }
            let skip_head = skip.saturating_sub(auth.len());
            if let Some(header) = header.get(skip_head..).filter(|rest| !rest.is_empty()) {
                pieces.push(iovec(header.as_ptr(), header.len()));
            }
            let from = skip_head.saturating_sub(header.len());
            skip = 0;
            if body.payload_bytes() > 0 {
                let from = u32::try_from(from).expect("inside the payload");
                memory.buffer(body.mem).pieces(body.scatter, from, body.scatter.len, PIECES_MAX, pieces);
            }
        }
        // SAFETY: the pieces are heads in `wire.transmission` and buffers in `memory`, both borrowed through
        // the call.
        unsafe { self.stream.try_send(pieces, more) }
    }

    /// Hands the kernel pages of the first payloads and their heads instead of copies, as far as it takes
    /// them at once. They must not change before the donor has answered, or `close` has put others in their
    /// place.
    fn lend(&self, wire: &mut Wire, memory: &Memory) -> io::Result<usize> {
        let Wire { transmission, pieces, heads, .. } = wire;
        pieces.clear();
        let mut skip = transmission.front_sent() + self.stream.held();
        let (mut left, mut behind) = (0, false);
        for leaving in transmission.unsent() {
            let (header, body) = (leaving.head, &mut leaving.request.body);
            behind = !body.is_large() || left >= ROOM_BYTES || pieces.len() >= PIECES_MAX - 1;
            if behind {
                break;
            }
            if !header.is_empty() && !body.lent {
                body.head = heads.take(header);
                behind = body.head.is_none();
                if behind {
                    break;
                }
            }
            body.lent = true;
            let whole = header.len() + body.payload_bytes() as usize;
            if skip >= whole {
                skip -= whole;
                continue;
            }
            left += whole - skip;
            if let Some(head) = &body.head {
                heads.piece(head, skip, pieces);
            }
            let from = u32::try_from(skip.saturating_sub(header.len())).expect("inside the payload");
            skip = 0;
            memory.buffer(body.mem).pieces(body.scatter, from, body.scatter.len, PIECES_MAX, pieces);
        }
        // SAFETY: the pieces are in `wire.heads` and buffers of `memory`, both borrowed through the call.
        unsafe { self.stream.lend(pieces, left, behind) }
    }

    /// The answer to this read is not wanted any more; false when it is not on this connection.
    pub(super) fn abandon(&self, part: Key) -> bool {
        let transmission = &mut self.wire.borrow_mut().transmission;
        let Some(body) = transmission.abandon(part.to_u64()) else { return false };
        assert!(!body.lent, "a write is waited for until its link is closed");
        true
    }

    pub(super) fn can(&self) -> Abilities {
        self.can
    }

    /// The kernel may go on sending what it has: payloads that it has pages of get others.
    pub(super) fn close(&self, memory: &mut Memory) {
        self.closed.set(true);
        self.stream.close();
        let transmission = &mut self.wire.borrow_mut().transmission;
        let mut lent: Vec<Mem> = Vec::new();
        for (request, is_asked) in transmission.end() {
            self.traffic.forget(is_asked, request.payload_bytes().into());
            lent.extend(request.body.lent.then_some(request.body.mem));
        }
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
        let _ = self.stream.try_send_from(&[IoSlice::new(&header.encode_in(self.can.is_sealed()))], false);
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
        while !conn.wire.borrow().transmission.is_sent() {
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
        let Wire { transmission, heads, merges, heard, input, input_start, input_end, pieces } =
            &mut *self.wire.borrow_mut();
        if *input_start > 0 {
            input.copy_within(*input_start..*input_end, 0);
            *input_end -= *input_start;
            *input_start = 0;
        }
        if *input_end == input.len() {
            let need = transmission.need(input).map_err(io::Error::other)?;
            input.resize(need, 0);
        }
        pieces.clear();
        let mut direct = 0;
        let mut look_ahead = input.len() - *input_end;
        match transmission.incoming() {
            // The input buffer is empty while data is on its way: what was in it has been used up.
            Some(Incoming { body, at, end }) if end - at >= DIRECT_BYTES => {
                memory.buffer_mut(body.mem).pieces(body.scatter, at, end, PIECES_MAX - 1, pieces);
                direct = pieces.iter().map(|piece| piece.iov_len).sum();
                look_ahead = if direct == (end - at) as usize { transmission.head_bytes() } else { 0 };
            }
            None if transmission.expects_large() => {
                look_ahead = look_ahead.min(transmission.head_bytes().saturating_sub(*input_end).max(1));
            }
            _ => {}
        }
        if look_ahead > 0 {
            pieces.push(iovec(input[*input_end..].as_mut_ptr(), look_ahead));
        }
        // SAFETY: the pieces are rooms in a buffer of `memory` and in `wire.input`, both borrowed mutably,
        // that do not overlap: a fragment's payload offsets grow by at least its pieces' lengths (a property
        // test in `core::layout` holds it to that). Nothing else looks at them until the call returns.
        let got = unsafe { self.stream.try_receive(pieces)? };
        let now = Instant::now();
        let silent = now.duration_since(std::mem::replace(heard, now));
        let landed = got.min(direct);
        *input_end += got - landed;
        transmission.landed(u32::try_from(landed).expect("inside the part"));
        let asked = self.traffic.asked();
        let came = &input[..*input_end];
        let taking = &mut Taking { conn: self, heads, memory, events };
        *input_start = transmission.received(came, taking).map_err(io::Error::other)?;
        let written = asked - self.traffic.asked();
        if written > 0 {
            merges.note(written, u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

/// Puts what comes where it belongs.
struct Taking<'a> {
    conn: &'a Conn,
    heads: &'a mut Heads,
    memory: &'a mut Memory,
    events: &'a mut Vec<Event>,
}

impl Take<Body> for Taking<'_> {
    fn data(&mut self, body: &Body, at: u32, bytes: &[u8]) {
        let end = at + u32::try_from(bytes.len()).expect("inside the part");
        self.memory.buffer_mut(body.mem).put(body.scatter, at, end, Some(bytes));
    }

    fn hole(&mut self, body: &Body, at: u32, end: u32) {
        self.memory.buffer_mut(body.mem).put(body.scatter, at, end, None);
    }

    fn answer(&mut self, mut answer: Answer<Body>) {
        let body = &mut answer.body;
        let Conn { traffic, outstanding, .. } = self.conn;
        traffic.forget(true, body.payload_bytes().into());
        outstanding.set(outstanding.get() - u64::from(body.scatter.len));
        if answer.abandoned {
            return;
        }
        if let Some(head) = body.head.take() {
            self.heads.give_back(head);
        }
        // A foreign server may say that it failed before it has taken the payload.
        if body.lent && answer.error.is_some() {
            self.memory.buffer_mut(body.mem).renew();
        }
        let op = body.op;
        let (fragment, mem, scatter) = (body.fragment, body.mem, body.scatter);
        if answer.error.is_none() && op == PartOp::Read {
            self.memory.put_auths_of(fragment, mem, scatter, &answer.auth);
        }
        let wrong = match (answer.error, op) {
            (None, PartOp::Read) => match self.memory.wrong_blocks(fragment, mem, scatter, &answer.sums) {
                // What its checksum says to be wrong is no lie.
                0 => match self.memory.prove(fragment, mem, scatter) {
                    Checked::Wrong(0) => unproved(self.memory.forged(fragment, mem, scatter), true),
                    Checked::Wrong(blocks) => unproved(blocks, self.conn.can.is_sealed()),
                    Checked::Needs(_) => {
                        self.events.push(Event::Came { part: Key::from_u64(answer.cookie) });
                        return self.memory.waits(self.conn.donor, answer, self.conn.can.is_sealed());
                    }
                },
                blocks => corrupt(blocks),
            },
            (None, PartOp::Write | PartOp::Sparse) => {
                corrupt(self.memory.wrongly_taken(fragment, mem, scatter, &answer.sums))
            }
            _ => None,
        };
        answered(op, answer, wrong, self.events);
    }
}

fn corrupt(blocks: u32) -> Option<PartError> {
    (blocks > 0).then_some(PartError::Corrupt { blocks, forged: false })
}

/// They fit what their donor says of them; of a server without checksums they may have been hit on their way.
pub(super) fn unproved(blocks: u32, has_sums: bool) -> Option<PartError> {
    (blocks > 0).then_some(PartError::Corrupt { blocks, forged: has_sums })
}

impl Drop for Wire {
    fn drop(&mut self) {
        wipe(std::mem::take(&mut self.input));
    }
}

impl Wire {
    /// Whether what comes next is lent.
    fn lends(&mut self, stream: &Stream) -> bool {
        let front_sent = self.transmission.front_sent();
        let Some(leaving) = self.transmission.unsent().next() else { return false };
        match &leaving.request.body {
            body if body.lent => stream.lends(),
            body => front_sent == 0 && may_lend(&self.heads, body, stream),
        }
    }
}

/// Whether a part of which nothing is sent can be lent.
fn may_lend(heads: &Heads, body: &Body, stream: &Stream) -> bool {
    body.is_large() && stream.lends() && heads.has_room()
}
