//! In which order a source is read into a volume: what is asked for now, then what is expected to be, then
//! the rest as it lies.
//!
//! Owns which pieces of the volume are here, on their way or absent, who waits for which, when the next one
//! may be read, and how much of what nobody waits for is under way. Never: bytes, threads, or
//! where a source is. Invariants: a piece is on its way once, so one read serves all who wait for it; what is
//! here is not read again unless donors say that it is gone, or it made room for another; what is on its way,
//! in or out, is neither read nor dropped; whoever asked is answered once. Called by the filler of `cheetah
//! open`, and by `sim`. Files: `pressure` (of what nobody waits for), `room` (how much there is), `keep`
//! (what comes of there being none). Tests: `tests`, `room_tests`.

mod keep;
mod pressure;
mod room;

pub use room::Sharing;

use crate::content::ByteRange;
use crate::limits::SECOND_NS;
use crate::units::Time;
use crate::volume::FetchError;
use pressure::Pressure;
use room::{Room, Worth};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// What is read at once for who waits: a few blocks of a format, and little beside what was asked for.
pub const PIECE_BYTES: u64 = 64 << 10;
/// Pieces that are read at once when nobody waits.
const RUN_PIECES: usize = 16;
/// After a failure nothing is read in order for so long.
const PAUSE_NS: Time = SECOND_NS;

/// Who asked, by the caller's own number.
pub type Asker = u64;

/// What one reader of the source does next. Bytes of the volume; it ends at pieces or at the volume's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read it at the source, and write it. `Order::fetched` says what came of it.
    Fetch(Range<u64>),
    /// It was here, and somebody misses it, or gets it otherwise than it was written: ask donors.
    /// `Order::checked` says what they hold.
    Check(Range<u64>),
    /// It makes room: have donors drop these. `Order::dropped` says of each whether they did.
    Drop(Vec<Range<u64>>),
}

/// What a fetch came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// What of it the source cannot give.
    pub bad: Vec<ByteRange>,
    /// Pieces that are zeros and take no memory, each as a whole.
    pub zeros: Vec<Range<u64>>,
}

/// What is to be told to who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who.
    pub to: Asker,
    /// Whether donors hold all of it now.
    pub result: Result<(), FetchError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Absent,
    Coming,
    Here,
    /// Donors are told to drop it.
    Leaving,
}

#[derive(Debug)]
struct Wait {
    asker: Asker,
    bytes: Range<u64>,
    /// Pieces that are neither fetched nor checked yet.
    pieces: BTreeSet<usize>,
}

/// How far a volume is filled, and what comes next.
#[derive(Debug)]
pub struct Order {
    size: u64,
    pieces: Vec<Piece>,
    bytes_here: u64,
    /// All pieces before it are here.
    cursor: usize,
    asked: VecDeque<usize>,
    /// Donors are being asked for them, and nothing newer is known.
    checking: BTreeSet<usize>,
    /// Nobody waits for them yet. Each is once in both.
    expected: VecDeque<usize>,
    is_expected: BTreeSet<usize>,
    waits: Vec<Wait>,
    /// What the source cannot give: ascending, apart.
    bad: Vec<ByteRange>,
    paused: bool,
    /// Bytes each second that are read in order at most.
    rate: Option<u64>,
    /// Nothing is read in order before this.
    not_before: Time,
    pressure: Pressure,
    /// Where not all can be kept.
    room: Option<Room>,
    metadata: BTreeSet<usize>,
    /// Where what was asked for lately ended.
    rows: VecDeque<u64>,
    /// Leaving, and nobody has told donors yet, or in vain; not before `drop_at`.
    undropped: BTreeSet<usize>,
    drop_at: Time,
    /// What lies next was looked for, and there was no room for any of it.
    is_full: bool,
}

