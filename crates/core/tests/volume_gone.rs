//! Which donors a writer names to the coordinator when nobody reads or writes: those that have ended at once,
//! the others after their time, each by its own.

use crate::volume::{Sent, World, wide};
use cheetah_core::api::Amend;
use cheetah_core::limits::{
    AMEND_RETRY_NS, DONOR_RETRY_NS, DONOR_RETRY_SOON_NS, EXCLUDE_NS, LEASE_RENEW_NS, Patience,
    REQUEST_DEADLINE_NS, SECOND_NS, TICK_NS,
};
use cheetah_core::map::{DonorId, Medium, Redundancy, VolumeMap};
use cheetah_core::volume::{Effect, Event, LinkFailure, PartOp, StatusRun};

const FIRST: DonorId = DonorId(1);
const SECOND: DonorId = DonorId(2);

/// A volume of five donors that nobody uses, with all links up.
fn idle(read_only: bool) -> World {
    let mut world = World::new(wide(Redundancy { data: 3, parity: 2 }), read_only);
    (1..=5).for_each(|id| world.open(DonorId(id)));
    world
}

/// Whom the machine named since the last call, and at what time.
fn named(world: &mut World) -> Vec<DonorId> {
    let mut all = Vec::new();
    world.effects.retain(|effect| match effect {
        Effect::Amend(Amend { exclude, .. }) => {
            all.extend(exclude.iter().map(|(donor, _)| *donor));
            false
        }
        _ => true,
    });
    all
}

fn breaks(world: &mut World, donor: DonorId) {
    world.fail(donor, world.session(donor), LinkFailure::Broken("closed".into()));
}

fn fails(world: &mut World, donor: DonorId, failure: LinkFailure) {
    world.fail(donor, world.session(donor), failure);
}

fn refused() -> LinkFailure {
    LinkFailure::Refused("nothing listens there".into())
}

/// Until donors are named, or so much time has passed.
fn named_within(world: &mut World, ns: u64) -> Vec<DonorId> {
    let end = world.now + ns;
    loop {
        let named = named(world);
        if !named.is_empty() || world.next_wake() > end {
            world.now = world.now.max(if named.is_empty() { end } else { world.now });
            return named;
        }
        world.wake();
    }
}

/// The coordinator grants it: the next epoch, in which they hold nothing.
fn grant(world: &mut World, gone: &[DonorId]) {
    let mut map: VolumeMap = world.volume.map().clone();
    map.epoch += 1;
    for slot in &mut map.groups[0].slots {
        slot.held = slot.held.filter(|held| !gone.contains(&held.donor));
    }
    gone.iter().for_each(|donor| drop(map.routes.remove(donor)));
    world.step(Event::Amended(Some(map)));
}

#[test]
fn one_that_closed_and_refuses_is_named_at_once() {
    let mut world = idle(false);
    breaks(&mut world, FIRST);
    assert_eq!(named(&mut world), [], "it may be there");
    fails(&mut world, FIRST, refused());
    assert_eq!(named(&mut world), [FIRST]);
    let mut reader = idle(true);
    breaks(&mut reader, FIRST);
    fails(&mut reader, FIRST, refused());
    assert_eq!(named_within(&mut reader, 3 * EXCLUDE_NS), [], "a reader changes no map");
}

#[test]
fn another_at_its_address_says_the_same() {
    let mut world = idle(false);
    breaks(&mut world, FIRST);
    fails(&mut world, FIRST, LinkFailure::NotAdmitted("another donor was here before".into()));
    assert_eq!(named(&mut world), [FIRST]);
}

#[test]
fn one_that_was_never_reached_has_its_time_though_it_refuses() {
    // Its address may be wrong, or lead elsewhere from here.
    let mut world = World::new(wide(Redundancy { data: 3, parity: 2 }), false);
    (2..=5).for_each(|id| world.open(DonorId(id)));
    fails(&mut world, FIRST, refused());
    assert_eq!(named_within(&mut world, EXCLUDE_NS - 2 * TICK_NS), []);
    assert_eq!(named_within(&mut world, 3 * TICK_NS), [FIRST]);
}

