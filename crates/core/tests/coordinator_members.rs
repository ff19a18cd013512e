//! A pool of members: who comes in, what each may ask, and what is left of who is revoked.

use crate::pool::{self, E, World, assert_refused, attaching, joining};
use cheetah_core::api::{
    Answer, Attach, Attached, Call, Enrol, NewToken, Recertify, Refusal, RefusalCode, Renew, Size,
};
use cheetah_core::coordinator::{AuthorityRecord, Coordinator};
use cheetah_core::map::{DonorId, MemberId};
use cheetah_core::members::{Caller, Member, Role, TokenHash, TokenSecret};

const NOW: u64 = 1_700_000_000;

fn authority() -> AuthorityRecord {
    AuthorityRecord { certificate: "certificate".into(), key: "key".into() }
}

/// A pool of members with two donors, each of a member of its own, and a volume.
fn world() -> World {
    let mut world = World::new();
    world.coordinator.adopt(authority());
    world.coordinator.tell_time_of_day(NOW);
    (world.caller, world.lender) = (Caller::Own, Caller::Own);
    world
}

/// Stands for the one that a driver computes.
fn hash(secret: &TokenSecret) -> TokenHash {
    let byte = u8::from_str_radix(&secret.reveal()[..2], 16).expect("digits");
    TokenHash::new([byte; 32])
}

fn token(world: &mut World, secret: u8, role: Role, uses: Option<u32>) -> TokenSecret {
    let secret = TokenSecret::new([secret; 16]);
    let new = NewToken { hash: hash(&secret), role, uses, seconds: 60 };
    as_whom(world, Caller::Own, Call::NewToken(new)).expect("made");
    secret
}

fn as_whom(world: &mut World, caller: Caller, call: Call) -> Result<Answer, Refusal> {
    let before = std::mem::replace(&mut world.caller, caller);
    let answer = world.ask(call);
    world.caller = before;
    answer
}

fn key() -> String {
    format!("04{}", "ab".repeat(64))
}

fn enrol(world: &mut World, secret: &TokenSecret) -> Result<Member, Refusal> {
    let enrol = Enrol { secret: secret.clone(), key: key(), name: "eve@lab".into() };
    match as_whom(world, Caller::Stranger, Call::Enrol { enrol, hash: hash(secret) })? {
        Answer::Enrolled(enrolled) => Ok(Member { id: enrolled.member, role: enrolled.role }),
        other => panic!("{other:?}"),
    }
}

/// A new member of this role.
fn member(world: &mut World, number: u8, role: Role) -> Member {
    let secret = token(world, number, role, Some(1));
    enrol(world, &secret).expect("came in")
}

/// What a client has made and attached for writing, on memory that a donor lends; the client calls on.
fn attached(world: &mut World, donor: Member, client: Member) -> Attached {
    (world.caller, world.lender) = (of(donor), of(donor));
    world.join(1, 4).expect("joined");
    as_whom(world, of(client), creating()).expect("made");
    world.caller = of(client);
    let call = world.send(attaching("v", false));
    world.settle();
    match world.answer(call) {
        Some(Ok(Answer::Attached(attached))) => attached,
        other => panic!("attached: {other:?}"),
    }
}

fn creating() -> Call {
    Call::Create(pool::creating("v", Size::Bytes(E), None))
}

fn of(member: Member) -> Caller {
    Caller::Member(member)
}

#[test]
fn a_token_lets_in_as_many_as_it_says_and_as_long() {
    let mut world = world();
    let once = token(&mut world, 1, Role::Client, Some(1));
    let open = token(&mut world, 2, Role::Donor, None);
    assert_eq!(enrol(&mut world, &once).expect("came in").role, Role::Client);
    assert_refused(enrol(&mut world, &once), RefusalCode::Forbidden, &["used up", "token new"]);
    assert_refused(
        enrol(&mut world, &TokenSecret::new([9; 16])),
        RefusalCode::Forbidden,
        &["another pool's"],
    );
    let (one, other) = (enrol(&mut world, &open), enrol(&mut world, &open));
    assert_ne!(one.expect("came in").id, other.expect("came in").id);
    world.coordinator.tell_time_of_day(NOW + 60);
    assert_refused(enrol(&mut world, &open), RefusalCode::Forbidden, &["its time is over"]);
    assert_eq!(world.ask(Call::Tokens), Ok(Answer::Tokens(Vec::new())));
    let revoked = token(&mut world, 3, Role::Viewer, None);
    world.ask(Call::RevokeToken { token: hash(&revoked).id() }).expect("revoked");
    assert_refused(enrol(&mut world, &revoked), RefusalCode::Forbidden, &["revoked"]);
    let stored = format!("{:?}", world.store);
    assert!(!stored.contains(open.reveal()) && !stored.contains("\"key\""), "no secret is shown: {stored}");
}

