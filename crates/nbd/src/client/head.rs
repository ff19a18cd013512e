//! What leaves before a payload. Never: when it leaves, or what is said (`transmission`).

use crate::proto::{CmdFlags, Command};
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

/// An AUTH: the nonces and authentication tags of what the WRITE behind it brings, part by part.
pub(super) fn auth<'a>(
    cookie: u64,
    is_sealed: bool,
    parts: impl Iterator<Item = &'a [u8]> + Clone,
) -> Vec<u8> {
    let bytes: usize = parts.clone().map(<[u8]>::len).sum();
    let length = u32::try_from(bytes).expect("at most the largest payload's");
    let (flags, command) = (CmdFlags::EMPTY, Command::Auth);
    let header = RequestHeader { flags, command, cookie, offset: 0, length };
    let mut message = Vec::with_capacity(RequestHeader::BYTES + bytes);
    message.extend_from_slice(&header.encode_in(is_sealed));
    parts.for_each(|part| message.extend_from_slice(part));
    message
}
