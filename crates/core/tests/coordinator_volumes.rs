//! Volumes: create, grow, follow and delete, and what is said when they cannot.

use crate::pool::{E, World, assert_refused, creating};
use cheetah_core::api::{Call, RefusalCode, Size};
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::DonorId;

#[test]
fn a_volume_has_its_exact_size_and_its_donors_know_its_extents() {
    let mut world = World::with_donors(&[4, 4]);
    let detail = world.create("case", Size::Bytes(3 * E - 5), Some("linear")).expect("created");
    assert_eq!((detail.map.size, detail.map.epoch, detail.map.groups.len()), (3 * E - 5, 1, 3));
    assert_eq!(world.extents_of("case"), 3);
    assert_eq!(world.status().bytes_free, 5 * E);
    assert_eq!(world.show("case"), detail);
}

#[test]
fn linear_fills_donors_in_the_order_they_joined() {
    let mut world = World::with_donors(&[2, 4]);
    let map = world.create("v", Size::Bytes(3 * E), Some("linear")).expect("created").map;
    let donors: Vec<u64> =
        map.groups.iter().map(|group| group.slots[0].held.expect("whole").donor.0).collect();
    assert_eq!(donors, [1, 1, 2]);
}

#[test]
fn a_stripe_lies_on_as_many_donors_and_all_takes_whole_groups() {
    let mut world = World::with_donors(&[4, 4, 5]);
    let detail = world.create("v", Size::All, Some("stripe:3")).expect("created");
    assert_eq!(detail.map.size, 12 * E);
    assert_eq!(detail.map.check(), Ok(()));
    assert_eq!(world.status().bytes_free, E);
}

#[test]
fn bad_requests_are_refused_by_name_and_change_nothing() {
    let mut world = World::with_donors(&[4, 2]);
    world.create("taken", Size::Bytes(E), Some("linear")).expect("created");
    let before = world.status();
    let invalid = RefusalCode::Invalid;
    assert_refused(world.create("a/b", Size::Bytes(E), None), invalid, &["'a/b'", "letters"]);
    assert_refused(world.create("v", Size::Bytes(0), None), invalid, &["zero"]);
    assert_refused(world.create("v", Size::Bytes(1 << 63), None), invalid, &["2^63"]);
    assert_refused(
        world.create("taken", Size::Bytes(E), None),
        RefusalCode::Conflict,
        &["'taken'", "delete"],
    );
    let mut unit = creating("v", Size::Bytes(E), None);
    unit.unit = Some(5000);
    assert_refused(world.ask(Call::Create(unit)), invalid, &["5000", "power of two"]);
    let full = world.create("v", Size::Bytes(6 * E), Some("linear"));
    assert_refused(
        full,
        RefusalCode::PoolFull,
        &["needs 384 MiB", "320 MiB is free", "d1 192 MiB", "d2 128 MiB"],
    );
    let full = world.create("v", Size::Bytes((1 << 63) - 1), Some("stripe:2"));
    assert_refused(full, RefusalCode::PoolFull, &["stripe:2 can use 256 MiB"]);
    let wide = world.create("v", Size::Bytes(E), Some("stripe:5"));
    assert_refused(wide, RefusalCode::PoolFull, &["5 donors", "has 2", "3 more"]);
    let none = World::new().create("v", Size::All, None);
    assert_refused(none, RefusalCode::PoolFull, &["no donors", "cheetah donate"]);
    assert_refused(world.delete("nope"), RefusalCode::NotFound, &["'nope'"]);
    world.now += SECOND_NS / 10;
    assert_eq!(world.status().volumes, before.volumes);
    assert_eq!(world.status().bytes_free, before.bytes_free);
}

#[test]
fn without_a_word_a_volume_is_protected_or_refused() {
    let mut world = World::with_donors(&[16, 4, 4]);
    let refused = world.create("v", Size::Bytes(16 * E), None);
    let said =
        ["as parity:2+1 it needs 1.50 GiB", "1.50 GiB is free", "512 MiB fit as", "--redundancy linear"];
    assert_refused(refused, RefusalCode::PoolFull, &said);
    let fits = world.create("v", Size::Bytes(8 * E), None).expect("created");
    assert_eq!(fits.status.redundancy.to_string(), "parity:2+1");
    world.create("w", Size::Bytes(12 * E), Some("linear")).expect("as was asked");
}

