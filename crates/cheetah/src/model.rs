//! `cheetah model`: the formulas of a paper for this or that hardware, as a table, JSON and a plot.
//!
//! Owns what is printed, and which parameters come from where. Parts: `measure` finds those of a pool, of
//! this machine and of a disk. Tests: `lab/tests/model.rs`. Never: the arithmetic (crate `model`).

mod measure;

use crate::cli_model::{HardwareArgs, Model};
use crate::failure::Failure;
use crate::files;
use crate::output;
use crate::pool::find;
use cheetah_core::units::show_count;
use cheetah_model::figures::{Case, Points, doublings, figure_three, figure_two};
use cheetah_model::formula::{Point, Remote, t_lm, t_pc, t_rm};
use cheetah_model::hardware::{Hardware, PAPER};
use cheetah_model::plot::{self, Chart};
use cheetah_model::quantities::{show_number, show_rate, show_seconds};
use measure::Measured;
use serde::Serialize;
use std::path::Path;

/// Where a parameter is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum From {
    Paper,
    Given,
    Measured,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Parameter {
    name: &'static str,
    value: f64,
    from: From,
}

#[derive(Debug, Serialize)]
struct Report {
    parameters: Vec<Parameter>,
    local_hits: f64,
    remote_hits: String,
    t_lm: f64,
    t_rm_printed: f64,
    t_rm_memory: f64,
    t_pc: f64,
    points: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plot: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    nodes: u32,
    remote_hits: f64,
    t_raid: f64,
    t_dralic_printed: f64,
    t_dralic_memory: f64,
    redundancy: String,
    t_raid_groups: f64,
    t_dralic_groups: f64,
}

pub async fn model(options: Model) -> Result<(), Failure> {
    if let Some(path) = &options.plot {
        is_free(path)?;
    }
    let measured = match options.measure {
        true => {
            let pool = find(&options.pool).await?;
            let block = options.hardware.block.unwrap_or(PAPER.block_bytes as u64);
            Some(measure::measure(&pool, block, options.disk.as_deref()).await?)
        }
        false => None,
    };
    let (hardware, parameters) = parameters(&options.hardware, measured.as_ref())?;
    let case = case(&options.hardware, hardware);
    let points: Vec<Points> = doublings(options.nodes).into_iter().map(|nodes| case.at(nodes)).collect();
    if let Some(path) = &options.plot {
        draw(path, &charts(&case, &parameters, options.nodes))?;
    }
    let report = Report {
        parameters,
        local_hits: case.local_hits,
        remote_hits: case.remote_hits.to_string(),
        t_lm: t_lm(&hardware),
        t_rm_printed: t_rm(&hardware, Remote::Printed),
        t_rm_memory: t_rm(&hardware, Remote::Memory),
        t_pc: t_pc(&hardware),
        points: points.iter().map(row).collect(),
        measured,
        plot: options.plot.map(|path| path.display().to_string()),
    };
    if options.json.json {
        return output::json(&report);
    }
    print(&report);
    Ok(())
}

/// What was given, then what was measured, then the paper's.
fn parameters(
    given: &HardwareArgs,
    measured: Option<&Measured>,
) -> Result<(Hardware, Vec<Parameter>), Failure> {
    let disk = measured.and_then(|measured| measured.disk.as_ref());
    let all = [
        ("block_bytes", given.block.map(|bytes| bytes as f64), None, PAPER.block_bytes),
        (
            "memory_bandwidth",
            given.memory_bandwidth,
            measured.map(|measured| measured.memory_bandwidth),
            PAPER.memory_bandwidth,
        ),
        (
            "network_bandwidth",
            given.network_bandwidth,
            measured.map(|measured| measured.network_bandwidth),
            PAPER.network_bandwidth,
        ),
        (
            "network_overhead",
            given.network_overhead,
            measured.map(|measured| measured.network_overhead),
            PAPER.network_overhead_s,
        ),
        ("disk_bandwidth", given.disk_bandwidth, disk.map(|disk| disk.bandwidth), PAPER.disk_bandwidth),
        ("disk_overhead", given.disk_overhead, disk.map(|disk| disk.overhead), PAPER.disk_overhead_s),
    ];
    let parameters = all.map(|(name, given, measured, paper)| match (given, measured) {
        (Some(value), _) => Parameter { name, value, from: From::Given },
        (None, Some(value)) => Parameter { name, value, from: From::Measured },
        (None, None) => Parameter { name, value: paper, from: From::Paper },
    });
    let [block, memory, network, overhead, disk, found] = parameters.map(|parameter| parameter.value);
    let hardware = Hardware {
        block_bytes: block,
        memory_bandwidth: memory,
        network_bandwidth: network,
        network_overhead_s: overhead,
        disk_bandwidth: disk,
        disk_overhead_s: found,
    };
    hardware.check().map_err(Failure::usage)?;
    Ok((hardware, parameters.to_vec()))
}

