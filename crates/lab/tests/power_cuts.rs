//! Many cuts of power, by `make power-cuts`: disks forget what was not flushed, and nothing that was promised
//! is lost.

use cheetah_lab::disks::Disks;

const MIB: u64 = 1 << 20;
const CUTS: u64 = 200;

/// A share of all cuts; `CUTS` says how many those are.
fn cuts(percent: u64) -> u64 {
    let all = std::env::var("CUTS").map_or(CUTS, |cuts| cuts.parse().expect("CUTS is a number"));
    (all * percent / 100).max(1)
}

fn disks(count: u32) -> Disks {
    Disks::with_write_caches(count, 400 * MIB)
}

#[test]
#[ignore = "takes long"]
fn writes_to_disks_are_there_after_many_cuts() {
    disks(3).survive(&["--redundancy", "parity:2+1"], None, cuts(25));
    disks(2).survive(&["--redundancy", "mirror:2"], None, cuts(15));
    disks(2).survive(&["--redundancy", "linear"], None, cuts(10));
}

#[test]
#[ignore = "takes long"]
fn what_was_flushed_from_memory_is_there_after_many_cuts() {
    disks(3).survive(&["--write-back", "--redundancy", "parity:2+1"], Some(20), cuts(25));
    disks(2).survive(&["--write-back", "--redundancy", "mirror:2"], Some(20), cuts(15));
}

#[test]
#[ignore = "takes long"]
fn a_file_system_is_whole_after_many_cuts() {
    for more in [&[][..], &["--write-back"]] {
        let mut disks = disks(3);
        let create = ["create", "v", "200M", "--on", "disk", "--redundancy", "parity:2+1"];
        disks.pool.ok(create.iter().chain(more));
        disks.keeps_a_file_system("v", u8::try_from(cuts(5)).expect("few"), 20);
    }
}