#[test]
fn a_stranger_and_who_comes_in_the_clear_are_told_nothing() {
    let mut world = world();
    for caller in [Caller::Stranger, Caller::Anyone] {
        for call in [Call::Pool, Call::Members, Call::Show { name: "v".into() }, attaching("v", true)] {
            assert_refused(as_whom(&mut world, caller, call), RefusalCode::Forbidden, &["members only"]);
        }
    }
    let mut clear = World::new();
    assert!(clear.ask(Call::Pool).is_ok());
    assert_refused(clear.ask(Call::Members), RefusalCode::Invalid, &["in the clear", "--plaintext"]);
}

#[test]
fn a_role_is_held_to_what_it_is_there_for() {
    let mut world = world();
    let donor = member(&mut world, 1, Role::Donor);
    let viewer = member(&mut world, 2, Role::Viewer);
    let client = member(&mut world, 3, Role::Client);
    world.join(1, 4).expect("joined");
    assert_refused(as_whom(&mut world, of(viewer), creating()), RefusalCode::Forbidden, &["viewer"]);
    as_whom(&mut world, of(client), creating()).expect("made");
    assert!(as_whom(&mut world, of(viewer), Call::Show { name: "v".into() }).is_ok());
    for (caller, role) in [(donor, "donor"), (viewer, "viewer")] {
        let attached = as_whom(&mut world, of(caller), attaching("v", true));
        assert_refused(attached, RefusalCode::Forbidden, &[role, "--identity"]);
    }
    // Nor as if to move what lies idle, where it was not told to.
    let tending = Attach { yields: true, ..Attach::new(false, "d1") };
    let tends = as_whom(&mut world, of(donor), Call::Attach { name: "v".into(), attach: tending });
    assert_refused(tends, RefusalCode::Forbidden, &["not the donor that tends"]);
    assert_refused(as_whom(&mut world, of(client), Call::Members), RefusalCode::Forbidden, &["client"]);
    let leave = Call::Leave { donor: "d1".into(), force: true };
    assert_refused(as_whom(&mut world, of(client), leave.clone()), RefusalCode::Forbidden, &["client"]);
    let said = as_whom(&mut world, of(donor), leave);
    assert_refused(said, RefusalCode::Forbidden, &["another certificate"]);
    // A certificate of a pool that forgot its member, or of a role that it does not have.
    let forged = Member { role: Role::Admin, ..client };
    for caller in [forged, Member { id: MemberId(99), role: Role::Admin }] {
        assert_refused(as_whom(&mut world, of(caller), Call::Pool), RefusalCode::Forbidden, &["revoked"]);
    }
}

#[test]
fn what_is_one_members_is_of_no_use_to_another() {
    let mut world = world();
    let (one, other) = (member(&mut world, 1, Role::Donor), member(&mut world, 2, Role::Donor));
    let (eve, bob) = (member(&mut world, 3, Role::Client), member(&mut world, 4, Role::Client));
    (world.caller, world.lender) = (of(one), of(one));
    world.join(1, 4).expect("joined");
    let again = as_whom(&mut world, of(other), Call::Join(joining(1, 4)));
    assert_refused(again, RefusalCode::Forbidden, &["another certificate"]);
    as_whom(&mut world, of(eve), creating()).expect("made");
    world.caller = of(eve);
    let call = world.send(attaching("v", false));
    world.settle();
    let Some(Ok(Answer::Attached(attached))) = world.answer(call) else { panic!("attached") };
    let detach = Call::Detach { name: "v".into(), token: attached.token };
    let stolen = as_whom(&mut world, of(bob), detach.clone());
    assert_refused(stolen, RefusalCode::Forbidden, &["another certificate"]);
    let duty = world.hear(1).volumes.remove(0);
    assert_eq!(duty.members, [(attached.token, eve.id)].into(), "its donor knows whose it is");
    as_whom(&mut world, of(eve), detach).expect("its own");
}

