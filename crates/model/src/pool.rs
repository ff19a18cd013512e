//! Requests of a pool's nodes, at the stations that hardware is: how long each takes, and how many there are
//! in a second.
//!
//! Owns what can be asked of a run and what comes of it. A request is a hit of the own memory, of another
//! node's, or a read of disks, by chance. Reads of disks go one of three ways: striped over all nodes, as the
//! paper's T_raid has it; or over groups that core's `placement` chose, by core's `layout` alone, or through
//! core's volume machine, one for each node. Never: which of these is right. Invariant: the same setup gives
//! the same outcome.
//!
//! Parts: `stations` (what serves one thing at a time), `attachment` (drives a volume machine), `placed`
//! (volumes and where they lie), `world` (time and events). Tests: below, against the formulas and against
//! queueing theory.

mod attachment;
mod placed;
mod stations;
mod world;

use crate::formula::{Remote, t_lm, t_raid, t_rm};
use crate::hardware::Hardware;
use crate::latencies::Summary;
use cheetah_core::limits::POOL_DONORS_MAX;
use cheetah_core::map::Redundancy;
pub use placed::default_redundancy;
pub(crate) use placed::{map_of, rooms};
use std::fmt;

/// How blocks lie on disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each block on the disks of all nodes: the paper's RAID.
    Striped,
    /// Each block in a group of few nodes, as Cheetah's volumes lie. Read by the arithmetic of `layout`
    /// alone: what lies on a failed node is computed from k others.
    Groups(Redundancy),
    /// The same, read by the volume machine that runs in production. It asks others as well where a disk is
    /// late, gives up links that are silent, answers by its deadline, and rebuilds. Up to `MACHINES_MAX`.
    Machines(Redundancy),
}

impl Layout {
    fn redundancy(self) -> Option<Redundancy> {
        match self {
            Layout::Striped => None,
            Layout::Groups(redundancy) | Layout::Machines(redundancy) => Some(redundancy),
        }
    }
}

/// Nodes that have a volume machine each, which takes 2.7 MB.
pub const MACHINES_MAX: u32 = 64;

/// How many requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// At random times, so many that the busiest kind of station is busy for this share of the time.
    Open(f64),
    /// Each node keeps so many under way.
    Closed(u32),
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// N; each has a memory, a link and a disk.
    pub nodes: u32,
    /// What each can do.
    pub hardware: Hardware,
    /// What a remote memory takes.
    pub remote: Remote,
    /// H_lm.
    pub local_hits: f64,
    /// H_rm.
    pub remote_hits: f64,
    /// How blocks lie.
    pub layout: Layout,
    /// How many requests come.
    pub load: Load,
    /// How many there are in all. The first tenth is not measured; where each node keeps some under way, the
    /// first half, for that long queues grow.
    pub requests: u64,
    /// The overhead of a disk is anything from `1 - spread` to `1 + spread` times its mean.
    pub disk_spread: f64,
    /// Nodes that have failed before the first request. Only with groups.
    pub failed: u32,
    /// What they held is being rebuilt, and the run lasts until it is. Only with machines.
    pub rebuild: bool,
    /// All of chance.
    pub seed: u64,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Of all that were measured and succeeded.
    pub all: Summary,
    /// Of those, hits of the own memory.
    pub local: Summary,
    /// Hits of another node's.
    pub remote: Summary,
    /// Reads of disks.
    pub disk: Summary,
    /// How many failed: more of a group was lost than redundancy covers.
    pub failed: u64,
    /// Answers in a second, of all nodes.
    pub per_second: f64,
    /// Busy share of the disks, on average over nodes.
    pub disks_busy: f64,
    /// Busy share of the links, the busier way of each.
    pub links_busy: f64,
    /// What disks were asked for each read that came to them.
    pub parts_per_read: f64,
    /// Bytes that got a new holder.
    pub rebuilt_bytes: u64,
    /// When the last of them was there, from the beginning.
    pub rebuild_s: f64,
}

