//! The view of an encrypted volume: what tools read and write is plaintext, and what lies under it is
//! ciphertext, in whole blocks.
//!
//! Owns a thread, encrypting and decrypting, locks on the blocks that are written, and, for who seals, what
//! proves each block as it lies on donors. Never: donors, or what
//! a block that does not open means for them (the volume under it has both). Invariants: plaintext is handed
//! to a tool only after its authentication tag fitted; a block is encrypted as a whole, with a nonce of its
//! own each time; and no ciphertext is handed out as data. A block that does not open is asked for once more,
//! and then looked at as it comes from each donor, so that one that lies is named and gone round. Proofs
//! behind the volume's end are no secret, and written as they are.
//! Front ends hold it as they hold a volume. Tests: `lab/tests/encrypted.rs`.

use super::handle::{Completion, Op, Shared, Submission, VolumeError, VolumeHandle};
use super::orders::Order;
use super::view::{self, Locks, PIECE_BYTES, UnderWay, end, index};
use crate::auth::{Auth, NONE};
use crate::buffer::Buffer;
use crate::cipher::VolumeKey;
use crate::proofs::{Proof, proof_of_ciphertext, proof_of_nothing};
use cheetah_core::layout::{Chunks, Geometry};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::map::{VolumeId, VolumeMap};
use cheetah_core::volume::Fragment;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BLOCK: usize = BLOCK_BYTES as usize;
/// So often a block that does not open is asked for again: what was read ahead is one answer, and what a
/// donor sends another.
const READS_MAX: u32 = 3;

/// How what comes from a donor is checked where it comes.
#[derive(Debug)]
pub(super) struct Opening {
    key: Arc<VolumeKey>,
    volume: VolumeId,
    geometry: Geometry,
    chunks: Chunks,
    /// Blocks from here on are proofs.
    proofs_from: Option<u64>,
}

impl Opening {
    pub(super) fn new(key: Arc<VolumeKey>, map: &VolumeMap) -> Opening {
        let geometry = Geometry::new(map.redundancy, map.unit);
        Opening { key, volume: map.volume, geometry, chunks: map.chunks(), proofs_from: None }
    }

    /// From the newest map.
    pub(super) fn hear_of_proofs(&mut self, map: &VolumeMap) {
        (self.chunks, self.proofs_from) = (map.chunks(), map.proofs.map(|_| map.tree().blocks()));
    }

    /// Whether the block at `local` of a slot is what was encrypted there. Of parity nothing is known; of
    /// copies each is.
    pub(super) fn opens(&self, fragment: Fragment, local: u32, auth: &Auth, bytes: &[u8]) -> bool {
        let Fragment { group, slot, .. } = fragment;
        let slot = match self.geometry.data {
            1 => 0,
            data if slot >= data => return true,
            _ => slot,
        };
        let number = self.chunks.offset(group, self.geometry.offset(slot, local)) / BLOCK_BYTES;
        if self.proofs_from.is_some_and(|from| number >= from) {
            return *auth == NONE;
        }
        let Ok(mut block) = <[u8; BLOCK]>::try_from(bytes) else { return false };
        self.key.open(self.volume, number, auth, &mut block).is_ok()
    }
}

impl VolumeHandle {
    /// What tools get of the encrypted volume that `under` serves.
    ///
    /// # Errors
    /// No thread.
    pub fn decrypted(
        under: &VolumeHandle,
        volume: VolumeId,
        key: Arc<VolumeKey>,
    ) -> std::io::Result<VolumeHandle> {
        VolumeHandle::view_of(under, volume, Some(key))
    }

    /// The same for who has no key, and asks only whether donors hold what was sealed: its reads end as those
    /// would, and give nothing but zeros.
    ///
    /// # Errors
    /// No thread.
    pub fn undisclosed(under: &VolumeHandle, volume: VolumeId) -> std::io::Result<VolumeHandle> {
        VolumeHandle::view_of(under, volume, None)
    }

