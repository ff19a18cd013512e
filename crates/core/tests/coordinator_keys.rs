//! Keys of encrypted volumes: what the pool keeps of them, whom it gives them to, and what such a volume
//! cannot be.

use crate::pool::{E, World, assert_refused, attaching, creating, held_by, joining, volume};
use cheetah_core::api::{
    Answer, Attached, Call, Create, Enrol, GrantKey, Join, NewToken, Recertify, Refusal, RefusalCode, Size,
    WrappedKey,
};
use cheetah_core::content::{Source, ToLoad};
use cheetah_core::coordinator::AuthorityRecord;
use cheetah_core::map::{DonorId, Medium, MemberId};
use cheetah_core::members::{Caller, Member, Role, TokenHash, TokenSecret};

const CHECK: &str = "00000000000000aa";

fn key(wrapped: Option<&str>) -> WrappedKey {
    WrappedKey { check: CHECK.into(), wrapped: wrapped.map(str::to_owned), under: None }
}

fn encrypted(wrapped: Option<&str>) -> Create {
    Create { encrypted: Some(Box::new(key(wrapped))), ..creating("v", Size::Bytes(E), Some("linear")) }
}

fn as_whom(world: &mut World, caller: Caller, call: Call) -> Result<Answer, Refusal> {
    let before = std::mem::replace(&mut world.caller, caller);
    let answer = world.ask(call);
    world.caller = before;
    answer
}

/// A pool of members with a donor, and two clients.
fn members() -> (World, Member, Member) {
    let mut world = World::new();
    world.coordinator.adopt(AuthorityRecord { certificate: "certificate".into(), key: "key".into() });
    (world.caller, world.lender) = (Caller::Own, Caller::Own);
    world.join(1, 4).expect("joined");
    let mut member = |number: u8| {
        let (secret, hash) = (TokenSecret::new([number; 16]), TokenHash::new([number; 32]));
        let new = NewToken { hash: hash.clone(), role: Role::Client, uses: Some(1), seconds: 60 };
        as_whom(&mut world, Caller::Own, Call::NewToken(new)).expect("made");
        let enrol = Enrol { secret, key: public(number), name: "eve@lab".into() };
        match as_whom(&mut world, Caller::Stranger, Call::Enrol { enrol, hash }).expect("came in") {
            Answer::Enrolled(enrolled) => Member { id: enrolled.member, role: enrolled.role },
            other => panic!("{other:?}"),
        }
    };
    let (one, other) = (member(1), member(2));
    (world, one, other)
}

fn public(number: u8) -> String {
    format!("04{}", format!("{number:02x}").repeat(64))
}

fn attach(world: &mut World, member: Member) -> Attached {
    attach_to(world, "v", member)
}

fn attach_to(world: &mut World, name: &str, member: Member) -> Attached {
    let before = std::mem::replace(&mut world.caller, Caller::Member(member));
    let call = world.send(attaching(name, true));
    world.settle();
    let answer = world.answer(call);
    world.caller = before;
    match answer {
        Some(Ok(Answer::Attached(attached))) => attached,
        other => panic!("attached: {other:?}"),
    }
}

fn grant(member: MemberId, key: WrappedKey) -> Call {
    Call::GrantKey { name: "v".into(), grant: GrantKey { member, key } }
}

#[test]
fn each_member_is_given_what_was_wrapped_for_it_also_after_a_restart() {
    let (mut world, one, other) = members();
    as_whom(&mut world, Caller::Member(one), Call::Create(encrypted(Some("ab")))).expect("made");
    assert!(world.peek("v").map.encrypted && world.peek("v").status.encrypted);
    assert!(world.hear(1).volumes[0].encrypted, "donors keep what belongs to its blocks");
    assert_eq!(attach(&mut world, one).key.as_deref(), Some(&key(Some("ab"))));
    assert_eq!(attach(&mut world, other).key.as_deref(), Some(&key(None)));
    let refused = as_whom(&mut world, Caller::Member(other), grant(other.id, key(Some("cd"))));
    assert_refused(refused, RefusalCode::Forbidden, &["'v'", "by who was given it"]);
    as_whom(&mut world, Caller::Member(one), grant(other.id, key(Some("cd")))).expect("granted");
    world.restart();
    assert_eq!(attach(&mut world, other).key.as_deref(), Some(&key(Some("cd"))));
    assert_eq!(attach(&mut world, one).key.as_deref(), Some(&key(Some("ab"))));
    // Who has it gives it on.
    as_whom(&mut world, Caller::Member(other), grant(one.id, key(Some("ef")))).expect("granted");
    as_whom(&mut world, Caller::Own, Call::RevokeMember { member: one.id }).expect("revoked");
    let stored = format!("{:?}", world.store);
    assert!(
        stored.contains("\"cd\"") && !stored.contains("\"ef\""),
        "nothing is kept for who is out: {stored}"
    );
}

