//! Reads of a sealed volume: what came and is not proved yet, and parity that lies, of which there is no
//! proof.

use crate::volume::{UNIT, World, wide};
use cheetah_core::limits::{Patience, TICK_NS};
use cheetah_core::map::{DonorId, Proofs, Redundancy, VolumeMap};
use cheetah_core::proofs::{Root, Tree};
use cheetah_core::volume::{Effect, Event, LinkFailure, Op, PartError, PartOp, Unproved, VolumeError};

fn sealed(data: u32, parity: u32) -> VolumeMap {
    let map = wide(Redundancy { data, parity });
    // Its proofs lie in the last of its extents.
    let size = map.size - (2 << 20);
    VolumeMap { size, proofs: Some(Proofs { root: Some(Root([7; 32])) }), ..map }
}

/// A reader, with all but these.
fn world_without(map: VolumeMap, lost: &[u64]) -> World {
    map.check().expect("a sound map");
    let donors: Vec<DonorId> = map.donors().collect();
    let mut world = World::new(map, true);
    for donor in donors {
        if lost.contains(&donor.0) { world.refuse(donor) } else { world.open(donor) }
    }
    world.effects.clear();
    world
}

fn asked(world: &mut World) -> Vec<(u64, cheetah_core::volume::Key)> {
    let reads = world.sent().into_iter().filter(|sent| sent.op == PartOp::Read);
    reads.map(|sent| (sent.donor.0, sent.part)).collect()
}

/// Data slot 0 is away. Parity of donor 3 is a lie, which shows by what is made of it.
#[test]
fn what_one_parity_gave_wrong_is_made_from_another() {
    let mut world = world_without(sealed(2, 2), &[1]);
    let tag = world.submit(Op::Read, 0, UNIT);
    let first = asked(&mut world);
    assert_eq!(first.iter().map(|(donor, _)| *donor).collect::<Vec<_>>(), [2, 3]);
    first.iter().for_each(|(_, part)| world.answer(*part, Ok(vec![])));
    for job in world.checks() {
        world.step(Event::Verified { job, right: false });
    }
    let second = asked(&mut world);
    assert_eq!(second.iter().map(|(donor, _)| *donor).collect::<Vec<_>>(), [2, 4]);
    second.iter().for_each(|(_, part)| world.answer(*part, Ok(vec![])));
    for job in world.checks() {
        world.step(Event::Verified { job, right: true });
    }
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

#[test]
fn where_all_parity_gives_it_wrong_it_is_an_error() {
    let mut world = world_without(sealed(2, 2), &[1]);
    let tag = world.submit(Op::Read, 0, 4096);
    let ended = (0..8).find_map(|_| {
        asked(&mut world).iter().for_each(|(_, part)| world.answer(*part, Ok(vec![])));
        for job in world.checks() {
            world.step(Event::Verified { job, right: false });
        }
        world.completed().pop()
    });
    assert!(
        matches!(ended, Some((ended, Err(VolumeError::DonorLost | VolumeError::Corrupt))) if ended == tag)
    );
}

/// A block that its donor stands by is not asked for again, and counts against that donor's memory.
#[test]
fn what_is_forged_is_gone_round_at_once_and_counted() {
    let mut world = world_without(sealed(1, 1), &[]);
    let tag = world.submit(Op::Read, 0, 4096);
    let first = asked(&mut world);
    world.answer(first[0].1, Err(PartError::Corrupt { blocks: 1, forged: true }));
    let second = asked(&mut world);
    assert_ne!(first[0].0, second[0].0);
    world.answer(second[0].1, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
    let report = world.volume.report();
    assert_eq!(report.wrong_in_memory, [(DonorId(first[0].0), 1)]);
    assert_eq!(report.corrupt_blocks, report.wrong_in_memory);
}

/// It waits for its proof, which another donor has; who sent it owes nothing.
#[test]
fn a_donor_whose_answer_waits_for_a_proof_is_not_silent() {
    let mut world = world_without(sealed(2, 1), &[]);
    let tag = world.submit(Op::Read, 0, UNIT);
    let read = asked(&mut world)[0];
    world.step(Event::Came { part: read.1 });
    let until = world.now + Patience::MEMORY.silence_ns + 4 * TICK_NS;
    while world.next_wake() < until {
        world.wake();
    }
    assert!(world.volume.lost().next().is_none() && asked(&mut world).is_empty(), "somebody else was asked");
    world.answer(read.1, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

/// What came and was not proved goes with its connection, and is asked for anew.
#[test]
fn what_came_is_asked_for_again_when_its_link_breaks() {
    let mut world = world_without(sealed(1, 0), &[]);
    let tag = world.submit(Op::Read, 0, 4096);
    let read = asked(&mut world)[0];
    world.step(Event::Came { part: read.1 });
    let donor = DonorId(read.0);
    world.fail(donor, 1, LinkFailure::Broken("gone".into()));
    assert!(
        world.effects.iter().any(|effect| matches!(effect, Effect::Close { donor: of, .. } if *of == donor))
    );
    world.open(donor);
    let again = asked(&mut world);
    assert_eq!(again, [read]);
    world.answer(again[0].1, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
}

/// Rows that hold proofs are rebuilt by a job that works alone on them, and a read of a proof waits for it.
/// So what that job reads does not wait for a proof of these rows; what is rebuilt elsewhere may.
#[test]
fn a_rebuild_of_proofs_does_not_wait_for_them() {
    let mut map = sealed(2, 1);
    let begin = Tree::new(map.size).begin();
    let slot = &mut map.groups[0].slots[0];
    slot.filling = slot.held.take();
    let mut world = World::new(map, false);
    (1..=3).for_each(|id| world.open(DonorId(id)));
    world.wake();
    let (mut elsewhere, mut here) = (0, 0);
    let mut sent = world.sent();
    while here == 0 {
        for part in sent.iter().filter(|sent| sent.op == PartOp::Read) {
            let of_proofs = 2 * (part.address + u64::from(part.len)) > begin;
            let bars = world.volume.goes_without_proof(Unproved::Part(part.part), begin);
            assert_eq!(bars, of_proofs, "{part:?}");
            *(if of_proofs { &mut here } else { &mut elsewhere }) += 1;
        }
        sent.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
        for job in world.checks() {
            world.step(Event::Verified { job, right: true });
        }
        sent = world.sent();
    }
    assert!(elsewhere > 0);
}

/// A page of proofs that nobody holds is rebuilt from what lies beside it, whose own proofs may not be known
/// before that page is.
#[test]
fn what_a_page_of_proofs_is_rebuilt_from_does_not_wait_for_proofs() {
    let map = sealed(2, 1);
    let begin = Tree::new(map.size).begin();
    let mut world = world_without(map, &[1]);
    for (offset, goes_without) in [(0, false), (begin, true)] {
        let tag = world.submit(Op::Read, offset, 4096);
        let read = asked(&mut world);
        assert_eq!(read.iter().map(|(donor, _)| *donor).collect::<Vec<_>>(), [2, 3], "{offset}");
        for (_, part) in &read {
            let goes = world.volume.goes_without_proof(Unproved::Part(*part), begin + 4096);
            assert_eq!(goes, goes_without, "{offset}");
            world.answer(*part, Ok(vec![]));
        }
        for job in world.checks() {
            world.step(Event::Verified { job, right: true });
        }
        assert_eq!(world.completed(), [(tag, Ok(()))]);
    }
}
