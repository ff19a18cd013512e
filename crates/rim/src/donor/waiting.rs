//! What a client of a disk waits for: blocks that come into memory, and writes that reach the disk.
//!
//! Owns the requests that are put off, and which blocks are held in memory for answers. Never: the disk
//! (`crate::disk`), or what an answer says (`connection`). Invariants: what an answer is made of is held
//! until it is sent; a connection that waits for much takes no more requests; one that ends holds nothing.
//! Called by `connection`. Tests: `lab/disks.rs`.

use crate::arena::{Arena, Begun, Said};
use crate::auth::Auth;
use crate::disk::{Disk, Hold, Landed, Teller, Told};
use cheetah_core::donor::Ticket;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_nbd::{CmdFlags, Command, Errno, RequestHeader};
use std::collections::HashMap;
use std::io;
use tokio::sync::mpsc;

/// So many requests wait at most, or so many bytes.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// What goes on once the disk has done its part.
#[derive(Debug)]
pub(super) enum Waiting {
    Read(RequestHeader),
    Check(RequestHeader),
    /// A write, or zeros.
    Write {
        header: RequestHeader,
        ticket: Option<Ticket>,
    },
    Flush(RequestHeader),
}

impl Waiting {
    fn bytes(&self) -> u64 {
        match self {
            Waiting::Read(header) | Waiting::Check(header) | Waiting::Write { header, .. } => {
                header.length.into()
            }
            Waiting::Flush(_) => 0,
        }
    }
}

/// What a write brings.
#[derive(Clone, Copy)]
pub(super) enum Coming<'a> {
    /// Of an encrypted volume with the nonces and authentication tags of its blocks.
    Bytes(&'a [u8], &'a [Auth], Option<Said>),
    Zeros,
}

pub(super) struct OnDisk<'a> {
    disk: &'a Disk,
    tell: mpsc::UnboundedSender<Told>,
    told: mpsc::UnboundedReceiver<Told>,
    waiting: HashMap<u64, Waiting>,
    bytes: u64,
    /// How many have waited so far.
    count: u64,
    /// Offsets and lengths, for answers that are not sent.
    held: Vec<(u64, u64)>,
}

impl<'a> OnDisk<'a> {
    pub(super) fn new(disk: &'a Disk) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        OnDisk { disk, tell, told, waiting: HashMap::new(), bytes: 0, count: 0, held: Vec::new() }
    }

    /// Whether it takes such a request: it knows whole blocks only.
    pub(super) fn takes(&self, header: &RequestHeader) -> Result<(), Errno> {
        let changes = matches!(header.command, Command::Write | Command::WriteZeroes | Command::Trim);
        let is_whole = (header.offset | u64::from(header.length)).is_multiple_of(BLOCK_BYTES);
        if changes && !is_whole { Err(Errno::Inval) } else { Ok(()) }
    }

    /// Whether it is time to wait before more is taken on.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX || self.bytes >= WAITING_BYTES_MAX
    }

    /// What the disk has done, or None: there is something to read, if `reads_on`.
    pub(super) async fn told_or(
        &mut self,
        readable: impl Future<Output = io::Result<()>>,
        reads_on: bool,
    ) -> io::Result<Option<Told>> {
        tokio::select! {
            told = self.told.recv(), if !self.waiting.is_empty() => Ok(told),
            readable = readable, if reads_on => readable.map(|()| None),
        }
    }

    fn wait(&mut self, waiting: Waiting) -> Teller {
        self.count += 1;
        self.bytes += waiting.bytes();
        self.waiting.insert(self.count, waiting);
        Teller { tell: self.tell.clone(), waits_for: self.count }
    }

    /// What waited for that; None: nothing does any more.
    pub(super) fn waits_no_more(&mut self, told: &Told) -> Option<Waiting> {
        let waiting = self.waiting.remove(&told.waits_for)?;
        self.bytes -= waiting.bytes();
        Some(waiting)
    }

    /// Whether what a read asks for is in memory, and stays there until its answer is sent; else it waits,
    /// and what has come stays as well. `again`: it waited.
    pub(super) fn holds(&mut self, header: &RequestHeader, again: bool) -> bool {
        let (offset, len) = (header.offset, u64::from(header.length));
        let teller = self.wait(Waiting::Read(*header));
        let hold = match again {
            false => self.disk.hold(offset, len, &teller),
            true => self.disk.look(offset, len, &teller),
        };
        let is_here = hold == Hold::Here;
        if is_here {
            self.waiting.remove(&teller.waits_for);
            self.bytes -= len;
            self.held.push((offset, len));
        }
        is_here
    }

    /// All answers are sent.
    pub(super) fn let_go(&mut self) {
        self.held.drain(..).for_each(|(offset, len)| self.disk.let_go(offset, len));
    }

    /// What is asked for is looked at where it lies.
    pub(super) fn check(&mut self, header: &RequestHeader) {
        let teller = self.wait(Waiting::Check(*header));
        self.disk.check(header.offset, header.length.into(), teller);
    }

    /// Whether a block is right as far as it is in memory.
    pub(super) fn is_right(&self, block: u64) -> bool {
        self.disk.is_right_in_memory(block)
    }

    /// Before a write, or zeros, reach memory.
    pub(super) fn begin(&mut self, header: &RequestHeader) {
        self.disk.begin(header.offset, header.length.into());
    }

    /// It is in memory, and goes to the disk.
    pub(super) fn commit(&mut self, header: &RequestHeader, ticket: Option<Ticket>) {
        let teller = self.wait(Waiting::Write { header: *header, ticket });
        self.disk.commit(header.offset, header.length.into(), teller);
    }

    /// A write of a volume with write-back has come, or zeros. Whether it is answered now; None: it is not
    /// what its client meant.
    pub(super) fn land(
        &mut self,
        header: &RequestHeader,
        ticket: Option<Ticket>,
        what: Coming,
    ) -> Option<bool> {
        let teller = self.wait(Waiting::Write { header: *header, ticket });
        let number = teller.waits_for;
        let through = header.flags.contains(CmdFlags::FUA);
        let landed = match what {
            Coming::Bytes(bytes, auths, said) => {
                self.disk.land(header.offset, (bytes, auths), said, through, teller)
            }
            Coming::Zeros => Some(self.disk.land_zeros(header.offset, header.length.into(), through, teller)),
        };
        if landed != Some(Landed::Waits) {
            self.waiting.remove(&number);
            self.bytes -= u64::from(header.length);
        }
        landed.map(|landed| landed == Landed::Done)
    }

    /// Whether the disk has all that was answered; else it waits.
    pub(super) fn flush(&mut self, header: &RequestHeader) -> bool {
        let teller = self.wait(Waiting::Flush(*header));
        let number = teller.waits_for;
        let is_done = self.disk.flush(teller);
        if is_done {
            self.waiting.remove(&number);
        }
        is_done
    }

    /// What the disk may have lost of its memory.
    pub(super) fn disk(&self) -> &Disk {
        self.disk
    }

    /// It is in memory, and is not what its client meant.
    pub(super) fn cut(&mut self, header: &RequestHeader) {
        self.disk.cut(header.offset, header.length.into());
    }

    /// Its client went before all of it was here.
    pub(super) fn cut_off(&mut self, arena: &Arena, begun: Begun) {
        arena.wrote_in_vain(begun);
        let (offset, len) = begun.place();
        self.disk.cut(offset, len);
    }
}

impl Drop for OnDisk<'_> {
    fn drop(&mut self) {
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            if let Waiting::Read(header) = waiting {
                self.disk.let_go(header.offset, header.length.into());
            }
        }
        self.let_go();
    }
}
