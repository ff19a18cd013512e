//! Volumes that nobody writes: one of their donors is told to move or to rebuild what is due, until a person
//! comes.

use crate::pool::{E, World, assert_refused, attaching, filling, held_by, joining};
use cheetah_core::api::{Answer, Attach, Attached, Call, RefusalCode, Renew, Size, VolumeReport};
use cheetah_core::content::{Fill, FillFrom, Source};
use cheetah_core::limits::{LEASE_RENEW_NS, SECOND_NS, TEND_SILENCE_NS};
use cheetah_core::map::{DonorId, LeaseToken};

/// The donors that are told to tend the volume.
fn tenders(world: &World, name: &str) -> Vec<u64> {
    let tends =
        |duties: &cheetah_core::api::Duties| duties.volumes.iter().any(|duty| duty.name == name && duty.tend);
    world.donors.iter().filter(|(_, duties)| tends(duties)).map(|(id, _)| id.0).collect()
}

fn attach_yielding(world: &mut World, name: &str) -> Attached {
    let Call::Attach { name, mut attach } = attaching(name, false) else { unreachable!() };
    attach.yields = true;
    match world.ask(Call::Attach { name, attach }) {
        Ok(Answer::Attached(attached)) => attached,
        other => panic!("{other:?}"),
    }
}

/// Somebody has a donor leave that holds a part of volume v, of four, without waiting for what it holds.
fn a_holder_leaves(world: &mut World) {
    let map = world.show("v").map;
    let out = (1..=4).find(|id| held_by(&map, *id) > 0).expect("a holder");
    world.leave(&format!("d{out}"), true).expect("forced");
    world.settle();
}

#[test]
fn what_a_leaving_donor_holds_of_a_volume_at_rest_is_moved_by_who_gets_it() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
    world.leave("d1", false).expect("there is room");
    world.settle();
    assert_eq!(tenders(&world, "v"), [2]);
    assert_eq!(world.hear(1).stuck, None, "somebody moves it");
    let lease = attach_yielding(&mut world, "v");
    assert_eq!(tenders(&world, "v"), [2], "it goes on");
    world.fill("v", lease.token);
    world.settle();
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
    assert!(world.donors[&DonorId(1)].dismissed);
}

#[test]
fn a_person_is_preferred_and_the_donor_is_refused_everywhere_before() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    world.leave("d1", false).expect("there is room");
    world.settle();
    let tending = attach_yielding(&mut world, "v");
    let Call::Attach { name, mut attach } = attaching("v", false) else { unreachable!() };
    let call = world.send(Call::Attach { name, attach: attach.clone() });
    assert_eq!(world.answer(call), None, "no donor has shut the other one out yet");
    world.settle();
    let Some(Ok(Answer::Attached(lease))) = world.answer(call) else { panic!("attached") };
    assert!(lease.map.epoch > tending.map.epoch);
    for id in [1, 2] {
        assert_eq!(world.tokens_of(id), [lease.token].into());
    }
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
    let late = world.renew("v", tending.token, tending.map.epoch);
    let late = world.answer(late).expect("at once");
    assert_refused(late, RefusalCode::Gone, &[]);
    attach.yields = true;
    let again = world.ask(Call::Attach { name: "v".into(), attach });
    assert_refused(again, RefusalCode::Conflict, &["eve@lab"]);
    world.detach("v", lease.token).expect("detached");
    world.settle();
    assert_eq!(tenders(&world, "v"), [2], "and goes on when the person is done");
    attach_yielding(&mut world, "v");
    world.delete("v").expect("one that yields is in nobody's way");
}

