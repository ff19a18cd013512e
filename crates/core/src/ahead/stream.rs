//! Streams: runs of reads that go one way, and what each will likely ask for next.
//!
//! Owns how one stream moves, how far ahead of it is fetched and in which pieces. Never: finding streams,
//! memory. Invariant: what was asked for once is not asked for again while the stream goes on.
//! Called by `ahead`. Tests: `tests/ahead.rs`.

use super::holes::Holes;
use super::{ITEMS_MAX, PIECE_BYTES_MAX, Read, Want, blocks};
use crate::limits::{BLOCK_BYTES, SECOND_NS};
use crate::units::Time;

/// Reads of one stream may come in another order than they were made, when several are under way.
const DISORDER_BYTES: u64 = 2 << 20;
/// A tool that leaves out this much still reads on,
const GAP_BYTES: u64 = 256 << 10;
/// as long as it reads one byte of so many.
const DENSE_PART: u64 = 4;
/// And as many items of a stride.
const GAP_ITEMS: u64 = 8;
/// A read that passes so many of its own size leaps. Few readers have so many under way together, and of
/// those few leap twice.
const LEAP_PART: u64 = 32;
/// A stream that was not read for so long takes only what it expects.
const TRUSTED_NS: u64 = SECOND_NS;
/// Of so many items of a stride one is not offered.
const ITEMS_SEEN: u64 = 8;
/// The smallest fetch of a stream without gaps, and a multiple of any block.
const PIECE_BYTES_MIN: u64 = 16 << 10;
/// What was fetched for a stream and passed by its reads may be so many times as large as one of them.
const PASSED_READS_MAX: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trend {
    Forward,
    Backward,
    /// From the beginning of one read to that of the next.
    Stride(i64),
}

/// How well a read fits a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is what the stream is expected to ask for.
    Next,
    /// It is near, or one that was passed over.
    Near,
    /// As `Near`, of a reader that leaves out most of what it passes, or leaps again: it may be going another
    /// way.
    Sparse,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) number: u32,
    trend: Trend,
    /// How far the tool has come: the end of its reads, their beginning, or the beginning of the last.
    head: u64,
    /// How far was asked, in the same measure.
    asked: u64,
    /// Bytes of one read.
    len: u32,
    /// Bytes ahead.
    window: u64,
    /// Bytes that the tool has read of it.
    pub(super) consumed: u64,
    pub(super) used_at: Time,
    /// Bytes that were offered to its reader, and that it asked for all the same.
    pub(super) untaken: u64,
    /// What its reads passed over; elsewhere, because every read looks at all streams, and seldom at this.
    holes: Box<Holes>,
    /// Bytes of that which were not made up for; less by what is read.
    left_out: u64,
    /// Bytes that were offered to its reader, and that it has not passed.
    offered: u64,
    /// Since it went on last its readers may have changed.
    doubted: bool,
    /// Nor did it go on twice since: so many bytes ahead are enough.
    enough: Option<u64>,
    /// Its last read leapt. One that leaps now and then, and reads what it leapt to, goes its way.
    leapt: bool,
    /// Bytes that were fetched for it and not read; fewer by what those that were have spared.
    unread: u64,
}

/// The window of a reader of whom nothing is known.
fn begun(free: u64, len: u32) -> u64 {
    free.max(2 * u64::from(len))
}

impl Stream {
    /// `free`: bytes ahead that cost next to nothing.
    pub(super) fn new(number: u32, trend: Trend, now: Time, read: Read, free: u64) -> Stream {
        let Read { offset, len, .. } = read;
        let head = if trend == Trend::Forward { offset + u64::from(len) } else { offset };
        let begun = begun(free, len);
        Stream {
            number,
            trend,
            head,
            asked: head,
            len,
            window: begun,
            consumed: begun,
            used_at: now,
            untaken: 0,
            holes: Box::default(),
            left_out: 0,
            offered: 0,
            doubted: false,
            enough: None,
            leapt: false,
            unread: 0,
        }
    }

    /// A read had to wait: the window doubles, but not beyond `most`.
    pub(super) fn grow(&mut self, most: u64) {
        self.window = (2 * self.window).min(most).max(2 * u64::from(self.len));
    }

