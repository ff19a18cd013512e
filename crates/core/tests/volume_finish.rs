//! The end of an attachment: the machine says when it is done, whatever it may still write.

use crate::volume::{self, World, map};
use cheetah_core::volume::{Effect, Event, Op};

fn is_finished(world: &World) -> bool {
    world.effects.iter().any(|effect| matches!(effect, Effect::Finished))
}

#[test]
fn one_that_only_reads_is_done_at_once() {
    let mut world = World::new(map(true, false), true);
    world.open(volume::A);
    world.open(volume::B);
    world.step(Event::Finish);
    assert!(is_finished(&world));
}

#[test]
fn one_that_lost_its_lease_is_done_when_its_requests_are() {
    let mut world = World::up(map(true, false));
    world.submit(Op::Write, 0, 4096);
    let sent = world.sent();
    world.step(Event::LeaseLost);
    world.step(Event::Finish);
    assert!(!is_finished(&world), "a write is on its way");
    world.answer(sent[0].part, Ok(Vec::new()));
    assert!(is_finished(&world));
}
