//! The bytes of one connection: received into pieces of memory, sent from pieces, lent as pages, closed. Over
//! TCP and Unix sockets as they are, or through a layer that somebody puts over them.
//!
//! Owns: the socket, its registration with the runtime, and what is lent to it. Never: protocol, or who
//! the peer is. Nobody beside this module sees the descriptor. Invariant: what is ready is cleared by the
//! tick that it had before the call which found nothing more, so nothing that comes meanwhile is missed,
//! and no caller keeps a guard. Whoever sends offers first what was not taken before. Made by `net`; used
//! by both handshakes, `volume::conn`, `donor` and the export. Parts: `socket` (plain ones), `lend`, `tls`
//! and its `records`. Tests: in each; `tests/torn` is a layer that tears everything, over which the tests of
//! the data path run as well. One of the named modules that may use unsafe (pieces are raw addresses: an
//! arena is shared with other connections, so no Rust reference to its bytes may exist while the kernel
//! fills them).
#![allow(unsafe_code)]

mod lend;
mod records;
mod socket;
mod tls;

pub(crate) use lend::ROOM_BYTES;
pub use socket::{Incoming, register};

use crate::members::Credentials;
use cheetah_core::members::Member;
use socket::Socket;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Payloads of which this much is still to come are received where they belong, with no more behind them than
/// the next head; smaller ones come with the batch around them.
pub const DIRECT_BYTES: u32 = 16 << 10;
/// Payloads of writes from this size on leave as pages: below it a copy costs less than noting and moving
/// pages.
pub(crate) const LEND_WRITE_BYTES: u32 = 32 << 10;
/// Those of replies from this size on: twice as much, for the client then copies out of memory that no cache
/// near it has, and the sender alone saves something.
pub(crate) const LEND_REPLY_BYTES: u32 = 64 << 10;

/// A piece of memory by address, as the kernel takes it.
pub(crate) fn iovec(start: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }
}

/// A stream of bytes over another: TLS, or what a test does to it.
pub trait Layer: fmt::Debug + Send {
    /// What it is over.
    fn below(&self) -> &Stream;

    /// Whether `try_receive` may find something. One task at a time waits.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether `try_send` and `pass_on` may get rid of something. One task at a time waits, beside the one
    /// that waits to receive.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// As `Stream::try_receive`.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    unsafe fn try_receive(&self, pieces: &[libc::iovec]) -> io::Result<usize>;

    /// As `Stream::try_send`. What is not taken comes again, first and the same, though in other pieces: a
    /// layer may have made of it already what it sends below.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    unsafe fn try_send(&self, pieces: &[libc::iovec], more: bool) -> io::Result<usize>;

    /// Who is at the other end, where the layer proves that.
    fn member(&self) -> Option<Member> {
        self.below().member()
    }

    // Lending, as `Stream` does. A layer that has to touch the bytes declines.

    fn lends(&self) -> bool {
        false
    }

    fn held(&self) -> usize {
        0
    }

    /// # Safety
    /// As for `Stream::hold`.
    unsafe fn hold(&self, _pieces: &[libc::iovec]) -> usize {
        0
    }

    fn hold_copy(&self, _bytes: &[u8]) -> usize {
        0
    }

    /// # Errors
    /// As for `Stream::pass_on`.
    fn pass_on(&self, _more: bool) -> io::Result<usize> {
        Ok(0)
    }

    fn close(&self) {
        self.below().close();
    }
}

/// A stream on its way to be another.
pub type Laying<'a> = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>>;

/// Who puts layers over streams.
pub trait Layers: fmt::Debug + Send + Sync {
    /// Over one to a server.
    fn connected(&self, plain: Stream) -> Laying<'_>;

    /// Over one from a client.
    fn accepted(&self, plain: Stream) -> Laying<'_>;
}

/// What plain streams become before they are used: they stay as they are unless somebody puts layers over
/// them; and whether they become TLS, which the handshake of NBD begins.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    layers: Option<Arc<dyn Layers>>,
    tls: Option<Arc<Credentials>>,
}

