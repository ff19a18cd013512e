//! Replies on their way to the client, sent many at a time with one vectored write.
//!
//! Owns: their order and how far the first has gone. Never: copies payloads; they leave from the buffers the
//! volume filled. Invariant: a reply leaves whole, and its buffer goes back as soon as it has.
//! Called by `connection`. Tests: below.

use super::budget::Charge;
use cheetah_rim::buffer::Buffer;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Pieces in one write; a header and a payload for 64 replies.
pub(super) const PIECES_MAX: usize = 128;
/// The largest head of a reply without data of its own length: an error chunk's is in `Head::Long`.
const HEAD_BYTES: usize = 32;

#[derive(Debug)]
pub(super) enum Head {
    Short([u8; HEAD_BYTES], u8),
    Long(Vec<u8>),
}

impl Head {
    pub(super) fn short(bytes: &[u8]) -> Head {
        let mut head = [0; HEAD_BYTES];
        head[..bytes.len()].copy_from_slice(bytes);
        Head::Short(head, u8::try_from(bytes.len()).expect("shorter than 32"))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Head::Short(bytes, len) => &bytes[..usize::from(*len)],
            Head::Long(bytes) => bytes,
        }
    }
}

#[derive(Debug)]
struct Reply {
    head: Head,
    payload: Option<Buffer>,
    charge: Charge,
}

impl Reply {
    fn payload(&self) -> &[u8] {
        self.payload.as_deref().unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.head.bytes().len() + self.payload().len()
    }
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are gone already.
    sent: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    /// `charge` is what the payload counts for until it is sent.
    pub(super) fn push(&mut self, head: Head, payload: Option<Buffer>, charge: Charge) {
        self.replies.push_back(Reply { head, payload, charge });
    }

    /// Fills `pieces` with what is next and returns how many it used.
    pub(super) fn gather<'a>(&'a self, pieces: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
        let (mut count, mut skip) = (0, self.sent);
        for reply in &self.replies {
            for part in [reply.head.bytes(), reply.payload()] {
                let left = &part[skip.min(part.len())..];
                skip -= skip.min(part.len());
                if left.is_empty() {
                    continue;
                }
                if count == PIECES_MAX {
                    return count;
                }
                pieces[count] = IoSlice::new(left);
                count += 1;
            }
        }
        count
    }

    /// `count` bytes went out; `gone` is told the charge of every reply that is.
    pub(super) fn sent(&mut self, count: usize, mut gone: impl FnMut(Charge)) {
        self.sent += count;
        while let Some(first) = self.replies.front() {
            if self.sent < first.len() {
                break;
            }
            self.sent -= first.len();
            gone(first.charge);
            self.replies.pop_front();
        }
    }

    /// The connection is over.
    pub(super) fn clear(&mut self, mut gone: impl FnMut(Charge)) {
        self.replies.drain(..).for_each(|reply| gone(reply.charge));
    }

    /// An idle connection keeps no memory for replies.
    pub(super) fn shrink(&mut self) {
        self.replies.shrink_to_fit();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cheetah_rim::buffer::Pool;

    #[test]
    fn replies_leave_whole_however_the_socket_cuts_them() {
        let pool = Pool::new().unwrap();
        let mut expected = Vec::new();
        let fill = |outbox: &mut Outbox, expected: &mut Vec<u8>| {
            for i in 0..100u8 {
                let head = [i; 28];
                expected.extend_from_slice(&head);
                let payload = (i % 3 == 0).then(|| {
                    let mut buffer = pool.try_take(100 + usize::from(i)).unwrap();
                    buffer.fill(!i);
                    buffer
                });
                expected.extend_from_slice(payload.as_deref().unwrap_or_default());
                let charge = if payload.is_some() { Charge::Small } else { Charge::Nothing };
                outbox.push(Head::short(&head), payload, charge);
            }
            outbox.push(Head::Long(vec![9; 500]), None, Charge::Nothing);
            expected.extend_from_slice(&[9; 500]);
        };
        for cut in [1, 13, 29, 500, 100_000] {
            let mut outbox = Outbox::default();
            expected.clear();
            fill(&mut outbox, &mut expected);
            let (mut out, mut freed) = (Vec::new(), 0);
            while !outbox.is_empty() {
                let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
                let count = outbox.gather(&mut pieces);
                assert!(count > 0);
                let bytes: Vec<u8> =
                    pieces[..count].iter().flat_map(|p| p.iter().copied()).take(cut).collect();
                outbox.sent(bytes.len(), |charge| freed += usize::from(charge == Charge::Small));
                out.extend(bytes);
            }
            assert_eq!(out, expected, "cut into {cut}");
            assert_eq!(freed, 34);
        }
        assert!(pool.try_take(16).is_some());
    }
}
