//! A plain stream: one TCP or Unix socket, vectored reads and writes on raw addresses, pages lent by a pipe.
//!
//! Owns: the descriptor, what is known of its readiness, its pipe. Never: makes a connection (`net` does).
//! Invariant: no system call is made while the runtime knows that it would find nothing.
//! Called by `stream`. Tests: there. One of the named modules that may use unsafe.
#![allow(unsafe_code)]

use super::Stream;
use super::lend::Lender;
use cheetah_core::limits::BBR_NS;
use rustix::net::sockopt;
use rustix::pipe::{IoSliceRaw, SpliceFlags};
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// After BBR was refused, until it is tried again.
const BBR_AGAIN: Duration = Duration::from_secs(600);

/// Registers a socket, or a device that can be waited for, with the runtime of the calling task.
///
/// # Errors
/// The runtime is out of resources.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open and the same until it is dropped, and nothing here takes it out.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// A connection that was accepted, and belongs to no runtime yet.
#[derive(Debug)]
pub struct Incoming(OwnedFd);

impl Incoming {
    pub(crate) fn new(socket: OwnedFd) -> Incoming {
        Incoming(socket)
    }

    /// Who is at the other end; nobody's address over a Unix socket.
    #[must_use]
    pub fn peer_ip(&self) -> Option<IpAddr> {
        peer_ip(&self.0)
    }

    /// Takes it over on the runtime of the calling task.
    ///
    /// # Errors
    /// The runtime is out of resources.
    pub fn into_stream(self) -> io::Result<Stream> {
        Stream::plain(self.0)
    }
}

#[derive(Debug)]
pub(super) struct Socket {
    fd: AsyncFd<OwnedFd>,
    lender: RefCell<Lender>,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Socket> {
        Ok(Socket { fd: register(fd)?, lender: RefCell::default() })
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await?.retain_ready();
        Ok(())
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.fd.writable().await?.retain_ready();
        Ok(())
    }

    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_read_ready(cx).map_ok(|mut ready| ready.retain_ready())
    }

    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_write_ready(cx).map_ok(|mut ready| ready.retain_ready())
    }

    /// A socket that gave less than there was room for is empty: it counts as one that would block, by the
    /// readiness that it had before the call.
    ///
    /// # Safety
    /// As for `Stream::try_receive`.
    pub(super) unsafe fn try_receive(&self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let room = pieces.iter().map(|piece| piece.iov_len).sum::<usize>();
        let mut got = None;
        let told = self.fd.try_io(Interest::READABLE, |fd| {
            // SAFETY: the caller vouches for the pieces.
            let count = *got.insert(unsafe { read_vectored(fd, pieces) }?);
            if count < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
        });
        got.map_or(told, Ok)
    }

    /// # Safety
    /// As for `Stream::try_send`.
    pub(super) unsafe fn try_send(&self, pieces: &[libc::iovec], more: bool) -> io::Result<usize> {
        // SAFETY: the caller vouches for the pieces.
        self.fd.try_io(Interest::WRITABLE, |fd| unsafe { write_vectored(fd, pieces, more) })
    }

    pub(super) fn lends(&self) -> bool {
        self.lender.borrow().lends()
    }

    pub(super) fn held(&self) -> usize {
        self.lender.borrow().held()
    }

    /// # Safety
    /// As for `Stream::hold`.
    pub(super) unsafe fn hold(&self, pieces: &[libc::iovec]) -> usize {
        // SAFETY: the caller vouches for the pieces.
        self.lender.borrow_mut().hold(|to| unsafe { note_pages(to, pieces) })
    }

    pub(super) fn hold_copy(&self, bytes: &[u8]) -> usize {
        self.lender.borrow_mut().hold(|to| rustix::io::write(to, bytes))
    }

    pub(super) fn pass_on(&self, more: bool) -> io::Result<usize> {
        let mut lender = self.lender.borrow_mut();
        if !lender.lends() {
            return Ok(0);
        }
        self.fd.try_io(Interest::WRITABLE, |fd| lender.pass_on(more, fd))
    }

    pub(super) fn close(&self) {
        let _ = rustix::net::shutdown(self.fd.get_ref(), rustix::net::Shutdown::Both);
        self.lender.take();
    }

    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        peer_ip(self.fd.get_ref())
    }

    pub(super) fn round_trip_ns(&self) -> u64 {
        let least = tcp_info(self.fd.get_ref()).map(|info| info.tcpi_min_rtt);
        1000 * u64::from(least.filter(|least| *least != u32::MAX).unwrap_or_default())
    }

    pub(super) fn silence(&self) -> Option<Duration> {
        let info = tcp_info(self.fd.get_ref())?;
        Some(Duration::from_millis(info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv).into()))
    }

    /// Over a long way BBR is what is fast, and not what `net` chose for a LAN: after a pause cubic and reno
    /// begin anew with ten packets, and what they lose by that takes many round trips to win back; BBR does
    /// neither. Once it was refused it is not tried for a while: root's try may load a module, which takes
    /// time.
    pub(super) fn suit_distance(&self) {
        static REFUSED: Mutex<Option<Instant>> = Mutex::new(None);
        if self.round_trip_ns() < BBR_NS {
            return;
        }
        let fd = self.fd.get_ref();
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
                "a peer is far away, and this process may not use BBR, which moves more over a long link: load tcp_bbr, and \
                 have net.ipv4.tcp_allowed_congestion_control list bbr"
            );
        }
    }
}

fn peer_ip(fd: &OwnedFd) -> Option<IpAddr> {
    let address: SocketAddr = rustix::net::getpeername(fd).ok()??.try_into().ok()?;
    Some(address.ip().to_canonical())
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

/// `readv` that reports the end of the stream as an error.
///
/// # Safety
/// Every piece must be memory that may be written for the duration of the call.
unsafe fn read_vectored(fd: &OwnedFd, pieces: &[libc::iovec]) -> io::Result<usize> {
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
unsafe fn write_vectored(fd: &OwnedFd, pieces: &[libc::iovec], more: bool) -> io::Result<usize> {
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len();
    let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller vouches for the pieces; the header lives through the call.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// `vmsplice` of pieces into a pipe that does not block.
///
/// # Safety
/// Every piece must be memory that may be read for the duration of the call.
pub(super) unsafe fn note_pages(to: &OwnedFd, pieces: &[libc::iovec]) -> rustix::io::Result<usize> {
    // SAFETY: `IoSliceRaw` is an iovec by its definition; the caller vouches for the pieces.
    let pieces =
        unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast::<IoSliceRaw<'_>>(), pieces.len()) };
    // SAFETY: as above.
    unsafe { rustix::pipe::vmsplice(to, pieces, SpliceFlags::NONBLOCK) }
}