#[test]
fn a_call_that_is_refused_takes_nothing_from_who_tends() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    world.leave("d1", false).expect("there is room");
    world.settle();
    let reader = world.attach("v", true).expect("attached");
    let tending = attach_yielding(&mut world, "v");
    assert_refused(world.delete("v"), RefusalCode::Conflict, &["is attached by"]);
    let source = Source { name: "disk.dd".into(), size: E, identity: "1".into(), checksummed: false };
    let fill = Some(Fill { source, from: FillFrom::Fresh });
    let attach = Attach { alone: true, fill, ..Attach::new(false, "eve") };
    let call = Call::Attach { name: "v".into(), attach };
    assert_refused(world.ask(call), RefusalCode::Conflict, &["would change under who reads it"]);
    let renewed = world.renew("v", tending.token, tending.map.epoch);
    assert_eq!(world.answer(renewed), None, "it has its lease");
    world.detach("v", reader.token).expect("given back");
    world.delete("v").expect("who yields is in nobody's way");
    assert!(world.answer(renewed).is_some_and(|answer| answer.is_err()), "and is told to go");
}

#[test]
fn what_a_donor_took_with_it_is_rebuilt_and_a_silent_one_is_waited_for_a_while() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created");
    let map = world.show("v").map;
    let holders: Vec<u64> = (1..=4).filter(|id| held_by(&map, *id) > 0).collect();
    world.silence(holders[0]);
    world.settle();
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new(), "it may come back");
    let repair = |world: &mut World| world.show("v").status.repair;
    assert_eq!(repair(&mut world).as_deref(), Some("a donor rebuilds it in a moment"));
    world.pass(TEND_SILENCE_NS);
    assert_eq!(tenders(&world, "v"), [holders[1]]);
    let lease = attach_yielding(&mut world, "v");
    world.exclude("v", lease.token, &holders[..1]);
    world.settle();
    assert_eq!(filling(&world.show("v").map).len(), 1);
    world.fill("v", lease.token);
    world.settle();
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
    world.detach("v", lease.token).expect("detached");
    // One that left for good is not waited for.
    a_holder_leaves(&mut world);
    assert_eq!(tenders(&world, "v").len(), 1);
}

/// Two die one after the other: the one that rebuilt what the first had is the second, and had not given the
/// volume back.
#[test]
fn a_tender_that_ends_before_it_gives_the_volume_back_keeps_the_next_out_of_nothing() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created");
    a_holder_leaves(&mut world);
    let lease = attach_yielding(&mut world, "v");
    world.fill("v", lease.token);
    world.settle();
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new(), "it is done");
    a_holder_leaves(&mut world);
    assert_eq!(tenders(&world, "v").len(), 1);
    let next = attach_yielding(&mut world, "v");
    assert!(next.map.epoch > lease.map.epoch, "donors refuse the first from now on");
    let late = world.renew("v", lease.token, lease.map.epoch);
    assert_refused(world.answer(late).expect("at once"), RefusalCode::Gone, &[]);
}

