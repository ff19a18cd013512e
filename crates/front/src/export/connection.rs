//! One client after its handshake: requests in, replies out, many of each at a time.
//!
//! Owns: what a request waits for, and the buffer of the write that comes in. Never: protocol, which is
//! `Transmission`'s and the outbox's; waits while it could send, or holds the thread: after some rounds it
//! lets others run. Invariant: memory is bounded whatever the client does: what is with the volume and unsent
//! by `flight`, what is received by `inbuf`, and buffers of the pool that a slow client holds go back when
//! others need them (`PATIENCE`).
//! Large payloads of writes go from the stream straight into the pool's buffers.
//! Called by `export::converse`. Tests: `flight`, `inbuf`, `outbox`; with real clients, end to end.

use super::Served;
use super::budget::{Budget, Charge};
use super::flight::{self, Completions, Flight};
use super::inbuf::{InBuf, RECEIVE_BYTES_MAX, RECEIVE_BYTES_MIN};
use super::outbox::{self, Outbox, PIECES_MAX};
use cheetah_nbd::server::transmission::{Step, Transmission};
use cheetah_nbd::{Command, Errno, Negotiated, RequestHeader, Violation};
use cheetah_rim::buffer::{Buffer, LARGE_BYTES};
use cheetah_rim::stream::{DIRECT_BYTES, Stream};
use cheetah_rim::volume::{Completion, Submission, VolumeHandle};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::Sleep;

/// Rounds of work before other tasks of the thread have their turn.
const ROUNDS_MAX: u32 = 16;
/// How often a connection that is not idle looks at its age.
const TICK: Duration = Duration::from_secs(2);
/// How long a slow client may keep buffers that others wait for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Behind a write of this size another is likely: then little is received with the next header.
const LARGE_WRITE_BYTES: u32 = (LARGE_BYTES / 4) as u32;
/// Fewer bytes than this, and no whole reply, are no sign of life.
const MOVED_BYTES: usize = 64 << 10;

/// Why a connection ends.
#[derive(Debug)]
enum End {
    Done,
    Socket(io::Error),
    Violation(Violation),
    Slow,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Socket(error)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Done => write!(f, "it was done"),
            End::Socket(error) => write!(f, "{error}"),
            End::Violation(violation) => write!(f, "{violation}"),
            End::Slow => write!(f, "it held buffers that others waited for, and was too slow"),
        }
    }
}

/// What comes next from the client.
#[derive(Debug)]
enum Input {
    Header,
    /// A small write: it holds no buffer of the pool until all of its payload is here.
    Small(RequestHeader),
    /// A request that waits for a buffer, or until the connection holds less.
    Blocked(RequestHeader),
    /// The payload of a write, into its buffer.
    Payload(Buffer),
    /// The payload of a write that was refused already.
    Skip,
    /// No more; what was begun is answered, then the connection closes.
    Ended,
}

enum Woken {
    Work,
    Buffer(Buffer),
    Stop,
    Tick,
}

struct Connection {
    stream: Stream,
    handle: VolumeHandle,
    requests: Transmission,
    flight: Flight,
    completions: Arc<Completions>,
    /// Room to take completions out; empty between rounds.
    taken: Vec<Completion>,
    inbuf: InBuf,
    outbox: Outbox,
    input: Input,
    /// A buffer that came for the blocked request.
    granted: Option<Buffer>,
    stop: watch::Receiver<bool>,
    tick: Pin<Box<Sleep>>,
    budget: Arc<Budget>,
    /// When the client last gave or took enough of what it owed.
    moved: Instant,
    moved_bytes: usize,
}

/// Serves until the client is done or something breaks. `rest` is what came behind the handshake.
pub(super) async fn serve(stream: Stream, session: Negotiated, rest: &[u8], served: Served) {
    let Served { handle, stop, budget, changes, .. } = served;
    let mut connection = Connection {
        stream,
        handle,
        flight: Flight::new(session.base_allocation, budget.clone(), changes.clone()),
        completions: Arc::new(Completions::new(changes)),
        taken: Vec::new(),
        inbuf: InBuf::new(),
        outbox: Outbox::new(session.structured_replies),
        requests: Transmission::new(session, LARGE_WRITE_BYTES),
        input: Input::Header,
        granted: None,
        stop,
        tick: Box::pin(tokio::time::sleep(TICK)),
        budget,
        moved: Instant::now(),
        moved_bytes: 0,
    };
    connection.inbuf.ensure(rest.len());
    connection.inbuf.space(rest.len())[..rest.len()].copy_from_slice(rest);
    connection.inbuf.received(rest.len());
    let end = connection.run().await;
    match end {
        End::Done => {}
        End::Slow => tracing::warn!("an NBD client was closed: {end}"),
        _ => tracing::debug!("an NBD client was closed: {end}"),
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // What is still with the volume keeps its buffers until it comes back, and its charge is let go here.
        self.completions.close();
        self.outbox.clear(|payload| self.flight.discharge(payload.charge));
        self.end_input();
        self.flight.end();
    }
}

