//! What there is room for of a volume that is larger than its memory, and what goes first when that is full.
//!
//! Owns how many pieces each extent holds, what they are worth, and when they were last asked for. Never:
//! which pieces are here (`Order`), or dropping them. Invariants: no extent is given more than it has room
//! for, what is on its way counted; and nothing goes that is on its way. What was read ahead goes first, then
//! what was asked for longest ago, metadata last. That a tool reads what is here nobody hears of, so a piece
//! counts as asked for when it was missed. Called by `Order`. Tests: below.

use super::PIECE_BYTES;
use crate::limits::EXTENT_BYTES;
use crate::map::VolumeMap;
use std::collections::{BTreeMap, BTreeSet};

/// What nobody waits for is read only where so many parts of an extent's room are free: the rest is for who
/// asks.
const SPARE_PART: u32 = 16;
/// Pieces of an extent that are never given out: for blocks that stay where pieces go.
const RESERVE_PIECES: u64 = 8;
/// So many parts of it make room at once.
const DROP_PART: u32 = 64;

/// How a volume's pieces share the memory of its donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Pieces of a chunk, which lies in one group.
    pub chunk: u64,
    /// Groups; chunk after chunk lies in the next.
    pub groups: u64,
    /// Data slots of a group.
    pub data: u64,
    /// Pieces of a unit.
    pub unit: u64,
    /// Pieces that an extent has room for.
    pub room: u32,
}

impl Sharing {
    /// That of a volume which is larger than its memory.
    #[must_use]
    pub fn of(map: &VolumeMap) -> Option<Sharing> {
        let data = u64::from(map.redundancy.data);
        let room = u32::try_from(EXTENT_BYTES / PIECE_BYTES - RESERVE_PIECES).ok()?;
        let unit = if data == 1 { EXTENT_BYTES } else { map.unit.into() };
        let (chunk, groups) = (map.group_bytes() / PIECE_BYTES, map.groups.len() as u64);
        let sharing = Sharing { chunk, groups, data, unit: (unit / PIECE_BYTES).max(1), room };
        (map.layers() > 1).then_some(sharing)
    }

    fn extents(&self) -> usize {
        usize::try_from(self.groups * self.data).unwrap_or(usize::MAX)
    }

    fn extent(&self, piece: usize) -> usize {
        let piece = piece as u64;
        let group = piece / self.chunk % self.groups;
        usize::try_from(group * self.data + piece % self.chunk / self.unit % self.data).unwrap_or(usize::MAX)
    }
}

/// What a piece is worth: the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// Nobody has asked for it.
    Ahead,
    Asked,
    Metadata,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    worth: Worth,
    /// When it was asked for or came, by count.
    at: u64,
    is_here: bool,
    leaves: bool,
}

#[derive(Debug)]
pub(super) struct Room {
    sharing: Sharing,
    /// Those that take room.
    pieces: BTreeMap<usize, Piece>,
    /// By extent: those that are here, the first to go first.
    here: Vec<BTreeSet<(Worth, u64, usize)>>,
    used: Vec<u32>,
    /// By extent: so many go.
    leaving: Vec<u32>,
    count: u64,
}

impl Room {
    pub(super) fn new(sharing: Sharing) -> Room {
        let extents = sharing.extents();
        let (here, used) = (vec![BTreeSet::new(); extents], vec![0; extents]);
        let leaving = used.clone();
        Room { sharing, pieces: BTreeMap::new(), here, used, leaving, count: 0 }
    }

    fn free(&self, piece: usize) -> u32 {
        self.sharing.room.saturating_sub(self.used[self.sharing.extent(piece)])
    }

    /// Whether it may come: for who waits, or with some to spare.
    pub(super) fn has(&self, piece: usize, for_waiter: bool) -> bool {
        self.free(piece) > if for_waiter { 0 } else { self.sharing.room / SPARE_PART }
    }

    /// Whether any of the extents that a chunk lies in has some to spare.
    pub(super) fn chunk_has(&self, piece: usize) -> bool {
        let group = piece as u64 / self.sharing.chunk % self.sharing.groups * self.sharing.data;
        let first = usize::try_from(group).unwrap_or(usize::MAX);
        let spare = self.sharing.room / SPARE_PART;
        self.used[first..]
            .iter()
            .take(self.sharing.data as usize)
            .any(|used| used + spare < self.sharing.room)
    }

    /// The first piece behind the chunk of this one.
    pub(super) fn behind_chunk(&self, piece: usize) -> usize {
        let chunk = usize::try_from(self.sharing.chunk).unwrap_or(usize::MAX);
        (piece / chunk + 1).saturating_mul(chunk)
    }

    /// Pieces of what is read ahead of one reader, at most.
    pub(super) fn ahead_max(&self) -> usize {
        (self.sharing.room as usize * self.sharing.extents() / 8).max(1)
    }

