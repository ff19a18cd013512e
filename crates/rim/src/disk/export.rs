//! An export of an NBD server that others wrote, as the bytes of a disk.
//!
//! Owns the one connection to it, and what such a server has to be able to do. Never: a second connection.
//! What was answered on one that broke, and was not flushed, may be gone with the server; so a connection
//! that ends is a disk that died, and its donor finds out at its next start what is there. Nobody is kept
//! from the export by that: of two donors of one export the coordinator lets in one (`coordinator/lineage`).
//! Called by `disk`. Tests: `lab/disks_remote.rs`.

use super::DiskError;
use super::file::Blocks;
use cheetah_core::disk::PAGE_BYTES;
use cheetah_link::{Access, Answered, Link, NoLink, Pending, Unanswered};
use cheetah_nbd::uri::Uri;
use cheetah_nbd::{Command, TransmissionFlags};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What any server takes at once.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// What is zeroed at once: it may take as long as writing it.
const ZERO_BYTES_MAX: u64 = 64 << 20;
/// A server that gives no answer for so long has none.
const ANSWER: Duration = Duration::from_secs(30);

/// The export, while the connection lasts.
#[derive(Debug)]
pub(super) struct Export {
    link: Arc<Link>,
    zeroes: bool,
}

impl Export {
    /// Connects to it; and how many bytes it has.
    pub(super) fn open(uri: &Uri) -> Result<(Export, u64), DiskError> {
        let link = Link::open(uri, Access::Write, ANSWER).map_err(|why| {
            DiskError::Export(match why {
                NoLink::Again(why) | NoLink::Final(why) => why,
                NoLink::NotThere => "the server has no export of this name".to_owned(),
            })
        })?;
        let info = &link.session.info;
        let can = |flag: TransmissionFlags| info.flags.contains(flag);
        let lacks = if can(TransmissionFlags::READ_ONLY) {
            Some("its server lends it for reading alone")
        } else if !can(TransmissionFlags::SEND_FLUSH) {
            Some("its server does not say when what is written is on its disk (it knows no FLUSH)")
        } else if u64::from(info.block_min) > PAGE_BYTES {
            Some("its server takes no request of 4 KiB")
        } else {
            None
        };
        if let Some(lacks) = lacks {
            return Err(DiskError::Export(lacks.to_owned()));
        }
        let (bytes, zeroes) = (info.size, can(TransmissionFlags::SEND_WRITE_ZEROES));
        Ok((Export { link, zeroes }, bytes))
    }

    fn ask(&self, command: Command, at: u64, len: u32) -> io::Result<Vec<u8>> {
        let answered = self.link.ask(command, at, len, ANSWER);
        judged(answered).map(|answered| answered.bytes)
    }
}

fn judged(answered: Result<Answered, Unanswered>) -> io::Result<Answered> {
    answered.map_err(io::Error::other)?.done()
}

impl Blocks for Export {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut at = at;
        for part in into.chunks_mut(REQUEST_BYTES_MAX) {
            let bytes = self.ask(Command::Read, at, u32::try_from(part.len()).expect("4 MiB at most"))?;
            part.copy_from_slice(&bytes);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all(&[(at, bytes)]).pop().unwrap_or(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        self.ask(Command::Flush, 0, 0).map(drop)
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        let most = if self.zeroes { ZERO_BYTES_MAX } else { REQUEST_BYTES_MAX as u64 };
        let zeros = vec![0; if self.zeroes { 0 } else { REQUEST_BYTES_MAX }];
        let mut done = 0;
        while done < len {
            let next = most.min(len - done);
            match self.zeroes {
                true => drop(self.ask(Command::WriteZeroes, at + done, next as u32)?),
                false => self.write_at(at + done, &zeros[..next as usize])?,
            }
            done += next;
        }
        Ok(())
    }

    fn is_gone(&self) -> bool {
        self.link.has_ended()
    }

    /// All of them are on their way at once.
    fn write_all(&self, writes: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let pieces = writes.iter().map(|(at, bytes)| {
            let pieces = (0u64..).step_by(REQUEST_BYTES_MAX).zip(bytes.chunks(REQUEST_BYTES_MAX));
            pieces.map(|(from, piece)| self.link.write(at + from, piece)).collect::<Vec<_>>()
        });
        let pending: Vec<_> = pieces.collect();
        let wait = |sent: Result<Pending, Unanswered>| {
            judged(sent.and_then(|pending| pending.wait(&self.link, ANSWER))).map(drop)
        };
        // Each is waited for, also behind one that failed.
        let each = pending.into_iter().map(|pieces| pieces.into_iter().map(wait).collect::<Vec<_>>());
        each.map(|pieces| pieces.into_iter().collect()).collect()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.link.leave();
    }
}
