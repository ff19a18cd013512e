//! The signals that tell a command to end: SIGTERM and SIGHUP of a service manager, SIGINT of a person at a
//! terminal.
//!
//! Owns hearing them. Never: what follows. Invariant: one that comes after `listen` is told, also between two
//! waits (several of a kind as one); so whoever says that something is ready listens before, or a signal that
//! answers this would kill it where it stands.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Who told it to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Someone who sees what is said, and can ask again.
    ByPerson,
    ByService,
}

#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on they do nothing by themselves.
    pub fn listen() -> Result<Signals, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|e| Failure::failed(format!("this process gets no signals from the kernel: {e}")))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::ByService,
            _ = self.hangup.recv() => Told::ByService,
            _ = self.interrupt.recv() => Told::ByPerson,
        }
    }
}
