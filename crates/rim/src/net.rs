//! Sockets as the data path wants them: congestion control for a LAN before the connection exists, and for a long way when that
//! is known, no Nagle delay, and vectored reads and writes on raw addresses (an arena is shared with other connections, so no Rust
//! reference to its bytes may exist while the kernel fills them).
//!
//! Owns: listening, connecting, addresses. This is the one place where a data connection is made: TLS will
//! wrap it here. Never: protocol. One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use cheetah_core::limits::BBR_NS;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpSocket, UnixStream};

/// After BBR was refused, until it is tried again.
const BBR_AGAIN: Duration = Duration::from_secs(600);

/// Where a data listener is: `127.0.0.1:10809`, `[::1]:0`, `unix:/run/x.sock`. A path is from the root on: another process may
/// work in another directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::str::FromStr for Endpoint {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return socket(path).map(Endpoint::Unix);
        }
        let port_alone = text.strip_prefix(':').map(|port| format!("127.0.0.1:{port}"));
        port_alone.as_deref().unwrap_or(text).parse().map(Endpoint::Tcp).map_err(|_| {
            format!("'{text}' is not an address: use IP:PORT (port 0 picks a free one), :PORT or unix:PATH")
        })
    }
}

fn socket(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err("'unix:' names no socket: write unix:PATH, such as unix:/run/case.sock".to_owned());
    }
    if path.starts_with('@') {
        return Err(format!(
            "'unix:{path}' would be an abstract socket, which every user of the machine can reach and which is not supported: \
             write unix:PATH, such as unix:/run/case.sock (unix:./{path} is a file of that name)"
        ));
    }
    std::path::absolute(path)
        .map_err(|e| format!("'unix:{path}' is a path from a directory that is gone: {e}"))
}

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

impl Bound {
    /// # Errors
    /// A sentence for the user.
    pub fn new(endpoint: &Endpoint) -> Result<Bound, String> {
        let fault = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => {
                format!("{endpoint} is in use: stop what listens there, or choose another address")
            }
            io::ErrorKind::AddrNotAvailable => format!("{endpoint} is not an address of this machine"),
            _ => format!("cannot listen on {endpoint}: {e}"),
        };
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
    /// A sentence for the user.
    pub fn bind(endpoint: &Endpoint) -> Result<Listener, String> {
        Listener::accept_from(Bound::new(endpoint)?)
    }

    /// Takes over on the runtime that will accept.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn accept_from(bound: Bound) -> Result<Listener, String> {
        let Bound { fd, endpoint } = bound;
        let fd = register(fd).map_err(|e| format!("cannot listen on {endpoint}: {e}"))?;
        Ok(Listener { fd, endpoint })
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection, not yet registered with any runtime.
    ///
    /// # Errors
    /// Of accept: out of descriptors, for one. The caller waits a little and goes on.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
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
                    return Ok(fd);
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }
}

/// A peer that lost its power says nothing more: without this a connection on which nothing is asked would stay for ever.
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
pub async fn connect(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            choose_congestion_control(socket.as_fd());
            socket.set_nodelay(true)?;
            let fd = OwnedFd::from(socket.connect(*address).await?.into_std()?);
            // What a donor held is rebuilt also when nobody asks for any of it.
            notice_the_dead(&fd, Duration::from_secs(2), Duration::from_secs(1));
            Ok(fd)
        }
        Endpoint::Unix(path) => Ok(OwnedFd::from(UnixStream::connect(path).await?.into_std()?)),
    }
}

/// Registers a socket, or a device that can be waited for, with the runtime of the calling task.
///
/// # Errors
/// The runtime is out of resources.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open and the same until it is dropped, and nothing here takes it out.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// To be called before `listen`: what is accepted inherits it, and setting it later does not undo BBR's pacing.
pub fn tune_listener(socket: &impl AsFd) {
    choose_congestion_control(socket.as_fd());
}

