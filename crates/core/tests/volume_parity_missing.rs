//! Writes to a group of which nobody holds the parity.

use crate::volume::{A, B, UNIT, World, map};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{Group, Placement, Redundancy, Slot, VolumeMap};
use cheetah_core::volume::{Effect, Fragment, Op, PartOp};

/// `parity:2+1`, the data on A and B.
fn without_parity() -> VolumeMap {
    let at = |donor| Slot::held(Placement { donor, extent: 0 });
    let missing = Slot { held: None, filling: None };
    let map = VolumeMap {
        size: 2 * EXTENT_BYTES,
        redundancy: Redundancy { data: 2, parity: 1 },
        groups: vec![Group { slots: vec![at(A), at(B), missing] }],
        ..map(true, false)
    };
    map.check().expect("a sound map");
    map
}

#[test]
fn nothing_is_made_up_about_parity_that_was_not_computed() {
    let mut world = World::up(without_parity());
    world.submit(Op::Write, 0, UNIT);
    let sent = world.sent();
    assert_eq!(sent.iter().map(|part| (part.donor, part.op)).collect::<Vec<_>>(), [(A, PartOp::Write)]);
    let of_parity = Fragment { group: 0, slot: 2, local: 0 };
    assert!(world.effects.contains(&Effect::Forget { fragment: of_parity, len: UNIT }));
    let learnt = |effect: &Effect| matches!(effect, Effect::Learn { fragment, .. } if fragment.slot == 2);
    assert!(!world.effects.iter().any(learnt), "the row was not read");
    world.answer(sent[0].part, Ok(Vec::new()));
    assert_eq!(world.completed(), [(1, Ok(()))]);
}
