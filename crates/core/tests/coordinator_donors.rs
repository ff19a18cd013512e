//! Donors: joining and joining again, silence and return, leaving, and what a volume loses with them.

use crate::pool::{self, E, World, assert_refused, joining, secret_of};
use cheetah_core::api::{API_VERSION, Answer, Call, DonorHealth, RefusalCode, Size, Sync};
use cheetah_core::coordinator::Event;
use cheetah_core::limits::{DONOR_LISTED_NS, HEARTBEAT_NS, SECOND_NS};
use cheetah_core::map::{DonorId, PoolId};

fn syncing(donor: u64, revision: u64, goodbye: bool) -> Sync {
    let (secret, extents_offered) = (secret_of(DonorId(donor)), u32::MAX);
    Sync {
        secret,
        revision,
        bytes_used: 0,
        connections: 0,
        goodbye,
        leaving: false,
        extents_offered,
        incarnation: None,
    }
}

#[test]
fn another_version_and_bad_joins_are_refused() {
    let mut world = World::new();
    let mut join = joining(1, 4);
    join.version = 0;
    let answer = world.ask(Call::Join(join));
    let ours = format!("version {API_VERSION}");
    assert_refused(answer, RefusalCode::Version, &["donor 'd1' on h1", "version 0", &ours, "upgrade"]);
    let mut join = joining(1, 4);
    join.name = "a b".into();
    assert_refused(world.ask(Call::Join(join)), RefusalCode::Invalid, &["'a b'"]);
    for address in ["x", "0.0.0.0:1", "10.0.0.1:0"] {
        let mut join = joining(1, 4);
        join.address = address.into();
        assert_refused(world.ask(Call::Join(join)), RefusalCode::Invalid, &[address, "IP:PORT"]);
    }
    assert_refused(world.join(1, 0), RefusalCode::Invalid, &["64 MiB"]);
    let mut join = joining(1, 4);
    join.pool = Some(PoolId(1));
    assert_refused(world.ask(Call::Join(join)), RefusalCode::OtherPool, &["holds memory of pool"]);
}

#[test]
fn a_name_is_one_live_donors_own() {
    let mut world = World::with_donors(&[4]);
    let mut join = joining(2, 4);
    join.name = "d1".into();
    assert_refused(world.ask(Call::Join(join.clone())), RefusalCode::Conflict, &["'d1'", "h1", "--name"]);
    world.create("v", Size::Bytes(E), None).expect("created");
    world.silence(1);
    world.ask(Call::Join(join)).expect("the other is lost");
    let donors = world.status().donors;
    let seen: Vec<_> = donors.iter().map(|donor| (donor.name.as_str(), donor.health)).collect();
    assert_eq!(
        seen,
        [("d1", DonorHealth::Lost), ("d1", DonorHealth::Alive)],
        "listed while a volume needs it"
    );
    world.delete("v").expect("deleted");
    assert_eq!(world.status().donors.len(), 1);
}

#[test]
fn who_listens_where_a_donor_did_has_replaced_it() {
    let mut world = World::with_donors(&[4]);
    let mut join = joining(2, 4);
    (join.name, join.address) = ("d1".into(), "10.0.0.1:1000".into());
    world.ask(Call::Join(join)).expect("the first cannot be there any more");
}

#[test]
fn joining_again_changes_nothing_but_the_address() {
    let mut world = World::with_donors(&[4]);
    let before = world.create("v", Size::Bytes(E), None).expect("created").map;
    world.join(1, 4).expect("joins again");
    assert_eq!(world.show("v").map, before);
    let mut moved = joining(1, 4);
    moved.address = "10.0.0.9:1000".into();
    world.ask(Call::Join(moved)).expect("joins again");
    let map = world.show("v").map;
    assert_eq!((map.epoch, map.routes[&DonorId(1)].address.as_str()), (before.epoch + 1, "10.0.0.9:1000"));
    assert_refused(world.join(1, 5), RefusalCode::Conflict, &["4 extents"]);
}

