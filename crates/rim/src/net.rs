//! Data connections as they begin: congestion control for a LAN before the connection exists, no Nagle delay,
//! word of a peer that lost its power.
//!
//! Owns: listening, connecting, addresses. This is the one place where a data connection is made. Never:
//! protocol, or its bytes (`stream`).

use crate::stream::{Incoming, Stream};
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpSocket, UnixStream};

pub use crate::stream::register;

/// Where a data listener is: `127.0.0.1:10809`, `[::1]:0`, `unix:/run/x.sock`. A path is from the root on:
/// another process may work in another directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::str::FromStr for Endpoint {
    type Err = BadEndpoint;
    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        if let Some(path) = text.strip_prefix("unix:") {
            return socket(path).map(Endpoint::Unix);
        }
        let port_alone = text.strip_prefix(':').map(|port| format!("127.0.0.1:{port}"));
        port_alone
            .as_deref()
            .unwrap_or(text)
            .parse()
            .map(Endpoint::Tcp)
            .map_err(|_| BadEndpoint::NoAddress(text.to_owned()))
    }
}

fn socket(path: &str) -> Result<PathBuf, BadEndpoint> {
    if path.is_empty() {
        return Err(BadEndpoint::NoPath);
    }
    if path.starts_with('@') {
        return Err(BadEndpoint::Abstract { path: path.to_owned() });
    }
    std::path::absolute(path)
        .map_err(|e| BadEndpoint::NoDirectory { path: path.to_owned(), why: e.to_string() })
}

/// A text that no data listener can be at. Its own text says what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadEndpoint {
    NoAddress(String),
    NoPath,
    /// A socket without a file, which nothing protects.
    Abstract {
        path: String,
    },
    /// A relative path in a directory that is gone.
    NoDirectory {
        path: String,
        why: String,
    },
}

impl fmt::Display for BadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadEndpoint::NoAddress(text) => write!(
                f,
                "'{text}' is not an address: use IP:PORT (port 0 picks a free one), :PORT or unix:PATH"
            ),
            BadEndpoint::NoPath => {
                f.write_str("'unix:' names no socket: write unix:PATH, such as unix:/run/case.sock")
            }
            BadEndpoint::Abstract { path } => write!(
                f,
                "'unix:{path}' would be an abstract socket, which every user of the machine can reach and which is not supported: \
                 write unix:PATH, such as unix:/run/case.sock (unix:./{path} is a file of that name)"
            ),
            BadEndpoint::NoDirectory { path, why } => {
                write!(f, "'unix:{path}' is a path from a directory that is gone: {why}")
            }
        }
    }
}

impl std::error::Error for BadEndpoint {}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Whether only this machine can reach it; anything else is told to the user, for it is in the clear.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Endpoint::Tcp(address) => match address.ip() {
                IpAddr::V4(ip) => ip.is_loopback(),
                IpAddr::V6(ip) => ip.is_loopback(),
            },
            Endpoint::Unix(_) => true,
        }
    }
}

/// A bound listener and where it is (the port that the kernel chose, for port 0).
#[derive(Debug)]
pub struct Listener {
    fd: AsyncFd<OwnedFd>,
    endpoint: Endpoint,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Endpoint::Unix(path) = &self.endpoint {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A bound address that listens already, before a runtime accepts from it.
#[derive(Debug)]
pub struct Bound {
    fd: OwnedFd,
    pub endpoint: Endpoint,
}

const BACKLOG: i32 = 1024;

/// Why nothing listens at an endpoint.
#[derive(Debug)]
pub struct ListenError {
    pub endpoint: Endpoint,
    pub error: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenError { endpoint, error } = self;
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                write!(f, "{endpoint} is in use: stop what listens there, or choose another address")
            }
            io::ErrorKind::AddrNotAvailable => write!(f, "{endpoint} is not an address of this machine"),
            _ => write!(f, "cannot listen on {endpoint}: {error}"),
        }
    }
}

impl std::error::Error for ListenError {}

impl Bound {
    /// # Errors
    /// As the kernel gives them.
    pub fn new(endpoint: &Endpoint) -> Result<Bound, ListenError> {
        let fault = |error| ListenError { endpoint: endpoint.clone(), error };
        let (fd, endpoint) = match endpoint {
            Endpoint::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(fault)?;
                tune_listener(&listener);
                listener.set_nonblocking(true).map_err(fault)?;
                rustix::net::listen(&listener, BACKLOG).map_err(|e| fault(e.into()))?;
                let address = listener.local_addr().map_err(fault)?;
                (OwnedFd::from(listener), Endpoint::Tcp(address))
            }
            Endpoint::Unix(path) => {
                remove_stale(path).map_err(fault)?;
                let listener = std::os::unix::net::UnixListener::bind(path).map_err(fault)?;
                listener.set_nonblocking(true).map_err(fault)?;
                (OwnedFd::from(listener), Endpoint::Unix(path.clone()))
            }
        };
        Ok(Bound { fd, endpoint })
    }
}

