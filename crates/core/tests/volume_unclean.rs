//! A writer and a donor end together: what the next writer believes, whom it waits for, and what it never
//! does meanwhile.

use crate::volume::{UNIT, World, wide};
use cheetah_core::api::{Amend, KeptSlot};
use cheetah_core::donor::ListedWrite;
use cheetah_core::limits::{EXTENT_BYTES, REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, Redundancy, VolumeMap};
use cheetah_core::volume::{Event, Key, LinkFailure, Op, PartError, PartOp, StatusRun, Volume, VolumeError};
use std::collections::BTreeMap;

const BLOCK: u32 = 4096;

/// Answers all that is asked; of a survey, that the first unit was written lately.
fn answer(world: &mut World) -> Vec<(DonorId, PartOp)> {
    let mut asked = Vec::new();
    for sent in world.sent() {
        asked.push((sent.donor, sent.op));
        let answer = match sent.op {
            PartOp::Survey => lately(sent.len),
            _ => vec![],
        };
        world.answer(sent.part, Ok(answer));
    }
    asked
}

/// Of so many bytes the first unit was written lately.
fn lately(len: u32) -> Vec<StatusRun> {
    vec![StatusRun { len: UNIT, hole: false }, StatusRun { len: len - UNIT, hole: true }]
}

/// Until the volume is served, or so long.
fn serve_within(world: &mut World, ns: u64) -> (bool, Vec<Amend>) {
    let (end, mut told) = (world.now + ns, Vec::new());
    while world.now < end && !world.volume.has_room() {
        answer(world);
        told.extend(world.amendments());
        if !world.volume.has_room() {
            world.wake();
        }
    }
    (world.volume.has_room(), told)
}

fn without(map: &VolumeMap, gone: DonorId) -> VolumeMap {
    let mut map = map.clone();
    map.epoch += 1;
    for slot in &mut map.groups[0].slots {
        slot.held = slot.held.filter(|held| held.donor != gone);
    }
    map.routes.remove(&gone);
    map
}

/// `parity:2+1` whose writer died; donor 1, which has data, fails like this, and the others were written
/// lately.
fn next_writer(failure: LinkFailure) -> World {
    let mut world = World::start(Volume::new(wide(Redundancy { data: 2, parity: 1 }), false, false));
    let session = world.session(DonorId(1));
    world.open(DonorId(2));
    world.open(DonorId(3));
    world.fail(DonorId(1), session, failure);
    world
}

#[test]
fn a_silent_donor_whose_data_would_be_missed_is_waited_for_and_keeps_its_memory() {
    let mut world = next_writer(LinkFailure::NotOpened("no connection within 2 s".into()));
    let (served, told) = serve_within(&mut world, 7 * SECOND_NS);
    assert!(!served);
    assert!(told.iter().all(|amend| amend.exclude.is_empty() && amend.bad.is_empty()), "{told:?}");
    world.comes_back(DonorId(1));
    let (served, told) = serve_within(&mut world, SECOND_NS);
    assert!(served, "all that is in doubt fits together again");
    assert!(told.iter().all(|amend| amend.exclude.is_empty() && amend.bad.is_empty()), "{told:?}");
}

#[test]
fn one_that_never_answers_is_held_back_and_all_else_is_served() {
    let mut world = next_writer(LinkFailure::NotOpened("no connection within 2 s".into()));
    let (served, told) = serve_within(&mut world, REQUEST_DEADLINE_NS + SECOND_NS);
    assert!(served);
    assert!(told.iter().all(|amend| amend.exclude.is_empty() && amend.bad.is_empty()), "{told:?}");
    // Its rows in doubt are errors at once, for reads and writes; other data can be read.
    let write = world.submit(Op::Write, 0, 2 * UNIT);
    let lost = world.submit(Op::Read, 0, BLOCK);
    assert_eq!(
        world.completed(),
        [(write, Err(VolumeError::DonorLost)), (lost, Err(VolumeError::DonorLost))]
    );
    let there = world.submit(Op::Read, u64::from(UNIT), BLOCK);
    answer(&mut world);
    assert_eq!(world.completed(), [(there, Ok(()))]);
    // Nor is it excluded later.
    for _ in 0..1_000 {
        answer(&mut world);
        world.wake();
    }
    assert!(world.amendments().iter().all(|amend| amend.exclude.is_empty()));
    world.comes_back(DonorId(1));
    for _ in 0..100 {
        answer(&mut world);
        if world.next_wake() < u64::MAX {
            world.wake();
        }
    }
    let write = world.submit(Op::Write, 0, 2 * UNIT);
    answer(&mut world);
    assert_eq!(world.completed(), [(write, Ok(()))]);
}