#[test]
fn a_sync_is_held_until_there_is_news_or_a_heartbeat_has_passed() {
    let mut world = World::with_donors(&[4]);
    let duties = world.donors.remove(&DonorId(1)).expect("joined");
    let sync = syncing(1, duties.revision, false);
    let poll = world.send(Call::Sync { donor: DonorId(1), sync: sync.clone() });
    assert_eq!(world.answer(poll), None);
    world.now += HEARTBEAT_NS;
    world.step(Event::Wake);
    assert_eq!(world.answer(poll), Some(Ok(Answer::Duties(duties.clone()))));
    let poll = world.send(Call::Sync { donor: DonorId(1), sync });
    world.send(Call::Create(pool::creating("v", Size::Bytes(E), None)));
    let Some(Ok(Answer::Duties(news))) = world.answer(poll) else { panic!("news at once") };
    assert!(news.revision > duties.revision && news.volumes[0].extents == [0]);
    assert_refused(world.sync(DonorId(9)).expect("at once"), RefusalCode::Gone, &["join again"]);
}

#[test]
fn a_silent_donor_is_lost_and_whole_again_when_it_returns() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(3 * E + 100), Some("stripe:2")).expect("created");
    let duties = world.donors[&DonorId(2)].clone();
    world.silence(2);
    let detail = world.show("v");
    assert_eq!(detail.status.lost_donors, ["d2"]);
    let lost = detail.status.bytes_lost;
    assert!(lost == 3 * E / 2 || lost == 3 * E / 2 + 100 || lost == 2 * E, "{lost}");
    assert_eq!(world.status().bytes_free, 2 * E, "of the live one");
    assert_refused(world.create("w", Size::Bytes(3 * E), None), RefusalCode::PoolFull, &["d1"]);
    world.donors.insert(DonorId(2), duties);
    world.settle();
    let detail = world.show("v");
    assert_eq!((detail.status.lost_donors.len(), detail.status.bytes_lost, detail.lost.len()), (0, 0, 0));
}

#[test]
fn bytes_lost_are_exact_at_the_volumes_end() {
    let mut world = World::with_donors(&[4]);
    world.create("v", Size::Bytes(E + 5), Some("linear")).expect("created");
    world.silence(1);
    assert_eq!(world.show("v").status.bytes_lost, E + 5);
}

#[test]
fn leaving_is_refused_while_data_would_be_lost() {
    let mut world = World::with_donors(&[4, 1]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    assert_refused(world.leave("d9", false), RefusalCode::NotFound, &["'d9'"]);
    let says =
        ["1 fragment (64 MiB) of volume 'v'", "no room", "--force", "128 MiB of volume 'v' would be lost"];
    assert_refused(world.leave("d1", false), RefusalCode::Conflict, &says);
    world.leave("d2", false).expect("it holds nothing");
    assert!(world.donors[&DonorId(2)].dismissed, "the donor hears of it");
    world.leave("d1", true).expect("forced");
    assert!(world.donors[&DonorId(1)].dismissed);
    assert_eq!(world.show("v").status.bytes_lost, 2 * E);
    assert_refused(world.leave("d1", true), RefusalCode::NotFound, &["left already"]);
    world.restart();
    assert_eq!(world.show("v").status.bytes_lost, 2 * E, "who left stays gone");
    world.delete("v").expect("deleted");
    assert_eq!(world.status().donors, []);
}

#[test]
fn goodbye_takes_a_donor_out_at_once() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    for donor in [DonorId(1), DonorId(2)] {
        let revision = world.donors.remove(&donor).expect("joined").revision;
        let sync = syncing(donor.0, revision, true);
        let answer = world.ask(Call::Sync { donor, sync });
        assert!(matches!(answer, Ok(Answer::Duties(duties)) if duties.dismissed));
    }
    let donors = world.status().donors;
    assert_eq!((donors.len(), donors[0].health), (1, DonorHealth::Lost), "one is listed for its volume");
    assert_eq!(world.show("v").status.bytes_lost, E);
}

