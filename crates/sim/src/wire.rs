//! The two ends of a data connection as `rim` has them: the protocol's own machines, over bytes that are cut
//! anywhere.
//!
//! Owns: what each end keeps between two arrivals, how bytes are cut, and the scale: one byte stands for a
//! sector here, too, so offsets and lengths on the wire count sectors. Never: memory (`parts`, `serving`),
//! when anything arrives (`network`), or what is said (`terms`). Invariant: no end sees a byte that the other
//! did not send, nor two in another order.

use crate::bytes::{BLOCK, SECTOR, sectors};
use crate::network::Awaited;
use crate::rng::Rng;
use cheetah_core::donor::{Grant, Ticket, WriteMark};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::volume::Key;
use cheetah_nbd::client::{Answer, Request, Take};
use cheetah_nbd::proto::opt;
use cheetah_nbd::server::{ExportError, Outbox};
use cheetah_nbd::{Digest, Errno, ExportInfo, LedgerEntry, Negotiated, RequestHeader, client, server};
use cheetah_terms::client::{Abilities, payload_bytes};
use cheetah_terms::donor::export;

const HOLES: u32 = 1;
const DIRTY: u32 = 2;
const CONTEXT: u32 = 3;
/// Data from here on is received where it belongs (`rim::stream::DIRECT_BYTES`).
const LARGE_BYTES: u64 = 16 << 10;

/// A length or an offset as the wire has it.
pub(crate) fn wired(bytes: u64) -> u64 {
    sectors(bytes) as u64
}

pub(crate) fn wired_len(bytes: u64) -> u32 {
    u32::try_from(wired(bytes)).expect("a part is below 4 GiB")
}

/// What a donor and its client agreed on. The client was told where its volume ends there; to the donor all
/// of its memory is in reach, and `Access` decides.
fn session(grant: &Grant, export_bytes: u64) -> Negotiated {
    Negotiated {
        export: String::new(),
        info: ExportInfo { size: wired(export_bytes), ..export(grant) },
        structured_replies: true,
        base_allocation: Some(HOLES),
        dirty: Some(DIRTY),
        context: Some(CONTEXT),
        auth: None,
    }
}

/// What a client keeps of a part until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) part: Key,
    pub(crate) awaited: Awaited,
    /// Of a write, as it was when it was sent.
    pub(crate) data: Vec<u8>,
    /// The checksums of its blocks, as they were meant.
    pub(crate) sums: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct ClientEnd {
    can: Abilities,
    pub(crate) transmission: client::Transmission<Body>,
    /// What is not whole yet.
    pub(crate) input: Vec<u8>,
    /// The socket is full: what is left goes when there is room.
    pub(crate) is_full: bool,
}

impl ClientEnd {
    pub(crate) fn new(grant: &Grant) -> ClientEnd {
        let (session, within, large) =
            (session(grant, grant.size), wired(EXTENT_BYTES), wired_len(LARGE_BYTES));
        let can = Abilities::of(&session);
        let transmission =
            client::Transmission::new(&session, can.numbers_writes(), within, large).with_block(BLOCK as u32);
        ClientEnd { can, transmission, input: Vec::new(), is_full: false }
    }

    pub(crate) fn numbers_writes(&self) -> bool {
        self.can.numbers_writes()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.can.is_sealed()
    }

    pub(crate) fn queue(&mut self, address: u64, body: Body) {
        let Awaited { op, scatter, mark, .. } = body.awaited;
        let op = self.can.sparing(op, || body.data.iter().all(|byte| *byte == 0));
        let (offset, length) = (wired(address), wired_len(scatter.len.into()));
        let digest = payload_bytes(op, length) > 0 && self.can.is_sealed();
        let digest = digest.then(|| {
            let sums = Digest::of_blocks(offset / BLOCK as u64, body.sums.iter().copied());
            Digest { sums }
        });
        let request = self.can.request(body.part, op, offset, length, mark, body);
        self.transmission.queue(Request { digest, ..request });
    }
}