#[test]
fn one_whose_listener_outlives_its_connections_is_tried_again_within_moments() {
    let mut world = idle(false);
    let begun = world.now;
    breaks(&mut world, FIRST);
    for _ in 0..3 {
        let session = world.session(FIRST);
        fails(&mut world, FIRST, LinkFailure::NotOpened("it closed the connection".into()));
        while world.session(FIRST) == session {
            world.wake();
        }
    }
    assert_eq!(named(&mut world), []);
    assert!(world.now - begun <= 8 * DONOR_RETRY_SOON_NS && 8 * DONOR_RETRY_SOON_NS < DONOR_RETRY_NS);
    fails(&mut world, FIRST, refused());
    assert_eq!(named(&mut world), [FIRST]);
    // What is there and useless is not hammered.
    let mut world = idle(false);
    breaks(&mut world, SECOND);
    let (begun, first) = (world.now, world.session(SECOND));
    while world.now < begun + EXCLUDE_NS {
        fails(&mut world, SECOND, LinkFailure::NotOpened("it closed the connection".into()));
        world.wake();
    }
    assert!(world.session(SECOND) - first < 20);
}

#[test]
fn each_has_its_own_time() {
    let mut world = idle(false);
    breaks(&mut world, FIRST);
    world.now += CLOSE_TOGETHER_NS;
    breaks(&mut world, SECOND);
    fails(&mut world, FIRST, LinkFailure::NotOpened("no route".into()));
    world.now += CLOSE_TOGETHER_NS;
    fails(&mut world, SECOND, LinkFailure::NotOpened("no route".into()));
    let begun = world.now - CLOSE_TOGETHER_NS;
    let first = named_within(&mut world, 2 * EXCLUDE_NS);
    assert_eq!(first, [FIRST]);
    assert!((EXCLUDE_NS..EXCLUDE_NS + 2 * TICK_NS).contains(&(world.now - begun)));
    grant(&mut world, &[FIRST]);
    assert_eq!(named_within(&mut world, 2 * EXCLUDE_NS), [SECOND]);
    assert!(world.now - begun <= EXCLUDE_NS + CLOSE_TOGETHER_NS + AMEND_RETRY_NS + 2 * TICK_NS);
}

const CLOSE_TOGETHER_NS: u64 = 500_000_000;

#[test]
fn one_that_ends_while_another_is_being_recorded_is_named_as_soon_as_that_is() {
    let mut world = idle(false);
    for donor in [FIRST, SECOND] {
        breaks(&mut world, donor);
        fails(&mut world, donor, refused());
    }
    assert_eq!(named(&mut world), [FIRST], "one amendment at a time");
    let begun = world.now;
    grant(&mut world, &[FIRST]);
    assert_eq!((named(&mut world), world.now), (vec![SECOND], begun));
}

#[test]
fn what_is_not_granted_is_asked_for_again_and_not_all_the_time() {
    let mut world = idle(false);
    breaks(&mut world, FIRST);
    fails(&mut world, FIRST, refused());
    assert_eq!(named(&mut world), [FIRST]);
    let begun = world.now;
    world.step(Event::Amended(Some(world.volume.map().clone())));
    assert_eq!(named_within(&mut world, 2 * EXCLUDE_NS), [FIRST]);
    assert!(world.now - begun >= EXCLUDE_NS);
}

/// So much time passes; of what is asked of donors, those that live answer at once, and connect at once.
fn pass_with(world: &mut World, ns: u64, lives: impl Fn(DonorId) -> bool) {
    let end = world.now + ns;
    loop {
        let (answered, hung): (Vec<Sent>, Vec<Sent>) =
            world.sent().into_iter().partition(|sent| lives(sent.donor));
        assert!(hung.iter().all(|sent| sent.op == PartOp::Status), "{hung:?}");
        let none = answered.is_empty();
        for sent in answered {
            world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }]));
        }
        if !none {
            continue;
        }
        if world.next_wake() > end {
            world.now = end;
            return;
        }
        world.wake();
    }
}

/// As each answer to a renewal says it.
fn told_silent(world: &mut World, silent: &[DonorId], ns: u64, lives: impl Fn(DonorId) -> bool) {
    let end = world.now + ns;
    while world.now < end {
        world.step(Event::Silent(silent.to_vec()));
        pass_with(world, LEASE_RENEW_NS, &lives);
    }
}

