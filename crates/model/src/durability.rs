//! Years of a pool whose nodes fail and come back empty: how often data is lost, though what is lost is
//! rebuilt.
//!
//! Owns: failures at random times, rebuilds that take time and room, and the count of what was lost. Core's
//! own are where groups lie (`placement`) and which bytes are lost with a group (`layout`). As the
//! coordinator does, a lost slot goes to the emptiest node outside of its group, and the group that can lose
//! least goes first. Each volume is rebuilt by one node, one extent after the other. Never: requests, or
//! causes of failures: each node fails by itself. Invariant: a node holds one slot of a group at most.
//! Called by `cheetah simulate`. Tests: below, against what a hand computes for a mirror.

use crate::chance::Chance;
use crate::hardware::Hardware;
use crate::latencies::{Latencies, Summary};
use crate::pool::{Unfit, map_of, rooms};
use cheetah_core::layout::lost_ranges;
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, Group, Placement, Redundancy, Slot};
use cheetah_core::placement;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// What a pool is, and what happens to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Each is a host with one donor.
    pub nodes: u32,
    /// Of every volume.
    pub redundancy: Redundancy,
    /// How many there are.
    pub volumes: u32,
    /// Groups of each, of k extents of data.
    pub groups: u32,
    /// Mean time until a node fails.
    pub mttf_s: f64,
    /// Until it is known that a node has failed.
    pub notice_s: f64,
    /// Until it is back, empty.
    pub away_s: f64,
    /// How long rebuilding takes.
    pub rebuild: Rebuild,
    /// All of chance.
    pub seed: u64,
    /// The run ends after so many failures of nodes.
    pub failures_max: u64,
    /// Or after so many losses of data.
    pub losses_max: u64,
}

/// What rebuilding an extent takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rebuild {
    /// Seconds for one volume that has the pool to itself.
    pub alone_s: f64,
    /// Seconds of all disks together: where many volumes are rebuilt, they share them.
    pub shared_s: f64,
}

impl Rebuild {
    /// One node reads k extents over its link, each from a disk, and writes one.
    #[must_use]
    pub fn of(hardware: &Hardware, redundancy: Redundancy, nodes: u32) -> Rebuild {
        let (extent, k) = (EXTENT_BYTES as f64, f64::from(redundancy.data));
        let alone_s = (k * extent / hardware.network_bandwidth).max(extent / hardware.disk_bandwidth);
        let shared_s = (k + 1.0) * extent / (f64::from(nodes) * hardware.disk_bandwidth);
        Rebuild { alone_s, shared_s }
    }

