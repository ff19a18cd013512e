//! What is to be sent to one client, in order: heads, which it holds itself, and payloads, which it knows the
//! length of.
//!
//! Owns: the order, the bytes of heads, and how much of the front is gone. Never: the bytes of a payload. `P`
//! says to the driver where they are, and is given back when they are gone.
//! Invariant: what leaves is the same however it is cut; a connection that is never idle does not grow.
//! Heads that follow each other are one piece, so a batch of acknowledgements leaves as one.
//! Filled by `answer`; emptied by the drivers of [`super::Transmission`]. Tests: below, `tests/outbox.rs`.

use crate::export::Negotiated;
use crate::seal::seal;
use std::collections::{VecDeque, vec_deque};

/// Heads that are gone are held up to this, or up to as much as is still to be sent.
const GONE_BYTES_MAX: usize = 4 << 10;
/// What an entry's head takes, mostly.
const HEAD_BYTES: usize = 32;

/// A head, and what may follow it at once.
#[derive(Debug)]
struct Entry<P> {
    /// So many of the bytes in `Outbox::heads`; none before what is not the first payload behind a head.
    head_bytes: usize,
    payload: Option<(P, u64)>,
}

impl<P> Entry<P> {
    fn bytes(&self) -> u64 {
        self.head_bytes as u64 + self.payload.as_ref().map_or(0, |(_, bytes)| *bytes)
    }
}

/// The answers to one client that have not left in full. `P` names the memory of a payload.
#[derive(Debug)]
pub struct Outbox<P> {
    pub(super) structured: bool,
    is_sealed: bool,
    heads: Vec<u8>,
    /// The heads of what is gone take so much of the front of `heads`.
    gone_bytes: usize,
    entries: VecDeque<Entry<P>>,
    /// So much of the first entry is gone.
    sent_bytes: u64,
    /// All that is to be sent.
    bytes: u64,
}

/// What can be sent with one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a, P> {
    /// Replies without their data, as many as follow each other; only the bytes that are not gone.
    Head(&'a [u8]),
    /// Of this payload the `bytes` from `at` on, which are all that is left of it.
    Payload {
        /// As the driver gave it, until it is given back by [`Outbox::sent`].
        payload: &'a P,
        /// So many of its bytes are gone already.
        at: u64,
        /// Never 0.
        bytes: u64,
    },
}

impl<P> Piece<'_, P> {
    /// How much of what is to be sent this is.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match self {
            Piece::Head(head) => head.len() as u64,
            Piece::Payload { bytes, .. } => *bytes,
        }
    }
}

impl<P> Outbox<P> {
    /// For a client with which structured replies were agreed, or not.
    #[must_use]
    pub const fn new(structured_replies: bool) -> Self {
        Self {
            structured: structured_replies,
            is_sealed: false,
            heads: Vec::new(),
            gone_bytes: 0,
            entries: VecDeque::new(),
            sent_bytes: 0,
            bytes: 0,
        }
    }

    /// As the session agreed on.
    #[must_use]
    pub fn of(session: &Negotiated) -> Self {
        Self { is_sealed: session.is_sealed(), ..Self::new(session.structured_replies) }
    }

    // What waits.

