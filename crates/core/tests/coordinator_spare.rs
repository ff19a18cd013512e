//! Hosts that go: what a volume can do without, what can be rebuilt then, and groups that lie on too few of
//! them.

use crate::pool::{E, World, filling, held_by, joining};
use cheetah_core::api::{Answer, AtStake, Crowd, Join, Leaving, Refusal, Size, VolumeDetail, VolumeHealth};
use cheetah_core::map::{DonorId, Group};
use std::collections::{BTreeMap, BTreeSet};

/// A pool of donors 1, 2, ... on these hosts, of so many extents each.
fn on_hosts(donors: &[(&str, u32)]) -> World {
    let mut world = World::new();
    for (id, (host, extents)) in (1..).zip(donors) {
        join_on(&mut world, id, host, *extents);
    }
    world
}

fn join_on(world: &mut World, id: u64, host: &str, extents: u32) {
    let join = Join { host: host.into(), machine: format!("boot of {host}"), ..joining(id, extents) };
    world.join_as(join).expect("joins");
}

/// The hosts that hold slots of the group.
fn hosts_of(world: &mut World, group: &Group) -> BTreeSet<String> {
    let donors = world.status().donors;
    let hosts: BTreeMap<DonorId, String> =
        donors.into_iter().map(|donor| (donor.donor, donor.host)).collect();
    group.slots.iter().filter_map(|slot| hosts.get(&slot.held?.donor).cloned()).collect()
}

fn condition(detail: &VolumeDetail) -> (VolumeHealth, Option<u32>, Option<Crowd>) {
    let status = &detail.status;
    (status.health, status.may_lose_hosts, status.crowd.clone())
}

/// How many slots of one host could not be rebuilt on others, at worst.
fn homeless(detail: &VolumeDetail) -> Option<u64> {
    detail.rehearsal.as_ref().map(|rehearsal| rehearsal.slots_homeless)
}

