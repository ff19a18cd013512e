//! Sealed volumes: who may do what to one, and what donors are told of it.

use crate::coordinator_custody::{events, log};
use crate::pool::{E, World, assert_refused, refused};
use cheetah_core::api::{
    Answer, Attach, Attached, Call, Create, Refusal, RefusalCode, Size, Validation, WrappedKey,
};
use cheetah_core::content::{Check, ContentState, Fill, FillFrom, Loaded, Sealing, Source, Tell};
use cheetah_core::map::LeaseToken;
use cheetah_core::proofs::{Root, Tree};

const SIZE: u64 = 2 * E - 5;
const ROOT: Root = Root([7; 32]);

fn world() -> World {
    let mut world = World::with_donors(&[8, 8, 8]);
    world.create("v", Size::Bytes(SIZE), Some("parity:2+1")).expect("made");
    world
}

fn attach(world: &mut World, attach: Attach) -> Result<Attached, Refusal> {
    world.ask(Call::Attach { name: "v".into(), attach }).map(|answer| match answer {
        Answer::Attached(attached) => attached,
        other => panic!("{other:?}"),
    })
}

fn to_seal() -> Attach {
    Attach { proofs: true, ..Attach::new(false, "eve") }
}

fn fill(from: FillFrom) -> Attach {
    let (name, identity) = ("/e/disk.raw".to_owned(), "inode 7".to_owned());
    let fill = Some(Fill { source: Source { name, size: SIZE, identity, checksummed: false }, from });
    Attach { alone: true, proofs: true, fill, ..Attach::new(false, "eve") }
}

fn tell(world: &mut World, token: LeaseToken, tell: Tell) -> Result<Answer, Refusal> {
    world.ask(Call::Tell { name: "v".into(), token, tell })
}

fn sealing(root: Root) -> Tell {
    let (md5, sha1, sha256) = ("0".repeat(32), "1".repeat(40), "a".repeat(64));
    Tell {
        sealed: Some(Box::new(Sealing { root, contents: None, md5, sha1, sha256, by_reading: true })),
        ..Tell::default()
    }
}

fn loaded() -> Tell {
    let (md5, sha256) = ("0".repeat(32), "a".repeat(64));
    let loaded =
        Loaded { md5, sha256, check: Check::Same, changed: None, unsealed: None, unreadable: Vec::new() };
    Tell { loaded: Some(Box::new(loaded)), ..Tell::default() }
}

/// A volume that was loaded and sealed.
fn sealed_world() -> World {
    let mut world = world();
    let lease = attach(&mut world, fill(FillFrom::Fresh)).expect("fresh");
    assert!(lease.map.proofs.is_some() && lease.map.seal().is_none());
    tell(&mut world, lease.token, loaded()).expect("told");
    tell(&mut world, lease.token, sealing(ROOT)).expect("sealed");
    world.detach("v", lease.token).expect("given back");
    world
}

#[test]
fn room_for_proofs_is_behind_the_end_and_is_no_part_of_the_volume() {
    let mut world = world();
    let before = world.show("v").map;
    let lease = attach(&mut world, to_seal()).expect("nobody has it");
    let (map, tree) = (lease.map, Tree::new(SIZE));
    assert_eq!((map.size, map.bytes()), (SIZE, tree.begin() + tree.bytes()));
    assert_eq!(map.groups.len(), before.groups.len() + 1, "they do not fit beside the data");
    assert!(map.check().is_ok() && map.epoch > before.epoch);
    // Once is enough.
    world.detach("v", lease.token).expect("given back");
    let again = attach(&mut world, to_seal()).expect("nobody has it");
    assert_eq!(again.map.groups, map.groups);
    world.detach("v", again.token).expect("given back");
    let grown = world.grow("v", Size::Bytes(5 * E));
    assert!(grown.is_err_and(|refusal| refusal.message.contains("does not grow")));
}

#[test]
fn a_pool_without_room_says_so_by_the_map_and_lets_it_be_filled() {
    let mut world = World::with_donors(&[1, 1, 1]);
    world.create("v", Size::Bytes(SIZE), Some("parity:2+1")).expect("made");
    let lease = attach(&mut world, fill(FillFrom::Fresh)).expect("it can be filled");
    assert_eq!(lease.map.proofs, None);
    tell(&mut world, lease.token, loaded()).expect("told");
    let refusal = tell(&mut world, lease.token, sealing(ROOT)).expect_err("there is nothing to prove it by");
    assert!(refusal.message.contains("no room for the proofs"), "{}", refusal.message);
}

