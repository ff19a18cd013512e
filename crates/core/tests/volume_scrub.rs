//! Donors compare what they hold with its checksums, and what the volume makes of what they say.

use crate::volume::{A, B, Sent, World, map, wide};
use cheetah_core::limits::{EXTENT_BYTES, REQUEST_DEADLINE_NS, SCRUB_EVERY_NS, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, Redundancy};
use cheetah_core::volume::{
    Effect, Event, Op, PartError, PartOp, Scope, ScrubbedDonor, StatusRun, VolumeError,
};
use std::collections::BTreeSet;

const BLOCK: u32 = 4096;

fn world(read_only: bool) -> World {
    let mut world = World::new(wide(Redundancy { data: 3, parity: 1 }), read_only);
    (1..=4).for_each(|donor| world.open(DonorId(donor)));
    world.effects.clear();
    world
}

fn verifies(world: &mut World) -> Vec<Sent> {
    world.sent().into_iter().filter(|sent| sent.op == PartOp::Verify).collect()
}

/// All answer, of whose blocks one donor's are wrong between two bytes of its extent; whom it was asked of,
/// and how many bytes.
fn serve(world: &mut World, wrong: Option<(DonorId, u32, u32)>) -> (BTreeSet<DonorId>, u64) {
    let (mut asked, mut bytes) = (BTreeSet::new(), 0);
    loop {
        let sent = verifies(world);
        if sent.is_empty() {
            return (asked, bytes);
        }
        for Sent { donor, part, address, len, .. } in sent {
            asked.insert(donor);
            bytes += u64::from(len);
            let local = u32::try_from(address % EXTENT_BYTES).expect("in an extent");
            let here = wrong.filter(|(of, ..)| *of == donor).map(|(_, from, to)| {
                let within = |at: u32| at.clamp(local, local + len) - local;
                (within(from), within(to))
            });
            let (from, to) = here.unwrap_or((len, len));
            let runs = [(from, true), (to - from, false), (len - to, true)];
            let runs = runs.into_iter().filter(|(len, _)| *len > 0);
            world.answer(part, Ok(runs.map(|(len, hole)| StatusRun { len, hole }).collect()));
        }
    }
}

#[test]
fn all_donors_are_asked_at_once_for_all_that_they_hold() {
    let mut world = world(false);
    world.step(Event::Scrub(Scope::All));
    let first = verifies(&mut world);
    let asked: BTreeSet<u64> = first.iter().map(|sent| sent.donor.0).collect();
    assert_eq!(asked, [1, 2, 3, 4].into(), "parity as well");
    assert!(world.volume.scrubbed().is_under_way);
    first.iter().for_each(|sent| {
        world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }]));
    });
    let (_, bytes) = serve(&mut world, None);
    let first_bytes: u64 = first.iter().map(|sent| u64::from(sent.len)).sum();
    assert_eq!(first_bytes + bytes, 4 * EXTENT_BYTES);
    let found = world.volume.scrubbed();
    assert_eq!((found.passes, found.is_under_way), (1, false));
    assert_eq!(
        (found.bytes_total, found.bytes_done(), found.bytes_missing),
        (bytes + first_bytes, bytes + first_bytes, 0)
    );
    let right = ScrubbedDonor { bytes_checked: EXTENT_BYTES, ..ScrubbedDonor::default() };
    assert!(found.donors.values().all(|donor| *donor == right), "{found:?}");
    assert!(found.wrong.is_empty());
    assert_eq!(world.volume.report().scrub_passes, 1);
}

