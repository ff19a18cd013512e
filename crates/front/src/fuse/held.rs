//! How much of the file the pool holds, for who asks how many blocks it takes: the rest are holes.
//!
//! Owns: counting, in steps, what donors say of the whole volume, and what that is worth later. Never: makes
//! anybody wait for longer than `PATIENCE`. Invariants: what is said is never less than there is, for who
//! takes a hole for granted reads less than there is (GNU tar archives a file without blocks as one hole):
//! what was written since the count began is added, what was not counted or may be written by somebody else
//! counts as held; a file of which another may be the writer is never said to hold nothing; one count runs at
//! a time, for a tenth of the time at most.
//! Called by `fs` and `session`, begun by `mount`. Tests: below; through a mounted volume, `tests/file.rs`;
//! with tools, end to end.

use crate::changes::{BLOCK_BYTES, Changes, Landed};
use cheetah_rim::volume::{Completion, Op, Sink, StatusRun, Submission, VolumeHandle};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// One question. A multiple of any block.
const STEP_BYTES: u64 = 1 << 30;
/// Between two counts, and ten times as long as one took.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_FACTOR: u32 = 10;
/// How long who asks waits for a count.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Held {
    handle: VolumeHandle,
    changes: Changes,
    count: Mutex<Count>,
    /// Told when a count is done.
    done: watch::Sender<()>,
    this: Weak<Held>,
}

#[derive(Debug, Default)]
struct Count {
    running: Option<Running>,
    last: Option<Counted>,
    not_before: Option<Instant>,
    beside: Beside,
}

/// A writer beside a reader.
#[derive(Clone, Copy, Debug, Default)]
enum Beside {
    /// None was heard of.
    #[default]
    Nobody,
    There,
    LeftAt(Instant),
}

/// A count that came to its end.
#[derive(Clone, Copy, Debug)]
struct Counted {
    began: Instant,
    /// Bytes behind this are not known.
    end: u64,
    bytes: u64,
    /// What was written when it began.
    landed: Landed,
    /// Some of it was not said, and counts as held.
    in_part: bool,
}

#[derive(Debug)]
struct Running {
    at: u64,
    sum: Counted,
}

impl Held {
    pub(super) fn new(handle: VolumeHandle, changes: Changes) -> Arc<Held> {
        Arc::new_cyclic(|this| Held {
            handle,
            changes,
            count: Mutex::default(),
            done: watch::Sender::new(()),
            this: this.clone(),
        })
    }

    pub(super) fn set_writer_beside(&self, there: bool) {
        let mut count = self.count();
        count.beside = match (there, count.beside) {
            (true, _) => Beside::There,
            (false, Beside::There) => Beside::LeftAt(Instant::now()),
            (false, before) => before,
        };
    }

    /// Of the first `size` bytes, for who asked at that time.
    pub(super) fn bytes(&self, size: u64, asked: Instant) -> u64 {
        let landed = self.changes.all_landed();
        let count = self.count();
        match &count.last {
            None => size,
            Some(last) if self.handle.read_only() => last.for_reader(size, asked, count.beside),
            Some(last) => last.bytes_at(size, landed),
        }
    }

    /// Counts anew, if who asked at that time may hear another number, and the last count was not just now.
    pub(super) fn refresh(&self, asked: Instant) {
        let now = Instant::now();
        let (end, landed) = (self.handle.size(), self.changes.all_landed());
        let mut count = self.count();
        let is_true = count.last.as_ref().is_some_and(|last| {
            let unheard = self.handle.read_only() && last.began < asked;
            !unheard && !last.in_part && (last.end, last.landed) == (end, landed)
        });
        if is_true || count.running.is_some() || count.not_before.is_some_and(|until| now < until) {
            return;
        }
        let sum = Counted { began: now, end, bytes: 0, landed, in_part: false };
        count.running = Some(Running { at: 0, sum });
        drop(count);
        self.ask(0, end);
    }

    /// Whether a count that who asked at that time may wait for says more than the last one: of bytes that
    /// were not counted, or of what others wrote. What was written here since is added to it.
    pub(super) fn is_to_come(&self, asked: Instant) -> bool {
        self.count().is_to_come(self.handle.size(), self.handle.read_only(), asked)
    }

