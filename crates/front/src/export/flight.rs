//! The requests of one connection that are with the volume, and what their completions become on the wire.
//!
//! Owns: how many there may be and how much memory they and unsent replies hold; cookies. Never: sockets, or
//! how a reply is encoded, which is the outbox's. Invariant: every request that was begun is answered once; a
//! client that does not read its replies reaches the limits here and then stalls nobody but itself.
//! Called by `connection`. Tests: below.

use super::budget::{Budget, Charge};
use super::errno;
use super::outbox::{Outbox, Payload};
use crate::changes::{Changes, FILLED_BY_HOLES, filled_by};
use cheetah_nbd::{CmdFlags, Command, Descriptor, Errno, RequestHeader, StateFlags};
use cheetah_rim::buffer::Buffer;
use cheetah_rim::volume::{Completion, Op, Sink, StatusRun};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Requests of one connection that are with the volume or whose replies are unsent.
pub(super) const REQUESTS_MAX: usize = 128;

/// Completions, from the volume to the connection's task, on the same thread.
#[derive(Debug)]
pub(super) struct Completions {
    inner: Mutex<Inner>,
    changes: Changes,
    pub(super) arrived: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    queue: Vec<Completion>,
    closed: bool,
}

impl Completions {
    pub(super) fn new(changes: Changes) -> Completions {
        Completions { inner: Mutex::default(), changes, arrived: Notify::new() }
    }

    /// Swaps what came into `taken`, which is empty.
    pub(super) fn take(&self, taken: &mut Vec<Completion>) {
        std::mem::swap(&mut self.lock().queue, taken);
    }

    /// What comes from now on is dropped, with its buffers.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.queue.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Completions {
    fn complete(&self, completion: Completion) {
        let mut inner = self.lock();
        if inner.closed {
            // It may have been a write, which nobody else will count; of what length is not known of one
            // without bytes.
            let len = completion.buffer.as_ref().map_or(u64::from(u32::MAX), |bytes| bytes.len() as u64);
            self.changes.landed(filled_by(len), completion.result.is_err());
            self.changes.note();
            return;
        }
        inner.queue.push(completion);
        drop(inner);
        self.arrived.notify_one();
    }
}

/// What the volume is to do for a request.
pub(super) fn op(header: &RequestHeader) -> Option<Op> {
    Some(match header.command {
        Command::Read => Op::Read,
        // FUA needs nothing more: an answered write is where a flush would leave it. Where it is not, nobody
        // is offered that.
        Command::Write => Op::Write,
        Command::Flush => Op::Flush,
        Command::Trim => Op::Trim,
        Command::Cache => Op::Cache,
        Command::WriteZeroes => Op::Zero { keep: header.flags.contains(CmdFlags::NO_HOLE) },
        Command::BlockStatus => Op::Status,
        Command::Disc
        | Command::Mark
        | Command::Digest
        | Command::Auth
        | Command::Verify
        | Command::Undo
        | Command::Unknown(_) => return None,
    })
}

/// The bytes of the pool that a request needs.
pub(super) fn buffer_bytes(header: &RequestHeader) -> usize {
    if matches!(header.command, Command::Read | Command::Write) { header.length as usize } else { 0 }
}

#[derive(Debug)]
struct InFlight {
    header: RequestHeader,
    charge: Charge,
}

#[derive(Debug)]
pub(super) struct Flight {
    /// Of `base:allocation`, if it was agreed.
    context: Option<u32>,
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// With the volume.
    count: usize,
    /// Large buffers held by these, by unsent replies and by a payload that is coming in.
    large: usize,
    budget: Arc<Budget>,
    changes: Changes,
}

impl Flight {
    pub(super) fn new(context: Option<u32>, budget: Arc<Budget>, changes: Changes) -> Flight {
        Flight { context, slots: Vec::new(), free: Vec::new(), count: 0, large: 0, budget, changes }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether another request may be looked at.
    pub(super) fn has_room(&self, unsent: usize) -> bool {
        self.count + unsent < REQUESTS_MAX
    }

    /// Whether a buffer of this class may be taken now.
    pub(super) fn admits(&self, charge: Charge) -> bool {
        self.budget.admits(charge, self.large)
    }

    /// A buffer was taken; its charge goes with it until `discharge`.
    pub(super) fn charge(&mut self, charge: Charge) {
        self.large += usize::from(charge == Charge::Large);
        self.budget.take(charge);
    }

    pub(super) fn discharge(&mut self, charge: Charge) {
        self.large -= usize::from(charge == Charge::Large);
        self.budget.give_back(charge);
    }

    /// Notes a request that goes to the volume with a buffer that was charged; its token.
    pub(super) fn begin(&mut self, header: RequestHeader, charge: Charge) -> u64 {
        self.count += 1;
        let slot = Some(InFlight { header, charge });
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = slot;
            return u64::from(index);
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u64
    }

    /// The connection is over: nobody will answer what is still with the volume.
    pub(super) fn end(&mut self) {
        for slot in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.discharge(slot.charge);
        }
        self.count = 0;
    }

