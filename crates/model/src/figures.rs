//! The paper's figures 2 and 3, and the nodes that tables have a row for. Never: how a chart is drawn.

use crate::formula::{Point, Remote, t_dralic, t_pc};
use crate::hardware::Hardware;
use crate::hits::RemoteHits;
use crate::plot::{Chart, Line, Style};
use crate::pool::{default_redundancy, disks_of_block};
use cheetah_core::map::Redundancy;

/// What the formulas are computed for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The parameters.
    pub hardware: Hardware,
    /// H_lm.
    pub local_hits: f64,
    /// H_rm.
    pub remote_hits: RemoteHits,
    /// How volumes lie; without it as core chooses for each number of nodes.
    pub redundancy: Option<Redundancy>,
}

/// T_dralic three times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Points {
    /// Striped over all nodes, T_rm as it is printed.
    pub printed: Point,
    /// Striped over all nodes, T_rm with a memory's bandwidth.
    pub memory: Point,
    /// As Cheetah's volumes lie; T_rm with a memory's bandwidth.
    pub groups: Point,
    /// How they lie.
    pub redundancy: Redundancy,
}

impl Case {
    /// What volumes of so many nodes have.
    #[must_use]
    pub fn redundancy_of(&self, nodes: u32) -> Redundancy {
        self.redundancy.filter(|asked| asked.width() <= nodes).unwrap_or_else(|| default_redundancy(nodes))
    }

    /// The formulas for so many nodes.
    #[must_use]
    pub fn at(&self, nodes: u32) -> Points {
        let redundancy = self.redundancy_of(nodes);
        let hits = self.remote_hits.at(nodes);
        let of = |remote, disks| t_dralic(&self.hardware, remote, nodes, disks, self.local_hits, hits);
        Points {
            printed: of(Remote::Printed, nodes),
            memory: of(Remote::Memory, nodes),
            groups: of(Remote::Memory, disks_of_block(&self.hardware, redundancy)),
            redundancy,
        }
    }
}

/// 1, 2, 4, 8 and so on, and the last.
#[must_use]
pub fn doublings(most: u32) -> Vec<u32> {
    let mut steps: Vec<u32> =
        (0..u32::BITS).map(|power| 1 << power).take_while(|step| *step < most).collect();
    steps.push(most.max(1));
    steps
}

/// 1, 2, 5, 10, 20, 50 and so on, and the last.
#[must_use]
pub fn decades(most: u32) -> Vec<u32> {
    let of = |power: u32| [1, 2, 5].map(|digit| digit * 10_u32.pow(power));
    let mut steps: Vec<u32> = (0..8).flat_map(of).take_while(|step| *step < most).collect();
    steps.push(most.max(1));
    steps
}

/// Each number up to 16, then about sixteen for each doubling, and all of `decades`.
fn fine(most: u32) -> Vec<u32> {
    let mut steps: Vec<u32> = (1..=most.min(16)).chain(decades(most)).collect();
    let mut next = 17_u32;
    while next < most {
        steps.push(next);
        next += (next / 16).max(1);
    }
    steps.sort_unstable();
    steps.dedup();
    steps
}

/// Figure 2: the miss ratio of remote caches over the number of nodes.
#[must_use]
pub fn figure_two(hits: RemoteHits, most: u32) -> Chart {
    let points = fine(most).into_iter().map(|nodes| (nodes.into(), 1.0 - hits.at(nodes))).collect();
    let style = if most > 16 { Style::Plain } else { Style::Marked };
    let line = Line { name: format!("assumed: {hits}"), points, style, colour: 0 };
    Chart {
        title: "Figure 2 of the paper: remote cache miss ratio".to_owned(),
        x: "nodes, logarithmic".to_owned(),
        y: "miss ratio".to_owned(),
        log_y: false,
        lines: vec![line],
    }
}

/// Figure 3: the average response time over the number of nodes, three ways, beside a computer alone.
#[must_use]
pub fn figure_three(of: &str, case: &Case, most: u32) -> Chart {
    let steps = fine(most);
    let line = |name: &str, style, colour, seconds: &dyn Fn(u32) -> f64| {
        let points = steps.iter().map(|nodes| (f64::from(*nodes), seconds(*nodes) * 1e3)).collect();
        Line { name: name.to_owned(), points, style, colour }
    };
    let lines = vec![
        line("T_pc: a computer alone", Style::Dashed, 5, &|_| t_pc(&case.hardware)),
        line("T_dralic, T_rm as printed: B/BW_disk", Style::Plain, 4, &|nodes| {
            case.at(nodes).printed.seconds
        }),
        line("T_dralic, T_rm with B/BW_mem", Style::Plain, 0, &|nodes| case.at(nodes).memory.seconds),
        line("the same, blocks in groups of few", Style::Plain, 2, &|nodes| case.at(nodes).groups.seconds),
    ];
    Chart {
        title: format!("Figure 3 of the paper: average I/O response time {of}"),
        x: "nodes, logarithmic".to_owned(),
        y: "milliseconds".to_owned(),
        log_y: most > 16,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::PAPER;

    const CASE: Case =
        Case { hardware: PAPER, local_hits: 0.0, remote_hits: RemoteHits::PAPER, redundancy: None };

    #[test]
    fn steps_end_with_what_was_asked_for() {
        assert_eq!(doublings(1), [1]);
        assert_eq!(doublings(6), [1, 2, 4, 6]);
        assert_eq!(decades(10), [1, 2, 5, 10]);
        assert_eq!(decades(1_000).last(), Some(&1_000));
        assert_eq!(decades(10_000).len(), 13);
        assert!(fine(10_000).windows(2).all(|pair| pair[0] < pair[1]) && fine(10_000).len() < 200);
        assert_eq!(fine(3), [1, 2, 3]);
    }

    /// Figure 2 falls, to what is assumed that nobody ever has; figure 3 has its points of the formulas.
    #[test]
    fn the_figures_are_those_of_the_formulas() {
        let two = figure_two(RemoteHits::PAPER, 16);
        let misses: Vec<f64> = two.lines[0].points.iter().map(|(_, miss)| *miss).collect();
        assert!(misses.windows(2).all(|pair| pair[1] <= pair[0]), "{misses:?}");
        assert!((misses[0] - 1.0).abs() < 1e-12 && (misses[3] - 0.2).abs() < 1e-12, "{misses:?}");
        let three = figure_three("on its hardware", &CASE, 16);
        let at = |line: usize, node: usize| three.lines[line].points[node - 1].1;
        assert!((at(0, 4) - 12.327_68).abs() < 1e-6, "T_pc");
        assert!((at(1, 4) - 3.076_352).abs() < 1e-6, "T_dralic of four nodes, as printed");
        assert!(at(2, 4) < at(1, 4) && at(3, 16) < at(2, 16), "{three:?}");
    }

    #[test]
    fn a_redundancy_that_does_not_fit_yet_is_cores_choice() {
        let case = Case { redundancy: "parity:4+1".parse().ok(), ..CASE };
        assert_eq!(case.redundancy_of(3).to_string(), "parity:2+1");
        assert_eq!(case.redundancy_of(5).to_string(), "parity:4+1");
    }
}
