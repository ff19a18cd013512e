//! The command line about what a pool would do: the formulas, and the simulation. Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use cheetah_core::map::Redundancy;
use cheetah_core::units::parse_bytes;
use cheetah_model::formula::Remote;
use cheetah_model::hits::RemoteHits;
use cheetah_model::quantities::{parse_rate, parse_seconds, parse_share};
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

pub const MODEL_EXAMPLES: &str = "\
Examples:
  cheetah model                                   the paper's hardware, up to 16 nodes
  cheetah model --nodes 1000 --plot model.svg
  cheetah model --disk-overhead 0.1ms --disk-bandwidth 500MB --network-bandwidth 10Gbit
  cheetah model --measure --disk /dev/sdb --plot here.svg     with what this pool and this disk give";

pub const SIMULATE_EXAMPLES: &str = "\
Examples:
  cheetah simulate                                1,000 nodes of the paper's hardware
  cheetah simulate --nodes 10000 --plot pool.svg
  cheetah simulate --nodes 40 --redundancy parity:4+2 --failed 2 --mttf 30d
  cheetah simulate --nodes 100 --disk-overhead 0 --disk-bandwidth 10GB --network-overhead 20us     memory alone";

/// Most nodes of the model and of the simulation.
const NODES: std::ops::RangeInclusive<i64> = 1..=10_000;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Hardware")]
pub struct HardwareArgs {
    /// Bytes of a request. Without it: 8K.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub block: Option<u64>,
    /// What a memory gives a second, like 132MB. Without it: that, the paper's, as of the next four.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub memory_bandwidth: Option<f64>,
    /// What a node's link gives a second each way. Without it: 100MB.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub network_bandwidth: Option<f64>,
    /// How long a node is busy with each message. Without it: 0.2ms.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub network_overhead: Option<f64>,
    /// What a disk gives a second. Without it: 25MB.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub disk_bandwidth: Option<f64>,
    /// How long a disk takes to find a block. Without it: 12ms.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub disk_overhead: Option<f64>,
    /// The share of requests that the own memory answers.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share)]
    pub hit_local: f64,
    /// The share of all others that another node's memory answers: a number, or log:BASE,DOUBLING,MOST for
    /// BASE and DOUBLING more for each doubling of the nodes, up to MOST.
    #[arg(long, value_name = "SHARE", default_value_t = RemoteHits::PAPER)]
    pub hit_remote: RemoteHits,
    /// How volumes lie. Without it: as a volume is made by default in a pool of so many nodes.
    #[arg(long)]
    pub redundancy: Option<Redundancy>,
}

#[derive(Debug, Args)]
pub struct Model {
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Up to how many nodes.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(NODES))]
    pub nodes: u32,
    /// Measure what was not given: this machine's memory, and the way to the donors of the pool, by a small
    /// volume that is made for it and deleted.
    #[arg(long)]
    pub measure: bool,
    /// A disk, or a large file on it, that is read to measure it.
    #[arg(long, value_name = "PATH", requires = "measure", value_hint = ValueHint::AnyPath)]
    pub disk: Option<PathBuf>,
    /// Draw figures 2 and 3 into an SVG file, which must not be there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

/// What the last term of T_rm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RemoteTerm {
    /// B/BW_mem.
    Memory,
    /// B/BW_disk, as the paper prints it.
    Printed,
}

impl From<RemoteTerm> for Remote {
    fn from(term: RemoteTerm) -> Remote {
        match term {
            RemoteTerm::Memory => Remote::Memory,
            RemoteTerm::Printed => Remote::Printed,
        }
    }
}

#[derive(Debug, Args)]
pub struct Simulate {
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Up to how many nodes.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(NODES))]
    pub nodes: u32,
    /// What a remote memory takes beside the way to it.
    #[arg(long, value_enum, default_value_t = RemoteTerm::Memory)]
    pub remote_term: RemoteTerm,
    /// The busy share of what is busiest, where the number of nodes changes.
    #[arg(long, value_name = "SHARE", default_value = "0.02", value_parser = parse_share)]
    pub load: f64,
    /// A disk takes anything from 1 - SPREAD to 1 + SPREAD times its overhead.
    #[arg(long, value_name = "SPREAD", default_value = "0", value_parser = parse_share)]
    pub disk_spread: f64,
    /// Requests of each run.
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    pub requests: u64,
    /// How many nodes fail where failures are compared.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub failed: u32,
    /// Mean time until a node fails, where years are simulated.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = parse_seconds)]
    pub mttf: f64,
    /// Until a node that failed is back, empty.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = parse_seconds)]
    pub away: f64,
    /// Until a pool takes a silent node for failed.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_seconds)]
    pub notice: f64,
    /// What each node's volume holds, where years are simulated.
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = parse_bytes)]
    pub data: u64,
    /// All of chance: the same seed, the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw what came of it into an SVG file, which must not be there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub json: JsonArg,
}
