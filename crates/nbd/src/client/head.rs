//! What leaves before a payload. Never: when it leaves, or what is said (`transmission`).

use crate::server::digest::Digest;
use crate::server::request::{Mark, RequestHeader};

/// A request's header, and what may leave before it: a MARK and a DIGEST.
pub const HEAD_BYTES: usize = 3 * RequestHeader::BYTES;

/// What leaves before a payload: a request's header, and before it a MARK where what that said last is not so
/// any more, and a DIGEST of the payload.
#[derive(Clone, Debug)]
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES],
    from: u8,
}

impl Head {
    pub(super) fn new(
        mark: Option<Mark>,
        digest: Option<Digest>,
        header: RequestHeader,
        is_sealed: bool,
    ) -> Head {
        let mut bytes = [0; HEAD_BYTES];
        let mut from = HEAD_BYTES;
        let words = [mark.map(Mark::header), digest.map(Digest::header), Some(header)];
        for header in words.into_iter().rev().flatten() {
            let to = from;
            from -= RequestHeader::BYTES;
            bytes[from..to].copy_from_slice(&header.encode_in(is_sealed));
        }
        Head { bytes, from: from as u8 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.from)..]
    }
}
