//! Mistakes that are planted in the simulator's drivers, to see whether the oracle finds them.
//!
//! Owns their names, and the runs that find each. Never: what a mistake does (the drivers do it), or how soon
//! it is found (`docs/MEASURED.md`). Tests: `tests/planted_bugs.rs`.

use crate::Setup;
use crate::plan::Fault;

/// A mistake put into the simulator's drivers on purpose: the oracle must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The donor says that a dropped connection has closed, and goes on serving it.
    IgnoreSessions,
    /// The donor says that it wiped an extent, and did not.
    SkipWipe,
    /// The client takes a write as answered when it is sent.
    AckEarly,
    /// A read that a lost donor should fail is answered with zeros.
    ZerosForLost,
    /// The coordinator's store has one record less after a restart.
    LoseRecord,
    /// The coordinator answers before its records are durable.
    AnswerBeforeStore,
    /// The client takes a donor for excluded before the coordinator recorded it.
    AckBeforeQuorum,
    /// The client takes a donor that was excluded for a holder again.
    StaleBelieved,
    /// The client writes no parity.
    ParityNotUpdated,
    /// The client takes every block for what was written.
    ChecksumIgnored,
    /// The donor serves dropped connections on, and carries out what no lease covers any more.
    LeaseNotChecked,
    /// The client serves what is lost as if that were recorded, before it is.
    LossNotRecorded,
    /// The coordinator's driver takes the time in which it was stopped for time in which nobody renewed.
    SleepCounts,
    /// A donor that another pool's coordinator refuses begins anew.
    StrangerObeyed,
    /// A client is not told that a connection was refused.
    RefusalUnheard,
    /// A load tells what it has sent as if it were written.
    LoadToldAhead,
    /// The coordinator does not store what volumes hold.
    LoadForgotten,
    /// A load that goes on leaves a piece out.
    ResumeSkips,
    /// Of writes that leave in one request, the payload of the last is sent first.
    MergedOutOfOrder,
    /// The client does not look at the checksums that donors send with what it reads.
    ContextIgnored,
    /// Nor at those that they send back of what it writes.
    WriteReplyIgnored,
    /// A donor signs what came, whatever its client says was sent.
    DigestIgnored,
    /// A new writer does not hear what donors list of writes: it takes every row for whole.
    TornForWhole,
    /// A donor says that it has undone a write, and has not.
    UndoForgotten,
    /// A new writer takes no write for landed: rows that fit are undone or given up.
    WholeRowGivenUp,
    /// What completes a block that is written in part is not checked.
    PartialSigned,
    /// What is copied to a new place is not held to the checksums of the old one.
    MoveLosesContext,
    /// The client does not hear what donors find wrong of what they hold.
    VerifyIgnored,
    /// A donor of a disk that comes back holds again what it missed writes of.
    DiskBelieved,
    /// Disks are not flushed.
    FlushIgnored,
    /// A donor answers a write before the disk has it.
    LogUnflushed,
    /// A block goes out of memory on its way to the disk.
    DirtyEvicted,
    /// What is put down of a block has the nonce and tag of what it was before.
    AuthOfAnother,
    /// A write of a volume with write-back is taken for answered when one of its holders has it.
    OneCopy,
    /// A donor that comes back takes what its disk has for what was acknowledged.
    StaleRegionBelieved,
    /// It answers a flush before its disk has what is dirty.
    FlushAhead,
    /// What is dirty goes out of memory.
    DirtyDropped,
    /// A donor answers what is absent with zeros.
    AbsentAsZero,
    /// Nor does it tell what it has dropped from zeros.
    DroppedAsZero,
    /// A block is dropped while it is being written.
    DroppedWhileWritten,
    /// Donors take what a filler sent before another had its lease.
    LateFill,
}