    /// Nothing is to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Heads that are not all gone, or the payload behind them; an answer without holes has one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Heads and payloads that are to be sent, without what is gone of the first of them.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is to be sent, from the first byte that is not gone.
    pub fn pieces(&self) -> Pieces<'_, P> {
        let first_head = self.entries.front().map_or(0, |entry| entry.head_bytes);
        let of_head = usize::try_from(self.sent_bytes).map_or(first_head, |sent| sent.min(first_head));
        Pieces {
            heads: &self.heads[self.gone_bytes + of_head..],
            entries: self.entries.iter(),
            skip_bytes: self.sent_bytes,
            behind: None,
        }
    }

    // What goes.

    /// So much of the front is gone. `finished` is given the payloads of which nothing is left, in order.
    /// Returns by how much `len` is less.
    pub fn sent(&mut self, bytes: u64, mut finished: impl FnMut(P)) -> usize {
        assert!(bytes <= self.bytes, "no more is gone than was there");
        self.bytes -= bytes;
        self.sent_bytes += bytes;
        let before = self.entries.len();
        while let Some(first) = self.entries.front()
            && first.bytes() <= self.sent_bytes
        {
            self.sent_bytes -= first.bytes();
            self.gone_bytes += first.head_bytes;
            if let Some((payload, _)) = self.entries.pop_front().and_then(|entry| entry.payload) {
                finished(payload);
            }
        }
        if self.entries.is_empty() {
            self.heads.clear();
            self.gone_bytes = 0;
        }
        before - self.entries.len()
    }

    /// Nothing more will be sent. All payloads are given back.
    pub fn clear(&mut self, finished: impl FnMut(P)) {
        self.sent(self.bytes, finished);
    }

    /// Holds no more memory than what waits needs, or so many entries.
    pub fn shrink(&mut self, entries_kept: usize) {
        self.entries.shrink_to(entries_kept);
        self.heads.shrink_to(entries_kept * HEAD_BYTES);
    }

    // What comes.

    /// A head, which `encode` appends to what it is given.
    #[inline]
    pub(super) fn head(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.gone_bytes > GONE_BYTES_MAX && self.gone_bytes >= self.heads.len() / 2 {
            self.heads.drain(..self.gone_bytes);
            self.gone_bytes = 0;
        }
        let before = self.heads.len();
        encode(&mut self.heads);
        if self.is_sealed {
            seal(&mut self.heads[before..]);
        }
        let head_bytes = self.heads.len() - before;
        self.bytes += head_bytes as u64;
        self.entries.push_back(Entry { head_bytes, payload: None });
    }

    /// A payload behind the last head, or behind another one that is behind that. It is not empty.
    #[inline]
    pub(super) fn payload(&mut self, payload: P, bytes: u64) {
        debug_assert!(bytes > 0, "an answer without data has no payload");
        self.bytes += bytes;
        let payload = Some((payload, bytes));
        match self.entries.back_mut() {
            Some(last) if last.payload.is_none() => last.payload = payload,
            _ => self.entries.push_back(Entry { head_bytes: 0, payload }),
        }
    }

    /// # Panics
    /// It contradicts itself.
    pub fn check_invariants(&self) {
        let heads: usize = self.entries.iter().map(|entry| entry.head_bytes).sum();
        assert_eq!(self.heads.len(), self.gone_bytes + heads, "heads are those of the entries");
        let all: u64 = self.entries.iter().map(Entry::bytes).sum();
        assert_eq!(self.bytes + self.sent_bytes, all, "bytes are miscounted");
        let first = self.entries.front().map_or(1, Entry::bytes);
        assert!(self.sent_bytes < first, "what is gone is no entry");
        assert!(self.entries.iter().all(|entry| entry.bytes() > 0));
    }
}

/// See [`Outbox::pieces`].
#[derive(Debug)]
pub struct Pieces<'a, P> {
    /// Of the entries from here on.
    heads: &'a [u8],
    entries: vec_deque::Iter<'a, Entry<P>>,
    /// So much of the next entries is gone.
    skip_bytes: u64,
    /// The payload that follows the head which was given last.
    behind: Option<Piece<'a, P>>,
}

impl<'a, P> Iterator for Pieces<'a, P> {
    type Item = Piece<'a, P>;

