//! Requests, and the end of a volume, while slots move from donor to donor.

use crate::volume::{A, B, World, map, wide};
use cheetah_core::limits::{EXCLUDE_NS, EXTENT_BYTES, REQUEST_DEADLINE_NS};
use cheetah_core::map::{BadRange, DonorId, Placement, Redundancy, Slot, VolumeMap};
use cheetah_core::volume::{Effect, Event, LinkFailure, Op, PartError, PartOp, VolumeError};
use std::collections::BTreeSet;

/// The first group is on its way from A to B, which holds the second.
fn moving() -> VolumeMap {
    let mut map = map(false, false);
    let to = Placement { donor: B, extent: 1 };
    map.groups[0].slots[0] = Slot { filling: Some(to), ..map.groups[0].slots[0] };
    map
}

fn moved() -> VolumeMap {
    let mut map = moving();
    map.groups[0].slots[0] = Slot::held(map.groups[0].slots[0].filling.expect("it is moving"));
    map.routes.remove(&A);
    map.epoch += 1;
    map
}

/// This slot of the only group has no holder, and is being given back to the donor that had it.
fn rebuilding(redundancy: Redundancy, slot: usize) -> VolumeMap {
    let mut map = wide(redundancy);
    let slot = &mut map.groups[0].slots[slot];
    slot.filling = slot.held.take();
    map
}

/// Whoever was being given this slot holds it, by the next map.
fn fill(map: &mut VolumeMap, slot: usize) {
    map.epoch += 1;
    let slot = &mut map.groups[0].slots[slot];
    slot.held = slot.filling.take();
}

/// Acknowledged by whoever is asked to take it: behind the cursor of whatever is being filled.
fn write_the_end(world: &mut World) {
    let write = world.submit(Op::Write, EXTENT_BYTES - 4096, 4096);
    for sent in world.sent().into_iter().filter(|sent| sent.op == PartOp::Write) {
        world.answer(sent.part, Ok(vec![]));
    }
    assert_eq!(world.completed(), [(write, Ok(()))]);
}

