//! Any history of failures, drains, owners who want memory back, and restarts: the rules hold after each step
//! (see `pool`), and once all is quiet and the writer fills what it is asked to, every volume is whole again.

use crate::pool::{E, World, filling};
use cheetah_core::api::{Amend, Call, Size, VolumeHealth};
use cheetah_core::limits::{LEASE_NS, LEASE_RENEW_NS, SECOND_NS};
use cheetah_core::map::{BadRange, DonorId, LeaseToken};
use cheetah_core::seed::Seed;
use std::collections::BTreeMap;

struct History {
    seed: u64,
    random: Seed,
    world: World,
    writers: BTreeMap<String, LeaseToken>,
    /// Donors that fell silent, with what they had carried out.
    silent: BTreeMap<DonorId, cheetah_core::api::Duties>,
    joins: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut world = World::with_donors(&[6; 6]);
        world.patient = true;
        let (writers, silent) = (BTreeMap::new(), BTreeMap::new());
        History { seed, random: Seed(seed), world, writers, silent, joins: 6 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.draw() % bound
    }

    fn donor(&mut self) -> u64 {
        1 + self.below(self.joins)
    }

    fn volume(&mut self) -> String {
        format!("v{}", self.below(3))
    }

    /// A volume with a writer, if there is one.
    fn written(&mut self) -> Option<(String, LeaseToken)> {
        let at = self.random.draw() as usize;
        let (name, token) = self.writers.iter().nth(at % self.writers.len().max(1))?;
        Some((name.clone(), *token))
    }

    fn step(&mut self) {
        match self.below(14) {
            0 => {
                let shape =
                    ["mirror:2", "mirror:3", "parity:2+1", "parity:3+2", "linear"][self.below(5) as usize];
                let (name, size) = (self.volume(), Size::Bytes(1 + self.below(4 * E)));
                drop(self.world.create(&name, size, Some(shape)));
            }
            1 => {
                let name = self.volume();
                if let Ok(lease) = self.world.attach(&name, false) {
                    self.writers.insert(name, lease.token);
                }
            }
            2 | 3 => {
                let donors: Vec<u64> = (0..=self.below(2)).map(|_| self.donor()).collect();
                if let Some((name, token)) = self.written() {
                    let map = self.world.exclude(&name, token, &donors);
                    let sound = |group: &cheetah_core::map::Group| {
                        let held = group.slots.iter().filter_map(|slot| slot.held);
                        held.filter(|held| !donors.contains(&held.donor.0)).count()
                    };
                    for group in &map.groups {
                        let stays = group.placements().any(|place| donors.contains(&place.donor.0));
                        let enough = sound(group) >= map.redundancy.data as usize;
                        assert!(!stays || !enough, "seed {}: {group:?} of {donors:?}", self.seed);
                    }
                }
            }
            4 | 5 => {
                if let Some((name, token)) = self.written() {
                    self.world.settle();
                    let map = self.world.show(&name).map;
                    let (epoch, mut filled) = (map.epoch, filling(&map));
                    let keep = self.below(4) as usize;
                    filled.truncate(keep);
                    self.world
                        .amend(&name, token, Amend { epoch, filled, ..Amend::default() })
                        .expect("amended");
                }
            }
            6 => {
                let donor = DonorId(self.donor());
                if let Some(duties) = self.world.donors.remove(&donor).filter(|duties| !duties.dismissed) {
                    self.silent.insert(donor, duties);
                }
                let ns = self.below(8 * SECOND_NS);
                self.pass(ns);
            }
            7 | 8 => self.come_back(),
            9 => {
                let (donor, offer) = (DonorId(self.donor()), self.below(7) as u32);
                self.world.offers.insert(donor, offer);
            }
            10 => {
                let (donor, force) = (format!("d{}", self.donor()), self.below(3) == 0);
                drop(self.world.leave(&donor, force));
            }
            11 => {
                self.joins += 1;
                self.world.join(self.joins, 6).expect("joins");
            }
            12 => {
                let (group, from) = (self.below(3) as u32, self.below(1 << 20) as u32);
                let range = vec![BadRange { group, slot: 0, from, to: from + 4096 }];
                let (bad, rewritten) = if self.below(2) == 0 { (range, vec![]) } else { (vec![], range) };
                if let Some((name, token)) = self.written() {
                    let amend = Amend { bad, rewritten, ..Amend::default() };
                    self.world.amend(&name, token, amend).expect("amended");
                }
            }
            _ => {
                self.world.restart();
                self.world.settle();
            }
        }
    }

    fn come_back(&mut self) {
        for (donor, duties) in std::mem::take(&mut self.silent) {
            self.world.donors.insert(donor, duties);
        }
        self.world.settle();
    }

    /// Time in which writers keep their leases.
    fn pass(&mut self, ns: u64) {
        let mut left = ns;
        while left > 0 {
            let part = left.min(LEASE_RENEW_NS);
            for (name, token) in self.writers.clone() {
                self.world.renew(&name, token, u64::MAX);
            }
            self.world.pass(part);
            left -= part;
        }
    }

    /// Everybody is back, has room, and stays; the writers fill.
    fn heal(&mut self) {
        self.world.offers.clear();
        self.come_back();
        for _ in 0..3 {
            self.joins += 1;
            self.world.join(self.joins, 40).expect("joins");
        }
        for name in ["v0", "v1", "v2"] {
            self.world.settle();
            if let Ok(lease) = self.world.attach(name, false) {
                self.writers.insert(name.into(), lease.token);
            }
        }
        for _ in 0..12 {
            self.pass(LEASE_NS);
            for (name, token) in self.writers.clone() {
                self.world.fill(&name, token);
            }
        }
    }
}

#[test]
fn any_history_ends_whole_where_redundancy_covered_it() {
    for seed in 0..50 {
        let mut history = History::new(seed);
        for _ in 0..60 {
            history.step();
        }
        history.heal();
        let status = history.world.status();
        for volume in &status.volumes {
            assert_eq!(volume.slots_filling, 0, "seed {seed}: {volume:?}");
            // What a forced leave took beyond redundancy is lost for good; anything less is whole again.
            let has_bad = !history.world.show(&volume.name).map.bad.is_empty();
            let whole = volume.health == VolumeHealth::Whole;
            assert!(whole || has_bad || volume.bytes_lost > 0, "seed {seed}: {volume:?}");
            assert!(volume.slots_missing == 0 || volume.bytes_lost > 0, "seed {seed}: {volume:?}");
        }
        assert!(status.donors.iter().all(|donor| !donor.leaving || donor.bytes_held > 0), "seed {seed}");
        let names: Vec<String> = status.volumes.iter().map(|volume| volume.name.clone()).collect();
        for name in names {
            if let Some(token) = history.writers.get(&name) {
                history.world.detach(&name, *token).expect("detached");
            }
            history.world.ask(Call::Delete { name }).expect("unattached");
        }
        history.world.settle();
        let status = history.world.status();
        let lent: u64 = status.donors.iter().map(|donor| donor.bytes_total).sum();
        assert_eq!((status.bytes_free, status.donors.iter().any(|donor| donor.leaving)), (lent, false));
    }
}