#[test]
fn the_blocks_that_are_wrong_are_healed_and_no_others() {
    let mut world = world(false);
    let wrong = BadRange { group: 0, slot: 1, from: 5 * BLOCK, to: 7 * BLOCK };
    world.step(Event::Scrub(Scope::All));
    let of_second = verifies(&mut world).into_iter().find(|sent| sent.donor == DonorId(2)).expect("asked");
    let runs = [(5, true), (2, false), (of_second.len / BLOCK - 7, true)];
    let runs = runs.map(|(blocks, hole)| StatusRun { len: blocks * BLOCK, hole });
    world.answer(of_second.part, Ok(runs.to_vec()));
    assert_eq!(world.volume.scrubbed().wrong, [wrong]);
    assert_eq!(world.volume.scrubbed().donors[&DonorId(2)].blocks_wrong, 2);
    assert_eq!(world.volume.report().corrupt_blocks, [(DonorId(2), 2)]);
    assert_eq!(world.volume.report().wrong_in_memory, [(DonorId(2), 2)], "by its own word");
    let reads: Vec<Sent> = world.sent().into_iter().filter(|sent| sent.op == PartOp::Read).collect();
    assert_eq!(reads.iter().map(|sent| sent.donor.0).collect::<Vec<_>>(), [1, 3, 4]);
    assert!(reads.iter().all(|sent| sent.address == u64::from(wrong.from) && sent.len == 2 * BLOCK));
    reads.iter().for_each(|read| world.answer(read.part, Ok(vec![])));
    for effect in std::mem::take(&mut world.effects) {
        if let Effect::Verify { job, .. } = effect {
            world.step(Event::Verified { job, right: true });
        }
    }
    let written: Vec<Sent> = world.sent().into_iter().filter(|sent| sent.op != PartOp::Verify).collect();
    assert!(matches!(&written[..], [Sent { donor: DonorId(2), len: 8192, .. }]), "{written:?}");
}

/// A wrong block that a read met: its donor says whether it has that, or whether it was hit on its way.
#[test]
fn whether_memory_or_the_way_is_at_fault_the_donor_says() {
    for (in_memory, answer) in [
        (vec![(DonorId(1), 1)], Ok(vec![StatusRun { len: BLOCK, hole: false }])),
        (vec![], Ok(vec![StatusRun { len: BLOCK, hole: true }])),
        (vec![], Err(PartError::Io)),
        (vec![(DonorId(1), 1)], Err(PartError::Unsupported)),
    ] {
        let mut world = world(false);
        world.submit(Op::Read, 0, BLOCK);
        let read = world.sent().pop().expect("asked");
        world.answer(read.part, Err(PartError::Corrupt { blocks: 1, forged: false }));
        let others: Vec<Sent> = world.sent().into_iter().filter(|sent| sent.op == PartOp::Read).collect();
        others.iter().for_each(|read| world.answer(read.part, Ok(vec![])));
        for effect in std::mem::take(&mut world.effects) {
            if let Effect::Verify { job, .. } = effect {
                world.step(Event::Verified { job, right: true });
            }
        }
        let asked = verifies(&mut world);
        assert!(matches!(&asked[..], [Sent { donor: DonorId(1), address: 0, len: BLOCK, .. }]), "{asked:?}");
        world.answer(asked[0].part, answer);
        let report = world.volume.report();
        assert_eq!((report.corrupt_blocks, report.wrong_in_memory), (vec![(DonorId(1), 1)], in_memory));
    }
}

#[test]
fn what_was_wrong_is_asked_about_again_and_nothing_else() {
    let mut world = world(true);
    world.step(Event::Scrub(Scope::All));
    serve(&mut world, Some((DonorId(3), 8 * BLOCK, 9 * BLOCK)));
    world.step(Event::Scrub(Scope::Wrong));
    assert_eq!(serve(&mut world, None), ([DonorId(3)].into(), u64::from(BLOCK)));
    let found = world.volume.scrubbed();
    assert_eq!((found.passes, found.wrong.len(), found.bytes_total), (2, 0, u64::from(BLOCK)));
}

#[test]
fn what_was_wrong_and_is_not_answered_for_again_stays_wrong() {
    let mut world = world(true);
    world.step(Event::Scrub(Scope::All));
    serve(&mut world, Some((DonorId(3), 8 * BLOCK, 9 * BLOCK)));
    let wrong = world.volume.scrubbed().wrong.clone();
    world.step(Event::Scrub(Scope::Wrong));
    for sent in verifies(&mut world) {
        world.answer(sent.part, Err(PartError::Unsupported));
    }
    let found = world.volume.scrubbed();
    assert_eq!((found.is_under_way, found.donors[&DonorId(3)].blocks_wrong), (false, 0));
    assert_eq!((&found.wrong, found.donors[&DonorId(3)].bytes_unchecked), (&wrong, u64::from(BLOCK)));
    // Until it is.
    world.step(Event::Scrub(Scope::Wrong));
    assert_eq!(serve(&mut world, None), ([DonorId(3)].into(), u64::from(BLOCK)));
    assert_eq!(world.volume.scrubbed().wrong, []);
}

