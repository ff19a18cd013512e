//! How much of a volume's writes is on its way, over all connections, and what a batch of them may merge.
//!
//! Never: when something leaves, which writes are one request (`nbd::client::Transmission`), or how much may
//! be merged (`core::volume::merge`). Called by `conn`. Tests: `tests/data_path.rs`.

use cheetah_core::volume::batch_merges_bytes_max;
use std::cell::Cell;

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
