//! Repair: fragments that nobody holds get new homes, and the volume is whole again when its writer has
//! filled them.

use crate::pool::{E, World, filling, held_by, joining};
use cheetah_core::api::{Amend, Answer, Call, Filled, Size, VolumeHealth};
use cheetah_core::coordinator::Event;
use cheetah_core::limits::{EXTENT_BYTES, SECOND_NS, SET_ASIDE_NS, VOLUME_FILLINGS_MAX};
use cheetah_core::map::{DonorId, Placement};

fn world(donors: &[u32], redundancy: &str, size: u64) -> (World, cheetah_core::api::Attached) {
    let mut world = World::with_donors(donors);
    world.create("v", Size::Bytes(size), Some(redundancy)).expect("created");
    let lease = world.attach("v", false).expect("attached");
    (world, lease)
}

#[test]
fn what_is_missing_is_filled_elsewhere_and_then_held() {
    let (mut world, lease) = world(&[8; 5], "parity:2+1", 8 * E);
    let out = (1..=5).find(|id| held_by(&lease.map, *id) > 0).expect("somebody");
    let missing = held_by(&lease.map, out);
    world.donors.remove(&DonorId(out));
    world.exclude("v", lease.token, &[out]);
    let status = world.show("v").status;
    assert_eq!((status.health, status.slots_missing as usize), (VolumeHealth::Degraded, missing));
    assert_eq!(status.slots_filling as usize, missing, "all at once");
    let before = world.show("v").map;
    for group in &before.groups {
        let mut donors: Vec<DonorId> = group.placements().map(|place| place.donor).collect();
        donors.sort_unstable();
        donors.dedup();
        assert_eq!(donors.len(), 3, "{group:?}");
    }
    world.settle();
    let map = world.fill("v", lease.token);
    assert_eq!((filling(&map).len(), map.epoch), (0, before.epoch + 1));
    assert_eq!(world.show("v").status.health, VolumeHealth::Whole);
    for (was, is) in before.groups.iter().zip(&map.groups) {
        for (was, is) in was.slots.iter().zip(&is.slots) {
            assert_eq!(is.held, was.filling.or(was.held));
        }
    }
}

#[test]
fn without_room_it_waits_for_a_donor_to_join() {
    let (mut world, lease) = world(&[4, 4, 4], "parity:2+1", 8 * E);
    world.donors.remove(&DonorId(1));
    world.exclude("v", lease.token, &[1]);
    assert_eq!(world.show("v").status.slots_filling, 0);
    world.join(4, 3).expect("joins");
    assert_eq!(world.show("v").status.slots_filling, 3, "as many as there is room for");
    world.fill("v", lease.token);
    world.join(5, 9).expect("joins");
    world.fill("v", lease.token);
    assert_eq!(world.show("v").status.health, VolumeHealth::Whole);
}

#[test]
fn room_that_a_deleted_volume_leaves_is_used() {
    let (mut world, lease) = world(&[4, 4, 4], "mirror:2", 4 * E);
    world.create("w", Size::Bytes(4 * E), Some("linear")).expect("created");
    let out = (1..=3).find(|id| held_by(&lease.map, *id) > 0).expect("somebody");
    world.donors.remove(&DonorId(out));
    world.exclude("v", lease.token, &[out]);
    let before = world.show("v").status.slots_filling;
    world.delete("w").expect("deleted");
    assert!(world.show("v").status.slots_filling > before);
}

#[test]
fn one_that_was_set_aside_is_tried_again_later_and_only_when_it_has_wiped() {
    let (mut world, lease) = world(&[4, 4, 4], "parity:2+1", 4 * E);
    world.exclude("v", lease.token, &[3]);
    world.settle();
    assert_eq!(world.show("v").status.slots_filling, 0, "it has just failed");
    let mut kept = world.renew("v", lease.token, 99);
    for _ in 0..(SET_ASIDE_NS / SECOND_NS) + 1 {
        world.pass(SECOND_NS);
        if world.answer(kept).is_some() {
            kept = world.renew("v", lease.token, 99);
        }
    }
    assert_eq!(world.show("v").status.slots_filling, 2);
    world.fill("v", lease.token);
    assert_eq!(world.show("v").status.health, VolumeHealth::Whole);
}