#[test]
fn a_reader_counts_what_is_wrong_and_writes_nothing() {
    let mut world = world(true);
    world.step(Event::Scrub(Scope::All));
    let (asked, bytes) = serve(&mut world, Some((DonorId(4), 0, BLOCK)));
    assert_eq!((asked.len(), bytes), (4, 4 * EXTENT_BYTES));
    assert!(world.sent().is_empty());
    assert_eq!(world.volume.report().corrupt_blocks, [(DonorId(4), 1)]);
    assert_eq!(world.volume.scrubbed().wrong.len(), 1);
}

#[test]
fn what_nobody_says_anything_of_counts_as_unchecked_with_the_reason() {
    let mut missing = wide(Redundancy { data: 3, parity: 1 });
    missing.groups[0].slots[2].held = None;
    let mut world = World::new(missing, true);
    world.open(DonorId(1));
    world.open(DonorId(2));
    world.refuse(DonorId(4));
    world.effects.clear();
    world.step(Event::Scrub(Scope::All));
    while world.volume.scrubbed().is_under_way {
        for sent in verifies(&mut world) {
            let right = vec![StatusRun { len: sent.len, hole: true }];
            let is_foreign = sent.donor == DonorId(2);
            world.answer(sent.part, if is_foreign { Err(PartError::Unsupported) } else { Ok(right) });
        }
    }
    let found = world.volume.scrubbed();
    assert_eq!((found.bytes_missing, found.bytes_total), (EXTENT_BYTES, 3 * EXTENT_BYTES));
    assert_eq!(found.donors[&DonorId(1)].bytes_checked, EXTENT_BYTES);
    for (donor, why) in [(2, VolumeError::Unsupported), (4, VolumeError::DonorLost)] {
        let said = found.donors[&DonorId(donor)];
        assert_eq!((said.bytes_checked, said.bytes_unchecked), (0, EXTENT_BYTES));
        assert_eq!(said.why_unchecked, Some(why));
    }
}

#[test]
fn a_donor_that_says_nothing_is_not_waited_for_for_ever() {
    let mut world = World::new(map(false, false), true);
    world.open(A);
    world.open(B);
    world.effects.clear();
    world.step(Event::Scrub(Scope::All));
    let until = world.now + 20 * REQUEST_DEADLINE_NS;
    while world.volume.scrubbed().is_under_way && world.now < until {
        for sent in verifies(&mut world).into_iter().filter(|sent| sent.donor == A) {
            world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }]));
        }
        world.wake();
    }
    let found = world.volume.scrubbed();
    assert_eq!((found.passes, found.donors[&A].bytes_checked), (1, EXTENT_BYTES));
    assert_eq!(found.donors[&B].bytes_unchecked, EXTENT_BYTES);
    assert_eq!(found.donors[&B].why_unchecked, Some(VolumeError::TimedOut));
}

#[test]
fn who_writes_has_it_done_by_the_hour_and_a_reader_does_not() {
    let mut writer = world(false);
    let mut reader = world(true);
    writer.now += SCRUB_EVERY_NS + SECOND_NS;
    reader.now += SCRUB_EVERY_NS + SECOND_NS;
    writer.step(Event::Wake);
    reader.step(Event::Wake);
    assert!(writer.volume.scrubbed().is_under_way && !reader.volume.scrubbed().is_under_way);
}

