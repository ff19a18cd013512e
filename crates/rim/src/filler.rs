//! The server of who fills a volume: readers that meet a block which is not here yet ask for it.
//!
//! Owns the listener, its thread, and the connections. Never: the source, or where a block goes (`Brings`
//! has it brought to the donors); and no byte of the volume leaves here, so who asks learns nothing but that
//! it is there. Invariant: each CACHE is answered once, in whatever order; a client has at most
//! `REQUESTS_IN_FLIGHT_MAX` open. Called by `cheetah open`. Tests: `lab/tests/open.rs`.

use crate::accept::{self, Exports};
use crate::control::random;
use crate::net::{Bound, Listener};
use crate::seating::{Place, Seating};
use crate::stream::{Incoming, Stream, Transport};
use cheetah_core::limits::REQUESTS_IN_FLIGHT_MAX;
use cheetah_core::map::Filler;
use cheetah_core::members::Member;
use cheetah_core::volume::FetchError;
use cheetah_nbd::server::outbox::Piece;
use cheetah_nbd::server::transmission::{Step, Transmission};
use cheetah_nbd::server::{ExportError, Outbox, Purpose};
use cheetah_nbd::{Command, Errno, ExportInfo, ListEntry, RequestHeader, TransmissionFlags};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Readers at once: one for each attachment, and some that come anew.
const CONNECTIONS_MAX: usize = 2048;

/// What is told when blocks are with the donors, or why they are not.
pub type Done = Box<dyn FnOnce(Result<(), FetchError>) + Send>;

/// Who brings blocks of a volume to its donors.
pub trait Brings: Send + Sync {
    /// Never blocks. `done` is told once.
    fn bring(&self, offset: u64, len: u32, done: Done);
}

/// What is served.
#[derive(Clone)]
struct Served {
    export: Arc<str>,
    size: u64,
    brings: Arc<dyn Brings>,
    transport: Transport,
}

/// Serves from now on, until the process ends.
///
/// # Errors
/// The kernel gives no thread, or no random numbers.
pub fn serve(bound: Bound, size: u64, brings: Arc<dyn Brings>, transport: Transport) -> io::Result<Filler> {
    let address = bound.endpoint.to_string();
    // Nobody guesses it, and the coordinator tells it only with a lease.
    let export = format!("fill.{:016x}{:016x}", random()?, random()?);
    let served = Served { export: export.as_str().into(), size, brings, transport };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let accept = move || {
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            match Listener::accept_from(bound) {
                Ok(listener) => accept_all(&listener, served).await,
                Err(error) => tracing::error!(%error, "readers are not heard"),
            }
        });
    };
    std::thread::Builder::new().name("readers".into()).spawn(accept)?;
    Ok(Filler { address, export })
}

async fn accept_all(listener: &Listener, served: Served) {
    let seating = Seating::of_data(CONNECTIONS_MAX);
    loop {
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(place) = seating.take(incoming.peer_ip()) else { continue };
        let served = served.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = reader(incoming, served, &place).await {
                tracing::debug!(%error, "a reader's connection ended");
            }
        });
    }
}

/// One reader from its first byte to its last.
async fn reader(incoming: Incoming, served: Served, place: &Place) -> io::Result<()> {
    let mut door = Door { served: served.clone() };
    let accepted = tokio::select! {
        accepted = accept::handshake(incoming.into_stream()?, &served.transport, &mut door) => accepted,
        () = place.wanted() => return Ok(()),
    };
    let Some(accepted) = accepted else { return Ok(()) };
    place.works();
    let (told, mut answers) = mpsc::unbounded_channel();
    let reader = Reader { outbox: Outbox::of(&accepted.session), open: 0, told, brings: served.brings };
    let (requests, stream) = (Transmission::new(accepted.session, u32::MAX), accepted.stream);
    reader.serve(requests, stream, accepted.early, &mut answers).await
}

/// A request's cookie, and what came of it.
type Answer = (u64, Result<(), FetchError>);

struct Reader {
    outbox: Outbox<()>,
    /// Questions that are not answered yet.
    open: usize,
    told: mpsc::UnboundedSender<Answer>,
    brings: Arc<dyn Brings>,
}

impl Reader {
    async fn serve(
        mut self,
        mut requests: Transmission,
        mut stream: Stream,
        mut input: Vec<u8>,
        answers: &mut mpsc::UnboundedReceiver<Answer>,
    ) -> io::Result<()> {
        loop {
            let mut rest = &input[..];
            while self.open < REQUESTS_IN_FLIGHT_MAX {
                match requests.next(&mut rest).map_err(|violation| io::Error::other(violation.to_string()))? {
                    Some(Step::Request { header, verdict }) => self.request(&header, verdict),
                    Some(Step::Payload { .. } | Step::Whole(_)) => {}
                    Some(Step::End) => return Ok(()),
                    None => break,
                }
            }
            let used = input.len() - rest.len();
            input.drain(..used);
            let mut output = self.answers();
            stream.send_all(&mut output).await?;
            let has_room = self.open < REQUESTS_IN_FLIGHT_MAX;
            tokio::select! {
                received = stream.receive_some(&mut input), if has_room => received?,
                answer = answers.recv() => {
                    if let Some((cookie, result)) = answer {
                        self.answered(cookie, result);
                    }
                }
            }
        }
    }

    fn request(&mut self, header: &RequestHeader, verdict: Result<Command, Errno>) {
        let RequestHeader { cookie, offset, length, .. } = *header;
        match verdict {
            Ok(Command::Cache) if length > 0 => {
                self.open += 1;
                let told = self.told.clone();
                self.brings.bring(
                    offset,
                    length,
                    Box::new(move |result| {
                        // Who asked may have gone.
                        let _ = told.send((cookie, result));
                    }),
                );
            }
            Ok(Command::Cache) => self.outbox.done(cookie),
            // Its bytes are the donors' to give.
            Ok(_) => self.outbox.error(cookie, Errno::Perm, "blocks are read from the donors"),
            Err(errno) => self.outbox.error(cookie, errno, ""),
        }
    }

    fn answered(&mut self, cookie: u64, result: Result<(), FetchError>) {
        self.open -= 1;
        match result {
            Ok(()) => self.outbox.done(cookie),
            Err(FetchError::Unreadable) => {
                self.outbox.error(cookie, Errno::Io, "the source cannot be read there")
            }
            Err(FetchError::Away) => self.outbox.error(cookie, Errno::Shutdown, "not now"),
        }
    }

    /// What is to be sent: heads alone.
    fn answers(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.outbox.pieces() {
            if let Piece::Head(head) = piece {
                bytes.extend_from_slice(head);
            }
        }
        let _ = self.outbox.sent(bytes.len() as u64, drop);
        bytes
    }
}

struct Door {
    served: Served,
}

impl Exports for Door {
    fn meets(&mut self, member: Member) -> bool {
        member.role.reaches_data()
    }

    async fn lookup(&mut self, export: &str, _purpose: Purpose) -> Result<ExportInfo, ExportError> {
        let Served { export: own, size, .. } = &self.served;
        if export != &**own {
            return Err(ExportError::Unknown("there is no such volume here".to_owned()));
        }
        let flags = [TransmissionFlags::SEND_CACHE, TransmissionFlags::CAN_MULTI_CONN];
        let flags = flags.into_iter().fold(TransmissionFlags::READ_ONLY, TransmissionFlags::with);
        Ok(ExportInfo::new(*size, flags))
    }

    fn list(&self) -> Result<Vec<ListEntry>, ExportError> {
        Err(ExportError::Policy("volumes are listed by their coordinator".to_owned()))
    }
}
