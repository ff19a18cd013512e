//! Hosts: what a donor is called, and which donors go together when a machine goes.

use crate::pool::{E, World, assert_refused, joining};
use cheetah_core::api::{Answer, Call, Join, Refusal, RefusalCode, Size};
use cheetah_core::coordinator::Record;
use cheetah_core::map::DonorId;

/// A donor that asks for its host's name.
fn of_host(id: u64, host: &str, machine: &str) -> Join {
    let (name, host, machine) = (host.to_owned(), host.to_owned(), machine.to_owned());
    Join { name, host, machine, or_numbered: true, ..joining(id, 4) }
}

/// Lets a donor join, and what it is called then.
fn called(world: &mut World, join: Join) -> Result<String, Refusal> {
    let id = join.donor;
    let answer = world.ask(Call::Join(join))?;
    world.donors.entry(id).or_default();
    world.settle();
    match answer {
        Answer::Joined(joined) => Ok(joined.name),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_donor_has_its_hosts_name_and_a_number_only_where_that_is_taken() {
    let mut world = World::new();
    for (id, host, name) in
        [(1, "lab7", "lab7"), (2, "kali", "kali"), (3, "kali", "kali-2"), (4, "kali", "kali-3")]
    {
        assert_eq!(called(&mut world, of_host(id, host, &format!("boot{id}"))).as_deref(), Ok(name));
    }
    let names: Vec<String> = world.status().donors.into_iter().map(|donor| donor.name).collect();
    assert_eq!(names, ["lab7", "kali", "kali-2", "kali-3"]);
    // Joining again, as after an outage, each is called what it was; also by a coordinator that was started
    // again.
    assert_eq!(called(&mut world, of_host(3, "kali", "boot3")).as_deref(), Ok("kali-2"));
    world.restart();
    world.settle();
    assert_eq!(called(&mut world, of_host(4, "kali", "boot4")).as_deref(), Ok("kali-3"));
    world.leave("kali-2", false).expect("it is called that");
    assert_eq!(called(&mut world, of_host(5, "kali", "boot5")).as_deref(), Ok("kali-2"), "free again");
}

#[test]
fn a_name_that_somebody_chose_is_refused_where_it_is_taken_and_a_long_one_is_cut_for_its_number() {
    let mut world = World::new();
    called(&mut world, of_host(1, "kali", "boot1")).expect("joins");
    let chosen = Join { or_numbered: false, ..of_host(2, "kali", "boot2") };
    assert_refused(world.ask(Call::Join(chosen)), RefusalCode::Conflict, &["'kali'", "--name"]);
    let long = "x".repeat(64);
    assert_eq!(called(&mut world, of_host(3, &long, "boot3")), Ok(long.clone()));
    assert_eq!(called(&mut world, of_host(4, &long, "boot4")), Ok(format!("{}-2", &long[..62])));
}

#[test]
fn who_died_with_data_keeps_its_name_and_who_died_with_none_does_not() {
    let mut world = World::new();
    for id in 1..=2 {
        called(&mut world, of_host(id, &format!("lab{id}"), &format!("boot{id}"))).expect("joins");
    }
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.silence(1);
    world.silence(2);
    assert_eq!(
        called(&mut world, of_host(3, "lab1", "boot3")).as_deref(),
        Ok("lab1-2"),
        "lost with a part of v"
    );
    assert_eq!(called(&mut world, of_host(4, "lab2", "boot4")).as_deref(), Ok("lab2"));
}

/// Which donors hold each group of a mirror over four donors of these machines.
fn pairs(machines: [(&str, &str); 4]) -> Vec<[u64; 2]> {
    let mut world = World::new();
    for (id, (host, machine)) in (1..).zip(machines) {
        called(&mut world, of_host(id, host, machine)).expect("joins");
    }
    let map = world.create("v", Size::Bytes(8 * E), Some("mirror:2")).expect("created").map;
    let pair = |group: &cheetah_core::map::Group| {
        let mut donors: Vec<u64> = group.placements().map(|place| place.donor.0).collect();
        donors.sort_unstable();
        [donors[0], donors[1]]
    };
    map.groups.iter().map(pair).collect()
}

#[test]
fn clones_of_one_name_are_two_machines_and_two_names_on_one_are_one() {
    // Only a machine's identity tells; 1 and 2 are one, 3 and 4 another.
    for machines in [
        [("kali", "a"), ("kali", "a"), ("kali", "b"), ("kali", "b")],
        [("box1", "a"), ("box2", "a"), ("box1", "b"), ("box2", "b")],
        // Donors of an older program say their host's name alone.
        [("a", ""), ("a", ""), ("b", ""), ("b", "")],
    ] {
        for [first, second] in pairs(machines) {
            assert!(first <= 2 && second > 2, "{first} and {second} go together: {machines:?}");
        }
    }
}

#[test]
fn a_state_of_an_older_program_tells_machines_by_their_names() {
    let mut world = World::new();
    called(&mut world, of_host(1, "lab1", "boot1")).expect("joins");
    for record in world.store.values_mut() {
        if let Record::Donor(donor) = record {
            donor.machine.clear();
        }
    }
    world.restart();
    world.settle();
    let donor = world.status().donors.remove(0);
    assert_eq!((donor.donor, donor.machine.as_str()), (DonorId(1), "lab1"));
    called(&mut world, of_host(1, "lab1", "boot1")).expect("joins again");
    assert_eq!(world.status().donors[0].machine, "boot1", "it says so when it joins again");
}
