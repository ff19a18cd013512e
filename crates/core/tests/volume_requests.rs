//! What becomes of a request while every donor is there.

use crate::volume::{A, B, UNIT, World, map};
use cheetah_core::limits::{EXTENT_BYTES, REQUEST_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX};
use cheetah_core::volume::{Effect, Op, PartError, StatusRun, VolumeError};

#[test]
fn a_request_is_done_when_its_last_part_is() {
    let mut world = World::up(map(true, false));
    let tag = world.submit(Op::Read, 0, 4 * UNIT);
    let sent = world.sent();
    assert_eq!(
        sent.iter().map(|s| (s.donor, s.address, s.len)).collect::<Vec<_>>(),
        [(A, 0, 2 * UNIT), (B, 0, 2 * UNIT)]
    );
    world.answer(sent[1].part, Ok(vec![]));
    assert_eq!(world.completed(), []);
    world.answer(sent[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [(tag, Ok(()))]);
    world.answer(sent[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [], "an answer counts once");
}

#[test]
fn what_is_outside_or_forbidden_is_refused_without_a_donor() {
    let mut world = World::up(map(false, false));
    let size = 2 * EXTENT_BYTES;
    for (op, offset, len) in [
        (Op::Read, size, 1),
        (Op::Write, size - 1, 2),
        (Op::Trim, u64::MAX, 2),
        (Op::Read, 0, REQUEST_BYTES_MAX + 1),
    ] {
        let tag = world.submit(op, offset, len);
        assert_eq!(world.completed(), [(tag, Err(VolumeError::OutOfRange))], "{op:?} {offset}+{len}");
    }
    let mut reader = World::new(map(false, false), true);
    for op in [Op::Write, Op::Zero { keep: false }, Op::Trim] {
        let tag = reader.submit(op, 0, 512);
        assert_eq!(reader.completed(), [(tag, Err(VolumeError::ReadOnly))]);
    }
    assert_eq!(reader.sent().len() + world.sent().len(), 0);
}

#[test]
fn nothing_to_do_is_done_at_once() {
    let mut world = World::up(map(true, false));
    for (op, len) in [(Op::Read, 0), (Op::Cache, 1 << 20), (Op::Flush, 0)] {
        let tag = world.submit(op, 0, len);
        assert_eq!(world.completed(), [(tag, Ok(()))], "{op:?}");
    }
    assert_eq!(world.sent().len(), 0);
}

#[test]
fn a_donors_error_reaches_the_request_and_nobody_else() {
    for (error, result) in [
        (PartError::Io, VolumeError::DonorFailed),
        (PartError::NoMemory, VolumeError::NoMemory),
        (PartError::Denied, VolumeError::LeaseLost),
        (PartError::Unsupported, VolumeError::Unsupported),
    ] {
        let mut world = World::up(map(true, false));
        let bad = world.submit(Op::Write, 0, 2 * UNIT);
        let good = world.submit(Op::Write, 4 * u64::from(UNIT), 4096);
        let sent = world.sent();
        world.answer(sent[0].part, Err(error));
        world.answer(sent[1].part, Ok(vec![]));
        world.answer(sent[2].part, Ok(vec![]));
        assert_eq!(world.completed(), [(bad, Err(result)), (good, Ok(()))]);
    }
}

#[test]
fn presence_of_two_donors_is_put_in_order_and_silence_counts_as_present() {
    let mut world = World::up(map(true, false));
    world.submit(Op::Status, 0, 6 * UNIT);
    let sent = world.sent();
    let (data, hole) = (|len| StatusRun { len, hole: false }, |len| StatusRun { len, hole: true });
    world.answer(sent[0].part, Ok(vec![hole(2 * UNIT), data(UNIT)]));
    world.answer(sent[1].part, Ok(vec![hole(UNIT)]));
    let status = world.effects.iter().find_map(|effect| match effect {
        Effect::Complete { status, .. } => Some(status.clone()),
        _ => None,
    });
    assert_eq!(status, Some(vec![hole(3 * UNIT), data(3 * UNIT)]));
}

/// What is in front of a loss is answered; an error is for who asks of its first byte.
#[test]
fn presence_is_told_up_to_what_is_lost() {
    let (data, hole) = (|len| StatusRun { len, hole: false }, |len| StatusRun { len, hole: true });
    let ended = |world: &World| {
        world.effects.iter().find_map(|effect| match effect {
            Effect::Complete { result, status, .. } => Some((*result, status.clone())),
            _ => None,
        })
    };
    let mut world = World::up(map(true, false));
    world.submit(Op::Status, 4096, 6 * UNIT);
    let sent = world.sent();
    world.answer(sent[1].part, Err(PartError::Io));
    world.answer(sent[0].part, Ok(vec![hole(UNIT - 8192)]));
    assert_eq!(ended(&world), Some((Ok(()), vec![hole(UNIT - 8192), data(4096)])));
    let mut world = World::up(map(true, false));
    world.submit(Op::Status, u64::from(UNIT), 6 * UNIT);
    let sent = world.sent();
    assert_eq!((sent[0].donor, sent[1].donor), (A, B));
    world.answer(sent[1].part, Err(PartError::Io));
    world.answer(sent[0].part, Ok(vec![data(3 * UNIT)]));
    assert_eq!(ended(&world), Some((Err(VolumeError::DonorFailed), Vec::new())));
}

#[test]
fn requests_are_bounded() {
    let mut world = World::up(map(false, false));
    for _ in 0..REQUESTS_IN_FLIGHT_MAX {
        assert!(world.volume.has_room());
        world.submit(Op::Read, 0, 512);
    }
    assert!(!world.volume.has_room());
    let first = world.sent()[0];
    world.answer(first.part, Ok(vec![]));
    assert!(world.volume.has_room());
}