    /// What was asked for and not read yet.
    pub(super) fn ahead(&self) -> u64 {
        self.bytes_between(self.head, self.asked)
    }

    /// Some of it is gone unread: less, and anew.
    pub(super) fn wasted(&mut self) {
        self.window = (self.window / 2).max(2 * u64::from(self.len));
        self.consumed /= 2;
        self.restart();
    }

    /// Whether a read may be one of this stream.
    pub(super) fn fit(&self, now: Time, offset: u64, len: u32) -> Option<Fit> {
        let end = offset + u64::from(len);
        let near = match self.trend {
            Trend::Forward if offset <= self.head && end > self.head => return Some(Fit::Next),
            Trend::Backward if offset < self.head && end + self.offered >= self.head => {
                return Some(Fit::Next);
            }
            Trend::Forward if offset > self.head => offset <= self.asked.max(self.head + GAP_BYTES),
            Trend::Backward if offset < self.head => end >= self.asked || end + GAP_BYTES >= self.head,
            Trend::Forward | Trend::Backward => {
                self.head.abs_diff(offset) <= DISORDER_BYTES && self.holes.touches(offset, end)
            }
            Trend::Stride(stride) => {
                // Most reads are out of its reach, which needs no division.
                let (moved, step) = (offset.abs_diff(self.head), stride.unsigned_abs());
                let (asked, most) = (self.asked.abs_diff(self.head), GAP_ITEMS.saturating_mul(step));
                let way = moved == 0 || (offset > self.head) == (stride > 0);
                let near = way && moved <= asked.max(most) && moved % step == 0;
                if near && moved > 0 && moved <= asked {
                    return Some(Fit::Next);
                }
                near
            }
        };
        let trusted = !self.doubted && self.used_at + TRUSTED_NS > now;
        let leaps_again = self.leapt && self.is_leap(self.passed(offset, end), len);
        let is_sparse = self.left_out > GAP_BYTES || leaps_again;
        (near && trusted).then_some(if is_sparse { Fit::Sparse } else { Fit::Near })
    }

    /// Bytes between what it read last and a read further on.
    fn passed(&self, offset: u64, end: u64) -> u64 {
        match self.trend {
            Trend::Forward => offset.saturating_sub(self.head),
            Trend::Backward => self.head.saturating_sub(end),
            Trend::Stride(_) => 0,
        }
    }

    /// Whether a read of so many bytes leaves out far more than those, of what its reader was not given.
    fn is_leap(&self, passed: u64, len: u32) -> bool {
        passed >= self.offered + LEAP_PART * u64::from(len)
    }

    /// Takes a read in that fits.
    pub(super) fn follow(&mut self, now: Time, offset: u64, len: u32) {
        let end = offset + u64::from(len);
        let passed = self.passed(offset, end);
        self.leapt = self.is_leap(passed, len);
        // What its reader was given it need not ask for.
        if passed > self.offered {
            let (from, to) = if offset > self.head { (self.head, offset) } else { (end, self.head) };
            self.left_out += self.holes.leave(from, to);
        }
        self.offered = self.offered.saturating_sub(passed);
        self.left_out += self.holes.fill(offset, end);
        self.left_out = self.left_out.saturating_sub((DENSE_PART - 1) * u64::from(len));
        if !self.doubted && passed == 0 {
            self.enough = None;
        }
        (self.used_at, self.doubted) = (now, false);
        self.len = len;
        let before = self.head;
        match self.trend {
            Trend::Forward => {
                self.head = self.head.max(end);
                self.asked = self.asked.max(self.head);
            }
            Trend::Backward => {
                self.head = self.head.min(offset);
                self.asked = self.asked.min(self.head);
                self.offered = self.offered.min(self.head - self.asked);
            }
            Trend::Stride(stride) => {
                self.head = offset;
                if (self.asked.wrapping_sub(self.head).cast_signed() / stride) < 0 {
                    self.asked = self.head;
                }
            }
        }
        // It may have read more than is seen here.
        self.consumed += self.bytes_between(before, self.head);
    }

    fn bytes_between(&self, from: u64, to: u64) -> u64 {
        match self.trend {
            Trend::Stride(stride) => from.abs_diff(to) / stride.unsigned_abs() * u64::from(self.len),
            Trend::Forward | Trend::Backward => from.abs_diff(to),
        }
    }