/// What the answer to a renewal says of donors.
fn silent_to(world: &mut World, token: LeaseToken, epoch: u64) -> Vec<u64> {
    let call = world.renew("v", token, epoch);
    world.pass(LEASE_RENEW_NS);
    match world.answer(call) {
        Some(Ok(Answer::Renewed(renewed))) => renewed.silent.iter().map(|donor| donor.0).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_writes_a_volume_hears_of_donors_that_are_silent_as_a_tender_would() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created");
    let map = world.show("v").map;
    let holder = (1..=4).find(|id| held_by(&map, *id) > 0).expect("a holder");
    let other = (1..=4).find(|id| held_by(&map, *id) == 0).expect("another");
    let writer = world.attach("v", false).expect("attached");
    let epoch = world.show("v").map.epoch;
    assert_eq!(silent_to(&mut world, writer.token, epoch), Vec::<u64>::new());
    world.silence(holder);
    let mut heard = Vec::new();
    for _ in 0..TEND_SILENCE_NS / LEASE_RENEW_NS {
        heard.push(silent_to(&mut world, writer.token, epoch));
    }
    assert_eq!((heard.first(), heard.last()), (Some(&vec![]), Some(&vec![holder])), "not before its time");
    let reader = world.attach("v", true).expect("attached");
    assert_eq!(silent_to(&mut world, reader.token, epoch), Vec::<u64>::new(), "a reader changes nothing");
    world.silence(other);
    let keep = |world: &mut World| silent_to(world, writer.token, epoch);
    (0..8).for_each(|_| assert_eq!(keep(&mut world), [holder], "the other has nothing of it"));
    let said = world.show("v").status.repair.expect("it is degraded");
    assert!(said.contains(&format!("still reaches d{holder}")), "{said}");
    world.renew_without("v", &writer, &[holder]);
    assert_eq!(world.show("v").status.repair.as_deref(), Some("it is rebuilt in a moment"));
    world.join(holder, 4).expect("it is back");
    assert_eq!(keep(&mut world), Vec::<u64>::new());
}

#[test]
fn who_writes_is_not_told_to_ask_donors_that_are_all_that_is_left() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(E), Some("parity:3+1")).expect("created");
    let writer = world.attach("v", false).expect("attached");
    let epoch = world.show("v").map.epoch;
    let ask =
        |world: &mut World| (0..8).map(|_| silent_to(world, writer.token, epoch)).last().expect("several");
    world.silence(1);
    assert_eq!(ask(&mut world), [1]);
    world.silence(2);
    assert_eq!(ask(&mut world), Vec::<u64>::new(), "each may bring back what the other took");
}

#[test]
fn a_volume_that_cannot_be_rebuilt_says_what_it_lacks() {
    let mut world = World::with_donors(&[4; 3]);
    world.create("v", Size::Bytes(E), Some("parity:2+1")).expect("created");
    let repair = |world: &mut World| world.show("v").status.repair;
    assert_eq!(repair(&mut world), None);
    world.silence(3);
    world.settle();
    assert_eq!(
        repair(&mut world).as_deref(),
        Some("parity:2+1 needs 3 donors and 2 are there: add one with `cheetah donate`")
    );
    world.silence(2);
    world.settle();
    assert_eq!(repair(&mut world), None, "it is lost");

    let mut world = World::with_donors(&[2, 2, 2]);
    world.create("w", Size::Bytes(2 * E), Some("mirror:2")).expect("created");
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    let map = world.show("w").map;
    let holder = (1..=3).rev().find(|id| held_by(&map, *id) > 0).expect("a holder");
    world.silence(holder);
    world.settle();
    let said = world.show("w").status.repair.expect("it lacks room");
    assert!(said.starts_with("no donor has room for") && said.contains("cheetah donate"), "{said}");
}

#[test]
fn another_donor_takes_over_from_a_tender_that_died_and_foreign_ones_are_not_asked() {
    let mut world = World::with_donors(&[1, 4]);
    let mut foreign = joining(3, 8);
    foreign.foreign_export = Some("x".into());
    world.ask(Call::Join(foreign)).expect("joins");
    world.donors.insert(DonorId(3), cheetah_core::api::Duties::default());
    world.settle();
    world.create("v", Size::Bytes(3 * E), Some("linear")).expect("created");
    world.leave("d2", false).expect("there is room");
    world.settle();
    let map = world.show("v").map;
    assert!(filling(&map).iter().all(|filled| filled.placement.donor == DonorId(3)));
    assert_eq!(tenders(&world, "v"), [1]);
    world.silence(1);
    world.settle();
    assert_eq!(tenders(&world, "v"), [2], "it has to do it itself");
    world.restart();
    world.pass(SECOND_NS);
    assert_eq!(tenders(&world, "v").len(), 1, "also after a restart");
}