    /// Waits for such a count, if it does not take long.
    pub(super) async fn counted(&self, asked: Instant) {
        let until = asked + PATIENCE;
        let mut done = self.done.subscribe();
        loop {
            self.refresh(asked);
            let again = {
                let count = self.count();
                let is_to_come = count.is_to_come(self.handle.size(), self.handle.read_only(), asked);
                match count.next_word(until).filter(|_| is_to_come && Instant::now() < until) {
                    Some(again) => again,
                    None => return,
                }
            };
            tokio::select! {
                _ = done.changed() => {}
                () = tokio::time::sleep_until(again.into()) => {}
            }
        }
    }

    fn ask(&self, at: u64, end: u64) {
        let Some(sink) = self.this.upgrade() else { return };
        let len = u32::try_from((end - at).min(STEP_BYTES)).expect("a step fits");
        self.handle.submit(Submission { op: Op::Status, offset: at, len, buffer: None, token: at, sink });
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, status: &[StatusRun]) {
        let mut count = self.count();
        let Some(running) = &mut count.running else { return };
        running.take(status);
        if running.at < running.sum.end {
            let (at, end) = (running.at, running.sum.end);
            drop(count);
            return self.ask(at, end);
        }
        let sum = running.sum;
        count.last = Some(sum);
        count.running = None;
        count.not_before = Some(Instant::now() + PAUSE_MIN.max(sum.began.elapsed() * PAUSE_FACTOR));
        drop(count);
        self.done.send_replace(());
    }
}

impl Count {
    fn is_to_come(&self, size: u64, read_only: bool, asked: Instant) -> bool {
        let is_old = |last: &Counted| last.end < size || (read_only && last.is_old(asked, self.beside));
        self.last.as_ref().is_none_or(is_old)
    }

    /// When there is something to look at for who waits until then; none: the next count begins later. Over
    /// a long link that is most often so, and a tool that looks at the file for each that it reads would wait
    /// each time.
    fn next_word(&self, until: Instant) -> Option<Instant> {
        match (&self.running, self.not_before) {
            (Some(_), _) | (None, None) => Some(until),
            (None, Some(pause)) => Some(pause).filter(|pause| *pause < until),
        }
    }
}

impl Counted {
    /// With what was written here since it began.
    fn bytes_at(&self, size: u64, landed: Landed) -> u64 {
        let since = landed.bytes.saturating_sub(self.landed.bytes);
        let unknown = size.saturating_sub(self.end);
        self.bytes.saturating_add(since).saturating_add(landed.failed_bytes).saturating_add(unknown).min(size)
    }

    /// Whether another may have written since.
    fn is_old(&self, asked: Instant, beside: Beside) -> bool {
        match beside {
            Beside::Nobody => false,
            Beside::There => self.began < asked,
            Beside::LeftAt(when) => self.began < when,
        }
    }

    /// What others wrote since is not known.
    fn for_reader(&self, size: u64, asked: Instant, beside: Beside) -> u64 {
        let said = if self.is_old(asked, beside) { size } else { self.bytes_at(size, self.landed) };
        // The writer may write the moment after it was counted, and be heard of seconds later.
        said.max(BLOCK_BYTES).min(size)
    }
}

impl Running {
    /// What is said of the next bytes; of what nothing is said, a step is held.
    fn take(&mut self, status: &[StatusRun]) {
        let step = (self.sum.end - self.at).min(STEP_BYTES);
        let said: u64 = status.iter().map(|run| u64::from(run.len)).sum::<u64>().min(step);
        let data: u64 = status.iter().filter(|run| !run.hole).map(|run| u64::from(run.len)).sum();
        if said == 0 {
            (self.at, self.sum.bytes) = (self.at + step, self.sum.bytes + step);
            self.sum.in_part |= step > 0;
        } else {
            (self.at, self.sum.bytes) = (self.at + said, self.sum.bytes + data.min(said));
        }
    }
}

