//! What donors are told of writes that are complete, so that they forget who wrote lately.

use crate::volume::{Sent, UNIT, World, wide};
use cheetah_core::limits::{READ_TOGETHER_NS, SECOND_NS};
use cheetah_core::map::{DonorId, Redundancy, Slot};
use cheetah_core::volume::{Op, PartOp};

/// `parity:2+1` whose parity nobody holds, so that a donor that is silent is waited for.
fn degraded() -> World {
    let mut map = wide(Redundancy { data: 2, parity: 1 });
    map.groups[0].slots[2] = Slot::default();
    map.routes.remove(&DonorId(3));
    let mut world = World::new(map, false);
    world.open(DonorId(1));
    world.open(DonorId(2));
    world
}

fn answer(world: &mut World, sent: &[Sent]) {
    sent.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
}

/// When the donors are told for the first time until then, if they are.
fn told(world: &mut World, until: u64) -> Option<u64> {
    let mut first = None;
    while world.now < until {
        world.wake();
        let ages: Vec<_> = world.sent().into_iter().filter(|sent| sent.op == PartOp::Age).collect();
        answer(world, &ages);
        first = first.or((!ages.is_empty()).then_some(world.now));
    }
    first
}

/// A reader may have read one slot before the write and another after it, and counts on the marks for 250 ms.
#[test]
fn marks_of_a_write_that_took_long_outlast_it() {
    let mut world = degraded();
    world.submit(Op::Write, 0, 2 * UNIT);
    let sent = world.sent();
    answer(&mut world, &sent);
    world.submit(Op::Write, u64::from(8 * UNIT), 2 * UNIT);
    let slow = world.sent();
    answer(&mut world, &slow[..1]);
    assert!(told(&mut world, 2 * SECOND_NS).is_some(), "the first write is complete");
    assert_eq!(told(&mut world, 5 * SECOND_NS), None, "the second is not");
    answer(&mut world, &slow[1..]);
    let complete = world.now;
    let told = told(&mut world, complete + SECOND_NS).expect("it is complete now");
    assert!(told >= complete + READ_TOGETHER_NS, "{} ns after it", told - complete);
}
