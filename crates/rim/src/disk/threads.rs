//! The threads that wait for a disk: one that writes, a few that read.
//!
//! Owns the queues, and how much is taken together. Never: the order of a write (`journal`), or what is in
//! memory (core's `Resident`). Invariant: writes reach the journal in the order in which they were handed
//! over, and no two of one batch touch the same block. Called by `disk`. Tests: `lab/disks.rs`.

use super::Shared;
use super::file::Pages;
use super::journal::{Write, io_error};
use super::teller::Teller;
use crate::auth;
use crate::code::crc32c;
use crate::ledgers::locked;
use cheetah_core::disk::{Auth, Noted};
use cheetah_core::limits::BLOCK_BYTES;
use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

const READERS: usize = 8;
/// When nobody writes for so long, the log is told that all is done; and now and then while somebody does.
const QUIET: Duration = Duration::from_millis(200);
const MARK_EVERY: Duration = Duration::from_secs(1);
/// So much is written together at most, in one flush of the log and one of the blocks.
const BATCH_BYTES: usize = 16 << 20;
const BLOCK: usize = BLOCK_BYTES as usize;

/// What the thread that writes is asked for.
#[derive(Debug)]
pub(super) enum Job {
    Commit {
        write: Write,
        teller: Teller,
    },
    Wipe {
        extents: Vec<u32>,
        done: mpsc::Sender<io::Result<()>>,
    },
    /// To look whether something is to be written back.
    Look,
}

/// What the threads that read are asked for.
#[derive(Debug)]
pub(super) enum Look {
    /// Into memory.
    Bring { bring: u64, blocks: Range<u64> },
    /// Only whether it is what it should be.
    Check { blocks: Range<u64>, teller: Teller },
}

