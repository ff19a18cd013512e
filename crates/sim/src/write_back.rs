//! What `rim::disk::write_back` does, in virtual time: writes that are in memory before they are on a disk.
//!
//! Owns: how a write of a volume with write-back lands, and what is carried out of what core's `WriteBack`
//! says. Never: when, or which blocks are stale. Invariant: a write lands as a whole or not at all.

use crate::auths::{content_sum, known, noted_in};
use crate::bugs::Bug;
use crate::bytes::{BLOCK, sectors, sum};
use crate::donor::DonorHost;
use crate::on_disk::{DiskEv, Step, blocks_of};
use crate::wire::DonorEnd;
use crate::world::{DonorEv, Ev, World, say};
use cheetah_core::disk::{Held, Landed, Next, Write, WriteBack};
use cheetah_core::donor::{Grant, ListedWrite, Ticket};
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BLOCKS, INTENT_REGION_BLOCKS};
use cheetah_core::map::{DonorId, VolumeId};
use cheetah_nbd::{CmdFlags, Digest, Errno, RequestHeader};
use std::collections::BTreeSet;
use std::ops::Range;

impl DonorHost {
    /// Of what is stale, data is there of which nobody knows what it is.
    pub(crate) fn hide_what_is_stale(&mut self, believed: bool) {
        let Some(disk) = &mut self.disk else { return };
        if believed {
            // A planted bug.
            disk.write_back = WriteBack::new(disk.room, &BTreeSet::new());
            return;
        }
        let owned = |region: &&u64| {
            let extent = u32::try_from(**region * INTENT_REGION_BLOCKS / EXTENT_BLOCKS).unwrap_or(u32::MAX);
            disk.journal.held().owners.contains_key(&extent)
        };
        for region in disk.journal.stale_at_start().iter().filter(owned) {
            for block in region * INTENT_REGION_BLOCKS..(region + 1) * INTENT_REGION_BLOCKS {
                self.memory.note(block, Some(content_sum(&disk.journal, block)));
            }
        }
    }

    /// Whether some of what it holds is stale.
    pub(crate) fn is_stale(&self) -> bool {
        let Some(disk) = &self.disk else { return false };
        disk.journal.held().owners.keys().any(|extent| {
            let first = u64::from(*extent) * EXTENT_BLOCKS;
            !disk.write_back.stale_runs(first..first + EXTENT_BLOCKS).is_empty()
        })
    }

    /// What of a range it lists as stale.
    pub(crate) fn stale_in(&self, address: u64, len: u64) -> Vec<ListedWrite> {
        let blocks = address / BLOCK_BYTES..(address + len).div_ceil(BLOCK_BYTES);
        let runs = self.disk.iter().flat_map(|disk| disk.write_back.stale_runs(blocks.clone()));
        runs.map(|run| ListedWrite::stale(run.start * BLOCK_BYTES, run.end * BLOCK_BYTES)).collect()
    }

    fn any_stale(&self, blocks: Range<u64>) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.write_back.any_stale(blocks))
    }

    /// Dirty blocks as they are in memory.
    fn take_out(&mut self, blocks: &[u64]) -> Vec<Write<Vec<u8>>> {
        let mut writes: Vec<Write<Vec<u8>>> = Vec::new();
        let Some(disk) = &mut self.disk else { return writes };
        disk.write_back.begin(blocks);
        for run in blocks.chunk_by(|one, next| one + 1 == *next) {
            let (notes, auths): (Vec<_>, Vec<_>) =
                run.iter().map(|block| noted_in(&self.memory, *block)).unzip();
            let data = run.iter().zip(&notes).filter(|(_, noted)| noted.is_data).flat_map(|(block, _)| {
                let at = usize::try_from(*block).expect("inside of the memory") * BLOCK;
                self.memory.get(at, BLOCK)
            });
            writes.push(Write { first: run[0], data: data.collect(), notes, auths });
        }
        writes
    }
}

impl World {
    /// A flush that was submitted then is answered: of a volume with write-back the disks have what was.
    pub(crate) fn note_flushed(&mut self, c: usize, order: u64) {
        let client = &self.clients[c];
        let map = client.machine.as_ref().map(|machine| machine.map());
        let volume = map.filter(|map| map.write_back && !client.read_only).map(|map| map.volume);
        if let Some(volume) = volume {
            self.count("flushes of volumes with write-back");
            self.oracle.flushed(volume, order);
        }
    }

    /// Whether what is written to it is in memory first.
    pub(crate) fn writes_back(&self, d: usize, grant: &Grant) -> bool {
        grant.write_back && self.donors[d].disk.is_some()
    }

    /// Why a read, or a flush, is not answered: what is there may be older.
    pub(crate) fn may_be_older(&self, d: usize, grant: &Grant, header: &RequestHeader) -> bool {
        let at = sectors(header.offset * 512);
        self.writes_back(d, grant) && self.donors[d].any_stale(blocks_of(at, header.length as usize))
    }

