//! A disk as a volume with write-back has it: writes are in memory first.
//!
//! Owns how a write lands and how what is dirty gets to the disk. Never: when, or who waits (core's
//! `WriteBack`). Invariants: a write lands as a whole or not at all, so that what was acknowledged before it
//! is never lost with it; what is taken out of memory for the disk is of whole writes, for both hold the
//! lock; of what is stale nothing is read. The order of locks: the journal, `write_back`, `resident`. Called
//! by `disk`'s threads and `donor::waiting`. Tests: `lab/disks_write_back.rs`.

use super::file::Pages;
use super::journal::{Write, io_error};
use super::teller::Teller;
use super::threads::{Job, with_auth};
use super::{Disk, Shared, blocks_of, range};
use crate::arena::Said;
use crate::auth::{self, Auth};
use crate::code::crc32c;
use crate::ledgers::locked;
use cheetah_core::disk::{Landed, Next, Noted, WriteBack};
use cheetah_core::limits::{BLOCK_BYTES, INTENT_REGION_BLOCKS};
use cheetah_core::units::Time;
use cheetah_nbd::Digest;
use std::io;
use std::ops::Range;
use std::sync::MutexGuard;
use std::time::Duration;

const BLOCK: usize = BLOCK_BYTES as usize;
/// So many blocks are copied out at once, while nothing can land.
const COPY_BLOCKS: usize = 256;

impl Disk {
    /// A write of whole blocks that has come. `through`: it is answered when the disk has it. None: it is not
    /// what its client said, and nothing of it lands.
    pub(crate) fn land(
        &self,
        offset: u64,
        (bytes, auths): (&[u8], &[Auth]),
        said: Option<Said>,
        through: bool,
        teller: Teller,
    ) -> Option<Landed> {
        let is_meant = |said: &Said| {
            let beside = auths.iter().map(auth::sum).chain(std::iter::repeat(0));
            let sums = bytes.chunks(BLOCK).map(crc32c).zip(beside).map(|(crc, beside)| crc ^ beside);
            Digest::of_blocks(said.first, sums) == said.digest.sums
        };
        if !said.as_ref().is_none_or(is_meant) {
            return None;
        }
        let len = bytes.len() as u64;
        Some(self.lands(range(offset, len), through, teller, || {
            let begun = self.shared.arena.begin_write(offset, len);
            self.shared.arena.copy_in(offset, bytes);
            self.shared.arena.set_auths(offset, auths);
            self.shared.arena.wrote(begun, len, None, None);
        }))
    }

    /// Likewise zeros.
    pub(crate) fn land_zeros(&self, offset: u64, len: u64, through: bool, teller: Teller) -> Landed {
        self.lands(range(offset, len), through, teller, || self.shared.arena.zero(offset, len, false))
    }

    fn lands(&self, blocks: Range<u64>, through: bool, teller: Teller, put: impl FnOnce()) -> Landed {
        let now = self.shared.now();
        let mut write_back = self.shared.write_back();
        self.shared.resident().begin(blocks.clone());
        put();
        let zeros = |block: &u64| !self.shared.arena.is_present(*block);
        self.shared.resident().all_went(&blocks.clone().filter(zeros).collect::<Vec<_>>());
        let was_idle = write_back.dirty() == 0;
        let (waits_for, flushes) = if through { (None, Some(teller)) } else { (Some(teller), None) };
        let (landed, twice) = write_back.landed(now, blocks, waits_for);
        let flushed = flushes.and_then(|teller| write_back.flush(teller));
        drop(write_back);
        debug_assert!(flushed.is_none(), "what has landed is dirty");
        self.shared.let_all_go(&twice);
        if landed == Landed::Waits || was_idle {
            self.wake();
        }
        landed
    }

    /// `teller` is told when the disk has all that was answered. Whether it has already.
    pub(crate) fn flush(&self, teller: Teller) -> bool {
        let is_done = self.shared.write_back().flush(teller).is_some();
        if !is_done {
            self.wake();
        }
        is_done
    }

    fn wake(&self) {
        // A disk whose thread has ended has died, and its donor with it.
        let _ = self.jobs.send(Job::Look);
    }

    /// Writes all that is in memory alone, as far as the disk takes it.
    pub async fn write_back(&self) {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        if !self.flush(Teller { tell, waits_for: 0 }) {
            let _ = told.recv().await;
        }
    }

    /// Whether what is there may be older than what was acknowledged.
    pub(crate) fn is_stale(&self, offset: u64, len: u64) -> bool {
        self.shared.write_back().any_stale(range(offset, len))
    }

    /// Whether anything of an extent may be.
    pub(crate) fn is_stale_in(&self, extent: u32) -> bool {
        !self.shared.write_back().stale_runs(blocks_of(extent)).is_empty()
    }

    /// Where that may be, in bytes.
    pub(crate) fn stale_runs(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let runs = self.shared.write_back().stale_runs(range(offset, len));
        runs.into_iter().map(|run| run.start * BLOCK_BYTES..run.end * BLOCK_BYTES).collect()
    }

    /// What may be older counts as it is from now on, and others may have something else.
    pub(crate) fn adopt(&self, offset: u64, len: u64) {
        let journal = self.shared.journal();
        let mut write_back = self.shared.write_back();
        let blocks = write_back.adopt(self.shared.now(), range(offset, len));
        let arena = &self.shared.arena;
        blocks.iter().for_each(|block| arena.set_noted(*block, journal.noted(*block)));
        if !blocks.is_empty() {
            arena.dirty().mark(offset, len);
            arena.ledgers().unnumbered().mark(offset, len);
            tracing::warn!(
                "{} blocks count as they are on the disk: what was written there since the last flush may be lost",
                blocks.len()
            );
        }
    }
}