    fn takes_s(self, volumes: usize) -> f64 {
        self.alone_s.max(self.shared_s * volumes as f64)
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How long it lasted, in the pool's time.
    pub seconds: f64,
    /// Failures of nodes.
    pub failures: u64,
    /// Failures that took data with them.
    pub losses: u64,
    /// Volumes that lost something, each time counted.
    pub volumes_lost: u64,
    /// Bytes of volumes that were lost.
    pub bytes_lost: u64,
    /// From a failure to the slot's new holder.
    pub rebuilds: Summary,
    /// Mean time to data loss: the time for each loss. None: nothing was lost.
    pub mttdl_s: Option<f64>,
    /// What it exceeds with a confidence of 95 %, where nothing was lost: a third of the time.
    pub at_least_s: f64,
    /// The same of one volume: its own time for each of its losses.
    pub volume_mttdl_s: Option<f64>,
    /// What `formula_s` says, with rebuilds as long as the mean was.
    pub formula_s: f64,
}

/// Milliseconds: nanoseconds would end after 584 years.
type Ms = u64;

fn ms(seconds: f64) -> Ms {
    (seconds * 1e3).round().max(0.0) as Ms
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ev {
    Fails(u32),
    /// That it has failed is known, if it was this failure.
    Noticed(u32, u64),
    Returns(u32),
    Built(u32, u64),
}

#[derive(Debug, Default)]
struct Node {
    lives: bool,
    room: u32,
    slots: Vec<(u32, u32)>,
    /// Of failures that were not noticed yet: which, and what was lost.
    unnoticed: BTreeMap<u64, Vec<(u32, u32)>>,
}

#[derive(Debug, Default)]
struct Volume {
    /// Groups that miss something, those that miss most first.
    due: BTreeSet<(Reverse<u32>, u32)>,
    /// What is being rebuilt: the number of the work, group, slot, and home.
    work: Option<(u64, u32, u32, u32)>,
}

#[derive(Debug)]
struct World {
    setup: Setup,
    width: u32,
    capacity: u32,
    now: Ms,
    order: u64,
    queue: BinaryHeap<Reverse<(Ms, u64, Ev)>>,
    nodes: Vec<Node>,
    /// Those that live, the emptiest first.
    emptiest: BTreeSet<(Reverse<u32>, u32)>,
    /// By group and slot.
    holders: Vec<Option<u32>>,
    lost_at: Vec<Ms>,
    /// Of a slot that is missing, and that this is known.
    known: Vec<bool>,
    volumes: Vec<Volume>,
    rebuilding: usize,
    /// Volumes that found no home.
    homeless: BTreeSet<u32>,
    works: u64,
    chance: Chance,
    outcome: Outcome,
    rebuilds: Latencies,
}

/// Runs it.
///
/// # Errors
/// The groups do not fit.
pub fn run(setup: &Setup) -> Result<Outcome, Unfit> {
    let mut world = World::new(*setup)?;
    while let Some(Reverse((at, _, ev))) = world.queue.pop() {
        world.now = at;
        world.take(ev);
        let Outcome { failures, losses, .. } = world.outcome;
        if failures >= setup.failures_max || losses >= setup.losses_max {
            break;
        }
    }
    Ok(world.finish())
}

impl World {
    fn new(setup: Setup) -> Result<World, Unfit> {
        let Setup { nodes, redundancy, volumes, groups, seed, .. } = setup;
        let narrow = Unfit::Narrow { redundancy, nodes };
        let width = redundancy.width();
        let count = u64::from(volumes) * u64::from(groups);
        let share = (count * u64::from(width)).div_ceil(nodes.max(1).into());
        // As much again is free: a pool that is full rebuilds nothing.
        let capacity = u32::try_from(2 * share + 2).unwrap_or(u32::MAX);
        let mut chance = Chance::new(seed, 4);
        let rooms = rooms(nodes, capacity);
        let placed = placement::place(redundancy, count, &rooms, chance.seed()).ok_or(narrow)?;
        let node = |_| Node { lives: true, room: capacity, ..Node::default() };
        let mut world = World {
            setup,
            width,
            capacity,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            nodes: (0..nodes).map(node).collect(),
            emptiest: BTreeSet::new(),
            holders: Vec::with_capacity(placed.len() * width as usize),
            lost_at: vec![0; placed.len() * width as usize],
            known: vec![false; placed.len() * width as usize],
            volumes: (0..volumes).map(|_| Volume::default()).collect(),
            rebuilding: 0,
            homeless: BTreeSet::new(),
            works: 0,
            chance,
            outcome: Outcome::default(),
            rebuilds: Latencies::default(),
        };
        for (group, donors) in (0..).zip(&placed) {
            for (slot, donor) in (0..).zip(donors) {
                let node = u32::try_from(donor.0).unwrap_or(u32::MAX);
                world.nodes[node as usize].room -= 1;
                world.nodes[node as usize].slots.push((group, slot));
                world.holders.push(Some(node));
            }
        }
        for node in 0..nodes {
            world.emptiest.insert((Reverse(world.nodes[node as usize].room), node));
            world.fails_some_day(node);
        }
        Ok(world)
    }

    fn put(&mut self, at: Ms, ev: Ev) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, ev)));
    }

    fn fails_some_day(&mut self, node: u32) {
        let after = ms(self.chance.waits(self.setup.mttf_s));
        self.put(self.now + after, Ev::Fails(node));
    }

    fn take(&mut self, ev: Ev) {
        match ev {
            Ev::Fails(node) => self.fails(node),
            Ev::Returns(node) => {
                let empty = &mut self.nodes[node as usize];
                (empty.lives, empty.room) = (true, self.capacity);
                self.emptiest.insert((Reverse(self.capacity), node));
                self.fails_some_day(node);
                for volume in std::mem::take(&mut self.homeless) {
                    self.begin(volume);
                }
            }
            Ev::Noticed(node, failure) => {
                let slots = self.nodes[node as usize].unnoticed.remove(&failure).unwrap_or_default();
                let mut volumes = BTreeSet::new();
                for (group, slot) in slots {
                    // What was lost with all of its group has been made anew.
                    if self.holders[self.at(group, slot)].is_none() {
                        let at = self.at(group, slot);
                        self.known[at] = true;
                        let due = (Reverse(self.missing(group)), group);
                        let volume = self.volume_of(group);
                        volumes.insert(volume);
                        self.volumes[volume as usize].due.insert(due);
                    }
                }
                volumes.into_iter().for_each(|volume| self.begin(volume));
            }
            Ev::Built(volume, work) => self.built(volume, work),
        }
    }

    fn at(&self, group: u32, slot: u32) -> usize {
        (group * self.width + slot) as usize
    }

    fn slots(&self, group: u32) -> &[Option<u32>] {
        &self.holders[self.at(group, 0)..self.at(group + 1, 0)]
    }

    fn missing(&self, group: u32) -> u32 {
        self.slots(group).iter().map(|holder| u32::from(holder.is_none())).sum()
    }

    fn volume_of(&self, group: u32) -> u32 {
        group / self.setup.groups
    }

    fn fails(&mut self, node: u32) {
        self.outcome.failures += 1;
        let failing = &mut self.nodes[node as usize];
        failing.lives = false;
        let slots = std::mem::take(&mut failing.slots);
        self.emptiest.remove(&(Reverse(failing.room), node));
        failing.unnoticed.insert(self.outcome.failures, slots.clone());
        self.put(self.now + ms(self.setup.notice_s), Ev::Noticed(node, self.outcome.failures));
        self.put(self.now + ms(self.setup.away_s), Ev::Returns(node));
        // What was being rebuilt there begins again elsewhere.
        for volume in 0..self.volumes.len() {
            if self.volumes[volume].work.is_some_and(|(.., home)| home == node) {
                self.give_up(volume as u32);
            }
        }
        let mut lost = BTreeSet::new();
        for (group, slot) in slots {
            let before = (Reverse(self.missing(group)), group);
            let at = self.at(group, slot);
            (self.holders[at], self.lost_at[at], self.known[at]) = (None, self.now, false);
            let missing = self.missing(group);
            let volume = self.volume_of(group);
            let due = &mut self.volumes[volume as usize].due;
            if due.remove(&before) {
                due.insert((Reverse(missing), group));
            }
            if missing > self.setup.redundancy.parity {
                lost.insert(volume);
                self.loses(group);
            }
        }
        self.outcome.losses += u64::from(!lost.is_empty());
        self.outcome.volumes_lost += lost.len() as u64;
        lost.into_iter().for_each(|volume| self.begin(volume));
    }

    /// More of it is gone than redundancy covers. Core says what that takes; then its owner makes it anew.
    fn loses(&mut self, group: u32) {
        let slot = |(at, holder): (u64, &Option<u32>)| {
            let held = holder.map(|_| Placement { donor: DonorId(at), extent: 0 });
            Slot { held, filling: None }
        };
        let slots = (0..).zip(self.slots(group)).map(slot).collect();
        let map = map_of(0, self.setup.redundancy, vec![Group { slots }]);
        let ranges = lost_ranges(&map, |_| false);
        assert!(!ranges.is_empty(), "core loses nothing of {:?}", self.slots(group));
        self.outcome.bytes_lost += ranges.iter().map(|range| range.len * range.count).sum::<u64>();
        let volume = self.volume_of(group);
        self.volumes[volume as usize].due.retain(|(_, other)| *other != group);
        if self.volumes[volume as usize].work.is_some_and(|(_, other, ..)| other == group) {
            self.give_up(volume);
        }
        for slot in 0..self.width {
            let at = self.at(group, slot);
            if self.holders[at].is_none()
                && let Some(home) = self.home(group)
            {
                self.reserve(home);
                self.hold(group, slot, home);
            }
        }
        // Where no node is free, the slot waits for one as any other.
        if self.missing(group) > 0 {
            for slot in 0..self.width {
                let at = self.at(group, slot);
                self.known[at] = self.holders[at].is_none();
                self.lost_at[at] = self.now;
            }
            let due = (Reverse(self.missing(group)), group);
            self.volumes[volume as usize].due.insert(due);
        }
    }

    /// The emptiest node that has nothing of the group.
    fn home(&self, group: u32) -> Option<u32> {
        let slots = self.slots(group);
        let free = self.emptiest.iter().filter(|(Reverse(room), _)| *room > 0).map(|(_, node)| *node);
        free.into_iter().find(|node| !slots.contains(&Some(*node)))
    }

    fn reserve(&mut self, node: u32) {
        let room = &mut self.nodes[node as usize].room;
        self.emptiest.remove(&(Reverse(*room), node));
        *room -= 1;
        self.emptiest.insert((Reverse(*room), node));
    }

    fn hold(&mut self, group: u32, slot: u32, node: u32) {
        let at = self.at(group, slot);
        (self.holders[at], self.known[at]) = (Some(node), false);
        self.nodes[node as usize].slots.push((group, slot));
    }

    /// Begins the next of a volume's slots, if it has one and nothing is under way.
    fn begin(&mut self, volume: u32) {
        let of = &self.volumes[volume as usize];
        let (None, Some((_, group))) = (of.work, of.due.first().copied()) else { return };
        let due = (0..self.width).find(|slot| self.known[self.at(group, *slot)]);
        let (Some(slot), Some(home)) = (due, self.home(group)) else {
            self.homeless.insert(volume);
            return;
        };
        self.reserve(home);
        self.works += 1;
        self.rebuilding += 1;
        self.volumes[volume as usize].work = Some((self.works, group, slot, home));
        let takes = ms(self.setup.rebuild.takes_s(self.rebuilding));
        self.put(self.now + takes, Ev::Built(volume, self.works));
    }

    /// What was under way comes to nothing.
    fn give_up(&mut self, volume: u32) {
        let Some((.., home)) = self.volumes[volume as usize].work.take() else { return };
        self.rebuilding -= 1;
        let node = &mut self.nodes[home as usize];
        if node.lives {
            self.emptiest.remove(&(Reverse(node.room), home));
            node.room += 1;
            self.emptiest.insert((Reverse(node.room), home));
        }
        // Its home has failed just now: another begins when all that it held is known to be lost.
        self.works += 1;
        self.put(self.now, Ev::Built(volume, self.works));
    }

    fn built(&mut self, volume: u32, work: u64) {
        if let Some((_, group, slot, home)) =
            self.volumes[volume as usize].work.take_if(|(under_way, ..)| *under_way == work)
        {
            self.rebuilding -= 1;
            let before = (Reverse(self.missing(group)), group);
            let since = self.lost_at[self.at(group, slot)];
            self.rebuilds.add((self.now - since).saturating_mul(1_000_000));
            self.hold(group, slot, home);
            let first = self.at(group, 0);
            let is_due = self.known[first..first + self.width as usize].contains(&true);
            let missing = self.missing(group);
            let due = &mut self.volumes[volume as usize].due;
            due.remove(&before);
            if is_due {
                due.insert((Reverse(missing), group));
            }
        }
        self.begin(volume);
    }

    fn finish(self) -> Outcome {
        let volumes = self.setup.volumes;
        let seconds = self.now as f64 * 1e-3;
        let rebuilds = self.rebuilds.summary();
        let each = |count: u64, time: f64| (count > 0).then(|| time / count as f64);
        Outcome {
            seconds,
            mttdl_s: each(self.outcome.losses, seconds),
            at_least_s: seconds / 3.0,
            volume_mttdl_s: each(self.outcome.volumes_lost, seconds * f64::from(volumes)),
            formula_s: formula_s(&self.setup, rebuilds.mean_s),
            rebuilds,
            ..self.outcome
        }
    }
}

