//! One client of a donor, after its handshake: requests in batches, payloads straight from the socket into
//! the arena.
//!
//! Owns: what of the input is not taken yet, and what becomes of the write that comes in. Never: protocol,
//! which is `Transmission`'s; who may touch what (`Access` decides for each request); or a thread's time
//! (nothing here waits for anything but the socket). Invariants: requests take effect in the order in which
//! they came; a client that does not read its replies stops being read itself, so memory is bounded; an idle
//! connection holds none to speak of; and one that ends leaves nothing of what it received outside of the
//! arena, so that what is wiped there is nowhere else. One receive takes all the requests that are there, one
//! send (`sending`) answers them all: at 4 KiB and depth 64 that is a factor of 6. Write payloads land in the
//! arena directly. Called by `donor`. Parts: `layered` (volumes that are larger than their memory), `late`
//! (writes that are in memory before they are on a disk), `telling` (what the memory is like), `undoing`
//! (what writes covered), `whole` (writes of encrypted ones). Tests: `tests/donor_wire.rs`,
//! `tests/donor_export.rs`.
//! One of the named modules that may use unsafe (vectored I/O on arena addresses).
#![allow(unsafe_code)]

mod late;
mod layered;
mod telling;
mod undoing;
mod whole;

use super::Lent;
use super::sending::Sending;
use super::waiting::{Coming, OnDisk, Waiting};
use crate::arena::{Arena, Begun, Room, Said};
use crate::disk::Told;
use crate::ledgers::{Ledger, locked};
use crate::memory::wipe;
use crate::stream::{DIRECT_BYTES, Stream, iovec};
use cheetah_core::donor::{Access, Grant, Ticket, WriteMark};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_nbd::client::HEAD_BYTES;
use cheetah_nbd::server::transmission::{Payload, Step, Transmission};
use cheetah_nbd::{Command, Digest, Errno, Negotiated, RequestHeader, Violation};
use cheetah_terms::donor::{Asked, permit, tell_absent};
use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};
use whole::WholeBlocks;

/// What one receive takes at most; shared by the connections of a thread.
const SCRATCH_BYTES: usize = 256 << 10;
/// Bytes that zeroing and status may walk before other connections of the thread get their turn.
const WORK_BYTES_MAX: u64 = 256 << 20;
/// What ageing the marks of an extent counts for as such work.
const AGE_WORK_BYTES: u64 = 128 << 10;

const DISK_FAILED: &str = "this donor's disk did not take it";

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

/// What becomes of the write whose payload comes in.
#[derive(Debug, Default)]
struct Write {
    /// What it will be answered with; a refused payload is received and dropped.
    refused: Option<Errno>,
    /// Of its place in the ledger.
    ticket: Option<Ticket>,
    /// Of the arena, unless it is refused.
    begun: Option<Begun>,
    /// What its payload is, as its client says.
    said: Option<Said>,
    /// Where in the arena it lands.
    place: u64,
    /// For blocks that it brings to memory which is shared.
    room: Option<Room>,
    /// Of an encrypted volume.
    whole: Option<WholeBlocks>,
    /// Of a volume with write-back: what has come of it, which lands as a whole.
    late: Option<Vec<u8>>,
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

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        End::Fault(violation.to_string())
    }
}

/// What was tried in vain is tried again when the stream is ready.
pub(super) fn unless_in_vain(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    }
}

pub(super) struct Connection<'a> {
    stream: &'a Stream,
    arena: &'a Arena,
    grant: Grant,
    requests: Transmission,
    sending: Sending<'a>,
    /// The start of a header whose rest has not come.
    partial: Vec<u8>,
    /// Of a client that numbers what it writes, and what it said last.
    ledger: Option<Arc<Mutex<Ledger>>>,
    mark: Option<WriteMark>,
    /// What the payload of the next write is.
    digest: Option<Digest>,
    /// Nonces and authentication tags of the blocks of the next write.
    auths: Vec<u8>,
    /// What comes as such is kept, and not dropped.
    takes_auths: bool,
    /// Of the payload that `requests` waits for.
    write: Write,
    /// Bytes walked by zeroing and status since the last send.
    work_bytes: u64,
    /// `partial` holds whole requests that wait until their predecessors' replies are sent.
    deferred: bool,
    /// What waits for the disk that the arena is a part of, if it is one of a disk.
    on_disk: Option<OnDisk<'a>>,
}

