//! Rows that were half written, and a block among them that is wrong: what is lost, and that the rest is served.

mod volume;

use cheetah_core::map::{BadRange, DonorId, Redundancy};
use cheetah_core::volume::{Effect, Event, PartError, PartOp, StatusRun, Volume};
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
