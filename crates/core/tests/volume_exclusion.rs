//! What waits for the coordinator: a write that a donor missed, and a reader that rebuilds beside a writer.

use crate::volume::{World, wide};
use cheetah_core::api::Amend;
use cheetah_core::map::{BadRange, DonorId, Redundancy, VolumeMap};
use cheetah_core::volume::{Effect, Event, LinkFailure, Op, PartOp, StatusRun, Volume};

const KEPT: u32 = 4096;

/// The next epoch, in which the donor holds nothing.
fn without(mut map: VolumeMap, gone: DonorId) -> VolumeMap {
    map.epoch += 1;
    for slot in &mut map.groups[0].slots {
        slot.held = slot.held.filter(|held| held.donor != gone);
    }
    map.routes.remove(&gone);
    map
}

#[test]
fn a_write_that_a_donor_missed_is_acknowledged_once_that_is_recorded() {
    let mirror = wide(Redundancy { data: 1, parity: 1 });
    let mut world = World::new(mirror.clone(), false);
    world.open(DonorId(1));
    world.open(DonorId(2));
    let write = world.submit(Op::Write, 0, KEPT);
    let sent = world.sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    let kept = sent.iter().find(|sent| sent.donor == DonorId(1)).expect("the first copy");
    world.answer(kept.part, Ok(vec![]));
    let session = world.session(DonorId(2));
    world.fail(DonorId(2), session, LinkFailure::NotOpened("refused".into()));
    assert_eq!(world.completed(), [], "nobody knows yet that donor 2 missed it");
    let asked = world.amendments();
    assert_eq!(
        asked.iter().flat_map(|amend| &amend.exclude).map(|(id, _)| *id).collect::<Vec<_>>(),
        [DonorId(2)]
    );
    world.step(Event::Amended(None));
    assert_eq!(world.completed(), [], "the coordinator could not be asked");
    let again = (0..100).any(|_| {
        world.wake();
        !world.amendments().is_empty()
    });
    assert!(again, "it is asked again");
    world.step(Event::Amended(Some(without(mirror, DonorId(2)))));
    assert_eq!(world.completed(), [(write, Ok(()))]);
}

/// A reader that lost donor 1 of `parity:2+1`, until it waits for the coordinator's word.
fn reader_that_waits() -> (World, u64) {
    let mut world = World::new(wide(Redundancy { data: 2, parity: 1 }), true);
    world.refuse(DonorId(1));
    world.open(DonorId(2));
    world.open(DonorId(3));
    let read = world.submit(Op::Read, 0, KEPT);
    let still = || Ok(vec![StatusRun { len: KEPT, hole: true }]);
    // The lanes, then who wrote lately.
    for op in [PartOp::Read, PartOp::Survey] {
        assert_eq!(world.amendments(), []);
        let sent = world.sent();
        assert_eq!(
            sent.iter().map(|sent| (sent.donor, sent.op)).collect::<Vec<_>>(),
            [(DonorId(2), op), (DonorId(3), op)]
        );
        sent.iter().for_each(|sent| {
            world.answer(sent.part, if op == PartOp::Survey { still() } else { Ok(vec![]) })
        });
    }
    assert_eq!(world.amendments(), [Amend { epoch: 1, ..Amend::default() }]);
    assert!(world.completed().is_empty());
    (world, read)
}

#[test]
fn a_reader_rebuilds_when_the_coordinator_vouches_for_its_map() {
    let (mut world, _) = reader_that_waits();
    world.step(Event::Amended(Some(wide(Redundancy { data: 2, parity: 1 }))));
    let combines = world.effects.iter().filter(|effect| matches!(effect, Effect::Combine(_))).count();
    assert_eq!(combines, 1, "{:?}", world.effects);
}

#[test]
fn a_reader_with_an_old_map_reads_again() {
    let (mut world, _) = reader_that_waits();
    world.step(Event::Amended(None));
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Combine(_))));
    assert!(world.completed().is_empty());
    let again = (0..100).any(|_| {
        world.wake();
        world.sent().iter().any(|sent| sent.op == PartOp::Read)
    });
    assert!(again, "it begins anew");
}

#[test]
fn what_the_coordinator_merged_is_not_reported_again() {
    // Data slot 0 is missing, and a former writer left rows half written: what is lost of it is told in
    // pieces.
    let torn = without(wide(Redundancy { data: 2, parity: 1 }), DonorId(1));
    let mut world = World::start(Volume::new(torn.clone(), false, false));
    world.open(DonorId(2));
    world.open(DonorId(3));
    let marked = StatusRun { len: 1 << 20, hole: false };
    for sent in world.sent() {
        assert_eq!(sent.op, PartOp::Survey);
        let rest = StatusRun { len: sent.len - marked.len, hole: true };
        world.answer(sent.part, Ok(vec![marked, rest]));
    }
    let told: Vec<BadRange> = world.amendments().into_iter().flat_map(|amend| amend.bad).collect();
    assert!(told.len() > 1, "{told:?}");
    let whole = BadRange { group: 0, slot: 0, from: 0, to: marked.len };
    assert!(told.iter().all(|bad| whole.covers(bad)));
    world.step(Event::Amended(Some(VolumeMap { epoch: torn.epoch + 1, bad: vec![whole], ..torn })));
    for _ in 0..20 {
        world.wake();
    }
    assert_eq!(world.amendments(), []);
}
