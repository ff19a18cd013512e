//! Requests for a volume that is larger than its memory: blocks of it may be dropped at any moment.
//!
//! Owns what is different about them. Never: everything else of a request (`connection`). Invariant: nobody
//! is given a block that went while its answer was put together. Called by `connection`.
//! Tests: `tests/donor_wire.rs`, `lab/open.rs`.

use super::Connection;
use cheetah_nbd::{Command, Errno, RequestHeader};
use cheetah_terms::donor::tell_absent;
use std::io;

/// A read looks again so often when blocks were dropped while it was put together.
const LOOKS_MAX: u32 = 8;
pub(super) const SHARES_MEMORY: &str = "this volume is larger than its memory, and what is here of it changes: only Cheetah's own \
                             clients read it; attach it and use the file or export of that";

impl Connection<'_> {
    /// Whether its client does not look at what it is given, on a volume whose blocks may go at any moment.
    pub(super) fn is_strange(&self) -> bool {
        self.grant.layers > 1 && self.requests.session().context.is_none()
    }

    /// A read of blocks that may be dropped at the same time.
    pub(super) fn read_shared(&mut self, header: &RequestHeader) {
        let (place, len) = (self.place(header.offset), u64::from(header.length));
        for _ in 0..LOOKS_MAX {
            let drops = self.arena.drops();
            let (sums, runs) =
                (self.arena.sums(place, len).collect::<Vec<_>>(), self.sending.runs(place, len));
            // Only now: what is known still was whole when it was looked at, unless it went and came again.
            let auths = match self.sending.has_auth {
                true => self.arena.auths(place, len).collect(),
                false => Vec::new(),
            };
            let absent = self.arena.first_unknown(place, len);
            if self.arena.drops() != drops {
                continue;
            }
            return match absent {
                Some(at) => self.is_absent(header, header.offset + (at - place)),
                None => {
                    if self.sending.has_auth {
                        self.sending.outbox.auth(header, auths.into_iter());
                    }
                    self.sending.read_runs(header, place, Some(sums.into_iter()), runs);
                }
            };
        }
        self.is_absent(header, header.offset);
    }

    pub(super) fn is_absent(&mut self, header: &RequestHeader, at: u64) {
        tell_absent(&mut self.sending.outbox, self.requests.session(), header.cookie, at);
    }

    /// Zeros are known; what is trimmed of a volume that shares memory is absent from then on.
    pub(super) fn zero_shared(&mut self, header: &RequestHeader, keep: bool) {
        let RequestHeader { cookie, offset, length, command, .. } = *header;
        let (place, len) = (self.place(offset), u64::from(length));
        self.work_bytes += len;
        if command == Command::Trim {
            self.arena.drop_blocks(place, len);
            return self.sending.outbox.done(cookie);
        }
        let room = if keep { self.arena.take_room(offset, len).map(Some) } else { Ok(None) };
        match room.and_then(|room| self.arena.make_layer(place).map(|()| room)) {
            Ok(room) => {
                self.begin_write(offset, len);
                self.arena.zero(place, len, keep);
                room.into_iter().for_each(|room| self.arena.give_back_room(room));
                self.sending.outbox.done(cookie);
            }
            Err(error) => self.sending.outbox.error(cookie, no_room(&error), ""),
        }
    }
}

/// Why a write to memory that is shared is refused.
pub(super) fn no_room(error: &io::Error) -> Errno {
    if error.kind() == io::ErrorKind::StorageFull { Errno::NoSpc } else { Errno::NoMem }
}
