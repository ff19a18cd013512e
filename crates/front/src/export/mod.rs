//! The volume as an NBD export, for clients that others wrote, over TCP and Unix sockets.
//!
//! Owns: the listener, how many clients there may be, and the end of it all. Never: encrypts by itself;
//! whoever lets others than this machine connect tells the user that traffic is in the clear
//! (`Exported::is_local`). Invariant: listener and connections live on the volume's data thread, so a request
//! costs no wake-up of another thread; none of them may block or hold it for long. Called by `cheetah attach
//! --front export` and `up`. Parts: `handshake`, `connection`, `flight` (requests with the volume), `budget`
//! (how much they hold), `inbuf`, `outbox`, `errno`. Tests: in each; with real clients, end to end.

mod budget;
mod connection;
mod errno;
mod flight;
mod handshake;
mod inbuf;
mod outbox;

pub use cheetah_rim::net::Endpoint;

use crate::Shared;
use crate::changes::Changes;
use budget::Budget;
use cheetah_nbd::uri::{self, Tls, Uri};
use cheetah_rim::accept::{self, Accepted};
use cheetah_rim::net::{Bound, ListenError, Listener};
use cheetah_rim::seating::{Place, Seating};
use cheetah_rim::stream::{Incoming, Transport};
use cheetah_rim::volume::VolumeHandle;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Clients at once. One more has the place of one that has not come in yet, or is closed unheard.
const CONNECTIONS_MAX: usize = 4096;
/// After accept failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no export; the text says what to do.
#[derive(Debug)]
pub enum ExportError {
    Listen(ListenError),
    /// Others could not be kept from its socket.
    Unprotected {
        path: PathBuf,
        error: io::Error,
    },
    /// A file that is no socket is in the place of one.
    NotSocket {
        path: PathBuf,
    },
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Listen(error) => error.fmt(f),
            ExportError::Unprotected { path, error } => write!(f, "{}: {error}", path.display()),
            ExportError::NotSocket { path } => {
                write!(f, "{} exists and is not a socket: name another path for the export", path.display())
            }
        }
    }
}

impl std::error::Error for ExportError {}

/// A served volume. Dropping it stops the listener and ends the connections when their requests are answered.
#[derive(Debug)]
pub struct Exported {
    name: String,
    is_tls: bool,
    endpoint: Endpoint,
    clients: Seating,
    stop: watch::Sender<bool>,
}

/// What every connection needs.
#[derive(Clone, Debug)]
struct Served {
    handle: VolumeHandle,
    stop: watch::Receiver<bool>,
    budget: Arc<Budget>,
    changes: Changes,
    transport: Transport,
}

/// Serves the volume at `endpoint`, under its name and as the default export.
///
/// # Errors
/// The address cannot be listened on, with what to do.
pub fn serve(volume: &Shared, endpoint: &Endpoint, transport: Transport) -> Result<Exported, ExportError> {
    let Shared { handle, changes } = volume;
    let bound = bind(endpoint)?;
    let endpoint = bound.endpoint.clone();
    let is_tls = transport.tls().is_some();
    let (stop, stopped) = watch::channel(false);
    let clients = Seating::of_data(CONNECTIONS_MAX);
    let served = Served {
        handle: handle.clone(),
        stop: stopped,
        budget: Arc::default(),
        changes: changes.clone(),
        transport,
    };
    let counted = clients.clone();
    handle.spawn_local(Box::new(move || {
        Box::pin(async move {
            match Listener::accept_from(bound) {
                Ok(listener) => listen(served, counted, listener).await,
                Err(why) => tracing::error!("the export is not served: {why}"),
            }
        })
    }));
    Ok(Exported { name: handle.name().to_owned(), is_tls, endpoint, clients, stop })
}