    fn view_of(
        under: &VolumeHandle,
        volume: VolumeId,
        key: Option<Arc<VolumeKey>>,
    ) -> std::io::Result<VolumeHandle> {
        let (name, pool) = (under.name().to_owned(), under.pool().clone());
        let read_only = under.read_only() || key.is_none();
        let shared = Shared::new(name, (read_only, under.write_back()), under.size(), pool);
        let noted = Arc::new(Noted::default());
        let shared = Arc::new(Shared { noted: Some(noted.clone()), ..shared });
        let (locks, under_way, under) = (Locks::default(), UnderWay::default(), under.clone());
        let view = View { under, read_only, volume, key, noted, locks, under_way };
        view::start("cipher", shared, move |shared| serve(shared, Rc::new(view)))
    }

    /// Whether donors hold ciphertext of what is read and written here.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.noted.is_some()
    }

    /// From now on the proofs of blocks as donors hold them are noted, as they are read and written. They
    /// take memory until they are asked for.
    pub fn note_proofs(&self) {
        if let Some(noted) = &self.0.noted {
            noted.wanted.store(true, Ordering::Release);
        }
    }

    /// The proofs of these blocks, which are given up here; none where one of them was neither read nor
    /// written. Those that `is_absent` holds for have no more to be proved than what was never written.
    #[must_use]
    pub fn noted_proofs(&self, blocks: Range<u64>, is_absent: impl Fn(u64) -> bool) -> Option<Vec<Proof>> {
        let mut proofs = self.0.noted.as_ref()?.proofs();
        let proof = |block| {
            let noted = proofs.remove(&block);
            if is_absent(block) { Some(proof_of_nothing()) } else { noted }
        };
        blocks.map(proof).collect()
    }
}

/// Proofs of blocks as they lie on donors, for who seals.
#[derive(Debug, Default)]
pub(super) struct Noted {
    wanted: AtomicBool,
    proofs: Mutex<BTreeMap<u64, Proof>>,
}

impl Noted {
    fn proofs(&self) -> MutexGuard<'_, BTreeMap<u64, Proof>> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Those of ciphertext, if they are wanted.
    fn of(&self, room: &Buffer) -> Vec<Proof> {
        if !self.is_wanted() {
            return Vec::new();
        }
        let blocks = room.as_chunks::<BLOCK>().0.iter().zip(room.auths());
        blocks.map(|(block, auth)| proof_of_ciphertext(block, auth)).collect()
    }

    /// A read that began before a write may end after it, and says nothing then.
    fn was_read(&self, first: u64, proofs: Vec<Proof>) {
        if !proofs.is_empty() {
            let mut noted = self.proofs();
            for (block, proof) in (first..).zip(proofs) {
                noted.entry(block).or_insert(proof);
            }
        }
    }

    fn was_written(&self, first: u64, proofs: impl IntoIterator<Item = Proof>) {
        if self.is_wanted() {
            self.proofs().extend((first..).zip(proofs));
        }
    }
}

/// Serves the inbox until it is told to close.
async fn serve(shared: Arc<Shared>, view: Rc<View>) {
    let handle = VolumeHandle(shared.clone());
    let grows = tokio::task::spawn_local(grow(shared.clone(), view.under.clone()));
    loop {
        let (submissions, orders) = view::arrived(&handle).await;
        for order in &orders {
            if matches!(order, Order::Forget) {
                view.under.forget();
                shared.forgotten.fetch_add(1, Ordering::AcqRel);
            }
        }
        submissions.into_iter().for_each(|submission| view.submit(submission));
        for order in orders {
            match order {
                Order::Look(answer) => {
                    let under = view.under.clone();
                    tokio::task::spawn_local(async move { answer.send(under.look().await) });
                }
                Order::Settled(answer) => {
                    let under = view.under.clone();
                    tokio::task::spawn_local(async move { answer.send(under.settled().await) });
                }
                Order::Scrub(scope) => view.under.scrub(scope),
                Order::Close(closing) => {
                    handle.close_inbox().into_iter().for_each(|submission| view.submit(submission));
                    view.under_way.idle().await;
                    grows.abort();
                    let _ = closing.send(());
                    return;
                }
                // Of donors and leases the volume under it hears itself.
                Order::Forget | Order::Map(_) | Order::Amended(_) | Order::LeaseLost | Order::Silent(_) => {}
            }
        }
    }
}

