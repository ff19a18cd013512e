//! What becomes of requests when donors come late, break, fall silent or stay away.

use crate::volume::{A, B, UNIT, World, map};
use cheetah_core::limits::{
    CONNECT_DEADLINE_NS, DONOR_RETRY_NS, DOUBT_AGAIN_NS, DOUBT_NS, EXTENT_BYTES, REQUEST_DEADLINE_NS,
    SECOND_NS, TICK_NS,
};
use cheetah_core::map::{DonorId, Group, Placement, Route, Slot};
use cheetah_core::volume::{Effect, Event, LinkFailure, Op, PartOp, VolumeError, connections};

fn broken() -> LinkFailure {
    LinkFailure::Broken("reset".into())
}

#[test]
fn requests_wait_for_a_link_that_is_being_opened() {
    let mut world = World::new(map(true, false), false);
    assert!(!world.volume.is_settled());
    world.submit(Op::Read, 0, 512);
    assert_eq!(world.sent().len(), 0);
    world.open(A);
    assert_eq!(world.sent().len(), 1);
    world.refuse(B);
    assert!(world.volume.is_settled());
    assert_eq!(world.volume.lost().collect::<Vec<_>>(), [(B, "refused")]);
}

#[test]
fn a_donor_that_is_gone_fails_its_ranges_at_once_and_no_others() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.refuse(B);
    let (on_a, on_b, on_both) = (
        world.submit(Op::Read, 0, 512),
        world.submit(Op::Read, UNIT.into(), 512),
        world.submit(Op::Read, 0, 2 * UNIT),
    );
    assert_eq!(world.completed(), [(on_b, Err(VolumeError::DonorLost))]);
    for sent in world.sent() {
        assert_eq!(sent.donor, A);
        world.answer(sent.part, Ok(vec![]));
    }
    assert_eq!(world.completed(), [(on_a, Ok(())), (on_both, Err(VolumeError::DonorLost))]);
}

