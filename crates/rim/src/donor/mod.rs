//! The data server of a donor: connections of NBD clients, spread over a few threads, onto one arena.
//!
//! Owns: the listener, the threads, the places for connections. Never: which extents belong to whom, or when
//! a client has to go; the control loop says so through the `gate`.
//! Invariant: a thread never waits for anything but its sockets and the gate, so one slow client slows
//! nobody. Called by `cheetah donate` and `cheetah up`. Parts: `connection` (requests), `sending` (answers),
//! `waiting` (what a disk has to do first), `gate`.

mod connection;
mod gate;
mod sending;
mod waiting;

pub use gate::Gate;
use gate::{AccessNow, Pass};

use crate::accept::{self, Exports};
use crate::arena::Arena;
use crate::descriptors;
use crate::disk::Disk;
use crate::net::{Bound, Endpoint, Listener};
use crate::seating::{Place, Seating, places_of_data};
use crate::stream::{Incoming, Transport};
use cheetah_core::donor::OpenError;
use cheetah_core::limits::{DATA_CONNECTION_DESCRIPTORS, DESCRIPTORS_SPARE, DONOR_CONNECTIONS_MIN};
use cheetah_core::map::MemberId;
use cheetah_core::members::Member;
use cheetah_nbd::server::{ExportError, Purpose};
use cheetah_nbd::{ExportInfo, ListEntry};
use cheetah_terms::donor::{export as announced, greeting, refusal};
use connection::{Connection, End};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Connections a donor serves at once, as far as it has descriptors; beyond it those go that were not let in
/// yet.
const CONNECTIONS_MAX: usize = 8192;
const THREADS_MAX: usize = 4;

/// What a donor lends.
#[derive(Clone, Debug)]
pub enum Lent {
    Memory(Arc<Arena>),
    Disk(Arc<Disk>),
}

impl From<&Arc<Arena>> for Lent {
    fn from(arena: &Arc<Arena>) -> Lent {
        Lent::Memory(Arc::clone(arena))
    }
}

impl From<&Arc<Disk>> for Lent {
    fn from(disk: &Arc<Disk>) -> Lent {
        Lent::Disk(Arc::clone(disk))
    }
}

impl Lent {
    fn arena(&self) -> &Arena {
        match self {
            Lent::Memory(arena) => arena,
            Lent::Disk(disk) => disk.arena(),
        }
    }

    fn disk(&self) -> Option<&Disk> {
        match self {
            Lent::Memory(_) => None,
            Lent::Disk(disk) => Some(disk),
        }
    }
}

#[derive(Debug)]
pub struct DonorServer {
    endpoint: Endpoint,
    connections: Arc<AtomicU32>,
}

impl DonorServer {
    /// Serves until the process ends.
    ///
    /// # Errors
    /// The kernel gives no threads, or too few descriptors for a donor to be of use.
    pub fn start(
        bound: Bound,
        lent: impl Into<Lent>,
        gate: &Gate,
        transport: &Transport,
    ) -> Result<DonorServer, StartError> {
        let lent = lent.into();
        let seating = seating(descriptors::raise())?;
        let connections = Arc::new(AtomicU32::new(0));
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let mut workers = Vec::new();
        for index in 0..threads {
            workers.push(worker(index, lent.clone(), gate.clone(), transport.clone(), connections.clone())?);
        }
        let endpoint = bound.endpoint.clone();
        let count = connections.clone();
        let runtime = runtime()?;
        let accept = move || {
            runtime.block_on(async move {
                match Listener::accept_from(bound) {
                    Ok(listener) => accept_all(&listener, &workers, &seating, &count).await,
                    Err(error) => tracing::error!(%error, "this donor accepts nobody"),
                }
            });
        };
        std::thread::Builder::new().name("accept".into()).spawn(accept).map_err(StartError::Thread)?;
        Ok(DonorServer { endpoint, connections })
    }

    /// Where it listens, with the port that the kernel chose.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    #[must_use]
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Why a donor cannot serve; the text says what to do.
#[derive(Debug)]
pub enum StartError {
    /// So few files and sockets may be open that it would serve hardly anybody.
    Descriptors { allowed: u64 },
    /// The kernel gives no thread, or nothing for one to wait on.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Descriptors { allowed } => {
                let needs = DESCRIPTORS_SPARE + DONOR_CONNECTIONS_MIN * DATA_CONNECTION_DESCRIPTORS;
                write!(
                    f,
                    "this process may have {allowed} files and sockets open, and a donor needs {needs} for its first \
                     {DONOR_CONNECTIONS_MIN} clients: raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of its service)"
                )
            }
            StartError::Thread(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)
}

/// So many connections as a process that may have `allowed` descriptors can serve.
fn seating(allowed: u64) -> Result<Seating, StartError> {
    let places = places_of_data(allowed);
    if places < DONOR_CONNECTIONS_MIN {
        return Err(StartError::Descriptors { allowed });
    }
    let places = usize::try_from(places).unwrap_or(usize::MAX).min(CONNECTIONS_MAX);
    // One machine may attach many volumes, and half of the places leave room for others.
    Ok(Seating::new(places, places / 2))
}

