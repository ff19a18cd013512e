//! A stream through TLS: the second implementation of `Layer`. rustls shakes hands; what follows is sealed
//! and opened in our own buffers (`records`), in one pass over each.
//!
//! Owns the handshake over a plain stream, and the buffers between it and who uses it. Never: whom to trust
//! (`members`), or keys (`records`). Invariants: bytes count as sent when the records that carry them went
//! below, so whoever sends waits for room as with a plain stream; nothing is lent, for what is sealed has to
//! be touched; and pieces, which others may use meanwhile, are copied from and to by address. What was
//! opened is wiped when it was given. Tests: `tls/tests`; `tests/members.rs`; `tests/data_path.rs`, over
//! whole streams and torn ones; `lab/tests/members.rs`. One of the named modules that may use unsafe, as
//! `super`.
#![allow(unsafe_code)]

use super::records::{Broken, Keys, Opened, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, Records};
use super::{Layer, Stream};
use crate::members::{Credentials, Holder};
use cheetah_core::members::Member;
use rustls::ExtractedSecrets;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::task::{Context, Poll};

/// Sealed at once, before what was sealed has left.
const SEAL_BYTES: usize = 8 * PAYLOAD_BYTES_MAX;
/// Received at once, of a peer that sends much.
const RECEIVE_BYTES_MAX: usize = 8 * RECORD_BYTES_MAX;
/// More comes in no handshake.
const HANDSHAKE_BYTES_MAX: usize = 256 << 10;

impl Credentials {
    /// Speaks TLS to such a server of the pool.
    ///
    /// # Errors
    /// It is none, or takes this one for none of its members.
    pub(crate) async fn connect(&self, plain: Stream, to: Holder) -> io::Result<Stream> {
        // On the heap, as below.
        Box::pin(async move {
            // No name is looked for: a server is who its certificate says.
            let name = ServerName::try_from("member.cheetah").map_err(io::Error::other)?;
            let tls = UnbufferedClientConnection::new(self.to(to), name).map_err(io::Error::other)?;
            shake_hands(plain, tls, self).await
        })
        .await
    }

    /// Speaks TLS to a client, which has to be a member.
    ///
    /// # Errors
    /// It is none.
    pub(crate) async fn accept(&self, plain: Stream) -> io::Result<Stream> {
        // On the heap: a connection that waits for its first byte has no room for this.
        Box::pin(async move {
            let tls = UnbufferedServerConnection::new(self.for_members()).map_err(io::Error::other)?;
            shake_hands(plain, tls, self).await
        })
        .await
    }
}

/// Either end of a handshake.
trait Handshake {
    type Side;

