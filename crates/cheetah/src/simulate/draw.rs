//! The plot of `cheetah simulate`: the formulas as lines, what was simulated as dots. Never: a figure that
//! the report has not. Called by `simulate`.

use super::runs::{Loaded, Lost, Plan, Sized};
use cheetah_model::plot::{Chart, Line, Style};
use cheetah_model::quantities::YEAR_S;

pub fn charts(plan: &Plan, over_nodes: &[Sized], over_load: &[Loaded], losses: &[Lost]) -> Vec<Chart> {
    vec![by_nodes(over_nodes), by_load(plan, over_load), by_years(losses)]
}

fn line(name: &str, style: Style, colour: usize, points: impl Iterator<Item = (f64, f64)>) -> Line {
    Line { name: name.to_owned(), points: points.collect(), style, colour }
}

fn by_nodes(of: &[Sized]) -> Chart {
    let points = |value: fn(&Sized) -> f64| of.iter().map(move |at| (f64::from(at.nodes), value(at) * 1e3));
    Chart {
        title: "Mean time of a request: formulas and simulation".to_owned(),
        x: "nodes, logarithmic".to_owned(),
        y: "milliseconds, logarithmic".to_owned(),
        log_y: true,
        lines: vec![
            line("striped over all nodes: T_dralic", Style::Plain, 4, points(|at| at.striped.model)),
            line("striped over all nodes: simulated", Style::Dots, 4, points(|at| at.striped.times.mean)),
            line("in groups of few: T_dralic", Style::Plain, 2, points(|at| at.groups.model)),
            line("in groups of few: simulated", Style::Dots, 2, points(|at| at.groups.times.mean)),
        ],
    }
}

fn by_load(plan: &Plan, of: &[Loaded]) -> Chart {
    let points = |value: fn(&Loaded) -> f64| of.iter().map(move |at| (at.load, value(at) * 1e3));
    Chart {
        title: format!("Reads of disks by {} nodes, while these have more to do", plan.few),
        y: "milliseconds, logarithmic".to_owned(),
        x: "load: busy share of what is busiest, without hedges; logarithmic".to_owned(),
        log_y: true,
        lines: vec![
            line("T_raid, without queues", Style::Dashed, 5, points(|at| at.layout.raid)),
            line("layout alone: mean", Style::Marked, 2, points(|at| at.layout.disk.mean)),
            line("layout alone: 99th percentile", Style::Dashed, 2, points(|at| at.layout.disk.p99)),
            line("volume machines: mean", Style::Marked, 0, points(|at| at.machines.disk.mean)),
            line("volume machines: 99th percentile", Style::Dashed, 0, points(|at| at.machines.disk.p99)),
        ],
    }
}

fn by_years(of: &[Lost]) -> Chart {
    let mut names: Vec<&str> = of.iter().map(|lost| lost.redundancy.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut lines = Vec::new();
    for (colour, name) in names.into_iter().enumerate() {
        let rows = || of.iter().filter(move |lost| lost.redundancy == name);
        let years = |lost: &Lost, seconds: f64| (f64::from(lost.nodes), seconds / YEAR_S);
        let lost = rows().filter_map(|lost| lost.mttdl.map(|seconds| years(lost, seconds)));
        let formula = rows().map(|lost| years(lost, lost.mttdl_formula));
        lines.push(line(&format!("{name}: simulated"), Style::Dots, colour, lost));
        lines.push(line(&format!("{name}: formula"), Style::Dashed, colour, formula));
    }
    Chart {
        title: "Mean time until a pool loses data; without a dot nothing was lost".to_owned(),
        x: "nodes, logarithmic".to_owned(),
        y: "years, logarithmic".to_owned(),
        log_y: true,
        lines,
    }
}
