//! What a writer finds out: donors that missed a write are out of the map at once, and bad data is listed.

use crate::pool::{E, World, assert_refused, filling, held_by};
use cheetah_core::api::{Amend, Answer, Call, RefusalCode, Renewed, Size, VolumeHealth};
use cheetah_core::limits::{LEASE_NS, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId};

fn world(donors: &[u32], redundancy: &str, size: u64) -> (World, cheetah_core::api::Attached) {
    let mut world = World::with_donors(donors);
    world.create("v", Size::Bytes(size), Some(redundancy)).expect("created");
    let lease = world.attach("v", false).expect("attached");
    (world, lease)
}

#[test]
fn a_donor_that_missed_a_write_is_out_before_anyone_confirms() {
    let (mut world, lease) = world(&[4, 4, 4], "parity:2+1", 4 * E);
    world.donors.remove(&DonorId(2));
    let map = world.exclude("v", lease.token, &[2]);
    assert_eq!((map.epoch, held_by(&map, 2), map.routes.len()), (lease.map.epoch + 1, 0, 2));
    let stored = world.show("v");
    assert_eq!(stored.map, map, "nobody else has room in these groups");
    assert_eq!((stored.status.health, stored.status.slots_missing), (VolumeHealth::Degraded, 2));
    assert_eq!((stored.status.slots, stored.status.bytes_lost), (6, 0));
    world.restart();
    assert_eq!(world.show("v").map, map, "the record came first");
}

#[test]
fn the_one_that_was_excluded_hears_that_it_holds_nothing() {
    let (mut world, lease) = world(&[4, 4, 4], "mirror:2", 2 * E);
    let held: Vec<u64> = (1..=3).filter(|id| held_by(&lease.map, *id) > 0).collect();
    let out = held[0];
    world.exclude("v", lease.token, &[out]);
    world.settle();
    assert_eq!(world.tokens_of(out), [].into());
    assert!(world.donors[&DonorId(out)].volumes.is_empty());
    assert_eq!(world.status().donors[out as usize - 1].bytes_held, 0);
}

#[test]
fn excluding_twice_is_answered_with_the_map_of_now() {
    let (mut world, lease) = world(&[4, 4, 4], "parity:2+1", E);
    let first = world.exclude("v", lease.token, &[1]);
    let again = world.exclude("v", lease.token, &[1, 9]);
    assert_eq!(first, again);
}

#[test]
fn a_group_keeps_as_many_holders_as_it_needs() {
    let (mut world, lease) = world(&[4, 4, 4, 4], "parity:2+2", 2 * E);
    assert_eq!(world.exclude("v", lease.token, &[1, 2, 3]), lease.map, "one alone cannot be read from");
    let map = world.exclude("v", lease.token, &[1, 2]);
    assert_eq!((held_by(&map, 1), held_by(&map, 2), held_by(&map, 3)), (0, 0, 1));
    assert_eq!(world.exclude("v", lease.token, &[3]), map);
    let (mut world, lease) = self::world(&[4, 4], "stripe:2", 2 * E);
    assert_eq!(world.exclude("v", lease.token, &[1]), lease.map, "there is no redundancy");
}

#[test]
fn only_the_writer_may_and_only_while_it_is() {
    let (mut world, lease) = world(&[4, 4, 4], "mirror:2", E);
    let amend = || Amend { exclude: vec![(DonorId(1), "gone".into())], ..Amend::default() };
    let reader = world.attach("v", true).expect("attached");
    assert_refused(world.amend("v", reader.token, amend()), RefusalCode::Gone, &["for reading"]);
    assert_refused(world.amend("w", lease.token, amend()), RefusalCode::Gone, &["not known"]);
    world.pass(LEASE_NS + SECOND_NS);
    assert_refused(world.amend("v", lease.token, amend()), RefusalCode::Gone, &["attach the volume again"]);
    assert_eq!(world.show("v").status.slots_missing, 0);
}

#[test]
fn the_answer_has_no_filling_that_its_donor_has_not_heard_of() {
    let (mut world, lease) = world(&[4; 5], "parity:2+1", 4 * E);
    let out: Vec<u64> = (1..=5).filter(|id| held_by(&lease.map, *id) > 0).collect();
    let first = world.exclude("v", lease.token, &[out[0]]);
    assert!(filling(&first).is_empty() && !first.routes.contains_key(&DonorId(out[0])));
    let recorded = world.peek("v").map;
    assert!(recorded.epoch > first.epoch && !filling(&recorded).is_empty());
    // A second amendment before the donors confirmed: still none, and an epoch of its own.
    let second = world.exclude("v", lease.token, &[out[0]]);
    assert!(filling(&second).is_empty() && second.epoch > recorded.epoch, "{second:?}");
    let renew = world.renew("v", lease.token, second.epoch);
    assert_eq!(world.answer(renew), None);
    world.settle();
    let Some(Ok(Answer::Renewed(Renewed { map: Some(map), .. }))) = world.answer(renew) else {
        panic!("a map")
    };
    assert_eq!((map.epoch > second.epoch, filling(&map)), (true, filling(&recorded)));
    let third = world.exclude("v", lease.token, &[]);
    assert_eq!(third, map, "what has been heard of stays");
}

#[test]
fn bad_ranges_are_lost_until_they_are_written_again() {
    let (mut world, lease) = world(&[4, 4, 4], "parity:2+1", 2 * E);
    let range = |slot, from, to| BadRange { group: 0, slot, from, to };
    let bad = vec![range(1, 8192, 12288), range(0, 0, 4096), range(0, 4096, 8192), range(2, 0, 1)];
    let map = world.amend("v", lease.token, Amend { bad, ..Amend::default() }).expect("amended");
    assert_eq!(map.bad, [range(0, 0, 8192), range(1, 8192, 12288)], "joined; parity holds no data");
    assert_eq!(map.epoch, lease.map.epoch + 1);
    let detail = world.show("v");
    assert_eq!((detail.status.health, detail.status.bytes_lost), (VolumeHealth::Lost, 12288));
    let at: Vec<(u64, u64)> = detail.lost.iter().map(|lost| (lost.offset, lost.len)).collect();
    assert_eq!(at, [(0, 8192), (65536 + 8192, 4096)]);
    assert!(detail.lost.iter().all(|lost| lost.donor.is_none()));
    world.restart();
    world.settle();
    let rewritten = vec![range(0, 4096, 8192), range(1, 0, 65536)];
    let map = world.amend("v", lease.token, Amend { rewritten, ..Amend::default() }).expect("amended");
    assert_eq!(map.bad, [range(0, 0, 4096)]);
    let call = Call::Amend { name: "v".into(), token: lease.token, amend: Amend::default() };
    assert!(matches!(world.ask(call), Ok(Answer::Renewed(Renewed { map: Some(same), .. })) if same == map));
}

#[test]
fn a_volume_is_fresh_until_it_had_a_writer() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), None).expect("created");
    assert!(world.attach("v", true).expect("attached").fresh, "a reader changes nothing");
    world.restart();
    world.settle();
    let writer = world.attach("v", false).expect("attached");
    assert!(writer.fresh);
    world.detach("v", writer.token).expect("detached");
    assert!(!world.attach("v", true).expect("attached").fresh);
    world.restart();
    world.settle();
    assert!(!world.attach("v", false).expect("attached").fresh);
}