#[test]
fn an_extent_that_a_slot_left_is_kept_until_its_writer_reads_elsewhere() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    let writer = world.attach("v", false).expect("attached");
    world.attach("v", true).expect("attached");
    world.leave("d1", false).expect("there is room");
    world.settle();
    let map = world.show("v").map;
    let amend = cheetah_core::api::Amend { epoch: map.epoch, filled: filling(&map), ..Default::default() };
    let map = world.amend("v", writer.token, amend).expect("amended");
    assert_eq!(held_by(&map, 1), 0);
    world.restart();
    world.settle();
    let kept = |world: &World| world.donors.get(&DonorId(1)).map(|duties| duties.volumes.clone());
    assert_eq!(kept(&world).expect("still there")[0].extents, [0, 1]);
    world.renew("v", writer.token, map.epoch);
    world.settle();
    assert!(world.donors[&DonorId(1)].dismissed, "it is out");
}

/// Whether the answer to a renewal asks for a comparison of all fragments. It reports wrong blocks of donor
/// 1, and passes.
fn is_to_scrub(world: &mut World, lease: &Attached, wrong: u64, passes: u64) -> bool {
    let corrupt_blocks = (wrong > 0).then_some((DonorId(1), wrong)).into_iter().collect();
    let report = Box::new(VolumeReport { corrupt_blocks, scrub_passes: passes, ..VolumeReport::default() });
    let renew =
        Renew { epoch: lease.map.epoch, place: String::new(), lost: Vec::new(), report, guests: Vec::new() };
    let call = world.send(Call::Renew { name: "v".into(), token: lease.token, renew });
    world.pass(LEASE_RENEW_NS);
    match world.answer(call) {
        Some(Ok(Answer::Renewed(renewed))) => renewed.scrub,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_reader_finds_wrong_is_put_right_by_a_donor_once_and_by_who_writes() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(E), Some("parity:3+1")).expect("created");
    let reader = world.attach("v", true).expect("attached");
    assert!(!is_to_scrub(&mut world, &reader, 0, 0));
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
    assert!(!is_to_scrub(&mut world, &reader, 3, 0), "it changes nothing itself");
    assert_eq!(tenders(&world, "v").len(), 1);
    let tender = attach_yielding(&mut world, "v");
    assert!(is_to_scrub(&mut world, &tender, 0, 0));
    assert!(is_to_scrub(&mut world, &tender, 3, 0), "it is at it");
    assert!(!is_to_scrub(&mut world, &reader, 3, 0), "and the reader has told nothing new");
    assert_eq!(tenders(&world, "v").len(), 1);
    assert!(!is_to_scrub(&mut world, &tender, 3, 1), "done");
    world.settle();
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
    world.detach("v", tender.token).expect("given back");
    let writer = world.attach("v", false).expect("attached");
    is_to_scrub(&mut world, &reader, 4, 0);
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new(), "somebody writes");
    assert!(is_to_scrub(&mut world, &writer, 0, 7));
    assert!(!is_to_scrub(&mut world, &writer, 1, 8));
}

#[test]
fn what_a_reader_finds_while_a_pass_is_under_way_is_looked_at_by_the_next_one() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(E), Some("parity:3+1")).expect("created");
    let reader = world.attach("v", true).expect("attached");
    is_to_scrub(&mut world, &reader, 3, 0);
    let tender = attach_yielding(&mut world, "v");
    assert!(is_to_scrub(&mut world, &tender, 0, 5));
    // Where the pass has been already.
    is_to_scrub(&mut world, &reader, 4, 0);
    is_to_scrub(&mut world, &reader, 9, 0);
    assert!(is_to_scrub(&mut world, &tender, 3, 6), "that pass does not count");
    assert!(!is_to_scrub(&mut world, &tender, 9, 7), "the next one does");
    world.settle();
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
}

#[test]
fn nobody_is_told_to_put_right_what_nothing_can() {
    let mut world = World::with_donors(&[4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    let reader = world.attach("v", true).expect("attached");
    is_to_scrub(&mut world, &reader, 3, 0);
    assert_eq!(tenders(&world, "v"), Vec::<u64>::new());
}
