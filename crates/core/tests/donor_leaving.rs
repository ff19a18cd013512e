//! A donor that is told to leave: it stays until what it holds is moved, and no longer than it was given; and
//! an offer that changes is told at once.

use crate::donors::{self, WRITER, World, admits, drop_of, duties, duty, goodbye, leaving};
use cheetah_core::api::Duties;
use cheetah_core::donor::{Draining, Effect, Event, Exit};
use cheetah_core::limits::{DRAIN_NS, GOODBYE_NS, HEARTBEAT_NS, SECOND_NS};

const LEAVE: Event = Event::Leave { bounded: false };

fn exits(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Exit(Exit::Terminated))
}

#[test]
fn it_says_so_at_once_and_serves_on_while_it_is_drained() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    assert_eq!(world.donor.draining(), None);
    assert_eq!(world.step(LEAVE), [leaving(1, 1)], "the long poll is given up for it");
    assert_eq!(
        world.donor.draining(),
        Some(Draining { until: None, answered: true, volumes: vec!["v".into()], at_stake: None })
    );
    assert!(admits(&world.open(2, "v", WRITER, 1), 2), "what it holds is still in use");
    for _ in 0..200 {
        world.step(Event::Duties(duties(1, vec![duty(1, "v", 0..4, Some(WRITER))])));
        assert_eq!(world.wake(), [leaving(1, 2)]);
    }
    assert_eq!(world.donor.extents_held(), 4, "nobody moved it, and nobody pressed: it stays");
}

#[test]
fn moved_away_in_parts_it_is_dismissed_and_ends_with_nothing_lost() {
    let mut world = World::holding();
    world.step(LEAVE);
    let wipe = Effect::Wipe { extents: vec![0, 1] };
    assert_eq!(world.step(Event::Duties(duties(2, vec![duty(1, "v", 2..4, Some(WRITER))]))), [wipe]);
    assert_eq!(world.donor.extents_held(), 2);
    assert_eq!(world.step(Event::Wiped { extents: vec![0, 1] }), [leaving(2, 0)]);
    let wipe = Effect::Wipe { extents: vec![2, 3] };
    assert_eq!(world.step(Event::Duties(duties(3, Vec::new()))), [wipe]);
    assert_eq!(world.step(Event::Wiped { extents: vec![2, 3] }), [leaving(3, 0)], "confirmed before it goes");
    let dismissed = Duties { revision: 3, dismissed: true, ..Duties::default() };
    assert_eq!(world.step(Event::Duties(dismissed)), [Effect::Exit(Exit::Dismissed)]);
    assert_eq!(world.donor.draining(), None);
    assert_eq!(world.donor.left_with(), None);
}

#[test]
fn let_go_before_it_heard_that_all_was_moved_it_left_with_nothing() {
    let mut world = World::holding();
    world.step(LEAVE);
    let dismissed = Duties { revision: 3, dismissed: true, ..Duties::default() };
    world.step(Event::Duties(dismissed));
    assert_eq!((world.donor.draining(), world.donor.left_with()), (None, None));
}

#[test]
fn with_nothing_it_leaves_at_once_whatever_the_coordinator_does() {
    let mut answered = World::joined();
    assert_eq!(answered.step(LEAVE), [leaving(0, 0)]);
    assert_eq!(answered.step(Event::Duties(duties(0, Vec::new()))), [goodbye(0, true)]);
    assert!(exits(&answered.step(Event::Duties(duties(0, Vec::new())))));

    let mut silent = World::joined();
    let start = silent.now;
    assert_eq!(silent.step(LEAVE), [leaving(0, 0)]);
    assert_eq!(silent.wake(), [goodbye(0, true)]);
    assert!(exits(&silent.wake()) && silent.now <= start + 2 * GOODBYE_NS);

    let mut unreachable = World::joined();
    unreachable.step(LEAVE);
    assert_eq!(unreachable.step(Event::Unreachable), [goodbye(0, true)]);
    assert!(exits(&unreachable.step(Event::Unreachable)));

    assert!(exits(&World::started().step(LEAVE)), "outside of any pool there is nobody to ask");
}

#[test]
fn what_it_was_given_while_it_asked_to_go_is_not_thrown_away() {
    let mut world = World::joined();
    world.step(LEAVE);
    let given = Event::Duties(duties(1, vec![duty(1, "v", 0..1, Some(WRITER))]));
    assert_eq!(world.step(given), [leaving(1, 0)]);
    world.now += 10 * GOODBYE_NS;
    assert_eq!(world.step(Event::Wake), [], "its last question is still under way");
    assert!(world.donor.draining().is_some());
}

