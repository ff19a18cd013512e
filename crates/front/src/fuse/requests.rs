//! Requests of the file on their way through the volume, and the answers they owe the kernel.
//!
//! Owns: what is answered when a completion comes, and requests that need several (a range over 4 GiB, a
//! search for data). Never: waiting; completions arrive on the volume's data thread. Invariant: each request
//! is answered once. There are as many as the kernel has in the background (`fs`), and one for each thread of
//! a tool.
//! Nothing on the way of a read or a write allocates or is remembered here: the token says all that its
//! answer needs. Called by `session`. Tests: below; through a mounted volume, end to end.

use super::device::Device;
use super::errno;
use super::wire::{self, Body};
use crate::changes::{Changes, FILLED_BY_HOLES, filled_by};
use cheetah_rim::buffer::{Buffer, LARGE_BYTES, Pool};
use cheetah_rim::volume::{Completion, Op, Sink, StatusRun, Submission, VolumeHandle};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// One step of a long range. A multiple of any block.
const STEP_BYTES: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct Requests {
    handle: VolumeHandle,
    device: Arc<Device>,
    changes: Changes,
    /// Of those that go over a range, by number, what is left to do.
    ranges: Mutex<BTreeMap<u64, Walk>>,
    this: Weak<Requests>,
}

/// What a request is, in the upper bits of its token; the kernel's number of it is in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Walk,
}

const KIND_SHIFT: u32 = 62;

impl Kind {
    /// The kernel counts requests by twos from zero.
    fn token(self, unique: u64) -> u64 {
        debug_assert!(unique >> KIND_SHIFT == 0, "a machine that is up for a century");
        (self as u64) << KIND_SHIFT | unique
    }

    fn of(token: u64) -> (Kind, u64) {
        let kind = [Kind::Read, Kind::Write, Kind::Flush, Kind::Walk][(token >> KIND_SHIFT) as usize];
        (kind, token & (u64::MAX >> (u64::BITS - KIND_SHIFT)))
    }
}

/// A request that goes over a range, and the step of it that is on its way.
#[derive(Clone, Copy, Debug)]
struct Walk {
    what: What,
    range: Range,
    /// Something was answered before.
    further: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Zero { keep: bool },
    Seek { want: Want },
}

/// What is still to do, and the step of it that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    at: u64,
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Data,
    Hole,
}

impl Range {
    fn step(self) -> u32 {
        u32::try_from((self.end - self.at).min(STEP_BYTES)).expect("a step fits")
    }
}

impl Requests {
    pub(super) fn new(handle: VolumeHandle, device: Arc<Device>, changes: Changes) -> Arc<Requests> {
        let ranges = Mutex::default();
        Arc::new_cyclic(|this| Requests { handle, device, changes, ranges, this: this.clone() })
    }

    pub(super) fn pool(&self) -> &Pool {
        self.handle.pool()
    }

    pub(super) fn read(&self, unique: u64, offset: u64, room: Buffer) {
        self.submit(Op::Read, offset, length(&room), Some(room), Kind::Read.token(unique));
    }

    pub(super) fn write(&self, unique: u64, offset: u64, bytes: Buffer) {
        self.submit(Op::Write, offset, length(&bytes), Some(bytes), Kind::Write.token(unique));
    }

    pub(super) fn flush(&self, unique: u64) {
        self.submit(Op::Flush, 0, 0, None, Kind::Flush.token(unique));
    }

    /// `at < end`.
    pub(super) fn zero(&self, unique: u64, at: u64, end: u64, keep: bool) {
        self.walk(unique, Walk { what: What::Zero { keep }, range: Range { at, end }, further: false });
    }

    /// `at < end`, the end of the file.
    pub(super) fn seek(&self, unique: u64, at: u64, end: u64, want: Want) {
        self.walk(unique, Walk { what: What::Seek { want }, range: Range { at, end }, further: false });
    }

    fn walk(&self, unique: u64, walk: Walk) {
        let op = match walk.what {
            What::Zero { keep } => Op::Zero { keep },
            What::Seek { .. } => Op::Status,
        };
        self.ranges().insert(unique, walk);
        self.submit(op, walk.range.at, walk.range.step(), None, Kind::Walk.token(unique));
    }

    fn submit(&self, op: Op, offset: u64, len: u32, buffer: Option<Buffer>, token: u64) {
        let Some(sink) = self.this.upgrade() else { return };
        self.handle.submit(Submission { op, offset, len, buffer, token, sink });
    }

    /// A step of a range is done: answers, or takes the next.
    fn walked(&self, unique: u64, status: &[StatusRun]) {
        let Some(Walk { what, range, .. }) = self.ranges().remove(&unique) else {
            debug_assert!(false, "a step is completed once");
            return;
        };
        let further = match what {
            What::Zero { .. } => range.at + u64::from(range.step()),
            What::Seek { want } => match sought(want, range, status) {
                Found::At(offset) => return self.device.answer(unique, &Body::found(offset)),
                Found::Nothing => return self.device.fail(unique, Errno::NXIO),
                Found::Further(at) => at,
            },
        };
        if further >= range.end {
            return self.device.answer(unique, &[]);
        }
        self.walk(unique, Walk { what, range: Range { at: further, ..range }, further: true });
    }

