//! A stream through TLS: the second implementation of `Layer`, by rustls.
//!
//! Owns the handshake over a plain stream, and the records between it and who uses it. Never: whom to
//! trust (`members`). Invariants: bytes count as sent when the records that carry them went below, so
//! whoever sends waits for room as with a plain stream; nothing is lent, for what is sealed has to be
//! touched; and pieces, which others may use meanwhile, are copied from and to by address. Every record
//! is checked before anything of it is given out. Tests: `tests/members.rs`; `tests/data_path.rs`, over
//! whole streams and torn ones; `lab/tests/members.rs`. One of the named modules that may use unsafe, as
//! `super`.
#![allow(unsafe_code)]

use super::{Layer, Stream};
use crate::members::Credentials;
use cheetah_core::members::Member;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::task::{Context, Poll};

/// Sealed at once, before what was sealed has left.
const SEAL_BYTES: usize = 128 << 10;

impl Credentials {
    /// Speaks TLS to a server of the pool.
    ///
    /// # Errors
    /// It is none, or takes this one for none of its members.
    pub(crate) async fn connect(&self, plain: Stream) -> io::Result<Stream> {
        // No name is looked for: a server is who its certificate says.
        let name = ServerName::try_from("member.cheetah").map_err(io::Error::other)?;
        let tls = ClientConnection::new(self.to_donors(), name).map_err(io::Error::other)?;
        shake_hands(plain, tls.into(), self).await
    }

    /// Speaks TLS to a client, which has to be a member.
    ///
    /// # Errors
    /// It is none.
    pub(crate) async fn accept(&self, plain: Stream) -> io::Result<Stream> {
        let tls = ServerConnection::new(self.for_members()).map_err(io::Error::other)?;
        shake_hands(plain, tls.into(), self).await
    }
}

async fn shake_hands(
    mut below: Stream,
    mut tls: Connection,
    credentials: &Credentials,
) -> io::Result<Stream> {
    loop {
        while tls.wants_write() {
            let sent = send_out(&mut tls, &below);
            match sent {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let stream = &mut below;
                    poll_fn(move |cx| stream.poll_writable(cx)).await?;
                }
                sent => drop(sent?),
            }
        }
        if !tls.is_handshaking() {
            break;
        }
        let taken = take_in(&mut tls, &below);
        match taken {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let stream = &mut below;
                poll_fn(move |cx| stream.poll_readable(cx)).await?;
            }
            taken => drop(taken?),
        }
    }
    let Some(member) = credentials.peer(tls.peer_certificates()) else {
        return Err(io::Error::other("its certificate is none of a member of this pool"));
    };
    tls.set_buffer_limit(None);
    Ok(Stream::over(Box::new(Tls {
        below,
        member,
        state: RefCell::new(State { tls, sealed: 0, is_over: false }),
    })))
}

fn send_out(tls: &mut Connection, below: &Stream) -> io::Result<usize> {
    tls.write_tls(&mut Below { stream: below, more: false })
}

/// Receives once and takes what came apart; whether that was the peer's last word. `UnexpectedEof` where it
/// went without one.
fn take_in(tls: &mut Connection, below: &Stream) -> io::Result<bool> {
    if tls.read_tls(&mut Below { stream: below, more: false })? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match tls.process_new_packets() {
        Ok(state) => Ok(state.peer_has_closed()),
        Err(error) => {
            // The peer hears why, if there is room.
            let _ = send_out(tls, below);
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}")))
        }
    }
}

/// The stream below, as rustls takes it.
struct Below<'a> {
    stream: &'a Stream,
    more: bool,
}

impl Read for Below<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stream.try_receive_into(&mut [IoSliceMut::new(buffer)]) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            received => received,
        }
    }
}

impl Write for Below<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.try_send_from(&[IoSlice::new(buffer)], self.more)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.try_send_from(buffers, self.more)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Tls {
    below: Stream,
    member: Member,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    tls: Connection,
    /// Bytes of the user that are in records which have not all left yet: they are the first of what it
    /// offers again.
    sealed: usize,
    /// Nothing comes any more.
    is_over: bool,
}

impl State {
    /// Whether something that came is open already.
    fn has_opened(&mut self) -> bool {
        matches!(self.tls.reader().fill_buf(), Ok(bytes) if !bytes.is_empty())
    }

    /// Copies what is open to the pieces; how much.
    ///
    /// # Safety
    /// As for `Stream::try_receive`.
    unsafe fn give(&mut self, pieces: &[libc::iovec], mut skip: usize) -> usize {
        let mut given = 0;
        for piece in pieces {
            let (mut at, skipped) = (skip.min(piece.iov_len), skip.min(piece.iov_len));
            skip -= skipped;
            while at < piece.iov_len {
                let mut reader = self.tls.reader();
                let Ok(open) = reader.fill_buf() else { return given };
                if open.is_empty() {
                    return given;
                }
                let len = open.len().min(piece.iov_len - at);
                // SAFETY: the caller vouches for the piece, `at + len` is inside of it, and what rustls holds
                // is its own memory.
                unsafe {
                    std::ptr::copy_nonoverlapping(open.as_ptr(), piece.iov_base.cast::<u8>().add(at), len)
                };
                reader.consume(len);
                (at, given) = (at + len, given + len);
            }
        }
        given
    }

    /// Seals the first bytes of the pieces; how many.
    ///
    /// # Safety
    /// As for `Stream::try_send`.
    unsafe fn seal(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let mut clear = Vec::with_capacity(SEAL_BYTES.min(pieces.iter().map(|piece| piece.iov_len).sum()));
        for piece in pieces {
            let len = piece.iov_len.min(SEAL_BYTES - clear.len());
            let start = clear.len();
            clear.resize(start + len, 0);
            // SAFETY: the caller vouches for the piece, of which this is the beginning; the rest is ours.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.iov_base.cast::<u8>(), clear[start..].as_mut_ptr(), len)
            };
        }
        let sealed = self.tls.writer().write_all(&clear);
        let len = clear.len();
        crate::memory::wipe(clear);
        sealed.map(|()| len)
    }

    fn flush(&mut self, below: &Stream, more: bool) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Below { stream: below, more })?;
        }
        Ok(())
    }
}

impl Drop for Tls {
    /// A peer that hears nothing takes it for an attack.
    fn drop(&mut self) {
        let Tls { below, state, .. } = self;
        let state = state.get_mut();
        state.tls.send_close_notify();
        let _ = state.flush(below, false);
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
        let mut state = self.state.borrow_mut();
        if state.is_over || state.has_opened() {
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
            let State { tls, is_over, .. } = &mut *state;
            let taken = match *is_over {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => take_in(tls, &self.below),
            };
            match taken {
                Ok(has_closed) => {
                    *is_over = has_closed;
                    // What a peer asks of TLS itself is answered with what is sent next, or now.
                    let _ = state.flush(&self.below, false);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && given > 0 => return Ok(given),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    *is_over = true;
                    return if given > 0 { Ok(given) } else { Err(e) };
                }
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
        let mut state = self.state.borrow_mut();
        state.tls.send_close_notify();
        // The peer is told, if there is room.
        let _ = state.flush(&self.below, false);
        self.below.close();
    }
}
