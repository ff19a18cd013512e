//! What is to leave by a connection: parts, and the requests that they make.
//!
//! Owns a request's header, which writes it is for, and how many bytes of a volume's writes are on their way. Never: when something leaves,
//! who is answered, or how much may be merged (`core::volume::merge`).
//! Invariant: the parts of one request follow each other in one extent, and in what is sent. Called by `conn`. Tests: below,
//! `tests/data_path.rs`.

use crate::stream::LEND_WRITE_BYTES;
use cheetah_core::donor::WriteMark;
use cheetah_core::layout::Scatter;
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::volume::{Fragment, Key, Mem, PartOp, batch_merges_bytes_max};
use cheetah_nbd::{CmdFlags, Command, Mark, RequestHeader};
use std::cell::Cell;

#[derive(Debug)]
pub(super) struct OutPart {
    pub(super) part: Key,
    pub(super) op: PartOp,
    pub(super) address: u64,
    pub(super) mem: Mem,
    pub(super) scatter: Scatter,
    pub(super) fragment: Fragment,
    pub(super) mark: Option<WriteMark>,
}

/// What leaves before a payload: a request's header, and before it a MARK where what that said last is not so any more.
#[derive(Clone, Debug)]
pub(super) struct Header {
    bytes: [u8; 2 * RequestHeader::BYTES],
    from: usize,
}

impl Header {
    fn new(mark: Option<Mark>, request: [u8; RequestHeader::BYTES]) -> Header {
        let mut bytes = [0; 2 * RequestHeader::BYTES];
        let (before, behind) = bytes.split_at_mut(RequestHeader::BYTES);
        behind.copy_from_slice(&request);
        if let Some(mark) = mark {
            before.copy_from_slice(&mark.header().encode());
        }
        Header { bytes, from: if mark.is_some() { 0 } else { RequestHeader::BYTES } }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

/// What the donor was told last of the writes on a connection. None: it does not understand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked(pub(super) Option<Mark>);

impl Marked {
    /// What has to be said before a request that changes what the donor holds.
    fn before(&mut self, part: &OutPart) -> Option<Mark> {
        let told = self.0.as_mut()?;
        let WriteMark { number, targets, complete } = part.mark?;
        let mark = Mark { number, targets, complete };
        (std::mem::replace(told, mark) != mark).then_some(mark)
    }
}

impl OutPart {
    pub(super) fn payload_bytes(&self) -> usize {
        payload_bytes(self.op, self.scatter) as usize
    }

    pub(super) fn is_large(&self) -> bool {
        self.payload_bytes() >= LEND_WRITE_BYTES as usize
    }

    /// Of a request that begins with this part, and has so many bytes in all.
    pub(super) fn header(&self, length: u32, marked: &mut Marked) -> Header {
        let (command, flags) = match self.op {
            PartOp::Read => (Command::Read, CmdFlags::EMPTY),
            PartOp::Write | PartOp::Sparse => (Command::Write, CmdFlags::EMPTY),
            PartOp::Zero { keep: true } => (Command::WriteZeroes, CmdFlags::NO_HOLE),
            PartOp::Zero { keep: false } => (Command::WriteZeroes, CmdFlags::EMPTY),
            PartOp::Trim => (Command::Trim, CmdFlags::EMPTY),
            PartOp::Status | PartOp::Survey => (Command::BlockStatus, CmdFlags::EMPTY),
            PartOp::Age => (Command::Flush, CmdFlags::EMPTY),
        };
        let (cookie, offset) = (self.part.to_u64(), self.address);
        Header::new(marked.before(self), RequestHeader { flags, command, cookie, offset, length }.encode())
    }

    /// Whether `next` writes behind what this one writes, in the same extent.
    fn goes_on(&self, next: &OutPart) -> bool {
        self.payload_bytes() > 0
            && next.payload_bytes() > 0
            && next.address == self.address + u64::from(self.scatter.len)
            && next.address / EXTENT_BYTES == self.address / EXTENT_BYTES
            && next.mark.map(|mark| (mark.number, mark.targets))
                == self.mark.map(|mark| (mark.number, mark.targets))
    }
}

/// What a part sends behind its header.
pub(super) fn payload_bytes(op: PartOp, scatter: Scatter) -> u32 {
    if matches!(op, PartOp::Write | PartOp::Sparse) { scatter.len } else { 0 }
}

/// A part that was not sent in full.
#[derive(Debug)]
pub(super) struct Leaving {
    /// If a request begins with it, and once that is known.
    pub(super) header: Option<Header>,
    pub(super) part: OutPart,
}

impl Leaving {
    pub(super) fn header(&self) -> &[u8] {
        self.header.as_ref().map_or(&[], Header::bytes)
    }

    /// What is sent for it.
    pub(super) fn bytes(&self) -> usize {
        self.header().len() + self.part.payload_bytes()
    }
}

/// How many of the parts make the first request, and its bytes: one, and the writes behind it that go on where it ends.
pub(super) fn first_request<'a>(
    mut parts: impl Iterator<Item = &'a Leaving>,
    merges_bytes_max: u32,
) -> Option<(usize, u32)> {
    let mut last = &parts.next()?.part;
    let (mut count, mut bytes) = (1, last.scatter.len);
    for Leaving { part, .. } in parts {
        let merged = bytes.saturating_add(part.scatter.len);
        if merged > merges_bytes_max || !last.goes_on(part) {
            break;
        }
        (last, count, bytes) = (part, count + 1, merged);
    }
    Some((count, bytes))
}

/// Bytes of a volume's writes, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// What waits to be made requests of.
    queued: Cell<u64>,
    /// What is in requests that are not answered.
    asked: Cell<u64>,
}