/// BBR, some distributions' default, costs a factor of 1.6 to 3 on a LAN; cubic may need privilege, reno never.
fn choose_congestion_control(socket: BorrowedFd<'_>) {
    if sockopt::tcp_congestion(socket).is_ok_and(|name| name == "bbr") {
        for name in ["cubic", "reno"] {
            if sockopt::set_tcp_congestion(socket, name).is_ok() {
                return;
            }
        }
    }
}

/// Over a long way it is the other way round: after a pause cubic and reno begin anew with ten packets, and what they lose by
/// that takes many round trips to win back; BBR does neither. To be called after a handshake, when more than one round trip was
/// measured. Once it was refused it is not tried for a while: root's try may load a module, which takes time.
pub(crate) fn suit_distance(fd: &OwnedFd) {
    static REFUSED: Mutex<Option<Instant>> = Mutex::new(None);
    if round_trip_ns(fd) < BBR_NS {
        return;
    }
    // Any other is what somebody wants here.
    if !sockopt::tcp_congestion(fd).is_ok_and(|name| ["cubic", "reno"].contains(&name.as_str())) {
        return;
    }
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    if refused.is_some_and(|at| at.elapsed() < BBR_AGAIN) {
        return;
    }
    if let Err(error) = sockopt::set_tcp_congestion(fd, "bbr") {
        *refused = Some(Instant::now());
        tracing::warn!(
            %error,
            "a peer is far away, and this process may not use BBR, which moves more over a long link: load tcp_bbr, and have \
             net.ipv4.tcp_allowed_congestion_control list bbr"
        );
    }
}

/// Who is at the other end; nobody's address over a Unix socket.
pub(crate) fn peer_ip(fd: &OwnedFd) -> Option<IpAddr> {
    let address: SocketAddr = rustix::net::getpeername(fd).ok()??.try_into().ok()?;
    Some(address.ip().to_canonical())
}

/// The shortest round trip so far, in nanoseconds; zero for what is no TCP.
pub(crate) fn round_trip_ns(fd: &OwnedFd) -> u64 {
    let least = tcp_info(fd).map(|info| info.tcpi_min_rtt).filter(|least| *least != u32::MAX);
    1000 * u64::from(least.unwrap_or_default())
}

/// Since when the peer sent neither data nor word that it has ours, as far as this is TCP.
pub(crate) fn silence(fd: &OwnedFd) -> Option<Duration> {
    let info = tcp_info(fd)?;
    Some(Duration::from_millis(info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv).into()))
}

fn tcp_info(fd: &OwnedFd) -> Option<libc::tcp_info> {
    // SAFETY: a tcp_info is numbers, for which zeros are good.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = u32::try_from(size_of::<libc::tcp_info>()).expect("a small structure");
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let got = unsafe {
        let info = (&raw mut info).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut len)
    };
    (got == 0).then_some(info)
}

/// A piece of memory by address, as the kernel takes it.
pub(crate) fn iovec(start: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }
}

/// `readv` that reports the end of the stream as an error.
///
/// # Safety
/// Every piece must be memory that may be written for the duration of the call.
pub(crate) unsafe fn read_vectored(fd: &OwnedFd, pieces: &[libc::iovec]) -> io::Result<usize> {
    let count = i32::try_from(pieces.len()).expect("few pieces");
    // SAFETY: the caller vouches for the pieces.
    let got = unsafe { libc::readv(fd.as_raw_fd(), pieces.as_ptr(), count) };
    match usize::try_from(got) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => Ok(n),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// `sendmsg` of pieces; no SIGPIPE.
///
/// # Safety
/// Every piece must be memory that may be read for the duration of the call.
pub(crate) unsafe fn write_vectored(fd: &OwnedFd, pieces: &[libc::iovec], more: bool) -> io::Result<usize> {
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len();
    let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller vouches for the pieces; the header lives through the call.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
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
        assert!(in_use.contains("in use"), "{in_use}");
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
        let said = |text: &str| text.parse::<Endpoint>().expect_err("refused");
        assert!(said("unix:").contains("unix:PATH"));
        assert!(said("unix:@x").contains("abstract") && said("unix:@x").contains("unix:./@x"));
        assert!("0.0.0.0:1".parse::<Endpoint>().is_ok_and(|e| !e.is_local()));
    }
}
