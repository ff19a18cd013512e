//! The address that a donor gives is tried before it counts.

use crate::pool::{self, E, World, assert_refused, joining};
use cheetah_core::api::{Answer, Call, DonorHealth, Join, RefusalCode, Size};
use cheetah_core::coordinator::{AuthorityRecord, Event, NotGreeted};
use cheetah_core::limits::{DONOR_SILENCE_NS, GREETING_NS, SECOND_NS};
use cheetah_core::map::DonorId;
use cheetah_core::members::Caller;

const REFUSED: &str = "10.0.0.1:1000 refused the connection: nothing listens there";

#[test]
fn who_is_not_reached_at_its_address_is_not_taken_in() {
    let mut world = World::new();
    world.greetings.insert(DonorId(1), Some(Err(NotGreeted::Unanswered(REFUSED.into()))));
    let says = ["'d1'", "10.0.0.1:1000", "nothing listens", "--listen", "firewall"];
    assert_refused(world.join(1, 4), RefusalCode::Unreachable, &says);
    assert_eq!(world.status().donors, []);
    assert_eq!(world.store.len(), 1, "nothing of it is stored: {:?}", world.store);

    // A black hole.
    world.greetings.insert(DonorId(1), None);
    let call = world.send(Call::Join(joining(1, 4)));
    world.pass(GREETING_NS - SECOND_NS);
    assert_eq!((world.answer(call), world.status().donors.len()), (None, 0));
    world.pass(2 * SECOND_NS);
    let answer = world.answer(call).expect("in time");
    assert_refused(answer, RefusalCode::Unreachable, &["no answer in time"]);
    world.step(Event::Greeted { call, result: Ok(()) });
    assert_eq!(world.status().donors, [], "too late");

    let call = world.send(Call::Join(joining(1, 4)));
    world.step(Event::Hangup { call });
    world.step(Event::Greeted { call, result: Ok(()) });
    assert_eq!(world.status().donors, [], "who asked is gone");
    world.greetings.clear();
    world.join(1, 4).expect("it is reached now");
}

/// Nor does a volume follow a donor to where it is not.
#[test]
fn a_new_address_is_believed_when_it_was_tried() {
    let mut world = World::with_donors(&[4]);
    let before = world.create("v", Size::Bytes(E), None).expect("created").map;
    let mut moved = joining(1, 4);
    moved.address = "10.0.0.9:1000".into();
    world
        .greetings
        .insert(DonorId(1), Some(Err(NotGreeted::Unanswered("another donor was here before".into()))));
    assert_refused(world.ask(Call::Join(moved.clone())), RefusalCode::Unreachable, &["10.0.0.9:1000"]);
    assert_eq!(world.show("v").map, before);
    world.greetings.clear();
    world.ask(Call::Join(moved)).expect("joins again");
    assert!(world.show("v").map.epoch > before.epoch);
}

#[test]
fn loopback_is_for_pools_that_nobody_else_reaches() {
    let mut world = World::new();
    let mut join = joining(1, 4);
    join.address = "127.0.0.1:1000".into();
    world.coordinator.reached_at(vec!["127.0.0.1:10808".parse().expect("an address")]);
    world.ask(Call::Join(join.clone())).expect("all are on one machine");
    let beyond = ["10.0.0.5:10808", "127.0.0.1:10808"].map(|address| address.parse().expect("an address"));
    world.coordinator.reached_at(beyond.into());
    for address in ["127.0.0.1:1000", "127.1.2.3:1000", "[::1]:1000"] {
        (join.donor, join.name, join.address) = (DonorId(2), "d2".into(), address.into());
        join.secret = pool::secret_of(DonorId(2));
        let says = ["'d2'", address, "--listen 10.0.0.5:0"];
        assert_refused(world.ask(Call::Join(join.clone())), RefusalCode::Unreachable, &says);
    }
    assert_eq!(world.status().addresses, ["10.0.0.5:10808", "127.0.0.1:10808"]);
}

#[test]
fn a_pool_in_the_clear_takes_no_donor_of_the_internet() {
    let mut world = World::new();
    let mut join = joining(1, 4);
    join.address = "203.0.113.7:1000".into();
    let says = ["'d1'", "203.0.113.7:1000", "in the clear", "--plaintext"];
    assert_refused(world.ask(Call::Join(join.clone())), RefusalCode::Forbidden, &says);
    let authority = AuthorityRecord { certificate: "certificate".into(), key: "key".into() };
    world.coordinator.adopt(authority);
    (world.caller, world.lender) = (Caller::Own, Caller::Own);
    world.ask(Call::Join(join)).expect("members prove who they are, wherever they are");
}

#[test]
fn two_donors_do_not_have_one_address() {
    let mut world = World::with_donors(&[4]);
    let mut join = joining(2, 4);
    join.address = "10.0.0.1:1000".into();
    world
        .greetings
        .insert(DonorId(2), Some(Err(NotGreeted::Unanswered("another donor was here before".into()))));
    assert_refused(world.ask(Call::Join(join.clone())), RefusalCode::Unreachable, &["10.0.0.1:1000"]);
    assert_eq!(world.status().donors[0].health, DonorHealth::Alive, "it is where it was");
    // The newcomer answers there, so the other is not there any more.
    world.greetings.clear();
    world.donors.remove(&DonorId(1));
    world.ask(Call::Join(join)).expect("it is the one that listens there");
    assert_eq!(world.status().donors[0].health, DonorHealth::Lost);

    let foreign = |id: u64, export: &str| Join {
        address: "10.0.0.9:10809".into(),
        foreign_export: Some(export.into()),
        ..joining(id, 4)
    };
    world.ask(Call::Join(foreign(7, "disk"))).expect("another's NBD server");
    let says = ["10.0.0.9:10809", "'d7' already"];
    assert_refused(world.ask(Call::Join(foreign(8, "disk"))), RefusalCode::Conflict, &says);
    world.ask(Call::Join(foreign(8, "other"))).expect("another export of it");
    world.pass(DONOR_SILENCE_NS + SECOND_NS);
    let joined = world.ask(Call::Join(foreign(9, "disk")));
    assert!(matches!(joined, Ok(Answer::Joined(_))), "the first is lost: {joined:?}");
}
