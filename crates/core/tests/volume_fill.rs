//! A slot that gets a new holder: by many chunks at once, and no write is missed by what is there already.

use crate::volume::{Sent, UNIT, World, wide};
use cheetah_core::limits::{FILL_CHUNKS_MAX, RUSH_NS, SECOND_NS};
use cheetah_core::map::{DonorId, Redundancy, VolumeMap};
use cheetah_core::volume::{Effect, Event, LinkFailure, Op, PartError, PartOp};
use std::collections::BTreeSet;

const TO: DonorId = DonorId(1);
const CHUNK: u64 = 256 << 10;
/// Bytes of the volume in the rows of one chunk.
const ROWS: u64 = 3 * CHUNK;

/// Slot 0 of parity:3+1 has no holder and is given to donor 1; all links are up, and nothing is answered yet.
fn filling() -> (World, Vec<Sent>) {
    let mut map: VolumeMap = wide(Redundancy { data: 3, parity: 1 });
    let slot = &mut map.groups[0].slots[0];
    slot.filling = slot.held.take();
    let mut world = World::new(map, false);
    (1..=4).for_each(|id| world.open(DonorId(id)));
    world.wake();
    let sent = world.sent();
    (world, sent)
}

fn of_chunk(sent: &[Sent], op: PartOp, chunk: u64) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.op == op && sent.address == chunk * CHUNK).copied().collect()
}

/// Answers the lanes of a chunk; what is sent then.
fn read(world: &mut World, sent: &[Sent], chunk: u64) -> Vec<Sent> {
    let lanes = of_chunk(sent, PartOp::Read, chunk);
    assert_eq!(lanes.len(), 3, "{lanes:?}");
    lanes.iter().for_each(|lane| world.answer(lane.part, Ok(vec![])));
    let mut checks = Vec::new();
    world.effects.retain(|effect| match effect {
        Effect::Verify { job, .. } => {
            checks.push(*job);
            false
        }
        _ => true,
    });
    checks.into_iter().for_each(|job| world.step(Event::Verified { job, right: true }));
    world.sent()
}

/// As `read`, and its bytes reach the new holder.
fn complete(world: &mut World, sent: &[Sent], chunk: u64) -> Vec<Sent> {
    let mut next = read(world, sent, chunk);
    let written = of_chunk(&next, PartOp::Sparse, chunk);
    assert_eq!(written.iter().map(|sent| sent.donor).collect::<Vec<_>>(), [TO]);
    world.answer(written[0].part, Ok(vec![]));
    next.extend(world.sent());
    next
}

/// Who is sent a write of whole rows at the beginning of a chunk.
fn written(world: &mut World, chunk: u64) -> BTreeSet<u64> {
    world.submit(Op::Write, chunk * ROWS, 3 * UNIT);
    let sent = world.sent();
    sent.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
    let writes = sent.iter().filter(|sent| sent.op == PartOp::Write);
    writes.map(|sent| sent.donor.0).collect()
}

#[test]
fn one_slot_is_filled_by_as_many_chunks_at_once_as_may_be() {
    let (_, sent) = filling();
    let chunks: BTreeSet<u64> = sent.iter().map(|sent| sent.address / CHUNK).collect();
    assert_eq!(chunks, (0..u64::from(FILL_CHUNKS_MAX)).collect());
}

/// A tool writes a little.
fn used(world: &mut World) {
    world.submit(Op::Write, 0, 3 * UNIT);
    let sent = world.sent();
    sent.iter().filter(|sent| sent.op == PartOp::Write).for_each(|sent| world.answer(sent.part, Ok(vec![])));
}

/// The parts that are sent when slot 0 is given to another while a tool uses the volume.
fn filling_beside_a_tool(redundancy: Redundancy) -> (World, Vec<Sent>) {
    let mut map: VolumeMap = wide(redundancy);
    let mut world = World::new(map.clone(), false);
    (1..=u64::from(redundancy.width())).for_each(|id| world.open(DonorId(id)));
    used(&mut world);
    let slot = &mut map.groups[0].slots[0];
    slot.filling = slot.held.take();
    map.epoch += 1;
    world.step(Event::Map(map));
    let sent = world.sent();
    (world, sent)
}

/// How many chunks are read of which nothing was.
fn begun(sent: &[Sent]) -> usize {
    let lanes = sent.iter().filter(|sent| sent.op == PartOp::Read);
    lanes.map(|sent| sent.address).collect::<BTreeSet<u64>>().len()
}

#[test]
fn what_can_lose_no_more_is_rebuilt_before_the_tools_but_not_for_long() {
    let all = FILL_CHUNKS_MAX as usize;
    for (later, goes_on) in [(0, true), (RUSH_NS, false)] {
        let (mut world, first) = filling_beside_a_tool(Redundancy { data: 3, parity: 1 });
        assert_eq!(begun(&first), all);
        world.now += later;
        used(&mut world);
        let next: Vec<Sent> =
            (0..FILL_CHUNKS_MAX.into()).flat_map(|chunk| complete(&mut world, &first, chunk)).collect();
        let begun = begun(&next);
        assert!(if goes_on { begun == all } else { begun < all / 2 }, "{begun} after {later} ns");
    }
    let (_, sent) = filling_beside_a_tool(Redundancy { data: 3, parity: 2 });
    assert!(begun(&sent) < all / 2, "what can lose one more has time: {}", begun(&sent));
}