impl Order {
    /// Nothing of the volume is here.
    #[must_use]
    pub fn new(size: u64, sharing: Option<Sharing>) -> Order {
        let pieces = usize::try_from(size.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        Order {
            size,
            pieces: vec![Piece::Absent; pieces],
            bytes_here: 0,
            cursor: 0,
            asked: VecDeque::new(),
            checking: BTreeSet::new(),
            expected: VecDeque::new(),
            is_expected: BTreeSet::new(),
            waits: Vec::new(),
            bad: Vec::new(),
            paused: false,
            rate: None,
            not_before: 0,
            pressure: Pressure::default(),
            room: sharing.map(Room::new),
            metadata: BTreeSet::new(),
            rows: VecDeque::new(),
            undropped: BTreeSet::new(),
            drop_at: 0,
            is_full: false,
        }
    }

    // What is told.

    /// Only what is asked for is read from now on, or the rest as well.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Bytes each second that are read in order at most; what is asked for is not held up.
    pub fn limit(&mut self, rate: Option<u64>) {
        (self.rate, self.not_before) = (rate.filter(|rate| *rate > 0), 0);
    }

    /// Donors hold all of these pieces, or lack some of each.
    pub fn learn(&mut self, range: Range<u64>, is_here: bool) {
        for piece in self.pieces_of(&range) {
            match (is_here, self.pieces[piece]) {
                (true, Piece::Absent) => self.arrive(piece, true),
                (false, Piece::Here) => {
                    self.set(piece, Piece::Absent);
                    // Who waits for what donors say need not.
                    if self.checking.remove(&piece) {
                        self.asked.push_front(piece);
                    }
                }
                _ => {}
            }
        }
    }

    /// These are expected to be asked for: behind what was expected before, or, `soon`, in front of it. What
    /// was expected before stays in its place.
    pub fn expect(&mut self, ranges: impl DoubleEndedIterator<Item = Range<u64>>, soon: bool) {
        let expect = |order: &mut Order, piece: usize| {
            if order.pieces[piece] == Piece::Absent && order.is_expected.insert(piece) {
                match soon {
                    true => order.expected.push_front(piece),
                    false => order.expected.push_back(piece),
                }
            }
        };
        let most = self.room.as_ref().map_or(usize::MAX, Room::ahead_max);
        match soon {
            true => {
                let pieces: Vec<usize> = ranges.flat_map(|range| self.pieces_of(&range)).take(most).collect();
                pieces.into_iter().rev().for_each(|piece| expect(self, piece));
            }
            false => ranges.for_each(|range| self.pieces_of(&range).for_each(|piece| expect(self, piece))),
        }
    }

    /// Somebody misses these bytes.
    pub fn ask(&mut self, now: Time, asker: Asker, range: Range<u64>) -> Option<Answer> {
        self.pressure.asked(now);
        let range = range.start..range.end.min(self.size);
        if range.is_empty() {
            return Some(Answer { to: asker, result: Err(FetchError::Unreadable) });
        }
        self.follow(&range);
        let pieces: BTreeSet<usize> = self.pieces_of(&range).collect();
        self.asked.extend(&pieces);
        self.waits.push(Wait { asker, bytes: range, pieces });
        None
    }

    /// What a `Work::Fetch` came to, or that it is not here, so that it is tried again.
    pub fn fetched(&mut self, now: Time, range: Range<u64>, result: Result<Fetched, ()>) -> Vec<Answer> {
        let is_here = result.is_ok();
        self.pressure.ended(now, range.start, is_here);
        for piece in self.pieces_of(&range) {
            match &result {
                Ok(fetched) => {
                    let bytes = self.bytes_of(piece..piece + 1);
                    let is_in = |zeros: &Range<u64>| zeros.start <= bytes.start && bytes.end <= zeros.end;
                    self.arrive(piece, !fetched.zeros.iter().any(is_in));
                }
                // Some of it may be there.
                Err(()) if self.room.is_some() => {
                    self.set(piece, Piece::Leaving);
                    self.undropped.insert(piece);
                }
                Err(()) => self.set(piece, Piece::Absent),
            }
            self.checking.remove(&piece);
        }
        match result {
            Ok(Fetched { bad, .. }) => crate::content::cover(&mut self.bad, bad),
            Err(()) => self.not_before = self.not_before.max(now + PAUSE_NS),
        }
        self.settle(&range, is_here)
    }

    /// What a `Work::Check` came to: whether donors hold all that the source could give of it.
    pub fn checked(&mut self, range: Range<u64>, result: Result<bool, ()>) -> Vec<Answer> {
        // One that came meanwhile is here, whatever donors said before.
        let asked: Vec<usize> =
            self.pieces_of(&range).filter(|piece| self.checking.contains(piece)).collect();
        if result == Ok(false) {
            for piece in asked.into_iter().rev() {
                self.learn(self.bytes_of(piece..piece + 1), false);
            }
            return Vec::new();
        }
        asked.iter().for_each(|piece| {
            self.checking.remove(piece);
        });
        self.settle(&range, result.is_ok())
    }

    // What comes next.

    /// What is asked for, and then, unless `asked_only`, what lies next. Where memory is full, first what
    /// goes for that.
    pub fn next(&mut self, now: Time, asked_only: bool) -> Option<Work> {
        if now >= self.drop_at && !self.undropped.is_empty() {
            let pieces: Vec<usize> = std::mem::take(&mut self.undropped).into_iter().collect();
            return Some(Work::Drop(self.ranges_of(&pieces)));
        }
        if let Some(work) = self.next_asked() {
            return Some(work);
        }
        if asked_only || self.paused || now < self.not_before {
            return None;
        }
        let expected = self.next_expected();
        let room = self.pressure.room(now, !self.waits.is_empty(), expected.is_some())?;
        let most = usize::try_from(room / PIECE_BYTES).unwrap_or(RUN_PIECES).clamp(1, RUN_PIECES);
        let range = match expected {
            Some(first) if !self.has_room(first, true) => {
                if self.room.as_ref().is_some_and(|room| room.is_leaving(first)) {
                    return None;
                }
                let room = self.make_room(first, Worth::Asked);
                if room.is_none() {
                    // What it would take the place of is worth more.
                    self.is_expected.remove(&first);
                    self.expected.retain(|piece| *piece != first);
                }
                return room;
            }
            Some(first) => self.take(first, most, |order, next| order.is_expected.contains(&next)),
            None => {
                let first = self.next_as_it_lies()?;
                self.take(first, most, |order, next| order.has_room(next, false))
            }
        };
        self.pressure.begun(now, &range);
        if let Some(rate) = self.rate {
            let bytes = u128::from(range.end - range.start) * u128::from(SECOND_NS);
            let takes = Time::try_from(bytes / u128::from(rate)).unwrap_or(Time::MAX);
            self.not_before = self.not_before.max(now).saturating_add(takes);
        }
        Some(Work::Fetch(range))
    }

    /// What somebody waits for. What has no room yet, because others go for it, keeps its turn.
    fn next_asked(&mut self) -> Option<Work> {
        let (mut blocked, mut work) = (Vec::new(), None);
        while let Some(piece) = self.asked.pop_front() {
            let is_wanted = self.waits.iter().any(|wait| wait.pieces.contains(&piece));
            work = match self.pieces[piece] {
                _ if !is_wanted => None,
                Piece::Absent if !self.has_room(piece, true) => {
                    blocked.push(piece);
                    self.make_room(piece, Worth::Metadata)
                }
                Piece::Absent => {
                    Some(Work::Fetch(self.take(piece, RUN_PIECES, |order, next| order.is_asked(next))))
                }
                Piece::Here if self.checking.insert(piece) => {
                    Some(Work::Check(self.bytes_of(piece..piece + 1)))
                }
                // Once it is gone it is asked for anew.
                Piece::Here | Piece::Coming | Piece::Leaving => None,
            };
            if work.is_some() {
                break;
            }
        }
        blocked.into_iter().rev().for_each(|piece| self.asked.push_front(piece));
        work
    }

    /// What could not be read is expected still.
    fn next_expected(&mut self) -> Option<usize> {
        while let Some(piece) = self.expected.front().filter(|piece| self.pieces[**piece] == Piece::Here) {
            self.is_expected.remove(piece);
            self.expected.pop_front();
        }
        self.expected.iter().copied().find(|piece| self.pieces[*piece] == Piece::Absent)
    }

    fn next_as_it_lies(&mut self) -> Option<usize> {
        while self.pieces.get(self.cursor) == Some(&Piece::Here) {
            self.cursor += 1;
        }
        let mut at = self.cursor;
        self.is_full = false;
        while let Some(ahead) = self.pieces.get(at..) {
            let Some(room) = &self.room else {
                return Some(at + ahead.iter().position(|piece| *piece == Piece::Absent)?);
            };
            let end = room.behind_chunk(at).min(self.pieces.len());
            let fits = |piece: &usize| self.pieces[*piece] == Piece::Absent && room.has(*piece, false);
            if room.chunk_has(at)
                && let Some(found) = (at..end).find(fits)
            {
                return Some(found);
            }
            at = end;
            if at == self.pieces.len() {
                break;
            }
        }
        self.is_full = !self.is_complete();
        None
    }

    /// When `next` may have more to do than now, if nothing else happens.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let open = !self.paused && !self.is_complete();
        let times = [self.not_before, self.pressure.eases_at(now)].into_iter().filter(|_| open);
        let drops = (!self.undropped.is_empty()).then_some(self.drop_at);
        times.chain(drops).filter(|at| *at > now).min()
    }