    fn next(&mut self) -> Option<Piece<'a, P>> {
        if self.behind.is_some() {
            return self.behind.take();
        }
        let mut head_bytes = 0;
        for entry in self.entries.by_ref() {
            let of_head = self.skip_bytes.min(entry.head_bytes as u64);
            self.skip_bytes -= of_head;
            head_bytes += entry.head_bytes - usize::try_from(of_head).unwrap_or(entry.head_bytes);
            if let Some((payload, bytes)) = &entry.payload {
                let at = std::mem::take(&mut self.skip_bytes);
                self.behind = Some(Piece::Payload { payload, at, bytes: bytes - at });
                break;
            }
        }
        if head_bytes == 0 {
            return self.behind.take();
        }
        let (head, rest) = self.heads.split_at(head_bytes);
        self.heads = rest;
        Some(Piece::Head(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Outbox<char> {
        let mut outbox = Outbox::new(true);
        outbox.head(|heads| heads.extend(b"one"));
        outbox.head(|heads| heads.extend(b"two"));
        outbox.payload('a', 10);
        outbox.payload('b', 5);
        outbox.head(|heads| heads.extend(b"three"));
        outbox.check_invariants();
        outbox
    }

    fn payload(payload: &char, at: u64, bytes: u64) -> Piece<'_, char> {
        Piece::Payload { payload, at, bytes }
    }

    #[test]
    fn heads_that_follow_each_other_are_one_piece() {
        let outbox = filled();
        let pieces: Vec<_> = outbox.pieces().collect();
        let (a, b) = (payload(&'a', 0, 10), payload(&'b', 0, 5));
        assert_eq!(pieces, [Piece::Head(b"onetwo"), a, b, Piece::Head(b"three")]);
        assert_eq!((outbox.len(), outbox.bytes()), (4, 26));
        assert_eq!(pieces.iter().map(Piece::bytes).sum::<u64>(), outbox.bytes());
    }

    #[test]
    fn what_is_gone_is_cut_off_wherever_it_ends() {
        let (a, b) = ('a', 'b');
        for (sent, gone, back, first) in [
            (2, 0, "", Piece::Head(&b"etwo"[..])),
            (3, 1, "", Piece::Head(b"two")),
            (6, 1, "", payload(&a, 0, 10)),
            (15, 1, "", payload(&a, 9, 1)),
            (16, 2, "a", payload(&b, 0, 5)),
            (21, 3, "ab", Piece::Head(b"three")),
            (25, 3, "ab", Piece::Head(b"e")),
        ] {
            let (mut outbox, mut finished) = (filled(), String::new());
            assert_eq!(outbox.sent(sent, |payload| finished.push(payload)), gone);
            outbox.check_invariants();
            assert_eq!((outbox.pieces().next(), &finished[..]), (Some(first), back), "{sent}");
            assert_eq!(outbox.pieces().map(|piece| piece.bytes()).sum::<u64>(), 26 - sent);
            outbox.clear(|payload| finished.push(payload));
            outbox.check_invariants();
            assert_eq!((outbox.pieces().next(), outbox.bytes(), &finished[..]), (None, 0, "ab"));
        }
    }

    #[test]
    fn it_does_not_grow_where_it_is_never_empty() {
        let mut outbox: Outbox<()> = Outbox::new(true);
        let mut number = 0u32;
        let mut push = |outbox: &mut Outbox<()>| {
            outbox.head(|heads| heads.extend(number.to_be_bytes()));
            number += 1;
        };
        push(&mut outbox);
        for expected in 0..100_000u32 {
            push(&mut outbox);
            assert_eq!(outbox.sent(4, drop), 1);
            outbox.check_invariants();
            let Some(Piece::Head(head)) = outbox.pieces().next() else { panic!("there is another") };
            assert_eq!(head, (expected + 1).to_be_bytes());
        }
        assert!(outbox.heads.capacity() <= 4 * GONE_BYTES_MAX, "{}", outbox.heads.capacity());
    }

    #[test]
    fn an_idle_one_holds_nothing() {
        let mut outbox = filled();
        outbox.shrink(0);
        outbox.check_invariants();
        outbox.clear(drop);
        outbox.shrink(0);
        assert_eq!((outbox.entries.capacity(), outbox.heads.capacity()), (0, 0));
    }
}