#[test]
fn one_whose_process_has_ended_is_taken_out_and_its_loss_is_recorded_before_anything_is_written() {
    let mut world = next_writer(LinkFailure::Refused("nothing listens there".into()));
    let (served, told) = serve_within(&mut world, 3 * SECOND_NS);
    assert!(!served, "the coordinator has recorded nothing");
    let out: Vec<DonorId> = told.iter().flat_map(|amend| &amend.exclude).map(|(donor, _)| *donor).collect();
    assert!(!out.is_empty() && out.iter().all(|donor| *donor == DonorId(1)), "{told:?}");
    let map = without(world.volume.map(), DonorId(1));
    world.step(Event::Amended(Some(map.clone())));
    let (served, told) = serve_within(&mut world, 3 * SECOND_NS);
    assert!(!served, "what is lost is not recorded");
    let bad: Vec<BadRange> = told.iter().flat_map(|amend| amend.bad.clone()).collect();
    let all = BadRange { group: 0, slot: 0, from: 0, to: UNIT };
    assert!(!bad.is_empty() && bad.iter().all(|bad| all.covers(bad)), "{bad:?}");
    world.step(Event::Amended(Some(VolumeMap { epoch: map.epoch + 1, bad: vec![all], ..map })));
    let (served, _) = serve_within(&mut world, 3 * SECOND_NS);
    assert!(served);
    let lost = world.submit(Op::Read, 0, BLOCK);
    assert_eq!(world.completed(), [(lost, Err(VolumeError::DonorLost))]);
    let write = world.submit(Op::Write, 0, 2 * UNIT);
    answer(&mut world);
    assert_eq!(world.completed(), [], "the coordinator would call it lost still");
    let told = (0..10).find_map(|_| {
        world.wake();
        world.amendments().pop()
    });
    assert_eq!(told.map(|amend| amend.rewritten), Some(vec![all]));
    let map = VolumeMap { epoch: world.volume.map().epoch + 1, ..world.volume.map().clone() };
    world.step(Event::Amended(Some(map)));
    assert_eq!(world.completed(), [(write, Ok(()))]);
}

/// `parity:2+1` without donor 1, whose writer died in the middle of a write of all three, which only donor 2
/// has.
fn half_written(undo: bool) -> World {
    let mut world = next_writer(LinkFailure::Refused("nothing listens there".into()));
    let map = without(world.volume.map(), DonorId(1));
    let mut surveys = 0;
    while surveys < 2 {
        for sent in world.sent() {
            let here = sent.op == PartOp::Survey && sent.donor == DonorId(2);
            let (from, to) = (0, u64::from(UNIT));
            let writes =
                vec![ListedWrite { from, to, number: 7, targets: 0b111, landed: true, undo, stale: false }];
            let writes = if here { writes } else { Vec::new() };
            if sent.op == PartOp::Survey {
                world.step(Event::Listed { part: sent.part, complete: 0, writes });
                surveys += 1;
            }
            world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }]));
        }
        world.wake();
    }
    world.step(Event::Amended(Some(map)));
    world
}

#[test]
fn a_write_that_too_few_have_is_undone_before_anything_is_served() {
    let mut world = half_written(true);
    let undone = loop {
        if let [sent] = world.sent()[..] {
            break sent;
        }
        assert!(!world.volume.has_room(), "it is served");
        world.wake();
    };
    assert_eq!((undone.donor, undone.op, undone.address, undone.len), (DonorId(2), PartOp::Undo, 0, UNIT));
    assert_eq!(undone.mark.map(|mark| mark.number), Some(7));
    assert!(!world.volume.has_room(), "it is not known to be undone");
    world.answer(undone.part, Ok(vec![]));
    let (served, told) = serve_within(&mut world, SECOND_NS);
    assert!(served && told.iter().all(|amend| amend.bad.is_empty()), "{told:?}");
    // What nobody holds is made from what fits together again.
    let read = world.submit(Op::Read, 0, BLOCK);
    world.serve();
    assert_eq!(world.completed(), [(read, Ok(()))]);
}

