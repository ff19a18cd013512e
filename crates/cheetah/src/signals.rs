//! The signals that tell a command to end: SIGTERM and SIGHUP of a service manager, SIGINT of a person at a terminal.
//!
//! Owns hearing them. Never: what follows. Invariant: none that comes after `listen` is lost, also between two waits; so
//! whoever says that something is ready listens before, or a signal that answers this would kill it where it stands.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

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

    /// Waits for the next one. Whether it was a person's: someone who sees what is said, and can ask again.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.hangup.recv() => false,
            _ = self.interrupt.recv() => true,
        }
    }
}