#[test]
fn fewer_donors_are_offered_what_survives_as_many() {
    let mut world = World::with_donors(&[4; 5]);
    for (asked, offered) in [("parity:5+2", "parity:3+2"), ("mirror:6", "mirror:5"), ("stripe:9", "stripe:5")]
    {
        let refused = world.create("v", Size::Bytes(E), Some(asked));
        assert_refused(refused, RefusalCode::PoolFull, &[offered, "the pool has 5"]);
    }
}

#[test]
fn a_volume_grows_exactly_and_never_shrinks() {
    let mut world = World::with_donors(&[4, 4]);
    let before = world.create("v", Size::Bytes(E / 2), Some("stripe:2")).expect("created").map;
    let inside = world.grow("v", Size::Bytes(E)).expect("grown inside its group").map;
    assert_eq!((inside.size, inside.epoch), (E, before.epoch + 1));
    assert_eq!(inside.groups, before.groups);
    let grown = world.grow("v", Size::Bytes(5 * E + 1)).expect("grown").map;
    assert_eq!((grown.size, grown.groups.len(), &grown.groups[..1]), (5 * E + 1, 3, &before.groups[..]));
    assert_refused(world.grow("v", Size::Bytes(E)), RefusalCode::Invalid, &["shrink"]);
    assert_refused(world.grow("v", Size::Bytes(5 * E + 1)), RefusalCode::Invalid, &["shrink"]);
    assert_refused(world.grow("v", Size::Bytes(9 * E)), RefusalCode::PoolFull, &["free"]);
    assert_eq!(world.grow("v", Size::All).expect("grown").map.size, 8 * E);
    assert_refused(world.grow("v", Size::All), RefusalCode::PoolFull, &["0 B is free"]);
}

#[test]
fn a_volume_that_follows_grows_when_a_donor_joins() {
    let mut world = World::with_donors(&[2]);
    let mut create = creating("v", Size::All, None);
    create.follow = true;
    world.ask(Call::Create(create)).expect("created");
    assert_eq!(
        world.show("v").status.redundancy.to_string(),
        "linear",
        "so that one donor is enough to grow"
    );
    world.join(2, 3).expect("joins");
    assert_eq!(world.show("v").map.size, 5 * E);
    assert_eq!(world.extents_of("v"), 5);
}

#[test]
fn a_stripe_that_follows_waits_for_enough_donors() {
    let mut world = World::with_donors(&[2, 2]);
    let mut create = creating("v", Size::All, Some("stripe:2"));
    create.follow = true;
    world.ask(Call::Create(create)).expect("created");
    world.join(3, 2).expect("joins");
    assert_eq!(world.show("v").map.size, 4 * E);
    world.join(4, 1).expect("joins");
    assert_eq!(world.show("v").map.size, 6 * E);
}

#[test]
fn deleting_frees_the_extents_and_the_donors_hear_of_it() {
    let mut world = World::with_donors(&[2, 2]);
    world.create("v", Size::All, Some("stripe:2")).expect("created");
    world.delete("v").expect("deleted");
    world.settle();
    assert_eq!((world.extents_of("v"), world.status().bytes_free), (0, 4 * E));
    world.create("v", Size::All, None).expect("the name and the room are free again");
}

#[test]
fn created_is_said_only_when_the_donors_know() {
    let mut world = World::with_donors(&[2, 2]);
    let call = world.send(Call::Create(creating("v", Size::All, Some("stripe:2"))));
    assert_eq!(world.answer(call), None);
    world.sync(DonorId(1));
    world.sync(DonorId(1));
    world.sync(DonorId(2));
    assert_eq!(world.answer(call), None, "the second has heard, but not confirmed");
    world.sync(DonorId(2));
    assert!(world.answer(call).is_some_and(|answer| answer.is_ok()));
}

#[test]
fn a_full_pool_is_measured_by_what_would_be_chosen() {
    let mut world = World::with_donors(&[2; 4]);
    world.create("all", Size::Bytes(8 * E), Some("linear")).expect("created");
    let refused = world.create("more", Size::Bytes(10 << 20), None);
    assert_refused(refused, RefusalCode::PoolFull, &["it needs 192 MiB more as parity:2+1", "0 B is free"]);
}
