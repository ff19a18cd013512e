//! The serving end of a connection before its first request: the handshake, driven over a stream.
//!
//! Owns: one deadline, and the bytes between stream and state machine. Never: which exports there are; it
//! asks. Called by `donor` and by the export front end.

use crate::members::Guest;
use crate::stream::{Stream, Transport};
use cheetah_core::members::Member;
use cheetah_nbd::server::{ExportError, Handshake, Purpose, Step};
use cheetah_nbd::{ExportInfo, ListEntry, Negotiated};
use std::io;
use std::time::Duration;

/// A client that has not finished its handshake by then is closed.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// What a server says of its exports.
pub trait Exports {
    /// Whether `cheetah:dirty` is offered.
    const IS_DONOR: bool = false;

    /// Who asks from here on, as its certificate says; false: it gets nothing here. Not called in the clear.
    fn meets(&mut self, member: Member) -> bool;

    /// The export of this name, or why not. For `Purpose::Go` the client is about to use it.
    fn lookup(
        &mut self,
        export: &str,
        purpose: Purpose,
    ) -> impl Future<Output = Result<ExportInfo, ExportError>>;
    /// All that may be opened, or why nobody is told.
    fn list(&self) -> Result<Vec<ListEntry>, ExportError>;
}

/// What was agreed, the stream that goes on from there, and the bytes that came behind it.
#[derive(Debug)]
pub struct Accepted {
    pub stream: Stream,
    pub session: Negotiated,
    pub early: Vec<u8>,
    /// Of a member's connection, which ends when that is none any more.
    pub guest: Option<Guest>,
}

/// Goes through the handshake. `None`: the client went, was refused or broke the protocol, and has been told
/// what the protocol has words for.
pub async fn handshake(
    stream: Stream,
    transport: &Transport,
    exports: &mut impl Exports,
) -> Option<Accepted> {
    tokio::time::timeout(HANDSHAKE_DEADLINE, drive(stream, transport, exports)).await.ok()?.ok()?
}

async fn drive<E: Exports>(
    stream: Stream,
    transport: &Transport,
    exports: &mut E,
) -> io::Result<Option<Accepted>> {
    let mut stream = transport.accepted(stream).await?;
    let mut handshake = Handshake::new();
    if E::IS_DONOR {
        handshake = handshake.of_donor();
    }
    if transport.tls().is_some() {
        handshake = handshake.behind_tls();
    }
    let (mut input, mut output, mut guest) = (Vec::new(), Vec::new(), None);
    loop {
        handshake.take_output(&mut output);
        stream.send_all(&mut output).await?;
        match handshake.poll() {
            Step::Lookup { export, purpose } => {
                let answer = exports.lookup(&export, purpose).await;
                handshake.answer_lookup(answer);
            }
            Step::StartTls => {
                let Some(tls) = transport.tls().filter(|_| input.is_empty()) else { return Ok(None) };
                stream = tls.accept(stream).await.inspect_err(|why| tracing::debug!(%why, "no TLS"))?;
                let member = stream.member().filter(|member| exports.meets(*member));
                guest = member.and_then(|member| tls.guests().enter(member.id));
                if guest.is_none() {
                    tracing::debug!(member = ?stream.member(), "not for a member of this role, or for one that was revoked");
                    return Ok(None);
                }
                handshake.tls_started();
            }
            Step::List => handshake.answer_list(exports.list().as_deref()),
            Step::Ready(session) => {
                stream.suit_distance();
                return Ok(Some(Accepted { stream, session, early: input, guest }));
            }
            Step::Close(reason) => {
                tracing::debug!(?reason, "handshake ended");
                return Ok(None);
            }
            Step::NeedInput => {
                if input.is_empty() {
                    stream.receive_some(&mut input).await?;
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