    // What there is.

    /// Whether all is here that the source can give.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.bytes_here == self.size
    }

    /// Whether all of these bytes are.
    #[must_use]
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.pieces_of(range).all(|piece| self.pieces[piece] == Piece::Here)
    }

    /// Bytes that are here, those among them that the source cannot give.
    #[must_use]
    pub fn bytes_here(&self) -> u64 {
        self.bytes_here
    }

    /// What the source cannot give.
    #[must_use]
    pub fn bad(&self) -> &[ByteRange] {
        &self.bad
    }

    /// Only what is asked for is read.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Who waits, each by what it asked for.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Panics when a rule that the code relies on does not hold. For tests and the simulator.
    pub fn check_invariants(&self) {
        let here = (0..self.pieces.len()).filter(|piece| self.pieces[*piece] == Piece::Here);
        let bytes = here.map(|piece| self.bytes_of(piece..piece + 1)).map(|range| range.end - range.start);
        assert_eq!(self.bytes_here, bytes.sum::<u64>(), "what is here is miscounted");
        assert!(
            self.waits.iter().all(|wait| !wait.pieces.is_empty()),
            "who waits for nothing was not answered"
        );
        if let Some(room) = &self.room {
            room.check_invariants();
        }
        let leaves = |piece: &usize| self.pieces[*piece] == Piece::Leaving;
        assert!(self.undropped.iter().all(leaves), "what is to go is here or on its way");
    }

    fn is_asked(&self, piece: usize) -> bool {
        self.waits.iter().any(|wait| wait.pieces.contains(&piece))
    }

    /// From this piece on what is absent and wanted, so many at most, up to a run's border: it is on its way
    /// then.
    fn take(&mut self, first: usize, most: usize, wanted: impl Fn(&Order, usize) -> bool) -> Range<u64> {
        let border = ((first / RUN_PIECES + 1) * RUN_PIECES).min(self.pieces.len()).min(first + most);
        self.set(first, Piece::Coming);
        let mut end = first + 1;
        while end < border
            && self.pieces[end] == Piece::Absent
            && self.has_room(end, true)
            && wanted(self, end)
        {
            self.set(end, Piece::Coming);
            end += 1;
        }
        self.bytes_of(first..end)
    }

    fn set(&mut self, piece: usize, to: Piece) {
        let bytes = self.bytes_of(piece..piece + 1);
        let len = bytes.end - bytes.start;
        let before = std::mem::replace(&mut self.pieces[piece], to);
        if before == Piece::Here {
            self.bytes_here -= len;
        }
        match to {
            Piece::Here => self.bytes_here += len,
            Piece::Absent => self.cursor = self.cursor.min(piece),
            Piece::Coming | Piece::Leaving => {}
        }
        match (&mut self.room, to) {
            (Some(room), Piece::Absent) => room.is_gone(piece),
            (Some(room), Piece::Coming) => room.comes(piece),
            (Some(room), Piece::Leaving) => room.goes(piece),
            (Some(_), Piece::Here) | (None, _) => {}
        }
    }

    /// These are over for who waits for them.
    fn settle(&mut self, range: &Range<u64>, good: bool) -> Vec<Answer> {
        let pieces = self.pieces_of(range);
        let mut answers = Vec::new();
        let bad = &self.bad;
        self.waits.retain_mut(|wait| {
            let touched: Vec<usize> = wait.pieces.range(pieces.clone()).copied().collect();
            wait.pieces.retain(|piece| !touched.contains(piece));
            let is_over = !touched.is_empty() && (!good || wait.pieces.is_empty());
            if is_over {
                let meets = |bad: &ByteRange| bad.offset < wait.bytes.end && wait.bytes.start < bad.end();
                let result = match good {
                    false => Err(FetchError::Away),
                    true if bad.iter().any(meets) => Err(FetchError::Unreadable),
                    true => Ok(()),
                };
                answers.push(Answer { to: wait.asker, result });
            }
            !is_over
        });
        answers
    }

    fn pieces_of(&self, range: &Range<u64>) -> Range<usize> {
        pieces_of(range, self.pieces.len())
    }

    fn bytes_of(&self, pieces: Range<usize>) -> Range<u64> {
        pieces.start as u64 * PIECE_BYTES..(pieces.end as u64 * PIECE_BYTES).min(self.size)
    }
}

fn pieces_of(range: &Range<u64>, all: usize) -> Range<usize> {
    let piece = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(all);
    piece(range.start / PIECE_BYTES)..piece(range.end.div_ceil(PIECE_BYTES))
}

#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;
