//! The view of a volume through an overlay: what tools write goes to the overlay's volume, and the base is
//! only read.
//!
//! Owns a thread, the order in which data, table and answers follow each other, and locks on blocks. Never:
//! the table (`core::overlay`), or donors (the two volumes have them). Invariant: a write is answered when
//! its data, and then the table that names it, are acknowledged by the overlay's volume; until then nothing
//! that was acknowledged before is written over, but by writes to the same blocks. Front ends hold it as they
//! hold a volume. Tests: `lab/tests/overlay.rs`.

use super::Seen;
use super::handle::{Completion, Op, Shared, StatusRun, Submission, VolumeError, VolumeHandle};
use super::orders::Order;
use super::view::{self, Locks, PIECE_BYTES, UnderWay, end, index, room, submit};
use crate::buffer::Buffer;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES};
use cheetah_core::map::VolumeId;
use cheetah_core::overlay::{BadOverlay, Commit, Place, Table, Taken};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// For a larger map to come, after the pool has said that there is one.
const GROWN_TIME: Duration = Duration::from_secs(30);
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
        let shared = Arc::new(Shared::new(
            top.name().to_owned(),
            (top.read_only(), top.write_back()),
            base.size(),
            pool,
        ));
        let (base, top) = (base.clone(), top.clone());
        let serve = move |shared| serve(shared, Rc::new(View::new(base, top, table, more)));
        view::start("overlay", shared, serve).map_err(OverlayError::Machine)
    }
}

/// Serves the inbox until it is told to close.
async fn serve(shared: Arc<Shared>, view: Rc<View>) {
    let handle = VolumeHandle(shared.clone());
    loop {
        let (submissions, orders) = view::arrived(&handle).await;
        submissions.into_iter().for_each(|submission| view.submit(submission));
        for order in orders {
            match order {
                Order::Forget => drop(shared.forgotten.fetch_add(1, Ordering::AcqRel)),
                Order::Look(answer) => drop(answer.send(Some(Seen::default()))),
                Order::Settled(answer) => drop(answer.send(Vec::new())),
                Order::Close(closing) => {
                    handle.close_inbox().into_iter().for_each(|submission| view.submit(submission));
                    view.under_way.idle().await;
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
    locks: Locks,
    /// How often the table changed, and up to which change it is written.
    changes: Cell<u64>,
    committed: Cell<u64>,
    commits: Cell<bool>,
    committing: Notify,
    under_way: UnderWay,
}

impl View {
    fn new(base: VolumeHandle, top: VolumeHandle, table: Table, more: mpsc::Sender<More>) -> View {
        View {
            size: base.size(),
            base,
            top,
            table: RefCell::new(table),
            more,
            locks: Locks::default(),
            changes: Cell::new(0),
            committed: Cell::new(0),
            commits: Cell::new(false),
            committing: Notify::new(),
            under_way: UnderWay::default(),
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
        self.under_way.begin();
        let view = self.clone();
        tokio::task::spawn_local(async move {
            let result = match writes {
                true => view.write(&submission).await,
                false => view.read_runs(&mut submission).await,
            };
            end(submission, result);
            view.under_way.end();
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
        let _locked = self.locks.lock(blocks).await;
        match (op, buffer) {
            (Op::Write, Some(payload)) => self.write_bytes(*offset, payload).await,
            _ => self.zero(*offset, end).await,
        }
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
        let blocks = view::whole(offset, end, self.size);
        for edge in view::edges(offset, end, &blocks) {
            self.write_bytes(edge.start, &vec![0; index(edge.end - edge.start)]).await?;
        }
        if blocks.is_empty() {
            return Ok(());
        }
        self.make_room(&blocks, false).await?;
        self.table.borrow_mut().zero(blocks);
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