impl Sink for Held {
    fn complete(&self, completion: Completion) {
        // Lost ranges are no holes.
        let status = if completion.result.is_ok() { completion.status.as_slice() } else { &[] };
        self.answered(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{FILLED_BY_HOLES, filled_by};

    fn counted(end: u64, bytes: u64) -> Counted {
        Counted { began: Instant::now(), end, bytes, landed: Landed::default(), in_part: false }
    }

    #[test]
    fn what_is_not_said_is_held() {
        let mut running = Running { at: 0, sum: counted(5 << 30, 0) };
        running.take(&[StatusRun { len: 100, hole: false }, StatusRun { len: 50, hole: true }]);
        assert_eq!((running.at, running.sum.bytes, running.sum.in_part), (150, 100, false));
        running.take(&[]);
        assert_eq!((running.at, running.sum.bytes), (150 + STEP_BYTES, 100 + STEP_BYTES));
        assert!(running.sum.in_part, "and counted again");
        running.take(&[StatusRun { len: u32::MAX, hole: true }]);
        assert_eq!((running.at, running.sum.bytes), (150 + 2 * STEP_BYTES, 100 + STEP_BYTES));
    }

    #[test]
    fn what_was_written_since_the_count_began_is_added_and_what_failed_stays() {
        let size = 1 << 30;
        let changes = Changes::default();
        changes.landed(filled_by(4096), false);
        let last = Counted { landed: changes.all_landed(), ..counted(size, 0) };
        assert_eq!(last.bytes_at(size, changes.all_landed()), 0, "it is known to hold nothing");
        changes.landed(filled_by(1 << 20), false);
        assert!(last.bytes_at(size, changes.all_landed()) >= 1 << 20);
        changes.landed(filled_by(1), true);
        changes.landed(FILLED_BY_HOLES, false);
        let later = Counted { landed: changes.all_landed(), ..counted(size, 0) };
        assert_eq!(later.bytes_at(size, changes.all_landed()), filled_by(1), "it may come through yet");
        assert_eq!(later.bytes_at(100, changes.all_landed()), 100, "no more than there is");
    }

    #[test]
    fn a_write_that_begins_inside_of_a_block_reaches_one_more() {
        for (len, least) in [(1, 4096), (2, 2 * 4096), (4096, 2 * 4096), (4097, 2 * 4096), (4098, 3 * 4096)] {
            assert!(filled_by(len) >= least, "{len}");
        }
    }

    #[test]
    fn what_a_volume_grew_by_is_held_until_it_is_counted() {
        assert_eq!(counted(100 << 20, 5 << 20).bytes_at(300 << 20, Landed::default()), 205 << 20);
    }

    #[test]
    fn nobody_waits_for_a_count_that_says_no_more_or_begins_too_late() {
        let size = 1 << 30;
        let last = counted(size, 0);
        let began = last.began;
        let ms = |ms| began + Duration::from_millis(ms);
        let count = |beside| Count { last: Some(last), beside, ..Count::default() };
        assert!(!count(Beside::Nobody).is_to_come(size, true, ms(1)), "nobody wrote");
        assert!(count(Beside::There).is_to_come(size, true, ms(1)));
        assert!(!count(Beside::There).is_to_come(size, true, began));
        assert!(count(Beside::LeftAt(ms(1))).is_to_come(size, true, ms(2)));
        assert!(!count(Beside::There).is_to_come(size, false, ms(1)), "a writer counts what it writes");
        assert!(count(Beside::Nobody).is_to_come(size + 1, true, ms(1)), "it grew");
        assert!(Count::default().is_to_come(size, true, began));
        let resting = Count { not_before: Some(ms(200)), ..count(Beside::There) };
        assert_eq!(resting.next_word(ms(100)), None);
        assert_eq!(resting.next_word(ms(300)), Some(ms(200)));
        let sum = last;
        let running = Count { running: Some(Running { at: 0, sum }), ..resting };
        assert_eq!(running.next_word(ms(100)), Some(ms(100)), "it may be done sooner");
    }

    #[test]
    fn a_reader_takes_nothing_of_a_possible_writer_for_a_hole() {
        let size = 1 << 30;
        let last = counted(size, 0);
        let later = last.began + Duration::from_millis(1);
        assert_eq!(last.for_reader(size, later, Beside::Nobody), BLOCK_BYTES, "never nothing");
        assert_eq!(last.for_reader(100, later, Beside::Nobody), 100);
        assert_eq!(last.for_reader(size, later, Beside::There), size);
        assert_eq!(last.for_reader(size, last.began, Beside::There), BLOCK_BYTES, "counted for who asks");
        assert_eq!(last.for_reader(size, later, Beside::LeftAt(later)), size);
        assert_eq!(last.for_reader(size, later, Beside::LeftAt(last.began)), BLOCK_BYTES);
    }
}
