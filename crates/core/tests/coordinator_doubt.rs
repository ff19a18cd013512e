//! Donors whose processes end: found out by their own addresses, within moments, also of volumes that nobody
//! writes.

use crate::pool::{E, World, filling, held_by};
use cheetah_core::api::{DonorHealth, Size, VolumeHealth};
use cheetah_core::coordinator::{Event, Found};
use cheetah_core::limits::{HEARTBEAT_NS, LEASE_NS, MILLISECOND_NS, REACHES_MAX, SECOND_NS};
use cheetah_core::map::DonorId;

/// A world of so many donors and a volume, and who holds its first group.
fn world(donors: usize, redundancy: &str) -> (World, Vec<u64>) {
    let mut world = World::with_donors(&vec![4; donors]);
    world.create("v", Size::Bytes(E), Some(redundancy)).expect("created");
    let map = world.show("v").map;
    let holders = (1..=donors as u64).filter(|id| held_by(&map, *id) > 0).collect();
    (world, holders)
}

fn tended(world: &World) -> bool {
    world.donors.values().flat_map(|duties| &duties.volumes).any(|duty| duty.tend)
}

fn health(world: &mut World, id: u64) -> DonorHealth {
    world.status().donors[id as usize - 1].health
}

#[test]
fn a_killed_donor_is_out_of_every_volume_at_once_and_what_it_held_is_rebuilt() {
    for reader in [false, true] {
        let (mut world, holders) = world(6, "parity:3+1");
        if reader {
            world.attach("v", true).expect("attached");
        }
        let begun = world.now;
        world.kill(holders[0]);
        let map = world.peek("v").map;
        assert_eq!((held_by(&map, holders[0]), filling(&map).len()), (0, 1));
        world.settle();
        assert!(tended(&world), "somebody rebuilds it");
        assert_eq!((world.now - begun, health(&mut world, holders[0])), (0, DonorHealth::Lost));
    }
}

#[test]
fn a_writer_hears_of_it_by_its_long_poll() {
    let (mut world, holders) = world(6, "parity:3+1");
    let writer = world.attach("v", false).expect("attached");
    let renew = world.renew("v", writer.token, writer.map.epoch);
    world.kill(holders[0]);
    world.settle();
    assert!(world.answer(renew).is_some_and(|answer| answer.is_ok()));
    assert!(!tended(&world), "the writer does it");
    assert_eq!(filling(&world.show("v").map).len(), 1);
}

#[test]
fn what_only_a_dead_donor_could_complete_stays_in_the_map() {
    let (mut world, holders) = world(6, "parity:3+1");
    let before = world.show("v").map;
    // The second dies before the first is rebuilt: those that are left are too few, and nothing of them is
    // dropped.
    world.kill(holders[0]);
    world.kill(holders[1]);
    let map = world.show("v").map;
    let held: Vec<usize> = holders.iter().map(|id| held_by(&map, *id)).collect();
    assert_eq!((held_by(&before, holders[0]), held), (1, vec![0, 1, 1, 1]));
    assert_eq!(world.show("v").status.health, VolumeHealth::Lost);
}

#[test]
fn a_silent_donor_is_not_dropped_for_one_that_has_ended() {
    let (mut world, holders) = world(6, "parity:3+1");
    world.silence(holders[0]);
    world.reaches.clear();
    world.kill(holders[1]);
    let map = world.show("v").map;
    assert_eq!(holders.iter().map(|id| held_by(&map, *id)).collect::<Vec<_>>(), [1, 1, 1, 1]);
    // It comes back, and then there is enough to do without the other.
    world.donors.insert(DonorId(holders[0]), cheetah_core::api::Duties::default());
    world.settle();
    let map = world.show("v").map;
    assert_eq!(holders.iter().map(|id| held_by(&map, *id)).collect::<Vec<_>>(), [1, 0, 1, 1]);
}

#[test]
fn one_that_hangs_up_and_is_there_loses_nothing() {
    let (mut world, holders) = world(5, "parity:3+1");
    let before = world.show("v").map;
    let id = holders[0];
    // It asks something else meanwhile, or its connection was lost on the way.
    for found in [Found::Listener, Found::Silence, Found::Nothing] {
        let call = world.poll(id);
        world.step(Event::Hangup { call });
        assert_eq!(world.reaches.len(), 1);
        world.poll(id);
        world.find(found);
        world.pass(SECOND_NS);
        assert_eq!((&world.show("v").map, health(&mut world, id)), (&before, DonorHealth::Alive));
        world.reaches.clear();
    }
}

#[test]
fn one_whose_listener_outlives_its_connections_is_asked_again_and_not_for_ever() {
    for dies in [true, false] {
        let (mut world, holders) = world(5, "parity:3+1");
        let (id, begun) = (holders[0], world.now);
        let call = world.poll(id);
        world.donors.remove(&DonorId(id));
        world.step(Event::Hangup { call });
        let mut asked = 0;
        while !world.reaches.is_empty() {
            asked += 1;
            world.find(if dies && asked == 4 { Found::Nothing } else { Found::Listener });
            for _ in 0..700 {
                world.now += MILLISECOND_NS;
                world.step(Event::Wake);
                if !world.reaches.is_empty() {
                    break;
                }
            }
        }
        let held = held_by(&world.peek("v").map, id);
        assert_eq!((asked, held), if dies { (4, 0) } else { (REACHES_MAX, 1) });
        assert!(world.now - begun < 3 * SECOND_NS);
    }
}

#[test]
fn a_reader_that_cannot_reach_a_donor_has_it_asked() {
    let (mut world, holders) = world(5, "parity:3+1");
    let reader = world.attach("v", true).expect("attached");
    world.donors.remove(&DonorId(holders[0]));
    // It was killed between two syncs, so nothing hangs up.
    world.pass(2 * HEARTBEAT_NS);
    world.renew_without("v", &reader, &holders[..1]);
    assert_eq!(world.reaches.len(), 1);
    world.find(Found::Nothing);
    assert_eq!(held_by(&world.show("v").map, holders[0]), 0);
    // Its word alone is no evidence.
    world.renew_without("v", &reader, &holders[..2]);
    world.find(Found::Listener);
    assert_eq!(held_by(&world.show("v").map, holders[1]), 1);
}

#[test]
fn a_tender_that_is_killed_is_followed_by_another_at_once() {
    let (mut world, holders) = world(7, "parity:3+2");
    world.kill(holders[0]);
    world.settle();
    let tender = |world: &World| {
        let tends = |duties: &cheetah_core::api::Duties| duties.volumes.iter().any(|duty| duty.tend);
        world.donors.iter().find(|(_, duties)| tends(duties)).map(|(id, _)| id.0).expect("one tends")
    };
    let first = tender(&world);
    let attach = |world: &mut World| {
        let mut attach = cheetah_core::api::Attach::new(false, "a donor");
        attach.yields = true;
        world.ask(cheetah_core::api::Call::Attach { name: "v".into(), attach })
    };
    attach(&mut world).expect("attached");
    let begun = world.now;
    world.kill(first);
    world.settle();
    assert_ne!(tender(&world), first);
    attach(&mut world).expect("the lease of one that is dead is in nobody's way");
    assert!(world.now - begun < LEASE_NS);
}
