//! Volumes that were opened from a source: who fills one, and what becomes of it when that or a donor ends.

use crate::pool::{E, World};
use cheetah_core::api::{Answer, Attach, Attached, Call, Create, Refusal, Size, VolumeDetail};
use cheetah_core::content::{
    ByteRange, Check, ContentState, Fill, FillFrom, Filling, Loaded, OnDisk, Partition, Scheme, Source, Tell,
    ToLoad,
};
use cheetah_core::limits::{HOLDS_BYTES_MAX, LEASE_NS, PARTITIONS_TOLD_MAX, SECOND_NS, TEND_SILENCE_NS};
use cheetah_core::map::{Backing, Filler, LeaseToken, Redundancy};
use cheetah_core::text::is_harmless;

const SIZE: u64 = 2 * E + 5;

fn source(inode: u32) -> Source {
    Source { name: "/e/disk.E01".into(), size: SIZE, identity: format!("inode {inode}"), checksummed: true }
}

fn create(redundancy: Option<Redundancy>) -> Call {
    let load = Some(Box::new(ToLoad { source: source(7), by: "eve".into(), backed: true, memory: None }));
    Call::Create(Create { redundancy, load, ..Create::new("v", Size::Bytes(SIZE)) })
}

fn world() -> World {
    let mut world = World::with_donors(&[4, 4]);
    world.ask(create(None)).expect("made");
    world
}

fn attach(world: &mut World, attach: Attach) -> Result<Attached, Refusal> {
    world.ask(Call::Attach { name: "v".into(), attach }).map(|answer| match answer {
        Answer::Attached(attached) => attached,
        other => panic!("{other:?}"),
    })
}

fn fill(world: &mut World, inode: u32) -> Result<Attached, Refusal> {
    let fill = Some(Fill { source: source(inode), from: FillFrom::Open });
    attach(world, Attach { fill, ..Attach::new(false, "eve") })
}

fn tell(world: &mut World, token: LeaseToken, tell: Tell) {
    let answer = world.ask(Call::Tell { name: "v".into(), token, tell });
    assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
}

fn filler() -> Option<Filler> {
    Some(Filler { address: "10.0.0.9:1".into(), export: "fill.77".into() })
}

fn show(world: &mut World) -> VolumeDetail {
    world.show("v")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>, words: &str) {
    let refusal = result.expect_err("refused");
    assert!(refusal.message.contains(words), "{words:?} is not in: {}", refusal.message);
}

#[test]
fn tools_read_it_while_it_is_filled_and_hear_where_to_ask() {
    let mut world = world();
    let made = show(&mut world);
    assert_eq!(
        (made.status.redundancy, made.status.content.state),
        (Redundancy::LINEAR, ContentState::Opened)
    );
    assert!(world.donors.values().flat_map(|duties| &duties.volumes).all(|duty| duty.backed));
    let lease = fill(&mut world, 7).expect("nobody fills it");
    refused(fill(&mut world, 7), "is attached for writing by eve");
    tell(
        &mut world,
        lease.token,
        Tell { filler: filler().map(Box::new), bytes_done: Some(E), ..Tell::default() },
    );
    let reader = attach(&mut world, Attach::new(false, "bob")).expect("for reading");
    assert!(reader.read_only && reader.beside.is_empty(), "who fills it changes nothing of what bob reads");
    assert_eq!(reader.map.filler(), filler().as_ref());
    let shown = show(&mut world);
    assert_eq!(shown.map.filler().map(|filler| filler.export.as_str()), Some(""), "not to everybody");
    assert_eq!(shown.status.content.load.map(|load| load.bytes_done), Some(E));
    refused(
        attach(&mut world, Attach { writable: true, ..Attach::new(false, "bob") }),
        "only who fills it writes",
    );
}

#[test]
fn it_is_complete_when_that_is_told_and_only_then() {
    let mut world = world();
    let lease = fill(&mut world, 7).expect("nobody fills it");
    let bad = ByteRange { offset: 4096, len: 4096 };
    let filling = Some(Box::new(Filling { bytes_per_second: 5, ..Filling::default() }));
    tell(
        &mut world,
        lease.token,
        Tell { filler: filler().map(Box::new), unreadable: vec![bad], filling, ..Tell::default() },
    );
    assert_eq!(show(&mut world).map.unreadable.len(), 1, "an error to readers from now on");
    let (md5, sha256) = ("0".repeat(32), "a".repeat(64));
    let loaded =
        Loaded { md5, sha256, check: Check::Same, changed: None, unsealed: None, unreadable: vec![bad] };
    tell(&mut world, lease.token, Tell { loaded: Some(Box::new(loaded)), ..Tell::default() });
    world.detach("v", lease.token).expect("given back");
    let whole = show(&mut world);
    assert_eq!(whole.map.backing, Some(Backing { complete: true, ..Backing::default() }));
    let load = whole.status.content.load.expect("its load");
    assert_eq!((whole.status.content.state, load.filling), (ContentState::Loaded, None));
    refused(fill(&mut world, 7), "nothing left to fill");
    assert!(world.donors.values().flat_map(|duties| &duties.volumes).all(|duty| duty.backed), "still");
}

