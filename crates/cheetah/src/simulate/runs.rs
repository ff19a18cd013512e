//! The runs that `cheetah simulate` makes, and what is told of each.
//!
//! Owns which setups are compared, and how large they are. Never: what is printed. Called by `simulate`.

use crate::cli_model::Simulate;
use crate::failure::Failure;
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::Redundancy;
use cheetah_model::durability::{self, Rebuild};
use cheetah_model::figures::{Case, decades};
use cheetah_model::formula::t_raid;
use cheetah_model::latencies::Summary;
use cheetah_model::pool::{Layout, Load, MACHINES_MAX, Outcome, Setup, Unfit, run};
use serde::Serialize;

/// A striped read has a part for each node: so many of them at most in one run, and where a pool is full.
const PARTS_MAX: f64 = 1e7;
const PARTS_FULL_MAX: f64 = 2.5e7;
/// Requests that each node keeps under way where it is asked what a pool gives, and for each at least so many
/// in all.
pub const DEPTH: u32 = 4;
const ROUNDS: u64 = 100;
const LOADS: [f64; 10] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9];
/// A run of years ends after so many slots that were lost with their node.
const SLOTS_LOST_MAX: u64 = 6_000_000;
const LOSSES_MAX: u64 = 1_000;

pub struct Plan {
    case: Case,
    /// All that runs have in common.
    setup: Setup,
    years: durability::Setup,
    data: u64,
    pub nodes: u32,
    /// Nodes where each has a volume machine.
    pub few: u32,
    pub failed: u32,
}

/// Of requests, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl From<Summary> for Times {
    fn from(summary: Summary) -> Times {
        let Summary { count, mean_s, p50_s, p95_s, p99_s, max_s } = summary;
        Times { count, mean: mean_s, p50: p50_s, p95: p95_s, p99: p99_s, max: max_s }
    }
}

