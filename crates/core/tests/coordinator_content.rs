//! What a volume holds: loads that end, fail, go on or begin anew, and who wrote since.

use crate::pool::{E, World, creating, filling, joining, refused};
use cheetah_core::api::{
    Answer, Attach, Attached, Call, Create, Join, Refusal, RefusalCode, Renewed, Size, VolumeHealth,
};
use cheetah_core::content::{
    ByteRange, Check, Content, ContentState, Fill, FillFrom, Loaded, Source, Tell, ToLoad,
};
use cheetah_core::coordinator::Record;
use cheetah_core::limits::{LEASE_NS, SECOND_NS};
use cheetah_core::map::LeaseToken;

const SIZE: u64 = 3 * E / 2 + 5;

fn source(size: u64) -> Source {
    Source {
        name: "/e/disk.raw".into(),
        size,
        identity: "inode 7, modified 1.000000002".into(),
        checksummed: false,
    }
}

fn attach(world: &mut World, attach: Attach) -> Result<Attached, Refusal> {
    world.ask(Call::Attach { name: "v".into(), attach }).map(|answer| match answer {
        Answer::Attached(attached) => attached,
        other => panic!("{other:?}"),
    })
}

fn fill(world: &mut World, from: FillFrom, size: u64) -> Result<Attached, Refusal> {
    let fill = Some(Fill { source: source(size), from });
    attach(world, Attach { alone: true, fill, ..Attach::new(false, "eve") })
}

fn tell(world: &mut World, token: LeaseToken, tell: Tell) {
    let answer = world.ask(Call::Tell { name: "v".into(), token, tell });
    assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
}

fn done(bytes: u64) -> Tell {
    Tell { bytes_done: Some(bytes), ..Tell::default() }
}

fn loaded(check: Check) -> Tell {
    let (md5, sha256) = ("0".repeat(32), "a".repeat(64));
    let loaded = Loaded { md5, sha256, check, changed: None, unsealed: None, unreadable: Vec::new() };
    Tell { loaded: Some(Box::new(loaded)), ..Tell::default() }
}

fn content(world: &mut World) -> Content {
    *world.show("v").status.content
}

fn state(world: &mut World) -> ContentState {
    content(world).state
}

/// Three donors and an empty volume.
fn world() -> World {
    let mut world = World::with_donors(&[8, 8, 8]);
    world.coordinator.tell_time_of_day(1_000);
    world.create("v", Size::Bytes(SIZE), Some("parity:2+1")).expect("made");
    world
}

/// The same with a volume that was loaded and checked.
fn loaded_world() -> World {
    let mut world = world();
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    tell(&mut world, lease.token, loaded(Check::Same));
    world.detach("v", lease.token).expect("given back");
    world
}

#[test]
fn a_load_that_comes_to_its_end_is_known_with_its_hashes() {
    let mut world = world();
    assert_eq!(state(&mut world), ContentState::Fresh);
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    assert!(lease.fresh && !lease.read_only);
    assert_eq!(state(&mut world), ContentState::Loading);
    tell(&mut world, lease.token, done(E));
    let load = content(&mut world).load.expect("a load");
    assert_eq!((load.bytes_done, load.by.as_str(), load.begun), (E, "eve", 1_000));
    world.coordinator.tell_time_of_day(1_060);
    tell(&mut world, lease.token, loaded(Check::No));
    tell(&mut world, lease.token, loaded(Check::Same));
    // How far it was a while ago comes late.
    tell(&mut world, lease.token, done(E));
    world.detach("v", lease.token).expect("given back");
    let now = content(&mut world);
    let load = now.load.clone().expect("a load");
    assert_eq!((now.state, load.check, load.ended), (ContentState::Loaded, Check::Same, Some(1_060)));
    assert_eq!((load.md5, load.bytes_done), (Some("0".repeat(32)), SIZE));
    world.restart();
    assert_eq!(content(&mut world).state, ContentState::Loaded, "it is stored");
    assert_eq!(*world.status().volumes[0].content, content(&mut world), "list says what show says");
}