#[test]
fn a_broken_link_is_reopened_under_a_higher_session_and_its_parts_are_sent_again() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.open(B);
    let first = world.session(A);
    let tag = world.submit(Op::Write, 0, 4096);
    let before = world.sent()[0];
    world.fail(A, first, broken());
    assert!(world.effects.contains(&Effect::Close { donor: A, session: first }));
    assert!(world.session(A) > first);
    assert_eq!((world.completed(), world.sent().len()), (vec![], 0));
    world.fail(A, first, broken());
    assert!(world.volume.lost().next().is_none(), "news of an older session is no news");
    world.open(A);
    let again = world.sent()[0];
    assert_eq!((again.part, again.address), (before.part, before.address));
    world.answer(again.part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_broken_link_to_a_foreign_server_stays_down() {
    let mut world = World::new(map(true, true), false);
    world.open(A);
    world.open(B);
    let tag = world.submit(Op::Write, 0, 4096);
    let session = world.session(A);
    world.fail(A, session, broken());
    assert_eq!(world.completed(), [(tag, Err(VolumeError::DonorLost))]);
    let opens = world.effects.iter().filter(|effect| matches!(effect, Effect::Open { .. })).count();
    world.now += 10 * DONOR_RETRY_NS;
    world.step(Event::Wake);
    let opens_later = world.effects.iter().filter(|effect| matches!(effect, Effect::Open { .. })).count();
    assert_eq!(opens, opens_later, "an old write of it could still land after a newer one");
}

#[test]
fn every_request_ends_by_its_deadline_and_the_silent_donor_is_set_aside() {
    let mut world = World::up(map(true, false));
    let start = world.now;
    let late = world.submit(Op::Read, 0, 2 * UNIT);
    let sent = world.sent();
    world.answer(sent[1].part, Ok(vec![]));
    while world.now < start + REQUEST_DEADLINE_NS {
        assert_eq!(world.completed(), []);
        world.wake();
    }
    assert_eq!(world.now, start + REQUEST_DEADLINE_NS);
    assert_eq!(world.completed(), [(late, Err(VolumeError::TimedOut))]);
    let close = world.effects.iter().any(|effect| matches!(effect, Effect::Close { donor: A, .. }));
    assert!(close, "its connections must not touch the payload again");
    assert_eq!(world.volume.lost().map(|(donor, _)| donor).collect::<Vec<_>>(), [A]);
    let next = world.submit(Op::Read, 0, 512);
    assert_eq!(world.completed(), [(next, Err(VolumeError::DonorLost))]);
}

#[test]
fn a_donor_that_comes_back_serves_again() {
    let mut world = World::new(map(true, false), false);
    world.open(B);
    world.refuse(A);
    let first = world.session(A);
    world.wake();
    assert!(world.session(A) > first, "it is tried again");
    world.open(A);
    assert!(world.volume.lost().next().is_none());
    let tag = world.submit(Op::Read, 0, 512);
    let sent = world.sent()[0];
    world.answer(sent.part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_probe_that_hangs_is_given_up_and_made_again() {
    let mut world = World::new(map(true, false), false);
    world.open(B);
    world.refuse(A);
    for _ in 0..10 {
        world.wake();
        let opens =
            world.effects.iter().filter(|effect| matches!(effect, Effect::Open { donor: A, .. })).count();
        if opens >= 4 {
            return;
        }
    }
    panic!("a donor that was set aside is tried for ever");
}

#[test]
fn flush_tells_of_acknowledged_writes_that_are_gone_and_only_once() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.open(B);
    world.submit(Op::Write, 0, 4096);
    let part = world.sent()[0].part;
    world.answer(part, Ok(vec![]));
    world.lose(A);
    world.completed();
    let first = world.submit(Op::Flush, 0, 0);
    let second = world.submit(Op::Flush, 0, 0);
    assert_eq!(world.completed(), [(first, Err(VolumeError::DonorLost)), (second, Ok(()))]);
}

#[test]
fn a_newer_map_adds_room_and_donors_and_an_older_one_changes_nothing() {
    let mut world = World::up(map(false, false));
    let c = DonorId(3);
    let mut grown = map(false, false);
    grown.epoch = 2;
    grown.size = 3 * EXTENT_BYTES;
    grown.groups.push(Group { slots: vec![Slot::held(Placement { donor: c, extent: 5 })] });
    let route = Route { name: "d3".into(), address: "127.0.0.1:3".into(), foreign_export: None };
    grown.routes.insert(c, route);
    world.step(Event::Map(grown));
    world.step(Event::Map(map(false, false)));
    world.open(c);
    world.submit(Op::Write, 2 * EXTENT_BYTES, 512);
    let sent = world.sent()[0];
    assert_eq!((sent.donor, sent.address), (c, 5 * EXTENT_BYTES));
}

#[test]
fn a_flush_waits_for_a_link_that_is_being_opened() {
    for lost in [false, true] {
        let mut world = World::new(map(true, false), false);
        world.open(A);
        world.open(B);
        world.submit(Op::Write, 0, 4096);
        let part = world.sent()[0].part;
        world.answer(part, Ok(vec![]));
        let session = world.session(A);
        world.fail(A, session, broken());
        world.completed();
        let flush = world.submit(Op::Flush, 0, 0);
        assert_eq!(world.completed(), []);
        if lost {
            world.refuse(A);
            assert_eq!(world.completed(), [(flush, Err(VolumeError::DonorLost))]);
        } else {
            world.open(A);
            let sent = world.sent()[0];
            assert_eq!((sent.donor, sent.op), (A, PartOp::Age));
            world.answer(sent.part, Ok(vec![]));
            assert_eq!(world.completed(), [(flush, Ok(()))]);
        }
    }
}

#[test]
fn a_write_is_not_acknowledged_when_a_donor_that_had_answered_is_lost_meanwhile() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.open(B);
    let write = world.submit(Op::Write, 0, 2 * UNIT);
    let sent = world.sent();
    world.answer(sent[0].part, Ok(vec![]));
    let flush = world.submit(Op::Flush, 0, 0);
    world.lose(A);
    world.answer(sent[1].part, Ok(vec![]));
    let late = world.submit(Op::Flush, 0, 0);
    assert_eq!(world.completed(), [(flush, Ok(())), (write, Err(VolumeError::DonorLost)), (late, Ok(()))]);
}

#[test]
fn few_connections_near_by_more_far_away() {
    let far = 2_000_000;
    assert_eq!([1, 2, 4, 32].map(|donors| connections(donors, far - 1)), [2, 1, 1, 1]);
    assert_eq!([1, 2, 4, 32].map(|donors| connections(donors, far)), [8, 4, 2, 1]);
}

/// How often a donor was asked whether it is there.
fn probes(world: &World) -> usize {
    world.effects.iter().filter(|effect| matches!(effect, Effect::Probe { donor: A, .. })).count()
}

/// As far as the machine wants to be woken.
fn pass(world: &mut World, time: u64) {
    let end = world.now + time;
    while world.next_wake() <= end {
        world.wake();
    }
    world.now = end;
}

#[test]
fn when_a_donor_is_there_and_owes_for_long_its_link_is_opened_anew() {
    for foreign in [false, true] {
        let mut world = World::new(map(true, foreign), false);
        world.open(A);
        world.open(B);
        let write = world.submit(Op::Write, 0, 4096);
        let (hung, session) = (world.sent()[0], world.session(A));
        pass(&mut world, DOUBT_NS - 2 * TICK_NS);
        assert_eq!(probes(&world), 0, "not yet");
        pass(&mut world, 3 * TICK_NS);
        assert_eq!((probes(&world), world.session(A)), (usize::from(!foreign), session));
        if foreign {
            continue; // The write that hangs may still land there after the one that was sent again.
        }
        world.step(Event::Reached { donor: A, session });
        assert!(world.session(A) > session);
        world.open(A);
        let again = world.sent()[0];
        assert_eq!((again.part, again.address), (hung.part, hung.address));
        // It may be too slow for what is asked of it, and is not torn down again and again.
        let session = world.session(A);
        pass(&mut world, DOUBT_AGAIN_NS - 2 * DOUBT_NS);
        assert_eq!((probes(&world), world.session(A)), (1, session));
        world.answer(again.part, Ok(vec![]));
        assert_eq!(world.completed(), [(write, Ok(()))]);
    }
}

#[test]
fn a_donor_that_is_reached_when_it_has_answered_keeps_its_link() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.open(B);
    world.submit(Op::Write, 0, 4096);
    let (late, session) = (world.sent()[0], world.session(A));
    pass(&mut world, DOUBT_NS + TICK_NS);
    assert_eq!(probes(&world), 1);
    world.step(Event::Reached { donor: A, session: session - 1 });
    world.answer(late.part, Ok(vec![]));
    world.submit(Op::Write, 0, 4096);
    world.step(Event::Reached { donor: A, session });
    assert_eq!(world.session(A), session);
}