/// A run beside the formulas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Run {
    /// T_dralic.
    pub model: f64,
    /// The simulated mean, over that.
    pub ratio: f64,
    #[serde(flatten)]
    pub times: Times,
    /// Means of those that memories answered.
    pub local_mean: f64,
    pub remote_mean: f64,
    /// T_raid, and those that disks answered.
    pub raid: f64,
    pub disk: Times,
    pub per_second: f64,
    pub failed: u64,
    pub disks_busy: f64,
    pub links_busy: f64,
    /// Reads of disks for each that was asked for.
    pub reads_for_one: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sized {
    pub nodes: u32,
    pub remote_hits: f64,
    pub redundancy: String,
    pub striped: Run,
    pub groups: Run,
    /// Answers in a second where each node keeps `DEPTH` requests under way. None: too many parts.
    pub striped_full: Option<f64>,
    pub groups_full: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loaded {
    pub load: f64,
    pub layout: Run,
    pub machines: Run,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failing {
    pub what: &'static str,
    #[serde(flatten)]
    pub run: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuilt_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lost {
    pub nodes: u32,
    pub redundancy: String,
    pub seconds: f64,
    pub failures: u64,
    pub losses: u64,
    pub volumes_lost: u64,
    pub bytes_lost: u64,
    pub rebuild_mean: f64,
    pub rebuild_p99: f64,
    /// None: nothing was lost.
    pub mttdl: Option<f64>,
    pub mttdl_at_least: f64,
    pub volume_mttdl: Option<f64>,
    pub mttdl_formula: f64,
}

impl Plan {
    pub fn new(options: &Simulate, case: Case) -> Result<Plan, Failure> {
        let Simulate { nodes, requests, disk_spread, seed, failed, load, mttf, away, notice, data, .. } =
            *options;
        for (flag, seconds) in [("--mttf", mttf), ("--away", away), ("--notice", notice)] {
            if !(1e-3..=1e12).contains(&seconds) {
                return Err(Failure::usage(format!("{flag} is not from 1ms to 30000y")));
            }
        }
        if !(EXTENT_BYTES..=1 << 40).contains(&data) {
            return Err(Failure::usage("--data is not from 64M to 1T"));
        }
        if let Some(redundancy) = case.redundancy.filter(|redundancy| redundancy.width() > nodes) {
            return Err(Failure::usage(Unfit::Narrow { redundancy, nodes }));
        }
        let setup = Setup {
            nodes,
            hardware: case.hardware,
            remote: options.remote_term.into(),
            local_hits: case.local_hits,
            remote_hits: 0.0,
            layout: Layout::Striped,
            load: Load::Open(load),
            requests,
            disk_spread,
            failed: 0,
            rebuild: false,
            seed,
        };
        let years = durability::Setup {
            nodes,
            redundancy: Redundancy::LINEAR,
            volumes: nodes,
            groups: 1,
            mttf_s: mttf,
            notice_s: notice,
            away_s: away,
            rebuild: Rebuild { alone_s: 0.0, shared_s: 0.0 },
            seed,
            failures_max: 0,
            losses_max: LOSSES_MAX,
        };
        let few = nodes.min(MACHINES_MAX);
        if failed >= few && few > 1 {
            return Err(Failure::usage(Unfit::Failed { failed, nodes: few }));
        }
        Ok(Plan { case, setup, years, data, nodes, few, failed })
    }

    fn of(&self, nodes: u32, layout: Layout) -> Setup {
        Setup { nodes, layout, remote_hits: self.case.remote_hits.at(nodes), ..self.setup }
    }

    /// The mean over nodes, both ways to lie.
    pub fn over_nodes(&self) -> Result<Vec<Sized>, Failure> {
        let of = |nodes: u32| {
            let redundancy = self.case.redundancy_of(nodes);
            let (striped, groups) =
                (self.of(nodes, Layout::Striped), self.of(nodes, Layout::Groups(redundancy)));
            Ok(Sized {
                nodes,
                remote_hits: striped.remote_hits,
                redundancy: redundancy.to_string(),
                striped: tell(&Setup {
                    requests: fitting(&striped, PARTS_MAX).min(striped.requests),
                    ..striped
                })?
                .0,
                groups: tell(&groups)?.0,
                striped_full: full(&striped)?,
                groups_full: full(&groups)?,
            })
        };
        decades(self.nodes).into_iter().map(of).collect()
    }

    /// Reads of disks alone, while more and more is asked.
    pub fn over_load(&self) -> Result<Vec<Loaded>, Failure> {
        let redundancy = self.case.redundancy_of(self.few);
        let of = |load: f64| {
            let at = |layout: Layout| {
                let setup = Setup { load: Load::Open(load), local_hits: 0.0, ..self.of(self.few, layout) };
                tell(&Setup { remote_hits: 0.0, ..setup }).map(|(run, _)| run)
            };
            Ok(Loaded {
                load,
                layout: at(Layout::Groups(redundancy))?,
                machines: at(Layout::Machines(redundancy))?,
            })
        };
        LOADS.into_iter().map(of).collect()
    }

    /// With volume machines: whole, with failed nodes, and while what they held is rebuilt.
    pub fn failures(&self) -> Result<Vec<Failing>, Failure> {
        let whole = self.of(self.few, Layout::Machines(self.case.redundancy_of(self.few)));
        let failed = Setup { failed: self.failed, ..whole };
        let mut cases = vec![("whole", whole)];
        if self.few > 1 {
            cases.push(("failed", failed));
        }
        let mut rows = Vec::new();
        for (what, setup) in cases {
            let (run, _) = tell(&setup)?;
            rows.push(Failing { what, run, rebuilt_bytes: None, rebuild: None });
        }
        // Where every node has something of each group, or there is no redundancy, nothing is rebuilt.
        let redundancy = self.case.redundancy_of(self.few);
        if redundancy.parity >= self.failed && redundancy.width() + self.failed <= self.few {
            let (run, outcome) = tell(&Setup { rebuild: true, ..failed })?;
            let (rebuilt_bytes, rebuild) = (Some(outcome.rebuilt_bytes), Some(outcome.rebuild_s));
            rows.push(Failing { what: "being rebuilt", run, rebuilt_bytes, rebuild });
        }
        Ok(rows)
    }

    /// How often data is lost, by nodes and by redundancy.
    pub fn losses(&self) -> Result<Vec<Lost>, Failure> {
        let mut rows = Vec::new();
        let powers = (1..=4).map(|power| 10_u32.pow(power)).filter(|nodes| *nodes < self.nodes);
        for nodes in powers.chain([self.nodes]) {
            let chosen = self.case.redundancy_of(nodes);
            let others = [Redundancy { data: 1, parity: 1 }, Redundancy { data: 8, parity: 2 }];
            let mut all = vec![chosen];
            all.extend(others.into_iter().filter(|other| *other != chosen && other.width() < nodes));
            for redundancy in all {
                rows.push(self.years_of(nodes, redundancy)?);
            }
        }
        Ok(rows)
    }

    fn years_of(&self, nodes: u32, redundancy: Redundancy) -> Result<Lost, Failure> {
        let group = u64::from(redundancy.data) * EXTENT_BYTES;
        let groups = u32::try_from(self.data.div_ceil(group)).unwrap_or(u32::MAX);
        let slots = u64::from(groups * redundancy.width());
        let setup = durability::Setup {
            nodes,
            redundancy,
            volumes: nodes,
            groups,
            rebuild: Rebuild::of(&self.case.hardware, redundancy, nodes),
            failures_max: (SLOTS_LOST_MAX / slots).max(1_000),
            ..self.years
        };
        let outcome = durability::run(&setup).map_err(Failure::usage)?;
        Ok(Lost {
            nodes,
            redundancy: redundancy.to_string(),
            seconds: outcome.seconds,
            failures: outcome.failures,
            losses: outcome.losses,
            volumes_lost: outcome.volumes_lost,
            bytes_lost: outcome.bytes_lost,
            rebuild_mean: outcome.rebuilds.mean_s,
            rebuild_p99: outcome.rebuilds.p99_s,
            mttdl: outcome.mttdl_s,
            mttdl_at_least: outcome.at_least_s,
            volume_mttdl: outcome.volume_mttdl_s,
            mttdl_formula: outcome.formula_s,
        })
    }
}

/// How many requests of it have so many parts.
fn fitting(setup: &Setup, parts: f64) -> u64 {
    let misses = (1.0 - setup.local_hits) * (1.0 - setup.remote_hits);
    ((parts / (misses * f64::from(setup.disks())).max(1.0)) as u64).max(1_000)
}

/// What a pool gives that is asked without end.
fn full(setup: &Setup) -> Result<Option<f64>, Failure> {
    let requests = setup.requests.max(ROUNDS * u64::from(DEPTH * setup.nodes));
    if requests > fitting(setup, PARTS_FULL_MAX) {
        return Ok(None);
    }
    let outcome = run(&Setup { load: Load::Closed(DEPTH), requests, ..*setup }).map_err(Failure::usage)?;
    Ok(Some(outcome.per_second))
}

/// Runs it, and sets it beside the formulas.
fn tell(setup: &Setup) -> Result<(Run, Outcome), Failure> {
    let outcome = run(setup).map_err(Failure::usage)?;
    let model = setup.model_s();
    let told = Run {
        model,
        ratio: outcome.all.mean_s / model,
        times: outcome.all.into(),
        local_mean: outcome.local.mean_s,
        remote_mean: outcome.remote.mean_s,
        raid: t_raid(&setup.hardware, setup.nodes, setup.disks()),
        disk: outcome.disk.into(),
        per_second: outcome.per_second,
        failed: outcome.failed,
        disks_busy: outcome.disks_busy,
        links_busy: outcome.links_busy,
        reads_for_one: outcome.parts_per_read,
    };
    Ok((told, outcome))
}
