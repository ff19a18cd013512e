//! A virtual world for core's and the protocol's machines: time, network, faults, and an oracle that knows
//! what must hold.
//!
//! The contract. One seed is one world and everything that happens in it: how many donors, volumes and
//! clients there are, the delay of every message, each request, each fault. `run` with the same seed and the
//! same source gives the same digest of all events, on any machine. A failure names the seed, what was
//! violated, and the one command that replays it with a readable trace:
//!
//! ```text
//! cargo run --release -p cheetah-sim -- --seed N --trace
//! ```
//!
//! The machines are those that run in production (`core::{volume, donor, coordinator}`, and `nbd`'s
//! transmission of both ends over the bytes that they send), and so are the words between them (`terms`);
//! invariants are checked after each step. The drivers around them are this crate's, as faithful to `rim` as
//! virtual time allows. Faults are the ones that Cheetah survives by its promises, so any violation is a bug.
//! `Bug` plants one in the drivers: the oracle has to find it. Never: a real clock, thread, socket or file, a
//! map without an order, or a dependency from outside the house.
//!
//! Files: `plan` (what a seed picks), `bugs` (what is planted), `world` (time and events), `network`, `wire`
//! (the ends of a data connection), the drivers `donor` and `serving`, `client`, `leases`, `links` and
//! `parts`, `coordinator` and `calls`; `disk` and `on_disk` (a donor's disk, and the donor around it) with
//! `disk_words` (what it tells), `auths` (what belongs to its blocks) and `write_back`; `director`, `faults`,
//! `deaths`, `clocks`, `together`, `load`, `strangers`, `rot`, `power` and `media` (what happens to them),
//! `workload` (requests and their judgement), `oracle` (bytes), `redundancy` (what of them must be
//! somewhere), `contents` (what a volume counts as holding), `verdict` and `wounds` (errors), `finale`
//! (heal, and demand that all is well), `swarm` (many seeds). `bytes` and `memory` (at a scale of 1:512),
//! `runs`, `rng`, `stats`. Beside them `opened` (a world of its own: volumes that are filled from a source
//! while they are read), `read_ahead` (rules compared over a path without faults) and `walk` (every order
//! of few events in place of some of many). Tests: `tests/`.
#![forbid(unsafe_code)]

mod auths;
mod bugs;
mod bytes;
mod calls;
mod client;
mod clocks;
mod contents;
mod coordinator;
mod deaths;
mod director;
mod disk;
mod disk_words;
mod donor;
mod faults;
mod finale;
mod leases;
mod links;
mod load;
mod media;
mod memory;
mod network;
mod on_disk;
mod opened;
mod oracle;
mod parts;
mod plan;
mod power;
pub mod read_ahead;
mod redundancy;
mod rng;
mod rot;
mod runs;
mod serving;
mod stats;
mod strangers;
mod swarm;
mod together;
mod verdict;
pub mod walk;
mod wire;
mod workload;
mod world;
mod wounds;
mod write_back;

pub use bugs::Bug;
pub use plan::{Fault, Layout};
pub use stats::{COVERAGE, Stats};
pub use swarm::{Swarm, swarm};

use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a world differs from the ordinary one of its seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    pub bug: Option<Bug>,
    /// More goes wrong at once than redundancy covers; then data may be lost, but honestly.
    pub beyond: bool,
    /// Nothing else goes wrong, and that often.
    pub only: Option<Fault>,
    /// Else each volume has its own.
    pub layout: Option<Layout>,
}

/// What came of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub digest: u64,
    pub stats: Stats,
    /// What was violated, and when.
    pub failure: Option<String>,
}

/// What a machine's assertion says.
fn contradiction(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
    format!("a machine contradicted itself: {text}")
}

/// Runs one world from its start to its end. `trace` gets a line for each thing that happens.
#[must_use]
pub fn run(seed: u64, setup: Setup, trace: Option<fn(&str)>) -> Outcome {
    if setup.only == Some(Fault::Opened) {
        return opened::run(seed, setup, trace);
    }
    let mut world = world::World::new(seed, setup, trace);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.begin();
        while world.failure.is_none() && world.now < world.director.ends_at {
            let until = world.director.ends_at;
            world.run_until(until);
        }
        world.end_scene();
        if world.failure.is_none() {
            world.finish();
        }
    }));
    if let Err(panic) = ran {
        world.fail(contradiction(&*panic));
    }
    world.stats.virtual_ns = world.now;
    Outcome { digest: world.digest(), stats: world.stats.clone(), failure: world.failure.clone() }
}