async fn accept_all(
    listener: &Listener,
    workers: &[mpsc::UnboundedSender<(Incoming, Place)>],
    seating: &Seating,
    connections: &AtomicU32,
) {
    for next in (0..workers.len()).cycle() {
        let incoming = loop {
            match listener.accept().await {
                Ok(incoming) => break incoming,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        let Some(place) = seating.take(incoming.peer_ip()) else {
            tracing::debug!("too many connections, one more was closed");
            continue;
        };
        connections.fetch_add(1, Ordering::Relaxed);
        if workers[next].send((incoming, place)).is_err() {
            return;
        }
    }
}

/// A thread that serves the connections it is handed.
fn worker(
    index: usize,
    lent: Lent,
    gate: Gate,
    transport: Transport,
    connections: Arc<AtomicU32>,
) -> Result<mpsc::UnboundedSender<(Incoming, Place)>, StartError> {
    let (hand, mut handed) = mpsc::unbounded_channel::<(Incoming, Place)>();
    let runtime = runtime()?;
    let serve = move || {
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            while let Some((incoming, place)) = handed.recv().await {
                let (lent, gate, connections) = (lent.clone(), gate.clone(), connections.clone());
                let transport = transport.clone();
                tokio::task::spawn_local(async move {
                    let served = tokio::select! {
                        biased;
                        // Who is let in is at work, and stays.
                        () = place.wanted() => Err(Ended::Crowded),
                        served = client(incoming, &transport, &lent, gate, &place) => served,
                    };
                    if let Err(error) = served {
                        tracing::debug!(%error, "connection ended");
                    }
                    connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    };
    std::thread::Builder::new().name(format!("data-{index}")).spawn(serve).map_err(StartError::Thread)?;
    Ok(hand)
}

/// Why a connection ended that its client had not closed.
#[derive(Debug)]
enum Ended {
    /// Its place was needed.
    Crowded,
    /// The control loop said so.
    Dropped,
    /// It could not be served at all.
    Socket(io::Error),
    /// The peer broke the protocol, or the socket broke.
    Fault(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Crowded => f.write_str("its place was needed before it was let in"),
            Ended::Dropped => f.write_str("ended by the control loop"),
            Ended::Socket(error) => error.fmt(f),
            Ended::Fault(why) => f.write_str(why),
        }
    }
}

/// One client from its first byte to its last.
async fn client(
    incoming: Incoming,
    transport: &Transport,
    lent: &Lent,
    gate: Gate,
    place: &Place,
) -> Result<(), Ended> {
    let plain = incoming.into_stream().map_err(Ended::Socket)?;
    let access = gate.access();
    let mut door = Door { gate, access: access.clone(), member: None, entered: None };
    let Some(accepted) = accept::handshake(plain, transport, &mut door).await else { return Ok(()) };
    // Who only greeted has nothing to ask for.
    let Some(pass) = door.entered else { return Ok(()) };
    place.works();
    let connection = Connection::new(&accepted.stream, lent, accepted.session, pass.grant, accepted.early);
    tokio::select! {
        biased;
        () = Pass::ended(pass.watch()) => Err(Ended::Dropped),
        end = connection.serve(|| access.get()) => match end {
            End::Bye => Ok(()),
            End::Fault(why) => Err(Ended::Fault(why)),
        },
    }
}

/// The exports as one client sees them.
struct Door {
    gate: Gate,
    access: AccessNow,
    member: Option<Member>,
    entered: Option<Pass>,
}

impl Door {
    fn member_id(&self) -> Option<MemberId> {
        self.member.map(|member| member.id)
    }
}

impl Exports for Door {
    const IS_DONOR: bool = true;

    fn meets(&mut self, member: Member) -> bool {
        self.member = Some(member);
        member.role.reaches_data()
    }

    async fn lookup(&mut self, export: &str, purpose: Purpose) -> Result<ExportInfo, ExportError> {
        if let Some(greeted) = self.access.get().greeted(export) {
            greeted.map_err(refusal)?;
            return Ok(greeting());
        }
        let grant = if purpose == Purpose::Go {
            let pass = self.gate.open(export, self.member_id()).await.map_err(refusal)?;
            self.entered.insert(pass).grant
        } else {
            self.access.get().open(export, self.member_id()).map_err(refusal)?
        };
        Ok(announced(&grant))
    }

    fn list(&self) -> Result<Vec<ListEntry>, ExportError> {
        let entry = |(name, description)| ListEntry { name, description };
        let exports = self.access.get().exports();
        let exports = exports.ok_or_else(|| ExportError::Policy(OpenError::Malformed.to_string()))?;
        Ok(exports.into_iter().map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_donor_with_few_descriptors_says_what_it_needs() {
        assert!(seating(1024).is_ok() && seating(u64::MAX).is_ok());
        let said = seating(24).expect_err("of no use to anybody").to_string();
        assert!(said.contains("24 files") && said.contains("needs 160") && said.contains("ulimit"), "{said}");
    }
}
