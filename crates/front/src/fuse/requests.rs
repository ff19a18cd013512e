//! Requests of the file on their way through the volume, and the replies they owe the kernel.
//!
//! Owns: what is answered when a completion comes, and requests that need several (a range over 4 GiB, a search
//! for data). Never: waiting; completions arrive on the volume's data thread. Invariant: each reply is sent once.
//! Nothing on the way of a write allocates: slots are taken up front, buffers come from the pool, and fuser's
//! replies live on the stack. Called by `fs`. Tests: below; through a mounted volume, end to end.

use super::errno;
use super::slab::Slab;
use cheetah_rim::buffer::Buffer;
use cheetah_rim::volume::{Completion, Op, Sink, StatusRun, Submission, VolumeHandle};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite};
use std::sync::{Arc, Weak};

/// Replies owed at once; the kernel's background queue holds 64, tools that read without it come on top.
const REPLIES_MAX: usize = 1024;
/// One step of a long range. A multiple of any block.
const STEP_BYTES: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct Requests {
    pub(super) handle: VolumeHandle,
    owed: Slab<Owed>,
    this: Weak<Requests>,
}

#[derive(Debug)]
enum Owed {
    Read(ReplyData),
    Write(ReplyWrite, u32),
    Empty(ReplyEmpty),
    Zero { reply: ReplyEmpty, keep: bool, range: Range },
    Seek { reply: ReplyLseek, want: Want, range: Range },
}

/// What is still to do, and the step of it that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
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
    pub(super) fn new(handle: VolumeHandle) -> Arc<Requests> {
        Arc::new_cyclic(|this| Requests {
            handle,
            owed: Slab::with_capacity(REPLIES_MAX),
            this: this.clone(),
        })
    }

    pub(super) fn read(&self, offset: u64, len: u32, reply: ReplyData) {
        let buffer = self.handle.pool().take_blocking(len as usize);
        let token = self.owed.insert_blocking(Owed::Read(reply));
        self.submit(Op::Read, offset, len, Some(buffer), token);
    }

    pub(super) fn write(&self, offset: u64, data: &[u8], reply: ReplyWrite) {
        let mut buffer = self.handle.pool().take_blocking(data.len());
        buffer.copy_from_slice(data);
        let len = u32::try_from(data.len()).expect("max_write is far below 4 GiB");
        let token = self.owed.insert_blocking(Owed::Write(reply, len));
        self.submit(Op::Write, offset, len, Some(buffer), token);
    }

    pub(super) fn flush(&self, reply: ReplyEmpty) {
        let token = self.owed.insert_blocking(Owed::Empty(reply));
        self.submit(Op::Flush, 0, 0, None, token);
    }

    /// `at < end`.
    pub(super) fn zero(&self, at: u64, end: u64, keep: bool, reply: ReplyEmpty) {
        let range = Range { at, end };
        let token = self.owed.insert_blocking(Owed::Zero { reply, keep, range });
        self.submit(Op::Zero { keep }, at, range.step(), None, token);
    }

    /// `at < size`.
    pub(super) fn seek(&self, at: u64, size: u64, want: Want, reply: ReplyLseek) {
        let range = Range { at, end: size };
        let token = self.owed.insert_blocking(Owed::Seek { reply, want, range });
        self.submit(Op::Status, at, range.step(), None, token);
    }

    fn submit(&self, op: Op, offset: u64, len: u32, buffer: Option<Buffer>, token: u64) {
        let Some(sink) = self.this.upgrade() else { return };
        self.handle.submit(Submission { op, offset, len, buffer, token, sink });
    }

    /// Answers, or says what is still owed.
    fn answer(&self, owed: Owed, completion: &Completion) -> Option<Owed> {
        match (owed, completion.result) {
            (Owed::Read(reply), Ok(())) => match &completion.buffer {
                Some(buffer) => reply.data(buffer),
                None => reply.error(Errno::EIO),
            },
            (Owed::Write(reply, len), Ok(())) => reply.written(len),
            (Owed::Empty(reply), Ok(())) => reply.ok(),
            (Owed::Zero { reply, keep, range }, Ok(())) => {
                let range = Range { at: range.at + u64::from(range.step()), ..range };
                if range.at < range.end {
                    return Some(Owed::Zero { reply, keep, range });
                }
                reply.ok();
            }
            (Owed::Seek { reply, want, range }, Ok(())) => match sought(want, range, &completion.status) {
                Found::At(offset) => reply.offset(i64::try_from(offset).unwrap_or(i64::MAX)),
                Found::Nothing => reply.error(Errno::ENXIO),
                Found::Further(at) => {
                    return Some(Owed::Seek { reply, want, range: Range { at, ..range } });
                }
            },
            (Owed::Read(reply), Err(e)) => reply.error(errno::of(e)),
            (Owed::Write(reply, _), Err(e)) => reply.error(errno::of(e)),
            (Owed::Empty(reply) | Owed::Zero { reply, .. }, Err(e)) => reply.error(errno::of(e)),
            (Owed::Seek { reply, .. }, Err(e)) => reply.error(errno::of(e)),
        }
        None
    }
}

impl Sink for Requests {
    fn give(&self, completion: Completion, bytes: &[u8]) {
        let Some(Owed::Read(reply)) = self.owed.take(completion.token) else {
            debug_assert!(false, "only reads are given bytes, and once");
            return;
        };
        reply.data(bytes);
        self.owed.free(completion.token);
    }

    fn complete(&self, completion: Completion) {
        let token = completion.token;
        let Some(owed) = self.owed.take(token) else {
            debug_assert!(false, "a submission is completed once");
            return;
        };
        let Some(owed) = self.answer(owed, &completion) else {
            return self.owed.free(token);
        };
        let next = match &owed {
            Owed::Zero { keep, range, .. } => Some((Op::Zero { keep: *keep }, *range)),
            Owed::Seek { range, .. } => Some((Op::Status, *range)),
            Owed::Read(_) | Owed::Write(..) | Owed::Empty(_) => None,
        };
        let (op, range) = next.expect("only ranges are answered in steps");
        self.owed.put_back(token, owed);
        self.submit(op, range.at, range.step(), None, token);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    At(u64),
    /// The file has no more data.
    Nothing,
    Further(u64),
}

/// The end of the file counts as a hole. Bytes that the answer says nothing of count as data once nothing else is
/// known: taking them for a hole would make a copy of the file lose them.
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
    }

    #[test]
    fn a_step_is_bounded() {
        assert_eq!(Range { at: 0, end: 5 << 30 }.step(), 1 << 30);
        assert_eq!(RANGE.step(), 900);
    }
}