#[test]
fn who_cannot_undo_a_write_leaves_its_rows_unknown() {
    let mut world = half_written(true);
    for _ in 0..20 {
        for sent in world.sent() {
            let refused = Err(PartError::Unsupported);
            world.answer(sent.part, if sent.op == PartOp::Undo { refused } else { Ok(vec![]) });
        }
        world.wake();
    }
    let bad: Vec<BadRange> = world.amendments().into_iter().flat_map(|amend| amend.bad).collect();
    assert_eq!(bad.first(), Some(&BadRange { group: 0, slot: 0, from: 0, to: UNIT }));
    let mut world = half_written(false);
    for _ in 0..20 {
        assert!(answer(&mut world).iter().all(|(_, op)| *op != PartOp::Undo), "nothing is kept");
        world.wake();
    }
    assert!(world.amendments().iter().any(|amend| !amend.bad.is_empty()));
}

/// `parity:2+1` whose writer died in the middle of a write of all three, which donor 3 has half; the others
/// are asked for what makes that up.
fn half_written_at_parity() -> World {
    let mut world = World::start(Volume::new(wide(Redundancy { data: 2, parity: 1 }), false, false));
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    for sent in world.sent() {
        let (to, landed) = (u64::from(UNIT), sent.donor != DonorId(3));
        let write = ListedWrite { from: 0, to, number: 7, targets: 0b111, landed, undo: true, stale: false };
        world.step(Event::Listed { part: sent.part, complete: 0, writes: vec![write] });
        world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }]));
    }
    world
}

fn loses(world: &mut World, donor: DonorId) {
    world.lose(donor);
    let map = without(world.volume.map(), donor);
    world.step(Event::Map(map));
}

#[test]
fn a_write_that_is_made_up_is_undone_when_who_has_it_goes_meanwhile() {
    let mut world = half_written_at_parity();
    let reads = world.sent();
    assert!(reads.iter().all(|sent| sent.op == PartOp::Read), "{reads:?}");
    let read = reads.iter().find(|sent| sent.donor == DonorId(2)).expect("it has data").part;
    world.answer(read, Ok(vec![]));
    loses(&mut world, DonorId(1));
    let mut undone = Vec::new();
    for _ in 0..40 {
        for sent in world.sent() {
            if sent.op == PartOp::Undo {
                undone.push((sent.donor, sent.mark.map(|mark| mark.number)));
            }
            world.answer(sent.part, Ok(vec![]));
        }
        assert!(world.amendments().iter().all(|amend| amend.bad.is_empty()), "nothing is lost");
        if !world.volume.has_room() {
            world.wake();
        }
    }
    undone.sort_unstable();
    assert_eq!(undone, [(DonorId(2), Some(7)), (DonorId(3), Some(7))]);
    assert!(world.volume.has_room());
}

#[test]
fn a_write_that_is_made_up_stays_when_who_had_it_goes_behind_that() {
    let mut world = half_written_at_parity();
    for sent in world.sent() {
        world.answer(sent.part, Ok(vec![]));
    }
    world.serve_checks();
    let [write] = world.sent()[..] else { panic!("parity is written") };
    assert_eq!((write.donor, write.op), (DonorId(3), PartOp::Write));
    loses(&mut world, DonorId(1));
    world.answer(write.part, Ok(vec![]));
    assert!(world.sent().iter().all(|sent| sent.op != PartOp::Undo), "parity has what was made up");
    let (served, told) = serve_within(&mut world, SECOND_NS);
    assert!(served && told.iter().all(|amend| amend.bad.is_empty()), "{told:?}");
}

#[test]
fn a_part_of_a_block_that_is_lost_cannot_be_written() {
    let mut map = wide(Redundancy { data: 2, parity: 1 });
    map.bad = vec![BadRange { group: 0, slot: 0, from: 0, to: BLOCK }];
    let mut world = World::new(map, false);
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    let write = world.submit(Op::Write, 512, 512);
    assert_eq!(world.completed(), [(write, Err(VolumeError::DonorLost))]);
}