#[test]
fn one_that_falls_silent_without_a_word_is_asked_when_the_coordinator_misses_it() {
    let mut world = idle(false);
    let rest = |donor| donor != FIRST;
    pass_with(&mut world, 10 * SECOND_NS, |_| true);
    pass_with(&mut world, 60 * SECOND_NS, rest);
    assert_eq!((named(&mut world), world.volume.lost().count()), (vec![], 0), "nobody asked it for anything");
    world.step(Event::Silent(vec![FIRST]));
    pass_with(&mut world, Patience::MEMORY.silence_ns + 2 * TICK_NS, rest);
    assert_eq!(world.volume.lost().map(|(donor, _)| donor).collect::<Vec<_>>(), [FIRST]);
    pass_with(&mut world, EXCLUDE_NS - SECOND_NS, rest);
    assert_eq!(named(&mut world), [], "it may come back");
    pass_with(&mut world, SECOND_NS + 2 * TICK_NS, rest);
    assert_eq!(named(&mut world), [FIRST]);
}

#[test]
fn one_that_answers_stays_whatever_the_coordinator_misses() {
    let mut world = idle(false);
    told_silent(&mut world, &[FIRST], 120 * SECOND_NS, |_| true);
    assert_eq!((named(&mut world), world.volume.lost().count()), (vec![], 0));
    assert_eq!(world.session(FIRST), 1, "its link is not opened anew");
}

#[test]
fn nobody_is_blamed_where_nobody_answers() {
    // This machine is cut off from all donors, and the coordinator from one.
    let mut world = idle(false);
    pass_with(&mut world, 10 * SECOND_NS, |_| true);
    world.step(Event::Silent(vec![FIRST]));
    pass_with(&mut world, REQUEST_DEADLINE_NS - SECOND_NS, |_| false);
    assert_eq!((named(&mut world), world.volume.lost().count()), (vec![], 0));
}

#[test]
fn a_reader_and_a_volume_without_redundancy_ask_nobody() {
    let stripe = World::new(wide(Redundancy { data: 3, parity: 0 }), false);
    for mut world in [idle(true), stripe] {
        (1..=3).for_each(|id| world.open(DonorId(id)));
        world.step(Event::Silent(vec![FIRST]));
        assert!(world.sent().is_empty());
    }
}

/// Three of five are away, and two of them can be missed.
fn three_away(world: &mut World, failure: &LinkFailure) {
    for donor in [FIRST, SECOND, DonorId(3)] {
        breaks(world, donor);
        fails(world, donor, failure.clone());
    }
}

/// It is reached when it is tried next.
fn comes_back(world: &mut World, donor: DonorId) {
    let session = world.session(donor);
    while world.session(donor) == session {
        world.wake();
    }
    world.open(donor);
}

#[test]
fn nobody_is_given_up_for_one_that_is_away_as_well() {
    let mut world = idle(false);
    three_away(&mut world, &LinkFailure::NotOpened("no route".into()));
    pass_with(&mut world, 10 * EXCLUDE_NS, |donor| donor > DonorId(3));
    assert_eq!(named(&mut world), [], "each of them may be the one that comes back");
    comes_back(&mut world, DonorId(3));
    pass_with(&mut world, 2 * EXCLUDE_NS, |donor| donor > SECOND);
    assert_ne!(named(&mut world), [], "now they are rebuilt");
}

#[test]
fn memory_that_is_gone_for_certain_is_given_up_whoever_else_is_away() {
    let mut world = idle(false);
    three_away(&mut world, &refused());
    assert_eq!(named(&mut world), [FIRST]);
}

#[test]
fn a_disk_whose_donor_has_ended_is_not_given_up_for_one_that_is_away_as_well() {
    let map = VolumeMap { medium: Medium::Disk, ..wide(Redundancy { data: 3, parity: 2 }) };
    let mut world = World::new(map, false);
    (1..=5).for_each(|id| world.open(DonorId(id)));
    three_away(&mut world, &refused());
    let end = world.now + 10 * EXCLUDE_NS;
    while world.now < end {
        for donor in [FIRST, SECOND, DonorId(3)] {
            fails(&mut world, donor, refused());
        }
        pass_with(&mut world, SECOND_NS, |donor| donor > DonorId(3));
        assert_eq!(named(&mut world), []);
    }
    comes_back(&mut world, DonorId(3));
    pass_with(&mut world, 2 * EXCLUDE_NS, |donor| donor > SECOND);
    assert_ne!(named(&mut world), []);
}