impl Shared {
    pub(super) fn write_back(&self) -> MutexGuard<'_, WriteBack<Teller>> {
        locked(&self.write_back)
    }

    pub(super) fn now(&self) -> Time {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Holds that are one too many.
    fn let_all_go(&self, blocks: &[u64]) {
        for run in blocks.chunk_by(|one, next| one + 1 == *next) {
            self.let_go(run[0]..run[run.len() - 1] + 1);
        }
    }

    /// Of what is stale, data is there of which nobody knows what it is: nothing of it is taken for zeros.
    pub(super) fn hide_what_is_stale(&self) {
        let journal = self.journal();
        let owned = |region: &&u64| {
            let extent = **region * INTENT_REGION_BLOCKS / (blocks_of(0).end);
            u32::try_from(extent).is_ok_and(|extent| journal.held().owners.contains_key(&extent))
        };
        let mut count = 0;
        for region in journal.stale_at_start().iter().filter(owned) {
            count += 1;
            for block in region * INTENT_REGION_BLOCKS..(region + 1) * INTENT_REGION_BLOCKS {
                let noted = Noted { is_data: true, is_known: true, ..journal.noted(block) };
                self.arena.set_noted(block, noted);
            }
        }
        if count > 0 {
            tracing::warn!(
                "{count} MiB of this disk may be older than what was written there, which was in memory: they are \
                 given again by other donors"
            );
        }
    }

    /// Does what is next for what is in memory alone. None: there may be more to do; else how long there is
    /// nothing.
    pub(super) fn keep_back(&self) -> Option<Duration> {
        const LONG: Duration = Duration::from_secs(3600);
        let now = self.now();
        let next = self.write_back().next(now);
        match next {
            Next::Sleep(until) => {
                return Some(until.map_or(LONG, |until| Duration::from_nanos(until.saturating_sub(now))));
            }
            Next::Intend(regions) => {
                let intend = || self.journal().intend(&regions, |held| self.marked(held)).map_err(io_error);
                if self.unless_dead(intend).is_err() {
                    return Some(LONG);
                }
                let told = self.write_back().intended(&regions);
                tell(told);
            }
            Next::Write(blocks) => {
                if !self.write_some_back(&blocks) {
                    return Some(LONG);
                }
            }
            Next::Clean(regions) => {
                let clean = || {
                    let mut journal = self.journal();
                    // What was adopted there others may not have.
                    journal.mark(|held| self.marked(held)).map_err(io_error)?;
                    journal.clean(&regions, |held| self.marked(held)).map_err(io_error)
                };
                if self.unless_dead(clean).is_err() {
                    return Some(LONG);
                }
            }
        }
        None
    }

    /// Whether the disk can be used still.
    fn write_some_back(&self, blocks: &[u64]) -> bool {
        let writes = self.take_out(blocks);
        let commit = || self.journal().commit(&writes, |held| self.marked(held)).map_err(io_error);
        let Ok(results) = self.unless_dead(commit) else { return false };
        self.arena.auths_reached_disk(writes.iter().flat_map(Write::each).map(with_auth));
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for (write, result) in writes.iter().zip(results) {
            match result {
                Ok(()) => good.extend(write.blocks()),
                Err(error) => {
                    tracing::warn!("{} blocks are not taken by a disk: {error}", write.notes.len());
                    bad.extend(write.blocks());
                }
            }
        }
        let now = self.now();
        let mut write_back = self.write_back();
        let (mut told, mut let_go) = write_back.written(now, &good, true);
        if !bad.is_empty() {
            let (also_told, also) = write_back.written(now, &bad, false);
            told.extend(also_told);
            let_go.extend(also);
        }
        drop(write_back);
        let_go.sort_unstable();
        self.let_all_go(&let_go);
        let mut resident = self.resident();
        self.make_room(&mut resident);
        drop(resident);
        tell(told);
        true
    }

    /// Dirty blocks as they are now, in as few writes as that takes.
    fn take_out(&self, blocks: &[u64]) -> Vec<Write> {
        let mut writes: Vec<Write> = Vec::new();
        for some in blocks.chunks(COPY_BLOCKS) {
            let mut write_back = self.write_back();
            write_back.begin(some);
            for run in some.chunk_by(|one, next| one + 1 == *next) {
                let notes: Vec<Noted> = run.iter().map(|block| self.arena.noted(*block)).collect();
                let data = run.iter().zip(&notes).filter(|(_, noted)| noted.is_data);
                let mut pages = Pages::new(data.clone().count() * BLOCK);
                for ((block, _), page) in data.zip(pages.bytes_mut().chunks_mut(BLOCK)) {
                    self.arena.copy_out(*block, page);
                }
                let auths = self.arena.auths_of(run[0]..run[run.len() - 1] + 1);
                writes.push(Write { first: run[0], notes, auths, data: pages });
            }
        }
        writes
    }

    /// These extents are nobody's any more.
    pub(super) fn nothing_is_dirty_in(&self, extents: &[u32]) {
        for extent in extents {
            let (told, let_go) = self.write_back().forget(self.now(), blocks_of(*extent));
            self.let_all_go(&let_go);
            tell(told);
        }
    }
}

fn tell(told: Vec<(Teller, bool)>) {
    for (teller, is_good) in told {
        teller.tell(if is_good { Ok(()) } else { Err(io::Error::other("the disk does not take it")) });
    }
}
