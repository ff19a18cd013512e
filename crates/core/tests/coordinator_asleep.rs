//! The coordinator was stopped, or its machine slept: nobody is judged by what it did not hear meanwhile.

use crate::pool::{E, World, assert_refused};
use cheetah_core::api::{Answer, DonorHealth, RefusalCode, Size, VolumeHealth};
use cheetah_core::coordinator::Event;
use cheetah_core::limits::{ASLEEP_NS, DONOR_SILENCE_NS, LEASE_NS, SECOND_NS};
use cheetah_core::map::{DonorId, LeaseToken};
use cheetah_core::seed::Seed;

fn world() -> (World, Vec<LeaseToken>) {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("mirror:2")).expect("created");
    let leases = [false, true, true].map(|read_only| world.attach("v", read_only).expect("attached").token);
    world.pass(SECOND_NS);
    (world, leases.into())
}

/// It sleeps, and what was sent meanwhile comes in some order after it woke.
fn sleep(world: &mut World, ns: u64) {
    world.now += ns;
    world.step(Event::Wake);
}

#[test]
fn leases_and_donors_are_as_good_as_before_when_it_wakes() {
    for ns in [ASLEEP_NS + 3 * SECOND_NS, 20 * SECOND_NS, 3600 * SECOND_NS] {
        let (mut world, leases) = world();
        let epoch = world.show("v").map.epoch;
        sleep(&mut world, ns);
        let status = world.status();
        assert!(
            status.donors.iter().all(|donor| donor.health == DonorHealth::Alive && donor.silent_ms < 5000)
        );
        // The writer's renewal is the last to come.
        for (at, token) in leases.iter().rev().enumerate() {
            world.pass(if at == 0 { LEASE_NS - SECOND_NS } else { 0 });
            world.renew("v", *token, epoch);
        }
        let detail = world.show("v");
        assert_eq!((detail.status.attachments.len(), detail.map.epoch), (3, epoch), "after {ns} ns");
        assert_eq!(detail.status.health, VolumeHealth::Whole);
    }
}

#[test]
fn who_is_silent_when_it_is_awake_is_judged_as_ever() {
    let (mut world, leases) = world();
    sleep(&mut world, 20 * SECOND_NS);
    world.donors.remove(&DonorId(2));
    world.pass(DONOR_SILENCE_NS + SECOND_NS);
    assert_eq!(world.status().donors[1].health, DonorHealth::Lost);
    world.pass(LEASE_NS);
    let renew = world.renew("v", leases[0], 1);
    assert_refused(world.answer(renew).expect("at once"), RefusalCode::Gone, &["not renewed in time"]);
    world.attach("v", false).expect("the lease has ended");
}

#[test]
fn what_is_held_back_is_answered_when_it_would_have_been() {
    let (mut world, leases) = world();
    let epoch = world.show("v").map.epoch;
    let renew = world.renew("v", leases[0], epoch);
    sleep(&mut world, 20 * SECOND_NS);
    assert_eq!(world.answer(renew), None);
    world.pass(3 * SECOND_NS);
    assert!(matches!(world.answer(renew), Some(Ok(Answer::Renewed(_)))));
}

#[test]
fn a_clock_that_goes_back_or_leaps_on_ends_nothing() {
    for seed in 0..50 {
        let (mut random, (mut world, leases)) = (Seed(seed), world());
        let epoch = world.show("v").map.epoch;
        for _ in 0..20 {
            match random.draw() % 3 {
                0 => world.now -= random.draw() % world.now,
                1 => world.now += random.draw() % (1000 * SECOND_NS),
                _ => world.now += random.draw() % SECOND_NS,
            }
            world.step(Event::Wake);
            // A heartbeat is on its way.
            world.settle();
            for token in &leases {
                world.renew("v", *token, epoch);
            }
        }
        let (status, detail) = (world.status(), world.show("v"));
        assert!(status.donors.iter().all(|donor| donor.health == DonorHealth::Alive), "seed {seed}");
        assert_eq!((detail.status.attachments.len(), detail.map.epoch), (3, epoch), "seed {seed}");
    }
}