    /// Says of a write that it is done, before its tool hears that.
    fn count(&self, kind: Kind, unique: u64, completion: &Completion) {
        let failed = completion.result.is_err();
        match kind {
            Kind::Write => {
                // Of one that failed the buffer may be gone.
                let len = completion.buffer.as_ref().map_or(LARGE_BYTES, |bytes| bytes.len());
                self.changes.landed(filled_by(len as u64), failed);
            }
            Kind::Walk => {
                if let Some(Walk { what: What::Zero { keep }, range, .. }) = self.ranges().get(&unique) {
                    let filled = if *keep { filled_by(range.step().into()) } else { FILLED_BY_HOLES };
                    self.changes.landed(filled, failed);
                }
            }
            Kind::Read | Kind::Flush => {}
        }
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, Walk>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn length(buffer: &Buffer) -> u32 {
    u32::try_from(buffer.len()).expect("the kernel was told to ask for far less than 4 GiB")
}

impl Sink for Requests {
    fn give(&self, completion: Completion, bytes: &[u8]) {
        let (kind, unique) = Kind::of(completion.token);
        debug_assert_eq!(kind, Kind::Read, "only reads are given bytes");
        self.device.answer(unique, bytes);
    }

    fn complete(&self, completion: Completion) {
        let (kind, unique) = Kind::of(completion.token);
        self.count(kind, unique, &completion);
        if let Err(error) = completion.result {
            let walk = if kind == Kind::Walk { self.ranges().remove(&unique) } else { None };
            if let Some(Walk { what: What::Seek { want }, range, further: true }) = walk {
                return self.device.answer(unique, &Body::found(before_a_loss(want, range)));
            }
            return self.device.fail(unique, errno::of(error));
        }
        let bytes = completion.buffer.as_deref().unwrap_or_default();
        match kind {
            Kind::Read => self.device.answer(unique, bytes),
            Kind::Write => self.device.answer(unique, &wire::written(bytes.len())),
            Kind::Flush => self.device.answer(unique, &[]),
            Kind::Walk => self.walked(unique, &completion.status),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    At(u64),
    /// The file has no more data.
    Nothing,
    Further(u64),
}

/// The end of the file counts as a hole. Bytes that the answer says nothing of count as data once nothing
/// else is known: taking them for a hole would make a copy of the file lose them.
fn sought(want: Want, range: Range, runs: &[StatusRun]) -> Found {
    let mut at = range.at;
    for run in runs {
        let is_wanted = run.hole == (want == Want::Hole);
        if is_wanted && run.len > 0 {
            return Found::At(at);
        }
        at = (at + u64::from(run.len)).min(range.end);
    }
    match want {
        _ if at < range.end && at > range.at => Found::Further(at),
        Want::Data if at >= range.end => Found::Nothing,
        Want::Data => Found::At(at),
        Want::Hole => Found::At(range.end),
    }
}

/// What is found where, behind what was looked at, nothing can be said: it counts as data, of which a reader
/// hears that it is lost.
fn before_a_loss(want: Want, range: Range) -> u64 {
    match want {
        Want::Data => range.at,
        Want::Hole => range.end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: u32) -> StatusRun {
        StatusRun { len, hole: false }
    }

    fn hole(len: u32) -> StatusRun {
        StatusRun { len, hole: true }
    }

    const RANGE: Range = Range { at: 100, end: 1000 };

    #[test]
    fn data_and_holes_are_found_where_they_start() {
        assert_eq!(sought(Want::Data, RANGE, &[hole(50), data(10)]), Found::At(150));
        assert_eq!(sought(Want::Data, RANGE, &[data(10), hole(50)]), Found::At(100));
        assert_eq!(sought(Want::Hole, RANGE, &[data(10), hole(50)]), Found::At(110));
        assert_eq!(sought(Want::Hole, RANGE, &[hole(50)]), Found::At(100));
    }

    #[test]
    fn a_short_answer_leads_further() {
        assert_eq!(sought(Want::Data, RANGE, &[hole(50)]), Found::Further(150));
        assert_eq!(sought(Want::Hole, RANGE, &[data(899)]), Found::Further(999));
    }

    #[test]
    fn the_end_is_a_hole_and_has_no_data() {
        assert_eq!(sought(Want::Data, RANGE, &[hole(900)]), Found::Nothing);
        assert_eq!(sought(Want::Hole, RANGE, &[data(900)]), Found::At(1000));
        assert_eq!(sought(Want::Hole, RANGE, &[data(5000)]), Found::At(1000));
    }

    #[test]
    fn what_is_not_known_is_data() {
        assert_eq!(sought(Want::Data, RANGE, &[]), Found::At(100));
        assert_eq!(sought(Want::Hole, RANGE, &[]), Found::At(1000));
        assert_eq!((before_a_loss(Want::Data, RANGE), before_a_loss(Want::Hole, RANGE)), (100, 1000));
    }

    #[test]
    fn a_step_is_bounded() {
        assert_eq!(Range { at: 0, end: 5 << 30 }.step(), 1 << 30);
        assert_eq!(RANGE.step(), 900);
    }
}
