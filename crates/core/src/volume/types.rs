//! What goes in and out of the volume machine.
//!
//! Owns the shapes of requests, events and effects. Never: decisions.

use super::Key;
use crate::ahead::Rule;
use crate::api::Amend;
use crate::donor::{ListedWrite, WriteMark};
use crate::layout::Scatter;
use crate::map::{DonorId, VolumeMap};
use crate::units::Time;
use serde::{Deserialize, Serialize};

/// The driver's name for a request; it comes back in `Complete`.
pub type Tag = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    /// Make it read as zeros; `keep` forbids giving the memory back.
    Zero {
        keep: bool,
    },
    Trim,
    /// A barrier: fails if acknowledged writes since the last one are gone with their donor.
    Flush,
    /// A hint that needs nothing done: donors are memory.
    Cache,
    /// Which blocks are present; may answer for less than was asked.
    Status,
}

impl Op {
    /// Whether it changes the volume.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Op::Write | Op::Zero { .. } | Op::Trim)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub op: Op,
    pub offset: u64,
    pub len: u32,
}

/// What is read before a tool asks for it, and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caching {
    /// Memory for it, in steps of 1 MiB; the driver has as much under `Mem::Cache`.
    pub bytes: u32,
    /// What a tool has read stays, for tools that do not keep it themselves.
    pub keeps: bool,
    /// Who reads takes what it has not asked for yet (`Effect::Offer`).
    pub takes: bool,
    pub rule: Rule,
}

impl Caching {
    /// Nothing is read ahead.
    pub const OFF: Caching = Caching { bytes: 0, keeps: false, takes: false, rule: Rule::Off };
}

/// What one donor is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOp {
    Read,
    Write,
    /// A write whose zeros need not travel: a run of zero blocks may be sent as `Zero`.
    Sparse,
    Zero {
        keep: bool,
    },
    Trim,
    /// `base:allocation`.
    Status,
    /// `cheetah:dirty`: what was written lately.
    Survey,
    /// All writes sent before the last `Age` are complete everywhere (NBD FLUSH).
    Age,
}

impl PartOp {
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, PartOp::Write | PartOp::Sparse | PartOp::Zero { .. } | PartOp::Trim)
    }
}

/// A run of equal presence; `hole` reads as zeros and takes no memory. In a survey: `hole` means not written
/// lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRun {
    pub len: u32,
    pub hole: bool,
}

/// Why a request failed. The front ends turn it into the errno of their protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeError {
    /// A range beyond the end.
    OutOfRange,
    /// A write to a volume attached read-only.
    ReadOnly,
    /// More donors cannot be reached than redundancy covers.
    DonorLost,
    /// No answer by the deadline.
    TimedOut,
    /// The donor answered with an error of its own.
    DonorFailed,
    /// What donors sent is not what was written, and redundancy does not help.
    Corrupt,
    /// The donor has no memory left.
    NoMemory,
    /// The lease is gone: another may write.
    LeaseLost,
    /// A foreign donor that cannot do this (zero without a payload).
    Unsupported,
    /// The source of the volume could not be read there.
    Unreadable,
}

impl std::fmt::Display for VolumeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            VolumeError::OutOfRange => "that is beyond the volume's end",
            VolumeError::ReadOnly => "the volume is attached read-only",
            VolumeError::DonorLost => "more donors are out of reach than redundancy covers",
            VolumeError::TimedOut => "no answer came in time",
            VolumeError::DonorFailed => "a donor answered with an error of its own",
            VolumeError::Corrupt => "what donors sent is not what was written",
            VolumeError::NoMemory => "a donor has no memory left",
            VolumeError::LeaseLost => "the lease is gone: another may write",
            VolumeError::Unsupported => "a donor cannot do what was asked",
            VolumeError::Unreadable => "the source of the volume could not be read there",
        })
    }
}

/// Why a link could not be opened or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFailure {
    /// It ended while it was up. It is opened again at once; what was on its way is sent again.
    Broken(String),
    /// It could not be opened: unreachable, or it did not answer.
    NotOpened(String),
    /// Nothing listens at its address, or another donor does: its process has ended, and what it held is
    /// gone.
    Refused(String),
    /// The donor is there, and knows no such lease or extent (any more).
    NotAdmitted(String),
}

impl LinkFailure {
    /// A sentence about it.
    #[must_use]
    pub fn into_why(self) -> String {
        match self {
            LinkFailure::Broken(why)
            | LinkFailure::NotOpened(why)
            | LinkFailure::Refused(why)
            | LinkFailure::NotAdmitted(why) => why,
        }
    }
}

/// An error answer to one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartError {
    Io,
    NoMemory,
    /// The donor does not serve that range under this lease.
    Denied,
    /// The server has no such command.
    Unsupported,
    /// The driver found that this many blocks of a read are not what was written.
    Corrupt {
        blocks: u32,
    },
}

