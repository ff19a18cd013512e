//! A machine's owner needs memory that a donor's data takes: the donor gives it back, nobody is killed or swapped out,
//! and the volume is whole all the while. How long that takes is the business of `make bench-owner`.

use cheetah_lab::hog::Scene;

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
    };
    let seen = scene.play();
    assert_eq!(seen.complaints, Vec::<String>::new(), "{seen:?}");
    assert!(seen.given_back_s.is_some() && seen.hog_s.is_some(), "{seen:?}");
    assert!(seen.always_whole && seen.slots_missing_max == 0, "{seen:?}");
    assert_eq!((seen.killed, seen.swapped_bytes), (0, 0), "{seen:?}");
}