#[test]
fn a_lost_donor_that_holds_nothing_is_forgotten_in_time() {
    let mut world = World::with_donors(&[4, 4]);
    world.silence(1);
    assert_eq!(world.status().donors.len(), 2);
    world.pass(DONOR_LISTED_NS + SECOND_NS);
    assert_eq!(world.status().donors.len(), 1);
}

/// Two requests of anybody bricked a pool for good: what real donors say was below the counter from then on.
#[test]
fn a_revision_that_was_never_given_moves_nothing() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    let before = world.store.clone();
    let told = world.donors[&DonorId(1)].revision;
    for revision in [told + 1, 1 << 40, (1 << 63) - 1, u64::MAX] {
        for leaves in [false, true] {
            let mut sync = syncing(1, revision, leaves);
            (sync.leaving, sync.bytes_used, sync.extents_offered) = (leaves, u64::MAX, 0);
            let answer = world.ask(Call::Sync { donor: DonorId(1), sync });
            assert_refused(answer, RefusalCode::Invalid, &["'d1'", &revision.to_string(), "older"]);
        }
        let mut join = joining(3, 4);
        join.revision = revision;
        assert_refused(world.ask(Call::Join(join)), RefusalCode::Invalid, &["'d3'", "keeps what it holds"]);
    }
    assert_eq!(world.store, before);
    world.restart();
    world.settle();
    assert_eq!(world.show("v").status.bytes_lost, 0);
    let mut sync = syncing(1, world.donors[&DonorId(1)].revision, false);
    sync.bytes_used = u64::MAX;
    world.send(Call::Sync { donor: DonorId(1), sync });
    assert_eq!(world.status().donors[0].bytes_used, 4 * E, "no more than it lends");
}

/// Identities are shown to everybody; who says that it is one of them has to prove it.
#[test]
fn nobody_speaks_for_a_donor_whose_secret_it_does_not_know() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("linear")).expect("created");
    world.attach("v", false).expect("attached");
    let before = (world.store.clone(), world.status().volumes);
    let revision = world.donors[&DonorId(1)].revision;
    for goodbye in [false, true] {
        let sync = Sync { secret: secret_of(DonorId(2)), ..syncing(1, revision, goodbye) };
        let answer = world.ask(Call::Sync { donor: DonorId(1), sync });
        assert_refused(answer, RefusalCode::Conflict, &["does not prove"]);
    }
    let mut join = joining(1, 4);
    (join.secret, join.address) = (secret_of(DonorId(2)), "10.0.0.66:1000".into());
    assert_refused(world.ask(Call::Join(join)), RefusalCode::Conflict, &["does not prove"]);
    assert_eq!((world.store.clone(), world.status().volumes), before);

    world.leave("d2", true).expect("taken out");
    world.donors.remove(&DonorId(2));
    let sync = Sync { secret: secret_of(DonorId(1)), ..syncing(2, 0, false) };
    assert!(world.ask(Call::Sync { donor: DonorId(2), sync }).is_err(), "nor hears for it that it is let go");
}

#[test]
fn a_donor_that_was_not_heard_since_a_restart_is_not_counted() {
    let mut world = World::with_donors(&[4, 4]);
    world.silence(2);
    world.donors.remove(&DonorId(1));
    world.restart();
    let status = world.status();
    assert_eq!((status.bytes_total, status.bytes_free), (0, 0));
    assert!(status.donors.iter().all(|donor| donor.bytes_free == 0 && !donor.heard));
    world.donors.insert(DonorId(1), cheetah_core::api::Duties::default());
    world.settle();
    assert_eq!((world.status().bytes_total, world.status().bytes_free), (4 * E, 4 * E));
}
