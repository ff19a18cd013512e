//! Overlays: volumes that hold what is changed of another one, which is not touched.
//!
//! Owns what may lie over what. Never: the table of an overlay (`crate::overlay`), or bytes. Invariants: what
//! lies under an overlay changes no more, is no overlay itself, and stays as long as that does; an overlay
//! has one user at a time, for a reader has the table as it was when it began. Tests:
//! `tests/coordinator_seal.rs`.

use super::volumes::Volume;
use super::{Coordinator, Key, open, refuse};
use crate::api::{Attach, Refusal, RefusalCode};
use crate::content::Overlay;
use crate::custody::Event;
use crate::map::VolumeId;

impl Coordinator {
    /// What an overlay over this volume is made of. What tools write over ciphertext is no more for donors to
    /// read than what lies under it.
    pub(super) fn overlay_over(&self, base: &str, encrypted: bool) -> Result<Overlay, Refusal> {
        let of = self.volume_named(base)?;
        let conflict = |message: String| Err(refuse(RefusalCode::Conflict, message));
        let Some(volume) = self.volumes.get(&of) else { return conflict(format!("volume '{base}' is gone")) };
        if let Some(overlay) = &volume.content.overlay {
            return conflict(format!(
                "volume '{base}' is an overlay itself, of '{}': an overlay lies over what nobody changes; attach \
                 '{base}' as it is, or make another one of '{}'",
                overlay.base, overlay.base
            ));
        }
        if volume.map.encrypted != encrypted {
            return conflict(match encrypted {
                false => format!(
                    "volume '{base}' is encrypted, and so is an overlay of it, or what tools write would lie on donors as it \
                     is: `cheetah attach {base} --overlay` makes one, for who has the key"
                ),
                true => {
                    format!("volume '{base}' is not encrypted, and no key of it opens that of an overlay")
                }
            });
        }
        if !self.is_sealed(of) && volume.map.backing.is_none() {
            return conflict(format!(
                "volume '{base}' may still be changed, and what lies over it would change with it: `cheetah seal \
                 {base}` first"
            ));
        }
        Ok(Overlay { of, base: base.to_owned(), size: volume.map.size })
    }

    pub(super) fn lay_over(&mut self, id: VolumeId, overlay: Overlay) {
        let of = overlay.of;
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        volume.content.overlay = Some(Box::new(overlay));
        let event = Event::OverlayMade { overlay: volume.map.name.clone() };
        self.dirty.insert(Key::Content(id));
        self.put_down(of, event);
    }

    pub(super) fn is_overlay(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|volume| volume.content.overlay.is_some())
    }

    /// An overlay is used and repaired, and not made into anything else; what lies under one is not filled
    /// anew.
    pub(super) fn check_overlay(&self, id: VolumeId, name: &str, attach: &Attach) -> Result<(), Refusal> {
        if attach.fill.as_ref().is_some_and(|fill| !open::opens(fill)) {
            self.check_not_under(id)?;
        }
        if !self.is_overlay(id) || (attach.fill.is_none() && !attach.proofs) {
            return Ok(());
        }
        let message = format!(
            "volume '{name}' is an overlay, and is neither loaded nor sealed: `cheetah save` writes what tools see of it \
             into a file, which can be"
        );
        Err(refuse(RefusalCode::Invalid, message))
    }

    /// Whether nothing lies over it.
    pub(super) fn check_not_under(&self, id: VolumeId) -> Result<(), Refusal> {
        let lies = |volume: &&Volume| volume.content.overlay.as_ref().is_some_and(|overlay| overlay.of == id);
        let over: Vec<&str> =
            self.volumes.values().filter(lies).map(|volume| volume.map.name.as_str()).collect();
        if over.is_empty() {
            return Ok(());
        }
        let name = self.volumes.get(&id).map_or("", |volume| volume.map.name.as_str());
        let message = format!(
            "volume '{name}' lies under the overlay {}: delete that first",
            over.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(" and ")
        );
        Err(refuse(RefusalCode::Conflict, message))
    }
}
