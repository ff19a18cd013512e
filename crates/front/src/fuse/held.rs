//! How much of the file the pool holds, for who asks how many blocks it takes: the rest are holes.
//!
//! Owns: counting, in steps, what donors say of the whole volume, once at the beginning and again when it was written and somebody
//! asks. Never: makes anybody wait who asks; he is told what was counted last. Invariants: what is not known counts as held, for
//! who takes a hole for granted reads less than there is; one count runs at a time, for a tenth of the time at most.
//! Called by `fs`, begun by `mount`. Tests: below; through a mounted volume, `tests/file.rs`.

use cheetah_rim::volume::{Completion, Op, Sink, StatusRun, Submission, VolumeHandle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// One question. A multiple of any block.
const STEP_BYTES: u64 = 1 << 30;
/// Between two counts, and ten times as long as one took.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_FACTOR: u32 = 10;

#[derive(Debug)]
pub(super) struct Held {
    handle: VolumeHandle,
    /// Bytes behind what was counted last are not known.
    known: AtomicU64,
    counted: AtomicU64,
    count: Mutex<Count>,
    /// Told when a count is done.
    done: watch::Sender<()>,
    this: Weak<Held>,
}

#[derive(Debug, Default)]
struct Count {
    running: Option<Running>,
    /// What had been written when the last one began, by the writers' mark, and how long the volume was.
    mark: Option<(u64, u64)>,
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    began: Instant,
    end: u64,
    at: u64,
    bytes: u64,
}

impl Held {
    pub(super) fn new(handle: VolumeHandle) -> Arc<Held> {
        Arc::new_cyclic(|this| Held {
            handle,
            known: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            count: Mutex::default(),
            done: watch::Sender::new(()),
            this: this.clone(),
        })
    }

    pub(super) fn done(&self) -> watch::Receiver<()> {
        self.done.subscribe()
    }

    /// Of the first `size` bytes, as far as it was counted.
    pub(super) fn bytes(&self, size: u64) -> u64 {
        let unknown = size.saturating_sub(self.known.load(Ordering::Acquire));
        (self.counted.load(Ordering::Acquire) + unknown).min(size)
    }

    /// Counts anew, if `mark` says that something was written since the last time, or the volume grew, and it was not just now.
    pub(super) fn refresh(&self, mark: u64) {
        let now = Instant::now();
        let mut count = self.count();
        let end = self.handle.size();
        let is_new = count.mark != Some((mark, end));
        if !is_new || count.running.is_some() || count.not_before.is_some_and(|until| now < until) {
            return;
        }
        count.mark = Some((mark, end));
        count.running = Some(Running { began: now, end, at: 0, bytes: 0 });
        drop(count);
        self.ask(0, end);
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
        if running.at < running.end {
            let (at, end) = (running.at, running.end);
            drop(count);
            return self.ask(at, end);
        }
        let (known, bytes, took) = (running.end, running.bytes, running.began.elapsed());
        count.running = None;
        count.not_before = Some(Instant::now() + PAUSE_MIN.max(took * PAUSE_FACTOR));
        drop(count);
        self.counted.store(bytes, Ordering::Release);
        self.known.store(known, Ordering::Release);
        self.done.send_replace(());
    }
}

impl Running {
    /// What is said of the next bytes; of what nothing is said, a step is held.
    fn take(&mut self, status: &[StatusRun]) {
        let step = (self.end - self.at).min(STEP_BYTES);
        let said: u64 = status.iter().map(|run| u64::from(run.len)).sum::<u64>().min(step);
        let data: u64 = status.iter().filter(|run| !run.hole).map(|run| u64::from(run.len)).sum();
        if said == 0 {
            (self.at, self.bytes) = (self.at + step, self.bytes + step);
        } else {
            (self.at, self.bytes) = (self.at + said, self.bytes + data.min(said));
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

    #[test]
    fn what_is_not_said_is_held() {
        let mut running = Running { began: Instant::now(), end: 5 << 30, at: 0, bytes: 0 };
        running.take(&[StatusRun { len: 100, hole: false }, StatusRun { len: 50, hole: true }]);
        assert_eq!((running.at, running.bytes), (150, 100));
        running.take(&[]);
        assert_eq!((running.at, running.bytes), (150 + STEP_BYTES, 100 + STEP_BYTES));
        running.take(&[StatusRun { len: u32::MAX, hole: true }]);
        assert_eq!((running.at, running.bytes), (150 + 2 * STEP_BYTES, 100 + STEP_BYTES));
    }
}
