//! Rows that were half written, and a block among them that is wrong: what is lost, and that the rest is
//! served.

use crate::volume::{Sent, UNIT, World, wide};
use cheetah_core::limits::{REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, Redundancy};
use cheetah_core::volume::{Effect, Event, Op, PartError, PartOp, StatusRun, Volume, VolumeError};

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
    let wrong = |sent: &Sent| sent.address < u64::from(BLOCK) && sent.donor == DonorId(1);
    let (mut recorded, mut zeroed, mut failures) = (Vec::new(), 0, 0);
    while !world.volume.has_room() {
        let sent = next(&mut world);
        for part in sent {
            let lately = |len, hole| StatusRun { len, hole };
            let answer = match part.op {
                PartOp::Survey => Ok(vec![lately(4 * BLOCK, false), lately(part.len - 4 * BLOCK, true)]),
                PartOp::Read if wrong(&part) => {
                    failures += 1;
                    Err(PartError::Corrupt { blocks: 1, forged: false })
                }
                PartOp::Write if wrong(&part) => {
                    assert!(!recorded.is_empty(), "what is not recorded as lost could be read");
                    zeroed += part.len;
                    Ok(vec![])
                }
                _ => Ok(vec![]),
            };
            world.answer(part.part, answer);
        }
        let amended = world.amendments();
        if !amended.is_empty() {
            recorded.extend(amended.into_iter().flat_map(|amend| amend.bad));
            let mut map = map.clone();
            (map.epoch, map.bad) = (2, recorded.clone());
            world.step(Event::Amended(Some(map)));
        }
        assert!(failures < 20, "it is tried for ever");
    }
    assert_eq!(recorded, [BadRange { group: 0, slot: 0, from: 0, to: BLOCK }]);
    assert_eq!(zeroed, BLOCK, "its row is made anew");
}

#[test]
fn a_row_whose_resync_a_donor_missed_is_resynced_when_it_is_back_and_waits_for_no_coordinator() {
    let parity = DonorId(3);
    let mut world = World::start(Volume::new(wide(Redundancy { data: 2, parity: 1 }), false, false));
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    let mut missed = 0;
    for _ in 0..1_000 {
        for part in next(&mut world) {
            let lately = |len, hole| StatusRun { len, hole };
            match part.op {
                PartOp::Survey => {
                    let runs = vec![lately(BLOCK, false), lately(part.len - BLOCK, true)];
                    world.answer(part.part, Ok(runs));
                }
                PartOp::Write if missed == 0 => {
                    assert_eq!(part.donor, parity);
                    missed += 1;
                    world.lose(parity);
                }
                _ => world.answer(part.part, Ok(vec![])),
            }
        }
        let unopened = |effect: &Effect| matches!(effect, Effect::Open { donor, .. } if *donor == parity);
        if missed > 0 && world.effects.iter().any(unopened) {
            world.open(parity);
            world.effects.retain(|effect| !unopened(effect));
        }
        if world.volume.has_room() {
            assert_eq!(missed, 1);
            return;
        }
        world.wake();
    }
    panic!("it is never served");
}

#[test]
fn data_is_not_made_up_from_a_donor_that_missed_the_resync_of_a_row_that_another_had_missed() {
    let mut world = World::new(wide(Redundancy { data: 2, parity: 2 }), false);
    let [first, second, _, last] = [1, 2, 3, 4].map(DonorId);
    (1..=4).for_each(|donor| world.open(DonorId(donor)));
    world.lose(first);
    let write = world.submit(Op::Write, 0, BLOCK);
    world.serve_for(2 * REQUEST_DEADLINE_NS);
    assert_eq!(world.completed(), [(write, Err(VolumeError::TimedOut))], "the coordinator does not answer");
    world.comes_back(first);
    let missed = (0..1_000).any(|_| {
        world.wake();
        let (missed, others): (Vec<_>, Vec<_>) =
            world.sent().into_iter().partition(|sent| sent.op == PartOp::Write && sent.donor == last);
        if !missed.is_empty() {
            world.lose(last);
        }
        others.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
        !missed.is_empty()
    });
    assert!(missed, "the row is resynced");
    world.serve();
    world.lose(second);
    world.comes_back(last);
    world.submit(Op::Read, u64::from(UNIT), BLOCK);
    let asked: Vec<DonorId> = world.sent().iter().map(|sent| sent.donor).collect();
    assert!(!asked.is_empty() && !asked.contains(&last), "{asked:?}");
}