#[test]
fn a_chunk_that_is_there_before_an_earlier_one_gets_what_is_written_to_it() {
    let (mut world, sent) = filling();
    complete(&mut world, &sent, 2);
    assert_eq!(written(&mut world, 2), [1, 2, 3, 4].into());
    assert_eq!(written(&mut world, 40), [2, 3, 4].into(), "it will be copied with the rest");
    // One write over what is there and what is not: all of it is sent, or some of what is there would be old.
    world.submit(Op::Write, 2 * ROWS + ROWS - u64::from(3 * UNIT), 6 * UNIT);
    let sent = complete(&mut world, &sent, 3);
    let both = sent.iter().filter(|sent| sent.op == PartOp::Write && sent.donor == TO);
    assert!(both.count() > 0, "{sent:?}");
}

#[test]
fn what_follows_a_chunk_that_failed_is_copied_again() {
    let (mut world, sent) = filling();
    complete(&mut world, &sent, 2);
    let next = read(&mut world, &sent, 0);
    let first = of_chunk(&next, PartOp::Sparse, 0)[0];
    world.answer(first.part, Err(PartError::Io));
    assert_eq!(written(&mut world, 2), [2, 3, 4].into(), "from now on it misses what is written there");
    // The others, which were on their way, count for nothing either.
    for chunk in (1..u64::from(FILL_CHUNKS_MAX)).filter(|chunk| *chunk != 2) {
        complete(&mut world, &sent, chunk);
    }
    assert_eq!(world.sent().len(), 0, "it is not tried again at once");
    let end = world.now + SECOND_NS;
    let mut again = Vec::new();
    while world.now < end {
        world.wake();
        again.extend(world.sent());
    }
    let chunks: BTreeSet<u64> = again.iter().map(|sent| sent.address / CHUNK).collect();
    assert!([0, 1, 2].iter().all(|chunk| chunks.contains(chunk)), "{chunks:?}");
}

/// The place is taken back: slot 0 has nobody.
fn take_back(world: &mut World) {
    let mut map: VolumeMap = wide(Redundancy { data: 3, parity: 1 });
    map.groups[0].slots[0].held = None;
    map.epoch += 1;
    world.step(Event::Map(map));
}

#[test]
fn what_was_read_for_a_place_that_was_taken_back_is_not_written_there() {
    let (mut world, sent) = filling();
    take_back(&mut world);
    // By now the place may be another slot's: its bytes would be written over.
    let next = read(&mut world, &sent, 0);
    assert!(next.iter().all(|sent| sent.donor != TO), "{next:?}");
}

#[test]
fn what_waits_for_the_link_to_a_place_that_was_taken_back_is_not_sent_there() {
    for is_taken_back in [false, true] {
        let (mut world, sent) = filling();
        complete(&mut world, &sent, 2);
        let broken = LinkFailure::Broken("a cable".into());
        world.fail(TO, world.session(TO), broken);
        world.submit(Op::Write, 2 * ROWS, 3 * UNIT);
        if is_taken_back {
            take_back(&mut world);
        }
        world.sent();
        world.open(TO);
        let writes = world.sent().iter().filter(|sent| sent.donor == TO && sent.op == PartOp::Write).count();
        assert_eq!(writes, usize::from(!is_taken_back));
    }
}

/// Fills slot 0 while what a donor has in its first block is wrong: what is recorded as lost, by slot, and
/// who got the first block anew.
fn fill_beside_a_wrong_block(wrong: DonorId) -> (BTreeSet<u32>, BTreeSet<DonorId>) {
    let (mut world, mut sent) = filling();
    let mut map = world.volume.map().clone();
    let (mut written, mut filled) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..40 {
        for part in &sent {
            let is_first = part.address == 0;
            let here = part.len == 4096 && is_first;
            let is_wrong = part.donor == wrong && is_first && !written.contains(&wrong);
            let answer = match part.op {
                PartOp::Read if is_wrong => Err(PartError::Corrupt { blocks: 1, forged: false }),
                PartOp::Write if here && part.donor != TO => {
                    assert!(!map.bad.is_empty(), "what is not recorded as lost could be read");
                    written.insert(part.donor);
                    Ok(vec![])
                }
                PartOp::Sparse => {
                    assert_eq!(part.donor, TO);
                    filled.insert((part.address, part.len));
                    Ok(vec![])
                }
                _ => Ok(vec![]),
            };
            world.answer(part.part, answer);
        }
        world.serve_checks();
        for amend in world.amendments() {
            assert!(amend.bad.iter().all(|bad| (bad.from, bad.to) == (0, 4096)), "{amend:?}");
            map.bad.extend(amend.bad);
            map.epoch += 1;
            world.step(Event::Amended(Some(map.clone())));
        }
        sent = world.sent();
        if sent.is_empty() && !filled.contains(&(0, 4096)) {
            world.wake();
            sent = world.sent();
        }
    }
    assert!(filled.contains(&(0, 4096)) && filled.contains(&(4096, 4096)), "{filled:?}");
    (map.bad.iter().map(|bad| bad.slot).collect(), written)
}

#[test]
fn a_block_that_nothing_gives_back_is_lost_alone_and_its_row_fits_together_again() {
    let (data, parity) = (DonorId(3), DonorId(4));
    let lost = fill_beside_a_wrong_block(data);
    assert_eq!(lost, ([0, 2].into(), [data, parity].into()), "what was missing, and what was wrong");
    let lost = fill_beside_a_wrong_block(parity);
    assert_eq!(lost, ([0].into(), [parity].into()), "what only the wrong parity gave");
}