#[test]
fn who_is_excluded_keeps_what_only_its_memory_tells() {
    // Two groups of the same donors; rows of the first are in doubt, and donor 1 has missed a write to the
    // second.
    let mut map = wide(Redundancy { data: 2, parity: 1 });
    let mut second = map.groups[0].clone();
    second.slots.iter_mut().for_each(|slot| slot.held.as_mut().expect("held").extent = 1);
    map.groups.push(second);
    map.size *= 2;
    let mut world = World::start(Volume::new(map, false, false));
    let session = world.session(DonorId(1));
    world.open(DonorId(2));
    world.open(DonorId(3));
    world.fail(DonorId(1), session, LinkFailure::NotOpened("no connection within 2 s".into()));
    let mut told = Vec::new();
    for _ in 0..20 {
        for sent in world.sent() {
            let lately = |len, hole| StatusRun { len, hole };
            let first = sent.address < u64::from(64u32 << 20);
            let answer = match sent.op {
                PartOp::Survey if first => vec![lately(UNIT, false), lately(sent.len - UNIT, true)],
                PartOp::Survey => vec![lately(sent.len, true)],
                _ => vec![],
            };
            world.answer(sent.part, Ok(answer));
        }
        told.extend(world.amendments());
        world.wake();
    }
    let excludes: Vec<&Amend> = told.iter().filter(|amend| !amend.exclude.is_empty()).collect();
    assert!(!excludes.is_empty());
    assert!(excludes.iter().all(|amend| amend.keep == [KeptSlot { group: 0, slot: 0 }]), "{excludes:?}");
}

/// What the next writer of a `parity:2+2` records as lost, of which nobody holds slot 0 any more. The others
/// were written lately, and no number says by which write. Their fragments fit from one byte of an extent to
/// another, as `fits` says it.
fn lost_beside_a_slot_that_is_gone(fits: impl Fn(u64, u64) -> bool) -> Vec<BadRange> {
    let map = without(&wide(Redundancy { data: 2, parity: 2 }), DonorId(1));
    let mut world = World::start(Volume::new(map, false, false));
    (2..=4).for_each(|id| world.open(DonorId(id)));
    let (mut bad, end) = (Vec::new(), world.now + 3 * SECOND_NS);
    while world.now < end && !world.volume.has_room() {
        let mut rows: BTreeMap<(u64, u64), Vec<Key>> = BTreeMap::new();
        for sent in world.sent() {
            let at = sent.address % EXTENT_BYTES;
            match sent.op {
                PartOp::Read => rows.entry((at, at + u64::from(sent.len))).or_default().push(sent.part),
                PartOp::Survey => world.answer(sent.part, Ok(lately(sent.len))),
                _ => world.answer(sent.part, Ok(vec![])),
            }
        }
        for ((from, to), parts) in rows {
            parts.into_iter().for_each(|part| world.answer(part, Ok(vec![])));
            let right = fits(from, to);
            world.checks().into_iter().for_each(|job| world.step(Event::Verified { job, right }));
        }
        bad.extend(world.amendments().into_iter().flat_map(|amend| amend.bad));
        if !world.volume.has_room() {
            world.wake();
        }
    }
    assert_eq!(world.volume.has_room(), bad.is_empty(), "it is served when nothing is left to be recorded");
    bad.sort_unstable_by_key(|bad| bad.from);
    bad.dedup();
    bad
}

#[test]
fn rows_that_were_written_lately_and_fit_together_lose_nothing_beside_a_slot_that_is_gone() {
    assert_eq!(lost_beside_a_slot_that_is_gone(|_, _| true), []);
}

#[test]
fn of_rows_that_do_not_fit_together_a_missing_slot_has_lost_those_blocks_alone() {
    let torn = 2 * u64::from(BLOCK)..3 * u64::from(BLOCK);
    let fits = |from, to| to <= torn.start || torn.end <= from;
    let lost = BadRange { group: 0, slot: 0, from: 2 * BLOCK, to: 3 * BLOCK };
    assert_eq!(lost_beside_a_slot_that_is_gone(fits), [lost]);
}
