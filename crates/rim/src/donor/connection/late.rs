//! A volume with write-back: what is answered before the disk has it, and what is not because it may not have
//! it.
//!
//! Owns the answers. Never: what is dirty or stale (`crate::disk`), or the disk. Invariant: nothing is read
//! of what may be older than what was acknowledged, and no flush is answered while anything of its volume may
//! be. Called by `connection`. Tests: `lab/disks_write_back.rs`.

use super::{Coming, Connection, DISK_FAILED};
use cheetah_core::donor::{Access, Ticket};
use cheetah_nbd::{Command, Errno, RequestHeader};

pub(super) const MAY_BE_OLDER: &str = "what this donor's disk has there may be older than what was written";

impl Connection<'_> {
    /// Why a read is not answered, or a flush: the disk may not have what was acknowledged before a stop.
    pub(super) fn may_be_older(&self, header: &RequestHeader, access: &Access) -> Option<Errno> {
        let disk = self.on_disk.as_ref().filter(|_| self.grant.write_back)?.disk();
        match header.command {
            Command::Flush => {
                access.written_by(&self.grant).any(|extent| disk.is_stale_in(extent)).then_some(Errno::NotSup)
            }
            _ => disk.is_stale(header.offset, header.length.into()).then_some(Errno::Io),
        }
    }

    /// All of a write of a volume with write-back is here.
    pub(super) fn land(&mut self, header: &RequestHeader, ticket: Option<Ticket>, what: Coming) {
        match self.on_disk.as_mut().and_then(|on_disk| on_disk.land(header, ticket, what)) {
            Some(true) => {
                self.landed(ticket);
                self.answer_write(header);
            }
            Some(false) => {}
            // Its checksums tell its client that nothing of it was taken.
            None => self.answer_write(header),
        }
    }

    /// The disk is to have all that was answered.
    pub(super) fn flush(&mut self, header: &RequestHeader) {
        if self.on_disk.as_mut().is_none_or(|on_disk| on_disk.flush(header)) {
            self.sending.outbox.done(header.cookie);
        }
    }

    pub(super) fn flushed(&mut self, header: &RequestHeader, is_good: bool) {
        match is_good {
            true => self.sending.outbox.done(header.cookie),
            false => self.sending.outbox.error(header.cookie, Errno::Io, DISK_FAILED),
        }
    }
}