    fn process<'c, 'i>(&'c mut self, came: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Side>;

    fn peer(&self) -> Option<&[CertificateDer<'static>]>;

    /// Once it is over.
    fn into_keys(self) -> Result<(ExtractedSecrets, Keys), rustls::Error>;
}

impl Handshake for UnbufferedClientConnection {
    type Side = rustls::client::ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, came: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Side> {
        self.process_tls_records(came)
    }

    fn peer(&self) -> Option<&[CertificateDer<'static>]> {
        self.peer_certificates()
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Keys), rustls::Error> {
        self.dangerous_into_kernel_connection().map(|(secrets, keys)| (secrets, keys.into()))
    }
}

impl Handshake for UnbufferedServerConnection {
    type Side = rustls::server::ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, came: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Side> {
        self.process_tls_records(came)
    }

    fn peer(&self) -> Option<&[CertificateDer<'static>]> {
        self.peer_certificates()
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Keys), rustls::Error> {
        self.dangerous_into_kernel_connection().map(|(secrets, keys)| (secrets, keys.into()))
    }
}

/// What a handshake wants next.
enum Wants {
    Nothing,
    ToSend,
    ToReceive,
    /// It is over.
    Out,
    ToEnd(io::Error),
}

async fn shake_hands(
    mut below: Stream,
    mut tls: impl Handshake,
    credentials: &Credentials,
) -> io::Result<Stream> {
    // What came and was not taken, what was taken and is the user's already, and what goes out.
    let (mut came, mut opened, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let mut failed = None;
    loop {
        let (taken, wants) = step(&mut tls, &mut came, &mut opened, &mut out);
        came.drain(..taken);
        match wants {
            Wants::Nothing => {}
            Wants::ToSend => below.send_all(&mut out).await?,
            Wants::ToReceive if came.len() > HANDSHAKE_BYTES_MAX => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS: a handshake without end"));
            }
            Wants::ToReceive => below.receive_some(&mut came).await?,
            Wants::Out => break,
            // Asked again, it has something to send that says why: the peer hears it, if there is room.
            Wants::ToEnd(why) => match failed.take() {
                None => failed = Some(why),
                Some(first) => {
                    let _ = below.try_send_from(&[IoSlice::new(&out)], false);
                    return Err(first);
                }
            },
        }
    }
    let Some(member) = credentials.peer(tls.peer()) else {
        return Err(io::Error::other("its certificate is none of a member of this pool"));
    };
    let (secrets, keys) = tls.into_keys().map_err(io::Error::other)?;
    let state = State::new(Records::of(secrets, keys)?, opened, &came);
    Ok(Stream::over(Box::new(Tls { below, member, state: RefCell::new(state) })))
}

/// Takes a handshake a step further: how much of what came it took, and what it wants next.
fn step(
    tls: &mut impl Handshake,
    came: &mut [u8],
    opened: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> (usize, Wants) {
    let failed = |why: &dyn std::fmt::Display| {
        Wants::ToEnd(io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {why}")))
    };
    let UnbufferedStatus { mut discard, state, .. } = tls.process(came);
    let wants = match state {
        Err(why) => failed(&why),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = out.len();
            let mut encoded = data.encode(&mut out[start..]);
            if let Err(EncodeError::InsufficientSize(short)) = &encoded {
                out.resize(start + short.required_size, 0);
                encoded = data.encode(&mut out[start..]);
            }
            match encoded {
                Ok(len) => {
                    out.truncate(start + len);
                    Wants::Nothing
                }
                Err(why) => failed(&why),
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Wants::ToSend
        }
        Ok(ConnectionState::BlockedHandshake) => Wants::ToReceive,
        Ok(ConnectionState::WriteTraffic(_)) => Wants::Out,
        // A peer need not wait before it sends.
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    opened.extend_from_slice(record.payload);
                    discard += record.discard;
                }
                Some(Err(why)) => break failed(&why),
                None => break Wants::Nothing,
            }
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            Wants::ToEnd(io::ErrorKind::UnexpectedEof.into())
        }
        Ok(_) => failed(&"a state that is not known here"),
    };
    (discard, wants)
}

#[derive(Debug)]
struct Tls {
    below: Stream,
    member: Member,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    records: Records,
    /// What came is its beginning, up to `came`.
    received: Vec<u8>,
    came: usize,
    /// Where the next record begins that was not opened yet.
    next: usize,
    /// What was opened and not given yet, before that.
    open: Range<usize>,
    /// What is sealed and has not left yet, from `left` on.
    out: Vec<u8>,
    left: usize,
    /// Bytes of the user that are in these records: they are the first of what it offers again.
    sealed: usize,
    /// Nothing comes any more.
    is_over: bool,
}

impl State {
    /// `opened` was opened before, and `came` came behind it.
    fn new(records: Records, opened: Vec<u8>, came: &[u8]) -> State {
        let open = 0..opened.len();
        let mut received = opened;
        received.extend_from_slice(came);
        let came = received.len();
        received.resize(came.max(RECORD_BYTES_MAX), 0);
        let (next, out) = (open.end, Vec::new());
        State { records, received, came, next, open, out, left: 0, sealed: 0, is_over: false }
    }

    /// The length of the next record, if all of it came.
    fn whole(&self) -> Result<Option<usize>, Broken> {
        let bytes = &self.received[self.next..self.came];
        Ok(Records::record_len(bytes)?.filter(|len| *len <= bytes.len()))
    }

    /// Opens the next record, if all of it came: whether it did. Nothing may be open.
    fn open_next(&mut self) -> Result<bool, Broken> {
        let Some(len) = self.whole()? else { return Ok(false) };
        let (start, end) = (self.next, self.next + len);
        self.next = end;
        match self.records.open(&mut self.received[start..end], &mut self.out)? {
            Opened::Data(range) => self.open = start + range.start..start + range.end,
            Opened::Own => {}
            Opened::End => self.is_over = true,
        }
        Ok(true)
    }

    /// Receives once, behind what came.
    fn receive(&mut self, below: &Stream) -> io::Result<()> {
        if self.next == self.came {
            (self.next, self.came) = (0, 0);
        } else if self.received.len() - self.next < RECORD_BYTES_MAX || self.came == self.received.len() {
            self.received.copy_within(self.next..self.came, 0);
            (self.next, self.came) = (0, self.came - self.next);
        }
        let room = &mut self.received[self.came..];
        let len = room.len();
        let received = below.try_receive_into(&mut [IoSliceMut::new(room)])?;
        self.came += received;
        // A peer that sends much is received from less often.
        if received == len && self.received.len() < RECEIVE_BYTES_MAX {
            let more = (2 * self.received.len()).min(RECEIVE_BYTES_MAX);
            self.received.resize(more, 0);
        }
        Ok(())
    }

