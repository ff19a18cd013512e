//! Reads that are answered from what was read ahead, and what makes that out of date.

use crate::volume::{A, B, Sent, World, map};
use cheetah_core::ahead::Rule;
use cheetah_core::limits::{AHEAD_KEEP_NS, REQUEST_DEADLINE_NS};
use cheetah_core::map::VolumeMap;
use cheetah_core::volume::{Caching, Effect, Event, Mem, Op, PartError, PartOp, Volume, VolumeError};

const LEN: u32 = 65536;
const CACHE: u32 = 4 << 20;
const KEEPS: Caching = Caching { bytes: CACHE, keeps: true, takes: false, rule: Rule::Streams };

fn world_of(map: VolumeMap, read_only: bool, caching: Caching) -> World {
    let mut world = World::start(Volume::new(map, read_only, true).with_cache(caching));
    world.open(A);
    world.open(B);
    world.effects.clear();
    world
}

/// What was sent for tools, and what is read ahead.
fn sent(world: &mut World) -> (Vec<Sent>, Vec<Sent>) {
    let ahead: Vec<bool> = (world.effects.iter())
        .filter_map(|effect| match effect {
            Effect::Send { mem: Mem::Cache, scatter, .. } => {
                assert!(scatter.pieces().all(|(start, len)| start + len <= CACHE), "outside of the cache");
                Some(true)
            }
            Effect::Send { .. } => Some(false),
            _ => None,
        })
        .collect();
    let (mut tools, mut cache) = (Vec::new(), Vec::new());
    for (sent, ahead) in world.sent().into_iter().zip(ahead) {
        if ahead { cache.push(sent) } else { tools.push(sent) }
    }
    (tools, cache)
}

fn answer(world: &mut World, sent: &[Sent]) {
    sent.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
}

/// A linear volume of which two reads were made that follow one another; what is read ahead of them is on its
/// way.
fn world_that_reads(read_only: bool, caching: Caching) -> (World, Vec<Sent>) {
    let mut world = world_of(map(false, false), read_only, caching);
    for number in 0..2 {
        world.submit(Op::Read, number * u64::from(LEN), LEN);
    }
    let (tools, ahead) = sent(&mut world);
    assert_eq!((tools.len(), ahead.is_empty()), (2, false), "{tools:?} {ahead:?}");
    answer(&mut world, &tools);
    assert_eq!(world.completed().len(), 2);
    (world, ahead)
}