#[test]
fn who_ends_without_a_word_leaves_an_incomplete_volume() {
    let mut world = world();
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    tell(&mut world, lease.token, done(E));
    world.restart();
    assert_eq!(state(&mut world), ContentState::Loading, "its lease may go on");
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(state(&mut world), ContentState::Incomplete);
    for read_only in [true, false] {
        let refusal = attach(&mut world, Attach::new(read_only, "bob"));
        refused(
            refusal,
            &["incomplete", "64 MiB of 96 MiB", "/e/disk.raw", "eve", "--resume", "--incomplete"],
        );
    }
    refused(fill(&mut world, FillFrom::Fresh, SIZE), &["incomplete", "--resume", "--overwrite"]);
    let asked =
        attach(&mut world, Attach { incomplete: true, ..Attach::new(true, "bob") }).expect("asked for");
    assert_eq!(asked.content.state, ContentState::Incomplete);
    world.detach("v", asked.token).expect("given back");
    // A donor that moves what it holds is no tool.
    let moves = attach(&mut world, Attach { yields: true, ..Attach::new(false, "donor d1") }).expect("moves");
    world.detach("v", moves.token).expect("given back");
    assert_eq!(state(&mut world), ContentState::Incomplete);
}

#[test]
fn a_load_goes_on_from_what_is_there_and_from_the_same_source_only() {
    let mut world = world();
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    tell(&mut world, lease.token, done(E));
    world.detach("v", lease.token).expect("interrupted in order");
    assert_eq!(state(&mut world), ContentState::Incomplete);
    refused(fill(&mut world, FillFrom::Resume, SIZE - 1), &["another", "--overwrite"]);
    let mut other = source(SIZE);
    other.identity.push('1');
    let other = Some(Fill { source: other, from: FillFrom::Resume });
    refused(
        attach(&mut world, Attach { alone: true, fill: other, ..Attach::new(false, "eve") }),
        &["/e/disk.raw", "another or has changed since"],
    );
    let lease = fill(&mut world, FillFrom::Resume, SIZE).expect("the same source");
    assert!(!lease.fresh, "somebody wrote before");
    assert_eq!(lease.content.load.map(|load| load.bytes_done), Some(E));
    tell(&mut world, lease.token, loaded(Check::Same));
    world.detach("v", lease.token).expect("given back");
    assert_eq!(state(&mut world), ContentState::Loaded);
}

#[test]
fn overwriting_makes_the_volume_anew_and_its_size_follows() {
    let mut world = loaded_world();
    let before = world.show("v");
    refused(fill(&mut world, FillFrom::Fresh, 9), &["loaded or written before", "--overwrite"]);
    let lease = fill(&mut world, FillFrom::Overwrite, 1_000_003).expect("overwritten");
    assert!(lease.fresh, "every block is zero");
    let after = world.show("v");
    assert_eq!(after.map.size, 1_000_003);
    assert_eq!((after.map.redundancy, after.map.unit), (before.map.redundancy, before.map.unit));
    assert_ne!(after.map.volume, before.map.volume, "its donors wipe what they held of the other");
    tell(&mut world, lease.token, loaded(Check::Same));
    world.detach("v", lease.token).expect("given back");
    world.restart();
    world.settle();
    assert_eq!(world.status().volumes.len(), 1);
    assert_eq!(world.extents_of("v"), 3);
    // Larger as well, and over what is lost.
    let lease = fill(&mut world, FillFrom::Overwrite, 4 * E).expect("overwritten");
    assert_eq!((world.show("v").map.size, world.extents_of("v")), (4 * E, 6));
    world.detach("v", lease.token).expect("given back");
    // What does not fit leaves all as it was.
    let before = world.show("v");
    let refusal = fill(&mut world, FillFrom::Overwrite, 1_000 * E).expect_err("too large");
    assert_eq!(refusal.code, RefusalCode::PoolFull);
    let after = world.show("v");
    assert_eq!((after.map, after.status.content.state), (before.map, ContentState::Incomplete));
}