/// It is as large as the volume under it.
async fn grow(shared: Arc<Shared>, under: VolumeHandle) {
    let mut sizes = under.size_changes();
    loop {
        let size = *sizes.borrow_and_update();
        shared.size.store(size, Ordering::Release);
        shared.size_changes.send_if_modified(|last| std::mem::replace(last, size) != size);
        if sizes.changed().await.is_err() {
            return;
        }
    }
}

#[derive(Debug)]
struct View {
    under: VolumeHandle,
    read_only: bool,
    volume: VolumeId,
    key: Option<Arc<VolumeKey>>,
    noted: Arc<Noted>,
    locks: Locks,
    under_way: UnderWay,
}

impl View {
    fn submit(self: &Rc<Self>, submission: Submission) {
        let Submission { op, offset, len, .. } = submission;
        let fits = offset.checked_add(len.into()).is_some_and(|end| end <= self.under.size());
        let proofs_from = self.under.size().next_multiple_of(BLOCK_BYTES);
        match op {
            Op::Write if offset >= proofs_from && len.is_multiple_of(BLOCK_BYTES as u32) => {
                self.write_proofs(submission);
            }
            // Whether they are there.
            Op::Presence if offset >= proofs_from => self.under.submit(submission),
            _ if !fits => end(submission, Err(VolumeError::OutOfRange)),
            _ if op.writes() && self.read_only => end(submission, Err(VolumeError::ReadOnly)),
            _ if len == 0 && op != Op::Flush => end(submission, Ok(())),
            Op::Flush | Op::Status | Op::Presence | Op::Cache => self.under.submit(submission),
            Op::Trim => self.trim(submission),
            Op::Read | Op::Write | Op::Zero { .. } => self.spawn(submission),
        }
    }

    /// Behind the volume's end; what is there beyond its proofs the volume refuses.
    fn write_proofs(&self, mut submission: Submission) {
        if let Some(buffer) = &mut submission.buffer {
            buffer.expect_auths();
        }
        self.under.submit(submission);
    }

    /// A hint, which is passed on for whole blocks.
    fn trim(&self, submission: Submission) {
        let Submission { op, offset, len, buffer, token, sink } = submission;
        let blocks = view::whole(offset, offset + u64::from(len), self.under.size());
        let (offset, bytes) = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
        let len = u32::try_from(bytes).unwrap_or(0);
        self.under.submit(Submission { op, offset, len, buffer, token, sink });
    }

    fn spawn(self: &Rc<Self>, mut submission: Submission) {
        self.under_way.begin();
        let view = self.clone();
        tokio::task::spawn_local(async move {
            let result = match submission.op {
                Op::Read => view.read(&mut submission).await,
                _ => view.write(&mut submission).await,
            };
            end(submission, result);
            view.under_way.end();
        });
    }

    // Reading.

    async fn read(&self, submission: &mut Submission) -> Result<(), VolumeError> {
        let Submission { offset, len, .. } = *submission;
        let told = self.check_readable(offset, offset + u64::from(len));
        // What lies there is to be known by who seals.
        if told.is_ok() || self.noted.is_wanted() {
            self.read_anything(submission).await?;
        }
        told
    }

    async fn read_anything(&self, submission: &mut Submission) -> Result<(), VolumeError> {
        let Submission { offset, len, buffer, .. } = submission;
        let (offset, end) = (*offset, *offset + u64::from(*len));
        let Some(room) = buffer.take_if(|_| (offset | end).is_multiple_of(BLOCK_BYTES)) else {
            let Some(into) = buffer else { return Ok(()) };
            return self.read_into(offset, into).await;
        };
        let (room, result) = self.read_blocks(offset / BLOCK_BYTES, room).await;
        *buffer = room;
        result
    }

    /// What the source could not give is no data, and what stands beside it in a block is. Zeros were
    /// encrypted there.
    fn check_readable(&self, offset: u64, end: u64) -> Result<(), VolumeError> {
        let told = self.under.0.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = told.ranges.iter().any(|range| range.reaches(offset, end));
        if is_there { Err(VolumeError::Unreadable) } else { Ok(()) }
    }