/// Told in one word, so that nobody who ends between two leaves one without the other; and told again, for
/// the answer may be lost.
#[test]
fn the_end_of_a_load_and_its_seal_are_told_together() {
    let mut world = world();
    let lease = attach(&mut world, fill(FillFrom::Fresh)).expect("fresh");
    let both = Tell { sealed: sealing(ROOT).sealed, ..loaded() };
    for _ in 0..2 {
        tell(&mut world, lease.token, both.clone()).expect("told");
        let content = world.show("v").status.content;
        assert_eq!(content.state, ContentState::Loaded);
        assert_eq!(content.sealed.expect("sealed").root, ROOT);
    }
    let other = Tell { sealed: sealing(Root([8; 32])).sealed, ..loaded() };
    let refusal = tell(&mut world, lease.token, other).expect_err("as something else");
    assert!(refusal.message.contains("sealed already"), "{}", refusal.message);
    let events = events(&log(&mut world, "v"));
    assert!(events.ends_with(&["filled".into(), "sealed".into()]), "{events:?}");
    assert_eq!(events.iter().filter(|event| *event == "sealed" || *event == "filled").count(), 2);
}

/// Why it is not, until it is.
#[test]
fn what_was_to_be_sealed_and_is_not_says_why() {
    let mut world = world();
    let lease = attach(&mut world, fill(FillFrom::Fresh)).expect("fresh");
    let mut told = loaded();
    let why = Some("the MD5 is another\u{1b}[2J".to_owned());
    told.loaded.iter_mut().for_each(|loaded| loaded.unsealed.clone_from(&why));
    tell(&mut world, lease.token, told).expect("told");
    let unsealed = |world: &mut World| world.show("v").status.content.load.expect("its load").unsealed;
    let said = unsealed(&mut world).expect("why");
    assert!(said.starts_with("the MD5 is another") && !said.contains('\u{1b}'), "{said}");
    assert_eq!(events(&log(&mut world, "v")).last().map(String::as_str), Some("not-sealed"));
    world.detach("v", lease.token).expect("given back");
    let lease = attach(&mut world, to_seal()).expect("nobody has it");
    tell(&mut world, lease.token, sealing(ROOT)).expect("sealed");
    assert_eq!(unsealed(&mut world), None);
}

#[test]
fn what_is_sealed_is_read_repaired_and_deleted_and_nothing_else() {
    let mut world = sealed_world();
    for attaching in [
        Attach { writable: true, ..Attach::new(false, "bob") },
        fill(FillFrom::Overwrite),
        fill(FillFrom::Resume),
        fill(FillFrom::Fresh),
        to_seal(),
        Attach { alone: true, ..Attach::new(true, "bob") },
    ] {
        let what = format!("{attaching:?}");
        let refusal = attach(&mut world, attaching).expect_err(&what);
        assert_eq!(refusal.code, RefusalCode::Conflict, "{what}");
        assert!(refusal.message.contains("was sealed by eve and is never changed"), "{}", refusal.message);
    }
    // Who does not say how reads it, and who repairs it may.
    let reader = attach(&mut world, Attach::new(false, "bob")).expect("for reading");
    assert!(reader.read_only && reader.map.seal() == Some(ROOT));
    let repairs = Attach { yields: true, ..Attach::new(false, "donor") };
    let tender = attach(&mut world, repairs).expect("it repairs");
    assert!(!tender.read_only);
    world.settle();
    let duties = world.hear(1);
    let duty = duties.volumes.first().expect("it holds some");
    assert!(duty.sealed && duty.repairs);
    assert_eq!((duty.writer, &duty.readers), (Some(tender.token), &vec![reader.token]));
    for token in [reader.token, tender.token] {
        world.detach("v", token).expect("given back");
    }
    world.restart();
    assert_eq!(world.show("v").map.seal(), Some(ROOT));
    world.delete("v").expect("it can be deleted");
}

/// The lease that it was sealed under writes no more either.
#[test]
fn donors_hear_of_no_writer_as_soon_as_it_is_sealed() {
    let mut world = world();
    let lease = attach(&mut world, to_seal()).expect("nobody has it");
    world.settle();
    assert_eq!(world.hear(1).volumes[0].writer, Some(lease.token));
    tell(&mut world, lease.token, sealing(ROOT)).expect("sealed");
    world.settle();
    let duties = world.hear(1);
    assert_eq!((duties.volumes[0].writer, &duties.volumes[0].readers), (None, &vec![lease.token]));
    // The answer was lost, and it is told again; but not as something else.
    tell(&mut world, lease.token, sealing(ROOT)).expect("as it is");
    refused(tell(&mut world, lease.token, sealing(Root([8; 32]))), &["is sealed already, as something else"]);
}

