//! Reads of a volume whose donors are gone, within what redundancy covers and beyond it.

mod volume;

use cheetah_core::map::{DonorId, Redundancy};
use cheetah_core::volume::{Op, PartOp, VolumeError};
use volume::{UNIT, World, wide};

fn world_without(lost: &[u64]) -> World {
    let mut world = World::new(wide(Redundancy { data: 3, parity: 1 }), false);
    for donor in 1..=4 {
        if lost.contains(&donor) { world.refuse(DonorId(donor)) } else { world.open(DonorId(donor)) }
    }
    world.effects.clear();
    world
}

#[test]
fn one_lost_donor_is_read_around() {
    let mut world = world_without(&[1]);
    world.submit(Op::Read, 0, UNIT);
    let asked: Vec<(DonorId, PartOp)> = world.sent().iter().map(|sent| (sent.donor, sent.op)).collect();
    assert_eq!(asked, [2, 3, 4].map(|donor| (DonorId(donor), PartOp::Read)));
}

#[test]
fn beyond_redundancy_what_is_held_is_read_and_the_rest_fails_at_once() {
    let mut world = world_without(&[1, 3]);
    let lost = world.submit(Op::Read, 0, UNIT);
    assert_eq!(world.completed(), [(lost, Err(VolumeError::DonorLost))]);
    let there = world.submit(Op::Read, UNIT.into(), UNIT);
    let sent = world.sent();
    assert_eq!(sent.iter().map(|sent| sent.donor).collect::<Vec<_>>(), [DonorId(2)]);
    world.answer(sent[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [(there, Ok(()))]);
}