    /// Bytes that begin or end inside of a block.
    async fn read_into(&self, offset: u64, mut into: &mut [u8]) -> Result<(), VolumeError> {
        let mut at = offset;
        while !into.is_empty() {
            let (piece, rest) = into.split_at_mut(piece_bytes(at, into.len()));
            self.read_piece(at, piece).await?;
            at += piece.len() as u64;
            into = rest;
        }
        Ok(())
    }

    async fn read_piece(&self, offset: u64, into: &mut [u8]) -> Result<(), VolumeError> {
        let end = offset + into.len() as u64;
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let room = view::room(&self.under, (blocks.end - blocks.start) * BLOCK_BYTES)?;
        let (room, result) = self.read_blocks(blocks.start, room).await;
        result?;
        let room = room.ok_or(VolumeError::DonorLost)?;
        into.copy_from_slice(&room[index(offset - blocks.start * BLOCK_BYTES)..][..into.len()]);
        Ok(())
    }

    /// Whole blocks, from this one on. The buffer comes back, with plaintext where all is well.
    async fn read_blocks(&self, first: u64, mut room: Buffer) -> (Option<Buffer>, Result<(), VolumeError>) {
        for nth in 0..READS_MAX {
            room.expect_auths();
            if nth > 0 {
                // Each donor's answer by itself, and nothing that was read ahead.
                self.under.forget();
                room.check();
            }
            let (buffer, result) = self.ask(Op::Read, first, room).await;
            let Some(buffer) = buffer else { return (None, result.and(Err(VolumeError::DonorLost))) };
            room = buffer;
            if result.is_err() {
                room.fill(0);
                room.forget_auths();
                return (Some(room), result);
            }
            let proofs = self.noted.of(&room);
            if self.decrypt(first, &mut room) {
                self.noted.was_read(first, proofs);
                room.forget_auths();
                return (Some(room), Ok(()));
            }
        }
        tracing::warn!(
            event = "block-forged",
            volume = self.under.name(),
            "blocks of volume '{}' from byte {} on are not what was encrypted there, wherever they lie",
            self.under.name(),
            first * BLOCK_BYTES
        );
        room.fill(0);
        room.forget_auths();
        (Some(room), Err(VolumeError::Corrupt))
    }

    /// Whether all of it opens. What does not is of no use afterwards.
    fn decrypt(&self, first: u64, room: &mut Buffer) -> bool {
        let Some(key) = &self.key else {
            room.fill(0);
            return true;
        };
        let auths = room.auths().to_vec();
        let blocks = room.as_chunks_mut::<BLOCK>().0;
        let mut all = (first..).zip(&auths).zip(blocks);
        all.all(|((number, auth), block)| key.open(self.volume, number, auth, block).is_ok())
    }

    // Writing.

    async fn write(&self, submission: &mut Submission) -> Result<(), VolumeError> {
        let Submission { op, offset, len, buffer, .. } = submission;
        let (offset, end) = (*offset, *offset + u64::from(*len));
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let _locked = self.locks.lock(blocks.clone()).await;
        match op {
            Op::Zero { .. } => self.zero(*op, offset, end).await,
            _ if (offset | end).is_multiple_of(BLOCK_BYTES) => {
                let Some(room) = buffer.take() else { return Ok(()) };
                let (room, result) = self.write_blocks(blocks.start, room).await;
                *buffer = room;
                result
            }
            _ => match buffer {
                Some(payload) => self.write_bytes(offset, payload).await,
                None => Ok(()),
            },
        }
    }

    /// Whole blocks, from this one on, which are encrypted where they are.
    async fn write_blocks(&self, first: u64, mut room: Buffer) -> (Option<Buffer>, Result<(), VolumeError>) {
        let Some(key) = &self.key else { return (Some(room), Err(VolumeError::ReadOnly)) };
        let mut auths = Vec::with_capacity(room.len() / BLOCK);
        if key.seal(self.volume, first, &mut room, &mut auths).is_err() {
            return (Some(room), Err(VolumeError::NoMemory));
        }
        room.set_auths(auths);
        let proofs = self.noted.of(&room);
        let (room, result) = self.ask(Op::Write, first, room).await;
        if result.is_ok() {
            self.noted.was_written(first, proofs);
        }
        (room, result)
    }

