//! What the views of volumes have in common: a handle like that of a volume, whose thread deals out what is
//! asked of it to the volumes under it.
//!
//! Owns the thread, locks on blocks, the count of requests that tasks have, and requests that a view makes of
//! its own. Never: what becomes of a request. Called by `encrypted` and `overlay`. Tests: theirs.

use super::handle::{Completion, Inbox, Op, Shared, Sink, Submission, VolumeError, VolumeHandle};
use super::orders::Order;
use crate::buffer::Buffer;
use cheetah_core::limits::BLOCK_BYTES;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, oneshot};

/// What a view asks of the volumes under it in one piece, where that is many blocks: a request of the largest
/// size that begins inside of a block has more blocks than a request may have.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// Begins the view's thread, which serves until that is done.
///
/// # Errors
/// No thread.
pub(super) fn start<F: Future<Output = ()>>(
    thread: &str,
    shared: Arc<Shared>,
    serve: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
) -> std::io::Result<VolumeHandle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let for_thread = shared.clone();
    std::thread::Builder::new().name(thread.into()).spawn(move || {
        crate::memory::declare_io_flusher();
        tokio::task::LocalSet::new().block_on(&runtime, serve(for_thread));
    })?;
    Ok(VolumeHandle(shared))
}

/// What is asked of the view, when there is something. Tasks that it is given run from then on.
pub(super) async fn arrived(handle: &VolumeHandle) -> (VecDeque<Submission>, Vec<Order>) {
    handle.0.arrived.notified().await;
    let (submissions, tasks, orders) = {
        let mut inbox = handle.inbox();
        let Inbox { submissions, tasks, orders, .. } = &mut *inbox;
        (std::mem::take(submissions), std::mem::take(tasks), std::mem::take(orders))
    };
    for task in tasks {
        tokio::task::spawn_local(task());
    }
    (submissions, orders)
}

/// Blocks that somebody writes.
#[derive(Debug, Default)]
pub(super) struct Locks {
    locked: RefCell<Vec<Range<u64>>>,
    unlocked: Notify,
}

/// Blocks that nobody else writes until it is dropped.
pub(super) struct Locked<'a>(&'a Locks, Range<u64>);

impl Locks {
    /// Waits until nobody writes any of these.
    pub(super) async fn lock(&self, blocks: Range<u64>) -> Locked<'_> {
        let is_free = |other: &Range<u64>| other.end <= blocks.start || blocks.end <= other.start;
        while !self.locked.borrow().iter().all(is_free) {
            self.unlocked.notified().await;
        }
        self.locked.borrow_mut().push(blocks.clone());
        Locked(self, blocks)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut locked = self.0.locked.borrow_mut();
        if let Some(at) = locked.iter().position(|range| *range == self.1) {
            locked.swap_remove(at);
        }
        self.0.unlocked.notify_waiters();
    }
}

/// Requests that tasks have.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    open: Cell<usize>,
    ended: Notify,
}

impl UnderWay {
    pub(super) fn begin(&self) {
        self.open.set(self.open.get() + 1);
    }

    pub(super) fn end(&self) {
        self.open.set(self.open.get() - 1);
        self.ended.notify_waiters();
    }

    /// Waits until there is none.
    pub(super) async fn idle(&self) {
        while self.open.get() > 0 {
            self.ended.notified().await;
        }
    }
}

/// Answers a request.
pub(super) fn end(submission: Submission, result: Result<(), VolumeError>) {
    let Submission { buffer, token, sink, .. } = submission;
    sink.complete(Completion { token, result, buffer, status: Vec::new() });
}

/// The blocks that lie in a range as a whole; what is behind the volume's end belongs to its last one.
pub(super) fn whole(offset: u64, end: u64, size: u64) -> Range<u64> {
    let first = offset.div_ceil(BLOCK_BYTES);
    let last = if end == size { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
    first..last.max(first)
}

/// What of a range lies before these whole blocks of it, and behind them.
pub(super) fn edges(offset: u64, end: u64, blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let edges = match blocks.is_empty() {
        true => [offset..end, end..end],
        false => [offset..blocks.start * BLOCK_BYTES, (blocks.end * BLOCK_BYTES).min(end)..end],
    };
    edges.into_iter().filter(|edge| !edge.is_empty())
}

pub(super) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Memory for a part of a request. It is not waited for: whoever has all of it may wait for this one.
pub(super) fn room(of: &VolumeHandle, len: u64) -> Result<Buffer, VolumeError> {
    let taken = of.pool().try_take(index(len)).map(Ok);
    taken.unwrap_or_else(|| Buffer::standing(index(len))).map_err(|_| VolumeError::NoMemory)
}

/// Hands its end to one who waits for it.
#[derive(Debug)]
struct One(Mutex<Option<oneshot::Sender<Completion>>>);

impl Sink for One {
    fn complete(&self, completion: Completion) {
        if let Some(waits) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = waits.send(completion);
        }
    }
}

/// Asks a volume for something with this payload.
pub(super) fn submit(
    to: &VolumeHandle,
    op: Op,
    offset: u64,
    buffer: Buffer,
) -> oneshot::Receiver<Completion> {
    let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    ask(to, op, offset, len, Some(buffer))
}

/// Asks a volume for something.
pub(super) fn ask(
    to: &VolumeHandle,
    op: Op,
    offset: u64,
    len: u32,
    buffer: Option<Buffer>,
) -> oneshot::Receiver<Completion> {
    let (sends, came) = oneshot::channel();
    let sink = Arc::new(One(Mutex::new(Some(sends))));
    to.submit(Submission { op, offset, len, buffer, token: offset, sink });
    came
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_its_whole_blocks_and_two_edges() {
        let parts = |offset, end, size| {
            let blocks = whole(offset, end, size);
            let edges = edges(offset, end, &blocks).map(|edge| (edge.start, edge.end));
            (blocks.clone(), edges.collect::<Vec<_>>())
        };
        assert_eq!(parts(0, 8192, 9000), (0..2, vec![]));
        assert_eq!(parts(1, 8193, 9000), (1..2, vec![(1, 4096), (8192, 8193)]));
        assert_eq!(parts(4096, 9000, 9000), (1..3, vec![]), "nothing is behind the end");
        assert_eq!(parts(10, 20, 9000), (1..1, vec![(10, 20)]), "inside of a block");
        assert_eq!(parts(4000, 4200, 9000), (1..1, vec![(4000, 4200)]), "in two of them, and none whole");
        assert_eq!(parts(8200, 9000, 9000), (3..3, vec![(8200, 9000)]), "at the end of the last one");
    }
}