#[test]
fn a_donor_that_its_writer_cannot_reach_gets_nothing() {
    let (mut world, lease) = world(&[4, 4, 4], "mirror:2", E);
    let holders: Vec<u64> = (1..=3).filter(|id| held_by(&lease.map, *id) > 0).collect();
    let other = (1..=3).find(|id| !holders.contains(id)).expect("a third");
    let renew = |lost| cheetah_core::api::Renew {
        epoch: 99,
        place: String::new(),
        lost,
        report: Box::default(),
        guests: Vec::new(),
    };
    let lost = vec![(DonorId(other), "refused".to_owned())];
    world.send(Call::Renew { name: "v".into(), token: lease.token, renew: renew(lost) });
    world.exclude("v", lease.token, &[holders[0]]);
    assert_eq!(world.show("v").status.slots_filling, 0);
    world.send(Call::Renew { name: "v".into(), token: lease.token, renew: renew(Vec::new()) });
    assert_eq!(filling(&world.show("v").map)[0].placement.donor, DonorId(other));
}

#[test]
fn a_second_failure_during_repair_starts_it_anew() {
    let (mut world, lease) = world(&[4; 6], "parity:2+2", 2 * E);
    let out: Vec<u64> = (1..=6).filter(|id| held_by(&lease.map, *id) > 0).collect();
    world.exclude("v", lease.token, &[out[0]]);
    let first = filling(&world.show("v").map)[0];
    world.exclude("v", lease.token, &[first.placement.donor.0]);
    let second = filling(&world.show("v").map)[0];
    assert_ne!(first.placement.donor, second.placement.donor);
    let late = Amend { epoch: world.show("v").map.epoch, filled: vec![first], ..Amend::default() };
    let map = world.amend("v", lease.token, late).expect("answered");
    assert_eq!(map.groups[0].slots[first.slot as usize].held, None, "what was given up is not believed");
    world.settle();
    world.fill("v", lease.token);
    assert_eq!(world.show("v").status.health, VolumeHealth::Whole);
}

#[test]
fn only_what_was_asked_for_counts_as_filled() {
    let (mut world, lease) = world(&[4; 4], "mirror:2", E);
    let wrong = Placement { donor: DonorId(1), extent: 3 };
    for (group, slot) in [(0, 0), (0, 7), (9, 0)] {
        let filled = vec![Filled { group, slot, placement: wrong }];
        let amend = Amend { epoch: lease.map.epoch, filled, ..Amend::default() };
        let map = world.amend("v", lease.token, amend).expect("answered");
        assert_eq!(map, lease.map);
    }
}

#[test]
fn what_a_writer_said_of_an_older_map_fills_nothing() {
    let (mut world, lease) = world(&[4; 5], "mirror:2", 2 * E);
    let out = (1..=5).find(|id| held_by(&lease.map, *id) > 0).expect("somebody");
    world.exclude("v", lease.token, &[out]);
    world.settle();
    let before = world.show("v").map;
    let filled = filling(&before);
    // It takes as long to arrive as it likes, and may come twice.
    let late = Amend { epoch: before.epoch - 1, filled, ..Amend::default() };
    let map = world.amend("v", lease.token, late).expect("answered");
    assert_eq!(map, before);
}

#[test]
fn what_is_filled_counts_while_another_donor_has_not_confirmed_unless_the_writer_has_a_newer_map() {
    for newer in [false, true] {
        let (mut world, lease) = world(&[4; 6], "parity:2+2", 2 * E);
        let out: Vec<u64> = (1..=6).filter(|id| held_by(&lease.map, *id) > 0).collect();
        world.exclude("v", lease.token, &[out[0]]);
        world.settle();
        let filled = filling(&world.show("v").map);
        // Who is given the second slot has not heard of it, and does not.
        let before = world.exclude("v", lease.token, &[out[1]]);
        let claim = |epoch| Amend { epoch, filled: filled.clone(), ..Amend::default() };
        let without = world.amend("v", lease.token, claim(before.epoch)).expect("answered");
        assert_eq!(filling(&without), filled, "the second slot was given away after the map that this names");
        if newer {
            world.settle();
            let call = world.renew("v", lease.token, without.epoch);
            assert!(world.answer(call).is_some(), "all have confirmed");
        }
        let map = world.amend("v", lease.token, claim(without.epoch)).expect("answered");
        let Filled { group, slot, placement } = filled[0];
        let held = map.groups[group as usize].slots[slot as usize].held;
        assert_eq!(held, Some(placement).filter(|_| !newer));
    }
}