impl Bug {
    pub const ALL: [Bug; 41] = [
        Bug::IgnoreSessions,
        Bug::SkipWipe,
        Bug::AckEarly,
        Bug::ZerosForLost,
        Bug::LoseRecord,
        Bug::AnswerBeforeStore,
        Bug::AckBeforeQuorum,
        Bug::StaleBelieved,
        Bug::ParityNotUpdated,
        Bug::ChecksumIgnored,
        Bug::LeaseNotChecked,
        Bug::LossNotRecorded,
        Bug::SleepCounts,
        Bug::StrangerObeyed,
        Bug::RefusalUnheard,
        Bug::LoadToldAhead,
        Bug::LoadForgotten,
        Bug::ResumeSkips,
        Bug::MergedOutOfOrder,
        Bug::ContextIgnored,
        Bug::WriteReplyIgnored,
        Bug::DigestIgnored,
        Bug::TornForWhole,
        Bug::UndoForgotten,
        Bug::WholeRowGivenUp,
        Bug::PartialSigned,
        Bug::MoveLosesContext,
        Bug::VerifyIgnored,
        Bug::DiskBelieved,
        Bug::FlushIgnored,
        Bug::LogUnflushed,
        Bug::DirtyEvicted,
        Bug::AuthOfAnother,
        Bug::OneCopy,
        Bug::StaleRegionBelieved,
        Bug::FlushAhead,
        Bug::DirtyDropped,
        Bug::AbsentAsZero,
        Bug::DroppedAsZero,
        Bug::DroppedWhileWritten,
        Bug::LateFill,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bug::IgnoreSessions => "ignore-sessions",
            Bug::SkipWipe => "skip-wipe",
            Bug::AckEarly => "ack-early",
            Bug::ZerosForLost => "zeros-for-lost",
            Bug::LoseRecord => "lose-record",
            Bug::AnswerBeforeStore => "answer-before-store",
            Bug::AckBeforeQuorum => "ack-before-quorum",
            Bug::StaleBelieved => "stale-believed",
            Bug::ParityNotUpdated => "parity-not-updated",
            Bug::ChecksumIgnored => "checksum-ignored",
            Bug::LeaseNotChecked => "lease-not-checked",
            Bug::LossNotRecorded => "loss-not-recorded",
            Bug::SleepCounts => "sleep-counts",
            Bug::StrangerObeyed => "stranger-obeyed",
            Bug::RefusalUnheard => "refusal-unheard",
            Bug::LoadToldAhead => "load-told-ahead",
            Bug::LoadForgotten => "load-forgotten",
            Bug::ResumeSkips => "resume-skips",
            Bug::MergedOutOfOrder => "merged-out-of-order",
            Bug::ContextIgnored => "context-ignored",
            Bug::WriteReplyIgnored => "write-reply-ignored",
            Bug::DigestIgnored => "digest-ignored",
            Bug::TornForWhole => "torn-for-whole",
            Bug::UndoForgotten => "undo-forgotten",
            Bug::WholeRowGivenUp => "whole-row-given-up",
            Bug::PartialSigned => "partial-signed",
            Bug::MoveLosesContext => "move-loses-context",
            Bug::VerifyIgnored => "verify-ignored",
            Bug::DiskBelieved => "disk-believed",
            Bug::FlushIgnored => "flush-ignored",
            Bug::LogUnflushed => "log-unflushed",
            Bug::DirtyEvicted => "dirty-evicted",
            Bug::AuthOfAnother => "auth-of-another",
            Bug::OneCopy => "one-copy",
            Bug::StaleRegionBelieved => "stale-region-believed",
            Bug::FlushAhead => "flush-ahead",
            Bug::DirtyDropped => "dirty-dropped",
            Bug::AbsentAsZero => "absent-as-zero",
            Bug::DroppedAsZero => "dropped-as-zero",
            Bug::DroppedWhileWritten => "dropped-while-written",
            Bug::LateFill => "late-fill",
        }
    }

    /// The runs that find it: of one kind of fault, or ordinary ones.
    #[must_use]
    pub fn runs(self) -> Setup {
        let only = match self {
            Bug::RefusalUnheard => Some(Fault::KillTwo),
            Bug::TornForWhole | Bug::UndoForgotten | Bug::WholeRowGivenUp => Some(Fault::EndTogether),
            Bug::ContextIgnored | Bug::VerifyIgnored | Bug::LossNotRecorded | Bug::DigestIgnored => {
                Some(Fault::Rot)
            }
            Bug::PartialSigned | Bug::MoveLosesContext => Some(Fault::Rot),
            Bug::LoadToldAhead | Bug::LoadForgotten | Bug::ResumeSkips => Some(Fault::EndLoad),
            Bug::AbsentAsZero | Bug::DroppedAsZero => Some(Fault::Opened),
            Bug::DroppedWhileWritten | Bug::LateFill => Some(Fault::Opened),
            Bug::DiskBelieved | Bug::FlushIgnored | Bug::LogUnflushed => Some(Fault::Power),
            Bug::DirtyEvicted | Bug::AuthOfAnother => Some(Fault::Power),
            Bug::OneCopy | Bug::StaleRegionBelieved | Bug::FlushAhead | Bug::DirtyDropped => {
                Some(Fault::Power)
            }
            Bug::SleepCounts => Some(Fault::StopCoordinator),
            Bug::StrangerObeyed => Some(Fault::Stranger),
            _ => None,
        };
        // What nothing gives back is wrong on more donors than redundancy covers.
        let beyond = self == Bug::LossNotRecorded;
        Setup { bug: Some(self), only, beyond, ..Setup::default() }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| bug.name() == name)
    }
}