/// A setup that cannot be run.
#[derive(Clone, Debug, PartialEq)]
pub enum Unfit {
    /// From 1 to as many as a pool may have.
    Nodes(u32),
    /// Groups are wider than there are nodes.
    Narrow {
        /// What was asked for.
        redundancy: Redundancy,
        /// How many there are.
        nodes: u32,
    },
    /// No load comes to this.
    Load(f64),
    /// Nobody is left to ask for anything.
    Failed {
        /// So many fail.
        failed: u32,
        /// Of so many.
        nodes: u32,
    },
    /// A stripe over all nodes has no parity in the formula, and nothing to read round a failed node.
    StripedFailure,
    /// Only a machine rebuilds.
    NoMachine,
    /// More machines than there is memory for.
    Machines(u32),
    /// No node has room for what is to be rebuilt.
    NoHome,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Nodes(nodes) => write!(f, "{nodes} nodes are not from 1 to {POOL_DONORS_MAX}"),
            Unfit::Narrow { redundancy, nodes } => {
                write!(f, "{redundancy} needs {} nodes, and there are {nodes}", redundancy.width())
            }
            Unfit::Load(load) => write!(f, "a load of {load} is not more than 0 and at most 0.95"),
            Unfit::Failed { failed, nodes } => {
                write!(f, "of {nodes} nodes {failed} cannot fail: somebody has to ask")
            }
            Unfit::StripedFailure => write!(f, "a stripe over all nodes does not outlast the failure of one"),
            Unfit::NoMachine => write!(f, "only volume machines rebuild"),
            Unfit::Machines(nodes) => {
                write!(f, "{nodes} nodes have no volume machine each: {MACHINES_MAX} at most")
            }
            Unfit::NoHome => write!(f, "no node outside of its group has room for what is to be rebuilt"),
        }
    }
}

impl std::error::Error for Unfit {}

impl Setup {
    /// Disks that a block lies on.
    #[must_use]
    pub fn disks(&self) -> u32 {
        self.layout.redundancy().map_or(self.nodes, |redundancy| disks_of_block(&self.hardware, redundancy))
    }

    /// What the formulas say of it: T_dralic.
    #[must_use]
    pub fn model_s(&self) -> f64 {
        let Setup { hardware, remote, local_hits, remote_hits, .. } = self;
        let raid = t_raid(hardware, self.nodes, self.disks());
        let missed = (1.0 - remote_hits) * raid + remote_hits * t_rm(hardware, *remote);
        local_hits * t_lm(hardware) + (1.0 - local_hits) * missed
    }

    /// Seconds that one request keeps the busiest kind of station, summed over nodes.
    fn demand_s(&self) -> f64 {
        let Setup { hardware: h, local_hits, remote_hits, .. } = self;
        let (away, disks) = ((1.0 - local_hits) * remote_hits, f64::from(self.disks()));
        let read = (1.0 - local_hits) * (1.0 - remote_hits);
        let protocol = (away + read * disks) * h.network_overhead_s;
        let disk = read * (disks * h.disk_overhead_s + h.block_bytes / h.disk_bandwidth);
        let link = (away + read) * h.block_bytes / h.network_bandwidth;
        let remote = h.block_bytes / crate::formula::remote_bandwidth(h, self.remote);
        let memory = away * remote + local_hits * t_lm(h);
        [protocol, disk, link, memory].into_iter().fold(0.0, f64::max)
    }

    /// Seconds between two requests of the whole pool, where they come at random times.
    fn gap_s(&self, load: f64, askers: u32) -> f64 {
        self.demand_s() / (load * f64::from(askers))
    }

    /// Requests that come before the first that is measured.
    fn unmeasured(&self) -> u64 {
        match self.load {
            Load::Open(_) => self.requests / 10,
            Load::Closed(_) => self.requests / 2,
        }
    }

    /// Bytes of a request.
    fn block(&self) -> u32 {
        self.hardware.block_bytes as u32
    }