    pub(super) fn complete(&mut self, completion: Completion, outbox: &mut Outbox) {
        let Completion { token, result, buffer, status } = completion;
        let index = u32::try_from(token).expect("a token of this table");
        let slot = self.slots[index as usize].take().expect("a submission is completed once");
        self.free.push(index);
        self.count -= 1;
        let InFlight { header, charge } = slot;
        if let Some(op) = op(&header).filter(|op| op.writes()) {
            let filled = match op {
                Op::Trim | Op::Zero { keep: false } => FILLED_BY_HOLES,
                _ => filled_by(header.length.into()),
            };
            // A write that failed may have come through in part.
            self.changes.landed(filled, result.is_err());
            self.changes.note();
        }
        match result {
            Ok(()) if header.command == Command::Read => {
                return self.data(&header, buffer, charge, outbox);
            }
            Ok(()) if header.command == Command::BlockStatus => self.status(&header, &status, outbox),
            Ok(()) => done(&header, outbox),
            Err(error) => outbox.error(header.cookie, errno::of(error), errno::words(error)),
        }
        self.discharge(charge);
    }

    fn data(&mut self, header: &RequestHeader, buffer: Option<Buffer>, charge: Charge, outbox: &mut Outbox) {
        if header.length == 0 {
            return done(header, outbox);
        }
        let Some(buffer) = buffer.filter(|buffer| buffer.len() == header.length as usize) else {
            self.discharge(charge);
            debug_assert!(false, "a read comes back with its buffer");
            return outbox.error(header.cookie, Errno::Io, "the volume gave no data");
        };
        outbox.data(header, Payload { buffer, charge });
    }

    fn status(&self, header: &RequestHeader, runs: &[StatusRun], outbox: &mut Outbox) {
        let Some(context) = self.context else {
            return outbox.error(header.cookie, Errno::Inval, "no metadata context was agreed");
        };
        outbox.status(header, true, context, &descriptors(runs, header.length));
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        let held = self.slots.iter().flatten().filter(|slot| slot.charge == Charge::Large).count();
        assert_eq!(self.slots.iter().flatten().count(), self.count, "requests are miscounted");
        assert!(held <= self.large, "charges are miscounted");
        assert!(self.count <= REQUESTS_MAX);
    }
}

/// Success without data. A READ alone is answered with a chunk, if those were agreed.
pub(super) fn done(header: &RequestHeader, outbox: &mut Outbox) {
    if header.command == Command::Read {
        outbox.done(header.cookie);
    } else {
        outbox.done_simply(header.cookie);
    }
}

