//! A part of the benchmark, and what it measures with.
//!
//! Owns: how sides come to their turns, and turns to rows. Never: knows a part. Called by: `bench`, which has
//! the list of parts, and each part.

use std::time::Duration;

use crate::bench::plot::Scaling;
use crate::bench::progress::Progress;
use crate::bench::quiet::Quiet;
use crate::bench::rounds::{self, Probe, Side, Taken};
use crate::bench::row::{Demand, Figure, Row};

pub struct Part {
    pub name: &'static str,
    /// About how long it takes, and in how many sets it measures.
    pub seconds: f64,
    pub sets: usize,
    pub run: fn(&mut Bench),
    /// Whether it has to be in a network namespace of the benchmark's own, for which it takes root.
    pub needs_network: bool,
}

impl Part {
    pub const fn new(name: &'static str, seconds: f64, sets: usize, run: fn(&mut Bench)) -> Self {
        Self { name, seconds, sets, run, needs_network: true }
    }

    pub const fn without_network(self) -> Self {
        Self { needs_network: false, ..self }
    }
}

/// What a part measures with.
pub struct Bench {
    /// Fewer and shorter turns: to see that all of it works.
    pub quick: bool,
    /// Volumes on disks also with writes acknowledged from memory.
    pub write_back: bool,
    pub rounds: usize,
    /// How long a turn of a load takes.
    pub time: Duration,
    pub probe: Probe,
    pub quiet: Quiet,
    pub progress: Progress,
    pub rows: Vec<Row>,
    pub plots: Vec<Scaling>,
}

impl Bench {
    /// Says what is made before the next set.
    pub fn prepare(&self, what: &str) {
        self.progress.say(what);
    }

    /// Says what is measured now.
    pub fn set(&mut self, what: &str) {
        self.progress.set(what);
    }

    /// Lets the sides take turns.
    pub fn turns(&mut self, sides: &mut [Side<'_>]) -> Taken {
        let (probe, quiet) = (&mut self.probe, &mut self.quiet);
        rounds::take(self.rounds, sides, || {
            quiet.wait();
            probe.gb_per_second()
        })
    }

    pub fn row(&mut self, figure: &Figure<'_>) {
        self.rows.push(figure.row());
    }

    /// A row of one side of a set beside another: id, what and unit; the side; how the table calls the other,
    /// and the set.
    pub fn beside(
        &mut self,
        (id, what, unit): (&str, &str, &str),
        taken: &Taken,
        side: &str,
        (peer_name, peer): (&str, &str),
        Demand { bar, limit }: Demand,
    ) {
        let (value, probe) = (taken.value(side), Some(&taken.probe));
        let (peer, limit) =
            (Some((peer_name, taken.value(peer))), limit.map(|side| (side, taken.value(side))));
        self.row(&Figure { peer, probe, limit, bar, ..Figure::new(id, what.to_owned(), unit, value) });
    }
}
