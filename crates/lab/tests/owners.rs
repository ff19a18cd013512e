//! A machine's owner needs memory that a donor's data takes: the donor gives it back, nobody is killed or
//! swapped out, and the volume is whole all the while. A donor whose data can go nowhere ends, and the volume
//! lives by its redundancy. How long that takes is the business of `make bench-owner`.

use cheetah_lab::hog::{Pace, Scene};

const MIB: u64 = 1 << 20;

#[test]
fn a_donor_gives_its_owner_memory_back_and_its_volume_stays_whole() {
    let scene = Scene {
        machine_bytes: 2048 * MIB,
        reserve_bytes: 512 * MIB,
        volume_bytes: 1152 * MIB,
        checked_bytes: 128 * MIB,
        wanted_bytes: 896 * MIB,
        rate: 150 * MIB,
        room_elsewhere: true,
        pace: Pace::Patient,
    };
    let seen = scene.play();
    assert_eq!((&seen.complaints, &seen.donor_ended), (&Vec::new(), &None), "{seen:?}");
    assert!(seen.given_back_s.is_some() && seen.hog_s.is_some(), "{seen:?}");
    assert!(seen.always_whole && seen.slots_missing_max == 0, "{seen:?}");
    assert_eq!((seen.killed, seen.swapped_bytes), (0, 0), "{seen:?}");
}

/// The kernel would end the donor, and then, before the donor's memory is free, the owner's process as well.
#[test]
fn a_donor_whose_data_can_go_nowhere_ends_before_its_owner_is_out_of_memory() {
    let scene = Scene {
        machine_bytes: 2048 * MIB,
        reserve_bytes: 512 * MIB,
        volume_bytes: 1152 * MIB,
        checked_bytes: 128 * MIB,
        wanted_bytes: 1024 * MIB,
        rate: 200 * MIB,
        room_elsewhere: false,
        pace: Pace::InStep,
    };
    let seen = scene.play();
    assert_eq!((&seen.complaints, seen.killed), (&Vec::new(), 0), "{seen:?}");
    assert!(seen.hog_s.is_some() && seen.given_back_s.is_some(), "{seen:?}");
    let said = seen.donor_ended.as_deref().unwrap_or("nothing: it is there still");
    assert!(said.contains("ends to free") && said.contains("for its machine's owner"), "{said}");
}
