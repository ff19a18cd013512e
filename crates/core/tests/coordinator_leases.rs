//! Leases: one writer, many readers, and nothing said to a client before its donors know.

use crate::pool::{E, World, assert_refused, attaching};
use cheetah_core::api::{API_VERSION, Answer, Attach, Call, RefusalCode, Renew, Renewed, Size, VolumeHealth};
use cheetah_core::coordinator::Event;
use cheetah_core::layout::lost_ranges;
use cheetah_core::limits::{LEASE_NS, LEASE_RENEW_NS, SECOND_NS};
use cheetah_core::map::DonorId;

fn world() -> World {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("stripe:2")).expect("created");
    world
}

#[test]
fn one_writer_and_many_readers() {
    let mut world = world();
    let writer = world.attach("v", false).expect("attached");
    assert_eq!(world.tokens_of(1), [writer.token].into());
    assert_refused(world.attach("v", false), RefusalCode::Conflict, &["eve@lab pid 7", "detach", "15 s"]);
    let reader = world.attach("v", true).expect("attached");
    let other = world.attach("v", true).expect("attached");
    assert_eq!(world.tokens_of(2), [writer.token, reader.token, other.token].into());
    assert_eq!(world.show("v").status.attachments.len(), 3);
    assert_refused(world.delete("v"), RefusalCode::Conflict, &["attached by eve@lab", "detach"]);
    for token in [writer.token, reader.token, other.token] {
        world.detach("v", token).expect("detached");
    }
    world.settle();
    assert_eq!(world.tokens_of(1), [].into());
    world.delete("v").expect("deleted");
}

#[test]
fn a_lease_is_given_only_when_the_live_donors_know_it() {
    let mut world = world();
    let call = world.send(attaching("v", false));
    world.sync(DonorId(1));
    world.sync(DonorId(1));
    assert_eq!(world.answer(call), None);
    world.donors.remove(&DonorId(2));
    world.pass(6 * SECOND_NS);
    match world.answer(call) {
        Some(Ok(Answer::Attached(attached))) => assert_eq!(attached.unconfirmed, [DonorId(2)]),
        other => panic!("a silent donor is not waited for: {other:?}"),
    }
}

#[test]
fn a_caller_that_hung_up_leaves_no_lease() {
    let mut world = world();
    let call = world.send(attaching("v", false));
    world.step(Event::Hangup { call });
    world.settle();
    assert_eq!((world.tokens_of(1), world.answer(call)), ([].into(), None));
    world.attach("v", false).expect("attached");
}

#[test]
fn an_expired_writer_costs_an_epoch_and_is_gone() {
    let mut world = world();
    let first = world.attach("v", false).expect("attached");
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(world.tokens_of(1), [].into());
    let second = world.attach("v", false).expect("the lease has ended");
    assert!(second.map.epoch > first.map.epoch && second.token != first.token);
    let renew = world.renew("v", first.token, first.map.epoch);
    let answer = world.answer(renew).expect("at once");
    assert_refused(answer, RefusalCode::Gone, &["attach the volume again"]);
    assert_refused(world.detach("v", first.token), RefusalCode::Gone, &[]);
}

#[test]
fn renewing_keeps_a_lease_and_is_answered_in_time() {
    let mut world = world();
    let lease = world.attach("v", false).expect("attached");
    for _ in 0..2 * LEASE_NS / LEASE_RENEW_NS {
        let call = world.renew("v", lease.token, lease.map.epoch);
        assert_eq!(world.answer(call), None, "held until there is news");
        world.pass(LEASE_RENEW_NS);
        assert_eq!(world.answer(call), Some(Ok(Answer::Renewed(Renewed::default()))));
    }
    assert_eq!(world.show("v").status.attachments[0].place, "/mnt/x");
}