#[test]
fn what_is_not_whole_is_not_sealed() {
    let mut world = world();
    let lease = attach(&mut world, fill(FillFrom::Fresh)).expect("fresh");
    refused(tell(&mut world, lease.token, sealing(ROOT)), &["does not hold all"]);
    world.detach("v", lease.token).expect("given back");
    refused(attach(&mut world, to_seal()), &["is incomplete"]);
    let bad = Tell {
        sealed: sealing(ROOT).sealed.map(|sealed| Box::new(Sealing { md5: "x".repeat(32), ..*sealed })),
        ..Tell::default()
    };
    let lease = attach(&mut world, fill(FillFrom::Resume)).expect("it goes on");
    tell(&mut world, lease.token, loaded()).expect("told");
    let refusal = tell(&mut world, lease.token, bad).expect_err("no hash");
    assert_eq!(refusal.code, RefusalCode::Invalid, "{}", refusal.message);
}

#[test]
fn the_manifest_says_what_was_told() {
    let mut world = sealed_world();
    let Ok(Answer::Manifest(manifest)) = world.ask(Call::Manifest { name: "v".into() }) else {
        panic!("a sealed volume has one");
    };
    assert_eq!((manifest.bytes, manifest.hashes.blake3, manifest.sealed_by.as_str()), (SIZE, ROOT, "eve"));
    assert_eq!(manifest.source.map(|source| source.name), Some("/e/disk.raw".to_owned()));
    world.create("w", Size::Bytes(E), None).expect("made");
    refused(world.ask(Call::Manifest { name: "w".into() }), &["is not sealed", "`cheetah seal w`"]);
}

/// What is written under it are proofs, whatever becomes of who does that.
#[test]
fn who_ends_while_it_seals_has_not_written_the_volume() {
    let mut world = world();
    attach(&mut world, to_seal()).expect("nobody has it");
    world.pass(cheetah_core::limits::LEASE_NS + cheetah_core::limits::SECOND_NS);
    assert_eq!(world.show("v").status.content.written, None);
}

/// A reader beside a writer, a writer that did not ask for it, and somebody who says other hashes.
#[test]
fn only_who_took_it_for_that_seals_and_only_what_was_loaded() {
    let mut world = world();
    let writer = attach(&mut world, Attach::new(false, "bob")).expect("nobody has it");
    let reader = attach(&mut world, Attach { read_only: true, ..to_seal() }).expect("for reading");
    assert!(reader.read_only && reader.map.proofs.is_none(), "it makes no room");
    for token in [reader.token, writer.token] {
        let refusal = tell(&mut world, token, sealing(ROOT)).expect_err("it may not");
        assert!(world.show("v").map.seal().is_none(), "{}", refusal.message);
    }
    let mut world = self::world();
    let lease = attach(&mut world, fill(FillFrom::Fresh)).expect("fresh");
    tell(&mut world, lease.token, loaded()).expect("told");
    let other = sealing(ROOT).sealed.map(|sealed| Box::new(Sealing { sha256: "b".repeat(64), ..*sealed }));
    let other = Tell { sealed: other, ..Tell::default() };
    refused(tell(&mut world, lease.token, other), &["something else than was loaded"]);
    tell(&mut world, lease.token, sealing(ROOT)).expect("as it was loaded");
}

fn overlay(world: &mut World, name: &str, of: &str) -> Result<Answer, Refusal> {
    let create = Create { overlay_of: Some(of.into()), ..Create::new(name, Size::Bytes(1)) };
    world.ask(Call::Create(create))
}

#[test]
fn an_overlay_lies_over_what_nobody_changes_and_keeps_it() {
    let mut world = world();
    refused(overlay(&mut world, "o", "v"), &["volume 'v'", "may still be changed", "`cheetah seal v`"]);
    let mut world = sealed_world();
    let code = |answer: Result<Answer, Refusal>| answer.expect_err("refused").code;
    assert_eq!(code(overlay(&mut world, "o", "w")), RefusalCode::NotFound);
    overlay(&mut world, "o", "v").expect("it is sealed");
    let Answer::Volume(made) = world.ask(Call::Show { name: "o".into() }).expect("it is there") else {
        panic!("a volume")
    };
    let of = made.status.content.overlay.clone().expect("an overlay");
    assert_eq!((of.base.as_str(), of.size, made.map.size), ("v", SIZE, E), "it begins small");
    refused(overlay(&mut world, "p", "o"), &["volume 'o'", "is an overlay itself, of 'v'"]);
    refused(world.ask(Call::Delete { name: "v".into() }), &["volume 'v'", "'o': delete that first"]);

    // One uses it at a time, and it is made into nothing else.
    let over = |attach: Attach| Call::Attach { name: "o".into(), attach };
    let granted = world.ask(over(Attach::new(false, "eve"))).expect("nobody has it");
    let Answer::Attached(granted) = granted else { panic!("a lease") };
    assert_eq!(granted.content.overlay, Some(of), "who has it knows what is below");
    let said = world.ask(over(Attach::new(true, "bob"))).expect_err("eve has it").message;
    assert!(said.contains("attached for writing by eve") && !said.contains("--read-only"), "{said}");
    world.detach("o", granted.token).expect("given back");
    assert_eq!(code(world.ask(over(to_seal()))), RefusalCode::Invalid);
    assert_eq!(code(world.ask(over(fill(FillFrom::Overwrite)))), RefusalCode::Invalid);
    let Ok(Answer::Attached(reader)) = world.ask(over(Attach::new(true, "bob"))) else { panic!("nobody") };
    refused(world.ask(over(Attach::new(false, "eve"))), &["volume 'o'", "who reads it, bob"]);
    world.detach("o", reader.token).expect("given back");

    world.ask(Call::Delete { name: "o".into() }).expect("nobody has it");
    world.ask(Call::Delete { name: "v".into() }).expect("nothing lies over it");
}