    fn check(&self) -> Result<(), Unfit> {
        let Setup { nodes, failed, .. } = *self;
        if nodes == 0 || nodes as usize > POOL_DONORS_MAX {
            return Err(Unfit::Nodes(nodes));
        }
        match self.load {
            Load::Open(load) if !(load > 0.0 && load <= 0.95) => return Err(Unfit::Load(load)),
            Load::Closed(0) => return Err(Unfit::Load(0.0)),
            Load::Open(_) | Load::Closed(_) => {}
        }
        if failed >= nodes {
            return Err(Unfit::Failed { failed, nodes });
        }
        match self.layout {
            Layout::Striped if failed > 0 => return Err(Unfit::StripedFailure),
            Layout::Machines(_) if nodes > MACHINES_MAX => return Err(Unfit::Machines(nodes)),
            Layout::Striped | Layout::Groups(_) if self.rebuild => return Err(Unfit::NoMachine),
            Layout::Striped | Layout::Groups(_) | Layout::Machines(_) => {}
        }
        match self.layout.redundancy().filter(|redundancy| redundancy.width() > nodes) {
            Some(redundancy) => Err(Unfit::Narrow { redundancy, nodes }),
            None => Ok(()),
        }
    }
}

/// Disks that a block of a volume lies on. Blocks begin at multiples of their size.
#[must_use]
pub fn disks_of_block(hardware: &Hardware, redundancy: Redundancy) -> u32 {
    if redundancy.data == 1 {
        return 1;
    }
    let units = (hardware.block_bytes / f64::from(redundancy.default_unit())).ceil();
    (units as u32).clamp(1, redundancy.data)
}