fn bind(endpoint: &Endpoint) -> Result<Bound, ExportError> {
    let Endpoint::Unix(path) = endpoint else {
        return Bound::new(endpoint).map_err(ExportError::Listen);
    };
    // The socket of a server that is gone is replaced; any other file may be evidence.
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(ExportError::NotSocket { path: path.clone() });
    }
    let bound = Bound::new(endpoint).map_err(ExportError::Listen)?;
    // Whoever may write to the socket may read the evidence.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| ExportError::Unprotected { path: path.clone(), error })?;
    Ok(bound)
}

/// The listener goes first, with its socket's file: who waits for the end has `served` to wait for.
async fn listen(served: Served, clients: Seating, listener: Listener) {
    let mut stop = served.stop.clone();
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(incoming) => admit(incoming, &served, &clients),
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn admit(incoming: Incoming, served: &Served, clients: &Seating) {
    let Some(place) = clients.take(incoming.peer_ip()) else {
        tracing::warn!("{} clients are connected; another one was turned away", clients.taken());
        return;
    };
    let connection_of = served.clone();
    served.handle.spawn_local(Box::new(move || {
        Box::pin(async move {
            converse(incoming, connection_of.clone(), &place).await;
            drop(place);
            // Last: `stop` waits for it, and who waited finds no client counted.
            drop(connection_of);
        })
    }));
}

/// One client, from its first byte to its last. Who has not come in yet makes room for who comes next.
async fn converse(incoming: Incoming, served: Served, place: &Place) {
    let mut stop = served.stop.clone();
    let plain = match incoming.into_stream() {
        Ok(plain) => plain,
        Err(error) => return tracing::warn!(%error, "a client could not be served"),
    };
    let mut export = handshake::One(&served.handle);
    let accepted = tokio::select! {
        _ = stop.wait_for(|stopped| *stopped) => return,
        () = place.wanted() => return,
        accepted = accept::handshake(plain, &served.transport, &mut export) => accepted,
    };
    let Some(Accepted { stream, session, early, guest }) = accepted else { return };
    place.works();
    let serving = connection::serve(stream, session, &early, served);
    match guest {
        Some(mut guest) => tokio::select! {
            () = serving => {}
            () = guest.is_expelled() => tracing::warn!("a client was revoked while it was connected, and is out"),
        },
        None => serving.await,
    }
}

impl Exported {
    /// Where it is, with the port that the kernel chose.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// As NBD clients take it: `nbd://127.0.0.1:10809/NAME`, `nbd+unix:///NAME?socket=/path`, and `nbds://`
    /// where it is for members alone.
    #[must_use]
    pub fn uri(&self) -> String {
        uri(&self.endpoint, &self.name, self.is_tls)
    }

    /// Whether only this machine can connect; the user is told of anything else.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.endpoint.is_local()
    }

    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.taken()
    }

    /// Ends listening and the connections, each when its requests are answered, and waits for that at most
    /// `patience`. Returns whether all were done by then.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.stop.send_replace(true);
        tokio::time::timeout(patience, self.stop.closed()).await.is_ok()
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn uri(endpoint: &Endpoint, export: &str, is_tls: bool) -> String {
    let transport = match endpoint {
        Endpoint::Tcp(address) => {
            let address = reachable(*address);
            uri::Transport::Tcp { host: address.ip().to_string(), port: address.port() }
        }
        Endpoint::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            uri::Transport::Unix { socket: path.to_string_lossy().into_owned() }
        }
    };
    Uri { transport, export: export.to_owned(), tls: is_tls.then(Tls::default) }.to_string()
}

/// Every address at once is none to connect to; this machine's is one of them.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_what_nbd_clients_take() {
        let uri = |endpoint: &str| uri(&endpoint.parse().unwrap(), "scratch", false);
        assert_eq!(uri("127.0.0.1:10810"), "nbd://127.0.0.1:10810/scratch");
        assert_eq!(uri("0.0.0.0:10810"), "nbd://127.0.0.1:10810/scratch");
        assert_eq!(uri("[::]:10810"), "nbd://[::1]:10810/scratch");
        assert_eq!(uri("unix:/run/x.sock"), "nbd+unix:///scratch?socket=/run/x.sock");
    }
}
