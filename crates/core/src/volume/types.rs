//! What goes in and out of the volume machine.
//!
//! Owns the shapes of requests, events and effects. Never: decisions.

use super::Key;
use crate::ahead::Rule;
use crate::api::Amend;
use crate::donor::{ListedWrite, WriteMark};
use crate::layout::Scatter;
use crate::map::{BadRange, DonorId, VolumeMap};
use crate::units::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The driver's name for a request; it comes back in `Complete`.
pub type Tag = u64;

/// A tool's request, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// At most `REQUEST_BYTES_MAX`. Bytes that nobody wrote read as zeros.
    Read,
    /// At most `REQUEST_BYTES_MAX`. The driver leaves the payload as it is until the answer.
    Write,
    /// Make it read as zeros; `keep` forbids giving the memory back.
    Zero {
        /// NBD's NO_HOLE: the zeros take memory.
        keep: bool,
    },
    /// The range is not needed any more. With redundancy it reads as zeros; without, the donor decides.
    Trim,
    /// A barrier: fails if acknowledged writes since the last one are gone with their donor.
    Flush,
    /// A hint that needs nothing done: donors are memory.
    Cache,
    /// Which blocks are present; may answer for less than was asked.
    Status,
    /// As `Status`, of which blocks the source is still to give: those are the holes. What it does not answer
    /// for may be here.
    Presence,
}

impl Op {
    /// Whether it changes the volume.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Op::Write | Op::Zero { .. } | Op::Trim)
    }
}

/// One request of a tool; a `Tag` names its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The payload of a write, or the room for a read, is under `Mem::Payload`.
    pub op: Op,
    /// Bytes from the start of the volume; any alignment.
    pub offset: u64,
    /// Bytes. 0 succeeds at once. A range that ends beyond the volume is `OutOfRange` as a whole.
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
    /// The rule that says what to fetch.
    pub rule: Rule,
}

impl Caching {
    /// Nothing is read ahead.
    pub const OFF: Caching = Caching { bytes: 0, keeps: false, takes: false, rule: Rule::Off };
}

/// What one donor is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOp {
    /// Bytes of one slot, data or parity.
    Read,
    /// A write whose bytes all travel.
    Write,
    /// A write whose zeros need not travel: a run of zero blocks may be sent as `Zero`.
    Sparse,
    /// Zeros without a payload.
    Zero {
        /// NBD's NO_HOLE: the blocks take memory.
        keep: bool,
    },
    /// A hint that a server may ignore, so only volumes without redundancy send it.
    Trim,
    /// `base:allocation`.
    Status,
    /// The same, for which blocks are not here yet.
    Presence,
    /// `cheetah:dirty`: what was written lately.
    Survey,
    /// Cheetah's VERIFY: whether the donor has what was written there.
    Verify,
    /// Cheetah's UNDO: what a write of a former writer covered there is put back. Its mark says which.
    Undo,
    /// All writes sent before the last `Age` are complete everywhere (NBD FLUSH).
    Age,
    /// What was answered is to be on the donor's disk (NBD FLUSH with FUA). `Unsupported`: it may have lost
    /// some of it.
    Flush,
}

impl PartOp {
    /// Whether it brings the donor's memory what it shall hold.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, PartOp::Write | PartOp::Sparse | PartOp::Zero { .. } | PartOp::Trim)
    }
}

/// A run of equal presence; `hole` reads as zeros and takes no memory. In a survey: `hole` means not written
/// lately; of what was verified, that nothing is wrong there; of `Presence`, that it is not here yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRun {
    /// Bytes, more than 0.
    pub len: u32,
    /// Of a donor's answer, runs beside each other may be equal.
    pub hole: bool,
}