impl Connection {
    async fn run(&mut self) -> End {
        let mut rounds = 0;
        loop {
            match self.round() {
                Ok(true) if rounds < ROUNDS_MAX => rounds += 1,
                Ok(true) => {
                    rounds = 0;
                    tokio::task::yield_now().await;
                }
                Ok(false) => {
                    rounds = 0;
                    if let Err(end) = self.wait().await {
                        return end;
                    }
                }
                Err(end) => return end,
            }
        }
    }

    /// Does what can be done now; whether that was anything.
    fn round(&mut self) -> Result<bool, End> {
        let completed = self.take_completions();
        let sent = self.send()?;
        let parsed = self.parse()?;
        let received = self.receive()?;
        #[cfg(debug_assertions)]
        {
            self.requests.check_invariants();
            self.flight.check_invariants();
            self.outbox.check_invariants();
        }
        if matches!(self.input, Input::Ended) && self.flight.count() == 0 && self.outbox.is_empty() {
            return Err(End::Done);
        }
        Ok(completed || sent || parsed || received)
    }

    fn take_completions(&mut self) -> bool {
        self.completions.take(&mut self.taken);
        let any = !self.taken.is_empty();
        if any && self.outbox.is_empty() {
            self.moved(MOVED_BYTES);
        }
        for completion in self.taken.drain(..) {
            self.flight.complete(completion, &mut self.outbox);
        }
        any
    }