/// What several threads take from.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn new() -> Queue<T> {
        Queue { waiting: Mutex::new((VecDeque::new(), false)), changed: Condvar::new() }
    }

    pub(super) fn push(&self, one: T) {
        locked(&self.waiting).0.push_back(one);
        self.changed.notify_one();
    }

    /// Whoever takes is given what is there, and then nothing.
    pub(super) fn close(&self) {
        locked(&self.waiting).1 = true;
        self.changed.notify_all();
    }

    fn take(&self) -> Option<T> {
        let mut waiting = locked(&self.waiting);
        loop {
            if let Some(one) = waiting.0.pop_front() {
                return Some(one);
            }
            if waiting.1 {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

pub(super) fn start(shared: &Arc<Shared>) -> io::Result<(mpsc::Sender<Job>, Arc<Queue<Look>>)> {
    let (jobs, asked) = mpsc::channel();
    let writer = Arc::clone(shared);
    std::thread::Builder::new().name("disk-write".into()).spawn(move || write_all(&writer, &asked))?;
    let looks = Arc::new(Queue::new());
    for nth in 0..READERS {
        let (reader, looks) = (Arc::clone(shared), Arc::clone(&looks));
        let read = move || {
            while let Some(look) = looks.take() {
                match look {
                    Look::Bring { bring, blocks } => reader.bring(bring, blocks),
                    Look::Check { blocks, teller } => reader.check(blocks, &teller),
                }
            }
        };
        std::thread::Builder::new().name(format!("disk-read-{nth}")).spawn(read)?;
    }
    Ok((jobs, looks))
}

/// Until nobody is there any more who could ask.
fn write_all(shared: &Shared, asked: &mpsc::Receiver<Job>) {
    let mut next = None;
    let (mut marked_at, mut quiet_since) = (Instant::now(), Instant::now());
    loop {
        let rests = shared.keep_back();
        let is_to_be_marked = shared.journal().is_to_be_marked();
        let got = match (next.take(), rests) {
            (Some(job), _) => Ok(job),
            (None, None) => asked.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            (None, Some(rests)) if is_to_be_marked => asked.recv_timeout(QUIET.min(rests)),
            (None, Some(rests)) => asked.recv_timeout(rests),
        };
        if got.is_ok() || rests.is_none() {
            quiet_since = Instant::now();
        }
        // Also while somebody writes all the time.
        let since = if got.is_ok() { (marked_at, MARK_EVERY) } else { (quiet_since, QUIET) };
        if is_to_be_marked && (since.0.elapsed() >= since.1 || marked_at.elapsed() > MARK_EVERY) {
            // Whoever writes next is told if that fails.
            let _ = shared.unless_dead(|| shared.mark());
            marked_at = Instant::now();
        }
        let job = match got {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match job {
            Job::Look => {}
            Job::Wipe { extents, done } => {
                shared.nothing_is_dirty_in(&extents);
                let wiped = shared.wipe(&extents);
                // Whoever asked may be gone.
                let _ = done.send(wiped);
            }
            Job::Commit { write, teller } => {
                let mut batch = vec![(write, teller)];
                next = together(&mut batch, asked);
                shared.commit(batch);
            }
        }
    }
}

/// Takes what is there and can go together; what cannot comes next.
fn together(batch: &mut Vec<(Write, Teller)>, asked: &mpsc::Receiver<Job>) -> Option<Job> {
    let mut touched: HashSet<u64> = batch.iter().flat_map(|(write, _)| write.blocks()).collect();
    let mut bytes = touched.len() * BLOCK;
    while bytes < BATCH_BYTES {
        match asked.try_recv().ok()? {
            Job::Commit { write, teller } if write.blocks().all(|block| !touched.contains(&block)) => {
                touched.extend(write.blocks());
                bytes += write.notes.len() * BLOCK;
                batch.push((write, teller));
            }
            other => return Some(other),
        }
    }
    None
}

/// A block of a write, with its nonce and authentication tag.
pub(super) fn with_auth((block, _, auth): (u64, Noted, Auth)) -> (u64, Auth) {
    (block, auth)
}

impl Shared {
    pub(super) fn unless_dead<T>(&self, job: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.is_dead.load(Ordering::Acquire) {
            return Err(super::gone());
        }
        let done = job();
        if let Err(error) = &done {
            tracing::error!(
                "a disk does not take what is written any more, and is not used from now on: {error}"
            );
            self.die();
        }
        done
    }

    fn mark(&self) -> io::Result<()> {
        self.journal().mark(|held| self.marked(held)).map_err(io_error)
    }

    fn wipe(&self, extents: &[u32]) -> io::Result<()> {
        self.unless_dead(|| self.journal().wipe(extents, |held| self.marked(held)).map_err(io_error))
    }

    fn commit(&self, batch: Vec<(Write, Teller)>) {
        let (writes, tellers): (Vec<Write>, Vec<Teller>) = batch.into_iter().unzip();
        let commit = || self.journal().commit(&writes, |held| self.marked(held)).map_err(io_error);
        let mut results = match self.unless_dead(commit) {
            Ok(results) => {
                self.arena.auths_reached_disk(writes.iter().flat_map(Write::each).map(with_auth));
                results
            }
            // Nothing of it counts, and nothing else will.
            Err(error) => writes.iter().map(|_| Err(io::Error::from(error.kind()))).collect(),
        };
        for (write, result) in writes.iter().zip(&mut results) {
            if result.is_err() {
                self.resident().doom(write.blocks());
            }
            self.let_go(write.blocks());
        }
        let mut resident = self.resident();
        self.make_room(&mut resident);
        drop(resident);
        for (teller, result) in tellers.iter().zip(results) {
            teller.tell(result);
        }
    }

    /// Reads blocks into memory. One that cannot be read is there as zeros, which do not fit its checksum.
    fn bring(&self, bring: u64, blocks: Range<u64>) {
        let pages = self.read(&blocks);
        let mut resident = self.resident();
        let first = blocks.start;
        let told = resident.brought(bring, blocks, |block| {
            let at = usize::try_from(block - first).expect("one of a reading") * BLOCK;
            let is_wanted = self.arena.is_present(block);
            if is_wanted {
                self.arena.copy_in(block * BLOCK_BYTES, &pages.bytes()[at..at + BLOCK]);
            }
            is_wanted
        });
        told.iter().for_each(|teller| teller.tell(Ok(())));
        self.make_room(&mut resident);
    }

    /// What the disk has there; zeros where it cannot be read.
    fn read(&self, blocks: &Range<u64>) -> Pages {
        let count = usize::try_from(blocks.end - blocks.start).expect("of one request");
        let mut pages = Pages::new(count * BLOCK);
        if self.blocks.read_at(self.place.block(blocks.start), pages.bytes_mut()).is_ok() {
            return pages;
        }
        if self.blocks.is_gone() {
            self.die();
        }
        for (block, page) in blocks.clone().zip(pages.bytes_mut().chunks_mut(BLOCK)) {
            if let Err(error) = self.blocks.read_at(self.place.block(block), page) {
                tracing::warn!("byte {} of a disk cannot be read: {error}", self.place.block(block));
                page.fill(0);
            }
        }
        pages
    }

    /// Whether each block is right on the disk. One that is being written is.
    fn check(&self, blocks: Range<u64>, teller: &Teller) {
        let noted = |journal: &super::Journal| {
            let each = blocks.clone().map(|block| (journal.noted(block), journal.auth(block)));
            each.collect::<Vec<_>>()
        };
        let before = noted(&self.journal());
        let pages = self.read(&blocks);
        let after = noted(&self.journal());
        let found = pages.bytes().chunks(BLOCK);
        let right = before.iter().zip(after).zip(found).map(|((before, after), page)| {
            let (noted, auth) = before;
            *before != after || !noted.is_data || crc32c(page) ^ auth::sum(auth) == noted.sum
        });
        let write_back = self.write_back();
        let right = right.zip(blocks).map(|(right, block)| right && !write_back.is_stale(block));
        teller.say(Ok(()), right.collect());
    }
}
