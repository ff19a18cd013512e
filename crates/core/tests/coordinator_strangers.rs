//! Another pool at the address of one: what was lent to that, and who uses it, is left alone.

use crate::pool::{self, E, World, assert_refused, attaching, joining};
use cheetah_core::api::{Answer, Call, RefusalCode, Renew, Size, Stranger, Sync};
use cheetah_core::coordinator::Event;
use cheetah_core::limits::{SECOND_NS, STRANGER_SHOWN_NS, STRANGERS_MAX};
use cheetah_core::map::{DonorId, LeaseToken, PoolId};

const OTHER: PoolId = PoolId(5);

#[test]
fn a_donor_of_another_pool_is_turned_away_shown_and_told_what_to_do() {
    let mut world = World::new();
    let mut join = joining(1, 4);
    join.pool = Some(OTHER);
    let says = ["'d1' on h1", "0000000000000005", "keeps", "start it again"];
    assert_refused(world.ask(Call::Join(join.clone())), RefusalCode::OtherPool, &says);
    let shown =
        Stranger { name: "d1".into(), host: "h1".into(), address: "10.0.0.1:1000".into(), pool: OTHER };
    let status = world.status();
    assert_eq!((status.strangers, status.donors), (vec![shown], vec![]));
    world.pass(STRANGER_SHOWN_NS + SECOND_NS);
    assert_eq!(world.status().strangers, [], "one that asks no more is not shown");

    for id in 0..2 * STRANGERS_MAX as u64 {
        let mut join = joining(id, 4);
        join.pool = Some(OTHER);
        assert!(world.ask(Call::Join(join)).is_err());
    }
    assert_eq!(world.status().strangers.len(), STRANGERS_MAX);
    join.pool = None;
    world.ask(Call::Join(join)).expect("who holds nothing of another is welcome");
}

/// What an attached client of another pool would take for the end of its lease, and a donor for a reason to
/// wipe.
#[test]
fn a_call_that_is_meant_for_another_pool_does_nothing() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    let own = world.coordinator.pool();
    assert_eq!(lease.pool, own);
    let before = world.store.clone();
    let renew = Renew {
        epoch: 1,
        place: String::new(),
        lost: Vec::new(),
        report: Box::default(),
        guests: Vec::new(),
    };
    let sync = Sync {
        secret: pool::secret_of(DonorId(1)),
        revision: 1,
        bytes_used: 0,
        connections: 0,
        leaving: true,
        goodbye: true,
        extents_offered: 0,
        incarnation: None,
    };
    let (name, token) = ("v".to_owned(), LeaseToken(7));
    for request in [
        Call::Renew { name: name.clone(), token, renew },
        Call::Detach { name: name.clone(), token: lease.token },
        Call::Delete { name: name.clone() },
        Call::Sync { donor: DonorId(1), sync },
        Call::Leave { donor: "d1".into(), force: true },
        attaching("v", false),
    ] {
        let call = world.send_to(Some(OTHER), request);
        let answer = world.answer(call).expect("at once");
        assert_refused(answer, RefusalCode::OtherPool, &["meant for pool 0000000000000005", "--state"]);
    }
    world.step(Event::Wake);
    assert_eq!(world.store, before);
    let call = world.send_to(Some(own), Call::Detach { name, token: lease.token });
    assert_eq!(world.answer(call), Some(Ok(Answer::Done)));
}
