//! What is to leave by connections: the request that a part becomes, and how many bytes of a volume's writes
//! are on their way.
//!
//! Never: when something leaves, which writes are one request (`nbd::client::Transmission`), or how much may
//! be merged (`core::volume::merge`). Called by `conn`. Tests: `tests/data_path.rs`.

use super::conn::{Body, Part};
use cheetah_core::donor::WriteMark;
use cheetah_core::layout::Scatter;
use cheetah_core::volume::{PartOp, batch_merges_bytes_max};
use cheetah_nbd::client::Request;
use cheetah_nbd::{CmdFlags, Command, Mark};
use std::cell::Cell;

pub(super) fn request(part: &Part, context: Option<u32>) -> Request<Body> {
    let (command, flags) = match part.op {
        PartOp::Read => (Command::Read, CmdFlags::EMPTY),
        PartOp::Write | PartOp::Sparse => (Command::Write, CmdFlags::EMPTY),
        PartOp::Zero { keep: true } => (Command::WriteZeroes, CmdFlags::NO_HOLE),
        PartOp::Zero { keep: false } => (Command::WriteZeroes, CmdFlags::EMPTY),
        PartOp::Trim => (Command::Trim, CmdFlags::EMPTY),
        PartOp::Status | PartOp::Survey => (Command::BlockStatus, CmdFlags::EMPTY),
        PartOp::Age => (Command::Flush, CmdFlags::EMPTY),
    };
    let mark = |WriteMark { number, targets, complete }| Mark { number, targets, complete };
    Request {
        cookie: part.part.to_u64(),
        command,
        flags,
        offset: part.address,
        length: part.scatter.len,
        mark: part.mark.map(mark),
        context,
        body: Body::new(part),
    }
}

/// What a part sends behind its header.
pub(super) fn payload_bytes(op: PartOp, scatter: Scatter) -> u32 {
    if matches!(op, PartOp::Write | PartOp::Sparse) { scatter.len } else { 0 }
}

/// Bytes of a volume's writes, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// What waits to be made requests of.
    queued: Cell<u64>,
    /// What is in requests that are not answered.
    asked: Cell<u64>,
}

impl Traffic {
    pub(super) fn queue(&self, bytes: u64) {
        self.queued.set(self.queued.get() + bytes);
    }

    /// What was queued is in a request now.
    pub(super) fn ask(&self, bytes: u64) {
        self.queued.set(self.queued.get() - bytes);
        self.asked.set(self.asked.get() + bytes);
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.get()
    }

    /// Answered, or given up.
    pub(super) fn forget(&self, is_asked: bool, bytes: u64) {
        let count = if is_asked { &self.asked } else { &self.queued };
        count.set(count.get() - bytes);
    }

    pub(super) fn batch_merges_bytes_max(&self) -> u32 {
        batch_merges_bytes_max(self.asked.get(), self.queued.get())
    }
}
