//! The view of a volume through an overlay: what tools write goes to the overlay's volume, and the base is
//! only read.
//!
//! Owns a thread, the order in which data, table and answers follow each other, and locks on blocks. Never:
//! the table (`core::overlay`), or donors (the two volumes have them). Invariant: a write is answered when
//! its data, and then the table that names it, are acknowledged by the overlay's volume; until then nothing
//! that was acknowledged before is written over, but by writes to the same blocks. Front ends hold it as they
//! hold a volume. Tests: `lab/tests/overlay.rs`.

use super::Seen;
use super::handle::{Completion, Inbox, Op, Shared, Sink, StatusRun, Submission, VolumeError, VolumeHandle};
use super::orders::Order;
use crate::buffer::Buffer;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES};
use cheetah_core::map::VolumeId;
use cheetah_core::overlay::{BadOverlay, Commit, Place, Table, Taken};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// For a larger map to come, after the pool has said that there is one.
const GROWN_TIME: Duration = Duration::from_secs(30);
/// The overlay's volume is read and written in pieces of this, where that is many blocks: a request that
/// begins inside of one has more blocks than the largest request may have.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_BLOCKS: usize = (PIECE_BYTES / BLOCK_BYTES) as usize;

/// The overlay's volume is to be at least so large; answered with whether it was possible.
#[derive(Debug)]
pub struct More {
    /// Bytes in all.
    pub bytes: u64,
    pub answer: oneshot::Sender<bool>,
}

/// Why there is no view.
#[derive(Debug)]
pub enum OverlayError {
    /// The table could not be read.
    Volume(VolumeError),
    /// It is no table, or one of something else.
    Bad(BadOverlay),
    /// This machine has no memory for it, or no thread.
    Machine(std::io::Error),
}

impl fmt::Display for OverlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverlayError::Volume(why) => write!(f, "its table cannot be read: {why}"),
            OverlayError::Bad(why) => why.fmt(f),
            OverlayError::Machine(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for OverlayError {}

/// The table that the overlay's volume holds, of a base of `size` bytes.
///
/// # Errors
/// It cannot be read, or is none of this base.
pub async fn read_table(top: &VolumeHandle, base: VolumeId, size: u64) -> Result<Table, OverlayError> {
    let mut table = Table::new(base, size);
    let mut head = Vec::new();
    while (head.len() as u64) < table.head_bytes() {
        let at = head.len() as u64;
        head.extend(read(top, at, PIECE_BYTES.min(table.head_bytes() - at)).await?);
    }
    for (index, at) in table.load(&head).map_err(OverlayError::Bad)? {
        table.load_page(index, &read(top, at, BLOCK_BYTES).await?);
    }
    table.loaded(top.size()).map_err(OverlayError::Bad)?;
    Ok(table)
}

async fn read(from: &VolumeHandle, at: u64, len: u64) -> Result<Vec<u8>, OverlayError> {
    let buffer = room(from, len).map_err(OverlayError::Volume)?;
    let came = submit(from, Op::Read, at, buffer);
    Ok(ended(came).await.map_err(OverlayError::Volume)?.to_vec())
}

impl VolumeHandle {
    /// The view of `base` through the overlay that `top` holds, of which `base` is the volume `of`. `more`
    /// has the overlay's volume made larger.
    ///
    /// # Errors
    /// The table cannot be read, or is none of this base; this machine has no memory for it.
    pub async fn over(
        base: &VolumeHandle,
        top: &VolumeHandle,
        of: VolumeId,
        more: mpsc::Sender<More>,
    ) -> Result<VolumeHandle, OverlayError> {
        let table = read_table(top, of, base.size()).await?;
        // What the overlay's volume has is for the parts of requests: nobody waits for their own.
        let pool = base.pool().clone();
        let shared = Arc::new(Shared::new(top.name().to_owned(), top.read_only(), base.size(), pool));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(OverlayError::Machine)?;
        let (for_thread, base, top) = (shared.clone(), base.clone(), top.clone());
        let thread = std::thread::Builder::new().name("overlay".into()).spawn(move || {
            crate::memory::declare_io_flusher();
            let view = Rc::new(View::new(base, top, table, more));
            tokio::task::LocalSet::new().block_on(&runtime, serve(for_thread, view));
        });
        thread.map_err(OverlayError::Machine)?;
        Ok(VolumeHandle(shared))
    }
}

/// Serves the inbox until it is told to close.
async fn serve(shared: Arc<Shared>, view: Rc<View>) {
    let handle = VolumeHandle(shared.clone());
    loop {
        shared.arrived.notified().await;
        let (submissions, tasks, orders) = {
            let mut inbox = handle.inbox();
            let Inbox { submissions, tasks, orders, .. } = &mut *inbox;
            (std::mem::take(submissions), std::mem::take(tasks), std::mem::take(orders))
        };
        for task in tasks {
            tokio::task::spawn_local(task());
        }
        submissions.into_iter().for_each(|submission| view.submit(submission));
        for order in orders {
            match order {
                Order::Forget => drop(shared.forgotten.fetch_add(1, Ordering::AcqRel)),
                Order::Look(answer) => drop(answer.send(Some(Seen::default()))),
                Order::Settled(answer) => drop(answer.send(Vec::new())),
                Order::Close(closing) => {
                    handle.close_inbox().into_iter().for_each(|submission| view.submit(submission));
                    view.idle().await;
                    let _ = closing.send(());
                    return;
                }
                // Of donors and leases the two volumes hear themselves.
                Order::Map(_) | Order::Amended(_) | Order::LeaseLost | Order::Silent(_) | Order::Scrub(_) => {
                }
            }
        }
    }
}

#[derive(Debug)]
struct View {
    base: VolumeHandle,
    top: VolumeHandle,
    size: u64,
    table: RefCell<Table>,
    more: mpsc::Sender<More>,
    /// Blocks that somebody writes.
    locked: RefCell<Vec<Range<u64>>>,
    unlocked: Notify,
    /// How often the table changed, and up to which change it is written.
    changes: Cell<u64>,
    committed: Cell<u64>,
    commits: Cell<bool>,
    committing: Notify,
    /// Requests that tasks have.
    open: Cell<usize>,
    ended: Notify,
}

/// Blocks that nobody else writes until it is dropped.
struct Locked<'a>(&'a View, Range<u64>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut locked = self.0.locked.borrow_mut();
        if let Some(at) = locked.iter().position(|range| *range == self.1) {
            locked.swap_remove(at);
        }
        self.0.unlocked.notify_waiters();
    }
}