/// Why a request failed. The front ends turn it into the errno of their protocol. Of several reasons the
/// first in this order is told; a request that is late is `TimedOut`, whatever else failed.
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
    /// It is not here yet, and nobody brings it.
    Absent,
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
            VolumeError::Absent => "that was not read from the source of the volume yet",
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
    /// EIO of the donor, or an error that has no name here.
    Io,
    /// ENOMEM or ENOSPC of the donor.
    NoMemory,
    /// The donor does not serve that range under this lease.
    Denied,
    /// The server has no such command.
    Unsupported,
    /// The block is the volume's, and nobody has put anything there yet: its source has it.
    Absent,
    /// The driver found that this many blocks of a read are not what was written, or that the donor has so
    /// many of a write otherwise than they were sent.
    Corrupt {
        /// At least 1; the count of wrong blocks from this donor grows by it.
        blocks: u32,
        /// They fit the donor's own checksums, and so were not hit on their way: of a sealed volume, of which
        /// more is known than donors say.
        forged: bool,
    },
}

/// Memory that a part or a computation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mem {
    /// The buffer of the request with this tag.
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
    /// The memory that `offset` counts in.
    pub mem: Mem,
    /// Bytes from the start of that memory.
    pub offset: u32,
}

/// Which bytes of the volume's redundancy these are; checksums are kept by this, whoever holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fragment {
    /// Index of the group in the map.
    pub group: u32,
    /// Index of the slot in its group; the data slots come first.
    pub slot: u32,
    /// Byte offset in the slot's extent.
    pub local: u32,
}

/// What of a sealed volume waits to be checked against its proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unproved {
    /// What a part brought, as `Send` named it.
    Part(Key),
    /// What was rebuilt, as `Verify` named its job.
    Job(Key),
}

/// `outputs[o] = (add ? outputs[o] : 0) + sum over i of coefficients[o * inputs + i] * inputs[i]`, as
/// `code::combine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combine {
    /// Bytes of each input and each output.
    pub len: u32,
    /// Elements of GF(2^8): inputs times outputs of them.
    pub coefficients: Vec<u8>,
    /// In the order of the coefficients. No input is an output.
    pub inputs: Vec<At>,
    /// In the order of the coefficients.
    pub outputs: Vec<At>,
    /// False: what the outputs held before does not count.
    pub add: bool,
}

/// What a pass of the scrubber is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every fragment that somebody holds.
    All,
    /// What the last pass found wrong.
    Wrong,
}

/// What the pass of the scrubber has found that runs, or the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Passes that came to their end.
    pub passes: u64,
    /// One is under way.
    pub is_under_way: bool,
    /// Bytes of fragments that it is about: of each extent those that the volume's size reaches.
    pub bytes_total: u64,
    /// Bytes of fragments that nobody holds; not among `bytes_total`.
    pub bytes_missing: u64,
    /// By the donor that was asked.
    pub donors: BTreeMap<DonorId, ScrubbedDonor>,
    /// Blocks that are not what was written, ascending. Where there are very many, what lies between them is
    /// among them.
    pub wrong: Vec<BadRange>,
}

impl Scrubbed {
    /// So much of `bytes_total` is over.
    #[must_use]
    pub fn bytes_done(&self) -> u64 {
        self.donors.values().map(|donor| donor.bytes_checked + donor.bytes_unchecked).sum()
    }
}

/// What one donor said of what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubbedDonor {
    /// Bytes that it compared with their checksums.
    pub bytes_checked: u64,
    /// Of these, blocks that are wrong.
    pub blocks_wrong: u64,
    /// Bytes of which it said nothing, and the reason for the last of them.
    pub bytes_unchecked: u64,
    /// None: it said something of all.
    pub why_unchecked: Option<VolumeError>,
}

/// Why who fills a volume did not bring what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The source cannot give all of it.
    Unreadable,
    /// It could not be asked, or could not do it now.
    Away,
}

