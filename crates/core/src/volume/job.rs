//! A job: one locked piece of work in one group, and its parts, each one I/O to one donor.
//!
//! Owns what a job and a part are, and what is derived from that alone. Never: decisions, or other jobs
//! (`jobs`). Tests: those of the machine.
//!
//! ```text
//!   Locking -> Starving -> Reading -> Checking -> Writing -> Excluding -> ended
//!                          \-> Resting -/
//! ```

use super::Key;
use super::types::{At, Mem, Op, PartError, PartOp, VolumeError};
use crate::layout::{Scatter, Span};
use crate::map::{DonorId, Placement};
use crate::units::Time;

/// A set of slots of one group.
pub(super) type Slots = u32;

pub(super) fn bit(slot: u32) -> Slots {
    1 << slot
}

pub(super) fn slots_of(mut set: Slots) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let slot = set.trailing_zeros();
        set &= set.checked_sub(1)?;
        Some(slot)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Payload,
    Zero { keep: bool },
    Trim,
}

impl Content {
    pub(super) fn of(op: Op) -> Content {
        match op {
            Op::Write => Content::Payload,
            Op::Zero { keep } => Content::Zero { keep },
            _ => Content::Trim,
        }
    }

    pub(super) fn part_op(self) -> PartOp {
        match self {
            Content::Payload => PartOp::Write,
            Content::Zero { keep } => PartOp::Zero { keep },
            Content::Trim => PartOp::Trim,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Data slots straight into the payload.
    Read(Span),
    /// Into scratch, rebuilt where a slot cannot be had, then into the payload.
    Gather(Span),
    /// The same to every copy, or to data slots without parity.
    Direct(Span, Content),
    /// Whole rows, with their parity.
    Rows(Span, Content),
    /// A row that several requests have written.
    Joined(Span),
    /// Less than a row or a block: read, changed, written back. `delta`: from the old data and the old
    /// parity.
    Patch {
        span: Span,
        content: Content,
        delta: bool,
    },
    Status(Span),
    /// A flush that waits for links to be opened.
    Barrier,
    /// One that waits for the disks of all holders.
    Flush,
    /// One slot's bytes from the others, or from its holder, to `to`.
    Fill {
        slot: u32,
        to: Placement,
    },
    /// A slot's bytes put right where they are.
    Heal {
        slot: u32,
    },
    /// Parity from data, copies from the first.
    Resync,
    /// A slot that missed a write of a row in doubt, from those that fit together.
    Mend {
        slot: u32,
    },
    /// Rows that may not fit together: whether they do.
    Fit,
    /// A write of a former writer that too few have is taken back from who has some of it.
    Undo(Undo),
    /// All fragments with each other.
    Compare,
    /// Has the holder of a slot what its checksums say? In the turn of a donor.
    Scrub {
        slot: u32,
        turn: DonorId,
    },
    /// Which rows were written lately.
    Survey,
    Age,
    /// Is a donor there? Whether it has this or not: any answer is one.
    Ask {
        slot: u32,
        of: Placement,
    },
}

/// A write of a former writer that is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Undo {
    pub(super) number: u64,
    /// Those that have some of it, and what was there before.
    pub(super) slots: Slots,
}

impl Work {
    /// Whether it has a lock on its rows at all.
    pub(super) fn is_locked(self) -> bool {
        let asks = matches!(self, Work::Status(_) | Work::Survey | Work::Age | Work::Ask { .. });
        !(asks || matches!(self, Work::Barrier | Work::Flush | Work::Scrub { .. }))
    }

    /// Whether nobody else may work on its rows.
    pub(super) fn is_alone(self) -> bool {
        !matches!(self, Work::Read(_) | Work::Gather(_) | Work::Compare)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Locking,
    /// For scratch memory or room for parts.
    Starving,
    Reading,
    /// For `Verified`.
    Checking,
    Writing,
    /// For the coordinator to record that donors missed a write.
    Excluding,
    /// For another's writes to what it reads to be over, or for the coordinator's word that the map is the
    /// newest.
    Resting,
}

/// How far a reader is in finding out that nobody writes what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Still {
    Unasked,
    /// Lanes are read since then, by the map of that epoch.
    Reading {
        since: Time,
        epoch: u64,
    },
    /// They were read, and their holders are asked who wrote lately.
    Asked {
        since: Time,
        epoch: u64,
    },
    /// Nobody had, and the coordinator said that no donor was excluded or replaced meanwhile.
    Vouched,
    /// Somebody had, or one that was asked did not answer.
    Disturbed,
}

/// A placement that missed a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) slot: u32,
    pub(super) placement: Placement,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) group: u32,
    /// The bytes of each extent of the group that it locks.
    pub(super) lo: u32,
    pub(super) hi: u32,
    pub(super) request: Option<Key>,
    pub(super) phase: Phase,
    pub(super) born: u64,
    pub(super) parts: Option<Key>,
    pub(super) open: u32,
    pub(super) scratch: Option<u32>,
    /// Lanes that are in scratch.
    pub(super) have: Slots,
    /// Lanes on their way.
    pub(super) coming: Slots,
    /// Slots whose holder failed this job, or is late.
    pub(super) avoid: Slots,
    /// Of those, the ones that gave a bad answer: asking them again is of no use.
    pub(super) wrong: Slots,
    /// Those that are late are waited for: there is no way round them.
    pub(super) waits_for_late: bool,
    pub(super) tries: u32,
    pub(super) rests: u32,
    /// So often a donor was asked whether what it sent is what it has.
    pub(super) verifies: u32,
    pub(super) still: Still,
    /// Somebody may have some of what it writes.
    pub(super) wrote: bool,
    pub(super) missed: Vec<Missed>,
    pub(super) failed: Option<VolumeError>,
    /// Of its writes, once there are any.
    pub(super) number: u64,
}

