//! The two ends of a data connection as `rim` has them: the protocol's own machines, over bytes that are cut
//! anywhere.
//!
//! Owns: what each end keeps between two arrivals, and how bytes are cut. Never: memory (`parts`, `serving`),
//! or when anything arrives (`network`). One byte stands for a sector here, too: offsets and lengths on the
//! wire count sectors. Invariant: no end sees a byte that the other did not send, nor two in another order.

use crate::bytes::{SECTOR, sectors};
use crate::network::Awaited;
use crate::rng::Rng;
use cheetah_core::donor::{ListedWrite, Ticket, WriteMark};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::volume::{Key, PartError, PartOp};
use cheetah_nbd::client::{Answer, Request, Take};
use cheetah_nbd::server::Outbox;
use cheetah_nbd::{
    CmdFlags, Command, Errno, ExportInfo, LedgerEntry, Mark, Negotiated, TransmissionFlags, client, server,
};

pub(crate) const HOLES: u32 = 1;
pub(crate) const DIRTY: u32 = 2;
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
fn session(export_bytes: u64, writable: bool) -> Negotiated {
    let flags = [
        TransmissionFlags::SEND_FLUSH,
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        if writable { TransmissionFlags::EMPTY } else { TransmissionFlags::READ_ONLY },
    ];
    let flags = flags.into_iter().fold(TransmissionFlags::EMPTY, TransmissionFlags::with);
    Negotiated {
        export: String::new(),
        info: ExportInfo::new(wired(export_bytes), flags),
        structured_replies: true,
        base_allocation: Some(HOLES),
        dirty: Some(DIRTY),
    }
}

/// What a client keeps of a part until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) part: Key,
    pub(crate) awaited: Awaited,
    /// Of a write, as it was when it was sent.
    pub(crate) data: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct ClientEnd {
    pub(crate) transmission: client::Transmission<Body>,
    /// What is not whole yet.
    pub(crate) input: Vec<u8>,
    /// The socket is full: what is left goes when there is room.
    pub(crate) is_full: bool,
}

impl ClientEnd {
    /// Who may write numbers what it writes.
    pub(crate) fn new(announced_bytes: u64, writable: bool) -> ClientEnd {
        let (session, within, large) =
            (session(announced_bytes, writable), wired(EXTENT_BYTES), wired_len(LARGE_BYTES));
        let transmission = client::Transmission::new(&session, writable, within, large);
        ClientEnd { transmission, input: Vec::new(), is_full: false }
    }

    /// What it says first, so that the donor tells it of numbered writes.
    pub(crate) fn first_words() -> Vec<u8> {
        Mark { number: 0, targets: 0, complete: 0 }.header().encode().to_vec()
    }

    pub(crate) fn queue(&mut self, address: u64, body: Body) {
        let Awaited { op, scatter, mark, .. } = body.awaited;
        let zeros = op == PartOp::Sparse && body.data.iter().all(|byte| *byte == 0);
        let (command, flags) = match op {
            _ if zeros => (Command::WriteZeroes, CmdFlags::EMPTY),
            PartOp::Read => (Command::Read, CmdFlags::EMPTY),
            PartOp::Write | PartOp::Sparse => (Command::Write, CmdFlags::EMPTY),
            PartOp::Zero { keep: true } => (Command::WriteZeroes, CmdFlags::NO_HOLE),
            PartOp::Zero { keep: false } => (Command::WriteZeroes, CmdFlags::EMPTY),
            PartOp::Trim => (Command::Trim, CmdFlags::EMPTY),
            PartOp::Status | PartOp::Survey => (Command::BlockStatus, CmdFlags::EMPTY),
            PartOp::Age => (Command::Flush, CmdFlags::EMPTY),
        };
        let context = if op == PartOp::Survey { DIRTY } else { HOLES };
        let mark = mark.map(|WriteMark { number, targets, complete }| Mark { number, targets, complete });
        let cookie = body.part.to_u64();
        let (offset, length, context) = (wired(address), wired_len(scatter.len.into()), Some(context));
        self.transmission.queue(Request { cookie, command, flags, offset, length, mark, context, body });
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

pub(crate) fn part_error(errno: Errno, beyond: bool) -> PartError {
    match errno {
        Errno::Perm => PartError::Denied,
        Errno::Inval | Errno::NoSpc if beyond => PartError::Denied,
        _ => PartError::Io,
    }
}

pub(crate) fn listed(entry: &LedgerEntry) -> ListedWrite {
    let LedgerEntry { from, to, number, targets, landed } = *entry;
    ListedWrite { from: from * SECTOR, to: to * SECTOR, number, targets, landed }
}

pub(crate) fn entry(write: ListedWrite) -> LedgerEntry {
    let ListedWrite { from, to, number, targets, landed } = write;
    LedgerEntry { from: wired(from), to: wired(to), number, targets, landed }
}

/// A write of which payload is still to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) refused: Option<Errno>,
    pub(crate) ticket: Option<Ticket>,
}

#[derive(Debug)]
pub(crate) struct DonorEnd {
    pub(crate) transmission: server::Transmission,
    pub(crate) input: Vec<u8>,
    pub(crate) outbox: Outbox<Vec<u8>>,
    /// What the client said last of its writes, if it numbers them.
    pub(crate) mark: Option<WriteMark>,
    pub(crate) write: Option<Write>,
}

impl DonorEnd {
    pub(crate) fn new(extents: u32, writable: bool) -> DonorEnd {
        let session = session(u64::from(extents) * EXTENT_BYTES, writable);
        let transmission = server::Transmission::new(session, wired_len(LARGE_BYTES));
        let (input, outbox) = (Vec::new(), Outbox::new(true));
        DonorEnd { transmission, input, outbox, mark: None, write: None }
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