/// What the driver tells the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Opens the links. Once, before any other event.
    Start,
    /// A tool's request; only while [`Volume::has_room`](super::Volume::has_room).
    Submit {
        /// The driver's name for it, which no open request has.
        tag: Tag,
        /// Any range: the machine checks it.
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
    /// The donor admitted the session: the link is up.
    Opened {
        /// The donor of the link.
        donor: DonorId,
        /// The number that `Open` gave; the answer to an older `Open` is passed over.
        session: u64,
    },
    /// The link could not be opened, or it ended.
    Failed {
        /// The donor of the link.
        donor: DonorId,
        /// The number that `Open` gave; what comes of an older one is passed over.
        session: u64,
        /// The reason. It decides when the link is opened again, and whether the donor counts as ended.
        failure: LinkFailure,
    },
    /// By a `Probe`.
    Reached {
        /// The donor that answered.
        donor: DonorId,
        /// The number that `Probe` gave.
        session: u64,
    },
    /// What the donor lists of writes, in the extent that a `PartOp::Survey` asks about: comes before its
    /// answer, whose runs are then of writes that nobody put a number on. `complete`: every write with a
    /// number up to this one is.
    Listed {
        /// The survey, as `Send` named it.
        part: Key,
        /// The greatest such number that the donor heard of; 0: none.
        complete: u64,
        /// In addresses of the donor's memory.
        writes: Vec<ListedWrite>,
    },
    /// A read's bytes are here, and its answer follows when it is known whether they are right.
    Came {
        /// The part, as `Send` named it.
        part: Key,
    },
    /// `status` is empty but for `PartOp::Status`, `PartOp::Survey` and `PartOp::Verify`.
    Answered {
        /// The part, as `Send` named it; the answer to a part that is over is passed over.
        part: Key,
        /// An error is of this part alone.
        answer: Result<Vec<StatusRun>, PartError>,
    },
    /// The answer to a `Verify` or `Compare`.
    Verified {
        /// The job that `Verify` or `Compare` named.
        job: Key,
        /// False: at least one byte differs.
        right: bool,
    },
    /// The answer to a `Fetch`.
    Fetched {
        /// As `Fetch` named it; the answer to one that does not wait any more is passed over.
        request: Key,
        /// Whether donors have all of it now.
        result: Result<(), FetchError>,
    },
    /// Whatever was read ahead may be out of date: it is not used.
    Forget,
    /// Donors compare what they hold with its checksums, once: all of it, or what the last pass found wrong.
    Scrub(Scope),
    /// Compare all fragments with each other once.
    Compare,
    /// The end: no request follows. Answered with `Finished`.
    Finish,
    /// The time of `WakeAt` has come. A `Wake` that is too early is harmless.
    Wake,
}