#[test]
fn a_volume_made_anew_on_too_few_hosts_is_moved_apart_when_another_joins() {
    let mut world = World::new();
    let join_on = |world: &mut World, id: u64, host: &str| {
        let join = Join { host: host.into(), machine: format!("boot of {host}"), ..joining(id, 8) };
        world.join_as(join).expect("joins");
    };
    [(1, "a"), (2, "a"), (3, "b")].into_iter().for_each(|(id, host)| join_on(&mut world, id, host));
    world.create("v", Size::Bytes(SIZE), Some("parity:2+1")).expect("made");
    let lease = fill(&mut world, FillFrom::Overwrite, SIZE).expect("overwritten");
    assert_eq!(world.show("v").status.health, VolumeHealth::Crowded);
    join_on(&mut world, 4, "c");
    assert_eq!(filling(&world.show("v").map).len(), 1, "one of its group");
    world.fill("v", lease.token);
    assert_eq!(world.show("v").status.health, VolumeHealth::Whole);
}

#[test]
fn a_load_that_writes_nothing_leaves_the_volume_as_it_was_made() {
    let mut world = world();
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    tell(&mut world, lease.token, Tell { untouched: true, ..Tell::default() });
    world.detach("v", lease.token).expect("given back");
    assert_eq!(content(&mut world), Content::default());
    // A coordinator that restarted meanwhile knows that nobody had written before.
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("as it was made");
    world.restart();
    tell(&mut world, lease.token, Tell { untouched: true, ..Tell::default() });
    world.detach("v", lease.token).expect("given back");
    assert_eq!(content(&mut world), Content::default());
    // Who hangs up before the answer cannot have written.
    let fill_of = Some(Fill { source: source(SIZE), from: FillFrom::Fresh });
    world.silence(1);
    let attach = Attach { alone: true, fill: fill_of, ..Attach::new(false, "eve") };
    let call = world.send(Call::Attach { name: "v".into(), attach });
    if world.answer(call).is_none() {
        world.step(cheetah_core::coordinator::Event::Hangup { call });
        assert_eq!(content(&mut world), Content::default());
    }
    // After a load that wrote, it cannot be said any more.
    let mut world = self::world();
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    tell(&mut world, lease.token, done(E));
    world.detach("v", lease.token).expect("interrupted");
    let lease = fill(&mut world, FillFrom::Resume, SIZE).expect("again");
    tell(&mut world, lease.token, Tell { untouched: true, ..Tell::default() });
    world.detach("v", lease.token).expect("given back");
    assert_eq!(state(&mut world), ContentState::Incomplete);
}

/// Whoever made it may be gone at any moment before it is loaded.
#[test]
fn a_volume_that_is_made_for_a_load_is_never_empty() {
    let made = || {
        let mut world = World::with_donors(&[8, 8, 8]);
        world.coordinator.tell_time_of_day(1_000);
        let load =
            Some(Box::new(ToLoad { source: source(SIZE), by: "eve".into(), backed: false, memory: None }));
        let create = Create { load, ..creating("v", Size::Bytes(SIZE), Some("parity:2+1")) };
        world.ask(Call::Create(create)).expect("made");
        world
    };
    let is_unusable = |world: &mut World| {
        let now = content(world);
        let load = now.load.as_ref().expect("a load");
        assert_eq!((now.state, load.bytes_done, load.by.as_str()), (ContentState::Incomplete, 0, "eve"));
        for read_only in [true, false] {
            let refusal = attach(world, Attach::new(read_only, "bob"));
            refused(refusal, &["incomplete", "/e/disk.raw", "eve", "nothing was loaded", "--resume"]);
        }
    };
    let mut world = made();
    is_unusable(&mut world);
    world.restart();
    is_unusable(&mut world);
    // One that ends before its first byte, or hangs up before it has the lease.
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("what it was made for");
    assert!(lease.fresh, "every block is zero");
    assert_eq!(state(&mut world), ContentState::Loading);
    tell(&mut world, lease.token, Tell { untouched: true, ..Tell::default() });
    refused(attach(&mut world, Attach::new(true, "bob")), &["is being filled by eve"]);
    world.detach("v", lease.token).expect("given back");
    is_unusable(&mut world);
    let mut world = made();
    world.silence(1);
    let fill_of = Some(Fill { source: source(SIZE), from: FillFrom::Fresh });
    let call = world.send(Call::Attach {
        name: "v".into(),
        attach: Attach { alone: true, fill: fill_of, ..Attach::new(false, "eve") },
    });
    assert!(world.answer(call).is_none(), "a donor has not confirmed it");
    world.step(cheetah_core::coordinator::Event::Hangup { call });
    is_unusable(&mut world);
    // The same load again, with or without --resume; another begins anew.
    let mut world = made();
    refused(fill(&mut world, FillFrom::Fresh, SIZE - 1), &["incomplete", "--overwrite"]);
    for from in [FillFrom::Fresh, FillFrom::Resume] {
        let lease = fill(&mut world, from, SIZE).expect("the same source");
        tell(&mut world, lease.token, Tell { untouched: true, ..Tell::default() });
        world.detach("v", lease.token).expect("given back");
        is_unusable(&mut world);
    }
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("the same source");
    tell(&mut world, lease.token, done(E));
    world.detach("v", lease.token).expect("interrupted");
    refused(fill(&mut world, FillFrom::Fresh, SIZE), &["64 MiB of 96 MiB", "--resume"]);
    let lease = fill(&mut world, FillFrom::Resume, SIZE).expect("the same source");
    tell(&mut world, lease.token, loaded(Check::Same));
    world.detach("v", lease.token).expect("given back");
    assert_eq!(state(&mut world), ContentState::Loaded);
}