/// The parameters without a measurement.
pub fn hardware(given: &HardwareArgs) -> Result<Hardware, Failure> {
    parameters(given, None).map(|(hardware, _)| hardware)
}

pub fn case(given: &HardwareArgs, hardware: Hardware) -> Case {
    let HardwareArgs { hit_local, hit_remote, redundancy, .. } = *given;
    Case { hardware, local_hits: hit_local, remote_hits: hit_remote, redundancy }
}

/// The paper's figures as they are, and figure 3 by these parameters, where they are others.
fn charts(case: &Case, parameters: &[Parameter], nodes: u32) -> Vec<Chart> {
    let of_paper = Case { hardware: PAPER, ..*case };
    let mut charts =
        vec![figure_two(case.remote_hits, nodes), figure_three("on its hardware", &of_paper, nodes)];
    if parameters.iter().any(|parameter| parameter.from != From::Paper) {
        let is_measured = parameters.iter().any(|parameter| parameter.from == From::Measured);
        let what = if is_measured { "on hardware as measured" } else { "on hardware as given" };
        charts.push(figure_three(what, case, nodes));
    }
    charts
}

/// Refused before anything is computed.
pub fn is_free(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::usage(format!("{} is there already: name another file", path.display()))),
        Err(_) => Ok(()),
    }
}

/// Puts charts into a file of its own.
pub fn draw(path: &Path, charts: &[Chart]) -> Result<(), Failure> {
    files::write(path, &plot::page(charts), false)
}

fn row(points: &Points) -> Row {
    let Point { nodes, remote_hits, raid_s, seconds, .. } = points.printed;
    Row {
        nodes,
        remote_hits,
        t_raid: raid_s,
        t_dralic_printed: seconds,
        t_dralic_memory: points.memory.seconds,
        redundancy: points.redundancy.to_string(),
        t_raid_groups: points.groups.raid_s,
        t_dralic_groups: points.groups.seconds,
    }
}

fn print(report: &Report) {
    for parameter in &report.parameters {
        output::line(&show(parameter));
    }
    output::line(&format!("hits: {} local, {} remote", report.local_hits, report.remote_hits));
    if let Some(measured) = &report.measured {
        output::line(&format!(
            "measured: by {}, where a block was read in {}",
            show_count(measured.donors.into(), "donor"),
            show_seconds(measured.block_read)
        ));
    }
    for (name, seconds) in [
        ("T_lm, a hit of the own memory", report.t_lm),
        ("T_rm as printed, with B/BW_disk", report.t_rm_printed),
        ("T_rm with B/BW_mem", report.t_rm_memory),
        ("T_pc, a computer alone", report.t_pc),
    ] {
        output::line(&format!("{name:<32}  {}", show_seconds(seconds)));
    }
    let times = |seconds: f64| format!("{} ({}x)", show_seconds(seconds), show_number(report.t_pc / seconds));
    let rows: Vec<Vec<String>> = report
        .points
        .iter()
        .map(|row| {
            vec![
                row.nodes.to_string(),
                show_number(row.remote_hits),
                show_seconds(row.t_raid),
                times(row.t_dralic_printed),
                times(row.t_dralic_memory),
                row.redundancy.clone(),
                show_seconds(row.t_raid_groups),
                times(row.t_dralic_groups),
            ]
        })
        .collect();
    let head = [
        "NODES",
        "REMOTE HITS",
        "T_RAID",
        "T AS PRINTED",
        "T BY MEMORY",
        "IN GROUPS",
        "T_RAID",
        "T BY MEMORY",
    ];
    output::lay_out(&head, &rows).iter().for_each(|line| output::line(line));
    if let Some(plot) = &report.plot {
        output::line(&format!("drawn: {plot}"));
    }
}

fn show(parameter: &Parameter) -> String {
    let Parameter { name, value, from } = *parameter;
    let shown = match name {
        "block_bytes" => format!("{value} bytes"),
        "network_overhead" | "disk_overhead" => show_seconds(value),
        _ => show_rate(value),
    };
    let from = match from {
        From::Paper => "the paper's",
        From::Given => "given",
        From::Measured => "measured",
    };
    format!("{:<32}  {shown:<12}  {from}", name.replace('_', " "))
}