#[test]
fn a_write_whose_holder_went_when_all_had_moved_is_no_error() {
    let mut world = World::up(moving());
    world.sent();
    let tag = world.submit(Op::Write, EXTENT_BYTES - 4096, 8192);
    let writes: Vec<_> = world.sent().into_iter().filter(|sent| sent.op == PartOp::Write).collect();
    let (first, second): (Vec<_>, Vec<_>) =
        writes.into_iter().partition(|sent| sent.donor == A || sent.address >= EXTENT_BYTES);
    for sent in first {
        world.answer(sent.part, Ok(vec![]));
    }
    assert_eq!(world.completed(), []);
    world.step(Event::Map(moved()));
    world.answer(second[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_read_of_a_slot_that_moved_is_asked_of_its_new_holder() {
    let mut world = World::up(moving());
    world.sent();
    let tag = world.submit(Op::Read, EXTENT_BYTES - 4096, 4096);
    assert!(world.sent().iter().all(|sent| sent.donor == A));
    world.step(Event::Map(moved()));
    let again = world.sent();
    let read = again.iter().find(|sent| sent.op == PartOp::Read).expect("asked again");
    assert_eq!((read.donor, read.address), (B, 2 * EXTENT_BYTES - 4096));
    world.answer(read.part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

/// Its new holder does not let this reader in yet, and another has a copy.
#[test]
fn a_read_of_a_slot_that_moved_out_of_reach_is_asked_of_another() {
    const NEW: DonorId = DonorId(3);
    let mut map = wide(Redundancy { data: 1, parity: 1 });
    map.groups[0].slots[0].filling = Some(Placement { donor: NEW, extent: 0 });
    map.routes.insert(NEW, map.routes[&A].clone());
    let mut world = World::new(map.clone(), true);
    world.open(A);
    world.open(B);
    let session = world.session(NEW);
    world.fail(NEW, session, LinkFailure::NotAdmitted("no such lease".into()));
    world.sent();
    let tag = world.submit(Op::Read, 0, 4096);
    assert_eq!(world.sent().iter().map(|sent| sent.donor).collect::<Vec<_>>(), [A]);
    fill(&mut map, 0);
    map.routes.remove(&A);
    world.step(Event::Map(map));
    let again = world.sent();
    let read = again.iter().find(|sent| sent.op == PartOp::Read).expect("asked again");
    assert_eq!(read.donor, B);
    world.answer(read.part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

/// A reader that the old holder does not admit any more.
fn shut_out() -> (World, u64) {
    let mut world = World::new(moving(), true);
    world.open(A);
    world.open(B);
    let session = world.session(A);
    world.fail(A, session, LinkFailure::Broken("it closed the connection".into()));
    let session = world.session(A);
    world.fail(A, session, LinkFailure::NotAdmitted("no such lease".into()));
    let tag = world.submit(Op::Read, 0, 4096);
    assert_eq!(world.completed(), [], "a newer map may be on its way");
    (world, tag)
}

#[test]
fn a_reader_that_the_old_holder_shuts_out_waits_for_the_map() {
    let (mut world, tag) = shut_out();
    world.sent();
    world.step(Event::Map(moved()));
    let again = world.sent();
    assert_eq!(again.iter().map(|sent| sent.donor).collect::<Vec<_>>(), [B]);
    world.answer(again[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_reader_that_is_shut_out_for_good_hears_of_it() {
    let (mut world, tag) = shut_out();
    let told = (0..200).find_map(|_| {
        world.wake();
        world.completed().pop()
    });
    assert_eq!(told, Some((tag, Err(VolumeError::DonorLost))));
}

#[test]
fn a_reader_that_the_old_holder_refuses_a_read_asks_the_new_one() {
    let mut world = World::new(moving(), true);
    world.open(A);
    world.open(B);
    let tag = world.submit(Op::Read, 0, 4096);
    let sent = world.sent();
    assert_eq!(sent.iter().map(|sent| sent.donor).collect::<Vec<_>>(), [A]);
    world.answer(sent[0].part, Err(PartError::Denied));
    assert_eq!(world.completed(), [], "a newer map may be on its way");
    world.step(Event::Map(moved()));
    let again = (0..100).find_map(|_| {
        world.wake();
        world.sent().pop()
    });
    let again = again.expect("asked again");
    assert_eq!(again.donor, B);
    world.answer(again.part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_write_is_no_error_when_who_is_being_given_the_slot_dies() {
    let mut world = World::new(moving(), false);
    world.open(A);
    world.open(B);
    // A chunk is read, and written to B: what is written there goes to both from now on.
    for _ in 0..2 {
        let chunk = (0..100).find_map(|_| {
            world.wake();
            Some(world.sent()).filter(|sent| !sent.is_empty())
        });
        let chunk = chunk.expect("the next step of the move");
        chunk.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
    }
    world.sent();
    let tag = world.submit(Op::Write, 0, 4096);
    let writes: Vec<_> = world.sent().into_iter().filter(|sent| sent.op == PartOp::Write).collect();
    let (held, given): (Vec<_>, Vec<_>) = writes.into_iter().partition(|sent| sent.donor == A);
    assert_eq!((held.len(), given.len()), (1, 1));
    world.answer(given[0].part, Ok(vec![]));
    world.lose(B);
    world.answer(held[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

/// A has acknowledged a write, and B is being given what A holds.
fn moving_and_written() -> World {
    let mut world = World::new(moving(), false);
    world.open(A);
    world.open(B);
    world.sent();
    world.submit(Op::Write, EXTENT_BYTES - 4096, 4096);
    for sent in world.sent().into_iter().filter(|sent| sent.op == PartOp::Write && sent.donor == A) {
        world.answer(sent.part, Ok(vec![]));
    }
    world.completed();
    world
}

#[test]
fn a_flush_answers_for_what_moved() {
    let mut world = moving_and_written();
    world.step(Event::Map(moved()));
    world.lose(B);
    let flush = world.submit(Op::Flush, 0, 0);
    assert!(matches!(world.completed()[..], [(tag, Err(_))] if tag == flush), "what it took is lost");
}

/// An fsync must not fail because a donor is done with the volume while its link is opened anew.
#[test]
fn a_flush_that_waits_for_who_holds_nothing_any_more_asks_who_holds_it_now() {
    for lost in [false, true] {
        let mut world = moving_and_written();
        let session = world.session(A);
        world.fail(A, session, LinkFailure::Broken("it closed the connection".into()));
        let flush = world.submit(Op::Flush, 0, 0);
        assert_eq!(world.completed(), [], "A may not have it any more");
        if lost {
            world.lose(B);
        }
        world.step(Event::Map(moved()));
        let flushed = if lost { Err(VolumeError::DonorLost) } else { Ok(()) };
        assert_eq!(world.completed(), [(flush, flushed)], "B lost: {lost}");
    }
}

#[test]
fn who_is_rebuilt_answers_for_what_was_written_to_the_others() {
    let mut map = rebuilding(Redundancy { data: 1, parity: 1 }, 0);
    let mut world = World::new(map.clone(), false);
    world.open(A);
    world.open(B);
    write_the_end(&mut world);
    fill(&mut map, 0);
    world.step(Event::Map(map.clone()));
    // B, to which it was written, leaves, and then A, which was rebuilt from it, is lost.
    map.epoch += 1;
    map.groups[0].slots[1] = Slot { held: None, filling: None };
    map.routes.remove(&B);
    world.step(Event::Map(map));
    world.lose(A);
    let flush = world.submit(Op::Flush, 0, 0);
    assert_eq!(world.completed(), [(flush, Err(VolumeError::DonorLost))]);
}

fn has_told(world: &World) -> bool {
    world.effects.iter().any(|effect| matches!(effect, Effect::Amend(amend) if !amend.filled.is_empty()))
}

/// All of the slot was copied, the coordinator was told, and has not answered when the new copy is lost.
fn told_and_lost(map: VolumeMap, to: DonorId) -> World {
    let donors: Vec<DonorId> = map.routes.keys().copied().collect();
    let mut world = World::new(map, false);
    donors.into_iter().for_each(|donor| world.open(donor));
    for _ in 0..10_000 {
        if has_told(&world) {
            world.lose(to);
            return world;
        }
        world.wake();
        world.serve();
    }
    panic!("it was never filled");
}

#[test]
fn who_is_lost_before_the_coordinator_was_told_is_not_called_filled() {
    let mut map = rebuilding(Redundancy { data: 1, parity: 2 }, 1);
    let mut world = World::new(map.clone(), false);
    map.routes.keys().for_each(|donor| world.open(*donor));
    let third = DonorId(3);
    world.lose(third);
    // The coordinator is told of the third, and has not answered when all is copied to B.
    while !world.effects.iter().any(|effect| matches!(effect, Effect::Amend(_))) {
        world.wake();
    }
    world.serve_for(4 * EXCLUDE_NS);
    assert!(!has_told(&world), "one amendment at a time");
    // It cannot be reached, and may come back with all that it has.
    for failure in [LinkFailure::Broken("reset".into()), LinkFailure::NotOpened("no route".into())] {
        world.fail(B, world.session(B), failure);
    }
    map.epoch += 1;
    map.groups[0].slots[2] = Slot { held: None, filling: None };
    map.routes.remove(&third);
    world.step(Event::Amended(Some(map)));
    let end = world.now + EXCLUDE_NS / 2;
    while world.now < end {
        world.wake();
    }
    assert!(!has_told(&world), "nobody knows whether it still has what it was given");
    world.comes_back(B);
    world.serve();
    assert!(has_told(&world));
}

#[test]
fn a_write_that_a_slot_misses_which_may_be_held_by_now_is_recorded_first() {
    for map in [rebuilding(Redundancy { data: 1, parity: 1 }, 1), moving()] {
        let mut world = told_and_lost(map.clone(), B);
        let write = world.submit(Op::Write, 4096, 4096);
        for sent in world.sent().into_iter().filter(|sent| sent.op == PartOp::Write) {
            assert_eq!(sent.donor, A);
            world.answer(sent.part, Ok(vec![]));
        }
        assert_eq!(world.completed(), [], "B may hold the slot by now, and be believed");
        let mut without = map;
        without.epoch += 1;
        without.groups[0].slots.iter_mut().for_each(|slot| slot.filling = None);
        world.step(Event::Amended(Some(without)));
        assert_eq!(world.completed(), [(write, Ok(()))]);
    }
}

#[test]
fn rows_that_such_a_slot_missed_are_read_without_it_and_nothing_is_called_lost() {
    let mut map = rebuilding(Redundancy { data: 2, parity: 1 }, 0);
    let mut world = told_and_lost(map.clone(), A);
    let write = world.submit(Op::Write, 0, 4096);
    world.serve_for(2 * REQUEST_DEADLINE_NS);
    assert_eq!(world.completed(), [(write, Err(VolumeError::TimedOut))], "the coordinator does not answer");
    let read = world.submit(Op::Read, 0, 4096);
    world.serve();
    assert_eq!(world.completed(), [(read, Ok(()))], "the other two have all of it");
    // What it was told had reached the coordinator, and A is believed: it must not be.
    world.effects.clear();
    fill(&mut map, 0);
    world.step(Event::Amended(Some(map)));
    world.serve_for(2 * EXCLUDE_NS);
    world.open(A);
    let read = world.submit(Op::Read, 0, 4096);
    let asked = world.sent();
    assert!(asked.iter().all(|sent| sent.donor != A), "what it has is of before: {asked:?}");
    asked.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
    world.serve();
    assert_eq!(world.completed(), [(read, Ok(()))]);
    let amends = world.effects.iter().filter_map(|effect| match effect {
        Effect::Amend(amend) => Some(amend),
        _ => None,
    });
    let amends: Vec<_> = amends.collect();
    assert!(amends.iter().all(|amend| amend.bad.is_empty()), "{amends:?}");
    assert!(amends.iter().any(|amend| amend.exclude.iter().any(|(donor, _)| *donor == A)), "{amends:?}");
}

#[test]
fn a_flush_does_not_wait_for_who_is_being_given_the_slot() {
    let mut world = World::new(moving(), false);
    world.open(A);
    world.open(B);
    world.sent();
    write_the_end(&mut world);
    let session = world.session(B);
    world.fail(B, session, LinkFailure::Broken("reset".into()));
    let flush = world.submit(Op::Flush, 0, 0);
    assert_eq!(world.completed(), [(flush, Ok(()))], "A holds what was written");
}

#[test]
fn who_may_not_write_has_nothing_to_finish() {
    let finished = |world: &World| world.effects.contains(&Effect::Finished);
    let mut reader = World::new(moving(), true);
    reader.step(Event::Finish);
    assert!(finished(&reader));
    let mut fenced = World::up(moving());
    fenced.step(Event::LeaseLost);
    assert!(!finished(&fenced));
    fenced.step(Event::Finish);
    assert!(finished(&fenced));
}

/// Of a stripe nothing gives back a block that is wrong where its slot comes from: that block is lost, the
/// rest moves, and nobody looks for parity that there is none of.
#[test]
fn a_wrong_block_of_a_stripe_is_lost_alone_when_its_slot_moves() {
    const NEW: DonorId = DonorId(3);
    let mut map = map(true, false);
    (map.size, map.groups[0].slots[0].filling) = (4 * 65536, Some(Placement { donor: NEW, extent: 0 }));
    map.routes.insert(NEW, map.routes[&A].clone());
    let mut world = World::new(map, false);
    [A, B, NEW].into_iter().for_each(|donor| world.open(donor));
    let (mut bad, mut copied) = (Vec::new(), BTreeSet::new());
    for _ in 0..400 {
        for sent in world.sent() {
            let is_wrong = (sent.address..sent.address + u64::from(sent.len)).contains(&8192);
            let answer = match sent.op {
                PartOp::Read if is_wrong => Err(PartError::Corrupt { blocks: 1, forged: false }),
                _ => Ok(vec![]),
            };
            assert!(sent.op != PartOp::Read || sent.donor == A, "{sent:?} is of another slot");
            if sent.op == PartOp::Sparse {
                copied.extend((sent.address..sent.address + u64::from(sent.len)).step_by(4096));
            }
            world.answer(sent.part, answer);
        }
        world.serve_checks();
        bad.extend(world.amendments().into_iter().flat_map(|amend| amend.bad));
        if world.next_wake() < u64::MAX {
            world.wake();
        }
    }
    assert_eq!(copied.len(), 32, "all of it has moved");
    let lost = BadRange { group: 0, slot: 0, from: 8192, to: 12288 };
    assert!(!bad.is_empty() && bad.iter().all(|bad| *bad == lost), "{bad:?}");
}