/// Mean time until a pool loses data, if what a node had is missing for `window_s` after it failed:
/// m! MTTF^(m+1) / (N (N-1) ... (N-m) R^m P). That is how long it takes until m+1 nodes are missing at once,
/// and P is the chance that any group lies on all of these: 1 - (1 - p)^G, where p is that of one group,
/// w (w-1) ... (w-m) / (N (N-1) ... (N-m)). For one group with m = 1 it is MTTF^2 / (w (w-1) R), as in the
/// RAID paper (Patterson, Gibson and Katz 1988).
#[must_use]
pub fn formula_s(setup: &Setup, window_s: f64) -> f64 {
    let (n, w, m) = (f64::from(setup.nodes), f64::from(setup.redundancy.width()), setup.redundancy.parity);
    let falling = |from: f64| (0..=m).map(|less| from - f64::from(less)).product::<f64>();
    let groups = f64::from(setup.volumes) * f64::from(setup.groups);
    // Not by a power of what is nearly 1.
    let any = -(groups * (-falling(w) / falling(n)).ln_1p()).exp_m1();
    let factorial = (1..=m).map(f64::from).product::<f64>();
    let power = i32::try_from(m).unwrap_or(i32::MAX);
    factorial * setup.mttf_s.powi(power + 1) / (falling(n) * window_s.powi(power) * any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::PAPER;

    fn setup(nodes: u32, redundancy: &str) -> Setup {
        Setup {
            nodes,
            redundancy: redundancy.parse().expect("a redundancy"),
            volumes: 1,
            groups: 1,
            mttf_s: 50_000.0,
            notice_s: 200.0,
            away_s: 1_000.0,
            rebuild: Rebuild { alone_s: 800.0, shared_s: 0.0 },
            seed: 1,
            failures_max: 2_000_000,
            losses_max: 1_000,
        }
    }

    #[track_caller]
    fn near(is: f64, expected: f64, within: f64) {
        assert!((is / expected - 1.0).abs() <= within, "{is}, not {expected}");
    }

    /// By hand: two nodes hold it, one of them fails every 25,000 s, and the other within the 1,000 s after
    /// that with 1 - exp(-1/50).
    #[test]
    fn a_mirror_is_lost_as_often_as_a_hand_computes() {
        let outcome = run(&setup(12, "mirror:2")).expect("it runs");
        assert_eq!(outcome.losses, 1_000);
        // Some begin again, because the new home fails as well.
        near(outcome.rebuilds.mean_s, 1_000.0, 0.02);
        let by_hand = 25_000.0 / (1.0 - (-1.0_f64 / 50.0).exp());
        near(outcome.mttdl_s.expect("losses"), by_hand, 0.1);
        near(outcome.formula_s, by_hand, 0.02);
        near(outcome.bytes_lost as f64, 1_000.0 * EXTENT_BYTES as f64, 1e-9);
    }

    #[test]
    fn parity_lasts_as_long_as_the_formula_says_where_failures_are_rare() {
        let of = |redundancy, mttf_s| {
            let setup = Setup { mttf_s, losses_max: 400, ..setup(20, redundancy) };
            run(&setup).expect("it runs")
        };
        let (one, two) = (of("parity:4+1", 400_000.0), of("parity:4+2", 40_000.0));
        near(one.mttdl_s.expect("losses"), one.formula_s, 0.15);
        // The second that a group has lost waits until the first is rebuilt, which the formula leaves out.
        near(two.mttdl_s.expect("losses"), two.formula_s, 0.4);
    }

    #[test]
    fn without_redundancy_every_failure_of_a_holder_is_a_loss() {
        let outcome = run(&Setup { losses_max: 500, ..setup(4, "stripe:4") }).expect("it runs");
        near(outcome.mttdl_s.expect("losses"), 50_000.0 / 4.0, 0.15);
        // At times two are away at once: four nodes have no other to hold what both had.
        near(outcome.bytes_lost as f64, 500.0 * EXTENT_BYTES as f64, 0.15);
    }

    #[test]
    fn what_was_never_lost_has_a_bound_and_no_figure() {
        let calm = Setup { mttf_s: 1e9, failures_max: 2_000, ..setup(20, "parity:4+2") };
        let outcome = run(&calm).expect("it runs");
        assert_eq!((outcome.losses, outcome.mttdl_s, outcome.failures), (0, None, 2_000));
        near(outcome.at_least_s, outcome.seconds / 3.0, 1e-9);
        assert!(outcome.rebuilds.count > 0);
        assert_eq!(run(&calm), run(&calm));
        assert!(run(&setup(1, "mirror:2")).is_err());
    }

    /// With as many nodes as slots what was lost waits for its own node.
    #[test]
    fn a_pool_without_a_spare_node_waits_for_the_one_that_failed() {
        let outcome = run(&Setup { losses_max: 300, ..setup(2, "mirror:2") }).expect("it runs");
        near(outcome.rebuilds.mean_s, 1_800.0, 0.02);
    }

    /// On four nodes any two have one of a hundred groups in common; of one group it is its own two.
    #[test]
    fn the_formula_counts_failures_and_not_groups() {
        let of = |groups| formula_s(&Setup { groups, ..setup(4, "mirror:2") }, 1_000.0);
        near(of(100), 50_000.0_f64.powi(2) / (4.0 * 3.0 * 1_000.0), 1e-6);
        near(of(1), 50_000.0_f64.powi(2) / (2.0 * 1_000.0), 1e-9);
        let crowded = Setup { volumes: 4, groups: 25, losses_max: 500, ..setup(4, "mirror:2") };
        let outcome = run(&crowded).expect("it runs");
        near(outcome.mttdl_s.expect("losses"), outcome.formula_s, 0.6);
        assert!(outcome.volumes_lost > 2 * outcome.losses, "{outcome:?}");
    }

    #[test]
    fn many_volumes_share_the_disks() {
        let parity = "parity:8+1".parse().expect("a redundancy");
        let rebuild = Rebuild::of(&PAPER, parity, 100);
        let extent = EXTENT_BYTES as f64;
        near(rebuild.takes_s(1), 8.0 * extent / 100e6, 1e-9);
        near(rebuild.takes_s(90), 90.0 * 9.0 * extent / (100.0 * 25e6), 1e-9);
    }
}
