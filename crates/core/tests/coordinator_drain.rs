//! Draining: what a donor holds goes to others before it goes, and what its owner needs back goes first.

use crate::pool::{self, E, World, assert_refused, filling, held_by, joining};
use cheetah_core::api::{Answer, Call, Leaving, RefusalCode, Size, Sync, VolumeHealth};
use cheetah_core::findings::taken_out;
use cheetah_core::map::DonorId;

fn holder(world: &mut World, name: &str) -> u64 {
    let map = world.show(name).map;
    (1..=9).find(|id| held_by(&map, *id) > 0).expect("somebody")
}

#[test]
fn a_donor_leaves_when_all_it_held_is_elsewhere_and_nothing_was_missing_meanwhile() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(4 * E), Some("parity:2+1")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    let out = holder(&mut world, "v");
    let held = held_by(&lease.map, out);
    world.leave(&format!("d{out}"), false).expect("there is room");
    let detail = world.show("v");
    assert_eq!((detail.status.health, detail.status.slots_missing), (VolumeHealth::Whole, 0));
    assert_eq!((filling(&detail.map).len(), held_by(&detail.map, out)), (held, held));
    let donor = world.status().donors.into_iter().find(|donor| donor.donor == DonorId(out));
    let donor = donor.expect("still there");
    assert!(donor.leaving && donor.bytes_free == 0 && donor.bytes_held == held as u64 * E);
    world.restart();
    world.settle();
    let map = world.fill("v", lease.token);
    assert_eq!((held_by(&map, out), map.routes.contains_key(&DonorId(out))), (0, false));
    assert!(world.status().donors.iter().all(|donor| donor.donor != DonorId(out)), "it is out");
    world.settle();
    assert!(world.donors[&DonorId(out)].dismissed, "and hears of it");
}

#[test]
fn a_donor_that_asks_to_leave_is_drained_and_dismissed() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    world.leaving.insert(DonorId(1));
    world.settle();
    assert_eq!(filling(&world.show("v").map).len(), 2);
    assert_eq!(world.donors[&DonorId(1)].stuck, None, "the writer is there to move it");
    world.fill("v", lease.token);
    world.settle();
    assert!(world.donors[&DonorId(1)].dismissed);
    world.leaving.insert(DonorId(2));
    world.settle();
    let stuck = world.hear(2).stuck.expect("nobody is left to take it");
    assert!(stuck.contains("linear needs 1 donor,") && stuck.contains("cheetah donate"), "{stuck}");
    let mut empty = World::with_donors(&[4]);
    empty.leaving.insert(DonorId(1));
    empty.settle();
    assert!(empty.donors[&DonorId(1)].dismissed, "at once when it holds nothing");
}

/// As when a room is shut down: by itself none of them would lose anything.
#[test]
fn donors_that_leave_together_are_told_what_is_lost_when_all_have_gone() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created");
    let stake = |world: &mut World, id| {
        let stakes = world.hear(id).at_stake.expect("it leaves");
        stakes.into_iter().map(|stake| (stake.volume, stake.bytes)).collect::<Vec<_>>()
    };
    world.leaving.insert(DonorId(1));
    world.settle();
    assert_eq!(stake(&mut world, 1), [("v".to_owned(), 0)]);
    let sync = Sync {
        secret: pool::secret_of(DonorId(1)),
        revision: world.donors[&DonorId(1)].revision,
        bytes_used: 4096,
        connections: 0,
        goodbye: false,
        leaving: true,
        extents_offered: 4,
        incarnation: None,
    };
    let poll = world.send(Call::Sync { donor: DonorId(1), sync });
    assert_eq!(world.answer(poll), None, "nothing is new");
    world.leaving.insert(DonorId(2));
    world.sync(DonorId(2));
    assert!(matches!(world.answer(poll), Some(Ok(Answer::Duties(_)))), "who leaves already hears at once");
    for id in [1, 2] {
        assert_eq!(stake(&mut world, id), [("v".to_owned(), E)], "donor {id}");
    }
    let says = ["nothing would be lost but redundancy"];
    assert_refused(world.leave("d1", false), RefusalCode::Conflict, &says);
}

#[test]
fn a_drain_that_cannot_end_is_refused_with_what_force_would_cost() {
    let mut world = World::with_donors(&[4, 4, 4]);
    world.create("v", Size::Bytes(4 * E), Some("parity:2+1")).expect("created");
    world.create("w", Size::Bytes(E), Some("linear")).expect("created");
    let before = world.show("v").map;
    let out = holder(&mut world, "w");
    let says = [
        "2 fragments (128 MiB) of volume 'v'",
        "parity:2+1 needs 3 donors, and 2 would stay: 1 missing",
        "--force, with which 64 MiB of volume 'w' would be lost",
        "cheetah donate",
    ];
    assert_refused(world.leave(&format!("d{out}"), false), RefusalCode::Conflict, &says);
    assert!(world.status().donors.iter().all(|donor| !donor.leaving));
    assert_eq!(world.show("v").map, before);
    world.delete("w").expect("deleted");
    let says = ["nothing would be lost but redundancy"];
    assert_refused(world.leave("d1", false), RefusalCode::Conflict, &says);
    world.leave("d1", true).expect("forced");
    let status = world.show("v").status;
    assert_eq!((status.health, status.bytes_lost), (VolumeHealth::Degraded, 0));
    assert_eq!(world.status().donors.len(), 2);
    world.join(4, 4).expect("joins");
    assert_eq!(world.show("v").status.slots_filling, 2, "and is repaired");
}