impl Listener {
    /// Binds and listens. Call it on the runtime that will accept.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub fn bind(endpoint: &Endpoint) -> Result<Listener, ListenError> {
        Listener::accept_from(Bound::new(endpoint)?)
    }

    /// Takes over on the runtime that will accept.
    ///
    /// # Errors
    /// The runtime takes no more sockets.
    pub fn accept_from(bound: Bound) -> Result<Listener, ListenError> {
        let Bound { fd, endpoint } = bound;
        match register(fd) {
            Ok(fd) => Ok(Listener { fd, endpoint }),
            Err(error) => Err(ListenError { endpoint, error }),
        }
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection, not yet registered with any runtime.
    ///
    /// # Errors
    /// Of accept: out of descriptors, for one. The caller waits a little and goes on.
    pub async fn accept(&self) -> io::Result<Incoming> {
        use rustix::net::SocketFlags;
        loop {
            let mut guard = self.fd.readable().await?;
            let accepted = guard.try_io(|fd| {
                Ok(rustix::net::accept_with(fd.get_ref(), SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
            });
            match accepted {
                Ok(Ok(fd)) => {
                    if matches!(self.endpoint, Endpoint::Tcp(_)) {
                        let _ = sockopt::set_tcp_nodelay(&fd, true);
                        notice_the_dead(&fd, Duration::from_secs(30), Duration::from_secs(10));
                    }
                    return Ok(Incoming::new(fd));
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }
}

/// A peer that lost its power says nothing more: without this a connection on which nothing is asked would
/// stay for ever.
fn notice_the_dead(fd: &OwnedFd, idle: Duration, between: Duration) {
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, idle);
    let _ = sockopt::set_tcp_keepintvl(fd, between);
    let _ = sockopt::set_tcp_keepcnt(fd, 3);
}

/// A socket file whose server is gone is removed; one that answers is left, and binding fails as in use.
fn remove_stale(path: &Path) -> io::Result<()> {
    // Connecting to a file that is no socket is refused, too, and that file may be evidence.
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Connects for data.
///
/// # Errors
/// As the kernel gives them.
pub async fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            choose_congestion_control(socket.as_fd());
            socket.set_nodelay(true)?;
            let fd = OwnedFd::from(socket.connect(*address).await?.into_std()?);
            // What a donor held is rebuilt also when nobody asks for any of it.
            notice_the_dead(&fd, Duration::from_secs(2), Duration::from_secs(1));
            Stream::plain(fd)
        }
        Endpoint::Unix(path) => Stream::plain(UnixStream::connect(path).await?.into_std()?.into()),
    }
}

/// To be called before `listen`: what is accepted inherits it, and setting it later does not undo BBR's
/// pacing.
pub fn tune_listener(socket: &impl AsFd) {
    choose_congestion_control(socket.as_fd());
}

/// BBR, some distributions' default, costs a factor of 1.6 to 3 on a LAN; cubic may need privilege, reno
/// never.
fn choose_congestion_control(socket: BorrowedFd<'_>) {
    if sockopt::tcp_congestion(socket).is_ok_and(|name| name == "bbr") {
        for name in ["cubic", "reno"] {
            if sockopt::set_tcp_congestion(socket, name).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let path = std::env::temp_dir().join(format!("cheetah-net-{}", std::process::id()));
        std::fs::write(&path, b"evidence").expect("a file");
        assert!(Bound::new(&Endpoint::Unix(path.clone())).is_err());
        assert_eq!(std::fs::read(&path).expect("the file is there"), b"evidence");
        std::fs::remove_file(&path).expect("the file is there");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
        let bound = Bound::new(&Endpoint::Unix(path.clone())).expect("its server is gone");
        let in_use = Bound::new(&Endpoint::Unix(path)).expect_err("its server lives");
        assert!(in_use.to_string().contains("in use"), "{in_use}");
        drop(bound);
    }

    #[test]
    fn endpoints_read_what_they_write() {
        for text in ["127.0.0.1:10809", "[::1]:0", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Endpoint>().map(|e| e.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(":7".parse(), "127.0.0.1:7".parse::<Endpoint>());
        assert!("localhost".parse::<Endpoint>().is_err());
        let here = std::env::current_dir().expect("a directory").join("x.sock");
        assert_eq!("unix:x.sock".parse(), Ok(Endpoint::Unix(here.clone())));
        assert_eq!("unix:./x.sock".parse(), Ok(Endpoint::Unix(here)));
        let said = |text: &str| text.parse::<Endpoint>().expect_err("refused").to_string();
        assert!(said("unix:").contains("unix:PATH"));
        assert!(said("unix:@x").contains("abstract") && said("unix:@x").contains("unix:./@x"));
        assert!("0.0.0.0:1".parse::<Endpoint>().is_ok_and(|e| !e.is_local()));
    }
}
