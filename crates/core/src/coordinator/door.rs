//! What callers say, made fit to be kept and shown as it comes in: text harmless and cut, reports about what
//! there is.
//!
//! Owns the bounds of everything that a caller only tells. Never: what a call does, or may do. Invariant:
//! what one attachment told takes memory by the donors that its volume had, whatever it sends. Tests:
//! `tests/coordinator_door.rs`.

use crate::api::{Amend, Attach, Create, Join, Renew, VolumeReport};
use crate::content::{Fill, Loaded, OnDisk, Source, Tell, ToLoad};
use crate::limits::{
    HOLDER_BYTES_MAX, HOLDS_BYTES_MAX, HOST_BYTES_MAX, PARTITIONS_TOLD_MAX, PLACE_BYTES_MAX, REASON_BYTES_MAX,
};
use crate::map::{DonorId, VolumeMap};
use crate::text::harmless;
use std::collections::BTreeSet;

pub(super) fn join(mut join: Join) -> Join {
    join.host = harmless(&join.host, HOST_BYTES_MAX);
    join.machine = harmless(&join.machine, HOST_BYTES_MAX);
    join
}

pub(super) fn attach(mut attach: Attach) -> Attach {
    attach.holder = harmless(&attach.holder, HOLDER_BYTES_MAX);
    if let Some(Fill { source, .. }) = &mut attach.fill {
        described(source);
    }
    attach
}

pub(super) fn create(mut create: Create) -> Create {
    if let Some(ToLoad { source, by, .. }) = create.load.as_deref_mut() {
        described(source);
        *by = harmless(by, HOLDER_BYTES_MAX);
    }
    create
}

fn described(source: &mut Source) {
    source.name = harmless(&source.name, PLACE_BYTES_MAX);
    source.identity = harmless(&source.identity, REASON_BYTES_MAX);
}

/// `told`: what the same attachment said before, which counts from its beginning also for donors that have
/// left the map since. `knows`: whether a donor is of the pool, for what it was to be given may have been on
/// one that the map does not name any more.
pub(super) fn renew(
    mut renew: Renew,
    map: &VolumeMap,
    told: &VolumeReport,
    knows: impl Fn(&DonorId) -> bool,
) -> Renew {
    renew.place = harmless(&renew.place, PLACE_BYTES_MAX);
    let mut seen = BTreeSet::new();
    renew.lost.retain(|(donor, _)| knows(donor) && seen.insert(*donor));
    renew.lost.shrink_to_fit();
    for (_, why) in &mut renew.lost {
        *why = harmless(why, REASON_BYTES_MAX);
    }
    let had: BTreeSet<DonorId> = told.corrupt_blocks.iter().map(|(donor, _)| *donor).collect();
    let is_known = |donor: &DonorId| map.routes.contains_key(donor) || had.contains(donor);
    for blocks in [&mut renew.report.corrupt_blocks, &mut renew.report.wrong_in_memory] {
        let mut seen = BTreeSet::new();
        blocks.retain(|(donor, _)| is_known(donor) && seen.insert(*donor));
        blocks.shrink_to_fit();
    }
    renew
}

pub(super) fn tell(mut tell: Tell) -> Tell {
    if let Some(Loaded { changed, unsealed, .. }) = tell.loaded.as_deref_mut() {
        for text in changed.iter_mut().chain(unsealed) {
            *text = harmless(text, REASON_BYTES_MAX);
        }
    }
    if let Some(trouble) = tell.filling.as_mut().and_then(|filling| filling.trouble.as_mut()) {
        *trouble = harmless(trouble, REASON_BYTES_MAX);
    }
    tell.on_disk = tell.on_disk.map(on_disk);
    tell
}

fn on_disk(mut on_disk: Box<OnDisk>) -> Box<OnDisk> {
    let more = on_disk.partitions.len().saturating_sub(PARTITIONS_TOLD_MAX);
    on_disk.left_out = on_disk.left_out.saturating_add(more as u64);
    on_disk.partitions.truncate(PARTITIONS_TOLD_MAX);
    on_disk.partitions.shrink_to_fit();
    for partition in &mut on_disk.partitions {
        partition.holds = harmless(&partition.holds, HOLDS_BYTES_MAX);
    }
    on_disk
}

pub(super) fn amend(mut amend: Amend) -> Amend {
    for (_, why) in &mut amend.exclude {
        *why = harmless(why, REASON_BYTES_MAX);
    }
    amend
}
