//! What a volume that is larger than its memory keeps: what comes of memory being full.
//!
//! Owns when pieces are dropped, which ones, and what becomes of those that are; and that what tools ask for
//! in a row is read ahead though nothing else is. Never: how much room there is (`room`). Invariant: what is
//! on its way or being asked for is not dropped. Called by `Order`. Tests: `room_tests`.

use super::room::Worth;
use super::{Order, PAUSE_NS, PIECE_BYTES, Piece, Work, pieces_of};
use crate::limits::BLOCK_BYTES;
use crate::units::Time;
use std::ops::Range;

/// So much follows what a tool asks for in a row...
const FOLLOWS_PIECES: usize = 32;
/// ...of which so many are told apart.
const ROWS_MAX: usize = 16;

impl Order {
    /// Donors may hold a part of each of these pieces, which takes memory that nobody knows of: it goes.
    pub fn doubt(&mut self, range: &Range<u64>) {
        if self.room.is_none() {
            return;
        }
        for piece in
            self.pieces_of(range).filter(|piece| self.pieces[*piece] == Piece::Absent).collect::<Vec<_>>()
        {
            self.set(piece, Piece::Leaving);
            self.undropped.insert(piece);
        }
    }

    /// These are metadata: they go last.
    pub fn value(&mut self, range: &Range<u64>) {
        if let Some(room) = &mut self.room {
            let pieces = pieces_of(range, self.pieces.len());
            for piece in pieces.clone().filter(|piece| self.pieces[*piece] == Piece::Here) {
                room.is_here(piece, Worth::Metadata);
            }
            self.metadata.extend(pieces);
        }
    }

    /// Where not all is kept, what lies behind what is asked for in a row is not here before it is asked for:
    /// some of it follows.
    pub(super) fn follow(&mut self, range: &Range<u64>) {
        if self.room.is_none() {
            return;
        }
        let (before, end) = (self.rows.len(), range.end);
        self.rows.retain(|row| {
            !(range.start..=range.start + PIECE_BYTES).contains(&(row + PIECE_BYTES)) && *row != range.start
        });
        if self.rows.len() < before {
            let ahead = end..(end + FOLLOWS_PIECES as u64 * PIECE_BYTES).min(self.size);
            self.expect(std::iter::once(ahead), true);
        }
        self.rows.push_back(end);
        if self.rows.len() > ROWS_MAX {
            self.rows.pop_front();
        }
    }

    /// What a `Work::Drop` came to: which of them donors dropped for certain.
    pub fn dropped(&mut self, now: Time, ranges: Vec<(Range<u64>, bool)>) {
        for (range, done) in ranges {
            for piece in self.pieces_of(&range) {
                match (self.pieces[piece], done) {
                    (Piece::Leaving, true) => {
                        self.set(piece, Piece::Absent);
                        if self.is_asked(piece) {
                            self.asked.push_front(piece);
                        }
                    }
                    (Piece::Leaving, false) => {
                        self.undropped.insert(piece);
                        self.drop_at = now + PAUSE_NS;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether donors hold as much as they have room for, so that only what is asked for is read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether all of these bytes that are not here are asked for, expected or on their way.
    #[must_use]
    pub fn is_coming(&self, range: &Range<u64>) -> bool {
        self.pieces_of(range).all(|piece| {
            let is_on_its_way = matches!(self.pieces[piece], Piece::Here | Piece::Coming);
            is_on_its_way || self.is_expected.contains(&piece) || self.is_asked(piece)
        })
    }

    /// Whether not all of the volume is kept.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.room.is_some()
    }

    /// Has what is worth no more than that go for a piece.
    pub(super) fn make_room(&mut self, piece: usize, most: Worth) -> Option<Work> {
        let room = self.room.as_ref().filter(|room| !room.is_leaving(piece))?;
        // A block that ends with the volume in its middle cannot be dropped.
        let ends_in_a_block =
            |victim: usize| victim + 1 == self.pieces.len() && !self.size.is_multiple_of(BLOCK_BYTES);
        let stays = |victim: usize| self.checking.contains(&victim) || ends_in_a_block(victim);
        let is_wanted = |victim: usize| {
            let bytes = self.bytes_of(victim..victim + 1);
            stays(victim)
                || self.waits.iter().any(|wait| wait.bytes.start < bytes.end && bytes.start < wait.bytes.end)
        };
        let mut victims = room.victims(piece, most, is_wanted);
        if victims.is_empty() && !room.is_moving(piece) {
            // Who waits for more than there is room for gets it piece by piece.
            victims = room.victims(piece, most, stays);
        }
        victims.iter().for_each(|victim| self.set(*victim, Piece::Leaving));
        (!victims.is_empty()).then(|| Work::Drop(self.ranges_of(&victims)))
    }

    pub(super) fn has_room(&self, piece: usize, for_waiter: bool) -> bool {
        self.room.as_ref().is_none_or(|room| room.has(piece, for_waiter))
    }

    /// As few ranges as make up these pieces, which are ascending.
    pub(super) fn ranges_of(&self, pieces: &[usize]) -> Vec<Range<u64>> {
        let runs = pieces.chunk_by(|one, next| one + 1 == *next);
        let runs = runs.filter_map(|run| Some(*run.first()?..run.last()? + 1));
        runs.map(|run| self.bytes_of(run)).collect()
    }

    /// A piece is here, and takes memory or not.
    pub(super) fn arrive(&mut self, piece: usize, takes_memory: bool) {
        self.set(piece, Piece::Here);
        let worth = match (self.metadata.contains(&piece), self.is_asked(piece)) {
            (true, _) => Worth::Metadata,
            (_, true) => Worth::Asked,
            _ => Worth::Ahead,
        };
        if let Some(room) = &mut self.room {
            match takes_memory {
                true => room.is_here(piece, worth),
                false => room.is_gone(piece),
            }
        }
    }
}