impl Traffic {
    pub(super) fn queue(&self, bytes: u64) {
        self.queued.set(self.queued.get() + bytes);
    }

    /// What was queued is in a request now.
    pub(super) fn ask(&self, bytes: u64) {
        self.queued.set(self.queued.get() - bytes);
        self.asked.set(self.asked.get() + bytes);
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.get()
    }

    /// Answered, or given up.
    pub(super) fn forget(&self, queued: u64, asked: u64) {
        self.queued.set(self.queued.get() - queued);
        self.asked.set(self.asked.get() - asked);
    }

    pub(super) fn batch_merges_bytes_max(&self) -> u32 {
        batch_merges_bytes_max(self.asked.get(), self.queued.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(op: PartOp, address: u64, len: u32) -> Leaving {
        let fragment = Fragment { group: 0, slot: 0, local: (address % EXTENT_BYTES) as u32 };
        let (part, mem, scatter) = (Key::from_u64(1), Mem::Payload(0), Scatter::whole(0, len));
        Leaving { header: None, part: OutPart { part, op, address, mem, scatter, fragment, mark: None } }
    }

    #[test]
    fn writes_that_go_on_where_the_last_one_ends_are_one_request() {
        use PartOp::{Read, Sparse, Write, Zero};
        let parts = |parts: &[(PartOp, u64, u32)], most| {
            let parts: Vec<Leaving> = parts.iter().map(|(op, at, len)| leaving(*op, *at, *len)).collect();
            first_request(parts.iter(), most)
        };
        assert_eq!(parts(&[], 100), None);
        assert_eq!(parts(&[(Write, 0, 40), (Sparse, 40, 60), (Write, 100, 1)], 100), Some((2, 100)));
        assert_eq!(parts(&[(Write, 0, 40), (Write, 41, 10)], 100), Some((1, 40)), "a gap");
        assert_eq!(
            parts(&[(Write, 0, 200), (Write, 200, 10)], 100),
            Some((1, 200)),
            "one alone may be longer"
        );
        assert_eq!(parts(&[(Read, 0, 40), (Read, 40, 10)], 100), Some((1, 40)));
        assert_eq!(parts(&[(Write, 0, 40), (Zero { keep: false }, 40, 10)], 100), Some((1, 40)));
        let end = EXTENT_BYTES;
        assert_eq!(parts(&[(Write, end - 8, 8), (Write, end, 8)], 100), Some((1, 8)), "of another extent");
        assert_eq!(
            parts(&[(Write, 0, u32::MAX), (Write, u64::from(u32::MAX), 8)], 100).map(|first| first.0),
            Some(1)
        );
    }
}