impl Transport {
    #[must_use]
    pub fn through(layers: Arc<dyn Layers>) -> Transport {
        Transport { layers: Some(layers), tls: None }
    }

    /// With members alone, who show these credentials and ask for such.
    #[must_use]
    pub fn with_tls(self, credentials: Arc<Credentials>) -> Transport {
        Transport { tls: Some(credentials), ..self }
    }

    /// What is shown and asked for by STARTTLS; absent in a pool in the clear.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<Credentials>> {
        self.tls.as_ref()
    }

    pub(crate) async fn connected(&self, plain: Stream) -> io::Result<Stream> {
        match &self.layers {
            Some(layers) => layers.connected(plain).await,
            None => Ok(plain),
        }
    }

    pub(crate) async fn accepted(&self, plain: Stream) -> io::Result<Stream> {
        match &self.layers {
            Some(layers) => layers.accepted(plain).await,
            None => Ok(plain),
        }
    }
}

/// The one type for a connection's bytes. It belongs to the runtime on which it was made.
#[derive(Debug)]
pub struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Plain(Socket),
    Layer(Box<dyn Layer>),
}

impl Stream {
    #[must_use]
    pub fn over(layer: Box<dyn Layer>) -> Stream {
        Stream(Kind::Layer(layer))
    }

    /// A socket that does not block, registered with the runtime of the calling task.
    pub(crate) fn plain(socket: OwnedFd) -> io::Result<Stream> {
        Ok(Stream(Kind::Plain(Socket::new(socket)?)))
    }

    fn socket(&self) -> &Socket {
        match &self.0 {
            Kind::Plain(socket) => socket,
            Kind::Layer(layer) => layer.below().socket(),
        }
    }

    // Waiting.

