//! Wrong blocks by donor, and what becomes of one whose memory is bad.

use crate::pool::{E, World, held_by};
use cheetah_core::api::{Attached, Call, DonorStatus, Renew, Size, VolumeReport};
use cheetah_core::findings::{self, Code, State};
use cheetah_core::limits::{BAD_MEMORY_OCCASIONS, OCCASION_NS};
use cheetah_core::map::DonorId;

/// Four donors, and a volume that has a fragment on three of them.
fn world() -> (World, Attached) {
    world_of("parity:2+1")
}

fn world_of(redundancy: &str) -> (World, Attached) {
    let mut world = World::with_donors(&[4, 4, 4, 4]);
    world.create("v", Size::Bytes(2 * E), Some(redundancy)).expect("created");
    let lease = world.attach("v", false).expect("attached");
    (world, lease)
}

/// What the attachment has come across since it began, by donor; the donors found the same in their memory.
fn report(world: &mut World, lease: &Attached, corrupt_blocks: &[(u64, u64)]) {
    report_of(world, lease, corrupt_blocks, true);
}

fn report_of(world: &mut World, lease: &Attached, corrupt_blocks: &[(u64, u64)], in_memory: bool) {
    let corrupt_blocks: Vec<_> = corrupt_blocks.iter().map(|(id, blocks)| (DonorId(*id), *blocks)).collect();
    let wrong_in_memory = if in_memory { corrupt_blocks.clone() } else { Vec::new() };
    let report = Box::new(VolumeReport { corrupt_blocks, wrong_in_memory, ..VolumeReport::default() });
    let epoch = world.show("v").map.epoch;
    let renew = Renew { epoch, place: String::new(), lost: Vec::new(), report, guests: Vec::new() };
    world.send(Call::Renew { name: "v".into(), token: lease.token, renew });
}

fn donor(world: &mut World, id: u64) -> DonorStatus {
    world.status().donors.into_iter().find(|donor| donor.donor == DonorId(id)).expect("in the pool")
}

#[test]
fn a_donor_with_wrong_blocks_again_and_again_is_emptied_and_given_nothing_more() {
    let (mut world, lease) = world();
    let bad = (1..=4).find(|id| held_by(&lease.map, *id) > 0).expect("a holder");
    for occasion in 1..=u64::from(BAD_MEMORY_OCCASIONS) {
        assert!(!donor(&mut world, bad).has_bad_memory);
        report(&mut world, &lease, &[(bad, 2 * occasion)]);
        world.pass(OCCASION_NS);
    }
    let said = donor(&mut world, bad);
    assert!(said.has_bad_memory);
    let noted = world.notes.iter().find(|note| note.event == "donor-bad-memory").expect("it is noted");
    assert_eq!(noted.donor, Some(format!("d{bad}")));
    assert_eq!((said.wrong_blocks, said.bytes_free), (2 * u64::from(BAD_MEMORY_OCCASIONS), 0));
    let finding = findings::of_pool(&world.status()).into_iter().find(|it| it.code == Code::DonorBadMemory);
    let finding = finding.expect("it is said");
    assert_eq!((finding.subject, finding.state), (format!("donor d{bad}"), State::Degraded));
    world.fill("v", lease.token);
    world.settle();
    assert_eq!(held_by(&world.show("v").map, bad), 0, "it was moved away");
    assert_eq!(donor(&mut world, bad).bytes_held, 0);
    world.create("w", Size::Bytes(3 * E), Some("stripe:3")).expect("the others have room");
    assert_eq!(held_by(&world.show("w").map, bad), 0);
}

#[test]
fn what_is_found_at_once_counts_once() {
    let (mut world, lease) = world();
    let bad = (1..=4).find(|id| held_by(&lease.map, *id) > 0).expect("a holder");
    for blocks in [100, 1000, 5000, 9000] {
        report(&mut world, &lease, &[(bad, blocks)]);
        world.pass(OCCASION_NS / 10);
    }
    let said = donor(&mut world, bad);
    assert_eq!((said.wrong_blocks, said.has_bad_memory), (9000, false));
    // The same counters again are no news.
    for _ in 0..2 * BAD_MEMORY_OCCASIONS {
        world.pass(OCCASION_NS);
        report(&mut world, &lease, &[(bad, 9000)]);
    }
    assert!(!donor(&mut world, bad).has_bad_memory);
}

#[test]
fn what_was_hit_on_its_way_is_not_held_against_a_memory() {
    let (mut world, lease) = world();
    let far = (1..=4).find(|id| held_by(&lease.map, *id) > 0).expect("a holder");
    for occasion in 1..=4 * u64::from(BAD_MEMORY_OCCASIONS) {
        report_of(&mut world, &lease, &[(far, 100 * occasion)], false);
        world.pass(OCCASION_NS);
    }
    let said = donor(&mut world, far);
    assert_eq!((said.wrong_blocks, said.has_bad_memory), (400 * u64::from(BAD_MEMORY_OCCASIONS), false));
}

#[test]
fn nobody_is_judged_where_several_have_them_alike() {
    let (mut world, lease) = world();
    let holders: Vec<u64> = (1..=4).filter(|id| held_by(&lease.map, *id) > 0).collect();
    for occasion in 1..=4 * u64::from(BAD_MEMORY_OCCASIONS) {
        let each: Vec<(u64, u64)> = holders.iter().map(|id| (*id, occasion)).collect();
        report(&mut world, &lease, &each);
        world.pass(OCCASION_NS);
    }
    assert!(world.status().donors.iter().all(|donor| !donor.has_bad_memory));
    assert!(holders.iter().all(|id| donor(&mut world, *id).wrong_blocks > 0));
}

#[test]
fn a_block_that_nothing_heals_is_no_new_one_each_time() {
    let (mut world, lease) = world_of("linear");
    let bad = (1..=4).find(|id| held_by(&lease.map, *id) > 0).expect("a holder");
    for occasion in 1..=4 * u64::from(BAD_MEMORY_OCCASIONS) {
        report(&mut world, &lease, &[(bad, occasion)]);
        world.pass(OCCASION_NS);
    }
    let said = donor(&mut world, bad);
    assert_eq!((said.wrong_blocks, said.has_bad_memory), (4 * u64::from(BAD_MEMORY_OCCASIONS), false));
}