impl View {
    fn new(base: VolumeHandle, top: VolumeHandle, table: Table, more: mpsc::Sender<More>) -> View {
        View {
            size: base.size(),
            base,
            top,
            table: RefCell::new(table),
            more,
            locked: RefCell::default(),
            unlocked: Notify::new(),
            changes: Cell::new(0),
            committed: Cell::new(0),
            commits: Cell::new(false),
            committing: Notify::new(),
            open: Cell::new(0),
            ended: Notify::new(),
        }
    }

    async fn idle(&self) {
        while self.open.get() > 0 {
            self.ended.notified().await;
        }
    }

    fn submit(self: &Rc<Self>, submission: Submission) {
        let Submission { op, offset, len, .. } = submission;
        let fits = offset.checked_add(len.into()).is_some_and(|end| end <= self.size);
        match op {
            _ if !fits => end(submission, Err(VolumeError::OutOfRange)),
            _ if op.writes() && self.top.read_only() => end(submission, Err(VolumeError::ReadOnly)),
            Op::Flush => self.top.submit(submission),
            // Hints: what is there stays.
            Op::Trim | Op::Cache => end(submission, Ok(())),
            Op::Status | Op::Presence => {
                let status = vec![StatusRun { len, hole: false }];
                let Submission { buffer, token, sink, .. } = submission;
                sink.complete(Completion { token, result: Ok(()), buffer, status });
            }
            Op::Read => self.read(submission),
            Op::Write | Op::Zero { .. } => self.spawn(submission, true),
        }
    }

    /// What lies in one piece goes to the volume that has it, without a copy.
    fn read(self: &Rc<Self>, submission: Submission) {
        let runs = self.table.borrow().runs(submission.offset, submission.len.into());
        match runs[..] {
            [run] => match run.place {
                Place::Base => self.base.submit(submission),
                Place::Here(offset) => self.top.submit(Submission { offset, ..submission }),
                Place::Zeros => self.spawn(submission, false),
            },
            _ => self.spawn(submission, false),
        }
    }

