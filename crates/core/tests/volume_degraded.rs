//! Reads of a volume whose donors are gone, within what redundancy covers and beyond it.

use crate::volume::{UNIT, World, wide};
use cheetah_core::map::{DonorId, Redundancy};
use cheetah_core::volume::{Effect, Event, Op, PartError, PartOp, StatusRun, VolumeError};

const BLOCK: u32 = 4096;

fn world_without(lost: &[u64]) -> World {
    let mut world = World::new(wide(Redundancy { data: 3, parity: 1 }), false);
    for donor in 1..=4 {
        if lost.contains(&donor) { world.refuse(DonorId(donor)) } else { world.open(DonorId(donor)) }
    }
    world.effects.clear();
    world
}

#[test]
fn one_lost_donor_is_read_around() {
    let mut world = world_without(&[1]);
    world.submit(Op::Read, 0, UNIT);
    let asked: Vec<(DonorId, PartOp)> = world.sent().iter().map(|sent| (sent.donor, sent.op)).collect();
    assert_eq!(asked, [2, 3, 4].map(|donor| (DonorId(donor), PartOp::Read)));
}

#[test]
fn beyond_redundancy_what_is_held_is_read_and_the_rest_fails_at_once() {
    let mut world = world_without(&[1, 3]);
    let lost = world.submit(Op::Read, 0, UNIT);
    assert_eq!(world.completed(), [(lost, Err(VolumeError::DonorLost))]);
    let there = world.submit(Op::Read, UNIT.into(), UNIT);
    let sent = world.sent();
    assert_eq!(sent.iter().map(|sent| sent.donor).collect::<Vec<_>>(), [DonorId(2)]);
    world.answer(sent[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [(there, Ok(()))]);
}

#[test]
fn a_write_that_too_few_could_take_is_sent_to_nobody() {
    let mut world = world_without(&[1, 3]);
    let write = world.submit(Op::Write, 0, 3 * UNIT);
    assert_eq!(world.completed(), [(write, Err(VolumeError::DonorLost))]);
    assert!(world.sent().is_empty(), "it would only spoil what was there");
}

#[test]
fn a_wrong_block_does_not_keep_the_others_from_being_compared() {
    let mut world = world_without(&[]);
    world.step(Event::Compare);
    let reads: Vec<_> = world.sent().into_iter().take(4).collect();
    assert_eq!(reads.iter().map(|sent| sent.donor.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    world.effects.clear();
    world.answer(reads[0].part, Err(PartError::Corrupt { blocks: 1, forged: false }));
    let given_up = world.effects.iter().filter(|effect| matches!(effect, Effect::Abandon { .. })).count();
    assert_eq!(given_up, 0, "they may be wrong as well");
}

/// Reads the first four blocks of copies that are wrong where `wrong` has donor and block; by whom reads, and
/// by whom may write.
fn copies_read(parity: u32, wrong: &[(u64, u32)]) -> [Result<(), VolumeError>; 2] {
    [true, false].map(|read_only| {
        let mut world = World::new(wide(Redundancy { data: 1, parity }), read_only);
        (1..=u64::from(parity) + 1).for_each(|donor| world.open(DonorId(donor)));
        world.effects.clear();
        world.submit(Op::Read, 0, 4 * BLOCK);
        for _ in 0..20 {
            for sent in world.sent() {
                let blocks = (sent.address as u32 / BLOCK)..(sent.address as u32 + sent.len) / BLOCK;
                let is_wrong = |block: &u32| wrong.contains(&(sent.donor.0, *block));
                let wrong_blocks = blocks.clone().filter(is_wrong).count() as u32;
                let answer = match sent.op {
                    PartOp::Read if wrong_blocks > 0 => {
                        Err(PartError::Corrupt { blocks: wrong_blocks, forged: false })
                    }
                    PartOp::Verify => {
                        Ok(blocks.map(|block| StatusRun { len: BLOCK, hole: !is_wrong(&block) }).collect())
                    }
                    _ => Ok(vec![]),
                };
                world.answer(sent.part, answer);
            }
            world.serve_checks();
            if let Some((_, result)) = world.completed().pop() {
                return result;
            }
        }
        panic!("a read that does not end");
    })
}

#[test]
fn what_is_wrong_in_one_copy_and_right_in_another_is_read_block_by_block() {
    assert_eq!(copies_read(1, &[(1, 0), (2, 3)]), [Ok(()); 2]);
    assert_eq!(copies_read(2, &[(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]), [Ok(()); 2]);
    let lost = Err(VolumeError::DonorLost);
    assert_eq!(copies_read(1, &[(1, 0), (2, 2), (1, 2)]), [lost; 2], "one block is wrong in both");
}

/// Another's server of a sealed volume: it cannot say whether it has what does not fit the seal.
#[test]
fn what_comes_wrong_from_who_keeps_no_checksums_is_asked_for_again_and_then_is_what_it_has() {
    for (flipped_on_its_way, expected) in [(true, Ok(())), (false, Err(VolumeError::Corrupt))] {
        let mut world = World::new(wide(Redundancy { data: 1, parity: 0 }), true);
        world.open(DonorId(1));
        world.effects.clear();
        let tag = world.submit(Op::Read, 0, BLOCK);
        let corrupt = Err(PartError::Corrupt { blocks: 1, forged: false });
        for (nth, op) in [PartOp::Read, PartOp::Verify, PartOp::Read, PartOp::Verify].into_iter().enumerate()
        {
            let Some(sent) = world.sent().pop() else { break };
            assert_eq!(sent.op, op);
            let answer = match op {
                PartOp::Read if nth > 0 && flipped_on_its_way => Ok(vec![]),
                PartOp::Read => corrupt.clone(),
                _ => Err(PartError::Unsupported),
            };
            world.answer(sent.part, answer);
        }
        assert_eq!(world.completed(), [(tag, expected)]);
        let accused = world.volume.report().corrupt_blocks;
        assert_eq!(accused.len(), usize::from(!flipped_on_its_way), "{accused:?}");
    }
}