fn at_stake(answer: Result<Answer, Refusal>) -> Vec<AtStake> {
    match answer.expect("there is room") {
        Answer::Leaving(Leaving { at_stake, .. }) => at_stake,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_of_a_group_on_one_host_are_said_and_moved_apart_when_a_host_joins() {
    let mut world = on_hosts(&[("a", 8), ("a", 8), ("b", 8)]);
    let crowd = Crowd { host: "a".into(), slots: 2 };
    let detail = world.create("v", Size::Bytes(6 * E), Some("parity:2+1")).expect("created");
    assert_eq!(condition(&detail), (VolumeHealth::Crowded, Some(0), Some(crowd)));
    let said = detail.status.repair.expect("what would help");
    assert!(said.contains("when another host lends memory"), "{said}");
    let lease = world.attach("v", false).expect("attached");
    join_on(&mut world, 4, "b", 8);
    assert_eq!(filling(&world.show("v").map), [], "it is no other host");
    join_on(&mut world, 5, "c", 2);
    assert_eq!(filling(&world.show("v").map).len(), 2, "one of each group, as far as there is room");
    world.fill("v", lease.token);
    assert_eq!(world.show("v").status.health, VolumeHealth::Crowded, "a group is left");
    join_on(&mut world, 6, "d", 8);
    world.fill("v", lease.token);
    let detail = world.show("v");
    assert_eq!(condition(&detail), (VolumeHealth::Whole, Some(1), None));
    for group in &detail.map.groups {
        assert_eq!(hosts_of(&mut world, group).len(), 3, "{group:?}");
    }
    world.settle();
    assert_eq!(world.show("v").map, detail.map, "and then nothing moves any more");
}

#[test]
fn what_is_missing_is_rebuilt_before_anything_is_moved_apart() {
    let mut world = on_hosts(&[("a", 8), ("a", 8), ("b", 8)]);
    world.create("v", Size::Bytes(2 * E), Some("parity:2+1")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    world.donors.remove(&DonorId(3));
    world.exclude("v", lease.token, &[3]);
    join_on(&mut world, 4, "c", 8);
    assert_eq!(world.show("v").status.slots_filling, 1, "the one that is missing");
    world.fill("v", lease.token);
    assert_eq!(world.show("v").status.health, VolumeHealth::Crowded);
    join_on(&mut world, 5, "d", 8);
    world.fill("v", lease.token);
    assert_eq!(condition(&world.show("v")), (VolumeHealth::Whole, Some(1), None));
}

#[test]
fn a_pool_of_four_rebuilds_what_one_held_and_may_lose_another_then() {
    let mut world = World::with_donors(&[8; 4]);
    let detail = world.create("v", Size::Bytes(8 * E), None).expect("created");
    assert_eq!(detail.status.redundancy.to_string(), "parity:2+1");
    assert_eq!((condition(&detail), homeless(&detail)), ((VolumeHealth::Whole, Some(1), None), Some(0)));
    let lease = world.attach("v", false).expect("attached");
    world.donors.remove(&DonorId(2));
    world.exclude("v", lease.token, &[2]);
    assert_eq!(condition(&world.show("v")).1, Some(0), "until it is rebuilt");
    world.pass(6 * cheetah_core::limits::SECOND_NS);
    world.fill("v", lease.token);
    let detail = world.show("v");
    assert_eq!(condition(&detail), (VolumeHealth::Whole, Some(1), None));
    assert_eq!(homeless(&detail), Some(detail.rehearsal.expect("looked at").slots), "no place for another's");
}

#[test]
fn any_donor_of_a_default_pool_may_leave() {
    for hosts in 4..12 {
        for leaver in [1, hosts] {
            let mut world = World::with_donors(&vec![12; hosts as usize]);
            let detail = world.create("v", Size::All, None).expect("created");
            assert_eq!(homeless(&detail), Some(0), "of {hosts} hosts any may go");
            let free = world.status().bytes_free / E;
            assert!((12..12 + hosts * 3).contains(&free), "{free} left free by {hosts} hosts of 12");
            let lease = world.attach("v", false).expect("attached");
            let stakes = at_stake(world.leave(&format!("d{leaver}"), false));
            assert!(stakes.iter().all(|stake| stake.slots_crowded == 0), "{stakes:?}");
            while held_by(&world.show("v").map, leaver) > 0 {
                world.fill("v", lease.token);
                world.settle();
            }
            assert_eq!(condition(&world.show("v")), (VolumeHealth::Whole, Some(1), None));
        }
    }
}

#[test]
fn who_takes_the_room_of_a_rebuild_is_told_and_so_is_who_counted_on_it() {
    let mut world = World::with_donors(&[16; 4]);
    world.create("v", Size::All, None).expect("created");
    let detail = world.create("w", Size::Bytes(8 * E), Some("mirror:2")).expect("asked for");
    assert!(homeless(&detail).is_some_and(|homeless| homeless > 0), "{:?}", detail.rehearsal);
    let before = world.show("v");
    assert!(homeless(&before).is_some_and(|homeless| homeless > 0), "{:?}", before.rehearsal);
    world.delete("w").expect("deleted");
    assert_eq!(homeless(&world.show("v")), Some(0));
    let plain = world.create("x", Size::Bytes(E), Some("linear")).expect("created");
    assert_eq!((condition(&plain), homeless(&plain)), ((VolumeHealth::Whole, Some(0), None), None));
}

#[test]
fn a_drain_that_crowds_a_host_says_so_and_is_mended_when_one_joins() {
    let mut world = on_hosts(&[("a", 4), ("b", 8), ("b", 8), ("c", 4)]);
    let detail = world.create("v", Size::Bytes(8 * E), Some("parity:2+1")).expect("created");
    assert_eq!(condition(&detail), (VolumeHealth::Whole, Some(1), None));
    assert_eq!(homeless(&detail), Some(4), "there is no fourth host");
    let lease = world.attach("v", false).expect("attached");
    let stake = AtStake { volume: "v".into(), bytes: 0, slots_crowded: 4 };
    assert_eq!(at_stake(world.leave("d1", false)), vec![stake.clone()]);
    assert_eq!(world.hear(1).at_stake, Some(vec![stake]), "its owner hears it, too");
    world.fill("v", lease.token);
    let crowd = Crowd { host: "b".into(), slots: 2 };
    assert_eq!(condition(&world.show("v")), (VolumeHealth::Crowded, Some(0), Some(crowd)));
    join_on(&mut world, 5, "d", 8);
    world.fill("v", lease.token);
    assert_eq!(condition(&world.show("v")), (VolumeHealth::Whole, Some(1), None));
}

#[test]
fn what_leaves_a_donor_may_go_to_another_of_its_host() {
    let mut world = on_hosts(&[("a", 2), ("b", 2)]);
    world.create("v", Size::Bytes(2 * E), Some("mirror:2")).expect("created");
    join_on(&mut world, 3, "a", 4);
    join_on(&mut world, 4, "b", 9);
    let lease = world.attach("v", false).expect("attached");
    world.leave("d1", false).expect("there is room");
    world.fill("v", lease.token);
    assert_eq!(held_by(&world.show("v").map, 3), 2, "though another has more room");
    assert_eq!(condition(&world.show("v")), (VolumeHealth::Whole, Some(1), None));
}

#[test]
fn at_rest_a_donor_is_told_to_move_apart_what_lies_together() {
    let mut world = on_hosts(&[("a", 8), ("a", 8), ("b", 8)]);
    world.create("v", Size::Bytes(2 * E), Some("parity:2+1")).expect("created");
    let tends = |world: &World| {
        let duties = world.donors.values().flat_map(|duties| &duties.volumes);
        duties.filter(|duty| duty.tend).count()
    };
    assert_eq!(tends(&world), 0);
    join_on(&mut world, 4, "c", 8);
    assert_eq!(tends(&world), 1);
}