    /// It is on its way.
    pub(super) fn comes(&mut self, piece: usize) {
        self.count += 1;
        let new = Piece { worth: Worth::Ahead, at: self.count, is_here: false, leaves: false };
        if self.pieces.insert(piece, new).is_none() {
            self.used[self.sharing.extent(piece)] += 1;
        }
    }

    /// It is here, and was asked for or came just now.
    pub(super) fn is_here(&mut self, piece: usize, worth: Worth) {
        self.comes_if_new(piece);
        let extent = self.sharing.extent(piece);
        self.count += 1;
        let at = self.count;
        let Some(found) = self.pieces.get_mut(&piece) else { return };
        if found.is_here {
            self.here[extent].remove(&(found.worth, found.at, piece));
        }
        *found = Piece {
            worth: worth.max(if found.is_here { found.worth } else { worth }),
            at,
            is_here: true,
            leaves: false,
        };
        self.here[extent].insert((found.worth, at, piece));
    }

    fn comes_if_new(&mut self, piece: usize) {
        if !self.pieces.contains_key(&piece) {
            self.comes(piece);
        }
    }

    /// It takes room still, and is not to go again.
    pub(super) fn goes(&mut self, piece: usize) {
        let extent = self.sharing.extent(piece);
        self.comes_if_new(piece);
        if let Some(found) = self.pieces.get_mut(&piece).filter(|found| !found.leaves) {
            (found.is_here, found.leaves) = (false, true);
            self.here[extent].remove(&(found.worth, found.at, piece));
            self.leaving[extent] += 1;
        }
    }

    /// It takes no room any more, or none at all.
    pub(super) fn is_gone(&mut self, piece: usize) {
        let extent = self.sharing.extent(piece);
        if let Some(found) = self.pieces.remove(&piece) {
            self.used[extent] -= 1;
            self.leaving[extent] -= u32::from(found.leaves);
            self.here[extent].remove(&(found.worth, found.at, piece));
        }
    }

    /// What may go for this piece: of no more worth than that, and none that is wanted.
    pub(super) fn victims(&self, piece: usize, most: Worth, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let (of, at_once) = (&self.here[self.sharing.extent(piece)], self.sharing.room / DROP_PART);
        let may_go = of.iter().take_while(|(worth, ..)| *worth <= most).map(|(.., piece)| *piece);
        let mut victims: Vec<usize> =
            may_go.filter(|piece| !is_wanted(*piece)).take(at_once.max(1) as usize).collect();
        victims.sort_unstable();
        victims
    }

    /// Whether something makes room in the extent of this piece already.
    pub(super) fn is_leaving(&self, piece: usize) -> bool {
        self.leaving[self.sharing.extent(piece)] > 0
    }

    /// Whether something comes or goes in the extent of this piece.
    pub(super) fn is_moving(&self, piece: usize) -> bool {
        let extent = self.sharing.extent(piece);
        self.here[extent].len() < self.used[extent] as usize
    }

    pub(super) fn check_invariants(&self) {
        let mut used = vec![0; self.used.len()];
        for piece in self.pieces.keys() {
            used[self.sharing.extent(*piece)] += 1;
        }
        assert_eq!(used, self.used, "room is miscounted");
        let here = self.pieces.values().filter(|piece| piece.is_here).count();
        assert_eq!(self.here.iter().map(BTreeSet::len).sum::<usize>(), here, "what may go is miscounted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups of a stripe of two, extents of four pieces.
    fn room() -> Room {
        Room::new(Sharing { chunk: 8, groups: 2, data: 2, unit: 1, room: 4 })
    }

    #[test]
    fn pieces_share_the_extent_that_the_layout_says() {
        let sharing = room().sharing;
        let extents = [0, 1, 2, 7, 8, 9, 16, 17, 24].map(|piece| sharing.extent(piece));
        assert_eq!(extents, [0, 1, 0, 1, 2, 3, 0, 1, 2]);
    }

    #[test]
    fn what_was_read_ahead_goes_first_and_metadata_last() {
        let mut room = room();
        for (piece, worth) in [(0, Worth::Metadata), (2, Worth::Asked), (4, Worth::Ahead), (6, Worth::Asked)]
        {
            assert!(room.has(piece, true));
            room.comes(piece);
            room.is_here(piece, worth);
        }
        assert!(!room.has(16, true) && room.has(1, true) && room.has(8, true));
        let gone = |room: &Room, most| room.victims(16, most, |_| false);
        assert_eq!((gone(&room, Worth::Ahead), gone(&room, Worth::Metadata)), (vec![4], vec![4]));
        room.is_gone(4);
        assert_eq!((gone(&room, Worth::Ahead), gone(&room, Worth::Asked)), (vec![], vec![2]));
        room.is_here(2, Worth::Asked);
        assert_eq!(gone(&room, Worth::Asked), [6], "the other was asked for again");
        assert_eq!(room.victims(16, Worth::Metadata, |piece| piece != 0), [0]);
        room.goes(6);
        assert_eq!(gone(&room, Worth::Asked), [2], "it goes already");
        assert!(room.is_moving(0) && !room.is_moving(1));
        room.check_invariants();
    }
}