#[test]
fn what_was_loaded_is_read_only_unless_asked_and_says_who_wrote() {
    let mut world = loaded_world();
    let tool = world.attach("v", false).expect("attached");
    assert!(tool.read_only, "evidence is not writable by default");
    let other = world.attach("v", false).expect("readers are several");
    assert!(tool.beside.is_empty() && other.beside.is_empty(), "readers do not concern each other");
    let answer = world.ask(Call::Tell {
        name: "v".into(),
        token: tool.token,
        tell: Tell { written: true, ..Tell::default() },
    });
    assert!(answer.is_err(), "who may not write did not");
    let writes = Attach { writable: true, ..Attach::new(false, "bob") };
    let writer = attach(&mut world, writes).expect("asked for");
    assert!(!writer.read_only);
    assert_eq!(writer.beside.len(), 2, "it is told of the readers");
    let renew = world.renew("v", tool.token, u64::MAX);
    world.pass(3 * SECOND_NS);
    let Some(Ok(Answer::Renewed(Renewed { beside, .. }))) = world.answer(renew) else { panic!("renewed") };
    assert_eq!(beside.iter().map(|other| other.holder.as_str()).collect::<Vec<_>>(), ["bob"]);
    assert_eq!(content(&mut world).written, None, "nothing was written yet");
    world.coordinator.tell_time_of_day(2_000);
    tell(&mut world, writer.token, Tell { written: true, ..Tell::default() });
    world.coordinator.tell_time_of_day(3_000);
    tell(&mut world, writer.token, Tell { written: true, ..Tell::default() });
    world.detach("v", writer.token).expect("given back");
    let now = content(&mut world);
    let written = now.written.expect("written since");
    assert_eq!(
        (now.state, written.at, written.by.as_str(), written.certain),
        (ContentState::Loaded, 2_000, "bob", true)
    );
    world.restart();
    assert!(content(&mut world).written.is_some(), "it is stored");
}

#[test]
fn a_writer_that_ends_without_a_word_may_have_written() {
    let mut world = loaded_world();
    let writes = Attach { writable: true, ..Attach::new(false, "bob") };
    let clean = attach(&mut world, writes.clone()).expect("asked for");
    world.detach("v", clean.token).expect("given back");
    assert_eq!(content(&mut world).written, None, "who gives its lease back has said all");
    world.coordinator.tell_time_of_day(5_000);
    attach(&mut world, writes).expect("asked for");
    world.coordinator.tell_time_of_day(6_000);
    world.restart();
    world.pass(LEASE_NS + SECOND_NS);
    let written = content(&mut world).written.expect("perhaps");
    assert_eq!((written.at, written.by.as_str(), written.certain), (5_000, "bob", false));
}

