//! DIGEST: what the payload of the WRITE behind it is, so that a server knows what came as it was sent.
//!
//! Owns the message, and the digest of blocks' checksums. Never: the checksums themselves, or what becomes of
//! a payload that is another one. Invariant: the digest of writes that become one request is the XOR of
//! theirs. Without it a server would sign what was hit on its way, and whoever reads before the client has
//! compared the answer would take it for right. Tests: below, `tests/client_transmission.rs`.

use super::request::RequestHeader;
use crate::proto::{CmdFlags, Command};

/// What a client says of the payload of its next WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    /// [`Digest::of_blocks`] of the blocks that it covers, all of them whole.
    pub sums: u64,
}

impl Digest {
    /// Of the CRC32Cs of blocks that follow each other, by the number of the first, counted in blocks from
    /// the start of the export: each is mixed with its place by the finalizer of splitmix64, and XORed. 0
    /// counts as 1, for clients that keep 0 for what they do not know.
    #[must_use]
    pub fn of_blocks(first: u64, sums: impl IntoIterator<Item = u32>) -> u64 {
        let mixed = |(block, sum): (u64, u32)| mix(block << 32 ^ block >> 32 ^ u64::from(sum.max(1)));
        (first..).zip(sums).map(mixed).fold(0, |all, one| all ^ one)
    }

    /// That of a write and the one behind it, which leave in one request.
    #[must_use]
    pub const fn with(self, next: Digest) -> Digest {
        Digest { sums: self.sums ^ next.sums }
    }

    /// It has a request's shape, and no answer.
    #[must_use]
    pub const fn header(self) -> RequestHeader {
        let (flags, command) = (CmdFlags::EMPTY, Command::Digest);
        RequestHeader { flags, command, cookie: self.sums, offset: 0, length: 0 }
    }

    /// What a header with the command says.
    #[must_use]
    pub const fn of(header: &RequestHeader) -> Digest {
        Digest { sums: header.cookie }
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_leave_together_have_the_digest_of_all_their_blocks() {
        let all = Digest::of_blocks(7, [1, 2, 3]);
        assert_eq!(all, Digest::of_blocks(7, [1]) ^ Digest::of_blocks(8, [2, 3]));
        assert_ne!(all, Digest::of_blocks(7, [2, 1, 3]), "each in its place");
        assert_ne!(all, Digest::of_blocks(8, [1, 2, 3]));
        assert_ne!(all, Digest::of_blocks(7, [1, 2, 3 ^ 1 << 31]));
        let (one, other) = (Digest { sums: 5 }, Digest { sums: 6 });
        assert_eq!(one.with(other), Digest { sums: 3 });
        assert_eq!([one, other].map(|digest| Digest::of(&digest.header())), [one, other]);
    }
}