#[test]
fn what_is_no_key_of_the_volume_is_not_kept() {
    let (mut world, one, other) = members();
    as_whom(&mut world, Caller::Member(one), Call::Create(encrypted(Some("ab")))).expect("made");
    let mut ask = |call| as_whom(&mut world, Caller::Member(one), call);
    let another = WrappedKey { check: "00000000000000ab".into(), wrapped: Some("cd".into()), under: None };
    assert_refused(ask(grant(other.id, another)), RefusalCode::Invalid, &["not the key of volume 'v'"]);
    assert_refused(ask(grant(other.id, key(Some("xy")))), RefusalCode::Invalid, &["not the key"]);
    assert_refused(ask(grant(other.id, key(None))), RefusalCode::Invalid, &["wrapped for nobody"]);
    assert_refused(ask(grant(MemberId(9), key(Some("cd")))), RefusalCode::NotFound, &["no member"]);
    let plain = Call::Create(Create { name: "w".into(), encrypted: None, ..encrypted(None) });
    ask(plain).expect("made");
    let call =
        Call::GrantKey { name: "w".into(), grant: GrantKey { member: other.id, key: key(Some("cd")) } };
    assert_refused(ask(call), RefusalCode::Invalid, &["'w' is not encrypted"]);
    let bad = WrappedKey { check: "short".into(), wrapped: None, under: None };
    let bad = Create { encrypted: Some(Box::new(bad)), name: "x".into(), ..encrypted(None) };
    assert_refused(ask(Call::Create(bad)), RefusalCode::Invalid, &["none"]);
}

#[test]
fn a_members_public_key_is_the_one_that_was_certified_last() {
    let (mut world, one, other) = members();
    let shown = |world: &mut World, of: Member| match as_whom(
        world,
        Caller::Member(other),
        Call::Member { member: of.id },
    )
    .expect("shown")
    {
        Answer::Member(member) => member.key.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(&mut world, one), public(1));
    let recertify = Call::Recertify(Recertify { key: public(7) });
    as_whom(&mut world, Caller::Member(one), recertify).expect("certified");
    assert_eq!(shown(&mut world, one), public(7));
    let unknown = as_whom(&mut world, Caller::Member(one), Call::Member { member: MemberId(9) });
    assert_refused(unknown, RefusalCode::NotFound, &["no member"]);
}

