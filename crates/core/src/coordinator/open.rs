//! Volumes that were opened from a source: who fills one, where that is asked for what is not here yet, and
//! when nothing is missing any more.
//!
//! Owns the backing of a map. Never: bytes, or the source. Invariants: only who fills an opened volume writes
//! it, until it is complete; what its source could not give is in the map as soon as that is told; and what a
//! donor took with it that has ended is absent again while the source is still read. Called by `content`,
//! `leases`, `volumes`. Tests: `tests/coordinator_open.rs`.

use super::{Coordinator, Key, refuse};
use crate::api::{Attach, Create, Refusal, RefusalCode};
use crate::content::{Content, ContentState, Fill, FillFrom, Load, Tell};
use crate::filling::PIECE_BYTES;
use crate::limits::{EXTENT_BYTES, REASON_BYTES_MAX, UNIT_MAX_BYTES};
use crate::map::{Backing, Filler, Redundancy, VolumeId, VolumeMap, layers_max};
use crate::text::harmless;
use crate::units::show_bytes;

impl Coordinator {
    /// What nobody but who fills an opened volume may do to it.
    pub(super) fn check_open(&self, id: VolumeId, name: &str, attach: &Attach) -> Result<(), Refusal> {
        let Some(volume) = self.volumes.get(&id) else { return Ok(()) };
        let opens = attach.fill.as_ref().is_some_and(opens);
        let overwrites = attach.fill.as_ref().is_some_and(|fill| fill.from == FillFrom::Overwrite);
        let conflict = |message: String| Err(refuse(RefusalCode::Conflict, message));
        let source = volume.content.load.as_ref().map_or("its source", |load| load.source.name.as_str());
        if opens && !volume.map.is_filled_later() {
            return conflict(match volume.map.backing {
                Some(_) => format!("volume '{name}' holds all of {source}: there is nothing left to fill"),
                None => format!(
                    "volume '{name}' was not opened from a source: `cheetah load` fills such a volume"
                ),
            });
        }
        if attach.read_only || attach.yields || opens || overwrites || !volume.map.is_filled_later() {
            return Ok(());
        }
        conflict(format!(
            "volume '{name}' is filled from {source}, and only who fills it writes it until all is here: attach it \
             with --read-only"
        ))
    }

    /// A volume that is made to be opened has its source behind it.
    pub(super) fn back(&mut self, id: VolumeId) {
        if let Some(volume) = self.volumes.get_mut(&id) {
            let memory = volume.map.memory_bytes();
            volume.content.state = ContentState::Opened;
            if let Some(load) = volume.content.load.as_mut().filter(|_| volume.map.layers() > 1) {
                load.memory = Some(memory);
            }
            self.dirty.extend([Key::Volume(id), Key::Content(id)]);
        }
    }

    /// Where who fills it is asked from now on; none: nobody is.
    pub(super) fn set_filler(&mut self, id: VolumeId, filler: Option<Filler>) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let Some(backing) = volume.map.backing.as_mut().filter(|backing| backing.filler != filler) else {
            return;
        };
        let text = |text: &str| harmless(text, REASON_BYTES_MAX);
        backing.filler =
            filler.map(|filler| Filler { address: text(&filler.address), export: text(&filler.export) });
        volume.map.epoch += 1;
        self.map_changed(id);
    }

    /// The source has given all that it could: nobody needs it any more.
    pub(super) fn complete(&mut self, id: VolumeId) {
        let Some(volume) = self.volumes.get_mut(&id).filter(|volume| volume.map.is_filled_later()) else {
            return;
        };
        volume.map.backing = Some(Backing { complete: true, ..Backing::default() });
        volume.map.epoch += 1;
        self.map_changed(id);
    }
}

/// Whether it fills a volume that tools read meanwhile.
pub(super) fn opens(fill: &Fill) -> bool {
    fill.from == FillFrom::Open
}

/// The load of an opened volume, from when somebody fills it on.
pub(super) fn begun(content: &mut Content, by: &str) {
    if let Some(load) = &mut content.load {
        **load = Load {
            by: by.to_owned(),
            ended: None,
            filling: Some(crate::content::Filling::default()),
            ..(**load).clone()
        };
    }
}

/// How a volume of so many chunks is dealt out, which keeps at most so much on donors: groups, and layers of
/// each.
pub(super) fn dealt_out(
    chunks: u64,
    redundancy: Redundancy,
    memory: Option<u64>,
) -> Result<(u64, u32), Refusal> {
    let Some(memory) = memory else { return Ok((chunks, 1)) };
    let group_bytes = u64::from(redundancy.width()) * EXTENT_BYTES;
    let groups = (memory / group_bytes).min(chunks);
    let most = layers_max(redundancy);
    let layers = chunks.checked_div(groups).map(|_| chunks.div_ceil(groups)).unwrap_or(u64::MAX);
    match u32::try_from(layers) {
        Ok(layers) if layers <= most => Ok((groups, layers)),
        _ => {
            let least = show_bytes(chunks.div_ceil(most.into()) * group_bytes);
            let asked = show_bytes(memory);
            let message = format!(
                "--memory {asked} is too little: a volume of {} keeps at least a {most}th of itself on donors, as \
                 {redundancy}: say --memory {least} or more",
                show_bytes(chunks * u64::from(redundancy.data) * EXTENT_BYTES)
            );
            Err(refuse(RefusalCode::Invalid, message))
        }
    }
}

/// What does not fit as a whole may be kept in part.
pub(super) fn or_a_part(mut shortage: Refusal) -> Refusal {
    if shortage.code == RefusalCode::PoolFull {
        shortage.message.push_str(
            "; or keep only a part of it on donors, and read the rest from the source again: `cheetah open` with --memory SIZE",
        );
    }
    shortage
}

/// One that keeps a part of itself is never whole, so nothing ends its need of the source.
pub(super) fn check_loaded(map: &VolumeMap, tell: &Tell) -> Result<(), Refusal> {
    if map.layers() == 1 || tell.loaded.is_none() {
        return Ok(());
    }
    let message =
        format!("volume '{}' is larger than its memory, and never holds all of its source", map.name);
    Err(refuse(RefusalCode::Invalid, message))
}

/// What a volume that is opened can be.
pub(super) fn check_create(create: &Create) -> Result<(), Refusal> {
    if !create.load.as_ref().is_some_and(|load| load.backed) {
        return Ok(());
    }
    let invalid = |message: String| Err(refuse(RefusalCode::Invalid, message));
    if let Some(redundancy @ Redundancy { parity: 1.., .. }) = create.redundancy {
        return invalid(format!(
            "a volume that is opened from a source cannot be {redundancy}: what a donor takes with it is read from the \
             source again, and copies or parity of blocks that are not here yet would say nothing; use linear or \
             stripe:K, or `cheetah load`"
        ));
    }
    let unit = create.unit.map_or(PIECE_BYTES, u64::from);
    if create.load.as_ref().is_some_and(|load| load.memory.is_some()) && unit < PIECE_BYTES {
        let (least, most) = (show_bytes(PIECE_BYTES), show_bytes(UNIT_MAX_BYTES.into()));
        return invalid(format!("a volume that is larger than its memory has a unit of {least} to {most}"));
    }
    if create.follow {
        return invalid(
            "a volume that is opened from a source is as large as that, and does not follow".to_owned(),
        );
    }
    Ok(())
}