/// What the driver does for the machine: one after the other, all before the next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect to the donor under this session number; answer with `Opened` or `Failed`.
    Open {
        /// The donor; [`Volume::map`](super::Volume::map) has its route.
        donor: DonorId,
        /// A number greater than all before it for this donor. The export name on a Cheetah donor has it.
        session: u64,
    },
    /// Does one connection of the link hang, while the donor is there? Connect once more under this session
    /// number, for nothing but that; answer with `Reached` if it lets you in, and one that owes something has
    /// moved no byte for `DOUBT_NS`. An earlier `Probe` need not be answered any more.
    Probe {
        /// The donor of the link that is in doubt.
        donor: DonorId,
        /// The link's own number. Once there is a greater one, `Reached` is passed over.
        session: u64,
    },
    /// Ask who fills the volume, whom the map names, to bring this to the donors. Answer with `Fetched`.
    Fetch {
        /// The name of the answer.
        request: Key,
        /// Bytes from the start of the volume.
        offset: u64,
        /// Bytes, more than 0.
        len: u32,
    },
    /// Drop every connection of the link, and touch none of its payloads again. Not answered.
    Close {
        /// The donor of the link.
        donor: DonorId,
        /// The number that `Open` gave.
        session: u64,
    },
    /// What is read is checked against what is known of `fragment` and against the checksums that the donor
    /// sends with it, and a block that is wrong makes the answer `Corrupt`; likewise of a write whose
    /// checksums come back otherwise. What is written stays as it is until it is answered, or the link is
    /// closed: the driver need not copy it.
    Send {
        /// A donor whose link is up.
        donor: DonorId,
        /// The name of the answer. As [`Key::to_u64`] it is the request's cookie on the wire.
        part: Key,
        /// The operation; it decides whether data travels, and which way.
        op: PartOp,
        /// Byte of the donor's memory: the extent's number times 64 MiB, and the offset in the extent.
        address: u64,
        /// The source of a write or the target of a read; `Nothing` where no data travels.
        mem: Mem,
        /// The places in `mem`. `len` is the part's length also where no data travels.
        scatter: Scatter,
        /// The slot's first byte that it is about; the others follow.
        fragment: Fragment,
        /// For the donor's ledger, with all that changes what a volume with redundancy holds.
        mark: Option<WriteMark>,
    },
    /// The answer to this read is not wanted any more, and its memory must not be touched again.
    Abandon {
        /// The donor that was asked.
        donor: DonorId,
        /// The part, as `Send` named it. An answer that comes all the same is passed over.
        part: Key,
    },
    /// Compute now: what follows in this step may use the outputs.
    Combine(Combine),
    /// Copy now, likewise.
    Copy {
        /// The place of the first byte to read.
        from: At,
        /// The place of the first byte to write.
        to: At,
        /// Bytes.
        len: u32,
    },
    /// Fill with zeros now, likewise.
    Zero {
        /// The place of the first byte.
        at: At,
        /// Bytes.
        len: u32,
    },
    /// Does this hold what is known of the fragment? Unknown counts as right. Answered by `Verified`.
    Verify {
        /// The job that waits for the answer.
        job: Key,
        /// The slot's first byte that it is about; the others follow.
        fragment: Fragment,
        /// The bytes to check.
        at: At,
        /// Bytes, a multiple of 4 KiB.
        len: u32,
    },
    /// Do these two hold the same? Answered by `Verified`.
    Compare {
        /// The job that waits for the answer.
        job: Key,
        /// The place of the one side.
        a: At,
        /// The place of the other side.
        b: At,
        /// Bytes of each side.
        len: u32,
    },
    /// This is what the fragment shall hold, and so many of the next slots with it: note the checksums.
    /// `Nothing` stands for zeros.
    Learn {
        /// The first byte's place in the first of the slots.
        fragment: Fragment,
        /// The number of slots, at least 1; more only where they hold the same.
        copies: u32,
        /// The memory that has the bytes, or `Nothing`.
        mem: Mem,
        /// The places in `mem`: whole blocks, each in one piece.
        scatter: Scatter,
    },
    /// What the fragment holds is not known any more.
    Forget {
        /// The place of the first byte.
        fragment: Fragment,
        /// Bytes. A block that is touched in part is forgotten as a whole.
        len: u32,
    },
    /// Tell the coordinator, and answer with `Amended`. One at a time.
    Amend(Amend),
    /// These bytes of the volume, which are in `Mem::Cache` from `at` on, will likely be read. Its reader may
    /// have them.
    Offer {
        /// Bytes from the start of the volume.
        offset: u64,
        /// Bytes from the start of `Mem::Cache`.
        at: u32,
        /// Bytes, more than 0.
        len: u32,
    },
    /// The end of a request, once for each `Submit`. Its memory is the driver's again.
    Complete {
        /// The tag that `Submit` gave.
        tag: Tag,
        /// One result for the whole request. After an error a read's buffer holds nothing of use.
        result: Result<(), VolumeError>,
        /// The runs of an `Op::Status` that succeeded, from the request's offset on; they may end before it
        /// does. Otherwise empty.
        status: Vec<StatusRun>,
    },
    /// Every donor knows that nothing is half written.
    Finished,
    /// Call `Wake` at this time; an earlier one than announced before replaces it.
    WakeAt(Time),
}
