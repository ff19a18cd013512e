//! The plots of the benchmark as SVG: bars of a part's ratios with their bars to clear, and lines of how cost
//! grows. Never: a figure that the table has not. Called by: `results`. Tests: below.

use std::fmt::Write;

use crate::bench::row::{Bar, Row, figure};

const WIDTH: f64 = 1300.0;
const LEFT: f64 = 790.0;
const RIGHT: f64 = 70.0;
const LINE: f64 = 20.0;
const TOP: f64 = 40.0;
const MET: &str = "#1b6ca8";
const MISSED: &str = "#c0392b";
const PLAIN: &str = "#8a9199";
const COLOURS: [&str; 5] = ["#1b6ca8", "#d9822b", "#3c8d40", "#8e44ad", "#c0392b"];

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
        const HEIGHT: f64 = 380.0;
        const PLOT: [f64; 4] = [80.0, 50.0, 700.0, 320.0];
        const STEPS: f64 = 4.0;
        let points = || self.lines.iter().flat_map(|(_, points)| points.iter().copied());
        let least = points().map(|(x, _)| x).fold(f64::INFINITY, f64::min).max(1e-9);
        let most = points().map(|(x, _)| x).fold(least, f64::max);
        let step = round_up(points().map(|(_, y)| y).fold(1e-9, f64::max) / STEPS);
        let decades = (most / least).log10().max(1e-9);
        let [left, upper, right, lower] = PLOT;
        let x_of = |x: f64| left + (x / least).log10() / decades * (right - left);
        let y_of = |y: f64| lower - y / (STEPS * step) * (lower - upper);
        let mut svg = head(right + 160.0, HEIGHT);
        text(&mut svg, 10.0, 20.0, &self.title);
        text(&mut svg, 10.0, upper - 10.0, &self.y);
        text(&mut svg, right - 60.0, HEIGHT - 12.0, &self.x);
        for number in 0..=STEPS as u32 {
            let value = step * f64::from(number);
            let y = y_of(value);
            let _ =
                write!(svg, r##"<line x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##);
            // Or 3 times 0.1 would have seventeen digits.
            text(&mut svg, 20.0, y + 4.0, &format!("{}", (value * 1e6).round() / 1e6));
        }
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let path: Vec<String> =
                points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
            let _ = write!(
                svg,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
                path.join(" ")
            );
            for (x, y) in points {
                let (x_at, y_at) = (x_of(*x), y_of(*y));
                let _ = write!(svg, r#"<circle cx="{x_at:.1}" cy="{y_at:.1}" r="3" fill="{colour}"/>"#);
                if index == 0 {
                    text(&mut svg, x_at - 8.0, lower + 18.0, &format!("{x}"));
                }
            }
            let y = upper + 18.0 * index as f64;
            let _ = write!(
                svg,
                r#"<rect x="{}" y="{:.1}" width="12" height="12" fill="{colour}"/>"#,
                right + 14.0,
                y
            );
            text(&mut svg, right + 30.0, y + 10.0, name);
        }
        svg + "</svg>\n"
    }
}

/// The next number that people count in: 1, 2, 2.5 or 5, and zeros.
fn round_up(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|digit| digit * decade)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least)
}

fn head(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\"><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    )
}

/// Writing to a String does not fail.
fn text(svg: &mut String, x: f64, y: f64, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = write!(svg, r#"<text x="{x:.1}" y="{y:.1}">{words}</text>"#);
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
        assert_eq!(svg.matches("<circle").count(), 3);
        // Up to the first of 1, 2, 2.5 and 5 that four steps need.
        assert!([">0<", ">1<", ">2<", ">3<", ">4<"].into_iter().all(|label| svg.contains(label)), "{svg}");
        assert_eq!([0.75, 1.0, 240.0, 2.1e-3].map(round_up), [1.0, 1.0, 250.0, 2.5e-3]);
    }
}