#[test]
fn without_a_writer_and_a_donor_of_ours_a_drain_waits_and_says_for_whom() {
    let mut world = World::new();
    for id in [1, 2] {
        let mut foreign = joining(id, 4);
        foreign.foreign_export = Some("x".into());
        world.ask(Call::Join(foreign)).expect("joins");
        world.donors.insert(DonorId(id), cheetah_core::api::Duties::default());
    }
    world.settle();
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    world.leave("d1", false).expect("there is room");
    world.settle();
    let stuck = world.hear(1).stuck.expect("nobody moves it");
    assert!(stuck.contains("'v'") && stuck.contains("attach"), "{stuck}");
    let lease = world.attach("v", false).expect("attached");
    assert_eq!(world.hear(1).stuck, None);
    world.fill("v", lease.token);
    world.settle();
    assert!(world.donors[&DonorId(1)].dismissed);
}

#[test]
fn a_smaller_offer_moves_as_much_as_it_must() {
    let mut world = World::with_donors(&[6, 6, 6]);
    world.create("v", Size::Bytes(5 * E), Some("linear")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    world.offers.insert(DonorId(1), 3);
    world.settle();
    let moving = filling(&world.show("v").map);
    assert_eq!(moving.len(), 2);
    world.offers.insert(DonorId(1), 2);
    world.settle();
    assert_eq!(filling(&world.show("v").map).len(), 3, "one more");
    let donor = world.status().donors.remove(0);
    assert_eq!((donor.bytes_offered, donor.bytes_held, donor.bytes_free), (2 * E, 5 * E, 0));
    world.fill("v", lease.token);
    world.settle();
    assert_eq!(held_by(&world.show("v").map, 1), 2);
    assert_eq!(filling(&world.show("v").map), [], "that is enough");
    world.offers.insert(DonorId(1), u32::MAX);
    world.settle();
    assert_eq!(world.status().donors[0].bytes_free, 4 * E, "and it is lent again when there is room");
}

#[test]
fn what_is_only_being_filled_is_taken_back_before_anything_is_moved() {
    let mut world = World::with_donors(&[2, 2, 4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("mirror:2")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    let out = holder(&mut world, "v");
    world.exclude("v", lease.token, &[out]);
    let homes = filling(&world.show("v").map);
    let home = homes[0].placement.donor;
    let holds = held_by(&world.show("v").map, home.0);
    world.offers.insert(home, u32::try_from(holds).expect("few"));
    world.settle();
    let map = world.show("v").map;
    assert!(filling(&map).iter().all(|at| at.placement.donor != home), "{map:?}");
    assert_eq!(held_by(&map, home.0), holds, "what it holds may stay");
}

#[test]
fn a_donor_is_given_back_what_it_had_only_once_it_has_wiped_it() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    world.offers.insert(DonorId(1), 1);
    world.settle();
    world.fill("v", lease.token);
    // The other wants its memory back in turn, and the first has some again, before it heard of the move.
    world.offers.insert(DonorId(2), 0);
    world.sync(DonorId(2));
    world.offers.insert(DonorId(1), 4);
    world.sync(DonorId(1));
    assert_eq!(filling(&world.peek("v").map), [], "what it has of the volume is not blank");
    world.settle();
    assert_eq!(filling(&world.peek("v").map)[0].placement.donor, DonorId(1));
}

#[test]
fn a_donor_that_leaves_gets_nothing_new() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.leave("d1", false).expect("there is room");
    let full = world.create("w", Size::Bytes(4 * E), Some("linear"));
    assert_refused(full, RefusalCode::PoolFull, &["192 MiB is free (d2 192 MiB)"]);
    world.create("w", Size::Bytes(3 * E), Some("linear")).expect("on the other");
    assert_eq!(held_by(&world.show("w").map, 1), 0);
}

#[test]
fn a_drained_donor_is_out_when_the_last_volume_on_it_is_deleted() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.leave("d1", false).expect("there is room");
    world.delete("v").expect("deleted");
    assert_eq!(world.status().donors.len(), 1);
    let call = world.ask(Call::Leave { donor: "d1".into(), force: false });
    assert!(call.is_err_and(|refusal| refusal.code == RefusalCode::NotFound));
    world.settle();
    assert!(world.donors[&DonorId(1)].dismissed);
    assert!(matches!(world.ask(Call::Pool), Ok(Answer::Pool(_))));
}