    /// What begins or ends inside of a block: that is completed with what is there.
    async fn write_bytes(&self, offset: u64, mut payload: &[u8]) -> Result<(), VolumeError> {
        let mut at = offset;
        while !payload.is_empty() {
            let (piece, rest) = payload.split_at(piece_bytes(at, payload.len()));
            self.write_piece(at, piece).await?;
            at += piece.len() as u64;
            payload = rest;
        }
        Ok(())
    }

    async fn write_piece(&self, offset: u64, payload: &[u8]) -> Result<(), VolumeError> {
        let end = offset + payload.len() as u64;
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let begin = blocks.start * BLOCK_BYTES;
        let mut whole = view::room(&self.under, (blocks.end - blocks.start) * BLOCK_BYTES)?;
        let last = blocks.end - 1;
        if offset > begin {
            self.complete(blocks.start, begin, &mut whole).await?;
        }
        if end < blocks.end * BLOCK_BYTES && (last > blocks.start || offset == begin) {
            // What lies behind the volume's end is zeros; who fills that block first could read nothing
            // there.
            match end == self.under.size() {
                true => whole[index(end - begin)..].fill(0),
                false => self.complete(last, begin, &mut whole).await?,
            }
        }
        whole[index(offset - begin)..][..payload.len()].copy_from_slice(payload);
        self.write_blocks(blocks.start, whole).await.1
    }

    async fn complete(&self, block: u64, begin: u64, whole: &mut [u8]) -> Result<(), VolumeError> {
        // A block that is written is readable from then on, all of it.
        self.check_readable(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)?;
        let (room, result) = self.read_blocks(block, view::room(&self.under, BLOCK_BYTES)?).await;
        result?;
        let room = room.ok_or(VolumeError::DonorLost)?;
        whole[index(block * BLOCK_BYTES - begin)..][..BLOCK].copy_from_slice(&room);
        Ok(())
    }

    /// Whole blocks of zeros are none to donors, which keep nothing of them.
    async fn zero(&self, op: Op, offset: u64, end: u64) -> Result<(), VolumeError> {
        let blocks = view::whole(offset, end, self.under.size());
        for edge in view::edges(offset, end, &blocks) {
            self.write_bytes(edge.start, &vec![0; index(edge.end - edge.start)]).await?;
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let count = blocks.end - blocks.start;
        let len = u32::try_from(count * BLOCK_BYTES).map_err(|_| VolumeError::OutOfRange)?;
        let came = view::ask(&self.under, op, blocks.start * BLOCK_BYTES, len, None);
        came.await.map_err(|_| VolumeError::DonorLost)?.result?;
        self.noted.was_written(blocks.start, blocks.map(|_| proof_of_nothing()));
        Ok(())
    }

    /// Has the volume read or write whole blocks, from this one on; the buffer comes back.
    async fn ask(&self, op: Op, first: u64, buffer: Buffer) -> (Option<Buffer>, Result<(), VolumeError>) {
        match view::submit(&self.under, op, first * BLOCK_BYTES, buffer).await {
            Ok(Completion { buffer, result, .. }) => (buffer, result),
            Err(_) => (None, Err(VolumeError::DonorLost)),
        }
    }
}

/// How much of a transfer that begins there is one request: one of the largest size that begins inside of a
/// block has more blocks than a request may have.
fn piece_bytes(at: u64, left: usize) -> usize {
    left.min(index(PIECE_BYTES - at % PIECE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_noted_whatever_a_read_of_before_says() {
        let noted = Noted::default();
        noted.was_written(7, [[1; 32]]);
        assert!(noted.proofs().is_empty(), "nobody wants it");
        noted.wanted.store(true, Ordering::Release);
        noted.was_read(6, vec![[1; 32], [1; 32]]);
        noted.was_written(7, [[2; 32]]);
        noted.was_read(6, vec![[3; 32], [3; 32], [3; 32]]);
        let known: Vec<Proof> = noted.proofs().values().copied().collect();
        assert_eq!(known, [[1; 32], [2; 32], [3; 32]]);
    }
}