    /// All of a write has come, or it is one of zeros (`bytes` is none).
    pub(crate) fn lands(
        &mut self,
        d: usize,
        id: u64,
        (end, grant): (&mut DonorEnd, &Grant),
        (header, ticket): (&RequestHeader, Option<Ticket>),
        (bytes, digest): (Option<Vec<u8>>, Option<Digest>),
    ) {
        let at = usize::try_from(header.offset).expect("inside of the memory");
        let count = header.length as usize;
        let (blocks, through) = (blocks_of(at, count), header.flags.contains(CmdFlags::FUA));
        let ignored = self.bug == Some(Bug::DigestIgnored);
        if let (Some(digest), Some(bytes)) = (digest, &bytes)
            && Digest::of_blocks(blocks.start, bytes.chunks(BLOCK).map(sum)) != digest.sums
            && !ignored
        {
            self.count("payloads that were not what was sent");
            let sums = bytes.chunks(BLOCK).map(|block| !sum(block)).collect::<Vec<_>>();
            return end.outbox.done_with(header.cookie, sums.into_iter());
        }
        let is_write = bytes.is_some();
        let now = self.now;
        let donor = &mut self.donors[d];
        let Some(disk) = &mut donor.disk else { return };
        disk.resident.begin(blocks.clone());
        match bytes {
            Some(bytes) => donor.memory.write(at, &bytes),
            None => donor.memory.zero(at, count, false),
        }
        donor.memory.sign(at, count);
        let zeros: Vec<u64> = blocks.clone().filter(|block| !donor.memory.has(*block)).collect();
        disk.resident.all_went(&zeros);
        let wait = disk.wait(id, *header, ticket);
        let (landed, twice) = disk.write_back.landed(now, blocks.clone(), (!through).then_some(wait));
        if through {
            let _ = disk.write_back.flush(wait);
        }
        twice.into_iter().for_each(|block| self.donors[d].let_go(block..block + 1));
        self.check_fence(d, id);
        if self.bug == Some(Bug::DirtyDropped) {
            // Nobody holds what is dirty.
            for block in blocks {
                self.donors[d].let_go(block..block + 1);
                if let Some(disk) = &mut self.donors[d].disk {
                    disk.resident.all_went(&[block]);
                }
                let was = self.donors[d].disk.as_ref().and_then(|disk| known(&disk.journal, block));
                self.donors[d].memory.note(block, was);
            }
        }
        if landed == Landed::Done {
            if let Some(disk) = &mut self.donors[d].disk {
                disk.waits_no_more(wait);
            }
            self.count("writes answered from memory");
            self.donors[d].landed(grant.volume, ticket);
            match is_write {
                true => {
                    let sums = self.donors[d].memory.sums(at, count);
                    end.outbox.done_with(header.cookie, sums.into_iter());
                }
                false => end.outbox.done(header.cookie),
            }
        }
        self.disk_goes_on(d);
    }

    /// The disk is to have all that was answered.
    pub(crate) fn flush_to_disk(
        &mut self,
        d: usize,
        id: u64,
        end: &mut DonorEnd,
        grant: &Grant,
        header: &RequestHeader,
    ) {
        let cookie = header.cookie;
        if !self.writes_back(d, grant) || self.bug == Some(Bug::FlushAhead) {
            return end.outbox.done(cookie);
        }
        let extents: Vec<u32> = self.donors[d].access.written_by(grant).collect();
        let is_stale = |extent: u32| {
            let first = u64::from(extent) * EXTENT_BLOCKS;
            self.donors[d].any_stale(first..first + EXTENT_BLOCKS)
        };
        if extents.into_iter().any(is_stale) {
            return end.outbox.error(cookie, Errno::NotSup, "");
        }
        let Some(disk) = &mut self.donors[d].disk else { return };
        let wait = disk.wait(id, *header, None);
        if disk.write_back.flush(wait).is_some() {
            disk.waits_no_more(wait);
            return end.outbox.done(cookie);
        }
        self.disk_goes_on(d);
    }

    /// What is stale there counts as it is on the disk.
    pub(crate) fn adopt(&mut self, d: usize, address: u64, len: u64) {
        let now = self.now;
        let DonorHost { disk, memory, dirty, unnumbered, .. } = &mut self.donors[d];
        let Some(disk) = disk else { return };
        let blocks = address / BLOCK_BYTES..(address + len).div_ceil(BLOCK_BYTES);
        let adopted = disk.write_back.adopt(now, blocks);
        adopted.iter().for_each(|block| memory.note(*block, known(&disk.journal, *block)));
        if !adopted.is_empty() {
            dirty.mark(address, len);
            unnumbered.mark(address, len);
            self.count("stale regions adopted");
            say!(self, "donor {d} adopts {address}+{len}");
        }
    }

