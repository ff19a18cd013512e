//! In which order a source is read into a volume: what is asked for now, then what is expected to be, then
//! the rest as it lies.
//!
//! Owns which pieces of the volume are here, on their way or absent, who waits for which, when the next one
//! may be read, and how much of what nobody waits for is under way (`pressure`). Never: bytes, threads, or
//! where a source is. Invariants: a piece is on its way once, so
//! one read serves all who wait for it; what is here is not read again unless donors say that it is gone;
//! whoever asked is answered once. Called by the filler of `cheetah open`, and by `sim`. Tests: below.

mod pressure;

use crate::content::ByteRange;
use crate::limits::SECOND_NS;
use crate::units::Time;
use crate::volume::FetchError;
use pressure::Pressure;
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
    /// It was here, and somebody misses it: ask donors. `Order::checked` says what they hold.
    Check(Range<u64>),
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
}

impl Order {
    /// Nothing of the volume is here.
    #[must_use]
    pub fn new(size: u64) -> Order {
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
                (true, Piece::Absent) => self.set(piece, Piece::Here),
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
        match soon {
            true => ranges.rev().for_each(|range| {
                self.pieces_of(&range).rev().for_each(|piece| expect(self, piece));
            }),
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
        let pieces: BTreeSet<usize> = self.pieces_of(&range).collect();
        self.asked.extend(&pieces);
        self.waits.push(Wait { asker, bytes: range, pieces });
        None
    }

    /// What a `Work::Fetch` came to: what of it the source cannot give, or that it is not here for another
    /// reason, so that it is tried again.
    pub fn fetched(
        &mut self,
        now: Time,
        range: Range<u64>,
        result: Result<Vec<ByteRange>, ()>,
    ) -> Vec<Answer> {
        let is_here = result.is_ok();
        self.pressure.ended(now, range.start, is_here);
        for piece in self.pieces_of(&range) {
            self.set(piece, if is_here { Piece::Here } else { Piece::Absent });
            self.checking.remove(&piece);
        }
        match result {
            Ok(bad) => crate::content::cover(&mut self.bad, bad),
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

    /// What is asked for, and then, unless `asked_only`, what lies next.
    pub fn next(&mut self, now: Time, asked_only: bool) -> Option<Work> {
        while let Some(piece) = self.asked.pop_front() {
            let is_wanted = self.waits.iter().any(|wait| wait.pieces.contains(&piece));
            match self.pieces[piece] {
                _ if !is_wanted => {}
                Piece::Absent => {
                    return Some(Work::Fetch(
                        self.take(piece, RUN_PIECES, |order, next| order.is_asked(next)),
                    ));
                }
                Piece::Here if self.checking.insert(piece) => {
                    return Some(Work::Check(self.bytes_of(piece..piece + 1)));
                }
                Piece::Here | Piece::Coming => {}
            }
        }
        if asked_only || self.paused || now < self.not_before {
            return None;
        }
        let expected = self.next_expected();
        let room = self.pressure.room(now, !self.waits.is_empty(), expected.is_some())?;
        let most = usize::try_from(room / PIECE_BYTES).unwrap_or(RUN_PIECES).clamp(1, RUN_PIECES);
        let range = match expected {
            Some(first) => self.take(first, most, |order, next| order.is_expected.contains(&next)),
            None => {
                let first = self.next_as_it_lies()?;
                self.take(first, most, |_, _| true)
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
        let ahead = self.pieces.get(self.cursor..)?;
        Some(self.cursor + ahead.iter().position(|piece| *piece == Piece::Absent)?)
    }

    /// When `next` may have more to do than now, if nothing else happens.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let open = !self.paused && !self.is_complete();
        let times = [self.not_before, self.pressure.eases_at(now)];
        times.into_iter().filter(|at| *at > now && open).min()
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
    }

    fn is_asked(&self, piece: usize) -> bool {
        self.waits.iter().any(|wait| wait.pieces.contains(&piece))
    }

    /// From this piece on what is absent and wanted, so many at most, up to a run's border: it is on its way
    /// then.
    fn take(&mut self, first: usize, most: usize, wanted: impl Fn(&Order, usize) -> bool) -> Range<u64> {
        let border = ((first / RUN_PIECES + 1) * RUN_PIECES).min(self.pieces.len()).min(first + most);
        let goes_on = |piece: &usize| self.pieces[*piece] == Piece::Absent && wanted(self, *piece);
        let end = first + 1 + (first + 1..border).take_while(goes_on).count();
        for piece in first..end {
            self.set(piece, Piece::Coming);
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
            Piece::Coming => {}
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
        let piece = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(self.pieces.len());
        piece(range.start / PIECE_BYTES)..piece(range.end.div_ceil(PIECE_BYTES))
    }

    fn bytes_of(&self, pieces: Range<usize>) -> Range<u64> {
        pieces.start as u64 * PIECE_BYTES..(pieces.end as u64 * PIECE_BYTES).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PIECE_BYTES;
    const OK: Result<Vec<ByteRange>, ()> = Ok(Vec::new());
    /// Nobody has asked lately.
    const CALM: Time = SECOND_NS;

    #[test]
    fn what_is_asked_for_comes_before_what_lies_next_and_is_read_once() {
        let mut order = Order::new(40 * P);
        assert_eq!(order.next(0, false), Some(Work::Fetch(0..16 * P)));
        assert_eq!(order.ask(0, 1, 20 * P + 5..20 * P + 9), None);
        assert_eq!(order.ask(0, 2, 20 * P..21 * P), None);
        assert_eq!(order.ask(0, 3, 3 * P..4 * P), None, "it is on its way");
        assert_eq!(order.next(0, true), Some(Work::Fetch(20 * P..21 * P)));
        assert_eq!(order.next(0, true), None);
        let told = order.fetched(0, 20 * P..21 * P, OK);
        assert_eq!(told.iter().map(|answer| answer.to).collect::<Vec<_>>(), [1, 2], "one read serves both");
        assert_eq!(order.fetched(0, 0..16 * P, OK), [Answer { to: 3, result: Ok(()) }]);
        assert_eq!(order.next(CALM, false), Some(Work::Fetch(16 * P..20 * P)), "up to what is here");
        assert_eq!(order.next(CALM, false), Some(Work::Fetch(21 * P..32 * P)));
        order.check_invariants();
    }

    #[test]
    fn what_the_source_cannot_give_is_an_error_there_alone() {
        let mut order = Order::new(4 * P - 100);
        order.ask(0, 1, 0..4096);
        order.ask(0, 2, 4096..8192);
        let bad = ByteRange { offset: 4096, len: 4096 };
        assert_eq!(order.next(0, true), Some(Work::Fetch(0..P)));
        let told = order.fetched(0, 0..P, Ok(vec![bad]));
        let unreadable = Err(FetchError::Unreadable);
        assert_eq!(told, [Answer { to: 1, result: Ok(()) }, Answer { to: 2, result: unreadable }]);
        assert_eq!(order.next(CALM, false), Some(Work::Fetch(P..4 * P - 100)));
        order.fetched(CALM, P..4 * P - 100, OK);
        assert!(order.is_complete() && order.next(0, false).is_none());
        assert_eq!(order.ask(0, 3, 4 * P..5 * P).map(|told| told.result), Some(unreadable), "behind the end");
    }

    #[test]
    fn a_failure_is_told_to_who_waits_and_tried_again_later() {
        let mut order = Order::new(2 * P);
        order.ask(0, 1, 0..2 * P);
        assert_eq!(order.next(7, true), Some(Work::Fetch(0..2 * P)), "what is asked for together");
        let told = order.fetched(7, 0..2 * P, Err(()));
        assert_eq!(told, [Answer { to: 1, result: Err(FetchError::Away) }]);
        assert_eq!(order.next(7, false), None);
        assert!(order.wake_at(7).is_some_and(|at| at <= CALM + PAUSE_NS), "it is tried again");
        assert_eq!(order.next(CALM + PAUSE_NS, false), Some(Work::Fetch(0..2 * P)));
        order.check_invariants();
    }

    #[test]
    fn what_is_here_is_not_read_again_unless_donors_lack_it() {
        let mut order = Order::new(3 * P);
        order.learn(0..2 * P, true);
        assert_eq!(order.bytes_here(), 2 * P);
        order.ask(0, 1, 0..10);
        assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
        assert_eq!(order.checked(0..P, Ok(true)), [Answer { to: 1, result: Ok(()) }]);
        order.ask(0, 2, 0..10);
        assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
        assert_eq!(order.checked(0..P, Ok(false)), []);
        assert_eq!(order.next(0, true), Some(Work::Fetch(0..P)));
        assert_eq!(order.fetched(0, 0..P, OK), [Answer { to: 2, result: Ok(()) }]);
        order.ask(0, 3, 0..10);
        assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
        let away = Answer { to: 3, result: Err(FetchError::Away) };
        assert_eq!(order.checked(0..P, Err(())), [away], "donors do not say");
        order.check_invariants();
    }

    #[test]
    fn donors_are_asked_once_and_what_came_since_is_not_read_again() {
        let mut order = Order::new(2 * P);
        order.learn(0..2 * P, true);
        order.ask(0, 1, 0..10);
        order.ask(0, 2, 0..10);
        assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
        assert_eq!(order.next(0, true), None, "one answer serves both");
        // It is found to be gone otherwise, and comes, before donors have answered.
        order.learn(0..P, false);
        assert_eq!(order.next(0, true), Some(Work::Fetch(0..P)));
        assert_eq!(order.fetched(0, 0..P, OK).len(), 2);
        assert_eq!(order.checked(0..P, Ok(false)), []);
        assert_eq!((order.next(0, false), order.is_complete()), (None, true));
        order.check_invariants();
    }

    #[test]
    fn what_is_expected_comes_before_the_rest_and_behind_what_is_asked_for() {
        let mut order = Order::new(64 * P);
        order.expect([40 * P..42 * P, 20 * P + 1..20 * P + 2].into_iter(), false);
        order.expect(std::iter::once(20 * P..21 * P), false);
        order.ask(0, 1, 50 * P..50 * P + 1);
        let fetch = |from: u64, to: u64| Some(Work::Fetch(from * P..to * P));
        assert_eq!(order.next(0, true), fetch(50, 51));
        assert_eq!(order.next(0, true), None, "nobody waits for more");
        assert_eq!(order.next(CALM, false), fetch(40, 42));
        order.expect([33 * P..34 * P, 30 * P..31 * P].into_iter(), true);
        order.fetched(CALM, 50 * P..51 * P, OK);
        assert_eq!(order.next(CALM, false), fetch(33, 34), "sooner than what was expected before");
        assert_eq!(order.next(CALM, false), fetch(30, 31));
        order.fetched(CALM, 30 * P..31 * P, Err(()));
        let again = CALM + PAUSE_NS;
        assert_eq!(order.next(again, false), fetch(30, 31));
        order.expect(std::iter::once(20 * P..21 * P), true);
        assert_eq!(order.next(again, false), fetch(20, 21), "once");
        assert_eq!(order.next(again, false), fetch(0, 16), "the rest");
        order.check_invariants();
    }

    #[test]
    fn a_pause_and_a_rate_hold_up_only_what_nobody_waits_for() {
        let mut order = Order::new(64 * P);
        order.pause(true);
        assert_eq!((order.next(0, false), order.wake_at(0)), (None, None));
        order.ask(0, 1, 0..1);
        assert_eq!(order.next(0, false), Some(Work::Fetch(0..P)));
        order.fetched(0, 0..P, OK);
        order.pause(false);
        order.limit(Some(15 * P));
        assert_eq!(order.next(CALM, false), Some(Work::Fetch(P..16 * P)));
        assert_eq!((order.next(CALM, false), order.wake_at(CALM)), (None, Some(CALM + SECOND_NS)));
        order.ask(CALM, 2, 40 * P..40 * P + 1);
        assert_eq!(order.next(CALM, false), Some(Work::Fetch(40 * P..41 * P)));
        order.fetched(CALM, 40 * P..41 * P, OK);
        assert_eq!(order.next(CALM + SECOND_NS, false), Some(Work::Fetch(16 * P..32 * P)));
    }
}