#[test]
fn a_large_volume_is_rebuilt_in_parts() {
    let groups = VOLUME_FILLINGS_MAX as u64 + 40;
    let (mut world, lease) = world(&[groups as u32; 3], "mirror:2", groups * EXTENT_BYTES);
    for extents in [groups as u32; 2] {
        let id = 4 + world.donors.len() as u64;
        world.join(id, extents).expect("joins");
    }
    let out = (1..=3).max_by_key(|id| held_by(&lease.map, *id)).expect("three");
    let other = (1..=3).filter(|id| *id != out).max_by_key(|id| held_by(&lease.map, *id)).expect("three");
    world.donors.remove(&DonorId(out));
    world.exclude("v", lease.token, &[out]);
    world.settle();
    world.fill("v", lease.token);
    world.donors.remove(&DonorId(other));
    world.exclude("v", lease.token, &[other]);
    let mut rounds = 0;
    while world.show("v").status.slots_missing > 0 {
        assert!(world.show("v").status.slots_filling as usize <= VOLUME_FILLINGS_MAX);
        world.settle();
        world.fill("v", lease.token);
        rounds += 1;
        assert!(rounds < 9, "it ends");
    }
}

#[test]
fn a_silent_donor_is_left_alone_at_rest_and_one_that_left_is_not() {
    let mut world = World::with_donors(&[4; 4]);
    let map = world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created").map;
    let holders: Vec<u64> = (1..=4).filter(|id| held_by(&map, *id) > 0).collect();
    world.silence(holders[0]);
    assert_eq!(world.show("v").map, map, "its data is good when it comes back");
    world.leave(&format!("d{}", holders[0]), false).expect("what it held is on the other");
    let map = world.show("v").map;
    assert_eq!((held_by(&map, holders[0]), filling(&map).len()), (0, 1));
    assert!(world.status().donors.iter().all(|donor| donor.donor != DonorId(holders[0])));
}

#[test]
fn another_host_is_chosen_where_there_is_one() {
    let mut world = World::new();
    for (id, host, extents) in [(1, "a", 2), (2, "b", 2), (3, "a", 9), (4, "c", 1)] {
        let mut join = joining(id, extents);
        join.host = host.into();
        if id <= 2 {
            world.ask(Call::Join(join)).expect("joins");
            world.donors.insert(DonorId(id), Default::default());
            continue;
        }
        if id == 3 {
            world.settle();
            world.create("v", Size::Bytes(2 * E), Some("mirror:2")).expect("created");
        }
        world.ask(Call::Join(join)).expect("joins");
        world.donors.insert(DonorId(id), Default::default());
    }
    world.settle();
    let lease = world.attach("v", false).expect("attached");
    world.exclude("v", lease.token, &[2]);
    let donors: Vec<u64> = filling(&world.show("v").map).iter().map(|at| at.placement.donor.0).collect();
    assert_eq!(donors, [4, 3], "the first on a host of its own, the second where there is room");
}

#[test]
fn after_a_restart_nothing_is_planned_before_the_donors_are_heard() {
    let (mut world, lease) = world(&[4, 4, 4], "mirror:2", 2 * E);
    let out = (1..=3).find(|id| held_by(&lease.map, *id) > 0).expect("somebody");
    world.donors.remove(&DonorId(out));
    world.exclude("v", lease.token, &[out]);
    let before = world.show("v").map;
    assert!(!filling(&before).is_empty());
    world.restart();
    let kept = world.donors.keys().copied().collect::<Vec<_>>();
    world.sync(kept[0]);
    // Before any other is heard, as asking otherwise brings about.
    let call = world.send(Call::Pool);
    let Some(Ok(Answer::Pool(status))) = world.answer(call) else { panic!("a status") };
    let heard = status.donors.iter().filter(|donor| donor.heard).map(|donor| donor.donor);
    assert_eq!(heard.collect::<Vec<_>>(), kept[..1], "the others are not said to be well");
    assert_eq!(world.show("v").map, before, "what was planned stays planned");
    world.join(9, 9).expect("joins");
    assert_eq!(world.show("v").map, before);
    world.step(Event::Wake);
    world.settle();
    world.fill("v", lease.token);
    world.settle();
    assert_eq!(world.show("v").status.slots_missing, 0);
}
