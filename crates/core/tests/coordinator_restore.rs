//! A coordinator that is killed and started again: all is there, and nobody notices.

use crate::pool::{self, E, World};
use cheetah_core::api::{Answer, Call, RefusalCode, Size, Sync, VolumeHealth, VolumeStatus};
use cheetah_core::coordinator::Coordinator;
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::DonorId;
use cheetah_core::seed::Seed;

#[test]
fn everything_is_there_and_leases_go_on() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(3 * E), Some("stripe:2")).expect("created");
    world.create("w", Size::Bytes(E), Some("linear")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    let (show, duties) = (world.show("v"), world.donors[&DonorId(1)].clone());
    world.restart();
    // How it is now nobody has said yet.
    let after = world.show("v");
    assert_eq!((after.map, after.lost), (show.map, show.lost));
    assert_eq!(after.status.attachments.len(), show.status.attachments.len());
    world.settle();
    let after = &world.donors[&DonorId(1)];
    assert_eq!(after.volumes, duties.volumes);
    assert!(after.revision > duties.revision, "so that it is heard");
    let renew = world.renew("v", lease.token, lease.map.epoch);
    world.pass(3 * SECOND_NS);
    assert!(matches!(world.answer(renew), Some(Ok(Answer::Renewed(_)))));
    assert!(world.attach("v", false).is_err(), "the writer is still the writer");
}

/// A backup, or a machine that was set back: what happened since is not in it, and donors are not to be told
/// by it what to wipe.
#[test]
fn a_state_that_is_older_than_its_donors_is_refused_until_the_newest_is_back() {
    let mut world = World::with_donors(&[4]);
    let old = world.store.clone();
    for name in ["v", "w", "x"] {
        world.create(name, Size::Bytes(E), None).expect("created");
    }
    let newest = std::mem::replace(&mut world.store, old);
    world.restart();
    let ahead = world.donors[&DonorId(1)].revision;
    let sync = || Sync {
        secret: pool::secret_of(DonorId(1)),
        revision: ahead,
        bytes_used: 0,
        connections: 0,
        goodbye: false,
        leaving: false,
        extents_offered: u32::MAX,
        incarnation: None,
    };
    let answer = world.ask(Call::Sync { donor: DonorId(1), sync: sync() });
    pool::assert_refused(answer, RefusalCode::Invalid, &["older", "newest", "keeps what it holds"]);
    world.store = newest;
    world.restart();
    assert!(matches!(world.ask(Call::Sync { donor: DonorId(1), sync: sync() }), Ok(Answer::Duties(_))));
    assert_eq!(world.show("v").status.bytes_lost, 0);
}

#[test]
fn a_damaged_state_is_refused() {
    let mut world = World::with_donors(&[4]);
    world.create("v", Size::Bytes(E), None).expect("created");
    let damage = |without: &str| {
        let kept = world.store.iter().filter(|(key, _)| !key.starts_with(without));
        Coordinator::restore(kept.map(|(_, record)| record.clone()).collect(), 0)
    };
    assert!(damage("lease").is_ok());
    assert!(damage("pool").is_err() && damage("donor").is_err());
}

/// Random calls, silences and restarts: invariants hold after each step, and the state restores to the same.
#[test]
fn any_history_restores_to_itself() {
    for seed in 0..60 {
        let mut random = Seed(seed);
        let mut world = World::with_donors(&[6, 6, 6]);
        let mut leases = Vec::new();
        for _ in 0..80 {
            let name = format!("v{}", random.draw() % 4);
            let size = if random.draw().is_multiple_of(6) {
                Size::All
            } else {
                Size::Bytes(1 + random.draw() % (6 * E))
            };
            let shape = ["linear", "stripe:2", "stripe:3"][(random.draw() % 3) as usize];
            match random.draw() % 9 {
                0 | 1 => drop(world.create(&name, size, Some(shape))),
                2 => drop(world.grow(&name, size)),
                3 => drop(world.delete(&name)),
                4 => leases.extend(
                    world.attach(&name, random.draw().is_multiple_of(2)).map(|lease| (name, lease.token)),
                ),
                5 if !leases.is_empty() => {
                    let (name, token) = leases.swap_remove((random.draw() as usize) % leases.len());
                    drop(world.detach(&name, token));
                }
                6 => world.pass(random.draw() % (20 * SECOND_NS)),
                7 => {
                    let donor = DonorId(1 + random.draw() % 3);
                    let kept = world.donors.remove(&donor);
                    world.pass(random.draw() % (10 * SECOND_NS));
                    world.donors.extend(kept.map(|duties| (donor, duties)));
                    world.settle();
                }
                _ => {
                    let before = world.status();
                    world.restart();
                    world.settle();
                    let lasting = |volumes: Vec<VolumeStatus>| {
                        let unheard = |mut volume: VolumeStatus| {
                            volume.health = VolumeHealth::Unknown;
                            volume.attachments.iter_mut().for_each(|attachment| {
                                (attachment.heard, attachment.silent_ms) = (false, 0);
                            });
                            volume
                        };
                        volumes.into_iter().map(unheard).collect::<Vec<_>>()
                    };
                    assert_eq!(lasting(world.status().volumes), lasting(before.volumes), "seed {seed}");
                }
            }
            let held: u64 = world.status().volumes.iter().map(|volume| volume.size.div_ceil(E)).sum();
            assert!(held <= 18, "seed {seed}");
        }
        let names: Vec<String> = world.status().volumes.iter().map(|volume| volume.name.clone()).collect();
        world.pass(16 * SECOND_NS);
        names
            .iter()
            .for_each(|name| drop(world.ask(Call::Delete { name: name.clone() }).expect("unattached")));
        world.settle();
        assert_eq!(world.status().bytes_free, 18 * E, "seed {seed}");
    }
}

#[test]
fn nothing_is_placed_on_a_donor_that_is_only_remembered() {
    let mut world = World::with_donors(&[4, 4]);
    world.silence(2);
    world.restart();
    let create = pool::creating("v", Size::Bytes(6 * E), None);
    let early = world.send(Call::Create(create));
    let early = world.answer(early);
    assert!(matches!(early, Some(Err(refusal)) if refusal.code == RefusalCode::Unavailable));
    world.settle();
    world.pass(10 * SECOND_NS);
    pool::assert_refused(world.create("v", Size::Bytes(6 * E), None), RefusalCode::PoolFull, &["free"]);
    world.create("w", Size::Bytes(4 * E), None).expect("on the one that lives");
}