impl Job {
    pub(super) fn new(request: Option<Key>, work: Work, group: u32, lo: u32, hi: u32, born: u64) -> Job {
        Job {
            work,
            group,
            lo,
            hi,
            request,
            phase: Phase::Locking,
            born,
            parts: None,
            open: 0,
            scratch: None,
            have: 0,
            coming: 0,
            avoid: 0,
            wrong: 0,
            waits_for_late: false,
            tries: 0,
            rests: 0,
            verifies: 0,
            still: Still::Unasked,
            wrote: false,
            missed: Vec::new(),
            failed: None,
            number: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.hi - self.lo
    }

    /// The bytes of the request that it is a part of.
    pub(super) fn span(&self) -> Option<Span> {
        match self.work {
            Work::Read(span) | Work::Gather(span) | Work::Status(span) => Some(span),
            Work::Direct(span, _) | Work::Rows(span, _) | Work::Patch { span, .. } => Some(span),
            Work::Joined(span) => Some(span),
            _ => None,
        }
    }

    /// Whether donors may hold a part of it when it is cut short, and mark it as written lately.
    pub(super) fn is_write(&self) -> bool {
        let mends =
            matches!(self.work, Work::Fill { .. } | Work::Heal { .. } | Work::Resync | Work::Mend { .. });
        self.is_users_write() || mends
    }

    pub(super) fn is_users_write(&self) -> bool {
        matches!(self.work, Work::Direct(..) | Work::Rows(..) | Work::Joined(_) | Work::Patch { .. })
    }
}

/// Bytes of one slot: where they are in its extent, and in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) local: u32,
    pub(super) mem: Mem,
    /// Its `len` is that of the run also where there is no memory.
    pub(super) scatter: Scatter,
}

impl Run {
    /// Bytes that are in one piece in memory.
    pub(super) fn whole(local: u32, at: At, len: u32) -> Run {
        Run { local, mem: at.mem, scatter: Scatter::whole(at.offset, len) }
    }

    /// Bytes that are asked about, and do not travel.
    pub(super) fn about(local: u32, len: u32) -> Run {
        Run { local, mem: Mem::Nothing, scatter: Scatter::whole(0, len) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) job: Key,
    pub(super) slot: u32,
    pub(super) placement: Placement,
    pub(super) op: PartOp,
    pub(super) run: Run,
    pub(super) progress: Progress,
    pub(super) sent_at: Time,
    /// The next part of the same job.
    pub(super) next: Option<Key>,
}

impl Part {
    pub(super) fn new(job: Key, slot: u32, placement: Placement, op: PartOp, run: Run, now: Time) -> Part {
        Part { job, slot, placement, op, run, progress: Progress::Waiting, sent_at: now, next: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// For its link.
    Waiting,
    Sent,
    /// Its bytes are here; whether they are right is still to be found out.
    Came,
    Done,
}

/// Why a part has no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Its donor was set aside.
    Down,
    /// It is late, and redundancy can answer.
    Late,
    /// The slot has another holder now.
    Moved,
    Answer(PartError),
}

impl Failure {
    pub(super) fn error(self) -> VolumeError {
        match self {
            Failure::Down | Failure::Moved => VolumeError::DonorLost,
            Failure::Late => VolumeError::TimedOut,
            Failure::Answer(PartError::Io) => VolumeError::DonorFailed,
            Failure::Answer(PartError::NoMemory) => VolumeError::NoMemory,
            Failure::Answer(PartError::Denied) => VolumeError::LeaseLost,
            Failure::Answer(PartError::Unsupported) => VolumeError::Unsupported,
            Failure::Answer(PartError::Absent) => VolumeError::Absent,
            Failure::Answer(PartError::Corrupt { .. }) => VolumeError::Corrupt,
        }
    }
}
