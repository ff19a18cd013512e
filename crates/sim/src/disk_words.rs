//! What a donor of a disk says of blocks that it does not send: whether they are right, and which others may
//! not have.
//!
//! Never: what is on the disk (`disk`), or when it is written (`on_disk`).

use crate::auths::fits;
use crate::bytes::{BLOCK, Kept};
use crate::donor::DonorHost;
use crate::on_disk::{DiskEv, Waiting, blocks_of};
use crate::world::{DonorEv, Ev, World};
use cheetah_core::disk::{Auth, Held, Noted};
use cheetah_core::donor::{DirtyMap, Ledger};
use cheetah_core::limits::{DIRTY_REGION_BYTES, EXTENT_BYTES};
use cheetah_core::map::VolumeId;
use cheetah_nbd::RequestHeader;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Regions that may be written on some donors of their volume and not on others.
pub(crate) fn marked_of(
    unnumbered: &DirtyMap,
    ledgers: &BTreeMap<VolumeId, Ledger<Kept>>,
    held: &Held,
) -> Vec<u64> {
    let mut marked = BTreeSet::new();
    let mut mark =
        |from: u64, to: u64| marked.extend(from / DIRTY_REGION_BYTES..to.div_ceil(DIRTY_REGION_BYTES));
    for extent in held.owners.keys() {
        let mut at = u64::from(*extent) * EXTENT_BYTES;
        unnumbered.runs(at, EXTENT_BYTES, |len, is_marked| {
            if is_marked {
                mark(at, at + len);
            }
            at += len;
        });
    }
    for ledger in ledgers.values() {
        ledger.within(0, u64::MAX).for_each(|write| mark(write.from, write.to));
    }
    marked.into_iter().collect()
}

impl World {
    /// What is asked for is looked at where it lies.
    pub(crate) fn check_on_disk(&mut self, d: usize, conn: u64, header: &RequestHeader) {
        let delay = self.disk_delay();
        let Some(disk) = &mut self.donors[d].disk else { return };
        let at = usize::try_from(header.offset).expect("inside of the memory");
        let blocks = blocks_of(at, header.length as usize);
        let now = |block| (disk.journal.noted(block), disk.journal.auth(block));
        let before = blocks.clone().map(now).collect();
        let wait = disk.wait(conn, *header, None);
        self.after(delay, Ev::Donor(d, DonorEv::Disk(DiskEv::Checked { wait, blocks, before })));
    }

    pub(crate) fn has_checked(&mut self, d: usize, wait: u64, blocks: &Range<u64>, before: &[(Noted, Auth)]) {
        let DonorHost { disk, memory, .. } = &mut self.donors[d];
        let Some(disk) = disk else { return };
        let right = blocks.clone().zip(before).map(|(block, before)| {
            let after = (disk.journal.noted(block), disk.journal.auth(block));
            // The journal is nobody else's while it writes.
            let found = disk.journal.disk().block(block).unwrap_or_default();
            let at = usize::try_from(block).expect("inside of the memory") * BLOCK;
            let in_memory = !disk.resident.has(block) || memory.verify(at, BLOCK)[0];
            let is_fresh = !disk.write_back.is_stale(block);
            is_fresh && in_memory && (*before != after || fits(before.0, &before.1, Some(&found)))
        });
        let right: Vec<bool> = right.collect();
        let Some(Waiting { conn, header, .. }) = disk.waiting.remove(&wait) else { return };
        self.answer_late(d, conn, |world, _, end| world.tell_rightness(d, end, &header, right));
    }
}