/// Long before the donor's silence is noticed here.
#[test]
fn what_a_client_cannot_reach_is_shown_at_once() {
    let mut world = World::with_donors(&[4, 4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("parity:2+1")).expect("created");
    let lease = world.attach("v", true).expect("attached");
    let mut tell = |gone: &[u64]| {
        let lost = gone.iter().map(|id| (DonorId(*id), "silent for 800 ms".to_owned())).collect();
        let renew = Renew {
            epoch: lease.map.epoch,
            place: String::new(),
            lost,
            report: Box::default(),
            guests: Vec::new(),
        };
        let call = world.send(Call::Renew { name: "v".into(), token: lease.token, renew });
        assert_eq!(world.answer(call), None, "the poll is held");
        let detail = world.show("v");
        assert_eq!((detail.status.health, detail.lost), (VolumeHealth::Whole, vec![]), "for the coordinator");
        let seen = &detail.status.attachments[0];
        assert_eq!(detail.lost_to, [lost_ranges(&detail.map, |id| gone.contains(&id.0))]);
        assert_eq!(detail.lost_to[0].is_empty(), seen.bytes_lost == 0);
        (seen.health, seen.slots_missing, seen.bytes_lost)
    };
    assert_eq!(tell(&[]), (VolumeHealth::Whole, 0, 0));
    assert_eq!(tell(&[1]), (VolumeHealth::Degraded, 1, 0));
    let (health, missing, lost) = tell(&[1, 2]);
    assert_eq!((health, missing), (VolumeHealth::Lost, 2));
    assert!(lost >= E, "{lost}");
}

#[test]
fn a_renewal_brings_the_new_map_once_its_donors_know_it() {
    let mut world = world();
    let lease = world.attach("v", false).expect("attached");
    let renew = world.renew("v", lease.token, lease.map.epoch);
    let grow = world.send(Call::Grow { name: "v".into(), size: Size::All });
    assert_eq!((world.answer(renew), world.answer(grow)), (None, None));
    world.settle();
    let Some(Ok(Answer::Renewed(Renewed { map: Some(map), .. }))) = world.answer(renew) else {
        panic!("a map")
    };
    assert_eq!((map.size, map.epoch), (8 * E, lease.map.epoch + 1));
    assert!(world.answer(grow).is_some());
    let late = world.renew("v", lease.token, lease.map.epoch);
    assert!(matches!(world.answer(late), Some(Ok(Answer::Renewed(Renewed { map: Some(_), .. })))), "at once");
}

#[test]
fn detaching_ends_a_held_renewal() {
    let mut world = world();
    let lease = world.attach("v", true).expect("attached");
    let renew = world.renew("v", lease.token, lease.map.epoch);
    world.detach("v", lease.token).expect("detached");
    let answer = world.answer(renew).expect("at once");
    assert_refused(answer, RefusalCode::Gone, &[]);
}

#[test]
fn who_fills_a_volume_and_who_reads_it_exclude_each_other() {
    let mut world = world();
    let Call::Attach { name, attach } = attaching("v", false) else { unreachable!() };
    let fill = || Call::Attach { name: name.clone(), attach: Attach { alone: true, ..attach.clone() } };
    let reader = world.attach("v", true).expect("a reader");
    assert_refused(world.ask(fill()), RefusalCode::Conflict, &["'v'", "eve@lab", "detach it there"]);
    world.detach("v", reader.token).expect("detached");

    let Answer::Attached(filler) = world.ask(fill()).expect("nobody reads it") else { unreachable!() };
    assert_refused(
        world.attach("v", true),
        RefusalCode::Conflict,
        &["'v'", "being filled by eve@lab", "wait"],
    );
    assert_refused(world.attach("v", false), RefusalCode::Conflict, &["being filled by eve@lab"]);
    world.detach("v", filler.token).expect("filled");
    world.attach("v", true).expect("a reader of what is whole");
    world.attach("v", false).expect("a writer that does not fill is in no reader's way");
}

#[test]
fn another_version_or_volume_is_refused() {
    let mut world = world();
    let Call::Attach { name, mut attach } = attaching("v", false) else { unreachable!() };
    attach.version += 1;
    let answer = world.ask(Call::Attach { name, attach });
    let (theirs, ours) = (format!("version {}", API_VERSION + 1), format!("version {API_VERSION}"));
    assert_refused(answer, RefusalCode::Version, &[&theirs, &ours, "coordinator's machine"]);
    assert_refused(world.attach("w", false), RefusalCode::NotFound, &["'w'"]);
    let lease = world.attach("v", false).expect("attached");
    assert_refused(world.detach("w", lease.token), RefusalCode::Gone, &[]);
}