    fn spawn(self: &Rc<Self>, mut submission: Submission, writes: bool) {
        self.open.set(self.open.get() + 1);
        let view = self.clone();
        tokio::task::spawn_local(async move {
            let result = match writes {
                true => view.write(&submission).await,
                false => view.read_runs(&mut submission).await,
            };
            end(submission, result);
            view.open.set(view.open.get() - 1);
            view.ended.notify_waiters();
        });
    }

    async fn read_runs(&self, submission: &mut Submission) -> Result<(), VolumeError> {
        let Submission { offset, len, buffer: Some(buffer), .. } = submission else { return Ok(()) };
        self.read_into(*offset, &mut buffer[..*len as usize]).await
    }

    /// The view's bytes from this offset on.
    async fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<(), VolumeError> {
        let runs = self.table.borrow().runs(offset, bytes.len() as u64);
        let mut asked = Vec::with_capacity(runs.len());
        for run in runs {
            let (from, at) = match run.place {
                Place::Base => (&self.base, run.offset),
                Place::Here(at) => (&self.top, at),
                Place::Zeros => {
                    asked.push((run, None));
                    continue;
                }
            };
            asked.push((run, Some(submit(from, Op::Read, at, room(&self.top, run.len)?))));
        }
        let mut result = Ok(());
        for (run, came) in asked {
            let bytes = &mut bytes[index(run.offset - offset)..][..index(run.len)];
            match came {
                None => bytes.fill(0),
                Some(came) => match ended(came).await {
                    Ok(buffer) => bytes.copy_from_slice(&buffer),
                    Err(error) => result = result.and(Err(error)),
                },
            }
        }
        result
    }

    async fn write(&self, submission: &Submission) -> Result<(), VolumeError> {
        let Submission { op, offset, len, buffer, .. } = submission;
        if *len == 0 {
            return Ok(());
        }
        let end = offset + u64::from(*len);
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let _locked = self.lock(blocks).await;
        match (op, buffer) {
            (Op::Write, Some(payload)) => self.write_bytes(*offset, payload).await,
            _ => self.zero(*offset, end).await,
        }
    }