#[test]
fn what_the_source_could_not_give_is_in_the_map_once_it_is_loaded() {
    let mut world = world();
    let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
    let sector = |offset| ByteRange { offset, len: 512 };
    // Two in a row of blocks, one of each data slot.
    tell(&mut world, lease.token, Tell { unreadable: vec![sector(512)], ..done(E) });
    assert!(world.show("v").map.unreadable.is_empty(), "who loads it reads zeros there");
    let mut all = loaded(Check::Same);
    if let Some(loaded) = &mut all.loaded {
        loaded.unreadable = vec![sector(512), sector(65_536 + 1024), sector(1024)];
    }
    tell(&mut world, lease.token, all);
    world.detach("v", lease.token).expect("given back");
    let detail = world.show("v");
    let runs: Vec<_> = detail.map.unreadable.iter().map(|run| (run.slot, run.from, run.to)).collect();
    assert_eq!(runs, [(0, 512, 1536), (1, 1024, 1536)]);
    let ranges: Vec<_> =
        detail.unreadable.iter().map(|range| (range.offset, range.len, range.count)).collect();
    assert_eq!(ranges, [(512, 1024, 1), (65_536 + 1024, 512, 1)]);
    assert!(detail.lost.is_empty(), "no donor lost it");
    assert_eq!(detail.status.bytes_lost, 0);
    // An interrupted load knows of those it met.
    let lease = fill(&mut world, FillFrom::Overwrite, SIZE).expect("again");
    tell(&mut world, lease.token, Tell { unreadable: vec![sector(4096)], ..done(E) });
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(world.show("v").map.unreadable.len(), 1);
}

#[test]
fn a_state_of_before_content_was_stored_is_read() {
    let mut world = loaded_world();
    world.store.retain(|_, record| !matches!(record, Record::Content(_)));
    world.restart();
    let now = content(&mut world);
    assert_eq!((now.state, now.load), (ContentState::Written, None), "it may hold anything");
    let tool = world.attach("v", false).expect("attached");
    assert!(!tool.read_only, "nobody knows that it was loaded");
}

#[test]
fn a_load_does_not_go_on_over_what_a_tool_wrote() {
    for complete in [true, false] {
        let mut world = world();
        let lease = fill(&mut world, FillFrom::Fresh, SIZE).expect("fresh");
        tell(&mut world, lease.token, if complete { loaded(Check::Same) } else { done(E) });
        world.detach("v", lease.token).expect("given back");
        let writes = Attach { writable: true, incomplete: true, ..Attach::new(false, "bob") };
        let clean = attach(&mut world, writes.clone()).expect("asked for");
        world.detach("v", clean.token).expect("given back");
        let lease = fill(&mut world, FillFrom::Resume, SIZE).expect("nobody wrote");
        tell(&mut world, lease.token, if complete { loaded(Check::Same) } else { done(E) });
        world.detach("v", lease.token).expect("given back");
        let writer = attach(&mut world, writes.clone()).expect("asked for");
        world.coordinator.tell_time_of_day(1_764_108_907);
        tell(&mut world, writer.token, Tell { written: true, ..Tell::default() });
        world.detach("v", writer.token).expect("given back");
        let words = ["written by bob", "2025-11-25 22:15:07 UTC", "another volume", "--overwrite"];
        let before = content(&mut world);
        refused(fill(&mut world, FillFrom::Resume, SIZE), &words);
        assert_eq!(content(&mut world), before, "what is known of it stays");
        if !complete {
            let refusal = attach(&mut world, Attach::new(true, "bob")).expect_err("incomplete");
            assert!(refusal.message.contains("written by bob"), "{}", refusal.message);
            assert!(refusal.message.contains("--resume` is refused for that"), "{}", refusal.message);
        }
        let lease = fill(&mut world, FillFrom::Overwrite, SIZE).expect("asked for");
        assert!(lease.fresh && content(&mut world).written.is_none());
        world.detach("v", lease.token).expect("given back");
    }
    // Who ended without a word may have written.
    let mut world = loaded_world();
    attach(&mut world, Attach { writable: true, ..Attach::new(false, "bob") }).expect("asked for");
    world.pass(LEASE_NS + SECOND_NS);
    refused(fill(&mut world, FillFrom::Resume, SIZE), &["may have been written by bob", "--overwrite"]);
}
