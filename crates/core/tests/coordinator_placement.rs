//! Where volumes go by default and by wish: redundancy, hosts, and what is said when there are too few
//! donors.

use crate::pool::{E, World, assert_refused, creating, joining};
use cheetah_core::api::{Call, RefusalCode, Size, VolumeHealth};
use cheetah_core::map::{DonorId, Redundancy};
use std::collections::BTreeSet;

fn default_of(donors: &[u32]) -> String {
    let mut world = World::with_donors(donors);
    world.create("v", Size::Bytes(E), None).expect("created").status.redundancy.to_string()
}

#[test]
fn the_default_survives_the_loss_of_one_donor() {
    assert_eq!(default_of(&[4]), "linear");
    assert_eq!(default_of(&[4, 4]), "mirror:2");
    assert_eq!(default_of(&[4, 4, 4]), "parity:2+1");
    assert_eq!(default_of(&[4; 12]), "parity:8+1");
}

#[test]
fn a_group_lies_on_as_many_hosts_as_slots() {
    let mut world = World::new();
    for (id, host) in [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c")] {
        let mut join = joining(id, 4);
        join.host = host.into();
        world.ask(Call::Join(join)).expect("joins");
        world.donors.insert(DonorId(id), Default::default());
    }
    world.settle();
    let host = |donor: DonorId| ["a", "a", "b", "b", "c"][donor.0 as usize - 1];
    let map = world.create("v", Size::Bytes(8 * E), Some("parity:2+1")).expect("created").map;
    for group in &map.groups {
        let hosts: BTreeSet<&str> = group.placements().map(|place| host(place.donor)).collect();
        assert_eq!(hosts.len(), 3, "{group:?}");
    }
    let full = world.create("w", Size::Bytes(E), Some("parity:2+1"));
    assert_refused(full, RefusalCode::PoolFull, &["512 MiB is free", "parity:2+1 can use 0 B"]);
    world.create("w", Size::Bytes(E), Some("mirror:4")).expect("there are but three hosts");
}

#[test]
fn hosts_are_shared_evenly_when_they_are_too_few() {
    let mut world = World::new();
    for id in 1..=4 {
        let mut join = joining(id, 4);
        join.host = if id % 2 == 0 { "a".into() } else { "b".into() };
        world.ask(Call::Join(join)).expect("joins");
        world.donors.insert(DonorId(id), Default::default());
    }
    world.settle();
    let map = world.create("v", Size::All, Some("parity:3+1")).expect("allowed").map;
    assert_eq!((map.groups.len(), map.size), (4, 12 * E));
    let all_here = World::with_donors(&[1, 1, 1]).create("v", Size::Bytes(E), Some("mirror:3"));
    assert_eq!(all_here.expect("created").status.health, VolumeHealth::Whole);
}

#[test]
fn more_redundancy_than_donors_says_how_many_are_missing() {
    let mut world = World::with_donors(&[4, 4, 4]);
    for (redundancy, says) in [
        ("mirror:5", ["mirror:5 needs 5 donors", "has 3", "2 more"]),
        ("parity:4+2", ["parity:4+2 needs 6 donors", "has 3", "3 more"]),
        ("stripe:4", ["stripe:4 needs 4 donors", "1 more", "stripe:3"]),
    ] {
        assert_refused(world.create("v", Size::Bytes(E), Some(redundancy)), RefusalCode::PoolFull, &says);
    }
    for (data, parity) in [(0, 0), (1, 32), (2, 9), (40, 1), (0, 2)] {
        let mut create = creating("v", Size::Bytes(E), None);
        create.redundancy = Some(Redundancy { data, parity });
        assert_refused(world.ask(Call::Create(create)), RefusalCode::Invalid, &["'"]);
    }
    for (bad, says) in [("raid5", "parity:K+M"), ("mirror:33", "2 to 32"), ("parity:2+9", "1 to 4 parity")] {
        let error = bad.parse::<Redundancy>().expect_err("no such redundancy");
        let error = error.to_string();
        assert!(error.contains(says) && error.contains(bad), "{error}");
    }
}

#[test]
fn a_volume_grows_by_whole_groups_of_its_redundancy() {
    let mut world = World::with_donors(&[4, 4, 4]);
    world.create("v", Size::Bytes(3 * E), Some("parity:2+1")).expect("created");
    assert_eq!(world.status().bytes_free, 6 * E);
    assert_eq!(world.grow("v", Size::All).expect("grown").map.size, 8 * E);
    assert_eq!(world.status().bytes_free, 0);
}
