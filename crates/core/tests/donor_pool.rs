//! The donor and its pool: asking, outages, strangers in the place of its coordinator, and the end.

use crate::donors::{POOL, WRITER, World, admits, duties, duty, goodbye, sync};
use cheetah_core::api::{Lineage, Refusal, RefusalCode};
use cheetah_core::disk::{Before, Held};
use cheetah_core::donor::{Donor, Effect, Event, Exit};
use cheetah_core::limits::{GOODBYE_NS, SECOND_NS};
use cheetah_core::map::{DonorId, Incarnation, PoolId};

fn join_of(pool: Option<PoolId>) -> Effect {
    Effect::Join { donor: DonorId(1), pool, revision: u64::from(pool.is_some()), lineage: None }
}

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
    assert_eq!(world.wake(), [join_of(None)]);
}

#[test]
fn forgotten_by_the_same_pool_it_joins_again_as_itself() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    world.step(Event::Forgotten);
    assert_eq!(world.wake(), [join_of(Some(POOL))]);
    assert_eq!(world.step(Event::Joined { pool: POOL }), [sync(1, 1)]);
    assert!(admits(&world.open(2, "v", WRITER, 1), 2));
}

/// Another HOME, `--state memory`, an empty state: who answers where the coordinator did is another pool.
#[test]
fn another_pool_is_refused_and_nothing_is_wiped_for_days() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    world.step(Event::Forgotten);
    world.wake();
    let day = 24 * 3600 * SECOND_NS;
    for hours in 0..72 {
        assert_eq!(world.step(refusal(RefusalCode::OtherPool)), []);
        assert_eq!(world.donor.estranged().map(|why| why.code), Some(RefusalCode::OtherPool));
        if hours == 1 {
            assert_eq!(world.close(1), [], "that nobody is connected changes nothing");
        }
        world.now += day / 24;
        assert_eq!(world.step(Event::Wake), [join_of(Some(POOL))]);
    }
    assert!(admits(&world.open(2, "v", WRITER, 1), 2), "and who knows the lease is served");
    // Its own coordinator is back.
    assert_eq!(world.step(Event::Joined { pool: POOL }), [sync(1, 1)]);
    assert_eq!((world.donor.estranged(), world.donor.extents_held()), (None, 4));
}

/// Whatever is said: no refusal ends a donor that holds something, but its own pool's that a person took it
/// out.
#[test]
fn who_holds_something_is_not_ended_by_a_refusal() {
    for code in [RefusalCode::Version, RefusalCode::Conflict, RefusalCode::Invalid, RefusalCode::OtherPool] {
        let mut world = World::holding();
        world.step(Event::Forgotten);
        world.wake();
        assert_eq!(world.step(refusal(code)), []);
        assert_eq!((world.wake(), world.donor.extents_held()), (vec![join_of(Some(POOL))], 4));
    }
    let mut world = World::holding();
    world.step(Event::Forgotten);
    world.wake();
    assert_eq!(world.step(refusal(RefusalCode::Gone)), [Effect::Wipe { extents: vec![0, 1, 2, 3] }]);
}

/// Several coordinators, of which one answers for another pool: the donor is its own pool's, in whatever
/// order they speak.
#[test]
fn a_stranger_that_takes_it_is_refused_by_the_donor() {
    let mut world = World::holding();
    for _ in 0..10 {
        world.step(Event::Forgotten);
        world.wake();
        assert_eq!(world.step(Event::Joined { pool: PoolId(6) }), [], "no sync, and nothing is wiped");
        assert!(world.donor.estranged().is_some_and(|why| why.message.contains("keeps it")));
        assert_eq!(world.step(Event::Duties(duties(9, Vec::new()))), [], "what it says is not heard");
        assert_eq!(world.wake(), [join_of(Some(POOL))]);
        assert_eq!(world.step(Event::Joined { pool: POOL }), [sync(1, 0)]);
        assert_eq!(world.donor.extents_held(), 4);
    }
}

#[test]
fn who_holds_nothing_goes_over_to_another_pool() {
    let mut world = World::joined();
    world.step(Event::Forgotten);
    assert_eq!(world.wake(), [join_of(None)]);
    world.step(Event::Joined { pool: PoolId(6) });
    let news = world.step(Event::Duties(duties(1, vec![duty(9, "w", 0..8, Some(WRITER))])));
    let tells = |effect: &Effect| matches!(effect, Effect::Sync { revision: 1, pool: Some(PoolId(6)), .. });
    assert!(news.iter().all(tells), "it counts anew: {news:?}");
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

#[test]
fn a_disk_puts_down_that_it_asks_before_it_asks_and_that_it_is_in_before_it_says_so() {
    let run = |held: Held, run| Donor::returned(DonorId(1), 8, held, Incarnation(run));
    let (mut donor, mut effects) = (run(Held::default(), 1), Vec::new());
    donor.step(0, Event::Started, &mut effects);
    let names = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Join { lineage, .. } => lineage.clone(),
            _ => None,
        })
    };
    let first = Lineage { incarnation: Incarnation(1), last: None, tried: Vec::new() };
    assert_eq!(names(&effects).as_deref(), Some(&first));
    assert_eq!(donor.held().before, Before { last: None, tried: vec![Incarnation(1)] });
    // It ends before it hears anything.
    let mut donor = run(donor.held(), 2);
    for _ in 0..3 {
        effects.clear();
        donor.step(0, Event::Started, &mut effects);
        let second = names(&effects).expect("it asks");
        assert_eq!(
            (second.incarnation, second.last, second.tried[0]),
            (Incarnation(2), None, Incarnation(1))
        );
        assert_eq!(
            donor.held().before.tried,
            [Incarnation(1), Incarnation(2)],
            "once, however often it asks"
        );
    }
    effects.clear();
    donor.step(0, Event::Joined { pool: POOL }, &mut effects);
    assert_eq!(donor.held().before, Before { last: Some(Incarnation(2)), tried: Vec::new() });
    let syncs = |effect: &Effect| matches!(effect, Effect::Sync { incarnation: Some(Incarnation(2)), .. });
    assert!(effects.iter().any(syncs), "{effects:?}");
    assert_eq!(run(donor.held(), 3).held().before, donor.held().before);
}
