//! Rows that several writes have: written whole where the writes follow one another, and at once where they
//! do not.

use crate::volume::{Sent, UNIT, World, wide};
use cheetah_core::map::{DonorId, Redundancy};
use cheetah_core::volume::{Effect, LinkFailure, Mem, Op, PartOp, VolumeError};

const HALF: u32 = UNIT / 2;

/// `parity:2+1`, all links up, and a whole row being written, so that what follows it may wait.
fn world_that_writes() -> (World, Vec<Sent>) {
    let mut world = World::new(wide(Redundancy { data: 2, parity: 1 }), false);
    for donor in 1..=3 {
        world.open(DonorId(donor));
    }
    world.submit(Op::Write, 0, 2 * UNIT);
    let sent = world.sent();
    assert_eq!(sent.len(), 3, "{sent:?}");
    (world, sent)
}

fn ops(sent: &[Sent]) -> Vec<(u64, PartOp, u32)> {
    sent.iter().map(|sent| (sent.donor.0, sent.op, sent.len)).collect()
}

fn answer(world: &mut World, sent: &[Sent]) {
    sent.iter().for_each(|sent| world.answer(sent.part, Ok(vec![])));
}

#[test]
fn three_writes_of_a_row_leave_as_one_without_reading() {
    let (mut world, before) = world_that_writes();
    let row = u64::from(2 * UNIT);
    let first = world.submit(Op::Write, row, HALF);
    let second = world.submit(Op::Write, row + u64::from(HALF), UNIT);
    assert_eq!(world.sent().len(), 0, "their row is not whole");
    world.effects.clear();
    let third = world.submit(Op::Write, row + u64::from(HALF + UNIT), HALF);
    let copied = |tag| {
        let of =
            |effect: &&Effect| matches!(effect, Effect::Copy { from, .. } if from.mem == Mem::Payload(tag));
        let lens = world.effects.iter().filter(of).map(|effect| match effect {
            Effect::Copy { len, .. } => *len,
            _ => 0,
        });
        lens.sum::<u32>()
    };
    assert_eq!([first, second, third].map(copied), [HALF, UNIT, HALF]);
    let sent = world.sent();
    let write = PartOp::Write;
    assert_eq!(ops(&sent), [(1, write, UNIT), (2, write, UNIT), (3, write, UNIT)]);
    answer(&mut world, &before);
    assert_eq!(world.completed().len(), 1, "the row before");
    answer(&mut world, &sent);
    let mut done = world.completed();
    done.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(done, [(first, Ok(())), (second, Ok(())), (third, Ok(()))]);
}

#[test]
fn the_end_of_one_write_and_the_beginning_of_the_next_are_one_row() {
    let (mut world, _) = world_that_writes();
    world.submit(Op::Write, u64::from(2 * UNIT), 3 * UNIT);
    assert_eq!(world.sent().len(), 3, "the row that it has all of");
    world.submit(Op::Write, u64::from(5 * UNIT), 3 * UNIT);
    let sent = world.sent();
    assert!(sent.iter().all(|sent| sent.op == PartOp::Write), "{sent:?}");
    assert_eq!(sent.len(), 6, "the row that both have a part of, and the last");
}

#[test]
fn nothing_waits_for_a_tool_that_writes_one_at_a_time() {
    let (mut world, sent) = world_that_writes();
    answer(&mut world, &sent);
    world.submit(Op::Write, u64::from(2 * UNIT), HALF);
    assert!(!world.sent().is_empty(), "it would wait for itself");
}

#[test]
fn nothing_waits_where_no_write_ended() {
    let (mut world, _) = world_that_writes();
    world.submit(Op::Write, u64::from(20 * UNIT), HALF);
    assert!(!world.sent().is_empty());
}

#[test]
fn what_waits_is_written_soon_when_the_write_before_it_is_answered() {
    let (mut world, sent) = world_that_writes();
    world.submit(Op::Write, u64::from(40 * UNIT), 2 * UNIT);
    world.sent();
    world.submit(Op::Write, u64::from(2 * UNIT), HALF);
    assert_eq!(world.sent().len(), 0);
    answer(&mut world, &sent);
    let since = world.now;
    while world.sent().is_empty() {
        world.wake();
        assert!(world.now <= since + 2_000_000, "another tool's write is not its business");
    }
}

#[test]
fn what_waits_is_written_after_a_while_whoever_else_writes() {
    let (mut world, _) = world_that_writes();
    world.submit(Op::Write, u64::from(2 * UNIT), HALF);
    let since = world.now;
    while world.sent().is_empty() {
        world.wake();
        assert!(world.now <= since + 25_000_000, "it waits too long");
    }
}

#[test]
fn all_writes_of_a_row_fail_when_too_many_donors_are_lost() {
    let (mut world, before) = world_that_writes();
    let first = world.submit(Op::Write, u64::from(2 * UNIT), UNIT);
    let second = world.submit(Op::Write, u64::from(3 * UNIT), UNIT);
    let sent = world.sent();
    answer(&mut world, &before);
    world.completed();
    for donor in [DonorId(1), DonorId(2)] {
        let session = world.session(donor);
        world.fail(donor, session, LinkFailure::NotOpened("refused".into()));
    }
    assert_eq!(world.completed(), [], "donor 3 has yet to answer");
    answer(&mut world, &sent[2..]);
    let mut done = world.completed();
    done.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(done, [first, second].map(|tag| (tag, Err(VolumeError::DonorLost))));
}
