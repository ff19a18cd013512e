//! What goes wrong with an opened volume: its filler dies, its slots move or begin anew, its source fails.
//!
//! Never: what must hold.

use super::{DONORS, Ev, World};
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, Placement, Slot};
use std::collections::BTreeSet;

impl World {
    pub(super) fn disturb(&mut self) {
        if self.healing {
            return;
        }
        match self.rng.below(8) {
            0..=2 if self.fills => self.end_filling(),
            3 | 4 => self.move_some_slot(),
            5 => self.begin_some_slot_anew(),
            _ => {
                self.source_fails = !self.source_fails;
                let fails = self.source_fails;
                self.say(|| format!("the source fails: {fails}"));
                self.calm_since = self.now + 2 * SECOND_NS;
            }
        }
        let gap = self.rng.range(SECOND_NS / 2, 8 * SECOND_NS);
        self.after(gap, Ev::Disturb);
    }

    pub(super) fn place_for(&mut self, slot: usize) -> Option<Placement> {
        let taken: BTreeSet<DonorId> = (self.map.groups[0].slots.iter().enumerate())
            .filter(|(at, _)| *at != slot)
            .flat_map(|(_, slot)| slot.placements())
            .map(|place| place.donor)
            .collect();
        let own = self.map.groups[0].slots[slot].held.map(|held| held.donor);
        let free: Vec<u64> = (1..=DONORS)
            .filter(|donor| !taken.contains(&DonorId(*donor)) && own != Some(DonorId(*donor)))
            .collect();
        self.next += 1;
        let extent = u32::try_from(self.next % 1000 + 1).expect("small");
        let donor = DonorId(self.rng.pick(&free)?);
        self.extents.remove(&Placement { donor, extent });
        self.retired.remove(&Placement { donor, extent });
        Some(Placement { donor, extent })
    }

    pub(super) fn move_some_slot(&mut self) {
        let slot = self.rng.index(self.map.groups[0].slots.len());
        if self.map.groups[0].slots.iter().any(|slot| slot.filling.is_some()) {
            return;
        }
        let Some(place) = self.place_for(slot) else { return };
        self.say(|| format!("slot {slot} moves to {place:?}"));
        self.map.groups[0].slots[slot].filling = Some(place);
        self.tell_map();
    }

    /// Who fills says that it is copied.
    pub(super) fn moved(&mut self, place: Placement) {
        let slot = self.map.groups[0].slots.iter_mut().find(|slot| slot.filling == Some(place));
        let Some(slot) = slot else { return };
        slot.filling = None;
        self.retired.extend(slot.held.replace(place));
        self.stats.count("slots of an opened volume moved");
        self.tell_map();
    }

    /// Its donor has ended: another has its place, of which all is absent.
    pub(super) fn begin_some_slot_anew(&mut self) {
        let slot = self.rng.index(self.map.groups[0].slots.len());
        let Some(place) = self.place_for(slot) else { return };
        self.say(|| format!("slot {slot} begins anew at {place:?}"));
        self.stats.count("fault: a slot began anew");
        self.map.groups[0].slots[slot] = Slot::held(place);
        self.calm_since = self.now + 3 * SECOND_NS;
        self.tell_map();
    }
}
