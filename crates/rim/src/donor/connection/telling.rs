//! What a donor tells of its memory without sending it: what is there, what is right, what was written
//! lately.
//!
//! Owns the runs that an answer is made of. Never: what they are of (`arena`, `ledgers`). Invariant: an
//! answer has `STATUS_RUNS_MAX` of them at most, and may end before its question does. Called by
//! `connection`. Tests: `tests/donor_wire.rs`.

use super::Connection;
use crate::arena::Arena;
use crate::ledgers::locked;
use cheetah_core::donor::ListedWrite;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::runs::runs as verify;
use cheetah_nbd::{Descriptor, RequestHeader, StateFlags};
use cheetah_terms::donor::{ABSENT, entry, lately, presence, rightness, tell_status};

const STATUS_RUNS_MAX: usize = 4096;

impl Connection<'_> {
    pub(super) fn verify(&mut self, header: &RequestHeader) {
        let arena = self.arena;
        self.verify_by(header, |block| arena.is_right(block));
    }

    pub(super) fn verify_by(&mut self, header: &RequestHeader, is_right: impl Fn(u64) -> bool) {
        let place = self.place(header.offset);
        let Connection { sending, requests, .. } = self;
        let Some(context) = requests.session().context else { return };
        let (offset, len) = (place, header.length.into());
        let found = runs(|run| {
            verify(offset, len, BLOCK_BYTES, is_right, |len, is_right| run(len, rightness(is_right)))
        });
        sending.outbox.status(header, true, context, &found);
    }

    pub(super) fn status(&mut self, header: &RequestHeader, is_backed: bool) {
        let (offset, len) = (self.place(header.offset), u64::from(header.length));
        let has_marks = self.grant.layers == 1;
        let Connection { arena, ledger, sending, requests, on_disk, .. } = self;
        let stale = on_disk.iter().flat_map(|on_disk| on_disk.disk().stale_runs(offset, len));
        let stale: Vec<_> = stale.map(|run| entry(ListedWrite::stale(run.start, run.end))).collect();
        let holes = || runs(|run| states(arena, offset, len, is_backed, run));
        let listed = || {
            let ledger = locked(ledger.as_ref()?);
            Some((
                ledger.complete(),
                stale.into_iter().chain(ledger.within(offset, len).map(entry)).collect(),
            ))
        };
        let dirty = || {
            // Who numbers writes is told of those that are not.
            let marks = match ledger {
                Some(_) => arena.ledgers().unnumbered(),
                None => arena.dirty(),
            };
            match has_marks {
                true => runs(|run| marks.runs(offset, len, |len, dirty| run(len, lately(dirty)))),
                false => runs(|run| run(len, lately(false))),
            }
        };
        tell_status(&mut sending.outbox, requests.session(), header, holes, listed, dirty);
    }
}

/// What `base:allocation` says of a range.
fn states(arena: &Arena, offset: u64, len: u64, is_backed: bool, run: &mut dyn FnMut(u64, StateFlags)) {
    if !is_backed {
        return arena.runs(offset, len, |len, present| run(len, presence(present)));
    }
    let mut at = offset;
    arena.known_runs(offset, len, |len, known| {
        match known {
            true => arena.runs(at, len, |len, present| run(len, presence(present))),
            false => run(len, ABSENT),
        }
        at += len;
    });
}

/// The first runs that `each` gives, as many as an answer may have.
fn runs(each: impl FnOnce(&mut dyn FnMut(u64, StateFlags))) -> Vec<Descriptor> {
    let mut found = Vec::new();
    each(&mut |len, flags| {
        if found.len() < STATUS_RUNS_MAX {
            let length = u32::try_from(len).expect("part of a request's length");
            found.push(Descriptor { length, flags });
        }
    });
    found
}
