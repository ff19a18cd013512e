//! The serving end of a connection before its first request: the handshake, driven over a socket.
//!
//! Owns: one deadline and the bytes between socket and state machine. Never: which exports there are; it asks.
//! Called by `donor` and by the export front end.

use crate::net;
use cheetah_nbd::server::{ExportError, Handshake, Purpose, Step};
use cheetah_nbd::{ExportInfo, ListEntry, Negotiated};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// A client that has not finished its handshake by then is closed.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// What a server says of its exports.
pub trait Exports {
    /// Whether `cheetah:dirty` is offered.
    const DIRTY: bool = false;

    /// The export of this name, or why not. For `Purpose::Go` the client is about to use it.
    fn lookup(
        &mut self,
        export: &str,
        purpose: Purpose,
    ) -> impl Future<Output = Result<ExportInfo, ExportError>>;
    /// All that may be opened, or why nobody is told.
    fn list(&self) -> Result<Vec<ListEntry>, ExportError>;
}

/// What was agreed, and the bytes that came behind it.
#[derive(Debug)]
pub struct Accepted {
    pub session: Negotiated,
    pub early: Vec<u8>,
}

/// Goes through the handshake. `None`: the client went, was refused or broke the protocol, and has been told
/// what the protocol has words for.
pub async fn handshake(fd: &AsyncFd<OwnedFd>, exports: &mut impl Exports) -> Option<Accepted> {
    tokio::time::timeout(HANDSHAKE_DEADLINE, drive(fd, exports)).await.ok()?.ok()?
}

async fn drive<E: Exports>(fd: &AsyncFd<OwnedFd>, exports: &mut E) -> io::Result<Option<Accepted>> {
    let mut handshake = Handshake::new();
    if E::DIRTY {
        handshake = handshake.with_dirty();
    }
    let (mut input, mut output) = (Vec::new(), Vec::new());
    loop {
        handshake.take_output(&mut output);
        write_all(fd, &mut output).await?;
        match handshake.poll() {
            Step::Lookup { export, purpose } => {
                let answer = exports.lookup(&export, purpose).await;
                handshake.answer_lookup(answer);
            }
            Step::List => handshake.answer_list(exports.list().as_deref()),
            Step::Ready(session) => {
                net::suit_distance(fd.get_ref());
                return Ok(Some(Accepted { session, early: input }));
            }
            Step::Close(reason) => {
                tracing::debug!(?reason, "handshake ended");
                return Ok(None);
            }
            Step::NeedInput => {
                if input.is_empty() {
                    read_some(fd, &mut input).await?;
                }
                match handshake.input(&input) {
                    Ok(used) => drop(input.drain(..used)),
                    Err(violation) => {
                        tracing::debug!(%violation, "handshake broken");
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// Sends all of `output` and empties it.
pub(crate) async fn write_all(fd: &AsyncFd<OwnedFd>, output: &mut Vec<u8>) -> io::Result<()> {
    while !output.is_empty() {
        let mut guard = fd.writable().await?;
        if let Ok(sent) = guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), output)?)) {
            output.drain(..sent?);
        }
    }
    Ok(())
}

/// Appends what is there; waits until there is something.
pub(crate) async fn read_some(fd: &AsyncFd<OwnedFd>, input: &mut Vec<u8>) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let mut guard = fd.readable().await?;
        if let Ok(got) = guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut bytes)?)) {
            let got = got?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            input.extend_from_slice(&bytes[..got]);
            // Behind a handshake there may be payload.
            bytes.fill(0);
            std::hint::black_box(&bytes);
            return Ok(());
        }
    }
}