fn left(world: &mut World, donor: u64, force: bool) -> Leaving {
    match world.leave(&format!("d{donor}"), force) {
        Ok(Answer::Leaving(leaving)) => leaving,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_moved_off_a_donor_that_does_not_answer() {
    let mut world = World::with_donors(&[4; 5]);
    world.create("v", Size::Bytes(3 * E), Some("parity:3+1")).expect("created");
    let map = world.show("v").map;
    let holder = (1..=5).find(|id| held_by(&map, *id) > 0).expect("somebody");
    world.silence(holder);
    let answer = left(&mut world, holder, false);
    assert_eq!((answer.silent, answer.bytes_to_rebuild, answer.bytes_lost), (true, E, 0));
    let said = taken_out("d1", &answer);
    assert!(said.contains("nothing could be moved off it") && said.contains("64 MiB that it held"), "{said}");
    // One that a writer gave up before.
    let mut world = World::with_donors(&[4; 5]);
    world.create("v", Size::Bytes(3 * E), Some("parity:3+1")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    world.donors.remove(&DonorId(holder));
    world.exclude("v", lease.token, &[holder]);
    world.silence(holder);
    let answer = left(&mut world, holder, false);
    assert_eq!((answer.silent, answer.bytes_to_rebuild, answer.bytes_given_up), (true, 0, E));
    let said = taken_out("d1", &answer);
    assert!(said.contains("64 MiB were taken from it before"), "{said}");
    // One on which nothing lay, one that takes data with it, and one that is there.
    let mut world = World::with_donors(&[4; 5]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.silence(1);
    let answer = left(&mut world, 1, true);
    assert_eq!((answer.silent, answer.bytes_to_rebuild, answer.bytes_lost), (true, 0, E));
    assert!(taken_out("d1", &answer).contains("64 MiB of volumes are lost"));
    world.silence(5);
    assert!(taken_out("d5", &left(&mut world, 5, false)).contains("no volume counted on it"));
    assert_eq!(left(&mut world, 3, false), Leaving::default());
}

#[test]
fn what_force_costs_is_said_also_of_a_donor_that_lives() {
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(2 * E), Some("parity:2+1")).expect("created");
    let out = holder(&mut world, "v");
    let answer = left(&mut world, out, true);
    assert_eq!((answer.silent, answer.bytes_to_rebuild, answer.bytes_lost), (false, E, 0));
    let said = taken_out("d1", &answer);
    assert!(said.contains("nothing was moved off it; 64 MiB that it held are rebuilt on others"), "{said}");
    let mut world = World::with_donors(&[4; 2]);
    world.create("w", Size::Bytes(4 * E), Some("linear")).expect("created");
    let out = holder(&mut world, "w");
    let held = held_by(&world.show("w").map, out) as u64 * E;
    let answer = left(&mut world, out, true);
    assert_eq!((answer.silent, answer.bytes_to_rebuild, answer.bytes_lost), (false, 0, held));
    assert_eq!(world.show("w").status.bytes_lost, held, "and that much is lost");
}

/// A writer that has not heard of the map between would count what it had filled before as filled.
#[test]
fn a_filling_that_is_taken_back_is_not_given_again_before_its_writer_knows() {
    let mut world = World::with_donors(&[8, 8, 8]);
    world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    let out = holder(&mut world, "v");
    world.donors.remove(&DonorId(out));
    world.exclude("v", lease.token, &[out]);
    world.settle();
    let before = world.show("v").map;
    let given = filling(&before);
    let home = given[0].placement.donor;
    let call = world.renew("v", lease.token, before.epoch);
    // Its owner wants the memory back for a moment, and the other holder is slow to hear of it.
    world.offers.insert(home, 0);
    drop(world.sync(home).expect("news at once"));
    assert!(filling(&world.peek("v").map).is_empty(), "taken back");
    world.offers.remove(&home);
    world.sync(home);
    world.sync(home);
    world.settle();
    let Some(Ok(Answer::Renewed(renewed))) = world.answer(call) else { panic!("there is a newer map") };
    let again = filling(&renewed.map.expect("the newest map"));
    assert!(again.iter().all(|filled| !given.contains(filled)), "{given:?} {again:?}");
}

/// After a restart nothing is planned until every donor was heard. So a slot may still be filled on a donor
/// that wants to go, when another is taken out.
#[test]
fn what_is_taken_back_from_a_donor_that_leaves_is_free_when_another_is_forced_out() {
    let mut world = World::with_donors(&[1; 5]);
    world.create("v", Size::Bytes(2 * E), Some("parity:2+1")).expect("created");
    let out = holder(&mut world, "v");
    world.leave(&format!("d{out}"), false).expect("there is room");
    let home = filling(&world.show("v").map)[0].placement.donor;
    world.restart();
    world.leaving.insert(home);
    let _ = world.sync(home);
    assert_eq!(filling(&world.peek("v").map)[0].placement.donor, home, "not all were heard yet");
    let other = (1..=5).find(|id| *id != out && held_by(&world.peek("v").map, *id) > 0).expect("a holder");
    world.leave(&format!("d{other}"), true).expect("the others suffice");
    world.settle();
    world.settle();
    assert_eq!(world.extents_of("v"), world.peek("v").map.groups.iter().flat_map(|g| g.placements()).count());
    assert!(world.status().donors.iter().all(|donor| donor.donor != home), "it holds nothing, and is out");
}