/// What came, in order: data of reads before the answers that end them.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    pub(crate) data: Vec<(Key, Awaited, usize, Vec<u8>)>,
    pub(crate) answers: Vec<Answer<Body>>,
}

impl Take<Body> for Taking {
    fn data(&mut self, body: &Body, at: u32, bytes: &[u8]) {
        self.data.push((body.part, body.awaited, at as usize, bytes.to_vec()));
    }

    fn hole(&mut self, body: &Body, at: u32, end: u32) {
        self.data.push((body.part, body.awaited, at as usize, vec![0; (end - at) as usize]));
    }

    fn answer(&mut self, answer: Answer<Body>) {
        self.answers.push(answer);
    }
}

/// A request as core counts.
pub(crate) fn in_bytes(header: &RequestHeader) -> RequestHeader {
    let length = u32::try_from(u64::from(header.length) * SECTOR).expect("a part is below 4 GiB");
    RequestHeader { offset: header.offset * SECTOR, length, ..*header }
}

/// An answer as core counts.
pub(crate) fn answer_in_bytes(mut answer: Answer<Body>) -> Answer<Body> {
    for run in &mut answer.status {
        run.length = u32::try_from(u64::from(run.length) * SECTOR).expect("a part");
    }
    for entry in answer.ledger.iter_mut().flat_map(|(_, entries)| entries) {
        (entry.from, entry.to) = (entry.from * SECTOR, entry.to * SECTOR);
    }
    answer
}

/// An entry as the wire counts.
pub(crate) fn entry_in_sectors(entry: LedgerEntry) -> LedgerEntry {
    LedgerEntry { from: wired(entry.from), to: wired(entry.to), ..entry }
}

/// A refusal as the handshake brings it to the client.
pub(crate) fn as_heard(error: &ExportError) -> client::Error {
    let (reply, message) = error.reply();
    client::Error::Refused { option: opt::GO, reply, message: message.to_owned() }
}

/// A write of which payload is still to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) refused: Option<Errno>,
    pub(crate) ticket: Option<Ticket>,
    /// What its payload is, as its client says.
    pub(crate) digest: Option<Digest>,
}

#[derive(Debug)]
pub(crate) struct DonorEnd {
    pub(crate) transmission: server::Transmission,
    pub(crate) input: Vec<u8>,
    pub(crate) outbox: Outbox<Vec<u8>>,
    /// What the client said last of its writes, if it numbers them.
    pub(crate) mark: Option<WriteMark>,
    pub(crate) write: Option<Write>,
    /// What has come of it, where it lands as a whole.
    pub(crate) late: Option<Vec<u8>>,
    /// What the payload of the next write is.
    pub(crate) digest: Option<Digest>,
}

impl DonorEnd {
    pub(crate) fn new(extents: u32, grant: &Grant) -> DonorEnd {
        let session = session(grant, u64::from(extents) * EXTENT_BYTES);
        let (input, outbox) = (Vec::new(), Outbox::of(&session));
        let transmission = server::Transmission::new(session, wired_len(LARGE_BYTES));
        DonorEnd { transmission, input, outbox, mark: None, write: None, late: None, digest: None }
    }

    /// What is to be sent.
    pub(crate) fn answers(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.outbox.pieces() {
            match piece {
                server::outbox::Piece::Head(head) => bytes.extend_from_slice(head),
                server::outbox::Piece::Payload { payload, .. } => bytes.extend_from_slice(payload),
            }
        }
        self.outbox.clear(drop);
        bytes
    }
}

/// Cuts what leaves as a network would: mostly not, sometimes anywhere, and seldom again and again.
pub(crate) fn cut(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let mut cuts = Vec::new();
    while bytes.len() > 1 && rng.percent(25) {
        let behind = bytes.split_off(1 + rng.index(bytes.len() - 1));
        cuts.push(std::mem::replace(&mut bytes, behind));
    }
    cuts.push(bytes);
    cuts
}