/// What proves it is written as it is filled; of what is never whole nothing is.
#[test]
fn what_is_to_be_sealed_has_room_for_proofs_from_when_it_is_filled_on() {
    let mut world = world();
    let begin = |size: u64| {
        let fill = Some(Fill { source: Source { size, ..source(7) }, from: FillFrom::Open });
        Attach { fill, proofs: true, ..Attach::new(false, "eve") }
    };
    let lease = attach(&mut world, begin(SIZE)).expect("nobody fills it");
    assert!(lease.map.proofs.is_some_and(|proofs| proofs.root.is_none()) && lease.map.check().is_ok());
    assert!(lease.map.bytes() > SIZE && !lease.read_only);
    world.detach("v", lease.token).expect("given back");
    let next = attach(&mut world, begin(SIZE)).expect("nobody fills it");
    assert_eq!(next.map.groups, lease.map.groups, "once is enough");
    let mut world = World::with_donors(&[4, 4]);
    world.ask(create_larger(9, 5 * E, None)).expect("made");
    let lease = attach(&mut world, begin(9 * E)).expect("nobody fills it");
    assert!(lease.map.layers() > 1 && lease.map.proofs.is_none());
}

#[test]
fn what_is_on_the_disk_is_bounded_and_stays_known() {
    let mut world = world();
    let lease = fill(&mut world, 7).expect("nobody fills it");
    let partition = |number| Partition {
        number,
        offset: u64::from(number) * 4096,
        len: 4096,
        holds: "\u{1b}[2J\u{202e}NTFS\n".repeat(100),
        encrypted: number == 2,
    };
    let told = OnDisk { scheme: Scheme::Gpt, partitions: (1..=200).map(partition).collect(), left_out: 5 };
    tell(&mut world, lease.token, Tell { on_disk: Some(Box::new(told)), ..Tell::default() });
    let known =
        |world: &mut World| show(world).status.content.load.expect("its load").on_disk.expect("it was told");
    let kept = known(&mut world);
    assert_eq!((kept.scheme, kept.partitions.len()), (Scheme::Gpt, PARTITIONS_TOLD_MAX));
    assert_eq!(kept.left_out, 5 + 200 - PARTITIONS_TOLD_MAX as u64);
    let is_fit = |text: &str| text.len() <= HOLDS_BYTES_MAX && text.chars().all(is_harmless);
    assert!(kept.partitions.iter().all(|partition| is_fit(&partition.holds)), "{kept:?}");
    assert_eq!((kept.partitions[1].offset, kept.partitions[1].encrypted), (8192, true));
    // What follows says nothing of it.
    tell(&mut world, lease.token, Tell { bytes_done: Some(E), ..Tell::default() });
    world.restart();
    assert_eq!(known(&mut world), kept, "it is stored");
    world.pass(LEASE_NS + 1);
    let lease = fill(&mut world, 7).expect("nobody fills it");
    assert_eq!(known(&mut world), kept, "for the next one as well");
    let (md5, sha256) = ("0".repeat(32), "a".repeat(64));
    let loaded =
        Loaded { md5, sha256, check: Check::Same, changed: None, unsealed: None, unreadable: Vec::new() };
    tell(&mut world, lease.token, Tell { loaded: Some(Box::new(loaded)), ..Tell::default() });
    world.detach("v", lease.token).expect("given back");
    assert_eq!(known(&mut world), kept, "when all is here");
}

#[test]
fn a_filler_that_ends_without_a_word_leaves_the_volume_to_the_next() {
    let mut world = world();
    let lease = fill(&mut world, 7).expect("nobody fills it");
    tell(
        &mut world,
        lease.token,
        Tell { filler: filler().map(Box::new), bytes_done: Some(E), ..Tell::default() },
    );
    world.pass(LEASE_NS + 1);
    let left = show(&mut world);
    let load = left.status.content.load.clone().expect("its load");
    assert_eq!((left.map.backing, load.filling, load.bytes_done), (Some(Backing::default()), None, E));
    assert!(left.status.content.is_usable() && left.status.content.written.is_none());
    refused(fill(&mut world, 8), "is another or has changed since");
    fill(&mut world, 7).expect("the same source");
}