    /// Copies what is open to the pieces behind their first bytes; how much.
    ///
    /// # Safety
    /// As for `Stream::try_receive`.
    unsafe fn give(&mut self, pieces: &[libc::iovec], mut skip: usize) -> usize {
        let mut given = 0;
        for piece in pieces {
            let at = skip.min(piece.iov_len);
            skip -= at;
            let open = &mut self.received[self.open.clone()];
            let len = open.len().min(piece.iov_len - at);
            // SAFETY: the caller vouches for the piece, `at + len` is inside of it, and what is open is ours.
            unsafe { std::ptr::copy_nonoverlapping(open.as_ptr(), piece.iov_base.cast::<u8>().add(at), len) };
            open[..len].fill(0);
            self.open.start += len;
            given += len;
            if self.open.is_empty() {
                break;
            }
        }
        given
    }

    /// Seals the first bytes of the pieces; how many.
    ///
    /// # Safety
    /// As for `Stream::try_send`.
    unsafe fn seal(&mut self, pieces: &[libc::iovec]) -> Result<usize, Broken> {
        let offered = pieces.iter().map(|piece| piece.iov_len).sum::<usize>().min(SEAL_BYTES);
        let (mut sealed, mut piece, mut at) = (0, 0, 0);
        while sealed < offered {
            let len = (offered - sealed).min(PAYLOAD_BYTES_MAX);
            self.records.seal(&mut self.out, len, |mut to| {
                while !to.is_empty() {
                    let from = &pieces[piece];
                    let part = to.len().min(from.iov_len - at);
                    // SAFETY: the caller vouches for the piece, `at + part` is inside of it, and the rest is
                    // ours.
                    unsafe {
                        let from = from.iov_base.cast::<u8>().add(at);
                        std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), part);
                    };
                    to = &mut to[part..];
                    at += part;
                    if at == from.iov_len {
                        (piece, at) = (piece + 1, 0);
                    }
                }
            })?;
            sealed += len;
        }
        Ok(sealed)
    }

    fn flush(&mut self, below: &Stream, more: bool) -> io::Result<()> {
        while self.left < self.out.len() {
            self.left += below.try_send_from(&[IoSlice::new(&self.out[self.left..])], more)?;
        }
        self.out.clear();
        self.left = 0;
        Ok(())
    }

    /// The peer is told that this is the end, if there is room.
    fn say_end(&mut self, below: &Stream) {
        let _ = self.records.seal_end(&mut self.out);
        let _ = self.flush(below, false);
    }
}

impl Drop for Tls {
    /// A peer that hears nothing takes it for an attack.
    fn drop(&mut self) {
        let Tls { below, state, .. } = self;
        let state = state.get_mut();
        state.say_end(below);
        state.received.fill(0);
        std::hint::black_box(&state.received);
    }
}

impl Layer for Tls {
    fn below(&self) -> &Stream {
        &self.below
    }

    fn member(&self) -> Option<Member> {
        Some(self.member)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = self.state.borrow();
        // What is wrong is said when it is asked for.
        if state.is_over || !state.open.is_empty() || !matches!(state.whole(), Ok(None)) {
            return Poll::Ready(Ok(()));
        }
        self.below.poll_readable(cx)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.below.poll_writable(cx)
    }

    unsafe fn try_receive(&self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
        let room: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let mut given = 0;
        loop {
            // SAFETY: the caller vouches for the pieces.
            given += unsafe { state.give(pieces, given) };
            if given == room {
                return Ok(given);
            }
            if state.is_over {
                return if given > 0 { Ok(given) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            match state.open_next() {
                Ok(true) => {
                    // What a peer asks of TLS itself is answered now, or with what is sent next.
                    let _ = state.flush(&self.below, false);
                    continue;
                }
                Ok(false) => {}
                Err(broken) => {
                    state.is_over = true;
                    state.say_end(&self.below);
                    return Err(broken.into());
                }
            }
            match state.receive(&self.below) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && given > 0 => return Ok(given),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => state.is_over = true,
                Err(e) => return Err(e),
            }
        }
    }

    unsafe fn try_send(&self, pieces: &[libc::iovec], more: bool) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
        if state.sealed == 0 {
            // SAFETY: the caller vouches for the pieces.
            state.sealed = unsafe { state.seal(pieces)? };
        }
        state.flush(&self.below, more)?;
        Ok(std::mem::take(&mut state.sealed))
    }

    fn close(&self) {
        self.state.borrow_mut().say_end(&self.below);
        self.below.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
