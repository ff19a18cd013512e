//! `cheetah simulate`: pools that exist in no memory but this process's, beside what the formulas say.
//!
//! Owns what is printed of the runs. Parts: `runs` makes them, `draw` the plot. Tests: `lab/tests/model.rs`.
//! Never: what happens in a run (crate `model`).

mod draw;
mod runs;

use crate::cli_model::Simulate;
use crate::failure::Failure;
use crate::model;
use crate::output;
use cheetah_core::units::{show_bytes, show_count};
use cheetah_model::quantities::{show_number, show_seconds};
use runs::{DEPTH, Failing, Loaded, Lost, Run, Sized, Times};
use serde::Serialize;

const BY_NODES: [&str; 12] = [
    "NODES",
    "STRIPED: T",
    "SIMULATED",
    "RATIO",
    "A SECOND",
    "GROUPS",
    "T",
    "SIMULATED",
    "RATIO",
    "P95",
    "P99",
    "A SECOND",
];
const BY_LOAD: [&str; 12] = [
    "LOAD",
    "T_RAID",
    "LAYOUT",
    "P50",
    "P95",
    "P99",
    "MACHINES",
    "P50",
    "P95",
    "P99",
    "FAILED",
    "READS FOR ONE",
];
const BY_FAILURE: [&str; 10] =
    ["", "MEAN", "P50", "P95", "P99", "A SECOND", "FAILED", "READS FOR ONE", "REBUILT", "IN"];
const BY_YEARS: [&str; 8] = [
    "NODES",
    "REDUNDANCY",
    "FAILURES",
    "LOSSES",
    "REBUILT IN",
    "THE POOL LOSES DATA EVERY",
    "A VOLUME EVERY",
    "BY THE FORMULA",
];

#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    nodes: u32,
    over_nodes: Vec<Sized>,
    over_load: Vec<Loaded>,
    failures: Vec<Failing>,
    losses: Vec<Lost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plot: Option<String>,
}

// It computes, and whoever waits for anything else in this process waits for that.
pub fn simulate(options: &Simulate) -> Result<(), Failure> {
    let hardware = model::hardware(&options.hardware)?;
    let case = model::case(&options.hardware, hardware);
    if let Some(path) = &options.plot {
        model::is_free(path)?;
    }
    let plan = runs::Plan::new(options, case)?;
    let is_text = !options.json.json;
    let show = |title: &str, head: &[&str], rows: Vec<Vec<String>>| {
        if is_text {
            output::line(title);
            output::lay_out(head, &rows).iter().for_each(|line| output::line(line));
            output::line("");
        }
    };
    let over_nodes = plan.over_nodes()?;
    let title = format!(
        "Requests by nodes: striped over all, and in groups as volumes lie; a second: each node keeps {DEPTH} going"
    );
    show(&title, &BY_NODES, over_nodes.iter().map(sized).collect());
    let few = show_count(plan.few.into(), "node");
    let over_load = plan.over_load()?;
    let title = format!("Reads of disks by load, {few}: by layout alone, and by volume machines");
    show(&title, &BY_LOAD, over_load.iter().map(loaded).collect());
    let failures = plan.failures()?;
    let title = format!("Requests of {few} by volume machines, when {} failed", plan.failed);
    show(&title, &BY_FAILURE, failures.iter().map(failing).collect());
    let losses = plan.losses()?;
    let title = format!("Years, each node failing every {}", show_seconds(options.mttf));
    show(&title, &BY_YEARS, losses.iter().map(lost).collect());
    if let Some(path) = &options.plot {
        model::draw(path, &draw::charts(&plan, &over_nodes, &over_load, &losses))?;
        if is_text {
            output::line(&format!("drawn: {}", path.display()));
        }
    }
    if is_text {
        return Ok(());
    }
    let plot = options.plot.as_ref().map(|path| path.display().to_string());
    output::json(&Report {
        seed: options.seed,
        nodes: options.nodes,
        over_nodes,
        over_load,
        failures,
        losses,
        plot,
    })
}

fn percentiles(times: &Times) -> [String; 3] {
    [times.p50, times.p95, times.p99].map(show_seconds)
}

fn sized(of: &Sized) -> Vec<String> {
    let full = |of: Option<f64>| of.map_or_else(|| "-".to_owned(), show_number);
    let run =
        |run: &Run| [show_seconds(run.model), show_seconds(run.times.mean), format!("{:.3}", run.ratio)];
    let mut row = vec![of.nodes.to_string()];
    row.extend(run(&of.striped));
    row.extend([full(of.striped_full), of.redundancy.clone()]);
    row.extend(run(&of.groups));
    row.extend([of.groups.times.p95, of.groups.times.p99].map(show_seconds));
    row.push(full(of.groups_full));
    row
}

fn loaded(of: &Loaded) -> Vec<String> {
    let Loaded { load, layout, machines } = of;
    let mut row = vec![show_number(*load), show_seconds(layout.raid), show_seconds(layout.disk.mean)];
    row.extend(percentiles(&layout.disk));
    row.push(show_seconds(machines.disk.mean));
    row.extend(percentiles(&machines.disk));
    row.push(machines.failed.to_string());
    row.push(show_number(machines.reads_for_one));
    row
}

fn failing(of: &Failing) -> Vec<String> {
    let mut row = vec![of.what.to_owned(), show_seconds(of.run.times.mean)];
    row.extend(percentiles(&of.run.times));
    row.push(show_number(of.run.per_second));
    row.push(of.run.failed.to_string());
    row.push(show_number(of.run.reads_for_one));
    row.extend(of.rebuilt_bytes.map(show_bytes));
    row.extend(of.rebuild.map(show_seconds));
    row
}

fn lost(of: &Lost) -> Vec<String> {
    let every = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), show_seconds);
    let pool = match of.mttdl {
        Some(seconds) => show_seconds(seconds),
        None => format!("over {}", show_seconds(of.mttdl_at_least)),
    };
    vec![
        of.nodes.to_string(),
        of.redundancy.clone(),
        of.failures.to_string(),
        of.losses.to_string(),
        show_seconds(of.rebuild_mean),
        pool,
        every(of.volume_mttdl),
        show_seconds(of.mttdl_formula),
    ]
}