#[test]
fn a_lost_block_that_is_written_again_is_acknowledged_once_the_next_attachment_would_read_it() {
    let mut map = wide(Redundancy { data: 2, parity: 1 });
    let bad = BadRange { group: 0, slot: 0, from: 0, to: BLOCK };
    map.bad = vec![bad];
    let mut world = World::new(map.clone(), false);
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    let lost = world.submit(Op::Read, 0, BLOCK);
    assert_eq!(world.completed(), [(lost, Err(VolumeError::DonorLost))]);
    let write = world.submit(Op::Write, 0, BLOCK);
    for _ in 0..3 {
        world.sent().into_iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
    }
    assert_eq!(world.completed(), [], "the next attachment would read an error");
    let rewritten = |effect: &Effect| matches!(effect, Effect::Amend(amend) if amend.rewritten == [bad]);
    assert!(world.effects.iter().any(rewritten), "the coordinator is told");
    world.step(Event::Amended(None));
    assert_eq!(world.completed(), [], "it could not be asked");
    (map.epoch, map.bad) = (2, Vec::new());
    world.step(Event::Amended(Some(map)));
    assert_eq!(world.completed(), [(write, Ok(()))]);
    let is_asked_for = |world: &mut World| {
        world.submit(Op::Read, 0, BLOCK);
        !world.sent().is_empty()
    };
    assert!(is_asked_for(&mut world));
}

/// Of a row that nobody can mend yet, a block is wrong where it lies: its read waits, and has its turn once.
#[test]
fn who_waits_for_a_row_does_not_begin_before_its_turn_and_leaves_it_to_the_next() {
    let mut world = World::new(wide(Redundancy { data: 2, parity: 1 }), false);
    let [first, second, parity] = [1, 2, 3].map(DonorId);
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    // What it changes is read, and then neither the row's data nor its parity hears of it.
    let write = world.submit(Op::Write, 0, BLOCK);
    world.sent().into_iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
    assert!(world.sent().iter().all(|sent| sent.op == PartOp::Write), "it is written");
    [first, parity].into_iter().for_each(|donor| world.lose(donor));
    world.serve_for(2 * REQUEST_DEADLINE_NS);
    assert_eq!(world.completed(), [(write, Err(VolumeError::DonorLost))]);
    world.comes_back(parity);
    // The last block of one column and the first of the next.
    let read = world.submit(Op::Read, u64::from(UNIT - BLOCK), 2 * BLOCK);
    let sent = world.sent();
    let of_row: Vec<&Sent> = sent.iter().filter(|sent| sent.donor == second && sent.address == 0).collect();
    assert_eq!(of_row.len(), 1, "{sent:?}");
    world.answer(of_row[0].part, Err(PartError::Corrupt { blocks: 1, forged: false }));
    let asked = world.sent();
    assert!(asked.iter().all(|sent| sent.op != PartOp::Read), "it waits: {asked:?}");
    let others = sent.iter().filter(|sent| sent.part != of_row[0].part);
    others.chain(&asked).for_each(|sent| world.answer(sent.part, Ok(vec![])));
    assert_eq!(world.completed(), []);
    world.comes_back(first);
    world.serve_for(SECOND_NS);
    assert_eq!(world.completed(), [(read, Ok(()))]);
    let write = world.submit(Op::Write, u64::from(UNIT), BLOCK);
    world.serve_for(SECOND_NS);
    assert_eq!(world.completed(), [(write, Ok(()))], "nobody holds the row any more");
}

/// It could not ask one donor what was written lately, did not hear whether that is excluded, and somebody
/// had it leave meanwhile.
#[test]
fn who_waits_for_an_exclusion_goes_on_when_a_map_leaves_the_donor_out() {
    let mut map = wide(Redundancy { data: 3, parity: 2 });
    let mut world = World::start(Volume::new(map.clone(), false, false));
    let last = DonorId(5);
    (1..last.0).for_each(|donor| world.open(DonorId(donor)));
    world.refuse(last);
    let nothing_written = |world: &mut World| {
        for sent in world.sent() {
            world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }]));
        }
    };
    nothing_written(&mut world);
    let amends = world.amendments();
    assert!(amends.iter().any(|amend| amend.exclude.iter().any(|(donor, _)| *donor == last)), "{amends:?}");
    world.step(Event::Amended(None));
    map.epoch += 1;
    map.routes.remove(&last);
    map.groups[0].slots[4].held = None;
    world.step(Event::Map(map));
    let serves = (0..100).any(|_| {
        world.wake();
        nothing_written(&mut world);
        world.volume.has_room()
    });
    assert!(serves);
}
