//! Sessions, leases and wiping: nobody newer is let in before everybody older is out.

use crate::donors::{OTHER, WRITER, World, admits, drop_of, duties, duty, sync};
use cheetah_core::api::{Duties, Duty};
use cheetah_core::donor::{ConnId, Denied, Effect, Event, OpenError, export_name};
use cheetah_core::limits::{EXTENT_BYTES, HEARTBEAT_NS};
use cheetah_core::seed::Seed;
use std::collections::{BTreeMap, BTreeSet};

fn refused(effects: &[Effect], conn: u64, reason: OpenError) -> bool {
    effects.contains(&Effect::Refuse { conn: ConnId(conn), reason })
}

#[test]
fn a_session_has_many_connections_and_a_newer_one_ends_it_first() {
    let mut world = World::holding();
    assert!(admits(&world.open(1, "v", WRITER, 7), 1));
    assert!(admits(&world.open(2, "v", WRITER, 7), 2));
    assert_eq!(world.open(3, "v", WRITER, 8), [drop_of(1), drop_of(2)], "not admitted yet");
    assert_eq!(world.open(4, "v", WRITER, 8), []);
    assert_eq!(world.close(1), []);
    let effects = world.close(2);
    assert!(admits(&effects, 3) && admits(&effects, 4));
    assert!(refused(&world.open(5, "v", WRITER, 7), 5, OpenError::Superseded));
}

#[test]
fn a_waiting_session_that_is_overtaken_is_refused() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    world.open(2, "v", WRITER, 2);
    assert!(refused(&world.open(3, "v", WRITER, 3), 2, OpenError::Superseded));
    assert!(admits(&world.close(1), 3));
}

#[test]
fn unknown_names_leases_and_forms_are_refused() {
    let mut world = World::holding();
    assert!(refused(&world.open(1, "v", OTHER, 1), 1, OpenError::Unknown));
    assert!(refused(&world.open(2, "w", WRITER, 1), 2, OpenError::Unknown));
    let opened = Event::Opened { conn: ConnId(3), export: "v".into(), member: None };
    assert!(refused(&world.step(opened), 3, OpenError::Malformed));
}

#[test]
fn the_next_writer_waits_for_the_last_to_be_out() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    let grant = world.access.open("v@000000000000000a", None).expect("a lease");
    let effects = world.step(Event::Duties(duties(2, vec![duty(1, "v", 0..4, Some(OTHER))])));
    assert_eq!(effects, [drop_of(1)], "not confirmed while it may still write");
    assert_eq!(world.access.check(&grant, true, 0, 1), Err(Denied::LeaseEnded), "refused from now on");
    assert_eq!(world.open(2, "v", OTHER, 1), []);
    let effects = world.close(1);
    assert!(admits(&effects, 2) && effects.contains(&sync(2, 1)), "{effects:?}");
}

#[test]
fn memory_is_wiped_between_volumes_and_confirmed_after() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    let next = vec![duty(2, "w", 2..6, Some(OTHER))];
    assert_eq!(world.step(Event::Duties(duties(2, next))), [drop_of(1)]);
    let grant = world.access.open("w@000000000000000b", None).expect("known at once");
    assert_eq!(world.access.check(&grant, true, 4 * EXTENT_BYTES, 1), Ok(()), "clean extents at once");
    assert_eq!(world.access.check(&grant, true, 2 * EXTENT_BYTES, 1), Err(Denied::NotYours));
    let wipe = Effect::Wipe { extents: vec![0, 1, 2, 3] };
    assert_eq!(world.close(1), [wipe]);
    world.now += HEARTBEAT_NS;
    assert_eq!(world.step(Event::Wake), [sync(1, 0)], "a heartbeat, with the revision that is done");
    world.step(Event::Duties(duties(2, vec![duty(2, "w", 2..6, Some(OTHER))])));
    assert_eq!(world.step(Event::Wiped { extents: vec![0, 1, 2, 3] }), [sync(2, 0)]);
    assert_eq!(world.access.check(&grant, true, 2 * EXTENT_BYTES, 1), Ok(()));
}

#[test]
fn older_duties_and_impossible_extents_are_ignored() {
    let mut world = World::holding();
    assert_eq!(world.step(Event::Duties(duties(0, Vec::new()))), []);
    assert!(world.access.open("v@000000000000000a", None).is_ok());
    world.wake();
    let twice = vec![duty(1, "v", 0..4, Some(WRITER)), duty(2, "w", 3..100, Some(OTHER))];
    world.step(Event::Duties(duties(2, twice)));
    let grant = world.access.open("w@000000000000000b", None).expect("known");
    assert_eq!(world.access.check(&grant, false, 3 * EXTENT_BYTES, 1), Err(Denied::NotYours));
    assert_eq!(grant.size, 8 * EXTENT_BYTES);
}

