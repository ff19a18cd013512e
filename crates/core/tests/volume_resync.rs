//! Rows that were half written, and a block among them that is wrong: what is lost, and that the rest is served.

mod volume;

use cheetah_core::map::{BadRange, DonorId, Redundancy};
use cheetah_core::volume::{Effect, Event, Op, PartError, PartOp, StatusRun, Volume, VolumeError};
use volume::{Sent, World, wide};

const BLOCK: u32 = 4096;

/// What is sent until something is, or nothing more happens.
fn next(world: &mut World) -> Vec<Sent> {
    let sent = (0..100).find_map(|_| {
        let sent = world.sent();
        if sent.is_empty() && !world.volume.has_room() {
            world.wake();
        }
        Some(sent).filter(|sent| !sent.is_empty())
    });
    sent.unwrap_or_default()
}

#[test]
fn a_wrong_block_of_a_half_written_row_is_recorded_and_the_rest_is_served() {
    let map = wide(Redundancy { data: 2, parity: 1 });
    let mut world = World::start(Volume::new(map.clone(), false, false));
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    let wrong = |sent: &Sent| {
        let here = sent.address < u64::from(BLOCK) && sent.op == PartOp::Read;
        here && sent.donor == DonorId(1)
    };
    let (mut recorded, mut forgotten, mut failures) = (Vec::new(), 0, 0);
    while !world.volume.has_room() {
        let sent = next(&mut world);
        for part in sent {
            let lately = |len, hole| StatusRun { len, hole };
            let answer = match part.op {
                PartOp::Survey => Ok(vec![lately(4 * BLOCK, false), lately(part.len - 4 * BLOCK, true)]),
                PartOp::Read if wrong(&part) && forgotten == 0 => {
                    failures += 1;
                    Err(PartError::Corrupt { blocks: 1 })
                }
                _ => Ok(vec![]),
            };
            world.answer(part.part, answer);
        }
        let mut amended = None;
        world.effects.retain(|effect| match effect {
            Effect::Amend(amend) => {
                recorded.extend(amend.bad.clone());
                amended = Some(());
                false
            }
            Effect::Forget { fragment, len } => {
                assert_eq!((fragment.slot, fragment.local, *len), (0, 0, BLOCK));
                assert!(!recorded.is_empty(), "what is not recorded as lost could be read");
                forgotten += 1;
                false
            }
            _ => true,
        });
        if amended.is_some() {
            let mut map = map.clone();
            (map.epoch, map.bad) = (2, recorded.clone());
            world.step(Event::Amended(Some(map)));
        }
        assert!(failures < 20, "it is tried for ever");
    }
    assert_eq!(recorded, [BadRange { group: 0, slot: 0, from: 0, to: BLOCK }]);
    assert_eq!(forgotten, 1);
}

#[test]
fn a_lost_block_that_is_written_again_is_readable_before_the_coordinator_heard_of_it() {
    let mut map = wide(Redundancy { data: 2, parity: 1 });
    let bad = BadRange { group: 0, slot: 0, from: 0, to: BLOCK };
    map.bad = vec![bad];
    let mut world = World::new(map.clone(), false);
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    let lost = world.submit(Op::Read, 0, BLOCK);
    assert_eq!(world.completed(), [(lost, Err(VolumeError::DonorLost))]);
    let write = world.submit(Op::Write, 0, BLOCK);
    let written = (0..3).find_map(|_| {
        world.sent().into_iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
        world.completed().pop()
    });
    assert_eq!(written, Some((write, Ok(()))));
    let rewritten = |effect: &Effect| matches!(effect, Effect::Amend(amend) if amend.rewritten == [bad]);
    assert!(world.effects.iter().any(rewritten), "the coordinator is told");
    let is_asked_for = |world: &mut World| {
        world.submit(Op::Read, 0, BLOCK);
        !world.sent().is_empty()
    };
    assert!(is_asked_for(&mut world));
    // Something else changed meanwhile, and the map still has what the coordinator was not told before that.
    map.epoch += 1;
    world.step(Event::Map(map));
    assert!(is_asked_for(&mut world));
}
