//! Volumes that were opened from a source: who fills one, where that is asked for what is not here yet, and
//! when nothing is missing any more.
//!
//! Owns the backing of a map. Never: bytes, or the source. Invariants: only who fills an opened volume writes
//! it, until it is complete; what its source could not give is in the map as soon as that is told; and what a
//! donor took with it that has ended is absent again while the source is still read. Called by `content`,
//! `leases`, `volumes`. Tests: `tests/coordinator_open.rs`.

use super::{Coordinator, Key, refuse};
use crate::api::{Attach, Create, Refusal, RefusalCode};
use crate::content::{Content, ContentState, Fill, FillFrom, Load};
use crate::limits::REASON_BYTES_MAX;
use crate::map::{Backing, Filler, Redundancy, VolumeId};
use crate::text::harmless;

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
            volume.map.backing = Some(Backing::default());
            volume.content.state = ContentState::Opened;
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
        volume.map.backing = Some(Backing { filler: None, complete: true });
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
    if create.follow {
        return invalid(
            "a volume that is opened from a source is as large as that, and does not follow".to_owned(),
        );
    }
    Ok(())
}