/// The pool signs hashes in a form of its own, and never a text that a caller wrote.
#[test]
fn the_report_of_a_validation_is_signed_by_its_hashes_alone() {
    let mut world = World::with_donors(&[8]);
    let (html, json) = ("a".repeat(64), "b".repeat(64));
    let answer = world.ask(Call::Validation(Validation { html: html.clone(), json: json.clone() }));
    let Ok(Answer::Validated(validated)) = answer else { panic!("{answer:?}") };
    assert_eq!(validated.text, format!("{html}  validation.html\n{json}  validation.json\n"));
    assert!(validated.comment.starts_with("report of a validation, given to pool "), "{}", validated.comment);
    for html in ["", "A", &"A".repeat(64), &"g".repeat(64), &format!("{}\n", "a".repeat(63))] {
        let validation = Validation { html: html.to_owned(), json: json.clone() };
        assert_refused(world.ask(Call::Validation(validation)), RefusalCode::Invalid, &["SHA-256"]);
    }
}

/// What it is proved by and what it holds are two hashes, and whoever says one of them alone is refused.
#[test]
fn an_encrypted_volume_is_sealed_by_ciphertext_and_said_by_its_contents() {
    let mut world = World::with_donors(&[8, 8, 8]);
    let key = WrappedKey { check: "00000000000000aa".into(), wrapped: None, under: None };
    let create = Create { redundancy: "parity:2+1".parse().ok(), ..Create::new("v", Size::Bytes(SIZE)) };
    let create = Create { encrypted: Some(Box::new(key)), ..create };
    world.ask(Call::Create(create)).expect("made");
    let lease = attach(&mut world, to_seal()).expect("nobody has it");
    let tree = Tree::new(SIZE.next_multiple_of(4096));
    assert_eq!((lease.map.tree(), lease.map.bytes()), (tree, tree.end()), "whole blocks are proved");
    let contents = Root([9; 32]);
    let both = |contents| {
        let sealed = sealing(ROOT).sealed.map(|sealed| Box::new(Sealing { contents, ..*sealed }));
        Tell { sealed, ..Tell::default() }
    };
    let told = tell(&mut world, lease.token, both(None));
    assert_refused(told, RefusalCode::Invalid, &["'v' is encrypted", "what its contents are"]);
    assert!(world.show("v").map.seal().is_none());
    tell(&mut world, lease.token, both(Some(contents))).expect("sealed");
    let map = world.show("v").map;
    assert_eq!(map.seal(), Some(ROOT), "readers check ciphertext");
    let Ok(Answer::Manifest(manifest)) = world.ask(Call::Manifest { name: "v".into() }) else {
        panic!("a sealed volume has one");
    };
    assert_eq!((manifest.version, manifest.hashes.blake3, manifest.root()), (2, contents, ROOT));
    assert_eq!(manifest.encrypted.map(|encrypted| encrypted.root), Some(ROOT));

    let mut world = self::world();
    let lease = attach(&mut world, to_seal()).expect("nobody has it");
    let told = tell(&mut world, lease.token, both(Some(contents)));
    assert_refused(told, RefusalCode::Invalid, &["'v' is not encrypted"]);
    tell(&mut world, lease.token, both(None)).expect("sealed");
    let Ok(Answer::Manifest(manifest)) = world.ask(Call::Manifest { name: "v".into() }) else {
        panic!("one")
    };
    assert_eq!((manifest.version, manifest.encrypted.as_ref(), manifest.root()), (1, None, ROOT));
}