/// Memory that a part or a computation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mem {
    Payload(Tag),
    /// A piece of the driver's scratch memory; see `Volume::scratch_sizes`.
    Scratch(u32),
    /// The driver's memory for what is read ahead; see `Volume::with_cache`.
    Cache,
    /// The part carries no data.
    Nothing,
}

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub mem: Mem,
    pub offset: u32,
}

/// Which bytes of the volume's redundancy these are; checksums are kept by this, whoever holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fragment {
    pub group: u32,
    pub slot: u32,
    /// Byte offset in the slot's extent.
    pub local: u32,
}

/// `outputs[o] = (add ? outputs[o] : 0) + sum over i of coefficients[o * inputs + i] * inputs[i]`, as
/// `code::combine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combine {
    pub len: u32,
    pub coefficients: Vec<u8>,
    pub inputs: Vec<At>,
    pub outputs: Vec<At>,
    pub add: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Opens the links. Once, before any other event.
    Start,
    Submit {
        tag: Tag,
        request: Request,
    },
    /// A newer map from the coordinator.
    Map(VolumeMap),
    /// How an `Amend` ended: the map as it is now, or nothing because the coordinator could not be asked.
    Amended(Option<VolumeMap>),
    /// The coordinator says that another may have the lease.
    LeaseLost,
    /// The coordinator has not heard of these donors for long.
    Silent(Vec<DonorId>),
    Opened {
        donor: DonorId,
        session: u64,
    },
    Failed {
        donor: DonorId,
        session: u64,
        failure: LinkFailure,
    },
    /// By a `Probe`.
    Reached {
        donor: DonorId,
        session: u64,
    },
    /// What the donor lists of writes, in the extent that a `PartOp::Survey` asks about: comes before its
    /// answer, whose runs are then of writes that nobody put a number on. `complete`: every write with a
    /// number up to this one is.
    Listed {
        part: Key,
        complete: u64,
        writes: Vec<ListedWrite>,
    },
    /// `status` is empty but for `PartOp::Status` and `PartOp::Survey`.
    Answered {
        part: Key,
        answer: Result<Vec<StatusRun>, PartError>,
    },
    /// The answer to a `Verify` or `Compare`.
    Verified {
        strip: Key,
        right: bool,
    },
    /// Whatever was read ahead may be out of date: it is not used.
    Forget,
    /// Compare all fragments with each other once.
    Scrub,
    /// The end: no request follows. Answered with `Finished`.
    Finish,
    Wake,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect to the donor under this session number; answer with `Opened` or `Failed`.
    Open {
        donor: DonorId,
        session: u64,
    },
    /// Does one connection of the link hang, while the donor is there? Connect once more under this session
    /// number, for nothing but that; answer with `Reached` if it lets you in, and one that owes something has
    /// moved no byte for `DOUBT_NS`. An earlier `Probe` need not be answered any more.
    Probe {
        donor: DonorId,
        session: u64,
    },
    /// Drop every connection of the link, and touch none of its payloads again. Not answered.
    Close {
        donor: DonorId,
        session: u64,
    },
    /// What is read is checked against what is known of `fragment`, and a block that is wrong makes the
    /// answer `Corrupt`. What is written stays as it is until it is answered, or the link is closed: the
    /// driver need not copy it.
    Send {
        donor: DonorId,
        part: Key,
        op: PartOp,
        address: u64,
        mem: Mem,
        scatter: Scatter,
        fragment: Fragment,
        /// For the donor's ledger, with all that changes what a volume with redundancy holds.
        mark: Option<WriteMark>,
    },
    /// The answer to this read is not wanted any more, and its memory must not be touched again.
    Abandon {
        donor: DonorId,
        part: Key,
    },
    Combine(Combine),
    Copy {
        from: At,
        to: At,
        len: u32,
    },
    Zero {
        at: At,
        len: u32,
    },
    /// Does this hold what is known of the fragment? Unknown counts as right. Answered by `Verified`.
    Verify {
        strip: Key,
        fragment: Fragment,
        at: At,
        len: u32,
    },
    /// Do these two hold the same? Answered by `Verified`.
    Compare {
        strip: Key,
        a: At,
        b: At,
        len: u32,
    },
    /// This is what the fragment shall hold, and so many of the next slots with it: note the checksums.
    /// `Nothing` stands for zeros.
    Learn {
        fragment: Fragment,
        copies: u32,
        mem: Mem,
        scatter: Scatter,
    },
    /// What the fragment holds is not known any more.
    Forget {
        fragment: Fragment,
        len: u32,
    },
    /// Tell the coordinator, and answer with `Amended`. One at a time.
    Amend(Amend),
    /// These bytes of the volume, which are in `Mem::Cache` from `at` on, will likely be read. Its reader may
    /// have them.
    Offer {
        offset: u64,
        at: u32,
        len: u32,
    },
    Complete {
        tag: Tag,
        result: Result<(), VolumeError>,
        status: Vec<StatusRun>,
    },
    /// Every donor knows that nothing is half written.
    Finished,
    /// Call `Wake` at this time; an earlier one than announced before replaces it.
    WakeAt(Time),
}