/// Random duties, connections and delays: who is admitted never meets an older writer or unwiped memory.
#[test]
fn no_order_of_events_lets_old_and_new_meet() {
    for seed in 0..300 {
        let mut random = Seed(seed);
        let mut world = World::joined();
        let (mut open, mut dropped, mut wiping) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        let mut revision = 0;
        for conn in 0..200 {
            let effects = match random.draw() % 6 {
                0 => {
                    revision += 1;
                    let split = (random.draw() % 9) as u32;
                    let lease =
                        |random: &mut Seed| [None, Some(WRITER), Some(OTHER)][(random.draw() % 3) as usize];
                    let first = duty(1, "v", 0..split, lease(&mut random).filter(|token| *token == WRITER));
                    let second = duty(2, "w", split..8, lease(&mut random).filter(|token| *token == OTHER));
                    world.step(Event::Duties(duties(revision, vec![first, second])))
                }
                1 | 2 => {
                    let (name, token) =
                        if random.draw().is_multiple_of(2) { ("v", WRITER) } else { ("w", OTHER) };
                    world.open(conn, name, token, random.draw() % 20)
                }
                3 if !dropped.is_empty() => {
                    let closed = dropped.pop_first().expect("one");
                    open.remove(&closed);
                    world.close(closed)
                }
                4 if !wiping.is_empty() => world.step(Event::Wiped { extents: wiping.swap_remove(0) }),
                _ => {
                    world.now += HEARTBEAT_NS;
                    world.step(Event::Wake)
                }
            };
            for effect in effects {
                match effect {
                    Effect::Drop { conn } => assert!(open.contains_key(&conn.0) && dropped.insert(conn.0)),
                    Effect::Admit { conn, grant } => {
                        let older = dropped.iter().any(|older| open.get(older) == Some(&grant.volume));
                        assert!(!older, "seed {seed}: {conn:?} meets an older connection");
                        assert_eq!(open.insert(conn.0, grant.volume), None);
                    }
                    Effect::Wipe { extents } => wiping.push(extents),
                    Effect::Sync { revision: told, .. } => assert!(told <= revision),
                    _ => {}
                }
            }
            for extent in wiping.iter().flatten() {
                for export in ["v@000000000000000a.99", "w@000000000000000b.99"] {
                    let Ok(grant) = world.access.open(export, None) else { continue };
                    let reach = world.access.check(&grant, true, u64::from(*extent) * EXTENT_BYTES, 1);
                    assert!(
                        matches!(reach, Err(Denied::NotYours | Denied::Beyond)),
                        "seed {seed}: extent {extent} is being wiped"
                    );
                }
            }
        }
    }
}

#[test]
fn dismissed_it_drops_wipes_and_ends() {
    let mut world = World::holding();
    world.open(1, "v", WRITER, 1);
    let dismissed = Duties { revision: 1, dismissed: true, ..Duties::default() };
    assert_eq!(world.step(Event::Duties(dismissed)), [drop_of(1)]);
    assert!(refused(&world.open(2, "v", WRITER, 1), 2, OpenError::Leaving));
    assert_eq!(world.close(1), [Effect::Wipe { extents: vec![0, 1, 2, 3] }]);
    let end = world.step(Event::Wiped { extents: vec![0, 1, 2, 3] });
    assert_eq!(end, [Effect::Exit(cheetah_core::donor::Exit::Dismissed)]);
}

/// A seal is not undone by a coordinator whose state is older than it.
#[test]
fn what_was_once_sealed_is_written_by_nobody_but_who_repairs() {
    let mut world = World::holding();
    let grant_of = |world: &World, token| {
        world.access.open(&export_name("v", token, 1, world.donor.identity()), None).expect("a lease")
    };
    let writer = grant_of(&world, WRITER);
    assert_eq!(world.access.check(&writer, true, 0, 1), Ok(()));
    let sealed = Duty { sealed: true, writer: None, readers: vec![WRITER], ..duty(1, "v", 0..4, None) };
    world.step(Event::Duties(duties(2, vec![sealed.clone()])));
    assert_eq!(world.access.check(&writer, true, 0, 1), Err(Denied::ReadOnly));
    assert_eq!(world.access.check(&writer, false, 0, 1), Ok(()));

    // It has forgotten that the volume is sealed, and gives somebody the right to write.
    world.step(Event::Duties(duties(3, vec![duty(1, "v", 0..4, Some(OTHER))])));
    let other = grant_of(&world, OTHER);
    assert_eq!(world.access.check(&other, true, 0, 1), Err(Denied::ReadOnly));
    world.step(Event::Duties(duties(4, vec![Duty { repairs: true, writer: Some(OTHER), ..sealed }])));
    assert_eq!(world.access.check(&grant_of(&world, OTHER), true, 0, 1), Ok(()));

    // Of another volume in its place nothing is known.
    world.step(Event::Duties(duties(5, Vec::new())));
    world.step(Event::Wiped { extents: (0..4).collect() });
    world.step(Event::Duties(duties(6, vec![duty(2, "w", 0..4, Some(WRITER))])));
    let grant =
        world.access.open(&export_name("w", WRITER, 1, world.donor.identity()), None).expect("a lease");
    assert_eq!(world.access.check(&grant, true, 0, 1), Ok(()));
}