#[test]
fn who_is_revoked_is_out_with_all_that_was_its_own() {
    let mut world = world();
    let (donor, eve) = (member(&mut world, 1, Role::Donor), member(&mut world, 2, Role::Client));
    let recertify = || Call::Recertify(Recertify { key: key() });
    assert!(as_whom(&mut world, of(eve), recertify()).is_ok());
    let attached = attached(&mut world, donor, eve);
    as_whom(&mut world, Caller::Own, Call::RevokeMember { member: eve.id }).expect("revoked");
    assert_refused(as_whom(&mut world, of(eve), recertify()), RefusalCode::Forbidden, &["revoked"]);
    let duty = world.hear(1).volumes.remove(0);
    assert_eq!((duty.writer, duty.members.len()), (None, 0), "its donor lets it in no more");
    assert!(duty.epoch > attached.map.epoch);
    as_whom(&mut world, Caller::Own, Call::RevokeMember { member: donor.id }).expect("revoked");
    let status = as_whom(&mut world, Caller::Own, Call::Pool);
    let Ok(Answer::Pool(status)) = status else { panic!("{status:?}") };
    assert!(status.members_only && status.bytes_total == 0, "what it lent is gone: {status:?}");
    assert_refused(world.sync(DonorId(1)).expect("answered"), RefusalCode::Forbidden, &["revoked"]);
}

#[test]
fn who_exports_a_volume_hears_which_of_its_guests_are_no_members_any_more() {
    let mut world = world();
    let (donor, eve) = (member(&mut world, 1, Role::Donor), member(&mut world, 2, Role::Client));
    let guests: Vec<MemberId> = [3, 4].map(|number| member(&mut world, number, Role::Client).id).into();
    let attached = attached(&mut world, donor, eve);
    let epoch = attached.map.epoch;
    let renew = Renew { epoch, place: String::new(), lost: Vec::new(), report: Box::default(), guests };
    let revoked = renew.guests[1];
    as_whom(&mut world, Caller::Own, Call::RevokeMember { member: revoked }).expect("revoked");
    let call = world.send(Call::Renew { name: "v".into(), token: attached.token, renew });
    let Some(Ok(Answer::Renewed(renewed))) = world.answer(call) else { panic!("told at once") };
    assert_eq!(renewed.strangers, [revoked]);
}

#[test]
fn the_only_admin_is_not_revoked() {
    let mut world = world();
    let (one, client) = (member(&mut world, 1, Role::Admin), member(&mut world, 2, Role::Client));
    let revoke = |member: Member| Call::RevokeMember { member: member.id };
    let refused = as_whom(&mut world, of(one), revoke(one));
    assert_refused(refused, RefusalCode::Conflict, &["only admin", "token new --role admin"]);
    as_whom(&mut world, of(one), revoke(client)).expect("revoked");
    let other = member(&mut world, 3, Role::Admin);
    as_whom(&mut world, of(one), revoke(one)).expect("revoked");
    assert!(as_whom(&mut world, of(other), Call::Members).is_ok());
}

#[test]
fn members_and_tokens_survive_a_restart() {
    let mut world = world();
    let eve = member(&mut world, 1, Role::Admin);
    let open = token(&mut world, 2, Role::Donor, Some(2));
    let records = world.store.values().cloned().collect();
    world.coordinator = Coordinator::restore(records, world.now).expect("a good state");
    world.coordinator.tell_time_of_day(NOW);
    assert_eq!(world.coordinator.authority(), Some(&authority()));
    assert!(as_whom(&mut world, of(eve), Call::Members).is_ok());
    assert!(enrol(&mut world, &open).is_ok());
}
