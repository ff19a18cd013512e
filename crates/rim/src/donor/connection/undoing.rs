//! What writes covered is put back: of one that is cut off, and where a new writer asks for it.
//!
//! Owns neither what is kept (`undo`) nor the list of writes (`ledgers`). Never: deciding what is undone.
//! Called by `connection`. Tests: `tests/donor_wire.rs`.

use super::Connection;
use crate::ledgers::locked;
use cheetah_nbd::{Errno, RequestHeader};

impl Connection<'_> {
    /// Puts back what the write of the last mark covered.
    pub(super) fn undo(&mut self, header: &RequestHeader) {
        let RequestHeader { cookie, offset, length, .. } = *header;
        self.work_bytes += u64::from(length);
        let number = self.mark.map_or(0, |mark| mark.number);
        if let (0, Some(on_disk)) = (number, &self.on_disk) {
            on_disk.disk().adopt(offset, length.into());
            return self.sending.outbox.done(cookie);
        }
        let end = offset + u64::from(length);
        let pieces = self.ledger.as_ref().and_then(|ledger| locked(ledger).undo(number, offset, end));
        let Some(pieces) = pieces else { return self.sending.outbox.error(cookie, Errno::NotSup, "") };
        // For who reads beside it; to a next writer it is as if nothing had been written.
        self.arena.dirty().mark(offset, length.into());
        pieces.iter().for_each(|(at, kept)| self.arena.put_back(*at, kept));
        self.sending.outbox.done(cookie);
    }

    /// What the write covered that is cut off, if it is kept.
    pub(super) fn puts_back(&self) -> bool {
        let listed = self.ledger.as_ref().zip(self.write.ticket);
        let kept = listed.and_then(|(ledger, ticket)| locked(ledger).cut_off(ticket));
        kept.inspect(|(at, kept)| self.arena.put_back(*at, kept)).is_some()
    }
}
