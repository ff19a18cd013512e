//! Who waits for a disk, and what it is told.
//!
//! Owns the way to a connection. Never: what it waits for (`donor::waiting`). Called by `disk` and `threads`.

use std::io;
use tokio::sync::mpsc;

/// Tells a connection that what it waited for is done.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    pub(crate) tell: mpsc::UnboundedSender<Told>,
    /// Which of the things that it waits for.
    pub(crate) waits_for: u64,
}

/// What a connection waited for has come.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) waits_for: u64,
    pub(crate) result: io::Result<()>,
    /// Of a check: whether each block is right.
    pub(crate) right: Vec<bool>,
}

impl Teller {
    pub(crate) fn tell(&self, result: io::Result<()>) {
        self.say(result, Vec::new());
    }

    pub(super) fn say(&self, result: io::Result<()>, right: Vec<bool>) {
        // A connection that has ended waits for nothing.
        let _ = self.tell.send(Told { waits_for: self.waits_for, result, right });
    }
}