    async fn lock(&self, blocks: Range<u64>) -> Locked<'_> {
        let is_free = |other: &Range<u64>| other.end <= blocks.start || blocks.end <= other.start;
        while !self.locked.borrow().iter().all(is_free) {
            self.unlocked.notified().await;
        }
        self.locked.borrow_mut().push(blocks.clone());
        Locked(self, blocks)
    }

    /// Whole blocks, of which the first and the last are completed with what is there.
    async fn write_bytes(&self, offset: u64, payload: &[u8]) -> Result<(), VolumeError> {
        let end = offset + payload.len() as u64;
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let begin = blocks.start * BLOCK_BYTES;
        let mut whole = vec![0; index((blocks.end - blocks.start) * BLOCK_BYTES)];
        let edges = BTreeSet::from([blocks.start, blocks.end - 1]);
        for block in edges {
            let from = block * BLOCK_BYTES;
            let to = (from + BLOCK_BYTES).min(self.size);
            if offset > from || end < to {
                self.read_into(from, &mut whole[index(from - begin)..index(to - begin)]).await?;
            }
        }
        whole[index(offset - begin)..][..payload.len()].copy_from_slice(payload);

        self.make_room(&blocks, true).await?;
        let taken = self.table.borrow_mut().take(blocks);
        self.write_to(&taken, &whole).await?;
        if !taken.iter().any(|taken| taken.is_new) {
            return Ok(());
        }
        self.table.borrow_mut().name(&taken);
        self.commit().await
    }

    /// All of these blocks, those that follow each other at once. After an error any of them may be written.
    async fn write_to(&self, taken: &[Taken], mut bytes: &[u8]) -> Result<(), VolumeError> {
        let mut asked = Vec::new();
        for piece in taken.chunk_by(|one, next| one.at + BLOCK_BYTES == next.at) {
            for piece in piece.chunks(PIECE_BLOCKS) {
                let (now, rest) = bytes.split_at(index(piece.len() as u64 * BLOCK_BYTES));
                bytes = rest;
                asked.push(self.put(piece[0].at, now)?);
            }
        }
        all(asked).await
    }

    /// Has the overlay's volume hold these bytes here.
    fn put(&self, at: u64, bytes: &[u8]) -> Result<oneshot::Receiver<Completion>, VolumeError> {
        let mut buffer = room(&self.top, bytes.len() as u64)?;
        buffer.copy_from_slice(bytes);
        Ok(submit(&self.top, Op::Write, at, buffer))
    }

    /// Blocks of which all is zeros need no place; the edges are written.
    async fn zero(&self, offset: u64, end: u64) -> Result<(), VolumeError> {
        let is_last = end == self.size;
        let first = offset.div_ceil(BLOCK_BYTES);
        let last = if is_last { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
        if first >= last {
            return self.write_bytes(offset, &vec![0; index(end - offset)]).await;
        }
        for (from, to) in [(offset, first * BLOCK_BYTES), ((last * BLOCK_BYTES).min(end), end)] {
            if from < to {
                self.write_bytes(from, &vec![0; index(to - from)]).await?;
            }
        }
        self.make_room(&(first..last), false).await?;
        self.table.borrow_mut().zero(first..last);
        self.commit().await
    }

    /// Until the overlay's volume is large enough for these blocks.
    async fn make_room(&self, blocks: &Range<u64>, writes: bool) -> Result<(), VolumeError> {
        loop {
            let bytes = self.table.borrow().bytes_needed(blocks, writes);
            if bytes <= self.top.size() {
                return Ok(());
            }
            let (answer, answered) = oneshot::channel();
            let more = More { bytes: bytes.next_multiple_of(EXTENT_BYTES), answer };
            let is_asked = self.more.send(more).await.is_ok();
            if !is_asked || !answered.await.unwrap_or(false) {
                return Err(VolumeError::NoMemory);
            }
            let mut sizes = self.top.size_changes();
            let grown = sizes.wait_for(|size| *size >= bytes);
            if !matches!(tokio::time::timeout(GROWN_TIME, grown).await, Ok(Ok(_))) {
                return Err(VolumeError::TimedOut);
            }
        }
    }

    /// Until the table is written as it is now. Those who come meanwhile go with the next one.
    async fn commit(&self) -> Result<(), VolumeError> {
        self.changes.set(self.changes.get() + 1);
        let mine = self.changes.get();
        while self.committed.get() < mine {
            if self.commits.get() {
                self.committing.notified().await;
                continue;
            }
            self.commits.set(true);
            let last = self.changes.get();
            let commit = self.table.borrow_mut().commit();
            let written = self.write_table(&commit).await;
            match &written {
                Ok(()) => self.committed.set(last),
                Err(_) => self.table.borrow_mut().failed(&commit),
            }
            self.commits.set(false);
            self.committing.notify_waiters();
            written?;
        }
        Ok(())
    }

    async fn write_table(&self, commit: &Commit) -> Result<(), VolumeError> {
        for blocks in [&commit.pages, &commit.roots] {
            let asked: Result<Vec<_>, _> = blocks.iter().map(|(at, bytes)| self.put(*at, bytes)).collect();
            all(asked?).await?;
        }
        Ok(())
    }
}

fn end(submission: Submission, result: Result<(), VolumeError>) {
    let Submission { buffer, token, sink, .. } = submission;
    sink.complete(Completion { token, result, buffer, status: Vec::new() });
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Memory for a part of a request. It is not waited for: whoever has all of it may wait for this one.
fn room(of: &VolumeHandle, len: u64) -> Result<Buffer, VolumeError> {
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

fn submit(to: &VolumeHandle, op: Op, offset: u64, buffer: Buffer) -> oneshot::Receiver<Completion> {
    let (sends, came) = oneshot::channel();
    let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let sink = Arc::new(One(Mutex::new(Some(sends))));
    to.submit(Submission { op, offset, len, buffer: Some(buffer), token: offset, sink });
    came
}

async fn ended(came: oneshot::Receiver<Completion>) -> Result<Buffer, VolumeError> {
    let completion = came.await.map_err(|_| VolumeError::DonorLost)?;
    completion.result?;
    completion.buffer.ok_or(VolumeError::DonorLost)
}

/// Waits for all of them; the first error counts.
async fn all(asked: Vec<oneshot::Receiver<Completion>>) -> Result<(), VolumeError> {
    let mut result = Ok(());
    for came in asked {
        result = result.and(ended(came).await.map(drop));
    }
    result
}