    /// The part of a piece that its reader may be given before it asks. What is left out is asked for when
    /// the reader comes there, which tells how far it is.
    pub(super) fn offer(&mut self, start: u64, len: u32) -> u32 {
        match self.trend {
            _ if 2 * self.untaken > self.consumed => 0,
            // The kernel reads ahead itself.
            Trend::Forward => 0,
            Trend::Backward => {
                let len = len.saturating_sub(BLOCK_BYTES as u32);
                let (from, to) = (start.max(self.asked), self.head.min(start + u64::from(len)));
                self.offered += to.saturating_sub(from);
                len
            }
            Trend::Stride(stride) => {
                let is_seen = (start / stride.unsigned_abs()).is_multiple_of(ITEMS_SEEN);
                if is_seen { 0 } else { len }
            }
        }
    }

    /// So much was fetched for it.
    pub(super) fn fetched(&mut self, bytes: u32) {
        self.unread += u64::from(bytes);
    }

    /// A read found so much of that there, which spared it a round trip: `spared` bytes are worth that.
    pub(super) fn used(&mut self, bytes: u32, spared: u64) {
        self.unread = self.unread.saturating_sub(u64::from(bytes) + spared);
    }

    /// Whether so little of what was fetched was passed unread that more may be, behind a read that it did
    /// not expect.
    pub(super) fn is_worth_more(&self) -> bool {
        self.unread <= self.ahead() + PASSED_READS_MAX * u64::from(self.len)
    }

    /// Nothing of what was asked for is there, or will be.
    pub(super) fn restart(&mut self) {
        self.asked = self.head;
        self.offered = 0;
    }

    /// Its reader may be another one from now on, who comes by once: no more than `free` bytes ahead are
    /// worth a guess.
    pub(super) fn forget(&mut self, free: u64) {
        self.restart();
        self.enough = Some(free);
        self.left_out += self.holes.clear();
        self.doubted = true;
        self.unread = 0;
    }

    /// What to ask for now, so that `window` bytes are ahead; nothing while half of it still is.
    pub(super) fn extend(&mut self, size: u64, wants: &mut Vec<Want>) {
        let window = self.enough.map_or(self.window, |free| self.window.min(begun(free, self.len)));
        let piece = (window / 4).next_power_of_two().clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        let stream = self.number;
        match self.trend {
            Trend::Forward => {
                let to = (self.head + window).next_multiple_of(piece).min(size);
                if self.asked + window / 2 > self.head + window || to <= self.asked {
                    return;
                }
                while self.asked < to {
                    let end = ((self.asked / piece + 1) * piece).min(to);
                    wants.extend(blocks(self.asked, end, size, stream));
                    self.asked = end;
                }
            }
            Trend::Backward => {
                let to = self.head.saturating_sub(window) / piece * piece;
                if self.asked < self.head.saturating_sub(window / 2) || to >= self.asked {
                    return;
                }
                while self.asked > to {
                    let begin = ((self.asked - 1) / piece * piece).max(to);
                    wants.extend(blocks(begin, self.asked, size, stream));
                    self.asked = begin;
                }
            }
            Trend::Stride(stride) => {
                let items = (window / u64::from(self.len)).clamp(2, ITEMS_MAX);
                let ahead = (self.asked.wrapping_sub(self.head).cast_signed() / stride).unsigned_abs();
                if ahead > items / 2 {
                    return;
                }
                for _ in ahead..items {
                    let next = self.asked.checked_add_signed(stride).filter(|next| *next < size);
                    let Some(next) = next else { return };
                    wants.extend(blocks(next, next + u64::from(self.len), size, stream));
                    self.asked = next;
                }
            }
        }
    }

    /// This could not be asked for: it is, the next time.
    pub(super) fn refused(&mut self, want: Want) {
        match self.trend {
            Trend::Forward => self.asked = self.asked.min(want.offset).max(self.head),
            Trend::Backward => self.asked = self.asked.max(want.offset + u64::from(want.len)).min(self.head),
            Trend::Stride(_) => self.restart(),
        }
    }
}
