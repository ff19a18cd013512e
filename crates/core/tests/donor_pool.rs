//! The donor and its pool: asking, outages, a coordinator that lost its state, and the end.

mod donors;

use cheetah_core::api::{Refusal, RefusalCode};
use cheetah_core::donor::{Effect, Event, Exit};
use cheetah_core::limits::{GOODBYE_NS, ORPHAN_NS, SECOND_NS};
use cheetah_core::map::{DonorId, PoolId};
use donors::{POOL, WRITER, World, admits, duties, duty, goodbye, sync};

fn refusal(code: RefusalCode) -> Event {
    Event::JoinRefused { refusal: Refusal { code, message: "no".into() } }
}

#[test]
fn an_unreachable_coordinator_is_asked_each_second_and_nobody_is_disturbed() {
    let mut world = World::holding();
    assert!(admits(&world.open(1, "v", WRITER, 1), 1));
    for _ in 0..100 {
        assert_eq!(world.step(Event::Unreachable), []);
        assert_eq!(world.wake, Some(world.now + SECOND_NS));
        assert_eq!(world.wake(), [sync(1, 1)]);
    }
    assert!(admits(&world.open(2, "v", WRITER, 1), 2), "new connections of a known lease, too");
}

#[test]
fn a_coordinator_that_answers_at_once_is_not_asked_in_a_loop() {
    let mut world = World::holding();
    assert_eq!(world.step(Event::Duties(duties(1, vec![duty(1, "v", 0..4, Some(WRITER))]))), []);
    assert!(world.wake.is_some_and(|at| at > world.now));
    assert_eq!(world.wake(), [sync(1, 0)]);
}

#[test]
fn refused_at_the_start_it_ends_and_says_why() {
    for code in [RefusalCode::Version, RefusalCode::Conflict, RefusalCode::Invalid, RefusalCode::Gone] {
        let end = World::started().step(refusal(code));
        assert!(matches!(&end[..], [Effect::Exit(Exit::Refused(why))] if why.code == code), "{end:?}");
    }
    let mut world = World::started();
    assert_eq!(world.step(refusal(RefusalCode::Unavailable)), [], "that passes");
    assert_eq!(world.wake(), [Effect::Join { donor: DonorId(1), pool: None }]);
}

#[test]
fn forgotten_by_the_same_pool_it_joins_again_as_itself() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    world.step(Event::Forgotten);
    assert_eq!(world.wake(), [Effect::Join { donor: DonorId(1), pool: Some(POOL) }]);
    assert_eq!(world.step(Event::Joined { pool: POOL }), [sync(1, 1)]);
    assert!(admits(&world.open(2, "v", WRITER, 1), 2));
}

#[test]
fn of_a_pool_that_is_gone_it_serves_on_until_nobody_is_connected() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    world.step(Event::Forgotten);
    world.wake();
    for _ in 0..100 {
        assert_eq!(world.step(refusal(RefusalCode::Gone)), []);
        assert_eq!(world.wake(), [Effect::Join { donor: DonorId(1), pool: Some(POOL) }]);
    }
    world.close(1);
    let idle = world.now;
    let wiped = loop {
        let effects = world.step(refusal(RefusalCode::Gone));
        if !effects.is_empty() {
            break effects;
        }
        world.wake();
    };
    assert_eq!(wiped, [Effect::Wipe { extents: vec![0, 1, 2, 3] }]);
    assert!(world.now >= idle + ORPHAN_NS);
    let joins = world.step(Event::Wiped { extents: vec![0, 1, 2, 3] });
    let [Effect::Join { donor, pool: None }] = joins[..] else { panic!("{joins:?}") };
    assert!(donor != DonorId(1) && donor == world.donor.identity());
    world.step(Event::Joined { pool: PoolId(6) });
    let news = world.step(Event::Duties(duties(1, vec![duty(9, "w", 0..8, Some(WRITER))])));
    assert!(matches!(news[..], [Effect::Sync { revision: 1, .. }]), "it counts anew: {news:?}");
}

#[test]
fn terminated_it_says_goodbye_wipes_and_ends() {
    let mut world = World::holding();
    let wipe = Effect::Wipe { extents: vec![0, 1, 2, 3] };
    assert_eq!(world.step(Event::Terminate), [goodbye(1, false), wipe]);
    assert_eq!(world.step(Event::Wiped { extents: vec![0, 1, 2, 3] }), [], "not before it was heard");
    assert_eq!(world.step(Event::Duties(duties(1, Vec::new()))), [Effect::Exit(Exit::Terminated)]);
    assert_eq!(world.step(Event::Terminate), []);
}

#[test]
fn a_goodbye_that_nobody_hears_does_not_hold_it() {
    let mut world = World::holding();
    world.step(Event::Terminate);
    world.step(Event::Wiped { extents: vec![0, 1, 2, 3] });
    assert_eq!(world.wake, Some(world.now + GOODBYE_NS));
    assert_eq!(world.wake(), [Effect::Exit(Exit::Terminated)]);
    let end = World::started().step(Event::Terminate);
    assert_eq!(end, [Effect::Exit(Exit::Terminated)], "outside of any pool there is nobody to tell");
}
