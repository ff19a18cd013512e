//! What a front end holds of an attached volume: it submits requests and is told when each is done.
//!
//! Owns the queue between threads. Never: policy; the machine in `core` decides, on the data thread.
//! Invariant: every submission is completed exactly once through its sink, also when the volume is closed.

use crate::buffer::{Buffer, Pool};
use cheetah_core::layout::LostRange;
use cheetah_core::map::BadRange;
pub use cheetah_core::volume::{Op, StatusRun, VolumeError};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// One request. `buffer` is the payload of a write, or the room for a read, exactly `len` bytes; none
/// otherwise.
#[derive(Debug)]
pub struct Submission {
    pub op: Op,
    pub offset: u64,
    pub len: u32,
    pub buffer: Option<Buffer>,
    /// The front end's own name for the request.
    pub token: u64,
    pub sink: Arc<dyn Sink>,
}

/// How a request ended. The buffer comes back, filled when it was a read that succeeded.
#[derive(Debug)]
pub struct Completion {
    pub token: u64,
    pub result: Result<(), VolumeError>,
    pub buffer: Option<Buffer>,
    /// For `Op::Status` and `Op::Presence`; may cover less than was asked.
    pub status: Vec<StatusRun>,
}

/// Where completions go. Called on the volume's data thread: it must not block.
pub trait Sink: Send + Sync + std::fmt::Debug {
    fn complete(&self, completion: Completion);

    /// A read succeeded whose bytes are here and not in its buffer, for the time of this call.
    fn give(&self, mut completion: Completion, bytes: &[u8]) {
        if let Some(buffer) = &mut completion.buffer {
            buffer.copy_from_slice(bytes);
        }
        self.complete(completion);
    }
}

/// A future made and run on the data thread, where submitting and completing cost no wake-up of another
/// thread.
pub type LocalTask = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Takes bytes of the volume, from an offset on, that nobody has asked for yet, and how often `forget` had
/// been called when they were read: they are out of date when it has been called since.
pub type Taker = Box<dyn Fn(u64, &[u8], u64) + Send>;

#[derive(Clone, Debug)]
pub struct VolumeHandle(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) name: String,
    pub(super) read_only: bool,
    /// Only what a flush covers is on disks.
    pub(super) write_back: bool,
    pub(super) size: AtomicU64,
    pub(super) size_changes: watch::Sender<u64>,
    pub(super) pool: Pool,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) arrived: Notify,
    pub(super) taker: Mutex<Option<Taker>>,
    /// How often `forget` was called, and how many of these calls the data thread has seen.
    pub(super) forgets: AtomicU64,
    pub(super) forgotten: AtomicU64,
    /// A tool has written, or tried to.
    pub(super) written: AtomicBool,
    pub(super) first_write: Notify,
    /// Of an encrypted volume: what its source could not give, which its view gives nobody.
    pub(super) unreadable: Mutex<Unreadable>,
    /// Of the view of an encrypted volume.
    pub(super) noted: Option<Arc<super::encrypted::Noted>>,
    pub(super) amendments: Mutex<Option<tokio::sync::mpsc::Receiver<cheetah_core::api::Amend>>>,
}

impl Shared {
    /// Of a volume that nobody has asked for anything yet.
    pub(super) fn new(name: String, (read_only, write_back): (bool, bool), size: u64, pool: Pool) -> Shared {
        Shared {
            name,
            read_only,
            write_back,
            size: AtomicU64::new(size),
            size_changes: watch::Sender::new(size),
            pool,
            inbox: Mutex::default(),
            arrived: Notify::new(),
            taker: Mutex::default(),
            forgets: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            written: AtomicBool::new(false),
            first_write: Notify::new(),
            unreadable: Mutex::default(),
            noted: None,
            amendments: Mutex::default(),
        }
    }

    pub(super) fn taker(&self) -> MutexGuard<'_, Option<Taker>> {
        self.taker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As the map has it, and as ranges of the volume.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    pub(super) runs: Vec<BadRange>,
    pub(super) ranges: Vec<LostRange>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(super) struct Inbox {
    pub(super) submissions: VecDeque<Submission>,
    pub(super) tasks: Vec<LocalTask>,
    pub(super) orders: Vec<super::orders::Order>,
    pub(super) closed: bool,
}

impl VolumeHandle {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    #[must_use]
    pub fn read_only(&self) -> bool {
        self.0.read_only
    }

    /// Whether only what a flush covers is on disks.
    #[must_use]
    pub fn write_back(&self) -> bool {
        self.0.write_back
    }

    /// Bytes, exact; it grows when the volume does.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size.load(Ordering::Acquire)
    }

    /// Told of each new size.
    #[must_use]
    pub fn size_changes(&self) -> watch::Receiver<u64> {
        self.0.size_changes.subscribe()
    }

    /// Whether a write was submitted, whatever came of it.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Resolves when a write was submitted. One may wait for it.
    pub async fn first_write(&self) {
        while !self.is_written() {
            self.0.first_write.notified().await;
        }
    }

    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Hands a request to the data thread; from any thread, never blocks.
    pub fn submit(&self, submission: Submission) {
        if submission.op.writes() && !self.is_written() && !self.0.read_only {
            self.0.written.store(true, Ordering::Relaxed);
            self.0.first_write.notify_one();
        }
        let mut inbox = self.inbox();
        if inbox.closed {
            drop(inbox);
            let Submission { buffer, token, sink, .. } = submission;
            let result = Err(VolumeError::DonorLost);
            return sink.complete(Completion { token, result, buffer, status: Vec::new() });
        }
        inbox.submissions.push_back(submission);
        drop(inbox);
        self.0.arrived.notify_one();
    }

    /// Runs a task on the data thread: the connections of an export live there, and the requests of a file.
    /// It is dropped with the thread, and at once when that has ended.
    pub fn spawn_local(&self, task: LocalTask) {
        let mut inbox = self.inbox();
        if inbox.closed {
            return;
        }
        inbox.tasks.push(task);
        drop(inbox);
        self.0.arrived.notify_one();
    }

    /// Takes no more from now on. What was submitted until then, and not looked at.
    pub(super) fn close_inbox(&self) -> VecDeque<Submission> {
        let mut inbox = self.inbox();
        inbox.closed = true;
        inbox.tasks.clear();
        std::mem::take(&mut inbox.submissions)
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