    /// What is next of what is in memory alone, as a step of the disk. None: nothing; `Err`: the disk has
    /// died.
    pub(crate) fn write_back_step(&mut self, d: usize) -> Result<Option<Step>, ()> {
        let now = self.now;
        let Some(disk) = &mut self.donors[d].disk else { return Ok(None) };
        match disk.write_back.next(now) {
            Next::Sleep(until) => {
                if let Some(until) =
                    until.filter(|until| disk.look_at.is_none_or(|at| at <= now || *until < at))
                {
                    disk.look_at = Some(until);
                    self.at(until, Ev::Donor(d, DonorEv::Disk(DiskEv::Look)));
                }
                Ok(None)
            }
            Next::Intend(regions) => {
                let step = Step::Intend(regions.clone());
                self.with_marks(d, |journal, marked| journal.intend(&regions, marked)).map(|()| Some(step))
            }
            Next::Write(blocks) => {
                let writes = self.donors[d].take_out(&blocks);
                let done = self.with_marks(d, |journal, marked| journal.commit(&writes, marked))?;
                let each = writes
                    .iter()
                    .zip(done)
                    .flat_map(|(write, done)| write.blocks().map(move |block| (block, done.is_ok())));
                Ok(Some(Step::Back(each.collect())))
            }
            Next::Clean(regions) => {
                self.with_marks(d, |journal, marked| journal.mark(marked))?;
                self.with_marks(d, |journal, marked| journal.clean(&regions, marked))?;
                self.count("regions that were clean again");
                Ok(Some(Step::Clean))
            }
        }
    }

    /// Blocks were written back, or not.
    pub(crate) fn are_written_back(&mut self, d: usize, blocks: Vec<(u64, bool)>) {
        let now = self.now;
        let (good, bad): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(_, is_good)| *is_good);
        let of = |all: Vec<(u64, bool)>| all.into_iter().map(|(block, _)| block).collect::<Vec<u64>>();
        let (good, bad) = (of(good), of(bad));
        let Some(disk) = &mut self.donors[d].disk else { return };
        let (mut told, mut let_go) = disk.write_back.written(now, &good, true);
        if !bad.is_empty() {
            disk.journal.disk_mut().in_flight.extend(&bad);
            let (also_told, also) = disk.write_back.written(now, &bad, false);
            told.extend(also_told);
            let_go.extend(also);
        }
        if self.bug != Some(Bug::DirtyDropped) {
            let_go.into_iter().for_each(|block| self.donors[d].let_go(block..block + 1));
        }
        self.donors[d].make_room();
        self.tell_written(d, told);
    }

    pub(crate) fn tell_written(&mut self, d: usize, told: Vec<(u64, bool)>) {
        for (wait, is_good) in told {
            self.disk_tells(d, wait, if is_good { Ok(()) } else { Err(Errno::Io) });
        }
    }

    /// Nothing of an extent is dirty any more, nor stale.
    pub(crate) fn nothing_is_dirty_in(&mut self, d: usize, extents: &[u32]) {
        for extent in extents {
            let first = u64::from(*extent) * EXTENT_BLOCKS;
            let now = self.now;
            let Some(disk) = &mut self.donors[d].disk else { return };
            let (told, let_go) = disk.write_back.forget(now, first..first + EXTENT_BLOCKS);
            if self.bug != Some(Bug::DirtyDropped) {
                let_go.into_iter().for_each(|block| self.donors[d].let_go(block..block + 1));
            }
            self.tell_written(d, told);
        }
    }

    /// Which donors have something stale now.
    pub(crate) fn look_at_stale(&mut self) {
        let stale = |donor: &&DonorHost| donor.alive && donor.is_stale();
        let stale: BTreeSet<DonorId> = self.donors.iter().filter(stale).map(|donor| donor.id).collect();
        let now = self.now;
        let fresh: Vec<DonorId> = self.verdict.stale.difference(&stale).copied().collect();
        fresh.into_iter().for_each(|donor| self.verdict.donor_in_trouble(donor, now));
        self.verdict.stale = stale;
    }

    /// What no flush has covered may be lost with the whole pool.
    pub(crate) fn unflushed_may_be_lost(&mut self) {
        let of = |map: &cheetah_core::map::VolumeMap| map.write_back.then_some(map.volume);
        let volumes: Vec<VolumeId> = self.stored_maps().filter_map(of).collect();
        volumes.into_iter().for_each(|volume| self.oracle.roll_back(volume));
    }

    fn with_marks<T, E>(
        &mut self,
        d: usize,
        job: impl FnOnce(
            &mut cheetah_core::disk::Journal<crate::disk::SimDisk>,
            &dyn Fn(&Held) -> Vec<u64>,
        ) -> Result<T, E>,
    ) -> Result<T, ()> {
        let DonorHost { disk, unnumbered, ledgers, .. } = &mut self.donors[d];
        let Some(disk) = disk else { return Err(()) };
        let marked = |held: &Held| crate::disk_words::marked_of(unnumbered, ledgers, held);
        job(&mut disk.journal, &marked).map_err(|_| ())
    }
}