#[test]
fn what_was_read_ahead_is_copied_and_asked_of_nobody() {
    let (mut world, ahead) = world_that_reads(false, KEEPS);
    answer(&mut world, &ahead);
    world.effects.clear();
    let tag = world.submit(Op::Read, 2 * u64::from(LEN), LEN);
    let copied: u32 = (world.effects.iter())
        .filter_map(|effect| match effect {
            Effect::Copy { from, to, len } if from.mem == Mem::Cache && to.mem == Mem::Payload(tag) => {
                Some(*len)
            }
            _ => None,
        })
        .sum();
    assert_eq!(copied, LEN);
    let (tools, _) = sent(&mut world);
    assert!(tools.is_empty(), "{tools:?}");
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_read_waits_for_what_is_on_its_way() {
    let (mut world, ahead) = world_that_reads(false, KEEPS);
    let tag = world.submit(Op::Read, 2 * u64::from(LEN) + 100, LEN / 2);
    assert_eq!(sent(&mut world).0.len(), 0);
    assert_eq!(world.completed(), []);
    answer(&mut world, &ahead);
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn a_read_that_waits_asks_donors_when_reading_ahead_fails() {
    let (mut world, ahead) = world_that_reads(false, KEEPS);
    let tag = world.submit(Op::Read, 2 * u64::from(LEN), LEN);
    sent(&mut world);
    ahead.iter().for_each(|sent| world.answer(sent.part, Err(PartError::Io)));
    let (tools, _) = sent(&mut world);
    assert_eq!(tools.len(), 1, "it asks itself");
    world.answer(tools[0].part, Err(PartError::Io));
    assert_eq!(world.completed(), [(tag, Err(VolumeError::DonorFailed))]);
}

#[test]
fn a_read_that_waits_is_answered_by_its_deadline() {
    let (mut world, _) = world_that_reads(false, KEEPS);
    world.now += 1_000;
    let tag = world.submit(Op::Read, 2 * u64::from(LEN), LEN);
    let deadline = world.now + REQUEST_DEADLINE_NS;
    while world.completed().iter().all(|(done, _)| *done != tag) {
        world.wake();
        assert!(world.now <= deadline);
    }
}

#[test]
fn a_write_makes_what_was_read_ahead_out_of_date() {
    for op in [Op::Write, Op::Zero { keep: false }, Op::Trim] {
        let (mut world, ahead) = world_that_reads(false, KEEPS);
        answer(&mut world, &ahead);
        world.submit(op, 2 * u64::from(LEN) + 4096, 4096);
        let (writes, _) = sent(&mut world);
        world.submit(Op::Read, 2 * u64::from(LEN), LEN);
        answer(&mut world, &writes);
        let (reads, _) = sent(&mut world);
        assert!(reads.iter().any(|read| read.op == PartOp::Read), "{op:?}: {reads:?}");
    }
}

#[test]
fn what_a_write_overtook_is_not_used_when_it_comes() {
    let (mut world, ahead) = world_that_reads(false, KEEPS);
    world.submit(Op::Write, 2 * u64::from(LEN), 4096);
    let (writes, _) = sent(&mut world);
    answer(&mut world, &ahead);
    let (late, _) = sent(&mut world);
    answer(&mut world, &writes);
    answer(&mut world, &late);
    world.completed();
    world.submit(Op::Read, 2 * u64::from(LEN), 4096);
    assert_eq!(sent(&mut world).0.len(), 1, "donors are asked");
}

#[test]
fn a_reader_uses_for_a_second_what_another_may_have_written_since() {
    let (mut world, ahead) = world_that_reads(true, KEEPS);
    answer(&mut world, &ahead);
    world.now += AHEAD_KEEP_NS / 2;
    world.submit(Op::Read, 2 * u64::from(LEN), LEN / 2);
    assert_eq!(sent(&mut world).0.len(), 0);
    world.now += AHEAD_KEEP_NS;
    world.submit(Op::Read, 2 * u64::from(LEN), LEN / 2);
    assert_eq!(sent(&mut world).0.len(), 1);
    let (mut world, ahead) = world_that_reads(true, KEEPS);
    answer(&mut world, &ahead);
    world.step(Event::Forget);
    world.submit(Op::Read, 2 * u64::from(LEN), LEN / 2);
    assert_eq!(sent(&mut world).0.len(), 1, "it was told to forget");
}

#[test]
fn what_was_read_stays_only_for_tools_that_do_not_keep_it() {
    for keeps in [true, false] {
        let (mut world, ahead) = world_that_reads(false, Caching { keeps, ..KEEPS });
        answer(&mut world, &ahead);
        let (first, all) = (2 * u64::from(LEN), 2 * LEN);
        world.submit(Op::Read, first, all);
        assert_eq!(sent(&mut world).0.len(), 0);
        world.submit(Op::Read, first, all);
        assert_eq!(sent(&mut world).0.is_empty(), keeps);
    }
}

#[test]
fn what_is_offered_to_a_reader_is_there_for_one_that_was_faster() {
    let mut world = world_of(map(false, false), true, Caching { takes: true, keeps: false, ..KEEPS });
    let mut place = 1000 * 4096;
    let mut offered = Vec::new();
    for _ in 0..20 {
        world.submit(Op::Read, place, 4096);
        let (tools, ahead) = sent(&mut world);
        answer(&mut world, &tools);
        answer(&mut world, &ahead);
        offered.extend(world.effects.iter().filter_map(|effect| match effect {
            Effect::Offer { offset, at, len } => Some((*offset, *at, *len)),
            _ => None,
        }));
        world.effects.clear();
        place -= 4096;
    }
    let (offset, at, len) = *offered.first().expect("an offer");
    assert!(at + len <= CACHE && len.is_multiple_of(4096) && offset < 1000 * 4096);
    world.submit(Op::Read, offset, 4096);
    assert_eq!(sent(&mut world).0.len(), 0, "it is still here");
}

#[test]
fn a_reader_that_is_offered_things_too_late_is_read_further_ahead_of() {
    let fetched = |takes: bool| {
        let mut world = world_of(map(false, false), true, Caching { takes, keeps: false, ..KEEPS });
        let mut bytes = 0;
        for number in 0..100 {
            // It asks for each, also for what it was offered.
            world.submit(Op::Read, (1000 - number) * 4096, 4096);
            let (tools, ahead) = sent(&mut world);
            bytes += ahead.iter().map(|sent| u64::from(sent.len)).sum::<u64>();
            answer(&mut world, &tools);
            answer(&mut world, &ahead);
            world.effects.clear();
        }
        bytes
    };
    let (in_time, late) = (fetched(false), fetched(true));
    assert!(late > in_time + 100_000, "{in_time} and {late} bytes");
}

#[test]
fn a_new_map_and_a_lost_lease_end_what_was_read_ahead() {
    let (mut world, ahead) = world_that_reads(false, KEEPS);
    answer(&mut world, &ahead);
    let mut newer = map(false, false);
    newer.epoch += 1;
    world.step(Event::Map(newer));
    world.submit(Op::Read, 2 * u64::from(LEN), LEN);
    assert_eq!(sent(&mut world).0.len(), 1);
    let (mut world, ahead) = world_that_reads(false, KEEPS);
    answer(&mut world, &ahead);
    world.step(Event::LeaseLost);
    for number in 2..6 {
        world.submit(Op::Read, number * u64::from(LEN), LEN);
        let (tools, ahead) = sent(&mut world);
        assert_eq!((tools.len(), ahead.len()), (1, 0));
    }
}

#[test]
fn memory_is_bounded_and_comes_back() {
    let mut world = world_of(map(false, false), false, KEEPS);
    for number in 0..900 {
        world.submit(Op::Read, number * u64::from(LEN), LEN);
        let (tools, ahead) = sent(&mut world);
        answer(&mut world, &tools);
        answer(&mut world, &ahead);
        world.effects.clear();
    }
}
