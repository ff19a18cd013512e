//! Blocks that a source is still to give: who fills the volume is asked, and donors are read again.

use crate::volume::{A, B, World, map};
use cheetah_core::layout::LAYER_SHIFT;
use cheetah_core::limits::{EXTENT_BYTES, REQUEST_DEADLINE_NS};
use cheetah_core::map::{Backing, Filler, Placement, VolumeMap};
use cheetah_core::volume::{Effect, Event, FetchError, Key, Op, PartError, PartOp, StatusRun, VolumeError};
use std::collections::BTreeSet;

const ABSENT: Result<Vec<StatusRun>, PartError> = Err(PartError::Absent);

fn backed(filler: bool) -> VolumeMap {
    let filler = filler.then(|| Filler { address: "127.0.0.1:2".into(), export: "fill".into() });
    VolumeMap { backing: Some(Backing { filler, ..Backing::default() }), ..map(false, false) }
}

fn reader(map: VolumeMap) -> World {
    let mut world = World::new(map, true);
    world.open(A);
    world.open(B);
    world.effects.clear();
    world
}

/// What who fills the volume was asked for since the last call.
fn asked(world: &mut World) -> Vec<(Key, u64, u32)> {
    let mut asked = Vec::new();
    world.effects.retain(|effect| match effect {
        Effect::Fetch { request, offset, len } => {
            asked.push((*request, *offset, *len));
            false
        }
        _ => true,
    });
    asked
}

fn absent(world: &mut World) {
    world.sent().iter().for_each(|sent| world.answer(sent.part, ABSENT));
}