    /// Until there may be something to receive; also its end, or a fault.
    ///
    /// # Errors
    /// The runtime ends.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.0 {
            Kind::Plain(socket) => socket.readable().await,
            Kind::Layer(layer) => poll_fn(|cx| layer.poll_readable(cx)).await,
        }
    }

    /// Until there may be room to send.
    ///
    /// # Errors
    /// The runtime ends.
    pub async fn writable(&self) -> io::Result<()> {
        match &self.0 {
            Kind::Plain(socket) => socket.writable().await,
            Kind::Layer(layer) => poll_fn(|cx| layer.poll_writable(cx)).await,
        }
    }

    /// As `readable`, for one task at a time.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            Kind::Plain(socket) => socket.poll_readable(cx),
            Kind::Layer(layer) => layer.poll_readable(cx),
        }
    }

    /// As `writable`, for one task at a time.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            Kind::Plain(socket) => socket.poll_writable(cx),
            Kind::Layer(layer) => layer.poll_writable(cx),
        }
    }

    // Moving bytes, as far as that can be done now.

    /// Receives once; how many bytes. After fewer than there was room for nothing is asked for before more
    /// comes.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing, `UnexpectedEof` at the end of the stream, and faults of the
    /// connection.
    ///
    /// # Safety
    /// Every piece must be memory that may be written for the duration of the call.
    pub unsafe fn try_receive(&self, pieces: &[libc::iovec]) -> io::Result<usize> {
        match &self.0 {
            // SAFETY: the caller vouches for the pieces.
            Kind::Plain(socket) => unsafe { socket.try_receive(pieces) },
            // SAFETY: as above.
            Kind::Layer(layer) => unsafe { layer.try_receive(pieces) },
        }
    }

    /// Sends once; how many bytes were taken. With `more` something follows at once.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room, and faults of the connection.
    ///
    /// # Safety
    /// Every piece must be memory that may be read for the duration of the call.
    pub unsafe fn try_send(&self, pieces: &[libc::iovec], more: bool) -> io::Result<usize> {
        match &self.0 {
            // SAFETY: the caller vouches for the pieces.
            Kind::Plain(socket) => unsafe { socket.try_send(pieces, more) },
            // SAFETY: as above.
            Kind::Layer(layer) => unsafe { layer.try_send(pieces, more) },
        }
    }

    /// `try_receive` into slices.
    ///
    /// # Errors
    /// As there.
    pub fn try_receive_into(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (start, count) = (slices.as_ptr().cast::<libc::iovec>(), slices.len());
        // SAFETY: an `IoSliceMut` is an iovec by its definition, and is memory that may be written as long as
        // it is borrowed.
        unsafe { self.try_receive(std::slice::from_raw_parts(start, count)) }
    }

    /// `try_send` of slices.
    ///
    /// # Errors
    /// As there.
    pub fn try_send_from(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let (start, count) = (slices.as_ptr().cast::<libc::iovec>(), slices.len());
        // SAFETY: an `IoSlice` is an iovec by its definition, and is memory that may be read as long as it is
        // borrowed.
        unsafe { self.try_send(std::slice::from_raw_parts(start, count), more) }
    }

    // Lending: pages are noted behind each other (`hold`), and moved on (`pass_on`). What is held counts as
    // not sent.

    /// Whether payloads may be lent. A stream that says no has sent none of what it held: all behind what was
    /// sent is to be copied.
    #[must_use]
    pub fn lends(&self) -> bool {
        match &self.0 {
            Kind::Plain(socket) => socket.lends(),
            Kind::Layer(layer) => layer.lends(),
        }
    }

    /// Bytes that it holds, and that are sent before anything else.
    #[must_use]
    pub fn held(&self) -> usize {
        match &self.0 {
            Kind::Plain(socket) => socket.held(),
            Kind::Layer(layer) => layer.held(),
        }
    }

    /// Lends pieces of memory as far as there is room; how many bytes were taken. Of what is to be sent and
    /// not held yet, `left` bytes, the pieces are the beginning, or all. With `more` something follows at
    /// once. Nothing is sent where it cannot be done: then `lends` says so.
    ///
    /// # Errors
    /// As `pass_on`.
    ///
    /// # Safety
    /// As for `hold`.
    pub unsafe fn lend(&self, pieces: &[libc::iovec], left: usize, more: bool) -> io::Result<usize> {
        // SAFETY: the caller vouches for the pieces.
        let held = if left == 0 { 0 } else { unsafe { self.hold(pieces) } };
        self.pass_on(more || held < left)
    }

    /// Notes pieces of memory behind what it holds; how many bytes it had room for. The peer gets what is in
    /// them when it takes the bytes. Where it cannot be done, what it held is forgotten, and `lends` says so.
    ///
    /// # Safety
    /// Every piece must be memory that may be read for the duration of the call.
    pub unsafe fn hold(&self, pieces: &[libc::iovec]) -> usize {
        match &self.0 {
            // SAFETY: the caller vouches for the pieces.
            Kind::Plain(socket) => unsafe { socket.hold(pieces) },
            // SAFETY: as above.
            Kind::Layer(layer) => unsafe { layer.hold(pieces) },
        }
    }

    /// The same with bytes that may change afterwards: best a few, for they are copied.
    pub fn hold_copy(&self, bytes: &[u8]) -> usize {
        match &self.0 {
            Kind::Plain(socket) => socket.hold_copy(bytes),
            Kind::Layer(layer) => layer.hold_copy(bytes),
        }
    }

    /// Sends what it holds; how many bytes were taken.
    ///
    /// # Errors
    /// There is no room, or a signal came.
    pub fn pass_on(&self, more: bool) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => socket.pass_on(more),
            Kind::Layer(layer) => layer.pass_on(more),
        }
    }

    // Whole messages, for handshakes.

    /// Sends all of `output` and empties it.
    pub(crate) async fn send_all(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        while !output.is_empty() {
            let stream = &mut *self;
            poll_fn(move |cx| stream.poll_writable(cx)).await?;
            match self.try_send_from(&[IoSlice::new(output)], false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                sent => drop(output.drain(..sent?)),
            }
        }
        Ok(())
    }

    /// Appends what is there; waits until there is something.
    pub(crate) async fn receive_some(&mut self, input: &mut Vec<u8>) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            let stream = &mut *self;
            poll_fn(move |cx| stream.poll_readable(cx)).await?;
            match self.try_receive_into(&mut [IoSliceMut::new(&mut bytes)]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                got => {
                    input.extend_from_slice(&bytes[..got?]);
                    // Behind a handshake there may be payload.
                    bytes.fill(0);
                    std::hint::black_box(&bytes);
                    return Ok(());
                }
            }
        }
    }

    // The connection itself.

    /// Nothing moves any more, and what it holds is forgotten. What the kernel has it may go on sending.
    pub fn close(&self) {
        match &self.0 {
            Kind::Plain(socket) => socket.close(),
            Kind::Layer(layer) => layer.close(),
        }
    }

    /// Who is at the other end, as its certificate says; nobody in the clear.
    #[must_use]
    pub fn member(&self) -> Option<Member> {
        match &self.0 {
            Kind::Plain(_) => None,
            Kind::Layer(layer) => layer.member(),
        }
    }

    /// Who is at the other end; nobody's address over a Unix socket.
    #[must_use]
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.socket().peer_ip()
    }

    /// The shortest round trip so far, in nanoseconds; zero for what is no TCP.
    #[must_use]
    pub fn round_trip_ns(&self) -> u64 {
        self.socket().round_trip_ns()
    }

    /// Since when the peer sent neither data nor word that it has ours, as far as this is TCP.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.socket().silence()
    }

    /// To be called after a handshake, when more than one round trip was measured.
    pub(crate) fn suit_distance(&self) {
        self.socket().suit_distance();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Stream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Stream::plain(near.into()).unwrap(), far)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    fn received(stream: &Stream, room: usize) -> Result<Vec<u8>, io::ErrorKind> {
        let mut bytes = vec![0; room];
        let got = stream.try_receive_into(&mut [IoSliceMut::new(&mut bytes)]).map_err(|e| e.kind())?;
        bytes.truncate(got);
        Ok(bytes)
    }

    #[test]
    fn what_gave_less_than_there_was_room_for_is_asked_again_when_more_comes() {
        run(async {
            let (stream, mut far) = pair();
            far.write_all(b"abcd").unwrap();
            stream.readable().await.unwrap();
            assert_eq!(received(&stream, 2).unwrap(), b"ab");
            assert_eq!(received(&stream, 3).unwrap(), b"cd");
            // Nobody has said yet that it is there.
            far.write_all(b"ef").unwrap();
            assert_eq!(received(&stream, 3), Err(io::ErrorKind::WouldBlock));
            stream.readable().await.unwrap();
            assert_eq!(received(&stream, 3).unwrap(), b"ef");
            drop(far);
            stream.readable().await.unwrap();
            assert_eq!(received(&stream, 3), Err(io::ErrorKind::UnexpectedEof));
        });
    }

    #[test]
    fn what_is_held_is_sent_first_and_forgotten_by_close() {
        run(async {
            let (stream, mut far) = pair();
            stream.writable().await.unwrap();
            assert_eq!((stream.hold_copy(b"one"), stream.held()), (3, 3));
            assert_eq!((stream.pass_on(false).unwrap(), stream.held()), (3, 0));
            assert_eq!(stream.hold_copy(b"two"), 3);
            stream.close();
            assert_eq!(stream.held(), 0);
            let mut came = Vec::new();
            far.read_to_end(&mut came).unwrap();
            assert_eq!(came, b"one");
        });
    }

    #[test]
    fn a_stream_can_be_handed_to_another_thread() {
        fn is_send<T: Send>(_: &T) {}
        run(async {
            let (mut stream, _far) = pair();
            let (mut input, mut output) = (Vec::new(), Vec::new());
            is_send(&stream.send_all(&mut output));
            is_send(&stream.receive_some(&mut input));
            is_send(&stream);
        });
    }
}