/// Cut to what was asked. What the volume says nothing of counts as data.
fn descriptors(runs: &[StatusRun], length: u32) -> Vec<Descriptor> {
    let mut out: Vec<Descriptor> = Vec::new();
    let mut left = length;
    for run in runs.iter().filter(|run| run.len > 0) {
        let length = run.len.min(left);
        if length == 0 {
            break;
        }
        left -= length;
        let flags = if run.hole { StateFlags::HOLE | StateFlags::ZERO } else { StateFlags::EMPTY };
        out.push(Descriptor { length, flags });
    }
    if out.is_empty() {
        out.push(Descriptor { length, flags: StateFlags::EMPTY });
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cheetah_nbd::server::reply;
    use cheetah_rim::buffer::Pool;
    use cheetah_rim::volume::VolumeError;
    use std::io::IoSlice;

    fn request(command: Command, length: u32) -> RequestHeader {
        RequestHeader { flags: CmdFlags::EMPTY, command, cookie: 77, offset: 4096, length }
    }

    fn flight() -> Flight {
        Flight::new(Some(1), Arc::default(), Changes::default())
    }

    fn begin(flight: &mut Flight, command: Command, length: u32) -> u64 {
        let charge =
            Charge::of(if matches!(command, Command::Read | Command::Write) { length } else { 0 } as usize);
        flight.charge(charge);
        flight.begin(request(command, length), charge)
    }

    fn completed(token: u64, result: Result<(), VolumeError>, buffer: Option<Buffer>) -> Completion {
        Completion { token, result, buffer, status: Vec::new() }
    }

    fn wire(outbox: &Outbox) -> Vec<u8> {
        let mut pieces = [IoSlice::new(&[]); super::super::outbox::PIECES_MAX];
        let count = super::super::outbox::slices(outbox, &mut pieces);
        pieces[..count].iter().flat_map(|piece| piece.iter().copied()).collect()
    }

    #[test]
    fn reads_carry_their_data_and_hold_their_charge_until_sent() {
        let pool = Pool::new().unwrap();
        for structured in [false, true] {
            let mut flight = flight();
            let mut outbox = Outbox::new(structured);
            let token = begin(&mut flight, Command::Read, 100_000);
            let mut buffer = pool.try_take(100_000).unwrap();
            buffer.fill(5);
            flight.complete(completed(token, Ok(()), Some(buffer)), &mut outbox);
            flight.check_invariants();
            let head: &[u8] = if structured {
                &reply::offset_data(77, true, 4096, 100_000)
            } else {
                &reply::simple(77, None)
            };
            assert_eq!(wire(&outbox), [head, &[5; 100_000]].concat());
            assert_eq!((flight.count(), flight.large), (0, 1));
            outbox.sent(head.len() as u64 + 100_000, |payload| flight.discharge(payload.charge));
            assert_eq!(flight.large, 0);
        }
    }

    #[test]
    fn errors_name_their_cause_where_the_client_can_show_it() {
        for structured in [false, true] {
            let mut flight = flight();
            let mut outbox = Outbox::new(structured);
            let token = begin(&mut flight, Command::Write, 100_000);
            flight.complete(completed(token, Err(VolumeError::DonorLost), None), &mut outbox);
            let mut expected = Vec::new();
            if structured {
                reply::error(
                    77,
                    true,
                    Errno::Io,
                    "more donors that hold this range are lost than redundancy covers",
                    &mut expected,
                );
            } else {
                expected.extend(reply::simple(77, Some(Errno::Io)));
            }
            assert_eq!(wire(&outbox), expected);
            assert_eq!(flight.large, 0);
        }
    }

    #[test]
    fn room_ends_with_requests_and_replies_and_large_buffers_before() {
        let mut flight = flight();
        let mut large = 0;
        while flight.admits(Charge::Large) {
            begin(&mut flight, Command::Write, 1 << 20);
            large += 1;
        }
        assert!(large > 1 && flight.admits(Charge::Small) && flight.admits(Charge::Nothing));
        assert!(flight.has_room(REQUESTS_MAX - large - 1) && !flight.has_room(REQUESTS_MAX - large));
        flight.check_invariants();
    }

    #[test]
    fn whatever_may_have_changed_the_volume_is_told_before_the_answer() {
        let changes = Changes::default();
        let seen = crate::changes::Seen::new(changes.clone());
        let mut flight = Flight::new(Some(1), Arc::default(), changes);
        let mut outbox = Outbox::new(false);
        let token = begin(&mut flight, Command::Read, 0);
        flight.complete(completed(token, Err(VolumeError::DonorLost), None), &mut outbox);
        assert!(seen.holds(std::time::Instant::now()));
        let token = begin(&mut flight, Command::Trim, 4096);
        flight.complete(completed(token, Err(VolumeError::DonorLost), None), &mut outbox);
        assert!(!seen.holds(std::time::Instant::now()));
    }

    #[test]
    fn tokens_are_used_again() {
        let mut flight = flight();
        let mut outbox = Outbox::new(false);
        for _ in 0..1000 {
            let token = begin(&mut flight, Command::Flush, 0);
            flight.complete(completed(token, Ok(()), None), &mut outbox);
        }
        assert_eq!(flight.slots.len(), 1);
    }

    #[test]
    fn status_is_cut_to_the_question_and_never_empty() {
        let (hole, data) = (StatusRun { len: 10, hole: true }, StatusRun { len: 10, hole: false });
        let of = |length, flags| Descriptor { length, flags };
        let zero = StateFlags::HOLE | StateFlags::ZERO;
        assert_eq!(descriptors(&[hole, data], 15), [of(10, zero), of(5, StateFlags::EMPTY)]);
        assert_eq!(descriptors(&[], 15), [of(15, StateFlags::EMPTY)]);
        assert_eq!(descriptors(&[hole, data], 10), [of(10, zero)]);
    }

    #[test]
    fn a_closed_queue_gives_buffers_back_at_once() {
        let pool = Pool::new().unwrap();
        let completions = Completions::new(Changes::default());
        completions.close();
        let buffer = pool.try_take(33 << 10);
        completions.complete(completed(0, Ok(()), buffer));
        let mut taken = Vec::new();
        completions.take(&mut taken);
        assert!(taken.is_empty());
    }
}
