//! Streams that tear everything, for the tests of the data path: each receive and send ends at some place of
//! its own choosing, what is lent is taken in bits or, by every other stream, not at all, and now and then
//! nothing is said to be there, or no room, where there is some.
//! Owns: where they tear, by a seed that each stream has from its number. Never: changes, adds or loses a
//! byte, or the order of any. Invariant: who was told to wait is woken. Used by the tests in this folder and
//! by those of the export.
#![allow(dead_code)]

use cheetah_core::map::{MemberId, PoolId};
use cheetah_core::members::{Member, Role};
use cheetah_rim::members::{Authority, Credentials, Key};
use cheetah_rim::stream::{Layer, Layers, Laying, Stream, Transport};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// One in so many calls finds nothing, though there may be something.
const IN_VAIN: u64 = 8;
/// One in so many pieces of work is cut to next to nothing.
const TINY: u64 = 4;
const TINY_BYTES_MAX: u64 = 40;
const BYTES_MAX: u64 = 100_000;
/// More than a call of the data path has.
const PIECES_MAX: usize = 1024;

/// What tears every stream that goes through it.
pub fn torn() -> Transport {
    Transport::through(Arc::new(Tearing::default()))
}

#[derive(Debug, Default)]
struct Tearing {
    streams: AtomicU64,
}

impl Tearing {
    fn tear(&self, below: Stream) -> Laying<'_> {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let torn = Torn {
            below,
            lends: number.is_multiple_of(2),
            random: Cell::new(0x9e37_79b9_7f4a_7c15 ^ (number + 1)),
            receives_in_vain: Cell::new(false),
            sends_in_vain: Cell::new(false),
        };
        Box::pin(async { Ok(Stream::over(Box::new(torn))) })
    }
}

impl Layers for Tearing {
    fn connected(&self, plain: Stream) -> Laying<'_> {
        self.tear(plain)
    }

    fn accepted(&self, plain: Stream) -> Laying<'_> {
        self.tear(plain)
    }
}

#[derive(Debug)]
struct Torn {
    below: Stream,
    lends: bool,
    random: Cell<u64>,
    /// Something was said to be in vain, and whoever waits next is kept waiting once.
    receives_in_vain: Cell<bool>,
    sends_in_vain: Cell<bool>,
}

impl Torn {
    fn roll(&self, sides: u64) -> u64 {
        let mut state = self.random.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.set(state);
        (state >> 16) % sides
    }

    fn turns_away(&self, told: &Cell<bool>) -> io::Result<()> {
        if self.roll(IN_VAIN) > 0 {
            return Ok(());
        }
        told.set(true);
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Who was turned away waits for a turn of the runtime, and then for what is below.
    fn waits(told: &Cell<bool>, cx: &Context<'_>) -> bool {
        let waits = told.take();
        if waits {
            cx.waker().wake_by_ref();
        }
        waits
    }

    /// At least one byte of the pieces, if they have any, and seldom all; how many there are.
    fn cut(&self, pieces: &[libc::iovec], torn: &mut [libc::iovec; PIECES_MAX]) -> usize {
        let most = if self.roll(TINY) == 0 { TINY_BYTES_MAX } else { BYTES_MAX };
        let mut left = 1 + self.roll(most) as usize;
        let mut count = 0;
        for piece in pieces {
            if left == 0 {
                break;
            }
            let iov_len = piece.iov_len.min(left);
            torn[count] = libc::iovec { iov_base: piece.iov_base, iov_len };
            (left, count) = (left - iov_len, count + 1);
        }
        count
    }
}

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl Layer for Torn {
    fn below(&self) -> &Stream {
        &self.below
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if Torn::waits(&self.receives_in_vain, cx) { Poll::Pending } else { self.below.poll_readable(cx) }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if Torn::waits(&self.sends_in_vain, cx) { Poll::Pending } else { self.below.poll_writable(cx) }
    }

    unsafe fn try_receive(&self, pieces: &[libc::iovec]) -> io::Result<usize> {
        self.turns_away(&self.receives_in_vain)?;
        let mut torn = [NOTHING; PIECES_MAX];
        let count = self.cut(pieces, &mut torn);
        // SAFETY: each is the beginning of a piece for which the caller vouches.
        unsafe { self.below.try_receive(&torn[..count]) }
    }

    unsafe fn try_send(&self, pieces: &[libc::iovec], more: bool) -> io::Result<usize> {
        self.turns_away(&self.sends_in_vain)?;
        let mut torn = [NOTHING; PIECES_MAX];
        let count = self.cut(pieces, &mut torn);
        // SAFETY: each is the beginning of a piece for which the caller vouches.
        unsafe { self.below.try_send(&torn[..count], more) }
    }

    fn lends(&self) -> bool {
        self.lends && self.below.lends()
    }

    fn held(&self) -> usize {
        self.below.held()
    }

    unsafe fn hold(&self, pieces: &[libc::iovec]) -> usize {
        let mut torn = [NOTHING; PIECES_MAX];
        let count = self.cut(pieces, &mut torn);
        // SAFETY: each is the beginning of a piece for which the caller vouches.
        unsafe { self.below.hold(&torn[..count]) }
    }

    fn hold_copy(&self, bytes: &[u8]) -> usize {
        self.below.hold_copy(&bytes[..bytes.len().min(1 + self.roll(TINY_BYTES_MAX) as usize)])
    }

    fn pass_on(&self, more: bool) -> io::Result<usize> {
        self.turns_away(&self.sends_in_vain)?;
        self.below.pass_on(more)
    }
}

/// Members of a pool of their own, at both ends, over what `below` makes of their streams.
pub fn members(below: Transport) -> Transport {
    let pool = PoolId(7);
    let authority = Authority::of(pool, &Authority::make(pool).expect("a key")).expect("a pool");
    let (key, member) = (Key::make().expect("a key"), Member { id: MemberId(1), role: Role::Donor });
    let certificate = authority.certify(member, &key.public(), &[], Duration::from_secs(600));
    let certificate = certificate.expect("a certificate");
    let credentials = Credentials::new(authority.pem(), &certificate, &key).expect("a member");
    below.with_tls(Arc::new(credentials))
}

/// Runs each test twice: over streams as they are, and over torn ones.
#[macro_export]
macro_rules! over_each_transport {
    ($($test:ident),* $(,)?) => {
        mod plain {
            $(#[test] fn $test() { super::$test(&cheetah_rim::stream::Transport::default()); })*
        }
        mod torn_streams {
            $(#[test] fn $test() { super::$test(&super::torn::torn()); })*
        }
    };
}

/// The same through TLS.
#[macro_export]
macro_rules! through_tls {
    ($($test:ident),* $(,)?) => {
        mod tls {
            $(#[test] fn $test() { super::$test(&super::torn::members(Default::default())); })*
        }
        mod torn_tls {
            $(#[test] fn $test() { super::$test(&super::torn::members(super::torn::torn())); })*
        }
    };
}
