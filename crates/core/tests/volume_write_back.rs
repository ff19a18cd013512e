//! A volume with write-back: what a flush waits for, who is given again what it may have lost, and what is
//! lost for good when nobody has it.

use crate::volume::{A, B, World, wide};
use cheetah_core::api::Amend;
use cheetah_core::donor::ListedWrite;
use cheetah_core::limits::{INTENT_REGION_BYTES, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, Medium, Redundancy, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{Event, LinkFailure, Op, PartError, PartOp, StatusRun, Volume, VolumeError};
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u32 = 4096;
const REGION: u32 = INTENT_REGION_BYTES as u32;

fn map(redundancy: Redundancy) -> VolumeMap {
    VolumeMap { write_back: true, medium: Medium::Disk, ..wide(redundancy) }
}

fn copies() -> VolumeMap {
    map(Redundancy { data: 1, parity: 1 })
}

/// Donors of which some may have lost the first region.
#[derive(Default)]
struct Donors {
    stale: BTreeSet<DonorId>,
    /// Bytes of it that they were given again.
    given: BTreeMap<DonorId, u32>,
    asked: Vec<(DonorId, PartOp)>,
    told: Vec<Amend>,
}

impl Donors {
    /// Answers all that is asked.
    fn answer(&mut self, world: &mut World) -> bool {
        let sent = world.sent();
        let is_idle = sent.is_empty();
        for sent in sent {
            self.asked.push((sent.donor, sent.op));
            let is_stale = self.stale.contains(&sent.donor) && sent.address < u64::from(REGION);
            let answer = match sent.op {
                PartOp::Survey => {
                    let region = ListedWrite::stale(0, INTENT_REGION_BYTES);
                    let writes = if is_stale { vec![region] } else { Vec::new() };
                    world.step(Event::Listed { part: sent.part, complete: 0, writes });
                    Ok(vec![StatusRun { len: sent.len, hole: true }])
                }
                PartOp::Read if is_stale => Err(PartError::Io),
                PartOp::Flush if is_stale => Err(PartError::Unsupported),
                PartOp::Undo => {
                    assert_eq!(sent.mark.map(|mark| mark.number), Some(0), "it adopts what it has");
                    self.stale.remove(&sent.donor);
                    Ok(vec![])
                }
                op if op.writes() && is_stale => {
                    let given = self.given.entry(sent.donor).or_default();
                    *given += sent.len;
                    if *given >= REGION {
                        self.stale.remove(&sent.donor);
                        *given = 0;
                    }
                    Ok(vec![])
                }
                _ => Ok(vec![]),
            };
            world.answer(sent.part, answer);
        }
        world.serve_checks();
        self.told.extend(world.amendments());
        !is_idle
    }

    fn serve(&mut self, world: &mut World, ns: Time) {
        let end = world.now + ns;
        loop {
            while self.answer(world) {}
            if world.next_wake() > end {
                return;
            }
            world.wake();
        }
    }

    fn count(&self, op: PartOp) -> usize {
        self.asked.iter().filter(|(_, asked)| *asked == op).count()
    }

    fn bad(&self) -> Vec<BadRange> {
        self.told.iter().flat_map(|amend| amend.bad.clone()).collect()
    }
}

/// In service, and written once: the first block.
fn written() -> (World, Donors) {
    let (mut world, mut donors) = (World::new(copies(), false), Donors::default());
    world.open(A);
    world.open(B);
    donors.serve(&mut world, SECOND_NS);
    let write = world.submit(Op::Write, 0, BLOCK);
    donors.serve(&mut world, SECOND_NS);
    assert_eq!(world.completed(), [(write, Ok(()))]);
    donors.asked.clear();
    (world, donors)
}

fn restart(world: &mut World, donors: &mut Donors, donor: DonorId) {
    donors.stale.insert(donor);
    world.fail(donor, world.session(donor), LinkFailure::Broken("killed".into()));
    world.open(donor);
}

#[test]
fn a_flush_asks_each_holder_that_was_sent_something_and_is_answered_when_all_have_it() {
    let (mut world, mut donors) = written();
    let flush = world.submit(Op::Flush, 0, 0);
    let sent = world.sent();
    assert_eq!(
        sent.iter().map(|sent| (sent.donor, sent.op)).collect::<Vec<_>>(),
        [(A, PartOp::Flush), (B, PartOp::Flush)]
    );
    world.answer(sent[0].part, Ok(vec![]));
    assert_eq!(world.completed(), [], "one has not");
    world.answer(sent[1].part, Ok(vec![]));
    assert_eq!(world.completed(), [(flush, Ok(()))]);
    let again = world.submit(Op::Flush, 0, 0);
    assert!(world.sent().is_empty(), "nothing was written since");
    assert_eq!(world.completed(), [(again, Ok(()))]);
    donors.serve(&mut world, SECOND_NS);
}

#[test]
fn a_donor_that_is_there_again_is_given_what_it_may_have_lost_and_a_flush_waits_for_that() {
    let (mut world, mut donors) = written();
    restart(&mut world, &mut donors, A);
    let flush = world.submit(Op::Flush, 0, 0);
    let read = world.submit(Op::Read, 0, BLOCK);
    donors.serve(&mut world, 5 * SECOND_NS);
    let mut done = world.completed();
    done.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(done, [(flush, Ok(())), (read, Ok(()))]);
    assert!(donors.stale.is_empty() && donors.count(PartOp::Undo) == 0, "{:?}", donors.asked);
    let (mend, first) = (
        donors.asked.iter().position(|asked| *asked == (A, PartOp::Write)),
        donors.asked.iter().position(|(_, op)| *op == PartOp::Flush),
    );
    assert!(mend.is_some() && mend < first, "{:?}", donors.asked);
    assert!(donors.told.iter().all(|amend| amend.bad.is_empty() && amend.exclude.is_empty()));
}

#[test]
fn what_no_flush_covered_is_lost_with_both_copies_and_all_else_counts_as_it_is_on_disk() {
    let (mut world, mut donors) = written();
    let flush = world.submit(Op::Flush, 0, 0);
    donors.serve(&mut world, SECOND_NS);
    let write = world.submit(Op::Write, 3 * u64::from(BLOCK), 2 * BLOCK);
    donors.serve(&mut world, SECOND_NS);
    assert_eq!(world.completed(), [(flush, Ok(())), (write, Ok(()))]);
    restart(&mut world, &mut donors, A);
    restart(&mut world, &mut donors, B);
    donors.serve(&mut world, 5 * SECOND_NS);
    assert!(donors.stale.is_empty() && donors.count(PartOp::Undo) >= 2, "{:?}", donors.asked);
    let bad = BadRange { group: 0, slot: 0, from: 3 * BLOCK, to: 5 * BLOCK };
    assert_eq!(donors.bad().first(), Some(&bad));
    assert!(donors.bad().iter().all(|other| *other == bad), "{:?}", donors.bad());
    assert_eq!(world.volume.report().unflushed_bytes, 0, "it knows which");
    let (there, lost) =
        (world.submit(Op::Read, 0, BLOCK), world.submit(Op::Read, 3 * u64::from(BLOCK), BLOCK));
    let map = VolumeMap { epoch: world.volume.map().epoch + 1, bad: vec![bad], ..world.volume.map().clone() };
    world.step(Event::Amended(Some(map)));
    donors.serve(&mut world, SECOND_NS);
    let mut done = world.completed();
    done.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(done.first(), Some(&(there, Ok(()))));
    let again = world.submit(Op::Read, 3 * u64::from(BLOCK), BLOCK);
    donors.serve(&mut world, SECOND_NS);
    assert_eq!(world.completed(), [(again, Err(VolumeError::DonorLost))], "{done:?} {lost}");
}

/// A new writer, whose donors have come back.
fn next_writer(redundancy: Redundancy, stale: &[DonorId]) -> (World, Donors) {
    let donors = Donors { stale: stale.iter().copied().collect(), ..Donors::default() };
    (World::start(Volume::new(map(redundancy), false, false)), donors)
}

#[test]
fn a_new_writer_takes_what_is_on_disk_where_nobody_has_anything_newer() {
    for redundancy in [Redundancy { data: 1, parity: 1 }, Redundancy { data: 2, parity: 1 }] {
        let all: Vec<DonorId> = (1..=u64::from(redundancy.width())).map(DonorId).collect();
        let (mut world, mut donors) = next_writer(redundancy, &all);
        all.iter().for_each(|donor| world.open(*donor));
        donors.serve(&mut world, 5 * SECOND_NS);
        assert!(world.volume.is_serving() && donors.stale.is_empty(), "{:?}", donors.asked);
        assert!(donors.count(PartOp::Undo) >= all.len(), "{:?}", donors.asked);
        let writes = donors.count(PartOp::Write);
        assert!(writes > 0, "copies are made alike, and parity to fit: {:?}", donors.asked);
        assert_eq!(donors.bad(), [], "nobody was served what may be lost");
        // The whole region of each data slot.
        let unflushed = u64::from(REGION) * u64::from(redundancy.data);
        assert_eq!(world.volume.report().unflushed_bytes, unflushed, "and it says how much that may be");
    }
}

#[test]
fn a_new_writer_waits_for_who_may_have_what_another_may_have_lost() {
    let (mut world, mut donors) = next_writer(Redundancy { data: 1, parity: 1 }, &[A]);
    world.open(A);
    world.fail(B, world.session(B), LinkFailure::NotOpened("it starts".into()));
    donors.serve(&mut world, 5 * SECOND_NS);
    assert_eq!(donors.count(PartOp::Undo), 0, "B may have it");
    assert!(donors.told.iter().all(|amend| amend.exclude.is_empty()), "{:?}", donors.told);
    world.comes_back(B);
    donors.serve(&mut world, 5 * SECOND_NS);
    assert!(world.volume.is_serving() && donors.stale.is_empty(), "{:?}", donors.asked);
    assert_eq!(donors.count(PartOp::Undo), 0, "it is given again");
}

#[test]
fn a_new_writer_gives_up_who_stays_away_where_all_others_may_have_lost_what_it_has() {
    let (mut world, mut donors) = next_writer(Redundancy { data: 1, parity: 2 }, &[A, B]);
    world.open(A);
    world.open(B);
    let away = DonorId(3);
    world.fail(away, world.session(away), LinkFailure::Refused("it has another disk".into()));
    donors.serve(&mut world, 29 * SECOND_NS);
    assert!(donors.told.iter().all(|amend| amend.exclude.is_empty()), "it may yet come: {:?}", donors.told);
    donors.serve(&mut world, 2 * SECOND_NS);
    assert!(donors.told.iter().any(|amend| amend.exclude.iter().any(|(donor, _)| *donor == away)));
    let mut map = VolumeMap { epoch: world.volume.map().epoch + 1, ..world.volume.map().clone() };
    map.groups.iter_mut().flat_map(|group| &mut group.slots).for_each(|slot| {
        slot.held = slot.held.filter(|held| held.donor != away);
    });
    map.routes.remove(&away);
    world.step(Event::Amended(Some(map)));
    donors.serve(&mut world, 2 * SECOND_NS);
    assert!(donors.stale.is_empty(), "they count as they are: {:?}", donors.asked);
    let flush = world.submit(Op::Flush, 0, 0);
    donors.serve(&mut world, 2 * SECOND_NS);
    assert_eq!(world.completed(), [(flush, Ok(()))]);
}