/// Runs it.
///
/// # Errors
/// It cannot be run.
pub fn run(setup: &Setup) -> Result<Outcome, Unfit> {
    setup.check()?;
    Ok(world::World::new(*setup)?.run())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::PAPER;
    use crate::hits::RemoteHits;
    use cheetah_core::limits::EXTENT_BYTES;

    fn setup(nodes: u32, layout: Layout) -> Setup {
        Setup {
            nodes,
            hardware: PAPER,
            remote: Remote::Printed,
            local_hits: 0.2,
            remote_hits: RemoteHits::PAPER.at(nodes),
            layout,
            load: Load::Open(0.02),
            requests: 20_000,
            disk_spread: 0.0,
            failed: 0,
            rebuild: false,
            seed: 1,
        }
    }

    fn groups(nodes: u32) -> Layout {
        Layout::Groups(default_redundancy(nodes))
    }

    fn machines(nodes: u32) -> Layout {
        Layout::Machines(default_redundancy(nodes))
    }

    #[track_caller]
    fn near(is: f64, expected: f64, within: f64, what: &str) {
        assert!((is / expected - 1.0).abs() <= within, "{what}: {is}, not {expected}");
    }

    #[test]
    fn where_nobody_waits_the_simulation_is_the_model() {
        for nodes in [1, 2, 4, 10, 40] {
            for layout in [Layout::Striped, groups(nodes), machines(nodes)] {
                let setup = setup(nodes, layout);
                let outcome = run(&setup).expect("it runs");
                let Outcome { all, local, remote, disk, .. } = outcome;
                assert_eq!((all.count, outcome.failed), (18_000, 0), "{nodes} {layout:?}");
                near(local.mean_s, t_lm(&PAPER), 0.06, "T_lm");
                near(disk.mean_s, t_raid(&PAPER, nodes, setup.disks()), 0.04, "T_raid");
                if nodes > 1 {
                    near(remote.mean_s, t_rm(&PAPER, Remote::Printed), 0.04, "T_rm");
                }
                near(all.mean_s, setup.model_s(), 0.08, "T_dralic");
            }
        }
    }

    /// M/D/1: who comes at random to one server waits, on average, load / (2 (1 - load)) times the service.
    #[test]
    fn where_they_wait_it_is_as_long_as_queues_are() {
        for load in [0.3, 0.6, 0.8] {
            let setup = Setup {
                local_hits: 0.0,
                load: Load::Open(load),
                requests: 60_000,
                ..setup(1, Layout::Groups(Redundancy::LINEAR))
            };
            let Outcome { all, disks_busy, per_second, .. } = run(&setup).expect("it runs");
            let service = crate::formula::t_pc(&PAPER);
            near(all.mean_s, service * (1.0 + load / (2.0 * (1.0 - load))) + 0.2e-3, 0.06, "waiting");
            near(disks_busy, load, 0.03, "busy");
            near(per_second, load / service, 0.03, "throughput");
        }
    }

    #[test]
    fn who_always_asks_gets_what_the_disks_give() {
        let setup = Setup { local_hits: 0.0, load: Load::Closed(4), ..setup(1, Layout::Striped) };
        let Outcome { per_second, all, .. } = run(&setup).expect("it runs");
        near(per_second, 1.0 / crate::formula::t_pc(&PAPER), 0.01, "one disk");
        near(all.mean_s, 4.0 / per_second, 0.01, "four of them wait for it");
    }

    #[test]
    fn what_failed_is_read_round_by_the_machine_of_core_and_beyond_redundancy_fails() {
        let whole = Setup { local_hits: 0.0, remote_hits: 0.0, ..setup(10, machines(10)) };
        let without = |failed| run(&Setup { failed, ..whole }).expect("it runs");
        let [none, one, two] = [0, 1, 2].map(without);
        assert_eq!((none.failed, one.failed), (0, 0));
        // One disk for each read, and of a few that wait for it the machine asks the others as well.
        assert!((1.0..1.3).contains(&none.parts_per_read), "{none:?}");
        // A tenth of what is read was on the node that failed: eight others are read.
        assert!((1.7..2.3).contains(&one.parts_per_read), "{one:?}");
        assert!(one.disk.p99_s > 1.05 * none.disk.p99_s, "{one:?} {none:?}");
        assert!(two.failed > 0, "{two:?}");
        // By the arithmetic it is exactly that, and nobody asks others for who is only late.
        let plain = Setup { layout: groups(10), ..whole };
        let [none, one, two] = [0, 1, 2].map(|failed| run(&Setup { failed, ..plain }).expect("it runs"));
        assert_eq!((none.parts_per_read, none.failed, one.failed), (1.0, 0, 0));
        assert!((1.65..1.75).contains(&one.parts_per_read) && two.failed > 0, "{one:?} {two:?}");
    }

    #[test]
    fn what_was_lost_is_rebuilt_beside_the_tools() {
        let setup = Setup { failed: 1, rebuild: true, remote_hits: 0.9, ..setup(10, machines(10)) };
        let outcome = run(&setup).expect("it runs");
        assert_eq!(outcome.failed, 0);
        // Four groups of each of the nine volumes that are attached, on nine of ten nodes.
        let extents = outcome.rebuilt_bytes / EXTENT_BYTES;
        assert!((25..=36).contains(&extents), "{extents}");
        assert!(outcome.rebuild_s > 1.0 && outcome.all.count > 0, "{outcome:?}");
    }

    #[test]
    fn a_seed_is_one_outcome() {
        let of = |seed| run(&Setup { seed, requests: 2_000, ..setup(10, machines(10)) }).expect("it runs");
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let good = setup(4, groups(4));
        let refused = |setup: Setup| run(&setup).expect_err("refused");
        assert_eq!(refused(Setup { nodes: 0, ..good }), Unfit::Nodes(0));
        assert!(matches!(refused(Setup { nodes: 1, ..good }), Unfit::Narrow { .. }));
        assert_eq!(refused(Setup { load: Load::Open(1.0), ..good }), Unfit::Load(1.0));
        assert_eq!(refused(Setup { failed: 4, ..good }), Unfit::Failed { failed: 4, nodes: 4 });
        assert_eq!(refused(Setup { layout: Layout::Striped, failed: 1, ..good }), Unfit::StripedFailure);
        let two = Setup { failed: 2, rebuild: true, ..setup(3, machines(3)) };
        assert_eq!(refused(two), Unfit::NoHome);
        assert_eq!(refused(Setup { rebuild: true, ..good }), Unfit::NoMachine);
        assert_eq!(refused(setup(65, machines(65))), Unfit::Machines(65));
    }
}