#[test]
fn what_a_donor_took_with_it_has_a_new_home_at_once_and_is_absent_there() {
    let mut world = world();
    world.join(3, 4).expect("joins");
    let lease = fill(&mut world, 7).expect("nobody fills it");
    let held =
        |detail: &VolumeDetail, group: usize| detail.map.groups[group].slots[0].held.expect("a holder");
    let before = show(&mut world);
    let gone = held(&before, 0).donor;
    world.kill(gone.0);
    let after = show(&mut world);
    assert_ne!(held(&after, 0).donor, gone, "{:?}", after.map.groups);
    assert!(after.map.groups[0].slots[0].filling.is_none() && after.lost.is_empty());
    let _ = lease;
}

#[test]
fn what_a_silent_donor_has_is_read_anew_elsewhere_and_where_there_is_no_elsewhere_it_is_waited_for() {
    for has_room in [true, false] {
        let mut world = World::with_donors(&[2, 1]);
        world.ask(create(None)).expect("made, and all is taken");
        if has_room {
            world.join(3, 4).expect("joins");
        }
        let lease = fill(&mut world, 7).expect("nobody fills it");
        let before = show(&mut world);
        let silent = before.map.groups[0].slots[0].held.expect("a holder").donor;
        world.silence(silent.0);
        let holds = |world: &mut World| show(world).map.donors().any(|donor| donor == silent);
        assert!(holds(&mut world), "it may be back at once");
        for _ in 0..2 * TEND_SILENCE_NS / SECOND_NS {
            world.pass(SECOND_NS);
            world.renew("v", lease.token, 1);
        }
        assert_eq!(holds(&mut world), !has_room, "{has_room}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let mut world = World::with_donors(&[4, 4]);
    for redundancy in ["mirror:2", "parity:2+1"] {
        let redundancy = redundancy.parse().ok();
        refused(world.ask(create(redundancy)), "is read from the source again");
    }
    world.ask(create("stripe:2".parse().ok())).expect("made");
    refused(world.ask(Call::Grow { name: "v".into(), size: Size::All }), "does not grow");
}

/// A volume of so many extents that may take so much memory.
fn create_larger(extents: u64, memory: u64, redundancy: Option<&str>) -> Call {
    let source = Source { size: extents * E, ..source(7) };
    let load = Some(Box::new(ToLoad { source, by: "eve".into(), backed: true, memory: Some(memory) }));
    let redundancy = redundancy.map(|text| text.parse().expect("a redundancy"));
    let size = Size::Bytes(extents * E);
    Call::Create(Create { redundancy, load, ..Create::new("v", size) })
}

#[test]
fn a_volume_that_is_larger_than_its_memory_takes_that_and_no_more() {
    let mut world = World::with_donors(&[4, 4]);
    refused(world.ask(create_larger(9, 9 * E, None)), "too full");
    world.ask(create_larger(9, 5 * E + 7, None)).expect("made");
    let made = show(&mut world);
    assert_eq!((made.map.groups.len(), made.map.layers()), (5, 2));
    assert_eq!(made.status.content.load.as_ref().map(|load| load.memory), Some(Some(5 * E)));
    assert!(world.donors.values().flat_map(|duties| &duties.volumes).all(|duty| duty.layers == 2));
    let token = {
        let source = Source { size: 9 * E, ..source(7) };
        let fill = Some(Fill { source, from: FillFrom::Open });
        attach(&mut world, Attach { fill, ..Attach::new(false, "eve") }).expect("a lease").token
    };
    let loaded = Loaded {
        md5: "0".repeat(32),
        sha256: "0".repeat(64),
        check: Check::Same,
        changed: None,
        unsealed: None,
        unreadable: Vec::new(),
    };
    let tell = Tell { loaded: Some(Box::new(loaded)), ..Tell::default() };
    refused(world.ask(Call::Tell { name: "v".into(), token, tell }), "never holds all of its source");
}

#[test]
fn memory_that_is_too_little_is_refused_with_what_would_do() {
    let mut world = World::with_donors(&[4, 4]);
    refused(world.ask(create_larger(64, E, None)), "say --memory 128 MiB or more");
    refused(world.ask(create_larger(64, E - 1, None)), "is too little");
    refused(world.ask(create_larger(64, 2 * E, Some("stripe:2"))), "say --memory 256 MiB or more");
    world.ask(create_larger(63, E, None)).expect("a 63rd is enough");
}