impl Drop for Connection<'_> {
    /// A write that was cut off has landed in part. What it covered is put back where it is kept. Else its
    /// bytes count as written: hidden in an absent block, they would come to light behind a later zero that
    /// found nothing to do.
    fn drop(&mut self) {
        if let (Some(payload), Some(begun)) = (self.requests.payload(), self.write.begun) {
            let landed = self.write.whole.as_ref().map_or(payload.at as u64, WholeBlocks::landed);
            self.keep_auths(landed);
            match &mut self.on_disk {
                Some(on_disk) => on_disk.cut_off(self.arena, begun),
                None => {
                    let landed = if self.puts_back() { 0 } else { landed };
                    self.arena.wrote(begun, landed, self.write.room.take(), None);
                }
            }
        }
        wipe(std::mem::take(&mut self.partial));
        self.write.late.take().into_iter().for_each(wipe);
        // None is left of a thread that ends.
        let _ = SCRATCH.try_with(|scratch| scratch.borrow_mut().wipe());
    }
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        lent: &'a Lent,
        mut session: Negotiated,
        grant: Grant,
        early: Vec<u8>,
    ) -> Self {
        let arena = lent.arena();
        // The size in the handshake was that of the moment; what the volume has gained since is served too,
        // and `Access` knows which extents are its own.
        session.info.size = grant.end(arena.bytes());
        Connection {
            stream,
            arena,
            grant,
            sending: Sending::new(stream, arena, &session),
            requests: Transmission::new(session, DIRECT_BYTES),
            partial: early,
            ledger: None,
            mark: None,
            digest: None,
            auths: Vec::new(),
            takes_auths: false,
            write: Write::default(),
            work_bytes: 0,
            deferred: false,
            on_disk: lent.disk().map(OnDisk::new),
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
        digested?;
        loop {
            self.sending.send().await?;
            self.work_bytes = 0;
            self.on_disk.iter_mut().for_each(OnDisk::let_go);
            if self.requests.has_ended() {
                return Ok(());
            }
            if self.deferred && !self.is_full() {
                self.deferred = false;
                let input = std::mem::take(&mut self.partial);
                let digested = self.digest(&input, &access());
                wipe(input);
                digested?;
                tokio::task::yield_now().await;
                continue;
            }
            self.sending.shrink();
            let reads_on = !self.deferred && (!self.is_full() || self.requests.payload().is_some());
            let told = match &mut self.on_disk {
                Some(on_disk) => on_disk.told_or(self.stream.readable(), reads_on).await?,
                None => {
                    self.stream.readable().await?;
                    None
                }
            };
            if let Some(told) = told {
                self.told(&told);
                continue;
            }
            match self.receive(&access) {
                Ok(digested) => digested?,
                Err(e) => unless_in_vain(e)?,
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// One system call's worth of input, carried out.
    fn receive(&mut self, access: &impl Fn() -> Arc<Access>) -> io::Result<Result<(), Violation>> {
        SCRATCH.with_borrow_mut(|Scratch { bytes: scratch, used }| {
            let kept = self.partial.len();
            scratch[..kept].copy_from_slice(&self.partial);
            self.partial.clear();
            let large = |payload: &&Payload| payload.missing() >= DIRECT_BYTES as usize;
            let direct = match self.requests.payload().filter(large) {
                Some(payload) if self.write.begun.is_some() && self.write.whole.is_none() => {
                    let place = self.arena.address(self.write.place + payload.at as u64);
                    Some(iovec(place, payload.missing()))
                }
                _ => None,
            };
            let head_only = direct.is_some() || self.requests.head_only();
            let look_ahead = if head_only { HEAD_BYTES - kept } else { scratch.len() - kept };
            let scratched = iovec(scratch[kept..].as_ptr(), look_ahead);
            let pieces = [direct.unwrap_or(scratched), scratched];
            let pieces = if direct.is_some() { &pieces[..] } else { &pieces[1..] };
            // SAFETY: the range of the write was checked against the arena; the rest is the thread's scratch,
            // borrowed mutably.
            let got = match unsafe { self.stream.try_receive(pieces) } {
                Ok(got) => got,
                Err(e) => {
                    self.partial.extend_from_slice(&scratch[..kept]);
                    return Err(e);
                }
            };
            self.arena.count_moved(got as u64);
            let landed = direct.map_or(0, |direct| direct.iov_len.min(got));
            self.requests.landed(landed);
            let end = kept + got - landed;
            *used = end.max(*used);
            Ok(self.digest(&scratch[..end], &access()))
        })
    }

    /// Carries out what `input` holds; an incomplete header at its end is kept for the next time.
    fn digest(&mut self, mut input: &[u8], access: &Access) -> Result<(), Violation> {
        loop {
            // In the middle of a write nothing can be put off.
            if self.is_full() && self.requests.payload().is_none() {
                self.partial.extend_from_slice(input);
                self.deferred = true;
                return Ok(());
            }
            match self.requests.next(&mut input)? {
                Some(Step::Request { header, verdict }) => self.request(&header, verdict, access),
                Some(Step::Payload { bytes, .. }) if self.is_auth() => {
                    if self.takes_auths {
                        self.auths.extend_from_slice(bytes);
                    }
                }
                Some(Step::Payload { at, bytes }) => {
                    if let Some(late) = &mut self.write.late {
                        late.extend_from_slice(bytes);
                    } else if let Some(whole) = &mut self.write.whole {
                        whole.take(bytes, |at, block| self.arena.copy_in(self.write.place + at, block));
                    } else if self.write.begun.is_some() {
                        self.arena.copy_in(self.write.place + at as u64, bytes);
                    }
                }
                Some(Step::Whole(header)) if header.command == Command::Auth => {}
                Some(Step::Whole(header)) => self.whole(&header),
                Some(Step::End) => return Ok(()),
                None => {
                    self.partial.extend_from_slice(input);
                    return Ok(());
                }
            }
        }
    }

    /// Whether it is time to send before more is carried out.
    fn is_full(&self) -> bool {
        let waits = self.on_disk.as_ref().is_some_and(OnDisk::is_full);
        waits || self.sending.is_full() || self.work_bytes >= WORK_BYTES_MAX
    }

    fn request(&mut self, header: &RequestHeader, verdict: Result<Command, Errno>, access: &Access) {
        let RequestHeader { cookie, length, .. } = *header;
        let len = u64::from(length);
        if header.command == Command::Auth {
            self.auths.clear();
            self.takes_auths = verdict.is_ok() && self.grant.encrypted;
            return;
        }
        let verdict = verdict.and_then(|command| match &self.on_disk {
            Some(on_disk) => on_disk.takes(header).map(|()| command),
            None => Ok(command),
        });
        match verdict.and_then(|_| permit(access, &self.grant, header)).map(|()| Asked::of(header)) {
            checked if header.payload_bytes() > 0 => {
                let first = header.offset / BLOCK_BYTES;
                let said = self.digest.take().map(|digest| Said { digest, first });
                self.write = Write { refused: checked.err(), said, ..Write::default() };
                self.begin_payload(header);
                if self.write.refused.is_some() {
                    self.auths.clear();
                }
            }
            Err(errno) => self.sending.outbox.error(cookie, errno, ""),
            Ok(asked) if self.is_strange() && !matches!(asked, Asked::Mark(_) | Asked::Digest(_)) => {
                self.sending.outbox.error(cookie, Errno::Perm, layered::SHARES_MEMORY);
            }
            Ok(Asked::Read) if self.grant.layers > 1 => self.read_shared(header),
            Ok(Asked::Zero { keep }) if self.grant.layers > 1 => self.zero_shared(header, keep),
            Ok(Asked::Undo) if self.grant.layers > 1 => {
                self.sending.outbox.error(cookie, Errno::NotSup, "");
            }
            Ok(Asked::Read | Asked::Flush) if let Some(why) = self.may_be_older(header, access) => {
                self.sending.outbox.error(cookie, why, late::MAY_BE_OLDER);
            }
            Ok(Asked::Read) if let Some(at) = self.absent(header, access) => {
                tell_absent(&mut self.sending.outbox, self.requests.session(), cookie, at);
            }
            Ok(Asked::Read) => self.read(header, false),
            Ok(Asked::Verify) => {
                self.work_bytes += len;
                match &mut self.on_disk {
                    Some(on_disk) => on_disk.check(header),
                    None => self.verify(header),
                }
            }
            Ok(Asked::Zero { keep }) => self.zero(header, keep),
            Ok(Asked::Status) => {
                self.work_bytes += len;
                self.status(header, access.is_backed(&self.grant));
            }
            Ok(Asked::Age) => {
                let each = |_: &u32| self.work_bytes += AGE_WORK_BYTES;
                self.arena.dirty().age(access.written_by(&self.grant).inspect(each));
                self.arena.ledgers().unnumbered().age(access.written_by(&self.grant));
                self.sending.outbox.done(cookie);
            }
            Ok(Asked::Mark(mark)) => {
                let ledger = self.ledger.get_or_insert_with(|| self.arena.ledgers().of(self.grant.volume));
                locked(ledger).settle(mark.complete);
                self.mark = Some(mark);
            }
            Ok(Asked::Digest(digest)) => self.digest = Some(digest),
            Ok(Asked::Undo) => self.undo(header),
            Ok(Asked::Flush) => self.flush(header),
            Ok(Asked::Write | Asked::Nothing) => self.sending.outbox.done(cookie),
        }
    }

    /// The first byte of what a read asks for that is not here, though the volume's source has it.
    fn absent(&self, header: &RequestHeader, access: &Access) -> Option<u64> {
        let is_backed = access.is_backed(&self.grant);
        is_backed.then(|| self.arena.first_unknown(header.offset, header.length.into())).flatten()
    }

    /// What is in memory, once all of it is.
    fn read(&mut self, header: &RequestHeader, again: bool) {
        if self.on_disk.as_mut().is_some_and(|on_disk| !on_disk.holds(header, again)) {
            return;
        }
        let has_contexts = self.requests.session().context.is_some();
        self.sending.read(header, header.offset, has_contexts);
    }

    /// The disk has done something that a request waits for.
    fn told(&mut self, told: &Told) {
        let waiting = self.on_disk.as_mut().and_then(|on_disk| on_disk.waits_no_more(told));
        match waiting {
            None => {}
            Some(Waiting::Read(header)) => self.read(&header, true),
            Some(Waiting::Check(header)) => {
                let first = header.offset / BLOCK_BYTES;
                let in_memory =
                    |block: u64| self.on_disk.as_ref().is_none_or(|on_disk| on_disk.is_right(block));
                let right = (first..).zip(&told.right).map(|(block, right)| *right && in_memory(block));
                let right: Vec<bool> = right.collect();
                self.verify_by(&header, |block| {
                    usize::try_from(block - first)
                        .ok()
                        .and_then(|at| right.get(at))
                        .is_none_or(|right| *right)
                });
            }
            Some(Waiting::Write { header, ticket }) => match told.result {
                Ok(()) => {
                    self.landed(ticket);
                    self.answer_write(&header);
                }
                Err(_) => self.sending.outbox.error(header.cookie, Errno::Io, DISK_FAILED),
            },
            Some(Waiting::Flush(header)) => self.flushed(&header, told.result.is_ok()),
        }
    }

    /// The payload of a write is here, or was dropped.
    fn whole(&mut self, header: &RequestHeader) {
        self.keep_auths(header.length.into());
        let Write { refused, ticket, begun, said, room, late, .. } = std::mem::take(&mut self.write);
        if let Some(errno) = refused {
            return self.sending.outbox.error(header.cookie, errno, "");
        }
        if let Some(bytes) = late {
            let auths = std::mem::take(&mut self.auths);
            self.land(header, ticket, Coming::Bytes(&bytes, auths.as_chunks().0, said));
            return wipe(bytes);
        }
        let len = u64::from(header.length);
        let is_right = begun.is_none_or(|begun| self.arena.wrote(begun, len, room, said));
        match &mut self.on_disk {
            Some(on_disk) if is_right => return on_disk.commit(header, ticket),
            _ if is_right => self.landed(ticket),
            _ => {}
        }
        self.answer_write(header);
        if let Some(on_disk) = &mut self.on_disk {
            on_disk.cut(header);
        }
    }

    fn answer_write(&mut self, header: &RequestHeader) {
        let place = self.place(header.offset);
        match self.requests.session().context {
            // Its client sends again what has none that fit: each write of those that came as one.
            Some(_) if header.command == Command::Write => {
                self.sending.outbox.done_with(header.cookie, self.arena.sums(place, header.length.into()));
            }
            _ => self.sending.outbox.done(header.cookie),
        }
    }

    fn zero(&mut self, header: &RequestHeader, keep: bool) {
        let (offset, len) = (header.offset, u64::from(header.length));
        self.work_bytes += len;
        let ticket = self.begin_write(offset, len);
        if self.on_disk.is_some() && self.grant.write_back {
            return self.land(header, ticket, Coming::Zeros);
        }
        if let Some(on_disk) = &mut self.on_disk {
            on_disk.begin(header);
            self.arena.zero(offset, len, false);
            return on_disk.commit(header, ticket);
        }
        self.arena.zero(offset, len, keep);
        self.landed(ticket);
        self.sending.outbox.done(header.cookie);
    }

    /// Where in the arena what the client calls by this address lies.
    #[inline]
    fn place(&self, address: u64) -> u64 {
        if self.grant.layers == 1 { address } else { self.arena.offset_of(address) }
    }

    /// Before the payload of a write comes, unless it is refused.
    fn begin_payload(&mut self, header: &RequestHeader) {
        let (offset, len) = (header.offset, u64::from(header.length));
        if self.grant.encrypted && self.write.refused.is_none() {
            match WholeBlocks::of(header, &self.auths) {
                Some(_) if self.on_disk.as_ref().is_some_and(|on_disk| !on_disk.disk().keeps_auths()) => {
                    self.write.refused = Some(Errno::NotSup);
                }
                Some(whole) => self.write.whole = Some(whole),
                // What is there would be taken for something else.
                None => self.write.refused = Some(Errno::Inval),
            }
        }
        if self.grant.layers > 1 && self.write.refused.is_none() {
            match self.arena.take_room(offset, len) {
                _ if self.is_strange() => self.write.refused = Some(Errno::Perm),
                Ok(room) => self.write.room = Some(room),
                Err(error) => self.write.refused = Some(layered::no_room(&error)),
            }
        }
        if self.write.refused.is_none() && self.on_disk.is_some() && self.grant.write_back {
            self.write.late = Some(Vec::with_capacity(header.length as usize));
            self.write.ticket = self.begin_write(offset, len);
        } else if self.write.refused.is_none() {
            self.write.place = self.place(offset);
            self.on_disk.iter_mut().for_each(|on_disk| on_disk.begin(header));
            self.write.begun = Some(self.arena.begin_write(self.write.place, len));
            self.write.ticket = self.begin_write(offset, len);
        }
    }

    /// Notes a write before it touches memory.
    fn begin_write(&mut self, offset: u64, len: u64) -> Option<Ticket> {
        if self.grant.layers > 1 {
            // It has no redundancy, so nothing of it can fit together or not.
            return None;
        }
        self.arena.dirty().mark(offset, len);
        let ledgers = self.arena.ledgers();
        // What a disk covered is not kept: it would have to be read first.
        let keeps = self.on_disk.is_none();
        let mark = self.mark.map(|mark| WriteMark { keep: mark.keep && keeps, ..mark });
        match self.ledger.as_ref().zip(mark.filter(|mark| mark.number > 0)) {
            Some((ledger, mark)) => {
                Some(ledgers.begin(ledger, mark, offset, len, || self.arena.keep(offset, len)))
            }
            None => {
                ledgers.unnumbered().mark(offset, len);
                None
            }
        }
    }

    /// The payload that comes is that of an AUTH; of a volume that is not encrypted it is dropped.
    fn is_auth(&self) -> bool {
        self.requests.payload().is_some_and(|payload| payload.header.command == Command::Auth)
    }

    /// So much of a write has landed.
    fn keep_auths(&mut self, landed: u64) {
        if self.write.whole.take().is_some() && self.write.begun.is_some() {
            let auths = std::mem::take(&mut self.auths);
            let blocks = usize::try_from(landed / BLOCK_BYTES).unwrap_or(usize::MAX).min(auths.len());
            let auths = auths.as_chunks().0;
            self.arena.set_auths(self.write.place, &auths[..blocks.min(auths.len())]);
        }
    }

    fn landed(&self, ticket: Option<Ticket>) {
        if let Some((ledger, ticket)) = self.ledger.as_ref().zip(ticket) {
            locked(ledger).landed(ticket);
        }
    }
}
