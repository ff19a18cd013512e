//! The plots of the benchmark as SVG: bars of a part's ratios with their bars to clear, and lines of how cost
//! grows. Never: a figure that the table has not. Called by: `results`. Tests: below, and of `cheetah_model`.

use std::fmt::Write;

use cheetah_model::plot::{self, head};

use crate::bench::row::{Bar, Row, figure};

const WIDTH: f64 = 1300.0;
const LEFT: f64 = 790.0;
const RIGHT: f64 = 70.0;
const LINE: f64 = 20.0;
const TOP: f64 = 40.0;
const MET: &str = "#1b6ca8";
const MISSED: &str = "#c0392b";
const PLAIN: &str = "#8a9199";

/// Ratios on a logarithmic scale around 1, which is the peer; marks where each bar is, and what can be had.
pub fn bars(part: &str, rows: &[&Row]) -> String {
    let height = TOP + LINE * rows.len() as f64 + 30.0;
    let ratios = rows.iter().filter_map(|row| row.ratio).filter(|ratio| *ratio > 0.0);
    let marks = rows.iter().flat_map(|row| [ratio_bar(row), row.limit_ratio()]).flatten();
    let reach = ratios.chain(marks).map(|ratio| ratio.log10().abs()).fold(0.3, f64::max) * 1.05;
    let x_of = |ratio: f64| LEFT + (ratio.log10() / reach + 1.0) / 2.0 * (WIDTH - LEFT - RIGHT);
    let mut svg = head(WIDTH, height);
    text(
        &mut svg,
        10.0,
        20.0,
        &format!(
            "{part}: ratio to the peer named, logarithmic; black marks are the bars, dashed ones the limits"
        ),
    );
    let (middle, bottom) = (x_of(1.0), height - 24.0);
    let _ =
        write!(svg, r##"<line x1="{middle:.1}" x2="{middle:.1}" y1="{TOP}" y2="{bottom}" stroke="#444"/>"##);
    text(&mut svg, middle - 14.0, height - 8.0, "peer");
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + LINE * index as f64;
        let ratio = row.ratio.unwrap_or(1.0).max(1e-6);
        let peer = row.peer.as_deref().unwrap_or_default();
        text(&mut svg, 10.0, y + 13.0, &format!("{} / {peer}", row.what));
        let (from, to) = (x_of(ratio).min(middle), x_of(ratio).max(middle));
        let colour = match row.ok {
            Some(true) => MET,
            Some(false) => MISSED,
            None => PLAIN,
        };
        let _ = write!(
            svg,
            r#"<rect x="{from:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
            y + 3.0,
            (to - from).max(1.0),
            LINE - 6.0
        );
        text(&mut svg, WIDTH - RIGHT + 8.0, y + 13.0, &figure(ratio));
        let marks = [(ratio_bar(row), "#000", "none"), (row.limit_ratio(), "#d9822b", "3 2")];
        for (ratio, colour, dashes) in marks {
            let Some(x) = ratio.filter(|ratio| *ratio > 0.0).map(x_of) else { continue };
            let _ = write!(
                svg,
                r#"<line x1="{x:.1}" x2="{x:.1}" y1="{y:.1}" y2="{:.1}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>"#,
                y + LINE - 1.0
            );
        }
    }
    svg + "</svg>\n"
}

fn ratio_bar(row: &Row) -> Option<f64> {
    match row.bar? {
        Bar::RatioAtLeast(bar) | Bar::RatioAtMost(bar) => Some(bar),
        Bar::ValueAtMost(_) => None,
    }
}

/// How a figure grows with a number of things: lines over a logarithmic axis.
#[derive(Clone, Debug)]
pub struct Scaling {
    pub id: String,
    pub title: String,
    pub x: String,
    pub y: String,
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Scaling {
    pub fn svg(&self) -> String {
        let all = self.lines.iter().enumerate().map(|(colour, (name, points))| {
            let (name, points) = (name.clone(), points.clone());
            plot::Line { name, points, style: plot::Style::Marked, colour }
        });
        let lines = all.collect();
        let (title, x, y) = (self.title.clone(), self.x.clone(), self.y.clone());
        plot::Chart { title, x, y, log_y: false, lines }.svg()
    }
}

fn text(svg: &mut String, x: f64, y: f64, words: &str) {
    plot::text(svg, x, y, plot::Anchor::Start, words);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row::Figure;
    use crate::figures::Series;

    #[test]
    fn a_bar_for_each_ratio_and_a_mark_for_each_demand() {
        let (value, peer): (Series, Series) = ([4.0].into_iter().collect(), [2.0].into_iter().collect());
        let row = |bar| {
            let (what, peer) = ("a < b".to_owned(), Some(("nbdkit", &peer)));
            Figure { peer, bar, ..Figure::new("x.a", what, "GB/s", &value) }.row()
        };
        let (met, plain) = (row(Some(Bar::RatioAtLeast(1.5))), row(None));
        let svg = bars("x", &[&met, &plain]);
        assert_eq!(svg.matches("<rect x=").count(), 2);
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 1);
        assert!(svg.contains("a &lt; b / nbdkit") && svg.contains(MET) && !svg.contains(MISSED));
    }

    #[test]
    fn lines_have_their_points() {
        let lines = vec![("read".to_owned(), vec![(1.0, 1.0), (2.0, 2.0), (8.0, 3.0)])];
        let words = |text: &str| text.to_owned();
        let scaling =
            Scaling { id: words("s"), title: words("t"), x: words("donors"), y: words("GB/s"), lines };
        let svg = scaling.svg();
        // With the legend's.
        assert_eq!(svg.matches("<circle").count(), 3 + 1);
        assert!(["read", "donors", "GB/s"].into_iter().all(|word| svg.contains(word)), "{svg}");
    }
}