#[test]
fn what_is_absent_is_brought_and_then_read_from_its_donor() {
    let mut world = reader(backed(true));
    let tag = world.submit(Op::Read, 4096, 8192);
    absent(&mut world);
    assert_eq!(world.completed(), []);
    let [(request, 4096, 8192)] = asked(&mut world)[..] else {
        panic!("asked once, for what the tool wants")
    };
    world.step(Event::Fetched { request, result: Ok(()) });
    assert!(asked(&mut world).is_empty());
    world.serve();
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn what_a_donor_has_wrong_is_brought_anew_and_of_a_volume_that_nobody_fills_it_is_an_error() {
    const WRONG: Result<Vec<StatusRun>, PartError> = Err(PartError::Corrupt { blocks: 1, forged: false });
    let wrong = |world: &mut World| {
        for _ in 0..10 {
            world.sent().iter().for_each(|sent| world.answer(sent.part, WRONG));
        }
    };
    let mut world = reader(backed(true));
    let tag = world.submit(Op::Read, 4096, 8192);
    wrong(&mut world);
    let [(request, 4096, 8192)] = asked(&mut world)[..] else { panic!("asked once") };
    assert_eq!(world.completed(), []);
    world.step(Event::Fetched { request, result: Ok(()) });
    world.serve();
    assert_eq!(world.completed(), [(tag, Ok(()))]);
    let mut world = reader(backed(false));
    let tag = world.submit(Op::Read, 4096, 8192);
    wrong(&mut world);
    assert_eq!((world.completed(), asked(&mut world)), (vec![(tag, Err(VolumeError::Corrupt))], vec![]));
}

#[test]
fn what_the_source_cannot_give_is_an_error_and_what_nobody_brings_too() {
    let mut world = reader(backed(true));
    let tag = world.submit(Op::Read, 0, 4096);
    absent(&mut world);
    let [(request, ..)] = asked(&mut world)[..] else { panic!("asked once") };
    world.step(Event::Fetched { request, result: Err(FetchError::Unreadable) });
    assert_eq!(world.completed(), [(tag, Err(VolumeError::Unreadable))]);
    // Who fills it is away: it is read again now and then, until its time is over.
    let (tag, begun) = (world.submit(Op::Read, 0, 4096), world.now);
    let mut tries = 0;
    while world.now < begun + REQUEST_DEADLINE_NS {
        absent(&mut world);
        for (request, ..) in asked(&mut world) {
            tries += 1;
            world.step(Event::Fetched { request, result: Err(FetchError::Away) });
        }
        if !world.effects.iter().any(|effect| matches!(effect, Effect::Complete { .. })) {
            world.wake();
        }
    }
    assert_eq!(world.completed(), [(tag, Err(VolumeError::TimedOut))]);
    assert!((2..100).contains(&tries), "{tries} tries");
    world.step(Event::Fetched { request, result: Ok(()) });
    assert_eq!(world.completed(), [], "an answer that comes late is nobody's");
}

#[test]
fn who_waits_for_a_filler_asks_the_next_one_at_once() {
    let mut world = reader(backed(false));
    let tag = world.submit(Op::Read, 0, 4096);
    absent(&mut world);
    assert_eq!((world.completed(), asked(&mut world)), (vec![], vec![]));
    world.step(Event::Map(VolumeMap { epoch: 2, ..backed(true) }));
    absent(&mut world);
    let [(request, 0, 4096)] = asked(&mut world)[..] else { panic!("asked once") };
    // What was brought and is gone again is not asked for at once: it may be moving.
    world.step(Event::Fetched { request, result: Ok(()) });
    absent(&mut world);
    assert_eq!((world.completed(), asked(&mut world)), (vec![], vec![]));
    let done = (0..100).find_map(|_| {
        world.wake();
        world.serve();
        world.completed().pop()
    });
    assert_eq!(done, Some((tag, Ok(()))));
}

#[test]
fn of_a_volume_that_is_complete_nothing_is_brought() {
    let mut whole = backed(true);
    whole.backing = Some(Backing { complete: true, ..Backing::default() });
    for map in [whole, map(false, false)] {
        let mut world = reader(map);
        let tag = world.submit(Op::Read, 0, 4096);
        absent(&mut world);
        assert_eq!(world.completed(), [(tag, Err(VolumeError::Absent))]);
    }
}

#[test]
fn the_end_of_the_volume_is_written_as_a_block() {
    let mut map = backed(true);
    map.size = EXTENT_BYTES + 8192 + 5;
    let mut world = World::up(map);
    let tag = world.submit(Op::Write, EXTENT_BYTES + 4096, 4096 + 5);
    loop {
        let sent = world.sent();
        let Some(read) = sent.iter().find(|sent| sent.op == PartOp::Read) else {
            let ends = sent.iter().map(|sent| sent.address + u64::from(sent.len)).max();
            assert_eq!(ends, Some(3 * 4096), "whole blocks, of B's only extent");
            sent.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
            break;
        };
        assert_eq!((read.address, read.len), (8192, 4096), "what is behind the end of the volume");
        sent.iter().for_each(|sent| {
            let answer = if sent.op == PartOp::Read { ABSENT } else { Ok(vec![]) };
            world.answer(sent.part, answer);
        });
    }
    world.serve();
    assert_eq!(world.completed(), [(tag, Ok(()))]);
    // In the middle of what is absent no part of a block can be written.
    let tag = world.submit(Op::Write, 100, 5);
    absent(&mut world);
    assert_eq!(world.completed(), [(tag, Err(VolumeError::Absent))]);
}

/// What is written to the new home of a slot of which only the first block is here.
fn moved(layers: u32) -> Vec<(PartOp, u64, u32)> {
    let mut map = backed(true);
    map.size = 3 * 4096 + u64::from(layers - 1) * EXTENT_BYTES;
    map.backing = Some(Backing { layers, ..Backing::default() });
    map.groups.truncate(1);
    map.groups[0].slots[0].filling = Some(Placement { donor: B, extent: 3 });
    let mut world = World::up(map);
    let mut written = Vec::new();
    for _ in 0..400 {
        if written.is_empty() && world.next_wake() < u64::MAX {
            world.wake();
        }
        for sent in world.sent() {
            let begins = sent.address.is_multiple_of(EXTENT_BYTES) && sent.address < 1 << LAYER_SHIFT;
            let first = begins && sent.len == 4096;
            match sent.op {
                PartOp::Read => world.answer(sent.part, if first { Ok(vec![]) } else { ABSENT }),
                PartOp::Presence => {
                    let here = if begins { 4096 } else { 0 };
                    let run = |len, hole| StatusRun { len, hole };
                    world.answer(sent.part, Ok(vec![run(here, false), run(sent.len - here, true)]));
                }
                _ => {
                    assert_eq!(sent.donor, B);
                    written.push((sent.op, sent.address, sent.len));
                    world.answer(sent.part, Ok(vec![]));
                }
            }
        }
        world.serve_checks();
    }
    let filled = world.amendments().into_iter().flat_map(|amend| amend.filled).count();
    assert_eq!(filled, 1, "it has moved");
    written
}

#[test]
fn what_is_absent_stays_so_where_it_moves() {
    let block = (PartOp::Sparse, 3 * EXTENT_BYTES, 4096);
    assert_eq!(moved(1), [block], "what there is, and nothing else");
    // Where blocks are dropped, an earlier attempt may have copied some that went since.
    let (writes, drops): (Vec<_>, Vec<_>) = moved(2).into_iter().partition(|(op, ..)| *op != PartOp::Trim);
    assert_eq!(writes, [block]);
    // Chunks that were on their way beside one that failed go twice.
    let blocks = |(_, address, len): &(PartOp, u64, u32)| (*address..address + u64::from(*len)).step_by(4096);
    let dropped: BTreeSet<u64> = drops.iter().flat_map(blocks).collect();
    let all = 2 + usize::try_from(EXTENT_BYTES / 4096).expect("a few");
    assert_eq!(dropped.len(), all, "all else, in both layers");
}

#[test]
fn presence_is_told_from_what_takes_no_memory() {
    let mut world = World::up(backed(true));
    let tag = world.submit(Op::Presence, 0, 12288);
    let sent = world.sent();
    assert_eq!((sent.len(), sent[0].op), (1, PartOp::Presence));
    world.answer(sent[0].part, Ok(vec![StatusRun { len: 4096, hole: false }]));
    let told = world.effects.iter().find_map(|effect| match effect {
        Effect::Complete { tag: of, status, .. } if *of == tag => Some(status.clone()),
        _ => None,
    });
    let (here, rest) = (StatusRun { len: 4096, hole: false }, StatusRun { len: 8192, hole: true });
    assert_eq!(told, Some(vec![here, rest]), "what a donor leaves unsaid is not taken for here");
}