    fn send(&mut self) -> Result<bool, End> {
        let mut any = false;
        while !self.outbox.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = outbox::slices(&self.outbox, &mut pieces);
            let sent = self.stream.try_send_from(&pieces[..count], false);
            let Some(sent) = unless_blocked(sent)? else { break };
            let replies = self.outbox.sent(sent as u64, |payload| self.flight.discharge(payload.charge));
            self.moved(if replies > 0 { MOVED_BYTES } else { sent });
            any = true;
        }
        Ok(any)
    }

    // Requests in.

    fn parse(&mut self) -> Result<bool, End> {
        let mut any = false;
        while self.parse_next()? {
            any = true;
        }
        Ok(any)
    }

    /// Takes the next step of the input, if what it needs is there.
    fn parse_next(&mut self) -> Result<bool, End> {
        match self.input {
            Input::Header if !self.flight.has_room(self.outbox.len()) => Ok(false),
            Input::Header | Input::Payload(_) | Input::Skip => self.step(),
            Input::Small(header) if self.inbuf.bytes().len() < header.payload_bytes() as usize => Ok(false),
            Input::Small(header) => {
                self.input = Input::Blocked(header);
                Ok(true)
            }
            Input::Blocked(header) => Ok(self.begin(header)),
            Input::Ended => Ok(false),
        }
    }

    fn step(&mut self) -> Result<bool, End> {
        let had = self.inbuf.bytes();
        let mut rest = had;
        let step = self.requests.next(&mut rest).map_err(End::Violation)?;
        let taken = had.len() - rest.len();
        match step {
            None => return Ok(false),
            Some(Step::Request { header, verdict }) => {
                self.inbuf.consume(taken);
                self.request(header, verdict);
            }
            Some(Step::Payload { at, bytes }) => {
                if let Input::Payload(buffer) = &mut self.input {
                    buffer[at..at + bytes.len()].copy_from_slice(bytes);
                }
                self.inbuf.consume(taken);
            }
            Some(Step::Whole(header)) => {
                if let Input::Payload(buffer) = std::mem::replace(&mut self.input, Input::Header) {
                    self.submit(header, Some(buffer));
                }
            }
            Some(Step::End) => self.input = Input::Ended,
        }
        Ok(true)
    }

    fn request(&mut self, header: RequestHeader, verdict: Result<Command, Errno>) {
        let payload = header.payload_bytes();
        self.input = match verdict {
            Err(errno) => {
                self.outbox.error(header.cookie, errno, "the request is not valid here");
                if payload > 0 { Input::Skip } else { Input::Header }
            }
            Ok(_) if payload > 0 && payload < DIRECT_BYTES => {
                self.inbuf.ensure(payload as usize);
                Input::Small(header)
            }
            Ok(_) => Input::Blocked(header),
        };
    }

    /// Starts a request whose header was accepted; false while it has to wait.
    fn begin(&mut self, header: RequestHeader) -> bool {
        let len = flight::buffer_bytes(&header);
        let charge = Charge::of(len);
        if !self.flight.admits(charge) {
            return false;
        }
        let mut buffer = None;
        if len > 0 {
            buffer = self.granted.take().or_else(|| self.handle.pool().try_take(len));
            if buffer.is_none() {
                return false;
            }
            self.flight.charge(charge);
        }
        match buffer {
            Some(buffer) if header.command == Command::Write => {
                self.moved(MOVED_BYTES);
                self.input = Input::Payload(buffer);
            }
            buffer => {
                self.input = Input::Header;
                self.submit(header, buffer);
            }
        }
        true
    }

    fn submit(&mut self, header: RequestHeader, buffer: Option<Buffer>) {
        let Some(op) = flight::op(&header) else {
            unreachable!("DISC and unknown commands were dealt with");
        };
        if header.length == 0 && header.command != Command::Flush {
            return flight::done(&header, &mut self.outbox);
        }
        let charge = Charge::of(buffer.as_ref().map_or(0, |buffer| buffer.len()));
        let token = self.flight.begin(header, charge);
        // The offset and length of a FLUSH mean nothing.
        let (offset, len) =
            if header.command == Command::Flush { (0, 0) } else { (header.offset, header.length) };
        let sink = self.completions.clone();
        self.handle.submit(Submission { op, offset, len, buffer, token, sink });
    }

    // Bytes in.

    fn wants_input(&self) -> bool {
        match self.input {
            Input::Header => self.flight.has_room(self.outbox.len()),
            Input::Small(_) | Input::Payload(_) | Input::Skip => true,
            Input::Blocked(_) | Input::Ended => false,
        }
    }

    fn receive(&mut self) -> Result<bool, End> {
        if !self.wants_input() {
            return Ok(false);
        }
        let mut into_payload = 0;
        let got = if let (Input::Payload(buffer), Some(payload)) = (&mut self.input, self.requests.payload())
        {
            into_payload = payload.missing();
            let ahead = self.inbuf.space(RequestHeader::BYTES);
            let mut pieces = [IoSliceMut::new(&mut buffer[payload.at..]), IoSliceMut::new(ahead)];
            self.stream.try_receive_into(&mut pieces)
        } else {
            let limit = if self.requests.head_only() { RECEIVE_BYTES_MIN } else { RECEIVE_BYTES_MAX };
            let space = self.inbuf.space(limit);
            assert!(!space.is_empty(), "a full buffer holds a request, and that was taken");
            self.stream.try_receive_into(&mut [IoSliceMut::new(space)])
        };
        if matches!(&got, Err(e) if e.kind() == io::ErrorKind::UnexpectedEof) {
            // A client that only closed its sending side still gets its replies.
            self.end_input();
            return Ok(true);
        }
        let Some(got) = unless_blocked(got)? else { return Ok(false) };
        let for_payload = got.min(into_payload);
        self.requests.landed(for_payload);
        self.moved(for_payload);
        self.inbuf.received(got - for_payload);
        Ok(true)
    }

    // Waiting.

    async fn wait(&mut self) -> Result<(), End> {
        let (receives, sends) = (self.wants_input(), !self.outbox.is_empty());
        let needed = match &self.input {
            Input::Blocked(header) => flight::buffer_bytes(header),
            _ => 0,
        };
        let admitted = self.flight.admits(Charge::of(needed));
        let waiting = (needed > 0).then(|| self.budget.wait());
        let idle = !self.inbuf.is_large() && self.outbox.is_empty() && self.flight.count() == 0;
        let ticks = !idle || !matches!(self.input, Input::Header);
        let ended = matches!(self.input, Input::Ended);
        let pool = self.handle.pool();
        let woken = tokio::select! {
            biased;
            () = self.completions.arrived.notified() => Woken::Work,
            ready = self.stream.readable(), if receives => ready.map(|()| Woken::Work)?,
            ready = self.stream.writable(), if sends => ready.map(|()| Woken::Work)?,
            buffer = pool.take(needed), if needed > 0 && admitted => Woken::Buffer(buffer),
            () = self.budget.freed(), if needed > 0 && !admitted => Woken::Work,
            _ = self.stop.wait_for(|stopped| *stopped), if !ended => Woken::Stop,
            () = self.tick.as_mut(), if ticks => Woken::Tick,
        };
        // Only others count when it comes to whom this connection holds up.
        drop(waiting);
        match woken {
            Woken::Work => {}
            Woken::Buffer(buffer) => self.granted = Some(buffer),
            Woken::Stop => self.end_input(),
            Woken::Tick => self.ticked()?,
        }
        Ok(())
    }

    /// No more comes in: a write that is half here will not be whole.
    fn end_input(&mut self) {
        if let Input::Payload(buffer) = std::mem::replace(&mut self.input, Input::Ended) {
            self.flight.discharge(Charge::of(buffer.len()));
        }
        self.granted = None;
    }

    fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= MOVED_BYTES {
            self.moved = Instant::now();
            self.moved_bytes = 0;
        }
    }

    fn ticked(&mut self) -> Result<(), End> {
        self.tick.as_mut().reset(tokio::time::Instant::now() + TICK);
        if self.flight.count() == 0 && self.outbox.is_empty() && self.moved.elapsed() >= TICK {
            self.inbuf.shrink();
            self.outbox.shrink(0);
            self.taken.shrink_to_fit();
        }
        let holds = !self.outbox.is_empty() || matches!(self.input, Input::Payload(_));
        let pool_is_short = || self.handle.pool().try_take(LARGE_BYTES).is_none();
        if holds && self.moved.elapsed() >= PATIENCE && (self.budget.others_wait() || pool_is_short()) {
            return Err(End::Slow);
        }
        Ok(())
    }
}

/// None when there is nothing to read or no room to write now.
fn unless_blocked(result: io::Result<usize>) -> Result<Option<usize>, End> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Some(0)),
        Err(e) => Err(End::Socket(e)),
    }
}