#[test]
fn without_redundancy_a_donor_that_was_there_is_tried_until_the_request_ends() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.open(B);
    let write = world.submit(Op::Write, 0, 4096);
    let start = world.now;
    pass(&mut world, DOUBT_NS + TICK_NS);
    let session = world.session(A);
    world.step(Event::Reached { donor: A, session });
    // The first attempt is refused, the second hangs, and each is followed by another.
    world.refuse(A);
    assert!(world.volume.lost().next().is_none() && world.completed().is_empty());
    pass(&mut world, DONOR_RETRY_NS + CONNECT_DEADLINE_NS + TICK_NS);
    assert_eq!(world.session(A), session + 3);
    world.open(A);
    let again = world.sent().pop().expect("the write is sent again");
    world.answer(again.part, Ok(vec![]));
    assert_eq!(world.completed(), [(write, Ok(()))]);
    assert!(world.now < start + REQUEST_DEADLINE_NS);
}

/// Its connection ends, and the next is not there within the time that one may take.
#[test]
fn without_redundancy_a_donor_that_cannot_be_reached_for_a_while_fails_nothing() {
    for failure in [LinkFailure::NotOpened("busy".into()), LinkFailure::Broken("in the middle".into())] {
        let mut world = World::new(map(true, false), false);
        world.open(A);
        world.open(B);
        let write = world.submit(Op::Write, 0, 4096);
        world.sent();
        world.fail(A, world.session(A), LinkFailure::Broken("reset".into()));
        world.fail(A, world.session(A), failure);
        pass(&mut world, 2 * CONNECT_DEADLINE_NS);
        assert!(world.volume.lost().next().is_none() && world.completed().is_empty());
        world.open(A);
        let again = world.sent().pop().expect("the write is sent again");
        world.answer(again.part, Ok(vec![]));
        assert_eq!(world.completed(), [(write, Ok(()))]);
    }
}

#[test]
fn without_redundancy_a_donor_that_has_ended_is_an_error_at_once() {
    let mut world = World::new(map(true, false), false);
    world.open(A);
    world.open(B);
    let write = world.submit(Op::Write, 0, 4096);
    world.lose(A);
    assert_eq!(world.completed(), [(write, Err(VolumeError::DonorLost))]);
}

#[test]
fn answers_that_take_seconds_raise_no_doubt_once_they_are_known_to() {
    let mut world = World::new(map(false, false), false);
    world.open(A);
    world.open(B);
    let mut owed = Vec::new();
    // A slow link: one answer each half second, each of them four seconds late.
    for turn in 0..200_u64 {
        world.submit(Op::Write, turn * 4096, 4096);
        owed.extend(world.sent());
        if owed.len() >= 8 {
            world.answer(owed.remove(0).part, Ok(vec![]));
        }
        pass(&mut world, SECOND_NS / 2);
    }
    assert_eq!(probes(&world), 2, "while the first answer has yet to come");
}