#[test]
fn a_block_that_cannot_be_healed_keeps_no_other_waiting() {
    let mut world = world(false);
    world.step(Event::Scrub(Scope::All));
    let of_second = verifies(&mut world).into_iter().find(|sent| sent.donor == DonorId(2)).expect("asked");
    // More of them than are healed at a time.
    let far: Vec<u32> = (8..16).map(|at| at * of_second.len / 16).collect();
    let mut runs = vec![StatusRun { len: BLOCK, hole: false }];
    let mut at = BLOCK;
    for wrong in &far {
        runs.push(StatusRun { len: wrong - at, hole: true });
        runs.push(StatusRun { len: BLOCK, hole: false });
        at = wrong + BLOCK;
    }
    runs.push(StatusRun { len: of_second.len - at, hole: true });
    world.answer(of_second.part, Ok(runs));
    // Of the first block the others are wrong as well; nothing is awaited but answers.
    let mut healed = Vec::new();
    for _ in 0..50 {
        for sent in world.sent() {
            let answer = match sent.op {
                PartOp::Read if sent.address == 0 => Err(PartError::Corrupt { blocks: 1, forged: false }),
                PartOp::Verify => Ok(vec![StatusRun { len: sent.len, hole: true }]),
                _ => Ok(vec![]),
            };
            if sent.op.writes() {
                healed.push((sent.donor, sent.address));
            }
            world.answer(sent.part, answer);
        }
        for effect in std::mem::take(&mut world.effects) {
            match effect {
                Effect::Verify { job, .. } => world.step(Event::Verified { job, right: true }),
                other => world.effects.push(other),
            }
        }
    }
    healed.sort_unstable();
    assert_eq!(healed, far.iter().map(|at| (DonorId(2), u64::from(*at))).collect::<Vec<_>>());
}

#[test]
fn a_pass_ends_when_what_it_found_is_healed_or_cannot_be_for_want_of_the_lease() {
    let mut world = world(false);
    world.step(Event::Scrub(Scope::All));
    for (nth, sent) in verifies(&mut world).iter().enumerate() {
        let runs = [StatusRun { len: BLOCK, hole: nth > 0 }, StatusRun { len: sent.len - BLOCK, hole: true }];
        world.answer(sent.part, Ok(runs.to_vec()));
    }
    // All that is asked about is answered for, and nothing of the healing.
    loop {
        let sent = verifies(&mut world);
        if sent.is_empty() {
            break;
        }
        sent.iter()
            .for_each(|sent| world.answer(sent.part, Ok(vec![StatusRun { len: sent.len, hole: true }])));
    }
    assert!(world.volume.scrubbed().is_under_way, "one block is not healed yet");
    world.step(Event::LeaseLost);
    world.step(Event::Amended(None));
    assert!(!world.volume.scrubbed().is_under_way, "nobody here can heal it any more");
    assert_eq!(world.volume.scrubbed().wrong.len(), 1);
}

/// Who holds what it would take is not there, and may come back; a tool reads the block all the time.
#[test]
fn a_pass_ends_though_a_block_that_cannot_be_healed_is_met_again_and_again() {
    let mut world = World::new(wide(Redundancy { data: 3, parity: 1 }), false);
    (1..=3).for_each(|donor| world.open(DonorId(donor)));
    world.refuse(DonorId(4));
    world.effects.clear();
    world.step(Event::Scrub(Scope::All));
    let begun = world.now;
    while world.volume.scrubbed().is_under_way {
        assert!(world.now < begun + REQUEST_DEADLINE_NS + 5 * SECOND_NS, "it does not end");
        world.submit(Op::Read, 0, BLOCK);
        for sent in world.sent() {
            let is_wrong = sent.donor == DonorId(1) && sent.address == 0;
            let answer = match sent.op {
                PartOp::Read if is_wrong => Err(PartError::Corrupt { blocks: 1, forged: false }),
                PartOp::Verify if is_wrong => Ok(vec![
                    StatusRun { len: BLOCK, hole: false },
                    StatusRun { len: sent.len - BLOCK, hole: true },
                ]),
                PartOp::Verify => Ok(vec![StatusRun { len: sent.len, hole: true }]),
                _ => Ok(vec![]),
            };
            world.answer(sent.part, answer);
        }
        world.serve_checks();
        world.now += SECOND_NS / 10;
        world.step(Event::Wake);
    }
    let found = world.volume.scrubbed();
    assert_eq!((found.passes, found.donors[&DonorId(1)].blocks_wrong), (1, 1));
}