#[test]
fn bounded_it_says_goodbye_when_its_time_is_over() {
    let mut world = World::holding();
    let until = world.now + DRAIN_NS;
    assert_eq!(world.step(Event::Leave { bounded: true }), [leaving(1, 0)]);
    assert_eq!(world.donor.draining().and_then(|draining| draining.until), Some(until));
    while world.now < until {
        world.step(Event::Duties(duties(1, vec![duty(1, "v", 0..4, Some(WRITER))])));
        let effects = world.wake();
        if world.now == until {
            assert_eq!(effects, [goodbye(1, true), Effect::Wipe { extents: vec![0, 1, 2, 3] }]);
        }
    }
    let left = world.donor.left_with().expect("it held data");
    assert_eq!((left.extents, left.timed_out), (4, true));
    world.step(Event::Wiped { extents: vec![0, 1, 2, 3] });
    assert!(exits(&world.step(Event::Duties(duties(2, Vec::new())))));
}

#[test]
fn a_bound_that_comes_later_holds_and_the_first_one_stays() {
    let mut world = World::holding();
    world.step(LEAVE);
    let until = world.now + DRAIN_NS;
    assert_eq!(world.step(Event::Leave { bounded: true }), []);
    world.now += SECOND_NS;
    world.step(Event::Leave { bounded: true });
    assert_eq!(world.donor.draining().and_then(|draining| draining.until), Some(until));
}

#[test]
fn told_to_go_at_once_it_does_not_wait_for_the_rest() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    world.step(LEAVE);
    let said = world.step(Event::Terminate);
    let farewell = matches!(said[0], Effect::Sync { goodbye: true, leaving: true, connections: 1, .. });
    assert!(farewell && said[1..] == [drop_of(1)], "{said:?}");
    let left = world.donor.left_with().expect("it held data");
    assert_eq!((left.extents, &left.volumes[..], left.timed_out), (4, &["v".to_owned()][..], false));
    assert_eq!(world.close(1), [Effect::Wipe { extents: vec![0, 1, 2, 3] }]);
}

#[test]
fn while_the_coordinator_is_away_it_waits_and_can_say_why() {
    let mut world = World::holding();
    world.step(LEAVE);
    assert_eq!(world.step(Event::Unreachable), []);
    assert_eq!(world.donor.draining().map(|draining| draining.answered), Some(false));
    assert_eq!(world.wake(), [leaving(1, 0)]);
    let stuck = Duties {
        stuck: Some("no other donor has room".into()),
        ..duties(1, vec![duty(1, "v", 0..4, Some(WRITER))])
    };
    world.step(Event::Duties(stuck));
    assert_eq!(world.donor.draining().map(|draining| draining.answered), Some(true));
    assert_eq!(world.donor.stuck(), Some("no other donor has room"), "the same revision, and yet news");
}

#[test]
fn a_coordinator_that_restarted_hears_it_again() {
    let mut world = World::holding();
    world.step(LEAVE);
    world.step(Event::Forgotten);
    assert!(matches!(world.wake()[..], [Effect::Join { .. }]), "what it holds it does not abandon");
    assert_eq!(world.step(Event::Joined { pool: donors::POOL }), [leaving(1, 0)]);
}

#[test]
fn an_offer_that_changes_is_told_at_once_and_only_then() {
    let mut world = World::holding();
    let offers = |effects: &[Effect], extents| match effects {
        [Effect::Sync { offered, leaving: false, .. }] => *offered == extents,
        _ => false,
    };
    assert!(offers(&world.step(Event::Offered { extents: 3 }), 3), "the long poll is given up for it");
    assert_eq!(world.step(Event::Offered { extents: 3 }), []);
    world.step(Event::Duties(duties(1, vec![duty(1, "v", 0..4, Some(WRITER))])));
    assert!(offers(&world.wake(), 3), "and told with every heartbeat");
    world.step(Event::Unreachable);
    assert!(offers(&world.step(Event::Offered { extents: 99 }), 8), "no more than there is");

    let mut outside = World::started();
    assert_eq!(outside.step(Event::Offered { extents: 2 }), [], "nobody to tell yet");
    assert!(offers(&outside.step(Event::Joined { pool: donors::POOL }), 2));
    outside.now += HEARTBEAT_NS;
}
