//! Memory and disks in one pool: what is on the one is placed, rebuilt and waited for as if the other were
//! not there.

use crate::pool::{E, World, assert_refused, joining, refused};
use cheetah_core::api::{Call, Create, Join, RefusalCode, Size, VolumeHealth};
use cheetah_core::content::{Source, ToLoad};
use cheetah_core::limits::{SECOND_NS, TEND_SILENCE_NS};
use cheetah_core::map::{Medium, Redundancy, VolumeMap};

/// Donors 1 and so on lend memory, those from 11 on disks.
fn world(memory: &[u32], disks: &[u32]) -> World {
    let mut world = World::with_donors(memory);
    for (id, extents) in (11..).zip(disks) {
        world.join_as(Join { medium: Medium::Disk, ..joining(id, *extents) }).expect("joins");
    }
    world
}

fn create(world: &mut World, name: &str, on: Medium, redundancy: Redundancy) -> VolumeMap {
    let redundancy = Some(redundancy);
    let create = Create { redundancy, on, ..Create::new(name, Size::Bytes(E)) };
    world.ask(Call::Create(create)).expect("there is room");
    world.show(name).map
}

fn all_on(map: &VolumeMap, on: Medium) -> bool {
    map.donors().all(|donor| (donor.0 > 10) == (on == Medium::Disk))
}

const MIRROR: Redundancy = Redundancy { data: 1, parity: 1 };

#[test]
fn a_volume_lies_on_what_it_was_made_for_and_on_nothing_else() {
    let mut world = world(&[4, 4, 4], &[4, 4]);
    for on in [Medium::Memory, Medium::Disk] {
        let map = create(&mut world, &on.to_string(), on, MIRROR);
        assert!(map.medium == on && all_on(&map, on), "{map:?}");
    }
    let wider =
        Create { redundancy: "mirror:3".parse().ok(), on: Medium::Disk, ..Create::new("v", Size::Bytes(E)) };
    assert_refused(
        world.ask(Call::Create(wider)),
        RefusalCode::PoolFull,
        &["the pool has 2: 1 more must join", "donate --disk PATH:SIZE"],
    );
    world.grow("disk", Size::Bytes(3 * E)).expect("there is room");
    assert!(all_on(&world.show("disk").map, Medium::Disk));
    // Its donors are two, whoever else is there.
    refused(world.leave("d11", false), &["mirror:2 needs 2 donors, and 1 would stay", "donate --disk"]);
}

#[test]
fn a_lost_fragment_gets_a_home_of_its_kind() {
    let mut world = world(&[4, 4, 4], &[4, 4]);
    create(&mut world, "v", Medium::Disk, MIRROR);
    let lease = world.attach("v", false).expect("attached");
    world.silence(11);
    world.exclude("v", lease.token, &[11]);
    let detail = world.show("v");
    assert_eq!((detail.status.health, detail.status.slots_filling), (VolumeHealth::Degraded, 0));
    let repair = detail.status.repair.expect("what it waits for");
    assert!(repair.contains("mirror:2 needs 2 donors and 1 is there"), "{repair}");
    world.join_as(Join { medium: Medium::Disk, ..joining(13, 4) }).expect("joins");
    let map = world.fill("v", lease.token);
    assert!(all_on(&map, Medium::Disk), "{map:?}");
}

#[test]
fn a_disk_whose_donor_has_ended_keeps_what_it_holds() {
    for on in [Medium::Memory, Medium::Disk] {
        let mut world = world(&[4, 4], &[4, 4]);
        let map = create(&mut world, "v", on, MIRROR);
        let donor = map.donors().next().expect("a donor");
        world.kill(donor.0);
        let holds = world.show("v").map.donors().any(|other| other == donor);
        assert_eq!(holds, on == Medium::Disk, "{on}");
    }
}

#[test]
fn room_on_disks_is_none_for_what_a_silent_donor_has_in_memory() {
    let mut world = world(&[2, 1], &[8]);
    let source = Source { name: "image".into(), size: 3 * E, identity: "inode 7".into(), checksummed: false };
    let load = Some(Box::new(ToLoad { source, by: "eve".into(), backed: true, memory: None }));
    let create = Create { load, ..Create::new("v", Size::Bytes(3 * E)) };
    world.ask(Call::Create(create)).expect("made, and all memory is taken");
    let silent = world.show("v").map.groups[0].slots[0].held.expect("a holder").donor;
    world.silence(silent.0);
    for _ in 0..2 * TEND_SILENCE_NS / SECOND_NS {
        world.pass(SECOND_NS);
    }
    assert!(world.show("v").map.donors().any(|donor| donor == silent), "nobody else can have it");
}