#[test]
fn on_disk_it_lies_where_a_disk_has_a_place_for_its_tags() {
    let mut world = World::new();
    let disk = |id: u64, keeps_auths: bool| Join { medium: Medium::Disk, keeps_auths, ..joining(id, 4) };
    for id in [1, 2] {
        world.join_as(disk(id, false)).expect("one of an earlier version");
    }
    let mirrored = |name: &str| Create {
        on: Medium::Disk,
        encrypted: Some(Box::new(key(None))),
        ..creating(name, Size::Bytes(E), Some("mirror:2"))
    };
    let says = ["The disks of 2 donors", "earlier version", "`cheetah leave d1`"];
    assert_refused(world.ask(Call::Create(mirrored("v"))), RefusalCode::PoolFull, &says);
    let by_default = Create { redundancy: None, ..mirrored("v") };
    assert_refused(world.ask(Call::Create(by_default)), RefusalCode::PoolFull, &says);
    let plain = Create { encrypted: None, ..mirrored("plain") };
    world.ask(Call::Create(plain)).expect("it needs none");
    for id in [3, 4] {
        world.join_as(disk(id, true)).expect("joined");
    }
    let made = volume(world.ask(Call::Create(mirrored("v"))).expect("made"));
    assert_eq!(made.map.donors().collect::<Vec<_>>(), [DonorId(3), DonorId(4)]);
    // Also what one held that has gone is not rebuilt on them, and not after a restart.
    world.restart();
    for id in [1, 2] {
        world.join_as(disk(id, false)).expect("again");
    }
    for id in [3, 4] {
        world.join_as(disk(id, true)).expect("again");
    }
    world.ask(Call::Leave { donor: "d4".into(), force: true }).expect("it goes");
    world.settle();
    let map = world.peek("v").map;
    assert_eq!(held_by(&map, 1) + held_by(&map, 2), 0);
    assert!(map.groups.iter().flat_map(|group| &group.slots).all(|slot| slot.filling.is_none()), "{map:?}");
    world.join_as(disk(5, true)).expect("joined");
    world.settle();
    let filling =
        world.peek("v").map.groups.iter().flat_map(|group| group.slots.clone()).find_map(|slot| slot.filling);
    assert_eq!(filling.map(|place| place.donor), Some(DonorId(5)));
}

/// An overlay has a key of its own, and whoever may read what lies under it is given what opens that.
#[test]
fn an_overlay_of_an_encrypted_volume_is_encrypted_and_opened_by_the_key_of_that() {
    let (mut world, one, other) = members();
    let source = Source { name: "/e".into(), size: E, identity: "inode 7".into(), checksummed: false };
    let load = Some(Box::new(ToLoad { source, by: "eve".into(), backed: true, memory: None }));
    let base = Create { load, redundancy: None, ..encrypted(Some("ab")) };
    as_whom(&mut world, Caller::Member(one), Call::Create(base)).expect("made");
    let over = |of: &str, key: Option<WrappedKey>| {
        let create = Create { encrypted: key.map(Box::new), ..Create::new("o", Size::Bytes(1)) };
        Call::Create(Create { overlay_of: Some(of.into()), ..create })
    };
    let under = WrappedKey { check: "00000000000000bb".into(), wrapped: None, under: Some("ee".into()) };
    let mut ask = |call| as_whom(&mut world, Caller::Member(one), call);
    let says = ["'v' is encrypted", "`cheetah attach v --overlay`"];
    assert_refused(ask(over("v", None)), RefusalCode::Conflict, &says);
    assert_refused(
        ask(over("v", Some(key(Some("ab"))))),
        RefusalCode::Invalid,
        &["the key of its base opens"],
    );
    let alone = Create { encrypted: Some(Box::new(under.clone())), ..creating("x", Size::Bytes(E), None) };
    assert_refused(ask(Call::Create(alone)), RefusalCode::Invalid, &["of an overlay, and of nothing else"]);
    ask(over("v", Some(under.clone()))).expect("made");
    assert!(world.peek("o").map.encrypted && world.hear(1).volumes.iter().all(|volume| volume.encrypted));
    let given = |wrapped: Option<&str>| WrappedKey { wrapped: wrapped.map(str::to_owned), ..under.clone() };
    assert_eq!(attach_to(&mut world, "o", one).key.as_deref(), Some(&given(Some("ab"))));
    assert_eq!(attach_to(&mut world, "o", other).key.as_deref(), Some(&given(None)));
    // One grant opens both.
    let call =
        Call::GrantKey { name: "o".into(), grant: GrantKey { member: other.id, key: key(Some("cd")) } };
    let refused = as_whom(&mut world, Caller::Member(one), call);
    assert_refused(refused, RefusalCode::Invalid, &["'o' is an overlay of 'v'", "`cheetah grant v MEMBER`"]);
    as_whom(&mut world, Caller::Member(one), grant(other.id, key(Some("cd")))).expect("granted");
    world.restart();
    assert_eq!(attach_to(&mut world, "o", other).key.as_deref(), Some(&given(Some("cd"))));
    as_whom(&mut world, Caller::Own, Call::RevokeMember { member: one.id }).expect("revoked");
    assert_eq!(attach_to(&mut world, "o", other).key.as_deref(), Some(&given(Some("cd"))));
}
